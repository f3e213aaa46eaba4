"""Names of test cases as -n takes them, and the nearest names."""
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from reframe.frontend import filters

from cli.session import account, names
from postprocess.perflogs.plans import Plan

GET = 'StoreServes %scenario=redis get'
NAMES = [names.name_without_blanks(name) for name in (
    GET, 'StoreServes %scenario=redis set',
    'OsuStartup %program=osu_init %layout=1xfull',
    'OsuStartup %program=osu_hello %layout=1xfull')]


def case(name: str, environ: str) -> dict[str, str]:
    return {'partition': 'cpu', 'environ': environ, 'case': environ + name,
            'name': name}


def test_a_printed_name_selects_its_test_case():
    """Also beside the same name in another environment."""
    plan = Plan(Path('x'), {'run': 'r'}, [case(GET, 'redis'), case(GET, 'valkey'),
                          case('OsuStartup %layout=1xfull', 'mpi')])
    printed = [*account.display_names(plan).values()]
    assert printed[:2] == ['StoreServes%scenario=redisget -p redis',
                           'StoreServes%scenario=redisget -p valkey']
    for name, test_case in zip(printed, plan.cases, strict=True):
        check = SimpleNamespace(display_name=test_case['name'], hashcode='')
        assert filters.have_any_name([name.partition(' -p ')[0]])(
            SimpleNamespace(check=check))


@pytest.mark.parametrize('pattern, text', [
    ('OsuStartop', "-n OsuStartop: no such test case; the nearest: -n 'OsuStartup'"),
    (GET, f"-n {GET}: no such test case; the nearest: "
          "-n 'StoreServes%scenario=redisget'"),
    ('OsuStartup%program=osu_hallo%layout=1xfull',
     '-n OsuStartup%program=osu_hallo%layout=1xfull: no such test case; the '
     "nearest: -n 'OsuStartup%program=osu_hello%layout=1xfull', "
     "-n 'OsuStartup%program=osu_init%layout=1xfull'"),
    ('OsuStartup', '-n OsuStartup: the other filters (mode, -t) leave out '
     "-n 'OsuStartup%program=osu_init%layout=1xfull', "
     "-n 'OsuStartup%program=osu_hello%layout=1xfull'"),
    ('zzzzzz', '')])
def test_the_nearest_names_are_suggested(pattern, text):
    assert names.suggest_names([pattern], NAMES) == text


def test_names_and_tags_are_taken_from_the_options():
    assert names.split_name_options(
        ['--tag=^quick$', '-nA', '--name=B', '-n', 'C', '-p', 'mpi', '-Sx=1']) == (
        ['A', 'B', 'C'], ['-p', 'mpi', '-Sx=1'])
