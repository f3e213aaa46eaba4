"""`plumb benchmark new NAME`: a family's folder that runs at once.

The templates cli/templates/{program,service} are families that hold the
contract tests; NAME and Name in their files and paths become the family's
name and the class of its check.
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

#: Characters of a name, at most: lines of the templates have room for it.
LONGEST = 12

PROGRAM = """\
Wrote {count} files in checks/{name}/ and tests/{name}/. It runs already:

  ./plumb run -n {check}
  ./plumb selftest tests/{name} tests/test_contracts.py

Then make it yours, in this order:
{rows}
  ./plumb site check --all --update    adds its cases to the sites' cases.txt

A metric that you rename makes the perflogs of before unreadable: remove
perflogs/*/*/{check}.v*.csv then. ruff and mypy read all of it, too.
"""

#: File -> what to write in it.
ROWS = {
    'checks/{name}/src/{name}.c':
        'the program: values on stdout, exit code 1\nwhere what it computed '
        'or got is wrong',
    'tests/{name}/golden/{name}.txt': 'what it really printed',
    'checks/{name}/parser.py': 'that text to values; refuses all else',
    'tests/{name}/test_{name}.py': 'and damaged copies of it',
    'checks/{name}/family.yaml': 'metrics, what is judged, limits, values',
    'checks/{name}/{name}.py': 'the check: parameters, command line{more}',
    'checks/{name}/README.md': 'what it measures, and its parameters',
}
SERVICE = ',\nwhat is started (checks/services/plan.py)'


def rows(name: str, more: str) -> str:
    """ROWS as two columns."""
    files = {path.format(name=name): text.format(more=more)
             for path, text in ROWS.items()}
    width = max(map(len, files)) + 4
    return '\n'.join(
        f'  {path}'.ljust(width) + text.replace('\n', '\n' + ' ' * width)
        for path, text in files.items())


def class_name(name: str) -> str:
    """`gpu_copy` -> GpuCopy."""
    return ''.join(part.capitalize() for part in name.split('_'))


def check_name(name: str) -> None:
    """:raises SetupError: no name for a family, or it is taken."""
    if not re.fullmatch(r'[a-z][a-z0-9]*(_[a-z0-9]+)*', name) \
            or keyword.iskeyword(name):
        raise SetupError(f'{name}: a family is named like a Python module: '
                         'a-z, 0-9 and _, a letter first')
    if len(name) > LONGEST:
        raise SetupError(f'{name}: longer than {LONGEST} characters; it '
                         'stands in names of metrics and in tables')
    for folder in (ROOT / 'checks' / name, ROOT / 'tests' / name):
        if folder.exists():
            raise SetupError(f'{folder}: there already; choose another name, '
                             'nothing is ever overwritten')
    taken = re.compile(rf'^class {class_name(name)}\b', re.M)
    for path in (ROOT / 'checks').glob('*/*.py'):
        if taken.search(path.read_text('utf-8')):
            raise SetupError(f'{path}: has a class {class_name(name)} '
                             'already; choose another name')


def files(name: str, service: bool) -> dict[str, str]:
    """Path below the repository -> text."""
    def fill_template(text: str) -> str:
        return text.replace('NAME', name).replace('Name', class_name(name))

    template = TEMPLATES / ('service' if service else 'program')
    return {fill_template(str(Path(part.name, name, path.relative_to(part)))):
            fill_template(path.read_text('utf-8'))
            for part in (template / 'checks', template / 'tests')
            for path in sorted(part.rglob('*'))
            if path.is_file() and '__pycache__' not in path.parts}


def new(args: argparse.Namespace) -> int:
    """Makes the folders of a family, both or none."""
    check_name(args.name)
    made = files(args.name, args.service)
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
                         rows=rows(args.name, SERVICE if args.service
                                   else '')), end='')
    return 0
