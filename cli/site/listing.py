"""The test cases of a site, which ReFrame lists in a process of its own."""
from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from cli.setup.venv import ROOT, WORK, ensure_venv
from config.places import default_reference_folder


def list_test_cases_with_reframe(folder: Path) -> dict[str, Any]:
    """The output of cases.py for a site; also returns the site's faults."""
    variables = {
        'PLUMBLINE_ROOT': str(ROOT), 'PLUMBLINE_WORK': str(WORK),
        'PLUMBLINE_SITE': str(folder),
        'RFM_REFERENCE_PREFIX': str(default_reference_folder(folder))}
    # ReFrame's own variables could point to other sites and other checks.
    plain = {k: v for k, v in os.environ.items() if not k.startswith('RFM_')}
    done = subprocess.run(
        [str(ensure_venv()), str(ROOT / 'cli' / 'site' / 'cases.py'),
         str(folder)],
        env={**plain, **variables}, text=True, capture_output=True,
        stdin=subprocess.DEVNULL)
    warnings = [f'{folder}/system.py: {line}'
                for line in done.stderr.splitlines() if line.strip()]
    try:
        return {**json.loads(done.stdout), 'output': warnings}
    except ValueError:
        return {'error': f'{folder}/system.py: ReFrame cannot list the test '
                f'cases (exit code {done.returncode}); the lines '
                'above have its last output',
                'output': warnings[-3:]}
