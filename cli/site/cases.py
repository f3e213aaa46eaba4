"""Print the test cases that ReFrame generates for a site, as JSON.

`plumb site check` runs this program once per site: a check reads parameters
from the system while it is imported, so one process can load only one site.
The program runs and writes nothing, and needs neither a scheduler nor a
modules system. It prints the test cases with their references, or `error`.
"""
from __future__ import annotations

import contextlib
import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import reframe.utility.typecheck as typ
from reframe.core import config, logging, runtime
from reframe.core.exceptions import ReframeError
from reframe.frontend.executors import generate_testcases
from reframe.frontend.loader import RegressionCheckLoader

from checks.core import references
from cli.session.commands import MODES, load_site_configuration
from cli.setup.venv import ROOT, SetupError
from config import sites
from config.families import NEEDED_NODES, families
from config.references import SOURCE_KEYS, Entry, File, source_key

#: ReFrame only warns of a check that cannot be imported. The caller reports
#: each line on stderr as a fault.
LOGGING = {'logging': [{'level': 'warning', 'handlers': [], 'handlers$': [
    {'type': 'stream', 'name': 'stderr', 'level': 'warning',
     'format': '%(message)s'}]}]}


#: Family, check class and keys of entries that match a test case.
MATCHED_ENTRIES: set[tuple] = set()


def select_site_in_reframe(folder: Path) -> None:
    """Make the site ReFrame's current system.

    :raises SetupError: the site's file has a fault
    """
    sites.only_read = False
    path = folder / 'system.py'
    systems = load_site_configuration(path)['systems']
    if len(systems) != 1:
        raise SetupError(f'{path} has {len(systems)} systems, but a site has '
                         'exactly one; make one folder per system')
    try:
        site = config.load_config(str(path))
        site.validate()
    except ReframeError as err:
        cause = err.__cause__
        if not isinstance(cause, jsonschema.ValidationError):
            raise SetupError(f'{path}: {err}') from None
        where = '/'.join(map(str, cause.absolute_path))
        raise SetupError(f'{path}: {where}: {cause.message[:200]}'
                         f"{misspelt_key_hint(cause)} (ReFrame's schema)") from None
    site.update_config(LOGGING, '<site check>')
    # The modules of the site usually do not exist on this machine.
    site.add_sticky_option('systems/modules_system', 'nomod')
    site.select_subconfig(systems[0]['name'], ignore_resolve_errors=True)
    runtime.init_runtime(site)
    logging.configure_logging(site)


def misspelt_key_hint(error: jsonschema.ValidationError) -> str:
    """A note on the key that is probably a misspelt required key."""
    if error.validator != 'required':
        return ''
    missing = error.message.split("'")[1]
    matches = difflib.get_close_matches(missing, error.instance, 1, 0.7)
    return f'; is {matches[0]!r} misspelt?' if matches else ''


def has_judged_metrics(check: Any) -> bool:
    """Whether a reference is compared with any metric of the test case."""
    try:
        return bool(check.metrics_to_compare(check.required_metrics()))
    except AttributeError:
        # Its metrics are known only after its setup: assume that one is.
        return True


def reference_status(check: Any) -> tuple[str, str, str, bool, str]:
    """The references of a test case: kind, what is missing, fault, whether
    they have a tolerance no wider than the max tolerance, and their source.

    The kind is `own` (measured, or set by hand), `published`, `none` (no reference), or
    `-` (no metric is compared with a reference).
    """
    if not hasattr(check, 'metrics_to_compare') or not has_judged_metrics(check):
        return '-', '', '', False, ''
    # As ReFrame's setup, but without making folders.
    check.set_program_origin()
    try:
        MATCHED_ENTRIES.update((check.family, one.check, one.keys) for one
                               in references.entries_of_test_case(check))
        if check.inconclusive:
            return '-', '', '', False, ''
        entry = references.find_entry(check)
        if entry is not None:
            check.values = dict.fromkeys(check.required_metrics(), 0.0)
            check.add_worst_ratio_metric()
            references.references_to_compare_and_note(check, check.values)
    except ValueError as err:
        return 'none', '', str(err), False, ''
    if entry is None:
        lacks, _, _ = references.reason_without_entry(check).partition(':')
        return 'none', lacks, '', False, ''
    return ('published' if entry.is_published else 'own', '', '',
            entry.has_useful_tolerance(check.family),
            ', '.join(str(entry.source[key]) for key in SOURCE_KEYS
                      if key in entry.source))


def describe_rank_placement_problem(check: Any) -> str:
    """Why the partition cannot place the ranks of a test case; '': it can."""
    try:
        check.lay_out_ranks()
        check.check_placement_and_mark_shortage()
    except ValueError as err:         # of ReFrame's copy of the module
        return str(err)
    return ''


def iterate_test_case_facts() -> Iterator[dict[str, Any]]:
    """Every test case of the current system, without fixtures."""
    # Only folders of families, because ReFrame parses every file.
    loader = RegressionCheckLoader(
        [str(family.folder) for family in families().values()], recurse=True)
    cases = [case for case in generate_testcases(loader.load_all())
             if not case.check.is_fixture()]
    settings = variables_by_mode()
    for case in cases:
        check, partition, environ = case
        check.place = partition, environ
        # All partitions share the check, and each has reasons of its own.
        reasons = getattr(check, 'inconclusive_reasons', [])
        own_reasons = len(reasons)
        misplaced = describe_rank_placement_problem(check)
        kind, lacks, fault, judges, source = reference_status(check)
        modes = [mode for mode in MODES
                 if check.is_in_mode(mode, partition, environ)
                 and is_selected_by_nodes(check, settings.get(mode, {}))]
        yield {'check': type(check).variant_name(),
               'family': getattr(check, 'family', ''),
               'params': getattr(check, 'params', ''),
               'where': f'{partition.name}+{environ.name}',
               'modes': modes,
               'reference': kind, 'lacks': lacks, 'fault': fault,
               'judges': judges, 'source': source,
               'unavailable_cpus': getattr(check, 'unavailable_cpus', 0),
               # Of checks with servers.
               'unproven_launcher': getattr(check, 'unproven_launcher', str)(),
               'misplaced': misplaced, 'test_case': check.test_case,
               'system': runtime.runtime().system.name, 'partition': partition.name,
               'environ': environ.name, 'settings': check.changed_settings,
               'name': check.display_name,
               'link': getattr(check, 'link_metric', ''),
               'nodes': check.node_count_before_setup,
               'max_seconds': {mode: max_seconds_in_mode(check, settings.get(mode, {}))
                               for mode in modes}}
        del reasons[own_reasons:]


def max_seconds_in_mode(check: Any, settings: Mapping[str, str]) -> float:
    """The maximum seconds of the job of a test case in a mode.

    :param settings: variables of checks that the mode sets
    """
    return max(typ.Duration(settings.get('time_limit', '0')), check.time_limit or 0)


def is_selected_by_nodes(check: Any, settings: Mapping[str, str]) -> bool:
    """Whether the `node_counts` of a mode select a test case.

    :param settings: variables of checks that the mode sets
    """
    counts = settings.get('node_counts', '').split(',')
    return (counts == [''] or not getattr(check, 'is_collective', False)
            or str(check.node_count_before_setup) in counts)


def variables_by_mode() -> dict[str, dict[str, str]]:
    """Mode -> the variables of checks that the mode sets (-S name=value)."""
    return {name: dict(option[2:].split('=', 1) for option in options
                       if option.startswith('-S'))
            for name, options in MODES.items()}


def families_marked_complete(families: Iterable[str]) -> list[str]:
    """The families whose reference file has `complete: true`."""
    names = []
    for family in sorted(filter(None, families)):
        # A broken file is reported with its test cases.
        with contextlib.suppress(references.ReferenceError_):
            names += [family] * references.load_references(family).complete
    return names


def has_settings(file: File, entry: Entry) -> bool:
    """Whether an entry is of test cases with changed settings."""
    index = file.checks[entry.check]['$index']
    return any(level == 'settings' and key for level, key in zip(
        index, entry.keys, strict=True))


def entries_without_test_case(cases: Iterable[Mapping[str, Any]]) -> list[str]:
    """Faults: entries that match no test case of the site. A measured entry may be of
    settings that a person gave, and then it is left out."""
    faults = []
    for family in sorted(filter(None, {case['family'] for case in cases})):
        # A broken file is reported with its test cases.
        with contextlib.suppress(references.ReferenceError_):
            file = references.load_references(family)
            faults += [
                f'{file.path}:{entry.line}: {entry.check}: {source_key(entry.keys)}: '
                'no test case of the site has these keys; correct them, or remove the '
                'entry'
                for entry in file.all_entries()
                if not (entry.is_measured and has_settings(file, entry))
                and (family, entry.check, entry.keys) not in MATCHED_ENTRIES]
    return faults


def main() -> int:
    """Print the test cases of the site in the folder of the first argument.

    :returns: always 0; the JSON has the key `error` if the site cannot be loaded
    """
    folder = Path(sys.argv[1])
    answer: dict[str, Any]
    try:
        select_site_in_reframe(folder)
        cases = list(iterate_test_case_facts())
        answer = {
            'cases': cases,
            'needed_nodes': {family: sorted(counts)
                             for family, counts in NEEDED_NODES.items()},
            'complete': families_marked_complete({case['family'] for case in cases}),
            'entries_without_test_case': entries_without_test_case(cases)}
    except SetupError as err:
        answer = {'error': str(err)}
    except ReframeError as err:
        answer = {'error': f'{folder}/system.py: {err}'}
    # Not json.dump, which does not use the encoder in C.
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == '__main__':
    sys.path[0] = str(ROOT)
    sys.exit(main())
