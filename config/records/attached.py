"""Files that a test case keeps beside its rows: samples, series, facts of nodes."""
from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..regular import write_file_atomically


def save_files(folder: Path, files: Mapping[str, str]) -> None:
    """Save the files of a measurement: all or none.

    :arg folder: perflogs/files/<session>/<measurement>
    :arg files: path below the folder -> text
    :raises OSError: they cannot be written; none of them is
    """
    if not files:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as new:
        for name, text in files.items():
            path = Path(new, 'files', name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        os.rename(Path(new, 'files'), folder)


def save_files_if_absent(folder: Path, files: Mapping[str, str]) -> None:
    """Save content-addressed files: each once, and atomically.

    :arg files: name -> text
    :raises OSError: a file cannot be written; existing files are unchanged
    """
    for name, text in files.items():
        path = folder / f'{name}.json'
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_file_atomically(path, text)
