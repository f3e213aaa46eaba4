"""Assignment of CPUs to processes; only `available_cpus` reads the machine."""
from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence

#: One logical CPU. (A program in front of each server and client imports this module;
#: `typing` and `pathlib` would take a third of its CPU time.)
Cpu = namedtuple('Cpu', 'numa socket core number')

#: Instances of a role on a node, and the CPUs of each.
CpuRequest = namedtuple('CpuRequest', 'role instances cpus')


def available_cpus(sysfs: str = '/sys/devices/system',
                   allowed: Iterable[int] | None = None) -> list[Cpu]:
    """The CPUs that this process may use, in the order of assignment.

    Without a topology in sysfs (containers), they are plain cores of one
    socket.
    """
    numbers = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    online = parse_cpu_list(read_text(f'{sysfs}/node/online'))
    numa = {number: node for node in online for number in parse_cpu_list(
        read_text(f'{sysfs}/node/node{node}/cpulist'))}

    def make_cpu(number: int) -> Cpu:
        topology = f'{sysfs}/cpu/cpu{number}/topology'
        return Cpu(numa.get(number, 0),
                   int(read_text(f'{topology}/physical_package_id', '0')),
                   int(read_text(f'{topology}/core_id', str(number))), number)

    return sorted(map(make_cpu, numbers))


def parse_cpu_list(text: str) -> list[int]:
    """Parse a CPU list: `0-3,8` is [0, 1, 2, 3, 8]."""
    results: list[int] = []
    for part in filter(None, text.strip().split(',')):
        first, _, last = part.partition('-')
        results += range(int(first), int(last or first) + 1)
    return results


def describe_gpu_cores_fault(gpu_cores: Iterable[str], gpus: int) -> str:
    """The fault of a partition's extra `gpu_cores`; empty: none.

    :arg gpus: GPUs of a node
    """
    try:
        sets = [parse_cpu_list(text) for text in gpu_cores]
    except (AttributeError, TypeError, ValueError):
        sets = []
    if len(sets) != gpus or not all(sets):
        return (f'write a list with the cores of each of the {gpus} GPUs of a node '
                "(devices), as '0-13'")
    numbers = sum(sets, [])
    return ('' if len({*numbers}) == len(numbers) else
            'two GPUs have the same core; divide the cores of a NUMA node among '
            'its GPUs')


def assign_cpus(cpus: Sequence[Cpu], requests: Sequence[CpuRequest]
                ) -> dict[str, list[list[int]]]:
    """CPU sets for all requests on one node, in the order of the requests: role -> one
    list per instance.

    The sets are whole cores if there are enough of them, else single CPUs. An
    instance stays in one NUMA node if that has room. If there are fewer CPUs
    than requested, every instance gets all of them.
    """
    everything = [cpu.number for cpu in cpus]
    return (_assign_units(cpus, requests, lambda cpu: cpu[:3])
            or _assign_units(cpus, requests, lambda cpu: cpu)
            or {request.role: [everything] * request.instances for request in requests})


def _assign_units(cpus: Sequence[Cpu], requests: Sequence[CpuRequest],
                  unit: Callable[[Cpu], tuple]) -> dict[str, list[list[int]]] | None:
    """CPU sets of whole units; None if there are not enough units."""
    free: dict[int, dict[tuple, list[int]]] = {}
    for cpu in cpus:
        free.setdefault(cpu.numa, {}).setdefault(
            unit(cpu), []).append(cpu.number)

    def take_cpus(count: int) -> list[int] | None:
        # One NUMA node with enough room, or as many nodes as necessary.
        room = {numa: sum(map(len, units.values()))
                for numa, units in free.items()}
        fitting = [numa for numa in free if room[numa] >= count]
        taken: list[int] = []
        for numa in fitting[:1] or list(free):
            units = free[numa]
            while units and len(taken) < count:
                taken += units.pop(next(iter(units)))
        return sorted(taken) if len(taken) >= count else None

    sets: dict[str, list[list[int]]] = {}
    for request in requests:
        for _ in range(request.instances):
            taken = take_cpus(request.cpus)
            if taken is None:
                return None
            sets.setdefault(request.role, []).append(taken)
    return sets


def read_text(path: str, default: str = '') -> str:
    """The text of a file without blanks at its ends; the default if it cannot be read.
    """
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return default
