"""Population protocols on the complete graph, by counts: 10⁹ agents without one object for any of them.

In each step a uniformly random ordered pair of agents meets and both change state by the rule. Only the number of
agents in each state matters, and for about √n meetings in a row no agent is met twice. So a *batch* draws the length of
such a run, then how many agents of which states take part and who meets whom (hypergeometric draws), applies the rule
to whole groups, and last carries out the one meeting that ends the run, in which somebody is met again. A batch costs
as much at 10⁹ agents as at 10⁴. When so few meetings change anything that a batch would hold only some, the engine
*jumps* instead: a geometric draw skips to the next meeting that does. Both are exact: the counts after any number of
meetings have the distribution of the process itself.

>>> outcome = run(APPROXIMATE_MAJORITY, {"A": 510_000, "B": 490_000}, seed=1, replicas=3)
>>> outcome.silent.tolist(), outcome.final(0), bool((outcome.time < 60).all())
([True, True, True], {'A': 1000000}, True)

Cost: O(q²) draws for each √n meetings with q states present, or O(q) for each meeting that changes something.

- Berenbrink, Hammer, Kaaser, Meyer, Penschuck, Tran, "Simulating population protocols in sub-constant time per
  interaction", ESA 2020 (batches). Doty, Severson, "ppsim", CMSB 2021 (batches and jumps in one simulator).
- Gillespie, "Exact stochastic simulation of coupled chemical reactions", J. Phys. Chem. 1977 (jumps).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from assay.protocols.kernel.draws import Source, binomial, hypergeometric, integer, log_ratio, source, uniform
from assay.protocols.ordered_pp.population import APPROXIMATE_MAJORITY, Rule, Table, tabulate
from assay.sim.compiled import njit

Counts = npt.NDArray[np.int64]

__all__ = ["APPROXIMATE_MAJORITY", "Outcome", "run"]

_CHUNK = 1 << 17  # batches between two looks at the keyboard: less than a second for a few states
_JUMPS = 256  # jumps before the engine asks again whether batches would pay
_WORTH = 8  # a batch of q states costs about as much as 8 q jumps
_SPREAD_OUT = 10  # meetings per pair of states below which agents are paired off one by one


@dataclass(frozen=True, eq=False)
class Outcome:
    """How each replica ended. ``counts`` has a row a replica and a column a state; other fields, an entry a replica.

    A replica is ``silent`` when no meeting can change anything any more. ``interactions`` is exact if the last change
    came by a jump, as it does unless a single batch ends the run; else it is rounded up to the batch's end.
    """

    states: tuple[Any, ...]
    counts: Counts
    interactions: npt.NDArray[np.int64]
    silent: npt.NDArray[np.bool_]
    settled: npt.NDArray[np.bool_]
    """Whether all agents gave one output at the end; true for none if no outputs were asked for."""

    @property
    def time(self) -> npt.NDArray[np.float64]:
        """Parallel time: meetings per agent and initiator."""
        meetings: npt.NDArray[np.float64] = self.interactions / self.counts.sum(axis=1)
        return meetings

    def final(self, replica: int) -> dict[Any, int]:
        """The counts of one replica, by state; only states that are present."""
        return {state: int(count) for state, count in zip(self.states, self.counts[replica], strict=True) if count}


def run(
    rule: Rule | Table, counts: Mapping[Any, int] | npt.ArrayLike, *, outputs: Mapping[Any, Any] | None = None,
    max_time: float | None = None, seed: int = 0, replicas: int = 1, symmetric: bool = True,
) -> Outcome:  # fmt: skip
    """Run a protocol from these counts until it is silent, all agents give one output, or ``max_time`` has passed.

    ``outputs`` maps every state to what it says; a run then ends when only one answer is left (the protocol might still
    leave it again: that is the protocol's affair). Without a bound, a protocol that never goes silent runs for ever.
    ``symmetric`` is :func:`assay.protocols.ordered_pp.population.tabulate`'s; a `Table` has it already.

    >>> leaders = run({("L", "L"): ("L", "F")}, {"L": 10_000}, seed=2)
    >>> leaders.final(0), 2_000 < float(leaders.time[0]) < 60_000
    ({'L': 1, 'F': 9999}, True)
    >>> run({(0, 1): {(1, 1): 0.5}}, {0: 10**9 - 1, 1: 1}, max_time=2).silent.tolist()
    [False]
    """
    table = _table(rule, counts, symmetric)
    start = table.counts(counts)
    labels = _labels(table, outputs)
    cap = _cap(int(start.sum()), max_time)
    ends: list[tuple[int, bool, bool]] = []
    finals = np.tile(start, (replicas, 1))
    for replica in range(replicas):
        swarm = _Swarm(table, finals[replica], labels, seed, replica)
        swarm.advance(cap)
        ends.append((swarm.interactions, swarm.reason == _SILENT, bool(_agree(swarm.counts, labels))))
    interactions, silent, settled = np.array(ends, np.int64).reshape(-1, 3).T.copy()
    return Outcome(table.states, finals, interactions, silent.astype(bool), settled.astype(bool))


def _table(rule: Rule | Table, counts: Any, symmetric: bool) -> Table:
    if isinstance(rule, Table):
        return rule
    if not isinstance(counts, Mapping):
        raise ValueError("counts are no dict from state to number; an array needs a Table, which names its states")
    return tabulate(rule, counts, symmetric=symmetric)


def _labels(table: Table, outputs: Mapping[Any, Any] | None) -> npt.NDArray[np.int64]:
    if outputs is None:
        return np.empty(0, np.int64)
    missing = [state for state in table.states if state not in outputs]
    if missing:
        raise ValueError(f"outputs leave out the state {missing[0]!r}; one for each of {len(table.states)} expected")
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(outputs[state], len(numbers)) for state in table.states], np.int64)


def _cap(n: int, max_time: float | None) -> int:
    if max_time is None:
        return 2**62
    if not max_time >= 0:
        raise ValueError(f"max_time is {max_time}; a parallel time or None expected")
    return min(2**62, int(max_time * n))


class _Compiled(NamedTuple):
    """A table as the kernel wants it."""

    reactive: npt.NDArray[np.bool_]
    start: npt.NDArray[np.int64]
    first: npt.NDArray[np.int32]
    second: npt.NDArray[np.int32]
    chance: npt.NDArray[np.float64]


class _Swarm:
    """One replica under way; ``counts`` is changed in place."""

    def __init__(self, table: Table, counts: Counts, labels: npt.NDArray[np.int64], seed: int, replica: int) -> None:
        self.rule = _Compiled(table.reactive, table.start, table.first, table.second, table.chance)
        self.counts = counts
        self.labels = labels
        self.draw = source(seed, "swarm counts", replica)
        self.interactions = 0
        self.reason = _RUNNING

    def advance(self, cap: int) -> None:
        """Go on to ``cap`` meetings or to the end, in pieces short enough that Ctrl-C is heard between them."""
        while self.reason == _RUNNING and self.interactions < cap:
            self.interactions, self.reason = _advance(
                self.rule, self.counts, self.labels, self.draw, self.interactions, cap
            )


# --------------------------------------------------------------------------------------- the kernel

_RUNNING, _SILENT, _SETTLED = range(3)


@njit(cache=True, nogil=True)
def _advance(
    rule: _Compiled, counts: Counts, labels: npt.NDArray[np.int64], draw: Source, done: int, cap: int
) -> tuple[int, int]:
    """Batches and jumps until ``cap`` meetings, the end, or a chunk's worth of them."""
    n = counts.sum()
    pairs = float(n) * float(n - 1)
    mean_run = math.sqrt(math.pi / 8 * n)
    size = counts.size
    met, initiators, responders = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    for _ in range(_CHUNK):
        if _agree(counts, labels):
            return done, _SETTLED
        weight, present = _weight(rule, counts)
        if weight == 0.0:
            return done, _SILENT
        if done >= cap:
            return done, _RUNNING
        if weight / pairs * mean_run < _WORTH * present:
            done = _jumps(rule, counts, labels, draw, done, cap)
            continue
        length = _run_length(draw, n)
        whole = done + length < cap
        if not whole:  # the cap cuts the run short, before the meeting that would have ended it
            length = cap - done
        _batch(rule, counts, met, initiators, responders, draw, n, length)
        if whole:
            _collide(rule, counts, met, draw, n, 2 * length)
        for state in range(size):
            counts[state] += met[state]
            met[state] = 0
        done += length + whole
    return done, _RUNNING


@njit(cache=True, nogil=True)
def _agree(counts: Counts, labels: npt.NDArray[np.int64]) -> bool:
    """Whether all agents give the same output, if outputs are asked for."""
    if labels.size == 0:
        return False
    said = -1
    for state in range(counts.size):
        if counts[state] > 0:
            if said >= 0 and labels[state] != said:
                return False
            said = labels[state]
    return True


@njit(cache=True, nogil=True)
def _weight(rule: _Compiled, counts: Counts) -> tuple[float, int]:
    """The number of ordered pairs of agents whose meeting can change something, and of states present."""
    weight, present = 0.0, 0
    for p in range(counts.size):
        if counts[p] == 0:
            continue
        present += 1
        partners = 0
        for q in range(counts.size):
            if rule.reactive[p, q]:
                partners += counts[q] - (p == q)
        weight += float(counts[p]) * float(partners)
    return weight, present


@njit(cache=True, nogil=True)
def _log_survival(n: int, length: int) -> float:
    """ln of the chance that ``length`` meetings in a row involve 2·length different agents."""
    left = n - 2 * length
    if left < 0:
        return -math.inf
    if n < 4096:
        return log_ratio(n, left) - length * (math.log(n) + math.log(n - 1.0))
    if left < 16:  # less likely than e^-4000
        return -math.inf
    gone = 2.0 * length
    # ln n!/(left)! - 2·length·ln n by Stirling, with the large terms cancelled on paper.
    falling = -(left + 0.5) * math.log1p(-gone / n) - gone + (1.0 / n - 1.0 / left) / 12
    return falling - length * math.log1p(-1.0 / n)


@njit(cache=True, nogil=True)
def _run_length(draw: Source, n: int) -> int:
    """How many meetings pass before one involves an agent met before: inversion, by Newton's method."""
    target = math.log(uniform(draw))
    length = int(math.sqrt(-target * n / 2))
    for _ in range(4):
        length = min(length, n // 2 - 1)
        error = _log_survival(n, length) - target
        slope = 2 * math.log1p(-(2.0 * length + 1.0) / n)
        step = math.floor(error / -slope + 0.5) if slope < 0 else 0
        length = max(length + step, 0)
        if abs(step) <= 1:
            break
    while length > 0 and _log_survival(n, length) < target:
        length -= 1
    while _log_survival(n, length + 1) >= target:
        length += 1
    return length


@njit(cache=True, nogil=True)
def _take(draw: Source, counts: Counts, total: int, sample: int, taken: Counts) -> None:
    """Move ``sample`` random agents out of ``counts`` into ``taken``."""
    for state in range(counts.size):
        found = hypergeometric(draw, counts[state], total - counts[state], sample)
        total -= counts[state]
        sample -= found
        counts[state] -= found
        taken[state] = found


@njit(cache=True, nogil=True)
def _batch(
    rule: _Compiled, counts: Counts, met: Counts, initiators: Counts, responders: Counts, draw: Source, n: int,
    length: int,
) -> None:  # fmt: skip
    """Meetings between 2·length different agents, who leave ``counts`` and end up in ``met``."""
    _take(draw, counts, n, length, initiators)
    _take(draw, counts, n - length, length, responders)
    rows, columns = 0, 0
    for state in range(counts.size):
        rows += initiators[state] > 0
        columns += responders[state] > 0
    if length < _SPREAD_OUT * rows * columns:
        _pair_off(rule, met, initiators, responders, draw, length)
        return
    left = length
    for p in range(counts.size):
        need, pool = initiators[p], left
        left -= need
        for q in range(counts.size):
            if need == 0:
                break
            there = responders[q]
            if there == 0:
                continue
            meetings = hypergeometric(draw, there, pool - there, need)
            pool -= there
            need -= meetings
            responders[q] -= meetings
            _meet(rule, met, draw, p, q, meetings)


@njit(cache=True, nogil=True)
def _pair_off(rule: _Compiled, met: Counts, initiators: Counts, responders: Counts, draw: Source, length: int) -> None:
    """Few meetings spread over many pairs of states: shuffle the responders and go through them one by one."""
    order = np.empty(length, np.int32)
    end = 0
    for state in range(responders.size):
        for _ in range(responders[state]):
            order[end] = state
            end += 1
    left = length
    for p in range(initiators.size):
        for _ in range(initiators[p]):
            chosen = integer(draw, left)
            left -= 1
            q = order[chosen]
            order[chosen] = order[left]
            _meet(rule, met, draw, p, q, 1)


@njit(cache=True, nogil=True)
def _meet(rule: _Compiled, met: Counts, draw: Source, p: int, q: int, meetings: int) -> None:
    """So many meetings of p and q: their agents appear in ``met`` in their new states."""
    outcome = rule.start[p * met.size + q]
    end = rule.start[p * met.size + q + 1]
    rest = 1.0
    while outcome < end - 1 and meetings > 0:
        share = binomial(draw, meetings, min(1.0, rule.chance[outcome] / rest))
        rest -= rule.chance[outcome]
        met[rule.first[outcome]] += share
        met[rule.second[outcome]] += share
        meetings -= share
        outcome += 1
    if meetings > 0:
        met[rule.first[outcome]] += meetings
        met[rule.second[outcome]] += meetings


@njit(cache=True, nogil=True)
def _draw_agent(draw: Source, counts: Counts, total: int) -> int:
    """Take a random agent out of the counts; its state."""
    place = integer(draw, total)
    state = 0
    while place >= counts[state]:
        place -= counts[state]
        state += 1
    counts[state] -= 1
    return state


@njit(cache=True, nogil=True)
def _collide(rule: _Compiled, fresh: Counts, met: Counts, draw: Source, n: int, used: int) -> None:
    """The meeting that ends a run: at least one of the two has been met before in it."""
    both = float(used) * float(used - 1)
    mixed = float(used) * float(n - used)
    place = uniform(draw) * (both + 2 * mixed)
    if place < both:
        p = _draw_agent(draw, met, used)
        q = _draw_agent(draw, met, used - 1)
    elif place < both + mixed:
        p = _draw_agent(draw, met, used)
        q = _draw_agent(draw, fresh, n - used)
    else:
        p = _draw_agent(draw, fresh, n - used)
        q = _draw_agent(draw, met, used)
    _meet(rule, met, draw, p, q, 1)


@njit(cache=True, nogil=True)
def _jumps(rule: _Compiled, counts: Counts, labels: npt.NDArray[np.int64], draw: Source, done: int, cap: int) -> int:
    """Some meetings that can change something, each reached by skipping those before it that cannot."""
    n = counts.sum()
    pairs = float(n) * float(n - 1)
    size = counts.size
    partners = np.zeros(size, np.int64)  # agents that a state can react with, itself among them
    for p in range(size):
        for q in range(size):
            if rule.reactive[p, q]:
                partners[p] += counts[q]
    change = np.zeros(size, np.int64)
    for _ in range(_JUMPS):
        weight = 0.0
        for p in range(size):
            weight += float(counts[p]) * float(partners[p] - rule.reactive[p, p])
        if weight == 0.0 or _agree(counts, labels):
            break
        if weight < pairs:
            skipped = math.floor(math.log(uniform(draw)) / math.log1p(-weight / pairs))
            if skipped >= cap - done:
                return cap
            done += int(skipped)
        if done >= cap:
            return cap
        p, q = _reaction(rule, counts, partners, draw, weight)
        change[p] -= 1
        change[q] -= 1
        _meet(rule, change, draw, p, q, 1)
        _settle(rule, counts, partners, change)
        done += 1
    return done


@njit(cache=True, nogil=True)
def _reaction(rule: _Compiled, counts: Counts, partners: Counts, draw: Source, weight: float) -> tuple[int, int]:
    """The states of a random pair of agents among those whose meeting can change something."""
    place = uniform(draw) * weight
    p, last = 0, 0
    for p in range(counts.size):
        row = float(counts[p]) * float(partners[p] - rule.reactive[p, p])
        if row > 0.0:
            last = p
            if place < row:
                break
            place -= row
    chosen = integer(draw, partners[last] - rule.reactive[last, last])
    q = 0
    while True:
        there = counts[q] - (q == last) if rule.reactive[last, q] else 0
        if chosen < there:
            return last, q
        chosen -= there
        q += 1


@njit(cache=True, nogil=True)
def _settle(rule: _Compiled, counts: Counts, partners: Counts, change: Counts) -> None:
    """Book the change of some counts, and clear it."""
    for state in range(counts.size):
        if change[state] != 0:
            counts[state] += change[state]
            for p in range(counts.size):
                if rule.reactive[p, state]:
                    partners[p] += change[state]
            change[state] = 0
