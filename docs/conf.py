"""Settings of Sphinx; `./plumb dev docs` builds the pages.

The source folder is the checkout: pages of docs/ and the README files of other
folders link to each other by their paths, on GitHub and here.
"""
from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

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


def add_toctrees(app: Any, name: str, source: list[str]) -> None:
    """Add a table of contents for the links below each heading of the index, and one
    for the README files of folders.

    So the index is a list of links on GitHub, too.
    """
    if name != root_doc:
        return
    contents = {title: re.findall(r'\]\((\S+)\.md\)', links) for title, links
                in re.findall(r'^## (.+)\n\n((?:- .+\n(?:  .+\n)*)+)', source[0], re.M)}
    contents['README files of folders'] = sorted(
        f'/{page}' for page in app.env.found_docs
        if '/' in page and not page.startswith('docs/'))
    for title, pages in contents.items():
        source[0] += '\n'.join(['', '```{toctree}', ':hidden:', ':maxdepth: 1',
                                f':caption: {title}', '', *pages, '```', ''])


def copy_images(app: Any, error: Exception | None) -> None:
    """Copy the images that pages name in HTML, which Sphinx does not read."""
    if not error:
        shutil.copytree(ROOT / 'docs' / 'images', app.outdir / 'docs' / 'images',
                        dirs_exist_ok=True)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect('source-read', add_toctrees)
    app.connect('build-finished', copy_images)
