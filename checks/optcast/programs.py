"""Where an installation of the original has what is needed of it."""
from __future__ import annotations

from pathlib import Path

#: Reduction server, and with -c its own client; and the plugin, whose
#: transports it calls.
SERVER = 'optcast-reduction-server'
LIBRARY = 'libnccl-net.so'
#: Below a prefix: installed, and as its builds leave them.
FOLDERS = ('bin', 'lib', 'lib64', '', 'reduction_server/target/release',
           'nccl_plugin/src/.libs')


def offered(source: str) -> tuple[str, ...]:
    """Features of an environment, by where its programs come from."""
    return () if source == 'embedded' else ('optcast_server',)


def found(prefix: str, name: str) -> str:
    """Full path of SERVER or LIBRARY; '': the installation lacks it."""
    return next((str(path) for folder in FOLDERS
                 if (path := Path(prefix, folder, name)).is_file()), '')
