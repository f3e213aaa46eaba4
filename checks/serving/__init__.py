"""Servers and clients inside a job: the part that runs on the nodes.

Needs nothing but Python and its standard library, because a compute node
may have no more. `checks/serving/service.py` is the part that a check sees.

    measure.sh ... -- serving conduct PLAN -- LAUNCHER ... serving agent PLAN

The conductor (:mod:`.conduct`) runs in the batch script. The partition's
launcher starts an agent (:mod:`.agent`) on every node; it has one connection
to the conductor, its lifeline, and does what it is told there: starts
servers, runs clients, says what became of them. Whoever finds the lifeline
cut or silent stops all that it started: there is no death that the other
side does not notice.
"""
