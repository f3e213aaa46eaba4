"""A Slurm cluster whose nodes are namespaces of this machine.

:class:`Cluster` is the interface for the command ``box`` and for tests. One
process, the switch, is the first of the outer pid namespace, which has the
bridge; each node and ``login`` has pid, network, mount, host name and IPC
namespaces inside it. When the switch's first process ends, everything ends
but the folder.
"""
from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import namespaces as ns
from packages import package_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline').absolute()

#: The two namespaces that are no compute nodes.
SWITCH, LOGIN = 'switch', 'login'

#: Programs that a cluster needs, with Slurm and with sshd in its place.
PROGRAMS = {False: ('slurmctld', 'slurmd', 'scontrol', 'srun', 'munged', 'ip', 'tc'),
            True: ('sshd', 'ssh', 'ssh-keygen', 'ip', 'tc')}

#: Longest wait for a daemon, a node or a job. It is far beyond what any needs on a
#: loaded machine. Unit: seconds.
LIMIT = 300.0

#: With the sbin folders, which not every user's PATH has.
PATH = os.environ.get('PATH', '') + ':/usr/local/sbin:/usr/sbin:/sbin'

#: Private folders of each node, emptied when it dies.
PRIVATE = ('/run', '/tmp', '/var/tmp', '/dev/shm')

SLURM_CONF = '''\
# Written by tests/cluster/box. /run/cluster is the cluster's folder.
ClusterName=box
SlurmctldHost={login}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/run/cluster/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/run/cluster/log/slurmctld.log
SlurmdLogFile=/run/cluster/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/{tasks}
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# Nodes have the cores that they say, not those that this machine has.
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
ReturnToService=2
SlurmdTimeout=5
MessageTimeout=5
KillWait=2
JobRequeue=0
# For jobs that are not to share this machine with each other.
Licenses=alone:1
# Finished jobs stay known for a day: the stand-in of sacct asks scontrol.
MinJobAge=86400
{topology}
NodeName={nodes} CPUs={cpus} State=UNKNOWN
PartitionName=batch Nodes=ALL Default=YES DefaultTime=10 State=UP
'''

#: A node has one user. sshd becomes its user `sshd`, and an ordinary user's namespace
#: has only the number 0. Without PAM, it refuses an account with a locked password.
ACCOUNTS = {'passwd': f'root:x:0:0::{Path.home()}:/bin/bash\n'
                      'sshd:x:0:0::/run/sshd:/usr/sbin/nologin\n',
            'shadow': 'root:*:::::::\n'}

SSHD_CONFIG = '''\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
'''

SSH_CONFIG = '''\
User root
IdentityFile {folder}/user_key
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
BatchMode yes
LogLevel ERROR
'''


class ClusterError(Exception):
    """A request failed; one line that says why and what to do."""


class CannotRunHere(ClusterError):
    """A program is missing here, or namespaces are forbidden."""


def default_folder() -> Path:
    return WORK / 'cluster'


def lost(ssh: bool = False) -> list[str]:
    """Programs that the cluster needs and this machine does not have."""
    return [p for p in PROGRAMS[ssh] if not shutil.which(p, path=PATH)]


def missing(ssh: bool = False) -> str:
    """The missing programs and their packages, in one line; '': none."""
    programs = lost(ssh)
    if not programs:
        return ''
    packages = ' '.join(dict.fromkeys(package_of()[p] for p in programs))
    return (f'no {", ".join(programs)} here (Debian packages: {packages}); as '
            f'root: tests/cluster/box install')


@dataclass(frozen=True)
class Process:
    """A process of a node; `pid` is its number on this machine."""
    pid: int
    name: str
    command: str


class Cluster:
    """One cluster, known by its folder."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(folder or default_folder()).absolute()

    # State ---------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        """:raises ClusterError: there is no cluster."""
        try:
            return json.loads((self.folder / 'box.json').read_text())
        except (OSError, ValueError):
            raise ClusterError(f'no cluster in {self.folder}; bring one up: '
                               'tests/cluster/box up') from None

    @property
    def nodes(self) -> list[str]:
        return [f'n{i}' for i in range(1, self.settings['nodes'] + 1)]

    def address(self, node: str) -> str:
        known = [LOGIN, *self.nodes]
        if node not in known:
            raise ClusterError(f'no node {node!r}; there are '
                               f'{", ".join(known)}')
        return f'10.0.0.{known.index(node) + 1}'

    def pid(self, node: str) -> int | None:
        """The first process of a node, None when the node is dead."""
        try:
            pid, start = (self.folder / 'pids' / node).read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if _start_time(pid) == start else None

    def alive(self, node: str) -> int:
        """:raises ClusterError: no such node, or it is dead."""
        if node != SWITCH:
            self.address(node)
        pid = self.pid(node)
        if pid is None:
            raise ClusterError(
                f'{node} is dead; boot it: tests/cluster/box boot {node}'
                if self.pid(SWITCH) else f'the cluster in {self.folder} is '
                'dead; tests/cluster/box down, then up')
        return pid

    def remember(self, node: str, pid: int) -> None:
        path = self.folder / 'pids' / node
        temp = path.with_suffix('.new')
        temp.write_text(f'{pid} {_start_time(pid)}')
        temp.replace(path)

    def log(self, name: str) -> Path:
        """The log of a first process or a daemon.

        Daemons have a file NAME.log of their own beside it.
        """
        return self.folder / 'log' / f'{name}.err'

    # Up and down ---------------------------------------------------------

    def box(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """Runs the command ``box``: only its process forks."""
        return subprocess.Popen(
            [sys.executable, str(HERE / 'box'), '--dir', str(self.folder),
             *words], text=True, **more)

    def _run(self, *words: str) -> str:
        done = self.box(*words, stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        out, err = done.communicate()
        if done.returncode:
            kind = CannotRunHere if done.returncode == 2 else ClusterError
            raise kind(err.strip().removeprefix('box: ') or out)
        return out

    def up(self, nodes: int = 4, cpus: int = 2, share: Iterable[str | Path] = (),
           bind: bool = False, switch: int = 0, ssh: bool = False) -> None:
        """Brings the cluster up; returns when all nodes are idle.

        :arg ssh: sshd instead of Slurm; see ssh_folder.
        :arg bind: srun binds tasks to their CPUs; no more of them then than
            the machine has.
        :arg switch: leaf switches of so many nodes each under one at the
            top, as Slurm is told: nothing else is different; 0: none.
        :arg share: folders below /tmp or another private one that all
            nodes see, besides this checkout and the cluster's folder.
        """
        self._run('up', '-n', str(nodes), '--cpus', str(cpus),
                  *['--bind'] * bind, *['--ssh'] * ssh, '--switch', str(switch),
                  *(f'--share={path}' for path in share))

    def make_folder(self, nodes: int, cpus: int, share: Iterable[str],
                    bind: bool = False, switch: int = 0, ssh: bool = False
                    ) -> None:
        """The files of a new cluster. Refuses a folder that is in use."""
        try:
            self.folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            raise ClusterError(
                f'{self.folder} is there already: a cluster? '
                f'tests/cluster/box --dir {self.folder} down') from None
        # First the file that marks the folder as ours, for `down`.
        seen = [ROOT, WORK, self.folder, *map(Path, (
            sys.prefix, sys.base_prefix, *share))]
        shared = {str(path.resolve()) for path in seen if path.is_dir()}
        (self.folder / 'box.json').write_text(json.dumps({
            'nodes': nodes, 'cpus': cpus, 'shared': sorted(shared), 'ssh': ssh}))
        for name in ('etc', 'links', 'log', 'pids', 'state'):
            (self.folder / name).mkdir()
        etc = self.folder / 'etc'
        (etc / 'slurm.conf').write_text(SLURM_CONF.format(
            login=LOGIN, nodes=f'n[1-{nodes}]', cpus=cpus,
            tasks='affinity' if bind else 'none',
            topology='TopologyPlugin=topology/tree' * bool(switch)))
        if switch:
            leaves = range(0, nodes, switch)
            (etc / 'topology.conf').write_text(''.join(
                f'SwitchName=leaf{i} Nodes=n[{first + 1}-'
                f'{min(first + switch, nodes)}]\n'
                for i, first in enumerate(leaves, 1))
                + f'SwitchName=top Switches=leaf[1-{len(leaves)}]\n')
        (etc / 'cgroup.conf').write_text('CgroupPlugin=cgroup/v1\n')
        (etc / 'hosts').write_text('127.0.0.1 localhost\n' + ''.join(
            f'{self.address(name)} {name}\n'
            for name in (LOGIN, *self.nodes)))
        private(etc / 'munge.key', secrets.token_bytes(128))
        if ssh:
            self.make_ssh_folder()

    @property
    def ssh_folder(self) -> Path:
        """Keys and configuration of ssh, and bin/ssh, which uses them."""
        return self.folder / 'ssh'

    def make_ssh_folder(self) -> None:
        folder = self.ssh_folder
        (folder / 'bin').mkdir(parents=True)
        for name in ('host_key', 'user_key'):
            subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f',
                            folder / name], check=True)
        (folder / 'known_hosts').write_text(
            '* ' + (folder / 'host_key.pub').read_text())
        for name, text in (('sshd_config', SSHD_CONFIG), ('ssh_config', SSH_CONFIG)):
            (folder / name).write_text(text.format(folder=folder))
        for name, text in ACCOUNTS.items():
            (self.folder / 'etc' / name).write_text(text)
        program = folder / 'bin' / 'ssh'
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh", path=PATH)} '
                           f'-F {folder}/ssh_config "$@"\n')
        program.chmod(0o755)

    def down(self) -> None:
        """Ends all processes and removes the folder, if there is one."""
        pid = self.pid(SWITCH)
        if pid is not None:
            _kill(pid)
        if (self.folder / 'box.json').is_file():
            shutil.rmtree(self.folder)
        elif self.folder.is_dir():
            # Not a cluster's folder, or an `up` that failed at once.
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            if self.folder.is_dir():
                raise ClusterError(f'{self.folder} is no cluster of ours (no '
                                   'box.json in it): left alone')

    # Nodes ---------------------------------------------------------------

    def exec(self, *command: str | Path, node: str = LOGIN, **more: Any
             ) -> subprocess.CompletedProcess[str]:
        """Runs a command on a node, like subprocess.run."""
        more = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE,
                'text': True, 'stdin': subprocess.DEVNULL, **more}
        return subprocess.run([
            sys.executable, HERE / 'box', '--dir', self.folder, 'exec', node,
            '--', *command], **more)

    def ask(self, *command: str, node: str = LOGIN) -> str:
        """The output of a short command that must succeed.

        Tests ask until an answer is as they want it, and nsenter starts in a
        twentieth of the time that `box exec` takes.

        :raises ClusterError: with its last words.
        """
        pid = self.alive(node)
        user = [] if ns.same_user_namespace(pid) else ['-U', '--preserve-credentials']
        done = subprocess.run(
            ['nsenter', '-t', str(pid), '-m', '-u', '-i', '-n', '-p', *user, 'sh', '-c',
             'cd "$0" && exec "$@"', os.getcwd(), *command], text=True,
            env={**os.environ, 'PATH': PATH}, stdin=subprocess.DEVNULL,
            capture_output=True)
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines()
            raise ClusterError(f'{" ".join(command[:3])} on {node}: '
                               f'{words[-1] if words else "failed"}')
        return done.stdout

    def kill(self, node: str) -> None:
        """A power cut: kills all processes of the node at once."""
        pid = self.alive(node)
        if node == SWITCH:
            raise ClusterError('without the switch there is no cluster: down')
        _kill(pid)
        (self.folder / 'pids' / node).unlink()
        # The kernel removes the node's interfaces asynchronously.
        self.exec('sh', '-c', f'ip link del {node}; ip link del {node}-a',
                  node=SWITCH)
        (self.folder / 'links' / node).unlink(missing_ok=True)

    def boot(self, node: str) -> None:
        """Brings a dead node up; returns when Slurm has it back."""
        self._run('boot', node)

    def states(self) -> dict[str, str]:
        """Slurm's state of each node: idle, allocated, down..."""
        lines = self.ask('sinfo', '-h', '-N', '-o', '%N %T').splitlines()
        return dict(line.split() for line in lines)

    def wait_idle(self, nodes: Iterable[str], limit: float = LIMIT) -> None:
        """:raises ClusterError: not all of them are idle in time.

        Without Slurm a node is idle when its sshd has started.
        """
        if self.settings['ssh']:
            return
        end = time.monotonic() + limit
        while True:
            try:
                states = self.states()
                late = [f'{n} {states.get(n, "unknown")}' for n in nodes
                        if states.get(n) != 'idle']
            except ClusterError as err:
                late = [str(err)]
            if not late:
                return
            if time.monotonic() > end:
                raise ClusterError(f'not idle after {limit:.0f} s: '
                                   f'{", ".join(late)}; see '
                                   f'{self.folder}/log')
            time.sleep(0.05)

    # Links ---------------------------------------------------------------

    def link(self, node: str) -> dict[str, str]:
        """Settings of a node's link: rate, delay, loss."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.folder / 'links' / node).read_text())
        return {}

    def _note(self, node: str, **change: str) -> None:
        kept = {k: v for k, v in {**self.link(node), **change}.items() if v}
        (self.folder / 'links' / node).write_text(json.dumps(kept))

    def rate(self, node: str, rate: str) -> None:
        """Limits a node's link, both ways: '100mbit' as tc has it; 'none'.

        Like all that is done to a link, it is gone when the node dies.
        """
        self.alive(node)
        number = rate.removesuffix('bit').rstrip('kmg')
        if rate != 'none' and not (rate.endswith('bit') and number.isdigit()
                                   and int(number)):
            raise ClusterError(f'{rate!r} is no rate: 100mbit, 1gbit, none')
        for where, device in ((node, 'eth0'), (SWITCH, node)):
            self.exec('tc', 'qdisc', 'del', 'dev', device, 'root', node=where)
            if rate != 'none':
                self.ask('sh', '-ec', f"""
                    tc qdisc add dev {device} root handle 1: htb default 1
                    tc class add dev {device} parent 1: classid 1:1 htb \
                        rate "$0" """, rate, node=where)
        self._note(node, rate='' if rate == 'none' else rate)

    def delay(self, node: str, delay: str) -> None:
        """Delays every frame of a node's link, each way: '200us'; '0'."""
        self._relay(node, delay=delay if nanoseconds(delay) else '')

    def loss(self, node: str, share: str) -> None:
        """Loses a share of the frames of a node's link, each way: '1%'; '0'.

        Which ones depends on the node and their number alone.
        """
        self._relay(node, loss=share if of_a_million(share) else '')

    def _relay(self, node: str, **change: str) -> None:
        """Puts a relay into a node's link, another one, or none."""
        self.alive(node)
        expected = {**self.link(node), **change}
        late = nanoseconds(expected.get('delay') or '0')
        lost = of_a_million(expected.get('loss') or '0')
        self.exec('ip', 'link', 'del', f'{node}-a', node=SWITCH)
        if not late and not lost:
            self.ask('ip', 'link', 'set', node, 'master', 'br0', node=SWITCH)
        else:
            relay = compiled('relay', self.folder)
            seed = [LOGIN, *self.nodes].index(node)
            # node's port -- relay -- a -- b -- bridge
            self.ask('sh', '-ec', f"""
                ip -batch - <<END
                link set {node} nomaster
                link add {node}-a type veth peer name {node}-b
                link set {node}-b master br0
                link set {node}-a up
                link set {node}-b up
END
                {relay} {node} {node}-a {late} {lost} {seed} >/dev/null \
                    2>>/run/cluster/log/relay.log </dev/null &""",
                     node=SWITCH)
        self._note(node, **change)

    # Jobs ----------------------------------------------------------------

    def submit(self, script: str, *options: str, **more: Any) -> str:
        """Submits the text of a batch script; returns the job's number."""
        # No output file in the caller's folder, unless asked for.
        done = self.exec('sbatch', '--parsable', '--output=/dev/null',
                         *options, input=script, stdin=None, **more)
        if done.returncode:
            raise ClusterError(f'sbatch: {done.stderr.strip()}')
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """`scontrol show job`: JobState, ExitCode, NodeList..."""
        text = self.ask('scontrol', '-o', 'show', 'job', number)
        return dict(word.split('=', 1) for word in text.split()
                    if '=' in word)

    def wait(self, number: str, limit: float = LIMIT) -> dict[str, str]:
        """The job when it has ended.

        :raises ClusterError: it has not, within the limit.
        """
        end = time.monotonic() + limit
        while (job := self.job(number))['JobState'] in (
                'PENDING', 'CONFIGURING', 'RUNNING', 'COMPLETING'):
            if time.monotonic() > end:
                raise ClusterError(f'job {number} is {job["JobState"]} after '
                                   f'{limit:.0f} s')
            time.sleep(0.1)
        return job

    # What is left behind -------------------------------------------------

    def members(self, node: str) -> list[Process]:
        """All processes of a node, its own daemons too."""
        space = os.readlink(f'/proc/{self.alive(node)}/ns/pid')
        return list(_processes(space))

    def processes(self, node: str) -> list[Process]:
        """All processes of a node but its own: first process, daemons."""
        init = self.alive(node)
        daemons = ('munged', 'slurmctld', 'slurmd', 'slurmdbd', 'mariadbd')
        return [p for p in self.members(node) if p.pid != init
                # Those of sshd that serve a connection belong to a job.
                and p.name not in daemons and '[listener]' not in p.command]

    def ports(self, node: str) -> set[tuple[str, int]]:
        """Addresses and TCP ports that processes of the node listen on.

        Slurm's own two daemons and sshd are left out.
        """
        result = set()
        for table in ('tcp', 'tcp6'):
            lines = Path(f'/proc/{self.alive(node)}/net/{table}'
                         ).read_text().splitlines()[1:]
            for cells in map(str.split, lines):
                address, _, port = cells[1].partition(':')
                if cells[3] == '0A' and int(port, 16) not in (22, 6817, 6818):
                    result.add((_address(address), int(port, 16)))
        return result

    def mounts(self, node: str) -> list[str]:
        """The node's mount points, sorted."""
        text = Path(f'/proc/{self.alive(node)}/mounts').read_text()
        return sorted(line.split()[1] for line in text.splitlines())

    def files(self, node: str) -> list[str]:
        """Files below the folders that a node has for itself, sorted.

        Without those that Slurm and munge keep, and those of shared folders.
        """
        root = f'/proc/{self.alive(node)}/root'
        shared = [*self.settings['shared'], '/run/cluster', '/run/munge']
        results = []
        for private in PRIVATE:
            for place, folders, names in os.walk(root + private):
                here = place.removeprefix(root)
                folders[:] = [f for f in folders if f'{here}/{f}' not in (
                    *shared, '/run/slurmd')]
                results += [f'{here}/{name}' for name in names]
        ours = ('/run/slurmd.pid', '/run/slurmctld.pid', '/run/munged.pid',
                '/run/munge.seed')
        return sorted(set(results) - set(ours))


def private(path: Path, content: bytes) -> None:
    """Creates a file with mode 600 from the start."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, content)
    os.close(fd)


def nanoseconds(delay: str) -> int:
    """
    >>> nanoseconds('200us'), nanoseconds('1.5ms'), nanoseconds('0')
    (200000, 1500000, 0)
    """
    for unit, factor in (('us', 1e3), ('ms', 1e6), ('', 1e9)):
        if delay.endswith(unit):
            with contextlib.suppress(ValueError):
                value = float(delay.removesuffix(unit)) * factor
                if 0 <= value <= 1e9 and (unit or not value):
                    return round(value)
            break
    raise ClusterError(f'{delay!r} is no delay: 200us, 1.5ms, at most '
                       '1000ms, or 0')


def of_a_million(share: str) -> int:
    """
    >>> of_a_million('1%'), of_a_million('0.5%'), of_a_million('0')
    (10000, 5000, 0)
    """
    with contextlib.suppress(ValueError, OverflowError):
        value = round(float(share.removesuffix('%')) * 1e4)
        if 0 <= value <= 1_000_000 and (share.endswith('%') or not value):
            return value
    raise ClusterError(f'{share!r} is no share of the frames: 1%, 0.5%, or 0')


def compiled(name: str, folder: Path) -> Path:
    """A C helper of the cluster, built at its first use.

    :raises ClusterError: no compiler, with its words.
    """
    target = folder / name
    if not target.exists():
        shared = ['-shared', '-fPIC'] if name.endswith('.so') else []
        try:
            done = subprocess.run(
                ['cc', '-O2', '-Wall', '-Werror', *shared, '-o',
                 f'{target}.new', HERE / f'{target.stem}.c'], text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except FileNotFoundError:
            raise ClusterError(f'{target.stem}.c cannot be built: no C '
                               'compiler cc on PATH') from None
        if done.returncode:
            raise ClusterError(f'{target.stem}.c: {done.stdout.strip()}')
        os.replace(f'{target}.new', target)
    return target


def _start_time(pid: int | str) -> str:
    """Start time of a process in ticks: its pid may have been reused.

    Empty when it is gone, or only waits to be reaped.
    """
    try:
        cells = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2]
    except OSError:
        return ''
    state, *rest = cells.split()
    return '' if state in 'ZX' else rest[18]


def _kill(pid: int) -> None:
    """Kills the first process of a tree; returns when all of it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        # The kernel ends the first process of a tree after all others.
        select.select([fd], [], [], LIMIT)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def _processes(space: str) -> Iterator[Process]:
    """Processes of one process namespace."""
    for entry in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if os.readlink(entry / 'ns' / 'pid') == space:
                command = (entry / 'cmdline').read_bytes()
                yield Process(int(entry.name),
                              (entry / 'comm').read_text().strip(),
                              command.replace(b'\0', b' ').decode(
                                  errors='replace').strip())


def _address(text: str) -> str:
    """An address as /proc/net/tcp has it: words in the machine's order."""
    import ipaddress
    words = [bytes.fromhex(text[i:i + 8])[::-1 if sys.byteorder == 'little'
                                          else 1]
             for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b''.join(words)))
