"""The modes of a session, with the options of ReFrame that each one sets.

`plumb` hands the options to ReFrame. `reframe --mode=M` has the same, but
ignores -p beside it.
"""
MODES = {
    'quick': ['--tag=^quick$'],
    'nightly': ['--tag=^nightly$', '-Srepetitions=5'],
    'full': ['--tag=^full$', '-Srepetitions=20', '-Stime_limit=2h'],
}
