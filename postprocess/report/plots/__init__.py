"""Plots of the page: a module of this folder for each kind.

A family says in its family.yaml which plots are drawn of it:

    plots:
      - {kind: curve, metric: latency}
      - {kind: history, metric: [server_cpu, memory_ratio]}

`kind` is the name of a module here. OPTIONS of the module has the JSON schema of
each option of an entry, and every fault is reported with file and line. A family
without plots gets DEFAULT. How to add a kind: README.md.

No module here imports matplotlib before it draws: a page without a plot
costs nothing of it.
"""
from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from config import schema, strict
from config.console import shortened_list_text
from config.families import (
    Family,
    all_metrics,
    printed_name,
)
from config.records.units import size_text, value_text
from config.sessions import judged

from ... import naming
from ...names import natural_sort_key
from .. import charts, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ...records.series import Series

#: Metrics of the whole program: never the first ones of a family.
TIMES = ('wall_time', 'user_time', 'system_time')
#: An option `where`: fields and their patterns.
Where = tuple[tuple[str, tuple[str, ...]], ...]
#: What a call has, whose name may be that of a metric.
CALL = charts.Quantity('Time of a call', 'us', 'lower')
#: Series whose values the text for who cannot see a plot has.
MAX_DESCRIBED = 8
#: Of a family that does not say what is drawn of it.
DEFAULT: tuple[dict[str, Any], ...] = (
    {'kind': 'curve'}, {'kind': 'box'}, {'kind': 'bars'}, {'kind': 'history'})


@dataclass(frozen=True)
class Drawing:
    """One plot of the page, not drawn yet."""
    #: Stem of its files; parts that are not alike in two drawings.
    name: str
    #: What it shows, for who cannot see it.
    about: str
    #: Makes the plot of `args`: its records, its title, and what else it needs.
    chart: Callable[..., Figure]
    args: tuple
    #: Shown below it, in red.
    note: str = ''


@dataclass(frozen=True)
class Records:
    """The records of one family for its plots."""
    #: '' where they are of several (`plumb plot`).
    family: str
    #: Columns: `drawn`. A record is the `judged` one of its run, or a
    #: `sample` of one repetition, or both; `kind` is its row in `table`.
    frame: pd.DataFrame
    #: What the records are of (naming.assign_series_kinds), and whether they
    #: are `valid`.
    table: pd.DataFrame
    #: What all runs say of each metric and size (tidy.point_statistics).
    points: pd.DataFrame
    #: What runs left over time (postprocess/records/series.py).
    over_time: list[OverTime] = field(default_factory=list)
    #: The kind and the raw samples (samples.py) of the newest run of each test case,
    #: read when a plot asks for them.
    samples: Callable[[], list[tuple[int, pd.DataFrame]]] = list
    #: Whether its metrics are calls (`of_calls`).
    is_of_calls: bool = False

    @functools.cached_property
    def job_boxes(self) -> pd.DataFrame:
        """tidy.box_statistics of one value per job."""
        return tidy.box_statistics(self.frame[self.frame['judged']])

    @functools.cached_property
    def repetition_boxes(self) -> pd.DataFrame:
        """tidy.box_statistics of the repetitions inside jobs, each divided
        by the median of its job."""
        frame = self.frame[self.frame['sample'] & ~self.frame['judged']]
        middle = frame.groupby(
            ['kind', 'session', 'measurement', 'metric', 'point'],
            observed=True, dropna=False)['value'].transform('median')
        return tidy.box_statistics(frame.assign(
            value=(frame['value'] / middle).where(middle > 0)))

    @functools.cached_property
    def kind_names(self) -> pd.Series:
        """What tells each kind apart from others of its program."""
        return kind_names(self.table)

    def calls(self, patterns: tuple[str, ...]) -> list[tuple[int, pd.DataFrame]]:
        """The kind and the raw samples of calls of the newest runs, for some names."""
        chosen = []
        for kind, calls in self.samples():
            names = [name for name in calls['call'].unique()
                     if any(fnmatch.fnmatchcase(name, one) for one in patterns)]
            chosen.append((kind, calls[calls['call'].isin(names)]))
        return chosen

    def of_calls(self, patterns: tuple[str, ...]) -> Records:
        """The records of calls of the newest runs: each call is a metric in µs."""
        frame = pd.concat([pd.DataFrame(
            {'kind': [], 'metric': [], 'point': [], 'value': []}), *(
            pd.DataFrame({'kind': kind, 'metric': calls['call'], 'point': np.nan,
                          'value': 1e6 * calls['seconds']})
            for kind, calls in self.calls(patterns))], ignore_index=True)
        points = frame[tidy.KEYS].drop_duplicates()
        newest = points['kind'].map(self.points.groupby('kind')['time'].max())
        return dataclasses.replace(
            self, frame=frame.assign(judged=True, sample=True),
            points=points.assign(time=newest), is_of_calls=True)


def kind_names(table: pd.DataFrame) -> pd.Series:
    """What tells each kind of a table apart from others of its program."""
    # One program may serve several checks, and they say what it did.
    names = pd.concat([naming.series_labels_and_panels(
        group, panel=('check',), maximum=len(group))
        for _, group in table.groupby(['family', 'program'], sort=False)])
    return pd.Series([', '.join(filter(None, pair)) for pair in zip(
        names['panel'], names['label'], strict=True)], index=names.index)


class OverTime(NamedTuple):
    """The series of a run, and what the page calls it."""
    kind: int
    series: Series
    program: str
    #: Unlike that of any other run.
    name: str
    title: str
    #: Metric -> where a valid run is.
    bands: Mapping[str, list[float]]
    #: Why the run is not valid; '': it is.
    note: str


@dataclass(frozen=True)
class Panel:
    """A metric, and what of its series fits in one plot."""
    records: Records
    metric: str
    #: Stem of its files, and heading.
    name: str
    title: str
    #: kind -> `label`; rows of records.table, in the order of the labels.
    labels: pd.DataFrame

    @property
    def quantity(self) -> charts.Quantity:
        """What its values are."""
        return (CALL if self.records.is_of_calls
                else charts.Quantity.of_metric(self.metric))

    @property
    def points_of_panel(self) -> pd.DataFrame:
        """Its part of records.points, with labels."""
        return self.rows_of_panel(self.records.points)

    def rows_of_panel(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of this metric and these series, with labels."""
        rows = frame[(frame['metric'] == self.metric)
                     & frame['kind'].isin(self.labels.index)]
        names = self.labels['label'].to_dict()
        place = {kind: n for n, kind in enumerate(self.labels.index)}
        return rows.assign(
            label=rows['kind'].map(names), place=rows['kind'].map(place)
            ).sort_values('place', kind='stable')

    def make_drawing(self, kind: str, chart: Callable[..., Figure],
                     frame: pd.DataFrame, title: str, *more: Any,
                     about: str = '') -> Drawing:
        """A plot of some of its records.

        :param more: arguments of `chart` after the records and the title
        """
        means = '' if self.records.is_of_calls else all_metrics()[self.metric]['means']
        return Drawing(
            f'{self.name} {kind}', about or f'{self.title}. {means}' + numbers_text(
                frame, self.quantity.unit),
            chart, (frame, with_origin(title, self.records, self.labels.index), *more))


def with_origin(title: str, records: Records, kinds: Iterable[int]) -> str:
    """A title, and below it where the values of a plot are from: system and
    partition, date of the newest session, and software.

    :param kinds: rows of records.table that the plot has
    """
    table = records.table.loc[list(kinds)]
    when = records.points.loc[records.points['kind'].isin(table.index), 'time'].max()
    software = dict.fromkeys(
        ' '.join(filter(None, [row.stack, row.source, row.version]))
        for row in table.itertuples())
    places = [*dict.fromkeys(table['system'] + ':' + table['partition'])]
    return f'{title}\n' + ' · '.join(filter(None, [
        shortened_list_text(places, 2),
        '' if pd.isna(when) else f'{when:%Y-%m-%d}',
        shortened_list_text([*filter(None, software)], 2)]))


def numbers_text(frame: pd.DataFrame, unit: str) -> str:
    """The values of a plot for who cannot see it, one sentence per series: the first
    and the last one over size or another field, or the smallest and the largest.

    :param frame: columns label, and value, ratio or q2; perhaps point or x
    """
    if frame.empty or 'label' not in frame:
        return ''
    column = next(name for name in ('value', 'ratio', 'q2', 'median') if name in frame)
    over = next((name for name in ('point', 'x') if name in frame
                 and frame[name].nunique() > 1), '')
    axis = charts.SIZE * (over == 'point')
    texts = []
    for label, *_, rows in charts.series_with_styles(frame.dropna(subset=column)):
        ends = rows.sort_values(over or column).iloc[[0, -1]]
        texts.append(f'{charts.series_name(label)}: ' + ' to '.join(dict.fromkeys(
            value_text(end[column], unit)
            + (f' at {charts.axis_label(end[over], axis)}' if over else '')
            for _, end in ends.iterrows())))
    return '. ' + shortened_list_text(texts, MAX_DESCRIBED)


def plot_kinds() -> list[str]:
    """Names of the kinds: the modules of this folder."""
    return sorted(path.stem for path in
                  Path(__file__).parent.glob('[a-z]*.py'))


@functools.cache
def module_of_kind(kind: str) -> ModuleType:
    """The module of a kind."""
    return importlib.import_module(f'{__name__}.{kind}')


def parse_family_plot_entries(family: Family | None
            ) -> list[tuple[ModuleType, dict[str, Any]]]:
    """Kinds and options of a family's plots, all of them known and well.

    :param family: None, or without plots: DEFAULT
    :raises strict.Fault: file, line, key and what is allowed
    """
    entries = family.plots if family and family.plots else DEFAULT
    file = f'checks/{family.name}/family.yaml' if family else 'DEFAULT'
    return [parse_plot_entry(entry, file) for entry in entries]


def parse_plot_entry(entry: Mapping[str, Any], file: str,
                     more: Mapping[str, Any] = {}) -> tuple[ModuleType, dict[str, Any]]:
    """Kind and options of an entry of a file.

    :param more: key -> schema of keys that are no options
    :raises strict.Fault: file, line, key and what is allowed
    """
    _raise_first_fault('plots', schema.faults_by_schema(file, entry, {
        'type': 'object', 'required': ['kind'],
        'properties': {'kind': {'enum': plot_kinds()}}}))
    kind = module_of_kind(entry['kind'])
    _raise_first_fault(f'plots: {entry["kind"]}', schema.faults_by_schema(file, entry, {
        'type': 'object', 'properties': {'kind': {}, **more, **kind.OPTIONS},
        'additionalProperties': False,
        '$defs': {'metric': {'enum': [*all_metrics()]}}}))
    return kind, {name: _with_tuples(entry.get(name, option['default']), option)
                  for name, option in kind.OPTIONS.items()}


def _raise_first_fault(prefix: str, faults: list[strict.Fault]) -> None:
    """Raise the first of some faults, with a prefix."""
    for fault in faults:
        raise strict.Fault(fault.file, fault.line, f'{prefix}: {fault.reason}')


def _with_tuples(value: Any, option: Mapping[str, Any]) -> Any:
    """A value of an option, with tuples instead of lists and of `where`."""
    if isinstance(value, Mapping):
        return tuple((name, tuple(map(str, _one_or_many(patterns))))
                     for name, patterns in value.items())
    return _one_or_many(value) if 'then' in option else value


def _one_or_many(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def one_or_many(item: Mapping[str, Any], expected: str = '') -> dict[str, Any]:
    """The schema of an option that is a list of items, or one of them."""
    return {'if': {'type': 'array'}, 'else': item, 'default': (), 'then': {
        'type': 'array', 'items': item, 'minItems': int(bool(expected)),
        'expected': expected}}


#: Schemas of options. A field is a parameter of test cases, or one of naming.KNOWN.
FIELD = {'type': 'string', 'pattern': r'^[^\W\d]\w*$', 'default': '',
         'expected': f"a field: a parameter, or one of {', '.join(naming.KNOWN)}"}
FIELDS = one_or_many(FIELD)
TEXT = {'type': 'string', 'default': ''}
METRIC = {'$ref': '#/$defs/metric', 'default': ''}
CALLS = one_or_many(TEXT, 'the name of a call, a pattern, or a list of them')
#: Of a list of sizes the first that exists counts; without one, where the metric
#: is judged, or the largest.
SIZES = one_or_many({'anyOf': [{'type': 'integer'}, {'enum': ['smallest', 'largest']}],
                     'expected': 'a size in B, smallest or largest'})
#: Field -> patterns.
WHERE = {
    'type': 'object', 'default': {}, 'propertyNames': FIELD,
    'expected': "a mapping of fields to patterns, such as {program: 'x_*', "
                'num_nodes: 2}',
    'additionalProperties': one_or_many(
        {'type': ['string', 'number', 'boolean'], 'expected': 'a pattern'},
        'a pattern or a list of them')}
#: Options of kinds that are made of records. Default of `metric`: the judged metrics.
CHOICE = {
    'metric': one_or_many(METRIC, 'the name of a metric or a list of them'),
    'where': WHERE,
    'by': FIELDS,
    'panel': FIELDS,
    'merge': FIELDS,
    'title': TEXT,
}


def fields_given_by_axis(table: pd.DataFrame, over: str, by: naming.Names
                         ) -> list[str]:
    """Fields that do not distinguish series over the axis `over`.

    A field that has each of its values at one place of the axis only (within
    a series) says the same as the axis.

    :param table: rows of naming.assign_series_kinds
    """
    known = [name for name in by if name in table and name != over]
    return [over, *(['num_tasks'] if over == 'num_nodes' else []), *(
        name for name in table if name != over and name not in by
        and table[name].nunique() > 1
        and table.groupby([name, *known])[over].nunique().max() == 1
        and name not in naming.WHO)]


#: Title of the axis of a field.
FIELD_TITLES = {'num_nodes': 'Number of nodes', 'num_tasks': 'Number of ranks',
                'client_total': 'Number of clients'}


def field_title(name: str) -> str:
    """The title of the axis of a field."""
    return FIELD_TITLES.get(name, name.replace('_', ' ').capitalize())


def drop_curves(records: Records) -> Records:
    """The records with only the points of whole programs, and of
    test cases with a single size."""
    points = records.points
    one = points.groupby(['kind', 'metric'], observed=True)[
        'point'].transform('nunique') < 2
    return dataclasses.replace(records, points=points[one])


def points_at_size(points: pd.DataFrame, family: str, metric: str,
                   choices: tuple[Any, ...]) -> pd.DataFrame:
    """Points of the whole run, and of one size, the same for all that have
    sizes: the first wanted one."""
    whole = points['point'].isna()
    if whole.all():
        return points
    there = points['point']
    if not choices:
        choices = next((tuple(rule.get('at', ())) for rule in
                       judged.judged_rules_by_family().get(family, ())
                       if rule['metric'] == metric), ())
    for size in (*choices, 'largest'):
        size = {'smallest': there.min(), 'largest': there.max()}.get(
            size, size)
        if (there == size).any():
            return points[(there == size) | whole]
    return points[whole]


def title_size_suffix(points: pd.DataFrame) -> str:
    """' at 8 B', where all points that have a size have that one."""
    sizes = points['point'].dropna().unique()
    return f' at {size_text(sizes[0])}' if len(sizes) == 1 else ''


def main_metrics(family: str, names: set[str]) -> list[str]:
    """The metrics that the page shows first: the judged ones, or the first
    one with a better and a worse side.

    :param names: metrics that there are
    """
    known = all_metrics()
    there = [m for m in known if m in names]
    judged_ = [rule['metric'] for rule in
               judged.judged_rules_by_family().get(family, [])
               if rule['metric'] in there and rule['metric'] != 'worst_ratio']
    return judged_ or [m for m in there if known[m]['better'] != 'none'
                       and m not in (*TIMES, 'worst_ratio', 'completed')][:1]


def rows_matching_fields(table: pd.DataFrame, where: Where) -> pd.DataFrame:
    """The rows whose fields match."""
    for name, patterns in where:
        texts = table[name] if name in table else pd.Series('', table.index)
        table = table[[any(fnmatch.fnmatchcase(text, one) for one in patterns)
                       for text in texts]]
    return table


def metric_panels(records: Records, metric: tuple[str, ...] = (), where: Where = (),
                  by: naming.Names = (), panel: naming.Names = (), title: str = '',
                  merge: naming.Names = (), maximum: int = 0,
                  drop: Callable[[pd.DataFrame], list[str]] | None = None
                  ) -> Iterator[Panel]:
    """Each metric and panel; of each program, or with `by` of all together.

    :param merge: fields that tell no series apart: test cases that differ in
        nothing else are points of one
    :param maximum: series in a plot, where that is not what all have
    :param drop: of some kinds, fields that tell no series apart
    """
    table = rows_matching_fields(records.table, where)
    have: dict[str, set[int]] = {}
    for kind, name in records.points[['kind', 'metric']].drop_duplicates(
            ).itertuples(index=False):
        have.setdefault(str(name), set()).add(kind)
    programs = ([('', table)] if by else list(table.groupby('program')))
    for program, kinds_of_program in programs:
        there = {name for name, kinds in have.items()
                 if not kinds.isdisjoint(kinds_of_program.index)}
        family = records.family or next(iter(kinds_of_program['family']), '')
        for name in metric or main_metrics(family, there):
            if name not in there:
                continue
            with_metric = kinds_of_program[kinds_of_program.index.isin(have[name])]
            same = [*merge, *(drop(with_metric) if drop else ())]
            labels = naming.series_labels_and_panels(
                with_metric.drop(columns=[*same], errors='ignore'), by, panel, maximum)
            # Plots of a refused run, where they were kept, stand apart.
            labels['label'] = (labels['label'] + with_metric['valid'].map(
                {True: '', False: ', not valid'})).str.removeprefix(', ')
            sources = with_metric['source'].unique()
            head = ': '.join(filter(None, [title or printed_name(
                program, sources[0] if program and len(sources) == 1 else ''), name]))
            for split, part in labels.groupby('panel', sort=False):
                yield Panel(
                    records, name,
                    ' '.join(filter(None, [program, title or (
                        '' if program else ' '.join(by)), name, split])),
                    ', '.join(filter(None, [head, split])),
                    part.sort_values('label', key=lambda texts: texts.map(
                        natural_sort_key)))


def drawings_of_family(records: Records, family: Family | None) -> list[Drawing]:
    """The plots of a family, in their order.

    :raises strict.Fault: an entry of its `plots` is wrong
    """
    drawings = [one for kind, options in parse_family_plot_entries(family)
                for one in kind.drawings_from_records(records, **options)]
    # Two entries may ask for the same plot.
    return list({one.name: one for one in drawings}.values())
