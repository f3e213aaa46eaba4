"""The suite needs only documented names of ReFrame, and replaces none."""
from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import reframe
from conftest import ROOT

#: Names of other objects, which ReFrame has, too.
OTHERS = {'tests/forks.py': {'_shutdown'}, 'tests/test_forks.py': {'_messages'}}

#: Loads the settings as ReFrame does; prints names of ReFrame that changed.
REPLACED = '''
import sys
from reframe.frontend import cli
def names():
    return {(module.__name__, name): value for module in [*sys.modules.values()]
            if module.__name__.startswith("reframe")
            for name, value in vars(module).items()}
before = names()
import config.common
after = names()
print([name for name in before if after[name] is not before[name]])
'''


@functools.cache
def names_of_reframe():
    return {name for path in Path(reframe.__file__).parent.rglob('*.py')
            for name in re.findall(r'\b_[a-z]\w+', path.read_text())}


@pytest.mark.parametrize('folder', ['checks', 'cli', 'config', 'postprocess', 'bench',
                                    'tests'])
def test_no_undocumented_name_is_used(folder):
    of_reframe = names_of_reframe()
    for path in ROOT.joinpath(folder).rglob('*.py'):
        file = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text())
        own = {node.name for node in ast.walk(tree)
               if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        own |= {node.attr for node in names if isinstance(node.ctx, ast.Store)
                and getattr(node.value, 'id', '') == 'self'}
        used = {node.attr for node in names}
        assert (used & of_reframe) - own <= OTHERS.get(file, set()), file


def test_no_name_of_reframe_is_replaced():
    done = subprocess.run([sys.executable, '-c', REPLACED], cwd=ROOT, text=True,
                          capture_output=True)
    assert (done.returncode, done.stdout) == (0, '[]\n'), done.stderr


@pytest.mark.parametrize('version', ['4.9.3', '4.10.0-dev.1'])
def test_an_old_reframe_ends_with_one_line(version):
    """.ci/reframe-versions runs real ones."""
    done = subprocess.run(
        [sys.executable, '-c', 'import runpy, reframe\n'
         f'reframe.VERSION = {version!r}\n'
         'runpy.run_path("config/common.py")'], cwd=ROOT, text=True,
        capture_output=True)
    if version == '4.9.3':
        assert done.returncode == 1
        assert done.stderr == (
            f'plumb: ReFrame {version} is too old; the suite needs 4.10.0 or '
            "newer: pip install 'reframe-hpc>=4.10.0'\n")
    else:
        assert (done.returncode, done.stderr) == (0, '')
