"""Nightly sessions, in reading order:

nightly     ./plumb nightly
summary     the summary as text and as data
messages    who receives the summary, and how it is sent
timers      ./plumb nightly schedule: systemd, cron, GitLab
locate      ./plumb locate: which node or switch is slow
locating      which pairs of nodes to measure, and what their values prove
"""
