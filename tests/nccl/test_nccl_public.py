"""Forms of saved output that public reports show, and variants of them."""
from __future__ import annotations

import pytest

from checks.core.parsers import ParseError
from checks.nccl import parser as nccl
from tests.conftest import ROOT

PUBLIC = ROOT / 'tests' / 'data' / 'public' / 'nccl'


def text_of(name: str) -> str:
    return (PUBLIC / f'{name}.txt').read_text()


def averages(text: str) -> list:
    return [(record.program, record.value) for output in nccl.parse_log(text)
            for record in output.records if record.metric == 'busbw_average']


@pytest.mark.parametrize('name, want', [
    ('n2-rccl-version-line', [('all_reduce_perf', 12.8754)]),
    ('n3-several-programs', [
        ('all_reduce_perf', 127.879), ('all_gather_perf', 63.9391),
        ('reduce_scatter_perf', 63.9392), ('alltoall_perf', 63.9392)]),
    ('n5b-indented-tag', [('alltoall_perf', 100.959)]),
    ('m3-float', [('all_reduce_perf', 387.383)]),
    ('m4-half', [('all_reduce_perf', 325.554)]),
])
def test_public_output_is_read(name, want):
    assert averages(text_of(name)) == want


@pytest.mark.parametrize('name, line, cause', [
    ('n6-hydra-prefix-in-row', 24, 'Hydra'),
    ('n7-nccl-info-in-row', 40, 'a message of NCCL'),
])
def test_a_damaged_row_is_refused_with_its_cause(name, line, cause):
    with pytest.raises(ParseError, match=cause) as err:
        nccl.parse_log(text_of(name))
    assert err.value.line == line


def test_different_types_are_different_test_cases():
    [single], [half] = map(nccl.parse_log, map(text_of, ('m3-float', 'm4-half')))
    assert (single.params, half.params) == (
        'gpus=8 nodes=1', 'gpus=8 nodes=1 setting=datatype=half')
    assert (single.num_nodes, single.num_tasks) == (1, 8)


@pytest.mark.parametrize('prefix', ['{n}: ', '[1,{n}]<stdout>:', '[n{n}/nccl] ',
                                    '2026-03-10T04:11:07Z rank {n} | '])
def test_a_row_of_another_rank_is_refused(prefix):
    lines = text_of('m3-float').splitlines()
    marked = ''.join(f'{prefix.format(n=int(n == 20))}{line}\n'
                     for n, line in enumerate(lines))
    with pytest.raises(ParseError, match='more than one rank') as err:
        nccl.parse_log(marked)
    assert err.value.line in (21, 22)


def test_comments_and_numbers_of_others_outside_the_table_are_no_damage():
    text = text_of('n2-rccl-version-line')
    around = f'#### job 12 on n001\n#\n{text}# done 12\n'
    assert averages(f'2\n{around}') == averages(text)
    assert averages(around * 2) == averages(text) * 2
