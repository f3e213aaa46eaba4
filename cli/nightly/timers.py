"""`plumb nightly schedule`: what starts a nightly session each night.

Only texts are printed, from templates/, for this checkout, site and options; the user
installs them. All of them start the suite in this checkout, with the same variables, so
that they share one work folder, one folder of perflogs and one set-up.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import jinja2

from cli.nightly.overlap import STOP_TIMEOUT
from cli.session.commands import site_folder
from cli.setup.venv import ROOT, WORK, SetupError
from cli.site.listing import list_test_cases_with_reframe
from config import places
from config.variables import names_of_kind

TEMPLATES = Path(__file__).with_name('templates')
#: A variable, as NAME=value, that may have a secret: by its name, or because a
#: URL has a user or password. It is never printed.
SECRET = re.compile(r'^\w*(TOKEN|SECRET|PASS|KEY|CREDENTIAL)\w*=|://[^/\s]*@')
#: Most characters of a command of cron: MAX_COMMAND of Vixie cron is 1000.
MAX_CRON = 998
#: The page among the artifacts of a job of GitLab.
GITLAB_PAGE = '$CI_JOB_URL/artifacts/file/report/index.html'


def schedule(args: argparse.Namespace) -> int:
    """Print what starts a nightly session; the command `plumb nightly schedule`.

    :raises SetupError: unknown site, or some crons would cut off the line
    """
    site_folder(args.site)
    print(KINDS[args.kind](args), end='')
    return 0


def session_variables() -> tuple[dict[str, str], list[str]]:
    """The variables of this shell that a nightly session needs.

    :returns: the variables with their values, and the names of those that are
        left out: they may be secrets, or have a value of several lines, which
        cron and systemd cannot have
    """
    names = names_of_kind('carried') & os.environ.keys()
    left = sorted(name for name in names if SECRET.search(
        f'{name}={os.environ[name]}') or not os.environ[name].isprintable())
    kept = {name: os.environ[name] for name in names - set(left)}
    # The default folders, too: a file that names them can be moved.
    kept |= {'PLUMBLINE_WORK': str(WORK),
             'PLUMBLINE_PERFLOGS': str(places.perflog_folder())}
    return dict(sorted(kept.items())), left


def _variables_comment(left: Iterable[str]) -> str:
    """Comment lines on the variables that follow."""
    names = ', '.join(left)
    return ('# Variables of the shell that printed this; edit them as you need.'
            + ('\n# Left out, because they may be secrets or have several lines: '
               f'{names}' if names else ''))


def nightly_command(args: argparse.Namespace, *options: str) -> list[str]:
    """The command of a nightly session: the words of this one.

    :param options: further options
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('--site')
    end = args.words.index('--') if '--' in args.words else len(args.words)
    own = [*args.words[:end]]
    own.remove(args.kind)
    return ['./plumb', 'nightly', '--site', _site_name_or_absolute_path(args.site),
            *parser.parse_known_args(own)[1], *options, *args.words[end:]]


def _site_name_or_absolute_path(text: str) -> str:
    """A site's name; a path becomes absolute, because the timer starts in
    another folder."""
    inside = (ROOT / 'site-configs' / text).is_dir()
    return text if inside else str(Path(text).absolute())


def _render(kind: str, args: argparse.Namespace, left: Iterable[str], **values: object
            ) -> str:
    template = jinja2.Template((TEMPLATES / kind).read_text(), trim_blocks=True,
                               keep_trailing_newline=True,
                               undefined=jinja2.StrictUndefined)
    return template.render(name=f'plumbline-{Path(args.site).name}',
                           comment=_variables_comment(left), **values)


def crontab_line(args: argparse.Namespace) -> str:
    """Lines for `crontab -e`.

    :raises SetupError: some crons would cut the line off
    """
    folder = '"$PLUMBLINE_WORK"/nightly'
    name = shlex.quote(Path(args.site).name)
    # Two sessions of a day have one log: the second one may be refused while the first
    # one runs.
    command = (
        f'cd {shlex.quote(str(ROOT))} && mkdir -p {folder} && '
        f'log={folder}/{name}-$(date +%F).log && '
        f'{{ {shlex.join(nightly_command(args))} >>"$log" 2>&1 || '
        f'tail -n 60 "$log"; }}; '
        f"find {folder} -name {name}-'*.log' -mtime +30 -delete")
    if len(command) > MAX_CRON:
        raise SetupError(f'the command for cron has {len(command)} characters, and '
                         f'some crons accept only {MAX_CRON}; use ./plumb nightly '
                         'schedule systemd, or shorter paths')
    variables, left = session_variables()
    # cron reads a % as the end of the line.
    return _render('cron', args, left, variables=variables,
                   command=command.replace('%', r'\%'))


def systemd_units(args: argparse.Namespace) -> str:
    """Commands of a shell that install a service and a timer of systemd."""
    variables, left = session_variables()
    return _render(
        'systemd', args, left, folder=_escape_percent(str(ROOT)),
        variables=[_quote_unit_word(f'{name}={value}')
                   for name, value in variables.items()],
        command=' '.join(_quote_unit_word(word).replace('$', '$$') for word in [
            str(ROOT / 'plumb'), *nightly_command(args)[1:]]),
        limit=round(args.hours * 3600 + 2 * STOP_TIMEOUT), stop=round(STOP_TIMEOUT))


def _escape_percent(text: str) -> str:
    return text.replace('%', '%%')


def _quote_unit_word(word: str) -> str:
    """A word of ExecStart= or Environment=: quoted, where systemd would read
    more into it."""
    word = _escape_percent(word)
    if word and not set(word) & set(' \t"\'\\;'):
        return word
    return '"' + word.replace('\\', '\\\\').replace('"', '\\"') + '"'


def gitlab_pipeline(args: argparse.Namespace) -> str:
    """A pipeline of GitLab: a nightly session for a schedule, and a job for each
    family, in mode quick, for a person or another pipeline that starts it.

    :raises SetupError: the test cases of the site cannot be listed
    """
    variables, left = session_variables()
    enter = f'cd {shlex.quote(str(ROOT))} && '
    page = [] if args.page_url else ['--page-url', GITLAB_PAGE]
    quick = ['./plumb', 'run', '--site', _site_name_or_absolute_path(args.site),
             *['--bringup'] * args.bringup, '--', *args.reframe]
    return _render(
        'gitlab', args, left, folder=ROOT,
        # Each text is quoted as in JSON, which YAML reads. GitLab would replace
        # variables in the values.
        variables={name: json.dumps(value.replace('$', '$$'))
                   for name, value in variables.items()},
        hours=int(args.hours) + 1,
        # GitLab's own variable, which the shell has to replace.
        nightly=json.dumps(enter + shlex.join(nightly_command(args, *page)).replace(
            shlex.quote(GITLAB_PAGE), f'"{GITLAB_PAGE}"')),
        families=json.dumps(families_of_site(args.site)),
        quick=json.dumps(f'{enter}{shlex.join(quick)} -t "^$FAMILY$"'))


def families_of_site(site: str) -> list[str]:
    """Families with a test case of mode quick on a site.

    :raises SetupError: the test cases cannot be listed
    """
    answer = list_test_cases_with_reframe(site_folder(site))
    if 'error' in answer:
        raise SetupError(answer['error'])
    return sorted({case['family'] for case in answer['cases']
                   if 'quick' in case['modes']})


KINDS = {'cron': crontab_line, 'systemd': systemd_units, 'gitlab': gitlab_pipeline}
