"""Servers and clients inside a job.

:mod:`.service` is the interface for checks, :mod:`.script` writes the commands of the
job script. :mod:`.node` and :mod:`.ask` run on the nodes; they need only Python's
standard library, because a compute node may have nothing else.
"""
