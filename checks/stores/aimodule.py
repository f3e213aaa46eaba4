"""The module that answers RedisAI's commands: how it is built and loaded.

What it answers and computes: src/ai/README.md.
"""
from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

#: build.sh OUT compiles it.
BUILD = Path(__file__).resolve().parent / 'src' / 'ai' / 'build.sh'

#: Where its figures come from, in every record.
SOURCE = 'embedded'

#: A script with all its kernels, as SmartRedis' set_script takes it.
SCRIPT = '''# plumbline-kernels 1
def pre_process_3ch(image): ...
def pre_process_4ch(image): ...
def post_process(output): ...
def copy(*tensors): ...
'''


@dataclass(frozen=True)
class Network:
    """A built-in network: FLOAT n x channels x height x width to n x classes.
    """
    shape: tuple[int, int, int]
    classes: int
    #: Of one image.
    flops: int


NETWORKS = {
    'tiny': Network((3, 16, 16), 10, 115_024),
    'small': Network((3, 224, 224), 1000, 80_939_008),
    'resnet50': Network((3, 224, 224), 1000, 8_178_368_512),
}


def blob(network: str, size: int = 0) -> bytes:
    """A model's blob, as SmartRedis' set_model takes it (backend TORCH).

    :arg size: as many bytes at least; the module ignores what follows the
        first line. Unit: bytes.
    """
    if network not in NETWORKS:
        raise ValueError(f'no network {network}: there are '
                         f'{", ".join(NETWORKS)}')
    return f'plumbline-network 1 {network}\n'.encode().ljust(size, b'\0')


def build_command(out: str, cc: str = 'cc') -> str:
    """A line of shell that compiles the module to `out`.

    Where TORCH_PREFIX names a libtorch, it runs TorchScript as well.
    """
    return f'CC={shlex.quote(cc)} {shlex.quote(str(BUILD))} {out}'


def load_line(path: str, *, threads: int = 1, intra: int = 1,
              emulated_gpus: int = 0) -> str:
    """The line of a server's configuration that loads it (`Needs.modules`).

    :arg threads: for each device (SmartSim's threads per queue).
    :arg intra: threads that share the work of one of those.
    :arg emulated_gpus: devices GPU:0, ... that are CPU threads.
    """
    return (f'{path} THREADS_PER_QUEUE {threads} INTRA_OP_PARALLELISM '
            f'{intra} EMULATE_GPUS {emulated_gpus}')
