"""plumb nightly: nodes, reruns, overlap, what is kept and what is said."""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import email
import email.policy
import http.server
import json
import os
import re
import socket
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from conftest import (
    OSU,
    ROOT,
    command_lines,
    until,
)
from data.perflogs_factory import record, write

from cli import __main__
from cli.nightly import messages, nightly
from cli.nightly import summary as nightly_summary
from cli.session import commands
from cli.session import process as session
from cli.setup.venv import SetupError
from cli.site import schedulers
from cli.site.nodes import Node
from cli.site.schedulers import Pool
from config import variables
from config.sessions import clock, lock, session_id
from config.sites import topology
from postprocess import records, results
from postprocess.regressions import sessions as sessions_of
from postprocess.regressions import verdict
from postprocess.regressions.events import Verdict
from postprocess.report import build
from postprocess.results import Result

NIGHTLY_SESSION = '20261122T013000Z-abcdef'
AGAIN = '20261122T023000Z-abcdef07'
TINY = ['-n', 'OsuStartup', '-E', 'program == "osu_hello"']


# Sessions of one night ----------------------------------------------------


def time_of(run: str, day: int) -> str:
    """So many days after a session began."""
    began = clock.session_start_time(run)
    assert began
    return f'{began + datetime.timedelta(day):%Y-%m-%dT%H:%M:%SZ}'


def bad(run: str, day: int = 0, **more: Any) -> dict[str, Any]:
    return record('completed', 0.0, session=run, guard='exit_code',
                  time=time_of(run, day), **more)


def good(run: str, day: int = 0, **more: Any) -> dict[str, Any]:
    return record(size=8, session=run, time=time_of(run, day), **{
        'reference': 1.0, 'upper': 0.1, **more})


def test_a_nightly_session_is_one_column_and_one_date(tmp_path):
    """Also where its reruns are made after midnight."""
    late = NIGHTLY_SESSION.replace('T01', 'T23')
    after = '20261123T003000Z-abcdef07'
    write(tmp_path, [bad(late), good(after)])
    frame = records.read(tmp_path)
    names, column = results.group_into_nightly_sessions(frame)
    assert names == [[late, after]] and set(column) == {0}
    assert len({str(day) for day in sessions_of.session_dates(frame).values()}) == 1


# Reruns -------------------------------------------------------------------

def trial(name: str = 'a', result: str = 'fail', where: str = 'n1',
          **more: Any) -> Result:
    """The result of a test case in one session."""
    there = frozenset(where.split())
    return Result(
        name, 'alpha', 'cpu', 'mpi', 'Check', '', '', 'osu', '', '', NIGHTLY_SESSION,
        result, nodes=there, width=max(len(there), 1), **more)


def whole(*sessions: Result, result: str = '') -> Result:
    """Its result in a nightly session."""
    return dataclasses.replace(
        sessions[0], result=result or sessions[0].result, sessions=sessions)


#: Nodes and ends of the reruns of a failure on n1 -> its result.
BELIEVED = [
    ([], 'fail'),
    (['n1 pass'], 'flaky'),
    # The nodes are not known.
    ([' no_reference'], 'flaky'),
    ([' fail'], 'fail'),
    (['n1 fail', 'n2 pass'], 'fail'),
    # Twice in three: it is real, wherever.
    (['n1 pass', 'n2 fail'], 'fail'),
    (['n1 fail', 'n1 pass'], 'fail'),
    # Only on other nodes: it was out of tolerance in each try.
    (['n2 pass'], 'fail')]


def test_which_failures_are_believed(tmp_path):
    made = []
    for number, (again, _) in enumerate(BELIEVED):
        name = {'params': f'n={number}'}
        made.append(bad(NIGHTLY_SESSION, nodes='n1', **name))
        for hour, (nodes, end) in enumerate((text.split(' ') for text in again), 2):
            made.append((bad if end == 'fail' else good)(
                f'20261122T0{hour}3000Z-abcdef0{hour}', nodes=nodes, **name, **(
                    {'reference': None, 'upper': None} if end == 'no_reference'
                    else {})))
    write(tmp_path, made)
    frame = records.read(tmp_path)
    nightly_results = {one.params: one for one in results.results_of_nightly_session(
        frame, NIGHTLY_SESSION).values()}
    newest = {one.params: one.result
              for one in results.newest_results_of_test_cases(frame)}
    for number, (again, result) in enumerate(BELIEVED):
        one = nightly_results[f'n={number}']
        assert one.result == result and one.is_failed, again
        assert len(one.sessions) == 1 + len(again), again
        # The page and the verdict agree.
        assert newest[f'n={number}'] == result, again


# The order of a night ------------------------------------------------------

class Machine:
    """Stands in for ReFrame: what fails where, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cases = {'a': 'n1', 'b': 'n2 n3'}
        #: (case, session from 1) that fail; a case: all of its sessions.
        self.bad: set[Any] = set()
        self.ended_by: dict[int, str] = {}
        #: Why values of a case cannot be compared, although they have a reference.
        self.inconclusive: dict[str, str] = {}
        #: Exit code, whatever the cases did.
        self.code = 0
        #: Cases of each session, and `+nodes` or `-excluded nodes`.
        self.sessions: list[tuple[list[str], str]] = []

    def measured(self, work: Any, *options: str, any_mode: bool = False
                 ) -> commands.Ended:
        """Session of ReFrame."""
        keys = [name for name in sorted(self.cases)
                if not any_mode or f'^Check%program={name}$' in options]
        place = next((word for word in options if re.match('pinned_nodes=|exclude=',
                                                           word)), '=')
        kind, nodes_text = place.split('=')
        sign = {'p': '+', 'e': '-', '': ''}[kind[:1]]
        self.sessions.append((keys, sign + nodes_text))
        number = len(self.sessions)
        run = work.nightly_session.first if number == 1 else session_id.new_session_id(
            work.nightly_session.first)
        taken = set(topology.expand_host_list(nodes_text)
                    if kind == 'exclude' else [])
        rows, worst = [], self.code
        for name in keys:
            width = len(self.cases[name].split())
            # As Slurm: the first that are free.
            places = [self.cases[name]] if number == 1 else [' '.join([
                n for n in ('n1', 'n2', 'n3', 'n4', 'n5') if n not in taken][:width])]
            if kind == 'pinned_nodes':
                places = nodes_text.replace('+', ' ').split(',')
            failed = name in self.bad or (name, number) in self.bad
            worst |= failed
            why = {'inconclusive': self.inconclusive[name], 'upper': None} \
                if name in self.inconclusive else {}
            for where in places:
                copy = f' %.pinned_nodes={where.replace(" ", "+")}' * (kind[:1] == 'p')
                rows.append((bad if failed else good)(
                    run, nodes=where.replace(' ', ','), num_nodes=width, program=name,
                    name=f'Check %program={name}{copy}', params=f'program={name}',
                    **why))
        write(self.folder, rows, '-n some' * any_mode)
        return commands.Ended(run, int(worst), self.ended_by.get(number, ''), True,
                              Path())


@pytest.fixture
def night(tmp_path, monkeypatch):
    """A night on five nodes: go(): sessions, and what is said."""
    machine = Machine(tmp_path / 'perflogs')
    machine.folder.mkdir()
    site = machine.site = tmp_path / 'alpha'
    site.mkdir()
    (site / 'system.py').touch()
    monkeypatch.setattr(commands, 'run_reframe_session', machine.measured)
    monkeypatch.setattr(commands, 'write_report_page', lambda *_: ('page', None))
    machine.pools = {'cpu': Pool('batch', {
        **{f'n{n}': Node(f'n{n}', 'idle') for n in range(1, 6)},
        'n6': Node('n6', 'drained', 'disk')})}
    monkeypatch.setattr(schedulers, 'find_node_pools',
                        lambda system: (machine.pools, ''))

    def go(*options: str) -> nightly_summary.Summary:
        result = nightly_summary.Summary(
            'alpha', nightly_session=session_id.new_session_id())
        nightly.NightlySession(
            commands.Work(
                {'name': 'alpha', 'partitions': [{'name': 'cpu'}]},
                {'PLUMBLINE_PERFLOGS': str(machine.folder)}, list(options),
                list(options), True, [], False,
                session.NightlySession('alpha', result.nightly_session)),
            argparse.Namespace(reframe=list(options), site=str(site)), result).run_all()
        return result
    machine.go = go
    return machine


def test_a_good_nightly_session_is_one_session(night):
    result = night.go()
    assert night.sessions == [(['a', 'b'], '')]
    assert (result.state, result.exit_code) == ('good', 0)
    assert ('Nodes: 3 of 5 that take jobs of partition batch were measured; left out: '
            'n6 (drained: disk)') in result.summary_lines()


def test_without_usable_nodes_the_session_ends_with_their_reasons(night):
    night.pools = {'cpu': Pool('batch', {
        'n5': Node('n5', 'down*', 'Not responding'),
        'n6': Node('n6', 'drained', 'disk')})}
    with pytest.raises(SetupError, match=re.escape(
            'no node takes jobs: n5 (down*: Not responding), n6 (drained: disk)')):
        night.go()
    assert not night.sessions


def test_a_failure_is_measured_again_on_its_nodes_and_on_others(night):
    night.bad = {'a'}
    result = night.go()
    assert night.sessions[1:] == [(['a'], '+n1'), (['a'], '-n1')]
    assert (result.state, result.exit_code) == ('failed', 1)
    # Commands have the site as it was given.
    assert any(f' ./plumb run --site {night.site} ' in line
               for line in result.summary_lines())
    [line] = [line for line in result.summary_lines() if 'failed again' in line]
    assert line.endswith(' on alpha:cpu openmpi: failed again on the same nodes (n1), '
                         'failed again on other nodes (n2)')


@pytest.mark.parametrize('is_usable', [True, False])
def test_a_failure_of_an_earlier_session_is_open_until_its_node_passes(
        night, is_usable):
    """Slurm selects another node this time."""
    yesterday = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(1)
    write(night.folder, [bad(
        f'{yesterday:%Y%m%dT%H%M%SZ}-abcdef', nodes='n3', program='a',
        params='program=a', name='Check %program=a', reason='Bus error')])
    if not is_usable:
        night.pools['cpu'].nodes['n3'] = Node('n3', 'down*', 'gone')
    result = night.go()
    assert night.sessions[1:] == [(['a'], '+n3')] * is_usable
    text = '\n'.join(result.summary_lines())
    if is_usable:
        assert (result.state, result.exit_code) == ('good', 0)
    else:
        assert (result.state, result.exit_code) == ('failed', 1)
        assert ': failed on n3 on ' in text and 'FAILED: 1 test case failed. 2 ' in text


@pytest.mark.parametrize('left, state', [
    ('failure', 'failed'), ('cut short', 'cut short'), ('damaged', 'degraded'),
    ('missing', 'degraded'), ('inconclusive', 'degraded')])
def test_what_other_sessions_left_counts_as_in_page_and_verdict(
        night, capsys, tmp_path, left, state):
    """A test case that the mode does not have failed, a session of today was killed, a
    report is damaged, or the night has one test case less than the night before. Or
    all test cases are inconclusive, in the first night of the site."""
    today = datetime.datetime.now(datetime.timezone.utc)
    one = {'nodes': 'n3', 'program': 'c', 'params': 'program=c'}
    if left == 'failure':
        write(night.folder, [bad(f'{today - datetime.timedelta(1):%Y%m%dT%H%M%SZ}-'
                                 'abcdef', reason='Bus error', **one)], '-n c')
    elif left == 'cut short':
        write(night.folder, [good(f'{today:%Y%m%d}T000000Z-abcdef', **one)], '-n c',
              ended=False)
    elif left == 'missing':
        write(night.folder, [good(f'{today - datetime.timedelta(1):%Y%m%dT%H%M%SZ}-'
                                  'abcdef', **one)])
    elif left == 'inconclusive':
        night.inconclusive = dict.fromkeys('ab', '2 threads shared 1 core')
    else:
        (night.folder / 'sessions').mkdir()
        (night.folder / 'sessions' / '20261101T000000Z-abcdef.json').write_text('{')
    result = night.go()
    assert (result.state, result.exit_code) == (state, 1)
    lines = result.summary_lines()
    assert f' of alpha: {state.upper()}: ' in lines[0]
    assert {'failure': 'Bus error', 'missing': '1 test case missing',
            'inconclusive': '2 of 2 test cases with a reference not compared'}.get(
                left, '') in '\n'.join(lines)
    # The verdict and the page agree.
    assert verdict.main(['--perflogs', str(night.folder), '--site', 'alpha']) == 1
    assert f': {state.upper()}' in capsys.readouterr().out
    assert build.main(['--perflogs', str(night.folder), '--output',
                       str(tmp_path / 'page')]) == 1
    assert f'<b>{state.upper()}.</b>' in (tmp_path / 'page' / 'index.html').read_text()


def test_a_failure_that_is_gone_is_flaky_and_no_pass(night):
    night.bad = {('a', 1)}
    result = night.go()
    assert (result.state, result.exit_code) == ('degraded', 1)
    [failed] = result.data()['failed']
    assert failed['result'] == 'flaky' and failed['again'] == [
        {'where': 'the same nodes', 'nodes': ['n1'], 'failed': False, 'ran': True},
        {'where': 'other nodes', 'nodes': ['n2'], 'failed': False, 'ran': True}]
    # The page and the verdict agree.
    assert {one.program: one.result for one in results.newest_results_of_test_cases(
        records.read(night.folder))} == {'a': 'flaky', 'b': 'pass'}


def test_what_the_site_excludes_stays_excluded(night):
    """Slurm takes one --exclude alone."""
    night.bad = {('b', 1), ('b', 2)}
    night.pools['cpu'] = Pool('batch', night.pools['cpu'].nodes, frozenset({'own'}))
    result = night.go()
    assert night.sessions[1:] == [(['b'], '+n2+n3'), (['b'], '-n[2-3],own')]
    [line] = [line for line in result.summary_lines() if 'failed again' in line]
    assert line.endswith(': failed again on the same nodes (n2 n3), '
                         'passed on other nodes (n1 n4)')


def test_a_node_that_was_lost_is_not_used_again(night, monkeypatch):
    """Slurm is asked again for the nodes: before the reruns, and at the end."""
    night.bad = {('b', 1)}
    monkeypatch.setattr(schedulers, 'find_node_pools', lambda system: ({
        'cpu': Pool('batch', {
            f'n{n}': Node(f'n{n}', 'down*', 'Not responding')
            if n == 3 and night.sessions else Node(f'n{n}', 'idle')
            for n in range(1, 6)})}, ''))
    result = night.go()
    assert night.sessions[1:] == [(['b'], '-n[2-3]')]
    assert 'left out: n3 (down*: Not responding)' in '\n'.join(result.summary_lines())


@pytest.mark.parametrize('again, sessions', [
    # Where the nodes are unknown, it is measured once more, but not if its session did.
    ({}, [('any nodes',)]), ({'measurements': 3}, []),
    # A job that did not start would wait as long again.
    ({'guard': 'pending', 'where': 'n1'}, []),
    ({'measurements': 3, 'where': 'n1'}, [('other nodes', '-J', 'exclude=n1')]),
    # No five others are left.
    ({'where': 'n1 n2 n3'}, [('the same nodes', '-P', 'pinned_nodes=n1+n2+n3')])])
def test_where_failures_are_measured_again(night, again, sessions):
    one = trial(**{'where': '', **again})
    session = SimpleNamespace(pools=night.pools)
    assert [*nightly.NightlySession.plan_reruns(session, [whole(one)])] == sessions


def test_too_many_failures_are_believed_as_they_are(night):
    night.cases = {f'c{n:02}': 'n1' for n in range(12)}
    night.bad = set(night.cases)
    result = night.go()
    assert len(night.sessions) == 1 and result.exit_code == 1
    assert '12 of 12 test cases failed; so many' in result.notes[0]


def test_a_reframe_that_fails_without_a_case_is_no_good_nightly_session(night):
    night.code = 1
    result = night.go()
    assert (result.state, result.exit_code) == ('failed', 1)
    assert 'ReFrame ended with exit code 1, but no test case failed' in result.headline


def test_a_signal_ends_the_nightly_session_and_it_says_so(night):
    night.bad, night.ended_by = {'a'}, {1: 'SIGTERM'}
    result = night.go()
    assert len(night.sessions) == 1
    assert (result.state, result.exit_code) == ('failed', 1)
    assert '! ended by SIGTERM' in result.summary_lines()


def test_where_people_choose_nodes_failures_are_measured_again_on_these(night):
    night.bad = {'a'}
    night.go('-J', 'nodelist=n1')
    assert night.sessions == [(['a', 'b'], ''), (['a'], '')]


# One night at a time --------------------------------------------------------

def test_a_second_nightly_session_of_a_site_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(nightly, 'WORK', tmp_path)
    with lock.hold_file_lock(tmp_path / 'nightly' / 'local.lock'), pytest.raises(
            SetupError, match='another nightly session of this site runs: pid '
            rf'{os.getpid()} of .* since 20.*; it ends itself after --hours'):
        nightly.nightly(options())


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Sessions of nightly sessions: opened(night number)."""
    monkeypatch.setattr(session, 'WORK', tmp_path)
    for name in ('RFM_STAGE_DIR', 'RFM_OUTPUT_DIR'):
        monkeypatch.delenv(name, raising=False)

    @contextlib.contextmanager
    def opened(number: int, site: str = 'alpha'):
        first = NIGHTLY_SESSION.replace('22T', f'{number:02}T')
        with session.create_session_folders({'stagedir': str(tmp_path / 'scratch')},
                                            session.NightlySession(site, first)) as one:
            one.stage.mkdir(parents=True)
            one.output.mkdir(parents=True)
            yield one
    return opened


def test_only_folders_of_old_nightly_sessions_are_removed(work, tmp_path):
    opened = {}
    for number in range(1, 5):
        for part in range(2):
            with work(number) as opened[number, part]:
                pass
    with work(1, site='beta') as beta:
        pass
    for _ in range(session.KEPT + 2):
        with session.create_session_folders({}):        # sessions by day
            pass
    (tmp_path / 'scratch' / 'own').mkdir()
    (tmp_path / 'sessions' / 'own').mkdir()
    # Damaged, or pointing elsewhere: left alone.
    precious = tmp_path / 'precious'
    precious.mkdir()
    mark = opened[1, 1].folder / session.ABOUT
    mark.write_text(json.dumps(json.loads(mark.read_text())
                               | {'stage': str(precious)}))
    (opened[2, 1].folder / session.ABOUT).write_text('{"kind": "nightly al')
    session.remove_old_sessions('nightly alpha', 2)
    there = {key for key, one in opened.items() if one.folder.exists()}
    assert there == {(2, 1), (3, 0), (3, 1), (4, 0), (4, 1)}
    assert opened[3, 0].stage.exists() and not opened[1, 0].stage.exists()
    assert beta.stage.exists() and precious.exists()
    assert (tmp_path / 'scratch' / 'own').exists()
    assert (tmp_path / 'sessions' / 'own').exists()


def test_a_nightly_session_that_runs_keeps_its_folders(work):
    with work(1) as alive:
        session.remove_old_sessions('nightly alpha', 0)
        assert alive.stage.exists()
    session.remove_old_sessions('nightly alpha', 0)
    assert not alive.folder.exists()


# What is said ---------------------------------------------------------------

def output(*some: Result, **more: Any) -> nightly_summary.Summary:
    """The summary of a session with these results."""
    verdict = Verdict('2026-11-22', results=[*some], cases=len(some), compared=sum(
        one.is_compared for one in some)) if some else None
    return nightly_summary.Summary('alpha', nightly_session=NIGHTLY_SESSION,
                                   results=[*some], verdict=verdict, **more)


@pytest.mark.parametrize('some, more, word, code', [
    ([], {}, 'degraded', 1),
    ([trial(result='no_reference')], {}, 'not compared', 0),
    ([trial(result='no_reference')], {'require_compared': True}, 'not compared', 3),
    ([trial(result='pass')], {}, 'good', 0),
    ([trial()], {}, 'failed', 1),
    ([trial(result='pass')], {'broken': 'the page was not written'}, 'failed', 1),
    ([], {'ended_by': 'ended by SIGTERM'}, 'cut short', 1),
    ([], {'broken': 'no site', 'usage': True}, 'failed', 2)])
def test_a_nightly_session_in_a_word_and_its_exit_code(some, more, word, code):
    result = output(*map(whole, some), **more)
    assert (result.state, result.exit_code) == (word, code)
    assert result.headline.startswith(f'alpha: {word.upper()}: ')
    assert json.dumps(result.data())


def options(*words: str) -> argparse.Namespace:
    return __main__.parse_command_line(['nightly', *words])


# Messages ------------------------------------------------------------------

@pytest.fixture
def http_server():
    """A server on the loopback interface; address, and what it received as (path,
    body)."""
    got: list[tuple[str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path,
                        self.rfile.read(int(self.headers['Content-Length']))))
            self.send_response(403 if 'refused' in self.path else 200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield SimpleNamespace(address=f'127.0.0.1:{server.server_port}', got=got)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def mail_server():
    """aiosmtpd on the loopback interface; a URL, and its (receivers, message)."""
    got: list[Any] = []

    class Handler:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            got.append((envelope.rcpt_tos, email.message_from_bytes(
                envelope.content, policy=email.policy.default)))
            return '250 OK'

    with socket.create_server(('127.0.0.1', 0)) as sock:
        port = sock.getsockname()[1]
    controller = Controller(Handler(), hostname='127.0.0.1', port=port)
    controller.start()
    yield SimpleNamespace(got=got, url=f'mailto://127.0.0.1:{port}?mode=insecure'
                          '&from=plumb@example.org&to=ops@example.org')
    controller.stop()


def publish(urls: dict[str, str], tmp_path: Path) -> bool:
    """Publish the summary of a session in which nothing was measured."""
    return nightly.publish_summary(
        output(broken='zw\u00f6lf \u00b5s'), options(
            '--json', f'{tmp_path}/night.json', '--text', f'{tmp_path}/night.txt'),
        urls)


def test_the_summary_is_sent_by_mail_and_http(tmp_path, http_server, mail_server):
    """By a real mail server and a real web server."""
    assert publish({'x:1': mail_server.url,
                    'x:2': f'json://me:hidden@{http_server.address}/night'}, tmp_path)
    text = (tmp_path / 'night.txt').read_text()
    data = json.loads((tmp_path / 'night.json').read_text())
    assert data['text'] == text.rstrip('\n')
    [(receivers, message)] = mail_server.got
    assert receivers == ['ops@example.org']
    title = 'plumbline: alpha: FAILED: zw\u00f6lf \u00b5s'
    assert message['Subject'] == title
    body = message.get_body().get_content()
    assert 'zw\u00f6lf \u00b5s' in body
    [(path, sent)] = http_server.got
    assert path == '/night' and json.loads(sent)['title'] == title


def test_a_message_that_is_not_sent_is_reported_without_its_secrets(
        tmp_path, http_server, capfd):
    url = f'json://me:hidden@{http_server.address}/refused/T0KEN?x=y'
    assert not publish({'messages.urls:3': url}, tmp_path)
    out = ''.join(capfd.readouterr())
    assert 'messages.urls:3: the message was not sent: ' in out and '403' in out
    assert not re.search('hidden|T0KEN', out)


def test_receivers_are_those_of_the_variable_or_of_the_file(tmp_path, monkeypatch):
    monkeypatch.delenv(variables.MESSAGES, raising=False)
    assert messages.take_urls(tmp_path) == {}
    path = tmp_path / messages.FILE
    path.write_text('# a comment\n\njson://localhost/a\n')
    with pytest.raises(SetupError, match='others can read it: chmod 600'):
        path.chmod(0o640)
        messages.take_urls(tmp_path)
    path.chmod(0o600)
    assert messages.take_urls(tmp_path) == {f'{path}:3': 'json://localhost/a'}
    monkeypatch.setenv(variables.MESSAGES, 'json://localhost/b  json://localhost/c')
    assert [*messages.take_urls(tmp_path).values()] == [
        'json://localhost/b', 'json://localhost/c']
    assert variables.MESSAGES not in os.environ
    path.write_text('nonsense://hidden\n')
    with pytest.raises(SetupError, match=f'{path}:1: not a URL') as err:
        messages.take_urls(tmp_path)
    assert 'hidden' not in str(err.value)


# For real -----------------------------------------------------------------

def test_a_nightly_session_on_this_machine(suite, mail_server):
    suite.variables[variables.MESSAGES] = mail_server.url
    done = suite.plumb('nightly', '--mode', 'quick', '--json',
                       f'{suite.tmp}/night.json', '--', *OSU, *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((suite.tmp / 'night.json').read_text())
    assert data['state'] == 'not compared' and data['verdict']['cases'] == 1
    assert data['text'] in done.stdout
    [(_, message)] = mail_server.got
    assert 'NOT COMPARED' in message['Subject']
    assert {r['session'] for r in suite.records} == {data['nightly_session']}
    assert (suite.tmp / 'report' / 'index.html').is_file()


def test_a_nightly_session_has_an_end(suite):
    """One that would take long is over after its hours, and leaves nothing;
    what failed for that is not measured again."""
    done = suite.plumb(
        'nightly', '--mode', 'quick', '--hours', '0.003', '--', *OSU, '-n',
        'OsuPt2pt', '-E', 'program == "osu_latency"', '-Srepetitions=400',
        '-Stime_limit=30m')
    assert done.returncode == 1, done.stdout + done.stderr
    assert '! its limit of 0.003 h was reached (--hours)' in done.stdout
    assert 'measured again' not in done.stderr
    assert not [line for line in command_lines() if str(suite.tmp) in line]


def test_after_a_nightly_session_that_was_killed_the_next_one_is_clean(suite):
    job = subprocess.Popen(
        [str(ROOT / 'plumb'), 'nightly', '--mode', 'quick', '--', *OSU, '-n',
         'OsuPt2pt', '-E', 'program == "osu_latency"', '-Srepetitions=400',
         '-Stime_limit=30m'], env={**os.environ, **suite.variables},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: any(str(suite.tmp) in line and '/osu_latency ' in line
                          and 'mpirun' not in line
                          for line in command_lines()), job)
    finally:
        job.kill()
        job.wait()
    done = suite.plumb('nightly', '--mode', 'quick', '--', *OSU, *TINY)
    # As the verdict has it, of what the first one left.
    assert done.returncode == 1, done.stdout + done.stderr
    assert ': CUT SHORT: 1 test case did not run. 1 test case ran; ' in done.stdout
    frame = records.read(suite.tmp / 'perflogs')    # no damaged line
    ended = {str(program): set(group['guard']) for program, group in
             frame.groupby('program', observed=True)}
    assert set(ended) == {'osu_latency', 'osu_hello'}
    assert ended['osu_hello'] == {''}
    assert ended['osu_latency'] <= {'cancelled', 'missing', 'job_state'}
    assert len([*(suite.tmp / 'work' / 'sessions').glob('2*')]) == 2


@pytest.mark.parametrize('words, text', [
    (['--hours', '0'], "--hours: '0' is not a number of at least 0.001"),
    (['--', '-l'], '-l measures nothing'),
    (['--mode', 'veto'], 'not a mode of ./plumb nightly'),
    (['--site', 'lumo'], "unknown site 'lumo'"),
])
def test_what_makes_no_nightly_session_is_refused(words, text, capsys):
    with pytest.raises((SetupError, SystemExit)) as error:
        nightly.nightly(options(*words))
    assert text in str(error.value) + capsys.readouterr().err


def test_a_nightly_session_that_cannot_begin_says_so_in_its_files(
        tmp_path, monkeypatch):
    monkeypatch.setattr(nightly, 'WORK', tmp_path)

    def broken(args: Any) -> Any:
        raise SetupError('no compiler')
    monkeypatch.setattr(commands, 'prepare_session', broken)
    with pytest.raises(SetupError):
        nightly.nightly(options('--json', str(tmp_path / 'hook')))
    data = json.loads((tmp_path / 'hook').read_text())
    assert (data['state'], data['code']) == ('failed', 2)
    assert data['headline'] == 'local: FAILED: no compiler'
