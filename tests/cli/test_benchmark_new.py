"""`plumb dev benchmark new`: a folder that runs at once, and no other change."""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from cli.setup import benchmark
from cli.setup.venv import SetupError
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


#: Tests of test_contracts.py that look at each family.
CONTRACTS = 'copy or place or damaged or by_name or linter'


@pytest.mark.timeout(1800)             # half a dozen commands, which no fork can be
def test_a_new_family_runs_and_holds_the_contracts(checkout, copy_in_place, request):
    assert './plumb run -n Copy' in checkout('dev', 'benchmark', 'new', 'copy')
    family = checkout.folder / 'checks' / 'copy'
    assert python_and_yaml(family) <= 60
    output = checkout('run', '--', '-n', 'Copy')
    # Read there: the metrics are those of that checkout.
    answer = checkout('sql', 'SELECT DISTINCT metric, guard FROM results',
                      '--json', '-')
    rows = [[*row.values()] for row in json.loads(answer)]
    assert ['copy_bandwidth', ''] in rows, output
    assert not any(guard for _, guard in rows)
    golden = checkout.folder / 'tests' / 'copy' / 'golden' / 'copy.txt'
    assert 'copy_bandwidth' in checkout('parse', 'copy', str(golden))
    # The contracts of a second suite are half of the work.
    if not request.config.getoption('--strict-tests'):
        checkout('selftest', '--', '-n0', '-q', 'tests/copy')
        return
    checkout('selftest', '--', '-n0', '-q', 'tests/copy', 'tests/test_contracts.py',
             '-k', CONTRACTS)
    if sys.version_info[:2] == (3, 11):         # as test_types_are_right
        done = copy_in_place.run(sys.executable, '-m', 'mypy', 'checks/copy')
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize('name, words', [
    ('loadgen', 'does not overwrite'), ('../x', 'a-z, 0-9 and _'),
    ('class', 'not a valid name for a family'),
    ('osu_rma', 'already has a class OsuRma'),
    ('a_name_that_is_long', 'longer than 12 characters')])
def test_a_name_that_cannot_be(name, words):
    with pytest.raises(SetupError) as caught:
        benchmark.benchmark(argparse.Namespace(name=name))
    assert words in str(caught.value)
    assert not list(ROOT.glob('.new-*'))
