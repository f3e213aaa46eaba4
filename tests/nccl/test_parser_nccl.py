"""The parser of nccl-tests on real output, on all versions, on damage."""
from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from checks.core.parsers import ParseError
from checks.nccl import json_file
from checks.nccl import parser as nccl
from checks.nccl.programs import PROGRAMS
from config import families
from tests.mutations import MUTATIONS, digit
from tests.nccl.printed import STYLES, UNCHECKED_IN_PLACE, output

GOLDEN = Path(__file__).parent / 'golden'
#: Path of an output of Optcast's evaluation, from GOLDEN.
OPTCAST = '../../optcast/golden/eval_run{}.txt'


def text_of(name):
    return (GOLDEN / name).read_bytes().decode()


def values(text):
    return {(f'{r.metric} {r.params}'.strip(), r.size): r.value
            for r in nccl.parse(text)}


def rows(text):
    return [(r.program, r.version, r.size, r.metric, r.params, r.value, r.unit)
            for r in nccl.parse(text)]


def reason(text):
    with pytest.raises(ParseError) as caught:
        nccl.parse(text)
    lines = text.split('\n')
    assert lines[caught.value.line - 1].startswith(caught.value.text)
    return caught.value.reason


@pytest.mark.parametrize('name', sorted(
    str(path.relative_to(GOLDEN)) for path in GOLDEN.glob('formats/*')
    if 'nocheck' not in path.name))
def test_what_2_19_prints(name):
    result = nccl.parse(text_of(name))
    known = {**families.shared_metrics(),
             **families.families()['nccl'].metrics}
    for record in result:
        metric = known[record.metric]
        assert metric['unit'] == record.unit
        assert (record.size is not None) == (metric['point'] == 'B')
    assert {r.program for r in result} <= set(PROGRAMS)
    assert {r.value for r in result if r.metric == 'wrong'} == {0}


def test_a_table_by_its_values():
    result = values(text_of('formats/v2.19.6_stub_mpi_np2_g2.txt'))
    assert result == {
        ('time', 65536): 6.67, ('algbw', 65536): 9.82,
        ('busbw', 65536): 14.74, ('time_in_place', 65536): 6.53,
        ('algbw_in_place', 65536): 10.04, ('busbw_in_place', 65536): 15.06,
        ('time', 262144): 7.85, ('algbw', 262144): 33.39,
        ('busbw', 262144): 50.08, ('time_in_place', 262144): 7.55,
        ('algbw_in_place', 262144): 34.71,
        ('busbw_in_place', 262144): 52.06,
        ('time', 1048576): 11.62, ('algbw', 1048576): 90.24,
        ('busbw', 1048576): 135.36, ('time_in_place', 1048576): 11.72,
        ('algbw_in_place', 1048576): 89.46,
        ('busbw_in_place', 1048576): 134.19,
        ('busbw_average', None): 66.9152, ('wrong', None): 0}


def test_the_origin_of_optcast():
    """Rows that begin with #, in the table of a changed nccl-tests."""
    for run, average, time in ((1, 7.27131, 103128), (2, 10.1569, 80965),
                               (3, 13.2063, 60591)):
        result = values(text_of(OPTCAST.format(run)))
        assert result['busbw_average', None] == average
        assert result['time', 536870912] == time


def test_columns_that_others_lack():
    empty = nccl.read_output(text_of('formats/v2.19.6_stub_hypercube.txt'))
    assert {row.redop for row in empty.rows} == {''}
    fast = values(text_of('formats/v2.19.6_stub_fast_over_1000.txt'))
    assert fast['busbw', 67108864] == 1759.7
    tiny = nccl.parse(text_of('formats/v2.19.6_stub_tiny_allgather_zero_size'
                              '.txt'))
    assert {r.size for r in tiny} == {128, 256, None}
    one = values(text_of('formats/v2.19.6_stub_single_rank.txt'))
    assert not any('busbw' in metric for metric, _ in one)
    cpu = values(text_of('formats/v2.19.6_stub_cputime_C1.txt'))
    assert ('algbw', 1048576) in cpu and ('time', 1048576) not in cpu
    types = values(text_of('formats/v2.19.6_stub_types.txt'))
    assert len({m for m, _ in types if m.startswith('time setting=datatype=')}) == 11
    assert ('time', 65536) in types       # float, the default
    roots = values(text_of('formats/v2.19.6_stub_roots_all.txt'))
    assert ('time root=3', 4096) in roots
    cycles = nccl.parse(text_of('formats/v2.19.6_stub_cyc.txt'))
    assert len([r for r in cycles if (r.metric, r.size) == ('time', 262144)]) == 3


def test_json_has_all_digits_and_single_iterations():
    result = values(text_of('formats/all_reduce.json'))
    assert result['time', 65536] == 11.173667
    result = values(text_of('formats/all_reduce.json.0'))
    assert result['time_p99', 65536] == 11.18836
    assert result['time_min_in_place', 65536] == 10.95036


@pytest.mark.parametrize('style', STYLES)
@pytest.mark.parametrize('program', PROGRAMS)
def test_every_version_and_program(style, program):
    text = output(style, program, ranks=8, hosts=2, latency=101.5,
                  rate=1450.0 if style < '2.17.5' else 400.0, maximum=1 << 26)
    if style == 'rccl-O0' and program in UNCHECKED_IN_PLACE:
        assert 'was not checked' in reason(text)
        return
    only = style.removeprefix('rccl-O')
    result = nccl.read_output(text)
    assert result.ranks == 8 and result.hosts == ('node1', 'node2')
    assert len(result.rows) == 17
    assert result.program == (program if 'test starting' in text else '')
    half = (result.rows[-1].out_of_place if only == '1' else
            result.rows[-1].in_place)
    assert half.algbw.value > 0 and half.busbw.value > 0
    if style == 'rccl-M':
        assert result.columns[-3:] == ('algo', 'proto', 'nchannels')


INFO = [
    'node1:4711:4733 [0] NCCL INFO NET/Plugin: Could not find: '
    'libnccl-net.so: cannot open shared object file: No such file or '
    'directory',
    '', 'NCCL version 2.28.9+cuda13.0',
    'node1:4711:4733 [0] NCCL INFO Channel 00/08 : 0 1 2 3 4 5 6 7',
    'libibverbs: Warning: couldn\'t load driver',
    '[2026-11-21 00:31:00] node1:4711:4733 [0] NCCL INFO Killed time 0',
]


def test_lines_in_between():
    for name in ('formats/v2.19.6_stub_all_reduce.txt',
                 OPTCAST.format(1)):
        text = text_of(name)
        chatty = ''.join(f'{line}\n{INFO[n % len(INFO)]}\n'
                         for n, line in enumerate(text.split('\n')))
        assert rows(chatty) == rows(text)
        for ends in (text.replace('\n', '\r\n'), '\n\n' + text + '\n\n',
                     re.sub(' +\n', '\n', text), re.sub('\n +', '\n', text),
                     '**Metric**: out-of-place algbw (GB/s)\n' + text):
            assert rows(ends) == rows(text)


@pytest.mark.parametrize('name, message', [
    ('v2.19.6_D1_without_R2', 'requires enabling symmetric'),
    ('v2.19.6_b_gt_e', 'invalid sizes'),
    ('v2.19.6_bad_datatype', 'float8, defaulting to float'),
    ('v2.19.6_bad_size', 'invalid size specified'),
    ('v2.19.6_no_device', 'no CUDA-capable device is detected'),
    ('v2.19.6_no_driver', 'driver version is insufficient'),
    ('v2.19.6_real_no_driver_mpirun_np2', 'driver version is insufficient'),
    ('v2.19.6_stub_badop', 'op foo, defaulting to sum'),
    ('v2.19.6_stub_fail', 'Test NCCL failure .*unhandled system error'),
    ('v2.19.6_stub_Dopt', 'the run failed'),
    ('v2.19.6_stub_hypercube_not_pow2_nan', 'nRanks 6 is not a power of 2'),
    ('v2.19.6_stub_min_bw_failed', 'below 0.9 times NCCL_TESTS_MIN_BW'),
    ('v2.19.6_stub_reduced_maxbytes', 'Reducing maxBytes to'),
    ('v2.19.6_stub_too_few_gpus', '8 requested but only 4'),
    ('v2.19.6_stub_trap_nonmpi_under_mpirun', 'built without MPI'),
    ('v2.19.6_stub_vspread', '32 elements of float are not 960 B'),
    ('v2.19.6_stub_vsum', 'PRINT_SUMMARY|traffic matrix'),
    ('v2.19.6_stub_wrong_values', '3 wrong element'),
    ('v2.19.6_unknown_option', 'invalid option|USAGE'),
])
def test_every_failed_run_has_a_reason(name, message):
    assert re.search(message, reason(text_of(f'errors/{name}.txt')))


def test_every_recorded_error_has_its_test():
    reported = {name for name, _ in
                test_every_failed_run_has_a_reason.pytestmark[0].args[1]}
    assert reported == {path.stem for path in GOLDEN.glob('errors/*')}


MORE = 'formats/v2.19.6_stub_mpi_np2_g2.txt'


@pytest.mark.parametrize('old, new, message', [
    ('   11.62   90.24', '   11.62   91.24', 'does not match 1048576 B in'),
    ('135.36', '136.36', 'is not 1.5 times algbw'),
    (' 1048576        2', ' 1048577        2', 'are not 1048577 B'),
    ('262144     float     sum      -1    11', '262145     float     sum'
     '      -1    11', 'are not 1048576 B'),
    ('66.9152', '67.9152', 'is not the mean of the rows'),
    ('  262144   ', '   26214   ', '26214 B where'),
    ('  262144   ', '  26214   ', 'not at the places of their columns'),
    ('50.08       0', '50.08       1', '1 wrong element'),
    ('50.08       0', '50.08     nan', 'time is nan|nan wrong element'),
    ('    7.85', '     nan', 'time is nan'),
    ('0 OK', '2 FAILED', '2 rows have wrong values'),
    ('0 OK', '0 OK\n# Out of bounds values : 0 OK', 'values" is printed twice'),
    ('# Out of bounds values : 0 OK\n', '', 'lacks the line "Out of .* before'),
    ('  Rank  2', '  Rank  1', 'rank 1 is listed in place of rank 2'),
    ('#wrong     time', '#right     time', 'unknown, missing or misplaced columns'),
    ('(GB/s)', '(MB/s)', 'not a line of the table'),
    ('maxBytes 1048576', 'maxBytes 4194304', '3 rows for 4 requested sizes'),
    ('validation: 1', 'validation: 0', 'checked no data'),
    ('nThread 1', 'nThread 0', 'a process has no rank'),
    ('concluded: all_reduce', 'concluded: broadcast', 'started, but'),
    ('all_reduce_perf', 'all_redact_perf', 'not a known program of nccl'),
    ('# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n',
     '', 'first lines of the output are missing'),
    ('   11.62   90.24', '   11.62  1e+50', 'not at the places of their columns'),
    ('50.08       0', '50.08      0', 'not at the places of their columns'),
])
def test_damage_is_refused(old, new, message):
    text = text_of(MORE)
    assert old in text
    assert re.search(message, reason(text.replace(old, new)))


def test_options_that_newer_versions_print_are_read():
    text = text_of(MORE)
    # As NVIDIA/dgxc-benchmarking publishes for eight H100 (nccl/README.md).
    newer = text.replace(' unalign: 0', ' side_work: 0 work_sms: 0 direction: H2D')
    assert newer != text and rows(newer) == rows(text)
    assert nccl.parse_log(newer)[0].params == nccl.parse_log(text)[0].params
    assert 'lacks the line "# nThread' in reason(
        text.replace(' unalign: 0', ' unalign:'))


def test_two_outputs_in_one_text():
    text = text_of(MORE)
    lines = text.split('\n')
    woven = [line for pair in zip(lines, lines, strict=True) for line in pair]
    assert 'more than one table' in reason('\n'.join(woven))
    assert 'more than one table' in reason(text + text)


def test_text_that_is_not_output_is_refused():
    for text in ('', '\n', 'hello\n', '{}', '{"config": 1}', '[1]', '{"a": 1',
                 'x' * 10000, '#' * 5000):
        assert reason(text)


@pytest.mark.parametrize('change, message', [
    ({'results': []}, 'has no results'),
    ({'end_time': ''}, 'has no end_time'),
    ({'version': 9}, 'version 9'),
    ({'args': ['x']}, 'not a known program'),
    ({'average_bus_bandwidth': {'bandwidth': 'nan', 'okay': 'unchecked'}}, 'is nan'),
    ({'average_bus_bandwidth': {'bandwidth': 12.0, 'okay': 'unchecked'}},
     'not the mean of the rows'),
    ({'average_bus_bandwidth': {'bandwidth': 12.455542, 'okay': 'false'}}, 'MIN_BW'),
    ({'out_of_bounds': {'count': 2, 'okay': 'false'}}, '2 rows'),
    ({'config': {}}, 'a field is missing'),
    ({'config': {'step_factor': 1}}, 'do not grow'),
    ({'config': {'nthreads': 0}}, 'a process has no rank'),
    ({'config': {'ngpus': 0}}, 'a process has no rank'),
])
def test_incomplete_json_is_refused(change, message):
    data = json.loads(text_of('formats/all_reduce.json'))
    config = change.get('config') and data['config'] | change['config']
    assert message in reason(json.dumps(data | change | ({'config': config} if config
                                                         else {})))


def test_json_with_wrong_or_unchecked_data():
    data = json.loads(text_of('formats/all_reduce.json'))
    data['results'][1]['in_place']['nwrong'] = 3
    assert '3 wrong element' in reason(json.dumps(data))
    data['results'][1]['in_place']['nwrong'] = None
    result = values(json.dumps(data))
    assert ('time', 131072) in result
    assert ('time_in_place', 131072) not in result


@pytest.mark.parametrize('old, new, params', [
    ('agg iters: 1', 'agg iters: 8', 'agg_iters=8'),
    ('graph: 0', 'graph: 4', 'graph=4'), ('unalign: 0', 'unalign: 1', 'unalign=1'),
    ('unalign: 0', 'side_work: 1 work_sms: 8 direction: H2D',
     'direction=H2D side_work=1 work_sms=8'),
    ('#\n', '# Blocking Enabled: wait and barrier after each iteration (-m) \n#\n',
     'blocking=1'),
    ('nThread 1 nGpus 2', 'nThread 2 nGpus 1', 'threads_per_process=2')])
def test_options_that_an_output_prints_make_another_test_case(old, new, params):
    [before], [after] = (nccl.parse_log(text) for text in (
        text_of(MORE), text_of(MORE).replace(old, new, 1)))
    assert after.params == f'{before.params} {params}'


def test_options_in_json_make_another_test_case():
    data = json.loads(text_of('formats/all_reduce.json'))
    data['config'] |= {'graph': 2, 'blocking_collectives': 'true',
                       'aggregated_iterations': 4}
    [output] = nccl.parse_log(json.dumps(data))
    assert output.params.endswith(' agg_iters=4 blocking=1 graph=2')


def test_json_of_several_runs_among_other_lines():
    text = text_of('formats/all_reduce.json').strip()
    [one] = nccl.parse_log(text)
    assert nccl.parse_log(f'$ cat *.json\n{text}\n{text}\ndone\n') == [one, one]
    with pytest.raises(ParseError, match='incomplete') as err:
        nccl.parse_log(f'$ cat *.json\n{text}\n{text[:-9]}\ndone\n')
    assert err.value.line == 3


@pytest.mark.parametrize('text, line', [
    ('{"#wrong":"0","algBw":0.1,"busBw":0.2,"gpus":4,"inPlace":0,"size":1024}\n', 1),
    ('done\nname, size, type, redop, inPlace, time, algBw, busBw, #wrong\n', 2)])
def test_files_of_rccl_tests_are_named(text, line):
    with pytest.raises(ParseError, match='rccl-tests wrote this file') as err:
        nccl.parse_log(text)
    assert err.value.line == line


def test_the_environment_is_not_kept():
    text = text_of('formats/all_reduce.json')
    kept = json_file.strip_environment_from_json(text)
    assert 'LD_LIBRARY_PATH' in text and 'LD_LIBRARY_PATH' not in kept
    assert rows(kept) == rows(text)


# ---------------------------------------- forms that public reports show

def public(name):
    return text_of(f'../../data/public/nccl/{name}.txt')


def averages(text: str) -> list:
    return [(record.program, record.value) for output in nccl.parse_log(text)
            for record in output.records if record.metric == 'busbw_average']


@pytest.mark.parametrize('name, want', [
    ('n2-rccl-version-line', [('all_reduce_perf', 12.8754)]),
    ('n3-several-programs', [
        ('all_reduce_perf', 127.879), ('all_gather_perf', 63.9391),
        ('reduce_scatter_perf', 63.9392), ('alltoall_perf', 63.9392)]),
    ('n5b-indented-tag', [('alltoall_perf', 100.959)]),
    ('m3-float', [('all_reduce_perf', 387.383)]),
    ('m4-half', [('all_reduce_perf', 325.554)]),
])
def test_public_output_is_read(name, want):
    assert averages(public(name)) == want


@pytest.mark.parametrize('name, line, cause', [
    ('n6-hydra-prefix-in-row', 24, 'Hydra'),
    ('n7-nccl-info-in-row', 40, 'a message of NCCL'),
])
def test_a_damaged_row_is_refused_with_its_cause(name, line, cause):
    with pytest.raises(ParseError, match=cause) as err:
        nccl.parse_log(public(name))
    assert err.value.line == line


def test_different_types_are_different_test_cases():
    [single], [half] = map(nccl.parse_log, map(public, ('m3-float', 'm4-half')))
    assert (single.params, half.params) == (
        'gpus=8 nodes=1', 'gpus=8 nodes=1 setting=datatype=half')
    assert (single.num_nodes, single.num_tasks) == (1, 8)


@pytest.mark.parametrize('prefix', ['{n}: ', '[1,{n}]<stdout>:', '[n{n}/nccl] ',
                                    '2026-03-10T04:11:07Z rank {n} | '])
def test_a_row_of_another_rank_is_refused(prefix):
    lines = public('m3-float').splitlines()
    marked = ''.join(f'{prefix.format(n=int(n == 20))}{line}\n'
                     for n, line in enumerate(lines))
    with pytest.raises(ParseError, match='more than one rank') as err:
        nccl.parse_log(marked)
    assert err.value.line in (21, 22)


def test_comments_and_numbers_of_others_outside_the_table_are_no_damage():
    text = public('n2-rccl-version-line')
    around = f'#### job 12 on n001\n#\n{text}# done 12\n'
    assert averages(f'2\n{around}') == averages(text)
    assert averages(around * 2) == averages(text) * 2


# ------------------------------------------------------------ mutations

TEXTS = {name: text_of(name) for name in (
    'formats/v2.19.6_stub_mpi_np2_g2.txt',
    'formats/v2.19.6_stub_all_reduce.txt',
    'formats/v2.19.6_stub_alltoallv.txt',
    'formats/v2.19.6_stub_hypercube.txt', 'formats/all_reduce.json',
    'formats/v2.19.6_stub_types.txt', OPTCAST.format(3))} | {
    style: output(style, program, ranks=4) for style, program in (
        ('2.0', 'all_gather_perf'), ('2.11', 'alltoall_perf'),
        ('2.13', 'all_reduce_perf'), ('2.16', 'reduce_scatter_perf'),
        ('2.17', 'broadcast_perf'), ('rccl', 'all_reduce_perf'),
        ('rccl-O0', 'all_gather_perf'), ('rccl-M', 'reduce_scatter_perf'))
}


def unconfirmed(whole, key, value):
    """Whether no other number in the text confirms the changed value.

    A digit of a time counts where the bandwidth beside it has as many; the
    two bandwidths of a small message have few. The average has more than
    its rows.
    """
    metric, size = key
    name = re.sub(r'_in_place|\[.*', '', metric)
    if name == 'busbw_average':
        return abs(value - whole[key]) <= 0.0101
    mate = metric.replace(name, 'algbw')
    if name == 'time':
        bandwidth = whole[mate, size]
        return bandwidth == 0 or abs(value / whole[key] - 1) <= (
            0.0101 / bandwidth + 0.0501 / whole[key])
    # 0.02 out of 0.01 at one size, where the other digits allow it.
    return abs(value - whole[key]) <= 0.0101


@pytest.mark.parametrize('name', TEXTS)
def test_a_thousand_mutations_and_no_wrong_metric(name):
    """A mutated text is refused, or gives the same values."""
    text = TEXTS[name]
    whole, draw, refused = values(text), random.Random(name), 0
    rounds = 1000 // len(TEXTS) + 1
    for number in range(rounds):
        mutation = MUTATIONS[number % len(MUTATIONS)]
        broken = '\n'.join(mutation(draw, text.split('\n')))
        try:
            result = values(broken)
        except ParseError:
            refused += 1
            continue
        for key, value in result.items():
            assert key in whole, (mutation, key)
            if value != whole[key]:
                assert mutation is digit, (mutation, key, value)
                assert unconfirmed(whole, key, value), (key, value)
    assert refused > rounds / 3
