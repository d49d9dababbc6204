"""MegaScale-Omni: encoders on every rank of the language model, their work shared out anew for every microbatch.

An encoder in the first stage makes that stage late as soon as images are many; an encoder on ranks of its own idles
when they are few. Here every rank holds the encoder, too. The images of a microbatch are shared out over all ranks of
a copy, long ones cut over a group of ranks, short ones whole; a stage's order has encoder slots just before the first
stage needs the embeddings and just after it frees their gradients; samples are reordered within the step so that
microbatches have equally much to encode; embeddings travel to the first stage by sends or by a reduction, whichever is
cheaper. So the mix of images and text may move during a job and every rank stays as busy as it was.

Read are the architecture and the names of its parts; inferred are the threshold between long and short (the makespan
of each microbatch decides), where slots are inserted, and how samples are reordered (longest images first, texts fill
up).

Beside it, each with the layout that its own search finds best over all the mixes, out of memory where it is: Megatron-
like (the encoder in the first stage, which may have fewer layers), disaggregated (stages of its own), cut by equal
time for one synthetic sequence (as AutoParallel), and Optimus-like (on every rank as here, but planned for a static
workload: all encoding first, all its backward passes last, images whole or cut as suits best, not reordered).

arXiv:2605.08962, EuroSys 2026.

>>> found = rates(workload("A"), (5, 5), MIXES, seed=0)
>>> found["omni"].seconds < found["disaggregated"].seconds
True
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.record.measures import Measure, best, change, mean, ratio, rows
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.encoders import vision
from assay.sim.models import Model, model
from assay.training.engine.cluster import read
from assay.training.omni.search import RECOMPUTED, SYSTEMS, Mix, batch, choose, rates, run
from assay.training.omni.steps import Cut, Outcome, Setup, in_a_row, multiplexed

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
use_when = "Images and texts train together, their mix moves during the job, and the encoder is not small."
avoid_when = (
    "The encoder is small and images are few (the first stage hardly notices it), or the ranks of the language model "
    "have no memory left for a second model and its activations."
)
trust = (
    "Step times are a model of H100 by their data sheet; nothing was measured on several GPUs. Sizes of images are "
    "drawn from a shape that is assumed, and batch sizes are ours."
)
own_input = "assay compare omni --schedule examples/mixes.toml"
references = (
    "Megatron-LM: Narayanan et al., SC 2021. DistTrain: Zhang et al., SIGCOMM 2025. Alpa: Zheng et al., OSDI 2022.",
    "Optimus: Feng et al., ATC 2025. Ulysses: Jacobs et al., 2023.",
)

MIXES: tuple[Mix, ...] = ((1, 9), (5, 5), (9, 1))  # tokens of images to those of text
RIVALS = SYSTEMS[1:]
QUICK, EVERY = ("A", "B"), ("A", "B", "C", "D")


@cache
def workload(name: str) -> Setup:
    """A to D: encoders of 1 to 10 billion parameters with language models of 12 to 175, on 64 to 512 GPUs.

    >>> workload("D").speaks.params // 10**9, workload("C").seq
    (174, 16384)
    """
    llama = Model("llama-12b", 5120, 32000, False, 36, 0, 0, 36, 0, 40, 40, 128, 13824)
    gpt = Model("gpt-175b", 12288, 51200, True, 96, 0, 0, 96, 0, 96, 96, 128, 49152, gated_mlp=False)
    large = model("llama-3-70b")
    return {
        "A": Setup("A", read("64xh100"), vision("vit-1b"), llama, 8192, 128),
        "B": Setup("B", read("128xh100"), vision("vit-2.4b"), large, 8192, 128),
        "C": Setup("C", read("256xh100"), vision("vit-10b"), large, 16384, 256),
        "D": Setup("D", read("512xh100"), vision("vit-10b"), gpt, 16384, 256),
    }[name]


def told(setup: Setup, outcome: Outcome | None) -> dict[str, Any]:
    """One line of a table; nothing where memory ran out."""
    if outcome is None:
        return {"step": None, "tokens_per_second": None, "mfu": None, "memory": None, "cut": None, "fits": False}
    rate = setup.seq * setup.batch / outcome.seconds
    return {
        "step": outcome.seconds, "tokens_per_second": rate, "mfu": outcome.mfu, "memory": outcome.memory,
        "cut": outcome.cut, "fits": True,
    }  # fmt: skip


def _mix(text: str) -> Mix:
    image, words = text.split(":")
    return float(image), float(words)


def named(mix: Mix) -> str:
    """As one would write it.

    >>> named((1, 9))
    '1:9'
    """
    return f"{mix[0]:g}:{mix[1]:g}"


def pace(work: str, mix: str, seed: int) -> dict[str, dict[str, Any]]:
    """All systems at one mix, each with its one layout for all of them."""
    setup = workload(work)
    return {name: told(setup, one) for name, one in rates(setup, _mix(mix), MIXES, seed).items()}


def parts(work: str, mix: str, seed: int) -> dict[str, dict[str, Any]]:
    """Omni without one of its parts, everything else as it was."""
    setup = workload(work)
    samples, ours, apart = batch(setup, _mix(mix), seed), choose(setup, "omni", MIXES), choose(setup, RIVALS[1], MIXES)
    assert ours is not None
    whole = _least(setup, [multiplexed(setup, cut, samples, how="whole") for cut in _keeping(ours.cut)])
    sliced = multiplexed(setup, ours.cut, samples, how="cut")
    found = {
        "all of it": run(setup, "omni", ours, samples),
        "no long-short": _least(setup, [one for one in (whole, sliced) if one]),  # one way for all, the better one
        "all images whole": whole,
        "all images cut": sliced,
        "no balancing": multiplexed(setup, ours.cut, samples, balanced=False),
        "all encoding first": multiplexed(setup, ours.cut, samples, on_demand=False),
        "no multiplexing": in_a_row(setup, apart.cut, samples, balanced=True) if apart else None,
    }
    return {name: told(setup, one if one and one.fits(setup) else None) for name, one in found.items()}


def _keeping(cut: Cut) -> list[Cut]:
    """The same layout, recomputing more or less: whole images fill a rank's memory."""
    return [replace(cut, recompute=words, seeing=sight) for words, sight in RECOMPUTED]


def _least(setup: Setup, outcomes: list[Outcome]) -> Outcome | None:
    """The fastest that fits."""
    return min((one for one in outcomes if one.fits(setup)), key=lambda one: one.seconds, default=None)


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Mixes from 1:9 to 9:1 on two to four workloads beside four rivals; what each part brings."""
    works = lab.pick(quick=QUICK, full=EVERY)
    few = lab.with_seeds(quick=3, full=5)
    cases = [{"work": work, "mix": named(mix)} for work in works for mix in MIXES]
    return {
        "pace": few.run(pace, cases, per="system"),
        "parts": few.run(parts, [{"work": work, "mix": "5:5"} for work in works], per="parts"),
    }


def _works(table: pl.DataFrame) -> list[str]:
    return sorted(set(rows(table, {"experiment": "pace"})["work"]))


def _leads(choose_: Any) -> Measure:
    """How many times Omni's step a rival's is, over all workloads, mixes and rivals."""

    def measure(table: pl.DataFrame) -> Estimate:
        cases = {
            f"{work} at {named(mix)}, beside {rival}": ratio(
                "step", of={"system": rival}, to={"system": "omni"}, experiment="pace", work=work, mix=named(mix)
            )
            for work in _works(table) for mix in MIXES for rival in RIVALS
        }  # fmt: skip
        return best(cases, choose_)(table)

    return measure


def _over_works(column: str, make: Any, choose_: Any) -> Measure:
    def measure(table: pl.DataFrame) -> Estimate:
        return best({work: make(column, work) for work in _works(table)}, choose_)(table)

    return measure


def _from_few_to_many(column: str, system: str) -> Any:
    """At the mix with most images over that with fewest."""
    first, last = named(MIXES[0]), named(MIXES[-1])
    return lambda _, work: ratio(
        column, of={"mix": last}, to={"mix": first}, experiment="pace", system=system, work=work
    )


def _utilisation(table: pl.DataFrame) -> Estimate:
    cases = {
        f"{work} at {named(mix)}": mean("mfu", experiment="pace", system="omni", work=work, mix=named(mix))
        for work in _works(table) for mix in MIXES
    }  # fmt: skip
    return best(cases)(table)


def _without(part: str, work: str = "A") -> Measure:
    return change(
        "tokens_per_second", new={"parts": part}, old={"parts": "all of it"}, experiment="parts", work=work, mix="5:5"
    )


claims = [
    Claim("best", _leads(max)),
    Claim("least", _leads(min)),
    Claim("mfu", _utilisation),
    Claim("ablation", _without("no long-short")),
    Claim(
        "steady", _over_works("mfu", _from_few_to_many("mfu", "omni"), min), kind=Kind.AT_LEAST, value=0.75,
        unit="ratio",
        asks="From mostly text to mostly images, utilisation is at least 0.75 times what it was, on every workload.",
    ),
    Claim(
        "balancing", _without("no balancing"), kind=Kind.CHANGE, toward="down",
        asks="Throughput falls when samples are not reordered and images are not dealt longest first.",
    ),
    Claim(
        "all-whole", _without("all images whole"), kind=Kind.CHANGE, toward="down",
        asks="Throughput falls when no image is cut over a group of ranks, not even a long one.",
    ),
    Claim(
        "multiplexing", _without("no multiplexing"), kind=Kind.CHANGE, toward="down",
        asks="Throughput falls when the encoder gets stages of its own.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Throughput over the mix, a panel a workload."""
    import altair as alt

    found = table.filter((pl.col("experiment") == "pace") & pl.col("step").is_not_null())
    means = found.group_by("work", "mix", "system", maintain_order=True).agg(pl.col("tokens_per_second").mean())
    chart: alt.Chart = (
        alt.Chart(means)
        .mark_line(point=True)
        .encode(
            x=alt.X("mix:N", title="tokens of images to those of text", sort=[named(mix) for mix in MIXES]),
            y=alt.Y("tokens_per_second:Q", title="tokens a second"),
            color=alt.Color("system:N", title=None, sort=list(SYSTEMS)),
            column=alt.Column("work:N", title="workload"),
        )
        .properties(width=200, height=240)
        .resolve_scale(y="independent")
    )
    return chart
