"""A session with inconclusive test cases: how many for which cause, and what to do."""
from __future__ import annotations

import perflogs_factory as make

from checks.machine import nodes
from cli.session import commands, table
from postprocess.regressions import inconclusive, verdict
from postprocess.report import build as report


def interference(share: float, **seconds: float) -> str:
    """The reason that a check writes."""
    busiest = tuple((name, 'alice', 4711, time) for name, time in seconds.items())
    node = nodes.Node('n1', 2, 2, 10.0, 20.0, 0.0, 8.0, 0.0, sum(seconds.values()),
                      busiest)
    return node.describe_interference(share)


def write_busy_session(folder) -> None:
    reasons = [interference(.06, firefox=2.0),
               interference(.24, firefox=3.0, python3=1),
               interference(.61, python3=1.5), 'too few CPUs: 4 threads shared 2 CPUs; '
               + interference(.3, firefox=1.0), '']
    make.write(folder, [make.record(
        size=8, params=f'n={number}', system='local', inconclusive=reason)
        for number, reason in enumerate(reasons)])


OTHERS = 'local: 3 of 5 test cases: other programs used the CPUs'


def test_a_cause_is_printed_once_with_what_to_do(tmp_path, capsys):
    write_busy_session(tmp_path)
    assert verdict.main(['--perflogs', str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert OTHERS in out and 'end these programs' in out, out
    assert out.count('other programs used') == out.count('too few CPUs') == 1
    assert 'nothing was compared: 4 inconclusive, 1 without a reference, and' in out


def test_the_page_begins_with_the_cause(tmp_path):
    write_busy_session(tmp_path / 'logs')
    assert report.main(['--perflogs', str(tmp_path / 'logs'),
                        '--output', str(tmp_path)]) == 0
    text = (tmp_path / 'index.html').read_text('utf-8')
    header = text[text.index('<header>'):text.index('</header>')]
    assert OTHERS in header, header
    assert '<b>Inconclusive.</b>' in header


def test_the_table_has_the_cause_once_and_with_all_each_reason(capsys):
    rows = [table.Row(name, 'inconclusive', '1 s', interference(share, firefox=9.0))
            for name, share in (('a', .2), ('b', .3))]
    commands.print_results(rows)
    assert capsys.readouterr().out.count('other programs used the CPUs') == 1
    commands.print_results(rows, every=True)
    assert capsys.readouterr().out.count('s of CPU time on n1 during the job') == 2


def test_every_reason_of_a_check_has_a_cause():
    known = {cause for _, cause, _ in inconclusive.CAUSES}
    assert {inconclusive.short_reason(reason) for reason in (
        interference(.1, a=1.0), '4 threads shared 2 cores',
        'too few CPUs: 1 server and 2 clients shared 2 CPUs',
        'limited by the load generator, not by the store: give the clients more CPUs',
        '4 ranks per node shared 2 GPUs', '2 ranks of n2 shared the GPU 0000:10:00',
    )} == known
