"""`plumb dev benchmark new`: a folder that runs at once, and no other change."""
from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture
def checkout(suite, copy_in_place):
    """plumb in a copy of the repository."""
    def plumb(*words: str, code: int = 0) -> str:
        done = copy_in_place.run('./plumb', *words, **suite.variables)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr
    plumb.folder = copy_in_place.folder
    return plumb


def python_and_yaml(folder: Path) -> int:
    """Lines of check, parser and family.yaml."""
    return sum(len((folder / name).read_text().splitlines()) for name in
               ('family.yaml', 'parser.py', f'{folder.name}.py'))


def run_new(checkout, name, check, metric, *options):
    """Makes a family and runs its check: the folder of the family."""
    output = checkout('dev', 'benchmark', 'new', name, *options)
    assert f'./plumb run -n {check}' in output
    output = checkout('run', '--', '-n', check)
    # Read there: the metric is one of that checkout.
    answer = checkout('sql', 'SELECT DISTINCT metric, guard FROM results',
                      '--json', '-')
    assert [metric, ''] in [[*row.values()] for row in json.loads(answer)], output
    assert not any(row['guard'] for row in json.loads(answer))
    return checkout.folder / 'checks' / name


@pytest.mark.strict
def test_a_new_family_with_a_server_runs(checkout):
    run_new(checkout, 'echo', 'Echo', 'echo_rate', '--service')


@pytest.mark.timeout(1800)             # half a dozen sessions and commands
def test_a_new_family_runs_and_holds_the_contracts(checkout, request):
    family = run_new(checkout, 'copy', 'Copy', 'copy_bandwidth')
    assert python_and_yaml(family) <= 60
    golden = checkout.folder / 'tests' / 'copy' / 'golden' / 'copy.txt'
    assert 'copy_bandwidth' in checkout('parse', 'copy', str(golden))
    source = family / 'src' / 'copy.c'
    source.write_text(source.read_text().replace(r'1.0\n', r'1.0 '))
    output = checkout('run', '--', '-n', 'Copy', code=1)
    assert re.search(
        r'run.[12].out:1: this is not the output of copy', output), output
    assert 'Traceback' not in output
    # The contracts of a second suite are half of the work; they check types again.
    if request.config.getoption('--strict-tests'):
        request.getfixturevalue('types_checked')
        # mypy writes to its cache: a copy of that of this repository.
        shutil.copytree(ROOT / '.plumbline' / 'mypy',
                        checkout.folder / '.plumbline' / 'mypy')
    checkout('selftest', '--', '-n0', '-q', 'tests/copy',
             *['tests/test_contracts.py'] * request.config.getoption(
                 '--strict-tests'))


@pytest.mark.parametrize('name, words', [
    ('loadgen', 'does not overwrite'), ('../x', 'a-z, 0-9 and _'),
    ('class', 'not a valid name for a family'),
    ('osu_rma', 'already has a class OsuRma'),
    ('a_name_that_is_long', 'longer than 12 characters')])
def test_a_name_that_cannot_be(name, words):
    done = subprocess.run([ROOT / 'plumb', 'dev', 'benchmark', 'new', name],
                          text=True, capture_output=True)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(ROOT.glob('.new-*'))
