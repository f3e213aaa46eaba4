"""Starts ./plumb and reframe without the seconds of their imports.

Hundreds of tests start them, and each start imports ReFrame (0.7 s of CPU
time), many pandas and matplotlib too. A server, one a run of the tests, has
imported these packages, and nothing of the suite. For each start it forks a
child that gets folder, environment, descriptors, limits and arguments of the
caller, and runs the same script as a new interpreter would: a process of its
own, with its own exit code, that imports the suite anew. Where it starts
reframe in its turn as a child that it must own (`plumb run` does, with
`preexec_fn`), that is a fork of it; anything else is asked of the server.

Tests, and what they call, start processes with `subprocess` as anywhere: its
Popen is the one below (conftest.py). What a fork cannot give is started as
ever (`script_of`): another program, Python or venv, a variable that is read
when an interpreter starts or a package is imported, `preexec_fn`. The parent
of a fork is the server, and /proc/PID/cmdline is the server's. With
PLUMBLINE_TEST_FORKS=no in its environment a command is started as ever.
"""
from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import re
import resource
import runpy
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent

#: sys.path of the first process.
PATH = [*sys.path]
#: Imported beforehand; only speed depends on them.
PACKAGES = ('reframe.frontend.cli', 'pandas', 'matplotlib.figure',
            'matplotlib.dates', 'matplotlib.ticker',
            'matplotlib.backends.backend_svg',
            'matplotlib.backends.backend_agg', 'jsonschema', 'yaml',
            'jinja2', 'difflib', 'statistics', 'duckdb')
#: Variables that are read when Python starts or a package is imported.
EARLY = re.compile('PYTHON|LC_|LANG|MPL|LD_|OMP_|OPENBLAS|XDG_|TZ$|HOME$')
#: Limits that a child inherits.
LIMITS = [number for name, number in vars(resource).items()
          if name.startswith('RLIMIT_')]
_Popen = subprocess.Popen
_HEAD = struct.Struct('=Q')
_begun = dict(os.environ)


# In the tests ---------------------------------------------------------------

#: Path of the server's socket; None: all is started as ever.
address: str | None = None


@contextlib.contextmanager
def server(path: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server with its socket there, which imports at the first start.

    It ends with this process, however that ends.
    """
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        listener.bind(path)
        listener.listen(64)
        process = _Popen(
            [sys.executable, __file__, str(listener.fileno())],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()], start_new_session=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.communicate()           # closes its input


def script_of(command: Sequence[Any], env: dict[str, str]
              ) -> tuple[str, str, list[str]] | None:
    """The Python script that a command would run, with which Python, and its
    arguments.

    None: a fork is not the same.
    """
    if address is None or env.get('PLUMBLINE_TEST_FORKS') == 'no':
        return None
    for name in env.keys() | _begun.keys():
        if EARLY.match(name) and env.get(name) != _begun.get(name):
            return None
    program, *words = map(os.fspath, command)

    def is_ours(venv: str) -> bool:
        return os.path.realpath(venv) == os.path.realpath(sys.prefix)

    if program == str(ROOT / 'plumb'):
        # What the shell script does.
        venv = f"{env.get('PLUMBLINE_WORK') or ROOT / '.plumbline'}/venv"
        if not env.get('PLUMBLINE_PYTHON') and is_ours(venv):
            return str(ROOT / 'cli'), f'{venv}/bin/python', words
    elif os.path.basename(program) == 'reframe':
        result = shutil.which(program, path=env.get('PATH', os.defpath))
        venv = os.path.realpath(result or '') + '/../..'
        if result and is_ours(venv):
            return result, os.path.normpath(f'{venv}/bin/python'), words
    elif words[:1] == [str(ROOT / 'cli' / 'site' / 'cases.py')] and is_ours(
            program.removesuffix('/bin/python')):
        return words[0], program, words[1:]
    return None


class Popen(_Popen):
    """subprocess.Popen; a fork of the server where that is the same."""

    _messages: socket.socket | None = None

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any,  # type: ignore[override]
                       close_fds: bool, pass_fds: Sequence[int], cwd: Any,
                       env: Any, startupinfo: Any, creationflags: Any,
                       shell: bool, p2cread: int, p2cwrite: int, c2pread: int,
                       c2pwrite: int, errread: int, errwrite: int,
                       restore_signals: bool, *rest: Any) -> None:
        variables = dict(os.environ if env is None else env)
        new_session, others = rest[4], (*rest[:4], *rest[5:])
        result = None
        if not (executable or shell
                or any(one not in (None, -1) for one in others)):
            result = script_of(args, variables)
        # Of a process with threads only the kernel can make a child.
        if not result or preexec_fn and not (
                FORKED and threading.active_count() == 1):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                startupinfo, creationflags, shell, p2cread, p2cwrite, c2pread,
                c2pwrite, errread, errwrite, restore_signals, *rest)
            return
        folder = os.path.abspath(cwd or '.')
        if os.path.isdir(result[0]) and 'PWD' in variables:
            variables['PWD'] = folder           # by the shell of ./plumb
        umask = os.umask(0)
        os.umask(umask)
        request = {
            'script': result[0], 'python': result[1],
            'args': result[2], 'env': variables,
            'cwd': folder, 'address': address, 'session': new_session,
            'umask': umask, 'cpus': list(os.sched_getaffinity(0)),
            'limits': [resource.getrlimit(one) for one in LIMITS]}
        fds = {number: number if fd == -1 else fd for number, fd in {
            0: p2cread, 1: c2pwrite, 2: errwrite,
            **{fd: fd for fd in pass_fds}}.items()}
        if preexec_fn:
            self.pid = os.fork()
            if not self.pid:
                anew(request, fds, preexec_fn)
        else:
            self._ask(request, fds)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite,  # type: ignore[attr-defined]
                             errread, errwrite)

    def _ask(self, request: dict[str, Any], fds: dict[int, int]) -> None:
        """Has the server fork."""
        text = json.dumps({**request, 'places': list(fds)}).encode()
        self._messages = socket.socket(socket.AF_UNIX)
        self._messages.connect(address)
        socket.send_fds(
            self._messages, [_HEAD.pack(len(text))], [*fds.values()]
        )
        self._messages.sendall(text)
        self.pid = self._number()

    def _number(self) -> int:
        """The next number that the server tells: pid, then wait status."""
        message = self._messages.recv(_HEAD.size)
        if not message:
            self.returncode = -signal.SIGKILL       # nobody can know
            raise RuntimeError('the server of tests/forks.py is gone')
        return _HEAD.unpack(message)[0]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._messages is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc]
        self._messages.setblocking(not wait_flags & os.WNOHANG)
        try:
            status = self._number()
        except BlockingIOError:
            return 0, 0
        self._messages.close()
        return self.pid, status

    def _internal_poll(self, *args: Any, **more: Any) -> int | None:
        if self._messages is None:
            return super()._internal_poll(*args, **more)  # type: ignore[misc]
        if self.returncode is None and self._messages.fileno() == -1:
            # Both were garbage: subprocess asks at each start that follows.
            self.returncode = -signal.SIGKILL       # nobody can know
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


# The server, and its children -----------------------------------------------

#: Whether this process is a child of the server.
FORKED = False
#: Variables that packages set when they are imported (ReFrame, one).
_of_packages: dict[str, str] = {}


def serve(listener: socket.socket) -> dict[str, Any]:
    """Forks for each request; returns it, in the child."""
    import selectors
    wake, woken = socket.socketpair()
    for one in (wake, woken, listener):
        one.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    for one in (wake, listener, sys.stdin):
        selector.register(one, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:        # the tests are over
                os._exit(0)
            if key.fileobj is wake:
                wake.recv(4096)
                while children:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if not pid:
                        break
                    with children.pop(pid) as connection, \
                            contextlib.suppress(OSError):
                        connection.sendall(_HEAD.pack(status))
                continue
            connection, _ = listener.accept()
            if PACKAGES[0] not in sys.modules:
                before = dict(os.environ)
                for name in PACKAGES:
                    importlib.import_module(name)
                _of_packages.update(os.environ.items() - before.items())
                gc.collect()
                gc.freeze()
            try:
                head, fds, _, _ = socket.recv_fds(connection, _HEAD.size, 64)
                text = b''
                while len(text) < _HEAD.unpack(head)[0]:
                    part = connection.recv(1 << 20)
                    assert part, 'cut short'
                    text += part
            except (OSError, AssertionError, struct.error):
                connection.close()
                continue
            pid = os.fork()
            if pid:
                children[pid] = connection
                connection.sendall(_HEAD.pack(pid))
                for fd in fds:
                    os.close(fd)
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            selector.close()
            for other in (wake, woken, listener, connection,
                          *children.values()):
                other.close()
            request = json.loads(text.decode('utf-8', 'surrogateescape'))
            place(dict(zip(request['places'], fds, strict=True)))
            return request


def place(fds: dict[int, int]) -> None:
    """Moves descriptors to their numbers."""
    above = max(fds) + 1
    moved = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above)
             for number, fd in fds.items()}
    for fd in set(fds.values()):
        os.close(fd)
    for number, fd in moved.items():
        os.dup2(fd, number)
        os.close(fd)


def anew(request: dict[str, Any], fds: dict[int, int], preexec_fn: Any
         ) -> NoReturn:
    """Runs a script in a fork of a child that has run one itself."""
    gc.freeze()                     # no destructor of what the parent has
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    place(fds)
    for name in os.listdir('/proc/self/fd'):
        if int(name) not in fds:
            with contextlib.suppress(OSError):
                os.close(int(name))
    preexec_fn()
    for name, module in list(sys.modules.items()):
        path = getattr(module, '__file__', None) or ''
        if (path.startswith(f'{ROOT}/') and name != '__main__'
                and not path.startswith(os.path.realpath(sys.prefix))):
            del sys.modules[name]
    become(request)


#: What was replaced: no destructor is to flush or close anything.
_old: list[Any] = []


def become(request: dict[str, Any]) -> NoReturn:
    """Runs a script as a new interpreter would, and ends."""
    global FORKED, address
    os.environ.clear()
    script, python = request['script'], request['python']
    folder = os.path.isdir(script)
    os.environ.update(request['env'] | _of_packages)
    if request['session']:
        os.setsid()
    os.chdir(request['cwd'])
    os.umask(request['umask'])
    os.sched_setaffinity(0, request['cpus'])
    for one, values in zip(LIMITS, request['limits'], strict=True):
        resource.setrlimit(one, values)
    for name, fd, mode in (('stdin', 0, 'r'), ('stdout', 1, 'w'),
                           ('stderr', 2, 'w')):
        old = getattr(sys, f'__{name}__')
        _old.append(old)
        raw = open(fd, f'{mode}b', 0, closefd=False)
        raw.name = f'<{name}>'
        binary = (raw if old.write_through else io.BufferedWriter(raw)
                  ) if mode == 'w' else io.BufferedReader(raw)
        new = io.TextIOWrapper(
            binary, old.encoding, old.errors, write_through=old.write_through,
            line_buffering=old.line_buffering)
        new.mode = mode
        setattr(sys, name, new)
        setattr(sys, f'__{name}__', new)
    sys.orig_argv = [python, script, *request['args']]
    sys.argv = sys.orig_argv[1:]
    prefix = str(Path(python).parent.parent)
    # Without the folder of the script that ran before, and without what that has added.
    sys.path[:] = [path.replace(sys.prefix, prefix) for path in PATH[1:]]
    sys.path.insert(0, script if folder else
                    str(Path(script).resolve().parent))
    _old.append(sys.modules['__main__'])
    main = sys.modules['__main__'] = types.ModuleType('__main__')
    sys.executable, sys.prefix, sys.exec_prefix = python, prefix, prefix
    subprocess.Popen = Popen                # type: ignore[misc]
    FORKED, address = True, request['address']
    code: Any = 0
    try:
        try:
            if folder:
                runpy._run_module_as_main('__main__', False)  # type: ignore[attr-defined]
            else:
                main.__file__ = script
                exec(compile(Path(script).read_bytes(), script, 'exec'),
                     vars(main))
        finally:
            threading._shutdown()           # type: ignore[attr-defined]
    except SystemExit as end:
        code = end.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        kind, value, trace = sys.exc_info()
        sys.excepthook(kind, value, trace)  # type: ignore[arg-type]
        code = 1
        if kind is KeyboardInterrupt:       # as python ends
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            code = -signal.SIGINT
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120                      # as python's
    if code == -signal.SIGINT:
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xff)


if __name__ == '__main__':
    address = ''
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
