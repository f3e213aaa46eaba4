"""What the suite knows of its families: checks/<family>/family.yaml.

The one reader of these files. Checks, postprocess and the command line ask
`families()`; what several families share stands in config/metrics.yaml and
config/limits.yaml. Needs nothing but PyYAML.

Keys of a family.yaml; title, sources, judged and headline must be there:

    title           a few words, for tables and pages
    features        what an environment can offer of it: name ->
                    {means, program: the program that it promises,
                    pattern: true where the name is a regular expression,
                    built_with: the feature (mpi) of environments that have
                    it, too, because the suite builds the program there}
    parts           what a site may lack, for `plumb doctor`: a few words ->
                    {feature: of this family, that the part needs,
                    without: what to do where no environment offers it; the
                    stacks that do are told beside it}
    sources         where its programs may come from, of SOURCES; embedded
                    first: wherever an environment says nothing else
    versions_apart  true: another version of a program is another program,
                    with references of its own
    metrics         those that it alone has: name -> {unit, better, point,
                    means}; see config/metrics.yaml
    judged          a list, [] judges nothing:
                      metric      of this file or config/metrics.yaml
                      at          where on the curve: the first of these
                                  points that the case has, a message size
                                  in B, or smallest | largest. Left out, or
                                  a case without sizes: the figure of the
                                  whole run
                      resolution  last digit that the program prints, in the
                                  metric's unit: no smaller difference means
                                  anything
                      widest      cap of the bound, a fraction (default
                                  0.3): what a wider bound lets pass is not
                                  judged, and is told as `unjudged`
                      instead     the derived metric that is judged where
                                  the bound of the point stays above the cap
    derived         means over a part of a curve, steadier than any one
                    size: metric -> {of, from, to}, sizes in B, inclusive;
                    the geometric mean of at least three of them
    headline        what the table of `plumb run` shows where nothing is
                    judged, the first three that there are: {metric, at,
                    alone: only where the case has none of the others}, or
                    just the metric's name
    limits          what physics allows, as in config/limits.yaml
    figures         what is drawn: {kind, metric, ...}; the module of the
                    kind (postprocess/) says what else
    parsers         word of `plumb parse` -> module of the family's folder
    programs        program -> what it does: all that the family knows
    about           program, or a pattern of programs (osu_i*) -> what its
                    figures tell an operator
    series          what runs leave over time: kind -> {metric: unit}
    bands           metric of a series -> [least, most] of a valid run
    bands_when      regular expression on the parameters -> bands instead
"""
from __future__ import annotations

import difflib
import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import strict

ROOT = Path(__file__).resolve().parent.parent
CHECKS = ROOT / 'checks'
FILE = 'family.yaml'

#: Where programs may come from; a wheel's server is not built as a
#: distribution's is, so the two are different programs.
SOURCES = ('spack', 'module', 'system', 'wheel', 'embedded')
BETTER = ('higher', 'lower', 'none')
#: What an environment offers that programs of the suite are built with.
BUILT_WITH = ('mpi',)
#: Where a limit takes its bound from, and what else it may say.
BOUNDS = ('min', 'max', 'max_of', 'half_of')
LIMIT = ('metric', 'why', 'when', 'per', 'from', *BOUNDS)

Row = dict[str, Any]


class FamilyError(strict.Fault):
    """What is wrong with a file: `FILE:LINE: key: reason, what to write`."""


@dataclass(frozen=True)
class Feature:
    """What an environment can offer of a family."""
    means: str
    #: The program that it promises; '': it is about several, or about none.
    program: str = ''
    #: The name is a regular expression.
    pattern: bool = False
    #: Feature of an environment in which the suite builds the program; '':
    #: no feature alone brings it.
    built_with: str = ''


@dataclass(frozen=True)
class Family:
    """A family.yaml; see the module for what is in it."""
    name: str
    title: str
    folder: Path
    features: dict[str, Feature] = field(default_factory=dict)
    #: Words -> {feature, without}.
    parts: dict[str, dict[str, str]] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    versions_apart: bool = False
    metrics: dict[str, Row] = field(default_factory=dict)
    judged: list[Row] = field(default_factory=list)
    derived: dict[str, Row] = field(default_factory=dict)
    headline: list[Row] = field(default_factory=list)
    limits: list[Row] = field(default_factory=list)
    figures: list[Row] = field(default_factory=list)
    parsers: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    series: dict[str, dict[str, str]] = field(default_factory=dict)
    bands: dict[str, list[float]] = field(default_factory=dict)
    bands_when: dict[str, dict[str, list[float]]] = field(
        default_factory=dict)

    def tells(self, program: str) -> str:
        """What the figures of a program tell an operator; '': not said."""
        return self.about.get(program) or next(
            (text for pattern, text in self.about.items()
             if fnmatch.fnmatchcase(program, pattern)), '')

    def bands_of(self, params: str) -> dict[str, list[float]]:
        """Where a valid run with these parameters is."""
        return self.bands | {
            metric: band for pattern, bands in self.bands_when.items()
            if re.search(pattern, params) for metric, band in bands.items()}


@functools.cache
def families() -> dict[str, Family]:
    """Every family by its name.

    :raises FamilyError: the first fault of the first file that has one
    """
    return load(CHECKS, shared_metrics())


@functools.cache
def shared_metrics() -> dict[str, Row]:
    """config/metrics.yaml: what several families have."""
    reader = _Reader(ROOT / 'config' / 'metrics.yaml', {})
    found = reader.metrics('', reader.data, reader.data)
    reader.end()
    return found


@functools.cache
def shared_limits() -> list[Row]:
    """config/limits.yaml: what physics allows, whatever the family."""
    reader = _Reader(ROOT / 'config' / 'limits.yaml', shared_metrics())
    found = reader.limits('', reader.data, reader.data)
    reader.end()
    return found


@functools.cache
def metrics() -> dict[str, Row]:
    """Every metric by its name: {unit, better, point, means}."""
    return {**shared_metrics(), **{
        name: row for family in families().values()
        for name, row in family.metrics.items()}}


@functools.cache
def derived() -> dict[str, Row]:
    """Every derived metric by its name: {of, from, to}."""
    return {name: row for family in families().values()
            for name, row in family.derived.items()}


def parsers() -> dict[str, str]:
    """Word of `plumb parse` -> module."""
    return {word: f'checks.{family.name}.{module}'
            for family in families().values()
            for word, module in family.parsers.items()}


def offering(program: str, family: str) -> str:
    """The family under whose name an environment says where a program comes
    from: the one that has a feature for it, else that of the check."""
    owners = [one.name for one in families().values() for feature in
              one.features.values() if program and feature.program == program]
    return family if family in owners or not owners else owners[0]


def origin(extras: Mapping[str, Any], program: str, family: str) -> Row:
    """Where an environment has a program from: {source, prefix, version}.

    What it says of the program's family. A family whose first source is
    embedded is there wherever its checks can be built: no site says so.

    :param extras: those of the environment
    :param program: '': any of the family
    :returns: empty where the environment does not have it
    """
    family = offering(program, family)
    told = extras.get('programs', {}).get(family)
    if told is None and families()[family].sources[:1] == ['embedded']:
        return {'source': 'embedded'}
    return dict(told or {})


def load(checks: Path, shared: Mapping[str, Row]) -> dict[str, Family]:
    """The families of a folder; `families()` is that of the suite.

    :param shared: metrics that all of them may name
    :raises FamilyError: also where two of them have one name for two things
    """
    found: dict[str, Family] = {}
    taken: dict[tuple[str, str], Path] = {}
    for path in sorted(checks.glob(f'*/{FILE}')):
        reader = _Reader(path, shared)
        family = reader.family()
        for key in ('metrics', 'features', 'parsers'):
            for name in getattr(family, key):
                other = taken.setdefault((key, name), path)
                if other != path:
                    reader.fault(
                        key, reader.data[key], f'{name} is in '
                        f'{_short(other)} too: one name has one meaning; '
                        + ('move it to config/metrics.yaml' if
                           key == 'metrics' else 'find another'), name)
        reader.end()
        found[family.name] = family
    return found


def faults(path: Path, shared: Mapping[str, Row]) -> list[str]:
    """Everything that is wrong with one family.yaml, a line each."""
    try:
        reader = _Reader(path, shared)
    except FamilyError as err:
        return [str(err)]
    reader.family()
    return [str(fault) for fault in reader.faults]


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


class _Reader:
    """One file, checked key by key; `faults`: what is wrong with it."""

    def __init__(self, path: Path, shared: Mapping[str, Row]) -> None:
        """:raises FamilyError: there is no such file, or it is no YAML"""
        self.path, self.known = path, dict(shared)
        self.faults: list[FamilyError] = []
        #: Features of the file, as regular expressions.
        self.offers: list[str] = []
        try:
            self.data = strict.load(path)
        except OSError as err:
            raise FamilyError(_short(path), 1, str(err.strerror)) from None
        except strict.Fault as err:
            raise FamilyError(_short(path), err.line, err.reason) from None

    def end(self) -> None:
        """:raises FamilyError: the first fault"""
        if self.faults:
            raise self.faults[0]

    def fault(self, key: str, at: Any, reason: str, name: Any = None) -> None:
        """Notes a fault at a mapping (and a key of it), else at the top
        level's key."""
        lines = getattr(at, 'lines', {})
        line = lines.get(name) or min(lines.values(), default=0) or getattr(
            self.data, 'lines', {}).get(key, 1)
        self.faults.append(FamilyError(
            _short(self.path), line, f'{key}: {reason}' if key else reason))

    def family(self) -> Family:
        """The whole file."""
        data = self.data
        name = self.path.parent.name
        if not isinstance(data, dict):
            self.faults.append(FamilyError(_short(self.path), 1, (
                'expected the keys of a family; the first line is '
                'title: WHAT IT MEASURES')))
            return Family(name, '', self.path.parent)
        for key in data:
            if key not in READERS:
                self.fault('', data, f'unknown key {key!r}'
                           + _near(key, READERS), key)
        # What other keys name comes first.
        found = {key: read(self, key, data[key], data)
                 for key, read in READERS.items() if key in data}
        for key, example in MUST.items():
            if key not in data:
                self.fault('', None, f'{key} is missing; write {example}')
        return Family(name=name, folder=self.path.parent, **{
            'title': '', **found})

    # What a value may be ----------------------------------------------

    def is_a(self, kind: type, key: str, value: Any, at: Any,
             name: Any = None) -> bool:
        """Whether a value has its type; a fault where not."""
        good = isinstance(value, kind) and value != ''
        if not good:
            what = {str: 'text', dict: 'a mapping', list: 'a list',
                    bool: 'true or false'}[kind]
            self.fault(key, at, f'expected {what}, got {value!r}', name)
        return good

    def one_of(self, key: str, value: Any, allowed: Iterable[str], at: Any,
               name: Any = None) -> bool:
        """Whether a value is among those that are allowed."""
        allowed = list(allowed)
        if value in allowed:
            return True
        what = f'{name} is ' if name not in (None, key, value) else ''
        self.fault(key, at, f'{what}{value!r}' + _near(value, allowed), name)
        return False

    def is_metric(self, key: str, value: Any, at: Any, name: Any) -> bool:
        """Whether there is such a metric, here or shared."""
        if isinstance(value, str) and value in self.known:
            return True
        self.fault(key, at, f'{value!r} is no metric{_near(value, self.known)}'
                   ' (metrics of this file, config/metrics.yaml)', name)
        return False

    def number(self, key: str, row: Any, name: str, least: float) -> None:
        value = row.get(name, least)
        if isinstance(value, bool) or not isinstance(value, int | float) \
                or value < least:
            self.fault(key, row, f'{name}: expected a number from {least} '
                       f'on, got {value!r}', name)

    def regex(self, key: str, text: Any, at: Any, name: Any) -> bool:
        """Whether a value is one; a fault where not."""
        try:
            re.compile(text)
        except (re.error, TypeError) as err:
            self.fault(key, at, f'{text!r} is no regular expression: {err}',
                       name)
            return False
        return True

    def rows(self, key: str, value: Any, at: Any, must: Iterable[str],
             may: Iterable[str] = ()) -> list[Row]:
        """A list of mappings, each with these keys."""
        if not self.is_a(list, key, value, at, key):
            return []
        return [row for row in value
                if self.row(key, row, at, tuple(must), tuple(may))]

    def row(self, key: str, row: Any, at: Any, must: tuple[str, ...],
            may: tuple[str, ...], name: Any = None) -> bool:
        """Whether a mapping has all keys that it must have, and no other."""
        said = f'{name}: ' if name is not None else ''
        if not isinstance(row, dict):
            self.fault(key, at, f'{said}expected {{{", ".join(must)}, ...}}, '
                       f'got {row!r}', name if name is not None else key)
            return False
        allowed = (*must, *may)
        wrong = next((k for k in row if k not in allowed), None)
        if wrong is not None:
            self.fault(key, row, f'{said}unknown key {wrong!r}'
                       + _near(wrong, allowed), wrong)
        missing = next((k for k in must if k not in row), None)
        if missing is not None:
            self.fault(key, row, f'{said}{missing} is missing: it says '
                       f'{", ".join(must)}')
        return wrong is None and missing is None

    def named(self, key: str, value: Any, at: Any) -> list[tuple[str, Any]]:
        """The names of a mapping, each text."""
        if not self.is_a(dict, key, value, at, key):
            return []
        return [(name, one) for name, one in value.items()
                if self.is_a(str, key, name, value, name)]

    # Key by key -------------------------------------------------------

    def text(self, key: str, value: Any, at: Any) -> str:
        return value if self.is_a(str, key, value, at, key) else ''

    def flag(self, key: str, value: Any, at: Any) -> bool:
        return self.is_a(bool, key, value, at, key) and value

    def features(self, key: str, value: Any, at: Any) -> dict[str, Feature]:
        found = {}
        for name, row in self.named(key, value, at):
            if not self.row(key, row, value, ('means',),
                            ('program', 'pattern', 'built_with'), name):
                continue
            for part, kind in (('means', str), ('program', str),
                               ('pattern', bool)):
                if part in row:
                    self.is_a(kind, f'{key}: {name}: {part}', row[part], row,
                              part)
            if 'built_with' in row:
                self.one_of(f'{key}: {name}', row['built_with'], BUILT_WITH,
                            row, 'built_with')
            if not row.get('pattern'):
                self.offers.append(re.escape(name))
            elif self.regex(key, name, value, name):
                self.offers.append(name)
            found[name] = Feature(**row)
        return found

    def parts(self, key: str, value: Any, at: Any
              ) -> dict[str, dict[str, str]]:
        found = {}
        for name, row in self.named(key, value, at):
            if self.row(key, row, value, ('feature', 'without'), (), name):
                self.is_a(str, f'{key}: {name}: without', row['without'],
                          row, 'without')
                if not any(re.fullmatch(one, str(row['feature']))
                           for one in self.offers):
                    self.one_of(f'{key}: {name}', row['feature'],
                                self.offers, row, 'feature')
                found[name] = row
        return found

    def sources(self, key: str, value: Any, at: Any) -> list[str]:
        if not self.is_a(list, key, value, at, key):
            return []
        if not value:
            self.fault(key, at, 'name one or more of '
                       f'{", ".join(SOURCES)}', key)
        return [one for one in value
                if self.one_of(key, one, SOURCES, at, key)]

    def metrics(self, key: str, value: Any, at: Any) -> dict[str, Row]:
        found = {}
        for name, row in self.named(key, value, at):
            if name in self.known:
                self.fault(key, value, f'{name} stands in config/metrics.yaml,'
                           ' for all families; remove it here', name)
            elif not re.fullmatch(r'[a-z][a-z0-9_]*', name):
                self.fault(key, value, f'{name!r}: a metric is called in '
                           'small letters, digits and _', name)
            elif self.row(key, row, value,
                          ('unit', 'better', 'point', 'means'), (), name):
                self.is_a(str, f'{key}: {name}: unit', row['unit'], row,
                          'unit')
                self.is_a(str, f'{key}: {name}: means', row['means'], row,
                          'means')
                self.one_of(f'{key}: {name}', row['better'], BETTER, row,
                            'better')
                self.one_of(f'{key}: {name}', row['point'], ('', 'B'), row,
                            'point')
                found[name] = row
        self.known |= found
        return found

    def derived(self, key: str, value: Any, at: Any) -> dict[str, Row]:
        found = {}
        for name, row in self.named(key, value, at):
            if self.is_metric(key, name, value, name) and self.row(
                    key, row, value, ('of',), ('from', 'to'), name):
                self.is_metric(f'{key}: {name}: of', row['of'], row, 'of')
                for part in ('from', 'to'):
                    self.number(f'{key}: {name}', row, part, 0)
                curve, mine = self.known.get(row['of'], {}), self.known[name]
                if curve.get('point') != 'B' or mine['point'] or any(
                        curve[same] != mine[same]
                        for same in ('unit', 'better')):
                    self.fault(key, value, f'{name}: it is the mean of a '
                               'curve (point: B), with its unit and better, '
                               "and point: ''", name)
                found[name] = row
        return found

    def points(self, key: str, row: Row) -> None:
        """`at` of a rule."""
        sizes = row.get('at', [])
        if not isinstance(sizes, list) or any(
                one not in ('smallest', 'largest') and type(one) is not int
                for one in sizes):
            self.fault(key, row, f'at: {sizes!r}: expected a list of sizes '
                       'in B, smallest, largest', 'at')

    def judged(self, key: str, value: Any, at: Any) -> list[Row]:
        rows = self.rows(key, value, at, ('metric',), (
            'at', 'resolution', 'widest', 'instead'))
        for row in rows:
            self.is_metric(key, row['metric'], row, 'metric')
            self.points(key, row)
            self.number(key, row, 'resolution', 0)
            self.number(key, row, 'widest', 0)
            if 'instead' in row:
                self.one_of(key, row['instead'],
                            self.data.get('derived') or (), row, 'instead')
        return rows

    def headline(self, key: str, value: Any, at: Any) -> list[Row]:
        if isinstance(value, list):
            value = [{'metric': one} if isinstance(one, str) else one
                     for one in value]
        rows = self.rows(key, value, at, ('metric',), ('at', 'alone'))
        for row in rows:
            self.is_metric(key, row['metric'], row, 'metric')
            self.points(key, row)
        return rows

    def limits(self, key: str, value: Any, at: Any) -> list[Row]:
        rows = self.rows(key, value, at, LIMIT[:2], LIMIT[2:])
        for row in rows:
            self.is_metric(key, row['metric'], row, 'metric')
            self.regex(key, row.get('when', ''), row, 'when')
            self.one_of(key, row.get('per', 'size'), ('size',), row, 'per')
            if not set(BOUNDS) & set(row):
                self.fault(key, row, f'a bound is missing: '
                           f'{", ".join(BOUNDS)}')
        return rows

    def figures(self, key: str, value: Any, at: Any) -> list[Row]:
        """What else a figure says is for the module of its kind."""
        if not self.is_a(list, key, value, at, key):
            return []
        for row in value:
            if not isinstance(row, dict) or not isinstance(
                    row.get('kind'), str):
                self.fault(key, row, f'expected {{kind, ...}}, got {row!r}')
            elif 'metric' in row:
                several = row['metric']
                for one in several if isinstance(several, list) else [
                        several]:
                    self.is_metric(key, one, row, 'metric')
        return value

    def parsers(self, key: str, value: Any, at: Any) -> dict[str, str]:
        found = dict(self.named(key, value, at))
        for word, module in found.items():
            if not isinstance(module, str) or not (
                    self.path.parent / f'{module}.py').is_file():
                self.fault(key, value, f'{word}: there is no {module}.py in '
                           f'{_short(self.path.parent)}', word)
        return found

    def texts(self, key: str, value: Any, at: Any) -> dict[str, str]:
        return {name: text for name, text in self.named(key, value, at)
                if self.is_a(str, f'{key}: {name}', text, value, name)}

    def series(self, key: str, value: Any, at: Any
               ) -> dict[str, dict[str, str]]:
        return {kind: self.texts(f'{key}: {kind}', units, value)
                for kind, units in self.named(key, value, at)}

    def bands(self, key: str, value: Any, at: Any) -> dict[str, list[float]]:
        in_series = {name for units in (self.data.get('series') or {}).values()
                     if isinstance(units, dict) for name in units}
        found = {}
        for name, band in self.named(key, value, at):
            if not self.one_of(key, name, in_series, value, name):
                continue
            if (isinstance(band, list) and len(band) == 2 and all(
                    type(end) in (int, float) for end in band)
                    and band[0] <= band[1]):
                found[name] = band
            else:
                self.fault(key, value, f'{name}: expected [least, most], got '
                           f'{band!r}', name)
        return found

    def bands_when(self, key: str, value: Any, at: Any
                   ) -> dict[str, dict[str, list[float]]]:
        found = {}
        for pattern, bands in self.named(key, value, at):
            self.regex(key, pattern, value, pattern)
            found[pattern] = self.bands(f'{key}: {pattern}', bands, value)
        return found


def _near(name: Any, known: Iterable[str]) -> str:
    """What may have been meant, and what there is where it is little."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, 1, 0.5)
    said = f': did you mean {near[0]!r}?' if near else ''
    return said or (f': there are {", ".join(map(repr, known))}'
                    if len(known) < 20 else '')


#: Key -> what reads it, in the order in which keys need each other.
READERS: dict[str, Callable[[_Reader, str, Any, Any], Any]] = {
    'title': _Reader.text, 'features': _Reader.features,
    'parts': _Reader.parts,
    'sources': _Reader.sources, 'versions_apart': _Reader.flag,
    'metrics': _Reader.metrics, 'derived': _Reader.derived,
    'judged': _Reader.judged, 'headline': _Reader.headline,
    'limits': _Reader.limits, 'figures': _Reader.figures,
    'parsers': _Reader.parsers, 'programs': _Reader.texts,
    'about': _Reader.texts,
    'series': _Reader.series, 'bands': _Reader.bands,
    'bands_when': _Reader.bands_when,
}
#: Key that must be there -> the line to write.
MUST = {
    'title': 'title: WHAT IT MEASURES',
    'sources': f'sources: [...], of {", ".join(SOURCES)}',
    'judged': "'judged: []' (judges nothing) or - {metric: NAME}",
    'headline': "'headline: [NAME]': what a row of the table shows",
}
