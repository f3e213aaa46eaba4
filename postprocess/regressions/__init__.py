"""Detection of regressions, in the order in which a history becomes a line of text.

sessions    records -> History: one value per metric and session
detect      values -> Walk: which series are worse, and since when (numpy alone)
deviations  history and decisions -> what each metric, and each test case, is now
grouping    test cases that became worse together -> the smallest group that has them
describing  groups and metrics -> events: where, what, since when, how large
failures    results of test cases -> events of what failed, did not run, or was not
            compared
changes     what else changed: versions, nodes, software
judging     all of the above -> Verdict: the events of a session, and its state
events      what an event and a verdict are, and their lines. Terminal, page, mail and
            JSON have these lines,
junit       and so has JUnit XML
verdict     ./plumb verdict
decisions   what people accepted, muted or retired
"""
