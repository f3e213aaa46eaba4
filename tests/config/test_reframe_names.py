"""The undocumented names of ReFrame that the suite needs."""
from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from config.sessions import runner as session

#: Modules that use such names; a new one is to be added with a reason.
FILES = ('config/sessions/runner.py', 'config/sessions/pinned.py',
         'config/records/perflog.py', 'config/common.py',
         'cli/site/cases.py', 'checks/core/base.py')


def exists(name: str) -> bool:
    """Whether ReFrame has a name of session.PRIVATE."""
    module, _, path = name.partition(':')
    try:
        owner = importlib.import_module(module)
    except ImportError:
        return False
    for part in path.split('.')[:-1]:
        owner = getattr(owner, part, None)
    last = path.rpartition('.')[2]
    if hasattr(owner, last):
        return True
    # An attribute that a method sets.
    return inspect.isclass(owner) and bool(re.search(
        rf'\bself\.{last}\b', inspect.getsource(owner)))


@pytest.mark.parametrize('name', session.PRIVATE)
def test_reframe_has_the_name(name):
    assert exists(name), (
        f'ReFrame has changed {name}, which the suite needs: '
        f'{session.PRIVATE[name]}')


@pytest.mark.parametrize('name', [
    'reframe.frontend.nosuch:Runner', 'reframe.frontend.executors:Nosuch',
    'reframe.frontend.executors:Runner._nosuch', 'reframe.nosuch:A.b'])
def test_a_name_that_changed_is_found(name):
    assert not exists(name)


def test_every_private_name_has_a_reason():
    listed = {name.rpartition(':')[2].rpartition('.')[2]
              for name in session.PRIVATE}
    for file in FILES:
        tree = ast.parse((ROOT / file).read_text())
        own = {node.name for node in ast.walk(tree)
               if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        used = {node.attr: node.lineno for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and re.match('_[a-z]', node.attr)}
        for name, line in used.items():
            assert name in own | listed, (
                f'{file}:{line}: {name} is missing in session.PRIVATE')


def test_a_reframe_without_the_runner_is_refused():
    """Its own runner would pass zero test cases."""
    done = subprocess.run(
        [sys.executable, '-c', 'import reframe.frontend.cli as cli\n'
         'del cli.Runner\nfrom config.sessions import runner\n'
         'runner.install_runner()'],
        cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(
        r'plumb: ReFrame \S+ has no reframe.frontend.cli.Runner for '
        r'the suite to replace; '
        'use an older ReFrame, or a newer Plumbline\n', done.stderr)


@pytest.mark.parametrize('version', ['3.12.0', '4.9.3', '4.10.0-dev.1',
                                     '4.11.2', '5.0.0'])
def test_an_old_reframe_ends_with_one_line(version):
    """.ci/reframe-versions runs real ones."""
    done = subprocess.run(
        [sys.executable, '-c', 'import runpy, reframe\n'
         f'reframe.VERSION = {version!r}\n'
         'runpy.run_path("config/common.py")'], cwd=ROOT, text=True,
        capture_output=True)
    if version[:3] in ('3.1', '4.9'):
        assert done.returncode == 1
        assert done.stderr == (
            f'plumb: ReFrame {version} is too old; the suite needs 4.10.0 or '
            "newer: pip install 'reframe-hpc>=4.10.0'\n")
    else:
        assert (done.returncode, done.stderr) == (0, '')
