"""FalconGEMM: schemes with fewer multiplications than the definition, used only where they are faster.

Strassen's scheme and its kin trade multiplications for additions of blocks: seven products instead of eight, or 49
instead of 64. The products are the vendor's own; what decides is the cost of the additions, which only move memory. So
every operand is read once and every sum is formed on the way, and a decision from the machine's own measured rates says
for each shape whether a scheme pays, which one, and otherwise leaves the product to the vendor.

From the abstract and digests: the four stages, group-parallel reuse of what is on the chip, the decision by arithmetic
and bandwidth. Reconstructed here: the form of the decision, the order of work, and the schemes beside Strassen's and
Winograd's, which a walk of our own found.

Strassen 1969; Winograd 1971; arXiv:2605.06057.

>>> import numpy as np
>>> from assay.kernels import gemm
>>> gemm(np.array([[1.0, 2.0], [3.0, 4.0]]), np.eye(2)).tolist()
[[1.0, 2.0], [3.0, 4.0]]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.kernels.engine import elsewhere, runner
from assay.kernels.falcongemm import cpu, profiles
from assay.kernels.falcongemm.decision import VENDOR, Profile, choose, frontier, roofline
from assay.kernels.falcongemm.product import decide_gemm, gemm, gemm_weights
from assay.kernels.falcongemm.schemes import Scheme, brent, library, named, nested, read_scheme
from assay.kernels.falcongemm.shapes import shapes
from assay.kernels.interface import Cost, Implementation, Kernel, Match
from assay.record import measures
from assay.record.errors import BadInput
from assay.record.intervals import bootstrap
from assay.record.tables import Tables
from assay.record.timing import granted, interleave, median
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.random import stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["Scheme", "brent", "decide_gemm", "gemm", "gemm_weights", "read_scheme"]

evidence = Evidence.REAL
use_when = "Matrices of several thousand rows are multiplied in float32 on a processor, or on a GPU without TF32."
avoid_when = (
    "A GPU's tensor cores multiply bfloat16: an H200 has so much arithmetic for its memory that additions cost what "
    "multiplications save, but for the largest shapes. Or entries of very different size must keep their own "
    "relative precision."
)
own_input = "assay compare kernels --gemm examples/shapes.csv"
references = (
    "OpenBLAS on a processor and cuBLAS on a GPU, as NumPy and torch call them.",
    "Unfused: every sum an array of its own, as AlphaTensor's schemes were first run.",
    "Brent's equations: Brent 1970. Flip graphs: Kauers and Moosbauer, 2022.",
)
OURS = "falcongemm"
VENDOR_HERE = "openblas"
FUSED = "winograd"  # what is compared with the same scheme unfused: a product left to the vendor would prove nothing
PEERS = ("winograd", "2x3x3", "winograd of winograd")

# ------------------------------------------------------------------------------------------ the comparison

Pair = tuple[Any, Any]


def drawn(shape: tuple[int, int, int], dtype: str, seed: int) -> Pair:
    """Two matrices with entries between -1/2 and 1/2."""
    random, (m, k, n) = stream(seed, "falcongemm", *shape), shape
    kind = np.dtype(dtype).type
    a, b = (random.random(size, dtype=kind) - kind(0.5) for size in ((m, k), (k, n)))
    return a, b


def _probe(p: Pair) -> tuple[Any, Any]:
    """The product times a vector of signs, in double precision: what any right product must give (Freivalds)."""
    a, b = p
    x = np.where(np.arange(b.shape[1]) * 2654435761 % 1024 < 512, 1.0, -1.0)
    inner = np.concatenate([b[i : i + 512].astype(np.float64) @ x for i in range(0, len(b), 512)])
    return x, np.concatenate([a[i : i + 512].astype(np.float64) @ inner for i in range(0, len(a), 512)])


def _check(p: Pair, out: Any, right: Any) -> Match:
    """Within 64 eps, times what entries of this size add up to at random."""
    (x, told), size = right, (p[0].shape[1] * p[1].shape[1]) ** 0.5
    off = np.abs(out.astype(np.float64) @ x - told).max() / size
    return Match(bool(off <= 64 * np.finfo(out.dtype).eps), float(off))


def cost(p: Pair) -> Cost:
    """Two operations a term of the definition, operands read and the result written once. Schemes do with fewer."""
    a, b = p
    m, k, n = a.shape[0], a.shape[1], b.shape[1]
    return Cost(2.0 * m * k * n, a.itemsize * (m * k + k * n + m * n), dtype="f32" if a.itemsize == 4 else "f64")


KERNEL = Kernel("gemm", _probe, _check, cost)


def _torch(p: Pair) -> Any:
    import torch

    return (torch.from_numpy(p[0]) @ torch.from_numpy(p[1])).numpy()


def contenders(shape: tuple[int, int, int]) -> list[Implementation]:
    """Ours, the vendors' libraries, schemes whether they pay or not, and the textbook way."""

    def same(p: Pair) -> Pair:
        return p

    count = cpu.threads()
    ways = [
        Implementation(OURS, "numba", same, lambda p: gemm(*p), threads=count),
        Implementation(VENDOR_HERE, "numpy", same, lambda p: np.matmul(*p), threads=count),
    ]
    ways += [Implementation(name, "numba", same, partial(_forced, name), threads=count) for name in PEERS]
    if all(size % 2 == 0 for size in shape):
        textbook = partial(_unfused, named("winograd"))
        ways.append(Implementation("winograd, unfused", "numpy", same, textbook, threads=count))
    lacks = "" if find_spec("torch") else "torch is not installed"
    ways.append(Implementation("torch", "torch", same, _torch, lambda: lacks, threads=count))
    return ways


def _unfused(scheme: Scheme, p: Pair) -> Any:
    return cpu.unfused(p[0], p[1], scheme)


def _forced(name: str, p: Pair) -> Any:
    return gemm(*p, scheme=name)


# ------------------------------------------------------------------------------------------------- the study


def exact(scheme: str, seed: int) -> dict[str, Any]:
    """Brent's equations, and products of whole numbers: every entry equal."""
    one = named(scheme)
    random = stream(seed, "falcongemm exact", scheme)
    sizes = [parts * int(random.integers(1, 4)) for parts in (one.m, one.k, one.n)]
    a, b = (random.integers(-1000, 1000, size) for size in ((sizes[0], sizes[1]), (sizes[1], sizes[2])))
    whole = Scheme(one.name, one.m, one.k, one.n, *(table.astype(np.int64) for table in (one.u, one.v, one.w)))
    same = bool((cpu.unfused(a, b, whole) == a @ b).all())
    nests = brent(nested(one, named("strassen"))) if one.rank < 30 else True
    return {"size": one.size, "brent": brent(one), "whole_numbers": same, "nested": nests, "saved": one.saved}


def speed(m: int, k: int, n: int, dtype: str, rounds: int, wide: bool, seed: int) -> dict[str, dict[str, Any]]:
    """The vendor, the scheme the decision thinks best, and (if `wide`) others and the textbook way, on one thread.

    Seconds are the processor's, which leaves out what others compute meanwhile.
    """
    a, b = drawn((m, k, n), dtype, seed)
    kind = "f32" if dtype == "float32" else "f64"
    with cpu.one_thread():
        profile = profiles.here(kind)
        choice = choose(profile, (m, k, n))
        names = sorted(library(), key=lambda name: choice.seconds.get(name, 0.0))[: 2 if wide else 1]
        out, space = np.empty((m, n), a.dtype), cpu.Workspace()
        runs: dict[str, Callable[[], Any]] = {VENDOR: lambda: np.matmul(a, b, out=out)}
        for name in dict.fromkeys([*names, *(("winograd",) if wide else ())]):
            runs[name] = partial(cpu.multiply, a, b, named(name), out, space)
        if wide:
            runs["unfused"] = lambda: cpu.unfused(a, b, named("winograd"))
        right, match = _probe((a, b)), {}
        for name, run in runs.items():  # also warms up
            found = run()
            match[name] = _check((a, b), found if name == "unfused" else out, right)
        taken = {name: median(values) for name, values in interleave(runs, rounds, time.process_time).items()}
    best, quiet = min(value for name, value in taken.items() if name != "unfused"), granted()
    rows = {
        name: {"seconds": seconds, "gain": taken[VENDOR] / seconds - 1, "right": match[name].right,
               "predicted": choice.seconds.get(name), "chosen": choice.name, "granted": quiet}
        for name, seconds in taken.items()
    }  # fmt: skip
    ours = taken[choice.name]
    rows[OURS] = rows[VENDOR] | {"seconds": ours, "gain": taken[VENDOR] / ours - 1, "regret": ours / best - 1,
                                 "predicted": choice.seconds[choice.name]}  # fmt: skip
    return rows


def errors(n: int, dtype: str, seed: int) -> dict[str, dict[str, Any]]:
    """The largest error of each scheme beside the vendor's, against double precision (or twice that)."""
    a, b = drawn((n, n, n), dtype, seed)
    finer = np.float64 if dtype == "float32" else np.longdouble
    right = a.astype(finer) @ b.astype(finer)
    vendor = float(np.abs(a @ b - right).max())
    found: dict[str, dict[str, Any]] = {}
    for name in ("strassen", *PEERS, "3x3x3"):
        off = float(np.abs(gemm(a, b, name) - right).max())
        found[name] = {"error": off / float(np.abs(right).max()), "growth": off / vendor}
    return found


def _machines() -> list[tuple[Profile, str]]:
    """Profiles to decide with: measured ones, and data sheets of the paper's machines at the share an H200 reached."""
    with cpu.one_thread():
        known = [(profiles.here("f32"), "measured")]
    for kind in ("bf16", "f16", "tf32", "f32"):
        try:
            known.append((profiles.there("h200", kind), "measured"))
        except BadInput:
            continue
    reached = 0.75  # of the H200's data sheet in bf16, by cuBLAS: `assay machine`
    known += [
        (roofline("H20", "bf16", 2, 148e12, 4.0e12, reached), "data sheet"),
        (roofline("A100", "f32", 4, 19.5e12, 2.0e12, reached), "data sheet"),
        (roofline("H200", "bf16", 2, 989e12, 4.8e12, reached), "data sheet"),
    ]
    return known


def decisions(every: int, seed: int) -> dict[str, dict[str, Any]]:
    """For each machine: from which size on a scheme pays, and what is predicted over shapes of language models."""
    picked = stream(seed, "falcongemm shapes").permutation(len(shapes()))[:: max(1, every)]
    some = [shapes()[i] for i in picked]
    few = [named(name) for name in PEERS]
    found: dict[str, dict[str, Any]] = {}
    for profile, source in _machines():
        for static in (False, True):
            made = [choose(profile, shape, few, static) for shape in some]
            gains = [choice.gain for choice in made if choice.scheme]
            found[f"{profile.machine}, {profile.dtype}, {source}{', weights before' if static else ''}"] = {
                "from_n": frontier(profile, static), "share": len(gains) / len(made), "shapes": len(made),
                "predicted_gain": float(np.exp(np.mean(np.log1p(gains))) - 1) if gains else None, "off": profile.off,
                "ridge": max(profile.rates) * profile.moving, "source": source,
            }  # fmt: skip
    return found


def study(lab: Lab) -> Tables:
    """Every scheme exactly; products on one thread of this processor; errors; where schemes pay, machine by machine."""
    some = lab.with_seeds(quick=2, full=3)
    squares = lab.pick(quick=((1536, True), (3072, False)),
                       full=((1024, True), (2048, True), (3072, True), (4096, True), (8192, False)))  # fmt: skip
    cases = [{"m": n, "k": n, "n": n, "dtype": "float32", "wide": wide} for n, wide in squares]
    layers = lab.pick(quick=(), full=((512, 4096, 6144), (1024, 4096, 4096), (2048, 3072, 3072), (2048, 4096, 4096)))
    cases += [{"m": m, "k": k, "n": n, "dtype": "float32", "wide": True} for m, k, n in layers]
    cases = [case | {"rounds": lab.pick(quick=2, full=3)} for case in cases]
    return {
        "exact": some.run(exact, [{"scheme": name} for name in library()]),
        "speed": some.run(speed, cases, per="method", alone=True),
        "errors": some.run(errors, [{"n": lab.pick(quick=512, full=2048), "dtype": "float32"}], per="method"),
        "decisions": lab.with_seeds(quick=1, full=1).run(
            decisions, [{"every": lab.pick(quick=20, full=1)}], per="machine"
        ),
    }


# ------------------------------------------------------------------------------------------------ the claims

NO_ROWS = "measured on an H200 only, and no rows of one are stored"


@cache
def h200_rows(dtype: str = "") -> tuple[dict[str, Any], ...]:
    """Shapes that were measured on an H200, of one dtype or all."""
    return tuple(row for row in elsewhere.rows("h200", OURS) if not dtype or row["dtype"] == dtype)


def _there(dtype: str = "") -> tuple[dict[str, Any], ...]:
    if not (rows := h200_rows(dtype)):
        raise NotMeasured(NO_ROWS)
    return rows


def _gains(values: list[float]) -> Estimate:
    """The geometric mean of ratios of throughput, as a change."""
    found = bootstrap(np.log(values))
    value, low, high = (float(np.expm1(value)) for value in (found.value, found.low, found.high))
    return Estimate(value, low, high, found.n)


def _here(table: pl.DataFrame, method: str, largest: bool = True) -> pl.DataFrame:
    rows = measures.rows(table, {"experiment": "speed", "method": method})
    runner.quiet_enough(rows["granted"].to_list())
    return rows.filter(pl.col("n") == pl.col("n").max()) if largest else rows


def _over_vendor_here(table: pl.DataFrame) -> Estimate:
    return _gains([1 + gain for gain in _here(table, OURS)["gain"]])


def _over_unfused_here(table: pl.DataFrame) -> Estimate:
    rival = _here(table, "unfused")
    ours = _here(table, FUSED, largest=False).join(rival, on=["m", "k", "n", "seed"], suffix="_rival")
    return _gains((ours["seconds_rival"] / ours["seconds"]).to_list())


def _ours(row: dict[str, Any], by: str = "confirmed") -> float:
    """Seconds with the decision on, in rounds that it did not see; on a GPU a trial of what the model named made it."""
    return float(row["seconds_of"][row[by]])


def _vendor_there(dtype: str) -> measures.Measure:
    """Ours as the decision has it over the vendor, geometric mean over shapes."""
    return lambda table: _gains([row["seconds_of"][VENDOR] / _ours(row) for row in _there(dtype)])


def _unfused_there(dtype: str) -> measures.Measure:
    """A scheme over the same unfused, whether it pays or not, geometric mean over shapes."""

    def measure(table: pl.DataFrame) -> Estimate:
        if not (both := [row["unfused"] / row["fused"] for row in _there(dtype) if "unfused" in row]):
            raise NotMeasured(NO_ROWS)
        return _gains(both)

    return measure


CHECK = "falcongemm-check"
GPU_KINDS = ("bf16", "f16", "tf32", "f32")


def _everywhere(here: measures.Measure, there: Callable[[str], measures.Measure]) -> dict[str, measures.Measure]:
    """By machine and dtype: this processor, and each dtype on an H200."""
    return {"this processor, f32": here} | {f"H200, {kind}": there(kind) for kind in GPU_KINDS}


def _prefill(dtype: str) -> measures.Measure:
    def measure(table: pl.DataFrame) -> Estimate:
        rows = [row for row in elsewhere.rows("h200", "falcongemm-prefill") if row["dtype"] == dtype]
        if not rows:
            raise NotMeasured(NO_ROWS)
        return _gains([v / o for row in rows for v, o in zip(row["vendor"], row["ours"], strict=True)])

    return measure


def _exact(table: pl.DataFrame) -> Estimate:
    rows = measures.rows(table, {"experiment": "exact"})
    held = rows.select((pl.col("brent") & pl.col("whole_numbers") & pl.col("nested")).alias("held"))["held"]
    return measures.counted(float(held.mean()), len(held))  # type: ignore[arg-type]


def _right(table: pl.DataFrame) -> Estimate:
    held = measures.rows(table, {"experiment": "speed"})["right"].to_list()
    return measures.counted(sum(held) / len(held), len(held))


def _right_there(table: pl.DataFrame) -> Estimate:
    """Of the plans that won a product on an H200: whether their checks were passed. What was not checked is told."""
    checks = {(row["dtype"], f"{row['scheme']}, {row['way']}"): row for row in elsewhere.rows("h200", CHECK)}
    won = [(row["dtype"], row["confirmed"]) for row in _there() if row["confirmed"] != VENDOR]
    if unseen := [plan for plan in won if plan not in checks]:
        told = f"{len(unseen)} of {len(won)} products won on the H200 were won by plans that no check there has seen"
        raise NotMeasured(told)
    held = [checks[plan]["right"] for plan in set(won)]
    return measures.counted(sum(held) / len(held), len(held))


def _slowest(by: str) -> measures.Measure:
    """The most that the decision made a product slower on an H200."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = _there()
        worst = max(_ours(row, by) / row["seconds_of"][VENDOR] - 1 for row in rows)
        given = sum(row[by] != VENDOR for row in rows)
        return Estimate(worst, worst, worst, len(rows), f"{given} of {len(rows)} products given to a scheme")

    return measure


def _where_chosen(dtype: str) -> measures.Measure:
    """What products given to a scheme gain on an H200."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = _there(dtype)
        taken = [row["seconds_of"][VENDOR] / _ours(row) for row in rows if row["confirmed"] != VENDOR]
        if not taken:
            raise NotMeasured(f"the decision left all {len(rows)} shapes to the vendor: none gains there")
        return replace(_gains(taken), cases=f"{len(taken)} of {len(rows)} products")

    return measure


def _weights_before(table: pl.DataFrame) -> Estimate:
    """The same where the right operand was combined before, all dtypes."""
    kept = [row["static"] for row in _there() if "static" in row]
    if not kept:
        raise NotMeasured(NO_ROWS)
    found = _gains([one[VENDOR] / one["seconds"] for one in kept])
    return replace(found, cases=f"{len(kept)} of {len(_there())} products")


def _regret_there(dtype: str) -> measures.Measure:
    """The decision's time over the best of all plans, over all shapes."""
    return lambda table: bootstrap([_ours(row) / min(row["seconds_of"].values()) - 1 for row in _there(dtype)])


def _regret_here(table: pl.DataFrame) -> Estimate:
    return bootstrap(_here(table, OURS, largest=False)["regret"].to_list())


def _growth(table: pl.DataFrame) -> Estimate:
    """Of Strassen's scheme, one level."""
    return measures.mean("growth", experiment="errors", method="strassen")(table)


claims = [
    Claim("vendor-best", measures.best(_everywhere(_over_vendor_here, _vendor_there))),
    Claim("vendor-least", measures.best(_everywhere(_over_vendor_here, _vendor_there), min, every=True)),
    Claim("schemes-best", measures.best(_everywhere(_over_unfused_here, _unfused_there))),
    Claim("schemes-least", measures.best(_everywhere(_over_unfused_here, _unfused_there), min, every=True)),
    Claim("prefill", measures.best({f"H200, {kind}": _prefill(kind) for kind in ("bf16", "f32")})),
    Claim("exact", _exact, asks="Every scheme satisfies Brent's equations and multiplies whole numbers exactly.",
          kind=Kind.EVERY),
    Claim("right", _right, asks="Every product is the right one within rounding.", kind=Kind.EVERY),
    Claim("right-there", _right_there, asks="On an H200, too, with every plan that won a product.", kind=Kind.EVERY),
    Claim("processor", _over_vendor_here, asks="On one thread of this processor the largest square product in float32 "
          "gains at least 5 % over OpenBLAS.", kind=Kind.AT_LEAST, value=0.05, unit="change"),
    Claim("regret-here", _regret_here, asks="On this processor the decision is at most 3 % slower than the best of "
          "what was tried, on average.", kind=Kind.AT_MOST, value=0.03, unit="change"),
    Claim("slowest", _slowest("confirmed"), asks="On an H200 no product is more than 2 % slower than cuBLAS with the "
          "decision on.", kind=Kind.AT_MOST, value=0.02, unit="change"),
    Claim("model-alone", _slowest("chosen"), asks="On an H200 no product is more than 2 % slower than cuBLAS if the "
          "model decides alone.", kind=Kind.AT_MOST, value=0.02, unit="change"),
    Claim("where-chosen", _where_chosen(""), asks="On an H200 products given to a scheme gain at least 5 %, geometric "
          "mean, all dtypes.", kind=Kind.AT_LEAST, value=0.05, unit="change"),
    Claim("where-chosen-bf16", _where_chosen("bf16"), asks="On an H200 those of 960 in bfloat16 that are given "
          "to a scheme gain at least 5 %, geometric mean.", kind=Kind.AT_LEAST, value=0.05, unit="change"),
    Claim("weights-before", _weights_before, asks="On an H200 products given to a scheme with their right operand "
          "combined before gain at least 5 %, geometric mean.", kind=Kind.AT_LEAST, value=0.05, unit="change"),
    Claim("regret-h200", measures.best({f"H200, {kind}": _regret_there(kind) for kind in GPU_KINDS}, max),
          asks="On an H200 the decision is at most 3 % slower than the best of all plans, on average, in every dtype.",
          kind=Kind.AT_MOST, value=0.03, unit="change"),
    Claim("growth", _growth, asks="One level of Strassen has at most 10 times the vendor's largest error.",
          kind=Kind.AT_MOST, value=10.0, unit="ratio"),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """Throughput over the vendor's, size by size, on this processor; and on an H200 where that is on record."""
    import altair as alt

    speeds = table.filter(
        (pl.col("experiment") == "speed") & (pl.col("m") == pl.col("n")) & (pl.col("k") == pl.col("n"))
    )
    rows = [
        {"n": row["n"], "gain": row["gain"], "method": row["method"], "machine": "this processor, f32"}
        for row in speeds.iter_rows(named=True)
        if row["method"] not in (VENDOR, OURS)
    ]
    rows += [
        {"n": row["n"], "gain": row["gain"], "method": row["method"], "machine": f"H200, {row['dtype']}"}
        for row in elsewhere.rows("h200", "falcongemm-squares")
        if row["method"] != VENDOR
    ]
    title = alt.Title(
        "Throughput over the vendor's", subtitle="square products: all schemes, and the best at each size"
    )
    points = alt.Chart(pl.DataFrame(rows), title=title, width=460, height=300).encode(
        x=alt.X("n:Q", scale=alt.Scale(type="log", nice=False), title="size (log)"),
        y=alt.Y("gain:Q", title="gain", axis=alt.Axis(format="%")),
        color=alt.Color("machine:N", title=None),
    )
    best = points.mark_line(point=True).encode(y=alt.Y("max(gain):Q", title="gain", axis=alt.Axis(format="%")))
    zero = alt.Chart(pl.DataFrame({"gain": [0.0]})).mark_rule(strokeDash=[4, 3]).encode(y="gain:Q")
    chart: alt.LayerChart = zero + points.mark_point(filled=True, opacity=0.3, size=20) + best
    return chart
