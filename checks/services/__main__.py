"""Commands of the services: `conduct`, `agent` and `rank`.

    python checks/services conduct PLAN -- LAUNCHER...
    python checks/services agent PLAN
    python checks/services rank FILE -- PROGRAM...    each rank of MPI programs
"""
import sys
from pathlib import Path

# Run as a folder, by a Python without the suite on its path.
sys.path[0] = str(Path(__file__).resolve().parents[2])

USAGE = ('usage: services conduct PLAN -- LAUNCHER ... services agent PLAN '
         '(checks/services/service.py writes PLAN into the stage folder)')

# Each imports only its own modules: a node may start hundreds of ranks.
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
