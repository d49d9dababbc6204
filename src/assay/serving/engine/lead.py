"""How sure a difference between two runs of one trace is: the same requests, resampled by the sessions they belong to.

Requests of a session share their prompts, and sessions that begin together share a queue. So neither requests nor
single sessions are drawn, but stretches of whole sessions that began one after the other.

What one run cannot tell, how much of the difference is luck, is asked of further ones (`assay.serving.engine.luck`).

It is the certainty of one trace at its own load. Another trace of the kind brings more or less work, and everybody
waits longer or shorter: over 60 generated traces the intervals held the mean lead in 87 % of the runs for routers that
keep up, but in 23 % for two that do not (vllm-v1 beside round-robin). Who has several traces should run them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from assay.record.intervals import of_resampled
from assay.serving.engine.outcome import Outcome
from assay.sim.streams import stream
from assay.workloads.requests import Requests

STRETCHES, DRAWS, TAIL_DRAWS = 40, 2000, 400
Floats = NDArray[np.float64]


class Lead(NamedTuple):
    """By which share the better run leads, with its 95 % interval."""

    share: float
    low: float
    high: float

    @property
    def tie(self) -> bool:
        """Whether no difference at all lies inside the interval."""
        return not self.low > 0


def stretches(requests: Requests, count: int = STRETCHES) -> NDArray[np.int64]:
    """Which stretch each request belongs to: whole sessions, in the order in which they began.

    >>> trace = Requests.of(arrival=[0.0, 1.0, 2.0, 3.0], prompt=[9] * 4, output=[1] * 4, session=[7, 7, 3, 7])
    >>> stretches(trace, 2).tolist()
    [0, 0, 1, 0]
    """
    n = len(requests)
    # A request without a session is one of its own.
    session = np.full(n, -1) if requests.session is None else np.asarray(requests.session, np.int64)
    named = np.where(session >= 0, session, session.max(initial=-1) + 1 + np.arange(n))
    _, first, which, sizes = np.unique(named, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    before = np.empty(len(order), np.int64)
    before[order] = np.cumsum(sizes[order]) - sizes[order]
    return np.asarray(before * min(count, n) // max(n, 1))[which]


class Drawn(NamedTuple):
    """What one trace says about two runs: the ratio of their means, and how far its logarithm may be off (95 %)."""

    ratio: float
    spread: float


def drawn(best: Outcome, other: Outcome, waited: Floats, waited_other: Floats) -> Drawn:
    """The ratio of the mean of `waited` to that of `waited_other`: one value a request that was judged.

    What happened in one stretch of time is not forgotten in the next: queues last, and so does who got which. So the
    spread is that of forty stretches, of twenty, ten or five, whichever is largest, by Student's t.
    """
    spread = 0.0
    for count in (40, 20, 10, 5):
        where = stretches(best.requests, count)
        parts = int(where.max(initial=0)) + 1
        if parts < 2:
            spread = np.inf
            continue
        apart = _share_of_mean(where, best.judged, waited, parts) - _share_of_mean(
            where, other.judged, waited_other, parts
        )  # fmt: skip
        half = float(special.stdtrit(parts - 1, 0.975)) * float(apart.std(ddof=1)) * np.sqrt(parts)
        spread = max(spread, half)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = waited.mean() / waited_other.mean() if len(waited) and len(waited_other) else np.nan
    if ratio == 0.0:  # of n requests none: of many more such there would be fewer than three in n (95 %)
        return Drawn(0.5 / len(waited) / float(waited_other.mean()), float(spread) + float(np.log(6.0)))
    return Drawn(float(ratio), float(spread))


def _share_of_mean(where: NDArray[np.int64], judged: NDArray[np.bool_], values: Floats, parts: int) -> Floats:
    """What each stretch adds to the logarithm of the mean: its sum beyond what its requests would have on average."""
    sums = np.bincount(where[judged], weights=values, minlength=parts)
    counts = np.bincount(where[judged], minlength=parts)
    total = float(sums.sum())
    return np.asarray(sums / total - counts / counts.sum()) if total else np.zeros(parts)


def lead(best: Outcome, other: Outcome, waited: Floats, waited_other: Floats) -> Lead:
    """By which share the mean of `waited` is below that of `waited_other`: one value a request that was judged.

    >>> from assay.serving.engine.lead import Lead
    >>> Lead(0.2, 0.1, 0.3).tie, Lead(0.02, -0.01, 0.05).tie
    (False, True)
    """
    return lead_over([drawn(best, other, waited, waited_other)])


def lead_over(traces: Sequence[Drawn]) -> Lead:
    """The lead over several traces, each of which counts as much as any other: by the geometric mean of the ratios.

    >>> round(lead_over([Drawn(0.5, 0.0), Drawn(1.0, 0.0)]).share, 3)
    0.293
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = float(np.mean([np.log(one.ratio) for one in traces]))
    spread = float(np.sqrt(np.sum([one.spread**2 for one in traces]))) / len(traces)
    share = 1 - float(np.exp(middle))
    if not np.isfinite(share) or not np.isfinite(middle):
        return Lead(share if np.isfinite(share) else 0.0, -np.inf, np.inf)
    if not np.isfinite(spread):
        return Lead(share, -np.inf, np.inf)
    return Lead(share, 1 - float(np.exp(middle + spread)), 1 - float(np.exp(middle - spread)))


def paired(waited: ArrayLike, waited_other: ArrayLike, where: ArrayLike, tail: float | None = None) -> Lead:
    """By which share the mean (or the quantile `tail`) of one run's values is below another's, of the same things.

    `where` is the stretch of each. One stretch alone tells no spread, so nothing can be said of its lead.

    >>> found = paired([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0], where=[0, 1, 2, 3])
    >>> found.share, found.low, found.tie
    (0.5, 0.5, False)
    >>> paired([1.0, 2.0], [2.0, 4.0], where=[0, 0]).tie
    True
    """
    _, stretch = np.unique(np.asarray(where), return_inverse=True)
    parts = int(stretch.max(initial=-1)) + 1
    draws = np.vstack([np.ones(parts), _draws(parts, DRAWS if tail is None else TAIL_DRAWS)])
    ours, theirs = (_statistic(np.asarray(each, float), stretch, draws, tail) for each in (waited, waited_other))
    with np.errstate(divide="ignore", invalid="ignore"):
        return _ends(1 - ours / theirs, parts)


def _statistic(values: Floats, stretch: NDArray[np.int64], draws: Floats, tail: float | None) -> Floats:
    """The mean or a quantile of the values, each weighted as often as its stretch is drawn: one for every draw."""
    if tail is None:
        sums, counts = (np.bincount(stretch, weights, draws.shape[1]) for weights in (values, None))
        return np.asarray((draws @ sums) / (draws @ counts))
    order = np.argsort(values, kind="stable")
    below = np.cumsum(draws[:, stretch[order]], axis=1)
    return np.asarray(values[order][np.argmax(below >= tail * below[:, -1:], axis=1)])


def _draws(parts: int, count: int = DRAWS, number: int = 0) -> Floats:
    return stream(number, "serving", "lead").multinomial(parts, np.full(parts, 1 / parts), size=count).astype(float)


def _ends(shares: Floats, parts: int) -> Lead:
    """The first share, which nothing was drawn for, with the interval of the others."""
    share, drawn = float(shares[0]), shares[1:][np.isfinite(shares[1:])]
    if not len(drawn) or not np.isfinite(share):
        return Lead(0.0, -np.inf, np.inf)
    found = of_resampled(share, drawn, parts)
    return Lead(share, found.low, found.high)
