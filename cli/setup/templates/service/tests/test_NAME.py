"""Tests of the parser of NAME, on real output and on damaged copies."""
from __future__ import annotations

from pathlib import Path

import pytest

from checks.core.parsers import ParseError, load_parser_module

parse = load_parser_module('NAME').parse
TEXT = (Path(__file__).parent / 'golden' / 'NAME.txt').read_text()


def test_metrics_of_a_run():
    record, = parse(TEXT)
    assert (record.metric, record.unit) == ('NAME_rate', '1/s')
    assert record.value == 41257.3 and record.version == '1.0'


@pytest.mark.parametrize('text', [
    '', TEXT[:-1], TEXT[:12], TEXT.replace('1/s', 'k/s'), TEXT + TEXT,
    TEXT.replace('41257.3', 'nan'), TEXT.replace('# NAME', '# other')])
def test_damaged_output_is_refused(text):
    with pytest.raises(ParseError):
        parse(text)
