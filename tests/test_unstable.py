"""A test that fails beside the others and passes alone is told by name."""
from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

from cli.session import commands
from tests import unstable
from tests.conftest import FEWER, ROOT, nested_tests

#: Fails in a worker of xdist, and where the file `always` is.
LUCK = '''
import os
from pathlib import Path
import pytest

HERE = Path(__file__).parent
BESIDE = 'PYTEST_XDIST_WORKER' in os.environ

def test_good(): pass

@pytest.mark.alone
@pytest.mark.parametrize('word', ['latency@8B', 'a b'])
def test_luck(word):
    assert not BESIDE
    how = HERE / 'again'
    if how.exists():
        exec(how.read_text())
'''


@pytest.fixture
def tests(tmp_path, capfd, monkeypatch):
    """Runs a file of tests as `./plumb selftest` runs the suite."""
    # These tests may be beside others themselves.
    for name in [name for name in os.environ if 'XDIST' in name]:
        monkeypatch.delenv(name)

    def run(text, again='pass'):
        (tmp_path / 'again').write_text(again)
        pytest = nested_tests(tmp_path, text)
        code = unstable.run(
            [*pytest, *commands.pytest_parallel_options(cluster=False), FEWER,
             str(tmp_path)],
            [*pytest, '-n0'], cwd=tmp_path)
        return code, capfd.readouterr().out
    return run


def test_what_passes_alone_is_unstable_and_no_failure(tests):
    code, output = tests(LUCK)
    assert code == 0, output
    assert '2 failed, 1 passed' in output and '2 passed' in output
    assert sorted(output.splitlines()[-2:]) == [
        'unstable: failed beside the others, passed alone: '
        f'test_it.py::test_luck[{word}]' for word in ('a b', 'latency@8B')]


@pytest.mark.parametrize('again', ['assert word == "a b"',
                                   'pytest.skip("not today")'])
def test_what_does_not_pass_alone_is_a_failure(tests, again):
    code, output = tests(LUCK, again)
    assert code == 1 and 'again, alone' in output and 'unstable' not in output


@pytest.mark.parametrize('text', [
    LUCK.replace("['latency@8B', 'a b']", 'range(4)'),
    LUCK.replace('assert not BESIDE', 'if BESIDE: os.kill(os.getpid(), 9)'),
    LUCK + '    no Python\n'], ids=['many', 'a crash', 'nothing collected'])
def test_what_luck_does_not_explain_is_not_run_again(tests, text):
    code, output = tests(text)
    assert code == 1 and 'again, alone' not in output
    assert 'unstable' not in output


def test_all_good_says_nothing_more(tests):
    code, output = tests('def test_good(): pass\n')
    assert code == 0 and 'again' not in output and '1 passed' in output


#: Runs pytest as `./plumb selftest` does.
CALL = 'import sys; from tests import unstable; unstable.call(sys.argv[1:])'
SLOW = '''
import time
import pytest

@pytest.fixture
def server():
    yield
    print("stopped", flush=True)

def test_slow(server):
    print("started", flush=True)
    time.sleep(60)
'''


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM,
                                    signal.SIGHUP])
@pytest.mark.parametrize('shell', ['exec "$@"', 'trap "" INT; exec "$@"'])
def test_who_ends_it_ends_what_the_tests_started(tmp_path, number, shell):
    with subprocess.Popen(
            ['sh', '-c', shell, 'sh', sys.executable, '-c', CALL,
             *nested_tests(tmp_path, SLOW), '-s', '-n0', str(tmp_path)],
            cwd=ROOT, text=True, stdout=subprocess.PIPE) as running:
        output = iter(running.stdout)
        while 'started' not in next(output):
            pass
        running.send_signal(number)
        text = ''.join(output)
        assert 'stopped' in text and '1 passed' not in text


#: Prints how often it was interrupted before its input ended.
COUNT = '''
import signal, sys
count = 0
def interrupted(*_):
    global count
    count += 1
    print('interrupted', flush=True)
signal.signal(signal.SIGINT, interrupted)
print('ready', flush=True)
sys.stdin.readline()
print(f'{count} times', flush=True)
'''


def test_the_terminal_interrupts_once(tmp_path):
    """^C reaches pytest from the terminal: it is not passed on as well."""
    program = tmp_path / 'count.py'
    program.write_text(COUNT)
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, '-c', CALL, sys.executable,
                                  str(program)])
    with open(terminal, 'r+b', buffering=0) as screen:
        output = b''
        for expected, typed in ((b'ready', b'\x03'), (b'interrupted', b'\n'),
                                (b'times', b'')):
            while expected not in output:
                output += screen.read(100)
            screen.write(typed)
    os.waitpid(pid, 0)
    assert b'1 times' in output, output
