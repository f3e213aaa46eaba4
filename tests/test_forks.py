"""What tests/forks.py starts is what a new interpreter would be."""
from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from tests import forks
from tests.checks.test_faults import another_site
from tests.conftest import LIMIT, OSU, ROOT

#: At the end of a site's configuration: all that a process can tell of
#: itself, into one file a program.
PROBE = r'''
import json, locale, os, resource, signal, sys, threading
_mask = os.umask(0)
os.umask(_mask)
_ours = [name for name, module in sys.modules.items() if str(
    getattr(module, '__file__', '')).startswith(os.environ['ROOT'] + '/')
    and '.plumbline' not in str(module.__file__)]
open(os.environ['PROBE'] + '.' + os.path.basename(sys.argv[0]), 'w').write(
    json.dumps({
        'argv': sys.argv, 'orig_argv': sys.orig_argv, 'path': sys.path,
        'prefix': [sys.prefix, sys.exec_prefix, sys.base_prefix],
        'executable': sys.executable, 'flags': repr(sys.flags),
        'env': dict(os.environ), 'cwd': os.getcwd(), 'umask': _mask,
        'main': [vars(sys.modules['__main__']).get(name) for name in
                 ('__name__', '__file__', '__package__')],
        'ours': sorted(_ours), 'threads': threading.active_count(),
        'signals': [str(signal.getsignal(n)) for n in range(1, 32)],
        'blocked': sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        'limits': [resource.getrlimit(n) for n in range(16)],
        'cpus': sorted(os.sched_getaffinity(0)),
        'nice': os.nice(0), 'ids': [os.getresuid(), os.getresgid()],
        'leads': [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        'locale': locale.setlocale(locale.LC_ALL),
        'streams': [[s.encoding, s.errors, s.line_buffering, s.fileno(),
                     s.write_through, s.newlines, s.mode, s.name]
                    for s in (sys.stdin, sys.stdout, sys.stderr)],
        'fds': sorted(int(n) for n in os.listdir('/proc/self/fd')
                      if os.path.exists('/proc/self/fd/' + n))},
        default=str))
print('to stdout')
print('to stderr', file=sys.stderr)
'''


def message(suite, name, forked, start):
    """Output, exit code, and what the processes told of themselves."""
    probe = suite.tmp / name
    done = start({**os.environ, **suite.variables, 'ROOT': str(ROOT),
                  'PROBE': str(probe),
                  'PLUMBLINE_TEST_FORKS': 'yes' if forked else 'no'})
    result = {path.suffix: json.loads(path.read_text()) for path in
             suite.tmp.glob(f'{name}.*')}
    for one in result.values():
        # The mark itself, and where ReFrame lies: through which link.
        for variable in ('PLUMBLINE_TEST_FORKS', 'PROBE', '_',
                         'RFM_INSTALL_PREFIX'):
            one['env'].pop(variable, None)
    return done, result


@pytest.mark.strict
def test_a_fork_is_what_a_start_is(suite, tmp_path):
    another_site(suite, tmp_path, PROBE)
    umask = os.umask(0o027)
    try:
        def start(env):
            return subprocess.run(
                [ROOT / 'plumb', 'run', '--', *OSU, '-n', '.*NoSuchCheck'],
                text=True, env=env, cwd=tmp_path, start_new_session=True,
                stdin=subprocess.DEVNULL, capture_output=True)
        # Later runs find the listing of the site, which the first one makes.
        start({**os.environ, **suite.variables, 'ROOT': str(ROOT),
               'PROBE': str(suite.tmp / 'first')})
        forked, by_fork = message(suite, 'forked', True, start)
        plain, by_start = message(suite, 'plain', False, start)
    finally:
        os.umask(umask)
    assert forked.returncode == plain.returncode == 2
    assert set(by_fork) == set(by_start) == {'.py', '.reframe'}
    for name, fork in by_fork.items():
        fresh = by_start[name]
        for what in (fork, fresh):      # of a session, which has its own name
            what['env'] = {k: re.sub(r'\d{8}T\d+Z-\w+|tmp\w{8}', 'RUN', v)
                           for k, v in what['env'].items()}
        for key, value in fork.items():
            assert value == fresh[key], (name, key)

    def plainly(text):
        # Several processes write, and flush at different times; a fork may write
        # again what the process before it had not flushed.
        return {*re.sub(r'\d{8}T\d+Z-\w+|\d[\d:.T-]+|tmp\w{8}', 'N',
                        text).splitlines()}
    assert plainly(forked.stdout) == plainly(plain.stdout)
    assert plainly(forked.stderr) == plainly(plain.stderr)


def configuration(tmp_path, suite, code):
    """Command and environment of a ReFrame that runs this code."""
    config = tmp_path / 'config.py'
    config.write_text(f"""
if True:
    {code}
site_configuration = {{'systems': [{{
    'name': 'here', 'hostnames': ['.*'], 'partitions': [{{
        'name': 'login', 'scheduler': 'local', 'launcher': 'local',
        'environs': ['cc']}}]}}],
    'environments': [{{'name': 'cc', 'cc': 'cc'}}]}}
""")
    programs = f'{suite.variables["PLUMBLINE_WORK"]}/bin'
    return ['reframe', '-C', str(config), '--show-config=systems'], {
        **os.environ, 'PATH': f'{programs}:{os.environ["PATH"]}',
        'RFM_PREFIX': str(tmp_path)}


def both(command, env, **more):
    """Exit code and last line of a fork, then of a start."""
    for mark in ('yes', 'no'):
        job = subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **more,
                          env={**env, 'PLUMBLINE_TEST_FORKS': mark})
        assert (job._messages is not None) == (mark == 'yes')
        text, _ = job.communicate(timeout=LIMIT)
        assert job.poll() == job.wait() == job.returncode
        yield job.returncode, text.splitlines()[-1:]


@pytest.mark.parametrize('code, ends', [
    ('import atexit; atexit.register(print, "at the end"); 1 / 0', 1),
    ('import os, signal; os.kill(os.getpid(), signal.SIGKILL)', -9)])
def test_a_fork_ends_as_a_start(suite, tmp_path, code, ends):
    command, env = configuration(tmp_path, suite, code)
    fork, start = both(command, env, cwd=tmp_path)
    assert fork == start and fork[0] == ends


@pytest.mark.parametrize('more', [
    {'PYTHONHASHSEED': '1'}, {'LC_ALL': 'C.UTF-8'},
    {'PLUMBLINE_PYTHON': 'python3'}, {'PLUMBLINE_WORK': '/nonexistent'},
    {'PLUMBLINE_TEST_FORKS': 'no'}])
def test_what_a_fork_cannot_give_is_started(more):
    env = {key: value for key, value in os.environ.items()
           if not key.startswith('PLUMBLINE_')}
    assert forks.script_of([ROOT / 'plumb', 'env'], env)
    assert not forks.script_of([ROOT / 'plumb', 'env'], {**env, **more})
    assert not forks.script_of(['bash', ROOT / 'plumb'], env)
    assert not forks.script_of(['reframe'], {**env, 'PATH': '/usr/bin'})
