#!/usr/bin/env python3
"""Injects faults into a cluster, and measures whether the verdict finds them.

    P=.plumbline/venv/bin/python        # ./plumb env --site devcluster
    $P bench/faults.py --list           # the faults
    $P bench/faults.py                  # the whole campaign, as root
    $P bench/faults.py --only rate-half --clean 12 --dir /tmp/half

The campaign runs on a cluster in a box (tests/cluster). First come clean sessions, the
history; twelve leave eight or nine for a baseline, the fewest that suffice. Each fault
then has a copy of this history, and up to --sessions sessions until `plumb verdict`
reports something that began with the fault. What it reports of the last clean sessions
is a false alarm.

A session has six short test cases. All links have the same limit, and the jobs run one
after the other: the links set the pace, not the CPUs of the machine. Sessions follow
each other at once. The identifier of a session ($PLUMBLINE_SESSION_ID) gives each
session a date of its own. A session that takes longer than 15 minutes is ended.

A fault that this machine cannot have is skipped with the reason. If the cluster breaks
down, the same command with the same --dir goes on with a new cluster: it repeats
nothing that has a result in DIR/results.jsonl.
"""
from __future__ import annotations

import contextlib
import datetime
import json
import re
import shutil
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from common import (
    ROOT,
    Missing,
    option_parser,
    run_main_and_exit,
    table_head,
    table_row,
)
from injection import FAULTS, WORK, Box, ClusterError, Fault, running_box

CLEAN = 'clean'
#: Clean sessions that a baseline needs at least; only later ones have a verdict.
BASELINE = 9


# What the verdict reports ---------------------------------------------------

class Report(NamedTuple):
    """One thing that `plumb verdict` reports of a session."""
    #: failure, regression, changed, session.
    kind: str
    #: Guard, metrics, or what changed.
    by: str
    text: str
    #: Date on which a regression began.
    since: str = ''


def reports_of_session(env: Mapping[str, str], perflogs: Path, run: str
                       ) -> list[Report]:
    """What `plumb verdict` reports of a session, the most certain first.

    :raises Missing: there is no verdict
    """
    done = subprocess.run(
        [ROOT / 'plumb', 'verdict', '--perflogs', perflogs, '--session', run, '--json',
         '-'], text=True, capture_output=True, env=dict(env))
    try:
        value = json.loads(done.stdout)
    except ValueError:
        raise Missing(f'no verdict: {done.stderr.strip()[-300:]}') from None
    events = {kind: [one for one in value['events'] if one['kind'] == kind]
              for kind in ('failure', 'regression', 'environment')}
    return [
        *(Report('failure', one['guard'] or one['metric'], f'{one["check"]}: '
                 f'{one["why"]} [ran on {" ".join(one["nodes"])}]')
          for event in events['failure'] for one in event['failed']),
        *(Report('regression', ', '.join(dict.fromkeys(
            one['metric'] for one in event['members'])), event['title'], event['since'])
          for event in events['regression']),
        *(Report('changed', one['cause'].partition(' ')[0], one['title'])
          for one in events['environment'])]


def reports_since(reports: Sequence[Report], date: str) -> list[Report]:
    """The reports of what began on or after a date; the beginning of a regression is
    known to a session or so."""
    earliest = days_later(date, -1)
    return [one for one in reports if not one.since or one.since >= earliest]


def days_later(date: str, days: int) -> str:
    return str(datetime.date.fromisoformat(date) + datetime.timedelta(days=days))


def node_is_named(reports: Sequence[Report], node: str) -> str:
    """Whether a report names the node of a fault: `yes`, it alone; `among`, with others
    that are not told apart."""
    if not node:
        return ''
    nodes = [set(re.findall(r'\bn[1-9]\b', one.text)) for one in reports]
    if {node} in nodes:
        return 'yes'
    return next((f'among {", ".join(sorted(names))}' for names in nodes
                 if node in names), 'no')


def row_of_fault(result: Mapping[str, Any]) -> str:
    """The row of a fault in the table, from its line of results.jsonl."""
    reports = [Report(*one) for one in result['reports']]
    by = dict.fromkeys(f'{one.kind}: {one.by}' for one in reports)
    if result['skipped']:
        return table_row(result['kind'], '', '', '', f'skipped: {result["skipped"]}')
    return table_row(
        result['kind'], result['found_after'] or 'not', ', '.join([*by][:3]),
        node_is_named(reports, FAULTS[result['kind']].node), textwrap.shorten(
            reports[0].text if reports else 'nothing', 240, placeholder=' ...'))


def campaign_tables(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], bool]:
    """The tables, and whether each fault was found and no alarm was false.

    :param results: lines of results.jsonl
    """
    faults = [one for one in results if one['kind'] != CLEAN]
    judged = [one for one in results if one['kind'] == CLEAN and one['judged']]
    alarms = [(one['date'], *report) for one in judged for report in one['reports']]
    lines = [*table_head('fault', 'found after', 'by', 'node named', 'message'),
             *map(row_of_fault, faults), '',
             f'Clean sessions with a verdict: {len(judged)}, false alarms: '
             f'{len(alarms)}', *(f'- {date}: {kind}: {text}'
                                 for date, kind, _, text, _ in alarms)]
    return lines, not alarms and all(
        one['found_after'] or one['skipped'] for one in faults)


# The campaign ---------------------------------------------------------------

@dataclass
class Campaign:
    """A folder with results.jsonl: a line per clean session, and per fault."""
    folder: Path
    box: Box
    clean: int
    sessions: int
    results: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Half a line of a bench that was killed is left out.
        with contextlib.suppress(OSError):
            for line in (self.folder / 'results.jsonl').read_text().splitlines():
                with contextlib.suppress(ValueError):
                    self.results.append(json.loads(line))

    def add(self, **line: Any) -> None:
        """Keep a result, and write the tables so far."""
        self.results.append(line)
        with open(self.folder / 'results.jsonl', 'a') as out:
            # On a line of its own, whatever was cut off before.
            out.write(f'\n{json.dumps(line)}\n')
        lines, _ = campaign_tables(self.results)
        (self.folder / 'report.md').write_text('\n'.join(lines) + '\n')

    def run(self, faults: Sequence[str]) -> None:
        """Run what has no result yet.

        :raises ClusterError: the cluster broke down
        """
        while len(clean := [one for one in self.results if one['kind'] == CLEAN]
                  ) < self.clean:
            self.run_clean_session(clean)
        done = {one['kind'] for one in self.results}
        for name in faults:
            if name not in done:
                self.run_fault(name, FAULTS[name], clean)

    def run_clean_session(self, before: Sequence[Mapping[str, Any]]) -> None:
        date = (days_later(before[-1]['date'], 1) if before else days_later(
            str(datetime.datetime.now(datetime.timezone.utc).date()),
            -self.clean - self.sessions))
        perflogs = self.folder / CLEAN
        session, code, output = self.box.run_session(date, perflogs, None)
        judged = len(before) >= BASELINE
        reports = reports_since(reports_of_session(
            self.box.env, perflogs, session), date) if judged else []
        if code:
            reports.insert(0, Report('session', 'exit code', output))
        print(f'{CLEAN} {len(before) + 1}: exit code {code}', *reports, sep='\n    ',
              flush=True)
        self.add(kind=CLEAN, date=date, judged=judged or bool(code), reports=reports)

    def run_fault(self, name: str, fault: Fault, clean: Sequence[Mapping[str, Any]]
                  ) -> None:
        """Sessions with a fault, until the verdict reports it."""
        perflogs = self.folder / 'faults' / name
        shutil.rmtree(perflogs, ignore_errors=True)
        shutil.copytree(self.folder / CLEAN, perflogs)
        begin = days_later(clean[-1]['date'], 1)
        reports: list[Report] = []
        number, skipped = 0, ''
        for number in range(1, self.sessions + 1):
            date = days_later(begin, number - 1)
            try:
                session, code, output = self.box.run_session(date, perflogs, fault)
            except Missing as err:
                skipped = str(err)
                break
            try:
                reports = reports_since(reports_of_session(
                    self.box.env, perflogs, session), begin)
            except Missing:             # The session has no values.
                reports = []
            if code and not any(one.kind == 'failure' for one in reports):
                reports.insert(0, Report('session', 'exit code', output))
            print(f'{name} {number}: exit code {code}', *reports, sep='\n    ',
                  flush=True)
            if reports:
                break
        self.add(kind=name, found_after=number if reports else 0, reports=reports,
                 skipped=skipped)


def main() -> bool:
    parser = option_parser(__doc__)
    for name, count, what in (('clean', 30, 'clean sessions for the history'),
                              ('sessions', 3, 'at most so many sessions of a fault')):
        parser.add_argument(f'--{name}', type=int, default=count, metavar='N',
                            help=f'{what} (default: {count})')
    parser.add_argument('--only', action='append', metavar='FAULT',
                        choices=list(FAULTS), help='only this fault; may be '
                        'repeated: ' + ', '.join(FAULTS))
    parser.add_argument('--dir', type=Path, default=WORK / 'faults',
                        help='folder of the campaign (default: %(default)s)')
    parser.add_argument('--list', action='store_true', help='list the faults; start '
                        'nothing')
    args = parser.parse_args()
    faults = [name for name in FAULTS if not args.only or name in args.only]
    if args.list:
        for name in faults:
            where = f' [{FAULTS[name].node}]' * bool(FAULTS[name].node)
            print(f'{name}: {FAULTS[name].means}{where}')
        return True
    try:
        with running_box(args.dir.absolute()) as box:
            campaign = Campaign(box.folder, box, args.clean, args.sessions)
            campaign.run(faults)
    except (ClusterError, KeyboardInterrupt) as err:
        raise Missing(f'{err or "ended early"}; the same command continues') from None
    lines, good = campaign_tables(campaign.results)
    print('', *lines, sep='\n')
    return good


if __name__ == '__main__':
    run_main_and_exit(main)
