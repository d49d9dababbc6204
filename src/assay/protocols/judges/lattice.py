"""Consistency models as points of one lattice: which past an observer must see, and how it orders forks.

A configuration is a closure (relations under which every view is closed) and an ordering (how far observers agree, and
whether their order refines causality). It demands a set of properties, and some properties imply others:

- *mw* (monotonic writes) and *wfr* (writes follow reads) together make causality among writes, and that includes
  *object*, causality within one object; with *own* (read your writes) and *mono* (monotonic reads) it is full;
- an order that refines causality has a place for every cause before its effect. So it cannot be applied to a view that
  lacks the cause: such an *ordering supplies closure*. These rules alone cross from one axis to the other;
- where all views are prefixes of one order, a write comes after all that its writer had read: a single order refines
  that much of causality whether it wants to or not, and supplies *wfr*. An observer that only ever appends to its
  order (a memory does) never loses what it has seen, and supplies *mono*.

The demands closed under these rules are ordered by inclusion. A reader may honestly read data of a store if the store
keeps all that the reader promises. That the rules are neither too few nor too many is not assumed:
:mod:`assay.protocols.lcc.executions` compares them with all small executions.

>>> causal, convergent = NAMED["causal"], NAMED["causal-convergent"]
>>> le(causal, convergent), le(convergent, causal)
(True, False)
>>> describe(meet(NAMED["read-your-writes"], convergent))
'own · trivial'
>>> unclosed = Configuration(frozenset(), Ordering("local", "causality"))
>>> le(causal, unclosed), splits(causal, unclosed)  # the ordering alone supplies what causal consistency asks for
(True, False)

The definitions are our reading of the paper's abstract terms (inferred), made exact so that they can be counted.

Which is the strongest model that a history satisfies, and what broke the next one?

Models form an order, not a list: causal memory and causal convergence are both weaker than sequential consistency, and
neither contains the other. `STRONGER` holds the order, `strongest` climbs it from the top: what a stronger model gives,
a weaker one has for free.

>>> history = [
...     Operation(0, "write", "x", 1, None, 0.0, 1.0),
...     Operation(0, "write", "x", 2, None, 2.0, 3.0),
...     Operation(1, "read", "x", None, 1, 4.0, 5.0),
... ]
>>> ladder = strongest(history)
>>> ladder.maximal, [judgement.model for judgement in ladder.broken]
(('sequential',), ['linearizable'])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from assay.protocols.judges import causal, linearizable, list_append, rw_register, sequential, sessions
from assay.protocols.judges.judgement import ENOUGH, HOLDS, UNKNOWN, VIOLATED, Budget, Judgement, in_turn, returned
from assay.protocols.judges.saturation import nothing
from assay.protocols.judges.specifications import Specification, guess, writes_registers
from assay.workloads.histories import Operation

SESSION = ("own", "mono", "mw", "wfr")
RELATIONS = (*SESSION, "object")
AGREEMENTS = ("trivial", "local", "per-object", "total", "single")
"""How far observers agree on the order: no order; each with itself; on each object; on everything; and always on a
prefix of it. On top comes real time, which no observer can see: a store needs a serializer outside for it."""
REFINEMENTS = ("none", "writer", "object", "causality")
"""Which causes come before their effects in the order: none; a writer's earlier writes; those on the object; all."""
FULL = frozenset(RELATIONS)
NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, order=True)
class Ordering:
    """How forks are ordered."""

    agreement: str = "trivial"
    refines: str = "none"
    appends: bool = False
    """Whether an observer puts what it sees later behind what it has seen, as a memory does."""
    realtime: bool = False
    """Whether it also keeps the order in which operations returned: a composite of a store and a serializer."""

    def __post_init__(self) -> None:
        if self.agreement not in AGREEMENTS:
            raise ValueError(f"no agreement '{self.agreement}'; one of {', '.join(AGREEMENTS)} expected")
        if self.refines not in REFINEMENTS:
            raise ValueError(f"no refinement '{self.refines}'; one of {', '.join(REFINEMENTS)} expected")
        if self.agreement == "trivial" and (self.refines != "none" or self.appends):
            raise ValueError("no order at all cannot refine or append; an agreement from 'local' on expected")
        if self.realtime and (self.agreement, self.refines) != ("single", "causality"):
            raise ValueError("real time needs a single order that refines causality")

    def __str__(self) -> str:
        refining = "" if self.refines == "none" else f" refining {self.refines}"
        return f"{self.agreement}{refining}{' appending' * self.appends}{' in real time' * self.realtime}"


@dataclass(frozen=True)
class Configuration:
    """A closure and an ordering, as written; `demands` is what they come to together."""

    closure: frozenset[str] = NONE
    ordering: Ordering = Ordering()

    def __post_init__(self) -> None:
        if unknown := self.closure - FULL:
            raise ValueError(f"no relation '{min(unknown)}'; one of {', '.join(RELATIONS)} expected")

    @property
    def demands(self) -> frozenset[str]:
        """All properties that the configuration implies, on both axes."""
        return _demands(self)

    def __str__(self) -> str:
        return describe(self.demands)


Point = frozenset[str]
"""An element of the lattice: a set of properties that is closed under `RULES`."""

CLOSURE_RULES: tuple[tuple[Point, Point], ...] = ((frozenset({"mw", "wfr"}), frozenset({"object"})),)
ORDER_RULES: tuple[tuple[Point, Point], ...] = (
    (frozenset({"per-object"}), frozenset({"local"})),
    (frozenset({"total"}), frozenset({"per-object"})),
    (frozenset({"single"}), frozenset({"total"})),
    (frozenset({"appends"}), frozenset({"local"})),
    (frozenset({"refines-writer"}), frozenset({"local"})),
    (frozenset({"refines-object"}), frozenset({"local"})),
    (frozenset({"refines-causality"}), frozenset({"refines-writer", "refines-object"})),
    (frozenset({"single", "refines-writer"}), frozenset({"refines-object"})),
    (frozenset({"realtime"}), frozenset({"single", "refines-causality"})),
)
COUPLING: tuple[tuple[Point, Point], ...] = (
    (frozenset({"refines-writer"}), frozenset({"mw"})),
    (frozenset({"refines-object"}), frozenset({"object"})),
    (frozenset({"refines-causality"}), FULL),
    (frozenset({"single"}), frozenset({"wfr"})),
    (frozenset({"appends"}), frozenset({"mono"})),
    (frozenset({"single", "mono"}), frozenset({"appends"})),
    (frozenset({"single", "refines-writer", "own", "mono"}), frozenset({"refines-causality"})),
)
RULES = CLOSURE_RULES + ORDER_RULES + COUPLING


def close(properties: Iterable[str], rules: Iterable[tuple[Point, Point]] = RULES) -> Point:
    """All that follows from the properties.

    >>> sorted(close({"own", "mono", "mw", "wfr"}))
    ['mono', 'mw', 'object', 'own', 'wfr']
    """
    closed = frozenset(properties)
    rules = tuple(rules)
    while True:
        larger = closed.union(*(then for given, then in rules if given <= closed))
        if larger == closed:
            return closed
        closed = larger


def _ordering_properties(ordering: Ordering) -> frozenset[str]:
    named = set() if ordering.agreement == "trivial" else {ordering.agreement}
    if ordering.refines != "none":
        named.add(f"refines-{ordering.refines}")
    if ordering.appends:
        named.add("appends")
    if ordering.realtime:
        named.add("realtime")
    return frozenset(named)


@cache
def _demands(configuration: Configuration) -> Point:
    return close(axes(configuration))


@cache
def axes(configuration: Configuration) -> Point:
    """The demands of each axis for itself: what a product of two orders would compare."""
    return close(configuration.closure | _ordering_properties(configuration.ordering), CLOSURE_RULES + ORDER_RULES)


def le(weaker: Configuration | Point, stronger: Configuration | Point) -> bool:
    """Whether a reader that promises `weaker` may honestly read data kept by `stronger`."""
    return point(weaker) <= point(stronger)


def splits(weaker: Configuration, stronger: Configuration) -> bool:
    """The same question asked on each axis for itself, without the coupling."""
    return axes(weaker) <= axes(stronger)


def point(configuration: Configuration | Point) -> Point:
    """The lattice's element of a configuration, or of any set of properties."""
    return configuration.demands if isinstance(configuration, Configuration) else close(configuration)


def meet(*parts: Configuration | Point) -> Point:
    """The strongest point that all of them keep: what survives a migration along a path."""
    return frozenset.intersection(*(point(part) for part in parts))


def join(*parts: Configuration | Point) -> Point:
    """The weakest point that keeps what each of them keeps."""
    return close(frozenset().union(*(point(part) for part in parts)))


def describe(what: Configuration | Point) -> str:
    """A point in words: its closure, then its ordering."""
    closed = point(what)
    relations = "full" if closed >= FULL else "+".join(name for name in RELATIONS if name in closed) or "none"
    agreement = next((name for name in reversed(AGREEMENTS) if name in closed), "trivial")
    refined = [name for name in REFINEMENTS if f"refines-{name}" in closed]
    refining = f" refining {'causality' if 'causality' in refined else '+'.join(refined)}" if refined else ""
    appending = " appending" if "appends" in closed and "single" not in closed else ""
    return f"{relations} · {agreement}{refining}{appending}{' in real time' * ('realtime' in closed)}"


def closures() -> Iterator[frozenset[str]]:
    """All different closures: the unions of relations, full causality once.

    >>> len(set(closures()))
    28
    """
    for size in range(len(RELATIONS) + 1):
        for chosen in combinations(RELATIONS, size):
            if close(chosen, CLOSURE_RULES) == frozenset(chosen):
                yield frozenset(chosen)


def orderings(realtime: bool = False) -> Iterator[Ordering]:
    """All orderings; the composite one, in real time, only where asked for.

    >>> len(list(orderings())), len(list(orderings(realtime=True)))
    (33, 34)
    """
    yield Ordering()
    for agreement in AGREEMENTS[1:]:
        for refines in REFINEMENTS:
            for appends in (False, True):
                yield Ordering(agreement, refines, appends)
    if realtime:
        yield Ordering("single", "causality", realtime=True)


def configurations(realtime: bool = False) -> list[Configuration]:
    """Every pair of a closure and an ordering."""
    return [Configuration(closure, ordering) for ordering in orderings(realtime) for closure in closures()]


def hasse(points: Iterable[Configuration | Point]) -> list[tuple[Point, Point]]:
    """The edges of the order's diagram: (weaker, stronger) with nothing of the given points between.

    >>> edges = hasse([NAMED["none"], NAMED["causal"], NAMED["sequential"]])
    >>> [describe(stronger) for _, stronger in edges]
    ['full · trivial', 'full · single refining causality']
    """
    distinct = sorted({point(one) for one in points}, key=lambda one: (len(one), sorted(one)))
    edges = []
    for low in distinct:
        above = [high for high in distinct if low < high]
        edges += [(low, high) for high in above if not any(low < between < high for between in above)]
    return edges


def _model(closure: str, agreement: str = "trivial", refines: str = "none", **more: bool) -> Configuration:
    relations = FULL if closure == "full" else frozenset(closure.split())
    return Configuration(relations, Ordering(agreement, refines, **more))


NAMED: dict[str, Configuration] = {
    "none": _model(""),
    "read-your-writes": _model("own"),
    "monotonic-reads": _model("mono"),
    "monotonic-writes": _model("mw"),
    "writes-follow-reads": _model("wfr"),
    "pram": _model("own", "local", "writer", appends=True),
    "convergent": _model("", "total"),
    "coherent": _model("object", "per-object", "object"),
    "processor": _model("own", "per-object", "writer", appends=True),
    "causal": _model("full"),
    "causal-memory": _model("full", "local", "causality", appends=True),
    "causal-convergent": _model("full", "total", "causality"),
    "consistent-prefix": _model("", "single"),
    "sequential": _model("full", "single", "causality"),
    "linearizable": _model("full", "single", "causality", realtime=True),
}
"""The models of the standard safety fragment and their coordinates. That these are the right ones is checked against
the models' own definitions in :mod:`assay.protocols.lcc.definitions`."""


STRONGER: dict[str, tuple[str, ...]] = {  # each model, and those just below it
    "linearizable": ("sequential",),
    "sequential": ("causal-memory", "causal-convergent"),
    "causal-memory": ("causal", "pram"),
    "causal-convergent": ("causal", "monotonic-reads"),
    "causal": ("read-your-writes", "monotonic-writes", "writes-follow-reads"),
    "pram": ("read-your-writes", "monotonic-reads", "monotonic-writes"),
    "read-your-writes": (), "monotonic-reads": (), "monotonic-writes": (), "writes-follow-reads": (),
}  # fmt: skip
ISOLATION: dict[str, tuple[str, ...]] = {
    "strict-serializable": ("strong-session-serializable",),
    "strong-session-serializable": ("serializable", "strong-session-snapshot-isolation"),
    "serializable": ("snapshot-isolation",),
    "strong-session-snapshot-isolation": ("snapshot-isolation",),
    "snapshot-isolation": ("read-committed",),
    "read-committed": ("read-uncommitted",),
    "read-uncommitted": (),
}
STRICT = next(iter(ISOLATION))
SAME = {linearizable.PER_KEY: "linearizable"}
"""Models that hold when another one does, and no other time: linearizability is local (Herlihy and Wing, 1990)."""
MODELS = (*STRONGER, *SAME, *ISOLATION)


@dataclass(frozen=True)
class Ladder:
    """What holds, what does not, and where the border runs."""

    judgements: tuple[Judgement, ...]
    """One for each model, the strongest first."""
    maximal: tuple[str, ...]
    """The models that hold while nothing above them does."""
    broken: tuple[Judgement, ...]
    """The violated models of which everything below holds: the next ones up, with a witness each."""

    same: tuple[Judgement, ...] = ()
    """Of models that are one of the others in other words (`SAME`)."""

    def __getitem__(self, model: str) -> Judgement:
        return next(judgement for judgement in self.rows if judgement.model == model)

    @property
    def rows(self) -> tuple[Judgement, ...]:
        """All judgements, the strongest first, each with the same in other words behind it."""
        return tuple(
            row for one in self.judgements for row in (one, *(o for o in self.same if SAME[o.model] == one.model))
        )


def judge(
    history: Sequence[Operation], model: str, specification: Specification | None = None, budget: Budget = ENOUGH,
    *, prefix: bool = True,
) -> Judgement:  # fmt: skip
    """Judge one model by its name; `prefix` asks for the longest good prefix too.

    Raises:
        ValueError: no such model.
        BadInput: an operation that the model or the specification does not know.

    """
    if model == "linearizable":
        return linearizable.judge(history, specification, budget)
    if model == linearizable.PER_KEY:
        return linearizable.judge_keys(history, specification, budget)
    if model == "sequential":
        return sequential.judge(history, specification, budget, prefix=prefix)
    if model in (*causal.MODELS, *sessions.MODELS):
        if specification is not None and specification.name not in ("register", "cas-register"):
            return Judgement(model, UNKNOWN, reason=f"judged for registers only, not for a {specification.name}")
        first = specification.first if specification is not None else nothing
        if model in causal.MODELS:
            return causal.judge(history, model, prefix=prefix, first=first)
        return sessions.judge(history, model, prefix=prefix, first=first)
    if model in list_append.MODELS:
        if _registers(history, specification):
            return rw_register.judge(history, model, specification, budget, prefix=prefix)
        return list_append.judge(history, model, prefix=prefix)
    raise ValueError(f"no model '{model}'; there are {', '.join(MODELS)}")


def levels_of(*, transactions: bool) -> tuple[str, ...]:
    """The models of a history of transactions, or of operations on single objects, the strongest first.

    >>> levels_of(transactions=False)[:3]
    ('linearizable', 'per-key-linearizable', 'sequential')
    """
    if transactions:
        return tuple(ISOLATION)
    same = {model: tuple(name for name, other in SAME.items() if other == model) for model in STRONGER}
    return tuple(name for model in STRONGER for name in (model, *same[model]))


def strongest(
    history: Sequence[Operation], specification: Specification | None = None, budget: Budget = ENOUGH
) -> Ladder:  # fmt: skip
    """Climb the order of models; transactions climb the order of isolation levels."""
    transactions = any(operation.f == "txn" for operation in history)
    order = ISOLATION if transactions else STRONGER
    chosen = None if transactions else specification or guess(history)
    registers = transactions and _registers(history, specification)
    chosen = specification if registers else chosen
    levels = list_append.levels(history, prefix=False) if transactions and not registers else None
    known: dict[str, Judgement] = {}
    for model in order:
        if model not in known:
            known[model] = levels(model) if levels else judge(history, model, chosen, budget, prefix=False)
            # Time alone does not say who did what.
            if known[model].verdict == HOLDS and model != "linearizable" and (model != STRICT or in_turn(history)):
                _imply(model, order, known, returned(history))
    judgements = tuple(known[model] for model in order)
    same = () if transactions else (linearizable.judge_keys(history, chosen, budget, known["linearizable"]),)
    holding = {model for model, judgement in known.items() if judgement.verdict == HOLDS}
    above: dict[str, list[str]] = {model: [] for model in order}
    for model, below in order.items():
        for weaker in below:
            above[weaker].append(model)
    maximal = tuple(model for model in order if model in holding and not holding & set(above[model]))
    broken = tuple(
        judgement for judgement in judgements
        if judgement.verdict == VIOLATED and all(known[weaker].verdict != VIOLATED for weaker in order[judgement.model])
    )  # fmt: skip
    return Ladder(judgements, maximal, broken, same)


def _registers(history: Sequence[Operation], specification: Specification | None) -> bool:
    """Whether transactions are on registers."""
    if specification is not None:
        return specification.name in ("rw-register", "multi-register")
    return writes_registers(history)


def _imply(model: str, order: dict[str, tuple[str, ...]], known: dict[str, Judgement], prefix: int) -> None:
    for weaker in order[model]:
        if weaker not in known:
            known[weaker] = replace(known[model], model=weaker, reason=f"as it is {model}", prefix=prefix)
            _imply(weaker, order, known, prefix)
