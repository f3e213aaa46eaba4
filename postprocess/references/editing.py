"""Reference files for editing: comments and order are kept."""
from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import SingleQuotedScalarString

from config import references as grammar
from config import regular
from config.records import metrics


def read_editable_yaml(path: Path) -> CommentedMap:
    """A file with its comments and its order; empty if there is none.

    :raises ReferenceError_: it breaks the grammar
    """
    grammar.read(path)
    try:
        text = regular.read_regular_file(path)
    except FileNotFoundError:
        return CommentedMap()
    document: CommentedMap = _yaml_round_trip_parser().load(text)
    return document


def dump_yaml(data: CommentedMap) -> bytes:
    """The text of a file, comments included."""
    out = io.StringIO()
    _yaml_round_trip_parser().dump(data, out)
    return out.getvalue().encode()


def reference_yaml_entry(metric: str, value: float,
                         tolerance: float | None) -> CommentedSeq:
    """`[value, lower, upper, unit]`, bounded on the worse side.

    :param tolerance: `limit_tolerance_for_reframe`; None: open
    """
    limits: list[float | None] = [None, None]
    if tolerance is not None:
        higher = grammar.better_direction(metric) == 'higher'
        limits[not higher] = -tolerance if higher else tolerance
    unit = metrics.metric(metrics.split_metric_key(metric)[0]).unit
    return flow_style_list(
        [round_to_six_digits(value), *limits, quote_yaml_string(unit)])


def limit_tolerance_for_reframe(metric: str, tolerance: float) -> float:
    """The tolerance as it is written: ReFrame takes none below -1."""
    higher = grammar.better_direction(metric) == 'higher'
    return round(min(tolerance, 0.99) if higher else tolerance, 2)


def round_to_six_digits(value: float) -> float:
    """A value in six digits."""
    return float(f'{value:.6g}')


def flow_style_list(values: list[Any]) -> CommentedSeq:
    """A list that is written in one line."""
    sequence = CommentedSeq(values)
    sequence.fa.set_flow_style()
    return sequence


def flow_style_mapping(values: Mapping[str, Any]) -> CommentedMap:
    """A mapping that is written in one line."""
    mapping = CommentedMap(
        {quote_yaml_string(key): value for key, value in values.items()}
    )
    mapping.fa.set_flow_style()
    return mapping


def quote_yaml_string(value: str) -> str:
    """A string, quoted if YAML might read anything else: 1e5, no, a: b."""
    try:
        same = value[:1].isalpha() and yaml.safe_load(value) == value
    except yaml.YAMLError:
        same = False
    return value if same else SingleQuotedScalarString(value)


def _yaml_round_trip_parser() -> YAML:
    parser = YAML()
    parser.preserve_quotes = True
    parser.width = 10 ** 6
    # Inside a line, where ruamel would write nothing at all.
    parser.representer.add_representer(
        type(None), lambda representer, _: representer.represent_scalar(
            'tag:yaml.org,2002:null', 'null'))
    # ReFrame reads 1e-05 as a text (YAML 1.1), 1.0e-05 as a number.
    parser.representer.add_representer(
        float, lambda representer, value: representer.represent_scalar(
            'tag:yaml.org,2002:float', repr(value) if '.' in repr(value)
            else repr(value).replace('e', '.0e')))
    return parser
