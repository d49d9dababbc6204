"""Agreement on one-way networks with signatures: which networks allow it, read off their links alone.

Links go one way, some nodes are traitors, everybody signs. Signatures end forgery, so what a traitor can still do is to
say different things to different neighbours and to keep quiet. Whether the others can agree then depends on who still
reaches whom once suspects are left out. The paper states tight conditions, for exact agreement in rounds and for
approximate agreement in asynchrony. Its statement is not at hand, so the conditions tested here are our own
candidates: `2-reach` for the exact problem, `2-reach+` (any two sets that can reach two nodes despite f faults each
share more than f nodes) for the approximate one. For the second we have an argument both ways: two such sets are
quorums that share a correct node, which makes the protocol of :class:`SignedApproximate` work; and where two share at
most f nodes, those can be traitors with two faces, and each side has to decide as if the other did not exist. Only the
first half can be tried: that every protocol fails is not shown by one that does, so necessity is not measured.

The study does not take our word. For the exact problem it settles every network of four nodes by the views of a
full-information protocol, which no algorithm can improve on. For the approximate problem it runs the protocol against
two-faced traitors and hostile schedulers where the condition holds. What the data contradict is reported. That exact
agreement is possible does not give a small protocol for it: our rule of explanations (:class:`SignedFlooding`) is a
natural one, and two-faced traitors break it now and then.

Tseng and Vaidya, arXiv:2605.11309. Only the abstract was at hand: the conditions are ours, not the paper's words.

>>> from assay.protocols.digraph_auth.digraphs import from_edges
>>> verdict(from_edges(4, [(u, v) for u in range(4) for v in range(4) if u != v]), f=1)
{'exact': True, 'approximate': True, 'without_signatures': True}
>>> verdict(from_edges(3, [(0, 1), (1, 2), (2, 0)]), f=1)
{'exact': False, 'approximate': False, 'without_signatures': False}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.protocols.digraph_auth import digraphs
from assay.protocols.digraph_auth.digraphs import CONDITIONS, Digraph, apart, holds, members
from assay.protocols.digraph_auth.directed import SignedApproximate, SignedFlooding, TrimmedMean
from assay.protocols.faults import Crash, Lie, Silence
from assay.protocols.faults.two_faced import TwoFaced
from assay.protocols.interface import Node, NodeId
from assay.protocols.kernel.asynchronous import DelayVictim, QuorumStarver, Random, SplitBrain
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.streams import stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.record.tables import Tables

evidence = Evidence.REAL  # the networks are all there are, the executions are the protocol's own
use_when = (
    "Radio, sensor or firewalled networks where A hears B but not the other way round, nodes can sign, and you must "
    "know before building whether agreement can survive f traitors, and which nodes hear too little where it cannot."
)
avoid_when = (
    "Links are two-way and all pairs connected (then n > 2f, or n > 3f in asynchrony, says it all), or the network is "
    "not known in advance; the check looks at all sets of f nodes, so it is for networks of tens of nodes."
)
own_input = "assay compare protocols --digraph examples/links.txt --f 1"
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


# ------------------------------------------------------------------------------------------- the study


def exact(n: int, graphs: int, shard: int, shards: int, thorough: bool, seed: int) -> dict[str, dict[str, Any]]:
    """Every condition beside what full information says, and the first network on which they differ."""
    from assay.protocols.digraph_auth.full_information import impossible

    counts: dict[str, dict[str, Any]] = {
        name: {"networks": 0, "agree": 0, "promised": 0, "kept": 0, "too_strict": 0, "wrong": ""} for name in CONDITIONS
    }
    for graph in _networks(n, graphs, shard, shards, seed):
        possible = not impossible(graph, thorough=thorough)
        for name, count in counts.items():
            says = holds(name, graph, 1)
            count["networks"] += 1
            count["agree"] += says == possible
            count["promised"] += says
            count["kept"] += says and possible
            count["too_strict"] += possible and not says
            if says != possible:
                what = "says no, agreement is possible" if possible else "says yes, agreement is impossible"
                count["wrong"] = count["wrong"] or f"links {_told(graph)}: {name} {what}"
    return counts


def _told(graph: Digraph) -> str:
    return " ".join(f"{u}→{v}" for u, v in digraphs.edges(graph))


def _networks(n: int, graphs: int, shard: int, shards: int, seed: int) -> list[Digraph]:
    """A share of all networks of four nodes, which owes nothing to the seed; of more nodes a random sample."""
    if n <= 4:
        return list(digraphs.all_digraphs(n))[shard::shards]
    random = stream(seed, "digraph-auth", "sample", n)
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
    sample = []
    for _ in range(graphs):
        density = random.uniform(0.4, 0.8)
        sample.append(digraphs.from_edges(n, [pair for pair in pairs if random.random() < density]))
    return sample


def asynchronous(n: int, graphs: int, shard: int, shards: int, runs: int, seed: int) -> dict[str, Any]:
    """Attacks on the networks where `2-reach+` holds; and the first that breaks the protocol."""
    found: dict[str, Any] = {"networks": 0, "attacks": 0, "withstood": 0, "rounds": 0, "halved": 0, "wrong": ""}
    for place, graph in enumerate(_networks(n, graphs, shard, shards, seed)):
        if not holds("2-reach+", graph, 1):
            continue
        found["networks"] += 1
        broke = _attacked(graph, [seed * 1_000_003 + place * 1009 + run for run in range(runs)], found)
        if broke and not found["wrong"]:
            found["wrong"] = f"links {_told(graph)}: 2-reach+ says yes, attack {broke[0]} breaks it"
    return found


def _attacked(graph: Digraph, seeds: Sequence[int], found: dict[str, Any]) -> list[int]:
    """Count one attack for each seed; those that broke something."""
    broke = []
    for seed in seeds:
        wrong, ranges = attack(graph, 1, seed)
        steps = [b <= a / 2 + 1e-12 for a, b in pairwise(ranges) if a > 0]
        found["attacks"] += 1
        found["withstood"] += wrong == ""
        found["rounds"] += len(steps)
        found["halved"] += sum(steps)
        broke += [seed] if wrong else []
    return broke


def rivals(n: int, runs: int, seed: int) -> dict[str, dict[str, Any]]:
    """On networks that allow the exact problem: our explanation rule, and trimming without signatures."""
    from assay.protocols.digraph_auth.full_information import impossible

    possible = [graph for graph in digraphs.all_digraphs(n) if holds("one-source", graph, 1) and not impossible(graph)]
    random = stream(seed, "digraph-auth", "rivals")
    counts: dict[str, dict[str, Any]] = {
        name: {"attacks": 0, "withstood": 0, "wrong": ""} for name in ("explanations", "trimmed mean")
    }
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
            torn = _torn(decided, given, exact=name == "explanations")
            counts[name]["attacks"] += 1
            counts[name]["withstood"] += not torn
            if torn and not counts[name]["wrong"]:
                counts[name]["wrong"] = (
                    f"links {_told(graph)}: inputs {bits}, traitor {traitor} says 0 to {sorted(side)}, 1 to the rest"
                )
    return counts


def _torn(decided: Sequence[Any], given: set[int], exact: bool) -> bool:
    if None in decided:
        return True
    if exact:
        return len(set(decided)) > 1 or not set(decided) <= given
    low, high = min(decided), max(decided)
    return bool(high - low > 0.1 or low < min(given) or high > max(given))


def study(lab: Lab) -> Tables:
    """All networks of four nodes (and a sample of five), settled exactly; the protocols under attack."""
    shards, many = lab.pick(quick=4, full=16), lab.pick(quick=4, full=40)
    all_of_four = [{"n": 4, "graphs": 0, "shard": shard, "shards": shards} for shard in range(shards)]
    some_of_five = [{"n": 5, "graphs": many, "shard": 0, "shards": 1}]
    once = lab.with_seeds(quick=1, full=1)  # all there are is the same for every seed
    thorough, runs = {"thorough": lab.pick(quick=False, full=True)}, {"runs": lab.pick(quick=10, full=100)}
    tables = {
        "exact": [
            once.run(exact, [case | thorough for case in all_of_four], per="condition"),
            lab.run(exact, [case | {"thorough": False} for case in some_of_five], per="condition"),
        ],
        "approximate": [
            once.run(asynchronous, [case | runs for case in all_of_four]),
            lab.run(asynchronous, [case | runs for case in some_of_five]),
        ],
        "rivals": [lab.run(rivals, [{"n": 4, "runs": lab.pick(quick=120, full=1000)}], per="rule")],
    }
    return {name: pl.concat(parts, how="diagonal_relaxed") for name, parts in tables.items()}


def plot(table: pl.DataFrame) -> alt.Chart:
    """How often each condition is right about networks of four and five nodes."""
    import altair as alt

    settled = table.filter(pl.col("experiment") == "exact").with_columns(
        too_hopeful=pl.col("promised") - pl.col("kept")
    )
    counts = settled.group_by("condition", "n", maintain_order=True)
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


def every(held: str, of: str, **where: Any) -> measures.Measure:
    """The share of what was tried in which it held; and the first counterexample."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, where)
        found = measures.probability(held, of)(chosen)
        wrong = chosen.filter(pl.col(held) < pl.col(of))
        return found if wrong.is_empty() else replace(found, cases=wrong["wrong"][0])

    return measure


def more_torn(table: pl.DataFrame) -> Estimate:
    """By how much larger the share of attacks is that break trimming than of those that break explanations."""
    torn = {
        rule: 1 - (rows["withstood"] / rows["attacks"]).to_numpy()
        for rule in ("trimmed mean", "explanations")
        for rows in [measures.rows(table, {"experiment": "rivals", "rule": rule})]
    }
    return intervals.bootstrap(torn["trimmed mean"] - torn["explanations"])


claims = [
    Claim("exact", every("agree", "networks", experiment="exact", condition="2-reach")),
    Claim(
        "approximate",
        measures.not_here(
            "whether a condition is necessary is a question about all protocols, and one of ours that fails answers it "
            "for none; for the exact problem full information does, for asynchrony it is not built here"
        ),
    ),
    Claim(
        "sufficient",
        every("kept", "promised", experiment="exact", condition="2-reach"),
        asks="On every network with 2-reach some algorithm reaches exact consensus with signed messages despite one "
        "traitor, by full information (tried: all networks of four nodes, some of five).",
        kind=Kind.EVERY,
    ),
    Claim(
        "withstood",
        every("withstood", "attacks", experiment="approximate"),
        asks="The signed approximate protocol withstands every attack tried on networks with 2-reach+.",
        kind=Kind.EVERY,
    ),
    Claim(
        "halved",
        every("halved", "rounds", experiment="approximate"),
        asks="Under these attacks the range of correct values at least halves in every round in which they differ.",
        kind=Kind.EVERY,
    ),
    Claim(
        "explanations",
        every("withstood", "attacks", experiment="rivals", rule="explanations"),
        asks="Where exact consensus is possible, the rule of explanations withstands every two-faced attack tried.",
        kind=Kind.EVERY,
    ),
    Claim(
        "over-trimming",
        more_torn,
        asks="The same two-faced traitors break trimming without signatures more often than the rule of explanations.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
]
