"""The partitions of a cluster with PBS: its queues and their nodes.

Source of the formats: the manual pages pbsnodes(8B), qstat(1B),
pbs_node_attributes(7B) and pbs_queue_attributes(7B) of OpenPBS 23, and
`encode_to_json` of its pbsnodes.c. `pbsnodes -aj` would print only the free and
total CPUs of each node, but neither its queue nor its other resources.
"""
from __future__ import annotations

import json
import re
from typing import Any

from cli.setup.venv import SetupError
from cli.site.nodes import Node, Partition, short_time_limit

#: State of a node that takes jobs, at once or later -> the same state of Slurm.
STATES = {'free': 'idle', 'busy': 'allocated', 'job-busy': 'allocated',
          'job-exclusive': 'allocated', 'resv-exclusive': 'allocated',
          'job-sharing': 'mixed', 'sleep': 'powered_down',
          'provisioning': 'powering_up', 'wait-provisioning': 'powering_up'}
#: Resource of a node with the model of its GPUs; each site has its own name.
GPU_MODEL = re.compile(r'gpu_?(type|model)', re.I)

_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_STRING_OR_ZERO = re.compile(r'"(?:[^"\\]|\\.)*"|\b0\d+\b')


def parse_partitions(nodes_text: str, queues_text: str) -> list[Partition]:
    """The queues as partitions, also those to which no job can be submitted.

    Queues for some users only are last, and smaller queues are behind larger ones.

    :param nodes_text: output of `pbsnodes -a -F json`
    :param queues_text: output of `qstat -Qf -F json`
    :raises SetupError: an output is not JSON
    """
    hosts: dict[str, list[dict[str, Any]]] = {}
    rows = _load_json(nodes_text, 'pbsnodes').get('nodes', {})
    if rows and not any('resources_available' in row for row in rows.values()):
        raise SetupError('the output of pbsnodes has no resources of nodes; expected '
                         'that of pbsnodes -a -F json, without other options')
    for name, row in rows.items():
        # A host may have several vnodes, for example one per socket.
        hosts.setdefault(_resources(row).get('host', name), []).append(row)
    queues = _load_json(queues_text, 'qstat').get('Queue', {})
    parts = []
    for name, queue in queues.items():
        targets = {name: queue}
        closed = [f'not {key}' for key in ('enabled', 'started')
                  if queue.get(key) == 'False']
        if queue.get('from_route_only') == 'True':
            closed.append('takes jobs only from a queue of type Route')
        if queue.get('queue_type') == 'Route':
            names = str(queue.get('route_destinations', '')).split(',')
            targets = {one: queues[one] for one in names if one in queues}
            if not targets:
                closed.append('none of the queues to which it routes jobs exists here')
        nodes = [_make_node(host, vnodes) for host, vnodes in hosts.items() if any(
            _takes_jobs_of(vnodes[-1], *target) for target in targets.items())]
        if not nodes and not closed:
            closed.append('no node takes jobs of this queue')
        fewest, most = _node_limits(queue, [*targets.values()])
        only_for = [f'{who}s {queue.get(f"acl_{who}s", "")}' for who in (
            'user', 'group') if queue.get(f'acl_{who}_enable') == 'True']
        parts.append(Partition(name, True, most, nodes, fewest, ', '.join(closed),
                               '; '.join(only_for), time_limit=short_time_limit(str(
                                   queue.get('resources_max', {}).get('walltime', '')
                               ))))
    return sorted(parts, key=lambda part: (
        bool(part.only_for), -len(part.nodes), -(part.largest or len(part.nodes))))


def _load_json(text: str, command: str) -> dict[str, Any]:
    # PBS writes numbers with leading zeros, host names such as 1001 or 1e5 as numbers,
    # and backslashes and tabs of comments as they are.
    # A banner of the site may be above them.
    if begin := re.search(r'^\{', text, re.M):
        text = text[begin.start():]
    text = _ESCAPE.sub(lambda match: match[0] if match[1] else r'\\', text)
    text = _STRING_OR_ZERO.sub(
        lambda match: match[0] if match[0].startswith('"') else f'"{match[0]}"', text)
    try:
        return dict(json.loads(text, parse_int=str, parse_float=str, strict=False)
                    ) if text.strip() else {}
    except (ValueError, TypeError) as err:
        raise SetupError(
            f'the output of {command} -F json is not JSON ({err}); '
            + ('with --recorded DIR you can correct it in a file' if begin else
               'its text form and Torque are not supported')) from None


def _resources(vnode: dict[str, Any]) -> dict[str, Any]:
    return vnode.get('resources_available', {})


def _node_limits(queue: dict[str, Any], targets: list[dict[str, Any]]
                 ) -> tuple[int, int]:
    """Fewest and most nodes of a job; 0: no limit.

    :param targets: the queues to which it routes its jobs, or itself
    """
    def limits(key: str) -> list[int]:
        return [int(one.get(key, {}).get('nodect', 0)) for one in (queue, *targets)]

    fewest, most = limits('resources_min'), limits('resources_max')
    return (fewest[0] or min(fewest[1:], default=1) or 1,
            most[0] or (0 if 0 in most[1:] else max(most)))


def _takes_jobs_of(vnode: dict[str, Any], name: str, queue: dict[str, Any]) -> bool:
    """Whether a node takes jobs of a queue.

    Either both are bound to each other, or the node has the resources that the
    queue adds to each request (default_chunk).
    """
    if 'queue' in vnode or queue.get('hasnodes') == 'True':
        return vnode.get('queue') == name
    # Numbers and sizes (235gb) are amounts, not kinds of nodes.
    kinds = {key: value for key, value in queue.get('default_chunk', {}).items()
             if isinstance(value, str) and not value[:1].isdigit()}
    return all(value in str(_resources(vnode).get(key, 'False')).split(',')
               for key, value in kinds.items())


def _make_node(host: str, vnodes: list[dict[str, Any]]) -> Node:
    """A node from its vnodes."""
    states = {word for vnode in vnodes for word in str(vnode.get('state')).split(',')}
    bad = sorted(states - set(STATES))
    gpus = sum(int(_resources(vnode).get('ngpus', 0)) for vnode in vnodes)
    models = {str(value) for vnode in vnodes for key, value in
              _resources(vnode).items() if GPU_MODEL.fullmatch(key)}
    return Node(
        host, ','.join(bad) or STATES[min(states, key=lambda one: one == 'free')],
        str(vnodes[-1].get('comment', '')),
        cpus=sum(int(_resources(vnode).get('ncpus', 0)) for vnode in vnodes),
        gres=':'.join(['gpu', *sorted(models), str(gpus)]) if gpus else '')
