"""Ranks, pairs and threads of the checks; and what their limits refuse."""
from __future__ import annotations

import pytest

from checks.core import limits
from checks.osu import parser, programs


@pytest.mark.parametrize('program, ranks, requested, first, last', [
    ('osu_latency', 2, 0, 1, (1 << 22, 1 << 22)),
    ('osu_put_bibw', 2, 8192, 1, (8192, 8192)),
    # Sizes double from the first one on.
    ('osu_bw', 2, 10240000, 1, (8388608, 8388608)),
    ('osu_allreduce', 4, 1000, 12, (768, 768)),
    ('osu_allreduce', 4096, 0, 4, (1 << 20, 1 << 20)),
    ('osu_reduce_scatter', 4096, 0, 4, (1 << 20, 1 << 20)),
    # A limit of memory may end the table earlier.
    ('osu_allgather', 2048, 0, 1, (1 << 18, 1 << 20)),
    ('osu_alltoall', 36, 1 << 26, 1, (1 << 23, 1 << 26)),
    ('osu_ialltoallv', 512, 1 << 22, 1, (1 << 20, 1 << 22)),
    ('osu_alltoall', 0, 0, 1, None), ('osu_ibarrier', 4, 0, 1, None),
    ('osu_init', 4, 0, 1, None), ('osu_cas_latency', 2, 0, 1, None),
    ('osu_oshm_put', 2, 0, 1, None)])
def test_last_message_sizes(program, ranks, requested, first, last):
    assert programs.last_message_sizes(program, ranks, requested, first) == last


def test_thread_counts():
    text = '# Number of Sender threads: 1 \n# Number of Receiver threads: 2\n'
    assert parser.parse_setup(text) == {'sender_threads': '1', 'receiver_threads': '2'}
    assert parser.parse_setup('# Size\n') == {}


@pytest.mark.parametrize('params, metric, value, refused', [
    ('layout=2xfull program=osu_mbw_mr', 'bandwidth_4194304', 25001, True),
    ('layout=2xfull program=osu_mbw_mr', 'bandwidth_4194304', 24999, False),
    # Two pairs of nodes carry twice as much.
    ('layout=4xone program=osu_mbw_mr', 'bandwidth_4194304', 49999, False),
    ('layout=4xone program=osu_multi_lat', 'latency_8', 0.2, True),
    ('layout=1xone program=osu_multi_lat', 'latency_8', 0.2, False),
    ('layout=1xfull program=osu_multi_lat', 'latency_8', 0.02, True),
])
def test_limits_of_pairs(params, metric, value, refused):
    from config.records import metrics
    name, _, size = metric.rpartition('_')
    bad = limits.exceeded_limits('osu', {metrics.metric_key(name, int(size)): value},
                                 params, {'nic_bandwidth': 25000})
    assert bool(bad) is refused
