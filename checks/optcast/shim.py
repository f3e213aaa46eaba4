"""Script that starts the original's server and client in a job.

    shim.py serve LIBRARY ADDRESS PORT PROGRAM OPTION...
    shim.py ask LIBRARY SERVICE PROGRAM OPTION...
    shim.py nccl LIBRARY SERVICE LOG PROGRAM OPTION...

The original's server regards every connection as a client, so its port must
not be tested by a connection. The server gets a port of its own. When that
port is open, this script listens on the port of the job and sends everyone
who connects the port for clients. `run_client` asks all servers of the job (SERVICE
names them), waits with the other clients for the start, and becomes the
client. LIBRARY is the folder of the plugin.

When one client closes its connection, the server ends all of them and drops
the last sums of slower clients. So `run_server` relays these connections and closes
them on the server's side together. They carry few bytes; client and server
have separate connections for the data.

If the environment names no transport, the plugin uses TCP over the interface
that has the job's address.
"""
from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

if __name__ == '__main__':              # the suite is not on the path
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from checks.services.network import find_interface, has_listener
from checks.services.processes import set_parent_death_signal

#: Time limit for a server to open its port, and for the other clients to end
#: after the first one. Unit: s.
LIMIT = 20.0
#: Variables in which launchers pass the number of a rank. Slurm's is last,
#: because mpirun in a batch job passes on the variable of the script.
RANK = ('OMPI_COMM_WORLD_RANK', 'PMI_RANK', 'PALS_RANKID', 'SLURM_PROCID')


def plugin_environment(library: str, address: str) -> dict[str, str]:
    """Environment of the plugin: as in the job, by default with TCP."""
    # Without a backtrace the message of a panic is the last line.
    result = {'NCCL_PLUGIN_P2P': 'socket', **os.environ,
              'RUST_BACKTRACE': '0'}
    if result['NCCL_PLUGIN_P2P'] == 'socket':
        result.setdefault('NCCL_SOCKET_IFNAME', find_interface(address))
    result['LD_LIBRARY_PATH'] = ':'.join(filter(None, [
        library, os.environ.get('LD_LIBRARY_PATH')]))
    return result


def copy_socket_data(source: socket.socket, sink: socket.socket) -> None:
    """Copy data from source to sink until source is closed."""
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            sink.sendall(data)


def relay_client(client: socket.socket, server: socket.socket,
                 left: threading.Barrier) -> None:
    """Relay a client's connection.

    The server's side is closed when all clients have left, or LIMIT after the
    first one left, because a client may hang.
    """
    threading.Thread(
        target=copy_socket_data, args=(server, client), daemon=True
    ).start()
    copy_socket_data(client, server)
    with contextlib.suppress(threading.BrokenBarrierError):
        left.wait(LIMIT)
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


def accept_and_relay_clients(
    inner: socket.socket, server: tuple[str, int], clients: int
) -> None:
    """Accept the clients and connect each of them with the server."""
    left = threading.Barrier(clients)
    for _ in range(clients):
        client, _ = inner.accept()
        threading.Thread(target=relay_client, daemon=True, args=(
            client, socket.create_connection(server), left)).start()


def run_server(library: str, address: str, port: str, program: str,
               *options: str) -> None:
    """Run a server until this script is ended.

    :raises SystemExit: the server failed, or ended before it listened
    """
    parent = os.getpid()

    def end_with_parent() -> None:
        set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    with socket.create_server((address, 0)) as free:
        own = free.getsockname()[1]
    server = subprocess.Popen(
        [program, '--address', address, '--port', str(own), *options],
        env=plugin_environment(library, address), stderr=subprocess.STDOUT,
        preexec_fn=end_with_parent)
    until = time.monotonic() + LIMIT
    while not has_listener(own):
        if server.poll() is not None or time.monotonic() > until:
            raise SystemExit(f'{program} does not listen on {address}:{own} '
                             f'(exit status {server.poll()}): see its log for '
                             'the reason')
        time.sleep(0.02)
    with socket.create_server((address, int(port))) as door, \
            socket.create_server((address, 0)) as inner:
        threading.Thread(target=accept_and_relay_clients, daemon=True, args=(
            inner, (address, own),
            int(options[options.index('--nrank') + 1]))).start()
        door.settimeout(0.2)
        while not server.poll():        # 0: its clients have left
            try:
                guest, _ = door.accept()
            except TimeoutError:
                continue
            with guest:
                guest.sendall(f'{inner.getsockname()[1]}\n'.encode())
    raise SystemExit(f'{program} ended with status {server.poll()}')


def find_client_ports(service: str) -> tuple[list[str], str]:
    """Addresses of all servers with their ports for clients, and the address
    of this node.

    :raises SystemExit: a server does not send its port
    """
    where, own = [], ''
    for words in map(str.split, Path(service).read_text().splitlines()):
        if words[0] != 'server':
            continue
        try:
            with socket.create_connection((words[1], int(words[2])),
                                          LIMIT) as connection:
                own = connection.getsockname()[0]
                server_port = connection.makefile().readline().strip()
        except OSError as err:
            raise SystemExit('cannot connect to the server '
                             f'{words[1]}:{words[2]}: {err}') from None
        if not server_port.isdigit():
            raise SystemExit(f'server {words[1]}:{words[2]} did not send its '
                             'port for clients: it has ended')
        where.append(f'{words[1]}:{server_port}')
    return where, own


def run_nccl(library: str, service: str, log: str, program: str, *options: str
             ) -> None:
    """Become a rank of nccl-tests whose NCCL uses all servers of the job.

    The first rank writes the requests of the plugin into the log.

    :raises SystemExit: a server does not send its port, or the launcher does
        not pass the number of the rank
    """
    where, own = find_client_ports(service)
    rank = next((os.environ[name] for name in RANK if name in os.environ), '')
    if not rank:
        raise SystemExit('the launcher does not pass the number of the rank: '
                         f'none of {", ".join(RANK)} is set')
    trace = {'NCCL_DEBUG': 'TRACE', 'NCCL_DEBUG_FILE': log} if rank == '0' else {}
    os.execve(program, [program, *options], {
        **plugin_environment(library, own), **trace,
        'OPTCAST_REDUCTION_SERVERS': ','.join(where)})


def run_client(library: str, service: str, program: str, *options: str) -> None:
    """Become a client of all servers.

    :raises SystemExit: a server does not send its port, or the job ends
    """
    where, own = find_client_ports(service)
    if 'gate' in Path(service).read_text().splitlines():
        print('ready', file=sys.stderr, flush=True)
        if not sys.stdin.readline():
            raise SystemExit('standard input was closed before the start')
    os.dup2(2, 1)                       # the log, and below it any panic
    os.execve(program, [program, '-c', '-a', ','.join(where), *options],
              plugin_environment(library, own))


if __name__ == '__main__':
    action = sys.argv[1]
    if action == 'nccl':
        run_nccl(*sys.argv[2:])
    (run_server if action == 'serve' else run_client)(*sys.argv[2:])
