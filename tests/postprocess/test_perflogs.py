"""Reading perflogs: whole files become a table, damage is always said."""
from __future__ import annotations

from pathlib import Path

import pytest

pd = pytest.importorskip('pandas')
import perflogs_factory as make  # noqa: E402

from config.sessions import judged  # noqa: E402
from postprocess import naming, perflogs  # noqa: E402
from postprocess.perflogs import cache  # noqa: E402

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def small(tmp_path) -> Path:
    """A file of three records, one with a quoted cell."""
    return make.write(tmp_path, [
        make.record('latency', 1.25, 8),
        make.record('latency', 2.5, 16, stack='mpi "x", 5'),
        make.record('wall_time', 3.0)])[0]


def measurements(*ends: str, day: int = 1, **columns) -> list[dict]:
    """A test case of one run, measured again an hour later each time:
    `retried:2` is a latency of 2 us with the result `retried`."""
    results = []
    for hour, end in enumerate(ends):
        result, _, value = end.partition(':')
        results += [make.record(
            'latency', float(value), 8, day=day, result=result, reference='1',
            upper='0.2', time=f'2026-11-{day + 1:02}T{hour + 3:02}:00:00Z',
            **columns)]
    return results


def test_a_retry_at_a_speed_class_without_a_reference_is_no_pass(tmp_path):
    """Out of tolerance at one speed class, then compared with nothing at another."""
    make.write(tmp_path, [
        *measurements('retried:2', speed='fast'),
        *[row | {'speed': 'slow', 'time': '2026-11-02T04:00:00Z', 'reference': '',
                 'upper': ''} for row in measurements('no_reference:3')]])
    frame = perflogs.read(tmp_path)
    assert [*frame[['result', 'value', 'speed', 'measurements']].itertuples(
        index=False, name=None)] == [('no_reference', 3, 'slow', 2)]


@pytest.mark.parametrize('ends, expected', [
    (['pass:1'], [('pass', 1, 1)]),
    # The first try is as any other run's; the later ones only decide.
    (['retried:2', 'pass:1'], [('pass', 2, 2)]),
    (['retried:2', 'retried:3', 'pass:1'], [('pass', 2, 3)]),
    (['retried:2', 'retried:3', 'fail:4'], [('fail', 4, 3)]),
    (['retried:2', 'inconclusive:9'], [('inconclusive', 9, 2)]),
    # Disturbed, and then not: the disturbed try does not count.
    (['inconclusive:9', 'pass:1'], [('pass', 1, 2)]),
    (['inconclusive:9', 'inconclusive:8', 'no_reference:1'],
     [('no_reference', 1, 3)]),
    (['inconclusive:9', 'inconclusive:8', 'inconclusive:7'],
     [('inconclusive', 7, 3)]),
    (['retried:2', 'inconclusive:9', 'pass:1'], [('pass', 2, 3)]),
    (['inconclusive:9', 'retried:2', 'retried:3', 'fail:4'], [('fail', 4, 4)]),
    # Killed before it could be measured again.
    (['retried:2'], [('fail', 2, 1)]),
    (['retried:2', 'retried:3'], [('fail', 3, 2)]),
    # --reruns: a round that failed fails the test case.
    (['retried:2', 'retried:3', 'fail:4', 'pass:1'], [('fail', 4, 4)]),
])
def test_one_try_of_a_run_counts(tmp_path, ends, expected):
    make.write(tmp_path, measurements(*ends) + measurements('pass:5', day=2)
               + measurements('fail:6', program='another'))
    frame = perflogs.read(tmp_path)
    result = [*frame[['result', 'value', 'measurements']].itertuples(
        index=False, name=None)]
    for other in (('pass', 5, 1), ('fail', 6, 1)):
        result.remove(other)
    assert result == expected and [*frame.index] == [*range(len(frame))]


def change(file: Path, old: str, new: str, count: int = 1) -> None:
    file.write_text(file.read_text().replace(old, new, count))


def fault(file: Path) -> str:
    """The one fault of a file, in both ways of reading."""
    with pytest.raises(perflogs.PerflogError) as strict:
        perflogs.read(file)
    _, errors = perflogs.read(file, on_error='collect')
    assert [str(e) for e in errors] == [str(strict.value)]
    assert str(errors[0]).startswith(f'{file}:{errors[0].line}: ')
    return errors[0].reason


def test_types(small):
    frame = perflogs.read(small)
    assert list(map(judged.point_in_bytes, frame['point'])) == [8, 16, None]
    assert frame['time'].iloc[0] == pd.Timestamp('2026-11-02T03:00Z')
    assert frame['value'].tolist() == [1.25, 2.5, 3.0]
    assert frame['stack'].iloc[1] == 'mpi "x", 5'
    assert frame['line'].tolist() == [2, 3, 4]
    assert frame['emulated'].dtype == bool
    assert frame['reference'].isna().all()


def test_tree_of_files_is_one_table_in_order_of_time(tmp_path):
    make.write(tmp_path, [make.record(day=2), make.record(
        day=1, partition='gpu'), make.record(day=3, check='OsuCollective')])
    frame = perflogs.read(tmp_path)
    assert frame['time'].is_monotonic_increasing
    assert frame['file'].nunique() == len(frame) == 3
    assert len(perflogs.read([tmp_path, tmp_path])) == 3


def test_renamed_files_are_read_too(small):
    small.rename(f'{small}.h0')
    assert len(perflogs.read(small.parent)) == 3


def test_no_files_is_an_empty_table(tmp_path):
    frame = perflogs.read(tmp_path)
    assert frame.empty and {'point', 'value', 'run'} <= set(frame)


def test_params_are_expanded(tmp_path):
    make.write(tmp_path, [
        make.record(params='a=1 b=x y c=p=q'), make.record(params='a=2')])
    wide = naming.parameter_columns(perflogs.read(tmp_path))
    assert wide.to_dict('list') == {
        'a': ['1', '2'], 'b': ['x y', ''], 'c': ['p=q', '']}


def test_judged_records_are_the_median_where_there_is_one(tmp_path):
    make.write(tmp_path, [
        make.record(repetition=1), make.record(repetition=2),
        make.record(repetition=0, value=7.0), make.record(day=2, value=9.0)])
    frame = perflogs.read(tmp_path)
    assert frame['value'][
        naming.mask_preferring_median_to_repetitions(frame)].tolist() == [
        7.0, 9.0]


@pytest.mark.parametrize(('old', 'new', 'reason'), [
    ('1.25', 'nan', "value 'nan' is not a finite number"),
    ('1.25', 'inf', "value 'inf' is not a finite number"),
    ('1.25', '1e999', 'is not a finite number'),
    ('1.25', '', "value '' is not a finite number"),
    ('1.25', '1_0', 'is not a finite number'),
    ('8 B', '8', "point '8' is not a size"),
    (',us,', ',ms,', "unit 'ms' of latency is not 'us'"),
    ('latency,8 B', 'latencyy,8 B', "did you mean 'latency'?"),
    ('2026-11-02T03', '2026-13-02T03', 'is not a time'),
    ('03:00:00Z', '03:00:00', 'is not a time'),
    (',no_reference,', ',fine,', 'is not one of pass, fail'),
    (',us,lower,', ',us,less,', 'is not one of higher'),
    ('embedded', 'embedded,more', '40 columns, not 39'),
    (',embedded', '', '38 columns, not 39'),
    ('embedded', 'embe\0ded', 'not a line of CSV'),
    ('embedded', '"embedded', 'not a line of CSV'),
    ('alpha', '', "system '' must not be empty"),
    ('\n3,', '\n1,', 'schema of the record'),
])
def test_a_bad_cell_is_a_fault_with_its_line(small, old, new, reason):
    change(small, old, new)
    assert reason in fault(small)
    frame, errors = perflogs.read(small, on_error='collect')
    assert errors[0].line == 2
    assert frame['line'].tolist() == [3, 4]


def test_a_metric_of_the_whole_run_has_no_point(small):
    change(small, 'wall_time,', 'wall_time,8 B')
    assert 'wall_time has no point' in fault(small)


def test_same_fault_on_many_lines_is_said_once(tmp_path):
    [file] = make.write(tmp_path, [make.record(unit='ms')] * 500)
    assert fault(file).endswith('(and 499 more)')


@pytest.mark.parametrize(('content', 'reason'), [
    (b'', 'the file is empty'),
    (b'a,b\n1,2\n', 'not the header of schema 3'),
    (b'\xff\xfe\n', 'not the header of schema 3'),
    ((','.join(perflogs.schema_number_and_columns()[1]) + '\n').encode(),
     'the file has no record after the header'),
])
def test_bad_file(tmp_path, content, reason):
    file = tmp_path / 'X.v3.csv'
    file.write_bytes(content)
    assert reason in fault(file)


def test_bytes_that_are_not_text(small):
    small.write_bytes(small.read_bytes().replace(b'embedded', b'\xff', 1))
    assert 'not a line of CSV' in fault(small)


def test_unknown_schema(small):
    new = small.rename(small.with_name('X.v9.csv'))
    assert 'schema 9 is unknown (known: 3)' in fault(new)


def test_foreign_csv(small):
    new = small.rename(small.with_name('notes.csv'))
    assert 'neither a perflog of the suite' in fault(new)
    with pytest.raises(perflogs.PerflogError):
        perflogs.read(new.parent)


def test_a_link_to_nothing(tmp_path):
    (tmp_path / 'X.v3.csv').symlink_to(tmp_path / 'gone')
    assert 'cannot be read' in str(perflogs.read(
        tmp_path, on_error='collect')[1][0])


def test_missing_file(tmp_path):
    assert 'does not exist' in fault(tmp_path / 'X.v3.csv')


def test_a_line_that_a_crash_left_and_the_next_run_closed(small):
    lines = small.read_text().splitlines(keepends=True)
    small.write_text(''.join([*lines[:2], lines[2][:40] + '\n', lines[3]]))
    assert 'columns, not 39' in fault(small)
    frame, _ = perflogs.read(small, on_error='collect')
    assert frame['value'].tolist() == [1.25, 3.0]


def rows_and_faults(file):
    """How many records are read, and what was told; without a table."""
    faults = []
    with cache.open_records_database(
        [file], lambda *fault: faults.append(fault)
    ) as con:
        [[records]] = con.execute('SELECT count(*) FROM records').fetchall()
    return records, faults


@pytest.mark.strict
def test_cut_anywhere(small):
    """Never an unhandled exception, never silently fewer records.

    All bytes near the ends of lines, and every 13th of the others.
    """
    whole = small.read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == 0x0a]
    for cut in range(len(whole)):
        near_end = min(abs(cut - end) for end in ends) < 4
        if cut % 13 and not near_end:
            continue
        small.write_bytes(whole[:cut])
        result, errors = rows_and_faults(small)
        # The table of records agrees near the ends of lines, too.
        if near_end:
            frame, reported = perflogs.read(small, on_error='collect')
            assert (len(frame), len(reported)) == (result, len(errors))
        if cut in ends[1:]:      # whole records: a shorter, sound history
            assert not errors and result == ends.index(cut)
        else:
            assert len(errors) == 1, cut
            assert result == max(0, sum(e <= cut for e in ends) - 1)


@pytest.mark.parametrize('byte', [b'"', b'\n', b'\0', b',', b'\xff', b'\r'])
def test_a_byte_changed_anywhere(small, byte):
    """Records stay three, or somebody is told."""
    whole = small.read_bytes()
    for at in range(0, len(whole), 29):
        small.write_bytes(whole[:at] + byte + whole[at + 1:])
        result, errors = rows_and_faults(small)
        assert errors or result == 3, at
