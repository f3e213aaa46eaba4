"""Files of an installation of the original."""
from __future__ import annotations

from pathlib import Path

#: The reduction server, with -c its own client; and the plugin, whose
#: transports the server calls.
SERVER = 'optcast-reduction-server'
LIBRARY = 'libnccl-net.so'
#: The program of nccl-tests that runs NCCL with the plugin.
ALL_REDUCE = 'all_reduce_perf'
#: The script that starts servers and clients.
RUN_SCRIPT = 'run.py'
#: Folders below a prefix, of an installation and of the builds.
FOLDERS = ('bin', 'lib', 'lib64', '', 'share/optcast', 'test',
           'reduction_server/target/release', 'nccl_plugin/src/.libs',
           'test/nccl-tests/build')


def program_features(source: str) -> tuple[str, ...]:
    """Features of an environment, by the source of its programs."""
    return () if source == 'embedded' else ('optcast_server',)


def find_installed_file(prefix: str, name: str) -> str:
    """Full path of one of these files; '' if the installation lacks it."""
    return next((str(path) for folder in FOLDERS
                 if (path := Path(prefix, folder, name)).is_file()), '')
