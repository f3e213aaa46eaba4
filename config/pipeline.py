"""The GitLab pipeline of `reframe --ci-generate`: a job a check.

ReFrame's own makes a job of each build too, which its child cannot select,
hands results on through files that are gone by then, and drops most of the
options. Here each job is what a person would type: the environment, then
plain ReFrame with all options that were given, and one check.
"""
from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml

ROOT = Path(__file__).resolve().parent.parent

ZERO = ('zero cases ran: nothing was measured. No case has all that the '
        'filters ask for (mode, -n, -t, -p, -E, --failed); `reframe -l` '
        'lists the cases, `./plumb doctor` says what runs on this site')


def refuse(reason: str) -> NoReturn:
    """Ends ReFrame with one line on stderr and exit code 1."""
    print(f'plumb: {reason}', file=sys.stderr)
    sys.exit(1)


#: Options that select cases or output folders: each job has its own.
OWN = ('--ci-generate', '-n', '--name', '-x', '--exclude', '-E',
       '--filter-expr', '--report-file', '--report-junit')


def options(words: list[str]) -> list[str]:
    """ReFrame's options that every job of the pipeline needs too."""
    kept: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        short = word.startswith('-') and not word.startswith('--')
        name = word[:2] if short else word.partition('=')[0]
        if name in OWN:
            if word == name and words:      # its value is a word of its own
                words.pop(0)
        else:
            kept.append(word)
    return kept


def emit(stream: Any, cases: list, *_: Any, **__: Any) -> None:
    """Writes the pipeline of the cases."""
    checks = {case.check.unique_name: case.check for case in cases
              if not case.check.is_fixture()}
    if not checks:
        os.unlink(stream.name)
        refuse(ZERO)
    site = Path(os.environ.get('PLUMBLINE_SITE', 'local'))
    inside = site.parent == ROOT / 'site-configs'
    given = shlex.join(options(sys.argv[1:]))
    jobs: dict[str, Any] = {'stages': ['measure']}
    for name, check in checks.items():
        kept = [f'{name}-report.json', f'{name}-report.xml']
        jobs[name] = {
            'stage': 'measure',
            'script': [
                'eval "$(./plumb env --site '
                f'{shlex.quote(site.name if inside else str(site))})"',
                f'reframe -r -n /{check.hashcode} --report-file={kept[0]} '
                f'--report-junit={kept[1]} {given}'.strip()],
            # Also cases that failed.
            'artifacts': {'paths': [*kept, 'perflogs'], 'when': 'always'},
            **check.ci_extras.get('gitlab', {})}
    yaml.safe_dump(jobs, stream, sort_keys=False, width=10_000)
