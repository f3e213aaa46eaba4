"""What the tests share: an isolated place for runs of the real suite.

With `./plumb selftest` they run in parallel, in more workers than there are
cores, because most of them wait. Tests on a cluster run in one worker per
file, which has its own cluster; while a test marked `alone` runs, no other
does. What starts ./plumb or reframe gets a fork of a server that has imported
their packages (forks.py).
"""
from __future__ import annotations

import contextlib
import datetime
import fcntl
import gc
import io
import json
import os
import random
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent


def of_family(name: str) -> list[str]:
    """Options of ReFrame that load the checks of one family. To load those
    of the others takes a second.
    """
    return ['-c', str(ROOT / 'checks' / name)]


OSU = of_family('osu')
sys.path[:0] = [str(ROOT / 'tests' / 'cluster'), str(ROOT / 'tests' / 'data')]

from cluster import CannotRunHere, Cluster, lost, missing  # noqa: E402
from compiler import cached_compiler  # noqa: E402
from packages import package_of  # noqa: E402

from checks.stores.found import identify_store_server  # noqa: E402
from cli.setup.venv import ensure_folder_of_lock  # noqa: E402
from config.sessions import clock  # noqa: E402
from tests import forks  # noqa: E402
from tests.unstable import ENDING  # noqa: E402

# In a shell's background job SIGINT is ignored, and children inherit that:
# tests that interrupt a child would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Marker -> the option of pytest that selects the tests that have it. The
#: option of `./plumb selftest` is the marker's name; pytest has a --strict of
#: its own.
REQUESTED = {'cluster': '--cluster', 'strict': '--strict-tests',
             'slow': '--slow'}
#: Marker -> number of tests that were not asked for.
LEFT_OUT = pytest.StashKey[dict[str, int]]()
#: Key of LEFT_OUT for the tests of --except-passed.
PASSED = 'passed'


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption('--cluster', action='store_true',
                     help='also the tests on a cluster of namespaces')
    parser.addoption('--strict-tests', action='store_true',
                     help='also the strict tests; one that skips for want '
                          'of what a package of .ci/packages.txt has fails')
    parser.addoption('--slow', action='store_true',
                     help='also the tests that take minutes each, which CI '
                          'has no time for')
    parser.addoption('--outcomes', type=Path, metavar='FILE',
                     help='write how each test ended there, as JSON')
    parser.addoption('--except-passed', type=Path, metavar='FILE',
                     help='without the tests that passed by a file of '
                          '--outcomes; an empty file has none')


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects without the garbage collector, which would look again and
    again at thousands of tests that stay: a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config,
                                  items: list[pytest.Item]) -> None:
    counts = config.stash[LEFT_OUT] = {}
    for marker, option in REQUESTED.items():
        if config.getoption(option):
            continue
        left = [i for i in items if i.get_closest_marker(marker)]
        items[:] = [i for i in items if not i.get_closest_marker(marker)]
        config.hook.pytest_deselected(items=left)
        counts[marker] = len(left)
    if file := config.getoption('--except-passed'):
        text = file.read_text()
        passed = {name for name, how in json.loads(text or '{}').items()
                  if how == 'passed'}
        left = [i for i in items if i.nodeid in passed]
        config.hook.pytest_deselected(items=left)
        counts[PASSED] = len(left)
        items[:] = [i for i in items if i.nodeid not in passed]
    if not hasattr(config, 'workerinput'):
        return
    for item in items:
        name = group(item)
        if name:
            gather(item, name)
    # Long tests first: at the end no core waits for one.
    items.sort(key=lambda item: (
        not item.get_closest_marker('alone'), not group(item),
        'suite' not in getattr(item, 'fixturenames', ())))


def gather(item: Any, name: str) -> None:
    """Gives a test to the worker that has the others of that name.

    xdist parts them by what follows the @ of an id, and (3.8) writes that
    where pytest 9.2 no longer keeps ids: all groups were torn apart.
    """
    item.add_marker(pytest.mark.xdist_group(name))
    if hasattr(item, '_id'):
        item._id = type(item._id).parse(f'{item.nodeid}@{name}')


def group(item: pytest.Item) -> str:
    """Name of the group of tests that one worker runs; empty: none."""
    if item.get_closest_marker('alone'):
        return 'alone'
    # Each worker would set up module-scoped fixtures again.
    fixtures: Any = getattr(item, '_fixtureinfo', None)
    shares = fixtures and any(
        result[-1].scope == 'module'
        for result in fixtures.name2fixturedefs.values())
    return (item.path.stem
            if shares or item.get_closest_marker('cluster') else '')


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config
                            ) -> None:
    lines = skipped_lines(terminalreporter.stats.get('skipped', ()))
    left = {marker: number for marker, number in
            config.stash.get(LEFT_OUT, {}).items() if number}
    if number := left.pop(PASSED, 0):
        lines.append(f'{number} tests that passed elsewhere were left out '
                     '(--except-passed)')
    if left:
        lines.append('Not selected, and how to run them:')
    for marker, number in left.items():
        lines.append(f'{number:6}  {marker} tests: ./plumb selftest '
                     f'--{marker}')
    for line in lines:
        terminalreporter.write_line(line)


def skipped_lines(reports: Iterable[Any]) -> list[str]:
    """Lines that say how many tests were skipped, why, and how to run them.

    :param reports: pytest's reports of the skipped tests
    """
    packages = package_of()
    reasons: Counter[str] = Counter()
    for report in reports:
        program = getattr(report, 'missing', None)
        # (file, line, reason), and a list from a worker.
        text = str(report.longrepr[2]).removeprefix('Skipped: ')
        reasons[f'{program} is missing: Debian package {packages[program]}'
                if program in packages else text] += 1
    if not reasons:
        return []
    number = reasons.total()
    return [
        f'{number} test{"s were" if number > 1 else " was"} skipped, which '
        'is no failure. What this machine lacks:',
        *(f'{count:6}  {text}' for text, count in reasons.most_common()),
        'To run them on Debian or Ubuntu: sudo .ci/packages installs these '
        'packages; then ./plumb selftest.',
        'For lines without a package, set or install what they name. Names '
        'of the skipped tests: ./plumb selftest -rs']


class Outcomes:
    """Writes how each test ended: passed, failed, skipped, crashed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.result: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        if name.rfind('@') > name.rfind(']'):       # its group (xdist)
            name = name.rpartition('@')[0]
        how = 'crashed' if report.when == '???' else report.outcome
        if self.result.get(name) not in ('failed', 'crashed') \
                and (report.when == 'call' or how != 'passed'):
            self.result[name] = how

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.result))


# Parallel workers -----------------------------------------------------------

#: A folder shared by all workers of this run, with what lies in it.
SHARED = pytest.StashKey[contextlib.ExitStack]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Passes the shared folder to a worker."""
    node.workerinput['shared'] = str(Path(forks.address).parent)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes a worker's counts of deselected tests, for the summary."""
    message = getattr(node, 'workeroutput', {}).get('left_out')
    if message is not None:
        node.config.stash[LEFT_OUT] = message


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, 'workeroutput'):
        config.workeroutput['left_out'] = config.stash.get(LEFT_OUT, {})
    if SHARED in config.stash:
        config.stash[SHARED].close()


class Turns:
    """A fair readers-writer lock: many tests, or one that runs alone."""

    def __init__(self, folder: str) -> None:
        self.gate, self.room = (open(Path(folder, name), 'w')
                                for name in ('gate', 'room'))
        self.alone = False

    def begin(self, alone: bool) -> None:
        if self.alone:                      # since the test before
            return
        how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        # A test that waits to run alone holds the gate: no other starts.
        fcntl.flock(self.gate, how)
        fcntl.flock(self.room, how)
        self.alone = alone
        if not alone:
            fcntl.flock(self.gate, fcntl.LOCK_UN)

    def end(self, alone_next: bool) -> None:
        if self.alone and alone_next:
            return
        self.alone = False
        fcntl.flock(self.room, fcntl.LOCK_UN)
        fcntl.flock(self.gate, fcntl.LOCK_UN)


TURNS = pytest.StashKey[Turns]()


def pytest_configure(config: Any) -> None:
    if not hasattr(config, 'workerinput'):
        stack = config.stash[SHARED] = contextlib.ExitStack()
        shared = stack.enter_context(tempfile.TemporaryDirectory(
            prefix='plumbline-tests'))
        stack.callback(end_clusters, Path(shared))
        forks.address = f'{shared}/forks'
        stack.enter_context(forks.server(forks.address))
        if config.getoption('--outcomes'):
            config.pluginmanager.register(
                Outcomes(config.getoption('--outcomes')))
    else:
        shared = config.workerinput['shared']
        forks.address = f'{shared}/forks'
        config.stash[TURNS] = Turns(shared)
        os.environ |= cached_compiler(Path(shared, 'built'))
    subprocess.Popen = forks.Popen


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None
                            ) -> Generator[None, object, object]:
    """Waits for the lock before the test's timeout starts."""
    turns = item.config.stash.get(TURNS, None)
    if turns is None:
        return (yield)
    turns.begin(bool(item.get_closest_marker('alone')))
    try:
        return (yield)
    finally:
        turns.end(bool(nextitem and nextitem.get_closest_marker('alone')))


@pytest.fixture(autouse=True)
def signals_stay() -> Iterator[None]:
    """Programs that later tests start would ignore what a test leaves ignored."""
    def of_this_process() -> tuple[set[int], list[object]]:
        return (signal.pthread_sigmask(signal.SIG_BLOCK, []),
                [signal.getsignal(number) for number in ENDING])
    before = of_this_process()
    yield
    assert of_this_process() == before, 'the test leaves signals blocked or ignored'


@pytest.fixture(scope='session', autouse=True)
def any_date() -> Iterator[None]:
    """Made-up records may be of any date, also one that is to come."""
    time = datetime.datetime(2200, 1, 1, tzinfo=datetime.timezone.utc)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, 'max_possible_record_time', lambda path: time)
        yield


@pytest.fixture(scope='session')
def once(request: pytest.FixtureRequest,
         tmp_path_factory: pytest.TempPathFactory
         ) -> Callable[[str, Callable[[Path], object]], Path]:
    """once(NAME, MAKE): the folder NAME, filled by MAKE in one worker."""
    def shared(name: str, make: Callable[[Path], object]) -> Path:
        message = getattr(request.config, 'workerinput', None)
        base = (Path(message['shared']) if message
                else tmp_path_factory.getbasetemp())
        folder, done = base / name, base / f'{name}.done'
        with open(base / f'{name}.lock', 'w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder
    return shared


@pytest.fixture(scope='session')
def programs(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """Folder of the embedded memtier_benchmark and of tao_server, built without a
    warning."""
    def make(folder: Path) -> None:
        for source, name in (('loadgen/src', 'memtier_benchmark'),
                             ('taobench/src', 'tao_server')):
            done = subprocess.run(
                [ROOT / 'checks' / source / 'build.sh', folder / name],
                text=True, capture_output=True,
                env={**os.environ, 'CFLAGS': '-Werror'})
            assert done.returncode == 0, done.stderr
    return once('programs', make)


#: After the options of `./plumb selftest`: two workers are side by side, too,
#: and each takes half a second to start.
FEWER = '-n2'


def nested_tests(folder: Path, text: str) -> list[str]:
    """Writes a file of tests there, with this suite's own conftest: the
    command that runs it, which the folder ends, after more options."""
    (folder / 'conftest.py').write_text(
        f'import sys\nsys.path.insert(0, {str(ROOT)!r})\n'
        'from tests.conftest import *\n')
    (folder / 'test_it.py').write_text(text)
    return [sys.executable, '-m', 'pytest', '-c',
            str(ROOT / 'pyproject.toml'), '--rootdir', str(folder),
            '-p', 'no:cacheprovider']


def each(values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """A decorator: one test of many values, where a test of each would cost more
    than what it looks at. pytest prints the arguments of the one that fails.

    :param values: an argument each, or a tuple of arguments
    """
    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            for value in values:
                check(*(value if isinstance(value, tuple) else (value,)))
        for name in '__name__', '__doc__', '__module__':
            setattr(test, name, getattr(check, name))
        return test
    return decorate


def free_port() -> int:
    """A free port of 127.0.0.1, below the range of ephemeral ports and in a
    range of this worker's own, so that it stays free until it is used."""
    worker = int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0')[2:])
    first = 12_000 + 2000 * (worker % 5)
    while True:
        port = random.randrange(first, first + 2000)
        with contextlib.suppress(OSError), socket.create_server(
                ('127.0.0.1', port)):
            return port


# Missing programs -----------------------------------------------------------

#: On one CPU ranks share it, and servers share it with their clients: their
#: results are not compared, and such test cases are not in mode quick.
two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2,
                              reason='one CPU')


def skip_missing(program: str, why: str) -> NoReturn:
    """Skips a test because a program or a header is missing.

    With --strict it fails where .ci/packages.txt has a package for it.
    """
    reason = pytest.skip.Exception(why)
    reason.missing = program                         # type: ignore[attr-defined]
    raise reason


def require_program(name: str) -> None:
    """Skips the test, with the reason, if a program is not on PATH."""
    if not shutil.which(name):
        skip_missing(name, f'no {name} on PATH')


def git(*words: str, folder: Path = ROOT) -> str:
    """What git prints in a folder; skips the test where git is missing."""
    require_program('git')
    return subprocess.run(['git', *words], cwd=folder, text=True, check=True,
                          capture_output=True).stdout


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]
                              ) -> Generator[None, pytest.TestReport,
                                             pytest.TestReport]:
    report = yield
    absent = call.excinfo and getattr(call.excinfo.value, 'missing', None)
    report.missing = absent                 # type: ignore[attr-defined]
    if report.skipped and item.config.getoption('--strict-tests') \
            and absent in package_of():
        report.outcome = 'failed'
        report.longrepr = (
            f'{call.excinfo.value}: with --strict {absent} must be here; '  # type: ignore[union-attr]
            f'install the package {package_of()[absent]} (.ci/packages)')
    return report


#: End of the name of a folder that has a link to that of a cluster.
CLUSTER = '.cluster'


def end_clusters(shared: Path) -> None:
    """Ends what a worker that was killed (^C) has left of its clusters."""
    for link in shared.glob(f'*{CLUSTER}/folder'):
        Cluster(link.resolve()).down()


def started_cluster(folder: Path, share: Path, **more: Any) -> Cluster:
    """Starts a cluster; skips the test, with the reason, where it cannot."""
    ssh = more.get('ssh', False)
    if programs := lost(ssh):
        skip_missing(programs[0], f'cluster: {missing(ssh)}')
    cluster = Cluster(folder)
    if forks.address:
        Path(tempfile.mkdtemp(CLUSTER, dir=Path(forks.address).parent),
             'folder').symlink_to(folder)
    try:
        cluster.up(share=[share], **more)
    except CannotRunHere as err:
        pytest.skip(f'cluster: {err}')
    return cluster


@pytest.fixture(scope='session')
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes for all tests, each of which must restore what it changes."""
    base = tmp_path_factory.getbasetemp()
    cluster = started_cluster(base / 'box', base)
    for name in ('mpi', 'mpich'):
        ensure_folder_of_lock(name)
    yield cluster
    cluster.down()


@pytest.fixture
def own(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
        ) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters of one test, and ends them."""
    made = []

    def up(name: str = 'box', **more: Any) -> Cluster:
        folder = tmp_path / name
        made.append(Cluster(folder))
        return started_cluster(folder, tmp_path_factory.getbasetemp(),
                               **{'nodes': 2, **more})
    yield up
    for cluster in made:
        cluster.down()


#: Longest wait for another process. It is far beyond what any needs, so that no
#: test fails because a machine is loaded. Unit: seconds.
LIMIT = 600


def until(true: Callable[[], object],
          job: subprocess.Popen[Any] | None = None) -> None:
    """Waits until a condition is true, at most LIMIT seconds.

    A condition that starts programs is asked less often: a test that waits uses at
    most a quarter of a core, and leaves the rest to what it waits for.

    :param job: the process that makes it true; fails at once if it has ended
    """
    end = time.monotonic() + LIMIT
    while True:
        begin = time.monotonic()
        ended = job is not None and job.poll() is not None
        if true():
            return
        assert not ended, 'the process has ended before'
        assert time.monotonic() < end, f'not true within {LIMIT} s'
        time.sleep(max(0.02, 3 * (time.monotonic() - begin)))


def accepts_connections(port: int) -> bool:
    """Whether a process listens on this port of 127.0.0.1."""
    with contextlib.suppress(OSError):
        socket.create_connection(('127.0.0.1', port), LIMIT).close()
        return True
    return False


def command_lines() -> list[str]:
    """`PID COMMAND` of all processes; without ps, which may be missing."""
    result = []
    for number in filter(str.isdecimal, os.listdir('/proc')):
        # Suppressed, because a process may end at any time.
        with contextlib.suppress(OSError):
            words = Path('/proc', number, 'cmdline').read_bytes().rstrip(b'\0')
            text = words.replace(b'\0', b' ').decode(errors='replace')
            result.append(f'{number} {text}')
    return result


#: Of `plumb env`: variables -> the test's folder, the output, local.json.
_REPORTED: dict[frozenset[tuple[str, str]], tuple[str, str, str]] = {}


def printed_verdict_lines(verdict: Any) -> list[str]:
    """The lines that `plumb verdict --all` prints of a verdict."""
    from postprocess.regressions.events import print_verdict
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_verdict(verdict, every=True)
    return out.getvalue().splitlines()


def python_script(text: str) -> str:
    """An executable script for the Python of the tests.

    The path of Python may have blanks, which a line `#!` does not allow: the
    script starts as one of sh.
    """
    python = shlex.quote(sys.executable)
    return f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n{text}"


@dataclass
class Suite:
    """The suite with its own perflogs, references and results."""
    tmp: Path
    variables: dict[str, str]
    #: The files of the records that were read last, with size and time; the records.
    _read: tuple[list[tuple[str, int, int]], list[dict[str, str]]] | None = None

    def plumb(self, *args: str, timeout: int = LIMIT, **more: str
              ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / 'plumb'), *args], text=True, timeout=timeout,
            env={**os.environ, **self.variables, **more},
            capture_output=True, stdin=subprocess.DEVNULL)

    def reframe(self, *args: str, **more: str
                ) -> subprocess.CompletedProcess[str]:
        """Plain reframe with what `plumb env` exports, from elsewhere."""
        job = self.start(*args, stderr=subprocess.PIPE, **more)
        try:
            out, err = job.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            job.terminate()
            raise
        return subprocess.CompletedProcess(args, job.returncode, out, err)

    def start(self, *args: str, stderr: int = subprocess.STDOUT,
              first: str = '', **more: str) -> subprocess.Popen[str]:
        """The same in the background; `first`: a shell line before it."""
        env = {**os.environ, **self.variables, **more}
        command = ['reframe', *args]
        if first:
            command = ['bash', '-c', f'{self.exports(env)}\n{first}\n'
                       'exec "$@"', 'bash', *command]
        else:
            env |= dict(word.split('=', 1) for word in
                        shlex.split(self.exports(env)) if word != 'export')
            env['PWD'] = str(self.tmp)
        return subprocess.Popen(command, text=True, cwd=self.tmp, env=env,
                                stdout=subprocess.PIPE, stderr=stderr)

    def exports(self, env: dict[str, str]) -> str:
        """The output of `plumb env` with these variables. One that was asked
        with the same, but for this test's folders, is repeated, with what it
        wrote; not where it looks into such a folder."""
        here = str(self.tmp)
        key = frozenset(
            (name, value if name in ('PATH', 'PLUMBLINE_SITE')
             else value.replace(here, ''))
            for name, value in env.items() if name != 'PYTEST_CURRENT_TEST')
        result = self.tmp / 'work' / 'local.json'
        if key not in _REPORTED:
            done = subprocess.run([str(ROOT / 'plumb'), 'env'], text=True,
                                  capture_output=True, env=env)
            assert done.returncode == 0, done.stderr
            _REPORTED[key] = here, done.stdout, (
                result.read_text() if result.exists() else '')
        there, *message = _REPORTED[key]
        output, local = (text.replace(there, here) for text in message)
        if local:
            result.write_text(local)
        return output

    def on(self, cluster: Cluster, *args: str, site: str = 'devcluster',
           wrapper: Iterable[str] = (), **more: str) -> subprocess.Popen[str]:
        """Plain reframe on the login node of a cluster.

        :param wrapper: command that runs it
        """
        env = {**os.environ, **self.variables, **more,
               'PLUMBLINE_SITE': site}
        return cluster.box(
            'exec', '--', 'bash', '-c', self.exports(env)
            + '\nexec "$@"', 'bash', *wrapper, 'reframe', *args, cwd=self.tmp, env=env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    @property
    def records(self) -> list[dict[str, str]]:
        """The records of all sessions, as texts: '' for what is unknown.

        They are read again when a file has changed.
        """
        files = sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns)
                       for path in (self.tmp / 'perflogs').rglob('*')
                       if path.suffix in ('.json', '.log'))
        if not self._read or self._read[0] != files:
            self._read = files, self._read_records()
        return self._read[1]

    def _read_records(self) -> list[dict[str, str]]:
        import pandas as pd

        from config.sessions import judged
        from postprocess import records

        frame, _ = records.read(self.tmp / 'perflogs', on_error='collect')

        def text(name: str, value: Any) -> str:
            if name == 'point':
                return judged.point_with_unit(value)
            return '' if pd.isna(value) else str(
                int(value) if isinstance(value, bool) else value)
        return [{name: text(name, value) for name, value in row.items()}
                for row in frame.astype(object).to_dict('records')]

    def again(self, times: int) -> None:
        """Repeats all sessions `times` times under new identifiers: a history
        with constant values."""
        folder = self.tmp / 'perflogs'
        measurements = {row['measurement'] for row in self.records}
        sessions = {path.stem: path for path in (folder / 'sessions').glob('*.json')}
        rows = [path for path in folder.rglob('*.log')
                if path.parent.name != 'sessions']
        texts = {path: path.read_text() for path in rows}
        for _ in range(times):
            new = {old: secrets.token_hex(6) for old in measurements} | {
                old: f'{old[:-6]}{secrets.token_hex(3)}' for old in sessions}
            pattern = re.compile('|'.join(map(re.escape, new)))
            for name, path in sessions.items():
                for ending in '.json', '.log':
                    path.with_name(new[name] + ending).write_text(pattern.sub(
                        lambda match: new[match[0]],  # noqa: B023
                        path.with_suffix(ending).read_text()))
            for path, text in texts.items():
                with open(path, 'a') as handle:
                    handle.writelines(pattern.sub(
                        lambda match: new[match[0]], text  # noqa: B023
                        ).splitlines(keepends=True)[1:])

    def write_site(self, folder: Path, text: str) -> None:
        """A new folder of a site with this system.py; runs use it from now
        on."""
        folder.mkdir()
        (folder / 'system.py').write_text(text)
        self.variables['PLUMBLINE_SITE'] = str(folder)

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
    # Installed programs are shared; what a run writes is not.
    own = tmp_path / 'work'
    own.mkdir()
    (tmp_path / 'references').mkdir()
    for name in ('venv', 'mpi', 'mpich', 'stores', 'bin'):
        if (work / name).exists():
            (own / name).symlink_to(work / name)
    return Suite(tmp_path, {
        'PLUMBLINE_WORK': str(own),
        'PLUMBLINE_PERFLOGS': str(tmp_path / 'perflogs'),
        'PLUMBLINE_REPORT': str(tmp_path / 'report'),
        'RFM_REFERENCE_PREFIX': str(tmp_path / 'references'),
        'RFM_PREFIX': str(tmp_path / 'rfm'),
        # Ranks that wait for a message yield the CPU to other tests.
        'OMPI_MCA_mpi_yield_when_idle': '1',
        # Else ReFrame looks after 9, 17, 27 s whether a job has ended.
        'RFM_POLL_RATE_MIN': '2',
        # Other tests use the CPUs, too: no limit on their share.
        'PLUMBLINE_OTHERS_LIMIT': '1e6',
        # Tests wait neither for each other nor for the user's runs.
        'PLUMBLINE_LOCK': str(tmp_path / 'lock'),
    })


class Demo(NamedTuple):
    """What `./plumb demo` wrote and printed."""
    #: With perflogs/ and report/.
    folder: Path
    output: str
    code: int
    #: Perflogs of the user, which it does not touch.
    user: Path


@pytest.fixture(scope='session')
def demo(once: Callable[[str, Callable[[Path], object]], Path]) -> Demo:
    """One demo for all tests, which do not change it."""
    def make(folder: Path) -> None:
        done = suite_in(folder).plumb('demo')
        (folder / 'said.json').write_text(json.dumps(
            [done.stdout + done.stderr, done.returncode]))
    folder = once('demo', make)
    return Demo(folder / 'work' / 'demo', *json.loads(
        (folder / 'said.json').read_text()), folder / 'perflogs')


#: In a namespace of its own a copy lies where the repository is: what is
#: installed for that is there, read-only, and nothing of the repository is
#: written.
_IN_PLACE = """
set -e
copy=$1 root=$2 work=$3
shift 3
for name in venv mpi mpich stores bin sphinx; do
    [ -d "$work/$name" ] || continue
    mkdir -p "$copy/.plumbline/$name"
    mount --bind "$work/$name" "$copy/.plumbline/$name"
    mount -o remount,bind,ro "$copy/.plumbline/$name"
done
mount --rbind "$copy" "$root"
cd "$root"
exec "$@"
"""


@dataclass
class CopyInPlace:
    """A copy of the repository, as it is now, with nothing measured yet."""
    folder: Path

    def run(self, *words: str, timeout: float = LIMIT, **variables: str
            ) -> subprocess.CompletedProcess[str]:
        """A command in the copy, which has the path of the repository.

        It has no variable of the suite but those that are given.
        """
        work = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline')
        return subprocess.run(
            ['unshare', '-rm', 'sh', '-c', _IN_PLACE, 'sh', str(self.folder),
             str(ROOT), str(work), *words], text=True, timeout=timeout,
            env={name: value for name, value in os.environ.items()
                 if not name.startswith('PLUMBLINE_')} | variables,
            capture_output=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def copy_in_place(tmp_path: Path) -> CopyInPlace:
    if not shutil.which('unshare') or subprocess.run(
            ['unshare', '-rm', 'true'], capture_output=True).returncode:
        pytest.skip('no user namespaces with mounts here')
    folder = tmp_path / 'checkout'
    for name in git('ls-files', '-coz', '--exclude-standard').split('\0'):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    git('init', '-q', folder=folder)
    git('add', '-A', folder=folder)
    return CopyInPlace(folder)


class Store(NamedTuple):
    """A real store of this machine."""
    name: str
    binary: Path
    version: str
    #: Its environment on the site `local`.
    environ: str


def stores() -> list[Store]:
    """Redis-like stores that the set-up found, or that are on PATH."""
    work = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline')
    result = {}
    with contextlib.suppress(OSError, KeyError, ValueError):
        for one in json.loads((work / 'local.json').read_text())['stores']:
            result[f"{one['store']}-{one['source']}"] = (
                one['store'], Path(one['prefix'], 'bin',
                                   f"{one['store']}-server"))
    for name in ('redis', 'valkey'):
        path = shutil.which(f'{name}-server')
        if path:
            result[f'{name}-system'] = (name, Path(path))
    known = [(binary, identify_store_server(name, binary, ''), environ)
             for environ, (name, binary) in result.items()
             if binary.exists() and name in ('redis', 'valkey')]
    return [Store(one['store'], binary, one['version'], environ)
            for binary, one, environ in known if one]


@pytest.fixture(scope='session')
def store() -> Store:
    """A real store: the set-up brings one along, else it is on PATH."""
    result = stores()
    if not result:
        skip_missing('redis-server', 'no redis-server or valkey-server: no '
                     'wheel for this Python, and none on PATH')
    return result[0]
