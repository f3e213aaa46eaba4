"""Every case that a session meant to run ends as a record."""
from __future__ import annotations

import contextlib
import html
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from conftest import OSU, two_cpus

from cli.session import account
from tests.checks.test_faults import another_site, faulty  # noqa: F401

BROKEN = '''
for _env in site_configuration['environments']:
    _env['cc'] = 'false'
'''
STARTUP = [*OSU, '-n', 'OsuStartup', '-E', 'program == "osu_hello"']


def refused(suite) -> dict[str, str]:
    """Guard of each case that is completed = 0, by program."""
    return {r['program']: r['guard'] for r in suite.records
            if r['metric'] == 'completed'}


def plan(suite) -> dict:
    """The plan of the newest session."""
    return json.loads(max((suite.tmp / 'perflogs').glob(
        '*/sessions/*.json')).read_text())


def failed_by(page: str) -> int:
    """Test cases that failed or were not run, by the line of a page."""
    [line] = re.findall('^.*index.html: .*$', page, re.M)
    return sum(map(int, re.findall(r'(\d+) (?:failed|not run)', line)))


def page_says(suite) -> tuple[int, int]:
    """Test cases that failed or were not run, by the page, and the exit code
    of its command."""
    done = suite.plumb('report')
    return failed_by(done.stdout), done.returncode


def test_a_broken_compile_after_a_good_run(suite, tmp_path):
    done = suite.plumb('run', '--bringup', '--', *STARTUP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert failed_by(done.stdout) == 0
    another_site(suite, tmp_path, BROKEN)
    done = suite.plumb('run', '--bringup', '--', *STARTUP)
    assert done.returncode == 1
    assert '1 not_run of 1 test case' in done.stdout
    for words in ('build: ', 'rfm_build.err',
                  'not run: a build that it needs failed'):
        assert words in done.stdout
    assert refused(suite) == {'osu_hello': 'build'}
    assert failed_by(done.stdout) == 1
    assert 'guard: build' in (suite.tmp / 'report/index.html').read_text()
    # The same case: what is fixed is fixed.
    suite.variables.pop('PLUMBLINE_SITE')
    done = suite.plumb('run', '--bringup', '--', *STARTUP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert page_says(suite) == (0, 0)


@two_cpus
def test_a_missing_reference(faulty):               # noqa: F811
    faulty.write_references({'complete': True})
    done = faulty.run('none')
    assert done.returncode == 1
    assert refused(faulty) == {'osu_latency': 'reference'}
    assert page_says(faulty) == (1, 1)
    # The page says what the table says, and not only the guard's name.
    [file] = (faulty.tmp / 'perflogs').glob('*/sessions/*.reasons')
    [message] = map(json.loads, file.read_text().splitlines())
    assert message['guard'] == 'reference' and message[
        'reason'
    ] in html.unescape((faulty.tmp / 'report/index.html').read_text())


def test_a_time_out_under_the_local_scheduler(faulty):      # noqa: F811
    """After good output."""
    done = faulty.run('time_limit', '-Sbringup=1', '-Stime_limit=6s')
    assert done.returncode == 1 and 'job timed out' in done.stdout
    assert refused(faulty) == {'osu_latency': 'time_limit'}
    assert page_says(faulty) == (1, 1)


def test_an_error_in_setup(suite, tmp_path):
    suite.plumb('env')
    check = tmp_path / 'checks' / 'broken.py'
    check.parent.mkdir()
    check.write_text('''
import reframe as rfm
from reframe.core.builtins import parameter, run_after
from checks.osu.osu import OsuStartup as Base

class OsuBroken(Base, special=True):
    program = parameter(['osu_hello'], inherit_params=False)

@rfm.simple_test
class InSetup(OsuBroken):
    @run_after('setup')
    def breaks(self):
        raise OSError('the room is dark')

@rfm.simple_test
class Skipped(OsuBroken):
    @run_after('setup')
    def breaks(self):
        self.skip('not today')
''')
    done = suite.reframe('-r', '-c', str(check), '-Sbringup=1')
    assert done.returncode == 1, done.stdout + done.stderr
    result = {(r['check'], r['guard'], r['source'], r['num_nodes'])
              for r in suite.records if r['metric'] == 'completed'}
    assert result == {('InSetup', 'setup', 'embedded', ''),
                      ('Skipped', 'skipped', 'embedded', '')}
    done = suite.reframe('-r', '-c', str(check), '-n', 'Skipped',
                         '-Sbringup=1')
    assert done.returncode == 1
    assert 'never ran (skipped)' in done.stderr


def started(suite, *args):
    """A session whose first case hangs; it has written its plan."""
    job = suite.start('-r', *OSU, '-n', 'OsuPt2pt', '-E', 'program in '
                      '("osu_latency", "osu_bw")', '-p', '.*-omb',
                      '-Sbringup=1', *args, FAULT='time_limit')
    deadline = time.monotonic() + 60
    while not list((suite.tmp / 'work/stage').glob(
            '**/run.1.out')):
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.2)
    return job


@pytest.fixture
def hanging(faulty):                                # noqa: F811
    prefix = Path(faulty.variables['OMB_PREFIX'])
    (prefix / 'osu_bw').symlink_to(prefix / 'osu_latency')
    return faulty


@pytest.mark.parametrize('policy', ['async', 'serial'])
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_cancelled_session(hanging, number, policy):
    job = started(hanging, f'--exec-policy={policy}')
    assert {c['program'] for c in plan(hanging)['cases']} == {
        'osu_latency', 'osu_bw'}
    job.send_signal(number)
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 1, out
    assert refused(hanging) == {'osu_latency': 'cancelled',
                                'osu_bw': 'cancelled'}
    done = hanging.plumb('report')
    assert done.returncode == 1
    assert '0 failed, 2 not run' in done.stdout
    assert 'was cut short: 2 test cases did not run. To resume' in done.stdout


def test_a_killed_session_owes_its_cases(hanging):
    job = started(hanging)
    # What still runs is not missing yet.
    done = hanging.plumb('report')
    assert 'no records' in done.stderr
    job.kill()
    job.communicate(timeout=60)
    assert not hanging.records
    assert page_says(hanging) == (2, 1)
    assert 'planned, but the session ended before it ran' in (
        hanging.tmp / 'report/index.html').read_text()
    # The job ignores SIGTERM, and nobody is left to end it.
    for process in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if str(hanging.tmp) in os.readlink(process / 'cwd'):
                os.kill(int(process.name), signal.SIGKILL)


def test_plumb_run_tells_of_a_reframe_that_was_killed(suite, tmp_path):
    """The table and the exit code need no report of ReFrame."""
    work = Path(suite.variables['PLUMBLINE_WORK'])
    real = (work / 'bin').resolve()
    (work / 'bin').unlink()
    (work / 'bin').mkdir()
    (work / 'bin' / 'reframe').write_text(
        f'#!/bin/sh\n"{real}/reframe" "$@" & me=$!\n'
        f'until grep -rqs osu_hello {tmp_path}/perflogs/*/*/*.csv; do '
        'sleep 0.2; done\nkill -KILL $me\n')
    (work / 'bin' / 'reframe').chmod(0o755)
    done = suite.plumb('run', '--bringup', '--', *OSU, '-n', 'OsuStartup',
                       '--exec-policy=serial')
    assert done.returncode == 1
    assert '1 not_run of 2 test cases' in done.stdout, done.stdout
    assert 'planned, but the session ended before it ran' in done.stdout
    assert failed_by(done.stdout) == 1


def test_perflogs_that_cannot_be_written(suite):
    (suite.tmp / 'perflogs').write_text('no folder')
    done = suite.reframe('-r', *STARTUP, '-Sbringup=1')
    assert done.returncode == 1
    assert 'nothing was run' in done.stderr
    assert 'Traceback' not in done.stdout + done.stderr


def test_reframes_pipeline_is_refused(suite):
    done = suite.plumb('run', '--ci-generate=pipeline.yml')
    assert done.returncode == 2
    assert 'run ./plumb nightly --print gitlab' in done.stderr


@pytest.mark.parametrize('words, action', [
    ([], ''), (['-n', 'OsuPt2pt', '-v'], ''), (['-Srepetitions=2'], ''),
    (['--dry-run'], '--dry-run'), (['-n', 'x', '-lC'], '-l'),
    (['-L'], '-L'), (['--ci-generate=f'], '--ci-generate'),
    (['--describe', '-t', 'x'], '--describe'), (['--no-such'], ''),
])
def test_actions_that_are_no_run(words, action):
    assert account.find_non_run_action(words) == action
