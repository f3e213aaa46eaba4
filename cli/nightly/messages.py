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

from apprise import Apprise, NotifyFormat, NotifyType
from apprise.logger import logger

from cli.setup.venv import SetupError
from config.variables import MESSAGES

#: File in the folder of a site: a URL per line. git ignores it.
FILE = 'messages.urls'
#: Status of a session (Summary.status) -> the type of its messages.
TYPES = {'ok': NotifyType.SUCCESS, 'degraded': NotifyType.WARNING,
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
    text = os.environ.pop(MESSAGES, '')
    if text:
        urls = {f'{MESSAGES}, URL {number}': url
                for number, url in enumerate(text.split(), 1)}
    else:
        urls = _urls_of_file(folder / FILE)
    for place, url in urls.items():
        if _receiver(url) is None:
            raise SetupError(f'{place}: not a URL that apprise can use; examples are '
                             'in docs/how-to/nightly.md')
    return urls


def _urls_of_file(path: Path) -> dict[str, str]:
    """The URLs of a file: place -> URL; empty without a file.

    :raises SetupError: it cannot be read, or others can read it
    """
    try:
        with open(path, encoding='utf-8') as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise SetupError(f'{path} has secrets, and others can read it: '
                                 f'chmod 600 {path}')
            lines = file.read().splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as err:
        raise SetupError(f'{path}: cannot be read: '
                         f'{getattr(err, "strerror", None) or err}') from None
    return {f'{path}:{number}': line.strip() for number, line in enumerate(lines, 1)
            if line.strip() and not line.lstrip().startswith('#')}


def _receiver(url: str) -> Apprise | None:
    """The service of a URL; None: apprise cannot use the URL."""
    mark = '&' if '?' in url else '?'
    receiver = Apprise()
    # apprise logs what it refuses, with the URL.
    disabled, logger.disabled = logger.disabled, True
    try:
        return receiver if receiver.add(
            f'{url}{mark}cto={TIMEOUT}&rto={TIMEOUT}') else None
    finally:
        logger.disabled = disabled


class _Warnings(logging.Handler):
    """Collects what apprise logs about a message that it could not send."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def send_messages(urls: dict[str, str], title: str, text: str, status: str
                  ) -> list[str]:
    """Send a message to each receiver; return a line per message that was not sent.

    :param urls: as of `take_urls`
    :param status: key of TYPES
    """
    faults = []
    for place, url in urls.items():
        receiver = _receiver(url)
        collected = _Warnings()
        logger.addHandler(collected)
        try:
            is_sent = receiver is not None and receiver.notify(
                title=title, body=text, body_format=NotifyFormat.TEXT,
                notify_type=TYPES[status])
        finally:
            logger.removeHandler(collected)
        if not is_sent:
            why = _without_secrets(' '.join(collected.texts), url)
            faults.append(f'{place}: the message was not sent: '
                          f'{why or "apprise gives no reason"}')
    return faults


def _without_secrets(text: str, url: str) -> str:
    """A text in which no part of a URL is left but its schema, host and port."""
    parts = {part for part in re.split(r'[/:@?&=,]+', url) if len(part) > 2}
    host = re.search(r'://(?:[^/@]*@)?([^/?:]+)(?::(\d+))?', url)
    parts -= {url.partition(':')[0], *(host.groups(default='') if host else ())}
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, '...')
    return ' '.join(text.split())
