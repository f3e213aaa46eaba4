"""Print the values that the checks read from runs, or their refusals, as JSON.

    python judge.py FOLDER_OF_A_SITE FOLDER < runs.json

A separate process, because a check reads its parameters from the system during
its import. A run has the `check`, the files of its programs for each size
(`files`: the end of a name -> text), what the servers counted (`commands`,
`evicted`) and the facts of the nodes; `scenario` and `settings` are fields and
settings of the check that differ from its plain test case. Nothing is run.
"""
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from reframe.frontend.executors import generate_testcases
from reframe.frontend.loader import RegressionCheckLoader

from checks.core.guards import Run
from checks.services.parser import Counters, Step
from cli.setup.venv import ROOT
from cli.site import cases
from tests.staging import make_stage_directory

NONE = Counters()

cases.select_site_in_reframe(Path(sys.argv[1]))
loader = RegressionCheckLoader([str(ROOT / 'checks' / 'smartredis')])
checks = {}
for check, partition, environ in generate_testcases(loader.load_all()):
    check.place = partition, environ
    # The plain case of the quick mode is the first.
    if not check.is_fixture():
        checks.setdefault(type(check).__name__.partition('_')[0], check)
results = {}
for name, run in json.load(sys.stdin).items():
    check = checks[run['check']]
    check.scenario = replace(check.scenario, iterations=100,
                             **run.get('scenario', {}))
    for setting, value in run.get('settings', {}).items():
        setattr(check, setting, value)
    folder = make_stage_directory(check, Path(sys.argv[2]))
    for end, text in run['files'].items():
        file = folder / f'run.1.{end}'
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    (folder / 'run.1.server0.log').write_text(
        run.get('log', 'M * <ai> embedded AI module, stand-in\n'))
    check.programs = SimpleNamespace(stagedir='', program_origin=lambda *_: {})
    grown = Counters(commands=run['commands'], evicted=run.get('evicted', 0))
    services = SimpleNamespace(
        servers=[SimpleNamespace(version='7.0.15')],
        steps={f'size{size}': Step(1.0, 0.0, NONE, grown)
               for size in check.tensor_sizes})
    try:
        results[name] = {
            **check.extract_service_values(services, '', Run(
                1, 0, 1e3, 0, 0, '', '', 'run.1')),
            'version': check.version}
    except Exception as error:  # ReFrame's copies of our classes
        results[name] = str(error)
json.dump(results, sys.stdout)
