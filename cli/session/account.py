"""The rows of the table of `plumb run`: one per planned test case.

Results come from the plan and the records alone (postprocess/results.py, as
for the page); ReFrame's report adds the text for people.
"""
from __future__ import annotations

import argparse
import functools
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cli.session.names import name_without_blanks
from config.families import families
from config.places import CALIBRATE
from config.records import units
from config.sessions import disk
from config.sessions.judged import key_of_rule, split_metric_key
from postprocess import outcomes, results
from postprocess.names import short_name
from postprocess.perflogs import plans, reasons
from postprocess.references.progress import Progress

#: What a check reports of a test case without a reference.
LACKS = re.compile(rf'(no reference[^;]*): {re.escape(CALIBRATE)}[^;]*')

#: Actions of ReFrame that measure nothing: `plumb run` hands them on.
ACTIONS = ('--ci-generate', '--delete-stored-sessions', '--describe',
           '--describe-stored-sessions', '--describe-stored-testcases',
           '--detect-host-topology', '--dry-run', '-L', '--list-detailed',
           '--list-stored-sessions', '--list-stored-testcases', '-l',
           '--list', '--list-tags', '--performance-compare', '--show-config',
           '-V', '--version', '-h', '--help')

#: Metrics in a row, at most, if none has a tolerance.
MAXIMUM = 3

#: Name of a metric, and message size in B; None: of the whole run.
MetricKey = tuple[str, int | None]

#: Why a test case that did not fail was measured again, by its result.
AT_FIRST = {'inconclusive': 'inconclusive each time'}
BEYOND = 'out of tolerance or inconclusive at first'


class Row(NamedTuple):
    """A row of the table."""
    #: The short name (postprocess/names.py).
    name: str
    #: One of results.ORDER.
    result: str
    #: Why it failed, or its values.
    text: str
    #: What else the reader should know.
    note: str = ''
    #: Whether it waits for a reference.
    waits: bool = False
    #: The name as -n takes it, with the environment if -n is not enough.
    reframe_name: str = ''
    #: How often it was measured in this session.
    measurements: int = 1
    #: Hash, which `-n /HASH` takes.
    case: str = ''
    #: Folder with the output of its last job; '': it was removed, or none began.
    folder: str = ''
    #: Whether it is inconclusive for a reason that may vanish.
    transient: bool = False

    @property
    def details(self) -> list[str]:
        """What the terminal shows below the name."""
        texts = [self.text, self.note and f'({self.note})']
        if self.result in results.FAILED:
            texts += [self.reframe_name, self.folder and f'log {self.folder}']
        return [text for text in texts if text]


def find_non_run_action(words: list[str]) -> str:
    """The action among ReFrame's options that is not a run; empty: none."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False,
                                     allow_abbrev=False)
    for action in ACTIONS:
        parser.add_argument(action, nargs='?', const=action, dest=action)
    try:
        options = vars(parser.parse_known_args(words)[0])
    except argparse.ArgumentError:
        return ''                       # ReFrame reports what is wrong
    return next((name for name in ACTIONS if options[name] is not None), '')


def find_plan(perflogs: str, run: str) -> plans.Plan | None:
    """The plan of a session; None: it has none."""
    for path in Path(perflogs).glob(f'*/{plans.FOLDER}/{run}.json'):
        return plans.read_plan(path, lambda *_: None)
    return None


def rows_by_test_case(
    plan: plans.Plan,
    frame: pd.DataFrame,
    report: list[dict[str, Any]],
    computed_progress: list[Progress] | None = None,
) -> dict[results.Key, Row]:
    """The row of each planned test case.

    :param frame: records: of this session, and of those before it
    :param report: test cases of ReFrame's report
    :param computed_progress: `progress` of the records; None: it is computed
    """
    ended = results.results_of_session(frame, plan.session_name)
    # Reads all records; only for test cases that wait for a reference.
    needs = functools.cache(
        lambda: outcomes.sessions_needed_by_test_case(frame, plan.session_name,
                                                      computed_progress))
    known = {(c['partition'], c['environ'], c['hashcode']): c for c in report}
    names = display_names(plan)
    times = Counter(case['case'] for case in plan.cases)
    rows_by_key = {}
    for planned in plan.cases:
        key = plan.session_and_test_case_key(planned)[1:]
        name = short_name(planned['check'], planned['params'], planned['case'])
        if times[planned['case']] > 1:
            name += f' {planned["environ"]}'
        case = known.get(key, {})
        more: dict[str, Any] = {'reframe_name': names[key], 'case': planned['case'],
                                'folder': _output_folder(case),
                                'transient': bool(case.get('transient'))}
        one = ended.get(key)
        if one is None or one.is_failed:
            guard = one.guard if one else plans.MISSING
            known_reason = one.reason if one else ''
            text = (known_reason if known_reason and guard in ('', *reasons.NOT_RUN)
                    else
                    reasons.failure_reason_text(
                        guard, failure_reason(case) or known_reason) or guard)
            if text and one and one.measurements > 1 and (
                    guard not in reasons.NOT_RUN):
                text += f' (in each of {one.measurements} measurements)'
            rows_by_key[key] = Row(
                name, one.result if one else 'not_run', text,
                measurements=one.measurements if one else 1, **more)
            continue
        note = case.get('no_reference') or ''
        lacks = LACKS.search(note)
        if lacks:
            note = note.replace(lacks[0], outcomes.missing_reference_text(
                needs().get(key), plan.head['system'],
                '' if lacks[1] == 'no reference yet' else lacks[1]))
        if one.measurements > 1:
            note = '; '.join(filter(None, [
                note, f'{AT_FIRST.get(one.result, BEYOND)}, measured '
                f'{one.measurements} times']))
        rows_by_key[key] = Row(name, one.result, value_text(case), note,
                               bool(lacks) and one.result == 'no_reference',
                               measurements=one.measurements, **more)
    return rows_by_key


def _output_folder(case: dict[str, Any]) -> str:
    """The folder with the output of a test case that failed, as a short path."""
    folder = case.get('stagedir') or ''
    if not folder or not os.path.isdir(folder):
        return ''
    near = os.path.relpath(folder)
    return near if not near.startswith('..') else folder


def display_names(plan: plans.Plan) -> dict[results.Key, str]:
    """The name of each test case of a plan as -n takes it, with its environment
    (-p) if another one has the same name."""
    times = Counter(case['name'] for case in plan.cases)
    return {
        plan.session_and_test_case_key(case)[1:]: name_without_blanks(case['name'])
        + f' -p {case["environ"]}' * (times[case['name']] > 1)
        for case in plan.cases
    }


def failed_builds(report: list[dict[str, Any]]) -> list[Row]:
    """Builds for test cases that failed."""
    return [Row(case['display_name'], 'fail', failure_reason(case),
                folder=_output_folder(case))
            for case in report if case.get('fixture')]


def failure_reason(case: dict[str, Any]) -> str:
    """Why a test case failed, by ReFrame's report, in one line."""
    text = ' '.join(str(case.get('fail_reason') or '').split())
    return disk.full_disk_text(text, case.get('stagedir')) or text[:400]


def value_text(case: dict[str, Any]) -> str:
    """The values that the row of a test case shows: those with a tolerance, else the
    headline of its family."""
    # After a failure ReFrame fills in the names, with None for the values.
    values = {split_metric_key(key.rpartition(':')[2]): entry
              for key, entry in (case.get('perfvalues') or {}).items()
              if entry[0] is not None}
    shown = [key for key, (_, _, *limits) in values.items()
             if any(limit is not None for limit in limits[:2])]
    for name in sorted(families().keys() & set(case.get('tags') or ())):
        shown = shown or _headline(families()[name].headline, values)
    return ', '.join(_metric_text(*key, *values[key]) for key in shown or [*values][:1])


def _headline(rules: Iterable[Mapping[str, Any]], values: Collection[MetricKey]
              ) -> list[MetricKey]:
    """The metrics that rules of family.yaml name, with their sizes."""
    headline: list[MetricKey] = []
    for rule in rules:
        key = key_of_rule(rule, values)
        if key and key not in headline and not (headline and rule.get('alone')):
            headline.append(key)
    return headline[:MAXIMUM]


def _metric_text(metric: str, size: int | None, value: float, reference: float | None,
                 lower: float | None, upper: float | None, unit: str, *_: Any) -> str:
    text = f'{metric} {units.value_text(value, unit)}'
    if size is not None:
        text += f' at {units.size_text(size)}'
    if reference:
        text += f' (reference {units.value_text(reference, unit)})'
    return text
