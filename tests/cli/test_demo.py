"""./plumb demo: labelled, the same each time, and what goes wrong is found."""
from __future__ import annotations

import argparse
import csv
import fnmatch
import html
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('pandas')
pytest.importorskip('matplotlib')

from cli.demo import cluster as demo_cluster
from cli.demo import command, live, records
from cli.setup.venv import SetupError
from config import families
from config.records.columns import MADE_UP
from postprocess import records as all_records
from postprocess.references import writing
from postprocess.regressions import decisions, verdict
from postprocess.report import cards, details, page
from tests.cli.test_command_line import called
from tests.conftest import ROOT, printed_verdict_lines, two_cpus

OPTIONS = argparse.Namespace(live=False, open=False)


@pytest.fixture(scope='module')
def made_verdict(demo):
    return verdict.verdict_of_perflogs(str(demo[0] / 'perflogs'))[0]


@pytest.fixture(scope='module')
def frame(demo):
    """The records of the demo."""
    return all_records.read(demo[0] / 'perflogs')


@pytest.fixture(scope='module')
def built(frame):
    """What its page is made of."""
    return page.Page(frame)


def files_of(folder):
    """Path -> bytes, of all but what readers and locks leave there."""
    return {path.relative_to(folder): path.read_bytes()
            for path in folder.rglob('*') if path.is_file()
            and '.store' not in path.parts and path.name != '.lock'}


def test_the_same_bytes_each_time(demo, tmp_path):
    folder, *_ = demo
    records.write_perflogs(tmp_path / 'again')
    again = files_of(tmp_path / 'again')
    assert again == files_of(folder / 'perflogs') and len(again) > 10


def test_everything_is_labelled(demo):
    folder, output, code, user = demo
    assert code == 0 and not user.exists()
    assert output.startswith('MADE UP: ') and 'nothing was measured' in output
    rows = [row for path in (folder / 'perflogs').glob('*/*/*.log')
            for row in csv.DictReader(path.open(), delimiter='|')]
    assert len(rows) > 10_000
    assert {row['source'] for row in rows} == {MADE_UP}
    assert all(row['system'].startswith(MADE_UP) for row in rows)
    page = (folder / 'report' / 'index.html').read_text()
    assert '<b>MADE UP.</b> Nothing was measured on made-up-north and made-up-south' \
        in page


def test_test_cases_are_named_like_real_ones():
    for case in sum(demo_cluster.read_cluster().test_cases.values(), []):
        assert any(f'class {case.check}(' in path.read_text()
                   for path in (ROOT / 'checks' / case.family).glob('*.py'))
        assert any(fnmatch.fnmatch(case.program, name)
                   for name in families.families()[case.family].about)


@pytest.mark.parametrize('name, place, words', [
    ('slow link', 'node n17 of made-up-north', 'since 2025-04-18'),
    ('new kernel', 'family keyvalue on made-up-south', 'kernel 5.14.0-503.26'),
    ('missing GPU', 'g05 of made-up-north: 5 nccl test cases failed', 'exit_code'),
    ('flaky node', 's11 of made-up-south: 3 osu test cases failed', 'job_state')])
def test_each_event_is_reported_with_its_place(demo, made_verdict, name, place, words):
    _, output, *_ = demo
    assert f'  {name}: ' in output
    lines = printed_verdict_lines(made_verdict)
    [at] = [number for number, line in enumerate(lines) if place in line]
    text = ' '.join(lines[at:at + 3])
    assert words in text
    assert all(line in output for line in lines)


def test_nothing_else_is_reported(made_verdict):
    failures = made_verdict.failures
    assert [one.since for one in made_verdict.regressions] == [
        '2025-04-22', '2025-04-18'], 'the newest first'
    assert {one.result for one in failures} == {'fail', 'flaky'}
    assert {one.result for one in failures if one.system.endswith('south')} == {
        'flaky'}
    assert not made_verdict.events_of('improvement')


def test_no_reference_can_be_made_of_it(frame):
    entries, notes = writing.measured_entries(frame)
    assert not entries and 'made up by `./plumb demo`' in ' '.join(notes)
    # The records have nothing else that hinders.
    assert writing.measured_entries(frame.assign(source='module'))[0]


@pytest.mark.parametrize('text', command.COMMANDS)
def test_the_commands_to_try_run(demo, tmp_path, monkeypatch, capsys, text):
    folder, output, *_ = demo
    text = text.format(*demo_cluster.read_cluster().nodes)
    assert f'  {text}\n' in output
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PLUMBLINE_PERFLOGS', str(folder / 'perflogs'))
    code, out, err = called(capsys, monkeypatch, *shlex.split(text)[1:])
    assert code in (0, 1) and not err
    assert 'made-up-' in out + ''.join(
        path.read_text() for path in tmp_path.rglob('*') if path.is_file())


def test_the_commands_of_the_page_work_as_printed(demo, made_verdict, built, tmp_path,
                                                  monkeypatch, capsys):
    """Without a variable; and no command measures on a site that does not exist."""
    text = html.unescape((demo[0] / 'report' / 'index.html').read_text())
    commands = {*re.findall(r'<code class="command">(.*?)</code>', text)}
    shutil.copytree(demo[0] / 'perflogs', tmp_path / 'perflogs')
    before = files_of(demo[0])
    chosen = {'DATE': '2099-01-01', 'NODE': 'n17', 'ID': next(
        one.test_case for one in made_verdict.results if one.is_open)}
    actions = set()
    for command_ in commands - {'./plumb demo'}:
        words = [chosen.get(word, word.replace(str(demo[0]), str(tmp_path)))
                 for word in shlex.split(command_)]
        assert words[0] == './plumb' and '--perflogs' in words
        (tmp_path / 'perflogs' / decisions.FILE).unlink(missing_ok=True)
        code, out, err = called(capsys, monkeypatch, *words[1:])
        actions.add(words[2])
        assert code == 0, err + out
    assert actions == {'accept', 'mute', 'retire'}
    # Only the decisions beside these perflogs are written.
    assert files_of(demo[0]) == before and not demo[3].exists()
    assert os.listdir(tmp_path) == ['perflogs']
    assert {*files_of(tmp_path / 'perflogs')} - {*files_of(demo[0] / 'perflogs')} == {
        Path(decisions.FILE), Path('.decisions.lock')}
    assert {one['a'] for one in details.test_case_details(built)} == {''}


def test_a_second_demo_at_the_same_time_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv('PLUMBLINE_WORK', str(tmp_path))
    holder = 'import sys, pathlib\nfrom config.sessions import lock\n' \
        'path = pathlib.Path(sys.argv[1])\n' \
        'with lock.hold_file_lock(path): print(flush=True), input()'
    with subprocess.Popen(
            [sys.executable, '-c', holder, tmp_path / 'demo' / '.lock'], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(SetupError, match='is written by'):
            command.demo(OPTIONS)
        other.communicate(b'\n')
    assert not (tmp_path / 'demo' / 'perflogs').exists()


@pytest.mark.parametrize('starts, code', [(True, 0), (False, 2)])
def test_a_browser_is_started_on_request(tmp_path, monkeypatch, capsys, starts, code):
    opened = []
    monkeypatch.setenv('PLUMBLINE_WORK', str(tmp_path))
    monkeypatch.setattr(command, 'write_and_print', lambda folder: True)
    monkeypatch.setattr('webbrowser.open', lambda page: opened.append(page) or starts)
    assert command.demo(argparse.Namespace(live=False, open=True)) == code
    assert opened == [(tmp_path / 'demo/report/index.html').as_uri()]
    assert ('no browser' in capsys.readouterr().err) == (code == 2)
    assert command.demo(OPTIONS) == 0 and len(opened) == 1


def test_the_page_begins_with_a_table_of_events(demo):
    text = (demo[0] / 'report' / 'index.html').read_text()
    table, = re.findall(r'<table class="events">.*?</table>', text, re.S)
    rows = [[html.unescape(re.sub(r'<[^>]*>', '', cell)) for cell in
             re.findall(r'<td.*?</td>', row, re.S)]
            for row in re.findall(r'<tr class.*?</tr>', table, re.S)]
    assert [row[0].partition(' (')[0] for row in rows] == [
        'g05 of made-up-north: 5 nccl test cases failed, guard exit_code, new',
        's11 of made-up-south: 3 osu test cases failed, and passed when they were '
        'measured again, guard job_state, new',
        'made-up-north: 4 osu test cases failed before, and have not passed on the '
        'same nodes since',
        'family keyvalue on made-up-south', 'node n17 of made-up-north']
    assert rows[0][1:] == ['', '', '2025-05-01 (1)', 'g05']
    # The values are those of a metric that changed as much as the title has it.
    assert '5.5 % worse' in rows[3][0]
    assert rows[3][2:] == ['+5.4 %', '2025-04-22 (10)', 'made-up-south']
    # A click opens the card of the event; a regression's has its time series.
    for address in re.findall('href="#(.*?)"', table):
        card, = re.findall(rf'<section class="alarm[^>]*id="{address}">.*?</section>',
                           text, re.S)
        assert ('class="chart"' in card) == ('class="alarm worse"' in card)


def test_each_test_case_is_counted_once(demo):
    text = (demo[0] / 'report' / 'index.html').read_text()
    tally = re.search(r'<div class="tally">(.*?)<span class="stop">', text, re.S)[1]
    header = {word: int(number) for number, word in re.findall(
        r'<b>(\d+)</b> ([a-z ]+)<', tally) if word != 'measured again'}
    grid: dict[str, int] = {}
    for group in re.findall(r'<summary class="row">.*?<small>(.*?)</small>', text):
        for number, word in re.findall(r'(\d+) (\w+)', group):
            grid[word] = grid.get(word, 0) + int(number)
    assert grid == {word: number for word, number in header.items() if number}
    assert sum(header.values()) == 47


def test_a_slow_node_marks_only_the_sessions_on_it(built):
    [slow] = [one for one in built.regressions if one.node]
    there = built.sessions_on_node(slow)
    marked = {(case.number, session) for case in built.cases
              if case.row.system == slow.system
              for session, cell in enumerate(case.cells) if cell == page.WORSE}
    assert slow.node == 'n17' and len(marked) > 20 and marked < there
    [card] = [card for card in cards.event_cards(built, [])
              if card['title'].startswith('node n17 ')]
    assert re.search(r'baseline: \+\d+(\.\d)? % in the newest', card['curve']['t'])
    # The links open the last session on the node, though later ones ran elsewhere.
    last = dict(sorted(there))
    assert {row['session'] for row in card['rows']} == {
        last[row['number']] for row in card['rows']}
    assert 'not measured on n17 since' in {row['note'] for row in card['rows']}
    assert 'Ratio' in card['plot']['svg'] and 'on n17 since' in card['plot']['svg']
    views = details.test_case_details(built)
    for row in card['rows']:
        [node] = views[row['number']]['e']
        assert node['sessions'][-1] == row['session'] and node['node'] == 'n17'


# ------------------------------------------------------------------------- live

#: Sound runs do not depend on what else the machine does.
ON_A_BUSY_MACHINE = {'PLUMBLINE_OTHERS_LIMIT': '1e6'}


def step_outputs(text: str) -> list[str]:
    """The output of each step."""
    return re.split(r'^\d+\. .*$', text, flags=re.M)[1:]


@pytest.mark.strict
@pytest.mark.timeout(600)
@two_cpus
def test_the_faults_of_the_live_demo_are_found_and_go(tmp_path, monkeypatch, capfd):
    for name, value in ON_A_BUSY_MACHINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('PLUMBLINE_LOCK', str(tmp_path / 'lock'))
    sound = live.Step('Sound.', ('run', *live.LATENCY, *live.STORE))
    cpu = min(os.sched_getaffinity(0))
    page = live.run_steps(tmp_path / 'demo', [*live.fault_steps(cpu), sound])
    ranks, store, good = step_outputs(capfd.readouterr().out)
    assert 'FAILED: 1 fail of 1 test case' in ranks, ranks
    assert f'ranks share cores, with the CPUs {cpu} {cpu}: ' in ranks
    assert 'FAILED: 1 fail of 1 test case' in store, store
    assert 'the store is full: its memory limit' in ' '.join(store.split())
    assert 'fail ' not in good and 'of 2 test cases' in good, good
    assert page.is_file() and '\n(exit code 1, as expected)' in ranks
    # The records are those of the demo.
    assert (tmp_path / 'demo' / 'perflogs' / 'local').is_dir()


@pytest.mark.slow
@pytest.mark.timeout(900)
@two_cpus
def test_the_live_demo_makes_references_and_ends_green(tmp_path, copy_in_place):
    done = copy_in_place.run(
        './plumb', 'demo', '--live', timeout=800, **ON_A_BUSY_MACHINE,
        PLUMBLINE_LOCK=str(tmp_path / 'lock'))
    assert done.returncode == 0, done.stdout + done.stderr
    *_, good = step_outputs(done.stdout)
    assert 'GOOD: ' in good and 'fail ' not in good


def test_a_step_with_another_result_ends_the_live_demo(tmp_path):
    step = live.Step('Wrong.', ('run', '--no-such-option'), code=1)
    with pytest.raises(SetupError, match='step 1 ended with exit code 2, expected 1: '
                                         'the message above'):
        live.run_steps(tmp_path, [step])


def test_one_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {3})
    with pytest.raises(SetupError, match='needs 2 CPUs .* only CPU 3'):
        live.run_live_demo()
