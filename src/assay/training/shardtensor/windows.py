"""Convolutions, pooling, padding and interpolation: every rank fetches the rows its windows reach into, and no more.

Which outputs a rank computes follows from where its inputs lie, so stretches stay in place. From stride, padding,
dilation and kernel follows the stretch of inputs that those outputs need. What of it lies elsewhere is the halo, of one
neighbour or, where stretches are shorter than the halo, of several. Only the halo is kept for the backward pass beside
the input, which torch would keep too; the two are joined again when their gradients are due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from assay.training.shardtensor.shards import (
    Domain,
    Range,
    ShardTensor,
    everywhere,
    fetched,
    handles,
    joined,
    like,
    pull,
    push,
    ranges,
    refusal,
    replicated,
)  # fmt: skip
from assay.training.shardtensor.views import joined_along, sliced


def _each(value: Any, n: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * n if len(values) == 1 else values


def _margins(ndim: int, dim: int, low: int, high: int) -> list[int]:
    """What F.pad takes, to widen one dimension."""
    return [0, 0] * (ndim - 1 - dim) + [low, high]


class Window:
    """One dimension of a convolution: which outputs each rank computes, and which inputs they need."""

    def __init__(self, sizes: Sequence[int], kernel: int, stride: int, padding: Range, dilation: int) -> None:
        self.length, self.stride, self.before, self.span = sum(sizes), stride, padding[0], dilation * (kernel - 1)
        self.outputs = max(0, (self.length + sum(padding) - self.span - 1) // stride + 1)
        starts = [min(-(-a // stride), self.outputs) for a, _ in ranges(sizes)]
        self.out = list(zip([0, *starts[1:]], [*starts[1:], self.outputs], strict=True))
        self.want = [_inside(*self.reach(*some), self.length) for some in self.out]

    def reach(self, a: int, b: int) -> Range:
        """The inputs of some outputs, those before and behind the whole among them."""
        return (a * self.stride - self.before, (b - 1) * self.stride - self.before + self.span + 1) if a < b else (0, 0)

    def crop(self, rank: int) -> Range:
        """What is to be added to (or cut off) both ends of a rank's result: nothing."""
        return 0, 0

    def missing(self, rank: int) -> Range:
        """How far this rank's windows reach over both ends of the whole."""
        low, high = self.reach(*self.out[rank])
        return min(max(0, -low), high - low), min(max(0, high - self.length), high - low)

    @property
    def sizes(self) -> list[int]:
        """Of the outputs."""
        return [b - a for a, b in self.out]


class Spread(Window):
    """One dimension of a transposed convolution: an input reaches into several outputs."""

    def __init__(self, sizes: Sequence[int], kernel: int, stride: int, padding: int, dilation: int, extra: int) -> None:
        self.length, self.stride, self.before, self.span = sum(sizes), stride, padding, dilation * (kernel - 1)
        self.outputs = (self.length - 1) * stride - 2 * padding + self.span + extra + 1
        starts = [min(a * stride, self.outputs) for a, _ in ranges(sizes)]
        self.out = list(zip([0, *starts[1:]], [*starts[1:], self.outputs], strict=True))
        self.want = [self.reach(*some) for some in self.out]

    def reach(self, a: int, b: int) -> Range:
        """The inputs that reach into some outputs."""
        if a >= b:
            return 0, 0
        low, high = -((self.span - a - self.before) // self.stride), (b - 1 + self.before) // self.stride + 1
        return _inside(low, high, self.length)

    def crop(self, rank: int) -> Range:
        """What is to be added to (or cut off) both ends of what a rank's inputs give."""
        a, b = self.out[rank]
        first, last = self.want[rank]
        if first == last:
            return 0, b - a
        return first * self.stride - self.before - a, b - (last - 1) * self.stride - self.span - 1 + self.before


def _inside(low: int, high: int, length: int) -> Range:
    a, b = max(0, low), min(high, length)
    return (a, b) if a < b else (0, 0)


@dataclass(frozen=True)
class Plan:
    """A convolution on this rank: where rows lie, which it wants, zeros around them, the options of torch's kernel."""

    dim: int
    domain: Domain
    have: list[Range]
    want: list[Range]
    beyond: Range  # rows of zeros before and behind the whole
    margins: list[int]  # zeros along the other dimensions
    crop: list[int]  # what is added to the result, or cut off
    options: Any

    def laid(self, local: Tensor, halo: dict[int, Tensor]) -> Tensor:
        """Inputs from own rows and halo; zeros where they leave the whole."""
        here = self.domain.rank
        found = joined(local, halo, self.dim, self.have, self.want[here], here, self.beyond)
        return functional.pad(found, self.margins) if any(self.margins) else found

    def inside(self, by_wide: Tensor) -> Tensor:
        """Of the gradient of what was laid out, that of rows which there are."""
        if any(self.margins):
            by_wide = functional.pad(by_wide, [-n for n in self.margins])
        a, b = self.want[self.domain.rank]
        return by_wide.narrow(self.dim, self.beyond[0], b - a).contiguous()


class _Conv(torch.autograd.Function):
    """A convolution over own rows and halo; only the halo is kept beside the input, and both are joined again."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, weight: Tensor, bias: Any, plan: Plan) -> Tensor:
        halo = pull(local, plan.dim, plan.have, plan.want, plan.domain)
        ctx.plan, ctx.whose, ctx.biased = plan, list(halo), bias is not None
        ctx.save_for_backward(local, weight, *halo.values())
        wide = plan.laid(local, halo)
        if wide.shape[plan.dim]:
            found: Tensor = torch.ops.aten.convolution(wide, weight, None, *plan.options)
        else:
            found = _nothing(wide, weight, plan.dim, plan.options)
        found = functional.pad(found, plan.crop) if any(plan.crop) else found
        return found if bias is None else found.add_(bias.reshape(-1, *[1] * (found.ndim - 2)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        local, weight, *pieces = ctx.saved_tensors
        plan, asked = ctx.plan, [*ctx.needs_input_grad[:2], False]
        wide = plan.laid(local, dict(zip(ctx.whose, pieces, strict=True)))
        by_bias = gradient.sum([d for d in range(gradient.ndim) if d != 1]) if ctx.biased else None
        if wide.shape[plan.dim]:
            inner = functional.pad(gradient, [-n for n in plan.crop]) if any(plan.crop) else gradient
            by_wide, by_weight, _ = torch.ops.aten.convolution_backward(inner, wide, weight, None, *plan.options, asked)
        else:
            by_wide, by_weight = torch.zeros_like(wide), torch.zeros_like(weight)
        by_local = None
        if by_wide is not None:
            by_local = push(plan.inside(by_wide), plan.dim, plan.have, plan.want, plan.domain)
        return by_local, by_weight, by_bias, None


def _nothing(wide: Tensor, weight: Tensor, dim: int, options: Any) -> Tensor:
    """The result of no rows: its other dimensions are those of one row."""
    shape = list(wide.shape)
    shape[dim] = max(weight.shape[dim] * options[2][dim - 2], 1) if dim > 1 else 1
    found: Tensor = torch.ops.aten.convolution(wide.new_zeros(shape), weight, None, *options)
    return found.narrow(dim, 0, 0)


@handles("conv1d", "conv2d", "conv3d")
def _convolution(
    func: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> ShardTensor:  # fmt: skip
    n = weight.ndim - 2
    _checked(func, x, weight)
    kernel, stride, dilation = list(weight.shape[2:]), _each(stride, n), _each(dilation, n)
    if isinstance(padding, str):
        reach = [d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
        sides = [(r // 2, r - r // 2) for r in reach]
    else:
        sides = [(p, p) for p in _each(padding, n)]
    at = x.axis - 2
    margins: list[int] = []
    for d in reversed(range(n)):
        margins += list(sides[d]) if d != at and sides[d][0] != sides[d][1] else [0, 0]
    padded = [p[0] if p[0] == p[1] and d != at else 0 for d, p in enumerate(sides)]
    window = Window(x.sizes, kernel[at], stride[at], sides[at], dilation[at]) if at >= 0 else None
    return _run(x, weight, bias, window, margins, (stride, padded, dilation, False, [0] * n, groups))


def _run(x: ShardTensor, weight: Tensor, bias: Any, window: Any, margins: list[int], options: Any) -> ShardTensor:
    affine = [None if v is None else replicated(v, x.domain) for v in (weight, bias)]
    have, rank = ranges(x.sizes), x.domain.rank
    want, beyond, crop = (window.want, window.missing(rank), window.crop(rank)) if window else (have, (0, 0), (0, 0))
    plan = Plan(x.axis, x.domain, have, want, beyond, margins, _margins(x.ndim, x.axis, *crop), options)
    local = _Conv.apply(x.local, *affine, plan)
    return like(x, local, sizes=window.sizes if window else x.sizes)


def _checked(func: Any, x: Any, weight: Any) -> None:
    if not isinstance(x, ShardTensor) or isinstance(weight, ShardTensor):
        raise refusal(func.__name__, [x, weight], "its weights are cut")
    if x.ndim < weight.ndim or x.axis == 1:
        raise refusal(func.__name__, [x, weight], "its channels are cut, or a sample comes alone")


@handles("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(
    func: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> ShardTensor:  # fmt: skip
    n = weight.ndim - 2
    _checked(func, x, weight)
    stride, padding, extra, dilation = (_each(v, n) for v in (stride, padding, output_padding, dilation))
    at = x.axis - 2
    window = None
    if at >= 0:
        window = Spread(x.sizes, weight.shape[x.axis], stride[at], padding[at], dilation[at], extra[at])
        padding[at] = extra[at] = 0
    return _run(x, weight, bias, window, [0] * 2 * n, (stride, padding, dilation, True, extra, groups))


@handles("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(
    func: Any, x: ShardTensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> ShardTensor:  # fmt: skip
    if ceil_mode or return_indices:
        raise refusal(func.__name__, [x], "with ceil_mode or return_indices")
    return _pool(func.__name__, x, kernel_size, stride, padding, dilation)


@handles("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    func: Any, x: ShardTensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> ShardTensor:  # fmt: skip
    if ceil_mode or divisor_override or (not count_include_pad and any(_each(padding, x.ndim - 2))):
        raise refusal(func.__name__, [x], "with ceil_mode, divisor_override or padding that does not count")
    return _pool(func.__name__, x, kernel_size, stride, padding, None)


def _pool(name: str, x: ShardTensor, kernel: Any, stride: Any, padding: Any, dilation: Any) -> ShardTensor:
    n, at = int(name[8]), x.axis - 2
    kernel, padding, spread = _each(kernel, n), _each(padding, n), _each(dilation or 1, n)
    stride = _each(stride, n) if stride not in (None, [], ()) else kernel
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise refusal(name, [x], "padding is at most half of the kernel")
    if at < 0 or x.ndim < n + 2:
        raise refusal(name, [x], "samples or channels are cut, or a sample comes alone")
    window = Window(x.sizes, kernel[at], stride[at], (padding[at], padding[at]), spread[at])
    margins = _margins(x.ndim, x.axis, *window.missing(x.domain.rank))
    padding[at] = 0
    options = (kernel, stride, padding, *(() if dilation is None else (spread,)))
    pool, wide = getattr(functional, name), fetched(x, window.want)
    if window.sizes[x.domain.rank]:
        wide = functional.pad(wide, margins, value=-torch.inf if name.startswith("max") else 0.0)
        return like(x, pool(wide, *options), sizes=window.sizes)
    shape = list(wide.shape)
    shape[x.axis] = kernel[at] * spread[at]
    none = pool(wide.new_zeros(shape), *options).narrow(x.axis, 0, 0)
    return like(x, none + wide.sum() * 0, sizes=window.sizes)


@handles("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
         "adaptive_max_pool2d", "adaptive_max_pool3d")  # fmt: skip
def _adaptive(func: Any, x: ShardTensor, output_size: Any, return_indices: bool = False) -> Any:
    name = func.__name__
    n, average = int(name[-2]), "avg" in name
    sizes: Sequence[int | None] = _each(output_size, n)
    asked = [x.shape[d - n] if size is None else size for d, size in enumerate(sizes)]
    dims = list(range(x.ndim - n, x.ndim))
    if all(size == 1 for size in asked) and not return_indices:
        return x.mean(dims, keepdim=True) if average else x.amax(dims, keepdim=True)
    kernel = [x.shape[d] // size for d, size in zip(dims, asked, strict=True)]
    if return_indices or any(k * size != x.shape[d] for k, d, size in zip(kernel, dims, asked, strict=True)):
        raise refusal(name, [x], "windows of unequal sizes")
    return getattr(functional, f"{'avg' if average else 'max'}_pool{n}d")(x, kernel)


@handles("pad")
def _pad(func: Any, x: ShardTensor, pad: Any, mode: str = "constant", value: float | None = None) -> ShardTensor:
    if x.dtype is torch.bool:
        raise refusal("pad", [x], "of truth values")
    sides = list(pad)
    behind = x.ndim - 1 - x.axis
    low, high = (sides[2 * behind], sides[2 * behind + 1]) if 2 * behind < len(sides) else (0, 0)
    if 2 * behind < len(sides):
        sides[2 * behind : 2 * behind + 2] = [0, 0]
    length = x.shape[x.axis]
    middle = sliced(x, max(-low, 0), length - max(-high, 0))
    if mode == "constant":
        shapes = ([*x.shape[: x.axis], max(n, 0), *x.shape[x.axis + 1 :]] for n in (low, high))
        edges: list[Tensor] = [x.local.new_full(shape, value or 0) for shape in shapes]
    elif mode in ("reflect", "replicate", "circular") and min(low, high) >= 0:
        near, far = {
            "reflect": ((1, low + 1), (length - 1 - high, length - 1)), "replicate": ((0, 1), (length - 1, length)),
            "circular": ((length - low, length), (0, high)),
        }[mode]  # fmt: skip
        edges = [everywhere(x, *stretch) for stretch in (near, far)]  # as wide as a halo
        if mode == "reflect":
            edges = [edge.flip(x.axis) for edge in edges]
        if mode == "replicate":
            edges = [edge.repeat_interleave(n, x.axis) for edge, n in zip(edges, (low, high), strict=True)]
    else:
        raise refusal(f"pad with mode {mode}", [x])
    whole = middle
    if max(low, high) > 0:
        sizes = list(middle.sizes)
        sizes[0] += max(low, 0)
        sizes[-1] += max(high, 0)
        whole = joined_along([edges[0], middle, edges[1]], x.axis, sizes)
    if not any(sides):
        return whole
    if whole.local.shape[whole.axis]:
        return like(whole, func(whole.local, sides, mode, value))
    one = list(whole.local.shape)  # some kinds refuse nothing at all
    one[whole.axis] = 1
    none: Tensor = func(whole.local.new_zeros(one) + whole.local.sum() * 0, sides, mode, value)
    return like(whole, none.narrow(whole.axis, 0, 0))


@handles("interpolate", "upsample")
def _interpolate(
    func: Any, x: ShardTensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> ShardTensor:  # fmt: skip
    n = x.ndim - 2
    if mode not in ("nearest", "linear", "bilinear", "trilinear") or antialias or x.axis < 2:
        raise refusal(f"interpolate by {mode}", [x])
    scales: list[Any] = [None] * n
    if size is None:
        scales = [float(s) for s in ([scale_factor] * n if isinstance(scale_factor, int | float) else scale_factor)]
        asked = [int(x.shape[2 + d] * s) for d, s in enumerate(scales)]
        scales = [None] * n if recompute_scale_factor else scales
    else:
        asked = _each(size, n)
    at, here = x.axis - 2, list(asked)
    old, new = x.shape[x.axis], asked[at]
    step = 1 / scales[at] if scales[at] else old / new
    starts = [-(-a * new // old) for a, _ in ranges(x.sizes)]
    out = list(zip([0, *starts[1:]], [*starts[1:], new], strict=True))
    sources = [_sources(torch.arange(a, b), old, new, step, mode, bool(align_corners)) for a, b in out]
    want = [(int(low.min()), int(high.max()) + 1) if len(low) else (0, 0) for low, high, _ in sources]
    wide = fetched(x, want)
    low, high, part = sources[x.domain.rank]
    first = want[x.domain.rank][0]
    found = wide.index_select(x.axis, low - first)
    if mode != "nearest":
        share = part.to(found.dtype).reshape([-1] + [1] * (x.ndim - 1 - x.axis))
        found = found * (1 - share) + wide.index_select(x.axis, high - first) * share  # as torch, also of infinities
    here[at] = found.shape[x.axis]
    if n > 1 and any(asked[d] != x.shape[2 + d] for d in range(n) if d != at):
        corners = align_corners if mode != "nearest" else None
        found = _others(func, found, here, [None if d == at else s for d, s in enumerate(scales)], mode, corners)
    return like(x, found, sizes=[b - a for a, b in out])


def _others(func: Any, x: Tensor, size: list[int], scales: list[Any], mode: str, corners: bool | None) -> Tensor:
    """The dimensions that are not cut, by torch; the cut one has its size already."""
    if not x.numel():
        return x.new_zeros((*x.shape[:2], *size)) + x.sum() * 0
    if all(s is None for s in scales):
        return func(x, size=size, mode=mode, align_corners=corners)  # type: ignore[no-any-return]
    factors = [1.0 if s is None else s for s in scales]
    return func(x, scale_factor=factors, mode=mode, align_corners=corners)  # type: ignore[no-any-return]


def _sources(j: Tensor, old: int, new: int, step: float, mode: str, corners: bool) -> tuple[Tensor, Tensor, Tensor]:
    """For outputs, the two inputs each lies between, and how far towards the second."""
    if mode == "nearest":
        low = (j.to(torch.float32) * torch.tensor(step, dtype=torch.float32)).floor().long().clamp(max=old - 1)
        return low, low, torch.zeros(len(j))
    j = j.to(torch.float64)  # times a number it would be of the default precision
    place = j * ((old - 1) / (new - 1) if new > 1 else 0.0) if corners else ((j + 0.5) * step - 0.5).clamp(min=0)
    low = place.floor().long().clamp(max=old - 1)
    return low, (low + 1).clamp(max=old - 1), place - low
