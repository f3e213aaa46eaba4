"""The checks, by benchmark family, and what they share.

ReFrame only warns of each check that it cannot load, or loads checks that no system
of its default configuration can run. So a ReFrame without a site ends here.
"""
import sys


def _is_reframe_without_a_site() -> bool:
    """Whether this process is ReFrame, and its configuration has no site."""
    if 'config.common' in sys.modules:
        return False
    if 'reframe.core.runtime' not in sys.modules:
        return False
    from reframe.core import exceptions, runtime
    try:
        runtime.runtime()
    except exceptions.ReframeFatalError:
        # It has read no configuration: this is a command of plumb.
        return False
    return True


if _is_reframe_without_a_site():
    raise SystemExit(
        'plumb: ReFrame has no configuration of a site; add the option -C '
        f'{__file__.removesuffix("checks/__init__.py")}site-configs/SITE/system.py')
