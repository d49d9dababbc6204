"""Sparse decode attention with a block size per head on one GPU, checked, beside uniform blocks and full attention.

    python3 benchmarks/h200_ab_sparse.py                # NVIDIA GPU with torch and Triton; no assay
    python3 benchmarks/h200_ab_sparse.py check first    # some parts: check, first, kernels, rest
    BATCHES=1 METHODS=ab-sparse,quest-32 python3 benchmarks/h200_ab_sparse.py first rest    # some shapes and methods

The kernels are read from the package (`src/assay/kernels/ab_sparse/gpu.py`). Writes h200_ab_sparse.jsonl to $OUT, or
here: a line a measurement, as it comes. A step (estimate, choose, attend, merge) is captured as one CUDA graph, as
serving engines replay decode steps; times are CUDA events around a replay, interleaved over rounds, with the L2 cache
overwritten before each. Settings are tuned for each method and shape alike, by the same list. Stops by itself after
SECONDS (170 unless told otherwise).
"""

# mypy: ignore-errors
# ruff: noqa: D102

from __future__ import annotations

import itertools
import os
import statistics
import time
import traceback
from dataclasses import asdict, replace

import torch

import h200_common as common
from h200_common import STARTED

common.packages("assay.kernels.ab_sparse")

from assay.kernels.ab_sparse import gpu  # noqa: E402

SECONDS = float(os.environ.get("SECONDS", "170"))
DEVICE = os.environ.get("DEVICE", "cuda")  # "cpu" with TRITON_INTERPRET=1: the same code, tiny and slow
CUDA = DEVICE == "cuda"
KIND = torch.bfloat16 if CUDA else torch.float16
ROUNDS = 51  # a step at batch 1 takes 20 us, and rounds differ by one of them
SHARE = 0.04  # of the tokens that a head reads
MODELS = {"llama-3-8b": (8, 4), "qwen3-32b": (8, 8)}  # KV heads, query heads each; width 128
WIDTH = 128
MIXES = {"one fine head": (8, 32, 32, 64, 64, 64, 128, 128), "two finer heads": (16, 16, 32, 32, 64, 64, 64, 64)}
# The most telling shapes first: time may run out.
SHAPES = (
    ("llama-3-8b", 131_072, 4), ("llama-3-8b", 131_072, 1), ("qwen3-32b", 131_072, 4), ("llama-3-8b", 32_768, 4),
    ("llama-3-8b", 32_768, 1), ("qwen3-32b", 32_768, 1), ("llama-3-8b", 131_072, 16), ("qwen3-32b", 32_768, 16),
    ("qwen3-32b", 131_072, 1), ("llama-3-8b", 262_144, 4),
)  # fmt: skip


tell = None


def left():
    return SECONDS - (time.monotonic() - STARTED)


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


class Caches:
    """Random paged caches of one shape and their queries."""

    def __init__(self, heads, group, tokens, batch, width=WIDTH, seed=0):
        self.heads, self.group, self.tokens, self.batch = heads, group, tokens, batch
        torch.manual_seed(seed)
        each = -(-tokens // gpu.PAGE)
        self.pages = torch.randperm(each * batch, device=DEVICE).to(torch.int32).reshape(batch, each)
        self.keys, self.values = (
            torch.randn(each * batch, heads, gpu.PAGE, width, device=DEVICE, dtype=torch.float32).to(KIND)
            if each * batch * heads < 1 << 17
            else torch.empty(each * batch, heads, gpu.PAGE, width, device=DEVICE, dtype=KIND).normal_()
            for _ in range(2)
        )
        self.q = torch.randn(batch, heads * group, width, device=DEVICE).to(KIND)
        self.budget = max(gpu.LARGEST, int(SHARE * tokens) // gpu.LARGEST * gpu.LARGEST)

    def step(self, sizes, bits, setting):
        return gpu.Step(self.keys, self.values, self.pages, self.tokens, self.group, self.budget, sizes, bits, setting)


# ---------------------------------------------------------------------------------------------- timing


def timed(runs, rounds=ROUNDS):
    """Seconds of each run in each round; on a CPU once, by the wall."""
    if CUDA:
        return common.timed(runs, rounds, common.TorchClock)
    marks = {}
    for name, run in runs.items():
        begin = time.perf_counter()
        run()
        marks[name] = [time.perf_counter() - begin]
    return marks


def captured(run):
    """A run as one CUDA graph, launched by one call; as it is where that fails."""
    if not CUDA:
        run()
        return run
    try:
        return common.captured(run)
    except Exception as error:
        tell("ab-sparse-error", what="capture", error=str(error)[:300])
        synchronize()
        return run


def fastest(candidates, make, rounds=11):
    """The candidate whose run takes least, those that fail left out; and what each took."""
    runs = {}
    for one in candidates:
        if left() < 20:
            break
        try:
            runs[one] = captured(make(one))
        except Exception as error:
            tell("ab-sparse-error", what=str(one), error=str(error)[:300])
    if not runs:
        return candidates[0], {}
    found = {one: statistics.median(values) for one, values in timed(runs, rounds).items()}
    return min(found, key=found.get), found


# ---------------------------------------------------------------------------------------------- settings

# Tile, warps, tiles of a run, stages.
BY_TRITON = (
    (16, 1, 1, 1), (16, 2, 1, 1), (32, 2, 1, 1), (32, 4, 1, 1), (32, 2, 2, 2), (32, 4, 2, 2), (32, 2, 4, 3),
    (64, 2, 1, 1), (64, 4, 1, 1), (64, 4, 2, 2), (64, 4, 3, 3), (64, 4, 4, 3), (64, 4, 8, 3), (128, 8, 1, 1),
    (128, 8, 2, 2),
)  # fmt: skip
BY_WARPS = ((1, 1), (2, 1), (4, 1), (8, 1), (4, 2), (8, 2), (4, 4), (8, 4), (4, 8))  # warps, tiles of 16 that one takes
ESTIMATES = (*((*one, 0) for one in BY_TRITON), *((16, warps, 1, 1, tiles) for warps, tiles in BY_WARPS if CUDA))
READS = ((32, 2, 3), (64, 2, 2), (64, 4, 2), (64, 4, 3))  # tokens, warps, stages
SPLITS = (4, 8, 16, 32, 64, 128)
if not CUDA:
    ESTIMATES, READS, SPLITS = ((32, 4, 2, 1, 0),), ((32, 2, 3),), (4, 8)


def ranked(candidates, make):
    """The three fastest candidates, each timed apart (a capture keeps the pointers of its buffers), and once more."""
    took = {}
    for one in candidates:
        if left() > 20:
            took |= fastest([one], make)[1]
    again = {}
    for one in sorted(took, key=took.get)[:3]:
        if left() > 20:
            again |= fastest([one], make, ROUNDS)[1]
    known = again or took
    return sorted(known, key=known.get) if known else candidates[:1]


FIELDS = (
    ("tile", "tile_warps", "run", "tile_stages", "tile_of_warp"),
    ("choose_warps", "choose_threads"),
    ("read", "read_warps", "stages", "splits"),
)


def taken(step, run, *parts):
    """What sets some parts of a step's setting, each (fields, values), and gives a run of it."""
    named = {name: value for fields, values in parts for name, value in zip(fields, values, strict=True)}
    step.set(replace(step.setting, **named))
    return run


def tuned(caches, sizes, bits):
    """A step with the best setting for this shape: the best three of each kernel, and of those what suits together."""
    step = caches.step(sizes, bits, gpu.Setting())
    estimating, choosing, attending = FIELDS
    found = []
    if step.blocks:
        runs = lambda one: taken(step, lambda: step.estimate(caches.q), (estimating, one))  # noqa: E731
        found.append(ranked(ESTIMATES, runs))
        runs(found[0][0])()
        least = min(32, max(4, step.most_blocks // 1024))  # at most 32 scores a thread, where that goes
        ways = [(warps, 0) for warps in sorted({least, min(32, 2 * least)})]
        if CUDA and gpu.histograms(1024):
            ways += [(least, threads) for threads in (512, 1024) if step.most_blocks <= 32 * threads]
        runs = lambda one: taken(step, step.choose, (choosing, one))  # noqa: E731
        found.append(ranked(ways, runs))
        runs(found[1][0])()
    # The splits that fill the GPU two to eight times over, with each way to read; then nothing is guessed.
    programs = caches.batch * caches.heads
    some = [s for s in SPLITS if not CUDA or 100 <= s * programs <= 2200] or [SPLITS[0]]
    every = [(*read, splits) for read, splits in itertools.product(READS, some)]
    found.append(ranked(every, lambda one: taken(step, lambda: step.attend(caches.q), (attending, one))))
    fields = FIELDS[-len(found) :]
    whole = lambda each: taken(step, lambda: step(caches.q), *zip(fields, each, strict=True))  # noqa: E731
    whole(ranked(list(itertools.product(*found)), whole)[0])
    return step


def checked(step, q, pairs=3):
    """Whether scores, choice and attention are right on some heads; and the largest errors."""
    step(q)
    synchronize()
    off_scores = off_out = 0.0
    right = True
    begin = step.begin.tolist()
    for i in range(pairs):
        cache, head = i % step.caches, (i * 3) % step.heads
        if step.blocks:
            wanted = step.right_scores(q, cache, head)
            got = step.scored[cache, step.starts[head] : step.starts[head + 1]]
            off = float((wanted - got).abs().max() / wanted.abs().max())
            off_scores = max(off_scores, off)
            picked = step.chosen[cache, begin[head] : begin[head + 1]].long()
            count = begin[head + 1] - begin[head]
            bound = got.topk(count).values[-1]
            right &= off < 0.02 and len(set(picked.tolist())) == count and bool((got[picked] >= bound).all())
        wanted = step.right(q, cache, head)
        got = step.out[cache, head * step.group : (head + 1) * step.group].float()
        off = float((wanted - got).abs().max() / wanted.abs().max())
        off_out = max(off_out, off)
        right &= off < 0.02
    return bool(right), off_scores, off_out


# ---------------------------------------------------------------------------------------------- the parts


def check():
    """Small shapes with odd lengths, each method: right or not, before anything is timed."""
    for tokens, batch, group, sizes, bits in (
        (1000, 2, 4, MIXES["one fine head"], 4), (5001, 3, 8, MIXES["two finer heads"], 4), (777, 1, 1, (32,) * 8, 16),
        (3000, 2, 8, (8, 128), 16), (500, 2, 4, (), 16),
    )[: 5 if CUDA else 2]:  # fmt: skip
        caches = Caches(len(sizes) or 2, group, tokens, batch)
        for tiles in (0, 1, 3) if CUDA and sizes and gpu.histograms(1024) else (0,):
            step = caches.step(sizes, bits, gpu.Setting(tile_of_warp=tiles, choose_threads=512 if tiles else 0))
            right, scores, out = checked(step, caches.q, pairs=8)
            tell("ab-sparse-check", tokens=tokens, batch=batch, group=group, sizes=sizes, bits=bits, right=right,
                 scores=scores, out=out, by="warps" if tiles else "tiles")  # fmt: skip


METHODS = {f"ab-sparse, {name}": (sizes, 4) for name, sizes in MIXES.items()}
METHODS |= {"quest-32": ((32,) * 8, 16), "quest-32 int4": ((32,) * 8, 4), "full": ((), 16)}
METHODS |= {"quest-16": ((16,) * 8, 16), "quest-8 int4": ((8,) * 8, 4)}
if some := os.environ.get("METHODS"):  # beginnings of names
    METHODS = {name: how for name, how in METHODS.items() if name.startswith(tuple(some.split(",")))}


def steps(shapes=SHAPES):
    """Every method on every shape, best settings, interleaved."""
    batches = os.environ.get("BATCHES", "").split(",")
    for model, tokens, batch in shapes:
        if batches != [""] and str(batch) not in batches:
            continue
        if left() < 25:
            tell("ab-sparse-skipped", model=model, tokens=tokens, batch=batch)
            continue
        try:
            one_shape(model, tokens, batch)
        except Exception:
            tell("ab-sparse-error", what=f"{model} {tokens} {batch}", error=traceback.format_exc()[-800:])
        if CUDA:
            torch.cuda.empty_cache()


KNOWN = {}  # settings by (model, tokens, batch, method)


def one_shape(model, tokens, batch):
    heads, group = MODELS[model]
    caches = Caches(heads, group, tokens, batch)
    ready, runs = {}, {}
    for name, (sizes, bits) in METHODS.items():
        if left() < 20:
            break
        step = tuned(caches, sizes, bits)
        KNOWN[model, tokens, batch, name] = step.setting
        right = checked(step, caches.q)
        ready[name] = step, right
        runs[name] = captured(lambda step=step: step(caches.q))
    seconds = timed(runs)
    for name, values in seconds.items():
        step, (right, scores, out) = ready[name]
        tell("ab-sparse", model=model, tokens=tokens, batch=batch, method=name, seconds=values, right=right,
             scores_off=scores, out_off=out, bytes=step.nbytes, blocks=step.blocks, budget=caches.budget,
             settings=asdict(step.setting))  # fmt: skip
    pieces = {}
    for name in (f"ab-sparse, {next(iter(MIXES))}", "quest-32", "quest-32 int4"):
        if name in ready:
            step = ready[name][0]
            for piece, run in (
                ("estimate", lambda s=step: s.estimate(caches.q)),
                ("choose", step.choose),
                ("attend", lambda s=step: s.attend(caches.q)),
            ):
                pieces[name, piece] = captured(run)
    for (name, piece), values in timed(pieces, 7).items():
        tell("ab-sparse-piece", model=model, tokens=tokens, batch=batch, method=name, piece=piece, seconds=values)


def kernels():
    """Each kernel beside what one writes without it: heads padded to the smallest block, by torch's own operations."""
    model, tokens, batch = ("llama-3-8b", 131_072, 4) if CUDA else ("llama-3-8b", 700, 1)
    heads, group = MODELS[model]
    caches = Caches(heads, group, tokens, batch)
    sizes = MIXES["one fine head"]
    key = (model, tokens, batch, f"ab-sparse, {next(iter(MIXES))}")
    step = caches.step(sizes, 4, KNOWN[key]) if key in KNOWN else tuned(caches, sizes, 4)
    q = caches.q
    step(q)
    counts = [step.starts[h + 1] - step.starts[h] for h in range(heads)]
    most, begin = max(counts), step.begin.tolist()
    padded = torch.zeros(batch, heads, most, WIDTH, dtype=torch.uint8, device=DEVICE)
    valid = torch.zeros(heads, most, dtype=torch.bool, device=DEVICE)
    part_of = torch.zeros(heads, most, dtype=torch.long, device=DEVICE)  # the group of tokens that a block lies in
    for h in range(heads):
        padded[:, h, : counts[h]] = step.summaries[:, step.starts[h] : step.starts[h + 1]]
        valid[h, : counts[h]] = True
        part_of[h, : counts[h]] = torch.arange(counts[h], device=DEVICE) // (gpu.GROUP // sizes[h])
    which, grouped = torch.arange(heads, device=DEVICE)[:, None], q.reshape(batch, heads, group, WIDTH).float()

    def estimate():
        fold = step.fold[:, which, part_of]
        lower = (padded & 15) * fold[..., 0, :].float() + fold[..., 1, :].float()
        upper = (padded >> 4) * fold[..., 2, :].float() + fold[..., 3, :].float()
        scores = grouped.clamp_min(0) @ upper.transpose(2, 3) + grouped.clamp_max(0) @ lower.transpose(2, 3)
        return scores.amax(2).masked_fill(~valid, float("-inf"))

    scored = estimate()
    wanted = [begin[h + 1] - begin[h] for h in range(heads)]

    def choose():
        return scored.topk(max(wanted), dim=2).indices

    picked = choose()
    token_of = torch.zeros(batch, heads, caches.budget, dtype=torch.long, device=DEVICE)
    for h, size in enumerate(sizes):
        block = picked[:, h, : wanted[h], None] * size + torch.arange(size, device=DEVICE)
        token_of[:, h] = block.reshape(batch, -1) + step.sink
    page, inside = token_of // gpu.PAGE, token_of % gpu.PAGE
    physical = caches.pages.long().gather(1, page.reshape(batch, -1)).reshape_as(page)
    head_of = torch.arange(heads, device=DEVICE)[None, :, None]

    def attend():
        k, v = (x[physical, head_of, inside] for x in (step.keys, step.values))
        return torch.nn.functional.scaled_dot_product_attention(q.reshape(batch, heads, group, WIDTH), k, v)

    runs = {}
    for piece, naive, ours in (
        ("estimate", estimate, lambda: step.estimate(q)), ("choose", choose, step.choose),
        ("attend", attend, lambda: step.attend(q)),
    ):  # fmt: skip
        runs[piece, "padded"], runs[piece, "ours"] = captured(naive), captured(ours)
    dense = [x[caches.pages.long()].transpose(1, 2).reshape(batch, heads, -1, WIDTH) for x in (step.keys, step.values)]
    runs["full", "sdpa"] = captured(
        lambda: torch.nn.functional.scaled_dot_product_attention(q.reshape(batch, heads, group, WIDTH), *dense)
    )
    for (piece, method), values in timed(runs).items():
        tell("ab-sparse-kernel", model=model, tokens=tokens, batch=batch, piece=piece, method=method, seconds=values)


def main():
    global tell
    tell = common.Answers("h200_ab_sparse", shown=400)
    if CUDA:
        facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": gpu.triton.__version__}
        tell("ab-sparse-facts", **facts)
    parts = {"check": check, "first": lambda: steps(SHAPES[:3]), "kernels": kernels, "rest": lambda: steps(SHAPES[3:])}
    tell.run(common.asked(parts))


if __name__ == "__main__":
    main()
