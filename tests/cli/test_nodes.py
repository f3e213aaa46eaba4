"""What is seen on the nodes: others' CPU time, and what is left behind."""
from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import LIMIT, command_lines, two_cpus, until
from reframe.core.exceptions import SanityError

from checks.core import guards
from checks.machine import nodes
from tests.checks import test_faults
from tests.checks.test_faults import another_site
from tests.keyvalue.test_keyvalue import OF_IT, SHORT
from tests.serving.job import SRC, build_programs

faulty = test_faults.faulty


def run_rank(*command, program='rank.sh', before=(), **more):
    """A program behind rank.sh, or another script of the suite."""
    words = [SRC / program, build_programs(), *['', 'mpirun'][:2 * (
        program == 'rank.sh')]]
    return subprocess.run([*before, *words, *command], text=True, capture_output=True,
                          timeout=LIMIT, **more)


def is_alive(name):
    """Whether a process with this on its command line lives."""
    return any(re.search(name, line.partition(' ')[2])
               for line in command_lines())


@contextlib.contextmanager
def busy(tmp_path, name='busyneighbour', count=4):
    """Processes of this name that are busy while tmp_path/go exists."""
    program = tmp_path / name
    if not program.exists():
        shutil.copy(shutil.which('bash'), program)
    loop = ('while :; do if [ -e "$1" ]; then for ((i = 0; i < 20000; i++)); '
            'do :; done; else sleep 0.02; fi; done')
    # The kernel shares CPUs between sessions: each has its own.
    started = [subprocess.Popen([program, '-c', loop, name, tmp_path / 'go'],
                                start_new_session=True)
               for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


# The script in front of a rank --------------------------------------------

def test_it_ends_as_the_program_does():
    assert run_rank('true').returncode == 0
    assert run_rank('sh', '-c', 'exit 3').returncode == 3
    assert run_rank('sh', '-c', 'kill -SEGV $$').returncode == 139
    done = run_rank('no-such-program')
    assert done.returncode == 127
    assert 'no-such-program: No such file' in done.stderr
    assert run_rank('cat', input='through').stdout == 'through'


def started(*command):
    """A program behind rank.sh that prints `ready`."""
    one = subprocess.Popen(
        [SRC / 'rank.sh', build_programs(), '', 'mpirun', *command],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert one.stdout.readline() == 'ready\n'
    return one


def test_signals_reach_the_program():
    one = started('bash', '-c', 'trap "echo told; exit 7" TERM; echo ready; '
                  'while :; do sleep 0.05; done')
    one.send_signal(signal.SIGTERM)
    assert one.communicate(timeout=LIMIT)[0] == 'told\n'
    assert one.returncode == 7


def test_who_kills_it_kills_the_program():
    # A name of its own: other tests run at the same time.
    seconds = f'987.1{os.getpid()}'
    one = started('sh', '-c', f'echo ready; exec sleep {seconds}')
    until(lambda: is_alive(f'^sleep {seconds}'), one)
    one.kill()
    one.communicate(timeout=LIMIT)
    until(lambda: not is_alive(f'^sleep {seconds}'))


def test_the_program_ends_with_the_daemon_of_its_launcher():
    """slurmstepd starts it in a thread that ends before."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        pytest.skip('the kernel is older than 5.3')
    seconds = f'987.6{os.getpid()}'
    daemon = subprocess.Popen([
        sys.executable, '-c', 'import subprocess, sys, threading\n'
        'one = threading.Thread(target=subprocess.Popen, args=[sys.argv[1:]])\n'
        'one.start()\none.join()\nsys.stdin.read()', build_programs() / 'observe',
        '--forward', 'sleep', seconds], stdin=subprocess.PIPE)
    until(lambda: is_alive(f'^sleep {seconds}'), daemon)
    daemon.kill()
    daemon.communicate()
    until(lambda: not is_alive(f'^sleep {seconds}'))


def test_what_is_left_is_ended_and_named():
    # A name of its own: the others run at the same time.
    sleep = f'sleep 987.2{os.getpid()}'
    done = run_rank('sh', '-c', f'trap "" TERM; setsid {sleep} &')
    assert done.returncode == 0
    assert not is_alive(sleep)
    with pytest.raises(SanityError, match=r'leftover: run.1.err: .*sleep \('):
        nodes.check_leftover_processes(Path('none'), [run_of(done.stderr)])


def test_a_helper_that_ends_soon_is_no_fault():
    done = run_rank('sh', '-c', 'setsid sleep 0.2 &')
    assert done.returncode == 0
    nodes.check_leftover_processes(Path('none'), [run_of(done.stderr)])


def test_told_to_end_it_ends_what_is_left():
    sleep = f'sleep 987.3{os.getpid()}'
    one = started('sh', '-c', f'setsid {sleep} & echo ready; exec {sleep}')
    one.terminate()
    one.communicate(timeout=LIMIT)
    assert not is_alive(sleep)


def test_what_a_launcher_left_that_fails_is_ended(tmp_path):
    sleep = f'sleep 987.4{os.getpid()}'
    done = subprocess.run([SRC / 'measure.sh', '--', 'sh', '-c',
                           f'setsid {sleep} >/dev/null 2>&1 & exit 3'],
                          cwd=tmp_path, timeout=LIMIT)
    assert done.returncode == 3
    assert not is_alive(sleep)


# Others' CPU time ---------------------------------------------------------

def line(host='a', begin=(0, 0, 0), end=(10, 0, 0), own=0.0, cpus=4, rc=0,
         **scan):
    """The lines of a rank: readings have the time, busy and stolen seconds."""
    def reading(at, busy, steal):
        return f'{1000 + at:.3f} {100 * busy:.0f} {100 * steal:.0f}'

    scan = {'cpus': cpus, 'running': 0.0, 'kernel': 0.0, 'seen': 0.0, 'busiest': [],
            **scan} if scan.pop('scanned', True) else {}
    return (f'plumbline-rank {host}\nplumbline-end {host} {rc} 0m0.000s 0m0.000s '
            f'{own // 60:.0f}m{own % 60:.3f}s 0m0,000s {reading(*begin)} '
            f'{reading(*end)}\n'
            + (f'plumbline-others {host} {json.dumps(scan)}\n' if scan else ''))


def run_of(*lines, rc=0):
    return guards.Run(1, rc, 10., 0., 0., '', ''.join(lines), 'run.1')


def seen(*lines):
    return nodes.read_node_reports(run_of(*lines))


def test_the_ranks_of_a_node_are_added_up():
    """Started one after the other: from the first start to the last end."""
    node, = seen(line(begin=(0, 100, 0), end=(9, 119, 0), own=8.0),
                 line(begin=(1, 102, 0), end=(10, 125, 0), own=7.0,
                      scanned=False))
    assert (node.ranks, node.wall, node.busy) == (2, 10, pytest.approx(25))
    # 10 s are not theirs, of which 0.5 s could be chance.
    assert node.cpu_seconds_of_other_programs == pytest.approx(9.5)
    assert node.share_of_cpu_time(node.cpu_seconds_of_other_programs,
                                  1) == pytest.approx(0.475)
    assert nodes.interference_metrics([node], 1) == {
        'others_cpu': pytest.approx(0.475), 'steal_cpu': 0}
    assert (
        nodes.describe_worst_interference(
            [[node]], 1, {'others_cpu_limit': 0.5}
        )
        == ''
    )
    words = nodes.describe_worst_interference([[node]], 1, {})
    assert '9.50 s of CPU time on a' in words and '48%' in words
    assert 'not visible' in words


def test_lines_among_others():
    """srun --label, a program without an end of its last line."""
    text = f'[0] words{line("a")}'.replace('plumbline', '0: plumbline')
    assert [node.host for node in seen(text, 'words', line('b'))] == ['a', 'b']


def test_a_job_that_has_the_node_alone_disturbs_nobody():
    node, = seen(line(end=(10, 20, 0), own=19.6, running=0.3))
    assert node.cpu_seconds_of_other_programs == 0
    # More ranks than CPUs have no more than those.
    assert node.share_of_cpu_time(1.0, 64) == pytest.approx(1 / 40)


def test_stolen_time_is_nobody_s():
    """The job's own clock has it, that of the machine has not."""
    node, = seen(line(end=(10, 10, 10), own=20.0))
    assert node.cpu_seconds_of_other_programs == 0
    assert nodes.interference_metrics([node], 2)['steal_cpu'] == pytest.approx(0.5)
    node, = seen(line(end=(10, 10, 10), own=10.0))
    assert node.cpu_seconds_of_other_programs == pytest.approx(5 - 0.316, abs=0.01)


def test_the_worst_node_is_named():
    both = seen(line('n1', end=(10, 1, 0), seen=1.0,
                     busiest=[['cron', 0, 12, 1.0]]),
                line('n2', end=(10, 4, 0), seen=3.9, busiest=[
                    ['left', 4294967, 13, 3.0], ['x', 0, 14, 0.9]]))
    words = nodes.describe_worst_interference([both], 1, {})
    assert 'on n2' in words and 'cron' not in words
    assert 'left (user 4294967, process 13) 3.00 s, x (root' in words
    assert 'not visible' not in words


def test_a_rank_that_did_not_tell():
    with pytest.raises(SanityError, match='observer: .*their end: 1 of 1 on b'):
        seen(line('a'), 'plumbline-rank b\n')
    with pytest.raises(SanityError, match='observer: .*their end: 1 of 1 on a'):
        seen(line('a').replace('0m0.000s', 'm', 1))
    with pytest.raises(SanityError, match='observer: .*observer .*damaged'):
        seen(line('a').replace('"cpus', 'cpus'))
    with pytest.raises(SanityError, match='observer: .*sent no report from b'):
        seen(line('a'), line('b', scanned=False))


def test_busy_neighbours_are_seen(tmp_path):
    """And what the program itself uses is not taken for theirs."""
    spin = ('import os, time\nprint(os.getpid())\nend = time.time() + 2\n'
            'while time.time() < end: 0')
    (tmp_path / 'go').touch()
    with busy(tmp_path):
        began = time.monotonic()
        # Its parent is the launcher, whose children all are the job's.
        done = run_rank(sys.executable, '-c', spin,
                        before=['sh', '-c', '"$@"; exit', 'sh'])
        seconds = time.monotonic() - began
    node, = seen(done.stderr)
    assert 1 < node.wall < seconds + 1 and node.own > 0.02
    assert node.cpu_seconds_of_other_programs > 0.3
    assert 'busyneighbour' in {name for name, *_ in node.busiest}
    assert int(done.stdout) not in {pid for _, _, pid, _ in node.busiest}


def test_a_server_of_the_job_is_no_other_program():
    """Redis writes its title over its environment: its parent has the mark."""
    spin = 'import os\nwhile os.times().user < 0.5: 0\nprint(os.getpid(), flush=True)\n'
    marked = {**os.environ, 'PLUMBLINE_JOB': f'test-{os.getpid()}'}
    with subprocess.Popen(
            # Its parent is not the test, below which no process counts.
            ['bash', '-c', '"$1"; :', 'bash', build_programs() / 'observe'],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=marked
            ) as observer, subprocess.Popen(
                ['sh', '-c', 'env -u PLUMBLINE_JOB "$0" -c "$1"; :', sys.executable,
                 f'{spin}input()'], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, env=marked) as parent:
        server = int(parent.stdout.readline())
        _, text = observer.communicate(timeout=LIMIT)
        parent.communicate('\n')
    assert '"running": 0.00' not in text
    assert str(server) not in text


# In a run of the suite ----------------------------------------------------


@two_cpus
def test_what_others_did_is_recorded_and_judged(faulty, tmp_path):
    with busy(tmp_path):
        done = faulty.run('slow', '-Sbringup=1', GO=str(tmp_path / 'go'),
                          PLUMBLINE_OTHERS_LIMIT='0.05')
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r['result'] for r in faulty.records} == {'inconclusive'}
    assert 'latency' in {r['metric'] for r in faulty.records}
    others, = (r for r in faulty.records if r['metric'] == 'others_cpu')
    assert float(others['value']) > 0.3 and others['unit'] == '1'
    assert 'steal_cpu' in {r['metric'] for r in faulty.records}
    assert 'other programs used' in others['reason']
    assert 'busyneighbour (' in others['reason']


@two_cpus
def test_a_server_that_gets_away(suite, tmp_path, store):
    """What a store started, and left when it was stopped, is ended with it."""
    prefix = tmp_path / 'store' / 'bin'
    prefix.mkdir(parents=True)
    wrapper = prefix / store.binary.name
    wrapper.write_text(
        '#!/bin/bash\n'
        'case $* in --version*|-v*) ;; *)\n'
        '    setsid sleep 987.5 </dev/null >/dev/null 2>&1 & ;;\n'
        f'esac\nexec {shlex.quote(str(store.binary))} "$@"\n')
    wrapper.chmod(0o755)
    another_site(suite, tmp_path, f'''
for _env in site_configuration['environments']:
    if _env['name'] == {store.environ!r}:
        _env['extras']['programs']['keyvalue']['prefix'] = \\
            {str(prefix.parent)!r}
''')
    done = suite.plumb(
        'run', '--bringup', '--mode', 'quick', '--', *OF_IT, '-n',
        'StoreServes', '-p', f'^{store.environ}$', '-E',
        f'str(scenario) == "{store.name} get"', *SHORT)
    text = ' '.join((done.stdout + done.stderr).split())
    assert not is_alive('sleep 987.5')
    assert done.returncode == 0, text


# What killed jobs left ----------------------------------------------------

def test_files_of_dead_mpi_programs_are_removed_and_no_others(tmp_path):
    host = os.uname().nodename.partition('.')[0]
    shm, tmp = tmp_path / 'shm', tmp_path / 'tmp'
    shm.mkdir()
    dead = subprocess.run(['sh', '-c', 'echo $$'], capture_output=True, text=True,
                          check=True).stdout.strip()

    def make(path, minutes=61):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'x' * 4096)
        for each in (path, path.parent):
            if each not in (shm, tmp):
                os.utime(each, (time.time() - 60 * minutes,) * 2)
        return path
    removed = [make(shm / 'mpich_shm_Ab12'), make(shm / f'sm_segment.{host}.0.1.0'),
               make(shm / f'vader_segment.{host}.example.0.1.0'),
               make(tmp / f'ompi.{host}.0' / 'contact.txt'),
               make(tmp / f'ompi.{dead}' / f'pmix.{host}.tool')]
    kept = [make(shm / f'sm_segment.{host}.0.2.0'), make(shm / 'mpich_shm_new', 5),
            make(shm / 'sm_segment.other.0.1.0'), make(shm / 'mine'),
            make(tmp / f'ompi.{os.getpid()}' / f'pmix.{host}.tool'),
            make(tmp / f'ompi.{dead}0' / 'pmix.other.tool'),
            make(tmp / f'prte.{host}.0' / 'new', 5)]
    with open(kept[0], 'r+b') as file, mmap.mmap(file.fileno(), 4096):
        file.close()
        subprocess.run([SRC / 'remove_leftovers.sh', shm, tmp], check=True)
    assert [path for path in removed if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
    if os.geteuid() == 0:
        # A file of another user stays, even where it could be removed.
        foreign = make(shm / 'mpich_shm_foreign')
        os.chown(foreign, 12345, -1)
        subprocess.run([SRC / 'remove_leftovers.sh', shm, tmp], check=True)
        assert foreign.exists() and not kept[0].exists()


#: Launchers that make the folders of Open MPI, print their pid, and wait; and the
#: names of the folders.
LAUNCHERS = {
    'version 5': ('mkdir -p "$TMPDIR/ompi.$$/pmix.host.tool"', 'ompi.{pid}'),
    'version 4': ('mkdir -p "$TMPDIR/ompi.$(hostname).$(id -u)/pid.$$/0"',
                  'ompi.{host}.{uid}')}


@pytest.mark.parametrize('victim', ['launcher', 'job'])
@pytest.mark.parametrize('version', LAUNCHERS)
def test_the_folder_of_a_killed_launcher_is_removed(tmp_path, version, victim):
    make, name = LAUNCHERS[version]
    launcher = tmp_path / 'mpirun'
    launcher.write_text(f'#!/bin/sh\n{make}\necho $$ >pid\nexec sleep 600\n')
    launcher.chmod(0o755)
    # What removes the folder leaves the group of processes late.
    setsid = tmp_path / 'setsid'
    setsid.write_text(f'#!/bin/sh\nsleep 1\nexec {shutil.which("setsid")} "$@"\n')
    setsid.chmod(0o755)
    tmp = tmp_path / 'tmp'
    kept = [tmp / f'ompi.{os.getpid()}', tmp / 'ompi.other.0' / 'pid.1']
    for folder in kept:
        folder.mkdir(parents=True)
    job = subprocess.Popen(
        ['bash', '-c', '"$@"; exit $?', 'job', SRC / 'measure.sh', '--', launcher],
        cwd=tmp_path, start_new_session=True,
        env={**os.environ, 'TMPDIR': str(tmp),
             'PATH': f'{tmp_path}:{os.environ["PATH"]}'})
    pid_file, launchers = tmp_path / 'pid', tmp_path / '.launchers'
    until(lambda: pid_file.exists() and pid_file.read_text().strip()
          and launchers.exists() and launchers.read_text().strip())
    pid = int(pid_file.read_text())
    folder = tmp / name.format(pid=pid, host=os.uname().nodename, uid=os.getuid())
    assert folder.is_dir()
    if victim == 'launcher':
        os.kill(pid, signal.SIGKILL)
        assert job.wait(LIMIT) == 128 + signal.SIGKILL
        # The job ends after the removal.
        assert not folder.exists()
    else:
        # As ReFrame ends a job without a scheduler.
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(LIMIT)
        until(lambda: not folder.exists())
    until(lambda: not launchers.exists())
    assert [path for path in kept if not path.is_dir()] == []


# What the nodes are -------------------------------------------------------

def test_facts_of_this_machine(tmp_path):
    left = tmp_path / f"ompi.{os.uname().nodename.partition('.')[0]}.0"
    left.mkdir()
    os.utime(left, (0, 0))
    done = subprocess.run([SRC / 'facts.sh', '', 'mpirun'], text=True,
                          capture_output=True, timeout=LIMIT, check=True,
                          env={**os.environ, 'TMPDIR': str(tmp_path)})
    # Once per session on each node, what killed jobs left is removed, too.
    assert not left.exists()
    assert done.stderr == ''
    facts = nodes.parse_facts(done.stdout)
    assert facts['kernel'] == os.uname().release
    assert facts['cpus'] == str(os.cpu_count())
    assert {'architecture', 'memory', 'scratch'} <= set(facts)
    assert os.uname().nodename not in done.stdout.split()


def test_facts_of_devices_that_are_slow_to_answer(tmp_path):
    """A tool that hangs is left out; one that answers is heard."""
    for name, text in (('nvidia-smi', 'echo "H100, 96.00, 81559 MiB"; '
                        'echo "H100, 96.00, 81559 MiB"'),
                       ('fi_info', 'sleep 600'),
                       ('ucx_info', 'echo "# Library version: 1.15.0"'),
                       ('mylauncher', 'echo; echo "MY 3.4"')):
        (tmp_path / name).write_text(f'#!/bin/sh\n{text}\n')
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [SRC / 'facts.sh', str(tmp_path), 'mylauncher'], text=True,
        capture_output=True, timeout=LIMIT, check=True,
        env={**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}'})
    facts = nodes.parse_facts(done.stdout)
    assert facts['gpu'] == ['H100, 96.00, 81559 MiB'] * 2
    assert facts['ucx'] == '1.15.0'
    assert facts['launcher'] == 'mylauncher: MY 3.4'


def test_nodes_of_one_kind_share_a_file(tmp_path):
    for host, kernel in (('n1', '6.1'), ('n2', '6.1'), ('n3', '6.2')):
        (tmp_path / host).write_text(f'kernel\t{kernel}\nnic\ta\nnic\tb\n')
    name, files = nodes.read_node_facts_files(tmp_path, ['n1', 'n2'])
    assert list(files) == [name] and ' ' not in name
    assert json.loads(files[name]) == {'kernel': '6.1', 'nic': ['a', 'b']}
    names, files = nodes.read_node_facts_files(tmp_path, ['n3', 'n1', 'n4'])
    assert names.split()[1:] == [name, '-'] and len(files) == 2
    assert nodes.read_node_facts_files(tmp_path, ['n4']) == ('', {})
    assert nodes.read_node_facts_files(tmp_path, ['n1.cluster'])[0] == name


def test_nodes_of_two_domains_keep_their_full_names(tmp_path):
    for host in ('n1.east', 'n1.west'):
        (tmp_path / host).write_text(f'kernel\t{host}\n')
    name, files = nodes.read_node_facts_files(tmp_path, ['n1.east'])
    assert json.loads(files[name]) == {'kernel': 'n1.east'}
    assert nodes.read_node_facts_files(tmp_path, ['n1']) == ('', {})


# Clocks, and exit codes that a launcher swallows --------------------------

def test_an_exit_code_that_the_launcher_swallowed():
    lines = line('n1', rc=0), line('n2', rc=3)
    with pytest.raises(SanityError, match='exit_code: .*code 3 on n2, its '
                       'launcher with 0: .*hides'):
        nodes.read_node_reports(run_of(*lines))
    # Known faults.
    assert len(nodes.read_node_reports(run_of(*lines), accept=[0, 3])) == 2


@pytest.mark.parametrize('clocks, submitted, words', [
    ({'n1': 100, 'n2': 220}, 95, 'the clock of n2 is wrong: n2 is 120 s '
     'ahead of n1'),
    ({'n1': 100, 'n2': -20}, 95, 'the clock of n2 is wrong: n2 is 120 s '
     'behind n1'),
    # The job waited for an hour: nobody knows better which of two it is.
    ({'n1': 100, 'n2': -20}, -3600, 'one of the clocks of n1, n2 is wrong: '
     'n1 is 120 s ahead of n2'),
    ({'n1': 220}, 95, 'the clock of n1 is wrong: n1 is 119 s ahead of the '
     'node of the suite'),
    ({'n1': 100, 'n2': 100}, 220, 'the clock of the node of the suite is '
     'wrong: the node of the suite is 120 s ahead of n1'),
])
def test_a_clock_that_is_off(clocks, submitted, words):
    spans = {host: (at, at + 5) for host, at in clocks.items()}
    now = None if submitted is None else max(submitted + 5, 106)
    with pytest.raises(SanityError, match=f'clock: run.1: {words}'):
        nodes.check_clocks(run_of(), spans, submitted, now)


def test_clocks_that_agree():
    spans = {'n1': (100, 105), 'n2': (101.5, 106.5)}
    nodes.check_clocks(run_of(), spans, 98, 107)
    nodes.check_clocks(run_of(), spans, None)
    nodes.check_clocks(run_of(), {}, 98, 107)
