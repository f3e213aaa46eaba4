"""README.md: short, and its sample of the terminal is the generated one."""
from __future__ import annotations

import re

from tests.conftest import ROOT


def test_the_readme_is_short():
    assert len((ROOT / 'README.md').read_text().splitlines()) <= 150


def test_the_sample_of_the_readme_is_generated():
    """docs/screenshots.py writes the sample; `...` are lines that README leaves out."""
    sample = (ROOT / 'docs' / 'images' / 'terminal.txt').read_text()
    shown, = re.findall(r'```text\n(\$ .*?)```', (ROOT / 'README.md').read_text(), re.S)
    parts = map(re.escape, shown.split('...\n'))
    assert re.fullmatch('(.+\n)*'.join(parts), sample), (
        'copy lines of docs/images/terminal.txt')
