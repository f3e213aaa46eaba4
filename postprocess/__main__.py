"""`python -m postprocess COMMAND`: what `./plumb report` and others call."""
from __future__ import annotations

import importlib
import sys

COMMANDS = {
    'report': 'one page of verdicts and figures from the perflogs',
    'plot': "people's own figures, asked for in a YAML file",
    'verdict': 'what is worse than it was, since when, how sure',
    'compare': 'two nights, sites, stacks or programs, case by case',
    'history': 'how a metric went, night by night',
    'export': 'the perflogs as Parquet, CSV, JUnit, OpenMetrics',
    'sql': 'a question in SQL to all records',
    'references': 'references from the perflogs: propose, accept',
}


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns its exit code: 0 good, 1 something failed or
    was refused, 2 usage or unreadable input."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        command = importlib.import_module(f'postprocess.{argv[0]}')
        return command.main(argv[1:])
    wanted = argv[:1] in (['-h'], ['--help'])
    print('usage: python -m postprocess COMMAND [--help]\n', *(
        f'  {name:<12}{text}' for name, text in COMMANDS.items()), '',
        'examples:', '  python -m postprocess report --last 5',
        '  python -m postprocess references propose --site alpha --dry-run',
        sep='\n', file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


if __name__ == '__main__':
    sys.exit(main())
