"""Two runs at a time, and a run that is ended: nothing shared, nothing left.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import signal
import subprocess

import pytest
from conftest import LIMIT, OSU, ROOT, command_lines, until
from reframe.core.schedulers.slurm import SlurmJobScheduler

from cli.session import process as session
from config.sessions import lock

#: A case of some 20 minutes, unless it is ended.
LONG = [*OSU, '-n', 'OsuPt2pt', '-E', 'program == "osu_latency"',
        '-Srepetitions=400', '-Stime_limit=30m']
SHORT = [*OSU, '-n', 'OsuStartup', '-E', 'program == "osu_init"']


def start(suite, *args, **more):
    return subprocess.Popen(
        [str(ROOT / 'plumb'), 'run', *args], text=True,
        env={**os.environ, **suite.variables, **more},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def processes(suite):
    """Command lines of what runs in the suite's folder."""
    return [line for line in command_lines() if str(suite.tmp) in line]


def measuring(suite):
    """A run whose MPI program has begun."""
    job = start(suite, '--', *LONG)
    try:
        until(lambda: any('/osu_latency ' in line and 'mpirun' not in line
                          for line in processes(suite)), job)
    except BaseException:
        job.kill()
        raise
    return job


# Two runs -------------------------------------------------------------------

def test_a_second_run_waits_or_says_for_whom_and_shares_no_stage(suite):
    """With another lock, as on a site with a scheduler, both go on in one
    $PLUMBLINE_WORK."""
    with lock.hold_file_lock(tmp := lock.Path(suite.variables['PLUMBLINE_LOCK'])):
        refused = suite.plumb('run', '--no-wait', '--', *SHORT)
        assert refused.returncode == 2
        assert f'measured by pid {os.getpid()} of' in refused.stderr
        waiting = start(suite, '--', *SHORT)
        assert str(tmp) in waits(waiting)
        assert not (suite.tmp / 'perflogs').exists()
        other = start(suite, '--', *SHORT, PLUMBLINE_LOCK=str(suite.tmp / 'lock1'))
        until(lambda: list(suite.tmp.glob('perflogs/sessions/*.log')), other)
    for job in waiting, other:
        out, _ = job.communicate(timeout=LIMIT)
        assert job.returncode == 0 and ' of 1 test case · ' in out, out
    reports = sorted(suite.tmp.glob('perflogs/sessions/*.json'))
    stages = {json.loads(path.read_text())['session_info']['prefix_stage']
              for path in reports}
    assert len(reports) == len(stages) == 2
    assert (suite.tmp / 'work' / 'sessions' / 'last').resolve().name in {
        path.stem for path in reports}
    assert len([r for r in suite.records if r['metric'] == 'init_time']) == 2


def test_plain_reframe_waits_and_a_listing_leaves_nothing(suite, tmp_path):
    path = lock.Path(suite.variables['PLUMBLINE_LOCK'])
    folder = tmp_path / 'temporary'
    folder.mkdir()
    with lock.hold_file_lock(path):
        assert 'osu_init' in suite.reframe('-l', *SHORT, TMPDIR=str(folder)).stdout
        assert not [*folder.iterdir()], 'no log among temporary files'
        dry = suite.reframe('--dry-run', *SHORT)
        assert 'waiting for' not in dry.stdout + dry.stderr
        assert not [*(suite.tmp / 'perflogs').rglob('*.*')], 'neither has a record'
        job = suite.start('-r', '-Sbringup=1', '--mode=quick', *SHORT)
        waits(job)
        assert not list(suite.tmp.glob('perflogs/*/*/*.log'))
    until(lambda: held_by(path) != os.getpid(), job)
    with pytest.raises(lock.LockError, match='measured by .*: reframe -r '), \
            lock.hold_file_lock(path, limit=0):
        pass
    out, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 0 and 'PASSED' in out, out


def waits(job):
    """What a run says until it waits for this process."""
    output = ''
    while 'waiting for' not in output:
        line = job.stdout.readline()
        assert line, output
        output += line
    assert f'waiting for pid {os.getpid()} of' in output
    return output


def held_by(path):
    return json.loads(path.read_text().partition('\n')[0] or '{}').get('pid')


def test_old_sessions_are_removed_and_live_ones_are_not(tmp_path,
                                                        monkeypatch):
    monkeypatch.setattr(session, 'WORK', tmp_path)
    monkeypatch.delenv('RFM_STAGE_DIR', raising=False)
    monkeypatch.delenv('RFM_OUTPUT_DIR', raising=False)
    system = {'stagedir': str(tmp_path / 'scratch')}
    stack = contextlib.ExitStack()
    names = iter(f'2026010{n}T000000Z-abcdef' for n in range(1, 10))
    monkeypatch.setattr(session.session_id, 'new_session_id',
                        lambda *_: next(names))
    (tmp_path / 'scratch' / 'local').mkdir(parents=True)    # plain reframe's
    for number in range(8):
        one = session.create_session_folders(system)
        opened = stack.enter_context(one) if number == 1 else one.__enter__()
        assert opened.stage.parent == tmp_path / 'scratch'
        assert opened.output.parent == tmp_path / 'output'
        opened.stage.mkdir()
        if number != 1:
            one.__exit__(None, None, None)
    left = sorted(path.name[:8] for path in (tmp_path / 'scratch').iterdir())
    assert left == ['20260102', *(f'2026010{n}' for n in range(4, 9)),
                    'local']
    assert len([*(tmp_path / 'sessions').glob('2026*')]) == 6
    stack.close()


def test_dry_runs_remove_no_session_that_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(session, 'WORK', tmp_path)
    monkeypatch.delenv('RFM_STAGE_DIR', raising=False)
    names = iter(f'202601{n}T000000Z-abcdef' for n in range(10, 99))
    monkeypatch.setattr(session.session_id, 'new_session_id',
                        lambda *_: next(names))
    made = {True: [], False: []}
    for measures in [True] + [False] * (session.KEPT + 2) + [True] * 2:
        with session.create_session_folders({}, runs_jobs=measures) as one:
            one.stage.mkdir(parents=True)
        made[measures].append(one.stage)
    assert all(stage.exists() for stage in made[True])
    assert [stage.exists() for stage in made[False]] == [
        False] * 2 + [True] * session.KEPT


# A run that is ended --------------------------------------------------------

def test_a_run_that_is_ended_leaves_nothing_and_says_so(suite):
    """A second signal would otherwise end what follows the first: table and page. They
    have no heading of an earlier session."""
    assert re.search('^Session ', start(suite, '--', *SHORT).communicate(
        timeout=LIMIT)[0], re.M)
    job = measuring(suite)
    job.send_signal(signal.SIGTERM)
    until(lambda: 'cancelling the jobs' in job.stdout.readline(), job)
    with contextlib.suppress(ProcessLookupError):
        job.send_signal(signal.SIGTERM)
    out, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 1 and 'Ended by SIGTERM' in out, out
    assert re.search(r'^not_run +osu_latency \(embedded\) intra_node ', out, re.M), out
    assert not re.search('^Session |Traceback', out, re.M) and not processes(suite), out


def test_a_run_that_is_killed_takes_reframe_and_its_jobs_along(suite):
    job = measuring(suite)
    job.kill()
    job.communicate(timeout=LIMIT)
    until(lambda: not processes(suite))
    # ReFrame holds it until it has ended, which is after its jobs.
    with lock.hold_file_lock(lock.Path(suite.variables['PLUMBLINE_LOCK']),
                             limit=LIMIT):
        pass


@pytest.mark.parametrize('site', [
    path.parent.name for path in ROOT.glob('site-configs/*/system.py')
    if path.parent.name not in ('local', 'devcluster')])
def test_the_account_of_a_person_reaches_sbatch(site, tmp_path, monkeypatch):
    """ReFrame removes every SBATCH_* that a partition does not list."""
    system, = runpy.run_path(str(ROOT / 'site-configs' / site / 'system.py')
                             )['site_configuration']['systems']
    sbatch = tmp_path / 'sbatch'
    sbatch.write_text('#!/bin/sh\necho "Submitted batch job 1 of '
                      '$SBATCH_ACCOUNT,$SBATCH_QOS"\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr('reframe.core.runtime.temp_environment',
                        contextlib.nullcontext)
    for name in ('ACCOUNT', 'QOS'):
        monkeypatch.setenv(f'SBATCH_{name}', f'my_{name}'.lower())

    class Scheduler(SlurmJobScheduler):
        options = {}

        def get_option(self, name):
            return self.options.get(
                name, 60 if name == 'job_submit_timeout' else [])

        def log(self, *words):
            pass

    for partition in system['partitions']:
        Scheduler.options = partition['sched_options']
        assert 'of my_account,\n' in Scheduler().sbatch([]).stdout
