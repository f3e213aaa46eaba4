"""Reader of the logs of NCCL and RCCL (NCCL_DEBUG=INFO).

The patterns are from NCCL 2.12 to 2.30 (`src/init.cc`, `src/misc/param.cc`,
`src/transport/*.cc`) and of aws-ofi-nccl.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

#: Transport of a channel: P2P, SHM, NET/IB, NET/Socket, NET/AWS Libfabric,
#: COLLNET/SHARP.
_VIA = re.compile(r' via ((?:NET|COLLNET)/[^/\n]+|P2P|SHM|CUMEM)')
_NETWORK = re.compile(r'Using network (.+)')
_PROVIDER = re.compile(r'Selected [Pp]rovider is ([\w;.+-]+)')
_SET = re.compile(r'\b((?:NCCL|RCCL|OFI_NCCL)_\w+) set (?:by environment )?'
                  r'to (\S+)')
_VERSION = re.compile(r'[NR]CCL version (\d+\.\d+\.\d+)')

#: Subsystems of NCCL that must log; they only write lines at the start.
SUBSYSTEMS = 'INIT,NET,ENV'


@dataclass(frozen=True)
class LogSummary:
    """Summary of the logs of all processes of a run."""
    version: str
    #: Names after `Using network`, and libfabric's providers.
    networks: tuple[str, ...]
    providers: tuple[str, ...]
    #: Transport -> channels.
    channels: dict[str, int]
    #: Variable -> the value that NCCL used.
    variables: dict[str, str]

    def format_summary(self) -> str:
        """A few lines that are kept beside the records."""
        lines = [f'version: {self.version or "not in the log"}',
                 f'network: {", ".join(self.networks) or "not in the log"}']
        if self.providers:
            lines.append(f'provider: {", ".join(self.providers)}')
        lines += [f'channels via {name}: {number}'
                  for name, number in sorted(self.channels.items())]
        lines += [f'{name}={value}'
                  for name, value in sorted(self.variables.items())]
        return '\n'.join(lines) + '\n'


def summarise_logs(texts: Iterable[str]) -> LogSummary:
    """Summary of the logs of all processes."""
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
    return LogSummary(next(iter(versions), ''), tuple(networks),
                      tuple(providers), dict(channels), variables)
