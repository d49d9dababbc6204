"""Entrain: one split of GPUs between encoder and language model, and work put off until a lighter microbatch comes.

How much of a sample is image and how much text varies wildly, so microbatches of a multimodal job are uneven twice
over and stages wait for each other. Over a whole batch the ratio hardly varies: a split of the stages by the mean of
some hundred profiled samples is right for all of them. Within a batch, samples are dealt to microbatches by strata of
their encoders' work, which levels that; where a microbatch then has too much language work, the language part of some
of its samples is put off to a later one that has too little, its encoded images waiting in a bounded buffer. The
encoder runs a little ahead, and backward for those samples whose gradients have come. Everything happens within one
step, so gradients are the same; two real processes show it.

Read in the paper are the two scales, strata, pairwise deferral, split backward and eager forward. How pairs are found
is inferred: microbatches lie heavy beside light, samples move where the sum of squares falls most, by single moves and
swaps, and since an image's backward pass follows its text, that is evened out with it.

Beside it, each with the best split for the very batch: samples as drawn; DistTrain-like (evened out between copies, in
the best of three orders); DIP-like (the encoder in a pipeline segment of its own over all stages, so that no split is
needed); and one of ours that shares the aim, longest first in both dimensions with nothing put off.

arXiv:2605.27918.

>>> setup = job("llama-3.2-1b")
>>> found = systems(setup, draw("blend", setup.batch, seed=0), draw("blend", 256, seed=1))
>>> found["entrain"].seconds < found["in order"].seconds
True
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record.measures import Measure, best, counted, mean, ratio, rows, share
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.encoders import vision
from assay.sim.models import model
from assay.training.engine.cluster import read
from assay.training.engine.compound import summed
from assay.training.engine.planning import TIE
from assay.training.entrain import deals, live
from assay.training.entrain.deals import together
from assay.training.entrain.steps import Setup, Step, fastest, split_of, splits_of_draws, step, works
from assay.workloads.multimodal import Samples, draw

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "An encoder and a language model train in one pipeline on samples whose images and texts differ in size."
avoid_when = (
    "Samples are alike, or nearly so (every way of dealing is as fast); or the language model is the larger part and "
    "an interleaved pipeline with the encoder on every stage is at hand, which the model finds faster then."
)
trust = (
    "Step times are a model of 64 A40 by their data sheet, of which nothing was measured; lengths are drawn from "
    "shapes that are assumed. Evenness and what is put off are counted, and gradients are real."
)
own_input = "assay compare entrain --input examples/multimodal.jsonl"
references = (
    "DistTrain: Zhang et al., SIGCOMM 2025. DIP: Wang et al., 2025.",
    "Qwen2.5-VL: Bai et al., 2025 (the encoder's shape). Llama 3.2: Meta, 2024.",
)

CLUSTER, ENCODER = "64xa40", "qwen2.5-vl"  # as the paper's 16 A40 that stand for 64: 4 copies, tp2, so 8 stages
LANGUAGE = ("llama-3.2-1b", "llama-3.2-3b")
SETS = ("synthchartnet", "chartqa", "cocoqa", "llava-150k", "blend")
PROFILED = 256  # samples from which the split is chosen
SIZES = (1, 4, 16, 64, 256)
AHEAD = (0, 1, 2, 4)
EXISTING = ("disttrain", "dip")


def job(language: str, cluster: str = CLUSTER, encoder: str = ENCODER, **sizes: Any) -> Setup:
    """The paper's job, with a language model of this name.

    >>> job("llama-3.2-1b").batch
    512
    """
    return Setup(read(cluster), vision(encoder), model(language), **sizes)


def plan(setup: Setup, samples: Samples, **parts: bool) -> deals.Deal:
    """Entrain's deal of a batch.

    >>> setup = job("llama-3.2-1b")
    >>> plan(setup, draw("blend", setup.batch, seed=0)).moved > 0
    True
    """
    sight, words = works(setup, samples)
    held = samples.image.astype(float)
    room = setup.buffer * setup.mbs * float(held.mean())
    return deals.entrain(sight, words, held, setup.copies, setup.m, room, **parts)


def systems(setup: Setup, samples: Samples, profile: Samples) -> dict[str, Step | None]:
    """Entrain with the split that the profile gives, and the others with the best split for these samples; none where
    nothing fits into memory."""
    sight, words = works(setup, samples)
    drawn = together(deals.in_order(len(samples), setup.copies, setup.m))
    even = deals.between_copies(sight, words, setup.copies, setup.m)
    took = summed(sight, even, setup.copies, setup.m)
    orders = [together(one) for one in (even, deals.reordered(even, took), deals.reordered(even, took, True))]
    level = together(deals.both_ways(sight, words, setup.copies, setup.m))
    splits = setup.splits()
    one = split_of(setup, profile[:1])
    return {
        "entrain": fastest(setup, samples, [plan(setup, samples)], [split_of(setup, profile)], AHEAD),
        "in order": fastest(setup, samples, [drawn], splits),
        "disttrain": fastest(setup, samples, orders, splits),
        "disttrain, one profiled": fastest(setup, samples, orders, [one]),
        "dip": fastest(setup, samples, [drawn], [0]),
        "longest both ways": fastest(setup, samples, [level], splits, AHEAD),
    }


def told(samples: Samples, found: Step | None) -> dict[str, Any]:
    """One line of a table."""
    if found is None:
        columns = ("step", "tokens_per_second", "sight_spread", "words_spread", "bubble", "memory", "split", "put_off")
        return dict.fromkeys(columns)
    return {
        "step": found.seconds, "tokens_per_second": float(samples.tokens.sum()) / found.seconds,
        "sight_spread": float(found.sight.std()), "words_spread": float(found.words.std()), "bubble": found.bubble,
        "memory": found.memory, "split": found.split, "put_off": found.deal.moved,
    }  # fmt: skip


def pace(data: str, language: str, seed: int) -> dict[str, dict[str, Any]]:
    """All systems on one batch."""
    setup = job(language)
    samples = draw(data, setup.batch, seed)
    found = systems(setup, samples, draw(data, PROFILED, seed + 10_000))
    return {name: told(samples, one) for name, one in found.items()}


def parts(data: str, language: str, seed: int) -> dict[str, dict[str, Any]]:
    """Entrain without one of its parts."""
    setup = job(language)
    samples = draw(data, setup.batch, seed)
    split = [split_of(setup, draw(data, PROFILED, seed + 10_000))]
    all_of_it = [plan(setup, samples)]
    found = {
        "all of it": fastest(setup, samples, all_of_it, split, AHEAD),
        "nothing put off": fastest(setup, samples, [plan(setup, samples, defer=False)], split, AHEAD),
        "no strata": fastest(setup, samples, [plan(setup, samples, stratify=False)], split, AHEAD),
        "whole backward passes": fastest(setup, samples, all_of_it, split, AHEAD, halves=False),
        "not ahead": fastest(setup, samples, all_of_it, split),
    }
    return {name: told(samples, one) for name, one in found.items()}


def splits(data: str, language: str, seed: int) -> dict[str, Any]:
    """How often draws of a size agree on a split; whether a profile's is the best for a batch; what others cost."""
    setup = job(language)
    many = draw(data, 100 * max(SIZES), seed)
    agree = {}
    for size in SIZES:
        chosen = splits_of_draws(setup, many[: 100 * size], size)
        agree[f"agree_{size}"] = float(np.bincount(chosen).max() / len(chosen))
    samples = draw(data, setup.batch, seed)
    deal, chosen_split = plan(setup, samples), split_of(setup, draw(data, PROFILED, seed + 10_000))
    taken = {split: step(setup, samples, deal, split).seconds for split in setup.splits()}
    least = min(taken.values())
    return agree | {
        "split": chosen_split, "optimal": taken[chosen_split] <= (1 + TIE) * least, "over": taken[chosen_split] / least,
        "worst": max(taken.values()) / least,
    }  # fmt: skip


def real(seed: int) -> dict[str, Any]:
    """Two real processes with samples put off, beside one that trains on the whole batch."""
    found = live.same(seed)
    return {"apart": found["apart"], "moved": found["moved"]}


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Four data sets and a blend of them beside four rivals; what each part brings; what it takes to know the split."""
    models, data = (
        lab.pick(quick=LANGUAGE[:1], full=LANGUAGE),
        lab.pick(quick=(*SETS[:2], *SETS[3:]), full=SETS),
    )
    cases = [{"data": each, "language": name} for name in models for each in data]
    few = lab.with_seeds(quick=4, full=10)
    return {
        "pace": few.run(pace, cases, per="system"),
        "parts": lab.with_seeds(quick=12, full=20).run(
            parts, [{"data": "blend", "language": name} for name in models], per="parts"
        ),
        "splits": few.run(splits, [{"data": each, "language": name} for name in models for each in SETS]),
        "real": replace(lab.with_seeds(quick=1, full=3), workers=0).run(real, [{}]),
    }


def _cases(table: pl.DataFrame) -> list[tuple[str, str]]:
    found = rows(table, {"experiment": "pace"}).select("data", "language").unique(maintain_order=True)
    return [(str(data), str(language)) for data, language in found.iter_rows()]


def _over_best(column: str, rivals: tuple[str, ...], choose: Any = max) -> Measure:
    """How many times Entrain's `column` that of the best rival (the least) is, in the case where that is most."""

    def measure(table: pl.DataFrame) -> Estimate:
        cases = {}
        for data, language in _cases(table):
            where = {"experiment": "pace", "data": data, "language": language}
            least = {name: mean(column, system=name, **where)(table).value for name in rivals}
            rival = min(least, key=lambda name: least[name])
            cases[f"{data} with {language}, beside {rival}"] = ratio(
                column, of={"system": rival}, to={"system": "entrain"}, **where
            )
        return best(cases, choose)(table)

    return measure


def _apart(table: pl.DataFrame) -> Estimate:
    found = rows(table, {"experiment": "real"})
    assert min(found["moved"]) > 0, "nothing was put off"
    return counted(max(found["apart"]), len(found))


_BLEND = {"experiment": "pace", "data": "blend", "language": LANGUAGE[0]}
_CHARTS = _BLEND | {"data": "synthchartnet"}


def _part(name: str) -> Measure:
    return ratio("step", of={"parts": name}, to={"parts": "all of it"}, experiment="parts", language=LANGUAGE[0])


claims = [
    Claim("throughput", _over_best("step", EXISTING)),
    Claim("spread", _over_best("sight_spread", EXISTING)),
    Claim("forward", ratio("words_spread", of={"system": "disttrain"}, to={"system": "entrain"}, **_CHARTS)),
    Claim("one-split", share("optimal", experiment="splits")),
    Claim(
        "profiled", ratio("step", of={"system": "disttrain, one profiled"}, to={"system": "entrain"}, **_BLEND),
        kind=Kind.RATIO, toward="up",
        asks="On a blend of all sets, DistTrain's order with the split that one profiled sample gives takes longer.",
    ),
    Claim(
        "wrong-split",
        best({name: mean("worst", experiment="splits", data=name, language=LANGUAGE[0]) for name in SETS}),
        kind=Kind.AT_LEAST, value=1.85, unit="ratio",
        asks="A wrong split can make a step at least 1.85 times as long.",
    ),
    Claim(
        "both-ways", ratio("step", of={"system": "longest both ways"}, to={"system": "entrain"}, **_BLEND),
        kind=Kind.RATIO, toward="up",
        asks="On a blend, dealing samples longest first in both dimensions with nothing put off takes longer.",
    ),
    Claim(
        "put-off", _part("nothing put off"), kind=Kind.RATIO, toward="up",
        asks="On a blend, a step takes longer where nothing is put off.",
    ),
    Claim(
        "memory", _over_best("memory", ("dip",)), kind=Kind.RATIO, toward="up",
        asks="The fullest rank of the DIP-like pipeline holds more, on the set where that is most.",
    ),
    Claim(
        "same", _apart, kind=Kind.AT_MOST, value=1e-9, unit="value", evidence=Evidence.REAL,
        asks="On two real processes, with samples put off, gradients and weights are those of one process to 1e-9.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Step times of all systems, over Entrain's."""
    import altair as alt

    found = table.filter((pl.col("experiment") == "pace") & (pl.col("language") == LANGUAGE[0]))
    means = found.group_by("system", "data", maintain_order=True).agg(pl.col("step").mean())
    ours = means.filter(pl.col("system") == "entrain").select("data", base="step")
    shown = means.join(ours, on="data").with_columns(times=pl.col("step") / pl.col("base"))
    chart: alt.Chart = (
        alt.Chart(shown)
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X("times:Q", title="step, times Entrain's", scale=alt.Scale(zero=False)),
            y=alt.Y("data:N", title=None),
            color=alt.Color("system:N", title=None, sort=list(dict.fromkeys(shown["system"]))),
        )
        .properties(width=420, height=200, title="An encoder and a language model in one pipeline, 64 A40")
    )
    return chart
