"""The module's networks once more, in numpy: the reference of its outputs.

Written from docs/reference/families/ai-module.md, in double precision
and with another way to convolve. `python -m tests.stores.networks` writes
golden/networks.json.
"""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / 'golden' / 'networks.json'
NAMES = ('tiny', 'small', 'resnet50')


def uniform(first: int, count: int) -> np.ndarray:
    """Values first, first + 1, ... of the stream: float32, -1 to 1."""
    with np.errstate(over='ignore'):
        z = (np.arange(first, first + count, dtype=np.uint64)
             + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return ((z ^ z >> np.uint64(31)) >> np.uint64(40)).astype(
        np.float32) / np.float32(1 << 23) - np.float32(1)


def picture(shape: tuple[int, ...]) -> np.ndarray:
    """The input of the reference, -1 to 1; its values end on 1/1024."""
    index = np.arange(np.prod(shape), dtype=np.int64)
    return ((index * 7919 % 2048 - 1024) / 1024).astype(
        np.float32).reshape(shape)


def padded(image: np.ndarray, pad: int, value: float) -> np.ndarray:
    return np.pad(image, ((0, 0), (0, 0), (pad, pad), (pad, pad)),
                  constant_values=value)


def windows(image: np.ndarray, size: int, stride: int) -> np.ndarray:
    """[n][channel][row][column][y][x] of the windows."""
    return np.lib.stride_tricks.sliding_window_view(
        image, (size, size), (2, 3))[:, :, ::stride, ::stride]


class Network:
    """Runs layer after layer, and counts weights and operations."""

    def __init__(self) -> None:
        self.used = self.flops = 0

    def convolve(self, image: np.ndarray, outputs: int, size: int = 1,
                 stride: int = 1, relu: bool = False, gain: float = 1,
                 around: np.ndarray | float = 0) -> np.ndarray:
        channels = image.shape[1]
        each = channels * size * size
        scale = np.float32(np.float32(gain) * np.sqrt(6 / each))
        weights = uniform(self.used, each * outputs) * scale
        bias = uniform(self.used + each * outputs, outputs) * np.float32(.1)
        self.used += (each + 1) * outputs
        seen = windows(padded(image, size // 2, 0), size, stride)
        out = np.tensordot(seen, weights.astype(float).reshape(
            outputs, channels, size, size), ((1, 4, 5), (1, 2, 3)))
        out = out.transpose(0, 3, 1, 2) + bias.astype(
            float)[:, None, None] + around
        self.flops += 2 * each * out[0].size
        return np.maximum(out, 0) if relu else out

    def bottleneck(self, image: np.ndarray, middle: int, stride: int,
                   project: bool) -> np.ndarray:
        around = self.convolve(image, 4 * middle, 1, stride,
                               gain=.75) if project else image
        image = self.convolve(image, middle, relu=True)
        image = self.convolve(image, middle, 3, stride, relu=True)
        return self.convolve(image, 4 * middle, relu=True, gain=.5,
                             around=around)

    def pool(self, image: np.ndarray) -> np.ndarray:
        return windows(padded(image, 1, -np.inf), 3, 2).max((4, 5))

    def head(self, image: np.ndarray, classes: int) -> np.ndarray:
        mean = image.mean((2, 3), keepdims=True)
        return self.convolve(mean, classes, gain=.75)[:, :, 0, 0]

    def tiny(self, image: np.ndarray) -> np.ndarray:
        image = self.pool(self.convolve(image, 6, 3, relu=True))
        image = self.bottleneck(image, 5, 2, True)
        return self.head(self.bottleneck(image, 5, 1, False), 10)

    def small(self, image: np.ndarray) -> np.ndarray:
        image = self.pool(self.convolve(image, 16, 7, 2, relu=True))
        for outputs in (32, 64, 128):
            image = self.convolve(image, outputs, 3, 2, relu=True)
        return self.head(image, 1000)

    def resnet50(self, image: np.ndarray) -> np.ndarray:
        image = self.pool(self.convolve(image, 64, 7, 2, relu=True))
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                image = self.bottleneck(
                    image, 64 << stage, 2 if stage and not block else 1,
                    not block)
        return self.head(image, 1000)


def shape_of(name: str) -> tuple[int, ...]:
    return (1, 3, 16, 16) if name == 'tiny' else (1, 3, 224, 224)


def computed(name: str, image: np.ndarray | None = None
             ) -> tuple[np.ndarray, int]:
    """Scores of the images (of the picture), and operations for one."""
    network = Network()
    out = getattr(network, name)(
        picture(shape_of(name)) if image is None else image)
    return out, network.flops


def write() -> None:
    result = {}
    for name in NAMES:
        scores, flops = computed(name)
        # Every hundredth of a thousand.
        result[name] = {'flops': flops, 'scores': [
            float(f'{score:.9g}') for score in
            scores[0][::1 if scores.shape[1] < 100 else 100]]}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    write()
