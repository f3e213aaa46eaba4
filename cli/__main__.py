"""Regression tests for the data paths of clusters: MPI, GPUs, stores."""
from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:                     # called by path, from ./plumb
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from cli import pipes
from cli.arguments import ABOUT, COMMANDS, POSTPROCESS, build_parser
from cli.session.reframe_options import words_unknown_to_reframe
from cli.setup import venv as setup
from config.commandline import Parser, suggest_nearest_word
from config.sessions import caller

#: Words that people try -> the command that does it.
OTHER_WORDS = {'benchmark': './plumb dev benchmark', 'check': './plumb site check',
               'docs': './plumb dev docs', 'list': './plumb run -l',
               'ls': './plumb run -l', 'results': './plumb verdict',
               'spack': './plumb dev spack', 'status': './plumb verdict',
               'version': './plumb --version'}

#: Commands that pass options that they do not know on to another program.
PASSING = {'run': 'reframe', 'nightly': 'reframe',
           'nightly schedule': 'reframe', 'locate': 'reframe',
           'references calibrate': 'reframe', 'selftest': 'pytest'}


def ensure_venv_and_restart_inside(args: argparse.Namespace) -> None:
    """Goes on inside the venv, which is made where it is missing."""
    python = setup.ensure_venv(tests=args.command == 'selftest')
    # Not sys.executable: a venv's python may be a link to this very one.
    if Path(sys.prefix) != python.parent.parent:
        os.execv(python, [str(python), str(setup.ROOT / 'cli'),
                          *sys.argv[1:]])


def help_overview() -> str:
    """The commands by task; with an example each, if the terminal has 100 columns."""
    columns = shutil.get_terminal_size((100, 24)).columns
    lines = ['usage: plumb COMMAND [OPTION...]', '',
             __doc__.partition('\n')[0]]
    for task, commands in COMMANDS.items():
        lines += ['', f'{task}:']
        lines += [f'  {name:11} {text:44} {example * (columns >= 100)}'.rstrip()
                  for name, (text, example) in commands.items()]
    return '\n'.join([
        *lines, '',
        'plumb COMMAND --help lists the options of a command.',
        'Documentation: docs/index.md. Exit codes: docs/reference/results.md'])


def parse_command_line(words: list[str]) -> argparse.Namespace:
    """The command and its options.

    What a command does not know, and all after `--`, is in `reframe` or
    `pytest` if the command passes it on; otherwise it ends with exit code 2.
    """
    own, after = words, []
    if '--' in words:
        where = words.index('--')
        own, after = words[:where], words[where + 1:]
    if own[:2] == ['nightly', 'schedule']:
        own = ['nightly schedule', *own[2:]]
        words = [' '.join(words[:2]), *words[2:]]
    args, unknown = build_parser().parse_known_args(own)
    options: Parser = args.parser
    command = options.prog.removeprefix('plumb ')
    passes = PASSING.get(command)
    args.words = words[1:]
    for word in unknown:
        if not passes:
            options.refuse_unknown_word(word)
        # An option of the other program is rarely that similar.
        similar = suggest_nearest_word(
            word.partition('=')[0], options.long_options(), 0.8
        )
        if word.startswith('--') and similar:
            options.error(f'unknown option {word}: {similar}'
                          f'write options of {passes} after --')
    if passes == 'reframe':
        refuse_words_unknown_to_reframe(options, unknown, command == 'run')
    if passes:
        setattr(args, passes, unknown + after)
    elif after:
        options.error(f'no argument after -- is expected: {after[0]}')
    return args


def refuse_words_unknown_to_reframe(options: Parser, words: list[str],
                                    takes_ids: bool) -> None:
    """End with exit code 2 at the first word that ReFrame would not take.

    :param takes_ids: IDs of test cases are allowed
    """
    for word in words_unknown_to_reframe(words):
        if word.startswith('-'):
            options.refuse_unknown_word(word)
        if not (takes_ids and re.fullmatch('[0-9a-f]{8}', word)):
            options.error(f'unknown argument {word}: -n {word} selects test cases by '
                          'name')


#: Command, with its action where that has a module of its own -> module.
MODULES = {'demo': 'demo.command', 'dev benchmark': 'setup.benchmark',
           'dev docs': 'setup.docs', 'dev spack': 'setup.stacks',
           'doctor': 'site.doctor', 'locate': 'nightly.locate',
           'nightly': 'nightly.nightly', 'nightly schedule': 'nightly.timers',
           'references calibrate': 'session.calibrate',
           'site check': 'site.check', 'site new': 'site.new'}


def import_command_function(args: argparse.Namespace) -> Callable[[Any], int]:
    """What does a command; its module is imported only now."""
    if 'rest' in args:
        # Only `references status` is not in POSTPROCESS.
        module = POSTPROCESS.get(args.command, 'references.status')
        command_module = importlib.import_module(f'postprocess.{module}')
        return lambda args: command_module.main(args.rest)
    action = getattr(args, 'action', '')
    for command, name in ((f'{args.command} {action}', action),
                          (args.command, args.command.rpartition(' ')[2])):
        if command in MODULES:
            return getattr(importlib.import_module(
                f'cli.{MODULES[command]}'), name)
    return getattr(importlib.import_module('cli.session.commands'),
                   args.command)


def main() -> int:
    """Run the command of the command line.

    :returns: exit code: 2 if it cannot run, 130 if interrupted, otherwise that of the
        command
    """
    caller.unset_caller_environment_variables()
    caller.set_missing_user_name()
    # matplotlib would write to the home folder.
    os.environ.setdefault('MPLCONFIGDIR', str(setup.WORK / 'cache' / 'matplotlib'))
    if '_ARGCOMPLETE' in os.environ:
        # ReFrame brings argcomplete; without the venv nothing is completed.
        with contextlib.suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(build_parser())
    words = sys.argv[1:]
    if words[:1] == ['help']:
        words = [*words[1:], '--help']
    if not words or words[0] in ('-h', '--help'):
        print(help_overview())
        return 0
    if not words[0].startswith('-') and words[0] not in ABOUT:
        other = OTHER_WORDS.get(words[0])
        print(f'plumb: no command {words[0]}: '
              + (f'did you mean {other}? ' if other else
                 suggest_nearest_word(words[0], ABOUT))
              + './plumb --help lists the commands', file=sys.stderr)
        return 2
    try:
        if words[0] == 'parse':
            # Its options are those of parsers, which need the packages.
            ensure_venv_and_restart_inside(argparse.Namespace(command='parse'))
        if words[0] in POSTPROCESS:
            args = argparse.Namespace(command=words[0], rest=words[1:])
        elif words[:2] == ['references', 'status']:
            args = argparse.Namespace(command=words[0], rest=words[2:])
        else:
            args = parse_command_line(words)
        if args.command == 'parse':
            from cli.session.parse import write_output_as_csv

            return write_output_as_csv(args)
        ensure_venv_and_restart_inside(args)
        return import_command_function(args)(args)
    except setup.SetupError as err:
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
    pipes.replace_standard_streams()
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:                 # of sys.stdout.buffer
        pipes.exit_like_sigpipe()
    sys.exit(code)
