"""What terminals, pages and launchers make of the output of any program, through
`plumb parse`."""
from __future__ import annotations

import csv
import io
import re

import pytest

from checks.core import text as saved
from cli.session import parse
from tests.conftest import ROOT

TESTS = ROOT / 'tests'
#: Family -> an output that it reads.
OUTPUTS = {
    'osu': TESTS / 'osu' / 'golden' / '5.8' / 'osu_latency.txt',
    'nccl': TESTS / 'data' / 'public' / 'nccl' / 'm3-float.txt',
    'keyvalue': TESTS / 'keyvalue' / 'golden' / 'redis-benchmark-7.0.15.text.txt',
    'optcast': TESTS / 'optcast' / 'golden' / 'run_nogpu_2x2.txt',
    'taobench': TESTS / 'data' / 'public' / 'taobench' / 't2b-report-good.txt',
}


def values(tmp_path, family: str, data: bytes) -> list:
    file = tmp_path / 'saved'
    file.write_bytes(data)
    out, err = io.StringIO(), io.StringIO()
    code = parse.convert_output_to_csv(family, [str(file)], out, err)
    assert code == 0, err.getvalue()
    return [[row[name] for name in ('program', 'params', 'size', 'metric', 'value')]
            for row in csv.DictReader(io.StringIO(out.getvalue()))]


def with_each_line(change):
    return lambda text: ''.join(f'{change(line)}\n' for line in text.split('\n')[:-1])


@pytest.mark.parametrize('family', OUTPUTS)
@pytest.mark.parametrize('change', [
    with_each_line(lambda line: f'\x1b[36mbench-1  |\x1b[0m {line}'),
    with_each_line(lambda line: f'\x1b[32m{line}\x1b[0m'),
    with_each_line(lambda line: line.replace(' ', '\xa0')),
    with_each_line(lambda line: f'{line}\r'),
    with_each_line(lambda line: f'{line} \t'),
    lambda text: f'\x1b]0;user@n1\x07\x1b[?2004l\r{text}\x1b[?2004h',
    lambda text: 'job 12 on n1\nThe job will be killed after 1 hour\n10.0.0.1\n'
                 '2 more processes have sent help message\n'
                 f'{text}----------\ndone\n10.0.0.1\n',
    lambda text: 'Currently Loaded Modules:\n  1) gcc/12.2.0   3) ucx/1.15.0\n\n'
                 f'1738722441.247410\n{text}1738722452\n'
                 'JobID           JobName      State    Elapsed\n'
                 '------------ ---------- ---------- ----------\n'
                 '12345               osu  COMPLETED   00:01:02\n'
                 '12345.0     osu_latency  COMPLETED   00:00:31\n',
], ids=['colour of a prefix', 'colour of lines', 'page', 'Windows', 'blanks',
        'typescript', 'lines around', 'modules and jobs'])
def test_what_stands_around_an_output_changes_no_value(tmp_path, family, change):
    text = OUTPUTS[family].read_bytes().decode()
    want = values(tmp_path, family, text.encode())
    assert want == values(tmp_path, family, change(text).encode())


@pytest.mark.parametrize('family', OUTPUTS)
@pytest.mark.parametrize('prefix', [
    '0: ', ' 0: ', '[0] ', '> ', '    ', '\t', '<stdout>:', '[1,0]<stdout>: ',
    '[prterun-n1-123@1,0]<stdout>: ', '[1,0]<stdout>[2026-11-25 03:00:01]: ',
    '[pod/launcher-x7k2p/bench] ', 'launcher-1  | ', '2026-03-10T04:11:{n:02}.123456Z ',
    'Tue Mar 10 04:11:{n:02} 2026[1,0]<stdout>:', 'Mar  3 10:11:{n:02} n1 osu[4711]: '])
def test_a_prefix_of_all_lines_is_removed(tmp_path, family, prefix):
    text = OUTPUTS[family].read_bytes().decode()
    marked = ''.join(f'{prefix.format(n=n % 60)}{line}\n'
                     for n, line in enumerate(['# node n1', *text.split('\n')[:-1]]))
    assert values(tmp_path, family, marked.encode()) == values(
        tmp_path, family, text.encode())


#: More of them, and families whose servers something else ends: only a crash is a
#: failure there.
MORE = {
    'memtier': TESTS / 'keyvalue' / 'golden' / 'memtier-2.3.0.get.txt',
    'taobench server': TESTS / 'taobench' / 'golden' / 'server_v1.log',
    'optcast client': TESTS / 'optcast' / 'golden' / 'eval_run1.txt'}
CRASHES = ('4711 Segmentation fault      (core dumped) ./program',
           '[n1:4711] Signal: Bus error (7)',
           "program: a.c:12: main: Assertion `n > 0' failed.",
           'slurmstepd: error: Detected 1 oom_kill event in StepId=12.0')
OTHERS = ('Read error: Connection reset by peer',
          'srun: error: n1: task 0: Exited with exit code 1',
          'bash: program: command not found', '=>> PBS: job killed: walltime',
          'slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-03-10T04:11:07 ***')


@pytest.mark.parametrize('name, line', [
    (name, line) for name in [*OUTPUTS, *MORE]
    for line in (CRASHES if re.match('tao|opt', name) else CRASHES + OTHERS)])
def test_the_failure_of_a_run_is_the_reason(tmp_path, name, line):
    file, err = tmp_path / 'saved', io.StringIO()
    file.write_text(f'{(OUTPUTS | MORE)[name].read_text().rstrip()}\n{line}\n')
    family = name.partition(' ')[0].replace('memtier', 'keyvalue')
    assert parse.convert_output_to_csv(family, [str(file)], io.StringIO(), err) == 1
    assert f'the run failed: {line[:60]}'.replace("'", '') in re.sub(
        '[\'"]', '', err.getvalue())


def test_a_command_in_several_lines_is_in_the_first_one():
    text = '$ srun -N2 \\\n>   -n2 \\\n  ./osu_latency\n# x\n |_| \\\n1 2\n'
    assert saved.decode(text.encode()) == (
        '$ srun -N2 -n2 ./osu_latency\n\n\n# x\n |_| \\\n1 2\n')


def test_powershell_writes_utf_16(tmp_path):
    text = OUTPUTS['osu'].read_text()
    assert values(tmp_path, 'osu', text.encode('utf-16')) == values(
        tmp_path, 'osu', text.encode())


@pytest.mark.parametrize('data, reason', [
    (b'\x7fELF\0\0', 'a binary file'), (b'\xff\xd8\xff\xe0', 'not UTF-8 at byte 0')])
def test_what_is_no_text_is_refused(tmp_path, data, reason):
    (tmp_path / 'saved').write_bytes(data)
    err = io.StringIO()
    assert parse.convert_output_to_csv(
        'osu', [str(tmp_path / 'saved')], io.StringIO(), err) == 2
    assert err.getvalue() == (f'{tmp_path / "saved"}: {reason}: give a file with '
        'the printed output of a program\n')
