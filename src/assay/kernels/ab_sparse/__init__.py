"""AB-Sparse: each attention head gets the block size it needs; 4-bit summaries rank blocks, and the best are read.

Decoding over a long context spends its time reading the KV cache, though a query's attention lies on few tokens. Block
sparse attention (Quest, ArkVale) cuts the cache into blocks, keeps a small summary of each, ranks blocks by how much
they could matter to the query, and reads only the best: here 4 % of the tokens. One block size serves all heads. But a
head that looks up scattered tokens wastes most of a large block, while a head that reads a passage or its neighbourhood
does not care. So AB-Sparse measures on calibration texts how much of its attention each head keeps at each size, and
gives sizes away so that the sum is largest while there are no more blocks than at one size for all: a knapsack with one
choice a head, solved exactly. Summaries in four bits a number take little more than a quarter of the memory, and only
rank. Scales belong to 2,048 tokens, so that a growing cache codes them once; and rounding knows the head's queries from
the calibration texts: what one number is off, others make up for (`carry.py`, ours).

The study asks a small language model, trained here to look things up in long contexts (needles, votes, topics); its
attention goes through these kernels in every layer, and sizes come from other texts than those asked about. Sizes by
head keep a little more attention there, and answer fewer questions rightly. Its heads seem to share all tasks and to
look widely, which may be why (inferred from recalls, not shown by an experiment). Two models of natural text were
trained and asked on an H200 (`text_models.py`; there attention is thinned by masks, not by the kernels). The larger
one's heads do differ: sizes by head keep 1.2 points more of its attention in the same bytes, and foresee more. The
smaller one's keep 1.0 more. Public models were not measured; `--kv` tells it of your own.

Kernels for heads of different sizes need no padding: all heads' summaries lie in one list, and a head's tokens are
counted through. On a GPU they are Triton's (`gpu.py`), measured on an H200 with random caches of Llama's and Qwen's
shapes; on a CPU Numba's.

arXiv:2605.12110. Read in a digest, not in the paper, or assumed: the knapsack and that it is solved exactly, the
largest score over a group's queries, 16 tokens of sink and at least 16 of window. In the digest one scale and zero
serve a channel of a head over all blocks, which a growing cache could not keep up.

>>> import numpy as np
>>> from assay.kernels import allocate, sparse_decode, summarise_kv
>>> recall = [[0.95, 0.90, 0.40, 0.30, 0.20], [0.99, 0.99, 0.98, 0.98, 0.97]]  # head 0 needs small blocks
>>> sizes = allocate(recall * 4, sizes=(8, 16, 32, 64, 128), mean=32)  # as many blocks as with 32 for all
>>> sizes.tolist()
[32, 128, 16, 128, 16, 128, 16, 128]
>>> random = np.random.default_rng(0)
>>> keys, values = random.normal(size=(2, 1, 8, 4096, 64))  # caches, heads, tokens, width
>>> cache = summarise_kv(keys, values, sizes)
>>> sparse_decode(cache, random.normal(size=(1, 32, 64)), budget=128).shape
(1, 32, 64)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.kernels.ab_sparse import blocks, reading, retrieval_lm, text_models
from assay.kernels.ab_sparse.allocation import MEAN, SIZES, allocate, greedy, total
from assay.kernels.ab_sparse.ragged import Ragged, decode, prepare
from assay.kernels.ab_sparse.reading import Way
from assay.kernels.engine import elsewhere
from assay.record import measures
from assay.record.intervals import bootstrap
from assay.record.tables import Tables
from assay.record.timing import Gauge, interleave, median
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.random import stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["Ragged", "allocate", "decode", "prepare"]

evidence = Evidence.REAL
use_when = (
    "Decoding over tens of thousands of tokens waits for memory, and heads differ: some look up scattered tokens, "
    "others read passages or what was said last."
)
avoid_when = (
    "Contexts are short, attention is spread evenly, or memory for summaries is no concern: small blocks for all heads "
    "are then as good, and simpler."
)
needs = ("torch",)
own_input = "assay compare kernels --kv examples/kv.npz"
references = (
    "Quest (cuboids): Tang et al., ICML 2024, arXiv:2406.10774.",
    "ArkVale (balls): Chen et al., NeurIPS 2024.",
    "RULER (tasks over long contexts): Hsieh et al., COLM 2024, arXiv:2404.06654.",
)
OURS, QUEST = "ab-sparse", f"quest-{MEAN}"
BUDGET = 0.04  # share of a context's tokens that a head reads
FINE = (2, 4, *SIZES)  # what four bits can pay for in the memory of sixteen

# ------------------------------------------------------------------------------------------ answers


def ways(cuboids: Any, balls: Any) -> dict[str, Way]:
    """The methods by name, sizes chosen by the recall [heads, FINE] of calibration texts."""
    heads, coarse = len(cuboids), cuboids[:, -len(SIZES) :]
    ours = tuple(allocate(coarse).tolist())
    found = {"full": Way(()), "oracle": Way((1,) * heads, "mean", 32)}
    found |= {f"quest-{size}": Way((size,) * heads) for size in SIZES}
    found |= {f"quest-{size} int4": Way((size,) * heads, bits=4) for size in (8, MEAN)}
    found |= {f"arkvale-{MEAN}": Way((MEAN,) * heads, "ball")}
    found |= {OURS: Way(ours, bits=4), f"{OURS} 16-bit": Way(ours)}
    found |= {f"{OURS} int{bits}": Way(ours, bits=bits) for bits in (8, 2)}
    found[f"{OURS} nearest"] = Way(ours, bits=4, carried=False)
    found[f"{OURS} greedy"] = Way(tuple(greedy(coarse).tolist()), bits=4)
    found[f"{OURS} balls"] = Way(tuple(allocate(balls).tolist()), "ball", 4)
    found[f"{OURS} spent"] = Way(tuple(allocate(cuboids, FINE, 8).tolist()), bits=4)
    return found


@cache
def trained() -> Any:
    """The stored model."""
    from assay.sim import tiny_lm

    return tiny_lm.load(retrieval_lm.WEIGHTS)[0]["reader"]


def _opened(
    params: Any, length: int, count: int, use: str, seed: int, carries: Any = None
) -> list[tuple[reading.Book, reading.Weights]]:
    """Contexts of one seed and use, read, with the full attention of their questions."""
    found = []
    for number in range(count):
        context = retrieval_lm.context(length, stream(seed, "ab-sparse", use, number))
        book = reading.read(params, context, carries)
        found.append((book, reading.Weights(book, reading.ask(params, book, Way(()), 0)[1])))
    return found


def calibrate(opened: Sequence[tuple[reading.Book, reading.Weights]], kind: str, sizes: Sequence[int]) -> Any:
    """The recall [heads, sizes] of 16-bit summaries, over all questions of some contexts."""
    book = opened[0][0]
    tokens = blocks.budget(book.where, BUDGET)
    by_size = [
        np.mean([weights.recall(Way((size,) * book.heads, kind), tokens) for _, weights in opened], axis=0)
        for size in sizes
    ]
    return np.stack(by_size, 1).clip(0, 1)


def answers(length: int, calibration: int, books: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every method on questions about unseen contexts, sizes chosen on others."""
    import torch

    torch.set_num_threads(1)
    params = trained()
    known = _opened(params, length, calibration, "calibration", seed)
    cuboids, balls = calibrate(known, "cuboid", FINE), calibrate(known, "ball", SIZES)
    made = ways(cuboids, balls)
    asked = _opened(params, length, books, "asked", seed, reading.carries([weights for _, weights in known]))
    tokens = blocks.budget(asked[0][0].where, BUDGET)
    rows: dict[str, dict[str, Any]] = {}
    for name, way in made.items():
        right = [reading.right(book, reading.ask(params, book, way, tokens)[0]) for book, _ in asked]
        row: dict[str, Any] = {column: float(np.mean([one[column] for one in right])) for column in right[0]}
        row |= {"recall": 1.0, "calibrated": None, "metadata": 0.0, "overlap": None, "sizes": "", "distinct": None}
        if way.sizes:
            row["recall"] = float(np.mean([weights.recall(way, tokens).mean() for _, weights in asked]))
        if way.sizes and name != "oracle":
            scale, table = (SIZES, balls) if way.kind == "ball" else (FINE, cuboids)
            row |= {
                "calibrated": total(table, way.sizes, scale), "metadata": reading.metadata(asked[0][0], way),
                "distinct": len(set(way.sizes)), "sizes": " ".join(map(str, way.sizes)),
            }  # fmt: skip
        if way.bits < 16:
            plain = Way(way.sizes, way.kind)
            row["overlap"] = float(np.mean([weights.overlap(way, plain, tokens) for _, weights in asked]))
        rows[name] = row
    return rows


# ------------------------------------------------------------------------------------------ seconds

# Sizes of eight heads with as many blocks as 32 for all, as layers of a model may get them.
MIXES = {"one fine head": (8, 32, 32, 64, 64, 64, 128, 128), "two finer heads": (16, 16, 32, 32, 64, 64, 64, 64)}


def seconds(tokens: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Decode steps of eight KV heads and 32 query heads on one core, ways taking turns, by the processor's clock."""
    return {
        f"{name}, batch {batch}": row for batch in (1, 4) for name, row in _batch(tokens, batch, rounds, seed).items()
    }


def _batch(tokens: int, batch: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    random = stream(seed, "ab-sparse", "seconds", batch)
    keys, values = (random.random((batch, 8, tokens, 128), np.float32) - np.float32(0.5) for _ in range(2))
    q = random.random((batch, 32, 128), np.float32) - np.float32(0.5)
    budget = blocks.budget(blocks.frame(tokens), BUDGET)
    caches = {
        OURS: prepare(keys, values, MIXES["one fine head"]),
        f"{QUEST} int4": prepare(keys, values, (MEAN,) * 8),
        QUEST: prepare(keys, values, (MEAN,) * 8, bits=32),
    }
    runs: dict[str, Callable[[], Any]] = {name: _step(one, q, budget) for name, one in caches.items()}
    runs["full"] = _step(caches[QUEST], q, tokens)
    for run in runs.values():
        run()
    with Gauge() as gauge:
        taken = interleave(runs, rounds, clock=time.process_time)
    return {name: {"seconds": median(each), "free_cores": gauge.free} for name, each in taken.items()}


def _step(one: Ragged, q: Any, budget: int) -> Callable[[], Any]:
    return lambda: decode(one, q, budget)


def study(lab: Lab) -> Tables:
    """Answers and recall of a trained model; seconds on this machine's CPU. What the H200 did is on record."""
    # 31 of the largest blocks between 16 tokens of sink and of window: what is read is then 4 % for every size.
    said = {"length": 4000, "calibration": lab.pick(quick=1, full=4), "books": lab.pick(quick=2, full=8)}
    clocked = {"tokens": lab.pick(quick=4096, full=32_768), "rounds": lab.pick(quick=9, full=31)}
    return {
        "answers": lab.run(answers, [said], per="method"),
        "cpu": lab.with_seeds(quick=2, full=5).run(seconds, [clocked], per="step", alone=True),
    }


# ------------------------------------------------------------------------------------------ the claims


def over(column: str, method: str, rival: str) -> measures.Measure:
    """A method's share less a rival's on the same questions, by seed."""

    def measure(table: pl.DataFrame) -> Estimate:
        where = {"experiment": "answers"}
        ours, theirs = (measures.rows(table, {**where, "method": name})[column] for name in (method, rival))
        return bootstrap((ours - theirs).to_list())

    return measure


def _different(table: pl.DataFrame) -> Estimate:
    rows = measures.rows(table, {"experiment": "answers", "method": OURS})
    return measures.counted(float((rows["distinct"] > 1).mean()), len(rows))  # type: ignore[arg-type]


def _never_below(table: pl.DataFrame) -> Estimate:
    ours, uniform = (
        measures.rows(table, {"experiment": "answers", "method": name}) for name in (OURS, f"{QUEST} int4")
    )
    held = (ours["calibrated"] >= uniform["calibrated"] - 1e-12) & (ours["metadata"] <= uniform["metadata"] + 1e-9)
    return measures.counted(float(held.mean()), len(held))  # type: ignore[arg-type]


def here(rival: str, batch: int) -> measures.Measure:
    """How many times as long as ours a rival takes on one core, or nothing where others had the processors."""
    return measures.clocked(
        measures.ratio("seconds", of={"step": f"{rival}, batch {batch}"}, to={"step": f"{OURS}, batch {batch}"},
                       experiment="cpu"),
        experiment="cpu",
    )  # fmt: skip


@cache
def on_h200() -> dict[tuple[Any, ...], dict[str, float]]:
    """Median seconds of every method by (model, tokens, batch), as measured on an H200."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in elsewhere.rows("h200", "ab-sparse"):
        if row["right"]:
            found.setdefault((row["model"], row["tokens"], row["batch"]), {})[row["method"]] = row["seconds"]
    return found


def there(rival: str, batches: Callable[[int], bool], less: float = 0.0) -> measures.Measure:
    """The geometric mean over shapes and mixes of sizes of a rival's time over ours, measured on an H200."""

    def measure(table: pl.DataFrame) -> Estimate:
        ratios = [
            row[rival] / row[f"{OURS}, {mix}"]
            for (_, _, batch), row in on_h200().items()
            for mix in MIXES
            if batches(batch) and rival in row and f"{OURS}, {mix}" in row
        ]
        if not ratios:
            raise NotMeasured("measured on an H200 only, and no rows of one are stored")
        found = bootstrap(np.log(ratios))
        value, low, high = (float(np.exp(x)) - less for x in (found.value, found.low, found.high))
        return Estimate(value, low, high, found.n)

    return measure


def _slower_alone(table: pl.DataFrame) -> Estimate:
    found = there(QUEST, lambda batch: batch == 1)(table)
    return Estimate(1 / found.value, 1 / found.high, 1 / found.low, found.n)


def _cpu_alone(table: pl.DataFrame) -> Estimate:
    found = here(QUEST, 1)(table)
    return Estimate(1 / found.value, 1 / found.high, 1 / found.low, found.n)


claims = [
    Claim("accuracy", measures.best({
        "cuboids": over("accuracy", OURS, QUEST), "balls": over("accuracy", f"{OURS} balls", f"arkvale-{MEAN}"),
    })),
    Claim("longbench", measures.not_here("needs LongBench and weights of a public model of billions of parameters")),
    Claim("decode", there(QUEST, lambda batch: batch == 4)),
    # Uniform blocks whose summaries have four bits, too: what four bits save is no gain of sizes by head.
    Claim("throughput", there(f"{QUEST} int4", lambda batch: True, less=1.0)),
    Claim("int4", over("accuracy", OURS, f"{OURS} 16-bit")),
    Claim("int2", over("accuracy", f"{OURS} 16-bit", f"{OURS} int2"), asks="Summaries in two bits cost accuracy.",
          kind=Kind.DIFFERENCE, toward="up"),
    Claim("recall", over("recall", OURS, f"{QUEST} int4"), asks="On unseen texts attention kept exceeds that of blocks "
          "of 32 for all, at equal bytes, by at least 0.02.", kind=Kind.AT_LEAST, value=0.02, unit="share"),
    Claim("equal", over("accuracy", OURS, f"{QUEST} int4"), asks="Accuracy exceeds that of blocks of 32 for all at "
          "equal bytes of summaries.", kind=Kind.DIFFERENCE, toward="up"),
    Claim("spent", over("accuracy", f"{OURS} spent", "quest-8 int4"), asks="Where four bits are spent on smaller "
          "blocks, sizes by head still exceed blocks of 8 for all.", kind=Kind.DIFFERENCE, toward="up"),
    Claim("overlap", measures.mean("overlap", experiment="answers", method=OURS), asks="Of the "
          "attention on blocks that 16-bit summaries choose, 4-bit ones keep at least 0.98.",
          kind=Kind.AT_LEAST, value=0.98, unit="share"),
    Claim("text-recall", text_models.over("recall", OURS, f"{QUEST} int4"), asks="On natural text a model of 22 M "
          "parameters keeps more attention than with blocks of 32 for all, at equal bytes, by at least 0.02.",
          kind=Kind.AT_LEAST, value=0.02, unit="share"),
    Claim("text-accuracy", text_models.over("accuracy", OURS, f"{QUEST} int4"), asks="There it foresees more tokens of "
          "texts and passages.", kind=Kind.DIFFERENCE, toward="up"),
    Claim("text-loss", text_models.over("loss", OURS, f"{QUEST} int4"), asks="There it foresees texts with fewer nats "
          "a token.", kind=Kind.DIFFERENCE, toward="down"),
    Claim("text-small", text_models.over("recall", OURS, f"{QUEST} int4", text_models.SMALL), asks="On natural text a "
          "model of 1.4 M parameters keeps more by at least 0.02.", kind=Kind.AT_LEAST, value=0.02, unit="share"),
    Claim("text-spent", text_models.over("recall", f"{OURS} spent", QUEST), asks="On natural text four bits spent on "
          "smaller blocks keep more attention than 16-bit blocks of 32 for all by at least 0.02, in 1.03 times their "
          "bytes.", kind=Kind.AT_LEAST, value=0.02, unit="share"),
    Claim("text-by-head", text_models.over("recall", f"{OURS} spent", "quest-8 int4"), asks="Of that at least 0.02 is "
          "due to sizes by head: more than 4-bit blocks of 8 for all keep.",
          kind=Kind.AT_LEAST, value=0.02, unit="share"),
    Claim("text-overlap", text_models.mean("overlap", OURS), asks="On natural text, of the attention on blocks that "
          "16-bit summaries choose, 4-bit ones keep at least 0.98.", kind=Kind.AT_LEAST, value=0.98, unit="share"),
    Claim("text-kept", text_models.times("recall", OURS, f"{OURS} 16-bit"), asks="What 4-bit ones choose instead holds "
          "much, too: in all they keep at least 0.98 of what 16-bit ones keep.",
          kind=Kind.AT_LEAST, value=0.98, unit="ratio"),
    Claim("heads", _different, asks="Heads get different sizes.", kind=Kind.EVERY),
    Claim("calibrated", _never_below, asks="On the calibration texts recall is never below that of one size for all, "
          "nor are bytes above.", kind=Kind.EVERY,
          construction="one size for all is among the choices of an exact search"),
    Claim("alone", _slower_alone, asks="On an H200 a step at batch 1, 32 K and 128 K tokens, takes at most "
          "1.03 times Quest's, as a mean.", kind=Kind.AT_MOST, value=1.03, unit="ratio"),
    Claim("batched", there(f"{QUEST} int4", lambda batch: batch >= 4), asks="On an H200 4-bit blocks of 32 for all "
          "take longer at batch 4 and more.", kind=Kind.RATIO, toward="up"),
    Claim("cpu-alone", _cpu_alone, asks="On this CPU a step at batch 1 takes at most 1.03 times Quest's.",
          kind=Kind.AT_MOST, value=1.03, unit="ratio"),
    Claim("cpu-batched", here(QUEST, 4), asks="On this CPU Quest takes longer at batch 4.", kind=Kind.RATIO,
          toward="up"),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """Accuracy against bytes of summaries a token: which method buys most."""
    import altair as alt

    rows = (
        table.filter((pl.col("experiment") == "answers") & (pl.col("metadata") > 0))
        .group_by("method")
        .agg(pl.col("accuracy").mean(), pl.col("metadata").mean(), pl.col("recall").mean())
    )
    rows = rows.with_columns(family=pl.col("method").str.extract(r"^(ab-sparse|\w+)"))
    base = alt.Chart(rows, title="Right answers against memory for summaries", width=560, height=340).encode(
        x=alt.X("metadata:Q", scale=alt.Scale(type="log"), title="bytes of summaries a token, all heads (log)"),
        y=alt.Y("accuracy:Q", scale=alt.Scale(zero=False), title="share of right answers"),
        color=alt.Color("family:N", title=None),
    )
    chart: alt.LayerChart = base.mark_point(filled=True, size=80) + base.mark_text(align="left", dx=8).encode(
        text="method:N"
    )
    return chart
