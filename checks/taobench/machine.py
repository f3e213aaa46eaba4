"""Script that prints the machine's part of the original's report, as JSON.

Run it on the server's node: `python3 machine.py`. It needs only the standard
library.
"""
from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

CACHES = ('L1d cache', 'L1i cache', 'L2 cache', 'L3 cache')


def describe_machine(node: str, kernel: str, architecture: str, lscpu: str,
                     release: str, meminfo: str) -> dict[str, dict[str, str]]:
    """Machine and metadata under the original's names; '' means unknown.

    :param lscpu: output of lscpu
    :param release: text of /etc/os-release
    :param meminfo: text of /proc/meminfo
    """
    cpu = dict(_parse_pairs(lscpu, ':'))
    system = dict(_parse_pairs(release, '='))
    # The kernel's kB has 1024 bytes.
    memory = dict(_parse_pairs(meminfo, ':')).get('MemTotal', '')
    return {
        'machine': {
            'hostname': node,
            'os_release_name': _strip_quotes(system.get('PRETTY_NAME', '')),
            'os_distro': _strip_quotes(system.get('ID', '')),
            'kernel_version': kernel,
            'cpu_architecture': architecture,
            'cpu_model': cpu.get('Model name', ''),
            'num_logical_cpus': cpu.get('CPU(s)', ''),
            'mem_total_kib': memory.replace('kB', 'KiB')},
        'metadata': {name: cpu.get(name, '') for name in CACHES}}


def _parse_pairs(text: str, sign: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, result, value = line.partition(sign)
        if result:
            yield name.strip(), value.strip()


def _strip_quotes(value: str) -> str:
    """Value of a shell assignment without quotes."""
    try:
        return ' '.join(shlex.split(value))
    except ValueError:
        return value


def _read_text(path: str) -> str:
    try:
        with open(path, encoding='utf-8', errors='replace') as stream:
            return stream.read()
    except OSError:
        return ''


def describe_this_machine() -> dict[str, dict[str, str]]:
    """Description of this machine."""
    try:
        lscpu = subprocess.run(
            ['lscpu'], capture_output=True, text=True, check=False,
            env={**os.environ, 'LC_ALL': 'C'}).stdout
    except OSError:
        lscpu = ''
    system = os.uname()
    return describe_machine(system.nodename, system.release, system.machine, lscpu,
                            _read_text('/etc/os-release'), _read_text('/proc/meminfo'))


if __name__ == '__main__':
    json.dump(describe_this_machine(), sys.stdout, indent=1)
    print()
