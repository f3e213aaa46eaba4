"""The commands of plumb that need the venv."""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.machine import software
from cli.session import names
from cli.session import process as session
from cli.session.crossing import replace_settings_lists
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
from config import console, families, places
from config.commandline import suggest_nearest_word
from config.places import is_site_named_local
from config.references import accepted_files
from config.sessions import clock, cost, lock, progress, slurm_jobs
from config.sessions.modes import MODES, QUICK
from config.sessions.selection import SMOKE, VETO
from tests import unstable

if TYPE_CHECKING:
    from cli.session.account import Row
    from postprocess.perflogs import plans
    from postprocess.references.level import Level
    from postprocess.regressions.finding import Regression
    from postprocess.regressions.verdict import Verdict
    from postprocess.results import Key


def site_folder(name: str) -> Path:
    """The folder of a site given by name or path.

    :raises SetupError: no such site; names those that exist.
    """
    try:
        return places.existing_site_folder(name)
    except places.PlaceError as err:
        raise SetupError(str(err)) from None


def reframe_environment_variables(site: str) -> dict[str, str]:
    """Variables that plain ReFrame needs to run the suite on a site.

    :raises SetupError: unknown or broken site.
    """
    folder = site_folder(site)
    refuse_unusable_path('the folder of the site', folder)
    refuse_unusable_path('PLUMBLINE_PERFLOGS', places.perflog_folder())
    local = is_site_named_local(folder)
    path = [str(WORK / 'bin')]
    if local:
        mpi = ensure_mpi()
        software.save_detected_software(WORK, mpi, ensure_store_servers())
        if mpi['origin'] == 'wheel':
            path.append(str(Path(mpi['mpirun']).parent))
    env = {
        'PLUMBLINE_ROOT': str(ROOT),
        'PLUMBLINE_WORK': str(WORK),
        'PLUMBLINE_SITE': str(folder),
        'PLUMBLINE_PERFLOGS': str(places.perflog_folder()),
        'RFM_CONFIG_FILES': f'{ROOT}/config/common.py:{folder}/system.py',
        'RFM_REFERENCE_PREFIX': str(reference_folder_of_site(folder)),
        'RFM_REPORT_FILE': str(WORK / 'report.json'),
        # A check that cannot be imported is only a warning to ReFrame.
        'RFM_WARN_AS_ERROR': '1',
        'PATH': ':'.join([*path, os.environ.get('PATH', '')]),
    }
    os.environ.update({k: v for k, v in env.items() if k != 'PATH'})
    for known in load_site_configuration(folder / 'system.py')['environments']:
        for name in known.get('extras', {}).get('wheel', '').split():
            # Stores are more than their wheels: those of PATH, and none.
            ensure_store_servers() if name == 'stores' else ensure_folder_of_lock(name)
    return env


def reference_folder_of_site(folder: Path) -> Path:
    """The folder of a site's references, or another one that a person set
    for this site with RFM_REFERENCE_PREFIX.

    :raises SetupError: the variable names references of another site
    """
    try:
        return places.reference_folder_of_site(
            folder, os.environ.get('RFM_REFERENCE_PREFIX'))
    except places.PlaceError as err:
        raise SetupError(str(err)) from None


def load_site_configuration(path: Path) -> dict[str, Any]:
    """Load a site's configuration, and check every name in it.

    :raises SetupError: the file cannot be run, or has an unknown name
    """
    from checks.core.features import GlossaryError, check_site_features
    try:
        configuration = runpy.run_path(str(path))['site_configuration']
        check_site_features(configuration, str(path))
    except (GlossaryError, families.FamilyError) as err:
        raise SetupError(str(err)) from None
    except SyntaxError as err:
        raise SetupError(f'{path}:{err.lineno}: {err.msg}') from None
    except KeyError as err:
        raise SetupError(f'{path}: {err} is missing') from None
    except Exception as err:
        raise SetupError(f'{path}: {type(err).__name__}: {err}') from None
    return configuration


def refuse_unreadable_reference_files(folder: Path) -> None:
    """Check that every reference file of the site can be read.

    :raises SetupError: a file cannot; reported once, not per test case
    """
    from checks.core import references
    for path in accepted_files(folder):
        try:
            references.load_references(path.stem)
        except references.ReferenceError_ as err:
            raise SetupError(str(err)) from None


def env(args: argparse.Namespace) -> int:
    """Prints the exports.

    :raises SetupError: the `reframe` of PATH is wanted, and there is none
    """
    variables = reframe_environment_variables(args.site)
    ours = variables['PATH'].removesuffix(os.environ.get('PATH', ''))
    # A second eval must not make PATH grow.
    old = ':'.join(p for p in os.environ.get('PATH', '').split(':')
                   if p and p not in ours.split(':'))
    if args.own_reframe:
        ours = ours.removeprefix(f'{WORK}/bin:')
        if not shutil.which('reframe', path=old):
            raise SetupError('--own-reframe: no reframe on PATH; load its module, or '
                             'omit --own-reframe, which selects the ReFrame of the '
                             'suite')
    for name, value in {**variables, 'PATH': ours + old}.items():
        print(f'export {name}={shlex.quote(value)}')
    return 0


class Work(NamedTuple):
    """A site that is set up, and this machine's lock where there is one."""
    system: dict[str, Any]
    #: Variables of ReFrame for the site.
    variables: dict[str, str]
    #: Options of ReFrame: the mode, and those that the user gave.
    options: list[str]
    #: Whether only limits and vendor profile can fail a value.
    bringup: bool
    locks: list[int]
    #: The nightly session that its sessions belong to.
    nightly_session: session.NightlySession | None = None

    @property
    def perflog_folder(self) -> str:
        return self.variables['PLUMBLINE_PERFLOGS']


class Ended(NamedTuple):
    """A session of ReFrame that is over."""
    code: int
    #: Name of the signal that ended it, or ''.
    ended_by: str
    #: None: no test case began.
    plan: plans.Plan | None
    #: Of ReFrame's report (`_test_cases_of_report`).
    cases: list[dict[str, Any]]
    #: Where ReFrame's output is; None: it was printed.
    output: Path | None = None


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
    start = time.monotonic()
    folder = site_folder(args.site)
    variables = reframe_environment_variables(args.site)
    system = load_site_configuration(folder / 'system.py')['systems'][0]
    if args.mode == VETO:
        refuse_schedulers_that_list_no_nodes(system)
    with contextlib.ExitStack() as stack:
        locks = []
        # Without a scheduler, only one session at a time may measure.
        if _has_only_local_scheduler(system):
            try:
                locks = [stack.enter_context(lock.hold_file_lock(
                    lock.machine_lock_path(), lock.LIMIT if args.wait else 0))]
            except lock.LockError as err:
                raise SetupError(str(err)) from None
            variables[lock.HELD] = str(locks[0])
        if not args.bringup:
            refuse_unreadable_reference_files(Path(variables['RFM_REFERENCE_PREFIX']))
        options = mode_options(args.mode, args.reframe)
        if args.bringup:
            options.append('-Sbringup=1')
        print_progress(f'set-up took {time.monotonic() - start:.1f} s')
        yield Work(system, variables, [*options, *replace_settings_lists(args.reframe)],
                   args.bringup, locks)


def mode_options(mode: str, words: Sequence[str]) -> list[str]:
    """The options of a mode. Not --mode: ReFrame ignores -p beside it.

    In mode quick, the default, a hash selects its test case in whatever mode it is.

    :param words: options of ReFrame that the user gave
    """
    return [] if mode == QUICK and names.has_only_hashes(words) else [*MODES[mode]]


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


def refuse_mode_veto(mode: str, command: str) -> None:
    """Check that a command that chooses nodes itself has another mode.

    :raises SetupError: it has mode veto
    """
    if mode == VETO:
        raise SetupError(f'--mode {VETO} measures every node once, so it is not a mode '
                         f'of ./plumb {command}; use ./plumb run --mode {VETO}')


def _has_only_local_scheduler(system: dict[str, Any]) -> bool:
    """Whether no scheduler separates the sessions of a site."""
    return all(part['scheduler'] == 'local' for part in system['partitions'])


def run_reframe_session(work: Work, *options: str,
                        only: Collection[Key] | None = None,
                        variables: Mapping[str, str] | None = None,
                        quiet: bool = False) -> Ended:
    """Run one session of ReFrame; one of the options is its action.

    :param quiet: print its progress instead of ReFrame's output, which goes to a
        file; if it ends without a plan, the last lines of the file are printed
    :param only: the only test cases to run; None: all of the mode
    :raises SetupError: it would measure, but the clock is wrong
    """
    from cli.session import account
    if '-r' in options and (why := clock.reason_clock_is_behind(
            Path(work.perflog_folder, work.system['name']))):
        raise SetupError(why)
    variables = dict(variables or {})
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(session.create_session_folders(
            work.system, work.nightly_session, runs_jobs='-r' in options))
        if only is not None:
            from config.sessions.runner import ONLY
            # The keys of thousands of test cases are too long for a variable.
            file = stack.enter_context(
                tempfile.NamedTemporaryFile('w', suffix='.json'))
            json.dump(sorted(only), file)
            file.flush()
            variables[ONLY] = file.name
        code, ended_by = session.run_reframe(
            [str(WORK / 'bin' / 'reframe'), *work.options, *options],
            {**work.variables, **opened.reframe_variables, **variables},
            [*work.locks, opened.lock],
            opened.stage if slurm_jobs.can_list_jobs(work.system) else None,
            opened if quiet else None)
        plan = account.find_plan(work.perflog_folder, opened.folder.name)
        if quiet and plan is None:
            print(*opened.output_path.read_text(errors='replace').splitlines()[-40:],
                  sep='\n', file=sys.stderr)
        return Ended(code, ended_by, plan, _test_cases_of_report(opened.report_path),
                     opened.output_path if quiet else None)


def wants_reframe_output(words: Sequence[str]) -> bool:
    """Whether options of ReFrame ask for its own output: -v."""
    return any(word == '--verbose' or re.fullmatch('-v+', word) for word in words)


def print_zero_test_cases_reason(work: Work, ended: Ended) -> int:
    """Print why a session without a plan is an error, with the names that are
    nearest to those of -n; return the exit code."""
    print(f'plumb: ended by {ended.ended_by} before any test case began'
          if ended.ended_by else
          'plumb: no test case ran, so nothing was measured; the lines above '
          'give the reason', file=sys.stderr)
    patterns, options = names.split_name_options(work.options)
    if ended.code == 2 and patterns and (text := names.suggest_names(
            patterns, names.list_names(
                str(WORK / 'bin' / 'reframe'), options,
                {**os.environ, **work.variables}))):
        print(f'plumb: {text}', file=sys.stderr)
    return 2 if ended.code == 2 else 1      # 2: ReFrame's own usage error


def run(args: argparse.Namespace) -> int:
    """Run a mode, print the table, write the page; return the exit code."""
    from cli.session import account, ordering
    from postprocess import results
    from postprocess.results import FAILED
    start = time.monotonic()
    site = places.site_option(args.site)
    action = account.find_non_run_action(args.reframe)
    if args.mode == ordering.NIGHTLY and not action:
        raise SetupError('--mode nightly: a nightly session is started with '
                         f'./plumb nightly{site}')
    if action == '--ci-generate':
        raise SetupError('--ci-generate: ReFrame would make a job for each test case, '
                         'without the builds that it needs; for a pipeline with a job '
                         f'for each family, run ./plumb nightly{site} --print gitlab')
    with prepare_session(args) as work:
        if action:
            # A dry run has no jobs to wait for, one after the other.
            serial = ['--exec-policy=serial'] * (action == '--dry-run')
            return run_reframe_session(work, *serial).code
        with hold_known_wall_times(work) as known:
            if not (args.yes or _has_only_local_scheduler(work.system)) and (
                    is_terminal()):
                code, text = cost_of_session(work, known)
                if not text:
                    return print_zero_test_cases_reason(
                        work, Ended(code, '', None, []))
                if not confirm_cost(work.system['name'], args.mode, text):
                    print_progress('nothing was run')
                    return 0
            ended = run_reframe_session(work, '-r', variables=known,
                                        quiet=not wants_reframe_output(args.reframe))
        if ended.plan is None:
            return print_zero_test_cases_reason(work, ended)
        page, made = write_report_page(work.perflog_folder)
    rows = [*account.rows_by_test_case(ended.plan, made.records, ended.cases,
                                       made.ahead).values()]
    print_results([*rows, *account.failed_builds(ended.cases)], args.all)
    failed = [one for one in rows if one.result in FAILED]
    worse = _print_regressions(made.verdict, ended.plan, site)
    notes = []
    if ended.ended_by:
        notes.append(f'Ended by {ended.ended_by}: test cases that did not finish are '
                     'not_run.')
    if work.bringup:
        notes.append('Bring-up: only limits, and the vendor profile of the site, can '
                     'fail a value')
    waiting = sum(one.waits for one in rows)
    if waiting:
        mode = ' --mode full' * (args.mode == 'full')
        notes.append(f'{waiting} of the test cases have no reference; add them: '
                     f'{places.CALIBRATE}{site}{mode}')
    if ended.output and ended.code and not failed:
        notes.append(f'ReFrame ended with exit code {ended.code}; see {ended.output}')
    again = sum(one.measurements > 1 for one in rows)
    print()
    console.print_lines([
        *notes,
        results.tally_text(one.result for one in rows)
        + f', {again} measured again' * bool(again)
        + f' · {progress.duration_text(time.monotonic() - start)}'])
    if failed:
        print('Next: ' + ' '.join([
            f'./plumb run{site}',
            *([f'--mode {args.mode}'] if args.mode != QUICK else []),
            *['--bringup'] * bool(work.bringup),
            *dict.fromkeys(f'-n /{one.case}' for one in failed[:3])]))
    print(f'Page: {page}' if page else 'No page was written: see the error '
                                       'above')
    return 1 if (ended.code or failed or not page or ended.ended_by
                 or worse) else 0


def is_terminal() -> bool:
    """Whether a person can read a question and answer it."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def cost_of_session(work: Work, variables: Mapping[str, str]) -> tuple[int, str]:
    """Exit code of ReFrame, and the cost of the test cases that it would run.

    Without test cases, the cost is '' and ReFrame's output is printed.

    :param variables: further variables of the session
    """
    with tempfile.NamedTemporaryFile('r', suffix='.txt') as file:
        done = subprocess.run(
            [str(WORK / 'bin' / 'reframe'), *work.options, '-r'], text=True,
            env={**os.environ, **work.variables, **variables,
                 cost.COST_FILE: file.name},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        text = '' if done.returncode else file.read()
    if not text:
        print(done.stdout, end='', flush=True)
    return done.returncode, text


def hold_known_wall_times(work: Work
                          ) -> contextlib.AbstractContextManager[dict[str, str]]:
    """Variables of a session that knows the times of the test cases in earlier ones."""
    from cli.session import ordering
    return ordering.hold_ordering_data_file(ordering.Known(ordering.read_wall_times(
        Path(work.perflog_folder), work.system['name'])))


def confirm_cost(system: str, mode: str, cost_text: str) -> bool:
    """Print the cost of a session and ask whether to run it."""
    print(f'Mode {mode} on {system}: {cost_text}, without builds and queues')
    if mode != SMOKE:
        print(f'For a first session, --mode {SMOKE} has one test case per family '
              'and partition')
    try:
        answer = input('Run it? y(es), [N]o: ')
    except EOFError:
        answer = ''
    return answer.strip().lower() in ('y', 'yes')


def _print_regressions(verdict: Verdict | None, plan: plans.Plan, site: str) -> bool:
    """Print the regressions among the test cases of a session, and a level out of
    tolerance; return whether there are any.

    :param site: the option that selects the site of the session
    """
    from postprocess.regressions import telling
    if verdict is None:
        return False
    lines = regressions_in_session(verdict, plan)
    levels = failed_levels_of_system(verdict, plan)
    if levels or lines:
        print(f'\nWorse than before (./plumb verdict{site} explains it):')
    console.print_lines(f'  {text}' for level in levels for text in level.lines)
    console.print_lines(f'  {text}' for line in lines
                        for text in telling.regression_lines(line))
    rerun = [one for one in verdict.rerun if one.system == plan.head['system']]
    if rerun:
        print(f'Test cases that are worth measuring again: {len(rerun)} '
              f'({telling.rerun_command_text(site)})')
    return bool(levels or lines)


def failed_levels_of_system(verdict: Verdict, plan: plans.Plan) -> list[Level]:
    """The level of the session's system, if it is out of tolerance: all metrics
    together are worse than their references."""
    return [level for level in verdict.failed_levels
            if level.system == plan.head['system']]


def regressions_in_session(verdict: Verdict, plan: plans.Plan) -> list[Regression]:
    """The regressions among the test cases of a session."""
    keys = {(case['partition'], case['environ'], case['case'])
            for case in plan.cases}
    return [line for line in verdict.regressions if any(
        (one.partition, one.environ, one.case) in keys
        and one.system == plan.head['system'] for one in line.members)]


def _test_cases_of_report(report: Path) -> list[dict[str, Any]]:
    """Test cases of ReFrame's report: those that measure, failed builds."""
    try:
        data = json.loads(report.read_text())
    except (OSError, ValueError):
        return []
    return [case for session in data['runs'] for case in session['testcases']
            if not case.get('fixture') or case['result'] == 'fail']


def print_results(rows: Collection[Row], every: bool = False) -> None:
    """Print the test cases of a session: failures last, what could not start
    before its cause.

    Good ones are only counted; in a session without any reference, those without one
    are listed, because nothing else says what was measured. A note that several test
    cases have is printed once, below the last one.

    :param every: list all of them
    """
    from postprocess.results import FAILED, GOOD
    folded = set() if every else {'pass'} if not any(
        one.result == 'pass' for one in rows) else set(GOOD)
    shown = [one for one in rows if one.result not in folded]
    groups: dict[Any, list[Row]] = {}
    for one in sorted(shown, key=lambda one: one.result in FAILED):
        groups.setdefault((one.result, one.note) if one.note else one, []).append(one)
    entries: list[tuple[str, str, list[str]]] = []
    for group in groups.values():
        note = group[0].note if len(group) > 1 else ''
        entries += [(one.result, one.name, one._replace(
            note='' if note else one.note).details) for one in group]
        if note:
            entries.append(('', '', [f'{len(group)} test cases: ({note})']))
    print()
    console.print_entries(entries)
    if len(shown) < len(rows):
        print(f'{console.count_with_noun(len(rows) - len(shown), "good test case")} '
              'not listed: --all')


def write_report_page(perflogs: str) -> tuple[str | None, Any]:
    """Write the page; return its path (None if that failed), and the data of
    the page (report.Written)."""
    from postprocess.report import build as page
    folder = places.report_folder()
    made = page.write_page(perflogs, Path(folder), places.machine_reference_folder())
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
    """Runs the tests; zero tests are a failure (pytest's exit code 5)."""
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
        return 1 if unstable.call(together, **how) else 0
    return unstable.run(together, [*pytest, '-n0'], **how)
