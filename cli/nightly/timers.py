"""Timers of nightly sessions: systemd service and timer, cron, GitLab.

Only texts are printed, for this checkout, site and options; the user installs
them. They also send the files that the session writes (`sending_commands`). No
file of the repository could name the checkout. All of them start the suite in
this checkout, with the same variables (`session_variables`), so that
they share one work folder, one folder of perflogs and one set-up.
"""
from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from cli.nightly.overlap import MARK, STOP_TIMEOUT
from cli.session.commands import site_folder
from cli.setup.venv import ROOT, WORK, SetupError
from cli.site.listing import list_test_cases_with_reframe
from config import places
from config.sessions import lock, session_id

#: Start: after midnight (UTC), so that a nightly session has one date.
HOUR, MINUTE = 1, 30


#: Variables of the shell that a timer carries, besides PLUMBLINE_*.
CARRIED = ('PATH', 'SBATCH_ACCOUNT', 'SPACK_ROOT')
#: Variables that the suite sets for its own processes.
OWN = frozenset({
    'PLUMBLINE_ROOT', 'PLUMBLINE_SITE', session_id.VARIABLE, MARK, lock.HELD})
#: A variable, as NAME=value, that may have a secret: by its name, or because a
#: URL has a user or password. It is never printed.
SECRET = re.compile(r'^\w*(TOKEN|SECRET|PASS|KEY|CREDENTIAL)\w*=|://[^/\s]*@')


def session_variables() -> tuple[dict[str, str], list[str]]:
    """The variables of this shell that a nightly session needs.

    :returns: the variables with their values, and the names of those that are
        left out: they may be secrets, or have a value of several lines, which
        cron and systemd cannot have
    """
    names = {name for name in os.environ if name in CARRIED
             or name.startswith('PLUMBLINE_')} - OWN
    left = sorted(name for name in names if SECRET.search(
        f'{name}={os.environ[name]}') or not os.environ[name].isprintable())
    kept = {name: os.environ[name] for name in names - set(left)}
    # The default folders, too: a file that names them can be moved.
    kept |= {'PLUMBLINE_WORK': str(WORK),
             'PLUMBLINE_PERFLOGS': str(places.perflog_folder())}
    return dict(sorted(kept.items())), left


def variables_comment(left: Iterable[str]) -> str:
    """Comment lines on the variables that follow."""
    names = ', '.join(left)
    return ('# Variables of the shell that printed this; edit them as you need.\n'
            + ('# Left out, because they may be secrets or have several lines: '
               f'{names}\n' if names else ''))


def nightly_command(args: argparse.Namespace) -> list[str]:
    """The command of a nightly session: the words of this one, without --print."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('--print')
    parser.add_argument('--site')
    end = args.words.index('--') if '--' in args.words else len(args.words)
    return ['./plumb', 'nightly', '--site', _site_name_or_absolute_path(args.site),
            *parser.parse_known_args(args.words[:end])[1], *args.words[end:]]


#: Options whose files curl sends -> their media type.
SENT_BY_CURL = {'webhook': 'application/json', 'records': 'application/x-ndjson'}
#: Most characters of a command of cron: MAX_COMMAND of Vixie cron is 1000.
MAX_CRON = 998
#: The page among the artifacts of a job of GitLab.
GITLAB_PAGE = '$CI_JOB_URL/artifacts/file/report/index.html'
#: Days for which the lines of cron keep logs.
LOG_DAYS = 30


def written_files(args: argparse.Namespace) -> list[str]:
    """The files that the session writes for others."""
    return [str(file) for file in (args.mail, args.webhook, args.records, args.status)
            if file]


def remove_command(args: argparse.Namespace) -> str:
    """A command of a shell that removes the files of the session before, so that
    they are not sent twice; '': the session writes none."""
    files = written_files(args)
    return shlex.join(['rm', '-f', '--', *files]) if files else ''


def sending_commands(args: argparse.Namespace) -> list[str]:
    """Commands of a shell that send what the session wrote.

    The address of a webhook and the password of a database are secrets: curl reads
    them from a file, so that neither a command line nor a log has them.
    """
    commands = []
    if args.mail:
        commands.append('PATH="$PATH:/usr/sbin" sendmail -t '
                        f'< {shlex.quote(str(args.mail))}')
    for name, media_type in SENT_BY_CURL.items():
        if file := getattr(args, name):
            # Without a session there are no records.
            commands.append(
                (f'test ! -s {shlex.quote(str(file))} || ' if name == 'records' else '')
                + f'curl -sSf -o /dev/null -K {_curl_config(args, name)} '
                f"-H 'Content-Type: {media_type}' "
                f'--data-binary {shlex.quote(f"@{file}")}')
    return commands


def _curl_config(args: argparse.Namespace, option: str) -> str:
    """The file with which curl finds the receiver of an option's file."""
    name = shlex.quote(Path(args.site).name)
    return f'"$PLUMBLINE_WORK"/nightly/{name}.{option}.curl'


def sending_comment(args: argparse.Namespace) -> str:
    """Comment lines on what a person has to do so that others get the files."""
    lines = []
    for name, about in (('webhook', ''), ('records', '/_bulk')):
        if getattr(args, name):
            lines += [f'# Write to {WORK}/nightly/{Path(args.site).name}.{name}.curl '
                      '(chmod 600), for example:',
                      f'#   url = "https://HOST/...{about}"']
            if name == 'records':
                lines.append('#   header = "Authorization: ApiKey ..."')
    if (args.mail or args.webhook) and not args.page_url:
        lines.append('# Add --page-url URL, if the page is published; messages have '
                     'its path otherwise.')
    return ''.join(f'{line}\n' for line in lines)


def _site_name_or_absolute_path(text: str) -> str:
    """A site's name; a path becomes absolute, because the timer starts in
    another folder."""
    inside = (ROOT / 'site-configs' / text).is_dir()
    return text if inside else str(Path(text).absolute())


def timer_name(args: argparse.Namespace) -> str:
    return f'plumbline-{Path(args.site).name}'


def systemd_service(args: argparse.Namespace) -> str:
    """A service of systemd."""
    command = ' '.join(_quote_unit_word(word).replace('$', '$$') for word in [
        str(ROOT / 'plumb'), *nightly_command(args)[1:]])
    name = timer_name(args)
    variables, left = session_variables()
    environment = variables_comment(left) + ''.join(
        f'Environment={_quote_unit_word(f"{key}={value}")}\n'
        for key, value in variables.items())
    other_commands = ''.join(
        f'{key}=/bin/sh -c {_quote_unit_word(text).replace("$", "$$")}\n'
        for key, text in [('ExecStartPre', remove_command(args)),
                          *(('ExecStopPost', one) for one in sending_commands(args))]
        if text)
    return f'''\
# ~/.config/systemd/user/{name}.service; its timer starts it:
#   ./plumb nightly ... --print timer > ~/.config/systemd/user/{name}.timer
#   systemctl --user daemon-reload
#   systemctl --user enable --now {name}.timer
#   loginctl enable-linger            (also while nobody is logged in)
# The journal has the logs: journalctl --user -u {name}
{sending_comment(args)}\
[Unit]
Description=Plumbline nightly session (site {_escape_percent(
        Path(args.site).name)})

[Service]
Type=oneshot
WorkingDirectory={_escape_percent(str(ROOT))}
{environment}\
ExecStart={command}
{other_commands}\
# A nightly session ends itself after --hours; this ends one that hangs.
TimeoutStartSec={round(args.hours * 3600 + 2 * STOP_TIMEOUT)}
# plumb cancels its jobs and ends their processes; then the rest is killed.
KillMode=mixed
TimeoutStopSec={round(STOP_TIMEOUT)}
'''


def systemd_timer(args: argparse.Namespace) -> str:
    """A timer of systemd, for the service of that name."""
    return f'''\
# ~/.config/systemd/user/{timer_name(args)}.timer
[Unit]
Description=Plumbline nightly session (site {_escape_percent(
        Path(args.site).name)})

[Timer]
# A session has one date (UTC). No Persistent=true: a session that was missed
# would run by day, beside the users' jobs.
OnCalendar=*-*-* {HOUR:02}:{MINUTE:02}:00 UTC

[Install]
WantedBy=timers.target
'''


def _escape_percent(text: str) -> str:
    return text.replace('%', '%%')


def _quote_unit_word(word: str) -> str:
    """A word of ExecStart= or Environment=: quoted, where systemd would read
    more into it."""
    word = _escape_percent(word)
    if word and not set(word) & set(' \t"\'\\;'):
        return word
    return '"' + word.replace('\\', '\\\\').replace('"', '\\"') + '"'


def crontab_line(args: argparse.Namespace) -> str:
    """A line for `crontab -e`.

    :raises SetupError: some crons would cut it off
    """
    folder = '"$PLUMBLINE_WORK"/nightly'
    name = shlex.quote(Path(args.site).name)
    # Without a mail of the session, cron mails the output of the line. Two sessions
    # of a day have one log: the second one may be refused while the first one runs.
    tail = '' if args.mail else ' || tail -n 60 "$log"'
    command = '; '.join([
        f'cd {shlex.quote(str(ROOT))} && mkdir -p {folder} && '
        + (f'{text} && ' if (text := remove_command(args)) else '')
        + f'log={folder}/{name}-$(date +%F).log && '
        f'{{ {shlex.join(nightly_command(args))} >>"$log" 2>&1{tail}; }}',
        *sending_commands(args),
        f'find {folder} -name {name}-\'*.log\' -mtime +{LOG_DAYS} -delete'])
    if len(command) > MAX_CRON:
        raise SetupError(f'the command for cron has {len(command)} characters, and '
                         f'some crons accept only {MAX_CRON}; use --print service and '
                         '--print timer, or shorter paths')
    variables, left = session_variables()
    # cron reads a % as the end of the line.
    return ('# crontab -e. '
            + ('cron mails what cannot be sent.' if args.mail else
               'If a nightly session is not good, cron mails the end of its log.')
            + f'\n# There is one log per day, for {LOG_DAYS} days. The time is local; '
            'choose one after midnight in UTC.\n'
            + sending_comment(args) + variables_comment(left)
            + '# They hold for all lines below them: put these lines at the end.\n'
            + ''.join(f'{name}={value}\n' for name, value in variables.items())
            + f'{MINUTE} {HOUR} * * * ' + command.replace('%', r'\%') + '\n')


def gitlab_pipeline(args: argparse.Namespace) -> str:
    """A pipeline of GitLab: a nightly session for a schedule, and a job for each
    family, in mode quick, for a person or another pipeline that starts it.

    A job per test case would be hundreds of jobs, which would wait for each
    other.

    :raises SetupError: the test cases of the site cannot be listed
    """
    variables, left = session_variables()
    # GitLab would replace variables in the values.
    variables = {name: value.replace('$', '$$') for name, value in variables.items()}
    files = written_files(args)
    if not args.page_url:
        args = argparse.Namespace(**{**vars(args), 'page_url': GITLAB_PAGE, 'words': [
            '--page-url', GITLAB_PAGE, *args.words]})
    enter = f'cd {shlex.quote(str(ROOT))}'
    # One job of the site at a time: others would disturb its values.
    group = {'resource_group': timer_name(args)}
    default = {
        'tags': ['login-node'],
        'interruptible': False,
        'artifacts': {'when': 'always', 'expire_in': '30 days',
                      'paths': ['report', *map(os.path.basename, files)]}}
    copy = shlex.join(['cp', '--', *files]) + ' "$CI_PROJECT_DIR"'
    jobs: dict[str, Any] = {'nightly': {
        **group,
        'rules': [{'if': '$CI_PIPELINE_SOURCE == "schedule"'}],
        'timeout': f'{int(args.hours) + 1} hours',
        'script': [enter, *filter(None, [remove_command(args)]),
                   # GitLab's own variable, which the shell has to replace.
                   shlex.join(nightly_command(args)).replace(
                       shlex.quote(GITLAB_PAGE), f'"{GITLAB_PAGE}"')],
        **({'after_script': [enter, copy, *sending_commands(args)]} if files else {})}}
    quick = ['./plumb', 'run', '--site', _site_name_or_absolute_path(args.site),
             *['--bringup'] * args.bringup, '--', *args.reframe]
    for family in families_of_site(args.site):
        jobs[f'quick:{family}'] = {
            **group,
            'rules': [{'if': '$CI_PIPELINE_SOURCE =~ /^(web|api|trigger|pipeline)$/'}],
            'timeout': '6 hours',
            'script': [enter, shlex.join([*quick, '-t', f'^{family}$'])]}
    text = yaml.safe_dump({
        'variables': {**variables, 'PLUMBLINE_REPORT': '$CI_PROJECT_DIR/report',
                      'GIT_STRATEGY': 'none'},
        'default': default, **jobs}, sort_keys=False, width=10_000)
    comment = f'''\
# .gitlab-ci.yml, or a file that it includes. Build > Pipeline schedules starts
# the job nightly: 30 1 * * * in the time zone UTC. Build > Pipelines > New
# pipeline starts a job per family. `tags`: those of a runner (shell executor) on
# a login node of the cluster, with the user who owns {ROOT}.
# Jobs use this checkout, its work folder and its perflogs, as systemd and cron
# do. So they set up nothing anew, and no `git clean` of the runner removes
# records. To use a newer version, update this checkout.
'''
    return comment + sending_comment(args) + variables_comment(left) + text


def families_of_site(site: str) -> list[str]:
    """Families with a test case of mode quick on a site.

    :raises SetupError: the test cases cannot be listed
    """
    answer = list_test_cases_with_reframe(site_folder(site))
    if 'error' in answer:
        raise SetupError(answer['error'])
    return sorted({case['family'] for case in answer['cases']
                   if 'quick' in case['modes']})


KINDS = {
    'service': systemd_service,
    'timer': systemd_timer,
    'cron': crontab_line,
    'gitlab': gitlab_pipeline,
}
