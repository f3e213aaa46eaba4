"""What each test case has for a reference: its sessions, and its tolerances.

`progress_of_test_cases` computes it for the table after a session, `plumb references
status` and `calibrate`; writing.py uses the same rules:

- A metric named in family.yaml is judged if its tolerance
  (postprocess/references/spread.py) is no wider than its max tolerance.
- If the tolerance is wider, and the row names a derived metric `instead` whose
  tolerance is narrow enough, that metric is judged in its place.
- `worst_ratio` stands for the curves of the judged metrics: the worst ratio of all
  points to the median curve.
- A tolerance from fewer than ENOUGH_DAYS different days is provisional.
"""
from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from config.console import count_with_noun
from config.families import all_metrics, families
from config.places import CALIBRATE, site_option
from config.sessions import judged

from .. import naming
from . import spread
from .spread import FEWEST_RUNS, FLOORS

#: What has a reference of its own. `edition` is the version of the program
#: in families where versions are apart, '' elsewhere.
KEYS = ['family', 'check', 'system', 'partition', 'environ', 'source',
        'edition', 'params', 'settings', 'test_case']

#: Why a test case gets no reference, however many sessions it has.
MIXED = 'its sessions ran several programs or numbers of ranks'

#: (metric, size in B or None) -> run -> value.
Metrics = Mapping[tuple[str, int | None], Mapping[str, float]]


@dataclass(frozen=True)
class Judgement:
    """The tolerance of one judged metric from the sessions so far."""
    #: As in a reference file: `latency@8B`; the derived one where that is
    #: judged instead.
    metric: str
    centre: float
    #: How much worse it may be, a fraction; inf: too few runs.
    tolerance: float
    max_tolerance: float

    @property
    def is_narrow_enough(self) -> bool:
        """Whether the tolerance is within the max tolerance."""
        return self.tolerance <= self.max_tolerance


@dataclass(frozen=True)
class Progress:
    """The progress of a test case; KEYS, and:"""
    family: str
    check: str
    system: str
    partition: str
    environ: str
    source: str
    edition: str
    params: str
    settings: str
    test_case: str
    #: Runs that a reference may be made of.
    runs: int
    #: Of each judged metric.
    judgements: Sequence[Judgement] = ()
    #: Several programs or numbers of ranks: no reference, whatever the runs.
    is_mixed: bool = False

    @property
    def missing_runs(self) -> int:
        """How many runs its reference lacks."""
        return max(FEWEST_RUNS - self.runs, 0)

    @property
    def obstacle(self) -> str:
        """Why it cannot get a reference yet; '': `calibrate` can make one."""
        return MIXED if self.is_mixed else (
            _missing_sessions_text(self.missing_runs) * bool(self.missing_runs))


def progress_of_test_cases(frame: pd.DataFrame) -> list[Progress]:
    """Every test case x source x version of these records.

    Without emulated runs, which are never judged.

    :param frame: as records.read gives it
    """
    frame = add_edition_column(frame[
        ~frame['emulated'] & ~frame['guard'].isin(['missing', 'open'])
        & frame['family'].isin(list(judged.judged_rules_by_family()))])
    cases: dict[tuple, tuple[dict[str, str], dict]] = {
        tuple(map(str, names)): ({}, {}) for names in frame[KEYS]
        .drop_duplicates().itertuples(index=False, name=None)}
    good, _ = usable_records(frame)
    shape = [*KEYS, 'program', 'num_nodes', 'num_tasks', 'session']
    shapes = good.drop_duplicates(shape)[[*shape, 'time', 'nodes']]
    mixed = {
        tuple(map(str, names))
        for names, shapes_of_case in shapes.groupby(KEYS, observed=True)[
            ['program', 'num_nodes', 'num_tasks']
        ]
        if len(shapes_of_case.drop_duplicates()) > 1
    }
    for (*names, run), day in zip(
            shapes[[*KEYS, 'session']].itertuples(index=False),
            date_of_each_record(shapes), strict=True):
        cases[tuple(map(str, names))][0].setdefault(run, day)
    metrics = {name for family, rules in judged.judged_rules_by_family().items()
               for rule in rules for name in (
                  rule['metric'],
                  judged.derived_replacement_metric(family, rule['metric']))}
    good = good[good['metric'].isin(list(metrics - {'worst_ratio', None}))]
    table = median_per_session(good, KEYS)
    group = table.groupby([*KEYS, 'metric', 'point'], observed=True,
                          dropna=False, sort=False).ngroup().to_numpy()
    order = np.argsort(group, kind='stable')
    runs_of = table['session'].to_numpy(object)[order].tolist()
    numbers = table['value'].to_numpy()[order].tolist()
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    firsts = table.iloc[order[begins]][[*KEYS, 'metric', 'point']]
    for (*names, metric, point), begin, end in zip(
            firsts.itertuples(index=False, name=None), begins,
            np.append(begins[1:], len(order)), strict=False):
        cases[tuple(map(str, names))][1][
            str(metric), judged.point_in_bytes(point)] = dict(zip(
                runs_of[begin:end], numbers[begin:end], strict=True))
    return [Progress(**dict(zip(KEYS, key, strict=True)), runs=len(days),
                     judgements=judgements_of_curves(key[0], curves, days),
                     is_mixed=key in mixed)
            for key, (days, curves) in sorted(
                cases.items(), key=lambda case: case[0])]


def judgements_of_curves(family: str, curves: Metrics, days: Mapping[str, str] = {}
                         ) -> list[Judgement]:
    """The tolerance of each judged metric, from the sessions of a test case.

    :param curves: all metrics that may be judged, and their curves
    :param days: the day of each session; empty: all are of one day
    """
    rows = all_metrics()
    # What few runs have is no metric of the test case, unless all have few.
    enough = {point: runs for point, runs in curves.items()
              if len(runs) >= FEWEST_RUNS} or curves
    names = judged.judged_metric_keys(family, enough)
    judgements_ = []
    for (metric, size), runs in enough.items():
        name = judged.metric_key(metric, size)
        if name not in names or rows[metric]['better'] == 'none':
            continue
        judgement = _judgement(family, name, runs, days)
        other = judged.derived_replacement_metric(family, name)
        if not judgement.is_narrow_enough and other and (
                numbers := enough.get((other, None))):
            derived = _judgement(family, other, numbers, days)
            judgement = derived if derived.is_narrow_enough else judgement
        judgements_.append(judgement)
    if 'worst_ratio' in judged.judged_metric_names(family):
        judgements_ += _judgement_of_worst_ratio(family, enough, days)
    return judgements_


def _judgement(family: str, name: str, value_of: Mapping[str, float],
               days: Mapping[str, str]) -> Judgement:
    """:param name: like `latency@8B`"""
    metric, _ = judged.split_metric_key(name)
    floor = FLOORS.get(metric, FLOORS[''])
    # A floor above the max tolerance is somebody's choice.
    max_tolerance = max(judged.max_tolerance(family, metric), floor)
    values, of_days = [*value_of.values()], _days_of(value_of, days)
    if centre := statistics.median(values):
        floor = spread.noise_floor(family, metric, centre, floor)
    return Judgement(
        name, centre, spread.compute_tolerance(values, floor, of_days), max_tolerance)


def _days_of(value_of: Mapping[str, float], days: Mapping[str, str]
             ) -> list[str]:
    return [days.get(run, '') for run in value_of]


def _judgement_of_worst_ratio(family: str, curves: Metrics, days: Mapping[str, str]
                              ) -> list[Judgement]:
    """The tolerance of `worst_ratio`; [] if the test case has no curve of a judged
    metric."""
    names, floor = judged.judged_metric_names(family), FLOORS['worst_ratio']
    max_tolerance = max(judged.max_tolerance(family, 'worst_ratio'), floor)
    points: dict[str, list[spread.Noise]] = {}
    for (metric, size), value_of in sorted(
            curves.items(), key=lambda curve: curve[0][1] or 0):
        values = [*value_of.values()]
        centre = statistics.median(values)
        if metric in names and size is not None and centre > 0:
            points.setdefault(metric, []).append(
                spread.noise_of_sessions(values, _days_of(value_of, days)))
            floor = spread.noise_floor(family, metric, centre, floor)
    if not points:
        return []
    noise = spread.noise_of_curves([*points.values()])
    return [Judgement('worst_ratio', 1.0, spread.tolerance_of_noise(noise, floor),
                      max_tolerance)]


def progress_by_test_case(records: pd.DataFrame, ahead: list[Progress]
                           ) -> dict[str, Progress]:
    """Test case -> its progress, with the source and version of these records."""
    known = {(p.test_case, p.source, p.edition): p for p in ahead}
    progress_of_case = {}
    for case, source, version in records[['test_case', 'source', 'version']].astype(
            str).drop_duplicates().itertuples(index=False):
        for edition in ('', version):
            if (case, source, edition) in known:
                progress_of_case[case] = known[case, source, edition]
    return progress_of_case


def missing_reference_text(case: Progress | None, site: str, lacks: str = '') -> str:
    """The text for people of a test case that waits for a reference.

    :param case: None: it has no sound session
    :param site: of the test case
    :param lacks: what is missing, where it is not simply a reference
    """
    obstacle = case.obstacle if case else _missing_sessions_text(FEWEST_RUNS)
    return f'{lacks or "no reference"}: ' + (
        obstacle or f'enough sessions exist; run {CALIBRATE}{site_option(site)}')


def _missing_sessions_text(number: int) -> str:
    return f'needs {count_with_noun(number, "more session")}'


def date_of_each_record(records: pd.DataFrame) -> pd.Series:
    """Date (UTC) of each record: sessions of one date are less independent than others.
    """
    return records['time'].dt.strftime('%Y-%m-%d')


def usable_records(frame: pd.DataFrame, include_reference_failures: bool = False
           ) -> tuple[pd.DataFrame, list[str]]:
    """The records that may become references, and what was left out.

    One bad record keeps all records of its test case and run out.

    :param include_reference_failures: keep runs that only their reference failed
    """
    notes = []
    # A test case without a reference failed, but its metrics are sound: they
    # are what the reference is made from.
    frame = frame[(frame['guard'] != 'reference') | (frame['metric'] != 'completed')]
    failed = frame['result'].isin(['xfail'] if include_reference_failures
                                  else ['fail', 'xfail'])
    case = naming.group_number_of_records(frame, ['test_case', 'copy', 'session'])
    good = np.ones(len(frame), bool)
    for bad, why in (
            (frame['emulated'], 'emulated'),
            (~frame['guard'].isin(['', 'reference']) & (frame['result'] != 'flaky'),
             'refused by a sanity check'),
            (frame['result'] == 'inconclusive',
             'inconclusive (the client, other programs or shared CPUs '
             'limited the program)'),
            (failed, 'failed'),
            (frame['value'].isna(), 'a value is not a number')):
        if not bad.any():
            continue
        out = (np.bincount(case, bad) > 0)[case] & good
        if out.any():
            runs = len(np.unique(case[out]))
            notes.append(f"{runs} session{'s' * (runs > 1)} of test cases "
                         f'left out: {why}')
            good &= ~out
    frame = frame[good]
    return frame[naming.mask_preferring_median_to_repetitions(frame)], notes


def sound_sessions_by_test_case(frame: pd.DataFrame, current: pd.DataFrame,
                                include_reference_failures: bool = False
                                ) -> Counter[str]:
    """The number of sound sessions of each test case.

    Sessions of another source, or of another version in a family with separate
    versions, do not count.

    :param frame: as records.read gives it
    :param current: records that have the present source and version
    :param include_reference_failures: as in `usable_records`
    """
    good, _ = usable_records(frame, include_reference_failures)
    now = add_edition_column(current)[KEYS].drop_duplicates('test_case', keep='last')
    good = add_edition_column(good).merge(now.astype(str), on=KEYS)
    return Counter(good.groupby('test_case')['session'].nunique().to_dict())


def families_with_separate_versions() -> set[str]:
    """Families in which another version is another program."""
    return {f.name for f in families().values() if f.versions_apart}


def add_edition_column(frame: pd.DataFrame) -> pd.DataFrame:
    """With the column `edition`: the version, where versions are apart."""
    return frame.assign(edition=frame['version'].astype(str).where(
        frame['family'].isin(list(families_with_separate_versions())), ''))


def median_per_session(records: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The median of each metric within each run: keys, metric, point, run,
    value, in the order of the records."""
    return records.groupby(
        [*keys, 'metric', 'point', 'session'], observed=True, dropna=False,
        sort=False)['value'].median().reset_index()
