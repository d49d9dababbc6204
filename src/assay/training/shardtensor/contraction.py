"""Products: einsum, matmul, linear and attention, by which letters of the product are cut.

One cut letter is local work, and a sum over the ranks where the letter is summed over. Two cut letters are all pairs of
rows: one operand's blocks go round.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from assay.training.shardtensor.attention import ring_attention
from assay.training.shardtensor.ring import around
from assay.training.shardtensor.shards import (
    ShardTensor,
    handles,
    like,
    own_part,
    ranges,
    redistributed,
    refusal,
    replicated,
    resized,
    summed,
)  # fmt: skip

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@handles("einsum")
def _einsum(func: Any, equation: str, *operands: Any) -> Any:
    given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    spare = [c for c in LETTERS.upper() if c not in equation]
    most = max(x.ndim - len(term.replace("...", "")) for x, term in zip(given, terms, strict=True))
    for n, (x, term) in enumerate(zip(given, terms, strict=True)):
        hidden = x.ndim - len(term.replace("...", ""))
        terms[n] = term.replace("...", "".join(spare[most - hidden : most]))
    if not arrow:
        every = "".join(terms)
        out = "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in spare))
        out = ("..." if "..." in left else "") + out
    return contract(terms, out.replace("...", "".join(spare[:most])), given)


def contract(terms: list[str], out: str, operands: list[Any]) -> Any:
    """A product by letters; shards among its operands."""
    equation = ",".join(terms) + "->" + out
    shards = [(x, term) for x, term in zip(operands, terms, strict=True) if isinstance(x, ShardTensor)]
    if any(len(set(term)) < len(term) for _, term in shards):
        raise refusal(f"einsum {equation}", operands)
    letters = {term[x.axis] for x, term in shards}
    if len(letters) == 2 and len(operands) == 2:
        first, second = (term[x.axis] for x, term in shards)
        if first in terms[1]:
            operands = [operands[0], redistributed(operands[1], terms[1].index(first), operands[0].sizes)]
        elif second in terms[0] and first not in out:
            operands = [redistributed(operands[0], terms[0].index(second), operands[1].sizes), operands[1]]
        else:
            return _all_pairs(terms, out, operands)
    elif len(letters) != 1:
        raise refusal(f"einsum {equation}", operands, "more than one dimension is cut")
    return _one_cut(terms, out, operands)


def _one_cut(terms: list[str], out: str, operands: list[Any]) -> Any:
    guide, cut = next((x, term[x.axis]) for x, term in zip(operands, terms, strict=True) if isinstance(x, ShardTensor))
    length, local = guide.shape[guide.axis], []
    for x, term in zip(operands, terms, strict=True):
        if isinstance(x, ShardTensor):
            local.append(resized(x, guide.sizes).local)
            continue
        at = term.find(cut)
        alone = at < 0 or x.shape[at] != length
        local.append(replicated(x, guide.domain) if alone else own_part(x, at, guide.domain, guide.sizes))
    found = torch.einsum(",".join(terms) + "->" + out, *local)
    return like(guide, found, out.index(cut)) if cut in out else summed(found, guide.domain)


def _all_pairs(terms: list[str], out: str, operands: list[Any]) -> Any:
    """One operand stays, the other's blocks go round; where the stayer has the travelling letter, a stretch of it."""
    if terms[0][operands[0].axis] not in out:
        terms, operands = terms[::-1], operands[::-1]
    (stays, goes), (term, travelling) = operands, terms
    kept, passing = term[stays.axis], travelling[goes.axis]
    if kept not in out:
        raise refusal(f"einsum {','.join(terms)}->{out}", operands, "both cut dimensions are summed over")
    at_stays = term.find(passing)
    equation = f"{term},{travelling}->{out}"

    def meet(at: Any, a: Tensor, block: Tensor) -> Tensor:
        return torch.einsum(equation, a if at_stays < 0 else a.narrow(at_stays, at[0], at[1] - at[0]), block)

    into = out.index(passing) if passing in out else None
    return like(stays, around(meet, stays.local, goes, into), out.index(kept))


@handles("matmul", "bmm", "mm", "mv", "dot", "rmatmul")
def _matmul(func: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    if func.__name__ == "__rmatmul__":
        a, b = b, a
    batch = max(a.ndim, b.ndim) - 2
    names = LETTERS[3 : 3 + max(batch, 0)]
    left = names[len(names) - max(a.ndim - 2, 0) :] + ("ik" if a.ndim > 1 else "k")
    right = names[len(names) - max(b.ndim - 2, 0) :] + ("kj" if b.ndim > 1 else "k")
    out = names + ("i" if a.ndim > 1 else "") + ("j" if b.ndim > 1 else "")
    for x, term in ((a, left), (b, right)):
        if isinstance(x, ShardTensor) and x.shape[x.axis] == 1 and term[x.axis] in names:
            raise refusal("matmul", [a, b], "the cut dimension cannot be stretched")
    return contract([left, right], out, [a, b])


@handles("addmm", "baddbmm")
def _addmm(func: Any, x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    whole = isinstance(beta, int) and isinstance(alpha, int)
    if not (whole or a.is_floating_point()):
        raise refusal(func.__name__, [x, a, b], "of whole numbers by fractions")
    found = alpha * torch.matmul(a, b)
    if x.ndim > found.ndim:
        raise refusal(func.__name__, [x, a, b])
    return beta * x + found if beta else found


@handles("linear")
def _linear(func: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    if isinstance(weight, ShardTensor) or not isinstance(x, ShardTensor):
        raise refusal("linear", [x, weight], "its weights are cut")
    if x.axis != x.ndim - 1:
        return like(
            x, func(x.local, replicated(weight, x.domain), None if bias is None else replicated(bias, x.domain))
        )
    found = summed(func(x.local, own_part(weight, 1, x.domain, x.sizes)), x.domain)
    return found if bias is None else found + bias


@handles("scaled_dot_product_attention")
def _attention(
    func: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    row = query.ndim - 2
    all_three = [query, key, value]
    cut = [isinstance(x, ShardTensor) for x in all_three]
    if any(c and x.axis == row + 1 for c, x in zip(cut, all_three, strict=True)) or cut[1] != cut[2]:
        raise refusal("attention", all_three, "widths are cut, or only one of keys and values is")
    rows = [x.axis == row for c, x in zip(cut, all_three, strict=True) if c]
    if not any(rows) and all(cut) and attn_mask is None and not dropout_p:  # batches or heads are cut
        key, value = (redistributed(x, query.axis, query.sizes) for x in (key, value))
        return like(query, func(query.local, key.local, value.local, is_causal=is_causal, scale=scale))
    if not all(rows):
        raise refusal("attention", all_three, "they are cut along different dimensions")
    if all(cut) and attn_mask is None and not dropout_p:
        if is_causal and query.shape[row] != key.shape[row]:
            raise refusal("causal attention", all_three, "queries and keys differ in length")
        sizes = query.sizes if is_causal else key.sizes
        return ring_attention(query, resized(key, sizes), resized(value, sizes), is_causal, scale)
    if not cut[1] and attn_mask is None and not is_causal:  # keys and values are on every rank
        whole = (replicated(x, query.domain) for x in (key, value))
        return like(query, func(query.local, *whole, dropout_p=dropout_p, scale=scale))
    if is_causal and attn_mask is not None:
        raise refusal("attention", all_three, "a mask and is_causal=True exclude each other")
    return by_scores(query, key, value, attn_mask, dropout_p, is_causal, scale, blind=True)[0]


def by_scores(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, causal: bool, scale: float | None,
    blind: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Attention whose weights are laid out, of a rank's queries to all keys: for masks, dropout, and those who ask.

    A query that may see nothing gets no number, as from a softmax, or, where it may be `blind`, zeros, as torch's own
    call gives it.
    """
    scores = torch.matmul(query, key.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        rows, columns = (torch.arange(n, device=query.device) for n in scores.shape[-2:])
        if isinstance(query, ShardTensor):
            rows = rows[slice(*ranges(query.sizes)[query.domain.rank])]
        hidden = columns > rows[:, None]
        scores = scores.masked_fill(like(query, hidden, 0) if isinstance(query, ShardTensor) else hidden, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if blind and mask is not None:
        nothing = (scores == -torch.inf).all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    else:
        weights = torch.softmax(scores, -1)
    return torch.matmul(functional.dropout(weights, dropout_p) if dropout_p else weights, value), weights


def _additive(mask: Any, dtype: torch.dtype) -> Any:
    """A mask that is added: minus infinity where a boolean one is true."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask


@handles("multi_head_attention_forward")
def multi_head(
    func: Any, query: Any, key: Any, value: Any, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any,
    in_proj_bias: Any, bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float, out_proj_weight: Any,
    out_proj_bias: Any, training: bool = True, key_padding_mask: Any = None, need_weights: bool = True,
    attn_mask: Any = None, use_separate_proj_weight: bool = False, q_proj_weight: Any = None, k_proj_weight: Any = None,
    v_proj_weight: Any = None, static_k: Any = None, static_v: Any = None, average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:  # fmt: skip
    """What nn.MultiheadAttention calls: tokens first, `[token, batch, width]` or `[token, width]`."""
    if bias_k is not None or static_k is not None or static_v is not None or add_zero_attn:
        raise refusal("multi_head_attention_forward", [query, key, value], "biases or zeros among its keys")
    alone = query.ndim == 2
    inputs = [x.unsqueeze(1) for x in (query, key, value)] if alone else [query, key, value]
    weights = [q_proj_weight, k_proj_weight, v_proj_weight] if use_separate_proj_weight else in_proj_weight.chunk(3)
    biases = [None] * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    apart: list[Any] = []
    for x, weight, bias in zip(inputs, weights, biases, strict=True):
        y = functional.linear(x, weight, bias)
        apart.append(y.reshape(*y.shape[:2], num_heads, -1).permute(1, 2, 0, 3))
    q, k, v = apart
    mask = None if attn_mask is None or (is_causal and not need_weights) else attn_mask
    if mask is not None and mask.ndim == 3:
        mask = mask.reshape(-1, num_heads, *mask.shape[1:])
    if key_padding_mask is not None:
        padded = key_padding_mask[None] if alone else key_padding_mask
        padded = padded.full_tensor() if isinstance(padded, ShardTensor) else padded  # a number a token
        padded = _additive(padded, query.dtype)[:, None, None]
        mask = padded if mask is None else padded + _additive(mask, query.dtype)
    dropped = dropout_p if training else 0.0
    if need_weights:
        mixed, seen = by_scores(q, k, v, mask, dropped, False, None)
    else:
        causal = is_causal and mask is None
        mixed, seen = functional.scaled_dot_product_attention(q, k, v, mask, dropped, causal), None
    joint = mixed.permute(2, 0, 1, 3)
    found = functional.linear(joint.reshape(*joint.shape[:2], -1), out_proj_weight, out_proj_bias)
    if seen is not None and average_attn_weights:
        seen = seen.mean(1)
    if alone:
        return found.squeeze(1), None if seen is None else seen.squeeze(0)
    return found, seen
