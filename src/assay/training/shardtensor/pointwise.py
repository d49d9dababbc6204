"""Calls that act on each element alone: computed where the elements lie, after operands are cut alike."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from assay.training.shardtensor.shards import (
    ShardTensor,
    asks,
    called,
    handles,
    like,
    mine,
    own_part,
    redistributed,
    refusal,
    replicated,
    resized,
)  # fmt: skip

ELEMENTWISE = """
add sub subtract mul multiply div divide true_divide truediv floordiv floor_divide remainder fmod mod pow rpow radd
rsub rmul rdiv rtruediv rfloordiv rmod neg negative positive pos abs absolute exp
exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sinh cosh asin acos atan atan2 arctan2 asinh acosh atanh
sigmoid relu relu6 leaky_relu elu selu celu gelu silu mish softplus softsign hardtanh hardsigmoid hardswish hardshrink
softshrink tanhshrink logsigmoid threshold clamp clamp_min clamp_max clip minimum maximum fmin fmax lerp addcmul addcdiv
masked_fill sign sgn floor ceil round trunc frac reciprocal square erf erfc erfinv sinc xlogy hypot copysign logaddexp
lgamma digamma eq ne lt le gt ge not_equal greater less greater_equal less_equal logical_and logical_or logical_not
logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not and or xor invert rand ror isnan isinf isfinite nan_to_num
iadd isub imul itruediv ipow idiv zero fill
""".split()

ANEW = """
where clone contiguous detach to float double half bfloat16 long int bool type type_as zeros_like ones_like empty_like
full_like cpu cuda alias
""".split()  # always tensors of their own, or the same one


def aligned(x: ShardTensor, other: Any, name: str = "this call", ndim: int | None = None) -> Any:
    """An operand as `x` meets it: its stretch where it has the cut dimension, else itself, replicated.

    Dimensions are counted from the last, as broadcasting does, after `ndim` dimensions of the result.
    """
    if not isinstance(other, Tensor):
        return other
    behind = x.axis - (x.ndim if ndim is None else ndim)  # the cut dimension, from the last
    at = other.ndim + behind
    if isinstance(other, ShardTensor):
        if other.axis != at:
            if at < 0 or other.shape[at] != x.shape[x.axis]:
                raise refusal(name, [x, other], "they are cut along different dimensions")
            other = redistributed(other, at, x.sizes)
        if other.shape[at] != x.shape[x.axis]:
            raise refusal(name, [x, other], "the cut dimension cannot be stretched")
        return resized(other, x.sizes).local
    if at < 0 or (other.shape[at] == 1 and x.shape[x.axis] != 1):
        return replicated(other, x.domain)
    return own_part(other, at, x.domain, x.sizes)


def lead(args: Any) -> ShardTensor:
    """The shard that says how the others are cut: the one with most dimensions, the largest, the first of these."""
    shards = [x for x in args if isinstance(x, ShardTensor)]
    return max(shards, key=lambda x: (x.ndim, x.numel()))


@handles(*ANEW)
def _pointwise(func: Any, *args: Any, **kwargs: Any) -> Any:
    name = func.__name__
    operands = [*args, *kwargs.values()]
    if name in ("to", "type_as"):
        args = tuple(x.local if isinstance(x, ShardTensor) else x for x in args)
        return like(lead(operands), func(*args, **kwargs))
    x = lead(operands)
    if name == "where" and len(operands) == 1:
        raise refusal("where without values", [x], "how many there are is not known")
    tensors = [y for y in operands if isinstance(y, Tensor)]
    if x.shape[x.axis] == 1 and torch.broadcast_shapes(*(y.shape for y in tensors))[x.axis - x.ndim] != 1:
        raise refusal(name, operands, "the cut dimension cannot be stretched")
    ndim = max(y.ndim for y in tensors)
    return like(x, _met(func, x, args, kwargs), axis=ndim + x.axis - x.ndim)


@handles(*ELEMENTWISE, in_place=True)
def _changed(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The first argument is changed where it lies; others meet it as they would any result, and cannot widen it."""
    _, changes = called(func, (x, *args), kwargs)
    if not changes:
        return _pointwise(func, x, *args, **kwargs)
    others = [y for y in (*args, *kwargs.values()) if isinstance(y, Tensor)]
    if any(y.ndim > x.ndim or torch.broadcast_shapes(x.shape, y.shape) != x.shape for y in others):
        raise refusal(func.__name__, [x, *others], "what is changed in place keeps its shape")
    _met(func, x, (x, *args), kwargs)
    return x


def _met(func: Any, x: ShardTensor, args: Any, kwargs: Any) -> Tensor:
    """A call on the stretches of all operands that go with `x`'s."""
    name = func.__name__
    return func(  # type: ignore[no-any-return]
        *(y.local if y is x else aligned(x, y, name) for y in args),
        **{key: y.local if y is x else aligned(x, y, name) for key, y in kwargs.items()},
    )


@handles("is_contiguous")
def _contiguous(func: Any, x: ShardTensor, **kwargs: Any) -> bool:
    return x.local.is_contiguous(**kwargs)


@handles("size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "is_complex", "element_size", "len",
         "get_device", "hash", "is_signed", "is_same_size", "is_inference")  # fmt: skip
def _of_the_whole(func: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


@handles("requires_grad", "retain_grad", "register_hook", "is_pinned", in_place=True)
def _of_the_local(func: Any, x: ShardTensor, *args: Any, **kwargs: Any) -> Any:
    found = func(x.local, *args, **kwargs)
    asks(x)
    return x if isinstance(found, Tensor) else found


@handles("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "new")
def _plain_anew(func: Any, x: ShardTensor, *args: Any, **kwargs: Any) -> Any:
    return func(x.local, *args, **kwargs)


@handles("dropout", in_place=True)
@handles("feature_dropout", "dropout1d", "dropout2d", "dropout3d")
def _dropout(func: Any, x: ShardTensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> ShardTensor:
    if not training or p == 0.0:
        return x
    if func.__name__ != "dropout" and x.axis > 1:  # whole channels, the same on all ranks: by their common stream
        kept = torch.empty([*x.shape[:2], *[1] * (x.ndim - 2)], dtype=x.dtype, device=x.device)
        return like(x, x.local * kept.bernoulli_(1 - p).div_(1 - p if p < 1 else 1))
    if func.__name__ != "dropout":
        raise refusal(func.__name__, [x], "samples or channels are cut")
    # Ranks keep their common stream in step, and draw from streams of their own: neither alike nor out of step.
    seed = int(torch.randint(2**62, ()))
    stream = torch.Generator(x.local.device).manual_seed((seed + 0x9E3779B97F4A7C15 * (x.domain.rank + 1)) % 2**63)
    kept = torch.empty_like(x.local).bernoulli_(1 - p, generator=stream).div_(1 - p if p < 1 else 1)
    if inplace:
        x.local.mul_(kept)
        return x
    return like(x, x.local * kept)


@handles("prelu")
def _prelu(func: Any, x: ShardTensor, weight: Tensor) -> ShardTensor:
    if weight.numel() > 1 and x.axis == 1:
        raise refusal("prelu", [x, weight], "its channels are cut")
    return like(x, func(x.local, replicated(weight, x.domain)))


@handles("embedding")
def _embedding(func: Any, x: ShardTensor, weight: Tensor, *args: Any, **kwargs: Any) -> ShardTensor:
    if isinstance(weight, ShardTensor) or not isinstance(x, ShardTensor):
        raise refusal("embedding", [x, weight])
    return like(x, func(x.local, replicated(weight, x.domain), *args, **kwargs))


@handles("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
         "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss")  # fmt: skip
def _elementwise_loss(func: Any, x: Any, target: Any, *args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
    if args:
        raise refusal(func.__name__, [x, target], "give its options by name")
    size_average, reduce = kwargs.pop("size_average", None), kwargs.pop("reduce", None)
    if size_average is not None or reduce is not None or reduction == "batchmean":
        raise refusal(func.__name__, [x, target], "reduction is mean, sum or none")
    if x.shape != target.shape:
        raise refusal(func.__name__, [x, target], "input and target have different shapes")
    named: Any = partial(func, reduction="none")
    named.__name__ = func.__name__
    each = _pointwise(named, x, target, **kwargs)
    return each if reduction == "none" else getattr(each, reduction)()


@handles("nll_loss", "nll_loss_nd", "cross_entropy", "cross_entropy_loss")
def _class_loss(
    func: Any, x: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", **kwargs: Any,
) -> Any:  # fmt: skip
    name = func.__name__
    classes = 0 if x.ndim == 1 else 1
    if kwargs.pop("label_smoothing", 0.0) or weight is not None or target.dtype.is_floating_point:
        raise refusal(name, [x, target], "class indices without weights or smoothing are")
    if not isinstance(x, ShardTensor) or x.axis == classes:
        raise refusal(name, [x, target], "its classes are cut, or only its targets")
    at = x.axis - (x.axis > classes)
    if isinstance(target, ShardTensor):
        wanted = redistributed(target, at, x.sizes).local
    else:
        wanted = mine(target, at, x.domain, x.sizes)
    each = like(x, func(x.local, wanted, ignore_index=ignore_index, reduction="none"), at)
    if reduction == "none":
        return each
    counted = like(x, (wanted != ignore_index).to(x.dtype), at)
    return each.sum() / counted.sum() if reduction == "mean" else each.sum()


TWICE = "with create_graph, as there are no gradients of gradients"


@handles("backward")
def _backward(
    func: Any, x: ShardTensor, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False
) -> None:
    if gradient is None:
        raise refusal("backward without a gradient", [x])
    if create_graph:
        raise refusal("backward", [x], TWICE)
    func(x.local, aligned(x, gradient, "backward"), retain_graph)


@handles("grad")
def _grad(func: Any, outputs: Any, inputs: Any, grad_outputs: Any = None, **kwargs: Any) -> Any:
    """torch.autograd.grad: shards among its inputs and outputs stand for what they hold here."""
    if kwargs.get("create_graph"):
        raise refusal("grad", [outputs, inputs], TWICE)
    listed = [[x] if isinstance(x, Tensor) else x for x in (outputs, inputs, grad_outputs)]
    local = [None if some is None else [y.local if isinstance(y, ShardTensor) else y for y in some] for some in listed]
    found = func(*local, **kwargs)
    pairs = zip(found, listed[1], strict=True)
    return tuple(like(x, g) if g is not None and isinstance(x, ShardTensor) else g for g, x in pairs)
