"""Files of plots, and SVG of plots as part of a page."""
from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from . import charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Form of a file -> what it must not have, so that equal plots are equal files.
METADATA: dict[str, dict[str, Any]] = {
    'svg': {'Date': None, 'Creator': None}, 'png': {'Software': None},
    'pdf': {'CreationDate': None, 'Creator': None, 'Producer': None}}


def render(figure: Figure, form: str, name: str) -> bytes:
    """The file of a plot.

    :param form: svg, png, or pdf with its fonts as outlines of TrueType
    :param name: of the plot; ids in an SVG depend on it
    """
    import matplotlib
    out = io.BytesIO()
    with matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': name,
                                'pdf.fonttype': 42}):
        figure.savefig(out, format=form, dpi=200, metadata=METADATA[form])
    return out.getvalue()


def inline_svg(figure: Figure, name: str, about: str, names: dict[str, str]) -> str:
    """A plot as part of a page: with the page's colours and font, no fixed size, and
    coordinates in tenths of a point.

    :param name: of the plot, unlike that of other plots of the page
    :param about: what it shows, for who cannot see it
    :param names: style or id -> its short name, which all plots of the page share;
        those of this plot are added
    """
    def short(long: str) -> str:
        return names.setdefault(long, f'v{np.base_repr(len(names), 36)}')

    text = render(figure, 'svg', name).decode()
    text = text[text.index('<svg'):].replace('xlink:href', 'href')
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(r'\s(width|height)="[\d.]+pt"', '', text, count=2)
    text = re.sub(r'<(metadata|style).*?</\1>|<!--.*?-->', '', text, flags=re.S)
    text = re.sub(r'; font-family: [^;"]*', '', text)
    # The page has a paper of its own; where it covers a line it stays.
    text = re.sub(f'<path d="[^"]*" style="fill: {charts.PAPER}"/>', '', text, count=1)
    for colour, variable in [
            (charts.INK, 'currentColor'), (charts.GRID, 'var(--grid)'),
            (charts.PAPER, 'var(--card)'), *(
                (colour, f'var(--c{n})') for n, colour in enumerate(charts.COLOURS))]:
        text = text.replace(colour, variable)
    text = re.sub(r' id="([^"]+)"', lambda match: match[0] * (match[1] in used), text)
    text = re.sub(r'( id="|url\(#|href="#)([^")]+)',
                  lambda match: match[1] + short(match[2]), text)
    text = re.sub(r' style="([^"]*)"',
                  lambda match: f' class="{short(match[1])}"', text)
    text = re.sub(r'<[^>]*>', lambda tag: re.sub(
        r'-?\d+\.\d\d+', lambda match: f'{round(float(match[0]), 1):g}', tag[0]), text)
    text = re.sub(r'\s+', ' ', text).replace('> <', '><')
    return text.replace(
        '<svg', f'<svg role="img" aria-label="{html.escape(about)}"', 1)
