"""Lines that show why a run of nccl-tests or rccl-tests failed."""
from __future__ import annotations

import re
from collections.abc import Sequence

from ..core import text as saved

#: Lines of a run that ends with an error or ignores an option: pattern -> what the line
#: does not say. A pattern begins with text of any length only at the start of a line:
#: on long lines the time would be quadratic.
FAILURES = tuple((re.compile(pattern), more) for pattern, more in {
    r'\w driver version is insufficient':
        'the node has no GPU driver: did the job get a node with GPUs?',
    'no (?:CUDA|ROCm)-capable device is detected':
        'no GPU is visible: check that the job requests GPUs and that '
        'CUDA_VISIBLE_DEVICES (ROCR_VISIBLE_DEVICES) is correct',
    'Duplicate GPU detected|Multiple Ranks are using the same GPU':
        'several ranks use one GPU, which NCCL refuses: the node has more '
        'ranks than GPUs, or CUDA_VISIBLE_DEVICES is the same for all ranks',
    'Test CUDA failure': 'a call of CUDA or HIP failed (exit code 2)',
    'Test NCCL failure':
        'a call of NCCL failed (exit code 3); NCCL_DEBUG=WARN prints more',
    r'Test timeout \(': 'the program reached its own time limit -T (exit code 4): did '
        'it hang?',
    'Invalid number of GPUs: |number of requested GPUs':
        'a node has too few GPUs (exit code 5)',
    r'nRanks \d+ is not a power of 2, skipping':
        'hypercube_perf then measures nothing and ends with exit code 0',
    'Reducing maxBytes to':
        'the largest requested size was not measured: the memory of the GPU is too '
        'small for it (option -e)',
    r'invalid (?:type|op) \S+, defaulting to':
        'the program does not know the data type or reduction and measured another one',
    r'invalid option|^\S+: (?:invalid|unrecognized) option|^ *USAGE: ':
        'the program does not know an option of its command line: it printed its usage '
        'and ended with exit code 0',
    'invalid sizes? (?:for|specified)': 'the sizes are wrong (options -b, -e)',
    r'maxBytes \(-e\) must be at |device implementation \(-D > 0\) requires'
    '|NCCL .* or later is needed for ': 'an option has no effect',
    r'Option -\w .*(?:not supported|requires NCCL)|device_cta_count.*Using default '
    'value|(?:per-iteration|blocking mode).*Disabling': 'an option has no effect',
    'NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY:|alltoallv traffic matrix':
        'NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY makes the program write into the rows of '
        'the table: unset this variable',
    'error while loading shared libraries':
        'a library was not found (exit code 127): add its folder to LD_LIBRARY_PATH',
    'symbol lookup error: .*undefined symbol':
        'NCCL or CUDA is older than the version that the program was built with',
}.items())
#: Lines that show a failed run without its reason.
_DIED = re.compile(
    r'Test failure \S+:\d|terminate called|DUE TO TIME LIMIT|srun: error:|'
    'command not found|could not execute|unable to find the specified', re.IGNORECASE)
#: Normal log lines of NCCL, which searches for files and retries.
_CHATTER = re.compile('[NR]CCL (?:INFO|TRACE|ABORT|VERSION)')


def find_failures(lines: Sequence[str], row: re.Pattern[str], longest: int
                  ) -> tuple[tuple[int, str] | None, tuple[int, str] | None]:
    """Line, from 1, and reason of a run that prints why it failed; and the line that
    shows best that a run died.

    :param row: beginning of a row of the table
    :param longest: characters of a line that are searched
    """
    suspects = [(number, line[:longest].strip()) for number, line in enumerate(lines, 1)
                if line.strip(' #\r') and not _CHATTER.search(line)
                and (not row.match(line) or re.search('failure|SUMMARY', line))]
    reason = next(((number, f'{more} ({line[:160]})') for pattern, more in FAILURES
                   for number, line in suspects if pattern.search(line)), None)
    best = saved.find_failure([line for _, line in suspects])
    died = (next((one for one in suspects if _DIED.search(one[1])), None)
            if best is None else suspects[best])
    return reason, died
