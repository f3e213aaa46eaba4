"""What the tests share: an isolated place for runs of the real suite."""
from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Suite:
    """The suite with its own perflogs, references and results."""
    tmp: Path
    variables: dict[str, str]

    def plumb(self, *args: str, timeout: int = 250, **more: str
              ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / 'plumb'), *args], text=True, timeout=timeout,
            env={**os.environ, **self.variables, **more},
            capture_output=True, stdin=subprocess.DEVNULL)

    def reframe(self, *args: str, **more: str
                ) -> subprocess.CompletedProcess[str]:
        """Plain reframe with what `plumb env` exports, from elsewhere."""
        env = {**os.environ, **self.variables, **more}
        exports = subprocess.run([str(ROOT / 'plumb'), 'env'], text=True,
                                 capture_output=True, env=env)
        assert exports.returncode == 0, exports.stderr
        return subprocess.run(
            ['bash', '-c', exports.stdout + '\nexec reframe "$@"', 'bash',
             *args], text=True, capture_output=True, cwd=self.tmp, env=env,
            timeout=250)

    @property
    def records(self) -> list[dict[str, str]]:
        import csv
        found = []
        for path in sorted((self.tmp / 'perflogs').rglob('*.csv')):
            with open(path, newline='') as handle:
                found += list(csv.DictReader(handle))
        return found

    def write_references(self, data: object, family: str = 'osu') -> None:
        folder = self.tmp / 'references'
        folder.mkdir(exist_ok=True)
        (folder / f'{family}.yaml').write_text(
            data if isinstance(data, str) else json.dumps(data))


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    work = Path(os.environ.get('PLUMBLINE_WORK') or ROOT / '.plumbline')
    # The installed things are shared, all that a run writes is not.
    mine = tmp_path / 'work'
    mine.mkdir()
    for name in ('venv', 'mpi', 'bin'):
        if (work / name).exists():
            (mine / name).symlink_to(work / name)
    return Suite(tmp_path, {
        'PLUMBLINE_WORK': str(mine),
        'PLUMBLINE_PERFLOGS': str(tmp_path / 'perflogs'),
        'PLUMBLINE_REPORT': str(tmp_path / 'report'),
        'RFM_REFERENCE_PREFIX': str(tmp_path / 'references'),
        'RFM_PREFIX': str(tmp_path / 'rfm'),
    })
