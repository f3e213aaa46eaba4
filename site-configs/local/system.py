"""This machine, whatever it is: detected, not written down."""
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from reframe.core.exceptions import ConfigError

# A ReFrame that was not installed by `plumb` does not find the suite.
sys.path.append(os.path.abspath(f'{__file__}/../../..'))

from checks.core import environs
from checks.machine import cpus, software
from checks.optcast import programs as optcast
from checks.osu import programs
from config.common import SETTINGS
from config.sites import launch

_WORK = os.environ.get('PLUMBLINE_WORK', '.plumbline')
try:
    _mpi, _stores = software.detect_mpi_and_store_servers(Path(_WORK))
except software.NoMpi as err:
    # Of other errors ReFrame prints a traceback.
    raise ConfigError(str(err)) from None


def _processor() -> dict:
    """CPUs and cores that a job may use: the affinity, the cgroup's quota."""
    here = cpus.available_cpus()
    number, cores = len(here), len({cpu[:3] for cpu in here})
    try:
        quota, period = Path('/sys/fs/cgroup/cpu.max').read_text().split()
        if quota != 'max':
            number = max(1, min(number, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    # Of few CPUs by a quota each may be taken for a core.
    threads = max(1, number // cores)
    return {'num_cpus': number, 'num_cpus_per_core': threads,
            'num_sockets': 1, 'num_cpus_per_socket': number}


_env_vars = []
if _mpi['flavour'] == 'openmpi' and os.geteuid() == 0:
    # Open MPI asks for both before it starts anything as root (containers).
    _env_vars = [['OMPI_ALLOW_RUN_AS_ROOT', '1'],
                 ['OMPI_ALLOW_RUN_AS_ROOT_CONFIRM', '1']]
if _mpi['origin'] == 'wheel':
    # The wheel's UCX support for windows cannot be used here, and says so in
    # a line for every window and rank.
    _env_vars.append(['OMPI_MCA_osc', '^ucx'])
    if 'OMPI_MCA_btl' not in os.environ:
        # A transport for fabrics, which one machine does not use. It sleeps for 1 s
        # in MPI_Init of each rank when it finds no fabric.
        _env_vars.append(['OMPI_MCA_btl', '^ofi'])


def _environment(name: str, origin: dict, result: list) -> dict:
    extras = {'mpi_library': f"{_mpi['flavour']} {_mpi['version']}",
              'programs': {'osu': origin}}
    if _mpi['origin'] == 'wheel':
        # Known here, because the build is: two ranks of one machine talk
        # through shared memory, and the library says so when asked.
        extras['transport'] = {
            'name': 'shared memory',
            'env': {'OMPI_MCA_btl_base_verbose': '10'},
            'evidence': 'Using (sm|vader) btl for send',
        }
    # The wrapper is found on PATH, as mpirun is: its full path may have a
    # blank, and `cc` is shell words.
    return {'name': name, 'cc': 'mpicc', 'cxx': '', 'ftn': '',
            'features': ['mpi', 'osu', *result], 'extras': extras}


_environments = [_environment(_mpi['flavour'], {'source': 'embedded'},
                              list(programs.EMBEDDED))]
if os.environ.get('OMB_PREFIX'):
    _prefix = os.environ['OMB_PREFIX']
    _installed = list(programs.find_installed_programs(_prefix))
    if not _installed:
        raise ConfigError(f'OMB_PREFIX={_prefix}: no program osu_* below it')
    _environments.append(_environment(
        f"{_mpi['flavour']}-omb", {'source': 'system', 'prefix': _prefix},
        _installed))


def _store(result: dict) -> dict:
    """The environment of a store that was found."""
    origin = {key: result[key] for key in ('source', 'prefix', 'version', 'spec')
              if key in result}
    more = {'store_bench': result['bench'],
            'memtier': shutil.which('memtier_benchmark')}
    return {'name': f"{result['store']}-{result['source']}",
            'cc': _mpi['compiler'], 'cxx': '', 'ftn': '',
            'features': [result['store'],
                         *(name for name, has in more.items() if has)],
            'extras': {'programs': {'keyvalue': origin}}}


_environments += map(_store, _stores)


def _tensors(result: dict) -> dict:
    """The environment of ranks that put tensors into a store."""
    origin = {key: result[key] for key in ('source', 'prefix', 'version')}
    client = ({'source': 'system', 'prefix': _smartredis} if _smartredis
              else {'source': 'embedded'})
    return {'name': f"tensors-{result['store']}-{result['source']}",
            'cc': 'mpicc', 'cxx': '', 'ftn': '',
            'features': [f"tensor_{result['store']}",
                         *(['libtorch'] if _libtorch else []),
                         *(['redisai'] if _redisai else []),
                         *(['smartredis'] if _smartredis else [])],
            'extras': {'mpi_library': f"{_mpi['flavour']} {_mpi['version']}",
                       'programs': {'keyvalue': origin, 'smartredis': client}},
            'env_vars': [[name, value] for name, value in (
                ('LIBTORCH', _libtorch), ('REDISAI', _redisai)) if value]}


#: Prefix of a libtorch (build.sh of the AI module finds it below lib).
_libtorch = os.environ.get('LIBTORCH', '')
if _libtorch and not Path(_libtorch, 'include', 'torch').is_dir():
    raise ConfigError(f'LIBTORCH={_libtorch}: no include/torch in it')

#: RedisAI, for example of `smart build`.
_redisai = os.environ.get('REDISAI', '')
if _redisai and not Path(_redisai).is_file():
    raise ConfigError(f'REDISAI={_redisai}: no such file')

#: Prefix of SmartRedis' library and of its own libraries.
_smartredis = os.environ.get('SMARTREDIS_PREFIX', '')
if _smartredis and not Path(_smartredis, 'include', 'client.h').is_file():
    raise ConfigError(f'SMARTREDIS_PREFIX={_smartredis}: no include/client.h in '
                      'it')


_environments += [_tensors(result) for result in _stores
                  if result['store'] in ('redis', 'valkey', 'keydb')]


def _memory() -> float:
    """GB of this machine."""
    pages = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    return round(pages / 2 ** 30, 2)


_environments.append(
    environs.embedded_program_environment('tao', 'taobench', _mpi['compiler']))


def _of_prefix(variable: str, family: str, name: str, feature: str,
               missing: Callable[[str], list[str]]) -> list[dict]:
    """The environment of programs in the folder that a variable names; none
    where it is not set.

    :arg missing: what is not in that folder.
    """
    prefix = os.environ.get(variable)
    if not prefix:
        return []
    for lost in missing(prefix):
        raise ConfigError(f'{variable}={prefix}: no {lost} there')
    return [{'name': name, 'cc': '', 'cxx': '', 'ftn': '',
             'features': [feature], 'extras': {'programs': {
                 family: {'source': 'system', 'prefix': prefix}}}}]


_environments += _of_prefix(
    'TAOBENCH_PREFIX', 'taobench', 'tao-dcperf', 'tao_bench',
    lambda prefix: [name for name in (
        'tao_bench_server', 'tao_bench_client', 'leader_sizes.json')
        if not Path(prefix, name).exists()])
_environments += _of_prefix(
    'OPTCAST_PREFIX', 'optcast', 'optcast', 'optcast_server',
    lambda prefix: [name for name in (optcast.SERVER, optcast.LIBRARY)
                    if not optcast.find_installed_file(prefix, name)])


def _stack(name: str) -> dict:
    """The environment of a stack that $PLUMBLINE_STACKS names."""
    return {'cc': 'cc', **environs.stack_environment(name, name), 'cxx': '', 'ftn': ''}


_environments += [_stack(name.strip()) for name in
                  os.environ.get('PLUMBLINE_STACKS', '').split(',')
                  if name.strip()]

site_configuration = {
    **SETTINGS,
    'systems': [{
        'name': 'local',
        'descr': 'this machine',
        'hostnames': ['.*'],
        'stagedir': f'{_WORK}/stage',
        'outputdir': f'{_WORK}/output',
        'partitions': [{
            'name': 'thishost',
            'scheduler': 'local',
            'launcher': 'mpirun',
            'max_jobs': 1,
            'environs': [env['name'] for env in _environments],
            'env_vars': _env_vars,
            'processor': _processor(),
            'extras': {
                # Stacks alone do not tell whose mpirun it is.
                'launcher_pin': launch.PIN[_mpi['flavour']],
                'launcher_oversubscribe': launch.SHARE[_mpi['flavour']],
                'oversubscribe_env': launch.SHARE_ENV.get(_mpi['flavour'], {}),
                'node_memory': _memory(),
                'others_cpu_limit': float(os.environ.get(
                    'PLUMBLINE_OTHERS_LIMIT', 0.05)),
            },
        }],
    }],
    'environments': _environments,
    # How often ReFrame checks whether the job has ended, at least. Unit: 1/s. With
    # its default of 0.1, it noticed the end of a job of three minutes up to 10 s
    # late. With 1, a session of 37 test cases lost 18 s.
    'general': [{**SETTINGS['general'][0], 'poll_rate_min': 4.0}],
}
