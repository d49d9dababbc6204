"""What sections take, how many GPUs an auxiliary one gets, and a step of the graph beside one layout for everything.

The critical section has its GPUs and the layout that is best for it alone. An auxiliary section gets the fewest GPUs
with which it keeps up: one of its copies serves several copies of the critical section (or several of its copies one),
and where it only runs forward it takes several samples at once. Its seconds are real: an order can hide them, not undo
them. One layout for everything, as Megatron-LM has it: all sections on the same GPUs with the same tensor, expert,
pipeline and data parallelism, one after the other in every microbatch, encoders on the first stage, which then has
fewer layers of the language model. Both are the best of the same search, and both must fit into memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.sim.models import Model
from assay.sim.random import stream
from assay.training.engine.cluster import Cluster, usable
from assay.training.engine.compound import Ends, Passes, Section, peak, pipeline
from assay.training.engine.costs import RECOMPUTE, parts
from assay.training.engine.rough import Unit, filled, held, unit
from assay.training.engine.schedules import OneFOneB
from assay.training.engine.search import divisors
from assay.training.interface import Floats, Ints, Layout
from assay.training.maestro.graph import Graph, Node, edge
from assay.training.maestro.wavefront import ORDERS, QUEUE, played
from assay.workloads.multimodal import Samples

TENSOR = (1, 2, 4, 8)
EXPERTS = (1, 8, 16, 32, 64)
MOST_STAGES = 16
SPARE = 0.9  # of its pace that an auxiliary section may need in the mean (assumed)
AT_ONCE = (1, 2, 4, 8)  # samples that a section without a backward pass takes together
IMAGE = 2304  # patches of one image in a packed sequence, which see each other (assumed: 672 x 672 pixels)
TOP, EACH = 16, 4  # of the search's best that are solved, and of them of one layout


def packed(count: int, length: int, seed: int, texts: float = 0.4) -> Samples:
    """Sequences of `length` tokens: some are texts alone, of the others a share drawn evenly is of images (assumed)."""
    random = stream(seed, "maestro", "packed", count)
    share = random.uniform(0.1, 0.9, count) * (random.random(count) >= texts)
    image = (length * share).astype(np.int64)
    return Samples(image, length - image)


def texts(count: int, length: int, seed: int) -> Samples:
    """Texts of one's own lengths, not packed: log-normal around a quarter of `length`, cut there (assumed).

    >>> drawn = texts(1000, 8192, seed=0).text
    >>> int(drawn.max()), bool(2500 < drawn.mean() < 3200)
    (8192, True)
    """
    drawn = stream(seed, "maestro", "texts", count).lognormal(np.log(length / 4), 1.0, count)
    tokens = np.clip(drawn, 16, length).astype(np.int64)
    return Samples(np.zeros(count, np.int64), tokens)


def load(node: Node, samples: Samples) -> tuple[Floats, Floats]:
    """Tokens that a section reads of each sample, and pairs of them that see each other."""
    if node.merge:
        patches = np.asarray(samples.image * node.merge, np.float64)
        return patches, np.asarray(patches * np.minimum(patches, IMAGE))
    tokens = samples.tokens.astype(np.float64)
    return tokens, tokens**2 / 2


def _mean(node: Node, samples: Samples) -> tuple[float, float]:
    tokens, pairs = load(node, samples)
    return float(tokens.mean()), float(pairs.sum() / max(1.0, tokens.sum()))


def section(node: Node, on: Cluster, layout: Layout, recompute: str = "none", counts: tuple[int, ...] = ()) -> Section:
    """A node on some ranks."""
    return Section(node.shape, on, layout, recompute, causal=not node.merge, trained=node.trained, counts=counts)


def layouts(shapes: Sequence[Any], ranks: int) -> Iterator[Layout]:
    """Ways to cut all of some models alike over so many ranks."""
    for tp, pp, ep in product(TENSOR, divisors(ranks, MOST_STAGES), EXPERTS):
        if ranks % (tp * pp) or any(shape.heads % tp or (pp > shape.layers and shape.vocab) for shape in shapes):
            continue
        dp = ranks // (tp * pp)
        mixtures = [shape.experts for shape in shapes if shape.experts]
        if ep > 1 and (not mixtures or (tp * dp) % ep or any(mixture.count % ep for mixture in mixtures)):
            continue
        yield Layout(tp=tp, pp=pp, dp=dp, ep=ep)


@dataclass(frozen=True)
class Placed:
    """A section on its ranks, for one copy of the critical section: seconds of each sample, and what it costs."""

    node: Node
    layout: Layout
    ranks: int
    at_once: int
    rate: float  # samples a second, all copies
    moved: bool  # whether its output layer moved to what it feeds
    recompute: str = "none"

    @property
    def name(self) -> str:
        """As one would write it."""
        return f"{self.layout.name} mbs{self.at_once}"


@dataclass(frozen=True)
class Step:
    """What a step comes to."""

    seconds: float
    ranks: int
    batch: int
    idle: float  # seconds that the critical section waits for others
    layout: str
    memory: float

    @property
    def per_gpu(self) -> float:
        """Samples a second and GPU."""
        return self.batch / (self.seconds * self.ranks)


# ------------------------------------------------------------------------------------------------ sections


@dataclass(frozen=True)
class Plan:
    """Layouts of all sections of a graph on one cluster."""

    graph: Graph
    on: Cluster
    layout: Layout
    recompute: str
    placed: tuple[Placed, ...]
    memory: float

    @property
    def ranks(self) -> int:
        """GPUs of all sections."""
        return self.layout.ranks + sum(one.ranks for one in self.placed)


def head(node: Node, on: Cluster, layout: Layout, tokens: float) -> float:
    """Seconds forward of a moved output layer where it went: what the model with a vocabulary takes longer."""
    narrow = Layout(tp=layout.tp)
    both = [unit(section(replace(node, shape=shape), on, narrow), tokens, 0.0).forward.sum()
            for shape in (node.shape, replace(node.shape, vocab=0))]  # fmt: skip
    return float(both[0] - both[1])


def planned(graph: Graph, on: Cluster, samples: Samples) -> Plan:
    """The critical section's best layout alone, and the fewest GPUs for every other one with which it keeps up.

    Raises:
        BadInput: a section that fits nowhere.
    """
    node = graph.critical
    tokens, seen = _mean(node, samples)
    tried = []
    for layout, recompute in product(layouts([node.shape], node.ranks), RECOMPUTE):
        if graph.batch % layout.dp:
            continue
        one, m = unit(section(node, on, layout, recompute), tokens, seen), graph.batch // layout.dp
        memory = held(one, m) + _moved_bytes(graph, on, layout)
        if memory <= usable(on.device):
            tried.append((filled(one, m), layout.name, layout, recompute, memory))
    if not tried:
        raise BadInput(f"section '{node.name}': {node.shape.name} does not fit on {node.ranks} ranks; give it more")
    solved = []
    for _, name, layout, recompute, memory in sorted(tried, key=lambda row: row[:2])[:TOP]:
        alone = section(node, on, layout, recompute)
        alike = np.full((1, graph.batch // layout.dp), tokens)
        step = pipeline(OneFOneB(), alone.passes(alike, alike * seen), alone.ends()).step
        solved.append((step, name, layout, recompute, memory))
    seconds, _, layout, recompute, memory = min(solved, key=lambda row: row[:2])
    placed = tuple(keeping_up(each, graph, on, samples, graph.batch / seconds) for each in graph.auxiliary)
    return Plan(graph, on, layout, recompute, placed, memory)


def _moves(node: Node, target: Node, on: Cluster) -> bool:
    """Whether a section's output layer goes to the critical one."""
    return edge(node, target, on.precision.item).moved and node.feeds == (target.name,)


def _moved_bytes(graph: Graph, on: Cluster, layout: Layout) -> float:
    """Of output layers that move to the critical section."""
    moving = [node.shape for node in graph.auxiliary if _moves(node, graph.critical, on)]
    return sum(shape.vocab * shape.hidden * on.precision.item / layout.tp for shape in moving)


def keeping_up(node: Node, graph: Graph, on: Cluster, samples: Samples, rate: float) -> Placed:
    """The fewest GPUs on which a section makes `rate` samples a second, in the mean and with something to spare."""
    target = graph.critical
    moved = _moves(node, target, on)
    shape = replace(node.shape, vocab=0) if moved else node.shape
    tokens, seen = _mean(node, samples)
    wire = _wire(node, target, on, tokens)
    found = []
    some = EXPERTS if shape.experts else (1,)
    several = (1,) if node.trained else AT_ONCE
    for tp, pp, at_once, recompute, ep in product(TENSOR, (1, 2, 4, 8), several, RECOMPUTE, some):
        if shape.heads % tp or pp > shape.layers or (not node.trained and recompute != "none"):
            continue
        least = max(1, ep // tp)  # copies that experts are spread over
        one = Layout(tp=tp, pp=pp, dp=least, ep=ep)
        pace = 1 / _each(node, shape, on, one, recompute, at_once, tokens, seen, wire)[0]
        wanted = node.ranks / (tp * pp) if node.ranks else rate / (SPARE * pace)
        layout = replace(one, dp=least * math.ceil(wanted / least))
        seconds, memory = _each(node, shape, on, layout, recompute, at_once, tokens, seen, wire)
        if memory <= usable(on.device) and (not node.ranks or layout.ranks == node.ranks):
            placed = Placed(node, layout, layout.ranks, at_once, layout.dp / seconds, moved, recompute)
            found.append((layout.ranks, -placed.rate, placed.name, placed))
    if not found:
        told = f"{node.ranks} ranks" if node.ranks else "any number of ranks"
        raise BadInput(f"section '{node.name}': {node.shape.name} does not fit on {told}")
    return min(found, key=lambda row: row[:3])[3]


def _each(
    node: Node, shape: Model, on: Cluster, layout: Layout, recompute: str, at_once: int, tokens: float, seen: float,
    wire: float,
) -> tuple[float, float]:  # fmt: skip
    """Seconds of a sample in one copy of an auxiliary section, and bytes of a rank."""
    one = unit(section(replace(node, shape=shape), on, layout, recompute), tokens * at_once, seen)
    memory = held(one, 2 * layout.pp + QUEUE if node.trained else 1)
    return max(float(one.took.max()) / at_once, wire / (layout.tp * layout.pp)), memory


def _wire(node: Node, target: Node, on: Cluster, tokens: float) -> float:
    """Seconds of a sample's output on one rank's wire."""
    rows = tokens / max(1, node.merge)
    link = (on.outside if on.nodes > 1 else on.inside).derated(on.efficiency.links)
    return float(link.seconds(rows * edge(node, target, on.precision.item).nbytes))


def seconds_of(plan: Plan, samples: Samples) -> tuple[Floats, Floats, Floats, Floats]:
    """Of each sample, for one copy of the critical section: auxiliary forward and back [sample, section], critical on
    its slowest stage, and what of that are output layers that moved there.

    An auxiliary copy that serves several critical ones gives each its share of its time.
    """
    graph, on = plan.graph, plan.on
    forward, back = (np.zeros((len(samples), len(plan.placed))) for _ in range(2))
    extra = np.zeros(len(samples))
    for at, one in enumerate(plan.placed):
        tokens, pairs = load(one.node, samples)
        shape = replace(one.node.shape, vocab=0) if one.moved else one.node.shape
        on_ranks = section(replace(one.node, shape=shape), on, one.layout, one.recompute)
        passes = on_ranks.passes(tokens * one.at_once, pairs * one.at_once)
        share = plan.layout.dp / one.layout.dp / one.at_once
        wire = np.array([_wire(one.node, graph.critical, on, float(n)) for n in tokens]) / (
            one.layout.tp * one.layout.pp
        )
        forward[:, at] = np.maximum(passes.forward.max(axis=0) * share, wire * share * one.at_once) * (tokens > 0)
        back[:, at] = passes.backward.max(axis=0) * share
        if one.moved:
            extra += head(one.node, on, plan.layout, float(tokens.mean())) * tokens / tokens.mean()
    tokens, pairs = load(graph.critical, samples)
    passes = section(graph.critical, on, plan.layout, plan.recompute).passes(tokens, pairs)
    return forward, back, (passes.forward + passes.backward).max(axis=0) + extra, extra


def dealt(work: Floats, copies: int, even: bool) -> Ints:
    """Samples of each copy [copy, sample]: in turn as they come, or in turn and back by their auxiliary work, the most
    first, so that no copy has much more of it than others; membership of the batch stays as it is (inferred).

    >>> dealt(np.array([[4.0], [3.0], [2.0], [1.0]]), 2, even=True).tolist()
    [[0, 3], [1, 2]]
    """
    order = np.argsort(-work.sum(axis=1), kind="stable") if even else np.arange(len(work))
    rounds = order.reshape(-1, copies)
    if even:
        rounds[1::2] = rounds[1::2, ::-1].copy()
    return np.asarray(np.sort(rounds.T, axis=1))


def stepped(plan: Plan, samples: Samples, order: str) -> Step:
    """A step in which every copy of the critical section takes its samples in this order."""
    graph, dp = plan.graph, plan.layout.dp
    forward, back, critical, moved = seconds_of(plan, samples)
    tokens, pairs = load(graph.critical, samples)
    places = dealt(forward + back, dp, even=order != "arrival")
    waits, tails, rows = [], [], []
    for mine in places:
        chosen = mine[ORDERS[order](forward[mine], critical[mine], None, back[mine])]
        end, over = played(forward[chosen], back[chosen], critical[chosen], np.arange(len(chosen)), QUEUE)
        waits.append(end - critical[mine].sum())
        tails.append(over - end)
        rows.append(chosen)
    deal = np.array(rows)
    own = section(graph.critical, plan.on, plan.layout, plan.recompute)
    passes = own.passes(tokens[deal], pairs[deal])
    table = passes.forward.copy()
    table[-1] += moved[deal]
    passes = replace(passes, forward=table)
    idle = max(0.0, max(waits))
    seconds = pipeline(OneFOneB(), passes, own.ends()).step + idle + max(tails)
    names = ", ".join(
        [f"{graph.critical.name} {plan.layout.name}", *(f"{one.node.name} {one.name}" for one in plan.placed)]
    )
    return Step(seconds, plan.ranks, len(samples), idle, names, plan.memory)


# ---------------------------------------------------------------------------------------------- one layout


@dataclass(frozen=True)
class Uniform:
    """One layout for all sections on the same GPUs; encoders recompute as they like. `first`: layers of the critical
    model on the first stage, 0: alike."""

    layout: Layout
    recompute: str
    mbs: int
    encoders: str = "none"
    first: int = 0

    def again(self, node: Node) -> str:
        """What a section recomputes."""
        return self.encoders if node.merge else self.recompute


def _counts(layers: int, pp: int, first: int) -> tuple[int, ...]:
    if not first or pp == 1:
        return tuple(parts(layers, pp))
    each, over = divmod(layers - first, pp - 1)
    return first, *(each + (k < over) for k in range(pp - 1))


def _alone(node: Node, layout: Layout) -> Layout:
    """An encoder lies on one stage; it has no experts."""
    return replace(layout, pp=1, ep=1) if node.merge else replace(layout, ep=layout.ep if node.shape.experts else 1)


def ranked(graph: Graph, on: Cluster, samples: Samples) -> list[Uniform]:
    """Single layouts for everything that fit, the fastest first, by closed forms on the mean of these samples."""
    node = graph.critical
    room, found = usable(on.device), []
    seeing = RECOMPUTE if any(each.merge for each in graph.auxiliary) else RECOMPUTE[:1]
    cuts = layouts([each.shape for each in graph.nodes], node.ranks)
    for layout, recompute, mbs, encoders in product(cuts, RECOMPUTE, (1, 2), seeing):
        if graph.batch % (layout.dp * mbs):
            continue
        one = Uniform(layout, recompute, mbs, encoders)
        fewer = _balanced(graph, on, samples, one)  # layers on the first stage, or fewer where memory asks for it
        for choice in dict.fromkeys([one, *(replace(one, first=n) for n in (fewer, fewer - 1, 1) if n > 0)]):
            whole, m = _together(graph, on, samples, choice), graph.batch // (layout.dp * mbs)
            if held(whole, m) <= room:
                found.append((filled(whole, m), layout.name, choice))
    found.sort(key=lambda row: (row[0], row[1], row[2].first))
    return [choice for _, _, choice in found]


def uniform(graph: Graph, on: Cluster, samples: Samples, choices: Sequence[Uniform] | None = None) -> Step:
    """The best step of one layout for everything; of `choices`, the best first, or of all.

    Samples come in their own order or, where that is faster, longest first: ranks that work beside one another then
    have texts of much the same length, as the deal of sections gives them.

    Raises:
        BadInput: nothing fits.
    """
    room, fitting = usable(on.device), []
    work = np.sum([load(node, samples)[0] for node in (graph.critical, *graph.auxiliary)], axis=0)
    ways = samples, samples[np.argsort(-work, kind="stable")]
    tried: Counter[tuple[Layout, str]] = Counter()
    for choice in ranked(graph, on, samples) if choices is None else choices:
        if tried[choice.layout, choice.recompute] == EACH:
            continue
        # Samples differ: what fits in the mean may not, and what is fastest may be another.
        steps = [step for each in ways if (step := _solved(graph, on, each, choice)).memory <= room]
        if steps:
            tried[choice.layout, choice.recompute] += 1
            fitting.append(min(steps, key=lambda step: step.seconds))
        if len(fitting) == TOP:
            break
    if not fitting:
        name, ranks = graph.critical.name, graph.critical.ranks
        raise BadInput(f"no single layout of all sections fits on {ranks} ranks; give '{name}' more")
    return min(fitting, key=lambda step: step.seconds)


@lru_cache(maxsize=8192)
def _unit(node: Node, on: Cluster, layout: Layout, recompute: str, tokens: float, seen: float) -> Unit:
    return unit(section(node, on, layout, recompute), tokens, seen)


def _together(graph: Graph, on: Cluster, samples: Samples, choice: Uniform) -> Unit:
    """A microbatch of all sections, stage by stage."""
    total: Unit | None = None
    pp = choice.layout.pp
    for node in (graph.critical, *graph.auxiliary):
        tokens, seen = _mean(node, samples)
        one = _unit(node, on, _alone(node, choice.layout), choice.again(node), tokens * choice.mbs, seen)
        if node.critical and choice.first:
            alike, counts = (np.array(_counts(node.shape.layers, pp, first)) for first in (0, choice.first))
            one = Unit(*(values + (counts - alike) * values[min(1, pp - 2)] / alike[min(1, pp - 2)] for values in one))
        if node.merge:
            one = Unit(*(np.concatenate([values, np.zeros(pp - 1)]) for values in one))
        total = one if total is None else Unit(*(a + b for a, b in zip(total, one, strict=True)))
    assert total is not None
    return total


def _balanced(graph: Graph, on: Cluster, samples: Samples, one: Uniform) -> int:
    """Layers of the critical model on the first stage, where an encoder is, for it to take as long as others; or 0."""
    pp, layers = one.layout.pp, graph.critical.shape.layers
    if pp == 1 or not any(node.merge for node in graph.auxiliary):
        return 0
    tokens, seen = _mean(graph.critical, samples)
    alone = _unit(graph.critical, on, _alone(graph.critical, one.layout), one.recompute, tokens * one.mbs, seen)
    more = _together(graph, on, samples, one).took[0] - alone.took[0]
    layer = alone.took[0] / parts(layers, pp)[0]
    return int(np.clip(round((layers - (pp - 1) * more / layer) / pp), 1, layers // pp))


def _solved(graph: Graph, on: Cluster, samples: Samples, choice: Uniform) -> Step:
    """The same on the engine's graph, with every sample's own tokens."""
    dp, pp, m = choice.layout.dp, choice.layout.pp, graph.batch // (choice.layout.dp * choice.mbs)
    total: Passes | None = None
    state, ends = np.zeros(pp), []
    for node in (graph.critical, *graph.auxiliary):
        counts = _counts(node.shape.layers, pp, choice.first) if node.critical else ()
        own = section(node, on, _alone(node, choice.layout), choice.again(node), counts)
        tokens, pairs = (part.reshape(m, dp, choice.mbs).sum(axis=2).T for part in load(node, samples))
        passes, after = own.passes(tokens, pairs), own.ends()
        wide = 1 if node.merge else pp
        state[:wide] += own.state()
        ends.append(
            [np.concatenate([getattr(after, name), np.zeros(pp - wide)]) for name in ("gather", "reduce", "update")]
        )
        if total is None:
            total, layers = passes, after.layers
            continue
        for name in ("forward", "inputs", "weights", "kept"):
            getattr(total, name)[:wide] += getattr(passes, name)
        total.passing[:wide] = np.maximum(total.passing[:wide], passes.passing)
    assert total is not None
    gather, reduce, update = np.sum(ends, axis=0)
    solved = pipeline(OneFOneB(), total, Ends(gather, reduce, update, layers))
    memory = float(((state + total.passing)[:, None] + peak(OneFOneB(), total.kept)).max())
    name = f"{choice.layout.name}, mbs{choice.mbs}, recompute {choice.recompute} (encoders {choice.encoders})"
    return Step(solved.step, choice.layout.ranks, graph.batch, 0.0, name, memory)
