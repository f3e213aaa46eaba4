"""Tests side by side end as they would one after another."""
from __future__ import annotations

import re
import subprocess

import pytest
from conftest import FEWER, REQUESTED, nested_tests

from cli.session import commands

PROBE = '''
import fcntl, os, time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def crowd():
    """How many were at work at the worst moment of this test."""
    (HERE / f'here.{os.getpid()}').touch()
    worst = 0
    for _ in range(20):
        worst = max(worst, len(list(HERE.glob('here.*'))))
        time.sleep(0.02)
    (HERE / f'here.{os.getpid()}').unlink()
    return worst

@pytest.mark.parametrize('n', range(6))
def test_with_others(n):
    print('crowd', crowd(), file=open(HERE / f'with.{n}', 'w'))

@pytest.mark.alone
@pytest.mark.parametrize('n', range(2))
def test_alone(n):
    assert crowd() == 1

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
            text=True, capture_output=True, cwd=tmp_path, timeout=120)
    return run


def test_others_at_the_same_time_but_for_those_that_want_to_be_alone(
        side_by_side, tmp_path):
    done = side_by_side(PROBE)
    assert done.returncode == 0 and '10 passed' in done.stdout, done.stdout
    crowds = [int(p.read_text().split()[1]) for p in tmp_path.glob('with.*')]
    assert len(crowds) == 6 and max(crowds) > 1
    assert (tmp_path / 'made').read_text() == 'x'


def test_a_worker_that_dies_ends_the_run_as_a_failure(side_by_side):
    done = side_by_side('import os\ndef test_bad(): os.kill(os.getpid(), 9)\n'
                        'def test_good(): pass\n')
    assert done.returncode == 1, done.stdout
    assert 'crashed while running' in done.stdout, done.stdout
    assert re.search('1 failed', done.stdout), done.stdout


def test_a_test_that_hangs_ends_by_its_time_out(side_by_side):
    done = side_by_side('import time\ndef test_bad(): time.sleep(60)\n'
                        'def test_good(): pass\n', '--timeout=2')
    assert done.returncode == 1 and 'Timeout' in done.stdout, done.stdout
    assert '1 failed, 1 passed' in done.stdout, done.stdout


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


SHARING = '''
import os, time
from pathlib import Path
import pytest

@pytest.fixture(scope='module')
def made():
    open(Path(__file__).with_name('made'), 'a').write('x')

@pytest.mark.parametrize('n', range(6))
def test_shares(made, n):
    time.sleep(0.2)
'''


def test_what_tests_of_a_file_share_is_made_once(side_by_side, tmp_path):
    done = side_by_side(SHARING)
    assert done.returncode == 0 and '6 passed' in done.stdout, done.stdout
    assert (tmp_path / 'made').read_text() == 'x'
