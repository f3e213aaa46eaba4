"""Metrics of the timed functions of tensorload and of SmartSim-Scaling."""
from __future__ import annotations

#: Mode -> function -> metrics: name, column, factor from seconds.
METRICS: dict[str, dict[str, tuple[tuple[str, str, float], ...]]] = {
    'throughput': {
        'client()': (('client_time', 'p50', 1e3),),
        'put_tensor': (('put_tensor', 'p50', 1e6),
                       ('put_tensor_p99', 'p99', 1e6)),
        'unpack_tensor': (('unpack_tensor', 'p50', 1e6),
                          ('unpack_tensor_p99', 'p99', 1e6)),
        'loop_time': (('loop_time', 'mean', 1),)},
    'inference': {
        'client()': (('client_time', 'p50', 1e3),),
        'warmup': (('warmup_time', 'p50', 1e3),),
        'put_tensor': (('put_tensor', 'p50', 1e6),
                       ('put_tensor_p99', 'p99', 1e6)),
        'run_script': (('run_script', 'p50', 1e3),),
        'run_model': (('run_model', 'p50', 1e3),
                      ('run_model_p99', 'p99', 1e3)),
        'unpack_tensor': (('unpack_tensor', 'p50', 1e6),
                          ('unpack_tensor_p99', 'p99', 1e6)),
        'loop_time': (('loop_time', 'mean', 1),)},
    'producer': {
        'put_dataset': (('put_dataset', 'p50', 1e6),),
        'append_to_list': (('append_to_list', 'p50', 1e6),
                           ('append_to_list_p99', 'p99', 1e6))},
    'consumer': {
        'client()': (('client_time', 'p50', 1e3),),
        'poll_list': (('poll_list', 'p50', 1e3),),
        'get_list': (('get_list', 'p50', 1e3),
                     ('get_list_p99', 'p99', 1e3)),
        'loop_time': (('loop_time', 'mean', 1),)},
}
#: Functions that a rank calls once, not once per iteration.
ONCE = ('client()', 'warmup', 'put_dataset', 'loop_time')
#: Factor from seconds -> unit.
UNITS = {1e6: 'us', 1e3: 'ms', 1: 's'}
