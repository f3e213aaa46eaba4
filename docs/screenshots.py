#!/usr/bin/env python3
"""Makes docs/images/ from `./plumb demo`: pictures of the page, and a terminal sample.

    .plumbline/venv/bin/python docs/screenshots.py

It needs Chromium: $CHROMIUM, or chromium or google-chrome on PATH. It writes

- card-light.png, card-dark.png: the card of a regression, with its history;
- page.txt: the words of the first screen of the page, from which a test sees that they
  changed;
- terminal.txt: a command, and what it prints on a terminal.

--text writes only the text files, without Chromium. tests/test_screenshots.py
compares them with what page and command are now.
"""
from __future__ import annotations

import argparse
import html
import io
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / 'docs' / 'images'
#: The command of the sample: a session with one regression.
COMMAND = './plumb verdict --site made-up-south --session 2025-04-30'
#: Columns of the terminal.
COLUMNS = 88
#: Picture -> width and height, and whether it is dark. Unit: pixels.
PICTURES = {'card-light.png': (830, 820, False), 'card-dark.png': (830, 820, True)}
#: Beginning of the card.
CARD = re.compile(r'id="(event-\d+)"><h2>node n17 of made-up-north')
#: Colours of a picture, which make it small.
COLOURS = 256
#: What is another one each time that the page is written.
WRITTEN = re.compile(r'written [\d-]+ [\d:]+ UTC')
#: Characters of the page that are about a screen.
SCREEN = 1800


def terminal_sample(perflogs: Path) -> str:
    """The command, and what it prints on a terminal of COLUMNS columns.

    :param perflogs: of the demo
    :raises OSError: it ended with another exit code than that of a regression
    """
    master, slave = pty.openpty()
    with open(master, 'rb', buffering=0) as reader, subprocess.Popen(
            [ROOT / 'plumb', *shlex.split(COMMAND)[1:]], stdin=subprocess.DEVNULL,
            stdout=slave, stderr=subprocess.STDOUT, env=os.environ | {
                'PLUMBLINE_PERFLOGS': str(perflogs), 'NO_COLOR': '1',
                'COLUMNS': str(COLUMNS), 'TERM': 'xterm'}) as command:
        os.close(slave)
        data = b''
        try:
            while part := reader.read(65536):
                data += part
        except OSError:                 # EIO: all writers are gone
            pass
    text = data.decode().replace('\r\n', '\n')
    if command.returncode != 1:
        raise OSError(f'{COMMAND}: exit code {command.returncode}\n{text}')
    return f'$ {COMMAND}\n' + ''.join(
        line + '\n' for long in text.splitlines() for line in wrap_line(long))


def wrap_line(line: str) -> list[str]:
    """A line that is wider than the terminal, wrapped under its beginning."""
    indent = ' ' * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, COLUMNS, subsequent_indent=indent,
                         break_on_hyphens=False, break_long_words=False) or ['']


def lasting_html(page: Path) -> str:
    """The page of a demo without its time, and with paths relative to its folder."""
    text = WRITTEN.sub('', page.read_text('utf-8'))
    return text.replace(f'{page.parent.parent}/', '')


def first_screen_text(page: Path) -> str:
    """The words of the first screen of the page."""
    text = lasting_html(page)
    body = re.sub(r'<(style|svg|script|noscript).*?</\1>', ' ',
                  text[text.index('<body'):], flags=re.S)
    words = ' '.join(html.unescape(re.sub(r'<[^>]*>', ' ', body)).split())
    return textwrap.fill(words[:SCREEN], COLUMNS, break_on_hyphens=False,
                         break_long_words=False) + '\n'


def card_html(text: str) -> str:
    """The page with a card alone.

    :raises OSError: the page has no such card
    """
    card = CARD.search(text)
    if not card:
        raise OSError('the page has no card of node n17')
    others = (f'.alarm:not(#{card[1]})', 'header', 'nav', 'main > .scroll', '.sessions',
              '.family')
    return text.replace('</head>', f'<style>{", ".join(others)} '
                        '{ display: none }</style></head>', 1)


def find_chromium() -> str:
    """The path of Chromium.

    :raises OSError: there is none
    """
    path = os.environ.get('CHROMIUM') or shutil.which('chromium') or shutil.which(
        'google-chrome')
    if not path:
        raise OSError('Chromium is neither on PATH nor in the variable CHROMIUM; '
                      'install it, or write only the text files with --text')
    return path


def picture_of_page(chromium: str, page: Path, width: int, height: int, dark: bool
                    ) -> bytes:
    """A picture of the first screen of a page, as PNG with few colours.

    :raises OSError: Chromium failed
    """
    from PIL import Image
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, 'screen.png')
        done = subprocess.run(
            [chromium, '--headless', '--no-sandbox', '--disable-gpu',
             '--hide-scrollbars', f'--user-data-dir={folder}/profile',
             f'--blink-settings=preferredColorScheme={0 if dark else 1}',
             f'--window-size={width},{height}', f'--screenshot={file}', page.as_uri()],
            capture_output=True, text=True, timeout=120)
        if not file.exists():
            raise OSError(f'{chromium}: exit code {done.returncode}\n{done.stderr}')
        out = io.BytesIO()
        # Maximum coverage keeps the colours of small areas, such as the legend.
        Image.open(file).convert('RGB').quantize(
            COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        ).save(out, 'PNG', optimize=True)
    return out.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--text', action='store_true',
                        help='write only the text files, without Chromium')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        # Not with PLUMBLINE_WORK: set-up would make its environment there.
        folder = Path(work)
        code = ('import sys, pathlib; sys.path.insert(0, sys.argv[1])\n'
                'from cli.demo.command import write_and_print\n'
                'sys.exit(not write_and_print(pathlib.Path(sys.argv[2])))')
        subprocess.run([sys.executable, '-c', code, ROOT, folder], check=True,
                       stdout=subprocess.DEVNULL)
        page = folder / 'report' / 'index.html'
        page.write_text(lasting_html(page), 'utf-8')
        files = {'terminal.txt': terminal_sample(folder / 'perflogs').encode(),
                 'page.txt': first_screen_text(page).encode()}
        if not args.text:
            chromium = find_chromium()
            page.write_text(card_html(page.read_text('utf-8')), 'utf-8')
            files |= {name: picture_of_page(chromium, page, *size)
                      for name, size in PICTURES.items()}
    IMAGES.mkdir(exist_ok=True)
    for name, data in files.items():
        (IMAGES / name).write_bytes(data)
        print(f'docs/images/{name}: {len(data) / 1000:.0f} kB')
    return 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    except OSError as err:
        print(f'docs/screenshots.py: {err}', file=sys.stderr)
        sys.exit(2)
