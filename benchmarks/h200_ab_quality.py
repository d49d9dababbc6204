"""Block sizes by head on language models of natural text, trained here: attention kept, tokens and passages foreseen.

    python3 benchmarks/h200_ab_quality.py                       # NVIDIA GPU with torch and tokenizers; no assay
    TINY=1 python benchmarks/h200_ab_quality.py                 # anywhere, to try it
    python benchmarks/h200_ab_quality.py store DATE FILE.jsonl  # put what was measured into the package

Models learn next tokens from the Python sources and documentation that came with the machine's own Python, files of a
folder behind one another. In half of the windows passages and needles (lines like ``spam_eggs = one two three``, words
drawn at random) come again. Texts to calibrate on and to ask about are assay's own sources, in two halves by folder.
A context is read with full attention; behind it are decoded, through sparse attention in every layer, the text as it
goes on, passages of which the beginning is given, and needles of which the name is given. What is not chosen is masked
here, so nothing is saved: the question is only what heads see. Sizes and how to round summaries are learnt on the texts
to calibrate on. Writes h200_ab_quality.jsonl to $OUT, or here.
"""

# mypy: ignore-errors

from __future__ import annotations

import hashlib
import itertools
import json
import os
import queue
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

import h200_common as common

common.packages("assay.kernels.ab_sparse", "assay.sim")
if "assay.sim.random" not in sys.modules:  # the part of it that needs no Numba
    from assay.sim import streams

    sys.modules["assay.sim.random"] = streams

from assay.kernels.ab_sparse.allocation import SIZES, allocate, greedy  # noqa: E402
from assay.kernels.ab_sparse.carry import carry  # noqa: E402
from assay.kernels.ab_sparse.codes_torch import rounded  # noqa: E402
from assay.sim import tiny_lm  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TARGET = common.KERNELS / "ab_sparse/text_models.json"
FINE = (2, 4, *SIZES)
SINK = WINDOW = 16
GROUP = 2048  # tokens whose blocks share scales and zeros
SHARE = 0.04
NEEDLES, VALUE, PROMPT, START = 8, 3, 12, 0
ASKED = {"text": 112, "passage": 16, "needle": VALUE}  # tokens at the end of a tail that are asked for


@dataclass(frozen=True)
class Model:
    """A shape, how it is trained, and the lengths of the contexts it is asked about.

    Courses are (length of a window, windows of a step, steps). Short windows come first: what comes again is soon found
    in them, and in long ones hardly ever from scratch.
    """

    shape: tiny_lm.Shape
    courses: tuple[tuple[int, int, int], ...]
    rate: float
    contexts: tuple[int, ...]


def _shape(**sizes):
    return tiny_lm.Shape(vocab=2048, attn="gqa", **sizes)


SMALL = _shape(layers=6, width=128, heads=8, head=32, kv_heads=4, hidden=256)
LARGE = _shape(layers=8, width=512, heads=8, head=64, kv_heads=8, hidden=1024)
MODELS = {  # a minute or two of learning each; contexts: whole largest blocks between sink and window
    "22 M": Model(LARGE, ((512, 256, 800), (2048, 64, 200), (8192, 16, 200)), 1.5e-3, (8096,)),
    "1.4 M": Model(SMALL, ((512, 256, 800), (2048, 64, 200), (8192, 16, 200)), 4e-3, (8096, 4000)),
}
TEXTS, BYTES = 32, 100e6
if "TINY" in os.environ:
    tiny = _shape(layers=2, width=32, heads=4, head=16, kv_heads=2, hidden=64)
    MODELS, TEXTS, BYTES = {"tiny": Model(tiny, ((64, 8, 3), (256, 4, 3)), 4e-3, (672,))}, 2, 5e5

# ------------------------------------------------------------------------------------------ text


def folders(*roots, most=1e9):
    """Texts of the files of each folder, up to so many bytes; data and what came before are left out."""
    seen, found, total = set(), {}, 0
    for path in (path for root in roots for path in sorted(root.rglob("*"))):
        if path.suffix not in (".py", ".md", ".rst") or not path.is_file() or not 500 < path.stat().st_size < 300_000:
            continue
        raw = path.read_bytes()
        digest = hashlib.blake2b(raw, digest_size=8).digest()
        if digest in seen or len(raw) / (raw.count(b"\n") + 1) > 100:
            continue
        seen.add(digest)
        found.setdefault(path.parent, []).append(raw.decode("utf8", "ignore"))
        total += len(raw)
        if total > most:
            break
    return found


def tokenizer(texts):
    """Pairs of bytes joined, the most frequent first."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=2048, special_tokens=["<s>"], show_progress=False, initial_alphabet=alphabet),
    )
    return made


def encoded(made, by_folder):
    texts = ["\n".join(files) + "\n" for files in by_folder.values()]
    return [np.array(one.ids, np.int64) for one in made.encode_batch(texts)]


class Words(NamedTuple):
    """The tokens that needles are made of: three signs, words of names and words of values (with a space before)."""

    newline: int
    joint: int
    equals: int
    names: np.ndarray
    values: np.ndarray


def words_of(made):
    found = {"": [], "Ġ": []}
    vocab = made.get_vocab()
    for token, number in vocab.items():
        word = token.lstrip("Ġ")
        if word.isascii() and word.isalpha() and word.islower() and len(word) >= 3 and token[: -len(word)] in found:
            found[token[: -len(word)]].append(number)
    return Words(vocab["Ċ"], vocab["_"], vocab["Ġ="], np.sort(found[""]), np.sort(found["Ġ"]))


@dataclass(frozen=True)
class Context:
    """A text that is read once, and tails [tails, tokens] of each task, whose last ASKED tokens are to be foreseen."""

    ids: np.ndarray
    tails: dict


def needles(words, count, random):
    """Names [count, 5] and values [count, VALUE]; three needles share the first word of their name."""
    first = np.repeat(random.choice(words.names, -(-count // 3), replace=False), 3)[:count]
    second = random.choice(words.names, count, replace=False)
    each = np.ones(count, np.int64)
    names = np.stack([each * words.newline, first, each * words.joint, second, each * words.equals], 1)
    return names, random.choice(words.values, (count, VALUE))


def with_needles(ids, names, values, at):
    """A text with needles put in before the tokens `at` (rising)."""
    pieces = np.split(ids, at)
    found = [pieces[0]]
    for name, value, piece in zip(names, values, pieces[1:], strict=True):
        found += [name, value, piece]
    return np.concatenate(found)


def context(stream, length, words, random):
    """A context of this length from a random place of a stream of tokens, with its tails."""
    plain = length - 1 - NEEDLES * (5 + VALUE)
    begin = int(random.integers(0, len(stream) - plain - ASKED["text"]))
    text, after = np.split(stream[begin : begin + plain + ASKED["text"]], [plain])
    names, values = needles(words, NEEDLES, random)
    told = np.sort(random.integers(0, plain * 15 // 16, NEEDLES))
    ids = np.concatenate([[START], with_needles(text, names, values, told)])
    lines = np.flatnonzero(ids[: length * 15 // 16] == words.newline)
    starts = random.choice(lines[lines > 16], NEEDLES, replace=False)
    span = 1 + PROMPT + ASKED["passage"]
    # The text's tail begins with the context's last token, from which the next one is foreseen.
    return Context(ids, {
        "text": np.concatenate([ids[-1:], after])[None], "passage": np.stack([ids[s : s + span] for s in starts]),
        "needle": np.concatenate([names, values], 1),
    })  # fmt: skip


def window(stream, length, words, random):
    """A window of training text; in every other one needles are told and asked, and passages come again."""
    begin = int(random.integers(0, len(stream) - length))
    ids = np.concatenate([[START], stream[begin : begin + length - 1]])
    if random.random() < 0.5:
        return ids
    for _ in range(int(random.integers(1, 7))):
        span = int(random.integers(16, min(97, length // 3)))
        source = int(random.integers(1, length - 2 * span))
        target = int(random.integers(source + span, length - span + 1))
        ids[target : target + span] = ids[source : source + span]
    names, values = needles(words, int(random.integers(3, 17)), random)
    told = np.sort(random.integers(1, length * 3 // 4, len(names)))
    at = np.concatenate([told, random.integers(told + 1, length)])
    order = np.argsort(at, kind="stable")
    names, values = np.concatenate([names] * 2)[order], np.concatenate([values] * 2)[order]
    return with_needles(ids, names, values, at[order])[:length]


# ------------------------------------------------------------------------------------------ training


def batches(stream, courses, words, seed):
    """Windows [batch, length + 1] of each course's steps, made ahead by a thread."""
    line, random = queue.Queue(8), np.random.default_rng([seed, 7])

    def fill():
        for length, batch, steps in courses:
            for _ in range(steps):
                line.put(np.stack([window(stream, length + 1, words, random) for _ in range(batch)]))

    threading.Thread(target=fill, daemon=True).start()
    for _ in range(sum(steps for *_, steps in courses)):
        yield line.get()


def train(model, stream, words, seed=0):
    """The model after its steps, and each step's loss. The rate rises over 50 steps and falls to nothing."""
    shape = model.shape
    weights = {k: t.to(DEVICE).requires_grad_() for k, t in tiny_lm.init(shape, seed).tensors.items()}
    turns = {
        length: tuple(x.to(DEVICE) for x in tiny_lm.rotation(torch.arange(length), shape.head, shape.theta))
        for length, *_ in model.courses
    }

    def loss(ids, turns):
        with torch.autocast(DEVICE, torch.bfloat16):
            x = weights["embed"][ids[:, :-1]]
            for layer in range(shape.layers):
                one = part(weights, layer)
                x = x + tiny_lm._gqa(one, shape, tiny_lm._norm(x, one["norm_attention"]), turns, None, None)[0]
                x = x + tiny_lm._ffn(one, shape, tiny_lm._norm(x, one["norm_ffn"]))
            logits = tiny_lm._norm(x, weights["norm"]) @ weights["embed"].T
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    step = torch.compile(loss, dynamic=False) if DEVICE == "cuda" else loss
    flat, square = [w for w in weights.values() if w.ndim == 1], [w for w in weights.values() if w.ndim > 1]
    groups = [{"params": flat, "weight_decay": 0.0}, {"params": square, "weight_decay": 0.05}]
    optimiser = torch.optim.AdamW(groups, lr=model.rate, betas=(0.9, 0.95), fused=DEVICE == "cuda")
    losses, steps = [], sum(steps for *_, steps in model.courses)
    for number, batch in enumerate(batches(stream, model.courses, words, seed)):
        for group in optimiser.param_groups:
            group["lr"] = model.rate * min((number + 1) / 50, 1.0) * (1 - number / steps)
        value = step(torch.from_numpy(batch).to(DEVICE), turns[batch.shape[1] - 1])
        optimiser.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimiser.step()
        losses.append(value.detach())
    return tiny_lm.Params(shape, {k: t.detach() for k, t in weights.items()}), [float(x) for x in losses]


def part(weights, layer):
    return {name.partition(".")[2]: t for name, t in weights.items() if name.startswith(f"{layer}.")}


# ------------------------------------------------------------------------------------------ sparse reading


def seen(q, kind):
    """What queries [heads, queries, width] multiply a summary's numbers with."""
    if kind == "cuboid":
        return torch.cat([q.clamp(max=0), q.clamp(min=0)], 2)
    return torch.cat([q, q.norm(dim=2, keepdim=True)], 2)


def moments(queries, kind):
    """The second moments of what the queries of every KV head multiply with [heads of all layers, numbers, numbers]."""
    rows = [seen(q.flatten(1, 2).double(), kind) for q in queries]
    return torch.cat([x.transpose(1, 2) @ x / x.shape[1] for x in rows])


def carries(means):
    """How the summaries of every KV head are rounded, by kind: order and shares of all heads."""
    found = {}
    for kind, mean in means.items():
        each = [carry(one) for one in mean.cpu().numpy()]
        found[kind] = tuple(torch.from_numpy(np.stack(x)).to(DEVICE) for x in zip(*each, strict=True))
    return found


class Book:
    """A context that was read; a way to thin attention is (sizes of all KV heads, kind of summary, bits, carried).

    Summaries are rounded as `carried` says where a way asks for it, else to the nearest step.
    """

    def __init__(self, params, context, carried=None):
        self.context, self.tokens, self.carried, self.made = context, len(context.ids), carried, {}
        self.end = SINK + (self.tokens - SINK - WINDOW) // SIZES[-1] * SIZES[-1]
        always = self.tokens - self.end + SINK
        self.budget = max(SIZES[-1], int(SHARE * self.tokens - always) // SIZES[-1] * SIZES[-1])
        with torch.no_grad():
            _, cache = tiny_lm.forward(params, torch.from_numpy(context.ids).to(DEVICE))
        self.keys, self.values = (
            torch.stack([getattr(layer, which)[0].transpose(0, 1) for layer in cache.layers])
            for which in ("rotary", "free")
        )

    def corners(self, size, kind, bits, carried):
        """The numbers of every block [KV heads of all layers, blocks, numbers]; made once."""
        name = size, kind, bits, carried
        if name not in self.made:
            cut = self.keys.flatten(0, 1)[:, SINK : self.end].unflatten(1, (-1, size))
            numbers = torch.cat([cut.amin(2), cut.amax(2)], 2)
            if kind == "ball":
                middle = numbers.unflatten(2, (2, -1)).mean(2)
                radius = ((cut - middle[:, :, None]) ** 2).sum(3).amax(2).sqrt()
                numbers = torch.cat([middle, radius[..., None]], 2)
            self.made[name] = rounded(numbers, bits, GROUP // size, self.carried[kind] if carried else None)
        return self.made[name]

    def picked(self, layer, heads, way, q):
        """Which blocks are read [heads, rows, blocks] for queries [heads, group, rows, width]; `way` has one size."""
        each = [layer * self.keys.shape[1] + h for h in heads]
        asks = seen(q.flatten(1, 2), way[1])
        scored = (asks @ self.corners(*way)[each].transpose(1, 2)).unflatten(1, q.shape[1:3])
        scored = scored.amax(1)  # a block counts as the best query of its group says
        chosen = scored.topk(self.budget // way[0], dim=2).indices
        return torch.zeros_like(scored, dtype=torch.bool).scatter_(2, chosen, True)

    def mask(self, layer, way, q):
        """Which tokens are read [heads, rows, tokens]."""
        sizes = way[0][layer * len(q) : (layer + 1) * len(q)]
        found = torch.ones(len(q), q.shape[2], self.tokens, dtype=torch.bool, device=q.device)
        for size in set(sizes):
            heads = [h for h, s in enumerate(sizes) if s == size]
            blocks = self.picked(layer, heads, (size, *way[1:]), q[heads])
            found[heads, :, SINK : self.end] = blocks.repeat_interleave(size, 2)
        return found


def ask(params, book, way, keep=None):
    """Logits of the asked tokens by task, `way` None reading everything; `keep` gets each layer's queries."""
    shape, w, n = params.shape, params.tensors, book.tokens
    tails = {task: torch.from_numpy(ids[:, :-1]).to(DEVICE) for task, ids in book.context.tails.items()}
    x = torch.cat([w["embed"][ids].flatten(0, 1) for ids in tails.values()])
    spans, begin = [], 0
    for task, ids in tails.items():
        spans.append((task, slice(begin, begin + ids.numel()), *ids.shape))
        begin += ids.numel()
    first = {"text": n - 1}  # where a tail begins: the text's with the last token of the context
    at = [(torch.arange(length, device=DEVICE) + first.get(task, n)).repeat(count) for task, _, count, length in spans]
    turns = tiny_lm.rotation(torch.cat(at), shape.head, shape.theta)
    seen = torch.ones(1, len(x), n, dtype=torch.bool, device=DEVICE)
    seen[:, spans[0][1], n - 1] = False  # which its tail sees in itself
    for layer in range(shape.layers):
        one = part(w, layer)
        rows = tiny_lm._norm(x, one["norm_attention"])[None]
        q, k = (tiny_lm.rotate((rows @ one[z]).unflatten(2, (-1, shape.head)), turns)[0] for z in ("query", "key"))
        v = (rows @ one["value"])[0].unflatten(1, (-1, shape.head))
        q = q.unflatten(1, (shape.kv_heads, -1)).permute(1, 2, 0, 3)  # KV heads, group, rows, width
        if keep is not None:
            keep.append(q)
        mask = seen if way is None else seen & book.mask(layer, way, q)
        x = x + attended(book, layer, q, k, v, mask, spans).permute(2, 0, 1, 3).flatten(1) @ one["out"]
        x = x + tiny_lm._ffn(one, shape, tiny_lm._norm(x, one["norm_ffn"])[None])[0]
    logits = tiny_lm._norm(x, w["norm"]) @ w["embed"].T
    return {task: logits[rows].unflatten(0, (count, -1))[:, -ASKED[task] :] for task, rows, count, _ in spans}


def attended(book, layer, q, k, v, mask, spans):
    """Attention of all rows over what the mask leaves of the context, and over their own tails up to themselves."""
    scale, found = q.shape[3] ** -0.5, []
    logits = (q @ book.keys[layer][:, None].transpose(2, 3) * scale).masked_fill(~mask[:, None], -torch.inf)
    for _, rows, count, length in spans:
        ks, vs = (z[rows].unflatten(0, (count, length)).permute(2, 0, 1, 3) for z in (k, v))
        own = torch.einsum("hgctd,hcsd->hgcts", q[:, :, rows].unflatten(2, (count, length)), ks) * scale
        later = torch.ones(length, length, dtype=torch.bool, device=DEVICE).triu(1)
        own = own.masked_fill(later, -torch.inf).flatten(2, 3)
        both = torch.cat([logits[:, :, rows], own], 3).softmax(3)
        mixed = both[..., : book.tokens] @ book.values[layer][:, None]
        tail = both[..., book.tokens :].unflatten(2, (count, length))
        found.append(mixed + torch.einsum("hgcts,hcsd->hgctd", tail, vs).flatten(2, 3))
    return torch.cat(found, 2)


def scored(book, said):
    """Shares of right tokens (of needles: of whole values), and nats a token of the text."""
    row = {}
    for task, logits in said.items():
        wanted = torch.from_numpy(book.context.tails[task][:, -ASKED[task] :]).to(DEVICE)
        hit = logits.argmax(2) == wanted
        row[task] = float((hit.all(1) if task == "needle" else hit).float().mean())
        if task == "text":
            row["loss"] = float(functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()))
    return row


PLAIN = (
    *((size, "cuboid", 16, False) for size in FINE),
    *((size, "ball", 16, False) for size in SIZES),
)
WAYS = (
    *PLAIN,
    *((size, "cuboid", 4, True) for size in FINE),
    *((size, "cuboid", bits, True) for bits in (8, 2) for size in SIZES),
    *((size, "cuboid", 4, False) for size in SIZES),
    *((size, "ball", 4, True) for size in SIZES),
)


def recalls(book, queries, ways=WAYS):
    """Of each of `ways` the recall by KV head, tasks counting alike; and attention shared with 16 bits, beside theirs.

    Of PLAIN, which are the first, all are asked for.
    """
    ends = np.cumsum([0] + [ids[:, 1:].size for ids in book.context.tails.values()])
    found, shared = {way: [] for way in ways}, {way: [] for way in ways}
    for layer, q in enumerate(queries):
        weights = (q @ book.keys[layer][:, None].transpose(2, 3) * q.shape[3] ** -0.5).softmax(3)
        always = weights[..., :SINK].sum(3) + weights[..., book.end :].sum(3)
        picked = {way: book.picked(layer, list(range(len(q))), way, q) for way in ways}
        for way, mine in picked.items():
            sums = weights[..., SINK : book.end].unflatten(3, (-1, way[0])).sum(4)
            each = (always + (sums * mine[:, None]).sum(3)).mean(1)
            tasks = [each[:, a:b].mean(1) for a, b in itertools.pairwise(ends)]
            found[way].append(torch.stack(tasks).mean(0))
            theirs = sums * picked[way[0], way[1], 16, False][:, None]
            shared[way].append(torch.stack([(theirs * mine[:, None]).sum((1, 2, 3)), theirs.sum((1, 2, 3))]))
    return {way: torch.cat(x).cpu().numpy() for way, x in found.items()}, {
        way: torch.cat(x, 1).cpu().numpy() for way, x in shared.items()
    }


def opened(params, context, carried=None, ways=WAYS):
    """A book, what the model says with everything read, its queries, and what `recalls` gives."""
    book, queries = Book(params, context, carried), []
    with torch.no_grad():
        full = ask(params, book, None, queries)
        return book, full, queries, *recalls(book, queries, ways)


def calibrated(params, texts):
    """The recall of each of PLAIN by KV head, mean over texts; and how to round."""
    tables, means = [], {"cuboid": 0.0, "ball": 0.0}
    for one in texts:
        _, _, queries, table, _ = opened(params, one, ways=PLAIN)
        tables.append(table)
        for kind in means:
            means[kind] = means[kind] + moments(queries, kind) / len(texts)
    return {way: np.mean([table[way] for table in tables], 0) for way in PLAIN}, carries(means)


# ------------------------------------------------------------------------------------------ measuring


def methods(cuboids, balls):
    """What is compared: (sizes, kind, bits, carried), sizes by the recall [heads, sizes] on calibration texts."""
    heads, coarse = len(cuboids), cuboids[:, 2:]
    ours = tuple(allocate(coarse).tolist())
    found = {f"quest-{size}": ((size,) * heads, "cuboid", 16, False) for size in SIZES}
    found |= {f"quest-{size} int4": ((size,) * heads, "cuboid", 4, True) for size in (8, 32)}
    found |= {"ab-sparse": (ours, "cuboid", 4, True), "ab-sparse 16-bit": (ours, "cuboid", 16, False)}
    found |= {f"ab-sparse int{bits}": (ours, "cuboid", bits, True) for bits in (8, 2)}
    found["ab-sparse nearest"] = (ours, "cuboid", 4, False)
    found["ab-sparse greedy"] = (tuple(greedy(coarse).tolist()), "cuboid", 4, True)
    found["ab-sparse spent"] = (tuple(allocate(cuboids, FINE, 8).tolist()), "cuboid", 4, True)
    found |= {"arkvale-32": ((32,) * heads, "ball", 16, False)}
    return found | {"ab-sparse balls": (tuple(allocate(balls).tolist()), "ball", 4, True)}


def measure(tell, name, params, calibration, asked):
    """Every method on every asked text."""
    table, carried = calibrated(params, calibration)
    cuboids, balls = (
        np.stack([table[size, kind, 16, False] for size in sizes], 1).clip(0, 1)
        for kind, sizes in (("cuboid", FINE), ("ball", SIZES))
    )
    tell("heads", model=name, calibrated=np.round(cuboids.astype(float), 3).tolist())
    ways = methods(cuboids, balls)
    rows = {"full": [], **{method: [] for method in ways}}
    for one in asked:
        book, full, _, recall, shared = opened(params, one, carried)
        rows["full"].append(scored(book, full))
        for method, way in ways.items():
            with torch.no_grad():
                row = scored(book, ask(params, book, way))
            each = [(size, *way[1:]) for size in way[0]]
            row["recall"] = float(np.mean([recall[key][h] for h, key in enumerate(each)]))
            both, alone = np.sum([shared[key][:, h] for h, key in enumerate(each)], 0)
            rows[method].append(row | {"overlap": float(both / alone)})
    for method, each in rows.items():
        lists = {column: [round(row[column], 4) for row in each] for column in each[0]}
        tell("method", model=name, method=method, sizes=" ".join(map(str, ways.get(method, ((),))[0])), **lists)


def main():
    tell = common.Answers("h200_ab_quality", shown=300)
    theirs = folders(*(Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")), most=BYTES)
    root = common.SOURCE.parents[1]
    ours = folders(*(root / one for one in ("src/assay", "tests", "docs")))
    texts = [text for files in theirs.values() for text in files]
    made = tokenizer([texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:3000]])
    words, stream, mine = words_of(made), np.concatenate(encoded(made, theirs)), encoded(made, ours)
    tell("text", bytes=sum(map(len, texts)), tokens=len(stream), folders=len(theirs))
    random = np.random.default_rng(5)
    for name, model in MODELS.items():
        begun = time.monotonic()
        torch.set_float32_matmul_precision("high")
        params, losses = train(model, stream, words)
        curve = [round(float(np.mean(x)), 3) for x in np.array_split(losses, min(10, len(losses)))]
        facts = {"parameters": params.count, "steps": len(losses), "tokens": sum(map(np.prod, model.courses)).item()}
        tell("trained", model=name, **facts, losses=curve, seconds=time.monotonic() - begun)
        torch.set_float32_matmul_precision("highest")  # what is chosen is the summaries' doing, not the products'
        if DEVICE == "cuda":
            torch.set_default_device(DEVICE)  # tiny_lm makes its positions where tensors are made
        for length in model.contexts:
            calibration, asked = (
                [context(np.concatenate(mine[half::2]), length, words, random) for _ in range(count)]
                for half, count in ((0, TEXTS // 2), (1, TEXTS))
            )
            measure(tell, f"{name}, {length} tokens", params, calibration, asked)
            tell("took", model=name, tokens=length, seconds=time.monotonic() - begun)
        torch.set_default_device("cpu")


def store(date, file):
    """Keep what was measured, with where it comes from."""
    rows = [row for row in map(json.loads, Path(file).read_text().splitlines()) if row["part"] != "took"]
    kept = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    source = f"measured on one NVIDIA H200 on {date} by benchmarks/h200_ab_quality.py"
    TARGET.write_text(f'{{"source": {json.dumps(source)}, "rows": [\n{kept}\n]}}\n')


if __name__ == "__main__":
    store(*sys.argv[2:]) if sys.argv[1:2] == ["store"] else main()
