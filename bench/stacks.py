#!/usr/bin/env python3
"""Does every stack concretize for every site that wants it?

    P=.plumbline/venv/bin/python                   # made by ./plumb
    $P bench/stacks.py                                # what the sites name
    $P bench/stacks.py --site lumi                    # one site's stacks
    $P bench/stacks.py --site lumi --stack mpi-rocm   # one pair, any pair

Prints a Markdown table. Nothing is installed and nothing is fetched: Spack's
recipes have to be there (PLUMBLINE_SPACK_PACKAGES, a clone of them), and so
has clingo. The sites' machines need not be: external paths are not looked at,
and Spack is told that a foreign processor is fine.

Exit status: 0 all concretized and kept their promises, 1 some did not, 2
something needed is missing.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ending

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from checks.spack.stack import (  # noqa: E402
    Spack,
    about,
    broken_promises,
    of_site,
    reason,
    spack_command,
)
from checks.spack.stack import environment as stack_environment  # noqa: E402

STACKS = ROOT / 'spack-envs'
SITES = ROOT / 'site-configs'

#: Sites whose processors are of another family than most benches'. Spack never
#: considers targets of another family than the machine's own, so it is told
#: another machine (see `pretend`).
FAMILY = {'alps': 'aarch64'}

#: For this bench only. At the site itself Spack should refuse a target that
#: the login node cannot run, and may use its cache of earlier solutions.
FOREIGN = ['-c', 'concretizer:targets:host_compatible:false',
           '-c', 'concretizer:concretization_cache:enable:false']


class Setup(Exception):
    """Something the bench needs is missing or wrong."""


# --- Spack -----------------------------------------------------------------

def find_spack(given: str | None) -> Path:
    found = given or spack_command()
    if not found or not os.access(found, os.X_OK):
        raise Setup(f'skipped, nothing was tried: no Spack ({found or "none"}'
                    '); set SPACK_ROOT, put spack on PATH or give --spack')
    return Path(found).resolve()


def environment(site: Path, work: Path) -> dict[str, str]:
    """As the suite calls Spack, with a work folder of our own."""
    return stack_environment(site) | {
        'PLUMBLINE_WORK': str(work),
        'SPACK_USER_CACHE_PATH': str(work / 'spack' / 'cache')}


def pretend(site: Path, work: Path) -> dict[str, str]:
    """Lets Spack, and nothing else, take this machine for one of the site's
    family: Python imports a module of this name by itself."""
    family = FAMILY.get(site.name)
    if family in (None, platform.machine()):
        return {}
    folder = work / family
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'sitecustomize.py').write_text(
        f'import platform\nplatform.machine = lambda: {family!r}\n')
    return {'PYTHONPATH': str(folder)}


def run(command: list[str], env: dict[str, str],
        limit: float) -> tuple[int | None, str, float, float]:
    """Exit status (None: out of time), output, seconds, CPU user seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    begin = time.monotonic()
    # A session of its own, so that nothing outlives the limit.
    child = subprocess.Popen(command, env=env, text=True, errors='replace',
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             start_new_session=True,
                             preexec_fn=ending.with_bench)
    status: int | None = None
    try:
        output = child.communicate(timeout=limit)[0]
        status = child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output = child.communicate()[0]
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    wall = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return status, output, wall, used


# --- one pair --------------------------------------------------------------

def copy(stack: str, site: Path, work: Path) -> Path:
    """Spack writes beside spack.yaml, so it gets a copy."""
    folder = work / 'envs' / f'{site.name}-{stack}'
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(STACKS / stack / 'spack.yaml', folder)
    return folder


def concretize(stack: str, site: Path, args) -> list[str]:
    """One row of the table, result last."""
    folder = copy(stack, site, args.work)
    env = environment(site, args.work)
    env |= pretend(site, args.work)
    status, output, wall, cpu = run(
        [str(args.spack), *FOREIGN, '-e', str(folder), 'concretize'],
        env, args.limit)
    (folder / 'concretize.log').write_text(output)
    row = [stack, site.name, '–', '–', f'{wall:.0f}', f'{cpu:.0f}']
    if status is None:
        return [*row, f'no answer in {args.limit:g} s']
    if status != 0:
        return [*row, reason(output)]
    if (folder / 'spack.yaml').read_text() != (
            STACKS / stack / 'spack.yaml').read_text():
        return [*row, 'Spack rewrote spack.yaml: does the site name gcc?']
    if 'constructing repository' in output:
        return [*row, 'a repository of recipes was dropped']
    lock = json.loads((folder / 'spack.lock').read_text())
    nodes = lock['concrete_specs'].values()
    row[2:4] = [str(len(nodes)), str(sum('external' in n for n in nodes))]
    broken = broken_promises(lock, about(stack)['promises'])
    return [*row, 'not as promised: ' + '; '.join(broken) if broken else 'ok']


def pairs(args: argparse.Namespace) -> list[tuple[str, Path]]:
    """Stack and site's folder: those asked for, or that the sites name."""
    sites = args.site or sorted(p.parent.name for p in SITES.glob('*/spack')
                                if p.parent.name != 'local')
    found = []
    for site in sites:
        path = Path(site) if '/' in site else SITES / site
        if not (path / 'spack').is_dir():
            raise Setup(f'{path}: no folder spack in it')
        configuration = runpy.run_path(str(path / 'system.py'))
        named = of_site(configuration['site_configuration'])
        for stack in args.stack or named:
            if not (STACKS / stack / 'spack.yaml').is_file():
                raise Setup(f'{STACKS / stack}: no spack.yaml in it')
            # What a site does not name is tried only when asked for by both
            # names.
            if args.site or stack in named:
                found.append((stack, path.resolve()))
    if not found:
        raise Setup('no pair left: no site names such a stack')
    return found


# --- command line ----------------------------------------------------------

def parse_arguments():
    p = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog='Exit status: 0 all did, 1 some did not, 2 cannot run.')
    p.add_argument('--site', action='append',
                   help='a site, or the folder of one (repeatable; default: '
                        'all but local)')
    p.add_argument('--stack', action='append',
                   help='a folder of spack-envs/ (repeatable; default: those '
                        'that make sense at the site)')
    p.add_argument('--spack', help='the spack command (default: '
                                   '$SPACK_ROOT/bin/spack, or on PATH)')
    p.add_argument('--limit', type=float, default=900.0,
                   help='seconds for one pair (default: 900)')
    p.add_argument('--work', type=Path,
                   help="keep Spack's caches, spack.lock and the output of "
                        'each pair here (default: a temporary folder)')
    ending.in_order()
    return p.parse_args()


def main() -> int:
    args = parse_arguments()
    failed = 0
    with tempfile.TemporaryDirectory(prefix='stacks-') as scratch:
        try:
            args.spack = find_spack(args.spack)
            args.work = (args.work or Path(scratch)).resolve()
            wanted = pairs(args)
            # Written by Spack when it finds no compiler, then in force for
            # good, and all figures below would be of that configuration.
            stray = Spack(str(args.spack), '').scope
            if stray.exists():
                raise Setup(f'{stray} exists: it would change every result')
            # Indices of all recipes, so that the first pair does not pay.
            run([str(args.spack), '-e', str(copy(*wanted[0], args.work)),
                 'providers', 'mpi'],
                environment(wanted[0][1], args.work), args.limit)
            print('| stack | site | specs | externals | wall s | CPU user s '
                  '| result |\n|---|---|---|---|---|---|---|', flush=True)
            for stack, site in wanted:
                row = concretize(stack, site, args)
                failed += row[-1] != 'ok'
                print('| ' + ' | '.join(cell.replace('|', r'\|')
                                        for cell in row) + ' |', flush=True)
            if stray.exists():
                raise Setup(f'Spack wrote {stray}: remove it; a site names '
                            'no compiler')
        except Setup as problem:
            print(f'stacks.py: {problem}', file=sys.stderr)
            return 2
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
