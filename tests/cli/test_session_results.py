"""Every test case that a session began ends as a record."""
from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest
from conftest import LIMIT, OSU, until

from cli import __main__
from cli.session import commands, reframe_options
from cli.setup.venv import SetupError
from postprocess import records
from postprocess.regressions import verdict
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


def failed_by(page: str) -> int:
    """Test cases that failed or were not run, by the line of a page."""
    [line] = re.findall('^.*index.html: .*$', page, re.M)
    return sum(map(int, re.findall(r'(\d+) (?:fail|not_run)\b', line)))


def verdict_of(suite, capsys) -> tuple[int, str]:
    """Exit code and output of the verdict."""
    code = verdict.main(['--perflogs', str(suite.tmp / 'perflogs')])
    return code, capsys.readouterr().out


def test_a_broken_compile_before_a_good_run(suite, tmp_path, capsys):
    another_site(suite, tmp_path, BROKEN)
    done = suite.plumb('run', '--bringup', '--', *STARTUP)
    assert done.returncode == 1
    assert '1 not_run of 1 test case' in done.stdout
    for words in 'rfm_build.err', 'not run: a build that it needs failed':
        assert words in done.stdout
    assert refused(suite) == {'osu_hello': 'build'}
    assert failed_by(done.stdout) == 1
    assert 'guard: build' in (suite.tmp / 'report/index.html').read_text()
    # The same case: what is fixed is fixed.
    suite.variables.pop('PLUMBLINE_SITE')
    done = suite.reframe('-r', '-Sbringup=1', '--mode=quick', *STARTUP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdict_of(suite, capsys)[0] == 0


def test_a_time_out_under_the_local_scheduler(faulty, capsys):      # noqa: F811
    """After good output."""
    done = faulty.run('time_limit', '-Sbringup=1', '-Stime_limit=6s')
    assert done.returncode == 1 and 'job timed out' in done.stdout
    assert refused(faulty) == {'osu_latency': 'time_limit'}
    code, text = verdict_of(faulty, capsys)
    assert code == 1 and 'FAILED: 1 test case failed' in text, text


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
    assert result == {('InSetup', 'setup', 'embedded', '1'),
                      ('Skipped', 'skipped', 'embedded', '1')}


def started(suite, *args):
    """A session whose first test case hangs."""
    job = suite.start('-r', *OSU, '-n', 'OsuPt2pt', '-E', 'program in '
                      '("osu_latency", "osu_bw")', '-p', '.*-omb',
                      '-Sbringup=1', *args, FAULT='time_limit')
    until(lambda: list((suite.tmp / 'work/stage').glob('**/run.1.out')), job)
    return job


@pytest.fixture
def hanging(faulty):                                # noqa: F811
    prefix = Path(faulty.variables['OMB_PREFIX'])
    (prefix / 'osu_bw').symlink_to(prefix / 'osu_latency')
    return faulty


@pytest.mark.parametrize('number, policy', [
    (signal.SIGINT, 'async'), (signal.SIGTERM, 'serial')])
def test_a_cancelled_session(hanging, capsys, number, policy):
    job = started(hanging, f'--exec-policy={policy}')
    job.send_signal(number)
    out, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 1, out
    # ReFrame's serial policy does not list the test cases that it never reached.
    ended = refused(hanging)
    assert ended and set(ended.values()) == {'cancelled'}
    assert len(ended) == (2 if policy == 'async' else 1)
    code, text = verdict_of(hanging, capsys)
    assert code == 1 and 'CUT SHORT: ' in text, text


def test_a_killed_session_is_cut_short(hanging):
    """What still runs is not."""
    def states() -> list[tuple[bool, bool]]:
        frame = records.sessions(hanging.tmp / 'perflogs')
        return [(bool(row.running), bool(row.cut_short)) for row in frame.itertuples()]

    job = started(hanging)
    assert states() == [(True, False)]
    job.kill()
    job.communicate(timeout=LIMIT)
    assert states() == [(False, True)]
    # The job ignores SIGTERM, and nobody is left to end it.
    for process in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if str(hanging.tmp) in os.readlink(process / 'cwd'):
                os.kill(int(process.name), signal.SIGKILL)


def test_plumb_run_tells_of_a_reframe_that_was_killed(suite, tmp_path, capsys):
    """The table and the exit code need no report of ReFrame."""
    work = Path(suite.variables['PLUMBLINE_WORK'])
    real = (work / 'bin').resolve()
    (work / 'bin').unlink()
    (work / 'bin').mkdir()
    (work / 'bin' / 'reframe').write_text(
        f'#!/bin/sh\n"{real}/reframe" "$@" & me=$!\n'
        f'until grep -qs osu_hello {tmp_path}/perflogs/*/*/OsuStartup.log; do '
        'sleep 0.2; done\nkill -KILL $me\nwait $me\necho out of memory\nexit 9\n')
    (work / 'bin' / 'reframe').chmod(0o755)
    done = suite.plumb('run', '--bringup', '--', *OSU, '-n', 'OsuStartup')
    assert done.returncode == 1, done.stdout + done.stderr
    log = re.search(r'^ReFrame ended early with exit code 9; its output: (.*)\n'
                    r'(?:  .*\n)*  out of memory$', done.stdout, re.MULTILINE)
    assert log and Path(log[1]).read_text().endswith('out of memory\n')
    # The measured values are sound, but the list of its other test cases is unknown.
    assert re.search('^CUT SHORT: ', done.stdout, re.MULTILINE)
    assert verdict_of(suite, capsys)[1].splitlines()[-1].count('CUT SHORT')


def test_the_cause_is_printed_if_reframe_ends_early(suite, tmp_path):
    another_site(suite, tmp_path, BROKEN)
    done = suite.plumb('run', '--bringup', '--maxfail=1', '--', *STARTUP)
    assert done.returncode == 1, done.stdout + done.stderr
    log = re.search(r'^ReFrame ended early with exit code 1; its output: (.*)\n'
                    '  .*(run session stopped: .*)$', done.stdout, re.MULTILINE)
    assert log and log[2] in Path(log[1]).read_text(), done.stdout


def test_reframes_pipeline_is_refused():
    with pytest.raises(SetupError, match='run ./plumb nightly schedule gitlab'):
        commands.run(__main__.parse_command_line(
            ['run', '--ci-generate=pipeline.yml']))


@pytest.mark.parametrize('words, action', [
    ([], ''), (['-n', 'OsuPt2pt', '-v'], ''), (['-Srepetitions=2'], ''),
    (['--dry-run'], '--dry-run'), (['-n', 'x', '-lC'], '-l'),
    (['-L'], '-L'), (['--ci-generate=f'], '--ci-generate'),
    (['--describe', '-t', 'x'], '--describe'), (['--no-such'], ''),
])
def test_actions_that_are_no_run(words, action):
    assert reframe_options.find_non_run_action(words) == action
