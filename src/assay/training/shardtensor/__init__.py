"""ShardTensor: spread one sample over ranks, in unequal stretches if need be; plain torch calls fetch what they lack.

Data parallelism ends at one sample per device. Here a tensor is cut along one dimension, space or sequence, into
stretches of any sizes. It is a `torch.Tensor`, so models need not know: convolutions fetch halos from whoever has them,
attention lets keys and values go round, norms and sums add up over the ranks, reshapes follow the cut to where it goes.
Gradients return the same ways. A call without a distributed version is refused by name; nothing is gathered in secret.

The study is real: a vision transformer and a U-Net on gloo processes, in drawn stretches, give the outputs and
gradients of one process; the memory of a step is counted. Beside it stand one device and torch's DTensor, which cuts
evenly. No group of GPUs was at hand: their seconds are not asked.

arXiv:2605.11111; PhysicsNeMo has the authors' own.

>>> import torch
>>> from torch import nn
>>> from assay.training import Domain, check_shards, shard
>>> model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 1, 3, stride=2, padding=1))
>>> picture = torch.randn(1, 3, 33, 16)
>>> rows = shard(picture, dim=2, domain=Domain())  # this rank's rows; one process alone has them all
>>> tuple(model(rows).shape)
(1, 1, 17, 8)
>>> found = check_shards(model, picture, dim=2, shares=[0.37, 0.27, 0.36])  # on three processes, beside one
>>> found.sizes, found.apart < 1e-5
((12, 9, 12), True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.record.measures import change, counted, ratio, rows, share
from assay.record.timing import too_busy
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.random import stream
from assay.sim.ranks import prepare
from assay.training.shardtensor.job import IMPORTS, PATIENCE, on_ranks
from assay.training.shardtensor.job import Checked as Checked
from assay.training.shardtensor.job import check as check

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL
needs = ("torch",)
use_when = "One sample (a large grid, mesh or sequence) does not fit a device, and the model is plain torch."
avoid_when = (
    "Samples fit: data parallelism moves gradients only; or inputs are small, as each call is dispatched in Python and "
    "waits for its neighbours."
)
trust = (
    "Numbers, memory and bytes are of real processes over gloo on one machine; of GPUs and their links nothing is said."
)
own_input = "assay compare shardtensor --model examples/field_model.py:job --shares 37,27,36"
references = (
    "PhysicsNeMo: https://github.com/NVIDIA/physicsnemo, physicsnemo.domain_parallel.",
    "Ring Attention: Liu, Zaharia, Abbeel, ICLR 2024. f and g: Shoeybi et al., Megatron-LM, 2019.",
    "Halo exchange for convolutions: Dryden et al., IPDPS 2019. DTensor: torch.distributed.tensor.",
)

QUIET = 0.8  # of a processor that each rank must be granted for its seconds to count
SMALL = (16, 16, 32)  # rows, columns, width of a model for which ranks are too many


def parity(ranks: int, seed: int) -> dict[str, dict[str, Any]]:
    """Both models in drawn stretches beside themselves in one piece."""
    random = stream(seed, "shardtensor", "shares")
    shares = [[float(n) for n in random.dirichlet([4.0] * ranks)] for _ in range(2)]
    found = on_ranks(ranks, _measured, "parity", seed, shares)
    worst: dict[str, dict[str, Any]] = {}
    for kind in found[0]:
        parts = [part[kind] for part in found]
        worst[kind] = {key: max(part[key] for part in parts) for key in parts[0]}
        worst[kind]["sent"] = sum(part["sent"] for part in parts)
    return worst


def _measured(what: str, *arguments: Any) -> Any:
    """On this rank, which has torch."""
    from assay.training.shardtensor import measured

    return getattr(measured, what)(*arguments)


def memory(ranks: int, grids: dict[str, tuple[int, int, int]], seed: int) -> dict[str, dict[str, Any]]:
    """The memory of one step of each model by each system; the fullest rank counts."""
    found = on_ranks(ranks, _measured, "memory", grids, seed)
    table = {}
    for model in grids:
        whole = found[0][model]["single"]["peak"]
        for system in found[0][model]:
            parts = [part[model][system] for part in found]
            peak, refused = max(p["peak"] for p in parts), parts[0]["refused"]
            table[f"{model}, {system}"] = {
                "model": model, "system": system, "peak": None if refused else peak,
                "of_single": None if refused else peak / whole, "weights": parts[0]["weights"],
                "sent_step": max(p["sent"] for p in parts), "runs": not refused, "refused": refused or None,
            }  # fmt: skip
    return table


def training(ranks: int, grid: Sequence[int], steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """A small weather model, trained whole and in stretches on the same days."""
    patience = PATIENCE + 6.0 * steps  # on a busy machine
    return dict(on_ranks(ranks, _measured, "training", *grid, steps, seed, patience=patience)[0])


def clocked(rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Seconds of inference on a small input by one process and by two."""
    found = on_ranks(2, _measured, "timed", *SMALL, rounds, seed)
    quiet = min(part["granted"] for part in found)
    return {system: {"seconds": found[0][system], "granted": quiet} for system in ("single", "shardtensor")}


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Parity in drawn stretches, memory beside one device and DTensor, a small training, seconds on two ranks."""
    lab.cases.update(("model", "system"))
    once = replace(lab, seeds=lab.seeds[:1])
    ranks = lab.pick(quick=2, full=4)
    grids = {"unet": (32 * ranks, 32, 64), "vit": (32 * ranks, 32, 64)}
    grid = lab.pick(quick=(16, 16), full=(64, 32))
    days = [{"ranks": ranks, "grid": grid, "steps": lab.pick(quick=4, full=200)}]
    prepare((*IMPORTS, "assay.training.shardtensor.measured", "torch.distributed.tensor"))  # for all ranks, once
    return {
        "parity": replace(lab.with_seeds(quick=1, full=10), workers=0).run(parity, [{"ranks": 3}], per="model"),
        "memory": replace(once, workers=0).run(memory, [{"ranks": ranks, "grids": grids}], per="step"),
        "training": replace(lab.with_seeds(quick=2, full=5), workers=0).run(training, days, per="system"),
        "clock": replace(lab.with_seeds(quick=2, full=5), workers=0).run(
            clocked, [{"rounds": lab.pick(quick=3, full=21)}], per="system"
        ),
    }


def _slowed(table: pl.DataFrame) -> Estimate:
    """A ratio of seconds; no answer where ranks did not get their processors."""
    least = float(rows(table, {"experiment": "clock"})["granted"].to_numpy().min())
    if least < QUIET:
        raise too_busy(f"a rank was granted {least:.0%} of a processor")
    return ratio("seconds", of={"system": "shardtensor"}, to={"system": "single"}, experiment="clock")(table)


def _apart(table: pl.DataFrame) -> Estimate:
    """The largest difference in any run: arithmetic, not a sample."""
    found = rows(table, {"experiment": "parity"})["apart"]
    return counted(max(found), len(found))


EVENLY = (
    "Equal stretches give each of n ranks 1/n of all products, those of attention too; what links and launches take of "
    "that was not asked, as no group of GPUs was at hand."
)
claims = [
    Claim("vit", lambda table: counted(16.0), evidence=Evidence.MODEL, construction=EVENLY),
    Claim("ring", lambda table: counted(1.0), evidence=Evidence.MODEL, construction=EVENLY),
    Claim(
        "weather",
        change("loss", new={"system": "shardtensor"}, old={"system": "single"}, experiment="training"),
    ),
    Claim("small", _slowed),
    Claim(
        "same", _apart, kind=Kind.AT_MOST, value=1e-5, unit="share",
        asks="Outputs and all gradients of two models in drawn stretches are those of one process, to 0.00001 of the "
        "largest.",
    ),
    Claim(
        "dtensor", share("runs", experiment="memory", system="dtensor"), kind=Kind.EVERY,
        asks="torch's DTensor runs the same unmodified vision transformer and U-Net.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Memory of a step, of that on one device."""
    import altair as alt

    found = table.filter((pl.col("experiment") == "memory") & pl.col("of_single").is_not_null())
    chart: alt.Chart = (
        alt.Chart(found.select("system", "model", "of_single"))
        .mark_bar()
        .encode(
            y=alt.Y("system:N", title=None, sort=["single", "shardtensor"]),
            x=alt.X("of_single:Q", title="memory of a step on the fullest rank, of that on one device"),
            row=alt.Row("model:N", title=None),
        )
        .properties(width=420, height=70, title="One sample on several ranks")
    )
    return chart


def __getattr__(name: str) -> Any:
    """Names that need torch, when they are asked for."""
    if name in ("ShardTensor", "Domain", "Unsupported", "shard", "redistributed"):
        from assay.training.shardtensor import dispatch

        return getattr(dispatch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
