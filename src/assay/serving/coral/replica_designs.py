"""Ways to build a replica of a model from rented nodes, and how many requests a second each keeps its promise for.

A design takes whole nodes of one or two configurations of one region and cuts the model over them: tensor and pipeline
parallelism, as many copies as fit, prefill and decode together or prefill on the one kind and decode on the other, or
the first layers on the one kind and the rest on the other. Its rate is read off the cost model, not measured:

- A batch of b sequences takes b/O prompts an iteration (O: output tokens), so prompts come in lumps of P tokens, in a
  share q of the iterations; the mean iteration is t = (1 - q) t(b) + q t(b with a lump), and the rate b/(O t).
- Of such b the one with the highest rate is taken for which b + z sqrt(b) sequences (the load that a Poisson stream
  stays below 95 % of the time) still keep the time per token and fit into the KV memory, and for which a long prompt
  that queues behind others gets its first token in time.
- A prefill instance is an M/G/1 queue; the wait that one in twenty exceeds is taken as if waits were exponential.

A plan sees a design only through the nodes it takes and its rate. So the best design of every vector of nodes is
enough, and of these the ones that no other design, nor two others together, replace at no more nodes and no less rate.

>>> service = Service("llama-3-8b", SLO(ttft=1.0, tpot=0.05), Lengths(1000, 200))
>>> best = designs(service, [Config.read("1xl40s"), Config.read("2xh100")])
>>> [(design.nodes, design.name) for design in best][:2]
[(((0, 1),), 'l40s:llama-3-8b'), (((0, 2),), 'l40s:llama-3-8b:prefill + l40s:llama-3-8b:decode')]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.serving.interface import SLO
from assay.sim import collectives
from assay.sim.hardware import device
from assay.sim.layouts import ACTIVATION
from assay.sim.llm_cost import COEFFICIENTS, StepCost
from assay.sim.models import Model, model
from assay.sim.roofline import LINK_EFFICIENCY, OVERHEAD, roofline
from assay.workloads.gpu_market import Config
from assay.workloads.requests import Requests

Floats = NDArray[np.float64]

BUDGET = 2048  # tokens of an iteration: a long prompt must not stall the decodes
SEQUENCES = 256  # of an instance
KV_SHARE = 0.95  # of the KV memory that a plan counts on
TAIL = 0.05  # the share of requests that may miss
Z = 1.645  # standard deviations that leave TAIL above
NODES = 2  # of a configuration in one design
STAGES = (1, 2, 4)
QUARTERS = (1, 2, 3)  # of the layers on the first of two kinds of devices
LINK_LOAD = 0.8  # of a link that hands KV over


@dataclass(frozen=True)
class Lengths:
    """The lengths of a model's requests, as far as times depend on them; what is not given follows from the means."""

    prompt: float  # mean
    output: float
    context: float = 0.0  # mean KV tokens of a decoding sequence
    prompt_p95: float = 0.0
    longest: float = 0.0  # prompt and output
    reach: float = 0.0  # mean of prompt^2 / 2 over mean prompt: how far back a prompt token attends

    def __post_init__(self) -> None:
        given = {
            "context": self.prompt + self.output / 2, "prompt_p95": 2 * self.prompt,
            "longest": 4 * (self.prompt + self.output), "reach": self.prompt / 2,
        }  # fmt: skip
        for name, value in given.items():
            if not getattr(self, name):
                object.__setattr__(self, name, float(value))

    @classmethod
    def of(cls, requests: Requests) -> Lengths:
        """Of a trace.

        >>> Lengths.of(Requests.of([0.0, 1.0], [100, 300], [10, 30])).context
        262.5
        """
        p, o = requests.prompt.astype(float), requests.output.astype(float)
        held = float((o * (p + o / 2)).sum() / o.sum())
        p95, most = float(np.quantile(p, 0.95)), float((p + o).max())
        return cls(float(p.mean()), float(o.mean()), held, p95, most, float((p * p).mean() / 2 / p.mean()))


@dataclass(frozen=True)
class Service:
    """A model to serve: what it promises, to which requests, and what a request weighs when GPUs are scarce."""

    model: str
    slo: SLO
    lengths: Lengths
    weight: float = 1.0
    dtype: str = "bf16"


@dataclass(frozen=True)
class Part:
    """Equal instances of a design, and what each of them is planned for."""

    layout: str
    count: int
    gpus: int  # of one instance
    role: str
    batch: int  # sequences at most
    rate: float  # requests a second
    load: float  # requests on board at that rate


@dataclass(frozen=True)
class Design:
    """A replica: nodes as (number of the configuration, how many), and the requests a second it serves in time."""

    nodes: tuple[tuple[int, int], ...]
    rate: float
    parts: tuple[Part, ...] = ()

    @property
    def name(self) -> str:
        """Its instances, as one would write them."""
        roles = {"both": "", "prefill": ":prefill", "decode": ":decode"}
        return " + ".join((f"{p.count} " if p.count > 1 else "") + p.layout + roles[p.role] for p in self.parts)


# ------------------------------------------------------------------------------------- the time of a batch


@cache
def step_cost(layout: str) -> StepCost | None:
    """The cost of `device:model:tpN:ppN:dtype`, or of two such stages, `a 1/4 b`, a quarter of the layers on a.

    None where it cannot be built or does not fit.
    """
    first, _, rest = layout.partition(" ")
    try:
        if not rest:
            cut = _read(first)
            return roofline(
                model(cut["model"]), cut["device"], cut["tp"], cut["pp"], 1, cut["dtype"],
                max_tokens=BUDGET, batch_tokens=BUDGET, max_seqs=SEQUENCES,
            )  # fmt: skip
        share, _, second = rest.partition(" ")
        return _two_stages(first, int(share[0]), second)
    except BadInput:
        return None


def _read(text: str) -> dict[str, Any]:
    on, shape, *cuts = text.split(":")
    found: dict[str, Any] = {"device": on, "model": shape, "tp": 1, "pp": 1, "dtype": "bf16"}
    for cut in cuts:
        key = cut[:2] if cut[:2] in ("tp", "pp") else "dtype"
        found[key] = cut if key == "dtype" else int(cut[2:])
    return found


@cache
def _stage(layout: str, quarters: int) -> StepCost:
    """The cost of some of a model's layers, with embedding and head; without the scheduler."""
    cut = _read(layout)
    return roofline(
        _cut(model(cut["model"]), quarters), cut["device"], cut["tp"], 1, 1, cut["dtype"],
        max_tokens=BUDGET, batch_tokens=BUDGET, max_seqs=SEQUENCES, overhead=0.0,
    )  # fmt: skip


def _cut(whole: Model, quarters: int) -> Model:
    names = ("full_layers", "window_layers", "linear_layers", "dense_layers", "moe_layers")
    counts: dict[str, int] = {name: getattr(whole, name) for name in names}
    some: dict[str, Any] = {name: max(round(n * quarters / 4), 1) if n else 0 for name, n in counts.items()}
    return replace(whole, **some)


def _two_stages(first: str, quarters: int, second: str) -> StepCost:
    """Two unequal stages, two microbatches: both stages once, the slower once more, and the hops between."""
    a, b = _stage(first, quarters), _stage(second, 4 - quarters)
    half = (np.arange(BUDGET + 1) + 1) // 2
    link = min((device(_read(x)["device"]).nic for x in (first, second)), key=lambda nic: nic.bandwidth)
    sent: Floats = half.astype(np.float64) * (model(_read(first)["model"]).hidden * ACTIVATION)
    hop = collectives.send(sent, link.derated(LINK_EFFICIENCY))
    one, two = a.tokens[half], b.tokens[half]
    tokens = one + two + np.maximum(one, two) + 2 * hop + OVERHEAD
    tokens[1] = one[1] + two[1] + hop[1] + OVERHEAD  # a single token cannot be cut
    sums = {}
    for name in COEFFICIENTS:
        x, y = getattr(a, name), getattr(b, name)
        sums[name] = x if name == "window" else (x + y + max(x, y)) / 2
    room = min(a.kv_tokens, b.kv_tokens)
    return StepCost(
        tokens=tokens, kv_tokens=room, kv_bytes=a.kv_bytes + b.kv_bytes, name=f"{first} {quarters}/4 {second}", **sums
    )


def _decodes(cost: StepCost, b: Floats, context: float) -> Floats:
    """Seconds of b decodes beyond `tokens`."""
    attended = cost.decode_kv * context + cost.decode_window * min(context, cost.window)
    return cost.decode_fixed + (cost.decode_seq + attended) * b


def _prompts(cost: StepCost, tokens: Any, lengths: Lengths) -> Any:
    """Seconds that this many prompt tokens add beyond `tokens`: attention, which goes with how far back they look."""
    far = cost.prefill_pair * lengths.reach + cost.prefill_pair_window * min(lengths.reach, cost.window)
    return cost.prefill_fixed + (cost.prefill_token + far) * tokens


def _late(load: Any, service: Any) -> Any:
    """The wait that TAIL of the requests exceed in an M/G/1 queue whose service varies as an exponential does."""
    mean = service / (1 - np.minimum(load, 0.999))  # of those who wait at all, which the share `load` does
    wait = mean * np.log(np.maximum(load / TAIL, 1.0))
    return np.where(load < 1, wait, np.inf)


class Pace(NamedTuple):
    """What one instance is good for: requests a second, the batch it may grow to, and the mean load at that rate."""

    rate: float
    batch: int
    load: float


NONE = Pace(0.0, 0, 0.0)  # good for nothing


def colocated(cost: StepCost, service: Service) -> Pace:
    """The rate of an instance that prefills and decodes in the same batches."""
    n, slo = service.lengths, service.slo
    b = np.arange(1.0, SEQUENCES + 1)
    full = np.minimum(np.ceil(b + Z * np.sqrt(b)), SEQUENCES)
    seconds, _ = _mixed(cost, b, n)
    slow, lump = _mixed(cost, full, n)
    rate = b / (n.output * seconds)
    space = BUDGET - full
    whole = cost.tokens[BUDGET] + _decodes(cost, full, n.context) + _prompts(cost, space, n)
    load = rate * n.prompt / space * whole  # of the prompt tokens that iterations have room for
    first = lump + np.ceil(n.prompt_p95 / space) * whole + _late(load, n.prompt / space * whole)
    able = (slow <= slo.tpot) & (full * n.context <= KV_SHARE * cost.kv_tokens) & (first <= slo.ttft)
    able &= (b + Z * np.sqrt(b) <= SEQUENCES) & (cost.kv_tokens >= n.longest)
    if not able.any():
        return NONE
    best = int(np.argmax(np.where(able, rate, 0.0)))
    return Pace(float(rate[best]), int(full[best]), float(b[best]))


def _mixed(cost: StepCost, b: Floats, n: Lengths) -> tuple[Floats, Floats]:
    """Mean seconds of an iteration with b decodes and their share of prompts, and of one with a lump in it."""
    fed = b * n.prompt / n.output
    lump = np.minimum(np.maximum(n.prompt, fed), BUDGET - b)
    share = fed / lump
    tokens = cost.tokens[b.astype(int)] + _decodes(cost, b, n.context)
    with_lump = cost.tokens[np.ceil(b + lump).astype(int)] + _decodes(cost, b, n.context) + _prompts(cost, lump, n)
    mean = np.where(share <= 1, (1 - share) * tokens + share * with_lump, np.inf)
    return mean, with_lump


def decode(cost: StepCost, service: Service, transfer: float) -> Pace:
    """The rate of an instance that only decodes, `transfer` seconds after the first token."""
    n = service.lengths
    b = np.arange(1.0, SEQUENCES + 1)
    full = np.minimum(np.ceil(b + Z * np.sqrt(b)), SEQUENCES)

    def seconds(batch: Floats) -> Floats:
        return np.asarray(cost.tokens[batch.astype(int)] + _decodes(cost, batch, n.context))

    able = (seconds(full) + transfer / n.output <= service.slo.tpot) & (b + Z * np.sqrt(b) <= SEQUENCES)
    able &= (full * n.context <= KV_SHARE * cost.kv_tokens) & (cost.kv_tokens >= n.longest)
    if not able.any():
        return NONE
    rate = np.where(able, b / (n.output * seconds(b)), 0.0)
    best = int(np.argmax(rate))
    return Pace(float(rate[best]), int(full[best]), float(b[best]))


def prefill(cost: StepCost, service: Service, transfer: float) -> Pace:
    """The rate of an instance that only prefills and sends the KV on, in `transfer` seconds a prompt; by bisection."""
    n, slo = service.lengths, service.slo
    if cost.kv_tokens < n.longest:
        return NONE
    whole = float(cost.tokens[BUDGET] + _prompts(cost, BUDGET, n))
    each = n.prompt / BUDGET * whole
    alone = whole + math.ceil(n.prompt_p95 / BUDGET) * whole  # the iteration under way, and its own
    low, high = 0.0, min(0.99 / each, LINK_LOAD / max(transfer, 1e-12))
    while high - low > 1e-4 * high:
        rate = 0.5 * (low + high)
        if alone + float(_late(rate * each, each)) <= slo.ttft:
            low = rate
        else:
            high = rate
    stay = whole + each / (1 - low * each)  # Little's law gives the load
    return Pace(low, SEQUENCES, max(low * stay, 1.0)) if low > 1e-3 * high else NONE


# ------------------------------------------------------------------------------------------- enumeration


def _layouts(service: Service, kind: Config, nodes: int) -> Iterator[tuple[str, int, int]]:
    """Every cut of the model that uses all GPUs of so many nodes: (layout, copies, GPUs of a copy)."""
    for tp, pp in product((1, 2, 4, 8), STAGES):
        gpus = tp * pp
        spans = gpus > kind.gpus  # a copy that does not fit into a node takes whole ones
        if tp > kind.gpus or kind.gpus % tp or (nodes * kind.gpus) % gpus or (spans and gpus % kind.gpus):
            continue
        if not spans and kind.gpus % gpus:
            continue
        yield _name(service, kind.device, tp, pp), nodes * kind.gpus // gpus, gpus


def _name(service: Service, on: str, tp: int, pp: int = 1) -> str:
    cuts = [f"tp{tp}"] * (tp > 1) + [f"pp{pp}"] * (pp > 1) + [service.dtype] * (service.dtype != "bf16")
    return ":".join([on, service.model, *cuts])


def _together(service: Service, kind: Config, nodes: int) -> Iterator[tuple[float, tuple[Part, ...]]]:
    for layout, copies, gpus in _layouts(service, kind, nodes):
        pace = _pace("both", layout, service, 0.0)
        if pace.rate > 0:
            yield copies * pace.rate, (Part(layout, copies, gpus, "both", pace.batch, pace.rate, pace.load),)


def _phase(service: Service, kind: Config, nodes: int, role: str, link: float) -> list[Part]:
    found = []
    for layout, copies, gpus in _layouts(service, kind, nodes):
        pace = _pace(role, layout, service, link)
        if pace.rate > 0:
            found.append(Part(layout, copies, gpus, role, pace.batch, pace.rate, pace.load))
    return found


@cache
def _pace(role: str, layout: str, service: Service, link: float) -> Pace:
    """`link`: bytes a second at which KV is handed over."""
    cost = step_cost(layout)
    if cost is None:
        return NONE
    if role == "both":
        return colocated(cost, service)
    transfer = service.lengths.prompt * cost.kv_bytes / link
    return (prefill if role == "prefill" else decode)(cost, service, transfer)


def link_bandwidth(one: str, other: str) -> float:
    """Bytes a second between nodes of two devices.

    >>> link_bandwidth("l4", "h100") == link_bandwidth("h100", "l4") <= link_bandwidth("h100", "h100")
    True
    """
    return LINK_EFFICIENCY * min(device(one).nic.bandwidth, device(other).nic.bandwidth)


def _total(part: Part) -> float:
    return part.count * part.rate


def _split(
    service: Service, a: Config, m: int, b: Config, n: int, every: bool
) -> Iterator[tuple[float, tuple[Part, ...]]]:
    """Prefill on m nodes of a, decode on n nodes of b."""
    link = link_bandwidth(a.device, b.device)
    ahead, behind = _phase(service, a, m, "prefill", link), _phase(service, b, n, "decode", link)
    if not every:
        ahead, behind = ([max(parts, key=_total)] if parts else [] for parts in (ahead, behind))
    for first, second in product(ahead, behind):
        yield min(_total(first), _total(second)), (first, second)


def _staged(service: Service, a: Config, b: Config) -> Iterator[tuple[float, tuple[Part, ...]]]:
    """The first layers on a node of a, the rest on a node of b, as many copies as both have room for."""
    for tp_a, tp_b, quarters in product((1, 2, 4, 8), (1, 2, 4, 8), QUARTERS):
        if a.gpus % tp_a or b.gpus % tp_b or a.gpus // tp_a != b.gpus // tp_b or a.device == b.device:
            continue
        layout = f"{_name(service, a.device, tp_a)} {quarters}/4 {_name(service, b.device, tp_b)}"
        pace = _pace("both", layout, service, 0.0)
        if pace.rate > 0:
            copies = a.gpus // tp_a
            yield copies * pace.rate, (Part(layout, copies, tp_a + tp_b, "both", pace.batch, pace.rate, pace.load),)


def enumerate_designs(
    service: Service, configs: Sequence[Config], nodes: int = NODES, *, every: bool = True
) -> list[Design]:
    """Every design, none left out: the columns of the joint problem.

    Without `every`, of designs that split the phases over the same nodes only the one with the best of each phase.

    Kinds that stand in several regions are computed once. A design stays within a region.

    >>> service = Service("llama-3-8b", SLO(ttft=1.0, tpot=0.05), Lengths(1000, 200))
    >>> len(enumerate_designs(service, [Config.read("2xh100@us"), Config.read("2xh100@eu")]))
    144
    """
    kinds = sorted({replace(config, region="") for config in configs})
    counts = range(1, nodes + 1)
    templates: list[tuple[tuple[tuple[Config, int], ...], float, tuple[Part, ...]]] = []
    for a in kinds:
        for m in counts:
            templates += [(((a, m),), rate, parts) for rate, parts in _together(service, a, m)]
    for a, b in product(kinds, kinds):
        for m, n in product(counts, counts):
            both: tuple[tuple[Config, int], ...] = ((a, m), (b, n)) if a != b else ((a, m + n),)
            templates += [(both, rate, parts) for rate, parts in _split(service, a, m, b, n, every)]
        if a != b:
            templates += [(((a, 1), (b, 1)), rate, parts) for rate, parts in _staged(service, a, b)]
    found = []
    for region in sorted({config.region for config in configs}):
        index = {replace(c, region=""): i for i, c in enumerate(configs) if c.region == region}
        for uses, rate, parts in templates:
            if all(kind in index for kind, _ in uses):
                found.append(Design(tuple(sorted((index[kind], n) for kind, n in uses)), rate, parts))
    return found


# ---------------------------------------------------------------------------------------------- pruning


def prune(found: Sequence[Design]) -> list[Design]:
    """Only designs that no other, and no two others together, replace at no more nodes and no less rate.

    Nothing is lost: wherever a plan uses a design that is dropped, what replaces it serves as much, costs no more at
    any prices, and takes no node more.

    >>> kept = prune([Design(((0, 1),), 2.0), Design(((0, 1),), 3.0), Design(((0, 2),), 6.0), Design(((0, 2),), 7.0)])
    >>> [(design.nodes, design.rate) for design in kept]
    [(((0, 1),), 3.0), (((0, 2),), 7.0)]
    """
    best: dict[tuple[tuple[int, int], ...], Design] = {}
    for design in found:
        if design.rate > best.get(design.nodes, Design((), 0.0)).rate:
            best[design.nodes] = design
    kept: dict[tuple[tuple[int, int], ...], Design] = {}
    for nodes in sorted(best, key=lambda nodes: (sum(n for _, n in nodes), nodes)):
        design = best[nodes]
        inside = [kept[v] for v in _vectors_within(nodes) if v in kept]
        rates = {other.nodes: other.rate for other in inside}
        one = max(rates.values(), default=0.0)
        two = max(
            (x.rate + rates.get(y, 0.0) for x in inside for y in _vectors_within(_less(nodes, x.nodes))), default=0.0
        )
        if design.rate > max(one, two) * (1 + 1e-12):
            kept[nodes] = design
    return sorted(kept.values(), key=lambda design: design.nodes)


def _vectors_within(nodes: tuple[tuple[int, int], ...]) -> list[tuple[tuple[int, int], ...]]:
    """All vectors of nodes that are no larger in any component, except none at all."""
    ranges = product(*([(c, k) for k in range(n + 1)] for c, n in nodes))
    return [v for v in (tuple((c, k) for c, k in pick if k) for pick in ranges) if v]


def _less(nodes: tuple[tuple[int, int], ...], taken: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    gone = dict(taken)
    return tuple((c, n - gone.get(c, 0)) for c, n in nodes if n > gone.get(c, 0))


def designs(service: Service, configs: Sequence[Config], nodes: int = NODES) -> list[Design]:
    """Stage 1 for one model: every design, pruned. Once per model; prices and availability play no part."""
    return prune(enumerate_designs(service, configs, nodes, every=False))
