#!/usr/bin/env python3
"""Concretizes every stack for every site that names it.

    P=.plumbline/venv/bin/python                   # made by ./plumb
    $P bench/stacks.py                                # what the sites name
    $P bench/stacks.py --site lumi                    # one site's stacks
    $P bench/stacks.py --site lumi --stack mpi-rocm   # one pair, any pair

Each pair is solved as `plumb dev spack install` does it, with two exceptions:
Spack accepts a processor that this machine is not, and takes this machine for
one of the site's processor family. Nothing is installed or fetched: Spack's
recipes (PLUMBLINE_SPACK_PACKAGES, a clone of them) and clingo must be
available. External paths of the sites need not exist.
"""
from __future__ import annotations

import argparse
import os
import platform
import resource
import runpy
import shlex
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from common import (
    ROOT,
    Missing,
    option_parser,
    print_table_head,
    print_table_row,
    run_main_and_exit,
)

from checks.spack.stack import (
    NoStack,
    Spack,
    Stack,
    StackError,
    find_and_check_spack,
    stacks_of_site,
)

SITES = ROOT / 'site-configs'

#: Site -> family of its processors, where that is not x86_64. Spack never
#: considers targets of another family than the machine's own.
FAMILY = {'alps': 'aarch64'}

#: At the site itself Spack should refuse a target that the login node cannot
#: run, and may use its cache of earlier solutions.
FOREIGN = ['-c', 'concretizer:targets:host_compatible:false',
           '-c', 'concretizer:concretization_cache:enable:false']


@dataclass(frozen=True)
class Foreign(Spack):
    """A script that calls Spack with further settings."""
    real: Spack = field(kw_only=True)

    @property
    def default_packages_file(self) -> Path:
        return self.real.default_packages_file


def spack_emulating_site_processor(real: Spack, site: Path, folder: Path) -> Foreign:
    """A Spack that takes this machine for one of the site's family."""
    script = folder / site.name / 'spack'
    script.parent.mkdir(exist_ok=True)
    family = FAMILY.get(site.name, platform.machine())
    # Python imports a module of this name by itself.
    (script.parent / 'sitecustomize.py').write_text(
        f'import platform\nplatform.machine = lambda: {family!r}\n')
    script.write_text(
        f'#!/bin/sh\nexport PYTHONPATH={shlex.quote(str(script.parent))}\n'
        f'exec {shlex.join([real.command, *FOREIGN])} "$@"\n')
    script.chmod(0o755)
    return Foreign(str(script), real.version, real.recipes, real=real)


def stack_site_pairs(args: argparse.Namespace) -> list[tuple[str, Path]]:
    """Stacks and folders of sites: those asked for, or that sites name."""
    sites = args.site or sorted(p.parent.name for p in SITES.glob('*/spack')
                                if p.parent.name != 'local')
    pairs_ = []
    for site in sites:
        path = Path(site) if '/' in site else SITES / site
        if not (path / 'system.py').is_file():
            raise Missing(f'{path}/system.py does not exist')
        named = stacks_of_site(runpy.run_path(str(path / 'system.py'))[
            'site_configuration'])
        # A stack that a site does not name is tried only if both are given.
        pairs_ += [(stack, path.resolve()) for stack in args.stack or named
                   if args.site or stack in named]
    if not pairs_:
        raise Missing('no site uses such a stack')
    return pairs_


def concretize_and_print(stack: Stack, spack: Spack) -> bool:
    """Prints a row of the table; returns whether the stack is solved."""
    begin = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    specs = externals = '–'
    try:
        concrete = stack.concretize(spack)['concrete_specs'].values()
        specs, externals = (
            len(concrete),
            sum('external' in n for n in concrete),
        )
        result = 'ok'
    except NoStack as err:
        raise Missing(str(err)) from None
    except StackError as err:
        result = str(err)
    wall = time.monotonic() - begin
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    print_table_row(stack.name, stack.site.name, specs, externals, f'{wall:.0f}',
                    f'{cpu:.0f}', result)
    return result == 'ok'


def main() -> bool:
    p = option_parser(__doc__)
    p.add_argument('--site', action='append',
                   help='a site, or the folder of one (repeatable; default: '
                        'all but local)')
    p.add_argument('--stack', action='append',
                   help='a folder of spack-envs/ (repeatable; default: those '
                        'that the site names)')
    p.add_argument('--work', type=Path,
                   help="keep Spack's caches, locks and output here "
                        '(default: a temporary folder)')
    args = p.parse_args()
    with tempfile.TemporaryDirectory(prefix='stacks-') as scratch:
        try:
            real = find_and_check_spack()
        except StackError as err:
            raise Missing(str(err)) from None
        os.environ['PLUMBLINE_WORK'] = str((args.work or Path(scratch)
                                            ).resolve())
        print_table_head('stack', 'site', 'specs', 'externals', 'wall s', 'CPU user s',
                         'result')
        good = [
            concretize_and_print(Stack(stack, site), spack_emulating_site_processor(
                real, site, Path(scratch)))
            for stack, site in stack_site_pairs(args)
        ]
    return all(good)


if __name__ == '__main__':
    run_main_and_exit(main)
