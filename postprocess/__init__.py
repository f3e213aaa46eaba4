"""From perflogs to plots, results and reference files, in reading order:

records/        read, cache and query the records of sessions
results         the result of a test case in a session
debts           what a session owes of earlier ones
naming          names of series, and groups of records
names           short names of test cases
references/     reference files from perflogs, and their tolerances
regressions/    what changed for the worse, since when, and where
report/         the page and the plots
matching        the two sides of a comparison, and their test cases
compare         ./plumb compare
history         ./plumb history
export          ./plumb export
files           files that are written whole or not at all

Reads perflogs/ and config/; never imports checks/ or ReFrame.
"""
