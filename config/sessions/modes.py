"""The modes of a session, with the options of ReFrame that each one sets.

`plumb` passes these options to ReFrame. `reframe --mode=M` has the same
effect, but ReFrame then ignores -p. Each mode contains the test cases of the
modes before it.
"""
MODES = {
    # config/sessions/smoke.py selects one per family and partition.
    'smoke': ['--tag=^smoke$', '-Ssmoke=1'],
    'quick': ['--tag=^quick$'],
    'nightly': ['--tag=^nightly$', '-Srepetitions=5'],
    'full': ['--tag=^full$', '-Srepetitions=20', '-Stime_limit=2h'],
}
