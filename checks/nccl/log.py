"""What NCCL and RCCL tell of themselves (NCCL_DEBUG=INFO). Pure.

The words are those of NCCL 2.12 to 2.30 (`src/init.cc`, `src/misc/param.cc`,
`src/transport/*.cc`) and of aws-ofi-nccl.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

#: How a channel goes: P2P, SHM, NET/IB, NET/Socket, NET/AWS Libfabric,
#: COLLNET/SHARP.
_VIA = re.compile(r' via ((?:NET|COLLNET)/[^/\n]+|P2P|SHM|CUMEM)')
_NETWORK = re.compile(r'Using network (.+)')
_PROVIDER = re.compile(r'Selected [Pp]rovider is ([\w;.+-]+)')
_SET = re.compile(r'\b((?:NCCL|RCCL|OFI_NCCL)_\w+) set (?:by environment )?'
                  r'to (\S+)')
_VERSION = re.compile(r'[NR]CCL version (\d+\.\d+\.\d+)')

#: Parts of NCCL that must tell, with what they cost: lines at the start.
SUBSYSTEMS = 'INIT,NET,ENV'


@dataclass(frozen=True)
class Told:
    """What the logs of a run have in common."""
    version: str
    #: `Using network ...`, and libfabric's provider.
    networks: tuple[str, ...]
    providers: tuple[str, ...]
    #: Transport -> channels.
    channels: dict[str, int]
    #: Variable -> the value that was taken.
    variables: dict[str, str]

    def summary(self) -> str:
        """A few lines that are kept beside the records."""
        lines = [f'version: {self.version or "not told"}',
                 f'network: {", ".join(self.networks) or "not told"}']
        if self.providers:
            lines.append(f'provider: {", ".join(self.providers)}')
        lines += [f'channels via {name}: {number}'
                  for name, number in sorted(self.channels.items())]
        lines += [f'{name}={value}'
                  for name, value in sorted(self.variables.items())]
        return '\n'.join(lines) + '\n'


def told(texts: Iterable[str]) -> Told:
    """What the logs of all processes say."""
    channels: Counter[str] = Counter()
    networks: dict[str, None] = {}
    providers: dict[str, None] = {}
    versions: dict[str, None] = {}
    variables: dict[str, str] = {}
    for text in texts:
        channels.update(via.strip() for via in _VIA.findall(text))
        networks |= dict.fromkeys(
            name.strip() for name in _NETWORK.findall(text))
        providers |= dict.fromkeys(_PROVIDER.findall(text))
        versions |= dict.fromkeys(_VERSION.findall(text))
        variables |= {name: value.rstrip('.')
                      for name, value in _SET.findall(text)}
    return Told(next(iter(versions), ''), tuple(networks), tuple(providers),
                dict(channels), variables)
