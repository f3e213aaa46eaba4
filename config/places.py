"""Folders of the suite, and those of the site that a process works for.

ReFrame decides which site that is: its folder is that of the `system.py` that
was loaded last. `plumb env` and `plumb run` choose it with $PLUMBLINE_SITE.
"""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SITES = ROOT / 'site-configs'

#: Configuration of a site, in its folder.
SYSTEM = 'system.py'


class PlaceError(ValueError):
    """A folder cannot be used; one line says why and what to do."""


def work() -> Path:
    """Folder of all that the suite makes for itself."""
    return Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline'
                ).absolute()


def perflogs() -> Path:
    """Folder of the perflogs."""
    return Path(os.environ.get('PLUMBLINE_PERFLOGS') or ROOT / 'perflogs'
                ).absolute()


def set_defaults() -> None:
    """Set variables of `plumb env` that are not set, make the work folder.

    :raises PlaceError: nobody can write to the work folder
    """
    os.environ['PLUMBLINE_ROOT'] = str(ROOT)
    os.environ['PLUMBLINE_WORK'] = str(work())
    os.environ['PLUMBLINE_PERFLOGS'] = str(perflogs())
    # A check that cannot be imported is only a warning to ReFrame.
    os.environ.setdefault('RFM_WARN_AS_ERROR', '1')
    try:
        work().mkdir(parents=True, exist_ok=True)
        why = '' if os.access(work(), os.W_OK) else 'Permission denied'
    except OSError as err:
        why = str(err.strerror)
    if why:
        raise PlaceError(f'{work()}: cannot be written ({why}); set '
                         'PLUMBLINE_WORK to a folder that can be written')


def is_local(site: Path) -> bool:
    """Whether the site is this machine, whatever it is."""
    return site.resolve() == SITES / 'local'


def named(site: str) -> Path:
    """Folder of a site that is given by its name or by its path."""
    known = SITES / site
    # ./NAME is a path.
    return known if Path(site).name == site and (
        known / SYSTEM).is_file() else Path(site).absolute()


def site() -> Path | None:
    """Folder of the site; None: there is none yet."""
    configuration = _configuration()
    for path in reversed(configuration.sources if configuration else ()):
        if Path(path).name == SYSTEM:
            return Path(path).parent
    name = os.environ.get('PLUMBLINE_SITE')
    return named(name) if name else None


def _configuration() -> Any:
    """Configuration that ReFrame runs with; None: it does not run yet."""
    # Set-up imports this module before ReFrame is installed.
    from reframe.core import runtime
    from reframe.core.exceptions import ReframeFatalError
    try:
        return runtime.runtime().site_config
    except ReframeFatalError:
        return None


def references() -> Path:
    """Folder of the references that judge: RFM_REFERENCE_PREFIX or
    general/reference_prefix of the configuration, else the site's.

    :raises PlaceError: as :func:`references_of`
    """
    configuration = _configuration()
    given = (configuration.get('general/0/reference_prefix')
             if configuration else os.environ.get('RFM_REFERENCE_PREFIX'))
    folder = site()
    if folder is None:
        return Path(given or 'references')
    return references_of(folder, given)


def default_references(site: Path) -> Path:
    """Folder of a site's references."""
    # What belongs to this machine alone stays out of the site's folder.
    return (work() if is_local(site) else site) / 'references'


def references_of(site: Path, given: str | None) -> Path:
    """Folder of a site's references, or another one that a person set.

    The site decides: the folder that `plumb env` has set for another site is
    ignored.

    :param given: folder that a person set; None or '': none
    :raises PlaceError: it has references of another site
    """
    default = default_references(site)
    if not given or _same(Path(given), default):
        return default
    owner = site
    if name := os.environ.get('PLUMBLINE_SITE'):
        owner = named(name)
        if not _same(owner, site) and _same(
                Path(given), default_references(owner)):
            return default
    if _same(Path(given), work() / 'references'):
        owner = SITES / 'local'
    elif Path(given).with_name(SYSTEM).is_file():
        owner = Path(given).parent
    if not _same(owner, site):
        raise PlaceError(
            f'RFM_REFERENCE_PREFIX is {given}: these are references of the '
            f'site {owner.name}, and not of {site.name}. Unset '
            'RFM_REFERENCE_PREFIX')
    return Path(given)


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
