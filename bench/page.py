#!/usr/bin/env python3
"""Measures the page: CPU time to make it, size, and time until it is usable.

    .plumbline/venv/bin/python bench/page.py --records 1e5 1e6
    .plumbline/venv/bin/python bench/page.py --perflogs perflogs

Made-up sessions of 53 test cases (tests/data/perflogs_factory.py), whose
records are in the cache. Each page is made twice: the first one draws all
plots, the second one none.
"""
from __future__ import annotations

import datetime
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
#: Records -> most seconds of CPU of the second page; of any: bytes, and
#: seconds until a browser can use it.
GOALS = {100_000: 3.0, 1_000_000: 8.0}
MAX_BYTES, MAX_OPEN = 3e6, 1.0
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


def write_simulated_perflogs(folder: Path, records: float) -> None:
    """Perflogs with about as many records."""
    import perflogs_factory as make
    # No record may be of the future: its session would not count.
    make.START = datetime.datetime(2020, 1, 1, 3)
    one = len(make.site(runs=2, repetitions=1)) - len(make.site(runs=1,
                                                                repetitions=1))
    make.write(folder, make.site(runs=max(2, round(records / one)),
                                 repetitions=1))


def main() -> bool:
    cmd = option_parser(__doc__)
    cmd.add_argument('--records', type=float, nargs='+', default=[1e5])
    cmd.add_argument('--perflogs', type=Path, help='measure these instead')
    args = cmd.parse_args()
    good = True
    print_table_head('records', 'first page: CPU s', 'once more: CPU s', 'MB',
                     'usable in Chromium: s')
    with tempfile.TemporaryDirectory() as name:
        for number in [0] if args.perflogs else args.records:
            logs = args.perflogs or Path(name) / f'{number:g}'
            if not args.perflogs:
                write_simulated_perflogs(logs, number)
            out = Path(name) / f'out{number:g}'
            command = [sys.executable, '-m', 'postprocess', 'report',
                       '--perflogs', logs, '--output', out]
            # bench/ingest.py measures how the cache is made.
            run([ROOT / 'plumb', 'sql', 'SELECT 1', '--perflogs', logs],
                f'the cache of {logs}')
            # 1: a page of sessions that regressed.
            first, again = (run(command, f'the page of {logs}', codes=(0, 1),
                                env={**os.environ, 'PYTHONPATH': str(ROOT)})
                            for _ in range(2))
            size = (out / 'index.html').stat().st_size
            seconds = seconds_until_usable(out / 'index.html')
            print_table_row(args.perflogs or format(number, 'g'), f'{first.cpu:.1f}',
                            f'{again.cpu:.1f}', f'{size / 1e6:.2f}',
                            f'{seconds:.2f}' if seconds else 'no Chromium')
            good = good and size <= MAX_BYTES and (
                seconds or 0) < MAX_OPEN and again.cpu < GOALS.get(
                    int(number), 1e9)
    print(f'load average {os.getloadavg()[0]:.1f}')
    return good


if __name__ == '__main__':
    run_main_and_exit(main)
