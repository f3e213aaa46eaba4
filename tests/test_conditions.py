"""Sessions on machines that are not ours: paths, locale, fast and slow."""
from __future__ import annotations

import os
import shlex
import shutil
import subprocess

import pytest
from conftest import LIMIT, OSU, ROOT, of_family, skip_missing, suite_in

from tests.cli.test_cli import complaint

#: All that the path of a work folder may have, besides letters and digits.
ODD = 'R&D[old]#1;(a_user)100%!=~+@^\xe9|<>*?'
#: One test case of a program under mpirun, one of a server and its clients.
OSU_CASE = [*OSU, '-E', 'program == "osu_latency"', '--tag', 'quick',
            '-SOsuPt2pt.max_size=1024', '-SOsuPt2pt.iterations=200',
            '-SOsuPt2pt.warmup=20']
STORE_CASE = [*of_family('keyvalue'), '-n', 'StoreServes', '--tag', 'quick',
              '-p', 'valkey-wheel',
              '-E', 'scenario.operation == "get"',
              '-SStoreServes.duration=0.5']
#: What a path may not have; the last is a byte that is no UTF-8.
REFUSED = ['$HOME', ':', '"', '\n', '\udcff']


@pytest.mark.parametrize('text', REFUSED, ids=ascii)
def test_a_work_folder_that_cannot_be_used_is_refused(suite, tmp_path, text):
    work = tmp_path / f'a{text}b'
    line = complaint(suite.plumb('env', PLUMBLINE_WORK=str(work)))
    assert 'PLUMBLINE_WORK' in line and repr(text[0])[1:-1] in line
    assert not work.exists()


@pytest.mark.parametrize('name', ['a b', "a'b"])
@pytest.mark.parametrize('start', ['plumb', 'reframe'])
def test_a_work_folder_in_which_no_local_job_starts_is_refused(suite, tmp_path, start,
                                                               name):
    work = tmp_path / name
    if start == 'plumb':
        line = complaint(suite.plumb('run', PLUMBLINE_WORK=str(work)))
    else:
        job = suite.start('-r', first=f'export PLUMBLINE_WORK={shlex.quote(str(work))}')
        line = job.communicate(timeout=LIMIT)[0].strip()
        assert job.returncode == 1
    assert (f'the work folder is {str(work)!r}: ReFrame starts no job in a path with '
            'blanks or quotes; set PLUMBLINE_WORK to a folder without them') in line
    assert line.count('\n') == 0 and not work.exists()


def test_a_checkout_that_cannot_be_used_is_refused(suite, tmp_path):
    checkout = tmp_path / '$HOME\n'
    for name in ('cli', 'config', 'checks'):
        shutil.copytree(ROOT / name, checkout / name)
    shutil.copy(ROOT / 'plumb', checkout)
    done = subprocess.run(
        [checkout / 'plumb', 'env'], text=True, capture_output=True,
        stdin=subprocess.DEVNULL, env={**os.environ, 'PLUMBLINE_WORK': ''})
    line = complaint(done)
    assert 'the folder of the checkout' in line and r"'\n' '$'" in line
    assert not (checkout / '.plumbline').exists()


def test_other_folders_that_cannot_be_used_are_refused(suite, tmp_path):
    site = tmp_path / 'a:b'
    shutil.copytree(ROOT / 'site-configs' / 'local', site)
    assert 'the folder of the site' in complaint(
        suite.plumb('env', '--site', str(site)))
    assert 'PLUMBLINE_PERFLOGS' in complaint(
        suite.plumb('env', PLUMBLINE_PERFLOGS=str(tmp_path / '$x')))


@pytest.fixture(scope='session')
def decimal_comma(tmp_path_factory) -> dict[str, str]:
    """Variables of a locale with a decimal comma."""
    folder = tmp_path_factory.mktemp('locales')
    done = subprocess.run(['localedef', '-i', 'de_DE', '-f', 'UTF-8',
                           folder / 'de_DE.UTF-8'], capture_output=True)
    if done.returncode:
        skip_missing('de_DE', 'no definition of the locale de_DE')
    result = {'LC_ALL': 'de_DE.UTF-8', 'LOCPATH': str(folder)}
    assert ',' in subprocess.run(
        ['bash', '-c', 'printf %.1f 1'], env={**os.environ, **result},
        text=True, capture_output=True).stdout
    return result


#: The user that the rest of a command line runs as has no entry in /etc/passwd,
#: and no variable with a name.
NAMELESS = ['env', '-u', 'LOGNAME', '-u', 'USER', '-u', 'LNAME', '-u', 'USERNAME',
            'unshare', '--user', '--map-user=54321']


@pytest.mark.parametrize('start', ['plumb', 'reframe'])
def test_a_session_where_everything_is_unusual(tmp_path, decimal_comma, start):
    """A user without a name, a locale with a decimal comma, folders with odd names;
    .ci/bare runs all of a first session so."""
    if shutil.which('unshare') is None or subprocess.run(
            [*NAMELESS, 'true'], capture_output=True).returncode:
        pytest.skip('no user namespaces here')
    folder = tmp_path / ODD
    folder.mkdir()
    suite = suite_in(folder)
    unusual = {**decimal_comma, 'HOME': str(folder / 'a $b'), 'TMPDIR': str(folder)}
    if start == 'plumb':
        case = STORE_CASE if (folder / 'work/stores/bin').exists() else OSU_CASE
        done = subprocess.run(
            [*NAMELESS, ROOT / 'plumb', 'run', '--', *case], text=True,
            env=os.environ | suite.variables | unusual, capture_output=True)
    else:
        done = suite.reframe('-r', *OSU_CASE, **unusual,
                             first=f'set -- {" ".join(NAMELESS)} "$@"')
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(float(r['value']) > 0 for r in suite.records
               if r['metric'] == 'wall_time')


def test_a_session_on_a_machine_that_is_faster(suite):
    done = suite.plumb('run', '--', *OSU_CASE, PLUMBLINE_TEST_SCALE='0.1')
    assert done.returncode == 0, done.stdout + done.stderr
