"""`plumb dev benchmark new NAME`: make the folders of a family that runs at once.

The template cli/setup/templates/ is a family that passes the contract tests. NAME and
Name in its files and paths become the family's name and the class of its check.
"""
from __future__ import annotations

import argparse
import keyword
import re
import shutil
import tempfile
from pathlib import Path

from cli.setup.venv import ROOT, SetupError

TEMPLATES = Path(__file__).with_name('templates')

#: Maximum length of a name: longer ones do not fit the lines of the templates.
LONGEST = 12

PROGRAM = """\
Wrote {count} files in checks/{name}/ and tests/{name}/. The family runs:

  ./plumb run -n {check}
  ./plumb selftest tests/{name} tests/test_contracts.py

Then change these files to your benchmark, in this order:
{rows}
  ./plumb site check --all --update    adds its test cases to each cases.txt

If you rename a metric, earlier perflogs cannot be read any more: remove
perflogs/*/*/{check}.v*.csv. ruff and mypy check these files, too.
"""

#: File -> its content, for the printed list.
ROWS = {
    'checks/{name}/src/{name}.c':
        'the program: prints values on stdout; exit code 1\nif a result is '
        'wrong',
    'tests/{name}/golden/{name}.txt': 'output of a real run',
    'checks/{name}/parser.py': 'reads values from the output, refuses any '
                               'other text',
    'tests/{name}/test_{name}.py': 'tests of the parser, also on damaged '
                                   'output',
    'checks/{name}/family.yaml': 'metrics, references, limits, bands',
    'checks/{name}/{name}.py': 'the check: parameters, command line',
    'checks/{name}/README.md': 'description of the benchmark and its '
                               'parameters',
}


def file_descriptions_text(name: str) -> str:
    """ROWS as two columns."""
    files = {path.format(name=name): text for path, text in ROWS.items()}
    width = max(map(len, files)) + 4
    return '\n'.join(
        f'  {path}'.ljust(width) + text.replace('\n', '\n' + ' ' * width)
        for path, text in files.items())


def class_name(name: str) -> str:
    """`gpu_copy` -> GpuCopy."""
    return ''.join(part.capitalize() for part in name.split('_'))


def refuse_bad_family_name(name: str) -> None:
    """Refuse a name that is not valid for a family, or that exists.

    :raises SetupError: the name cannot be used
    """
    if not re.fullmatch(r'[a-z][a-z0-9]*(_[a-z0-9]+)*', name) \
            or keyword.iskeyword(name):
        raise SetupError(f'{name!r} is not a valid name for a family; use '
                         'a-z, 0-9 and _, begin with a letter, and do not '
                         'use a keyword of Python')
    if len(name) > LONGEST:
        raise SetupError(f'{name} is longer than {LONGEST} characters; '
                         'choose a shorter name, because it becomes a part '
                         'of metric names and of tables')
    for folder in (ROOT / 'checks' / name, ROOT / 'tests' / name):
        if folder.exists():
            raise SetupError(f'{folder} exists, and plumb does not overwrite '
                             'it; choose another name')
    taken = re.compile(rf'^class {class_name(name)}\b', re.M)
    for path in sorted((ROOT / 'checks').glob('*/*.py')):
        if taken.search(path.read_text('utf-8')):
            raise SetupError(f'{path} already has a class '
                             f'{class_name(name)}; choose another name')


def rendered_template_files(name: str) -> dict[str, str]:
    """Path below the repository -> text."""
    def fill_template(text: str) -> str:
        return text.replace('NAME', name).replace('Name', class_name(name))

    return {fill_template(str(Path(part.name, name, path.relative_to(part)))):
            fill_template(path.read_text('utf-8'))
            for part in (TEMPLATES / 'checks', TEMPLATES / 'tests')
            for path in sorted(part.rglob('*'))
            if path.is_file() and '__pycache__' not in path.parts}


def benchmark(args: argparse.Namespace) -> int:
    """Make the two folders of a family: both, or neither."""
    refuse_bad_family_name(args.name)
    made = rendered_template_files(args.name)
    targets = [ROOT / part / args.name for part in ('checks', 'tests')]
    with tempfile.TemporaryDirectory(prefix='.new-', dir=ROOT) as scratch:
        for path, text in made.items():
            target = Path(scratch, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, 'utf-8')
        done: list[Path] = []
        try:
            for target in targets:
                Path(scratch, target.relative_to(ROOT)).rename(target)
                done.append(target)
        except OSError:
            for target in done:
                shutil.rmtree(target)
            raise
    print(PROGRAM.format(count=len(made), name=args.name,
                         check=class_name(args.name),
                         rows=file_descriptions_text(args.name)), end='')
    return 0
