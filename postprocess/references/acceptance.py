"""Acceptance of proposed references, and their difference from accepted ones.

An accepted file is edited in place: comments, `complete`, the order and all
entries that are not in the proposal are kept.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from ruamel.yaml.comments import CommentedMap

from config import references as files
from config.references import (
    XFAIL,
    better_direction,
    iterate_reference_entries,
    more_sessions_text,
    tolerances_worse_and_better,
)
from config.sessions.judged import (
    judged_metric_names,
    printed_resolution,
    split_metric_key,
)

from ..files import git_commit_hint, write_files_atomically
from . import editing
from .spread import ENOUGH_DAYS


class Refused(Exception):
    """The command is refused; the message gives the reason."""


class TooFewSessions(Refused):
    """Nothing can be proposed until there are more sessions."""


def difference_lines(family: str, proposal: CommentedMap, accepted: Path
               ) -> list[str]:
    """The lines for people on how a proposal differs from the accepted
    file."""
    old = dict(iterate_reference_entries(editing.read_editable_yaml(accepted)))
    lines, same, differ = [], 0, 0
    for keys, entry in iterate_reference_entries(proposal):
        before = old.get(keys, {})
        hand = metrics_set_by_hand(before)
        shown = {**_metrics_to_judge(before), **_metrics_to_judge(entry)}
        changed = [metric for metric in shown
                   if not _is_metric_unchanged(family, metric, before, entry)]
        same += len(shown) - len(changed)
        differ += len(changed)
        if changed:
            lines.append(
                f'{family} {_test_case_name(keys)} ({_source_sessions_text(entry)}):'
            )
        for metric in changed:
            was, now = (
                _centre_and_tolerance_text(before, metric),
                _centre_and_tolerance_text(entry, metric),
            )
            note = ''
            if metric in hand:
                note = '; set by hand: kept'
            elif metric in worse_metrics(before, entry, hand):
                note = '; new, worse level: accept needs --reason'
            lines.append(f'  {metric} {was} -> {now}'
                         f'{_centre_change_text(before, entry, metric)}{note}')
    summary = f'{family}: {same} metrics unchanged, {differ} differ'
    return [*lines, summary if old else
            f'{family}: all entries are new, because {accepted.name} does '
            'not exist yet']


def read_proposals(folder: Path) -> dict[str, CommentedMap]:
    """Family -> its proposal in a folder.

    :raises ValueError: a file is broken
    """
    return {family: editing.read_editable_yaml(path)
            for family, path in files.proposed_files(folder).items()}


def accept_proposals(folder: Path, proposed: Mapping[str, CommentedMap],
                     is_chosen: Callable[[tuple], bool] = lambda keys: True,
                     reason: str = '') -> tuple[list[str], list[str]]:
    """Takes proposals into the accepted files; all of them, or none. What is
    not taken stays in the files of the proposals.

    :param proposed: family -> proposal, as it is in the folder
    :param is_chosen: whether to take the entry with these check and keys
    :param reason: why values are at a new, worse level
    :returns: lines on what was done, and on what was refused
    :raises Refused: no entry is wanted
    :raises ValueError: a file is broken
    """
    messages: list[str] = []
    refused: list[str] = []
    made: dict[str, bytes] = {}
    spent: list[Path] = []
    for family, proposal in proposed.items():
        path = folder / files.proposal_file_name(family)
        target = folder / f'{family}.yaml'
        accepted = editing.read_editable_yaml(target)
        if not target.exists():
            accepted.ca.comment = proposal.ca.comment
        before = dict(iterate_reference_entries(accepted))
        taken = 0
        for keys, entry in list(iterate_reference_entries(proposal)):
            if not is_chosen(keys):
                continue
            try:
                kept = _accept_test_case(accepted, before.get(keys), keys, entry,
                                         proposal[keys[0]]['$index'], reason)
            except Refused as err:
                refused.append(f'{target}: {_test_case_name(keys)}: {err}')
                continue
            messages += [f'{target}: {_test_case_name(keys)}: {metric} was set by '
                         'hand: kept' for metric in kept]
            _remove_entry(proposal, keys)
            taken += 1
        if not taken:
            continue
        made[target.name] = editing.dump_yaml(accepted)
        left = len(list(iterate_reference_entries(proposal)))
        if left:
            made[path.name] = editing.dump_yaml(proposal)
        else:
            spent.append(path)
        messages.append(
            f"{target}: {taken} test case{'s' * (taken > 1)} accepted"
            + f', {left} left in {path.name}' * bool(left)
            + git_commit_hint(target))
    if not made and not refused:
        raise Refused('--case: no proposed test case matches')
    write_files_atomically(folder, made)
    for path in spent:
        path.unlink()
    return messages, refused


def _accept_test_case(accepted: CommentedMap, before: CommentedMap | None, keys: tuple,
                      entry: CommentedMap, index: list, reason: str) -> list[str]:
    """Puts one test case of a proposal into an accepted file.

    :param before: its accepted entry, if any
    :returns: metrics that were set by hand, and kept
    :raises Refused: another index, or a new level without a reason
    """
    check = accepted.get(keys[0])
    if check and list(check.get('$index', ())) != list(index):
        raise Refused(f"{keys[0]}: the key $index must be "
                      f"[{', '.join(index)}]; correct it, or remove the check "
                      'from this file')
    hand = metrics_set_by_hand(before or {})
    levels = worse_metrics(before or {}, entry, hand)
    if levels and not reason:
        raise Refused(f"the new level of {', '.join(levels)} is worse; if "
                      'the change was intended, give --reason TEXT')
    if levels:
        entry['$from']['reason'] = reason
    if before is not None:
        return _merge_entries(before, entry, hand)
    if not check:
        accepted[keys[0]] = CommentedMap({'$index': index})
    place = accepted[keys[0]]
    for key in keys[1:-1]:
        place = place.setdefault(key, CommentedMap())
    place[keys[-1]] = entry
    return []


def _test_case_name(keys: tuple) -> str:
    """Check and keys of an entry, for people and --case."""
    return ' '.join(filter(None, map(str, keys)))


def metrics_set_by_hand(entry: Mapping) -> set[str]:
    """Metrics of an accepted entry whose lines the suite did not write: what
    differs from `$from`; without it all."""
    known = entry.get('$from')
    tolerances = (known or {}).get('tolerances') or {}
    metrics = set()
    for metric, line in entry.items():
        if metric.startswith('$'):
            continue
        tolerance, other = tolerances_worse_and_better(metric, line)
        written = tolerances.get(metric)
        if line[:1] == [XFAIL] or known is None or other is not None or (
                tolerance is not None if written is None else
                tolerance is None or not math.isclose(line[0], written[0])
                or not math.isclose(abs(tolerance), written[1])):
            metrics.add(metric)
    return metrics


def worse_metrics(
    before: Mapping, entry: Mapping, kept: set[str]
) -> list[str]:
    """Metrics whose centre moved to the worse side by more than their old
    tolerance; what is kept as set by hand does not move."""
    metrics = []
    for metric, line in before.items():
        if metric.startswith('$') or metric in kept or metric not in entry:
            continue
        tolerance, _ = tolerances_worse_and_better(metric, line)
        if tolerance is None or line[0] <= 0:
            continue
        worse = entry[metric][0] / line[0] - 1
        if (worse if better_direction(metric) == 'lower' else -worse) > abs(tolerance):
            metrics.append(metric)
    return metrics


def _merge_entries(old: CommentedMap, new: Mapping, kept: set[str]) -> list[str]:
    """Puts a proposed entry over an accepted one; returns what was kept as
    set by hand."""
    # What the proposal does not speak of is as it was.
    for metric, pair in (
        (old.get('$from') or {}).get('tolerances') or {}
    ).items():
        if metric not in new and metric in old:
            new['$from']['tolerances'].setdefault(metric, pair)
    no_reference = {metric: needs for metric, needs in
                    new.get('$no_reference', {}).items() if metric not in kept}
    for metric, line in new.items():
        if not metric.startswith('$') and metric not in kept:
            old[metric] = line
    # A curve without a reference of its own has nothing to be compared by.
    for metric in new.get('$no_reference', {}):
        if metric not in new and metric not in kept:
            _remove_metric_line(old, metric)
    _put_line(old, 0, '$from', new['$from'])
    if no_reference:
        _put_line(old, 1, '$no_reference', editing.flow_style_mapping(no_reference))
    else:
        _remove_metric_line(old, '$no_reference')
    return sorted(kept & {*new})


def _put_line(entry: CommentedMap, position: int, key: str, value: object) -> None:
    """Replaces a line, or inserts it at a position."""
    if key in entry:
        entry[key] = value
    else:
        entry.insert(position, key, value)


def _remove_metric_line(entry: CommentedMap, key: str) -> None:
    """Takes a line out. The comments beside and below it, which ruamel keeps
    with it, go to the line above."""
    if key not in entry:
        return
    names = list(entry)
    above = names[names.index(key) - 1] if names[0] != key else None
    _, _, comment, *_ = entry.ca.items.pop(key, [None] * 4)
    if comment is not None and above is not None:
        before = entry.ca.items.setdefault(above, [None] * 4)
        if before[2] is None:
            before[2] = comment
        else:
            blank = ' ' * entry.lc.key(key)[1] * comment.value.startswith('#')
            before[2].value += blank + comment.value.removeprefix('\n')
    del entry[key]


def _remove_entry(table: CommentedMap, keys: tuple) -> None:
    """Takes an entry out, and what is empty then."""
    places = [table]
    for key in keys[:-1]:
        places.append(places[-1][key])
    for place, key in zip(reversed(places), reversed(keys), strict=True):
        if place[key] and key != keys[-1] and set(place[key]) - {'$index'}:
            break
        del place[key]


def _metrics_to_judge(entry: Mapping) -> dict[str, None]:
    """Metrics that are judged, or would be."""
    return dict.fromkeys([
        *(f for f, line in entry.items() if not f.startswith('$')
          and any(side is not None for side in tolerances_worse_and_better(f, line))),
        *(entry.get('$no_reference') or {})])


def _centre_and_tolerance_text(entry: Mapping, metric: str) -> str:
    """Centre and tolerance of a metric, for people."""
    needs = (entry.get('$no_reference') or {}).get(metric)
    line = entry.get(metric)
    if line is not None and line[:1] == [XFAIL]:
        return 'xfail'
    centre = '' if line is None else f'{line[0]:.6g} {line[3]}'.removesuffix(
        ' 1')
    if needs is not None:
        return f'{centre} no_reference: {more_sessions_text(needs)}'.lstrip()
    if line is None:
        return 'new' if not entry else 'none'
    tolerance, _ = tolerances_worse_and_better(metric, line)
    return f'{centre} ' + ('open' if tolerance is None
                           else f'{100 * tolerance:+.0f} %')


def _centre_change_text(before: Mapping, entry: Mapping, metric: str) -> str:
    """The change of the centre, for people."""
    if metric not in before or metric not in entry or any(
            e[metric][0] in (XFAIL, 0) for e in (before, entry)):
        return ''
    return f' (centre {100 * (entry[metric][0] / before[metric][0] - 1):+.1f}'\
        ' %)'


def _source_sessions_text(entry: Mapping) -> str:
    source = entry['$from']
    dates = dict.fromkeys((str(source['first']), str(source['last'])))
    days = source['days']
    return (f"{source['runs']} sessions on {days} day{'s' * (days > 1)}, "
            f"{' to '.join(dates)}" + '; provisional' * (days < ENOUGH_DAYS))


def _is_metric_unchanged(
    family: str, metric: str, before: Mapping, entry: Mapping
) -> bool:
    """Whether a metric is unchanged, apart from its last printed digit."""
    one, two = before.get(metric), entry.get(metric)
    if (metric in (before.get('$no_reference') or {})) != (
            metric in (entry.get('$no_reference') or {})):
        return False
    if one is None or two is None:
        # Both are told by what they need alone.
        return one is two and _centre_and_tolerance_text(
            before, metric
        ) == _centre_and_tolerance_text(entry, metric)
    base, _ = split_metric_key(metric)
    digit = printed_resolution(family, base) \
        if base in judged_metric_names(family) else 0
    return (list(one[1:]) == list(two[1:]) and abs(one[0] - two[0])
            <= max(digit * 1.001, 1e-6 * abs(one[0])))
