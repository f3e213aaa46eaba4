"""bench/faults.py: its faults, how it continues, and the table of what was reported."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import types

import pytest

from checks.core import features
from tests.conftest import ROOT

PATH = ROOT / 'bench' / 'faults.py'


@pytest.fixture(scope='module')
def faults():
    path = [*sys.path]
    sys.path.insert(0, str(PATH.parent))
    import faults
    yield faults
    sys.path[:] = path


class FakeBox:
    """A cluster whose sessions report what the test says."""

    def __init__(self, folder, faults):
        self.folder, self.faults, self.env = folder, faults, {}
        self.seen, self.broken = [], []
        self.codes = {'clock': 1}

    def run_session(self, date, perflogs, fault):
        name = next((name for name, one in self.faults.FAULTS.items() if one is fault),
                    'clean')
        perflogs.mkdir(parents=True, exist_ok=True)
        self.seen.append((name, date))
        if self.broken and self.broken.pop(0):
            raise self.faults.ClusterError('n3 does not answer')
        if name == 'version':
            raise self.faults.Missing('no redis-server')
        return name, self.codes.get(name, 0), 'the clock of n1 is wrong'


@pytest.fixture
def campaign(faults, tmp_path, monkeypatch):
    reports = {'spec': [faults.Report('changed', 'spec', 'spec hash a -> b')],
               'rate-half': [faults.Report('regression', 'bandwidth',
                                           'node n1 of box: +50 %', '2020-01-01')]}
    monkeypatch.setattr(faults, 'reports_of_session',
                        lambda env, perflogs, session: reports.get(session, []))
    box = FakeBox(tmp_path, faults)
    return lambda: faults.Campaign(tmp_path, box, 2, 3), box


def test_a_campaign_continues_and_repeats_nothing(faults, campaign):
    make, box = campaign
    box.broken = [False, True]
    names = ['version', 'spec', 'clock', 'rate-half']
    with pytest.raises(faults.ClusterError):
        make().run(names)
    make().run(names)
    assert [name for name, _ in box.seen] == [
        'clean', 'clean', 'clean', 'version', 'spec', 'clock', *['rate-half'] * 3]
    before = len(box.seen)
    again = make()
    again.run(names)
    assert len(box.seen) == before
    text = (box.folder / 'report.md').read_text()
    assert '| version |  |  |  | skipped: no redis-server |' in text
    assert '| spec | 1 | changed: spec |  | spec hash a -> b |' in text
    assert '| clock | 1 | session: exit code | yes | the clock of n1 is wrong |' in text
    # It began before the fault.
    assert '| rate-half | not |  | no | nothing |' in text
    lines, good = faults.campaign_tables(again.results)
    assert not good and 'Clean sessions with a verdict: 0, false alarms: 0' in lines


def test_a_false_alarm_is_no_success(faults):
    lines, good = faults.campaign_tables([
        {'kind': 'clean', 'date': '2026-01-03', 'judged': True, 'reports': [
            ['regression', 'latency', 'node n2 of box: +80 %', '2026-01-03']]}])
    assert not good and '- 2026-01-03: regression: node n2 of box: +80 %' in lines


@pytest.mark.parametrize('texts, answer', [
    (['node n1 of box (3 test cases)'], 'yes'),
    (['job 7 on n1,n3'], 'among n1, n3'), (['job 7 on n2'], 'no')])
def test_the_node_that_is_named(faults, texts, answer):
    reports = [faults.Report('failure', 'x', text) for text in texts]
    assert faults.node_is_named(reports, 'n1') == answer


def test_the_faults_are_listed(tmp_path):
    done = subprocess.run([sys.executable, PATH, '--list', '--only', 'clock', '--dir',
                           tmp_path / 'none'], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('clock: a clock two minutes ahead')
    assert not (tmp_path / 'none').exists()


def test_the_site_is_sound(tmp_path, faults):
    import injection
    box = injection.Box(tmp_path, None)
    box.site = injection.site_configuration_without_fault(box)
    features.check_site_features(box.site, 'injection.py')
    with (injection.change_osu_spec(box),
          injection.prefix_rank_command(box, 'taskset', '-c', '0')):
        features.check_site_features(box.site, 'injection.py')
    assert box.site != injection.site_configuration_without_fault(box)


def test_a_session_that_hangs_is_ended(faults, tmp_path):
    import injection
    (tmp_path / 'reports').mkdir()
    box = injection.Box(tmp_path, types.SimpleNamespace(
        box=lambda *words, **more: subprocess.Popen(words[2:], **more)))
    code, output = box.run_reframe(['sleep', '60'], {}, 0.2)
    assert code == -signal.SIGTERM
    assert output == ['ended by bench/faults.py after 0 s']
    assert box.run_reframe(['echo', 'x'], dict(os.environ)) == (0, ['x'])
