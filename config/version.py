"""The version of the suite; every record and `plumb --version` tell it.

MAJOR.MINOR.PATCH. MINOR goes up where values may differ from those of before
for a reason in the suite, or where a format that the suite writes changes;
PATCH where neither does. CHANGELOG.md says what changed.
"""
from __future__ import annotations

VERSION = '0.1.0'
