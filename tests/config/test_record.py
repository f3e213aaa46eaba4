"""ReFrame's record of sessions: report, rows and log of plain `reframe -r`."""
from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import LIMIT, OSU, ROOT, Suite, suite_in, until

from checks.core import record as check_record
from checks.core.base import Benchmark
from config.records import attached
from config.records.columns import DELIMITER, reframe_names

STARTUP = [*OSU, '-n', '^OsuStartup%program=osu_init']
LATENCY = [*OSU, '-n', '^OsuPt2pt%program=osu_latency%']
#: Passes of a secret of the caller; no file may have it.
SECRET = 'correct-horse-battery'


class Session:
    """A session of plain ReFrame and its record."""

    def __init__(self, suite: Suite, *options: str, code: int = 0, **more: str) -> None:
        folder = suite.tmp / 'perflogs' / 'sessions'
        before = set(folder.glob('*'))
        done = suite.reframe('-r', *options, CALLERS_TOKEN=SECRET, **more)
        self.text = done.stdout + done.stderr
        assert done.returncode == code, self.text
        self.log, self.report_path = (
            next(path for path in set(folder.glob(f'*{suffix}')) - before)
            for suffix in ('.log', '.json'))
        self.report = json.loads(self.report_path.read_text())
        #: Test cases and builds of all runs, retries included.
        self.entries = [entry for run in self.report['runs']
                        for entry in run['testcases']]
        self.cases = [entry for entry in self.entries if not entry['fixture']]
        self.rows = [row for row in rows_of(suite)
                     if row['session'] == self.log.stem]


def rows_of(suite: Suite) -> list[dict[str, str]]:
    """The rows of all sessions, by ReFrame's names."""
    rows = []
    for path in (suite.tmp / 'perflogs').glob('*/*/*.log'):
        with open(path, newline='') as handle:
            rows += csv.DictReader(handle, delimiter=DELIMITER,
                                   quoting=csv.QUOTE_NONE)
    return rows


@pytest.fixture(scope='module')
def suite(tmp_path_factory):
    """One place for all sessions: the build is made again, the site is not."""
    return suite_in(tmp_path_factory.mktemp('record'))


@pytest.fixture(scope='module')
def repeated(suite):
    return Session(suite, *LATENCY, '-SOsuPt2pt.max_size=64',
                   '-SOsuPt2pt.iterations=20', '-Srepetitions=3', '-Stime_limit=20m',
                   '-Svalidates=false', '--repeat=2', '--mode=quick')


def test_rows_and_report_have_the_same_values(repeated):
    assert list(repeated.rows[0]) == list(reframe_names().values())
    for case in repeated.cases:
        # To read the deprecated alias takes ReFrame longer than the rest of a row.
        assert 'env_vars' in case and 'variables' not in case
        rows = [row for row in repeated.rows
                if row['measurement'] == case['measurement']]
        assert len(rows) == case['number_of_values'] == len(case['perfvalues'])
        assert {(row['perf_var'], float(row['perf_value'])) for row in rows} == {
            (name.rpartition(':')[2], values[0])
            for name, values in case['perfvalues'].items()}
        for row in rows:
            assert {name: row[name] for name in (
                'session', 'test_case', 'params', 'settings', 'nodes', 'program',
                'source', 'version', 'family', 'check_name', 'mode')} == {
                    name: case[name] for name in row if name in (
                        'session', 'test_case', 'params', 'settings', 'nodes',
                        'program', 'source', 'version', 'family', 'check_name',
                        'mode')}


def test_each_copy_is_a_measurement_of_the_same_test_case(repeated):
    assert len(repeated.cases) == len({
        case['measurement'] for case in repeated.cases}) == 2
    assert len({case['test_case'] for case in repeated.cases}) == 1
    assert {case['mode'] for case in repeated.cases} == {'quick'}
    assert {case['settings'] for case in repeated.cases} == {
        'max_size=64 iterations=20'}


def test_repetitions_are_values_that_are_not_compared(repeated):
    values = {name.rpartition(':')[2]: value
              for name, value in repeated.cases[0]['perfvalues'].items()}
    times = sorted(values[f'latency@8B#{number}'][0] for number in (1, 2, 3))
    assert values['latency@8B'][0] == times[1]
    assert 'latency@8B#4' not in values
    assert all(value[1:4] == [0, None, None] for name, value in values.items()
               if '#' in name)


def test_the_log_has_what_ran(repeated):
    text = repeated.log.read_text()
    assert ' -r ' in text and '[       OK ]' in text


def test_settings_make_another_test_case(suite, repeated):
    varied = Session(suite, *LATENCY, '-SOsuPt2pt.iterations=20',
                     '-POsuPt2pt.max_size=64,128')
    ids = {case['settings']: case['test_case']
           for session in (repeated, varied) for case in session.cases}
    assert list(ids) == ['max_size=64 iterations=20', 'max_size=128 iterations=20']
    assert len(set(ids.values())) == 2
    assert {case['params'] for case in repeated.cases + varied.cases} == {
        'buffers=host placement=intra_node program=osu_latency'}
    # ReFrame's own hash is not the same for -S and -P. Repetitions, time limit,
    # validation and mode make no other test case.
    assert repeated.cases[0]['test_case'] == varied.cases[0]['test_case']


def test_a_failure_names_its_guard_and_a_retry_is_another_measurement(suite):
    session = Session(suite, *STARTUP, '-SOsuStartup.options=--no-such-option',
                      '--max-retries=1', code=1)
    assert [case['fail_phase'] for case in session.cases] == ['sanity'] * 2
    for case in session.cases:
        assert case['fail_reason'].startswith('sanity error: exit_code: job ')
    assert len({case['measurement'] for case in session.cases}) == 2
    assert len({case['test_case'] for case in session.cases}) == 1
    assert all(row['perf_value'] == 'null' for row in session.rows)


def test_a_failed_build_is_the_reason_of_its_test_cases(suite, tmp_path):
    mpicc = tmp_path / 'mpicc'
    mpicc.write_text('#!/bin/sh\necho "mpicc: no license" >&2; exit 1\n')
    mpicc.chmod(0o755)
    session = Session(suite, *STARTUP, code=1, first=f'PATH={tmp_path}:$PATH')
    build, = (entry for entry in session.entries if entry['fixture'])
    assert build['fail_reason'].startswith('sanity error: build: mpicc: no license')
    assert [case['result'] for case in session.cases] == ['fail_deps']
    assert session.cases[0]['params'] and not session.rows


def test_no_record_has_a_secret_of_the_caller(suite, repeated):
    for path in (suite.tmp / 'perflogs').rglob('*'):
        assert path.is_dir() or SECRET not in path.read_text(), path


def test_a_killed_session_leaves_its_log(suite):
    folder = suite.tmp / 'perflogs' / 'sessions'
    before = set(folder.glob('*'))
    job = suite.start('-r', *LATENCY, '-Srepetitions=400')
    until(lambda: set(folder.glob('*.log')) - before, job)
    log, = set(folder.glob('*.log')) - before
    until(lambda: is_locked(log), job)
    until(lambda: 'RUN' in log.read_text(), job)
    job.send_signal(signal.SIGKILL)
    job.communicate(timeout=LIMIT)
    assert not is_locked(log)
    assert ' -r ' in log.read_text() and not log.with_suffix('.json').exists()


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock on a file."""
    done = subprocess.run(
        ['python3', '-c', 'import fcntl, sys\n'
         'fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)',
         path], capture_output=True)
    return done.returncode != 0


def test_perflogs_that_cannot_be_written_end_the_session_before_its_start(suite):
    folder = suite.tmp / 'a-file'
    folder.write_text('')
    done = suite.reframe('-r', *STARTUP, PLUMBLINE_PERFLOGS=str(folder))
    assert done.returncode == 1
    assert done.stderr.startswith(f'plumb: cannot write to {folder}/sessions (')
    assert len(done.stderr.splitlines()) == 1


# The checks ----------------------------------------------------------------

#: A file of checks that inspects all classes which ReFrame has loaded before it.
INSPECT = '''
import json
import sys
from collections import Counter
import reframe as rfm

def below(check):
    return [check, *(one for sub in check.__subclasses__() for one in below(sub))]

names = {alias or name for name, alias in rfm.RegressionTest.loggable_attrs()}
print("INSPECTED", json.dumps({check.__name__: {
    "defaults": [[name, getattr(check, name).default_value == default]
                 for name, default in check.SETTINGS.items()],
    "names": [alias or name for name, alias in check.loggable_attrs()
              if (alias or name) not in names],
} for module in [*sys.modules.values()] if hasattr(module, "Benchmark")
  for check in below(module.Benchmark)}))
'''


@pytest.fixture(scope='module')
def checks(suite):
    """Class of a check -> its declared settings, and names in the record."""
    path = suite.tmp / 'inspect_checks.py'
    path.write_text(INSPECT)
    done = suite.reframe('-c', str(ROOT / 'checks'), '-R', '-c', str(path), '-l')
    assert done.returncode == 0, done.stdout + done.stderr
    answer, = re.findall('^INSPECTED (.*)', done.stdout, re.M)
    return json.loads(answer)


def test_the_declared_defaults_of_settings_are_true(checks):
    settings = {(name, *setting) for name, check in checks.items()
             for setting in check['defaults']}
    assert len(settings) > 50 and not [one for one in settings if not one[-1]]


def test_no_name_of_a_check_hides_one_of_reframes_report(checks):
    for check in checks.values():
        names = Counter(check['names'])
        assert not {
            'uuid', 'result', 'run_index', 'fail_reason', 'fail_phase', 'fail_info',
            'fail_severe', 'fixture', 'filename', 'scheduler', 'session_uuid',
            'outputdir', 'dependencies_actual', 'dependencies_conceptual',
            'time_total'} & {*names}
        # A parameter `program` and the property of that name are the same.
        assert {name for name, count in names.items() if count > 1} <= {'program'}


def test_texts_cannot_shift_columns():
    assert check_record.RowText('a|b\nc\x1b') == 'a b c '
    assert check_record.setting_text({'a': '1', 'b': '2'}) == 'a:1,b:2'
    assert check_record.setting_text([1, 2]) == '1,2'


def test_a_job_gets_the_chosen_nodes():
    check = SimpleNamespace(pinned_nodes='n1+n2', job=SimpleNamespace())
    Benchmark.pin_job_to_nodes(check)
    assert check.job.pin_nodes == ['n1', 'n2']


@pytest.mark.parametrize('own, extras, limit', [
    (None, {}, '1h'), (None, {'max_pending': '30m'}, '30m'),
    ('5m', {'max_pending': '30m'}, '5m')])
def test_a_partition_limits_the_time_in_the_queue(own, extras, limit):
    check = SimpleNamespace(max_pending_time=own,
                            current_partition=SimpleNamespace(extras=extras))
    Benchmark.set_max_pending_time(check)
    assert check.max_pending_time == limit


def test_files_of_a_measurement_are_all_there_or_none(tmp_path):
    folder = tmp_path / 'files' / 'session' / 'measurement'
    attached.save_files(folder, {})
    assert not folder.parent.exists()
    with pytest.raises(OSError):
        attached.save_files(folder, {'a': 'x', 'a/b': 'y'})
    assert os.listdir(folder.parent) == []
    attached.save_files(folder, {'a': 'x', 'b/c': 'y'})
    assert (folder / 'b' / 'c').read_text() == 'y'
