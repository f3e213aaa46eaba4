"""ReFrame settings that all sites share: logging, perflogs, modes.

Load it before the `system.py` of a site, with any ReFrame that is new enough:
`reframe -C config/common.py -C site-configs/SITE/system.py` needs no variable.
"""
import os
import sys

import reframe

#: Oldest ReFrame that runs the suite; CI tries it (.ci/reframe-versions).
_OLDEST = (4, 10)
if tuple(map(int, reframe.VERSION.split('.')[:2])) < _OLDEST:
    # Before all imports: some need a newer ReFrame, too.
    raise SystemExit(f'plumb: ReFrame {reframe.VERSION} is too old; the suite '
                     'needs 4.10.0 or newer: pip install '
                     "'reframe-hpc>=4.10.0'")

# The ReFrame of a site does not know where the suite is.
sys.path.insert(0, os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))

from config import families, places  # noqa: E402
from config.sessions import caller, local_jobs, modes, runner  # noqa: E402

caller.forget()
try:
    places.set_defaults()
    families.families()
except (places.PlaceError, families.FamilyError) as err:
    # A line, and not ReFrame's traceback of its own start.
    raise SystemExit(str(err)) from None
runner.install()

# Programs of other languages print a decimal comma, or translated messages.
os.environ['LC_ALL'] = 'C'

_WORK = places.work()
local_jobs.install(str(_WORK))
#: A log of its own for each session.
_SESSION = os.environ.get('PLUMBLINE_SESSION', _WORK)

site_configuration = {
    'general': [{
        'colorize': sys.stdout.isatty() and not os.environ.get('NO_COLOR'),
        # Only folders with checks: ReFrame parses every file. A family.yaml
        # with a fault ends it all here, in one line.
        'check_search_path': [
            str(family.folder) for family in
            families.families().values()],
        'check_search_recursive': True,
        'clean_stagedir': True,
        # Ours, not the default ~/.reframe: nothing of a run leaves the
        # checkout.
        'report_file': f'{_WORK}/report.json',
        'topology_prefix': f'{_WORK}/topology',
        'remote_detect': False,
        # A curve is thirty lines a case: with -v, and always in the perflog.
        'perf_info_level': 'verbose',
    }],
    'storage': [{
        'enable': True,
        'backend': 'sqlite',
        'sqlite_db_file': f'{_WORK}/results.db',
    }],
    'logging': [{
        # The logger's level must admit what -v shows; handlers filter.
        'level': 'verbose',
        'handlers$': [{
            'type': 'stream',
            'name': 'stdout',
            'level': 'info',
            'format': '%(message)s',
        }],
        # Level info: at ReFrame's stock level, debug, the file log alone was
        # seen to cost five times the CPU of all the rest.
        'handlers': [{
            'type': 'file',
            'name': f'{_SESSION}/reframe.log',
            'level': 'info',
            'format': '[%(asctime)s] %(levelname)s: %(check_info)s: '
                      '%(message)s',
            'append': False,
        }],
        'handlers_perflog': [{
            'type': 'perflog',
            'level': 'info',
            'format': '%(message)s',
            'basedir': str(places.perflogs()),
            'prefix': '',
        }],
    }],
    'modes': [{'name': name, 'options': options}
              for name, options in modes.MODES.items()],
}
