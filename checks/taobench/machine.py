"""Script that prints the machine's part of the original's report, as JSON.

Run it on the server's node: `python3 machine.py`. It needs only the standard
library.
"""
from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

CACHES = ('L1d cache', 'L1i cache', 'L2 cache', 'L3 cache')


def describe_this_machine() -> dict[str, dict[str, str]]:
    """Machine and metadata under the original's names; '' means unknown."""
    cpu = _read_lscpu()
    system = os.uname()
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    # MemTotal of the kernel, whose kB has 1024 bytes.
    memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') // 1024
    return {
        'machine': {
            'hostname': system.nodename,
            'os_release_name': release.get('PRETTY_NAME', ''),
            'os_distro': release.get('ID', ''),
            'kernel_version': system.release,
            'cpu_architecture': system.machine,
            'cpu_model': cpu.get('Model name', ''),
            'num_logical_cpus': cpu.get('CPU(s)', ''),
            'mem_total_kib': f'{memory} KiB'},
        'metadata': {name: cpu.get(name, '') for name in CACHES}}


def _read_lscpu() -> dict[str, str]:
    try:
        text = subprocess.run(
            ['lscpu'], capture_output=True, text=True, check=False,
            env={**os.environ, 'LC_ALL': 'C'}).stdout
    except OSError:
        return {}
    pairs = (line.partition(':') for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


if __name__ == '__main__':
    json.dump(describe_this_machine(), sys.stdout, indent=1)
    print()
