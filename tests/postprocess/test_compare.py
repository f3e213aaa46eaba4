"""plumb compare: what is matched, and what it dares to say."""
import csv
import io
import json

import perflogs_factory as factory
import pytest

from postprocess import compare
from postprocess.records import read as read_records

CALM = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995]


def read(tmp_path, records):
    factory.write(tmp_path, records)
    return read_records(tmp_path)


def two(column, a, b, ratio, values=CALM, **more):
    """The same test case on two sides that differ in a column."""
    return [record for name, factor in ((a, 1.0), (b, ratio))
            for record in factory.latencies(
                [v * factor for v in values], **{column: name, **more})]


def test_sides_that_differ_in_a_column_are_matched(tmp_path):
    rows = compare.compare_metrics(read(tmp_path, two('environ', 'aa', 'bb', 1.2)),
                                   'aa', 'bb')
    assert {row.outcome for row in rows} == {'worse'}
    assert [row.point for row in rows].count('curve') == 1
    assert all(row.low <= 1.2 <= row.high for row in rows)


def test_a_setting_is_compared_and_never_mixed(tmp_path):
    """Two test cases that differ in nothing but a setting (-S)."""
    frame = read(tmp_path, [
        *two('system', 'aa', 'bb', 1.2),
        *two('system', 'aa', 'bb', 1.0, [5 * v for v in CALM],
             settings='max_size=1000')])
    rows = compare.compare_metrics(frame, 'aa', 'bb')
    assert {(row.settings, row.outcome) for row in rows} == {
        ('', 'worse'), ('max_size=1000', 'same')}
    rows = compare.compare_metrics(frame, 'settings=,system=aa',
                                   'settings=max_size=1000,system=aa')
    assert {round(row.ratio) for row in rows} == {5}


def test_stores_are_matched_without_their_names(tmp_path):
    records = [factory.record(
        'operations', value * factor, 64, day=day, program=store,
        family='keyvalue', check='KeyValue', params=f'store={store} n=1')
        for store, factor in (('redis', 1e5), ('valkey', 1.1e5))
        for day, value in enumerate(CALM)]
    row, = compare.compare_metrics(read(tmp_path, records), 'redis', 'valkey')
    assert (row.outcome, round(row.ratio, 3)) == ('better', 1.1)


def test_own_results_are_compared_with_saved_ones_of_fewer_parameters(tmp_path):
    """Test cases that would become equal are not mixed."""
    own = [factory.record('latency', value * factor, 8, day=day, system='mine',
                          check='OsuPt2pt',
                          params=f'buffers={buffers} placement={place}')
           for place, buffers, factor in (('inter_node', 'host', 2.0),
                                          ('intra_node', 'host', 1.0),
                                          ('intra_node', 'cuda', 3.0))
           for day, value in enumerate(CALM)]
    saved = [factory.record('latency', value, 8, day=day, system='study',
                            check='osu_latency', params=f'placement={place} iter=9')
             for place in ('inter_node', 'intra_node')
             for day, value in enumerate(CALM)]
    row, = compare.compare_metrics(read(tmp_path, own + saved), 'mine', 'study')
    assert (row.params, round(row.ratio, 2)) == ('placement=inter_node', .5)


@pytest.mark.parametrize('program', ['osu_latency', 'osu_latency_mt'])
def test_an_own_result_is_compared_with_a_saved_one_without_parameters(
        tmp_path, capsys, program):
    factory.write(tmp_path, [
        *factory.latencies(CALM, (8,), system='mine', params='buffers=host'),
        # Its other size is not missing on the own side.
        *factory.latencies(CALM, (8, 1024), system='study', check=program, params='',
                           program=program)])
    assert compare.main(['mine', 'study', '--all', '--perflogs', str(tmp_path)]) == 0
    assert '1 metric in common: 1 same\n' in capsys.readouterr().out


@pytest.mark.parametrize('column, values', [
    ('environ', ('openmpi', 'mpich')), ('partition', ('cpu', 'gpu')),
    ('version', ('7.0.15', '8.2.3')), ('num_nodes', ('2', '4'))])
def test_each_of_several_values_of_a_side_is_compared(
        tmp_path, capsys, column, values):
    """Own MPICH is three times slower; a mean of both libraries is no result."""
    study = {'environ': 'saved', 'partition': 'saved', 'source': 'saved',
             'program': 'osu_latency', 'check': 'osu_latency', 'system': 'study',
             'params': ''}
    factory.write(tmp_path, [
        *(record for value, factor, day in zip(values, (1.0, 3.0), (0, 9), strict=True)
          for record in factory.latencies([v * factor for v in CALM], (8,), day,
                                          system='mine', **{column: value})),
        *factory.latencies(CALM, (8,), **study)])
    assert compare.main(['mine', 'study', '--perflogs', str(tmp_path),
                         '--json', '-']) == 0
    output = capsys.readouterr()
    assert {(row['side_a'], round(row['ratio'], 2), row['runs_a'])
            for row in json.loads(output.out)} == {
        (f'mine,{column}={values[0]}', 1.0, 6), (f'mine,{column}={values[1]}', .33, 6)}
    assert not output.err
    assert compare.main([f'mine,{column}={values[1]}', 'study', '--perflogs',
                         str(tmp_path)]) == 0
    assert 'study compared with mine,' in capsys.readouterr().out


def test_two_sides_of_several_environments_are_refused(tmp_path, capsys):
    factory.write(tmp_path, [
        record for system, environs in (('mine', ('gcc', 'clang')),
                                        ('other', ('cce', 'intel')))
        for environ in environs
        for record in factory.latencies(CALM, (8,), system=system, environ=environ)])
    words = ['--perflogs', str(tmp_path)]
    assert compare.main(['mine', 'other', *words]) == 2
    assert capsys.readouterr().err == (
        'plumb compare: mine has environ=clang and environ=gcc; other has environ=cce '
        'and environ=intel: select one value for each side, such as '
        'mine,environ=clang and other,environ=cce\n')
    assert compare.main(['mine,environ=clang', 'other,environ=cce', *words]) == 0


def test_environments_of_different_test_cases_are_not_several(tmp_path):
    """One side has an environment for each program, the other two for one program."""
    frame = read(tmp_path, [
        record for system, environ, params in (
            ('mine', 'gcc', 'n=1'), ('mine', 'clang', 'n=2'), ('other', 'cce', 'n=1'),
            ('other', 'intel', 'n=1'), ('other', 'cce', 'n=2'))
        for record in factory.latencies(CALM, (8,), system=system, environ=environ,
                                        params=params)])
    rows = compare.compare_metrics(frame, 'mine', 'other')
    assert [(row.side_b, row.params) for row in rows] == [
        ('other,environ=cce', 'n=1'), ('other,environ=cce', 'n=2'),
        ('other,environ=intel', 'n=1')]


def test_equal_numbers_of_nodes_are_compared(tmp_path):
    """A study has 2, 4 and 8 nodes, and only 4 are those of the cluster."""
    frame = read(tmp_path, [record for system, counts in (
        ('mine', (4,)), ('study', (2, 4, 8))) for nodes in counts
        for record in factory.latencies([nodes * v for v in CALM], (8,), 9 * nodes,
                                        system=system, num_nodes=nodes)])
    [row] = compare.compare_metrics(frame, 'mine', 'study')
    assert (row.ratio, row.runs_a, row.runs_b) == (1.0, 6, 6)
    assert row.params.endswith(' num_nodes=4')


def test_a_message_names_what_selects_one_of_several_test_cases(tmp_path, capsys):
    factory.write(tmp_path, [
        *(record for pipeline in (1, 16) for record in factory.latencies(
            CALM, (8,), system='mine', params=f'operation=get pipeline={pipeline}')),
        *factory.latencies(CALM, (8,), system='study', params='operation=get')])
    words = ['--perflogs', str(tmp_path)]
    assert compare.main(['mine', 'study', *words]) == 2
    assert capsys.readouterr().err == (
        'plumb compare: mine and study have no metric of a test case in common; mine '
        'has several values of pipeline: select one value of each, such as '
        'mine,pipeline=1\n')
    assert compare.main(['mine,pipeline=1', 'study', *words]) == 0


def test_a_parameter_of_a_condition_does_not_mix_the_other_side(tmp_path):
    frame = read(tmp_path, [
        record for system, pipelines in (('mine', (1, 16)), ('study', (1, 16)))
        for pipeline in pipelines for record in factory.latencies(
            [v * pipeline for v in CALM], (8,), system=system,
            params=f'pipeline={pipeline}')])
    [row] = compare.compare_metrics(frame, 'system=mine,pipeline=16', 'study')
    assert (row.ratio, row.runs_b) == (1.0, 6)


@pytest.mark.parametrize('name, a, b', [
    ('mpi', 'mpich 4', 'openmpi 5'), ('environment', 'mpich', 'openmpi'),
    ('version', '4', '5'), ('store', 'keydb', 'redis'), ('pin', 'default', 'off'),
    ('network', 'eth0', 'ib0'), ('deployment', 'colocated', 'standard')])
def test_fields_of_the_identity_are_compared(tmp_path, capsys, name, a, b):
    """By the names that people give them; other settings stay matched."""
    side = {'mpi': lambda text: {'stack': text, 'environ': text.split()[0]},
            'environment': lambda text: {'environ': text},
            'version': lambda text: {'version': text},
            'store': lambda text: {'params': f'db={text}', 'environ': text},
            'pin': lambda text: {'settings': f'iterations=9 pin={text}'.replace(
                ' pin=default', '')},
            'network': lambda text: {'params': f'network={text}'},
            'deployment': lambda text: {'params': f'deployment={text}'}}[name]
    factory.write(tmp_path, [record for text, factor, day in ((a, 1.0, 0), (b, 2.0, 9))
                             for record in factory.latencies(
                                 [v * factor for v in CALM], (8,), day, **side(text))])
    assert compare.main(['--across', name, '--perflogs', str(tmp_path), '--json',
                         '-']) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row['side_a'], row['side_b'], round(row['ratio'], 2)) == (
        f'{name}={a}', f'{name}={b}', 2.0)


def test_programs_of_two_families_are_not_compared(tmp_path, capsys):
    factory.write(tmp_path, [record for day, (family, version) in enumerate((
        ('osu', '7.2'), ('keyvalue', '7.0.15'), ('keyvalue', '8.1.2')))
        for record in factory.latencies(CALM, (8,), 9 * day, family=family,
                                        version=version)])
    assert compare.main(['--across', 'version', '--perflogs', str(tmp_path), '--csv',
                         '-']) == 0
    done = capsys.readouterr()
    assert 'version=7.2' not in done.out and 'version=8.1.2' in done.out
    assert 'version=7.2 of osu: they have no family in common' in done.err


def test_other_settings_stay_matched_where_one_is_compared(tmp_path):
    frame = read(tmp_path, [
        record for settings, factor in (
            ('', 1), ('iterations=9', 5), ('pin=off', 2), ('iterations=9 pin=off', 15))
        for record in factory.latencies([v * factor for v in CALM], (8,),
                                        settings=settings)])
    rows = compare.compare_metrics(frame, 'pin=default', 'pin=off')
    assert {(row.settings, round(row.ratio, 2)) for row in rows} == {
        ('', 2.0), ('iterations=9', 3.0)}


def test_all_values_of_a_parameter_are_compared(tmp_path, capsys):
    """The question of SmartSim-Scaling: one database against the others."""
    factory.write(tmp_path, [factory.record(
        'operations', value * factor, 64, day=day, program=f'{db}-server',
        environ=db, family='keyvalue', check='KeyValue', params=f'db={db} network=tcp')
        for db, factor in (('redis', 1e5), ('keydb', 2e5), ('valkey', 1.1e5))
        for day, value in enumerate(CALM)] + [factory.record(
            'latency', 1.0, 64, params='db=memcached network=tcp')])
    words = ['--perflogs', str(tmp_path), '--across', 'db']
    assert compare.main([*words, '--json', '-']) == 0
    output = capsys.readouterr()
    assert ('left out: db=keydb has test cases of keyvalue, and db=memcached of osu: '
            'they have no family in common') in output.err
    rows = json.loads(output.out)
    assert {(row['side_a'], row['side_b'], round(row['ratio'], 2)) for row in rows} == {
        ('db=keydb', 'db=redis', .5), ('db=keydb', 'db=valkey', .55)}
    assert compare.main([*words, 'redis', 'keydb']) == 0
    assert 'db=keydb compared with db=redis: 1 metric' in capsys.readouterr().out
    for more, message in ((['postgres'], 'no record has db=postgres; the values are '
                           'keydb, memcached, redis, valkey'),
                          (['--across', 'network'], 'no two values'),
                          (['--across', 'dbs'], "parameter or setting 'dbs'")):
        assert compare.main([*words, *more]) == 2
        assert message in capsys.readouterr().err


def test_two_sessions_take_the_spread_of_the_history(tmp_path):
    frame = read(tmp_path, factory.latencies([*CALM, *CALM, *CALM, 1.2]))
    rows = compare.compare_metrics(frame, '2026-11-10', '2026-11-19')
    assert {row.outcome for row in rows} == {'worse'}
    rows = compare.compare_metrics(frame, '2026-11-10', '2026-11-11')
    assert {row.outcome for row in rows} == {'same'}
    rows = compare.compare_metrics(frame, ':2026-11-18', '2026-11-19:')
    assert {(row.runs_a, row.runs_b) for row in rows} == {(18, 1)}


def test_few_or_noisy_sessions_decide_nothing(tmp_path):
    frame = read(tmp_path, factory.latencies([1.0, 1.04]))
    rows = compare.compare_metrics(frame, '2026-11-01', '2026-11-02')
    assert {(row.outcome, row.p) for row in rows} == {('undecided', None)}
    wild = [1.0, 1.3, 0.8, 1.2, 0.9]
    frame = read(tmp_path / 'w', two('system', 'aa', 'bb', 1.05, wild))
    rows = compare.compare_metrics(frame, 'aa', 'bb')
    assert {row.outcome for row in rows} == {'undecided'}


def test_chance_among_many_metrics_is_nothing(tmp_path):
    import random
    rng = random.Random(3)
    records = [record for n in range(60) for system in ('aa', 'bb')
               for record in factory.latencies(
                   [1 + 0.01 * rng.gauss(0, 1) for _ in range(6)], (8,),
                   system=system, params=f'n={n}')]
    rows = compare.compare_metrics(read(tmp_path, records), 'aa', 'bb')
    assert len(rows) == 60
    assert not [row for row in rows if row.outcome in ('better', 'worse')]


def test_command_writes_csv_and_json(tmp_path, capsys):
    factory.write(tmp_path, two('system', 'aa', 'bb', 0.8))
    words = ['aa', 'bb', '--perflogs', str(tmp_path)]
    assert compare.main([*words, '--csv', '-']) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert compare.main([*words, '--json', '-']) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(rows) == 4
    assert compare.main(words) == 0
    output = capsys.readouterr().out
    assert 'bb compared with aa: 4 metrics in common: 4 better' in output
    assert 'curve' in output


@pytest.mark.parametrize('words, why', [
    (('aa', 'nope'), 'neither a session nor a date'),
    (('colour=red', 'aa'), 'no column'),
    (('aa', 'cc'), 'no metric of a test case'),
    (('aa', 'dd'), 'dd: all measurements failed or are inconclusive')])
def test_what_cannot_be_compared_is_an_error(tmp_path, capsys, words, why):
    factory.write(tmp_path, [
        *two('system', 'aa', 'bb', 1.0),
        *factory.latencies(CALM, (3,), system='cc', check='Other'),
        *factory.latencies(CALM, system='dd',
                            inconclusive='interference')])
    assert compare.main([*words, '--perflogs', str(tmp_path)]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize('a, b, outcome', [
    (0.16, 0.17, 'undecided'), (0.16, 0.18, 'worse'), (1.00, 1.01, 'same')])
def test_one_printed_digit_is_no_change(tmp_path, a, b, outcome):
    frame = read(tmp_path, [*factory.latencies([a] * 5, system='aa'),
                            *factory.latencies([b] * 5, system='bb')])
    assert {row.outcome for row in compare.compare_metrics(frame, 'aa', 'bb')} == {
        outcome}


@pytest.mark.parametrize('metric, unit, a, b, outcome, change', [
    ('bandwidth', 'MB/s', 100.0, 0.0, 'worse', '0 x'),
    ('latency', 'us', 2.0, 0.0, 'better', '0 x'),
    ('latency', 'us', 0.0, 2.0, 'worse', '1 000 000 x'),
    ('bandwidth', 'MB/s', 0.0, 0.0, 'same', '+0.0 %')])
def test_a_value_of_0_is_compared(
        tmp_path, capsys, metric, unit, a, b, outcome, change):
    factory.write(tmp_path, [
        factory.record(metric, value, 8, day=day, system=system, unit=unit)
        for system, value in (('aa', a), ('bb', b)) for day in (1, 2)])
    assert compare.main(['aa', 'bb', '--perflogs', str(tmp_path), '--all']) == 0
    line = capsys.readouterr().out.replace('\u202f', ' ').splitlines()[1]
    assert line.startswith(outcome) and change in line
    assert compare.main(['aa', 'bb', '--perflogs', str(tmp_path), '--json', '-']) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row['a'], row['b'], row['outcome']) == (a, b, outcome)


def test_a_metric_that_one_side_lacks_is_listed(tmp_path, capsys):
    """But no test case that only one side has."""
    factory.write(tmp_path, [
        *factory.latencies(CALM, system='aa'),
        *factory.latencies(CALM, (1, 8), system='bb'),
        *factory.latencies(CALM, system='aa', params='program=other')])
    assert compare.main(['aa', 'bb', '--perflogs', str(tmp_path)]) == 0
    output = capsys.readouterr().out
    [line] = [line for line in output.splitlines() if line.startswith('missing')]
    assert line.split()[1:5] == ['1', 'µs', '6,', '0'] and 'latency 64 B' in line
    assert '1 missing on one side' in output


def test_a_difference_that_the_verdict_takes_for_rounding_is_not_certain(
        tmp_path, capsys):
    """14 sessions of 1000 MB/s, then 6 of 1002: the verdict is GOOD."""
    factory.write(tmp_path, [
        factory.record('bandwidth', 1000.0 if day <= 14 else 1002.0, 8, day=day,
                       unit='MB/s') for day in range(1, 21)])
    words = ['--perflogs', str(tmp_path), ':2026-11-15', '2026-11-16:']
    assert compare.main(words) == 0
    assert '1 metric in common: 1 same' in capsys.readouterr().out


def test_one_session_that_went_wrong_does_not_hide_a_difference(tmp_path):
    """The noise is that of the verdict, on which a single session counts little."""
    wrong = [*CALM, 1.0, 1.01, 0.99, 1.8]
    frame = read(tmp_path, [*factory.latencies(wrong, (8,), system='aa'),
                            *factory.latencies([1.1 * v for v in CALM], (8,),
                                               system='bb')])
    [row] = compare.compare_metrics(frame, 'aa', 'bb')
    assert row.outcome == 'worse' and 1.07 < row.ratio < 1.12
