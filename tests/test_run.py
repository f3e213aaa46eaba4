"""The main job, for real: real MPI, the embedded programs, a page."""
from __future__ import annotations

from conftest import ROOT

PICK = ['--', '-E', 'program in ("osu_latency", "osu_ibarrier", "osu_init")']


def test_run_records_judges_and_shows(suite):
    done = suite.plumb('run', *PICK)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert '3 cases, 0 failed' in done.stdout
    assert 'Bring-up' in done.stdout
    records = suite.records
    assert {r['program'] for r in records} == {
        'osu_latency', 'osu_ibarrier', 'osu_init'}
    assert {r['source'] for r in records} == {'embedded'}
    assert {r['emulated'] for r in records} == {'0'}
    assert {r['speed'] for r in records} <= {'fast', 'slow', 'mixed'}
    curve = [r for r in records if r['program'] == 'osu_latency'
             and r['metric'] == 'latency']
    assert len(curve) >= 22 and curve[-1]['point'] == '4194304 B'
    for metric in ('wall_time', 'user_time', 'system_time'):
        assert sum(r['metric'] == metric for r in records) == 3
    page = suite.tmp / 'report' / 'index.html'
    assert page.is_file() and 'osu_latency' in page.read_text()

    # Too few runs for references; after two more there are enough, and the
    # next run is judged by them.
    done = suite.plumb('references', 'propose')
    assert done.returncode == 1 and '3 runs' in done.stdout + done.stderr


def test_repeats_are_records_and_their_median_is_judged(suite):
    done = suite.plumb('run', '--', '-E', 'program == "osu_fop_latency"',
                       '--tag', 'quick', '-S', 'repeats=3')
    assert done.returncode == 0, done.stdout + done.stderr
    values = {r['repeat']: float(r['value']) for r in suite.records
              if r['metric'] == 'latency'}
    assert set(values) == {'0', '1', '2', '3'}
    assert values['0'] == sorted(values[r] for r in '123')[1]


def test_repository_is_left_as_it_was(suite):
    import subprocess
    status = ['git', 'status', '--porcelain']
    before = subprocess.run(status, cwd=ROOT, text=True, capture_output=True)
    suite.plumb('run', '--', '-n', 'OsuStartup')
    after = subprocess.run(status, cwd=ROOT, text=True, capture_output=True)
    assert before.stdout == after.stdout
