"""Variables of the caller that must not change sessions or records."""
from __future__ import annotations

import os
import subprocess
import sys

from conftest import ROOT, git

from config.sessions import caller
from tests.checks.test_faults import another_site

#: The commit that a session records, and what is left of the variables, as
#: ReFrame loads the settings.
RECORDED = ('import os, config.common; from config import version; '
            'from config.sessions import caller; '
            'print(version.suite_commit(), '
            '*[n for n in caller.VARIABLES if n in os.environ])')


def test_another_repository_of_the_caller_is_not_recorded(tmp_path):
    subset = git('describe', '--always', '--dirty', '--abbrev=12',
               '--exclude=*').strip()
    other = tmp_path / 'other'
    other.mkdir()
    git('init', '-q', folder=other)
    git('-c', 'user.name=x', '-c', 'user.email=x@example.org', 'commit', '-q',
        '--allow-empty', '-m', 'x', folder=other)
    done = subprocess.run(
        [sys.executable, '-c', RECORDED], cwd=ROOT, text=True,
        capture_output=True, env={
            **os.environ, 'GIT_DIR': str(other / '.git'),
            'GIT_WORK_TREE': str(other), 'PYTHONOPTIMIZE': '1'})
    assert done.stdout.split() == [subset], done.stderr


def test_assertions_and_help_are_part_of_the_suite():
    done = subprocess.run(
        [ROOT / 'plumb', '--help'], text=True, capture_output=True,
        env={**os.environ, 'PYTHONOPTIMIZE': '2'})
    assert done.returncode == 0 and 'Exit codes:' in done.stdout, done.stderr


def test_a_command_forgets_them_as_well(monkeypatch):
    from cli import __main__ as plumb
    for name in caller.VARIABLES:
        monkeypatch.setenv(name, 'x')
    monkeypatch.setattr(sys, 'argv', ['plumb', '--help'])
    assert plumb.main() == 0
    assert not set(caller.VARIABLES) & set(os.environ)


def test_variables_of_another_suite_select_nothing(suite, tmp_path):
    """Those that EESSI's documentation sets, and those of a centre's modules."""
    # Of one family: ReFrame takes seconds for the test cases of all.
    another_site(suite, tmp_path, "site_configuration['general'] = [{"
                 "**site_configuration['general'][0], 'check_search_path': ["
                 f"'{ROOT}/checks/taobench']}}]")
    done = suite.reframe('-l', RFM_CHECK_SEARCH_PATH=os.devnull,
                         RFM_SYSTEM='elsewhere', RFM_PERFLOG_DIR='/no/such')
    assert done.returncode == 0 and '- TaoBench' in done.stdout, done.stdout
