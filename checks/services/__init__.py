"""Servers and clients inside a job.

:mod:`.service` is the interface for checks, :mod:`.script` writes the commands of the
job script. :mod:`.node` runs on the nodes, with :mod:`.client`, :mod:`.server` and
:mod:`.ask`. They need only Python's standard library, because a compute node may have
nothing else, and of it only modules that load fast: a start of Python with `typing`,
`pathlib`, `subprocess` and `argparse` takes four times the CPU time of one without.
"""


class Failed(Exception):
    """A process cannot be started, or does not do what the job needs; one line."""
