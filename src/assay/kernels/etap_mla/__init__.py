"""ETAP: MLA decode with the context on the tall side of the tensor core, so that few heads need no padding.

A decode step multiplies a long cache of latents with the 16 heads that tensor parallelism leaves to a GPU. Hopper's
tensor cores take tiles of at least 64 rows, so 16 heads are filled up with 48 rows of zeros, and three quarters of the
products are wasted. Transposed, the tokens are the rows and the heads the columns, which come by the eight.

Whether that is faster is a matter of two bounds (`bounds.py`). An H20 has 37 FLOP for each byte it reads, and the
padded form needs 121: it waits for its products. An H200 has 175, so by the bounds it waits for its memory in both
forms. Measured there with 16 heads, the padded form takes 1.38 times as long at 64 K tokens, so the bounds are not all;
and heads as 16 rows of the older, narrower instruction, which pads nothing either, are faster in 10 of 12 cases. By
hand the transposed form is faster than those up to 16 K tokens, and 3 % slower at 64 K.

arXiv:2506.01969. Read in the paper's code; kernels here are our own: in Triton, one source for all loads and tiles, and
the transposed form in CUDA by hand, for Hopper (`turned.cu`). Forms are compared in Triton, each as well as it gets.

>>> import numpy as np
>>> from assay.kernels import mla_decode
>>> query, latent = np.ones((1, 16, 576), np.float32), np.ones((1, 100, 576), np.float32)
>>> mla_decode(query, latent, lengths=[99]).shape
(1, 16, 512)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import polars as pl

from assay.kernels.engine import elsewhere, machine, runner
from assay.kernels.etap_mla import bounds, interpreted
from assay.kernels.etap_mla.cpu import BLOCK, LATENT, WIDTH, Problem, decode, mla_decode
from assay.kernels.etap_mla.plan import plan
from assay.kernels.etap_mla.reference import CLOSE, compared, exact
from assay.kernels.interface import Cost, Implementation, Kernel, Match
from assay.record import measures
from assay.record.intervals import bootstrap
from assay.record.tables import Tables
from assay.record.timing import granted
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["mla_decode"]

evidence = Evidence.REAL
use_when = "A GPU with few FLOP a byte (H20) decodes MLA with fewer than 64 heads: by two bounds; not measured there."
avoid_when = (
    "A GPU has FLOP to spare: on an H200 tiles of 16 rows are faster. Or it holds 64 heads and more: nothing is padded."
)
own_input = "assay compare kernels --mla examples/latents.npz"
references = (
    "FlashMLA, DeepSeek's kernel: heads as rows, filled up to 64, V from K's tile, split over multiprocessors.",
    "Flash decoding (split KV with a pass that combines); torch's matrix products and scaled_dot_product_attention.",
)
OURS = "etap"
BY_HAND = "transposed by hand"  # by_hand.FORM, which needs torch
ABSENT = "measured on an H200 only, and no rows of one are stored"

# ------------------------------------------------------------------------------------------ the comparison


def _check(problem: Problem, out: Any, right: Any) -> Match:
    found = compared(np.asarray(out.float().cpu() if hasattr(out, "cpu") else out), right)
    return Match(found["cosine"] <= CLOSE, found["largest"], f"cosine distance {found['cosine']:.2g}")


def cost(problem: Problem) -> Cost:
    """Latents once, queries, results; two products with every head."""
    heads, size = problem.query.shape[1], problem.cache.itemsize
    moved = (problem.tokens * WIDTH + problem.query.size + len(problem.lengths) * heads * LATENT) * size
    return Cost(2.0 * problem.tokens * heads * (WIDTH + LATENT), moved, dtype="f32")


KERNEL = Kernel("mla-decode", exact, _check, cost)


def _sequences(problem: Problem, threads: int) -> Any:
    import torch

    torch.set_num_threads(threads)
    latents = [torch.from_numpy(np.ascontiguousarray(problem.latents(i))) for i in range(len(problem.lengths))]
    return torch.from_numpy(problem.query), latents, problem.scale


def _each(step: Any) -> Any:
    """A run that goes through the sequences; zeros where one has no tokens."""

    def run(state: Any) -> Any:
        queries, latents, scale = state
        outs = [step(q, x, scale) if len(x) else q[:, :LATENT] * 0 for q, x in zip(queries, latents, strict=True)]
        return np.stack([out.numpy() for out in outs])

    return run


def _upright(q: Any, x: Any, scale: float) -> Any:
    return ((q @ x.T) * scale).softmax(-1) @ x[:, :LATENT]


def _turned(q: Any, x: Any, scale: float) -> Any:
    return (x[:, :LATENT].T @ ((x @ q.T) * scale).softmax(0)).T


def _fused(q: Any, x: Any, scale: float) -> Any:
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    return sdpa(q[None, None], x[None, None], x[None, None, :, :LATENT], scale=scale)[0, 0]


def _no_torch() -> str:
    from importlib.util import find_spec

    return "" if find_spec("torch") else "torch is not installed (extra torch)"


def no_gpu() -> str:
    """Why the Triton kernels cannot run here, or nothing."""
    from importlib.util import find_spec

    if _no_torch() or not find_spec("triton"):
        return "torch and Triton are needed"
    import torch

    return "" if torch.cuda.is_available() else "there is no GPU"


def _no_hopper() -> str:
    """Why the form by hand cannot run here, or nothing."""
    if why := no_gpu():
        return why
    from assay.kernels.etap_mla import by_hand

    return by_hand.missing()


def _on_gpu(form: str) -> Implementation:
    """A form at the fastest of its settings for this problem, found while it is prepared."""

    def prepare(problem: Problem) -> Any:
        from assay.kernels.etap_mla.fitting import fitted

        return fitted(form, problem)

    def run(decoder: Any) -> Any:
        import torch

        out = decoder.run()
        torch.cuda.synchronize()
        return out

    if form == BY_HAND:
        return Implementation(f"{form} on GPU", "cuda", prepare, run, _no_hopper)
    return Implementation(f"{form} on GPU", "triton", prepare, run, no_gpu)


def contenders(threads: int) -> list[Implementation]:
    """Ours, torch's products either way round, its fused attention; the GPU's forms where there is one."""
    torch_ways = {"torch": _upright, "torch, transposed": _turned, "torch sdpa": _fused}
    return [
        Implementation(
            OURS, "numba", lambda p: (p, plan(p.lengths, threads, BLOCK)), lambda s: decode(*s), threads=threads
        ),
        *(
            Implementation(name, "torch", lambda p: _sequences(p, threads), _each(step), _no_torch, threads)
            for name, step in torch_ways.items()
        ),
        *map(_on_gpu, ("transposed", BY_HAND, "padded", "narrow")),
    ]


# ------------------------------------------------------------------------------------------------- the study

AWKWARD = (1, 63, 64, 65, 127, 129)


def decoded(context: int, batch: int, heads: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every way on this machine's cores, ragged by a seventh, on shuffled pages."""
    lengths = [context - i * context // (7 * batch) for i in range(batch)]
    problem = interpreted.poisoned(lengths, heads, math.nan, seed)
    outcome = runner.measure(KERNEL, problem, contenders(numba.get_num_threads()), machine.here(), rounds)
    quiet = granted()
    return {
        r.implementation: {"seconds": r.run, "fraction": r.fraction, "bound_by": r.bound_by, "right": r.match.right,
                           "error": r.match.error, "granted": quiet}
        for r in outcome.records
    }  # fmt: skip


def awkward(heads: int, poison: str, seed: int) -> dict[str, Any]:
    """Lengths around a block's end and some drawn ones, with poison wherever no token lies."""
    random = np.random.default_rng(seed)
    lengths = [*AWKWARD, *random.integers(1, 700, 4).tolist()]
    problem = interpreted.poisoned(lengths, heads, float(poison), seed)
    return compared(decode(problem, plan(problem.lengths, 5, BLOCK)), exact(problem))


def multiplied(lengths: list[int], seed: int) -> dict[str, dict[str, Any]]:
    """The Triton source in the interpreter: how far off, and how many multiply-adds each form executes."""
    if interpreted.missing():
        return {"none": {"cosine": None, "macs": None}}
    asked = [
        {"form": form, "heads": heads, "lengths": lengths, "seed": seed}
        for form in ("transposed", "padded")
        for heads in (16, 8)
    ]
    answers = interpreted.asked(asked)
    return {
        f"{case['form']} {case['heads']}": {"cosine": answer["cosine"], "macs": float(answer["macs"])}
        for case, answer in zip(asked, answers, strict=True)
    }


def error(context: int, heads: int, seed: int) -> dict[str, Any]:
    """The error where latents, queries, softmax weights and results are bfloat16 and sums are not, as on the GPU."""
    p = interpreted.poisoned([context], heads, math.nan, seed)
    half = Problem(_bfloat16(p.query), _bfloat16(p.cache), p.table, p.lengths, p.scale)
    out = decode(half, plan(half.lengths, 132, BLOCK), rounded=True)
    return compared(_bfloat16(out), exact(half))


def _bfloat16(values: Any) -> Any:
    """Rounded to nearest even, still as float32."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def roofs(device: str, heads: int, seed: int) -> dict[str, dict[str, Any]]:
    """Both forms under a GPU's two roofs."""
    on = bounds.roof(device)
    return {
        form: {"flop_a_byte": bounds.intensity(form, heads), "ridge": on.ridge, "bound_by": by, "token": taken,
               "gain": bounds.gain(heads, on)}
        for form in ("transposed", "padded")
        for taken, by in [bounds.seconds(form, heads, on)]
    }  # fmt: skip


def study(lab: Lab) -> Tables:
    """Decode on this machine's cores; awkward lengths; the GPU's source interpreted; the H200's rows are on record."""
    some, one = lab.with_seeds(quick=2, full=3), lab.with_seeds(quick=1, full=1)
    contexts = lab.pick(quick=(1024, 4096), full=(512, 2048, 8192, 32768))
    cases = [{"context": c, "batch": 2, "heads": 16, "rounds": lab.pick(quick=5, full=9)} for c in contexts]
    poisons = [{"heads": heads, "poison": poison} for heads in (16, 5) for poison in ("nan", "inf")]
    return {
        "cpu": some.run(decoded, cases, per="method", alone=True),
        "awkward": lab.run(awkward, poisons),
        "macs": one.run(multiplied, [{"lengths": [65]}], per="form"),
        "error": some.run(error, [{"context": lab.pick(quick=16384, full=65536), "heads": lab.pick(quick=4, full=16)}]),
        "roofs": one.run(
            roofs, [{"device": d, "heads": h} for d in ("h20", "h200", "a100") for h in (8, 16, 32, 64)], per="form"
        ),
    }


# ------------------------------------------------------------------------------------------------ the claims


def on_h200(what: str, **where: Any) -> list[dict[str, Any]]:
    """Rows of one experiment on the H200, or NotMeasured."""
    rows = [row for row in elsewhere.rows("h200", "etap-mla") if row["what"] == what]
    found = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    if not found:
        raise NotMeasured(ABSENT)
    return found


def _pairs(*whats: str, rival: str = "padded") -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The transposed and another form of every case in which heads were padded."""
    pairs: dict[str, dict[str, dict[str, Any]]] = {}
    for what in whats:
        for row in on_h200(what):
            if row["heads"] < 64:
                case = "/".join(str(row.get(key)) for key in ("what", "context", "heads", "batch", "lengths", "sms"))
                pairs.setdefault(case, {})[row["form"]] = row
    return [(forms["transposed"], forms[rival]) for forms in pairs.values() if {"transposed", rival} <= set(forms)]


def _over(slow: dict[str, Any], fast: dict[str, Any], told: str = "") -> Estimate:
    """How many times as long; the interval from a tenth and nine tenths of the rounds."""
    return Estimate(
        slow["seconds"] / fast["seconds"], slow["low"] / fast["high"], slow["high"] / fast["low"], slow["rounds"], told
    )


def _longest(rival: str, why: str = "") -> measures.Measure:
    """A rival's time over ours at 64 K tokens, 16 sequences, 16 heads; measured on an H200."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = {row["form"]: row for row in on_h200("context", context=65536)}
        if rival not in rows:
            raise NotMeasured(why or ABSENT)
        told = f"beside a padded kernel of our own on an H200. {bounds.reason(16, bounds.roof('h200'))}"
        return _over(rows[rival], rows["transposed"], told)

    return measure


def _narrow(table: pl.DataFrame) -> Estimate:
    """The narrow form's time over ours at 64 K tokens, and where it is faster beyond the spread of the rounds."""
    pairs = _pairs("context", "heads", "ragged", rival="narrow")
    found = [_over(narrow, ours) for ours, narrow in pairs if ours.get("context") == 65536]
    if not found:
        raise NotMeasured(ABSENT)
    ahead = [(ours, narrow) for ours, narrow in pairs if narrow["high"] < ours["low"]]
    least = min((ours["context"] for ours, _ in ahead if ours["what"] == "context"), default=None)
    told = f"the narrow form is faster in {len(ahead)} of {len(pairs)} cases"
    told += f", with 16 heads from {least} tokens on" if least else ""
    return Estimate(found[0].value, found[0].low, found[0].high, found[0].n, told)


def fraction(row: dict[str, Any]) -> float:
    """The share of what the H200's memory allows, as its reads were measured."""
    return float(row["bytes"] / bounds.roof("h200").bandwidth / row["seconds"])


def _bandwidth(table: pl.DataFrame) -> Estimate:
    rows: dict[int, dict[str, Any]] = {}
    for row in on_h200("context"):
        if row["form"] in ("transposed", BY_HAND) and row["context"] >= 16384:
            rows[row["context"]] = max(row, rows.get(row["context"], row), key=fraction)
    if not rows:
        raise NotMeasured(ABSENT)
    worst = min(rows.values(), key=fraction)
    scale, told = fraction(worst) * worst["seconds"], f"{worst['form']}, {worst['context']} tokens"
    return Estimate(fraction(worst), scale / worst["high"], scale / worst["low"], len(rows), told)


def _never_slower(table: pl.DataFrame) -> Estimate:
    pairs = _pairs("context", "heads", "ragged")
    held = [ours["low"] <= padded["high"] for ours, padded in pairs]
    return measures.counted(sum(held) / len(held), len(held))


def _many_heads(table: pl.DataFrame) -> Estimate:
    rows = {(row["heads"], row["form"]): row for row in on_h200("heads")}
    both = [heads for heads in (64, 128) if {(heads, "padded"), (heads, "transposed")} <= rows.keys()]
    found = [_over(rows[heads, "padded"], rows[heads, "transposed"], f"{heads} heads") for heads in both]
    if not found:
        raise NotMeasured(ABSENT)
    return min(found, key=lambda one: one.value)


def _few(table: pl.DataFrame) -> Estimate:
    found = [_over(padded, ours, f"{ours['sms']} multiprocessors") for ours, padded in _pairs("few")]
    return max(found, key=lambda one: one.value)


def _h20(table: pl.DataFrame) -> Estimate:
    """The data sheet's bounds as they are: what kernels attain of each on an H20 is not known."""
    return measures.counted(bounds.gain(16, bounds.roof("h20")))


def _rmse(table: pl.DataFrame) -> Estimate:
    """Of the GPU where it ran; else of the same roundings on a CPU."""
    try:
        found = [row["rmse"] for row in on_h200("accuracy", form="transposed")]
    except NotMeasured:
        found = measures.rows(table, {"experiment": "error"})["rmse"].to_list()
    return bootstrap(found)


def _right(table: pl.DataFrame) -> Estimate:
    near = measures.rows(table, {"experiment": "awkward"})
    held = [cosine <= CLOSE and largest <= CLOSE for cosine, largest in near.select("cosine", "largest").rows()]
    held += table.filter((pl.col("experiment") == "cpu") & (pl.col("method") == OURS))["right"].to_list()
    held += [c <= CLOSE for c in table.filter(pl.col("experiment") == "macs")["cosine"].drop_nulls().to_list()]
    held += [
        row["cosine"] <= CLOSE
        for row in elsewhere.rows("h200", "etap-mla")
        if row["what"] in ("context", "heads", "ragged", "few", "accuracy")
        and row["form"] in ("transposed", BY_HAND, "padded")
    ]
    return measures.counted(sum(held) / len(held), len(held))


def _macs(table: pl.DataFrame) -> Estimate:
    rows = table.filter(pl.col("experiment") == "macs").drop_nulls("macs")
    if not len(rows):
        raise NotMeasured(interpreted.ABSENT)
    counts = dict(rows.select("form", "macs").rows())
    held = [counts[f"padded {heads}"] * heads == counts[f"transposed {heads}"] * 64 for heads in (16, 8)]
    return measures.counted(sum(held) / len(held), len(held))


def _here(rival: str) -> measures.Measure:
    def measure(table: pl.DataFrame) -> Estimate:
        rows = measures.rows(table, {"experiment": "cpu"})
        runner.quiet_enough(rows["granted"].to_list())
        theirs = rows.filter(pl.col("method") == rival)
        if not len(theirs):
            raise NotMeasured("torch is not installed: pip install 'assay[torch]'")
        both = theirs.join(rows.filter(pl.col("method") == OURS), on=["context", "seed"], suffix="_ours")
        found = bootstrap(np.log((both["seconds"] / both["seconds_ours"]).to_numpy()))
        return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.n)

    return measure


NONE = "{} was not installed on the H200 whose rows are stored"
claims = [
    Claim("flashmla", _longest("padded")),
    Claim("fa3", _longest("fa3", NONE.format("FlashAttention-3"))),
    Claim("flashinfer", _longest("flashinfer", NONE.format("FlashInfer"))),
    Claim("rmse-ratio", measures.not_here(NONE.format("FlashAttention-3"))),
    Claim("rmse", _rmse),
    Claim(
        "right", _right, asks="Every result is within 2e-5 of the exact one (cosine distance a head; on the CPU also "
        "every entry), with lengths around a block's end and NaN or infinity in every unused entry.", kind=Kind.EVERY,
    ),
    Claim(
        "macs", _macs, asks="The padded form executes 4 times the multiply-adds of the transposed one with 16 heads, "
        "8 times with 8, counted in the interpreter.", kind=Kind.EVERY,
    ),
    Claim(
        "bandwidth", _bandwidth, asks="The transposed form, in Triton or by hand, attains 0.65 of an H200's measured "
        "bandwidth at 16 K tokens and more, in the worst case.", kind=Kind.AT_LEAST, value=0.65, unit="share",
    ),
    Claim(
        "never-slower", _never_slower, asks="On an H200 the transposed form is never slower than the padded one beyond "
        "the spread of the rounds: 16 heads at 512 to 64 K tokens and ragged lengths, 8 and 32 heads at 16 K (not 64 "
        "and 128 heads, which fill the padded form's rows).", kind=Kind.EVERY,
    ),
    Claim(
        "narrow", _narrow, asks="On an H200 heads as 16 rows of the narrower instruction, the strongest rival, take "
        "longer than the transposed form with 16 heads at 64 K tokens, both at the best setting that ran.",
        kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "many-heads", _many_heads, asks="On an H200 the padded form takes longer with 64 and 128 heads, too, where it "
        "pads nothing; in the worst case.", kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "few", _few, asks="On few of the H200's multiprocessors, which leaves each more bandwidth, the padded form "
        "takes longer, in the best case.", kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "h20", _h20, Evidence.MODEL, "two bounds with an H20's data sheet", asks="On an H20 two bounds let the padded "
        "form take longer with 16 heads.", kind=Kind.RATIO, toward="up",
    ),
    Claim(
        "torch", _here("torch"), asks="torch's matrix products take longer on this machine's cores.", kind=Kind.RATIO,
        toward="up",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """The forms' share of the H200's bandwidth by context; without its rows, what two bounds let padding cost."""
    import altair as alt

    try:
        rows = [{"tokens": row["context"], "share": fraction(row), "form": row["form"]} for row in on_h200("context")]
    except NotMeasured:
        shown = table.filter((pl.col("experiment") == "roofs") & (pl.col("form") == "padded"))
        title = alt.Title("Time of padded over transposed MLA decode", subtitle="by two bounds, bytes and products")
        bars: alt.Chart = (
            alt.Chart(shown.select("device", "heads", "gain"), title=title)
            .mark_bar()
            .encode(x=alt.X("heads:O"), xOffset="device:N", y=alt.Y("gain:Q", title="times as long"), color="device:N")
        )
        return bars
    title = alt.Title("MLA decode on an H200", subtitle="16 sequences, 16 heads; share of the measured bandwidth")
    lines: alt.Chart = (
        alt.Chart(pl.DataFrame(rows), title=title)
        .mark_line(point=True)
        .encode(
            x=alt.X("tokens:Q", scale=alt.Scale(type="log", base=2), title="tokens a sequence (log)"),
            y=alt.Y("share:Q", title="share of the limit"),
            color=alt.Color("form:N", title=None),
        )
    )
    return lines
