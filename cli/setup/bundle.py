"""`plumb bundle`: write all wheels that a set-up may need into one file."""
from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from cli.setup import bundle_file
from cli.setup.bundle_file import Platform
from cli.setup.venv import (
    LOCKS,
    WORK,
    SetupError,
    ensure_venv,
    print_progress,
    print_step_start_and_end,
    run_setup_command,
)

#: Pythons that the lock files are made for (config/python/README.md).
PYTHONS = ('3.10', '3.11', '3.12', '3.13', '3.14')
#: Locks without which a set-up goes on if no wheel fits the machine, because
#: the machine may have an MPI or stores of its own.
OPTIONAL = ('mpi', 'mpich', 'stores')
_ENTRY = re.compile(
    r'^(?P<what>[^\s#]+==\S+)(?: ; (?P<marker>.+?))?'
    r'(?P<hashes>(?: \\\n +--hash=\S+)+)$', re.M)


def applicable_lock_entries(lock: str, python: str, platform: Platform) -> str:
    """The entries of a lock file that apply to a Python and a platform.

    pip would evaluate the markers for the machine that it runs on.

    :param lock: text of the file
    """
    from packaging.markers import Marker

    there = {
        'python_version': python, 'python_full_version': f'{python}.0',
        'implementation_name': 'cpython', 'os_name': 'posix',
        'platform_python_implementation': 'CPython',
        'platform_machine': platform.machine, 'platform_system': 'Linux',
        'sys_platform': 'linux'}
    return ''.join(
        f"{entry['what']}{entry['hashes']}\n"
        for entry in _ENTRY.finditer(lock)
        if not entry['marker'] or Marker(entry['marker']).evaluate(there))


def download_wheels(lock: Path, python: str, platform: Platform, folder: Path
          ) -> list[Path]:
    """Download the wheels of a lock file, and check their hashes.

    :returns: empty if no wheel of an optional lock fits the platform
    :raises SetupError: a required wheel, or an index, is not available
    """
    requirements = folder / lock.name
    requirements.write_text(applicable_lock_entries(lock.read_text(), python, platform))
    try:
        run_setup_command([str(ensure_venv()), '-m', 'pip', 'download', '--quiet',
                           '--disable-pip-version-check', '--require-hashes',
                           '--no-deps', '--only-binary', ':all:',
                           '--implementation', 'cp', '--python-version', python,
                           *(f'--platform={tag}' for tag in platform.wheel_tags),
                           '--dest', str(folder), '-r', str(requirements)],
                          f'fetching {lock.name}', 'check that a package index can be '
                          'reached (PIP_INDEX_URL, PIP_FIND_LINKS), and that it has '
                          f'wheels for Python {python} on {platform}')
    except SetupError as err:
        if lock.stem not in OPTIONAL or 'No matching dist' not in str(err):
            raise
        return []
    return sorted(folder.glob('*.whl'))


def write_bundle(file: Path, python: str, platform: Platform
         ) -> tuple[list[str], list[str]]:
    """Make a bundle.

    :returns: its wheels, and the locks of which no wheel fits the platform
    """
    without = []
    wheels: dict[str, Path] = {}
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='bundle.', dir=WORK) as place:
        # Required locks first: without an index the command ends at once.
        for lock in sorted(LOCKS.glob('*.lock'),
                           key=lambda path: (path.stem in OPTIONAL, path)):
            with print_step_start_and_end(f'fetching wheels ({lock.stem})'):
                folder = Path(place, lock.stem)
                folder.mkdir()
                result = download_wheels(lock, python, platform, folder)
            without += [lock.stem] * (not result)
            wheels |= {path.name: path for path in result}
        bundle_file.write(file, wheels)
    return sorted(wheels), without


def bundle(args: argparse.Namespace) -> int:
    """Make a bundle and print its contents and its sha256."""
    python = args.python or '.'.join(map(str, sys.version_info[:2]))
    if python not in PYTHONS:
        raise SetupError(f'the lock files do not support Python {python!r}; '
                         f'choose one of {", ".join(PYTHONS)}')
    platform = (Platform.parse(args.platform) if args.platform
                else Platform.of_this_machine())
    # Checked here, and not after minutes of downloads.
    if not args.file.absolute().parent.is_dir():
        raise SetupError(f'{args.file.parent} is not a folder; create it, or '
                         'choose another path for the bundle')
    if args.file.is_dir():
        raise SetupError(f'{args.file} is a folder; give the path of a file '
                         'to write')
    wheels, without = write_bundle(args.file, python, platform)
    for name in without:
        print_progress(f'{name}.lock is left out, because it has no wheel for Python '
                       f'{python} on {platform}')
    print(f'{args.file}: {len(wheels)} wheels, '
          f'{args.file.stat().st_size / 1e6:.0f} MB, for Python {python} on '
          f'{platform}\nsha256 {bundle_file.sha256_of_file(args.file)}\n'
          f'On the other machine, run: {bundle_file.VARIABLE}='
          f'{args.file.name} ./plumb run')
    return 0
