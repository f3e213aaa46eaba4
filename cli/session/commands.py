"""The commands of plumb that need the venv."""
from __future__ import annotations

import argparse
import contextlib
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.machine import software
from cli.session import identities, names, reframe_options
from cli.session import process as session
from cli.session.process import Ended as Ended
from cli.setup.venv import (
    ROOT,
    WORK,
    SetupError,
    ensure_folder_of_lock,
    ensure_mpi,
    ensure_store_servers,
    ensure_venv,
    print_progress,
    refuse_unusable_path,
)
from config import console, places, sites
from config.commandline import suggest_nearest_word
from config.places import is_site_named_local
from config.references import NO_TOLERANCE, reference_files
from config.sessions import clock, cost, lock, progress, slurm_jobs
from config.sessions.modes import MODES, QUICK, SMOKE, VETO
from tests import unstable

if TYPE_CHECKING:
    from cli.session.table import Row
    from postprocess.debts import Read
    from postprocess.regressions.events import Event, Verdict
    from postprocess.results import Result

sites.only_read = True

#: The folder of a site given by name or path.
site_folder = places.existing_site_folder
#: Options of ReFrame that would hide the lines of which the progress is made.
QUIET = ('-q', '--quiet')


def reframe_environment_variables(site: str) -> dict[str, str]:
    """Variables that plain ReFrame needs to run the suite on a site.

    :raises SetupError: unknown or broken site.
    """
    # Before the site is loaded: the site `local` may extend PATH.
    path = os.environ.get('PATH', '')
    variables, folders = variables_and_program_folders(site)
    return {**variables, 'PATH': ':'.join([*folders, path])}


def variables_and_program_folders(site: str) -> tuple[dict[str, str], list[str]]:
    """Variables as of `reframe_environment_variables`, without PATH, and the folders
    of programs that PATH must have. The first folder has the suite's ReFrame.

    :raises SetupError: unknown or broken site.
    """
    folder = site_folder(site)
    refuse_unusable_path('the folder of the site', folder)
    refuse_unusable_path('PLUMBLINE_PERFLOGS', places.perflog_folder())
    local = is_site_named_local(folder)
    programs = [str(WORK / 'bin')]
    if local:
        mpi = ensure_mpi()
        software.save_detected_software(WORK, mpi, ensure_store_servers())
        if mpi['origin'] == 'wheel':
            programs.append(str(Path(mpi['mpirun']).parent))
    variables = {
        'PLUMBLINE_ROOT': str(ROOT),
        'PLUMBLINE_WORK': str(WORK),
        'PLUMBLINE_SITE': str(folder),
        'PLUMBLINE_PERFLOGS': str(places.perflog_folder()),
        'RFM_CONFIG_FILES': f'{folder}/system.py',
        'RFM_REFERENCE_PREFIX': str(places.reference_folder_of_site(
            folder, os.environ.get('RFM_REFERENCE_PREFIX'))),
    }
    os.environ.update(variables)
    for known in load_site_configuration(folder / 'system.py')['environments']:
        for name in known.get('extras', {}).get('wheel', '').split():
            # Stores are more than their wheels: those of PATH, and none.
            ensure_store_servers() if name == 'stores' else ensure_folder_of_lock(name)
    return variables, programs


def load_site_configuration(path: Path) -> dict[str, Any]:
    """Load a site's configuration, and check every name in it.

    :raises SetupError: the file cannot be run, or has an unknown name
    """
    from checks.core.features import check_site_features
    try:
        configuration = runpy.run_path(str(path))['site_configuration']
        check_site_features(configuration, str(path))
        refuse_site_without_common_settings(configuration, path)
    except SetupError:
        raise
    except SyntaxError as err:
        raise SetupError(f'{path}:{err.lineno}: {err.msg}') from None
    except KeyError as err:
        raise SetupError(f'{path}: {err} is missing') from None
    except Exception as err:
        raise SetupError(f'{path}: {type(err).__name__}: {err}') from None
    return configuration


def refuse_site_without_common_settings(configuration: dict[str, Any], path: Path
                                        ) -> None:
    """Refuse a site whose sessions would have no perflogs and no modes.

    :raises SetupError: a key of the settings that all sites share is missing
    """
    from config.common import SETTINGS
    missing = SETTINGS.keys() - configuration.keys()
    if missing:
        raise SetupError(
            f'{path}: site_configuration lacks {", ".join(sorted(missing))}, which all '
            'sites share; add **SETTINGS to it, from config.common '
            '(docs/reference/site-files.md)')


def refuse_unreadable_reference_files(folder: Path) -> None:
    """Check that every reference file of the site can be read.

    :raises SetupError: a file cannot; reported once, not per test case
    """
    from checks.core import references
    for path in reference_files(folder):
        references.load_references(path.stem)


def env(args: argparse.Namespace) -> int:
    """Prints the exports.

    :raises SetupError: the `reframe` of PATH is wanted, and there is none
    """
    # Before the site is loaded: the site `local` may extend PATH.
    path = os.environ.get('PATH', '').split(':')
    variables, programs = variables_and_program_folders(args.site)
    # A second eval must not make PATH grow.
    others = [folder for folder in path if folder and folder not in programs]
    if args.own_reframe:
        programs = programs[1:]
        if not shutil.which('reframe', path=':'.join(others)):
            raise SetupError('--own-reframe: no reframe on PATH; load its module, or '
                             'omit --own-reframe to use the ReFrame that Plumbline '
                             'installed')
    for name, value in {**variables, 'PATH': ':'.join(programs + others)}.items():
        print(f'export {name}={shlex.quote(value)}')
    return 0


class Work(NamedTuple):
    """A site that is set up, and this machine's lock where there is one."""
    system: dict[str, Any]
    #: Variables of ReFrame for the site.
    variables: dict[str, str]
    #: Options of ReFrame: of the mode, and those that the user gave.
    options: list[str]
    #: Those of them that select no test case, for test cases of any mode.
    options_of_any_mode: list[str]
    #: Whether only limits and published values can fail a value.
    bringup: bool
    locks: list[int]
    #: Whether ReFrame's own output is printed, instead of the progress.
    echo: bool
    #: The nightly session that its sessions belong to.
    nightly_session: session.NightlySession | None = None

    @property
    def perflog_folder(self) -> str:
        """Folder of the reports, rows and files of sessions."""
        return self.variables['PLUMBLINE_PERFLOGS']

    @property
    def has_only_local_partitions(self) -> bool:
        """Whether no scheduler separates the sessions of the site."""
        return all(part['scheduler'] == 'local' for part in self.system['partitions'])


@contextlib.contextmanager
def prepare_session(args: argparse.Namespace) -> Iterator[Work]:
    """Sets up what a session needs: `args` has site, mode, bringup, wait and
    reframe.

    :raises SetupError: unknown mode or site, broken references, or an option
        of ReFrame that plumb has in another form
    """
    if args.mode not in MODES:
        raise SetupError(f'unknown mode {args.mode!r}; '
                         f'{suggest_nearest_word(args.mode, MODES, 0.4)}modes: '
                         f'{", ".join(MODES)}')
    for word in args.reframe:
        if re.match(r'(-S|--setvar=)?(\w+\.)?bringup=', word):
            raise SetupError(f'{word}: write --bringup instead')
    variables = reframe_environment_variables(args.site)
    if getattr(args, 'inside', False):
        variables['RFM_CONFIG_FILES'] = str(ROOT / 'config' / 'inside.py')
    system = load_site_configuration(Path(variables['RFM_CONFIG_FILES']))['systems'][0]
    if args.mode == VETO:
        refuse_schedulers_that_list_no_nodes(system)
    with contextlib.ExitStack() as stack:
        more = ['-Sbringup=1'] * args.bringup + [
            word for word in args.reframe if word not in QUIET]
        # Not --mode: ReFrame ignores -p beside it.
        work = Work(system, variables, [*MODES[args.mode], *more],
                    [word for word in identities.options_without_selection(
                        [*MODES[args.mode], *more]) if not word.startswith('-Smode=')],
                    args.bringup, [], wants_reframe_output(args.reframe))
        # Without a scheduler, only one session at a time may measure.
        if work.has_only_local_partitions:
            work.locks.append(stack.enter_context(lock.hold_file_lock(
                lock.machine_lock_path(), lock.LIMIT if args.wait else 0)))
            variables[lock.HELD] = str(work.locks[0])
        if not args.bringup:
            refuse_unreadable_reference_files(Path(variables['RFM_REFERENCE_PREFIX']))
        yield work


def refuse_several_partitions(system: Mapping[str, Any], words: Sequence[str]) -> None:
    """Check that --inside does not measure the same nodes in several partitions.

    :param system: the site, with the partitions that fit the allocation
    :param words: options for ReFrame
    :raises SetupError: several fit, and no option selects one
    """
    names = [part['name'] for part in system['partitions']]
    if len(names) > 1 and not any(word.startswith('--system') for word in words):
        raise SetupError('--inside: several partitions of the site have nodes of '
                         f'this allocation: {", ".join(names)}; select one, such as '
                         f'--system={system["name"]}:{names[0]}')


def refuse_schedulers_that_list_no_nodes(system: Mapping[str, Any]) -> None:
    """Check that ReFrame can list the nodes of each partition for mode veto.

    :raises SetupError: of some it cannot
    """
    names = [part['name'] for part in system['partitions']
             if part['scheduler'] not in (*slurm_jobs.SLURM, 'local')]
    if names:
        raise SetupError(f'--mode {VETO} needs a scheduler whose nodes ReFrame can '
                         'list: slurm, squeue or local; partitions with another '
                         f'scheduler: {", ".join(names)}')


def refuse_what_measures_nothing(args: argparse.Namespace, command: str) -> None:
    """Check the options of a command that chooses nodes and rounds itself.

    :raises SetupError: they have mode veto, or an action of ReFrame
    """
    if action := reframe_options.find_non_run_action(args.reframe):
        raise SetupError(f'{action} measures nothing, so ./plumb {command} cannot use '
                         'it; use ./plumb run with this option')
    if args.mode == VETO:
        raise SetupError(f'--mode {VETO} measures every node once, so it is not a mode '
                         f'of ./plumb {command}; use ./plumb run --mode {VETO}')


def run_reframe_action(work: Work, *options: str, any_mode: bool = False) -> int:
    """Let ReFrame list test cases, or something else that measures nothing; return
    its exit code.

    :param any_mode: the options select the test cases, whatever their mode
    """
    of_mode = work.options_of_any_mode if any_mode else work.options
    with session.create_session_folders(work.system, runs_jobs=False) as opened:
        return session.run_reframe(
            opened, [str(WORK / 'bin' / 'reframe'), *of_mode, *options],
            work.variables, work.locks, measures=False).code


def run_reframe_session(work: Work, *options: str, any_mode: bool = False) -> Ended:
    """Run one session of ReFrame.

    If it ends before any test case begins, the last lines of its output are printed.

    :param any_mode: the options select the test cases, whatever their mode
    :raises SetupError: the clock is wrong
    """
    if why := clock.reason_clock_is_behind(Path(work.perflog_folder)):
        raise SetupError(why)
    of_mode = work.options_of_any_mode if any_mode else work.options
    # Nothing else runs on the machine beside a measurement.
    serial = ['--exec-policy=serial'] * work.has_only_local_partitions
    with session.create_session_folders(work.system, work.nightly_session) as opened:
        ended = session.run_reframe(
            opened,
            [str(WORK / 'bin' / 'reframe'), *serial, *of_mode, *options, '-r'],
            work.variables, work.locks, echo=work.echo,
            has_slurm_jobs=slurm_jobs.can_list_jobs(work.system))
    if not ended.has_begun and ended.code and not ended.ended_by and not work.echo:
        print(*ended.output.read_text(errors='replace').splitlines()[-40:],
              f'plumb: output of ReFrame: {ended.output}', sep='\n', file=sys.stderr)
    return ended


def run_test_cases(work: Work, test_cases: Sequence[identities.Identity],
                   *options: str) -> Iterator[Ended]:
    """Run test cases of any mode: one session for each place and settings.

    The sessions after one that a signal ended, or in which nothing began, are left
    out.
    """
    for selected in identities.selections(test_cases):
        ended = run_reframe_session(work, *selected, *options, any_mode=True)
        yield ended
        if ended.ended_by or not ended.has_begun:
            break


def wants_reframe_output(words: Sequence[str]) -> bool:
    """Whether options of ReFrame ask for its own output: -v."""
    return any(word == '--verbose' or re.fullmatch('-v+', word) for word in words)


def print_zero_test_cases_reason(work: Work, ended: Ended) -> int:
    """Print why a session in which no test case began is an error; return the exit
    code.

    If no test case is selected, the line has the names that are nearest to those of
    -n.
    """
    if ended.ended_by:
        print(f'plumb: ended by {ended.ended_by} before any test case began',
              file=sys.stderr)
        return 1
    if ended.code:
        print('plumb: no test case ran, so nothing was measured; the lines above give '
              'the reason', file=sys.stderr)
        return 2
    patterns = reframe_options.name_patterns(work.options)
    text = patterns and names.suggest_names(patterns, (
        one.name for one in identities.identities_of_site(
            Path(work.variables['PLUMBLINE_SITE'])).values()))
    site = places.site_option(work.system['name'])
    print('plumb: nothing was measured: ' + (
        text or 'no test case matches all filters (mode, -n, -t, -p, -E and others); '
        f'./plumb run{site} -l lists the test cases, ./plumb doctor{site} reports what '
        'this site can run'), file=sys.stderr)
    return 2


def run(args: argparse.Namespace) -> int:
    """Run a mode or test cases, print the table, write the page; return the exit
    code."""
    from cli.session.table import rows_of_session
    from postprocess import records, results
    from postprocess.regressions.inconclusive import inconclusive_events
    start = time.monotonic()
    site = places.site_option(args.site)
    ids, args.reframe = identities.split_ids(args.reframe)
    action = reframe_options.find_non_run_action(args.reframe)
    if args.mode == 'nightly' and not action:
        raise SetupError('--mode nightly: a nightly session is started with '
                         f'./plumb nightly{site}')
    if action == '--ci-generate':
        raise SetupError('--ci-generate: ReFrame would make a job for each test case, '
                         'without the builds that it needs; for a pipeline with a job '
                         f'for each family, run ./plumb nightly schedule gitlab{site}')
    if args.suspects:
        ids += suspect_ids(args.site)
        if not ids:
            print('no test case has to be measured again')
            return 0
    with prepare_session(args) as work:
        if args.inside and not ids:
            refuse_several_partitions(work.system, args.reframe)
        test_cases = identities.find_test_cases(
            ids, work.system['name'],
            records.read(work.perflog_folder, on_error='collect')[0],
            site_folder(args.site)) if ids else []
        if action:
            # A dry run has no jobs to wait for, one after the other.
            serial = ['--exec-policy=serial'] * (action == '--dry-run')
            code = max(run_reframe_action(work, *serial, *selected, any_mode=bool(ids))
                       for selected in identities.selections(test_cases) or [[]])
            if serial:
                print_installed_programs(args.site)
            return code
        if ids:
            ended = [*run_test_cases(work, test_cases)]
        elif is_cost_accepted(work, args.mode, args.yes):
            ended = [run_reframe_session(work)]
        else:
            print_progress('nothing was run')
            return 0
        if not ended[-1].has_begun:
            return print_zero_test_cases_reason(work, ended[-1])
        page, made = write_report_page(work.perflog_folder, args.site)
    outcomes = [
        one for each in ended
        for one in results.results_of_session(made.records, each.session).values()]
    rows = [row for each in ended for row in rows_of_session(
        made.records, each.session, work.perflog_folder)]
    if made.verdict and any(one.result != 'not_run' for one in outcomes):
        # Otherwise the newest session with results is an earlier one.
        console.print_lines([made.verdict.headline])
    if rows:
        print_results(rows, args.all)
    worse = _print_regressions(made.verdict, outcomes, site)
    failed = [one for one in rows if one.result in results.FAILED]
    ended_by = ended[-1].ended_by
    notes = []
    if ended_by:
        notes.append(f'Ended by {ended_by}: test cases that did not finish are '
                     'not_run.')
    if work.bringup:
        notes.append('Bring-up: values are compared only with physical limits and with '
                     'published values of the site')
    for event in inconclusive_events(outcomes):
        notes += event.lines
    waiting = sum(one.waits for one in rows)
    if waiting:
        mode = ' --mode full' * (args.mode == 'full')
        notes.append(f'{waiting} of the test cases have no reference; add them: '
                     f'{places.CALIBRATE}{site}{mode}')
    for each in ended:
        if each.code and not ended_by and (
                not failed or any(one.is_cut_short for one in outcomes)):
            notes += early_end_lines(each.code, each.output)
    of_session = results.newest_records(made.records[made.records['session'].isin(
        [each.session for each in ended])])
    state = results.session_state(
        outcomes, regressed=worse,
        ended_early=bool(ended_by) or is_cut_short(ended, work.perflog_folder),
        compared=made.verdict is not None and is_compared_with_history(
            made.verdict, outcomes),
        incomplete=bool(any(one.code for one in ended) or failed or not page))
    print()
    console.print_lines([
        *notes,
        f'{state.upper()}: ' + results.tally_text(
            results.result_by_test_case(outcomes).values(),
            results.count_measured_again(of_session))
        + f' · {progress.duration_text(time.monotonic() - start)}'])
    if failed:
        print('Next: ' + ' '.join([
            f'./plumb run{site}',
            *([f'--mode {args.mode}'] if args.mode != QUICK else []),
            *['--bringup'] * bool(work.bringup),
            *['--inside'] * args.inside,
            *dict.fromkeys([one.test_case for one in failed][:3])]))
    print(f'Page: {page}' if page else 'No page was written: see the error '
                                       'above')
    return results.exit_code_of_state(state, args.require_compared)


def read_perflogs(folder: str) -> Read:
    """The perflogs of a folder, with the debts of their sessions.

    :raises SetupError: the file of decisions is damaged
    """
    from postprocess import debts
    try:
        return debts.read(folder)
    except ValueError as err:
        raise SetupError(str(err)) from None


def print_installed_programs(site: str) -> None:
    """Print whether the programs of the site's environments are installed: a dry run
    passes without them."""
    from cli.site import programs
    folder = site_folder(site)
    for name, state in programs.environment_states(
            folder, load_site_configuration(folder / 'system.py')).items():
        print(f'programs: {name}: {state}')


def suspect_ids(site: str) -> list[str]:
    """The IDs of the test cases of a site that the verdict lists to measure again.

    :raises SetupError: unknown site, or the file of decisions is damaged
    """
    from postprocess.regressions.judging import judge_session
    read = read_perflogs(str(places.perflog_folder()))
    frame = read.frame[read.frame['system'] == site_folder(site).name]
    return judge_session(frame, decisions=read.decided, sessions=read.sessions
                         ).suspects if len(frame) else []


def is_cut_short(ended: Iterable[Ended], perflogs: str) -> bool:
    """Whether a session has no readable report of ReFrame, because it was killed."""
    from postprocess import records
    failed = [one.session for one in ended if one.code]
    if not failed:
        return False
    sessions = records.sessions(perflogs)
    return bool(sessions['cut_short'][sessions['session'].isin(failed)].any())


def early_end_lines(code: int, output: Path) -> list[str]:
    """Lines that say why ReFrame ended before its test cases did.

    :param code: its exit code; that of a signal is negative
    :param output: file with what it printed
    """
    if code < 0:
        return [f'ReFrame was ended by {signal.Signals(-code).name}; its output: '
                f'{output}']
    lines = [line.strip() for line in
             output.read_text(errors='replace').splitlines()
             if line.strip() and not line.startswith('Log file(s) saved in')]
    # A traceback may follow this line of ReFrame.
    cause = [line for line in lines if 'run session stopped: ' in line][-1:]
    return [f'ReFrame ended early with exit code {code}; its output: {output}',
            *(f'  {line}' for line in cause or lines[-3:])]


def is_terminal() -> bool:
    """Whether a person can read a question and answer it."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def is_cost_accepted(work: Work, mode: str, yes: bool) -> bool:
    """Print the cost of the first session of a mode on a cluster, and ask on a terminal
    whether to run it.

    :param yes: do not ask
    """
    from postprocess import records
    if work.has_only_local_partitions:
        return True
    name, sessions = work.system['name'], records.sessions(work.perflog_folder)
    if ((sessions['system'] == name) & (sessions['mode'] == mode)).any():
        return True
    text = cost.cost_of_session([str(WORK / 'bin' / 'reframe'), *work.options],
                                {**os.environ, **work.variables})
    if not text:
        return True                     # ReFrame reports why when it runs
    print(f'First session of mode {mode} on {name}: {text} by the time limits, without '
          'builds and queues')
    if yes or not is_terminal():
        return True
    if mode != SMOKE:
        print(f'For a first session, --mode {SMOKE} has one test case per family '
              'and partition')
    try:
        answer = input('Run it? y(es), [N]o: ')
    except EOFError:
        answer = ''
    return answer.strip().lower() in ('y', 'yes')


def _print_regressions(verdict: Verdict | None, outcomes: Sequence[Result], site: str
                       ) -> bool:
    """Print the regressions among the test cases of a session, and a level out of
    tolerance; return whether there are any.

    :param site: the option that selects the site of the session
    """
    if verdict is None:
        return False
    systems = {one.system for one in outcomes}
    lines = regressions_in_session(verdict, outcomes)
    if lines:
        print(f'\nWorse than before (./plumb verdict{site} explains it):')
    console.print_lines(f'  {text}' for event in lines for text in event.lines)
    rerun = [one for one in verdict.events_of('rerun') if one.system in systems]
    if rerun:
        print(f'Test cases that are worth measuring again: {len(rerun)} '
              f'(./plumb run{site} --suspects)')
    return bool(lines)


def regressions_in_session(verdict: Verdict, outcomes: Iterable[Result]
                           ) -> list[Event]:
    """The regressions among the test cases of a session."""
    measured = {one.test_case for one in outcomes}
    return [line for line in verdict.regressions
            if measured.intersection(line.cases)]


def is_compared_with_history(verdict: Verdict, outcomes: Iterable[Result]) -> bool:
    """Whether a test case of a session was compared with its history."""
    measured = {one.test_case for one in outcomes}
    return any(one.test_case in measured for one in verdict.baselines)


def print_results(rows: Collection[Row], every: bool = False) -> None:
    """Print the test cases of a session: failures last, what could not start
    before its cause.

    Good ones are only counted; in a session without any reference, those without one
    are listed, because nothing else says what was measured. A note that several test
    cases have is printed once, below the last one; of inconclusive ones it is the cause
    without its numbers.

    What could not be checked stands below, good ones included.

    :param every: list all of them
    """
    from cli.session.table import not_checked_lines
    from postprocess.regressions.inconclusive import short_reason
    from postprocess.results import FAILED, GOOD
    folded = set() if every else {'pass'} if not any(
        one.result == 'pass' for one in rows) else set(GOOD)
    shown = [one for one in rows if one.result not in folded]
    groups: dict[Any, list[Row]] = {}
    for one in sorted(shown, key=lambda one: one.result in FAILED):
        note = short_reason(one.note) if (
            one.result == 'inconclusive' and not every) else one.note
        groups.setdefault((one.result, note) if note else one, []).append(one)
    entries: list[tuple[str, str, list[str]]] = []
    for key, group in groups.items():
        note = key[1] if len(group) > 1 and group[0].note else ''
        entries += [(one.result, one.name, one._replace(
            note='' if note else one.note).details) for one in group]
        if note:
            entries.append(('', '', [f'{len(group)} test cases: ({note})']))
    print()
    console.print_entries(entries)
    if len(shown) < len(rows):
        print(f'{console.count_with_noun(len(rows) - len(shown), "good result")} '
              'not listed: --all')
    # A metric without a tolerance cannot fail: a pass says nothing about it.
    if lacking := sum(one.result == 'pass' and NO_TOLERANCE in one.note
                      for one in rows):
        print(f'{console.count_with_noun(lacking, "good result")} with metrics that '
              'have no tolerance, and so cannot fail: ./plumb references status lists '
              'them')
    console.print_lines(not_checked_lines(rows))


def write_report_page(perflogs: str, site: str, summary: bool = True
                      ) -> tuple[str | None, Any]:
    """Write the page; return its path (None if that failed), and the data of
    the page (report.Written).

    :param site: the site that was measured, by name or path
    :param summary: whether to print its path and what it counts
    """
    from postprocess.report import build as page
    folder = places.report_folder()
    made = page.write_page(perflogs, Path(folder), selected=site, summary=summary)
    return f'{folder}/index.html' if made.code in (0, 1) else None, made


def pytest_parallel_options(cluster: bool) -> list[str]:
    """Options of pytest for as many tests at a time as this machine bears.

    Tests wait more than they compute: for jobs, servers, time limits. A
    worker keeps a core busy for a third of the time; one that has a file of
    those on a cluster, for less.
    """
    workers = len(os.sched_getaffinity(0)) + 5 + 3 * cluster
    # What kills a worker would be run again in the next one: the first ends
    # it all.
    return [f'-n{min(workers, 12)}', '--dist=loadgroup',
            '--no-loadscope-reorder', '--max-worker-restart=0']


def selftest(args: argparse.Namespace) -> int:
    """Runs the tests; zero tests are a failure (pytest's exit code 5).

    :raises SetupError: there is no file of outcomes
    """
    if args.except_passed and not args.except_passed.is_file():
        raise SetupError(f'--except-passed: no file {args.except_passed}')
    mpi = ensure_mpi()
    python = ensure_venv(tests=True)
    path = os.environ.get('PATH', '')
    if mpi['origin'] == 'wheel':
        path = f"{Path(mpi['mpirun']).parent}:{path}"
    env = {**os.environ, 'PATH': path}
    # Python starts a thousand times, and would compile what it reads anew each
    # time: a fifth of the CPU time. Git ignores what is kept.
    env.pop('PYTHONDONTWRITEBYTECODE', None)
    how: dict[str, Any] = {'cwd': ROOT, 'env': env}
    pytest = [str(python), '-m', 'pytest', *['--cluster'] * args.cluster,
              *['--strict-tests'] * args.strict,
              *['--slow'] * args.slow]
    if args.except_passed:
        pytest.append(f'--except-passed={args.except_passed.resolve()}')
    with contextlib.ExitStack() as stack:
        if not args.pytest:
            # pytest rewrites each file of tests when it first reads it, and
            # keeps that: in a new checkout each worker would, for seconds.
            stack.enter_context(subprocess.Popen(
                [*pytest, '--collect-only', '-qq'],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how))
        # Some tests start the stores that were found.
        software.save_detected_software(WORK, mpi, ensure_store_servers())
    together = [*pytest, *pytest_parallel_options(args.cluster), *args.pytest]
    if args.pytest:                         # a person looks at a few
        if args.outcomes:
            together.append(f'--outcomes={args.outcomes.resolve()}')
        return 1 if unstable.call(together, **how) else 0
    return unstable.run(together, [*pytest, '-n0'], args.outcomes, **how)
