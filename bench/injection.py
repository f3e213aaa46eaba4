"""Limits on CPU time and scripts in place of programs, for bench/faults.py."""
from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from common import ROOT, Missing

WORK = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline').absolute()

#: Installed programs, shared with the user's sessions.
INSTALLED = ('venv', 'mpi', 'mpich', 'stores', 'bin')


def controller() -> tuple[Path, str]:
    """The folder of groups that limit CPUs, and the file with the limit.

    :raises Missing: this machine has none that may be used.
    """
    # Both versions may be mounted, the controller belongs to one of them.
    for line in Path('/proc/mounts').read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        top = Path(where)
        if kind == 'cgroup' and 'cpu' in options.split(','):
            return top, 'cpu.cfs_quota_us'
        if kind == 'cgroup2' and 'cpu' in _words(top / 'cgroup.controllers'):
            return top, 'cpu.max'
    raise Missing('no cgroup controller `cpu` is mounted here')


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


@contextlib.contextmanager
def group(quota: int, period: int) -> Iterator[Path]:
    """A cgroup whose processes share `quota` µs of CPU time per `period` µs.

    :raises Missing: the cgroup cannot be created
    """
    top, limit = controller()
    for old in top.glob('plumb-fault-*'):        # of a bench that was killed
        with contextlib.suppress(OSError):
            old.rmdir()
    its, switch = top / f'plumb-fault-{os.getpid()}', None
    try:
        if limit == 'cpu.max' and 'cpu' not in _words(
                top / 'cgroup.subtree_control'):
            switch = top / 'cgroup.subtree_control'
            switch.write_text('+cpu')
        its.mkdir()
        try:
            if limit == 'cpu.cfs_quota_us':
                (its / 'cpu.cfs_period_us').write_text(str(period))
            (its / limit).write_text(
                f'{quota} {period}' if limit == 'cpu.max' else str(quota))
            yield its
        finally:
            _remove(its, top)
    except OSError as err:
        raise Missing(f'cannot limit the CPU of a group in {top}: '
                      f'{err.strerror} ({err.filename}); root can') from None
    finally:
        if switch:
            with contextlib.suppress(OSError):
                switch.write_text('-cpu')


def _remove(its: Path, top: Path) -> None:
    """Removes a group; moves its processes to the root group."""
    for _ in range(50):
        for pid in _words(its / 'cgroup.procs'):
            with contextlib.suppress(OSError):
                (top / 'cgroup.procs').write_text(pid)
        with contextlib.suppress(OSError):
            its.rmdir()
            return
        time.sleep(0.1)
    print(f'faults: {its} could not be removed: remove it with rmdir',
          file=sys.stderr)


def was_throttled(its: Path, what: str, see: str) -> None:
    """:raises Missing: nothing in the group had to wait for its quota."""
    stat = dict(line.split() for line in
                (its / 'cpu.stat').read_text().splitlines())
    if stat.get('nr_periods', '0') == '0':
        raise Missing(f'{what} did not come into the group: {see}')
    if stat['nr_throttled'] == '0':
        raise Missing(f'{what} never had to wait for the quota: the fault had '
                      'no effect')


def link(path: Path, target: Path) -> None:
    """Makes a link, or replaces one."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@contextlib.contextmanager
def wrapped(server: Path, work: Path, script: str) -> Iterator[None]:
    """Puts a script in place of a store's server.

    :arg server: the real program; the script starts it with
        `exec "$real" "$@"`
    :arg work: folder whose link `stores` the site's file names
    """
    prefix, stores = work / 'wrapped', work / 'stores'
    wrapper = prefix / 'bin' / server.name
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(f'#!/bin/sh\nreal={shlex.quote(str(server))}\n'
                       f'{script}\n')
    wrapper.chmod(0o755)
    try:
        link(stores, prefix)
        yield
    finally:
        link(stores, WORK / 'stores')


def environment(site: str, work: Path) -> dict[str, str]:
    """What `plumb env` exports, with a work folder of our own."""
    work.mkdir(parents=True, exist_ok=True)
    # Installs missing programs to the shared folder.
    subprocess.run([ROOT / 'plumb', 'env', '--site', site], check=False,
                   stdout=subprocess.DEVNULL)
    for name in INSTALLED:
        if (WORK / name).exists():
            link(work / name, WORK / name)
    mine = {**os.environ, 'PLUMBLINE_WORK': str(work),
            'PLUMBLINE_PERFLOGS': str(work / 'perflogs')}
    done = subprocess.run([ROOT / 'plumb', 'env', '--site', site], text=True,
                          env=mine, stdout=subprocess.PIPE)
    if done.returncode:
        raise Missing('plumb env failed: see above')
    shell = subprocess.run(['bash', '-c', f'{done.stdout}\nenv -0'],
                           env=mine, text=True, check=True,
                           stdout=subprocess.PIPE)
    return dict(x.split('=', 1) for x in shell.stdout.split('\0') if x)
