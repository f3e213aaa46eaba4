"""Reader of the logs of NCCL and RCCL (NCCL_DEBUG=INFO).

The patterns are from NCCL 2.12 to 2.30 (`src/init.cc`, `src/misc/param.cc`,
`src/transport/*.cc`) and of aws-ofi-nccl.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

#: Subsystems of NCCL that must log; they only write lines at the start.
SUBSYSTEMS = 'INIT,NET,ENV'

#: Transport of a channel: P2P, SHM, NET/IB, NET/Socket, NET/AWS Libfabric,
#: COLLNET/SHARP.
_VIA = re.compile(r' via ((?:NET|COLLNET)/[^/\n]+|P2P|SHM|CUMEM)')
_SET = re.compile(r'\b((?:NCCL|RCCL|OFI_NCCL)_\w+) set (?:by environment )?to (\S+)')
#: Name in the summary -> pattern of its values.
_ABOUT = {'version': re.compile(r'[NR]CCL version (\d+\.\d+\.\d+)'),
          'network': re.compile(r'Using network (.+)'),
          'provider': re.compile(r'Selected [Pp]rovider is ([\w;.+-]+)')}


def count_channels(texts: Iterable[str]) -> Counter[str]:
    """Transport -> channels of all processes."""
    return Counter(via.strip() for text in texts for via in _VIA.findall(text))


def used_variables(texts: Iterable[str]) -> dict[str, str]:
    """Variable -> the value that NCCL used."""
    return {name: value.rstrip('.') for text in texts
            for name, value in _SET.findall(text)}


def format_summary(texts: Iterable[str]) -> str:
    """A few lines about all processes that are kept beside the records."""
    texts = list(texts)
    values = {name: list(dict.fromkeys(
        value.strip() for text in texts for value in pattern.findall(text)))
        for name, pattern in _ABOUT.items()}
    return ''.join(f'{line}\n' for line in (
        *(f'{name}: {", ".join(words) or "not in the log"}'
          for name, words in values.items() if words or name != 'provider'),
        *(f'channels via {name}: {number}'
          for name, number in sorted(count_channels(texts).items())),
        *(f'{name}={value}' for name, value in sorted(used_variables(texts).items()))))
