"""`python -m postprocess COMMAND`: what `./plumb report` and others call."""
from __future__ import annotations

import importlib
import sys

#: Command -> its module in this package, and what it does.
COMMANDS = {
    'report': ('report.build', 'write one page of results and plots'),
    'plot': ('report.plot', 'draw the plots of a YAML file'),
    'verdict': ('regressions.verdict',
                'report what is worse than before, and since when'),
    'compare': ('compare', 'compare two sessions, sites, stacks or programs'),
    'history': ('history', 'print a metric over sessions'),
    'export': ('export', 'write records as Parquet, CSV, JUnit, OpenMetrics'),
    'sql': ('perflogs.sql', 'answer a question in SQL to all records'),
    'references': ('references.proposal',
                   'propose references from the perflogs, and accept them'),
}


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns its exit code: 0 good, 1 something failed or
    was refused, 2 usage or unreadable input."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        command = importlib.import_module(
            f'postprocess.{COMMANDS[argv[0]][0]}')
        return command.main(argv[1:])
    help_wanted = argv[:1] in (['-h'], ['--help'])
    print('usage: python -m postprocess COMMAND [--help]\n', *(
        f'  {name:<12}{text}' for name, (_, text) in COMMANDS.items()), '',
        'examples:', '  python -m postprocess report --last 5',
        '  python -m postprocess references propose --site alpha --dry-run',
        sep='\n', file=sys.stdout if help_wanted else sys.stderr)
    return 0 if help_wanted else 2


if __name__ == '__main__':
    sys.exit(main())
