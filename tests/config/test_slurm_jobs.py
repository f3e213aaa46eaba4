"""Slurm jobs of a session, by their stage folder: cancelled."""
from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from conftest import LIMIT, ROOT, until

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
    (tmp_path / 'jobs').write_text(f'7|{stage}/cpu/Osu\n8|{stage}/cpu/Nccl\n'
                                   f'9|{tmp_path}/other\n')
    return stage


#: Runs a command in place of ReFrame; prints exit code and signal. In a process
#: of its own, because what is left of ReFrame and all other children is ended.
RUN = '''
import sys
from pathlib import Path
from cli.session import process
seconds, stage, *command = sys.argv[1:]
process.SAME_SIGNAL_SECONDS = float(seconds)
# No signal comes after ReFrame has ended.
process.ReceivedSignals.wait_for_repetitions = lambda received: None
with open('/dev/null') as lock:
    ended = process.run_reframe(
        process.Session(Path(stage), Path(stage), Path(stage), '', lock.fileno()),
        command, {}, measures=False, has_slurm_jobs=True)
print((ended.code, ended.ended_by))
'''


def start(stage, shell, same_signal_seconds='2'):
    return subprocess.Popen(
        [sys.executable, '-c', RUN, same_signal_seconds, stage, 'sh', '-c', shell],
        text=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_jobs_are_cancelled_if_reframe_is_killed(stage):
    text, _ = start(stage, 'kill -KILL $$').communicate(timeout=LIMIT)
    assert "(-9, '')" in text, text
    assert 'cancelled Slurm jobs that ReFrame left: 7 8' in text
    assert (stage.parent / 'cancelled').read_text() == '7 8\n'


def test_jobs_go_on_if_reframe_has_ended_by_itself(stage):
    text, _ = start(stage, 'exit 1').communicate(timeout=LIMIT)
    assert "(1, '')" in text, text
    assert not (stage.parent / 'cancelled').exists()


@pytest.mark.parametrize('same_signal_seconds, code', [(str(LIMIT), 3), ('0', -9)])
def test_only_a_second_signal_that_comes_later_kills(
        stage, tmp_path, same_signal_seconds, code):
    """ReFrame needs a while to cancel its jobs: here until a file exists."""
    job = start(stage, f'trap "until [ -e {tmp_path}/go ]; do sleep 0.1; done; exit 3" '
                f'TERM; touch {tmp_path}/ready; while :; do sleep 0.1; done',
                same_signal_seconds)
    until((tmp_path / 'ready').exists, job)
    job.send_signal(signal.SIGTERM)
    until(lambda: 'cancelling the jobs' in job.stdout.readline(), job)
    job.send_signal(signal.SIGTERM)
    if code == 3:
        (tmp_path / 'go').touch()
    text, _ = job.communicate(timeout=LIMIT)
    assert f"({code}, 'SIGTERM')" in text, text
    assert (stage.parent / 'cancelled').read_text() == '7 8\n'


