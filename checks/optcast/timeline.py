"""Timelines of a run, with a row for each thread and job or each request."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from config.records.samples import Sample

from .logs import Log, Span

#: Colours of the kinds of spans, the same in every plot.
COLOURS = {'recv': '#4477aa', 'reduce': '#ee6677', 'send': '#228833',
           'convert': '#ccbb44', 'requested': '#ccbb44',
           'send done': '#228833', 'recv done': '#4477aa'}

#: Number of spans per side that are kept with the records, the last ones.
KEPT = 1000


def parse_time_window(text: str) -> tuple[float, float]:
    """Start and end of a window in ms, from `A,B`, or `B` with start 0.

    :raises ValueError: the text has another form
    """
    match = re.fullmatch(r'(?:(\d+(?:\.\d+)?),)?(\d+(?:\.\d+)?)', text)
    if not match or float(match[1] or 0) >= float(match[2]):
        raise ValueError(f'--xlim {text}: expected FROM,TO or TO in ms, for '
                         'example 20,60')
    return float(match[1] or 0), float(match[2])


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


def draw(log: Log, implementation: str, folder: Path,
         window: tuple[float, float] | None = None) -> list[Path]:
    """Draw client or server as PNG and SVG, identical for identical logs.

    :param implementation: such as optcast, for the title
    :param window: start and end in ms; None: everything
    :raises ValueError: no span lies in the window
    """
    # Imported only here: no check and no parser needs it.
    import matplotlib
    matplotlib.use('agg')
    from matplotlib import pyplot as plt

    last = max(span.end for span in log.spans)
    from_, to = window or (0.0, last)
    seen = [span for span in log.spans if span.end >= from_ and span.start <= to]
    if not seen:
        raise ValueError(f'{log.side}: the log has no span between {from_:g} and '
                         f'{to:g} ms; it ends at {last:.1f} ms')
    rows = sorted_row_names(log.spans)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [folder / f'{log.side}.{ending}' for ending in ('png', 'svg')]
    with plt.rc_context({'svg.hashsalt': 'plumbline', 'font.size': 9}):
        figure, axes = plt.subplots(
            figsize=(12, 1.5 + 0.28 * len(rows)), layout='constrained')
        for kind in dict.fromkeys(span.kind for span in seen):
            colour = COLOURS.get(kind, '#777777')
            for number, row in enumerate(rows):
                axes.broken_barh(
                    [(span.start, span.duration_ms) for span in seen
                     if span.row == row and span.kind == kind],
                    (number - 0.4, 0.8), color=colour)
            axes.plot([], [], color=colour, linewidth=6, label=kind)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlim(from_, to)
        axes.set_xlabel('time (ms)')
        axes.set_title(f'{log.side} ({implementation})')
        axes.legend(loc='upper left', bbox_to_anchor=(1, 1))
        for path in drawn:
            figure.savefig(path, dpi=120, metadata={'Date': None}
                           if path.suffix == '.svg' else None)
        plt.close(figure)
    return drawn
