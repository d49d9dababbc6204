"""The operations an LLM layer consists of besides matrix products, each as one call.

On a CPU they are plain torch; on a GPU with Triton one fused kernel each; on `meta` tensors, which have a shape and no
content, one opaque operation, so that a tracer sees `assay.paged_attention` with its sizes and nothing runs.
"""

# torch's own functions carry no types.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.serving.dooly import torch_kernels

if TYPE_CHECKING:
    from torch import Tensor

PAGE = 16  # tokens of a KV page
SPAN = 256  # tokens of context that the CPU's paged decode looks at together
EPS = 1e-6


@dataclass
class Batch:
    """One iteration's tokens, decodes first, and where their keys and values lie.

    `cuts_q`, `cuts_k` and `packed` describe every sequence of the batch for the backend that gathers pages;
    `chunk_*` the same for the prompt chunks alone.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor  # of the tokens computed now
    rows: Tensor  # the tokens whose logits are wanted
    decodes: int = 0
    tables: Tensor | None = None  # [decodes, pages], int32
    contexts: Tensor | None = None  # [decodes], int32, the new token included
    lengths: list[int] = field(default_factory=list)  # the same on the host, longest first where the plan allows
    chunks: list[tuple[int, int]] = field(default_factory=list)  # (tokens now, tokens before) of each prompt chunk
    packed: Tensor | None = None  # slots of the whole contexts of decodes and chunks, one after another
    cuts_q: Tensor | None = None
    cuts_k: Tensor | None = None
    longest_q: int = 1
    longest_k: int = 1
    skip_q: int = 0  # the first rows and
    skip_k: int = 0  # the first packed slots belong to decodes


def fused(x: Tensor) -> bool:
    """Whether the fused kernels serve this tensor."""
    return torch_kernels.available and x.is_cuda


@functools.cache
def declare() -> Any:
    """Tell torch the opaque operations that stand for modules on `meta` tensors."""
    import torch

    library = torch.library.Library("assay", "DEF")
    library.define("add_rms_norm(Tensor x, Tensor? residual, Tensor weight) -> (Tensor, Tensor)")
    library.define("silu_mul(Tensor x) -> Tensor")
    library.define("rope_write(Tensor qkv, Tensor k_cache, bool norm) -> Tensor")
    library.define("paged_attention(Tensor q, Tensor k_cache, Tensor v_cache, int window, str backend) -> Tensor")
    library.define("experts(Tensor x, Tensor router, Tensor gate_up, Tensor down, int top_k) -> Tensor")
    meta = {
        "add_rms_norm": lambda x, residual, weight: (torch.empty_like(x), torch.empty_like(x)),
        "silu_mul": lambda x: x.new_empty(x.shape[0], x.shape[1] // 2),
        "rope_write": lambda qkv, k, norm: qkv.new_empty(
            qkv.shape[0], (qkv.shape[1] - 2 * k.shape[1] * k.shape[2]) // k.shape[2], k.shape[2]
        ),
        "paged_attention": lambda q, k, v, window, backend: q.new_empty(q.shape[0], q.shape[1], v.shape[2]),
        "experts": lambda x, router, gate_up, down, top_k: torch.empty_like(x),
    }
    for name, function in meta.items():
        library.impl(name, function, "Meta")
    return library


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(normalised sum, sum) of a layer's output and the stream beside it."""
    import torch

    if x.is_meta:
        declare()
        return torch.ops.assay.add_rms_norm(x, residual, weight)  # type: ignore[no-any-return]
    if fused(x):
        y, total, d = torch.empty_like(x), torch.empty_like(x), x.shape[-1]
        block = 1 << (d - 1).bit_length()
        torch_kernels.add_rms_norm[(x.shape[0],)](
            x, x if residual is None else residual, weight, y, total, d, EPS, residual is not None, block,
            num_warps=max(1, min(16, block // 512)),
        )  # fmt: skip
        return y, total
    total = x if residual is None else x + residual
    return torch.nn.functional.rms_norm(total, (total.shape[-1],), weight, EPS), total


def silu_mul(x: Tensor) -> Tensor:
    """The gate of a gated MLP: silu of the first half times the second."""
    import torch

    if x.is_meta:
        declare()
        return torch.ops.assay.silu_mul(x)  # type: ignore[no-any-return]
    f = x.shape[-1] // 2
    if fused(x):
        y = x.new_empty(x.shape[0], f)
        torch_kernels.silu_mul[(x.shape[0], -(-f // 1024))](x, y, f, 1024)
        return y
    return torch.nn.functional.silu(x[:, :f]) * x[:, f:]


def rope_table(positions: int, dim: int, theta: float, device: str) -> Tensor:
    """Cosines, then sines, of every position: [positions, dim]."""
    import torch

    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.outer(torch.arange(positions, dtype=torch.float64), frequency)
    return torch.cat([angle.cos(), angle.sin()], 1).float().to(device)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary embedding of [n, heads, dim] by each row's [dim] cosines and sines."""
    import torch

    cos, sin = (part[:, None].to(x.dtype) for part in table.chunk(2, -1))
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def rope_write(
    qkv: Tensor, batch: Batch, rope: Tensor, k_cache: Tensor, v_cache: Tensor, norms: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Rotated queries [n, heads, dim]; rotated keys and the values go to their slots of the cache."""
    import torch

    if qkv.is_meta:
        declare()
        return torch.ops.assay.rope_write(qkv, k_cache, norms is not None)  # type: ignore[no-any-return]
    n, kvh, d = qkv.shape[0], k_cache.shape[1], k_cache.shape[2]
    h = qkv.shape[1] // d - 2 * kvh
    if fused(qkv):
        q = qkv.new_empty(n, h, d)
        q_norm, k_norm = norms or (qkv, qkv)
        torch_kernels.rope_write[(n, h + 2 * kvh)](
            qkv, rope, batch.positions, batch.slots, q_norm, k_norm, q, k_cache, v_cache, EPS,
            h, kvh, d, norms is not None, num_warps=1,
        )  # fmt: skip
        return q
    q, k, v = qkv.view(n, h + 2 * kvh, d).split([h, kvh, kvh], 1)
    if norms:
        q, k = (torch.nn.functional.rms_norm(x, (d,), w, EPS) for x, w in zip((q, k), norms, strict=True))
    table = rope[batch.positions]
    k_cache[batch.slots] = rotate(k, table)
    v_cache[batch.slots] = v
    return rotate(q, table)


# ------------------------------------------------------------------------------------------- attention


def attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch, scale: float, window: int, backend: str
) -> Tensor:
    """Attention of [n, heads, dim] queries to their sequences' cached keys and values: [n, heads, value dim].

    `sdpa` gathers each sequence's pages and calls torch's own attention (on a GPU one call for all sequences);
    `paged` lets decodes read the pages where they lie.
    """
    import torch

    if q.is_meta:
        declare()
        return torch.ops.assay.paged_attention(q, k_cache, v_cache, window, backend)  # type: ignore[no-any-return]
    b = batch.decodes
    if backend == "sdpa":
        whole = _packed if _packable(q, v_cache) else _each
        return whole(q, k_cache, v_cache, batch, scale, window, 0, 0)
    parts = []
    if b:
        kernel = _decode_fused if fused(q) and v_cache.shape[-1] == q.shape[-1] else _decode_spans
        parts.append(kernel(q[:b], k_cache, v_cache, batch, scale, window))
    if batch.chunks:
        whole = _packed if _packable(q, v_cache) else _each
        parts.append(whole(q[b:], k_cache, v_cache, batch, scale, window, batch.skip_q, batch.skip_k))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _packable(q: Tensor, v_cache: Tensor) -> bool:
    """Whether torch's variable-length flash attention takes these."""
    import torch

    same = v_cache.shape[-1] == q.shape[-1] <= 256
    return q.is_cuda and same and q.dtype in (torch.bfloat16, torch.float16) and _varlen_works()


@functools.cache
def _varlen_works() -> bool:
    import torch

    x = torch.zeros(4, 1, 64, dtype=torch.bfloat16, device="cuda")
    cuts = torch.tensor([0, 1, 4], dtype=torch.int32, device="cuda")
    try:
        torch.ops.aten._flash_attention_forward(x, x, x, cuts, cuts, 3, 3, 0.0, True, False, scale=1.0)
    except (RuntimeError, TypeError):
        return False
    return True


def _packed(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch, scale: float, window: int, skip_q: int, skip_k: int
) -> Tensor:
    """All sequences in one call of torch's variable-length flash attention, over gathered pages."""
    import torch

    assert batch.packed is not None
    assert batch.cuts_q is not None
    assert batch.cuts_k is not None
    keys, values = k_cache[batch.packed[skip_k:]], v_cache[batch.packed[skip_k:]]
    first = batch.decodes if skip_q else 0
    cuts_q, cuts_k = batch.cuts_q[first:] - skip_q, batch.cuts_k[first:] - skip_k
    options = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
    return torch.ops.aten._flash_attention_forward(  # type: ignore[no-any-return]
        q.contiguous(), keys, values, cuts_q.int(), cuts_k.int(), batch.longest_q, batch.longest_k,
        0.0, True, False, scale=scale, **options,
    )[0]  # fmt: skip


def _each(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch, scale: float, window: int, skip_q: int, skip_k: int
) -> Tensor:
    """One sequence after another: gather its pages, then torch's attention with a causal mask."""
    import torch

    assert batch.packed is not None
    decodes = [] if skip_q else [(1, length - 1) for length in batch.lengths]
    heads, kvh = q.shape[1], k_cache.shape[1]
    out, row, base = [], 0, skip_k
    for now, before in [*decodes, *batch.chunks]:
        slots = batch.packed[base : base + before + now]
        if window and now == 1:  # one query sees its window only: do not gather the rest
            slots = slots[-window:]
        keys, values = (cache[slots].transpose(0, 1) for cache in (k_cache, v_cache))
        query = q[row : row + now].transpose(0, 1)
        if now == 1:  # the query heads of one KV head are that head's rows
            query = query.reshape(kvh, heads // kvh, -1)
        else:
            keys, values = (x.repeat_interleave(heads // kvh, 0) for x in (keys, values))
        mask = None
        if now > 1 and (before or window):
            queries = torch.arange(before, before + now, device=q.device)[:, None]
            others = torch.arange(before + now, device=q.device)[None]
            mask = (others <= queries) & (others > queries - (window or before + now + 1))
        answer = torch.nn.functional.scaled_dot_product_attention(
            query[None], keys[None], values[None], attn_mask=mask, is_causal=now > 1 and mask is None, scale=scale
        )[0]
        out.append(answer.reshape(heads, now, -1).transpose(0, 1))
        row, base = row + now, base + before + now
    return torch.cat(out)


def _decode_spans(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch, scale: float, window: int) -> Tensor:
    """Decodes on pages in plain torch: spans of the contexts together, with a running softmax."""
    import torch

    assert batch.tables is not None
    assert batch.contexts is not None
    b, heads, d = q.shape
    kvh, dv = v_cache.shape[1], v_cache.shape[2]
    query = q.view(b, kvh, heads // kvh, d) * scale
    pages_k, pages_v = k_cache.view(-1, PAGE, kvh, d), v_cache.view(-1, PAGE, kvh, dv)
    peak = torch.full((b, kvh, heads // kvh, 1), -math.inf, device=q.device)
    mass = torch.zeros_like(peak)
    total = torch.zeros(b, kvh, heads // kvh, dv, device=q.device)
    lowest = min(batch.lengths) - window if window else 0
    for start in range(max(0, lowest // SPAN * SPAN), max(batch.lengths), SPAN):
        live = [i for i, length in enumerate(batch.lengths) if length > start]  # the others have no keys here
        rows: Any = slice(0, b) if len(live) == b else torch.tensor(live, device=q.device)
        table = batch.tables[rows, start // PAGE : (start + SPAN) // PAGE].long()
        keys, values = (pages[table].flatten(1, 2).transpose(1, 2) for pages in (pages_k, pages_v))
        scores = (query[rows] @ keys.transpose(2, 3)).float()
        position = torch.arange(start, start + keys.shape[2], device=q.device)
        ends = batch.contexts[rows, None, None, None]
        seen = (position < ends) & (position >= ends - (window or 1 << 30))
        scores = scores.masked_fill(~seen, -math.inf)
        higher = torch.maximum(peak[rows], scores.amax(-1, keepdim=True)).clamp(min=-1e30)
        p, shrink = torch.exp(scores - higher), torch.exp(peak[rows] - higher)
        mass[rows] = mass[rows] * shrink + p.sum(-1, keepdim=True)
        total[rows] = total[rows] * shrink + p.to(values.dtype) @ values
        peak[rows] = higher
    return (total / mass).to(q.dtype).view(b, heads, dv)


def splits_for(sequences: int, kv_heads: int, processors: int = 132) -> int:
    """Into how many stretches a context is cut so that every multiprocessor of the GPU has work.

    Eight programs for each of them: contexts differ, and with fewer a single long one holds up all the others.

    >>> splits_for(1, 8), splits_for(256, 8)
    (32, 1)
    """
    wanted = 8 * processors // max(1, sequences * kv_heads)
    return max(1, min(32, 1 << (wanted - 1).bit_length() if wanted > 1 else 1))


def _decode_fused(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch, scale: float, window: int) -> Tensor:
    """Decodes on pages in Triton, long contexts cut into stretches that run beside one another."""
    import torch

    assert batch.tables is not None
    b, heads, d = q.shape
    kvh = k_cache.shape[1]
    group, splits = heads // kvh, splits_for(b, kvh)
    padded = max(16, 1 << (group - 1).bit_length())
    part = torch.empty(b, kvh, splits, padded, d, dtype=torch.float32, device=q.device)
    peak, mass = (torch.empty(b, kvh, splits, padded, dtype=torch.float32, device=q.device) for _ in range(2))
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    torch_kernels.paged_decode[(b, kvh, splits)](
        q, k_cache, v_cache, batch.tables, batch.contexts, part, peak, mass, scale, batch.tables.shape[1],
        window or 1 << 30, heads, kvh, group, padded, d, PAGE, splits, 64, num_warps=4, num_stages=3,
    )  # fmt: skip
    torch_kernels.join_splits[(b, heads)](part, peak, mass, out, heads, kvh, group, padded, d, splits, num_warps=1)
    return out


def experts(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top_k: int) -> Tensor:
    """A mixture of experts: each token through its `top_k` experts, weighted by the router's softmax."""
    import torch

    if x.is_meta:
        declare()
        return torch.ops.assay.experts(x, router, gate_up, down, top_k)  # type: ignore[no-any-return]
    weight, chosen = torch.softmax((x @ router.t()).float(), -1).topk(top_k, -1)
    weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
    order = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=gate_up.shape[0]).tolist()
    rows = order // top_k
    parts = [silu_mul(part @ gate_up[e].t()) @ down[e].t() for e, part in enumerate(x[rows].split(counts)) if counts[e]]
    out = torch.zeros_like(x)
    return out.index_add_(0, rows, torch.cat(parts) * weight.flatten()[order, None])
