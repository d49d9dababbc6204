"""Step times fitted to what was observed: an engine's iterations.

All fits minimise the relative error, since short and long iterations count alike, and keep every coefficient at or
above zero. An endpoint of which only the gateway's log is known is fitted by `assay.live.calibrate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.record.errors import BadInput
from assay.sim.llm_cost import StepCost
from assay.sim.profile_db import relative_nnls

Array = NDArray[np.float64]


class Observed(NamedTuple):
    """One iteration: `b` decodes with `context` KV tokens in all, (chunk, tokens before) prompts, seconds."""

    b: int
    context: int
    chunks: tuple[tuple[int, int], ...]
    seconds: float

    @property
    def n(self) -> int:
        """Tokens computed."""
        return self.b + sum(c for c, _ in self.chunks)


def rounded(n: ArrayLike, sizes: Sequence[int]) -> Array:
    """Token counts as computed by an engine that pads to the next of some sizes; beyond the last it does not.

    >>> rounded([1, 9, 40], (8, 16)).tolist()
    [8.0, 16.0, 40.0]
    """
    count, steps = np.asarray(n, float), np.array(sorted(sizes), float)
    if not len(steps):
        return count
    up = steps[np.minimum(np.searchsorted(steps, count), len(steps) - 1)]
    return np.asarray(np.where(count <= steps[-1], up, count))


def features(steps: Sequence[Observed], knots: Sequence[float], padded: Sequence[int] = ()) -> Array:
    """The columns of the formula: tokens as hinges at the knots, then b, S, chunks, their tokens and pairs."""
    n = rounded([s.n for s in steps], padded)
    chunk = np.array([[len(s.chunks), sum(c * (p + c / 2) for c, p in s.chunks)] for s in steps], float)
    some = np.array([s.b > 0 for s in steps], float)
    hinges = [np.maximum(0.0, n - knot) for knot in knots]
    columns = [np.ones_like(n), *hinges, some, np.array([s.b for s in steps], float),
               np.array([s.context for s in steps], float), chunk[:, 0], chunk[:, 1]]  # fmt: skip
    return np.stack(columns, 1)


def fit_steps(
    steps: Sequence[Observed], *, max_tokens: int = 8192, knots: Sequence[float] = (0.0, 256.0), kv_tokens: int = 0,
    padded: Sequence[int] = (),
) -> StepCost:  # fmt: skip
    """Fit the formula to iterations of known composition; the tokens' part is convex and piecewise linear.

    `padded` lists the sizes that an engine rounds its iterations up to (CUDA graphs).

    >>> truth = StepCost(tokens=0.01 + 1e-5 * np.arange(600), decode_kv=1e-7)
    >>> seen = [Observed(b, b * c, ((p, 0),) if p else (), truth.seconds(b, b * c, ((p, 0),) if p else ()))
    ...         for b in (1, 8, 64) for c in (100, 1000) for p in (0, 64, 500)]
    >>> cost = fit_steps(seen, max_tokens=599)
    >>> round(cost.seconds(30, 9000), 6), round(truth.seconds(30, 9000), 6)
    (0.0112, 0.0112)
    """
    if len(steps) < 6:
        raise BadInput(f"{len(steps)} iterations are too few to fit a step time to: give at least 6")
    x = features(steps, knots, padded)
    found = relative_nnls(list(x.T), np.array([s.seconds for s in steps]))
    k = len(knots)
    n = rounded(np.arange(max_tokens + 1), padded)
    tokens = found[0] + sum(found[1 + i] * np.maximum(0.0, n - knot) for i, knot in enumerate(knots))
    fixed, seq, kv, prefill, pair = found[k + 1 :]
    return StepCost(
        tokens=np.asarray(tokens), decode_fixed=float(fixed), decode_seq=float(seq), decode_kv=float(kv),
        prefill_fixed=float(prefill), prefill_pair=float(pair), kv_tokens=kv_tokens,
        notes=(f"least squares on {len(steps)} iterations",),
    )  # fmt: skip


def add_overheads(cost: StepCost, steps: Sequence[Observed], *, scaled: bool = False) -> StepCost:
    """Add what operations do not explain: scheduling, launching, copying, per iteration, sequence and prompt.

    `scaled` also fits one factor on all operations, for a machine whose speed is not what it was when they were timed.

    >>> bare = StepCost(tokens=np.full(100, 0.010))
    >>> round(add_overheads(bare, [Observed(b, 10 * b, (), 0.012) for b in (1, 2, 4)]).seconds(b=3), 6)
    0.012
    """
    from scipy.optimize import lsq_linear

    if not steps:
        return cost
    predicted = np.array([cost.seconds(s.b, s.context, s.chunks) for s in steps])
    y = np.array([s.seconds for s in steps])
    columns = np.array([[p, 1.0, s.b, len(s.chunks)] for p, s in zip(predicted, steps, strict=True)]) / y[:, None]
    scale = np.linalg.norm(columns, axis=0)
    # The fixed part may be negative: a recorded graph launches at once what was timed one by one.
    least = np.array([0.5 if scaled else 1.0 - 1e-9, 0.0 if scaled else -np.inf, 0.0, 0.0])
    most = np.array([2.0 if scaled else 1.0 + 1e-9, np.inf, np.inf, np.inf])
    seen = scale > 0.0  # what never occurred keeps its zero
    found = np.zeros(4)
    bounds = (least[seen] * scale[seen], most[seen] * scale[seen])
    found[seen] = lsq_linear(columns[:, seen] / scale[seen], np.ones(len(y)), bounds=bounds).x / scale[seen]
    factor, fixed, seq, chunk = found
    floor = 0.1 * cost.tokens  # an iteration never costs less than a tenth of its operations
    base = cost.scaled(float(factor)) if scaled else cost
    return dataclasses.replace(
        base, tokens=np.maximum(base.tokens + float(fixed), floor), decode_seq=base.decode_seq + float(seq),
        prefill_fixed=base.prefill_fixed + float(chunk),
        notes=(*cost.notes, f"overheads from {len(steps)} iterations"),
    )  # fmt: skip


def fit_engine(cost: StepCost, steps: Sequence[Observed]) -> StepCost:
    """What an engine makes of its operations: a factor, costs per iteration, sequence and prompt, and of launching.

    The factor is there because operations are timed in short bursts, and a GPU under load clocks lower. Robust least
    squares on the logarithms: a few iterations that something else disturbed do not count.

    >>> bare = StepCost(tokens=0.004 + 1e-5 * np.arange(600))
    >>> truth = dataclasses.replace(bare.scaled(1.1), launch_alone=0.008, launch_mixed=0.009)
    >>> shapes = [(b, 0, ((p, 0),) if p else ()) for b in (0, 1, 8, 64) for p in (0, 64, 200, 500) if b or p]
    >>> seen = [Observed(b, s, chunks, truth.seconds(b, s, chunks)) for b, s, chunks in shapes]
    >>> fitted = fit_engine(bare, seen)
    >>> round(float(fitted.tokens[0]), 4), round(fitted.launch_alone, 4), round(fitted.launch_mixed, 4)
    (0.0044, 0.008, 0.009)
    """
    from scipy.optimize import least_squares

    if not steps:
        return cost
    work = np.array([cost.seconds(s.b, s.context, s.chunks) for s in steps])
    y = np.array([s.seconds for s in steps])
    b, chunks = np.array([[s.b, len(s.chunks)] for s in steps], float).T
    alone, mixed = (chunks > 0) & (b == 0), (chunks > 0) & (b > 0)
    floors = [float(np.quantile(y[kind], 0.1)) if kind.any() else 0.0 for kind in (alone, mixed)]

    def predicted(x: Array) -> Array:
        device = x[0] * work + x[1] + x[2] * b + x[3] * chunks + x[6] * (chunks > 0)
        return np.asarray(np.maximum(device, np.maximum(alone * x[4], mixed * x[5])))

    def error(x: Array) -> Array:
        return np.asarray(np.log(np.maximum(predicted(x), 0.1 * work) / y))

    least = float(work.min())
    scale = np.array([1.0, least, least, least, *(max(floor, least) for floor in floors), least])
    found = least_squares(
        error, [1.0, 0.0, 0.0, 0.0, *floors, 0.0], x_scale=scale,
        bounds=([0.5, -0.5 * least, *[0.0] * 5], [2.0, *[np.inf] * 6]),
        loss="soft_l1", f_scale=0.05,
    )  # fmt: skip
    factor, fixed, seq, chunk, least_alone, least_mixed, launch = (float(x) for x in found.x)
    base = cost.scaled(factor)
    return dataclasses.replace(
        base, tokens=base.tokens + fixed, decode_seq=base.decode_seq + seq, prefill_fixed=base.prefill_fixed + chunk,
        launch=launch, launch_alone=least_alone, launch_mixed=least_mixed,
        notes=(*cost.notes, f"times {factor:.3f}, and overheads from {len(steps)} iterations"),
    )  # fmt: skip


def fit_grid(steps: Sequence[Observed], *, max_tokens: int = 8192, padded: Sequence[int] = ()) -> StepCost:
    """The formula and its launch floors fitted straight to iterations, with no operation timed."""
    shorter = np.quantile([s.seconds for s in steps if s.chunks] or [0.0], 0.1)
    guides = [s for s in steps if not s.chunks or s.seconds > 1.3 * shorter]  # where the GPU is what is waited for
    knots = (0.0, 64.0, 128.0, 256.0, 512.0)
    bare = fit_steps(guides if len(guides) > 20 else steps, max_tokens=max_tokens, knots=knots, padded=padded)
    return fit_engine(bare, steps)
