"""The stand-in's networks in numpy, in double precision: the reference of its
outputs (formula in checks/stores/src/ai/standin.c)."""
from __future__ import annotations

import numpy as np

#: Name -> layers, side of a weight matrix, columns.
STACKS = {'tiny': (3, 16, 48), 'small': (10, 128, 256),
          'resnet50': (61, 512, 256)}
#: Columns of X that are side by side in memory.
PANEL = 16


def uniform(first: int, count: int) -> np.ndarray:
    """Values first, first + 1, ... of the stream: float32, -1 to 1."""
    with np.errstate(over='ignore'):
        z = (np.arange(first, first + count, dtype=np.uint64)
             + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return ((z ^ z >> np.uint64(31)) >> np.uint64(40)).astype(
        np.float32) / np.float32(1 << 23) - np.float32(1)


def operations(name: str) -> int:
    """Operations for one image."""
    layers, side, columns = STACKS[name]
    return 2 * layers * side * side * columns


def scores(name: str, images: np.ndarray, classes: int) -> np.ndarray:
    """Scores of the images (n x channels x height x width)."""
    layers, side, columns = STACKS[name]
    weights = (uniform(0, layers * side * side) * np.sqrt(6 / side)).reshape(
        layers, side, side)
    result = []
    for image in images.reshape(len(images), -1).astype(float):
        x = np.zeros(side * columns)
        np.add.at(x, np.arange(image.size) % x.size, image)
        # Panels: [column / PANEL][row][column % PANEL].
        x = x.reshape(columns // PANEL, side, PANEL)
        for layer in range(layers):
            x = weights[layer] @ x
            if layer < layers - 1:
                x = np.maximum(x, 0)
        result.append(x.ravel()[:classes])
    return np.array(result)
