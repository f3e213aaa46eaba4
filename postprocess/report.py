"""`./plumb report`: one page of verdicts and figures from the perflogs.

The page needs nothing beside itself: style and figures are inside, nothing
is asked of the network. The figures lie beside it as SVG and PNG too.
"""
from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Iterator, Set
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from config.families import Family, families
from config.judged import improved

from . import charts, figures, outcomes, perflogs, plans, series
from .files import write_all
from .progress import Progress, progress
from .verdict import Verdict, of_records

#: What can tell two series of a program apart, most telling first; the
#: parameters of the case come before these.
FIELDS = ['num_nodes', 'num_tasks', 'environ', 'partition', 'system',
          'source', 'version', 'stack', 'emulated']
MOST_SERIES = 4
#: What figures and tables are made of.
DRAWN = ['family', 'program', 'label', 'panel', 'row', 'speed', 'run', 'time',
         'metric', 'size', 'value', 'reference', 'lower', 'upper', 'judged',
         'sample', 'num_nodes', 'system', 'partition', 'environ']

EXAMPLES = """\
examples:
  ./plumb report
      all perflogs; writes report/index.html
  ./plumb report --system alpha --last 10 --output /srv/www/alpha
      the ten newest runs of one system

exit codes: 0 good; 1 a case failed in its newest run, was not run though its
session meant to, or has a known fault that is gone; a figure is worse than it
was (./plumb verdict); or a perflog is damaged (the page says where); 2 usage,
no perflogs, or nothing written
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    cmd = argparse.ArgumentParser(
        prog='plumb report', description='One page of verdicts and figures '
        'from the perflogs.', epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    cmd.add_argument('--perflogs', default='perflogs', metavar='DIR',
                     help='where the perflogs are (default: perflogs)')
    cmd.add_argument('--output', default='report', metavar='DIR', type=Path,
                     help='gets index.html and figures/ (default: report)')
    cmd.add_argument('--system', metavar='NAME', help='only this system')
    cmd.add_argument('--last', type=int, metavar='N',
                     help='only the newest N runs')
    cmd.add_argument('--references', metavar='DIR', help='as for ./plumb '
                     'verdict: what people accepted')
    cmd.add_argument('--title', metavar='TEXT', help='heading of the page')
    return cmd


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (usage errors exit with 2)."""
    return write(argv).code


class Written(NamedTuple):
    """What came of the command."""
    code: int
    #: The records that the page was made from.
    records: pd.DataFrame
    #: How far their cases are; None where no page was made.
    ahead: list[Progress] | None = None
    #: What the newest night says; None where no page was made.
    verdict: Verdict | None = None


def write(argv: list[str] | None = None) -> Written:
    """The same; returns also what the page was made from."""
    cmd = parser()
    args = cmd.parse_args(argv)
    if args.last is not None and args.last < 1:
        cmd.error(f'--last is {args.last}; the least is 1')
    frame, faults = perflogs.read(args.perflogs, on_error='collect')
    for fault in faults:
        print(f'plumb report: {fault}', file=sys.stderr)
    if args.system and args.system not in set(frame['system']) and len(frame):
        return _no_page(frame, f'no records of system {args.system!r} (there: '
                        f"{', '.join(sorted(frame['system'].unique()))})")
    if args.system:
        frame = frame[frame['system'] == args.system]
    try:
        # By the whole history, whatever is shown.
        judged = of_records(frame, [args.perflogs], None, args.references) \
            if len(frame) else None
    except ValueError as err:
        return _no_page(frame, str(err))
    if args.last:
        runs = list(dict.fromkeys(frame.sort_values('time')['run']))
        frame = frame[frame['run'].isin(runs[-args.last:])]
    if frame.empty:
        return _no_page(frame, f'no records in {args.perflogs}: run '
                        '`./plumb run` first, or name another folder with '
                        '--perflogs')
    over_time = series.newest(frame)
    for fault in over_time.faults:
        print(f'plumb report: {fault}', file=sys.stderr)
    faults += over_time.faults
    ahead = progress(frame)
    try:
        files, counts = build(frame, faults, args.title, over_time,
                              plans.partial([args.perflogs]), ahead,
                              args.output)
    except figures.FigureError as err:
        return _no_page(frame, str(err))
    try:
        write_all(args.output, files)
    except OSError as err:
        return _no_page(frame, f'{err.filename or args.output}: cannot be '
                        f'written ({err.strerror}); the page is as it was '
                        'before')
    print(f"{args.output / 'index.html'}: {counts['fail']} failed, "
          f"{counts['pass']} passed, {counts['recorded']} recorded, "
          f"{frame['run'].nunique()} runs"
          + f"; cases: {counts['judged']} judged, {counts['waiting']} "
          f"without a reference; {counts['unjudged']} figures unjudged"
          + (f', {len(judged.regressions)} regressed' if judged
             and judged.regressions else '')
          + f", {counts['improved']} improved" * bool(counts['improved'])
          + f", {counts['stale']} stale cases" * bool(counts['stale'])
          + f', {len(faults)} damaged places in perflogs' * bool(faults))
    bad = faults or any(counts[r] for r in outcomes.FAILED) or (
        judged and judged.regressions)
    return Written(1 if bad else 0, frame, ahead, judged)


def build(frame: pd.DataFrame, faults: list | None = None,
          title: str | None = None,
          runs: series.Newest | None = None,
          partial: Set[str] = frozenset(),
          ahead: list[Progress] | None = None,
          before: Path | None = None) -> tuple[dict[str, bytes], dict]:
    """The page and its figures.

    :param frame: as perflogs.read gives it, at least one record
    :param faults: what was damaged, shown on the page
    :param runs: what is drawn over time
    :param partial: runs that left cases out on purpose
    :param ahead: `progress` of these records; None: it is asked
    :param before: folder of an earlier page: figures that are still the same
        are taken from there
    :returns: {path: content}, index.html last; and the number of verdicts
        by result of the newest run of each case, and of cases that are
        stale, judged or `waiting` for a reference
    """
    import jinja2
    frame = _labelled(frame)
    files: dict[str, bytes] = {}
    rows, counts = verdicts(frame)
    stale = _stale(frame, partial)
    stands = outcomes.standing(frame, ahead)
    counts |= {'stale': len(stale), 'judged': stands.judged,
               'waiting': len(stands.waiting),
               'unjudged': len(stands.unjudged),
               'improved': sum(bool(row['note']) for row in rows)}
    runs = runs or series.Newest([], [])
    over_time = _over_time(frame, runs.series)
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / 'templates'),
        autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = env.get_template('report.html').render(
        title=title or 'Plumbline · '
        + ', '.join(sorted(frame['system'].unique())),
        made=f'{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M}',
        facts=facts(frame), verdicts=rows, counts=counts, stale=stale,
        waiting=[f'{_case(row)} · {words}' for row, words in stands.waiting],
        unjudged=[f'{_case(row)} · {figure} · {words}'
                  for row, figure, words in stands.unjudged],
        faults=[str(f) for f in faults or []],
        emulated=sorted(frame.loc[frame['emulated'], 'program'].unique()),
        families=[_family(name, mine, files, over_time.get(name, []), before)
                  for name, mine in _drawn(frame).groupby('family')],
        not_shown=runs.more,
        colours=charts.COLOURS)
    files['index.html'] = page.encode()
    return files, counts


def facts(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """What ran: (name, text) for the head of the page."""
    def values(*columns: str) -> str:
        rows = frame[list(columns)].drop_duplicates().astype(str)
        return ', '.join(sorted({' '.join(filter(None, r)) for r in
                                 rows.itertuples(index=False)} - {''}))

    first, last = frame['time'].min(), frame['time'].max()
    programs = frame.groupby(['version', 'source'], observed=True)[
        'program'].unique()
    cases = frame[perflogs.CASE].drop_duplicates()
    runs = frame['run'].nunique()
    speeds = frame.groupby('speed', observed=True)['run'].nunique()
    return [(name, text) for name, text in [
        ('System', ', '.join(sorted({
            f'{s}:{p}' for s, p in frame[['system', 'partition']]
            .drop_duplicates().itertuples(index=False)}))),
        ('Environment', values('environ')),
        ('Stack', values('stack')),
        ('Programs', '; '.join(
            f"{_list(list(names))} {version} ({source})"
            for (version, source), names in programs.items())),
        ('Suite', values('suite', 'commit')),
        ('ReFrame', values('reframe')),
        ('Time (UTC)', f'{first:%Y-%m-%d %H:%M}' + (
            f' to {last:%Y-%m-%d %H:%M}' if last > first else '')),
        ('Runs', f"{runs} run{'s' * (runs > 1)} of {len(cases)} "
                 f"case{'s' * (len(cases) > 1)}"
                 f', {charts.short(len(frame))} records'),
        ('Speed class', ', '.join(
            f"{'no sentinel' if s == '-' else s} ({n} "
            f"run{'s' * (n > 1)})" for s, n in speeds.items()))] if text]


def verdicts(frame: pd.DataFrame) -> tuple[list[dict], dict[str, int]]:
    """Judged records of the newest run of each case, failed ones first.

    :returns: rows for the table, and the number of records by result
    """
    frame = outcomes.newest(frame)
    result = frame['result']
    kept = (frame['metric'] != 'completed').groupby(
        [frame[c] for c in perflogs.CASE], observed=True).transform('any')
    order = ['fail', 'xpass', 'xfail', 'pass']
    judged = frame.assign(kept=kept)[result.isin(order)]
    counts = {r: int((result == r).sum()) for r in outcomes.ORDER}
    rank = judged['result'].map(order.index)
    judged = judged.assign(rank=rank).sort_values(
        ['rank', 'family', 'program', 'params', 'metric', 'size'])
    return [_verdict(row) for row in judged.itertuples()], counts


def _stale(frame: pd.DataFrame, partial: Set[str]) -> list[str]:
    """A line for each case that has not run for longer than others."""
    return [f'{_case(row)} · last ran {row.time:%Y-%m-%d %H:%M}'
            for row in outcomes.stale(frame, partial).itertuples()]


def _case(row) -> str:
    """What people call the case of a record, and where it ran."""
    return ' · '.join(filter(None, [
        row.program or row.check, row.label, row.speed.strip('-'),
        f'{row.system}:{row.partition} {row.environ}']))


def _verdict(row) -> dict:
    sign = {'lower': '≤', 'higher': '≥'}
    bounds = [f'{sign[side]} {charts.short(row.reference * (1 + fraction))}'
              for side, fraction in (('higher', row.lower),
                                     ('lower', row.upper))
              if pd.notna(fraction) and pd.notna(row.reference)]
    ratio = row.value / row.reference if row.reference else float('nan')
    better = row.result == 'pass' and improved(
        row.better, row.value, row.reference, row.lower, row.upper)
    if row.metric == 'completed':      # the guard says it all
        row = row._replace(
            metric='figures kept' if row.kept else 'no figures',
            value=float('nan'), unit='', reference=float('nan'))
        ratio, bounds = float('nan'), []
    return {
        'result': row.result,
        'anchor': f'{row.family}-{row.program}',
        'program': row.program or row.check,
        'label': row.label, 'speed': row.speed.strip('-'),
        'place': f'{row.system}:{row.partition} {row.environ}',
        'metric': row.metric,
        'size': '' if pd.isna(row.size) else charts.human(row.size),
        'value': '' if pd.isna(row.value)
        else charts.short(row.value), 'unit': figures.shown(row.unit),
        'reference': '' if pd.isna(row.reference)
        else charts.short(row.reference),
        'bound': ', '.join(bounds), 'guard': row.guard,
        'ratio': '' if pd.isna(ratio) else f'{ratio:.2f}\u2009×',
        'note': 'improved: propose again' if better else '',
        'run': row.run, 'where': f'{row.file}:{row.line}',
        'emulated': row.emulated}


def _labelled(frame: pd.DataFrame) -> pd.DataFrame:
    """With columns `label`, `panel` (what splits a figure) and `row`."""
    # Records of a case in a run differ in none of these.
    alike = frame.groupby(['family', 'program', 'params', *FIELDS],
                          observed=True, sort=False, dropna=False).ngroup()
    named = _named(frame[~alike.duplicated()]).iloc[alike]
    return pd.concat([frame, named.set_axis(frame.index)], axis=1)


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    """Just the columns that `_labelled` adds."""
    # A parameter that is called like a column says the same.
    params = perflogs.expand(frame).drop(
        columns=[*FIELDS, 'family', 'program'], errors='ignore')
    fields = [*params, *FIELDS]
    wide = pd.concat([params, frame[[*FIELDS, 'family', 'program']].astype(
        str)], axis=1)
    parts = []
    for _, mine in wide.groupby(['family', 'program'], sort=False):
        cases = mine[fields].drop_duplicates()
        telling = _telling(cases, fields)
        split: list[str] = []
        while _most(cases, telling, split) > MOST_SERIES and len(
                telling) - len(split) > 1:
            split.append(min((f for f in telling if f not in split),
                             key=lambda f: cases[f].nunique()))
        kept = [f for f in telling if f not in split]
        nodes = [f for f in telling if f != 'num_nodes'
                 and cases.groupby('num_nodes')[f].nunique().max() > 1]
        texts = {tuple(c): (_words(kept, c, fields), _words(split, c, fields),
                            _words(nodes, c, fields))
                 for c in cases.itertuples(index=False)}
        parts.append(pd.DataFrame(
            [texts[c] for c in mine[fields].itertuples(index=False,
                                                       name=None)],
            columns=['label', 'panel', 'row'], index=mine.index))
    named = pd.concat(parts).reindex(frame.index)
    named['row'] = (frame['program'].astype(str) + ' ' + named['row']
                    ).str.strip()
    return named


def _drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns that are drawn, as plain text and numbers; and whether a
    record is the `judged` one of its run, or a `sample` of one repeat."""
    judged = frame.index.isin(perflogs.judged_records(frame).index)
    alone = ~frame.duplicated([*perflogs.CASE, 'run', 'metric', 'point'],
                              keep=False)
    # Figures of a refused run, where they were kept, are a series apart.
    refused = (~frame['guard'].isin(['', 'reference'])).groupby(
        [frame[c] for c in [*perflogs.CASE, 'run']],
        observed=True).transform('any')
    frame = frame.assign(judged=judged, sample=(frame['repeat'] > 0) | alone,
                         label=frame['label'].mask(refused, (
                             frame['label'] + ', not valid').str.strip(', ')),
                         size=frame['size'].astype(float))[DRAWN]
    texts = frame.select_dtypes('category').columns
    return frame.astype(dict.fromkeys(texts, object))


def _telling(cases: pd.DataFrame, fields: list[str]) -> list[str]:
    """The fields that tell the cases apart, without those that follow from
    others chosen before."""
    chosen: list[str] = []
    for field in fields:
        known = (cases.groupby(chosen)[field].nunique().max() if chosen
                 else cases[field].nunique())
        if known > 1:
            chosen.append(field)
    return chosen


def _most(cases: pd.DataFrame, telling: list[str], split: list[str]) -> int:
    """The largest number of series in a figure when `split` splits them."""
    distinct = cases[telling].drop_duplicates()
    return (distinct.groupby(split).size().max() if split
            else len(distinct))


def _words(names: list[str], case: tuple, fields: list[str]) -> str:
    """What people call the case: 'inter_node, 2 nodes'."""
    words = []
    for name in names:
        value = case[fields.index(name)]
        if not value and name in FIELDS:    # not known before the case ran
            continue
        count = {'num_nodes': 'node', 'num_tasks': 'rank'}.get(name)
        if name == 'emulated':
            words += ['EMULATED'] * (value == 'True')
        elif count and value.isdecimal():
            words.append(f"{value} {count}{'s' * (value != '1')}")
        elif re.fullmatch(r'[\d.]*', value):
            words.append(f"{name} {value or '-'}")
        else:
            words.append(value)
    return ', '.join(words)


def _list(names: list[str], most: int = 6) -> str:
    """'a, b, c' or 'a, b and 20 more'."""
    if len(names) <= most:
        return ', '.join(names)
    return f"{', '.join(names[:most - 1])} and {len(names) - most + 1} more"


def _over_time(frame: pd.DataFrame, runs: list[series.Series]
               ) -> dict[str, list[figures.OverTime]]:
    """What is drawn over time, by family."""
    found: dict[str, list[figures.OverTime]] = {}
    for run in runs:
        row = frame.loc[run.record]
        mine = (frame[[*perflogs.CASE, 'run']] == row[
            [*perflogs.CASE, 'run']]).all(axis=1)
        guards = sorted(set(frame.loc[mine, 'guard']) - {''})
        title = ', '.join(filter(None, [
            f'{row.program}: over time', row.panel, row.label,
            f'{row.time:%d %b %H:%M}', 'NOT VALID' * bool(guards)]))
        note = guards and (
            f"Not valid (guard: {', '.join(guards)}): "
            + ('; '.join(run.reasons) or 'nothing says why'))
        found.setdefault(row.family, []).append(figures.OverTime(
            run, row.program, f'{row.run} {row.case}', title,
            families()[row.family].bands_of(row.params), note or ''))
    return found


def _family(name: str, frame: pd.DataFrame, files: dict[str, bytes],
            over_time: list[figures.OverTime], before: Path | None) -> dict:
    """The section of a family; its figures go into `files`."""
    known = families().get(name)
    found, reading = figures.drawings(
        figures.Records(name, frame, over_time), known)
    drawn: dict[str, list[dict]] = {}
    sections: dict[str, list[dict]] = {}
    for drawing in found:
        place = (sections.setdefault(drawing.section, []) if drawing.section
                 else drawn.setdefault(drawing.program, []))
        place.append(_draw(files, name, drawing, before))
    programs = [_program(name, known, program, mine, drawn.get(program, []))
                for program, mine in frame.groupby('program')]
    return {'name': name, 'programs': [p for p in programs if p],
            'title': known.title if known else '', 'reading': reading,
            'over_time': bool(over_time), 'sections': sections}


def _program(family: str, known: Family | None, program: str,
             frame: pd.DataFrame, drawn: list[dict]) -> dict | None:
    """The section of a program: what it tells, figures, tables."""
    frame = frame[frame['metric'] != 'completed']
    rows = perflogs.metrics()
    names = set(frame['metric'])
    there = [m for m in rows if m in names]
    if not there and not drawn:
        return None
    main = figures.main_metrics(family, frame)
    return {'name': program or 'unnamed', 'anchor': f'{family}-{program}',
            'about': known.tells(program) if known else '',
            'figures': drawn,
            'metrics': [(m, rows[m]['means']) for m in main],
            'tables': list(_tables(frame, main, there))}


def _tables(frame: pd.DataFrame, main: list[str],
            there: list[str]) -> Iterator[dict]:
    """The figures as numbers: a table for each series."""
    order = main + [m for m in there if m not in main]
    units = perflogs.metrics()
    for (label, panel, speed), mine in frame.groupby(
            ['label', 'panel', 'speed']):
        at = mine[mine['sample']].groupby(['metric', 'size'], dropna=False)[
            'value'].agg(['median', 'min', 'max', 'count'])
        whole: list[tuple] = []
        sized: dict[float, dict] = {}
        for (metric, size), row in zip(at.index, at.to_numpy(), strict=True):
            if pd.isna(size):
                whole.append((metric, *map(charts.short, row[:3]),
                              figures.shown(units[metric]['unit']),
                              int(row[3])))
            else:
                sized.setdefault(size, {})[metric] = row
        metrics = [m for m in order if any(m in c for c in sized.values())]
        heads = [h for m in metrics for h in (
            [f"{m} {figures.shown(units[m]['unit'])}".strip()]
            + ['min', 'max', 'samples'] * (m in main))]
        body = []
        for size, cells in sorted(sized.items()):
            line = []
            for m in metrics:
                wide = 4 if m in main else 1
                row = cells.get(m)
                line += ([''] * wide if row is None else
                         [*map(charts.short, row[:3]), str(int(row[3]))]
                         [:wide])
            body.append((charts.human(size), line))
        yield {'name': ' · '.join(filter(
            None, [panel, label, speed.strip('-')])) or 'all runs',
            'whole': sorted(whole, key=lambda w: order.index(w[0])),
            'heads': heads, 'body': body}


def _draw(files: dict[str, bytes], family: str, drawing: figures.Drawing,
          before: Path | None) -> dict:
    """Draws a figure into `files`; returns what the page shows of it."""
    stem = re.sub(r'[^\w.]+', '-', f'{family} {drawing.name}').strip('-')
    while f'figures/{stem}.svg' in files:
        stem += '-'
    names = [f'figures/{stem}.png', f'figures/{stem}.svg']
    made_of = b'<!-- %s -->\n' % drawing.made_of().encode()
    old = _still(before, names, made_of)
    if old is None:
        svg, png = charts.render(drawing.chart(*drawing.args), stem)
        old = png, svg + made_of
    # The PNG first: only a figure that is whole is taken another time.
    files |= zip(names, old, strict=True)
    svg = old[1].removesuffix(made_of)
    return {'svg': charts.inline(svg, drawing.about), 'stem': stem,
            'note': drawing.note}


def _still(folder: Path | None, names: list[str], made_of: bytes
           ) -> tuple[bytes, ...] | None:
    """The files of a figure that is still the same; None: draw it."""
    try:
        found = tuple((folder / name).read_bytes() for name in names
                      if folder)
    except OSError:
        return None
    return found if found and found[-1].endswith(made_of) else None


def _no_page(frame: pd.DataFrame, reason: str) -> Written:
    print(f'plumb report: {reason}', file=sys.stderr)
    return Written(2, frame)


if __name__ == '__main__':
    sys.exit(main())
