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
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.protocols.snowveil import voting_rules
from assay.protocols.snowveil.node import Lie, Voter
from assay.protocols.snowveil.preference_swarm import Outcome, average, discover, one_poll, snowball
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.random import key, stream
from assay.workloads import ballots
from assay.workloads.ballots import Profile

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.record.tables import Tables

evidence = Evidence.REAL  # the process is the thing itself; electorates are generated and said so in each row
use_when = (
    "Many peers must rank or choose together with no counter they all trust, a few percent between the leaders, and "
    "each can reach random others: the cost is some ten small polls a voter, whatever their number."
)
avoid_when = (
    "Only first choices matter (Snowball with a fitting quorum agrees sooner), everybody is honest (averaging Borda "
    "points by gossip is cheaper), the leaders are a hair apart (the outcome is then a coin), more voters lie than the "
    "lead is wide, a sample can only come from one's own neighbourhood, or a proof of the count is needed."
)
own_input = "assay compare protocols --ballots examples/election.soc --rule chb --sample 21"
references = (
    "Snowball: Rocket, Yin, Sekniqi, van Renesse and Sirer, Scalable and Probabilistic Leaderless BFT, 2019.",
    "Gossip averaging: Boyd, Ghosh, Prabhakar and Shah, IEEE Trans. Information Theory 52, 2006.",
)

CANDIDATES = 5
LEAD = 0.05  # the margin of first places at which the claims are asked
SAMPLE = 21  # odd: with an even sample two leaders tie often, and ties go by name
SAMPLES = (3, 5, 11, 21, 41, 81)
MOST_POLLS = 1000  # a voter, on average; who has not settled by then counts as one who never does


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
    "one-long-poll": lambda profile, rule, k, seed: one_poll(
        profile.positions, rule=rule, sample=min(10 * k, profile.voters - 1), seed=seed
    ),
}
"""By the ballots, the rule that counts a poll (not all ways have one), the voters in a poll and the seed.

The long poll asks as many at once as Snowveil asks in all its polls, about ten a voter.
"""


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


CULTURES = ("two-camps", "mallows", "plackett-luce", "spatial", "impartial", "cycle")
QUORUMS = (1.0, 1.25, 1.5, 2.0, 2.5)  # over an even split of a poll
STREAKS = (3, 6, 12)


def tune(culture_name: str, n: int, rule: str, replicas: int, seed: int) -> dict[str, dict[str, Any]]:
    """Snowball at each of its settings, on electorates of its own: the share of voters that end with the winner."""
    found: dict[str, dict[str, Any]] = {
        f"{quorum}/{streak}": {"quorum": quorum, "streak": streak, "holders_mean": 0.0}
        for quorum in QUORUMS
        for streak in STREAKS
    }
    for replica in range(replicas):
        own_seed = key(seed, "snowveil", "tuning", culture_name, replica)
        electorate = culture(culture_name, n, LEAD, own_seed)
        goal = voting_rules.winner(rule, electorate.positions)
        for setting in found.values():
            end = _snowball(electorate, SAMPLE, setting["quorum"], setting["streak"], own_seed)
            setting["holders_mean"] += end.votes[goal] / n / replicas
    return found


def _snowball(electorate: Profile, sample: int, quorum: float, streak: int, seed: int) -> Outcome:
    share = min(1.0, quorum / len(electorate.names))
    return snowball(electorate.positions, sample=sample, quorum=share, streak=streak, seed=seed)


def trial(
    culture_name: str, n: int, seed: int, margin: float = LEAD, sample: int = SAMPLE,
    rule: str = "chb", liars: float = 0.0, way: str = "snowveil", quorum: float = 1.5, streak: int = 6,
    replicas: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Some elections, each with ballots of its own, by one way of agreeing; `quorum` and `streak` are Snowball's."""
    right, settled, polls, holders = 0, 0, [], []
    for replica in range(replicas):
        own_seed = key(seed, "snowveil", "election", culture_name, replica)
        electorate = culture(culture_name, n, margin, own_seed)
        goal = voting_rules.winner(rule, electorate.positions)
        if way == "network":
            end = _over_the_network(electorate, sample, liars, goal, own_seed)
        elif way == "snowball":
            end = _snowball(electorate, sample, quorum, streak, own_seed)
        elif way == "snowveil":
            end = discover(
                electorate.positions, rule=rule, sample=sample, liars=liars, target=_runner_up(electorate, goal),
                seed=own_seed, max_polls=MOST_POLLS * n,
            )  # fmt: skip
        else:
            end = WAYS[way](electorate, rule, sample, own_seed)
        right += end.winner == goal
        settled += end.settled
        polls.append(end.polls)
        holders.append(end.votes[goal] / (n - int(liars * n)))
    return {
        "right": right,
        "settled": settled,
        "polls_mean": float(np.mean(polls)),
        "polls_per_voter": float(np.mean(polls)) / n,
        "holders_mean": float(np.mean(holders)),
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


def study(lab: Lab) -> Tables:
    """How polls grow with the voters; how success depends on sample, lead, rule and liars; and who else finds it.

    Snowball gets the setting that serves it best with each kind of electorate and rule, found on other electorates.
    """

    def case(culture_name: str = "two-camps", n: int = 0, **what: Any) -> dict[str, Any]:
        given = {"margin": LEAD, "sample": SAMPLE, "rule": "chb", "liars": 0.0, "way": "snowveil"}
        return {"culture_name": culture_name, "n": n or usual, "replicas": few} | given | what

    usual = lab.pick(quick=601, full=1001)
    few, many = lab.pick(quick=4, full=10), lab.pick(quick=20, full=50)
    top = lab.pick(quick=4.5, full=6.0)
    kinds = [(name, rule) for name in CULTURES for rule in ("chb", "plurality")]
    tunings = [{"culture_name": name, "n": usual, "rule": rule, "replicas": few} for name, rule in kinds]
    best = tuned(lab.with_seeds(quick=3, full=10).run(tune, tunings, per="setting"))
    sizes = [case(n=round(10**p), replicas=1) for p in np.arange(top, 2.9, -0.5).tolist()]
    samples = [case(n=501, sample=k, margin=0.02, replicas=many) for k in (*SAMPLES, 20)]
    leads = [case(margin=lead) for lead in (0.0, 0.01, 0.02, LEAD, 0.1)]
    lies = [case(liars=share) for share in (0.0, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08)]
    often = {"spatial": 4 * few}  # there elections differ most
    rules = [
        case(name, rule=rule, replicas=often.get(name, few))
        for name in CULTURES for rule in voting_rules.RULES
    ]  # fmt: skip
    rivals = [
        case(name, rule=rule, way=way, replicas=often.get(name, few),
             **(best[name, rule] if way == "snowball" else {}))
        for name, rule in kinds for way in WAYS if way != "snowveil"
    ]  # fmt: skip
    network = [case(n=lab.pick(quick=64, full=200), margin=0.3, way="network", replicas=2, liars=share)
               for share in (0.0, 0.1)]  # fmt: skip
    cases = {
        "size": sizes, "network": network, "lead": leads, "sample": samples, "liars": lies, "rivals": rivals + rules,
    }  # fmt: skip
    return {name: lab.run(trial, some) for name, some in cases.items()}


def tuned(table: pl.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """Snowball's best setting for each kind of electorate and rule; of equals the shortest streak."""
    means = table.group_by("culture_name", "rule", "quorum", "streak").agg(pl.col("holders_mean").mean().round(6))
    ranked = means.sort("holders_mean", "streak", "quorum", descending=[False, True, True])
    return {
        (name, rule): {"quorum": quorum, "streak": streak} for name, rule, quorum, streak, _ in ranked.iter_rows()
    }  # the last of each is the best


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
                y=alt.Y("found:Q", title="share found", scale=alt.Scale(domain=[0, 1])),
            )
            .properties(width=210, height=260)
        )
    head = alt.Title("How often Snowveil finds the full count's winner", subtitle="Share of elections")
    chart: alt.HConcatChart = alt.hconcat(*panels).properties(title=head)
    return chart


# ------------------------------------------------------------------------------------------ the claims


def gap(one: dict[str, Any], other: dict[str, Any], column: str = "holders_mean", **where: Any) -> measures.Measure:
    """The difference of a share between two ways or settings, over all kinds of electorate, seed by seed."""

    def measure(table: pl.DataFrame) -> Estimate:
        sides = [
            measures.rows(table, {**where, **side}).group_by("seed").agg(pl.col(column).mean()).sort("seed")[column]
            for side in (one, other)
        ]
        return intervals.bootstrap((sides[0] - sides[1]).to_list())

    return measure


def all_settled(table: pl.DataFrame) -> Estimate:
    """The share of Snowveil's elections in which every voter settled; and one in which not."""
    runs = measures.rows(table, {"way": "snowveil"})
    open_ = runs.filter(pl.col("settled") < pl.col("replicas"))
    first = open_.row(0, named=True) if len(open_) else {}
    text = f"not with {first['rule']}, {first['culture_name']}, seed {first['seed']}" if first else ""
    return replace(measures.probability("settled", "replicas")(runs), cases=text)


def never_behind(way: str, rule: str = "chb") -> measures.Measure:
    """The share of kinds of electorate in which at least as many hold the winner as by another way."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = measures.rows(table, {"experiment": "rivals", "rule": rule})
        means = rows.group_by("culture_name", "way").agg(pl.col("holders_mean").mean()).sort("culture_name")
        own, other = (means.filter(pl.col("way") == name)["holders_mean"].to_list() for name in ("snowveil", way))
        names = means.filter(pl.col("way") == way)["culture_name"].to_list()
        behind = [case for case in zip(names, own, other, strict=True) if case[1] < case[2]]
        text = "; ".join(f"{name}: {one:.3f} and {another:.3f}" for name, one, another in behind)
        return replace(intervals.clopper_pearson(len(names) - len(behind), len(names)), cases=text)

    return measure


claims = [
    Claim("interactions", measures.slope("n", "polls_mean", experiment="size")),
    Claim(
        "winner",
        measures.best({f"{k} asked": measures.mean("holders_mean", experiment="sample", sample=k) for k in SAMPLES}),
    ),
    Claim("finite", all_settled),
    Claim(
        "snowball",
        never_behind("snowball"),
        asks="In every kind of electorate as many voters hold the winner with Snowveil as with Snowball, well set.",
        kind=Kind.EVERY,
    ),
    Claim(
        "snowball-firsts",
        gap({"way": "snowveil"}, {"way": "snowball"}, experiment="rivals", rule="plurality"),
        asks="Where only first choices count, more voters hold the winner with Snowveil than with Snowball, well set.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
    Claim(
        "ranks",
        gap({"way": "snowveil"}, {"way": "snowball"}, experiment="rivals", rule="chb", culture_name="spatial"),
        asks="Where voters rank by distance, more hold CHB's winner with Snowveil than with Snowball, well set.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
    Claim(
        "gossip",
        never_behind("gossip-borda"),
        asks="In every kind of electorate as many hold the winner with Snowveil as after gossip that averages points.",
        kind=Kind.EVERY,
    ),
    Claim(
        "long-poll",
        gap({"way": "snowveil"}, {"way": "one-long-poll"}, experiment="rivals", rule="chb"),
        asks="More voters hold the winner with Snowveil than after one poll that asks ten times as many.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
    Claim(
        "larger-sample",
        gap({"sample": 41}, {"sample": 3}, experiment="sample"),
        asks="With a lead of 2 % more voters hold the winner if each poll asks 41 than if it asks 3.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
    Claim(
        "even-sample",
        gap({"sample": 20}, {"sample": 21}, experiment="sample"),
        asks="With an even sample, where ties go by name, fewer voters hold the winner than with an odd one.",
        kind=Kind.DIFFERENCE,
        toward="down",
        unit="share",
    ),
    Claim(
        "liars",
        gap({"liars": 0.05}, {"liars": 0.0}, experiment="liars"),
        asks="With as many liars as the lead is wide fewer voters hold the winner than without.",
        kind=Kind.DIFFERENCE,
        toward="down",
        unit="share",
    ),
    Claim(
        "network",
        measures.probability("right", "replicas", experiment="network", liars=0.1),
        asks="As nodes that exchange messages, 10 % of them lying, most others find the winner with a lead of 30 %.",
        kind=Kind.EVERY,
    ),
]
