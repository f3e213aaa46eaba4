"""Detection of regressions, in reading order:

verdict     ./plumb verdict, and the rules of a verdict
sessions      values as series over nightly sessions
detect      change detection in many series
deviations  how far each metric is from its baseline
grouping    which test cases became worse together
describing  regressions as events: where, what, since when, how large
changes     what else changed: versions, nodes, software
failures    events of what failed, did not run, or was not compared
judging     the verdict on a session: all its events
events      what an event and a verdict are, and their text
junit       a verdict as JUnit XML
decisions   what people accepted, muted or retired
"""
