"""Options that all commands on records share."""
from __future__ import annotations

import argparse
import importlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import perflogs_factory as make
import pytest

from cli import __main__ as cli
from cli.arguments import POSTPROCESS
from postprocess import history, options
from postprocess.references import status
from postprocess.regressions import verdict

#: Command -> words that it needs to print what its records are.
READS = {
    'report': ['--output', 'OUT'], 'plot': ['FILE', '--output', 'OUT'],
    'verdict': [], 'compare': ['2026-11-02', '2026-11-04'],
    'history': ['latency'], 'export': ['--openmetrics', '-'],
    'sql': ['SELECT DISTINCT system FROM results']}


def main_of(command: str) -> Any:
    return importlib.import_module(f'postprocess.{POSTPROCESS[command]}').main


@pytest.fixture
def two_sites(tmp_path: Path) -> Path:
    folder = tmp_path / 'perflogs'
    make.write(folder, [
        make.record('latency', 1.0, size, day=day, system=system)
        for day, system in enumerate(('alpha', 'beta') * 2) for size in (8, 64, 1024)])
    return folder


def words_of(command: str, tmp_path: Path) -> list[str]:
    (tmp_path / 'plots.yaml').write_text(
        'plots: [{kind: curve, metric: latency}]\n')
    return [str(tmp_path / 'plots.yaml') if word == 'FILE' else
            str(tmp_path / 'out') if word == 'OUT' else word
            for word in READS[command]]


@pytest.mark.parametrize('command', READS)
def test_site_chooses_the_records(two_sites, tmp_path, capsys, command):
    words = [*words_of(command, tmp_path), '--perflogs', str(two_sites)]
    code = main_of(command)([*words, '--site', 'no/such/bet'])
    assert code == 2
    assert "no records of site 'bet'; did you mean 'beta'?" in capsys.readouterr().err
    assert main_of(command)([*words, '--site', 'beta']) == 0
    output = capsys.readouterr().out
    if command == 'report':
        output = (tmp_path / 'out' / 'index.html').read_text()
    if command in ('report', 'history', 'export', 'sql'):
        assert 'beta' in output and 'alpha' not in output


@pytest.mark.parametrize('option', ['--csv', '--json'])
def test_history_writes_a_file_or_prints(two_sites, tmp_path, capsys, option):
    words = ['latency', '--perflogs', str(two_sites), '--site', 'beta']
    file = tmp_path / 'answer'
    assert history.main([*words, option, str(file)]) == 0
    assert capsys.readouterr().out == ''
    assert history.main([*words, option, '-']) == 0
    assert capsys.readouterr().out == file.read_text()
    if option == '--json':
        assert {row['system'] for row in json.loads(file.read_text())} == {
            'beta'}
    assert history.main([*words, option, str(tmp_path / 'no' / 'x')]) == 2
    assert 'cannot be written' in capsys.readouterr().err


@pytest.mark.parametrize('text', ['0', '-1', 'x', ''])
def test_last_is_a_number_of_sessions(text):
    with pytest.raises(argparse.ArgumentTypeError):
        options.parse_positive_number(text)


def parsers() -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands and actions."""
    waiting = [cli.build_parser(), *(
        importlib.import_module(f'postprocess.{module}').parser()
        for module in POSTPROCESS.values()), status.parser(),
        *map(verdict.decision_parser, verdict.ACTIONS)]
    while waiting:
        parser = waiting.pop()
        yield parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()


def test_an_option_takes_the_same_everywhere():
    """A flag is a flag, a file is a file, a number is a number."""
    takes = defaultdict(set)
    for parser in parsers():
        for action in parser._actions:
            for option in action.option_strings:
                takes[option].add((action.nargs, action.metavar))
    differs = {option: result for option, result in takes.items()
               if len(result) > 1}
    assert not differs


@pytest.mark.parametrize('parser', [
    one for one in parsers() if one.add_help], ids=lambda one: one.prog)
def test_every_help_has_a_sentence_groups_and_an_example(parser, monkeypatch):
    monkeypatch.setenv('COLUMNS', '300')
    text = parser.format_help()
    assert max(map(len, text.splitlines())) <= 100
    sentence, _, example = (parser.description or '').partition('\n\n')
    assert sentence.endswith('.') and '\n' not in sentence
    assert '. ' not in sentence and sentence[0].isupper()
    assert len(sentence.split()) <= 25
    # The parser of references with its actions shows the steps.
    assert example.startswith('Example:\n  ') or 'The steps are:' in text, example
    # All options but --help are in a group that says what they are for.
    [own] = [group for group in parser._action_groups
             if group.title in ('options', 'optional arguments')]
    assert [action.option_strings for action in own._group_actions] == [
        ['-h', '--help']]


def test_a_wrong_option_suggests_the_nearest(capsys):
    with pytest.raises(SystemExit) as end:
        history.main(['x', 'y', '--perflog', 'z'])
    assert end.value.code == 2
    assert ('plumb history: error: unknown argument --perflog: did you '
            'mean --perflogs? plumb history --help lists the options'
            ) in capsys.readouterr().err
