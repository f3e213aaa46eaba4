"""Settings make another test case, copies do not: sessions of a stand-in for OMB."""
from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.checks.test_faults import (  # noqa: F401
    CASE,
    GOOD,
    PARAMS,
    faulty,
    flavour,
)
from tests.conftest import LIMIT

#: A setting that does not change what the stand-in prints.
SETTING = '-SOsuPt2pt.iterations=500'


def references(suite, **by_settings):
    """References of latency@8B: settings -> entry."""
    return {'OsuPt2pt': {
        '$index': ['$environ', 'source', 'params', 'settings'],
        flavour(suite): {'system': {PARAMS: {
            settings.replace('_', '='): {'latency@8B': entry}
            for settings, entry in by_settings.items()}}}}}


def results(suite) -> list[tuple[str, str, str]]:
    """Settings, copy and result of each measurement that counts, in their order."""
    return [(record['settings'], record['copy'], record['result'])
            for record in suite.records
            if (record['metric'], record['point']) == ('latency', '8 B')]


def test_a_failure_is_measured_again_with_its_settings(faulty):      # noqa: F811
    """By its ID, and its job script runs again from any folder."""
    faulty.write_references(references(
        faulty, **{'': GOOD, 'iterations_500': [1e-3, None, 0.1, 'us']}))
    done = faulty.run('none', SETTING)
    assert done.returncode == 1, done.stdout
    assert faulty.run('none', '--keep-stage-files').returncode == 0
    assert results(faulty) == [('iterations=500', '', 'fail'), ('', '', 'pass')]
    [ident, other] = dict.fromkeys(record['test_case'] for record in faulty.records)
    assert ident != other
    done = faulty.plumb('run', ident, FAULT='none')
    assert done.returncode == 1, done.stdout + done.stderr
    assert results(faulty)[-1] == ('iterations=500', '', 'fail')
    assert re.search(f'^Next: ./plumb run {ident}$', done.stdout, re.MULTILINE)
    done = faulty.plumb('run', ident, '-l')
    assert done.returncode == 0 and 'Found 1 check' in done.stdout, done.stdout
    done = faulty.plumb('run', 'deadbeef', '-l')
    assert done.returncode == 2
    assert 'no test case has the ID deadbeef' in done.stderr
    script = max(faulty.tmp.glob('work/stage/**/OsuPt2pt_*/rfm_job.sh'),
                 key=lambda path: path.stat().st_mtime)
    elsewhere = faulty.tmp / 'elsewhere'
    elsewhere.mkdir()
    subprocess.run(['bash', script], cwd=elsewhere, check=True, timeout=LIMIT,
                   env={**os.environ, **faulty.variables, 'FAULT': 'none'})
    assert not [*elsewhere.iterdir()]
    [again] = script.parent.glob('again.*')
    assert 'OSU MPI Latency Test' in (again / 'run.1.out').read_text()


@pytest.mark.parametrize('options, first', [
    ([], 'fail'), (['--max-retries=1'], 'pass')])
def test_each_copy_has_its_own_result(faulty, options, first):       # noqa: F811
    """The first execution is nine times too slow. A retry of its copy leaves the other
    copy as it was."""
    faulty.write_references(references(faulty, **{'': [1.0, None, 0.5, 'us']}))
    done = faulty.run('once', '--repeat=2', *options, GO=str(faulty.tmp / 'go'))
    assert done.returncode == (first == 'fail'), done.stdout
    assert sorted(results(faulty)) == [
        ('', 'repeat_no=0', first), ('', 'repeat_no=1', 'pass')]
    assert len({record['test_case'] for record in faulty.records}) == 1
    done = faulty.plumb('verdict')
    assert done.returncode == (first == 'fail')
    assert ('repeat_no=0' in done.stdout) == (first == 'fail'), done.stdout
