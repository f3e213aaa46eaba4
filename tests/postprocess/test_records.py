"""Reading the record: reports, rows and logs become a table, damage is reported."""
from __future__ import annotations

import fcntl
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

pd = pytest.importorskip('pandas')
import perflogs_factory as make  # noqa: E402

from config.sessions import judged  # noqa: E402
from postprocess import naming, records  # noqa: E402
from postprocess.records import cache, sql  # noqa: E402
from postprocess.regressions import verdict  # noqa: E402

SESSION = make.record()['session']


@pytest.fixture
def small(tmp_path) -> Path:
    """Three values of one measurement: the folder of the perflogs."""
    make.write(tmp_path, [
        make.record('latency', 1.25, 8), make.record('latency', 2.5, 16),
        make.record('wall_time', 3.0)])
    return tmp_path


def report_of(folder: Path) -> Path:
    return folder / 'sessions' / f'{SESSION}.json'


def rows_of(folder: Path) -> Path:
    return folder / 'alpha' / 'cpu' / 'OsuPt2pt.log'


def without_report(folder: Path) -> Path:
    """The rows of a session whose report and log were not copied."""
    for path in (folder / 'sessions').iterdir():
        path.unlink()
    return rows_of(folder)


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def fault(path: Path) -> str:
    """The one fault of a file, in both ways of reading."""
    with pytest.raises(records.PerflogError) as strict:
        records.read(path)
    _, errors = records.read(path, on_error='collect')
    assert [str(error) for error in errors] == [str(strict.value)]
    return errors[0].reason


def test_a_copy_of_a_report_under_another_name_is_no_session(small):
    """A person kept it before an edit, for example."""
    copy = report_of(small).with_name(f'{SESSION}.before.json')
    copy.write_text(report_of(small).read_text())
    frame, [error] = records.read(small, on_error='collect')
    assert len(frame) == 3
    assert f'{copy}:1: the report is that of the session {SESSION}; name it ' \
        f'{SESSION}.json, or move it elsewhere' in str(error)


# Which measurement counts -----------------------------------------------------

def measurements(*ends: str, day: int = 1, **columns) -> list[dict]:
    """A test case that is measured again: `out:2` is a latency of 2 us that is out of
    tolerance, `disturbed:2` an inconclusive one, `transport` a refusal."""
    made = []
    for retry, end in enumerate(ends):
        outcome, _, value = end.partition(':')
        given = {'day': day, 'retry': retry, 'time':
                 f'2026-11-{day + 1:02}T{retry + 3:02}:00:00Z', **columns}
        if outcome == 'disturbed':
            given |= {'inconclusive': 'another process used the node'}
        made.append(make.record(
            'latency', float(value), 8, reference=1.0, upper=0.2,
            result='fail' if outcome == 'out' else 'pass', **given)
            if value else make.record('completed', 0.0, guard=outcome,
                                      reason='why', **given))
    return made


#: Ends of the measurements of a test case -> its result, value and note, and how many
#: measurements it has.
COUNTED = [
    (['pass:1'], ('pass', 1, '', 1)),
    (['out:2'], ('fail', 2, '', 1)),
    (['out:2', 'out:3'], ('fail', 3, '', 2)),
    (['out:2', 'pass:1'], ('pass', 1, records.OUT_THEN_PASSED, 2)),
    # A measurement out of tolerance is a debt that only a sound pass pays.
    (['out:2', 'disturbed:1'], ('fail', 2, records.NOT_CONFIRMED, 2)),
    (['out:2', 'out:3', 'disturbed:1'], ('fail', 3, records.NOT_CONFIRMED, 3)),
    (['out:2', 'transport'], ('fail', 2, records.NOT_CONFIRMED, 2)),
    (['out:2', 'disturbed:1', 'pass:1'], ('pass', 1, records.OUT_THEN_PASSED, 3)),
    (['disturbed:9', 'pass:1'], ('pass', 1, '', 2)),
    (['disturbed:9', 'disturbed:8'], ('inconclusive', 8, '', 2)),
    (['transport', 'pass:1'], ('flaky', 1, '', 2)),
    (['transport', 'disturbed:1'], ('fail', 0, '', 2)),
    (['transport', 'exit_code'], ('fail', 0, '', 2)),
    (['transport', 'cancelled'], ('fail', 0, '', 1)),
    (['cancelled'], ('not_run', 0, '', 1))]


def test_one_measurement_of_a_session_counts(tmp_path):
    make.write(tmp_path, [
        row for number, (ends, _) in enumerate(COUNTED)
        for row in measurements(*ends, params=f'n={number}')]
        + measurements('pass:5', day=2) + measurements('out:6', settings='max_size=8'))
    frame = records.read(tmp_path)
    results = {row.params + row.settings + str(row.time.day): (
        row.result, row.value, row.note, row.measurements)
        for row in frame.itertuples()}
    assert len(results) == len(frame)
    for number, (ends, expected) in enumerate(COUNTED):
        assert results[f'n={number}2'] == expected, ends
    other = make.record()['params']
    assert results[f'{other}3'] == ('pass', 5, '', 1)
    assert results[f'{other}max_size=82'] == ('fail', 6, '', 1)


def test_values_that_are_kept_beside_a_refusal_are_not_compared(tmp_path):
    kept = {'inconclusive': 'too few queries'}
    make.write(tmp_path, [
        make.record('completed', 0.0, guard='validity', reason='rule 3', **kept),
        make.record(value=1.5, **kept)])
    frame = records.read(tmp_path).set_index('metric')
    assert frame['result'].to_dict() == {'completed': 'fail', 'latency': 'inconclusive'}
    assert set(frame['guard']) == {'validity'}


def test_each_copy_has_a_result(tmp_path):
    name = 'OsuPt2pt %program=osu_latency %.repeat_no={} %.nid=n{}'
    make.write(tmp_path, [
        *measurements('out:5', 'pass:1', name=name.format(0, 1)),
        *measurements('out:5', 'disturbed:5', name=name.format(1, 2))])
    frame = records.read(tmp_path)
    assert frame['test_case'].nunique() == 1
    assert dict(zip(frame['copy'], frame['result'], strict=True)) == {
        'repeat_no=0 nid=n1': 'pass', 'repeat_no=1 nid=n2': 'fail'}


def test_settings_make_another_test_case(tmp_path):
    make.write(tmp_path, [make.record(value=1.0),
                          make.record(value=2.0, settings='max_size=1000')])
    frame = records.read(tmp_path)
    assert frame.groupby('test_case', observed=True)['value'].first().to_dict() == {
        make.short_id(make.record()): 1.0,
        make.short_id(make.record(settings='max_size=1000')): 2.0}


# The table --------------------------------------------------------------------

def test_types(small):
    frame = records.read(small)
    assert list(map(judged.point_in_bytes, frame['point'])) == [8, 16, None]
    assert frame['time'].iloc[0] == pd.Timestamp('2026-11-02T03:00Z')
    assert frame['value'].tolist() == [1.25, 2.5, 3.0]
    assert frame['emulated'].dtype == frame['transient'].dtype == bool
    assert frame['reference'].isna().all()
    assert set(frame['result']) == {'no_reference'}
    assert set(frame['file']) == {str(report_of(small))}


def test_rows_say_what_the_report_says(small):
    """A session without a report has its values in rows."""
    report = records.read(small)
    rows = records.read(without_report(small))
    assert set(rows['file']) == {str(rows_of(small))}
    pd.testing.assert_frame_equal(report.drop(columns='file'),
                                  rows.drop(columns='file'))


def test_a_failure_has_its_guard_and_reason(tmp_path):
    results = {
        'transport': 'fail', 'sanity': 'fail', 'setup': 'fail', 'submit': 'fail',
        'job_state': 'fail', 'time_limit': 'fail', 'cleanup': 'fail',
        'dependency': 'not_run', 'cancelled': 'not_run', 'skipped': 'not_run'}
    make.write(tmp_path, [make.record(
        'completed', 0.0, guard=guard, reason='the port is closed', params=f'n={guard}')
        for guard in results])
    rows = [*records.read(tmp_path).itertuples()]
    assert {row.params: row.guard for row in rows} == {
        f'n={guard}': guard for guard in results}
    for row in rows:
        assert (row.metric, row.value, row.result) == (
            'completed', 0.0, results[row.guard])
        assert ('the port is closed' in row.reason) == (row.result == 'fail')


def test_a_test_case_without_its_build_has_the_reason_of_the_build(tmp_path):
    [report] = make.write(tmp_path, [make.record('completed', 0.0, guard='build')])
    data = json.loads(report.read_text())
    [case] = data['runs'][0]['testcases']
    case |= {'dependencies_actual': [['Build_1', 'alpha:cpu', 'openmpi']]}
    data['runs'][0]['testcases'].insert(0, case | {
        'unique_name': 'Build_1', 'fixture': True, 'result': 'fail',
        'fail_phase': 'compile_wait', 'fail_reason': 'build error: no compiler\nmore',
        'measurement': None, 'test_case': None})
    report.write_text(json.dumps(data))
    [row] = records.read(tmp_path).itertuples()
    assert (row.result, row.guard, row.reason) == (
        'not_run', 'build',
        'not run: a build that it needs failed: build error: no compiler')


def test_a_reason_steers_no_terminal(tmp_path):
    """ESC[8m hides what follows; rows have no such characters, reports do."""
    [report] = make.write(tmp_path, [make.record('completed', 0.0, guard='exit_code')])
    data = json.loads(report.read_text())
    [case] = data['runs'][0]['testcases']
    case['fail_reason'] = 'sanity error: \x1b[8mno\x9b\r ranks'
    report.write_text(json.dumps(data))
    [row] = records.read(tmp_path).itertuples()
    assert row.reason == '\u241b[8mno?\u240d ranks'


def test_repetitions_are_numbered_and_their_median_is_0(tmp_path):
    make.write(tmp_path, [
        make.record(repetition=1), make.record(repetition=2),
        make.record(repetition=0, value=7.0), make.record(day=2, value=9.0)])
    frame = records.read(tmp_path)
    assert sorted(frame['repetition']) == [0, 1, 1, 2]
    assert frame['value'][
        naming.mask_preferring_median_to_repetitions(frame)].tolist() == [7.0, 9.0]


def test_a_folder_is_one_table_in_order_of_time(tmp_path):
    make.write(tmp_path, [make.record(day=2), make.record(
        day=1, partition='gpu'), make.record(day=3, check='OsuCollective')])
    frame = records.read(tmp_path)
    assert frame['time'].is_monotonic_increasing and len(frame) == 3
    assert len(records.read([tmp_path, tmp_path])) == 3


def test_renamed_rows_are_read_too(small):
    rows = without_report(small)
    rows.rename(f'{rows}.h0')
    assert len(records.read(small)) == 3


def test_a_linked_folder_is_read(small, tmp_path_factory, capsys):
    other = tmp_path_factory.mktemp('linked')
    (other / 'alpha').symlink_to(small / 'alpha')
    (other / 'alpha' / 'loop').symlink_to(other)
    assert len(records.read(other)) == 3
    assert sql.main(['SELECT value FROM results ORDER BY value', '--csv', '-',
                     '--perflogs', str(other)]) == 0
    assert capsys.readouterr().out.split() == ['value', '1.25', '2.5', '3.0']


def test_no_files_is_an_empty_table(tmp_path):
    frame = records.read(tmp_path)
    assert frame.empty and {'point', 'value', 'session'} <= set(frame)
    assert records.sessions(tmp_path).empty


def test_params_are_expanded(tmp_path):
    make.write(tmp_path, [
        make.record(params='a=1 b=x y c=p=q'), make.record(params='a=2')])
    wide = naming.parameter_columns(records.read(tmp_path)).sort_values('a')
    assert wide.to_dict('list') == {
        'a': ['1', '2'], 'b': ['x y', ''], 'c': ['p=q', '']}


def test_a_report_of_another_suite_is_read(tmp_path):
    [report] = make.write(tmp_path, [make.record(value=1.5, unit='furlong')])
    (tmp_path / 'alpha' / 'cpu' / 'OsuPt2pt.log').unlink()
    data = json.loads(report.read_text())
    [case] = data['runs'][0]['testcases']
    for name in ('test_case', 'measurement', 'check_name', 'params', 'settings',
                 'family', 'session', 'source'):
        del case[name]
    report.write_text(json.dumps(data))
    [row] = records.read(tmp_path).itertuples()
    assert (row.check, row.params, row.family) == (
        'OsuPt2pt', 'program=osu_latency placement=intra_node', '')
    assert (row.session, row.value, row.unit) == (SESSION, 1.5, 'furlong')
    assert row.test_case == make.short_id(make.record())


# Sessions ---------------------------------------------------------------------

def session_of(folder: Path, **columns) -> dict:
    [row] = records.sessions(folder).to_dict('records')
    return row


def test_a_session_of_a_whole_mode_is_known_by_its_options(tmp_path):
    whole = {
        '--mode=quick': True, "'--tag=^quick$' -Smode=quick --max-retries=1": True,
        '--mode=quick -Srepetitions=3 --system alpha': True, '-n ^X$': False,
        '-t quick': False, '--system alpha:cpu': False, '-S max_size=8': False,
        '-c checks/osu': False, '-p openmpi': False}
    for day, options in enumerate(whole):
        make.write(tmp_path, [make.record(day=day)], options)
    assert dict(zip(whole, records.sessions(tmp_path)['selected_all'], strict=True)
                ) == whole


def test_a_session_without_a_report_was_cut_short(tmp_path):
    """Its rows count, and its log has the failures."""
    other = {'params': 'program=osu_bw placement=intra_node', 'settings': 'window=8'}
    make.write(tmp_path, [make.record(day=1), make.record(day=1, **other)])
    make.write(tmp_path, [
        make.record(day=2), make.record('completed', 0.0, day=2, guard='transport',
                                        reason='tcp used', **other)],
        '--mode=nightly -S OsuPt2pt.window=8', ended=False)
    first, second = records.sessions(tmp_path).to_dict('records')
    assert (first['cut_short'], second['cut_short']) == (False, True)
    assert (second['mode'], second['selected_all']) == ('nightly', False)
    frame = records.read(tmp_path)
    frame = frame[frame['session'] == second['session']]
    assert sorted(zip(frame['metric'], frame['result'], frame['guard'],
                      strict=True)) == [('completed', 'fail', 'sanity'),
                                        ('latency', 'no_reference', '')]
    # Its parameters and settings are those of the session before.
    assert frame['test_case'][frame['result'] == 'fail'].tolist() == [
        make.short_id(make.record(**other))]


@pytest.mark.parametrize('options, settings', [
    ('', ''), ('-SOsuPt2pt.max_size=64', 'max_size=64'),
    ('-S OsuPt2pt.options="-i 9" -SOsuPt2pt.min_size=8', 'min_size=8 options=-i 9')])
def test_a_failure_that_only_the_log_has_belongs_to_its_settings(tmp_path, options,
                                                                 settings):
    """ReFrame's name of a test case does not have what -S changes."""
    for day, known in enumerate(['', 'min_size=8 options=-i 9', 'max_size=64', '']):
        make.write(tmp_path, [make.record(day=day, settings=known)])
    make.write(tmp_path, [make.record('completed', 0.0, day=5, guard='exit_code')],
               options, ended=False)
    frame = records.read(tmp_path)
    [failed] = frame[frame['result'] == 'fail'].itertuples()
    assert (failed.settings, failed.test_case) == (
        settings, make.short_id(make.record(settings=settings)))


@pytest.mark.parametrize('report', [b'', b'{"session_info": {', None])
def test_a_report_that_cannot_be_read_costs_no_value(small, report):
    path = report_of(small)
    path.write_bytes(path.read_bytes()[:-30] if report is None else report)
    frame, [error] = records.read(small, on_error='collect')
    assert len(frame) == 3 and set(frame['file']) == {str(rows_of(small))}
    assert error.file == str(path)
    assert 'the values are taken from the perflog rows' in str(error)
    assert session_of(small)['cut_short']


def test_a_report_of_another_version_is_refused_by_name(small):
    change(report_of(small), '"4.2"', '"5.0"')
    frame, [error] = records.read(small, on_error='collect')
    assert 'its data_version is 5.0, and this checkout reads only 4.x' in str(error)
    assert len(frame) == 3


def test_half_a_measurement_does_not_count(small):
    rows = without_report(small)
    lines = rows.read_text().splitlines(keepends=True)
    rows.write_text(''.join(lines[:3]) + lines[3][:50])
    [row] = records.read(small).itertuples()
    assert (row.metric, row.result, row.guard) == ('completed', 'not_run', 'cancelled')


def test_a_measurement_that_was_cancelled_in_its_cleanup_counts(small):
    """A signal ended the session while the files of a test case that had passed were
    removed."""
    change(report_of(small), '"result": "pass", "fail_phase": null',
           '"result": "abort", "fail_phase": "cleanup"')
    change(report_of(small), '"num_aborted": 0', '"num_aborted": 1')
    assert records.read(small)['value'].tolist() == [1.25, 2.5, 3.0]
    assert records.sessions(small)['cut_short'].tolist() == [True]


def test_a_session_that_was_cancelled_during_its_build_is_cut_short(tmp_path, capsys):
    """Its report has no test case."""
    make.write(tmp_path, [make.record(day=day) for day in (0, 1)])
    change(report_of(tmp_path), '"fixture": false', '"fixture": true')
    rows_of(tmp_path).unlink()
    assert records.sessions(tmp_path)['cut_short'].tolist() == [False, True]
    assert verdict.main(['--perflogs', str(tmp_path)]) == 1
    assert 'CUT SHORT' in capsys.readouterr().out


def test_a_session_that_selected_nothing_is_no_session(small):
    (small / 'sessions' / '20261103T000000Z-bbbbbb.log').write_text(
        '[==========] Running 0 check(s)\nRan 0/0 test case(s)\n')
    assert session_of(small)['session'] == SESSION


def test_a_running_session_is_not_cut_short(tmp_path):
    make.write(tmp_path, [make.record()], ended=False)
    log = tmp_path / 'sessions' / f'{SESSION}.log'
    hold = ('import fcntl, sys\nhandle = open(sys.argv[1], "r+b")\n'
            'fcntl.lockf(handle, fcntl.LOCK_EX)\nprint(flush=True)\ninput()\n')
    with subprocess.Popen([sys.executable, '-c', hold, log], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        row = session_of(tmp_path)
        assert (row['running'], row['cut_short']) == (True, False)
        other.communicate(b'\n')
    row = session_of(tmp_path)
    assert (row['running'], row['cut_short']) == (False, True)
    with open(log, 'r+b') as handle:        # a reader left no lock
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


# Damage -----------------------------------------------------------------------

@pytest.mark.parametrize(('old', 'new', 'reason'), [
    ('|1.25|', '|nan|', 'is not a finite number'),
    ('|1.25|', '|inf|', 'is not a finite number'),
    ('|1.25|', '|1e999|', 'is not a finite number'),
    ('|1.25|', '||', 'is not a finite number'),
    ('@8B|', '@8|x|', '43 columns, not 42'),
    ('@8B|', '@B|', 'no metric latency in us with a size like 8B is defined'),
    ('|us|', '|ms|', 'no metric latency in ms with a size like 8B is defined'),
    ('|latency@8B', '|latencyy@8B', 'no metric latencyy in us'),
    ('wall_time|', 'wall_time@8B|', 'no metric wall_time in s with a size'),
    ('|pass\n', '|fine\n', 'is not one of pass, fail'),
    ('embedded', 'embe\0ded', 'not text'),
])
def test_a_bad_row_is_a_fault_and_costs_no_other(small, old, new, reason):
    rows = without_report(small)
    change(rows, old, new)
    frame, [error] = records.read(small, on_error='collect')
    assert error.file == str(rows) and error.line > 1 and reason in error.reason
    assert len(frame) in (1, 2)             # or the measurement was cut short


@pytest.mark.parametrize(('old', 'new', 'reason'), [
    ('2026-11-02T03:00:00+00:00', '2026-13-02T03:00:00+00:00', 'is not a time'),
    ('2026-11-02T03:00:00+00:00', '2026-11-02T03:00:00', 'is not a time with'),
    ('|alpha|', '||', 'system, partition or check is empty'),
    ('|2|2|', '|two|2|', 'whole number')])
def test_a_measurement_without_time_or_identity_is_a_fault(small, old, new, reason):
    rows = without_report(small)
    rows.write_text(rows.read_text().replace(old, new))
    frame, [error] = records.read(small, on_error='collect')
    assert reason in error.reason and frame.empty


def test_the_same_fault_of_many_measurements_is_reported_once(tmp_path):
    make.write(tmp_path, [make.record(unit='ms', params=f'size={size}')
                          for size in range(500)])
    assert fault(tmp_path).endswith('(and 499 more)')


@pytest.mark.parametrize(('content', 'reason'), [
    (b'', 'the file is empty'), (b'a,b\n1,2\n', 'its header has no column'),
    (b'\xff\xfe\n', 'it is not text')])
def test_a_file_without_rows_is_a_fault(tmp_path, content, reason):
    file = tmp_path / 'X.log'
    file.write_bytes(content)
    assert reason in fault(file)


def test_bytes_that_are_not_text(small):
    rows = without_report(small)
    rows.write_bytes(rows.read_bytes().replace(b'embedded', b'\xff', 1))
    assert 'not text' in fault(small)


def test_a_link_to_nothing(tmp_path):
    (tmp_path / 'X.log').symlink_to(tmp_path / 'gone')
    assert 'cannot be read' in fault(tmp_path)


def test_a_missing_path(tmp_path):
    assert 'does not exist' in fault(tmp_path / 'X.log')


def test_a_header_that_is_repeated_is_no_row(small):
    """Two sessions created the file at once."""
    rows = without_report(small)
    head, *lines = rows.read_text().splitlines(keepends=True)
    rows.write_text(''.join([head, lines[0], head, *lines[1:]]))
    assert len(records.read(small)) == 3


def test_a_torn_row_costs_only_itself_and_the_row_that_follows(small):
    rows = without_report(small)
    head, *lines = rows.read_text().splitlines(keepends=True)
    rows.write_text(''.join([head, *lines, lines[0][:40], *lines[:1]]))
    frame, [error] = records.read(small, on_error='collect')
    assert len(frame) == 3 and 'columns, not 42' in str(error)


def values_and_faults(path):
    """How many values are read, and the faults; without a table."""
    faults = []
    with cache.open_records_database(
            [path], faults) as con:
        [[count]] = con.execute("SELECT count(*) FROM results "
                                "WHERE metric <> 'completed'").fetchall()
    return count, faults


def test_a_byte_of_rows_changed_anywhere(small):
    """All values are read, or the measurement does not count."""
    rows = without_report(small)
    whole = rows.read_bytes()
    wrong = itertools.cycle([b'|', b'\n', b'\0', b',', b'"', b'\xff', b'\r'])
    for at, byte in zip(range(0, len(whole), 29), wrong, strict=False):
        rows.write_bytes(whole[:at] + byte + whole[at + 1:])
        count, faults = values_and_faults(rows)
        assert faults or count in (0, 3), at
