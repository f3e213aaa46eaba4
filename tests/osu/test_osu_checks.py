"""The checks of OSU: options, ends of tables, the time that a table claims, limits."""
from __future__ import annotations

import re

import pytest
from conftest import OSU

from checks.core import limits
from checks.core.options import split_options
from checks.osu import programs
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
                '-t: the check sets it',
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
        split_options(text, 'options', {'-i': 'use the setting iterations',
                                        '--warmup': 'use the setting warmup'}, 'VI')


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


@pytest.mark.parametrize('program, ranks, requested, first, last', [
    ('osu_latency', 2, 0, 1, (1 << 22, 1 << 22)),
    # Sizes double from the first one on.
    ('osu_bw', 2, 10240000, 1, (8388608, 8388608)),
    ('osu_allreduce', 4, 1000, 12, (768, 768)),
    ('osu_reduce_scatter', 4096, 0, 4, (1 << 20, 1 << 20)),
    # A limit of memory may end the table earlier.
    ('osu_allgather', 2048, 0, 1, (1 << 18, 1 << 20)),
    ('osu_ialltoallv', 512, 1 << 22, 1, (1 << 20, 1 << 22)),
    ('osu_alltoall', 0, 0, 1, None), ('osu_ibarrier', 4, 0, 1, None),
    ('osu_cas_latency', 2, 0, 1, None), ('osu_oshm_put', 2, 0, 1, None)])
def test_last_message_sizes(program, ranks, requested, first, last):
    assert programs.last_message_sizes(program, ranks, requested, first) == last


@pytest.mark.parametrize('program, values, counts, expected', [
    # There and back; 10000 iterations of small messages, 1000 of large ones.
    ('osu_latency', {'latency@8192B': 2.0, 'latency@16384B': 10.0}, {},
     2e-6 * (10000 * 2 + 1000 * 10)),
    ('osu_latency', {'latency@8B': 1.0, 'latency@16384B': 10.0},
     {'iterations': 50}, 2e-6 * 50 * 11),
    ('osu_put_latency', {'latency@8B': 1.0}, {}, 10000e-6),
    # 64 messages of 1 MB at 1000 MB/s, and the reply.
    ('osu_bw', {'bandwidth@1000000B': 1000.0}, {}, 20 * 64e-3),
    ('osu_bw', {'bandwidth@1000B': 1000.0}, {'window': 16}, 100 * 16e-6),
    ('osu_bibw', {'bandwidth@1000B': 1000.0}, {}, 100 * 128e-6),
    ('osu_mbw_mr', {'bandwidth@1000B': 1000.0, 'message_rate@1000B': 1e6},
     {}, 100 * 64e-6 * 4),
    ('osu_allreduce', {'latency@8B': 1.0, 'latency_max@8B': 5.0}, {}, 1000e-6),
    ('osu_ibarrier', {'overall_time': 10.0, 'pure_comm_time': 5.0,
                      'compute_time': 5.0, 'overlap': 90.0}, {}, 100 * 15e-6),
    # Threads measure at the same time.
    ('osu_latency_mt', {'latency@8B': 1.0}, {'threads': 2}, 10000e-6),
    ('osu_init', {'init_time': 120.0, 'init_time_max': 130.0}, {}, 0.12),
    ('osu_hello', {'ranks': 2.0}, {}, 0.0),
    # These versions count otherwise.
    ('osu_latency', {'latency@8B': 1.0}, {'version': '5.6.3'}, 0)])
def test_the_time_that_a_table_claims(program, values, counts, expected):
    arguments = {'version': '7.2', 'ranks': 8, 'threads': 1, **counts}
    assert programs.minimum_seconds(
        programs.find_program(program), values=values, **arguments
    ) == pytest.approx(expected)


@pytest.mark.parametrize('params, metric, value, refused', [
    ('layout=2xfull program=osu_mbw_mr', 'bandwidth@4194304B', 25001, True),
    # Two pairs of nodes carry twice as much.
    ('layout=4xone program=osu_mbw_mr', 'bandwidth@4194304B', 49999, False),
    ('layout=4xone program=osu_multi_lat', 'latency@8B', 0.2, True),
    ('layout=1xone program=osu_multi_lat', 'latency@8B', 0.2, False)])
def test_limits_of_pairs(params, metric, value, refused):
    bad = limits.exceeded_limits('osu', {metric: value}, params,
                                 {'nic_bandwidth': 25000})
    assert bool(bad) is refused
