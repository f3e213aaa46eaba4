"""Nightly sessions, in reading order:

nightly     ./plumb nightly
overlap     one nightly session at a time; what killed ones have left
nodes       the nodes of a partition: usable, due, chosen for a job
reruns      which failures are measured again, and where
summary     the summary as text and as data
messages    who receives the summary, and how it is sent
timers      ./plumb nightly schedule: systemd, cron, GitLab
pairs       how long a job of a pair of nodes takes, and how it is bounded
locate      ./plumb locate: which node or link is slow
"""
