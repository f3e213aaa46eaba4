"""Lines that show why a run of nccl-tests or rccl-tests failed."""
from __future__ import annotations

import re
from collections.abc import Sequence

from ..core import text as saved

#: Lines of a run that ends with an error or ignores an option:
#: pattern -> explanation and remedy. A pattern begins with text of any length
#: only at the start of a line: on long lines the time would be quadratic.
FAILURES = {re.compile(pattern): reason for pattern, reason in {
    r'\w driver version is insufficient':
        'the node has no GPU driver: did the job get a node with GPUs?',
    'no (?:CUDA|ROCm)-capable device is detected':
        'no GPU is visible: check that the job requests GPUs and that '
        'CUDA_VISIBLE_DEVICES (ROCR_VISIBLE_DEVICES) is correct',
    'Duplicate GPU detected':
        'several ranks use one GPU, which NCCL refuses: the node has more '
        'ranks than GPUs, or CUDA_VISIBLE_DEVICES is the same for all ranks',
    r'Test CUDA failure [^\']*\'(?P<said>.*)\'':
        'a call of CUDA or HIP failed (exit code 2): {said}',
    r'Test NCCL failure [^\']*\'(?P<said>.*)\'':
        'a call of NCCL failed (exit code 3): {said}; NCCL_DEBUG=WARN prints '
        'more',
    r'Test timeout \((?P<said>\d+)s\)':
        'the program reached its own time limit -T {said} (exit code 4): did '
        'it hang?',
    r'Invalid number of GPUs: (?P<said>.*)':
        'a node has too few GPUs (exit code 5): {said}',
    r'\[ERROR\] (?P<said>The number of requested GPUs.*)':
        'a node has too few GPUs: {said}',
    r'(?P<said>nRanks \d+ is not a power of 2), skipping':
        '{said}: hypercube_perf then measures nothing and ends with exit '
        'code 0',
    r'Reducing maxBytes to (?P<said>\d+)':
        'the largest requested size was not measured: the memory of the GPU '
        'is sufficient for {said} B only (option -e)',
    r'invalid (?P<said>type|op) (?P<name>\S+), defaulting to (?P<other>\S+)':
        'the program does not know the {said} {name} and measured {other}',
    r'invalid option \'?(?P<said>[^\s\']*)|^\S+: (?:invalid|unrecognized) '
    r'option|^ *USAGE: ':
        'the program does not know an option of its command line: it printed '
        'its usage and ended with exit code 0',
    r'(?P<said>invalid sizes? (?:for|specified).*)':
        '{said} (options -b, -e; exit code 255)',
    r'(?P<said>device implementation \(-D > 0\) requires.*)':
        '{said} (exit code 255)',
    r'(?P<said>Option -\w .*(?:not supported|requires NCCL).*)':
        'an option has no effect: {said}',
    r'^(?P<said>.*(?:per-iteration|blocking mode).*Disabling\.)':
        'an option has no effect: {said}',
    r'(?P<said>device_cta_count.*Using default value.*)':
        'an option has no effect: {said}',
    r'(?P<said>NCCL \S+ or later is needed for .*)': '{said}',
    'NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY:':
        'NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY makes the program write into the '
        'rows of the table: unset this variable',
    r'(?P<said>^.*alltoallv traffic matrix.*|maxBytes \(-e\) must be at .*)':
        '{said}',
    r'error while loading shared libraries: (?P<said>\S+?):':
        '{said} was not found (exit code 127): add its folder to '
        'LD_LIBRARY_PATH',
    r'symbol lookup error: .*(?P<said>undefined symbol.*)':
        'NCCL or CUDA is older than the version that the program was built '
        'with: {said}',
}.items()}
#: Lines that show a failed run without its reason.
_DIED = re.compile(
    r'Test failure \S+:\d+|MPI_ABORT|MPI_Abort|exited on signal|'
    r'non-zero (?:exit|status)|Segmentation fault|Bus error|Killed|Aborted|'
    r'terminate called|DUE TO TIME LIMIT|srun: error:|'
    r'command not found|could not execute|unable to find the specified',
    re.IGNORECASE)
#: Normal log lines of NCCL, which searches for files and retries.
_CHATTER = re.compile('[NR]CCL (?:INFO|TRACE|ABORT|VERSION)')


def possible_failure_lines(lines: Sequence[str], row: re.Pattern[str], longest: int
                           ) -> list[tuple[int, str]]:
    """Lines, with their numbers from 1, that may report a failure.

    :param row: beginning of a row of the table
    :param longest: characters of a line that are searched
    """
    return [(number, line[:longest]) for number, line in enumerate(lines, 1)
            if line.strip(' #\r') and not _CHATTER.search(line)
            and (not row.match(line) or re.search('failure|SUMMARY', line))]


def find_reason(lines: Sequence[tuple[int, str]]) -> tuple[int, str] | None:
    """Line and reason, with its remedy, of a run that prints why it failed."""
    for pattern, reason in FAILURES.items():
        for number, line in lines:
            if match := pattern.search(line):
                words = {name: text or '' for name, text in match.groupdict().items()}
                return number, reason.format(**words).strip()
    return None


def find_crash(lines: Sequence[tuple[int, str]]) -> tuple[int, str] | None:
    """Number and text of the line that shows best that a run died."""
    best = saved.find_failure([line for _, line in lines])
    if best is not None:
        return lines[best]
    return next((one for one in lines if _DIED.search(one[1])), None)
