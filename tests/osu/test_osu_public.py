"""Forms of saved output that public reports show, and variants of them."""
from __future__ import annotations

import pytest

from checks.core.parsers import ParseError
from checks.osu import logs as osu
from tests.conftest import ROOT

PUBLIC = ROOT / 'tests' / 'data' / 'public' / 'osu'
GOLDEN = ROOT / 'tests' / 'osu' / 'golden'
LATENCY = (GOLDEN / '5.8' / 'osu_latency.txt').read_text()


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
