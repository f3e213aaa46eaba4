"""Faults in the Spack files of a site or a stack.

If a Spack is available, it loads the files, and reports what its schema refuses. It
silently ignores some mistakes: a key that occurs twice, a misspelt name of a package, a
missing compiler. The site would then run other software than its files describe. This
module reports these mistakes. Each fault is one line, `FILE:LINE: fault; what to do`.
"""
from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from checks.spack.stack import ENVS, spack_command, spack_environment_variables
from cli.setup.venv import ROOT
from config import schema, strict
from config.strict import Fault

#: Time limit for Spack to load the files of a stack. Unit: s.
LIMIT = 300

#: Names of Spack's virtual packages.
_VIRTUALS = (
    'armci awk blas c cuda-lang cxx daal elf fftw-api flame fortran '
    'fortran-rt fuse gl glu glx golang go-or-gccgo-bootstrap hip-lang iconv '
    'ipp java jpeg lapack libc libgfortran libglx libifcore libllvm lua-lang '
    'luajit mariadb-client mkl mpe mpi mysql-client onedal opencl pbs pil '
    'pkgconfig qmake rpc scalapack sycl szip tbb unwind uuid wasi-sdk '
    'xkbdata-api xxd yacc ziglang zlib-api')
VIRTUALS = frozenset(_VIRTUALS.split())

COMPILERS = ('aocc', 'acfl', 'cce', 'gcc', 'intel-oneapi-compilers', 'llvm',
             'llvm-amdgpu', 'nvhpc')


def load_spack_yaml(path: Path) -> Any:
    """The data of a file, with keys like `repos::` and `require+:` shortened
    to `repos` and `require`: the marks only say how Spack merges sections."""
    def strip_key_suffixes(data: Any) -> Any:
        if isinstance(data, list):
            return [strip_key_suffixes(one) for one in data]
        if not isinstance(data, strict.Mapping):
            return data
        made = strict.Mapping({str(key).rstrip(':+-'): strip_key_suffixes(value)
                               for key, value in data.items()})
        made.lines = {str(key).rstrip(':+-'): line
                      for key, line in data.lines.items()}
        return made
    return strip_key_suffixes(strict.load_yaml(path))


def mapping_at_key_path(data: Any, *keys: str) -> dict[str, Any]:
    """The mapping that a path of keys leads to; empty if there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


# ------------------------------------------------------------- Spack itself

def faults_of_loading_stacks(
    folder: Path, names: Iterable[str]
) -> tuple[list[str], str]:
    """Let Spack itself load stacks with the settings of a site.

    :returns: faults, and a note on how many stacks were loaded
    """
    spack = spack_command()
    if not spack:
        return [], ('not loaded, because Spack is not available; set '
                    'SPACK_ROOT, or add spack to PATH')
    env = {name: value for name, value in spack_environment_variables(folder).items()
           if name not in ('PLUMBLINE_ROOT', 'PLUMBLINE_WORK')}
    faults, names = [], sorted(set(names))
    for name in names:
        manifest = ENVS / name
        try:
            subprocess.run(
                [spack, '-e', str(manifest), 'config', 'get'], env=env,
                text=True, capture_output=True, timeout=LIMIT, check=True,
                stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as err:
            lines = (getattr(err, 'stderr', '') or str(err)).splitlines()
            reason = next((line for line in lines if 'Error: ' in line), lines[0])
            faults.append(f'{manifest}/spack.yaml:1: Spack cannot load this '
                          f'file with PLUMBLINE_SITE={folder}: {reason}')
    return (
        faults,
        f'{len(names) - len(faults)} of {len(names)} load with Spack',
    )


def known_package_names() -> set[str]:
    """Names of the packages of Spack's repository and of the suite's own.

    Empty if Spack's repository is not available.
    """
    cache = os.environ.get('SPACK_USER_CACHE_PATH') or '~/.spack'
    repositories = [
        f'{os.environ.get("PLUMBLINE_SPACK_PACKAGES", "")}/repos',
        *glob.glob(os.path.expanduser(f'{cache}/package_repos/*/repos'))]
    own = f'{ROOT}/spack-envs/repo/spack_repo/*/packages/*/'
    for repository in repositories:
        folders = glob.glob(f'{repository}/spack_repo/builtin/packages/*/')
        if folders:
            # Recipes: `_7zip` holds 7zip, `py_numpy` py-numpy.
            return {Path(folder).name.lstrip('_').replace('_', '-')
                    for folder in [*folders, *glob.glob(own)]}
    return set()


# --------------------------------------------------------------- the files

def faults_of_file(path: Path, data: Any, package_names: set[str]) -> Iterator[Fault]:
    """Faults of one file that Spack does not report.

    :param package_names: packages that exist; empty: names are not compared
    """
    top = ['spack'] if path.name == 'spack.yaml' else []
    if path.name == 'compilers.yaml' or 'compilers' in mapping_at_key_path(data, *top):
        yield schema.fault_at_path(str(path), data, [*top, 'compilers'], (
            'Spack ignores this section if packages.yaml has gcc; put the '
            'compilers under packages:, with extra_attributes'))
    known = package_names | VIRTUALS | {'all'}
    for name in mapping_at_key_path(data, *top, 'packages'):
        if package_names and name.replace('_', '-') not in known:
            yield schema.fault_at_path(str(path), data, [*top, 'packages', name], (
                f'Spack has no package of this name, and ignores the entry; '
                f'{schema.suggest_name(name, known)}'))


def has_compiler(data: Any) -> bool:
    """Whether a file describes a compiler that Spack can call, or includes
    other files, which may describe one."""
    externals = [one for name in COMPILERS for one in mapping_at_key_path(
        data, 'packages', name).get('externals') or ()]
    return 'include' in mapping_at_key_path(data) or any(
        mapping_at_key_path(one, 'extra_attributes', 'compilers') for one in externals)


def faults_of_scope(scope: Path | None, files: Sequence[Path] = ()
             ) -> tuple[list[Fault], str]:
    """All faults of a scope (a site's folder spack/) and of files.

    :returns: the faults, and a note on what was not checked; '': nothing
    """
    own = sorted(scope.glob('*.yaml')) if scope else []
    data: dict[Path, Any] = {}
    faults: list[Fault] = []
    for path in (*own, *files):
        try:
            data[path] = load_spack_yaml(path)
        except strict.Fault as err:
            faults.append(err)
    names = known_package_names()
    for path in data:
        faults += faults_of_file(path, data[path], names)
    if own and not any(has_compiler(data.get(path)) for path in own):
        faults.append(Fault(
            own[0], 1, 'the packages have no compiler with '
            'extra_attributes: compilers:, so Spack would detect one and '
            'change its files; add gcc with externals: [{spec: ..., prefix: '
            '..., extra_attributes: {compilers: {c: PATH, cxx: PATH}}}]'))
    note = '' if names else ('package names not checked: set PLUMBLINE_SPACK_PACKAGES '
                             'to a package repository')
    return sorted(faults, key=lambda fault: (fault.file, fault.line)), note
