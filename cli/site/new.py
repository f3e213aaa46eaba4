"""`plumb site new`: make the folder of a new site.

cli/site/detect.py detects the machine, options select partitions,
and the templates of cli/site/templates/ write the files. The folder is created
completely or not at all.
"""
from __future__ import annotations

import argparse
import datetime
import os
import pprint
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
import yaml

from checks.core import hardware
from cli.setup.venv import ROOT, SetupError, print_progress
from cli.site import check as sites
from cli.site import detect, nodes, pbs
from cli.site.detect import Gpus, Machine, Mpi, Nic
from cli.site.nodes import Node, Partition
from config import schema
from config.places import SITES
from config.sites import launch, topology

TEMPLATES = Path(__file__).with_name('templates')
#: The template of the summary that is printed before the confirmation.
SUMMARY = 'summary.txt'

#: Value of SLURM_MPI_TYPE per MPI, if the cluster has no default.
MPI_TYPE = {'openmpi': 'pmix', 'mpich': 'pmi2', 'intelmpi': 'pmi2'}

#: Restriction of a partition (scontrol) -> the option of sbatch that it needs.
RESTRICTIONS = {'AllowAccounts': '--account', 'AllowQos': '--qos'}


@dataclass
class Facts:
    """All that was detected."""
    machine: Machine
    host: str
    #: Slurm, PBS, or '' if there is none.
    scheduler: str
    #: What has the partitions if `scheduler` is empty, in words.
    other_scheduler: str
    #: All that have nodes, and others with the reason.
    partitions: list[Partition]
    config: dict[str, str]
    #: Node -> pairs of `scontrol show node`.
    nodes: dict[str, dict[str, str]]
    #: Partition -> pairs of `scontrol show partition`.
    rules: dict[str, dict[str, str]]
    switches: dict[str, dict[str, str]]
    #: Processor of this machine, as ReFrame detects it.
    processor: dict[str, Any]
    gpus: Gpus | None
    nics: list[Nic]
    modules_system: str
    #: None: no MPI was found.
    mpi: Mpi | None


@dataclass
class Choices:
    """The choices made by the options."""
    partitions: list[Partition]
    #: Each other partition -> why it is left out.
    left_out: dict[str, str]
    launcher: str
    #: Options of all jobs.
    access: list[str]


@dataclass
class Place:
    """A partition of the new site, with the values for the template."""
    part: Partition
    #: A node of the most common kind.
    node: Node
    #: Command that printed the sockets and threads of the node; '': none.
    topology_source: str
    label: str
    #: Whether this machine is a node of its kind, so that its devices were seen.
    is_here: bool
    #: Option of sbatch -> allowed values; the user has to choose one.
    needed: dict[str, str]
    cpus: int
    gpus: Gpus | None
    #: Whether jobs request GPUs from the scheduler.
    are_gpus_requested: bool
    gpu_feature: str
    nics: list[Nic]
    #: Each kind of usable node, in words.
    kinds: list[str]
    #: Slices of GPUs (MIG) in place of whole ones; '': none.
    slices: str
    #: Options of sbatch for the whole memory of a node.
    memory: list[str]
    #: OverSubscribe, if jobs share nodes even with --exclusive; '': they do not.
    shared: str
    #: (model, number) of devices in a catalogue, and of others.
    listed: list[tuple[str, int]] = field(default_factory=list)
    unlisted: list[dict[str, Any]] = field(default_factory=list)


def detect_machine(recorded: Path | None, modules: str) -> Facts:
    """Run the commands that describe the machine."""
    if recorded and not recorded.is_dir():
        raise SetupError(f'--recorded {recorded}: the folder does not exist')
    machine = Machine(recorded)
    output = machine.command_output
    listed = output('sinfo')
    parts, scheduler = nodes.parse_sinfo(listed), 'Slurm'
    if listed.strip() and not parts:
        raise SetupError('sinfo lists no node, but prints: '
                         f'{listed.strip().splitlines()[0][:80]}; expected the output '
                         f'of {shlex.join(nodes.SINFO)}')
    if not parts:
        parts = pbs.parse_partitions(output('pbsnodes'), output('qstat'))
        scheduler = 'PBS' if parts else ''

    def scontrol_output(what: str, *more: str) -> str:
        return output(f'scontrol-{what}', *more) if scheduler == 'Slurm' else ''

    host = output('hostname').strip().split('.')[0]
    processor = detect.parse_processor(output('reframe'))
    mpi = detect.parse_mpi_of_path(output('mpirun'), output('paths'))
    mpi = parse_modules_option(modules, mpi) if modules else mpi
    config = detect.parse_slurm_config(scontrol_output('config'))
    # With another plugin, `scontrol show topology` is an error, or has no switches.
    has_switches = config.get('TopologyPlugin', detect.TREE) == detect.TREE
    # One node of each partition is enough: it describes its kind.
    names = ','.join(dict.fromkeys(
        p.node_of_most_common_kind.name for p in parts if p.nodes))
    rules = detect.parse_scontrol_pairs(scontrol_output('partition'), 'PartitionName')
    parts += [Partition(name, False, None, [])
              for name in rules if name not in {part.name for part in parts}]
    groups = output('groups').split() if any(
        row.get('AllowGroups', 'ALL') != 'ALL' for row in rules.values()) else []
    for part in parts:
        if part.name in rules:
            nodes.add_slurm_rules(part, rules[part.name], groups)
    return Facts(
        machine=machine, host=host, scheduler=scheduler,
        other_scheduler='' if scheduler else find_other_scheduler(machine),
        partitions=parts or [partition_without_scheduler(host, processor)],
        config=config,
        nodes=detect.parse_scontrol_pairs(scontrol_output('node', names), 'NodeName'),
        rules=rules,
        switches=detect.parse_network_switches(
            scontrol_output('topology') if has_switches else ''),
        processor=processor,
        gpus=next(filter(None, (detect.parse_smi_gpus(name, output(name))
                                for name in detect.SMI)), None),
        nics=detect.parse_nics(output('rdma')),
        modules_system=detect.parse_modules_system(output('modules')), mpi=mpi)


def find_other_scheduler(machine: Machine) -> str:
    """What has the partitions of a machine without a Slurm or PBS that answers, in
    words; '': nothing was found."""
    words, name = detect.find_other_scheduler(machine.command_output('schedulers'))
    if words:
        return (f'{words} was found, and its partitions have to be written by hand'
                + f', with the scheduler {name}' * bool(name))
    return next((f'{command} failed ({why}), so the partitions are unknown; run '
                 f'./plumb site new again when {command} answers'
                 for command in ('sinfo', 'pbsnodes', 'qstat')
                 if (why := machine.silent.get(command, 'not found')) != 'not found'),
                '')


def partition_without_scheduler(host: str, processor: dict[str, Any]) -> Partition:
    """The partition of a site without a scheduler: this machine."""
    return Partition('node', True, 1, [add_topology(Node(
        host, 'idle', cpus=processor.get('num_cpus', os.cpu_count() or 1)), processor)])


def add_topology(node: Node, processor: dict[str, Any]) -> Node:
    """A node with the sockets and threads of a processor."""
    return replace(node, sockets=processor.get('num_sockets', 1),
                   threads=processor.get('num_cpus_per_core', 1))


def parse_modules_option(text: str, mpi_of_path: Mpi | None) -> Mpi:
    """The MPI that the modules of an option --modules provide."""
    names = tuple(text.split())
    mpi = detect.find_mpi_in_modules(names, 'option --modules')
    if not mpi and mpi_of_path and not mpi_of_path.modules:
        mpi = replace(mpi_of_path, modules=names)
    if mpi:
        return mpi
    raise SetupError(f'--modules {text!r}: none of these modules provides a '
                     'known MPI; name one of '
                     f'{", ".join(detect.MPI_MODULES)}')


# ----------------------------------------------------------------- choices

def refuse_bad_site_name(name: str, folder: Path) -> None:
    """Refuse a name that is not valid for a site, or whose folder exists.

    :raises SetupError: the name cannot be used
    """
    # ReFrame's names of systems.
    if not re.fullmatch('[A-Za-z_][A-Za-z0-9_-]*', name):
        raise SetupError(f'{name!r} is not a valid name for a site; use letters, '
                         'digits, _ and -, and begin with a letter')
    if folder.exists() or folder.is_symlink():
        raise SetupError(f'{folder} exists, and plumb does not overwrite it; '
                         'choose another name or --path')


def resolve_choices(args: argparse.Namespace, facts: Facts) -> Choices:
    """The choices of the options, with defaults for the detected machine."""
    names = [p.name for p in facts.partitions if p.nodes] if facts.scheduler else []
    for name in args.partition or ():
        if name not in names:
            raise SetupError(f'unknown partition {name!r}; '
                             + schema.suggest_name(name, names))
    flavour = facts.mpi.flavour if facts.mpi else 'openmpi'
    launcher = args.launcher or (
        # Intel MPI needs the path of Slurm's own library for srun.
        'mpirun' if flavour in ('openmpi', 'intelmpi') or not facts.scheduler else
        'srun' if facts.scheduler == 'Slurm' else
        'mpiexec' if flavour == 'cray-mpich' else 'mpirun')
    parts, left_out = nodes.default_partitions(facts.partitions)
    if args.partition:
        parts = [p for p in facts.partitions if p.name in args.partition]
        left_out = {p.name: 'not selected' for p in facts.partitions if p not in parts}
    if not parts:
        raise SetupError(f'{facts.scheduler} has no partition with nodes: ' + '; '.join(
            f'{name}: {why}' for name, why in left_out.items()))
    for text in args.access:
        if not text.startswith('-'):
            raise SetupError(f'--access {text!r}: expected an option of sbatch or '
                             'qsub, such as --qos=x')
    return Choices(parts, left_out, launcher, args.access)


# -------------------------------------------------------------- the files

def make_partition(name: str, part: Partition, facts: Facts, choices: Choices,
                   own_nics: dict[str, dict]) -> Place:
    """A partition of the site.

    :param own_nics: network cards that the catalogue does not have are added
    """
    rules = facts.rules.get(part.name, {})
    # Nodes of one kind have the same devices as this node.
    node = part.node_of_most_common_kind
    here = not facts.scheduler or any(
        n.name.partition('.')[0] == facts.host
        and n.hardware_kind == node.hardware_kind
        for p in facts.partitions for n in p.nodes)
    node, cpus, topology_source = add_processor(node, facts, here)
    gpus = detect.parse_gres_gpus(
        node.gres, 'pbsnodes' if facts.scheduler == 'PBS' else 'sinfo')
    slices = ''
    # A scheduler without a resource for GPUs reports no GPUs of any node.
    are_requested = bool(gpus)
    is_host = not facts.scheduler or any(
        n.name.partition('.')[0] == facts.host for n in part.nodes)
    if gpus and detect.MIG.search(gpus.model):
        slices, gpus = ' and '.join(f'{number} x {model or "GPU"}' for model, number
                                    in node.gpu_models.items()), None
    elif here and facts.gpus and (gpus.number == facts.gpus.number if gpus
                                  else is_host):
        gpus = facts.gpus
    every_node_has_gpus = not are_requested or all(
        n.gpu_models for n in part.usable_nodes)
    made = Place(
        part=part, node=node, topology_source=topology_source,
        label=f'{name}-{re.sub("[^A-Za-z0-9_-]", "-", part.name)}', is_here=here,
        needed=missing_access_options(rules, choices.access),
        cpus=cpus, gpus=gpus, are_gpus_requested=are_requested,
        gpu_feature=f'gpu_{gpus.vendor}' if gpus and gpus.vendor
        and every_node_has_gpus else '', nics=facts.nics if here else [],
        kinds=[_describe_kind(one, number) for one, number in part.node_kinds],
        slices=slices,
        # With --exclusive a job has all CPUs, but only the default memory.
        memory=['--mem=0'] * any(
            row.get('DefMemPerNode', '').isdigit() for row in (rules, facts.config)),
        shared=sharing if (sharing := rules.get('OverSubscribe', '')
                           ).startswith('FORCE') else '')
    add_devices_to_partition(made, facts.host, own_nics)
    return made


def add_processor(node: Node, facts: Facts, is_here: bool) -> tuple[Node, int, str]:
    """A node with its sockets and threads, its CPUs for jobs, and the command that
    printed the sockets; '': none did.

    :param is_here: whether this machine is a node of its kind
    """
    seen = facts.processor if is_here else {}
    if facts.scheduler != 'Slurm':
        return (add_topology(node, seen) if seen else node, node.cpus,
                'ReFrame' * bool(seen))
    row = facts.nodes.get(node.name, {})
    cpus = detect.leading_number(row.get('CPUEfctv', '')) or node.cpus
    if node.cores == node.threads == 1 and node.sockets > 2:
        # slurm.conf has the number of CPUs alone.
        seen = seen if seen.get('num_cpus') == node.cpus else {}
        return add_topology(node, seen), cpus, 'ReFrame' * bool(seen)
    # Slurm counts cores if slurm.conf has as many CPUs.
    counted = node.threads if node.cpus == node.sockets * node.cores else 1
    return (node, cpus * counted,
            f'scontrol show node {node.name}' if row else 'sinfo')


def _describe_kind(kind: tuple, number: int) -> str:
    cpus, *_, gpus = kind
    words = [f'{cpus} CPUs', *(f'{count} x {model or "GPU"}'
                               for model, count in sorted(gpus))]
    return f'{number} node{"s" * (number > 1)} with {", ".join(words)}'


def missing_access_options(rules: dict[str, str], access: list[str]
                    ) -> dict[str, str]:
    """Options that a partition needs and that `access` does not set to an
    allowed value -> the allowed values.

    :param rules: pairs of `scontrol show partition`
    """
    short = {'-A': '--account=', '-q': '--qos='}
    given = {short.get(option[:2], option[:2]) + option[2:]
             for option in access}
    return {option: allowed for key, option in RESTRICTIONS.items()
            if (allowed := rules.get(key, 'ALL')) not in ('ALL', '')
            and not given & {f'{option}={one}' for one in allowed.split(',')}}


def add_devices_to_partition(partition: Place, host: str,
                             own_nics: dict[str, dict]) -> None:
    """Add the models of GPUs and NICs, named as in the catalogue.

    A NIC that the catalogue does not have gets a row in the site's own file,
    if its rate is known.
    """
    gpus = partition.gpus
    devices = [('gpu', gpus.model, gpus.number, hardware.recognise_model(
        'gpu', gpus.model))] if gpus else []
    for nic, number in Counter(partition.nics).items():
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
            partition.listed.append((model, number))
        else:
            partition.unlisted.append({'type': kind, 'model': words,
                                       'num_devices': number})


def environment_facts(facts: Facts, choices: Choices) -> dict[str, Any]:
    """Facts of the environment: its name, its MPI, and the value of SLURM_MPI_TYPE if
    srun needs it."""
    mpi = facts.mpi or Mpi('openmpi', '', 'mpicc', (), '', '')
    needs_mpi_type = (
        choices.launcher == 'srun' and 'MpiDefault' not in facts.config
    )
    return {'name': mpi.flavour, 'mpi': mpi,
            'mpi_type': MPI_TYPE.get(mpi.flavour, '') if needs_mpi_type else ''}


def python_literal(value: object, column: int, behind: int = 1) -> str:
    """A value as Python code, in lines of at most 79 characters.

    :param column: where the lines begin
    :param behind: number of characters that follow the value
    """
    return pprint.pformat(
        value, width=79 - column - behind, compact=True, sort_dicts=False
        ).replace('\n', '\n' + ' ' * column)


def python_comment(text: str, column: int) -> str:
    """A text as comment lines that begin at a column."""
    start = ' ' * column + '# '
    text = ' '.join(text.split())
    # `site check` reads where the text ends.
    return textwrap.fill(
        text, 79, initial_indent=start, subsequent_indent=start + '    ' * (
            text.startswith(sites.FINISH)), break_long_words=False,
        break_on_hyphens=False) + '\n'


def yaml_text(data: object, flow: bool | None = False) -> str:
    """YAML of a value, with keys in their order.

    :param flow: whether mappings and lists are in braces and brackets; None: only those
        without others inside
    """
    return yaml.safe_dump(data, sort_keys=False, width=70,
                          default_flow_style=flow)


def render_site_files(name: str, detected: Facts, choices: Choices, suite: str
                      ) -> dict[str, str]:
    """The files of the site: path in the folder -> text; also SUMMARY.

    :param suite: path of the suite for a site that is outside it, otherwise ''
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined)
    templates.filters |= {'literal': python_literal, 'comment': python_comment,
                          'yaml': yaml_text, 'repr': repr}
    own_nics: dict[str, dict] = {}
    flavour = detected.mpi.flavour if detected.mpi else 'openmpi'
    left_out: dict[str, list[str]] = {}
    for part, why in choices.left_out.items():
        left_out.setdefault(why, []).append(part)
    facts = {
        'name': name, 'found': detected, 'choices': choices, 'suite': suite,
        'places': [make_partition(name, part, detected, choices, own_nics)
                   for part in choices.partitions],
        'own_nics': own_nics,
        'environment': environment_facts(detected, choices), 'flavour': flavour,
        'can_pin': launch.launcher_extra(
            'launcher_pin', choices.launcher, flavour, {}) is not None,
        'switches': topology.switch_summary_text({
            name: topology.Switch(*(tuple(topology.expand_host_list(row.get(key, '')))
                                    for key in ('nodes', 'switches')))
            for name, row in detected.switches.items()}),
        'left_out': left_out, 'finish': sites.FINISH, 'counter': Counter,
        'tree': detect.TREE}
    made = {path.removesuffix('.j2'): templates.get_template(path).render(
        facts) for path in templates.list_templates()}
    return {path: text for path, text in made.items() if text.strip()}


def write_site_files(folder: Path, made: Mapping[str, str]) -> None:
    """Write the files of the site, and the snapshot of its test cases.

    :raises SetupError: ReFrame refuses the files
    """
    for path, text in made.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    answer = sites.list_test_cases_with_reframe(folder)
    if 'error' in answer or answer['output']:
        raise SetupError('ReFrame refuses the generated files, which is a bug '
                         'of plumb; please report it: '
                         + (answer.get('error') or answer['output'][0]))
    (folder / sites.SNAPSHOT).write_text(sites.snapshot_text(answer['cases']))


def new(args: argparse.Namespace) -> int:
    """Make a site's folder, after a confirmation."""
    folder = (args.path or SITES / args.name).absolute()
    refuse_bad_site_name(args.name, folder)
    facts = detect_machine(args.recorded, args.modules)
    made = render_site_files(args.name, facts, resolve_choices(args, facts),
                             '' if folder.parent == SITES else str(ROOT))
    summary = made.pop(SUMMARY)
    with tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch, args.name)
        write_site_files(draft, made)
        files = ', '.join([*made, sites.SNAPSHOT])
        print(f'{args.name}\n  folder       {folder} ({files})\n{summary}', end='')
        if not args.yes and not sys.stdin.isatty():
            print_progress('nothing was written, because there is no terminal to '
                           'confirm it; add --yes to write the files')
            return 2
        if not args.yes and input(f'Write {folder}? y(es), [N]o: '
                                  ).strip().lower() not in ('y', 'yes'):
            print_progress('nothing was written')
            return 0
        try:
            shutil.copytree(draft, folder)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    if left := sites.unfinished_lines(folder):
        print('To complete by hand:', *left, sep='\n  ')
    print(f'{folder} was written. Next, run: ./plumb site check '
          f'{args.path or args.name}')
    return 0
