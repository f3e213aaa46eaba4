"""Pages of the documentation: variables, pictures, and the build."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.setup.venv import ensure_folder_of_lock
from tests.conftest import ROOT, git

#: Folders with code that users run, and the entry point.
PRODUCT = ('checks', 'cli', 'config', 'postprocess', 'site-configs', 'spack-envs',
           'plumb')
VARIABLE = re.compile(r'(?<![A-Z_])PLUMBLINE_[A-Z_]*[A-Z]')
#: A variable that is read: in Python, in C.
READ = re.compile(r"""(?:environ(?:\.get|\.pop)?[\[(]|getenv\()\s*['"]([A-Za-z_]+)""")
#: Variables of shells, schedulers, launchers, NCCL and its stand-in. None is an
#: interface of the suite.
OF_OTHERS = re.compile('LC_ALL|LD_LIBRARY_PATH|LMOD_CMD|NCCL_.*|PATH|RFM_WARN_AS_ERROR|'
                       'PBS_(JOBID|NODEFILE)|SLURM_.*|STANDIN_.*|TMPDIR|'
                       'XDG_RUNTIME_DIR')


def files(*names: str) -> list[Path]:
    """Files that git keeps, or that are new."""
    listed = git('ls-files', '-coz', '--exclude-standard', '--', *names).split('\0')
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def texts(*names: str) -> list[str]:
    """The texts of code, without what programs printed."""
    return [path.read_text(errors='replace') for path in files(*names)
            if path.suffix != '.md' and 'golden' not in path.parts]


def variables_read(code: str) -> set[str]:
    """Variables of the environment that a text of code reads or names."""
    return {name for name in VARIABLE.findall(code) + READ.findall(code)
            if not OF_OTHERS.fullmatch(name)}


def documented_variables(page: str) -> set[str]:
    """Variables in the first cells of the tables of a page."""
    return {name for cell in re.findall(r'^\| (`.*?) \|', page, re.M)
            for name in re.findall(r'`([A-Za-z_]+)`', cell)}


def test_the_page_of_variables_has_those_that_code_reads():
    page = documented_variables(
        (ROOT / 'docs' / 'reference' / 'environment.md').read_text())
    read = set().union(*map(variables_read, texts(*PRODUCT)))
    assert read - page == set(), 'docs/reference/environment.md lacks them'
    used = read.union(*map(variables_read, texts('tests', '.ci', 'bench')))
    lost = {name for name in page if name.startswith('PLUMBLINE_')} - used
    assert not lost, 'docs/reference/environment.md has them, and nothing reads them'


@pytest.mark.parametrize('code, names', [
    ("os.environ.get('X_PREFIX', '')", {'X_PREFIX'}), ('getenv("A_b")', {'A_b'}),
    ('os.environ["NAME"]', {'NAME'}), ('${PLUMBLINE_X:-1}', {'PLUMBLINE_X'}),
    ("environ.get('PATH')", set()), ("environ.pop(\n    'LIBTORCH')", {'LIBTORCH'})])
def test_a_variable_that_code_reads_is_found(code, names):
    assert variables_read(code) == names


def lost_pictures(path: Path, text: str) -> list[str]:
    """Files of pictures in HTML that do not exist."""
    return [name for value in re.findall(r'\bsrc(?:set)?="([^"]+)"', text)
            for name in re.findall(r'(?:^|,)\s*([^\s,]+)', value)
            if '://' not in name and not (path.parent / name).is_file()]


def test_pictures_exist():
    lost = {str(path): names for path in files('*.md')
            if (names := lost_pictures(path, path.read_text()))}
    assert not lost


def test_a_lost_picture_is_found(tmp_path):
    (tmp_path / 'a.png').touch()
    assert lost_pictures(tmp_path / 'x.md', '<source srcset="a.png, b.png 2x">'
                         '<img src="a.png"><img src="c.svg">') == ['b.png', 'c.svg']


def test_the_index_has_the_titles_of_pages():
    index = ROOT / 'docs' / 'index.md'
    links = re.findall(r'^- \[(.+?)\]\((\S+)\)', index.read_text(), re.M)
    titles = [(re.match('# (.+)', (index.parent / path).read_text())[1], path)
              for _, path in links]
    assert len(links) > 30 and links == titles


@pytest.mark.strict
def test_the_build_reports_each_fault(copy_in_place):
    ensure_folder_of_lock('sphinx')
    page = copy_in_place.folder / 'docs' / 'how-to' / 'lost.md'
    page.write_text('# Lost\n\n[a](nosuch.md) [b](sql.md#nosuch)\n\n#### Skipped\n')
    (copy_in_place.folder / 'checks' / 'osu' / 'README.md').write_text(
        '# OSU\n\n[c](nosuch/)\n')
    done = copy_in_place.run('./plumb', 'dev', 'docs')
    assert done.returncode == 1
    faults = [line.partition(f'{ROOT}/')[2] for line in done.stderr.splitlines()
              if 'WARNING' in line or 'ERROR' in line]
    for begin in ('docs/how-to/lost.md: WARNING: document isn\'t included',
                  'docs/how-to/lost.md:3: WARNING: \'myst\' cross-reference target '
                  'not found: \'nosuch.md\'',
                  'docs/how-to/lost.md:3: WARNING: local id not found',
                  'docs/how-to/lost.md:5: WARNING: Non-consecutive header level',
                  'checks/osu/README.md:3: WARNING: \'myst\' cross-reference'):
        assert any(fault.startswith(begin) for fault in faults), done.stderr
    assert 'each line above names the file' in done.stderr
