"""Which files below a folder are perflogs."""
from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from . import plans

#: The suite's own, with the number of their schema.
OURS = re.compile(r'.+\.v(\d+)\.(?:[\d-]+\.)?csv(\.h\d+)?')
#: What ReFrame's own handlers write; a compressed file is named after the
#: plain one.
FOREIGN = re.compile(r'.+\.(log|csv|jsonl|ndjson)(\.h\d+)?')
PACKED = ('.gz', '.zst')
#: Folder of what a case attached to its records: <run>-<environ>-<case>.
ATTACHED = re.compile(r'\d{8}T\d{6}Z-[0-9a-f]+-.+-\w+')


def plain(name: str) -> str:
    """A file's name without that of its compression."""
    for suffix in PACKED:
        name = name.removesuffix(suffix)
    return name


def files(paths: Iterable, report: Callable) -> Iterator[Path]:
    """Every perflog and plan once, plans first, in the order of its path.

    :param report: called with file, line and reason of what cannot be searched
    """
    found: set[Path] = set()

    def unreadable(err: OSError) -> None:
        report(err.filename, 1, f'cannot be read ({err.strerror}); '
               'check the path and its permissions')

    for path in map(Path, paths):
        if not path.exists():
            report(path, 1, 'does not exist; run `./plumb run` first, or '
                   'give another path')
        elif not path.is_dir():
            found.add(path)
        else:
            for folder, below, names in os.walk(path, onerror=unreadable):
                below[:] = [n for n in below if not n.startswith('.')
                            and not ATTACHED.fullmatch(n)]
                there = set(names)
                planned = os.path.basename(folder) == plans.FOLDER
                found.update(
                    Path(folder, n) for n in names if not n.startswith('.')
                    and (FOREIGN.fullmatch(name := plain(n))
                         or planned and plans.NAME.fullmatch(n))
                    # It is being compressed: the plain one counts.
                    and (name == n or name not in there))
    # Plans first: what is recorded later is not missing.
    yield from sorted(found, key=lambda p: (not plans.is_plan(p), p))
