"""The parsers of the commands in cli/, with their help texts."""
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config import places
from config.commandline import (
    SITE_HELP,
    STATE_CODES,
    Parser,
    add_require_compared_option,
)
from config.version import VERSION

#: Task -> command -> what it does, and an example.
COMMANDS = {
    'Measure': {
        'run': ('run a session, compare, show',
                './plumb run -n OsuPt2pt'),
        'nightly': ('run a nightly session, unattended',
                    './plumb nightly schedule cron'),
        'references': ('calibrate references, list missing ones',
                       './plumb references calibrate'),
        'locate': ('find the slow node or switch',
                   './plumb locate --site mycluster')},
    'Read results': {
        'verdict': ('list regressions, and when each began',
                    './plumb verdict'),
        'report': ('write the page and the plots',
                   './plumb report'),
        'compare': ('compare sessions, sites, stacks or programs',
                    './plumb compare 2026-03-01 2026-03-02'),
        'history': ('show a metric session by session',
                    './plumb history latency'),
        'plot': ('draw your own plots from a YAML file',
                 './plumb plot mine.yaml'),
        'sql': ('query all records with SQL',
                './plumb sql "DESCRIBE results"'),
        'export': ('write Parquet or OpenMetrics',
                   './plumb export --parquet all.parquet'),
        'parse': ('convert saved program output to CSV',
                  './plumb parse osu out.txt')},
    'Set up': {
        'demo': ('show what the suite finds',
                 './plumb demo'),
        'doctor': ('list what can run here and what is missing',
                   './plumb doctor'),
        'site': ('create or check the folder of a site',
                 './plumb site new mycluster'),
        'env': ('print shell exports for plain reframe',
                'eval "$(./plumb env)"')},
    'Develop': {
        'dev': ('documentation, new families, software stacks',
                './plumb dev docs'),
        'selftest': ('set up and pass the self-tests',
                     './plumb selftest')}}

#: Command -> what it does, and an example.
ABOUT = {name: about for commands in COMMANDS.values()
         for name, about in commands.items()}

#: Command -> its module in postprocess/, with `parser` and `main`.
POSTPROCESS = {'report': 'report.build', 'plot': 'report.plot',
               'verdict': 'regressions.verdict', 'compare': 'compare',
               'history': 'history', 'export': 'export', 'sql': 'records.sql'}

#: Option -> what it does, in each command that has it.
HELP = {
    '--bringup': 'compare values only with physical limits and published values, and '
                 'not with measured references',
    '--no-wait': 'exit with 2 if another session measures on this machine, '
                 'instead of waiting for its end',
    '--site': SITE_HELP}

RUN = """Runs a session with ReFrame, compares its values and prints a table.

The command first installs missing Python packages, and for the site `local` also a
missing MPI and missing store servers. Before the first session of a mode on
a cluster it prints how many jobs and at most how many node-hours the session
needs. If stdin and stdout are a terminal, it asks before it starts; a script or
CI job is not asked. A first session with --mode smoke has one short test case per
family and partition, on two nodes if possible. --mode veto is for use after
maintenance: it runs one short test case per partition on every node at once.
-J reservation=NAME restricts it to the nodes of a reservation.

The session writes its records to the perflogs, and the command writes the
page. Options that are not listed above are passed on to ReFrame (-n, -t, -p,
-x, -E, -S, -l, --dry-run and others). Options after -- are always passed on.

`./plumb run ID...` runs exactly the test cases with these IDs, of any mode.
The table, the verdict and the page show the ID of each test case. The command
starts one session of ReFrame for each partition, environment and settings
(-S) of these test cases. Write IDs before the options of ReFrame.

""" + STATE_CODES

NIGHTLY = """Runs a nightly session: unattended, for cron or a systemd timer.

The command runs mode nightly and prints one summary. These are the differences from
`plumb run`:

- Only one nightly session of a site runs at a time, and it ends after --hours. It
  cancels the Slurm jobs of a nightly session that was killed.
- It lists nodes that Slurm reports as drained or down.
- A failed test case is measured again on its nodes, and on other nodes. If it
  passes then, it is `flaky`. If it fails only on its original nodes, the
  summary lists these nodes.
- The summary is sent to each URL of PLUMBLINE_MESSAGES, or of messages.urls in the
  folder of the site: mail, Slack, Teams or another service of apprise.

`plumb nightly schedule cron|systemd|gitlab` prints lines that start the session each
night.

Options that are not listed above are passed on to ReFrame.

""" + STATE_CODES

SCHEDULE = """Prints lines that start a nightly session each night.

KIND is cron (lines for `crontab -e`), systemd (commands that install a user's service
and timer) or gitlab (a pipeline for a runner on a login node). All other options are
passed to `plumb nightly`. The output has the variables of this shell that a session
needs (docs/reference/environment.md), without those that may be secrets.

Exit codes: 0 printed; 2 wrong usage.
"""

LOCATE = """Finds the node or switch that is slow, from pairs of nodes.

The command runs a test case of two nodes on pairs of nodes, in rounds. In the
first rounds each node is in at least three pairs. Then the suspected nodes are
paired with good nodes, inside and across the switches of topology.yaml, up to
four times. The search ends when it is certain for each node whether it is slow.

The scheduler of the partition must be Slurm (`slurm` or `squeue` in ReFrame),
with at least two nodes. The records are kept in $PLUMBLINE_WORK/locate, and
not in the perflogs. Options that are not listed above are passed on to
ReFrame.

Exit codes: 0 nothing is slow; 1 something is slow, or the search was ended
early; 2 wrong usage, or the search is not possible here.
"""

REFERENCES = """Calibrates references, and lists missing ones.

`calibrate` measures the test cases and writes the reference files of the site. Read the
difference with `git diff`, and accept it with `git commit`. `status` lists the test
cases without a reference, and the metrics without a tolerance.

`plumb references ACTION --help` lists the options of an action.
"""

CALIBRATE = """Measures test cases, and writes their references and tolerances.

The test cases are measured in rounds, until each has the number of sound sessions that
--sessions gives. A session is sound for a test case if the test case did not fail, and
was neither inconclusive nor emulated. Sound sessions of earlier commands count. A test
case that fails in three rounds in a row is not measured again. At the end the command
prints why test cases have too few sessions: one line per reason.

It ends if no test case needs more sessions, or if another round would not end within
--minutes. ^C ends it, too. The perflogs keep all values, so the next calibration
continues.

Then it writes the files FAMILY.yaml of the site. It replaces the entries of the
measured test cases, except those that a person set (with a `reason` in $from). For
files that git does not track the command prints the difference.
Options that are not listed above are passed on to ReFrame.

Exit codes: 0 good, also if the time was over before all test cases had enough
sessions; 1 no reference was written, a test case failed when it was measured
last, or a signal ended the command; 2 wrong usage or unreadable input.
"""

DOCTOR = """Lists what can run on a site from here, and what is missing.

For each benchmark family the command prints how many test cases of each mode
can run, and why a family has none. It asks Slurm or PBS which nodes of each
partition take jobs. The last line reports whether the default mode can run, and how
many minutes it takes at most, by the time limits.

Exit codes: 0 the default mode can run; 1 it cannot; 2 wrong usage.
"""

ENV = """Prints the shell exports that plain ReFrame needs to run the suite.

After `eval`, for example `reframe -l` and `reframe -r --mode=nightly` work in
any folder.
"""

PARSE = """Converts saved output of a benchmark program to CSV.

A row of the CSV is one value: file, number of the output in the file, family,
program, version, num_nodes and num_tasks of its command line, params (other
parameters of the run), size, metric, value, unit. `plumb plot`, `compare` and
`export` read it with --from. Some families read a folder of logs, or have
options of their own: `plumb parse FAMILY --help` lists them.

Exit codes: 0 good; 1 a file is not the complete output of the program; 2 wrong
usage, or a file cannot be read.
"""

DEMO = """Shows what the suite finds: in a made-up cluster, or live on this machine.

Without options the command writes perflogs of 60 nightly sessions of 64 nodes and two
sites, with four faults. Then it prints the verdict, writes the page and lists commands
to try. It measures nothing. Its files are in $PLUMBLINE_WORK/demo, are labelled as made
up, and never become references.

--live runs two test cases, the MPI latency between two ranks and a store, and writes
their references. Then it binds both ranks to one CPU, and takes half of the store's
memory away: both test cases fail. Without the faults they pass. Each step prints its
command. All files are in $PLUMBLINE_WORK/demo-live. It takes two to three minutes on
two idle CPUs.

Exit codes: 0 shown; 2 wrong usage, a file cannot be written, no browser can be
started, or a step of --live had another result than expected.
"""

SELFTEST = """Sets up what is missing and runs the tests of the suite.

Options and files that are not listed above are passed on to pytest, for
example -n0, which runs one test at a time. The last lines of the output list
the tests that were skipped or not selected, and how to run them.

Exit codes: 0 all tests passed; 1 a test failed; 2 wrong usage.
"""

BENCHMARK = """Creates a new benchmark family that runs.

The command writes checks/NAME/ (a check, its program in C, a parser,
family.yaml, README) and tests/NAME/, and prints what to change in which order.
No other file has to be edited. docs/tutorials/first-benchmark.md explains the
files.

Exit codes: 0 written; 2 wrong usage, or the name is taken.
"""

DOCS = """Builds the documentation in docs/ as HTML.

The command writes the generated pages of docs/reference/, builds all pages with
Sphinx and prints the path of the first one. Each warning is an error: a link
without a target, a page in no table of contents. The first build installs
Sphinx from config/python/sphinx.lock; no other step needs a network.

Exit codes: 0 built; 1 a page has an error; 2 wrong usage.
"""

DEV = """Commands for developers of the suite: documentation, families, software stacks.

`plumb dev ACTION --help` lists the options of an action.
"""

SPACK = """Concretizes stacks of spack-envs/ with Spack, and writes lock files.

Spack is found by SPACK_ROOT or on PATH. The lock file is written to locks/ in the
folder of the site. docs/how-to/spack.md has the commands of Spack that install a stack.

Exit codes: 0 good; 1 Spack cannot concretize a stack; 2 wrong usage.
"""

SITE = """Creates the folder of a site, or checks it.

`plumb site ACTION --help` lists the options of an action.
"""

NEW = """Creates the folder of a site from what commands of this machine print.

Run the command on a login node, or better on a compute node, which has the
GPUs and network cards. The command starts no job. cli/site/detect.yaml lists the
programs that it calls. It prints a summary, and writes the folder only after you
answer yes. A comment FINISH in a file marks a line that a person has to write. The
last lines of the output list these comments.

Network cards that are missing in config/hardware.yaml are written to
hardware.yaml of the folder, the switches of Slurm to topology.yaml.

Exit codes: 0 written, or you answered no; 2 wrong usage, or no terminal to
ask.
"""

CHECK = """Checks the folders of sites, on any machine, and runs nothing.

It checks system.py (known names of features and extras, schema of ReFrame), cases.txt
(lists the test cases that can run), references/ (files with `complete: true` have a
reference for each test case of mode quick) and spack/*.yaml (Spack can load them; only
if Spack is available). It reports for each environment
whether its programs are installed.

Exit codes: 0 good; 1 something has to be fixed; 2 wrong usage.
"""


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(prog='plumb', add_help=False)
    parser.add_argument('-V', '--version', action='version',
                        version=f'plumb {VERSION}')
    commands = parser.add_subparsers(dest='command', required=True,
                                     metavar='COMMAND')

    def add_command(name: str, text: str, example: str = '') -> Parser:
        about, usual = ABOUT[name]
        return commands.add_parser(name, help=about, text=text,
                                   example=example or usual)

    _add_run_options(add_command('run', RUN))
    _add_nightly_options(
        add_command('nightly', NIGHTLY,
                    './plumb nightly --site mycluster --json night.json'))
    # Its options cannot be those of a subparser of `nightly`, which passes words that
    # it does not know on to ReFrame.
    schedule = commands.add_parser(
        'nightly schedule', text=SCHEDULE, prog='plumb nightly schedule',
        example='./plumb nightly schedule cron --site mycluster')
    schedule.add_argument('kind', metavar='KIND', choices=('cron', 'systemd', 'gitlab'),
                          help='cron, systemd or gitlab')
    _add_nightly_options(schedule)
    _add_locate_options(add_command('locate', LOCATE, "./plumb locate --site mycluster "
                                    "--partition gpu --nodes 'n[1-16]'"))
    # Those with actions show no example of their own.
    _add_references_actions(
        _add_command_with_actions(commands, 'references', REFERENCES)
    )
    for name in POSTPROCESS:
        commands.add_parser(name, add_help=False).add_argument(
            'rest', nargs=argparse.REMAINDER)
    _add_parse_options(add_command('parse', PARSE))
    doctor = add_command('doctor', DOCTOR, './plumb doctor --site mycluster')
    _add_site_option(doctor.add_argument_group('which site'))
    doctor.add_argument_group('output').add_argument(
        '--all', action='store_true', help='list the tools, environments and stores, '
        'the optional parts of each family, and the cost of each mode')
    _add_site_actions(_add_command_with_actions(commands, 'site', SITE))
    demo = add_command('demo', DEMO)
    demo.add_argument_group('what to show').add_argument(
        '--live', action='store_true', help='measure on this machine, with two real '
        'faults that are made and removed')
    demo.add_argument_group('output').add_argument(
        '--open', action='store_true', help='open the page in a browser')
    env = add_command('env', ENV, 'eval "$(./plumb env --site mycluster)"')
    _add_site_option(env.add_argument_group('which site'))
    env.add_argument_group('which ReFrame').add_argument(
        '--own-reframe', action='store_true',
        help='keep the `reframe` of your PATH, for example that of a module')
    _add_dev_actions(_add_command_with_actions(commands, 'dev', DEV))
    _add_selftest_options(add_command('selftest', SELFTEST,
                                      './plumb selftest -n0 tests/cli/test_run.py'))
    return parser


def _add_command_with_actions(commands: Any, name: str, text: str) -> Any:
    about, example = ABOUT[name]
    return commands.add_parser(
        name, help=about, text=text, example=example).add_subparsers(
            dest='action', required=True, metavar='ACTION', title='actions')


def _add_site_option(group: Any) -> None:
    group.add_argument('--site', metavar='SITE', help=HELP['--site'],
                       default=places.default_site())


def _add_measurement_options(parser: Parser, mode: str, modes: str) -> Any:
    """The options of commands that measure test cases of a mode."""
    group = parser.add_argument_group('what to measure')
    _add_site_option(group)
    group.add_argument('--mode', metavar='MODE', default=mode,
                       help='the selection of test cases to measure: '
                       f'{modes} (default: {mode})')
    group.add_argument('--bringup', action='store_true',
                       help=HELP['--bringup'])
    return group


def _add_no_wait_option(parser: Parser) -> None:
    parser.add_argument_group('other sessions').add_argument(
        '--no-wait', dest='wait', action='store_false',
        help=HELP['--no-wait'])


def _add_run_options(parser: Parser) -> None:
    what = _add_measurement_options(parser, 'quick', 'smoke, quick, full or veto')
    what.add_argument('--suspects', action='store_true',
                      help='measure only the test cases of regressions that are not '
                      'certain, and those that did not run because their session ended '
                      'early; end at once if none exist')
    what.add_argument('--inside', action='store_true',
                      help='in a job script of Slurm or PBS: measure on the nodes of '
                      'this job, and submit no jobs')
    what.add_argument('--yes', action='store_true',
                      help='on a cluster, do not ask before the session starts')
    parser.add_argument_group('output').add_argument(
        '--all', action='store_true', help='list all test cases: also those that '
        "passed, and those without a reference; -v prints ReFrame's own output")
    _add_no_wait_option(parser)
    add_require_compared_option(parser.add_argument_group('exit code'))


def _number(kind: type[int] | type[float], least: float) -> Callable[[str], float]:
    """The type of an option that is a number of at least this size."""
    def parse_number(text: str) -> float:
        try:
            if (number := kind(text)) >= least:
                return number
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f'{text!r} is not a number of at least '
                                         f'{least}')
    return parse_number


def _add_nightly_options(parser: Parser) -> None:
    _add_measurement_options(parser, 'nightly', 'quick, nightly or full')
    limits = parser.add_argument_group('limits')
    limits.add_argument('--hours', type=_number(float, 0.001), default=20.0,
                        metavar='H', help='end the session after H hours (default: 20)')
    summary = parser.add_argument_group('summary')
    summary.add_argument('--text', metavar='FILE',
                         help='also write the summary to FILE')
    summary.add_argument('--json', metavar='FILE',
                         help='write the summary as JSON to FILE')
    summary.add_argument('--page-url', default='', metavar='URL',
                         help='the address of the page for other people; the summary '
                              'has this URL instead of the path of the page')
    add_require_compared_option(parser.add_argument_group('exit code'))
    parser.set_defaults(wait=True)


def _add_locate_options(parser: Parser) -> None:
    where = parser.add_argument_group('where to search')
    _add_site_option(where)
    where.add_argument('--partition', metavar='P',
                       help='the partition of the site (default: the only one '
                            'of Slurm)')
    where.add_argument('--nodes', metavar='LIST',
                       help='only these nodes, for example n[1-16,20] '
                            '(default: all that Slurm gives to jobs)')
    what = parser.add_argument_group('what to measure')
    what.add_argument('--metric', metavar='M',
                      help='bandwidth or latency (default: bandwidth)')
    what.add_argument('--test-case', metavar='ID',
                      help='another test case of two nodes, by its short ID')
    what.add_argument('--environ', metavar='E',
                      help='an environment of the partition (default: the '
                           'first one that has the test case)')
    what.add_argument('--repetitions', type=int, default=1, metavar='N',
                      help='repetitions inside each job; the median counts '
                           '(default: 1)')
    how = parser.add_argument_group('how to search')
    how.add_argument('--slowdown', type=float, default=10, metavar='PERCENT',
                     help='the slowdown to find, in percent; a slowdown of '
                          'half this size is found in half of the searches '
                          '(default: 10)')
    how.add_argument('--parallel', type=int, metavar='N',
                     help='jobs that run at the same time (default, and at most: '
                          'max_jobs of the partition)')
    parser.add_argument_group('output').add_argument(
        '--json', metavar='FILE',
        help='write the result as JSON to FILE; - prints it, and nothing else')


def _add_references_actions(actions: Any) -> None:
    calibrate = actions.add_parser(
        'calibrate', text=CALIBRATE, example='./plumb references calibrate '
        '--site mycluster --minutes 120',
        help='measure, and write the reference files')
    _add_measurement_options(calibrate, 'quick', 'quick, nightly or full')
    rounds = calibrate.add_argument_group('rounds')
    rounds.add_argument('--sessions', type=_number(int, 5), default=5, metavar='N',
                        help='number of sound sessions that each test case needs '
                             '(default: 5, the minimum)')
    rounds.add_argument('--new-level', action='store_true',
                        help='after an intended change: use only what this command '
                             'measures, also values that failed only because they '
                             'are out of the old tolerance')
    rounds.add_argument('--minutes', type=_number(float, 0.001), default=60,
                        metavar='T', help='end after T minutes; the first round is '
                             'always measured (default: 60)')
    # Virtual machines were seen to change their clock every 10 to 95 s:
    # sessions that follow at once would not show how much values vary.
    rounds.add_argument('--interval', type=float, default=60, metavar='S',
                        help='begin a round at least S seconds after the begin of the '
                             'previous round, so that the rounds show how much the '
                             'values vary (default: 60)')
    calibrate.add_argument_group('output').add_argument(
        '--all', action='store_true', help='after each round, list also the test cases '
        'that need more sessions, not only those that failed; at the end list all '
        'test cases by name')
    _add_no_wait_option(calibrate)
    # Only for the help: postprocess/references/status.py parses its options.
    actions.add_parser('status', add_help=False,
                       help='list missing references and tolerances')


def _add_parse_options(parser: Parser) -> None:
    parser.add_argument('family', metavar='FAMILY',
                        help='a folder of checks/ that has a parser')
    parser.add_argument('files', nargs='+', metavar='FILE',
                        help='saved output; - reads standard input')
    parser.add_argument_group('output').add_argument(
        '--csv', metavar='FILE', default='-',
        help='write the CSV to FILE (default: -, which prints it)')
    if sys.argv[1:2] == ['parse']:
        # Imported for this command alone: the parsers of all families.
        from cli.session.parse import add_family_options

        add_family_options(parser, next((word for word in sys.argv[2:]
                                         if not word.startswith('-')), ''))


def _add_site_actions(actions: Any) -> None:
    new = actions.add_parser(
        'new', text=NEW, help='create a folder for this cluster',
        example='./plumb site new mycluster --access=--account=abc '
                '--modules openmpi/5.0')
    new.add_argument('name', metavar='NAME',
                     help='the name of the site and its folder: letters, digits, _ '
                          'and -; begins with a letter')
    detect = new.add_argument_group('what to detect')
    detect.add_argument('--partition', action='append', metavar='P',
                        help='only this partition of Slurm, or queue of PBS; '
                             'may be repeated')
    detect.add_argument('--recorded', type=Path, metavar='DIR',
                        help='read the output of the commands from files in '
                             'DIR (tests/data/sites/README.md)')
    use = new.add_argument_group('what jobs use')
    use.add_argument('--launcher', choices=('srun', 'mpirun', 'mpiexec'),
                     help='the launcher of MPI programs (default: the one of '
                          'the MPI that is found)')
    use.add_argument('--access', action='append', default=[], metavar='OPT',
                     help='an option that jobs need, for example '
                          '--access=--account=x; may be repeated')
    use.add_argument('--modules', default='', metavar='"M ..."',
                     help='modules of the MPI')
    output = new.add_argument_group('output')
    output.add_argument('--path', type=Path, metavar='DIR',
                        help='the folder to create (default: '
                             'site-configs/NAME)')
    output.add_argument('--yes', action='store_true',
                        help='write without asking')
    check = actions.add_parser(
        'check', text=CHECK, help='check the folders of sites',
        example='./plumb site check hgx-h100')
    which = check.add_argument_group('which sites')
    which.add_argument('sites', nargs='*', metavar='SITE',
                       help='a folder of site-configs/, or the path of one')
    which.add_argument('--all', action='store_true',
                       help='all folders of site-configs/')
    output = check.add_argument_group('output')
    output.add_argument('--references', action='store_true',
                        help='list the test cases that have a reference with a '
                        'tolerance: name, ID, place, and source of the reference')
    output.add_argument('--update', action='store_true',
                        help='write cases.txt with the test cases that can run now')


def _add_dev_actions(actions: Any) -> None:
    actions.add_parser('docs', text=DOCS, help='build the documentation as HTML',
                       example='./plumb dev docs')
    new = actions.add_parser(
        'benchmark', text=BENCHMARK, help='create a working family of checks',
        example='./plumb dev benchmark new copy')
    new.add_argument('new', choices=('new',), metavar='new',
                     help='creates the family; there is no other action')
    new.add_argument('name', metavar='NAME',
                     help='the name of the family: a-z, 0-9 and _')
    spack = actions.add_parser(
        'spack', text=SPACK, help='concretize the stacks of a site with Spack',
        example='./plumb dev spack lock --site mycluster')
    spack.add_argument('what', choices=('lock',), metavar='lock',
                       help='writes lock files; there is no other action')
    which = spack.add_argument_group('what to concretize')
    _add_site_option(which)
    which.add_argument(
        '--stack', action='append', metavar='STACK',
        help='a folder of spack-envs/; may be repeated (default: all '
             'stacks that the environments of the site name)')


def _add_selftest_options(parser: Parser) -> None:
    which = parser.add_argument_group('which tests')
    which.add_argument('--cluster', action='store_true',
                       help='also run the tests on a Slurm cluster of network '
                            'namespaces (tests/cluster)')
    which.add_argument('--strict', action='store_true',
                       help='also run the long versions of tests, and fail '
                            'instead of skipping if a package of '
                            '.ci/packages.txt is missing (CI does)')
    which.add_argument('--slow', action='store_true',
                       help='also run the tests that take minutes each')
    parts = parser.add_argument_group('one suite on two machines')
    parts.add_argument('--outcomes', type=Path, metavar='FILE',
                       help='write how each test ended, as JSON')
    parts.add_argument('--except-passed', type=Path, metavar='FILE',
                       help='leave out the tests that passed according to FILE, '
                            'which --outcomes wrote (an empty file leaves out none)')
