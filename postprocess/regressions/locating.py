"""Search for slow nodes, links and switches by measurements on pairs of nodes.

`Search` selects the pairs to measure next and takes their values. Others run
the jobs (cli/nightly/locate.py, bench/locate.py).

**Model.** x is the logarithm of the metric of a job on two nodes, signed so
that more is slower. A pair has parts: its two nodes, the link between them
and, if the tree of switches is known, the switches on the way and their
uplinks. A pair is as slow as its slowest part. x is the level of pairs without
a slow part, one level per number of switches that a pair climbs, plus the
slowdown of the slowest part, plus noise. The search looks for slowdowns of at
least d = -log(1 - slowdown). An x that is more than 3 d from the median counts
as 3 d, and so does a failed job, so that one odd job decides nothing.

**Suspects** are the parts that explain the jobs best; they prove nothing. They
are chosen greedily (forward selection; Efroymson, 1960): the part with the
largest (mean - level - d / 2) sqrt(jobs) / noise, as long as it exceeds the
price of its kind. The choice is made from three first levels, because most
pairs may be slow, and the one with the smallest N log(residual variance) +
(parts + levels) log(N) counts (Schwarz, 1978). There are no suspects before
each node has half of the jobs that prove it not slower. A node remains a
suspect until one of the next two tests decides.

**A suspect is slow** if its mean exceeds that of m0 jobs without a suspect by

    t(df, 1 - 0.01 / (LOOKS * suspects)) * sqrt(v / m + v0 / m0),

Student's t for m and m0 jobs of unequal variances v and v0, with the degrees of
freedom of Welch (1947), and Bonferroni's correction (Dunn, 1961) for the
suspects of a look and the looks of a search. Only jobs that ran after the part
became a suspect count: the earlier ones were selected for being slow, so that
their mean is too large. The comparison is within kinds of pairs. The test must
also hold without the jobs of any one partner, so that a slow link accuses no
node, and a link must be slower than other jobs of each of its nodes
(intersection-union test; Berger, 1982).

**A node is not slower** if its mean over all n jobs without another suspect is
below d by t(df, 0.995) s sqrt(1 / n + 1 / n0), with n0 jobs without a suspect.
Nodes differ in their noise, so s^2 is the variance of the node; with few jobs,
the pooled variance counts as four more degrees of freedom (Smyth, 2004).

**All other nodes are unclear.** Of fewer than five nodes, none is reported as
not slower if none is slow, unless the metric of good pairs is known: pairs are
also alike if all nodes but one are slow. If many jobs are much faster than the
level, all nodes are unclear.

**Rounds.** First rounds of disjoint pairs: at least two, and twelve jobs. Then
suspects are measured with nodes that are none, at the same time as pairs
without a suspect, and nodes that are unclear with each other, in as many rounds
as the noise so far makes necessary (two-stage samples; Stein, 1945).
"""
from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

import numpy as np

from config.console import count_with_noun
from config.records.units import change_text, number_text, value_text

from ..names import natural_sort_key
from .detect import student_t_quantile

#: Chance that a search accuses a good part, and that a look takes a slow node
#: for one that is not.
ACCUSE, MISS = 0.01, 0.005
#: Looks at suspects in a search: groups of rounds after the first rounds.
LOOKS = 4
#: Fewest jobs before the first look, and most jobs of a part between two looks.
BEGIN, LONGEST = 12, 10
#: Fewest jobs that a test compares.
FEWEST = 4
#: Fewest nodes that are reported as not slower where none is slow.
MAJORITY = 5
#: Degrees of freedom that the pooled variance adds to that of a node.
POOLED = 4
#: Smallest noise, and largest distance from the median, in units of d.
FINEST, FARTHEST = 0.05, 3.0
#: Shares of the pairs that are faster than a first level.
STARTS = (0.05, 0.2, 0.5)
#: Price of a suspect, in units of the noise of a mean.
PRICES = {'node': 0.0, 'switch': 1.0, 'uplink': 1.0, 'link': 2.5}

#: Stands for pairs without a suspect.
OTHERS = ('others',)

Pair = tuple[str, str]
#: Kind and names: ('node', 'n1'), ('link', 'n1', 'n2'), ('switch', 'leaf1').
Part = tuple[str, ...]


def round_robin_pairs(nodes: Sequence[str]) -> list[list[Pair]]:
    """All pairs in rounds in which no node is twice, by the circle method.

    n - 1 rounds of n / 2 pairs; with an odd n there are n, and in each of
    them another node rests. In the first round neighbours meet.

    >>> round_robin_pairs(['a', 'b', 'c', 'd'])[0]
    [('a', 'b'), ('c', 'd')]
    """
    order: list[str | None] = [*nodes]
    if len(order) % 2:
        order.append(None)
    last = len(order) - 1
    seats: list[str | None] = [None] * len(order)
    for place in range(len(order) // 2):
        seats[place] = order[2 * place]
        seats[last - place] = order[2 * place + 1]
    rounds = []
    for turn in range(last):
        pairs = [(seats[turn], seats[last])]
        pairs += [(seats[(turn + i) % last], seats[(turn - i) % last])
                  for i in range(1, len(order) // 2)]
        rounds.append([(a, b) for a, b in pairs
                      if a is not None and b is not None])
    return rounds


@dataclass(frozen=True)
class Finding:
    """The verdict on a part, and its evidence."""
    #: node, link, switch or uplink.
    kind: str
    name: str
    #: slow, fails or unclear.
    verdict: str
    #: Metric of the part's jobs without another suspect (geometric mean), and
    #: that of the jobs without a suspect. None: there are none.
    value: float | None = None
    level: float | None = None
    #: The one over the other.
    ratio: float | None = None
    #: Jobs of the part, how many of them failed, and jobs compared with.
    jobs: int = 0
    failed: int = 0
    others: int = 0
    #: Student's t, and its limit. None: not tested.
    t: float | None = None
    limit: float | None = None
    #: Why it is unclear.
    why: str = ''

    @property
    def label(self) -> str:
        return f'{"uplink of" if self.kind == "uplink" else self.kind} ' \
            f'{self.name}'


@dataclass(frozen=True)
class Located:
    """The verdict of a search."""
    better: str
    unit: str
    slowdown: float
    nodes: int
    #: Jobs that were run, and rounds, each of them a time slot.
    jobs: int
    rounds: int
    #: Relative noise of a pair; None: nothing was judged.
    noise: float | None
    #: Switches that a pair climbs (-1: not known) -> level of the metric.
    levels: dict[int, float]
    #: Named: slow, or failing.
    named: list[Finding] = field(default_factory=list)
    unclear: list[Finding] = field(default_factory=list)
    not_slower: list[str] = field(default_factory=list)
    #: What else is to be said.
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The exit code: 1 where something is named."""
        return 1 if self.named else 0

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1,
                          allow_nan=False) + '\n'


class _Job(NamedTuple):
    pair: Pair
    #: NaN: it failed.
    x: float
    #: Switches that the pair climbs.
    climbs: int
    parts: frozenset[Part]
    #: The look before it, and its suspects by then.
    look: int
    why: frozenset[Part]


class _Fit(NamedTuple):
    """The explanation of all jobs so far."""
    suspects: frozenset[Part]
    levels: dict[int, float]
    #: Standard deviation of a job.
    noise: float
    #: Of each job, x less its level.
    excess: np.ndarray
    #: Of each job, its suspects.
    why: list[frozenset[Part]]


class _Test(NamedTuple):
    """A test of a suspect."""
    t: float
    limit: float
    #: Jobs of the suspect, and those that it was compared with.
    jobs: int
    others: int


class Search:
    """A search for slow nodes and links."""

    def __init__(self, nodes: Iterable[str], better: str, *,
                 above: Mapping[str, Sequence[str]] | None = None,
                 slowdown: float = 0.1, maximum: int = 30,
                 every: bool = False) -> None:
        """
        :param better: higher or lower, of the metric
        :param above: node -> the switches above it, the nearest first
        :param slowdown: what is looked for: a fraction, 0.1 is 10 % less of
            what is better higher, 11 % more of what is better lower
        :param maximum: rounds after the first ones
        :param every: the whole round robin first, so that each link is seen
        :raises ValueError: fewer than two nodes, or no such fraction
        """
        self.above = {node: tuple((above or {}).get(node, ()))
                      for node in set(nodes)}
        self.nodes = sorted(self.above, key=lambda node: (
            [natural_sort_key(name) for name in reversed(self.above[node])],
            natural_sort_key(node)))
        if len(self.nodes) < 2:
            raise ValueError('pairs of nodes need at least two nodes; '
                             f'{len(self.nodes)} given')
        if not 0.005 <= slowdown < 1:
            raise ValueError(f'the slowdown is {slowdown:g}; it must be from '
                             '0.005 (half a percent) to below 1')
        self.better, self.slowdown, self.maximum = better, slowdown, maximum
        self.every = every
        self.d = -math.log(1 - slowdown)
        self.rounds = self.look = 0
        self._rank = {node: at for at, node in enumerate(self.nodes)}
        self._under: dict[str, set[str]] = defaultdict(set)
        for node, switches in self.above.items():
            for switch in switches:
                self._under[switch].add(node)
        #: Switches that a pair climbs -> switches and uplinks of all such pairs.
        self._shared_parts: dict[int, set[Part]] = {}
        # Two nodes of each leaf switch stand for all.
        of_leaf: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for node in self.nodes:
            of_leaf[self.above[node]].append(node)
        for a, b in itertools.combinations(
                [node for some in of_leaf.values() for node in some[:2]], 2):
            parts = {part for part in self._all_parts_of_pair(a, b)
                     if part[0] in ('switch', 'uplink')}
            kind = self.lowest_common_switch_level(a, b)
            self._shared_parts[kind] = self._shared_parts.get(kind, parts) & parts
        self._jobs: list[_Job] = []
        #: How often each pair, each node, and each node with pairs that climb
        #: so far, was planned.
        self._times: Counter[Any] = Counter()
        #: Part -> the look after which it was a suspect.
        self._since: dict[Part, int] = {}
        #: Parts that are proven slow, with the test.
        self._named: dict[Part, _Test] = {}

    # Pairs and their parts ----------------------------------------------

    def _ordered_pair(self, a: str, b: str) -> Pair:
        return (a, b) if self._rank[a] < self._rank[b] else (b, a)

    def lowest_common_switch_level(self, a: str, b: str) -> int:
        """Switches from a node up to the first that both are under, less
        one: 0 inside a leaf switch; -1 where that is not known."""
        shared = [max(self.above[a].index(s), self.above[b].index(s))
                  for s in self.above[a] if s in self.above[b]]
        return min(shared, default=-1)

    def hardware_parts_of_pair(self, a: str, b: str) -> Iterator[Part]:
        """The parts that can slow a pair. A switch above all nodes or above
        two, and an uplink of all nodes but one, say no more than others do. Nor
        does a switch or uplink of a pair if all pairs that climb as many
        switches have it: both of two leaf switches, between them."""
        shared = self._shared_parts.get(self.lowest_common_switch_level(a, b), set())
        return (part for part in self._all_parts_of_pair(a, b) if part not in shared)

    def _all_parts_of_pair(self, a: str, b: str) -> Iterator[Part]:
        yield 'node', a
        yield 'node', b
        yield ('link', *self._ordered_pair(a, b))
        total = len(self.nodes)
        shared = [s for s in self.above[a] if s in self.above[b]][:1]
        for switch in shared:
            if 3 <= len(self._under[switch]) < total:
                yield 'switch', switch
        for node, other in ((a, b), (b, a)):
            for switch in self.above[node]:
                if switch in self.above[other]:
                    break
                size = len(self._under[switch])
                if 3 <= size < total:
                    yield 'switch', switch
                if 3 <= size <= total - 2:
                    yield 'uplink', switch

    def add_measurement(self, pair: Pair, value: float | None) -> None:
        """Takes the metric of a job; None: it failed, or had none."""
        sign = -1 if self.better == 'higher' else 1
        good = value is not None and math.isfinite(value) and value > 0
        self._jobs.append(_Job(
            self._ordered_pair(*pair),
            sign * math.log(value) if good and value else math.nan,
            self.lowest_common_switch_level(*pair),
            parts := frozenset(self.hardware_parts_of_pair(*pair)), self.look,
            parts & (self._since.keys() | self._named.keys())))

    # Which pairs next ---------------------------------------------------

    def next_rounds(self) -> list[list[Pair]]:
        """Rounds to measure next, in order; the pairs of a round at the same
        time. Empty: it is over."""
        if not self.rounds:
            rounds = self._first_rounds()
            self._last = len(rounds) + self.maximum
        elif len(self.nodes) == 2 or not self._jobs:
            return []
        else:
            rounds = self._follow_up_rounds(self._take_look())
            rounds = rounds[:max(self._last - self.rounds, 0)]
        self.look += 1
        self.rounds += len(rounds)
        return rounds

    def rounds_left(self) -> int:
        """Rounds after those of `next_rounds`, at most."""
        return 0 if len(self.nodes) == 2 else max(self._last - self.rounds, 0)

    def _first_rounds(self) -> list[list[Pair]]:
        """Rounds of the round robin: neighbours first, then nodes that are far
        from each other."""
        turns = round_robin_pairs(self.nodes)
        number = max(2, math.ceil(BEGIN / len(turns[0])))
        if self.every:
            number = max(number, len(turns))
        step = max(round(len(turns) / 4), 1)
        while math.gcd(step, len(turns)) > 1:
            step += 1
        return [turns[at * step % len(turns)] for at in range(number)]

    def _follow_up_rounds(self, fit: _Fit) -> list[list[Pair]]:
        """Rounds for the suspects, and for the nodes that are unclear."""
        suspects = sorted(fit.suspects - self._named.keys())
        good = [n for n in self.nodes if ('node', n) not in fit.suspects]
        wanted: Counter[Part] = Counter()
        if suspects:
            number = _jobs_needed(fit.noise * math.sqrt(1.5), self.d, -1,
                                  ACCUSE / LOOKS / len(suspects))
            # Each test must hold without one of the partners.
            number += math.ceil(number / max(len(good) - 1, 1))
            for part in suspects:
                wanted[part] = max(FEWEST, number - sum(
                    job.look > self._since[part] and job.why == {part}
                    for job in self._jobs))
                if part[0] == 'link':
                    wanted.update({('node', n): wanted[part] for n in part[1:]})
            wanted[OTHERS] = max(wanted.values())
        number = _jobs_needed(fit.noise, self.d, POOLED - 1, MISS)
        for node in good:
            if not self._is_not_slower(fit, node):
                wanted['node', node] = max(1, wanted['node', node], number - len(
                    _jobs_of_part(self._jobs, fit, ('node', node))))
        wanted = Counter({part: min(wanted[part], LONGEST) for part in wanted})
        rounds: list[list[Pair]] = []
        done: Counter[Part] = Counter()
        while self.look <= LOOKS and (
                pairs := self._round_of_pairs(fit, wanted, done, good)):
            rounds.append(pairs)
        return rounds

    def _round_of_pairs(self, fit: _Fit, wanted: Counter[Part], done: Counter[Part],
                        good: Sequence[str]) -> list[Pair]:
        """A round of disjoint pairs; empty: no part wants any.

        :param done: jobs of each part since the last look
        """
        pairs: list[Pair] = []
        free = set(self.nodes)

        def add_least_measured(part: Part) -> None:
            best = min((pair for pair in self._pairs_of_part(
                            part, [n for n in good if n in free])
                        if free.issuperset(pair) and fit.suspects.intersection(
                            self.hardware_parts_of_pair(*pair)) <= {part}),
                       default=None, key=lambda pair: (
                           *self._times_measured(pair), -sum(
                               wanted['node', n] - done['node', n] for n in pair)))
            if best:
                pairs.append(best)
                free.difference_update(best)
                done.update([part] if part in fit.suspects else [
                    ('node', best[0]), ('node', best[1]), OTHERS])
                self._times.update(self._keys_of_pair(best))

        open_ = [part for part in wanted if done[part] < wanted[part]]
        # Few nodes: pairs with a suspect and others take turns.
        open_.sort(key=lambda part: (part == OTHERS) == (
            done[OTHERS] >= max((done[one] for one in fit.suspects), default=0)))
        for part in open_:
            if part[0] != 'node' or part[1] in free:
                add_least_measured(part)
        return pairs

    def _keys_of_pair(self, pair: Pair) -> list[Any]:
        a, b = pair
        climbs = self.lowest_common_switch_level(a, b)
        return [self._ordered_pair(a, b), (a, climbs), (b, climbs)]

    def _times_measured(self, pair: Pair) -> tuple[int, int]:
        """How often the pair was measured, and its nodes with such pairs."""
        one, *nodes = self._keys_of_pair(pair)
        return self._times[one], sum(self._times[node] for node in nodes)

    def _pairs_of_part(self, part: Part, good: Sequence[str]) -> Iterator[Pair]:
        """Pairs that measure a part, or no suspect (`OTHERS`)."""
        if part == OTHERS:
            few = sorted(good, key=lambda n: sum(self._times[n, climbs]
                                                 for climbs in (-1, 0, 1)))[:8]
            yield from ((a, b) for a in few for b in good if a != b)
        elif part[0] == 'node':
            yield from ((part[1], n) for n in good if n != part[1])
        elif part[0] == 'link':
            yield part[1], part[2]
        else:
            yield from self._pairs_through_switch(part)

    def _pairs_through_switch(self, part: Part) -> Iterator[Pair]:
        """Pairs through a switch, or its uplink."""
        inside = [n for n in self.nodes if n in self._under[part[1]]]
        outside = [n for n in self.nodes if n not in self._under[part[1]]]
        if part[0] == 'switch':
            yield from (pair for turn in round_robin_pairs(inside)[:3]
                        for pair in turn)
        for shift in range(min(3, len(outside))):
            yield from zip(inside, outside[shift:] + outside[:shift],
                           strict=False)

    # What the jobs prove ------------------------------------------------

    def _take_look(self) -> _Fit:
        """Explains the jobs, and tests the suspects of the look before."""
        fit = _explain_jobs(self._jobs, self._named.keys(), self.d)
        z = _normal_quantile(ACCUSE / LOOKS / max(len(self._since), 1))
        for part in self._since:
            worst = min(self._tests_of_suspect(fit, part, z),
                        key=lambda one: one.t - one.limit)
            if worst.t > worst.limit:
                self._named[part] = worst
        kept = {part for part in self._since if part[0] == 'node'}
        if 2 * len(kept) > len(self.nodes):
            kept = set()
        fit = _explain_jobs(self._jobs, self._named.keys() | kept, self.d)
        if 4 * len(self._jobs) < len(self.nodes) * _jobs_needed(
                fit.noise, self.d, POOLED - 1, MISS):
            # Too early for suspects: all nodes are unclear.
            return fit._replace(suspects=frozenset(), why=[frozenset()] * len(fit.why))
        fit = fit._replace(suspects=frozenset(
            part for part in fit.suspects if part in self._named
            or part[0] != 'node' or not self._is_not_slower(fit, part[1])))
        self._since = {part: self._since.get(part, self.look)
                       for part in fit.suspects - self._named.keys()}
        return fit

    def _tests_of_suspect(self, fit: _Fit, part: Part, z: float) -> list[_Test]:
        """Tests, all of which must hold: against pairs without a suspect,
        without the jobs of any one partner; those of a link against other
        jobs of each of its nodes.

        :param z: normal quantile of the chance of a false alarm
        """
        fresh = [(job, float(x)) for job, x in zip(self._jobs, fit.excess,
                                                   strict=True)
                 if job.look > self._since[part]]
        own = [(job, x) for job, x in fresh if job.why == {part}]
        others = [(job, x) for job, x in fresh if not job.why]
        if part[0] == 'link':
            return [_compare_jobs(own, [(job, x) for job, x in others
                                        if node in job.pair], z, self.d)
                    for node in part[1:]]
        partners = {n for job, _ in own for n in job.pair} - {part[1]}
        return [_compare_jobs([(job, x) for job, x in own if n not in job.pair],
                              others, z, self.d)
                for n in partners] or [_compare_jobs([], others, z, self.d)]

    def _is_not_slower(self, fit: _Fit, node: str) -> bool:
        part = 'node', node
        x = fit.excess[_jobs_of_part(self._jobs, fit, part)]
        links = [one for one in fit.suspects if one[0] == 'link' and node in one]
        if part in self._named or not len(x) or len(links) > 1:
            return False
        df = POOLED + len(x) - 1
        others = sum(not why for why in fit.why) or 1
        if len(self.nodes) < MAJORITY:
            # Most pairs may be slow: the fastest pair is the level.
            of_pair = defaultdict(list)
            for job, excess in zip(self._jobs, fit.excess, strict=True):
                of_pair[job.pair].append(float(excess))
            x = x - min(map(fmean, of_pair.values()))
        squares = POOLED * fit.noise ** 2 + float(((x - x.mean()) ** 2).sum())
        return bool(x.mean() + student_t_quantile(df, _normal_quantile(MISS))
                    * math.sqrt(squares / df * (1 / len(x) + 1 / others))
                    < self.d)

    # The verdict --------------------------------------------------------

    def current_result(self, unit: str = '', expected: float | None = None
                       ) -> Located:
        """The result so far.

        :param expected: the metric of a good pair as it was before, if that
            is known; where all are slower there is nothing to locate
        """
        head: dict[str, Any] = {
            'better': self.better, 'unit': unit, 'slowdown': self.slowdown,
            'nodes': len(self.nodes), 'jobs': len(self._jobs),
            'rounds': self.rounds}
        if not self._jobs:
            return Located(**head, noise=None, levels={},
                           notes=['no pair was measured'])
        fit = _explain_jobs(self._jobs, self._named.keys(), self.d)
        levels = {kind: self._metric_from_logarithm(level)
                  for kind, level in sorted(fit.levels.items())}
        ratio = self._ratio_to_expected(fit, expected)
        not_slower = [n for n in self.nodes if self._is_not_slower(fit, n)]
        few = ''
        if any(self._count_fast_jobs(fit, kind) for kind in levels):
            not_slower = []
            few = ('several pairs are much faster than the level: most pairs may '
                   'share a slow part, such as a switch')
        elif len(self.nodes) < MAJORITY and not self._named and (
                ratio is None or ratio > 1 + self.slowdown / 2):
            not_slower = []
            few = len(self.nodes) > 2 and (
                f'{len(self.nodes)} nodes cannot show that none is slow: pairs '
                'are also alike if all nodes, or all but one, are slow') or ''
        unclear: list[Part] = [('node', n) for n in self.nodes if n not in not_slower]
        unclear += sorted(part for part in fit.suspects if part[0] != 'node')
        notes = []
        if ratio is not None and expected is not None and ratio > 1 + self.slowdown / 2:
            kind = Counter(job.climbs for job in self._jobs).most_common(1)[0][0]
            notes.append(
                f'all pairs are slow: {number_text(levels[kind])}, and '
                f'{number_text(expected)} before; '
                'check what all nodes share (software, settings, the fabric)')
        if fit.noise > self.d / 2 and len(unclear) > len(self._named):
            notes.append(f'pairs differ by {100 * fit.noise:.1f} %, too much to see '
                         f'a slowdown of {100 * self.slowdown:g} % in few jobs; use '
                         'more repetitions per job, or search each kind of node by '
                         'itself')
        links = len({job.pair for job in self._jobs})
        total = len(self.nodes) * (len(self.nodes) - 1) // 2
        least = 1 - math.exp(-self.d / 2 - PRICES['link'] * fit.noise)
        notes.append(f'links: {links} of {total} were measured; a link that is less '
                     f'than {100 * least:.0f} % slower may be missed')
        return Located(
            **head, noise=fit.noise, levels=levels, notes=notes,
            not_slower=not_slower,
            named=[self._finding_of_part(fit, part) for part in self._named],
            unclear=[self._finding_of_part(
                fit, part, few or self._reason_for_unclear_part(fit, part))
                for part in unclear if part not in self._named])

    def _metric_from_logarithm(self, x: float) -> float:
        return math.exp(-x if self.better == 'higher' else x)

    def _ratio_to_expected(self, fit: _Fit, expected: float | None) -> float | None:
        """How many times slower than expected the good pairs are."""
        if not expected:
            return None
        kind = Counter(job.climbs for job in self._jobs).most_common(1)[0][0]
        level = self._metric_from_logarithm(fit.levels[kind])
        return expected / level if self.better == 'higher' else level / expected

    def _count_fast_jobs(self, fit: _Fit, kind: int) -> int:
        """Jobs that are faster than noise allows; 0: fewer than one in ten."""
        jobs = [job.x - fit.levels[kind] for job in self._jobs if job.climbs == kind]
        fast = sum(x < -max(self.d, 2 * fit.noise) for x in jobs)
        return fast if fast > max(2, len(jobs) / 10) else 0

    def _finding_of_part(self, fit: _Fit, part: Part, why: str = '') -> Finding:
        """The metrics behind what is said of a part."""
        jobs = [self._jobs[at] for at in _jobs_of_part(self._jobs, fit, part)]
        failed = sum(math.isnan(job.x) for job in jobs)
        off = [job.x - fit.levels[job.climbs] for job in jobs
               if not math.isnan(job.x)]
        value = level = ratio = None
        if off:
            kind = Counter(job.climbs for job in jobs).most_common(1)[0][0]
            level = self._metric_from_logarithm(fit.levels[kind])
            ratio = self._metric_from_logarithm(float(np.median(off)))
            value = level * ratio
        test = self._named.get(part)
        return Finding(
            part[0], ' - '.join(part[1:]), 'unclear' if why else
            'fails' if 2 * failed > len(jobs) else 'slow',
            value, level, ratio, len(jobs), failed,
            sum(not one for one in fit.why), test and test.t,
            test and test.limit, why)

    def _reason_for_unclear_part(self, fit: _Fit, part: Part) -> str:
        if len(self.nodes) == 2:
            return 'two nodes make only one pair; it cannot be compared'
        own = _jobs_of_part(self._jobs, fit, part)
        if not own:
            names = sorted({' '.join(one) for job, why in zip(
                self._jobs, fit.why, strict=True) if part in job.parts for one in why})
            return (f'{", ".join(names)} may explain all its slow pairs, and '
                    'no pair avoids this')
        return (f'{count_with_noun(len(own), "job")} cannot decide with a noise of '
                f'{100 * fit.noise:.1f} %')


def _explain_jobs(jobs: Sequence[_Job], named: Collection[Part], d: float) -> _Fit:
    """The suspects that explain the jobs best, from several first levels."""
    x, climbs = np.array([job.x for job in jobs]), np.array([j.climbs for j in jobs])
    for kind in set(climbs):
        known = x[(climbs == kind) & ~np.isnan(x)]
        middle = float(np.median(known)) if len(known) else 0.0
        far = FARTHEST * d
        x[climbs == kind] = np.clip(np.nan_to_num(
            x[climbs == kind], nan=middle + far), middle - far, middle + far)
    parts = sorted({part for job in jobs for part in job.parts})
    number = {part: at for at, part in enumerate(parts)}
    part, job = np.array([(number[part], at) for at, job in enumerate(jobs)
                          for part in job.parts]).T
    prices = np.array([PRICES[one[0]] for one in parts])
    forced = {number[one] for one in named}

    def covers(chosen: set[int]) -> np.ndarray:
        return np.bincount(job, np.isin(part, list(chosen)), len(x))

    def scores(excess: np.ndarray, noise: float, chosen: set[int]) -> np.ndarray:
        """Of each part, by the jobs that nothing chosen explains."""
        open_ = (covers(chosen) == 0)[job]
        jobs_of_part = np.maximum(np.bincount(part, open_, len(parts)), 0.01)
        total = np.bincount(part, open_ * (excess - d / 2)[job], len(parts))
        return total / (noise * np.sqrt(jobs_of_part)) - prices

    def explain(share: float) -> tuple[float, _Fit]:
        level = {kind: np.quantile(x[climbs == kind], share) for kind in set(climbs)}
        noise, chosen, before = d / 2, forced, None
        for _ in range(10):
            excess = x - np.array([level[kind] for kind in climbs])
            before, chosen = chosen, set(forced)
            while (score := scores(excess, noise, chosen)).max() > 0:
                chosen.add(int(score.argmax()))
            chosen = {one for one in chosen if one in forced
                      or scores(excess, noise, chosen - {one})[one] > 0}
            free = covers(chosen) == 0
            for kind in level:
                if (free & (climbs == kind)).any():
                    level[kind] = x[free & (climbs == kind)].mean()
            excess = x - np.array([level[kind] for kind in climbs])
            rest = excess.copy()
            for one in chosen:
                alone = job[(part == one) & (covers(chosen)[job] == 1)]
                rest[alone] -= excess[alone].mean() if len(alone) else 0
            rest = rest[covers(chosen) < 2]
            size, count = len(x), len(chosen) + len(level)
            variance = max(float((rest ** 2).sum()) / max(len(rest) - count, 1),
                           (FINEST * d) ** 2)
            noise = math.sqrt(variance)
            if chosen == before:
                break
        suspects = frozenset(parts[one] for one in chosen)
        raw = np.array([job.x for job in jobs])
        for kind in level:
            here = raw[(covers(chosen) == 0) & (climbs == kind) & ~np.isnan(raw)]
            level[kind] = np.median(here) if len(here) else level[kind]
        return size * math.log(variance) + count * math.log(size), _Fit(
            suspects, {int(kind): float(one) for kind, one in level.items()}, noise,
            excess, [one.parts & suspects for one in jobs])

    return min(map(explain, STARTS), key=lambda one: one[0])[1]


def _jobs_of_part(jobs: Sequence[_Job], fit: _Fit, part: Part) -> list[int]:
    """The jobs of a part without another suspect."""
    return [at for at, (job, why) in enumerate(zip(jobs, fit.why, strict=True))
            if part in job.parts and why <= {part}]


def _jobs_needed(noise: float, d: float, df: int, chance: float) -> int:
    """Jobs for an interval below d, five times in six.

    :param df: degrees of freedom less the number of jobs
    """
    z = _normal_quantile(chance)
    return next((n for n in range(2, 100) if noise * (
        student_t_quantile(n + df, z) + 1) <= d * math.sqrt(n)), 100)


def _compare_jobs(own: Sequence[tuple[_Job, float]],
                  others: Sequence[tuple[_Job, float]], z: float, d: float) -> _Test:
    """Welch's t of two groups of jobs, within kinds of pairs."""
    means = {kind: float(np.mean([x for job, x in others if job.climbs == kind]))
             for kind in {job.climbs for job, _ in others}}
    a = [x - means[job.climbs] for job, x in own if job.climbs in means]
    b = [x - means[job.climbs] for job, x in others]
    df = len(a) - 1, len(b) - len(means)
    if len(a) < FEWEST or df[1] < FEWEST - 1:
        return _Test(0.0, math.inf, len(a), len(b))
    v = [max(float(np.sum((np.array(some) - np.mean(some)) ** 2)) / free,
             (FINEST * d) ** 2) / len(some)
         for some, free in zip((a, b), df, strict=True)]
    both = sum(v) ** 2 / sum(one ** 2 / free for one, free in zip(v, df, strict=True))
    return _Test(float(np.mean(a)) / math.sqrt(sum(v)),
                 float(student_t_quantile(both, z)), len(a), len(b))


def _normal_quantile(chance: float) -> float:
    return NormalDist().inv_cdf(1 - chance)


# In words ------------------------------------------------------------------

#: Lines of a kind; the rest is counted.
MAXIMUM = 20


def result_lines(located: Located) -> Iterator[str]:
    """The text for people: slow parts, unclear parts, and the evidence."""
    unit = located.unit
    slowdown = f'{100 * located.slowdown:g} %'
    noise = ('' if located.noise is None
             else f', noise of a pair {100 * located.noise:.1f} %')
    yield (f'{located.nodes} nodes, {located.jobs} jobs in {located.rounds} '
           f'rounds{noise}; searched slowdown {slowdown}')
    for kind, level in located.levels.items():
        where = {-1: '', 0: ' inside a switch'}.get(
            kind, f' across {count_with_noun(kind, "level")} of switches')
        yield f'  a good pair{where}: {value_text(level, unit)}'
    if not located.named:
        yield f'No part was found that is {slowdown} slower than the others.'
    for part in located.named:
        yield f'{part.verdict.upper():8}{part.label}: {_evidence_text(part, unit)}'
    for part in located.unclear[:MAXIMUM]:
        yield (f'unclear {part.label}: {part.why}'
               + (f' ({_evidence_text(part, unit)})' if part.jobs else ''))
    if len(located.unclear) > MAXIMUM:
        yield f'  and {len(located.unclear) - MAXIMUM} more: --json'
    if located.not_slower:
        names = located.not_slower
        yield (f'not {slowdown} slower: {count_with_noun(len(names), "node")}: '
               + ', '.join(names[:MAXIMUM]) + ', ...' * (len(names) > MAXIMUM))
    yield from located.notes


def _evidence_text(part: Finding, unit: str) -> str:
    texts = []
    if (part.ratio is not None and part.value is not None
            and part.level is not None):
        texts.append(f'{change_text(part.ratio)}, '
                     f'{value_text(part.value, unit)}, '
                     f'level {value_text(part.level, unit)}')
    if part.failed:
        texts.append(f'{part.failed} of {count_with_noun(part.jobs, "job")} failed')
    texts.append(f'{count_with_noun(part.jobs, "job")}, compared with {part.others}')
    if part.t is not None:
        texts.append(f't {part.t:.1f}, limit {part.limit:.1f}')
    return '; '.join(texts)
