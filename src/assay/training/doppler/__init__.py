"""DOPPLER: learn which operator comes next and on which device, first from a heuristic, then in simulation, then live.

Operators of a blocked computation are dealt to devices that work whenever something is ready. A list scheduler deals by
the longest way on and the earliest end, and knows neither queues at ports nor the order in which a runtime that nobody
orders will go. Here two small networks make the same two choices, which operator next and on which device. Messages
pass along the graph once an episode; each choice then costs next to nothing. They learn to copy the list scheduler,
then follow the policy gradient of runs of a work-conserving simulator, then of real runs.

Rivals choose from as many placements by as many simulated runs: critical-path list scheduling with drawn ties, the same
counting on queues at ports, an enumeration level by level, single learned policies as Placeto and GDP have them (same
simulator, episodes and two rates of learning), one policy of the two alone, drawn placements, and rules of thumb.
Data may lie with whoever reads it most, for all of them.

The graphs' sizes, the P100's attained rates and the links are ours; so are the policies' size and rates. Training takes
minutes, so a quick study simulates anew what stored trainings found (`trained.npz`, with their seeds and episodes), and
learns on one small graph only; a full one trains all.

Yao et al., ICLR 2026, arXiv:2505.23131.

>>> from assay.training.doppler.graphs import chainmm
>>> from assay.training.doppler.rivals import enumerative
>>> run = play(chainmm(2), enumerative(chainmm(2), 4), devices=4)
>>> bool(run.seconds < chainmm(2).seconds.sum() / 2)
True
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record.measures import Measure, best, change, counted, mean, ratio, rows, slope
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.random import stream
from assay.sim.ranks import prepare
from assay.training.doppler import executor, rivals, runtime
from assay.training.doppler.graphs import GRAPHS, OpGraph, chainmm
from assay.training.doppler.runtime import play as play
from assay.training.interface import Ints

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "A graph of operators is run thousands of times on devices that work whenever something is ready."
avoid_when = "The graph changes often, or comes in equal shards of large products: dealing each level out is as good."
trust = (
    "Runs are simulated: operators at assumed rates of a P100, messages that queue at their sender's port only, "
    "durations 5 % off. Two real workers ran the small graph."
)
own_input = "assay compare doppler --graph examples/operators.json --devices 2 --episodes 400"
references = (
    "Placeto: Addanki et al., NeurIPS 2019. GDP: Zhou et al., 2019.",
    "List scheduling by critical paths: Kwok, Ahmad, 1999. Policy gradient: Williams, 1992.",
)

DEVICES = 4
RUNS = 20  # by which a placement is judged
EPISODES = 4000
LUCK = 500  # drawn placements
TRAINED = Path(__file__).with_name("trained.npz")
LEARNED = ("doppler", "select only", "place only", "placeto-like", "gdp-like")


def trained(graph: OpGraph, devices: int, method: str, episodes: int, seed: int) -> list[Ints]:
    """The 50 placements that a method draws after so many episodes, at that rate of learning which suits it better."""
    from assay.training.doppler import policy

    random, kinds = stream(seed, "doppler", "rates"), (policy.DOPPLER, policy.SELECT_ONLY, policy.PLACE_ONLY,
                                                       policy.PLACETO)  # fmt: skip

    def at(rate: float) -> list[Ints]:
        if method == "gdp-like":
            return rivals.one_shot(graph, devices, episodes, seed, rate)
        kind = next(kind for kind in kinds if kind.name == method)
        return policy.placements(policy.learn(graph, devices, episodes, seed, kind, rate=rate), rivals.TRIES, seed)

    def shortest(places: list[Ints]) -> float:
        return runtime.seconds(graph, rivals.chosen(graph, places, devices, seed), devices, RUNS, random)

    return min(map(at, policy.RATES), key=shortest)


def listed(graph: OpGraph, devices: int, seed: int, ports: bool = False) -> list[Ints]:
    """Fifty placements of critical-path list scheduling, ties drawn."""
    from assay.training.doppler import policy

    learned = policy.Learned(policy.Policy(), policy.View(graph, devices), policy.DOPPLER)
    random, player = stream(seed, "doppler", "list"), learned.player()
    return [player.play(random, taught=True, ports=ports).place for _ in range(rivals.TRIES)]


def rules(graph: OpGraph, devices: int, seed: int, luck: int = LUCK) -> dict[str, Ints]:
    """What needs no training."""
    return {
        "critical path": rivals.chosen(graph, listed(graph, devices, seed), devices, seed),
        "critical path, ports": rivals.chosen(graph, listed(graph, devices, seed, ports=True), devices, seed),
        "enumerative": rivals.enumerative(graph, devices),
        "drawn": rivals.drawn_places(graph, devices, luck, seed),
        "round robin": rivals.round_robin(graph, devices),
        "single device": rivals.single(graph, devices),
    }  # fmt: skip


@cache
def stored(path: str = "") -> dict[str, Any]:
    """Placements that a training found, by graph and method, one for each of its seeds; and how it was done."""
    with np.load(path or TRAINED, allow_pickle=False) as file:
        found: dict[str, Any] = {name: file[name] for name in file.files if name != "provenance"}
        return found | {"provenance": json.loads(str(file["provenance"]))}


def train_at(graph: str, method: str, episodes: int, seed: int) -> dict[str, Any]:
    """One training: the placement chosen of its fifty, and processor seconds."""
    made, began = GRAPHS[graph](), time.process_time()
    places = trained(made, DEVICES, method, episodes, seed)
    place = rivals.chosen(made, places, DEVICES, seed)
    return {"place": json.dumps(place.tolist()), "cpu": time.process_time() - began}


def judge(graph: str, places: str, seed: int) -> dict[str, dict[str, Any]]:
    """All placers on one graph: the mean of fresh runs of what each of them chose."""
    made = GRAPHS[graph]()
    kept = stored(places)
    count = len(kept[f"{graph}|doppler"])
    chosen = {method: kept[f"{graph}|{method}"][seed % count].astype(np.int64) for method in LEARNED}
    chosen |= rules(made, DEVICES, seed, luck=LUCK)
    least = made.seconds.sum() / DEVICES
    found = {}
    for name, place in chosen.items():
        seconds = runtime.seconds(made, place, DEVICES, RUNS, stream(seed, "doppler", "judge"))
        found[name] = {"seconds": seconds, "over_ideal": seconds / least, "nodes": made.nodes}
    return found


def lesson(grid: int, episodes: int, seed: int) -> dict[str, dict[str, Any]]:
    """One small graph, stage by stage: the teacher, what was copied, what was learned then."""
    from assay.training.doppler import policy

    made = chainmm(grid)
    learned = policy.Learned(policy.Policy(seed), policy.View(made, DEVICES), policy.DOPPLER)
    policy.one_thread()
    found = {"teacher": listed(made, DEVICES, seed)}
    policy.imitate(learned, policy.LESSONS, seed)
    found["copied"] = policy.placements(learned, rivals.TRIES, seed)
    policy.reinforce(learned, episodes, seed, policy.simulated(made, DEVICES))
    found["learned"] = policy.placements(learned, rivals.TRIES, seed)
    random, rows_ = stream(seed, "doppler", "lesson"), {}
    for name, places in found.items():
        best_place = rivals.chosen(made, places, DEVICES, seed)
        rows_[name] = {
            "seconds": runtime.seconds(made, best_place, DEVICES, RUNS, random),
            "mean": float(np.mean([runtime.play(made, place, DEVICES, random).seconds for place in places])),
        }
    return rows_


def growth(nodes: int, episodes: int, seed: int) -> dict[str, Any]:
    """Processor seconds of an episode on a chain of products, so many operators long."""
    from assay.training.doppler import policy

    made = chain(nodes)
    learned = policy.Learned(policy.Policy(seed), policy.View(made, DEVICES), policy.DOPPLER)
    policy.one_thread()
    policy.reinforce(learned, policy.BATCH, seed, policy.simulated(made, DEVICES))  # compiled
    began = time.process_time()
    policy.reinforce(learned, episodes, seed, policy.simulated(made, DEVICES))
    return {"per_episode": (time.process_time() - began) / episodes, "operators": made.nodes}


def chain(nodes: int) -> OpGraph:
    """Layers of four products each, every one of two of the layer before: as long as asked, never wider."""
    inputs: list[tuple[int, ...]] = [(), (), (), ()]
    while len(inputs) < nodes:
        first = len(inputs) - 4
        inputs += [(first + k, first + (k + 1) % 4) for k in range(4)]
    count = len(inputs)
    return OpGraph("chain", np.full(count, 1e-3), np.full(count, 8e6), tuple(inputs), np.arange(count) // 4)


def live(block: int, episodes: int, seed: int) -> dict[str, Any]:
    """Two real workers: results, seconds of placements in turn, and a little learning from real runs."""
    from assay.training.doppler import policy

    made = chainmm(2)
    learned = policy.learn(made, 2, 400, seed)
    place = rivals.chosen(made, policy.placements(learned, rivals.TRIES, seed), 2, seed)
    places = [place, rivals.single(made, 2)]
    times, apart = executor.measure(made, places, 2, block, rounds=3, seed=seed)
    after = executor.stage_three(made, learned.policy.layers(), 2, block, episodes, seed)
    return {
        "apart": apart, "over_single": float(np.median(times[:, 1] / times[:, 0])), "runs": after["runs"],
        "third_stage": after["after"] / after["before"],
    }  # fmt: skip


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Four graphs on four devices beside ten placers; stages on a small one; time over size; two real workers."""
    few = lab.with_seeds(quick=3, full=3)
    path = ""
    if lab.size == "full":
        cases = [{"graph": g, "method": m, "episodes": EPISODES} for g in GRAPHS for m in LEARNED]
        path = str(lab.artefacts / "doppler.npz")
        store(few.run(train_at, cases), few.seeds, Path(path))
    timed = lab.with_seeds(quick=1, full=3)
    prepare(executor.IMPORTS)
    return {
        "placers": few.run(judge, [{"graph": graph, "places": path} for graph in GRAPHS], per="placer"),
        "stages": few.run(lesson, [{"grid": 2, "episodes": lab.pick(600, 2000)}], per="stage"),
        "growth": few.run(growth, [{"nodes": n, "episodes": 16} for n in (640, 1280, 2560)]),
        "live": replace(timed, workers=0).run(live, [{"block": 256, "episodes": lab.pick(16, 200)}]),
    }


def store(table: pl.DataFrame, seeds: Any, path: Path) -> None:
    """Keep what a training found, with its provenance."""
    arrays = {}
    for (graph, method), rows_ in table.group_by("graph", "method", maintain_order=True):
        arrays[f"{graph}|{method}"] = np.array([json.loads(p) for p in rows_.sort("seed")["place"]], np.int8)
    about = {"episodes": int(table["episodes"][0]), "seeds": list(map(int, seeds)), "devices": DEVICES,
             "cpu_seconds": float(table["cpu"].sum())}  # fmt: skip
    aside = path.with_suffix(".part.npz")
    np.savez_compressed(aside, allow_pickle=False, provenance=np.array(json.dumps(about)), **arrays)
    aside.replace(path)


def _against(rival: str) -> Measure:
    """The change of seconds against a rival in the best case."""
    return best(
        {graph: change("seconds", new={"placer": "doppler"}, old={"placer": rival}, experiment="placers", graph=graph)
         for graph in GRAPHS}, min,
    )  # fmt: skip


def _mean_over(rival: str, graphs: tuple[str, ...] = tuple(GRAPHS)) -> Measure:
    """Seconds over a rival's where that is worst."""
    return best(
        {graph: ratio("seconds", of={"placer": "doppler"}, to={"placer": rival}, experiment="placers", graph=graph)
         for graph in graphs}, max, every=True,
    )  # fmt: skip


def _apart(table: pl.DataFrame) -> Estimate:
    found = rows(table, {"experiment": "live"})["apart"]
    return counted(max(found), len(found))


def _third(table: pl.DataFrame) -> Estimate:
    """Seconds after the third stage over those before; one training alone says nothing."""
    if len(rows(table, {"experiment": "live"})) < 2:
        raise NotMeasured("real runs of one training; --full has three")
    return mean("third_stage", experiment="live")(table)


BIG = ("ffnn", "llama-block", "llama-layer")
_worst: Callable[[str], Measure] = partial(_mean_over, graphs=BIG)

claims = [
    Claim("over-list", _against("critical path")),
    Claim("over-placeto", _against("placeto-like")),
    Claim("over-gdp", _against("gdp-like")),
    Claim("over-enumerative", _against("enumerative")),
    Claim("training", slope("operators", "per_episode", experiment="growth"), evidence=Evidence.REAL),
    Claim(
        "every-list", _worst("critical path"), kind=Kind.AT_MOST, value=0.9, unit="ratio",
        asks="On FFNN and both LLAMA graphs a run takes at most 0.9 of what it takes by critical-path list scheduling, "
        "the best of 50.",
    ),
    Claim(
        "ports", _mean_over("critical path, ports"), kind=Kind.RATIO, toward="down",
        asks="On every graph runs are shorter than by list scheduling that counts on queues at ports.",
    ),
    Claim(
        "luck", _mean_over("drawn"), kind=Kind.RATIO, toward="down",
        asks="On every graph runs are shorter than by the best of 500 drawn placements.",
    ),
    Claim(
        "select-only", _worst("select only"), kind=Kind.RATIO, toward="down",
        asks="On FFNN and both LLAMA graphs both policies are better than the choice of operators alone.",
    ),
    Claim(
        "place-only", _worst("place only"), kind=Kind.RATIO, toward="down",
        asks="On FFNN and both LLAMA graphs both policies are better than the choice of devices alone.",
    ),
    Claim(
        "copied",
        ratio("seconds", of={"stage": "teacher"}, to={"stage": "copied"}, experiment="stages"),
        kind=Kind.AT_LEAST, value=0.9, unit="ratio",
        asks="After the first stage the best of 50 placements is at least 0.9 as fast as the teacher's.",
    ),
    Claim(
        "stages",
        change("mean", new={"stage": "learned"}, old={"stage": "copied"}, experiment="stages"),
        kind=Kind.CHANGE, toward="down",
        asks="After the second stage the placements that are drawn are shorter on average than after the first.",
    ),
    Claim(
        "same", _apart, kind=Kind.AT_MOST, value=1e-4, unit="value", evidence=Evidence.REAL,
        asks="Two real workers compute what one process does, to 0.1 thousandths.",
    ),
    Claim(
        "third", _third, kind=Kind.RATIO, toward="down", evidence=Evidence.REAL,
        asks="Learning from real runs of two workers makes them shorter.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Seconds of each placer over what the devices would take without waiting."""
    import altair as alt

    found = table.filter((pl.col("experiment") == "placers") & (pl.col("placer") != "single device"))
    means = found.group_by("graph", "placer", maintain_order=True).agg(pl.col("over_ideal").mean())
    chart: alt.Chart = (
        alt.Chart(means.with_columns(pl.col("over_ideal").clip(1.0, 2.0)))
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X("over_ideal:Q", title="seconds over no waiting", scale=alt.Scale(domain=(1.0, 2.0))),
            y=alt.Y("placer:N", title=None, sort=list(dict.fromkeys(means["placer"]))),
            color=alt.condition(alt.datum.placer == "doppler", alt.value("#d62728"), alt.value("#4c78a8")),
            column=alt.Column(
                "graph:N", title="operator graphs on four devices (2 stands for more)", sort=list(GRAPHS)
            ),
        )
        .properties(width=150, height=200)
    )
    return chart
