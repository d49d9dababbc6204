"""Amortised reliable broadcast: chain a sender's messages, so that one echo vouches for all that came before.

Reliable broadcast lets n nodes agree on what a sender said although fewer than a third of them, perhaps with the
sender, lie. Bracha's protocol pays n² echoes for each message. Here a stream of messages shares them: nodes vouch for
the tip of a chain of digests, to a few random nodes at a time, and the evidence for a message goes on growing while
later ones are sent. After a warm-up every new message costs one more round and O(n log n) digests; large messages cost
little more than sending them. :mod:`assay.protocols.nodes.chained` is the protocol.

The mechanism is rebuilt from the abstract's bounds. One thing differs from the plainest reading: a node delivers at
2f + 1 *readies*, not at 2f + 1 echoes, because colluding nodes could otherwise complete one node's quorum and nobody
else's. The third version of the paper narrows the network to *random* asynchrony and shows that decisions by samples
are impossible with optimal resilience under a scheduler that may do anything; the study plays that scheduler against
the optimistic path, which does decide by samples.

Hu, Yao and Li, arXiv:2605.10372.

>>> from assay.protocols.kernel.world import World
>>> world = World(n=16, f=5, node=Chained, inputs=[[b"one", b"two"]], faults=two_faced(16, 5), seed=3)
>>> kept(world.run("async"), sent=None)
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.protocols.faults import Crash
from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId
from assay.protocols.kernel.asynchronous import Asynchronous, Event, Random
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.protocols.nodes.avid import Avid
from assay.protocols.nodes.bracha import Bracha
from assay.protocols.nodes.chained import Chained
from assay.protocols.nodes.hashed_bracha import HashedBracha
from assay.protocols.nodes.sampled_broadcast import SampledBroadcast
from assay.protocols.nodes.vouching import GENESIS, Links, digest
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.random import key, stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL  # real nodes and real frames, counted bit by bit, on a simulated network
use_when = (
    "One node sends a long stream of large messages (blocks, checkpoints, model shards) to many others, some of which "
    "may lie, and a message may take many rounds as long as the stream flows."
)
avoid_when = (
    "Messages are few, or each must be delivered at once (Bracha takes three rounds, this some n/log n), or the "
    "network may be scheduled by the enemy and the optimistic path is on: it then delivers different messages."
)
own_input = (
    'World(n=16, node=Chained, inputs=[[b"one", b"two"]]).run("async").decisions, or a single message: '
    "assay protocol run assay.protocols.nodes.chained:Chained --n 16 --inputs '[[\"one\"]]' --mode async"
)
references = (
    "The base: Bracha, Asynchronous Byzantine Agreement Protocols, Information and Computation 1987.",
    "Erasure-coded broadcast: Cachin and Tessaro, Asynchronous Verifiable Information Dispersal, SRDS 2005.",
    "Sampled broadcast: Guerraoui et al., Scalable Byzantine Reliable Broadcast, DISC 2019.",
)

OPTIMISTIC = 3
"""Waves in a row that must agree on the optimistic path."""
LARGE, SMALL = 65_536, 1_024
"""Bytes of a message."""

METHODS: dict[str, Callable[..., Node]] = {
    "chained": Chained,
    "optimistic": partial(Chained, optimistic=OPTIMISTIC),
    "unsummed": partial(Chained, summaries=False),
    "bracha": Bracha,
    "hashed-bracha": HashedBracha,
    "avid": Avid,
    "sampled": SampledBroadcast,
}
STREAMS = ("chained", "optimistic", "unsummed")


# ------------------------------------------------------------------------------------------------ the adversary


def lie(body: bytes) -> bytes:
    """Another message of the same length."""
    return bytes([body[0] ^ 0xFF]) + body[1:] if body else b"\xff"


@dataclass
class TwoFaced(Fault):
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


def two_faced(n: int, faults: int) -> dict[NodeId, Fault]:
    """The sender and so many nodes in all, two-faced; every second correct node is in the camp of the forged chain."""
    camp = frozenset(range(faults, n, 2))
    return {node: TwoFaced(camp) for node in range(faults)}


class Divide(Random):
    """Camps that hear only themselves (and the nodes in no camp), as long as anything else can happen.

    Every message arrives in the end, so it is a schedule that full asynchrony allows.
    """

    def __init__(self, camps: Sequence[Collection[NodeId]], seed: int = 0) -> None:
        super().__init__(seed)
        self.camp = {node: number for number, camp in enumerate(camps) for node in camp}
        self.held = 0
        """Messages between camps: they are kept at the front of what is pending."""

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """Anything but what would cross."""
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


def cost(experiment: str, method: str, n: int, message: int, stream: int, seed: int) -> dict[str, Any]:
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


def latency(experiment: str, method: str, n: int, faults: str, seed: int) -> dict[str, Any]:
    """Rounds from sending to delivery, while the stream flows or is flushed."""
    messages = _messages(4, 32, seed)
    chosen = _silent(n) if faults == "silent" else {}
    outcome = _world(method, n, messages, seed, chosen).run("rounds", metered=False)
    rounds = [entry.time - (entry.slot - 1 if method in STREAMS else 0) for entry in outcome.log]  # type: ignore[operator]
    expected = len(outcome.correct) * (len(messages) if method in STREAMS else 1)
    return {
        "rounds_mean": sum(rounds) / len(rounds),
        "rounds_max": max(rounds),
        "delivered_ratio": len(rounds) / expected,
    }


def safety(experiment: str, n: int, faults: str, runs: int, seed: int) -> dict[str, Any]:
    """Runs under random asynchrony in which all four properties held."""
    f = (n - 1) // 3
    adversaries: dict[str, Callable[[], dict[NodeId, Fault]]] = {
        "silent": lambda: _silent(n),
        "equivocating-and-silent": lambda: _silent(n) | two_faced(n, 1),
        "colluding": lambda: two_faced(n, f),
        "one-too-many": lambda: two_faced(n, f + 1),
    }
    held = 0
    for run in range(runs):
        chosen = adversaries[faults]()
        if faults == "equivocating-and-silent":
            del chosen[n - 1]  # f faults in all
        messages = _messages(3, 16, seed)
        number = key(seed, "safety", faults, run)
        node = partial(Chained, spread=1.0)  # small samples, so that spreading is left to luck
        world = World(n=n, f=f, node=node, inputs=[messages], faults=chosen, seed=number)
        outcome = world.run("async", scheduler=Random(number), metered=False, limit=200_000)
        held += outcome.stopped == "quiet" and kept(outcome, messages if 0 not in chosen else None)
    return {"kept": held}


def adversary(experiment: str, method: str, scheduler: str, n: int, runs: int, seed: int) -> dict[str, Any]:
    """Under a schedule: runs with two different deliveries, and runs in which nobody gets everything in time.

    The optimistic path faces a two-faced sender with f - 1 friends; the quorum path, without summaries, an honest
    sender and silent nodes, which only have to wait.
    """
    f, violated, stalled = (n - 1) // 3, 0, 0
    for run in range(runs):
        number = key(seed, "adversary", method, scheduler, run)
        chosen: dict[NodeId, Fault] = two_faced(n, f) if method == "optimistic" else {}
        camp = set(range(f, n, 2))
        rest = set(range(f, n)) - camp if method == "optimistic" else set(range(n)) - camp
        picks = Divide([camp, rest], number) if scheduler == "dividing" else Random(number)
        world = _world(method, n, _messages(2, 16, seed), number, chosen)
        outcome = world.run("async", scheduler=picks, until=_over(2), metered=False, limit=400 * n)
        violated += bool(outcome.conflicts)
        stalled += outcome.stopped != "until" and not outcome.conflicts
    return {"violated": violated, "stalled": stalled, "broken": violated + stalled}


def _over(count: int) -> Callable[[Outcome], bool]:
    """Everything delivered, or two different messages."""

    def over(outcome: Outcome) -> bool:
        return all(len(outcome.decisions[node]) == count for node in outcome.correct) or bool(outcome.conflicts)

    return over


def _hashed(method: str, n: int, message: int) -> float:
    """Bytes of the message that a metered run of one broadcast handles, about: whether it can be simulated."""
    copies = {"bracha": 2 * n * n, "sampled": n * 4 * math.log(n), "avid": 8 * n}
    return message * copies.get(method, n)


def study(lab: Lab) -> pl.DataFrame:
    """Bits, rounds, safety under attack, and what a hostile schedule does; beside four other broadcasts."""
    sizes = lab.pick(quick=(16, 32, 48, 80), full=(16, 32, 64, 128, 256, 512))
    bytes_each = lab.pick(quick=(SMALL, LARGE), full=(SMALL, LARGE, 1_048_576))
    length = lab.pick(quick=12, full=64)
    bits = [
        {"experiment": "bits", "method": method, "n": n, "message": message, "stream": length}
        for n in reversed(sizes)
        for method in ("chained", "hashed-bracha", "avid", "sampled", "bracha")
        for message in bytes_each
        if _hashed(method, n, message) <= lab.pick(quick=2**24, full=2**27)
    ]
    spans = lab.pick(quick=(16, 32, 64, 128), full=sizes)
    wide = lab.pick(quick=(64, 128, 256), full=(64, 128, 256, 512))  # below, the quorum path is the faster one
    rounds = [
        *({"experiment": "latency", "method": "chained", "n": n, "faults": "silent"} for n in reversed(spans)),
        *({"experiment": "latency", "method": "chained", "n": n, "faults": "none"} for n in reversed(sizes)),
        *({"experiment": "latency", "method": "optimistic", "n": n, "faults": "none"} for n in reversed(wide)),
        *({"experiment": "latency", "method": "bracha", "n": n, "faults": "none"} for n in reversed(spans)),
    ]
    attacks = [
        {"experiment": "safety", "n": 10, "faults": faults, "runs": lab.pick(quick=runs, full=25 * runs)}
        for faults, runs in (
            ("equivocating-and-silent", 40), ("colluding", 6), ("silent", 6), ("one-too-many", 5),
        )
    ]  # fmt: skip
    schedules = [
        {
            "experiment": "adversary",
            "method": method,
            "scheduler": scheduler,
            "n": 16,
            "runs": lab.pick(quick=6, full=100),
        }
        for method in ("optimistic", "unsummed")
        for scheduler in ("random", "dividing")
    ]
    tables = [lab.run(cost, bits), lab.run(latency, rounds), lab.run(safety, attacks), lab.run(adversary, schedules)]
    return pl.concat(tables, how="diagonal_relaxed")


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


def worst_ratio(method: str) -> measures.Measure:
    """The largest bits/(n|m|) over n for large messages: the mean over seeds of the worst size."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, {"experiment": "bits", "method": method}).filter(pl.col("message") >= LARGE)
        means = [intervals.bootstrap(one["bits_ratio"].to_list()) for _, one in chosen.group_by("n", "message")]
        return max(means, key=lambda mean: mean.value)

    return measure


def against_log(x: str, y: str, **where: Any) -> measures.Measure:
    """The exponent of y in x / ln x."""
    inner = measures.slope("reduced", y, **where)
    return lambda table: inner(table.with_columns(reduced=pl.col(x) / pl.col(x).log()))


def under_attack(faults: Collection[str]) -> measures.Measure:
    """How often all properties held, over these adversaries."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = table.filter(pl.col("experiment") == "safety", pl.col("faults").is_in(list(faults)))
        return measures.probability("kept", "runs")(chosen)

    return measure


BEARABLE = ("equivocating-and-silent", "colluding", "silent")

claims = [
    Claim("bits", measures.slope("n", "bits", experiment="bits", method="chained", message=LARGE)),
    Claim("rounds-worst", measures.slope("n", "rounds_max", experiment="latency", method="chained", faults="silent")),
    Claim(
        "rounds-optimistic",
        measures.slope("n", "rounds_mean", experiment="latency", method="optimistic", faults="none"),
    ),
    Claim("resilience", under_attack(BEARABLE)),
    Claim(
        "committees",
        measures.probability("violated", "runs", experiment="adversary", method="optimistic", scheduler="dividing"),
    ),
    Claim(
        "question-1",
        worst_ratio("chained"),
        asks="bits of a broadcast of 64 kB or more over n times its length, at most, at every n.",
        kind=Kind.AT_MOST,
        value=1.5,
        unit="?",
    ),
    Claim(
        "question-2",
        measures.slope("n", "bits", experiment="bits", method="hashed-bracha", message=SMALL),
        asks="hash-Bracha's bits per broadcast of 1 kB grow as n to this power.",
        kind=Kind.AT_LEAST,
        value=1.5,
        unit="?",
    ),
    Claim(
        "question-3",
        against_log("n", "rounds_max", experiment="latency", method="chained", faults="none"),
        asks="without faults, rounds on the quorum path grow as n/ln n to this power at most.",
        kind=Kind.AT_MOST,
        value=1.05,
        unit="?",
    ),
    Claim(
        "question-4",
        under_attack(("one-too-many",)),
        asks="with one Byzantine node too many the properties hold in this share of runs.",
        kind=Kind.AT_MOST,
        value=0.5,
        unit="?",
    ),
    Claim(
        "question-5",
        measures.probability("violated", "runs", experiment="adversary", method="optimistic", scheduler="random"),
        asks="under random asynchrony the optimistic path delivers different messages in this share of the attacked runs.",
        kind=Kind.AT_MOST,
        value=0.25,
        unit="?",
    ),
    Claim(
        "question-6",
        measures.probability("stalled", "runs", experiment="adversary", method="unsummed", scheduler="dividing"),
        asks="under the dividing schedule the quorum path with samples alone stalls in this share of runs.",
        kind=Kind.AT_LEAST,
        value=0.5,
        unit="?",
    ),
]
