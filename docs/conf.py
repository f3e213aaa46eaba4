"""Settings of Sphinx; `./plumb docs` builds the pages.

The source folder is the checkout: pages of docs/ and the README files of other
folders link to each other by their paths, on GitHub and here.
"""
from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from config.version import VERSION  # noqa: E402

project = 'Plumbline'
author = 'the Plumbline authors'
copyright = author
version = release = VERSION
extensions = ['myst_parser']
root_doc = 'docs/index'
include_patterns = ['*.md', '**/*.md']
exclude_patterns = ['.*', '**/templates', 'perflogs/*/**']
html_theme = 'furo'
html_title = f'Plumbline {VERSION}'
html_copy_source = False
html_show_sphinx = False
# Otherwise `--` in a text becomes a dash.
smartquotes = False
# GitHub makes anchors of headings in the same way.
myst_heading_anchors = 4
# REMOVE when all pages of the layout are written.
suppress_warnings = ['toc.not_readable']
