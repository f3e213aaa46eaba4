"""Parts that all bench scripts share.

- the parser of a script's options, which prints its docstring as help
- exit codes: 0 all goals met, 1 a goal missed, 2 a requirement is missing
- rounds in which the compared programs alternate, and ratios of the rounds
- Markdown tables
- programs and servers, pinned to a CPU, which end with the bench script
- CPU time of a process and of its children

The import of this module makes the packages of the repository importable.
"""
from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
T = TypeVar('T')

EXIT_CODES = 'Exit code: 0 all goals met, 1 a goal missed, 2 cannot run.'
#: CPUs of servers and of their clients: the first and the last.
SERVER_CPU, CLIENT_CPU = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
#: Environment in which Open MPI accepts root, too.
MPI_ENV = {**os.environ, 'OMPI_ALLOW_RUN_AS_ROOT': '1',
           'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_BENCH = os.getpid()


class Missing(Exception):
    """A requirement of the bench script that is missing, in one line."""


def option_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of options; its help is the docstring of a script."""
    return argparse.ArgumentParser(
        description=description, epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter)


def run_main_and_exit(main: Callable[[], bool]) -> None:
    """Calls `main` and ends the script with the exit code.

    :arg main: returns whether all goals are met
    """
    exit_cleanly_on_signals()
    try:
        good = main()
    except (Missing, OSError) as err:
        print(f'{Path(sys.argv[0]).stem}: {err}', file=sys.stderr)
        sys.exit(2)
    sys.exit(0 if good else 1)


# Rounds --------------------------------------------------------------------

def measure_alternately(rounds: int, names: Iterable[str], measure: Callable[[str], T]
              ) -> dict[str, list[T]]:
    """Measures each name once per round, each time another name first.

    A machine that changes its speed slowly then treats all of them alike.
    """
    names = list(names)
    samples: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(measure(name))
    return samples


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over the rounds of ours / theirs."""
    return statistics.median(
        one / other for one, other in zip(ours, theirs, strict=True))


# Markdown --------------------------------------------------------------------

def table_row(*cells: object) -> str:
    return '| ' + ' | '.join(str(cell).replace('|', r'\|') for cell in cells) + ' |'


def table_head(*titles: object) -> list[str]:
    """The two lines of the head of a table."""
    return [table_row(*titles), '|---' * len(titles) + '|']


def print_table_head(*titles: object) -> None:
    print(*table_head(*titles), sep='\n', flush=True)


def print_table_row(*cells: object) -> None:
    print(table_row(*cells), flush=True)


# Processes -------------------------------------------------------------------

def set_parent_death_signal() -> None:
    """Has the kernel kill a program when its bench script has ended, also by
    SIGKILL.

    For `preexec_fn`. A program that changes its user loses this.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != _BENCH:          # The script ended before that call.
        os._exit(1)


def exit_cleanly_on_signals() -> None:
    """Has signals that end a script leave its `with` and `finally` blocks."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


class Done(NamedTuple):
    """A program that has ended."""
    out: str
    #: CPU time of the program and of its children. Unit: s.
    cpu: float
    #: Unit: s.
    wall: float


def run(command: Iterable[object], purpose: str, cpu: int | None = None,
        env: Mapping[str, str] | None = None,
        limit: float | None = None,
        codes: Sequence[int] = (0,)) -> Done:
    """Runs a program to its end.

    :arg purpose: what the program does, for the message
    :arg cpu: number of the CPU to which the program is pinned
    :arg limit: seconds after which the program is killed
    :arg codes: exit codes that are no failure
    :raises Missing: the program failed
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    with subprocess.Popen(
            pinned_command(cpu, command), text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=None if env is None else dict(env),
            preexec_fn=set_parent_death_signal) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except BaseException as problem:
            process.kill()
            if isinstance(problem, subprocess.TimeoutExpired):
                raise Missing(f'{purpose}: killed after {limit:g} s') from None
            raise
    wall = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode not in codes:
        raise Missing(f'{purpose} failed with exit code {process.returncode}: '
                      f'{err.strip()[-300:]}')
    return Done(out, after.ru_utime + after.ru_stime
                - before.ru_utime - before.ru_stime, wall)


def variables_from_plumb_env(*options: str, **variables: str) -> dict[str, str]:
    """The environment that `plumb env` with these options exports."""
    env = {**os.environ, **variables}
    exports = run([ROOT / 'plumb', 'env', *options], 'plumb env', env=env)
    shell = run(['bash', '-c', f'{exports.out}\nenv -0'], 'plumb env',
                env=env)
    return dict(x.split('=', 1) for x in shell.out.split('\0') if x)


def pinned_command(cpu: int | None, command: Iterable[object]) -> list[str]:
    """A command line that is pinned to a CPU."""
    before = [] if cpu is None else ['taskset', '-c', str(cpu)]
    return [*before, *map(str, command)]


def process_cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process. Unit: s."""
    return sum(int(path.read_text().split()[0]) for path in
               Path(f'/proc/{pid}/task').glob('*/schedstat')) / 1e9


def unused_port() -> int:
    with socket.create_server(('127.0.0.1', 0)) as listener:
        return listener.getsockname()[1]


def accepts_connections(port_or_socket: int | Path) -> bool:
    """Whether a server accepts connections on a port or a Unix socket."""
    unix = isinstance(port_or_socket, Path)
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as client:
        return not client.connect_ex(
            str(port_or_socket) if unix else ('127.0.0.1', port_or_socket))


@contextlib.contextmanager
def keep_server_running(command: Iterable[object], port_or_socket: int | Path
                        ) -> Iterator[int]:
    """A server that is pinned to SERVER_CPU and accepts connections; its pid.

    :arg port_or_socket: port on the loopback, or Unix socket, that it listens on
    """
    with subprocess.Popen(pinned_command(SERVER_CPU, command),
                          stdout=subprocess.DEVNULL,
                          preexec_fn=set_parent_death_signal) as process:
        try:
            for _ in range(100):
                if process.poll() is not None or accepts_connections(port_or_socket):
                    break
                time.sleep(0.05)
            else:
                raise Missing(f'{command}: no answer on {port_or_socket}')
            if process.poll() is not None:
                raise Missing(f'{command}: ended with exit code '
                              f'{process.returncode}')
            yield process.pid
        finally:
            process.terminate()
