"""What CI installs, and what may be missing then: nothing of it."""
from __future__ import annotations

import os
import signal
import subprocess

import pytest
from conftest import LIMIT, ROOT, nested_tests, until
from packages import package_of

PACKAGES = ROOT / '.ci' / 'packages'

APT = '''#!/bin/sh
echo "$@" >>"$CALLS"
case " $* " in *' update '*) exit ;; esac
[ "$("$POLICY_RC_D" 2>&1; echo $?)" = 101 ] || echo 'a service starts' >&2
[ -z "${SLOW:-}" ] || { touch "$CALLS.slow"; sleep 20; }
exit "${BROKEN:-0}"
'''


@pytest.fixture
def debian(tmp_path):
    """Runs .ci/packages on a made-up Debian of root's."""
    tools = tmp_path / 'tools'
    tools.mkdir()
    for name, text in {
            'id': 'echo ${WHO:-0}', 'apt-get': APT,
            'apt-cache': 'case $2 in memtier*|valkey-s*) echo yes ;; esac',
            'dpkg-query': 'case " $HERE " in *" $4 "*|*all*) echo installed ;;'
                          ' *) exit 1 ;; esac'}.items():
        path = tools / name
        path.write_text(text if text is APT else f'#!/bin/sh\n{text}\n')
        path.chmod(0o755)

    def start(*names, **more):
        return subprocess.Popen(
            [PACKAGES, *names], text=True, stderr=subprocess.PIPE,
            start_new_session=True, env={
                'HERE': '', 'PATH': f'{tools}:{os.environ["PATH"]}',
                'CALLS': str(tmp_path / 'calls'),
                'POLICY_RC_D': str(tmp_path / 'policy-rc.d'), **more})

    def run(*names, **more):
        job = start(*names, **more)
        output = job.communicate(timeout=LIMIT)[1]
        return job.returncode, output
    run.start, run.tools, run.policy, run.calls = (
        start, tools, tmp_path / 'policy-rc.d', tmp_path / 'calls')
    return run


def test_all_that_the_release_has_is_installed_and_nothing_starts(debian):
    code, output = debian()
    assert code == 0 and 'a service starts' not in output
    assert 'this release has no package valkey-tools' in output
    update, install = debian.calls.read_text().splitlines()
    assert update.endswith(' update')
    words = install.split(' install ')[1].split()
    assert {*package_of().values(), 'memtier-benchmark',
            'valkey-server'} <= set(words)
    assert 'valkey-tools' not in words and '?' not in words
    assert not debian.policy.exists()


def test_only_what_is_missing_or_named(debian):
    assert debian(HERE='all') == (0, 'packages: all are installed\n')
    assert not debian.calls.exists()
    debian('munge', 'slurmd', HERE='munge')
    assert debian.calls.read_text().endswith(' install slurmd\n')


def test_a_failure_is_one(debian):
    code, output = debian(BROKEN='100')
    assert code == 1 and 'packages: apt-get install failed' in output
    assert not debian.policy.exists()


def test_who_is_not_root_goes_on(debian):
    code, output = debian(WHO='1000')
    assert code == 0 and 'nothing installed: root and apt-get' in output
    assert not debian.calls.exists()


@pytest.mark.parametrize('number, before', [
    (signal.SIGTERM, '#!/bin/sh\nexit 7\n'), (signal.SIGKILL, '')])
def test_the_policy_of_before_comes_back(debian, number, before):
    if before:
        debian.policy.write_text(before)
    job = debian.start('munge', SLOW='1')
    until(debian.calls.with_suffix('.slow').exists, job)
    assert 'exit 101' in debian.policy.read_text()
    os.killpg(job.pid, number)
    job.communicate(timeout=LIMIT)
    assert job.returncode
    if number == signal.SIGKILL:            # nobody could; the next one does
        debian('munge')
    left = sorted(path.name for path in debian.policy.parent.glob('policy*'))
    assert left == (['policy-rc.d'] if before else [])
    assert not before or debian.policy.read_text() == before


PROBE = '''
import pytest
from conftest import skip_missing

@pytest.fixture(scope='session')
def store():
    skip_missing('redis-server', 'no store')

def test_a(store): pass
def test_b(store): pass
def test_c(): skip_missing('valkey-server', 'no valkey, which few have')
def test_d(): pytest.skip('one CPU')
def test_e(): skip_missing('slurmctld', 'no cluster')
'''


@pytest.mark.parametrize('option, summary', [
    ((), '5 skipped'),
    (('--strict-tests', '-n2'), '1 failed, 2 skipped, 2 errors')])
def test_what_ci_installed_is_no_reason_to_skip(tmp_path, option, summary):
    done = subprocess.run(
        [*nested_tests(tmp_path, PROBE), *option, tmp_path],
        text=True, capture_output=True, cwd=tmp_path, timeout=LIMIT)
    assert summary in done.stdout, done.stdout
    assert done.returncode == bool(option)
    assert ('slurmctld must be here; install the package slurmctld'
            in done.stdout) == bool(option)
    # What a newcomer reads last.
    if not option:
        assert '''
5 tests were skipped, which is no failure. What this machine lacks:
     2  redis-server is missing: Debian package redis-server
''' in done.stdout, done.stdout
        assert '\n     1  one CPU\n' in done.stdout
        assert 'Debian or Ubuntu: sudo .ci/packages installs' in done.stdout


def test_without_root_there_is_no_bare_machine(debian):
    """One line, and an empty file means that all tests run elsewhere."""
    done = subprocess.run(
        [PACKAGES.with_name('bare'), 'bookworm'], text=True, capture_output=True,
        env={**os.environ, 'WHO': '1000', 'PATH': f'{debian.tools}:'
             + os.environ['PATH']})
    assert done.returncode == 0 and not done.stdout
    assert done.stderr == ('bare: skipped: root is needed; ./plumb selftest '
                           'runs all tests\n')
