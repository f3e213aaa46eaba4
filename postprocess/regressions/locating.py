"""Search for slow nodes, links and switches by measurements on pairs of nodes.

`Search` selects the pairs to measure next and takes their values. Others run
the jobs (cli/nightly/locate.py, bench/locate.py).

x is the logarithm of a job's metric, signed so that more is slower. A pair is as slow
as its slowest part: one of two nodes, their link, or a switch or uplink between them.
Pairs without a slow part have a level, one per number of switches that they climb.
The search looks for slowdowns of at least d = -log(1 - slowdown). An x that is more
than 3 d from the median counts as 3 d, as does a failed job: one odd job decides
nothing.

1. Each node is measured with at least two others. The parts that explain the jobs
   best are suspects: greedily those with the largest (mean - level - d / 2)
   sqrt(jobs) / noise. Most pairs may be slow, so that the choice begins with three
   levels. The one with the least N log(residual variance) + (parts + levels) log(N)
   counts (Schwarz, 1978).
2. Suspects are measured with other nodes, at the same time as pairs without a
   suspect. A suspect is slow if these jobs are slower, by Welch's t-test (1947) with
   Bonferroni's correction. The first jobs do not count, because they were selected
   for being slow. The test must also hold without the jobs of any one partner, so
   that a slow link accuses no node.

A node is not slower if the confidence interval of its mean is below d. The variance
is its own, with the common one as POOLED more degrees of freedom (Smyth, 2004). All
other parts are unclear. If fewer than five nodes are alike, all are unclear: pairs
are also alike if all nodes but one are slow.
"""
from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from config.console import count_with_noun
from config.records.units import change_text, value_text

from ..names import natural_sort_key
from .detect import student_t_quantile

#: Chance that a search accuses a good part, and normal quantile of the chance that
#: it reports a slow node as not slower (0.5 %).
ACCUSE, NOT_SLOWER = 0.01, NormalDist().inv_cdf(0.995)
#: Times that suspects are measured, and rounds of all of them at most.
LOOKS, MAX_ROUNDS = 4, 30
#: Fewest jobs in the first rounds; fewest and most jobs of a part between two looks.
FIRST_JOBS, FEWEST, LONGEST = 12, 4, 10
#: Fewest nodes that are reported as not slower where none is slow.
MAJORITY = 5
#: Degrees of freedom that the common variance adds to that of a node.
POOLED = 4
#: Smallest noise, and largest distance from the median, in units of d.
FINEST, FARTHEST = 0.05, 3.0
#: Shares of the pairs that are faster than a first level.
STARTS = (0.05, 0.2, 0.5)
#: What a score must exceed: there are many more links than nodes.
PRICES = {'node': 0.0, 'switch': 1.0, 'uplink': 1.0, 'link': 2.5}
#: Stands for the pairs without a suspect.
OTHERS = ('others',)

Pair = tuple[str, str]
#: Kind and names: ('node', 'n1'), ('link', 'n1', 'n2'), ('switch', 'leaf1').
Part = tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """A slow part, and its evidence."""
    #: node, link, switch or uplink.
    kind: str
    name: str
    #: slow or fails.
    verdict: str
    #: Metric of its jobs without another suspect over that of good pairs.
    ratio: float | None
    #: Metric of good pairs.
    level: float
    #: Its jobs without another suspect, and those of them that failed.
    jobs: int
    failed: int
    #: Student's t, and its limit.
    t: float
    limit: float


@dataclass(frozen=True)
class Located:
    """The result of a search."""
    unit: str
    slowdown: float
    nodes: int
    jobs: int
    #: Time slots: the jobs of a round run at the same time.
    rounds: int
    #: Relative noise of a pair.
    noise: float = 0.0
    #: Switches that a pair climbs -> metric of good pairs.
    levels: dict[int, float] = field(default_factory=dict)
    named: list[Finding] = field(default_factory=list)
    #: Names of nodes, or kinds and names of other parts.
    unclear: list[str] = field(default_factory=list)
    not_slower: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The exit code: 1 if a part is named."""
        return 1 if self.named else 0

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False) + '\n'


class _Job(NamedTuple):
    pair: Pair
    #: NaN: it failed.
    x: float
    climbs: int
    parts: frozenset[Part]
    #: Looks before it, and its suspects by then.
    look: int
    suspects: frozenset[Part]


class _Fit(NamedTuple):
    """The explanation of all jobs so far."""
    suspects: frozenset[Part]
    levels: dict[int, float]
    #: Standard deviation of a job.
    noise: float
    #: Of each job: x less its level, and its suspects.
    excess: np.ndarray
    why: list[frozenset[Part]]


class Search:
    """A search for slow nodes, links and switches."""

    def __init__(self, nodes: Iterable[str], better: str, *,
                 above: Mapping[str, Sequence[str]] | None = None,
                 slowdown: float = 0.1, every: bool = False) -> None:
        """
        :param better: higher or lower, of the metric
        :param above: node -> the switches above it, the nearest first
        :param slowdown: what is looked for: a fraction, 0.1 is 10 % less of what is
            better higher, 11 % more of what is better lower
        :param every: measure all pairs first, so that each link is seen
        :raises ValueError: fewer than two nodes, or no such fraction
        """
        # A root that all nodes have.
        self.above = {node: (*(above or {}).get(node, ()), '') for node in set(nodes)}
        self.nodes = sorted(self.above, key=natural_sort_key)
        if len(self.nodes) < 2:
            raise ValueError('pairs of nodes need at least two nodes; '
                             f'{len(self.nodes)} given')
        if not 0.005 <= slowdown < 1:
            raise ValueError(f'the slowdown is {slowdown:g}; it must be from '
                             '0.005 (half a percent) to below 1')
        self.better, self.slowdown, self.every = better, slowdown, every
        self.d = -math.log(1 - slowdown)
        self.rounds = self.look = 0
        self._random = random.Random(0)
        #: Switch -> nodes under it, and what is directly under it.
        self._under: dict[str, set[str]] = defaultdict(set)
        self._children: dict[str, set[str]] = defaultdict(set)
        for node, switches in self.above.items():
            for below, switch in itertools.pairwise((node, *switches)):
                self._under[switch].add(node)
                self._children[switch].add(below)
        self._jobs: list[_Job] = []
        #: How often each pair was planned, and each node with pairs that climb so far.
        self._times: Counter[tuple] = Counter()
        #: Suspect -> the look that found it.
        self._since: dict[Part, int] = {}
        #: Slow part -> t and its limit.
        self._named: dict[Part, tuple[float, float]] = {}

    def _way(self, a: str, b: str) -> tuple[str, list[str]]:
        """The first switch above both nodes, and the switches below it."""
        common = next(switch for switch in self.above[a] if switch in self.above[b])
        return common, [switch for node in (a, b) for switch in itertools.takewhile(
            lambda one: one != common, self.above[node])]

    def _climbs(self, a: str, b: str) -> int:
        common, _ = self._way(a, b)
        return max(self.above[node].index(common) for node in (a, b))

    def _parts(self, a: str, b: str) -> frozenset[Part]:
        """The parts that can slow a pair.

        A switch above all nodes or above two, and an uplink of all nodes but one,
        explain nothing that other parts do not. Nor do two switches that have only
        each other beside them: all pairs between them have both.
        """
        common, below = self._way(a, b)
        if len(self._children[common]) == 2:
            below = []
        size = {switch: len(self._under[switch]) for switch in (common, *below)}
        return frozenset({
            ('node', a), ('node', b), ('link', *sorted((a, b))),
            *(('switch', s) for s in size if 3 <= size[s] < len(self.nodes)),
            *(('uplink', s) for s in below if 3 <= size[s] <= len(self.nodes) - 2)})

    def add_measurement(self, pair: Pair, value: float | None) -> None:
        """Take the metric of a job; None: it failed, or had none."""
        good = value is not None and math.isfinite(value) and value > 0
        x = math.log(value) if good and value else math.nan
        parts = self._parts(*pair)
        self._jobs.append(_Job(
            pair, -x if self.better == 'higher' else x, self._climbs(*pair), parts,
            self.look, parts & (self._since.keys() | self._named.keys())))

    # Which pairs next ---------------------------------------------------

    def next_rounds(self) -> list[list[Pair]]:
        """Rounds to measure next, in order; the pairs of a round at the same
        time. Empty: the search has ended."""
        suspects: frozenset[Part] = frozenset()
        if not self.look:
            number = max(2, math.ceil(2 * FIRST_JOBS / len(self.nodes)))
            left: Counter[Part] = Counter(
                {('node', node): number for node in self.nodes})
            if self.every:
                left.update(('link', *sorted(pair))
                            for pair in itertools.combinations(self.nodes, 2))
            self._last = math.inf
        elif len(self.nodes) == 2 or not self._jobs or self.look > LOOKS:
            return []
        else:
            fit = self._take_look()
            suspects, left = fit.suspects, self._jobs_wanted(fit)
        rounds: list[list[Pair]] = []
        while self.rounds < self._last and (pairs := self._next_round(left, suspects)):
            rounds.append(pairs)
            self.rounds += 1
        if not self.look:
            self._last = self.rounds + MAX_ROUNDS
        self.look += 1
        return rounds

    def _jobs_wanted(self, fit: _Fit) -> Counter[Part]:
        """Jobs that suspects, pairs without one, and unclear nodes need."""
        suspects = sorted(fit.suspects - self._named.keys())
        good = [('node', node) for node in self.nodes
                if ('node', node) not in fit.suspects]
        wanted: Counter[Part] = Counter()
        if suspects:
            number = _jobs_needed(fit.noise * math.sqrt(1.5), self.d, -1,
                                  self._accusing_quantile(len(suspects)))
            # The test must hold without the jobs of one partner.
            number += math.ceil(number / max(len(good) - 1, 1))
            for part in suspects:
                wanted[part] = max(FEWEST, number - len(self._fresh_jobs(fit, part)))
                if part[0] == 'link':
                    wanted.update({('node', node): wanted[part] for node in part[1:]})
            wanted[OTHERS] = max(wanted.values())
        number = _jobs_needed(fit.noise, self.d, POOLED - 1, NOT_SLOWER)
        for part in good:
            if not self._is_not_slower(fit, part):
                own = int(self._jobs_of_part(fit, part).sum())
                wanted[part] = max(1, wanted[part], number - own)
        return Counter({part: min(wanted[part], LONGEST) for part in wanted})

    def _next_round(self, left: Counter[Part], suspects: frozenset[Part]) -> list[Pair]:
        """A round of disjoint pairs, those that were measured least first.

        :param left: jobs that each part still needs; updated
        """
        free = [node for node in self.nodes if ('node', node) not in suspects]
        # Neighbours of a list would always meet the same others.
        self._random.shuffle(free)
        measured: list[Pair] = []
        for part in sorted(left, key=lambda one: -left[one]):
            if left[part] <= 0:
                continue
            busy = set(itertools.chain(*measured))
            good = [node for node in free if node not in busy]
            nodes = (part[1:] if part[0] in ('node', 'link') else
                     good[:8] if part == OTHERS else sorted(self._under[part[1]]))
            best = min((
                (a, b) for a in nodes if a not in busy
                for b in (part[2:] if part[0] == 'link' else good) if a != b
                and b not in busy and (not suspects or self._measures(
                    part, a, b, suspects))),
                key=self._times_measured, default=None)
            if best:
                measured.append(best)
                self._times.update(self._keys_of_pair(best))
                left.subtract([part] if part in suspects else [
                    *self._parts(*best), OTHERS])
        return measured

    def _measures(self, part: Part, a: str, b: str, suspects: frozenset[Part]) -> bool:
        """Whether a pair has a part, and no other suspect."""
        parts = self._parts(a, b)
        return part in (*parts, OTHERS) and suspects & parts <= {part}

    def _keys_of_pair(self, pair: Pair) -> list[tuple]:
        climbs = self._climbs(*pair)
        return [tuple(sorted(pair)), *((node, climbs) for node in pair)]

    def _times_measured(self, pair: Pair) -> list[int]:
        return [self._times[key] for key in self._keys_of_pair(pair)]

    # What the jobs prove ------------------------------------------------

    def _take_look(self) -> _Fit:
        """Test the suspects of the look before, and choose new ones."""
        fit = _explain_jobs(self._jobs, self._named.keys(), self.d)
        for part in self._since:
            t, limit = min(self._tests_of_suspect(fit, part),
                           key=lambda test: test[0] - test[1])
            if t > limit:
                self._named[part] = t, limit
        # A node remains a suspect until it is proven slow or not slower.
        kept = {part for part in self._since if part[0] == 'node'}
        if 2 * len(kept) > len(self.nodes):
            kept = set()
        fit = _explain_jobs(self._jobs, self._named.keys() | kept, self.d)
        if 4 * len(self._jobs) < len(self.nodes) * _jobs_needed(
                fit.noise, self.d, POOLED - 1, NOT_SLOWER):
            # Too early for suspects: all nodes are unclear.
            return fit._replace(suspects=frozenset(), why=[frozenset()] * len(fit.why))
        fit = fit._replace(suspects=frozenset(
            part for part in fit.suspects
            if part in self._named or not self._is_not_slower(fit, part)))
        self._since = {part: self._since.get(part, self.look)
                       for part in fit.suspects - self._named.keys()}
        return fit

    def _accusing_quantile(self, suspects: int) -> float:
        return NormalDist().inv_cdf(1 - ACCUSE / LOOKS / max(suspects, 1))

    def _fresh_jobs(self, fit: _Fit, suspect: Part, alone: bool = True
                    ) -> list[tuple[_Job, float]]:
        """Jobs since a part became a suspect: its own, or those without a suspect."""
        wanted = {suspect} if alone else set()
        return [(job, float(x)) for job, x in zip(self._jobs, fit.excess, strict=True)
                if job.look > self._since.get(suspect, self.look)
                and job.suspects == wanted]

    def _tests_of_suspect(self, fit: _Fit, part: Part) -> list[tuple[float, float]]:
        """t and its limit of all tests that must hold: without the jobs of each
        partner; of a link against other jobs of each of its nodes."""
        z = self._accusing_quantile(len(self._since))
        own, others = (self._fresh_jobs(fit, part, alone) for alone in (True, False))
        if part[0] == 'link':
            return [_welch_test(own, [one for one in others if node in one[0].pair], z,
                                self.d) for node in part[1:]]
        partners = {node for job, _ in own for node in job.pair} - {part[1]}
        return [_welch_test([one for one in own if node not in one[0].pair], others, z,
                            self.d) for node in partners or ['']]

    def _jobs_of_part(self, fit: _Fit, part: Part) -> np.ndarray:
        """Whether each job is one of a part without another suspect."""
        return np.array([part in job.parts and why <= {part}
                         for job, why in zip(self._jobs, fit.why, strict=True)])

    def _is_not_slower(self, fit: _Fit, part: Part) -> bool:
        x = fit.excess[self._jobs_of_part(fit, part)]
        links = [one for one in fit.suspects if one[0] == 'link' and part[1] in one]
        if part[0] != 'node' or part in self._named or not len(x) or len(links) > 1:
            return False
        others = sum(not why for why in fit.why) or 1
        if len(self.nodes) < MAJORITY:
            # Most pairs may be slow: the fastest pair is the level.
            pairs = np.array(['/'.join(sorted(job.pair)) for job in self._jobs])
            x = x - min(fit.excess[pairs == pair].mean() for pair in set(pairs))
        df = POOLED + len(x) - 1
        squares = POOLED * fit.noise ** 2 + float(((x - x.mean()) ** 2).sum())
        error = math.sqrt(squares / df * (1 / len(x) + 1 / others))
        return bool(x.mean() + student_t_quantile(df, NOT_SLOWER) * error < self.d)

    # The result ---------------------------------------------------------

    def current_result(self, unit: str = '') -> Located:
        """The result so far."""
        head = Located(unit, self.slowdown, len(self.nodes), len(self._jobs),
                       self.rounds)
        if not self._jobs:
            return dataclasses.replace(head, notes=['no pair was measured'])
        fit = _explain_jobs(self._jobs, self._named.keys(), self.d)
        good = [n for n in self.nodes if self._is_not_slower(fit, ('node', n))]
        links = {frozenset(job.pair) for job in self._jobs}
        least = 1 - math.exp(-self.d / 2 - PRICES['link'] * fit.noise)
        notes = [f'links: {len(links)} of {math.comb(len(self.nodes), 2)} were '
                 f'measured; a link that is less than {100 * least:.0f} % slower may '
                 'be missed']
        fast = fit.excess < -max(self.d, 2 * fit.noise)
        if fast.sum() > max(2, len(fast) / 10):
            good = []
            notes.append('unclear: several pairs are much faster than the level. Most '
                         'pairs may share a slow part, such as a switch')
        elif len(self.nodes) < MAJORITY and not self._named:
            good = []
            notes.append(f'unclear: {len(self.nodes)} nodes cannot show that none is '
                         'slow. Pairs are also alike if all nodes but one are slow')
        unclear = [node for node in self.nodes
                   if node not in good and ('node', node) not in self._named]
        unclear += [_label(part) for part in sorted(fit.suspects - self._named.keys())
                    if part[0] != 'node']
        if fit.noise > self.d / 2 and unclear:
            notes.append(f'pairs differ by {100 * fit.noise:.1f} %, too much to see a '
                         f'slowdown of {100 * self.slowdown:g} % in few jobs. Use more '
                         'repetitions per job, or search each kind of node by itself')
        return dataclasses.replace(
            head, noise=fit.noise, notes=notes, unclear=unclear, not_slower=good,
            levels={kind: self._metric(x) for kind, x in sorted(fit.levels.items())},
            named=[self._finding(fit, part) for part in self._named])

    def _metric(self, x: float) -> float:
        return math.exp(-x if self.better == 'higher' else x)

    def _finding(self, fit: _Fit, part: Part) -> Finding:
        jobs = list(itertools.compress(self._jobs, self._jobs_of_part(fit, part)))
        off = [job.x - fit.levels[job.climbs] for job in jobs if not math.isnan(job.x)]
        climbs = Counter(job.climbs for job in jobs or self._jobs).most_common(1)[0][0]
        failed = len(jobs) - len(off)
        verdict = 'fails' if 2 * failed > len(jobs) else 'slow'
        return Finding(
            part[0], ' - '.join(part[1:]), verdict,
            self._metric(float(np.median(off))) if off else None,
            self._metric(fit.levels[climbs]), len(jobs), failed, *self._named[part])


def _label(part: Part) -> str:
    return f'{part[0]}{" of" * (part[0] == "uplink")} {" - ".join(part[1:])}'


def _explain_jobs(jobs: Sequence[_Job], named: Collection[Part], d: float) -> _Fit:
    """The suspects that explain the jobs best, from several first levels."""
    x, climbs = np.array([job.x for job in jobs]), np.array([j.climbs for j in jobs])
    of_kind = {int(kind): climbs == kind for kind in set(climbs)}
    for here in of_kind.values():
        known = x[here & ~np.isnan(x)]
        middle = np.median(known) if len(known) else 0.0
        x[here] = np.clip(np.nan_to_num(x[here], nan=math.inf), middle - FARTHEST * d,
                          middle + FARTHEST * d)
    parts = sorted({part for job in jobs for part in job.parts})
    number = {part: at for at, part in enumerate(parts)}
    part, job = np.array([(number[part], at) for at, job in enumerate(jobs)
                          for part in job.parts]).T
    prices = np.array([PRICES[one[0]] for one in parts])
    forced = [number[one] for one in named]

    def covers(chosen: list[int]) -> np.ndarray:
        return np.bincount(job, np.isin(part, chosen), len(x))

    def score(excess: np.ndarray, noise: float, chosen: list[int]) -> np.ndarray:
        """Of each part, by the jobs that nothing chosen explains."""
        open_ = (covers(chosen) == 0)[job]
        jobs_of_part = np.maximum(np.bincount(part, open_, len(parts)), 0.01)
        total = np.bincount(part, open_ * (excess - d / 2)[job], len(parts))
        return total / (noise * np.sqrt(jobs_of_part)) - prices

    def explain(share: float) -> tuple[float, _Fit]:
        level = np.zeros(len(x))
        for here in of_kind.values():
            level[here] = np.quantile(x[here], share)
        noise, chosen = d / 2, forced
        for _ in range(10):
            before, chosen, excess = chosen, [*forced], x - level
            while (scores := score(excess, noise, chosen)).max() > 0:
                chosen.append(int(scores.argmax()))
            chosen = [one for one in chosen if one in forced or score(
                excess, noise, [other for other in chosen if other != one])[one] > 0]
            cover = covers(chosen)
            for here in of_kind.values():
                if (here & (cover == 0)).any():
                    level[here] = x[here & (cover == 0)].mean()
            excess = x - level
            rest = excess.copy()
            for one in chosen:
                alone = job[(part == one) & (cover[job] == 1)]
                rest[alone] -= excess[alone].mean() if len(alone) else 0.0
            size = len(chosen) + len(of_kind)
            squares = float((rest[cover < 2] ** 2).sum())
            variance = max(squares / max((cover < 2).sum() - size, 1),
                           (FINEST * d) ** 2)
            noise = math.sqrt(variance)
            if set(chosen) == set(before):
                break
        suspects = frozenset(parts[one] for one in chosen)
        raw = np.array([job.x for job in jobs])
        levels = {}
        for kind, here in of_kind.items():
            known = raw[here & (cover == 0) & ~np.isnan(raw)]
            levels[kind] = float(np.median(known) if len(known) else level[here][0])
        return len(x) * math.log(variance) + size * math.log(len(x)), _Fit(
            suspects, levels, noise, excess, [job.parts & suspects for job in jobs])

    return min(map(explain, STARTS), key=lambda one: one[0])[1]


def _jobs_needed(noise: float, d: float, df: int, z: float) -> int:
    """Jobs whose interval is below d, five times in six (two-stage samples; Stein,
    1945).

    :param df: degrees of freedom less the number of jobs
    :param z: normal quantile of the interval
    """
    return next((number for number in range(2, 100) if noise * (
        student_t_quantile(number + df, z) + 1) <= d * math.sqrt(number)), 100)


def _welch_test(own: Sequence[tuple[_Job, float]], others: Sequence[tuple[_Job, float]],
                z: float, d: float) -> tuple[float, float]:
    """Welch's t of two groups of jobs, and its limit at a normal quantile. Only pairs
    that climb as many switches are compared."""
    means = {climbs: np.mean([x for job, x in others if job.climbs == climbs])
             for climbs in {job.climbs for job, _ in others}}
    groups = [np.array([x - means[job.climbs] for job, x in group
                        if job.climbs in means]) for group in (own, others)]
    free = len(groups[0]) - 1, len(groups[1]) - len(means)
    if min(free) < FEWEST - 1:
        return 0.0, math.inf
    v = [max(float(((x - x.mean()) ** 2).sum()) / df, (FINEST * d) ** 2) / len(x)
         for x, df in zip(groups, free, strict=True)]
    df = sum(v) ** 2 / sum(one ** 2 / df for one, df in zip(v, free, strict=True))
    return (float(groups[0].mean()) / math.sqrt(sum(v)),
            float(student_t_quantile(df, z)))


def result_lines(located: Located) -> Iterator[str]:
    """The text for people: slow parts with their evidence, then the others."""
    slowdown = f'{100 * located.slowdown:g} %'
    yield (f'{located.nodes} nodes, {count_with_noun(located.jobs, "job")} in '
           f'{count_with_noun(located.rounds, "round")}, noise of a pair '
           f'{100 * located.noise:.1f} %; searched slowdown {slowdown}')
    for climbs, level in located.levels.items():
        where = (f' across {count_with_noun(climbs, "level")} of switches' if climbs
                 else ' inside a switch')
        yield (f'  a good pair{where * (len(located.levels) > 1)}: '
               f'{value_text(level, located.unit)}')
    if not located.named:
        yield f'No part was found that is {slowdown} slower than the others.'
    for part in located.named:
        texts = [] if part.ratio is None else [
            f'{change_text(part.ratio)}, '
            f'{value_text(part.level * part.ratio, located.unit)}, '
            f'level {value_text(part.level, located.unit)}']
        jobs = count_with_noun(part.jobs, 'job')
        texts += [f'{part.failed} of {jobs} failed' if part.failed else jobs,
                  f't {part.t:.1f}, limit {part.limit:.1f}']
        yield (f'{part.verdict.upper():8}{_label((part.kind, part.name))}: '
               + '; '.join(texts))
    for title, names in (('unclear', located.unclear),
                         (f'not {slowdown} slower', located.not_slower)):
        if names:
            yield f'{title}: {", ".join(names[:20])}' + (
                f' and {len(names) - 20} more: --json' if len(names) > 20 else '')
    yield from located.notes
