"""The columnar store beside the perflogs: `.store/` in their folder.

The perflogs are the truth; the store is what was read of them, kept as
columns (postprocess/records.py) in Parquet, so that it is read once. It may
be deleted at any time, and is made anew.

    .store/manifest.json    files (how far they were read, and their faults)
                            and parts; replaced atomically
    .store/p000042/         a part, never changed: figures.parquet, sorted by
                            metric, night and case; heads.parquet, sorted by
                            night and case, but for same.parquet, columns
                            that are the same in all of them; kinds.parquet
                            (codes); texts.parquet (their meaning). Of a small
                            part all of it in part.bin (columns.py) instead.
                            lookup.bin: what history asks (lookup.py)
    .store/lock             shared by those who read, held by who writes

A file that has grown is read on from where reading stopped: it is the same
when its inode is, and the hash of the bytes before that place. Any other
change makes it a new source: its records are read again, and those of the
old source do not count any more. A part is written beside, and counts from
the moment when the manifest names it; what a killed writer left is removed
by the next. Small parts are joined, eight of a size at a time; they are no
Parquet, for to import polars takes longer than to read a night.

polars writes and reads Parquet here: it reads the lines of others, too
(cells.py), and comes with ReFrame in any case. bench/README.md has what it
costs beside DuckDB and pyarrow.
"""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from config import lock as locks

from . import columns, ingest, lookup, plans, records, tree, vocabulary
from .manifest import (
    DAMAGED,
    FOLDER,
    MANIFEST,
    Known,
    StoreError,
    stat,
)
from .records import FIGURE, HEAD, KIND, Part

#: Records of a part at most; parts below SMALL are joined, MANY of a size.
FULL, SMALL, MANY = 1_000_000, 250_000, 8
SMALL_PART = 'part.bin'
#: Columns of HEAD that say what was measured, and where.
CASE = ('check', 'params', 'system', 'partition', 'environ', 'case')
#: Bytes before the place where reading stopped, of which the hash is kept.
BLOCK = 4096
#: Text below this is read as fast as the store is opened.
WORTH = 8 << 20


T = TypeVar('T')


@contextlib.contextmanager
def opened(folder: Path, report: Callable, keep: bool = True
           ) -> Iterator[Store]:
    """The store of a folder of perflogs, up to date; readers share it.

    Where the folder cannot be written to, it is made for this time alone.

    :param report: called with file, line and reason of each fault
    :param keep: False: made for this time alone in any case
    """
    with contextlib.ExitStack() as stack:
        place = folder / FOLDER
        try:
            if not keep:
                raise PermissionError
            place.mkdir(exist_ok=True)
            lock = stack.enter_context(os.fdopen(
                locks.opened(place / 'lock'), 'r+'))
            fcntl.lockf(lock, fcntl.LOCK_SH)
            store = Store(folder, place)
            if not store.current():
                # Two who held it and wanted more would wait for each other.
                fcntl.lockf(lock, fcntl.LOCK_UN)
                fcntl.lockf(lock, fcntl.LOCK_EX)
                store = Store(folder, place)
                store.update()
                fcntl.lockf(lock, fcntl.LOCK_SH)
                # Another writer may have come in between.
                store = Store(folder, place)
        except (OSError, locks.LockError):
            place = Path(stack.enter_context(
                tempfile.TemporaryDirectory(prefix='plumbline-')))
            store = Store(folder, place)
            store.update()
        for file, line, reason in store.faults():
            report(file, line, reason)
        yield store


def worth(folder: Path) -> bool:
    """Whether a folder has so much text that its store is faster."""
    return folder.is_dir() and ((folder / FOLDER / MANIFEST).exists() or sum(
        stat(file)[1] for file in tree.files(
            [folder], lambda *_: None)) >= WORTH)


def using(folder: Path, report: Callable, question: Callable[[Store], T]
          ) -> T:
    """What the store of a folder says; one that is damaged is made anew."""
    for keep in (True, True, False):
        told: list[tuple] = []
        try:
            with opened(folder, lambda *fault, told=told: told.append(fault),
                        keep) as store:
                found = question(store)
        except DAMAGED:                 # a store just made is not
            if not keep:
                raise
            forget(folder)
            continue
        for fault in told:
            report(*fault)
        return found
    raise StoreError(f'{folder}: a store just made cannot be read')


def read(folder: Path, report: Callable) -> list[Part]:
    """All records of a folder's perflogs."""
    return using(folder, report, Store.parts)


def parts(paths: Sequence[os.PathLike | str], report: Callable
          ) -> list[Part]:
    """All records of perflogs, and of the cases that are missing: of a folder
    from its store, where that is worth it, else from the text.

    :param report: called with file, line and reason of each fault
    """
    folder = Path(paths[0]) if len(paths) == 1 else None
    if folder is None or not worth(folder):
        return ingest.parts(paths, report)
    planned = [(file, plans.lives(file)) for file in tree.files(
        [folder], lambda *_: None) if plans.is_plan(file)]
    found = read(folder, report)
    ended = [file for file, lives in planned if not lives]
    return [*found, *ingest.missing(found, ended, report)]


def forget(folder: Path) -> None:
    """Makes the next one who opens the store of a folder make it anew."""
    with contextlib.suppress(OSError):
        (folder / FOLDER / MANIFEST).unlink()


class Store(Known):
    """A store; `opened` gives one that is up to date and locked."""

    # ------------------------------------------------------------ writing

    def update(self) -> None:
        """Reads what is new in the perflogs; the lock is held."""
        vocabulary.take(self.manifest.get('vocabulary'))
        found = self._files()
        known = self.manifest['files']
        new = {name: known[name] for name in known if name in found}
        waiting: list[Part] = []
        added: dict[str, dict[str, Any]] = {}
        for name, file in found.items():
            entry = self._entry(name, file, new.get(name))
            if entry is None:
                continue
            new[name] = entry
            reading = ingest.Reading(
                file, lambda _, line, reason, entry=entry:
                entry['seen'].append([line, reason]),
                entry['offset'], entry['line'])
            for part in reading.parts():
                waiting.append(part.of_files({
                    str(file): str(entry['source'])}))
                if sum(len(p.line) for p in waiting) >= FULL:
                    self._add(records.joined(waiting), added)
                    waiting = []
            self._ended(entry, reading, file)
        if waiting:
            self._add(records.joined(waiting), added)
        self.manifest['files'] = new
        self.manifest['parts'] |= added
        self.manifest['vocabulary'] = vocabulary.kept()
        self._join()
        self._save()

    def _entry(self, name: str, file: Path, known: dict[str, Any] | None
               ) -> dict[str, Any] | None:
        """What is known of a file that is to be read; None: nothing new."""
        now = stat(file)
        if known and known['stat'] == now:
            return None
        if known and known['offset'] and file.suffix not in ('.gz', '.zst') \
                and now[0] == known['stat'][0] \
                and now[1] >= known['offset'] \
                and _hash(file, known['offset']) == known['hash']:
            return known | {'stat': now, 'seen': []}
        source = self.manifest['next']
        self.manifest['next'] += 1
        return {'source': source, 'stat': now, 'offset': 0, 'line': 1,
                'hash': '', 'faults': [], 'ends': [], 'seen': []}

    @staticmethod
    def _ended(entry: dict[str, Any], reading: ingest.Reading, file: Path
               ) -> None:
        """Keeps how far a file was read."""
        seen = entry.pop('seen')
        # What is wrong from the place on where reading goes on is found
        # again then: a line that is cut off may be whole by then.
        entry['ends'] = [f for f in seen if f[0] >= reading.line
                         or not reading.offset or (
                             f[0] == 1 and reading.line <= 2)]
        entry['faults'] = entry['faults'] + [
            f for f in seen if f not in entry['ends']]
        entry['offset'], entry['line'] = reading.offset, reading.line
        entry['hash'] = _hash(file, reading.offset)

    def _add(self, part: Part, added: dict[str, dict[str, Any]]) -> None:
        """Writes a part, which counts once the manifest names it."""
        if not len(part.line):
            return
        name = f'p{self.manifest["next"]:06}'
        self.manifest['next'] += 1
        folder = self.place / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        part = _looked_up(part, folder / lookup.FILE)
        if len(part.line) < SMALL:
            columns.write(folder / SMALL_PART, {
                name: list(texts) for name, texts in part.texts.items()}, {
                **part.heads, **part.kinds, 'at head': part.head,
                'at kind': part.kind, 'at line': part.line,
                **dict(zip(FIGURE, part.figure, strict=True))})
        else:
            _parquet(part, folder)
        files = sorted(folder.iterdir())
        added[name] = {
            'records': len(part.line), 'sources': sorted(
                {int(s) for s in part.texts['file']}),
            'sizes': {file.name: file.stat().st_size for file in files},
            'sums': {file.name: zlib.crc32(file.read_bytes())
                     for file in files}}

    def _join(self) -> None:
        """Joins small parts, and leaves out what no file has any more."""
        live = {file['source'] for file in self.manifest['files'].values()}
        parts = self.manifest['parts']
        for name in [n for n, p in parts.items()
                     if not live & set(p['sources'])]:
            del parts[name]
        while True:
            sizes: dict[int, list[str]] = {}
            for name, part in parts.items():
                if part['records'] < SMALL:
                    sizes.setdefault(part['records'].bit_length() // 3,
                                     []).append(name)
            many = next((n for n in sizes.values() if len(n) >= MANY), None)
            if not many:
                return
            added: dict[str, dict[str, Any]] = {}
            self._add(self._live(records.joined(
                [self._part(name) for name in many])), added)
            for name in many:
                del parts[name]
            parts |= added

    def _save(self) -> None:
        """The manifest, atomically; then what it does not name is removed."""
        draft = self.place / f'.{MANIFEST}'
        with open(draft, 'w') as handle:
            handle.write(json.dumps(self.manifest, separators=(',', ':')))
            handle.flush()
            os.fsync(handle.fileno())
        draft.replace(self.place / MANIFEST)
        for path in self.place.iterdir():
            if path.is_dir() and path.name not in self.manifest['parts']:
                shutil.rmtree(path, ignore_errors=True)

    # ------------------------------------------------------------ reading

    def _part(self, name: str) -> Part:
        """A part as it was written; sources stand for files.

        :raises StoreError, ValueError, LookupError, TypeError: it is damaged
        """
        folder = self.place / name
        if (file := folder / SMALL_PART).exists():
            texts, given = columns.read(file)
            there = {column: np.array(view) for column, view in given.items()}
            figures = {column: there[f'at {column}']
                       for column in ('head', 'kind', 'line')} | there
            heads, kinds = ({column: there[column] for column in names}
                            for names in (HEAD, KIND))
        else:
            figures = self._read(folder / 'figures.parquet')
            heads = self._read(folder / 'heads.parquet')
            same = self._read(folder / 'same.parquet')
            size = len(heads['time'])
            heads |= {name: np.full(size, code, np.int32) for name, code
                      in zip(same['name'].tolist(), same['code'].tolist(),
                             strict=True)}
            kinds = self._read(folder / 'kinds.parquet')
            words = self._read(folder / 'texts.parquet')
            texts = {column: [] for column in (*HEAD, *KIND)}
            for column, text in zip(words['name'].tolist(),
                                    words['text'].tolist(), strict=True):
                texts[column].append(text)
        return Part(texts, heads, kinds, figures['head'], figures['kind'],
                    np.stack([figures[n] for n in FIGURE]), figures['line'])

    def _read(self, file: Path) -> dict[str, np.ndarray]:
        """The columns of a Parquet file.

        :raises StoreError: it is damaged
        """
        import polars as pl
        try:
            found = pl.read_parquet(file)
        except (OSError, pl.exceptions.PolarsError) as err:
            raise StoreError(f'{self.place}: {err}') from None
        return {column.name: column.to_numpy() for column in found}

    def _live(self, part: Part) -> Part:
        """Without the records of sources that are none any more."""
        live = {str(file['source'])
                for file in self.manifest['files'].values()}
        good = np.array([text in live for text in part.texts['file']], bool)
        return part if good.all() else part.where(
            good[part.heads['file']][part.head])

    def parts(self) -> list[Part]:
        """All records, and those of the cases that are missing.

        :raises StoreError: a part is damaged
        """
        names, found = self.sources(), []
        for name, entry in self.manifest['parts'].items():
            for file, wanted in entry['sums'].items():
                if zlib.crc32((self.place / name / file).read_bytes()
                              ) != wanted:
                    raise StoreError(f'{self.place / name}: damaged')
            found.append(self._live(self._part(name)).of_files(names))
        return found


def _looked_up(part: Part, file: Path) -> Part:
    """A part in the order of the store; its lookup is written.

    The newest nights of a metric stand together, and in a night the figures
    of a case do: that is what people ask for.
    """
    ages, run = _numbered(rank(part.texts['run'], plans.age)[
        part.heads['run']])
    named = _sortable(*(_ranked(part, column) for column in CASE))
    cases, case = np.unique(named, return_index=True)
    what = np.searchsorted(cases, named).astype(np.int32)
    heads = np.argsort(_sortable((run, len(ages)), (what, len(cases)),
                                 _ranked(part, 'time')), kind='stable')
    kinds = np.argsort(_sortable(*(_ranked(part, column) for column in (
        'metric', 'point'))), kind='stable')
    head, kind = _places(heads)[part.head], _places(kinds)[part.kind]
    ranks, metrics = _ranked(part, 'metric')
    metric = ranks[part.kind]
    order = np.argsort(_sortable(
        (metric, metrics), (head, len(heads)),
        (part.line, int(part.line.max()) + 1)), kind='stable')
    named_cases = {name: part.heads[name][case] for name in CASE}
    figure = np.empty(part.figure.shape)
    for row, sorted_row in zip(part.figure, figure, strict=True):
        np.take(row, order, out=sorted_row, mode='clip')
    part = Part(
        part.texts,
        {name: codes if len(part.texts[name]) == 1 else codes[heads]
         for name, codes in part.heads.items()},
        {name: codes[kinds] for name, codes in part.kinds.items()},
        head[order], kind[order], figure, part.line[order])
    runs = sorted(part.texts['run'], key=plans.age)
    ends = np.searchsorted(metric[order], np.arange(metrics + 1)).tolist()
    lookup.write(file, {
        'runs': [runs[age] for age in ages.tolist()],
        'cases': _rows(part.texts, named_cases),
        'kinds': _rows(part.texts, {n: part.kinds[n] for n in KIND}),
        'sources': list(part.texts['file']),
        'metrics': {name: [ends[at], ends[at + 1]] for at, name
                    in enumerate(sorted(part.texts['metric']))
                    if ends[at] < ends[at + 1]}},
        part.texts['time'], {
        'run': np.searchsorted(run[heads], np.arange(len(ages) + 1)),
        'what': what[heads], 'time': part.heads['time'],
        'source': part.heads['file'], 'head': part.head, 'kind': part.kind,
        'value': part.figure[FIGURE.index('value')]})
    return part


def _parquet(part: Part, folder: Path) -> None:
    """Writes a part."""
    import polars as pl
    # Most columns of the heads are the same in all of them.
    same = {name: int(codes[0]) for name, codes in part.heads.items()
            if name != 'time' and (codes == codes[0]).all()}
    tables: dict[str, dict[str, Any]] = {
        'figures': {'head': part.head, 'kind': part.kind, 'line': part.line}
        | dict(zip(FIGURE, part.figure, strict=True)),
        'heads': {name: codes for name, codes in part.heads.items()
                  if name not in same},
        'same': {'name': [*same], 'code': [*same.values()]},
        'kinds': part.kinds,
        'texts': {'name': [name for name, texts in part.texts.items()
                           for _ in texts],
                  'text': [text for texts in part.texts.values()
                           for text in texts]}}
    for table, given in tables.items():
        pl.DataFrame(given).write_parquet(folder / f'{table}.parquet')


def rank(texts: Sequence[str], key: Callable[[str], Any] = str
          ) -> np.ndarray:
    """Of each text, its place among them in order."""
    return _places(np.array(sorted(
        range(len(texts)), key=[key(text) for text in texts].__getitem__),
        np.int64))


def _ranked(part: Part, column: str) -> tuple[np.ndarray, int]:
    """Of each head or kind, the rank of its text in a column; how many
    there are."""
    codes = (part.heads if column in part.heads else part.kinds)[column]
    return rank(part.texts[column])[codes], len(part.texts[column])


def _places(order: np.ndarray) -> np.ndarray:
    """Of each row, its place in an order of them."""
    found = np.empty(len(order), np.int32)
    found[order] = np.arange(len(order))
    return found


def _numbered(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct codes in order, and of each its place among them."""
    used = np.bincount(codes) > 0
    return np.flatnonzero(used), (np.cumsum(used) - 1)[codes]


def _rows(texts: Mapping[str, Sequence[str]], codes: dict[str, np.ndarray]
          ) -> list[list[str]]:
    """Texts of each row of some columns of codes."""
    return [list(row) for row in zip(*(
        [texts[name][code] for code in column.tolist()]
        for name, column in codes.items()), strict=True)]


def _sortable(*columns: tuple[np.ndarray, int]) -> np.ndarray:
    """A number for each row that sorts as several columns do.

    :param columns: whole numbers, and what is above all of them
    """
    found, most = np.zeros(len(columns[0][0]), np.int64), 1
    for column, size in columns:
        if most * size >= 1 << 62:
            known, found = np.unique(found, return_inverse=True)
            most = len(known)
        if size > 1:
            found, most = found * size + column, most * size
    return found


def _hash(file: Path, offset: int) -> str:
    """Hash of the bytes before a place."""
    try:
        with open(file, 'rb') as handle:
            handle.seek(max(0, offset - BLOCK))
            return hashlib.sha256(handle.read(min(BLOCK, offset))).hexdigest()
    except OSError:
        return ''
