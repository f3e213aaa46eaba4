"""What a bench starts ends with the bench, however that ends."""
from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_BENCH = os.getpid()


def with_bench() -> None:
    """Has the kernel kill a program when its bench is gone, also by SIGKILL.

    For `preexec_fn`. A program that changes its user loses this.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != _BENCH:                  # gone before that call
        os._exit(1)


def in_order() -> None:
    """Has signals that end a bench leave its `with` and `finally` blocks."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
