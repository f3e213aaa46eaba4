"""Mutations of real output, from a seed: refused, or the values it has.

A parser may say ParseError and nothing else; what it gives of a broken copy
stands in the whole one.  What nothing can notice is left out: a line that is
lost where lines say nothing of one another (a test of --csv or -q, the
statistics of TaoBench), and a digit that another value does not confirm.
"""
from __future__ import annotations

import importlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from checks.core.parsers import ParseError
from checks.keyvalue import parser as keyvalue
from checks.osu import parser as osu
from checks.taobench import parser as tao
from config import families
from tests.conftest import LIMIT, ROOT

TESTS = ROOT / 'tests'
BAD = re.compile('refused|noauth|wrongtype|stderr')
#: Parser of each folder of tests/; what families share has one, too.
PARSERS = {'load': keyvalue} | {
    name: importlib.import_module(families.parser_modules()[name])
    for name, family in families.families().items() if family.parsers}
#: Which golden files, where not all of a family's are mutated.
SOME = {'taobench': 'server_v1.log', 'osu': '7.2/osu_*[wl].txt',
        'optcast': '*.txt', 'nccl': 'formats/*.txt'}
FILES = sorted(
    path for name in PARSERS
    for path in (TESTS / name / 'golden').glob(SOME.get(name, '**/*'))
    if path.is_file() and not BAD.search(path.name))
ROUNDS = 8


def family_of(path: Path) -> str:
    return path.relative_to(TESTS).parts[0]


def values(parser, text):
    """Without lines and parameters, which a lost line may change."""
    return {(r.program, r.version, r.size, r.metric, r.value, r.unit)
            for r in parser.parse(text)}


def lose_newline(draw, text):
    place = draw.choice([m.start() for m in re.finditer('\n', text)])
    return text[:place] + text[place + 1:]


def add_newline(draw, text):
    place = draw.randrange(len(text))
    return text[:place] + '\n' + text[place:]


def lose_line(draw, text):
    lines = text.splitlines(True)
    del lines[draw.randrange(len(lines))]
    return ''.join(lines)


def double_line(draw, text):
    lines = text.splitlines(True)
    number = draw.randrange(len(lines))
    return ''.join([*lines[:number + 1], *lines[number:]])


def comma(draw, text):
    """As people of other countries write a number: 1,234.5 or 1234,5."""
    number = draw.choice([*re.finditer(r'\d+\.\d+|\d{4,}', text)])
    word = number[0]
    place = draw.randrange(1, len(word))
    new = (word.replace('.', ',') if draw.random() < 0.5 and '.' in word
           else f'{word[:place]},{word[place:]}')
    return text[:number.start()] + new + text[number.end():]


def long_line(draw, text):
    place = draw.randrange(len(text))
    return (text[:place] + draw.choice('x 7"[{=,') * 140_000
            + text[place:])


def deep_json(draw, text):
    place = draw.choice([0, draw.randrange(len(text))])
    return text[:place] + draw.choice(['[', '{"a":']) * 100_000 + text[place:]


MUTATIONS = [lose_newline, add_newline, lose_line, double_line, comma,
             long_line, deep_json]


class FileOfFolder:
    """The parser of a folder, for the text of one of its files."""

    def __init__(self, path):
        self.path = path

    def parse(self, text):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, self.path.parent.name)
            shutil.copytree(self.path.parent, copy)
            (copy / self.path.name).write_bytes(text.encode())
            ((_, output),), _ = PARSERS[family_of(self.path)].parse_folder(copy)
        if isinstance(output, ParseError):
            raise output
        return output.records


def parser_of(path):
    return (FileOfFolder(path) if path.name.endswith('_timing.csv')
            else PARSERS[family_of(path)])


def text_of(path):
    return path.read_bytes().decode()


def whole(path):
    try:
        return values(parser_of(path), text_of(path))
    except ParseError:
        return None                     # an output that is refused as it is


@pytest.mark.parametrize('family', PARSERS)
def test_refused_or_the_same(family):
    for path in FILES:
        if family_of(path) == family:
            check_mutations(path)


def check_mutations(path):
    """Mutations of one file, drawn from its name."""
    want = whole(path)
    draw = random.Random(path.name)
    for _ in range(ROUNDS):
        mutation = draw.choice(MUTATIONS)
        text = mutation(draw, text_of(path))
        try:
            got = values(parser_of(path), text)
        except ParseError:
            continue
        assert want is not None, (path, mutation)
        if family_of(path) == 'taobench':
            assert message(text), (path, mutation)
        else:
            assert got <= want, (path, mutation)


def message(text):
    """Points of TaoBench are those of the log, or said not to count."""
    known = {point_of(line) for line in
             text_of(TESTS / 'taobench' / 'golden' / 'server_v1.log'
                     ).splitlines()}
    logs = tao.parse_server_logs(text)
    lines = text.splitlines()
    return all(point_of(lines[point.line - 1]) in known
               for log in logs for point in tao.summarise_log(log).counted)


def point_of(line):
    """Its rates; a lost last digit of what does not count is no matter."""
    return tuple(re.findall(r'(?:fast_qps|hit_rate|slow_qps) = ([^,]*)',
                            line))


@pytest.mark.parametrize('text, reason', [
    ('"test","rps"\n' + 'x' * 200_000 + '\n', 'the header is not that of'),
    ('"' + 'x' * 140_000, 'unexpected line'),
    ('[' * 100_000, 'the text has no output'),
    ('{"a":' * 100_000, 'nested too deep|no configuration|not the whole'),
    ('{"configuration": {}, "a": ' + '[' * 100_000,
     'nested too deep|no whole JSON'),
])
def test_what_was_a_traceback(text, reason):
    with pytest.raises(ParseError, match=reason):
        keyvalue.parse(text)


@pytest.mark.parametrize('version', ['6.2.14', '7.0.15'])
def test_a_result_does_not_vanish_with_its_newline(version):
    """The progress of GET after the result of SET was read as progress."""
    text = text_of(TESTS / 'keyvalue' / 'golden'
                   / f'redis-benchmark-{version}.quiet.txt')
    with pytest.raises(ParseError, match='unexpected words|progress of'):
        keyvalue.parse(text.replace('msec\n', 'msec', 1))
    bare = ''.join(line.rpartition('\r')[2] + '\n'
                   for line in text.split('\n') if line.strip())
    assert values(keyvalue, bare) == values(keyvalue, text)
    with pytest.raises(ParseError):
        keyvalue.parse(bare.replace('msec\n', 'msec', 1))


def test_parse_into_head_ends_as_other_filters_do(tmp_path):
    head, row = (TESTS / 'keyvalue' / 'golden' / 'redis-benchmark-7.0.15.csv'
                 ).read_text().split('\n')[:2]
    rest = row.partition('","')[2]
    file = tmp_path / 'many.csv'
    file.write_text(f'{head}\n' + ''.join(
        f'"test {n}","{rest}\n' for n in range(20_000)))
    done = subprocess.run(
        ['bash', '-c', '"$0" parse keyvalue "$1" | head -n 2; '
         'echo "${PIPESTATUS[0]}"', ROOT / 'plumb', file],
        capture_output=True, text=True, timeout=LIMIT)
    assert done.stderr == ''
    assert done.stdout.splitlines()[2] == str(128 + signal.SIGPIPE)


def test_init_of_5_3_has_no_title():
    """And no unit: from 5.4 on, which has both, a lost title is refused."""
    sentence = 'nprocs: 4, min: 501, max: 575, avg: 531\n'
    for text in (sentence, f'[node1] a launcher\'s word\n{sentence}'):
        result = osu.parse(text)
        assert {r.metric: r.value for r in result} == {
            'ranks': 4, 'init_time_min': 501, 'init_time_max': 575,
            'init_time': 531}
        assert {(r.program, r.version) for r in result} == {
            ('osu_init', '5.3')}
    titled = '# OSU MPI Init Test v5.8\n'
    for text in (titled + sentence, sentence * 2, sentence + titled,
                 sentence[:-1], sentence.replace('531', '631'),
                 sentence.replace('501', '501 ms'),
                 sentence.replace(',', ' ms,').replace('4 ms', '4')
                 .replace('531', '531 ms')):
        with pytest.raises(ParseError):
            osu.parse(text)
