"""Files as torch.jit.save writes them, without torch: an archive with the
source of a module, and its parameters as a pickle.

`archive(source)` is what `AI.MODELSTORE key TORCH` takes; `network(name)` one
of the module's own networks (networks.py) as TorchScript.
"""
from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any

import numpy as np

from tests.stores import networks

#: Operations of the pickle format, protocol 2.
PROTO, STOP, MARK = b'\x80\x02', b'.', b'('


def text(word: str) -> bytes:
    data = word.encode()
    return b'X' + len(data).to_bytes(4, 'little') + data


def integers(numbers: tuple[int, ...]) -> bytes:
    return MARK + b''.join(b'J' + number.to_bytes(4, 'little')
                           for number in numbers) + b't'


def parameter(number: int, array: np.ndarray) -> bytes:
    """The call that makes a tensor of floats of the archive's data/NUMBER."""
    strides = tuple(stride // array.itemsize for stride in array.strides)
    size, = array.reshape(-1).shape
    return (b'ctorch._utils\n_rebuild_tensor_v2\n' + MARK
            + MARK + text('storage') + b'ctorch\nFloatStorage\n'
            + text(str(number)) + text('cpu') + b'J'
            + size.to_bytes(4, 'little') + b'tQ'
            + b'J\0\0\0\0' + integers(array.shape) + integers(strides)
            + b'\x89' + b'ccollections\nOrderedDict\n' + b')R' + b'tR')


def archive(forward: str, parameters: dict[str, np.ndarray] | None = None
            ) -> bytes:
    """A module with this method (TorchScript; `self` is its first argument).
    """
    given = {name: np.ascontiguousarray(array, '<f4')
             for name, array in (parameters or {}).items()}
    members = ''.join(f'  {name} : Tensor\n' for name in given)
    names = ''.join(f'"{name}", ' for name in given)
    code = (f'class Net(Module):\n  __parameters__ = [{names}]\n'
            f'  __buffers__ = []\n  training : bool\n{members}'
            + ''.join(f'  {line}\n' for line in forward.splitlines()))
    state = (MARK + text('training') + b'\x89'
             + b''.join(text(name) + parameter(number, array) for
                        number, (name, array) in enumerate(given.items()))
             + b'u')
    data = PROTO + b'c__torch__\nNet\n)\x81}' + state + b'b' + STOP
    out = io.BytesIO()
    with zipfile.ZipFile(out, 'w') as file:
        file.writestr('net/data.pkl', data)
        file.writestr('net/code/__torch__.py', code)
        for number, array in enumerate(given.values()):
            file.writestr(f'net/data/{number}', array.tobytes())
        file.writestr('net/constants.pkl', pickle.dumps((), 2))
        file.writestr('net/version', '10\n')
    return out.getvalue()


class Script(networks.Network):
    """Writes down the layers; an image is the name of a variable here."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.parameters: dict[str, np.ndarray] = {}
        self.channels = {'x': 3}

    def variable(self, value: str, channels: int) -> str:
        name = f'v{len(self.lines)}'
        self.lines.append(f'{name} = {value}')
        self.channels[name] = channels
        return name

    def convolve(self, image: Any, outputs: int, size: int = 1,
                 stride: int = 1, relu: bool = False, gain: float = 1,
                 around: Any = 0) -> Any:
        number = len(self.parameters) // 2
        weights, bias = self.weights(self.channels[image], outputs, size,
                                     gain)
        self.parameters |= {f'w{number}': weights, f'b{number}': bias}
        pad = size // 2
        value = (f'torch.conv2d({image}, self.w{number}, self.b{number}, '
                 f'[{stride}, {stride}], [{pad}, {pad}])')
        if around:
            value = f'torch.add({value}, {around})'
        return self.variable(f'torch.relu({value})' if relu else value,
                             outputs)

    def pool(self, image: Any) -> Any:
        return self.variable(f'torch.max_pool2d({image}, [3, 3], [2, 2], '
                             '[1, 1])', self.channels[image])

    def head(self, image: Any, classes: int) -> Any:
        mean = self.variable(f'torch.mean({image}, [2, 3], True)',
                             self.channels[image])
        return self.variable('torch.flatten('
                             f'{self.convolve(mean, classes, gain=.75)}, 1)',
                             classes)


def network(name: str) -> bytes:
    """One of networks.NAMES."""
    script = Script()
    result = getattr(script, name)('x')
    return archive('\n  '.join([
        'def forward(self: __torch__.Net, x: Tensor) -> Tensor:',
        *script.lines, f'return {result}']), script.parameters)
