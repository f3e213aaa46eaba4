"""Pages of every kind of session, opened in a browser: no error in its console.

Each page is opened at the width of a desktop and of a phone. A script that the
test appends opens a test case, steps through its sessions, filters and sorts.
"""
from __future__ import annotations

import functools
import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import perflogs_factory as make
import pytest

from postprocess.report import build as report
from tests.conftest import LIMIT, skip_missing

BROWSER = next(filter(None, map(shutil.which, (
    'chromium', 'chromium-browser', 'google-chrome'))), '')
#: Everything is near the screen at once: a browser that is busy draws late.
NEAR = """
<script>
window.IntersectionObserver = class {
  constructor(found) { this.found = found; }
  observe(target) { this.found([{isIntersecting: true, target}]); }
  unobserve() { }
};
</script>
"""
#: Uses the page; the attribute says how far it came.
USE = """
<script>
window.onload = () => {
  const rows = document.querySelectorAll('#table tbody tr').length;
  for (const button of document.querySelectorAll('th button')) {
    button.click();
  }
  for (const input of document.querySelectorAll('input[type=search]')) {
    input.value = 'latency';
    input.oninput();
  }
  for (const range of document.querySelectorAll('input[name=range]')) {
    range.click();
  }
  const gallery = document.querySelector('.family .gallery');
  if (gallery) {
    gallery.open = false;
    location.hash = gallery.parentElement.id;
    window.dispatchEvent(new Event('hashchange'));
  }
  const link = document.querySelector('a.case');
  link.click();
  const dialog = document.getElementById('case');
  for (const key of ['ArrowLeft', 'ArrowRight']) {
    dialog.dispatchEvent(new KeyboardEvent('keydown', {key}));
  }
  const address = decodeURIComponent(location.hash);
  const has = Boolean(document.getElementById(address.slice(1)));
  document.body.dataset.used = JSON.stringify({
    rows, address, has, unfolded: gallery?.open ?? true,
    curves: dialog.querySelectorAll('.curve polyline').length,
    empty: document.querySelectorAll(':is([data-curve], [data-event]):empty').length,
    commands: document.querySelectorAll('.command + .copy').length,
    title: dialog.querySelector('h2').textContent,
    strip: dialog.querySelector('.cells').offsetHeight,
    wider: document.documentElement.scrollWidth - window.innerWidth});
};
</script>
"""


def refused(name: str, day: int, guard: str) -> dict:
    """The record of a test case that never started: it knows no node."""
    return make.case(name, day, guard, num_nodes=None, num_tasks=None,
                     tasks_per_node=None, nodes='', version='')


def write_cancelled_session(root: Path) -> None:
    make.write(root, [*(make.case(name, 1) for name in 'abc'),
                      make.case('a', 2), refused('b', 2, 'cancelled'),
                      refused('c', 2, 'cancelled')])


def write_killed_session(root: Path) -> None:
    make.write(root, [make.case(name, 1) for name in 'abc'])
    make.write(root, [make.case('a', 2)], ended=False)


def write_empty_session(root: Path) -> None:
    make.write(root, [refused(name, 1, 'cancelled') for name in 'ab'])


def write_many_failures(root: Path) -> None:
    make.write(root, make.site(runs=3, repetitions=1, sizes=(1, 8, 4194304)))


def write_two_sites(root: Path) -> None:
    make.write(root, [record for first, system in ((0, 'alpha'), (3, 'beta'))
                      for record in make.latencies([1.0, 1.1, 1.2], first=first,
                                                   system=system)])


def write_many_sessions(root: Path) -> None:
    """More than the page draws."""
    make.write(root, [make.case(name, day) for day in range(500) for name in 'ab'])


def write_slow_node(root: Path) -> None:
    make.write(root, make.slow_node())


@pytest.fixture(autouse=True)
def browser() -> None:
    """Skips each test before it makes a page if there is no browser."""
    if not BROWSER:
        skip_missing('chromium', 'no Chromium on PATH')


def open_page(address: str, width: int, profile: Path) -> tuple[list[str], str]:
    """Lines of the browser's console, and the page as it is then."""
    done = subprocess.run(
        [BROWSER, '--headless', '--no-sandbox', '--disable-gpu', '--dump-dom',
         '--enable-logging=stderr', '--virtual-time-budget=20000',
         f'--window-size={width},900', f'--user-data-dir={profile}', address],
        capture_output=True, text=True, timeout=LIMIT)
    return re.findall(r'CONSOLE.*', done.stderr), done.stdout


@functools.cache
def text_of_page(write: Callable[[Path], None]) -> str:
    """The page of the records that a function writes."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, 'perflogs'))
        report.main(['--perflogs', f'{folder}/perflogs', '--output', f'{folder}/page'])
        return Path(folder, 'page', 'index.html').read_text('utf-8')


def make_page(folder: Path, write: Callable[[Path], None], script: str = '') -> Path:
    """A page, with a script that uses it at the end."""
    page = folder / 'index.html'
    page.write_text(text_of_page(write).replace('<main>', NEAR + '<main>')
                    .replace('</body>', script + '</body>'))
    return page


@pytest.mark.parametrize('write', [
    write_cancelled_session, write_killed_session, write_empty_session,
    write_many_failures, write_two_sites, write_many_sessions])
def test_a_browser_opens_the_page_without_an_error(
        tmp_path: Path, write: Callable[[Path], None]) -> None:
    page = make_page(tmp_path, write, USE)
    for width in (1440, 500):
        lines, text = open_page(page.as_uri(), width, tmp_path / 'profile')
        assert not lines, (width, lines)
        attribute = re.search(r'data-used="([^"]*)"', text)
        used = json.loads(attribute[1].replace('&quot;', '"')) if attribute else {}
        assert used.get('title') and used['wider'] <= 0, (width, used)
        assert (used['rows'] > 0) == (write is not write_empty_session)
        assert 0 < used['strip'] < 40 and not used['empty'], used
        assert used['address'].startswith('#case=') and used['has'], used
        assert used['unfolded'], used
        # The first test case is the one that fails: it never had a value.
        assert (used['curves'] > 0) == (write not in (
            write_empty_session, write_many_failures))
        if write is write_killed_session:
            assert used['commands'] > 0


def test_the_address_of_a_test_case_opens_its_view(tmp_path: Path) -> None:
    page = make_page(tmp_path, write_many_sessions)
    ident = make.short_id(make.case('b', 1))
    address = f'{page.as_uri()}#case={ident}'
    lines, text = open_page(address, 1440, tmp_path / 'profile')
    assert not lines
    [dialog] = re.findall(r'<dialog[^>]* open.*?</dialog>', text, re.S)
    assert f'<h2 id="case-title">b (embedded) {ident}</h2>' in dialog
    assert 'OsuPt2pt %program=b @alpha:cpu+openmpi' in dialog
    assert dialog.count('<polyline') == 1
    assert 'the newest 400 of 500 sessions' in dialog
    # An address that no test case has opens nothing.
    _, text = open_page(address.replace(ident, 'c0ffee00'), 1440, tmp_path / 'profile')
    assert '<h2 id="case-title">' not in text


def test_a_regression_of_a_node_opens_its_last_session_there(tmp_path: Path) -> None:
    page = make_page(tmp_path, write_slow_node, """
<script>
window.onload = () => document.querySelector('a[data-session="39"]').click();
</script>""")
    lines, text = open_page(page.as_uri(), 1440, tmp_path / 'profile')
    assert not lines
    [dialog] = re.findall(r'<dialog[^>]* open.*?</dialog>', text, re.S)
    assert '<b>2026-12-10 03:00 UTC</b>' in dialog
    assert 'worse on n7, on which it ran last in the session of 2026-12-10' in dialog
    assert re.search(r'since 2026-12-06 on n7 \(dots\) [\d.]+, on other nodes no value',
                     dialog)
    [event] = re.findall('<span data-event="0">.*?</span>', text)
    assert 'aria-label="median of 7 metrics relative to the baseline: +' in event
    assert '<polyline' in event and 'class="since"' in event


#: Runs axe-core on the page, all folds open, and on the view of a test case.
AXE = """
<script>
window.onload = async () => {
  const found = [];
  const check = async () => {
    const {violations} = await axe.run(document);
    found.push(...violations
      .filter(({impact}) => ['serious', 'critical'].includes(impact))
      .map(({id, nodes}) => `${id}: ${nodes.slice(0, 3).map((node) => node.html)}`));
  };
  for (const fold of document.querySelectorAll('details')) { fold.open = true; }
  await check();
  document.querySelector('a.case').click();
  await check();
  document.body.dataset.axe = JSON.stringify(found);
};
</script>
"""


@pytest.mark.parametrize('write', [
    write_many_failures, write_killed_session, write_slow_node])
@pytest.mark.parametrize('dark', [False, True])
def test_axe_core_finds_nothing_serious(
        tmp_path: Path, write: Callable[[Path], None], dark: bool) -> None:
    """$PLUMBLINE_AXE is axe.min.js, from `npm install axe-core`."""
    axe = os.environ.get('PLUMBLINE_AXE')
    if not axe:
        pytest.skip('PLUMBLINE_AXE does not name axe.min.js of axe-core (npm)')
    page = make_page(tmp_path, write, '<script>' + Path(axe).read_text('utf-8').replace(
        '</script', '<\\/script') + '</script>' + AXE)
    if dark:
        page.write_text(page.read_text('utf-8').replace(
            '@media screen and (prefers-color-scheme: dark)', '@media screen'))
    for width in (1440, 500):
        _, text = open_page(page.as_uri(), width, tmp_path / 'profile')
        attribute = re.search(r'data-axe="([^"]*)"', text)
        assert attribute, 'axe-core did not end'
        assert json.loads(html.unescape(attribute[1])) == []
