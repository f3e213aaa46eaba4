"""Damage to recorded output, as it happens to files and to pipes: each takes
a random.Random and the lines, and returns other lines."""
from __future__ import annotations

import re


def cut(draw, lines):
    """The end is lost, in the middle of a line."""
    text = '\n'.join(lines)
    return text[:draw.randrange(len(text))].split('\n')


def lose(draw, lines):
    del lines[draw.randrange(len(lines))]
    return lines


def double(draw, lines):
    at = draw.randrange(len(lines))
    return [*lines[:at + 1], *lines[at:]]


def weave(draw, lines):
    """Another rank writes the same, some lines later."""
    at, late = draw.randrange(len(lines)), draw.randrange(1, 6)
    other = lines[at:at + draw.randrange(1, 12)]
    return [*lines[:at + late], *other, *lines[at + late:]]


def break_in(draw, lines):
    """Another rank writes in the middle of a line."""
    at, other = draw.randrange(len(lines)), draw.choice(lines)
    place = draw.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:place] + other + lines[at][place:]
    return lines


def digit(draw, lines):
    text = '\n'.join(lines)
    place = draw.choice([m.start() for m in re.finditer(r'\d', text)])
    new = draw.choice([d for d in '0123456789' if d != text[place]])
    return (text[:place] + new + text[place + 1:]).split('\n')


def lose_character(draw, lines):
    at = draw.choice([n for n, line in enumerate(lines) if line])
    place = draw.randrange(len(lines[at]))
    lines[at] = lines[at][:place] + lines[at][place + 1:]
    return lines


MUTATIONS = [cut, lose, double, weave, break_in, digit, digit, digit,
             lose_character]
