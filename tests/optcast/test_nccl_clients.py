"""The original's servers with NCCL, on the services: stand-ins of the server
and of all_reduce_perf, which connect as they do and move nothing."""
from __future__ import annotations

import os
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from checks.core.parsers import ParseError
from checks.optcast import nccl_options, programs, settings, shim
from checks.optcast.original import NcclClients
from checks.optcast.scenarios import ON_NCCL, SCALES
from checks.services.script import Launching
from config.records import metrics
from tests.conftest import LIMIT, of_family, python_script, suite_in
from tests.optcast.test_original import STANDIN as SERVER
from tests.serving.job import Job

#: A rank of all_reduce_perf. With the servers it needs the variables of the
#: original's run script; the first one prints the table, and NCCL's log.
ALL_REDUCE = """
import os, socket, sys, time
words = dict(zip(sys.argv[1:], sys.argv[2:]))
rank, fault = int(os.environ['OMPI_COMM_WORLD_RANK']), os.environ.get('STANDIN')
assert os.environ['NCCL_P2P_DISABLE'] == os.environ['NCCL_SHM_DISABLE'] == '1'
assert words['-d'] == 'float' and words['-c'] == '2' and words['-m'] == '3', words
served = os.environ.get('NCCL_COLLNET_ENABLE') == '1'
if served:
    assert os.environ['NCCL_BUFFSIZE'] == '67108864'
    assert os.environ['NCCL_COLLNET_CHUNKSIZE'] == '65536'
    assert os.environ['OPTCAST_SPLIT'] == '2'
    assert os.environ['LD_LIBRARY_PATH'].split(':')[0].endswith('/bin')
    where = os.environ['OPTCAST_REDUCTION_SERVERS'].split(',')
    held = [socket.create_connection((h, int(p))) for h, p in
            (one.split(':') for one in where)]
    data = [socket.create_connection((one.getpeername()[0],
                                      int(one.recv(5)))) for one in held]
    if rank == 0 and fault != 'trace':
        with open(os.environ['NCCL_DEBUG_FILE'], 'w') as log:
            for n in range(8):
                for step in ('allreduce start', 'allreduce requested size: 131072, '
                             'csize: 65536, nsplit: 2', 'send done', 'recv done'):
                    time.sleep(0.0005)
                    print(f'n1:1:2 [0] {time.monotonic() * 1e3:.6f} x:1 NCCL TRACE '
                          f'req(0x{n % 2 + 1})/idx(0) {step}', file=log)
    else:
        assert fault == 'trace' or 'NCCL_DEBUG_FILE' not in os.environ
    for one in data:
        assert one.recv(3) == b'sum'
if rank == 0:
    size, last = int(words['-b']), int(words['-e'])
    step = (f'{words["-f"]}(factor)' if '-f' in words else
            f'{words.get("-i", 1048576)}(bytes)')
    print(f'# nThread 1 nGpus 1 minBytes {size} maxBytes {last} step: {step} '
          'warmup iters: 1 iters: 2 agg iters: 1 validation: 2 graph: 0')
    print('# Using devices')
    for n in range(2):
        print(f'#  Rank {n:2} Group  0 Pid {n} on n1 device {n:2} [0x84] H100')
    print('#' + 60 * ' ' + 'out-of-place                       in-place')
    print('#       size         count      type   redop    root'
          + 2 * '     time   algbw   busbw #wrong')
    print('#        (B)    (elements)                          '
          + 2 * '     (us)  (GB/s)  (GB/s)       ')
    while size <= last:
        bw, usec = 2.0 + served, size / (2.0 + served) / 1e3
        time_ = f'{usec:.{0 if usec >= 10000 else 1 if usec >= 100 else 2}f}'
        half = f'  {time_:>7}  {bw:6.2f}  {bw:6.2f}  {int(fault == "wrong"):5}'
        print(f'{size:12}  {size // 4:12}     float     sum      -1{half}{half}')
        size = size * int(words['-f']) if '-f' in words else size + int(words['-i'])
    print('# Out of bounds values : 0 OK')
    print(f'# Avg bus bandwidth    : {bw:g}')
if served and fault == 'rank':
    sys.exit('NCCL failure: unhandled system error')
"""

#: Starts the ranks here, as a launcher does: LAUNCHER RANKS PROGRAM...
LAUNCHER = '''#!/bin/bash
ranks=$1 rc=0
shift
for ((n = 0; n < ranks; n++)); do
    OMPI_COMM_WORLD_RANK=$n OMPI_COMM_WORLD_LOCAL_RANK=$n "$@" &
    pids[n]=$!
done
for one in "${pids[@]}"; do wait "$one" || rc=$?; done
exit "$rc"
'''


def job_with_ranks(folder, plan, **env):
    """The job of a plan, whose launcher is LAUNCHER."""
    launcher = folder.parent / 'launcher'
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    return Job(folder, plan, Launching([], [str(launcher), '{ranks}'], True), **env)


def setup(size='1M+4M+16M', **more):
    return settings.parse_settings(
        {'size': size, 'chunksize': '128K', 'num_threads': 1, 'num_recvs': 1,
         'num_sends': 1, 'nsplit': 2, 'nccl_test_options': '-n 2 -w 1 --check 2 -m 3',
         **more},
        2, 2, bf16=False, client_options=nccl_options.NCCL)


@pytest.fixture
def started(tmp_path):
    """started(fault): an evaluation and its job."""
    jobs = []

    def start(fault=''):
        for folder, name, text in (
                ('bin', programs.SERVER, python_script(SERVER)),
                ('bin', programs.ALL_REDUCE, python_script(ALL_REDUCE)),
                ('bin', programs.LIBRARY, '')):
            path = tmp_path / 'prefix' / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        evaluation = NcclClients(
            setup(), str(tmp_path / 'prefix'), timeout=20,
            all_reduce=str(tmp_path / 'prefix' / 'bin' / programs.ALL_REDUCE))
        jobs.append(job_with_ranks(tmp_path / 'job', evaluation.service_plan(),
                                   STANDIN=fault))
        return evaluation, jobs[-1]
    yield start
    for job in jobs:
        job.kill()


def analysis(evaluation, job):
    services, _ = job.services()
    return evaluation.analyse_logs(
        evaluation.collect_run_logs(job.folder, 'run.1', services))


def test_nccl_alone_and_with_servers(started):
    evaluation, job = started()
    result = analysis(evaluation, job)
    values = {metrics.metric_key(record.metric, record.size): record.value
              for record in result.records} | evaluation.compute_derived_values(result)
    assert set(evaluation.expected_metrics()) <= set(values)
    assert values['busbw@16777216B'] == 3 and values['ring_busbw@16777216B'] == 2
    assert values['ring_ratio@1048576B'] == 1.5
    assert values['client_e2e_len'] == 4
    assert evaluation.summary_sentences(result, values)
    assert job.leftovers() == []


@pytest.mark.parametrize('fault, why', [
    ('wrong', 'the data arrived wrong'), ('trace', 'run.1.optcast.0.trace')])
def test_results_that_are_wrong_or_lack_the_plugins_log(started, fault, why):
    evaluation, job = started(fault)
    with pytest.raises((ParseError, OSError), match=why):
        analysis(evaluation, job)


@pytest.mark.parametrize('fault, why', [
    ('rank', 'NCCL failure: unhandled system error'),
    ('server', 'optcast-reduction-server')])
def test_a_rank_or_a_server_that_fails(started, fault, why):
    _, job = started(fault)
    assert job.process.wait(LIMIT) != 0
    assert any(why in line for line in job.messages())


@pytest.mark.skipif('OPTCAST_PREFIX' not in os.environ,
                    reason='OPTCAST_PREFIX is not set to the prefix of an Optcast')
@pytest.mark.parametrize('nsplit', [1, 2])
def test_the_real_servers_and_plugin(tmp_path, nsplit):
    """Without NCCL, whose calls of the plugin plugin_rank.py makes."""
    program = tmp_path / programs.ALL_REDUCE
    program.write_text(
        '#!/bin/sh\n[ -z "$NCCL_COLLNET_ENABLE" ] || '
        f'exec {sys.executable} {Path(__file__).with_name("plugin_rank.py")} '
        f'{tmp_path} 32768\n')
    program.chmod(0o755)
    plan = NcclClients(setup('1M', nsplit=nsplit), os.environ['OPTCAST_PREFIX'],
                       timeout=20, all_reduce=str(program)).service_plan()
    job = job_with_ranks(tmp_path / 'job', plan)
    try:
        job.services()
        printed = (job.folder / 'run.1.optcast.0.out').read_text()
        assert sorted(printed.splitlines()) == [
            f'rank {rank}: 32768 sums are right' for rank in range(2)]
    finally:
        job.kill()


def test_sizes_that_nccl_tests_cannot_measure(tmp_path):
    for size in ('1M+4M+8M', '1M+2M+3M+6M'):
        with pytest.raises(ValueError, match='by the same whole number.*'
                           r'; write sizes such as 1M\+4M\+16M'):
            NcclClients(setup(size), str(tmp_path))
    NcclClients(setup('1M+4M+16M'), str(tmp_path))      # what the message advises


@pytest.mark.parametrize('sizes, words', [
    ((8,), '-b 8 -e 8'), ((2, 3), '-b 2 -e 3 -i 1'), ((2, 4), '-b 2 -e 4 -f 2'),
    ((2, 6, 18), '-b 2 -e 18 -f 3'), ((2, 4, 6), '-b 2 -e 6 -i 2')])
def test_sizes_of_a_sweep(sizes, words):
    assert ' '.join(nccl_options.words_of_sizes(sizes)) == words
    options = nccl_options.parse_nccl_test_options(words, nccl_options.NCCL)
    assert tuple(nccl_options.sizes_of_sweep(options, 1, int)) == sizes


def test_each_option_of_nccl_tests_is_passed_on_or_refused():
    for letter, name in nccl_options.NAMES.items():
        value = 'sum' if letter == 'o' else '2'
        text = f'-{letter}' if letter == 'h' else f'--{name}={value}'
        if letter in nccl_options.REFUSED:
            with pytest.raises(ValueError, match=f'remove -{letter} '):
                nccl_options.parse_nccl_test_options(text, nccl_options.NCCL)
            continue
        of = settings.parse_settings(
            {'size': '2', 'data_type': 'f16', 'nccl_test_options': text}, 2, 2,
            client_options=nccl_options.NCCL)
        command = NcclClients(of, '/', all_reduce='/p').service_plan(
            ).steps[0].programs[0].command
        if letter in 'oif':
            continue                    # the default; sizes of more than one
        assert (f'-{letter}', value) in set(pairwise(command)), (letter, command)


def test_options_that_the_servers_own_client_lacks(tmp_path):
    def parse(text):
        return settings.parse_settings({'nccl_test_options': text}, 2, 1,
                                       client_options=nccl_options.OWN)

    assert parse('-n 5').options.iterations == 5
    for letter in 'bewc':
        with pytest.raises(ValueError, match=f'remove -{letter} .* own client lacks'):
            parse(f'-n 1 -{letter} 1')


#: A site with twelve nodes of four GPUs each.
SITE = """
from config.common import SETTINGS
site_configuration = {**SETTINGS, 'systems': [{
    'name': 'gpus', 'hostnames': ['.*'], 'partitions': [{
        'name': 'gpu', 'scheduler': 'local', 'launcher': 'mpirun',
        'environs': ['optcast'], 'features': ['gpu_nvidia'],
        'processor': {'num_cpus': 64, 'num_cpus_per_core': 1, 'num_sockets': 1,
                      'num_cpus_per_socket': 64},
        'devices': [{'type': 'gpu', 'arch': 'sm_90', 'num_devices': 4}],
        'extras': {'max_nodes': 12, 'launcher_pin': []}}]}],
    'environments': [{
        'name': 'optcast', 'cc': 'cc',
        'features': ['mpi', 'optcast_server', 'optcast_nccl'],
        'extras': {'mpi_library': 'openmpi 5.0.5', 'programs': {'optcast': {
            'source': 'system', 'prefix': PREFIX}}}}]}
"""


@pytest.fixture
def dry_run(tmp_path):
    """dry_run(check, settings): commands of the job script by their first word, and
    what ReFrame prints."""
    suite = suite_in(tmp_path)
    for name in (programs.SERVER, programs.ALL_REDUCE, programs.LIBRARY):
        (tmp_path / 'bin').mkdir(exist_ok=True)
        (tmp_path / 'bin' / name).touch()
    suite.write_site(tmp_path / 'site', SITE.replace('PREFIX', repr(str(tmp_path))))

    def run(check, given, *options):
        for old in tmp_path.rglob('rfm_job.sh'):
            old.unlink()
        done = suite.reframe(
            '--dry-run', '-Sbringup=1', *of_family('optcast'), '-n', check, '-E',
            "scenario.type == 'optcast' and scenario.data_type == 'f32' and "
            'scenario.clients == 4 and scenario.servers == 4 and '
            "scenario.scale != 'small'", f'-S{check}.settings={given}', *options)
        commands = {'server': [], 'client': []}
        for path in tmp_path.rglob(f'{check}_*/rfm_job.sh'):
            for words in map(str.split, path.read_text().splitlines()):
                if words[:1] in (['server'], ['client']):
                    commands[words[0]].append(words)
        return commands, done.stdout
    return run


def host_of(words):
    """The option --host of a command."""
    return words[words.index('--host') + 1]


def test_servers_that_share_nodes(dry_run):
    commands, text = dry_run('OptcastNccl', 'nservers:6',
                             '-SOptcastNccl.servers_each=4')
    assert [*Counter(map(host_of, commands['server'])).values()] == [3, 3], text


def test_the_check_passes_on_what_the_settings_have(dry_run, tmp_path):
    commands, text = dry_run(
        'OptcastNccl', 'nrank:6,nservers:3,nsplit:3,chunksize:384K,'
        'nccl_test_options:-n 4 -w 2 -m 3 -G 2 -z 1')
    assert commands['client'], text
    for words in commands['client']:
        assert host_of(words) == '"${nodes[3]}:2,${nodes[4]}:2,${nodes[5]}:2"'
    assert list(map(host_of, commands['server'])) == [
        f'"${{nodes[{node}]}}:1"' for node in range(3)]
    alone, served = commands['client']
    for words in (alone, served):
        assert str(tmp_path / 'bin' / programs.ALL_REDUCE) in words
        assert words[-10:] == ['-n', '4', '-w', '2', '-m', '3', '-z', '1', '-G', '2']
    assert 'OPTCAST_SPLIT=3' in served and 'OPTCAST_SPLIT=3' not in alone
    assert ('--nrank', '6') in set(pairwise(commands['server'][0]))


def test_more_nodes_than_the_site_has_are_no_test_case(dry_run):
    # 8 nodes of clients, and 4 of servers.
    assert dry_run('OptcastNccl', 'nrank:16')[0]['server']
    assert not dry_run('OptcastNccl', 'nrank:18')[0]['server']


@pytest.mark.parametrize('check, given, words', [
    ('OptcastNccl', 'nrank:x', "nrank: 'x' is not a whole number"),
    ('OptcastNccl', 'nccl_test_options:-g 2', 'remove -g (ngpus): the servers expect'),
    ('OptcastOriginal', 'nsplit:2', 'remove nsplit'),
    ('OptcastOriginal', 'nccl_test_options:-w 2', 'remove -w (warmup_iters)')])
def test_the_check_refuses(dry_run, check, given, words):
    commands, text = dry_run(check, given)
    assert not commands['server'] and words in text, text


def test_a_launcher_that_passes_no_rank(monkeypatch, tmp_path):
    (tmp_path / 'service').write_text('')
    for name in shim.RANK:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit, match='does not pass the number of the rank'):
        shim.run_nccl('/lib', str(tmp_path / 'service'), 'log', 'program')


@pytest.mark.parametrize('scenario', ON_NCCL, ids=str)
def test_every_case_has_a_plan(scenario, tmp_path):
    (tmp_path / programs.LIBRARY).touch()
    of = settings.parse_settings(
        {**SCALES[scenario.scale], 'data_type': scenario.data_type},
        scenario.clients, scenario.servers, bf16=False,
        x86_original=os.uname().machine == 'x86_64')
    plan = NcclClients(of, str(tmp_path), scenario.client_nodes,
                       scenario.server_node_count, 8).service_plan()
    assert plan.node_count == scenario.node_count
    ring, optcast = (step.programs[0].command for step in plan.steps)
    assert ('half' if scenario.data_type == 'f16' else 'float') in ring
    assert 'NCCL_COLLNET_ENABLE=1' in optcast and not any(
        'COLLNET' in word for word in ring)
