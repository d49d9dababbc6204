"""The question of the room: which layout for this model, on these machines, with these sequences; and why that one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim.models import Model
from assay.training.engine import gpu, launch, published, sensitivity
from assay.training.engine import search as space
from assay.training.engine.bayes import bayes
from assay.training.engine.cluster import FP8, MEASURED, USABLE, Cluster, Nccl, Precision, attained, measured_on
from assay.training.engine.step import Outcome, simulate, simulate_many
from assay.training.interface import Floats, Job, Plan

Progress = Callable[[int, int], None]
PRECISIONS = {"bf16": Precision(), "fp8": FP8}
SEARCHES = ("exhaustive", "bayes")
AT_ONCE = 256  # plans between two words to the progress bar
TIE = sensitivity.TIE  # steps that differ by less are a tie: no model of a cluster is that exact
GIVEN = (
    "Step times are a model: shares of data-sheet peaks that {source} and collectives without contention. Rank layouts "
    "by it, and measure the first two."
)
TRUST = GIVEN.format(
    source=f"are assumed, those that were measured on an {MEASURED} (give your own under [efficiency] in a cluster's "
    "TOML file),"
)


def trust(cluster: Cluster) -> str:
    """How far to trust steps on this cluster: what was measured of its devices, and what was not.

    >>> from assay.training.engine.cluster import read
    >>> "off by" in trust(read("8xh200")), "same chip" in trust(read("8xh100")), "assumed" in trust(read("8xa100"))
    (True, True, True)
    """
    name, usual = cluster.device.name, attained(cluster.device.name)
    if isinstance(cluster.collectives, Nccl):
        return f"{trust(replace(cluster, collectives=None))} {cluster.collectives.sentence}"
    if cluster.efficiency != usual:
        return GIVEN.format(source="you gave")
    known = gpu.known(measured_on(name) or name)
    if known is None:
        return f"{TRUST}{_published(name)}"
    relative = f" The {name} has the shares of the {measured_on(name)}, the same chip." * (measured_on(name) != name)
    several = " Exchanges between devices are a model without contention, and were not measured." * (cluster.ranks > 1)
    return (
        f"{known.sentence}{relative} Kernels are compiled and fused; plain torch took 1.8 times as long for one of "
        f"them.{several}{_published(name)}"
    )


def _published(name: str) -> str:
    """How far utilisations that were published of this chip are off."""
    ratios = published.of_chip(name)
    if not ratios:
        return ""
    low, high, mean = (f"{value - 1:+.0%}".replace("%", " %") for value in (min(ratios), max(ratios), np.mean(ratios)))
    return (
        f" Of {len(ratios)} published training runs on this chip the model says utilisations {low} to {high} off "
        f"({mean} in the mean; the page on training lists them)."
    )


@dataclass(frozen=True)
class Found:
    """What a search has asked for, the best that fits first, and those that do not fit."""

    shape: Model
    cluster: Cluster
    job: Job
    fitting: list[Outcome]
    too_large: list[Outcome]
    possible: int

    @property
    def fastest(self) -> Outcome:
        """The winner."""
        return self.fitting[0]


def job(batch: int, seq: int, lengths: Path | None = None) -> Job:
    """What a step trains on; `lengths` are documents that are packed into the sequences.

    >>> job(8, 4096).seen
    2048.0
    """
    if lengths is None:
        return Job(batch, seq)
    tokens = np.minimum(read_lengths(lengths), seq).astype(float)
    return Job(batch, seq, float((tokens**2).sum() / (2 * tokens.sum())))


def read_lengths(path: Path) -> Floats:
    """The lengths in a JSONL file: a number a line, or an object with `tokens` or `length`.

    Raises:
        BadInput: the line and what is wrong with it.
    """
    lines = reading.text(path, "a line of JSON for each document").splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise BadInput(f"{path}, line {number}: not JSON") from error
        if isinstance(value, dict):
            value = value.get("tokens", value.get("length"))
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 1e9:
            raise BadInput(f"{path}, line {number}: tokens or length should be a number, at least 1")
        found.append(float(value))
    if not found:
        raise BadInput(f"{path}: no lengths in it")
    return np.array(found)


def best(
    shape: Model, cluster: Cluster, job: Job, *, search: str = "exhaustive", progress: Progress | None = None,
    plans: Sequence[Plan] | None = None,
) -> Found:  # fmt: skip
    """Search all plans, or those given.

    >>> from assay.sim.models import model
    >>> from assay.training.engine.cluster import read
    >>> best(model("llama-3-8b"), read("8xh100"), Job(64, 4096)).fastest.fits
    True

    Raises:
        BadInput: there is no plan, or none fits into memory; the message says what would help.
    """
    every = list(plans) if plans is not None else space.plans(shape, cluster, job)
    if not every:
        raise BadInput(
            f"no layout of {shape.name} uses all {cluster.ranks} ranks with a batch of {job.batch}: take a batch that "
            f"is a multiple of {cluster.ranks}, or a number of ranks with small divisors"
        )
    tell = progress or (lambda done, total: None)
    if search == "bayes":
        asked = bayes(every, lambda some: simulate_many(shape, cluster, some, job), tell)
    else:
        asked = []
        for first in range(0, len(every), AT_ONCE):
            asked += simulate_many(shape, cluster, every[first : first + AT_ONCE], job)
            tell(len(asked), len(every))
    fitting = sorted((one for one in asked if one.fits), key=lambda one: one.step)
    too_large = sorted((one for one in asked if not one.fits), key=lambda one: one.step)
    if not fitting:
        least = min(too_large, key=lambda one: float(one.memory.max()))
        raise BadInput(
            f"no plan fits: the smallest needs {least.held / 1e9:.0f} GB a rank and "
            f"{cluster.device.name} has {USABLE * cluster.device.mem_bytes / 1e9:.0f} to give; use more ranks"
        )
    return Found(shape, cluster, job, fitting, too_large, len(every))


def in_precision(cluster: Cluster, name: str) -> Cluster:
    """The same cluster where the layers' products are computed in this dtype.

    >>> from assay.training.engine.cluster import read
    >>> in_precision(read("8xh100"), "fp8").precision.products
    'fp8'

    Raises:
        BadInput: a device without units for it.
    """
    if name != "bf16" and name not in cluster.device.peak_flops:
        raise BadInput(f"{cluster.device.name} has no units for {name}; take --precision bf16 or another device")
    return replace(cluster, precision=PRECISIONS[name])


def own(shape: Model, cluster: Cluster, job: Job, plan: Plan) -> Found:
    """One plan, whether it fits or not.

    Raises:
        BadInput: a plan that cannot be.
    """
    one = simulate(shape, cluster, plan, job)
    return Found(shape, cluster, job, [one], [] if one.fits else [one], 1)


def answer(found: Found, top: int) -> dict[str, Any]:
    """The best of each layout, fastest first, as `assay plan training` prints it."""
    shown, winner = by_layout(found.fitting), found.fastest
    best = (*shown[: sensitivity.MOST // 2], *found.fitting[: sensitivity.MOST])
    plans = list(dict.fromkeys(one.plan for one in best))
    turns = sensitivity.turns(found.shape, found.cluster, found.job, plans)
    return {
        "job": {
            "model": found.shape.name, "parameters": found.shape.params, "cluster": found.cluster.name,
            "batch": found.job.batch, "seq": found.job.seq, "plans": found.possible,
            "asked": min(found.possible, len(found.fitting) + len(found.too_large)),
            "out_of_memory": len(found.too_large),
        },
        "table": [one.row() for one in shown[:top]],
        "why": f"{why(found, shown)} {sensitivity.told(found.cluster, turns) if len(plans) > 1 else ''}".strip(),
        "sensitivity": [turn.row() for turn in turns],
        "launch": launch.flags(winner.plan, found.shape, found.job, fp8=bool(found.cluster.precision.products)),
        "lines": ["launch"],
        "trust": trust(found.cluster),
        "units": {"step": "s", "memory": "bytes a rank", "usd_per_billion": "USD/1e9 tokens"},
        "shown": ["layout", "schedule", "mbs", "recompute", "zero", "step", "mfu", "tokens_per_second", "memory",
                  "bubble", "exchange", "data", "usd_per_billion"],
    }  # fmt: skip


def by_layout(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The first of each cut of the model, whatever its schedule."""
    first: dict[tuple[int, ...], Outcome] = {}
    for one in outcomes:
        cut = one.plan.layout
        first.setdefault((cut.tp, cut.cp, cut.pp, cut.dp, cut.ep, cut.etp, cut.ecp), one)
    return list(first.values())


def parts(outcome: Outcome) -> dict[str, float]:
    """Seconds of a step by where they go."""
    return {
        "computing": outcome.step * outcome.compute,
        "exchanges within layers": outcome.step * outcome.exchange,
        "gradients and weights on their way": outcome.step * outcome.data,
        "waiting for other ranks": outcome.step * outcome.bubble,
    }


def why(found: Found, shown: Sequence[Outcome]) -> str:
    """Who wins, and from which seconds it comes; and what is left to gain."""
    winner = shown[0]
    told = f"{winner.plan.name} takes {winner.step:.3g} s a step ({winner.mfu:.0%} MFU)".replace("%", " %")
    if not winner.fits:
        has = USABLE * found.cluster.device.mem_bytes / 1e9
        told += f"; it does not fit: it needs {winner.held / 1e9:.0f} GB a rank of {has:.0f} that there are to give."
    elif found.possible == 1:
        told += "."
    elif len(shown) == 1:
        told += "; no other layout fits."
    else:
        told += _against(winner, shown[1])
    lost = {name: seconds for name, seconds in parts(winner).items() if name != "computing"}
    name = max(lost, key=lambda key: lost[key])
    share = f"{lost[name] / winner.step:.0%}".replace("%", " %")
    return f"{told} Of its step {share} is {name}, the largest part that is not computing."


def _against(winner: Outcome, second: Outcome) -> str:
    slower = second.step / winner.step - 1
    saved = {name: seconds - parts(winner)[name] for name, seconds in parts(second).items()}
    most, least = max(saved, key=lambda key: saved[key]), min(saved, key=lambda key: saved[key])
    if slower < TIE:
        return f", a tie with {second.plan.name} ({slower:.1%} apart, less than the model knows).".replace("%", " %")
    told = f"; {second.plan.name} takes {slower:.1%} longer: {saved[most]:.2g} s more of {most}".replace("%", " %")
    return told + (f", {-saved[least]:.2g} s less of {least}." if saved[least] < -0.001 * winner.step else ".")
