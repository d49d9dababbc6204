"""Light cone consistency: place any consistency model by two choices, then compare models mechanically.

An observer sees part of a growing causal history. Two choices make a consistency model: under which dependencies its
view must be closed (*closure*), and how it orders what was concurrent (*ordering*). Read-your-writes, causal memory or
sequential consistency are then points of one lattice, and "may this service honestly read that store's data?" is a
question of set inclusion. The axes are not independent: an order that refines causality cannot be applied to a view
that lacks a cause, so such an ordering supplies closure; without it the order of models splits by axis.

The paper proves theorems and prints no numbers. So the lattice's rules are compared with **all** executions of up to
five events, models' coordinates with their definitions from the literature, and what the lattice says about stores with
the histories of stores that ran: in simulation, and over TCP. Beside it stand a flat catalogue of judges, a checker of
linearizability alone and a search for cycles of dependencies. A user's own history is placed by :func:`place`.

Landers and Kramer, arXiv:2605.09114 (version 2). The axes' exact definitions are our reading of it (inferred).

>>> from assay.workloads.histories import Operation
>>> history = [
...     Operation(0, "write", "photo", 1, None, 0.0, 1.0),
...     Operation(0, "write", "album", 2, None, 2.0, 3.0),
...     Operation(1, "read", "album", None, 2, 4.0, 5.0),
...     Operation(1, "read", "photo", None, None, 6.0, 7.0),
... ]
>>> found = place(history)
>>> sorted(found.strongest)
['monotonic-reads', 'read-your-writes', 'writes-follow-reads']
>>> found.broken[0].model, found.broken[0].witness
('monotonic-writes', (0, 1, 2, 3))
>>> readable("causal", "sequential"), readable("sequential", "causal")
(True, False)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.protocols.judges import causal, lattice, linearizable, sequential, sessions, specifications
from assay.protocols.kernel import net as nets
from assay.protocols.kernel.world import World
from assay.protocols.lcc import definitions, executions, placement, rivals
from assay.protocols.lcc.placement import JUDGED, Placement, place
from assay.protocols.nodes.kv import finished
from assay.protocols.nodes.raft import Raft, RaftClient
from assay.protocols.nodes.stores import PRESETS, WAITS, Bridge, Design, Replica, Session, script
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.random import stream
from assay.workloads import planted_histories as planted
from assay.workloads.histories import Operation

if TYPE_CHECKING:
    import altair as alt

    from assay.protocols.kernel.run import Outcome
    from assay.record.lab import Lab
    from assay.record.tables import Tables

__all__ = ["Placement", "place", "readable"]

evidence = Evidence.REAL  # small executions are counted to the last one, and stores ran over sockets
use_when = (
    "You must say what a store promises, whether a reader of one store may rely on another's data after a copy or a "
    "migration, or which promise a recorded history broke and by which operations."
)
avoid_when = (
    "You ask for isolation of transactions (use the list-append judges), for freshness in seconds, or for real-time "
    "guarantees from per-process data: those need a clock that no single observer has."
)
own_input = "assay check examples/history.edn --model strongest"
references = (
    "Session guarantees: Terry et al., PDIS 1994; causal models by bad patterns: Bouajjani et al., POPL 2017.",
    "The catalogue of models by visibility and arbitration: Viotti and Vukolić, ACM Computing Surveys 49, 2016.",
)

NEAR, FAR, TAIL = 0.0005, 0.01, 1.0  # seconds within and between sites; a long tail, so that effects overtake causes
SKEWS = (0.0, 0.05, -0.05)
PROMISED = {
    "pram": "pram", "causal": "causal-memory", "causal+": "causal-convergent", "sequential": "sequential",
    "linearizable": "linearizable", "raft": "linearizable",
}  # fmt: skip
"""What each store promises; of the others nothing is judged but that their copies agree in the end."""
STORES = (*PRESETS, "raft")


def sites(places: Sequence[int]) -> nets.Net:
    """A network of three sites, far from each other, and a hub (site 3) near to all; `places[node]` is its site."""
    seconds = np.full((4, 4), FAR)
    seconds[3, :] = seconds[:, 3] = NEAR
    np.fill_diagonal(seconds, NEAR)
    return nets.Net(nets.Regions(seconds, np.array(places), sigma=TAIL))


def readable(reader: str, store: str) -> bool:
    """Whether a reader that promises one named model may honestly read data kept under another.

    >>> readable("monotonic-reads", "pram"), readable("causal", "convergent")
    (True, False)
    """
    for name in (reader, store):
        if name not in lattice.NAMED:
            raise ValueError(f"no model '{name}'; one of {', '.join(lattice.NAMED)} expected")
    return lattice.le(lattice.NAMED[reader], lattice.NAMED[store])


def satisfies(history: list[Operation], model: str) -> bool:
    """The bare verdict on a history of registers; what cannot be decided does not count as satisfied."""
    if model in causal.MODELS:
        return causal.verdict(history, model) == "holds"
    if model in sessions.MODELS:
        return sessions.verdict(history, model) == "holds"
    if model == "sequential":
        return sequential.judge(history, prefix=False).holds
    return linearizable.verdict(history, specifications.guess(history)) == "holds"


# ------------------------------------------------------------------------------------------- what is counted


def count_order(events: int) -> dict[str, list[dict[str, Any]]]:
    """The lattice against all executions: every pair of configurations, and every ordering."""
    found = executions.census(events)
    base = {"executions": found.executions}
    pairs = {"checked": found.pairs, "agreeing": found.pairs - found.disagreements}
    orderings = []
    for ordering, split in found.split.items():
        refines = found.refines[ordering]
        row = {"ordering": ordering, "splits": split, "refines": refines}
        orderings.append(base | row | {"checked": 1, "agreeing": int(split != refines)})
    return {"order": [base | pairs | {"witnesses": len(found.witnesses)}], "dichotomy": orderings}


def count_definitions(events: int) -> list[dict[str, Any]]:
    """Every named model's definition against its coordinates, on every execution."""
    agreeing = dict.fromkeys(definitions.DEFINITIONS, 0)
    holding = dict.fromkeys(definitions.DEFINITIONS, 0)
    total = 0
    for size in range(2, events + 1):
        for execution in executions.executions(size):
            total += 1
            signature = executions.signature(execution)
            for model, definition in definitions.DEFINITIONS.items():
                holds = definition(execution)
                holding[model] += holds
                agreeing[model] += holds == (lattice.NAMED[model].demands <= signature)
    return [
        {"model": model, "executions": total, "checked": total,
         "agreeing": agreeing[model], "holding": holding[model]}
        for model in agreeing
    ]  # fmt: skip


# --------------------------------------------------------------------------------------- what stores really do


def planted_trial(plant: str, operations: int, runs: int, seed: int) -> dict[str, Any]:
    """Histories that are right but for one planted anomaly: are exactly those models broken that the lattice says?"""
    agreeing = 0
    for run in range(runs):
        history, wrong = spoiled(plant, operations, seed * 1000 + run)
        agreeing += {model for model in JUDGED if not satisfies(history, model)} == wrong
    return {"checked": runs, "agreeing": agreeing}


def spoiled(plant: str, operations: int, seed: int) -> tuple[list[Operation], set[str]]:
    """A history with a planted anomaly ("none": with none), and the models that it breaks by the lattice."""
    history = planted.registers(operations, seed=seed)
    if plant == "none":
        return history, set()
    history, _ = planted.plant(history, plant, seed)
    broken = planted.PLANTS[plant].breaks
    return history, {model for model in JUDGED if any(lattice.le(JUDGED[one], JUDGED[model]) for one in broken)}


def run_raft(seed: int, operations: int, mode: str = "timed", **options: Any) -> Outcome:
    """Three servers and three clients."""
    clients = []
    for who in range(3):
        steps = enumerate(script(seed, who, operations, keys=3))
        clients.append(RaftClient([(f, key, who * 1000 + at if f == "write" else None) for at, (f, key) in steps]))
    return World(3, Raft, f=1, clients=clients, seed=seed).run(mode, until=finished, limit=30.0, **options)


def run_store(name: str, seed: int, operations: int = 24) -> Outcome:
    """Six sessions, two at each of three copies with clocks that differ."""
    if name == "raft":
        return run_raft(seed, operations, metered=False)
    replicas = [Replica(PRESETS[name], skew=skew) for skew in SKEWS]
    clients = [
        Session(who % 3, script(seed, who, operations, keys=3), think=0.005, settle=0.5) for who in range(6)
    ]  # fmt: skip
    world = World(3, replicas, clients=clients, net=sites([0, 1, 2] * 3), seed=seed)
    return world.run("timed", limit=30.0, metered=False)


def store_trial(store: str, runs: int, seed: int) -> dict[str, Any]:
    """How often a store kept its promise, and how often real time was what it broke."""
    kept = linear = shifted = same = 0
    for run in range(runs):
        history = run_store(store, seed * 1000 + run).operations
        kept += satisfies(history, PROMISED[store]) if store in PROMISED else converged(history)
        linear += satisfies(history, "linearizable")
        moved = shift_clocks(history, seed * 1000 + run)
        shifted += satisfies(moved, "linearizable")
        same += all(satisfies(history, one) == satisfies(moved, one) for one in ("causal", "pram", "monotonic-writes"))
    return {"checked": runs, "agreeing": kept, "linear": linear, "shifted": shifted, "unchanged": same}


def rivals_trial(store: str, runs: int, seed: int) -> dict[str, dict[str, Any]]:
    """Histories of a store as the lattice and its rivals tell them: as all judges together do, and with how many?"""
    counts = {name: {"checked": 0, "agreeing": 0, "asked": 0} for name in rivals.METHODS}
    for run in range(runs):
        history = run_store(store, seed * 1000 + run).operations
        everything = rivals.flat(history)
        for name, method in rivals.METHODS.items():
            told = everything if name == "flat" else method(history)
            counts[name]["checked"] += 1
            counts[name]["agreeing"] += told.broken == everything.broken
            counts[name]["asked"] += told.asked
    return counts


def converged(history: list[Operation], keys: int = 3) -> bool:
    """Whether the last reads, done when all was quiet, agree on every key."""
    last: dict[Any, set[Any]] = {}
    for process in sorted({operation.process for operation in history}):
        own = [operation for operation in history if operation.process == process][-keys:]
        for operation in own:
            last.setdefault(operation.key, set()).add(operation.result)
    return all(len(values) == 1 for values in last.values())


def shift_clocks(history: list[Operation], seed: int) -> list[Operation]:
    """The same history with every process's clock set differently: what no process alone could notice."""
    random = stream(seed, "lcc", "clocks")
    shift = {process: float(random.uniform(0, 0.5)) for process in sorted({one.process for one in history})}
    moved = [
        one._replace(invoke=one.invoke + shift[one.process], complete=one.complete + shift[one.process])
        for one in history
    ]
    return sorted(moved, key=lambda one: one.invoke)


def migrate(path: tuple[str, str, str], seed: int) -> list[Operation]:
    """Writers at the first store, readers at the third; bridges copy everything through the second.

    Each store waits, before it shows a write, for what its place in the path says.
    """
    groups = [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    replicas = [
        Replica(Design(wait=wait), members=group) for wait, group in zip(path, groups, strict=True) for _ in group
    ]
    writers = [Session(home, script(seed, home, 40, keys=4), think=0.005, members=3) for home in groups[0]]
    readers = [Session(home, script(seed, home, 150, keys=4, writes=0.0), think=0.002, members=3) for home in groups[2]]
    bridges = [Bridge(2, groups[1], poll=0.001), Bridge(5, groups[2], poll=0.001)]
    net = sites([0, 1, 2] * 5 + [3, 3])
    world = World(9, replicas, clients=[*writers, *readers, *bridges], net=net, seed=seed)
    return world.run("timed", limit=1.0, metered=False).operations


LEVELS = {"nothing": None, "writer": "monotonic-writes", "causes": "causal"}


def migration_trial(first: str, second: str, third: str, runs: int, seed: int) -> dict[str, Any]:
    """How often the readers' store's own level was missed, and that of the weakest store on the path."""
    least = WAITS[min(WAITS.index(wait) for wait in (first, second, third))]
    missed = broken = 0
    for run in range(runs):
        history = migrate((first, second, third), seed * 1000 + run)
        missed += not _at_level(history, third)
        broken += not _at_level(history, least)
    return {"checked": runs, "least": least, "missed": missed, "broken": broken}


def _at_level(history: list[Operation], wait: str) -> bool:
    model = LEVELS[wait]
    return model is None or satisfies(history, model)


def metadata_trial(keeps: str, runs: int, seed: int) -> dict[str, Any]:
    """Inversions by wrong clocks: how many there are, how many a store can prove, how many it could have prevented."""
    inversions = found = avoided = both = false = 0
    for run in range(runs):
        name = seed * 1000 + run
        replicas = [Replica(Design(wait="causes", order="wall"), skew=skew) for skew in SKEWS]
        clients = [Session(who % 3, script(name, who, 20, keys=2), think=0.005) for who in range(6)]
        world = World(3, replicas, clients=clients, net=sites([0, 1, 2] * 3), seed=name)
        outcome = world.run("timed", limit=30.0, metered=False)
        writes = list(outcome.nodes[0].known.values())  # type: ignore[attr-defined]
        truth = placement.inverted(writes, placement.stamps(writes))
        proved, prevented = placement.detected(writes, keeps), placement.prevented(writes, keeps)
        inversions += len(truth)
        found += len(proved)
        avoided += len(prevented)
        both += len(proved & prevented)
        false += len(proved - truth)
    return {"checked": found, "agreeing": both, "inversions": inversions, "prevented": avoided, "false": false}


def run_live(names: tuple[str, ...], seed: int, operations: int = 12) -> list[dict[str, Any]]:
    """Several stores over TCP at once, in processes of their own; each store's history judged by its promise."""
    groups = [tuple(range(3 * at, 3 * at + 3)) for at in range(len(names))]
    replicas = [
        Replica(PRESETS[name], skew=skew, members=group)
        for name, group in zip(names, groups, strict=True)
        for skew in SKEWS
    ]
    clients = [
        Session(home, script(seed, home, operations, keys=2), think=0.003, settle=0.2, members=3)
        for group in groups
        for home in group
    ]
    total = len(clients) * (operations + 2)
    world = World(len(replicas), replicas, clients=clients, net=nets.parse("lognormal:0.002:1.0"), seed=seed)
    outcome = world.run(
        "live", processes=2, limit=20.0, until=lambda so_far: sum(o.status == "ok" for o in so_far.operations) >= total
    )
    rows = []
    for at, name in enumerate(names):
        mine = set(range(len(replicas) + 3 * at, len(replicas) + 3 * at + 3))
        history = [operation for operation in outcome.operations if operation.process in mine]
        kept = satisfies(history, PROMISED[name]) if name in PROMISED else converged(history, keys=2)
        done = sum(operation.status == "ok" for operation in history)
        row = {"store": name, "checked": 1, "agreeing": int(kept)}
        rows.append(row | {"operations": done})
    history = run_raft(seed, operations, "live", processes=2).operations
    kept = satisfies(history, PROMISED["raft"])
    row = {"store": "raft", "checked": 1, "agreeing": int(kept)}
    return [*rows, row | {"operations": len(history)}]


def study(lab: Lab) -> Tables:
    """Count all small executions, then run stores, migrations, clocks that go wrong, and rivals on what stores did."""
    events, first = lab.pick(quick=4, full=5), lab.seeds[0]
    direct = {
        **count_order(events), "definitions": count_definitions(events), "live": run_live(tuple(PRESETS), first),
    }  # fmt: skip
    lab.cases.update(("ordering", "model", "store"))
    runs = lab.pick(quick=2, full=20)
    stores = [{"store": store, "runs": runs} for store in STORES]
    plants = [{"plant": plant, "operations": 40, "runs": lab.pick(quick=4, full=50)} for plant in planted.PLANTS]
    clean = [{"plant": "none", "operations": 40, "runs": lab.pick(quick=50, full=1000)}]
    paths = [
        {"first": a, "second": b, "third": c, "runs": lab.pick(quick=3, full=20)}
        for a, b, c in product(WAITS, WAITS, WAITS[1:])  # readers of a store that waits for nothing can lose nothing
    ]
    kept = [{"keeps": keeps, "runs": runs} for keeps in placement.KEEPS]
    return {
        **{name: _counted(rows, first) for name, rows in direct.items()},
        "migration": lab.run(migration_trial, paths),
        "stores": lab.run(store_trial, stores),
        "metadata": lab.run(metadata_trial, kept),
        "planted": lab.run(planted_trial, plants),
        "clean": lab.run(planted_trial, clean),
        "rivals": lab.run(rivals_trial, stores, per="method"),
    }


def _counted(rows: list[dict[str, Any]], seed: int) -> pl.DataFrame:
    return pl.from_dicts([row | {"seed": seed} for row in rows], infer_schema_length=None)


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """The diagram of the named models, weak ones below, an edge for each step up."""
    import altair as alt

    spots, lines = _diagram()
    x = alt.X("x:Q", axis=None)
    edges = alt.Chart(lines).mark_line(color="#9A9A9A", strokeWidth=1).encode(
        x=x, y=alt.Y("y:Q", axis=None), detail="edge:N"
    )  # fmt: skip
    dots = alt.Chart(spots).mark_circle(size=70, opacity=1).encode(
        x=x, y="y:Q", color=alt.Color("ordering:N", title="ordering")
    )  # fmt: skip
    names = (
        alt.Chart(spots)
        .mark_text(dx=8, dy=-8, align="left", fontSize=10, color="#7F7F7F")
        .encode(x=x, y="y:Q", text="model:N")
    )
    pairs = int(table.filter(pl.col("experiment") == "order")["checked"][0])
    subtitle = f"Named models by closure and ordering; {pairs:,} pairs of configurations compared with all executions"
    title = alt.Title("Who may read whose data: upward, more is promised", subtitle=subtitle)
    chart: alt.LayerChart = (edges + dots + names).properties(width=640, height=420, title=title)
    return chart


def _diagram() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Where each model stands: as high as its longest way down, side by side with those of the same height."""
    names: dict[lattice.Point, str] = {}
    for name, configuration in lattice.NAMED.items():
        names.setdefault(configuration.demands, name)
    edges = lattice.hasse(names)
    height = dict.fromkeys(names, 0)
    for low in sorted(names, key=len):
        for below, above in edges:
            if below == low:
                height[above] = max(height[above], height[low] + 1)
    rows: dict[int, list[lattice.Point]] = {}
    for one in sorted(names, key=lambda point: (height[point], names[point])):
        rows.setdefault(height[one], []).append(one)
    # Every other row is shifted a little, so that no edge runs through a model it does not concern.
    where = {
        one: (at - (len(row) - 1) / 2 + 0.2 * (level % 2), level)
        for level, row in rows.items()
        for at, one in enumerate(row)
    }
    spots = [
        {"model": names[one], "x": x, "y": float(y), "ordering": lattice.describe(one).split(" · ")[1].split()[0]}
        for one, (x, y) in where.items()
    ]
    lines = [
        {"edge": number, "x": where[end][0], "y": float(where[end][1])}
        for number, edge in enumerate(edges)
        for end in edge
    ]
    return pl.DataFrame(spots), pl.DataFrame(lines)


# ------------------------------------------------------------------------------------------------- the claims


NAMES = ("model", "ordering", "store", "plant", "method", "first", "second", "third")


def agreement(*experiments: str, held: str = "agreeing") -> measures.Measure:
    """The share of all checks that agreed; and the first row with one that did not."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = table.filter(pl.col("experiment").is_in(experiments))
        found = measures.probability(held, "checked")(chosen)
        wrong = chosen.filter(pl.col(held) < pl.col("checked")).head(1).to_dicts()
        told = [str(wrong[0][name]) for name in NAMES if wrong and wrong[0].get(name) is not None]
        return replace(found, cases=f"{wrong[0]['experiment']}: {', '.join(told)}") if wrong else found

    return measure


def dropped_paths(table: pl.DataFrame) -> Estimate:
    """Of the paths whose weakest store promises less than the last: how many showed it in at least one run."""
    chosen = measures.rows(table, {"experiment": "migration"}).filter(pl.col("least") != pl.col("third"))
    paths = chosen.group_by("first", "second", "third", maintain_order=True).agg(pl.col("missed").sum() > 0)
    found = intervals.clopper_pearson(int(paths["missed"].sum()), len(paths))
    regained = [" → ".join(path[:3]) for path in paths.iter_rows() if not path[3]]
    return replace(found, cases=f"{regained[0]}: no run missed the last store's level") if regained else found


def kept_level(table: pl.DataFrame) -> Estimate:
    """The share of runs in which migrated data kept the level of the weakest store on its path."""
    rows = measures.rows(table, {"experiment": "migration"})
    return agreement("migration", held="kept")(rows.with_columns(kept=pl.col("checked") - pl.col("broken")))


def _by_seed(table: pl.DataFrame, column: str, method: str) -> list[float]:
    rows = measures.rows(table, {"experiment": "rivals", "method": method}).group_by("seed").agg(
        pl.col(column).sum() / pl.col("checked").sum()
    )  # fmt: skip
    return rows.sort("seed")[column].to_list()


def over_rivals(table: pl.DataFrame) -> Estimate:
    """By how many more histories the lattice tells all that is broken than the better of the two checkers."""
    told = {name: np.array(_by_seed(table, "agreeing", name)) for name in ("lattice", "linearizability", "cycles")}
    best = max(("linearizability", "cycles"), key=lambda name: float(told[name].mean()))
    rates = ", ".join(f"{name} {shares.mean():.0%}" for name, shares in told.items())
    return replace(intervals.bootstrap(told["lattice"] - told[best]), cases=f"against {best}; {rates}")


def fewer_judges(table: pl.DataFrame) -> Estimate:
    """The judges that the lattice asks over those of the flat catalogue."""
    return intervals.ratio(_by_seed(table, "asked", "lattice"), _by_seed(table, "asked", "flat"))


def as_flat(table: pl.DataFrame) -> Estimate:
    """The share of histories of which the lattice says what the flat catalogue says."""
    return agreement("rivals")(measures.rows(table, {"experiment": "rivals", "method": "lattice"}))


def by_metadata(table: pl.DataFrame) -> Estimate:
    """The inversions that a store proves from what each write replaced over those it proves from all causes."""
    found = {
        keeps: measures.rows(table, {"experiment": "metadata", "keeps": keeps}) for keeps in ("replaced", "causes")
    }
    return intervals.ratio(found["replaced"]["checked"].to_list(), found["causes"]["checked"].to_list())


claims = [
    Claim("points", agreement("definitions")),
    Claim("decidable", agreement("order")),
    Claim("dichotomy", agreement("dichotomy")),
    Claim("migration", dropped_paths, evidence=Evidence.MODEL),
    Claim(
        "metadata",
        agreement("metadata"),
        evidence=Evidence.MODEL,
        construction="what is detected and what is prevented are both computed from the same kept edges",
    ),
    Claim(
        "promises",
        agreement("live", "stores"),
        asks="Every store kept its promise in every run, over TCP and in simulation.",
        kind=Kind.EVERY,
    ),
    Claim(
        "planted",
        agreement("planted"),
        asks="Every planted anomaly broke exactly the models that the lattice says, by their own judges.",
        kind=Kind.EVERY,
        evidence=Evidence.MODEL,
    ),
    Claim(
        "clean",
        agreement("clean"),
        asks="No judge found fault with any history that has no anomaly.",
        kind=Kind.EVERY,
        evidence=Evidence.MODEL,
    ),
    Claim(
        "weakest",
        kept_level,
        asks="Migrated data kept the level of the weakest store on its path in every run.",
        kind=Kind.EVERY,
        evidence=Evidence.MODEL,
    ),
    Claim(
        "over-checkers",
        over_rivals,
        asks="The lattice tells all that a store's history broke more often than a checker of linearizability or a "
        "search for cycles of dependencies.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "judges",
        fewer_judges,
        asks="Climbing the lattice asks fewer judges about a store's history than a flat catalogue of the same models.",
        kind=Kind.RATIO,
        toward="down",
        evidence=Evidence.MODEL,
    ),
    Claim(
        "same-as-flat",
        as_flat,
        asks="The lattice tells of every history of a store what the flat catalogue tells.",
        kind=Kind.EVERY,
        evidence=Evidence.MODEL,
    ),
    Claim(
        "kept-causes",
        by_metadata,
        asks="A store that kept which write each one replaced proves fewer inversions of its clocks than one that kept "
        "all causes.",
        kind=Kind.RATIO,
        toward="down",
        evidence=Evidence.MODEL,
    ),
]
