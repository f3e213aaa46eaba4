"""The stacks and our own recipes: whole, sound, and read by Spack."""
from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from checks.spack.stack import spack_command
from tests.conftest import LIMIT

ROOT = Path(__file__).resolve().parents[2]
ENVS = ROOT / 'spack-envs'
STACKS = sorted(path.parent for path in ENVS.glob('*/spack.yaml'))
RECIPES = sorted(ENVS.glob('repo/spack_repo/plumbline/packages/*/package.py'))
FAMILIES = {'osu', 'nccl', 'keyvalue', 'optcast', 'smartredis',
            'taobench'}


def ids(path: Path) -> str:
    return path.parent.name if path.name == 'package.py' else path.name


def words(node: ast.AST) -> set[str]:
    """The names of the functions that a recipe calls."""
    return {call.func.id for call in ast.walk(node)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}


def test_there_are_stacks_and_recipes() -> None:
    assert len(STACKS) >= 7
    assert len(RECIPES) >= 9


@pytest.mark.parametrize('stack', STACKS, ids=ids)
def test_stack_is_whole(stack: Path) -> None:
    spack = yaml.safe_load((stack / 'spack.yaml').read_text())['spack']
    # The second one is for a file that was copied out of the checkout.
    assert spack['include'] == ['${PLUMBLINE_SITE}/spack', *(
        {'path': path, 'when': when} for path, when in (
            ('../common', 'not env.get("PLUMBLINE_ROOT")'),
            ('${PLUMBLINE_ROOT}/spack-envs/common',
             'env.get("PLUMBLINE_ROOT")')))]
    assert spack['concretizer'] == {'unify': True, 'reuse': False}
    assert spack['view'] is True
    # Which MPI, and of what version, is the site's choice.
    assert all('@' in spec or spec == 'mpi' for spec in spack['specs'])
    assert 'packages' not in spack, 'that is the choice of the site'

    about = yaml.safe_load((stack / 'stack.yaml').read_text())
    assert set(about) == {'descr', 'features', 'provides'}
    assert about['descr'] and '\n' not in about['descr']
    assert set(about['provides']) <= FAMILIES
    assert (stack / 'README.md').read_text().startswith(f'# {stack.name}\n')


def test_stacks_are_in_the_overview() -> None:
    overview = (ENVS / 'README.md').read_text()
    for stack in STACKS:
        assert f'({stack.name}/README.md)' in overview


@pytest.mark.parametrize('recipe', RECIPES, ids=ids)
def test_recipe_is_whole(recipe: Path) -> None:
    tree = ast.parse(recipe.read_text())
    package = next(node for node in tree.body
                   if isinstance(node, ast.ClassDef))
    assert ast.get_docstring(package)
    extends_spacks = any(getattr(base, 'id', '').startswith('Builtin')
                         for base in package.bases)
    assert extends_spacks or 'license' in words(package)
    assert any(isinstance(node, ast.FunctionDef)
               and node.name.startswith('test_') for node in package.body)

    has_code = not any(isinstance(node, ast.Assign)
                       and ast.unparse(node) == 'has_code = False'
                       for node in package.body)
    for call in ast.walk(package):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == 'version':
            how = {keyword.arg: keyword.value for keyword in call.keywords}
            assert not has_code or how.keys() & {'sha256', 'commit'}
            if 'sha256' in how:
                assert re.fullmatch('[0-9a-f]{64}',
                                    ast.literal_eval(how['sha256']))


def test_spack_audits_our_recipes(tmp_path: Path) -> None:
    spack = spack_command()
    recipes = os.environ.get('PLUMBLINE_SPACK_PACKAGES')
    if not spack or not recipes:
        pytest.skip('Spack or its recipes are missing: set SPACK_ROOT and '
                    'PLUMBLINE_SPACK_PACKAGES')
    names = [path.parent.name.replace('_', '-') for path in RECIPES]
    run = subprocess.run(
        [spack, '-C', str(ENVS / 'common'), 'audit', 'packages', *names],
        capture_output=True, text=True, timeout=LIMIT, env={
            **os.environ, 'SPACK_DISABLE_LOCAL_CONFIG': '1',
            'SPACK_USER_CACHE_PATH': str(tmp_path / 'cache'),
            'PLUMBLINE_ROOT': str(ROOT), 'PLUMBLINE_WORK': str(tmp_path)})
    assert run.returncode == 0, run.stdout + run.stderr
    # A repository that Spack cannot read is only a warning to it.
    assert 'Error constructing' not in run.stderr
