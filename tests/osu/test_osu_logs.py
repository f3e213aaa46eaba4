"""Saved logs: what people have, read whole; what is cut off, refused."""
from __future__ import annotations

import argparse
import json
import random
import re

import pytest

from checks.core.parsers import ParseError
from checks.osu import logs as osu
from tests.checks.test_parser_mutations import MUTATIONS, deep_json
from tests.conftest import ROOT, each

STUDY = ROOT / 'tests' / 'data' / 'osu-study'
PUBLIC = ROOT / 'tests' / 'data' / 'public' / 'osu'
GOLDEN = ROOT / 'tests' / 'osu' / 'golden'
JSON = argparse.Namespace(json=True)
TIMES = 'real\t0m1.495s\nuser\t0m1.048s\nsys\t1m1.133s\n'
LATENCY = (GOLDEN / '5.8' / 'osu_latency.txt').read_text()
HELLO = '# OSU MPI Hello World Test v5.8\nThis is a test with 4 processes\n'
RUN = 'mpirun -np 4 -map-by ppr:2:node /opt/osu/osu_hello\n'


def study(name: str) -> list:
    return osu.parse_log((STUDY / name).read_text(), JSON)


def log_of_study(name: str) -> str:
    return '\n'.join(json.loads((STUDY / name).read_text())['data']['data']) + '\n'


def values(outputs) -> dict:
    """(output, metric, size) -> value."""
    return {(n, record.metric, record.size): record.value
            for n, output in enumerate(outputs, 1) for record in output.records}


def test_a_log_of_the_study_has_all_programs_with_times_and_ranks():
    outputs = study('run4-crd-metrics-20x-4-0.json')
    log = log_of_study('run4-crd-metrics-20x-4-0.json')
    assert [output.records[0].program for output in outputs] == re.findall(
        r'^time .*/(osu_\w+)$', log, re.M)
    assert len(outputs) == 22
    for output, seconds in zip(outputs, re.findall(r'^real\t0m(.*)s', log, re.M),
                               strict=True):
        times = {r.metric: r.value for r in output.records if r.unit == 's'}
        assert set(times) == {'wall_time', 'user_time', 'system_time'}
        assert times['wall_time'] == float(seconds)
        assert output.params.startswith('allocated_nodes=4 ')
        assert 'map_by=ppr:1:node' in output.params
        assert output.num_nodes == output.num_tasks
    assert {output.num_tasks for output in outputs} == {2, 4}
    assert ['rank_by=core' in output.params for output in outputs] == [
        output.num_tasks == 4 for output in outputs]


def test_lines_are_those_of_the_log():
    log = log_of_study('run5-crd-metrics-16-0.json').splitlines()
    [hello, reduce] = study('run5-crd-metrics-16-0.json')
    for record in (*hello.records, *reduce.records):
        text = log[record.line - 1]
        assert any(f'{record.value:{form}}' in text for form in ('g', '.2f'))


def test_a_list_of_logs_counts_them():
    one = json.loads((STUDY / 'run5-crd-metrics-16-0.json').read_text())['data']
    text = json.dumps([one, {**one, 'data': '\n'.join(one['data'])}])
    outputs = osu.parse_log(text, JSON)
    assert [output.log for output in outputs] == ['[1]', '[1]', '[2]', '[2]']
    broken = {**one, 'data': one['data'][:-3]}
    with pytest.raises(ParseError) as err:
        osu.parse_log(json.dumps([one, broken]), JSON)
    assert err.value.file == '[2]'


@pytest.mark.parametrize('text', [
    '', '{', '[1]', '{}', '{"data": {}}', '{"data": [1]}', '{"data": []}',
    '{"items": []}', '[{"data": [{"matrix": [[1, 2.5]]}]}]'])
def test_other_json_is_refused(text):
    with pytest.raises(ParseError):
        osu.parse_log(text, JSON)


@pytest.mark.parametrize('times, wall', [
    (TIMES, 1.495), ('real 5.93\nuser 0.20\nsys 0.04\n', 5.93),
    ('\nreal\t2m0,500s\nuser\t0m0,1s\nsys\t0m0,1s\n\n', 120.5),
    # GNU, tcsh and zsh.
    ('0.12user 0.05system 1:05.12elapsed 3%CPU (0avgtext+0avgdata 54240maxresident)k\n'
     '0inputs+0outputs (0major+1234minor)pagefaults 0swaps\n', 65.12),
    ('0.012u 0.034s 0:05.12 0.7%\t0+0k 0+0io 0pf+0w\n', 5.12),
    ('mpirun osu_hello  0.12s user 0.05s system 3% cpu 5.123 total\n', 5.123)])
def test_times_after_or_before_the_tables(times, wall):
    table = values(osu.parse_log(LATENCY))
    for text in (LATENCY + times, times + LATENCY):
        assert values(osu.parse_log(text)).items() > table.items()
        assert values(osu.parse_log(text))[1, 'wall_time', None] == wall
    for text in ((LATENCY + times + HELLO + times), (times + LATENCY + times + HELLO)):
        read = values(osu.parse_log(text))
        assert read[1, 'wall_time', None] == read[2, 'wall_time', None] == wall


def test_several_tables_without_commands():
    outputs = osu.parse_log(f'Hosts: a b\n{LATENCY}{HELLO}== end\nLatency: {LATENCY}')
    assert [o.records[0].program for o in outputs] == [
        'osu_latency', 'osu_hello', 'osu_latency']
    assert values(outputs[2:]) == values(osu.parse_log(LATENCY))
    assert outputs[2].records[-1].line == 3 + 2 * LATENCY.count('\n') + 1


@pytest.mark.parametrize('command, nodes, ranks, params', [
    ('mpirun -np 4 -map-by ppr:1:node -rank-by core ./osu_hello', 4, 4,
     'map_by=ppr:1:node rank_by=core layout=4xone'),
    ('$ mpirun --np 4 -N 2 --bind-to core ./osu_hello', 2, 4, 'bind_to=core'),
    ('+ OMP_NUM_THREADS=1 /usr/bin/srun -N2 -n 4 --cpu-bind=cores osu_hello', 2, 4,
     'cpu_bind=cores'),
    ('srun --nodes=2 --ntasks-per-node=2 osu_hello', 2, 4, ''),
    ('mpiexec -n 4 --ppn 4 osu_hello', 1, 4, ''),
    ('jsrun -n 2 -a 2 -c 1 -r 1 -l cpu-cpu osu_hello', 2, 4, ''),
    ('flux run -N 2 -n 4 osu_hello', 2, 4, ''),
    ('mpirun osu_hello', None, 4, ''),
    ('mpirun -np 4 osu_hello -x 3', None, 4, 'options=-x_3'),
    # Behind a prompt, or what starts the launcher.
    ('[me@n1 osu]$ srun -N2 --ntasks-per-node=2 ./osu_hello', 2, 4, ''),
    ('(base) me@n1:~/osu$ mpirun -np 4 -N 2 osu_hello', 2, 4, ''),
    ('10:11:12 me@n1 ~/osu> /usr/bin/time -v mpirun -np 4 osu_hello', None, 4, ''),
    ('\u279c  osu git:(main) \u2717 mpirun -np 4 -npernode 2 osu_hello', 2, 4, ''),
    ('# timeout 60 mpiexec -n 4 -perhost 2 osu_hello', 2, 4, ''),
    ('$ ssh n1 mpirun -np 4 -pernode osu_hello', 4, 4, 'layout=4xone'),
    ("srun -N 2 -n 4 bash -c 'source env.sh; ./osu_hello -x 3'", 2, 4, 'options=-x_3'),
    ('mpirun_rsh -np 4 n1 n2 ./osu_hello', None, 4, ''),
    ('mpirun -np 4 --host n1:2,n2:2 osu_hello', 2, 4, ''),
    # They may be on one node.
    ('mpirun -np 4 --host n1:4,n2:4 osu_hello', None, 4, '')])
def test_ranks_nodes_and_mapping_of_a_command(command, nodes, ranks, params):
    [output] = osu.parse_log(f'{command}\n{HELLO}')
    assert (output.num_nodes, output.num_tasks, output.params) == (
        nodes, ranks, params)


def test_the_end_of_a_table_that_options_or_memory_limit():
    short = ''.join(LATENCY.splitlines(True)[:-3])
    for options, ok in (('', False), (' -m 524288', True), (' -m 1:524288', True),
                        (' -m 1048576', False), (' -M 99', True)):
        text = f'mpirun -np 2 osu_latency{options}\n{short}'
        if ok:
            osu.parse_log(text)
        else:
            with pytest.raises(ParseError, match='the table ends at'):
                osu.parse_log(text)


@each([
    ('nothing\n', 'no title'),
    (LATENCY[:-1], 'no newline'),
    (LATENCY[:-1] + LATENCY, 'the row has 7 fields'),
    (f'{LATENCY[:-1]} x: {LATENCY}', 'fields'),
    # The last row was lost but for its end.
    (''.join(LATENCY.splitlines(True)[:-1]) + f'x: {LATENCY}', 'not a line of OMB'),
    (LATENCY[:-5] + '\n' + TIMES, 'decimals'),
    (LATENCY + TIMES[:-15], 'no newline'),
    (LATENCY + TIMES + TIMES, 'exactly once'),
    ('\n'.join(TIMES.split('\n')[:2]) + '\n' + LATENCY, 'incomplete'),
    (f'time {RUN}{HELLO}', 'the lines real, user and sys of `time` exactly once'),
    (RUN + HELLO + RUN + HELLO + TIMES, 'exactly once'),
    (RUN + 'Permission denied\n', 'no table'),
    (RUN + RUN + HELLO, 'no table'),
    (RUN + HELLO.replace('4', '1'), '1 of 4 ranks answered'),
    (RUN + LATENCY, 'the command line is of osu_hello'),
    (RUN + HELLO + LATENCY, 'no command line'),
    (LATENCY + 'x4194304      512.00\n', 'not a line of OMB'),
    (LATENCY + 'warning\n8388608                 512.00\n', 'not a line of OMB'),
    # A row of the next size, also below the end of the table.
    (LATENCY + '8388608 x              512.00\n', 'next size is damaged'),
    ('[me@n1 osu]$ mpirun -np 2 osu_latency\n'
     + ''.join(LATENCY.splitlines(True)[:-3]), 'the table ends at'),
    (LATENCY.replace('1.28\n', '1.28 \\\n'), 'fields'),
    (LATENCY + 'srun: Force Terminated StepId=12.0\n', 'the run failed'),
    (LATENCY + '12345               osu     FAILED   00:01:02\n', 'fields'),
    (LATENCY + 'mpirun noticed that process rank 0 exited on signal 9\n',
     'the run failed'),
    ('METRICS OPERATOR COLLECTION START\n' + RUN + HELLO, 'cut off'),
    (f'METRICS OPERATOR COLLECTION START\n{HELLO}METRICS OPERATOR COLLECTION END\n',
     'no command line'),
    (HELLO + 'METRICS OPERATOR COLLECTION END\n', 'is missing'),
    (f'mpirun {"-x A " * 999}osu_hello\n{HELLO}', 'characters'),
])
def test_refused(text, reason):
    with pytest.raises(ParseError) as err:
        osu.parse_log(text)
    assert reason in err.value.reason
    assert 0 < err.value.line <= text.count('\n') + 1


@pytest.mark.parametrize('name', [
    'run4-crd-metrics-20x-4-0.json', 'run5-crd-metrics-16-0.json',
    'run5-crd-metrics-16-ptp-0.json'])
def test_mutations_of_logs_are_refused_or_have_the_same_values(name):
    """Only what is around an output may be lost: the nodes of its allocation."""
    def rows(text):
        return {(o.num_tasks, o.num_nodes, r.program, r.size, r.metric, r.value)
                for o in osu.parse_log(text) for r in o.records}

    log, draw = log_of_study(name), random.Random(name)
    whole = rows(log)
    for change in MUTATIONS:
        if change is deep_json:
            continue
        for _ in range(12):
            text = change(draw, log)
            try:
                assert rows(text) <= whole, change.__name__
            except ParseError as err:
                assert err.line > 0


def test_a_log_cut_anywhere_is_refused():
    log = log_of_study('run5-crd-metrics-16-0.json')
    lines = log.splitlines(True)
    first = next(n for n, line in enumerate(lines) if 'START {' not in line
                 and line.startswith('METRICS OPERATOR COLLECTION START'))
    for end in range(first + 1, len(lines)):
        with pytest.raises(ParseError):
            osu.parse_log(''.join(lines[:end]))


def test_windows_and_synchronisation_are_parameters():
    """Outputs of different windows are different test cases."""
    texts = sorted((GOLDEN / '7.2').glob(
        'osu_acc_latency.*.txt'))
    params = {path.name.split('.')[1]: osu.parse_log(path.read_text())[0].params
             for path in texts}
    assert params['s-fence'] == 'synchronisation=fence window=allocate'
    assert params['s-lock_all'] == 'synchronisation=lock_all window=allocate'
    assert params['s-pscw'] == 'synchronisation=pscw window=allocate'
    assert params['w-dynamic'] == 'synchronisation=flush window=dynamic'
    assert params['w-create'] == 'synchronisation=flush window=create'


@pytest.mark.parametrize('word', ['-nan', 'nan', '-inf'])
def test_a_last_row_without_a_number_is_damage(word):
    """It was left out, and the table ended one row earlier."""
    text = (ROOT / 'tests/osu/golden/5.8/osu_latency.txt').read_text()
    *before, last, end = text.split('\n')
    size, value = last.split()
    for row in (f'{word:<{len(size)}}{last[len(size):]}',
                last.replace(value, word.rjust(len(value)))):
        with pytest.raises(ParseError) as caught:
            osu.parse_log('\n'.join([*before, row, end]))
        assert caught.value.line == len(before) + 1


# Forms that public reports show, and variants of them ---------------------

@pytest.mark.parametrize('name, program, rows, last, value', [
    ('o1-timestamp-before-tag', 'osu_get_acc_latency', 24, 4194304, 383.08),
    ('o6-hash-banner', 'osu_latency', 24, 4194304, 383.08),
    ('o11-max-not-power-of-two', 'osu_bw', 24, 8388608, 24135.60),
    ('o12-alltoall-7.5-m', 'osu_alltoall', 27, 67108864, 13427.64),
    ('o13-indented', 'osu_latency', 23, 4194304, 383.19),
    ('o16b-hash-before', 'osu_latency', 23, 4194304, 383.19),
    ('o16c-date-before', 'osu_latency', 23, 4194304, 383.19),
])
def test_public_output_is_read(name, program, rows, last, value):
    [output] = osu.parse_log((PUBLIC / f'{name}.txt').read_text())
    assert {record.program for record in output.records} == {program}
    assert len(output.records) == rows
    assert (output.records[-1].size, output.records[-1].value) == (last, value)


@pytest.mark.parametrize('name, line, reason', [
    ('o3-ucx-warn-in-table', 10, 'a message of UCX'),
    ('o7-omb-py', 1, 'OMB-Py'),
    ('o14-iallreduce-crash', 9, 'Segmentation fault'),
])
def test_public_output_is_refused(name, line, reason):
    with pytest.raises(ParseError, match=reason) as err:
        osu.parse_log((PUBLIC / f'{name}.txt').read_text())
    assert err.value.line == line


@pytest.mark.parametrize('command', [
    'cd /tmp && mpirun -np 2 -npernode 1 osu_latency 2>&1 | tee out.txt',
    '$ module load openmpi; srun -N 2 -n 2 ./osu_latency > out.txt',
    '+ mpirun -np 2 --map-by ppr:1:node /opt/osu/osu_latency'])
def test_a_command_is_recognised_by_the_name_of_its_program(command):
    [output] = osu.parse_log(f'{command}\n{LATENCY}')
    assert (output.num_nodes, output.num_tasks) == (2, 2)
    assert 'tee' not in output.params and 'out.txt' not in output.params
    with pytest.raises(ParseError, match='the table ends at'):
        osu.parse_log(f'{command}\n' + ''.join(LATENCY.splitlines(True)[:-3]))


@pytest.mark.parametrize('name', ['5.8/osu_latency_mt.txt',
                                  '7.4-openmpi5/osu_latency_mp.txt'])
def test_lines_before_the_title_belong_to_its_output(name):
    text = (GOLDEN / name).read_text()
    outputs = osu.parse_log(f'node1\n{text}{LATENCY}{text}')
    program = name.rpartition('/')[2].removesuffix('.txt')
    assert [output.records[0].program for output in outputs] == [
        program, 'osu_latency', program]
    assert outputs[0].params == outputs[2].params
    assert ('sender_threads=1' in outputs[2].params) == ('_mt' in program)


ROWS = '1                       1.23\n2                       1.27\n'
TITLE = '# OSU MPI{place} {what} Test v5.9\n'
DEVICES = '# Send Buffer on {} and Receive Buffer on {}\n'
HOST, DEVICE, MANAGED = 'HOST (H)', 'DEVICE (D)', 'MANAGED (M)'


@pytest.mark.parametrize('head, params', [
    (TITLE.format(place='-CUDA', what='Latency') + DEVICES.format(HOST, HOST), ''),
    (TITLE.format(place='-CUDA', what='Latency') + DEVICES.format(DEVICE, DEVICE),
     'buffers=cuda'),
    (TITLE.format(place='-ROCM', what='Latency') + DEVICES.format(HOST, DEVICE),
     'buffers=rocm-H-D'),
    (TITLE.format(place='-CUDA', what='Latency') + DEVICES.format(MANAGED, MANAGED),
     'buffers=cuda-M-M'),
    (TITLE.format(place='_Put-CUDA', what='Latency')
     + '# Window creation: MPI_Win_create\n# Synchronization: MPI_Win_flush\n'
     '# Rank 0 Memory on DEVICE (D) and Rank 1 Memory on HOST (H)\n',
     'synchronisation=flush window=create buffers=cuda-D-H'),
    (TITLE.format(place='', what='Latency') + '# Datatype: MPI_CHAR.\n', ''),
    (TITLE.format(place='', what='Latency') + '# Datatype: MPI_FLOAT.\n',
     'type=MPI_FLOAT'),
])
def test_what_a_title_says_makes_another_test_case(head, params):
    [output] = osu.parse_log(f'{head}# Size          Latency (us)\n{ROWS}')
    assert output.params == params


def test_windows_and_pairs_of_osu_mbw_mr_make_another_test_case():
    text = ('# OSU MPI Multiple Bandwidth / Message Rate Test v5.9\n'
            '# [ pairs: 4 ] [ window size: {} ]\n'
            '# Size                  MB/s        Messages/s\n'
            '1                       4.00        4000000.00\n')
    outputs = [*osu.parse_log(text.format(64)), *osu.parse_log(text.format(16))]
    assert [(output.num_tasks, output.params) for output in outputs] == [
        (8, ''), (8, 'window_size=16')]


def test_ranks_of_osu_init_come_from_its_sentence():
    text = '# OSU MPI Init Test v7.2\nnprocs: {}, min: 9 ms, max: 9 ms, avg: 9 ms\n'
    outputs = osu.parse_log(text.format(2) + text.format(96))
    assert [output.num_tasks for output in outputs] == [2, 96]


@pytest.mark.parametrize('title', [
    '# OMB Python MPI Latency Test', '# OSU Latency Test',
    '# OSU Open MPI Bi-Bandwidth Test'])
def test_programs_in_other_languages_are_named(title):
    with pytest.raises(ParseError, match=r'OMB-Py.*OMB-J.*not read'):
        osu.parse_log(f'{title}\n# Size [B]\t\tLatency [us]\n1\t\t1.2\n')


@pytest.mark.parametrize('command', ['', 'mpirun -np 8 osu_xccl_allreduce -d cuda\n'])
def test_programs_of_nccl_are_read(command):
    [output] = osu.parse_log(
        f'{command}#Using NCCL\n# OSU NCCL-CUDA Allreduce Latency Test v7.4\n'
        '# Size       Avg Latency(us)\n4                       1.23\n')
    assert (output.records[0].program, output.records[0].metric) == (
        'osu_xccl_allreduce', 'latency')
    assert output.params.startswith('buffers=cuda')


TABLE = f'{TITLE.format(place="", what="Latency")}# Size          Latency (us)\n{ROWS}'


def test_tools_print_above_the_first_row():
    lines = TABLE.splitlines(True)
    tool = '== CALIPER: (0): Initialized\n'
    [output] = osu.parse_log(''.join([*lines[:2], tool, *lines[2:]]))
    assert len(output.records) == 2
    with pytest.raises(ParseError, match='not a line of OMB') as err:
        osu.parse_log(''.join([*lines[:3], tool, *lines[3:]]))
    assert err.value.line == 4


def test_what_a_script_prints_around_outputs_in_a_loop():
    script = ('for i in 1 2; do\n    flux run -N 2 -n 2 --requires="hosts:${i}" '
              '/opt/osu/osu_latency\ndone\n')
    after = ('RUN END\n0% [Working]\n0% [2 Packages 12.7 kB/128 kB 10%]\n'
             '0 upgraded, 0 newly installed\n# next step\n{"version": 1}\n')
    outputs = osu.parse_log(f'{script}RUN 1\n{TABLE}RUN END\nRUN 2\n{TABLE}{after}')
    assert [(len(output.records), output.num_tasks) for output in outputs] == [
        (2, None)] * 2
