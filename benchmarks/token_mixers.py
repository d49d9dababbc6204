"""Decoder layers that differ only in how tokens look at each other: GQA, MLA, Gated DeltaNet, Mamba2.

All four have one width, one SwiGLU block and random weights in the shape of an 8B model, so that power and time
differ by the token mixer alone. Decode runs flash-decoding style (split over the context, the cache is read once) or
one state update in place; prefill runs causal attention or a chunked scan. Each mixer has a plain torch form, which is
the reference and the CPU path, and a Triton form that is checked against it before it is used.
"""

# Triton's kernels carry no types, and parts of torch do not either.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from assay.sim.mixer_shapes import CHUNK, Shape

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

    HAVE_TRITON = True
except ImportError:  # a machine without a GPU: the torch forms run
    HAVE_TRITON = False

Tensor = torch.Tensor


# ------------------------------------------------------------------------------------ torch, the reference


def attend_reference(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(scale q kᵀ) v for one new token: q [n, m, dk], k [n, T, dk], v [n, T, dv]."""
    scores = torch.bmm(q, k.transpose(1, 2)) * scale
    return torch.bmm(scores.float().softmax(-1).to(q.dtype), v)


def update_reference(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool) -> Tensor:
    """One token of a linear recurrence, in place: state [b, H, K, V]; q, k [b, Hq, K]; v [b, H, V]; g, beta [b, H]."""
    repeat = v.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(repeat, 1).float() for x in (q, k))
    state.mul_(g.exp()[..., None, None])
    new = v.float() - torch.einsum("bhkv,bhk->bhv", state, k) if delta else v.float()
    state.add_(k[..., None] * (new * beta[..., None])[..., None, :])
    return torch.einsum("bhkv,bhk->bhv", state, q).to(v.dtype)


def scan_reference(q: Tensor, k: Tensor, u: Tensor, w: Tensor | None, gc: Tensor) -> Tensor:
    """The chunked scan: q, k [b, Hq, T, K]; u [b, H, T, V]; w [b, H, T, K] or None; gc [b, H, T] in-chunk sums."""
    repeat = u.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(repeat, 1).float() for x in (q, k))
    b, h, t, dk = q.shape
    state = torch.zeros(b, h, dk, u.shape[-1], device=q.device)
    mask = torch.ones(CHUNK, CHUNK, device=q.device).tril().bool()
    out = []
    for c in range(0, t, CHUNK):
        s = slice(c, c + CHUNK)
        gg = gc[:, :, s].float()
        new = u[:, :, s].float()
        if w is not None:
            new = new - w[:, :, s].float() @ state
        decay = torch.where(mask, (gg[..., :, None] - gg[..., None, :]).clamp(max=0).exp(), 0)
        inside = (q[:, :, s] @ k[:, :, s].transpose(-1, -2)) * decay
        out.append((q[:, :, s] @ state) * gg.exp()[..., None] + inside @ new)
        last = gg[..., -1:]
        state = state * last.exp()[..., None] + (k[:, :, s] * (last - gg).exp()[..., None]).transpose(-1, -2) @ new
    return torch.cat(out, 2).to(u.dtype)


def delta_terms(k: Tensor, v: Tensor, gc: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """(u, w) of the delta rule within each chunk: both are T = (I + A)⁻¹ applied, A strictly lower, so nilpotent."""
    b, h, t, dk = k.shape
    n = t // CHUNK
    kc, vc = k.view(b, h, n, CHUNK, dk), v.reshape(b, h, n, CHUNK, -1)
    gg, bb = gc.view(b, h, n, CHUNK), beta.view(b, h, n, CHUNK)
    mask = torch.ones(CHUNK, CHUNK, device=k.device).tril(-1).bool()
    decay = torch.where(mask, (gg[..., :, None] - gg[..., None, :]).clamp(max=0).exp(), 0)
    power = -(kc @ kc.transpose(-1, -2)).float() * decay * bb[..., :, None]
    inverse = torch.eye(CHUNK, device=k.device) + power
    for _ in range(int(math.log2(CHUNK)) - 1):  # (I − A)(I + A²)(I + A⁴)… ends, since A⁶⁴ = 0
        power = power @ power
        inverse = inverse + inverse @ power
    inverse = inverse.to(v.dtype)
    u = inverse @ (vc * bb[..., None].to(v.dtype))
    w = inverse @ (kc * (bb * gg.exp())[..., None].to(k.dtype))
    return u.reshape(b, h, t, -1), w.reshape(b, h, t, dk)


# --------------------------------------------------------------------------------------------------- Triton

if HAVE_TRITON:

    @triton.jit
    def _gqa(Q, K, V, OUT, M, T, SPLIT, SCALE, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, BT: tl.constexpr):
        n, s = tl.program_id(0), tl.program_id(1)
        splits = tl.num_programs(1)
        rows, cols, steps = tl.arange(0, GP), tl.arange(0, D), tl.arange(0, BT)
        q = tl.load(Q + n * G * D + rows[:, None] * D + cols[None, :], mask=rows[:, None] < G, other=0.0)
        base = n.to(tl.int64) * T * D
        m = tl.full([GP], -1e30, tl.float32)
        total = tl.zeros([GP], tl.float32)
        acc = tl.zeros([GP, D], tl.float32)
        end = tl.minimum((s + 1) * SPLIT, T)
        for t in range(s * SPLIT, end, BT):
            at = t + steps
            inside = at < end
            where = base + at[:, None] * D + cols[None, :]
            k = tl.load(K + where, mask=inside[:, None], other=0.0)
            x = tl.dot(q, tl.trans(k)) * SCALE
            x = tl.where(inside[None, :], x, -1e30)
            top = tl.maximum(m, tl.max(x, 1))
            p = tl.exp(x - top[:, None])
            fade = tl.exp(m - top)
            v = tl.load(V + where, mask=inside[:, None], other=0.0)
            acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v)
            total = total * fade + tl.sum(p, 1)
            m = top
        out = (n * splits + s) * G
        tl.store(OUT + (out + rows[:, None]) * D + cols[None, :], acc / total[:, None], mask=rows[:, None] < G)
        tl.store(M + out + rows, m + tl.log(total), mask=rows < G)

    @triton.jit
    def _mla(Q, C, OUT, M, T, SPLIT, SCALE, H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BT: tl.constexpr):
        n, s = tl.program_id(0), tl.program_id(1)
        splits = tl.num_programs(1)
        rows, cols, rot, steps = tl.arange(0, H), tl.arange(0, L), tl.arange(0, R), tl.arange(0, BT)
        q = tl.load(Q + (n * H + rows[:, None]) * (L + R) + cols[None, :])
        qr = tl.load(Q + (n * H + rows[:, None]) * (L + R) + L + rot[None, :])
        base = n.to(tl.int64) * T * (L + R)
        m = tl.full([H], -1e30, tl.float32)
        total = tl.zeros([H], tl.float32)
        acc = tl.zeros([H, L], tl.float32)
        end = tl.minimum((s + 1) * SPLIT, T)
        for t in range(s * SPLIT, end, BT):
            at = t + steps
            inside = at < end
            where = base + at[:, None] * (L + R)
            c = tl.load(C + where + cols[None, :], mask=inside[:, None], other=0.0)
            r = tl.load(C + where + L + rot[None, :], mask=inside[:, None], other=0.0)
            x = (tl.dot(q, tl.trans(c)) + tl.dot(qr, tl.trans(r))) * SCALE
            x = tl.where(inside[None, :], x, -1e30)
            top = tl.maximum(m, tl.max(x, 1))
            p = tl.exp(x - top[:, None])
            fade = tl.exp(m - top)
            acc = acc * fade[:, None] + tl.dot(p.to(c.dtype), c)  # the cache tile is key and value at once
            total = total * fade + tl.sum(p, 1)
            m = top
        out = (n * splits + s) * H
        tl.store(OUT + (out + rows[:, None]) * L + cols[None, :], acc / total[:, None])
        tl.store(M + out + rows, m + tl.log(total))

    @triton.jit
    def _update(
        S, Q, K, V, G, B, OUT, H, HQ, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr, DELTA: tl.constexpr
    ):
        n, block = tl.program_id(0), tl.program_id(1)
        b, h = n // H, n % H
        group = b * HQ + h * HQ // H
        ks, vs = tl.arange(0, DK), block * BV + tl.arange(0, BV)
        at = S + n.to(tl.int64) * DK * DV + ks[:, None] * DV + vs[None, :]
        s = tl.load(at) * tl.exp(tl.load(G + n))
        k = tl.load(K + group * DK + ks).to(tl.float32)
        q = tl.load(Q + group * DK + ks).to(tl.float32)
        v = tl.load(V + n * DV + vs).to(tl.float32)
        if DELTA:
            v = v - tl.sum(s * k[:, None], 0)
        s = s + k[:, None] * (v * tl.load(B + n))[None, :]
        tl.store(at, s)
        tl.store(OUT + n * DV + vs, tl.sum(s * q[:, None], 0))

    @triton.jit
    def _scan(Q, K, U, W, G, OUT, T, H, HQ, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
              DELTA: tl.constexpr):  # fmt: skip
        n, block = tl.program_id(0), tl.program_id(1)
        b, h = n // H, n % H
        group = (b * HQ + h * HQ // H).to(tl.int64) * T * DK
        own_k, own_v = n.to(tl.int64) * T * DK, n.to(tl.int64) * T * DV
        steps, ks, vs = tl.arange(0, C), tl.arange(0, DK), block * BV + tl.arange(0, BV)
        state = tl.zeros([DK, BV], tl.float32)
        for c in range(0, T, C):
            at = c + steps
            k = tl.load(K + group + at[:, None] * DK + ks[None, :])
            q = tl.load(Q + group + at[:, None] * DK + ks[None, :])
            u = tl.load(U + own_v + at[:, None] * DV + vs[None, :])
            g = tl.load(G + n.to(tl.int64) * T + at)
            last = tl.load(G + n.to(tl.int64) * T + c + C - 1)
            held = state.to(k.dtype)
            if DELTA:
                w = tl.load(W + own_k + at[:, None] * DK + ks[None, :])
                u = (u.to(tl.float32) - tl.dot(w, held)).to(k.dtype)
            gap = tl.where(steps[:, None] >= steps[None, :], g[:, None] - g[None, :], -1e30)
            inside = (tl.dot(q, tl.trans(k)) * tl.exp(gap)).to(k.dtype)
            o = tl.dot(q, held) * tl.exp(g)[:, None] + tl.dot(inside, u)
            tl.store(OUT + own_v + at[:, None] * DV + vs[None, :], o)
            faded = (k.to(tl.float32) * tl.exp(last - g)[:, None]).to(k.dtype)
            state = state * tl.exp(last) + tl.dot(tl.trans(faded), u)


def _splits(programs: int, context: int) -> int:
    """How many parts the context is cut into, so that a few blocks land on every multiprocessor."""
    return max(1, min(context // 256, -(-132 * 4 // programs)))


def _merge(part: Tensor, lse: Tensor) -> Tensor:
    """Join the parts [n, splits, m, d] of a split softmax by their log-sums [n, splits, m]."""
    if part.shape[1] == 1:
        return part[:, 0]
    return (part * lse.softmax(1)[..., None]).sum(1)


def attend_gqa(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [b·kv, G, D] against k, v [b·kv, T, D], split over the context."""
    n, g, d = q.shape
    t = k.shape[1]
    splits = _splits(n, t)
    length = -(-t // splits)
    part = torch.empty(n, splits, g, d, device=q.device, dtype=torch.float32)
    lse = torch.empty(n, splits, g, device=q.device, dtype=torch.float32)
    _gqa[(n, splits)](q, k, v, part, lse, t, length, scale, G=g, GP=max(16, g), D=d, BT=64, num_warps=4, num_stages=3)
    return _merge(part, lse).to(q.dtype)


def attend_mla(q: Tensor, cache: Tensor, latent: int, scale: float) -> Tensor:
    """q [b, H, L + R] against the latent cache [b, T, L + R], split over the context."""
    b, h, width = q.shape
    t = cache.shape[1]
    splits = _splits(b, t)
    length = -(-t // splits)
    part = torch.empty(b, splits, h, latent, device=q.device, dtype=torch.float32)
    lse = torch.empty(b, splits, h, device=q.device, dtype=torch.float32)
    _mla[(b, splits)](q, cache, part, lse, t, length, scale, H=h, L=latent, R=width - latent, BT=32, num_warps=8,
                      num_stages=2)  # fmt: skip
    return _merge(part, lse).to(q.dtype)


def update_triton(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool) -> Tensor:
    """`update_reference` in one pass over the state."""
    b, h, dk, dv = state.shape
    out = torch.empty_like(v)
    block = min(64, dv)
    _update[(b * h, dv // block)](state, q, k, v, g, beta, out, h, q.shape[1], DK=dk, DV=dv, BV=block, DELTA=delta,
                                  num_warps=4)  # fmt: skip
    return out


def scan_triton(q: Tensor, k: Tensor, u: Tensor, w: Tensor | None, gc: Tensor) -> Tensor:
    """`scan_reference` in one kernel: a program carries the state of one head's slice through all chunks."""
    b, h, t, dv = u.shape
    dk = q.shape[-1]
    out = torch.empty_like(u)
    block = min(32, dv)
    _scan[(b * h, dv // block)](q, k, u, u if w is None else w, gc, out, t, h, q.shape[1], DK=dk, DV=dv, BV=block,
                                C=CHUNK, DELTA=w is not None, num_warps=4, num_stages=2)  # fmt: skip
    return out


def difference(family: str, device: str, shape: Shape, dtype: torch.dtype) -> float:
    """How far the family's Triton forms are from their references, relative to the largest value."""
    make = torch.Generator(device=device).manual_seed(0)

    def rand(*size: int) -> Tensor:
        return torch.randn(*size, device=device, generator=make).to(dtype)

    def gap(a: Tensor, b: Tensor) -> float:
        return float((a.float() - b.float()).abs().max() / b.float().abs().max())

    hd = shape.hd
    if family == "gqa":
        q, k, v = rand(6, shape.heads // shape.kv_heads, hd), rand(6, 1111, hd), rand(6, 1111, hd)
        return gap(attend_gqa(q, k, v, hd**-0.5), attend_reference(q, k, v, hd**-0.5))
    if family == "mla":
        q, cache = rand(3, shape.heads, shape.latent + shape.rope), rand(3, 777, shape.latent + shape.rope)
        values = cache[..., : shape.latent].contiguous()
        return gap(attend_mla(q, cache, shape.latent, 0.04), attend_reference(q, cache, values, 0.04))
    delta = family == "gdn"
    h, hq, dv = (shape.heads, shape.gdn_qk, hd) if delta else (shape.ssd_heads, shape.ssd_groups, shape.ssd_hd)
    state = torch.randn(2, h, hd, dv, device=device, generator=make)
    q, k, v = rand(2, hq, hd), F.normalize(rand(2, hq, hd), dim=-1), rand(2, h, dv)
    g, beta = -rand(2, h).float().abs(), rand(2, h).float().sigmoid()
    other = state.clone()
    ours = update_triton(state, q, k, v, g, beta, delta)
    update = gap(ours, update_reference(other, q, k, v, g, beta, delta))
    t = 4 * CHUNK
    q, k, u = rand(2, hq, t, hd), F.normalize(rand(2, hq, t, hd), dim=-1), rand(2, h, t, dv)
    w = rand(2, h, t, hd) * hd**-0.5 if delta else None
    gc = (-0.1 * rand(2, h, t // CHUNK, CHUNK).float().abs()).cumsum(-1).view(2, h, t)
    return max(update, gap(scan_triton(q, k, u, w, gc), scan_reference(q, k, u, w, gc)))


# --------------------------------------------------------------------------------------------------- layers


class Layer:
    """One decoder layer of a family: random weights, a cache for one (batch, context), and both phases."""

    def __init__(self, family: str, shape: Shape, device: str, dtype: torch.dtype, fast: bool, seed: int) -> None:
        make = torch.Generator(device=device).manual_seed(seed)

        def weight(*size: int) -> Tensor:
            return torch.empty(size, device=device, dtype=dtype).normal_(0.0, size[-2] ** -0.5, generator=make)

        self.family, self.shape, self.fast, self.device, self.dtype = family, shape, fast, device, dtype
        self.w = {name: weight(*size) for name, size in shape.mixer_weights(family).items()}
        self.up, self.down = weight(shape.d, 2 * shape.ffn), weight(shape.ffn, shape.d)
        self.norm = torch.ones(shape.d, device=device, dtype=dtype)
        self.cache: Any = None

    def allocate(self, batch: int, context: int) -> None:
        """Fill the decode cache with random values: zeros would draw less power."""
        s = self.shape
        size = {
            "gqa": (2, batch * s.kv_heads, context, s.hd), "mla": (batch, context, s.latent + s.rope),
            "gdn": (batch, s.heads, s.hd, s.hd), "mamba2": (batch, s.ssd_heads, s.hd, s.ssd_hd),
        }[self.family]  # fmt: skip
        kind = torch.float32 if self.family in ("gdn", "mamba2") else self.dtype
        self.cache = torch.empty(size, device=self.device, dtype=kind).normal_()

    def decode(self, x: Tensor) -> Tensor:
        """One token for each sequence of the batch: x [b, d]."""
        x = x + getattr(self, f"_decode_{self.family}")(self._normed(x))
        return x + self._swiglu(self._normed(x))

    def prefill(self, x: Tensor) -> Tensor:
        """All tokens of all prompts: x [b, T, d]."""
        x = x + getattr(self, f"_prefill_{self.family}")(self._normed(x))
        return x + self._swiglu(self._normed(x))

    def _normed(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.shape.d,), self.norm)

    def _swiglu(self, x: Tensor) -> Tensor:
        gate, up = (x @ self.up).chunk(2, -1)
        return (F.silu(gate) * up) @ self.down

    def _decode_gqa(self, x: Tensor) -> Tensor:
        s, b = self.shape, x.shape[0]
        q, k, v = (x @ self.w["qkv"]).split([s.heads * s.hd, s.kv_heads * s.hd, s.kv_heads * s.hd], -1)
        self.cache[0, :, -1] = k.reshape(b * s.kv_heads, s.hd)
        self.cache[1, :, -1] = v.reshape(b * s.kv_heads, s.hd)
        attend = attend_gqa if self.fast else attend_reference
        q = q.reshape(b * s.kv_heads, s.heads // s.kv_heads, s.hd)
        return attend(q, self.cache[0], self.cache[1], s.hd**-0.5).reshape(b, -1) @ self.w["o"]

    def _decode_mla(self, x: Tensor) -> Tensor:
        s, b = self.shape, x.shape[0]
        nope, rope = (x @ self.w["q"]).view(b, s.heads, s.hd + s.rope).split([s.hd, s.rope], -1)
        self.cache[:, -1] = x @ self.w["kv"]
        absorbed = torch.bmm(nope.transpose(0, 1), self.w["uk"]).transpose(0, 1)  # queries meet the latent directly
        q = torch.cat([absorbed, rope], -1).contiguous()
        scale = (s.hd + s.rope) ** -0.5
        if self.fast:
            o = attend_mla(q, self.cache, s.latent, scale)
        else:
            o = attend_reference(q, self.cache, self.cache[..., : s.latent].contiguous(), scale)
        return torch.bmm(o.transpose(0, 1), self.w["uv"]).transpose(0, 1).reshape(b, -1) @ self.w["o"]

    def _recurrence(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(q, k, v, gate, log decay, beta) of the two recurrent families."""
        s = self.shape
        mixed = x @ self.w["in"]
        if self.family == "gdn":
            qk, inner, heads, groups = s.gdn_qk * s.hd, s.heads * s.hd, s.heads, s.gdn_qk
            q, k, v, z, g, beta = mixed.split([qk, qk, inner, inner, heads, heads], -1)
            beta = beta.float().sigmoid()
        else:
            qk, inner, heads, groups = s.ssd_groups * s.hd, s.ssd_heads * s.ssd_hd, s.ssd_heads, s.ssd_groups
            q, k, v, z, g = mixed.split([qk, qk, inner, inner, heads], -1)
            beta = F.softplus(g.float())
        q = F.silu(q).unflatten(-1, (groups, s.hd))
        k = F.normalize(F.silu(k).unflatten(-1, (groups, s.hd)), dim=-1)
        return q, k, F.silu(v).unflatten(-1, (heads, -1)), z, -F.softplus(g.float()) * 0.1, beta

    def _decode_recurrent(self, x: Tensor) -> Tensor:
        q, k, v, z, g, beta = self._recurrence(x)
        step = update_triton if self.fast else update_reference
        o = step(self.cache, q.contiguous(), k.contiguous(), v.contiguous(), g.contiguous(), beta.contiguous(),
                 self.family == "gdn")  # fmt: skip
        return (o.reshape(x.shape[0], -1) * F.silu(z)) @ self.w["o"]

    _decode_gdn = _decode_mamba2 = _decode_recurrent

    def _prefill_gqa(self, x: Tensor) -> Tensor:
        s = self.shape
        b, t, _ = x.shape
        q, k, v = (x @ self.w["qkv"]).split([s.heads * s.hd, s.kv_heads * s.hd, s.kv_heads * s.hd], -1)
        q, k, v = (y.view(b, t, -1, s.hd).transpose(1, 2) for y in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return o.transpose(1, 2).reshape(b, t, -1) @ self.w["o"]

    def _prefill_mla(self, x: Tensor) -> Tensor:
        s = self.shape
        b, t, _ = x.shape
        q = (x @ self.w["q"]).view(b, t, s.heads, s.hd + s.rope).transpose(1, 2)
        latent, rope = (x @ self.w["kv"]).split([s.latent, s.rope], -1)
        nope = torch.einsum("btl,hdl->bhtd", latent, self.w["uk"])
        v = torch.einsum("btl,hld->bhtd", latent, self.w["uv"])
        k = torch.cat([nope, rope[:, None].expand(b, s.heads, t, s.rope)], -1)
        o = F.scaled_dot_product_attention(q, k, F.pad(v, (0, s.rope)), is_causal=True)[..., : s.hd]
        return o.transpose(1, 2).reshape(b, t, -1) @ self.w["o"]

    def _prefill_recurrent(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v, z, g, beta = self._recurrence(x)
        q, k, v = (y.transpose(1, 2).contiguous() for y in (q, k, v))
        g, beta = g.transpose(1, 2), beta.transpose(1, 2)
        gc = g.unflatten(-1, (t // CHUNK, CHUNK)).cumsum(-1).flatten(-2).contiguous()
        if self.family == "gdn":
            u, w = delta_terms(k.repeat_interleave(v.shape[1] // k.shape[1], 1), v, gc, beta.contiguous())
        else:
            u, w = v * beta[..., None].to(v.dtype), None
        o = (scan_triton if self.fast else scan_reference)(q, k, u.contiguous(), w, gc)
        return (o.transpose(1, 2).reshape(b, t, -1) * F.silu(z)) @ self.w["o"]

    _prefill_gdn = _prefill_mamba2 = _prefill_recurrent
