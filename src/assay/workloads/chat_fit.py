"""Find the chat traffic that a trace is a sample of.

Lengths, think times and the rate curve are read off the trace. Two numbers cannot be: how often conversations go on
(the trace's end cuts them) and how much openings share (a system prompt's first use is no reuse). They are found by
generating as many requests as the trace has and comparing: the share of later turns, then the infinite-cache hit ratio.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from assay.sim.compiled import njit
from assay.workloads.chat import DAY, Chat, Lengths
from assay.workloads.closed_loop import closed
from assay.workloads.conversations import BLOCK
from assay.workloads.prefixes import infinite_cache_hit, turns
from assay.workloads.request_files import spread
from assay.workloads.requests import Floats, Ints, Prefixes, Requests

_SEED = 20_250_101
_MOST = 20_000  # requests generated to calibrate


def fit_chat(requests: Requests) -> Chat:
    """See :func:`assay.workloads.chat.fit`."""
    if len(requests) < 10 or not requests.seconds:
        raise ValueError("a fit needs at least ten requests over some time")
    before = turns(requests)
    later = np.flatnonzero(before >= 0)
    model = replace(
        _arrivals(requests), included=True, context=int(requests.prompt.max()) + 1, shared=0.0, stay=np.zeros(1)
    )
    first = np.flatnonzero(before < 0)
    model = replace(model, opening=Lengths.of(requests.prompt[first], requests.output[first]))
    if len(later):
        model = _with_turns(model, requests, before, later)
    if requests.prefixes is None:
        return replace(model, prefixes=len(later) > 0)
    return _with_sharing(model, requests, first)


# ------------------------------------------------------------------------------------------- arrivals


def _arrivals(requests: Requests) -> Chat:
    arrival, _ = spread(requests.arrival)  # a coarse clock looks like bursts
    arrival = arrival - arrival[0]
    seconds, rate = float(arrival[-1]), (len(arrival) - 1) / float(arrival[-1])
    period = DAY if seconds >= 2 * DAY else seconds
    bins = int(np.clip(len(arrival) / 100, 1, 1440 if period == DAY else max(1, min(1440, period // 10))))
    counted = np.bincount(np.minimum((arrival % period / period * bins).astype(np.int64), bins - 1), minlength=bins)
    curve, cv = counted / counted.mean(), 1.0
    for _ in range(
        3
    ):  # what a bin varies by chance alone is not part of the curve, and what the curve explains no burst
        chance = cv**2 * counted.mean()
        keep = np.sqrt(max(0.0, 1 - chance / counted.var())) if counted.var() > 0 else 0.0
        curve = np.maximum(1 + keep * (counted / counted.mean() - 1), 0.01)
        gaps = np.diff(_operational(arrival, curve, period))
        cv = float(np.clip(gaps.std() / gaps.mean(), 0.05, 20.0))
    scores = stats.norm.ppf((stats.rankdata(gaps) - 0.5) / len(gaps))
    memory = float(np.clip(np.corrcoef(scores[:-1], scores[1:])[0, 1], -0.95, 0.95)) if len(gaps) > 100 else 0.0
    return Chat(rate=rate, curve=curve, period=period, burstiness=cv, memory=memory if abs(memory) > 0.02 else 0.0)


def _operational(arrival: Floats, curve: Floats, period: float) -> Floats:
    """Times on a clock that runs with the curve, on which the rate is constant."""
    laps, rest = np.divmod(arrival, period)
    edges = np.linspace(0, period, len(curve) + 1)
    done = np.concatenate([[0.0], np.cumsum(curve) / curve.sum()]) * period
    return np.asarray(laps * period + np.interp(rest, edges, done), np.float64)


# ------------------------------------------------------------------------------------------- turns


def _with_turns(model: Chat, requests: Requests, before: Ints, later: Any) -> Chat:
    """Later turns: what they add, how long people think, and how often there is one."""
    earlier = before[later]
    prompt, output = requests.prompt.astype(np.int64), requests.output.astype(np.int64)
    added = prompt[later] - prompt[earlier] - output[earlier]
    model = replace(
        model,
        later=Lengths.of(np.maximum(added, -output[earlier] + 1), output[later]),
        think=np.quantile(_think(requests)[later], np.linspace(0, 1, 513)),
    )
    went_on = np.zeros(len(requests), bool)
    went_on[earlier] = True
    edges = np.unique(np.quantile(prompt, np.linspace(0, 1, 11)[1:-1]))
    bins = np.searchsorted(edges, prompt)
    stay = np.bincount(bins, went_on, len(edges) + 1) / np.maximum(np.bincount(bins, minlength=len(edges) + 1), 1)
    return _calibrated_turns(
        replace(model, stay_edges=edges), stay, len(later) / len(requests), min(len(requests), _MOST)
    )


def _think(requests: Requests) -> Floats:
    """Seconds between the end of a turn and the next."""
    think = requests.think if requests.think is not None else closed(requests).think
    assert think is not None
    return think


def _calibrated_turns(model: Chat, stay: Floats, goal: float, n: int) -> Chat:
    """Raise how often people go on until as many later turns lie within the trace as there were."""
    low, high = 0.5, 4.0
    for _ in range(12):
        factor = (low * high) ** 0.5
        trial = replace(model, stay=np.minimum(stay * factor, 0.995))
        session = trial.generate(n, _SEED).session
        share = 1 - (int(session.max()) + 1) / n if session is not None else 0.0
        low, high = (factor, high) if share < goal else (low, factor)
    return trial


# ------------------------------------------------------------------------------------------- shared openings


class Shared(NamedTuple):
    """What openings have in common."""

    root: int  # tokens that most begin with
    tokens: Any  # of each opening that shares more than that, how many more
    group: Any  # and with whom


def shared_openings(prefixes: Prefixes, first: Any) -> Shared:
    """Which openings begin alike, beyond what nearly all begin with."""
    p = prefixes
    root, tokens, group = _shared(p.start, p.stop, p.offsets, p.segments, first)
    found = tokens > 0
    return Shared(int(root), tokens[found], group[found])


@njit(cache=True, nogil=True)
def _shared(start: Any, stop: Any, offsets: Any, segments: Any, first: Any) -> Any:
    walked = np.zeros(len(start), np.int64)
    for r in first:
        for at in range(offsets[r], offsets[r + 1]):
            walked[segments[at]] += 1
    root = 0
    tokens, group = np.zeros(len(first), np.int64), np.full(len(first), -1, np.int64)
    for k in range(len(first)):
        r = first[k]
        common = 0
        for at in range(offsets[r], offsets[r + 1]):
            s = segments[at]
            if walked[s] * 2 > len(first):
                common = stop[s]
                root = max(root, common)
            elif walked[s] > 1:
                if group[k] < 0:
                    group[k] = s
                tokens[k] = stop[s] - common
            else:
                break
    return root, tokens, group


def _with_sharing(model: Chat, requests: Requests, first: Any) -> Chat:
    """System prompts: how many, how long, how popular; then as much of them as the hit ratio asks for."""
    assert requests.prefixes is not None
    goal = infinite_cache_hit(requests)
    shared = shared_openings(requests.prefixes, first)
    model = replace(model, root=shared.root // BLOCK * BLOCK)
    if not len(shared.tokens):
        return model
    sizes = np.sort(np.unique(shared.group, return_counts=True)[1])[::-1]
    slope = np.polyfit(np.log(np.arange(1, len(sizes) + 1)), np.log(sizes), 1)[0] if len(sizes) > 2 else -1.0
    model = replace(
        model,
        pool=len(sizes),
        zipf=float(np.clip(-slope, 0.0, 3.0)),
        systems=np.quantile(shared.tokens, np.linspace(0, 1, 257)),
    )
    n = min(len(requests), _MOST)
    low, high = 0.0, 1.0
    for _ in range(9):
        trial = replace(model, shared=(low + high) / 2)
        hit = infinite_cache_hit(trial.generate(n, _SEED))
        low, high = (trial.shared, high) if hit < goal else (low, trial.shared)
    return trial
