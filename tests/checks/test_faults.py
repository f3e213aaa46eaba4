"""Broken programs through the real ReFrame: each must end as a failure.

The programs are shell scripts that stand in for OMB and misbehave on
demand (they are started by the real launcher, and their good output is real
output of OMB 7.2); the suite finds them through OMB_PREFIX.
"""
from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import OSU, ROOT, suite_in

from postprocess import records, results

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
    # Facts of the nodes that it ran on.
    name, = {r['machine'] for r in faulty.records}
    file, = (faulty.tmp / 'perflogs' / 'local' / 'machines').iterdir()
    assert file.name == f'{name}.json'
    facts = json.loads(file.read_text())
    assert facts['kernel'] == os.uname().release
    assert 'launcher' in facts and 'scratch' in facts


def newest_report(suite):
    """ReFrame's report of the newest session."""
    return json.loads(max(
        suite.tmp.glob('perflogs/sessions/*.json')).read_text())


class Session:
    """One session with an environment for each of many cases: what is read
    of each is its own, and ReFrame starts once."""

    def __init__(self, suite, faults, references=None, site='', options=()):
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
                              *options, env='^case-')
        self.records = suite.records
        self.cases = {
            case['environ']: case for run in newest_report(suite)['runs']
            for case in run['testcases'] if not case['fixture']}
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
    ('wall_time', 'the iterations multiplied by the printed times give 49.7 s, but the '
     'program ran for only'),
    ('physics', 'is below the physical limit 0.02: a call and a pass through a cache'),
    ('leftover', 'still ran 5 s after'),
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
                      '-SOsuPt2pt.iterations=200', '-SOsuPt2pt.warmup=20')
    failed_for(faulty, done, 'validation: validate.out: the validation ended')


@pytest.mark.parametrize('text, code', [
    ("ucp_context.c:671 UCX WARN transport 'x' is not available: Invalid argument", 1),
    ('ibv_reg_mr failed: Invalid argument', 139)])
def test_a_failed_validation_is_no_missing_option(faulty, text, code):
    program = Path(faulty.variables['OMB_PREFIX'], 'osu_latency')
    program.write_text(SCRIPT.replace('rank=', (
        '# --validation\ncase " $* " in *" -c "*)\n'
        f'    echo "{text}" >&2; exit {code} ;;\nesac\nrank='), 1))
    done = faulty.run('none', '-Sbringup=1')
    failed_for(faulty, done, 'validation: validate.out: the validation ended with exit '
               'code')


def test_a_program_that_cannot_validate_is_not_validated(faulty):
    done = faulty.run('none', '-Sbringup=1')
    assert done.returncode == 0, done.stdout
    assert {record['not_checked'].partition(';')[0] for record in faulty.records} == {
        'validation: this osu_latency has no option -c'}


def another_site(suite, tmp_path, more, name='site'):
    """The local site with more Python at its end, in another folder."""
    suite.plumb('env')                          # detects the real MPI
    text = (ROOT / 'site-configs' / 'local' / 'system.py').read_text()
    suite.write_site(tmp_path / name, text + more)


PARAMS = 'buffers=host placement=intra_node program=osu_latency'


def reference(env, **values):
    return {'OsuPt2pt': {
        '$index': ['$partition', '$environ', 'source', 'params'],
        'local:thishost': {env: {'system': {PARAMS: values}}}}}


def flavour(suite):
    suite.plumb('env')
    result = json.loads(Path(suite.variables['PLUMBLINE_WORK'],
                             'local.json').read_text())
    return result['mpi']['flavour'] + '-omb'


GOOD = [1.0, None, 9.0, 'us']


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
                             'latency_small': [1.0, None, 0.1, 'us']}, None),
    'worst point': ({'latency@8B': GOOD,
                     'latency@1024B': [1e-3, None, None, 'us'],
                     'worst_ratio': [1.0, None, 0.3, '1']}, 'worst_ratio'),
}


@pytest.mark.parametrize('cores', [None, 1])
def test_interference_is_reported_and_measured_once(faulty, tmp_path, cores):
    """By the limit of the site. Nothing is compared, so a retry could not change
    the result. Too few cores are a reason that no retry could remove."""
    another_site(faulty, tmp_path, f'''
for _part in site_configuration['systems'][0]['partitions']:
    _part['extras']['others_cpu_limit'] = -1
    if {cores}:
        _part['processor'] = dict.fromkeys((
            'num_cpus', 'num_cpus_per_core', 'num_sockets', 'num_cpus_per_socket'), 1)
''')
    done = faulty.run('none', '-Sbringup=1', '--max-retries=1')
    assert done.returncode == 0, done.stdout
    assert 'Retrying' not in done.stdout
    read = [r for r in faulty.records if r['metric'] == 'wall_time']
    assert [(r['result'], r['measurements']) for r in read] == [('inconclusive', '1')]
    [(lasts, reason)] = [(r['transient'] == '0', r['reason']) for r in read]
    assert 'used' in reason and lasts == ('2 threads shared 1 core' in reason), reason
    assert lasts or not cores


def test_what_is_beyond_is_measured_again(tmp_path):
    """Once beyond: disturbed. Always: slow. Then a crash: not confirmed."""
    suite = with_stand_in(suite_in(tmp_path))
    faults = {'case-once': 'once', 'case-slow': 'none',
              'case-crash': 'then_crash'}
    table = table_of({
        name.removeprefix('case-'): {'latency@8B': [
            0.001 if name == 'case-slow' else 0.4, None, 0.1, 'us']}
        for name in faults})
    session = Session(suite, faults, table, options=['--max-retries=1'])
    assert session.done.returncode == 1, session.done.stdout
    frame = records.read(tmp_path / 'perflogs')
    eight = frame[(frame['point'] == 8) & (frame['metric'] == 'latency')
                  ].set_index('environ')
    assert {name: [*eight.loc[name, ['value', 'result', 'note', 'measurements']]]
            for name in faults} == {
        'case-once': [0.4, 'pass', 'out of tolerance, then passed', 2],
        'case-slow': [0.4, 'fail', '', 2],
        'case-crash': [9.0, 'fail', 'not confirmed', 2]}


#: Sound files: the references of a case that nothing fails, and what the
#: summary says of it.
NOTES = {
    'improved': ({'latency@8B': [0.8, None, 0.12, 'us']},   # 0.40 us
                 'improved: calibrate again (latency@8B)'),
    'not improved': ({'latency@8B': [0.42, None, 0.12, 'us']}, ''),
    'no bound yet': ({'latency@8B': [0.4, None, None, 'us']},
                     'no tolerance: latency@8B'),
    # No entry in the file.
    'nothing': ({}, 'no reference yet: ./plumb references calibrate'),
}


def table_of(entries):
    """References: name of a case -> its figures."""
    table = reference('')
    table['OsuPt2pt']['local:thishost'] = {
        case_of(name): {'system': {PARAMS: values}}
        for name, values in entries.items() if values}
    return table


@pytest.fixture(scope='module')
def judged(tmp_path_factory):
    """Each of REFERENCES and NOTES once."""
    suite = with_stand_in(suite_in(tmp_path_factory.mktemp('judged')))
    entries = {name: values for name, (values, _) in (REFERENCES | NOTES).items()}
    return Session(suite, {case_of(name): 'none' for name in entries},
                   table_of(entries))


@pytest.mark.parametrize('name', NOTES)
def test_what_the_summary_says_of_a_case(judged, name):
    values, words = NOTES[name]
    case = judged.cases[case_of(name)]
    result, why, records = judged.of(case_of(name))
    assert result == 'pass', why
    # The site of this test is a path.
    assert case['no_reference'].partition(' --site ')[0] == words
    is_judged = bool(values) and values['latency@8B'][2] is not None
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


@pytest.mark.parametrize('text, words, options', [
    ('OsuPt2pt: [\n', 'osu.yaml:2: not YAML', []),
    ('OsuPt2pt: {$index: [speed], x: {latency@8B: [1.0, null, 0.1, us]}}',
     "osu.yaml:1: OsuPt2pt: $index has 'speed', which is neither", ['-Sbringup=1']),
    # Unit, name, range, NaN: one message counts them.
    ('OsuPt2pt:\n  $index: [source]\n  system:\n'
     '    latency@8B: [1.0, null, 0.1, ms]\n'
     '    latncy@8B: [1.0, null, 0.1, us]\n'
     '    latency@16B: [1.0, null, 10.1, us]\n'
     '    latency@32B: [1.0, null, .nan, us]\n', '(and 3 more faults)', []),
    ('OsuPt2pt:\n  $index: [source]\n  system:\n'
     '    latency@8B: [1.0, null, 0.1, us]\n'
     '    latency@8B: [9.0, null, 0.1, us]\n',
     "osu.yaml:5: 'latency@8B' occurs twice here", [])])
def test_broken_reference_file(faulty, text, words, options):
    faulty.write_references(text)
    failed_for(faulty, faulty.run('none', *options), words)


@pytest.fixture(scope='module')
def complete(tmp_path_factory):
    """Cases of a family all of which must have a reference."""
    suite = with_stand_in(suite_in(tmp_path_factory.mktemp('complete')))
    return Session(
        suite, {case_of(name): 'none' for name in ('good', 'none')},
        {'complete': True, **table_of({'good': {'latency@8B': GOOD}})})


def test_what_has_no_reference_fails_where_all_must_have_one(complete):
    result, why, records = complete.of('case-none')
    assert result == 'fail'
    assert 'no reference yet, on local:thishost' in why
    assert 'but `complete: true` at the top of the file requires' in why
    # Else a case that was added later could never get one.
    assert {r['metric'] for r in records} >= {'completed', 'latency'}
    assert {r['guard'] for r in records} == {'reference'}
    assert complete.of('case-good')[0] == 'pass'


def test_dry_run_is_a_gate_for_coverage(complete):
    suite = complete.suite
    done = suite.reframe('--dry-run', *CASE, '-p', '^case-')
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    assert 'no reference yet, on local:thishost' in text
    assert '(1 failure(s)' in text                     # and one can
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
    done = suite.plumb('run', '--', *OSU, '-n', '.*NothingLikeIt')
    assert done.returncode == 2
    assert 'nothing was measured' in done.stderr


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
except guards.SanityError as err:
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
        assert output == ['code 0', '.ran data run.1.err run.1.out runs.tsv '
                          'times.txt'], done
        return
    assert output[0] != 'code 0', done
    assert output[1].startswith('disk: the disk of the stage directory was '
                                'full: '), done
    assert f'{tmp_path}/stage' in output[1], done
    assert 'free space, or set another' in output[1], done


def test_a_stage_disk_that_fills_up_through_reframe(faulty):
    script = Path(faulty.variables['OMB_PREFIX'], 'osu_latency')
    script.write_text(script.read_text().replace(
        '    time_limit)', '    fills) good; ' + FILL + ' >data ;;\n'
        '    time_limit)'))
    done = in_small(
        Path(faulty.variables['PLUMBLINE_WORK'], 'stage'), '8m',
        [ROOT / 'plumb', 'run', '--bringup', *CASE, '-p', '.*-omb'],
        env={**os.environ, **faulty.variables, 'FAULT': 'fills'})
    text = failed_for(faulty, done, 'the disk of the stage directory was full')
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
    case, = [line for line in done.stdout.splitlines()
             if line.startswith(('fail  ', 'not_run  '))]
    full = f'the disk of the stage directory was full: {stage}'
    assert full in case and 'free space, or set another' in case, case
    [one] = results.newest_results_of_test_cases(records.read(faulty.tmp / 'perflogs'))
    assert full in one.reason


def test_a_disk_of_the_perflogs_that_is_full(faulty):
    """The session is cut short, and what was written before is read."""
    done = faulty.run('none', '-Sbringup=1')
    assert done.returncode == 0, done.stdout
    earlier = (faulty.tmp / 'perflogs').rename(faulty.tmp / 'earlier')
    # A little is left, for some of the rows.
    done = in_small(faulty.tmp / 'perflogs', '2m', ['sh', '-c', f'''
plumb=$1 perflogs=$2 earlier=$3 && shift 3
cp -r "$earlier/." "$perflogs" && head -c 20000 /dev/zero >"$perflogs/room"
{FILL} >"$perflogs/data" 2>/dev/null
rm "$perflogs/room"
"$plumb" run --bringup "$@"
code=$?
echo ANSWER
"$plumb" sql --csv - 'SELECT DISTINCT session FROM results'
exit $code''', 'sh', ROOT / 'plumb', faulty.tmp / 'perflogs', earlier, *CASE, '-p',
        '.*-omb'], env={**os.environ, **faulty.variables, 'FAULT': 'none'})
    output, _, answer = done.stdout.partition('\nANSWER\n')
    assert done.returncode == 1, done
    [line] = [line for line in output.splitlines() if 'No space left on device' in line]
    assert f"{faulty.tmp}/perflogs/sessions/" in line, line
    assert '\nCUT SHORT: ' in output and 'Traceback' not in done.stdout + done.stderr
    [report] = (earlier / 'sessions').glob('*.json')
    assert report.stem in answer.split()
