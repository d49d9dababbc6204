"""PipeDream, understood: how old the weights of an asynchronous pipeline get, and whether that is worth the full slots.

A pipeline that never drains updates every stage as soon as a gradient comes back. Microbatches then see a model whose
blocks date from different moments. Counted in updates of any block, the oldest is S² − S/2 updates old in a pipeline of
S stages; a bound on convergence has the square of that, S⁴, against it. The randomised twin (RPD) draws the block, the
microbatch and the ages, which makes it amenable to proof. Whether asynchrony pays is measured in equal slots, each
method with its own best step size (and LocalSGD with its own best number of local steps): against LocalSGD with a
copy of the model for every stage, GPipe's flushes, and one microbatch at a time.

Delays are exact. Losses are those of real training: a random quadratic and logistic regression in numpy, a small
character transformer in torch. A pipeline of processes over gloo gives the simulator's weights to the last bit.

arXiv:2606.03498.

>>> delays(timeline(8, 64)).steady()  # 64 - 4
60
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record.measures import Measure, best, change, counted, rows, share, slope
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.training.rpd import methods, objectives
from assay.training.rpd.pipeline import Trained as Trained
from assay.training.rpd.pipeline import train as train
from assay.training.rpd.slots import delays as delays
from assay.training.rpd.slots import timeline as timeline

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL
needs = ("torch",)
use_when = "Stages are many and microbatches few, so that a flush would leave most slots empty, and plain SGD does."
avoid_when = (
    "Enough microbatches fit between two steps that flushes cost little: then weights need not be old; or the "
    "optimizer is sensitive to old gradients, of which nothing was measured here."
)
trust = (
    "Slots count passes as equally long and messages as free. Problems are small: 512 weights, or a transformer of "
    "some thousand, with plain SGD."
)
own_input = "assay compare rpd --model examples/sequential.py:job --stages 4"
references = (
    "PipeDream: Narayanan et al., SOSP 2019. GPipe: Huang et al., NeurIPS 2019.",
    "LocalSGD: Stich, ICLR 2019.",
)

STAGES = (2, 4, 8, 16, 24, 32, 48, 64)
CUTS = (4, 8, 16, 32)
KINDS = ("quadratic", "logistic")
SLOTS = 600  # five epochs of 60 microbatches
LANGUAGE_STAGES, LANGUAGE_SLOTS = 4, 160
RANDOM = 8  # stages up to which the randomised twin runs beside the others


def oldest(stages: int, seed: int) -> dict[str, float]:
    """How old weights get, counted in slots; nothing is drawn."""
    slots = timeline(stages, 8 * stages)
    found = delays(slots)
    law = stages**2 - stages / 2
    return {"delay": found.steady(), "squared": found.steady() ** 2, "law": law, "off": found.steady() - law}


def raced(kind: str, stages: int, slots: int, seed: int) -> dict[str, dict[str, float]]:
    """All methods in the same slots."""
    if kind == "language":
        import torch

        torch.set_num_threads(1)
        problem: Any = objectives.language(stages, seed)
    else:
        problem = objectives.linear(kind, stages, seed)
    names = list(methods.METHODS) if stages <= RANDOM else [name for name in methods.METHODS if name != "rpd"]
    names = ["pipedream", "local-sgd"] if kind == "language" else names
    smooth = problem.smoothness
    found = {name: methods.best(name, problem, slots, seed, smooth) for name in names}
    start = float(problem.loss(problem.start[None])[0])
    return {name: {"loss": loss, "rate": rate, "start": start} for name, (loss, rate) in found.items()}


def lived(stages: int, microbatches: int, seed: int) -> dict[str, Any]:
    """A pipeline of processes beside the simulator."""
    from assay.training.rpd.live import example

    model, batches, loss = example(stages, microbatches, seed)
    found = [train(model(), batches, loss, stages=stages, rate=0.05, live=live) for live in (True, False)]
    pairs = [
        (a, b) for one, other in zip(*(f.weights for f in found), strict=True) for a, b in zip(one, other, strict=True)
    ]
    return {
        "same": all(np.array_equal(a, b) for a, b in pairs) and found[0].losses == found[1].losses,
        "weights": sum(a.size for a, _ in pairs), "oldest": max(found[0].oldest),
        "loss_first": found[0].losses[0], "loss_last": found[0].losses[-1],
    }  # fmt: skip


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Delays by stages, losses in equal slots beside LocalSGD and flushes, and a live pipeline beside the simulator."""
    cases = [{"kind": kind, "stages": stages, "slots": SLOTS} for kind in KINDS for stages in CUTS]
    words = [{"kind": "language", "stages": LANGUAGE_STAGES, "slots": LANGUAGE_SLOTS}]
    live = [{"stages": lab.pick(quick=3, full=6), "microbatches": lab.pick(quick=12, full=60)}]
    once = replace(lab, seeds=lab.seeds[:1])
    return {
        "delays": once.run(oldest, [{"stages": stages} for stages in STAGES]),
        "race": lab.with_seeds(quick=5, full=10).run(raced, cases, per="method"),
        "language": lab.with_seeds(quick=3, full=10).run(raced, words, per="method"),
        "live": replace(lab.with_seeds(quick=1, full=3), workers=0).run(lived, live),
    }


def _below(kind: str, stages: int, of: str, than: str, experiment: str = "race") -> Measure:
    where = {"experiment": experiment, "kind": kind, "stages": stages}
    return change("loss", new={"method": of}, old={"method": than}, **where)


def _both_below(table: pl.DataFrame) -> Estimate:
    """The smaller of the two gains: the sentence is about both."""
    cases = {f"quadratic, {s} stages": _below("quadratic", s, "pipedream", "local-sgd") for s in CUTS}
    cases["language"] = _below("language", LANGUAGE_STAGES, "pipedream", "local-sgd", "language")
    return best(cases, every=True)(table)


def _power(column: str) -> Measure:
    return slope("stages", column, experiment="delays")


def _law(table: pl.DataFrame) -> Estimate:
    found = rows(table, {"experiment": "delays"})["off"].to_list()
    return counted(sum(off == 0 for off in found) / len(found), len(found))


claims = [
    Claim("delay", _power("delay")),
    Claim(
        "stale", _power("squared"),
        construction="The term is the square of the delay, which is measured, times what does not depend on stages.",
    ),
    Claim("beats", _both_below),
    Claim("overtakes", _below("logistic", CUTS[-1], "local-sgd", "pipedream")),
    Claim(
        "law", _law, kind=Kind.EVERY,
        asks="The delay is exactly S^2 - S/2 for every even number of stages tried, up to 64.",
    ),
    Claim(
        "live", share("same", experiment="live"), kind=Kind.EVERY,
        asks="A pipeline of processes ends with the simulator's weights and losses, to the last bit.",
    ),
    Claim(
        "flushes", best({f"{kind}, {s}": _below(kind, s, "pipedream", "gpipe") for kind in KINDS for s in CUTS},
                        every=True), kind=Kind.CHANGE, toward="down",
        asks="PipeDream also ends below GPipe with its best number of microbatches a flush, on every problem with 512 "
        "weights.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Loss in equal slots by the number of stages."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "race").group_by("kind", "stages", "method", maintain_order=True)
    chart: alt.Chart = (
        alt.Chart(found.agg((pl.col("loss") / pl.col("start")).log().mean().exp().alias("loss")))
        .mark_line(point=True)
        .encode(
            x=alt.X("stages:Q", title="stages", scale=alt.Scale(type="log", base=2)),
            y=alt.Y("loss:Q", title="loss, of that in the beginning", scale=alt.Scale(type="log")),
            color=alt.Color("method:N", title=None, sort=list(methods.METHODS)),
            column=alt.Column("kind:N", title=None, sort=list(KINDS)),
        )
        .properties(width=260, height=240, title=f"After {SLOTS} slots, each with its best step size")
    )
    return chart
