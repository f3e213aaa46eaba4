#!/usr/bin/env python3
"""Measures the page: CPU time to make it, size, and time until it is usable.

    .plumbline/venv/bin/python bench/page.py
    .plumbline/venv/bin/python bench/page.py --pages 180x40x20 180x1000x6
    .plumbline/venv/bin/python bench/page.py --perflogs perflogs

A page is of so many test cases, sessions and sizes of messages, made up by
tests/data/perflogs_factory.py, whose records are in the cache. Each page is made
twice, and draws all its plots each time.
"""
from __future__ import annotations

import datetime
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common import (
    ROOT,
    option_parser,
    print_table_head,
    print_table_row,
    run,
    run_main_and_exit,
)

sys.path.insert(0, str(ROOT / 'tests' / 'data'))
#: Test cases, sessions and sizes -> most seconds of CPU of the second page.
GOALS = {'52x44x20': 3.0, '52x440x20': 8.0}
#: Of any page: most bytes, and seconds until a browser can use it.
MAX_BYTES, MAX_OPEN = 3e6, 1.0
#: Pages that are measured, and the test cases that the factory makes up.
PAGES, FACTORY = [*GOALS, '180x40x20', '180x1000x6'], 52
#: Says in the page's title when it can be used: read, laid out, and its
#: scripts have run.
PROBE = '''<script>addEventListener('load', () => { document.title = 'usable '
+ document.body.offsetHeight + ' ' + Math.round(performance.now()); })
</script></body>'''


def seconds_until_usable(page: Path) -> float | None:
    """Seconds until Chromium has opened a page and it answers; the median of
    three. None: there is no Chromium here."""
    browser = shutil.which('chromium') or shutil.which('google-chrome')
    if not browser:
        return None
    copy = page.with_name('bench.html')
    text = page.read_text('utf-8')
    # The probe may run beside the page's own script.
    copy.write_text(text.replace('</body>', PROBE))
    seconds = []
    for _ in range(3):
        done = subprocess.run(
            [browser, '--headless', '--no-sandbox', '--disable-gpu',
             '--window-size=1440,900', '--dump-dom', f'file://{copy}'],
            capture_output=True, text=True, timeout=120)
        match = re.search(r'<title>usable \d+ (\d+)', done.stdout)
        if match:
            seconds.append(int(match[1]) / 1000)
    copy.unlink()
    return sorted(seconds)[len(seconds) // 2] if seconds else None


def write_simulated_perflogs(folder: Path, test_cases: int, sessions: int, sizes: int
                             ) -> int:
    """Writes the perflogs of a page; returns the number of records."""
    import perflogs_factory as make
    # No record may be of the future: its session would not count.
    make.START = datetime.datetime(2020, 1, 1, 3, tzinfo=datetime.timezone.utc)
    # The factory judges 8 B and 4 MiB.
    points = [2 ** round(3 + 19 * n / (sizes - 1)) for n in range(sizes)]
    records = 0
    for day in range(sessions):
        rows = [row | {'environ': f'mpi{copy}'}
                for copy in range(-(-test_cases // FACTORY))
                for row in make.site(sessions, 1, seed=1000 * copy + day, days=[day],
                                     sizes=points)]
        names = [(row['environ'], row['check'], row['params']) for row in rows]
        if not day:
            kept = set(list(dict.fromkeys(names))[:test_cases])
        rows = [row for row, name in zip(rows, names, strict=True) if name in kept]
        make.write(folder, rows)
        records += len(rows)
    return records


def main() -> bool:
    cmd = option_parser(__doc__)
    cmd.add_argument('--pages', nargs='+', default=PAGES,
                     metavar='CASESxSESSIONSxSIZES', help='(default: %(default)s)')
    cmd.add_argument('--perflogs', type=Path, help='measure these instead')
    args = cmd.parse_args()
    good = True
    print_table_head('test cases x sessions x sizes', 'records', 'first page: CPU s',
                     'once more: CPU s', 'plots', 'MB', 'usable in Chromium: s')
    with tempfile.TemporaryDirectory() as name:
        for page in [args.perflogs] if args.perflogs else args.pages:
            logs, records = args.perflogs or Path(name) / page, '-'
            if not args.perflogs:
                records = write_simulated_perflogs(logs, *map(int, page.split('x')))
            out = Path(name) / 'out'
            command = [sys.executable, '-m', 'postprocess.report.build',
                       '--perflogs', logs, '--output', out]
            # bench/ingest.py measures how the cache is made.
            run([ROOT / 'plumb', 'sql', 'SELECT 1', '--perflogs', logs],
                f'the cache of {logs}')
            # 1: a page of sessions that regressed.
            first, again = (run(command, f'the page of {logs}', codes=(0, 1),
                                env={**os.environ, 'PYTHONPATH': str(ROOT)})
                            for _ in range(2))
            text = (out / 'index.html').read_text('utf-8')
            size = len(text.encode())
            seconds = seconds_until_usable(out / 'index.html')
            print_table_row(page, records, f'{first.cpu:.1f}', f'{again.cpu:.1f}',
                            text.count('<svg role="img"'), f'{size / 1e6:.2f}',
                            f'{seconds:.2f}' if seconds else 'no Chromium')
            good = good and size <= MAX_BYTES and (
                seconds or 0) < MAX_OPEN and again.cpu < GOALS.get(page, math.inf)
            shutil.rmtree(out)
    print(f'load average {os.getloadavg()[0]:.1f}')
    return good


if __name__ == '__main__':
    run_main_and_exit(main)
