"""Forms of a nightly session's summary for chats, and its records for a database.

Each form is the body of an HTTP request. The suite only writes files, and curl
sends them (timers.py): the address of a chat is a secret.
"""
from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from cli.nightly.summary import Summary

#: Status of the session (Summary.status) -> colour in Slack, and style of a
#: container of an Adaptive Card.
COLOURS = {'ok': ('#2eb67d', 'good'), 'degraded': ('#ecb22e', 'warning'),
           'failed': ('#e01e5a', 'attention')}
#: Most characters of a text, and of a title: a section of Slack has 3000, its header
#: 150; Teams refuses messages above 28 KB.
MAX_TEXT, MAX_TITLE = 2900, 150
#: Columns of the table of records that are not sent.
NOT_SENT = ('file',)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most - 4] + ' ...'


def _title_and_details(summary: Summary) -> tuple[str, str]:
    _, *lines = summary.summary_lines()
    return (_shortened(f'plumbline: {summary.headline}', MAX_TITLE),
            _shortened('\n'.join(lines), MAX_TEXT))


def slack_message(summary: Summary) -> dict[str, Any]:
    """For an incoming webhook of Slack: blocks beside a coloured bar.

    Format: https://api.slack.com/reference/messaging/attachments
    """
    title, details = _title_and_details(summary)
    # Slack reads three letters as its own marks, and ``` as the end of a block.
    details = html.escape(details.replace('```', "'''"), quote=False)
    blocks: list[dict[str, Any]] = [
        {'type': 'header', 'text': {'type': 'plain_text', 'text': title}}]
    if details:
        blocks.append({'type': 'section', 'text': {
            'type': 'mrkdwn', 'text': f'```{_shortened(details, MAX_TEXT)}```'}})
    if summary.page_url:
        blocks.append({'type': 'actions', 'elements': [{
            'type': 'button', 'url': summary.page_url,
            'text': {'type': 'plain_text', 'text': 'Page'}}]})
    return {'text': title,      # of the notification
            'attachments': [{'color': COLOURS[summary.status][0], 'blocks': blocks}]}


def teams_message(summary: Summary) -> dict[str, Any]:
    """For a workflow of Teams that posts a card: an Adaptive Card.

    Format: https://adaptivecards.io/explorer
    """
    title, details = _title_and_details(summary)
    return {'type': 'message', 'attachments': [{
        'contentType': 'application/vnd.microsoft.card.adaptive',
        'content': {
            '$schema': 'http://adaptivecards.io/schemas/adaptive-card.json',
            'type': 'AdaptiveCard', 'version': '1.4',
            'msteams': {'width': 'Full'},
            'body': [
                {'type': 'Container', 'style': COLOURS[summary.status][1],
                 'items': [{'type': 'TextBlock', 'text': title, 'wrap': True,
                            'weight': 'bolder'}]},
                *({'type': 'TextBlock', 'text': line, 'wrap': True, 'spacing': 'none',
                   'fontType': 'monospace'} for line in details.splitlines())],
            'actions': [{'type': 'Action.OpenUrl', 'title': 'Page',
                         'url': summary.page_url}] if summary.page_url else []}}]}


def _json_bytes(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=1).encode() + b'\n'


#: Form of `--webhook-format` -> the function that makes the body.
FORMATS: dict[str, Callable[[Summary], bytes]] = {
    'json': lambda summary: _json_bytes(summary.webhook_data()),
    'slack': lambda summary: _json_bytes(slack_message(summary)),
    'teams': lambda summary: _json_bytes(teams_message(summary)),
    'text': lambda summary: ('\n'.join(summary.summary_lines()) + '\n').encode()}


def bulk_lines(records: pd.DataFrame | None) -> Iterator[str]:
    """Records as JSON lines for the bulk interface of Elasticsearch, which
    OpenSearch and VictoriaLogs have, too: before each record a line that says what
    to do with it. Empty cells are left out.

    :param records: as postprocess.records.read gives them; None: there are none
    """
    if records is None:
        return
    columns = [name for name in records if name not in NOT_SENT]
    text = records[columns].to_json(orient='records', lines=True, date_format='iso',
                                    date_unit='s', double_precision=15)
    for line in text.splitlines():
        record = {name: value for name, value in json.loads(line).items()
                  if value not in (None, '')}
        yield '{"create":{}}'
        yield json.dumps({'@timestamp': record['time'], **record})
