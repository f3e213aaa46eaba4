"""Timers of nightly sessions: systemd service and timer, cron, GitLab.

Only texts are printed, for this checkout, site and options; the user installs
them. No file of the repository could name the checkout.
"""
from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import yaml

from cli.nightly.overlap import STOP_TIMEOUT
from cli.setup.venv import ROOT, WORK

#: Start: after midnight (UTC), so that a nightly session has one date.
HOUR, MINUTE = 1, 30


def nightly_command(args: argparse.Namespace) -> list[str]:
    """The command of a nightly session with these options."""
    command = ['./plumb', 'nightly', '--site', _site_name_or_absolute_path(args.site)]
    for name, default in DEFAULTS.items():
        value = getattr(args, name)
        if value != default:
            command += ['--' + name.replace('_', '-'),
                        f'{value:g}' if isinstance(value, float)
                        else str(value)]
    if args.locate:
        command.append('--locate')
    if args.bringup:
        command.append('--bringup')
    return command + (['--', *args.reframe] if args.reframe else [])


#: Options that may be left out, with their defaults.
DEFAULTS = {'mode': 'nightly', 'max_node_age': 14, 'hours': 20.0,
            'keep_sessions': 5, 'mail': None, 'to': '', 'webhook': None}


def _site_name_or_absolute_path(text: str) -> str:
    """A site's name; a path becomes absolute, because the timer starts in
    another folder."""
    inside = (ROOT / 'site-configs' / text).is_dir()
    return text if inside else str(Path(text).absolute())


def timer_name(args: argparse.Namespace) -> str:
    return f'plumbline-{Path(args.site).name}'


def systemd_service(args: argparse.Namespace) -> str:
    """A service of systemd."""
    command = ' '.join(map(_quote_unit_word, [str(ROOT / 'plumb'),
                                              *nightly_command(args)[1:]]))
    name = timer_name(args)
    return f'''\
# ~/.config/systemd/user/{name}.service; its timer starts it:
#   ./plumb nightly ... --print timer > ~/.config/systemd/user/{name}.timer
#   systemctl --user daemon-reload
#   systemctl --user enable --now {name}.timer
#   loginctl enable-linger            (also while nobody is logged in)
[Unit]
Description=Plumbline nightly session (site {_escape_percent(
        Path(args.site).name)})

[Service]
Type=oneshot
WorkingDirectory={_escape_percent(str(ROOT))}
ExecStart={command}
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
    """A word of ExecStart=: quoted, where systemd would read more into it."""
    word = _escape_percent(word).replace('$', '$$')
    if word and not set(word) & set(' \t"\'\\;'):
        return word
    return '"' + word.replace('\\', '\\\\').replace('"', '\\"') + '"'


def crontab_line(args: argparse.Namespace) -> str:
    """A line for `crontab -e`."""
    folder = shlex.quote(str(WORK / 'nightly'))
    # One log per day of the week: a session that is refused because the
    # previous one still runs must not overwrite its log.
    log = f'{folder}/{shlex.quote(Path(args.site).name)}-$(date +%a).log'
    command = (f'cd {shlex.quote(str(ROOT))} && mkdir -p {folder} && '
               f'log={log} && {{ {shlex.join(nightly_command(args))} >"$log" 2>&1 '
               '|| tail -n 60 "$log"; }')
    # cron reads a % as the end of the line.
    return ('# crontab -e: if a nightly session is not good, cron mails the '
            'end of its log.\n# The time is local; choose one after '
            'midnight in UTC.\n'
            f'{MINUTE} {HOUR} * * * ' + command.replace('%', r'\%') + '\n')


def gitlab_pipeline(args: argparse.Namespace) -> str:
    """A pipeline of GitLab, for a schedule of it."""
    hours = int(args.hours) + 1
    files = [str(getattr(args, name)) for name in ('mail', 'webhook')
             if getattr(args, name)]
    job = {
        'rules': [{'if': '$CI_PIPELINE_SOURCE == "schedule"'}],
        'tags': ['login-node'],
        'timeout': f'{hours} hours',
        'interruptible': False,
        'resource_group': timer_name(args),
        'script': [
            # The runner empties its checkout; the records must outlive it.
            'export PLUMBLINE_WORK="${PLUMBLINE_WORK:-$HOME/plumbline/work}"',
            'export PLUMBLINE_PERFLOGS="${PLUMBLINE_PERFLOGS:-'
            '$HOME/plumbline/perflogs}"',
            shlex.join(nightly_command(args))],
        'artifacts': {'when': 'always', 'expire_in': '30 days',
                      'paths': ['report', *files]}}
    text = yaml.safe_dump({'nightly': job}, sort_keys=False, width=10_000)
    return ('# .gitlab-ci.yml, or a file that it includes. Build > Pipeline '
            'schedules starts it:\n# 30 1 * * * in the time zone UTC. '
            '`tags`: those of a runner (shell executor) on a\n# login node '
            'of the cluster.\n' + text)


KINDS = {
    'service': systemd_service,
    'timer': systemd_timer,
    'cron': crontab_line,
    'gitlab': gitlab_pipeline,
}
