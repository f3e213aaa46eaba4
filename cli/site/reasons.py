"""Why a site has no test case of a family, and what to add for one.

`needs` in the family's family.yaml lists the features of which each test case
needs one: of a partition, and of an environment.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checks.core import environs
from checks.spack import stack
from config.families import families

Row = Mapping[str, Any]


def reason_without_test_cases(family: str, configuration: Row) -> str:
    """Why a site has no test case of a family: the reason, a colon, and what to
    add.

    :arg configuration: the `site_configuration` of the site
    :returns: '' if a partition and one of its environments have all that the
        family needs
    """
    needs = families()[family]
    partitions = [part for system in configuration['systems']
                  for part in system['partitions']]
    places = [part for part in partitions if not needs.partition_needs
              or {*needs.partition_needs} & {*part.get('features', ())}]
    if not places:
        return (f'no partition has the feature {words_text(needs.partition_needs)}: '
                'if the site has such nodes, add the feature and the GPUs of a node '
                '(devices) to the partition')
    if needs.partition_needs and not any(
            device['type'] == 'gpu' for part in places
            for device in part.get('devices', ())):
        return (f'partition {names_text(places)} has no devices of type gpu: add '
                'the GPUs of a node to its devices')
    suitable = sufficient_environments(family, configuration)
    if not suitable:
        return reason_without_environment(family, configuration['environments'])
    names = {env['name'] for env in suitable}
    if not any(names & {*part['environs']} for part in places):
        return (f'partition {names_text(places)} does not have the environment '
                f'{names_text(suitable)}: add it to environs of the partition')
    return ''


def sufficient_environments(family: str, configuration: Row) -> list[Row]:
    """The environments of a site that have all that a family needs."""
    needed = {*families()[family].environment_needs}
    return [env for env in configuration['environments']
            if needed & {*env.get('features', ())}]


def reason_without_environment(family: str, environments: Iterable[Row]) -> str:
    """The reason if no environment of the site is sufficient for a family."""
    needs = families()[family]
    others = [f', and {env["name"]} has only {words_text(some, "and")}'
              for env in environments if (some := sorted(
                  {*needs.features} & {*env.get('features', ())}))]
    return ('no environment has the feature '
            f'{words_text(needs.environment_needs)}'
            f'{"".join(others)}: add '
            f'{"".join(f"{line} or " for line in environment_lines(family))}an '
            'environment with this feature and the prefix of its programs to '
            f'system.py (checks/{family}/README.md)')


def environment_lines(family: str) -> list[str]:
    """The lines of system.py each of which adds an environment that is
    sufficient for a family."""
    needs = families()[family]
    needed = {*needs.environment_needs}
    lines = []
    if needed & {*environs.program_features_of_family(family, 'embedded')}:
        lines.append(f'environs.embedded_program_environment(NAME, {family!r})')
    if 'mpi' in needed or any(row.built_with == 'mpi' for name, row in
                              needs.features.items() if name in needed):
        lines.append('environs.mpi_environment(NAME, LIBRARY)')
    return lines + [f'environs.stack_environment(NAME, {name!r})'
                    for name in stack.stack_names()
                    if needed & {*environs.stack_environment('', name)['features']}]


def words_text(words: Iterable[str], between: str = 'or') -> str:
    """`a, b or c`."""
    *first, last = words
    return f'{", ".join(first)} {between} {last}' if first else last


def names_text(rows: Iterable[Row]) -> str:
    """The names of partitions or environments: `a, b or c`."""
    return words_text([row['name'] for row in rows])
