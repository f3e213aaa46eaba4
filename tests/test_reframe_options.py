"""Options of plain ReFrame under `plumb env`: the table of the README."""
from __future__ import annotations

import json
import re

import pytest
from conftest import OSU, ROOT, suite_in
from test_faults import another_site

HELLO = ['-n', 'OsuStartup', '-E', 'program == "osu_hello"', '-Sbringup=1']
#: The same, where it is not tested what else there is.
ALONE = [*OSU, *HELLO]


@pytest.fixture(scope='module')
def suite(tmp_path_factory):
    """One place for all rows: what is built once is there."""
    return suite_in(tmp_path_factory.mktemp('options'))


def ran(suite, *args, code=0):
    done = suite.reframe(*args)
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    assert 'Traceback' not in text
    return done


def records(suite, before):
    return suite.records[before:]


def lists(suite):
    for option in ('-L', '-lC', '--list-tags'):
        assert 'OsuStartup' in ran(suite, option, *ALONE).stdout \
            or option == '--list-tags'
    assert json.loads(ran(suite, '--describe', *ALONE).stdout)
    assert 'OsuStartup' in ran(suite, '-l', *HELLO).stdout


def filters(suite):
    for options in (['-n'], [*OSU, '-t'], [*OSU, '-p']):
        done = ran(suite, '-r', *options, 'nosuch', code=1)
        assert done.stderr.startswith('plumb: zero cases ran')


def sets_a_variable(suite):
    before = len(suite.records)
    ran(suite, '-r', *ALONE, '-Srepeats=2')
    assert {r['repeat'] for r in records(suite, before)} == {'0', '1', '2'}


def verbose(suite):
    assert 'P: wall_time: ' in ran(suite, '-r', '-v', *ALONE).stdout
    assert 'P: ' not in ran(suite, '-r', *ALONE).stdout


def serial(suite):
    before = len(suite.records)
    ran(suite, '-r', '--exec-policy=serial', *ALONE)
    assert records(suite, before)


def dry_run(suite):
    ran(suite, '--dry-run')
    for family in ('osu', 'keyvalue', 'taobench'):
        suite.write_references({'complete': True}, family)
    done = ran(suite, '--dry-run', '-n',
               'OsuPt2pt|OsuStartup|StoreServes|TaoBench', code=1)
    causes = [ln for ln in done.stdout.splitlines()
              if re.match(r'\d+ test cases?: ', ln)]
    # One per family; ReFrame adds no report of its own.
    assert len(causes) == len({c.split(': ')[2] for c in causes}) == 3
    assert all('references learn' in c and '(e.g. ' in c for c in causes)
    assert 'SUMMARY OF FAILURES' not in done.stdout
    number = sum(int(cause.split()[0]) for cause in causes)
    assert f'plumb: {number} test cases cannot run here' in done.stderr
    ran(suite, '--dry-run', *ALONE)


def reruns(suite):
    before = len(suite.records)
    ran(suite, '-r', '--reruns=1', *ALONE)
    assert sum(r['metric'] == 'wall_time'
               for r in records(suite, before)) == 2


def repeat(suite):
    before = len(suite.records)
    ran(suite, '-r', '--repeat=2', *ALONE)
    assert len({r['case'] for r in records(suite, before)}) == 2


def duration(suite):
    before = len(suite.records)
    done = ran(suite, '-r', '--duration=10s', *ALONE)
    assert '--duration: maximum session duration exceeded' in done.stdout
    assert records(suite, before)
    assert 'fail' not in {r['result'] for r in records(suite, before)}
    # Too short for a single round: nothing was measured.
    before = len(suite.records)
    done = ran(suite, '-r', '--duration=1s', *OSU, '-n', 'OsuStartup',
               '-Sbringup=1', code=1)
    assert 'cancelled' in {r['guard'] for r in records(suite, before)}


def broken(suite, *args):
    """A run on a site that has no compiler."""
    if not (suite.tmp / 'site').exists():
        another_site(suite, suite.tmp, '''
for _env in site_configuration['environments']:
    _env['cc'] = 'false'
''')
        suite.variables.pop('PLUMBLINE_SITE')
    done = suite.reframe('-r', *HELLO, *args,
                         PLUMBLINE_SITE=str(suite.tmp / 'site'))
    assert done.returncode == 1, done.stdout + done.stderr
    return done


def max_retries(suite):
    before = len(suite.records)
    broken(suite, '--max-retries=1')
    assert [r['guard'] for r in records(suite, before)] == ['build', 'build']


def maxfail(suite):
    before = len(suite.records)
    broken(suite, '--maxfail=1')
    assert [r['guard'] for r in records(suite, before)] == ['cancelled']


def stored(suite):
    ran(suite, '-r', *HELLO)
    assert ran(suite, '--list-stored-sessions').stdout
    assert 'wall_time' in ran(
        suite, '--list-stored-testcases=now-1d:now/mean:/').stdout


def of_plumb_run(suite):
    done = suite.plumb('run', '--bringup', '--dry-run', *HELLO[:4])
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'zero cases' not in done.stderr
    done = suite.plumb('run', '-l', *HELLO[:4], '-p', '^nosuch$')
    # ReFrame ignores -p beside --mode.
    assert done.returncode == 0 and 'Found 0 check' in done.stdout


ROWS = {
    '`-l`, `-L`, `--describe`, `--list-tags`': lists,
    '`-n`, `-t`, `-p`, `-x`, `-E`': filters,
    '`-S VAR=VALUE`': sets_a_variable,
    '`-v`': verbose,
    '`--exec-policy=serial`': serial,
    '`--dry-run`': dry_run,
    '`--reruns N`': reruns,
    '`--repeat N`': repeat,
    '`--duration T`': duration,
    '`--max-retries N`': max_retries,
    '`--maxfail N`': maxfail,
    '`--list-stored-sessions`, `--list-stored-testcases`': stored,
    '`./plumb run --dry-run`, `./plumb run -l`': of_plumb_run,
}


def test_the_table_of_the_readme_is_tested():
    text = (ROOT / 'README.md').read_text()
    rows = re.findall(r'^\| (`.*?) \| .* \| (\w+) \|$', text, re.M)
    assert rows == [(flag, row.__name__) for flag, row in ROWS.items()]


@pytest.mark.parametrize('row', ROWS.values(), ids=lambda r: r.__name__)
def test_option(suite, row):
    row(suite)
