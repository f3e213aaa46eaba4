"""A ReFrame that the site installed runs the suite: no plumb, no variable."""
from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checks.machine import software
from tests.conftest import LIMIT, ROOT, git

#: ReFrame without what only the suite's own virtual environment has: the
#: checkout on its path, and packages that ReFrame does not need.
REFRAME = f'''
import sys
sys.path[:] = [path for path in sys.path if path != {str(ROOT)!r}]
for name in ('ruamel', 'rich', 'duckdb', 'pandas', 'numpy', 'matplotlib'):
    sys.modules[name] = None
import reframe
reframe.VERSION = sys.argv.pop(1) or reframe.VERSION
from reframe.frontend import cli
sys.exit(cli.main())
'''

HELLO = ['-n', 'OsuStartup', '-E', 'program == "osu_hello"', '-t', 'quick']


class Clone:
    """A checkout in which nothing was set up, an empty HOME and folder."""

    def __init__(self, tmp: Path) -> None:
        self.root, self.home, self.here = (
            tmp / name for name in ('clone', 'home', 'here'))
        self.home.mkdir()
        self.here.mkdir()
        for name in git('ls-files', '-co', '--exclude-standard').splitlines():
            if (ROOT / name).is_file():
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target)

    def reframe(self, site: str, *args: str, family: str = 'taobench',
                version: str = '', **variables: str
                ) -> subprocess.CompletedProcess[str]:
        """
        :param family: with few test cases: ReFrame takes seconds for those of `osu`
        """
        return self.run_reframe(
            '-C', str(self.root / 'site-configs' / site / 'system.py'),
            '-c', str(self.root / 'checks' / family), *args, version=version,
            **variables)

    def run_reframe(self, *args: str, version: str = '', **variables: str
                    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, '-c', REFRAME, version, *args],
            env={'HOME': str(self.home), 'PATH': os.environ['PATH'],
                 'PLUMBLINE_LOCK': str(self.home.parent / 'lock'),
                 **variables}, cwd=self.here, text=True, timeout=LIMIT,
            capture_output=True, stdin=subprocess.DEVNULL)

    def refused(self, site: str, *args: str, **more: str) -> str:
        """The only line of a ReFrame that failed."""
        done = self.reframe(site, *args, **more)
        assert done.returncode == 1
        messages = [line for line in (done.stdout + done.stderr).splitlines()
                    if line and not line.startswith('Log file')]
        assert len(messages) == 1, messages
        return messages[0]


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
    return Clone(tmp_path_factory.mktemp('site'))


def test_a_session_needs_no_variable(clone):
    """Its report needs polars, which is at the end of sys.path."""
    done = clone.reframe('local', '-r', *HELLO, '--mode=quick', '--performance-report',
                         family='osu')
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'PASSED' in done.stdout and 'PERFORMANCE REPORT' in done.stdout
    assert list(clone.root.glob('perflogs/local/*/OsuStartup.log'))
    assert list(clone.root.glob('perflogs/sessions/*.json'))
    assert not [*clone.home.iterdir(), *clone.here.iterdir()]
    listed = clone.reframe('local', '--list-stored-sessions')
    assert listed.returncode == 0, listed.stdout + listed.stderr
    uuid, = re.findall('stored with UUID: (.*)', done.stdout)
    assert uuid in listed.stdout


def test_a_reframe_without_a_site_ends_with_one_line(clone):
    done = clone.run_reframe('-c', str(clone.root / 'checks'), '-R', '-l')
    assert done.returncode == 1
    assert done.stderr == (
        'plumb: ReFrame has no configuration of a site; add the option -C '
        f'{clone.root}/site-configs/SITE/system.py\n')


def test_references_of_the_site_are_found(clone):
    folder = clone.root / 'site-configs' / 'hgx-h100' / 'references'
    path = folder / 'taobench.yaml'
    path.write_text('complete: true\n')
    done = clone.reframe('hgx-h100', '--dry-run', '--exec-policy=serial', '-t', 'quick')
    path.unlink()
    assert done.returncode == 1
    assert f'{path}: ' in done.stdout


def test_references_of_another_site_are_refused(clone):
    other = clone.root / 'site-configs' / 'lumi' / 'references'
    done = clone.reframe('hgx-h100', '--dry-run', '-t', 'quick',
                         RFM_REFERENCE_PREFIX=str(other))
    assert done.returncode == 1
    assert 'of the site lumi, not of hgx-h100' in done.stdout


def test_the_command_of_the_documentation(clone, tmp_path):
    text = (ROOT / 'docs' / 'how-to' / 'own-reframe.md').read_text()
    part = text.partition('## With plain options\n')[2]
    block, = re.findall(r'(?:^    .*\n)+', part.partition('\n## ')[0], re.M)
    reframe = tmp_path / 'module' / 'reframe'
    reframe.parent.mkdir()
    reframe.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '
                       f'{shlex.quote(REFRAME)} "" "$@"\n')
    reframe.chmod(0o755)
    # One family: ReFrame takes half a minute for the test cases of all.
    block = (block.replace('$HOME/plumbline', str(clone.root))
             .replace('=mycluster', '=hgx-h100')
             .replace('$suite/checks', '$suite/checks/taobench'))
    assert ' -r ' in block
    done = subprocess.run(
        ['bash', '-ec', block.replace(' -r ', ' -l ')], text=True,
        env={'HOME': str(clone.home),
             'PATH': f'{reframe.parent}:{os.environ["PATH"]}'},
        cwd=clone.here, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'TaoBench' in done.stdout


def test_a_work_folder_that_cannot_be_written(clone):
    assert 'set PLUMBLINE_WORK to' in clone.refused(
        'hgx-h100', '-l', PLUMBLINE_WORK='/proc/plumbline')


def test_this_machine_without_an_mpi(clone, tmp_path):
    tools = tmp_path / 'tools'
    tools.mkdir()
    (tools / 'git').symlink_to(shutil.which('git'))
    assert 'no MPI: mpicc and mpirun are not on PATH' in clone.refused(
        'local', '-l', PATH=str(tools))


def test_an_mpi_that_was_loaded_since_set_up_is_asked(tmp_path, monkeypatch):
    """local.json is of another MPI: its flavour would pin ranks wrongly."""
    tools = tmp_path / 'mpi' / 'bin'
    tools.mkdir(parents=True)
    for name, text in (('mpicc', 'echo gcc'), ('mpirun', 'echo "HYDRA\n'
                                               'Version: 4.2"')):
        (tools / name).write_text(f'#!/bin/sh\n{text}\n')
        (tools / name).chmod(0o755)
    monkeypatch.setenv('PATH', f'{tools}:/usr/bin:/bin')
    software.save_detected_software(tmp_path, {'mpicc': '/opt/bin/mpicc',
                                               'mpirun': '/opt/bin/mpirun'}, [])
    mpi, _ = software.detect_mpi_and_store_servers(tmp_path)
    assert (mpi['flavour'], mpi['version']) == ('mpich', '4.2')
    software.save_detected_software(tmp_path, {**mpi, 'version': 'kept'}, [])
    assert software.detect_mpi_and_store_servers(tmp_path)[0]['version'] == 'kept'
