"""Settings of the checks: what reaches the program, what is refused, what passes."""
from __future__ import annotations

import re

import pytest
from conftest import OSU

from checks.core.options import split_options
from tests.conftest import two_cpus


def dry_run(suite, check, program, *settings):
    return suite.reframe('--dry-run', '-Sbringup=1', *OSU, '-n', f'^{check}%', '-E',
                         f'program == "{program}"',
                         *(f'-S{check}.{setting}' for setting in settings))


def command_of(suite, check):
    """Words after the program in the first job script."""
    script = sorted(suite.tmp.rglob(f'{check}_*/rfm_job.sh'))[0].read_text()
    return re.search(r'/osu_\w+ (.*)', script)[1]


def test_options_reach_the_program_and_settings_have_options(suite):
    done = dry_run(suite, 'OsuPt2pt', 'osu_bw', "options=-W 32 -M '99'", 'iterations=7',
                   'warmup=0', 'min_size=4', 'max_size=64', 'full_output=1')
    assert done.returncode == 0, done.stdout
    assert command_of(suite, 'OsuPt2pt') == '-W 32 -M 99 -i 7 -x 0 -m 4:64 -f'


def test_options_that_decide_what_passes_are_refused(suite):
    done = suite.reframe(
        '--dry-run', '-Sbringup=1', *OSU, '-n', 'OsuPt2pt|OsuMulti|OsuRma', '-E',
        'program in ("osu_latency_mt", "osu_mbw_mr", "osu_put_bw")',
        '-POsuPt2pt.options=-m 8,-t 2,-If', '-SOsuMulti.options=-p 1',
        '-SOsuRma.options=-w create')
    assert done.returncode == 1, done.stdout
    for why in ('-If: use the setting full_output',
                '-m: use the settings min_size and max_size',
                '-t: use no option: the check sets it',
                '-p: use the parameter layout', '-w: use the parameter window'):
        assert why in done.stdout, done.stdout


@pytest.mark.parametrize('text, expected', [
    ('-i9', '-i9: use the setting iterations'),
    ('--warmup=9', '--warmup=9: use the setting warmup'),
    ('--wa 9', '--wa: use the setting warmup'),
    ('-Vi9', '-Vi9: use the setting iterations'),
    ('-VIi 9', '-VIi: use the setting iterations'),
    ("-W '9", 'No closing quotation')])
def test_no_spelling_of_an_option_is_overlooked(text, expected):
    with pytest.raises(ValueError, match=expected):
        split_options(text, 'options', {'-i': 'the setting iterations',
                                        '--warmup': 'the setting warmup'}, 'VI')


def test_the_value_of_an_option_is_not_another_option():
    assert split_options('-Ti -VT i -V --size 3', 'options', {'-i': 'x'}, 'V') == [
        '-Ti', '-VT', 'i', '-V', '--size', '3']


@two_cpus
def test_a_table_may_end_below_the_largest_requested_size(suite):
    """Sizes double from the first one on: 8 MiB is the last one below 10240000 B."""
    done = suite.reframe(
        '-r', '-Sbringup=1', *OSU, '-n', '^OsuPt2pt%', '-E', 'program == "osu_bw" and '
        'placement == "intra_node"', '-Svalidates=0', '-SOsuPt2pt.min_size=65536',
        '-SOsuPt2pt.max_size=10240000', '-SOsuPt2pt.iterations=4',
        '-SOsuPt2pt.warmup=0')
    assert done.returncode == 0, done.stdout
    points = [row['point'] for row in suite.records if row['metric'] == 'bandwidth']
    assert points[0].split()[0] == '65536' and points[-1].split()[0] == '8388608'
