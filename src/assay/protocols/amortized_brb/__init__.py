"""Amortised reliable broadcast: chain a sender's messages, so that one echo vouches for all that came before.

Reliable broadcast lets n nodes agree on what a sender said although fewer than a third of them, perhaps with the
sender, lie. Bracha's protocol pays n² echoes for each message. Here a stream of messages shares them: nodes vouch for
the tip of a chain of digests, to a few random nodes at a time, and the evidence for a message goes on growing while
later ones are sent. After a warm-up every new message costs one more round and O(n log n) digests; large messages cost
little more than sending them. :mod:`assay.protocols.amortized_brb.chained` is the protocol.

The mechanism is rebuilt from the abstract's bounds. One thing differs from the plainest reading: a node delivers at
2f + 1 *readies*, not at 2f + 1 echoes, because colluding nodes could otherwise complete one node's quorum and nobody
else's. The third version of the paper narrows the network to *random* asynchrony and shows that decisions by samples
are impossible with optimal resilience under a scheduler that may do anything; the study plays that scheduler against
the optimistic path, which does decide by samples.

Hu, Yao and Li, arXiv:2605.10372.

>>> from assay.protocols.kernel.world import World
>>> world = World(n=16, f=5, node=Chained, inputs=[[b"one", b"two"]], faults=forked(16, 5), seed=3)
>>> kept(world.run("async"), sent=None)
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.protocols.amortized_brb.chained import GENESIS, Chained, Links, digest
from assay.protocols.amortized_brb.rivals import Avid, HashedBracha, SampledBroadcast
from assay.protocols.faults import Crash
from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId
from assay.protocols.kernel.asynchronous import Asynchronous, Event, QuorumStarver, Random, Scheduler
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.random import key, stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.record.tables import Tables

evidence = Evidence.MODEL  # real nodes and real frames, counted bit by bit, on a simulated network
use_when = (
    "One node sends a long stream of large messages (blocks, checkpoints, model shards) to many others, some of which "
    "may lie, and a message may take many rounds as long as the stream flows."
)
avoid_when = (
    "Messages are few, or each must be delivered at once (Bracha takes three rounds, this some n/log n), or they are "
    "large and nodes a few dozen: at 64 kB hash-Bracha's digests weigh little too. Or the network may be scheduled by "
    "the enemy and the optimistic path is on: it then delivers different messages."
)
own_input = "assay protocol run assay.protocols.amortized_brb:Chained --n 16 --inputs '[[\"one\"]]' --mode async"
references = (
    "The base: Bracha, Asynchronous Byzantine Agreement Protocols, Information and Computation 1987.",
    "Erasure-coded broadcast: Cachin and Tessaro, Asynchronous Verifiable Information Dispersal, SRDS 2005.",
    "Sampled broadcast: Guerraoui et al., Scalable Byzantine Reliable Broadcast, DISC 2019.",
)

OPTIMISTIC = 3
"""Waves in a row that must agree on the optimistic path."""
SMALL, LARGE = 1_024, 65_536
"""Bytes of a message, the same for every method."""
WIDE = 64
"""From so many nodes on a sample (4 ln n of them) is a small part of all; with 16 it is 12 of 15, and no sample."""

METHODS: dict[str, Callable[..., Node]] = {
    "chained": Chained,
    "optimistic": partial(Chained, optimistic=OPTIMISTIC),
    "unsummed": partial(Chained, summaries=False),
    "hashed-bracha": HashedBracha,
    "avid": Avid,
    "sampled": SampledBroadcast,
}
STREAMS = ("chained", "optimistic", "unsummed")
RIVALS = ("hashed-bracha", "avid")
"""Broadcasts that bear as many faults."""
SAMPLERS = ("optimistic", "sampled")
"""Broadcasts that decide by samples."""
BEARABLE = ("silent", "equivocating-and-silent", "colluding")


# ------------------------------------------------------------------------------------------------ the adversary


def lie(body: bytes) -> bytes:
    """Another message of the same length."""
    return bytes([body[0] ^ 0xFF]) + body[1:] if body else b"\xff"


@dataclass
class Forked(Fault):
    """Keeps up two chains: the real one for some, a forged one for a camp; claims to be ready for both at once.

    As the sender's fault it splits the correct nodes; the others who have it vouch for whatever a node was told.
    """

    camp: Collection[NodeId]
    real: Links = field(default_factory=Links)
    forged: Links = field(default_factory=Links)
    twins: dict[bytes, bytes] = field(default_factory=lambda: {GENESIS: GENESIS})
    """Of each real tip, the forged one at the same place."""

    def _note(self, body: bytes, parent: bytes) -> None:
        if parent in self.twins:
            tip = self.real.add(parent, digest(body))
            self.twins[tip] = self.forged.add(self.twins[parent], digest(lie(body)))

    def on_recv(self, ctx: Ctx, src: NodeId, msg: Message) -> Sequence[tuple[NodeId, Message]]:
        """Learns the real chain."""
        match msg:
            case ("send", _, bytes(body), bytes(parent)):
                self._note(body, parent)
        return ((src, msg),)

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Sequence[tuple[NodeId, Message]]:
        """Tells everyone the chain of its camp."""
        match msg:
            case ("send", place, body, parent):
                self._note(body, parent)
                return ((to, ("send", place, lie(body), self.twins[parent]) if to in self.camp else msg),)
            case ("vouch", echo, _):
                tip = self.twins.get(echo, echo) if to in self.camp else echo
                return ((to, ("vouch", tip, tip)),)
        return ()  # nobody gets links or messages from it


def forked(n: int, faults: int) -> dict[NodeId, Fault]:
    """The sender and so many nodes in all, two-faced; every second correct node is in the camp of the forged chain."""
    camp = frozenset(range(faults, n, 2))
    return {node: Forked(camp) for node in range(faults)}


@dataclass
class TwoVoiced(Fault):
    """The same against `SampledBroadcast`: whoever subscribes to it hears what its camp was told, in every layer."""

    camp: Collection[NodeId]
    body: bytes
    sender: NodeId = 0

    def _told(self, node: NodeId) -> bytes:
        return lie(self.body) if node in self.camp else self.body

    def on_start(self, ctx: Ctx) -> None:
        """As the sender it signs two messages, one for each camp."""
        for peer in ctx.peers if ctx.id == self.sender else ():
            body = self._told(peer)
            ctx.send(peer, ("gossip", body, ctx.sign(digest(body))))

    def on_recv(self, ctx: Ctx, src: NodeId, msg: Message) -> Sequence[tuple[NodeId, Message]]:
        """Confirms to each what it was told."""
        if msg[0] == "subscribe":
            ctx.send(src, (msg[1], digest(self._told(src))))
        return ()

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Sequence[tuple[NodeId, Message]]:
        """The node inside is not heard."""
        return ()


class Divide(Random):
    """Camps that hear only themselves (and the nodes in no camp), as long as anything else can happen.

    After `heals` deliveries nothing is held back any more: every message arrives in the end, so it is a schedule that
    full asynchrony allows.
    """

    def __init__(self, camps: Sequence[Collection[NodeId]], seed: int = 0, heals: float = math.inf) -> None:
        super().__init__(seed)
        self.camp = {node: number for number, camp in enumerate(camps) for node in camp}
        self.heals = heals
        self.held = 0
        """Messages between camps: they are kept at the front of what is pending."""

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """Anything but what would cross."""
        if view.steps >= self.heals:
            return super().pick(pending, view)
        waiting: list[Event] = view.pending
        while self.held < len(waiting):
            place = self.held + int(self.word() * (len(waiting) - self.held))
            event = waiting[place]
            if self._crosses(event):
                waiting[place], waiting[self.held] = waiting[self.held], event
                self.held += 1
            elif event.src >= 0 or self.word() < self.timers:
                return place
        self.held -= 1
        return int(self.word() * len(waiting))

    def _crosses(self, event: Event) -> bool:
        camp = self.camp
        return event.src in camp and event.dst in camp and camp[event.src] != camp[event.dst]


def kept(outcome: Outcome, sent: Sequence[bytes] | None) -> bool:
    """Whether a stream was broadcast reliably.

    Agreement: no two correct nodes delivered different messages for a slot, and none delivered twice. Totality: what
    one delivered all delivered. Validity and integrity: if the sender is correct (`sent`), exactly what it sent.
    """
    delivered = [outcome.decisions[node] for node in outcome.correct]
    once = len(outcome.log) == len({(entry.node, entry.slot) for entry in outcome.log})
    agreed = once and not outcome.conflicts and all(one.keys() == delivered[0].keys() for one in delivered)
    return agreed and (sent is None or delivered[0] == dict(enumerate(sent, 1)))


# -------------------------------------------------------------------------------------------------- the trials


def _messages(count: int, size: int, seed: int) -> list[bytes]:
    random = stream(seed, "amortized-brb", "messages", size)
    return [random.bytes(size) for _ in range(count)]


def _world(
    method: str, n: int, messages: list[bytes], seed: int, faults: Mapping[NodeId, Fault] | None = None
) -> World:
    spoken: Any = messages if method in STREAMS else messages[0]
    return World(n=n, f=(n - 1) // 3, node=METHODS[method], inputs=[spoken], faults=faults or {}, seed=seed)


def _silent(n: int) -> dict[NodeId, Fault]:
    return {n - 1 - node: Crash() for node in range((n - 1) // 3)}


def cost(method: str, n: int, message: int, stream: int, seed: int) -> dict[str, Any]:
    """Bits that one broadcast takes, the warm-up and the end of a stream included."""
    count = stream if method in STREAMS else 1
    outcome = _world(method, n, _messages(count, message, seed), seed, {}).run("rounds")
    whole = sum(len(outcome.decisions[node]) for node in outcome.correct)
    bits = outcome.meter.bits / count
    return {
        "bits": bits,
        "bits_ratio": bits / (8 * n * message),
        "messages": outcome.meter.messages / count,
        "delivered_ratio": whole / (n * count),
    }


def latency(method: str, n: int, faults: str, seed: int) -> dict[str, Any]:
    """Rounds from sending to delivery, while the stream flows or is flushed; and how many were optimistic."""
    messages = _messages(4, 32, seed)
    chosen = _silent(n) if faults == "silent" else {}
    outcome = _world(method, n, messages, seed, chosen).run("rounds", metered=False)
    late = {(entry.node, entry.slot): entry.time for entry in outcome.log}
    rounds = {key: time - (key[1] - 1 if method in STREAMS else 0) for key, time in late.items()}  # type: ignore[operator]
    hoped = [rounds[node, slot] for node in outcome.correct for slot in getattr(outcome.nodes[node], "hoped", ())]
    expected = len(outcome.correct) * (len(messages) if method in STREAMS else 1)
    return {
        "rounds_mean": sum(rounds.values()) / len(rounds),
        "rounds_max": max(rounds.values()),
        "rounds_optimistic": sum(hoped) / len(hoped) if hoped else None,
        "optimistic_ratio": len(hoped) / len(rounds),
        "delivered_ratio": len(rounds) / expected,
    }


ATTACKS: dict[str, Callable[[int], dict[NodeId, Fault]]] = {
    "silent": _silent,
    "equivocating-and-silent": lambda n: forked(n, 1) | dict(list(_silent(n).items())[1:]),  # f in all
    "colluding": lambda n: forked(n, (n - 1) // 3),
    "one-too-many": lambda n: forked(n, (n - 1) // 3 + 1),
}


def _camps(n: int) -> list[set[NodeId]]:
    """The correct nodes as the two-faced ones divide them."""
    f = (n - 1) // 3
    return [set(range(f, n, 2)), set(range(f + 1, n, 2))]


def safety(n: int, faults: str, scheduler: str, runs: int, seed: int) -> dict[str, Any]:
    """Asynchronous runs in which all four properties held. What a schedule holds back arrives in the end."""
    schedules: dict[str, Callable[[int], Scheduler]] = {
        "random": Random, "starving": QuorumStarver, "dividing": lambda word: Divide(_camps(n), word, heals=200 * n),
    }  # fmt: skip
    held = 0
    for run in range(runs):
        chosen, word = ATTACKS[faults](n), key(seed, "safety", faults, scheduler, n, run)
        messages = _messages(3, 16, word)
        node = partial(Chained, spread=1.0)  # small samples, so that spreading is left to luck
        world = World(n=n, f=(n - 1) // 3, node=node, inputs=[messages], faults=chosen, seed=word)
        outcome = world.run("async", scheduler=schedules[scheduler](word), metered=False, limit=200_000)
        held += outcome.stopped == "quiet" and kept(outcome, messages if 0 not in chosen else None)
    return {"kept": held}


def adversary(method: str, scheduler: str, n: int, runs: int, seed: int) -> dict[str, Any]:
    """Under a schedule: runs with two different deliveries, and runs in which nobody gets everything in time.

    What decides by samples faces a two-faced sender with f - 1 friends; the quorum path, without summaries, an honest
    sender and no liars: its samples only have to wait.
    """
    violated = stalled = 0
    for run in range(runs):
        word = key(seed, "adversary", method, scheduler, run)
        messages = _messages(2 if method in STREAMS else 1, 16, word)
        chosen: dict[NodeId, Fault] = forked(n, (n - 1) // 3) if method == "optimistic" else {}
        if method == "sampled":
            chosen = {node: TwoVoiced(_camps(n)[0], messages[0]) for node in range((n - 1) // 3)}
        camps = _camps(n) if chosen else [set(range(0, n, 2)), set(range(1, n, 2))]
        picks = Divide(camps, word) if scheduler == "dividing" else Random(word)
        world = _world(method, n, messages, word, chosen)
        outcome = world.run("async", scheduler=picks, until=_over(len(messages)), metered=False, limit=400 * n)
        violated += bool(outcome.conflicts)
        stalled += outcome.stopped != "until" and not outcome.conflicts
    return {"violated": violated, "stalled": stalled}


def _over(count: int) -> Callable[[Outcome], bool]:
    """Everything delivered, or two different messages."""

    def over(outcome: Outcome) -> bool:
        return all(len(outcome.decisions[node]) == count for node in outcome.correct) or bool(outcome.conflicts)

    return over


def study(lab: Lab) -> Tables:
    """Bits, rounds, safety under attack, and what a hostile schedule does; beside four other broadcasts.

    All sizes are 3f + 1: there every correct vote is needed, which is the worst that optimal resilience can ask for.
    """
    sizes = lab.pick(quick=(16, 31, 64, 85), full=(16, 31, 64, 127, 256))
    bits = [
        {"method": method, "n": n, "message": message, "stream": lab.pick(quick=10, full=64)}
        for n in reversed(sizes)
        for method in ("chained", "hashed-bracha", "avid", "sampled")
        for message in lab.pick(quick=(SMALL, LARGE), full=(SMALL, 8_192, LARGE))
    ]
    rounds = [
        {"method": method, "n": n, "faults": faults}
        for n in reversed(lab.pick(quick=(16, 31, 64, 127, 160), full=(16, 31, 64, 127, 256, 511)))
        for method, faults in (("chained", "silent"), ("chained", "none"), ("optimistic", "none"))
    ]
    runs = lab.pick(quick=1, full=10)
    attacks = [
        {"n": n, "faults": faults, "scheduler": scheduler, "runs": runs}
        for n in (16, 13, 10, 7, 4)
        for faults in BEARABLE
        for scheduler in ("random", "starving", "dividing")
    ]
    beyond = [{"n": 10, "faults": "one-too-many", "scheduler": "random", "runs": 4 * runs}]
    schedules = [
        {"method": method, "scheduler": scheduler, "n": 31, "runs": 3 * runs}
        for method in (*SAMPLERS, "unsummed")
        for scheduler in ("random", "dividing")
    ]
    return {
        "bits": lab.with_seeds(quick=3, full=3).run(cost, bits),
        "latency": lab.with_seeds(quick=3, full=5).run(latency, rounds),
        "safety": lab.run(safety, [*attacks, *beyond]),
        "adversary": lab.run(adversary, schedules),
    }


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """Bits of one broadcast over n|m|, against n: one is what sending the message to everybody costs."""
    import altair as alt

    bits = table.filter(pl.col("experiment") == "bits", pl.col("message").is_in([SMALL, LARGE]))
    points = bits.group_by("method", "n", "message", maintain_order=True).agg(pl.col("bits_ratio").mean())
    log = alt.Scale(type="log", nice=False)
    lines = (
        alt.Chart(points)
        .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1.5)
        .encode(
            x=alt.X("n:Q", scale=log, title="nodes n"),
            y=alt.Y("bits_ratio:Q", scale=log, title="bits of a broadcast / n|m|"),
            color=alt.Color("method:N"),
            strokeDash=alt.StrokeDash("message:N", legend=None),
        )
    )
    floor = alt.Chart(pl.DataFrame({"y": [1.0]})).mark_rule(color="#7F7F7F", opacity=0.6).encode(y="y:Q")
    title = alt.Title(
        "What a broadcast costs",
        subtitle="Mean over seeds; at 1 a message is sent once to everybody; solid: 1 kB, dashed: 64 kB",
    )
    chart: alt.LayerChart = (floor + lines).properties(width=560, height=340, title=title)
    return chart


# -------------------------------------------------------------------------------------------------- the claims


def steeper(message: int) -> measures.Measure:
    """By how much hash-Bracha's exponent of bits in n is above the chain's at the same size, seed by seed."""

    def measure(table: pl.DataFrame) -> Estimate:
        seeds = measures.rows(table, {"experiment": "bits", "message": message}).partition_by("seed")
        ways = [measures.slope("n", "bits", method=method) for method in ("hashed-bracha", "chained")]
        found = [[way(one).value for way in ways] for one in seeds]
        return intervals.bootstrap([rival - own for rival, own in found])

    return measure


def saved(table: pl.DataFrame) -> Estimate:
    """The change of bits against hash-Bracha for large messages to the most nodes."""
    large = measures.rows(table, {"experiment": "bits", "message": LARGE})
    most = large.filter(pl.col("n") == pl.col("n").max())
    return measures.change("bits", new={"method": "chained"}, old={"method": "hashed-bracha"})(most)


def cheapest_everywhere(table: pl.DataFrame) -> Estimate:
    """The share of cells of the grid in which the chain takes fewer bits than each rival; a cell where it does not."""
    grid = measures.rows(table, {"experiment": "bits"}).filter(pl.col("method").is_in(("chained", *RIVALS)))
    means = grid.group_by("n", "message", "method").agg(pl.col("bits").mean())
    own = means.filter(pl.col("method") == "chained").rename({"bits": "own"}).drop("method")
    cells = means.filter(pl.col("method") != "chained").join(own, on=["n", "message"]).sort("n", "message", "method")
    lost = cells.filter(pl.col("own") >= pl.col("bits"))
    found = intervals.clopper_pearson(len(cells) - len(lost), len(cells))
    return replace(found, cases=_cell(lost.row(0, named=True)) if len(lost) else "")


def _cell(row: Mapping[str, Any]) -> str:
    return f"not at n = {row['n']}, {row['message']:,} bytes, against {row['method']}"


def growth(column: str, method: str, faults: str, x: pl.Expr | None = None) -> measures.Measure:
    """The exponent of rounds in n, or in another function of it, where samples are samples."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, {"experiment": "latency", "method": method, "faults": faults})
        wide = chosen.filter(pl.col("n") >= WIDE).with_columns(x=pl.col("n") if x is None else x)
        return measures.slope("x", column)(wide)

    return measure


def under_attack(table: pl.DataFrame) -> Estimate:
    """How often all properties held against attacks that can be borne; and one against which they did not."""
    runs = measures.rows(table, {"experiment": "safety"}).filter(pl.col("faults").is_in(BEARABLE))
    broken = runs.filter(pl.col("kept") < pl.col("runs"))
    first = broken.row(0, named=True) if len(broken) else {}
    text = f"broken: {first['faults']}, {first['scheduler']}, n = {first['n']}, seed {first['seed']}" if first else ""
    return replace(measures.probability("kept", "runs")(runs), cases=text)


def too_many(table: pl.DataFrame) -> Estimate:
    """The share of kept runs with f + 1 two-faced nodes less that with f, seed by seed, with ten nodes."""
    runs = measures.rows(table, {"experiment": "safety", "n": 10, "scheduler": "random"})
    return _difference(runs, "kept", "faults", "one-too-many", "colluding")


def _difference(runs: pl.DataFrame, column: str, by: str, one: str, other: str) -> Estimate:
    shares = [
        (rows[column] / rows["runs"]).to_numpy() for rows in (measures.rows(runs, {by: name}) for name in (one, other))
    ]
    return intervals.bootstrap(shares[0] - shares[1])


def felled(table: pl.DataFrame) -> Estimate:
    """The share of the broadcasts by samples that some run under the dividing schedule broke."""
    runs = measures.rows(table, {"experiment": "adversary", "scheduler": "dividing"})
    sums = runs.filter(pl.col("method").is_in(SAMPLERS)).group_by("method", maintain_order=True)
    found = sums.agg(pl.col("violated").sum(), pl.col("runs").sum()).rows()
    told = ", ".join(f"{method} broken in {violated} of {count} runs" for method, violated, count in found)
    return replace(
        intervals.clopper_pearson(sum(violated > 0 for _, violated, _ in found), len(found)), cases=told
    )  # fmt: skip


def stalls(table: pl.DataFrame) -> Estimate:
    """The share of stalled runs under the dividing schedule less that under the random one."""
    runs = measures.rows(table, {"experiment": "adversary", "method": "unsummed"})
    return _difference(runs, "stalled", "scheduler", "dividing", "random")


def never_split(table: pl.DataFrame) -> Estimate:
    """The share of attacked runs under random asynchrony in which the optimistic path did not contradict itself."""
    runs = measures.rows(table, {"experiment": "adversary", "method": "optimistic", "scheduler": "random"})
    return measures.probability("sound", "runs")(runs.with_columns(sound=pl.col("runs") - pl.col("violated")))


claims = [
    Claim("bits", measures.slope("n", "bits", experiment="bits", method="chained", message=LARGE)),
    Claim("rounds-worst", growth("rounds_mean", "chained", "silent")),
    Claim("rounds-optimistic", growth("rounds_optimistic", "optimistic", "none")),
    Claim("resilience", under_attack),
    Claim("committees", felled),
    Claim(
        "steeper-64k",
        steeper(LARGE),
        asks="Hash-Bracha's bits grow as a higher power of n than the chain's, both at 64 kB a message.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="exponent",
    ),
    Claim(
        "steeper-1k",
        steeper(SMALL),
        asks="Hash-Bracha's bits grow as a higher power of n than the chain's, both at 1 kB a message.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="exponent",
    ),
    Claim(
        "saved",
        saved,
        asks="A chained broadcast of 64 kB to the most nodes tried takes fewer bits than one by hash-Bracha.",
        kind=Kind.CHANGE,
        toward="down",
    ),
    Claim(
        "every-cell",
        cheapest_everywhere,
        asks="At every n and message size tried a chained broadcast takes fewer bits than hash-Bracha's and AVID's.",
        kind=Kind.EVERY,
    ),
    Claim(
        "quorum-rounds",
        growth("rounds_max", "chained", "none", x=pl.col("n") / pl.col("n").log()),
        asks="Without faults, rounds to the last delivery on the quorum path grow no faster than n / ln n.",
        kind=Kind.EXPONENT_AT_MOST,
        value=1.0,
    ),
    Claim(
        "optimistic-last",
        growth("rounds_max", "optimistic", "none"),
        asks="Rounds to the very last delivery, too, do not grow with the number of nodes on the optimistic path.",
        kind=Kind.EXPONENT,
        value=0.0,
    ),
    Claim(
        "one-too-many",
        too_many,
        asks="With one Byzantine node more than can be borne the four properties hold in fewer runs than without it.",
        kind=Kind.DIFFERENCE,
        toward="down",
        unit="share",
    ),
    Claim(
        "random-optimistic",
        never_split,
        asks="Under random asynchrony the optimistic path never delivers two different messages in the attacked runs.",
        kind=Kind.EVERY,
    ),
    Claim(
        "samples-alone",
        stalls,
        asks="Without summaries a schedule that divides the nodes stalls the quorum path more often than a random one.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
]
