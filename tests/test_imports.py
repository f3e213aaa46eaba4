"""Modules depend on each other one way; what is looked for has one rule."""
from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import pytest

from cli.setup.venv import ensure_mpi
from tests.conftest import ROOT

PACKAGES = ('bench', 'checks', 'cli', 'config', 'postprocess', 'tests')

#: Programs of several C files that call each other.
C_PROGRAMS = sorted({
    path.parent.relative_to(ROOT).as_posix()
    for path in (ROOT / 'checks').rglob('src/**/*.c')
    if len(list(path.parent.glob('*.c'))) > 1} - {'checks/core/src'})

Graph = Mapping[str, Set[str]]


def circles(graph: Graph) -> list[list[str]]:
    """Strongly connected parts of more than one module, each sorted."""
    def reached(start: str) -> set[str]:
        result: set[str] = set()
        todo = [start]
        while todo:
            more = graph.get(todo.pop(), set()) - result
            result |= more
            todo += more
        return result

    below = {name: reached(name) for name in graph}
    return sorted({tuple(sorted(
        other for other in below[name] if name in below.get(other, ())))
        for name in graph if name in below[name]})


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imports(path: Path) -> Iterable[str]:
    """What a file imports, in functions too; not what only types need."""
    tree = ast.parse(path.read_text(), path)
    package = name_of(path.parent / '__init__.py').split('.')
    for_types = {inner for node in ast.walk(tree) if isinstance(node, ast.If)
                 and 'TYPE_CHECKING' in ast.unparse(node.test)
                 for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[:len(package) - node.level + 1]
            base = '.'.join([*(above if node.level else []),
                             *filter(None, [node.module])])
            names = [f'{base}.{alias.name}' for alias in node.names]
            yield from names
            # Of a package, what is a module of it needs no more than that.
            if not all(map(is_module, names)):
                yield base


def is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split('.'))
    return place.is_dir() or place.with_suffix('.py').is_file()


def python_graph() -> dict[str, set[str]]:
    """Module -> modules that it imports, of all that is ours."""
    paths = {name_of(path): path for package in PACKAGES
             for path in sorted((ROOT / package).rglob('*.py'))}
    return {name: (set(imports(path)) & paths.keys()) - {name}
            for name, path in paths.items()}


def c_graph(folder: Path, objects: Path) -> dict[str, set[str]]:
    """File -> files that define what it uses, by the linker's symbols."""
    defined: dict[str, str] = {}
    used: dict[str, set[str]] = {}
    sources = sorted(folder.glob('*.c'))
    # <mpi.h> comes with the wrapper.
    cc = ensure_mpi()['mpicc'] if any(
        '<mpi.h>' in path.read_text()
        for path in folder.glob('*.[ch]')) else 'cc'
    for source in sources:
        made = objects / f'{source.stem}.o'
        subprocess.run([cc, '-std=gnu11', '-c', '-o', made, source],
                       check=True)
        for line in subprocess.run(['nm', made], text=True, check=True,
                                   capture_output=True).stdout.splitlines():
            kind, symbol = line.split()[-2:]
            if kind == 'U':
                used.setdefault(source.name, set()).add(symbol)
            elif kind.isupper():
                defined[symbol] = source.name
    return {name: {defined[symbol] for symbol in symbols & defined.keys()}
            for name, symbols in used.items()}


def include_graph(folder: Path) -> dict[str, set[str]]:
    """C file or header below a folder -> our headers that it includes."""
    return {str(path): {
        str((path.parent / name).resolve()) for name in re.findall(
            r'^\s*#\s*include\s*"(.+?)"', path.read_text(), re.M)}
        for path in folder.resolve().rglob('*')
        if path.suffix in ('.c', '.h', '.cpp', '.cc', '.hpp', '.cu')}


def test_a_circle_is_found():
    assert circles({'a': {'b'}, 'b': {'c'}, 'c': {'b'}, 'd': {'a'}}) == [
        ('b', 'c')]
    assert circles({'a': {'b', 'c'}, 'b': {'c'}, 'c': set()}) == []


def test_python_modules_import_one_way():
    graph = python_graph()
    assert 'config.sessions.modes' in graph['cli.session.commands'], \
        'the graph has no edges'
    assert circles(graph) == []


@pytest.mark.parametrize('program', C_PROGRAMS)
def test_c_files_call_one_way(program, tmp_path):
    graph = c_graph(ROOT / program, tmp_path)
    assert any(graph.values()), 'the graph has no edges'
    assert circles(graph) == []


def test_c_files_that_call_each_other_are_found(tmp_path):
    (tmp_path / 'a.c').write_text('int b(void); int a(void) {return b();}')
    (tmp_path / 'b.c').write_text('int a(void); int b(void) {return a();}')
    (tmp_path / 'c.c').write_text('int a(void); int c(void) {return a();}')
    assert circles(c_graph(tmp_path, tmp_path)) == [('a.c', 'b.c')]


def test_c_headers_include_one_way():
    graph = include_graph(ROOT / 'checks')
    tree = {Path(name).relative_to(ROOT).as_posix(): included
            for name, included in graph.items()}
    assert set(C_PROGRAMS) <= {str(Path(name).parent) for name, included
                               in tree.items() if included}
    assert circles(graph) == []
