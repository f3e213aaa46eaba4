"""Files of the repository that platforms and tools read."""
from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
import yaml

from config.version import VERSION
from tests.conftest import LIMIT, ROOT

TEMPLATES = ROOT / '.github/ISSUE_TEMPLATE'


def yaml_file(path):
    return yaml.safe_load((ROOT / path).read_text())


def test_the_citation_is_of_this_version():
    citation = yaml_file('CITATION.cff')
    assert citation['version'] == VERSION
    assert citation['license'] == 'Apache-2.0'
    assert {'cff-version', 'message', 'title', 'authors'} <= citation.keys()
    released = f'## [{VERSION}] - unreleased' not in (ROOT / 'CHANGELOG.md').read_text()
    assert ('date-released' in citation) == released


def test_issue_forms_ask_for_the_doctor():
    form = yaml_file(TEMPLATES / 'bug.yml')
    required = [row['id'] for row in form['body']
                if row.get('validations', {}).get('required')]
    assert 'doctor' in required
    assert './plumb doctor' in str(form)
    assert './plumb doctor' in (ROOT / '.gitlab/issue_templates/Bug.md').read_text()


@pytest.mark.parametrize('hook', yaml_file('.pre-commit-config.yaml')['repos'][0][
    'hooks'], ids=lambda hook: hook['id'])
def test_hooks_run_the_linters_of_the_self_tests(hook):
    """With the Python of this environment, from which nothing is fetched."""
    python, *words = shlex.split(hook['entry'])
    assert hook['language'] == 'system'
    assert python == '.plumbline/venv/bin/python'
    # What the linters say of the repository is for tests/test_contracts.py.
    done = subprocess.run([sys.executable, *words[:2], '--version'],
                          capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0 and hook['id'] in done.stdout
    contracts = ''.join((ROOT / 'tests' / name).read_text()
                        for name in ('test_contracts.py', 'conftest.py'))
    assert ', '.join(f"'{word}'" for word in words) in contracts
