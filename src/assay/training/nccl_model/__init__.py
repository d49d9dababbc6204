"""NCCL taken apart: protocols, channels, rings and trees, far enough to say how long any collective takes.

One latency and one bandwidth cannot say why 64 KiB go up a tree in words of 8 bytes and 64 MiB round a ring in slots
of 512 KiB. The model has what decides: three protocols that trade latency for bandwidth, two algorithms that trade hops
for bytes, chunks that follow one another, and channels that share NVLink and network cards. It takes the quickest plan
for each size, as NCCL's tuner does; each plan is also a list of sends, which run on buffers, in an event simulation, or
over real sockets. The mechanism is :class:`assay.sim.nccl.NcclModel`, as every planner leans on it; here it is
examined, and fitted to measured times.

The paper's runs on Alps are not at hand: what is read off the model stands on NCCL's own tables of latencies and on
data sheets (16 nodes of 4 GH200, a card of 25 GB/s each). Real are the rings and trees of two processes over gloo,
whose latencies and bandwidths are fitted on every other size and checked on the rest.

Hu et al., 2025, arXiv:2507.04786.

>>> from assay.sim.hardware import device
>>> model = NcclModel.of(device("h100"), nodes=4)
>>> [f"{plan.algorithm}/{plan.protocol}" for plan in model.choose("all_reduce", range(32), [2**12, 2**24, 2**31])]
['tree/LL', 'ring/LL128', 'ring/Simple']
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals
from assay.record.measures import Measure, best, counted, mean, not_here, rows
from assay.record.timing import granted, too_busy
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.collectives import Link
from assay.sim.hardware import Device, device
from assay.sim.nccl import PROTOCOLS, RING, TREE, Choice, NcclModel
from assay.sim.random import stream
from assay.sim.sends import arrivals, execute
from assay.training.nccl_model import fitting

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

offers = {"collectives": NcclModel}
evidence = Evidence.MODEL
use_when = "A plan or a simulator needs the time of collectives at every size, on a cluster one does not have."
avoid_when = "NVLink SHARP or in-network reductions carry the traffic: neither is in the model."
trust = (
    "Latencies are NCCL's own table, bandwidths data sheets; nothing here was measured on several GPUs. Fit your own "
    "nccl-tests (assay compare nccl-model) to know how far it is off."
)
own_input = "assay compare nccl-model --input examples/nccl-tests.txt"
references = (
    "NCCL, src/graph/tuning.cc: the latencies of protocols and algorithms, and what one channel carries.",
    "nccl-tests: the format of measured times.",
)

SIZES = tuple(2**k for k in range(10, 31))
REAL = tuple(2**k for k in range(10, 27))  # 1 KiB to 64 MiB
MOVED = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}  # times (k-1)/k of the vector
NEAR = 1.25  # "near the best": at most a quarter above it
GRANTED = 0.8  # the share of a processor below which times say nothing
CLUSTERS = ("4xgh200", "16x4xgh200", "2x8xh100", "8x8xh100", "4x8xa100")


def model_of(cluster: str) -> NcclModel:
    """A cluster of the study: [nodes x] ranks a node x device; GH200 stands for an H100 with a card of 25 GB/s.

    >>> model_of("16x4xgh200").topology.ranks
    64
    """
    *counts, gpu = cluster.split("x")
    nodes, per_node = (int(n) for n in (["1"] * (2 - len(counts)) + counts))
    found: Device = device("h100" if gpu == "gh200" else gpu)
    return NcclModel.of(replace(found, nic=Link(found.nic.latency, 25e9)) if gpu == "gh200" else found, nodes, per_node)


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Protocols and algorithms by size; the closed form beside its sends; real rings and trees, predicted."""
    here = replace(lab, workers=0)  # sooner done than a process is started; and workers may not start ranks
    once = here.with_seeds(quick=1, full=1)
    tables = {
        "protocols": once.run(protocols, [{"cluster": name} for name in CLUSTERS], per="size"),
        "algorithms": once.run(
            algorithms, [{"cluster": name} for name in CLUSTERS if name.count("x") == 2], per="size"
        ),
        "sends": here.run(played, [{"cases": lab.pick(quick=40, full=400)}]),
    }
    try:
        import torch  # noqa: F401 - what the real part needs
    except ModuleNotFoundError:
        return tables
    real = once.run(over_gloo, [{"rounds": lab.pick(quick=4, full=20)}], per="run")
    return tables | {"gloo": real}


def protocols(cluster: str, seed: int) -> dict[str, dict[str, Any]]:
    """Seconds of a ring all-reduce by protocol, each with the channels that are best for it."""
    model = model_of(cluster)
    return _by_size(model, {name: [p for p in model.plans("all_reduce") if p.protocol == name and p.algorithm == RING]
                            for name in PROTOCOLS})  # fmt: skip


def algorithms(cluster: str, seed: int) -> dict[str, dict[str, Any]]:
    """Seconds of an all-reduce by algorithm, each with the protocol and the channels that are best for it."""
    model = model_of(cluster)
    return _by_size(
        model, {name: [p for p in model.plans("all_reduce") if p.algorithm == name] for name in (RING, TREE)}
    )


def _by_size(model: NcclModel, plans: dict[str, list[Choice]]) -> dict[str, dict[str, Any]]:
    group = range(model.topology.ranks)
    best_of = {
        name: np.min([model.timed("all_reduce", group, SIZES, p) for p in some], axis=0) for name, some in plans.items()
    }
    return {
        str(size): {"bytes": size} | {name: float(t[i]) for name, t in best_of.items()} for i, size in enumerate(SIZES)
    }


def played(cases: int, seed: int) -> dict[str, Any]:
    """Random plans on random clusters: whether their sends do the right thing, and how far the closed form is off."""
    random, worst, right = stream(seed, "nccl-model", "sends"), 0.0, 0
    for _ in range(cases):
        model = NcclModel.of(
            device(str(random.choice(["h100", "a100"]))), int(random.integers(1, 9)), int(random.integers(2, 9))
        )
        ranks, op = (
            model.topology.ranks,
            str(random.choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])),
        )
        plans = [plan for plan in model.plans(op) if plan.channels <= 4]
        plan = plans[int(random.integers(len(plans)))]
        nbytes = ranks * int(2 ** random.uniform(8, 17 if plan.protocol == "LL" else 21))
        sends, byte, hop = model.lower(op, range(ranks), nbytes, plan)
        events = arrivals(sends, byte, hop).max() + PROTOCOLS[plan.protocol].launch[plan.algorithm]
        worst = max(worst, abs(float(model.timed(op, range(ranks), nbytes, plan)[0]) / events - 1))
        right += _right(model, op, plan, random)
    return {"worst": worst, "right": right, "tried": cases}


def _right(model: NcclModel, op: str, plan: Choice, random: np.random.Generator) -> bool:
    """Whether a plan's sends give every rank what the collective promises, and move the bytes of theory."""
    k, part = model.topology.ranks, 12
    held = random.integers(0, 1000, (k, k * part))
    sends, _, _ = model.lower(op, range(k), part if op == "all_gather" else k * part, plan)
    found, total = execute(sends, held), held.sum(axis=0)
    pieces = held.reshape(k, k, part)
    own = np.arange(k)
    expected = {
        "all_reduce": lambda: (found == total).all(),
        "all_gather": lambda: (found.reshape(k, k, part) == pieces[own, own]).all(),
        "reduce_scatter": lambda: (found.reshape(k, k, part)[own, own] == total.reshape(k, part)).all(),
        "all_to_all": lambda: (found.reshape(k, k, part) == pieces.transpose(1, 0, 2)).all(),
    }
    return bool(expected[op]()) and int(sends.sent().sum()) == MOVED[op] * (k - 1) * k * part


def over_gloo(rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Real all-reduces of two processes: measured, and predicted from fits on every other size."""
    from assay.training.nccl_model import gloo

    share = granted(0.2)
    found = gloo.measured(REAL, rounds)
    sizes, used = np.array(REAL, np.float64), fitting.every_other(len(REAL))
    seconds = {name: np.array([times[size] for size in REAL]) for name, times in found.items()}
    starts = ((1e-4, 1e9), (1e-3, 3e9))
    errors = {
        name: np.abs(fitting.fit(stepped(name), starts, sizes, times, used).predicted / times - 1)
        for name, times in seconds.items()
    }
    both = np.concatenate([seconds[name] for name in gloo.ALGORITHMS])
    plain = fitting.fit(fitting.hockney, starts, np.tile(sizes, 2), both, np.tile(used, 2))  # as if they were one
    plain_errors = dict(zip(gloo.ALGORITHMS, np.split(np.abs(plain.predicted / both - 1), 2), strict=True))
    return {
        f"{name} {size}": {
            "algorithm": name, "bytes": size, "in_fit": bool(used[i]), "seconds": float(seconds[name][i]),
            "error": float(errors[name][i]), "one_line_error": float(plain_errors[name][i]), "granted": share,
        }
        for name in gloo.ALGORITHMS
        for i, size in enumerate(REAL)
    }  # fmt: skip


def stepped(algorithm: str, ranks: int = 2) -> fitting.Model:
    """An all-reduce's latencies and bytes as its sends have them: seconds a step, bytes a second.

    >>> [round(float(stepped(name)(np.array([1e-4, 1e9]), np.array([1e6]))[0]), 6) for name in ("ring", "tree")]
    [0.0012, 0.0022]
    """
    steps = 2 * (ranks - 1)
    moved = steps / ranks if algorithm == RING else steps
    return lambda numbers, sizes: steps * numbers[0] + moved * sizes / numbers[1]


def plot(table: pl.DataFrame) -> alt.FacetChart:
    """Bus bandwidth by size and protocol on two clusters."""
    import altair as alt

    some = table.filter(pl.col("experiment") == "protocols", pl.col("cluster").is_in(["4xgh200", "16x4xgh200"]))
    some = some.select("cluster", "bytes", *PROTOCOLS)
    long = some.unpivot(list(PROTOCOLS), index=["cluster", "bytes"], variable_name="protocol", value_name="seconds")
    long = long.with_columns(rate=pl.col("bytes") / pl.col("seconds") / 1e9)
    lines = alt.Chart(long).mark_line(point=True).encode(
        x=alt.X("bytes:Q", scale=alt.Scale(type="log", base=2), title="bytes of the vector"),
        y=alt.Y("rate:Q", scale=alt.Scale(type="log"), title="GB/s of the vector"),
        color=alt.Color("protocol:N"),
    ).properties(width=280, height=220)  # fmt: skip
    title = alt.Title("A ring all-reduce by protocol", subtitle="Modelled; up is better")
    chart: alt.FacetChart = lines.facet(column=alt.Column("cluster:N", title=None), title=title)
    return chart


def _crossover(table: pl.DataFrame) -> Estimate:
    """The size from which on Simple is quickest on the paper's 16 nodes, between two measured ones as logarithms."""
    found = rows(table, {"experiment": "protocols", "cluster": "16x4xgh200"}).sort("bytes")
    lead = np.log(np.minimum(found["LL"].to_numpy(), found["LL128"].to_numpy()) / found["Simple"].to_numpy())
    if lead[-1] <= 0 or (lead > 0).all():
        raise NotMeasured(f"Simple does not overtake the others between {SIZES[0]} bytes and {SIZES[-1]}")
    last = int(np.flatnonzero(lead <= 0)[-1])
    share = -lead[last] / (lead[last + 1] - lead[last])
    return counted(float(2 ** (np.log2(SIZES[last]) + share)))


def _near(table: pl.DataFrame) -> Estimate:
    """The share of sizes at which LL128 is near the quickest protocol within a node."""
    found = rows(table, {"experiment": "protocols", "cluster": "4xgh200"})
    quickest = found.select(pl.min_horizontal(*PROTOCOLS)).to_series()
    return counted(float((found["LL128"] <= NEAR * quickest).mean()), found.height)  # type: ignore[arg-type]


def _algorithms(table: pl.DataFrame) -> Estimate:
    """The share of clusters on which a tree wins at 1 KiB and a ring at 1 GiB."""
    found = rows(table, {"experiment": "algorithms"})
    small = found.filter(pl.col("bytes") == SIZES[0]).select(pl.col(TREE) < pl.col(RING)).to_series()
    large = found.filter(pl.col("bytes") == SIZES[-1]).select(pl.col(RING) < pl.col(TREE)).to_series()
    return counted((int(small.sum()) + int(large.sum())) / (2 * small.len()), 2 * small.len())


def _held(column: str = "error") -> Measure:
    """The mean error at the sizes that were held back, both algorithms together; the spread is over sizes."""

    def measure(table: pl.DataFrame) -> Estimate:
        if "gloo" not in table["experiment"].unique().to_list():
            raise NotMeasured("the real part needs torch: pip install 'assay[torch]'")
        found = rows(table, {"experiment": "gloo", "in_fit": False})
        share = float(found["granted"].to_numpy().min())
        if share < GRANTED:
            raise too_busy(f"{share:.0%} of a processor")
        return intervals.bootstrap(found[column].to_list())

    return measure


def _ratio(table: pl.DataFrame) -> Estimate:
    _held()(table)
    found = rows(table, {"experiment": "gloo", "in_fit": False})
    return intervals.ratio(found["error"].to_list(), found["one_line_error"].to_list())


def _right_share(table: pl.DataFrame) -> Estimate:
    found = rows(table, {"experiment": "sends"})
    right, tried = int(found["right"].sum()), int(found["tried"].sum())
    return counted(right / tried, tried)


claims = [
    Claim("error", not_here("needs real training runs on a cluster of GPUs; compare nccl-model fits nccl-tests")),
    Claim("crossover", _crossover),
    Claim("ll128", _near),
    Claim("algorithms", _algorithms),
    Claim(
        "closed-form", best({"all": mean("worst", experiment="sends")}), kind=Kind.AT_MOST, value=0.02, unit="share",
        asks="The closed form of any plan is within 2 % of its sends played event by event.",
    ),
    Claim(
        "sends", _right_share, kind=Kind.EVERY,
        asks="Every plan's sends give each rank the collective's result and move exactly the bytes that theory says.",
    ),
    Claim(
        "gloo", _held(), kind=Kind.AT_MOST, value=0.2, unit="share", evidence=Evidence.REAL,
        asks="Real rings and trees over gloo, 1 KiB to 64 MiB, are predicted within 20 % in the mean, at sizes that "
        "were not in the fit.",
    ),
    Claim(
        "one-line", _ratio, kind=Kind.RATIO, toward="down", evidence=Evidence.REAL,
        asks="Counting each algorithm's steps and bytes predicts real times better than one latency and one bandwidth.",
    ),
]  # fmt: skip
