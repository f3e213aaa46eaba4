"""Regression tests for the data paths of clusters: MPI, GPUs, stores.

Exit codes: 0 good, 1 something failed or regressed, 2 usage or unreadable
input.
"""
from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

if not __package__:                     # called by path, from ./plumb
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from cli import pipes
from cli.setup import bundle_file
from cli.setup import venv as setup
from config.sessions import caller
from config.version import VERSION

#: Task -> command -> what it does, and an example.
COMMANDS = {
    'Measure': {
        'run': ('run a session, compare, show',
                './plumb run -n OsuPt2pt'),
        'nightly': ('run a nightly session, unattended',
                    './plumb nightly --print cron'),
        'references': ('calibrate, propose and accept references',
                       './plumb references calibrate --accept'),
        'locate': ('find the slow node, link or switch',
                   './plumb locate --site mycluster')},
    'Read results': {
        'verdict': ('list regressions and since when they last',
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
                './plumb sql "DESCRIBE records"'),
        'export': ('write Parquet, CSV, JUnit or OpenMetrics',
                   './plumb export --csv all.csv'),
        'parse': ('convert saved program output to CSV',
                  './plumb parse osu out.txt')},
    'Set up': {
        'doctor': ('list what can run here and what is missing',
                   './plumb doctor'),
        'site': ('create or check the folder of a site',
                 './plumb site new mycluster'),
        'spack': ('install software stacks beforehand',
                  './plumb spack install --site mycluster'),
        'bundle': ('pack what set-up needs without a network',
                   './plumb bundle wheels.tar'),
        'env': ('print shell exports for plain reframe',
                'eval "$(./plumb env)"'),
        'completion': ('print the completion script of a shell',
                       'eval "$(./plumb completion bash)"')},
    'Develop': {
        'benchmark': ('create a benchmark family',
                      './plumb benchmark new copy'),
        'selftest': ('set up and pass the self-tests',
                 './plumb selftest')}}

#: Command -> what it does, and an example.
ABOUT = {name: about for commands in COMMANDS.values()
         for name, about in commands.items()}

#: Commands whose parsers are in postprocess/.
POSTPROCESS = ('report', 'plot', 'verdict', 'compare', 'history', 'export',
               'sql')

#: Commands that pass options that they do not know on to another program.
PASSING = {'run': 'reframe', 'nightly': 'reframe', 'locate': 'reframe',
           'references calibrate': 'reframe', 'selftest': 'pytest'}


def in_venv(args: argparse.Namespace) -> None:
    """Goes on inside the venv, which is made where it is missing."""
    python = setup.ensure_venv(tests=args.command == 'selftest')
    # Not sys.executable: a venv's python may be a link to this very one.
    if Path(sys.prefix) != python.parent.parent:
        os.execv(python, [str(python), str(setup.ROOT / 'cli'),
                          *sys.argv[1:]])


def texts(doc: str) -> dict[str, Any]:
    """What a parser is given to show a text: its first paragraph above the
    options, the rest as it stands below them."""
    head, _, rest = doc.partition('\n\n')
    return {'description': head, 'epilog': rest,
            'formatter_class': argparse.RawDescriptionHelpFormatter}


def overview() -> str:
    """The commands by task, with an example each."""
    lines = ['usage: plumb COMMAND [OPTION...]', '',
             __doc__.partition('\n')[0]]
    for task, commands in COMMANDS.items():
        lines += ['', f'{task}:']
        lines += [f'  {name:11} {text:44} {example}'
                  for name, (text, example) in commands.items()]
    return '\n'.join([
        *lines, '',
        'plumb COMMAND --help lists the options of a command.', '',
        __doc__.partition('\n\n')[2]])


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """A question with the most similar word; empty if none is similar."""
    similar = difflib.get_close_matches(word, words, 1, cutoff)
    return f'did you mean {similar[0]}? ' if similar else ''


class Parser(argparse.ArgumentParser):
    """A parser whose options are never abbreviated, because an option that
    it does not know may be one of ReFrame."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.set_defaults(parser=self)

    def all_options(self) -> list[str]:
        """The long options of this parser."""
        return [word for action in self._actions
                for word in action.option_strings if word.startswith('--')]


def parsed(words: list[str]) -> argparse.Namespace:
    """The command and its options.

    What a command does not know, and all after `--`, is in `reframe` or
    `pytest` if the command passes it on; otherwise it ends with exit code 2.
    """
    own, after = words, []
    if '--' in words:
        where = words.index('--')
        own, after = words[:where], words[where + 1:]
    args, unknown = arguments().parse_known_args(own)
    options: Parser = args.parser
    command = options.prog.removeprefix('plumb ')
    passes = PASSING.get(command)
    for word in unknown:
        # An option of the other program is rarely that similar.
        similar = nearest(word.partition('=')[0], options.all_options(),
                          0.8 if passes else 0.6)
        if not passes:
            options.error(f'unknown argument {word}: {similar}'
                          f'plumb {command} --help lists the options')
        if word.startswith('--') and similar:
            options.error(f'unknown option {word}: {similar}'
                          f'An option of {passes} follows --')
    if passes:
        setattr(args, passes, unknown + after)
    elif after:
        options.error(f'no argument after -- is expected: {after[0]}')
    return args


def arguments() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(prog='plumb', add_help=False)
    parser.add_argument('--version', action='version',
                        version=f'plumb {VERSION}')
    commands = parser.add_subparsers(dest='command', required=True,
                                     metavar='COMMAND')

    def command(name: str, text: str, **more: Any) -> argparse.ArgumentParser:
        about, example = ABOUT[name]
        return commands.add_parser(
            name, help=about, description=text, epilog=f'Example: {example}',
            **more)

    site = argparse.ArgumentParser(add_help=False)
    site.add_argument('--site', metavar='SITE',
                      default=os.environ.get('PLUMBLINE_SITE', 'local'),
                      help='a folder of site-configs/, or the path of one '
                           '(default: PLUMBLINE_SITE, or local, this machine)')
    run = command(
        'run', 'Sets up what is missing, runs a mode with ReFrame, writes '
        'perflogs and a report, and ends with a table. Other options are '
        'passed on to ReFrame (-n, -t, -x, -E, -S, -p ...).', parents=[site])
    run.add_argument('--mode', default='quick',
                     help='quick (default) or full')
    run.add_argument('--bringup', action='store_true',
                     help='no references yet: record, judge by limits and '
                          'vendor profile alone')
    run.add_argument('--no-wait', dest='wait', action='store_false',
                     help='where this machine is measured already: exit 2, '
                          'and do not wait for the end of the other run')
    _locate(commands, site)
    _nightly(commands, site)
    command('env', 'Prints shell exports for plain reframe.', parents=[site])
    command('doctor', 'Lists for every family what can run on the site from '
            'here, what cannot, why, and how to change it; for every mode '
            'its test cases and node-hours, estimated from the perflogs or '
            'else from time limits.', parents=[site])
    shells = command(
        'completion', 'Prints a script that completes commands and options.')
    shells.add_argument('shell', choices=('bash', 'zsh', 'fish'))
    parse = command('parse', 'Converts saved program output to CSV.')
    parse.add_argument('family', help='a folder under checks/ that has a '
                       'parser')
    parse.add_argument('files', nargs='+', metavar='FILE',
                       help='saved output; - reads standard input; a folder '
                       'of logs, where the family has some. Options of its '
                       'own: ./plumb parse FAMILY --help')
    if sys.argv[1:2] == ['parse']:
        # Imported for this command alone: what is known of a family.
        from cli.session.parse import add_options

        add_options(parse, next((word for word in sys.argv[2:]
                                 if not word.startswith('-')), ''))
    _references(command('references', 'Calibrates, proposes and accepts '
                        'references.'), site)
    for name in POSTPROCESS:
        commands.add_parser(name, add_help=False).add_argument(
            'rest', nargs=argparse.REMAINDER)
    _spack(command('spack', 'Installs software stacks beforehand.'), site)
    site_arguments(commands)
    _benchmark(command('benchmark', 'Creates a benchmark family.'))
    _bundle(commands)
    test = command(
        'selftest', 'Sets up and passes the self-tests. Other options and '
        'files are passed on to pytest.')
    test.add_argument('--cluster', action='store_true',
                      help='also those on a Slurm cluster of namespaces '
                           '(tests/cluster)')
    test.add_argument('--strict', action='store_true',
                      help='also those that repeat at length what others '
                           'show; what a package of .ci/packages.txt has is '
                           'no reason to skip: it fails (as CI asks)')
    test.add_argument('--slow', action='store_true',
                      help='also those that take minutes each, which CI has '
                           'no time for')
    return parser


BENCHMARK = """Makes a family: checks/NAME/ and tests/NAME/, which run at once.

A check, its program in C, a parser with its golden output, family.yaml,
README and tests; then says what to change, in which order. Nothing else is
edited to add a benchmark: README.md, "Add a benchmark", walks through it.

Examples:
  ./plumb benchmark new copy
  ./plumb benchmark new echo --service

Exit codes: 0 written, 2 usage, or the name is taken.
"""


def _benchmark(parser: argparse.ArgumentParser) -> None:
    """The actions of `plumb benchmark`."""
    new = parser.add_subparsers(
        dest='action', required=True, metavar='new').add_parser(
            'new', help='a family that runs at once', **texts(BENCHMARK))
    new.add_argument('name', help='of the family: a-z, 0-9 and _')
    new.add_argument('--service', action='store_true',
                     help='a server in the job, and a client that asks it; '
                          'else one program')


LOCATE = """Names the node, link or switch that is slow, by pairs of nodes.

Runs one case of two nodes on pairs: first every node once or more, all pairs
of a round at the same time; then those that are not decided, with nodes that
are good, inside and across the switches of topology.yaml. It ends when no pair
could decide more. One round, and a few jobs for each slow node, are usual:
of 512 nodes five that are 10 % slower take some 380 jobs in 7 rounds.

Without options it looks where `plumb verdict` says that something regressed:
that partition, and bandwidth or latency, whichever it was.

What is slow is told with its evidence: how much slower than good pairs, by how
many pairs that nothing else explains, z, and the odds. Where that is not
enough it is told as unclear, and why: two nodes are one pair; behind a slow
switch all nodes look alike. If all nodes are slow there is nothing to locate.

The partition must have slurm or squeue, and two nodes. The records stay in
$PLUMBLINE_WORK/locate, apart from those of the nights, and are judged by
nothing else.

Examples:
  ./plumb locate --site mycluster
  ./plumb locate --site mycluster --partition gpu --metric latency
  ./plumb locate --site mycluster --nodes 'n[1-16]' --all-pairs
  ./plumb locate --site mycluster --hash 3f2a91c0 -Stime_limit=5m
                                   other options are passed on to ReFrame

Exit codes: 0 nothing is slow, 1 something is named, or the search was cut
short, 2 usage, or it cannot be done here.
"""


def _locate(commands: Any, site: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        'locate', parents=[site], help='which node, link or switch is slow',
        **texts(LOCATE))
    parser.add_argument('--partition', metavar='P',
                        help='of the site (default: the one with most that '
                             'regressed, or the only one)')
    parser.add_argument('--nodes', metavar='LIST',
                        help='only these, e.g. n[1-16,20] (default: all that '
                             'Slurm gives to jobs)')
    parser.add_argument('--metric', metavar='M',
                        help='bandwidth or latency (default: what regressed, '
                             'or bandwidth)')
    parser.add_argument('--hash', metavar='HASH',
                        help='another case of two nodes')
    parser.add_argument('--environ', metavar='E',
                        help='of the partition (default: the first that has '
                             'the case)')
    parser.add_argument('--slowdown', type=float, default=10, metavar='%',
                        help='what is looked for, in percent (default: 10); '
                             'half of it is as likely as not to be named')
    parser.add_argument('--repeats', type=int, default=1, metavar='N',
                        help='runs inside a job, the median counts '
                             '(default: 1)')
    parser.add_argument('--parallel', type=int, metavar='N',
                        help='jobs at the same time (default: max_jobs of '
                             'the partition)')
    parser.add_argument('--all-pairs', action='store_true',
                        help='every pair first: n - 1 rounds, and each link '
                             'is seen')
    parser.add_argument('--json', metavar='FILE',
                        help='write the verdict as JSON; - is standard '
                             'output, and nothing else goes there')


NIGHTLY = """A night's measurements, for nobody who looks on: by cron or timer.

Runs the mode nightly, measures again what failed, and says in one text what
is to be known. It is `./plumb run`, and besides:

  overlap     One night of a site at a time. Another one is refused, with who
              runs since when; one that is older than --hours hangs, and is
              ended: its processes, its jobs of Slurm. What a night that was
              killed has left is ended, too.
  nodes       Under Slurm: nodes that are drained or down are left out, and
              told. Slurm chooses the nodes of the jobs; besides, those that
              were not measured for longest are measured by the shortest of
              the widest cases, so that a node that is free at night is
              measured within --max-node-age nights.
  failures    Each is measured again: on the same nodes, then on others. If it
              does not fail again, the test case is `flaky`. If it fails only
              on its original nodes, the report lists these nodes. What is
              out of tolerance was measured four times already, and goes to
              other nodes at once.
              What was worse by its history for one night is measured three
              times more, which tells.
  nodes       --locate: after a regression of cases on several nodes, pairs of
              nodes are measured until it is known which node, link or switch
              is slow (./plumb locate).
  folders     Stage and output folders of the last --keep-sessions nights are
              kept.
  telling     Text, page, and files to be sent by others: --mail FILE (a
              message for `sendmail -t < FILE`), --webhook FILE (JSON for
              `curl --json @FILE URL`). Nothing is sent from here.

Examples:
  ./plumb nightly                          this machine, now
  ./plumb nightly --site S --print cron    a line for `crontab -e`
  ./plumb nightly --site S --print service > ~/.config/systemd/user/p.service
  ./plumb nightly --site S --print timer > ~/.config/systemd/user/p.timer
  ./plumb nightly --site S --mail night.eml --to ops || sendmail -t <night.eml
  ./plumb nightly --site S -n Osu          options of ReFrame are passed on

Exit codes: 0 good; 1 something failed, regressed or was flaky, or the
night was ended early; 2 usage, or it could not run (another one does).
Flaky test cases alone give 1, too: nobody reads about a night that ends with
0.
"""


def _nightly(commands: Any, site: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        'nightly', parents=[site], help='every night, unattended',
        **texts(NIGHTLY))
    parser.add_argument('--mode', default='nightly',
                        help='quick, nightly (default) or full')
    parser.add_argument('--bringup', action='store_true',
                        help='no references yet: judged by limits, vendor '
                             'profile and history alone')
    parser.add_argument('--hours', type=float, default=20.0, metavar='H',
                        help='a night ends itself after so long, and one '
                             'that is older hangs (default: 20)')
    parser.add_argument('--max-node-age', type=int, default=14, metavar='K',
                        help='nights in which each node is to be measured; '
                             '1: all that are free, every night; 0: those '
                             'that Slurm chooses (default: 14)')
    parser.add_argument('--locate', action='store_true',
                        help='after a regression on several nodes: measure '
                             'pairs of nodes, and name the slow one')
    parser.add_argument('--keep-sessions', type=int, default=5, metavar='N',
                        help='nights of which the stage folders are kept, '
                             'with this one (default: 5)')
    parser.add_argument('--mail', type=Path, metavar='FILE',
                        help='write what is to be said as a mail')
    parser.add_argument('--to', default='', metavar='ADDRESS',
                        help='who gets that mail')
    parser.add_argument('--webhook', type=Path, metavar='FILE',
                        help='write it as JSON; `text` is what chats show')
    parser.add_argument('--print', choices=('service', 'timer', 'cron',
                                            'gitlab'),
                        help='print what starts this very night, every night '
                             '(a service and a timer of systemd, a crontab '
                             'line, a pipeline), and do nothing else')
    parser.set_defaults(wait=True)


CALIBRATE = """Measures until references can be made, then proposes them.

The test cases are measured in rounds. A round is a session with the test cases
that are not ready yet. A test case is ready if the tolerance of each judged
metric is at most the metric's maximum (`judged` in family.yaml). After each
round the command lists the test cases that are not ready, and how many more
sessions each needs.

It ends if all test cases are ready, or if another round would not end within
--minutes. A test case that fails in three rounds in a row is not measured
again. ^C ends it, too. The perflogs keep all values: the next calibration
continues from them, and sessions of `plumb run` count.

Then it proposes references and shows how they differ from the accepted ones.
With --accept it accepts the references of test cases that have none. It never
replaces an accepted reference: `plumb references accept` does.

Example: measure for two hours at most, and accept the new references
  ./plumb references calibrate --site mycluster --minutes 120 --accept

Exit codes: 0 good, also if the time was over before all were ready; 1 a test
case failed in its last round, or a signal ended the command; 2 wrong usage or
unreadable input.
"""


def _references(parser: argparse.ArgumentParser,
                site: argparse.ArgumentParser) -> None:
    """The actions of `plumb references`."""
    actions = parser.add_subparsers(dest='action', required=True,
                                    metavar='calibrate|propose|accept')
    calibrate = actions.add_parser(
        'calibrate', parents=[site], help='measure until references can be '
        'made, then propose them', **texts(CALIBRATE))
    calibrate.add_argument('--accept', action='store_true',
                           help='accept the proposed references of test cases '
                                'that have none')
    calibrate.add_argument('--mode', default='quick',
                       help='quick (default), nightly or full')
    calibrate.add_argument('--minutes', type=float, default=60, metavar='T',
                       help='how long at most; the first round is made in any '
                            'case (default: 60)')
    calibrate.add_argument('--interval', type=float, default=60, metavar='S',
                       help='seconds between the beginnings of two rounds, at '
                            'least (default: 60: virtual machines were seen '
                            'to change their speed every 10 to 95 s, and '
                            'runs that follow at once are of one speed)')
    calibrate.add_argument('--no-wait', dest='wait', action='store_false',
                       help='where this machine is measured already: exit 2')
    calibrate.add_argument('--bringup', action='store_true',
                       help='after a known change: figures are not held '
                            'against the references there are, so that '
                            'those of a new level can replace them')
    # Only for the help: their own parsers, in postprocess/, are asked.
    actions.add_parser('propose', help='references from the perflogs')
    actions.add_parser('accept', help='take what was proposed')


def _spack(parser: argparse.ArgumentParser, site: argparse.ArgumentParser
           ) -> None:
    """The actions of `plumb spack`."""
    parser.epilog = ('Spack is found by SPACK_ROOT or on PATH. Everything is '
                     'made under $PLUMBLINE_WORK/spack, except where the '
                     "site's settings say otherwise.")
    actions = parser.add_subparsers(dest='action', required=True,
                                    metavar='ACTION')
    for name, text in (
            ('concretize', 'solve, check what the stack promises, print '
                           'where the lock is'),
            ('install', 'solve and install; print where the view is'),
            ('lock', "solve anew and keep the solution in the site's folder "
                     '(locks/STACK.lock): it is installed as it stands from '
                     'then on'),
            ('buildcache', 'install, then push everything into a build '
                           'cache')):
        action = actions.add_parser(name, parents=[site], help=text,
                                    description=text)
        action.add_argument(
            '--stack', action='append', metavar='STACK',
            help='a folder under spack-envs/, may be given again (default: '
                 'all that the environments of the site name)')
        if name == 'install':
            action.add_argument(
                '--record', metavar='DIR',
                help='leave record, lock and a file to source there, as the '
                     'checks do')
        if name == 'buildcache':
            action.add_argument(
                'mirror', metavar='MIRROR',
                help='a folder, or the name of a mirror of the site')


BUNDLE = """Makes one file for set-up where no package index can be reached.

In the file are the wheels of all lock files (config/python): what the suite
and its tests run on, an MPI and stores. It is for one Python and one platform,
by default those of this machine, and for this version of the lock files.

On a machine with a network:
  ./plumb bundle --python 3.11 --platform manylinux_2_28_x86_64 wheels.tar
  git bundle create suite.git HEAD         the checkout itself, as a file
On the cluster, with both files there:
  git clone suite.git plumbline && cd plumbline
  export PLUMBLINE_BUNDLE=/path/to/wheels.tar
  ./plumb run

  --python    what `python3 --version` says on the cluster
  --platform  manylinux_2_MINOR_MACHINE: `ldd --version` on the cluster says
              2.MINOR or more, and `uname -m` says MACHINE

Set-up takes wheels from nowhere else then, and checks each one against its
hash in the lock files of the checkout. Software from Spack comes in a build
cache: ./plumb spack buildcache --help.

Exit codes: 0 good, 2 usage, no wheel that fits, or no index.
"""


def _bundle(commands: Any) -> None:
    parser = commands.add_parser(
        'bundle', help='one file for set-up without a network',
        **texts(BUNDLE))
    parser.add_argument('--python', metavar='3.N',
                        help='Python of the cluster (default: this one)')
    parser.add_argument('--platform', metavar='manylinux_2_N_MACHINE',
                        help='oldest glibc, and machine (default: this one)')
    parser.add_argument('file', type=Path, metavar='FILE',
                        help='file to write')


NEW = """Makes a site's folder from what this machine and its Slurm print.

Run it on a login node, or better on a compute node, where the GPUs and the
network cards are. It only reads (sinfo, scontrol, reframe, nvidia-smi,
rocm-smi, module, mpirun, spack; cli/site/detect.yaml lists the commands),
starts no job and changes nothing. It prints a summary and writes the files
after a yes. A comment FINISH in a file marks what a person has to write; the
end of the output lists these lines. Without Slurm they are most of the
partition.

Network cards that config/hardware.yaml lacks go into hardware.yaml of the
folder, the tree of switches (scontrol show topology) into topology.yaml.

Examples:
  ./plumb site new mycluster
  srun -p gpu -N1 --pty ./plumb site new mycluster --partition gpu
  ./plumb site new mycluster --yes --access=--account=abc --stack mpi-host
  ./plumb site new mycluster --access standard:--qos=std --access gpu:--qos=g
  ./plumb site new mycluster --modules openmpi/5.0 --modules "gcc/13 mpich/4.2"
  ./plumb site new mycluster --recorded DIR    outputs kept in files, named as
                                           tests/data/sites/README.md says

Exit codes: 0 written, or answered no; 2 usage, or nobody to ask.
"""

CHECK = """Checks sites without running anything, on any machine.

  system.py      the glossary's names, ReFrame's schema, what it generates
  cases.txt      the cases that can run, kept in git; a change is shown
  references/    there for every judged case of mode quick
  spack/*.yaml   Spack's schema (if a Spack is available), and what it misses

Examples:
  ./plumb site check --all
  ./plumb site check hgx-h100 --update     accept the cases as they are now

Exit codes: 0 good, 1 something to fix, 2 usage.
"""


def site_arguments(commands: Any) -> None:
    """plumb site new, plumb site check."""
    actions = commands.add_parser(
        'site', help='make a site\'s folder, or check it').add_subparsers(
            dest='action', required=True, metavar='new|check')
    new = actions.add_parser('new', help='a folder for this cluster',
                             **texts(NEW))
    new.add_argument('name', help='a-z, 0-9 and -: name of site and folder')
    new.add_argument('--path', type=Path,
                     help='folder to make (default: site-configs/NAME)')
    new.add_argument('--yes', action='store_true',
                     help='write without asking')
    new.add_argument('--recorded', type=Path, metavar='DIR',
                     help='read the commands\' outputs from files in DIR')
    new.add_argument('--partition', action='append', metavar='P',
                     help='only this Slurm partition; may be repeated')
    new.add_argument('--launcher', choices=('srun', 'mpirun'),
                     help='default: what the MPI found is started with')
    new.add_argument('--show', action='store_true',
                     help='print the files, too')
    new.add_argument('--access', action='append', default=[],
                     metavar='[P:]OPT',
                     help='an option that jobs need, e.g. '
                          '--access=--account=x, or those of the partition P '
                          'alone: --access P:--qos=x; may be repeated')
    new.add_argument('--modules', action='append', default=[],
                     metavar='"M ..."',
                     help='modules to load for the MPI; given again, another '
                          'MPI: an environment each')
    new.add_argument('--stack', action='append', default=[], metavar='STACK',
                     help='an environment with this stack of spack-envs/; '
                          'may be repeated')
    check = actions.add_parser('check', help='are sites\' folders sound?',
                               **texts(CHECK))
    check.add_argument('sites', nargs='*', metavar='SITE',
                       help='name, or path of a folder')
    check.add_argument('--all', action='store_true',
                       help='every folder of site-configs/')
    check.add_argument('--update', action='store_true',
                       help='accept the cases as they are now: write '
                            'cases.txt')


#: Command, with its action where that has a module of its own -> module.
MODULES = {'benchmark new': 'setup.benchmark', 'bundle': 'setup.bundle',
           'doctor': 'site.doctor', 'export': 'session.data',
           'history': 'session.data', 'locate': 'nightly.locate',
           'nightly': 'nightly.nightly',
           'references calibrate': 'session.calibrate',
           'sql': 'session.data', 'site check': 'site.check',
           'site new': 'site.new', 'spack': 'setup.stacks'}


def function_of(args: argparse.Namespace) -> Callable[[Any], int]:
    """What does a command; its module is imported only now."""
    action = getattr(args, 'action', '')
    for command, name in ((f'{args.command} {action}', action),
                          (args.command, args.command)):
        if command in MODULES:
            return getattr(importlib.import_module(
                f'cli.{MODULES[command]}'), name)
    return getattr(importlib.import_module('cli.session.commands'),
                   args.command)


def completion(shell: str) -> int:
    """Prints the completion script of a shell."""
    try:
        import argcomplete
    except ImportError:
        print('plumb: completion needs the suite\'s packages: ./plumb doctor '
              'installs them', file=sys.stderr)
        return 2
    print(argcomplete.shellcode(['plumb', './plumb'], shell=shell))
    return 0


def main() -> int:
    caller.forget()
    if '_ARGCOMPLETE' in os.environ:
        # ReFrame brings argcomplete; without the venv nothing is completed.
        with contextlib.suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(arguments())
    words = sys.argv[1:]
    if words[:1] == ['help']:
        words = [*words[1:], '--help']
    if not words or words[0] in ('-h', '--help'):
        print(overview())
        return 0
    if not words[0].startswith('-') and words[0] not in ABOUT:
        print(f'plumb: no command {words[0]}: {nearest(words[0], ABOUT)}'
              './plumb --help lists the commands', file=sys.stderr)
        return 2
    if words[0] in POSTPROCESS or words[:2] in (
            ['references', 'propose'], ['references', 'accept']):
        args = argparse.Namespace(command=words[0], rest=words[1:])
    else:
        args = parsed(words)
    if args.command == 'completion':
        return completion(args.shell)
    if args.command == 'parse':
        from cli.session.parse import parse_files

        return parse_files(args.family, args.files, sys.stdout, sys.stderr,
                           args)
    try:
        in_venv(args)
        return function_of(args)(args)
    except (setup.SetupError, bundle_file.BundleError) as err:
        print(f'plumb: {err}', file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as err:
        where = err.filename or setup.WORK
        print(f'plumb: {where}: {err.strerror or err}; is there space on '
              'the disk, and may you write there?', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == '__main__':
    pipes.watch()
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:                 # of sys.stdout.buffer
        pipes.end()
    sys.exit(code)
