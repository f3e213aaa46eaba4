"""`./plumb demo`: perflogs of a made-up cluster, their verdict and their page."""
from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path

from cli.demo import live, records
from cli.demo.cluster import Cluster, read_cluster
from config import places
from config.sessions import lock

#: Commands that read the records of the demo, which has these two sites.
COMMANDS = (
    './plumb verdict --site {1}',
    './plumb verdict --power',
    './plumb history latency --site {0}',
    './plumb compare {0} {1}',
    './plumb sql "SELECT system, family, count(*) FROM results GROUP BY ALL"',
    './plumb export --openmetrics made-up.prom')


def demo(args: argparse.Namespace) -> int:
    """Shows the made-up cluster, or measures here; returns the exit code.

    :raises SetupError: another demo is being written, or a step of the live demo had
        another result than expected
    :raises OSError: the folder of the demo cannot be written
    """
    if args.live:
        page = live.run_live_demo()
        print(f'\nPage: {page}')
        return open_page(page) if args.open else 0
    folder = places.work_folder() / 'demo'
    with lock.hold_file_lock(folder / '.lock', 0, busy=f'{folder} is written by',
                             advice='wait until it ends'):
        is_written = write_and_print(folder)
    if is_written and args.open:
        return open_page(folder / 'report' / 'index.html')
    return 0 if is_written else 2


def open_page(page: Path) -> int:
    """Open the page in a browser; returns the exit code."""
    if webbrowser.open(page.as_uri()):
        return 0
    print('plumb demo: no browser could be started; open the page yourself',
          file=sys.stderr)
    return 2


def write_and_print(folder: Path) -> bool:
    """Writes perflogs and page, prints the verdict; whether the page was written.

    :raises OSError: the folder of the demo cannot be written
    """
    # They take longer to import than the help takes.
    from postprocess.regressions.events import print_verdict
    from postprocess.report import build
    cluster, perflogs = read_cluster(), folder / 'perflogs'
    shutil.rmtree(perflogs, ignore_errors=True)
    number = records.write_perflogs(perflogs)
    nodes = sum(len(names) for system in cluster.nodes.values()
                for names in system.values())
    print(f'MADE UP: {cluster.sessions} nightly sessions of a made-up cluster with '
          f'{nodes} nodes\nand two sites, {" and ".join(cluster.nodes)}; nothing was '
          'measured.\n\nWhat goes wrong in it:')
    print(*(f'  {line}' for line in event_lines(cluster)), sep='\n')
    print(f'\nPerflogs: {perflogs} ({number} records)')
    made = build.write_page(str(perflogs), folder / 'report')
    if made.verdict is None or made.code not in (0, 1):
        return False                        # write_page printed the reason
    print('\nThe verdict:')
    print_verdict(made.verdict, every=True)
    print(f'\nPage: {folder / "report" / "index.html"}', '\nTo try next:',
          f'  export PLUMBLINE_PERFLOGS={shlex.quote(str(perflogs))}',
          *(f'  {command.format(*cluster.nodes)}' for command in COMMANDS),
          '  unset PLUMBLINE_PERFLOGS', sep='\n')
    return True


def event_lines(cluster: Cluster) -> Iterator[str]:
    """A line for each event: what, where, when."""
    for event in cluster.events:
        where = ', '.join(filter(None, [event.node, event.family]))
        dates = [f'{cluster.date_of_session(number)}' for number in event.sessions]
        times = 'since ' + dates[0] if event.lasts else (
            'on ' + ', '.join(dates))
        size = f', {100 * (event.slowdown - 1):.0f} % slower' * (event.slowdown > 1)
        yield f'{event.name}: {where} of {event.system}{size}, {times}'
