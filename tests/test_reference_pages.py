"""Reference pages that people write have all keys and columns of the code."""
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import families

ROOT = Path(__file__).resolve().parents[1]


def rows(page: str) -> set[str]:
    """The names in the first cells of all tables of a page."""
    text = (ROOT / 'docs' / 'reference' / page).read_text('utf-8')
    return {name for cell in re.findall(r'^\| (`[^|]*) \|', text, re.M)
            for name in re.findall(r'`(\w+)`', cell)}


def missing_rows(names: Iterable[str], page: str) -> list[str]:
    return sorted(set(names) - rows(page))


def schema_keys(schema: Any) -> Iterator[str]:
    """The keys of a family.yaml, without those that a family chooses."""
    if isinstance(schema, dict):
        yield from schema.get('properties', {})
        for inner in schema.values():
            yield from schema_keys(inner)


def test_every_column_of_the_perflogs_is_described():
    columns = yaml.safe_load((ROOT / 'config' / 'perflog.yaml').read_text())['columns']
    assert missing_rows(columns, 'perflogs.md') == []


def test_every_key_of_a_family_is_described():
    schema = yaml.safe_load(
        (ROOT / 'config' / 'schemas' / 'family.yaml').read_text())
    in_sentences = {'kind', 'of', 'to', 'environment', 'partition', 'feature',
                    'without', 'panels'}
    assert missing_rows({*schema_keys(schema)} - in_sentences,
                        'family-yaml.md') == []


def test_examples_of_a_whole_family_are_valid(tmp_path):
    text = (ROOT / 'docs' / 'reference' / 'family-yaml.md').read_text('utf-8')
    examples = re.findall(r'^    title: .*\n(?:    .*\n)+', text, re.M)
    assert len(examples) == 2
    for number, example in enumerate(examples):
        file = tmp_path / f'family{number}' / families.FILE
        file.parent.mkdir()
        file.write_text(textwrap.dedent(example), 'utf-8')
        assert families.faults_of_family_file(file, families.shared_metrics()) == []


@pytest.mark.parametrize('page', ['perflogs.md', 'family-yaml.md'])
def test_a_missing_row_is_found(page):
    assert missing_rows(['metric', 'no_such_name'], page) == ['no_such_name']
