"""Commands that describe a machine, and parsers of their output.

Every command goes through :class:`Machine`, which can also read recorded
output from a folder: one file per command, named as in COMMANDS with .txt
(sinfo.txt, nvidia-smi.txt, ...). If a file is missing, the command counts as
not found.
"""
from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.machine.software import identify_mpi
from cli.setup.venv import WORK
from cli.site import nodes
from config import strict

_DATA = strict.load_trusted_yaml(Path(__file__).with_suffix('.yaml'))

#: Name -> command. The file of a recorded output has the same name.
COMMANDS: dict[str, list[str]] = {
    'sinfo': nodes.SINFO,
    'reframe': [str(Path(sys.executable).with_name('reframe')),
                '--detect-host-topology'],
    **{name: ['sh', '-c', text] if '\n' in text else shlex.split(text)
       for name, text in _DATA['commands'].items()}}
#: Time limit of a command. Unit: s.
LIMIT = 30
#: The plugin with which Slurm knows the switches.
TREE = 'topology/tree'
#: Module -> flavour of its MPI.
MPI_MODULES: dict[str, str] = _DATA['mpi_modules']


@dataclass
class Machine:
    """Output of commands, from this machine or recorded."""
    recorded: Path | None = None
    #: Commands with output.
    answered: list[str] = field(default_factory=list)
    #: Command -> the reason why it had no output.
    silent: dict[str, str] = field(default_factory=dict)

    def command_output(self, name: str, *more: str) -> str:
        """A command's output; empty if it failed: `silent` has the reason."""
        command, limit = COMMANDS[name], LIMIT
        if not self.recorded:
            text, why = _run_with_timeout([*command, *more], limit)
        elif (path := self.recorded / f'{name}.txt').exists():
            text, why = _run_with_timeout(['cat', str(path)], limit)
        else:
            text, why = '', 'not found'
        if text.strip():
            self.answered.append(name)
        else:
            self.silent[name] = why
        return text


def _run_with_timeout(command: list[str], limit: int) -> tuple[str, str]:
    """The output of a command, and the reason if it is empty."""
    try:
        process = subprocess.Popen(
            command, text=True, errors='replace', stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    except FileNotFoundError:
        return '', 'not found'
    except OSError as err:
        return '', err.strerror or str(err)
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return '', f'no output within {limit} s'
    finally:
        if process.returncode is None:
            # Also what a shell has started, which would keep the pipes open.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    words = errors.strip().splitlines() or ['no output']
    return output, 'not found' if process.returncode == 127 else words[-1][:120]


def leading_number(text: str) -> int:
    """The number that a text begins with; 0 for N/A and other words."""
    match = re.match(r'\d+', text)
    return int(match[0]) if match else 0


# --------------------------------------------------------------- partitions

#: A slice of a GPU (MIG), in the name of a GRES: nvidia_a100_1g.10gb.
MIG = re.compile(r'\dg[._]?\d+gb|(?<![a-z])mig', re.I)


def parse_scontrol_pairs(text: str, key: str) -> dict[str, dict[str, str]]:
    """Name -> its `Key=value` pairs, from `scontrol --oneliner show`.

    :param key: of the name: NodeName, PartitionName or SwitchName
    """
    # Without --oneliner, as a person may record it, a row has several lines.
    rows = [dict(re.findall(r'(\w+)=(\S*)', row))
            for row in re.split(rf'(?m)^(?={key}=)', text)]
    return {row[key]: row for row in rows if key in row}


def parse_network_switches(text: str) -> dict[str, dict[str, str]]:
    """Switch -> {nodes: LIST} or {switches: LIST}, from `scontrol show
    topology`; empty if Slurm has no tree.

    For a switch above other switches Slurm lists the nodes, too. They are left
    out, because they follow from the tree.
    """
    switch_rows = {}
    for name, row in parse_scontrol_pairs(text, 'SwitchName').items():
        for key in ('Switches', 'Nodes'):
            if row.get(key, '(null)') not in ('', '(null)'):
                switch_rows[name] = {key.lower(): row[key]}
                break
    return switch_rows


def parse_slurm_config(text: str) -> dict[str, str]:
    """`scontrol show config` as a mapping; empty values are left out."""
    return {key: value for key, value in re.findall(
        r'^(\w+)\s+= (.*?)\s*$', text, re.M)
        if value.lower() not in ('', '(null)', 'none', '0')}


# ------------------------------------------------------------------ devices

@dataclass(frozen=True)
class Gpus:
    """The GPUs of a node."""
    vendor: str                 # nvidia, amd, or empty: unknown
    model: str
    number: int
    source: str


_NVIDIA = re.compile(r'[abhklpvt]\d|m\d0|g[bh]\d|rtx|gtx|quadro|tesla|titan|geforce|'
                     r'nvidia|\d0[5-9]0|\d{3,4}(gtx|ti)|kepler|maxwell|pascal|volta|'
                     r'turing|ampere|hopper|blackwell', re.I)
_AMD = re.compile(r'(mi\d|amd|instinct|radeon|gfx)', re.I)
#: Command -> vendor, and the line of a GPU with its model. Parts of a GPU
#: (MIG) are not counted; an MI250X counts as two.
SMI = {'nvidia-smi': ('nvidia', r'^GPU \d+: (?:NVIDIA )?(.+?) \(UUID'),
       'rocm-smi': ('amd', r'^GPU\[\d+\]\s*: Card series:\s*(?:AMD )?'
                           r'(.+?)\s*$')}


def find_other_scheduler(paths: str) -> tuple[str, str]:
    """A scheduler that is not read, in words and by its name in ReFrame; '': none.

    :param paths: of the commands of schedulers
    """
    for path in paths.split():
        if Path(path).name in _DATA['schedulers']:
            words, name = _DATA['schedulers'][Path(path).name]
            return f'{words} ({path})', name
    return '', ''


def parse_gres_gpus(gres: str, source: str = 'sinfo') -> Gpus | None:
    """The GPUs of a GRES such as `gpu:h100:8(S:0-1),nvme:1`, or None. The vendor is
    empty if the model does not identify it.

    >>> parse_gres_gpus('gpu:h100:8(S:0-1)').number
    8
    """
    models = nodes.gpu_models_of_gres(gres)
    model = '+'.join(filter(None, models))
    number = sum(models.values())
    vendor = 'amd' if _AMD.match(model) else 'nvidia' * bool(_NVIDIA.match(model))
    return Gpus(vendor, model, number, source) if number else None


def parse_smi_gpus(command: str, text: str) -> Gpus | None:
    """The GPUs in the output of a vendor's command, which is a key of SMI."""
    kind, line = SMI[command]
    models = re.findall(line, text, re.M | re.I)
    return Gpus(kind, models[0], len(models), command) if models else None


@dataclass(frozen=True)
class Nic:
    """A port of a network card."""
    model: str
    layer: str                  # InfiniBand, Ethernet, Slingshot
    rate: float                 # Gb/s; 0: unknown
    source: str


def parse_nics(text: str) -> list[Nic]:
    """The ports that MPI would use, from lines `FILE:VALUE` of /sys: active ones of
    /sys/class/infiniband, and Slingshot cards (/sys/class/net/hsn*, in Mb/s). Ethernet
    counts only if there are no others."""
    files = dict(line.split(':', 1) for line in text.splitlines() if ':' in line)
    nics = []
    for path, value in sorted(files.items()):
        if path.endswith('/state') and 'ACTIVE' in value:
            port = path.removesuffix('/state')
            kind = files.get(port.split('/ports/')[0] + '/hca_type', '')
            nics.append(Nic(
                _DATA['cards'].get(kind, kind or port.split('/')[4]),
                files.get(f'{port}/link_layer', ''),
                leading_number(files.get(f'{port}/rate', '')), 'rdma'))
        elif re.fullmatch(r'/sys/class/net/hsn\d+/speed', path):
            nics.append(Nic('Slingshot (cxi)', 'Slingshot',
                            leading_number(value) // 1000, 'rdma'))
    return [nic for nic in nics if nic.layer != 'Ethernet'] or nics


# ---------------------------------------------------------------- software

def parse_processor(text: str) -> dict[str, Any]:
    """The processors as ReFrame detects them: num_cpus, num_sockets,
    topology and more; empty if it detects nothing."""
    try:
        data = json.loads(text)
        return data if data['num_cpus'] else {}
    except (ValueError, KeyError, TypeError):
        return {}


def parse_modules_system(text: str) -> str:
    """ReFrame's name of the modules system, from `module --version`."""
    if 'Modules based on Lua' in text:
        return 'lmod'
    match = re.search(r'^Modules Release (\d+)', text, re.M)
    return ('tmod4' if int(match[1]) >= 4 else 'tmod') if match else 'nomod'


def _mpi_word(module: str) -> str:
    """The key of MPI_MODULES in the name of a module; '': it is no MPI.

    >>> [_mpi_word(name) for name in ('OpenMPI/4.1.5-GCC-12.3.0', 'mpi/openmpi-x86_64')]
    ['openmpi', 'openmpi']
    """
    first, *more = module.lower().split('/')
    word = more[0] if first == 'mpi' and more else first
    return next((name for name in (word, re.sub(r'(\d+|-(x86_64|aarch64))$', '', word))
                 if name in MPI_MODULES), '')


def _version_in_module(module: str) -> str:
    """The version in the name of a module: 4.1.5 of openmpi/gcc/64/4.1.5; '': none."""
    numbers = re.findall(r'/(\d+(?:\.\d+)*)', module)
    return next((one for one in numbers if '.' in one), numbers[0] if numbers else '')


@dataclass(frozen=True)
class Mpi:
    """An MPI that `plumb site new` found, in PATH (with its prefix) or in modules;
    `source` says where."""
    flavour: str                # openmpi, mpich, intelmpi, cray-mpich
    version: str
    cc: str
    modules: tuple[str, ...]
    prefix: str
    source: str


def parse_mpi_of_path(banner: str, paths: str) -> Mpi | None:
    """The MPI of PATH, but not the wheel that the suite installed."""
    flavour, version = identify_mpi(banner)
    there = {Path(p).name: Path(p) for p in paths.splitlines()}
    if flavour == 'unknown' or not {'mpicc', 'mpirun'} <= set(there):
        return None
    prefix = there['mpicc'].parent.parent
    if prefix.is_relative_to(WORK):
        return None
    return Mpi(flavour, version, 'mpicc', (), str(prefix), 'mpirun')


def find_mpi_in_modules(names: Sequence[str], source: str) -> Mpi | None:
    """The MPI that modules provide; None: none of them is a known MPI."""
    for name in names:
        word = _mpi_word(name)
        if flavour := MPI_MODULES.get(word):
            # HPC-X and MVAPICH have other versions than their Open MPI and MPICH.
            return Mpi(flavour, '' if word in _DATA['own_versions'] else
                       _version_in_module(name), 'cc' if flavour == 'cray-mpich'
                       else 'mpicc', tuple(names), '', source)
    return None
