"""plumb: prove that a cluster's plumbing is as fast as it was.

Examples:
  ./plumb run                      set up, measure this machine, judge, show
  ./plumb run --mode nightly       more repeats
  ./plumb run -- -n OsuPt2pt       what follows -- goes to ReFrame
  eval "$(./plumb env)"            then plain `reframe -r`, `-l`, anywhere
  ./plumb doctor                   what would run here, and why not
  ./plumb parse osu out.txt        any saved OSU output as tidy CSV
  ./plumb references propose       references from at least 3 runs
  ./plumb report                   page and figures from the perflogs
  ./plumb spack install            what the site's stacks need, beforehand
  ./plumb test                     set up and pass the tests

Exit codes: 0 good, 1 something failed or regressed, 2 usage or unreadable
input.
"""
from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if not __package__:                     # called by path, from ./plumb
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from cli import setup


def in_venv(args: argparse.Namespace) -> None:
    """Goes on inside the venv, which is made where it is missing."""
    python = setup.ensure_venv(tests=args.command == 'test')
    # Not sys.executable: a venv's python may be a link to this very one.
    if Path(sys.prefix) != python.parent.parent:
        os.execv(python, [str(python), str(setup.ROOT / 'cli'),
                          *sys.argv[1:]])


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='plumb', description=__doc__.partition('\n')[0],
        epilog=__doc__.partition('\n\n')[2],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True,
                                     metavar='COMMAND')

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    site = argparse.ArgumentParser(add_help=False)
    site.add_argument('--site', default=os.environ.get('PLUMBLINE_SITE',
                                                       'local'),
                      help='a folder under site-configs/, or the path of one '
                           '(default: local, this machine)')
    run = commands.add_parser(
        'run', parents=[site], help='measure, judge and show',
        description='Sets up what is missing, runs a mode with ReFrame, '
                    'writes perflogs and a report, ends with a table.')
    run.add_argument('--mode', default='quick',
                     help='quick (default), nightly, full or bringup')
    run.add_argument('--bringup', action='store_true',
                     help='no references yet: record, judge by limits alone')
    run.add_argument('reframe', nargs='*', metavar='-- OPTION',
                     help='options for ReFrame, after --')
    commands.add_parser(
        'env', parents=[site], help='print the exports for plain reframe',
        description='Prints shell exports; use: eval "$(./plumb env)"')
    commands.add_parser(
        'doctor', parents=[site], help='what would run here, and why not',
        description='For every family: what would run on the site, what '
                    'would not and why, and what changes it.')
    parse = command('parse', 'saved program output as tidy CSV')
    parse.add_argument('family', help='osu or keyvalue')
    parse.add_argument('files', nargs='+', metavar='FILE',
                       help='saved output; - reads standard input')
    for name, text in (
            ('references', 'propose references from perflogs'),
            ('report', 'page and figures from perflogs')):
        sub = commands.add_parser(name, help=text, add_help=False)
        sub.add_argument('rest', nargs=argparse.REMAINDER)
    _spack(command('spack', 'install software stacks beforehand'), site)
    test = command('test', 'set up and pass the tests')
    test.add_argument('pytest', nargs='*', metavar='-- OPTION',
                      help='options for pytest, after --')
    return parser


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


def main() -> int:
    words = sys.argv[1:]
    if words[:1] in (['report'], ['references']):
        # Their own parsers, in postprocess/, know their options.
        args = argparse.Namespace(command=words[0], rest=words[1:])
    else:
        args = arguments().parse_args()
    if args.command == 'parse':
        from checks.lib.parsers import parse_files
        return parse_files(args.family, args.files, sys.stdout, sys.stderr)
    try:
        in_venv(args)
        from cli import commands, stacks
        module = stacks if args.command == 'spack' else commands
        return getattr(module, args.command)(args)
    except setup.SetupError as err:
        print(f'plumb: {err}', file=sys.stderr)
        return 2
    except OSError as err:
        where = err.filename or setup.WORK
        print(f'plumb: {where}: {err.strerror or err}; is there space on '
              'the disk, and may you write there?', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == '__main__':
    sys.exit(main())
