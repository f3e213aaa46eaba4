"""Folders of the suite, and of the site that a process works for.

The site is the folder of the `system.py` that ReFrame loaded last. `plumb env`
and `plumb run` select it with $PLUMBLINE_SITE.
"""
from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from .commandline import SetupError, suggest_nearest_word

ROOT = Path(__file__).resolve().parent.parent
SITES = ROOT / 'site-configs'

#: Configuration of a site, in its folder.
SYSTEM = 'system.py'

#: The command that makes references.
CALIBRATE = './plumb references calibrate'


class PlaceError(SetupError, ValueError):
    """A folder cannot be used; the message says why and what to do."""


def work_folder() -> Path:
    """Folder of the files that the suite makes for itself."""
    return Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline'
                ).absolute()


def perflog_folder() -> Path:
    """Folder of the perflogs."""
    return Path(os.environ.get('PLUMBLINE_PERFLOGS') or ROOT / 'perflogs'
                ).absolute()


def report_folder() -> str:
    """Folder of the page."""
    return os.environ.get('PLUMBLINE_REPORT') or str(ROOT / 'report')


def refuse_work_folder_that_is_split() -> None:
    """Refuse a work folder in which the scheduler `local` of ReFrame starts no job: it
    splits the path of a job script as a shell splits a command line.

    :raises PlaceError: the path has blanks or quotes
    """
    if re.search(r"""[ \t\r\n'"\\]""", str(work_folder())):
        raise PlaceError(
            f'the work folder is {str(work_folder())!r}: ReFrame starts no job in a '
            'path with blanks or quotes; set PLUMBLINE_WORK to a folder without them')


def prepare_environment_and_work_folder() -> None:
    """Set the missing variables of `plumb env`, and make the work folder.

    :raises PlaceError: the work folder cannot be used or written
    """
    refuse_work_folder_that_is_split()
    os.environ['PLUMBLINE_ROOT'] = str(ROOT)
    os.environ['PLUMBLINE_WORK'] = str(work_folder())
    os.environ['PLUMBLINE_PERFLOGS'] = str(perflog_folder())
    # ReFrame only warns of a check that cannot be imported. It also warns of the end
    # of --duration, which is what was asked for.
    ends_by_time = any(word.startswith('--duration') for word in sys.argv)
    os.environ.setdefault('RFM_WARN_AS_ERROR', '0' if ends_by_time else '1')
    try:
        work_folder().mkdir(parents=True, exist_ok=True)
        why = '' if os.access(work_folder(), os.W_OK) else 'Permission denied'
    except OSError as err:
        why = str(err.strerror)
    if why:
        raise PlaceError(f'cannot write to {work_folder()} ({why}); set '
                         'PLUMBLINE_WORK to a folder that you can write to')


def default_site() -> str:
    """The site of commands without --site."""
    return os.environ.get('PLUMBLINE_SITE') or 'local'


def site_option(site: str) -> str:
    """The option that selects a site in a printed command, with a blank before it.

    It is '' for the site `local` if commands select that one without the option, and
    for '', which is several sites.

    >>> site_option('mycluster')
    ' --site mycluster'
    """
    if not site or site == 'local' == Path(default_site()).name:
        return ''
    return f' --site {shlex.quote(site)}'


def is_site_named_local(site: Path) -> bool:
    """Whether the site is `local`, which describes the machine it runs on."""
    return site.resolve() == SITES / 'local'


def site_folder_of_name(site: str) -> Path:
    """Folder of a site, from its name or its path."""
    known = SITES / site
    # ./NAME is a path.
    return known if Path(site).name == site and (
        known / SYSTEM).is_file() else Path(site).absolute()


def existing_site_folder(site: str) -> Path:
    """Folder of a site given by name or path.

    :raises PlaceError: no such site; names those that exist
    """
    folder = site_folder_of_name(site)
    if not (folder / SYSTEM).is_file():
        known = [one.parent.name for one in sorted(SITES.glob(f'*/{SYSTEM}'))]
        raise PlaceError(f'unknown site {site!r}; '
                         f'{suggest_nearest_word(site, known, 0.4)}known sites: '
                         f'{", ".join(known)}; or give the path of a folder '
                         'that has a system.py')
    return folder


def site_name_or_path(folder: Path) -> str:
    """What --site takes: the name of a site in site-configs/, or a path."""
    return folder.name if folder.parent == SITES else str(folder)


def current_site_folder() -> Path | None:
    """Folder of the site; None: no site is selected yet."""
    configuration = _reframe_configuration()
    for path in reversed(configuration.sources if configuration else ()):
        if Path(path).name == SYSTEM:
            return Path(path).parent
    name = os.environ.get('PLUMBLINE_SITE')
    return site_folder_of_name(name) if name else None


def current_site_option() -> str:
    """`site_option` of the current site."""
    return site_option(site_name_or_path(current_site_folder() or SITES / 'local'))


def calibrate_command() -> str:
    """The command that makes references of the current site."""
    return CALIBRATE + current_site_option()


def _reframe_configuration() -> Any:
    """The configuration of ReFrame; None if ReFrame does not run yet."""
    # Set-up imports this module before ReFrame is installed.
    from reframe.core import runtime
    from reframe.core.exceptions import ReframeFatalError
    try:
        return runtime.runtime().site_config
    except ReframeFatalError:
        return None


def reference_folder() -> Path:
    """Folder of the references: RFM_REFERENCE_PREFIX or
    general/reference_prefix of the configuration, else the site's own.

    :raises PlaceError: as :func:`reference_folder_of_site`
    """
    configuration = _reframe_configuration()
    given = (configuration.get('general/0/reference_prefix')
             if configuration else os.environ.get('RFM_REFERENCE_PREFIX'))
    folder = current_site_folder()
    if folder is None:
        return Path(given or 'references')
    return reference_folder_of_site(folder, given)


def default_reference_folder(site: Path) -> Path:
    """Folder of a site's references."""
    # References of this machine alone must not be in the checkout.
    return (work_folder() if is_site_named_local(site) else site) / 'references'


def reference_folder_of_site(site: Path, given: str | None) -> Path:
    """Folder of a site's references, or another one that a person set.

    A folder that `plumb env` set for another site is ignored.

    :param given: folder that a person set; None or '': none
    :raises PlaceError: it does not exist, or has references of another site
    """
    default = default_reference_folder(site)
    if not given or _is_same_path(Path(given), default):
        return default
    owner = site
    if name := os.environ.get('PLUMBLINE_SITE'):
        owner = site_folder_of_name(name)
        if not _is_same_path(owner, site) and _is_same_path(
                Path(given), default_reference_folder(owner)):
            return default
    if _is_same_path(Path(given), work_folder() / 'references'):
        owner = SITES / 'local'
    elif Path(given).with_name(SYSTEM).is_file():
        owner = Path(given).parent
    if not _is_same_path(owner, site):
        raise PlaceError(
            f'RFM_REFERENCE_PREFIX is {given}, which has the references of '
            f'the site {owner.name}, not of {site.name}; unset '
            'RFM_REFERENCE_PREFIX')
    if not Path(given).is_dir():
        raise PlaceError(f'RFM_REFERENCE_PREFIX is {given}, which is not a folder; '
                         'make it, or unset RFM_REFERENCE_PREFIX')
    return Path(given)


def _is_same_path(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
