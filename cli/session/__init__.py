"""Sessions of ReFrame, in reading order:

commands    ./plumb run and the other commands that need the venv
process     the process of ReFrame: its folders, its end
identities  test cases by their short IDs, and the options that select them
table       the table of a session: one row per test case and copy
calibrate   ./plumb references calibrate
names       names of test cases as -n takes them
parse       ./plumb parse: saved output as tidy CSV
"""
