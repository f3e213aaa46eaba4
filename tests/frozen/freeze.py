#!/usr/bin/env python3
"""Writes what users see of fixed sessions, to compare two versions of the suite.

    tests/frozen/freeze.py CHECKOUT FOLDER

It runs the commands of a checkout whose work folder is its own, and writes to FOLDER:

- sessions.json: exit code, results and last lines of a session that has no
  reference, fails in its setup, its program and its time limit, selects
  nothing, is killed;
- demo-verdict.json, demo-page.txt: verdict and words of the page of `./plumb demo`.

Numbers become N and hashes H, because they differ each time. The files beside this
program were written with commit c3a59a19, before ReFrame kept the record.
"""
from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Letters of a line that are kept: further on it names processes of this machine.
MAX = 150
#: Seconds after which ReFrame is killed.
BEFORE_KILL = 20
#: The two test cases of a session.
CASES = ['-n', 'OsuStartup']


class Suite:
    """Commands of a checkout, with perflogs and page of its own."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.checkout = checkout
        self.env = {name: value for name, value in os.environ.items()
                    if not name.startswith(('PLUMBLINE_', 'RFM_'))} | {
            'PLUMBLINE_PERFLOGS': str(folder / 'perflogs'),
            'PLUMBLINE_REPORT': str(folder / 'report'), 'COLUMNS': '200',
            'PLUMBLINE_AGAIN_AFTER': '1'}

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ['./plumb', *words], cwd=self.checkout, env=self.env | env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def outcome(self, *words: str, **env: str) -> dict[str, object]:
        """What a command prints of its session, and how it ends."""
        process = self.start(*words, **env)
        output, _ = process.communicate()
        return outcome_of(output, process.returncode)


def outcome_of(output: str, code: int) -> dict[str, object]:
    """Exit code, results of test cases and last lines, without numbers."""
    lines = [plain(line) for line in output.splitlines()]
    results = [line for line in lines if re.match(
        '(pass|fail|no_reference|inconclusive|flaky|not_run|missing) ', line)]
    ends = [line for line in lines if re.match(
        '(GOOD|FAILED|NOT COMPARED|DEGRADED|REGRESSED|CUT SHORT|Next|plumb): ', line)
        and not re.search('installing|left|set-up took|N of N test cases', line)]
    return {'exit code': code, 'results': sorted(line[:MAX] for line in results),
            'last lines': ends}


def plain(text: str) -> str:
    text = re.sub(r'(?<!\w)/?(?=\S*\d)[0-9a-f]{8}\b', '/H', text)
    text = re.sub(r'\d{8}T\d{6}Z-[0-9a-f]+', 'SESSION', text)
    return re.sub(r' +', ' ', re.sub(r'\d[\d.,]*', 'N', text)).strip()


def sessions(suite: Suite) -> dict[str, object]:
    """Name of a fixed session -> its outcome."""
    run = ['run', '--all', *CASES]
    made: dict[str, object] = {}
    made['no reference'] = suite.outcome(*run)
    made['no reference, --require-compared'] = suite.outcome(
        *run, '--require-compared')
    made['nothing selected'] = suite.outcome('run', '-n', 'NoSuchCheck')
    made['wrong option'] = suite.outcome('run', '--mode', 'none')
    made['setup fails'] = suite.outcome(*run, '-S', 'OsuStartup.repetitions=0')
    made['CC=false, which the site does not use'] = suite.outcome(*run, CC='false')
    made['time limit'] = suite.outcome(*run, '-S', 'OsuStartup.time_limit=1s', '-S',
                                       'OsuStartup.repetitions=500')
    made['program fails'] = suite.outcome(
        *run, '-S', 'OsuStartup.options=--no-such-option')
    made['killed'] = killed(suite, run)
    made['verdict after all'] = suite.outcome('verdict')
    return made


def killed(suite: Suite, words: list[str]) -> dict[str, object]:
    """A session of which ReFrame is killed while a test case runs."""
    process = suite.start(*words, '-S', 'OsuStartup.repetitions=200')
    start = time.monotonic()
    while process.poll() is None:
        time.sleep(1)
        children = Path(f'/proc/{process.pid}/task/{process.pid}/children')
        pids = children.read_text().split() if children.exists() else []
        reframes = [pid for pid in pids if 'reframe' in Path(
            f'/proc/{pid}/cmdline').read_text().replace('\0', ' ')]
        if reframes and time.monotonic() > start + BEFORE_KILL:
            os.kill(int(reframes[0]), signal.SIGKILL)
            break
    output, _ = process.communicate()
    return outcome_of(output, process.returncode)


def demo(suite: Suite, folder: Path) -> None:
    """Verdict and words of the page of the made-up cluster."""
    suite.outcome('demo')
    place = suite.checkout / '.plumbline' / 'demo'
    with suite.start('verdict', '--perflogs', str(place / 'perflogs'), '--json',
                     '-') as process:
        data = json.loads(process.communicate()[0])
    (folder / 'demo-verdict.json').write_text(json.dumps(data, indent=1) + '\n')
    text = re.sub(r'(?s)<(script|style)\b.*?</\1>', ' ',
                  (place / 'report' / 'index.html').read_text())
    words = html.unescape(re.sub('<[^>]+>', '\n', text))
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    (folder / 'demo-page.txt').write_text(
        re.sub(r'written [\d-]+ [\d:]+ UTC', 'written TIME', '\n'.join(lines)) + '\n')


def main() -> None:
    checkout, folder = (Path(word).absolute() for word in sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        suite = Suite(checkout, Path(place))
        demo(suite, folder)
        (folder / 'sessions.json').write_text(
            json.dumps(sessions(suite), indent=1, ensure_ascii=False) + '\n')


if __name__ == '__main__':
    main()
