"""-S sets settings only, with values of their type and range."""
from __future__ import annotations

import pytest
from conftest import of_family


@pytest.mark.parametrize('setting, words', [
    ('OsuStartup.threads=9', 'threads is not a setting of OsuStartup'),
    ('strict_check=0', 'strict_check is not a setting of '),
    ('OsuStartup.inconclusive=x', "not set: 'inconclusive'"),
    ('OsuStartup.min_size=8', 'min_size is not a setting of OsuStartup'),
    ('repetitions=0', '0 is too small; the smallest value is 1'),
    ('repetitions=abc', "=abc: the value cannot be used: invalid literal"),
    ('node_counts=2,0', '0 is too small; the smallest value is 1'),
    ('node_counts=2:4', "=2:4: the value cannot be used: invalid literal"),
])
def test_a_wrong_setting_ends_before_anything_is_submitted(suite, setting, words):
    done = suite.reframe('-l', *of_family('osu'), '-S', setting)
    assert done.returncode == 1
    text = done.stdout + done.stderr
    assert words in text and 'Traceback' not in text, text


def test_settings_are_set(suite):
    done = suite.reframe('-L', *of_family('osu'), '-Srepetitions=2',
                         '-SOsuPt2pt.max_size=1024')
    assert done.returncode == 0, done.stdout
