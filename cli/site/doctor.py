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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
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
from cli.site.schedulers import SchedulerAnswer, query_partitions
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
    schedulers = query_partitions(configuration['systems'][0])
    if 'error' in answer:
        print(*answer['output'], answer['error'], sep='\n', file=sys.stderr)
        return 1
    blocked = reasons_test_cases_cannot_start(configuration, folder, schedulers)
    prefix = Path(variables['RFM_REFERENCE_PREFIX'])
    calibrate = CALIBRATE + site_option(args.site)
    rows_of_family = {}
    for family in families():
        rows = [c for c in answer['cases'] if c['family'] == family]
        too_large = [*excessive_node_count_rows(
            answer.get('needed_nodes', {}).get(family, ()), configuration)]
        if not rows:
            reason = reason_without_test_cases(family, configuration) or (
                'environment and partition are sufficient, but no check fits '
                f'them: compare their nodes and programs with checks/{family}/'
                'README.md')
            rows_of_family[family] = [('not here', reason), *too_large]
            continue
        file = prefix / f'{family}.yaml'
        hint = '' if file.is_file() else (
            f': no references yet; add them: {calibrate}')
        rows_of_family[family] = [
            *runnable_test_case_rows(rows, blocked), *too_large,
            *optional_part_rows(family, configuration),
            ('references', f'{file}{hint}')]
    costs = {mode: mode_cost(answer['cases'], mode) for mode in MODES}
    if args.all:
        cc = shutil.which('cc') or shutil.which('gcc')
        console.print_table([
            ('site', folder),
            ('python', f'{sys.version.split()[0]} ({sys.executable})'),
            ('compiler', cc or 'not found: install gcc, or load a module'),
            ('spack', stack.spack_command() or 'not found (only stacks need it)')])
        print_environments(folder, configuration)
        if is_site_named_local(folder):
            print_store_servers()
        print_schedulers(schedulers)
        for family, lines in rows_of_family.items():
            print(f'\nfamily {family}')
            console.print_table(lines, indent=2)
        print('\nCost per mode, by time limits, without builds and queues')
        console.print_table([
            (f'--mode {mode}', f'{console.count_with_noun(cost.jobs, "job")}, '
             f'{cost.minutes_text}' + ', on each node' * (mode == VETO))
            for mode, cost in costs.items()], indent=2)
    else:
        print_schedulers(schedulers)
        print_family_table(answer['cases'], blocked, rows_of_family)
    here = [case for case in answer['cases'] if QUICK in case['modes']
            and case['where'] not in blocked]
    print()
    console.print_lines([readiness_line(here, rows_of_family, costs[QUICK])])
    if not args.all:
        print('To list tools, environments, optional parts and the cost of each mode: '
              '--all')
    if not here:
        print(f'plumb doctor: mode {QUICK}, the default of ./plumb '
              'run, has no test case that can run here; the lines "not here" '
              'give the reasons', file=sys.stderr)
        return 1
    return 0


Rows = Mapping[str, Sequence[tuple[str, str]]]


def print_family_table(cases: Iterable[Case], blocked: Mapping[str, str],
                       rows_of_family: Rows) -> None:
    """Print one row per family: how many test cases of each mode can start here; below
    the table, why families have none.

    :arg blocked: of `reasons_test_cases_cannot_start`
    :arg rows_of_family: what `--all` prints of each family
    """
    cases = list(cases)
    table: list[tuple[str, ...]] = []
    reasons: list[tuple[str, str]] = []
    for family, rows in rows_of_family.items():
        counts = [sum(mode in c['modes'] and c['where'] not in blocked
                      for c in cases if c['family'] == family) for mode in MODES]
        table.append(('runs here' if any(counts) else 'not here', family,
                      *(str(count or '-') for count in counts)))
        if not any(counts):
            reasons += [(family, text) for word, text in rows
                        if word == 'not here' and not text.startswith('--mode')][:2]
    table.sort(key=lambda row: row[0], reverse=True)
    console.print_table(table, ('', 'family', *MODES), right=range(2, 2 + len(MODES)))
    if reasons:
        print('\nNot here:')
        console.print_table(reasons, indent=2)


def readiness_line(here: Sequence[Case], rows_of_family: Rows, cost: Cost) -> str:
    """Whether the default mode can run, its cost, and what is optional.

    :arg here: test cases of the default mode that can start
    :arg cost: of the default mode
    """
    names = {case['family'] for case in here}
    missing = [text.partition(':')[0] for family in names
               for word, text in rows_of_family[family]
               if word == 'not here' and text.partition(':')[0] in
               families()[family].parts]
    return (f'{"READY" if here else "NOT READY"}: mode {QUICK} has '
            + console.count_with_noun(len(here), 'test case')
            + f' of {len(names)} {"family" if len(names) == 1 else "families"}'
            + f' ({cost.minutes_text})' * bool(here)
            + f' · optional, not here: {", ".join(sorted(missing))}' * bool(missing))


# ------------------------------------------- what this machine has

def print_environments(folder: Path, configuration: Mapping[str, Any]) -> None:
    """Print each environment with the origin of its programs, and whether they are
    installed."""
    print()
    states = programs.environment_states(folder, configuration)
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
         'yes' if store['tls'] else 'no', 'yes' if store['bench'] else 'no')
        for store in rows], ('store', 'version', 'source', 'prefix', 'TLS',
                             'own load generator'))
    missing = WORK / 'stores' / 'missing'
    if missing.is_file():
        print(f'no store was installed from wheels: '
              f'{missing.read_text().strip()}; '
              f'to retry, remove {missing.parent}')


def print_schedulers(answers: Mapping[str, SchedulerAnswer]) -> None:
    """Print which nodes of each partition can be had, and each error of a scheduler
    once."""
    if answers:
        print()
        console.print_table([(name, one.text or one.why)
                             for name, one in answers.items()], ('partition', 'nodes'))
        console.print_lines(dict.fromkeys(
            one.error for one in answers.values() if one.error))


# ------------------------------------------------- what would start

def reasons_test_cases_cannot_start(configuration: Mapping[str, Any], folder: Path,
                                    schedulers: Mapping[str, SchedulerAnswer] = {}
              ) -> dict[str, str]:
    """`partition+environment` -> why its test cases cannot start here; those
    that can start are left out.

    :arg folder: the site's folder
    :arg schedulers: partition -> answer of its scheduler, if that can be asked
    """
    system, = configuration['systems']
    states = programs.environment_states(folder, configuration)
    reasons = {}
    for part in system['partitions']:
        fault = reason_partition_cannot_start_jobs(part)
        answer = schedulers.get(part['name'])
        for name in part['environs']:
            # What a person has to change comes before what may be over tomorrow.
            why = fault or (f'environment {name}: {states[name].reason}'
                            if states[name].word == programs.MISSING else
                            answer.why if answer else '')
            if why:
                reasons[f"{part['name']}+{name}"] = why
    return reasons


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


def runnable_test_case_rows(cases: Iterable[Case], blocked: Mapping[str, str]
                ) -> Iterator[tuple[str, str]]:
    """For each mode the test cases that can start, then why others cannot."""
    cases = list(cases)
    for mode in MODES:
        mode_cases = [c for c in cases if mode in c['modes']]
        if mode == VETO and not mode_cases:
            continue            # one of another family is enough
        start = sum(c['where'] not in blocked for c in mode_cases)
        rest = f' of {len(mode_cases)}' if start < len(mode_cases) else ''
        yield ('runs here' if start else 'not here',
               f'--mode {mode}: {start}{rest} test cases')
    reasons = Counter(blocked[case['where']] for case in cases
                      if blocked.get(case['where']))
    for why, number in reasons.items():
        yield 'not here', f'{number} test cases: {why}'
    if cpus := [c['unavailable_cpus'] for c in cases
                if c.get('unavailable_cpus')]:
        yield 'only full', (
            f'{len(cpus)} test cases would be inconclusive: servers and '
            f'clients need {min(cpus)} to {max(cpus)} CPUs of a node, '
            'and no node has them')


def excessive_node_count_rows(needed: Iterable[int], configuration: Mapping[str, Any]
                    ) -> Iterator[tuple[str, str]]:
    """For each partition the numbers of nodes that its jobs may not have.

    :arg needed: numbers of nodes that the test cases of a family need
    """
    for system in configuration['systems']:
        for part in system.get('partitions', ()):
            most = part.get('extras', {}).get('max_nodes', 1)
            if too_many := [count for count in needed if count > most]:
                yield 'not here', (
                    f'test cases of {", ".join(map(str, too_many))} nodes on '
                    f'partition {part["name"]}: its max_nodes is {most}')


# ------------------------------------------------- parts of a family

def optional_part_rows(family: str, configuration: Mapping[str, Any]
              ) -> Iterator[tuple[str, str]]:
    """The parts of a family (`parts` of its family.yaml) that a site has, and
    how to get the others."""
    offers = {feature for env in configuration['environments']
              for feature in env.get('features', ())}
    for what, part in families()[family].parts.items():
        named = [name for name in stack.stack_names() if part['feature'] in
                 environs.stack_environment('', name)['features']]
        stacks = f'; or use a stack that has it: {", ".join(named)}' if named else ''
        yield (('offered', what) if part['feature'] in offers else
               ('not here', f'{what}: {part["without"]}{stacks}'))


# ------------------------------------------------------------- the cost

def mode_cost(cases: Iterable[Case], mode: str) -> Cost:
    """The maximum cost of the test cases of a mode."""
    return total_cost((case['nodes'], case['max_seconds'][mode])
                      for case in cases if mode in case['modes'])
