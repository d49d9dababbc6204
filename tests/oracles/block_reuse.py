"""Repair of reused rows the slow way: every token through every layer, the rows of those not chosen written over."""

from __future__ import annotations

import torch


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt() * weight


def _turn(x: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary positions 0, 1, … of [tokens, heads, width], one complex number per pair."""
    tokens, _, width = x.shape
    frequency = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    phase = torch.polar(torch.ones(1, dtype=torch.float64), torch.arange(tokens)[:, None, None] * frequency)
    half = width // 2
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * phase
    return torch.cat([turned.real, turned.imag], -1).float()


def answer(params, ids, cached, chosen) -> torch.Tensor:
    """Logits after the last token of one prompt; `cached` has its rows, `chosen` the tokens computed again."""
    shape, w = params.shape, params.tensors
    n, given = len(ids), len(cached)
    reused = torch.zeros(n, dtype=torch.bool)
    reused[:given] = True
    reused[chosen] = False
    x = w["embed"][torch.as_tensor(ids)]
    groups = shape.heads // shape.kv_heads
    for i in range(shape.layers):
        h = _norm(x, w[f"{i}.norm_attention"])
        query = _turn((h @ w[f"{i}.query"]).view(n, shape.heads, shape.head), shape.theta)
        key = _turn((h @ w[f"{i}.key"]).view(n, shape.kv_heads, shape.head), shape.theta)
        value = (h @ w[f"{i}.value"]).view(n, shape.kv_heads, shape.head)
        key[reused] = cached.layers[i].rotary[0][reused[:given]]
        value[reused] = cached.layers[i].free[0][reused[:given]]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        weight = torch.einsum("qhd,khd->hqk", query, key) / shape.head**0.5
        weight = weight.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
        x = x + torch.einsum("hqk,khd->qhd", weight, value).flatten(1) @ w[f"{i}.out"]
        h = _norm(x, w[f"{i}.norm_ffn"])
        x = x + (torch.nn.functional.silu(h @ w[f"{i}.gate"][0]) * (h @ w[f"{i}.up"][0])) @ w[f"{i}.down"][0]
    return (_norm(x, w["norm"]) @ w["embed"].T)[-1]
