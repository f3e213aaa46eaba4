"""Sequential detection of changes of metrics, vectorised, in pure numpy.

A series is one metric of one test case with one value per session: the log of
the value, signed so that more is worse. All sessions of one date (UTC) count
as one session. `detect_level_changes` goes through the sessions of many series
at once. At each session it uses only the sessions before.
`control_false_discoveries` leaves out the alarms of a kind that passed by themselves
before. docs/explanation/detection.md has the formulas and their sources.

bench/detect.py measures what all of this reaches.
"""
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# docs/explanation/detection.md has the measurement of each tuned constant.

#: So many are no coincidence: sessions of the shortest window, test cases of a group,
#: runs of a session after its first.
FEW = 3
#: Sessions of the windows (w), and the normal quantile at which they alarm.
WINDOWS, QUANTILE = (FEW, 6, 15, 30), 3.9
#: All sessions of a window but a quarter are worse than this, in spreads; all of the
#: shortest window are worse than the second number, and so is one worth running again.
WORSE_SESSION, WORSE_IN_SHORTEST = 1.5, 2.0
#: Sessions of a baseline: most, and fewest to judge by.
ANCHOR, FEWEST = 60, 5
#: Sessions of a series that is judged: its baseline, those that wait, and the newest.
FEWEST_JUDGED = FEWEST + FEW + 1
#: What a single session counts at most, in spreads.
CLIP = 7.0
#: What a session counts at most in the estimate of noise, in spreads.
HUBER = 2.5
#: Autocorrelation of a series alone, and sessions that this counts as much as. A longer
#: correlation cannot be told from a drift.
PHI, PHI_SESSIONS = 0.5, 10
PHI_MAX = 1 - 1 / PHI_SESSIONS
#: Fewest series whose noise is compared. Together they count as much as ANCHOR
#: sessions.
FEWEST_SERIES = 8
#: Added to the quantiles of series that stand alone: what they tell of their
#: own spread and autocorrelation is all there is.
ALONE = 0.3
#: Runs of a session from which on it can alarm alone.
RERUNS = 1 + FEW
#: Sessions after which an improvement is the baseline, and within which a change for
#: the worse that passes by itself is over.
BRIEF = 10
#: Log-likelihood ratio of the old level and the new one at which a change is over, and
#: at which a test case is no part of a group.
RECOVERED = 4.0
#: Expected share of the reported changes that pass by themselves.
FALSE_SHARE = 0.05
#: Smallest change that matters, a log.
MINIMUM = 0.005

NORMAL, WORSE, BETTER = 0, 1, -1


class Baseline(NamedTuple):
    """What is usual; arrays over series, or the numbers of one."""
    centre: np.ndarray
    spread: np.ndarray
    #: Autocorrelation of neighbouring sessions.
    phi: np.ndarray
    #: Number of its sessions, and degrees of freedom of the spread.
    sessions: np.ndarray
    df: np.ndarray

    def of_series(self, row: int) -> Baseline:
        """The baseline of one series."""
        return Baseline(*(part[row] for part in self))


class Walk(NamedTuple):
    """Series after their last session; arrays over series unless said."""
    #: Series x sessions: NORMAL, WORSE, BETTER after each session of the series; NORMAL
    #: if it has no value.
    states: np.ndarray
    #: Series x sessions, (x - centre) / spread by the last baseline.
    z: np.ndarray
    #: The first session of the present level, or of the change.
    start: np.ndarray
    baseline: Baseline
    #: The last session is worth running again.
    suspect: np.ndarray
    #: It is so far outside that noise does not explain it.
    incident: np.ndarray
    #: Series x sessions: of the present baseline or level, not of one that was
    #: before it, nor of a change that is over.
    usable: np.ndarray
    #: Series x sessions: how far a window of the newest sessions is worse, as a share
    #: of what alarms; 0: no window qualifies.
    strengths: np.ndarray
    #: Added to QUANTILE.
    caution: np.ndarray


class Change(NamedTuple):
    """The distance of a level from its baseline, in the unit of the series."""
    size: float
    low: float
    high: float


def student_t_quantile(df: np.ndarray | float, z: np.ndarray | float
            ) -> np.ndarray:
    """Quantile of Student's t at the probability of a normal quantile.

    The expansion of Abramowitz and Stegun, 26.7.5; df below 3 counts as 3.
    """
    d = np.maximum(df, 3.0)
    return (z + (z ** 3 + z) / (4 * d)
            + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * d ** 2)
            + (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z)
            / (384 * d ** 3))


def variance_of_mean(sessions, phi):
    """Variance of a mean over sessions of an AR(1) process of variance 1."""
    return ((1 + phi) / (1 - phi) - 2 * phi * (1 - phi ** sessions)
            / (sessions * (1 - phi) ** 2)) / sessions


def variance_of_clipped_normal(limit: float) -> float:
    """Variance of a standard normal variable that is clipped at plus and minus a
    limit."""
    inside = math.erf(limit / math.sqrt(2))
    density = math.exp(-limit ** 2 / 2) / math.sqrt(2 * math.pi)
    return inside - 2 * limit * density + limit ** 2 * (1 - inside)


def detect_level_changes(
    x: np.ndarray,
    *,
    first: np.ndarray | None = None,
    pool: np.ndarray | None = None,
    minimum: np.ndarray | float = MINIMUM,
    runs: np.ndarray | None = None,
    within: np.ndarray | None = None,
    caution: np.ndarray | float = 0.0,
) -> Walk:
    """Goes through the sessions of many series.

    :param x: series x sessions, more is worse; NaN: no value
    :param first: session at which each baseline begins
    :param pool: number of the series that each belongs together with; None:
        each stands alone
    :param minimum: smallest change that matters, e.g. the last digit that is printed;
        smaller ones are rounding, whose spread is that of a uniform distribution
    :param runs: runs of each session, and
    :param within: their standard deviation (NaN: one run)
    :param caution: added to the normal quantile of an alarm, for what stands
        beside many others
    """
    # The sessions of each series without those that it has no value of.
    measured = np.isfinite(x)
    width = int(measured.sum(1).max(initial=0))
    own = np.argsort(~measured, 1, kind='stable')[:, :width]
    x = np.take_along_axis(x, own, 1)
    if runs is not None and within is not None:
        runs, within = (np.take_along_axis(values, own, 1) for values in (runs, within))
    series, sessions = x.shape
    pool = np.arange(series) if pool is None else pool
    alone = np.bincount(pool)[pool] < FEWEST_SERIES
    caution = np.asarray(caution + ALONE * alone)
    last = measured.sum(1) - 1
    begin = np.zeros(series, int) if first is None else (
        measured & (np.arange(measured.shape[1]) < first[:, None])).sum(1)
    minimum = np.broadcast_to(np.asarray(minimum, float), series)
    floor = minimum / math.sqrt(12)
    held = np.zeros((series, sessions), bool)     # in the baseline
    unusable = np.arange(sessions) < begin[:, None]
    mode, start = np.zeros(series, int), np.zeros(series, int)
    level, back = np.zeros(series), np.zeros(series)
    states = np.zeros((series, sessions), np.int8)
    strengths = np.zeros((series, sessions))
    suspect, incident = np.zeros(series, bool), np.zeros(series, bool)
    now = Baseline(np.zeros(series), np.ones(series), np.zeros(series),
                 np.zeros(series, int), np.full(series, 3.0))
    for t in range(sessions):
        live = t <= last
        _grow_baselines(x, held, begin, live & (mode == NORMAL), t, now, pool)
        spread = np.maximum(now.spread, floor)
        w0 = min(t + 1, WINDOWS[-1])
        recent = x[:, t + 1 - w0:t + 1]
        far = (recent - now.centre[:, None]) / spread[:, None]
        far = np.where(np.isfinite(far), far, 0.0)
        z = np.clip(far, -CLIP, CLIP)
        for row in _end_recovered_changes(mode, level, back, begin, start, z[:, -1], t,
                                          live):
            unusable[row, start[row]:t] = True
        follow = live & (mode == BETTER) & (t + 1 - start >= BRIEF)
        for row in np.flatnonzero(follow):
            held[row] = False
            held[row, start[row]:start[row] + BRIEF] = True
            begin[row], mode[row] = start[row], NORMAL
            unusable[row, :start[row]] = True
        judged = live & (mode == NORMAL) & (now.sessions >= FEWEST) & ~follow
        beyond = recent[:, -1] - now.centre
        far_outside, this_session = _strength_of_single_session(
            beyond, spread, now, t, runs, within, caution)
        suspect = np.where(live, judged & (beyond > WORSE_IN_SHORTEST * spread),
                           suspect)
        incident = np.where(live, suspect & (far_outside > 1) & (beyond > minimum),
                            incident)
        windows = _newest_windows(far)
        for side in (WORSE, BETTER):
            strength = _alarm_strength(windows, side, now, minimum / spread,
                                       t + 1 - begin, caution)
            if side == WORSE:
                strength = np.maximum(strength, this_session * (beyond > minimum))
                strengths[:, t] = strength
            hit = judged & (strength > 1)
            rows = np.flatnonzero(hit)
            if len(rows):
                begins, means = _locate_change_point(side * z[rows], begin[rows], t)
                start[rows], level[rows] = begins, means
                mode[rows], back[rows] = side, 0.0
                for row, at in zip(rows, begins, strict=True):
                    held[row, at:] = False
        states[live, t] = mode[live]
    spread = np.maximum(now.spread, floor)
    z = (x - now.centre[:, None]) / spread[:, None]

    def of_all_sessions(values, other):
        every = np.full(measured.shape, other, values.dtype)
        np.put_along_axis(every, own, np.where(np.isfinite(x), values, other), 1)
        return every

    return Walk(of_all_sessions(states, NORMAL), of_all_sessions(z, np.nan),
                np.take_along_axis(own, start[:, None], 1)[:, 0] if width else start,
                now._replace(spread=spread), suspect & (mode == NORMAL),
                incident & (mode == NORMAL),
                of_all_sessions(~unusable, False), of_all_sessions(strengths, 0.0),
                caution)


def smallest_detectable_change(walk: Walk, rows: np.ndarray, window: int) -> np.ndarray:
    """Smallest lasting change that alarms nine times in ten within a window.

    The mean of the window must exceed its quantile, and each of its sessions but a
    quarter WORSE_SESSION spreads (of the shortest window all, WORSE_IN_SHORTEST):

        s max(t_df(q) sqrt(v(w) + v(n)) + 1.28 sqrt(v(w)), worse + z)

    with the normal quantile z that so many of w sessions exceed nine times in ten.

    :param window: sessions since the change, 3 or 6
    :returns: in the unit of the series
    """
    _, spread, phi, sessions, df = (part[rows] for part in walk.baseline)
    own = variance_of_mean(window, phi)
    mean = student_t_quantile(df, QUANTILE + walk.caution[rows]) * np.sqrt(
        own + variance_of_mean(np.maximum(sessions, 1), phi)) + 1.28 * np.sqrt(own)
    return spread * np.maximum(mean, {
        3: WORSE_IN_SHORTEST + 1.82, 6: WORSE_SESSION + 1.32}[window])


def control_false_discoveries(worse: np.ndarray, strengths: np.ndarray,
                              measured: np.ndarray) -> np.ndarray:
    """Which changes for the worse are reported: at most FALSE_SHARE of them are
    expected to pass by themselves.

    Noise of real machines has heavier tails and longer bumps than any model. The
    history shows which changes pass: those that were over within BRIEF sessions, if
    they began in several sessions: a fault that was repaired does not hide the next
    one. A recent change is reported if the mean number of such changes
    in a session, which were as strong as it, is at most FALSE_SHARE of the recent
    changes that are as strong (Benjamini and Hochberg, J. R. Stat. Soc. B 57, 1995,
    with the empirical null distribution of Efron, J. Am. Stat. Assoc. 99, 2004). A
    change that alarms for BRIEF sessions is reported in any case.

    :param worse: series x sessions of a system: `Walk.states` is WORSE
    :param strengths: series x sessions: `Walk.strengths`
    :param measured: series x sessions: the series has a value of the session
    :returns: series x sessions: the part of `worse` that is reported
    """
    reported = np.zeros(worse.shape, bool)
    begin, peak = np.zeros(len(worse), int), np.zeros(len(worse))
    before, is_reported = np.zeros(len(worse), bool), np.zeros(len(worse), bool)
    # Of the changes that passed: first session, sessions that they lasted, and peak.
    past = np.empty((3, 0))
    for t in range(worse.shape[1]):
        now = np.where(measured[:, t], worse[:, t], before)
        new, over = now & ~before, before & ~now & (t - begin <= BRIEF)
        past = np.append(past, [begin[over], (t - begin)[over], peak[over]], axis=1)
        begin[new], peak[new], is_reported[new] = t, 0.0, False
        rises = now & measured[:, t]
        peak[rises] = np.maximum(peak[rises], strengths[rises, t])
        recent = np.flatnonzero(now & (t - begin < BRIEF))
        recent = recent[np.argsort(-peak[recent], kind='stable')]
        usual = np.zeros(len(recent))
        for number, row in enumerate(recent):
            began, lasted, _ = past[:, past[2] >= peak[row]]
            if len(np.unique(began)) > 1:
                usual[number] = lasted.sum() / max(t - FEWEST, 1)
        good = np.flatnonzero(usual <= FALSE_SHARE * np.arange(1, len(recent) + 1))
        is_reported[recent[:good.max(initial=-1) + 1]] = True
        is_reported |= now & (t - begin >= BRIEF)
        is_reported &= now
        reported[:, t], before = is_reported, now
    return reported


def estimate_noise(x: np.ndarray, held: np.ndarray | None = None,
                   floor: np.ndarray | float = 0.0
                   ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre, spread, and deviations from the centre, of each series: Huber's
    estimates (Ann. Math. Stat. 35, 1964), which begin with the seven eighths in the
    middle.

    All parts of the suite estimate noise with this function: tolerances, comparisons
    and baselines.

    :param held: series x sessions: those that count; None: all
    :param floor: smallest spread, such as the last digit that is printed
    """
    held = np.ones(x.shape, bool) if held is None else held
    n = held.sum(1)
    number = np.maximum(n, 2)
    kept = np.where(held, x, 0.0)
    ordered = np.sort(np.where(held, x, np.inf), 1)
    ends, rows = n // 8, np.arange(len(x))
    low = ordered[rows, np.minimum(ends, x.shape[1] - 1)]
    high = ordered[rows, np.maximum(n - 1 - ends, 0)]
    low, high = np.where(n > 0, low, 0.0), np.where(n > 0, high, 0.0)

    def clipped_mean_and_variance(low, high):
        inner = np.where(held, np.clip(kept, low[:, None], high[:, None]), 0)
        mean = inner.sum(1) / number
        off = np.where(held, inner - mean[:, None], 0.0)
        return mean, off, (off ** 2).sum(1) / (number - 1)

    centre, off, var = clipped_mean_and_variance(low, high)
    spread = np.sqrt(var) / (1 - 2 * ends / number)
    for _ in range(3):
        centre, off, var = clipped_mean_and_variance(centre - HUBER * spread,
                                                     centre + HUBER * spread)
        spread = np.sqrt(var / variance_of_clipped_normal(HUBER))
    return centre, np.maximum(spread, floor), off


def compare_with_baseline(x: np.ndarray, usual: Baseline) -> Change:
    """Compares a level with its baseline; the interval is one of 95 %.

    :param x: the sessions of the level
    :param usual: of one series
    """
    widest = HUBER * usual.spread
    size = float(np.clip(x, np.median(x) - widest, np.median(x) + widest).mean()
                 - usual.centre)
    error = usual.spread * math.sqrt(variance_of_mean(len(x), usual.phi)
                                     + variance_of_mean(usual.sessions, usual.phi))
    wide = float(student_t_quantile(usual.df, 1.96) * error)
    return Change(size, size - wide, size + wide)


def compare_levels(before: np.ndarray, after: np.ndarray) -> tuple[float, Change]:
    """The centre of the sessions before a change, and the distance of those after it;
    for a series that stands alone.

    :param before: values of the sessions, at least one
    """
    usual = _baseline_stats(before[None], np.ones((1, len(before)), bool),
                            np.zeros(1, int)).of_series(0)
    return float(usual.centre), compare_with_baseline(
        after, usual._replace(spread=np.maximum(usual.spread, 1e-5)))


def spread_between_sessions(x: np.ndarray) -> tuple[float, float]:
    """Spread of a series, and its degrees of freedom.

    It comes from the steps between neighbouring sessions, so that changes of level do
    not widen it (von Neumann, Ann. Math. Stat. 12, 1941).

    :param x: at least two sessions
    """
    steps = np.diff(x)[None] / math.sqrt(2)
    return float(estimate_noise(steps)[1][0]), max(steps.size / 1.5, 2.0)


def earlier_spells(x: np.ndarray, centre: float, size: float) -> list[tuple[int, int]]:
    """First and last position of the spells in which a series was at a level before.

    A spell has at least FEW sessions, and so many that noise with QUANTILE does not
    move their mean by half of the change. The median of each session and its
    neighbours is then within half of the change of the new level. The noise is that
    between neighbouring sessions, so that earlier spells do not add to it.

    :param x: the sessions before the change
    :param size: distance of the new level from the centre, not 0
    """
    if len(x) < FEW:
        return []
    noise, _ = spread_between_sessions(x)
    padded = np.pad((x - centre) / size, 1, mode='edge')
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 3), 1)
    near = np.concatenate([[False], abs(smooth - 1) < 0.5, [False]])
    first, after = np.flatnonzero(np.diff(near.astype(int))).reshape(-1, 2).T
    fewest = max(FEW, math.ceil((2 * QUANTILE * noise / abs(size)) ** 2))
    return [(int(a), int(b) - 1) for a, b in zip(first, after, strict=True)
            if b - a >= fewest]


def _grow_baselines(x: np.ndarray, held: np.ndarray, begin: np.ndarray,
                    open_: np.ndarray, t: int, now: Baseline,
                    pool: np.ndarray) -> None:
    """Takes sessions that have waited into the baselines; `now` is updated."""
    until = t - min(max(t // FEWEST, WINDOWS[0]), WINDOWS[1])
    grows = open_ & (now.sessions < ANCHOR)
    if until < 0 or not grows.any():
        return
    rows = np.flatnonzero(grows)
    for k in range(max(until - 2, 0), until + 1):
        held[rows, k] |= begin[rows] <= k
    stats = _baseline_stats(x[rows, :until + 1], held[rows, :until + 1],
                            pool[rows])
    for old, new in zip(now, stats, strict=True):
        old[rows] = new


def _baseline_stats(x: np.ndarray, held: np.ndarray, pool: np.ndarray) -> Baseline:
    """Centre, spread and autocorrelation of each baseline."""
    n = held.sum(1)
    number = np.maximum(n, 2)
    centre, spread, off = estimate_noise(x, held)
    pairs = held[:, 1:] & held[:, :-1]
    power = (off ** 2).sum(1) * np.maximum(pairs.sum(1), 1) / number
    lagged = np.where(pairs, off[:, 1:] * off[:, :-1], 0.0).sum(1)
    number = np.maximum(n, FEWEST)
    # Less is no noise, but the rounding of sums.
    varies = spread > 1e-9
    phi = np.divide(lagged, power, out=np.zeros(len(x)), where=varies)
    phi = (phi + 1 / number) / (1 - 3 / np.maximum(number, 6))
    phi, spread, more = _pool_with_similar_series(
        phi, spread, number, varies & (n >= FEWEST), pool)
    share = 1 - (variance_of_mean(number, phi) - 1 / number)
    return Baseline(centre, spread / np.sqrt(share), phi, n,
                  _degrees_of_freedom(n, phi) + more)


def _degrees_of_freedom(n: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """Degrees of freedom of a spread of sessions that resemble each other."""
    return np.maximum(n * (1 - phi ** 2) / (1 + phi ** 2) - 1, 2.0)


def _pool_with_similar_series(phi: np.ndarray, spread: np.ndarray, n: np.ndarray,
                              good: np.ndarray, pool: np.ndarray
            ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Autocorrelation and spread, drawn towards those of the neighbours;
    and the degrees of freedom that these add."""
    size = int(pool.max(initial=0)) + 1
    count = np.bincount(pool, good, size)
    number = np.maximum(count, 1)
    enough = count >= FEWEST_SERIES

    def mean_per_pool(values):
        return np.bincount(pool, np.where(good, values, 0.0), size) / number

    common = np.where(enough, mean_per_pool(phi), PHI)[pool]
    weight = np.where(enough, ANCHOR, PHI_SESSIONS)[pool]
    phi = np.clip((n * phi + weight * common) / (n + weight), 0, PHI_MAX)
    df = _degrees_of_freedom(n, phi)
    logs = 2 * np.log(np.where(good, spread, 1.0)) + 1 / df
    common = mean_per_pool(logs)
    # Variance between series beyond that of their estimates.
    apart = (mean_per_pool((logs - common[pool]) ** 2) * number
             / np.maximum(number - 1, 1) - mean_per_pool(2 / df + 2 / df ** 2))
    more = np.where(enough, np.minimum(2 / np.maximum(apart, 1e-9), ANCHOR),
                    0.0)[pool]
    more = np.where(good, more, 0.0)
    var = (df * spread ** 2 + more * np.exp(common)[pool]) / (df + more)
    return phi, np.sqrt(var), more


def _newest_windows(z: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The windows that end in the newest session, of WINDOWS, and their means.

    :param z: the newest sessions, in spreads
    """
    windows = [np.clip(z[:, -sessions:], -CLIP, CLIP)
               for sessions in WINDOWS if sessions <= z.shape[1]]
    return [(window, window.mean(1)) for window in windows]


def _alarm_strength(windows: list[tuple[np.ndarray, np.ndarray]], side: int,
                    now: Baseline, minimum: np.ndarray, age: np.ndarray,
                    caution: np.ndarray) -> np.ndarray:
    """How far the worst window that ends with the newest session is from its
    baseline, as a share of what alarms; 0: too few of its sessions are far.

    :param windows: as `_newest_windows` gives them
    :param side: WORSE or BETTER
    :param minimum: smallest change that matters, in spreads
    :param age: sessions since the baseline began
    """
    strength = np.zeros(len(age))
    own = variance_of_mean(np.maximum(now.sessions, 1), now.phi)
    for (window, mean), sessions in zip(windows, WINDOWS, strict=False):
        few = sessions // 4
        worse = np.partition(side * window, few, 1)[:, few] > (
            WORSE_SESSION if few else WORSE_IN_SHORTEST)
        rows = np.flatnonzero((side * mean > minimum) & (age >= sessions) & worse)
        t = side * mean[rows] / np.sqrt(variance_of_mean(
            sessions, now.phi[rows]) + own[rows])
        strength[rows] = np.maximum(strength[rows], t / student_t_quantile(
            now.df[rows], QUANTILE + caution[rows]))
    return strength


def _strength_of_single_session(
    beyond: np.ndarray,
    spread: np.ndarray,
    now: Baseline,
    t: int,
    runs: np.ndarray | None,
    within: np.ndarray | None,
    caution: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """How far outside the newest session is, as a share of what an incident takes,
    and of what alarms; the latter is 0 if it was measured less than RERUNS times."""
    far = beyond / spread / np.sqrt(1 + variance_of_mean(
        np.maximum(now.sessions, 1), now.phi)) / student_t_quantile(
            now.df, QUANTILE + caution)
    if runs is None or within is None:
        return far, np.zeros(len(far))
    # What reruns redraw is no noise of the session; half of it is believed.
    share = np.minimum(np.nan_to_num(within[:, t]) / spread, 1.0) ** 2
    left = 1 - share / 2 + share / np.maximum(runs[:, t], 1)
    return far, np.where(runs[:, t] >= RERUNS, far / np.sqrt(left), 0.0)


def _end_recovered_changes(mode: np.ndarray, level: np.ndarray, back: np.ndarray,
                           begin: np.ndarray, start: np.ndarray, z: np.ndarray, t: int,
                           live: np.ndarray) -> np.ndarray:
    """Ends what is over; the arrays are updated.

    :returns: the series of which a change is over
    """
    away = live & (mode != NORMAL)
    step = np.clip(level, 1.0, CLIP)
    toward = mode * z
    back[:] = np.where(away, np.maximum(
        0.0, back + step * (step / 2 - toward)), 0.0)
    over = away & (back > RECOVERED)
    mode[over], begin[over] = NORMAL, np.maximum(begin, t)[over]
    sessions = np.maximum(t + 1 - start, 1)
    level[:] = np.where(mode != NORMAL, level + (toward - level) / sessions, 0.0)
    return np.flatnonzero(over)


def _locate_change_point(z: np.ndarray, begin: np.ndarray, t: int
           ) -> tuple[np.ndarray, np.ndarray]:
    """Position of the first session of a new level, and the level."""
    width = z.shape[1]
    at = np.arange(width) + t + 1 - width
    sums = np.cumsum(np.where(at < begin[:, None], 0.0, z)[:, ::-1],
                     1)[:, ::-1]
    sessions = width - np.arange(width)
    best = np.where(sums > 0, sums ** 2 / sessions, 0.0).argmax(1)
    return at[best], sums[np.arange(len(z)), best] / sessions[best]
