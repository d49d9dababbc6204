"""What one iteration of an LLM engine costs: the one formula that every cost model is reduced to.

An engine iterates: each iteration computes one token for every decoding sequence and a chunk of some prompts. With
n tokens in the batch, b of them decodes whose contexts add up to S, and chunks of c tokens that continue a prompt
after `pre` tokens, an iteration takes

    tokens[n]                                        GEMMs, norms, collectives, launches, the scheduler: all that
                                                     sees only how many tokens there are
    + decode_fixed + decode_seq b + decode_kv S + decode_window min(S, window b)        where b > 0
    + per chunk: prefill_fixed + prefill_token c
                 + max(prefill_pair c (pre + c/2), prefill_kv (pre + c))                compute- or memory-bound
                 + prefill_pair_window c min(pre + c/2, window)
    + launch, and at least launch_alone, or launch_mixed beside decodes                 where there are chunks:
                                                     the host launches such an iteration, and may be slower than
                                                     the device; decodes alone replay a recorded graph

Between two changes of the batch S grows by b an iteration and pre by c, so the time is a line in the iteration's
number, until a min or max changes side: that is what lets the serving engine jump. A roofline, a profile database and
a fit to an endpoint's log all end in a `StepCost`; `assay.serving` never asks which.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

FOREVER = 1 << 60  # iterations

# The columns of a packed cost, as the compiled code reads it.
COEFFICIENTS = (
    "decode_fixed", "decode_seq", "decode_kv", "decode_window", "window",
    "prefill_fixed", "prefill_token", "prefill_pair", "prefill_kv", "prefill_pair_window",
    "launch", "launch_alone", "launch_mixed",
)  # fmt: skip
(
    FIXED, SEQ, KV, KV_WINDOW, WINDOW, P_FIXED, P_TOKEN, P_PAIR, P_KV, P_PAIR_WINDOW, LAUNCH, ALONE, MIXED,
) = range(len(COEFFICIENTS))  # fmt: skip


@dataclass(frozen=True)
class Energy:
    """The joules that work costs above idling, and what idling costs.

    `joules[n]` goes with `tokens[n]`; `kv` is per KV token read by a decode, `pair` per query-key pair of a prefill,
    `seq` per decoded token (the state of recurrent layers).
    """

    joules: NDArray[np.float64]
    kv: float
    pair: float
    idle_watts: float
    seq: float = 0.0


@dataclass(frozen=True)
class StepCost:
    """The iteration time of one instance (one layout of one model on one machine), and the memory it has.

    >>> cost = StepCost(tokens=np.linspace(0.010, 0.030, 101), decode_kv=1e-7, kv_tokens=100_000)
    >>> round(cost.seconds(b=10, context=10_000), 6)  # a decode iteration of ten sequences
    0.013
    """

    tokens: NDArray[np.float64]  # tokens[n] for n = 0 .. the largest batch
    decode_fixed: float = 0.0
    decode_seq: float = 0.0
    decode_kv: float = 0.0
    decode_window: float = 0.0
    window: float = math.inf  # tokens a sliding-window layer looks back
    prefill_fixed: float = 0.0
    prefill_token: float = 0.0
    prefill_pair: float = 0.0
    prefill_kv: float = 0.0
    prefill_pair_window: float = 0.0
    launch: float = 0.0  # what laying out an iteration with prompts adds
    launch_alone: float = 0.0  # the least that one of prompts takes
    launch_mixed: float = 0.0  # the least that one of prompts and decodes takes
    kv_tokens: int = 0  # room for this many tokens of KV cache; 0: ask whoever builds the fleet
    kv_bytes: float = 0.0  # of one token, over all ranks of the instance
    energy: Energy | None = None
    name: str = ""
    notes: tuple[str, ...] = field(default=())  # what was assumed, fitted, extrapolated

    def packed(self) -> NDArray[np.float64]:
        """The coefficients in the order the compiled code reads them."""
        return np.array([getattr(self, name) for name in COEFFICIENTS])

    def seconds(self, b: int = 0, context: int = 0, chunks: Sequence[tuple[int, int]] = ()) -> float:
        """The time of one iteration: `b` decodes with `context` KV tokens in all, and (chunk, tokens before) pairs."""
        n, coef = b + sum(chunk for chunk, _ in chunks), self.packed()
        total = float(self.tokens[n]) + decode_line(coef, b, context)[0]
        total += sum(chunk_line(coef, chunk, before)[0] for chunk, before in chunks)
        return float(launch_line(coef, b, total, 0.0, FOREVER)[0] if chunks else total)

    def scaled(self, factor: float) -> StepCost:
        """Every time multiplied by `factor`; memory and energy stay."""
        times = {name: getattr(self, name) * factor for name in COEFFICIENTS if name != "window"}
        return dataclasses.replace(self, tokens=self.tokens * factor, **times)


@njit(cache=True, inline="always")
def _until(gap, slope):
    """For how many iterations k = 0, 1, … a line that starts `gap` below another and gains `slope` stays below."""
    if slope <= 0.0 or not gap / slope < FOREVER:
        return FOREVER
    return max(1, int(math.ceil(gap / slope)))  # noqa: RUF046  compiled, ceil gives a float


@njit(cache=True)
def decode_line(coef, b, context):
    """(alpha, gamma, valid) of the decodes' own share: alpha + gamma k for iterations k < valid."""
    if b == 0:
        return 0.0, 0.0, FOREVER
    alpha = coef[FIXED] + coef[SEQ] * b + coef[KV] * context
    gamma = coef[KV] * b
    valid = FOREVER
    if coef[KV_WINDOW] > 0.0:
        ceiling = coef[WINDOW] * b
        if context < ceiling:
            alpha += coef[KV_WINDOW] * context
            gamma += coef[KV_WINDOW] * b
            valid = _until(ceiling - context, float(b))
        else:
            alpha += coef[KV_WINDOW] * ceiling
    return alpha, gamma, valid


@njit(cache=True)
def chunk_line(coef, chunk, before):
    """(alpha, gamma, valid) of one prompt that computes `chunk` tokens an iteration, `before` of it being there."""
    alpha = coef[P_FIXED] + coef[P_TOKEN] * chunk
    reach = before + 0.5 * chunk
    compute, compute_slope = coef[P_PAIR] * chunk * reach, coef[P_PAIR] * chunk * chunk
    memory, memory_slope = coef[P_KV] * (before + chunk), coef[P_KV] * chunk
    if compute >= memory:
        gamma = compute_slope
        valid = _until(compute - memory, memory_slope - compute_slope)
        alpha += compute
    else:
        gamma = memory_slope
        valid = _until(memory - compute, compute_slope - memory_slope)
        alpha += memory
    if coef[P_PAIR_WINDOW] > 0.0:
        if reach < coef[WINDOW]:
            alpha += coef[P_PAIR_WINDOW] * chunk * reach
            gamma += coef[P_PAIR_WINDOW] * chunk * chunk
            valid = min(valid, _until(coef[WINDOW] - reach, float(chunk)))
        else:
            alpha += coef[P_PAIR_WINDOW] * chunk * coef[WINDOW]
    return alpha, gamma, valid


@njit(cache=True)
def launch_line(coef, b, alpha, gamma, valid):
    """The line of an iteration with prompts beside b decodes: never shorter than the host takes to launch it."""
    alpha += coef[LAUNCH]
    least = coef[MIXED] if b > 0 else coef[ALONE]
    if alpha < least:
        return least, 0.0, min(valid, _until(least - alpha, gamma))
    return alpha, gamma, valid
