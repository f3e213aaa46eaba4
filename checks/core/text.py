"""What people save is more than a program's output; the same for all families.

A launcher, a container or a page puts a prefix before each line: a tag, a time,
the name of a pod, an indentation. It is what stands before a title, and apart
from its digits, days and months it is the same on all lines.
"""
from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from .parsers import ParseError

#: Lines of a run that failed; the most telling one first. Those of CRASHES are never
#: the words of a program that something else ended, as servers are after their clients.
FAILURES = (
    *(CRASHES := (
        r'Segmentation fault|SIGSEGV|signal 11\b',
        r'Bus error|SIGBUS|signal 7\b',
        r'Assertion .*failed|Assertion failure',
        r'Out of memory: Killed|oom[-_]kill')),
    r'Connection reset by peer',
    # What will be killed after some time is a scheduler's notice.
    r'MPI_Abort|exited on signal|received signal|noticed that'
    r'|(?<!\bbe )(?:Killed|Aborted)|non-zero (?:exit|status)'
    r'|CANCELLED AT|DUE TO TIME LIMIT',
    r'command not found|error while loading shared libraries'
    r'|srun: (?:error: |Force Terminated)',
)
#: Programs that write into tables: words of their lines -> cause and remedy.
_CAUSES = (
    (re.compile(r'\bUCX +(?:WARN|ERROR|INFO|DIAG|DEBUG)\b'),
     'a message of UCX; UCX_LOG_LEVEL=fatal prevents it'),
    (re.compile(r'\b[NR]CCL (?:INFO|WARN|TRACE)\b'),
     'a message of NCCL; NCCL_DEBUG_FILE=FILE keeps it apart'),
    (re.compile(r'\blibfabric:\d+'),
     'a message of libfabric; FI_LOG_LEVEL=error prevents it'),
    (re.compile(r'\b(?:srun|slurmstepd): '), 'a message of Slurm'),
    (re.compile(r'\[[\w.-]+:\d+\] |\bhelp-[\w-]+\.txt\b'),
     'a message of Open MPI; keep stdout and stderr apart'),
    (re.compile('\t'), 'tabs in place of blanks; save the output as it was printed'),
    (re.compile(r'\S\[\d+\](?= )'),
     'a tag of Hydra within the row; start without -prepend-rank'),
    (re.compile(r'\bWARNING\b|\bWarning\b'), 'a warning of another program; keep '
     'stdout and stderr apart'),
)
_DATE = ('(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct'
         '|Nov|Dec)')
_PART = re.compile(rf'(?P<day>\b{_DATE}\b)|(?P<number> *\d+)')


#: What people save around an output: comments, the fences of a page, and prompts of a
#: shell with commands.
AROUND = re.compile(r'\s*(?:#|```|~~~|\$ |\[?[\w.-]+@[^$#]+[$#](?: |$))')


#: What a shell puts before a command: a prompt, or the `+` of `set -x`.
PROMPT = (r'(?:.{0,80}?[$#>%+\u276f] +'
          # The prompt of zsh ends with the folder and the branch.
          r'|\u279c +\S+ +(?:git:\(\S+\) +(?:\u2717 +)?)?)?')
#: A variable of a shell, whose value is unknown.
VARIABLE = re.compile(r'\$[\w{(@*]')
_QUOTED = re.compile(r'\'[^\']*\'|"[^"]*"')
#: A word of a command, and no part of a drawing.
_WORD = re.compile('[A-Za-z]{2}')
#: Words before a title that are in its line only.
_LABEL = re.compile(r'[^\d#]*: *')
#: A JSON document at the beginning of a text, in several lines or in one.
_DOCUMENT = re.compile(r'[\s\S]*^[ \t]*\}[ \t\r]*$|.*\}[ \t\r]*$', re.MULTILINE)

#: What a terminal adds to a text: colours and other control sequences.
_CONTROL = re.compile(r'\x1b(?:\[\?2004l\r?|\[[0-?]*[ -/]*[@-~]|[()][0-9A-B]'
                      r'|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>78cM])')


def decode(data: bytes) -> str:
    """The text of a saved file without the control sequences of a terminal and without
    blanks at the end of lines; a blank that does not break (of a page) is a blank. A
    command in several lines is in the first of them, and the others are empty.

    :raises ValueError: it is not text
    """
    # Windows PowerShell writes UTF-16 where its output is redirected.
    encoding = 'utf-16' if data[:2] in (b'\xff\xfe', b'\xfe\xff') else 'utf-8-sig'
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f'not UTF-8 at byte {error.start}: give a file with '
                         'the printed output of a program') from None
    if '\0' in text:
        raise ValueError('a binary file: give a file with the printed output of a '
                         'program')
    text = _CONTROL.sub('', text).replace('\xa0', ' ')
    lines: list[str] = []
    first = 0
    for line in text.split('\n'):
        if lines and lines[first].endswith(' \\') and _WORD.search(lines[first]):
            lines[first] = lines[first][:-1] + line.removeprefix('> ').strip()
            lines.append('')
        else:
            first = len(lines)
            lines.append(line.rstrip(' \t\r'))
    return '\n'.join(lines)


def foreign_cause(lines: Sequence[str]) -> str:
    """`: probable cause` of a damaged line, from it and the lines beside it."""
    for line in lines:
        for pattern, cause in _CAUSES:
            if pattern.search(line):
                return f': it has {cause}'
    return ''


def find_failure(lines: Sequence[str], patterns: Sequence[str] = FAILURES
                 ) -> int | None:
    """Index of the line that shows best why a run failed, if one does."""
    for pattern in patterns:
        search = re.compile(pattern, re.IGNORECASE).search
        for number, line in enumerate(lines):
            if search(line):
                return number
    return None


def refuse_failed_run(lines: Sequence[str], first: int = 1,
                      patterns: Sequence[str] = FAILURES) -> None:
    """Refuse the lines of a run that failed, whatever else they have.

    :arg first: number of the first line in its text
    :raises ParseError: the line that shows best why the run failed
    """
    failed = find_failure(lines, patterns)
    if failed is not None:
        line = lines[failed].removesuffix('\r')
        raise ParseError(failed + first, line, f'the run failed: {line.strip()[:60]!r}')


def refuse_cut_off(lines: Sequence[str]) -> None:
    """Refuse the lines of a text whose last line has no newline.

    :raises ParseError: the last line
    """
    if lines[-1]:
        raise ParseError(len(lines), lines[-1],
                         'the output is cut off: its last line has no newline')


def strip_prefixes(lines: Sequence[str], title: re.Pattern[str],
                   row: re.Pattern[str]) -> list[str]:
    """The lines without the prefix that their title has.

    Lines before the first title lose its prefix, those after a title that of
    this title.

    :arg title: the beginning of an output, anywhere in a line
    :arg row: a row of this format, which is no prefix but damage
    """
    prefixes: list[tuple[int, re.Pattern[str] | None]] = []
    #: Line of a title -> length of the words before it, which no other line has.
    labels: dict[int, int] = {}
    for number, line in enumerate(lines):
        match = title.search(line)
        if match:
            before = line[:match.start()]
            pattern = _prefix_pattern(before)
            after = next((lines[place] for place in range(number + 1, len(lines))
                          if lines[place].strip()), '')
            if pattern and (row.fullmatch(before) or not pattern.match(after)):
                pattern = None
                # Below a row they may be what is left of the next one.
                if _LABEL.fullmatch(before) and not (
                        number and row.fullmatch(lines[number - 1])):
                    labels[number] = len(before)
            prefixes.append((number, pattern))
    result = [line[labels.get(number, 0):] for number, line in enumerate(lines)]
    for at, (number, pattern) in enumerate(prefixes):
        end = prefixes[at + 1][0] if at + 1 < len(prefixes) else len(lines)
        if pattern:
            for place in range(number if at else 0, end):
                result[place] = pattern.sub('', result[place], count=1)
    return result


def _prefix_pattern(before: str) -> re.Pattern[str] | None:
    """A pattern of this prefix with any digits; None for no prefix."""
    if not before:
        return None

    def general(match: re.Match[str]) -> str:
        return _DATE if match['day'] else r' *\d+'

    place, parts = 0, []
    for match in _PART.finditer(before):
        parts += [re.escape(before[place:match.start()]), general(match)]
        place = match.end()
    last = before[place:]
    # A line without words has lost the blanks at the end of its prefix.
    end = re.escape(last.rstrip(' ')) + (
        f'(?:{" " * (len(last) - len(last.rstrip(" ")))}|$)'
        if last.endswith(' ') else '')
    return re.compile('^' + ''.join(parts) + end)


def split_at(text: str, starts: Sequence[int]) -> list[str]:
    """The parts of a text that begin in the lines of these places, the first one at the
    beginning of the text. A part has as many empty lines before it as lines precede it.

    :arg starts: one place per part, in order
    """
    begins = [0, *(text.rfind('\n', 0, place) + 1 for place in starts[1:])]
    return ['\n' * text.count('\n', 0, begin) + text[begin:end]
            for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]


def split_documents(text: str, begin: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """The first line and the text of each JSON document, without what others print
    around it.

    :arg begin: the beginning of a document
    """
    starts = [match.start() for match in begin.finditer(text)] or [0]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        whole = _DOCUMENT.match(text[start:end])
        yield text.count('\n', 0, start) + 1, whole[0] if whole else text[start:end]


def last_command(line: str, program: re.Pattern[str]) -> str:
    """The part of a shell's line that starts the program: after the last `;`,
    `&&` or `|` before its name, without redirections and without a `| tee`."""
    bare = _QUOTED.sub(lambda match: '_' * len(match[0]), line)
    ends = [*re.finditer(r' *(?:;|&&|\|\|?) *', bare)]
    parts = [line[begin:end] for begin, end in zip(
        [0, *(end.end() for end in ends)], [*(end.start() for end in ends), None],
        strict=True)]
    named = [part for part in parts if program.search(part)]
    text = named[-1] if named else line
    return re.sub(r' +(?:\d|&)?>>?(?:&\d| *\S+)', '', text).strip()


def options_of_command(text: str) -> dict[str, str]:
    """Options in a command line and their values; an option without one is '1'."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    given: dict[str, str] = {}
    for number, word in enumerate(words, 1):
        after = ''.join(words[number:number + 1])
        if match := re.fullmatch(r'-{1,2}([A-Za-z][\w-]*?)(?:=(.*)|(\d+))?', word):
            given.setdefault(match[1], match[2] or match[3] or (
                '1' if after.startswith('-') else after))
    return given
