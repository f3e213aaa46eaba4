"""Broken programs through the real ReFrame: each must end as a failure.

The programs are shell scripts that stand in for OMB and misbehave on
demand (they are started by the real launcher, and their good output is real
output of OMB 7.2); the suite finds them through OMB_PREFIX.
"""
from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import OSU, ROOT, of_family, skip_missing, suite_in

from config.references import ReferenceError_, read
from config.sessions.judged import MEASUREMENTS
from postprocess import perflogs, results

GOLDEN = Path(__file__).parents[1] / 'osu' / 'golden' / '7.2'

SCRIPT = '''#!/bin/bash
# Stands in for an OSU program; $FAULT says how it misbehaves.
case " $* " in *" -c "*) echo "Invalid option [-c]"; exit 1;; esac
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
echo "Using sm btl for send to nobody" >&2
if [ $FAULT = leftover ]; then
    setsid sleep ${LEFT:-987.4} </dev/null >/dev/null 2>&1 &
fi
[ "$rank" = 0 ] || exit 0
# With values of a fast machine: they claim 0.2 s, and that is how long it
# takes. The golden ones are of a slow hour, and would take 50 s.
good() { sleep 0.3; awk '/^[0-9]/ { printf "%-10d%18.2f\\n", $1,
         0.4 + $1 / 200000; next } { print }' "$GOLDEN"; }
case $FAULT in
    none|leftover) good ;;
    slow) touch "$GO"; sleep 2; rm -f "$GO"; good ;;
    exit_code) good; exit 3 ;;
    signal) good; kill -SEGV $$ ;;
    time_limit) good; trap '' TERM; sleep 60 ;;
    table) good | head -c 400 ;;
    rows) good | head -n 12 ;;
    missing) good | sed 1,2d ;;
    nan) good | sed 's/^1024 .*/1024                   -nan/' ;;
    unit) good | sed 's/(us)/(ms)/' ;;
    once) [ -e "$GO" ] && good || good | sed 's/^\\(8 .*\\)....$/\\19.00/'
          touch "$GO" ;;
    then_crash) [ -e "$GO" ] && exit 3
          good | sed 's/^\\(8 .*\\)....$/\\19.00/'; touch "$GO" ;;
    program) cat "${GOLDEN/latency/bw}" ;;
    wall_time) cat "$GOLDEN" ;;
    physics) good | sed 's/^\\(8 .*\\)....$/\\10.01/' ;;
esac
'''

CASE = [*OSU, '-n', 'OsuPt2pt', '-E', 'program=="osu_latency"',
        '--exec-policy=serial']


@pytest.fixture
def faulty(suite):
    return with_stand_in(suite)


def with_stand_in(suite):
    """The suite with SCRIPT in place of OMB, and run(FAULT) to start it."""
    prefix = suite.tmp / 'omb'
    prefix.mkdir()
    (prefix / 'osu_latency').write_text(SCRIPT)
    (prefix / 'osu_latency').chmod(0o755)
    suite.variables |= {'OMB_PREFIX': str(prefix),
                        'GOLDEN': str(GOLDEN / 'osu_latency.txt')}

    def run(fault, *args, env='.*-omb', **more):
        return suite.reframe('-r', *CASE, '-p', env, *args, FAULT=fault,
                             **more)
    suite.run = run
    return suite


def failed_for(suite, done, words):
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    assert words in text, text
    if suite.records:
        last = suite.records[-1]
        assert (last['metric'], last['value'], last['result']) == (
            'completed', '0.0', 'fail')
    return text


def test_the_stand_in_passes_when_it_behaves(faulty):
    done = faulty.run('none', '-Sbringup=1')
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r['metric'] for r in faulty.records} >= {
        'latency', 'wall_time', 'user_time', 'system_time'}
    assert {r['source'] for r in faulty.records} == {'system'}
    assert {r['version'] for r in faulty.records} == {'7.2'}
    assert {r['guard'] for r in faulty.records} == {''}


class Session:
    """One session with an environment for each of many cases: what is read
    of each is its own, and ReFrame starts once."""

    def __init__(self, suite, faults, references=None, site='', **more):
        """
        :arg faults: name of an environment -> what $FAULT is there
        :arg site: more Python at the end of the site's file
        """
        self.suite = suite
        another_site(suite, suite.tmp, f'''
_of_omb, = (env for env in site_configuration['environments']
            if env['name'].endswith('-omb'))
for _name, _fault in {faults!r}.items():
    site_configuration['environments'].append(
        {{**_of_omb, 'name': _name, 'env_vars': [
            ['FAULT', _fault], ['GO', {str(suite.tmp)!r} + '/' + _name]]}})
    for _part in site_configuration['systems'][0]['partitions']:
        _part['environs'].append(_name)
{site}''')
        if references:
            suite.write_references(references)
        self.done = suite.run('', *([] if references else ['-Sbringup=1']),
                              env='^case-', **more)
        self.records = suite.records
        report = Path(suite.variables['PLUMBLINE_WORK'], 'report.json')
        self.cases = {
            case['environ']: case for case in
            json.loads(report.read_text())['runs'][0]['testcases']
            if not case['fixture']}
        assert set(self.cases) == set(faults), self.done.stdout
        assert self.done.returncode == any(
            case['result'] == 'fail' for case in self.cases.values())

    def of(self, environ):
        """What became of a case: its result, why, its records."""
        case = self.cases[environ]
        return case['result'], case.get('fail_reason') or '', [
            r for r in self.records if r['environ'] == environ]


FAULTS = [
    ('exit_code', 'exit code 3'),
    ('signal', 'signal 11'),
    ('table', 'table: run.1.out:'),
    ('rows', 'the table ends at'),
    ('missing', 'table: run.1.out:'),
    ('nan', 'table: run.1.out:'),
    ('unit', 'table: run.1.out:'),
    ('program', 'not of osu_latency'),
    (
        'wall_time',
        'iterations times values make 49.7 s, but the program ran for',
    ),
    (
        'physics',
        'is below the physical limit 0.02: a call and a pass through a cache',
    ),
]


#: Faults of an environment of the site; its program behaves.
OF_SITE = [
    # A launcher of another MPI starts each rank as a world of its own; here
    # one that starts too few.
    ('ranks', '2 ranks on 1 node(s) were requested'),
    ('transport', 'UCX was requested'),
]


@pytest.fixture(scope='module')
def refused(tmp_path_factory):
    """Each fault once, and beside them none."""
    suite = with_stand_in(suite_in(tmp_path_factory.mktemp('refused')))
    fake = suite.tmp / 'fake' / 'mpirun'
    fake.parent.mkdir()
    fake.write_text('#!/bin/bash\nwhile [ "${1##*/}" != rank.sh ]; do shift; '
                    'done\nexec "$@"\n')
    fake.chmod(0o755)
    return Session(
        suite,
        {f'case-{fault}': fault for fault, _ in FAULTS}
        | {f'case-{fault}': 'none' for fault, _ in [*OF_SITE, ('none', '')]},
        site=f'''
_by_name = {{env['name']: env for env in site_configuration['environments']}}
_by_name['case-ranks']['env_vars'].append(['PATH', '{fake.parent}:$PATH'])
_by_name['case-transport']['extras'] = {{
    **_by_name['case-transport']['extras'], 'transport': {{
        'name': 'UCX', 'env': {{}}, 'evidence': 'selected pml ucx'}}}}
''')


@pytest.mark.parametrize('fault, words', [*FAULTS, *OF_SITE])
def test_guard_fails_the_run(refused, fault, words):
    result, why, records = refused.of(f'case-{fault}')
    assert result == 'fail' and words in why
    assert words in refused.done.stdout
    last = records[-1]
    assert (last['metric'], last['value'], last['result']) == (
        'completed', '0.0', 'fail')


def test_a_fault_is_of_its_case_alone(refused):
    result, _, records = refused.of('case-none')
    assert result == 'pass' and {r['guard'] for r in records} == {''}


def test_data_that_arrives_wrong(faulty, tmp_path):
    """The embedded program, built so that it spoils a byte before -c looks."""
    import shlex
    program = Path(faulty.variables['OMB_PREFIX']) / 'osu_latency'
    faulty.plumb('env')
    result = json.loads(Path(faulty.variables['PLUMBLINE_WORK'],
                             'local.json').read_text())['mpi']
    subprocess.run(
        f'{shlex.quote(result["mpicc"])} -O2 -std=gnu11 -pthread '
        f'-DOSU_EMBEDDED_FAULT -o {shlex.quote(str(program))} *.c -lm',
        shell=True, check=True, cwd=ROOT / 'checks' / 'osu' / 'src')
    done = faulty.run('none', '-Sbringup=1', '-S', 'OsuPt2pt.max_size=1024',
                      '-SOsuPt2pt.options=-i 200 -x 20')
    failed_for(faulty, done, 'validation: validate.out: the validation ended')


def another_site(suite, tmp_path, more, name='site'):
    """The local site with more Python at its end, in another folder."""
    suite.plumb('env')                          # detects the real MPI
    text = (ROOT / 'site-configs' / 'local' / 'system.py').read_text()
    suite.write_site(tmp_path / name, text + more)


def test_real_transport_is_seen(suite, tmp_path):
    """Open MPI over TCP where shared memory was demanded: refused."""
    suite.plumb('env')
    result = Path(suite.variables['PLUMBLINE_WORK'], 'local.json').read_text()
    if '"openmpi"' not in result:
        skip_missing('mpirun.openmpi',
                     'tells the transports of Open MPI apart')
    another_site(suite, tmp_path, '''
for _env in site_configuration['environments']:
    _env['extras']['transport'] = {
        'name': 'shared memory', 'evidence': 'Using (sm|vader) btl for send',
        'env': {'OMPI_MCA_btl_base_verbose': '10', 'OMPI_MCA_pml': 'ob1',
                'OMPI_MCA_btl': 'tcp,self'}}
''')
    done = suite.reframe('-r', *CASE, '-Sbringup=1', '-S',
                         'OsuPt2pt.max_size=1024', '-S',
                         'OsuPt2pt.options=-i 200 -x 20')
    failed_for(suite, done, 'shared memory was requested')


def test_a_service_is_not_asked_how_mpi_went(suite, tmp_path):
    """Its clients talk to servers: MPI's library tells nothing there."""
    suite.plumb('env')
    another_site(suite, tmp_path, '''
for _env in site_configuration['environments']:
    _env.setdefault('extras', {})['transport'] = {
        'name': 'UCX', 'env': {}, 'evidence': 'selected pml ucx'}
''')
    done = suite.reframe('-r', *of_family('optcast'), '-n',
                         'OptcastAllReduce.*ring', '-t', 'quick')
    assert done.returncode == 0, done.stdout + done.stderr


PARAMS = 'buffers=host placement=intra_node program=osu_latency'


def reference(env, **values):
    return {'OsuPt2pt': {
        '$index': ['$partition', '$environ', 'source', 'speed', 'params'],
        'local:thishost': {env: {'system': {'fast': {PARAMS: values}}}}}}


def flavour(suite):
    suite.plumb('env')
    result = json.loads(Path(suite.variables['PLUMBLINE_WORK'],
                             'local.json').read_text())
    return result['mpi']['flavour'] + '-omb'


GOOD = [1.0, None, 9.0, 'us']


@pytest.mark.parametrize('values, words', [
    ({'latency@8B': [1.0, None, 0.1, 'ms']}, "unit is 'ms'"),
    ({'latency@8B': GOOD, 'latncy@8B': GOOD}, "did you mean 'latency'"),
    ({'latency@8B': 1}, 'expected'),
    ({'latency@8B': [1.0, None, 1000, 'us']}, 'osu.yaml:1: OsuPt2pt'),
    ({'latency@8B': [1.0, None, None, 'us']}, 'the metric has no tolerance'),
])
def test_a_reference_that_breaks_its_file(tmp_path, values, words):
    path = tmp_path / 'osu.yaml'
    path.write_text(json.dumps(reference('openmpi-omb', **values)))
    with pytest.raises(ReferenceError_, match=re.escape(words)):
        read(path)


def case_of(name):
    return 'case-' + name.replace(' ', '-')


#: Sound files: references of a case, and why it fails by them.
REFERENCES = {
    'good': ({'latency@8B': GOOD}, None),
    'regressed': ({'latency@8B': [1e-3, None, 0.1, 'us']},
                  'failed to meet reference'),
    'a faster machine': ({'latency@8B': [1e3, None, 0.1, 'us']}, None),
    'of another': ({'latency@8B': GOOD,
                    'bandwidth@8B': [1.0, -0.5, None, 'MB/s']},
                   'no such metric'),
    'a known fault': ({'latency@8B': [
        '$xfail', 'slow since the update', [1e-3, None, 0.1, 'us']]}, None),
    'of another size': ({'latency@16B': GOOD},
                        'no reference for the metrics latency@8B'),
    'judged in its place': ({'latency@8B': [1.0, None, None, 'us'],
                             'latency_small': [1.0, None, 0.1, 'us'],
                             '$from': {'runs': 3}}, None),
    'worst point': ({'latency@8B': GOOD,
                     'latency@1024B': [1e-3, None, None, 'us'],
                     'worst_ratio': [1.0, None, 0.3, '1']}, 'worst_ratio'),
}


def test_what_was_disturbed_is_measured_again(faulty):
    """What was built for the case stays until its last try, and that try is
    what counts."""
    done = faulty.run('none', '-Sbringup=1', PLUMBLINE_AGAIN_AFTER='1',
                      PLUMBLINE_OTHERS_LIMIT='-1')
    assert done.returncode == 0, done.stdout
    for number in range(1, MEASUREMENTS):
        assert ('Interference, or a change of CPU speed: 1 test case, '
                f'measured again in {2 ** (number - 1)} s (retry {number} of '
                f'{MEASUREMENTS - 1})') in done.stdout
    read = [r for r in faulty.records if r['metric'] == 'wall_time']
    assert [r['result'] for r in read] == ['inconclusive'] * MEASUREMENTS
    frame = perflogs.read(faulty.tmp / 'perflogs')
    assert (
        set(frame['measurements']) == {MEASUREMENTS}
        and frame['time'].nunique() == 1
    )


def test_what_is_beyond_is_measured_again(tmp_path):
    """Once beyond: disturbed. In each try: slow."""
    suite = with_stand_in(suite_in(tmp_path))
    faults = {'case-once': 'once', 'case-slow': 'none',
              'case-crash': 'then_crash'}
    table = table_of({
        name.removeprefix('case-'): ('fast', {'latency@8B': [
            0.001 if name == 'case-slow' else 0.4, None, 0.1, 'us']})
        for name in faults})
    session = Session(suite, faults, table, PLUMBLINE_AGAIN_AFTER='1')
    text = session.done.stdout
    assert session.done.returncode == 1, text
    assert 'Out of tolerance: 3 test cases, measured again in 1 s (retry 1 ' \
        f'of {MEASUREMENTS - 1})' in text
    for number in range(2, MEASUREMENTS):
        assert (
            'Out of tolerance: 1 test case, measured again in '
            f'{2 ** (number - 1)} s (retry {number} of {MEASUREMENTS - 1})'
            in text
        )
    assert '(2 failure(s)' in text
    [file] = (suite.tmp / 'perflogs').glob('*/sessions/*.reasons')
    texts = {line['reason'] for line in map(json.loads, file.open())
             if not line['guard']}
    assert texts and all(re.fullmatch(
        r'latency at 8 B \S+ x against its reference: \S+ µs, reference 0\.\d+ µs',
        text) for text in texts), texts
    ends = {name: [(r['result'], r['guard']) for r in session.of(name)[2]
                   if r['metric'] == 'completed' or r['point'] == '8 B']
            for name in faults}
    assert ends == {
        'case-once': [('retried', ''), ('pass', '')],
        'case-slow': [('retried', '')] * (MEASUREMENTS - 1) + [('fail', '')],
        'case-crash': [('retried', ''), ('fail', 'exit_code')]}
    frame = perflogs.read(tmp_path / 'perflogs')
    eight = frame[(frame['point'] == 8) & (frame['metric'] == 'latency')
                  ].set_index('environ')
    # The first try's value is what the history has.
    assert [*eight.loc['case-once', ['value', 'result', 'measurements']]] == [
        9.0, 'pass', 2]
    assert [*eight.loc['case-slow', ['result', 'measurements']]] == [
        'fail',
        MEASUREMENTS,
    ]
    assert 'case-crash' not in eight.index
    [crash] = [one for one in results.results_of_session(
        frame, frame['run'].iloc[0]).values() if one.environ == 'case-crash']
    assert (crash.result, crash.guard) == ('fail', 'exit_code')


#: Sound files: the speed and the references of a case that nothing fails,
#: and what the summary says of it.
NOTES = {
    'another speed': ('slow', {'latency@8B': [1e-3, None, 0.1, 'us']},
                      'no reference for CPU speed class fast: '
                      './plumb references calibrate'),
    'improved': ('fast', {'latency@8B': [0.8, None, 0.12, 'us']},   # 0.40 us
                 'improved: propose again (latency@8B)'),
    'not improved': ('fast', {'latency@8B': [0.42, None, 0.12, 'us']}, ''),
    'no bound yet': ('fast', {
        'latency@8B': [0.4, None, None, 'us'],
        '$no_reference': {'latency@8B': 0, 'latency_small': 7}},
        'no_reference: needs about 7 more sessions (latency@8B)'),
}


def table_of(entries):
    """References: name of a case -> its speed and figures."""
    table = reference('')
    table['OsuPt2pt']['local:thishost'] = {
        case_of(name): {'system': {speed: {PARAMS: values}}}
        for name, (speed, values) in entries.items()}
    return table


@pytest.fixture(scope='module')
def judged(tmp_path_factory):
    """Each of REFERENCES and NOTES once."""
    suite = with_stand_in(suite_in(tmp_path_factory.mktemp('judged')))
    entries = {
        **{name: ('fast', values)
           for name, (values, _) in REFERENCES.items()},
        **{name: (speed, values)
           for name, (speed, values, _) in NOTES.items()}}
    return Session(suite, {case_of(name): 'none' for name in entries},
                   table_of(entries))


@pytest.mark.parametrize('name', NOTES)
def test_what_the_summary_says_of_a_case(judged, name):
    speed, values, words = NOTES[name]
    case = judged.cases[case_of(name)]
    result, why, records = judged.of(case_of(name))
    assert result == 'pass', why
    # The site of this test is a path.
    assert case['no_reference'].partition(' --site ')[0] == words
    assert {r['speed'] for r in records} == {'fast'}
    is_judged = speed == 'fast' and values['latency@8B'][2] is not None
    assert {r['result'] for r in records} == (
        {'no_reference', 'pass'} if is_judged else {'no_reference'})


@pytest.mark.parametrize('name', REFERENCES)
def test_references_in_a_run(judged, name):
    values, words = REFERENCES[name]
    result, why, records = judged.of(case_of(name))
    if words is not None:
        assert result == 'fail' and words in why, why
        return
    one, = (r for r in records if r['metric'] == 'latency'
            and r['point'] == '8 B')
    expected = values['latency@8B']
    if expected[0] == '$xfail':                 # a known fault, not hidden
        assert result == 'xfail'
        assert one['result'] == 'xfail'
    else:
        assert result == 'pass', why
        assert one['result'] == (
            'no_reference' if expected[2] is None else 'pass')
        assert float(one['reference']) == expected[0]
    if 'latency_small' in values:
        mean, = (r for r in records if r['metric'] == 'latency_small')
        assert (mean['result'], mean['point']) == ('pass', '')


def note(suite):
    """What the summary says of the last case."""
    report = Path(suite.variables['PLUMBLINE_WORK'], 'report.json')
    return json.loads(report.read_text())['runs'][0]['testcases'][-1][
        'no_reference']


def test_broken_reference_file(faulty):
    faulty.write_references('OsuPt2pt: [\n')
    failed_for(faulty, faulty.run('none'), 'osu.yaml:2: not YAML')


#: References of another case.
OTHER = {'OsuRma': {'$index': ['speed'], 'fast': {
    'latency@8B': GOOD}}}


def test_what_has_no_reference_is_recorded(faulty):
    """Neither a failure nor a pass; with five of them it has one."""
    faulty.write_references(OTHER)
    done = faulty.run('none')
    assert done.returncode == 0, done.stdout + done.stderr
    assert note(faulty) == 'no reference yet: ./plumb references calibrate'
    assert {r['result'] for r in faulty.records} == {'no_reference'}
    faulty.again(4)
    for command in ('propose', 'accept'):
        done = faulty.plumb('references', command)
        assert done.returncode == 0, done.stdout + done.stderr
    done = faulty.run('none')
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'pass' in {r['result'] for r in faulty.records}


@pytest.fixture(scope='module')
def complete(tmp_path_factory):
    """Cases of a family all of which must have a reference."""
    suite = with_stand_in(suite_in(tmp_path_factory.mktemp('complete')))
    values = {'latency@8B': GOOD}
    return Session(
        suite, {case_of(name): 'none' for name in ('good', 'none', 'slow')},
        {'complete': True, **table_of({'good': ('fast', values),
                                       'slow': ('slow', values)})})


def test_what_has_no_reference_fails_where_all_must_have_one(complete):
    result, why, records = complete.of('case-none')
    assert result == 'fail'
    assert 'no reference yet, on local:thishost' in why
    assert 'the file has `complete: true`' in why
    # Else a case that was added later could never get one.
    assert {r['metric'] for r in records} >= {'completed', 'latency'}
    assert {r['guard'] for r in records} == {'', 'reference'}
    result, why, _ = complete.of('case-slow')
    assert result == 'fail' and 'no reference for CPU speed class fast' in why
    assert complete.of('case-good')[0] == 'pass'


def test_dry_run_is_a_gate_for_coverage(complete):
    suite = complete.suite
    done = suite.reframe('--dry-run', *CASE, '-p', '^case-')
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    assert 'no reference yet, on local:thishost' in text
    assert 'no reference for CPU speed class fast' in text
    assert '2 test cases cannot run here' in text       # and one can
    path = suite.tmp / 'references' / 'osu.yaml'
    suite.write_references({**json.loads(path.read_text()),
                            'complete': False})
    done = suite.reframe('--dry-run', *CASE, '-p', '^case-')
    assert done.returncode == 0, done.stdout + done.stderr


def test_check_file_that_cannot_be_imported(suite, tmp_path):
    (tmp_path / 'broken.py').write_text(
        'import reframe as rfm\nimport no_such_module\n'
        '@rfm.simple_test\nclass X(rfm.RunOnlyRegressionTest): pass\n')
    done = suite.reframe('-r', '-c', str(tmp_path / 'broken.py'))
    assert done.returncode == 1
    assert 'no_such_module' in done.stdout + done.stderr


def test_zero_cases(suite):
    done = suite.plumb('run', '--', *OSU, '-n', 'OsuStartop')
    assert done.returncode == 2
    assert 'no test case ran' in done.stderr
    assert "-n OsuStartop: no such test case; the nearest: -n 'OsuStartup'" \
        in done.stderr


@pytest.mark.parametrize('readings, speed', [
    # Fast, slow, fast: each repetition by itself agrees.
    ([90, 95, 400, 390, 100, 110], 'mixed'),
    # During the second one.
    ([90, 95, 100, 400, 410, 400], 'mixed'),
    ([90, 95, 100, 110, 100, 105], 'fast'),
    ([1200, 1300, 1200, 1250, 1210, 1200], 'other')])
def test_speeds_are_read_between_repetitions(tmp_path, readings, speed):
    """measure.sh, and the class that the check makes of what it left."""
    from checks.core import guards
    from checks.machine.speed import cpu_speed_class
    (tmp_path / 'readings').write_text('\n'.join(map(str, readings)) + '\n')
    # Never during a run: its program would see the marker.
    speed_probe = tmp_path / 'speed_probe'
    speed_probe.write_text('#!/bin/bash\nread -r x < readings\n[ ! -e busy ] '
                           '|| x=nan\nsed -i 1d readings\necho "ns $x"\n')
    speed_probe.chmod(0o755)
    done = subprocess.run(
        [ROOT / 'checks/core/src/measure.sh', '--repetitions', '3',
         '--speed-probe', './speed_probe', '--', 'bash', '-c',
         'touch busy; sleep 0.05; rm busy'], cwd=tmp_path,
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runs = guards.read_repetitions(tmp_path, 3)
    assert [x for run in runs for x in (run.before, run.after)] == readings
    assert cpu_speed_class(runs, {'speed_boundary_ns': 220.0,
                                  'speed_bands_ns': {'slow': (220, 880)}})[0] == speed


@pytest.mark.alone
def test_a_third_speed_is_unfit(suite):
    """The local site, told that both its speeds are others."""
    for _ in range(4):
        done = suite.plumb('run', '--', *OSU, '-n', 'OsuStartup', '-E',
                           'program == "osu_init"',
                           PLUMBLINE_SPEED_BANDS_NS='1:2,1e6:2e6',
                           PLUMBLINE_SPEED_BOUNDARY_NS='1e6')
        assert done.returncode == 0, done.stdout + done.stderr
        last = [r for r in suite.records if r['run'] ==
                suite.records[-1]['run']]
        # A machine too busy for a reading has no speed at all.
        if {r['speed'] for r in last} != {'-'}:
            break
    assert {r['speed'] for r in last} == {'other'}
    assert 'inconclusive' in {r['result'] for r in last}
    assert re.search(r'inconclusive .*neither fast \(1 to 2 ns\) nor slow',
                     done.stdout)


def test_perflog_append_is_whole_or_not_at_all(tmp_path):
    """A disk that fills: /dev/full refuses every byte."""
    from config.records import perflog
    path = tmp_path / 'x.csv'
    perflog.append_records(path, ['a', 'b'], [['1', 'x,"y"\nz']])
    before = path.read_bytes()
    assert before == b'a,b\n1,"x,""y"" z"\n'
    real = os.fsync
    try:
        def full(fd):
            raise OSError(28, 'No space left on device')
        os.fsync = full
        with pytest.raises(OSError):
            perflog.append_records(path, ['a', 'b'], [['2', '3']])
    finally:
        os.fsync = real
    assert path.read_bytes() == before
    path.write_bytes(before[:-3])                # a crash in mid-line
    perflog.append_records(path, ['a', 'b'], [['4', '5']])
    assert path.read_bytes().endswith(b'\n4,5\n')


# A disk without room --------------------------------------------------------

#: More than such a disk takes, and never more than that: were there no mount
#: the machine's own disk would be written.
FILL = 'head -c 20000000 /dev/zero'


def in_small(folder, size, command, **more):
    """A command with a small disk at a folder."""
    import shutil
    folder.mkdir(exist_ok=True)
    mount = ['unshare', '-rm', 'sh', '-c',
             'mount -t tmpfs -o "size=$1" none "$2" && shift 2 && exec "$@"',
             'sh', size, str(folder)]
    if not shutil.which('unshare') or subprocess.run(
            [*mount, 'true'], capture_output=True).returncode:
        pytest.skip('no user namespaces with mounts here')
    return subprocess.run([*mount, *map(str, command)], text=True,
                          capture_output=True, **more)


#: Runs measure.sh in the folder $1, and says what the guard says.
GUARDED = '''
cd "$1" && shift
"$@" >/dev/null 2>&1
echo "code $?"
exec {python} - <<E
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from checks.core import guards
try:
    guards.check_disk_not_full(Path.cwd())
except guards.Refused as err:
    print(err)
print(*sorted(path.name for path in Path('.').iterdir()))
E
'''


@pytest.mark.parametrize('before, program', [
    ('', 'head -c 900000 /dev/zero >data; echo done'),    # a little is left
    ('', f'{FILL}'),                                      # its own output
    ('', f'{FILL} >data; exit 3'),
    (f'{FILL} >data;', 'echo never'),                     # from the start
])
def test_a_stage_disk_that_is_full_has_its_line(tmp_path, before, program):
    import sys
    measure = ROOT / 'checks/core/src/measure.sh'
    done = in_small(tmp_path / 'stage', '1m', [
        'bash', '-c', GUARDED.format(python=shlex.quote(sys.executable),
                                     root=str(ROOT)),
        'bash', tmp_path / 'stage', 'bash', '-c',
        f'{before} {shlex.quote(str(measure))} -- sh -c "{program}"'])
    output = done.stdout.splitlines()
    if 'done' in program:
        assert output == ['code 0', 'data run.1.err run.1.out runs.tsv '
                          'times.txt'], done
        return
    assert output[0] != 'code 0', done
    assert output[1].startswith('disk: the disk of the stage directory was '
                                'full: '), done
    assert f'{tmp_path}/stage' in output[1], done
    assert 'free space, or set another' in output[1], done


@pytest.mark.parametrize('room', [0, 12])
def test_a_conductor_on_a_full_disk_says_so(tmp_path, room):
    import sys

    from checks.services.plan import Clients, Plan, Program, Server, Step
    Plan(Server('idle', ('sleep', '60'), dialect='tcp'), (Clients(),),
         (Step('measure', (Program(('true',)),), 10),), sample=0.1,
         scratch=str(tmp_path)).write(tmp_path / 'service.json')
    serving = ROOT / 'checks' / 'services'
    stage = tmp_path / 'stage'
    call = shlex.join([sys.executable, str(serving)])
    done = in_small(stage, '256k', [
        'sh', '-c', f'cp service.json {stage}; cd {stage}; '
        f'head -c {room * 1024} /dev/zero >room; {FILL} >data 2>/dev/null; '
        f'rm room; {call} conduct service.json -- {call} agent service.json; '
        'code=$?; ls -d *; exit $code'], cwd=tmp_path)
    lines = [line for line in done.stderr.splitlines()
             if line.startswith('service: ')]
    assert done.returncode == 1 and len(lines) == 1, done
    assert f'the disk of {stage}' in lines[0], lines
    assert 'is full (No space left on device): free space' in lines[0]
    assert 'Traceback' not in done.stderr
    assert '.private' not in done.stdout            # nothing is left there


def test_a_stage_disk_that_fills_up_through_reframe(faulty):
    script = Path(faulty.variables['OMB_PREFIX'], 'osu_latency')
    script.write_text(script.read_text().replace(
        '    time_limit)', '    fills) good; ' + FILL + ' >data ;;\n'
        '    time_limit)'))
    done = in_small(
        Path(faulty.variables['PLUMBLINE_WORK'], 'stage'), '8m',
        [ROOT / 'plumb', 'run', '--bringup', *CASE, '-p', '.*-omb'],
        env={**os.environ, **faulty.variables, 'FAULT': 'fills'})
    text = failed_for(faulty, done, 'disk: the disk of the stage directory '
                      'was full')
    assert 'Traceback' not in text
    assert faulty.records[-1]['guard'] == 'disk'


def test_a_stage_disk_that_is_full_before_reframe_begins(faulty):
    stage = Path(faulty.variables['PLUMBLINE_WORK'], 'stage')
    done = in_small(
        stage, '1m', [
            'sh', '-c', f'{FILL} >{stage}/data 2>/dev/null; exec "$@"', 'sh',
            ROOT / 'plumb', 'run', '--bringup', '--', *CASE, '-p',
            '.*-omb'],
        env={**os.environ, **faulty.variables, 'FAULT': 'none'})
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines()
             if line.startswith(('fail  ', 'not_run  '))]
    case, build = lines
    full = f'disk: the disk of {stage}'
    assert f'not run: a build that it needs failed: {full}' in case
    # The nightly summary has no row for builds, only the reason of the test case.
    [one] = results.newest_results_of_test_cases(perflogs.read(faulty.tmp / 'perflogs'))
    assert full in one.reason and 'is full (No space left on device)' in one.reason
    assert (f'disk: the disk of {stage}' in build and 'is full (No space left '
            'on device): free space, or set another' in build), lines
