"""An impostor: another user of the node listens on the port of a store.

For bench/kill_rounds.py and tests/serving. It answers as a store does, and keeps what
it receives. It does not know the password of the run.
"""
from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

from checks.services.parser import split_service_record
from checks.services.plan import Plan
from tests.serving.job import Job

#: User id of the impostor: `nobody`.
UID = 65534

#: In front of a store: writes the port of its configuration into a file, and waits in
#: some attacks until another file has it, because the impostor listens then.
LATE = '''
folder=$1 attack=$2
shift 2
config=$(cat)
port=$(printf '%s\\n' "$config" | sed -n 's/^port //p')
case $attack in
    first) if [ ! -e "$folder/wanted" ]; then waits=yes; fi ;;
    always | instead) waits=yes ;;
esac
echo "$port" >"$folder/wanted.new"
chmod 644 "$folder/wanted.new"          # the job has another umask
name=wanted
if [ "$attack" = successor ]; then name=later; fi
mv "$folder/wanted.new" "$folder/$name"
if [ -n "${waits-}" ]; then
    until [ -e "$folder/taken.$port" ]; do sleep 0.01; done
fi
if [ "$attack" = instead ]; then exec sleep 600; fi
printf '%s\\n' "$config" | "$@"
'''

#: Attack -> what happens.
ATTACKS = {
    'first': 'The impostor has the first port that the store was to get.',
    'always': 'It has each port that the store was to get.',
    'instead': 'It has the port, and the store never starts.',
    'successor': 'The store is killed while it serves; the impostor takes its port.',
}

INFO = ('redis_version:8.0.0\r\nprocess_id:1\r\ntotal_commands_processed:1\r\n'
        'used_memory:1\r\n')


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


def take_ports(folder: Path) -> None:
    """Listen on each port that a store was to get, as soon as it is free."""
    taken: set[str] = set()
    while True:
        time.sleep(0.002)
        with contextlib.suppress(OSError):
            port = (folder / 'wanted').read_text().strip()
            if port not in taken:
                listener = socket.socket()
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(('127.0.0.1', int(port)))
                listener.listen(50)
                taken.add(port)
                (folder / f'taken.{port}').touch()
                Thread(target=accept, args=(listener, folder), daemon=True).start()


def accept(listener: socket.socket, folder: Path) -> None:
    """Answer all connections."""
    while True:
        connection, _ = listener.accept()
        (folder / 'met').touch()
        Thread(target=answer, args=(connection, folder), daemon=True).start()


def answer(connection: socket.socket, folder: Path) -> None:
    """Answer as a store that accepts any password."""
    with contextlib.suppress(OSError), open(folder / 'received', 'ab', 0) as file:
        while data := connection.recv(65536):
            file.write(data)
            words = data.upper()
            connection.sendall(
                f'${len(INFO)}\r\n{INFO}\r\n'.encode() if b'INFO' in words
                else b'+PONG\r\n' if b'PING' in words
                else b'*0\r\n' if b'CONFIG' in words else b'+OK\r\n')


@dataclass(frozen=True)
class Round:
    """The outcome of a job with an impostor beside it."""
    attack: str
    #: Whether the impostor had a port of the store, got a connection, got a password,
    #: and whether the job passed with it.
    taken: bool
    met: bool
    password: bool
    measured: bool
    #: The message of the job; `passed`.
    outcome: str
    #: Processes and files that were left.
    left: tuple[str, ...]


def play(folder: Path, attack: str, plan: Plan, chance: random.Random) -> Round:
    """One round.

    :arg folder: empty, and its own.
    :arg plan: of a store on the node of its clients.
    """
    ports = folder / 'ports'
    ports.mkdir()
    ports.chmod(0o777)                      # the impostor writes marks there
    folder.chmod(0o755)
    impostor = as_another_user(lambda: take_ports(ports))
    # Commands of a plan are templates.
    late = LATE.replace('{', '{{').replace('}', '}}')
    server = replace(plan.server, command=(
        'sh', '-c', late, 'sh', str(ports), attack, *plan.server.command))
    job = Job(folder / 'job', replace(plan, server=server, interface=''))
    try:
        if attack == 'successor':
            # A client has begun.
            job.until(lambda: any(job.folder.glob('run.*.0.out')))
            (ports / 'later').rename(ports / 'wanted')
            time.sleep(chance.uniform(0, 2))
            for pid in job.processes(Path(plan.server.command[0]).name + ' 127.'):
                os.kill(pid, signal.SIGKILL)
        passed = job.end() == 0
        measured = False
        if passed:
            record, _ = split_service_record((job.folder / 'out').read_text())
            measured = any((ports / f'taken.{one.port}').exists()
                           for one in record.servers) and attack != 'successor'
        left = job.leftovers()
    finally:
        job.kill()
        os.kill(impostor, signal.SIGKILL)
        os.waitpid(impostor, 0)
    received = ports / 'received'
    return Round(attack, any(ports.glob('taken.*')), (ports / 'met').exists(),
                 received.exists() and b'AUTH' in received.read_bytes().upper(),
                 measured, 'passed' if passed else ' / '.join(job.messages()),
                 tuple(map(str, left)))
