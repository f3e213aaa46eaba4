"""Search for slow nodes and links by measurements on pairs of nodes.

`Search` selects the pairs to measure next and takes their values. Others run
them (cli/nightly/locate.py, bench/locate.py).

**Evidence of a pair.** x is the logarithm of the metric of a job on two nodes,
signed so that more is slower. A pair has parts: its two nodes, the link
between them, and, where the tree of switches is known, each switch on the way
and its uplink. It is slow if any of its parts is: group testing (Dorfman,
1943), on paths Boolean network tomography (Duffield, 2006). The x of a good
pair is N(level, sigma^2), of a slow one N(level + d, sigma^2), with
d = -log(1 - slowdown). Its evidence is the logarithm of the likelihood ratio,

    d * (x - level - d / 2) / sigma^2,

as in the sequential probability ratio test (Wald, 1945), cut at +-4 (the
robust form of that test: Huber, 1965): however odd one job is, it alone
neither names a node nor outweighs several others. A job that failed, or had
no metric, counts as +4.

**Level and noise** are those of the pairs themselves, a level for each number
of switches that a pair climbs. At first the level is the middle of the lowest
window that holds a share of the pairs and is narrow (the shorth, as in
Rousseeuw's least median of squares, 1984): a part can only slow a pair, so
that the level is at the fast end even where most pairs are slow. From then on
it is the median of the pairs that nothing explains, and sigma their MAD, with
the factors of Croux and Rousseeuw (1992) for few of them, together with what
pairs of one explanation differ by. Sigma is at least d / 5. Of three shares,
20, 35 and 60 %, the one counts that ends with the largest likelihood of all
pairs less what its parts and levels cost (Schwarz, 1978).

**The explanation** is the set of parts with the largest sum of the evidence
of its pairs, less the logarithm of the prior odds for each part: log(n) for
one of n nodes, 1 more for a switch, 2 more for a link. It is built greedily
(the smallest consistent failure set of Duffield; greedy set cover). The
evidence for a part is what the best explanation with it has over the best one
without it (profile likelihood): two parts that explain the same pairs have
none. A part is

    named    at prior odds + log(1 / 0.01): one false name in 100 searches,
    good     at -log(1 / 0.02): one slow part in 50 passes,
    unclear  between the two, or where all its pairs are explained by others.

**Selection of pairs.** First rounds of disjoint pairs, by the circle method of
round robins: each node once a round, n / 2 jobs at the same time; one round,
or as many as make twelve pairs, or one inside switches and one across. Then,
round after round, the nodes that are not decided: those that are rather good
are paired with each other, which needs fewer jobs than one by one where the
chance is below 0.382 (Ungar, 1960); those that are rather slow with a node
that is good, another one each time, inside and across switches in turn. A pair
is repeated where its own link is in question, a switch is asked by other pairs
through it. Nothing is measured that some other part explains anyway, and it is
over when nothing is left that another pair could decide.
"""
from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..units import unit_text

#: Largest evidence of one pair, for or against.
CLIP = 4.0
#: The same where levels are compared, of a pair that is faster than its level:
#: no part explains that, so that a level among the slow ones must cost more
#: than the part that makes them slow.
FAST = 3 * CLIP
#: Chance of a false name in a search, and that a slow part passes.
ACCUSE, MISS = 0.01, 0.02
#: From this chance on that a node is slow it is tested alone.
ALONE = (3 - math.sqrt(5)) / 2
#: Pairs before anything is judged, and the fewest that make a level.
BEGIN, FEW = 12, 3
#: Where sigma is more than this part of d, the pairs may be of two kinds: the
#: round robin goes on, up to so many pairs, before nodes are told apart.
DISTINCT, ENOUGH = 2.5, 48
#: Share of the pairs in a window that the first level is taken from -> the
#: width of the narrowest such window of N(0, 1).
WINDOWS = {0.2: 0.5067, 0.35: 0.9076, 0.6: 1.6832}
#: The least sigma, as a part of d.
FINEST = 0.2
#: How much rarer than a slow node each kind of part is, as log(odds).
RARER = {'node': 0.0, 'switch': 1.0, 'uplink': 1.0, 'link': 2.0}
#: A part with less chance than this is not worth telling of.
REPORTED = 0.05
#: Croux and Rousseeuw: factor of the MAD of so many values.
FACTOR = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140,
          8: 1.129, 9: 1.107}

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
    #: Median metric of the pairs that only this part explains, and the level
    #: of their kind; None: they have none.
    value: float | None
    level: float | None
    #: The one over the other.
    ratio: float | None
    #: Pairs that only this part explains, and how many of them failed.
    pairs: int
    failed: int
    #: Pairs without any named part, which it is compared with.
    others: int
    #: (median - level) over its standard error, 1.2533 sigma / sqrt(pairs).
    z: float | None
    #: Common logarithm of the likelihood ratio, with it against without it.
    odds: float
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
    good: list[str] = field(default_factory=list)
    #: What else is to be said.
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The exit code: 1 where something is named."""
        return 1 if self.named else 0

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1,
                          allow_nan=False) + '\n'


class _Incidence(NamedTuple):
    """Which pairs have which parts."""
    #: A row for each part of each pair: their numbers.
    part: np.ndarray
    pair: np.ndarray
    #: Part -> its pairs.
    members: list[np.ndarray]
    #: Part -> logarithm of the odds against it.
    prior: np.ndarray


class _Fit(NamedTuple):
    """The fit to the pairs so far."""
    levels: dict[int, float]
    sigma: float
    #: The parts that explain them.
    chosen: frozenset[int]
    #: Of each pair, how many of its parts are in `chosen`.
    covers: np.ndarray
    #: Of each part, the logarithm of its likelihood ratio.
    evidence: np.ndarray
    prior: np.ndarray


class Search:
    """A search for slow nodes and links."""

    def __init__(self, nodes: Iterable[str], better: str, *,
                 above: Mapping[str, Sequence[str]] | None = None,
                 slowdown: float = 0.1, maximum: int = 16,
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
            [_natural_sort_key(name) for name in reversed(self.above[node])],
            _natural_sort_key(node)))
        if len(self.nodes) < 2:
            raise ValueError('pairs of nodes need at least two nodes; '
                             f'{len(self.nodes)} given')
        if not 0.005 <= slowdown < 1:
            raise ValueError(f'the slowdown is {slowdown:g}; it must be from '
                             '0.005 (half a percent) to below 1')
        self.better, self.slowdown, self.maximum = better, slowdown, maximum
        self.every = every
        self.d = -math.log(1 - slowdown)
        self.rounds = 0
        self.jobs = 0
        self._rank = {node: at for at, node in enumerate(self.nodes)}
        self._under: dict[str, set[str]] = defaultdict(set)
        for node, switches in self.above.items():
            for switch in switches:
                self._under[switch].add(node)
        #: Number of a part.
        self._number: dict[Part, int] = {}
        self._rows: list[tuple[int, int]] = []
        self._x: list[float] = []
        self._climbs: list[int] = []
        #: Which pair each job was of: the number of its first one.
        self._of: list[int] = []
        self._first_of: dict[Pair, int] = {}
        #: How often each pair, and node, and node with pairs that climb so
        #: far, was measured.
        self._times: Counter[Any] = Counter()
        self._first: list[list[Pair]] | None = None
        #: Rounds of the round robin that are left.
        self._turns: list[list[Pair]] = []
        self._known: _Fit | None = None

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
        """The parts that can slow a pair. A switch above all nodes, and an
        uplink of one node, or of all but one, say no more than others do."""
        yield 'node', a
        yield 'node', b
        yield ('link', *self._ordered_pair(a, b))
        total = len(self.nodes)
        shared = [s for s in self.above[a] if s in self.above[b]][:1]
        for switch in shared:
            if 2 <= len(self._under[switch]) < total:
                yield 'switch', switch
        for node, other in ((a, b), (b, a)):
            for switch in self.above[node]:
                if switch in self.above[other]:
                    break
                size = len(self._under[switch])
                if 2 <= size < total:
                    yield 'switch', switch
                if 2 <= size <= total - 2:
                    yield 'uplink', switch

    def add_measurement(self, pair: Pair, value: float | None) -> None:
        """Takes the metric of a job; None: it failed, or had none."""
        a, b = pair
        at = len(self._x)
        good = value is not None and math.isfinite(value) and value > 0
        sign = -1 if self.better == 'higher' else 1
        self._x.append(sign * math.log(value) if good and value
                       else math.nan)
        self._climbs.append(climbs := self.lowest_common_switch_level(a, b))
        self._of.append(self._first_of.setdefault(self._ordered_pair(a, b), at))
        for part in self.hardware_parts_of_pair(a, b):
            number = self._number.setdefault(part, len(self._number))
            self._rows.append((number, at))
        self._times.update([self._ordered_pair(a, b), a, b, (a, climbs, ''),
                            (b, climbs, '')])
        self.jobs += 1
        self._known = None

    # Which pairs next ---------------------------------------------------

    def next_rounds(self) -> list[list[Pair]]:
        """Rounds to measure next, in order; the pairs of a round at the same
        time. Empty: it is over."""
        if self._first is None:
            self._first = self._first_rounds()
            rounds = self._first
        elif self.rounds >= len(self._first) + self.maximum \
                or len(self.nodes) == 2 or not self._x:
            rounds = []
        elif self._turns and self.jobs < ENOUGH \
                and self._cached_fit().sigma > self.d / DISTINCT:
            rounds = [self._turns.pop(0)]
        else:
            rounds = [pairs] if (pairs := self._follow_up_pairs()) else []
        self.rounds += len(rounds)
        return rounds

    def _first_rounds(self) -> list[list[Pair]]:
        turns = round_robin_pairs(self.nodes)
        if len(self.nodes) == 2:
            return turns * FEW
        number = min(math.ceil(BEGIN / len(turns[0])), FEW * len(turns))
        if len({self.lowest_common_switch_level(*pair) for turn in turns[:8]
                for pair in turn}) > 1:
            number = max(number, 2)
        if self.every:
            number = max(number, len(turns))
        # Neighbours first, and then those that are far from each other.
        step = max(round(len(turns) / 4), 1)
        while math.gcd(step, len(turns)) > 1:
            step += 1
        order = [turns[at * step % len(turns)] for at in range(len(turns))]
        self._turns = order[number:]
        return (order * FEW)[:number]

    def _follow_up_pairs(self) -> list[Pair]:
        """A round of disjoint pairs for what is not decided yet."""
        fit = self._cached_fit()
        busy: set[str] = set()
        pairs: list[Pair] = []

        def evidence_of_part(part: Part) -> float:
            number = self._number.get(part)
            return 0.0 if number is None else float(fit.evidence[number])

        def add_pair(a: str, b: str) -> None:
            pairs.append(self._ordered_pair(a, b))
            busy.update((a, b))

        def is_informative(a: str, b: str, of: Iterable[Part]) -> bool:
            """Whether another job on the pair gives information."""
            numbers = {self._number.get(part) for part in of}
            return self.lowest_common_switch_level(a, b) in fit.levels and not any(
                number in fit.chosen and number not in numbers
                for part in self.hardware_parts_of_pair(a, b)
                if (number := self._number.get(part)) is not None)

        def best_partner(node: str, among: Sequence[str]) -> str | None:
            """The one that says most of a node."""
            candidates = [
                one
                for one in among
                if one != node
                and one not in busy
                and is_informative(node, one, [('node', node)])
            ]
            return min(candidates, default=None, key=lambda one: (
                self._times[self._ordered_pair(node, one)],
                self._times[node, self.lowest_common_switch_level(node, one), ''],
                self._times[one], evidence_of_part(('node', one)),
                abs(self._rank[one] - self._rank[node])))

        good = [n for n in self.nodes if self._is_proven_good(fit, ('node', n))]
        open_ = sorted(
            (n for n in self.nodes if n not in set(good)
             and not self._is_reported_slow(fit, ('node', n))),
            key=lambda n: -evidence_of_part(('node', n)))
        weak = [n for n in open_ if _probability_slow(
            evidence_of_part(('node', n)), math.log(len(self.nodes))) < ALONE]
        for node in [n for n in open_ if n not in set(weak)]:
            other = best_partner(node, good) or best_partner(node, weak[::-1])
            if node not in busy and other:
                add_pair(node, other)
        for at, node in enumerate(weak):
            if node in busy:
                continue
            other = next((one for one in weak[:at:-1] if one not in busy
                          and not self._times[self._ordered_pair(node, one)]
                          and is_informative(node, one, [])), None)
            other = other or best_partner(node, good) or best_partner(node, self.nodes)
            if other:
                add_pair(node, other)
        for part, number in self._number.items():
            if part[0] == 'node' or fit.evidence[number] <= 0 \
                    or self._is_reported_slow(fit, part):
                continue
            if part[0] == 'link':
                through = [part[1:]] if set(part[1:]) <= set(good) else []
            else:
                through = list(self._pairs_through_switch(part))
            through = [
                (a, b) for a, b in through if is_informative(a, b, [part])
            ]
            for a, b in sorted(through, key=lambda pair: self._times[
                    self._ordered_pair(*pair)])[:FEW]:
                if not busy & {a, b}:
                    add_pair(a, b)
        return pairs

    def _pairs_through_switch(self, part: Part) -> Iterator[Pair]:
        """Pairs through a switch, or its uplink."""
        inside = [n for n in self.nodes if n in self._under[part[1]]]
        if part[0] == 'switch':
            yield from (pair for turn in round_robin_pairs(inside)[:FEW]
                        for pair in turn)
        outside = [n for n in self.nodes if n not in self._under[part[1]]]
        for shift in range(min(FEW, len(outside))):
            yield from zip(inside, outside[shift:] + outside[:shift],
                           strict=False)

    # What the pairs say -------------------------------------------------

    def _is_reported_slow(self, fit: _Fit, part: Part) -> bool:
        number = self._number.get(part)
        return number in fit.chosen and bool(
            fit.evidence[number] >= fit.prior[number] - math.log(ACCUSE))

    def _is_proven_good(self, fit: _Fit, part: Part) -> bool:
        number = self._number.get(part)
        return number is not None and bool(
            fit.evidence[number] <= math.log(MISS))

    def _cached_fit(self) -> _Fit:
        if self._known is None:
            self._known = self._compute_fit()
        return self._known

    def _compute_fit(self) -> _Fit:
        rows = np.array(self._rows, np.int64).reshape(-1, 2)
        order = np.argsort(rows[:, 0], kind='stable')
        size = len(self._number)
        edges = np.searchsorted(rows[order, 0], range(size + 1))
        known = _Incidence(
            rows[:, 0], rows[:, 1],
            [rows[order[a:b], 1] for a, b in
             zip(edges, edges[1:], strict=False)],
            np.array([math.log(len(self.nodes)) + RARER[part[0]]
                      for part in self._number]))
        x, climbs = np.array(self._x), np.array(self._climbs)
        score, levels, sigma, chosen, covers, weight = max(
            (self._fit_from_initial_levels(known, x, climbs, share)
             for share in WINDOWS),
            key=lambda one: one[0])
        return _Fit(levels, sigma, chosen, covers, _evidence_per_part(
            known, weight, chosen, covers), known.prior)

    def _fit_from_initial_levels(
        self,
        known: _Incidence,
        x: np.ndarray,
        climbs: np.ndarray,
        share: float,
    ) -> tuple[
        float, dict[int, float], float, frozenset[int], np.ndarray, np.ndarray
    ]:
        """The explanation of the pairs, from a first level on; before it, how
        well it does: the logarithm of the likelihood of all pairs, less the
        priors of the parts, less log(pairs) / 2 for each level (Schwarz,
        1978)."""
        levels, sigma = self._initial_levels(x, climbs, share)
        chosen: frozenset[int] | None = None
        for _ in range(8):
            weight = self._slowness_evidence(x, climbs, levels, sigma)
            new = _best_explanation(known, weight)[0]
            covers = _count_chosen_parts_per_pair(known, new, len(x))
            if new == chosen:
                break
            chosen = new
            levels, sigma, rest, groups = self._refit_levels(
                known, x, climbs, chosen, covers, levels)
        free = (len(x) - len(rest)) * CLIP
        score = (-len(rest) * math.log(sigma)
                 - float(np.minimum(rest ** 2 / (2 * sigma ** 2), np.where(
                     rest < 0, FAST, CLIP)).sum())
                 - float(known.prior[sorted(new)].sum())
                 - groups * math.log(len(x)) / 2 - free)
        return score, levels, sigma, new, covers, weight

    def _initial_levels(self, x: np.ndarray, climbs: np.ndarray, share: float
               ) -> tuple[dict[int, float], float]:
        """Levels and sigma by the lowest narrow window of each kind; of the
        jobs of a pair their median, for it is the slow ones that are
        repeated."""
        of = np.array(self._of)
        once = np.array([
            np.median(x[of == at][~np.isnan(x[of == at])])
            if not np.isnan(x[of == at]).all() else np.nan
            for at in np.unique(of)])
        climbs, x = climbs[np.unique(of)], once
        levels, widths = {}, []
        for kind in map(int, np.unique(climbs)):
            values = np.sort(x[(climbs == kind) & ~np.isnan(x)])
            if len(values) < FEW:
                continue
            held = max(math.ceil(share * len(values)), 2)
            width = values[held - 1:] - values[:len(values) - held + 1]
            at = int(np.argmax(width <= max(1.5 * width.min(), self.d / 2)))
            levels[kind] = float(values[at] + values[at + held - 1]) / 2
            widths.append(float(width[at]) / WINDOWS[share])
        return levels, max([FINEST * self.d, float(np.median(widths))]
                           if widths else [self.d])

    def _refit_levels(self, known: _Incidence, x: np.ndarray, climbs: np.ndarray,
                      chosen: frozenset[int], covers: np.ndarray,
                      before: dict[int, float]
               ) -> tuple[dict[int, float], float, np.ndarray, int]:
        """Levels by the pairs that nothing explains, sigma by all that
        differ from pairs of the same explanation: both, these differences,
        and the number of levels that they are taken from."""
        levels, rests = dict(before), []
        free = (covers == 0) & ~np.isnan(x)
        for kind in before:
            values = x[free & (climbs == kind)]
            if len(values) >= FEW:
                levels[kind] = float(np.median(values))
                rests.append(values - levels[kind])
        alike: dict[Any, list[int]] = defaultdict(list)
        why: dict[int, list[int]] = defaultdict(list)
        for number in sorted(chosen):
            for pair in known.members[number]:
                why[int(pair)].append(number)
        for pair, numbers in why.items():
            if not math.isnan(x[pair]):
                alike[tuple(numbers), int(climbs[pair])].append(pair)
        for pairs in alike.values():
            if len(pairs) >= FEW:
                rests.append(x[pairs] - np.median(x[pairs]))
        rest = np.concatenate(rests) if rests else np.zeros(0)
        size = len(rest)
        sigma = 1.4826 * float(np.median(np.abs(rest))) * FACTOR.get(
            size, size / (size - 0.8)) if size > 1 else self.d
        return levels, max(sigma, FINEST * self.d), rest, len(rests)

    def _slowness_evidence(self, x: np.ndarray, climbs: np.ndarray,
                           levels: dict[int, float], sigma: float) -> np.ndarray:
        """The evidence of each pair that it is slow."""
        level = np.array([levels.get(int(kind), math.nan)
                          for kind in climbs])
        weight = np.clip(self.d * (x - level - self.d / 2) / sigma ** 2,
                         -CLIP, CLIP)
        # Too few of a kind: nothing to compare with.
        weight[np.isnan(level)] = 0
        weight[np.isnan(x)] = CLIP
        return weight

    # The verdict --------------------------------------------------------

    def current_result(self, unit: str = '', expected: float | None = None
                ) -> Located:
        """The result so far.

        :param expected: the metric of a good pair as it was before, if that
            is known; where all are slower there is nothing to locate
        """
        links = [part for part in self._number if part[0] == 'link']
        head: dict[str, Any] = {
            'better': self.better, 'unit': unit, 'slowdown': self.slowdown,
            'nodes': len(self.nodes), 'jobs': self.jobs,
            'rounds': self.rounds}
        if not self._x:
            return Located(**head, noise=None, levels={},
                           notes=['no pair was measured'])
        fit = self._cached_fit()
        levels = {kind: self._metric_from_logarithm(level)
                  for kind, level in sorted(fit.levels.items())}
        if len(self.nodes) == 2:
            return Located(
                **head, noise=None, levels=levels, unclear=[
                    self._finding_of_part(fit, part, 'unclear', 'two nodes make only '
                                          'one pair; it cannot be compared')
                    for part in (('node', n) for n in self.nodes)],
                notes=self._all_slow_note(fit, expected))
        named = [part for part in self._number if self._is_reported_slow(fit, part)]
        good = [n for n in self.nodes if self._is_proven_good(fit, ('node', n))]
        blurred = fit.sigma > self.d / DISTINCT and not named
        if blurred and len(self.nodes) < 2 * BEGIN:
            good = []
        unclear = [part for part, number in self._number.items()
                   if part not in named and (
                       part[0] == 'node' and part[1] not in good
                       or _probability_slow(fit.evidence[number], fit.prior[number])
                       >= REPORTED)]
        never = [n for n in self.nodes if ('node', n) not in self._number]
        total = len(self.nodes) * (len(self.nodes) - 1) // 2
        notes = self._all_slow_note(fit, expected)
        if blurred:
            notes.append(f'good pairs differ by {100 * fit.sigma:.1f} %, too '
                         f'much to see a slowdown of {100 * self.slowdown:g} '
                         '%; use more repetitions per job, or search each '
                         'kind of node by itself')
        fast = self._faster_pairs_note(fit)
        if fast:
            notes.append(fast)
            # What stands beside a wrong level passes for good.
            good = [] if not named else good
        if len(links) < total:
            notes.append(f'links: {len(links)} of {total} were measured; the '
                         'other links may be slow')
        if never:
            notes.append(f'never measured: {", ".join(never)}')
        return Located(
            **head,
            noise=fit.sigma,
            levels=levels,
            notes=notes,
            named=[self._finding_of_part(fit, part) for part in named],
            unclear=[
                self._finding_of_part(
                    fit, part, 'unclear', self._reason_for_unclear_part(fit, part)
                )
                for part in unclear
            ],
            good=good,
        )

    def _metric_from_logarithm(self, x: float) -> float:
        return math.exp(-x if self.better == 'higher' else x)

    def _faster_pairs_note(self, fit: _Fit) -> str:
        """A note if a level may be that of slow pairs: several pairs are
        faster than any noise would have them. Empty: it is not."""
        x, of = np.array(self._x), np.array(self._of)
        level = np.array([fit.levels.get(kind, math.nan)
                          for kind in self._climbs])
        far = max(self.d / 2, 5 * fit.sigma)
        pairs = len(set(of[(fit.covers == 0) & (x < level - far)]))
        if pairs < max(FEW, 0.1 * len(set(of))):
            return ''
        return (f'{pairs} of {len(set(of))} pairs are more than '
                f'{100 * (1 - math.exp(-far)):.0f} % faster than the level '
                'of good pairs: most pairs may share a slow part, such as a '
                'switch; no node is reported as good')

    def _all_slow_note(self, fit: _Fit, expected: float | None) -> list[str]:
        """A note if good pairs are slower than before."""
        if not expected or not fit.levels:
            return []
        kinds = Counter(kind for kind in self._climbs if kind in fit.levels)
        level = self._metric_from_logarithm(fit.levels[kinds.most_common(1)[0][0]])
        ratio = (expected / level if self.better == 'higher'
                 else level / expected)
        if ratio < 1 / (1 - self.slowdown / 2):
            return []
        return [f'all pairs are slow: {level:.4g}, and {expected:.4g} before; '
                'check what all nodes share (software, settings, the '
                'fabric)']

    def _finding_of_part(self, fit: _Fit, part: Part, verdict: str = '',
                         why: str = '') -> Finding:
        """The metrics behind what is said of a part."""
        number = self._number[part]
        rows = [at for one, at in self._rows if one == number
                and fit.covers[at] == (number in fit.chosen)]
        x = np.array([self._x[at] for at in rows])
        failed = int(np.isnan(x).sum())
        kinds = [self._climbs[at] for at in rows]
        rest = [value - fit.levels[kind] for value, kind in
                zip(x, kinds, strict=True)
                if kind in fit.levels and not math.isnan(value)]
        value = level = ratio = z = None
        if rest:
            off = float(np.median(rest))
            kind = Counter(k for k in kinds if k in fit.levels
                           ).most_common(1)[0][0]
            level = self._metric_from_logarithm(fit.levels[kind])
            ratio = self._metric_from_logarithm(off)
            value = level * ratio
            z = off * math.sqrt(len(rest)) / (1.2533 * fit.sigma)
        return Finding(
            part[0], ' - '.join(part[1:]),
            verdict or ('fails' if 2 * failed > len(rows) else 'slow'),
            value, level, ratio, len(rows), failed,
            int((fit.covers == 0).sum()), z,
            float(fit.evidence[number]) / math.log(10), why)

    def _reason_for_unclear_part(self, fit: _Fit, part: Part) -> str:
        number = self._number[part]
        rows = [at for one, at in self._rows if one == number]
        if self._is_proven_good(fit, part):
            return 'as good as other nodes, but all of them differ too much'
        if all(fit.covers[at] > (number in fit.chosen) for at in rows):
            own_pairs = set(rows)
            names = dict.fromkeys(
                ' '.join(other)
                for other, one in self._number.items()
                if one in fit.chosen
                and one != number
                and any(
                    which == one and at in own_pairs
                    for which, at in self._rows
                )
            )
            return (f'{", ".join(names)} may explain all its slow pairs, and '
                    'no pair avoids this')
        if all(kind not in fit.levels for kind in
               (self._climbs[at] for at in rows)):
            return 'too few pairs of this kind for the level of a good pair'
        return (f'{len(rows)} pair{"s" * (len(rows) > 1)} cannot decide with '
                f'a noise of {100 * fit.sigma:.1f} %, or another part '
                'explains them as well')


def _natural_sort_key(name: str) -> list[Any]:
    """n10 after n9; numbers and words are never compared."""
    return [(part.isdigit(), int(part) if part.isdigit() else part)
            for part in re.split(r'(\d+)', name) if part]


def _probability_slow(evidence: float, prior: float) -> float:
    """The probability that a part is slow, from the logarithms of evidence and
    prior odds."""
    return 1 / (1 + math.exp(min(prior - evidence, 700.0)))


def _count_chosen_parts_per_pair(known: _Incidence, chosen: Iterable[int], size: int
            ) -> np.ndarray:
    covers = np.zeros(size, np.int64)
    for number in chosen:
        covers[known.members[number]] += 1
    return covers


def _best_explanation(known: _Incidence, weight: np.ndarray,
                      forced: frozenset[int] = frozenset(),
                      forbidden: frozenset[int] = frozenset()
          ) -> tuple[frozenset[int], float]:
    """The parts that explain most, and the score of that.

    Adds what gains most; takes out what others have made needless.
    """
    chosen = set(forced)
    covers = _count_chosen_parts_per_pair(known, chosen, len(weight))
    out = [*forced, *forbidden]
    while True:
        open_ = np.where(covers == 0, weight, 0.0)
        gain = np.bincount(known.part, open_[known.pair],
                           len(known.prior)) - known.prior
        gain[[*out, *chosen]] = -np.inf
        at = int(np.argmax(gain))
        if gain[at] > 1e-9:
            chosen.add(at)
            covers[known.members[at]] += 1
            continue
        loss, at = min(((_score_loss_without_part(known, weight, covers, one), one)
                        for one in chosen - forced), default=(0.0, -1))
        if loss >= -1e-9:
            break
        chosen.remove(at)
        covers[known.members[at]] -= 1
    return frozenset(chosen), _explanation_score(known, weight, chosen, covers)


def _explanation_score(known: _Incidence, weight: np.ndarray, chosen: Iterable[int],
                       covers: np.ndarray) -> float:
    """The score of an explanation."""
    return float(weight[covers > 0].sum()) - float(
        known.prior[sorted(chosen)].sum())


def _score_loss_without_part(known: _Incidence, weight: np.ndarray, covers: np.ndarray,
                             number: int) -> float:
    """The loss of score without a chosen part."""
    pairs = known.members[number]
    return float(weight[pairs][covers[pairs] == 1].sum()
                 - known.prior[number])


def _evidence_per_part(known: _Incidence, weight: np.ndarray,
                       chosen: frozenset[int], covers: np.ndarray) -> np.ndarray:
    """Logarithm of the likelihood ratio of each part: the best explanation
    with it over the best one without it."""
    score = _explanation_score(known, weight, chosen, covers)
    open_ = np.where(covers == 0, weight, 0.0)
    evidence = np.bincount(known.part, open_[known.pair], len(known.prior))
    # Where no pair is slow, nothing else could take a part's place.
    hot = np.unique(known.part[weight[known.pair] > 0])
    for number in map(int, hot):
        one = frozenset([number])
        if number in chosen:
            without = _best_explanation(known, weight, forbidden=one)[1]
            evidence[number] = score - without + known.prior[number]
        else:
            having = _best_explanation(known, weight, forced=one)[1]
            evidence[number] = having - score + known.prior[number]
    return evidence


# In words ------------------------------------------------------------------

#: Lines of a kind; the rest is counted.
MAXIMUM = 20


def result_lines(located: Located) -> Iterator[str]:
    """The text for people: slow parts, unclear parts, and the evidence."""
    unit = unit_text(located.unit)
    noise = ('' if located.noise is None
             else f', noise of a pair {100 * located.noise:.1f} %')
    yield (f'{located.nodes} nodes, {located.jobs} jobs in {located.rounds} '
           f'rounds{noise}; searched slowdown {100 * located.slowdown:g} %')
    for kind, level in located.levels.items():
        where = {-1: '', 0: ' inside a switch'}.get(
            kind, f' across {kind} level{"s" * (kind > 1)} of switches')
        yield f'  a good pair{where}: {level:.4g} {unit}'.rstrip()
    if not located.named:
        yield 'No part is slower than the others.' if located.good else \
            'The pairs do not decide about any node.'
    for part in located.named:
        yield (f'{part.verdict.upper():8}{part.label}: '
               f'{_evidence_text(part, unit)}')
    for part in located.unclear[:MAXIMUM]:
        yield (f'unclear {part.label}: {part.why}'
               + (f' ({_evidence_text(part, unit)})' if part.pairs else ''))
    if len(located.unclear) > MAXIMUM:
        yield f'  and {len(located.unclear) - MAXIMUM} more: --json'
    if located.good:
        yield f'good    {_count_with_noun(len(located.good), "node")}: ' + (
            ', '.join(located.good[:MAXIMUM])
            + ', ...' * (len(located.good) > MAXIMUM))
    yield from located.notes


def _evidence_text(part: Finding, unit: str) -> str:
    texts = []
    if part.ratio is not None and part.z is not None:
        texts.append(f'{100 * (part.ratio - 1):+.1f} %, {part.value:.4g} '
                     f'{unit}'.rstrip() + f', level {part.level:.4g}')
    if part.failed:
        texts.append(f'{part.failed} of {_count_with_noun(part.pairs, "job")} failed')
    texts.append(f'{_count_with_noun(part.pairs, "pair")} that nothing else explains, '
                 f'compared with {_count_with_noun(part.others, "pair")}'
                 + ('' if part.z is None else f', z {part.z:+.1f}'))
    texts.append(f'odds 10^{part.odds:.1f}')
    return '; '.join(texts)


def _count_with_noun(number: int, what: str) -> str:
    return f'{number} {what}{"s" * (number != 1)}'
