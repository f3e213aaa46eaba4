"""Optcast's logs and printed output: values of the original's own runs."""
from __future__ import annotations

import argparse
import csv
import gzip
import io
import random
import re
import shutil
from pathlib import Path

import pytest

from checks.core.parsers import ParseError
from checks.optcast import logs, parser
from cli.session.parse import convert_output_to_csv
from config.records import samples
from tests.mutations import MUTATIONS
from tests.nccl.printed import output

GOLDEN = Path(__file__).parent / 'golden'
EVAL = {number: (GOLDEN / f'eval_run{number}.txt').read_text()
        for number in (1, 2, 3)}


def log(side):
    with gzip.open(GOLDEN / 'nogpu' / f'{side}.log.gz', 'rt') as file:
        return file.read()


CLIENT, SERVER = log('client'), log('server')

#: A client of NCCL under the plugin: two requests, three times each.
NCCL = ''.join(
    f'node1:77:99 [0] {10.0 * n + at + 5 * req:.6f} f:{line} NCCL TRACE '
    f'req(0x7f{req}a)/idx({req}) {text}\n'
    for n in range(3) for req in range(2) for at, line, text in (
        (1.0, 259, 'allreduce start'),
        (1.5, 281, 'allreduce requested size: 8, csize: 8, nsplit: 1'),
        (2.5 + n, 305, 'send done'), (4.5 + n, 322, 'recv done')))


@pytest.fixture
def folder(tmp_path):
    """A folder as run.py leaves it."""
    result = tmp_path / 'log'
    result.mkdir()
    (result / 'client.log').write_text(CLIENT)
    (result / 'server.log').write_text(SERVER)
    shutil.copy(GOLDEN / 'nogpu' / 'setting.yaml', result)
    return result


def by_name(records):
    return {(r.metric, r.size): r.value for r in records}


def test_an_analysis_has_the_values_that_the_original_prints(folder):
    """run.py printed these of the same logs, to all its digits."""
    analysis = parser.analyse_log_folder(folder)
    printed = by_name(parser.parse((GOLDEN / 'run_nogpu_2x2.txt').read_text()))
    own = by_name(analysis.output.records)
    assert len(printed) == 5 * 6 + 1
    assert {key: round(own[key], 2) for key in printed} == printed


@pytest.mark.parametrize('number, program, average, rows', [
    (1, 'optcast', 7.27131, (7.81, 6.73)), (2, 'nccl', 10.1569, (9.95, 10.37)),
    (3, 'optcast', 13.2063, (13.29, 13.12))])
def test_published_values(number, program, average, rows):
    records = parser.parse(EVAL[number])
    values = by_name(records)
    assert values['busbw_average', None] == average
    assert (values['busbw', 512 << 20],
            values['busbw_in_place', 512 << 20]) == rows
    assert {r.program for r in records} == {program}


def test_the_command_above_an_output_has_its_parameters():
    [output] = parser.parse_log(EVAL[3])
    assert output.params == ('chunksize=2M clients=4 data_type=f32 nsplit=2 servers=4 '
                             'type=optcast')
    assert output.num_tasks == 4
    [output] = parser.parse_log(EVAL[2])
    assert output.params == 'clients=4 data_type=f32 servers=4 type=nccl'


@pytest.mark.parametrize('before, after', [
    ('(venv) me@n1:~/optcast/test$ ', ''), ('+ NCCL_DEBUG=INFO ', ''),
    ('$ cd /tmp && ', ' 2>&1 | tee x.log')])
def test_a_command_behind_a_prompt_has_its_parameters(before, after):
    text = re.sub('(?m)^[$] (.*run.py.*)', rf'{before}\1{after}', EVAL[3], count=1)
    assert text != EVAL[3]
    assert parser.parse_log(text)[0].params == parser.parse_log(EVAL[3])[0].params


def test_published_statistics():
    one, three = (by_name(parser.parse(EVAL[n])) for n in (1, 3))
    assert one['client_e2e_len', None] == 4099
    assert one['client_e2e_max', None] == 32.97
    assert one['server_reduce_avg', None] == 0.12
    assert three['client_send_avg', None] == 1.0
    assert three['server_recv_sd', None] == 1.7
    assert len([name for name, _ in three if name[:6] in (
        'client', 'server')]) == 7 * 6


def test_requests_of_nccl():
    """Of each request the first half is dropped: one of three stays out."""
    result = logs.read_log('client', NCCL)
    stats = {one.name: one for one in result.statistics}
    assert stats['e2e'].len == 4
    assert (stats['e2e'].min, stats['e2e'].max) == (4.5, 5.5)
    assert stats['req'].avg == 0.5 and stats['recv'].avg == 2.0
    assert {span.row for span in result.spans} == {'req(0)', 'req(1)'}


@pytest.mark.parametrize('text, why', [
    (NCCL.rpartition('node1')[0], 'has no end'),
    (NCCL.replace(' send done', ' sent done', 1), 'trace is damaged'),
    (re.sub('node1.*send done\n', '', NCCL, count=1), '"send done" must'),
    (NCCL.replace('2.500000', '0.500000', 1), 'time stamp before its')])
def test_damaged_requests(text, why):
    with pytest.raises(ParseError, match=why):
        logs.read_log('client', text)


@pytest.mark.parametrize('side, damage, why', [
    ('client', lambda t: t[:len(t) // 2], 'cut|damaged|did not finish'),
    ('client', lambda t: re.sub(r'.*type: agg.*\n', '', t), '2 bandwidths of no parts'),
    ('client', lambda t: t + "[vm/err] thread '<unnamed>' (3) panicked at "
     'src/client.rs:134:90:\n', 'panicked at src/client.rs:134:90'),
    ('server', lambda t: t.replace('recv latency', 'recv lat', 1), 'damaged'),
    ('server', lambda t: "thread 'a' panicked at src/server.rs:1:1:\n" + t,
     'panicked at src/server.rs'),
])
def test_damaged_logs_are_refused(folder, side, damage, why):
    path = folder / f'{side}.log'
    path.write_text(damage(path.read_text()))
    with pytest.raises(ParseError, match=why) as caught:
        parser.analyse_log_folder(folder)
    assert caught.value.file == path.name


@pytest.mark.parametrize('settings, why', [
    ('type: [', 'not YAML'), ('type: nccl\ntype: ring\n', "2: 'type' occurs twice"),
    ('size: 2026-99-99', '1: not YAML'), ('nccl', '1: the file has no settings')])
def test_damaged_settings_are_refused(folder, settings, why):
    (folder / 'setting.yaml').write_text(settings)
    with pytest.raises(ParseError, match=why) as caught:
        parser.analyse_log_folder(folder)
    assert caught.value.file == 'setting.yaml'


@pytest.mark.parametrize('side', ['client', 'server'])
def test_lost_and_doubled_lines(side):
    """Every lost or doubled line of a span that counts is noticed; what
    begins and ends between them, and what was under way at a server's end,
    may go."""
    text = {'client': CLIENT, 'server': SERVER}[side]
    lines = text.splitlines(True)
    spans = [number for number, line in enumerate(lines[:-60]) if re.search(
        'requested|latency|reduce start|idx: .* (start|done)', line)]
    draw = random.Random(side)
    for number in draw.sample(spans, 8):
        for damaged in (lines[:number] + lines[number + 1:],
                        lines[:number + 1] + lines[number:]):
            with pytest.raises(ParseError):
                logs.read_log(side, ''.join(damaged))


@pytest.mark.parametrize('side, text', [('server', SERVER),
                                        ('client', CLIENT)])
def test_a_panic_of_a_thread_whose_peer_has_gone(side, text):
    """The server's way to end, seen after or before the line for a client's leave; of
    a client it is a failure."""
    assert 'panicked at src/server.rs' in SERVER
    assert logs.read_log('server', SERVER).spans
    text = re.sub(r'.*handle_connection: exiting.*\n', '', text) + (
        '[2026-11-23T13:16:08.032507857Z WARN  optcast_reduction_server::'
        'nccl_net] [src/socket.c:63] socketProgress: Connection closed by '
        "remote peer localhost<47604>\n\nthread '<unnamed>' (9) panicked at "
        f'src/{side}.rs:451:80:\n')
    if side == 'server':
        assert logs.read_log(side, text).spans
    else:
        with pytest.raises(ParseError, match='panicked at src/client.rs:451'):
            logs.read_log(side, text)


def test_a_client_that_panicked_where_run_py_ended_well():
    text = (GOLDEN / 'client_panic.txt').read_text()
    assert 'run.py rc=0' in text
    with pytest.raises(ParseError, match=r'panicked at src/client.rs:134:90'):
        parser.parse(text)


def test_wrong_values_give_no_values():
    text = EVAL[1].replace('   7.81      0', '   7.81      7')
    with pytest.raises(ParseError, match='7 wrong element'):
        parser.parse(text)


@pytest.mark.parametrize('old, new, why', [
    ('5.21', '6.21', 'algbw 6.21 GB/s does not match'),
    ('7.81', '7.18', 'is not 1.5'),
    ('7.27131', '7.72131', 'the average 7.72131 GB/s is not'),
    ('      0   119592', '    N/A   119592', 'not checked'),
    ('# Out of bounds values : 0 OK\n', '', 'lacks the line "Out of'),
    ('# Avg bus bandwidth    : 7.27131\n', '', 'lacks the line "Avg bus'),
    ('  send len: 4099', '  sent len: 4099', 'incomplete; it has e2e'),
    ('median: 0.78', 'median: 78.0', 'contradict each|is damaged'),
    ('#  Rank  3', '#  Rink  3', 'is not'),
    ('client stats:', 'clint stats:', 'line of statistics is damaged')])
def test_damaged_output(old, new, why):
    assert old in EVAL[1]
    with pytest.raises(ParseError, match=why):
        parser.parse(EVAL[1].replace(old, new, 1))


@pytest.mark.parametrize('prefix', [
    '    ', 'run-1  | ', '[pod/launcher-x7k2p/run] ',
    '2026-03-10T04:11:{n:02}.123456Z '])
def test_a_prefix_of_all_lines_is_removed(prefix):
    text = EVAL[1]
    marked = ''.join(f'{prefix.format(n=n % 60)}{line}\n'
                     for n, line in enumerate(text.splitlines()))
    assert parser.parse(marked) == parser.parse(text)


def test_spans_that_stay_with_the_records():
    server = logs.read_log('server', SERVER)
    kept = logs.last_spans_as_samples((logs.read_log('client', NCCL), server))
    assert len(kept) == 18 + min(logs.KEPT, len(server.spans))
    client = [one for one in kept if one.call.startswith('client:')]
    assert {one.call for one in client} == {
        'client:requested', 'client:send_done', 'client:recv_done'}
    assert {one.rank for one in client} == {0, 1}
    assert min(one.start for one in client) == 0
    text = samples.samples_as_csv(kept)
    assert len(text.splitlines()) == len(kept) + 1


#: The table of that client.
TABLE = """\
# nThread 1 nGpus 1 minBytes 4096 maxBytes 4096 warmup iters: 1 iters: 3 \
agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid 1 on node device  0 [0x00] no GPU
#  Rank  1 Group  0 Pid 1 on node device  0 [0x00] no GPU
#
#                                                       out-of-place
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
        4096          1024     float     sum      -1     2.00    2.05    2.05      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 2.048
#
"""


def read(text):
    return parser.read_table(enumerate(text.split('\n'), 1))


def with_rows(*rows):
    """The table with rows (size in B, time in us) in place of its own."""
    cells = [(size, us, size / us / 1e3) for size, us in rows]
    text = re.sub('minBytes .* warmup', f'minBytes {rows[0][0]} maxBytes '
                  f'{rows[-1][0]} warmup', TABLE)
    text = re.sub('bandwidth .*', f'bandwidth    : '
                  f'{sum(bw for *_, bw in cells) / len(cells):.6g}', text)
    return re.sub('        4096 .*\n', ''.join(
        f'{size:12}  {size // 4:12}     float     sum      -1  '
        f'{us:7.{2 - (us >= 100)}f}  {bw:6.2f}  {bw:6.2f}      0\n'
        for size, us, bw in cells), text)


def test_table_of_out_of_place_alone():
    result = read(TABLE)
    assert parser.busbw_by_size(result) == {4096: 2.05}
    # Two decimals are too few for a slow link.
    slow = parser.busbw_by_size(read(with_rows((4096, 400))))
    assert slow == {4096: 0.01024}
    assert [row.in_place for row in result.rows] == [None]
    assert with_rows((4096, 2)) == TABLE
    with pytest.raises(ParseError, match='more than one table'):
        read(TABLE + TABLE)


def test_a_table_may_have_any_sizes():
    sizes = [(65536, 500), (3 << 20, 4000), (1 << 20, 2000)]
    text = with_rows(*sizes)
    assert list(parser.busbw_by_size(read(text))) == [size for size, _ in sizes]
    rows = [line for line in text.split('\n') if 'float' in line]
    for damaged in (text.replace(f'{row}\n', new) for row in rows
                    for new in ('', f'{row}\n{row}\n', row[:40])):
        with pytest.raises(ParseError):
            read(damaged)
    with pytest.raises(ParseError, match='rows for'):
        read(with_rows(sizes[0], sizes[1], sizes[0]))


def test_tables_that_are_not_of_one_all_reduce():
    for program, style in (('all_gather_perf', '2.16'), ('broadcast_perf', '2.19')):
        with pytest.raises(ParseError, match='elements of float are|is not 1.5 times'):
            read(output(style, program))
    text = (
        GOLDEN.parents[1] / 'nccl/golden/formats/v2.19.6_stub_types.txt').read_text()
    with pytest.raises(ParseError, match='a size twice'):
        read(text)


def test_words_of_a_launcher_beside_a_table():
    ended = 'mpirun noticed that process 1 exited on signal 15 (Terminated).\n'
    assert parser.parse(ended + EVAL[2]) and read('\n' + ended) is None


def test_the_command_line_reads_folders(folder, capsys):
    import io
    out, err = io.StringIO(), io.StringIO()
    assert convert_output_to_csv('optcast', [str(folder)], out, err) == 0
    metrics = {row['metric'] for row in csv.DictReader(out.getvalue().splitlines())}
    assert 'server_reduce_median' in metrics
    (folder / 'client.log').write_text(CLIENT[:-700])
    err = io.StringIO()
    assert convert_output_to_csv('optcast', [str(folder)], out, err) == 1
    [line] = err.getvalue().splitlines()
    assert line.startswith(f'{folder}/client.log:')
    (folder / 'client.log').unlink()
    assert convert_output_to_csv('optcast', [str(folder)], out, err) == 2
    assert 'client.log is missing' in err.getvalue()


def test_options_of_a_family_are_those_of_its_parser():
    from cli.session.parse import add_family_options
    own = argparse.ArgumentParser()
    add_family_options(own, 'smartredis')
    assert own.parse_args(['--perflogs', 'x']).perflogs == Path('x')
    other = argparse.ArgumentParser()
    add_family_options(other, 'optcast')
    with pytest.raises(SystemExit):
        other.parse_args(['--perflogs', 'x'])


# ------------------------------------------------------------ mutations

#: Text -> how often it is damaged: 1 000 times in all.
DAMAGED = {**{f'eval {n}': (text, 230) for n, text in EVAL.items()},
           'nccl': (NCCL + TABLE, 200),
           'printed': ((GOLDEN / 'run_nogpu_2x2.txt').read_text(), 80),
           'client': (CLIENT, 15), 'server': (SERVER, 15)}


def unconfirmed(metric, old, new):
    """Whether nothing in a text can tell a changed digit: of a statistic, of
    a time stamp, of the last place of a bandwidth or of the average."""
    if metric.startswith(('client_', 'server_')):
        return not metric.startswith('client_') or not metric.endswith('_len')
    return abs(new - old) <= (0.0101 if metric == 'busbw_average' else 0.0201)


@pytest.mark.parametrize('name', DAMAGED)
def test_a_thousand_mutations_and_no_wrong_metric(name):
    """Refused, or the same values; a server's last rounds may be lost with
    the end of its log, for nobody waits for it."""
    text, rounds = DAMAGED[name]
    whole, draw, refused = by_name(parser.parse(text)), random.Random(name), 0
    for number in range(rounds):
        mutation = MUTATIONS[number % len(MUTATIONS)]
        broken = '\n'.join(mutation(draw, text.split('\n')))
        try:
            result = by_name(parser.parse(broken))
        except ParseError:
            refused += 1
            continue
        for key, value in result.items():
            assert key in whole, (mutation, key)
            if value != whole[key] and (name, mutation.__name__) != (
                    'server', 'cut'):
                # A statistic that run.py printed may lose one as well.
                assert mutation.__name__ == 'digit' or (
                    mutation.__name__ == 'lose_character'
                    and key[0].startswith(('client_', 'server_'))), (
                        mutation, key, value)
                assert unconfirmed(key[0], whole[key], value), (key, value)
    assert refused > rounds / 4


# ----------------------------------------------- several outputs in a text

NO_GPU = (GOLDEN / 'run_nogpu_2x2.txt').read_text().replace('run.py rc=0\n', '')
#: Without its command.
BARE = EVAL[1].partition('\n')[2]


@pytest.mark.parametrize('texts', [
    (EVAL[1], EVAL[2], EVAL[3]), (EVAL[1], EVAL[1]), (BARE, BARE, EVAL[3]),
    (NO_GPU, NO_GPU), (NO_GPU, EVAL[3], NO_GPU)])
def test_outputs_of_several_runs_in_a_text(texts, tmp_path):
    file = tmp_path / 'out.txt'
    alone = []
    for text in texts:
        file.write_text(text)
        alone.append(rows_of(file))
    file.write_text('\n$ date\nFri Mar  6 09:00:00 UTC 2026\n'.join(texts))
    assert rows_of(file) == [row | {'output': str(number)}
                             for number, rows in enumerate(alone, 1) for row in rows]


def rows_of(file):
    """Rows of `plumb parse` without the file and its time."""
    out, err = io.StringIO(), io.StringIO()
    assert convert_output_to_csv('optcast', [str(file)], out, err) == 0, err.getvalue()
    return [row | {'file': '', 'time': ''}
            for row in csv.DictReader(io.StringIO(out.getvalue()))]


@pytest.mark.parametrize('old, new, why', [
    ('5.21', '6.21', 'algbw 6.21 GB/s does not match'),
    ('  send len: 4099', '  sent len: 4099', 'incomplete; it has e2e'),
    ('# nThread', '#nThread', 'lacks the line "# nThread'),
])
def test_a_damaged_second_output_is_refused_with_its_line(old, new, why):
    with pytest.raises(ParseError, match=why) as caught:
        parser.parse_log(BARE + BARE.replace(old, new))
    assert caught.value.line > BARE.count('\n')
