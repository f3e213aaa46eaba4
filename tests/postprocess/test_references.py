"""Reference files from records: right centres, one-sided, never from bad runs."""
from __future__ import annotations

import shutil

import perflogs_factory as make
import pytest
import yaml
from conftest import git
from perflogs_factory import CALM, WILD, latencies

from config import references as grammar
from config.sessions import judged
from postprocess.records import read as read_records
from postprocess.references import status, writing

INTRA = 'program=osu_latency placement=intra_node'
OTHER = 'program=osu_latency placement=inter_node'


def written(tmp_path, records, **options) -> dict:
    """The reference file after these records, if any."""
    shutil.rmtree(tmp_path / 'perflogs', ignore_errors=True)
    make.write(tmp_path / 'perflogs', records)
    frame, _ = read_records(tmp_path / 'perflogs', on_error='collect')
    writing.write_references(frame, tmp_path / 'out', **options)
    file = tmp_path / 'out' / 'osu.yaml'
    return yaml.safe_load(file.read_text()) if file.exists() else {}


def entry(refs: dict, params=INTRA, check='OsuPt2pt', source='embedded',
          settings='') -> dict:
    return refs[check]['alpha:cpu']['openmpi'][source][params][settings]


def test_centre_spread_and_one_side(tmp_path, capsys):
    refs = written(tmp_path, latencies([1.0, 1.02, 0.98, 1.0, 1.01]))
    assert refs['OsuPt2pt']['$index'] == [
        '$partition', '$environ', 'source', 'params', 'settings']
    assert entry(refs) == {
        'latency@1B': [1.0, None, None, 'us'],
        # 1.48 % t(0.9995, 4) sqrt((1 + 1/5) / 2 + (0.55 + 1/5) / 2)
        'latency@8B': [1.0, None, 0.14, 'us'],
        'latency@64B': [1.0, None, None, 'us'],
        'worst_ratio': [1.0, None, 0.2, '1']}
    assert refs['$from'] == {'OsuPt2pt': {
        f'alpha:cpu | openmpi | embedded | {INTRA}': {
            'source': 'measured: 5 sessions on 5 days; osu_latency 7.5; nodes n1; '
                      'suite 0123456789ab', 'date': '2026-11-05'}}}
    file = grammar.read(tmp_path / 'out' / 'osu.yaml')
    assert [one.is_measured for one in file.all_entries()] == [True]
    assert 'osu.yaml: new file\n' in capsys.readouterr().out


def test_last_digit_is_no_fault(tmp_path):
    # 0.09 us prints as 0.09 or 0.10: five runs may hide that.
    refs = written(tmp_path, latencies([0.09] * 5))
    assert entry(refs)['latency@8B'] == [0.09, None, 0.23, 'us']
    assert entry(refs)['worst_ratio'] == [1.0, None, 0.23, '1']


def test_values_of_one_digit_are_compared_by_two_of_them(tmp_path):
    """0.06 and 0.07 us are one value; 0.08 us is a digit more, and no fault yet. With
    30 % a size of 0.08 us was one."""
    refs = written(tmp_path, latencies([0.06, 0.07, 0.06, 0.06, 0.07]))
    assert entry(refs)['latency@8B'] == [0.06, None, None, 'us']
    tolerance = entry(refs)['worst_ratio'][2]
    assert 0.34 <= tolerance < 0.5
    for value, is_fine in ((0.06, True), (0.07, True), (0.08, True), (0.10, False)):
        ratio = judged.worsening_of_metric('osu', 'latency', 'lower', value, 0.06)
        assert (ratio <= 1 + tolerance) is is_fine
    assert judged.worsening_of_metric('osu', 'latency', 'lower', 0.07, 0.06) == 1.0


def test_few_runs_give_wide_tolerances(tmp_path):
    tolerances = [
        entry(written(tmp_path / str(n), latencies([1.0, 1.03, 1.06] * n)))[
            'latency@8B'][2] for n in (2, 4, 8)]
    assert tolerances == sorted(tolerances, reverse=True)
    assert tolerances[0] > 1.5 * tolerances[2]


def test_higher_is_better_is_bounded_below(tmp_path):
    params = 'program=osu_bw placement=intra_node'
    refs = written(tmp_path, [
        r for day in range(5) for r in make.curve(
            'bandwidth', lambda s: s * 2.0, [1, 4194304], day=day,
            params=params)])
    assert entry(refs, params)['bandwidth@4194304B'] == [
        8388610.0, -0.05, None, 'MB/s']


def test_open_metrics_and_metrics_without_size(tmp_path):
    refs = written(tmp_path, [
        make.record(metric, value, day=day) for day in range(5)
        for metric, value in (('latency', 2.0), ('wall_time', 3.0),
                              ('ranks', 2.0), ('init_time', 100.0))])
    assert entry(refs) == {
        'latency': [2.0, None, 0.05, 'us'],
        'wall_time': [3.0, None, None, 's'],
        'ranks': [2.0, None, None, '1'],
        'init_time': [100.0, None, 0.05, 'ms']}


@pytest.mark.parametrize('values', [[0.0] * 5, WILD])
def test_a_tolerance_that_cannot_judge_is_written_open(tmp_path, values, capsys):
    refs = written(tmp_path, latencies(values))
    assert entry(refs)['latency@8B'][1:] == [None, None, 'us']
    assert 'worst_ratio' not in entry(refs)


def test_a_derived_metric_is_judged_instead(tmp_path, monkeypatch):
    monkeypatch.setattr(judged, 'judged_rules_by_family', lambda: {'osu': [
        {'metric': 'latency', 'at': [8], 'instead': 'latency_p50'}]})
    refs = written(tmp_path, latencies(WILD) + [
        make.record('latency_p50', v, day=day) for day, v in enumerate(CALM * 2)])
    assert entry(refs)['latency@8B'] == [1.0, None, None, 'us']
    assert entry(refs)['latency_p50'][:2] == [1.0, None]
    assert entry(refs)['latency_p50'][2]


def test_median_within_a_run_and_repetition_0_first(tmp_path):
    records = []
    for day in range(5):
        records += [make.record('latency', v, 8, day=day, repetition=n)
                    for n, v in enumerate((1.0, 9.0, 2.0), 1)]
        records.append(make.record('latency', 2.5, 8, day=day, repetition=0))
    assert entry(written(tmp_path, records))['latency@8B'][0] == 2.5


def test_sources_and_settings_never_meet(tmp_path):
    refs = written(tmp_path, latencies([1.0] * 5)
                   + latencies([3.0] * 5, first=5, source='spack')
                   + latencies([4.0] * 5, settings='max_size=1000'))
    assert entry(refs)['latency@8B'][0] == 1.0
    assert entry(refs, source='spack')['latency@8B'][0] == 3.0
    assert entry(refs, settings='max_size=1000')['latency@8B'][0] == 4.0


def test_a_store_of_another_version_is_another_program(tmp_path):
    written(tmp_path, [
        make.record('operations', value, 64, day=day, family='keyvalue',
                    check='StoreServes', program='valkey', version=version)
        for first, version, value in ((0, '8.1', 100.0), (5, '9.1', 50.0))
        for day in range(first, first + 5)])
    refs = yaml.safe_load((tmp_path / 'out/keyvalue.yaml').read_text())
    assert refs['StoreServes']['$index'] == [
        '$partition', '$environ', 'source', 'version', 'params', 'settings']
    assert str(refs).count('-0.05, None') == 2


@pytest.mark.parametrize(('columns', 'why'), [
    ({'emulated': True}, 'emulated'),
    ({'metric': 'completed', 'guard': 'transport'}, 'refused by a sanity check'),
    ({'reference': 9.0, 'upper': 0.1, 'result': 'fail'}, 'failed'),
    ({'reference': 9.0, 'upper': 0.1, 'result': 'xfail'}, 'failed'),
    ({'inconclusive': 'shared CPUs'}, 'inconclusive (the client'),
])
def test_bad_runs_are_never_used(tmp_path, capsys, columns, why):
    bad = [one | columns for one in latencies([50.0] * 5, (8,))]
    assert not written(tmp_path / 'a', bad)
    output = capsys.readouterr()
    assert why in output.err and 'no reference was written' in output.err
    good = [{**r, 'session': r['session'] + '-b', 'time': r['time']}
            for r in latencies([1.0] * 5)]
    refs = written(tmp_path / 'b', bad + good)
    assert entry(refs)['latency@8B'][0] == 1.0
    assert why in capsys.readouterr().err


def test_a_new_level_uses_what_only_its_reference_failed(tmp_path):
    failed = [one | {'reference': 1.0, 'upper': 0.1, 'result': 'fail'}
              for one in latencies([2.0] * 5)]
    assert not written(tmp_path, failed)
    assert entry(written(tmp_path, failed, new_level=True))['latency@8B'][0] == 2.0


def test_a_metric_that_is_no_number_is_never_used(tmp_path):
    records = latencies([1.0] * 5)
    records += [make.record('latency', float('nan'), 8, day=day)
                for day in range(5, 9)]
    assert entry(written(tmp_path, records))['latency@8B'] == [1.0, None, 0.05, 'us']


def test_too_few_runs_and_different_ranks_are_left_out(tmp_path, capsys):
    refs = written(tmp_path, latencies([1.0] * 5) + latencies([1.0] * 4, params=OTHER)
                   + latencies([1.0] * 5, settings='a=1')
                   + latencies([1.0] * 5, first=5, settings='a=1', num_tasks=4))
    assert entry(refs) and OTHER not in str(refs) and 'a=1' not in str(refs)
    output = capsys.readouterr().err
    assert '1 test case left out: fewer than 5 sound sessions' in output
    assert 'several programs or numbers of ranks' in output


# What a file had ------------------------------------------------------------

def test_comments_other_entries_and_what_a_person_set_are_kept(tmp_path, capsys):
    written(tmp_path, latencies(CALM) + latencies(CALM, params=OTHER)
            + latencies(CALM, settings='b=2'))
    path = tmp_path / 'out' / 'osu.yaml'
    key = f'alpha:cpu | openmpi | embedded | {OTHER}'
    text = path.read_text()
    start = text.index(f'    {key}:')
    end = text.index('\n', start)
    path.write_text('# Ours.\ncomplete: true\n' + text[:start]
                    + f'    {key}: {{reason: "a slow switch"}}' + text[end:])
    refs = written(tmp_path, latencies([3 * v for v in CALM])
                   + latencies([3 * v for v in CALM], params=OTHER))
    assert entry(refs)['latency@8B'][0] == 3.0
    assert entry(refs, OTHER)['latency@8B'][0] == 1.0
    assert entry(refs, settings='b=2')['latency@8B'][0] == 1.0
    assert refs['complete'] is True and path.read_text().startswith('# Ours.\n')
    output = capsys.readouterr()
    assert 'kept, because a person set it: a slow switch' in output.err
    # Not tracked: the difference is printed.
    assert '+            latency@8B: [3.0, null, 0.05, us]\n' in output.out


def test_git_shows_the_difference_of_a_tracked_file(tmp_path, capsys):
    git('init', '-q', folder=tmp_path)
    written(tmp_path, latencies(CALM))
    git('add', 'out/osu.yaml', folder=tmp_path)
    capsys.readouterr()
    written(tmp_path, latencies(CALM))
    assert 'osu.yaml: no change' in capsys.readouterr().out
    written(tmp_path, latencies([2 * v for v in CALM]))
    output = capsys.readouterr().out
    assert 'osu.yaml: changed; git diff shows how' in output and '+++' not in output
    # git ignores the file: its difference is printed.
    git('rm', '-qf', '--cached', 'out/osu.yaml', folder=tmp_path)
    (tmp_path / '.gitignore').write_text('out\n')
    written(tmp_path, latencies([3 * v for v in CALM]))
    output = capsys.readouterr().out
    assert '+            latency@8B: [3.0, null, 0.05, us]\n' in output
    assert 'git diff' not in output


@pytest.mark.parametrize('text, words', [
    ('OsuPt2pt: {$index: [params], x=1: {latency@8B: [1, null, 0.1, us]}}',
     r'OsuPt2pt: \$index must be \[\$partition, '),
    ('OsuPt2pt: [\n', 'osu.yaml:2: not YAML')])
def test_a_file_of_another_form_is_refused_and_stays(tmp_path, text, words):
    path = tmp_path / 'out' / 'osu.yaml'
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(grammar.ReferenceError_, match=words):
        written(tmp_path, latencies(CALM))
    assert path.read_text() == text


def test_status_lists_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('RFM_REFERENCE_PREFIX', str(tmp_path / 'out'))
    written(tmp_path, [*latencies(CALM), *latencies(WILD, params=OTHER),
                       *latencies(CALM[:3], settings='a=1')])
    capsys.readouterr()
    assert status.main(['--site', str(tmp_path / 'alpha'), '--perflogs',
                        str(tmp_path / 'perflogs')]) == 2
    (tmp_path / 'alpha').mkdir()
    (tmp_path / 'alpha' / 'system.py').touch()
    assert status.main(['--site', str(tmp_path / 'alpha'), '--perflogs',
                        str(tmp_path / 'perflogs')]) == 0
    output = ' '.join(capsys.readouterr().out.split())
    assert 'needs 2 more sessions' in output
    assert 'latency@8B: varies too much: the tolerance would be ' in output
    assert ('3 test cases: 1 without a reference, 1 with a metric without a tolerance'
            in output)
