"""Search for slow nodes and switches by measurements on pairs of nodes.

`Search` selects the pairs to measure next and takes their values. Others run
the jobs (cli/nightly/locate.py, bench/locate.py).

x is the logarithm of a job's metric, signed so that more is slower. A pair is as slow
as its slowest part: one of two nodes, or a switch or uplink between them. The search
looks for slowdowns of at least d = -log(1 - slowdown). An x that is more than 3 d from
the median counts as 3 d, as does a failed job: one odd job decides nothing.

1. Each node is measured with at least FIRST others. The score of a part is the mean x
   of its jobs less that of all others, of pairs that climb as many switches. The part
   that explains most of the variance is taken, with its jobs, and the others are
   scored again. The number of parts is the one with the least N log(variance) + parts
   log(N) (Schwarz, Ann. Stat. 6, 1978). They are suspects if they are slower by d / 2.
2. Suspects are measured with other nodes, at the same time as pairs without a suspect.
   A suspect is slow if these jobs are slower, by Welch's t-test (Biometrika 34, 1947)
   with Bonferroni's correction. The first jobs do not count, because they were selected
   for being slow. The test must also hold without the jobs of any one partner, so that
   a slow link accuses no node.

A node is not slower if the confidence interval of its mean is below d. The variance is
its own, with the common one as POOLED more degrees of freedom (Smyth, Stat. Appl.
Genet. Mol. Biol. 3, 2004). All other parts are unclear.
"""
from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from config.console import count_with_noun
from config.records.units import change_text, value_text
from postprocess.names import natural_sort_key
from postprocess.regressions.detect import student_t_quantile

#: Chance that a search accuses a good part, and normal quantile of the chance that
#: it reports a slow node as not slower (0.5 %).
ACCUSE, NOT_SLOWER = 0.01, NormalDist().inv_cdf(0.995)
#: First jobs of a node, and of all nodes together; jobs of a part between two looks at
#: the suspects, and looks.
FIRST, FIRST_JOBS, JOBS, LOOKS = 3, 12, 5, 4
#: Degrees of freedom that the common variance adds to that of a node.
POOLED = 4
#: Fewest nodes that are reported as not slower where none is slow: pairs of fewer are
#: also alike if all nodes but one are slow.
MAJORITY = 5
#: Smallest noise, and largest distance from the median, in units of d.
FINEST, FARTHEST = 0.05, 3.0

Pair = tuple[str, str]
#: Kind and name: ('node', 'n1'), ('switch', 'leaf1'), ('uplink', 'leaf1').
Part = tuple[str, str]
#: A part of all pairs, which none of them is slower by.
ROOT = ('switch', '')


@dataclass(frozen=True)
class Finding:
    """A slow part, and its evidence."""
    #: node, switch or uplink.
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
        """The result as JSON, for --json."""
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False) + '\n'


class _Job(NamedTuple):
    pair: Pair
    #: NaN: it failed.
    x: float
    climbs: int
    parts: frozenset[Part]
    #: Number of the look before it.
    look: int


class _Fit(NamedTuple):
    """What the jobs are if the suspects are slow."""
    #: Standard deviation of a job.
    noise: float
    #: Of each job: x less the mean of good pairs that climb as many switches (NaN:
    #: there are none), and its slow parts.
    excess: np.ndarray
    why: list[frozenset[Part]]


class Search:
    """A search for slow nodes and switches."""

    def __init__(self, nodes: Iterable[str], better: str, *,
                 above: Mapping[str, Sequence[str]] | None = None,
                 slowdown: float = 0.1) -> None:
        """
        :param better: higher or lower, of the metric
        :param above: node -> the switches above it, the nearest first
        :param slowdown: what is looked for: a fraction, 0.1 is 10 % less of what is
            better higher, 11 % more of what is better lower
        :raises ValueError: fewer than two nodes, or no such fraction
        """
        self._above = {node: (*(above or {}).get(node, ()), '') for node in set(nodes)}
        self.nodes = sorted(self._above, key=natural_sort_key)
        if len(self.nodes) < 2:
            raise ValueError('pairs of nodes need at least two nodes; '
                             f'{len(self.nodes)} given')
        if not 0.005 <= slowdown < 1:
            raise ValueError(f'the slowdown is {slowdown:g}; it must be from '
                             '0.005 (half a percent) to below 1')
        self.better, self.slowdown = better, slowdown
        self.d = -math.log(1 - slowdown)
        self.rounds = self.look = 0
        self._random = random.Random(0)
        #: Node or switch -> nodes that are it, or under it.
        self._under: dict[str, set[str]] = defaultdict(set)
        for node, switches in self._above.items():
            for switch in (node, *switches):
                self._under[switch].add(node)
        self._ways: dict[Pair, tuple[int, frozenset[Part]]] = {}
        self._jobs: list[_Job] = []
        #: How often each pair was planned, and each node with pairs that climb so far.
        self._times: Counter[tuple] = Counter()
        self._suspects: frozenset[Part] = frozenset()
        #: Suspect -> the look that found it.
        self._since: dict[Part, int] = {}

    @property
    def _sign(self) -> int:
        """Of x: more is slower."""
        return -1 if self.better == 'higher' else 1

    def _way(self, a: str, b: str) -> tuple[int, frozenset[Part]]:
        """The switches that a pair climbs, and the parts that can slow it.

        A switch above all nodes or above two, and an uplink of all nodes but one,
        explain nothing that other parts do not. Nor do two switches that have only
        each other beside them: all pairs between them have both.
        """
        if (a, b) in self._ways:
            return self._ways[a, b]
        common = next(switch for switch in self._above[a] if switch in self._above[b])
        below = [switch for node in (a, b) for switch in itertools.takewhile(
            lambda one: one != common, self._above[node])]
        if below and set().union(
                *(self._under[one] for one in below)) == self._under[common]:
            below = []
        size = {switch: len(self._under[switch]) for switch in (common, *below)}
        self._ways[a, b] = way = max(
            self._above[node].index(common) for node in (a, b)), frozenset({
            ROOT, ('node', a), ('node', b),
            *(('switch', s) for s in size if 3 <= size[s] < len(self.nodes)),
            *(('uplink', s) for s in below if 3 <= size[s] <= len(self.nodes) - 2)})
        return way

    def add_measurement(self, pair: Pair, value: float | None) -> None:
        """Take the metric of a job; None: it failed, or had none."""
        good = value is not None and math.isfinite(value) and value > 0
        x = self._sign * math.log(value) if good and value else math.nan
        self._jobs.append(_Job(pair, x, *self._way(*pair), self.look))

    # Which pairs next ---------------------------------------------------

    def next_rounds(self) -> list[list[Pair]]:
        """Rounds to measure next, in order; the pairs of a round at the same
        time. Empty: the search has ended."""
        self.look += 1
        if self.look == 1:
            number = max(FIRST, math.ceil(2 * FIRST_JOBS / len(self.nodes)))
            left = Counter({('node', node): number for node in self.nodes})
        elif self.look <= LOOKS + 1 and len(self.nodes) > 2 and self._jobs:
            left = self._choose_suspects()
        else:
            return []
        rounds: list[list[Pair]] = []
        while len(rounds) < 2 * JOBS and (pairs := self._next_round(left)):
            rounds.append(pairs)
        self.rounds += len(rounds)
        return rounds

    def _choose_suspects(self) -> Counter[Part]:
        """Choose the parts that explain the jobs best, slow parts, and nodes that were
        suspects and are not known to be good.

        :returns: jobs that they, pairs without a suspect, and unclear nodes need
        """
        fit = self._fit()
        kept = {part for part in self._suspects if self._is_slow(fit, part)
                or part[0] == 'node' and not self._is_not_slower(fit, part)}
        chosen = {*kept, *self._slow_parts()}
        self._suspects = frozenset(
            chosen if 2 * len(chosen) <= len(self.nodes) else kept)
        for part in self._suspects:
            self._since.setdefault(part, self.look)
        fit = self._fit()
        wanted = {part for part in self._suspects if not self._is_slow(fit, part)}
        unclear = {('node', node) for node in self.nodes
                   if not self._is_not_slower(fit, ('node', node))}
        return Counter(dict.fromkeys([*sorted(wanted), *[ROOT] * bool(wanted),
                                      *sorted(unclear - self._suspects)], JOBS))

    def _next_round(self, left: Counter[Part]) -> list[Pair]:
        """A round of disjoint pairs, those that were measured least first.

        :param left: jobs that each part still needs; updated
        """
        # Neighbours of a list would always meet the same others.
        nodes = self._random.sample(self.nodes, len(self.nodes))
        measured: list[Pair] = []
        for part in sorted(left, key=lambda one: -left[one]):
            if left[part] <= 0:
                continue
            busy = {*itertools.chain(*measured)}
            free = [node for node in nodes if node not in busy]
            ends = [node for node in free if node in self._under[part[1]]][:8]
            # Pairs without a suspect climb as many switches as those with one.
            climbs = {self._way(*pair)[0] for pair in measured if part == ROOT}
            best = min((
                (a, b) for a in ends for b in free
                if a != b and ('node', b) not in self._suspects
                and self._suspects & self._way(a, b)[1] <= {part} <= self._way(a, b)[1]
                and (not climbs or self._way(a, b)[0] in climbs)
                ), default=None, key=self._times_measured)
            if best:
                measured.append(best)
                self._times.update(self._keys_of_pair(best))
                left.subtract([part] if part in self._suspects else self._way(*best)[1])
        return measured

    def _times_measured(self, pair: Pair) -> list[int]:
        return [self._times[key] for key in self._keys_of_pair(pair)]

    def _keys_of_pair(self, pair: Pair) -> list[tuple]:
        climbs, _ = self._way(*pair)
        return [tuple(sorted(pair)), *((node, climbs) for node in pair)]

    # What the jobs prove ------------------------------------------------

    def _clipped(self) -> tuple[np.ndarray, np.ndarray]:
        """x of all jobs, with what a failed or an odd one counts; and jobs x numbers of
        switches that they climb."""
        x = np.array([job.x for job in self._jobs])
        climbs = np.array([job.climbs for job in self._jobs])
        kinds = (climbs[:, None] == np.unique(climbs)).astype(float)
        for here in kinds.T > 0:
            known = x[here & np.isfinite(x)]
            middle = np.median(known) if len(known) else 0.0
            x[here] = np.clip(np.nan_to_num(x[here], nan=math.inf),
                              middle - FARTHEST * self.d, middle + FARTHEST * self.d)
        return x, kinds

    def _slow_parts(self) -> list[Part]:
        """The parts that explain the jobs best."""
        x, kinds = self._clipped()
        parts = sorted({part for job in self._jobs for part in job.parts})
        has = np.array([[part in job.parts for part in parts] for job in self._jobs])
        open_ = np.ones(len(x), bool)
        mean = (kinds.T @ x) / kinds.sum(0)
        squares = float(((x - kinds @ mean) ** 2).sum())
        chosen: list[int] = []
        best: tuple[float, list[int]] = math.inf, []
        while True:
            free = max(len(x) - len(chosen) - len(mean), 1)
            variance = max(squares / free, (FINEST * self.d) ** 2)
            best = min(best, (len(x) * math.log(variance) + len(chosen) * math.log(
                len(x)), chosen), key=lambda one: one[0])
            slower, jobs = _scores(x, kinds, has, open_)
            gain = np.where(slower > 0, slower ** 2 * jobs, 0.0)
            at = int(gain.argmax())
            if not gain[at] or len(chosen) >= min(len(self.nodes) / 2,
                                                  2 * len(best[1]) + 8):
                break
            chosen, open_ = [*chosen, at], open_ & ~has[:, at]
            squares -= float(gain[at])
        return [parts[one] for one in best[1] if _scores(
            x, kinds, has, ~np.any(has[:, [
                other for other in best[1] if other != one]], axis=1)
            )[0][one] > self.d / 2]

    def _fit(self) -> _Fit:
        x, kinds = self._clipped()
        why = [job.parts & self._suspects for job in self._jobs]
        good = np.array([not one for one in why])
        excess = np.full(len(x), np.nan)
        for here in kinds.T > 0:
            if (here & good).any():
                excess[here] = x[here] - x[here & good].mean()
        groups: dict[tuple, list[float]] = defaultdict(list)
        for job, one, parts in zip(self._jobs, x, why, strict=True):
            groups[job.climbs, parts].append(one)
        squares = sum(float(np.var(group)) * len(group) for group in groups.values())
        return _Fit(math.sqrt(max(squares / max(len(x) - len(groups), 1),
                                  (FINEST * self.d) ** 2)), excess, why)

    def _test_of_suspect(self, fit: _Fit, part: Part) -> tuple[float, float]:
        """t and its limit: of all tests that must hold, the worst."""
        fresh = [(job, float(x)) for job, x in zip(self._jobs, fit.excess, strict=True)
                 if job.look >= self._since[part]]
        own, others = ([one for one in fresh if one[0].parts & self._suspects == slow]
                       for slow in ({part}, set()))
        partners = {node for job, _ in own for node in job.pair} - {part[1]}
        z = NormalDist().inv_cdf(1 - ACCUSE / LOOKS / len(self._since))
        return min((_welch_test([one for one in own if node not in one[0].pair], others,
                                z, self.d) for node in partners or ['']),
                   key=lambda test: test[0] - test[1])

    def _is_slow(self, fit: _Fit, part: Part) -> bool:
        t, limit = self._test_of_suspect(fit, part)
        return t > limit

    def _is_not_slower(self, fit: _Fit, part: Part) -> bool:
        x = fit.excess[_jobs_of_part(self._jobs, fit, part)]
        x = x[np.isfinite(x)]
        if not len(x):
            return False
        if len(self.nodes) < MAJORITY:
            # Most pairs may be slow: the fastest pair is the level.
            pairs = np.array(['/'.join(sorted(job.pair)) for job in self._jobs])
            x = x - min(fit.excess[pairs == pair].mean() for pair in set(pairs))
        df = POOLED + len(x) - 1
        squares = POOLED * fit.noise ** 2 + float(((x - x.mean()) ** 2).sum())
        others = sum(not why for why in fit.why) or 1
        error = math.sqrt(squares / df * (1 / len(x) + 1 / others))
        return bool(x.mean() + student_t_quantile(df, NOT_SLOWER) * error < self.d)

    # The result ---------------------------------------------------------

    def current_result(self, unit: str = '') -> Located:
        """The result so far."""
        head = Located(unit, self.slowdown, len(self.nodes), len(self._jobs),
                       self.rounds)
        if not self._jobs:
            return dataclasses.replace(head, notes=['no pair was measured'])
        fit = self._fit()
        suspects = sorted(self._suspects)
        named = [part for part in suspects if self._is_slow(fit, part)]
        good = [node for node in self.nodes if ('node', node) not in named
                and self._is_not_slower(fit, ('node', node))]
        notes = []
        if len(self.nodes) < MAJORITY and not named:
            good = []
            notes.append(f'unclear: {len(self.nodes)} nodes are too few; use at least '
                         f'{MAJORITY}. With fewer, all pairs are also equal if all '
                         'nodes but one are slow')
        unclear = [node for node in self.nodes
                   if node not in good and ('node', node) not in named]
        unclear += [_label(part) for part in suspects
                    if part not in named and part[0] != 'node']
        if fit.noise > self.d / 2 and unclear:
            notes.append(f'pairs differ by {100 * fit.noise:.1f} %, too much to see a '
                         f'slowdown of {100 * self.slowdown:g} % in few jobs. Use more '
                         'repetitions per job, or search each type of node separately')
        levels = {}
        for kind in sorted({job.climbs for job in self._jobs}):
            known = [job.x for job, why in zip(self._jobs, fit.why, strict=True)
                     if job.climbs == kind and not why and math.isfinite(job.x)]
            if known:
                levels[kind] = float(np.median(known))
        return dataclasses.replace(
            head, noise=fit.noise, notes=notes, unclear=unclear, not_slower=good,
            levels={kind: math.exp(self._sign * x) for kind, x in levels.items()},
            named=[self._finding(fit, levels, part) for part in named])

    def _finding(self, fit: _Fit, levels: Mapping[int, float], part: Part) -> Finding:
        jobs = [job for job in itertools.compress(
            self._jobs, _jobs_of_part(self._jobs, fit, part)) if job.climbs in levels]
        off = [job.x - levels[job.climbs] for job in jobs if math.isfinite(job.x)]
        climbs = Counter(job.climbs for job in jobs).most_common(1)[0][0]
        failed = len(jobs) - len(off)
        return Finding(
            *part, 'fails' if 2 * failed > len(jobs) else 'slow',
            math.exp(self._sign * float(np.median(off))) if off else None,
            math.exp(self._sign * levels[climbs]), len(jobs), failed,
            *self._test_of_suspect(fit, part))


def _label(part: Part) -> str:
    return f'{part[0]}{" of" * (part[0] == "uplink")} {part[1]}'


def _jobs_of_part(jobs: Sequence[_Job], fit: _Fit, part: Part) -> np.ndarray:
    """Whether each job is one of a part without another slow part."""
    return np.array([part in job.parts and why <= {part}
                     for job, why in zip(jobs, fit.why, strict=True)])


def _scores(x: np.ndarray, kinds: np.ndarray, has: np.ndarray, open_: np.ndarray
            ) -> tuple[np.ndarray, np.ndarray]:
    """How much slower the jobs of each part are than all others, within kinds of jobs,
    and the number of jobs (n m / (n + m) of n and m) that this counts as.

    :param kinds: jobs x kinds
    :param has: jobs x parts
    :param open_: the jobs that count
    """
    count, total = open_ @ kinds, (open_ * x) @ kinds
    own, own_total = ((has * one[:, None]).T @ kinds for one in (open_, open_ * x))
    weight = own * (count - own) / np.maximum(count, 1)
    apart = own_total / np.maximum(own, 1) - (total - own_total) / np.maximum(
        count - own, 1)
    jobs = weight.sum(1)
    return (weight * apart).sum(1) / np.maximum(jobs, 0.01), jobs


def _welch_test(own: Sequence[tuple[_Job, float]], others: Sequence[tuple[_Job, float]],
                z: float, d: float) -> tuple[float, float]:
    """Welch's t of two groups of jobs, and its limit at a normal quantile. Only pairs
    that climb as many switches are compared."""
    means = {climbs: np.mean([x for job, x in others if job.climbs == climbs])
             for climbs in {job.climbs for job, _ in others}}
    groups = [np.array([x - means[job.climbs] for job, x in group
                        if job.climbs in means]) for group in (own, others)]
    free = len(groups[0]) - 1, len(groups[1]) - len(means)
    if min(free) < 3:
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
        yield ('No node, switch or uplink was found that is '
               f'{slowdown} slower than the others.')
    for part in located.named:
        texts = [] if part.ratio is None else [
            f'{change_text(part.ratio)}, '
            f'{value_text(part.level * part.ratio, located.unit)}, '
            f'good pairs {value_text(part.level, located.unit)}']
        jobs = count_with_noun(part.jobs, 'job')
        texts += [f'{part.failed} of {jobs} failed' if part.failed else jobs,
                  f't statistic {part.t:.1f}, threshold {part.limit:.1f}']
        yield (f'{part.verdict.upper():8}{_label((part.kind, part.name))}: '
               + '; '.join(texts))
    for title, names in (('unclear', located.unclear),
                         (f'not {slowdown} slower', located.not_slower)):
        if names:
            yield f'{title}: {", ".join(names[:20])}' + (
                f' and {len(names) - 20} more: --json' if len(names) > 20 else '')
    yield from located.notes
