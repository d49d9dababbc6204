"""The traffic of Nitsum's study: an hour of real requests, given tiers by a mix that shifts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assay.serving.interface import SLO
from assay.serving.nitsum.tier_plan import best_plan
from assay.serving.nitsum.tiers import Demand
from assay.sim.random import stream
from assay.workloads.chat import read_or_hour
from assay.workloads.requests import Requests

LAYOUT, GPUS = "h200:qwen3-32b", 8
TARGETS = {
    "interactive": SLO(ttft=0.5, tpot=1 / 80),  # 80 tokens a second
    "standard": SLO(ttft=2.0, tpot=1 / 25),
    "batch": SLO(ttft=30.0, tpot=0.15),
}
MIXES = {"strict": (0.8, 0.15, 0.05), "relaxed": (0.05, 0.65, 0.30), "even": (0.3, 0.45, 0.25)}
KINDS = {"shifting": ["strict", "relaxed"], "steady": ["even"]}
STRETCHES = 2  # of the trace that a seed is judged on, equally far apart: what they ask for differs by the hour


def offered(path: str, mix: str) -> list[float]:
    """Requests a second of each phase of a mix that the best cut of the pool is planned to serve."""
    from assay.serving.engine.steady_state import largest

    def works(rate: float, shares: tuple[float, ...]) -> bool:
        return best_plan(LAYOUT, GPUS, TARGETS, _shared(path, [rate], [shares])).served > 0.99 * rate

    return [largest(lambda rate, name=name: works(rate, MIXES[name]), 16.0) for name in KINDS[mix]]  # type: ignore[misc]


def usual(path: str, mix: str, load: float, rates: list[float]) -> dict[str, Demand]:
    """What the traffic of a mix asks for in the long run: what an operator knows who plans once."""
    return _shared(path, [load * rate for rate in rates], [MIXES[name] for name in KINDS[mix]])


def _shared(path: str, rates: list[float], shares: list[tuple[float, ...]]) -> dict[str, Demand]:
    """The mean over phases, each with its rate and its shares of the tiers; lengths are those of the whole trace."""
    whole = read_or_hour(path)
    prompt = whole.prompt.astype(float)
    one = Demand(1.0, float(prompt.mean()), float(prompt.std() / prompt.mean()), float(whole.output.mean())).rounded()
    mean = np.asarray(rates) @ np.asarray(shares) / len(rates)
    return {name: replace(one, rate=float(rate)) for name, rate in zip(TARGETS, mean, strict=True)}


def workload(
    path: str, mix: str, load: float, phases: int, seconds: float, rates: list[float], seed: int, use: str = "judged",
    stretch: int = 0,
) -> Requests:  # fmt: skip
    """Prompts and answers of the Azure trace, its arrivals stretched to each phase's rate, and tiers by the mix.

    `shifting` alternates between the strict and the relaxed mix; `steady` keeps the even one. `rates` are
    requests a second in each of them, of which `load` is a share. The first stretch begins anywhere in the trace, by
    the seed; the others begin at equal distances behind it, once around the trace.
    """
    whole = read_or_hour(path)
    random = stream(seed, "nitsum", use, mix)
    start, parts = int(random.integers(len(whole))) + stretch * len(whole) // STRETCHES, []
    for phase in range(phases):
        which = phase % len(KINDS[mix])
        count = int(load * rates[which] * seconds)
        at = (start + np.arange(count)) % len(whole)  # beyond the end the trace begins again
        gaps = np.maximum(np.diff(whole.arrival[at], prepend=whole.arrival[at[0]]), 0.0)
        arrival = seconds * (phase + 0.999 * np.cumsum(gaps) / gaps.sum())
        tier = random.choice(len(TARGETS), count, p=MIXES[KINDS[mix][which]]).astype(np.int32)
        parts.append((arrival, whole.prompt[at], whole.output[at], tier))
        start += count
    arrival, prompt, output, tier = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Requests.of(arrival, prompt, output, tier=tier, tiers=tuple(TARGETS))


def mean_demand(requests: Requests) -> dict[str, Demand]:
    """What a stretch really asks for on average, which nobody knows beforehand."""
    found = {}
    assert requests.tier is not None
    for code, name in enumerate(requests.tiers):
        mine = requests.tier == code
        if not mine.any():
            continue
        prompt, output = requests.prompt[mine].astype(float), float(requests.output[mine].mean())
        rate = float(mine.sum()) / requests.seconds
        found[name] = Demand(rate, float(prompt.mean()), float(prompt.std() / prompt.mean()), output)
    return found
