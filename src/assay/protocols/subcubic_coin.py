"""A cheaper common coin without setup: toss a costly coin inside many small committees, and take the majority.

Agreement under asynchrony needs a coin that all nodes see alike and nobody knows beforehand. Without trusted setup the
known strong coins cost n³ messages and more. Here a strong coin of cost cᵏ is tossed only inside committees of size
c ~ n^(1/k), some n^(2 - 2/k) of them, drawn once and for all. Each publishes its bit along a sparse graph, n log n
messages a committee, and everybody takes the majority. An adversary who corrupts parties as it likes, after it saw the
committees and their bits, spoils about n^(1 - 1/k) of them; a majority of fair bits is off balance by about as
much times a constant, so the coin is common with constant probability. In total about n^(3 - 2/k) messages.
:mod:`assay.protocols.nodes.committee_coin` is the protocol, :mod:`assay.protocols.nodes.committees` counts it at sizes
that no message-by-message run of nodes could reach.

Parameters are rebuilt from the printed bounds. The constants (sizes of committees, tolerated missing bits) were chosen
on one seed so that the greedy adversary spoils fewer committees than a party does without.

Mizrahi Erbes and Wattenhofer, arXiv:2603.02071.

>>> plan = plan_for(256, k=4)
>>> plan.committees, plan.size, plan.missing
(4096, 64, 4)
>>> toss(plan, k=4, seed=1).fallen <= plan.missing
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.protocols.faults import Crash
from assay.protocols.interface import Fault, Message, NodeId
from assay.protocols.kernel import wire
from assay.protocols.kernel.asynchronous import Asynchronous, Event, Random, Scheduler
from assay.protocols.kernel.run import all_decided
from assay.protocols.kernel.world import World
from assay.protocols.nodes.aba import ABA
from assay.protocols.nodes.ben_or import BenOr
from assay.protocols.nodes.coins import IdealCoin
from assay.protocols.nodes.committee_coin import CommitteeCoin, ideal
from assay.protocols.nodes.committees import Bits, Plan, Tally, corrupt, fallen
from assay.protocols.nodes.strong_coin import StrongCoin
from assay.record import measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.random import key, stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL  # every message of publishing counted; inside large committees an ideal coin of declared cost
use_when = (
    "Hundreds or thousands of nodes must toss a common coin, or agree, with nobody to trust for keys, and a coin that "
    "is not common once in a while is acceptable, as it is for randomised agreement."
)
avoid_when = (
    "A trusted dealer for threshold signatures is at hand (n² messages then do), every single toss must be common, or "
    "n is small: with the committees used here one strong coin by everybody is cheaper below some 1,600 parties if it "
    "costs n⁴, and below some 70,000 if it costs n³."
)
own_input = "assay protocol run assay.protocols.nodes.strong_coin:StrongCoin --n 11 --f 2 --seeds 100"
references = (
    "Agreement with a pluggable coin: Mostefaoui, Moumen and Raynal, JACM 2015.",
    "Local coins: Ben-Or, Another Advantage of Free Choice, PODC 1983.",
)

KAPPA = 256
"""Bits of a digest."""


@dataclass(frozen=True)
class Setting:
    """What holds for a strong coin of cost cᵏ."""

    bears: float
    """The share of a committee that its coin bears."""
    faults: float
    """The share of all parties that may be corrupted."""
    size: float
    """Members of a committee over n^(1/k)."""


SETTINGS = {4: Setting(bears=1 / 4, faults=1 / 16, size=16), 3: Setting(bears=1 / 3, faults=0.08, size=12)}
MISSING = 1 / 16
"""Committees that a party does not wait for, over the square root of their number."""


def plan_for(n: int, k: int, seed: int = 0) -> Plan:
    """The committees for n parties and a strong coin of cost cᵏ."""
    if k not in SETTINGS:
        raise ValueError(f"no setting for a strong coin of cost c^{k}; k of {', '.join(map(str, SETTINGS))} expected")
    setting = SETTINGS[k]
    size = min(n, round(setting.size * n ** (1 / k)))
    return Plan(
        n=n, committees=round(n ** (2 - 2 / k)), size=size, links=min(size, math.ceil(2 * math.log(n))),
        missing=math.ceil(MISSING * n ** (1 - 1 / k)), faults=int(setting.faults * n), seed=seed,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- a toss, fully counted


@dataclass(frozen=True)
class Toss:
    """How one toss went, with an adversary who saw every committee's bit before it chose whom to corrupt."""

    plan: Plan
    tally: Tally
    corrupted: Bits
    fallen: int
    """Committees with more corrupted members than their coin bears."""

    @property
    def common(self) -> bool:
        """Whether all correct parties get the same bit, whatever the adversary does with what it may choose."""
        return verdict(self.plan, self.tally, self.corrupted)[1]

    @property
    def bit(self) -> int:
        """The bit of a common toss."""
        return verdict(self.plan, self.tally, self.corrupted)[0]


def toss(plan: Plan, k: int, seed: int, failure: float = 0.0) -> Toss:
    """One toss with ideal coins inside the committees; a coin fails (is the adversary's) with the given probability."""
    random = stream(seed, "subcubic-coin", "tosses")
    bits = random.integers(0, 2, plan.committees).astype(np.uint8)
    members = plan.members()
    most = math.ceil(SETTINGS[k].bears * plan.size) - 1
    leading = int(2 * int(bits.sum()) >= plan.committees)
    corrupted = corrupt(members, plan.n, plan.faults, most, (bits == leading).astype(np.uint8))
    down = fallen(members, corrupted, most)
    failed = (random.random(plan.committees) < failure).astype(np.uint8)
    tally = plan.tally(members, bits, corrupted, down | failed)
    return Toss(plan, tally, corrupted, int(down.sum()))


def verdict(plan: Plan, tally: Tally, corrupted: Bits) -> tuple[int, bool]:
    """The bit that most correct parties cannot be kept from, and whether the closing rounds make it everybody's.

    A party hears n - t majorities, of which t may come from liars; the misled ones among the correct lie too.
    """
    to_zero, to_one = tally.pushable(plan.missing)
    honest = corrupted == 0
    sure = [int((honest & (to_one == 0)).sum()), int((honest & (to_zero == 0)).sum())]
    bit = int(sure[1] > sure[0])
    misled = int(honest.sum()) - sure[bit]
    return bit, plan.n - 2 * plan.faults - misled > (plan.n - plan.faults) / 2


def closing(n: int, faults: int) -> int:
    """Messages of the last rounds when the correct parties hold one bit: each sends majority, bring and name to all.

    >>> closing(4, 1)
    27
    """
    return 3 * (n - faults) * (n - 1)


def _frames(tally: Tally) -> int:
    """Bits of the published messages, as they are on the wire."""
    width = {0: 0, 128: 0, 256: 0, 65_536: 0}
    for first in width:
        width[first] = wire.frame_bits(wire.encode(("publish", first, 1)))
    starts = list(width)
    stops = [*starts[1:], len(tally.sent)]
    pieces = zip(starts, stops, strict=True)
    return sum(width[first] * int(tally.sent[first:stop].sum()) for first, stop in pieces)


# --------------------------------------------------------------------------------------------------- schedulers


class Splitter(Scheduler):
    """Lets everybody go forward together and hear both bits: of messages of one causal depth, the rarer bit first.

    A node that goes on after n - f messages then sees as balanced a sample as there can be.
    """

    def __init__(self) -> None:
        self.left = 0

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """From a batch that is kept, in reverse order, at the front of what is pending."""
        if self.left == 0:
            self._batch(view.pending)
        self.left -= 1
        return self.left

    def _batch(self, waiting: list[Event]) -> None:
        depth = min(event.depth for event in waiting)
        batch = [event for event in waiting if event.depth == depth]
        rest = [event for event in waiting if event.depth != depth]
        count: dict[tuple[NodeId, Any], int] = {}
        for event in batch:
            spot = (event.dst, _value(event.msg))
            count[spot] = count.get(spot, 0) + 1
        batch.sort(key=lambda event: (-count[event.dst, _value(event.msg)], event.number))
        waiting[:] = batch + rest
        self.left = len(batch)


def _value(msg: Message) -> Any:
    while msg[0] == "/":
        msg = msg[2]
    return msg[-1]


# --------------------------------------------------------------------------------------------------- the trials


def cost(experiment: str, k: int, n: int, seed: int) -> dict[str, Any]:
    """One toss at size n: messages counted outside the committees, and the declared cᵏ inside."""
    plan = plan_for(n, k, seed)
    one = toss(plan, k, seed)
    inner = plan.committees * plan.size**k
    published, last = int(one.tally.sent.sum()), closing(n, plan.faults)
    small = wire.frame_bits(wire.encode(("majority", 1)))
    return {
        "messages": inner + published + last,
        "bits": inner * KAPPA + _frames(one.tally) + last * small,
        "counted": published + last,
        "published_by_log": published / math.log(n),
        "fallen": one.fallen,
        "missing": plan.missing,
        "fallen_ratio": one.fallen / plan.missing,
        "all_at_once": n**k,
    }


def commonness(experiment: str, k: int, n: int, tosses: int, seed: int) -> dict[str, dict[str, Any]]:
    """How often the coin is common, and how often it shows 1 then; also if parties did without far more committees."""
    plan = plan_for(n, k, seed)
    made = [toss(plan, k, key(seed, "commonness", k, number)) for number in range(tosses)]
    root = replace(plan, missing=round(math.sqrt(plan.committees)))
    return {
        "planned": _common(made),
        "root": _common([replace(one, plan=root) for one in made]),
    }


def _common(made: list[Toss]) -> dict[str, Any]:
    common = [one for one in made if one.common]
    return {"common": len(common), "ones": sum(one.bit for one in common)}


def inner_coin(experiment: str, n: int, runs: int, seed: int) -> dict[str, Any]:
    """The real strong coin in a group of n, f of them crashed: what it costs, and whether it is strong."""
    f = (n - 1) // 5
    same = ones = 0
    faults: dict[NodeId, Fault] = {node: Crash() for node in range(n - f, n)}
    for run in range(runs):
        number = key(seed, "inner", n, run)
        outcome = World(n=n, f=f, node=StrongCoin, faults=faults, seed=number).run("async", metered=False)
        found = outcome.decided()
        same += len(found) == n - f and len(set(found.values())) == 1
        ones += next(iter(found.values()), 0)
    whole = World(n=n, f=f, node=StrongCoin, seed=seed).run("rounds")
    meter = whole.meter
    return {"same": same, "ones": ones, "messages": meter.messages, "bits": meter.bits, "rounds": meter.rounds}


def latency(experiment: str, n: int, seed: int) -> dict[str, Any]:
    """Synchronous rounds of a whole toss, with real strong coins in committees of 2.5 n^(1/3)."""
    size = round(2.5 * n ** (1 / 3))
    plan = Plan(n, round(n ** (4 / 3)), size, min(size, 5), missing=1, faults=0, seed=seed)
    node = partial(CommitteeCoin, plan, StrongCoin, tolerance=0.2)
    outcome = World(n=n, f=0, node=node, seed=seed).run("rounds", metered=False, until=all_decided)
    return {"rounds": outcome.time, "decided": len(outcome.decided())}


def _coins(n: int, seed: int) -> dict[str, Any]:
    plan = Plan(n, committees=round(n**1.25), size=6, links=5, missing=2, faults=(n - 1) // 5, seed=seed)
    return {
        "committees": partial(ABA, partial(CommitteeCoin, plan, partial(ideal, seed))),
        "strong": partial(ABA, StrongCoin),
        "setup": partial(ABA, partial(IdealCoin, seed)),
        "local": BenOr,
    }


def agreement(experiment: str, method: str, n: int, scheduler: str, runs: int, seed: int) -> dict[str, Any]:
    """Rounds (coins tossed) until all have decided, from inputs that are split in two halves."""
    rounds, safe, messages = [], 0, 0
    for run in range(runs):
        number = key(seed, "agreement", method, n, run)
        inputs = [node % 2 for node in range(n)]
        world = World(n=n, f=(n - 1) // 5, node=_coins(n, number)[method], inputs=inputs, seed=number)
        picks = Splitter() if scheduler == "splitting" else Random(number)
        outcome = world.run("async", scheduler=picks, until=all_decided, metered=False, limit=3_000_000)
        safe += outcome.stopped == "until" and not outcome.conflicts
        messages += outcome.meter.deliveries
        rounds.append(max(node.round for node in outcome.nodes))  # type: ignore[attr-defined]
    return {"rounds_mean": sum(rounds) / runs, "safe": safe, "messages": messages / runs}


def study(lab: Lab) -> pl.DataFrame:
    """Messages against n, the greedy adversary, how often the coin is common, the real inner coin, agreement on top."""
    sizes = lab.pick(quick=(64, 128, 256, 400), full=(64, 128, 256, 512, 1024, 2048, 4096))
    costs = [{"experiment": "cost", "k": k, "n": n} for n in reversed(sizes) for k in (4, 3)]
    tosses = lab.pick(quick=10, full=100)
    common = [{"experiment": "commonness", "k": k, "n": 192, "tosses": tosses} for k in (4, 3)]
    small = ((13, 2), (11, 3), (8, 5), (6, 6))
    inner = [{"experiment": "inner", "n": n, "runs": lab.pick(quick=runs, full=20 * runs)} for n, runs in small]
    spans = [{"experiment": "latency", "n": n} for n in lab.pick(quick=(14, 8, 5), full=(64, 27, 14, 8, 5))]
    runs = lab.pick(quick=2, full=20)
    locals_ = lab.pick(quick=(16, 11, 6), full=(21, 16, 11, 6))
    agree: list[dict[str, Any]] = [
        *({"method": "local", "n": n, "scheduler": "splitting", "runs": runs} for n in locals_),
        *({"method": "committees", "n": n, "scheduler": "splitting", "runs": runs} for n in (16, 11, 6)),
        *({"method": method, "n": 6, "scheduler": "splitting", "runs": runs} for method in ("setup", "strong")),
        {"method": "committees", "n": 11, "scheduler": "random", "runs": runs},
    ]
    on_top = [{"experiment": "agreement", **case} for case in agree]
    tables = [
        lab.run(cost, costs),
        lab.run(commonness, common, per="variant"),
        lab.run(inner_coin, inner),
        lab.run(latency, spans),
        lab.run(agreement, on_top),
    ]
    return pl.concat(tables, how="diagonal_relaxed")


def plot(table: pl.DataFrame) -> alt.Chart:
    """Messages against n for both settings, outside the committees and in all, beside the strong coin by everybody."""
    import altair as alt

    costs = table.filter(pl.col("experiment") == "cost").with_columns(pl.col("k").cast(pl.Int64))
    kinds = {"messages": "committees, in all", "counted": "outside committees", "all_at_once": "one coin by all"}
    parts = [
        costs.select("n", "k", pl.lit(text).alias("what"), messages=pl.col(column).cast(pl.Float64))
        for column, text in kinds.items()
    ]
    points = pl.concat(parts).group_by("what", "k", "n").agg(pl.col("messages").mean()).sort("what", "k", "n")
    log = alt.Scale(type="log", nice=False)
    title = alt.Title(
        "What a toss costs", subtitle="Mean over seeds; solid: strong coin of declared cost c^3, dashed: c^4"
    )
    chart: alt.Chart = (
        alt.Chart(points)
        .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1.5)
        .encode(
            x=alt.X("n:Q", scale=log, title="parties n"),
            y=alt.Y("messages:Q", scale=log, title="messages of a toss", axis=alt.Axis(format="~e")),
            color=alt.Color("what:N"),
            strokeDash=alt.StrokeDash("k:N", legend=None),
        )
        .properties(width=560, height=340, title=title)
    )
    return chart


# --------------------------------------------------------------------------------------------------- the claims


def against_log(y: str, **where: Any) -> measures.Measure:
    """The exponent of y in ln n."""
    inner = measures.slope("log_n", y, **where)
    return lambda table: inner(table.with_columns(log_n=pl.col("n").log()))


def most(column: str, **where: Any) -> measures.Measure:
    """The largest value over all cases and seeds: no interval, it was looked at in each."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, where)
        value = float(chosen[column].max())  # type: ignore[arg-type]
        return Estimate(value, value, value, len(chosen))

    return measure


def slower(large: int, small: int) -> measures.Measure:
    """How many times more rounds Ben-Or needs under the splitter with so many nodes."""
    local = {"experiment": "agreement", "method": "local"}
    return measures.ratio("rounds_mean", of={**local, "n": large}, to={**local, "n": small})


claims = [
    Claim("messages", measures.slope("n", "messages", experiment="cost", k=4)),
    Claim("bits", measures.slope("n", "bits", experiment="cost", k=3)),
    Claim("transform", measures.probability("common", "tosses", experiment="commonness", variant="planned")),
    Claim("latency", against_log("rounds", experiment="latency")),
    Claim(
        "question-1",
        measures.slope("n", "published_by_log", experiment="cost", k=4),
        asks="messages outside the committees, over ln n, grow as n to this power for k = 4.",
        kind=Kind.LEVEL,
        value=(2.4 + 2.6) / 2,
        unit="?",
    ),
    Claim(
        "question-2",
        measures.slope("n", "published_by_log", experiment="cost", k=3),
        asks="messages outside the committees, over ln n, grow as n to this power for k = 3.",
        kind=Kind.LEVEL,
        value=(2.233 + 2.433) / 2,
        unit="?",
    ),
    Claim(
        "question-3",
        most("fallen_ratio", experiment="cost"),
        asks="a greedy adaptive adversary spoils at most this multiple of the committees that a party does without.",
        kind=Kind.AT_MOST,
        value=1.0,
        unit="?",
    ),
    Claim(
        "question-4",
        measures.probability("ones", "common", experiment="commonness", variant="planned"),
        asks="the coin shows 1 in this share of the common tosses.",
        kind=Kind.LEVEL,
        value=(0.35 + 0.65) / 2,
        unit="?",
    ),
    Claim(
        "question-5",
        measures.probability("common", "tosses", experiment="commonness", variant="root"),
        asks="a party that does without the root of the number of committees gets a common coin in this share of tosses.",
        kind=Kind.AT_MOST,
        value=0.5,
        unit="?",
    ),
    Claim(
        "question-6",
        measures.slope("n", "messages", experiment="inner"),
        asks="messages of the real strong coin of a small group grow as its size to this power.",
        kind=Kind.LEVEL,
        value=(2.8 + 3.4) / 2,
        unit="?",
    ),
    Claim(
        "question-7",
        measures.probability("same", "runs", experiment="inner"),
        asks="the real strong coin is common, with f crashed members, in this share of tosses.",
        kind=Kind.AT_LEAST,
        value=0.95,
        unit="?",
    ),
    Claim(
        "question-8",
        measures.mean("rounds_mean", experiment="agreement", method="committees", scheduler="splitting"),
        asks="agreement with the committee coin tosses this many coins on average under a splitting scheduler.",
        kind=Kind.AT_MOST,
        value=8.0,
        unit="?",
    ),
    Claim(
        "question-9",
        slower(16, 6),
        asks="agreement with local coins takes this many times more rounds with 16 nodes than with 6.",
        kind=Kind.RATIO,
        toward="up",
    ),
]
