"""Files in the format of torch.jit.save, written without torch.

A file is an archive with the source of a module, its weights, and a pickle
that refers to them. The AI module with libtorch loads them: its own networks as
TorchScript with the same weights, and a script like the original's
(docs/reference/families/ai-module.md).
"""
from __future__ import annotations

import io
import pickle
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

#: The functions that SmartSim-Scaling's script has, in TorchScript.
SCRIPT = '''
def normalised(image):
    mean = torch.zeros([3]).float()
    deviation = torch.zeros([3]).float()
    mean[0], mean[1], mean[2] = 0.485, 0.456, 0.406
    deviation[0], deviation[1], deviation[2] = 0.229, 0.224, 0.225
    mean = mean.unsqueeze(1).unsqueeze(1)
    deviation = deviation.unsqueeze(1).unsqueeze(1)
    planes = image.permute(2, 0, 1).float().div(255)
    return ((planes - mean) / deviation).unsqueeze(0)

def pre_process_3ch(image):
    return normalised(image)

def pre_process_4ch(image):
    return normalised(image[:, :, :3])

def post_process(output):
    return output.max(1)[1]
'''

# The file ------------------------------------------------------------------

#: Pickle format, protocol 2: its begin, its end, and the begin of a tuple.
_BEGIN, _END, _MARK = b'\x80\x02', b'.', b'('


def _pickle_text(word: str) -> bytes:
    data = word.encode()
    return b'X' + len(data).to_bytes(4, 'little') + data


def _pickle_integers(numbers: tuple[int, ...]) -> bytes:
    return _MARK + b''.join(b'J' + number.to_bytes(4, 'little')
                            for number in numbers) + b't'


def _pickle_parameter(number: int, array: np.ndarray) -> bytes:
    """The call that makes a tensor of the floats in data/NUMBER."""
    strides = tuple(stride // array.itemsize for stride in array.strides)
    storage = (_MARK + _pickle_text('storage') + b'ctorch\nFloatStorage\n'
               + _pickle_text(str(number)) + _pickle_text('cpu') + b'J'
               + array.size.to_bytes(4, 'little') + b'tQ')
    return (b'ctorch._utils\n_rebuild_tensor_v2\n' + _MARK + storage
            + b'J\0\0\0\0' + _pickle_integers(array.shape) + _pickle_integers(strides)
            + b'\x89ccollections\nOrderedDict\n)RtR')


def torchscript_archive(forward: str, parameters: dict[str, np.ndarray] | None = None
            ) -> bytes:
    """A TorchScript module with one method.

    :arg forward: `def forward(self: __torch__.Net, x: Tensor) -> Tensor:` ...
    :arg parameters: float32 in C order, `self.NAME` of the method.
    """
    given = parameters or {}
    code = ('class Net(Module):\n  __parameters__ = ['
            + ''.join(f'"{name}", ' for name in given)
            + ']\n  __buffers__ = []\n  training : bool\n'
            + ''.join(f'  {name} : Tensor\n' for name in given)
            + ''.join(f'  {line}\n' for line in forward.splitlines()))
    data = (_BEGIN + b'c__torch__\nNet\n)\x81}' + _MARK + _pickle_text('training')
            + b'\x89' + b''.join(
                _pickle_text(name) + _pickle_parameter(number, array)
                for number, (name, array) in enumerate(given.items()))
            + b'ub' + _END)
    out = io.BytesIO()
    with zipfile.ZipFile(out, 'w') as file:
        file.writestr('net/data.pkl', data)
        file.writestr('net/code/__torch__.py', code)
        for number, array in enumerate(given.values()):
            file.writestr(f'net/data/{number}', array.tobytes())
        file.writestr('net/constants.pkl', pickle.dumps((), 2))
        file.writestr('net/version', '10\n')
    return out.getvalue()


# The networks --------------------------------------------------------------

class _Network:
    """The source of a network, layer by layer; an image is a variable's
    name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.parameters: dict[str, np.ndarray] = {}
        self.channels = {'x': 3}
        #: Number of weights taken from the stream so far.
        self.used = 0

    def uniform_weights(self, count: int, scale: float) -> np.ndarray:
        """The next weights; the formula is that of src/ai/network.c."""
        import numpy as np
        at = np.arange(self.used + 1, self.used + count + 1, dtype=np.uint64)
        self.used += count
        z = at * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        z = (z ^ z >> np.uint64(31)) >> np.uint64(40)
        return (z.astype(np.float32) / np.float32(1 << 23) - np.float32(1)
                ) * np.float32(scale)

    def add_assignment(self, value: str, channels: int) -> str:
        name = f'v{len(self.lines)}'
        self.lines.append(f'{name} = {value}')
        self.channels[name] = channels
        return name

    def add_convolution(self, image: str, outputs: int, size: int = 1,
                        stride: int = 1, relu: bool = True, gain: float = 1,
                        around: str = '') -> str:
        channels, number = self.channels[image], len(self.parameters) // 2
        each = channels * size * size
        self.parameters[f'w{number}'] = self.uniform_weights(
            outputs * each, gain * (6 / each) ** 0.5).reshape(
                outputs, channels, size, size)
        self.parameters[f'b{number}'] = self.uniform_weights(outputs, 0.1)
        value = (f'torch.conv2d({image}, self.w{number}, self.b{number}, '
                 f'[{stride}, {stride}], [{size // 2}, {size // 2}])')
        if around:
            value = f'torch.add({value}, {around})'
        return self.add_assignment(f'torch.relu({value})' if relu else value, outputs)

    def add_bottleneck(self, image: str, middle: int, stride: int, project: bool
                   ) -> str:
        around = self.add_convolution(image, 4 * middle, 1, stride, relu=False,
                                      gain=0.75) if project else image
        image = self.add_convolution(image, middle)
        image = self.add_convolution(image, middle, 3, stride)
        return self.add_convolution(image, 4 * middle, gain=0.5, around=around)

    def add_max_pooling(self, image: str) -> str:
        return self.add_assignment(f'torch.max_pool2d({image}, [3, 3], [2, 2], '
                                   '[1, 1])', self.channels[image])

    def add_classifier(self, image: str, classes: int) -> str:
        mean = self.add_assignment(f'torch.mean({image}, [2, 3], True)',
                                   self.channels[image])
        scores = self.add_convolution(mean, classes, relu=False, gain=0.75)
        return self.add_assignment(f'torch.flatten({scores}, 1)', classes)

    def tiny(self) -> str:
        image = self.add_max_pooling(self.add_convolution('x', 6, 3))
        image = self.add_bottleneck(image, 5, 2, True)
        return self.add_classifier(self.add_bottleneck(image, 5, 1, False), 10)

    def small(self) -> str:
        image = self.add_max_pooling(self.add_convolution('x', 16, 7, 2))
        for outputs in (32, 64, 128):
            image = self.add_convolution(image, outputs, 3, 2)
        return self.add_classifier(image, 1000)

    def resnet50(self) -> str:
        image = self.add_max_pooling(self.add_convolution('x', 64, 7, 2))
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                image = self.add_bottleneck(
                    image, 64 << stage, 2 if stage and not block else 1,
                    not block)
        return self.add_classifier(image, 1000)


def torchscript_network(name: str) -> bytes:
    """One of aimodule.NETWORKS as TorchScript; resnet50 has 102 MB."""
    made = _Network()
    result = getattr(made, name)()
    return torchscript_archive('\n  '.join([
        'def forward(self: __torch__.Net, x: Tensor) -> Tensor:',
        *made.lines, f'return {result}']), made.parameters)
