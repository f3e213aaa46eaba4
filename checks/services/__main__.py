"""`python checks/services conduct PLAN -- LAUNCHER... | agent PLAN`, and what
a launcher starts for each rank of an MPI program: `rank FILE -- PROGRAM...`.
"""
import sys
from pathlib import Path

# Run as a folder, by a Python that knows nothing of the suite.
sys.path[0] = str(Path(__file__).resolve().parents[2])

USAGE = ('usage: services conduct PLAN -- LAUNCHER ... services agent PLAN '
         '(checks/services/service.py writes PLAN into the stage folder)')

# Each imports what it needs alone: a node may start hundreds of ranks.
match sys.argv[1:]:
    case ['conduct', plan, '--', *launcher]:
        from checks.services import conduct
        sys.exit(conduct.main(plan, launcher))
    case ['agent', plan]:
        from checks.services import agent
        sys.exit(agent.main(plan))
    case ['rank', file, '--', *command]:
        from checks.services import rank
        sys.exit(rank.main(file, command))
    case _:
        sys.exit(USAGE)
