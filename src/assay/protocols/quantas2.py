"""QUANTAS 2: one algorithm, simulated in rounds and run over sockets, with traitors attached from outside.

An algorithm is written once, against an interface through which it sends, receives and computes. A simulator that
counts rounds and real sockets both stand behind that interface, so the code that was explored is the code that runs.
Faults stand there too: they see what a node sends, receives and does, and pass on what they like. The paper shows this
with miners that withhold blocks (:mod:`assay.protocols.quantas.parasite`), PBFT replicas that equivocate
(:func:`assay.protocols.nodes.pbft_proofs.equivocators`), Raft servers that crash, and links that lose, double and
reorder.

Here its experiment files run unchanged (:mod:`assay.protocols.quantas`), on nodes of our own. The parasite does
what the paper says: it publishes once its chain is so many blocks higher than the public one. In the public code the
hook that would tell it the public height is never called; its coalition compares with what it last published itself,
mostly publishes at once, and gets about what it works for. That may be why the shares measured here differ.

Nesterenko and Oglio, arXiv:2605.08547.

>>> from assay.protocols.quantas import parse
>>> (experiment,) = parse(experiment_file("RaftPeer", 3, rounds=100, timeout_spacing=20))
>>> simulated = experiment.world().run("rounds", limit=100)
>>> len(simulated.conflicts), experiment.measure(simulated)["throughput"] > 0.2
(0, True)
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.protocols.interface import Ctx, Fault
from assay.protocols.kernel.net import Net, Uniform
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.protocols.nodes import chain, data_links
from assay.protocols.nodes.pbft import Pbft, PbftClient
from assay.protocols.nodes.pbft_proofs import equivocators
from assay.protocols.nodes.raft import Raft, RaftClient
from assay.protocols.quantas import parse
from assay.protocols.quantas.parasite import coalition
from assay.protocols.quantas.peers import Outages, commands
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.streams import stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.record.tables import Tables

evidence = Evidence.MODEL  # rounds; only the first claim runs over sockets
use_when = (
    "You write a distributed algorithm and want to see it under delays, losses and traitors before it meets a network, "
    "then run the same class over sockets; or you have QUANTAS experiment files."
)
avoid_when = (
    "You need packet-level networks or the speed of a compiled handler: nodes are Python, and a round knows no "
    "bandwidth. Shares of a withholding coalition depend on how long the run is; do not read them as a limit."
)
own_input = "assay protocol experiment examples/pbft.json"
references = (
    "The first version: Oglio, Hood, Nesterenko and Tixeuil, QUANTAS, arXiv:2205.04930.",
    "Withholding blocks: Eyal and Sirer, Majority Is Not Enough, FC 2014.",
    "PBFT: Castro and Liskov, OSDI 1999. Raft: Ongaro and Ousterhout, USENIX ATC 2014.",
)

MINERS = 12
MEDIUM = (3, 4)
"""Miners of a coalition of medium strength."""
RULES: dict[str, type[chain.LongestChain]] = {"longest": chain.LongestChain, "ghost": chain.Ghost}
LINKS: dict[str, type[data_links.Link]] = {
    "alternating-bit": data_links.AlternatingBit, "numbered": data_links.NumberedLink,
    "stabilising": data_links.StabilisingLink,
}  # fmt: skip
ROOM = 3
"""Packets that fit on a link."""
DISTURBANCES: dict[str, Net] = {
    "none": Net(fifo=True, room=ROOM),
    "delay": Net(Uniform(0.5, 3.5), fifo=True, room=ROOM),
    "drop": Net(drop=0.2, fifo=True, room=ROOM),
    "duplicate": Net(duplicate=0.2, fifo=True, room=ROOM),
    "reorder": Net(Uniform(0.5, 3.5), duplicate=0.2, reorder=0.5, room=ROOM),
    "all": Net(Uniform(0.5, 3.5), drop=0.1, duplicate=0.2, reorder=0.5, room=ROOM),
    "rubbish": Net(Uniform(0.5, 3.5), drop=0.1, duplicate=0.2, reorder=0.5, room=ROOM),  # and a dirty start
}


# --------------------------------------------------------------------------------------------- proof of work


def withholding(rule: str, members: int, lead: int, pace: int, tests: int, seed: int) -> dict[str, Any]:
    """Twelve equal miners of which some are a parasite (`lead` 0: they are honest), for 400 rounds, some times.

    Together they find a block in about `pace` rounds, and a block takes one round to everybody.
    """
    rate = chain.rate_of_chance(1 / ((MINERS - 1) * pace))
    faults = coalition(range(members), lead) if lead else {}
    shares, back = [], 0
    for test in range(tests):
        world = World(
            n=MINERS, node=partial(chain.Miner, rate, RULES[rule]), faults=faults, seed=seed * tests + test
        )  # fmt: skip
        outcome = world.run("rounds", limit=400, metered=False)
        shares.append(chain.share(outcome, range(members)))
        back += len(outcome.conflicts)
    return {"parasite_ratio": sum(shares) / tests, "taken_back": back / tests}


# ------------------------------------------------------------------------------------------- replicated logs


def replication(protocol: str, n: int, faulty: int, rounds: int, seed: int) -> dict[str, Any]:
    """Requests in the logs of those who do not lie, a round: PBFT with equivocators, or Raft with crashes.

    Equivocators are the first primaries, as in the paper. A crash comes once to each faulty server, at a random time,
    and lasts 50 rounds. A message takes one or two rounds.
    """
    asks = [("write", "x", number) for number in range(rounds)]
    net = Net(Uniform(0.5, 2.5))
    if protocol == "raft":
        random = stream(seed, "quantas2", "crashes")
        times = random.uniform(20, rounds - 60, faulty).tolist()
        who = random.permutation(n)[:faulty].tolist()
        faults: dict[int, Fault] = {node: Outages(((at, at + 50),)) for node, at in zip(who, times, strict=True)}
        make: Any = partial(Raft, election=20, heartbeat=5)
        world = World(n, make, (n - 1) // 2, None, [RaftClient(asks, patience=20)], net=net, faults=faults, seed=seed)
        honest = range(n)
    else:
        make = partial(Pbft, patience=12)
        faults = equivocators(range(faulty), n)
        world = World(n, make, (n - 1) // 3, None, [PbftClient(asks, patience=24)], net=net, faults=faults, seed=seed)
        honest = range(faulty, n)
    outcome = world.run("rounds", limit=rounds, metered=False)
    held = sum(len(commands(outcome, node)) for node in honest)
    return {"throughput": held / len(honest) / rounds, "conflicts": len(outcome.conflicts)}


# ------------------------------------------------------------------------------------------------ data links


class Rubbish(Fault):
    """A dirty start: the link is full of packets that nobody sent in this life."""

    def on_start(self, ctx: Ctx) -> None:
        """Fills it."""
        for _ in range(ROOM):
            label = int(ctx.rng.integers(2))
            ctx.send(1 - ctx.id, ("data", label, -1) if ctx.id == data_links.SENDER else ("ack", label))


def transfer(link: str, disturbance: str, rounds: int, seed: int) -> dict[str, Any]:
    """What a link delivers for a packet, and whether it delivers it right; after a dirty start two may be wrong."""
    faults: dict[int, Fault] = {0: Rubbish(), 1: Rubbish()} if disturbance == "rubbish" else {}
    net = DISTURBANCES[disturbance]
    outcome = World(n=2, node=LINKS[link], net=net, faults=faults, seed=seed).run("rounds", limit=rounds)
    delivered = commands(outcome, data_links.RECEIVER)
    first = 2 if faults else 0
    begin = delivered[first] if len(delivered) > first else 0
    right = delivered[first:] == list(range(begin, begin + len(delivered) - first))
    return {"utility_ratio": len(delivered) / outcome.meter.messages, "faithful": right and begin <= 2 * first}


# ------------------------------------------------------------------------------------------- the two modes


def experiment_file(peer: str, n: int, rounds: int = 30, **parameters: Any) -> str:
    """The text of a QUANTAS experiment file with one experiment on a complete graph."""
    one = {
        "logFile": peer, "threadCount": 1, "tests": 1, "rounds": rounds, "parameters": parameters,
        "distribution": {"type": "uniform", "maxDelay": 1, "maxMsgsRec": 10},
        "topology": {"type": "complete", "initialPeers": n, "initialPeerType": peer},
    }  # fmt: skip
    return json.dumps({"algorithms": [], "experiments": [one]})


MODES: dict[str, str] = {
    "PBFTPeer": experiment_file("PBFTPeer", 4),
    "RaftPeer": experiment_file("RaftPeer", 3, rounds=120, timeout_spacing=4),  # in 30 many elect nobody
    "KademliaPeer": experiment_file("KademliaPeer", 8, rounds=120),
    "AltBitPeer": experiment_file("AltBitPeer", 2, timeOutRate=4),
    "BitcoinPeer": experiment_file("BitcoinPeer", 6, mineScaler=1),
}


def both_modes(peer: str, processes: int | None, seed: int) -> dict[str, Any]:
    """The same file in rounds and, until enough is decided, over sockets; a round there has 20 ms."""
    (found,) = parse(MODES[peer])
    begun = time.perf_counter()
    simulated = found.world(seed).run("rounds", limit=found.rounds)
    middle = time.perf_counter()
    live = found.world(seed, unit=0.02).run("live", until=enough, limit=20.0, processes=processes)
    return {
        "same": same(peer, simulated, live),
        "decisions": len(live.log) + len(live.operations),
        "simulated_seconds": middle - begun,
        "live_seconds": time.perf_counter() - middle,
    }


def enough(outcome: Outcome) -> bool:
    """Six decisions a node, or ten answers where nodes decide nothing."""
    answered = sum(operation.status == "ok" for operation in outcome.operations)
    return len(outcome.log) >= 6 * outcome.n or (not outcome.log and answered >= 10)


def same(peer: str, one: Outcome, other: Outcome) -> bool:
    """Whether two runs that went on for different numbers of steps decided the same, as far as both got.

    Logs and links: of each client, one sequence begins with the other. Lookups: equal answers to equal questions.
    Miners find different blocks in every run: all must agree within each.
    """
    if peer == "BitcoinPeer":
        return all(not run.conflicts and run.log for run in (one, other))
    if peer == "KademliaPeer":
        first, second = (
            {entry.key: entry.result[1] for entry in run.operations if entry.status == "ok"} for run in (one, other)
        )
        shared = first.keys() & second.keys()
        return bool(shared) and all(first[name] == second[name] for name in shared)
    pairs = [(_by_client(one, node), _by_client(other, node)) for node in one.correct]
    progress = max(min(sum(map(len, sides.values())) for sides in pair) for pair in pairs)
    agreed = (
        here[client][: len(there[client])] == there[client][: len(here[client])]
        for here, there in pairs for client in here.keys() & there.keys()
    )  # fmt: skip
    return progress >= 3 and all(agreed)


def _by_client(run: Outcome, node: int) -> dict[Any, list[Any]]:
    """A node's decisions in order, client by client: how several clients take turns is up to the schedule."""
    asked: dict[Any, list[Any]] = {}
    for entry in commands(run, node):
        asked.setdefault(entry[0] if isinstance(entry, tuple) else None, []).append(entry)
    return asked


# --------------------------------------------------------------------------------------------------- the study


def study(lab: Lab) -> Tables:
    """Parasites by power, lead and rule; PBFT under equivocators; Raft under crashes; links; both modes."""
    powers = lab.pick(quick=(1, 3, 4, 6, 8), full=(1, 2, 3, 4, 5, 6, 7, 8))
    often = lab.pick(quick=3, full=10)  # of a coalition of medium strength, whose share a claim has in points
    parasites = [
        {"rule": rule, "members": members, "lead": lead, "pace": 4,
         "tests": often if members in MEDIUM else lab.pick(quick=1, full=10)}
        for rule in RULES for members in powers for lead in (0, 1, 2, 3, 5)
    ]  # fmt: skip
    rounds = lab.pick(quick=150, full=500)
    most = lab.pick(quick=3, full=6)
    logs: dict[str, list[dict[str, Any]]] = {
        "pbft": [{"protocol": "pbft", "n": 19, "faulty": liars, "rounds": rounds} for liars in range(most + 1)],
        "raft": [{"protocol": "raft", "n": 20, "faulty": down, "rounds": 500} for down in (0, 5, 10, 15)],
        "safety": [{"protocol": "pbft", "n": 7, "faulty": liars, "rounds": 60} for liars in (1, 2, 3)],
    }
    transfers = [
        {"link": link, "disturbance": disturbance, "rounds": 400}
        for link in LINKS for disturbance in DISTURBANCES
    ]  # fmt: skip
    peers = lab.pick(quick=("PBFTPeer", "RaftPeer", "KademliaPeer"), full=tuple(MODES))
    modes = [{"peer": peer, "processes": lab.pick(quick=2, full=4)} for peer in peers]
    return {
        **{name: lab.run(replication, cases) for name, cases in logs.items()},
        "parasite": lab.run(withholding, parasites),
        "links": lab.run(transfer, transfers),
        # It starts processes itself.
        "modes": replace(lab.with_seeds(quick=1, full=3), workers=0).run(both_modes, modes),
    }


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """The parasite's share against its power, by lead and rule."""
    import altair as alt

    chosen = table.filter((pl.col("experiment") == "parasite") & (pl.col("pace") == 4))
    points = (
        chosen.with_columns(
            power=pl.col("members") / MINERS,
            lead=pl.when(pl.col("lead") == 0).then(pl.lit("honest")).otherwise(pl.col("lead").cast(pl.String)),
        )
        .group_by("rule", "power", "lead")
        .agg(pl.col("parasite_ratio").mean())
        .sort("rule", "lead", "power")
    )
    dashes = alt.Scale(domain=list(RULES), range=[[1, 0], [5, 3]])
    shares = (
        alt.Chart(points)
        .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1.5)
        .encode(
            x=alt.X("power:Q", title="share of the mining power", axis=alt.Axis(format="%")),
            y=alt.Y("parasite_ratio:Q", title="share of the chain", axis=alt.Axis(format="%")),
            color=alt.Color("lead:N", title="lead"),
            strokeDash=alt.StrokeDash("rule:N", scale=dashes, legend=None),
        )
    )
    fair = pl.DataFrame({"power": [0.0, 0.7], "share": [0.0, 0.7]})
    guide = alt.Chart(fair).mark_line(strokeDash=[2, 4], opacity=0.6, color="#7F7F7F").encode(x="power:Q", y="share:Q")
    what = "12 miners, 400 rounds; solid: longest chain, dashed: GHOST, grey: the fair share"
    title = alt.Title("What withholding brings", subtitle=what)
    chart: alt.LayerChart = (guide + shares).properties(width=560, height=340, title=title)
    return chart


# -------------------------------------------------------------------------------------------------- the claims


def pooled(members: tuple[int, ...], **where: Any) -> measures.Measure:
    """The parasite's share over all cases of a coalition's strength, every lead and rule that was tried.

    The leads are of our choice, and the share hangs on them far more than on the seed: they are what is observed.
    """

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, {"experiment": "parasite", "pace": 4, **where})
        chosen = chosen.filter(pl.col("members").is_in(members), pl.col("lead") > 0)
        leads = chosen.group_by("lead").agg(pl.col("parasite_ratio").mean()).sort("lead")
        told = ", ".join(f"{share:.0%} at a lead of {lead}" for lead, share in leads.iter_rows())
        return replace(intervals.bootstrap(leads["parasite_ratio"].to_list()), cases=told)

    return measure


def rising(table: pl.DataFrame) -> Estimate:
    """In how many of all steps to a larger coalition, rule by rule and lead by lead, the mean share grows."""
    chosen = measures.rows(table, {"experiment": "parasite", "pace": 4}).filter(pl.col("lead") > 0)
    means = chosen.group_by("rule", "lead", "members").agg(pl.col("parasite_ratio").mean()).sort("members")
    steps = [
        later >= earlier
        for _, group in means.group_by("rule", "lead", maintain_order=True)
        for earlier, later in zip(group["parasite_ratio"], group["parasite_ratio"][1:], strict=False)
    ]
    return intervals.clopper_pearson(sum(steps), len(steps))


def ghost_minus_longest(table: pl.DataFrame) -> Estimate:
    """The difference of the shares at medium power, case by case and seed by seed."""
    chosen = measures.rows(table, {"experiment": "parasite", "pace": 4})
    chosen = chosen.filter(pl.col("members").is_in(MEDIUM), pl.col("lead") > 0)
    seeds = chosen.group_by("rule", "seed").agg(pl.col("parasite_ratio").mean()).sort("seed")
    ghost, longest = (seeds.filter(pl.col("rule") == rule)["parasite_ratio"] for rule in ("ghost", "longest"))
    return intervals.bootstrap((ghost - longest).to_list())


def gain(table: pl.DataFrame) -> Estimate:
    """What withholding brings at a third of the power over honest mining, over every lead that was tried."""
    chosen = measures.rows(table, {"experiment": "parasite", "pace": 4, "rule": "longest", "members": 4})
    withheld, honest = (
        chosen.filter(which).group_by("seed").agg(pl.col("parasite_ratio").mean()).sort("seed")["parasite_ratio"]
        for which in (pl.col("lead") > 0, pl.col("lead") == 0)
    )
    times = intervals.ratio(withheld, honest)
    return Estimate(times.value - 1, times.low - 1, times.high - 1, times.n)


def replicas(agree: bool, liars: tuple[int, ...]) -> measures.Measure:
    """In which share of runs seven replicas agree, or two correct ones put different requests at one place."""

    def measure(table: pl.DataFrame) -> Estimate:
        runs = measures.rows(table, {"experiment": "safety"}).filter(pl.col("faulty").is_in(liars))
        return measures.share("held")(runs.with_columns(held=(pl.col("conflicts") == 0) == agree))

    return measure


def delivered(faithful: bool, **where: Any) -> measures.Measure:
    """In which share of runs a link delivers right, or does not."""

    def measure(table: pl.DataFrame) -> Estimate:
        runs = measures.rows(table, {"experiment": "links", **where})
        return measures.share("held")(runs.with_columns(held=pl.col("faithful") == faithful))

    return measure


claims = [
    Claim("two-modes", measures.share("same", experiment="modes"), evidence=Evidence.REAL),
    Claim("high", pooled((8,))),
    Claim("medium-ghost", pooled(MEDIUM, rule="ghost")),
    Claim("medium-longest", pooled(MEDIUM, rule="longest")),
    Claim("pbft", measures.change("throughput", new={"faulty": 3}, old={"faulty": 0}, experiment="pbft")),
    Claim(
        "rising",
        rising,
        asks="The parasite's share grows with every step to a larger coalition, by rule and lead.",
        kind=Kind.EVERY,
    ),
    Claim(
        "weak",
        pooled((1,)),
        asks="With one of the twelve peers the parasite has at most 10 % of the chain.",
        kind=Kind.AT_MOST,
        value=0.1,
        unit="share",
    ),
    Claim(
        "half",
        pooled((6,)),
        asks="With half of the peers the parasite has at least 50 % of the chain.",
        kind=Kind.AT_LEAST,
        value=0.5,
        unit="share",
    ),
    Claim(
        "ghost-longest",
        ghost_minus_longest,
        asks="GHOST leaves a parasite of medium strength more of the chain than the longest chain does.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
    Claim(
        "withholding",
        gain,
        asks="Withholding gives a third of the power more of the chain than honest mining, over all leads.",
        kind=Kind.CHANGE,
        toward="up",
    ),
    Claim(
        "agree",
        replicas(True, (1, 2)),
        asks="Up to two equivocators never make correct replicas of seven disagree in PBFT.",
        kind=Kind.EVERY,
    ),
    Claim(
        "disagree",
        replicas(False, (3,)),
        asks="Three equivocators make correct replicas of seven disagree in every run of PBFT.",
        kind=Kind.EVERY,
    ),
    Claim(
        "raft",
        measures.change("throughput", new={"faulty": 15}, old={"faulty": 0}, experiment="raft"),
        asks="Raft throughput falls when 15 of 20 servers crash once, against the fault-free run.",
        kind=Kind.CHANGE,
        toward="down",
    ),
    Claim(
        "alternating-bit",
        delivered(False, link="alternating-bit", disturbance="reorder"),
        asks="The alternating bit delivers wrongly in every run in which packets overtake one another.",
        kind=Kind.EVERY,
    ),
    Claim(
        "stabilising",
        delivered(True, link="stabilising", disturbance="rubbish"),
        asks="The stabilising link delivers right from a dirty start, after two messages, in every run.",
        kind=Kind.EVERY,
    ),
]
