"""docs/images/: pictures and samples of what page and terminal are now."""
from __future__ import annotations

import struct

import pytest

pytest.importorskip('pandas')
pytest.importorskip('matplotlib')

from docs import screenshots

AGAIN = 'docs/images/ is out of date: run docs/screenshots.py'


def recorded_text(name):
    return (screenshots.IMAGES / name).read_text()


def test_the_sample_is_what_the_command_prints(demo):
    sample = screenshots.terminal_sample(demo.folder / 'perflogs')
    assert recorded_text('terminal.txt') == sample, AGAIN
    assert '1 regression of' in sample
    assert max(map(len, sample.splitlines())) <= screenshots.COLUMNS


def test_the_pictures_show_what_the_page_says(demo):
    text = screenshots.first_screen_text(demo.folder / 'report' / 'index.html')
    assert recorded_text('page.txt') == text, AGAIN
    assert 'MADE UP.' in text


@pytest.mark.parametrize('name', screenshots.PICTURES)
def test_pictures_are_small_and_as_wide_as_a_screen(name):
    data = (screenshots.IMAGES / name).read_bytes()
    assert data[:8] == b'\x89PNG\r\n\x1a\n' and len(data) < 150_000
    assert struct.unpack('>II', data[16:24]) == screenshots.PICTURES[name][:2]
