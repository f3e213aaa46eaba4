"""The spans that the page draws as timelines, with a row for each thread and job or
each request."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from config.records.samples import Sample

from .logs import Log, Span

#: Number of spans per side that are kept with the records, the last ones.
KEPT = 1000


def sorted_row_names(spans: Sequence[Span]) -> list[str]:
    """The rows of a timeline: `recv(2/0)` before `recv(10/0)`."""
    return sorted({span.row for span in spans}, key=lambda row: [
        int(part) if part.isdigit() else part
        for part in re.split(r'(\d+)', row)])


def last_spans_as_samples(logs: Iterable[Log]) -> list[Sample]:
    """The last KEPT spans of each log as raw samples, for plots of the page.

    The call is such as `server:recv`, the rank is the number of the row, and
    times are in s since the first kept span.
    """
    results = []
    for log in logs:
        last = sorted(log.spans, key=lambda span: span.end)[-KEPT:]
        rows = {row: number for number, row in enumerate(sorted_row_names(last))}
        first = min((span.start for span in last), default=0.0)
        count: Counter[tuple[str, str]] = Counter()
        for span in last:
            results.append(Sample(
                rows[span.row],
                f'{log.side}:{span.kind.replace(" ", "_")}',
                count[span.row, span.kind], span.duration_ms / 1e3,
                (span.start - first) / 1e3))
            count[span.row, span.kind] += 1
    return results
