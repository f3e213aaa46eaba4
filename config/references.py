"""Names of reference files: accepted ones and proposals."""
from __future__ import annotations

from pathlib import Path

_PROPOSED = '.proposed.yaml'


def accepted(folder: Path) -> list[Path]:
    """The accepted reference files of a site, one a family."""
    return sorted(path for path in folder.glob('*.yaml')
                  if not path.name.endswith(_PROPOSED))


def proposed(folder: Path) -> dict[str, Path]:
    """Family -> its proposal, beside the accepted file."""
    return {path.name.removesuffix(_PROPOSED): path
            for path in sorted(folder.glob('*' + _PROPOSED))}


def proposal(family: str) -> str:
    """Name of the file that proposes references of a family."""
    return family + _PROPOSED
