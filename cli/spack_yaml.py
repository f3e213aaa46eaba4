"""Spack's YAML files: what its schema refuses, and what it lets pass.

A typo under `config:` or in a package's name is silently ignored by Spack, a
file of an old form too; a site then runs with other software than it says.
Each finding is one line: `file:line: what; what to do`.
"""
from __future__ import annotations

import contextlib
import difflib
import functools
import glob
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from checks.spack.stack import spack_command
from cli.setup import ROOT
from config import regular, strict

#: Keys of the sections that Spack does not check, of Spack 1.0 to 1.3; used
#: where no Spack is at hand to be asked.
KEYS = {
    'bootstrap': 'dev enable root sources trusted',
    'concretizer': 'compiler_mixing concretization_cache duplicates '
                   'error_on_timeout externals force os_compatible reuse '
                   'splice static_analysis targets timeout unify',
    'config': 'additional_external_search_paths aliases allow_sgid '
              'binary_index_ttl build_jobs build_language build_stage ccache '
              'checksum concurrent_packages connect_timeout '
              'db_lock_timeout debug deprecated develop_stage_link dirty '
              'environments_root extensions flags install_hash_length '
              'install_missing_compilers install_status install_tree '
              'installer license_dir locks misc_cache package_lock_timeout '
              'sandbox shared_linking source_cache ssl_certs stage_name '
              'suppress_gpg_warnings template_dirs test_stage '
              'url_fetch_method verify_ssl',
}

SECTIONS = ('bootstrap', 'cdash', 'ci', 'compilers', 'concretizer', 'config',
            'container', 'definitions', 'develop', 'env_vars', 'include',
            'include_concrete', 'mirrors', 'modules', 'packages', 'repos',
            'specs', 'toolchains', 'upstreams', 'view')

#: Keys of an entry under `packages:`.
ENTRY = ('buildable', 'conflict', 'externals', 'package_attributes',
         'permissions', 'prefer', 'providers', 'require', 'target',
         'variants', 'version', 'compiler')

#: Names of interfaces, which stand where a package's name does.
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

#: Packages of Spack's that it only takes from the site, and never builds;
#: those of our own say `is not built by Spack`.
_NEVER_BUILT = frozenset((
    'cray-mpich', 'cray-mvapich2', 'cray-libsci', 'cray-fftw', 'cray-pmi',
    'fujitsu-mpi', 'fujitsu-ssl2', 'hpcx-mpi', 'spectrum-mpi', 'msmpi',
    'essl', 'cce'))

_FIRST = re.compile(r'(?:[a-z][\w.]*\.)?([a-z0-9][a-z0-9_-]*)'
                    r'(?![\w.-]*=)(?=[\s@+~%^/]|$)')
_OTHERS = re.compile(r'[\^%](?:\[[^\]]*\])?\s*(?:[a-z,]+=)?'
                     r'([a-z0-9][a-z0-9_-]*)(?![\w-]*=)')


@dataclass(frozen=True, order=True)
class Finding:
    """Something to mend, as one line."""
    path: str
    line: int
    what: str
    todo: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: {self.what}; {self.todo}'


class Entry(NamedTuple):
    """A key of a mapping, or an item of a list, with its line."""
    name: str
    line: int
    value: yaml.Node


def entries(node: yaml.Node | None) -> list[Entry]:
    """What a mapping or a list holds; nothing for a plain value.

    `repos::`, `require+:` and the like are the same key to us as without the
    mark, which says how Spack merges it.
    """
    if isinstance(node, yaml.MappingNode):
        return [Entry(str(k.value).rstrip(':+-'), k.start_mark.line + 1, v)
                for k, v in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [Entry(str(i), v.start_mark.line + 1, v)
                for i, v in enumerate(node.value)]
    return []


def get(node: yaml.Node | None, *names: str) -> yaml.Node | None:
    """The value that a path of keys leads to, or None."""
    for name in names:
        node = next((e.value for e in entries(node) if e.name == name), None)
    return node


def line_of(root: yaml.Node | None, path: Sequence[str]) -> int:
    """Line of the last key of a path that is there."""
    line = 1
    for name in path:
        found = next((e for e in entries(root)
                      if e.name == name.rstrip(':+-')), None)
        if found is None:
            break
        line, root = found.line, found.value
    return line


def scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Every plain value below a node."""
    if isinstance(node, yaml.ScalarNode):
        yield node
    for entry in entries(node):
        yield from scalars(entry.value)


def top_keys(path: Path) -> list[str]:
    """Keys at the top of a YAML file; none where it cannot be read."""
    try:
        return [str(key) for key in strict.safe_load(regular.text(path)) or ()]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError):
        return []


def near(name: str, known: Iterable[str], otherwise: str) -> str:
    found = difflib.get_close_matches(name, known, 1, 0.6)
    return f'did you mean {found[0]}?' if found else otherwise


# ------------------------------------------------------------- Spack itself

def spack_root() -> Path | None:
    """The clone that the suite's spack command belongs to, if any."""
    command = spack_command()
    return Path(command).resolve().parents[1] if command else None


def ask_spack(root: Path | None, paths: Sequence[Path]) -> dict | str:
    """What Spack's schema says of files; a string says why it was not asked.
    """
    if root is None:
        return 'no Spack (SPACK_ROOT, or spack on PATH)'
    python = os.environ.get('SPACK_PYTHON') or sys.executable
    try:
        done = subprocess.run(
            [python, str(ROOT / 'cli' / 'spack_schema.py'), str(root),
             *map(str, paths)], text=True, capture_output=True, timeout=60,
            stdin=subprocess.DEVNULL)
        return json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as err:
        return f'{root}: {err}'
    except ValueError:
        last = (done.stderr.strip().splitlines() or ['said nothing'])[-1]
        return f'{root}: its schema cannot be asked ({last})'


@functools.cache
def package_names(root: Path | None) -> set[str]:
    """Names in Spack's package repository and in the suite's own; empty
    where the former is not at hand."""
    places = []
    if os.environ.get('PLUMBLINE_SPACK_PACKAGES'):
        places.append(os.environ['PLUMBLINE_SPACK_PACKAGES'] + '/repos')
    cache = os.environ.get('SPACK_USER_CACHE_PATH') or '~/.spack'
    places += sorted(glob.glob(
        os.path.expanduser(f'{cache}/package_repos/*/repos')))
    if root:
        places.append(f'{root}/var/spack/repos')
    found: set[str] = set()
    for place in places:
        found |= _folders(f'{place}/spack_repo/builtin/packages')
        if found:
            own = ROOT / 'spack-envs' / 'repo' / 'spack_repo' / '*'
            return found | _folders(f'{own}/packages')
    return set()


def _folders(pattern: str) -> set[str]:
    """Package names of recipes: `_7zip` holds 7zip, `py_numpy` py-numpy."""
    return {item.name.lstrip('_').replace('_', '-')
            for folder in glob.glob(pattern) for item in os.scandir(folder)
            if item.is_dir()}


# --------------------------------------------------------------- the lint

@dataclass
class Lint:
    """The rules of our own, over files of one place."""
    keys: dict[str, list[str]]
    packages: set[str]

    def file(self, path: Path, root: yaml.Node | None) -> Iterator[Finding]:
        """Findings of one file, given as its tree of nodes."""
        where = str(path)
        body = get(root, 'spack') if path.name == 'spack.yaml' else root
        if path.name == 'compilers.yaml':
            yield Finding(where, 1, 'compilers.yaml is no longer read',
                          'put the compilers into packages.yaml, with '
                          'extra_attributes')
        for section in entries(body):
            yield from self.section(where, section)
        for value in scalars(body):
            yield from self.value(where, value)
        specs = [get(body, 'specs'), *(
            e.value for d in entries(get(body, 'definitions'))
            for e in entries(d.value))]
        for node in specs:
            yield from self.specs(where, node)

    def section(self, where: str, section: Entry) -> Iterator[Finding]:
        name, line, value = section
        if name not in SECTIONS and name not in self.keys:
            yield Finding(where, line, f'unknown section {name!r}',
                          near(name, SECTIONS, 'see Spack on configuration'))
        if name == 'compilers':
            yield Finding(where, line, 'compilers: is no longer read',
                          'put the compilers under packages:, with '
                          'extra_attributes')
        if name in KEYS:
            known = self.keys.get(name) or KEYS[name].split()
            for entry in entries(value):
                if entry.name not in known:
                    yield Finding(
                        where, entry.line, f'{name}: has no key '
                        f'{entry.name!r}, and Spack says nothing of it',
                        near(entry.name, known, f'there are '
                             f'{", ".join(known)}'))
        if name == 'config' and isinstance(
                tree := get(value, 'install_tree'), yaml.ScalarNode):
            yield Finding(where, tree.start_mark.line + 1, 'install_tree is '
                          'a plain path, the form before Spack 0.16',
                          'write install_tree: {root: PATH}')
        if name == 'packages':
            for entry in entries(value):
                yield from self.package(where, entry)

    def package(self, where: str, entry: Entry) -> Iterator[Finding]:
        if entry.name != 'all':
            yield from self.known(where, entry.line, entry.name)
        for key in entries(entry.value):
            if key.name == 'paths':
                yield Finding(where, key.line, 'paths: is the form of '
                              'externals before Spack 0.16', 'write '
                              'externals: [{spec: ..., prefix: ...}]')
            elif key.name == 'compiler':
                yield Finding(where, key.line, f'packages:{entry.name}:'
                              'compiler is ignored by Spack 1.0 and newer',
                              'write c: {require: [gcc]} (and cxx, fortran)')
            elif key.name not in ENTRY:
                yield Finding(where, key.line, f'packages:{entry.name} has '
                              f'no key {key.name!r}', near(
                                  key.name, ENTRY, 'there are '
                                  f'{", ".join(ENTRY)}'))
        for key in entries(get(entry.value, 'providers')):
            yield from self.specs(where, key.value)
        yield from self.specs(where, get(entry.value, 'require'))
        yield from self.specs(where, get(entry.value, 'prefer'))
        for external in entries(get(entry.value, 'externals')):
            yield from self.specs(where, get(external.value, 'spec'))
            if entry.name in COMPILERS and not entries(get(
                    external.value, 'extra_attributes', 'compilers')):
                yield Finding(
                    where, external.line, f'this {entry.name} has no '
                    'extra_attributes: compilers:, so Spack cannot call it',
                    'add extra_attributes: {compilers: {c: PATH, cxx: PATH}}')

    def specs(self, where: str, node: yaml.Node | None) -> Iterator[Finding]:
        """Names of packages in specs, wherever they stand below a node."""
        if isinstance(node, yaml.MappingNode):
            for entry in entries(node):
                if entry.name not in ('when', 'message', 'exclude'):
                    yield from self.specs(where, entry.value)
        elif isinstance(node, yaml.SequenceNode):
            for entry in entries(node):
                yield from self.specs(where, entry.value)
        elif isinstance(node, yaml.ScalarNode):
            for name in names_in(str(node.value)):
                yield from self.known(where, node.start_mark.line + 1, name)

    def known(self, where: str, line: int, name: str) -> Iterator[Finding]:
        plain = name.replace('_', '-')
        if self.packages and plain not in self.packages | VIRTUALS:
            yield Finding(where, line, f'no package {name!r} in Spack',
                          near(plain, self.packages | VIRTUALS,
                               'see spack list'))

    def value(self, where: str, node: yaml.ScalarNode) -> Iterator[Finding]:
        text, line = str(node.value), node.start_mark.line + 1
        if text.startswith(('$env/', '${env}/')):
            yield Finding(where, line, f'{text}: $env is not expanded here',
                          'write a path, or a variable of the environment')
        if re.match(r'file://\$', text):
            yield Finding(where, line, f'{text}: variables in a file:// URL '
                          'are not expanded', 'write the path alone: '
                          f'{text.removeprefix("file://")}')


def names_in(spec: str) -> list[str]:
    """Package names in a spec.

    >>> names_in('osu-micro-benchmarks+cuda ^nccl cuda_arch=90 %gcc')
    ['osu-micro-benchmarks', 'nccl', 'gcc']
    """
    first = _FIRST.match(spec)
    return [*([first[1]] if first else []), *_OTHERS.findall(spec)]


def has_compiler(roots: Iterable[yaml.Node | None]) -> bool:
    """Whether some file of a scope describes a compiler."""
    return any(entry.name in COMPILERS and get(entry.value, 'externals')
               for root in roots for entry in entries(get(root, 'packages')))


@functools.cache
def never_built() -> frozenset[str]:
    """Packages that are externals of a site, or nothing."""
    return _NEVER_BUILT | {
        path.parent.name.replace('_', '-') for path in (
            ROOT / 'spack-envs' / 'repo').glob('*/*/packages/*/package.py')
        if 'is not built by Spack' in path.read_text()}


class Externals:
    """What a site's folder spack/ has, and what it leaves to be built."""

    def __init__(self, scope: Path) -> None:
        #: Package -> file and line of its entry.
        self.places: dict[str, tuple[Path, int]] = {}
        self.given: set[str] = set()
        self.unbuildable = set(never_built())
        #: (interface, file, line, packages of which it must be one).
        self.required: list[tuple[str, Path, int, list[str]]] = []
        #: A file may include others, which nobody reads here.
        self.whole = True
        for path in sorted(scope.glob('*.yaml')):
            # A file that is no YAML is a finding of its own.
            with contextlib.suppress(OSError, UnicodeDecodeError,
                                     yaml.YAMLError):
                self._read(path, strict.compose(regular.text(path)))

    def _read(self, path: Path, root: yaml.Node | None) -> None:
        self.whole = self.whole and get(root, 'include') is None
        for entry in entries(get(root, 'packages')):
            self.places.setdefault(entry.name, (path, entry.line))
            if entries(get(entry.value, 'externals')):
                self.given.add(entry.name)
            buildable = get(entry.value, 'buildable')
            if (isinstance(buildable, yaml.ScalarNode)
                    and buildable.value.lower() == 'false'):
                self.unbuildable.add(entry.name)
            if entry.name in VIRTUALS:
                self.required += [
                    (entry.name, path, node.start_mark.line + 1,
                     names_in(node.value))
                    for node in scalars(get(entry.value, 'require'))]

    def lacks(self, package: str) -> bool:
        """Whether a package cannot be had: none is given, none is built."""
        return (self.whole and package in self.unbuildable
                and package not in self.given)

    def findings(self, wanted: Mapping[str, tuple[Path, int, str]]
                 ) -> Iterator[Finding]:
        """Packages that are asked for, and cannot be had.

        :arg wanted: package -> file, line and who asks for it.
        """
        for interface, path, line, packages in self.required:
            for package in filter(self.lacks, packages):
                yield self._finding(path, line, package,
                                    f'the {interface} must be {package}')
        for package, (path, line, who) in wanted.items():
            if self.lacks(package):
                yield self._finding(path, line, package,
                                    f'{who} needs {package}')

    def _finding(self, path: Path, line: int, package: str, what: str
                 ) -> Finding:
        why = ('is never built by Spack' if package in never_built()
               else 'has buildable: false')
        return Finding(str(path), line, f'{what}, which {why}, and the site '
                       'names no external',
                       f'add packages:{package}:externals: [{{spec: '
                       f'{package}@VERSION, prefix: FOLDER}}]')


def needs_of_stack(folder: Path) -> set[str]:
    """Packages that a stack has in any case: its specs and its promises."""
    found = set()
    for name, keys in (('spack.yaml', ('spack', 'specs')),
                       ('stack.yaml', ('promises',))):
        with contextlib.suppress(OSError, UnicodeDecodeError,
                                 yaml.YAMLError):
            tree = strict.compose(regular.text(folder / name))
            found |= {package for node in scalars(get(tree, *keys))
                      for package in names_in(node.value)}
    return found


def findings(scope: Path | None, files: Sequence[Path] = ()
             ) -> tuple[list[Finding], str]:
    """All that is to mend in a scope (a site's folder spack/) and in files.

    Returns them with what was asked: Spack's version, or why not.
    """
    own = sorted(scope.glob('*.yaml')) if scope else []
    trees: dict[Path, yaml.Node | None] = {}
    found: dict[tuple[str, int], Finding] = {}

    def add(new: Iterable[Finding]) -> None:
        for finding in new:
            found.setdefault((finding.path, finding.line), finding)

    for path in (*own, *files):
        try:
            trees[path] = strict.compose(regular.text(path))
        except (OSError, UnicodeDecodeError) as err:
            add([Finding(str(path), 1, f'cannot be read: {err}',
                         'mend or remove it')])
        except yaml.YAMLError as err:
            mark = getattr(err, 'problem_mark', None)
            add([Finding(str(path), mark.line + 1 if mark else 1,
                         f'not YAML: {getattr(err, "problem", err)}',
                         'look at this line and the one before')])
    root = spack_root()
    said = ask_spack(root, list(trees))
    names = package_names(root)
    keys = said['keys'] if isinstance(said, dict) else {}
    lint = Lint(keys, names)
    for path, tree in trees.items():
        add(lint.file(path, tree))
    roots = [trees[path] for path in own if path in trees]
    # What a file includes is not seen here, and may hold the compiler.
    if own and not has_compiler(roots) and not any(
            get(root, 'include') for root in roots):
        add([Finding(str(own[0]), 1, 'no compiler among the '
                     'packages: Spack would look for one and rewrite files',
                     'add gcc with externals: and extra_attributes:')])
    if isinstance(said, str):
        note = f'schema skipped: {said}'
    else:
        note = f'schema of Spack {said["version"]}'
        for path, tree in trees.items():
            add(_refusals(path, tree, said['errors'][str(path)]))
    if not names:
        note += ('; names of packages skipped: no package repository '
                 '(PLUMBLINE_SPACK_PACKAGES)')
    return sorted(found.values()), note


def _refusals(path: Path, tree: yaml.Node | None,
              errors: Iterable[tuple[list[str], str]]) -> Iterator[Finding]:
    for steps, message in errors:
        # An unknown key is an error of the mapping that it stands in.
        quoted = re.findall(r"'([^']+)' (?:was|were) unexpected", message)
        yield Finding(str(path), line_of(tree, [*steps, *quoted]),
                      f'{":".join(steps) or "the file"}: '
                      f'{" ".join(message.split())[:160]}',
                      "mend it (Spack's schema)")
