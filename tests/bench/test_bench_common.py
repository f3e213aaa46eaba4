"""What the bench scripts share: rounds, ratios, exit codes, programs."""
from __future__ import annotations

import shlex
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


def solve(tmp_path, script):
    """bench/stacks.py on one pair, with a script in place of Spack."""
    spack = tmp_path / 'bin' / 'spack'
    if script:
        spack.parent.mkdir()
        spack.write_text(f'#!/bin/sh\n{script}\n')
        spack.chmod(0o755)
    return subprocess.run(
        [sys.executable, BENCH / 'stacks.py', '--site', 'alps', '--stack',
         'keyvalue'], text=True, capture_output=True, env={
             'PATH': '/usr/bin:/bin', 'SPACK_ROOT': str(tmp_path),
             'FAKE_SPACK': '',
             'FAKE_ENVS': str(ROOT / 'spack-envs'),
             'FAKE_CALLS': str(tmp_path / 'calls')})


def test_stacks_are_solved_with_settings_for_a_foreign_machine(tmp_path):
    flags = tmp_path / 'flags'
    done = solve(tmp_path, f'''
if [ "$1" = -c ]; then
    echo "$2 $4 $({shlex.quote(sys.executable)} -c '
import platform; print(platform.machine())')" >>{flags}
    shift 4
fi
exec {shlex.join([sys.executable, str(ROOT / 'tests/fake/spack')])} "$@"''')
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith('| ok |')
    assert flags.read_text().split() == [
        'concretizer:targets:host_compatible:false',
        'concretizer:concretization_cache:enable:false', 'aarch64']


def test_a_stack_that_is_not_solved_and_a_spack_that_is_missing(tmp_path):
    done = solve(tmp_path, '')
    assert done.returncode == 2 and 'stacks: cannot run ' in done.stderr
    assert 'bin/spack: ' in done.stderr
    done = solve(tmp_path, '[ "$1" = --version ] && echo 1.2.0 && exit\n'
                 'echo "==> Error: no such variant" >&2; exit 1')
    assert done.returncode == 1
    assert ' for alps: spack concretize failed: ==> Error: no such' in done.stdout


def test_the_cost_of_reading_perflogs_is_measured():
    done = subprocess.run(
        [sys.executable, BENCH / 'ingest.py', '--records', '1000',
         '--rounds', '1'], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('\n') == 9
