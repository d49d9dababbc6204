"""TONS: wire the optical links between TPU cubes for all-to-all traffic, instead of as a torus.

A pod of 4x4x4 cubes is a torus only because its optical switches are set so: each joins the + ports of one dimension
and place with the - ports, in any order of cubes. A torus gives all 16 places of a face the same neighbour; giving each
place one of its own keeps every constraint and makes a graph in which everybody is nearer to everybody, so that an
all-to-all, which fills links in proportion to distance, sends more. The search walks over such shifts by the sum of
distances, and the best are judged by the flow that they really carry. Paths are then fixed and laid on a few virtual
channels so that no circle of waits can arise, also after a switch has failed.

The paper's objective and routing are not public here; both are our reconstruction. Wirings that look the same from
every cube are searched, in all abelian groups of that many cubes: that makes thousands of chips cheap, and leaves out
wirings without symmetry. Pods have 256 to 1,024 chips, in the full size 2,048. All-to-all is the greatest common rate
of all pairs, between two certain bounds; uniform random traffic is what fixed single paths carry until the busiest link
is full, the same router for every network.

Green, Thottethodi, 2026, arXiv:2605.27963.

>>> pod = synthesise(2, steps=100)
>>> throughput(pod).reached > throughput(best_torus(2)).reached
True
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.record import intervals
from assay.record.measures import Measure, counted, mean, rows
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.training.tons.flows import throughput
from assay.training.tons.pods import CHIPS, Pod, distances
from assay.training.tons.routes import route
from assay.training.tons.search import best_torus, best_twisted, random_shifts
from assay.training.tons.search import synthesise as synthesise

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
use_when = "All-to-all traffic (experts, embeddings) rules, and optical switches between cubes can be set at will."
avoid_when = "Traffic goes to neighbours in a ring or a grid: a torus has them next door, this wiring has not."
trust = "Rates are of flows on links of one bandwidth, between certain bounds; no packets, and no real pod."
own_input = "assay compare tons --cubes 4"
references = ("Jouppi et al., ISCA 2023: cubes, optical switches and twisted tori of TPU v4.",)

NETWORKS = ("torus", "twisted torus", "random shifts", "tons")
TORI = ("torus", "twisted torus")
FAULT = (1, 5)  # the switch that is out of order: dimension and place; all are alike to the search


def networks(cubes: int, seed: int, steps: int) -> dict[str, Pod]:
    """The wirings that are compared, of the same cubes and switches, each the best of its kind."""
    return {
        "torus": best_torus(cubes),
        "twisted torus": best_twisted(cubes, seed),
        "random shifts": random_shifts(cubes, seed, steps),
        "tons": synthesise(cubes, seed, steps),
    }


def measured(pod: Pod) -> dict[str, Any]:
    """What a wiring carries, and how: all-to-all with its bound, distances, and what its fixed paths carry."""
    hops, flow = distances(pod), throughput(pod)
    paths = route(pod)
    uniform = paths.throughput(pod.ranks)
    reached = max(flow.reached, uniform)  # fixed paths are a flow, too
    return {
        "all_to_all": reached, "bound": flow.bound, "gap": 1 - reached / flow.bound,
        "hops_mean": float(hops.sum() / (hops.size - CHIPS)), "hops_max": int(hops.max()),
        "uniform": uniform, "channels": paths.channels,
    }  # fmt: skip


def with_a_fault(pod: Pod) -> dict[str, Any]:
    """What the paths of a wiring carry when they are chosen again without one of its switches."""
    after = route(pod.without(*FAULT))
    return {"uniform_broken": after.throughput(pod.ranks), "channels_broken": after.channels}


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Pods of several sizes wired in four ways; and one of thousands of chips."""
    steps = lab.pick(quick=1500, full=20_000)
    sizes = [{"cubes": cubes, "steps": steps} for cubes in lab.pick(quick=(16, 8, 4), full=(32, 16, 8, 4))]
    large = [{"cubes": cubes, "steps": lab.pick(quick=60, full=5000)} for cubes in lab.pick(quick=(32,), full=(32, 64))]
    return {
        "pods": lab.with_seeds(quick=3, full=5).run(compared, sizes, per="network"),
        "large": lab.with_seeds(quick=1, full=2).run(scaled, large, per="network"),
    }


def compared(cubes: int, steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """All networks of one size."""
    pods = networks(cubes, seed, steps)
    found = {name: measured(pod) for name, pod in pods.items()}
    found["tons"] |= with_a_fault(pods["tons"])
    return found


def scaled(cubes: int, steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """The search on thousands of chips beside the best tori, by the flow they carry."""
    found = {}
    search = partial(synthesise, seed=seed, steps=steps)
    makers: dict[str, Callable[[int], Pod]] = {"torus": best_torus, "twisted torus": best_twisted, "tons": search}
    for name, make in makers.items():
        began = time.perf_counter()
        pod = make(cubes)
        seconds, flow = time.perf_counter() - began, throughput(pod, rounds=8)
        found[name] = {"all_to_all": flow.reached, "bound": flow.bound, "seconds": seconds, "chips": pod.ranks}
    return found


def _gain(column: str, rivals: tuple[str, ...] = TORI) -> Measure:
    """How many times as much as the best of the rivals, the geometric mean over sizes, seed by seed."""

    def measure(table: pl.DataFrame) -> Estimate:
        found = rows(table, {"experiment": "pods"})
        best = found.filter(pl.col("network").is_in(rivals)).group_by("cubes", "seed").agg(pl.col(column).max())
        ours = found.filter(pl.col("network") == "tons").join(best, on=["cubes", "seed"], suffix="_rival")
        logs = ours.with_columns(gain=(pl.col(column) / pl.col(f"{column}_rival")).log())
        seeds = logs.group_by("seed", maintain_order=True).agg(pl.col("gain").mean().exp())
        sizes = ", ".join(str(CHIPS * c) for c in sorted(set(ours["cubes"].to_list())))
        return replace(intervals.bootstrap(seeds["gain"].to_list()), cases=f"{sizes} chips")

    return measure


def _scales(table: pl.DataFrame) -> Estimate:
    """The share of pods of thousands of chips that were wired, and carry more than the best torus."""
    found = rows(table, {"experiment": "large"}).filter(pl.col("chips") >= 2000)
    tori = found.filter(pl.col("network").is_in(TORI)).group_by("cubes", "seed").agg(pl.col("bound").max())
    both = found.filter(pl.col("network") == "tons").drop("bound").join(tori, on=["cubes", "seed"])
    held = (both["all_to_all"] > both["bound"]).to_list()
    return counted(sum(held) / len(held), len(held))


def _after_fault(table: pl.DataFrame) -> Estimate:
    """The largest number of virtual channels that any of the wirings needed, whole or with a switch out of order."""
    found = rows(table, {"experiment": "pods", "network": "tons"})
    return counted(max(found["channels"].to_list() + found["channels_broken"].to_list()), 2 * found.height)


claims = [
    Claim("uniform", _gain("uniform")),
    Claim("all-to-all", _gain("all_to_all")),
    Claim("scales", _scales),
    Claim(
        "plain-torus", _gain("all_to_all", ("torus",)), kind=Kind.RATIO, toward="up",
        asks="An all-to-all gets more than on the best torus that is not twisted.",
    ),
    Claim(
        "random", _gain("all_to_all", ("random shifts",)), kind=Kind.RATIO, toward="up",
        asks="The search finds wirings that carry more than the best of as many drawn ones as it tries.",
    ),
    Claim(
        "channels", _after_fault, kind=Kind.AT_MOST, value=4, unit="channels",
        asks="At most 4 virtual channels keep the paths free of deadlock, also with one switch out of order.",
    ),
    Claim(
        "certain", mean("gap", experiment="pods", network="tons"), kind=Kind.AT_MOST, value=0.1, unit="share",
        asks="What the wirings carry is known within 10 %: the rate that is reached lies so near one that cannot be.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """What an all-to-all gets, by size and network."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "pods").with_columns(chips=pl.col("cubes") * CHIPS)
    means = found.group_by("chips", "network", maintain_order=True).agg(pl.col("all_to_all").mean())
    chart: alt.Chart = alt.Chart(means).mark_line(point=True).encode(
        x=alt.X("chips:Q", scale=alt.Scale(type="log", base=2), title="chips"),
        y=alt.Y("all_to_all:Q", title="all-to-all a chip, bandwidths of a link"),
        color=alt.Color("network:N", sort=list(NETWORKS)),
    ).properties(width=420, height=260, title="What an all-to-all gets; up is better")  # fmt: skip
    return chart
