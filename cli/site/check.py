"""plumb site check: whether a site's folder is sound."""
from __future__ import annotations

import argparse
import collections
import contextlib
import difflib
import json
import os
import re
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.core import hardware
from checks.machine import software
from checks.spack import stack
from cli.session.commands import MODES, site_folder
from cli.setup.venv import (
    ROOT,
    WORK,
    SetupError,
    ensure_mpi,
    ensure_stores,
    ensure_venv,
)
from cli.site import spack_yaml
from config import schema, strict
from config.places import default_references, is_local
from config.references import accepted
from config.sites import topology

ENVS = ROOT / 'spack-envs'

SNAPSHOT = 'cases.txt'
#: Begins a comment on what `site new` leaves to a person.
FINISH = 'FINISH: '

#: First lines of a snapshot.
HEADER = ('# What can run on this site, and whether a reference judges it; '
          'written by\n# `./plumb site check --update`.\n'
          '# [partition+environment | modes | reference] check parameters\n')


# ------------------------------------------------------------------ check

@dataclass
class Verdict:
    """What was found of one site."""
    name: str
    facts: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    diff: list[str] = field(default_factory=list)


def check(args: argparse.Namespace) -> int:
    """Checks sites: exit code 1 if something has to be fixed."""
    if args.all == bool(args.sites):
        raise SetupError('name the sites to check, or say --all')
    folders = ([p.parent for p in sorted(
        ROOT.glob('site-configs/*/system.py'))] if args.all
        else [site_folder(name) for name in args.sites])
    if any(map(is_local, folders)):
        software.keep(WORK, ensure_mpi(), ensure_stores())
    # Each site is a process of its own: two at a time, as cores allow.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        verdicts = list(pool.map(
            lambda folder: examine(folder, args.update), folders))
    for verdict in verdicts:
        show(verdict)
    stacks = sorted(ENVS.glob('*/spack.yaml'))
    # common/ is a scope that the stacks share, not one of them.
    faults, note = spack_yaml.findings(
        None, [*stacks, *sorted(ENVS.glob('common/*.yaml'))])
    if stacks:
        show(Verdict(f'spack-envs ({len(stacks)} stacks)', [f'yaml  {note}'],
                     list(map(str, faults))))
    bad = sum(bool(v.findings or v.diff) for v in verdicts) + bool(faults)
    print(f'\nsites: {len(verdicts)}, to fix: {bad}')
    return 1 if bad else 0


def show(verdict: Verdict) -> None:
    """A site's facts, then its faults, one line each."""
    print(verdict.name)
    for fact in verdict.facts:
        print(f'  {fact}')
    for line in (*verdict.findings, *verdict.diff):
        print(line.replace(f'{Path.cwd()}/', ''))
    if verdict.diff:
        print(f'{verdict.name}: other cases than {SNAPSHOT} has; if that is '
              f'right: ./plumb site check {verdict.name} --update')


def examine(folder: Path, update: bool = False) -> Verdict:
    """One site: its file, its cases, its references, its YAML."""
    verdict = Verdict(folder.name if folder.parent == ROOT / 'site-configs'
                      else str(folder))
    answer = ask_reframe(folder)
    verdict.findings += answer['output']
    if 'error' in answer:
        verdict.findings.append(answer['error'])
    else:
        judge_cases(verdict, folder, answer['cases'], answer['complete'],
                    update)
        faults = stack_faults(folder, answer['stacks'])
        verdict.findings += faults
        if answer['stacks'] and not faults:
            lost, note = spack_yaml.loaded(folder, answer['stacks'].values())
            verdict.findings += lost
            verdict.facts.append(f'stacks      {note}')
        verdict.findings += unused(folder, answer['unused'])
        verdict.findings += answer['partitions']
    verdict.findings += own_files(folder, answer.get('cases', []))
    verdict.facts += [f'to finish   {line}' for line in unfinished(folder)]
    with contextlib.suppress(topology.TopologyError):
        if tree := switches(folder):
            verdict.facts.append(f'switches    {topology.summary(tree)}')
    yaml_faults, note = spack_yaml.findings(folder / 'spack')
    number = len(list((folder / 'spack').glob('*.yaml')))
    verdict.facts.append(f'yaml        {number} files, {note}' if number
                         else 'yaml        no spack/ folder')
    verdict.findings += map(str, yaml_faults)
    return verdict


def unfinished(folder: Path) -> list[str]:
    """What `site new` left to a person in a site's system.py, as
    FILE:LINE: what."""
    path = folder / 'system.py'
    text = path.read_text('utf-8') if path.is_file() else ''
    return [f'{path}:{text.count(chr(10), 0, comment.start()) + 1}: '
            + ' '.join(comment[1].replace('# ', '').split())
            for comment in re.finditer(
                rf'^ *# {FINISH}(.*\n(?: *# (?!{FINISH}).*\n)*)', text, re.M)]


def ask_reframe(folder: Path) -> dict[str, Any]:
    """What cases.py says of a site; never raises for a site's fault."""
    variables = {
        'PLUMBLINE_ROOT': str(ROOT), 'PLUMBLINE_WORK': str(WORK),
        'PLUMBLINE_SITE': str(folder),
        'RFM_REFERENCE_PREFIX': str(default_references(folder))}
    # ReFrame's own variables could point to other sites and other checks.
    plain = {k: v for k, v in os.environ.items() if not k.startswith('RFM_')}
    done = subprocess.run(
        [str(ensure_venv()), str(ROOT / 'cli' / 'site' / 'cases.py'),
         str(folder)],
        env={**plain, **variables}, text=True, capture_output=True,
        stdin=subprocess.DEVNULL)
    warnings = [f'{folder}/system.py: {line}'
            for line in done.stderr.splitlines() if line.strip()]
    try:
        return {**json.loads(done.stdout), 'output': warnings}
    except ValueError:
        return {'error': f'{folder}/system.py: ReFrame ended with exit code '
                         f'{done.returncode}', 'output': warnings[-3:]}


def judge_cases(verdict: Verdict, folder: Path, cases: list[dict[str, Any]],
                complete: list[str], update: bool) -> None:
    """The cases against the snapshot, and the references that they have.

    :arg complete: families of which every case shall have one.
    """
    counts = ', '.join(f'{mode} {sum(mode in c["modes"] for c in cases)}'
                       for mode in MODES)
    places = sorted({c['where'] for c in cases})
    verdict.facts.append(f'cases       {len(cases)} on '
                         f'{", ".join(places) or "nothing"}; {counts}')
    if not cases:
        verdict.findings.append(
            f'{folder}/system.py:1: no case can run here; see features in '
            'site-configs/README.md')
    verdict.findings += sorted({c['misplaced'] for c in cases
                                if c['misplaced']})
    home = default_references(folder)
    verdict.facts += coverage(cases, complete)
    verdict.findings += some(sorted(
        {c['fault'] for c in cases if c['fault'] and c['reference'] != '-'}))
    verdict.findings += some(without_reference(home, cases, complete))
    if is_local(folder):
        verdict.facts.append('snapshot    none kept: this site is whatever '
                             'machine it runs on')
        return
    path, now = folder / SNAPSHOT, snapshot(cases)
    kept = path.read_text() if path.is_file() else ''
    if now == kept:
        verdict.facts.append(f'snapshot    {SNAPSHOT} unchanged')
    elif update:
        path.write_text(now)
        verdict.facts.append(f'snapshot    {SNAPSHOT} written')
    elif not kept:
        verdict.findings.append(
            f'{path}:1: no snapshot is kept; write it: ./plumb site check '
            f'{verdict.name} --update')
    else:
        verdict.diff = list(difflib.unified_diff(
            kept.splitlines(), now.splitlines(), str(path), 'now',
            n=0, lineterm=''))


def snapshot(cases: list[dict[str, Any]]) -> str:
    """The cases as text, short enough that a change of it can be read.

    Cases that agree in places, modes and reference stand together; cases
    that differ in one parameter share a line. One each would be thousands.
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
        f'\n[{title}]\n' + ''.join(f'{line}\n' for line in merged(rows))
        for title, rows in sorted(sections.items()))


def merged(rows: list[dict[str, str]]) -> list[str]:
    """Lines for rows of parameters, values of one parameter joined.

    The program is never joined: it is what a reader looks for.
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


def coverage(cases: Iterable[dict[str, Any]],
             complete: Iterable[str]) -> list[str]:
    """How many cases of each family a reference judges."""
    kinds: dict[str, collections.Counter[str]] = {}
    for case in cases:
        if case['reference'] != '-':
            kind = case['reference']
            kinds.setdefault(case['family'], collections.Counter())[
                kind if case['judges'] or kind == 'none' else 'open'] += 1
    return [f'references  {family}: {n.total() - n["none"] - n["open"]} of '
            f'{n.total()} cases judged, '
            + (f'{n["open"]} with a reference that cannot judge yet, '
               if n['open'] else '')
            + (f'{n["vendor"]} of them by a vendor\'s values, '
               if n['vendor'] else '')
            + ('complete' if family in complete else 'bring-up')
            for family, n in sorted(kinds.items())]


def without_reference(folder: Path, cases: Iterable[dict[str, Any]],
                      complete: Iterable[str]) -> list[str]:
    """Judged cases of mode quick that have no reference, in families that
    say that all have one."""
    return [f'{folder}/{c["family"]}.yaml:1: {c["lacks"]} for {c["check"]} '
            f'{c["params"]} on {c["where"]}, and the file says `complete: '
            'true`; ./plumb references calibrate' for c in cases
            if not c['fault'] and c['family'] in complete
            and c['reference'] == 'none' and 'quick' in c['modes']]


def some(lines: list[str]) -> list[str]:
    """The first few, and how many more: one fault may be in every case."""
    return lines[:5] + [f'... and {len(lines) - 5} more like these'
                        for _ in lines[5:6]]


def switches(folder: Path) -> dict[str, topology.Switch]:
    """The tree of switches; empty if the site has none."""
    path = folder / topology.NAME
    return topology.load(path) if path.exists() else {}


def own_files(folder: Path, cases: list[dict[str, Any]]) -> list[str]:
    """Faults of the files that only the suite reads."""
    faults = []
    for read in (stack.settings_of, hardware.table, switches):
        try:
            read(folder)
        except (stack.StackError, ValueError) as err:
            faults.append(str(err))
    for path in sorted(folder.glob('locks/*')):
        if path.suffix != '.lock' or path.stem not in stack.names():
            faults.append(f'{path}:1: no stack {path.stem!r} in spack-envs/')
        elif stack.lock_in(path) is None:
            faults.append(
                f'{path}:1: no lock of Spack; make it again: ./plumb '
                f'spack lock --stack {path.stem}'
            )
    known = {c['family']: {d['check'] for d in cases
                           if d['family'] == c['family']} for c in cases}
    for path in accepted(folder / 'references') if known else ():
        if path.stem not in known:
            faults.append(f'{path}:1: no family {path.stem!r} here; '
                         + schema.near(path.stem, known))
            continue
        # A broken file is reported where references are looked up.
        with contextlib.suppress(strict.Fault):
            data = strict.load(path)
            lines = data.lines if isinstance(data, strict.Mapping) else {}
            faults += [f'{path}:{line}: no check {name!r} here; '
                      + schema.near(name, known[path.stem])
                      for name, line in lines.items()
                      if name not in (*known[path.stem], 'complete')]
    return faults


def line_with(path: Path, text: str) -> int:
    """The first line of a file that has a text; 1 where none has."""
    return next((number for number, line in enumerate(
        path.read_text().splitlines(), 1) if text in line), 1)


def unused(folder: Path, environs: Iterable[str]) -> list[str]:
    """Environments that no partition names: nothing would run in them."""
    path = folder / 'system.py'
    return [f'{path}:{line_with(path, repr(name))}: environment {name} is '
            "named by no partition: add it to a partition's environs, or "
            'remove it' for name in environs]


def stack_faults(folder: Path, named: dict[str, str]) -> list[str]:
    """Environments that name a stack that does not exist, or that the site
    cannot build."""
    path = folder / 'system.py'
    faults = []
    for environ, name in named.items():
        where = f'{path}:{line_with(path, repr(name))}: environment {environ}'
        if name not in stack.names():
            faults.append(f'{where}: no stack {name!r} in spack-envs/; '
                         + schema.near(name, stack.names()))
        elif not (folder / 'spack').is_dir():
            faults.append(f'{where} has the stack {name}, but the site has no '
                         'folder spack/ that says how to build; add '
                         'spack/packages.yaml, with gcc and the MPI')
    return faults
