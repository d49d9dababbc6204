"""Calls over the cut dimension: sums, extremes, norms and softmax, each by as little as the ranks must tell each other.

Where a call does not touch the cut dimension it stays local. Normalisation keeps what torch's own kernels keep, its
input and two numbers a group, and computes the rest again.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.training.shardtensor.shards import (
    ALONG,
    Domain,
    ShardTensor,
    handles,
    like,
    refusal,
    replicated,
    summed,
)  # fmt: skip


def _dims(x: ShardTensor, dim: Any) -> list[int]:
    if dim is None or dim in ((), []):
        return list(range(x.ndim))
    return [d % x.ndim for d in ([dim] if isinstance(dim, int) else dim)]


def _kept(x: ShardTensor, dims: list[int], keepdim: bool) -> int:
    """Where the cut dimension is once others are gone."""
    return x.axis if keepdim else x.axis - sum(d < x.axis for d in dims)


@handles("sum", "mean", "any", "all")
def _total(func: Any, x: ShardTensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    name, dims = func.__name__, _dims(x, dim)
    kept = x.local if dtype is None else x.local.to(dtype)
    if x.axis not in dims:
        return like(x, func(kept, dim=dims, keepdim=keepdim), _kept(x, dims, keepdim))
    if name in ("any", "all"):
        here = func(kept, dim=dims, keepdim=keepdim).to(torch.int8)
        return x.domain.all_reduce(here, "max" if name == "any" else "min").bool()
    found = summed(kept.sum(dims, keepdim=keepdim), x.domain)
    return found / prod(x.shape[d] for d in dims) if name == "mean" else found


@handles("var", "std", "var_mean", "std_mean")
def _spread(
    func: Any, x: ShardTensor, dim: Any = None, *flags: Any, keepdim: bool = False, correction: Any = 1,
    unbiased: bool | None = None,
) -> Any:  # fmt: skip
    name = func.__name__
    if flags or isinstance(dim, bool):
        raise refusal(name, [x], "give unbiased= and keepdim= by name")
    dims, correction = _dims(x, dim), correction if unbiased is None else int(unbiased)
    if x.axis not in dims:
        found = getattr(torch, name)(x.local, dims, correction=correction, keepdim=keepdim)
        at = _kept(x, dims, keepdim)
        return tuple(like(x, part, at) for part in found) if isinstance(found, tuple) else like(x, found, at)
    centre = x.mean(dims, keepdim=True)
    count = prod(x.shape[d] for d in dims)
    found = (x - centre.detach()).square().sum(dims, keepdim=keepdim) / max(count - correction, 0)  # it has no slope
    found = _Root.apply(found) if name.startswith("std") else found
    return (found, centre if keepdim else x.mean(dims)) if name.endswith("mean") else found


@handles("norm", "vector_norm", "linalg_vector_norm", "linalg_norm")
def _norm(func: Any, x: ShardTensor, p: Any = None, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    p = kwargs.pop("ord", p)
    if kwargs.get("dtype") is not None or p not in (None, 2, "fro"):
        raise refusal(func.__name__, [x], "but those of order 2")
    dims = _dims(x, dim)
    if func.__name__ == "linalg_norm" and p == 2 and len(dims) > 1:
        raise refusal(func.__name__, [x], "of a matrix by its singular values")
    if x.axis not in dims:
        return like(x, torch.linalg.vector_norm(x.local, 2, dims, keepdim), _kept(x, dims, keepdim))
    # The root has no slope at nothing, where torch's own norm has nought.
    return _Root.apply(summed(x.local.square().sum(dims, keepdim=keepdim), x.domain))


class _Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return torch.where(root == 0, 0, gradient / (2 * root))


class _Extreme(torch.autograd.Function):
    """The largest (or smallest) over the ranks; its gradient is shared by all that are as large, as torch does.

    With `absent` what is no number counts as large as what is none: torch's max() does that, and its amax does not.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, dims: list[int], which: str, domain: Domain, absent: bool) -> Tensor:
        shape = [1 if d in dims else n for d, n in enumerate(local.shape)]
        if local.numel():
            found = getattr(local, f"a{which}")(dims, keepdim=True)
        else:
            whole = None if local.is_floating_point() else torch.iinfo(local.dtype)
            low, high = (whole.min, whole.max) if whole else (-torch.inf, torch.inf)
            found = local.new_full(shape, low if which == "max" else high)
        found = domain.all_reduce(found, which)
        ctx.plan = dims, domain, absent
        ctx.save_for_backward(local, found)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        local, found = ctx.saved_tensors
        dims, domain, absent = ctx.plan
        same = (local == found) | (local.isnan() & found.isnan()) if absent else local == found
        here = same.to(gradient.dtype)
        return here * (gradient / domain.all_reduce(here.sum(dims, keepdim=True))), None, None, None, None


@handles("amax", "amin", "max", "min", "argmax", "argmin")
def _extreme(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    name = func.__name__
    other = args[0] if args else kwargs.get("other", kwargs.get("dim"))
    if isinstance(other, Tensor):
        return torch.maximum(x, other) if name == "max" else torch.minimum(x, other)
    keepdim = args[1] if len(args) > 1 else kwargs.get("keepdim", False)
    dims = _dims(x, other)
    if x.axis not in dims:
        found = func(x.local, *args, **kwargs)
        at = _kept(x, dims, keepdim)
        return type(found)([like(x, part, at) for part in found]) if isinstance(found, tuple) else like(x, found, at)
    if x.dtype is torch.bool:
        raise refusal(name, [x], "of truth values; any() and all() are supported")
    if name.startswith("arg") or (name in ("max", "min") and other is not None):
        raise refusal(name, [x], f"where it lies along the cut dimension; a{name[-3:]}() is supported")
    found = _Extreme.apply(x.local, dims, name[-3:], x.domain, not name.startswith("a"))
    return found if keepdim else found.squeeze(dims)


@handles("softmax", "log_softmax")
def _softmax(func: Any, x: ShardTensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    if dim is None:
        raise refusal(func.__name__, [x], "without dim=")
    kind = next((a for a in args if isinstance(a, torch.dtype)), kwargs.get("dtype"))
    if dim % x.ndim != x.axis:
        return like(x, getattr(torch.nn.functional, func.__name__)(x.local, dim, dtype=kind))
    x = x if kind is None else like(x, x.local.to(kind))
    shifted = x - x.detach().amax(dim, keepdim=True)  # it has no slope
    grown = shifted.exp()
    total = grown.sum(dim, keepdim=True)
    return shifted - total.log() if func.__name__ == "log_softmax" else grown / total


@handles("glu", "normalize", "cosine_similarity", "sort", "argsort", "topk", "cumprod", "cummax", "cummin",
         "logcumsumexp", "cumsum", "logsumexp", "median", "kthvalue")  # fmt: skip
def along_another(func: Any, x: ShardTensor, *args: Any, **kwargs: Any) -> Any:
    """Calls along one dimension that have no version across ranks."""
    name = func.__name__
    default = 1 if name in ("normalize", "cosine_similarity") else -1
    place = 1 if name in ("normalize", "cosine_similarity", "topk", "kthvalue") else 0
    dim = kwargs.get("dim", args[place] if len(args) > place else default)
    others = [a for a in args if isinstance(a, Tensor)]
    if (
        not isinstance(dim, int)
        or dim % x.ndim == x.axis
        or (name in ("median", "kthvalue") and not args and not kwargs)
    ):
        raise refusal(name, [x], ALONG)
    if any(not isinstance(y, ShardTensor) or y.axis != x.axis or y.sizes != x.sizes for y in others):
        raise refusal(name, [x, *others])
    found = func(x.local, *(y.local if isinstance(y, ShardTensor) else y for y in args), **kwargs)
    one = found[0] if isinstance(found, tuple) else found
    drops = one.ndim < x.ndim and dim % x.ndim < x.axis
    if isinstance(found, tuple):
        return type(found)([like(x, part, x.axis - drops) for part in found])
    return like(x, found, x.axis - drops)


@handles("layer_norm")
def _layer_norm(
    func: Any, x: ShardTensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    first = x.ndim - len(normalized_shape)
    if x.axis < first:
        weight, bias = (None if v is None else replicated(v, x.domain) for v in (weight, bias))
        return like(x, func(x.local, normalized_shape, weight, bias, eps))
    dims = tuple(range(first, x.ndim))
    apart = x - x.mean(dims, keepdim=True)
    found = apart * torch.rsqrt(apart.square().mean(dims, keepdim=True) + eps)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


@handles("rms_norm")
def _rms_norm(func: Any, x: ShardTensor, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    first = x.ndim - len(normalized_shape)
    if x.axis < first:
        return like(x, func(x.local, normalized_shape, None if weight is None else replicated(weight, x.domain), eps))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    found = x * torch.rsqrt(x.square().mean(tuple(range(first, x.ndim)), keepdim=True) + eps)
    return found if weight is None else found * weight


class _ChannelNorm(torch.autograd.Function):
    """Normalised over positions and a fold of channels or samples; values are `[batch, channel, position]`.

    `fold` averages `[batch, channel]` over what shares its statistics. One tensor is made in either direction.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Any, bias: Any, fold: Any, share: float, eps: float, domain: Domain
    ) -> Any:
        if x.shape[2]:
            variance, mean = torch.var_mean(x, 2, correction=0)
        else:
            variance = mean = x.new_zeros(x.shape[:2])
        whole = domain.all_reduce(fold(mean) * share)
        spread = domain.all_reduce(fold(variance + (mean - whole).square()) * share)
        scale = (spread + eps).rsqrt()
        slope = scale if weight is None else scale * weight
        level = -whole * slope if bias is None else bias - whole * slope
        ctx.plan = fold, share, domain, bias is not None
        ctx.save_for_backward(x, weight, whole, scale)
        ctx.mark_non_differentiable(whole, spread)
        return torch.addcmul(level[..., None], x, slope[..., None]), whole, spread

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        fold, share, domain, biased = ctx.plan
        batch, channels, here = x.shape
        flat = batch * channels
        product = torch.bmm(gradient.reshape(flat, 1, here), x.reshape(flat, here, 1)).view(batch, channels)
        plain = gradient.sum(2)
        product = (product - mean * plain) * scale  # sums of gradient times normalised value
        by_weight = None if weight is None else product.sum(0)
        by_bias = plain.sum(0) if biased else None
        factor = 1.0 if weight is None else weight
        per = share / max(here, 1)
        level, slope = domain.all_reduce(torch.stack([fold(plain * factor), fold(product * factor)])) * per
        found = x * (-scale.square() * slope)[..., None]
        found.addcmul_(gradient, (scale * factor).expand(batch, channels)[..., None])
        found += (scale.square() * slope * mean - scale * level)[..., None]
        return found, by_weight, by_bias, None, None, None, None


def _channel_norm(x: ShardTensor, weight: Any, bias: Any, fold: Any, eps: float) -> tuple[ShardTensor, Tensor, Tensor]:
    flat = x.local.reshape(*x.local.shape[:2], prod(x.local.shape[2:]))
    affine = [None if v is None else replicated(v, x.domain) for v in (weight, bias)]
    found, mean, variance = _ChannelNorm.apply(flat, *affine, fold, flat.shape[2] / prod(x.shape[2:]), eps, x.domain)
    return like(x, found.view(x.local.shape)), mean, variance


@handles("group_norm")
def _group_norm(
    func: Any, x: ShardTensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> ShardTensor:
    if x.axis == 1:
        raise refusal("group_norm", [x], "its channels are cut")
    if x.axis == 0:
        weight, bias = (None if v is None else replicated(v, x.domain) for v in (weight, bias))
        return like(x, func(x.local, num_groups, weight, bias, eps))
    each = x.shape[1] // num_groups

    def fold(values: Tensor) -> Tensor:
        return values.reshape(-1, num_groups, each).mean(2).repeat_interleave(each, 1)

    return _channel_norm(x, weight, bias, fold, eps)[0]


@handles("batch_norm", "instance_norm")
def _batch_norm(
    func: Any, x: ShardTensor, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5, *_: Any, **kwargs: Any,
) -> ShardTensor:  # fmt: skip
    alone = func.__name__ == "instance_norm"
    if x.ndim < 2:
        raise refusal(func.__name__, [x], "without channels")
    training = kwargs.get("use_input_stats", training) or (alone and running_mean is None)
    if x.axis == 1:
        raise refusal(func.__name__, [x], "its channels are cut")
    slope, level = (None if v is None else replicated(v, x.domain) for v in (weight, bias))
    if not training:
        kept = running_mean, running_var
        return like(x, torch.nn.functional.batch_norm(x.local, *kept, slope, level, False, 0.0, eps))
    if alone and running_mean is not None:
        raise refusal("instance_norm", [x], "with running statistics")
    if alone and x.axis == 0:  # every rank has whole instances; groups of one channel may have none of them
        return like(x, torch.nn.functional.group_norm(x.local, x.shape[1], slope, level, eps))
    if alone:
        return _channel_norm(x, weight, bias, lambda values: values, eps)[0]
    if x.axis == 0:  # samples are cut: as if they were positions
        back: ShardTensor = _batch_norm(
            func, x.transpose(0, 1)[None], running_mean, running_var, weight, bias, True, momentum, eps
        )
        return back.squeeze(0).transpose(0, 1)  # type: ignore[return-value]

    def fold(values: Tensor) -> Tensor:
        return values.mean(0, keepdim=True).expand_as(values)

    found, mean, variance = _channel_norm(x, weight, bias, fold, eps)
    if running_mean is not None:
        count = x.shape[0] * prod(x.shape[2:])
        with torch.no_grad():
            running_mean.lerp_(mean[0].to(running_mean.dtype), momentum)
            running_var.lerp_(variance[0].to(running_var.dtype) * (count / max(count - 1, 1)), momentum)
    return found
