"""The cost of a session on a cluster, the question before it, and mode smoke."""
from __future__ import annotations

import os
import pty
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cli.session import commands
from config.sessions.selection import select_smoke_test_cases, select_veto_test_cases
from tests.conftest import ROOT

#: A cluster whose scheduler this machine need not have.
SITE = '''
from checks.core import environs
site_configuration = {'systems': [{
    'name': 'cluster', 'hostnames': ['.*'], 'partitions': [{
        'name': 'nodes', 'scheduler': 'slurm', 'launcher': 'srun',
        'environs': ['mpi', 'tao'], 'access': ['--exclusive'],
        'processor': {'num_cpus': 64, 'num_cpus_per_core': 1},
        'extras': {'max_nodes': 2, 'launcher_pin': ['--cpu-bind=cores'],
                   'launcher_spread': ['--cpu-bind=none']}}]}],
    'environments': [environs.mpi_environment('mpi', 'mpich 5'),
                     environs.embedded_program_environment('tao', 'taobench')]}
'''


@pytest.fixture
def cluster(suite):
    suite.write_site(suite.tmp / 'cluster', SITE)
    return suite


def run_in_terminal(suite, answer, *words):
    """Exit code and output of `plumb run` whose stdin and stdout are a terminal."""
    reader, writer = pty.openpty()
    process = subprocess.Popen(
        [ROOT / 'plumb', 'run', *words], env={**os.environ, **suite.variables},
        stdin=writer, stdout=writer, stderr=writer)
    os.close(writer)
    os.write(reader, answer)
    text = b''
    while True:
        try:
            text += os.read(reader, 65536)
        except OSError:                 # the terminal is closed
            break
    return process.wait(timeout=60), text.decode()


def test_a_person_is_asked_and_may_refuse(cluster):
    code, text = run_in_terminal(cluster, b'n\n', '--mode', 'smoke')
    assert code == 0, text
    # Two nodes for at most ten minutes (twice), one node for the third.
    assert 'Mode smoke on cluster: 3 test cases (3 checks), ' in text
    assert 'node-hours at most, by their time limits, without builds' in text
    assert 'Run it? y(es), [N]o:' in text and 'nothing was run' in text
    assert not cluster.records


def test_a_script_is_not_asked_and_its_log_has_the_cost(cluster):
    done = cluster.plumb('run', '--mode', 'smoke', '-n', 'TaoBench')
    assert 'Cost: 1 test cases (1 checks), 0.33 node-hours at most' in done.stdout
    assert 'Run it?' not in done.stdout
    assert done.returncode == 1             # without the scheduler
    done = cluster.plumb('run', '--mode', 'smoke', '-n', 'TaoBench', '--dry-run')
    assert 'Cost: 1 test cases (1 checks), 0.33 node-hours at most' in done.stdout
    assert done.returncode == 0


def test_yes_is_the_answer(cluster):
    code, text = run_in_terminal(cluster, b'', '--mode', 'smoke', '-n', 'TaoBench',
                                 '--yes')
    assert 'Run it?' not in text and 'Cost: 1 test cases' in text


@pytest.mark.parametrize('answer, runs', [
    ('y', True), ('YES', True), ('', False), ('no', False), (None, False)])
def test_answers(monkeypatch, capsys, answer, runs):
    def ask(_):
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr('builtins.input', ask)
    work = fake_work(monkeypatch, 'open(path, "w").write("7 node-hours")')
    assert commands.cost_of_session(work, {}) == (0, '7 node-hours')
    assert commands.confirm_cost('alpha', 'quick', '7 node-hours') == runs
    out = capsys.readouterr().out
    assert 'Mode quick on alpha: 7 node-hours' in out and '--mode smoke' in out


@pytest.mark.parametrize('code, exit_code', [
    ('open(path, "w").write("7"); print("why"); sys.exit(2)', 2),
    ('print("why")', 0)])
def test_a_session_without_a_cost_prints_the_output(monkeypatch, capsys, code,
                                                    exit_code):
    assert commands.cost_of_session(fake_work(monkeypatch, code), {}) == (exit_code, '')
    assert capsys.readouterr().out == 'why\n'


@pytest.mark.parametrize('words, exit_code, reason', [
    (['-n', 'Nothing'], 2, 'none matches all filters'),
    (['--no-such-option'], 2, 'unrecognized arguments')])
def test_zero_test_cases_are_the_same_error_in_a_terminal(cluster, words, exit_code,
                                                          reason):
    code, text = run_in_terminal(cluster, b'', *words)
    done = cluster.plumb('run', *words)
    assert code == done.returncode == exit_code, text
    for output in text, done.stdout + done.stderr:
        assert reason in output
        assert 'plumb: no test case ran, so nothing was measured; the lines' in output
    assert 'Run it?' not in text


def test_a_hash_selects_its_test_case_in_whatever_mode_it_is():
    """Printed commands have hashes, and would need the mode of each."""
    assert commands.mode_options('quick', ['-n', '/c0ffee00', '-n', '/c0ffee01']) == []
    assert commands.mode_options('quick', ['-n', '/c0ffee00', '-nOsuRma']) == [
        '--tag=^quick$']
    assert commands.mode_options('quick', []) == ['--tag=^quick$']
    assert '-Srepetitions=20' in commands.mode_options('full', ['-n', '/c0ffee00'])


def fake_work(monkeypatch, code):
    """A session whose ReFrame is a line of Python."""
    run = subprocess.run
    code = f'import os, sys; path = os.environ["PLUMBLINE_COST_FILE"]; {code}'
    monkeypatch.setattr(commands.subprocess, 'run', lambda _, **how: run(
        [sys.executable, '-c', code], **how))
    return commands.Work({'name': 'alpha'}, {}, [], False, [])


# ------------------------------------------------------------------ smoke

PARTITION = SimpleNamespace(fullname='alpha:cpu', environs=[
    SimpleNamespace(name='first'), SimpleNamespace(name='second')])


def case(name, nodes=1, environ=0, tags=('smoke',), family='osu',
         partition=PARTITION, variant=0, gpus=None, params=''):
    return SimpleNamespace(
        check=SimpleNamespace(display_name=name, node_count_before_setup=nodes,
                              tags={*tags}, family=family, variant_num=variant,
                              num_gpus_per_node=gpus, params=params),
        partition=partition, environ=PARTITION.environs[environ])


def selected(*cases):
    return [one.check.display_name for one in select_smoke_test_cases(cases)]


def test_smoke_prefers_two_nodes_then_the_first_environment_then_the_name():
    assert selected(case('b'), case('a', 2, 1), case('c', 2), case('d', 2)) == ['c']
    assert selected(case('b'), case('a')) == ['a']


def test_smoke_prefers_the_first_parameters_as_declared():
    assert selected(case('a %store=keydb', variant=2), case('a %store=redis'),
                    case('a %store=valkey', variant=1)) == ['a %store=redis']


def test_smoke_takes_one_of_each_family_and_partition():
    other = SimpleNamespace(fullname='alpha:gpu', environs=PARTITION.environs)
    assert selected(case('a'), case('b'), case('c', family='nccl'),
                    case('d', partition=other), case('e', tags=('full',))
                    ) == ['a', 'c', 'd']


def test_veto_takes_one_of_each_partition_on_every_node():
    """With the most GPUs, then in the first environment; all of its copies."""
    veto = {'tags': ('veto',)}
    other = SimpleNamespace(fullname='alpha:gpu', environs=PARTITION.environs)
    cases = [case('b %nid=n1', **veto), case('b %nid=n2', **veto),
             case('b %nid=n1', environ=1, **veto), case('c %nid=n1', **veto),
             case('a', params='x', environ=1, **veto), case('d'),
             case('e', partition=other, **veto),
             case('f %nid=n3', partition=other, gpus=8, environ=1, **veto)]
    assert [one.check.display_name for one in select_veto_test_cases(cases)] == [
        'b %nid=n1', 'b %nid=n2', 'f %nid=n3']
