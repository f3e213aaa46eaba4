"""NICs and GPUs of config/hardware.yaml, by model.

A site lists its models and their numbers once; ReFrame's `devices` and the
physical limits both follow from them::

    NODE = hardware.reframe_devices(('H100-SXM5-80GB', 8), ('ConnectX-7-NDR400', 8))
    {'devices': NODE, 'extras': hardware.bandwidth_extras(NODE)}

Models that the table lacks are in hardware.yaml of the site's folder, in the
same form. A site with such a file passes `site=__file__` to both functions.
"""
from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from config import strict

TABLE = Path(__file__).resolve().parents[2] / 'config' / 'hardware.yaml'

#: Required and optional keys of a row.
KEYS = {'gpu': ({'arch', 'link', 'source', 'date'},
                {'effective', 'detect', 'mesh', 'nvls'}),
        'nic': ({'arch', 'rate', 'source', 'date'}, {'one_flow', 'detect'})}


class HardwareError(ValueError):
    """A model that is not in the table, or a table that is broken."""


def models_by_name(site: str | os.PathLike[str] | None = None
          ) -> dict[str, dict[str, Any]]:
    """Every model by its name, with its `type`: gpu or nic.

    :arg site: a site's folder, or a file in it; its own models are added.
    :raises HardwareError: a row with a missing or an unknown key.
    """
    rows = _read_models(TABLE)
    if site is not None:
        folder = Path(site) if Path(site).is_dir() else Path(site).parent
        path = folder / TABLE.name
        own = _read_models(path) if path.is_file() else {}
        for name in set(own) & set(rows):
            raise HardwareError(f'{path}: {name} is already in config/'
                                f'{TABLE.name}: remove it from the first '
                                'file, or rename it there')
        rows = {**rows, **own}
    return rows


@functools.cache
def _read_models(path: Path) -> dict[str, dict[str, Any]]:
    """The models of one file."""
    try:
        data = strict.load_yaml(path) or {}
    except strict.Fault as err:
        raise HardwareError(str(err)) from None
    rows = {}
    for kind, models in data.items():
        if kind not in KEYS or not isinstance(models, dict):
            raise HardwareError(f'{path}: {kind}: expected the key gpu or '
                                'nic, with models below it')
        must, may = KEYS[kind]
        for name, row in models.items():
            wrong = (must - set(row)) | (set(row) - must - may)
            if wrong:
                raise HardwareError(f'{path}: {name}: missing or unknown '
                                    f'keys: {", ".join(sorted(wrong))}')
            rows[name] = {'type': kind, **row}
    return rows


def find_model(name: str, site: str | os.PathLike[str] | None = None
          ) -> dict[str, Any]:
    """The row of a model.

    :raises HardwareError: unknown; with the nearest models of the table.
    """
    known = models_by_name(site)
    if name not in known:
        raise HardwareError(
            f'unknown NIC or GPU {name!r}: the nearest in config/'
            f'{TABLE.name} are {", ".join(closest_names(name, known))}; add a row '
            "for it there, or in a file hardware.yaml beside system.py; then call "
            'the functions of hardware with site=__file__')
    return known[name]


def closest_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three models with a similar name, the nearest first.

    Upper and lower case are not distinguished.
    """
    names = {each.lower(): each for each in known}
    return [names[each] for each in difflib.get_close_matches(
        name.lower(), names, 3, 0)]


def recognise_model(kind: str, words: str, rate: float = 0) -> str | None:
    """The model in a tool's output; None if it is not in the table.

    :arg kind: gpu or nic.
    :arg rate: a NIC's rate in Gb/s from the tool; it must match.
    """
    # Slurm's AutoDetect: nvidia_h100_80gb_hbm3.
    words = words.replace('_', ' ')
    return next((name for name, row in models_by_name().items()
                 if row['type'] == kind and 'detect' in row
                 # A GH200 is not an H200.
                 and re.search(rf'(?<!\w){re.escape(row["detect"])}', words, re.I)
                 and row.get('rate', rate) == rate), None)


def reframe_devices(*models: tuple[str, int],
                    site: str | os.PathLike[str] | None = None
            ) -> list[dict[str, Any]]:
    """ReFrame's `devices` of a node, from pairs of model and number."""
    return [{'type': find_model(name, site)['type'],
             'arch': find_model(name, site)['arch'],
             'model': name, 'num_devices': number} for name, number in models]


def bandwidth_extras(devices_of_node: Iterable[Mapping[str, Any]],
                     site: str | os.PathLike[str] | None = None) -> dict[str, float]:
    """The extras of a partition that follow from its devices, in MB/s."""
    rows = [(find_model(d['model'], site), d['num_devices']) for d in devices_of_node]
    nics = [(row['rate'] * 125, number, row) for row, number in rows
            if row['type'] == 'nic']        # 1 Gb/s is 125 MB/s
    gpus = [(row['link'] * 1000, number - 1 if row.get('mesh') else 1)
            for row, number in rows if row['type'] == 'gpu']
    result = {}
    if nics:
        result['nic_bandwidth'] = sum(rate * number for rate, number, _ in
                                      nics)
        if not any(row.get('one_flow') for *_, row in nics):
            result['one_nic_bandwidth'] = min(rate for rate, *_ in nics)
    if gpus:
        result['gpu_link_bandwidth'] = max(link for link, _ in gpus)
        # With a switch all links go to it; without one, some go to each of
        # the other GPUs.
        result['gpu_bandwidth'] = max(link * others for link, others in gpus)
    return result


def published_machine(name: str, machine: str, arch: str, cores: int, **own: Any
                      ) -> dict[str, Any]:
    """A partition of Slurm for published values: nodes with one thread per core.

    Their line rate is in no table here, so that they have no NIC that limits values.

    :param own: what the site sets: launcher, access, environs, extras
    """
    return {'name': name, 'descr': f'{machine}, as in published values',
            'scheduler': 'slurm',
            'sched_options': {'slurm_envvar_whitelist': ['SBATCH_ACCOUNT']},
            'processor': {'arch': arch, 'num_cpus': cores, 'num_cpus_per_core': 1},
            'devices': [], **own}
