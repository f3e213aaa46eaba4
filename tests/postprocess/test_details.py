"""Folders of test cases, from the reports of sessions on this machine."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip('pandas')
pytest.importorskip('jinja2')
import perflogs_factory as make

from postprocess import perflogs
from postprocess.report import details, page

RUN = make.record()['run']


def write_report(work: Path, **more: str) -> Path:
    """The report of a session with one test case; returns its stage folder."""
    path = work / 'sessions' / RUN / 'report.json'
    path.parent.mkdir(parents=True)
    stage = work / 'stage' / RUN / 'OsuPt2pt_c0ffee00'
    path.write_text(json.dumps({'runs': [{'testcases': [{
        'partition': 'cpu', 'environ': 'openmpi', 'hashcode': 'c0ffee00',
        'stagedir': str(stage), 'outputdir': str(work / 'output' / RUN),
        'job_stdout': 'rfm_job.out', **more}]}]}))
    return stage


def test_folders_that_exist_are_in_the_page(tmp_path, monkeypatch):
    monkeypatch.setenv('PLUMBLINE_WORK', str(tmp_path))
    stage = write_report(tmp_path)
    make.write(tmp_path / 'perflogs', [make.record()])
    frame = perflogs.read(tmp_path / 'perflogs')
    key = RUN, 'cpu', 'openmpi', 'c0ffee00'
    assert details.folders_of_test_cases([RUN]) == {key: {}}
    stage.mkdir(parents=True)
    (stage / 'rfm_job.out').touch()
    expected = {'stage': str(stage), 'log': str(stage / 'rfm_job.out')}
    assert details.folders_of_test_cases([RUN, 'x']) == {key: expected}
    [test_case] = details.test_case_details(page.Page(frame))
    assert test_case['d'] == expected


@pytest.mark.parametrize('text', ['', '{}', '[]', '{"runs": [{"testcases": [3]}]}'])
def test_a_report_that_is_cut_off_names_no_folder(tmp_path, monkeypatch, text):
    monkeypatch.setenv('PLUMBLINE_WORK', str(tmp_path))
    write_report(tmp_path)
    (tmp_path / 'sessions' / RUN / 'report.json').write_text(text)
    assert details.folders_of_test_cases([RUN]) == {}
