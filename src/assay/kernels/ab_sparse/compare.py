"""`assay compare kernels --kv dump.npz`: sparse decode attention side by side on a user's own keys and queries."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from assay.kernels.ab_sparse import blocks
from assay.kernels.ab_sparse.allocation import MEAN, SIZES, allocate
from assay.kernels.ab_sparse.blocks import Floats, Ints
from assay.kernels.ab_sparse.ragged import Ragged, attend, choose, prepare
from assay.kernels.engine import asking, machine, runner
from assay.kernels.interface import Cost, Implementation, Kernel, Match
from assay.record import reading
from assay.record.errors import BadInput

OURS = "ab-sparse"


class Dump(NamedTuple):
    """Keys and values [heads, tokens, width] of a cache, and queries [steps, query heads, width] that ask it."""

    keys: Floats
    values: Floats
    queries: Floats
    tokens: int  # that the chosen blocks of a head may have


def read_kv(path: Path, share: float) -> Dump:
    """A dump as NumPy's .npz with arrays keys, values and queries."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if missing := {"keys", "values", "queries"} - set(file.files):
                raise BadInput(f"{path}: no array '{min(missing)}'; keys, values and queries are wanted")
            keys, values, queries = (file[name] for name in ("keys", "values", "queries"))
    except (ValueError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise BadInput(f"{path}: {reading.no_array(error)}; NumPy's .npz with plain arrays expected") from None
    try:
        k, v, q = blocks.checked(keys, values, queries)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    where = blocks.frame(k.shape[1])
    if where.body < 2 * SIZES[-1] or len(q) < 2:
        raise BadInput(
            f"{path}: {k.shape[1]} tokens and {len(q)} steps; at least {2 * SIZES[-1] + blocks.SINK + blocks.WINDOW} "
            "tokens are needed for sparse attention to leave any out, and 2 steps to choose sizes on one half"
        )
    return Dump(k, v, q, blocks.budget(where, share))


def recalls(dump: Dump, cache: Ragged, steps: slice) -> Any:
    """The share of its attention that each head reads, over some steps [heads]."""
    group = dump.queries.shape[1] // len(dump.keys)
    found = []
    for q in dump.queries[steps]:
        picked, begin = choose(cache, np.ascontiguousarray(q[None]), _counts(dump, cache))
        for head, size in enumerate(cache.sizes):
            weights = blocks.attention(q[head * group : (head + 1) * group], dump.keys[head])
            mine = np.repeat(picked[:, begin[head] : begin[head + 1]], group, 0)
            found.append(blocks.recall(weights, mine, cache.where, int(size)).mean())
    return np.array(found, np.float64).reshape(-1, len(dump.keys)).mean(0).clip(0, 1)


def _counts(dump: Dump, cache: Ragged) -> Ints:
    return np.asarray(min(dump.tokens, cache.where.body) // cache.sizes)


def _caches(dump: Dump, mean: int) -> tuple[dict[str, Ragged], Any]:
    """Every way's summaries, sizes and rounding learnt on the first half of the steps; and the recalls there."""
    keys, values, heads = dump.keys[None], dump.values[None], len(dump.keys)
    found = {f"quest-{size}": prepare(keys, values, [size] * heads, bits=32) for size in SIZES}
    first = slice(0, len(dump.queries) // 2)
    calibrated = np.stack([recalls(dump, found[f"quest-{size}"], first) for size in SIZES], 1)
    found[f"quest-{mean} int4"] = prepare(keys, values, [mean] * heads, queries=dump.queries[first])
    found[OURS] = prepare(keys, values, allocate(calibrated, mean=mean), queries=dump.queries[first])
    found["oracle top tokens"] = prepare(keys, values, [1] * heads, bits=32)
    return found, calibrated


class Read(NamedTuple):
    """A result, and what was read for it."""

    out: Floats
    cache: Ragged | None  # None: everything
    chosen: Ints
    begin: Ints


def _check(dump: Dump, got: Read, right: Any) -> Match:
    """Exact on what was read: a masked softmax over it in double precision, by numpy."""
    group, q = dump.queries.shape[1] // len(dump.keys), dump.queries[-1].astype(np.float64)
    worst = 0.0
    for head, (k, v) in enumerate(zip(dump.keys, dump.values, strict=True)):
        logits = q[head * group : (head + 1) * group] @ k.T.astype(np.float64) / np.sqrt(k.shape[1])
        if got.cache is not None:
            mine = got.chosen[:, got.begin[head] : got.begin[head + 1]]
            logits = np.where(blocks.kept(got.cache.where, mine, int(got.cache.sizes[head])), logits, -np.inf)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        wanted = weights / weights.sum(1, keepdims=True) @ v
        worst = max(worst, float(np.abs(got.out[0, head * group : (head + 1) * group] - wanted).max()))
    return Match(worst <= 1e-4 * float(np.abs(dump.values).max()), worst)


def cost(dump: Dump) -> Cost:
    """The budget's keys and values, and sink and window, read once; queries and result."""
    heads, n, width = dump.keys.shape
    where = blocks.frame(n)
    read = heads * (dump.tokens + n - where.body)
    group = dump.queries.shape[1] // heads
    return Cost(4.0 * read * group * width, 4.0 * (2 * read * width + 2 * dump.queries[-1].size))


def _sparse(cache: Ragged, dump: Dump) -> Any:
    def run(_: Any) -> Read:
        q = dump.queries[-1:]
        picked, begin = choose(cache, q, _counts(dump, cache))
        return Read(attend(cache, q, np.zeros(1, np.int64), picked, begin)[0], cache, picked, begin)

    return run


def _full(dump: Dump) -> Any:
    import torch
    from torch.nn import functional

    heads, width = len(dump.keys), dump.keys.shape[2]
    k, v = (torch.from_numpy(x)[None] for x in (dump.keys, dump.values))
    q = torch.from_numpy(dump.queries[-1]).reshape(1, heads, -1, width)

    def run(_: Any) -> Read:
        out = functional.scaled_dot_product_attention(q, k, v).reshape(1, -1, width).numpy()
        return Read(out, None, np.empty((1, 0), np.int64), np.zeros(heads + 1, np.int64))

    return run


@click.command(epilog="Example:  assay compare kernels --kv examples/kv.npz --budget 0.04 --mean 32")
@click.option(
    "--kv", "path", required=True, type=click.Path(path_type=Path), help="NumPy's .npz: keys, values, queries."
)
@click.option("--budget", "share", type=click.FloatRange(0, 1, min_open=True), default=0.04, show_default=True,
              help="Share of the tokens that a head reads.")  # fmt: skip
@click.option("--mean", type=click.Choice([str(size) for size in SIZES]), default=str(MEAN), show_default=True,
              help="The uniform block size whose memory sizes by head may use.")  # fmt: skip
@asking.options
def command(path: Path, share: float, mean: str, rounds: int, where: str, plot: Path | None) -> dict[str, Any]:
    """Sparse decode attention on your own keys and queries: seconds, and how much attention is kept on unseen steps.

    keys and values are [heads, tokens, width] of one layer's cache, queries [steps, query heads, width]. Block sizes
    and rounding are chosen on the first half of the steps; recall is measured on the second.
    """
    dump = read_kv(path, share)
    caches, _ = _caches(dump, int(mean))
    ways = [Implementation(name, "numba", lambda p: None, _sparse(one, dump)) for name, one in caches.items()]
    has_torch = importlib.util.find_spec("torch") is not None
    ways.append(
        Implementation("full", "torch", lambda p: None, _full(dump) if has_torch else lambda p: None,
                       lambda: "" if has_torch else "pip install 'assay[torch]'")
    )  # fmt: skip
    here = machine.here()
    kernel = Kernel("sparse decode", lambda p: 0, _check, cost)
    outcome = runner.measure(kernel, dump, ways, here, rounds)
    heads, n, width = dump.keys.shape
    facts = {
        "file": str(path), "heads": heads, "query_heads": dump.queries.shape[1], "tokens": n, "width": width,
        "steps": len(dump.queries), "read": dump.tokens + n - blocks.frame(n).body,
        "sizes": " ".join(map(str, caches[OURS].sizes)),
    }  # fmt: skip
    told = asking.answer(outcome, here, cost(dump), facts, OURS, where, plot)
    second = slice(len(dump.queries) // 2, None)
    kept = {name: float(recalls(dump, one, second).mean()) for name, one in caches.items()} | {"full": 1.0}
    spent = {name: one.nbytes / n for name, one in caches.items()} | {"full": 0.0, "oracle top tokens": 0.0}
    for row in told["table"]:
        row |= {"recall": kept[row["implementation"]], "metadata": spent[row["implementation"]]}
    told["shown"] = ["implementation", "seconds", "recall", "metadata", "fraction", "bound_by", "right"]
    told["units"] = told["units"] | {"metadata": "bytes/token"}
    told["why"] = _why(kept, spent, int(mean)) + " " + told["why"]
    return told


def _why(kept: dict[str, float], spent: dict[str, float], mean: int) -> str:
    """Who keeps most attention at equal memory for summaries, and what that is worth."""
    rival = f"quest-{mean} int4"
    gain = kept[OURS] - kept[rival]
    said = f"Sizes by head keep {kept[OURS]:.3f} of the attention on unseen steps, blocks of {mean} for all "
    said += f"{kept[rival]:.3f} with as many bytes of summaries ({spent[OURS]:.3g} a token): "
    if abs(gain) < 0.005:
        return said + "a tie; these heads do not differ enough for sizes of their own."
    return said + (
        "some heads look up scattered tokens and got small blocks, others did not mind large ones."
        if gain > 0
        else "the first half of the steps did not tell what the second needs."
    )
