"""What a machine tells of itself: commands, and pure parsers of their words.

Every command goes through :class:`Machine`, which can also read recorded
outputs: a folder with one file a command, named as in COMMANDS with .txt
(sinfo.txt, nvidia-smi.txt, ...). A file that is not there is a command that
was not found.
"""
from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from cli import nodes
from cli.nodes import Partition
from cli.setup import WORK, identify_mpi

#: Packages that a site rather has than builds.
EXTERNALS = ('gcc openmpi mpich mvapich2 cray-mpich cuda hip rdma-core '
             'libfabric ucx slurm gmake cmake perl openssl pkgconf m4 '
             'autoconf automake libtool')

#: Spack writes what it finds into the scope `user`, which is a folder of our
#: own here: neither Spack's nor the user's configuration is touched.
_SPACK = f'''
spack=${{SPACK_ROOT:+$SPACK_ROOT/bin/}}spack
command -v $spack > /dev/null || exit 127
scope=$(mktemp -d) && trap 'rm -rf "$scope"' EXIT
export SPACK_USER_CONFIG_PATH=$scope
unset SPACK_DISABLE_LOCAL_CONFIG
if [ -n "$PLUMBLINE_SPACK_PACKAGES" ]; then
    builtin=$PLUMBLINE_SPACK_PACKAGES/repos/spack_repo/builtin
    echo "repos: {{builtin: $builtin}}" > "$scope/repos.yaml"
fi
$spack external find --scope user {EXTERNALS} > /dev/null 2>&1
cat "$scope/packages.yaml"
'''

#: The stores that this Spack may already take packages from: its upstreams,
#: and its own where something is installed in it.
_UPSTREAMS = """
spack=${SPACK_ROOT:+$SPACK_ROOT/bin/}spack
command -v $spack > /dev/null || exit 127
$spack config get upstreams
$spack python - << 'END'
import os
import spack.store
root = spack.store.STORE.root
if os.path.exists(os.path.join(root, '.spack-db', 'index.json')):
    print('  this-spack:\\n    install_tree:', root)
END
"""

#: Name -> command. The name is that of the file with a recorded output.
COMMANDS: dict[str, list[str]] = {
    'hostname': ['hostname', '-s'],
    'sinfo': nodes.SINFO,
    'scontrol-node': ['scontrol', '--oneliner', 'show', 'node'],
    'scontrol-config': ['scontrol', 'show', 'config'],
    'scontrol-partition': ['scontrol', '--oneliner', 'show', 'partition'],
    'scontrol-topology': ['scontrol', '--oneliner', 'show', 'topology'],
    'lscpu': ['lscpu', '-J'],
    'nvidia-smi': ['nvidia-smi', '-L'],
    'rocm-smi': ['rocm-smi', '--showproductname'],
    'ibstat': ['ibstat'],
    'rdma': ['sh', '-c', 'grep -s . /sys/class/infiniband/*/hca_type '
             '/sys/class/infiniband/*/ports/*/state '
             '/sys/class/infiniband/*/ports/*/rate '
             '/sys/class/infiniband/*/ports/*/link_layer '
             '/sys/class/net/hsn*/speed'],
    'fi_info': ['fi_info'],
    'modules': ['bash', '-lc',
                'type module > /dev/null 2>&1 || exit 127; '
                'module --version 2>&1; module -t avail 2>&1'],
    'mpirun': ['mpirun', '--version'],
    'paths': ['sh', '-c', 'for t in gcc g++ gfortran mpicc mpirun; do '
              'command -v $t; done'],
    'gcc': ['gcc', '-dumpfullversion'],
    'spack': ['sh', '-c', _SPACK],
    'upstreams': ['sh', '-c', _UPSTREAMS],
}

#: Seconds that a command may take. Spack's first look is a slow one.
LIMIT = 30
LIMITS = {'spack': 180, 'upstreams': 60}


@dataclass
class Machine:
    """Answers of commands, live or recorded."""
    recorded: Path | None = None
    #: Commands that answered.
    heard: list[str] = field(default_factory=list)
    #: Command -> why it gave nothing.
    silent: dict[str, str] = field(default_factory=dict)

    def tell(self, name: str, *more: str) -> str:
        """A command's output; empty, with the reason kept, where it failed.
        """
        text, why = (self._recorded(name) if self.recorded
                     else _run([*COMMANDS[name], *more],
                               LIMITS.get(name, LIMIT)))
        if text.strip():
            self.heard.append(name)
        else:
            self.silent[name] = why
        return text

    def _recorded(self, name: str) -> tuple[str, str]:
        assert self.recorded
        try:
            return (self.recorded / f'{name}.txt').read_text(), 'said nothing'
        except FileNotFoundError:
            return '', 'not found'
        except (OSError, UnicodeDecodeError) as err:
            return '', f'cannot be read: {err}'


def _run(command: list[str], limit: int) -> tuple[str, str]:
    """What a command prints, and why it printed nothing."""
    try:
        done = subprocess.run(
            command, text=True, errors='replace', stdin=subprocess.DEVNULL,
            capture_output=True, timeout=limit)
    except FileNotFoundError:
        return '', 'not found'
    except subprocess.TimeoutExpired:
        return '', f'no answer in {limit} s'
    except OSError as err:
        return '', err.strerror or str(err)
    words = done.stderr.strip().splitlines() or ['said nothing']
    return done.stdout, ('not found' if done.returncode == 127
                         else words[-1][:120])


# -------------------------------------------------------------------- Slurm

@dataclass(frozen=True)
class Gpus:
    vendor: str                 # nvidia, amd, or empty: not known
    model: str
    number: int
    source: str


def distinct(parts: list[Partition]) -> list[Partition]:
    """Without those whose nodes are all in a larger one (debug, preempt):
    they would measure the same nodes again."""
    names = [{n.name for n in part.nodes} for part in parts]
    return [part for i, part in enumerate(parts) if not any(
        names[i] < other or names[i] == other and j < i
        for j, other in enumerate(names))]


def _records(text: str, name: str) -> Iterator[dict[str, str]]:
    """The `Key=value` pairs of each line that scontrol has of such a name."""
    for line in text.splitlines():
        pairs = dict(re.findall(r'(\w+)=(\S*)', line))
        if name in pairs:
            yield pairs


def node_facts(text: str) -> dict[str, dict[str, str]]:
    """Node -> its `Key=value` pairs, from `scontrol --oneliner show node`."""
    return {pairs['NodeName']: pairs for pairs in _records(text, 'NodeName')}


def rules(text: str) -> dict[str, dict[str, str]]:
    """Partition -> its `Key=value` pairs, from `scontrol --oneliner show
    partition`."""
    return {pairs['PartitionName']: pairs
            for pairs in _records(text, 'PartitionName')}


def switches(text: str) -> dict[str, dict[str, str]]:
    """Switch -> {nodes: LIST} or {switches: LIST}, from `scontrol show
    topology`; empty where Slurm knows of no tree.

    A switch above others is told with the nodes below these: they are left
    out, the tree has them.
    """
    found = {}
    for pairs in _records(text, 'SwitchName'):
        for key in ('Switches', 'Nodes'):
            if pairs.get(key, '(null)') not in ('', '(null)'):
                found[pairs['SwitchName']] = {key.lower(): pairs[key]}
                break
    return found


#: What restricts the jobs of a partition -> the option that meets it.
RESTRICTIONS = {'AllowAccounts': '--account', 'AllowQos': '--qos'}


def restricted(rules: dict[str, str]) -> dict[str, str]:
    """Option -> the values that a partition takes, by its `rules`."""
    return {option: rules[key] for key, option in RESTRICTIONS.items()
            if rules.get(key, 'ALL') not in ('ALL', '')}


def enforced(config: dict[str, str]) -> str:
    """What Slurm enforces of accounting, as it says it; empty: nothing."""
    kinds = config.get('AccountingStorageEnforce', '').lower()
    return '' if kinds in ('none', '(null)', '0') else kinds


def slurm_config(text: str) -> dict[str, str]:
    """`scontrol show config` as a mapping."""
    return dict(re.findall(r'^(\w+)\s+= (.*?)\s*$', text, re.M))


_NVIDIA = re.compile(r'[abhlpvt]\d|g[bh]\d|rtx|quadro|tesla|titan|geforce|'
                     'nvidia', re.I)
_AMD = re.compile(r'(mi\d|amd|instinct|radeon|gfx)', re.I)


def vendor(model: str) -> str:
    """Whose GPU that is; empty where the name does not tell."""
    return ('amd' if _AMD.match(model) else
            'nvidia' if _NVIDIA.match(model) else '')


def gres_gpus(gres: str) -> Gpus | None:
    """GPUs of a GRES such as `gpu:h100:8(S:0-1),nvme:1`; None: none.

    >>> gres_gpus('gpu:h100:8(S:0-1)').number
    8
    """
    number, models = 0, []
    for item in re.sub(r'\([^)]*\)', '', gres).split(','):
        words = item.split(':')
        if words[0] == 'gpu' and words[-1].isdigit():
            number += int(words[-1])
            models += words[1:-1]
    model = '+'.join(dict.fromkeys(models))
    return Gpus(vendor(model), model, number, 'sinfo') if number else None


# ------------------------------------------------------------------ devices

def nvidia_gpus(text: str) -> Gpus | None:
    """GPUs from `nvidia-smi -L`; parts of one (MIG) are not counted."""
    models = re.findall(r'^GPU \d+: (?:NVIDIA )?(.+?) \(UUID', text, re.M)
    return Gpus('nvidia', models[0], len(models),
                'nvidia-smi') if models else None


def amd_gpus(text: str) -> Gpus | None:
    """GPUs from `rocm-smi --showproductname`; a MI250X counts as two."""
    models = re.findall(r'^GPU\[\d+\]\s*: Card series:\s*(.+?)\s*$', text,
                        re.M | re.I)
    return Gpus('amd', models[0].removeprefix('AMD '), len(models),
                'rocm-smi') if models else None


@dataclass(frozen=True)
class Nic:
    """A port of a card that goes to the fabric."""
    model: str
    layer: str                  # InfiniBand, Ethernet, Slingshot
    rate: float                 # Gb/s, 0: not known
    source: str


#: What the driver calls a card -> what people call it.
CARDS = {'MT4115': 'ConnectX-4', 'MT4119': 'ConnectX-5',
         'MT4121': 'ConnectX-5 Ex', 'MT4123': 'ConnectX-6',
         'MT4125': 'ConnectX-6 Dx', 'MT4129': 'ConnectX-7',
         'MT4131': 'ConnectX-8', 'MT41686': 'BlueField-2',
         'MT41692': 'BlueField-3'}


def ibstat_nics(text: str) -> list[Nic]:
    """Active ports from `ibstat`."""
    found = []
    for card in re.split(r"^CA '", text, flags=re.M)[1:]:
        kind = _after('CA type', card)
        for port in re.split(r'^\s*Port \d+:', card, flags=re.M)[1:]:
            if _after('State', port) == 'Active':
                found.append(Nic(CARDS.get(kind, kind),
                                 _after('Link layer', port),
                                 number(_after('Rate', port)), 'ibstat'))
    return found


def number(text: str) -> int:
    """A number as a tool prints it; 0 for N/A and other words."""
    found = re.match(r'\d+', text)
    return int(found[0]) if found else 0


def _after(key: str, text: str) -> str:
    found = re.search(rf'^\s*{key}: *(.*?)\s*$', text, re.M)
    return found[1] if found else ''


def sysfs_nics(text: str) -> list[Nic]:
    """Active ports from the lines `FILE:VALUE` of /sys/class/infiniband."""
    files = dict(line.split(':', 1) for line in text.splitlines()
                 if line.startswith('/sys/class/infiniband/'))
    found = []
    for path, state in sorted(files.items()):
        if path.endswith('/state') and 'ACTIVE' in state:
            port = path.removesuffix('/state')
            kind = files.get(port.split('/ports/')[0] + '/hca_type', '')
            rate = re.match(r'[\d.]+', files.get(f'{port}/rate', ''))
            found.append(Nic(CARDS.get(kind, kind or port.split('/')[4]),
                             files.get(f'{port}/link_layer', ''),
                             float(rate[0]) if rate else 0, 'rdma'))
    return found


def fabric_nics(text: str, speeds: str = '') -> list[Nic]:
    """Slingshot cards from `fi_info`; rates from /sys/class/net/hsn*."""
    domains = {domain for provider, domain in re.findall(
        r'^provider: (\S+)\n(?:\s+.*\n)*?\s+domain: (\S+)', text, re.M)
        if provider == 'cxi'}
    rates = re.findall(r'^/sys/class/net/hsn\d+/speed:(\d+)', speeds, re.M)
    rate = max(map(int, rates), default=0) / 1000
    return [Nic('Slingshot (cxi)', 'Slingshot', rate, 'fi_info')
            for _ in sorted(domains)]


def fabric(ports: Iterable[Nic]) -> list[Nic]:
    """The ports that MPI would use: Ethernet only where nothing else is."""
    ports = list(ports)
    return [p for p in ports if p.layer != 'Ethernet'] or ports


# ---------------------------------------------------------------- software

@dataclass(frozen=True)
class Cpu:
    model: str
    cpus: int
    threads: int
    sockets: int
    numa: int


def cpu(text: str) -> Cpu | None:
    """`lscpu -J`, which nests its entries in newer versions."""
    def flat(rows: list[dict]) -> Iterable[tuple[str, str]]:
        for row in rows:
            yield row['field'].rstrip(':'), row.get('data') or ''
            yield from flat(row.get('children', []))

    try:
        facts = dict(flat(json.loads(text)['lscpu']))
        return Cpu(facts.get('Model name', ''), int(facts['CPU(s)']),
                   int(facts.get('Thread(s) per core', 1)),
                   int(facts.get('Socket(s)', 1)),
                   int(facts.get('NUMA node(s)', 1)))
    except (ValueError, KeyError, TypeError):
        return None


def modules_system(text: str) -> str:
    """ReFrame's name of the modules system, from `module --version`."""
    if 'Lua' in text:
        return 'lmod'
    found = re.search(r'^Modules Release (\d+)', text, re.M)
    return ('tmod4' if int(found[1]) >= 4 else 'tmod') if found else 'nomod'


def modules(text: str) -> list[tuple[str, bool]]:
    """(module, whether it is the default) from `module -t avail`."""
    found = []
    for line in text.splitlines():
        word = re.fullmatch(r'([\w.+-]+(?:/[\w.+-]+)*)(\(.*\))?', line.strip())
        if word and '/' in word[1] or word and word[2]:
            found.append((word[1], 'default' in (word[2] or '')))
    return found


def newest(available: list[tuple[str, bool]], name: str) -> str:
    """The default of a module's versions, or the highest; empty: none."""
    def rank(item: tuple[str, bool]) -> tuple:
        return item[1], [int(n) for n in re.findall(r'\d+', item[0])]

    there = [m for m in available if m[0].split('/')[0] == name]
    return max(there, key=rank)[0] if there else ''


@dataclass(frozen=True)
class Mpi:
    flavour: str                # openmpi, mpich, intelmpi, cray
    version: str
    cc: str
    modules: tuple[str, ...]
    prefix: str
    source: str


#: Names of modules that bring an MPI, best first -> flavour.
MPI_MODULES = {'cray-mpich': 'cray', 'openmpi': 'openmpi', 'hpcx': 'openmpi',
               'mpich': 'mpich', 'mvapich2': 'mpich', 'mvapich': 'mpich',
               'intel-mpi': 'intelmpi', 'impi': 'intelmpi'}


def mpi_of_path(banner: str, paths: str) -> Mpi | None:
    """The MPI of PATH; the suite's own wheel is none of the site's."""
    flavour, version = identify_mpi(banner)
    there = {Path(p).name: Path(p) for p in paths.split()}
    if flavour == 'unknown' or not {'mpicc', 'mpirun'} <= set(there):
        return None
    prefix = there['mpicc'].parent.parent
    if prefix.is_relative_to(WORK):
        return None
    return Mpi(flavour, version, 'mpicc', (), str(prefix), 'mpirun')


def mpi_of_modules(available: list[tuple[str, bool]]) -> Mpi | None:
    """The best MPI among the modules."""
    for name, flavour in MPI_MODULES.items():
        found = newest(available, name)
        if found:
            version = found.partition('/')[2]
            if flavour == 'cray':
                more = [m for m in [newest(available, 'PrgEnv-gnu')] if m]
                return Mpi(flavour, version, 'cc', (*more, found), '',
                           'modules')
            return Mpi(flavour, version, 'mpicc', (found,), '', 'modules')
    return None


def gcc_external(version: str, paths: str) -> dict | None:
    """The gcc of PATH as Spack wants it; None where there is none."""
    there = {Path(p).name: p for p in paths.split()}
    if not version.strip() or 'gcc' not in there:
        return None
    names = {'c': 'gcc', 'cxx': 'g++', 'fortran': 'gfortran'}
    compilers = {lang: there[tool] for lang, tool in names.items()
                 if tool in there}
    languages = ','.join('c++' if x == 'cxx' else x for x in compilers)
    return {'spec': f"gcc@{version.strip()} languages:='{languages}'",
            'prefix': os.path.dirname(os.path.dirname(there['gcc'])),
            'extra_attributes': {'compilers': compilers}}


def spack_upstreams(text: str) -> dict[str, dict]:
    """`upstreams:` as Spack has them; empty where there are none."""
    # An empty section is printed as {}, which nothing may follow.
    text = text.replace('upstreams: {}', 'upstreams:')
    try:
        found = dict(yaml.safe_load(text)['upstreams'] or {})
    except (yaml.YAMLError, TypeError, KeyError, ValueError):
        return {}
    return {name: entry for name, entry in found.items()
            if isinstance(entry, dict) and 'install_tree' in entry}


def spack_packages(text: str) -> dict[str, dict]:
    """`packages:` as Spack wrote it; empty where that is none."""
    try:
        found = yaml.safe_load(text)
        return dict(found['packages'])
    except (yaml.YAMLError, TypeError, KeyError, ValueError):
        return {}
