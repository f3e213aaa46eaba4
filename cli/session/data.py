"""The commands of postprocess, with the folders of this checkout as defaults."""
from __future__ import annotations

import argparse

from config import places


def run_postprocess(args: argparse.Namespace) -> int:
    """Run a command of postprocess, or `references propose` or `accept`; return its
    exit code."""
    from postprocess.__main__ import main
    words = args.rest
    if not {'-h', '--help'} & set(words):
        defaults = {}
        if args.command == 'references':
            defaults = _folders_of_site(words)
        if args.command in ('report', 'verdict'):
            defaults['references'] = places.machine_reference_folder()
        if args.command == 'report':
            defaults['output'] = places.report_folder()
        if words[:1] != ['accept'] or args.command != 'references':
            defaults['perflogs'] = str(places.perflog_folder())
        given = {word.partition('=')[0] for word in words}
        words = words + [word for name, value in defaults.items()
                         if f'--{name}' not in given for word in (f'--{name}', value)]
    return main([args.command, *words])


def _folders_of_site(words: list[str]) -> dict[str, str]:
    """The site of `references propose` or `accept`, and the folder of its references.

    :raises SetupError: no such site, or the folder is that of another site
    """
    from cli.session import commands
    chosen = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chosen.add_argument('--site', default=places.default_site())
    chosen.add_argument('--output')
    known, _ = chosen.parse_known_args(words)
    folder = commands.site_folder(known.site)
    return {'site': known.site, 'output': known.output or str(
        commands.reference_folder_of_site(folder))}
