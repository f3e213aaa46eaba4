"""System calls that Python 3.10 does not have, and helpers around them."""
from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
#: The namespaces of a node, except pid.
NODE = NEWNS | NEWUTS | NEWIPC | NEWNET

_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1


def _call(name: str, *args: object, about: str = '') -> None:
    if getattr(_LIBC, name)(*args):
        code = ctypes.get_errno()
        raise OSError(code, f'{name}({about}): {os.strerror(code)} '
                            f'(errno {code})')


def unshare(flags: int, about: str) -> None:
    """:raises OSError: with the call and its errno in the text."""
    _call('unshare', flags, about=about)


def setns(fd: int, flags: int, about: str) -> None:
    """Enters namespaces of a file, or of a process (a pidfd)."""
    _call('setns', fd, flags, about=about)


def become_root() -> None:
    """Enters a user namespace in which only the caller is mapped, as root."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(NEWUSER, 'CLONE_NEWUSER')
    Path('/proc/self/setgroups').write_text('deny')
    Path('/proc/self/uid_map').write_text(f'0 {uid} 1')
    Path('/proc/self/gid_map').write_text(f'0 {gid} 1')


def mount(source: str, target: str, kind: str = '', flags: int = 0,
          options: str = '') -> None:
    _call('mount', source.encode(), target.encode(), kind.encode() or None,
          flags, options.encode() or None,
          about=f'{kind or "bind"} on {target}')


def bind(source: str | Path, target: str | Path) -> None:
    mount(str(source), str(target), flags=_MS_BIND | _MS_REC)


def own_mounts() -> None:
    """Makes mounts private: none propagates in or out."""
    mount('none', '/', flags=_MS_REC | _MS_PRIVATE)


def own_folders(folders: Iterable[str], shared: Iterable[str]) -> None:
    """Mounts empty folders, except for what all nodes share."""
    held = {path: os.open(path, os.O_PATH) for path in shared}
    for folder in folders:
        mount('box', folder, 'tmpfs', options='mode=1777')
    # Shared folders that are hidden now are bound again from their file
    # descriptors, parents first.
    for path, fd in sorted(held.items()):
        if any(Path(path).is_relative_to(f) for f in folders):
            os.makedirs(path, exist_ok=True)
            bind(f'/proc/self/fd/{fd}', path)
        os.close(fd)


def same_user_namespace(pid: int) -> bool:
    return os.readlink('/proc/self/ns/user') == os.readlink(
        f'/proc/{pid}/ns/user')


def enter(pid: int) -> None:
    """The namespaces of a process; its process tree from the next fork on.

    :raises ProcessLookupError: it is gone.
    """
    flags = NODE | NEWPID
    if not same_user_namespace(pid):
        flags |= NEWUSER
    fd = os.pidfd_open(pid)
    setns(fd, flags, f'namespaces of {pid}')
    os.close(fd)


def die_with_parent() -> None:
    _call('prctl', _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0,
          about='PR_SET_PDEATHSIG')


def ip(*lines: str, net: int | None = None) -> None:
    """Commands for ip(8), in this network namespace or that of a file.

    :raises OSError: with ip's own words.
    """
    done = subprocess.run(
        ['ip', '-batch', '-'], input='\n'.join(lines), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=None if net is None else lambda: setns(
            net, NEWNET, 'network'))
    if done.returncode:
        raise OSError(f'ip: {" ".join(done.stdout.split())}')


class Channel:
    """A socket pair between a parent and a forked child.

    What is received tells the sender's pid, as the receiver sees it: no
    other way leads from a new process tree to a pid that the parent knows.
    """

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair(socket.AF_UNIX,
                                                  socket.SOCK_SEQPACKET)
        self.here.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def receive(self) -> tuple[int, str]:
        """The sender's pid and its message; '' if it died."""
        words, result, _, _ = self.here.recvmsg(
            65536, socket.CMSG_SPACE(struct.calcsize('3i')))
        pid = struct.unpack('3i', result[0][2])[0] if result and words else 0
        return pid, words.decode()


def detached(child: Callable[[], None], log: Path, keep: int) -> None:
    """Forks; the child has no terminal and inherits one descriptor."""
    if os.fork():
        return
    try:
        os.setsid()
        os.chdir('/')
        os.closerange(3, keep)
        os.closerange(keep + 1, os.sysconf('SC_OPEN_MAX'))
        with open(log, 'ab', buffering=0) as out, open(os.devnull) as null:
            os.dup2(null.fileno(), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        child()
    finally:
        os._exit(1)
