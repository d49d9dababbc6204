"""Training runs whose utilisation was published, beside what the engine says of the same plan (`published.toml`).

Nothing is fitted to them: devices have the shares that were measured of their chip, or the assumed ones.

>>> first = runs()[0]
>>> first.name, first.cluster, first.published, abs(ours(first) / first.published - 1) < 0.2
('Llama 3.1 405B', '8192xh100', 0.43, True)
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from assay.sim.hardware import device
from assay.sim.models import Model, model
from assay.training.engine.cluster import FP8, Cluster, read
from assay.training.engine.costs import model_flops
from assay.training.engine.launch import read_plan
from assay.training.engine.step import simulate
from assay.training.interface import Job

FILE = Path(__file__).with_name("published.toml")


@dataclass(frozen=True)
class Run:
    """One row: the plan, what was published of it, and where."""

    name: str
    source: str
    shape: Model
    cluster: str
    plan: str
    batch: int
    seq: int
    published: float
    hardware: bool = False  # what was computed again counts, too
    assumed: str = ""  # words of the plan that are not published
    fp8: bool = False  # the layers' products

    @property
    def device(self) -> str:
        """The kind of device."""
        return read(self.cluster).device.name


@cache
def runs() -> tuple[Run, ...]:
    """All of them, in the file's order."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    titles = {each["key"]: each["title"] for each in content["source"]}
    return tuple(_run(one, titles[one["source"]]) for one in content["run"])


def _run(one: dict[str, Any], source: str) -> Run:
    shape, cluster = _shape(one["name"], one["model"]), read(one["cluster"])
    share = one["published"] if "published" in one else _of_hours(shape, cluster, one)
    return Run(
        one["name"], source, shape, one["cluster"], one["plan"], one["batch"], one["seq"], share,
        one.get("counts") == "hardware", one.get("assumed", ""), one.get("precision") == "fp8",
    )  # fmt: skip


def _of_hours(shape: Model, cluster: Cluster, one: dict[str, Any]) -> float:
    """The share of the peak of bf16 that so many hours of a device for a trillion tokens are."""
    job = Job(one["batch"], one["seq"])
    computed = model_flops(shape, job) / job.tokens * 1e12
    return float(computed / (one["hours"] * 3600 * cluster.device.flops("bf16")))


def _shape(name: str, given: str | dict[str, Any]) -> Model:
    """A model of our own records, or a GPT of these sizes, as many keys as heads and 4 times as wide if not told."""
    if isinstance(given, str):
        return model(given)
    layers, hidden, heads = given["layers"], given["hidden"], given["heads"]
    return Model(
        name, hidden, given["vocab"], True, layers, 0, 0, layers, 0, heads, given.get("kv_heads", heads),
        hidden // heads, given.get("ffn", 4 * hidden), gated_mlp=False,
    )  # fmt: skip


@cache
def ours(run: Run) -> float:
    """The utilisation that the engine says, counted as the paper counts it."""
    cluster = read(run.cluster)
    cluster = replace(cluster, precision=FP8) if run.fp8 else cluster
    found = simulate(run.shape, cluster, read_plan(run.plan, cluster.ranks), Job(run.batch, run.seq))
    if not run.hardware:
        return found.mfu
    layers, h = run.shape.layers, run.shape.hidden
    again = 96.0 * run.batch * run.seq * layers * h**2 * (1 + run.seq / (6 * h) + run.shape.vocab / (16 * layers * h))
    return float(again / (found.step * cluster.ranks * cluster.device.flops("bf16")))


def of_chip(name: str) -> list[float]:
    """Our utilisation over the published one, of every run on this device's chip.

    >>> len(of_chip("h200")) == len(of_chip("h800")) > 5, of_chip("l4")
    (True, [])
    """
    on = device(name)
    same = [one for one in runs() if _chip(one.device) == (on.silicon or on.name)]
    return [ours(one) / one.published for one in same]


@cache
def _chip(name: str) -> str:
    return device(name).silicon or name


def as_markdown() -> str:
    """The table of the documentation.

    >>> print(as_markdown().splitlines()[2])
    | Llama 3.1 405B | 8,192 h100 | `tp8 pp16 vpp4* dp64 mbs1*` | 43.0 | 46.3 | 1.08 | 1 |
    """
    sources = list(dict.fromkeys(one.source for one in runs()))
    lines = [
        "| model | GPUs | plan | published | ours | ratio | source |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in runs():
        words = [word + "*" * (word.rstrip("0123456789") in one.assumed.split()) for word in one.plan.split()]
        words += ["fp8"] * one.fp8
        counted, found = " (hardware)" * one.hardware, ours(one)
        lines.append(
            f"| {one.name} | {int(one.cluster.split('x')[0]):,} {one.device} | `{' '.join(words)}` | "
            f"{100 * one.published:.1f}{counted} | {100 * found:.1f} | {found / one.published:.2f} | "
            f"{sources.index(one.source) + 1} |"
        )
    return "\n".join([*lines, "", *(f"{at}. {title}" for at, title in enumerate(sources, 1))])
