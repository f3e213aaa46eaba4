"""Reader of the logs of NCCL and RCCL (NCCL_DEBUG=INFO).

The pattern is from NCCL 2.12 to 2.30 (`src/transport/*.cc`).
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


def count_channels(texts: Iterable[str]) -> Counter[str]:
    """Transport -> channels of all processes."""
    return Counter(via.strip() for text in texts for via in _VIA.findall(text))
