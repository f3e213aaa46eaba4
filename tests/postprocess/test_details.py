"""Folders of measurements, from the reports of sessions on this machine."""
from __future__ import annotations

import json

import perflogs_factory as make

from postprocess.records import folders
from postprocess.records import read as read_records
from postprocess.regressions import verdict
from postprocess.report import details, page


def test_folders_that_exist_are_in_the_page(tmp_path):
    [path] = make.write(tmp_path / 'perflogs', [make.record(measurement='c0ffee')])
    stage = tmp_path / 'stage' / 'OsuPt2pt_c0ffee00'
    report = json.loads(path.read_text())
    report['runs'][0]['testcases'][0] |= {
        'stagedir': str(stage), 'outputdir': str(tmp_path / 'output'),
        'job_stdout': 'rfm_job.out'}
    path.write_text(json.dumps(report))
    frame = read_records(tmp_path / 'perflogs')
    assert folders.folders_of_measurements([str(path)]) == {'c0ffee': {}}
    stage.mkdir(parents=True)
    (stage / 'rfm_job.out').touch()
    expected = {'stage': str(stage), 'log': str(stage / 'rfm_job.out')}
    assert folders.folders_of_measurements([str(path), 'x.log']) == {
        'c0ffee': expected}
    [test_case] = details.test_case_details(page.Page(frame))
    assert test_case['d'] == expected


def test_the_verdict_names_the_log_of_each_failure(tmp_path, capsys):
    [path] = make.write(tmp_path, [make.record(
        'completed', 0.0, guard='exit_code', reason='code 1', params=f'n={number}',
        measurement=f'c0ffee{number}') for number in range(2)])
    report = json.loads(path.read_text())
    stage = tmp_path / 'stage'
    stage.mkdir()
    (stage / 'rfm_job.out').touch()
    report['runs'][0]['testcases'][0] |= {
        'stagedir': str(stage), 'job_stdout': 'rfm_job.out'}
    path.write_text(json.dumps(report))
    log = path.with_suffix('.log')
    log.touch()
    assert verdict.main(['--perflogs', str(tmp_path)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if '; log ' in line]
    # Without a job, ReFrame's log of the session has the reason.
    assert [line.rpartition('; log ')[2] for line in lines] == [
        str(stage / 'rfm_job.out'), str(log)]


def test_the_view_of_a_test_case_has_what_could_not_be_checked(tmp_path):
    make.write(tmp_path, [make.record(day=day, not_checked=text) for day, text in (
        (1, ''), (2, 'validation: the data in the memory of GPUs'))])
    [test_case] = details.test_case_details(page.Page(read_records(tmp_path)))
    assert test_case['k'] == 'validation: the data in the memory of GPUs'
