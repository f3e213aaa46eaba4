"""The main job, for real: real MPI, the embedded programs, a page."""
from __future__ import annotations

import json
import re
import shutil

import pytest
from conftest import OSU, git, two_cpus
from data.perflogs_factory import case, short_id, write

from cli import __main__
from cli.session import commands
from config.version import VERSION

#: Few iterations: where other tests use the CPUs, each waits for its turn.
FEW = [f'-S{check}.{setting}' for check in ('OsuPt2pt', 'OsuCollective', 'OsuRma')
       for setting in ('iterations=200', 'warmup=20')]
PICK = ['--', *OSU, '-E', 'program in ("osu_latency", "osu_ibarrier", "osu_init")',
        '-SOsuPt2pt.min_size=4', *FEW]


@two_cpus
def test_run_records_judges_and_shows(suite):
    """And leaves the repository as it was."""
    before = git('status', '--porcelain') if shutil.which('git') else ''
    done = suite.plumb('run', '--require-compared', *PICK)
    text = done.stdout + done.stderr
    assert done.returncode == 3, text
    assert 'NOT COMPARED: 3 no_reference of 3 test cases · ' in done.stdout
    assert 'osu_latency (embedded) intra_node' in done.stdout
    # Neither passed nor failed; and says what to do.
    assert len(re.findall('^no_reference ', done.stdout, re.M)) == 3, done.stdout
    assert re.search(r'^ +3 test cases: \(no reference: needs \d+ more sessions\)$',
                     done.stdout, re.M), done.stdout
    assert '3 of the test cases have no reference' in done.stdout
    assert './plumb references calibrate' in done.stdout
    # No build of a program runs beside a measurement.
    [report] = (suite.tmp / 'perflogs' / 'sessions').glob('*.json')
    info = json.loads(report.read_text())['session_info']
    assert ' --exec-policy=serial ' in info['cmdline']
    records = suite.records
    assert {r['program'] for r in records} == {
        'osu_latency', 'osu_ibarrier', 'osu_init'}
    assert {r['source'] for r in records} == {'embedded'}
    assert {r['emulated'] for r in records} == {'0'}
    assert {r['suite'] for r in records} == {VERSION}
    curve = [r for r in records if r['program'] == 'osu_latency'
             and r['metric'] == 'latency']
    assert {r['point'] for r in curve} == {f'{2 ** n} B' for n in range(2, 23)}
    for metric in ('wall_time', 'user_time', 'system_time'):
        assert sum(r['metric'] == metric for r in records) == 3
    page = suite.tmp / 'report' / 'index.html'
    assert page.is_file() and 'osu_latency' in page.read_text()
    assert before == (git('status', '--porcelain') if shutil.which('git') else '')


@two_cpus
def test_from_runs_to_references_to_a_verdict(suite):
    pick = ['--', *OSU, '-E', 'program == "osu_put_latency"', '--tag',
            'quick', '-SOsuRma.max_size=1024', *FEW]
    done = suite.plumb('run', *pick)
    assert done.returncode == 0, done.stdout + done.stderr
    suite.again(3)
    # Sessions of `run` count, so one round is enough.
    path = suite.tmp / 'references' / 'osu.yaml'
    done = suite.plumb('references', 'calibrate', *pick)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'round 1: 1 of 1 test case ready' in done.stdout
    assert f'{path}: new file' in ' '.join(done.stdout.split())
    assert '$from' in path.read_text()
    # Which metrics have a tolerance depends on the machine.
    text, count = re.subn(
        r'latency@8B: \[([\d.]+),.*', lambda m: 'latency@8B: '
        f'[{float(m[1]) * 1e-4:.9f}, null, 0.1, us]', path.read_text())
    assert count == 1
    path.write_text(text)
    done = suite.plumb('run', *pick)
    assert done.returncode == 1
    assert 'have no reference' not in done.stdout and 'Bring-up' not in done.stdout
    assert 'against its reference' in done.stdout
    assert '1 fail of 1 test case' in done.stdout


@pytest.mark.parametrize('results, expected', [
    ([('a', 1, 'pass'), ('b', 1, 'pass'), ('a', 2, 'pass'), ('b', 2, 'pass')], ''),
    ([], ''),
    ([('a', 1, 'pass'), ('b', 1, 'pass'), ('a', 2, 'pass'), ('b', 2, 'cancelled')],
     'b')])
def test_suspects_are_selected_and_without_any_the_command_ends_at_once(
        tmp_path, monkeypatch, capsys, results, expected):
    """An empty list does not run the default mode."""
    monkeypatch.setenv('PLUMBLINE_PERFLOGS', str(tmp_path))
    write(tmp_path, [case(*one, system='local') for one in results])
    ids = [short_id(case(name, 1, system='local')) for name in expected]
    assert commands.suspect_ids('local') == ids
    if not ids:
        monkeypatch.setattr(commands, 'prepare_session', lambda _: pytest.fail('runs'))
        assert commands.run(__main__.parse_command_line(['run', '--suspects'])) == 0
        assert capsys.readouterr().out == 'no test case has to be measured again\n'
