"""`plumb history`, `export` and `sql`: postprocess, with the usual places."""
from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from cli.setup.venv import ROOT


def _run_with_default_perflogs(
    main: Callable[[list[str]], int], words: list[str]
) -> int:
    """Calls a command with the perflogs of this checkout, unless others
    are named."""
    if not {'-h', '--help'} & set(words) and not any(
            word.partition('=')[0] == '--perflogs' for word in words):
        words = [*words, '--perflogs', os.environ.get(
            'PLUMBLINE_PERFLOGS') or str(ROOT / 'perflogs')]
    return main(words)


def history(args: argparse.Namespace) -> int:
    from postprocess import history as module
    return _run_with_default_perflogs(module.main, args.rest)


def export(args: argparse.Namespace) -> int:
    from postprocess import export as module
    return _run_with_default_perflogs(module.main, args.rest)


def sql(args: argparse.Namespace) -> int:
    from postprocess.perflogs import sql as module
    return _run_with_default_perflogs(module.main, args.rest)
