"""The modes of a session, with the options of ReFrame that each one sets.

`plumb` passes these options to ReFrame. `reframe --mode=M` has the same
effect, but ReFrame then ignores -p. Each of smoke, quick, nightly and full
contains the test cases of the modes before it. Mode veto has one test case of
each partition, on every node of it at once.
"""
#: The mode of `plumb run` without --mode.
QUICK = 'quick'

MODES = {
    # config/sessions/selection.py selects one per family and partition.
    'smoke': ['--tag=^smoke$', '-Sselection=smoke'],
    QUICK: ['--tag=^quick$'],
    'nightly': ['--tag=^nightly$', '-Srepetitions=5'],
    'full': ['--tag=^full$', '-Srepetitions=20', '-Stime_limit=2h'],
    # All nodes, also those that are down: a node without a result is a failure.
    'veto': ['--tag=^veto$', '-Sselection=veto', '--distribute=all'],
}
