"""A plan as a job script that a test runs, watches and ends."""
from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks.services.parser import Services, split_service_record
from checks.services.plan import Plan, Server
from checks.services.script import Launching, job_script_lines
from tests.conftest import LIMIT, ROOT, Store, until

SRC = ROOT / 'checks' / 'core' / 'src'

#: Configuration of a store like Redis; template.
CONFIG = '''bind {address}
port {port}
dir {data}
requirepass {password}
masterauth {password}
save ""
'''

#: The processes of one node, started without a launcher.
LOCAL = Launching([], [], True)


@functools.cache
def build_programs() -> Path:
    """The folder of the observer of a node, built as a check builds it."""
    folder = Path(tempfile.mkdtemp(prefix='plumbobserve'))
    atexit.register(shutil.rmtree, folder)
    (folder / 'facts').mkdir()
    subprocess.run(['cc', '-O2', '-std=gnu11', '-Wall', '-Wextra', '-Werror',
                    *SRC.glob('*.c'), '-o', folder / 'observe'], check=True)
    return folder


def with_programs(launching: Launching) -> Launching:
    """The same, with the programs of the suite in the job."""
    programs = build_programs()
    return replace(launching, programs=str(programs),
                   rank=shlex.join([str(SRC / 'rank.sh'), str(programs), '', 'mpirun']))


def redis_like(store: Store, **more: Any) -> Server:
    """The server role of a real store."""
    return Server(store.name, (str(store.binary), '-'), CONFIG, **more)


class Job:
    """The job script of one repetition, in a folder of its own."""

    def __init__(self, folder: Path, plan: Plan, launching: Launching = LOCAL,
                 before: str = '', **env: str) -> None:
        self.folder, self.plan = folder, plan
        folder.mkdir(exist_ok=True)
        # Not below it: the path of a socket may have 107 characters.
        self.scratch = Path(tempfile.mkdtemp(prefix='plumbtest'))
        launching = with_programs(replace(
            launching, scratch=launching.scratch or str(self.scratch)))
        measure = shlex.quote(str(SRC / 'measure.sh'))
        (folder / 'rfm_job.sh').write_text('\n'.join([
            '#!/bin/bash', before, *job_script_lines(plan, launching),
            f'. {measure} -- run_and_stop', '']))
        # By it all processes of this job are found, wherever they are.
        self.mark = f'PLUMBLINE_TEST={folder}'
        with open(folder / 'out', 'wb') as out, open(folder / 'err', 'wb') as err:
            self.process = subprocess.Popen(
                ['bash', 'rfm_job.sh'], cwd=folder, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env={**os.environ, 'PLUMBLINE_TEST': str(folder), **env})

    def processes(self, word: str = '') -> list[int]:
        """Processes of this job whose command has a word, without the job script."""
        pids = []
        for path in Path('/proc').glob('[0-9]*'):
            with contextlib.suppress(OSError):
                command, environment = (os.fsdecode((path / name).read_bytes())
                                        for name in ('cmdline', 'environ'))
                # A store writes its title over its environment.
                of_job = self.mark in environment or os.readlink(
                    path / 'cwd').startswith((str(self.scratch), str(self.folder)))
                if of_job and word in command and int(path.name) != self.process.pid:
                    pids.append(int(path.name))
        return sorted(pids)

    def wait_for(self, word: str) -> list[int]:
        """Wait until processes have this word in their command."""
        self.until(lambda: self.processes(word))
        return self.processes(word)

    def until(self, is_true: Callable[[], object]) -> None:
        """Wait until something is true, and fail if the job ends before."""
        try:
            until(is_true, self.process)
        except AssertionError as err:
            pytest.fail(f'{err}: {self.messages()}')

    def end(self) -> int:
        """Wait for the end of the job: its exit code."""
        return self.process.wait(LIMIT)

    def services(self) -> tuple[Services, str]:
        """The record and the output of a job that ends without an error."""
        assert self.end() == 0, (self.messages(), (self.folder / 'err').read_text())
        return split_service_record((self.folder / 'out').read_text(), self.plan)

    def refusal(self) -> str:
        """The one message of a job that fails and leaves nothing."""
        assert self.end() == 1, self.messages()
        [line] = self.messages()
        assert not self.leftovers()
        return line

    def kill(self) -> None:
        """End the job with all its processes."""
        # The pid of a job that has ended may belong to another process.
        self.process.kill()
        self.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def messages(self) -> list[str]:
        """Lines `service: ...` of its standard error, or else the last lines."""
        lines = [line for name in ('run.1.err', 'err') if (self.folder / name).exists()
                 for line in (self.folder / name).read_text().splitlines()]
        # A job that ends by itself prints the first file into the second.
        lines = [*dict.fromkeys(lines)]
        return [line for line in lines if line.startswith('service: ')] or lines[-5:]

    def leftovers(self) -> list[object]:
        """Processes and files that remain after the job; processes may need time."""
        with contextlib.suppress(AssertionError):
            until(lambda: not self.left())
        return self.left()

    def left(self) -> list[object]:
        """Processes and files that exist now."""
        return [*self.processes(), *self.scratch.glob('*'),
                *self.folder.glob('secrets.private.*')]
