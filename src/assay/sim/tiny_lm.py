"""A small decoder-only language model in torch whose KV cache is an open book.

Cache studies need a model that reads and writes its cache where *they* say: rows cut out, joined, moved to other
positions, some recomputed and some not. So the model is two plain functions, `forward` and `train`, over a `Params`
of named tensors and a `Cache` of rows, and attention looks at positions and not at places in a list: a query at
position p sees every row whose position is at most p, in whatever order the rows lie.

Two attentions, both with rotary positions and SwiGLU, optionally with a mixture of experts:

- ``gqa``: keys of `kv_heads` heads, rotated over their whole width, beside values.
- ``mla``: one position-free latent for all heads beside one small rotary key (DeepSeek-V2). Queries are folded into
  the latent space, so the cache is used as it lies.

torch is imported where it is used: `pip install 'assay[torch]'`. Callers that measure set one thread.

>>> params = init(Shape(vocab=64, layers=2, width=32), seed=0)
>>> logits, cache = forward(params, [5, 9, 9, 2])
>>> tuple(logits.shape), len(cache), cache.moved(100).positions.tolist()
((1, 4, 64), 4, [100, 101, 102, 103])
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.sim.random import key, stream

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model.

    >>> Shape(attn="gqa").rows  # numbers a token leaves in each layer's cache: rotated, and position-free
    (64, 64)
    >>> Shape(attn="mla").rows
    (16, 32)
    """

    vocab: int = 256
    layers: int = 4
    width: int = 128
    heads: int = 4
    head: int = 32  # width of a head; in mla of its position-free part
    attn: str = "mla"
    kv_heads: int = 2  # gqa only
    latent: int = 32  # mla only: width of the shared latent
    rotary: int = 16  # mla only: width of the shared rotary key
    hidden: int = 256  # of all experts together
    experts: int = 1
    active: int = 1
    theta: float = 10_000.0

    def __post_init__(self) -> None:
        if self.attn not in ("gqa", "mla"):
            raise ValueError(f"attn is 'gqa' or 'mla', not '{self.attn}'")
        if self.hidden % self.experts or not 1 <= self.active <= self.experts:
            raise ValueError("hidden must divide into experts, and active lie in 1..experts")

    @property
    def rows(self) -> tuple[int, int]:
        """Numbers a token leaves in each layer's cache: the rotated ones and the position-free ones."""
        gqa = self.kv_heads * self.head
        return (gqa, gqa) if self.attn == "gqa" else (self.rotary, self.latent)


@dataclass(frozen=True, slots=True)
class Params:
    """A model: its shape and its tensors by name."""

    shape: Shape
    tensors: dict[str, Tensor]

    @property
    def count(self) -> int:
        """How many numbers the model consists of.

        >>> init(Shape(vocab=64, layers=1, width=32, hidden=64), seed=0).count
        28288
        """
        return sum(tensor.numel() for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's rows: `rotary` [batch, tokens, heads, width] turns with the position, `free` does not."""

    rotary: Tensor
    free: Tensor


@dataclass(frozen=True, slots=True)
class Cache:
    """The rows that some tokens left in every layer, and the positions they were computed at.

    >>> _, cache = forward(init(Shape(vocab=64, layers=1, width=32), seed=0), [1, 2, 3, 4, 5])
    >>> Cache.join([cache[3:], cache[:2]]).positions.tolist()
    [3, 4, 0, 1]
    >>> Cache.join([cache[3:], cache[:2]]).in_order().positions.tolist()
    [0, 1, 3, 4]
    """

    layers: tuple[Layer, ...]
    positions: Tensor  # int64 [tokens]; `forward` also takes [batch, tokens]
    theta: float

    def __len__(self) -> int:
        return int(self.positions.shape[-1])

    def __getitem__(self, rows: Any) -> Cache:
        """The chosen rows: a slice, a list of indices or a mask."""
        layers = tuple(Layer(x.rotary[:, rows], x.free[:, rows]) for x in self.layers)
        return replace(self, layers=layers, positions=self.positions[rows])

    @staticmethod
    def join(parts: Sequence[Cache]) -> Cache:
        """All rows of the parts, one after the other."""
        import torch

        layers = tuple(
            Layer(torch.cat([x.rotary for x in rows], 1), torch.cat([x.free for x in rows], 1))
            for rows in zip(*(part.layers for part in parts), strict=True)
        )
        return replace(parts[0], layers=layers, positions=torch.cat([part.positions for part in parts], -1))

    def moved(self, by: int | Tensor) -> Cache:
        """The same rows `by` positions further on (negative: back): only the rotary part is turned."""
        positions = self.positions + by
        turns = rotation(positions - self.positions, self.layers[0].rotary.shape[-1], self.theta)
        layers = tuple(Layer(rotate(x.rotary, turns), x.free) for x in self.layers)
        return replace(self, layers=layers, positions=positions)

    def relabelled(self, by: int | Tensor) -> Cache:
        """The rows said to lie `by` further on but not turned: what a cache without position correction does."""
        return replace(self, positions=self.positions + by)

    def in_order(self) -> Cache:
        """The rows by rising position."""
        return self[self.positions.argsort()]

    @property
    def nbytes(self) -> int:
        """What the rows take."""
        return sum(x.nbytes for layer in self.layers for x in (layer.rotary, layer.free))


# --------------------------------------------------------------------------------------------- positions


def rotation(positions: Tensor, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine [tokens, 1, width/2] of position × theta^(-2i/width).

    In float64 until the end: at position 100 000 a float32 angle is wrong in the third digit after the point.
    """
    import torch

    frequency = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = positions.to(torch.float64)[..., None, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (i, i + width/2) of the last axis of [batch, tokens, heads, width]."""
    import torch

    cos, sin = turns
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


# ------------------------------------------------------------------------------------------- the network


def init(shape: Shape, seed: int) -> Params:
    """Fresh parameters: normal, scaled by fan-in, output layers also by depth.

    >>> init(Shape(attn="gqa"), seed=1).tensors["0.key"].shape
    torch.Size([128, 64])
    """
    import torch

    generator = torch.Generator().manual_seed(key(seed, "tiny-lm", shape.attn) % 2**63)
    tensors = {}
    for name, size in _sizes(shape).items():
        if len(size) == 1:
            tensors[name] = torch.ones(size)
            continue
        scale = size[-2] ** -0.5 if name != "embed" else shape.width**-0.5
        if name.endswith((".out", ".down")):
            scale /= math.sqrt(2 * shape.layers)
        tensors[name] = torch.randn(size, generator=generator) * scale
    return Params(shape, tensors)


def _sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    d, h, e, f = shape.width, shape.heads, shape.experts, shape.hidden // shape.experts
    if shape.attn == "gqa":
        kv = shape.kv_heads * shape.head
        attention: dict[str, tuple[int, ...]] = {"query": (d, h * shape.head), "key": (d, kv), "value": (d, kv)}
    else:
        attention = {
            "query": (d, h * (shape.head + shape.rotary)),
            "down_kv": (d, shape.latent + shape.rotary),
            "norm_kv": (shape.latent,),
            "up_key": (h, shape.head, shape.latent),
            "up_value": (h, shape.latent, shape.head),
        }
    layer: dict[str, tuple[int, ...]] = {
        "norm_attention": (d,), **attention, "out": (h * shape.head, d),
        "norm_ffn": (d,), "gate": (e, d, f), "up": (e, d, f), "down": (e, f, d),
    }  # fmt: skip
    if e > 1:
        layer["router"] = (d, e)
    sizes = {f"{i}.{name}": size for i in range(shape.layers) for name, size in layer.items()}
    return {"embed": (shape.vocab, d), **sizes, "norm": (d,)}


def forward(
    params: Params, ids: Any, positions: Any = None, cache: Cache | None = None, *, layers: int | None = None
) -> tuple[Tensor, Cache]:
    """Logits of the given tokens, and the cache with their rows put behind those it had.

    `ids` is [tokens] or [batch, tokens]; `positions` (rising; default: from the cache's length on) are one list for
    all, or one for each of the batch if the cache's are, too. A token sees all rows, cached or new, at positions up to
    its own. `layers` stops early: the logits then mean nothing, and the returned cache has so many layers.

    >>> params = init(Shape(vocab=64, layers=2, width=32), seed=0)
    >>> whole, _ = forward(params, [7, 8, 9])
    >>> _, first = forward(params, [7, 8])
    >>> rest, _ = forward(params, [9], cache=first)
    >>> bool((whole[0, -1] - rest[0, -1]).abs().max() < 1e-5)
    True
    """
    import torch

    shape, w = params.shape, params.tensors
    depth = shape.layers if layers is None else layers
    ids = torch.as_tensor(ids, dtype=torch.int64)
    ids = ids if ids.ndim == 2 else ids[None]
    start = 0 if cache is None else len(cache)
    at = torch.arange(start, start + ids.shape[1]) if positions is None else torch.as_tensor(positions).long()
    seen = at if cache is None else torch.cat([cache.positions, at], -1)
    mask = None if cache is None else seen[..., None, :] <= at[..., :, None]
    mask = mask if mask is None or mask.ndim == 2 else mask[:, None]  # the same for all heads
    turns = rotation(at, shape.head if shape.attn == "gqa" else shape.rotary, shape.theta)
    x = w["embed"][ids]
    fresh = []
    for i in range(depth):
        one = {name.partition(".")[2]: t for name, t in w.items() if name.startswith(f"{i}.")}
        past = None if cache is None else cache.layers[i]
        attend = _gqa if shape.attn == "gqa" else _mla
        change, rows = attend(one, shape, _norm(x, one["norm_attention"]), turns, mask, past)
        x = x + change
        x = x + _ffn(one, shape, _norm(x, one["norm_ffn"]))
        fresh.append(rows)
    new = Cache(tuple(fresh), at, shape.theta)
    logits = _norm(x, w["norm"]) @ w["embed"].T
    return logits, new if cache is None else Cache.join([replace(cache, layers=cache.layers[:depth]), new])


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    from torch.nn import functional

    return functional.rms_norm(x, weight.shape, weight)


def _gqa(
    w: Mapping[str, Tensor], shape: Shape, x: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor | None,
    past: Layer | None,
) -> tuple[Tensor, Layer]:  # fmt: skip
    batch, tokens, _ = x.shape
    query = rotate((x @ w["query"]).view(batch, tokens, shape.heads, shape.head), turns)
    key_ = rotate((x @ w["key"]).view(batch, tokens, shape.kv_heads, shape.head), turns)
    value = (x @ w["value"]).view(batch, tokens, shape.kv_heads, shape.head)
    keys, values = _behind(past, key_, value)
    mixed = _attention(query, keys, values, mask, shape.head**-0.5)
    return mixed.flatten(2) @ w["out"], Layer(key_, value)


def _mla(
    w: Mapping[str, Tensor], shape: Shape, x: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor | None,
    past: Layer | None,
) -> tuple[Tensor, Layer]:  # fmt: skip
    import torch

    batch, tokens, _ = x.shape
    query = (x @ w["query"]).view(batch, tokens, shape.heads, shape.head + shape.rotary)
    content, turning = query.split([shape.head, shape.rotary], dim=-1)
    latent, rotary = (x @ w["down_kv"]).split([shape.latent, shape.rotary], dim=-1)
    latent, rotary = _norm(latent, w["norm_kv"])[:, :, None], rotate(rotary[:, :, None], turns)
    folded = torch.einsum("bthd,hdl->bthl", content, w["up_key"])
    rotaries, latents = _behind(past, rotary, latent)
    keys = torch.cat([latents, rotaries], dim=-1)
    scale = (shape.head + shape.rotary) ** -0.5
    mixed = _attention(torch.cat([folded, rotate(turning, turns)], -1), keys, keys, mask, scale)
    # The value of a row is its latent; asking for the whole row and dropping its tail keeps the fused kernel.
    out = torch.einsum("bthl,hld->bthd", mixed[..., : shape.latent], w["up_value"])
    return out.flatten(2) @ w["out"], Layer(rotary, latent)


def _behind(past: Layer | None, rotary: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    if past is None:
        return rotary, free
    return torch.cat([past.rotary, rotary], 1), torch.cat([past.free, free], 1)


def _attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    from torch.nn import functional

    q, k, v = (x.transpose(1, 2) for x in (query, keys, values))
    k, v = (x.expand(-1, q.shape[1], -1, -1) if x.shape[1] == 1 else x for x in (k, v))
    grouped = k.shape[1] != q.shape[1]
    mixed = functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )
    return mixed.transpose(1, 2)


def _ffn(w: Mapping[str, Tensor], shape: Shape, x: Tensor) -> Tensor:
    import torch
    from torch.nn import functional

    if shape.experts == 1:
        return (functional.silu(x @ w["gate"][0]) * (x @ w["up"][0])) @ w["down"][0]
    chance = (x @ w["router"]).softmax(-1)
    best, which = chance.topk(shape.active, dim=-1)
    gates = torch.zeros_like(chance).scatter(-1, which, best / best.sum(-1, keepdim=True))
    # All experts run and the gates silence the others: at this size a gather costs more than it saves.
    hidden = functional.silu(torch.einsum("btd,edf->btef", x, w["gate"])) * torch.einsum("btd,edf->btef", x, w["up"])
    return torch.einsum("btef,efd->btd", hidden * gates[..., None], w["down"])


# ------------------------------------------------------------------------------------ learning, speaking


def train(
    params: Params, batches: Iterable[Any], steps: int, seed: int = 0, *, rate: float = 3e-3, stretch: int = 0
) -> tuple[Params, list[float]]:
    """Parameters after `steps` of AdamW on next-token loss over [batch, tokens] id arrays, and each step's loss.

    `stretch` lets the positions of a batch jump ahead at a random token by up to so many, so that a model trained on
    short texts knows long distances. The given parameters are not changed.

    >>> ids = [[1, 2, 3, 4] * 4] * 2
    >>> params = init(Shape(vocab=8, layers=1, width=32, hidden=64), seed=0)
    >>> _, losses = train(params, [ids] * 20, steps=20)
    >>> losses[-1] < 0.2 * losses[0]
    True
    """
    import torch
    from torch.nn import functional

    random = stream(seed, "tiny-lm", "train")
    weights = {name: t.clone().requires_grad_() for name, t in params.tensors.items()}
    learner = Params(params.shape, weights)
    optimiser = torch.optim.AdamW(weights.values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=max(steps, 2), pct_start=0.1)
    losses = []
    for _, batch in zip(range(steps), batches, strict=False):
        ids = torch.as_tensor(batch, dtype=torch.int64)
        positions = torch.arange(ids.shape[1] - 1)
        if stretch:
            positions[int(random.integers(ids.shape[1] - 1)) :] += int(random.integers(stretch))
        logits, _ = forward(learner, ids[:, :-1], positions)
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return Params(params.shape, {name: t.detach() for name, t in weights.items()}), losses


def greedy(params: Params, last: Any, cache: Cache, tokens: int) -> list[int]:
    """The most likely continuation after token `last`, whose row is not yet in the cache.

    >>> params = init(Shape(vocab=64, layers=1, width=32), seed=0)
    >>> _, cache = forward(params, [1, 2, 3])
    >>> len(greedy(params, 4, cache, tokens=5))
    5
    """
    import torch

    said: list[int] = []
    token, position = int(last), int(cache.positions.max()) + 1
    with torch.no_grad():
        for step in range(tokens):
            logits, cache = forward(params, [token], [position + step], cache)
            token = int(logits[0, -1].argmax())
            said.append(token)
    return said


def nll(logits: Tensor, ids: Any) -> Tensor:
    """Negative log-likelihood of each id [tokens] under the logits [tokens, vocab] that should predict it.

    >>> import torch
    >>> round(float(nll(torch.zeros(1, 4), [2])[0]), 4)
    1.3863
    """
    import torch
    from torch.nn import functional

    return functional.cross_entropy(logits, torch.as_tensor(ids, dtype=torch.int64), reduction="none")


# ------------------------------------------------------------------------------------------ weights, text


def save(path: Path, models: Mapping[str, Params], provenance: Mapping[str, Any], *, half: bool = False) -> None:
    """Write named models and where they come from to one safetensors file, whole or not at all.

    `half` stores float16: half the bytes; the loaded model is the rounded one.
    """
    import torch
    from safetensors.torch import save as to_bytes

    kind = torch.float16 if half else torch.float32
    tensors = {f"{n}/{t}": x.to(kind).contiguous() for n, p in models.items() for t, x in p.tensors.items()}
    shapes = json.dumps({name: asdict(params.shape) for name, params in models.items()})
    metadata = {"shapes": shapes, "provenance": json.dumps(dict(provenance), sort_keys=True)}
    aside = path.with_suffix(f".{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside.open("wb") as file:
        file.write(to_bytes(tensors, metadata))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def load(path: Path) -> tuple[dict[str, Params], dict[str, Any]]:
    """The models of a file by name (in float32), and their provenance.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model.safetensors"
    ...     save(path, {"a": init(Shape(vocab=8, layers=1, width=32), seed=0)}, {"seed": 0, "steps": 0, "loss": 2.1})
    ...     models, provenance = load(path)
    >>> models["a"].shape.width, provenance["steps"]
    (32, 0)
    """
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
        shapes = json.loads(metadata["shapes"])
        models = {name: Params(Shape(**shape), {}) for name, shape in shapes.items()}
        for full in file.keys():  # noqa: SIM118 - not a mapping
            name, _, tensor = full.partition("/")
            models[name].tensors[tensor] = file.get_tensor(full).float()
    return models, json.loads(metadata["provenance"])


_NAMES = "ada ben cleo dan eve finn gus hana ivo june".split()
_THINGS = "lamp map coin rope key drum cup bell book ring".split()
_PLACES = "attic barn cellar dock garden hall loft mill".split()


def text(seed: int, sentences: int = 100) -> str:
    """A small world in plain English whose questions can only be answered from what was said before.

    >>> text(0, sentences=3)
    'eve put key 32 in the barn . who put key 32 ? eve . where is key 32 ? in the barn .'
    """
    random = stream(seed, "tiny-lm", "text")
    facts: list[tuple[str, str, str]] = []
    said: list[str] = []
    for _ in range(sentences):
        kind = random.random()
        if not facts or kind < 0.4:
            thing = f"{random.choice(_THINGS)} {random.integers(10, 100)}"
            facts.append((str(random.choice(_NAMES)), thing, str(random.choice(_PLACES))))
            said.append("{} put {} in the {} .".format(*facts[-1]))
            continue
        who, thing, where = facts[int(random.integers(max(0, len(facts) - 12), len(facts)))]
        said.append(f"where is {thing} ? in the {where} ." if kind < 0.7 else f"who put {thing} ? {who} .")
    return " ".join(said)


def encode(words: str) -> list[int]:
    """A text as byte ids: a vocabulary of 256, no tokenizer.

    >>> encode("ab")
    [97, 98]
    """
    return list(words.encode())
