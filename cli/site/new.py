"""plumb site new: a folder for a new site.

cli/site/detect.py asks the machine, options choose, the templates of
cli/site/templates/ print the facts. The folder appears as a whole or not at
all.
"""
from __future__ import annotations

import argparse
import datetime
import os
import pprint
import re
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
import yaml

from checks.core import hardware
from checks.spack import stack
from cli.nightly import nodes
from cli.nightly.nodes import Node, Partition
from cli.setup.venv import ROOT, SetupError, say
from cli.site import check as sites
from cli.site import detect
from cli.site.detect import Gpus, Machine, Mpi, Nic
from config import schema
from config.sites import topology
from config.sites.launch import LAUNCH, SPREAD

TEMPLATES = Path(__file__).with_name('templates')
#: The template of what is printed before a person agrees.
SUMMARY = 'summary.txt'

#: Value of SLURM_MPI_TYPE per MPI, if the cluster has no default.
MPI_TYPE = {'openmpi': 'pmix', 'mpich': 'pmi2', 'intelmpi': 'pmi2'}

#: What restricts the jobs of a partition -> the option that meets it.
RESTRICTIONS = {'AllowAccounts': '--account', 'AllowQos': '--qos'}

#: An MPI's flavour -> Spack's name of it.
SPACK_MPI = {'cray': 'cray-mpich', 'openmpi': 'openmpi', 'mpich': 'mpich'}


@dataclass
class Facts:
    """All that was detected."""
    machine: Machine
    host: str
    slurm: bool
    partitions: list[Partition]
    config: dict[str, str]
    #: Node -> pairs of `scontrol show node`.
    nodes: dict[str, dict[str, str]]
    #: Partition -> pairs of `scontrol show partition`.
    rules: dict[str, dict[str, str]]
    switches: dict[str, dict[str, str]]
    #: As ReFrame detects it.
    processor: dict[str, Any]
    gpus: Gpus | None
    nics: list[Nic]
    modules_system: str
    mpis: list[Mpi]
    externals: dict[str, dict]
    upstreams: dict[str, dict]


@dataclass
class Choices:
    """What the options say."""
    partitions: list[Partition]
    launcher: str
    #: (partition, or '' for all of them; option)
    access: list[tuple[str, str]]
    stacks: list[str]


@dataclass
class Place:
    """A partition of the new site, as the template prints it."""
    part: Partition
    label: str
    access: list[str]
    #: Option of sbatch -> values, of which the user has to choose one.
    needed: dict[str, str]
    cpus: int
    gpus: Gpus | None
    gpu_feature: str
    nics: list[Nic]
    #: (model, number) of devices in a catalogue, and of others.
    listed: list[tuple[str, int]] = field(default_factory=list)
    unlisted: list[dict[str, Any]] = field(default_factory=list)


def look(recorded: Path | None, modules: list[str]) -> Facts:
    """Runs the commands that describe the machine."""
    if recorded and not recorded.is_dir():
        raise SetupError(f'--recorded {recorded}: no such folder')
    machine = Machine(recorded)
    output = machine.output
    parts = nodes.partitions(output('sinfo'))

    def scontrol(what: str, *more: str) -> str:
        return output(f'scontrol-{what}', *more) if parts else ''

    host = output('hostname').strip().split('.')[0]
    processor = detect.processor(output('reframe'))
    rdma, avail, paths = output('rdma'), output('modules'), output('paths')
    mpi = (detect.mpi_of_path(output('mpirun'), paths)
           or detect.best_mpi(detect.modules(avail)))
    mpis = ([mpi_of_option(text, mpi) for text in modules]
            or ([mpi] if mpi else []))
    # One node of each partition describes all nodes of its kind.
    names = ','.join(dict.fromkeys(p.node.name for p in parts))
    return Facts(
        machine=machine, host=host, slurm=bool(parts),
        partitions=parts or [this_machine(host, processor)],
        config=detect.slurm_config(scontrol('config')),
        nodes=detect.pairs_of(scontrol('node', names), 'NodeName'),
        rules=detect.pairs_of(scontrol('partition'), 'PartitionName'),
        switches=detect.switches(scontrol('topology')),
        processor=processor,
        gpus=next(filter(None, (detect.gpus(name, output(name))
                                for name in detect.SMI)), None),
        nics=detect.fabric([*detect.sysfs_nics(rdma),
                            *detect.slingshot_nics(rdma)]),
        modules_system=detect.modules_system(avail), mpis=mpis,
        externals=externals(machine, mpis, paths),
        upstreams=detect.spack_section(output('upstreams'), 'upstreams',
                                       'install_tree'))


def this_machine(host: str, processor: dict[str, Any]) -> Partition:
    """The only partition of a site without Slurm."""
    cpus = processor.get('num_cpus', os.cpu_count() or 1)
    return Partition('node', True, 1, [Node(
        host, 'idle', cpus=cpus, sockets=processor.get('num_sockets', 1),
        threads=processor.get('num_cpus_per_core', 1))])


def mpi_of_option(text: str, mpi_of_path: Mpi | None) -> Mpi:
    """The MPI of an option --modules."""
    names = tuple(text.split())
    mpi = detect.mpi_of_modules(names, 'option --modules')
    if not mpi and mpi_of_path and not mpi_of_path.modules:
        mpi = replace(mpi_of_path, modules=names)
    if mpi:
        return mpi
    raise SetupError(f'--modules {text!r}: none of these modules is a known '
                     f'MPI ({", ".join(detect.MPI_MODULES)})')


def environment_names(mpis: list[Mpi]) -> list[str]:
    """Names of their environments: the MPI; its version, too, if there are
    several of its flavour; all modules instead if their versions are equal.

    :raises SetupError: two of them are the same modules.
    """
    def name(mpi: Mpi) -> str:
        versions = [m.version for m in mpis if m.flavour == mpi.flavour]
        words = ([] if len(versions) == 1 else [mpi.version]
                 if len(set(versions)) == len(versions) else mpi.modules)
        return re.sub('[^A-Za-z0-9_-]+', '-',
                      '-'.join([mpi.flavour, *words])).strip('-')

    names = [name(mpi) for mpi in mpis]
    if len(set(names)) < len(names):
        raise SetupError('--modules: the same modules are given twice')
    return names


def externals(machine: Machine, mpis: list[Mpi],
              paths: str) -> dict[str, dict]:
    """`packages:` for Spack, with a gcc that Spack can call, or empty."""
    packages: dict[str, dict] = {
        name: {'externals': row['externals']}
        for name, row in detect.spack_section(
            machine.output('spack'), 'packages', 'externals').items()}
    gcc = [one for one in packages.get('gcc', {}).get('externals', [])
           if one.get('extra_attributes', {}).get('compilers')]
    gcc = gcc or detect.gcc_external(machine.output('gcc'), paths)
    if not gcc:
        return {}
    packages['gcc'] = {'externals': gcc}
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

def check_name(name: str, folder: Path) -> None:
    """:raises SetupError: not a name for a site, or the folder exists."""
    if not re.fullmatch('[a-z][a-z0-9-]*', name):
        raise SetupError(f'{name!r} is not a name for a site: use a-z, 0-9 '
                         'and -, a letter first')
    if folder.exists() or folder.is_symlink():
        raise SetupError(f'{folder} exists, and nothing is ever overwritten; '
                         'choose another name or --path')
    word = re.compile(rf"""['"]([^'"\n]*[\s:+%|,])?{name}([\s:+%|,'"])""")
    if any(word.search(path.read_text('utf-8'))
           for path in (ROOT / 'checks').rglob('*.py')):
        raise SetupError(f'{name!r} is a word that the checks use, and a '
                         'check must not name a site; choose another name, '
                         f'e.g. {name}-1')


def pick(name: str, known: list[str], what: str) -> str:
    if name not in known:
        raise SetupError(f'unknown {what} {name!r}; '
                         + schema.near(name, known))
    return name


def access_option(text: str, chosen: list[str], names: list[str]
                  ) -> tuple[str, str]:
    """`--qos=x` is for all partitions, `P:--qos=x` for the partition P.

    :param wanted: chosen partitions.
    :param names: all partitions.
    """
    if text.startswith('-'):
        return '', text
    name, colon, option = text.partition(':')
    if not colon or not option.startswith('-'):
        raise SetupError(f'--access {text!r}: expected an option of sbatch, '
                         'such as --qos=x, or PARTITION:--qos=x')
    if pick(name, names, 'partition') not in chosen:
        raise SetupError(f'--access {text!r}: partition {name} is left out; '
                         f'add --partition {name}')
    return name, option


def choose(args: argparse.Namespace, facts: Facts) -> Choices:
    """What the options say, else what is usual for what was found."""
    names = [p.name for p in facts.partitions]
    for name in args.partition or ():
        pick(name, names if facts.slurm else [], 'partition')
    for name in args.stack:
        pick(name, stack.names(), 'stack')
    if args.stack and not facts.externals:
        raise SetupError('a stack needs a gcc for Spack, and none was found: '
                         'load a compiler module, or leave out --stack')
    flavours = {mpi.flavour for mpi in facts.mpis} or {'openmpi'}
    launcher = args.launcher or (
        'srun' if facts.slurm and flavours != {'openmpi'} else 'mpirun')
    if launcher == 'mpirun' and len(flavours) > 1:
        raise SetupError(f'{" and ".join(sorted(flavours))} have an mpirun '
                         'each, and a partition has one launcher: --launcher '
                         'srun starts both')
    parts = ([p for p in facts.partitions if p.name in args.partition]
             if args.partition else detect.distinct(facts.partitions))
    return Choices(parts, launcher, [
        access_option(text, [p.name for p in parts], names)
        for text in args.access], args.stack)


# -------------------------------------------------------------- the files

def place(name: str, part: Partition, facts: Facts, choices: Choices,
          own_nics: dict[str, dict]) -> Place:
    """A partition of the site.

    :param own_nics: gets the cards that the catalogue lacks
    """
    # Nodes of one kind have the same devices as this node.
    here = not facts.slurm or any(
        n.name == facts.host and n.kind == part.node.kind
        for p in facts.partitions for n in p.nodes)
    access = [option for of, option in choices.access
              if of in ('', part.name)]
    gpus = detect.gres_gpus(part.node.gres)
    if here and facts.gpus and (not gpus or gpus.number
                                == facts.gpus.number):
        gpus = facts.gpus
    every_node_has_gpus = not facts.slurm or all(
        detect.gres_gpus(n.gres) for n in part.nodes)
    effective = facts.nodes.get(part.node.name, {}).get('CPUEfctv', '')
    made = Place(
        part=part, label=f'{name}-{re.sub("[^A-Za-z0-9_-]", "-", part.name)}',
        access=access, needed=missing_options(
            facts.rules.get(part.name, {}), access),
        cpus=detect.number(effective) or part.node.cpus, gpus=gpus,
        gpu_feature=f'gpu_{gpus.vendor}' if gpus and gpus.vendor
        and every_node_has_gpus else '', nics=facts.nics if here else [])
    add_devices(made, facts.host, own_nics)
    return made


def missing_options(rules: dict[str, str], access: list[str]
                    ) -> dict[str, str]:
    """Options that a partition needs and that have none of the allowed
    values in `access` -> these values.

    :param rules: pairs of `scontrol show partition`
    """
    short = {'-A': '--account=', '-q': '--qos='}
    given = {short.get(option[:2], option[:2]) + option[2:]
             for option in access}
    return {option: allowed for key, option in RESTRICTIONS.items()
            if (allowed := rules.get(key, 'ALL')) not in ('ALL', '')
            and not given & {f'{option}={one}' for one in allowed.split(',')}}


def add_devices(made: Place, host: str, own_nics: dict[str, dict]) -> None:
    """Models of GPUs and NICs, by the names of the catalogue.

    A NIC that the catalogue lacks gets a row of the site's own, if its rate
    is known.
    """
    gpus = made.gpus
    devices = [('gpu', gpus.model, gpus.number, hardware.recognise_model(
        'gpu', gpus.model))] if gpus else []
    for nic, number in Counter(made.nics).items():
        model = hardware.recognise_model('nic', f'{nic.model} {nic.layer}',
                                    nic.rate)
        if not model and nic.rate:
            model = re.sub('[^A-Za-z0-9.]+', '-', f'{nic.model} {nic.layer} '
                           f'{nic.rate:g}').strip('-')
            own_nics[model] = {
                'arch': nic.layer.lower() or 'unknown', 'rate': nic.rate,
                'source': f'{nic.source} on {host or "a node"}',
                'date': f'{datetime.date.today():%Y-%m}'}
        devices.append(('nic', nic.model, number, model))
    for kind, words, number, model in devices:
        if model:
            made.listed.append((model, number))
        else:
            made.unlisted.append({'type': kind, 'model': words,
                                  'num_devices': number})


def environments(facts: Facts, choices: Choices) -> list[dict[str, Any]]:
    """Facts of each environment: its name, its stack ('' for none), its MPI,
    and whether srun needs the kind of the MPI (SLURM_MPI_TYPE)."""
    mpis = facts.mpis or [Mpi('openmpi', '', 'mpicc', (), '', '')]
    made = [(name, '', mpi) for name, mpi in zip(
        environment_names(mpis), mpis, strict=True)]
    made += [(name, name, mpis[0]) for name in choices.stacks]
    needs_mpi_type = (
        choices.launcher == 'srun' and 'MpiDefault' not in facts.config
    )
    return [
        {
            'name': name,
            'stack': of,
            'mpi': mpi,
            'uses_mpi': not of or 'mpi' in stack.about(of)['features'],
            'mpi_type': MPI_TYPE.get(mpi.flavour, '')
            if needs_mpi_type
            else '',
        }
        for name, of, mpi in made
    ]


def literal(value: object, column: int, behind: int = 1) -> str:
    """A value as Python, in lines that fit between a column and what stands
    behind the value (characters)."""
    return pprint.pformat(
        value, width=79 - column - behind, compact=True, sort_dicts=False
        ).replace('\n', '\n' + ' ' * column)


def comment(text: str, column: int) -> str:
    """A text as lines of comments that begin at a column."""
    start = ' ' * column + '# '
    return textwrap.fill(
        ' '.join(text.split()), 79, initial_indent=start,
        subsequent_indent=start, break_long_words=False,
        break_on_hyphens=False) + '\n'


def as_yaml(data: object, flow: bool | None = False) -> str:
    return yaml.safe_dump(data, sort_keys=False, width=70,
                          default_flow_style=flow)


def files(name: str, detected: Facts, choices: Choices) -> dict[str, str]:
    """Path in the folder -> text, with the SUMMARY."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined)
    templates.filters |= {'literal': literal, 'comment': comment,
                          'yaml': as_yaml, 'repr': repr}
    own_nics: dict[str, dict] = {}
    flavour = detected.mpis[0].flavour if detected.mpis else 'openmpi'
    kind = choices.launcher if choices.launcher == 'srun' else flavour
    facts = {
        'name': name, 'found': detected, 'choices': choices,
        'places': [place(name, part, detected, choices, own_nics)
                   for part in choices.partitions],
        'own_nics': own_nics,
        'environments': environments(detected, choices), 'kind': kind,
        'launch': LAUNCH.get(kind), 'spread': SPREAD.get(kind),
        'switches': topology.summary({
            name: topology.Switch(*(tuple(topology.expand(row.get(key, '')))
                                    for key in ('nodes', 'switches')))
            for name, row in detected.switches.items()}),
        'finish': sites.FINISH, 'counter': Counter}
    made = {path.removesuffix('.j2'): templates.get_template(path).render(
        facts) for path in templates.list_templates()}
    made = {path: text for path, text in made.items() if text.strip()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, name)
        write(folder, made)
        # The snapshot also proves that ReFrame takes what was written.
        answer = sites.ask_reframe(folder)
    if 'error' in answer or answer['output']:
        raise SetupError('the files that were made are wrong, which is a '
                         'fault of plumb: ' + (answer.get('error')
                                               or answer['output'][0]))
    return {**made, sites.SNAPSHOT: sites.snapshot(answer['cases'])}


def write(folder: Path, made: dict[str, str]) -> None:
    for path, text in made.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def create(folder: Path, made: dict[str, str]) -> None:
    """Makes the folder, as a whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix='.new-', dir=folder.parent))
    try:
        write(scratch, made)
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def new(args: argparse.Namespace) -> int:
    """Makes a site's folder."""
    folder = (args.path or ROOT / 'site-configs' / args.name).absolute()
    check_name(args.name, folder)
    facts = look(args.recorded, args.modules)
    made = files(args.name, facts, choose(args, facts))
    summary = made.pop(SUMMARY)
    print(args.name, f'  folder       {folder} ({", ".join(made)})', summary,
          sep='\n', end='')
    if args.show:
        for path, text in made.items():
            print(f'\n=== {folder / path}\n{text}', end='')
    if not args.yes:
        if not sys.stdin.isatty():
            say('nothing was written: nobody to ask; add --yes, or --show to '
                'see the files')
            return 2
        if input(f'Write {folder}? y(es), [N]o: ').strip().lower() not in (
                'y', 'yes'):
            say('nothing was written; --show prints the files')
            return 0
    create(folder, made)
    left = sites.unfinished(folder)
    if left:
        print('To finish by hand:', *left, sep='\n  ')
    print(f'Written: {folder}. Next: ./plumb site check '
          f'{args.path or args.name}')
    return 0
