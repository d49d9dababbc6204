"""The triangle of consistency: see all causes, agree on one order, answer in time. Each pair has its own impossibility.

A store makes three demands on itself: *closure* C (nobody sees an effect without its causes), *ordering* O (forks are
resolved alike everywhere) and *timeliness* R (answers come within a bound). With a return function these three place a
model; the catalogue holds 85 such rows. Each pair of demands can be broken by an adversary of its own: a partition
takes C or R (as in CAP), a crashed leader takes O or R (as in FLP), and forgetting takes C or O: a network that blanks
what tells branches apart. The paper calls the third surface AFC and we do not know what the letters stand for; which
adversary belongs to which pair is our reading (inferred).

The study runs one store with knobs (:class:`assay.protocols.nodes.stores.Design`) in all settings, the named stores
among them, under all adversaries, and judges the histories that come out, not the settings: C by the causal judge, O by
what the copies answer when all is quiet (for the leader's surface: by whether they ever showed one sequence), R by the
clock. Whether three coordinates say more about a store than CAP's one choice, PACELC's two or a model's name is asked
of the same runs: what a setting keeps is guessed from those that the description does not tell apart from it.

Landers and Kramer, arXiv:2605.09114 (version 1).

>>> kept = demands("partition", "causes", "arrival", prompt=False, seed=0)  # waits for causes as long as it takes
>>> kept["closure"], kept["timeliness"]
(True, False)
>>> kept = demands("partition", "causes", "arrival", prompt=True, seed=0)  # answers when the deadline is over
>>> kept["closure"], kept["timeliness"]
(False, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.protocols.faults import Crash
from assay.protocols.interface import Fault, NodeId
from assay.protocols.judges import causal, linearizable, specifications
from assay.protocols.kernel import net as nets
from assay.protocols.kernel.world import World
from assay.protocols.lcc_triangle.catalogue import catalogue
from assay.protocols.nodes.stores import PRESETS, Burst, Design, Forget, Replica, Session, Split, script
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.workloads.histories import Operation

if TYPE_CHECKING:
    import altair as alt

    from assay.protocols.kernel.run import Outcome
    from assay.record.lab import Lab
    from assay.record.tables import Tables

evidence = Evidence.MODEL  # simulated time; the partition is also run over TCP
use_when = (
    "You choose what a replicated store gives up first: under a partition, when its leader dies, when its metadata "
    "is cut; or you want to know whether your write rate is so low that the choice does not matter."
)
avoid_when = (
    "You need isolation of transactions or Byzantine copies, or an availability figure of a certain product: the "
    "store here shows what is possible, not how fast yours is."
)
own_input = "assay check examples/history.jsonl --model strongest"
references = (
    "CAP: Gilbert and Lynch, SIGACT News 33, 2002. FLP: Fischer, Lynch and Paterson, JACM 32, 1985.",
    "The catalogue's names: Viotti and Vukolić, ACM Computing Surveys 49, 2016, and the sources in its rows.",
)

NEAR, FAR, TAIL = 0.0005, 0.005, 0.8
DEADLINE, PROMPT = 0.2, 0.35
"""Seconds: when a store with a deadline answers in any case, and what counts as in time."""
BEGIN, END = 0.1, 1.5
"""Seconds: when the adversary begins, and when a partition ends."""
SURFACES = {
    "partition": ("closure", "timeliness"), "crash": ("sequence", "timeliness"), "forgetting": ("closure", "ordering"),
}  # fmt: skip
"""Each adversary, and the two demands of which it leaves one. `sequence` is ordering for good: all copies show
beginnings of one sequence, and nothing shown is ever moved."""
ADVERSARIES = ("calm", *SURFACES)


# ------------------------------------------------------------------------------------------------ the surfaces


def sites(places: Sequence[int]) -> nets.Net:
    """Three sites far from each other; `places[node]` is where a node is."""
    seconds = np.full((3, 3), FAR)
    np.fill_diagonal(seconds, NEAR)
    return nets.Net(nets.Regions(seconds, np.array(places), sigma=TAIL))


def adversary(name: str) -> dict[NodeId, Fault]:
    """What is done to which copies."""
    match name:
        case "partition":
            return {node: Split((2,), BEGIN, END) for node in range(3)}
        case "crash":
            return {0: Crash(at=BEGIN)}
        case "forgetting":
            return {node: Forget() for node in range(3)}
    return {}


def run_store(name: str, design: Design, seed: int) -> Outcome:
    """Six sessions on three copies, and an observer at each. Under a partition sessions roam.

    Nobody is at home at a copy that crashes.
    """
    places = (1, 2) if name == "crash" else (0, 1, 2)
    homes = [*(places * 3)[:6], *places]
    roam = (0, 1, 2) if name in ("calm", "partition") else ()
    replicas = [Replica(design, skew=skew, repair=0.3) for skew in (0.0, 0.05, -0.05)]
    sessions = [
        Session(home, script(seed, who, 30, keys=2), think=0.005, roam=roam, settle=1.0)
        for who, home in enumerate(homes[:6])
    ]
    observers = [Session(home, script(seed, home, 100, keys=2, writes=0.0), think=0.002, settle=1.0) for home in places]
    world = World(
        3, replicas, clients=[*sessions, *observers], net=sites([0, 1, 2, *homes]), faults=adversary(name), seed=seed
    )  # fmt: skip
    # Copies repair for ever, so the run ends when all sessions have what they wanted, or at the limit.
    wanted = 32 * len(sessions) + 102 * len(observers)
    return world.run("timed", limit=60.0, metered=False, until=lambda so_far: _answered(so_far, wanted))


def demands(adversary: str, wait: str, order: str, prompt: bool, seed: int, ordered: bool = False) -> dict[str, bool]:
    """Which demands a run met, by what could be seen from outside."""
    deadline = DEADLINE if prompt else math.inf
    outcome = run_store(adversary, Design(wait, order, deadline, reads_ordered=ordered), seed)
    return judge(outcome.operations) | {"sequence": one_sequence(outcome.decisions)}


def judge(history: Sequence[Operation], keys: int = 2) -> dict[str, bool]:
    """Closure, ordering and timeliness of a history."""
    answered = [operation for operation in history if operation.status == "ok"]
    return {
        "closure": causal.verdict(history, "causal") == "holds",
        "ordering": agreed(answered, keys),
        "timeliness": all(operation.complete - operation.invoke <= PROMPT for operation in history),
    }


def agreed(history: Sequence[Operation], keys: int) -> bool:
    """Whether no two sessions saw the values of a key change in opposite orders, and all ended with the same ones.

    The last reads of a session, one for each key, are done when all is quiet.
    """
    replaced: dict[Any, set[Any]] = {}
    last: dict[Any, set[Any]] = {}
    for process in {operation.process for operation in history}:
        reads = [one for one in history if one.process == process and one.f == "read"]
        now: dict[Any, Any] = {}
        for read in reads:
            before = now.get(read.key)
            if before is not None and before != read.result:
                replaced.setdefault(before, set()).add(read.result)
            now[read.key] = read.result
        for read in reads[-keys:]:
            last.setdefault(read.key, set()).add(read.result)
    return all(len(values) == 1 for values in last.values()) and _acyclic(replaced)


def _acyclic(after: Mapping[Any, set[Any]]) -> bool:
    try:
        tuple(TopologicalSorter(after).static_order())
    except CycleError:
        return False
    return True


def one_sequence(decisions: Mapping[NodeId, Mapping[Any, Any]]) -> bool:
    """Whether all copies showed beginnings of one sequence."""
    first: dict[Any, Any] = {}
    return all(
        first.setdefault(slot, value) == value for shown in decisions.values() for slot, value in shown.items()
    )  # fmt: skip


def designs() -> list[dict[str, Any]]:
    """All settings of the knobs that differ in what they do."""
    loose = [{"wait": "nothing", "order": order, "prompt": True} for order in ("arrival", "wall", "lamport")]
    loose.append({"wait": "writer", "order": "arrival", "prompt": False})
    closed = [
        {"wait": "causes", "order": order, "prompt": prompt}
        for order in ("arrival", "wall", "lamport")
        for prompt in (True, False)
    ]
    led = [
        {"wait": wait, "order": "leader", "prompt": prompt}
        for wait in ("nothing", "causes")
        for prompt in (True, False)
    ]
    rows: list[dict[str, Any]] = [row | {"ordered": False} for row in loose + closed + led] + [
        row | {"ordered": True} for row in led[2:]
    ]
    return [row | {"store": _preset(**row)} for row in rows]


def _preset(wait: str, order: str, prompt: bool, ordered: bool) -> str:
    """The named store of this setting, if it is one. A store that waits for nothing needs no deadline."""
    for name, design in PRESETS.items():
        same = (design.wait, design.order, design.reads_ordered) == (wait, order, ordered)
        if same and (design.deadline < math.inf) == prompt:
            return name
    return ""


def surface_trial(
    adversary: str, wait: str, order: str, prompt: bool, ordered: bool, store: str, runs: int, seed: int
) -> dict[str, Any]:
    """In how many runs each demand was met."""
    kept = [demands(adversary, wait, order, prompt, 1000 * seed + run, ordered) for run in range(runs)]
    return {"trials": runs} | {name: sum(run[name] for run in kept) for name in kept[0]}


# ------------------------------------------------------------------------------------- what breaks what, and when


GIVES = {
    "closure": Design("nothing", "lamport"), "ordering": Design("causes", "arrival", DEADLINE),
    "timeliness": Design("causes", "lamport"),
}  # fmt: skip
"""Which demand gives first when writes get lost, and the design that does so."""


def repair_trial(gives: str, loss: float, runs: int, seed: int) -> dict[str, Any]:
    """A burst of losses, repaired by asking around: what is broken while the repair is under way?"""
    broken = {"closure": 0, "ordering": 0, "timeliness": 0}
    for run in range(runs):
        name = 1000 * seed + run
        replicas = [Replica(GIVES[gives], repair=0.4) for _ in range(3)]
        clients = [
            Session(who, script(name, who, 25, keys=2), think=0.01, roam=(0, 1, 2), settle=0.15) for who in range(3)
        ]
        faults: dict[NodeId, Fault] = {node: Burst(loss, BEGIN) for node in range(3)} if loss else {}
        world = World(3, replicas, clients=clients, net=sites([0, 1, 2] * 2), faults=faults, seed=name)
        outcome = world.run("timed", limit=6.0, metered=False, until=lambda so_far: _answered(so_far, 3 * 27))
        met = judge(outcome.operations)
        broken["closure"] += not met["closure"]
        broken["ordering"] += not met["ordering"]
        broken["timeliness"] += not (met["timeliness"] and shown_in_time(outcome))
    return {"trials": runs} | {f"{name}_broken": count for name, count in broken.items()}


def _answered(outcome: Outcome, wanted: int) -> bool:
    """Whether so many operations are done; counted only when so many have begun, for it is asked after each."""
    begun = outcome.operations
    return len(begun) >= wanted and sum(operation.status == "ok" for operation in begun) >= wanted


def shown_in_time(outcome: Outcome) -> bool:
    """Whether every write that a copy showed was shown by all copies within the bound, as far as the run went."""
    first: dict[Any, float] = {}
    count: dict[Any, int] = {}
    for entry in outcome.log:
        first.setdefault(entry.value, entry.time)
        count[entry.value] = count.get(entry.value, 0) + (entry.time - first[entry.value] <= PROMPT)
    return all(count[one] == outcome.n for one, time in first.items() if time + PROMPT < outcome.time)


def idle_trial(store: str, load: float, runs: int, seed: int) -> dict[str, Any]:
    """Whether a store is seen to be linearizable when `load` writes happen in the time that a write needs to spread."""
    linear = 0
    for run in range(runs):
        name = 1000 * seed + run
        pause = 6 * 0.5 * FAR / load  # six sessions, half of what they do are writes
        replicas = [Replica(PRESETS[store], skew=skew) for skew in (0.0, FAR, -FAR)]
        clients = [Session(who % 3, script(name, who, 10, keys=2), think=pause) for who in range(6)]
        world = World(3, replicas, clients=clients, net=sites([0, 1, 2] * 3), seed=name)
        history = world.run("timed", limit=1e6, metered=False).operations
        linear += linearizable.verdict(history, specifications.guess(history)) == "holds"
    return {"trials": runs, "linear": linear}


def run_live(seed: int, seconds: float = 1.2) -> list[dict[str, Any]]:
    """The partition over TCP: a store that waits and one that answers, side by side in processes of their own."""
    chosen = {"waits": Design("causes", "arrival"), "answers": Design("causes", "arrival", DEADLINE)}
    groups = [(0, 1, 2), (3, 4, 5)]
    replicas = [
        Replica(design, members=group, repair=0.05) for design, group in zip(chosen.values(), groups, strict=True)
        for _ in group
    ]  # fmt: skip
    clients = [
        Session(home, script(seed, home, 30, keys=2), think=0.02, roam=group, members=3)
        for group in groups
        for home in group
    ]
    cut = {node: Split((2, 5), BEGIN, seconds) for node in range(6)}
    world = World(6, replicas, clients=clients, net=nets.Net(nets.Constant(NEAR)), faults=cut, seed=seed)
    outcome = world.run("live", processes=2, limit=seconds + 5.0, until=lambda so_far: _answered(so_far, 6 * 30))
    rows = []
    for at, name in enumerate(chosen):
        history = [one for one in outcome.operations if (one.process - 6) // 3 == at]
        met = judge(history)
        counted = {demand: int(met[demand]) for demand in ("closure", "timeliness")}
        row = {"store": name, "seed": seed, "trials": 1, "operations": len(history)}
        rows.append(row | counted)
    return rows


LOADS = (1e-6, 1e-4, 1e-2, 1.0)
"""Writes while a write spreads; the least stands for "far more slowly"."""


def study(lab: Lab) -> Tables:
    """All settings under all adversaries; losses and their repair; write rates; a partition over TCP."""
    surfaces = [
        {"adversary": name} | design | {"runs": lab.pick(quick=2, full=10)}
        for name in ADVERSARIES
        for design in designs()
    ]
    repairs = [
        {"gives": gives, "loss": loss, "runs": lab.pick(quick=3, full=20)} for gives in GIVES for loss in (0.0, 0.6)
    ]
    idle = [{"store": store, "load": load, "runs": lab.pick(quick=4, full=40)} for store in PRESETS for load in LOADS]
    first = lab.seeds[0]
    rows = [
        {"model": row.name, "seed": first, "named": row.named, "exact": not row.caveat,
         "coordinates": f"{row.configuration} · {row.timely} · {row.returns}"}
        for row in catalogue()
    ]  # fmt: skip
    lab.cases.update(("model", "store"))
    return {
        "catalogue": pl.from_dicts(rows, infer_schema_length=None),
        "live": pl.from_dicts(run_live(first)),
        "surfaces": lab.run(surface_trial, surfaces),
        "repair": lab.run(repair_trial, repairs),
        "idle": lab.run(idle_trial, idle),
    }


def plot(table: pl.DataFrame) -> alt.Chart:
    """How often each store was seen to be linearizable, against the writes in the time that a write needs to spread."""
    import altair as alt

    idle = table.filter(pl.col("experiment") == "idle").group_by("store", "load").agg(
        (pl.col("linear").sum() / pl.col("trials").sum()).alias("share")
    ).sort("store", "load")  # fmt: skip
    title = alt.Title(
        "An idle store is linearizable", subtitle="Share of runs judged linearizable, by promise of the store"
    )
    chart: alt.Chart = (
        alt.Chart(idle)
        .mark_line(point=True)
        .encode(
            x=alt.X("load:Q", scale=alt.Scale(type="log"), title="writes while a write spreads"),
            y=alt.Y("share:Q", scale=alt.Scale(domain=[0, 1]), title="linearizable runs"),
            color=alt.Color("store:N", title="store"),
        )
        .properties(width=560, height=320, title=title)
    )
    return chart


# ------------------------------------------------------------------------------------------------- the claims


def distinct_rows(table: pl.DataFrame) -> Estimate:
    """Rows of the catalogue with coordinates of their own."""
    return measures.counted(measures.rows(table, {"experiment": "catalogue"})["coordinates"].n_unique())


def named_rows(table: pl.DataFrame) -> Estimate:
    """Named models that have a row."""
    return measures.counted(len(measures.rows(table, {"experiment": "catalogue", "named": True})))


KNOBS = ("wait", "order", "prompt", "ordered")
DEMANDS = ("closure", "ordering", "timeliness", "sequence")


def surfaces_stand(table: pl.DataFrame) -> Estimate:
    """Of all that the three surfaces say about the settings: the share that held, and the first that did not.

    Under an adversary no setting meets both demands in all its runs, but each is met alone by some setting, and in calm
    weather some setting meets both: else it would not be the adversary that forbids it.
    """
    trials = pl.col("trials").sum()
    always = measures.rows(table, {"experiment": "surfaces"}).group_by("adversary", *KNOBS, maintain_order=True).agg(
        pl.col(demand).sum() == trials for demand in DEMANDS
    )  # fmt: skip
    checks: dict[str, bool] = {}
    for name, (one, other) in SURFACES.items():
        attacked, calm = (always.filter(pl.col("adversary") == weather) for weather in (name, "calm"))
        for row in attacked.iter_rows(named=True):
            setting = ", ".join(f"{knob} {row[knob]}" for knob in KNOBS)
            checks[f"{name}: {setting} kept {one} and {other}"] = not (row[one] and row[other])
        for demand in (one, other):
            checks[f"{name}: no setting kept {demand}"] = bool(attacked[demand].any())
        checks[f"calm: no setting kept {one} and {other}"] = not calm.filter(pl.col(one) & pl.col(other)).is_empty()
    return _all_of(checks)


def _all_of(checks: Mapping[str, bool]) -> Estimate:
    """The share of checks that held; the name of the first that did not says what was seen instead."""
    failed = [name for name, held in checks.items() if not held]
    return replace(intervals.clopper_pearson(len(checks) - len(failed), len(checks)), cases=failed[0] if failed else "")


def spread(table: pl.DataFrame) -> Estimate:
    """Of the six ways from one demand to another: those that were gone in most runs with losses, and in few without."""
    rows = measures.rows(table, {"experiment": "repair"})
    checks = {}
    for gives in GIVES:
        for other in sorted(set(GIVES) - {gives}):
            share = {
                loss: int(part[f"{other}_broken"].sum()) / int(part["trials"].sum())
                for (loss,), part in rows.filter(pl.col("gives") == gives).group_by("loss")
            }
            told = f"{other} was broken in {share[0.6]:.0%} of runs, {share[0.0]:.0%} without losses"
            checks[f"a store that gives up {gives}: {told}"] = share[0.6] > 0.5 > share[0.0]
    return _all_of(checks)


def always_linear(table: pl.DataFrame) -> Estimate:
    """The share of runs, over all stores, that were linearizable at the least load; and a store that was not."""
    idle = measures.rows(table, {"experiment": "idle", "load": LOADS[0]})
    found = measures.probability("linear", "trials")(idle)
    broken = idle.filter(pl.col("linear") < pl.col("trials"))["store"].to_list()
    return replace(found, cases=f"the {broken[0]} store" if broken else "")


def by_load(table: pl.DataFrame) -> Estimate:
    """By how much the share of linearizable runs, over all stores, differs between the highest and the least load."""
    shares = [
        measures.rows(table, {"experiment": "idle", "load": load})
        .group_by("seed")
        .agg(pl.col("linear").sum() / pl.col("trials").sum())
        .sort("seed")["linear"]
        for load in (LOADS[-1], LOADS[0])
    ]
    return intervals.bootstrap((shares[0] - shares[1]).to_list())


def _triangle(row: Mapping[str, Any]) -> tuple[Any, ...]:
    agreement = {"arrival": "local", "leader": "single"}.get(row["order"], "total")
    return row["wait"] == "causes", agreement, row["prompt"]


DESCRIPTIONS: dict[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] = {
    "triangle": _triangle,
    "CAP": lambda row: (row["prompt"],),
    "PACELC": lambda row: (row["prompt"], row["order"] == "leader"),
    "model's name": lambda row: (row["wait"], row["order"], row["ordered"]),
}
"""What each description sees of a setting: closure, agreement and deadline; whether it answers when cut off; that, and
whether it asks the leader in calm weather; or what it promises, whatever its deadline."""


def guessed(rows: pl.DataFrame, description: str) -> float:
    """The share of outcomes (a demand kept or not, under an adversary) that the most alike settings would have told.

    The guess is what most of the other settings did whose description differs in fewest coordinates; what most of all
    others did where these are divided.
    """
    see = DESCRIPTIONS[description]
    right = total = 0
    for _, part in rows.group_by("adversary"):
        settings = part.to_dicts()
        for row in settings:
            others = [one for one in settings if one is not row]
            apart = [sum(a != b for a, b in zip(see(one), see(row), strict=True)) for one in others]
            like = [one for one, distance in zip(others, apart, strict=True) if distance == min(apart)]
            for demand in DEMANDS:
                votes = [one[demand] == one["trials"] for one in like]
                if 2 * sum(votes) == len(votes):
                    votes = [one[demand] == one["trials"] for one in others]
                right += (2 * sum(votes) >= len(votes)) == (row[demand] == row["trials"])
                total += 1
    return right / total


def over_descriptions(table: pl.DataFrame) -> Estimate:
    """By how much more of the outcomes the triangle tells than the best of the others, seed by seed."""
    seeds = measures.rows(table, {"experiment": "surfaces"}).partition_by("seed")
    told = {name: np.array([guessed(rows, name) for rows in seeds]) for name in DESCRIPTIONS}
    best = max((name for name in told if name != "triangle"), key=lambda name: float(told[name].mean()))
    rates = ", ".join(f"{name} {shares.mean():.0%}" for name, shares in told.items())
    return replace(intervals.bootstrap(told["triangle"] - told[best]), cases=f"against {best}; {rates}")


OWN_FILE = "it counts the rows of assay's own catalogue"
claims = [
    Claim("configurations", distinct_rows, construction=OWN_FILE),
    Claim("models", named_rows, construction=OWN_FILE),
    Claim("impossibilities", surfaces_stand),
    Claim("spread", spread),
    Claim("slow-writes", always_linear),
    Claim(
        "busy",
        by_load,
        asks="Fewer runs are linearizable with a write in each propagation time than with one in a million.",
        kind=Kind.DIFFERENCE,
        toward="down",
        unit="share",
    ),
    Claim(
        "descriptions",
        over_descriptions,
        asks="Which demands a setting keeps under which adversary follows more often from the triangle's coordinates "
        "than from CAP's choice, PACELC's two or the model's name.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
]
