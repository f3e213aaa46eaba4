"""The time that a table of OSU claims: by hand, and against real runs."""
from __future__ import annotations

import pytest

from checks.osu.programs import find_program, minimum_seconds

#: Iterations of small and of large messages.
SMALL, BIG = 10000, 1000


@pytest.mark.parametrize('program, values, counts, expected', [
    # There and back.
    ('osu_latency', {'latency@8B': 1.0, 'latency@8192B': 2.0,
                     'latency@16384B': 10.0}, {},
     2e-6 * (SMALL * 3 + BIG * 10)),
    ('osu_put_latency', {'latency@8B': 1.0}, {},
     1e-6 * SMALL),
    ('osu_latency', {'latency@8B': 1.0, 'latency@16384B': 10.0},
     {'iterations': 50}, 2e-6 * 50 * 11),
    # 64 messages of 1 MB at 1000 MB/s, and the reply.
    ('osu_bw', {'bandwidth@1000000B': 1000.0}, {}, 20 * 64e-3),
    ('osu_bw', {'bandwidth@1000B': 1000.0}, {'window': 16}, 100 * 16e-6),
    ('osu_bibw', {'bandwidth@1000B': 1000.0}, {}, 100 * 128e-6),
    ('osu_mbw_mr', {'bandwidth@1000B': 1000.0, 'message_rate@1000B': 1e6},
     {}, 100 * 64e-6 * 4),
    ('osu_allreduce', {'latency@8B': 1.0, 'latency_max@8B': 5.0}, {},
     1000e-6),
    ('osu_barrier', {'latency': 1.0}, {}, 1000e-6),
    ('osu_ibarrier', {'overall_time': 10.0, 'pure_comm_time': 5.0,
                      'compute_time': 5.0, 'overlap': 90.0}, {}, 100 * 15e-6),
    ('osu_init', {'init_time': 120.0, 'init_time_max': 130.0}, {}, 0.12),
    ('osu_hello', {'ranks': 2.0}, {}, 0.0),
])
def test_a_sum_by_hand(program, values, counts, expected):
    assert minimum_seconds(find_program(program), '7.2', values, 8, 1, **counts
                                  ) == pytest.approx(expected)


def test_threads_measure_at_the_same_time():
    row = find_program('osu_latency_mt')
    one, two = (minimum_seconds(row, '7.2', {'latency@8B': 1.0}, 2, threads)
                for threads in (1, 2))
    assert one == pytest.approx(2e-6 * SMALL) and two == one / 2


@pytest.mark.parametrize('version', ['5.3', '5.6.3', ''])
def test_versions_that_count_otherwise_claim_nothing(version):
    assert minimum_seconds(find_program('osu_latency'), version,
                                  {'latency@8B': 1.0}, 2, 1) == 0


def test_a_slow_message_among_timed_iterations_is_no_false_claim():
    """Of 220 iterations one waited 0.2 s for a lost frame: a timed one."""
    lost = {'latency@8B': (0.2 + 199 * 100e-6) / 200 / 2 * 1e6}
    took = 0.2 + 219 * 100e-6
    assert minimum_seconds(find_program('osu_latency'), '7.2', lost, 2, 1, 200
                                  ) < took
