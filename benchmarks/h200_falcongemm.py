"""Schemes with fewer multiplications on one GPU, checked and beside cuBLAS: where do they pay?

    python3 benchmarks/h200_falcongemm.py              # NVIDIA GPU with NumPy, torch and Triton; no assay
    python3 benchmarks/h200_falcongemm.py shapes       # one part: tune, check, profile, squares, shapes, onchip, prefill
    KIND=bf16,f32 python3 benchmarks/h200_falcongemm.py shapes    # of some dtypes

Schemes, decision and kernels are the package's own files. Writes h200_falcongemm.jsonl to $OUT, or here: a line a
measurement, as it comes. Times are CUDA events, interleaved over rounds, the L2 cache overwritten before each. Ends
itself after LIMIT seconds; what comes first matters most.

On a shape the decision is made as `gemm` makes it (the model says what to try, a trial decides), and then judged by
other rounds, over all plans but those that even at the highest rate measured and the data sheet's bandwidth would lose.
The model is fitted to a grid of sizes and its error to shapes of no model: none of them is among those judged.
"""

# mypy: ignore-errors
# ruff: noqa: B023, E501

from __future__ import annotations

import dataclasses
import os
import sys
import time
import traceback

import numpy as np
import torch

import h200_common as common
from h200_common import STARTED, medians

common.packages("assay.kernels.falcongemm")

from assay.kernels.falcongemm import decision, gpu  # noqa: E402
from assay.kernels.falcongemm.schemes import named  # noqa: E402
from assay.kernels.falcongemm.shapes import shapes as llm_shapes  # noqa: E402

KINDS = {"bf16": torch.bfloat16, "f32": torch.float32, "tf32": torch.float32, "f16": torch.float16}
SCHEMES = [named(name) for name in gpu.SCHEMES]
PROFILES = {}
BANDWIDTH = 4.8e12  # the data sheet's
ASKED = os.environ.get("KIND", "").split(",") if "KIND" in os.environ else []
LIMIT = float(os.environ.get("LIMIT", 165))
tell = None


def left():
    return LIMIT - (time.monotonic() - STARTED)


def use(kind):
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    return KINDS[kind]


def drawn(rows, cols, dtype):
    return (torch.rand((rows, cols), device="cuda", dtype=torch.float32) - 0.5).to(dtype)


def off(out, right):
    """The largest difference over the largest entry."""
    return float((out.double() - right).abs().max() / right.abs().max())


# ------------------------------------------------------------------------------------------------- is it right


def check():
    """Every plan that `gemm` chooses from, on shapes that divide and that do not, beside a product in double precision."""
    for kind in ("bf16", "f16", "tf32", "f32"):
        dtype = use(kind)
        for m, k, n in ((1024, 1024, 1024), (1000, 1111, 777)):
            a, b = drawn(m, k, dtype), drawn(k, n, dtype)
            right = a.double() @ b.double()
            vendor = off(a @ b, right)
            for plan in gpu.plans():
                found = off(gpu.multiply(a, b, plan.scheme, plan.way), right)
                tell(
                    "falcongemm-check",
                    dtype=kind,
                    m=m,
                    k=k,
                    n=n,
                    scheme=plan.scheme.name,
                    way=plan.way,
                    error=found,
                    vendor=vendor,
                    right=found < 40 * vendor,
                )
            turned = b.T.contiguous().T
            found = off(gpu.multiply(a, turned, SCHEMES[0]), right)
            tell(
                "falcongemm-check",
                dtype=kind,
                m=m,
                k=k,
                n=n,
                scheme=SCHEMES[0].name,
                way="by columns",
                error=found,
                vendor=vendor,
                right=found < 40 * vendor,
            )
        a[3, 5] = float("nan")
        b[7, 2] = float("inf")
        ours, theirs = gpu.multiply(a, b, SCHEMES[0]), a @ b
        same = bool((torch.isfinite(ours) == torch.isfinite(theirs)).all() and (ours.isnan() == theirs.isnan()).all())
        tell("falcongemm-check", dtype=kind, scheme=SCHEMES[0].name, way="not finite", right=same)


def tune():
    """The tile of the passes that is fastest, for all of what follows."""
    dtype, n = use("bf16"), 8192
    a, out = drawn(n, n, dtype), torch.empty((n, n), dtype=dtype, device="cuda")
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    products, found = torch.zeros((7, n // 2, n // 2), dtype=dtype, device="cuda"), {}
    for tile in ((4, 256, 4), (1, 1024, 4), (8, 128, 4), (2, 512, 4), (4, 512, 8)):
        gpu.PASS = tile

        def go():
            gpu.sums(a, SCHEMES[0], "a")
            gpu.collect(products, SCHEMES[0], out, flag)

        go()
        found[tile] = medians(gpu.timed({"": go}, 5))[""]
        moved = decision.work((n, n, n), SCHEMES[0], True, gpu.ALIGN).moved * 2
        tell("falcongemm-tune", tile=list(tile), seconds=found[tile], bandwidth=moved / found[tile])
    gpu.PASS = min(found, key=found.get)


# ------------------------------------------------------------------------------------------------- the profile


def profile(kind):
    """The machine's profile, with how far it is off on shapes held out."""
    if kind in PROFILES:
        return PROFILES[kind]
    found = gpu.measure(use(kind), 16384 if kind != "f32" else 8192)
    found = dataclasses.replace(found, measured="on one NVIDIA H200")
    rounded = {name: tuple(float(f"{rate:.4g}") for rate in getattr(found, name)) for name in ("rates", "batched")}
    tell("falcongemm-profile", **dataclasses.asdict(dataclasses.replace(found, **rounded)))
    tell("falcongemm-frontier", dtype=kind, size=decision.frontier(found), static=decision.frontier(found, True),
         off=found.off, shy=found.shy)  # fmt: skip
    torch.cuda.empty_cache()
    PROFILES[kind] = found
    return found


def profiles():
    for kind in ("bf16", "f32", "tf32", "f16"):
        if not ASKED or kind in ASKED:
            profile(kind)


# ----------------------------------------------------------------------------------------------- where it pays


def unfused(a, b, scheme):
    """The textbook way: every sum a tensor of its own, one after the other."""
    m, k, n = scheme.m, scheme.k, scheme.n
    blocks_a = [x for row in a.chunk(m, 0) for x in row.chunk(k, 1)]
    blocks_b = [x for row in b.chunk(k, 0) for x in row.chunk(n, 1)]

    def total(row, blocks):
        first, *rest = np.flatnonzero(row)
        made = blocks[first] if row[first] == 1 else -blocks[first]
        for index in rest:
            made = made + blocks[index] if row[index] == 1 else made - blocks[index]
        return made

    products = [total(u, blocks_a) @ total(v, blocks_b) for u, v in zip(scheme.u, scheme.v, strict=True)]
    return torch.cat([torch.cat([total(scheme.w[i * n + j], products) for j in range(n)], 1) for i in range(m)], 0)


def squares(kinds=("bf16", "f32", "tf32", "f16")):
    """Every scheme and way on square products: the frontier as it is measured."""
    for kind in kinds:
        if ASKED and kind not in ASKED:
            continue
        dtype = use(kind)
        for n in (2048, 4096, 8192, 12288, 16384, 20480):
            if left() < 8 or (kind == "f32" and n > 12288) or (kind == "f16" and n != 16384):
                continue
            a, b = drawn(n, n, dtype), drawn(n, n, dtype)
            runs = {"vendor": lambda: a @ b}
            for scheme in SCHEMES[: 2 if kind == "f16" else 5]:
                for way in ("staged", "batched") if scheme.name == "winograd" else ("batched",):
                    runs[f"{scheme.name}, {way}"] = lambda scheme=scheme, way=way: gpu.multiply(a, b, scheme, way)
            weights = gpu.sums(b, SCHEMES[0], "b")
            runs["winograd, weights before"] = lambda: gpu.multiply(a, b, SCHEMES[0], weights=weights)
            twice = gpu.sums(b, SCHEMES[1], "b")
            runs["winograd of winograd, weights before"] = lambda: gpu.multiply(a, b, SCHEMES[1], weights=twice)
            runs["winograd, unfused"] = lambda: unfused(a, b, SCHEMES[0])
            for run in runs.values():
                run()
            seconds = medians(gpu.timed(runs, 3 if kind == "f32" else 5))
            for name, value in seconds.items():
                tell(
                    "falcongemm-squares",
                    dtype=kind,
                    n=n,
                    method=name,
                    seconds=value,
                    gain=seconds["vendor"] / value - 1,
                )


def one_shape(kind, dtype, m, k, n, rounds):
    """Who the model and the trial take, and what all plans that could win took; the same with weights combined before."""
    told, shape = profile(kind), (m, k, n)
    a, b = drawn(m, k, dtype), drawn(k, n, dtype)
    some = decision.plausible(told, shape, gpu.plans())
    alone = decision.choose(told, shape, SCHEMES)
    ranked = sorted(gpu.plans(), key=lambda plan: told.seconds(shape, plan.scheme, way=plan.way))
    chosen = next(plan for plan in ranked if plan.scheme is alone.scheme) if alone.scheme else None
    confirmed = gpu.tried(a, b, told)
    bar = max(gpu.timed({"": lambda: a @ b}, 2)[""])
    peak = max(*told.rates, *told.batched)
    could = [plan for plan in gpu.plans()
             if decision.least(shape, plan.scheme, told.itemsize, peak, BANDWIDTH) < bar or plan in (*some, chosen)]  # fmt: skip
    seconds = medians(gpu.timed_ways(a, b, could, rounds))
    names = {"chosen": chosen.name if chosen else "vendor", "confirmed": confirmed.name if confirmed else "vendor"}
    row = {"dtype": kind, "m": m, "k": k, "n": n, **names, "gain": alone.gain, "tried": len(some)}
    if (m // 512) % 8 == 1:
        runs = {"unfused": lambda: unfused(a, b, SCHEMES[0]), "winograd": lambda: gpu.multiply(a, b, SCHEMES[0])}
        for run in runs.values():
            run()
        pair = medians(gpu.timed(runs, rounds))
        row |= {"unfused": float(f"{pair['unfused']:.5g}"), "fused": float(f"{pair['winograd']:.5g}")}
    still = decision.plausible(told, shape, gpu.plans(), static=True)
    weights = {plan.scheme.name: gpu.sums(b, plan.scheme, "b") for plan in still}
    kept = gpu.tried(a, b, told, weights) if still else None
    if kept:
        again = medians(gpu.timed_ways(a, b, [kept], rounds, weights))
        row["static"] = {"plan": kept.name, "seconds": float(f"{again[kept.name]:.5g}"),
                         "vendor": float(f"{again['vendor']:.5g}")}  # fmt: skip
    tell("falcongemm", **row, seconds_of={name: float(f"{value:.5g}") for name, value in seconds.items()})


def shapes():
    """The 960 shapes of language models' layers in bf16; some in the other dtypes, drawn without looking."""
    every = llm_shapes()
    order = np.random.default_rng(1).permutation(len(every)).tolist()
    for kind, count, rounds in (("bf16", 960, 5), ("tf32", 96, 5), ("f16", 96, 5), ("f32", 64, 3)):
        if ASKED and kind not in ASKED:
            continue
        dtype = use(kind)
        profile(kind)
        for index in order[:count]:
            if left() < 8:
                break
            one_shape(kind, dtype, *every[index], rounds)


def onchip():
    """Kernels of our own that keep the result's blocks on the chip, with the tile that is fastest."""
    for kind in ("bf16", "f32"):
        dtype = use(kind)
        for n in (8192, 16384) if kind == "bf16" else (8192,):
            a, b = drawn(n, n, dtype), drawn(n, n, dtype)
            right, weights = a @ b, gpu.sums(b, SCHEMES[0], "b")
            for way in ("grouped", "fused"):
                for tile in (gpu.TILES[0], gpu.TILES[2]) if kind == "bf16" else (gpu.TILES[4],):
                    if left() < 12:
                        return
                    try:
                        out = gpu.multiply(a, b, SCHEMES[0], way, weights, tile)
                        error = float((out.float() - right.float()).abs().max() / right.float().abs().max())
                        runs = {
                            "vendor": lambda: a @ b,
                            way: lambda: gpu.multiply(a, b, SCHEMES[0], way, weights, tile),
                        }
                        seconds = medians(gpu.timed(runs, 3))
                        tell(
                            "falcongemm-onchip",
                            dtype=kind,
                            n=n,
                            way=way,
                            tile=list(tile),
                            seconds=seconds[way],
                            vendor=seconds["vendor"],
                            gain=seconds["vendor"] / seconds[way] - 1,
                            error=error,
                        )
                    except Exception as problem:
                        tell("error", what=f"onchip {kind} {way} {tile}", why=str(problem)[:300])


def prefill():
    """Two layers of Qwen3-32B's size over 16,384 tokens, and of Qwen3-8B's in float32: all of a layer, both ways."""
    for kind, hidden, heads, inner, tokens in (("bf16", 5120, 64, 25600, 16384), ("f32", 4096, 32, 12288, 8192)):
        if ASKED and kind not in ASKED:
            continue
        if left() < 8:
            return
        dtype, told = use(kind), profile(kind)
        sizes = {
            "qkv": (hidden, (heads + 16) * 128),
            "out": (heads * 128, hidden),
            "up": (hidden, 2 * inner),
            "down": (inner, hidden),
        }
        matrices = {name: drawn(*size, dtype) * (2 / size[0] ** 0.5) for name, size in sizes.items()}
        gpu._PROFILES[kind] = told
        kept = {name: gpu.weights(matrix, tokens) for name, matrix in matrices.items()}

        def vendor(x, name):
            return x @ matrices[name]

        def ours(x, name):
            return gpu.gemm(x, kept[name])

        def layer(x, linear):
            q, keys, values = linear(x, "qkv").split((heads * 128, 1024, 1024), 1)
            q, keys, values = (part.view(1, tokens, -1, 128).transpose(1, 2) for part in (q, keys, values))
            mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
            x = x + linear(mixed.transpose(1, 2).reshape(tokens, -1), "out")
            gate, up = linear(x, "up").chunk(2, 1)
            return x + linear(torch.nn.functional.silu(gate) * up, "down")

        x = drawn(tokens, hidden, dtype)
        runs = {"vendor": lambda: layer(layer(x, vendor), vendor), "ours": lambda: layer(layer(x, ours), ours)}
        results = {name: run() for name, run in runs.items()}
        error = float(
            (results["ours"].float() - results["vendor"].float()).abs().max() / results["vendor"].float().abs().max()
        )
        seconds = gpu.timed(runs, 5)
        tell("falcongemm-prefill", dtype=kind, tokens=tokens, schemes={name: one.plan.name if one.plan else "vendor" for name, one in kept.items()},
             ours=seconds["ours"], vendor=seconds["vendor"], error=error)  # fmt: skip


PARTS = {
    "tune": tune,
    "check": check,
    "profile": profiles,
    "squares": squares,
    "shapes": shapes,
    "prefill": prefill,
    "onchip": onchip,
}


def main():
    global tell
    tell = common.Answers("h200_falcongemm", shown=300)
    for part in sys.argv[1:] or PARTS:
        begun = time.monotonic()
        try:
            if left() > 8:
                PARTS[part]()
        except Exception as problem:
            traceback.print_exc()
            tell("error", what=part, why=str(problem)[:300])
        tell("took", what=part, seconds=time.monotonic() - begun)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
