"""The measurements of `ccl-bench`: real rows of two engines and a search over them, the published table, links twice
as fast on two kinds of machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from assay.observe.ccl_bench import ddp_variants
from assay.observe.ccl_bench.ddp_variants import DEFAULTS, SPACES, Bench, CannotRun, OutOfTime, Setup, Workload
from assay.observe.ccl_bench.search import Tpe, best, search, setups
from assay.observe.graphs.generate import Job, generate
from assay.observe.graphs.replay import Link, Network, Plan, replay
from assay.observe.traces import metrics
from assay.record.errors import BadInput
from assay.sim.hardware import Device, device
from assay.sim.random import stream
from assay.sim.scratch import scratch

Rows = dict[str, dict[str, Any]]
STEPS, LOOKED_AT = 2, 3  # that a row of a search records, and any other
TIMED = 2  # steps at once: the shorter the turns, the more alike what else the machine did meanwhile
LOOKS = 3  # turns in which the pair is recorded too
HEATS = ((4, 1), (2, 3))  # once all setups have been timed: how many of the best are again, and in how many turns
WORKLOADS = {  # many narrow layers, some, a few wide ones
    "narrow": Workload(layers=12, width=192), "middle": Workload(layers=6, width=384),
    "wide": Workload(layers=3, width=768),
}  # fmt: skip
SLOW, FAST = "fsdp", "ddp"  # named before anything is measured: an engine that shards its weights sends more
# Named before too. Both are of the search's space, send equal bytes and compute alike; the size of the buckets is all
# that differs: all gradients at once behind the backward pass, or in small buckets beside it.
PAIR: dict[str, Setup] = {"less": DEFAULTS["ddp"], "more": DEFAULTS["ddp"] | {"bucket": 0.5}}
KEPT = ("avg_step_time", "compute_comm_overlap", "collective_volume", "exposed_comm_time", "idle_share")


# ------------------------------------------------------------------------------------------------ real engines


def recorded(workloads: Sequence[str], rounds: int, budget: int, seconds: float, seed: int) -> Rows:
    """For each workload and engine the best of all setups beside the default, and the pair, turn by turn.

    With a `budget`, beside what a search of so many recorded trials finds, too. What is not done after so many seconds
    is left out, and a row says so.
    """
    with scratch() as folder:
        plan = (tuple(workloads), rounds, budget, seed)
        return dict(ddp_variants.run(Workload(), folder, _session, *plan, seconds=seconds))


def _session(bench: Bench, workloads: tuple[str, ...], rounds: int, budget: int, seed: int) -> Rows:
    random = stream(seed, "ccl-bench", "turns")
    rows: Rows = {}
    chosen: dict[str, dict[tuple[str, str], Setup]] = {}
    try:
        for name in workloads:
            bench.workload = replace(WORKLOADS[name], seed=seed)
            chosen[name], found = _chosen(bench, budget, seed, random)
            rows |= _of(name, found)
        for turn in range(rounds):  # all take turns, while it lasts: other work on the machine comes and goes
            rows |= _turn(bench, chosen, turn, random, seed)  # as a whole or not at all: turns are compared in pairs
    except OutOfTime as late:
        rows["stopped"] = {"experiment": "stopped", "why": str(late)}
    return rows


def _of(workload: str, rows: Rows) -> Rows:
    return {f"{workload} {key}": {"workload": workload, **row} for key, row in rows.items()}


def _turn(
    bench: Bench, chosen: dict[str, dict[tuple[str, str], Setup]], turn: int, random: np.random.Generator, seed: int
) -> Rows:  # fmt: skip
    """One turn of the pair, and of what was chosen for every workload."""
    bench.workload = replace(WORKLOADS["middle"], seed=seed)
    rows = _pair(bench, turn, random)
    for name, setups_of in chosen.items():
        bench.workload = replace(WORKLOADS[name], seed=seed)
        rows |= _of(name, _finals(bench, setups_of, turn, random))
    return rows


def _pair(bench: Bench, turn: int, random: np.random.Generator) -> Rows:
    """A turn of the pair: overlap off a recording, the step without the profiler, which costs more the more runs.

    What overlaps varies little from turn to turn, so the later ones are timed only.
    """
    rows: Rows = {}
    for method in map(str, random.permutation(list(PAIR))):
        found = _metrics(bench.record("ddp", PAIR[method], LOOKED_AT, f"{method} {turn}")) if turn < LOOKS else {}
        rows[f"{method} {turn}"] = {
            "experiment": "pair", "engine": "ddp", "method": method, "setup": _words(PAIR[method]), "turn": turn,
            **found, **_spent(bench, "ddp", PAIR[method]),
        }  # fmt: skip
    return rows


def _finals(
    bench: Bench, chosen: dict[tuple[str, str], Setup], turn: int, random: np.random.Generator
) -> Rows:  # fmt: skip
    """A turn of the chosen setups, without the profiler, in an order drawn anew."""
    return {
        f"{engine} {method} turn {turn}": {
            "experiment": "final", "engine": engine, "method": method, "setup": _words(chosen[engine, method]),
            "turn": turn, **_spent(bench, engine, chosen[engine, method]),
        }
        for engine, method in random.permutation(list(chosen)).tolist()
    }  # fmt: skip


def _spent(bench: Bench, engine: str, setup: Setup) -> dict[str, float]:
    """The mean of a few steps, by the clock and by the processor."""
    steps = bench.steps(engine, setup, TIMED)
    return {"step": fmean(one.seconds for one in steps), "processor": fmean(one.processor for one in steps)}


def _words(setup: Setup) -> str:
    return " ".join(f"{key}={value}" for key, value in setup.items())


def _metrics(folder: Path) -> dict[str, float | None]:
    table = metrics.metrics_table(folder, KEPT)
    return dict(table.select("metric", "value").iter_rows())


def _chosen(
    bench: Bench, budget: int, seed: int, random: np.random.Generator
) -> tuple[dict[tuple[str, str], Setup], Rows]:  # fmt: skip
    """The default and the best setup of each engine; with a budget what a search finds too, and a row of each."""
    rows: Rows = {}
    chosen = {(engine, "default"): setup for engine, setup in DEFAULTS.items()}
    for engine in SPACES:
        chosen[engine, "best"] = _best(bench, engine, rows, random)
        if budget:
            chosen[engine, "tpe"] = _searched(bench, engine, budget, seed, rows)
    for (engine, method), setup in chosen.items() if budget else ():
        found = _metrics(bench.record(engine, setup, LOOKED_AT, f"{bench.workload.width} {engine} {method}"))
        rows[f"{engine} {method}"] = {
            "experiment": "chosen", "engine": engine, "method": method, "setup": _words(setup), **found,
        }  # fmt: skip
    return chosen, rows


def _best(bench: Bench, engine: str, rows: Rows, random: np.random.Generator) -> Setup:
    """Of all setups the one whose step costs least: all are tried, then ever fewer of them ever better, in turns."""
    least: dict[int, float] = {}
    space = setups(SPACES[engine])
    for at in random.permutation(len(space)).tolist():
        cost, why = _least(bench, engine, space[at], 1)
        name, words = f"{engine} setup {at}", _words(space[at])
        rows[name] = {"experiment": "setup", "engine": engine, "setup": words, "processor": cost, "why": why}
        if cost is not None:
            least[at] = cost
    if not least:
        raise BadInput(f"{engine}: no setup could be run: {next(iter(rows.values()))['why']}")
    for kept, turns in HEATS:
        best_of = sorted(least, key=least.__getitem__)[:kept]
        least = dict.fromkeys(best_of, math.inf)  # a lucky step of before counts no more
        for at in best_of * turns:
            least[at] = min(least[at], *(one.processor for one in bench.steps(engine, space[at], 3)))
    return space[min(least, key=least.__getitem__)]


def _least(bench: Bench, engine: str, setup: Setup, steps: int) -> tuple[float | None, str]:
    """What the cheapest of some steps costs, or why there is none."""
    try:
        return min(one.processor for one in bench.steps(engine, setup, steps)), ""
    except CannotRun as error:
        return None, str(error)


def _searched(bench: Bench, engine: str, budget: int, seed: int, rows: Rows) -> Setup:
    """What a search finds in which every trial is a row: recorded, then measured from what was recorded."""

    def run(setup: Setup, effort: float) -> float:
        name = f"{engine} trial {len(rows)}"
        folder = bench.record(engine, setup, max(1, round(STEPS * effort)), f"{bench.workload.width} {name}")
        found = _metrics(folder)
        rows[name] = {"experiment": "trial", "engine": engine, "method": "tpe", "setup": _words(setup), **found}
        if found["avg_step_time"] is None:
            raise BadInput(f"{name}: no step was recorded")
        return found["avg_step_time"]

    return best(search(SPACES[engine], run, Tpe(), budget, seed=seed, default=DEFAULTS[engine])).setup


# ------------------------------------------------------------------------------------------- the published table


PUBLISHED = "ccl-bench/benchmark_data.json"  # where it is looked for among the traces
SAME = ("model_family", "phase", "hardware_model", "total_count", "batch_size", "seq_len")


def published(table: str, seed: int) -> Rows:
    """Pairs of published rows of one model on equal machines."""
    return compared(read_published(Path(table)))


def read_published(path: Path) -> list[dict[str, Any]]:
    """The rows of a published table, metadata and metrics in one mapping each."""
    try:
        held = msgspec.json.decode(path.read_bytes())
        return [{**row["metadata"], **row["metrics"]} for row in held["rows"]]
    except (OSError, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: no table of CCL-Bench (rows with metadata and metrics): {error}") from None


def compared(rows: list[dict[str, Any]]) -> Rows:
    """Each pair of the same workload: does more overlap go with a longer step?"""
    out: Rows = {}
    known = [row for row in rows if _number(row, "avg_step_time") and _number(row, "compute_comm_overlap") is not None]
    for one, other in itertools.combinations(known, 2):
        if any(_word(one, key) != _word(other, key) for key in SAME):
            continue
        low, high = sorted((one, other), key=lambda row: float(row["compute_comm_overlap"]))
        times = float(high["avg_step_time"]) / float(low["avg_step_time"])
        gap = (float(high["compute_comm_overlap"]) - float(low["compute_comm_overlap"])) / 100
        out[f"{high.get('workload_name')} / {low.get('workload_name')}"] = {
            "experiment": "published", "overlap_gap": gap, "times": times,
            "judged": abs(times - 1) > 0.05 and gap >= 0.01, "shorter": times < 1,
        }  # fmt: skip
    return out


def _word(row: dict[str, Any], name: str) -> str:
    """A value of the metadata; contributors write `-` and `_` as they like."""
    return str(row.get(name)).lower().replace("-", "_")


def _number(row: dict[str, Any], name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# ------------------------------------------------------------------------------------- links twice as fast (a model)


V6E = {
    # Google Cloud, "TPU v6e", docs.cloud.google.com/tpu/docs/v6e, table of specifications, for one chip.
    "bf16": 918e12, "mem_bw": 1638e9, "ici_bw": 800e9, "links": 4,  # the links' bandwidth together, both ways
    # Austin et al., "How to Scale Your Model", 2025, part 3: a hop takes about a microsecond whatever it carries.
    "hop": 1e-6,
}  # fmt: skip


def machines() -> dict[str, tuple[Device, Network]]:
    """Four devices of each kind, by what is published of them.

    A generated step asks a device for its peak and its memory's bandwidth only. A collective goes round a ring, one
    link of the TPU each way; `all links` lets it use all of a chip's links at once, more than four chips without
    wrap-around can, and so the least that TPUs could gain.
    """
    a100 = device("a100")
    v6e = replace(a100, name="tpu-v6e", title="TPU v6e", peak_flops={"bf16": V6E["bf16"]}, mem_bw=V6E["mem_bw"])
    ici = Link(V6E["hop"], V6E["ici_bw"] / 2 / V6E["links"])
    return {
        "a100 nvlink": (a100, Network(a100.nvlink, per_node=8)),
        "v6e torus": (v6e, Network(ici, per_node=8)),
        "v6e torus, all links": (v6e, Network(Link(ici.latency, V6E["links"] * ici.bandwidth), per_node=8)),
    }


SIZES = {"small": ((16, 24), (1536, 2048)), "medium": ((32, 40), (3072, 4096, 5120))}  # layers, hidden
CUTS = {"tp4": {"tp": 4}, "dp4": {"dp": 4}, "tp2 dp2": {"tp": 2, "dp": 2}}


def doubled(size: str, seed: int) -> Rows:
    """By which share a drawn job's step gets shorter with links of twice the bandwidth, for each cut and machine."""
    random = stream(seed, "ccl-bench", "doubled", size)
    layers, hidden, seq = (int(random.choice(some)) for some in (*SIZES[size], (512, 1024, 2048)))
    rows: Rows = {}
    for (cut, degrees), (name, (on, network)) in itertools.product(CUTS.items(), machines().items()):
        job = Job(layers=layers, hidden=hidden, heads=hidden // 128, seq=seq, batch=1, **degrees)
        plan = Plan.of(generate(job, on))
        step = replay(plan, network).makespan
        gain = 1 - replay(plan, network.scaled(bandwidth=2)).makespan / step
        rows[f"{cut} {name}"] = {
            "experiment": "doubled", "cut": cut, "machine": name, "layers": layers, "hidden": hidden, "seq": seq,
            "step": step, "gain": gain,
        }  # fmt: skip
    return rows
