"""Descriptions of all families: checks/<family>/family.yaml.

Only this module reads these files; checks, postprocess and the command line
call `families()`. Metrics and limits that families share are in
config/metrics.yaml and config/limits.yaml.

config/schemas/family.yaml describes the keys of a family.yaml. A schema cannot
check names that a key takes from another key or file: this module does.
"""
from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import schema, strict
from .sessions import selection

ROOT = Path(__file__).resolve().parent.parent
CHECKS = ROOT / 'checks'
FILE = 'family.yaml'

#: Origins of programs; the schema describes them.
SOURCES = ('spack', 'module', 'system', 'wheel', 'embedded')

Row = dict[str, Any]

#: Family -> numbers of nodes that its test cases need, also those that no
#: partition of this system allows. ReFrame loads the modules of checks/ under
#: names of its own, and so this table is here.
NEEDED_NODES: dict[str, set[int]] = {}


def record_needed_node_count(family: str, count: int) -> None:
    """Note a number of nodes for `plumb doctor`."""
    NEEDED_NODES.setdefault(family, set()).add(count)


#: A fault of a file: `FILE:LINE: key: reason, what to write`.
FamilyError = strict.Fault


@dataclass(frozen=True)
class Feature:
    """A feature of a family that an environment can offer."""
    means: str
    #: The program that it promises; '': several programs, or none.
    program: str = ''
    #: Whether the name is a regular expression.
    pattern: bool = False
    #: Feature of an environment in which the suite builds the program; '':
    #: no feature alone is enough to build it.
    built_with: str = ''


@dataclass(frozen=True)
class Family:
    """The data of a family.yaml; config/schemas/family.yaml describes it."""
    name: str
    title: str
    folder: Path
    features: dict[str, Feature] = field(default_factory=dict)
    #: environment, partition -> features, of which a test case needs one.
    needs: dict[str, list[str]] = field(default_factory=dict)
    #: Words -> {feature, without}.
    parts: dict[str, dict[str, str]] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    versions_apart: bool = False
    #: Parameters of the checks that `when` of a rule may name.
    parameters: list[str] = field(default_factory=list)
    metrics: dict[str, Row] = field(default_factory=dict)
    judged: list[Row] = field(default_factory=list)
    derived: dict[str, Row] = field(default_factory=dict)
    headline: list[Row] = field(default_factory=list)
    limits: list[Row] = field(default_factory=list)
    plots: list[Row] = field(default_factory=list)
    parsers: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    series: dict[str, dict[str, str]] = field(default_factory=dict)
    bands: dict[str, list[float]] = field(default_factory=dict)
    bands_when: list[Row] = field(default_factory=list)

    @property
    def environment_needs(self) -> list[str]:
        """Features of an environment, of which each test case needs one."""
        return self.needs.get('environment', ['mpi'])

    @property
    def partition_needs(self) -> list[str]:
        """Features of a partition, of which each test case needs one; empty:
        every partition is sufficient."""
        return self.needs.get('partition', [])

    def description_of_program(self, program: str) -> str:
        """The meaning of a program's values for operators; '': not stated."""
        return self.about.get(program) or next(
            (text for pattern, text in self.about.items()
             if fnmatch.fnmatchcase(program, pattern)), '')

    def valid_value_bands(self, params: str) -> dict[str, list[float]]:
        """Metric -> [min, max] of a valid run with these parameters."""
        return self.bands | {
            metric: band for row in self.bands_when
            if parameters_match(row['when'], params)
            for metric, band in row['bands'].items()}


def parameters_by_name(params: str) -> dict[str, str]:
    """The parameters of a test case: name -> value, which may have blanks.

    :param params: ``name=value``, separated by blanks
    """
    parts = re.split(r'(?:^| )([^\s=]+)=', params)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def parameters_match(when: Row | list[Row], params: str) -> bool:
    """Whether a test case has the parameters that `when` of a rule selects.

    :param when: parameter -> pattern or patterns, or a list of such mappings, of
        which one must match; {}: all test cases. A parameter that the test case
        does not have is ''.
    :param params: ``name=value``, separated by blanks
    """
    values = parameters_by_name(params)
    return any(
        all(any(fnmatch.fnmatchcase(values.get(name, ''), str(pattern))
                for pattern in (patterns if isinstance(patterns, list)
                                else [patterns]))
            for name, patterns in row.items())
        for row in (when if isinstance(when, list) else [when]))


@functools.cache
def families() -> dict[str, Family]:
    """Every family by its name.

    :raises FamilyError: the first fault of the first file with a fault
    """
    return load_families(CHECKS, shared_metrics())


@functools.cache
def shared_metrics() -> dict[str, Row]:
    """The metrics of config/metrics.yaml, which several families have."""
    return read_shared_rows(ROOT / 'config' / 'metrics.yaml', 'metrics')


@functools.cache
def shared_limits() -> list[Row]:
    """The physical limits of config/limits.yaml, for all families."""
    path = ROOT / 'config' / 'limits.yaml'
    rows = read_shared_rows(path, 'limits')
    for keys, reason in (
            *_unknown_names(rows, '*.metric', shared_metrics(), _METRIC),
            *_unknown_names(rows, '*.when', (), _PARAMETER, of_keys=True)):
        raise schema.fault_at_path(_relative_path(path), rows, keys, reason)
    return rows


def read_shared_rows(path: Path, part: str) -> Any:
    """The data of a file that families share.

    :param part: part of the schema of families that describes the file
    :raises FamilyError: the first fault of the file
    """
    data, faults = _read_file_and_schema_faults(path, part)
    _raise_first_fault(faults)
    return data


@functools.cache
def all_metrics() -> dict[str, Row]:
    """Every metric by its name: {unit, better, point, means}."""
    return {**shared_metrics(), **{
        name: row for family in families().values()
        for name, row in family.metrics.items()}}


@functools.cache
def all_derived_metrics() -> dict[str, Row]:
    """Every derived metric by its name: {of, from, to}."""
    return {name: row for family in families().values()
            for name, row in family.derived.items()}


def parser_modules() -> dict[str, str]:
    """Argument of `plumb parse` -> module."""
    return {word: f'checks.{family.name}.{module}'
            for family in families().values()
            for word, module in family.parsers.items()}


def family_of_program(program: str, family: str) -> str:
    """The family under whose name an environment has the origin of a program:
    the family with a feature for it, else that of the check."""
    owners = [one.name for one in families().values() for feature in
              one.features.values() if program and feature.program == program]
    return family if family in owners or not owners else owners[0]


def program_origin(extras: Mapping[str, Any], program: str, family: str) -> Row:
    """The origin of a program in an environment: {source, prefix, version}.

    It is the entry of the program's family in the extras. A family whose first
    source is `embedded` needs no entry, because its checks can be built in any
    environment.

    :param extras: extras of the environment
    :param program: '': any program of the family
    :returns: empty if the environment does not have the program
    """
    family = family_of_program(program, family)
    reason = extras.get('programs', {}).get(family)
    if reason is None and families()[family].sources[:1] == ['embedded']:
        return {'source': 'embedded'}
    return dict(reason or {})


def printed_name(program: str, source: str) -> str:
    """The name of a program, or of a check of it, as people read it everywhere.

    :param source: one of SOURCES, or that of other records

    >>> printed_name('osu_latency', 'embedded')
    'osu_latency (embedded)'
    """
    return f'{program} (embedded)' if source == 'embedded' else program


def load_families(checks: Path, shared: Mapping[str, Row]) -> dict[str, Family]:
    """The families of a folder; `families()` has those of the suite.

    :param shared: metrics that all of them may use
    :raises FamilyError: a file has a fault, or two of them use the same name
    """
    families_by_name: dict[str, Family] = {}
    taken: dict[tuple[str, str], Path] = {}
    for path in sorted(checks.glob(f'*/{FILE}')):
        data, wrong = _read_family_file_and_faults(path, shared)
        _raise_first_fault(wrong)
        for key in ('metrics', 'features', 'parsers'):
            for name in data.get(key, ()):
                other = taken.setdefault((key, name), path)
                if other != path:
                    advice = ('move it to config/metrics.yaml'
                              if key == 'metrics' else 'choose another name')
                    raise schema.fault_at_path(
                        _relative_path(path), data, [key, name],
                        f'{_relative_path(other)} already has this name, and a name '
                        f'has only one meaning; {advice}')
        families_by_name[path.parent.name] = _make_family(path, data)
    return families_by_name


def faults_of_family_file(path: Path, shared: Mapping[str, Row]) -> list[str]:
    """The faults of a family.yaml, one line per fault.

    Names are compared only if the file fits its schema.
    """
    return [str(fault) for fault in _read_family_file_and_faults(path, shared)[1]]


def _read_family_file_and_faults(path: Path, shared: Mapping[str, Row]
             ) -> tuple[Any, list[FamilyError]]:
    """The data of a family.yaml, and its faults."""
    data, wrong = _read_file_and_schema_faults(path)
    if not wrong:
        wrong = [schema.fault_at_path(_relative_path(path), data, keys, reason)
                 for keys, reason in _faults_beyond_schema(data, shared)]
    return data, wrong


def _read_file_and_schema_faults(path: Path,
                                 part: str = '') -> tuple[Any, list[FamilyError]]:
    """The data of a file, and its faults by the schema."""
    name = _relative_path(path)
    try:
        data = strict.load_yaml(path)
    except OSError as err:
        return None, [FamilyError(name, 1, str(err.strerror))]
    except strict.Fault as err:
        return None, [FamilyError(name, err.line, err.reason)]
    return data, schema.schema_faults(name, data, 'family', part)


def _make_family(path: Path, data: Mapping[str, Any]) -> Family:
    """A family from data without faults."""
    return Family(**{
        **data, 'name': path.parent.name, 'folder': path.parent,
        'features': {name: Feature(**row)
                     for name, row in data.get('features', {}).items()},
        'headline': [{'metric': row} if isinstance(row, str) else row
                     for row in data['headline']]})


def _relative_path(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _raise_first_fault(faults: list[FamilyError]) -> None:
    if faults:
        raise faults[0]


# --------------------------- names that one key takes from another

#: The keys that lead to a value, and the fault of the value, or the value.
Wrong = Iterator[tuple[list[Any], Any]]

_METRIC = 'a metric of this file or of config/metrics.yaml'
_PARAMETER = 'in `parameters` of the family'


def _faults_beyond_schema(data: Mapping[str, Any], shared: Mapping[str, Row]) -> Wrong:
    """Names that would leave values without a comparison. tests/test_contracts.py
    compares all other names."""
    known = {**shared, **data.get('metrics', {})}
    parameters = data.get('parameters', ())
    for pattern in ('judged.*.metric', 'limits.*.metric'):
        yield from _unknown_names(data, pattern, known, _METRIC)
    for pattern in ('limits.*.when', 'bands_when.*.when'):
        yield from _unknown_names(data, pattern, parameters, _PARAMETER, of_keys=True)


def _values_at(data: Any, pattern: str, keys: tuple = ()) -> Wrong:
    """The values that a path of keys leads to, with their keys.

    :param pattern: keys joined by a dot; `*`: each key or position
    """
    if not pattern:
        yield [*keys], data
        return
    first, _, rest = pattern.partition('.')
    rows = (data.items() if isinstance(data, dict) else
            enumerate(data) if isinstance(data, list) else ())
    for key, value in rows:
        if first in ('*', key):
            yield from _values_at(value, rest, (*keys, key))


def _unknown_names(data: Any, pattern: str, known: Iterable[str], what: str,
                   of_keys: bool = False) -> Wrong:
    """Names that `known` lacks: of the values of a path, or of their keys. A value may
    be a list of names, or of mappings with such keys."""
    for keys, value in _values_at(data, pattern):
        for one in value if isinstance(value, list) else [value]:
            names = one if of_keys and isinstance(one, dict) else (
                [one] if isinstance(one, str) and not of_keys else [])
            for name in names:
                if name not in known:
                    yield keys, _unknown_name(name, known, what)


def _unknown_name(name: str, known: Iterable[str], what: str) -> str:
    return f'{name!r} is not {what}; {schema.suggest_name(name, known)}'


def faults_of_panels(data: Mapping[str, Any]) -> Wrong:
    """Names in `panels` of plots that `series` does not have.

    The kind of the plot reports other faults of `panels`.
    """
    series = data.get('series', {})
    for at, row in enumerate(data.get('plots', ())):
        for number, panel in enumerate(row.get('panels', ())):
            known: dict[str, Iterable[str]] = {'of': series, **dict.fromkeys(
                ('metric', 'beside', 'share_of'), series.get(panel.get('of'), ()))}
            for key, names in known.items():
                if key in panel and panel[key] not in names:
                    yield ['plots', at, 'panels', number, key], (
                        f'{panel[key]!r} is not in `series` of the family; '
                        f'{schema.suggest_name(panel[key], names)}')


def description_with_embedded_environments(check: Any, partitions: Iterable[Any]
                                           ) -> str:
    """The description of a check, whose first word is the program, with the
    environments in which the program is embedded.

    :param check: has descr, program, family and valid_prog_environs
    :param partitions: of the system, with their environments
    """
    sources = {
        env.name: program_origin(env.extras, check.program, check.family).get('source')
        for part in partitions for env in part.environs
        if any(selection.environment_has(env, spec)
               for spec in check.valid_prog_environs)}
    embedded = [name for name, source in sources.items() if source == 'embedded']
    if not embedded:
        return check.descr
    only = f' in {", ".join(embedded)}' * (len(embedded) < len(sources))
    program, *rest = (check.descr or check.program).split(' ', 1)
    return ' '.join([f'{program} (embedded{only})', *rest])
