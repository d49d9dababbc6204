"""The machine at hand, measured once by small benchmarks and kept with its fingerprint.

Bandwidth by number of threads (a triad, a read and a copy over arrays several times the last cache: the best counts as
what memory can do), the peak of a matrix product by dtype, reads of four bytes at random places, and how long it takes
until all threads have begun and ended. A measurement is kept if others left the cores alone meanwhile and it lies
within what memory and cores can do; it is thrown away when it is old, when it is of fewer threads, or when a glance at
the machine outruns it. A machine elsewhere is the same record from a file of ours: `named("h200")`.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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
from assay.record.timing import ENOUGH, Gauge
from assay.sim.compiled import njit

BYTES = 256 << 20  # an array: several times the last cache
ROUNDS = 5
OLD = timedelta(days=30)
OUTRUN = 1.25  # a glance that is so much faster proves that what was kept was disturbed
FASTEST = 2e11  # bytes a second that no thread of any processor moves to or from memory
FLOPS = 6e9 * 128  # a second that no core reaches in float32: two 32-wide multiply-adds a cycle at 6 GHz


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


def unphysical(machine: Machine) -> str:
    """Why a measurement cannot be what the machine does: in a few words, or nothing.

    >>> right = Machine("m", "", {1: 1e10, 2: 1.5e10}, {"f32": 1e11, "f64": 5e10}, {1: 1e8, 2: 2e8}, 1e-6)
    >>> unphysical(right)
    ''
    >>> unphysical(replace(right, bandwidth={1: 1e10, 2: 3.8e9}))
    '2 threads move 3.8 GB/s, one 10'
    """
    rates = [*machine.bandwidth.values(), *machine.peaks.values(), *machine.gathers.values(), machine.sync]
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        return "a rate is no number above 0"
    one, most = machine.bandwidth[min(machine.bandwidth)], max(machine.bandwidth)
    for threads, rate in machine.bandwidth.items():
        told = f"{threads} threads move {rate / 1e9:.3g} GB/s, one {one / 1e9:.3g}"
        if not ENOUGH * one <= rate <= OUTRUN * threads * one or rate > FASTEST * threads:
            return told
    single, double = machine.peaks.get("f32", 0.0), machine.peaks.get("f64", 0.0)
    if single > FLOPS * max(most, facts.facts()["cores"]) or double > OUTRUN * single:
        return f"products reach {single / 1e9:.3g} GFLOP/s in float32 and {double / 1e9:.3g} in float64"
    for threads, rate in machine.gathers.items():
        if 4 * rate > OUTRUN * machine.bandwidth.get(threads, math.inf):
            return f"random reads of four bytes move {4 * rate / 1e9:.3g} GB/s, more than a row of them"
    return ""


def outdated(measured: str, now: datetime | None = None) -> bool:
    """Whether what was measured on a day is too long ago to be believed, or of no known day.

    >>> outdated("2026-01-05, on this machine", datetime(2026, 1, 20, tzinfo=UTC)), outdated("today")
    (False, True)
    """
    try:
        day = datetime.fromisoformat(measured[:10]).replace(tzinfo=UTC)
    except ValueError:
        return True
    return abs((now or datetime.now(UTC)) - day) > OLD


def quiet(gauge: Gauge, cores: int) -> bool:
    """Whether others left the cores to what was measured."""
    return gauge.free >= ENOUGH * cores


def _glance() -> tuple[float, float]:
    """Bytes a second read by all threads, and operations a second of a product in float32: tenths of a second."""
    a, n = np.ones(BYTES // 8), 1024
    p = np.random.default_rng(0).random((n, n)).astype(np.float32)
    return a.nbytes / _best(lambda: _read(a), 2), 2 * n**3 / _best(partial(np.matmul, p, p), 2)


def _believed(path: Path) -> Machine | None:
    """What was kept of this machine, unless it is cut off, old, of other threads, impossible, or outrun."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Machine)
    except (OSError, msgspec.DecodeError):
        return None
    cores = min(facts.facts()["cores"], numba.get_num_threads())
    if outdated(kept.measured) or cores not in kept.bandwidth or unphysical(kept):
        return None
    read, product = _glance()
    outrun = read > OUTRUN * kept.bandwidth[cores] or product > OUTRUN * max(kept.peaks.values())
    return None if outrun else kept


_LOOKED: dict[Path, Machine] = {}  # what this process has looked at or measured already
_ONE = threading.Lock()


def _in_child() -> None:
    """A child that was forked while a thread measured does not have that thread, which would give the lock back."""
    global _ONE
    _ONE = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def here(again: bool = False) -> Machine:
    """This machine as it was measured before; measured now if it never was, if that is not to be believed, or `again`.

    What was measured while others computed, or cannot be, serves this process and says so; it is not kept.
    """
    path = _file()
    with _ONE:
        if again or path not in _LOOKED:
            _LOOKED[path] = (None if again else _believed(path)) or _measured(path)
        return _LOOKED[path]


def _measured(path: Path) -> Machine:
    with Gauge() as gauge:
        found = measure()
    cores = min(facts.facts()["cores"], numba.get_num_threads())
    why = unphysical(found)
    if not why and not quiet(gauge, cores):
        why = f"others left {gauge.free:.1f} of {cores} cores"
    if why:
        return replace(found, measured=f"{found.measured}; {why}: rough, not kept")
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
