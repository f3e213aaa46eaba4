"""Each guard sees its fault (DESIGN, contract 5): on records of a run."""
from __future__ import annotations

import types

import pytest
from reframe.core.exceptions import SanityError

from checks.core import base, features, guards, limits, record, references
from checks.machine import gpus
from checks.osu import sockets
from config import places

GOOD = '1\t0\t2.5\t1.0\t0.5\n'


def stage(tmp_path, tsv=GOOD, err='plumbline-rank a\n' * 2):
    (tmp_path / 'runs.tsv').write_text(tsv)
    for name in ('run.1', 'run.2'):
        (tmp_path / f'{name}.out').write_text('out')
        (tmp_path / f'{name}.err').write_text(err)
    return tmp_path


def job(**more):
    return types.SimpleNamespace(**{
        'jobid': 7, 'nodelist': ['n1'], 'state': 'SUCCESS', 'signal': None,
        'exitcode': 0, 'time_limit': 600, 'max_pending_time': 60,
        'stderr': '/none', **more})


def refused(guard, call, *args):
    with pytest.raises(SanityError) as err:
        call(*args)
    assert str(err.value).startswith(f'{guard}: ')
    assert '\n' not in str(err.value)
    return str(err.value)


def test_an_exit_code_that_was_a_signal():
    words = refused('exit_code', guards.check_job_state, job(exitcode=137))
    assert 'killed by signal 9' in words


def test_a_job_that_never_started():
    words = refused('pending', guards.check_job_state, job(
        state='CANCELLED', exitcode=None, nodelist=[]))
    assert 'max_pending_time is 60 s' in words


def test_time_limit_that_only_stderr_tells(tmp_path):
    output = tmp_path / 'err'
    output.write_text('slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT '
                      '2026-11-21T12:11:00 DUE TO TIME LIMIT ***\n')
    refused('time_limit', guards.check_job_state, job(
        state='COMPLETED', exitcode=None, stderr=output))


@pytest.mark.parametrize('guard, change', [
    ('time_limit', {'state': 'TIMEOUT'}),
    ('job_state', {'state': None}),
])
def test_job(guard, change):
    assert 'n1' in refused(guard, guards.check_job_state, job(**change))


@pytest.mark.parametrize('tsv', [
    '', 'garbage\n', GOOD + GOOD, GOOD + GOOD.replace('1', '2', 1)])
def test_each_repetition_has_its_line(tmp_path, tsv):
    refused('runs', guards.read_repetitions, tmp_path, 1)
    refused('runs', guards.read_repetitions, stage(tmp_path, tsv), 1)


def test_a_job_that_started_twice(tmp_path):
    guards.check_started_once(tmp_path, job())
    (tmp_path / 'again.X1').mkdir()
    words = refused('runs', guards.check_started_once, tmp_path, job())
    assert 'job 7 was started 2 times' in words


@pytest.mark.parametrize('err', [
    'plumbline-rank a\n' * 3, 'plumbline-rank a\nplumbline-rank b\n'])
def test_ranks(tmp_path, err):
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    refused('ranks', guards.check_rank_count, run, 2, 1)


@pytest.mark.parametrize('err, words', [
    ('plumbline-gpu a 00000000:07:00.0\nplumbline-gpu a 00000000:07:00.0\n',
     'a: 2 ranks use the GPU 00000000:07:00.0'),
    ('plumbline-gpu a 00000000:07:00.0\n',
     '1 of 2 ranks reported their GPU (lines plumbline-gpu'),
    ('', '0 of 2 ranks reported their GPU'),
    ('plumbline-gpu a -\nplumbline-gpu a -\n'
     'Warning: OMB could not identify the local rank of the process.\n',
     'all ranks used the same GPU'),
    ('plumbline-gpu a -\nplumbline-gpu a 00000000:07:00.0\n',
     'a: 1 of 2 ranks did not report the PCI address of their GPU: nvidia-smi or'),
    ('plumbline-gpu a -\nplumbline-gpu a -\n', 'a: 2 of 2 ranks did not report')])
def test_each_rank_needs_a_gpu_of_its_own(tmp_path, err, words):
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    assert words in refused('gpus', gpus.check_rank_gpus, run, 2)


def test_gpus_of_several_nodes_have_the_same_addresses(tmp_path):
    err = 'plumbline-gpu a 00000000:07:00.0\nplumbline-gpu b 00000000:07:00.0\n'
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    gpus.check_rank_gpus(run, 2)


def test_a_rank_that_is_alone_on_its_node_shares_its_gpu_with_none(tmp_path):
    err = 'plumbline-gpu a -\nplumbline-gpu b -\n'
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    gpus.check_rank_gpus(run, 2)


def test_ranks_may_share_gpus_if_the_node_has_fewer(tmp_path):
    err = 'plumbline-gpu a 00000000:07:00.0\n' * 2
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    gpus.check_rank_gpus(run, 2, shared=True)
    refused('gpus', gpus.check_rank_gpus, run, 3, True)


def binding_of(run, extra, threads=1, gpu_lines=False):
    """What a test case of two ranks on a node of eight cores records."""
    check = types.SimpleNamespace(
        current_partition=types.SimpleNamespace(
            processor=types.SimpleNamespace(num_cores=8), features=['gpu_nvidia'],
            select_devices=lambda _: [types.SimpleNamespace(num_devices=2)]),
        partition_launcher_extra_name=lambda: extra, gpus_per_rank=lambda: 1,
        cpus_near_gpus=lambda: ['6-7,4-5', '0-3'], threads=threads,
        num_tasks=2, num_tasks_per_node=2, inconclusive_reasons=[], unchecked=[],
        env_vars={'PLUMBLINE_GPUS': 'cuda'} if gpu_lines else {})
    base.Benchmark.record_and_check_cpu_binding(check, run)
    return check


@pytest.mark.parametrize('ranks, threads, words', [
    ('4-7 4,5,6,7', 1, ''), ('4-7 4,5,6,7', 4, ''),
    # A core is missing: the job has not all of them.
    ('4-6 4,5,6', 1, 'ranks ran on the CPUs 0-3 4-6 instead of 0-3 4-7 (gpu_cores)'),
    ('0-7 0,1,2,3,4,5,6,7', 1, 'instead of 0-3 4-7'),
    # The CPUs of gpu_cores are second threads of the same cores.
    ('4-7 0,1,2,3', 1, 'ranks share cores'),
    ('4-7 4,5,6,7', 5, 'a rank of 5 threads was bound to CPUs 0-3, 4 core(s)')])
def test_ranks_run_on_the_cores_of_their_gpus(tmp_path, ranks, threads, words):
    err = f'plumbline-rank a 0-3 0,1,2,3 0\nplumbline-rank a {ranks} 1\n'
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    if words:
        assert words in refused('binding', binding_of, run, 'gpu_cores', threads)
    else:
        assert binding_of(run, 'gpu_cores', threads).binding == 'a:0-7'


@pytest.mark.parametrize('near, words', [
    ('0-3,8-11', ''), ('', ''),
    ('4-7,12-15', 'a rank ran on the CPUs 0-3, but the CPUs 4-7,12-15 are near its '
     'GPU 00000000:07:00.0: correct gpu_cores')])
def test_cores_that_are_far_from_the_gpu(tmp_path, near, words):
    err = ('plumbline-rank a 0-3 0,1,2,3 0\nplumbline-rank a 4-7 4,5,6,7 1\n'
           f'plumbline-gpu a 00000000:07:00.0 0-3 {near}\n'
           'plumbline-gpu a 00000000:0F:00.0 4-7 4-7\n')
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    if words:
        assert words in refused('binding', binding_of, run, 'gpu_cores', 1, True)
    else:
        binding_of(run, 'gpu_cores', 1, True)


def test_each_rank_has_the_cores_of_its_gpus():
    near = ['24-31', '16-23', '8-15', '0-7']
    assert gpus.cpus_of_ranks(near, 4, 1) == near
    assert gpus.cpus_of_ranks(near, 1, 4) == ['24-31,16-23,8-15,0-7']
    assert gpus.cpus_of_ranks(near, 2, 1) == near[:2]
    # No GPUs of their own, more ranks than GPUs, no gpu_cores.
    assert [gpus.cpus_of_ranks(*args) for args in (
        (near, 4, 0), (near, 5, 1), ([], 4, 1))] == [[], [], []]


@pytest.mark.parametrize('gpu_cores, words', [
    (['0-3', '4-7'], ''),
    (['0-3'], 'write a list with the cores of each of the 2 GPUs'),
    ('0-3', 'write a list'), (['0-3', 'a'], 'write a list'),
    (['0-7', '0-7'], 'two GPUs have the same core')])
def test_faults_of_gpu_cores(gpu_cores, words):
    site = {'systems': [{'name': 'lake', 'partitions': [{
        'name': 'gpu', 'devices': [{'type': 'gpu', 'num_devices': 2},
                                   {'type': 'nic', 'num_devices': 8}],
        'processor': {'num_cpus': 8, 'num_cpus_per_core': 1},
        'extras': {'gpu_cores': gpu_cores}}]}]}
    if words:
        with pytest.raises(features.GlossaryError, match='lake:gpu: gpu_cores: '
                           + words):
            features.check_site_features(site, 'system.py')
    else:
        features.check_site_features(site, 'system.py')


def test_ranks_that_must_report_their_gpu_and_do_not(tmp_path):
    err = 'plumbline-rank a 0 0 0\nplumbline-rank a 1 1 0\n'
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    assert binding_of(run, 'launcher_pin').gpus == ''
    refused('gpus', binding_of, run, 'launcher_pin', 1, True)
    line = 'plumbline-gpu a 07:00.0\n'
    run, = guards.read_repetitions(stage(tmp_path, err=err + line + line.replace(
        '7', '8')), 1)
    assert binding_of(run, 'launcher_pin', 1, True).gpus == 'a:07:00.0,08:00.0'


@pytest.mark.parametrize('ranks, expected, words', [
    (('0', '0'), 2, 'must be on 2 sockets, but was on 0; correct launcher_socket_pin'),
    (('0', '1'), 1, 'must be on 1 socket, but was on 0,1; correct launcher_pin'),
    (('0', ''), 2, 'a rank could not read its socket'),
    (('0', '1'), 2, ''), (('1', '1'), 1, '')])
def test_sockets_of_a_pair(tmp_path, ranks, expected, words):
    err = ''.join(f'plumbline-rank a {n} {n} {socket}\n'
                  for n, socket in enumerate(ranks))
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    if words:
        assert words in refused('binding', sockets.check_sockets_of_pair, run, expected)
    else:
        sockets.check_sockets_of_pair(run, expected)


TOLERANCE = ('plumbline-rank a 0-1 0,1\nplumbline-rank a 2-3 2,3\n',
             # Both threads of each core, and a node that has other numbers.
             'plumbline-rank a 1-2,65-66 1,2\nplumbline-rank b 0-1 0,1\n',
             # One thread of each core, and half a node's cores.
             'plumbline-rank a 0,2 0,2\nplumbline-rank a 4,6 4,6\n')


@pytest.mark.parametrize('err', TOLERANCE)
def test_ranks_that_are_bound(tmp_path, err):
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    guards.check_rank_binding(run, 2, 8)


@pytest.mark.parametrize('err, words', [
    # As 22.05's srun and mpirun --bind-to core did it.
    ('plumbline-rank a 0 0\nplumbline-rank a 1 1\n',
     'a: a rank of 2 threads was bound to CPUs 0, 1 core(s): '),
    # Two threads of one core are no two cores.
    ('plumbline-rank a 0,64 0\nplumbline-rank a 1,65 1\n',
     'a: a rank of 2 threads was bound to CPUs 0,64, 1 core(s): '),
    # TaskPlugin=task/none: one rank on a node, with all of it.
    ('plumbline-rank a 0-1 0,1\nplumbline-rank b 0-7 0,1,2,3,4,5,6,7\n',
     'b: ranks are not bound: they may run on all CPUs (0-7)'),
    # Not all of the node (a cgroup), and yet the same for both.
    ('plumbline-rank a 0-2 0,1,2\nplumbline-rank a 0-2 0,1,2\n',
     'a: ranks share cores, with the CPUs 0-2 0-2: '),
    # One thread of the same core each.
    ('plumbline-rank a 0-1 0,1\nplumbline-rank a 2,9 2,1\n',
     'a: ranks share cores, with the CPUs 0-1 2,9: '),
    ('plumbline-rank a\nplumbline-rank a 0-1 0,1\n',
     'a: a rank could not read which CPUs it may use'),
])
def test_ranks_that_are_not_bound(tmp_path, err, words):
    run, = guards.read_repetitions(stage(tmp_path, err=err), 1)
    assert words in refused('binding', guards.check_rank_binding, run, 2, 8)


@pytest.mark.parametrize('value', [float('nan'), float('inf'), '1.0'])
def test_a_value_is_a_finite_number(value):
    refused('not_finite', guards.check_values_finite, {'latency@8B': value})


def test_a_curve_is_required_at_its_sizes():
    """Without sizes a table that lacks some would pass."""
    text = refused('missing_metric', guards.check_metrics_and_limits, 'osu',
                   {'latency@8B': 1.0}, ['latency'], 'program=osu_latency', {})
    assert "metrics.metric_key('latency', BYTES) for each size" in text


INTRA = 'buffers=host placement=intra_node program=osu_latency'
INTER = INTRA.replace('intra', 'inter')
GPUS = INTRA.replace('host', 'cuda')


@pytest.mark.parametrize('params, metric, value, site, words', [
    # Seen to pass: 1.5 TB/s, and a message within the rounding of the clock.
    (INTRA, 'latency@4194304B', 2.7, {}, '(1.55345e+06 MB/s) is above the'),
    (INTRA, 'latency@1B', 0.01, {}, 'is below the physical limit 0.02'),
    (INTRA, 'latency@1B', 0.02, {},
     'is below the physical limit 0.03: a message moves'),
    (INTRA, 'latency@65536B', 0.15, {}, 'within its caches'),
    (INTRA, 'latency@4194304B', 15.0, {}, 'from and to shared caches'),
    (INTER, 'latency@4194304B', 4.0, {}, 'no node has NICs'),
    (INTER, 'latency@4194304B', 80.0, {'nic_bandwidth': 50000.0},
     'the NICs of the node'),
    (GPUS, 'latency@4194304B', 9.0, {'gpu_link_bandwidth': 450000.0},
     'the links between two GPUs'),
    (GPUS, 'latency@4194304B', 1.0, {}, 'no GPU sends'),
    ('buffers=host layout=1xfull program=osu_bcast', 'latency@1048576B',
     1.0, {}, 'one of two ranks'),
    (INTRA.replace('latency', 'bw'), 'bandwidth@8192B', 5e5, {},
     'no core copies'),
    ('placement=intra_node program=osu_put_bibw synchronisation=pscw '
     'window=allocate', 'bandwidth@8192B', 9e5, {}, 'no two cores'),
])
def test_what_no_path_can_do(params, metric, value, site, words):
    result = limits.exceeded_limits('osu', {metric: value}, params, site)
    assert result and words in result[0], result


@pytest.mark.parametrize('params, metric, value, site', [
    # The fastest of the golden outputs, and metrics of fast hardware.
    ('placement=intra_node program=osu_get_latency synchronisation=flush '
     'window=allocate', 'latency@1B', 0.02, {}),
    (INTRA, 'latency@1B', 0.05, {}), (INTRA, 'latency@65536B', 0.5, {}),
    (INTRA, 'latency@4194304B', 40.0, {}),
    (INTER, 'latency@4194304B', 90.0, {'nic_bandwidth': 50000.0}),
    (GPUS, 'latency@4194304B', 12.0, {'gpu_link_bandwidth': 450000.0}),
    (INTRA.replace('latency', 'bibw'), 'bandwidth@8192B', 6e5, {}),
    (INTER.replace('latency', 'bibw'), 'bandwidth@8192B', 6e5, {}),
])
def test_what_fast_paths_do(params, metric, value, site):
    assert not limits.exceeded_limits('osu', {metric: value}, params, site)


def test_an_open_reference_asks_for_no_metric():
    assert references.parse_reference_table(
        {'latency@8B': [1, None, 0.1, 'us'],
         'steal_cpu': [0.0, None, None, '1']},
        ['latency@8B', 'bandwidth@8B'], 'osu.yaml') == {
            'latency@8B': (1, None, 0.1, 'us')}


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Reads a text as the reference file of a family."""
    monkeypatch.setenv('RFM_REFERENCE_PREFIX', str(tmp_path))

    def load(text, family='osu'):
        references.load_references.cache_clear()
        if text is not None:
            (tmp_path / f'{family}.yaml').write_text(text)
        return references.load_references(family)
    yield load
    references.load_references.cache_clear()


@pytest.mark.parametrize('text, words', [
    ('a: [', 'osu.yaml:[12]'),
    ('', 'osu.yaml:1: expected check classes'),
    ('- 1\n', 'osu.yaml:1: expected check classes'),
    ('OsuPt2pt: 3\n', 'osu.yaml:1: OsuPt2pt: expected check classes'),
    ('OsuPt2pt:\n  x: {}\n', 'osu.yaml:1: OsuPt2pt: .index is missing'),
    ('\ncomplete: 1\n', 'osu.yaml:2: complete: 1 must be true or false'),
    ('complete: true\ncomplete: false\n', "osu.yaml:2: 'complete' "
     'occurs twice here .first in line 1.'),
    ('OsuPt2pt: {}\nOsuRma: {}\nOsuPt2pt: {}\n', "osu.yaml:3: 'OsuPt2pt' "),
    ('OsuPt2pt:\n  $index: [source, params]\n  spack: 3\n',
     'osu.yaml:3: OsuPt2pt: spack: expected a level'),
    ('OsuPt2pt:\n  $index: [source]\n  "spack(": {latency@8B: [1, null, 1, us]}\n',
     'osu.yaml:3: OsuPt2pt: spack.: not a regular expression: missing'),
    ('a: 2026-99-99\n', 'not YAML'),
    ('a: \xa0{', 'osu.yaml:1'),
])
def test_reference_file(loaded, text, words):
    with pytest.raises(references.ReferenceError_, match=words):
        loaded(text)


SOUND = """$from: {OsuPt2pt: {"spack | x=1": {%s}}}
OsuPt2pt:
  $index: [source, params, settings]
  spack: {x=1: {"": {latency@8B: [1.0, null, 0.1, us]}}}
"""


@pytest.mark.parametrize('source, words', [
    ('reasn: x', "x=1: unknown key 'reasn': did you mean reason"),
    ('runs: 3', "unknown key 'runs': use source, date, reason"),
    ('', 'expected source, date, reason'),
    ('reason: 1', 'reason: expected text, got 1'),
    ('source: a paper', 'source and date belong together'),
    ('source: a paper, date: [1]', 'is not a date'),
])
def test_a_bad_source_is_refused(loaded, source, words):
    with pytest.raises(references.ReferenceError_, match=f'osu.yaml:1: .*{words}'):
        loaded(SOUND % source)


def test_a_source_without_its_entry_is_refused(loaded):
    text = SOUND % 'reason: new switch'
    assert loaded(text).sources
    for wrong in (text.replace('"spack | x=1"', '"spack | x=2"'),
                  text.replace('{OsuPt2pt', '{OsuRma')):
        with pytest.raises(references.ReferenceError_,
                           match='osu.yaml:1: .*the file has no entry with these keys'):
            loaded(wrong)


@pytest.mark.parametrize('text, complete', [
    (None, False), ('OsuPt2pt: {}\n', False),
    ('complete: false\n', False), ('complete: true\nOsuPt2pt: {}\n', True)])
def test_a_family_says_whether_its_references_are_complete(loaded, text,
                                                           complete):
    result = loaded(text)
    assert result.complete is complete
    assert 'complete' not in result.checks


ENTRY = """OsuPt2pt:
  $index: [source, params]
  spack:
    x=1:
      latency@1B: [1.0, null, null, us]
      {}
"""
OPEN = 'latency@8B: [1.0, null, null, us]'
TOLERANCE = 'latency@8B: [1.0, null, 0.12, us]'


@pytest.mark.parametrize('lines, words', [
    # What was taken without a word.
    ([TOLERANCE, 'latency@8B: [9.0, null, 9.0, us]'],
     "7: 'latency@8B' occurs twice here"),
    (['latency@8B: [1.0, null, 0.1, ms]'], "unit is 'ms'"),
    ([TOLERANCE, 'latncy@8B: [1.0, null, 0.1, us]'], "did you mean 'latency'"),
    (['latency@8B: 1'], '6: .*expected'),
    (['latency@8B: [1.0, null, 0.1]'], '6: .*expected'),
    (['latency@8B: [.inf, null, 0.1, us]'], '6: .*inf is not a finite number'),
    (['latency@8B: [1.0, null, .nan, us]'], 'nan is not a finite number'),
    (['latency@8B: [0.0, null, 0.1, us]'], '6: .*0.0 has a tolerance'),
    (['latency@8B: [-1.0, null, 0.1, us]'], '-1.0 has a tolerance'),
    (['latency@8B: [1.0, -0.1, null, us]'], 'upper is missing: lower is better'),
    (['latency@8B: [1.0, null, 10.1, us]'], 'upper is 10.1'),
    (['latency@8B: [1.0, -30, 0.3, us]'], 'lower is -30.*a fraction'),
    ([TOLERANCE, 'bandwidth@1B: [1.0, -1, null, MB/s]'], '7: .*lower is -1;'),
    (['latency@8B: ["$xfail", why, [1.0, null, 1000, us]]'],
     'upper is 1000; write a fraction'),
    ([TOLERANCE, '$from: {reason: x}'], '7: .*expected a metric; sources stand in'),
])
def test_a_bad_reference_is_refused_with_its_line(loaded, lines, words):
    with pytest.raises(references.ReferenceError_,
                       match='osu.yaml:' + words if words[0].isdigit()
                       else f'osu.yaml:6.*{words}|osu.yaml:7.*{words}'):
        loaded(ENTRY.format('\n      '.join(lines)))


def test_several_faults_are_counted(loaded):
    with pytest.raises(references.ReferenceError_,
                       match=r'osu.yaml:6: .*\(and 1 more faults\)'):
        loaded(ENTRY.format('latency@8B: [1, null, 50, us]\n      '
                            'latency@9B: [1, null, 50, us]'))


@pytest.mark.parametrize('lines', [
    ['latency@8B: [1.0, -0.5, 9, us]'],             # both sides, by hand
    ['latency@8B: ["$xfail", why, [1.0, null, 0.3, us]]'],
    [OPEN, 'latency_small: [1.0, null, 0.1, us]'],
    [OPEN],
    [TOLERANCE, 'steal_cpu: [0.0, null, null, "1"]'],   # a count may be 0
])
def test_sound_references(loaded, lines):
    result = loaded(ENTRY.format('\n      '.join(lines)))
    assert set(result.checks) == {'OsuPt2pt'}


class OsuPt2pt:
    """A case, as far as references look at one."""
    variant_name = classmethod(lambda cls: cls.__name__)
    family, inconclusive, bringup, emulated = 'osu', '', False, False
    source, version, params = 'spack', '1.0', 'x=1'
    changed_settings = ''

    def __init__(self, dry_run=False, environ='gnu', **more):
        vars(self).update(more)
        self.samples = [] if dry_run else [{}]
        self.current_partition = types.SimpleNamespace(
            name='cpu', fullname='alpha:cpu', features=[], extras={})
        self.current_environ = types.SimpleNamespace(name=environ, extras={})

    def metrics_to_compare(self, values):
        return {'latency@8B'} & set(values)


#: What a case is judged by, of what there is for another one.
LEVELS = """OsuPt2pt:
  $index: [$environ, version, params]
  gnu: {"1.0": {x=1: {latency@8B: [1.0, null, 0.12, us]}}}
"""


@pytest.mark.parametrize('case, lacks', [
    ({}, ''),
    ({'params': 'x=2'}, 'no reference yet'),
    # The file has no level for them.
    ({'changed_settings': 'max_size=64'}, 'no reference yet'),
    # A version that a stack will install is any.
    ({'dry_run': True, 'version': ''}, ''),
    ({'dry_run': True, 'version': '2.0'}, 'no reference yet')])
def test_a_reference_is_that_of_the_same_test_case(loaded, case, lacks):
    loaded(LEVELS)
    check, values = OsuPt2pt(**case), {'latency@1B': 1.0, 'latency@8B': 1.0}
    result, note = references.references_to_compare_and_note(check, values)
    assert note == (f'{lacks}: {places.calibrate_command()}' if lacks else '')
    assert bool(result) is not bool(lacks)


def test_a_level_that_no_test_case_has_is_refused(loaded):
    loaded(LEVELS.replace('version', 'speed'))
    with pytest.raises(references.ReferenceError_,
                       match=r"osu.yaml:2: OsuPt2pt: \$index has 'speed'"):
        references.find_entry(OsuPt2pt())


def test_a_judged_metric_that_an_entry_lacks_is_told_with_its_line(loaded):
    loaded(ENTRY.format('latency@16B: [1.0, null, 0.1, us]').replace(
        'latency@1B', 'latency@32B'))
    with pytest.raises(references.ReferenceError_,
                       match='osu.yaml:4: OsuPt2pt: x=1: no reference for '
                       'the metrics latency@8B'):
        references.references_to_compare_and_note(OsuPt2pt(), dict.fromkeys(
            ['latency@8B', 'latency@16B', 'latency@32B'], 1.0))


def test_a_metric_without_tolerance_is_named(loaded):
    values = dict.fromkeys(['latency@1B', 'latency@8B'], 1.0)
    text = ENTRY.replace('{}', OPEN)
    loaded(text)
    assert references.references_to_compare_and_note(OsuPt2pt(), values)[1] == (
        'no tolerance: latency@8B')
    loaded(text + '      latency_small: [1.0, null, 0.1, us]\n')
    assert references.references_to_compare_and_note(
        OsuPt2pt(), values | {'latency_small': 1.0})[1] == ''


PUBLISHED = """$from:
  OsuPt2pt:
    .* | (?!embedded).* | x=1: {source: data sheet, date: 2025-12}
    gnu | spack | x=2: {source: 'measured: 5 sessions', date: 2026-11-05}
OsuPt2pt:
  $index: [$environ, source, params, settings]
  gnu: {spack: {x=2: {"": {latency@8B: [1.0, null, 0.1, us]}}}}
  .*: {(?!embedded).*: {x=1: {"": {latency@16B: [2.0, null, 1.0, us]}}}}
"""


def test_published_values_serve_until_there_are_own(loaded):
    loaded(PUBLISHED)
    values = dict.fromkeys(['latency@8B', 'latency@16B'], 1.0)

    def compared(**case):
        return references.references_to_compare_and_note(OsuPt2pt(**case), values)
    sheet = {'latency@16B': (2.0, None, 1.0, 'us')}
    # The environment has an entry of another test case.
    assert compared() == (
        sheet, 'published values: data sheet (2025-12); no tolerance: latency@8B')
    assert compared(bringup=True)[0] == sheet
    assert not compared(source='embedded')[0] and not compared(emulated=True)[0]
    assert not compared(changed_settings='max_size=64')[0]
    assert compared(params='x=2')[0] and not compared(params='x=2', bringup=True)[0]
    # Nothing judges it, and its record says that there is a reference.
    assert compared(bringup=True, inconclusive='shared') == (
        {'latency@16B': (2.0, None, None, 'us')}, 'shared')
    loaded(PUBLISHED + '  "gn[u]": {spack: {x=1: {"": {latency@8B: '
           '[3.0, null, 0.1, us]}}}}\n')
    assert compared()[0]['latency@16B'] == (2.0, None, 1.0, 'us'), 'the first pattern'
    loaded(PUBLISHED.replace('{x=2: {"": {latency@8B', '{x=1: {"": {latency@8B'
                             ).replace('spack | x=2', 'spack | x=1'))
    assert compared()[0] == {'latency@8B': (1.0, None, 0.1, 'us')}
    assert compared(bringup=True)[0] == sheet


def test_every_reason_why_a_case_is_unfit_is_kept():
    first = '1 server and 2 clients shared 2 CPUs of n1'
    changed = '8 ranks per node shared 4 GPUs'
    assert record.joined_reasons([first, changed, '', changed, 'x|y took 50 %']) == (
        f'{first}; {changed}; x y took 50 %')


@pytest.mark.parametrize('output, lost', [
    ({'run.1.err': 'srun: error: Node failure on n2\n'}, 'n2'),
    # The script went on elsewhere; or it went down with its node.
    ({'job.err': 'slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT x DUE TO '
      'NODE FAILURE, SEE SLURMCTLD LOG ***\n'}, 'n2 or n3'),
    ({}, 'n1')])
def test_the_node_that_was_lost_is_named(tmp_path, output, lost):
    for name, text in output.items():
        (tmp_path / name).write_text(text)
    text = refused('job_state', guards.check_job_state, job(
        state='NODE_FAIL', nodelist=['n1', 'n2', 'n3'],
        stderr=str(tmp_path / 'job.err')))
    assert f'NODE_FAIL ({lost} was lost)' in text


@pytest.mark.parametrize('code', [1, 137, 233])
def test_a_job_that_ended_before_slurm_ended_it_names_its_lost_node(tmp_path, code):
    (tmp_path / 'run.1.err').write_text('srun: error: Node failure on n2\n')
    text = refused('job_state', guards.check_job_state, job(
        state='FAILED', exitcode=code, nodelist=['n1', 'n2', 'n3'],
        stderr=str(tmp_path / 'job.err')))
    assert 'FAILED (n2 was lost)' in text


def test_a_rank_alone_is_not_asked_how_mpi_went():
    """It sends nothing, and its program may know nothing of MPI."""
    transport = {'name': 'UCX', 'evidence': 'selected pml ucx'}
    check = types.SimpleNamespace(
        num_tasks=1, current_environ=types.SimpleNamespace(
            extras={'transport': transport}))
    assert base.Benchmark.required_transport(check) is None
    check.num_tasks = 2
    assert base.Benchmark.required_transport(check) == transport


@pytest.mark.parametrize('out, err', [
    ('selected pml ucx', ''), ('', 'selected pml ucx')])
def test_the_evidence_of_a_transport_may_be_in_both_outputs(out, err):
    request = {'name': 'UCX', 'evidence': 'selected pml ucx'}

    def check(out, err):
        run = guards.Run(1, 0, 1.0, 1.0, 0.0, out, err, 'run.1')
        guards.check_transport(
            run, request, base.Benchmark.read_transport_log(None, run))

    check(out, err)
    refused('transport', check, '', '')


def test_a_program_that_the_installation_lacks():
    programs = types.SimpleNamespace(
        program_origin=lambda name: {'source': 'system', 'prefix': '/opt/omb'},
        find_installed_programs=lambda prefix: {'osu_bw': f'{prefix}/osu_bw'})
    assert base.Programs.program_path(programs, 'osu_bw') == '/opt/omb/osu_bw'
    words = refused('programs', base.Programs.program_path, programs, 'osu_latency')
    assert 'osu_latency does not exist in /opt/omb; programs that exist: osu_bw' in (
        words)
