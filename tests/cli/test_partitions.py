"""Partitions on which test cases would disturb each other."""
from __future__ import annotations

import types

import pytest

from checks.core import base
from cli.site import partitions as guard


def faults(*parts: dict) -> list[str]:
    return list(guard.partition_faults('system.py', {'name': 's', 'partitions': parts}))


@pytest.mark.parametrize('change, words', [
    ({'scheduler': 'local', 'max_jobs': 1}, ''),
    ({'scheduler': 'local'}, "s:p: max_jobs is 8, ReFrame's default, so "
     'test cases would disturb each other on this machine'),
    ({'scheduler': 'local', 'max_jobs': 2}, 'max_jobs is 2, so '),
    ({'access': ['--exclusive']}, ''),
    ({'scheduler': 'squeue', 'access': ['-p x']}, 's:p: access has no '
     "--exclusive, so two test cases could disturb each other on one node; "
     "add '--exclusive'"),
    ({'access': ['--exclusive=user']}, 'access has no --exclusive'),
    ({'access': ['--exclude=n1']}, 'access has no --exclusive'),
    ({'extras': {'others_cpu_limit': 1e6}}, ''),
    ({'scheduler': 'pbs'}, ''),
])
def test_a_site_may_not_time_two_cases_on_one_node(change, words):
    result = faults({'name': 'p', 'scheduler': 'slurm', **change})
    assert (words in result[0]) if words else not result
    assert len(result) <= 1


def test_two_partitions_are_not_one_machine():
    one = {'scheduler': 'local', 'max_jobs': 1}
    result, = faults({**one, 'name': 'a'}, {**one, 'name': 'b'})
    assert (
        'partitions a and b have the scheduler local. They are the same '
        'machine' in result
    )


@pytest.mark.parametrize('here', [True, False])
def test_no_stack_is_built_beside_a_timed_case(monkeypatch, here):
    """ReFrame limits jobs that are forced to be local apart from those of
    a partition."""
    space = types.SimpleNamespace
    system = space(partitions=[space(
        scheduler=space(is_local=here),
        environs=[space(name='stores', extras={'stack': 'keyvalue'})])])
    monkeypatch.setattr(base.rt, 'runtime', lambda: space(system=system))
    check = space(valid_prog_environs=['stores'], build_locally=None)
    base.Programs.set_build_locally_for_stacks(check)
    assert check.build_locally is not here
