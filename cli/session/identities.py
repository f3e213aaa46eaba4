"""Test cases by their short IDs, and the options of ReFrame that select them.

An ID is made from system, partition, environment, check, parameters and settings
(config/records/identity.py). ReFrame's own hash is no selection: it lacks settings,
and the hash of a copy (--repeat, --distribute) selects nothing.
"""
from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cli.session.names import name_without_blanks
from cli.session.reframe_options import NAMES_WITH_VALUE
from cli.setup.venv import SetupError
from cli.site.listing import list_test_cases_with_reframe
from config.places import site_option

if TYPE_CHECKING:
    import pandas as pd

_ID = re.compile(r'[0-9a-f]{8}')
_SETTING = re.compile(r'(?:^| )(\w+)=')
#: Options of ReFrame that select test cases.
_SELECTS = (('-n', '--name'), ('-x', '--exclude'), ('-t', '--tag'),
            ('-T', '--exclude-tag'), ('-E', '--filter-expr'), ('-p', '--prgenv'),
            ('--system',))
#: Variable of a check with the nodes of its job.
PINNED = 'pinned_nodes'


class Identity(NamedTuple):
    """The identity of a test case, and its name."""
    test_case: str
    system: str
    partition: str
    environ: str
    check: str
    #: `name=value` of the variables that differ from their defaults, separated by
    #: blanks.
    settings: str
    #: Name of the check as ReFrame displays it.
    name: str

    @property
    def settings_by_name(self) -> dict[str, str]:
        """The settings: name -> value.

        >>> Identity('', '', '', '', '', 'max_size=8 options=-i 9 -x 2', ''
        ...          ).settings_by_name
        {'max_size': '8', 'options': '-i 9 -x 2'}
        """
        _, *parts = _SETTING.split(self.settings)
        return dict(zip(parts[::2], parts[1::2], strict=True))

    @property
    def pattern(self) -> str:
        """The pattern of -n that selects the check alone.

        Its name is without the parameters that ReFrame adds for copies and for -P; they
        begin with a point.

        >>> Identity('', '', '', '', '', '', 'Copy %size=1 %.repeat_no=0').pattern
        '^Copy%size=1$'
        """
        name = ' %'.join(part for part in self.name.split(' %')
                         if not part.startswith('.'))
        # ReFrame reads a number behind an @ as that of a variant.
        return f'^{re.escape(name_without_blanks(name)).replace("@", ".")}$'


def split_ids(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The IDs among the words of a command line, and the other words, which are
    options of ReFrame.

    >>> split_ids(['a38ba5b9', '-n', 'deadbeef', '--dry-run', 'b328e76d'])
    (['a38ba5b9', 'b328e76d'], ['-n', 'deadbeef', '--dry-run'])
    """
    ids: list[str] = []
    others: list[str] = []
    for before, word in zip(['', *words], words, strict=False):
        (ids if _ID.fullmatch(word) and before not in NAMES_WITH_VALUE
         else others).append(word)
    return list(dict.fromkeys(ids)), others


def options_without_selection(words: Sequence[str]) -> list[str]:
    """Options of ReFrame without those that select test cases.

    >>> options_without_selection(['-n', 'A', '--tag=^x$', '-SA.b=1', '--system=s:p'])
    ['-SA.b=1']
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in _SELECTS:
        parser.add_argument(*names, action='append')
    return parser.parse_known_args(words)[1]


def find_test_cases(ids: Iterable[str], system: str, frame: pd.DataFrame, folder: Path
                    ) -> list[Identity]:
    """The test cases of a system with these IDs: from the records, or else from the
    checks of the site.

    :param frame: as records.read gives it
    :param folder: of the site
    :raises SetupError: an ID is unknown, or belongs to another system
    """
    known = identities_of_records(frame[frame['test_case'].isin([*ids])])
    if not {*ids} <= known.keys():
        known = {**identities_of_site(folder), **known}
    test_cases = []
    for text in ids:
        one = known.get(text)
        if one is None:
            raise SetupError(f'no test case has the ID {text}; the tables of ./plumb '
                             'run and verdict, and the page, show the IDs; a /HASH '
                             'of ReFrame is not an ID')
        if one.system != system:
            raise SetupError(f'{text} is a test case of the system {one.system}; use '
                             f'./plumb run{site_option(one.system)} {text}')
        test_cases.append(one)
    return test_cases


def identities_of_records(frame: pd.DataFrame) -> dict[str, Identity]:
    """ID -> test case, of all records."""
    columns = [*Identity._fields]
    rows = frame[columns].astype(str).drop_duplicates('test_case', keep='last')
    return {row.test_case: Identity(*row) for row in rows.itertuples(index=False)}


def identities_of_site(folder: Path) -> dict[str, Identity]:
    """ID -> test case, of all checks of a site with their default settings.

    :raises SetupError: ReFrame cannot list them
    """
    answer = list_test_cases_with_reframe(folder)
    if 'error' in answer:
        raise SetupError('; '.join([*answer['output'], answer['error']]))
    return {case['test_case']: identity_of_listing(case) for case in answer['cases']}


def identity_of_listing(case: Mapping[str, str]) -> Identity:
    """A test case of cli/site/cases.py."""
    return Identity(*(case[name] for name in Identity._fields))


def selections(test_cases: Iterable[Identity]) -> list[list[str]]:
    """Options of ReFrame that select these test cases, and no other ones.

    :returns: the options of one session for each place and settings
    """
    groups: dict[tuple[str, ...], list[Identity]] = {}
    for one in test_cases:
        groups.setdefault((one.system, one.partition, one.environ, one.settings), []
                          ).append(one)
    return [[f'--system={system}:{partition}', '-p', f'^{re.escape(environ)}$',
             *(word for pattern in dict.fromkeys(one.pattern for one in group)
               for word in ('-n', pattern)),
             *(f'-S{check}.{name}={value}'
               for check in dict.fromkeys(one.check for one in group)
               for name, value in group[0].settings_by_name.items())]
            for (system, partition, environ, _), group in groups.items()]
