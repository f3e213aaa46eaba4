"""ReFrame settings that all sites share: logging, perflogs, modes.

Load this file before the `system.py` of a site: `reframe -C config/common.py
-C site-configs/SITE/system.py`. No environment variable is necessary.
"""
import os
import sys

import reframe

#: Oldest ReFrame that runs the suite; CI tests it (.ci/reframe-versions).
_OLDEST = (4, 10)
if tuple(map(int, reframe.VERSION.split('.')[:2])) < _OLDEST:
    # Before the other imports, because some need a newer ReFrame, too.
    raise SystemExit(f'plumb: ReFrame {reframe.VERSION} is too old; the suite '
                     'needs 4.10.0 or newer: pip install '
                     "'reframe-hpc>=4.10.0'")

# The ReFrame of a site cannot import the suite by itself.
sys.path.insert(0, os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))

from config import families, places  # noqa: E402
from config.sessions import caller, local_jobs, modes, runner  # noqa: E402

caller.unset_caller_environment_variables()
try:
    places.prepare_environment_and_work_folder()
    families.families()
except (places.PlaceError, families.FamilyError) as err:
    # One line instead of ReFrame's traceback.
    raise SystemExit(str(err)) from None
runner.install_runner()
runner.remove_first_log_file()

# With another locale, programs print a decimal comma or translated text.
os.environ['LC_ALL'] = 'C'

_WORK = places.work_folder()
local_jobs.replace_run_command_async(str(_WORK))
#: Folder of the log: each session has its own.
_SESSION = os.environ.get('PLUMBLINE_SESSION', _WORK)

site_configuration = {
    'general': [{
        'colorize': sys.stdout.isatty() and not os.environ.get('NO_COLOR'),
        # Only folders with checks, because ReFrame parses every file.
        'check_search_path': [
            str(family.folder) for family in
            families.families().values()],
        'check_search_recursive': True,
        'clean_stagedir': True,
        # Not the default ~/.reframe: a session writes only to the work folder.
        'report_file': f'{_WORK}/report.json',
        'topology_prefix': f'{_WORK}/topology',
        'remote_detect': False,
        # Only with -v: a curve has thirty lines per test case. The perflog
        # always has them.
        'perf_info_level': 'verbose',
    }],
    'storage': [{
        'enable': True,
        'backend': 'sqlite',
        'sqlite_db_file': f'{_WORK}/results.db',
    }],
    'logging': [{
        # The logger's level must allow what -v shows; handlers filter it.
        'level': 'verbose',
        'handlers$': [{
            'type': 'stream',
            'name': 'stdout',
            'level': 'info',
            'format': '%(message)s',
        }],
        # Level info: with ReFrame's default, debug, the file log took five
        # times the CPU time of everything else together.
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
            'basedir': str(places.perflog_folder()),
            'prefix': '',
        }],
    }],
    'modes': [{'name': name, 'options': options}
              for name, options in modes.MODES.items()],
}
