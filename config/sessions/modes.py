"""The modes of a session, with the options of ReFrame that each one sets.

`plumb` passes these options to ReFrame. `reframe --mode=M` has the same
effect, but ReFrame then ignores -p. Each of smoke, quick, nightly and full
contains the test cases of the modes before it. Mode veto has one test case of
each partition, on every node of it at once.
"""
#: The mode of `plumb run` without --mode.
QUICK = 'quick'
#: Modes with few test cases of each partition (config/sessions/selection.py).
SMOKE, VETO = 'smoke', 'veto'

#: Failed test cases are measured again once. At a second retry ReFrame has removed
#: the builds. Modes smoke and veto show the first result.
_RETRY = '--max-retries=1'
#: The longest time limit that a mode sets. Unit: h.
LONGEST_HOURS = 2

MODES = {
    SMOKE: ['--tag=^smoke$', '-Smode=smoke'],
    QUICK: ['--tag=^quick$', '-Smode=quick', _RETRY],
    'nightly': ['--tag=^nightly$', '-Smode=nightly', _RETRY, '-Srepetitions=5'],
    'full': ['--tag=^full$', '-Smode=full', _RETRY, '-Srepetitions=20',
             f'-Stime_limit={LONGEST_HOURS}h'],
    # All nodes, also those that are down: a node without a result is a failure.
    VETO: ['--tag=^veto$', '-Smode=veto', '--distribute=all'],
}
