"""Fused GPU kernels of the small torch engine, in Triton: a decode step is many small operations, and unfused their
launches would cost more than their work.

Each has a plain torch twin in `torch_ops` that tests compare it with. Importing this module without Triton is
harmless: `available` is then False.
"""

# Triton compiles these functions from their source: their arguments have no Python types.
# mypy: ignore-errors

from __future__ import annotations

try:
    import triton
    import triton.language as tl

    available = True
except ImportError:
    available = False

if available:

    @triton.jit
    def add_rms_norm(x, residual, weight, y, total, d, eps, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr):
        """One row a program: total = x + residual, y = total / rms(total) * weight."""
        row = tl.program_id(0).to(tl.int64)
        cols = tl.arange(0, BLOCK)
        live = cols < d
        value = tl.load(x + row * d + cols, mask=live, other=0.0).to(tl.float32)
        if HAS_RESIDUAL:
            value += tl.load(residual + row * d + cols, mask=live, other=0.0).to(tl.float32)
        tl.store(total + row * d + cols, value.to(total.dtype.element_ty), mask=live)
        scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / d + eps)
        w = tl.load(weight + cols, mask=live, other=0.0).to(tl.float32)
        tl.store(y + row * d + cols, (value * scale * w).to(y.dtype.element_ty), mask=live)

    @triton.jit
    def silu_mul(x, y, f, BLOCK: tl.constexpr):
        """Y = silu(x[:, :f]) * x[:, f:], a block of one row a program."""
        row = tl.program_id(0).to(tl.int64)
        cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        live = cols < f
        gate = tl.load(x + row * 2 * f + cols, mask=live, other=0.0).to(tl.float32)
        up = tl.load(x + row * 2 * f + f + cols, mask=live, other=0.0).to(tl.float32)
        tl.store(y + row * f + cols, (gate / (1.0 + tl.exp(-gate)) * up).to(y.dtype.element_ty), mask=live)

    @triton.jit
    def rope_write(
        qkv, rope, positions, slots, q_weight, k_weight, q, k_cache, v_cache, eps,
        H: tl.constexpr, KVH: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr,
    ):  # fmt: skip
        """One head of one token a program: normalise, rotate; queries go aside, keys and values to the cache."""
        token = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        source = qkv + token * (H + 2 * KVH) * D + head * D
        cols = tl.arange(0, D // 2)
        low = tl.load(source + cols).to(tl.float32)
        high = tl.load(source + D // 2 + cols).to(tl.float32)
        slot = tl.load(slots + token).to(tl.int64)
        if head >= H + KVH:
            target = v_cache + (slot * KVH + head - H - KVH) * D
            tl.store(target + cols, low.to(v_cache.dtype.element_ty))
            tl.store(target + D // 2 + cols, high.to(v_cache.dtype.element_ty))
        else:
            if NORM:
                scale = 1.0 / tl.sqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / D + eps)
                weight = q_weight
                if head >= H:
                    weight = k_weight
                low = low * scale * tl.load(weight + cols).to(tl.float32)
                high = high * scale * tl.load(weight + D // 2 + cols).to(tl.float32)
            position = tl.load(positions + token).to(tl.int64)
            cos = tl.load(rope + position * D + cols)
            sin = tl.load(rope + position * D + D // 2 + cols)
            first, second = low * cos - high * sin, high * cos + low * sin
            if head < H:
                target = q + (token * H + head) * D
                tl.store(target + cols, first.to(q.dtype.element_ty))
                tl.store(target + D // 2 + cols, second.to(q.dtype.element_ty))
            else:
                target = k_cache + (slot * KVH + head - H) * D
                tl.store(target + cols, first.to(k_cache.dtype.element_ty))
                tl.store(target + D // 2 + cols, second.to(k_cache.dtype.element_ty))

    @triton.jit
    def paged_decode(
        q, k_cache, v_cache, tables, contexts, part, peak, mass, scale, table_width, window,
        H: tl.constexpr, KVH: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr,
        PAGE: tl.constexpr, SPLITS: tl.constexpr, N: tl.constexpr,
    ):  # fmt: skip
        """One stretch of one sequence's context for one KV head a program, with a running softmax (flash decoding)."""
        seq = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        split = tl.program_id(2)
        context = tl.load(contexts + seq)
        first = tl.maximum(context - window, 0)
        span = tl.cdiv(tl.cdiv(context - first, SPLITS), N) * N
        start = first + split * span
        end = tl.minimum(start + span, context)
        rows = tl.arange(0, GP)
        cols = tl.arange(0, D)
        query = tl.load(q + (seq * H + head * G + rows[:, None]) * D + cols[None, :], mask=rows[:, None] < G, other=0.0)
        m = tl.full([GP], -float("inf"), tl.float32)
        weight = tl.zeros([GP], tl.float32)
        acc = tl.zeros([GP, D], tl.float32)
        for position in range(start, end, N):
            tokens = position + tl.arange(0, N)
            live = tokens < end
            page = tl.load(tables + seq * table_width + tokens // PAGE, mask=live, other=0)
            base = ((page.to(tl.int64) * PAGE + tokens % PAGE) * KVH + head) * D
            keys = tl.load(k_cache + base[None, :] + cols[:, None], mask=live[None, :], other=0.0)
            scores = tl.where(live[None, :], tl.dot(query, keys) * scale, -float("inf"))
            higher = tl.maximum(m, tl.max(scores, 1))
            p = tl.exp(scores - higher[:, None])
            shrink = tl.exp(m - higher)
            weight = weight * shrink + tl.sum(p, 1)
            values = tl.load(v_cache + base[:, None] + cols[None, :], mask=live[:, None], other=0.0)
            acc = acc * shrink[:, None] + tl.dot(p.to(values.dtype), values)
            m = higher
        cell = ((seq * KVH + head) * SPLITS + split) * GP + rows
        tl.store(part + cell[:, None] * D + cols[None, :], acc)
        tl.store(peak + cell, m)
        tl.store(mass + cell, weight)

    @triton.jit
    def join_splits(
        part, peak, mass, out,
        H: tl.constexpr, KVH: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
    ):  # fmt: skip
        """One query head of one sequence a program: the stretches' results, weighted by their share of the softmax."""
        seq = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        splits = tl.arange(0, SPLITS)
        cols = tl.arange(0, D)
        cell = ((seq * KVH + head // G) * SPLITS + splits) * GP + head % G
        m = tl.load(peak + cell)
        share = tl.exp(m - tl.max(m, 0))
        total = tl.sum(share * tl.load(mass + cell), 0)
        acc = tl.sum(tl.load(part + cell[:, None] * D + cols[None, :]) * share[:, None], 0)
        tl.store(out + (seq * H + head) * D + cols, (acc / total).to(out.dtype.element_ty))
