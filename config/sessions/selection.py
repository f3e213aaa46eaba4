"""Modes smoke and veto: few test cases of each partition.

A family gives the tag `smoke` to short test cases on one and on two nodes, and
the tag `veto` to a short one that uses all CPUs or GPUs of a node. A tag belongs
to a check, and not to a partition or environment, so each check narrows its
`valid_systems` and `valid_prog_environs` (`Benchmark.narrow_to_mode`). Mode smoke
keeps one test case per family and partition, on the largest of the family's
numbers of nodes; mode veto one per partition. Both keep the first environment of
the partition that fits.

ReFrame combines each partition with each environment of a check. So if two
partitions have the same environments in another order, both of them are kept.
"""
from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .modes import SMOKE, VETO


def environment_has(environ: Any, spec: str) -> bool:
    """Whether an entry of `valid_prog_environs` selects an environment."""
    return _selects(spec, environ.name, environ.features)


def partition_has(partition: Any, spec: str) -> bool:
    """Whether an entry of `valid_systems` selects a partition."""
    return _selects(spec, partition.fullname, partition.features)


def _selects(spec: str, name: str, features: Collection[str]) -> bool:
    return all(word == '*' or word == name
               or word[0] == '+' and word[1:] in features
               or word[0] == '-' and word[1:] not in features
               for word in spec.split())


def offers(partition: Any, *specs: str) -> bool:
    """Whether an environment of a partition fits one of several entries of
    `valid_prog_environs`."""
    return any(environment_has(environ, spec)
               for environ in partition.environs for spec in specs)


def is_in_mode(check: Any, mode: str, partition: Any, environ: Any) -> bool:
    """Whether a mode has the test case of a check in a partition and environment
    that fit the check.

    :param check: a benchmark after its init phase
    """
    if mode not in check.tags:
        return False
    if mode not in (SMOKE, VETO):
        return True
    if mode == SMOKE:
        nodes = check.node_count_before_setup
        if nodes < max(count for count in check.smoke_node_counts
                       if count <= partition.extras.get('max_nodes', 1)):
            return False
    elif not check.is_first_in_veto(partition):
        return False
    specs = [*check.alternative_environments(), *check.valid_prog_environs]
    first, spec = next((one.name, spec) for one in partition.environs
                       for spec in specs if environment_has(one, spec))
    return first == environ.name and spec in check.valid_prog_environs
