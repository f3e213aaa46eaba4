"""A certificate for one run, made by the openssl command."""
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path


class NoCertificates(Exception):
    """Why there is none; one line."""


def make(folder: Path, addresses: Iterable[str]) -> None:
    """Writes `server.crt` (self-signed) and `server.key` to a folder.

    :raises NoCertificates: openssl is missing or refuses.
    """
    if not shutil.which('openssl'):
        raise NoCertificates('TLS was asked for and the command openssl is '
                             'not on PATH: install it, or ask for no TLS')
    names = ','.join(f'IP:{address}' for address in sorted(set(addresses)))
    done = subprocess.run(
        ['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt',
         'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2',
         '-subj', '/CN=plumbline run', '-addext', f'subjectAltName={names}',
         '-keyout', 'server.key', '-out', 'server.crt'],
        cwd=folder, text=True, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise NoCertificates('openssl makes no certificate: '
                             f'{done.stderr.strip().splitlines()[-1:]}')
