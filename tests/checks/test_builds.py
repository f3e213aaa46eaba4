"""The line of a failed build."""
from __future__ import annotations

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from checks.machine import builds

FULL = 'No space left on device'


@pytest.mark.parametrize('output, line', [
    ("x.c:1:5: warning: error is unused [-Wunused]\nx.c: In function 'main':\n"
     "x.c:3:1: error: expected ';'\nx.c:9:1: error: expected '}'\n",
     "x.c:3:1: error: expected ';'"),
    (f'/usr/bin/ld: final link failed: {FULL}\n'
     'collect2: error: ld returned 1 exit status\n',
     f'/usr/bin/ld: final link failed: {FULL}'),
    ("x.c:(.text+0x5): undefined reference to `f'\n"
     'collect2: error: ld returned 1 exit status\n',
     "x.c:(.text+0x5): undefined reference to `f'"),
    (f"cp: error writing 'a': {FULL}\nx.c:3:1: error: expected ';'\n",
     f"cp: error writing 'a': {FULL}"),
    ('sh: line 1: mpicc: command not found\nmake: *** [all] Error 127\n',
     'sh: line 1: mpicc: command not found'),
    ('error: old\nplumb: first\nplumb: last\n', 'plumb: last'),
    ('one\ntwo\n', 'one'), ('', 'no output')])
def test_a_failed_build_gives_its_first_error(tmp_path, output, line):
    path = tmp_path / 'rfm_build.err'
    path.write_text(output)
    assert builds.first_build_error(path) == line


def test_a_compiler_names_the_first_error(tmp_path):
    """As the compiler of this machine writes it."""
    (tmp_path / 'x.c').write_text('int f(void);\nint main(void) { return f(); }\n')
    with open(tmp_path / 'err', 'w') as output:
        assert subprocess.run(['cc', 'x.c'], cwd=tmp_path, stderr=output).returncode
    assert 'undefined reference' in builds.first_build_error(tmp_path / 'err')


def test_a_full_disk_leaves_no_output(tmp_path, monkeypatch):
    (tmp_path / 'err').touch()
    monkeypatch.setattr(builds.os, 'statvfs', lambda _: SimpleNamespace(f_bavail=0))
    assert builds.first_build_error(tmp_path / 'err') == f'{FULL}: {tmp_path}'


def test_environments_with_the_same_compiler_share_a_build(tmp_path, monkeypatch):
    """The second copies what the first has built; without it, it builds."""
    monkeypatch.setattr(builds, '_FOLDERS_OF_COMMAND', {})

    def build(name, compiler='cc'):
        stage = tmp_path / 'with a blank' / name
        stage.mkdir(parents=True, exist_ok=True)
        command = builds.copy_or_build_command(
            SimpleNamespace(
                stagedir=str(stage),
                current_partition=SimpleNamespace(fullname='local:cpu'),
                current_environ=SimpleNamespace(
                    modules_detailed=[], env_vars={}, extras={})),
            'program', f'echo {compiler} in "${{PWD##*/}}" >program')
        subprocess.run(['sh', '-euc', f'{command}; touch {builds.BUILT}'], cwd=stage,
                       check=True)
        return (stage / 'program').read_text()

    assert build('first') == 'cc in first\n'
    assert build('second') == 'cc in first\n'
    assert build('third', 'mpicc') == 'mpicc in third\n'
    shutil.rmtree(tmp_path / 'with a blank' / 'first')
    assert build('fourth') == 'cc in first\n'           # the copy of the second
    shutil.rmtree(tmp_path / 'with a blank')
    assert build('fifth') == 'cc in fifth\n'
