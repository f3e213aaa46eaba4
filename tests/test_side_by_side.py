"""Tests side by side end as they would one after another."""
from __future__ import annotations

import subprocess

import pytest
from conftest import FEWER, LIMIT, REQUESTED, nested_tests

from cli.session import commands

PROBE = '''
import fcntl, os, time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def crowd(enough):
    """How many were at work at the worst moment of this test, which ends when
    that was enough."""
    (HERE / f'here.{os.getpid()}').touch()
    worst, end = 0, time.monotonic() + 60
    while not worst or not enough() and time.monotonic() < end:
        worst = max(worst, len(list(HERE.glob('here.*'))))
        if worst > 1:
            (HERE / 'met').touch()
        time.sleep(0.02)
    (HERE / f'here.{os.getpid()}').unlink()
    return worst

@pytest.mark.parametrize('n', range(6))
def test_with_others(n):
    crowd((HERE / 'met').exists)

@pytest.mark.alone
@pytest.mark.parametrize('n', range(2))
def test_alone(n):
    end = time.monotonic() + 0.4
    assert crowd(lambda: time.monotonic() > end) == 1

def test_once(once):
    made = once('thing', lambda f: open(HERE / 'made', 'a').write('x'))
    assert made.is_dir()

def test_once_more(once):
    test_once(once)
'''


@pytest.fixture
def side_by_side(tmp_path):
    """Runs tests of a file with this suite's own conftest and options."""
    def run(text, *more):
        return subprocess.run(
            [*nested_tests(tmp_path, text),
             *commands.pytest_parallel_options(cluster=False), FEWER, *more, tmp_path],
            text=True, capture_output=True, cwd=tmp_path, timeout=LIMIT)
    return run


def test_others_at_the_same_time_but_for_those_that_want_to_be_alone(
        side_by_side, tmp_path):
    done = side_by_side(PROBE)
    assert done.returncode == 0 and '10 passed' in done.stdout, done.stdout
    assert (tmp_path / 'met').exists()
    assert (tmp_path / 'made').read_text() == 'x'


def test_what_was_left_out_is_told(side_by_side):
    text = 'import pytest\ndef test_always(): pass\n'
    for marker in REQUESTED:
        text += f'@pytest.mark.{marker}\ndef test_{marker}(): pass\n'
    lines = {f'     1  {marker} tests: ./plumb selftest --{marker}'
             for marker in REQUESTED}
    done = side_by_side(text)
    assert lines <= {*done.stdout.splitlines()} and '1 passed' in done.stdout
    done = side_by_side(text, *REQUESTED.values())
    assert 'Not selected' not in done.stdout, done.stdout
    assert f'{1 + len(REQUESTED)} passed' in done.stdout, done.stdout
