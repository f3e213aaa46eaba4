"""`plumb dev spack`: install stacks before a session, or keep their solutions."""
from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from checks.spack import stack as stacks
from cli.session.commands import load_site_configuration, site_folder
from cli.setup.venv import WORK, SetupError, ensure_mpi, print_progress
from config.places import is_site_named_local
from config.regular import write_file_atomically

#: Spack's settings of this machine, as they were detected.
OWN = WORK / 'local-spack'

#: Flavour of the MPI of this machine -> its name in Spack. A stack must have
#: the same MPI, because the site's launcher options are for its flavour.
_MPI = {'openmpi': 'openmpi', 'mpich': 'mpich',
        'intelmpi': 'intel-oneapi-mpi'}

#: Packages that a build on this machine takes from the system, if installed:
#: Spack package -> a file that proves it (None: Spack looks for the program).
_FROM_THE_SYSTEM = {
    **dict.fromkeys((
        'autoconf', 'automake', 'bison', 'cmake', 'diffutils', 'findutils',
        'flex', 'gawk', 'gettext', 'gmake', 'libtool', 'm4', 'ninja', 'perl',
        'pkgconf', 'python', 'sed', 'tar', 'texinfo')),
    'openssl': '/usr/include/openssl/ssl.h', 'zlib': '/usr/include/zlib.h',
}


def write_local_spack_settings(spack: stacks.Spack) -> None:
    """Write Spack's settings of the site `local`, under $PLUMBLINE_WORK.

    Compilers and tools are detected once; remove the folder local-spack to
    detect them again. The mirror ($PLUMBLINE_SPACK_MIRROR) and the build cache
    ($PLUMBLINE_SPACK_CACHE) are read from the environment each time.

    :raises SetupError: Spack detects no compiler
    """
    OWN.mkdir(parents=True, exist_ok=True)
    mirrors: dict[str, object] = {}
    if os.environ.get('PLUMBLINE_SPACK_MIRROR'):
        mirrors['sources'] = {'url': os.environ['PLUMBLINE_SPACK_MIRROR'],
                              'source': True, 'binary': False}
    if os.environ.get('PLUMBLINE_SPACK_CACHE'):
        mirrors['cache'] = {'url': os.environ['PLUMBLINE_SPACK_CACHE'],
                            'source': False, 'binary': True, 'signed': False}
    write_file_atomically(OWN / 'mirrors.yaml', yaml.safe_dump({'mirrors': mirrors}))
    if not (OWN / 'packages.yaml').exists():
        print_progress('detecting compilers and tools on this machine ...')
        write_file_atomically(OWN / 'packages.yaml', _detected_packages_yaml(spack))


def _detected_packages_yaml(spack: stacks.Spack) -> str:
    packages = [name for name, proof in _FROM_THE_SYSTEM.items()
                if proof is None or Path(proof).exists()]
    with tempfile.TemporaryDirectory() as private:
        env = {**stacks.spack_environment_variables(site_folder('local')),
               # Spack writes to the user's configuration what it detects:
               # give it a private one. PATH has only the system's tools,
               # without those of the user's shell.
               'SPACK_USER_CONFIG_PATH': private,
               'PATH': '/usr/local/bin:/usr/bin:/bin'}
        del env['SPACK_DISABLE_LOCAL_CONFIG']
        Path(private, 'repos.yaml').write_text(yaml.safe_dump(
            {'repos': stacks.builtin_repo_settings()}))
        output = ''
        for words in (['compiler', 'find', '--scope', 'user'],
                      ['external', 'find', '--scope', 'user',
                       '--not-buildable', *packages]):
            output += subprocess.run(
                [spack.command, *words], env=env, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=600).stdout
        try:
            text = Path(private, 'packages.yaml').read_text()
        except OSError:
            text = ''
    if 'extra_attributes' not in text:
        raise SetupError('Spack detects no compiler; install gcc and g++. '
                         'Output of Spack: '
                         f'{" ".join(output.split())[-300:]}')
    settings = yaml.safe_load(text)
    settings['packages']['mpi'] = {'require': [_MPI[ensure_mpi()['flavour']]]}
    return yaml.safe_dump(settings)


def spack(args: argparse.Namespace) -> int:
    """Install or lock the stacks of --stack, or all of the site."""
    folder = site_folder(args.site)
    # A signal must end Spack, too: else it would go on to build.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        spack_command = stacks.find_and_check_spack()
        if is_site_named_local(folder):
            write_local_spack_settings(spack_command)
        names = args.stack or stacks.stacks_of_site(_reframe_site_configuration(folder))
        if not names:
            raise SetupError(f'{folder}: no environment has a stack; choose '
                             'one with --stack: '
                             f'{", ".join(stacks.stack_names())}')
        for name in names:
            stack = stacks.Stack(name, folder)
            print(stack.install(spack_command)['view'] if args.what == 'install'
                  else stack.solve_and_save_spack_lock(spack_command))
    except stacks.NoStack as err:
        raise SetupError(str(err)) from None
    except stacks.StackError as err:
        print_progress(str(err))
        return 1
    return 0


def _reframe_site_configuration(folder: Path) -> dict:
    if is_site_named_local(folder):
        # Its environments need an MPI, but its stacks do not.
        words = os.environ.get('PLUMBLINE_STACKS', '').split(',')
        return {'environments': [{'extras': {'stack': word.strip()}}
                                 for word in words if word.strip()]}
    return load_site_configuration(folder / 'system.py')
