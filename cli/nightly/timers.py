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
from pathlib import Path

import jinja2

from cli.session.commands import site_folder
from cli.setup.venv import ROOT, WORK, SetupError
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
#: Seconds that a nightly session has after SIGTERM: to cancel its jobs, to end
#: what they left, and to write its summary.
STOP_TIMEOUT = 90


def schedule(args: argparse.Namespace) -> int:
    """Print what starts a nightly session; the command `plumb nightly schedule`.

    :raises SetupError: unknown site, or some crons would cut off the line
    """
    folder = site_folder(args.site)
    # A timer starts in another folder, so a path is absolute.
    site = args.site if (ROOT / 'site-configs' / args.site).is_dir() else str(
        Path(args.site).absolute())
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('kind')
    parser.add_argument('--site')
    end = args.words.index('--') if '--' in args.words else len(args.words)
    options = parser.parse_known_args(args.words[:end])[1]
    variables, left = session_variables()
    values = KINDS[args.kind](
        args, ['./plumb', 'nightly', '--site', site, *options], args.words[end:],
        variables)
    template = jinja2.Template((TEMPLATES / args.kind).read_text(), trim_blocks=True,
                               keep_trailing_newline=True,
                               undefined=jinja2.StrictUndefined)
    print(template.render(
        **{'variables': variables, **values}, name=f'plumbline-{folder.name}',
        comment='# Variables of the shell that printed this; edit them as you need.'
        + ('\n# Left out, because they may be secrets or have several lines: '
           + ', '.join(left)) * bool(left)), end='')
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


def crontab_values(args: argparse.Namespace, command: list[str], passed: list[str],
                   variables: dict[str, str]) -> dict[str, object]:
    """The values of the template of cron.

    :param command: of the nightly session
    :param passed: `--` and options of ReFrame, or empty
    :raises SetupError: some crons would cut the line off
    """
    folder, name = '"$PLUMBLINE_WORK"/nightly', shlex.quote(Path(args.site).name)
    # Two sessions of a day have one log: the second one may be refused while the first
    # one runs.
    line = (f'cd {shlex.quote(str(ROOT))} && mkdir -p {folder} && '
            f'log={folder}/{name}-$(date +%F).log && '
            f'{{ {shlex.join([*command, *passed])} >>"$log" 2>&1 || '
            f'tail -n 60 "$log"; }}; '
            f"find {folder} -name {name}-'*.log' -mtime +30 -delete")
    if len(line) > MAX_CRON:
        raise SetupError(f'the command for cron has {len(line)} characters, and '
                         f'some crons accept only {MAX_CRON}; use ./plumb nightly '
                         'schedule systemd, or shorter paths')
    # cron reads a % as the end of the line.
    return {'command': line.replace('%', r'\%')}


def systemd_values(args: argparse.Namespace, command: list[str], passed: list[str],
                   variables: dict[str, str]) -> dict[str, object]:
    """The values of the template of systemd, as of `crontab_values`."""
    return {
        'folder': str(ROOT).replace('%', '%%'),
        'variables': [_quote_unit_word(f'{name}={value}')
                      for name, value in variables.items()],
        'command': ' '.join(_quote_unit_word(word).replace('$', '$$') for word in [
            str(ROOT / 'plumb'), *command[1:], *passed]),
        'limit': round(args.hours * 3600 + 2 * STOP_TIMEOUT), 'stop': STOP_TIMEOUT}


def _quote_unit_word(word: str) -> str:
    """A word of ExecStart= or Environment=: quoted, where systemd would read
    more into it."""
    word = word.replace('%', '%%')
    if word and not set(word) & set(' \t"\'\\;'):
        return word
    return '"' + word.replace('\\', '\\\\').replace('"', '\\"') + '"'


def gitlab_values(args: argparse.Namespace, command: list[str], passed: list[str],
                  variables: dict[str, str]) -> dict[str, object]:
    """The values of a pipeline of GitLab, as of `crontab_values`: a nightly session for
    a schedule.

    Each text is quoted as in JSON, which YAML reads.
    """
    page = [] if args.page_url else ['--page-url', GITLAB_PAGE]
    return {
        'folder': ROOT, 'hours': int(args.hours) + 1,
        # GitLab would replace variables in the values.
        'variables': {name: json.dumps(value.replace('$', '$$'))
                      for name, value in variables.items()},
        # GitLab's own variable, which the shell has to replace.
        'nightly': json.dumps(f'cd {shlex.quote(str(ROOT))} && ' + shlex.join(
            [*command, *page, *passed]).replace(
                shlex.quote(GITLAB_PAGE), f'"{GITLAB_PAGE}"'))}


KINDS = {'cron': crontab_values, 'systemd': systemd_values, 'gitlab': gitlab_values}
