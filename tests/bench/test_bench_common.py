"""What the bench scripts share: rounds, ratios, exit codes, programs."""
from __future__ import annotations

import os
import subprocess
import sys

import common
import pytest

from tests.conftest import ROOT

BENCH = ROOT / 'bench'


def test_programs_alternate_and_ratios_are_of_the_rounds():
    order = []
    samples = common.measure_alternately(3, 'AB', lambda name: order.append(name)
                                         or len(order))
    assert ''.join(order) == 'ABBAAB'
    assert samples == {'A': [1, 4, 5], 'B': [2, 3, 6]}
    assert common.median_ratio([2, 30, 400], [1, 10, 100]) == 3


@pytest.mark.parametrize('body, code, text', [
    ('return True', 0, ''), ('return False', 1, ''),
    ('raise common.Missing("no memtier")', 2, 'x: no memtier\n'),
    ('common.run(["false"], "building y")', 2,
     'x: building y failed with exit code 1: \n'),
    ('common.run(["sleep", "60"], "y", limit=0.1)', 2,
     'x: y: killed after 0.1 s\n'),
    ('common.keep_server_running(["false"], 1).__enter__()', 2,
     "x: ['false']: ended with exit code 1\n")])
def test_exit_codes(tmp_path, body, code, text):
    (tmp_path / 'x.py').write_text(
        f'import sys\nsys.path.insert(0, {str(BENCH)!r})\nimport common\n'
        f'def main():\n    {body}\ncommon.run_main_and_exit(main)\n')
    done = subprocess.run([sys.executable, 'x.py'], cwd=tmp_path, text=True,
                          capture_output=True)
    assert (done.returncode, done.stderr) == (code, text)


def test_a_comparison_with_nothing_is_no_success():
    done = subprocess.run(
        [sys.executable, BENCH / 'store_load.py', 'cost', '--redis-server', 'x'],
        text=True, capture_output=True)
    assert done.returncode == 2 and 'cost needs --memtier' in done.stderr


def test_without_the_original_no_server_is_compared(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCH / 'optcast_embedded.py'], text=True,
        capture_output=True, env={**os.environ, 'OPTCAST_PREFIX': str(tmp_path)})
    assert done.returncode == 2 and done.stderr.startswith(
        f'optcast_embedded: OPTCAST_PREFIX={tmp_path}: no '
        'optcast-reduction-server'), done.stderr


def test_the_cost_of_reading_perflogs_is_measured():
    done = subprocess.run(
        [sys.executable, BENCH / 'ingest.py', '--records', '1000',
         '--rounds', '1'], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('\n') == 9
