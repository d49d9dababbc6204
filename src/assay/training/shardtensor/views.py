"""Calls that move, cut and join: the cut dimension is followed to where it goes, and what must cross ranks crosses."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import torch
from torch import Tensor

from assay.training.shardtensor.pointwise import aligned, lead
from assay.training.shardtensor.shards import (
    ALONG,
    ShardTensor,
    everywhere,
    fetched,
    handles,
    like,
    overlap,
    ranges,
    redistributed,
    refusal,
    resized,
    stretch,
)  # fmt: skip


def _listed(values: Any) -> list[int]:
    return list(values[0]) if len(values) == 1 and not isinstance(values[0], int) else list(values)


@handles("permute", "transpose", "swapaxes", "swapdims", "t", "movedim", "moveaxis")
def _permute(func: Any, x: ShardTensor, *args: Any, **kwargs: Any) -> ShardTensor:
    numbered = torch.empty(tuple(range(1, x.ndim + 1)), device="meta")  # each dimension as long as its number
    order = [n - 1 for n in func(numbered, *args, **kwargs).shape]
    return like(x, x.local.permute(order), order.index(x.axis))


@handles("reshape", "view", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as")
def _reshape(func: Any, x: ShardTensor, *args: Any, **kwargs: Any) -> ShardTensor:
    name = func.__name__
    if args and isinstance(args[0], torch.dtype):
        raise refusal("view as another dtype", [x])
    if name.endswith("_as"):
        shape = list(args[0].shape)
    elif name in ("flatten", "unflatten"):
        shape = list(func(torch.empty(x.shape, device="meta"), *args, **kwargs).shape)
    else:
        shape = list(torch.empty(x.shape, device="meta").reshape(_listed(args or tuple(kwargs.values()))).shape)
    return reshaped(x, shape, name)


def reshaped(x: ShardTensor, shape: list[int], name: str) -> ShardTensor:
    """The cut must stay outermost among what it is merged with; a split moves its borders to whole rows."""
    outer, inner = prod(x.shape[: x.axis]), prod(x.shape[x.axis + 1 :])
    fitting = [j for j in range(len(shape)) if prod(shape[:j]) == outer]
    fitting = [j for j in fitting if shape[j] > 1] or fitting[-1:]
    if not fitting:  # merged behind others: cut along the outermost of them first, if all ranks get a share of it
        first = max(d for d in range(x.axis) if any(prod(shape[:j]) == prod(x.shape[:d]) for j in range(len(shape))))
        if x.shape[first] < x.domain.size:
            raise refusal(name, [x], f"in {tuple(shape)} the stretches of ranks would be interleaved")
        return reshaped(redistributed(x, first), shape, name)
    at = fitting[0]
    behind = prod(shape[at + 1 :])
    whole = behind // gcd(behind, inner) if inner and behind else 1  # elements of the cut that make whole new rows
    if any(stop % whole for _, stop in ranges(x.sizes)):
        ends = [whole * round(stop / whole) for _, stop in ranges(x.sizes)]
        x = resized(x, [b - a for a, b in zip([0, *ends[:-1]], ends, strict=True)])
    sizes = [n * inner // behind for n in x.sizes] if behind else x.sizes
    shape[at] = sizes[x.domain.rank]
    return like(x, x.local.reshape(shape), at, sizes)


@handles("unsqueeze")
def _unsqueeze(func: Any, x: ShardTensor, dim: int) -> ShardTensor:
    dim %= x.ndim + 1
    return like(x, x.local.unsqueeze(dim), x.axis + (dim <= x.axis))


@handles("squeeze")
def _squeeze(func: Any, x: ShardTensor, *dims: Any, **kwargs: Any) -> ShardTensor:
    given = _listed(dims or tuple(kwargs.values())) if dims or kwargs else range(x.ndim)
    gone = [d % x.ndim for d in given if x.shape[d] == 1 and d % x.ndim != x.axis]
    if x.shape[x.axis] == 1 and (x.axis in [d % x.ndim for d in given]):
        raise refusal("squeeze", [x], "of the cut dimension")
    return like(x, x.local.squeeze(gone), x.axis - sum(d < x.axis for d in gone))


@handles("expand", "expand_as", "broadcast_to")
def _expand(func: Any, x: ShardTensor, *sizes: Any, **kwargs: Any) -> ShardTensor:
    shape = list(sizes[0].shape) if func.__name__ == "expand_as" else _listed(sizes or tuple(kwargs.values()))
    at = len(shape) - x.ndim + x.axis
    if shape[at] not in (-1, x.shape[x.axis]):
        raise refusal("expand", [x], "of the cut dimension")
    shape[at] = x.sizes[x.domain.rank]
    return like(x, x.local.expand(shape), at)


@handles("repeat", "tile")
def _repeat(func: Any, x: ShardTensor, *times: Any) -> ShardTensor:
    counts = _listed(times)
    if len(counts) < x.ndim:
        counts = [1] * (x.ndim - len(counts)) + counts
    at = len(counts) - x.ndim + x.axis
    if counts[at] != 1:
        raise refusal(func.__name__, [x], "of the cut dimension")
    return like(x, x.local.repeat(counts), at)


@handles("repeat_interleave")
def _repeat_interleave(func: Any, x: ShardTensor, repeats: Any, dim: int | None = None, **kwargs: Any) -> ShardTensor:
    if dim is None or not isinstance(repeats, int):
        raise refusal("repeat_interleave", [x], "without dim=, or with unequal repeats")
    times = repeats if dim % x.ndim == x.axis else 1
    return like(x, x.local.repeat_interleave(repeats, dim), sizes=[times * n for n in x.sizes])


@handles("flip")
def _flip(func: Any, x: ShardTensor, *dims: Any, **kwargs: Any) -> ShardTensor:
    given = [d % x.ndim for d in _listed(dims or tuple(kwargs.values()))]
    if x.axis in given:
        raise refusal("flip", [x], ALONG)
    return like(x, x.local.flip(given))


@handles("roll")
def _roll(func: Any, x: ShardTensor, shifts: Any, dims: Any = None) -> ShardTensor:
    if dims is None:
        raise refusal("roll", [x], "without dims=")
    pairs = [(shifts, dims)] if isinstance(dims, int) else list(zip(shifts, dims, strict=True))
    for by, dim in pairs:
        if dim % x.ndim != x.axis:
            x = like(x, x.local.roll(by, dim))
            continue
        cut = -by % max(x.shape[x.axis], 1)
        if cut:
            x = joined_along([sliced(x, cut, None), sliced(x, 0, cut)], x.axis, x.sizes)
    return x


def sliced(x: ShardTensor, start: int | None, stop: int | None, step: int = 1) -> ShardTensor:
    """A stretch of the cut dimension: every rank keeps what it has of it."""
    first, last, step = slice(start, stop, step).indices(x.shape[x.axis])
    keeps = []
    for a, b in ranges(x.sizes):
        low = first + -(-max(a - first, 0) // step) * step  # the first one at or behind a
        high = min(b, last)
        keeps.append((low - a, max(0, -(-(high - low) // step)), b - a))
    begin, count, here = keeps[x.domain.rank]
    index: list[Any] = [slice(None)] * x.ndim
    index[x.axis] = slice(min(begin, here), min(begin, here) + count * step, step) if count else slice(0, 0)
    return like(x, x.local[tuple(index)], sizes=[n for _, n, _ in keeps])


@handles("narrow")
def _narrow(func: Any, x: ShardTensor, dim: int, start: int, length: int) -> ShardTensor:
    if dim % x.ndim == x.axis:
        return sliced(x, int(start), int(start) + length)
    return like(x, x.local.narrow(dim, start, length))


@handles("select")
def _select(func: Any, x: ShardTensor, dim: int, index: int) -> Any:
    return x[(slice(None),) * (dim % x.ndim) + (index,)]


@handles("split", "split_with_sizes", "chunk", "tensor_split", "unbind")
def _split(func: Any, x: ShardTensor, *args: Any, **kwargs: Any) -> Any:
    name = func.__name__
    dim = kwargs.get("dim", args[-1] if name == "unbind" and args else args[1] if len(args) > 1 else 0)
    pieces = func(torch.empty(x.shape, device="meta"), *args, **kwargs)
    if dim % x.ndim != x.axis:
        shift = name == "unbind" and dim % x.ndim < x.axis
        return tuple(like(x, part, x.axis - shift) for part in func(x.local, *args, **kwargs))
    if name == "unbind":
        return tuple(_select(func, x, dim, i) for i in range(x.shape[x.axis]))
    ends = ranges(piece.shape[dim] for piece in pieces)
    return tuple(sliced(x, a, b) for a, b in ends)


@handles("cat", "concat", "concatenate")
def _cat(func: Any, tensors: Any, dim: int = 0, **kwargs: Any) -> ShardTensor:
    given, tensors = tensors, [x for x in tensors if x.ndim > 1 or x.numel()]
    if not any(isinstance(y, ShardTensor) for y in tensors):
        raise refusal("cat", given, "nothing of them is cut")
    x = next(y for y in tensors if isinstance(y, ShardTensor))
    dim %= x.ndim
    if dim != x.axis:
        return like(x, torch.cat([x.local if y is x else aligned(x, y, "cat") for y in tensors], dim))
    shards = [y for y in tensors if isinstance(y, ShardTensor)]
    if any(y.axis != dim for y in shards):
        raise refusal("cat", tensors, "they are cut along different dimensions")
    sizes = [sum(n) for n in zip(*(y.sizes for y in shards), strict=True)]
    at = [isinstance(y, ShardTensor) for y in tensors].index(True)
    sizes[0] += sum(y.shape[dim] for y in tensors[:at])
    sizes[-1] += sum(y.shape[dim] for y in tensors[at:] if not isinstance(y, ShardTensor))
    return joined_along(tensors, dim, sizes)


def joined_along(tensors: Any, dim: int, sizes: Any) -> ShardTensor:
    """One after the other along the cut dimension, in stretches of the sizes given."""
    x = next(y for y in tensors if isinstance(y, ShardTensor))
    target, parts = ranges(sizes), []
    for y, (start, stop) in zip(tensors, ranges(y.shape[dim] for y in tensors), strict=True):
        want = []
        for wanted in target:
            a, b = overlap(wanted, (start, stop))
            want.append((a - start, b - start) if a < b else (0, 0))
        if isinstance(y, ShardTensor):
            parts.append(fetched(y, want))
        else:  # on ranks that keep none of it, too: its gradient is summed over all
            parts.append(stretch(y, dim, want[x.domain.rank], x.domain))
    return like(x, torch.cat(parts, dim), dim, sizes)


@handles("stack")
def _stack(func: Any, tensors: Any, dim: int = 0) -> ShardTensor:
    x = lead(tensors)
    dim %= x.ndim + 1
    local = torch.stack([x.local if y is x else aligned(x, y, "stack") for y in tensors], dim)
    return like(x, local, x.axis + (dim <= x.axis))


@handles("getitem")
def _getitem(func: Any, x: Any, index: Any) -> Any:
    index = list(index) if isinstance(index, tuple) else [index]
    index = [torch.tensor(i) if isinstance(i, list) else i for i in index]
    tensors = [i for i in index if isinstance(i, Tensor)]
    if any(i.dtype in (torch.bool, torch.uint8) for i in tensors):
        raise refusal("indexing by a mask", [x, *tensors], "how many are left is not known")
    if any(i is Ellipsis for i in index):
        at = next(n for n, i in enumerate(index) if i is Ellipsis)
        index[at : at + 1] = [slice(None)] * (x.ndim - sum(i is not None and i is not Ellipsis for i in index))
    index += [slice(None)] * (x.ndim - sum(i is not None for i in index))
    if tensors:
        return _by_numbers(x, index, tensors)
    at = [n for n, i in enumerate(index) if i is not None][x.axis]
    chosen, index[at] = index[at], slice(None)
    if isinstance(chosen, slice):
        x = x if chosen == slice(None) else sliced(x, chosen.start, chosen.stop, chosen.step or 1)
        local = x.local[tuple(index)]
        return like(x, local, sum(not isinstance(i, int) for i in index[:at]))
    one = int(chosen) % x.shape[x.axis]
    index[at] = 0
    return everywhere(x, one, one + 1)[tuple(index)]


def _by_numbers(x: Any, index: list[Any], asked: list[Tensor]) -> ShardTensor:
    """Rows by their numbers, along other dimensions than the cut one."""
    if not isinstance(x, ShardTensor) or any(isinstance(i, ShardTensor) for i in asked):
        raise refusal("indexing", [x, *asked], "by shards")
    if any(i is None or isinstance(i, int) for i in index) or (len(asked) > 1 and not all(i.ndim for i in asked)):
        raise refusal("indexing", [x, *asked], "numbers or None beside tensors")
    if index[x.axis] != slice(None):
        raise refusal("indexing", [x, *asked], ALONG)
    spots = [n for n, i in enumerate(index) if isinstance(i, Tensor)]
    together = spots == list(range(spots[0], spots[-1] + 1))
    ahead = torch.broadcast_tensors(*asked)[0].ndim if not together or spots[0] < x.axis else 0
    return like(x, x.local[tuple(index)], x.axis - sum(n < x.axis for n in spots) + ahead)


@handles("index_select")
def _index_select(func: Any, x: Any, dim: int, index: Tensor) -> Any:
    if not x.ndim:
        raise refusal("index_select", [x, index])
    return _getitem(func, x, (slice(None),) * (dim % x.ndim) + (index,))


@handles("gather")
def _gather(func: Any, x: Any, dim: int, index: Any) -> Any:
    if not isinstance(x, ShardTensor) or not isinstance(index, ShardTensor) or index.axis != x.axis:
        raise refusal("gather", [x, index], "both must be cut along one dimension")
    if index.ndim != x.ndim or index.dtype not in (torch.int32, torch.int64):  # torch lets pass what is empty
        raise refusal("gather", [x, index], "numbers of as many dimensions are looked up")
    if dim % x.ndim == x.axis:
        raise refusal("gather", [x, index], ALONG)
    if index.shape[x.axis] != x.shape[x.axis]:
        raise refusal("gather", [x, index], "they differ in length along the cut dimension")
    return like(x, x.local.gather(dim, resized(index, x.sizes).local))


@handles("iter")
def _iterate(func: Any, x: ShardTensor) -> Any:
    return iter(_split(torch.Tensor.unbind, x, 0))


@handles("pixel_shuffle")
def _pixel_shuffle(func: Any, x: ShardTensor, upscale_factor: int) -> Any:
    r = upscale_factor
    *batch, c, h, w = x.shape
    k = len(batch)
    apart = x.reshape(*batch, c // r**2, r, r, h, w)
    return apart.permute(*range(k), k, k + 3, k + 1, k + 4, k + 2).reshape(*batch, c // r**2, h * r, w * r)
