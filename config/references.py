"""Reference files of a site: their names, their grammar, reading, writing.

A file `<family>.yaml` has ReFrame's own form: check class, `$index`, levels,
then `metric@size: [value, lower, upper, unit]`, or `[$xfail, reason, that]`
for a known fault. ReFrame itself warns and goes on if a unit differs or a
metric is misspelt; here a file is sound, or it is refused with the line.

Beside its figures an entry may have `$from` (what the suite made it of) and
`$unjudged` (judged figure -> about how many more sessions until it has a
bound; 0: no number would do). `complete: true` at the top requires a reference
for every test case of the family.

A proposal is a file of the same form beside it, `<family>.proposed.yaml`.
"""
from __future__ import annotations

import difflib
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import SingleQuotedScalarString

from . import regular, strict
from .records import metrics
from .sessions.judged import instead, judged, table

_PROPOSED = '.proposed.yaml'

#: Mark of a known fault.
XFAIL = '$xfail'

#: Keys of `$from`.
FROM = ('runs', 'first', 'last', 'suite', 'reason', 'bounds')

#: Widest bound allowed, as a fraction: a wider one was probably meant in
#: percent.
WIDEST = 10


class ReferenceError_(ValueError):
    """A reference file that cannot be used; names file and line or key."""

    guard = 'reference'


class File(NamedTuple):
    """The references of a family."""
    path: Path
    #: Whether a case without a reference fails.
    complete: bool = False
    #: Check class -> indexed references.
    checks: Mapping[str, Any] = {}


def accepted(folder: Path) -> list[Path]:
    """The accepted reference files of a site, one a family."""
    return sorted(path for path in folder.glob('*.yaml')
                  if not path.name.endswith(_PROPOSED))


def proposed(folder: Path) -> dict[str, Path]:
    """Family -> its proposal, beside the accepted file."""
    return {path.name.removesuffix(_PROPOSED): path
            for path in sorted(folder.glob('*' + _PROPOSED))}


def proposal(family: str) -> str:
    """Name of the file that proposes references of a family."""
    return family + _PROPOSED


def read(path: Path) -> File:
    """The references of a family, which is named by the file; empty if there
    is no file.

    :raises ReferenceError_: unreadable or broken file, with the line of the
        first fault, and how many more there are.
    """
    try:
        data = strict.load(path)
    except FileNotFoundError:
        return File(path)
    except strict.Fault as err:
        raise ReferenceError_(str(err)) from None
    _refuse(path, [*_faults(path.stem, data)]
            or [*_unbounded(path.stem, data)])
    return File(path, data.get('complete', False), {
        name: below or {} for name, below in data.items()
        if name != 'complete'})


def _refuse(path: Path, faults: list[tuple[int, str]]) -> None:
    """Refuses a file with faults.

    :raises ReferenceError_: names the first fault
    """
    if faults:
        line, reason = faults[0]
        more = f' (and {len(faults) - 1} more faults)' if faults[1:] else ''
        raise ReferenceError_(f'{path}:{line}: {reason}{more}')


def _faults(family: str, data: Any) -> Iterator[tuple[int, str]]:
    """All faults of a file: line and reason."""
    if not isinstance(data, strict.Mapping):
        yield 1, ('expected check classes at the top, each with $index and '
                  'its references')
        return
    for name, below in data.items():
        line = data.lines.get(name, 1)
        if name == 'complete':
            if not isinstance(below, bool):
                yield line, f'complete: {below!r} is neither true nor false'
            continue
        if below is not None and not isinstance(below, strict.Mapping):
            yield line, (f'{name}: expected check classes at the top, each '
                         'with $index and its references')
        elif below:
            index = below.get('$index')
            if not isinstance(index, list) or not index or not all(
                    isinstance(level, str) for level in index):
                yield line, (f'{name}: $index is missing, the list of what '
                             'its levels are')
                continue
            for entry, at, where in _entries(below, len(index), line, name):
                if isinstance(entry, str):
                    yield at, f'{where}: {entry}'
                else:
                    yield from _entry_faults(family, entry, at, where)


def _entries(level: strict.Mapping, depth: int, line: int, where: str
             ) -> Iterator[tuple[Any, int, str]]:
    """Entries below a level, each with its line and keys; or what is wrong
    with a level, as text."""
    for key, below in level.items():
        if key == '$index':
            continue
        at = level.lines.get(key, line)
        if not isinstance(below, strict.Mapping):
            yield (f'expected a level of $index below it, got {below!r}', at,
                   f'{where}: {key}')
        elif depth > 1:
            yield from _entries(below, depth - 1, at, where)
        else:
            yield below, at, f'{where}: {key}'


def _entry_faults(family: str, entry: strict.Mapping, line: int, where: str
                  ) -> Iterator[tuple[int, str]]:
    """What is wrong with the references of one case."""
    for key, value in entry.items():
        fault = (_data_fault(family, str(key), value)
                 if str(key).startswith('$') else figure_fault(key, value))
        if fault:
            yield entry.lines.get(key, line), f'{where}: {key}: {fault}'


def _unbounded(family: str, data: Any) -> Iterator[tuple[int, str]]:
    """Judged figures without a bound, of a file whose grammar is sound: an
    accepted proposal gives them one, so that accepting it is no fault."""
    for name, below in data.items():
        if name == 'complete' or not below:
            continue
        for entry, line, where in _entries(below, len(below['$index']), 1,
                                           name):
            for figure, runs in unjudged(family, entry).items():
                if runs is None:
                    yield entry.lines.get(figure, line), (
                        f'{where}: {figure}: it is judged and has no bound; '
                        'give it one, or let `./plumb references propose` '
                        'say in $unjudged how many runs it still needs')


def _data_fault(family: str, key: str, value: Any) -> str:
    """What is wrong with an entry's $from or $unjudged; empty: nothing."""
    if key not in ('$from', '$unjudged'):
        return 'unknown; there are $from and $unjudged'
    if not isinstance(value, Mapping):
        return f'expected keys and values, got {value!r}'
    if key == '$from':
        for name in value:
            if name not in FROM:
                near = difflib.get_close_matches(str(name), FROM, 1)
                return (f'unknown key {name!r}: '
                        + (f'did you mean {near[0]}?' if near
                           else f'there are {", ".join(FROM)}'))
        bounds = value.get('bounds', {})
        if not isinstance(bounds, Mapping) or not all(
                isinstance(pair, list) and len(pair) == 2
                and all(map(_is_finite, pair)) for pair in bounds.values()):
            return 'bounds: expected figure: [centre, bound] in numbers'
        runs = value.get('runs', 1)
        return '' if type(runs) is int and runs > 0 else (
            f'runs: {runs!r} is no number of runs')
    known = {name for rule in table().get(family, ())
             for name in (rule['metric'], rule.get('instead'))}
    for figure, runs in value.items():
        if str(figure).partition('@')[0] not in known:
            return f'{figure} is not judged (checks/{family}/family.yaml)'
        if type(runs) is not int or runs < 0:
            return f'{figure}: {runs!r} is no number of runs'
    return ''


def _is_finite(number: Any) -> bool:
    return (isinstance(number, int | float) and not isinstance(number, bool)
            and math.isfinite(number))


def figure_fault(figure: Any, entry: Any) -> str:
    """What is wrong with one reference; empty: nothing.

    :arg entry: [value, lower, upper, unit], or ['$xfail', reason, that].
    """
    try:
        name, _ = metrics.split(str(figure))
        known = metrics.metric(name)
    except (KeyError, ValueError) as err:
        return str(err.args[0])
    entry = plain(entry)
    if not isinstance(entry, (list, tuple)) or len(entry) != 4:
        return f'expected [value, lower, upper, unit], got {entry!r}'
    value, lower, upper, unit = entry
    if unit != known.unit:
        return f'unit is {unit!r}, the metric is in {known.unit!r}'
    for number in (value, lower, upper):
        if number is not None and not _is_finite(number):
            return f'{number!r} is not a number that is finite'
    if value is None or (lower or 0) > 0 or (upper or 0) < 0:
        return ('a value is needed, lower <= 0 and upper >= 0 (fractions), '
                'null leaves open')
    if lower is None and upper is None:
        return ''
    if value <= 0:
        return f'{value!r} is bounded, and a fraction of it means nothing'
    if (upper or 0) > WIDEST:
        return (f'upper is {upper!r}: a fraction is meant, not percent (0.3 '
                'for 30 %), and more than 10 judges nothing; null leaves '
                'open')
    if (lower or 0) < -1 or known.better == 'higher' and lower == -1:
        return (f'lower is {lower!r}: a fraction above -1 is meant, not '
                'percent (-0.3 for 30 %); null leaves open')
    worse = {'lower': upper, 'higher': lower}
    if known.better in worse and worse[known.better] is None:
        side = 'upper' if known.better == 'lower' else 'lower'
        return (f'only better figures are bounded: {side} is what may be '
                f'worse, for {known.better} is better')
    return ''


def plain(entry: Any) -> Any:
    """A reference without the mark of an expected failure."""
    if isinstance(entry, list) and len(entry) == 3 and entry[0] == XFAIL:
        return entry[2]
    return entry


def bounded(entry: Any) -> bool:
    """Whether a sound reference judges its figure."""
    return entry is not None and plain(entry)[1:3] != [None, None]


def unjudged(family: str, entry: Mapping[str, Any],
             further: Iterable[str] = ()) -> dict[str, int | None]:
    """Judged figures without a bound, neither their own nor one of the metric
    that is judged instead.

    :arg entry: the references of one case, sound ones.
    :arg further: further figures that the case has.
    :returns: figure -> about how many more runs until it has a bound; 0: no
        number would do; None: the entry does not say so, which is a fault.
    """
    said = entry.get('$unjudged', {})
    there = {*further, *(f for f in (*entry, *said) if f[0] != '$')}
    if family not in table():
        return {}
    found: dict[str, int | None] = {}
    for figure in sorted(judged(family, map(metrics.split, there))):
        both = [f for f in (figure, instead(family, figure)) if f]
        if not any(bounded(entry.get(f)) for f in both):
            needs = [said[f] for f in both if f in said]
            # 0 means never: takes the one of the two that can get a bound.
            found[figure] = min(filter(None, needs), default=0) \
                if needs else _judged_since(entry, both)
    return found


def more_runs(number: int | None) -> str:
    """What a judged figure without a bound needs; 0 or None: no number of
    runs would do."""
    return (f'needs about {number} more run{"s" * (number > 1)}' if number
            else 'no number of runs would do')


def _judged_since(entry: Mapping[str, Any], figures: Iterable[str]
                  ) -> int | None:
    """1, one more run: the suite wrote the entry before it judged these
    figures, and files of before stay valid. None: it gave one of them a
    bound, or a person wrote the entry, and the bound is missing."""
    bounds = entry.get('$from', {}).get('bounds')
    return None if bounds is None or any(
        figure in bounds for figure in figures) else 1


def leaves(table: Mapping, depth: int | None = None, keys: tuple = ()
           ) -> Iterator[tuple[tuple, Any]]:
    """(check, keys of the index) -> entry, of a reference file."""
    if depth is None:
        for check, below in table.items():
            if isinstance(below, Mapping) and below:
                yield from leaves(below, len(below['$index']), (check,))
    elif depth == 0:
        yield keys, table
    else:
        for key, below in table.items():
            if key != '$index':
                yield from leaves(below, depth - 1, (*keys, key))


def sides(figure: str, line: Any) -> tuple[float | None, float | None]:
    """(bound on the worse side, bound on the other); None: open."""
    _, lower, upper, _ = plain(line)
    return (lower, upper) if better(figure) == 'higher' else (upper, lower)


def better(figure: str) -> str:
    """Which way is better for a figure like `latency@8B`."""
    return metrics.metric(metrics.split(figure)[0]).better


def editable(path: Path) -> CommentedMap:
    """A file with its comments and its order; empty if there is none.

    :raises ReferenceError_: it breaks the grammar
    """
    try:
        data = strict.load(path)
    except FileNotFoundError:
        return CommentedMap()
    except strict.Fault as err:
        raise ReferenceError_(f'{err}; restore the file') from None
    _refuse(path, list(_faults(path.name.partition('.')[0], data)))
    found: CommentedMap = _yaml().load(regular.text(path))
    return found


def dump(data: CommentedMap) -> bytes:
    """The text of a file, comments included."""
    out = io.StringIO()
    _yaml().dump(data, out)
    return out.getvalue().encode()


def line(figure: str, value: float, bound: float | None) -> CommentedSeq:
    """`[value, lower, upper, unit]`, bounded on the worse side.

    :param bound: `written_bound`; None: open
    """
    limits: list[float | None] = [None, None]
    if bound is not None:
        higher = better(figure) == 'higher'
        limits[not higher] = -bound if higher else bound
    unit = metrics.metric(metrics.split(figure)[0]).unit
    return flow([digits(value), *limits, text(unit)])


def written_bound(figure: str, bound: float) -> float:
    """The bound as it is written: ReFrame takes none below -1."""
    return round(min(bound, 0.99) if better(figure) == 'higher' else bound, 2)


def digits(value: float) -> float:
    """A value in six digits."""
    return float(f'{value:.6g}')


def flow(values: list[Any]) -> CommentedSeq:
    """A list that is written in one line."""
    found = CommentedSeq(values)
    found.fa.set_flow_style()
    return found


def inline(values: Mapping[str, Any]) -> CommentedMap:
    """A mapping that is written in one line."""
    found = CommentedMap({text(key): value for key, value in values.items()})
    found.fa.set_flow_style()
    return found


def text(value: str) -> str:
    """A string, quoted if YAML might read anything else: 1e5, no, a: b."""
    try:
        same = value[:1].isalpha() and strict.safe_load(value) == value
    except yaml.YAMLError:
        same = False
    return value if same else SingleQuotedScalarString(value)


def _yaml() -> YAML:
    found = YAML()
    found.preserve_quotes = True
    found.width = 10 ** 6
    # Inside a line, where ruamel would write nothing at all.
    found.representer.add_representer(
        type(None), lambda representer, _: representer.represent_scalar(
            'tag:yaml.org,2002:null', 'null'))
    # ReFrame reads 1e-05 as a text (YAML 1.1), 1.0e-05 as a number.
    found.representer.add_representer(
        float, lambda representer, value: representer.represent_scalar(
            'tag:yaml.org,2002:float', repr(value) if '.' in repr(value)
            else repr(value).replace('e', '.0e')))
    return found
