"""The cost of a session on a cluster, and the question before it."""
from __future__ import annotations

import os
import pty
import subprocess

import pytest

from cli.session import commands
from tests.conftest import LIMIT, ROOT, of_family

TAOBENCH = [*of_family('taobench'), '-n', 'TaoBench']

#: A cluster whose scheduler this machine need not have.
SITE = '''
from checks.core import environs
from config.common import SETTINGS
site_configuration = {**SETTINGS, 'systems': [{
    'name': 'cluster', 'hostnames': ['.*'], 'partitions': [{
        'name': 'nodes', 'scheduler': 'slurm', 'launcher': 'srun',
        'environs': ['mpi', 'tao'], 'access': ['--exclusive'],
        'processor': {'num_cpus': 64, 'num_cpus_per_core': 1},
        'extras': {'max_nodes': 2, 'launcher_pin': ['--cpu-bind=cores']}}]}],
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
    return process.wait(timeout=LIMIT), text.decode()


def test_a_person_is_asked_and_may_refuse(cluster):
    code, text = run_in_terminal(cluster, b'n\n', '--mode', 'smoke', *TAOBENCH)
    assert code == 0, text
    assert 'First session of mode smoke on cluster: 1 job, at most ' in text
    assert ' node-hours by the time limits, without builds' in text
    assert 'Run it? y(es), [N]o:' in text and 'nothing was run' in text
    assert not cluster.records


def test_a_script_is_not_asked_and_its_log_has_the_cost(cluster):
    cost = 'First session of mode smoke on cluster: 1 job, at most 0.33 node-hours'
    done = cluster.plumb('run', '--mode', 'smoke', *TAOBENCH)
    assert cost in done.stdout
    assert 'Run it?' not in done.stdout
    assert done.returncode == 1             # without the scheduler


@pytest.mark.parametrize('answer, yes, runs', [
    ('YES', False, True), ('', False, False), (None, False, False), ('', True, True)])
def test_answers(monkeypatch, capsys, tmp_path, answer, yes, runs):
    def ask(_):
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr('builtins.input', ask)
    monkeypatch.setattr(commands, 'is_terminal', lambda: True)
    monkeypatch.setattr(commands.cost, 'cost_of_session', lambda *_: '7 node-hours')
    work = commands.Work(
        {'name': 'alpha', 'partitions': [{'scheduler': 'slurm'}]},
        {'PLUMBLINE_PERFLOGS': str(tmp_path)}, [], [], False, [], False)
    assert commands.is_cost_accepted(work, 'quick', yes) == runs
    out = capsys.readouterr().out
    assert 'mode quick on alpha: 7 node-hours' in out
    assert ('--mode smoke' in out) == (not yes)


def test_zero_test_cases_are_an_error_without_a_question(cluster):
    code, text = run_in_terminal(cluster, b'', *of_family('taobench'), '-t', 'nothing')
    assert code == 2, text
    assert 'plumb: nothing was measured: no test case matches all' in text
    assert 'Run it?' not in text
