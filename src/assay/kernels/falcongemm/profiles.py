"""Profiles of machines: this one's processor, measured once and kept; an H200's, as it was measured there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from assay.kernels.engine import elsewhere, machine
from assay.kernels.falcongemm import cpu
from assay.kernels.falcongemm.decision import Profile, hope, work
from assay.kernels.falcongemm.schemes import named
from assay.record import machine as facts
from assay.record.errors import BadInput
from assay.record.store import home, write_whole
from assay.record.timing import Gauge

SIZES = (192, 640, 1920)
HELD_OUT = ((1280, 1280, 1280), (768, 1920, 1024))
AFTER = 6  # rounds of a scheme after the vendor's product
DTYPES = {"f32": np.float32, "f64": np.float64}


def clock() -> Callable[[], float]:
    """What seconds are read from: with one thread the processor's own, which leaves out what others compute."""
    return time.process_time if cpu.threads() == 1 else time.perf_counter


def _each(run: Callable[[], object], rounds: int) -> list[float]:
    now, taken = clock(), []
    for _ in range(rounds):
        begin = now()
        run()
        taken.append(max(now() - begin, 1e-9))
    return taken


def _fastest(run: Callable[[], object]) -> float:
    return min(_each(run, 2))


def _passes(dtype: Any, n: int) -> tuple[float, float]:
    """Seconds a byte moved and a byte added: from two schemes that differ in how much they add for what they move."""
    a, out, space = np.ones((n, n), dtype), np.empty((n, n), dtype), cpu.Workspace()
    rows, taken = [], []
    for name in ("winograd", "winograd of winograd"):
        scheme = named(name)

        size = -(-n // scheme.m), -(-n // scheme.n)
        products, gap, _ = cpu.room_for(scheme.rank, *size, dtype, space.room("products", dtype))
        products[:] = 1

        def go(scheme: Any = scheme, products: Any = products, gap: int = gap, size: Any = size) -> None:
            cpu.combined(a, scheme.u, scheme.m, scheme.k, space.room("a", dtype))
            cpu.collect(products, gap, size, scheme, out)

        go()
        taken.append(min(_each(go, AFTER)))
        rows.append([a.itemsize * count for count in work((n, n, n), scheme, static=True)])
    (moving, adding) = np.linalg.solve(np.array(rows, float), np.array(taken))
    if adding < 0 or moving < 0:  # noise: charge all to what is moved
        moving, adding = max(t / r[0] for t, r in zip(taken, rows, strict=True)), 0.0
    return float(moving), float(adding)


def measure(dtype: str, sizes: tuple[int, ...] = SIZES) -> Profile:
    """Measure this machine's processor with as many threads as its BLAS uses: a few seconds."""
    kind = DTYPES[dtype]
    large = np.random.default_rng(0).random((2, sizes[-1], sizes[-1])).astype(kind) - kind(0.5)
    shapes, team = [(m, k, n) for m in sizes for k in sizes for n in sizes], cpu.threads()
    rates = [_rate(large, shape, 1, _one) for shape in shapes]
    several = [_rate(large, shape, team, cpu.vendor) for shape in shapes if team > 1]
    moving, adding = _passes(kind, sizes[-1])
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    found = Profile(facts.facts()["cpu"], dtype, np.dtype(kind).itemsize, sizes, _rising(rates, len(sizes)),
                    moving, adding, 2e-5, batched=_rising(several, len(sizes)) if team > 1 else (),
                    threads=team, measured=f"{when}, on this machine")  # fmt: skip
    return _checked(found, large)


def _one(every: list[tuple[Any, Any, Any]]) -> None:
    x, y, out = every[0]
    np.matmul(x, y, out=out)


def _rate(large: Any, shape: tuple[int, int, int], count: int, run: Callable[[Any], object]) -> float:
    """FLOP/s of so many products of a shape."""
    m, k, n = shape
    every = [(large[0, :m, :k], large[1, :k, :n], one) for one in np.empty((count, m, n), large.dtype)]
    return 2.0 * m * k * n * count / _fastest(lambda: run(every))


def _rising(rates: list[float], sizes: int) -> tuple[float, ...]:
    """A larger product reaches no lower a rate; what says otherwise was disturbed.

    >>> _rising([3.0, 2.0, 4.0, 5.0, 3.0, 2.0, 4.0, 6.0], 2)
    (3.0, 3.0, 4.0, 5.0, 3.0, 3.0, 4.0, 6.0)
    """
    table = np.reshape(rates, (sizes,) * 3)
    for axis in range(3):
        table = np.maximum.accumulate(table, axis)
    return tuple(table.ravel().tolist())


def _checked(profile: Profile, large: Any) -> Profile:
    """The same with how much too well it thought of a scheme on shapes that it was not fitted to."""
    off, spun, space, scheme = [], [], cpu.Workspace(), named("winograd")
    for m, k, n in HELD_OUT:
        m, k, n = (min(size, profile.sizes[-1]) for size in (m, k, n))
        x, y, out = large[0, :m, :k], large[1, :k, :n], np.empty((m, n), large.dtype)
        cpu.multiply(x, y, scheme, out, space)
        theirs = _fastest(lambda x=x, y=y, out=out: np.matmul(x, y, out=out))  # type: ignore[misc]
        ours = _each(lambda x=x, y=y, out=out: cpu.multiply(x, y, scheme, out, space), AFTER)  # type: ignore[misc]
        told = profile.seconds((m, k, n), None) / profile.seconds((m, k, n), scheme)
        off.append(math.log(told * min(ours) / theirs))
        spun.append(sum(ours) - AFTER * min(ours))
    # The vendor's threads spin on for some tens of milliseconds after its product, which whoever comes next pays for.
    lost = min(spun) if profile.threads > 1 else 0.0
    return replace(profile, off=hope(off), start=profile.start + lost / 3)


_HERE: dict[Path, Profile] = {}
SURE = 0.2  # a log: a model that hopes more than this too much was measured in a disturbed moment


def unphysical(profile: Profile) -> str:
    """Why a profile cannot be what the machine does: in a few words, or nothing.

    >>> right = Profile("toy", "f32", 4, (256, 1024), (1e9,) * 8, 1e-10, 1e-11, 0.0)
    >>> unphysical(right), unphysical(replace(right, batched=(2e9,) * 8))
    ('', 'products on a thread each reach 2 times the rate of one on all')
    """
    rates = (*profile.rates, *profile.batched)
    if not all(math.isfinite(x) and x > 0 for x in (*rates, profile.moving + profile.adding)):
        return "a rate is no number above 0"
    most = machine.FLOPS * profile.threads / (1 if profile.dtype == "f32" else 2)
    if max(rates) > most:
        return f"products reach {max(rates) / 1e9:.3g} GFLOP/s, which no {profile.threads} cores do"
    if profile.batched and profile.batched[-1] > machine.OUTRUN * profile.rates[-1]:
        more = profile.batched[-1] / profile.rates[-1]
        return f"products on a thread each reach {more:.3g} times the rate of one on all"
    if profile.off > SURE:
        return f"it thinks {math.expm1(profile.off):.0%} too well of schemes".replace("%", " %")
    return ""


def _believed(path: Path) -> Profile | None:
    """What was kept, unless it is cut off, old, impossible, or outrun by a product now."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Profile)
    except (OSError, msgspec.DecodeError):
        return None
    if machine.outdated(kept.measured) or unphysical(kept):
        return None
    n = kept.sizes[1]
    large = np.ones((2, n, n), DTYPES[kept.dtype])
    return None if _rate(large, (n, n, n), 1, _one) > machine.OUTRUN * kept.rate((n, n, n)) else kept


def here(dtype: str, again: bool = False) -> Profile:
    """This machine's profile as it was measured before; measured now if it never was, if it is not to be believed, or
    `again`.

    What was measured while others computed serves this process only. What cannot be leaves products to the vendor.
    """
    with cpu.turn():
        name = f"gemm-{machine.fingerprint()}-{dtype}-{cpu.threads()}-numpy{np.__version__}.json"
        path = home() / "machines" / name
        if again or path not in _HERE:
            _HERE[path] = (None if again else _believed(path)) or _measured(path, dtype)
        return _HERE[path]


def _measured(path: Path, dtype: str) -> Profile:
    for _ in range(2):
        with Gauge() as gauge:
            found = measure(dtype)
        if not (why := unphysical(found)):
            break
    if why:
        return replace(found, off=math.inf, measured=f"{found.measured}; {why}: not believed")
    if not machine.quiet(gauge, found.threads):
        return replace(found, measured=f"{found.measured}; others left {gauge.free:.1f} cores: rough, not kept")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.encode(asdict(found)))
    return found


def there(where: str, dtype: str) -> Profile:
    """A machine's that is not at hand, from what was measured there."""
    for row in elsewhere.rows(where, "falcongemm-profile"):
        if row["dtype"] == dtype:
            told: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in row.items()}
            told.pop("part")
            return Profile(**told)
    raise BadInput(f"no profile of {dtype} products on {where} is stored; --machine here measures this machine")
