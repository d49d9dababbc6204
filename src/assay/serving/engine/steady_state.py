"""What an instance settles at under a steady rate of requests: its batch, its iteration time, and the most it sustains.

A fluid view, good for planning and wrong in the details: in every iteration of T seconds the instance gets rate x T
requests, so it decodes b = rate x output x T sequences and computes rate x prompt x T prompt tokens; T is what such an
iteration takes. The smallest T that agrees with itself is the state; where there is none, the rate is too high.

>>> cost = StepCost(tokens=0.010 + 1e-5 * np.arange(9000), kv_tokens=100_000)
>>> calm = steady(cost, rate=5.0, prompt=1000, output=100)
>>> round(calm.seconds, 4), round(calm.sequences, 1)
(0.0106, 5.3)
>>> round(most(cost, 1000, 100))  # below 91 = 1 / (1,100 tokens x 1e-5 s): memory is full before
43
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.sim.llm_cost import StepCost

Floats = NDArray[np.float64]
ROUNDS = 200  # of the fixed point; what has not settled by then is as good as saturated
FULL = 0.9  # share of the KV memory that may be planned with


class Steady(NamedTuple):
    """One iteration of the steady state."""

    seconds: float  # of an iteration, which is the time between two tokens
    sequences: float  # that decode


SATURATED = Steady(math.inf, math.inf)


def iteration(cost: StepCost, sequences: float, prompt: float, output: float, fresh: float) -> float:
    """Seconds of an iteration that decodes `sequences` and computes `fresh` prompt tokens of prompts of this length."""
    n = sequences + fresh
    if n >= len(cost.tokens) - 1:
        return math.inf
    low = int(n)
    gemms = cost.tokens[low] + (n - low) * (cost.tokens[low + 1] - cost.tokens[low])
    if n < 1:
        gemms = cost.tokens[1]  # an iteration has a token at least
    context = sequences * (prompt + 0.5 * output)
    read = cost.decode_fixed + cost.decode_seq * sequences + cost.decode_kv * context
    window = cost.decode_window * min(context, cost.window * sequences) if sequences else 0.0
    pairs = max(cost.prefill_pair * 0.5 * prompt, cost.prefill_kv) + cost.prefill_token
    pairs += cost.prefill_pair_window * min(0.5 * prompt, cost.window)
    work = float(gemms + read + window + fresh * (pairs + cost.prefill_fixed / max(prompt, 1.0)))
    if not fresh:
        return work
    # Where less than a prompt comes an iteration, that share of the iterations has one, and is launched by the host.
    some = min(1.0, fresh / max(prompt, 1.0))
    return (1.0 - some) * work + some * max(work + cost.launch, cost.launch_mixed if sequences else cost.launch_alone)


def steady(
    cost: StepCost, rate: float, prompt: float, output: float, *, prefills: bool = True, room: float = 0.0,
    max_seqs: float = math.inf, max_tokens: float = 8192.0,
) -> Steady:  # fmt: skip
    """The steady state under `rate` requests a second; `SATURATED` where there is none.

    Without `prefills` prompts are computed elsewhere and only their decodes come.
    """
    seconds, room = float(cost.tokens[1]), room or cost.kv_tokens * FULL
    for _ in range(ROUNDS):
        sequences = rate * output * seconds
        fresh = rate * prompt * seconds if prefills else 0.0
        if sequences > max_seqs or sequences + fresh > max_tokens or sequences * (prompt + output) > room:
            return SATURATED
        again = iteration(cost, sequences, prompt, output, fresh)
        if abs(again - seconds) < 1e-6 * seconds:
            return Steady(again, sequences)
        seconds = again
    return SATURATED


def largest(works: Callable[[float], bool], start: float = 1.0) -> float:
    """The largest rate at which a monotone test still works, to one percent; 0 where none does.

    >>> round(largest(lambda rate: rate < 3.0), 1)
    3.0
    """
    low, high = 0.0, start
    while works(high) and high < 1e6:
        low, high = high, 2 * high
    while high - low > 0.01 * high and high > 1e-4:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def most(cost: StepCost, prompt: float, output: float, tpot: float = math.inf, **limits: float) -> float:
    """Requests a second an instance sustains, with tokens at most `tpot` seconds apart."""
    return largest(lambda rate: steady(cost, rate, prompt, output, **limits).seconds <= min(tpot, 1e9))  # type: ignore[arg-type]


def prefill_seconds(cost: StepCost, prompts: Floats) -> Floats:
    """Seconds that each prompt takes on an instance of its own."""
    n = np.clip(prompts.astype(np.int64), 1, len(cost.tokens) - 1)
    pairs = prompts * (cost.prefill_token + 0.5 * cost.prefill_pair * prompts)
    return np.asarray(np.maximum(cost.tokens[n] + cost.prefill_fixed + pairs + cost.launch, cost.launch_alone))


def wait_quantile(rate: float, service: Floats, quantile: float = 0.9) -> float:
    """Waiting and service at a quantile, one after the other (M/G/1), from a sample of service times.

    The mean wait is Pollaczek and Khinchine's; its tail is taken as exponential beyond the chance of not waiting.

    >>> wait_quantile(0.5, np.array([1.0])) > 1.0, wait_quantile(1.0, np.array([1.0]))
    (True, inf)
    """
    busy = rate * float(service.mean())
    if busy >= 1.0:
        return math.inf
    wait = rate * float((service**2).mean()) / (2 * (1 - busy))
    tail = wait / busy * math.log(busy / (1 - quantile)) if busy > 1 - quantile else 0.0
    return max(tail, 0.0) + float(np.quantile(service, quantile))
