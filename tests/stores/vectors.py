"""Random argument vectors of every AI.* command, against a real server.

    python -m tests.stores.vectors PORT SEED SECONDS

The same seed sends the same commands.
"""
from __future__ import annotations

import random
import sys
import time

from checks.stores import aimodule
from tests.stores.resp import Client, Error

COMMANDS = (
    'AI.TENSORSET', 'AI.TENSORGET', 'AI.MODELSTORE', 'AI.MODELEXECUTE',
    'AI.SCRIPTSET', 'AI.SCRIPTRUN', 'AI.CONFIG')
KEYS = ('a', 'b', 'm', 's', 't', 'text')
WORDS = (
    'FLOAT', 'DOUBLE', 'INT8', 'INT64', 'UINT16', 'BOOL', 'BLOB', 'META',
    'SOURCE', 'INPUTS', 'OUTPUTS', 'TAG', 'BATCHSIZE', 'GET',
    'MODEL_CHUNK_SIZE', 'TORCH', 'TF', 'CPU', 'CPU:1', 'GPU:0',
    'pre_process_3ch', aimodule.model_blob('tiny'), aimodule.SCRIPT,
    bytes(3072), b'', b'\0\n\r\x1b', 'PK\3\4', '0', '1', '2', '3', '16', '-1',
    '9223372036854775807', '4294967296', '1e308', 'nan')
#: Vectors that are right; words of them are changed.
RIGHT: tuple[tuple[object, ...], ...] = (
    ('AI.TENSORSET', 'a', 'FLOAT', 1, 3, 16, 16, 'BLOB', bytes(3072)),
    ('AI.TENSORSET', 'b', 'FLOAT', 4, 3, 3),
    ('AI.TENSORGET', 'a', 'META', 'BLOB'),
    ('AI.MODELSTORE', 'm', 'TORCH', 'CPU', 'TAG', 't', 'BATCHSIZE', 4,
     'BLOB', aimodule.model_blob('tiny')),
    ('AI.MODELEXECUTE', 'm', 'INPUTS', 1, 'a', 'OUTPUTS', 1, 't'),
    ('AI.SCRIPTSET', 's', 'CPU', 'SOURCE', aimodule.SCRIPT),
    ('AI.SCRIPTRUN', 's', 'pre_process_3ch', 'INPUTS', 'b', 'OUTPUTS', 't'),
    ('AI.CONFIG', 'GET', 'MODEL_CHUNK_SIZE'),
)


def vector(draw: random.Random) -> list[object]:
    if draw.random() < 0.3:
        return [draw.choice(COMMANDS), *(
            draw.choice(draw.choice((KEYS, WORDS)))
            for _ in range(draw.randrange(12)))]
    words = list(draw.choice(RIGHT))
    for _ in range(draw.choice((0, 0, 1, 1, 2, 4))):
        at = draw.randrange(1, len(words) + 1)
        change = draw.randrange(3)
        if change and at < len(words):
            words[at:at + 1] = [] if change == 1 else [draw.choice(
                draw.choice((KEYS, WORDS)))]
        else:
            words.insert(at, draw.choice(WORDS))
    return words


def send(port: int, seed: int, seconds: float = 1e9, maximum: int = 10 ** 9
         ) -> tuple[int, int]:
    """Commands sent, and how many of them were errors.

    :raises ConnectionError: the server is gone.
    """
    draw = random.Random(seed)
    client, control = Client(port), Client(port)
    end = time.monotonic() + seconds
    sent = errors = 0
    while time.monotonic() < end and sent < maximum:
        words = vector(draw)
        sent += 1
        try:
            client(*words)
        except Error as error:
            assert str(error).isprintable(), (words, error)
            errors += 1
        if sent % 50 == 0:
            control(*draw.choice((
                ('FLUSHALL',), ('FLUSHALL', 'ASYNC'), ('SET', 'text', 'x'),
                ('DUMP', 'a'), ('EXPIRE', 'a', 1),
                ('INFO', 'EVERYTHING'), ('MEMORY', 'USAGE', 'm'))))
    control('PING')
    client.close()
    control.close()
    return sent, errors


if __name__ == '__main__':
    print(*send(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
