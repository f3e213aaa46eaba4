"""A rank that calls Optcast's plugin as NCCL does, with data in host memory.

    plugin_rank.py FOLDER COUNT       two ranks that share the folder
"""
from __future__ import annotations

import ctypes
import os
import sys
import time
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_ulong, c_void_p
from pathlib import Path

FLOAT, SUM, HOST = 7, 0, 1
LOGGER = CFUNCTYPE(None, c_int, c_ulong, c_char_p, c_int, c_char_p)


class Collectives(ctypes.Structure):
    """ncclCollNet_v6_t of nccl_net.h; members that are not called are pointers."""
    _fields_ = [
        ('name', c_char_p), ('init', CFUNCTYPE(c_int, LOGGER)),
        ('devices', c_void_p), ('getProperties', c_void_p),
        ('listen', CFUNCTYPE(c_int, c_int, c_void_p, POINTER(c_void_p))),
        ('connect', CFUNCTYPE(c_int, POINTER(c_void_p), c_int, c_int, c_void_p,
                              POINTER(c_void_p))),
        ('reduceSupport', c_void_p),
        ('regMr', CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int,
                            POINTER(c_void_p))),
        ('regMrDmaBuf', c_void_p), ('deregMr', c_void_p),
        ('iallreduce', CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_int,
                                 c_int, c_void_p, c_void_p, POINTER(c_void_p))),
        ('iflush', c_void_p),
        ('test', CFUNCTYPE(c_int, c_void_p, POINTER(c_int), POINTER(c_int))),
        ('closeColl', CFUNCTYPE(c_int, c_void_p)), ('closeListen', c_void_p)]


def must(result: int) -> None:
    if result:
        sys.exit(f'the plugin returned {result}')


def main(folder: Path, count: int) -> None:
    rank = int(os.environ['OMPI_COMM_WORLD_RANK'])
    plugin = Collectives.in_dll(ctypes.CDLL('libnccl-net.so'), 'ncclCollNetPlugin_v6')
    logger = LOGGER(lambda *words: None)
    must(plugin.init(logger))
    handle, listener = ctypes.create_string_buffer(128), c_void_p()
    must(plugin.listen(0, ctypes.addressof(handle), byref(listener)))
    (folder / f'{rank}.new').write_bytes(handle.raw)
    (folder / f'{rank}.new').rename(folder / f'handle{rank}')
    while not (folder / f'handle{1 - rank}').exists():
        time.sleep(0.01)
    handles = [ctypes.create_string_buffer((folder / f'handle{n}').read_bytes(), 128)
               for n in range(2)]
    where, comm = (c_void_p * 2)(*map(ctypes.addressof, handles)), c_void_p()
    must(plugin.connect(where, 2, rank, listener, byref(comm)))
    data, total = (ctypes.c_float * count)(*range(rank, rank + count)), (
        ctypes.c_float * count)()
    regions = [c_void_p(), c_void_p()]
    for buffer, region in zip((data, total), regions, strict=True):
        must(plugin.regMr(comm, ctypes.addressof(buffer), 4 * count, HOST,
                          byref(region)))
    for _ in range(20):
        request, done, size = c_void_p(), c_int(), c_int()
        must(plugin.iallreduce(comm, ctypes.addressof(data), ctypes.addressof(total),
                               count, FLOAT, SUM, *regions, byref(request)))
        while not done.value:
            must(plugin.test(request, byref(done), byref(size)))
    # 2n + 1: exact in 32 bits.
    if list(total) != [2 * n + 1 for n in range(count)]:
        sys.exit('the sums are wrong')
    print(f'rank {rank}: {count} sums are right')
    must(plugin.closeColl(comm))


main(Path(sys.argv[1]), int(sys.argv[2]))
