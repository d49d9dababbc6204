"""Maestro: cut a compound job into sections, and order samples so that the costliest of them never waits for helpers.

A distillation has a teacher and a student, a vision-language model an encoder and a language model. On the same GPUs
and with one layout each slows the other down. Here each is a section with its own layout, microbatch and number of
copies; the costliest is critical. An auxiliary section gets just the GPUs with which it keeps up; it may serve several
copies of the critical one, and takes more samples at once where it has no backward pass. An edge is cut where it
carries least: a teacher's output layer moves to the student, and hidden states travel instead of logits. Samples of one
global batch are reordered by insertion, those that need no helper first, so that the critical section always has
something to do.

Orders are held against a solver's best. On two real processes the loss of a student is the same whether logits or
hidden states travel. Step times are a model of H100 (and H200, at full size); shapes of the paper's models (a 400B
mixture with 17B active as teacher of a dense 32B and as language model), numbers of GPUs and samples are assumed.
Beside it stand one layout for everything, as Megatron-LM has it, at its best (with samples longest first, where that is
faster), and other orders of the same sections: as samples come, longest first, and Johnson's rule, the latter two with
the same even deal. Texts that a student learns from keep their own lengths: packed to one length they would be alike,
all orders would tie, and what is measured would be layouts alone.

arXiv:2605.10501. How samples are inserted, dealt to copies and GPUs allotted is inferred.

>>> order = wavefront([[5.0], [0.0], [0.0]], [4.0, 4.0, 4.0])
>>> order.tolist()
[1, 2, 0]
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record.measures import Measure, best, counted, mean, rows
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.encoders import vision
from assay.sim.models import Model, model
from assay.sim.random import stream
from assay.sim.ranks import prepare
from assay.training.engine.cluster import Cluster
from assay.training.engine.cluster import read as read_cluster
from assay.training.maestro import distill_job, pace
from assay.training.maestro.graph import Graph, Node, connected
from assay.training.maestro.wavefront import ORDERS, idle
from assay.training.maestro.wavefront import wavefront as wavefront
from assay.workloads.multimodal import Samples

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "One job trains on several models of unequal cost: a teacher and a student, encoders and a language model."
avoid_when = "The helpers are so small that GPUs of their own stand idle: one layout with its first stage made lighter."
trust = (
    "Step times are a model of clusters of which nothing was measured, with queues of eight samples and auxiliary "
    "sections at 90 % of their pace. Orders, bytes of cuts and the loss of two real processes are exact."
)
own_input = "assay compare maestro --graph examples/sections.toml"
references = (
    "Two-machine flow shops: Johnson, 1954. Insertion: Nawaz, Enscore, Ham, 1983; in quadratic time: Taillard, 1990.",
)

LENGTH = 8192
MIXTURE = Model.from_hf(  # as Qwen3.5-397B-A17B says of itself
    {
        "model_type": "qwen3_next", "hidden_size": 4096, "num_hidden_layers": 60, "full_attention_interval": 4,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": 64, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "intermediate_size": 1024, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024, "vocab_size": 248320,
    },
    name="moe-400b-a17b",
)  # fmt: skip
SETTINGS = {  # critical GPUs, samples a step
    "distillation": (128, 256), "distillation-8b": (64, 256), "vlm-400b": (512, 1024), "vlm-80b": (64, 1024),
}  # fmt: skip
DISTILLED = {"distillation": ("qwen3-32b", "moe-400b-a17b"), "distillation-8b": ("qwen3-8b", "qwen3-next-80b-a3b")}
DEVICE = "h100"


def job(setting: str) -> Graph:
    """The sections of a published setting."""
    ranks, batch = SETTINGS[setting]
    if setting in DISTILLED:
        small, large = DISTILLED[setting]
        student = Node("student", model(small), critical=True, ranks=ranks)
        knows = MIXTURE if large == MIXTURE.name else model(large)
        return connected([student, Node("teacher", knows, trained=False, feeds=("student",))], batch=batch)
    eye = vision("qwen2.5-vl")
    speaks = MIXTURE if setting == "vlm-400b" else model("qwen3-next-80b-a3b")
    llm = Node("llm", speaks, critical=True, ranks=ranks)
    return connected([llm, Node("eyes", eye.shape, feeds=("llm",), merge=eye.merge)], batch=batch)


@lru_cache(maxsize=16)
def plan_of(setting: str, device: str) -> pace.Plan:
    """Sections are laid out once, for the mean of many samples; batches come later."""
    return pace.planned(job(setting), _cluster(setting, device), _profile(setting))


@lru_cache(maxsize=16)
def single_layouts(setting: str, device: str) -> list[pace.Uniform]:
    """Those of one layout for everything that fit in the mean, the best first."""
    return pace.ranked(job(setting), _cluster(setting, device), _profile(setting))


def _profile(setting: str) -> Samples:
    return drawn(setting, 4096, 0)


def drawn(setting: str, count: int, seed: int) -> Samples:
    """Samples of a setting. Texts that a student learns from are not packed: alike, they might come in any order."""
    if setting in DISTILLED:
        return pace.texts(count, LENGTH, seed)
    return pace.packed(count, LENGTH, seed)


def _cluster(setting: str, device: str) -> Cluster:
    return read_cluster(f"{SETTINGS[setting][0]}x{device}")


def steps(setting: str, device: str, seed: int) -> dict[str, dict[str, Any]]:
    """A step of every system on one global batch."""
    graph = job(setting)
    samples = drawn(setting, graph.batch, seed)
    one = pace.uniform(graph, _cluster(setting, device), samples, single_layouts(setting, device))
    found = {"one layout": one} | {order: pace.stepped(plan_of(setting, device), samples, order) for order in ORDERS}
    return {
        system: {
            "seconds": step.seconds, "gpus": step.ranks, "idle": step.idle, "speedup": one.seconds / step.seconds,
            "per_gpu": step.per_gpu / one.per_gpu, "gpu_seconds": step.seconds * step.ranks / step.batch,
            "layout": step.layout,
        }
        for system, step in found.items()
    }  # fmt: skip


def orders(samples: int, sections: int, seed: int) -> dict[str, dict[str, Any]]:
    """The critical section on drawn work, half of the samples needing each helper: how long it idles, over its own
    seconds, and how much longer than any order must."""
    random = stream(seed, "maestro", "orders", samples, sections)
    needs_it = random.random((samples, sections)) < 0.5
    auxiliary, critical = random.exponential(0.9, (samples, sections)) * needs_it * 2, random.exponential(1.0, samples)
    total, ends = float(critical.sum()), np.where(needs_it, critical[:, None], np.inf).min(axis=0)
    least = max(0.0, float((auxiliary.sum(axis=0) + ends).max()) - total)  # all of a helper's work, then one sample
    found = {name: idle(auxiliary, critical, order(auxiliary, critical)) for name, order in ORDERS.items()}
    return {name: {"idle": seconds / total, "avoidable": (seconds - least) / total} for name, seconds in found.items()}


def real(count: int, seed: int) -> dict[str, Any]:
    """Two processes, teacher and student, with either cut."""
    found = distill_job.run(count, seed)
    logits, hidden = found["logits"], found["hidden"]
    weights = zip(logits["weights"], hidden["weights"], strict=True)
    return {
        "loss": logits["losses"][-1], "first": logits["losses"][0],
        "apart": max(abs(a - b) for a, b in zip(logits["losses"], hidden["losses"], strict=True)),
        "weights_apart": float(max(np.abs(a - b).max() for a, b in weights)),
        "fewer": logits["bytes"] / hidden["bytes"],
    }  # fmt: skip


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Three published settings on two GPUs beside one layout and other orders; orders alone; a real distillation."""
    devices = lab.pick(quick=(DEVICE,), full=(DEVICE, "h200"))
    cases = [{"setting": setting, "device": device} for setting in SETTINGS for device in devices]
    once = replace(lab.with_seeds(quick=2, full=5), workers=0)
    sizes = lab.pick(quick=((64, 1), (64, 2)), full=((64, 1), (64, 2), (256, 1), (256, 3), (1024, 2)))
    prepare(distill_job.IMPORTS)
    return {
        "steps": replace(lab, workers=0).run(steps, cases, per="system"),
        "orders": lab.run(orders, [{"samples": n, "sections": s} for n, s in sizes], per="order"),
        "real": once.run(real, [{"count": lab.pick(quick=20, full=100)}]),
    }


def _mean(column: str, setting: str) -> Measure:
    return mean(column, experiment="steps", device=DEVICE, setting=setting, system="wavefront")


def _hours(table: pl.DataFrame) -> Estimate:
    """GPU-seconds of a sample over those of one layout, in the mean of all jobs, each counting the same."""
    where = {"experiment": "steps", "device": DEVICE, "system": "wavefront"}
    return mean("hours")(rows(table, where).with_columns(hours=1 / pl.col("per_gpu") - 1))


def _ahead(rival: str, less: float = 0.0) -> Measure:
    """How many times as long the rival's steps are, over the vision-language settings; less one for the change."""

    def measure(table: pl.DataFrame) -> Estimate:
        where = {"experiment": "steps", "device": DEVICE}
        one, other = (
            rows(table, where | {"system": system}).filter(~pl.col("setting").is_in(list(DISTILLED)))
            for system in ("wavefront", rival)
        )
        keys = ["setting", "device", "seed"]
        both = one.select(*keys, "seconds").join(other.select(*keys, other="seconds"), on=keys)
        return mean("times")(both.with_columns(times=pl.col("other") / pl.col("seconds") - less))

    return measure


def _largest(column: str, **where: Any) -> Measure:
    def measure(table: pl.DataFrame) -> Estimate:
        found = rows(table, where)[column]
        return counted(max(found), len(found))

    return measure


claims = [
    Claim("gpu-hours", _hours),
    Claim("distillation", best({f"student {DISTILLED[one][0]}": _mean("speedup", one) for one in DISTILLED})),
    Claim("per-gpu", _mean("per_gpu", "distillation")),
    Claim("vlm-400b", _mean("per_gpu", "vlm-400b")),
    Claim("vlm-80b", _mean("per_gpu", "vlm-80b")),
    Claim(
        "arrival", _ahead("arrival"), kind=Kind.RATIO, toward="up",
        asks="With samples as they come, steps of the same vision-language sections are longer than in wavefront "
        "order.",
    ),
    Claim(
        "longest-first", _ahead("longest first", less=1.0), kind=Kind.UNCHANGED, unit="change",
        asks="With the longest samples first and the same even deal, which is simpler, steps of the same "
        "vision-language sections are as long as in wavefront order.",
    ),
    Claim(
        "johnson", _ahead("johnson"), kind=Kind.RATIO, toward="up",
        asks="With Johnson's rule, the best order for one helper without a way back, steps of the same vision-language "
        "sections are longer than in wavefront order.",
    ),
    Claim(
        "avoidable", _largest("avoidable", experiment="orders", order="wavefront"), kind=Kind.AT_MOST, value=0.02,
        unit="share",
        asks="On drawn work the critical section idles at most 2 % of its own seconds longer than it must in any "
        "order.",
    ),
    Claim(
        "same-loss", _largest("apart", experiment="real"), kind=Kind.AT_MOST, value=1e-5, unit="value",
        evidence=Evidence.REAL,
        asks="On two real processes a student's loss is the same whether logits or hidden states travel, to 0.01 "
        "thousandths.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Throughput of a GPU over that of one layout."""
    import altair as alt

    found = table.filter((pl.col("experiment") == "steps") & (pl.col("system") != "one layout"))
    means = found.group_by("setting", "device", "system", maintain_order=True).agg(pl.col("per_gpu").mean())
    chart: alt.Chart = (
        alt.Chart(means)
        .mark_bar()
        .encode(
            x=alt.X("system:N", title=None, sort=list(ORDERS)),
            y=alt.Y("per_gpu:Q", title="samples a second and GPU, over one layout's"),
            color=alt.Color("device:N", title=None),
            xOffset="device:N",
            tooltip=["setting", "device", "system", "per_gpu"],
            column=alt.Column("setting:N", title=None, sort=list(SETTINGS)),
        )
        .properties(width=150, height=220)
    )
    return chart
