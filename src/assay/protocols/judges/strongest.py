"""Which is the strongest model that a history satisfies, and what broke the next one?

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

from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.protocols.judges import causal, linearizable, list_append, sequential, sessions
from assay.protocols.judges.judgement import ENOUGH, HOLDS, UNKNOWN, VIOLATED, Budget, Judgement, returned
from assay.protocols.judges.specifications import Specification, guess
from assay.workloads.histories import Operation

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
    "strict-serializable": ("serializable",),
    "serializable": ("snapshot-isolation",),
    "snapshot-isolation": ("read-committed",),
    "read-committed": ("read-uncommitted",),
    "read-uncommitted": (),
}
MODELS = (*STRONGER, *ISOLATION)


@dataclass(frozen=True)
class Ladder:
    """What holds, what does not, and where the border runs."""

    judgements: tuple[Judgement, ...]
    """One for each model, the strongest first."""
    maximal: tuple[str, ...]
    """The models that hold while nothing above them does."""
    broken: tuple[Judgement, ...]
    """The violated models of which everything below holds: the next ones up, with a witness each."""

    def __getitem__(self, model: str) -> Judgement:
        return next(judgement for judgement in self.judgements if judgement.model == model)


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
    if model == "sequential":
        return sequential.judge(history, specification, budget, prefix=prefix)
    if model in (*causal.MODELS, *sessions.MODELS):
        if specification is not None and specification.name not in ("register", "cas-register"):
            return Judgement(model, UNKNOWN, reason=f"judged for registers only, not for a {specification.name}")
        if model in causal.MODELS:
            return causal.judge(history, model, prefix=prefix)
        return sessions.judge(history, model, prefix=prefix)
    if model in list_append.MODELS:
        return list_append.judge(history, model, prefix=prefix)
    raise ValueError(f"no model '{model}'; there are {', '.join(MODELS)}")


def strongest(
    history: Sequence[Operation], specification: Specification | None = None, budget: Budget = ENOUGH
) -> Ladder:  # fmt: skip
    """Climb the order of models; transactions climb the order of isolation levels."""
    transactions = any(operation.f == "txn" for operation in history)
    order = ISOLATION if transactions else STRONGER
    chosen = None if transactions else specification or guess(history)
    levels = list_append.levels(history, prefix=False) if transactions else None
    known: dict[str, Judgement] = {}
    for model in order:
        if model not in known:
            known[model] = levels(model) if levels else judge(history, model, chosen, budget, prefix=False)
            if known[model].verdict == HOLDS and model != "linearizable":  # time alone does not say who did what
                _imply(model, order, known, returned(history))
    judgements = tuple(known[model] for model in order)
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
    return Ladder(judgements, maximal, broken)


def _imply(model: str, order: dict[str, tuple[str, ...]], known: dict[str, Judgement], prefix: int) -> None:
    for weaker in order[model]:
        if weaker not in known:
            known[weaker] = replace(known[model], model=weaker, reason=f"as it is {model}", prefix=prefix)
            _imply(weaker, order, known, prefix)
