"""Lists in -S CHECK.settings."""
from __future__ import annotations

import pytest

from cli.session.crossing import replace_settings_lists
from cli.setup.venv import SetupError

CROSSED = ['-P', 'C.settings=a:1,b:3;a:1,b:4;a:2,b:3;a:2,b:4',
           '--param-values-delim=;']


@pytest.mark.parametrize('words', [
    ['-S', 'C.settings=a:1|2,b:3|4'], ['-SC.settings=a:1|2,b:3|4'],
    ['--setvar', 'C.settings=a:1|2,b:3|4'], ['--setvar=C.settings=a:1|2,b:3|4']])
def test_each_combination_is_a_value_of_P(words):
    assert replace_settings_lists(['-n', 'C', *words, '-l']) == [
        '-n', 'C', *CROSSED[:2], '-l', CROSSED[2]]


def test_options_without_lists_stay():
    words = ['-S', 'C.settings=a:1+2,b:3', '-P', 'x=1|2,3', '-E', 'a | settings=b|c']
    assert replace_settings_lists(words) == words


@pytest.mark.parametrize('words, reason', [
    (['-S', 'settings=a:1|2'], 'needs the name of the check: CHECK.settings=a:1|2'),
    (['-S', 'C.settings=a:1|2;3'], "must not contain ';'"),
    (['-S', 'C.settings=a:1|2', '-P', 'x=1,2'], '-P: lists in settings become -P'),
    (['-S', 'C.settings=a:1|2', '--param-values-delim=/'], 'cannot be combined')])
def test_what_is_refused(words, reason):
    with pytest.raises(SetupError, match=reason.replace('|', r'\|')):
        replace_settings_lists(words)
