"""Measured operation times, each once: an SQLite file from which the step time of many models follows.

A row belongs to an operation's signature (its name with the sizes the model gives), a machine, and the sizes the
request gives: how many tokens, how many sequences and context, how long a chunk after how many tokens, how many bytes.
What is already there is not timed again, also when another model brought it. Per signature a small regression makes a
function of the samples: monotone and piecewise linear in the tokens; linear in sequences and context for a decode's
attention; a0 + a1 p + a2 p (pre + p/2) for a prompt chunk's. Summed over a model's operations they are its `StepCost`.

>>> db = ProfileDB()
>>> for n, seconds in ((1, 1e-3), (100, 2e-3)):
...     db.put("mm", "mm(T×64, 64×32)", "my cpu", {"T": n}, seconds)
>>> db.fit("mm(T×64, 64×32)", "my cpu").seconds(T=50.5)
0.0015
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression, nnls

from assay.record.errors import BadInput
from assay.sim.llm_cost import StepCost

Array = NDArray[np.float64]
Dims = Mapping[str, int]

SCHEMA = """
CREATE TABLE IF NOT EXISTS op (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, signature TEXT NOT NULL, machine TEXT NOT NULL,
  config TEXT NOT NULL DEFAULT '', UNIQUE (signature, machine, config));
CREATE TABLE IF NOT EXISTS sample (op INTEGER NOT NULL REFERENCES op (id), dims TEXT NOT NULL, seconds REAL NOT NULL);
CREATE INDEX IF NOT EXISTS sample_op ON sample (op);
CREATE TABLE IF NOT EXISTS uses (
  model TEXT NOT NULL, backend TEXT NOT NULL, tp INTEGER NOT NULL, dtype TEXT NOT NULL, signature TEXT NOT NULL,
  count INTEGER NOT NULL, PRIMARY KEY (model, backend, tp, dtype, signature));
"""


class ProfileDB:
    """Samples by signature and machine, and which operations each model consists of."""

    def __init__(self, path: str | Path = ":memory:") -> None:
        try:
            self.connection = sqlite3.connect(path)
            self.connection.executescript(SCHEMA)
        except sqlite3.DatabaseError as error:
            raise BadInput(f"{path}: not a profile database ({error})") from None

    def put(self, op: str, signature: str, machine: str, dims: Dims, seconds: float, config: str = "") -> None:
        """Add a sample. `config` is what else the time depends on: a source hash, a tile size."""
        if not seconds > 0.0:
            raise BadInput(f"{signature} at {dict(dims)}: {seconds} is no time")
        where = (signature, machine, config)
        self.connection.execute("INSERT OR IGNORE INTO op (name, signature, machine, config) VALUES (?, ?, ?, ?)",
                                (op, *where))  # fmt: skip
        self.connection.execute(
            "INSERT INTO sample SELECT id, ?, ? FROM op WHERE signature = ? AND machine = ? AND config = ?",
            (json.dumps(dict(dims), separators=(",", ":")), seconds, *where),
        )

    def has(self, signature: str, machine: str, config: str = "") -> bool:
        """Whether the operation was timed on this machine: then it need not be again.

        >>> ProfileDB().has("mm(T×64, 64×32)", "my cpu")
        False
        """
        found = self.connection.execute(
            "SELECT 1 FROM op WHERE signature = ? AND machine = ? AND config = ?", (signature, machine, config)
        )
        return found.fetchone() is not None

    def samples(self, signature: str, machine: str, config: str = "") -> list[tuple[dict[str, int], float]]:
        """All (request sizes, seconds) of an operation."""
        rows = self.connection.execute(
            "SELECT dims, seconds FROM sample JOIN op ON op.id = sample.op "
            "WHERE signature = ? AND machine = ? AND config = ?",
            (signature, machine, config),
        )
        return [(json.loads(dims), seconds) for dims, seconds in rows]

    def use(self, model: str, operations: Mapping[str, int], backend: str = "", tp: int = 1, dtype: str = "") -> None:
        """Remember which operations an iteration of a model consists of, and how often each occurs."""
        self.connection.executemany(
            "INSERT OR REPLACE INTO uses VALUES (?, ?, ?, ?, ?, ?)",
            [(model, backend, tp, dtype, signature, count) for signature, count in operations.items()],
        )

    def operations(self, model: str, backend: str = "", tp: int = 1, dtype: str = "") -> dict[str, int]:
        """What `use` remembered."""
        rows = self.connection.execute(
            "SELECT signature, count FROM uses WHERE model = ? AND backend = ? AND tp = ? AND dtype = ?",
            (model, backend, tp, dtype),
        )
        return {signature: int(count) for signature, count in rows}

    def fit(self, signature: str, machine: str, config: str = "", window: float = math.inf) -> Fit:
        """The regression over an operation's samples; an attention looks back at most `window` tokens."""
        samples = self.samples(signature, machine, config)
        if not samples:
            raise BadInput(f"{signature} was not timed on {machine}: profile it first")
        return fit(samples, window)

    def save(self) -> None:
        """Make what was put durable."""
        self.connection.commit()


# ------------------------------------------------------------------------------------------- regressions


@dataclass(frozen=True)
class Curve:
    """Monotone and piecewise linear in one size; beyond the last knot it goes on as it ended.

    `knots` are where the slope changes: between two of them a span's time is a straight line.
    """

    knots: Array
    values: Array

    def __call__(self, x: ArrayLike) -> Array:
        """Seconds at each size."""
        at = np.asarray(x, float)
        inside = np.asarray(np.interp(at, self.knots, self.values))
        if len(self.knots) < 2:
            return inside
        # A line from the origin through the last knot would forget a fixed part; the last half's chord does not.
        half = float(np.interp(self.knots[-1] / 2, self.knots, self.values))
        slope = (self.values[-1] - half) / (self.knots[-1] / 2)
        return np.asarray(np.where(at > self.knots[-1], self.values[-1] + slope * (at - self.knots[-1]), inside))


def monotone(x: Sequence[float], y: Sequence[float]) -> Curve:
    """Least squares among non-decreasing piecewise linear functions; repeated sizes are averaged by their median.

    >>> monotone([1, 2, 3], [1.0, 3.0, 2.0]).values.tolist()
    [1.0, 2.5, 2.5]
    """
    sizes = np.unique(np.asarray(x, float))
    middle = np.array([np.median(np.asarray(y)[np.asarray(x) == size]) for size in sizes])
    return Curve(sizes, np.asarray(isotonic_regression(middle).x))


@dataclass(frozen=True)
class Fit:
    """What the samples of one operation say: some of a curve, a decode's and a chunk's coefficients."""

    size: str = ""  # T, R or bytes: the curve's argument
    curve: Curve | None = None
    decode: tuple[float, float, float] = (0.0, 0.0, 0.0)  # a0 + a1 b + a2 S
    prefill: tuple[float, float, float] = (0.0, 0.0, 0.0)  # a0 + a1 p + a2 p (pre + p/2)

    def seconds(self, **sizes: float) -> float:
        """The time at given request sizes: `T=`, `R=`, `bytes=`, or `b=, S=`, or `c=, pre=`."""
        if "b" in sizes:
            a = self.decode
            return a[0] + a[1] * sizes["b"] + a[2] * sizes["S"]
        if "c" in sizes:
            a, c = self.prefill, sizes["c"]
            return a[0] + a[1] * c + a[2] * c * (sizes["pre"] + c / 2)
        if self.curve is None or self.size not in sizes:
            raise BadInput(
                f"this operation depends on {self.size or 'b and S, or c and pre'}, not on {', '.join(sizes)}"
            )
        return float(self.curve(sizes[self.size]))


def relative_nnls(columns: Sequence[ArrayLike], y: Array) -> Array:
    """Non-negative coefficients of the columns with the least relative squared error.

    >>> relative_nnls([[1.0, 1.0], [1.0, 2.0]], np.array([3.0, 5.0])).round(6).tolist()
    [1.0, 2.0]
    """
    design = np.stack([np.asarray(column, float) for column in columns], 1) / y[:, None]
    scale = np.linalg.norm(design, axis=0)
    scale[scale == 0.0] = 1.0
    return np.asarray(nnls(design / scale, np.ones(len(y)))[0] / scale)


def fit(samples: Iterable[tuple[Dims, float]], window: float = math.inf) -> Fit:
    """Choose the regression by the sizes the samples vary; with a window, S counts up to `window` per sequence.

    >>> fit([({"b": b, "S": s}, 1e-5 + 2e-6 * b + 1e-9 * s) for b in (1, 8) for s in (100, 5000)]).decode[1]
    2e-06
    """
    rows = list(samples)
    decodes = [(d["b"], d["S"], t) for d, t in rows if "b" in d]
    chunks = [(d["c"], d["pre"], t) for d, t in rows if "c" in d]
    rest = [(d, t) for d, t in rows if "b" not in d and "c" not in d]
    decode = prefill = (0.0, 0.0, 0.0)
    if decodes:
        b, s, y = np.array(decodes, float).T
        s = np.minimum(s, window * b)
        decode = _three(relative_nnls([np.ones_like(b), b, s], y))
    if chunks:
        c, pre, y = np.array(chunks, float).T
        pairs = c * np.minimum(pre + c / 2, window)
        prefill = _three(relative_nnls([np.ones_like(c), c, pairs], y))
    if not rest:
        return Fit(decode=decode, prefill=prefill)
    size = next((name for name in ("R", "T", "bytes") if name in rest[0][0]), "")
    if not size:
        raise BadInput(f"samples must vary T, R, bytes, (b, S) or (c, pre); these have {', '.join(rest[0][0])}")
    return Fit(size, monotone([d[size] for d, _ in rest], [t for _, t in rest]), decode, prefill)


def _three(found: Array) -> tuple[float, float, float]:
    a, b, c = (float(f"{x:.12g}") for x in found)
    return a, b, c


def step_cost(
    db: ProfileDB,
    operations: Mapping[str, int],
    machine: str,
    *,
    max_tokens: int = 8192,
    padded: Sequence[int] = (),
    window: float = math.inf,
    name: str = "",
    kv_tokens: int = 0,
) -> StepCost:
    """The step time of a model from its operations and how often each occurs.

    `padded` lists the batch sizes an engine rounds up to (CUDA graphs). What depends on the sampled rows is charged
    per decoding sequence, with one row always there.
    """
    n = np.arange(max_tokens + 1, dtype=float)
    sizes = np.array(sorted(padded), float)
    seen = sizes[np.minimum(np.searchsorted(sizes, n), len(sizes) - 1)] if len(sizes) else n
    effective = np.maximum(np.where(n <= (sizes[-1] if len(sizes) else 0), seen, n), 1)
    tokens, rows = np.zeros(max_tokens + 1), 0.0
    decode, prefill = np.zeros(3), np.zeros(3)
    for signature, count in operations.items():
        found = db.fit(signature, machine, window=window)
        decode += count * np.array(found.decode)
        prefill += count * np.array(found.prefill)
        if found.curve is None:
            continue
        if found.size == "R":
            one, most = float(found.curve(1)), float(found.curve.knots[-1])
            tokens += count * one
            rows += count * (float(found.curve(most)) - one) / max(1.0, most - 1)
        else:
            tokens += count * found.curve(effective)
    bounded = math.isfinite(window)  # by a sliding window
    return StepCost(
        tokens=tokens, decode_fixed=float(decode[0]), decode_seq=float(decode[1]) + rows,
        decode_kv=0.0 if bounded else float(decode[2]), decode_window=float(decode[2]) if bounded else 0.0,
        window=window, prefill_fixed=float(prefill[0]), prefill_token=float(prefill[1]),
        prefill_pair=0.0 if bounded else float(prefill[2]), prefill_pair_window=float(prefill[2]) if bounded else 0.0,
        kv_tokens=kv_tokens, name=name, notes=(f"profile of {len(operations)} operations on {machine}",),
    )  # fmt: skip
