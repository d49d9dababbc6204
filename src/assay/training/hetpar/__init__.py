"""Heterogeneous parallelism: each module of a multimodal model gets a grid of its own, and rows are re-sliced between.

A vision encoder sees images of a few hundred tokens; the language model behind it sees contexts of a hundred thousand.
Tensor and context parallelism that the one needs slow the other down. So each module gets its own tensor, context,
pipeline and data parallelism, on the same GPUs (all images of a step first, then the language model, then back) or on
GPUs of its own (the first stages of one pipeline). Between the two, each rank of the one has rows that some ranks of
the other need: what travels is the intersection, from a copy that is there already where there is one, and gradients
come home by the transposed way, added where a row went to several places.

The boundary is real: on real processes a small encoder and a small language model train, on pairs of grids, to the
losses and weights of one process, and move exactly the planned bytes. How fast it would be on H100 is a model: the
best of all layouts that fit, beside the best single layout. A single layout computes every image on every rank of a
context-parallel group, as Megatron's do, or cuts images over the group, too, which is a rival of ours; claims are
answered against the better of the two. All have the same number of GPUs, so that tokens a second and FLOP/s of a GPU
rise alike. Shapes of the large pair, and that half of all tokens are of images, are assumed.

arXiv:2605.27678.

>>> crossing = between(side("dp4"), side("cp4"), Batch((64,) * 4, ((0, 64), (1, 64), (2, 64), (3, 64))), width=8)
>>> crossing.gathered / crossing.forward  # slices, beside everything to everybody
4.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.record.measures import Measure, best, change, counted, rows
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.encoders import vision
from assay.sim.models import Model, model
from assay.sim.ranks import prepare
from assay.training.engine.cluster import Cluster
from assay.training.engine.cluster import read as read_cluster
from assay.training.hetpar import pace, training_job
from assay.training.hetpar.boundary import Batch as Batch
from assay.training.hetpar.boundary import between as between
from assay.training.hetpar.boundary import side as side

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "A module of the model wants another cut than the rest: images beside long contexts, or a large encoder."
avoid_when = (
    "One layout without context parallelism suits both, as at contexts of a few thousand tokens: it is as fast."
)
trust = (
    "Step times are a model of H100 clusters of which nothing was measured; layouts are ranked by it, not timed. The "
    "boundary's bytes are counted, and its losses and gradients are those of real processes."
)
own_input = 'assay compare hetpar --encoder dp8 --llm "tp2 cp4" --context 32768 --machines examples/cluster.toml'
references = (
    "Megatron-LM: Shoeybi et al., 2019; Narayanan et al., SC 2021.",
    "Sequence parallelism: Korthikanti et al., MLSys 2023.",
)

LARGE = Model("dense-120b", 12288, 32768, False, 88, 0, 0, 88, 0, 96, 8, 128, 28672)  # as Mistral Large 2407 (assumed)
PAIRS: dict[str, tuple[str, Model, int, int]] = {  # encoder, language model, GPUs, tokens of a step
    "small": ("clip-vit-l", model("llama-2-7b"), 32, 1 << 21),  # Vicuna-7B has Llama's shape
    "large": ("vit-10b", LARGE, 128, 1 << 22),
}
SINGLE = pace.KINDS[:2]
REAL = (("dp4", "dp4"), ("tp2 dp2", "tp4"), ("dp4", "tp2 cp2"))  # the first: one layout


def workload(pair: str, context: int, share: float = 0.5) -> tuple[pace.Work, Cluster]:
    """What is trained, and where."""
    eye, llm, ranks, tokens = PAIRS[pair]
    return pace.Work(vision(eye), llm, context, tokens // context, share), read_cluster(f"{ranks}xh100")


def speeds(pair: str, context: int, seed: int) -> dict[str, dict[str, Any]]:
    """The best layout of every kind on drawn images."""
    work, on = workload(pair, context)
    images, found = work.images(seed), {}
    for kind in pace.KINDS:
        one = pace.fastest(work, on, kind, on.ranks, images)
        if one is None:
            found[kind] = {
                "flops": None,
                "tokens": None,
                "step": None,
                "memory": None,
                "encoder": None,
                "layout": "none",
            }
            continue
        plain = {name: getattr(one, name) for name in ("flops", "tokens", "step", "memory", "encoder")}
        found[kind] = plain | {"layout": one.choice.name}
    return found


def real(steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """The small models trained on four processes on several grids, and on one."""
    pairs = [(side(a), side(b, zigzag=True)) for a, b in REAL]
    ((one,),) = training_job.run(1, [training_job.ONE], steps, seed)
    found = training_job.run(4, pairs, steps, seed)
    return {
        f"{encoder} to {llm}": {
            "loss": ranks[0]["losses"][-1], "first": ranks[0]["losses"][0],
            "apart": training_job.apart(ranks, pair, one), "sent": sum(rank["sent"] for rank in ranks),
        }
        for (encoder, llm), pair, ranks in zip(REAL, pairs, found, strict=True)
    }  # fmt: skip


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Contexts of 4 to 128 K under every kind of layout, and real training on two grids."""
    small = lab.pick(quick=(4096, 32768, 131072), full=(4096, 8192, 16384, 32768, 65536, 131072))
    large = lab.pick(quick=(8192, 32768), full=(8192, 16384, 32768, 65536, 131072))
    cases = [{"pair": "small", "context": n} for n in small] + [{"pair": "large", "context": n} for n in large]
    once = replace(lab.with_seeds(quick=2, full=5), workers=0)
    prepare(training_job.IMPORTS)
    return {
        "pace": replace(lab, workers=0).run(speeds, cases, per="kind"),
        "real": once.run(real, [{"steps": lab.pick(quick=6, full=60)}], per="grids"),
    }


def _cases(table: pl.DataFrame, pair: str) -> list[int]:
    return sorted(int(n) for n in rows(table, {"experiment": "pace", "pair": pair})["context"].unique())


def _single(table: pl.DataFrame, where: Mapping[str, Any]) -> str:
    """The better of the two ways to use one layout, where it fits at all."""
    found = rows(table, where).filter(pl.col("kind").is_in(SINGLE)).group_by("kind").agg(pl.col("flops").mean())
    means: dict[str, float] = dict(found.drop_nulls().iter_rows())
    return max(means, key=lambda kind: means[kind])


def _gain(
    kind: str, column: str, pairs: tuple[str, ...], choose: Callable[..., Any] = max, single: str = ""
) -> Measure:
    """By how much `kind` is above the best single layout (or the one named), at the context where that is most."""

    def measure(table: pl.DataFrame) -> Estimate:
        cases = {}
        for pair in pairs:
            for context in _cases(table, pair):
                where = {"experiment": "pace", "pair": pair, "context": context}
                rival = single or _single(table, where)
                name = f"{pair} pair at {context // 1024} K, beside {rival}"
                cases[name] = change(column, new={"kind": kind}, old={"kind": rival}, **where)
        return best(cases, choose)(table)

    return measure


def _at(kind: str, pair: str, context: int) -> Measure:
    def measure(table: pl.DataFrame) -> Estimate:
        where = {"experiment": "pace", "pair": pair, "context": context}
        return change("flops", new={"kind": kind}, old={"kind": _single(table, where)}, **where)(table)

    return measure


def _loss(table: pl.DataFrame) -> Estimate:
    """The loss after training on grids of their own, over that on one, where they differ most."""
    one = " to ".join(REAL[0])
    cases = {}
    for pair in REAL[1:]:
        name = " to ".join(pair)
        cases[name] = change("loss", new={"grids": name}, old={"grids": one}, experiment="real")
    return best(cases, lambda found, key: max(found, key=lambda case: abs(key(case))))(table)


def _apart(table: pl.DataFrame) -> Estimate:
    found = rows(table, {"experiment": "real"})["apart"]
    return counted(max(found), len(found))


claims = [
    Claim("colocated", _gain("colocated", "flops", ("small", "large"))),
    Claim("tokens", _gain("separate", "tokens", ("large",))),
    Claim("separate", _gain("separate", "flops", ("large",))),
    Claim("loss", _loss, evidence=Evidence.REAL),
    Claim(
        "whole-images", _gain("colocated", "flops", ("small", "large"), single="one layout"), kind=Kind.CHANGE,
        toward="up",
        asks="Where one layout computes every image on each rank of a context-parallel group, as Megatron's do, a grid "
        "of its own on the same GPUs raises FLOP/s of a GPU, in the best case by so much.",
    ),
    Claim(
        "short", _at("colocated", "small", 4096), kind=Kind.AT_MOST, value=0.02, unit="change",
        asks="At a context of 4 K one layout suits both modules: a grid of its own brings at most 2 %.",
    ),
    Claim(
        "small-apart", _gain("separate", "flops", ("small",)), kind=Kind.AT_MOST, value=0.0, unit="change",
        asks="A small encoder on GPUs of its own is no faster than one layout: at most by 0 %.",
    ),
    Claim(
        "same", _apart, kind=Kind.AT_MOST, value=1e-4, unit="value", evidence=Evidence.REAL,
        asks="On four real processes and two grids all weights end as on one process, to 0.1 thousandths.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """FLOP/s of a GPU over the context, for either pair."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "pace").drop_nulls("flops")
    means = found.group_by("pair", "context", "kind", maintain_order=True).agg((pl.col("flops") / 1e12).mean())
    means = means.sort("context").with_columns(tokens=pl.format("{} K", pl.col("context") // 1024))
    chart: alt.Chart = (
        alt.Chart(means)
        .mark_line(point=True)
        .encode(
            x=alt.X("tokens:O", title="tokens of a sequence", sort=None, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("flops:Q", title="TFLOP/s of a GPU"),
            color=alt.Color("kind:N", title=None, sort=list(pace.KINDS)),
            column=alt.Column("pair:N", title=None, sort=["small", "large"]),
        )
        .properties(width=240, height=240)
    )
    return chart
