"""The machine at hand, measured once by small benchmarks and kept with its fingerprint.

Bandwidth by number of threads (a triad, a read and a copy over arrays several times the last cache: the best counts as
what memory can do), the peak of a matrix product by dtype, reads of four bytes at random places, and how long it takes
until all threads have begun and ended. A machine elsewhere is the same record from a file of ours: `stored("h200")`.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import numba
import numpy as np
from numba import prange

from assay.kernels.engine import elsewhere
from assay.kernels.interface import Machine
from assay.record import machine as facts
from assay.record.errors import BadInput
from assay.record.store import home, write_whole
from assay.sim.compiled import njit

BYTES = 256 << 20  # an array: several times the last cache
ROUNDS = 5


@njit(cache=True, parallel=True, fastmath=True)
def _triad(a, b, c):
    for i in prange(len(a)):
        a[i] = b[i] + 3.0 * c[i]


@njit(cache=True, parallel=True)
def _copy(a, b):
    for i in prange(len(a)):
        a[i] = b[i]


@njit(cache=True, parallel=True, fastmath=True)
def _read(a):
    total = 0.0
    for i in prange(len(a)):
        total += a[i]
    return total


@njit(cache=True, parallel=True)
def _gather(out, at, x):
    for i in prange(len(at)):
        out[i] = x[at[i]]


@njit(cache=True, parallel=True)
def _nothing(out):
    for i in prange(len(out)):
        out[i] = i


def _best(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The shortest of some rounds: what the machine can do when nothing disturbs it."""
    run()
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def fingerprint() -> str:
    """What tells machines apart: processor, cores, memory, GPUs.

    >>> len(fingerprint())
    12
    """
    known = facts.facts()
    text = "|".join(str(known[name]) for name in ("cpu", "cores", "memory_bytes", "gpus"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def measure(size: int = BYTES) -> Machine:
    """Measure this machine: some seconds.

    >>> measured = measure(1 << 20)
    >>> sorted(measured.peaks), measured.bandwidth[1] > 0
    (['f32', 'f64'], True)
    """
    cores, before = facts.facts()["cores"], numba.get_num_threads()
    a, b, c = (np.ones(size // 8) for _ in range(3))
    at = np.random.default_rng(0).integers(0, 2 * len(a), max(1, size // 64)).astype(np.int32)
    x, out, few = a.view(np.float32), np.empty(len(at), np.float32), np.empty(cores * 4, np.int64)
    bandwidth: dict[int, float] = {}
    gathers: dict[int, float] = {}
    more: dict[str, float] = {}
    try:
        counts = sorted({1, min(cores, before)})
        for threads in counts:
            numba.set_num_threads(threads)
            rates = {
                "triad": 3 * a.nbytes / _best(lambda: _triad(a, b, c)),
                "copy": 2 * a.nbytes / _best(lambda: _copy(a, b)),
                "read": a.nbytes / _best(lambda: _read(a)),
            }
            more |= {f"{name}_{threads}": rate for name, rate in rates.items()}
            bandwidth[threads] = max(rates.values())
            gathers[threads] = len(at) / _best(lambda: _gather(out, at, x))
        sync = _best(lambda: _nothing(few), 200)
    finally:
        numba.set_num_threads(before)
    peaks = {}
    n = 1024 if size >= BYTES else 128
    for name, dtype in (("f32", np.float32), ("f64", np.float64)):
        p, q = (np.random.default_rng(i).random((n, n)).astype(dtype) for i in (0, 1))
        peaks[name] = 2 * n**3 / _best(partial(np.matmul, p, q))
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    return Machine(
        facts.facts()["cpu"], fingerprint(), bandwidth, peaks, gathers, sync, f"{when}, on this machine", more
    )


def _file() -> Path:
    return home() / "machines" / f"{fingerprint()}.json"


def here(again: bool = False) -> Machine:
    """This machine as it was measured before; measured now if it never was, or `again`."""
    path = _file()
    if path.exists() and not again:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Machine)
        except msgspec.DecodeError:
            pass  # of another version, or cut off: measure anew
    found = measure()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.encode(found))
    return found


def named(name: str) -> Machine:
    """`here`, or a machine whose measurements come with assay.

    >>> named("h300")
    Traceback (most recent call last):
    assay.record.errors.BadInput: no machine 'h300'; there are here, h200
    """
    if name == "here":
        return here()
    if name not in elsewhere.MACHINES:
        raise BadInput(f"no machine '{name}'; there are here, {', '.join(elsewhere.MACHINES)}")
    return elsewhere.machine(name)
