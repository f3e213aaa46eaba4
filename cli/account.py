"""What `plumb run` says of its session: how each planned case ended.

The outcome comes from the plan and the records alone (postprocess/outcomes.py,
as for the page); ReFrame's report adds what is only for people to read.
"""
from __future__ import annotations

import argparse
import functools
import re
from pathlib import Path
from typing import Any

import pandas as pd

from checks.lib.references import LEARN
from postprocess import outcomes, plans
from postprocess.progress import Progress

#: What a check says of a case without a reference.
LACKS = re.compile(rf'(no reference[^;]*): {re.escape(LEARN)}')

#: Actions of ReFrame that measure nothing: `plumb run` hands them on.
ACTIONS = ('--ci-generate', '--delete-stored-sessions', '--describe',
           '--describe-stored-sessions', '--describe-stored-testcases',
           '--detect-host-topology', '--dry-run', '-L', '--list-detailed',
           '--list-stored-sessions', '--list-stored-testcases', '-l',
           '--list', '--list-tags', '--performance-compare', '--show-config',
           '-V', '--version', '-h', '--help')

#: What a guard of this module's own making means.
WHY = {
    plans.MISSING: 'planned, and the session ended before it had a record',
    'cancelled': 'cancelled: the session ended before it did',
    'build': 'not run: what it needs could not be built',
    'dependency': 'not run: what it depends on failed',
}

#: Why a case that did not fail was measured again: by its result, where that
#: has not been held against a reference.
AT_FIRST = {'recorded': 'disturbed at first', 'unfit': 'disturbed each time'}
BEYOND = 'beyond its reference or disturbed at first'


def other_action(words: list[str]) -> str:
    """The action among ReFrame's options that is not a run; empty: none."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False,
                                     allow_abbrev=False)
    for action in ACTIONS:
        parser.add_argument(action, nargs='?', const=action, dest=action)
    try:
        found = vars(parser.parse_known_args(words)[0])
    except argparse.ArgumentError:
        return ''                       # ReFrame says what is wrong with it
    return next((name for name in ACTIONS if found[name] is not None), '')


def plan_of(perflogs: str, run: str) -> plans.Plan | None:
    """The plan of a session; None: it never came to have one."""
    for path in Path(perflogs).glob(f'*/{plans.FOLDER}/{run}.json'):
        return plans.read(path, lambda *_: None)
    return None


def told(plan: plans.Plan, frame: pd.DataFrame, report: list[dict[str, Any]],
         ahead: list[Progress] | None = None) -> list[dict[str, Any]]:
    """ReFrame's cases, with the outcomes of the records; builds that failed
    after them.

    :param frame: records: of this session, and what it can look back on
    :param report: cases of ReFrame's report; what it lacks is added
    :param ahead: `progress` of the records; None: it is asked
    """
    ended = outcomes.of_session(frame, plan.run)
    tries = outcomes.tries(frame, plan.run)
    # Reads every record there is; only for what waits for a reference.
    needs = functools.cache(
        lambda: outcomes.needs(frame, plan.run, ahead))
    known = {(c['partition'], c['environ'], c['hashcode']): c for c in report}
    cases = []
    for planned in plan.cases:
        key = plan.key(planned)[1:]
        result, guard = ended.get(key, ('fail', plans.MISSING))
        number = tries.get(key, 1)
        case = {'display_name': planned['name'], 'perfvalues': {},
                'environ': planned['environ'], **known.get(key, {}),
                'guard': guard}
        case['outcome'] = result
        note = case.get('unjudged') or ''
        if number > 1 and result not in outcomes.FAILED:
            note = '; '.join(filter(None, [
                note, f'{AT_FIRST.get(result, BEYOND)}, measured {number} '
                'times']))
        case['unjudged'] = note
        lacks = LACKS.search(note)
        case['waits'] = bool(lacks) and result == 'recorded'
        if lacks:
            words = outcomes.words(needs().get(key), '' if lacks[1] ==
                                   'no reference yet' else lacks[1])
            case['unjudged'] = note.replace(lacks[0], words)
        case['result'] = result if result in (
            *outcomes.FAILED, 'xfail') else 'pass'
        if result in outcomes.FAILED and (
                guard in WHY or not case.get('fail_reason')):
            case['fail_reason'] = WHY.get(guard, guard)
        elif result in outcomes.FAILED and number > 1:
            case['fail_reason'] += f' (in each of {number} tries)'
        cases.append(case)
    return cases + [c for c in report if c.get('fixture')]
