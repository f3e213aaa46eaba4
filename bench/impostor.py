#!/usr/bin/env python3
"""Another user takes the port of a killed conductor: do agents obey?

    sudo .plumbline/venv/bin/python bench/impostor.py --rounds 50

Each round starts a run as this user, kills its batch script and conductor
with SIGKILL before the agents have connected, and has user `nobody` take the
port and pose as conductor by one of several attacks (tests/impostor.py). The
attack succeeds if its command is executed. `--serving FOLDER` attacks another
version of checks/serving. Prints a Markdown table. Needs root to switch users.

Exit status: 0 never obeyed and nothing left, 1 not so, 2 not root.
"""
from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.impostor import ATTACKS, SERVING, Round, play  # noqa: E402


def table(rounds: list[Round]) -> list[str]:
    """A row for each attack."""
    rows = ['| attack | rounds | had the port | met an agent | obeyed '
            '| left |',
            '|---|---|---|---|---|---|']
    for attack in ATTACKS:
        some = [r for r in rounds if r.attack == attack]
        rows.append(f'| {attack} | {len(some)} | {sum(r.taken for r in some)} '
                    f'| {sum(r.met for r in some)} '
                    f'| {sum(r.obeyed for r in some)} '
                    f'| {sum(bool(r.left) for r in some)} |')
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--rounds', type=int, default=50)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--attack', choices=list(ATTACKS), action='append')
    parser.add_argument('--serving', type=Path, default=SERVING,
                        metavar='FOLDER', help='what is attacked')
    args = parser.parse_args()
    if os.geteuid():
        print('impostor: only root can be somebody else', file=sys.stderr)
        return 2
    chance = random.Random(args.seed)
    attacks = args.attack or list(ATTACKS)
    rounds: list[Round] = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix='plumbimpostor') as folder:
            one = play(Path(folder), attacks[number % len(attacks)], chance,
                       args.serving.resolve())
        rounds.append(one)
        print(f'{number} {one.attack}: {"OBEYED" if one.obeyed else "no"}; '
              f'{one.said}', *one.left, flush=True)
    print(*table(rounds), sep='\n')
    return int(any(one.obeyed or one.left for one in rounds))


if __name__ == '__main__':
    sys.exit(main())
