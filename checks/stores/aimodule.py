"""Build and load the module that answers RedisAI's commands.

Its commands and networks are described in docs/reference/families/smartredis.md.
"""
from __future__ import annotations

import shlex
from pathlib import Path

#: build.sh OUT compiles it.
BUILD = Path(__file__).resolve().parent / 'src' / 'ai' / 'build.sh'

#: The function of the inference check, for the stand-in without libtorch.
SCRIPT = '''# plumbline-kernels 1
def pre_process_3ch(image): ...
'''

#: The same function in TorchScript, as the script of SmartSim-Scaling has it.
TORCHSCRIPT = '''
def pre_process_3ch(image):
    mean = torch.zeros([3]).float()
    deviation = torch.zeros([3]).float()
    mean[0], mean[1], mean[2] = 0.485, 0.456, 0.406
    deviation[0], deviation[1], deviation[2] = 0.229, 0.224, 0.225
    mean = mean.unsqueeze(1).unsqueeze(1)
    deviation = deviation.unsqueeze(1).unsqueeze(1)
    planes = image.permute(2, 0, 1).float().div(255)
    return ((planes - mean) / deviation).unsqueeze(0)
'''


#: Network of the stand-in -> pixels of an image's side, and classes: it takes FLOAT n x
#: 3 x side x side, and returns n x classes.
NETWORKS = {'tiny': (16, 10), 'small': (224, 1000), 'resnet50': (224, 1000)}


def model_blob(network: str) -> bytes:
    """The blob of a network, for AI.MODELSTORE (backend TORCH)."""
    return f'plumbline-network 1 {network}\n'.encode()


def module_build_command(out: str, cc: str = 'cc', model: str = '') -> str:
    """A line of shell that compiles the module to `out`.

    If TORCH_PREFIX is the path of a libtorch, it runs TorchScript as well, and
    ResNet-50 with random weights is written to the file `model`.
    """
    return f'CC={shlex.quote(cc)} {shlex.quote(str(BUILD))} {out} {model}'.rstrip()


def module_load_line(path: str, *, threads: int = 1, inter: int = 1, intra: int = 1
                     ) -> str:
    """The line of a server's configuration that loads it (`Needs.modules`).

    :arg threads: threads of each device (SmartSim's threads per queue).
    :arg inter: operations that one such thread runs at once, and
    :arg intra: threads that share the work of an operation; more than one only with
        libtorch.
    """
    return (f'{path} THREADS_PER_QUEUE {threads} INTER_OP_PARALLELISM {inter} '
            f'INTRA_OP_PARALLELISM {intra}')
