"""What the guards of a check say of runs, as JSON: folder -> words.

    python judge.py FOLDER_OF_A_SITE RUN_FOLDER...

Each folder has a run's `out` and the files that NCCL left; the first word of
its name is the check that judges it. Nothing is run.
"""
import json
import shutil
import sys
from pathlib import Path

from reframe.frontend.executors import generate_testcases
from reframe.frontend.loader import RegressionCheckLoader

from checks.core.guards import Run
from cli.setup.venv import ROOT
from cli.site import cases
from tests.staging import make_stage_directory

cases.select_site_in_reframe(Path(sys.argv[1]))
loader = RegressionCheckLoader([str(ROOT / 'checks' / 'nccl')])
checks = {}
for check, partition, environ in generate_testcases(loader.load_all()):
    check.place = partition, environ
    if not check.is_fixture() and check.program == 'all_reduce_perf' \
            and (check.layout.gpus, check.layout.nodes) == (8, 2):
        check.lay_out_ranks()
        checks.setdefault(getattr(check, 'choice', 'plain'), check)
result = {}
for folder in map(Path, sys.argv[2:]):
    check = checks[folder.name.partition(' ')[0]]
    shutil.copytree(folder, make_stage_directory(check, folder.parent / 'stage'),
                    dirs_exist_ok=True)
    run = Run(1, 0, 1e3, 0, 0, (folder / 'out').read_text(), '', 'run.1')
    try:
        result[folder.name] = check.parse_values(run)
    except Exception as error:  # ReFrame's copies of our classes
        result[folder.name] = str(error)
json.dump(result, sys.stdout)
