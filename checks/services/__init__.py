"""Servers and clients inside a job: the part that runs on the nodes.

It needs only Python's standard library, because a compute node may have
nothing else. `checks/services/service.py` is the interface for checks.

    measure.sh ... -- services conduct PLAN -- LAUNCHER ... services agent PLAN

The conductor (:mod:`.conduct`) runs in the batch script. The partition's
launcher starts an agent (:mod:`.agent`) on every node. Each agent has one
connection to the conductor (:mod:`.wire`). The conductor sends commands on it;
the agent starts servers, runs clients and reports how they ended. If the
connection is closed or has no heartbeat, both sides stop everything that they
started.
"""
