"""Slurm jobs of a session, by their stage folder: cancelled, and reported."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, until
from reframe.core.exceptions import JobBlockedError

from cli import __main__
from config.sessions import runner, slurm_jobs
from config.sessions.slurm_jobs import Job, pending_jobs_text

#: Lists the jobs of a file; scancel removes them from it.
TOOLS = {'squeue': 'cat jobs', 'scancel': 'echo "$*" >>cancelled; : >jobs'}


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """The stage folder of a session with a job that runs and one that waits."""
    for name, line in TOOLS.items():
        path = tmp_path / 'bin' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\ncd {tmp_path}\n{line}\n')
        path.chmod(0o755)
    monkeypatch.setenv('PATH', str(path.parent), prepend=os.pathsep)
    stage = tmp_path / 'stage'
    (tmp_path / 'jobs').write_text(f'7|RUNNING|None|{stage}/cpu/Osu\n'
                                   f'8|PENDING|Priority|{stage}/cpu/Nccl\n')
    return stage


#: Runs a command in place of ReFrame; prints exit code and signal. In a process
#: of its own, because what is left of ReFrame and all other children is ended.
RUN = '''
import sys
from pathlib import Path
from cli.session import process
stage, *command = sys.argv[1:]
print(process.run_reframe(command, {}, [], Path(stage)))
'''


def start(stage, shell):
    return subprocess.Popen(
        [sys.executable, '-c', RUN, stage, 'sh', '-c', shell], text=True, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_jobs_are_cancelled_if_reframe_is_killed(stage):
    text, _ = start(stage, 'kill -KILL $$').communicate(timeout=60)
    assert "(-9, '')" in text, text
    assert 'cancelled Slurm jobs that ReFrame left: 7 8' in text
    assert (stage.parent / 'cancelled').read_text() == '7 8\n'


def test_jobs_go_on_if_reframe_has_ended_by_itself(stage):
    text, _ = start(stage, 'exit 1').communicate(timeout=60)
    assert "(1, '')" in text, text
    assert not (stage.parent / 'cancelled').exists()


@pytest.mark.parametrize('pause, code', [(0.1, 3), (2.2, -9)])
def test_only_a_second_signal_that_comes_later_kills(stage, tmp_path, pause, code):
    """ReFrame needs a while to cancel its jobs: here until a file exists."""
    job = start(stage, f'trap "until [ -e {tmp_path}/go ]; do sleep 0.1; done; exit 3" '
                f'TERM; touch {tmp_path}/ready; while :; do sleep 0.1; done')
    until((tmp_path / 'ready').exists)
    job.send_signal(signal.SIGTERM)
    time.sleep(pause)
    job.send_signal(signal.SIGTERM)
    if code == 3:
        time.sleep(0.5)
        (tmp_path / 'go').touch()
    text, _ = job.communicate(timeout=60)
    assert f"({code}, 'SIGTERM')" in text, text
    assert (stage.parent / 'cancelled').read_text() == '7 8\n'


def test_jobs_that_wait_are_reported_with_the_reasons_of_slurm(stage, monkeypatch):
    notes: list[str] = []
    reports = slurm_jobs.PendingReports(stage, notes.append)
    reports.report_if_due()
    assert notes == []                      # not before a minute
    now = time.monotonic()
    for minutes in (1.1, 1.2, 3.2):
        monkeypatch.setattr(slurm_jobs.time, 'monotonic',
                            lambda minutes=minutes: now + 60 * minutes)
        reports.report_if_due()
    assert notes == ['1 min: 1 job waits (Priority)', '3 min: 1 job waits (Priority)']


@pytest.mark.parametrize('jobs, text', [
    ([], ''), ([Job('1', 'RUNNING', 'None')], ''),
    ([Job('1', 'PENDING', 'Resources'), Job('2', 'PENDING', 'Resources'),
      Job('3', 'PENDING', 'Priority')], '3 jobs wait (2: Resources, 1: Priority)')])
def test_the_reasons_of_jobs_that_wait_are_counted(jobs, text):
    assert pending_jobs_text(jobs) == text


def task(folder: str = '', scheduler: str = 'slurm', **extras: Any) -> Any:
    """A test case with this stage folder, of a partition with these extras."""
    return SimpleNamespace(aborted=False, check=SimpleNamespace(
        job=None, max_pending_time='1h', stagedir=folder,
        current_partition=SimpleNamespace(
            extras=extras, scheduler=SimpleNamespace(registered_name=scheduler))))


@pytest.mark.parametrize('scheduler, cancelled', [('squeue', '7\n'), ('local', '')])
def test_plain_reframe_cancels_jobs_that_it_does_not_know(
        stage, scheduler, cancelled, capsys, monkeypatch):
    """A signal came while sbatch ran; another session has another test case."""
    # The fork server of the tests is a child of this process, and does not end.
    monkeypatch.setattr(runner, 'SBATCH_TIMEOUT', 0)
    runner.cancel_jobs_of_tasks([task(f'{stage}/cpu/Osu', scheduler)])
    path = stage.parent / 'cancelled'
    assert (path.read_text() if path.exists() else '') == cancelled
    assert ('an interrupted session left: 7' in capsys.readouterr().err) == bool(
        cancelled)


@pytest.mark.parametrize('extras, options, limit', [
    ({}, [], '1h'), ({'max_pending': '30m'}, [], '30m'),
    ({'max_pending': '30m'}, ['-Smax_pending_time=2h'], '1h')])
def test_the_site_limits_the_wait_unless_the_user_does(
        extras, options, limit, monkeypatch):
    # What the user sets, ReFrame has set already.
    monkeypatch.setattr(sys, 'argv', ['reframe', '-r', *options])
    one = task(**extras)
    runner.PendingLimits().on_task_setup(one)
    assert one.check.max_pending_time == limit


def test_a_job_that_slurm_cannot_start_has_the_guard_pending():
    one = task()
    one.exc_info = (None, JobBlockedError('ReqNodeNotAvail', jobid=7), None)
    assert runner.guard_of_failed_task(one) == 'pending'


@pytest.mark.parametrize('text', ['90', '1.5h', '0m', 'h'])
def test_a_time_limit_that_reframe_cannot_read_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        __main__.parse_command_line(['nightly', '--max-pending', text])
    assert f'{text!r} is not a time such as 90m, 2h or 1h30m' in \
        capsys.readouterr().err
