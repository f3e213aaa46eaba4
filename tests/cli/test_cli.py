"""plumb on a command line: bad input is one line that says what to do."""
from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

from checks.machine.software import identify_mpi
from cli.session import commands
from config import places
from tests.checks.test_faults import another_site
from tests.cli.test_command_line import called

GOLDEN = ROOT / 'tests' / 'osu' / 'golden' / '7.2'


#: For shell scripts.
PLUMB = shlex.quote(f'{ROOT}/plumb')


def complaint(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """The one line on stderr of a command that refused."""
    lines = [ln for ln in done.stderr.splitlines()
             if ln.startswith('plumb: ') and not ln.endswith('...')
             and ': done in ' not in ln]
    assert done.returncode == code, done.stdout + done.stderr
    assert len(lines) == 1, done.stderr
    assert 'Traceback' not in done.stderr
    return lines[0]


@pytest.mark.parametrize('args, words', [
    (['run', '--site', 'locl'], 'did you mean local'),
    (['run', '--mode', 'quik'], 'did you mean quick'),
    (['env', '--site', '/no/such/site'], 'unknown site'),
    (['site', 'check', 'local', '--all'], 'or give --all'),
    (['site', 'check', 'locl'], 'did you mean local'),
    (['parse', 'osv', 'x'], 'osu'),
])
def test_wrong_names(capsys, monkeypatch, args, words):
    code, out, err = called(capsys, monkeypatch, *args)
    assert code == 2 and not out and words in err


def test_old_python(suite, tmp_path):
    old = tmp_path / 'python3'
    old.write_text('#!/bin/sh\nexit 1\n')
    old.chmod(0o755)
    done = suite.plumb('env', PLUMBLINE_PYTHON=str(old))
    assert 'no Python 3.10 or newer' in complaint(done)


def test_no_compiler(suite, tmp_path):
    tools = tmp_path / 'tools'
    tools.mkdir()
    for name in ('sh', 'dirname', 'readlink', 'bash', 'git', 'env'):
        for folder in ('/usr/bin', '/bin'):
            if Path(folder, name).exists():
                (tools / name).symlink_to(Path(folder, name))
                break
    work = Path(suite.variables['PLUMBLINE_WORK'])
    done = suite.plumb('env', PATH=str(tools),
                       PLUMBLINE_PYTHON=str(work / 'venv/bin/python'),
                       OMPI_CC='gcc', MPICH_CC='gcc')
    assert 'it calls the C compiler' in complaint(done)


def test_work_folder_that_cannot_be_written(suite):
    done = suite.plumb('env', PLUMBLINE_WORK='/proc/plumbline')
    assert 'set PLUMBLINE_WORK' in complaint(done)


def test_work_folder_among_the_files_of_the_checkout(suite):
    done = suite.plumb('env', PLUMBLINE_WORK=str(ROOT / 'cli' / '..'))
    assert 'is inside the checkout' in complaint(done)
    assert not (ROOT / 'setup.lock').exists()


@pytest.mark.parametrize('text, words', [
    ('site_configuration = {', 'system.py:1'),
    ('import no_such_thing\n', 'no_such_thing'),
    ("site_configuration = {'systems': [], 'modes': []}",
     'site_configuration lacks general, logging, storage, which all sites share; add '
     '**SETTINGS to it'),
])
def test_broken_site(suite, tmp_path, text, words):
    site = tmp_path / 'site'
    site.mkdir()
    (site / 'system.py').write_text(text)
    assert words in complaint(suite.plumb('env', '--site', str(site)))


def test_broken_reference_file(suite):
    suite.write_references('OsuPt2pt: [\n')
    assert 'osu.yaml:2: not YAML' in complaint(suite.plumb('run'))


@pytest.fixture
def other_site(tmp_path) -> Path:
    """A site besides `local`, with a reference file that has a mistake."""
    folder = tmp_path / 'other'
    (folder / 'references').mkdir(parents=True)
    (folder / 'references' / 'osu.yaml').write_text('\ncomplete: 1\n')
    (folder / 'system.py').write_text(
        'from config.common import SETTINGS\n'
        "site_configuration = {**SETTINGS, 'systems': [{'name': 'other', 'hostnames': "
        "['.*'], 'partitions': [{'name': 'cpu', 'scheduler': 'local', "
        "'launcher': 'local', 'environs': ['e'], "
        "'processor': {'num_cpus': 2, 'num_cpus_per_core': 1}}]}], "
        "'environments': [{'name': 'e'}]}\n")
    return folder


def test_the_site_of_the_command_decides_whose_references_judge(
        suite, other_site):
    del suite.variables['RFM_REFERENCE_PREFIX']
    local = subprocess.run(
        ['bash', '-c', f'eval "$({PLUMB} env --site local)"; '
         f'{PLUMB} run --site {other_site}'], text=True,
        capture_output=True, env={**os.environ, **suite.variables})
    assert f'{other_site}/references/osu.yaml:2: complete' in complaint(local)


def test_references_of_another_site_are_refused(other_site, tmp_path, monkeypatch):
    local, own = commands.site_folder('local'), tmp_path / 'references'
    own.mkdir()
    monkeypatch.delenv('PLUMBLINE_SITE', raising=False)
    with pytest.raises(places.PlaceError, match='of the site other, not of local'):
        places.reference_folder_of_site(local, str(other_site / 'references'))
    # Else no test case had a reference.
    with pytest.raises(places.PlaceError, match='/no/such, which is not a folder'):
        places.reference_folder_of_site(local, '/no/such')
    # Set for one site, and used with another one.
    monkeypatch.setenv('PLUMBLINE_SITE', 'local')
    with pytest.raises(places.PlaceError, match='of the site local, not of other'):
        places.reference_folder_of_site(other_site, str(own))
    # A folder of one's own, for the site of the command.
    monkeypatch.setenv('PLUMBLINE_SITE', str(other_site))
    assert places.reference_folder_of_site(other_site, str(own)) == own


def test_env_prints_exports_that_do_not_grow(suite):
    first = suite.plumb('env').stdout
    assert 'export RFM_CONFIG_FILES=' in first
    twice = subprocess.run(
        ['bash', '-c', f'{first}\n{PLUMB} env'], text=True,
        capture_output=True, env={**os.environ, **suite.variables}).stdout
    assert twice == first


def test_env_leaves_the_reframe_of_a_module(suite, tmp_path):
    # As the site `local` does if set-up has installed an MPI.
    another_site(suite, tmp_path, "os.environ['PATH'] += ':/of/the/site'")
    module = tmp_path / 'module' / 'reframe'
    module.parent.mkdir()
    module.write_text('#!/bin/sh\n')
    module.chmod(0o755)
    path = f'{module.parent}:{os.environ["PATH"]}'
    # Also where the suite's own is in front already.
    done = subprocess.run(
        ['bash', '-c', f'eval "$({PLUMB} env)"\ncommand -v reframe\n'
         f'eval "$({PLUMB} env --own-reframe)"\ncommand -v reframe\n'
         'echo $RFM_CONFIG_FILES; echo $PATH'], text=True, capture_output=True,
        env={**os.environ, **suite.variables, 'PATH': path})
    suites, own, files, last = done.stdout.splitlines()
    assert suites == f'{suite.tmp}/work/bin/reframe' and own == str(module)
    assert files == f'{suite.variables["PLUMBLINE_SITE"]}/system.py'
    assert last.endswith(path) and '/of/the/site' not in last


def test_env_needs_a_reframe_if_it_is_to_leave_it(suite):
    path = ':'.join(folder for folder in os.environ['PATH'].split(':')
                    if not Path(folder, 'reframe').exists())
    done = suite.plumb('env', '--own-reframe', PATH=path)
    assert 'no reframe on PATH; load its' in complaint(done)
    assert done.stdout == ''


def test_parse(capsys, monkeypatch, tmp_path):
    def parse(*words):
        return called(capsys, monkeypatch, 'parse', 'osu', *map(str, words))

    good = GOLDEN / 'osu_latency.txt'
    code, out, _ = parse(good)
    assert code == 0
    rows = out.splitlines()
    assert rows[0] == ('file,output,time,family,program,version,num_nodes,num_tasks,'
                       'params,size,metric,value,unit')
    assert rows[1].startswith(f'{good},1,') and ',osu_latency,7.2,,,,1,latency,' in (
        rows[1])
    file = tmp_path / 'saved.csv'
    assert parse(good, '--csv', file)[:2] == (0, '')
    assert file.read_text().splitlines() == rows
    # As editors of Windows save it.
    marked = tmp_path / 'marked.txt'
    marked.write_text(good.read_text(), 'utf-8-sig')
    code, out, _ = parse(marked)
    assert code == 0 and len(out.splitlines()) == len(rows)
    cut = tmp_path / 'cut.txt'
    cut.write_text(good.read_text()[:300])
    code, out, err = parse(cut, good)
    assert code == 1 and err.startswith(f'{cut}:')
    assert str(cut) not in out and str(good) in out


@pytest.mark.parametrize('banner, expected', [
    ('mpirun (Open MPI) 4.1.4\n\nReport bugs', ('openmpi', '4.1.4')),
    ('mpirun (Open MPI) 5.0.11', ('openmpi', '5.0.11')),
    ('HYDRA build details:\n    Version:                    5.0.2\n',
     ('mpich', '5.0.2')),
    ('Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 2026\n',
     ('intelmpi', '2021.18')),
    ('srun 22.05', ('unknown', '')),
    ('', ('unknown', '')),
])
def test_mpi_flavours(banner, expected):
    assert identify_mpi(banner) == expected


def test_a_broken_mpi_on_path_is_not_used(suite, tmp_path):
    tools = tmp_path / 'tools'
    tools.mkdir()
    for name in ('mpicc', 'mpirun'):
        (tools / name).write_text('#!/bin/sh\nexit 1\n')
        (tools / name).chmod(0o755)
    done = suite.plumb('env', PATH=f'{tools}:{os.environ["PATH"]}')
    assert 'is not of Open MPI, MPICH or Intel MPI' in done.stderr
