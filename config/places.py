"""Folders of the suite, and of the site that a process works for.

The site is the folder of the `system.py` that ReFrame loaded last. `plumb env`
and `plumb run` select it with $PLUMBLINE_SITE.
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
    """A folder cannot be used; the message says why and what to do."""


def work() -> Path:
    """Folder of the files that the suite makes for itself."""
    return Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline'
                ).absolute()


def perflogs() -> Path:
    """Folder of the perflogs."""
    return Path(os.environ.get('PLUMBLINE_PERFLOGS') or ROOT / 'perflogs'
                ).absolute()


def set_defaults() -> None:
    """Set the missing variables of `plumb env`, and make the work folder.

    :raises PlaceError: the work folder cannot be written
    """
    os.environ['PLUMBLINE_ROOT'] = str(ROOT)
    os.environ['PLUMBLINE_WORK'] = str(work())
    os.environ['PLUMBLINE_PERFLOGS'] = str(perflogs())
    # ReFrame only warns of a check that cannot be imported.
    os.environ.setdefault('RFM_WARN_AS_ERROR', '1')
    try:
        work().mkdir(parents=True, exist_ok=True)
        why = '' if os.access(work(), os.W_OK) else 'Permission denied'
    except OSError as err:
        why = str(err.strerror)
    if why:
        raise PlaceError(f'cannot write to {work()} ({why}); set '
                         'PLUMBLINE_WORK to a folder that you can write to')


def is_local(site: Path) -> bool:
    """Whether the site is `local`, which describes the machine it runs on."""
    return site.resolve() == SITES / 'local'


def named(site: str) -> Path:
    """Folder of a site, from its name or its path."""
    known = SITES / site
    # ./NAME is a path.
    return known if Path(site).name == site and (
        known / SYSTEM).is_file() else Path(site).absolute()


def site() -> Path | None:
    """Folder of the site; None: no site is selected yet."""
    configuration = _configuration()
    for path in reversed(configuration.sources if configuration else ()):
        if Path(path).name == SYSTEM:
            return Path(path).parent
    name = os.environ.get('PLUMBLINE_SITE')
    return named(name) if name else None


def _configuration() -> Any:
    """The configuration of ReFrame; None if ReFrame does not run yet."""
    # Set-up imports this module before ReFrame is installed.
    from reframe.core import runtime
    from reframe.core.exceptions import ReframeFatalError
    try:
        return runtime.runtime().site_config
    except ReframeFatalError:
        return None


def references() -> Path:
    """Folder of the references: RFM_REFERENCE_PREFIX or
    general/reference_prefix of the configuration, else the site's own.

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
    # References of this machine alone must not be in the checkout.
    return (work() if is_local(site) else site) / 'references'


def references_of(site: Path, given: str | None) -> Path:
    """Folder of a site's references, or another one that a person set.

    A folder that `plumb env` set for another site is ignored.

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
            f'RFM_REFERENCE_PREFIX is {given}, which has the references of '
            f'the site {owner.name}, not of {site.name}; unset '
            'RFM_REFERENCE_PREFIX')
    return Path(given)


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
