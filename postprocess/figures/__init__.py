"""Figures of the page: a module of this folder for each kind.

A family says in its family.yaml which figures are drawn of it:

    figures:
      - {kind: curve, metric: latency}
      - {kind: runs, metric: [server_cpu, memory_ratio]}

`kind` is the name of a module here; what else an entry says are options that
the module names in OPTIONS, and every fault is told with file and line. A
family that says nothing gets DEFAULT. How to add a kind: README.md.

No module here imports matplotlib before it draws: a page without a figure
costs nothing of it.
"""
from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from config import judged, strict
from config.families import Family

from .. import perflogs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..series import Series

#: Metrics of the whole program, which `times` draws.
TIMES = ('wall_time', 'user_time', 'system_time')
#: Of a family that does not say what is drawn of it.
DEFAULT: tuple[dict[str, Any], ...] = (
    {'kind': 'curve'}, {'kind': 'box'}, {'kind': 'runs'},
    {'kind': 'times'})


class FigureError(strict.Fault):
    """A fault of an entry of `figures`: `FILE:LINE: reason`."""


@dataclass(frozen=True)
class Drawing:
    """One figure of the page, not drawn yet."""
    #: Stem of its files; parts that are not alike in two drawings.
    name: str
    #: What it shows, for who cannot see it.
    about: str
    #: Makes the figure of `args`.
    chart: Callable[..., Figure]
    args: tuple
    #: Where it stands on the page: with its program, or below a heading of
    #: the family's own.
    program: str = ''
    section: str = ''
    #: What it is of; figures of a program are in the order of these, those of
    #: no metric come last.
    metric: str = ''
    panel: str = ''
    #: Shown below it, in red.
    note: str = ''

    def made_of(self) -> str:
        """The same for figures that look the same: a hash of the arguments,
        and of all that draws them."""
        digest = hashlib.sha256(_drawers())
        digest.update(f'{self.chart.__module__} {self.chart.__name__}'
                      .encode())
        for arg in self.args:
            if isinstance(arg, pd.DataFrame):
                digest.update(repr(list(arg)).encode())
                arg = pd.util.hash_pandas_object(arg, index=False).to_numpy(
                    ).tobytes()
            digest.update(repr(arg).encode())
        return digest.hexdigest()

    @property
    def place(self) -> tuple:
        return not self.metric, self.metric, self.panel


@dataclass(frozen=True)
class Records:
    """What figures of one family are made of."""
    family: str
    #: Columns: report.DRAWN. A record is the `judged` one of its run, or a
    #: `sample` of one repeat, or both; `label` names its series, `panel` its
    #: figure, `row` its line among all programs.
    frame: pd.DataFrame
    #: What runs left over time (postprocess/series.py).
    over_time: list[OverTime] = field(default_factory=list)


class OverTime(NamedTuple):
    """The series of a run, and what the page calls it."""
    series: Series
    program: str
    #: Unlike that of any other run.
    name: str
    title: str
    #: Metric -> where a valid run is.
    bands: Mapping[str, list[float]]
    #: Why the run is not valid; '': it is.
    note: str


class Panel(NamedTuple):
    """A metric of a program, and what of its series fits in one figure."""
    program: str
    metric: str
    panel: str
    #: '' of a plain number.
    unit: str
    title: str
    about: str
    frame: pd.DataFrame

    def drawing(self, kind: str, chart: Callable[..., Figure],
                frame: pd.DataFrame, title: str, *more: Any,
                about: str = '') -> Drawing:
        """A figure of some of its records.

        :param more: arguments of `chart` after the records and the title
        """
        return Drawing(
            f'{self.program} {self.metric} {self.panel} {kind}',
            about or self.about, chart, (frame, title, *more),
            program=self.program, metric=self.metric, panel=self.panel)


@functools.cache
def _drawers() -> bytes:
    """What a figure depends on besides its arguments."""
    folder = Path(__file__).parent
    return b''.join(
        [importlib.metadata.version('matplotlib').encode()]
        + [file.read_bytes() for file in
           [folder.with_name('charts.py'), *sorted(folder.glob('*.py'))]])


def kinds() -> list[str]:
    """Names of the kinds: the modules of this folder."""
    return sorted(path.stem for path in
                  Path(__file__).parent.glob('[a-z]*.py'))


@functools.cache
def module(kind: str) -> ModuleType:
    """The module of a kind."""
    return importlib.import_module(f'{__name__}.{kind}')


def checked(family: Family | None
            ) -> list[tuple[ModuleType, dict[str, Any]]]:
    """Kinds and options of a family's figures, all of them known and well.

    :param family: None, or without figures: DEFAULT
    :raises FigureError: file, line, key and what is allowed
    """
    entries = family.figures if family and family.figures else DEFAULT
    return [_checked(entry, family) for entry in entries]


def _checked(entry: Mapping[str, Any], family: Family | None
             ) -> tuple[ModuleType, dict[str, Any]]:
    lines: Mapping[str, int] = getattr(entry, 'lines', {})
    file = f'checks/{family.name}/family.yaml' if family else 'DEFAULT'

    def fault(key: str, reason: str) -> FigureError:
        line = lines.get(key) or min(lines.values(), default=1)
        return FigureError(file, line, f'figures: {reason}')

    kind = entry['kind']
    if kind not in kinds():
        raise fault('kind', f'kind {kind!r} is not one of '
                    f"{', '.join(kinds())} (a kind is a module of "
                    f'postprocess/figures/){nearest(kind, kinds())}')
    options = module(kind).OPTIONS
    for key in entry:
        if key != 'kind' and key not in options:
            allowed = ', '.join(options) or 'none'
            raise fault(key, f'{kind} has no option {key!r} (it has: '
                        f'{allowed}){nearest(key, options)}')
    found = {}
    for key, check in options.items():
        try:
            found[key] = check(entry.get(key), family)
        except ValueError as err:
            raise fault(key, f'{kind}: {key}: {err}') from None
    return module(kind), found


def nearest(word: Any, known: Any) -> str:
    near = difflib.get_close_matches(str(word), list(known), 1)
    return f"; did you mean '{near[0]}'?" if near else ''


def metrics(value: Any, family: Family | None = None
            ) -> tuple[str, ...]:
    """Option `metric`: a name or a list of them; (): what is judged.

    :raises ValueError: what is wrong with it
    """
    if value is None:
        return ()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        raise ValueError(f'{value!r} is no name of a metric, and no list of '
                         'them')
    for name in names:
        if name not in perflogs.metrics():
            raise ValueError(f'{name!r} is no metric'
                             + nearest(name, perflogs.metrics()))
    return tuple(names)


def main_metrics(family: str, frame: pd.DataFrame) -> list[str]:
    """What the page shows first of a program: those of its metrics that are
    judged, or the first one with a better and a worse side.

    :param frame: records of one program
    """
    known = perflogs.metrics()
    names = set(frame['metric'])
    there = [m for m in known if m in names]
    judged_ = [rule['metric'] for rule in judged.table().get(family, [])
               if rule['metric'] in there and rule['metric'] != 'worst_ratio']
    return judged_ or [m for m in there if known[m]['better'] != 'none'
                       and m not in (*TIMES, 'worst_ratio', 'completed')][:1]


def panels(records: Records, wanted: tuple[str, ...]) -> Iterator[Panel]:
    """Each metric and panel of each program.

    :param wanted: option `metric`
    """
    known = perflogs.metrics()
    for program, frame in records.frame.groupby('program'):
        names = wanted or main_metrics(records.family, frame)
        for (metric, panel), mine in frame[
                frame['metric'].isin(list(names))].groupby(
                    ['metric', 'panel']):
            title = ', '.join(filter(None, [f'{program}: {metric}', panel]))
            yield Panel(program, metric, panel, shown(known[metric]['unit']),
                        title, f"{title}. {known[metric]['means']}", mine)


def shown(unit: str) -> str:
    """A unit as it is shown: of a plain number, nothing."""
    return '' if unit == '1' else unit


def drawings(records: Records, family: Family | None
             ) -> tuple[list[Drawing], list[str]]:
    """The figures of a family, in their order, and how to read them.

    :raises FigureError: an entry of its `figures` is wrong
    """
    found: list[Drawing] = []
    reading: dict[str, None] = {}
    for kind, options in checked(family):
        mine = list(kind.drawings(records, **options))
        found += mine
        if mine:
            reading[kind.READING] = None
    # Two entries may ask for the same figure.
    return (sorted({d.name: d for d in found}.values(),
                   key=lambda d: d.place), list(reading))
