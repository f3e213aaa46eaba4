"""Names of test cases as -n takes them, and the nearest names."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
from reframe.frontend import filters

from cli.session import identities, names

GET = 'StoreServes %scenario=redis get'
NAMES = [GET, 'StoreServes %scenario=redis set',
         'OsuStartup %program=osu_hello %layout=1xfull',
         'OsuStartup %program=osu_init %layout=1xfull']


@pytest.mark.parametrize('name', [GET, 'Copy %sizes=[1, 2] %at=a@1 %path=/x/y+z'])
def test_the_pattern_of_a_test_case_selects_its_check_alone(name):
    """Also that of a copy, and of one whose settings are parameters (-P)."""
    pattern = identities.Identity(
        'a38ba5b9', 'alpha', 'cpu', 'gnu', name.partition(' ')[0], 'max_size=8',
        f'{name} %.max_size=8 %.repeat_no=1 %.nid=n2').pattern
    for other, is_selected in (name, True), (f'{name} 2', False), (f'A{name}', False):
        check = SimpleNamespace(display_name=other, hashcode='', unique_name='')
        assert bool(filters.have_any_name([pattern])(
            SimpleNamespace(check=check))) is is_selected


def test_test_cases_of_one_place_and_settings_share_a_session():
    def one(name, environ='gnu', settings=''):
        return identities.Identity(
            'a38ba5b9', 'alpha', 'cpu', environ, name, settings, name)

    assert identities.selections([
        one('A'), one('B'), one('A', 'clang'), one('A', settings='max_size=8 mode=x y'),
    ]) == [
        ['--system=alpha:cpu', '-p', '^gnu$', '-n', '^A$', '-n', '^B$'],
        ['--system=alpha:cpu', '-p', '^clang$', '-n', '^A$'],
        ['--system=alpha:cpu', '-p', '^gnu$', '-n', '^A$', '-SA.max_size=8',
         '-SA.mode=x y']]


@pytest.mark.parametrize('pattern, text', [
    ('OsuStartop', "-n OsuStartop: no such test case; the nearest: -n 'OsuStartup'"),
    (GET, f"-n {GET}: no such test case; the nearest: "
          "-n 'StoreServes%scenario=redisget'"),
    ('OsuStartup%program=osu_hallo%layout=1xfull',
     '-n OsuStartup%program=osu_hallo%layout=1xfull: no such test case; the '
     "nearest: -n 'OsuStartup%program=osu_hello%layout=1xfull', "
     "-n 'OsuStartup%program=osu_init%layout=1xfull'"),
    ('OsuStartup', '-n OsuStartup: the other filters (mode, -t) leave out '
     "-n 'OsuStartup%program=osu_hello%layout=1xfull', "
     "-n 'OsuStartup%program=osu_init%layout=1xfull'"),
    ('osu_helo', "-n osu_helo: no such test case; the nearest: -n 'osu_hello'"),
    ('zzzzzz', '')])
def test_the_nearest_names_are_suggested(pattern, text):
    assert names.suggest_names([pattern], NAMES) == text
