"""Parsers of the stores' load generators: real output and broken copies."""
from __future__ import annotations

import json
import re

import pytest

from checks.core.parsers import ParseError
from checks.keyvalue import parser as keyvalue
from config import families
from tests.conftest import ROOT, each

GOLDEN = ROOT / 'tests' / 'keyvalue' / 'golden'
METRICS = families.all_metrics()
TEXTS = {path.name: path.read_bytes().decode()
         for path in sorted(GOLDEN.iterdir())}
BAD = re.compile('refused|noauth|wrongtype')
GOOD = [name for name in TEXTS if not BAD.search(name)]
MEMTIER = [name for name in GOOD if name.startswith('memtier')]


def values(text):
    """Without the lines, which a dropped line moves; run, size, operation and metric
    as keys."""
    return {(run, r.size, operation_of(r), r.metric): (r.value, r.unit)
            for run, output in enumerate(keyvalue.parse_log(text))
            for r in output.records}


def operation_of(record):
    return re.match('operation=([a-z0-9_]+)', record.params)[1]


def refused(text, reason):
    with pytest.raises(ParseError, match=reason) as caught:
        keyvalue.parse(text)
    lines = text.split('\n')
    assert caught.value.text == lines[caught.value.line - 1].rstrip('\r')


# Real output -------------------------------------------------------------

@each(GOOD)
def test_real_output(name):
    records = keyvalue.parse(TEXTS[name])
    assert len(records) == len(values(TEXTS[name])), 'a value stands twice'
    lines = TEXTS[name].split('\n')
    for record in records:
        assert METRICS[record.metric]['unit'] == record.unit
        line = lines[record.line - 1]
        if name.startswith('memtier') and not name.endswith('.json'):
            command = line.split()[0].lower().removesuffix('s')
            assert operation_of(record) == command.replace('total', 'all')
            if record.metric == 'latency_p99':
                assert f'{record.value / 1000:.5f}' in line


@each(name for name in GOOD if not name.endswith('.json'))
def test_what_a_terminal_or_a_page_adds(name):
    """Comments, fences, a prompt with the command, and blanks that overwrote the
    progress."""
    text = TEXTS[name]
    around = f'# On node n1\n```\nuser@n1:~$ {name.split("-")[0]}_benchmark -t get\n'
    if not name.startswith('memtier'):
        text = re.sub(r'(======|msec)(\r?\n)', r'\1          \2', text) + '```\n'
    around += text
    expected = values(TEXTS[name])
    if name.startswith('memtier'):      # its command has the default size
        expected = {(run, size or 32, *key): value
                    for (run, size, *key), value in expected.items()}
    assert values(around) == expected


@pytest.mark.parametrize('name, expected', [
    ('redis-benchmark-7.0.15.text.txt', {
        'operations set': 55555.55, 'latency_p99 set': 455,
        'latency_max get': None}),
    ('valkey-benchmark-8.1.1.precision.txt', {
        'operations get': 55710.31, 'latency get': 236, 'latency_min get': 72,
        'latency_p50 get': 215, 'latency_p95 get': 367, 'latency_p99 get': 535,
        'latency_max get': 2535}),
    ('redis-benchmark-6.2.14.quiet.txt', {
        'operations set': 46838.41, 'latency_p50 set': 231,
        'operations get': 48192.77, 'latency_p50 get': 223}),
    ('redis-benchmark-7.0.15.csv', {'operations lpush': 30769.23}),
    ('memtier-2.3.0.get.txt', {
        'operations get': 23415.20, 'hit_ratio get': 1, 'miss_operations get': 0,
        'latency_p99 get': None}),
    ('memtier-2.3.0.command.json', {'operations all': 34887.27,
                                    'latency_p99 all': None}),
])
def test_values(name, expected):
    result = {f'{metric} {operation}': value
              for (_, _, operation, metric), (value, _) in values(TEXTS[name]).items()}
    for metric, value in expected.items():
        assert metric in result and value in (None, result[metric])


@pytest.mark.parametrize('name', [n for n in MEMTIER if n.endswith('json')])
def test_memtier_says_the_same_in_text_and_json(name):
    spoken = values(TEXTS[name.replace('.json', '.txt')])
    written = values(TEXTS[name])
    # Only the JSON has the size.
    written = {(run, None, *key): value for (run, _, *key), value in written.items()}
    # What the JSON has wrong is left out.
    assert all(re.fullmatch(r'latency(_p\d+|)', metric)
               for *_, metric in set(spoken) - set(written))
    for key, (value, unit) in written.items():
        text, same = spoken[key]
        assert unit == same
        # The JSON cuts the mean to whole microseconds.
        assert value == pytest.approx(text, rel=0.03 if key[-1] == 'latency' else 1e-9)


def test_memtier_counts_kilobytes_of_1024():
    text = TEXTS['memtier-2.3.0.get.txt']
    shown = float(re.search(r'^Totals.* ([\d.]+) *$', text, re.M)[1])
    (value, unit), = [item for key, item in values(text).items()
                      if key[3] == 'bandwidth']
    assert (value, unit) == (round(shown * 1024 / 1e6, 6), 'MB/s')


def test_each_run_is_an_output_and_neither_copies_nor_their_mean_are():
    assert {(run, operation) for run, _, operation, _ in values(
        TEXTS['memtier-2.3.0.runs.txt'])} == {
            (run, operation) for run in range(3) for operation in ('set', 'get', 'all')}
    twice = TEXTS['memtier-2.3.0.get.txt'] * 2
    assert len(keyvalue.parse_log(twice)) == 2
    [mean] = keyvalue.parse_log(TEXTS['memtier-2.3.0.best.txt'])
    assert mean.records


def test_totals_of_own_commands_have_no_bandwidth():
    result = {key[2:] for key in values(TEXTS['memtier-2.3.0.command.txt'])}
    assert ('lpush', 'bandwidth') in result and ('all', 'bandwidth') not in result


def test_a_rate_that_was_asked_for():
    """Valkey 9 puts a section of its own into the report."""
    text = TEXTS['valkey-benchmark-8.1.1.precision.txt']
    head = ''.join(f' {name:>9}' for name in ('avg', 'min', 'p50', 'p95',
                                              'p99', 'max'))
    more = text.replace('multi-thread: no\n', f'''multi-thread: no

RPS Summary:
  target RPS: 1000.00
  RPS distribution (reqs/sec):
   {head}
   {' 99999.000' * 6}
''', 1)
    assert more != text and values(more) == values(text)


@pytest.mark.parametrize('name, reason', [
    ('redis-benchmark-6.2.14.refused.txt', 'benchmark failed: Could not con'),
    ('redis-benchmark-7.0.15.refused.txt', 'benchmark failed: Could not con'),
    ('valkey-benchmark-8.1.1.refused.txt', 'benchmark failed: Could not con'),
    ('redis-benchmark-7.0.15.noauth.txt', 'benchmark failed: Node'),
    ('memtier-2.3.0.refused.txt', 'Connection refused'),
    ('memtier-2.3.0.noauth.txt', '-NOAUTH'),
    ('memtier-2.3.0.wrongtype.txt', '-WRONGTYPE'),
])
def test_a_run_that_failed(name, reason):
    refused(TEXTS[name], reason)


# Broken copies -----------------------------------------------------------

def harmless(name, text, want):
    """A broken copy is refused, or no value of it is wrong.

    Without a line of its own a test, row or run may be missing.
    """
    def bare(result):
        return {(*key[2:], value) for key, value in result.items()}

    try:
        left = values(text)
    except ParseError:
        return True
    assert bare(left) <= bare(want), name
    return False


@each(GOOD)
def test_cut_anywhere(name):
    text, want = TEXTS[name], values(TEXTS[name])
    step = max(1, len(text) // 100)
    for end in range(0, len(text), step):
        harmless(name, text[:end], want)
    refused(text.rstrip()[:-3], '.')
    refused('', 'no output|empty')


@each(GOOD)
def test_without_one_line(name):
    lines, want = TEXTS[name].split('\n'), values(TEXTS[name])
    for number in range(0, len(lines), 1 + len(lines) // 50):
        harmless(name, '\n'.join(lines[:number] + lines[number + 1:]), want)


@each(GOOD)
def test_any_number_damaged(name):
    """A digit lost or a letter in it, in every line that gives figures."""
    text, want = TEXTS[name], values(TEXTS[name])
    # Nothing else in a row of --csv or -q tells of its first digit.
    terse = 'csv' in name or 'quiet' in name
    lines = text.split('\n')
    for number in sorted({r.line - 1 for r in keyvalue.parse(text)}):
        line = lines[number]
        for match in re.finditer(r'\d+\.\d+', line):
            for broken in ('x', 'nan', '-1', match[0][:-1],
                           match[0].replace('.', ''), '0' * len(match[0]),
                           *([] if terse else [match[0][1:]])):
                changed = (line[:match.start()] + broken
                           + line[match.end():])
                harmless(name, '\n'.join(
                    [*lines[:number], changed, *lines[number + 1:]]), want)


@each(GOOD)
def test_twice_in_one(name):
    text, want = TEXTS[name], values(TEXTS[name])
    if not name.startswith('memtier'):
        refused(text + text, 'twice|unexpected|[Ee]xtra data|not possible|'
                             'columns|quotation')
    else:
        harmless(name, text, want)


@each([
    ('redis-benchmark-7.0.15.text.txt', r'\(msec\)', '(usec)',
     'unexpected line'),
    ('redis-benchmark-7.0.15.text.txt', 'milliseconds', 'microseconds',
     'unexpected line'),
    ('redis-benchmark-7.0.15.text.txt', 'summary: 55555.55',
     'summary: 45555.55', 'requests divided by sec'),
    ('redis-benchmark-7.0.15.text.txt', '0.455     1.847',
     '0.855     1.847', 'p99 differs'),
    ('redis-benchmark-7.0.15.text.txt', '0.455     1.847',
     '0.455     2.847', 'maximum latencies'),
    ('redis-benchmark-7.0.15.text.txt', r'count 20000\)\n\nCum',
     'count 19999)\n\nCum', 'ascending order|differ'),
    ('redis-benchmark-7.0.15.text.txt', 'Summary:',
     'Error from server: -OOM', 'unexpected line'),
    ('redis-benchmark-7.0.15.text.txt', r'^[^\r]*\r', 'Error: x\r',
     'unexpected words'),
    ('redis-benchmark-7.0.15.quiet.txt', 'msec', 'usec', 'unexpected|expect'),
    ('redis-benchmark-7.0.15.csv.txt', 'p50_latency_ms', 'p50_latency_us',
     'the header is not'),
    ('redis-benchmark-7.0.15.csv.txt', r'"(SET.*)",', r'"\1,',
     'columns|quotation|not possible'),
    ('memtier-2.3.0.get.txt', r'KB/sec *\n', 'MB/sec\n', 'unknown column'),
    ('memtier-2.3.0.get.txt', r'Gets( +)\d', r'Gets\g<1>9',
     'do not add up'),
    ('memtier-2.3.0.get.txt', r'(?m)^Waits.*\n', '', 'rows are missing'),
    ('memtier-2.3.0.get.txt', r'(?m)^Totals.*\n', '', 'line up with its header'),
    ('memtier-2.3.0.histogram.txt', r'WAIT +0.000 +100.000\n', '',
     'is incomplete'),
    ('memtier-2.3.0.mixed.json', '"Interrupted": "false"',
     '"Interrupted": "true"', 'interrupted'),
    ('memtier-2.3.0.mixed.json', 'MILLISECONDS', 'SECONDS', 'time unit'),
    ('memtier-2.3.0.mixed.json', r'("Totals":\{\s+"Count": )2',
     r'\g<1>3', 'counts do not add up'),
    ('memtier-2.3.0.mixed.json', r'("Gets":\{\s+"Count": \d+\s+'
     r',"Ops/sec": )\d', r'\g<1>9', 'Ops/sec is not|add up'),
    ('memtier-2.3.0.mixed.json', r'("Totals":\{[^{]*"Connection Errors": )0',
     r'\g<1>3', 'connection errors'),
    ('memtier-2.3.0.mixed.json', r'"p50.00": 0', '"p50.00": NaN',
     'NaN is no|JSON'),
    ('memtier-2.3.0.mixed.json', '"Ops/sec"', '"Ops per second"',
     'add up|missing'),
    ('memtier-2.3.0.mixed.json', '"configuration"', '"settings"',
     'no configuration'),
    ('redis-benchmark-7.0.15.text.txt', '  keep alive: 1', '# keep alive: 1',
     'unexpected line'),
])
def test_what_cannot_be_trusted(name, old, new, reason):
    broken = re.sub(old, new, TEXTS[name], count=1)
    assert broken != TEXTS[name]
    refused(broken, reason)


def test_whose_output_it_is():
    with pytest.raises(ParseError, match='no configuration'):
        keyvalue.parse(json.dumps({'program': 'other'}))
