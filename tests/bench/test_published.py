"""References from published outputs."""
from __future__ import annotations

import shutil
import statistics
import subprocess

import published
import pytest

from config.references import read
from tests.conftest import ROOT

STUDY = ROOT / 'tests/data/osu-study'


@pytest.fixture
def write(tmp_path, monkeypatch):
    """The function that writes the references of a clone with one file of the study,
    several times."""
    clone = tmp_path / 'study'
    clone.mkdir()
    monkeypatch.setattr(published, 'ROOT', tmp_path)
    (tmp_path / 'site-configs/cloud').mkdir(parents=True)

    def run(copies, cores=4, file=STUDY / 'run4-crd-metrics-20x-4-0.json'):
        for number in range(copies):
            shutil.copy(file, clone / f'metrics-{number}{file.suffix}')
        for words in ('init -q', 'add .',
                      '-c user.name=a -c user.email=a@b commit -qma'):
            subprocess.run(['git', *words.split()], cwd=clone, check=True)
        monkeypatch.setattr(published, 'SOURCES', [published.Source(
            'cloud:c2d', 'c2d-standard-2', cores, 'a/study', r'metrics-.*',
            '2023-09-17')])
        monkeypatch.setattr('sys.argv', ['published.py', str(tmp_path)])
        assert published.main()
        return read(tmp_path / 'site-configs/cloud/references/osu.yaml')
    return run


def test_repetitions_become_references(write):
    file = write(5)
    entries = {entry.keys[3]: entry for entry in file.all_entries()}
    entry = entries['buffers=host placement=inter_node program=osu_latency']
    assert entry.check == 'OsuPt2pt' and entry.is_published
    assert entry.keys[:3] == ('cloud:c2d', '.*', '(?!embedded).*')
    assert '5 runs on c2d-standard-2' in entry.source['source']
    # Five equal repetitions: the smallest tolerances, for worse values.
    assert entry.values['latency@8B'][1:] == [None, 0.05, 'us']
    assert entry.values['worst_ratio'] == [1.0, None, 0.2, '1']
    assert 'latency@0B' not in entry.values and 'wall_time' not in entry.values
    assert entry.values['latency@4B'][1:3] == [None, None]
    assert {'layout=4xone program=osu_mbw_mr',
            'buffers=host layout=4xone program=osu_barrier',
            'placement=inter_node program=osu_put_bibw synchronisation=pscw '
            'window=allocate'} < entries.keys()
    assert not [key for key in entries for name in published.LEFT_OUT if name in key]
    # osu_latency_mt has more threads than a node with one core.
    assert any('osu_latency_mt' in key for key in entries)
    assert not any('osu_latency_mt' in entry.keys[3]
                   for entry in write(6, cores=1).all_entries())


def test_text_logs_are_read_too(write):
    [entry] = write(5, file=ROOT / 'tests/osu/golden/5.8/osu_latency.txt').all_entries()
    assert entry.keys[3] == 'buffers=host placement=inter_node program=osu_latency'


def test_too_few_repetitions_give_no_reference(write):
    assert not [*write(4).all_entries()]


def test_few_repetitions_take_the_spread_of_all_node_counts():
    key = ('latency', 8)
    cases = [[{key: value} for value in values]
             for values in ((99, 101), (198, 202), (396, 400, 404))]
    sessions = published.pooled_sessions(key, cases[0], cases)
    assert len(sessions) == 7 and statistics.median(sessions) == 100
    # Wider than what was seen, because three medians were estimated.
    assert max(sessions) > 101.5
    assert not published.pooled_sessions(key, cases[0], cases[:2])
