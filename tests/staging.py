"""A stage directory for a check, without a session of ReFrame."""
from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from reframe.core import runtime
from reframe.core.exceptions import DependencyError


def make_stage_directory(check: Any, prefix: Path) -> Path:
    """Make a new, empty stage directory for a check that has a `place`."""
    runtime.runtime().site_config.add_sticky_option('systems/stagedir', str(prefix))
    # The last step of the setup looks for builds, which nothing has run.
    with contextlib.suppress(DependencyError):
        check.setup(*check.place)
    return Path(check.stagedir)
