"""Proposed references: right centres, one-sided, never from bad runs."""
from __future__ import annotations

import datetime

import perflogs_factory as make
import pytest
import yaml
from perflogs_factory import latencies

from config.sessions.judged import worsening_of_metric
from postprocess.references import proposal as references

INTRA = 'program=osu_latency placement=intra_node'


def run(tmp_path, records, *options) -> tuple[int, dict]:
    """Exit code, and the proposed file if any."""
    make.write(tmp_path / 'perflogs', records)
    code = references.main([
        'propose', '--site', 'alpha', '--perflogs',
        str(tmp_path / 'perflogs'), '--output', str(tmp_path / 'out'),
        *options])
    file = tmp_path / 'out' / 'osu.proposed.yaml'
    return code, yaml.safe_load(file.read_text()) if file.exists() else {}


def entry(refs: dict, params=INTRA, check='OsuPt2pt', source='embedded',
          settings='') -> dict:
    return refs[check]['alpha:cpu']['openmpi'][source][params][settings]


def metrics(refs: dict) -> dict:
    """The entry without $from and $no_reference."""
    return {f: v for f, v in entry(refs).items() if f[0] != '$'}


def test_centre_spread_and_one_side(tmp_path, capsys):
    code, refs = run(tmp_path, latencies([1.0, 1.02, 0.98, 1.0, 1.01]))
    assert code == 0
    assert refs['OsuPt2pt']['$index'] == [
        '$partition', '$environ', 'source', 'params', 'settings']
    assert entry(refs) == {
        '$from': {'runs': 5, 'days': 5, 'first': datetime.date(2026, 11, 1),
                  'last': datetime.date(2026, 11, 5), 'suite': '0123456789ab',
                  'tolerances': {'latency@8B': [1.0, 0.14],
                                 'worst_ratio': [1.0, 0.2]}},
        'latency@1B': [1.0, None, None, 'us'],
        # 1.48 % t(0.9995, 4) sqrt((1 + 1/5) / 2 + (0.55 + 1/5) / 2)
        'latency@8B': [1.0, None, 0.14, 'us'],
        'latency@64B': [1.0, None, None, 'us'],
        'worst_ratio': [1.0, None, 0.2, '1']}
    text = (tmp_path / 'out/osu.proposed.yaml').read_text()
    for output in ('suite: 0123456789ab; ReFrame: 4.10.4', 'osu_latency 7.5',
                   'openmpi 5.0.6', 'nodes: n1'):
        assert output in text
    printed = capsys.readouterr()
    assert 'osu.proposed.yaml: proposed' in printed.out
    assert 'from 5 days: provisional. The tolerances assume' in printed.err


def test_last_digit_is_no_fault(tmp_path):
    # 0.09 us prints as 0.09 or 0.10: five runs may hide that.
    _, refs = run(tmp_path, latencies([0.09] * 5))
    assert entry(refs)['latency@8B'] == [0.09, None, 0.23, 'us']
    assert entry(refs)['worst_ratio'] == [1.0, None, 0.23, '1']


def test_values_of_one_digit_are_compared_by_two_of_them(tmp_path):
    """0.06 and 0.07 us are one value; 0.08 us is a digit more, and no fault yet. With
    30 % a size of 0.08 us was one."""
    _, refs = run(tmp_path, latencies([0.06, 0.07, 0.06, 0.06, 0.07]))
    assert entry(refs)['$no_reference'] == {'latency@8B': 0}
    assert entry(refs)['latency@8B'] == [0.06, None, None, 'us']
    tolerance = entry(refs)['worst_ratio'][2]
    assert 0.34 <= tolerance < 0.5
    for value, is_fine in ((0.06, True), (0.07, True), (0.08, True), (0.10, False)):
        ratio = worsening_of_metric('osu', 'latency', 'lower', value, 0.06)
        assert (ratio <= 1 + tolerance) is is_fine
    assert worsening_of_metric('osu', 'latency', 'lower', 0.07, 0.06) == 1.0


def test_few_runs_give_wide_tolerances(tmp_path):
    tolerances = []
    for n in (2, 4, 8):
        _, refs = run(tmp_path / str(n), latencies([1.0, 1.03, 1.06] * n))
        tolerances.append(entry(refs)['latency@8B'][2])
    assert tolerances == sorted(tolerances, reverse=True)
    assert tolerances[0] > 1.5 * tolerances[2]


def test_higher_is_better_is_bounded_below(tmp_path):
    params = 'program=osu_bw placement=intra_node'
    code, refs = run(tmp_path, [
        r for day in range(5) for r in make.curve(
            'bandwidth', lambda s: s * 2.0, [1, 4194304], day=day,
            params=params)])
    assert code == 0
    assert entry(refs, params)['bandwidth@4194304B'] == [
        8388610.0, -0.05, None, 'MB/s']


def test_open_metrics_and_metrics_without_size(tmp_path):
    _, refs = run(tmp_path, [
        make.record(metric, value, day=day) for day in range(5)
        for metric, value in (('latency', 2.0), ('wall_time', 3.0),
                              ('ranks', 2.0), ('init_time', 100.0))])
    assert metrics(refs) == {
        'latency': [2.0, None, 0.05, 'us'],
        'wall_time': [3.0, None, None, 's'],
        'ranks': [2.0, None, None, '1'],
        'init_time': [100.0, None, 0.05, 'ms']}


def test_a_metric_that_is_0_is_judged_by_no_fraction(tmp_path):
    _, refs = run(tmp_path, latencies([0.0] * 5))
    assert entry(refs)['latency@8B'] == [0.0, None, None, 'us']
    assert entry(refs)['$no_reference'] == {'latency@8B': 0}


def test_median_within_a_run_and_repetition_0_first(tmp_path):
    records = []
    for day in range(5):
        records += [make.record('latency', v, 8, day=day, repetition=n)
                    for n, v in enumerate((1.0, 9.0, 2.0), 1)]
        records.append(make.record('latency', 2.5, 8, day=day, repetition=0))
    _, refs = run(tmp_path, records)
    assert entry(refs)['latency@8B'][0] == 2.5


def test_sources_never_meet(tmp_path):
    records = latencies([1.0] * 5) + latencies([3.0] * 5, first=5, source='spack')
    _, refs = run(tmp_path, records)
    assert entry(refs)['latency@8B'][0] == 1.0
    assert entry(refs, source='spack')['latency@8B'][0] == 3.0


def test_settings_never_meet(tmp_path):
    records = latencies([1.0] * 5) + latencies([3.0] * 5, settings='max_size=1000')
    _, refs = run(tmp_path, records)
    assert entry(refs)['latency@8B'][0] == 1.0
    assert entry(refs, settings='max_size=1000')['latency@8B'][0] == 3.0


def test_a_store_of_another_version_is_another_program(tmp_path):
    code, _ = run(tmp_path, [
        make.record('operations', value, 64, day=day, family='keyvalue',
                    check='StoreServes', program='valkey', version=version)
        for first, version, value in ((0, '8.1', 100.0), (5, '9.1', 50.0))
        for day in range(first, first + 5)])
    assert code == 0
    refs = yaml.safe_load(
        (tmp_path / 'out/keyvalue.proposed.yaml').read_text())
    assert refs['StoreServes']['$index'] == [
        '$partition', '$environ', 'source', 'version', 'params', 'settings']
    assert str(refs).count('-0.05, None') == 2


@pytest.mark.parametrize(('columns', 'why'), [
    ({'emulated': True}, 'emulated'),
    ({'metric': 'completed', 'guard': 'transport'}, 'refused by a guard'),
    ({'reference': 9.0, 'upper': 0.1, 'result': 'fail'}, 'failed'),
    ({'reference': 9.0, 'upper': 0.1, 'result': 'xfail'}, 'failed'),
    ({'inconclusive': 'shared CPUs'}, 'inconclusive (the client'),
])
def test_bad_runs_are_never_used(tmp_path, capsys, columns, why):
    bad = [one | columns for one in latencies([50.0] * 4, (8,))]
    code, _ = run(tmp_path / 'a', bad)
    output = capsys.readouterr()
    assert code == 1 and why in output.err and output.err.count('\n') == 1
    good = [{**r, 'session': r['session'] + '-b', 'time': r['time']}
            for r in latencies([1.0] * 5)]
    code, refs = run(tmp_path / 'b', bad + good)
    assert code == 0
    assert entry(refs)['latency@8B'][0] == 1.0
    assert why in capsys.readouterr().err


def test_a_metric_that_is_no_number_is_never_used(tmp_path):
    records = latencies([1.0] * 5)
    records += [make.record('latency', float('nan'), 8, day=day)
                for day in range(5, 9)]
    code, refs = run(tmp_path, records)
    assert code == 0
    assert entry(refs)['latency@8B'] == [1.0, None, 0.05, 'us']
    assert entry(refs)['$from']['runs'] == 5


def test_one_failed_record_keeps_its_whole_case_out(tmp_path):
    records = latencies([1.0] * 5) + latencies([1.0] * 6)[-3:]
    records += latencies([9.0] * 7)[-3:]
    records[-1] |= {'reference': 1.0, 'upper': 0.1, 'result': 'fail'}
    _, refs = run(tmp_path, records)
    assert entry(refs)['latency@1B'][0] == 1.0
    assert entry(refs)['$from']['runs'] == 6


def test_too_few_runs_refuse_and_write_nothing(tmp_path, capsys):
    code, _ = run(tmp_path, latencies([1.0])
                  + latencies([1.0], params='program=osu_latency b'))
    assert code == 1 and not (tmp_path / 'out').exists()
    assert (
        '2 test cases have 1 of 5 sessions (family osu); '
        'run `./plumb run --site alpha` 4 more times'
    ) in capsys.readouterr().err


def test_cases_with_too_few_runs_are_counted_not_written(tmp_path, capsys):
    code, refs = run(tmp_path, latencies([1.0] * 5)
                     + latencies([1.0] * 2, params='program=other'))
    assert code == 0
    assert 'program=other' not in refs['OsuPt2pt']['alpha:cpu']['openmpi'][
        'embedded']
    assert '1 test case has 2 of 5' in capsys.readouterr().err


def test_metrics_of_too_few_runs_are_left_out(tmp_path):
    _, refs = run(tmp_path, latencies([1.0] * 5)
                  + [make.record('latency', 1.0, 128, day=0)])
    assert 'latency@128B' not in entry(refs)


def test_different_ranks_under_one_key_are_refused(tmp_path, capsys):
    code, _ = run(tmp_path, latencies([1.0] * 5)
                  + latencies([1.0] * 5, first=5, num_tasks=4))
    assert code == 1
    assert 'several programs or numbers of ranks' in capsys.readouterr().err


def test_choice_of_runs(tmp_path):
    records = latencies([1.0] * 5 + [2.0] * 6)
    folder = tmp_path / 'x'
    make.write(folder, records)

    def centre(*options):
        out = tmp_path / '-'.join(options).replace(':', '_')
        code = references.main(['propose', '--site', 'alpha', '--perflogs',
                                str(folder), '--output', str(out), *options])
        return code or entry(yaml.safe_load(
            (out / 'osu.proposed.yaml').read_text()))['latency@8B'][0]

    assert centre('--first', '5') == 1.0
    assert centre('--last', '5') == 2.0
    assert centre('--sessions', '20261106:') == 2.0
    assert centre('--sessions', ':20261105T030000Z-aaaaaa') == 1.0
    assert centre('--last', '2') == 1           # exit code: refused
    assert centre('--sessions', '2026:') == 2       # not unique
    assert centre('--sessions', 'x:') == 2
    assert centre('--sessions', '20261106:20261105') == 2


def test_tolerance(tmp_path):
    _, refs = run(tmp_path, latencies([1.0] * 5), '--tolerance', '0.1',
                  '--tolerance', 'worst_ratio=0.5')
    assert entry(refs)['latency@8B'][2] == 0.1
    assert entry(refs)['worst_ratio'][2] == 0.5


def test_printing_writes_nothing(tmp_path, capsys):
    code, _ = run(tmp_path, latencies([1.0] * 5), '--dry-run')
    assert code == 0 and not (tmp_path / 'out').exists()
    assert entry(yaml.safe_load(capsys.readouterr().out))


def test_unreadable_and_unknown(tmp_path, capsys):
    assert run(tmp_path, latencies([1.0] * 5), '--site', 'beta')[0] == 2
    assert "(the records have: alpha)" in capsys.readouterr().err
    assert run(tmp_path, [], '--family', 'nccl')[0] == 2
    file, *_ = (tmp_path / 'perflogs').rglob('*.json')
    file.write_text(file.read_text()[:-5])
    assert run(tmp_path, [])[0] == 2
    assert f'{file}:' in capsys.readouterr().err
    assert references.main(['propose', '--site', 'a', '--perflogs',
                            str(tmp_path / 'no')]) == 2


@pytest.mark.parametrize('options', [
    ['--min-sessions', '4'], ['--tolerance', '-1'], ['--tolerance', 'latncy=1']])
def test_usage(options):
    with pytest.raises(SystemExit) as end:
        references.main(['propose', '--site', 'a', *options])
    assert end.value.code == 2
