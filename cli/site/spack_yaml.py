"""Faults in the Spack files of a site or a stack.

If a Spack is available, its own schema is used. Spack silently ignores some
mistakes: a misspelt key of `config:`, a misspelt name of a package, a missing
compiler. The site would then run other software than its files describe. This
module reports these mistakes, too. Each fault is one line, `FILE:LINE: fault;
what to do`.
"""
from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from checks.spack.stack import ENVS, spack_command, spack_environment_variables
from cli.setup.venv import ROOT
from config import schema, strict
from config.strict import Fault

#: Time limit for Spack to load the files of a stack. Unit: s.
LIMIT = 300

#: Sections in which Spack's schema allows unknown keys.
OPEN_SECTIONS = ('bootstrap', 'concretizer', 'config')

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

def spack_root() -> Path | None:
    """The clone that the suite's spack command belongs to, if any."""
    command = spack_command()
    return Path(command).resolve().parents[1] if command else None


def validate_with_spack_schema(root: Path | None, paths: Sequence[Path]) -> dict | str:
    """Check files with Spack's schema; returns a string with the reason if it
    cannot be used.
    """
    if root is None:
        return 'Spack is not available; set SPACK_ROOT, or add spack to PATH'
    python = os.environ.get('SPACK_PYTHON') or sys.executable
    try:
        done = subprocess.run(
            [python, str(ROOT / 'cli' / 'site' / 'spack_schema.py'), str(root),
             *map(str, paths)], text=True, capture_output=True, timeout=60,
            stdin=subprocess.DEVNULL)
        return json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as err:
        return f'{root}: {err}'
    except ValueError:
        last = (done.stderr.strip().splitlines() or ['no output'])[-1]
        return f'{root}: its schema cannot be read ({last})'


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
            reason = (getattr(err, 'stderr', '') or str(err)).splitlines()[0]
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

def faults_of_file(path: Path, data: Any, schema_result: dict | str,
                   package_names: set[str]
            ) -> Iterator[Fault]:
    """Faults of one file.

    :param schema_result: the result of `validate_with_spack_schema`
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
    if isinstance(schema_result, str):
        return
    for section in OPEN_SECTIONS:
        keys = schema_result['keys'].get(section, [])
        for key in set(mapping_at_key_path(data, *top, section)) - set(keys):
            yield schema.fault_at_path(str(path), data, [*top, section, key], (
                f'Spack ignores this key; {schema.suggest_name(key, keys)}'))
    for steps, message in schema_result['errors'][str(path)]:
        # The schema reports an unknown key as an error of its mapping.
        quoted = re.findall(r"'([^']+)' (?:was|were) unexpected", message)
        yield schema.fault_at_path(str(path), data, [*steps, *quoted], (
            f'{" ".join(message.split())[:160]}; correct it (Spack\'s '
            'schema)'))


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

    :returns: the faults, and a note: the version of Spack's schema, or why it
        was not used
    """
    own = sorted(scope.glob('*.yaml')) if scope else []
    data: dict[Path, Any] = {}
    faults: list[Fault] = []
    for path in (*own, *files):
        try:
            data[path] = load_spack_yaml(path)
        except strict.Fault as err:
            faults.append(err)
    answer, names = validate_with_spack_schema(spack_root(),
                                               list(data)), known_package_names()
    for path in data:
        faults += faults_of_file(path, data[path], answer, names)
    if own and not any(has_compiler(data.get(path)) for path in own):
        faults.append(Fault(
            own[0], 1, 'the packages have no compiler with '
            'extra_attributes: compilers:, so Spack would detect one and '
            'change its files; add gcc with externals: [{spec: ..., prefix: '
            '..., extra_attributes: {compilers: {c: PATH, cxx: PATH}}}]'))
    note = (f'schema not checked: {answer}' if isinstance(answer, str)
            else f'schema of Spack {answer["version"]}')
    if not names:
        note += ('; package names not checked: set '
                 'PLUMBLINE_SPACK_PACKAGES to a package repository')
    return sorted(faults, key=lambda fault: (fault.file, fault.line)), note
