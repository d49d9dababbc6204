"""Orbax: every host writes its own shards in the background, one record commits them, and any sharding can read them.

A checkpoint is a table of pieces: rows of an array, where their bytes lie, and their digest. Each rank writes its
pieces into a few large objects; when all of them are durable, one create-only record makes the step visible. Whoever
wants another sharding intersects what it wants with the table and reads just that. `Checkpointer` is this scheme on any
store, for torch, NumPy and JAX; the study measures it beside Orbax itself and the tools of the PyTorch world.

>>> import tempfile, numpy as np
>>> with tempfile.TemporaryDirectory() as folder:
...     ck = Checkpointer(folder)
...     ck.save(100, {"model": {"w": np.ones((2, 2))}, "lr": 0.1})
...     ck.restore(like={"model": {"w": Part(start=(1, 0), shape=(1, 2))}})
{'model': {'w': array([[1., 1.]])}, 'lr': 0.1}
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.data.orbax.checkpointer import Checkpointer as Checkpointer
from assay.data.orbax.checkpointer import Handle as Handle
from assay.data.orbax.checkpoints import Checkpoints
from assay.data.orbax.checkpoints import Retention as Retention
from assay.data.orbax.crashing import Job
from assay.data.orbax.reading import target
from assay.data.orbax.tree import Part as Part
from assay.data.orbax.tree import Sharded as Sharded
from assay.data.orbax.tree import flatten
from assay.data.orbax.trees import Trees
from assay.data.store.memory import MemStore
from assay.record.measures import Measure, best, clocked, mean, ratio, rows
from assay.record.timing import Gauge
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.ledger import forget_peak, peak_rss, rss
from assay.sim.scratch import scratch

if TYPE_CHECKING:
    import altair as alt
    import polars as pl

    from assay.data.orbax.tools import Tool
    from assay.record.lab import Lab

evidence = Evidence.REAL
needs = ("torch", "data")
use_when = "A training job must survive its machines, and may come back on more or fewer of them."
avoid_when = "The state is a few kilobytes, or others must read the file: export it as safetensors."
own_input = "assay data ckpt inspect examples/state.safetensors"
references = (
    "PyTorch Distributed Checkpoint (torch.distributed.checkpoint), the baseline of the PyTorch world",
    "TensorStore's OCDBT, the key-value store that Orbax writes into",
)
offers = {"crashable": Job, "checkpoints": Trees}

PYTORCH = ("dcp", "torch-save", "safetensors")  # what a PyTorch user has
MB = 10**6


def trial(megabytes: int, arrays: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """All tools on one generated state."""
    import torch

    from assay.data.orbax import tools

    torch.set_num_threads(1)
    return side_by_side(tools.tensors(megabytes * MB, arrays, seed), rounds)


def side_by_side(state: Mapping[str, Any], rounds: int) -> dict[str, dict[str, Any]]:
    """Medians of rounds in which the tools take turns: each save synced, a load from the disk and one from the cache.

    Every tool has had a turn on a small state before: what it imports and starts then is not timed.
    """
    from assay.data.orbax import tools

    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    here = [tool for tool in tools.TOOLS if tool.here]
    seen: dict[str, list[dict[str, float]]] = {tool.name: [] for tool in here}
    with tools.settled(), scratch() as folder, Gauge() as gauge:
        for tool in here:
            _warmed(tool)
        gc.freeze()
        for turn in range(rounds):
            for tool in here[turn % len(here) :] + here[: turn % len(here)]:
                seen[tool.name].append(_once(tool, state, folder / f"{tool.name}-{turn + 2}", nbytes))
                _clear(folder)
        tools.leave(folder)
    return {
        name: {column: _middle(several, column) for column in several[0]} | {"free_cores": gauge.free}
        for name, several in seen.items()
    }


@cache
def _warmed(tool: Tool) -> None:
    """Let a tool import what it needs and start its threads, once a process."""
    from assay.data.orbax import tools

    with scratch() as folder:
        _once(tool, tools.tensors(10**5, 2, 0), folder / f"{tool.name}-1", 10**5)
        tools.leave(folder)


def _middle(several: list[dict[str, float]], column: str) -> float | None:
    found = [one[column] for one in several]
    return None if any(value is None for value in found) else float(np.median(found))


def _once(tool: Tool, state: Mapping[str, Any], path: Path, nbytes: int) -> dict[str, Any]:
    from assay.data.orbax import tools

    told: dict[str, Any] = {}
    held = {name: tensor.clone().zero_() for name, tensor in state.items()}  # a job's own arrays
    for name, call, caches in (
        ("save", lambda: tool.save(path, dict(state)), tools.forget),
        ("resume", lambda: tool.refill(path, held), tools.forget),
        ("load_warm", lambda: tool.load(path, dict(state)), tools.recall),
        ("load", lambda: tool.load(path, dict(state)), tools.forget),
    ):
        found: Any = None
        caches(path.parent)
        tools.give_back()
        told[name], told[f"{name}_memory"], found = _measured(call, nbytes)
        if name == "resume":
            told["same"] = float(_equal(held, state))
            held.clear()
    told["same"] = min(told["same"], float(_equal(found, state)))
    del found
    told |= {"blocks": None, "blocks_first": None, "async_memory": None}
    if tool.start is not None:
        tool.start(path.with_name(f"{path.name}0001"), dict(state))()  # what is staged in is there from now on
        told["blocks"] = _background(tool.start, path.with_name(f"{path.name}0002"), state)[0] / told["save"]
        tools.leave(path.parent)  # as in a job's first save: the memory to stage in is new, and counts
        tools.give_back()
        seconds, memory = _background(tool.start, path.with_name(f"{path.name}0003"), state)
        told |= {"blocks_first": seconds / told["save"], "async_memory": memory / nbytes}
    return told


def _measured(call: Callable[[], Any], nbytes: int) -> tuple[float, float, Any]:
    """Seconds, the most memory that came on top in times of the state, and the outcome."""
    forget_peak()
    held, began = rss(), time.perf_counter()
    found = call()
    return time.perf_counter() - began, (peak_rss() - held) / nbytes, found


def _equal(found: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    return all(np.array_equal(np.asarray(found[name]), tensor.numpy()) for name, tensor in state.items())


def _background(start: Any, path: Path, state: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds that a save in the background holds the job up, and the most memory it took until it was durable."""
    forget_peak()
    held, began = rss(), time.perf_counter()
    wait = start(path, dict(state))
    seconds = time.perf_counter() - began
    wait()
    return seconds, peak_rss() - held


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name == "assay":  # its register stays, as in a job; its data goes
            shutil.rmtree(path / "data", ignore_errors=True)
        else:
            shutil.rmtree(path)


def parts(seed: int) -> dict[str, dict[str, Any]]:
    """What partial restores of one checkpoint read, over what they want."""
    random = np.random.default_rng(seed)
    state = {
        "model": {"w": random.random((4096, 1024), np.float32)},
        "opt": {"m": random.random((4096, 1024), np.float32)},
    }
    first = int(random.integers(0, 2048))
    wanted = {
        "the model alone": ("model", None, True),
        "half of the rows": ("model/w", ((first, 0), (2048, 1024)), True),
        "half of the columns": ("model/w", ((0, 0), (4096, 512)), True),
        "half of the columns, unchecked": ("model/w", ((0, 0), (4096, 512)), False),
    }

    async def main() -> dict[str, dict[str, Any]]:
        one = Checkpoints()
        await one.open(MemStore(), seed=seed)
        await one.save(0, *flatten(state))
        table, told = await one.table(), {}
        for name, (path, box, verify) in wanted.items():
            boxes = {array.path: [target(array, box)] for array in table.arrays if array.path.startswith(path)}
            _, found, read = await one.read(table, boxes.__contains__, lambda a: boxes[a.path], verify=verify)  # noqa: B023
            asked = sum(len(place.into) for places in found.values() for place in places)
            told[name] = {"read": read / asked}
        return told

    import asyncio

    return asyncio.run(main())


def crashes(ops: int, mixes: int, seed: int) -> dict[str, Any]:
    """The crash lab on a job that saves and collects."""
    from assay.data.crash.lab import examine

    report = examine(Job, ops, seed=seed, mixes=mixes)
    return {"changes": report.changes, "cases": report.cases, "kept": report.cases - len(report.findings)}


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Save and load beside five other tools on a local disk; what a partial restore reads; what a crash loses."""
    few = lab.with_seeds(quick=2, full=5)  # each has a process of its own, which imports torch, jax and all the tools
    states = lab.pick(
        quick=({"megabytes": 64, "arrays": 32, "rounds": 1},),
        full=({"megabytes": 2000, "arrays": 96, "rounds": 3}, {"megabytes": 64, "arrays": 4096, "rounds": 3}),
    )
    safety = [{"ops": lab.pick(quick=30, full=300), "mixes": lab.pick(quick=10, full=200)}]
    return {
        "speed": few.run(trial, states, per="tool", alone=True),
        "parts": lab.run(parts, [{}], per="wanted"),
        "crashes": lab.with_seeds(quick=2, full=2).run(crashes, safety),
    }


def _states(table: pl.DataFrame) -> list[tuple[int, int]]:
    found = rows(table, {"experiment": "speed"}).select("megabytes", "arrays").unique().sort("megabytes")
    return [(int(m), int(a)) for m, a in found.iter_rows()]


def _against(column: str, slow: tuple[str, ...], fast: str) -> Measure:
    """How many times as long as `fast` the quickest of the others takes, in the state where that is most."""

    def measure(table: pl.DataFrame) -> Estimate:
        cases = {}
        speeds = rows(table, {"experiment": "speed"})
        if fast not in speeds["tool"].to_list():
            raise NotMeasured(f"{fast} is not installed: pip install orbax-checkpoint jax")
        for megabytes, arrays in _states(table):
            where = {"experiment": "speed", "megabytes": megabytes, "arrays": arrays}
            means = {
                tool: mean(column, tool=tool, **where)(table).value for tool in slow if tool in set(speeds["tool"])
            }
            rival = min(means, key=lambda tool: means[tool])
            name = f"{megabytes} MB in {arrays} arrays, beside {rival}"
            cases[name] = ratio(column, of={"tool": rival}, to={"tool": fast}, **where)
        return best(cases)(table)

    return measure


def _largest(column: str, **where: Any) -> Measure:
    """A column's mean in the largest state."""

    def measure(table: pl.DataFrame) -> Estimate:
        megabytes, arrays = max(_states(table))
        return mean(column, experiment="speed", megabytes=megabytes, arrays=arrays, **where)(table)

    return measure


def _by_clock(measure: Measure) -> Measure:
    return clocked(measure, experiment="speed")


def _kept(table: pl.DataFrame) -> Estimate:
    found = rows(table, {"experiment": "crashes"})
    tried, kept = int(found["cases"].sum()), int(found["kept"].sum())
    return Estimate(kept / tried, kept / tried, kept / tried, tried)


OTHERS = ("dcp", "torch-save", "safetensors", "npz", "orbax")
claims = [
    Claim("save", _by_clock(_against("save", ("dcp",), "orbax"))),
    Claim("load", _by_clock(_against("load", ("dcp",), "orbax"))),
    Claim(
        "own-save", _by_clock(_against("save", OTHERS, "assay")), kind=Kind.RATIO, toward="up",
        asks="Our checkpointer saves faster than the best of the others, everything synced.",
    ),
    Claim(
        "own-load", _by_clock(_against("load", OTHERS, "assay")), kind=Kind.RATIO, toward="up",
        asks="Our checkpointer loads faster than the best of the others, from a cold cache, and checks every byte.",
    ),
    Claim(
        "own-resume", _by_clock(_against("resume", OTHERS, "assay")), kind=Kind.RATIO, toward="up",
        asks="It refills the arrays that a job holds faster than the best of the others, from a cold cache.",
    ),
    Claim(
        "own-load-warm", _by_clock(_against("load_warm", OTHERS, "assay")), kind=Kind.RATIO, toward="up",
        asks="It loads faster than the best of the others where the page cache holds everybody's files.",
    ),
    Claim(
        "blocks", _by_clock(_largest("blocks", tool="assay")), kind=Kind.AT_MOST, value=0.15, unit="share",
        asks="An asynchronous save of ours holds the job up for at most 15 % of a synchronous one.",
    ),
    Claim(
        "memory", _largest("async_memory", tool="assay"), kind=Kind.AT_MOST, value=1.2, unit="state",
        asks="An asynchronous save of ours needs at most 1.2 times the state as extra memory.",
    ),
    Claim(
        "rows", mean("read", experiment="parts", wanted="half of the rows"), kind=Kind.AT_MOST, value=1.1, unit="ratio",
        asks="Restoring a part of an array's rows reads at most 1.1 times its bytes.",
    ),
    Claim(
        "crashes", _kept, kind=Kind.EVERY, evidence=Evidence.MODEL,
        asks="After a crash at any change, listed checkpoints are complete and the promised one is listed.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Seconds of each tool, save beside load."""
    import altair as alt
    import polars as pl

    speed = table.filter(pl.col("experiment") == "speed")
    long = speed.unpivot(
        ["save", "load"], index=["megabytes", "tool", "seed"], variable_name="what", value_name="seconds"
    )
    base = alt.Chart(long.group_by("megabytes", "tool", "what").agg(pl.col("seconds").mean()))
    chart: alt.Chart = base.mark_bar().encode(
        x=alt.X("seconds:Q", title="seconds"), y=alt.Y("tool:N", sort="x", title=None),
        column=alt.Column("what:N", title=None), row=alt.Row("megabytes:O", title="MB"),
    )  # fmt: skip
    return chart
