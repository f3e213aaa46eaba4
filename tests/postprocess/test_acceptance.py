"""Proposals beside what people accepted: shown as metrics, taken on demand."""
from __future__ import annotations

import re
import shutil
from pathlib import Path

import perflogs_factory as make
import pytest
import yaml
from conftest import git
from perflogs_factory import CALM, WILD, latencies

from cli.session import commands
from cli.site import check as sites
from config import references as names
from config.sessions import judged
from postprocess.files import git_commit_hint
from postprocess.references import proposal as references

INTRA = 'program=osu_latency placement=intra_node'
OTHER = 'program=osu_latency placement=inter_node'


class Site:
    """Perflogs and a folder of references."""

    def __init__(self, root: Path) -> None:
        self.perflogs, self.folder = root / 'perflogs', root / 'references'
        self.osu = self.folder / 'osu.yaml'
        self.proposal = self.folder / 'osu.proposed.yaml'

    def propose(self, records, *options) -> int:
        shutil.rmtree(self.perflogs, ignore_errors=True)
        make.write(self.perflogs, records)
        return references.main([
            'propose', '--site', 'alpha', '--perflogs', str(self.perflogs),
            '--output', str(self.folder), *options])

    def accept(self, *options) -> int:
        return references.main(['accept', '--site', 'alpha', '--output',
                                str(self.folder), *options])

    def entry(self, params=INTRA, file=None) -> dict:
        refs = yaml.safe_load((file or self.osu).read_text())
        return refs['OsuPt2pt']['alpha:cpu']['openmpi']['embedded'][
            params]['']


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def times(factor: float) -> list[float]:
    return [factor * value for value in CALM]


def test_a_tolerance_that_cannot_judge_is_written_open(site, capsys):
    assert site.propose(latencies(WILD)) == 0
    entry = site.entry(file=site.proposal)
    assert entry['latency@8B'] == [1.0, None, None, 'us']
    assert entry['$no_reference'] == {'latency@8B': 0, 'worst_ratio': 0}
    assert entry['$from']['tolerances'] == {} and 'worst_ratio' not in entry
    assert (
        ' (10 sessions on 10 days, 2026-11-01 to 2026-11-10; provisional):\n'
        '  latency@8B new -> 1 us no_reference: more sessions would not help\n'
    ) in capsys.readouterr().out


def test_how_many_more_runs_an_no_reference_metric_needs(site, capsys):
    assert site.propose(latencies([1.0, 1.17, 0.83, 1.16, 0.84])) == 0
    needs = site.entry(file=site.proposal)['$no_reference']['latency@8B']
    assert 2 < needs < 60
    assert f'no_reference: needs about {needs} more sessions' in \
        capsys.readouterr().out


def test_a_derived_metric_is_judged_instead(site, monkeypatch):
    monkeypatch.setattr(judged, 'judged_rules_by_family', lambda: {'osu': [
        {'metric': 'latency', 'at': [8], 'instead': 'latency_p50'}]})
    records = latencies(WILD)
    records += [make.record('latency_p50', v, day=day)
                for day, v in enumerate(CALM * 2)]
    assert site.propose(records) == 0
    entry = site.entry(file=site.proposal)
    assert '$no_reference' not in entry
    assert entry['latency@8B'] == [1.0, None, None, 'us']
    assert entry['latency_p50'][:2] == [1.0, None] and entry['latency_p50'][2]
    assert list(entry['$from']['tolerances']) == ['latency_p50']


def test_first_proposal_is_new_and_accepted_whole(site, capsys):
    assert site.propose(latencies(CALM)) == 0
    out = capsys.readouterr().out
    assert ('(5 sessions on 5 days, 2026-11-01 to 2026-11-05; provisional):\n'
            '  latency@8B new -> 1 us +5 %\n') in out
    assert not site.osu.exists()
    text = site.proposal.read_text()
    assert site.accept() == 0
    assert site.osu.read_text() == text and not site.proposal.exists()
    assert f'{site.osu}: 1 test case accepted\n' in \
        capsys.readouterr().out


def test_files_that_git_ignores_are_not_to_be_committed(tmp_path,
                                                        monkeypatch):
    kept, ignored = tmp_path / 'kept.yaml', tmp_path / 'ignored.yaml'
    (tmp_path / '.gitignore').write_text('ignored.yaml\n')
    assert git_commit_hint(kept) == ''                      # no repository
    git('init', '-q', folder=tmp_path)
    assert git_commit_hint(kept) == '; commit it'
    assert git_commit_hint(ignored) == ''
    monkeypatch.setenv('PATH', str(tmp_path))
    assert git_commit_hint(kept) == ''                      # no git


def test_the_difference_is_told_in_metrics(site, capsys):
    site.propose(latencies(CALM))
    site.accept()
    capsys.readouterr()
    assert site.propose(latencies(times(1.04))) == 0
    assert ('osu OsuPt2pt alpha:cpu openmpi embedded '
            f'{INTRA} (5 sessions on 5 days, 2026-11-01 to 2026-11-05; provisional):\n'
            '  latency@8B 1 us +5 % -> 1.04 us +5 % (centre +4.0 %)\n'
            'osu: 1 metrics unchanged, 1 differ') in capsys.readouterr().out
    assert site.propose(latencies(times(1.001))) == 0
    assert 'osu: 2 metrics unchanged, 0 differ' in capsys.readouterr().out


def test_what_people_wrote_stays(site, capsys):
    site.propose(latencies(CALM) + latencies(CALM, params=OTHER))
    site.accept()
    text = site.osu.read_text()
    rows = '# by hand: see #12\n' + text.replace(
        'OsuPt2pt:', 'complete: true   # in production\nOsuPt2pt:').replace(
        'latency@8B: [1.0, null, 0.05, us]',
        'latency@8B: [1.0, null, 0.2, us]   # the switch is shared', 1)
    site.osu.write_text(rows)
    inter = site.entry(OTHER)
    capsys.readouterr()
    # Only one of the two test cases ran since.
    site.propose(latencies(times(1.04)))
    assert 'set by hand: kept' not in capsys.readouterr().out
    assert site.accept() == 0
    site.osu.write_text(rows)
    site.propose(latencies(times(1.04), params=OTHER))
    assert '; set by hand: kept' in capsys.readouterr().out
    assert site.accept() == 0
    assert 'latency@8B was set by hand: kept' in capsys.readouterr().out
    text = site.osu.read_text()
    for kept in ('# by hand: see #12', 'complete: true   # in production',
                 '[1.0, null, 0.2, us]   # the switch is shared'):
        assert kept in text
    now = site.entry(OTHER)
    assert now['latency@8B'] == [1.0, None, 0.2, 'us']
    assert now['latency@1B'][0] == 1.04 != inter['latency@1B'][0]
    assert site.entry(INTRA)['latency@8B'] == [1.0, None, 0.05, 'us']
    # It stays by hand: what the suite would write is known.
    site.propose(latencies(times(1.03), params=OTHER))
    site.accept()
    assert site.entry(OTHER)['latency@8B'] == [1.0, None, 0.2, 'us']


def test_every_comment_stays(site):
    """Also of a line that the next proposal makes superfluous."""
    site.propose(latencies(WILD))
    site.accept()
    assert '$no_reference' in site.entry()
    rows = []
    for number, line in enumerate(site.osu.read_text().splitlines()):
        blank = ' ' * (len(line) - len(line.lstrip()))
        rows += [f'{blank}# above {number}.',
                 line + f'   # beside {number}.' * (line[0] != '#')]
    site.osu.write_text('\n'.join([*rows, '# the end.']) + '\n')
    before = re.findall('# (?:above|beside|the) .*[.]', '\n'.join(rows))
    # To no_reference again, and to a tolerance.
    for records in (latencies(WILD), latencies(CALM * 2)):
        site.propose(records)
        assert site.accept() == 0
        text = site.osu.read_text()
        assert [c for c in before if c not in text] == []
        assert '# the end.' in text
    assert '$no_reference' not in site.entry()


def test_what_was_no_reference_is_filled_by_the_next_proposal(site, capsys):
    site.propose(latencies(WILD))
    site.accept()
    assert site.entry()['$no_reference'] == {'latency@8B': 0, 'worst_ratio': 0}
    capsys.readouterr()
    site.propose(latencies(CALM * 2))
    assert ('  latency@8B 1 us no_reference: more sessions would not help -> '
            '1 us +5 % (centre +0.0 %)\n'
            '  worst_ratio no_reference: more sessions would not help -> 1 +20 %\n'
            ) in capsys.readouterr().out
    assert site.accept() == 0
    entry = site.entry()
    assert '$no_reference' not in entry
    assert entry['latency@8B'] == [1.0, None, 0.05, 'us']
    assert entry['worst_ratio'] == [1.0, None, 0.2, '1']
    assert entry['$from']['tolerances'] == {'latency@8B': [1.0, 0.05],
                                            'worst_ratio': [1.0, 0.2]}


def test_an_entry_that_a_person_wrote_stays(site, capsys):
    """It says nothing of where it came from; what it lacks is added."""
    site.folder.mkdir()
    site.osu.write_text(
        'OsuPt2pt:\n  $index: [$partition, $environ, source, params, settings]\n'
        '  alpha:cpu:\n    openmpi:\n      embedded:\n'
        f"        '{INTRA}':\n          '':\n"
        '            latency@8B: [0.9, null, 0.15, us]\n')
    site.propose(latencies(CALM))
    assert '  latency@8B 0.9 us +15 % -> 1 us +5 % (centre +11.1 %); set by ' \
        'hand: kept' in capsys.readouterr().out
    for _ in range(2):                      # and it stays by hand
        assert site.accept() == 0
        assert 'latency@8B was set by hand: kept' in capsys.readouterr().out
        assert site.entry()['latency@8B'] == [0.9, None, 0.15, 'us']
        assert site.entry()['worst_ratio'] == [1.0, None, 0.2, '1']
        site.propose(latencies(times(1.01)))
        capsys.readouterr()


@pytest.mark.parametrize('text', ['OsuPt2pt:\n', 'OsuPt2pt: {}\n',
                                  'complete: true\n'])
def test_an_accepted_file_without_entries_takes_them(site, text):
    site.propose(latencies(CALM))
    site.osu.write_text(text)
    assert site.accept() == 0
    assert site.entry()['latency@8B'] == [1.0, None, 0.05, 'us']


def test_a_new_level_wants_its_reason(site, capsys):
    site.propose(latencies(CALM) + latencies(CALM, params=OTHER))
    site.accept()
    site.propose(latencies(times(1.5)) + latencies(times(1.02),
                                                   params=OTHER))
    assert 'new, worse level: accept needs --reason' in \
        capsys.readouterr().out
    assert site.accept() == 1
    output = capsys.readouterr()
    assert 'the new level of latency@8B is worse' in output.err
    assert '1 test case accepted, 1 left in osu.proposed.yaml' in output.out
    assert site.entry(OTHER)['latency@8B'][0] == 1.02
    assert site.entry(INTRA)['latency@8B'][0] == 1.0
    assert site.entry(INTRA, site.proposal)['latency@8B'][0] == 1.5
    assert site.accept('--reason', 'firmware 2.1') == 0
    assert site.entry(INTRA)['latency@8B'][0] == 1.5
    assert site.entry(INTRA)['$from']['reason'] == 'firmware 2.1'
    assert 'reason' not in site.entry(OTHER)['$from']
    assert not site.proposal.exists()


def test_keys_and_numbers_that_yaml_would_change_stay(site):
    hard = "a='x' b=c++ (d) e: #f"
    for value in (1.5e-07, 2.5e-07):
        assert site.propose(latencies([value] * 5, params=hard, environ='on')) == 0
        proposed = yaml.safe_load(site.proposal.read_text())
        [entry] = proposed['OsuPt2pt']['alpha:cpu']['on']['embedded'].values()
        assert entry['']['latency@1B'] == [value, None, None, 'us']
        assert site.accept('--reason', 'x') == 0
        accepted = yaml.safe_load(site.osu.read_text())
        assert accepted['OsuPt2pt']['alpha:cpu']['on']['embedded'].keys() == {
            r"a='x' b=c\+\+ \(d\) e: #f"}


def test_better_is_no_new_level(site):
    site.propose(latencies(CALM))
    site.accept()
    site.propose(latencies(times(0.5)))
    assert site.accept() == 0


def test_runs_at_a_new_level_failed_and_are_used_when_asked(site, capsys):
    bad = latencies(times(2.0), reference=1.0, upper=0.2, result='fail')
    assert site.propose(bad) == 1
    assert site.propose(bad, '--new-level') == 0
    assert site.entry(file=site.proposal)['latency@8B'][0] == 2.0
    # A guard is another thing: such a run measured nothing sound.
    assert site.propose([make.case('osu_latency', day, 'transport')
                         for day in range(5)], '--new-level') == 1


def test_by_case_and_by_family(site, capsys):
    store = [make.record('operations', 100.0, 64, day=day, family='keyvalue',
                         check='StoreServes', program='valkey', version='8.1')
             for day in range(5)]
    site.propose(latencies(CALM) + latencies(CALM, params=OTHER) + store)
    assert site.accept('--family', 'osu', '--case', 'inter_.ode') == 0
    assert set(names.proposed_files(site.folder)) == {'osu', 'keyvalue'}
    assert site.entry(OTHER) and site.entry(INTRA, site.proposal)
    assert INTRA not in site.osu.read_text()
    assert names.accepted_files(site.folder) == [site.osu]
    assert site.accept('--family', 'osu', '--case', 'no such') == 1
    assert 'no proposed test case matches' in capsys.readouterr().err
    assert site.accept() == 0
    assert not names.proposed_files(site.folder)
    assert [p.name for p in names.accepted_files(site.folder)] == [
        'keyvalue.yaml', 'osu.yaml']
    assert site.accept() == 1
    assert ('no proposal; make one: ./plumb references propose --site '
            in capsys.readouterr().err)
    assert site.accept('--family', 'tao') == 1
    assert "no proposal of family 'tao'" in capsys.readouterr().err


def test_a_broken_accepted_file_is_told_with_its_line(site, capsys):
    site.propose(latencies(CALM))
    site.osu.write_text('a: 1\nb: [1\n')
    before = site.proposal.read_text()
    capsys.readouterr()
    assert site.accept() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f'{site.osu}:3: not YAML' in line
    assert site.proposal.read_text() == before
    site.osu.write_text('OsuPt2pt:\n  $index: [params]\n  a b:\n'
                        '    latency@8B: 3\n')
    assert site.accept() == 2
    assert f'{site.osu}:4: OsuPt2pt: a b: latency@8B: expected [value' in \
        capsys.readouterr().err
    site.osu.write_text('OsuPt2pt:\n  $index: [params]\n')
    assert site.accept() == 1
    assert ('OsuPt2pt: the key $index must be [$partition'
            in capsys.readouterr().err)


def test_a_full_disk_leaves_both_files(site, monkeypatch):
    site.propose(latencies(CALM))
    site.accept()
    site.propose(latencies(times(1.04)))
    before = site.osu.read_text(), site.proposal.read_text()

    def full(*args):
        raise OSError(28, 'No space left on device', 'osu.yaml')
    monkeypatch.setattr('os.replace', full)
    assert site.accept() == 2
    assert (site.osu.read_text(), site.proposal.read_text()) == before


def test_nobody_takes_a_proposal_for_references(site, monkeypatch):
    site.propose(latencies(CALM))
    site.proposal.write_text('no: [yaml')
    commands.refuse_unreadable_reference_files(site.folder)
    assert sites.faults_of_site_files(site.folder.parent, [
        {'family': 'osu', 'check': 'OsuPt2pt'}]) == []


def test_accept_refuses_what_is_no_regular_expression(site):
    with pytest.raises(SystemExit) as end:
        site.accept('--case', '(')
    assert end.value.code == 2
