"""`plumb dev spack lock`: keep the solutions of stacks in the folder of a site."""
from __future__ import annotations

import argparse
import os
from pathlib import Path

from checks.spack import stack as stacks
from cli.session.commands import load_site_configuration, site_folder
from cli.setup.venv import SetupError, print_progress
from config.places import is_site_named_local
from config.regular import write_file_atomically


def spack(args: argparse.Namespace) -> int:
    """Solve the stacks of --stack, or all of the site, and keep the solutions."""
    folder = site_folder(args.site)
    command = stacks.spack_command()
    if not command:
        raise SetupError('Spack was not found: set SPACK_ROOT to a clone of it, or put '
                         '`spack` on PATH')
    names = args.stack or stacks.stacks_of_site(_reframe_site_configuration(folder))
    if not names:
        raise SetupError(f'{folder}: no environment names a software stack (its '
                         'extra `stack`); choose one of spack-envs/ with --stack: '
                         f'{", ".join(stacks.stack_names())}')
    try:
        for name in names:
            stacks.read_stack_yaml(name)
            stack = stacks.Stack(name, folder)
            stack.concretize(command)
            stack.lock_file_of_site.parent.mkdir(parents=True, exist_ok=True)
            write_file_atomically(stack.lock_file_of_site,
                                  (stack.folder / 'spack.lock').read_text())
            print(stack.lock_file_of_site)
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
