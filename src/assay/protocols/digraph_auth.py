"""Agreement on one-way networks with signatures: which networks allow it, read off their links alone.

Links go one way, some nodes are traitors, everybody signs. Signatures end forgery, so what a traitor can still do is to
say different things to different neighbours and to keep quiet. Whether the others can agree then depends on who still
reaches whom once suspects are left out. The paper states tight conditions, for exact agreement in rounds and for
approximate agreement in asynchrony. Its statement is not at hand, so the conditions tested here are our own
candidates: `2-reach` for the exact problem, `2-reach+` (any two sets that can reach two nodes despite f faults each
share more than f nodes) for the approximate one. For the second we have an argument both ways: two such sets are
quorums that share a correct node, which makes the protocol of :class:`SignedApproximate` work; and where two share at
most f nodes, those can be traitors with two faces, and each side has to decide as if the other did not exist.

The study does not take our word. For the exact problem it settles every network of four nodes by the views of a
full-information protocol, which no algorithm can improve on. For the approximate problem it runs the protocol against
two-faced traitors and hostile schedulers where the condition holds, and stages the execution of the argument where it
does not. What the data contradict is reported. That exact agreement is possible does not give a small protocol for it:
our rule of explanations (:class:`SignedFlooding`) is a natural one, and two-faced traitors break it now and then.

Tseng and Vaidya, arXiv:2605.11309. Only the abstract was at hand: the conditions are ours, not the paper's words.

>>> from assay.protocols.digraphs import from_edges
>>> verdict(from_edges(4, [(u, v) for u in range(4) for v in range(4) if u != v]), f=1)
{'exact': True, 'approximate': True, 'without_signatures': True}
>>> verdict(from_edges(3, [(0, 1), (1, 2), (2, 0)]), f=1)
{'exact': False, 'approximate': False, 'without_signatures': False}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.protocols import digraphs
from assay.protocols.digraphs import CONDITIONS, Apart, Digraph, apart, holds, members
from assay.protocols.faults import Crash, Lie, Silence
from assay.protocols.interface import Node, NodeId
from assay.protocols.kernel.asynchronous import Asynchronous, DelayVictim, Event, QuorumStarver, Random, SplitBrain
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.protocols.nodes.directed import SignedApproximate, SignedFlooding, TrimmedMean, TwoFaced
from assay.record import measures
from assay.record.types import Claim, Evidence, Kind
from assay.sim.streams import stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL  # the networks are all there are, the executions are the protocol's own
use_when = (
    "Radio, sensor or firewalled networks where A hears B but not the other way round, nodes can sign, and you must "
    "know before building whether agreement can survive f traitors, and which nodes hear too little where it cannot."
)
avoid_when = (
    "Links are two-way and all pairs connected (then n > 2f, or n > 3f in asynchrony, says it all), or the network is "
    "not known in advance; the check looks at all sets of f nodes, so it is for networks of tens of nodes."
)
own_input = "assay compare protocols --digraph links.txt --f 1, or in Python: verdict(from_edges(n, links), f)"
references = (
    "Conditions without signatures: Tseng and Vaidya, Fault-Tolerant Consensus in Directed Graphs, PODC 2015.",
    "Witnesses: Abraham, Amit and Dolev, Optimal Resilience Asynchronous Approximate Agreement, OPODIS 2004.",
    "Trimming without signatures (W-MSR): LeBlanc, Zhang, Koutsoukos and Sundaram, IEEE JSAC 2013.",
)  # fmt: skip

ROUNDS = 3


def verdict(graph: Digraph, f: int) -> dict[str, bool]:
    """What our conditions say about a network: exact and approximate agreement with signatures, and without."""
    names = {"exact": "2-reach", "approximate": "2-reach+", "without_signatures": "3-reach"}
    return {name: holds(condition, graph, f) for name, condition in names.items()}


def answer(graph: Digraph, f: int) -> dict[str, Any]:
    """The verdict as a comparison: what each problem needs, whether the network has it, and two sets that spoil it.

    >>> answer(digraphs.from_edges(3, [(0, 1), (1, 2), (2, 0)]), 1)["table"][0]["spoiled_by"]
    '1 without {0} hears {1}, 2 without {1} hears {2}'
    """
    rows = []
    problems = {"exact, signed": "2-reach", "approximate, signed": "2-reach+", "either, unsigned": "3-reach"}
    for problem, condition in problems.items():
        pair = apart(condition, graph, f)
        spoiled_by = "" if pair is None else pair.words(graph)
        rows.append({"problem": problem, "condition": condition, "met": pair is None, "spoiled_by": spoiled_by})
    met = [problem for problem, row in zip(problems, rows, strict=True) if row["met"]]
    why = (
        f"Conditions met with {f} traitor{'s' * (f != 1)}: {'; '.join(met) or 'none'}. Those for signed messages are "
        "assay's candidates, not the paper's words; 2-reach refuses some networks on which agreement is possible."
    )
    return {"network": {"nodes": len(graph), "links": len(digraphs.edges(graph)), "f": f}, "table": rows, "why": why}


# ----------------------------------------------------------------------- runs of the approximate protocol


def links(graph: Digraph) -> list[tuple[NodeId, ...]]:
    """Out-neighbours, as a world wants them."""
    return [tuple(members(row)) for row in graph]


def approximate(graph: Digraph, f: int, inputs: Sequence[float], seed: int, traitors: dict[NodeId, Any]) -> World:
    """A world of the signed protocol; a traitor is a Node in place of the honest one, or a Fault around it."""
    nodes: list[Node] = [SignedApproximate(graph, ROUNDS) for _ in graph]
    for node, traitor in traitors.items():
        if isinstance(traitor, Node):
            nodes[node] = traitor
    faults = {node: fault for node, fault in traitors.items() if not isinstance(fault, Node)}
    return World(n=len(graph), f=f, node=nodes, inputs=inputs, topology=links(graph), faults=faults, seed=seed)


def broken(outcome: Outcome, inputs: Sequence[float], correct: Sequence[NodeId]) -> str:
    """What is wrong with an outcome: "stall", "invalid", "apart", or nothing."""
    given = [inputs[node] for node in correct]
    decided = [outcome.decisions[node][0] for node in correct if 0 in outcome.decisions[node]]
    if len(decided) < len(correct):
        return "stall"
    if min(decided) < min(given) - 1e-9 or max(decided) > max(given) + 1e-9:
        return "invalid"
    return "apart" if max(decided) - min(decided) > (max(given) - min(given)) / 2**ROUNDS + 1e-9 else ""


def settled(correct: Sequence[NodeId]) -> Callable[[Outcome], bool]:
    """All of these have decided: decisions stand, so what is still under way cannot change what broke."""
    return lambda outcome: all(0 in outcome.decisions[node] for node in correct)


def attack(graph: Digraph, f: int, seed: int) -> tuple[str, list[float]]:
    """One run with a random traitor and a random hostile scheduler; what broke, and the range by round."""
    random = stream(seed, "digraph-auth", "attack", *graph)
    n = len(graph)
    inputs = [float(value) for value in random.choice([0.0, 1.0, random.random()], n)]
    chosen = [int(node) for node in random.permutation(n)[:f]]
    traitors: dict[NodeId, Any] = {}
    for node in chosen:
        side = {other for other in members(graph[node]) if random.random() < 0.5}
        rest = set(members(graph[node])) - side
        deaf = [other for other in range(n) if random.random() < 0.2]
        honest = SignedApproximate(graph, ROUNDS)
        options: list[Any] = [
            TwoFaced(honest, [(0.0, side, deaf), (1.0, rest, ())]),
            TwoFaced(honest, [(-5.0, side, ()), (9.0, rest, deaf)]),
            Silence(to=tuple(side)), Crash(at=float(random.integers(0, 200))), Lie(kinds=("item",)),
        ]  # fmt: skip
        traitors[node] = options[int(random.integers(len(options)))]
    victims = {int(random.integers(n))}
    schedulers = [Random(seed), DelayVictim(victims, seed), SplitBrain(range(n // 2), seed), QuorumStarver(seed)]
    world = approximate(graph, f, inputs, seed, traitors)
    correct = [node for node in range(n) if node not in chosen]
    outcome = world.run("async", scheduler=schedulers[int(random.integers(4))], until=settled(correct), metered=False)
    spans = [outcome.nodes[node].spans for node in correct]  # type: ignore[attr-defined]
    ranges = [max(values) - min(values) for values in zip(*spans, strict=False)]
    return broken(outcome, inputs, correct), ranges


class Hold(Random):
    """Keeps back everything on some links while anything else is under way."""

    def __init__(self, held: set[tuple[NodeId, NodeId]], seed: int) -> None:
        super().__init__(seed)
        self.held = held

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """Anything else first."""
        return self.among(pending, view, lambda event: (event.src, event.dst) not in self.held)


def stage(graph: Digraph, f: int, pair: Apart, seed: int = 0) -> str:
    """The executions of the argument: each side alone, then both at once with those in common two-faced; what broke."""
    n = len(graph)
    ours, theirs = pair.hears(graph)
    common = ours & theirs
    for bit, failed in ((0.0, pair.without_u), (1.0, pair.without_v)):
        inputs = [bit] * n
        alone = approximate(graph, f, inputs, seed, {node: Crash() for node in members(failed)})
        correct = [node for node in range(n) if not failed >> node & 1]
        if wrong := broken(alone.run("async", scheduler=Random(seed), metered=False), inputs, correct):
            return wrong
    inputs = [0.0 if ours >> node & 1 else 1.0 for node in range(n)]
    traitors: dict[NodeId, Any] = {}
    if ours & ~common and theirs & ~common:
        traitors = {node: _between(graph, ours, theirs) for node in members(common)}
    outside = ((pair.without_u, ours), (pair.without_v, theirs))
    held = {(a, b) for failed, inside in outside for a in members(failed) for b in members(inside & ~common)}
    mixed = approximate(graph, f, inputs, seed, traitors)
    outcome = mixed.run("async", scheduler=Hold(held, seed), metered=False)
    return broken(outcome, inputs, [node for node in range(n) if node not in traitors])


def _between(graph: Digraph, ours: int, theirs: int) -> TwoFaced:
    """One of those in common: towards each side a node that knows only that side."""
    everybody = range(len(graph))
    faces = [
        (bit, set(members(side)), [node for node in everybody if not side >> node & 1])
        for bit, side in ((0.0, ours), (1.0, theirs))
    ]
    return TwoFaced(SignedApproximate(graph, ROUNDS), faces)


# ------------------------------------------------------------------------------------------- the study


def exact(n: int, graphs: int, parts: int, thorough: bool, seed: int) -> dict[str, dict[str, Any]]:
    """Every condition beside what full information says, on this seed's share of the networks."""
    from assay.protocols.full_information import impossible

    counts = {name: {"networks": 0, "agree": 0, "too_hopeful": 0, "too_strict": 0} for name in CONDITIONS}
    for graph in _networks(n, graphs, parts, seed):
        possible = not impossible(graph, thorough=thorough)
        for name, count in counts.items():
            says = holds(name, graph, 1)
            count["networks"] += 1
            count["agree"] += says == possible
            count["too_hopeful"] += says and not possible
            count["too_strict"] += possible and not says
    return counts


def _networks(n: int, graphs: int, parts: int, seed: int) -> list[Digraph]:
    """All networks of four nodes, dealt out to the seeds; of more nodes a random sample for each."""
    if n <= 4:
        return list(digraphs.all_digraphs(n))[seed::parts]
    random = stream(seed, "digraph-auth", "sample", n)
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
    sample = []
    for _ in range(graphs):
        density = random.uniform(0.4, 0.8)
        sample.append(digraphs.from_edges(n, [pair for pair in pairs if random.random() < density]))
    return sample


def asynchronous(n: int, graphs: int, parts: int, runs: int, seed: int) -> dict[str, Any]:
    """Attacks where `2-reach+` holds, the staged argument where it does not."""
    agree = attacks = violations = rounds = halved = 0
    found = _networks(n, graphs, parts, seed)
    for place, graph in enumerate(found):
        pair = apart("2-reach+", graph, 1)
        if pair is not None:
            agree += stage(graph, 1, pair, seed) != ""
            continue
        failed = 0
        for run in range(runs):
            wrong, ranges = attack(graph, 1, seed * 1_000_003 + place * 1009 + run)
            failed += wrong != ""
            steps = [b <= a / 2 + 1e-12 for a, b in pairwise(ranges) if a > 0]
            rounds, halved = rounds + len(steps), halved + sum(steps)
        attacks, violations = attacks + runs, violations + failed
        agree += failed == 0
    return {
        "networks": len(found), "agree": agree, "attacks": attacks, "violations": violations,
        "rounds": rounds, "halved": halved,
    }  # fmt: skip


def rivals(n: int, runs: int, seed: int) -> dict[str, dict[str, Any]]:
    """On networks that allow the exact problem: our explanation rule, and trimming without signatures."""
    from assay.protocols.full_information import impossible

    possible = [graph for graph in digraphs.all_digraphs(n) if holds("one-source", graph, 1) and not impossible(graph)]
    random = stream(seed, "digraph-auth", "rivals")
    counts = {name: {"attacks": 0, "violations": 0} for name in ("explanations", "trimmed mean")}
    for _ in range(runs):
        graph = possible[int(random.integers(len(possible)))]
        traitor, bits = int(random.integers(n)), [int(bit) for bit in random.integers(0, 2, n)]
        side = {other for other in members(graph[traitor]) if random.random() < 0.5}
        faces = [(0, side, ()), (1, set(members(graph[traitor])) - side, ())]
        correct = [node for node in range(n) if node != traitor]
        for name, honest in (("explanations", SignedFlooding(graph)), ("trimmed mean", TrimmedMean(12))):
            nodes: list[Node] = [TwoFaced(honest, faces) if k == traitor else honest for k in range(n)]
            world = World(n=n, f=1, node=nodes, inputs=bits, topology=links(graph), seed=seed)
            decided = [world.run("rounds", limit=40, metered=False).decisions[node].get(0) for node in correct]
            given = {bits[node] for node in correct}
            counts[name]["attacks"] += 1
            counts[name]["violations"] += _torn(decided, given, exact=name == "explanations")
    return counts


def _torn(decided: Sequence[Any], given: set[int], exact: bool) -> bool:
    if None in decided:
        return True
    if exact:
        return len(set(decided)) > 1 or not set(decided) <= given
    low, high = min(decided), max(decided)
    return bool(high - low > 0.1 or low < min(given) or high > max(given))


def study(lab: Lab) -> pl.DataFrame:
    """All networks of four nodes (and a sample of five), settled exactly; the protocols under attack."""
    parts, many = len(lab.seeds), lab.pick(quick=4, full=60)
    sizes = [{"n": n, "graphs": many, "parts": parts} for n in (4, 5)]
    thorough = {"thorough": lab.pick(quick=False, full=True)}
    settled = lab.run(exact, [sizes[0] | thorough, sizes[1] | {"thorough": False}], per="condition")
    attacked = lab.run(asynchronous, [size | {"runs": lab.pick(quick=10, full=400)} for size in sizes])
    beside = lab.run(rivals, [{"n": 4, "runs": lab.pick(quick=120, full=2000)}], per="rule")
    tables = {"exact": settled, "approximate": attacked, "rivals": beside}
    return pl.concat([table.with_columns(experiment=pl.lit(name)) for name, table in tables.items()], how="diagonal")


def plot(table: pl.DataFrame) -> alt.Chart:
    """How often each condition is right about networks of four and five nodes."""
    import altair as alt

    counts = table.filter(pl.col("experiment") == "exact").group_by("condition", "n", maintain_order=True)
    kinds = {"agree": "right", "too_hopeful": "says yes, impossible", "too_strict": "says no, possible"}
    rows = [
        {"condition": condition, "nodes": f"{n} nodes", "networks": int(group[column].sum()), "the condition is": kind}
        for (condition, n), group in counts
        for column, kind in kinds.items()
    ]
    title = alt.Title("Exact agreement with signatures, one traitor", subtitle="Conditions beside full information")
    chart: alt.Chart = (
        alt.Chart(pl.DataFrame(rows))
        .mark_bar()
        .encode(
            x=alt.X("networks:Q", title="networks"),
            y=alt.Y("condition:N", title=None, sort=list(CONDITIONS)),
            color=alt.Color("the condition is:N", sort=list(kinds.values())),
            row=alt.Row("nodes:N", title=None),
        )
        .properties(width=460, title=title)
    )
    return chart


# ------------------------------------------------------------------------------------------ the claims

claims = [
    Claim("exact", measures.probability("agree", "networks", experiment="exact", condition="2-reach")),
    Claim("approximate", measures.probability("agree", "networks", experiment="approximate")),
    Claim(
        "question-1",
        measures.mean("too_hopeful", experiment="exact", condition="2-reach"),
        asks="our condition for exact consensus never promises what full information shows to be impossible: networks.",
        kind=Kind.AT_MOST,
        value=0.0,
        unit="?",
    ),
    Claim(
        "question-2",
        measures.probability("violations", "attacks", experiment="approximate"),
        asks="the signed approximate protocol breaks where its condition holds, in a share of attacks of.",
        kind=Kind.AT_MOST,
        value=0.05,
        unit="?",
    ),
    Claim(
        "question-3",
        measures.probability("halved", "rounds", experiment="approximate"),
        asks="under attack the range of correct values at least halves, in this share of the rounds in which they differ.",
        kind=Kind.DIFFERENCE,
        toward="up",
    ),
    Claim(
        "question-4",
        measures.probability("violations", "attacks", experiment="rivals", rule="explanations"),
        asks="our rule of explanations breaks where exact consensus is possible, in a share of two-faced attacks of.",
        kind=Kind.DIFFERENCE,
        toward="down",
    ),
    Claim(
        "question-5",
        measures.probability("violations", "attacks", experiment="rivals", rule="trimmed mean"),
        asks="trimming without signatures breaks under the same two-faced traitors, in a share of attacks of.",
        kind=Kind.AT_LEAST,
        value=0.05,
        unit="?",
    ),
]
