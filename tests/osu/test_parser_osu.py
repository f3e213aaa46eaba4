"""The OSU parser on real output, on every variant, and on broken copies."""
from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
import sys
from pathlib import Path

import pytest

from checks.core.parsers import ParseError, Record
from checks.osu import parser as osu
from cli.session import parse
from config import families
from tests.conftest import each

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / 'tests' / 'osu' / 'golden'
METRICS = families.all_metrics()
with (GOLDEN / 'expected.csv').open(newline='') as stream:
    EXPECTED = {row['file']: row for row in csv.DictReader(stream)}


def text_of(name: str) -> str:
    return (GOLDEN / name).read_bytes().decode()


def shown(record: Record) -> str:
    size = '' if record.size is None else f'{record.size} '
    value = repr(record.value).removesuffix('.0')
    params = f'[{record.params}]' if record.params else ''
    return f'{size}{record.metric}{params} {value} {record.unit}'


def refused(text: str) -> ParseError:
    with pytest.raises(ParseError) as caught:
        osu.parse(text)
    error = caught.value
    lines = text.split('\n')
    assert 1 <= error.line <= len(lines)
    assert error.text == lines[error.line - 1].removesuffix('\r')
    assert str(error) == f'{error.line}: {error.reason}'
    return error


def values(records: tuple[Record, ...]) -> list[tuple]:
    """Records without their lines, which a dropped comment moves."""
    return [(r.program, r.version, r.size, r.metric, r.params, r.value, r.unit)
            for r in records]


def same_or_refused(text: str, records: tuple[Record, ...]) -> bool:
    """Whether a broken copy is refused; if not, it has the same figures."""
    try:
        left = osu.parse(text)
    except ParseError:
        return True
    assert values(left) == values(records), text
    return False


def rows_of(lines: list[str]) -> list[int]:
    """Lines of a text that hold values, found without the parser."""
    return [i for i, line in enumerate(lines)
            if re.match(r'([0-9]+ | +[0-9]+\.|nprocs|This is a test)', line)]


# Real output -------------------------------------------------------------

def test_every_real_output_is_expected():
    assert set(EXPECTED) == {path.relative_to(GOLDEN).as_posix()
                             for path in GOLDEN.glob('*/*.txt')}


@each(EXPECTED)
def test_real_output(name):
    want = EXPECTED[name]
    text = text_of(name)
    if want['refused']:
        assert str(refused(text)) == want['refused']
        return
    records = osu.parse(text)
    assert {r.program for r in records} == {want['program']}
    assert {r.version for r in records} == {want['version']}
    assert [str(len(records)), shown(records[0]), shown(records[-1])] == [
        want['records'], want['first'], want['last']]
    # The table above, held against the names of the files and their rows.
    assert name.split('/')[1].startswith(f'{want["program"]}.')
    assert name.split('/')[0].split('-')[0] == want['version']
    lines = text.split('\n')
    assert sorted({r.line - 1 for r in records}) == rows_of(lines)
    for record in records:
        words = re.split('[ ,]+', lines[record.line - 1])
        assert f'{record.value:.2f}' in words or str(
            round(record.value)) in words
        assert record.size is None or words[0] == str(record.size)
    keys = [(r.size, r.metric, r.params) for r in records]
    assert len(keys) == len(set(keys)), 'a value stands twice'


def test_names_and_units_are_those_of_the_table():
    seen = {(r.metric, r.unit) for name, want in EXPECTED.items()
            if not want['refused'] for r in osu.parse(text_of(name))}
    seen |= {(c.name, c.unit) for c in osu._PHRASES.values() if c.unit}
    seen |= {(f'{base}_p{rank}', unit) for rank in (50, 90, 95, 99)
             for base, unit in (('latency', 'us'), ('overall_time', 'us'),
                                ('bandwidth', 'MB/s'))}
    for metric, unit in seen:
        assert METRICS[metric]['unit'] == unit, metric


def test_all_data_types_keep_apart():
    records = osu.parse(text_of('7.2/osu_mbw_mr.Tall.txt'))
    assert [(r.metric, r.params) for r in records if r.size == 4] == [
        (metric, params) for params in ('', 'type=MPI_INT', 'type=MPI_FLOAT')
        for metric in ('bandwidth', 'message_rate')]
    assert {r.unit for r in records} == {'MB/s', '1/s'}


def test_window_sizes_are_parameters():
    records = osu.parse(text_of('5.8/osu_mbw_mr.varywin.txt'))
    result = {(r.size, r.metric, r.params): r.value for r in records}
    assert result[2, 'bandwidth', 'window=4'] == 0.20
    assert result[8, 'message_rate', 'window=128'] == 212854.03
    assert len(result) == 2 * 4 * 8


# Titles ------------------------------------------------------------------

@pytest.mark.parametrize('what, topology, program', [
    ('MPI-CUDA MANAGED Latency', False, 'osu_latency'),
    ('MPI_Put-OPENACC Bi-directional Bandwidth', False, 'osu_put_bibw'),
    ('MPI-CUDA Bandwidth Persistent', False, 'osu_bw_persistent'),
    ('MPI Scatterv Persistent Latency', False, 'osu_scatterv_persistent'),
    ('MPI Non-Blocking Broadcast Latency', False, 'osu_ibcast'),
    ('MPI-CUDA Non-blocking All-to-All Latency', False, 'osu_ialltoall'),
    ('MPI Non-blocking Neighbor Allgather Latency', False, 'osu_ineighbor_allgather'),
    ('MPI All-to-Allw Personalized Exchange Latency', False, 'osu_alltoallw'),
    ('MPI All-to-Allw Personalized Exchange Latency', True, 'osu_neighbor_alltoallw'),
    ('MPI Bandwidth Fan-In', False, 'osu_mpi_bandwidth_fan_in')])
def test_program_of_a_title(what, topology, program):
    assert osu.program_of_title(what, topology) == program


# Variants that have no real output here ----------------------------------

def table(title: str, *comments: str, names: str = 'Latency (us)',
          values: str = '1.50', sizes: str = '1 2 4') -> str:
    """Output as OMB prints it: columns of 18 places after one of 10."""
    columns = names.split(', ')
    widths = [12 if name == 'Iterations' else 18 for name in columns]

    def line(first: str, words: list[str]) -> str:
        return f'{first:10}' + ''.join(
            f'{word:>{width}}' for word, width in
            zip(words, widths, strict=True))

    lines = [f'# OSU {title}', *comments, line('# Size', columns)]
    lines += [line(size, values.replace('SIZE', size).split())
              for size in sizes.split()]
    return '\n'.join(lines) + '\n'



@pytest.mark.parametrize('text, program, names', [
    (table('MPI Latency Test v5.3', sizes='0 1 2'), 'osu_latency', 'latency'),
    (table('MPI Latency Test v7.2-embedded.1', sizes='3 6 12'), 'osu_latency',
     'latency'),
    (table('MPI_Get-CUDA latency Test v6.1', '# Window creation: x',
           '# Rank 0 Memory on DEVICE (D) and Rank 1 Memory on HOST (H)'),
     'osu_get_latency', 'latency'),
    (table('MPI Bandwidth Test v7.4', '# Datatype: MPI_CHAR.',
           names='Bandwidth (MB/s), Validation, P5 Tail BW(MB/s), '
                 'P95 Tail BW(MB/s), Transmit Size',
           values='1.50 Pass 1.40 1.60 SIZE'),
     'osu_bw', 'bandwidth bandwidth_p5 bandwidth_p95'),
    (table('MPI Allreduce Latency Test v7.4', '# Datatype: MPI_CHAR.',
           names='Avg Latency(us), Min Latency(us), Max Latency(us), '
                 'Iterations, Validation, P99 Tail Lat(us), Transmit Size',
           values='1.50 1.50 1.60 100 Pass 9.00 SIZE', sizes='4 8'),
     'osu_allreduce', 'latency latency_min latency_max latency_p99'),
    (table('MPI Non-blocking Allgather Latency Test v5.4.1',
           '# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait', '',
           names='Overall(us), Compute(us), Coll. Init(us), MPI_Test(us), '
                 'MPI_Wait(us), Pure Comm.(us), Overlap(%)',
           values='9.00 4.00 0.50 0.00 4.00 5.00 0.00'),
     'osu_iallgather', 'overall_time compute_time init_call_time '
     'test_call_time wait_call_time pure_comm_time overlap'),
    (table('MPI Non-blocking Gather Latency Test v7.4',
           names='Overall(us), Compute(us), Pure Comm.(us), Overlap(%), '
                 'P50 Tail Lat(us)', values='9.00 4.00 5.00 0.00 8.00'),
     'osu_igather', 'overall_time compute_time pure_comm_time overlap '
     'overall_time_p50'),
    (table('NCCL Bandwidth Test v6.1', names='Bandwidth (MB/s)'),
     'osu_xccl_bw', 'bandwidth'),
    (table('OpenSHMEM Put Message Rate Test v5.8', names='Messages/s'),
     'osu_openshmem_put_message_rate', 'message_rate'),
])
def test_variant(text, program, names):
    records = osu.parse(text)
    first = records[0].size
    assert {r.program for r in records} == {program}
    assert [r.metric for r in records if r.size == first] == names.split()
    assert osu.parse(text.replace('\n', '\r\n')) == records
    assert osu.parse(text + '\n\n') == records


@pytest.mark.parametrize('title, row, count', [
    ('MPI Barrier Latency', f'{"24.43":>17}', 1),
    ('MPI Barrier Latency', f'{"9.35":>17}{"9.05":>18}{"9.52":>18}{"20":>12}', 3),
    ('MPI Non-blocking Barrier Latency', ''.join(f'{v:>18}' for v in (
        '15.82', '7.81', '0.52', '0.00', '7.34', '6.89', '6.61', '6.97', '0.00')), 9)])
def test_barriers_of_7_1_have_no_header(title, row, count):
    text = f'\n# OSU {title} Test v7.1\n{row}\n'
    records = osu.parse(text)
    assert len(records) == count
    assert {r.size for r in records} == {None}
    assert refused(text + f'{row}\n').reason.startswith(
        'the table has no sizes')
    assert refused(text.replace('v7.1', 'v7.0')).line == 3
    refused(text.replace(row, row + f'{"1.00":>18}'))


@pytest.mark.parametrize('before', [
    '8                       0.50', '             9.87', '# Size  x',
    'mpirun noticed that process rank 1 died', 'Usage: osu_bw [options]',
    'DATA VALIDATION ERROR: osu_bw exited', '# Datatype: MPI_CHAR.',
    'This is a test with 4 processes', '4 nan'])
def test_noise_that_is_none(before):
    assert refused(f'{before}\n{text_of("7.2/osu_bw.txt")}').line == 1


# Broken copies -----------------------------------------------------------

SAMPLES = [
    '5.8/osu_latency.txt', '5.8/osu_allgather.full.txt',
    '5.8/osu_ibarrier.full.txt', '5.8/osu_barrier.txt', '5.8/osu_init.txt',
    '5.8/osu_hello.txt', '5.8/osu_mbw_mr.varywin.txt',
    '5.8/osu_fop_latency.txt', '7.2/osu_mbw_mr.Tall.txt',
    '7.2/osu_mbw_mr.c.txt', '7.2/osu_allreduce.Tall.txt',
    '7.2/osu_latency_mt.t2_2.txt', '7.2/osu_latency_mp.t2_2.txt',
    '7.2/osu_allreduce.c-full.txt', '7.2/osu_bw.Dvect.txt',
    '7.2/osu_ibarrier.txt', '7.4-openmpi5/osu_ineighbor_alltoall.full.txt',
    '7.4-openmpi5/osu_cas_latency.txt', '7.4-openmpi5/osu_mbw_mr.txt',
]


def samples():
    """The text and the records of each."""
    for name in SAMPLES:
        yield text_of(name), osu.parse(text_of(name))


@each(samples())
def test_cut_at_every_byte(text, records):
    whole_rows = {text.index('\n') + 1}
    place = 0
    lines = text.splitlines(keepends=True)
    rows = rows_of(text.split('\n'))
    for number, line in enumerate(lines):
        place += len(line)
        if number >= rows[0] and number in rows or not line.strip():
            whole_rows.add(place)
    taken = 0
    for cut in range(len(text)):
        try:
            left = osu.parse(text[:cut])
        except ParseError as error:
            assert error.line <= text[:cut].count('\n') + 1
            continue
        assert cut in whole_rows
        assert left == records[:len(left)]
        assert len(left) < len(records) or not text[cut:].strip()
        taken += 1
    assert taken < len(lines)


@each(samples())
def test_drop_a_line(text, records):
    """Only the first rows, the last and comments can go unseen."""
    lines = text.splitlines(keepends=True)
    rows = rows_of(text.split('\n'))
    for number, line in enumerate(lines):
        left = ''.join(lines[:number] + lines[number + 1:])
        edge = number in rows and (number - 1 not in rows
                                   or number + 1 not in rows)
        if edge:
            lost = [r for r in records if r.line != number + 1]
            same_or_refused(left, tuple(lost))
        elif number in rows or re.match('# *(Size|OSU|Avg|Over|[0-9])', line):
            if line.startswith(('# OSU MPI Mul', '# Overall =')):
                continue
            refused(left)
        else:
            same_or_refused(left, records)


@each(samples())
def test_double_a_line(text, records):
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        double = ''.join(lines[:number + 1] + lines[number:])
        missing = same_or_refused(double, records)
        if number in rows_of(lines) or line.startswith(('# OSU', '# Size')):
            assert missing or 'Multiple Bandwidth' in line


@each(samples())
def test_swap_two_rows(text, _):
    lines = text.splitlines(keepends=True)
    sizes = [line.split()[0] for line in lines if line[0].isdigit()]
    for one, two in itertools.combinations(rows_of(lines), 2):
        # Rows of one size in two tables cannot be told apart by order.
        if lines[one] != lines[two] and sizes.count(lines[one].split()[0]) == 1:
            swapped = lines.copy()
            swapped[one], swapped[two] = lines[two], lines[one]
            assert refused(''.join(swapped)).line > one


#: Words that are no value of a column.
NO_VALUES = ('nan', '-nan', 'inf', '-inf', 'Fail', '-1.00', '1.5', '1.500', '1e3',
             '0x10', '1,50', '٣.٢٥', '*****', '1.00.00', '', '1.00 1.00', '007.00')


@each(samples())
def test_replace_a_value(text, records):
    lines = text.split('\n')
    ends = {records[0].line: records[0], records[-1].line: records[-1]}.values()
    for record, bad in itertools.product(ends, NO_VALUES):
        line = lines[record.line - 1]
        words = list(re.finditer('[^ ,]+', line))
        values = [w for w in words if re.fullmatch(r'[0-9]+\.[0-9]+', w[0])
                  ] or [w for w in words if w[0].isdigit()]
        for word in values:
            new = line[:word.start()] + bad + line[word.end():]
            wrong = lines.copy()
            wrong[record.line - 1] = new
            # A blank row is known by the header above it.
            assert refused('\n'.join(wrong)).line == (
                record.line if new.strip() else record.line - 1)
            # The same with the width of the column kept.
            wrong[record.line - 1] = (
                line[:word.end()][:-max(len(bad), len(word[0]))]
                + bad.rjust(len(word[0])) + line[word.end():])
            assert refused('\n'.join(wrong)).line == (
                record.line if wrong[record.line - 1].strip()
                else record.line - 1)


# A rate wider than its column pushes the others on in the table of windows.
@each([n for n in SAMPLES if 'varywin' not in n])
def test_lose_or_win_a_character_in_a_row(name):
    text = text_of(name)
    records = osu.parse(text)
    lines = text.split('\n')
    sentence = records[0].metric == 'ranks'
    for number in {records[0].line - 1, records[-1].line - 1}:
        line = lines[number]
        for place in range(len(line)):
            for new in (line[:place] + line[place + 1:],
                        line[:place] + '7' + line[place:]):
                if sentence and re.sub('[0-9]+', '', new) == re.sub(
                        '[0-9]+', '', line):
                    continue    # a sentence has no columns
                wrong = '\n'.join([*lines[:number], new,
                                   *lines[number + 1:]])
                refused(wrong)


#: Words of titles and headers, and wrong ones.
FRAME = (
    ('(us)', '(ms)'), ('(us)', '(s)'), ('MB/s', 'GB/s'), ('MB/s', 'MiB/s'),
    ('Messages/s', 'Messages'), (' ms,', ' us,'), ('Latency', 'Bandwidth'),
    ('# Size', '# Rank'), ('v5.8', ''), ('v7.2', 'vX'), ('# OSU', '# IMB'),
    ('Pass', 'Fail'), ('MB/sec', 'GB/sec'), ('(%)', ''))


@each(samples())
def test_change_the_frame(text, _):
    for old, new in FRAME:
        if old in text and (old != 'Latency' or '# Size' in text):
            refused(text.replace(old, new))


@each(samples())
def test_fuse_lines(text, records):
    lines = text.split('\n')
    for number in range(len(lines) - 2):
        fused = '\n'.join([*lines[:number],
                           lines[number] + lines[number + 1],
                           *lines[number + 2:]])
        same_or_refused(fused, records)


OTHERS = ('5.8/osu_latency.txt', '5.8/osu_bw.txt', '7.2/osu_mbw_mr.txt',
          '7.2/osu_latency_mt.t2_2.txt', '5.8/osu_init.txt',
          '7.4-openmpi5/osu_ibarrier.txt')


@each(samples())
def test_two_outputs_in_one(text, records):
    one = text.splitlines(keepends=True)
    refused(''.join(line for line in one for _ in range(2)))
    for more in map(text_of, OTHERS):
        refused(text + more)
        refused(more + text)
        pairs = zip(one, more.splitlines(keepends=True), strict=False)
        # Comments of another output change no value.
        woven = ''.join(itertools.chain.from_iterable(pairs))
        with contextlib.suppress(ParseError):
            assert values(osu.parse(woven)) in (
                values(records), values(osu.parse(more)))


#: Lines that do not belong into a table.
FOREIGN = (
    'Segmentation fault', 'Abort(1) on node 0', 'mpirun noticed that x',
    '[node:1] *** Process received signal ***', 'Killed', '(null)', '0',
    'DATA VALIDATION ERROR: osu_bw exited with status 1 on message size 4.',
    '# 8                       0.50', '8', 'slurmstepd: error: *** JOB')


@each(samples())
def test_add_a_line(text, records):
    lines = text.split('\n')
    for number, line in itertools.product(
            range(records[0].line, len(lines)), FOREIGN):
        error = refused('\n'.join([*lines[:number], line, *lines[number:]]))
        assert error.line == number + 1


@each([
    ('', 1, 'is empty'), ('\n \n', 1, 'is empty'),
    ('hello\n', 1, 'has no title'),
    ('Usage: osu_bw [options]\n', 1, 'usage'),
    ('# OSU MPI Latency Test v5.8\n', 1, 'but no result'),
    ('# OSU MPI Latency Test\n', 1, 'no name or no version'),
    (table('MPI Latency Test v5.8', values='0.00'), 3, 'latency is zero'),
    (table('MPI Multiple Bandwidth / Message Rate Test v5.8',
           names='MB/s, Messages/s', values='1.00 0.00'), 3,
     'message_rate is zero'),
    (table('MPI Latency Test v5.8', sizes='1 2 8'), 5,
     'rows are missing between sizes 2 and 8'),
    (table('MPI Latency Test v5.8', sizes='1 2 2'), 5, 'size 2 follows'),
    (table('MPI Latency Test v5.8', names='Latency (us), Latency (us)',
           values='1.00 1.00'), 2, 'has a column twice'),
    (table('MPI Latency Test v5.8', names='Bandwidth (MB/s)'), 2,
     'has bandwidth, but the title requires latency'),
    (table('MPI Latency Test v5.8', names='Latency (us), Jitter(us)',
           values='1.00 1.00'), 2, "unknown column 'Jitter(us)'"),
    (table('MPI Gather Latency Test v5.8',
           names='Avg Latency(us), Min Latency(us), Max Latency(us)',
           values='1.00 1.10 1.20'), 3, 'not between minimum and maximum'),
    (table('OpenSHMEM Atomic Operation Rate Test v5.8').replace(
        '# Size', '# Operation'), 2, 'unknown column'),
    ('# OSU MPI Init Test v5.8\n'
     'nprocs: 4, min: 5 ms, max: 7 ms, avg: 8 ms\n', 2, 'mean'),
    ('# OSU MPI Init Test v5.8\n'
     'nprocs: 0, min: 5 ms, max: 7 ms, avg: 6 ms\n', 2, 'zero'),
    ('# OSU MPI Hello World Test v5.8\nThis is a test with 0 processes\n',
     2, 'zero'),
    (table('MPI Latency Test v5.8')[:-1], 5, 'cut off'),
    (table('MPI Latency Test v5.8').replace('   ', '\t'), 3, 'tabs in place of blanks'),
    (table('MPI Latency Test v5.8', values=f'{"9" * 400}.00'), 3,
     'not a number'),
    (table('MPI Latency Test v5.8', sizes='9' * 500), 3, 'not a valid size'),
    (table('MPI Latency Test v5.8', sizes='9' * 5000), 3, 'the line has 50'),
])
def test_refused(text, line, reason):
    error = refused(text)
    assert error.line == line
    assert reason in error.reason


# The command -------------------------------------------------------------

def test_the_command_reads_what_it_can(tmp_path, monkeypatch):
    latin, good = tmp_path / 'latin', GOLDEN / '5.8' / 'osu_hello.txt'
    latin.write_bytes(b'# OSU \xe9\n')
    bad = GOLDEN / '5.8' / 'osu_mbw_mr.p1.txt'
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(good.read_bytes())))
    out, err = io.StringIO(), io.StringIO()
    files = [tmp_path / 'none', tmp_path, latin, bad, good, '-']
    assert parse.convert_output_to_csv('osu', [*map(str, files)], out, err) == 2
    assert [row['file'] for row in csv.DictReader(io.StringIO(out.getvalue()))] == [
        str(good), '-']
    assert [line.split(': ')[0] for line in err.getvalue().splitlines()] == [
        str(tmp_path / 'none'), str(tmp_path), str(latin), f'{bad}:4']
