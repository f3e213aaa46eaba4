"""postprocess/references/refinement.py: tolerances that narrow by themselves."""
from __future__ import annotations

from pathlib import Path

import perflogs_factory as make
import pytest
import yaml
from perflogs_factory import latencies

from postprocess.records import read as read_records
from postprocess.references import proposal, refinement

FEW = [1.0, 1.02, 0.98, 1.01, 0.99]
CALM = [1.0, 1.005, 0.995, 1.002, 0.998]


@pytest.fixture
def site(tmp_path):
    """Accepted references from five sessions, and a function that adds sessions and
    narrows them."""
    folder = tmp_path / 'references'
    options = ['--site', 'alpha', '--output', str(folder)]
    make.write(tmp_path / 'first', latencies(FEW))
    assert proposal.main(['propose', *options, '--perflogs',
                          str(tmp_path / 'first')]) == 0
    assert proposal.main(['accept', *options]) == 0

    def narrow(values) -> list[str]:
        make.write(tmp_path / 'all', latencies(values))
        return refinement.narrow_accepted_tolerances(
            read_records(tmp_path / 'all'), 'alpha', folder)
    return folder / 'osu.yaml', narrow


def entry_of(path: Path) -> dict:
    place = yaml.safe_load(path.read_text())['OsuPt2pt']['alpha:cpu']['openmpi']
    [settings] = place['embedded'].values()
    [entry] = settings.values()
    return entry


def test_tolerances_narrow_after_enough_days_without_a_person(site):
    path, narrow = site
    before = entry_of(path)['latency@8B']
    assert narrow(FEW + CALM * 2) == []                     # 15 days
    assert entry_of(path)['latency@8B'] == before
    [line] = narrow(FEW + CALM * 4)                         # 25 days
    assert '1 tolerance narrowed within the accepted limits' in line
    entry = entry_of(path)
    centre, _, tolerance, _ = entry['latency@8B']
    assert tolerance < before[2] and (
        centre * (1 + tolerance) <= before[0] * (1 + before[2]))
    assert entry['$from']['days'] == 25
    assert entry['$from']['tolerances']['latency@8B'] == [centre, tolerance]
    # Not again before the number of days has doubled.
    assert narrow(FEW + CALM * 5) == []


def test_what_should_be_wider_needs_a_person(site):
    path, narrow = site
    text = path.read_text()
    lines = narrow([1.0, 1.1, 0.9, 1.07, 0.93] * 5)
    assert path.read_text() == text
    assert all('should be wider, by later sessions; look at them with ./plumb '
               'references propose' in line for line in lines) and lines


def test_a_slower_level_is_never_accepted_without_a_person(site):
    path, narrow = site
    text = path.read_text()
    assert narrow([1.11 * value for value in CALM * 6]) == []
    assert path.read_text() == text


def test_a_drift_moves_no_centre(site):
    """The tolerance narrows about the accepted centre, so the level keeps the drift."""
    path, narrow = site
    [_] = narrow(FEW + [1.04 * value for value in CALM * 6])
    centre, _, tolerance, _ = entry_of(path)['latency@8B']
    assert centre == 1.0 and 0.08 <= tolerance < 0.13


def test_the_limit_of_curves_is_about_the_accepted_points():
    before = {'$from': {'tolerances': {'worst_ratio': [1.0, 0.6]}},
              'latency@8B': [1.0, None, None, 'us'],
              'latency@16B': [1.0, None, None, 'us'],
              'worst_ratio': [1.0, None, 0.6, '1']}
    seen = {'latency@8B': [1.0, None, None, 'us'],
            'latency@16B': [1.2, None, None, 'us'],
            'worst_ratio': [1.0, None, 0.2, '1']}
    assert refinement._changes_of_entry('osu', before, seen) == (
        {'worst_ratio': 0.44}, 0)       # 1.2 * 1.2
    seen['latency@16B'][0] = 1.5
    assert refinement._changes_of_entry('osu', before, seen) == ({}, 0)


def test_what_was_set_by_hand_stays(site):
    path, narrow = site
    path.write_text(path.read_text().replace(
        'latency@8B: [1.0, null, 0.14', 'latency@8B: [1.0, null, 0.9'))
    text = path.read_text()
    assert '0.9' in text
    assert narrow(FEW + CALM * 4) == [] and path.read_text() == text


@pytest.mark.parametrize('accepted, seen, tolerance', [
    ((1.0, 0.2), (1.0, 0.1), 0.11),             # a tenth in reserve
    ((1.0, 0.2), (1.0, 0.05), 0.05),            # the floor
    ((1.0, 0.2), (1.1, 0.1), None),             # its limit is beyond the accepted one
    ((1.0, 0.2), (1.04, 0.05), 0.1), ((1.0, 0.2), (0.8, 0.05), 0.05),
    ((1.0, 0.1), (1.0, 0.095), None), ((1.0, 0.1), (0.9, 0.2), None)])
def test_only_a_narrower_limit_is_taken(accepted, seen, tolerance):
    assert refinement.refined_tolerance('latency@8B', accepted, seen) == tolerance


def test_the_limit_of_a_rate_is_below():
    assert refinement.refined_tolerance('bandwidth@8B', (1.0, 0.2), (1.0, 0.1)) == 0.11
    assert refinement.refined_tolerance('bandwidth@8B', (1.0, 0.2), (0.8, 0.1)) is None
