"""Detection of regressions, in reading order:

verdict     ./plumb verdict, and the rules of a verdict
sessions      values as series over nightly sessions
detect      change detection in many series
power       the smallest change that is found
deviations  how far each metric is from its baseline
grouping    which test cases became worse together
describing  regressions as events: where, what, since when, how large
judging     the verdict on a session
changes     what else changed: versions, nodes, software
events      the events of a session, and their text
junit       a verdict as JUnit XML
decisions   what people accepted, muted or retired
"""
