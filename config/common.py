"""ReFrame settings that all sites share: logging, perflogs, modes.

The `system.py` of each site includes them, so that it is the only configuration file
that ReFrame needs: `reframe -C site-configs/SITE/system.py`. No environment variable
is necessary.
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

from config import families, places, sites  # noqa: E402
from config.records.columns import DELIMITER, row_formats  # noqa: E402
from config.sessions import modes, record  # noqa: E402

#: Whether this process is a session that runs test cases.
_IS_SESSION = not sites.only_read and record.runs_test_cases()


def _prepare_session() -> None:
    """Prepare this process, which is ReFrame, for a session."""
    from config.sessions import caller
    caller.unset_caller_environment_variables()
    caller.set_missing_user_name()
    record.remove_first_log_file()
    try:
        places.prepare_environment_and_work_folder()
        families.families()
        if _IS_SESSION:
            record.begin_record()
    except (places.PlaceError, families.FamilyError, record.RecordError) as err:
        # One line instead of ReFrame's traceback.
        raise SystemExit(str(err)) from None
    # With another locale, programs print a decimal comma or translated text.
    os.environ['LC_ALL'] = 'C'


if not sites.only_read:
    _prepare_session()

_WORK = places.work_folder()

#: The keys of `site_configuration` that all sites share.
SETTINGS = {
    'general': [{
        'colorize': sys.stdout.isatty() and not os.environ.get('NO_COLOR'),
        # Only folders with checks, because ReFrame parses every file.
        'check_search_path': [
            str(family.folder) for family in
            families.families().values()],
        'check_search_recursive': True,
        'clean_stagedir': True,
        # Not the default ~/.reframe: a listing writes only to the work folder.
        'report_file': str(record.session_file('.json') if _IS_SESSION
                           else _WORK / 'report.json'),
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
            'name': str(record.session_file('.log') if _IS_SESSION
                        else _WORK / 'reframe.log'),
            'level': 'info',
            'format': '%(asctime)s %(levelname)s: %(check_info)s: %(message)s',
            'datefmt': '%FT%T%:z',
            'append': False,
        }],
        # A dry run has no rows.
        'handlers_perflog': [{
            'type': 'filelog',
            'level': 'info',
            # The handler formats it, so a percent sign would be a column.
            'basedir': str(places.perflog_folder()).replace('%', '%%'),
            'prefix': '%(check_system)s/%(check_partition)s',
            'format': DELIMITER.join(row_formats().values()),
            'datefmt': '%FT%T%:z',
            'append': True,
        }] if _IS_SESSION else [],
        'perflog_multiline': True,
    }],
    'modes': [{'name': name, 'options': options}
              for name, options in modes.MODES.items()],
}
