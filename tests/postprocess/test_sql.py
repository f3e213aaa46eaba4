"""`plumb sql`: questions to the records, and what is refused."""
from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip('duckdb')
import perflogs_factory as make

from postprocess.records import cache, sql
from tests.conftest import LIMIT, ROOT

TIMES = 'SELECT time, value, test_case FROM results ORDER BY time'
ID = make.short_id(make.record())


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two sessions, read from their reports with a cache."""
    root = tmp_path / 'p'
    make.write(root, [make.record('latency', 1.5, 8, day=day) for day in (1, 2)])
    return root


@pytest.fixture(params=['.', 'alpha/cpu/OsuPt2pt.log'])
def tree(folder, request) -> Path:
    """The folder, or a file of rows."""
    return folder / request.param


def ask(tree: Path, *words: str) -> int:
    return sql.main([*words, '--perflogs', str(tree)])


def test_a_table(tree, capsys):
    assert ask(tree, TIMES) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ['time', 'value', 'test_case']
    assert first.split() == ['2026-11-02T03:00:00Z', '1.5', ID]
    assert second.startswith('2026-11-03')


def test_csv_and_json(folder, tmp_path, capsys):
    expected = [['time', 'value', 'test_case'],
                ['2026-11-02T03:00:00Z', '1.5', ID],
                ['2026-11-03T03:00:00Z', '1.5', ID]]
    assert ask(folder, TIMES, '--csv', '-') == 0
    assert [*csv.reader(capsys.readouterr().out.splitlines())] == expected
    file = tmp_path / 'answer.json'
    assert ask(folder, TIMES, '--json', str(file)) == 0
    assert [[*map(str, row.values())] for row in
            json.loads(file.read_text())] == expected[1:]


def test_the_example_of_the_help(folder, tmp_path, monkeypatch):
    import shlex
    monkeypatch.chdir(tmp_path)
    example = str(sql.parser().description).partition('./plumb sql ')[2]
    assert ask(folder, *shlex.split(example)) == 0
    assert ask(folder, 'DESCRIBE results') == 0
    assert (tmp_path / 'latency.csv').read_text().count('\n') == 2


def test_a_damaged_place_is_reported(tree, capsys):
    file = tree if tree.is_file() else next(tree.glob('alpha/*/*.log'))
    file.write_text(file.read_text() + '1|2\n')
    assert ask(tree, TIMES) == 1
    assert f'{file}:4: the line has 2 columns' in capsys.readouterr().err


#: Question -> a part of the line that refuses it.
REFUSED = {
    'SELECT nothing FROM results': 'nothing',
    'SELEC': 'syntax error',
    '': 'only one statement',
    'SELECT 1; SELECT 2': 'only one statement',
    "COPY results TO 'x.csv'": 'only one statement',
    "ATTACH 'x.db'": 'only one statement',
    'INSTALL httpfs': 'only one statement',
    'DROP VIEW results': 'only one statement',
    'SET enable_external_access = true': 'only one statement',
    "SELECT * FROM read_text('/etc/hostname')": 'disabled',
    "FROM '/etc/hostname'": 'does not exist',
    "SELECT 1 / 'x'": 'x'}


def test_what_is_refused_ends_in_one_line(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for question, why in REFUSED.items():
        assert ask(folder, question) == 2, question
        out, err = capsys.readouterr()
        assert not out and len(err.splitlines()) == 1, question
        assert err.startswith('plumb sql: ') and why in err, question
        assert [path.name for path in tmp_path.iterdir()] == ['p']


def test_a_file_that_cannot_be_written(folder, tmp_path, capsys):
    assert ask(folder, TIMES, '--csv', str(tmp_path / 'no' / 'x')) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert 'cannot be written' in line


def test_the_settings_of_duckdb(folder):
    with cache.open_records_database([folder], []) as con:
        [[bar, temporary]] = con.execute(
            "SELECT current_setting('enable_progress_bar'), "
            "current_setting('temp_directory')").fetchall()
        # DuckDB prints a bar when a question takes two seconds.
        assert not bar
        # Another user can neither make this folder first nor read it.
        assert Path(temporary).parent.stat().st_mode & 0o077 == 0


def test_an_answer_that_nobody_reads_stops_no_other_command(tmp_path):
    """`plumb sql ... | less`, left open."""
    make.write(tmp_path, [make.record(day=1)])
    command = [str(ROOT / 'plumb'), 'sql', '--perflogs', str(tmp_path)]
    with subprocess.Popen([*command, 'FROM results, range(100000)', '--csv', '-'],
                          stdout=subprocess.PIPE) as unread:
        try:
            assert unread.stdout.read(1)
            make.write(tmp_path, [make.record(day=2)])
            done = subprocess.run([*command, 'SELECT count(*) AS n FROM results'],
                                  capture_output=True, text=True, timeout=LIMIT)
            assert unread.poll() is None and done.stdout.split() == ['n', '2']
        finally:
            unread.kill()


def test_every_column_of_a_view_is_documented(folder):
    text = (ROOT / 'docs/reference/perflogs.md').read_text('utf-8')
    with cache.open_records_database([folder], []) as con:
        for view in ('results', 'measurements', 'sessions'):
            names = [name for name, *_ in con.execute(f'DESCRIBE {view}').fetchall()]
            assert not [name for name in names if f'`{name}`' not in text], view
