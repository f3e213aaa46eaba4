"""The version of the suite, MAJOR.MINOR.PATCH, for records and `--version`.

MINOR increases if a change of the suite may change values, or if a format that
the suite writes changes. PATCH increases otherwise. CHANGELOG.md lists the
changes.
"""
from __future__ import annotations

VERSION = '0.1.0'
