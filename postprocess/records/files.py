"""Files of the record below a folder of perflogs, and what is wrong with them."""
from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

#: Folder of ReFrame's reports and logs of sessions.
SESSIONS = 'sessions'
#: Folders below perflogs that have no rows: attached files, and facts of nodes.
ATTACHED, MACHINES = 'files', 'machines'
#: Rows that ReFrame's file handler writes. Where the columns changed, it renames the
#: file to .log.h0, .log.h1, ...
ROWS = re.compile(r'.+\.log(\.h\d+)?')
REPAIR = 'remove the line, or restore the file'


class PerflogError(Exception):
    """A fault of a file of the record: `FILE:LINE: reason; what to do`."""

    def __init__(self, file: os.PathLike | str, line: int, reason: str) -> None:
        super().__init__(f'{file}:{line}: {reason}')
        self.file, self.line, self.reason = str(file), line, reason


Faults = list[PerflogError]


class RecordFiles(NamedTuple):
    """The files of the record, each once, in the order of their paths."""
    #: ReFrame's reports, one per session that ended.
    reports: list[Path]
    #: ReFrame's logs, one per session.
    logs: list[Path]
    #: ReFrame's rows, of any suite.
    rows: list[Path]


def find_record_files(paths: Iterable[os.PathLike | str], faults: Faults
                      ) -> RecordFiles:
    """The files of the record in folders and among files; what cannot be searched is
    added to the faults."""
    paths_of_record: set[Path] = set()

    def report_unreadable_folder(err: OSError) -> None:
        faults.append(PerflogError(err.filename, 1, f'cannot be read ({err.strerror}); '
                                   'check the path and its permissions'))

    for path in map(Path, paths):
        if not path.exists():
            faults.append(PerflogError(path, 1, 'does not exist; run `./plumb run` '
                                       'first, or give another path'))
        elif not path.is_dir():
            paths_of_record.add(path)
        else:
            # Links are followed, but no folder is searched twice.
            searched: set[str] = set()
            for folder, below, names in os.walk(
                    path, onerror=report_unreadable_folder, followlinks=True):
                searched.add(os.path.realpath(folder))
                below[:] = [name for name in below if not name.startswith('.')
                            and name not in (ATTACHED, MACHINES)
                            and os.path.realpath(os.path.join(folder, name))
                            not in searched]
                paths_of_record.update(Path(folder, name) for name in names
                             if not name.startswith('.') and (
                                 ROWS.fullmatch(name) or name.endswith('.json')
                                 and os.path.basename(folder) == SESSIONS))
    files = RecordFiles([], [], [])
    for path in sorted(paths_of_record):
        if path.suffix == '.json':
            files.reports.append(path)
        elif path.parent.name == SESSIONS and path.suffix == '.log':
            files.logs.append(path)
        else:
            files.rows.append(path)
    return files
