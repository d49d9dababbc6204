"""A transformer whose iterations with prompts are launched as recorded pieces, not one operation at a time.

Launching from Python costs more than computing when an iteration is short, and how much more changes with the host's
mood: such an engine can be measured but not predicted. Decodes escape by replaying one CUDA graph. An iteration with
prompts cannot, since its attention has a new shape each time; but all that lies between two attentions depends only on
how many tokens there are. That is recorded for some sizes, an iteration is padded to the next one, and only attention
is launched by hand (what vLLM calls piecewise CUDA graphs).

On a CPU there are no graphs and the same pieces are called as functions.
"""

# torch's own functions carry no types.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.serving.dooly import torch_ops
from assay.serving.dooly.torch_model import Transformer
from assay.serving.dooly.torch_ops import PAGE, Batch

if TYPE_CHECKING:
    from torch import Tensor

SIZES = (16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, *range(320, 1025, 64), *range(1152, 2049, 128))


def padded(n: int) -> int:
    """How many tokens an iteration of `n` is computed as; 0: there is no such size.

    >>> padded(3), padded(300), padded(5000)
    (16, 320, 0)
    """
    return next((size for size in SIZES if size >= n), 0)


class PiecewiseTransformer(Transformer):
    """A dense transformer with grouped-query attention, its weights and cache shared with `model`.

    `spare` is a page of the cache that no sequence uses: padding rows write there.
    """

    def __init__(self, model: Transformer, spare: int) -> None:
        import torch

        if model.shape.kv_rank or model.shape.experts:
            raise ValueError(f"{model.shape.name or 'this model'} has experts or latent attention: not cut into pieces")
        vars(self).update(vars(model))
        most, shape = SIZES[-1], model.shape
        self.cuda = model.device.startswith("cuda")

        def buffer(*size: int, dtype: Any = None) -> Tensor:
            return torch.zeros(most, *size, dtype=dtype or model.dtype, device=model.device)

        whole = {"dtype": torch.int64}
        self.static = Batch(buffer(**whole), buffer(**whole), buffer(**whole) + spare * PAGE, buffer(**whole))
        self.spare_slot = spare * PAGE
        self.query = buffer(shape.heads, shape.head_dim)
        self.answer = buffer(shape.heads * shape.head_dim)
        self.stream, self.last = buffer(shape.hidden), buffer(shape.hidden)
        self.recorded: dict[int, list[Callable[[], Any]]] = {}
        if self.cuda:
            self.side, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def forward(self, batch: Batch) -> Tensor:
        """Logits of the rows asked for. Decodes alone on pages go the usual way: the engine records them whole."""
        n = len(batch.tokens)
        size = padded(n)
        if not size or (self.backend == "paged" and not batch.chunks):
            return super().forward(batch)
        if size not in self.recorded:
            self.recorded[size] = self._record(size)
        self.static.tokens[:n].copy_(batch.tokens)
        self.static.positions[:n].copy_(batch.positions)
        self.static.slots[:n].copy_(batch.slots)
        self.static.slots[n:size].fill_(self.spare_slot)
        parts = _parts(batch) if self.backend == "paged" else [(0, n, batch)]
        scale = self.shape.head_dim**-0.5
        first, *rest = self.recorded[size]
        first()
        for piece, caches in zip(rest, self.caches, strict=True):
            for start, stop, part in parts:
                y = torch_ops.attend(
                    self.query[start:stop], caches[0], caches[1], part, scale, self.shape.window, self.backend
                )
                self.answer[start:stop].copy_(y.reshape(stop - start, -1))
            piece()
        return self.last[batch.rows] @ self.weights["head"].t()

    def _record(self, size: int) -> list[Callable[[], Any]]:
        """The pieces of an iteration of `size` tokens: up to the first attention, between two, after the last."""
        import torch

        pieces = [partial(self._begin, size), *(partial(self._between, size, i) for i in range(self.shape.layers))]
        if not self.cuda:
            return list(pieces)
        self.static.slots[:size].fill_(self.spare_slot)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for piece in (pieces[0], pieces[1], pieces[-1]):  # compile and choose algorithms before recording
                piece()
        torch.cuda.synchronize()
        replays: list[Callable[[], Any]] = []
        for piece in pieces:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(self.side):
                # All graphs share their scratch memory: they only ever run one after another.
                graph.capture_begin(pool=self.pool)
                piece()
                graph.capture_end()
            replays.append(graph.replay)
        torch.cuda.synchronize()
        return replays

    def _begin(self, size: int) -> None:
        x, stream = torch_ops.add_rms_norm(
            self.weights["embed"][self.static.tokens[:size]], None, self.layers[0]["norm1"]
        )
        self._ask(x, stream, size, 0)

    def _between(self, size: int, i: int) -> None:
        """From layer i's attention to the next one's queries, or to the end."""
        layer = self.layers[i]
        x, stream = torch_ops.add_rms_norm(self.answer[:size] @ layer["o"].t(), self.stream[:size], layer["norm2"])
        x = self._mlp(x, layer)
        if i + 1 < self.shape.layers:
            x, stream = torch_ops.add_rms_norm(x, stream, self.layers[i + 1]["norm1"])
            self._ask(x, stream, size, i + 1)
        else:
            x, _ = torch_ops.add_rms_norm(x, stream, self.weights["norm"])
            self.last[:size].copy_(x)

    def _ask(self, x: Tensor, stream: Tensor, size: int, i: int) -> None:
        """Layer i's queries; its keys and values go to the cache."""
        layer, caches = self.layers[i], self.caches[i]
        now = Batch(
            self.static.tokens[:size], self.static.positions[:size], self.static.slots[:size], self.static.rows[:size]
        )
        norms = (layer["q_norm"], layer["k_norm"]) if self.shape.qk_norm else None
        self.query[:size].copy_(torch_ops.rope_write(x @ layer["qkv"].t(), now, self.rope, caches[0], caches[1], norms))
        self.stream[:size].copy_(stream)


def _parts(batch: Batch) -> list[tuple[int, int, Batch]]:
    """Decodes and prompts apart, each as (first row, end, batch), so that no layer has to tell them apart again."""
    b, n = batch.decodes, len(batch.tokens)
    found = [(0, b, dataclasses.replace(batch, chunks=[]))] if b else []
    if batch.chunks:
        assert batch.packed is not None
        assert batch.cuts_q is not None
        assert batch.cuts_k is not None
        prompts = dataclasses.replace(
            batch, decodes=0, lengths=[], packed=batch.packed[batch.skip_k :], cuts_q=batch.cuts_q[b:] - batch.skip_q,
            cuts_k=batch.cuts_k[b:] - batch.skip_k, longest_q=max(c for c, _ in batch.chunks),
            longest_k=max(c + before for c, before in batch.chunks), skip_q=0, skip_k=0,
        )  # fmt: skip
        found.append((b, n, prompts))
    return found
