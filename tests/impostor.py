"""An impostor: another user of the node poses as conductor or as agent.

For bench/kill_rounds.py and tests/serving/test_connection.py. If the conductor
of a run is killed before its agents have connected, its port is free, and they
connect to the process that takes it. The impostor knows the protocol and its
previous version, and has recorded a conductor's side of a handshake; it does
not know the secret of the run.
"""
from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checks.services.plan import Clients, Plan, Program, Server, Step
from checks.services.wire import MAC, MAGIC, NONCE, Channel

ROOT = Path(__file__).resolve().parent.parent
SERVING = ROOT / 'checks' / 'services'

#: User id of the impostor: `nobody`.
UID = 65534

#: Delay of a round's agents; the kill comes within it. Unit: seconds.
HEAD_START = 1.0

#: A server that prints its configuration and accepts connections.
IDLE = '''
import socket, sys
print(sys.stdin.read(), flush=True)
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    while True:
        server.accept()[0].close()
'''

Attack = Callable[[socket.socket, bytes, str], None]


def as_another_user(act: Callable[[], None]) -> int:
    """Runs in a process of user `nobody`; needs root. Returns its pid."""
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
            act()
        os._exit(0)
    return pid


# Attacks on an agent --------------------------------------------------------

def orders(proof: str) -> list[dict]:
    """A conductor's command that leaves a file as proof. Versions before
    `type` called the key `say`."""
    return [{'type': 'run', 'say': 'run', 'clients': [{
        'index': 0, 'cpus': sorted(os.sched_getaffinity(0)), 'address': '',
        'port': 0, 'hostname': '', 'connections': 1, 'gate': False,
        'command': ['sh', '-c', f'id -u >{proof}'], 'output': proof}]}]


def plain(connection: socket.socket, recorded: bytes, proof: str) -> None:
    """The protocol without a handshake."""
    for order in orders(proof):
        connection.sendall(json.dumps(order).encode() + b'\n')


def frames(connection: socket.socket, proof: str) -> None:
    """Orders with guessed keys: empty, and all zeros."""
    for key in (b'', b'\0' * MAC):
        channel = Channel(connection, key, key)
        for order in orders(proof):
            channel.send(**order)


def unproven(connection: socket.socket, recorded: bytes, proof: str) -> None:
    """A handshake with a random proof."""
    connection.recv(1000)
    connection.sendall(secrets.token_bytes(NONCE + MAC))
    frames(connection, proof)


def reflected(connection: socket.socket, recorded: bytes, proof: str) -> None:
    """A reflection attack: sends the agent's own messages back."""
    output = connection.recv(1000)
    connection.sendall((output + output[len(MAGIC):])[-NONCE - MAC:])
    connection.sendall(connection.recv(1000))
    frames(connection, proof)


def replayed(connection: socket.socket, recorded: bytes, proof: str) -> None:
    """A replay attack: sends the conductor's recorded messages."""
    connection.recv(1000)
    connection.sendall(recorded)
    frames(connection, proof)


def blind(connection: socket.socket, recorded: bytes, proof: str) -> None:
    """Frames without a handshake."""
    frames(connection, proof)


ATTACKS: dict[str, Attack] = {
    one.__name__: one
    for one in (plain, unproven, reflected, replayed, blind)}


def play_conductor(address: tuple[str, int], attack: Attack, recorded: bytes,
                   proof: str, seconds: float) -> None:
    """Takes the port as soon as it is free, and attacks its peers."""
    end = time.monotonic() + seconds
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while True:
            try:
                listener.bind(address)
                break
            except OSError:
                if time.monotonic() > end:
                    return
        listener.listen(50)
        listener.settimeout(0.2)
        Path(f'{proof}.taken').touch()
        connections = []
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                Path(f'{proof}.met').touch()
                connections.append(connection)
                with contextlib.suppress(OSError):
                    connection.settimeout(3)
                    attack(connection, recorded, proof)


# Attacks on a conductor ------------------------------------------------------

def overheard(address: tuple[str, int]) -> bytes:
    """Records a conductor's answer to the first message of a handshake."""
    with contextlib.suppress(OSError), socket.create_connection(
            address, 3) as connection:
        connection.sendall(MAGIC + secrets.token_bytes(NONCE))
        return connection.recv(1000)
    return b''


def play_agent(address: tuple[str, int], seconds: float) -> None:
    """AuthenticationError agents of every kind, one after the other."""
    end = time.monotonic() + seconds
    hello = json.dumps({'type': 'hello', 'name': 'n9', 'cpus': []}).encode()
    frame = struct.pack('!I', len(hello)) + b'\0' * MAC + hello
    while time.monotonic() < end:
        output = overheard(address)
        for words in (
                (b'agent ' + b'0' * 32 + b' n9\n', hello + b'\n'),
                (b'GET / HTTP/1.1\r\n\r\n',), (b'',), (b'\xff' * 100_000,),
                (MAGIC + secrets.token_bytes(NONCE), secrets.token_bytes(MAC),
                 frame),
                # The conductor's own proof, reflected.
                (MAGIC + output[:NONCE], output[NONCE:], frame),
                (MAGIC + secrets.token_bytes(NONCE), struct.pack(
                    '!I', 1 << 31) * 100)):
            with contextlib.suppress(OSError), socket.create_connection(
                    address, 1) as connection:
                connection.settimeout(0.2)
                for word in words:
                    connection.sendall(word)
                    with contextlib.suppress(TimeoutError):
                        connection.recv(1000)


# A round -----------------------------------------------------------------

@dataclass(frozen=True)
class Round:
    """The outcome of a run whose conductor an impostor replaced."""
    attack: str
    #: Whether the impostor got the port, got a connection from an agent, and
    #: had its command executed.
    taken: bool
    met: bool
    obeyed: bool
    #: The agent's last line on stderr.
    output: str
    #: Processes, and folders of secrets, that were left.
    left: tuple[str, ...]


def start(folder: Path, head_start: float | Path, serving: Path = SERVING,
          seconds: float = 1.0, agents: str = 'service.json'
          ) -> subprocess.Popen:
    """Starts a batch script whose agents connect after `head_start` s, or when
    this file exists."""
    Plan(Server('idle', (sys.executable, '-c', IDLE, '{address}', '{port}'),
                'password {password}\n', dialect='tcp'),
         (Clients(),),
         (Step('measure', (Program(('sleep', str(seconds))),), 30),),
         scratch=tempfile.gettempdir(), heartbeat_timeout=4.0).write(
        folder / 'service.json')
    return conducted(folder, head_start, serving, agents)


def conducted(folder: Path, head_start: float | Path, serving: Path = SERVING,
              agents: str = 'service.json') -> subprocess.Popen:
    """The same with an existing plan."""
    serve = shlex.join([sys.executable, str(serving)])
    agent = f'{serve} agent {agents}'
    wait = (f'until [ -e {head_start} ]; do sleep 0.05; done'
            if isinstance(head_start, Path) else f'sleep {head_start}')
    # The agent is no child of the conductor, as under srun.
    with open(folder / 'out', 'wb') as out, open(folder / 'err', 'wb') as err:
        return subprocess.Popen(
            ['bash', '-c', f'{serve} conduct service.json '
             f"-- sh -c '{wait}; \"$@\"; exit $?' sh {agent} & "
             'echo $! >pid; wait $!'], cwd=folder, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=out, stderr=err)


def address_in(folder: Path, limit: float = 120) -> tuple[str, int]:
    """Where the conductor of a run listens."""
    file = folder / 'service.json.private' / 'conductor'
    end = time.monotonic() + limit
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError, KeyError):
            host, port = json.loads(file.read_text())['address']
            return host, port
        time.sleep(0.01)
    raise TimeoutError(f'no conductor in {folder}')


def processes_in(folder: Path) -> list[int]:
    """Processes whose working folder this is."""
    result = []
    for path in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if (os.readlink(path / 'cwd') == str(folder)
                    and int(path.name) != os.getpid()):
                result.append(int(path.name))
    return result


def play(folder: Path, name: str, chance: random.Random,
         serving: Path = SERVING) -> Round:
    """One round: batch script and conductor are killed, the port is taken.

    :arg folder: empty, and its own.
    """
    folder.chmod(0o777 | 0o1000)            # the impostor writes marks there
    proof = folder / 'proof'
    batch = start(folder, HEAD_START, serving)
    address = address_in(folder)
    recorded = overheard(address)
    impostor = as_another_user(lambda: play_conductor(
        address, ATTACKS[name], recorded, str(proof), 20))
    try:
        time.sleep(chance.uniform(0, 0.8 * HEAD_START))
        for pid in (batch.pid, int((folder / 'pid').read_text())):
            os.kill(pid, signal.SIGKILL)
        batch.wait()
        end = time.monotonic() + 120
        while processes_in(folder) and time.monotonic() < end:
            # The impostor runs in that folder, too.
            if processes_in(folder) == [impostor]:
                break
            time.sleep(0.05)
    finally:
        os.kill(impostor, signal.SIGKILL)
        os.waitpid(impostor, 0)
    left = [f'process {pid}' for pid in processes_in(folder)]
    for pid in processes_in(folder):
        os.kill(pid, signal.SIGKILL)
    output = (folder / 'run.launcher.err').read_text().splitlines()
    return Round(name, Path(f'{proof}.taken').exists(),
                 Path(f'{proof}.met').exists(), proof.exists(),
                 output[-1] if output else '',
                 (*left, *map(str, folder.glob('*.private'))))
