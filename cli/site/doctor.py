"""`plumb doctor`: print which test cases can run here, and why others cannot.

programs.py reports whether the programs are installed, schedulers.py whether nodes
take jobs, and reasons.py why a family has no test case.
"""
from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from checks.core import environs
from checks.spack import stack
from cli.session.commands import (
    load_site_configuration,
    reframe_environment_variables,
    site_folder,
)
from cli.setup.venv import WORK
from cli.site import check as sites
from cli.site import programs
from cli.site.reasons import reason_without_test_cases
from cli.site.schedulers import Pool, Pools, query_pools
from config import console
from config.families import families
from config.places import CALIBRATE, is_site_named_local, site_option
from config.sessions.cost import Cost, total_cost
from config.sessions.modes import MODES, QUICK, VETO

Case = Mapping[str, Any]


def doctor(args: argparse.Namespace) -> int:
    """Print which test cases can run.

    :returns: 1 if the default mode has none, or the checks cannot be listed
    """
    variables = reframe_environment_variables(args.site)
    folder = site_folder(args.site)
    configuration = load_site_configuration(folder / 'system.py')
    answer = sites.list_test_cases_with_reframe(folder)
    pools = query_pools(configuration['systems'][0]['partitions'])
    if 'error' in answer:
        print(*answer['output'], answer['error'], sep='\n', file=sys.stderr)
        return 1
    cases = answer['cases']
    states = programs.environment_states(folder, configuration, pools)
    blocked = reasons_test_cases_cannot_start(configuration, states, pools)
    start = [case for case in cases if case['where'] not in blocked]
    if args.all:
        cc = shutil.which('cc') or shutil.which('gcc')
        console.print_table([
            ('site', folder),
            ('python', f'{sys.version.split()[0]} ({sys.executable})'),
            ('compiler', cc or 'not found: install gcc, or load a module'),
            ('spack', stack.spack_command() or 'not found (only stacks need it)')])
        print_environments(configuration, states)
        if is_site_named_local(folder):
            print_store_servers()
    print_pools(pools)
    missing = print_families(answer, blocked, configuration, args.all)
    costs = {mode: mode_cost(cases, mode) for mode in MODES}
    if args.all:
        print(f'\nReferences: {variables["RFM_REFERENCE_PREFIX"]} (made by '
              f'{CALIBRATE}{site_option(args.site)})')
        print('\nCost per mode, by time limits, without builds and queues')
        console.print_table([
            (f'--mode {mode}', f'{console.count_with_noun(cost.jobs, "job")}, '
             f'{cost.minutes_text}' + ', on each node' * (mode == VETO))
            for mode, cost in costs.items()], indent=2)
    here = {case['family'] for case in start if QUICK in case['modes']}
    number = sum(QUICK in case['modes'] for case in start)
    print()
    console.print_lines([
        f'{"READY" if here else "NOT READY"}: mode {QUICK} has '
        f'{console.count_with_noun(number, "test case")} of {len(here)} '
        f'{"family" if len(here) == 1 else "families"}'
        + f' ({costs[QUICK].minutes_text})' * bool(here)
        + f' · optional, not here: {", ".join(missing)}' * bool(missing)])
    if not args.all:
        print('To list tools, environments, optional parts and the cost of each mode: '
              '--all')
    if not here:
        print(f'plumb doctor: mode {QUICK}, the default of ./plumb '
              'run, has no test case that can run here; the lines "not here" '
              'give the reasons', file=sys.stderr)
        return 1
    return 0


def print_families(answer: Mapping[str, Any], blocked: Mapping[str, str],
                   configuration: Mapping[str, Any], whole: bool) -> list[str]:
    """Print one row per family: how many test cases of each mode can start here; below
    the table, why others cannot.

    :arg answer: of `list_test_cases_with_reframe`
    :arg blocked: of `reasons_test_cases_cannot_start`
    :arg whole: give all reasons of all families, and the parts that are not here;
        otherwise the first two of families without test cases
    :returns: the parts that are not here, of families with test cases
    """
    cases, nodes = answer['cases'], answer.get('needed_nodes', {})
    table, reasons = [], []
    missing: dict[str, str] = {}
    for family in families():
        counts = [sum(family == case['family'] and mode in case['modes']
                      and case['where'] not in blocked for case in cases)
                  for mode in MODES]
        table.append(('runs here' if any(counts) else 'not here', family,
                      *(str(count or '-') for count in counts)))
        why = reasons_not_here(family, cases, blocked, configuration,
                               nodes.get(family, ()))
        parts = missing_parts(family, configuration) if any(counts) else {}
        missing |= parts
        if whole:
            why += [f'{what}: {advice}' for what, advice in parts.items()]
        elif any(counts):
            why = []
        reasons += [(family, text) for text in (why if whole else why[:2])]
    table.sort(key=lambda row: row[0], reverse=True)
    print()
    console.print_table(table, ('', 'family', *MODES), right=range(2, 2 + len(MODES)))
    if reasons:
        print('\nNot here:')
        console.print_table(reasons, indent=2)
    return sorted(missing)


def reasons_not_here(family: str, cases: Iterable[Case], blocked: Mapping[str, str],
                     configuration: Mapping[str, Any], needed_nodes: Iterable[int]
                     ) -> list[str]:
    """Why test cases of a family do not exist, or cannot start.

    :arg blocked: of `reasons_test_cases_cannot_start`
    :arg needed_nodes: numbers of nodes that its test cases need
    """
    own = [case for case in cases if case['family'] == family]
    counts = Counter(blocked[case['where']] for case in own if case['where'] in blocked)
    reasons = [f'{number} test cases: {why}' for why, number in counts.items()]
    if not own:
        reasons.append(reason_without_test_cases(family, configuration) or (
            'environment and partition are sufficient, but no check fits them: compare '
            f'their nodes and programs with checks/{family}/README.md'))
    if cpus := [case['unavailable_cpus'] for case in own
                if case.get('unavailable_cpus')]:
        reasons.append(
            f'{len(cpus)} test cases would be inconclusive: servers and '
            f'clients need {min(cpus)} to {max(cpus)} CPUs of a node, '
            'and no node has them')
    for part in configuration['systems'][0]['partitions']:
        maximum = part.get('extras', {}).get('max_nodes', 1)
        if too_many := [str(count) for count in needed_nodes if count > maximum]:
            reasons.append(f'test cases of {", ".join(too_many)} nodes on partition '
                           f'{part["name"]}: its max_nodes is {maximum}')
    return reasons


def missing_parts(family: str, configuration: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a family (`parts` of its family.yaml) that a site lacks, and how to
    get them."""
    offers = {feature for env in configuration['environments']
              for feature in env.get('features', ())}
    missing = {}
    for what, part in families()[family].parts.items():
        named = [name for name in stack.stack_names() if part['feature'] in
                 environs.stack_environment('', name)['features']]
        if part['feature'] not in offers:
            missing[what] = part['without'] + (
                f'; or use a stack that has it: {", ".join(named)}' if named else '')
    return missing


# ------------------------------------------- what this machine has

def print_environments(configuration: Mapping[str, Any],
                       states: Mapping[str, programs.State]) -> None:
    """Print each environment with the origin of its programs, and whether they are
    installed."""
    print()
    rows = []
    for env in configuration['environments']:
        extras = env.get('extras', {})
        words = [extras.get('mpi_library', ''),
                 f"stack {extras['stack']}" if 'stack' in extras else '',
                 *(f"{family}: {origin['source']} "
                   f"{origin.get('prefix', '')}".strip()
                   for family, origin in extras.get('programs', {}).items())]
        rows.append((env['name'], ', '.join(filter(None, words)),
                     states.get(env['name'], '')))
    console.print_table(rows, ('environment', 'programs', ''))


def print_store_servers() -> None:
    """Print the stores of this machine."""
    print()
    rows = json.loads((WORK / 'local.json').read_text())['stores']
    console.print_table([
        (store['store'], store['version'], store['source'], store['prefix'],
         'yes' if store['bench'] else 'no')
        for store in rows], ('store', 'version', 'source', 'prefix',
                             'own load generator'))
    missing = WORK / 'stores' / 'missing'
    if missing.is_file():
        print(f'no store was installed from wheels: '
              f'{missing.read_text().strip()}; '
              f'to retry, remove {missing.parent}')


def print_pools(pools: Pools) -> None:
    """Print which nodes partitions have; those with the same nodes, or the same error,
    in one row."""
    if pools:
        names: dict[str, list[str]] = {}
        for name, pool in pools.items():
            names.setdefault(str(pool), []).append(name)
        print()
        console.print_table([(', '.join(some), text) for text, some in names.items()],
                            ('partition', 'nodes'))


# ------------------------------------------------- what would start

def reasons_test_cases_cannot_start(configuration: Mapping[str, Any],
                                    states: Mapping[str, programs.State],
                                    pools: Pools = {}) -> dict[str, str]:
    """`partition+environment` -> why its test cases cannot start here; those
    that can start are left out.

    :arg states: of `programs.environment_states`
    :arg pools: the nodes of partitions, if their scheduler can be asked
    """
    system, = configuration['systems']
    reasons = {}
    for part in system['partitions']:
        fault = reason_partition_cannot_start_jobs(part)
        for name in part['environs']:
            # What a person has to change comes before what may be over tomorrow.
            why = fault or (f'environment {name}: {states[name].reason}'
                            if states[name].word == programs.MISSING else
                            reason_without_nodes(part['name'], pools))
            if why:
                reasons[f"{part['name']}+{name}"] = why
    return reasons


def reason_without_nodes(partition: str, pools: Pools) -> str:
    """Why no node can run jobs of a partition; empty: one can, or it is unknown."""
    pool = pools.get(partition)
    if not isinstance(pool, Pool):
        return str(pool or '')
    return f'no node of partition {partition} takes jobs' * (not pool.usable_nodes)


def reason_partition_cannot_start_jobs(part: Mapping[str, Any]) -> str:
    """Why the jobs of a partition cannot start here; empty: they can."""
    command = programs.SUBMIT.get(part['scheduler'], '')
    if command and not shutil.which(command):
        return (f'{command} not found: partition {part["name"]} has the '
                f'scheduler {part["scheduler"]}; use a login node of the site')
    launcher = part['launcher']
    if (part['scheduler'] == 'local' and launcher != 'local'
            and not shutil.which(launcher)):
        return f'{launcher} not found: load an MPI, or add it to PATH'
    return ''


# ------------------------------------------------------------- the cost

def mode_cost(cases: Iterable[Case], mode: str) -> Cost:
    """The maximum cost of the test cases of a mode."""
    return total_cost((case['nodes'], case['max_seconds'][mode])
                      for case in cases if mode in case['modes'])
