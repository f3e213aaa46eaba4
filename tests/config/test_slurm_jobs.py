"""Slurm jobs of a session, by their stage folder: cancelled, and reported."""
from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from cli.session import process
from config.sessions import slurm_jobs
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


def test_jobs_are_cancelled_if_reframe_is_killed(stage, capsys):
    code, ended_by = process.run_reframe(
        ['sh', '-c', 'kill -KILL $$'], {}, [], stage)
    assert (code, ended_by) == (-signal.SIGKILL, '')
    assert (stage.parent / 'cancelled').read_text() == '7 8\n'
    assert 'cancelled Slurm jobs that ReFrame left: 7 8' in ''.join(
        capsys.readouterr())


def test_jobs_go_on_until_reframe_has_ended_by_itself(stage):
    assert process.run_reframe(['sh', '-c', 'exit 1'], {}, [], stage) == (1, '')
    assert not (stage.parent / 'cancelled').exists()


@pytest.mark.parametrize('pause, killed', [(0.1, False), (2.2, True)])
def test_only_a_second_signal_that_comes_later_kills(stage, pause, killed, tmp_path):
    """ReFrame needs a while to cancel its jobs."""
    ready = tmp_path / 'ready'

    def send_signals():
        while not ready.exists():
            time.sleep(0.05)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(pause)
    sender = threading.Thread(target=send_signals)
    sender.start()
    code, ended_by = process.run_reframe(
        ['sh', '-c', f'trap "sleep 4; exit 3" TERM; touch {ready}; '
         'while :; do sleep 0.1; done'], {}, [], stage)
    sender.join()
    assert (code, ended_by) == (-signal.SIGKILL if killed else 3, 'SIGTERM')
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
