"""Nightly sessions, in reading order:

nightly     ./plumb nightly
overlap     one nightly session at a time; what killed ones have left
nodes       the nodes of a partition: usable, due, chosen for a job
reruns      which failures are measured again, and where
summary     the summary as text, mail and status
messages    the summary for chats, the records for a database
timers      units of systemd, lines for cron, a pipeline for GitLab
pairs       how long a job of a pair of nodes takes, and how it is bounded
locate      ./plumb locate: which node or link is slow
"""
