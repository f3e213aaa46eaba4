"""The state of a session is the same in all outputs, and none says that a session
which compared nothing is good."""
from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import perflogs_factory as make
import pytest

from postprocess import compare, history, results
from postprocess.regressions import verdict
from postprocess.report import build

NOT_COMPARED = [make.record('latency', 1.0, 8)]
COMPARED = [make.record('latency', 1.0, 8, reference=1.0, upper=0.3,
                        result='pass')]


def page_text(logs, folder) -> str:
    build.main(['--perflogs', str(logs), '--output', str(folder)])
    return (folder / 'index.html').read_text('utf-8')


@pytest.mark.parametrize('records, state', [
    (NOT_COMPARED, 'not compared'), (COMPARED, 'good')])
def test_every_output_has_the_state(tmp_path, capsys, records, state):
    logs, junit, data = tmp_path / 'logs', tmp_path / 'j.xml', tmp_path / 'v.json'
    make.write(logs, records)
    command = ['--perflogs', str(logs)]
    assert verdict.main([*command, '--json', str(data), '--junit', str(junit)]) == 0
    assert f': {state.upper()}' in capsys.readouterr().out
    assert json.loads(data.read_text())['state'] == state
    assert ET.fromstring(junit.read_text())[0].get('name').endswith(
        f': {state.upper()}')
    text = page_text(logs, tmp_path / 'page')
    assert f'<b>{state.upper()}.</b>' in text
    assert ('Nothing failed, and nothing changed.' in text) == (state == 'good')
    for words in ('Nothing failed, and nothing was compared.',
                  'No value was compared yet', './plumb references calibrate'):
        assert (words in text) == (state != 'good'), words


def test_a_session_that_was_killed_is_cut_short_without_an_earlier_one(tmp_path,
                                                                       capsys):
    """Its log has all that is known, and a later session on any test case ends it."""
    make.write(tmp_path / 'logs', COMPARED, ended=False)
    command = ['--perflogs', str(tmp_path / 'logs')]
    assert verdict.main(command) == 1
    assert ': CUT SHORT: it ended early. ' in capsys.readouterr().out
    assert build.main([*command, '--output', str(tmp_path / 'page')]) == 1
    assert '<b>CUT SHORT.</b>' in (tmp_path / 'page' / 'index.html').read_text('utf-8')
    make.write(tmp_path / 'logs', [make.record(
        'latency', 1.0, 8, day=1, reference=1.0, upper=0.3, result='pass')])
    assert verdict.main(command) == 0


@pytest.mark.parametrize('records, code', [(NOT_COMPARED, 3), (COMPARED, 0)])
def test_a_pipeline_can_require_a_comparison(tmp_path, records, code):
    make.write(tmp_path, records)
    assert verdict.main(['--perflogs', str(tmp_path), '--require-compared']) == code


def place(result: str, guard: str = '') -> results.Result:
    return results.Result(*['x'] * 10, session='r', result=result, guard=guard)


@pytest.mark.parametrize('outcomes, more, state', [
    (['pass', 'no_reference'], {}, 'good'),
    (['no_reference', 'inconclusive'], {}, 'not compared'),
    (['no_reference'], {'compared': True}, 'good'),
    (['pass'], {'incomplete': True}, 'degraded'),
    (['pass', 'flaky'], {}, 'degraded'),
    (['pass', 'missing'], {}, 'degraded'),
    (['pass', 'inconclusive'], {}, 'good'),
    (['pass'], {'ended_early': True}, 'cut short'),
    (['pass', 'flaky'], {'regressed': True, 'ended_early': True}, 'regressed'),
    (['pass', 'fail'], {'regressed': True, 'ended_early': True}, 'failed'),
    (['not_run'], {}, 'failed'),
    ([], {'broken': True}, 'failed')])
def test_the_worst_of_a_session_is_its_state(outcomes, more, state):
    assert results.session_state(
        [*map(place, outcomes)], **{'regressed': False, 'compared': False, **more}
    ) == state
    assert results.exit_code_of_state(state) == (state not in ('good', 'not compared'))


def test_a_test_case_that_did_not_end_cuts_the_session_short():
    assert results.session_state([place('not_run', 'cancelled'), place('pass')],
                                 regressed=False, compared=False) == 'cut short'


@pytest.mark.parametrize('source, name', [
    ('embedded', 'osu_latency (embedded) intra_node'),
    ('spack', 'osu_latency intra_node')])
def test_every_output_says_if_a_program_is_embedded(tmp_path, capsys, source, name):
    logs = tmp_path / 'logs'
    make.write(logs, [
        make.record('latency', 1.0 + day, size, day=day, source=source,
                    program=program, params=f'program={program} placement=intra_node',
                    reference=2.0, upper=0.5, result='fail' if day == 3 else 'pass')
        for day in (1, 2, 3) for size in (1, 8, 64)
        for program in ('osu_latency', 'osu_latency_mt')])
    command = ['--perflogs', str(logs)]
    verdict.main(command)
    assert name in capsys.readouterr().out
    history.main(['latency', *command])
    assert name in capsys.readouterr().out
    compare.main(['2026-11-02', '2026-11-03', *command, '--all'])
    assert name in capsys.readouterr().out
    text = page_text(logs, tmp_path / 'page')
    assert name in text
    # A series of a plot, in its description.
    assert f'{name.removesuffix(" intra_node")}: ' in text
