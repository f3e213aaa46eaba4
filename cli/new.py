"""plumb site new: a site's folder from what the machine tells.

Found (cli/detect.py), asked, shown, and only then written: the folder
appears as a whole or not at all.
"""
from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from checks.lib import hardware
from checks.spack import stack
from cli import detect, sites
from cli.detect import Gpus, Machine, Mpi, Nic, Partition
from cli.setup import ROOT, SetupError, say
from cli.spack_yaml import near
from config.launch import LAUNCH, SPREAD

#: What srun is told of the MPI where the cluster has no default.
MPI_TYPE = {'openmpi': 'pmix', 'mpich': 'pmi2', 'intelmpi': 'pmi2'}


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
    mpi: Mpi | None
    externals: dict[str, dict]
    upstreams: dict[str, dict]

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
    access: list[str]
    stacks: list[str]


def look(recorded: Path | None, modules: str | None) -> Found:
    """Asks the machine."""
    if recorded and not recorded.is_dir():
        raise SetupError(f'--recorded {recorded}: no such folder')
    machine = Machine(recorded)
    tell = machine.tell
    parts = detect.partitions(tell('sinfo'))
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
    if modules is not None:
        mpi = chosen_modules(modules, mpi)
    return Found(
        machine, tell('hostname').strip().split('.')[0], parts,
        detect.node_facts(tell('scontrol-node', names)) if slurm else {},
        detect.slurm_config(tell('scontrol-config')) if slurm else {},
        detect.cpu(tell('lscpu')),
        detect.nvidia_gpus(tell('nvidia-smi'))
        or detect.amd_gpus(tell('rocm-smi')),
        detect.fabric(nics), detect.modules_system(avail), mpi,
        externals(machine, mpi, paths),
        detect.spack_upstreams(tell('upstreams')))


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


def externals(machine: Machine, mpi: Mpi | None,
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
    name = {'cray': 'cray-mpich', 'openmpi': 'openmpi',
            'mpich': 'mpich'}.get(mpi.flavour if mpi else '', '')
    if mpi and name and name not in packages and mpi.version:
        place: dict[str, Any] = {'prefix': mpi.prefix} if mpi.prefix else {
            'modules': list(mpi.modules)}
        packages[name] = {'externals': [
            {'spec': f'{name}@{mpi.version}', **place}]}
    if name in packages:
        packages[name]['buildable'] = False
    packages['mpi'] = {'require': [name or 'openmpi']}
    return dict(sorted(packages.items()))


# ----------------------------------------------------------------- choices

def words_of_checks() -> set[str]:
    """Words in the checks' strings: no place may be called by one."""
    words: set[str] = set()
    for path in (ROOT / 'checks').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= set(re.split(r'[\s:+%|,]+', node.value))
    return words


def check_name(name: str) -> None:
    if not re.fullmatch('[a-z][a-z0-9-]*', name):
        raise SetupError(f'{name!r} is no name of a site: a-z, 0-9 and -, '
                         'a letter first')
    if name in words_of_checks():
        raise SetupError(f'{name!r} is a word that the checks use; a check '
                         'must name no place, so choose another, e.g. '
                         f'{name}-1')


def pick(name: str, known: list[str], what: str) -> str:
    if name not in known:
        raise SetupError(f'unknown {what} {name!r}: ' + near(
            name, known, f'there are {", ".join(known) or "none"}'))
    return name


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
    flavour = found.mpi.flavour if found.mpi else 'openmpi'
    usual = 'mpirun' if flavour == 'openmpi' or not names else 'srun'
    launcher = args.launcher or pick(
        ask('Launcher, srun or mpirun', usual), ['srun', 'mpirun'],
        'launcher')
    access = args.access or (names and ask(
        'Options that every job needs, such as --account=x',
        '').split()) or []
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
             f"    'launcher': '{choices.launcher}',"]
    # Whole nodes, and a CPU a core: else ranks land on hyperthreads.
    text += lines(4, "'access': ", [
        f'--partition={part.name}', '--exclusive',
        *(['--hint=nomultithread'] if node.threads > 1 else []),
        *choices.access])
    if gpus:
        text += ["    'resources': [{'name': '_rfm_gpu', 'options': [",
                 "        '--gpus-per-node={num_gpus_per_node}']}],"]
    text += lines(4, "'environs': ", list(environs))
    text += env_vars(found, choices)
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
    text += devices(gpus, nics)
    if not nics:
        text += comment(4, 'Network cards: not known here. To see them, run '
                        f'it on a node: srun -p {part.name} -N1 --pty '
                        './plumb site new ...')
    return [*text, '},']


def partition_features(part: Partition, gpus: Gpus | None) -> list[str]:
    always = all(detect.gres_gpus(n.gres) for n in part.nodes)
    features = [f'*node_features({part.jobs})']
    if gpus and gpus.vendor and always:
        features.append(f'gpu_{gpus.vendor}')
    text = lines(4, "'features': ", list(features))
    if gpus and not gpus.vendor:
        text += comment(4, 'sinfo says how many GPUs and not whose: add '
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


def env_vars(found: Found, choices: Choices) -> list[str]:
    flavour = found.mpi.flavour if found.mpi else ''
    default = found.config.get('MpiDefault', 'none').lower()
    if (choices.launcher != 'srun' or default not in ('none', '(null)', '')
            or flavour not in MPI_TYPE):
        return []
    return ['    # scontrol show config: no MpiDefault, so srun is told',
            f"    'env_vars': [['SLURM_MPI_TYPE', '{MPI_TYPE[flavour]}']],"]


def processor(indent: int, cpus: int, per_core: int,
              sockets: int) -> list[str]:
    space = ' ' * indent
    return [f"{space}'processor': {{'num_cpus': {cpus}, "
            f"'num_cpus_per_core': {per_core},",
            f"{space}              'num_sockets': {sockets},",
            f"{space}              'num_cpus_per_socket': "
            f'{cpus // max(1, sockets)}}},']


def devices(gpus: Gpus | None, nics: list[Nic]) -> list[str]:
    """The devices and the extras of a partition.

    Of models that config/hardware.yaml has, the limits follow; of others,
    what the tools said is written down.
    """
    found: list[tuple[str, str, int, str | None]] = []
    if gpus:
        found.append(('gpu', gpus.model, gpus.number,
                      hardware.recognised('gpu', gpus.model)))
    if nics:
        alike = {hardware.recognised('nic', f'{n.model} {n.layer}', n.rate)
                 for n in nics}
        found.append(('nic', nics[0].model, len(nics),
                      alike.pop() if len(alike) == 1 else None))
    told = [*(comment(4, gpus.source + (
                ': halves of a card' if 'MI250' in gpus.model else ''))
              if gpus else []),
            *(comment(4, f'{nics[0].source}: {counted(len(nics), "port")}, '
                      f'{nics[0].layer}') if nics else [])]
    if found and all(known for *_, known in found):
        pairs = ',\n'.join(f'        ({known!r}, {n})'
                           for _, _, n, known in found).splitlines()
        return [*told, "    'devices': hardware.devices(", *pairs[:-1],
                f'{pairs[-1]}),',
                "    'extras': {**_LAUNCH,",
                '               **hardware.limits(hardware.devices(',
                *pairs[:-1], f'{pairs[-1]}))}},']
    rows = [f"        {{'type': {kind!r}, 'model': {model!r}, "
            f"'num_devices': {n}}}," for kind, model, n, _ in found]
    return [*told, *(["    'devices': [", *rows, '    ],'] if rows else []),
            *extras(nics)]


def extras(nics: list[Nic]) -> list[str]:
    rate = sum(nic.rate for nic in nics)
    if not rate:
        return ["    'extras': _LAUNCH,"]
    alike = Counter(f'{nic.rate:g} Gb/s' for nic in nics)
    return [*comment(4, ' + '.join(f'{n} x {each}' for each, n in
                                   alike.items()) + '; 1 Gb/s is 125 MB/s'),
            "    'extras': {**_LAUNCH, "
            f"'nic_bandwidth': {rate * 125:.0f}}},"]


def launch(found: Found, choices: Choices) -> list[str]:
    """How ranks are pinned, once for all partitions."""
    flavour = found.mpi.flavour if found.mpi else 'openmpi'
    kind = choices.launcher if choices.launcher == 'srun' else flavour
    if kind not in LAUNCH:
        return [f'# Nothing is known of {kind} under {choices.launcher}: add '
                'launcher_pin and',
                '# launcher_spread; ../README.md says what they mean.',
                '_LAUNCH: dict = {}']
    pin, over, env = LAUNCH[kind]
    return ['_LAUNCH = {', *lines(4, "'launcher_pin': ", list(pin)),
            *lines(4, "'launcher_oversubscribe': ", list(over)),
            *lines(4, "'launcher_spread': ", list(SPREAD[kind])),
            f"    'oversubscribe_env': {env!r},", '}']


def host_lines(name: str, found: Found, choices: Choices,
               environs: list[str]) -> list[str]:
    """The one partition of a machine without Slurm."""
    cpu = found.cpu or detect.Cpu('unknown', os.cpu_count() or 1, 1, 1, 1)
    gpus = found.gpus
    features = ['*node_features(1)'] + ([f'gpu_{gpus.vendor}'] if gpus else [])
    return ['# No Slurm here: this machine alone.', '{',
            f"    'name': '{name}-node',", "    'scheduler': 'local',",
            f"    'launcher': '{choices.launcher}',", "    'max_jobs': 1,",
            *lines(4, "'environs': ", list(environs)),
            *lines(4, "'features': ", list(features)),
            *comment(4, f'lscpu: {cpu.model}, {counted(cpu.sockets, "socket")}'
                     f', {counted(cpu.numa, "NUMA node")}'),
            *processor(4, cpu.cpus, cpu.threads, cpu.sockets),
            *devices(gpus, found.nics), '},']


def environments(found: Found, choices: Choices) -> dict[str, list[str]]:
    """Name -> the lines of an environment."""
    mpi = found.mpi or Mpi('openmpi', '', 'mpicc', (), '', '')
    label = f'{mpi.flavour} {mpi.version}'.strip()
    source = {'mpirun': 'mpirun --version', 'modules': 'module -t avail',
              '': 'NO MPI WAS FOUND: load one and mend this, or add a stack'
              }.get(mpi.source, mpi.source)
    modules = lines(0, "'modules': ", list(mpi.modules)) if mpi.modules else []
    made = {mpi.flavour: [
        f'# {source}', f"'cc': '{mpi.cc}', 'cxx': '', 'ftn': '',", *modules,
        *lines(0, "'features': ", ['mpi', 'osu', '*programs.EMBEDDED']),
        f"'extras': {{'mpi_library': {label!r},",
        "           'programs': {'osu': {'source': 'embedded'}}},"]}
    for name in choices.stacks:
        families = stack.programs_of(name)
        features = list(stack.about(name)['features'])
        if 'osu' in families:
            own = families['osu']['source'] == 'embedded'
            features.append('*programs.EMBEDDED' if own else '*programs.OMB7')
        made[name] = [
            f'# Installed by Spack from spack-envs/{name}',
            f"'cc': '{mpi.cc}', 'cxx': '', 'ftn': '',", *modules,
            *lines(0, "'features': ", features),
            f"'extras': {{'stack': {name!r}, 'mpi_library': {label!r},",
            f"           'programs': {families!r}}},"]
    return made


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
            *(['from checks.lib import hardware']
              if any('hardware.' in line for line in body) else []),
            'from checks.lib.features import node_features',
            'from checks.osu import programs', '',
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
    for env, env_lines in made.items():
        text += ['        {', f"            'name': '{env}',",
                 *(' ' * 12 + line for line in env_lines), '        },']
    return '\n'.join([*text, '    ],', '}', ''])


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
        'Not to be detected, so look at them: the account or quality of '
        'service that\njobs need (`access` in system.py), the transport that '
        'MPI must use\n(`transport`, see ../README.md).', '',
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


def show(folder: Path, found: Found, choices: Choices,
         made: dict[str, str]) -> None:
    """All that would be written, for a person to read."""
    for part in found.partitions:
        if part not in choices.partitions:
            print(f'left out: partition {part.name} ({len(part.nodes)} '
                  f'nodes); --partition {part.name} takes it')
    for command, why in sorted(found.machine.silent.items()):
        print(f'{why}: {command}')
    if not found.externals:
        print('no gcc found, so no spack/packages.yaml: Spack would look '
              'for one and rewrite files')
    for path, text in made.items():
        print(f'\n=== {folder / path}\n{text}', end='')


def answer(question: str) -> str:
    """What a person types; nothing where the input ends."""
    try:
        return input(question).strip()
    except EOFError:
        return ''


def new(args: argparse.Namespace) -> int:
    """Makes a site's folder."""
    check_name(args.name)
    folder = (args.path or ROOT / 'site-configs' / args.name).absolute()
    if folder.exists() or folder.is_symlink():
        raise SetupError(f'{folder}: there already; choose another name or '
                         '--path, nothing is ever overwritten')
    asked = sys.stdin.isatty() and not args.yes

    def ask(question: str, usual: str) -> str:
        if not asked:
            return usual
        return answer(f'{question} [{usual or "none"}]: ') or usual

    found = look(args.recorded, args.modules)
    choices = choose(args, found, ask)
    made = files(args.name, found, choices)
    show(folder, found, choices, made)
    print()
    if not args.yes:
        if not asked:
            say('nothing was written: nobody to ask; say --yes')
            return 2
        if answer(f'Write these files to {folder}? [y/N] '
                  ).lower() not in ('y', 'yes'):
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
    print(f'Written: {folder}. Next: ./plumb site check '
          f'{args.path or args.name}')
    return 0
