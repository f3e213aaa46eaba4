"""Lines that show why a run of nccl-tests or rccl-tests failed."""
from __future__ import annotations

import re
from collections.abc import Sequence

from ..core import text as saved
from ..core.tables import LONGEST

#: Lines of a run that ends with an error, or that ignores an option and ends with exit
#: code 0. A pattern begins with text of any length only at the start of a line: on long
#: lines the time would be quadratic.
FAILURES = tuple(map(re.compile, (
    r'\w driver version is insufficient',
    'no (?:CUDA|ROCm)-capable device is detected',
    'Duplicate GPU detected|Multiple Ranks are using the same GPU',
    'Test (?:CUDA|NCCL) failure', r'Test timeout \(',
    'Invalid number of GPUs: |number of requested GPUs',
    # hypercube_perf then measures nothing and ends with exit code 0.
    r'nRanks \d+ is not a power of 2, skipping',
    # The memory of the GPU is too small for the largest size.
    'Reducing maxBytes to',
    r'invalid (?:type|op) \S+, defaulting to',
    r'invalid option|^\S+: (?:invalid|unrecognized) option|^ *USAGE: ',
    'invalid sizes? (?:for|specified)',
    # An option has no effect.
    r'maxBytes \(-e\) must be at |device implementation \(-D > 0\) requires'
    '|NCCL .* or later is needed for ',
    r'Option -\w .*(?:not supported|requires NCCL)|device_cta_count.*Using default '
    'value|(?:per-iteration|blocking mode).*Disabling',
    # The variable makes the program write into the rows of the table.
    'NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY:|alltoallv traffic matrix',
    'error while loading shared libraries', 'symbol lookup error: .*undefined symbol')))
#: Lines that show a failed run without its reason.
_DIED = re.compile(
    r'Test failure \S+:\d|terminate called|DUE TO TIME LIMIT|srun: error:|'
    'command not found|could not execute|unable to find the specified', re.IGNORECASE)
#: Normal log lines of NCCL, which searches for files and retries.
_CHATTER = re.compile('[NR]CCL (?:INFO|TRACE|ABORT|VERSION)')


def find_failures(lines: Sequence[str], row: re.Pattern[str]
                  ) -> tuple[tuple[int, str] | None, tuple[int, str] | None]:
    """Number, from 1, and text of the line that shows why a run failed, and of the line
    that shows best that it died; None: no line does.

    :param row: beginning of a row of the table
    """
    suspects = [(number, line[:LONGEST].strip()) for number, line in enumerate(lines, 1)
                if line.strip(' #\r') and not _CHATTER.search(line)
                and (not row.match(line) or re.search('failure|SUMMARY', line))]
    failure = next((one for pattern in FAILURES for one in suspects
                    if pattern.search(one[1])), None)
    best = saved.find_failure([line for _, line in suspects])
    died = (next((one for one in suspects if _DIED.search(one[1])), None)
            if best is None else suspects[best])
    return failure, died
