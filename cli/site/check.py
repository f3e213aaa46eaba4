"""`plumb site check`: report the faults of a site's folder."""
from __future__ import annotations

import argparse
import collections
import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.core import hardware
from checks.machine import software
from checks.spack import stack
from cli.session.commands import MODES, load_site_configuration, site_folder
from cli.setup.venv import (
    ROOT,
    WORK,
    SetupError,
    ensure_mpi,
    ensure_store_servers,
)
from cli.site import partitions, programs, spack_yaml
from cli.site.listing import list_test_cases_with_reframe
from config import console, schema
from config.places import (
    CALIBRATE,
    default_reference_folder,
    is_site_named_local,
    perflog_folder,
    site_name_or_path,
    site_option,
)
from config.references import reference_files
from config.sites import topology

SNAPSHOT = 'cases.txt'
#: Start of a comment on what `site new` leaves to a person.
FINISH = 'FINISH: '

#: First lines of a snapshot.
HEADER = ('# What can run on this site, and whether a reference judges it; '
          'written by\n# `./plumb site check --update`.\n'
          '# [partition+environment | modes | reference] check parameters\n')


# ------------------------------------------------------------------ check

@dataclass
class Verdict:
    """The result of a check of one site."""
    name: str
    facts: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    #: Number of test cases of each mode.
    counts: str = ''
    #: Kind of reference -> test cases (`reference_kinds`).
    references: collections.Counter[str] = field(default_factory=collections.Counter)
    #: Environment -> whether its programs are installed.
    states: dict[str, programs.State] = field(default_factory=dict)
    #: Test cases whose reference has a useful tolerance: id and name, place, source.
    judged: list[tuple[str, str, str]] = field(default_factory=list)


def check(args: argparse.Namespace) -> int:
    """Check sites; returns 1 if one of them has a fault."""
    if args.all == bool(args.sites):
        raise SetupError('name the sites to check, or give --all, but not both')
    folders = ([p.parent for p in sorted(
        ROOT.glob('site-configs/*/system.py'))] if args.all
        else [site_folder(name) for name in args.sites])
    if any(map(is_site_named_local, folders)):
        software.save_detected_software(WORK, ensure_mpi(), ensure_store_servers())
    # One process per site, several of them at the same time.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        verdicts = list(pool.map(
            lambda folder: examine_site(folder, args.update), folders))
    # What matters last; of several sites, one line for each good one.
    for verdict in sorted(verdicts, key=lambda verdict: bool(verdict.findings)):
        print_verdict(verdict, folded=len(verdicts) > 1)
        if args.references:
            console.print_table(verdict.judged, indent=2)
    bad = sum(bool(v.findings) for v in verdicts)
    states = programs.count_states(
        state for verdict in verdicts for state in verdict.states.values())
    every = sum((v.references for v in verdicts), collections.Counter())
    print(f'\nsites: {len(verdicts)}, to fix: {bad}'
          + f'; {coverage_text(every)}' * bool(every)
          + f'; programs of environments: {states}' * bool(states))
    return 1 if bad else 0


def print_verdict(verdict: Verdict, folded: bool = False) -> None:
    """Print a site's facts, then its faults, one per line.

    :param folded: print only its test cases if it has no fault
    """
    if folded and not verdict.findings:
        print(f'{verdict.name}: good, test cases: {verdict.counts}; '
              f'{coverage_text(verdict.references)}; programs: '
              f'{programs.count_states(verdict.states.values())}')
        return
    print(verdict.name)
    console.print_table([re.split('  +', fact, maxsplit=1) for fact in verdict.facts],
                        indent=2)
    console.print_lines(line.replace(f'{Path.cwd()}/', '')
                        for line in verdict.findings)


def examine_site(folder: Path, update: bool = False) -> Verdict:
    """Check one site: system.py, test cases, references, YAML files."""
    verdict = Verdict(site_name_or_path(folder))
    answer = list_test_cases_with_reframe(folder)
    verdict.findings += answer['output']
    if 'error' in answer:
        verdict.findings.append(answer['error'])
    else:
        configuration = load_site_configuration(folder / 'system.py')
        system, = configuration['systems']
        compare_test_cases_with_snapshot(verdict, folder, answer['cases'],
                                         answer['complete'], update)
        verdict.judged = judged_test_cases(answer['cases'])
        verdict.states = programs.environment_states(folder, configuration)
        verdict.facts += [f'programs    {name}: {state}'
                          for name, state in verdict.states.items()]
        stacks = stack.stacks_of_site(configuration)
        faults = [*stack_faults(folder, stacks)]
        if stacks and not faults:
            faults, note = spack_yaml.faults_of_loading_stacks(folder, stacks)
            verdict.facts.append(f'stacks      {note}')
        verdict.findings += [
            *faults, *environment_faults(folder, configuration, answer['cases']),
            *answer['entries_without_test_case'],
            *partitions.partition_faults(f'{folder}/system.py', system)]
        verdict.facts += unproven_launcher_lines(answer['cases'])
        verdict.facts += [
            f'to finish   {folder}/system.py: partition {name}: the cores near its '
            'GPUs are unknown, so ranks may run far from them; add gpu_cores to its '
            'extras (docs/reference/site-files.md)'
            for name in partitions.partitions_without_gpu_cores(system)]
    verdict.findings += faults_of_site_files(folder, answer.get('cases', []))
    verdict.facts += [f'to finish   {line}' for line in unfinished_lines(folder)]
    with contextlib.suppress(topology.TopologyError):
        if tree := read_network_switches(folder):
            verdict.facts.append(f'switches    {topology.switch_summary_text(tree)}')
    return verdict


def unproven_launcher_lines(cases: list[dict[str, Any]]) -> list[str]:
    """Partitions with a launcher on which no server has run, until the perflogs have
    values of one of their test cases with servers, as lines."""
    partitions = {(c['system'], c['partition']): c['unproven_launcher']
                  for c in cases if c['unproven_launcher']}
    if not partitions:
        return []
    from postprocess import records  # slow to import, and few sites need it
    frame, _ = records.read(perflog_folder(), on_error='collect')
    values = frame[frame['check'].isin({c['check'] for c in cases
                                        if c['unproven_launcher']})
                   & (frame['metric'] != 'completed')]
    recorded = set(zip(values['system'], values['partition'], strict=True))
    return [f'services    untested with the launcher {launcher} of partition '
            f'{partition}: the perflogs have no values of a test case that '
            'starts servers there'
            for (system, partition), launcher in partitions.items()
            if (system, partition) not in recorded]


def unfinished_lines(folder: Path) -> list[str]:
    """The lines of a site's system.py that `site new` left to a person, as
    FILE:LINE: what to do."""
    path = folder / 'system.py'
    text = path.read_text('utf-8') if path.is_file() else ''
    return [f'{path}:{text.count(chr(10), 0, comment.start()) + 1}: '
            + ' '.join(comment[1].replace('# ', '').split())
            for comment in re.finditer(
                rf'^ *# {FINISH}(.*\n(?: *#  .*\n)*)', text, re.M)]


def compare_test_cases_with_snapshot(verdict: Verdict, folder: Path,
                                     cases: list[dict[str, Any]],
                                     complete: list[str], update: bool) -> None:
    """Compare test cases with the snapshot, and check their references.

    :arg complete: families in which every test case needs a reference
    """
    by_mode = {mode: [c for c in cases if mode in c['modes']] for mode in MODES}
    verdict.counts = ', '.join(f'{mode} {len(rows)}' for mode, rows in by_mode.items())
    checks = ', '.join(f'{mode} {len({c["name"] for c in rows})}'
                       for mode, rows in by_mode.items())
    places = sorted({c['where'] for c in cases})
    verdict.facts.append(f'test cases  {len(cases)} on '
                         f'{", ".join(places) or "no partition"}; {verdict.counts}')
    verdict.facts.append(
        f'checks      {checks} (as `./plumb run -l` lists them; a check has a test '
        'case per partition and environment)')
    if not cases:
        verdict.findings.append(
            f'{folder}/system.py:1: no test case can run on this site; '
            'correct its features (docs/reference/site-files.md)')
    verdict.findings += sorted({c['misplaced'] for c in cases
                                if c['misplaced']})
    home = default_reference_folder(folder)
    kinds = reference_kinds(cases)
    verdict.references = sum(kinds.values(), collections.Counter())
    verdict.facts += [
        f'references  {family}: {coverage_text(number)}, '
        + (f'{number["open"]} with a reference but no useful tolerance (none, or wider '
           'than the max tolerance), ' if number['open'] else '')
        + (f'{number["published"]} with published values, ' if number['published']
           else '')
        + ('complete: true' if family in complete else 'not marked complete: true')
        for family, number in sorted(kinds.items())]
    verdict.findings += shorten_list(sorted(
        {c['fault'] for c in cases if c['fault'] and c['reference'] != '-'}))
    verdict.findings += shorten_list(missing_reference_faults(
        home, cases, complete, verdict.name))
    if is_site_named_local(folder):
        verdict.facts.append('snapshot    not used, because this site is '
                             'the machine that it runs on')
        return
    path, now = folder / SNAPSHOT, snapshot_text(cases)
    kept = path.read_text() if path.is_file() else ''
    if now == kept:
        verdict.facts.append(f'snapshot    {SNAPSHOT} unchanged')
    elif update:
        path.write_text(now)
        verdict.facts.append(f'snapshot    {SNAPSHOT} written')
    elif not kept:
        verdict.findings.append(
            f'{path}:1: the file does not exist; to write it, run ./plumb '
            f'site check {verdict.name} --update')
    else:
        verdict.findings.append(
            f'{path}:1: the test cases of the site differ from this file; if this is '
            f'intended, run ./plumb site check {verdict.name} --update, and git diff '
            'shows the differences')


def snapshot_text(cases: list[dict[str, Any]]) -> str:
    """The test cases as text, short enough that people can read a diff of it.

    Test cases with the same partitions, modes and kind of reference share a
    section; those that differ in one parameter share a line. A line for each
    test case would make thousands of lines.
    """
    places = collections.defaultdict(list)
    for case in cases:
        places[case['check'], case['params'], ','.join(case['modes']),
               case['reference']].append(case['where'])
    sections = collections.defaultdict(list)
    for (check, params, modes, kind), where in places.items():
        sections[f'{" ".join(sorted(where))} | {modes} | {kind}'].append(
            {'': check, **dict(w.split('=', 1) for w in params.split())})
    return HEADER + ''.join(
        f'\n[{title}]\n' + ''.join(f'{line}\n' for line in merge_parameter_rows(rows))
        for title, rows in sorted(sections.items()))


def merge_parameter_rows(rows: list[dict[str, str]]) -> list[str]:
    """Lines for rows of parameters, with the values of a parameter joined.

    Programs are never joined, because readers search for them.
    """
    names = sorted({name for row in rows for name in row} - {'', 'program'})
    for name in names:
        groups = collections.defaultdict(list)
        for row in rows:
            rest = {k: v for k, v in row.items() if k != name}
            groups[tuple(rest.items())].append(row.get(name))
        rows = [{**dict(rest), **({name: ','.join(filter(None, values))}
                                  if any(values) else {})}
                for rest, values in groups.items()]
    return sorted(' '.join([row.pop(''), *sorted(
        f'{name}={value}' for name, value in row.items())]) for row in rows)


def reference_kinds(cases: Iterable[dict[str, Any]]
                    ) -> dict[str, collections.Counter[str]]:
    """Family -> kind of reference -> test cases. `none`: without a reference; `open`:
    without a tolerance, or with one that is wider than the max tolerance."""
    kinds: dict[str, collections.Counter[str]] = {}
    for case in cases:
        if case['reference'] != '-':
            kind = case['reference']
            kinds.setdefault(case['family'], collections.Counter())[
                kind if case['judges'] or kind == 'none' else 'open'] += 1
    return kinds


def judged_test_cases(cases: Iterable[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The test cases whose reference has a tolerance no wider than the max tolerance:
    id and name, partition and environment, source."""
    from postprocess.names import short_name  # slow to import
    return sorted((short_name(case['check'], case['params'], case['settings'],
                              case['test_case']), case['where'], case['source'])
                  for case in cases if case['judges'] and case['reference'] != 'none')


def coverage_text(number: collections.Counter[str]) -> str:
    """How many test cases have a reference that can fail a value.

    :param number: kind of reference -> test cases
    """
    return (f'{number.total() - number["none"] - number["open"]} of {number.total()} '
            'test cases with a tolerance')


def missing_reference_faults(folder: Path, cases: Iterable[dict[str, Any]],
                             complete: Iterable[str], site: str) -> list[str]:
    """Faults: test cases of mode quick that need a reference and have none, in
    families with `complete: true`."""
    return [f'{folder}/{c["family"]}.yaml:1: {c["lacks"]} for {c["check"]} '
            f'{c["params"]} on {c["where"]}, but the file has `complete: '
            f'true`; run {CALIBRATE}{site_option(site)}' for c in cases
            if not c['fault'] and c['family'] in complete
            and c['reference'] == 'none' and 'quick' in c['modes']]


def shorten_list(lines: list[str]) -> list[str]:
    """The first lines and the number of others: a fault may occur often."""
    return lines[:5] + [f'... and {len(lines) - 5} more like these'
                        for _ in lines[5:6]]


def read_network_switches(folder: Path) -> dict[str, topology.Switch]:
    """The switches of topology.yaml; empty if the site has no such file."""
    path = folder / topology.NAME
    return topology.load_switches(path) if path.exists() else {}


def faults_of_site_files(folder: Path, cases: list[dict[str, Any]]) -> list[str]:
    """Faults of the files that only the suite reads, not ReFrame or Spack."""
    faults = []
    for read in (hardware.models_by_name, read_network_switches):
        try:
            read(folder)
        except ValueError as err:
            faults.append(str(err))
    for path in sorted(folder.glob('locks/*')):
        if path.suffix != '.lock' or path.stem not in stack.stack_names():
            faults.append(f'{path}:1: spack-envs/ has no stack '
                          f'{path.stem!r}; rename the file, or remove it')
        elif stack.read_spack_lock_file(path) is None:
            site = site_option(site_name_or_path(folder))
            faults.append(
                f'{path}:1: this is not a lock file of Spack; to make it '
                f'again, run ./plumb dev spack lock{site} --stack {path.stem}'
            )
    known = {c['family'] for c in cases}
    for path in reference_files(folder / 'references') if known else ():
        if path.stem not in known:
            faults.append(f'{path}:1: this site has no family {path.stem!r}; '
                          + schema.suggest_name(path.stem, known))
    return faults


def line_number_of_text(path: Path, text: str) -> int:
    """The number of the first line with a text; 1 if no line has it."""
    return next((number for number, line in enumerate(
        path.read_text().splitlines(), 1) if text in line), 1)


def environment_faults(folder: Path, configuration: Mapping[str, Any],
                       cases: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Faults: environments that no partition uses, or that have no test case."""
    path = folder / 'system.py'
    used = {name for part in configuration['systems'][0]['partitions']
            for name in part['environs']}
    busy = {case['environ'] for case in cases}
    for name in (env['name'] for env in configuration['environments']):
        where = f'{path}:{line_number_of_text(path, repr(name))}'
        if name not in used:
            yield (f'{where}: no partition uses environment {name}; add it to a '
                   "partition's environs, or remove it")
        elif busy and name not in busy:
            yield (f'{where}: environment {name}: no test case exists for its features '
                   'and the partitions that use it; correct its features '
                   '(docs/reference/site-files.md), or remove it')


def stack_faults(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Faults: stacks that do not exist, or that the site cannot build."""
    path = folder / 'system.py'
    for name in names:
        where = f'{path}:{line_number_of_text(path, repr(name))}'
        if name not in stack.stack_names():
            yield (f'{where}: spack-envs/ has no stack {name!r}; '
                   + schema.suggest_name(name, stack.stack_names()))
        elif not (folder / 'spack').is_dir():
            yield (f'{where}: an environment has the stack {name}, but the site has no '
                   'folder spack/ to build it; add spack/packages.yaml with gcc and '
                   'the MPI (spack compiler find, spack external find)')
