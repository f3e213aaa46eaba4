"""ReFrame's options, so that a slip is reported before anything is installed."""
from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

#: Options of ReFrame 4.10 without a value.
FLAGS = (
    '--compress-report', '--cpu-only', '--describe', '--dont-restage', '--dry-run',
    '--failed', '--failure-stats', '--flex-alloc-strict', '--gpu-only', '-h/--help',
    '--keep-stage-files', '--list-tags', '--nocolor', '--non-default-craype',
    '--purge-env', '-q/--quiet', '-R/--recursive', '-r/--run', '--save-log-files',
    '--skip-performance-check', '--skip-prgenv-check', '--skip-sanity-check',
    '--skip-system-check', '-V/--version', '-v/--verbose', '--warn-as-error')
#: Options with a value.
VALUED = (
    '-C/--config-file', '-c/--checkpath', '--ci-generate', '--delete-stored-sessions',
    '--describe-stored-sessions', '--describe-stored-testcases', '--disable-hook',
    '--duration', '-E/--filter-expr', '--exec-order', '--exec-policy',
    '--flex-alloc-nodes', '-J/--job-option', '--list-stored-testcases',
    '-M/--map-module', '-m/--module', '--maintainer', '--max-retries', '--maxfail',
    '--mode', '--module-mappings', '--module-path', '-n/--name', '-o/--output',
    '-P/--parameterize', '-p/--prgenv', '--param-values-delim', '--performance-compare',
    '--perflogdir', '--prefix', '--repeat', '--report-file', '--report-junit',
    '--reruns', '--retries-threshold', '-S/--setvar', '-s/--stage', '--session-extras',
    '--system', '-T/--exclude-tag', '-t/--tag', '--table-format',
    '--table-format-delim', '--term-lhs', '--term-rhs', '-u/--unload-module',
    '-x/--exclude')
#: Options whose value may be left out.
OPTIONALLY_VALUED = (
    '--detect-host-topology', '--distribute', '-L/--list-detailed', '-l/--list',
    '--list-stored-sessions', '--performance-report', '--restore-session',
    '--show-config', '--timestamp')
#: Options that measure nothing: `plumb run` hands them on.
ACTIONS = (
    '--ci-generate', '--delete-stored-sessions', '--describe',
    '--describe-stored-sessions', '--describe-stored-testcases',
    '--detect-host-topology', '--dry-run', '-L/--list-detailed',
    '--list-stored-sessions', '--list-stored-testcases', '-l/--list', '--list-tags',
    '--performance-compare', '--show-config', '-V/--version', '-h/--help')


#: Their names: the next word is a value.
NAMES_WITH_VALUE = frozenset(
    name for names in (*VALUED, *OPTIONALLY_VALUED) for name in names.split('/'))


def make_parser() -> argparse.ArgumentParser:
    """A parser that accepts what ReFrame accepts, abbreviated options included."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for name in FLAGS:
        parser.add_argument(*name.split('/'), action='count')
    for name in VALUED:
        parser.add_argument(*name.split('/'), action='append')
    for name in OPTIONALLY_VALUED:
        parser.add_argument(*name.split('/'), nargs='?', const='')
    return parser


def _options(words: Sequence[str]) -> dict[str, Any]:
    """The options of a command line, by their long names; {}: ReFrame reports what is
    wrong."""
    try:
        return vars(make_parser().parse_known_args(words)[0])
    except argparse.ArgumentError:
        return {}


def find_non_run_action(words: Sequence[str]) -> str:
    """The action of a command line that is not a run; '': none.

    >>> find_non_run_action(['-n', 'x', '-lC']), find_non_run_action(['-v'])
    ('-l', '')
    """
    options = _options(words)
    for names in ACTIONS:
        short, *_, long = (*names.split('/'), names.rpartition('/')[2])
        if options.get(long.removeprefix('--').replace('-', '_')) is not None:
            return short
    return ''


def name_patterns(words: Sequence[str]) -> list[str]:
    """The values of -n.

    >>> name_patterns(['--tag=^quick$', '-nA', '--name=B', '-n', 'C', '-Sx=1'])
    ['A', 'B', 'C']
    """
    return _options(words).get('name') or []


def words_unknown_to_reframe(words: Sequence[str]) -> list[str]:
    """The words of a command line that are neither options of ReFrame nor values of
    them.

    >>> words_unknown_to_reframe(['-n', 'A', 'B', '--fooo=1', '-vv', '-lC'])
    ['B', '--fooo=1']
    """
    try:
        return make_parser().parse_known_args(words)[1]
    except argparse.ArgumentError:
        return []                       # ReFrame reports what is wrong
