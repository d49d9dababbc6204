"""What a policy for branches is, and the records that the steps of `branch_engine` read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNLIMITED = 1 << 40
ORDERS = ("given", "longest", "least")  # as listed; longest remaining first; fewest tokens so far first
GIVEN, LONGEST, LEAST = range(3)
WAITING, PREFILL, DECODE, DONE = range(4)
TERMS = 4  # of the predictor: a constant, what sees only tokens, attention of decodes, attention of prompts
UNIT = 0.01  # seconds of the constant term, so that all terms are of one size
PRIOR = 10.0  # variance of the weights before the first step, in units of a step's noise

# What is counted over a run.
COUNTS = ("running", "again", "arrived", "used", "steps", "preempted", "extras", "done", "peak")
(RUNNING, AGAIN, ARRIVED, USED, STEPS, PREEMPTED, EXTRAS, FINISHED, PEAK) = range(len(COUNTS))

# What is logged about a step: `externality` is what the extras really add, jitter aside; `predicted` what was expected.
LOG = ("now", "base", "total", "budget", "predicted", "externality", "guess", "step", "decodes", "extras", "used")
(L_NOW, L_BASE, L_TOTAL, L_BUDGET, L_PREDICTED, L_TRUE, L_GUESS, L_STEP, L_DECODES, L_EXTRAS, L_USED) = range(len(LOG))


@dataclass(frozen=True)
class Policy:
    """Which extra branches run: at most so many of a request and of a batch and, if `regulated`, within the budget.

    Args:
        per_request: branches of one request that may run at once, its base branch among them.
        per_batch: extra branches that may run at once, over all requests.
        regulated: admit only while the predicted cost fits the budget.
        order: which branches of a stage go first; "longest" needs to know how long branches will get.
        margin: share of the base iteration's time that the budget keeps back.
        forget: weight of a step's measurement one step later (1: never forget).

    >>> Policy("cap-4", per_request=4).regulated
    False
    """

    name: str
    per_request: int = UNLIMITED
    per_batch: int = UNLIMITED
    regulated: bool = False
    order: str = "longest"
    margin: float = 0.05
    forget: float = 0.9995

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"no order '{self.order}'; there are {', '.join(ORDERS)}")
        if self.per_request < 1 or self.per_batch < 0 or self.margin < 0 or not 0.9 <= self.forget <= 1:
            raise ValueError(f"policy '{self.name}' has a cap, a margin or a forgetting factor out of range")


OFF = Policy("irp-off", per_request=1, order="given")
EAGER = Policy("irp-eager")


class Rules(NamedTuple):
    """What holds for a whole run: the policy's caps, and the instance's limits."""

    per_request: int
    per_batch: int
    regulated: bool
    order: int
    margin: float
    forget: float
    block: int
    blocks: int
    spare: int  # blocks that stay free when a request is admitted
    chunk: int
    most: int  # requests at once
    once: bool  # a shared prefix is read once for all branches of a request


class Work(NamedTuple):
    """The trace, as the compiled steps read it."""

    arrival: Floats
    prompt: Ints
    stages: Ints
    branches: Ints
    length: Ints
    ttft: Floats
    tpot: Floats


class Costs(NamedTuple):
    """The truth, and what the predictor starts from."""

    tokens: Floats
    coef: Floats
    believed_tokens: Floats
    believed_coef: Floats
    jitter: float
    key: np.uint64


class State(NamedTuple):
    """Every request and branch between two steps."""

    phase: NDArray[np.int8]
    stage: Ints  # the stage a request is in
    prefix: Ints  # tokens its branches share
    target: Ints  # tokens to prefill
    have: Ints  # of them computed
    held: Ints  # blocks
    tokens: Ints  # output tokens delivered
    alive: Ints  # branches of the stage that are not finished
    width: Ints  # branches that run in this step
    chunk: Ints  # prompt tokens in this step
    first: Floats
    finish: Floats
    made: Ints  # tokens of each branch
    order: Ints  # the stage's branches, those alive in front
    running: Ints
    again: Ints  # requests that lost their blocks, the next one last
    turns: Ints  # requests that may add a branch, to work with
    ended: Ints  # branches that end in this step, to work with
    tally: Ints
    theta: Floats
    spread: Floats  # covariance of theta
    gain: Floats  # of the last update
