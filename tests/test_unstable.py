"""A test that fails beside the others and passes alone is told by name."""
from __future__ import annotations

import os
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

    def run(text, *options, again='pass', outcomes=None):
        (tmp_path / 'again').write_text(again)
        pytest = nested_tests(tmp_path, text)
        code = unstable.run(
            [*pytest, *commands.pytest_parallel_options(cluster=False), FEWER,
             str(tmp_path), *options],
            [*pytest, '-n0'], outcomes, cwd=tmp_path)
        return code, capfd.readouterr().out
    return run


def test_what_passes_alone_is_unstable_and_is_left_out_elsewhere(tests, tmp_path):
    outcomes = tmp_path / 'outcomes.json'
    other = 'def test_other(): pass\n'
    code, output = tests(f'{LUCK}\ndef test_late(): pytest.skip("no")\n',
                         outcomes=outcomes)
    assert code == 0, output
    assert '2 failed, 1 passed, 1 skipped' in output and '2 passed' in output
    assert sorted(output.splitlines()[-2:]) == [
        'unstable: failed beside the others, passed alone: '
        f'test_it.py::test_luck[{word}]' for word in ('a b', 'latency@8B')]
    # What was skipped there is not left out, and an empty file has no test.
    code, output = tests(f'{LUCK}\ndef test_late(): pass\n{other}',
                         f'--except-passed={outcomes}')
    assert code == 0 and '2 passed in' in output, output
    assert '3 tests that passed elsewhere were left out' in output
    outcomes.write_text('')
    code, output = tests(other, f'--except-passed={outcomes}')
    assert code == 0 and '1 passed' in output, output


@pytest.mark.parametrize('again', ['assert word == "a b"',
                                   'pytest.skip("not today")'])
def test_what_does_not_pass_alone_is_a_failure(tests, again):
    code, output = tests(LUCK, again=again)
    assert code == 1 and 'again, alone' in output and 'unstable' not in output


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


@pytest.mark.parametrize('number, shell', [
    (signal.SIGINT, 'trap "" INT; exec "$@"'), (signal.SIGTERM, 'exec "$@"')])
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
