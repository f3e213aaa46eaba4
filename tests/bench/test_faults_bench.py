"""bench/faults.py: its sessions, its faults, and the table made of
findings."""
from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import types

import perflogs_factory
import pytest

from checks.core import features
from tests.conftest import ROOT

PATH = ROOT / 'bench' / 'faults.py'

#: What the campaign was asked to have, a row each.
REQUESTED = {
    'delay-200us', 'delay-2ms', 'rate-half', 'rate-tenth', 'loss-1', 'loss-5',
    'half-cpu', 'fewer-threads', 'persistence', 'no-pinning', 'version',
    'transport', 'binding', 'node-lost', 'hang', 'disk-stage',
    'disk-perflogs', 'exit-code', 'cut', 'clock', 'spec'}


@pytest.fixture(scope='module')
def faults():
    path = [*sys.path]
    import faults
    yield faults
    sys.path[:] = path


def session(number, kind, every=(), alone=None, **more):
    """A line of sessions.jsonl."""
    date = datetime.date(2026, 1, 1) + datetime.timedelta(days=number)
    alone = every if alone is None else alone
    return {'number': number, 'kind': kind, 'of': 1, 'date': str(date),
            'code': 0, 'output': '', 'run': f'{date:%Y%m%d}T030000Z-aaaaaa',
            'session_s': 10.0 + number,
            'every': [*every], 'alone': [*alone], **more}


def report(kind, by, words, since=''):
    return {'kind': kind, 'by': by, 'words': words, 'since': since}


def worse(since, words='[1] latency: +80 %, node n2 of box (3 cases)'):
    return report('regression', 'latency', words, since)


# The sessions ---------------------------------------------------------------

def test_the_sessions_are_those_of_the_issue(faults):
    assert set(faults.FAULTS) == REQUESTED
    sessions = faults.planned_sessions('2026-01-30', 30, 3, 20, list(faults.FAULTS))
    assert len(sessions) == 30 + 3 * len(REQUESTED) + 20
    assert [one.number for one in sessions] == list(
        range(1, len(sessions) + 1)
    )
    assert [one.kind for one in sessions[:30]] == ['clean'] * 30
    assert [(one.kind, one.of) for one in sessions[30:33]] == [
        ('delay-200us', n) for n in (1, 2, 3)]
    assert [one.kind for one in sessions[-20:]] == ['after'] * 20


def test_the_site_is_sound(faults, tmp_path):
    box = faults.Box(tmp_path, None)
    box.site = faults.site_configuration_without_fault(box)
    features.check_site_features(box.site, 'faults.py')
    box.write_site()
    reported = {}
    exec((tmp_path / 'site' / 'system.py').read_text(), reported)
    assert reported['site_configuration'] == box.site
    with (
        faults.change_osu_spec(box),
        faults.prefix_rank_command(box, 'taskset', '-c', '0'),
    ):
        features.check_site_features(box.site, 'faults.py')
    assert box.site != reported['site_configuration']


def test_a_session_that_hangs_is_ended(faults, tmp_path):
    (tmp_path / 'reports').mkdir()
    box = faults.Box(tmp_path, types.SimpleNamespace(
        box=lambda *words, **more: subprocess.Popen(words[2:], **more)))
    code, output = box.run_reframe(['sleep', '60'], {}, 0.2)
    assert code == -signal.SIGTERM
    assert output == ['ended by bench/faults.py after 0 s']
    assert box.run_reframe(['echo', 'x'], dict(os.environ)) == (0, ['x'])


# The campaign ---------------------------------------------------------------

class Campaign:
    """A box whose sessions are made up."""

    def __init__(self, folder, faults):
        self.folder = self.perflog_folder = folder
        self.faults = faults
        self.broken, self.seen = [], []

    def run_session_with_fault(self, one, run, fault):
        self.seen.append(one.number)
        if self.broken and self.broken[0] == one.number:
            self.broken.pop(0)
            raise self.faults.ClusterError('n3 does not answer')
        if one.kind == 'version':
            raise self.faults.Missing('no redis-server')
        return {**session(one.number, one.kind), 'run': run}


@pytest.fixture
def campaign(faults, tmp_path, monkeypatch):
    monkeypatch.setattr(faults, 'reports_of_session',
                        lambda *a: {'every': [], 'alone': []})
    diary = faults.Diary(tmp_path / 'sessions.jsonl')
    diary.append_entry({'clean': 2, 'sessions': 2, 'after': 1,
                        'faults': ['version', 'spec'], 'first': '2026-01-01'})
    return Campaign(tmp_path, faults), diary


def test_a_cluster_that_breaks_down_costs_no_session(faults, campaign):
    box, diary = campaign
    box.broken = [2]
    with pytest.raises(faults.ClusterError, match='n3 does not answer'):
        faults.run_campaign(box, diary)
    assert [one['number'] for one in diary.sessions] == [1]
    faults.run_campaign(box, diary)                     # --resume
    # The first session of what cannot be had says so, the second is not tried.
    assert box.seen == [1, 2, 2, 3, 5, 6, 7]
    assert [one['number'] for one in diary.sessions] == [1, 2, 5, 6, 7]
    assert diary.skipped == {'version': 'no redis-server'}
    report = (box.folder / 'report.md').read_text()
    assert '| version | 0 |  |  |  |  | skipped: no redis-server |' in report
    assert '2 sessions of the campaign did not run' in report


# What a session says --------------------------------------------------------

def perflogs_of_sessions(folder):
    """A clean session, one with the fault `other`, and one with the fault `x`."""
    sessions = [session(n, kind, code=1)
                for n, kind in enumerate(['clean', 'other', 'x'])]
    for n, one in enumerate(sessions):
        perflogs_factory.write(folder, [
            {**row, 'session': one['run'], 'time': f'{one["date"]}T03:00:00Z'}
            for row in perflogs_factory.site(3, 1, days=[n])])
    return sessions


def test_a_session_is_compared_with_finished_ones(faults, tmp_path, monkeypatch):
    """Once with all, once without those of other faults."""
    clean, other, last = perflogs_of_sessions(tmp_path)
    compared = []
    judge = faults.verdict.verdict_of_records

    def noted(frame, *args):
        compared.append({*frame['session']})
        return judge(frame, *args)

    monkeypatch.setattr(faults.verdict, 'verdict_of_records', noted)
    reports = faults.reports_of_session(tmp_path, last, [clean, other])
    assert compared == [{clean['run'], other['run'], last['run']},
                        {clean['run'], last['run']}]
    assert reports['alone'][0] == report(
        'failure', 'transport',
        'OsuCollective: transport: tcp used, shared memory '
        'asked for [ran on n1]')
    # The records of a session that did not finish are in the perflogs, too.
    faults.reports_of_session(tmp_path, last, [clean])
    assert compared[2:] == [{clean['run'], last['run']}] * 2


@pytest.mark.parametrize('words, node, answer', [
    (['node n3 of box (3 cases)', 'the clock of n2 is wrong'], 'n2',
     'yes, and n3'),
    (['job 7 on n2,n4 ran'], 'n2', 'among n2, n4'),
    (['job 7 on n1,n3'], 'n2', 'no')])
def test_the_node_that_is_named(faults, words, node, answer):
    lines = [faults.Report('failure', 'x', text) for text in words]
    assert faults.node_mention_in_reports(lines, node) == answer


# The report ---------------------------------------------------------------

def test_the_report_of_a_good_campaign(faults):
    lines, good = faults.campaign_tables(
        [*(session(n, 'clean') for n in range(1, 6)),
         session(6, 'clock', [report('failure', 'clock', 'the clock of n1 is wrong')]),
         session(7, 'after')], {'version': 'no redis-server'})
    text = '\n'.join(lines)
    assert good
    assert ('| clock | 1 | 1 | failure: clock | yes | 1 | the clock of n1 is '
            'wrong |') in text
    assert '| version | 0 |  |  |  |  | skipped: no redis-server |' in text
    assert 'Clean sessions before: 5, false alarms: 0' in text


def test_what_was_not_found_and_a_false_alarm_are_no_success(faults):
    assert not faults.campaign_tables([session(1, 'spec')], {})[1]
    lines, good = faults.campaign_tables(
        [session(1, 'clean'), session(2, 'clean', [worse('2026-01-03')])], {})
    assert not good
    assert 'Clean sessions before: 2, false alarms: 1' in lines
    # What a fault left behind, and the way back from it, are none.
    back = report('changed', 'spec hash', 'spec hash b -> a')
    lines, good = faults.campaign_tables(
        [session(8, 'after', [worse('2026-01-07'), back]),
         session(9, 'after', [worse('2026-01-07')])], {})
    assert good, lines


# The command --------------------------------------------------------------

def call(*words):
    return subprocess.run([sys.executable, PATH, *map(str, words)], text=True,
                          capture_output=True)


def test_dry_run_starts_nothing(tmp_path):
    done = call('--dry-run', '--sessions', 2, '--only', 'clock', '--dir',
                tmp_path / 'none')
    assert done.returncode == 0, done.stderr
    assert '52 sessions:\n  clean: 30\n  clock: 2\n  after: 20' \
        in done.stdout
    assert 'clock: a clock two minutes ahead' in done.stdout
    assert 'spec:' not in done.stdout
    assert not (tmp_path / 'none').exists()


def test_a_diary_is_read_again_and_never_overwritten(faults, tmp_path):
    path = tmp_path / 'sessions.jsonl'
    diary = faults.Diary(path)
    diary.append_entry({'clean': 1, 'sessions': 1, 'after': 0, 'faults': ['spec'],
                        'first': '2026-01-01'})
    diary.append_entry(session(1, 'clean'))
    with open(path, 'a') as out:
        out.write('{"half')                 # killed
    again = faults.Diary(path).read()
    again.append_entry(session(2, 'spec'))
    assert [one['number'] for one in again.sessions] == [1, 2]
    assert len(faults.Diary(path).read().lines) == 3
    done = call('--dir', tmp_path)
    assert done.returncode == 2
    assert (
        'already has 2 sessions' in done.stderr and '--resume' in done.stderr
    )


def test_without_a_campaign_there_is_nothing_to_resume(tmp_path):
    done = call('--resume', '--dir', tmp_path)
    assert done.returncode == 2 and 'no campaign in' in done.stderr
