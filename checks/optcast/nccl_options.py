"""Options of all_reduce_perf in `nccl_test_options`.

They are those of the nccl-tests that Optcast evaluates (osrg/nccl-tests, December
2023; src/common.cu). An option that a client lacks, or with which its output would
not be a bandwidth of the servers, is refused with the reason.
"""
from __future__ import annotations

import getopt
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

#: Letter -> long name. All but -h need a value.
NAMES = {
    't': 'nthreads', 'g': 'ngpus', 'b': 'minbytes', 'e': 'maxbytes',
    'i': 'stepbytes', 'f': 'stepfactor', 'n': 'iters', 'm': 'agg_iters',
    'w': 'warmup_iters', 'p': 'parallel_init', 'c': 'check', 'o': 'op',
    'd': 'datatype', 'r': 'root', 'z': 'blocking', 'y': 'stream_null',
    'T': 'timeout', 'G': 'cudagraph', 'C': 'report_cputime', 'a': 'average',
    'h': 'help'}

#: Letter -> reason to refuse it with every client.
REFUSED = {
    't': 'the servers expect one rank per process: set nrank',
    'g': 'the servers expect one rank per process: set nrank',
    'd': 'set data_type, which is also that of the servers',
    'r': 'an all-reduce has no root',
    'C': 'the table would have CPU times, which give no bandwidth',
    'h': 'it measures nothing'}

#: Letters that a client has: the embedded one, the original server's own, and
#: NCCL, to which all but REFUSED are passed on.
EMBEDDED, OWN = 'beifnwco', 'n'
NCCL = ''.join(letter for letter in NAMES if letter not in REFUSED)

#: Client -> reason to refuse the other letters.
_LACKS = {
    EMBEDDED: 'the embedded client lacks it; OptcastNccl passes it on to NCCL',
    OWN: "the original server's own client lacks it; its requests are set by size, "
         'chunksize and -n'}

#: Maximum number of sizes of a sweep, which the embedded client has.
MAX_SIZES = 64

#: Default of -i. Unit: B.
STEP = 1 << 20


@dataclass(frozen=True)
class NcclTestOptions:
    """Checked options."""
    #: Timed iterations, warm-up iterations, and iterations that are checked again.
    iterations: int
    warmup: int
    checks: int
    #: All-reduces per iteration (-m, -G).
    all_reduces: int
    #: -b, -e, -i and -f; '': not given.
    first: str
    last: str
    step: str
    factor: int
    #: Words that only NCCL understands.
    words: tuple[str, ...]


def parse_nccl_test_options(text: str, letters: str) -> NcclTestOptions:
    """Options in the format of getopt: `-n 5`, `-n5`, `--iters 5`, `--iters=5`.

    :param letters: letters that the client has: EMBEDDED, OWN or NCCL
    :raises ValueError: one is unknown or refused, or its value is invalid
    """
    given = dict(_split_options(text))
    for letter in given:
        if letter in REFUSED:
            raise _refusal(letter, REFUSED[letter])
        if letter not in letters:
            raise _refusal(letter, _LACKS[letters])
    if given.get('o', 'sum') != 'sum':
        raise _refusal('o', 'the servers only add, so it must be sum')

    def whole_number(letter: str, default: int, minimum: int) -> int:
        value = given.get(letter, str(default))
        if not re.fullmatch(r'\d{1,6}', value) or int(value) < minimum:
            raise ValueError(f'nccl_test_options: -{letter} {value} is not a whole '
                             f'number of at least {minimum}')
        return int(value)

    if given.get('c') == '0':
        raise _refusal('c', '0 switches the check of the results off')
    more = {letter: whole_number(letter, 0, 0) for letter in 'mpzyTGa'
            if letter in given}
    # Without a value: the defaults of nccl-tests.
    return NcclTestOptions(
        whole_number('n', 20, 1), whole_number('w', 5, 0), whole_number('c', 1, 1),
        max(1, more.get('m', 1)) * max(1, more.get('G', 1)),
        given.get('b', ''), given.get('e', ''), given.get('i', ''),
        whole_number('f', 2, 2) if 'f' in given else 1,
        tuple(word for letter, value in more.items()
              for word in (f'-{letter}', str(value))))


def _refusal(letter: str, reason: str) -> ValueError:
    return ValueError(f'nccl_test_options: remove -{letter} ({NAMES[letter]}): '
                      f'{reason}')


def _split_options(text: str) -> list[tuple[str, str]]:
    """Letter and value of each option."""
    try:
        pairs, rest = getopt.getopt(
            shlex.split(text),
            ''.join(letter + ':' * (letter != 'h') for letter in NAMES),
            [name + '=' * (letter != 'h') for letter, name in NAMES.items()])
    except (getopt.GetoptError, ValueError) as err:
        raise ValueError(f'nccl_test_options: {err}; known: '
                         f'{" ".join(f"-{letter}" for letter in NAMES)}') from None
    if rest:
        raise ValueError(f'nccl_test_options: {rest[0]!r} belongs to no option')
    letters = {name: letter for letter, name in NAMES.items()}
    return [(letters.get(name.lstrip('-'), name.lstrip('-')), value)
            for name, value in pairs]


def sizes_of_sweep(options: NcclTestOptions, size: int,
                   parse_size: Callable[[str], int]) -> list[int]:
    """Sizes from -b to -e in B: each is -f times the previous one or, without -f,
    -i more.

    :param size: size of a run without -b and -e. Unit: B
    :raises ValueError: there are none, or more than MAX_SIZES
    """
    first, last = (parse_size(one) if one else size
                   for one in (options.first, options.last))
    step = parse_size(options.step) if options.step else STEP
    if first > last:
        raise ValueError('nccl_test_options: -b is above -e')
    results = [first]
    while (following := results[-1] * options.factor if options.factor > 1
           else results[-1] + step) <= last:
        results.append(following)
        if len(results) > MAX_SIZES:
            raise ValueError(f'nccl_test_options: more than {MAX_SIZES} sizes from '
                             f'{first} to {last} B: set -f, or a larger -i')
    return results


def words_of_sizes(sizes: tuple[int, ...]) -> tuple[str, ...]:
    """Options with which all_reduce_perf measures these sizes.

    :raises ValueError: they have neither the same ratio nor the same difference
    """
    words = ('-b', str(sizes[0]), '-e', str(sizes[-1]))
    if len(sizes) == 1:
        return words
    pairs = list(zip(sizes, sizes[1:], strict=False))
    if sizes[1] % sizes[0] == 0 and all(
            after * sizes[0] == before * sizes[1] for before, after in pairs):
        return *words, '-f', str(sizes[1] // sizes[0])
    if len({after - before for before, after in pairs}) == 1:
        return *words, '-i', str(sizes[1] - sizes[0])
    raise ValueError('size: nccl-tests multiplies the size by the same whole number at '
                     'each step, or adds the same number of bytes, which does not give '
                     f'{", ".join(map(str, sizes))}')
