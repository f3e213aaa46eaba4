"""Servers and clients inside a job: the part that runs on the nodes.

Needs only Python's standard library: a compute node may have nothing else.
`checks/services/service.py` is the part that a check sees.

    measure.sh ... -- services conduct PLAN -- LAUNCHER ... services agent PLAN

The conductor (:mod:`.conduct`) runs in the batch script. The partition's
launcher starts an agent (:mod:`.agent`) on every node. Each agent has one
connection to the conductor, the lifeline. The conductor sends commands on it;
the agent starts servers, runs clients and reports how they ended. A side that
finds the lifeline closed or silent stops all that it started.
"""
