"""What the tests share: an isolated place for runs of the real suite."""
from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests' / 'cluster'))

from cluster import CannotRunHere, Cluster, missing  # noqa: E402

from cli.setup import ensure_wheel  # noqa: E402

# A shell's background job ignores it, and so would all that tests start and
# interrupt: they would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Number of tests that need a cluster and were not asked for.
LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption('--cluster', action='store_true',
                     help='also the tests on a cluster of namespaces')


def pytest_collection_modifyitems(config: pytest.Config,
                                  items: list[pytest.Item]) -> None:
    if not config.getoption('--cluster'):
        left = [i for i in items if i.get_closest_marker('cluster')]
        items[:] = [i for i in items if i not in left]
        config.hook.pytest_deselected(items=left)
        config.stash[LEFT_OUT] = len(left)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config
                            ) -> None:
    left = config.stash.get(LEFT_OUT, 0)
    if left:
        terminalreporter.write_line(
            f'cluster: {left} tests not asked for; ./plumb test --cluster')


def brought_up(folder: Path, share: Path, **more: Any) -> Cluster:
    """A cluster; where it cannot run the test is skipped, with the reason."""
    lost = missing()
    if lost:
        pytest.skip(f'cluster: {lost}')
    cluster = Cluster(folder)
    try:
        cluster.up(share=[share], **more)
    except CannotRunHere as err:
        pytest.skip(f'cluster: {err}')
    return cluster


@pytest.fixture(scope='session')
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes for all tests, which leave them as they found them."""
    base = tmp_path_factory.getbasetemp()
    cluster = brought_up(base / 'box', base)
    for name in ('mpi', 'mpich'):
        ensure_wheel(name)
    yield cluster
    cluster.down()


@dataclass
class Suite:
    """The suite with its own perflogs, references and results."""
    tmp: Path
    variables: dict[str, str]

    def plumb(self, *args: str, timeout: int = 250, **more: str
              ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / 'plumb'), *args], text=True, timeout=timeout,
            env={**os.environ, **self.variables, **more},
            capture_output=True, stdin=subprocess.DEVNULL)

    def reframe(self, *args: str, **more: str
                ) -> subprocess.CompletedProcess[str]:
        """Plain reframe with what `plumb env` exports, from elsewhere."""
        job = self.start(*args, stderr=subprocess.PIPE, **more)
        out, err = job.communicate(timeout=250)
        return subprocess.CompletedProcess(args, job.returncode, out, err)

    def start(self, *args: str, stderr: int = subprocess.STDOUT, **more: str
              ) -> subprocess.Popen[str]:
        """The same, which goes on."""
        env = {**os.environ, **self.variables, **more}
        exports = subprocess.run([str(ROOT / 'plumb'), 'env'], text=True,
                                 capture_output=True, env=env)
        assert exports.returncode == 0, exports.stderr
        return subprocess.Popen(
            ['bash', '-c', exports.stdout + '\nexec reframe "$@"', 'bash',
             *args], text=True, cwd=self.tmp, env=env,
            stdout=subprocess.PIPE, stderr=stderr)

    def on(self, cluster: Cluster, *args: str, site: str = 'devcluster',
           **more: str) -> subprocess.Popen[str]:
        """Plain reframe on the login node of a cluster."""
        env = {**os.environ, **self.variables, **more,
               'PLUMBLINE_SITE': site}
        exports = subprocess.run([str(ROOT / 'plumb'), 'env'], text=True,
                                 capture_output=True, env=env)
        assert exports.returncode == 0, exports.stderr
        return cluster.box(
            'exec', '--', 'bash', '-c', exports.stdout
            + '\nexec reframe "$@"', 'bash', *args, cwd=self.tmp, env=env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    @property
    def records(self) -> list[dict[str, str]]:
        import csv
        found = []
        for path in sorted((self.tmp / 'perflogs').rglob('*.v?.csv')):
            with open(path, newline='') as handle:
                found += list(csv.DictReader(handle))
        return found

    def write_references(self, data: object, family: str = 'osu') -> None:
        folder = self.tmp / 'references'
        folder.mkdir(exist_ok=True)
        (folder / f'{family}.yaml').write_text(
            data if isinstance(data, str) else json.dumps(data))


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return suite_in(tmp_path)


def suite_in(tmp_path: Path) -> Suite:
    work = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline')
    # The installed things are shared, all that a run writes is not.
    mine = tmp_path / 'work'
    mine.mkdir()
    for name in ('venv', 'mpi', 'mpich', 'stores', 'bin'):
        if (work / name).exists():
            (mine / name).symlink_to(work / name)
    return Suite(tmp_path, {
        'PLUMBLINE_WORK': str(mine),
        'PLUMBLINE_PERFLOGS': str(tmp_path / 'perflogs'),
        'PLUMBLINE_REPORT': str(tmp_path / 'report'),
        'RFM_REFERENCE_PREFIX': str(tmp_path / 'references'),
        'RFM_PREFIX': str(tmp_path / 'rfm'),
        # Tests do not wait for one another, nor for a run of the user's.
        'PLUMBLINE_LOCK': str(tmp_path / 'lock'),
    })


class Store(NamedTuple):
    """A real store of this machine."""
    name: str
    binary: Path
    version: str
    tls: bool


def stores() -> list[Store]:
    """Redis-like stores that the set-up found, or that are on PATH."""
    work = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline')
    found = {}
    with contextlib.suppress(OSError, KeyError, ValueError):
        for one in json.loads((work / 'local.json').read_text())['stores']:
            found[f"{one['store']}-{one['source']}"] = (
                one['store'], Path(one['prefix'], 'bin',
                                   f"{one['store']}-server"))
    for name in ('redis', 'valkey'):
        path = shutil.which(f'{name}-server')
        if path:
            found[f'{name}-system'] = (name, Path(path))
    result = []
    for name, binary in found.values():
        if binary.exists() and name in ('redis', 'valkey'):
            said = subprocess.run([binary, '--version'], text=True,
                                  capture_output=True).stdout
            version = re.search(r'v=(\S+)', said)
            # It stops at the first word that it does not know.
            tls = subprocess.run([binary, '-'], text=True,
                                 input='tls-port 0\nno-such-word 1\n',
                                 capture_output=True)
            result.append(Store(name, binary,
                                version[1] if version else '',
                                'tls-port' not in
                                tls.stdout + tls.stderr))
    return result


@pytest.fixture(scope='session')
def store() -> Store:
    """A real store: the set-up brings one along, else it is on PATH."""
    found = stores()
    if not found:
        pytest.skip('no redis-server or valkey-server: no wheel for this '
                    'Python, and none on PATH')
    return found[0]
