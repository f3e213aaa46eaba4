"""`./plumb verdict`: regressions and failures of a session.

docs/explanation/detection.md describes how a session is compared with its history.
"""
from __future__ import annotations

import argparse
import datetime
import hashlib
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from config.commandline import STATE_CODES, Parser, add_require_compared_option
from config.console import count_with_noun
from config.sessions import lock
from config.sites import topology

from .. import debts, options, records
from ..results import Result, exit_code_of_state
from . import decisions, junit
from .decisions import Decision
from .events import (
    Verdict,
    failure_text,
    print_power,
    print_verdict,
    test_case_text,
)
from .judging import judge_session

HELP = """\
Lists regressions: where, since when, and how much.

Each metric is compared with its own history, with or without a reference. The
verdict also lists test cases that failed, changes of the environment, and test
cases that have too few sessions.

A regression in a single session is not certain. `plumb run --suspects` measures its
test cases again. Run it three more times: four sessions on one day are enough
for a decision.

A failure stays open until the test case passes on the nodes where it failed. A test
case is missing if earlier sessions of the mode measured it, and the newest did not.
These commands record decisions about failures, missing test cases and regressions. Each
decision needs a reason, and is kept in decisions.yaml of the perflogs:
  plumb verdict mute ID --until DATE  marks a known problem, until a date
  plumb verdict retire ID|PATTERN     marks a test case or node as removed
  plumb verdict accept ID             makes the new level the baseline
  plumb verdict undo ID               removes a decision

""" + STATE_CODES

#: Action -> (help, positional argument and its help, example).
ACTIONS = {
    'accept': ("""\
Makes the new level of a regression the baseline.

`plumb verdict` shows the ID in brackets. The baseline begins with the first
session of the regression. A later change is compared with the new level.

Exit codes: 0 accepted; 2 wrong usage, or an unknown ID.
""", 'ID', 'the ID of the regression',
        '3f2a91c0 --reason "firmware 2.1, ticket 42"'),
    'mute': ("""\
Marks a regression, or the failures of a test case, as a known problem until a date.

`plumb verdict` shows the ID. Until the end of the day --until, the verdict lists the
problem as muted, and does not fail because of it.

Only the nodes of the problem are muted. If the test case gets worse or fails again on
one of these nodes, this is muted, too; on other nodes it is reported. A problem
whose nodes differ from session to session is muted on all nodes.

Exit codes: 0 muted; 2 wrong usage, a date that is over, or an unknown ID.
""", 'ID', 'the ID of the regression or test case',
        '3f2a91c0 --until 2027-05-01 --reason "cable, ticket 43"'),
    'retire': ("""\
Marks test cases or nodes as removed on purpose.

Test cases that match are no longer missing, and their open failures are closed. A
pattern is compared with the ID, with the name that `plumb verdict` prints, and with
the nodes of an open failure. A test case that is measured again counts again.

Exit codes: 0 retired; 2 wrong usage, or no missing test case and no open failure
matches.
""", 'ID|PATTERN', 'the ID of a test case, a node, or a shell pattern',
        '"*on mycluster:gpu*" --reason "partition removed"'),
    'undo': ("""\
Removes a decision.

The regressions and failures that it was about count again.

Exit codes: 0 removed; 2 wrong usage, or no such decision.
""", 'ID', 'the ID of the decision', '3f2a91c0')}


def parser() -> Parser:
    """The command line."""
    cmd = Parser(prog='plumb verdict', text=HELP,
                 example='./plumb verdict --site mycluster --json v.json')
    _add_common_options(cmd)
    output = cmd.add_argument_group('output')
    output.add_argument('--json', metavar='FILE', help='write the verdict as '
                        'JSON to FILE; - prints it, and nothing else')
    output.add_argument('--junit', metavar='FILE', help='write JUnit XML with '
                        'one test per test case to FILE; - prints it, and '
                        'nothing else')
    output.add_argument('--all', action='store_true', help='also list the test cases '
                        'that are worth measuring again, or have too few sessions')
    add_require_compared_option(cmd.add_argument_group('exit code'))
    output.add_argument('--power', action='store_true', help='print the smallest '
                        'change that is found in each test case within 3 and '
                        'within 6 sessions, with a probability of 90 %%')
    return cmd


def _add_common_options(cmd: Parser) -> None:
    options.add_record_options(cmd).add_argument(
        '--session', metavar='SESSION', help='the verdict as it was after this '
        'session, or after all sessions of this date; the beginning of a name is '
        'enough (default: the newest)')


def decision_parser(action: str) -> Parser:
    """The command line of one of ACTIONS."""
    text, name, about, example = ACTIONS[action]
    cmd = Parser(prog=f'plumb verdict {action}', text=text,
                 example=f'./plumb verdict {action} {example}')
    cmd.add_argument('id', metavar=name, help=about)
    decision = cmd.add_argument_group('decision')
    if action != 'undo':
        decision.add_argument('--reason', required=True, type=_parse_nonempty_text,
                              metavar='TEXT', help='the cause, or the ticket')
    if action == 'mute':
        decision.add_argument('--until', required=True, metavar='DATE',
                              type=_parse_date, help='the last day of the mute, '
                              'for example 2027-05-01')
    _add_common_options(cmd)
    return cmd


def _parse_nonempty_text(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError('the text is empty')
    return text


def _parse_date(text: str) -> datetime.date:
    try:
        return datetime.datetime.strptime(text, '%Y-%m-%d').date()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a date like 2027-05-01') from None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (usage errors exit with 2)."""
    words = list(sys.argv[1:] if argv is None else argv)
    action = words[0] if words[:1] and words[0] in ACTIONS else ''
    args = (decision_parser(action).parse_args(words[1:]) if action
            else parser().parse_args(words))
    try:
        if action == 'undo':
            undone = decisions.undo_decision(Path(args.perflogs), args.id)
            print(f'{Path(args.perflogs) / decisions.FILE}: {undone.id} is no longer '
                  f'{undone.kind}')
            return 0
        verdict, faults = verdict_of_perflogs(args.perflogs, args.session, args.site)
        options.print_faults('verdict', faults)
        return _decide(action, args, verdict) if action else _write_output(
            args, verdict)
    except (OSError, ValueError, lock.LockError) as err:
        print(f'plumb verdict: {err}', file=sys.stderr)
        return 2


def verdict_of_perflogs(folder: str, session: str | None = None, site: str = ''
                        ) -> tuple[Verdict, records.Faults]:
    """The verdict of a folder's perflogs, and what is damaged in them.

    :raises ValueError: no records, no such session, or the file of decisions is damaged
    """
    read = debts.read(folder)
    if read.frame.empty:
        raise ValueError('; '.join(map(str, read.faults[:1]))
                         or f'no records in {folder}: run `./plumb run` '
                         'first, or name another folder with --perflogs')
    return judge_session(
        options.records_of_site(read.frame, site), session, decisions=read.decided,
        sessions=read.sessions, damaged=len(read.faults), site=site,
        perflogs=folder), read.faults


def _write_output(args: argparse.Namespace, verdict: Verdict) -> int:
    """Prints and writes what was asked for."""
    if args.json:
        options.write_text_answer(args.json, verdict.json())
    if args.junit:
        options.write_text_answer(args.junit, junit.junit_xml(verdict))
    if args.power:
        print_power(verdict)
    elif '-' not in (args.json, args.junit):
        print_verdict(verdict, args.all)
    return exit_code_of_state(verdict.state, args.require_compared)


def _decide(action: str, args: argparse.Namespace, verdict: Verdict) -> int:
    """Accepts, mutes or retires; the exit code.

    :raises ValueError: unknown ID, or a date that is too early
    """
    today = datetime.datetime.now(datetime.timezone.utc).date()
    until = getattr(args, 'until', None)
    if until and until < today:
        raise ValueError(f'--until {until} is in the past: today is {today}')
    if action == 'retire':
        ident, chosen = _retired(args.id, verdict)
        text = f'retired: {count_with_noun(len(chosen), "test case")}'
    else:
        known = {one.id: one for one in (
            *_regressions(verdict), *_failures(verdict) * bool(until))}
        ident = args.id
        decisions.check_id(ident, {one.id: one.text for one in known.values()},
                           'regression', 'the verdict')
        chosen = [known[ident]]
        text = (f'muted until {until}' if until else
                f'accepted: the baseline begins on {known[ident].since}')
    path = decisions.add_decision(Path(args.perflogs), Decision(
        ident, {'accept': 'accepted', 'mute': 'muted', 'retire': 'retired'}[action],
        datetime.date.fromisoformat(max(one.since for one in chosen)), until,
        args.reason, today, tuple(dict.fromkeys(
            name for one in chosen for name in one.metrics)),
        chosen[0].failures if action == 'mute' else {}))
    print(f'{path}: {ident} is {text}')
    return 0


class Subject(NamedTuple):
    """A regression or failure that a person may decide about."""
    id: str
    text: str
    #: Date on which it began; of what is retired, on which it was last measured.
    since: str
    #: As `Decision` has them.
    metrics: list[str]
    failures: dict[str, tuple[str, ...]]


def _regressions(verdict: Verdict) -> list[Subject]:
    """A metric with all its points, or all test cases of a group."""
    return [Subject(one.id, one.title, one.since, [
        f'{member.test_case} {member.metric}' if one.scope == 'metric' else
        member.test_case for member in one.members], {decisions.REGRESSION: tuple(
            [one.node] if one.node else topology.nodes_of_record(one.nodes))})
        for one in verdict.events_of('regression', 'muted')]


def _failures(verdict: Verdict) -> list[Subject]:
    """The test cases that failed, each with all its copies, muted ones, too: a new
    decision replaces that of the same ID."""
    failed: dict[str, list[Result]] = {}
    for one in verdict.results:
        if one.result in ('fail', 'xfail'):
            failed.setdefault(one.test_case, []).append(one)
    return [Subject(name, failure_text(copies[-1]), min(
        one.date for one in copies), [name], {
        guard: _nodes_of_failure(copies, guard) for guard in dict.fromkeys(
            one.failed_guard for one in copies)}) for name, copies in failed.items()]


def _nodes_of_failure(copies: Sequence[Result], guard: str) -> tuple[str, ...]:
    """The nodes on which copies of a test case failed with a guard; (): unknown."""
    nodes = [one.nodes for one in copies if one.failed_guard == guard]
    return tuple(sorted(frozenset().union(*nodes))) if all(nodes) else ()


def _retired(pattern: str, verdict: Verdict) -> tuple[str, list[Subject]]:
    """The ID of a decision that retires what matches, and what that is.

    :raises ValueError: nothing that is missing or open matches
    """
    owed = [(Subject(one.test_case, test_case_text(one, one.copy), one.date, [
        f'{one.test_case} {one.copy}'.strip()], {}), one.nodes)
        for one in verdict.results if one.result == 'missing' or one.is_open]
    chosen = [one for one, nodes in owed if any(
        fnmatchcase(name, pattern) for name in (one.id, one.text, *nodes))]
    if not chosen:
        names = '; '.join(f'{one.id} {one.text}' for one, _ in owed)
        raise ValueError(f'{pattern!r} matches no missing test case and no open '
                         f'failure; the verdict has {names or "neither"}')
    metrics = [name for one in chosen for name in one.metrics]
    return (metrics[0] if len(metrics) == 1 and ' ' not in metrics[0] else
            hashlib.sha1('|'.join(metrics).encode()).hexdigest()[:8]), chosen
