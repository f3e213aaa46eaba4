"""Every case of the family on a site, with its command line, as JSON.

    python matrix.py FOLDER_OF_A_SITE

A process of its own: a check asks the system for its parameters while it is
imported. Nothing is run.
"""
import json
import sys
from pathlib import Path

from reframe.frontend.executors import generate_testcases
from reframe.frontend.loader import RegressionCheckLoader

from checks.nccl.output import Output
from cli.setup.venv import ROOT
from cli.site import cases

cases.select_site_in_reframe(Path(sys.argv[1]))
loader = RegressionCheckLoader([str(ROOT / 'checks' / 'nccl')])
result = []
for check, partition, environ in generate_testcases(loader.load_all()):
    if check.is_fixture():
        continue
    check.place = partition, environ
    check.lay_out_ranks()
    check.check_placement_and_mark_shortage()
    addresses = []
    for check.emulated in (True, False):
        check.record_gpus(Output(addresses=(('n1', '0000:11:00'), ('n1', '0000:10:00'),
                                            *(('n2', '0000:10:00'),) * 2)))
        addresses.append(check.gpus)
    result.append({
        'addresses': addresses, 'reasons': check.inconclusive_reasons,
        'check': type(check).variant_name(), 'params': check.params,
        'program': check.program, 'arguments': check.arguments(),
        'environment': check.environment_variables(), 'gpus': check.layout.gpus,
        'nodes': check.layout.nodes, 'tasks': check.num_tasks,
        'threads': check.threads, 'planned': check.required_metrics(),
        'modes': sorted(check.tags), 'where': partition.name})
json.dump(result, sys.stdout)
