"""plumb site new: a site's folder from what the machine tells.

Found (cli/detect.py), asked, shown, and only then written: the folder
appears as a whole or not at all.
"""
from __future__ import annotations

import argparse
import ast
import datetime
import functools
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from checks.lib import hardware
from checks.spack import stack
from cli import detect, nodes, sites
from cli.detect import Gpus, Machine, Mpi, Nic
from cli.nodes import Partition
from cli.setup import ROOT, SetupError, say
from cli.spack_yaml import near
from config import topology
from config.launch import LAUNCH, SPREAD

#: Begins a comment on what a person has to write; `to_finish` finds them.
FINISH = sites.FINISH

#: What srun is told of the MPI where the cluster has no default.
MPI_TYPE = {'openmpi': 'pmix', 'mpich': 'pmi2', 'intelmpi': 'pmi2'}

#: An MPI's flavour -> Spack's name of it.
SPACK_MPI = {'cray': 'cray-mpich', 'openmpi': 'openmpi', 'mpich': 'mpich'}


@dataclass
class Found:
    """All that was detected."""
    machine: Machine
    host: str
    partitions: list[Partition]
    nodes: dict[str, dict[str, str]]
    config: dict[str, str]
    cpu: detect.Cpu | None
    gpus: Gpus | None
    nics: list[Nic]
    modules_system: str
    mpis: list[Mpi]
    externals: dict[str, dict]
    upstreams: dict[str, dict]
    #: Partition -> what Slurm says of it (`detect.rules`).
    rules: dict[str, dict[str, str]] = field(default_factory=dict)
    switches: dict[str, dict[str, str]] = field(default_factory=dict)
    #: NICs that the catalogue lacks: name -> row.
    own_nics: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def mpi(self) -> Mpi | None:
        """The one that Spack's stacks and the launcher go by."""
        return self.mpis[0] if self.mpis else None

    @property
    def host_kind(self) -> tuple:
        """The kind of node that this is; nodes like it have its devices."""
        return next((n.kind for p in self.partitions for n in p.nodes
                     if n.name == self.host), ())


@dataclass
class Choices:
    """What was asked, or taken from options."""
    partitions: list[Partition]
    launcher: str
    #: (partition, or '' for all of them; option)
    access: list[tuple[str, str]]
    stacks: list[str]

    def access_of(self, partition: str) -> list[str]:
        return [option for name, option in self.access
                if name in ('', partition)]


def look(recorded: Path | None, modules: list[str]) -> Found:
    """Asks the machine."""
    if recorded and not recorded.is_dir():
        raise SetupError(f'--recorded {recorded}: no such folder')
    machine = Machine(recorded)
    tell = machine.tell
    parts = nodes.partitions(tell('sinfo'))
    # One node of each partition stands for all of its kind.
    names = ','.join(dict.fromkeys(p.node.name for p in parts))
    slurm = bool(parts)
    rdma = tell('rdma')
    nics = [*(detect.ibstat_nics(tell('ibstat')) or detect.sysfs_nics(rdma)),
            *detect.fabric_nics(tell('fi_info'), rdma)]
    avail = tell('modules')
    paths = tell('paths')
    mpi = (detect.mpi_of_path(tell('mpirun'), paths)
           or detect.mpi_of_modules(detect.modules(avail)))
    mpis = ([chosen_modules(text, mpi) for text in modules]
            or ([mpi] if mpi else []))
    return Found(
        machine, tell('hostname').strip().split('.')[0], parts,
        detect.node_facts(tell('scontrol-node', names)) if slurm else {},
        detect.slurm_config(tell('scontrol-config')) if slurm else {},
        detect.cpu(tell('lscpu')),
        detect.nvidia_gpus(tell('nvidia-smi'))
        or detect.amd_gpus(tell('rocm-smi')),
        detect.fabric(nics), detect.modules_system(avail), mpis,
        externals(machine, mpis, paths),
        detect.spack_upstreams(tell('upstreams')),
        detect.rules(tell('scontrol-partition')) if slurm else {},
        detect.switches(tell('scontrol-topology')) if slurm else {})


def chosen_modules(text: str, found: Mpi | None) -> Mpi:
    """The MPI of modules that were named by hand."""
    names = tuple(text.split())
    for name in names:
        flavour = detect.MPI_MODULES.get(name.split('/')[0])
        if flavour:
            return Mpi(flavour, name.partition('/')[2],
                       'cc' if flavour == 'cray' else 'mpicc', names, '',
                       'option --modules')
    if found and not found.modules:
        return Mpi(found.flavour, found.version, found.cc, names,
                   found.prefix, found.source)
    raise SetupError(f'--modules {text!r}: none of them is an MPI that is '
                     f'known ({", ".join(detect.MPI_MODULES)})')


def environment_names(mpis: list[Mpi]) -> list[str]:
    """What their environments are called: by the MPI; where one comes twice
    by its version too; where that is the same, by all of its modules.

    :raises SetupError: two of them are the same modules.
    """
    def names_of(flavour: str) -> Iterator[str]:
        mine = [mpi for mpi in mpis if mpi.flavour == flavour]
        schemes: list[list[Sequence[str]]] = [
            [()] * len(mine), [(mpi.version,) for mpi in mine],
            [mpi.modules for mpi in mine]]
        for words in schemes:
            names = [re.sub('[^A-Za-z0-9_-]+', '-', '-'.join(
                [flavour, *more])).strip('-') for more in words]
            if len(set(names)) == len(names):
                return iter(names)
        raise SetupError(f'--modules: the same {flavour} twice')

    names = {mpi.flavour: names_of(mpi.flavour) for mpi in mpis}
    return [next(names[mpi.flavour]) for mpi in mpis]


def externals(machine: Machine, mpis: list[Mpi],
              paths: str) -> dict[str, dict]:
    """`packages:` for Spack: gcc always, or nothing at all."""
    found = detect.spack_packages(machine.tell('spack'))
    packages: dict[str, dict] = {
        name: {'externals': entry['externals']}
        for name, entry in found.items()
        if isinstance(entry, dict) and entry.get('externals')}
    gcc = detect.gcc_external(machine.tell('gcc'), paths)
    good = [e for e in packages.get('gcc', {}).get('externals', [])
            if e.get('extra_attributes', {}).get('compilers')]
    if good or gcc:
        packages['gcc'] = {'externals': good or [gcc]}
    else:
        return {}
    for mpi in mpis:
        name = SPACK_MPI.get(mpi.flavour, '')
        if name and name not in packages and mpi.version:
            place: dict[str, Any] = {'prefix': mpi.prefix} if mpi.prefix \
                else {'modules': list(mpi.modules)}
            packages[name] = {'externals': [
                {'spec': f'{name}@{mpi.version}', **place}]}
        if name in packages:
            packages[name]['buildable'] = False
    first = SPACK_MPI.get(mpis[0].flavour, '') if mpis else ''
    packages['mpi'] = {'require': [first or 'openmpi']}
    return dict(sorted(packages.items()))


# ----------------------------------------------------------------- choices

@functools.cache
def words_of_checks() -> set[str]:
    """Words in the checks' strings: no place may be called by one."""
    words: set[str] = set()
    for path in (ROOT / 'checks').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= set(re.split(r'[\s:+%|,]+', node.value))
    return words


def check_name(name: str, folder: Path) -> None:
    """:raises SetupError: no name for a site, or it is taken."""
    if not re.fullmatch('[a-z][a-z0-9-]*', name):
        raise SetupError(f'{name!r} is no name of a site: a-z, 0-9 and -, '
                         'a letter first')
    if folder.exists() or folder.is_symlink():
        raise SetupError(f'{folder}: there already; choose another name or '
                         '--path, nothing is ever overwritten')
    if name in words_of_checks():
        raise SetupError(f'{name!r} is a word that the checks use; a check '
                         'must name no place, so choose another, e.g. '
                         f'{name}-1')


def pick(name: str, known: list[str], what: str) -> str:
    if name not in known:
        raise SetupError(f'unknown {what} {name!r}: ' + near(
            name, known, f'there are {", ".join(known) or "none"}'))
    return name


def access_option(text: str, wanted: list[str], names: list[str]
                  ) -> tuple[str, str]:
    """`--qos=x` is for all partitions, `P:--qos=x` for the partition P.

    :arg wanted: partitions that are taken.
    :arg names: those that there are.
    """
    if text.startswith('-'):
        return '', text
    name, colon, option = text.partition(':')
    if not colon or not option.startswith('-'):
        raise SetupError(f'--access {text!r}: expected an option of sbatch, '
                         'such as --qos=x, or PARTITION:--qos=x')
    pick(name, names, 'partition')
    if name not in wanted:
        raise SetupError(f'--access {text!r}: partition {name} is left out; '
                         f'--partition {name} takes it')
    return name, option


def choose(args: argparse.Namespace, found: Found,
           ask: Callable[[str, str], str]) -> Choices:
    """Options before answers before what was found."""
    names = [p.name for p in found.partitions]
    usual_ones = [p.name for p in detect.distinct(found.partitions)]
    wanted = args.partition or (names and ask(
        f'Slurm partitions (of {" ".join(names)})',
        ' '.join(usual_ones)).split()) or []
    for name in wanted:
        pick(name, names, 'partition')
    flavours = {mpi.flavour for mpi in found.mpis} or {'openmpi'}
    usual = ('mpirun' if flavours == {'openmpi'} or not names else 'srun')
    launcher = args.launcher or pick(
        ask('Launcher, srun or mpirun', usual), ['srun', 'mpirun'],
        'launcher')
    if launcher == 'mpirun' and len(flavours) > 1:
        raise SetupError(f'{" and ".join(sorted(flavours))} have an mpirun '
                         'each, and a partition has one launcher: --launcher '
                         'srun starts both')
    access = [access_option(text, wanted, names) for text in
              args.access or (names and ask(
                  'Options that jobs need, such as --account=x, or of one '
                  'partition P:--qos=x', '').split()) or []]
    known = stack.names()
    stacks = args.stack or (known and ask(
        f'Stacks that Spack installs (of {" ".join(known)})',
        '').split()) or []
    for name in stacks:
        pick(name, known, 'stack')
    if stacks and not found.externals:
        raise SetupError('a stack needs a gcc for Spack, and none was found: '
                         'load a compiler module, or leave out --stack')
    return Choices([p for p in found.partitions if p.name in wanted],
                   launcher, access, stacks)


# -------------------------------------------------------------- the files

def quoted(value: object) -> str:
    """A value as Python; `*name` stays a name."""
    if isinstance(value, list):
        return '[' + ', '.join(map(quoted, value)) + ']'
    if isinstance(value, str) and value.startswith('*'):
        return value
    return repr(value)


def lines(indent: int, text: str, items: list[object]) -> list[str]:
    """`'key': [a, b, c],` in lines that fit once indented by 12 more."""
    start = ' ' * indent + text + '['
    done, line = [], start
    for n, item in enumerate(items):
        word = quoted(item) + (', ' if n + 1 < len(items) else '],')
        if len(line) + len(word.rstrip()) > 67 and line != start:
            done.append(line.rstrip())
            line = ' ' * len(start)
        line += word
    return [*done, line if items else start + '],']


def comment(indent: int, text: str) -> list[str]:
    """A comment in lines that fit once indented by 12 more."""
    return textwrap.wrap(text, 67, initial_indent=' ' * indent + '# ',
                         subsequent_indent=' ' * indent + '# ',
                         break_long_words=False, break_on_hyphens=False)


def finish(indent: int, text: str) -> list[str]:
    """A comment on what a person has to write below it."""
    return comment(indent, FINISH + text)


def counted(number: int, what: str) -> str:
    return f'{number} {what}{"" if number == 1 else "s"}'


def partition_lines(name: str, part: Partition, found: Found,
                    choices: Choices, environs: list[str]) -> list[str]:
    """One partition, with the command that each fact comes from."""
    label = f'{name}-{re.sub("[^A-Za-z0-9_-]", "-", part.name)}'
    node, facts = part.node, found.nodes.get(part.node.name, {})
    cpus = detect.number(facts.get('CPUEfctv', '')) or node.cpus
    here = found.host_kind == node.kind
    gpus = gpus_of(part, found.gpus if here else None)
    text = comment(0, f'sinfo: {counted(len(part.nodes), "node")} of '
                   f'{counted(len(part.kinds), "kind")}')
    if len(part.kinds) > 1:
        text += comment(0, f'The most common kind ({part.kinds[0][1]} nodes) '
                        'is described: choose it in access, with '
                        '--constraint or --exclude.')
    text += ['{', f"    'name': '{label}',",
             f"    'scheduler': '{scheduler(found)}',",
             "    'sched_options': {",
             "        'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},",
             f"    'launcher': '{choices.launcher}',"]
    own = choices.access_of(part.name)
    if detect.enforced(found.config):
        text += comment(4, f'Enforced: {detect.enforced(found.config)}')
    for option, allowed in still_needed(part, found, own).items():
        text += finish(4, f'this partition takes {option}={allowed} alone: '
                       'write the one that you may use in access')
    # Whole nodes, and a CPU a core: else ranks land on hyperthreads.
    text += lines(4, "'access': ", [
        f'--partition={part.name}', '--exclusive',
        *(['--hint=nomultithread'] if node.threads > 1 else []), *own])
    if gpus:
        text += ["    'resources': [{'name': '_rfm_gpu', 'options': [",
                 "        '--gpus-per-node={num_gpus_per_node}']}],"]
    text += lines(4, "'environs': ", list(environs))
    text += ["    'max_jobs': 4,",
             *comment(4, f'sinfo: jobs of up to {counted(part.jobs, "node")} '
                      'now')]
    text += partition_features(part, gpus)
    text += comment(4, (
        f'scontrol show node {node.name}' if facts else 'sinfo') +
        f': {node.sockets} x {node.cores} cores x {node.threads} threads' +
        (f', {cpus} of {node.cpus} CPUs for jobs' if cpus != node.cpus
         else ''))
    text += processor(4, cpus, max(1, node.threads), node.sockets)
    nics = found.nics if here else []
    if not nics:
        text += finish(4, 'the network cards were not seen: run it on a node '
                       f'(srun -p {part.name} -N1 --pty ./plumb site new '
                       '...), or write them among the devices')
    text += devices(gpus, nics, found)
    return [*text, '},']


def still_needed(part: Partition, found: Found, access: list[str]
                 ) -> dict[str, str]:
    """Options that a partition wants of a job, and nobody gave one of the
    values that it takes -> these values."""
    short = {'-A': '--account=', '-q': '--qos='}
    given = {short.get(option[:2], option[:2]) + option[2:]
             for option in access}
    return {option: allowed for option, allowed in detect.restricted(
        found.rules.get(part.name, {})).items()
        if not given & {f'{option}={one}' for one in allowed.split(',')}}


def partition_features(part: Partition, gpus: Gpus | None) -> list[str]:
    always = all(detect.gres_gpus(n.gres) for n in part.nodes)
    features = [f'*node_features({part.jobs})']
    if gpus and gpus.vendor and always:
        features.append(f'gpu_{gpus.vendor}')
    text = lines(4, "'features': ", list(features))
    if gpus and not gpus.vendor:
        text += finish(4, 'sinfo says how many GPUs and not whose: add '
                        'gpu_nvidia or gpu_amd to the features.')
    if gpus and not always:
        text += comment(4, 'No gpu_* feature: not every node has GPUs.')
    return text


def gpus_of(part: Partition, seen: Gpus | None) -> Gpus | None:
    """What a node of a partition has: seen on one, else what Slurm says."""
    says = detect.gres_gpus(part.node.gres)
    return seen if seen and (not says or says.number == seen.number) else says


def scheduler(found: Found) -> str:
    """slurm asks sacct, which needs accounting; squeue does not."""
    kind = found.config.get('AccountingStorageType', '')
    return 'slurm' if 'slurmdbd' in kind else 'squeue'


def mpi_type(found: Found, choices: Choices, mpi: Mpi) -> list[list[str]]:
    """What srun is told of an MPI where the cluster has no default."""
    default = found.config.get('MpiDefault', 'none').lower()
    if (choices.launcher != 'srun' or default not in ('none', '(null)', '')
            or mpi.flavour not in MPI_TYPE):
        return []
    return [['SLURM_MPI_TYPE', MPI_TYPE[mpi.flavour]]]


def processor(indent: int, cpus: int, per_core: int,
              sockets: int) -> list[str]:
    space = ' ' * indent
    return [f"{space}'processor': {{'num_cpus': {cpus}, "
            f"'num_cpus_per_core': {per_core},",
            f"{space}              'num_sockets': {sockets},",
            f"{space}              'num_cpus_per_socket': "
            f'{cpus // max(1, sockets)}}},']


def nic_models(nics: list[Nic], found: Found) -> list[tuple[str, int]]:
    """(model, ports) of each kind of NIC; one that the catalogue lacks gets
    a row in the site's own (`own_nics`), if its rate is known."""
    models = []
    for nic, number in Counter(nics).items():
        known = hardware.recognised('nic', f'{nic.model} {nic.layer}',
                                    nic.rate)
        if not known and nic.rate:
            known = re.sub('[^A-Za-z0-9.]+', '-', f'{nic.model} {nic.layer} '
                           f'{nic.rate:g}').strip('-')
            found.own_nics[known] = {
                'arch': nic.layer.lower() or 'unknown', 'rate': nic.rate,
                'source': f'{nic.source} on {found.host or "a node"}',
                'date': f'{datetime.date.today():%Y-%m}'}
        models.append((known or nic.model, number))
    return models


def devices(gpus: Gpus | None, nics: list[Nic], found: Found) -> list[str]:
    """The devices and the extras of a partition.

    Of models that a catalogue has, the limits follow; of others, what the
    tools said is written down.
    """
    text: list[str] = []
    known: list[tuple[str, int]] = []
    raw: list[str] = []

    def add(kind: str, model: str, number: int, listed: bool) -> None:
        if listed:
            known.append((model, number))
        else:
            raw.append(f"{{'type': {kind!r}, 'model': {model!r}, "
                       f"'num_devices': {number}}}")

    if gpus:
        text += comment(4, gpus.source + (
            ': halves of a card' if 'MI250' in gpus.model else ''))
        model = hardware.recognised('gpu', gpus.model)
        add('gpu', model or gpus.model, gpus.number, bool(model))
    if nics:
        text += comment(4, f'{nics[0].source}: {counted(len(nics), "port")}, '
                        f'{nics[0].layer}')
    catalogue = hardware.table()
    for model, number in nic_models(nics, found):
        listed = model in found.own_nics or model in catalogue
        if not listed:
            text += finish(4, f'the rate of {model} was not told: write a '
                           'row for it in hardware.yaml, and name it here')
        add('nic', model, number, listed)
    own = (', site=__file__' if any(model in found.own_nics
                                    for model, _ in known) else '')
    pairs = ',\n'.join(f'        {pair!r}' for pair in known).splitlines()
    if pairs:
        pairs[-1] += f'{own})'
    if pairs and not raw:
        text += ["    'devices': hardware.devices(", *pairs[:-1],
                 f'{pairs[-1]},']
    elif pairs or raw:
        text += ["    'devices': [",
                 *(['        *hardware.devices('] if pairs else []),
                 *pairs[:-1], *([f'{pairs[-1]},'] if pairs else []),
                 *(f'        {row},' for row in raw), '    ],']
    if not pairs:
        return [*text, "    'extras': _LAUNCH,"]
    return [*text, "    'extras': {**_LAUNCH,",
            '               **hardware.limits(hardware.devices(',
            *pairs[:-1], f'{pairs[-1]}{own})}},']


def launch(found: Found, choices: Choices) -> list[str]:
    """How ranks are pinned, once for all partitions."""
    flavour = found.mpi.flavour if found.mpi else 'openmpi'
    kind = choices.launcher if choices.launcher == 'srun' else flavour
    if kind not in LAUNCH:
        return [*finish(0, f'nothing is known of {kind} under '
                        f'{choices.launcher}: add launcher_pin and '
                        'launcher_spread; ../README.md says what they mean'),
                '_LAUNCH: dict = {}']
    pin, over, env = LAUNCH[kind]
    return ['_LAUNCH = {', *lines(4, "'launcher_pin': ", list(pin)),
            *lines(4, "'launcher_oversubscribe': ", list(over)),
            *lines(4, "'launcher_spread': ", list(SPREAD[kind])),
            f"    'oversubscribe_env': {env!r},", '}']


def host_lines(name: str, found: Found, choices: Choices,
               environs: list[str]) -> list[str]:
    """The one partition of a machine without Slurm."""
    cpu = found.cpu or detect.Cpu('', os.cpu_count() or 1, 1, 1, 1)
    gpus = found.gpus
    features = ['*node_features(1)'] + ([f'gpu_{gpus.vendor}'] if gpus else [])
    return ['{', f"    'name': '{name}-node',",
            *finish(4, 'no Slurm was found, so this machine alone is '
                    'measured; for a cluster name its scheduler as ReFrame '
                    'does (slurm, squeue, pbs, torque, lsf, flux, sge, oar), '
                    'and copy this partition for each kind of node'),
            "    'scheduler': 'local',",
            *finish(4, 'on a cluster: how ranks are started (srun, mpirun, '
                    '...), with its options in _LAUNCH above'),
            f"    'launcher': '{choices.launcher}',",
            *finish(4, "on a cluster: what every job needs, such as "
                    "'--partition=x'"),
            *lines(4, "'access': ", [*choices.access_of('')]),
            "    'max_jobs': 1,",
            *lines(4, "'environs': ", list(environs)),
            *finish(4, 'on a cluster: node_features(N), N the nodes of the '
                    'largest job'),
            *lines(4, "'features': ", list(features)),
            *(comment(4, f'lscpu: {cpu.model}, '
                      f'{counted(cpu.sockets, "socket")}, '
                      f'{counted(cpu.numa, "NUMA node")}') if found.cpu else
              finish(4, 'lscpu told nothing: write what a node has')),
            *processor(4, cpu.cpus, cpu.threads, cpu.sockets),
            *([] if found.nics else finish(
                4, "on a cluster: a node's GPUs and network cards, which give "
                'the limits of physics (devices, ../README.md)')),
            *devices(gpus, found.nics, found), '},']


def environments(found: Found, choices: Choices) -> dict[str, list[str]]:
    """Name -> the lines of an environment."""
    mpis = found.mpis or [Mpi('openmpi', '', 'mpicc', (), '', '')]
    made = {}
    for name, mpi in zip(environment_names(mpis), mpis, strict=True):
        source = {'mpirun': 'mpirun --version',
                  'modules': 'module -t avail'}.get(mpi.source, mpi.source)
        label = f'{mpi.flavour} {mpi.version}'.strip()
        made[name] = [
            *(comment(0, source) if source else finish(
                0, 'no MPI was found: load one and name its compiler and '
                'version here, or add a stack')),
            *([] if found.partitions else finish(
                0, "on a cluster: its own MPI, with modules=['...'] where it "
                'comes from them, and modules_system above')),
            f'environs.of_mpi({name!r}, {label!r}, cc={mpi.cc!r},',
            *(lines(16, 'modules=', list(mpi.modules))
              if mpi.modules else []),
            *(f'{"":16}env_vars={pairs!r},'
              for pairs in [mpi_type(found, choices, mpi)] if pairs)]
        made[name][-1] = made[name][-1].removesuffix(',') + '),'
    for name in choices.stacks:
        made[name] = stack_lines(name, found, choices, mpis[0])
    return made


def stack_lines(name: str, found: Found, choices: Choices, mpi: Mpi
                ) -> list[str]:
    """The environment of a stack, with the MPI that Spack is given."""
    uses_mpi = 'mpi' in stack.about(name)['features']
    told = mpi_type(found, choices, mpi)
    more = [*([f"mpi='{mpi.flavour} {mpi.version}'"] if uses_mpi else []),
            *([f'cc={mpi.cc!r}'] if uses_mpi and mpi.cc != 'mpicc' else []),
            *([f'modules={list(mpi.modules)!r}'] if mpi.modules else []),
            *([f'env_vars={told!r}'] if told else [])]
    return [f'# Installed by Spack from spack-envs/{name}',
            f'environs.of_stack({name!r}, {name!r}' + (',' if more else '),'),
            *(f'                  {word}' + (
                '),' if word is more[-1] else ',') for word in more)]


def modules_system(kind: str) -> list[str]:
    """Lmod where it is: a dry run elsewhere has to do without."""
    if kind != 'lmod':
        return [f"        'modules_system': '{kind}',"]
    return ["        'modules_system': 'lmod' if 'LMOD_CMD' in os.environ",
            "                          else 'nomod',"]


def system_py(name: str, found: Found, choices: Choices) -> str:
    """The site's configuration, as a person would write it."""
    made = environments(found, choices)
    parts = [partition_lines(name, part, found, choices, list(made))
             for part in choices.partitions]
    parts = parts or [host_lines(name, found, choices, list(made))]
    body = [line for part in parts for line in part]
    cluster = found.config.get('ClusterName', name)
    text = [f'"""{cluster}, as `./plumb site new` found it: mend freely.',
            '', 'A comment above a value says which command told it.', '"""',
            'import os', '',
            *imports(body, made),
            'from checks.lib.features import node_features', '',
            "_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')",
            *launch(found, choices), '', 'site_configuration = {',
            "    'systems': [{", f"        'name': '{name}',",
            f"        'descr': {cluster!r},",
            "        'hostnames': ['.*'],            # chosen by its name",
            "        'stagedir': f'{_WORK}/stage',   # must be seen by all "
            'nodes',
            "        'outputdir': f'{_WORK}/output',",
            *modules_system(found.modules_system),
            "        'partitions': [",
            *(' ' * 12 + line for line in body), '        ],', '    }],',
            "    'environments': ["]
    for env_lines in made.values():
        text += [' ' * 8 + line for line in env_lines]
    return '\n'.join([*text, '    ],', '}', ''])


def imports(body: list[str], made: dict[str, list[str]]) -> list[str]:
    """The line that imports what the text uses of checks.lib."""
    text = '\n'.join([*body, *(line for env in made.values()
                               for line in env)])
    names = [name for name in ('environs', 'hardware') if f'{name}.' in text]
    return [f'from checks.lib import {", ".join(names)}'] if names else []


def packages_yaml(packages: dict[str, dict]) -> str:
    body = yaml.safe_dump({'packages': packages}, sort_keys=False, width=70)
    return ('# What this site has, for Spack. The target is left to Spack; '
            'for one that\n# fits several kinds of node add:\n'
            '#   all: {require: ["target=x86_64_v3"]}\n'
            '# Never without gcc: Spack would look for one, and rewrite '
            'files.\n' + body)


def readme(name: str, found: Found, choices: Choices) -> str:
    silent = [f'- {command}: {why}' for command, why in sorted(
        found.machine.silent.items())]
    return '\n'.join([
        f'# {name}', '', 'Made by `./plumb site new`; every value is there '
        'to be mended.', '', textwrap.fill(
            f'Told by: {", ".join(found.machine.heard)}.', 78), '',
        *(['Gave nothing:', '', *silent, ''] if silent else []),
        'Next:', '', f'    ./plumb site check {name}',
        f'    ./plumb run --site {name} --mode bringup',
        f'    ./plumb references learn --site {name}',
        f'    ./plumb references accept --site {name}', '',
        f'Lines that say `{FINISH.strip()}` in system.py are for a person '
        'to write.\nNot to be detected: the transport that MPI must use '
        '(`transport`, see\n../README.md).', '',
        'In production, once all cases of a family have references, put\n'
        '`complete: true` at the top of its file in references/: a case '
        'without one\nfails from then on.', ''])


def files(name: str, found: Found, choices: Choices) -> dict[str, str]:
    """Path in the folder -> text."""
    made = {'system.py': system_py(name, found, choices),
            'README.md': readme(name, found, choices)}
    if found.externals:
        made['spack/packages.yaml'] = packages_yaml(found.externals)
        if found.upstreams:
            made['spack/upstreams.yaml'] = (
                '# Stores that packages are taken from where they have the '
                'very same hash.\n' + yaml.safe_dump(
                    {'upstreams': found.upstreams}, sort_keys=False))
    if found.own_nics:
        made[hardware.TABLE.name] = (
            '# Network cards that config/hardware.yaml lacks; its first '
            'lines say what the\n# keys mean. `detect` and `one_flow` are '
            'for a person to add.\n' + yaml.safe_dump(
                {'nic': found.own_nics}, sort_keys=False, width=70))
    if found.switches:
        made[topology.NAME] = (
            '# scontrol show topology\n' + yaml.safe_dump(
                {'switches': found.switches}, sort_keys=False,
                default_flow_style=None, width=70))
    # The snapshot also proves that ReFrame takes what was written.
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, name)
        write(folder, made)
        answer = sites.ask_reframe(folder)
    if 'error' in answer or answer['said']:
        raise SetupError('what was made is no good, which is a fault of '
                         'plumb: ' + (answer.get('error')
                                      or answer['said'][0]))
    made[sites.SNAPSHOT] = sites.snapshot(answer['cases'])
    return made


def write(folder: Path, made: dict[str, str]) -> None:
    for path, text in made.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def summary(folder: Path, found: Found, choices: Choices,
            made: dict[str, str]) -> list[str]:
    """What the files say, in a line each."""
    site = [('folder', f'{folder} ({", ".join(made)})')]
    for part in choices.partitions:
        site.append(('partition', partition_summary(part, found, choices)))
    if not choices.partitions:
        site.append(('partition', 'this machine alone: no Slurm was found'))
    left = [part.name for part in found.partitions
            if part not in choices.partitions]
    if left:
        site.append(('left out', f'partition {", ".join(left)}; --partition '
                     f'{left[0]} takes it'))
    mpis = found.mpis
    for name, mpi in zip(environment_names(mpis), mpis, strict=True):
        site.append(('environment', f'{name}: {mpi.flavour} {mpi.version} '
                     f'({" ".join(mpi.modules) or mpi.prefix}), started with '
                     f'{choices.launcher}'))
    site += [('environment', f'{name}: by Spack')
             for name in choices.stacks]
    for name, row in found.own_nics.items():
        site.append(('NIC', f'{name}, {row["rate"]:g} Gb/s: not in config/'
                     f'{hardware.TABLE.name}, so in the site\'s own'))
    enforced = detect.enforced(found.config)
    if enforced:
        site.append(('accounting', f'Slurm enforces {enforced}: a job '
                     'without --account and --qos gets your default ones, '
                     'or is refused; see --access'))
    if topology.NAME in made:
        site.append(('switches', switches_summary(folder, made)))
    site.append(('Spack', ', '.join(found.externals) if found.externals else
                 'no gcc found, so no spack/packages.yaml: Spack would look '
                 'for one and rewrite files'))
    reasons: dict[str, list[str]] = {}
    for command, why in sorted(found.machine.silent.items()):
        reasons.setdefault(why, []).append(command)
    site += [(why, ', '.join(names)) for why, names in reasons.items()]
    return [f'  {key:12} {text}' for key, text in site]


def partition_summary(part: Partition, found: Found, choices: Choices
                      ) -> str:
    here = found.host_kind == part.node.kind
    gpus = gpus_of(part, found.gpus if here else None)
    words = [f'{part.name}: jobs of up to {counted(part.jobs, "node")}',
             f'{part.node.cpus} CPUs',
             *([f'{gpus.number} x {gpus.model or "GPU"}'] if gpus else []),
             *(f'{number} x {nic.model}' for nic, number in
               Counter(found.nics if here else []).items()),
             *choices.access_of(part.name)]
    return ', '.join(words)


def switches_summary(folder: Path, made: dict[str, str]) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, topology.NAME)
        path.write_text(made[topology.NAME])
        return topology.summary(topology.load(path))


def show(folder: Path, made: dict[str, str]) -> None:
    """All that would be written, for a person to read."""
    for path, text in made.items():
        print(f'\n=== {folder / path}\n{text}', end='')
    print()


def answer(question: str) -> str:
    """What a person types; nothing where the input ends."""
    try:
        return input(question).strip()
    except EOFError:
        return ''


def new(args: argparse.Namespace) -> int:
    """Makes a site's folder."""
    folder = (args.path or ROOT / 'site-configs' / args.name).absolute()
    check_name(args.name, folder)
    asked = sys.stdin.isatty() and not args.yes

    def ask(question: str, usual: str) -> str:
        if not asked:
            return usual
        return answer(f'{question} [{usual or "none"}]: ') or usual

    found = look(args.recorded, args.modules)
    choices = choose(args, found, ask)
    made = files(args.name, found, choices)
    print(args.name, *summary(folder, found, choices, made), sep='\n')
    if args.show:
        show(folder, made)
    if not args.yes:
        if not asked:
            say('nothing was written: nobody to ask; say --yes, or --show to '
                'see the files')
            return 2
        question = f'Write {folder}? y(es), s(how the files), [N]o: '
        while (word := answer(question).lower()) in ('s', 'show'):
            show(folder, made)
        if word not in ('y', 'yes'):
            say('nothing was written')
            return 1
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix='.new-', dir=folder.parent))
    try:
        write(scratch, made)
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    left = sites.to_finish(folder, made)
    if left:
        print('To finish by hand:', *left, sep='\n  ')
    print(f'Written: {folder}. Next: ./plumb site check '
          f'{args.path or args.name}')
    return 0
