"""The modes of a session, with the options of ReFrame that each one sets.

`plumb` passes these options to ReFrame. `reframe --mode=M` has the same
effect, but ReFrame then ignores -p.
"""
MODES = {
    'quick': ['--tag=^quick$'],
    'nightly': ['--tag=^nightly$', '-Srepetitions=5'],
    'full': ['--tag=^full$', '-Srepetitions=20', '-Stime_limit=2h'],
}
