"""Starts the original's server and client in a job; run as a script.

    shim.py serve LIBRARY ADDRESS PORT PROGRAM OPTION...
    shim.py ask LIBRARY SERVICE PROGRAM OPTION...

The original's server takes everybody who connects for a client, so that
nobody may try whether its port answers. It gets a port of its own; once that
is open, this script listens on the port of the job and tells those who
connect where clients are awaited. `ask` asks so all servers of the job
(SERVICE names them), waits with the other clients for the start, and becomes
the client. LIBRARY is the folder of the plugin.

The server also takes the end of one client's connection for the end of all,
and drops the last sums of those who are a little later. So `serve` carries
these connections, and the server loses them together. Few bytes go over them:
client and server connect for the data by themselves.

Where the environment names no transport it is the plugin's TCP, over the
interface that has the job's address.
"""
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

#: For a server to open its port, and for clients to end after the first.
#: Unit: s.
LIMIT = 20.0
SIOCGIFADDR = 0x8915
PR_SET_PDEATHSIG = 1


def interface(address: str) -> str:
    """The interface with this IPv4 address; '': none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            request = struct.pack('256s', name.encode())
            try:
                message = fcntl.ioctl(one.fileno(), SIOCGIFADDR, request)
            except OSError:             # it has no IPv4 address
                continue
            if socket.inet_ntoa(message[20:24]) == address:
                return name
    return ''


def environment(library: str, address: str) -> dict[str, str]:
    """For the plugin: what the environment says, else TCP."""
    # Of a panic its message is wanted, which stands last without one.
    result = {'NCCL_PLUGIN_P2P': 'socket', **os.environ,
             'RUST_BACKTRACE': '0'}
    if result['NCCL_PLUGIN_P2P'] == 'socket':
        result.setdefault('NCCL_SOCKET_IFNAME', interface(address))
    result['LD_LIBRARY_PATH'] = ':'.join(filter(None, [
        library, os.environ.get('LD_LIBRARY_PATH')]))
    return result


def listens(port: int) -> bool:
    """Whether somebody listens on this port, without asking it."""
    return any(words[1].endswith(f':{port:04X}') and words[3] == '0A'
               for line in Path('/proc/net/tcp').read_text().splitlines()[1:]
               for words in [line.split()])


def copy(source: socket.socket, sink: socket.socket) -> None:
    """What one says, to the other, until it leaves."""
    with contextlib.suppress(OSError):
        while output := source.recv(4096):
            sink.sendall(output)


def carry(client: socket.socket, server: socket.socket,
          left: threading.Barrier) -> None:
    """A client's connection; the server loses it when all clients have left,
    or LIMIT after the first, because one may hang."""
    threading.Thread(target=copy, args=(server, client), daemon=True).start()
    copy(client, server)
    with contextlib.suppress(threading.BrokenBarrierError):
        left.wait(LIMIT)
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


def relay(inner: socket.socket, server: tuple[str, int], clients: int) -> None:
    """Connects clients with their server."""
    left = threading.Barrier(clients)
    for _ in range(clients):
        client, _ = inner.accept()
        threading.Thread(target=carry, daemon=True, args=(
            client, socket.create_connection(server), left)).start()


def serve(library: str, address: str, port: str, program: str,
          *options: str) -> None:
    """Runs a server until this script is ended.

    :raises SystemExit: the server ended badly, or before it listened
    """
    libc, parent = ctypes.CDLL(None), os.getpid()

    def dies_with_us() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    with socket.create_server((address, 0)) as free:
        own = free.getsockname()[1]
    server = subprocess.Popen(
        [program, '--address', address, '--port', str(own), *options],
        env=environment(library, address), stderr=subprocess.STDOUT,
        preexec_fn=dies_with_us)
    until = time.monotonic() + LIMIT
    while not listens(own):
        if server.poll() is not None or time.monotonic() > until:
            raise SystemExit(f'{program} does not listen on {address}:{own} '
                             f'(exit status {server.poll()}): its log says '
                             'why')
        time.sleep(0.02)
    with socket.create_server((address, int(port))) as door, \
            socket.create_server((address, 0)) as inner:
        threading.Thread(target=relay, daemon=True, args=(
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


def ask(library: str, service: str, program: str, *options: str) -> None:
    """Becomes a client of all servers.

    :raises SystemExit: a server does not tell where it is, or the job ends
    """
    lines = Path(service).read_text().splitlines()
    where, own = [], ''
    for words in map(str.split, lines):
        if words[0] != 'server':
            continue
        try:
            with socket.create_connection((words[1], int(words[2])),
                                          LIMIT) as one:
                own = one.getsockname()[0]
                message = one.makefile().readline().strip()
        except OSError as err:
            raise SystemExit(f'server {words[1]}:{words[2]}: {err}') from None
        if not message.isdigit():
            raise SystemExit(f'server {words[1]}:{words[2]} does not tell '
                             'where it is: it is gone')
        where.append(f'{words[1]}:{message}')
    if 'gate' in lines:
        os.write(0, b'ready\n')
        output = b''
        while not output.endswith(b'\n'):
            word = os.read(0, 64)
            if not word:
                raise SystemExit('the gate was closed before the start')
            output += word
    os.dup2(2, 1)                       # its log, and its panic below it
    os.execve(program, [program, '-c', '-a', ','.join(where), *options],
              environment(library, own))


if __name__ == '__main__':
    (serve if sys.argv[1] == 'serve' else ask)(*sys.argv[2:])
