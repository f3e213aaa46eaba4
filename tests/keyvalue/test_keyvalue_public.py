"""Forms of saved output that public reports show."""
from __future__ import annotations

import pytest

from checks.core.parsers import ParseError
from checks.keyvalue import parser as keyvalue
from tests.conftest import ROOT

PUBLIC = ROOT / 'tests' / 'data' / 'public' / 'keyvalue'


def test_each_test_of_redis_benchmark_is_kept():
    values = {record.params: record.value for record in keyvalue.parse(
        (PUBLIC / 'k10-set-get.csv').read_text()) if record.metric == 'operations'}
    assert values['operation=set'] == 68493.15
    assert values['operation=get'] == 37383.18
    assert values['operation=lpush'] == 30769.23


@pytest.mark.parametrize('name, line, reason', [
    ('k1-memtier-nan.json', 289, '-nan, as memtier_benchmark 2.1 and older'),
    ('k6-memtier-1.3.txt', 8, 'memtier_benchmark 1.3'),
    ('k7-memtier-resets.txt', 5, 'Connection reset by peer'),
])
def test_public_output_is_refused_with_its_cause(name, line, reason):
    with pytest.raises(ParseError, match=reason) as err:
        keyvalue.parse((PUBLIC / name).read_text())
    assert err.value.line == line
