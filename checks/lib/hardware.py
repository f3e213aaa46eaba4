"""config/hardware.yaml: what NICs and GPUs can do, by model.

A site names its models and numbers once; ReFrame's `devices` and the limits
of physics both follow from them::

    NODE = hardware.devices(('H100-SXM5-80GB', 8), ('ConnectX-7-NDR400', 8))
    {'devices': NODE, 'extras': hardware.limits(NODE)}
"""
from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).resolve().parents[2] / 'config' / 'hardware.yaml'

#: Keys of a row: those that it must have, those that it may have.
KEYS = {'gpu': ({'arch', 'link', 'source', 'date'}, {'effective', 'detect'}),
        'nic': ({'arch', 'rate', 'source', 'date'}, {'one_flow', 'detect'})}


class HardwareError(ValueError):
    """A model that is not in the table, or a table that is broken."""


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """Every model by its name, with its `type`: gpu or nic.

    :raises HardwareError: a row with a missing or an unknown key.
    """
    rows = {}
    for kind, models in yaml.safe_load(TABLE.read_text()).items():
        must, may = KEYS[kind]
        for name, row in models.items():
            wrong = (must - set(row)) | (set(row) - must - may)
            if wrong:
                raise HardwareError(f'{TABLE}: {name}: missing or unknown: '
                                    f'{", ".join(sorted(wrong))}')
            rows[name] = {'type': kind, **row}
    return rows


def model(name: str) -> dict[str, Any]:
    """The row of a model.

    :raises HardwareError: unknown; names the nearest one.
    """
    try:
        return table()[name]
    except KeyError:
        near = difflib.get_close_matches(name, table(), 1, 0)
        raise HardwareError(f'unknown model {name!r}: did you mean '
                            f'{near[0]!r}? (config/hardware.yaml)') from None


def recognised(kind: str, words: str, rate: float = 0) -> str | None:
    """The model that a tool's output names; None: none of the table.

    :arg kind: gpu or nic.
    :arg rate: a NIC's rate in Gb/s, as the tool says; it must agree.
    """
    return next((name for name, row in table().items()
                 if row['type'] == kind and row.get('detect', words + '?')
                 in words and row.get('rate', rate) == rate), None)


def devices(*found: tuple[str, int]) -> list[dict[str, Any]]:
    """ReFrame's `devices` of a node: (model, how many) each."""
    return [{'type': model(name)['type'], 'arch': model(name)['arch'],
             'model': name, 'num_devices': number} for name, number in found]


def limits(found: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The extras of a partition that follow from its devices, in MB/s."""
    rows = [(model(d['model']), d['num_devices']) for d in found]
    nics = [(row['rate'] * 125, number, row) for row, number in rows
            if row['type'] == 'nic']        # 1 Gb/s is 125 MB/s
    links = [row['link'] * 1000 for row, _ in rows if row['type'] == 'gpu']
    result = {}
    if nics:
        result['nic_bandwidth'] = sum(rate * number for rate, number, _ in
                                      nics)
        if not any(row.get('one_flow') for *_, row in nics):
            result['one_nic_bandwidth'] = min(rate for rate, *_ in nics)
    if links:
        result['gpu_link_bandwidth'] = max(links)
    return result
