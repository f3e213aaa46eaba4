"""A certificate for one run, created with the openssl command."""
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path


class NoCertificates(Exception):
    """A certificate cannot be created; one line with the reason."""


def make_certificate(folder: Path, addresses: Iterable[str]) -> None:
    """Write `server.crt` (self-signed) and `server.key` to a folder.

    :raises NoCertificates: openssl is missing or fails.
    """
    if not shutil.which('openssl'):
        raise NoCertificates('TLS needs the command openssl, which is not on '
                             'PATH: install it, or do not request TLS')
    names = ','.join(f'IP:{address}' for address in sorted(set(addresses)))
    done = subprocess.run(
        ['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt',
         'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2',
         '-subj', '/CN=plumbline run', '-addext', f'subjectAltName={names}',
         '-keyout', 'server.key', '-out', 'server.crt'],
        cwd=folder, text=True, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise NoCertificates('openssl cannot create a certificate: '
                             f'{done.stderr.strip().splitlines()[-1:]}')
