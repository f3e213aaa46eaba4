"""`plumb dev docs`: build the documentation."""
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time

from cli.setup.venv import ROOT, WORK, ensure_folder_of_lock

#: Folder of the built pages.
HTML = WORK / 'docs'


def docs(args: argparse.Namespace) -> int:
    """Write the generated pages, build all pages and print where they are."""
    from docs import generate

    prefix = ensure_folder_of_lock('sphinx')
    start = time.monotonic()
    generate.main()
    # Sphinx reports the warnings of a page only when it reads this page.
    shutil.rmtree(HTML, ignore_errors=True)
    packages = next(prefix.glob('lib*/python3*/site-packages'))
    done = subprocess.run(
        [sys.executable, '-m', 'sphinx', '-q', '-n', '-W', '--keep-going',
         '-c', str(ROOT / 'docs'), str(ROOT), str(HTML)],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, 'PYTHONPATH': str(packages)})
    # Sphinx repeats a warning about a page for each page that links to it.
    for line in dict.fromkeys(done.stderr.splitlines()):
        print(line, file=sys.stderr)
    if done.returncode:
        print('plumb: the documentation has errors: each line above names the '
              'file and what is wrong', file=sys.stderr)
        return 1
    pages = len([*HTML.rglob('*.html')])
    print(f'{HTML}/docs/index.html: {pages} pages, built in '
          f'{time.monotonic() - start:.0f} s, no warnings')
    return 0
