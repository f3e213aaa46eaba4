"""Tests of the parser of NAME, on real output and on damaged copies."""
from __future__ import annotations

from pathlib import Path

import pytest

from checks.core.parsers import ParseError, load_parser_module

parse = load_parser_module('NAME').parse
TEXT = (Path(__file__).parent / 'golden' / 'NAME.txt').read_text()


def test_metrics_of_a_run():
    record, = parse(TEXT)
    assert (record.metric, record.unit) == ('NAME_bandwidth', 'MB/s')
    assert record.value == 17066.7 and record.version == '1.0'


@pytest.mark.parametrize('text', [
    '', TEXT[:-1], TEXT[:12], TEXT.replace('MB/s', 'GB/s'), TEXT + TEXT,
    TEXT.replace('17066.7', 'nan'), TEXT.replace('# NAME', '# other')])
def test_damaged_output_is_refused(text):
    with pytest.raises(ParseError):
        parse(text)
