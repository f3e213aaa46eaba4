"""SVG of plots: as files, and as part of a page.

matplotlib repeats the style of each shape and gives six digits to each coordinate. A
file is written in half of its bytes; in a page all plots share their styles.
"""
from __future__ import annotations

import html
import io
import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from . import charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMESPACES = {'': 'http://www.w3.org/2000/svg', 'xlink': 'http://www.w3.org/1999/xlink'}
_DEFS, _GROUP, _PATH, _TEXT, _METADATA = (
    f"{{{NAMESPACES['']}}}{name}" for name in ('defs', 'g', 'path', 'text', 'metadata'))


def render_svg(figure: Figure, name: str) -> bytes:
    """SVG of a plot; its ids depend on its name."""
    import matplotlib
    out = io.BytesIO()
    with matplotlib.rc_context({'svg.fonttype': 'none',
                                'svg.hashsalt': name}):
        figure.savefig(out, format='svg', metadata={
            'Date': None, 'Creator': None})
    return _compact_svg(out.getvalue())


def _compact_svg(svg: bytes) -> bytes:
    """An SVG of matplotlib without metadata, ids that nothing names, and digits below a
    tenth of a point; neighbours share their style."""
    for prefix, uri in NAMESPACES.items():
        ElementTree.register_namespace(prefix, uri)
    root = ElementTree.fromstring(svg)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', svg.decode()))
    for element in root.iter():
        attributes = element.attrib
        if attributes.get('id') not in used:
            attributes.pop('id', None)
        if attributes.get('transform', '').startswith('rotate(-0 '):
            del attributes['transform']
        for name in {'x', 'y'} & set(attributes):
            attributes[name] = _tenths_text(float(attributes[name]) * 10)
        if 'd' in attributes:
            attributes['d'] = _compact_path(attributes['d'])
        element.tail = None
        if not (element.text or '').strip():
            element.text = None
    shapes = list(_shapes_of_svg(root))
    defs = ElementTree.Element(_DEFS)
    defs.extend(child for shape in shapes if shape.tag == _DEFS for child in shape)
    root[:] = [defs]
    shapes = [shape for shape in shapes
              if shape.tag != _DEFS and shape.get('style') != 'fill: none']
    # Texts lie on top of all else.
    shapes.sort(key=lambda shape: shape.tag == _TEXT)
    for shared, alike in itertools.groupby(shapes, lambda shape: {
            name: shape.attrib.pop(name) for name in ('style', 'clip-path')
            if name in shape.attrib}):
        members = list(alike)
        if 'fill: none' in shared.get('style', '') and all(
                shape.tag == _PATH for shape in members):
            # A line without points has no path.
            lines = ''.join(shape.get('d', '') for shape in members)
            members = [ElementTree.Element(_PATH, {'d': lines})]
        ElementTree.SubElement(root, _GROUP, shared).extend(members)
    return ElementTree.tostring(root, 'utf-8', xml_declaration=True).replace(
        b' />', b'/>') + b'\n'


def _shapes_of_svg(parent: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Shapes, texts and definitions of an SVG, without their groups, whose clip they
    get."""
    for child in parent:
        if 'clip-path' in parent.attrib:
            child.attrib['clip-path'] = parent.attrib['clip-path']
        if child.tag == _GROUP:
            yield from _shapes_of_svg(child)
        elif child.tag != _METADATA:
            yield child


def _compact_path(path: str) -> str:
    """A path of absolute coordinates in relative ones, in tenths of a point.

    >>> _compact_path('M 10 20.04 \\nL 10 30.12 \\nL 12.26 29.94 \\nz')
    'M10 20v10.1l2.3-.2z'
    """
    at = start = [0, 0]
    parts = []
    for command, numbers in re.findall('([MLQCz])([^MLQCz]*)', path):
        # Rounded before it is subtracted, so that errors do not add up.
        points = [round(10 * float(number)) for number in numbers.split()]
        steps = [value - at[n % 2] for n, value in enumerate(points)]
        at = points[-2:] or start
        if command == 'M':
            start = at
        if command == 'L' and 0 in steps:
            command, steps = ('h', steps[:1]) if not steps[1] else ('v', steps[1:])
        parts.append(command.lower() + ' '.join(map(_tenths_text, steps)))
    # Absolute at first, so that paths can be joined.
    return ''.join(parts).replace(' -', '-').replace('m', 'M', 1)


def _tenths_text(tenths: float) -> str:
    """A number of tenths.

    >>> _tenths_text(-8), _tenths_text(10.3)
    ('-.8', '1')
    """
    return re.sub(r'^(-?)0\.', r'\1.', str(round(tenths) / 10).removesuffix('.0'))


def inline_svg(svg: bytes, about: str, names: dict[str, str]) -> str:
    """The SVG as part of a page: its colours, its font, no fixed size.

    :param names: style or id -> its short name, which all plots of the page share;
        those of this plot are added
    """
    def short(long: str) -> str:
        return names.setdefault(long, f'v{np.base_repr(len(names), 36)}')

    text = svg.decode()
    text = text[text.index('<svg'):].replace('xlink:href', 'href')
    text = re.sub(r'\s(width|height)="[\d.]+pt"', '', text, count=2)
    text = re.sub(r'<style.*?</style>', '', text, flags=re.S)
    text = re.sub(r'; font-family: [^;"]*', '', text)
    # The page has a paper of its own; where it covers a line it stays.
    text = re.sub(f'<g style="fill: {charts.PAPER}"><path .*?/></g>', '', text, count=1)
    for colour, variable in [
            (charts.INK, 'currentColor'), (charts.GRID, 'var(--grid)'),
            (charts.PAPER, 'var(--card)'), *(
                (colour, f'var(--c{n})') for n, colour in enumerate(charts.COLOURS))]:
        text = text.replace(colour, variable)
    text = re.sub(r'( id="|url\(#|href="#)([^")]+)',
                  lambda match: match[1] + short(match[2]), text)
    text = re.sub(r' style="([^"]*)"',
                  lambda match: f' class="{short(match[1])}"', text)
    return text.replace(
        '<svg', f'<svg role="img" aria-label="{html.escape(about)}"', 1)
