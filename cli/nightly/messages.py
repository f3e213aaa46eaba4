"""Messages of nightly sessions: each receiver is a URL, which apprise sends to.

The URLs are secrets. They are read from a variable or a file of the site, are removed
from the environment of all processes that the session starts, and are never printed.
"""
from __future__ import annotations

import logging
import os
import re
import stat
from pathlib import Path

from apprise import Apprise, LogCapture, NotifyFormat, NotifyType

from cli.setup.venv import SetupError
from config.variables import MESSAGES

#: File in the folder of a site: a URL per line. git ignores it.
FILE = 'messages.urls'
#: State of a session (results.STATES) -> the type of its messages; others: a warning.
TYPES = {'good': NotifyType.SUCCESS, 'cut short': NotifyType.FAILURE,
         'failed': NotifyType.FAILURE}
#: Seconds to connect to a server, and to wait for its answer.
TIMEOUT = 30


def take_urls(folder: Path) -> dict[str, str]:
    """The receivers of messages: place of the URL, for errors -> URL.

    The variable PLUMBLINE_MESSAGES counts before the file. It is removed from the
    environment.

    :param folder: folder of the site
    :raises SetupError: the file can be read by others, or a URL cannot be used
    """
    path = folder / FILE
    if lines := os.environ.pop(MESSAGES, '').split():
        place = f'{MESSAGES}, URL '
    else:
        place = f'{path}:'
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise SetupError(f'{path} has secrets, and others can read it: '
                                 f'chmod 600 {path}')
            lines = path.read_text('utf-8').splitlines()
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as err:
            raise SetupError(f'{path}: cannot be read: '
                             f'{getattr(err, "strerror", None) or err}') from None
    urls = {f'{place}{number}': line.strip() for number, line in enumerate(lines, 1)
            if line.strip() and not line.lstrip().startswith('#')}
    for where, url in urls.items():
        # The warnings of apprise may have the URL, and are not printed.
        with LogCapture(level=logging.WARNING, fmt='%(message)s'):
            is_known = Apprise().add(url)
        if not is_known:
            raise SetupError(f'{where}: not a URL that apprise can use; examples are '
                             'in docs/how-to/nightly.md')
    return urls


def send_messages(urls: dict[str, str], title: str, text: str, state: str
                  ) -> list[str]:
    """Send a message to each receiver; return a line per message that was not sent.

    :param urls: as of `take_urls`
    :param state: of the session
    """
    faults = []
    for place, url in urls.items():
        receiver = Apprise()
        with LogCapture(level=logging.WARNING, fmt='%(message)s') as log:
            receiver.add(url + ('&' if '?' in url else '?')
                         + f'cto={TIMEOUT}&rto={TIMEOUT}')
            is_sent = receiver.notify(
                title=title, body=text, body_format=NotifyFormat.TEXT,
                notify_type=TYPES.get(state, NotifyType.WARNING))
            warnings = log.getvalue()
        if not is_sent:
            faults.append(f'{place}: the message was not sent: '
                          + (_without_secrets(warnings, url)
                             or 'apprise gives no reason'))
    return faults


def _without_secrets(text: str, url: str) -> str:
    """A text in which no part of a URL is left but its schema, host and port."""
    parts = {part for part in re.split(r'[/:@?&=,]+', url) if len(part) > 2}
    host = re.search(r'://(?:[^/@]*@)?([^/?:]+)(?::(\d+))?', url)
    parts -= {url.partition(':')[0], *(host.groups(default='') if host else ())}
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, '...')
    return ' '.join(text.split())
