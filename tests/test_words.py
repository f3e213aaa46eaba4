"""One vocabulary, and generated pages that are up to date."""
import ast
import re
import subprocess
from pathlib import Path

import pytest

from docs import generate

ROOT = Path(__file__).resolve().parents[1]

#: Names that do not say what they stand for.
NAMES = {'asked', 'found', 'handed', 'heard', 'lives', 'mine', 'said', 'told'}
#: Words of an earlier vocabulary -> the word for it.
WORDS = {
    'ack': 'verdict accept or mute', 'figures?': 'metric, value, or plot',
    'lifeline': 'connection', 'nights': 'sessions',
    'tonight': 'this session', 'unfit': 'inconclusive',
    'unjudged': 'no_reference', 'widest bound': 'max tolerance',
    'no word why': 'no output', 'mend(s|ed)?': 'fix'}
OLD = re.compile(rf'(?<![\w$./`<-])({"|".join(WORDS)})(?![\w/.(`-])')


def files(*patterns: str) -> list[Path]:
    """The files that git keeps, without recorded outputs of programs."""
    names = subprocess.run(
        ['git', '-C', str(ROOT), 'ls-files', '-z', *patterns],
        capture_output=True, text=True, check=True).stdout.split('\0')
    return [ROOT / name for name in names if name and 'golden' not in name]


def names_of(tree: ast.Module):
    """(line, name) of everything that a module gives a name to."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def old_names(source: str, where: str) -> list[str]:
    return [f'{where}:{line}: {name}: a noun of the field says more'
            for line, name in names_of(ast.parse(source))
            if name.strip('_').lower() in NAMES]


def old_words(text: str, where: str) -> list[str]:
    return [f'{where}:{number}: {match[0]}: '
            + next(better for word, better in WORDS.items()
                   if re.fullmatch(word, match[0]))
            for number, line in enumerate(text.splitlines(), 1)
            for match in OLD.finditer(line)]


def strings(source: str) -> str:
    """The texts of a module in its lines: messages and docstrings."""
    lines = [''] * (source.count('\n') + 2)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for number, part in enumerate(node.value.split('\n')):
                if node.lineno + number < len(lines):
                    lines[node.lineno + number - 1] += ' ' + part
    return '\n'.join(lines)


def test_names_are_nouns_of_the_field():
    assert [fault for file in files('*.py') for fault in old_names(
        file.read_text(), file.relative_to(ROOT).as_posix())] == []


def test_messages_and_documents_have_one_vocabulary():
    faults = [fault for file in files('*.py') if file != Path(__file__)
              for fault in old_words(strings(file.read_text()),
                                     file.relative_to(ROOT).as_posix())]
    faults += [fault for file in files('*.md', '*.yaml', '*.html', '*.js')
               for fault in old_words(file.read_text(),
                                      file.relative_to(ROOT).as_posix())]
    assert faults == []


@pytest.mark.parametrize('name, page', generate.PAGES.items())
def test_generated_pages_are_up_to_date(name, page):
    assert (generate.REFERENCE / name).read_text() == page(), (
        'run .plumbline/venv/bin/python docs/generate.py')
