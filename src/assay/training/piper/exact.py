"""A mixture of experts built in torch, as one rank of a PP x EP mesh holds it, and every byte of it counted.

Weights and gradients are counted parameter by parameter, activations as what autograd keeps: every storage once, but
for the weights. Attention is the fused kernel, norms and the gated activation (weighed by the gate's probability) are
functions that keep their input only, as training stacks have them. Needs the extra `torch`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from assay.sim.models import Model
from assay.training.engine.costs import parts
from assay.training.interface import Layout


class _Gated(torch.autograd.Function):
    """silu(a) * b * weight, of which only a, b and the weight are kept."""

    @staticmethod
    def forward(ctx: Any, both: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(both, weight)
        a, b = both.chunk(2, dim=1)
        return functional.silu(a) * b * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        both, weight = ctx.saved_tensors
        with torch.enable_grad():
            x, w = both.detach().requires_grad_(), weight.detach().requires_grad_()
            a, b = x.chunk(2, dim=1)
            found = torch.autograd.grad(functional.silu(a) * b * w, (x, w), gradient)
        return found[0], found[1]


class _Summed(torch.autograd.Function):
    """Rows added to the tokens that they belong to, of which only the numbers are kept."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, token: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(token)
        return rows.new_zeros(tokens, rows.shape[1]).index_add(0, token, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.saved_tensors[0]], None, None


class _Norm(torch.autograd.Function):
    """The root mean square norm, of which only the input is kept, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.rms_norm(x, (x.shape[-1],), weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x, w = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
            found = torch.autograd.grad(functional.rms_norm(x, (x.shape[-1],), w), (x, w), gradient)
        return found[0], found[1]


class Layer(nn.Module):
    """Attention and a mixture, of which `local` experts live here; evenly loaded, so as many rows stay as leave."""

    def __init__(self, shape: Model, local: int) -> None:
        super().__init__()
        assert shape.experts is not None
        h, mixture, self.shape, self.local = shape.hidden, shape.experts, shape, local
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.qkv, self.out = nn.Linear(h, width, bias=False), nn.Linear(shape.heads * shape.head_dim, h, bias=False)
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(h)) for _ in range(2)])
        self.gate = nn.Linear(h, mixture.count, bias=False)
        self.up = nn.Parameter(torch.randn(local, h, 2 * mixture.ffn) / h**0.5)
        self.down = nn.Parameter(torch.randn(local, mixture.ffn, h) / mixture.ffn**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [sequence, token, hidden]."""
        shape, (b, t, h) = self.shape, x.shape
        assert shape.experts is not None
        y = self.qkv(_Norm.apply(x, self.norms[0]))
        sizes = [heads * shape.head_dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        q, k, v = (p.view(b, t, -1, shape.head_dim).transpose(1, 2) for p in y.split(sizes, dim=2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, -1))
        y = _Norm.apply(x, self.norms[1]).view(b * t, h)
        probability, _ = self.gate(y).float().softmax(-1).topk(shape.experts.top_k)
        pairs = b * t * shape.experts.top_k
        token = torch.arange(pairs) % (b * t)
        rows, weight = y[token], probability.T.reshape(pairs, 1).to(y.dtype)
        each = pairs // self.local  # rows of an expert, as even loads have it: what leaves comes back from others
        done = []
        for e in range(self.local):
            mine = slice(e * each, (e + 1) * each)
            done.append(_Gated.apply(rows[mine] @ self.up[e], weight[mine]) @ self.down[e])
        summed: Tensor = _Summed.apply(torch.cat(done), token, b * t)
        return x + summed.view(b, t, h)


class Share(nn.Module):
    """The layers of one stage, with the embedding or the head where they belong; `tied` models keep both in one."""

    def __init__(self, shape: Model, layout: Layout, stage: int) -> None:
        super().__init__()
        assert shape.experts is not None
        first, last = stage == 0, stage == layout.pp - 1
        local = shape.experts.count // layout.ep
        self.embedding = nn.Embedding(shape.vocab, shape.hidden) if first else None
        self.layers = nn.ModuleList(Layer(shape, local) for _ in range(parts(shape.layers, layout.pp)[stage]))
        tied = shape.tied and first
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False) if last and not tied else None
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        """Token ids or what the stage before sent; the loss at the end."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        if not self.last:
            return x.sum()
        weight = self.head.weight if self.head is not None else self.embedding.weight  # type: ignore[union-attr]
        logits = functional.linear(x, weight).flatten(0, 1).float()
        return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))


def counted(shape: Model, layout: Layout, stage: int, mbs: int, seq: int) -> tuple[int, int]:
    """Parameters of a rank of this stage, and bytes that autograd keeps of one microbatch in bf16."""
    share = Share(shape, layout, stage).to(torch.bfloat16)
    kept: dict[int, int] = {}
    held = {weight.untyped_storage().data_ptr() for weight in share.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x: Tensor = torch.zeros(mbs, seq, dtype=torch.int64)
    if stage:
        x = torch.randn(mbs, seq, shape.hidden, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        share(x)
    return sum(weight.numel() for weight in share.parameters()), sum(kept.values())
