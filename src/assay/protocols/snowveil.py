"""Snowveil: an electorate finds its winner by small polls, without anybody counting all ballots.

Every voter holds a ranking. Again and again a voter asks a few random others, applies a voting rule to the sample, and
once the same name has come up often enough in a row it settles, for good. A settled voter answers later polls with its
choice moved to the top. That is the whole trick: early doubts cancel out, and every decision tilts the next polls a
little further, until all have settled on what a count of the full profile would have announced; nearly always.

Any rule that likes a candidate no less when it moves up a ballot (positive responsiveness) can be plugged in; the paper
proposes Constrained Hybrid Borda. How a voter's patience falls, and CHB's parameters, are partly our own choice (the
paper's text was not at hand in full). The same mechanism runs as a compiled kernel for a million voters, and as a node
whose polls are messages.

Kotsialou, arXiv:2512.18444.

>>> from assay.workloads.ballots import two_camps
>>> electorate = two_camps(2000, 5, margin=0.1, seed=4)
>>> elect(electorate, seed=1) == [voting_rules.winner("chb", electorate.positions)]
True
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.protocols import voting_rules
from assay.protocols.preference_swarm import Outcome, average, discover, one_poll, snowball
from assay.protocols.snowveil_node import Lie, Voter
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.random import stream
from assay.workloads import ballots
from assay.workloads.ballots import Profile

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL  # the process is the thing itself; electorates are generated and said so in each row
use_when = (
    "Many peers must rank or choose together with no counter they all trust, a few percent between the leaders, and "
    "each can reach random others: the cost is some ten small polls a voter, whatever their number."
)
avoid_when = (
    "The leaders are a hair apart (the outcome is then a coin), more voters lie than the lead is wide, a sample can "
    "only come from one's own neighbourhood, or a proof of the count is needed."
)
own_input = "assay compare protocols --ballots election.soc --rule chb --sample 21"
references = (
    "Snowball: Rocket, Yin, Sekniqi, van Renesse and Sirer, Scalable and Probabilistic Leaderless BFT, 2019.",
    "Gossip averaging: Boyd, Ghosh, Prabhakar and Shah, IEEE Trans. Information Theory 52, 2006.",
)

CANDIDATES = 5
LEAD = 0.05  # the margin of first places at which the claims are asked
SAMPLE = 21  # odd: with an even sample two leaders tie often, and ties go by name


def elect(electorate: Profile, seats: int = 1, *, rule: str = "chb", sample: int = SAMPLE, seed: int = 0) -> list[int]:
    """The winners of so many rounds of Snowveil; a winner stands no more in the next round.

    >>> elect(ballots.mallows(500, [2, 0, 1], dispersion=0.2), seats=3)
    [2, 0, 1]
    """
    if not 1 <= seats <= len(electorate.names):
        raise ValueError(f"{seats} seats for {len(electorate.names)} candidates; at least 1 and at most all expected")
    left = list(range(len(electorate.names)))
    chosen: list[int] = []
    for seat in range(seats):
        found = discover(electorate.positions, rule=rule, sample=sample, seed=seed + seat).winner
        assert found is not None  # without a cap everybody settles
        chosen.append(left.pop(found))
        electorate = electorate.without(found)
    return chosen


WAYS: dict[str, Callable[[Profile, str, int, int], Outcome]] = {
    "snowveil": lambda profile, rule, k, seed: discover(profile.positions, rule=rule, sample=k, seed=seed),
    "snowball": lambda profile, rule, k, seed: snowball(profile.positions, sample=k, seed=seed),
    "gossip-borda": lambda profile, rule, k, seed: average(profile.positions, seed=seed),
    "one-poll": lambda profile, rule, k, seed: one_poll(profile.positions, rule=rule, sample=k, seed=seed),
}
"""By the ballots, the rule that counts a poll (not all ways have one), the voters in a poll and the seed."""


def answer(
    path: str | PathLike[str], *, rule: str = "chb", sample: int = SAMPLE, replicas: int = 100, seed: int = 0
) -> dict[str, Any]:
    """Snowveil and its rivals on the user's ballots (a PrefLib file): how often each finds the full count's winner."""
    electorate = ballots.read_ballots(path, seed)
    canonical = {name: voting_rules.winner(name, electorate.positions) for name in voting_rules.RULES}
    goal = canonical[rule] if rule in canonical else voting_rules.number(rule)
    table = []
    for way, play in WAYS.items():
        ends = [play(electorate, rule, sample, seed + replica) for replica in range(replicas)]
        found = intervals.clopper_pearson(sum(end.winner == goal for end in ends), replicas)
        table.append({
            "way": way, "replicas": replicas, "canonical_ratio": found.value, "canonical_low": found.low,
            "canonical_high": found.high, "agreement_mean": float(np.mean([end.agreement for end in ends])),
            "polls_per_voter": float(np.mean([end.polls for end in ends])) / electorate.voters,
        })  # fmt: skip
    return {
        "ballots": {
            "voters": electorate.voters,
            "candidates": len(electorate.names),
            "completed": electorate.completed,
        },
        "winners": {name: electorate.names[index] for name, index in canonical.items()},
        "table": table,
        "why": _why(table, electorate.names[goal], rule),
    }


def _why(table: list[dict[str, Any]], name: str, rule: str) -> str:
    own = table[0]
    best = max(table[1:], key=lambda row: (row["canonical_ratio"], row["agreement_mean"]))
    return (
        f"{name} wins the full count by {rule}. Snowveil finds that in {own['canonical_ratio']:.0%} of "
        f"{own['replicas']} runs, {own['polls_per_voter']:.3g} polls a voter, {own['agreement_mean']:.1%} agreeing; "
        f"{best['way']} in {best['canonical_ratio']:.0%} with {best['polls_per_voter']:.3g} a voter, "
        f"{best['agreement_mean']:.1%} agreeing."
    )


# ------------------------------------------------------------------------------------------- the study


def culture(name: str, n: int, margin: float, seed: int) -> Profile:
    """An electorate by name."""
    match name:
        case "two-camps":
            return ballots.two_camps(n, CANDIDATES, margin, seed)
        case "mallows":
            centre = stream(seed, "snowveil", "centre").permutation(CANDIDATES).tolist()
            return ballots.mallows(n, centre, 0.9, seed)
        case "plackett-luce":
            weights = stream(seed, "snowveil", "weights").permutation([1.3, 1.2, 1.0, 0.9, 0.8]).tolist()
            return ballots.plackett_luce(n, weights, seed)
        case "spatial":
            return ballots.spatial(n, CANDIDATES, seed)
        case "impartial":
            return ballots.impartial(n, CANDIDATES, seed)
        case "cycle":
            return ballots.cycle(n, 3)
    raise ValueError(f"no culture '{name}'")


def trial(
    experiment: str, culture_name: str, n: int, seed: int, margin: float = LEAD, sample: int = SAMPLE,
    rule: str = "chb", liars: float = 0.0, way: str = "snowveil", replicas: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Some elections, each with ballots of its own, by one way of agreeing."""
    right, settled, polls, agreement = 0, 0, [], []
    for replica in range(replicas):
        own_seed = seed * 100_003 + replica
        electorate = culture(culture_name, n, margin, own_seed)
        goal = voting_rules.winner(rule, electorate.positions)
        if way == "network":
            end = _over_the_network(electorate, sample, liars, goal, own_seed)
        elif way == "snowveil":
            rival = (goal + 1) % CANDIDATES if culture_name != "two-camps" else _runner_up(electorate, goal)
            end = discover(
                electorate.positions, rule=rule, sample=sample, liars=liars, target=rival, seed=own_seed,
                max_polls=1000 * n,
            )  # fmt: skip
        else:
            end = WAYS[way](electorate, rule, sample, own_seed)
        right += end.winner == goal
        settled += end.settled
        polls.append(end.polls)
        agreement.append(end.agreement)
    return {
        "right": right,
        "settled": settled,
        "polls_mean": float(np.mean(polls)),
        "polls_per_voter": float(np.mean(polls)) / n,
        "agreement_mean": float(np.mean(agreement)),
    }


def _runner_up(electorate: Profile, goal: int) -> int:
    firsts = np.bincount(electorate.orders[:, 0], minlength=len(electorate.names))
    firsts[goal] = -1
    return int(np.argmax(firsts))


def _over_the_network(electorate: Profile, sample: int, liars: float, goal: int, seed: int) -> Outcome:
    """The node, under the timed scheduler; a question and its answer are two messages."""
    from assay.protocols.kernel.world import World

    n = electorate.voters
    inputs = [tuple(order) for order in electorate.orders.tolist()]
    lying = stream(seed, "snowveil", "liars").permutation(n)[: int(liars * n)].tolist()
    faults = {node: Lie(_runner_up(electorate, goal)) for node in lying}
    world = World(n=n, node=partial(Voter, sample=sample), inputs=inputs, faults=faults, seed=seed)
    ended = world.run("timed", limit=600.0)
    decided = [value for node, value in ended.decided().items() if node not in faults]
    votes = np.bincount(decided, minlength=len(electorate.names)).astype(np.int64)
    return Outcome(votes, ended.meter.messages // (2 * sample), len(decided) == n - len(lying))


def study(lab: Lab) -> pl.DataFrame:
    """How polls grow with the voters; how success depends on sample, lead, rule and liars; and who else finds it."""

    def case(experiment: str, culture_name: str = "two-camps", n: int = 0, **what: Any) -> dict[str, Any]:
        given = {"margin": LEAD, "sample": SAMPLE, "rule": "chb", "liars": 0.0, "way": "snowveil"}
        return {"experiment": experiment, "culture_name": culture_name, "n": n or usual, "replicas": few} | given | what

    usual = lab.pick(quick=601, full=1001)
    few, many = lab.pick(quick=4, full=40), lab.pick(quick=80, full=200)
    top = lab.pick(quick=4.5, full=6.0)
    sizes = [case("size", n=round(10**p), replicas=1) for p in np.arange(top, 2.9, -0.5).tolist()]
    samples = [case("sample", n=501, sample=k, margin=0.02, replicas=many // 4) for k in (3, 5, 11, 21, 41)]
    leads = [case("lead", margin=lead, replicas=many if lead == LEAD else few) for lead in (0.0, 0.01, 0.02, LEAD, 0.1)]
    even = [case("even", n=501, sample=20, margin=0.02, replicas=many // 4)]
    rules = [case("rule", "mallows", rule=rule) for rule in voting_rules.RULES]
    lies = [case("liars", liars=share) for share in (0.0, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08)]
    rivals = [
        case("rivals", name, way=way, margin=0.05)
        for name in ("two-camps", "mallows", "plackett-luce", "spatial", "impartial", "cycle")
        for way in WAYS
    ]
    network = [case("network", n=lab.pick(quick=64, full=200), margin=0.3, way="network", replicas=2, liars=share)
               for share in (0.0, 0.1)]  # fmt: skip
    return lab.run(trial, [*sizes, *network, *leads, *samples, *even, *lies, *rivals, *rules])


def plot(table: pl.DataFrame) -> alt.HConcatChart:
    """How often the full count's winner is found: by sample, by lead, and as voters begin to lie."""
    import altair as alt

    panels = []
    for experiment, column, title in (
        ("sample", "sample", "voters asked in a poll (lead 2 %)"),
        ("lead", "margin", "lead in first places"),
        ("liars", "liars", "share of liars (lead 5 %)"),
    ):
        chosen = table.filter(pl.col("experiment") == experiment)
        points = chosen.group_by(column).agg((pl.col("right").sum() / pl.col("replicas").sum()).alias("found"))
        panels.append(
            alt.Chart(points.sort(column))
            .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1.5)
            .encode(
                x=alt.X(f"{column}:Q", title=title),
                y=alt.Y("found:Q", title="full count's winner found", scale=alt.Scale(domain=[0, 1])),
            )
            .properties(width=210, height=260)
        )
    chart: alt.HConcatChart = alt.hconcat(*panels).properties(title="Snowveil")
    return chart


# ------------------------------------------------------------------------------------------ the claims


def breaking_point(table: pl.DataFrame) -> Estimate:
    """The least share of liars with whom less than half of the runs find the full count's winner, over the lead."""
    shares = []
    for _, runs in measures.rows(table, {"experiment": "liars"}).group_by("seed", maintain_order=True):
        broken = runs.filter(pl.col("right") * 2 < pl.col("replicas"))["liars"]
        shares.append(float(broken.to_numpy().min()) / LEAD if len(broken) else 2.0)
    return intervals.bootstrap(shares)


def everywhere(successes: str, **where: Any) -> measures.Measure:
    """A probability over all runs of Snowveil itself, at any sample, lead and rule, without liars."""
    return measures.probability(successes, "replicas", liars=0.0, way="snowveil", **where)


claims = [
    Claim("interactions", measures.slope("n", "polls_mean", experiment="size")),
    Claim("winner", everywhere("right", experiment="lead", margin=LEAD)),
    Claim("finite", everywhere("settled")),
    Claim(
        "question-1",
        everywhere("right", experiment="sample", sample=3),
        asks="with a lead of two percent and three voters asked the same winner is found with probability.",
        kind=Kind.AT_MOST,
        value=0.99,
        unit="?",
    ),
    Claim(
        "question-2",
        everywhere("right", experiment="sample", sample=41),
        asks="with a lead of two percent and 41 voters asked the same winner is found with probability.",
        kind=Kind.AT_LEAST,
        value=0.9,
        unit="?",
    ),
    Claim(
        "question-3",
        everywhere("right", experiment="even"),
        asks="with an even sample, where ties go by name, the winner with two percent lead is found with probability only.",
        kind=Kind.AT_MOST,
        value=0.9,
        unit="?",
    ),
    Claim(
        "question-4",
        breaking_point,
        asks="liars win over half of the runs once they are this share of the lead.",
        kind=Kind.LEVEL,
        value=(0.5 + 1.5) / 2,
        unit="?",
    ),
    Claim(
        "question-5",
        measures.probability("right", "replicas", experiment="network", liars=0.1),
        asks="as nodes that exchange messages, 10 percent of them lying, the others find the winner with probability.",
        kind=Kind.AT_LEAST,
        value=0.5,
        unit="?",
    ),
]
