"""Options of plain ReFrame under `plumb env`: docs/reference/sessions.md."""
from __future__ import annotations

import inspect
import json
import re

import pytest
from conftest import OSU, ROOT, suite_in

from cli.session.reframe_options import FLAGS, OPTIONALLY_VALUED, VALUED
from tests.checks.test_faults import another_site

ALONE = [*OSU, '-n', 'OsuStartup', '-E', 'program == "osu_hello"',
         '-Sbringup=1']


@pytest.fixture(scope='module')
def suite(tmp_path_factory):
    """One place for all rows: what is built once is there."""
    return suite_in(tmp_path_factory.mktemp('options'))


class Session:
    """A session, its output and its records."""

    def __init__(self, suite, *args, code=0, **more):
        before = {r['session'] for r in suite.records}
        done = suite.reframe('-r', *ALONE, *args, **more)
        self.stdout = done.stdout
        self.text = done.stdout + done.stderr
        assert done.returncode == code, self.text
        assert 'Traceback' not in self.text
        self.records = [r for r in suite.records if r['session'] not in before]


@pytest.fixture(scope='module')
def copied(suite):
    """A session with the options of five rows."""
    return Session(suite, '-Srepetitions=2', '--repeat=2', '--reruns=1', '-v',
                   '--exec-policy=serial')


def ran(suite, *args, code=0):
    done = suite.reframe(*args)
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    assert 'Traceback' not in text
    return done


def lists(suite):
    assert 'OsuStartup' in ran(suite, '-L', *ALONE).stdout


def filters(suite):
    done = suite.plumb('run', *OSU, '-x', '.*')
    assert done.returncode == 2 and 'no test case' in done.stderr


def sets_a_variable(copied):
    assert {r['repetition'] for r in copied.records} == {'0', '1', '2'}


def verbose(copied):
    assert 'P: wall_time: ' in copied.stdout


def serial(copied):
    assert copied.records


def dry_run(suite):
    ran(suite, '--dry-run', *ALONE)
    suite.write_references({'complete': True}, 'osu')
    done = ran(suite, '--dry-run', *ALONE[:-1], code=1)
    assert 'references calibrate' in done.stdout


def test_a_boolean_variable_can_be_set_to_false(suite):
    """To Python bool('0') is true, and `plumb locate` validated all its data."""
    cases = json.loads(ran(suite, '--describe', *ALONE, '-Svalidates=0').stdout)
    assert {case['validates'] for case in cases} == {False}


def reruns(copied):
    assert {r['measurements'] for r in copied.records} == {'2'}


def repetition(copied):
    assert {r['copy'] for r in copied.records} == {'repeat_no=0', 'repeat_no=1'}
    assert len({r['test_case'] for r in copied.records}) == 1


def duration(suite):
    done = suite.plumb('run', '--bringup', *ALONE[:-1], '--duration=2s')
    assert done.returncode == 0, done.stdout + done.stderr
    assert suite.records
    assert 'fail' not in {r['result'] for r in suite.records}


def broken(suite, *args):
    """Guards of the records of a session on a site that has no compiler."""
    if not (suite.tmp / 'site').exists():
        another_site(suite, suite.tmp, '''
for _env in site_configuration['environments']:
    _env['cc'] = 'false'
''')
        suite.variables.pop('PLUMBLINE_SITE')
    session = Session(suite, *args, code=1,
                      PLUMBLINE_SITE=str(suite.tmp / 'site'))
    return [r['guard'] for r in session.records]


def max_retries(suite):
    assert broken(suite, '--max-retries=1') == ['build']


def maxfail(suite):
    assert broken(suite, '--maxfail=1') == ['cancelled']


def stored(suite, copied):
    assert 'wall_time' in ran(
        suite, '--list-stored-testcases=now-1d:now/mean:/').stdout


def of_plumb_run(suite):
    done = suite.plumb('run', '--bringup', '--dry-run', *ALONE[:-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'zero cases' not in done.stderr
    # It removes no session that measured.
    about = suite.tmp / 'work' / 'sessions' / 'last' / 'session.json'
    assert json.loads(about.read_text())['kind'] == 'idle'
    done = suite.plumb('run', '-l', *ALONE[:-1], '-p', '^nosuch$')
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
    '`--repeat N`': repetition,
    '`--duration T`': duration,
    '`--max-retries N`': max_retries,
    '`--maxfail N`': maxfail,
    '`--list-stored-sessions`, `--list-stored-testcases`': stored,
    '`./plumb run --dry-run`, `./plumb run -l`': of_plumb_run,
}


def test_the_table_of_the_documentation_is_tested():
    text = (ROOT / 'docs' / 'reference' / 'sessions.md').read_text()
    table = text.partition('| option of ReFrame |')[2].partition('\n\n')[0]
    assert re.findall(r'^\| (`.*?) \| ', table, re.M) == [*ROWS]


@pytest.mark.parametrize('row', ROWS.values(), ids=lambda r: r.__name__)
def test_option(request, suite, row):
    row(*map(request.getfixturevalue, inspect.signature(row).parameters))


def test_all_options_of_reframe_are_known(suite):
    """A slip is refused before set-up, by the suite's own list."""
    text = ran(suite, '--help').stdout.partition('\n  -h, --help')[2]
    options = re.findall(r'^  (?:-\w(?: [^-\s]\S*)?, )?(--[\w-]+)( \[?[A-Z{\[]\S*)?',
                         text, re.M)
    assert len(options) > 60
    known = {name.rpartition('/')[2]: bool(value)
             for value, names in enumerate((FLAGS, [*VALUED, *OPTIONALLY_VALUED]))
             for name in names}
    assert {name: bool(value) for name, value in options} == {
        name: value for name, value in known.items() if name != '--help'}
