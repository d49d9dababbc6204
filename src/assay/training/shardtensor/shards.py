"""A tensor of which every rank holds a stretch along one dimension, and torch calls that know what to do with it.

`ShardTensor` is a `torch.Tensor` whose shape is that of the whole. Any torch function or method called on one comes to
`__torch_function__`, which looks its name up among the handlers; what has none is refused by name, in one line, and is
never gathered in secret. So is what a handler has no argument for, a call into `out=`, a change in place of what has no
handler for that, and one of a tensor that shares its memory in one process and not here, or the other way round.
Autograd runs on the local tensors; a function of autograd that is given shards itself is refused.

Plain tensors beside shards count as replicated: the same on every rank, with the same, complete gradient on every rank.
Two operations keep that true (Megatron's f and g): `replicated`, whose gradient is the sum over the ranks, and
`summed`, whose gradient goes back as it is. The graph is built alike on all ranks, also where a rank holds nothing, so
that their communication in the backward pass meets.

Needs the extra `torch`, and a process group unless a rank is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from inspect import Signature, signature
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.record.errors import BadInput

Range = tuple[int, int]
HANDLERS: dict[str, Callable[..., Any]] = {}
IN_PLACE: set[str] = set()  # of these names, those whose handlers also change their first argument
# In one process these give the memory of their argument: always, or (SHARING) when they can; a rank may have to copy.
VIEWING = set(
    """
permute transpose swapaxes swapdims t movedim moveaxis view _unsafe_view view_as unsqueeze squeeze expand expand_as
broadcast_to narrow select split split_with_sizes chunk tensor_split unbind getitem detach alias T mT data real positive
pos
""".split()
)
SHARING = VIEWING | set(
    """
reshape flatten reshape_as unflatten iter contiguous to type type_as float double half bfloat16 long int bool cpu cuda
dropout feature_dropout dropout1d dropout2d dropout3d
""".split()
)
COMPLEX = {"size", "dim", "numel", "is_floating_point", "is_complex", "element_size", "len", "hash", "abs", "detach"}
# What autocast gives lower precision; the rest goes by its arguments', as on one device.
LOWERED = set(
    """
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul rmatmul bmm mm mv dot addmm
baddbmm addbmm einsum scaled_dot_product_attention multi_head_attention_forward
""".split()
)
NUMPYS = {"axis": "dim", "keepdims": "keepdim"}  # names of arguments, which torch takes as well
ALONG = "along the cut dimension"  # why a call is refused that would be local along any other


class Unsupported(BadInput, NotImplementedError):  # noqa: N818 - what is lacking, not an error of ours
    """A torch call that has no distributed version."""


class Domain:
    """The ranks that share one sample: those of a process group, all there are unless one is given.

    `sent` counts the bytes that this rank handed to others; `moves`, alike on all ranks, how often rows went to where
    they had not been.
    """

    def __init__(self, group: Any = None) -> None:
        alone = not dist.is_initialized()
        self.group = group
        self.rank, self.size = (0, 1) if alone else (dist.get_rank(group), dist.get_world_size(group))
        self.sent = self.moves = 0

    def all_reduce(self, values: Tensor, how: str = "sum") -> Tensor:
        """A new tensor: sum, max or min over the ranks."""
        return self.reduce_(values.detach().clone(memory_format=torch.contiguous_format), how)

    def reduce_(self, found: Tensor, how: str = "sum") -> Tensor:
        """The same in place. What is no number stays none, also in a max or min: gloo's own may lose it."""
        if self.size > 1 and found.numel():
            given, lost = found, how != "sum" and found.is_floating_point()
            if lost:  # whether it is a number goes beside it
                absent = found.isnan()
                found.masked_fill_(absent, 0.0)
                given = torch.stack([found, absent.to(found.dtype) if how == "max" else -absent.to(found.dtype)])
            dist.all_reduce(given, getattr(dist.ReduceOp, how.upper()), group=self.group)
            self.sent += 2 * (self.size - 1) * given.nbytes // self.size
            if lost:
                found.copy_(given[0].masked_fill_(given[1] != 0, torch.nan))
        return found.detach()  # gloo may hold `found` a moment longer, and autograd copies what somebody else holds

    def send(self, values: Tensor, to: int) -> Any:
        """Begin to send; keep `values` until it is done."""
        self.sent += values.nbytes
        return dist.isend(values, group=self.group, group_dst=to)

    def receive(self, values: Tensor, of: int) -> Any:
        """Begin to receive."""
        return dist.irecv(values, group=self.group, group_src=of)


def ranges(sizes: Iterable[int]) -> list[Range]:
    """Where each rank's stretch begins and ends."""
    ends = list(accumulate(sizes))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def near_equal(length: int, parts: int) -> tuple[int, ...]:
    """Sizes that differ by one at most, the larger first."""
    return tuple(length // parts + (at < length % parts) for at in range(parts))


class Memory:
    """What tensors share; `torn` where it is not theirs alone here exactly if it is in one process."""

    def __init__(self) -> None:
        self.torn = False


class ShardTensor(torch.Tensor):
    """One rank's stretch of a tensor: `local`, cut along dimension `axis` into stretches of `sizes`."""

    local: Tensor
    domain: Domain
    axis: int
    sizes: tuple[int, ...]
    memory: Memory

    @staticmethod
    def __new__(cls, local: Tensor, domain: Domain, axis: int, sizes: Sequence[int]) -> ShardTensor:
        """Wrap what this rank holds."""
        shape = list(local.shape)
        if shape[axis] != sizes[domain.rank]:
            raise Unsupported(f"rank {domain.rank} holds {shape[axis]} along dimension {axis}, of sizes {tuple(sizes)}")
        shape[axis] = sum(sizes)
        # It asks for a gradient as its stretch does: so a function of autograd that takes it for plain is found out.
        self = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=local.dtype, device=local.device, requires_grad=local.requires_grad
        )
        self.local, self.domain, self.axis, self.sizes = local, domain, axis % len(shape), tuple(sizes)
        self.memory = Memory()
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"ShardTensor({tuple(self.shape)}, dimension {self.axis} in {self.sizes}, here {self.local!r})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        given = {NUMPYS.get(key, key): value for key, value in (kwargs or {}).items()}
        if name in ("__get__", "__set__"):
            found = _attribute(func.__self__.__name__, name, *args)
            _remember(func.__self__.__name__, found, [args[0]], moved=False)
            return found
        base, changes = called(func, args, given)
        handler = HANDLERS.get(base)
        operands = [*args, *given.values()]
        shards = [x for x in _flat(operands) if isinstance(x, ShardTensor)]
        if handler is None or (changes and base not in IN_PLACE):
            raise refusal(name, operands)
        if given.get("out") is not None:
            raise refusal(f"{name} with out=", operands)
        try:
            _signature(handler).bind(func, *args, **given)
        except TypeError:
            raise refusal(name, operands, f"with {', '.join(given) or f'{len(args)} arguments'}") from None
        if _of_shards(handler) and not isinstance(next(iter((*args, *given.values()))), ShardTensor):
            raise refusal(name, operands, "its first argument is not cut")
        for x in shards:
            if x.local.is_complex() and base not in COMPLEX:
                raise refusal(name, operands, "of complex numbers")
            with torch._C.DisableTorchFunctionSubclass():
                if x.grad_fn is not None:  # out of a function of autograd, of which its stretch knows nothing
                    raise refusal(name, [x], FUNCTION)
        if changes and (not isinstance(args[0], ShardTensor) or args[0].memory.torn):
            why = "it shares memory in one process that ranks may hold apart" if shards[0] is args[0] else ""
            raise refusal(f"{name} in place", operands, why or "into a plain tensor")
        if base in LOWERED and torch.is_autocast_enabled(shards[0].device.type):
            return _lowered(handler, func, args, given, shards[0].device.type)
        before = sum(x.domain.moves for x in shards)
        found = handler(func, *args, **given)
        if not changes:
            _remember(base, found, shards, sum(x.domain.moves for x in shards) > before)
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise refusal(str(func), args, FUNCTION if "detach" in str(func) else "")

    def full_tensor(self) -> Tensor:
        """The whole on every rank: the only way to gather, and only when asked."""
        return everywhere(self, 0, self.shape[self.axis])


FUNCTION = "inside a function of autograd, such as a re-entrant checkpoint (use_reentrant=False is supported)"


@cache
def _signature(function: Any) -> Signature:
    return signature(function)


@cache
def _of_shards(handler: Any) -> bool:
    """Whether a handler's first argument, behind the function, has to be a shard."""
    return str([*_signature(handler).parameters.values()][1].annotation) == "ShardTensor"


@cache
def _inplace_option(func: Any) -> Signature | None:
    """How a function is called, if it may be asked to work in place."""
    try:
        found = signature(func)
    except (TypeError, ValueError):  # one of torch's own, compiled
        return None
    return found if "inplace" in found.parameters else None


def called(func: Any, args: Any, kwargs: Any) -> tuple[str, bool]:
    """Under which name a call is looked up, and whether it changes its first argument.

    >>> called(torch.Tensor.cumsum_, (), {}), called(torch.Tensor.__iadd__, (), {}), called(torch._softmax, (), {})
    (('cumsum', True), ('iadd', True), ('_softmax', False))
    """
    name: str = func.__name__
    if name.startswith("__") and name.endswith("__"):
        return name[2:-2], name.startswith("__i") and name[2:-2] not in ("invert", "iter", "init", "int", "index")
    if name.endswith("_") and not name.startswith("_"):
        return name[:-1], True
    if (how := _inplace_option(func)) is not None:
        try:
            return name, bool(how.bind(*args, **kwargs).arguments.get("inplace", False))
        except TypeError:
            return name, False
    return name, False


def _flat(values: Any) -> list[Any]:
    return [y for x in values for y in (_flat(x) if isinstance(x, list | tuple) else [x])]


def _remember(base: str, found: Any, shards: Sequence[ShardTensor], moved: bool) -> None:
    """Which tensors share memory here, and whether they would in one process; the same on ranks that hold nothing."""
    for y in _flat(found if isinstance(found, list | tuple) else [found]):
        if not isinstance(y, Tensor):
            continue
        local = y.local if isinstance(y, ShardTensor) else y
        for x in shards:
            if y is x or (isinstance(y, ShardTensor) and y.memory is x.memory):
                continue
            here = bool(torch._C._is_alias_of(local, x.local))  # type: ignore[attr-defined]
            if base not in SHARING and not here:
                continue
            always = base in VIEWING
            if not isinstance(y, ShardTensor):  # a row on every rank: what is written into it is lost to the others
                x.memory.torn = True
                continue
            x.memory.torn |= y.memory.torn or moved or not always or not (here or not local.numel())
            y.memory = x.memory


def _lowered(handler: Any, func: Any, args: Any, kwargs: Any, device: str) -> Any:
    """As autocast does it: in its precision, and without it inside."""
    kind = torch.get_autocast_dtype(device)

    def lower(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return type(x)(lower(y) for y in x)
        return x.to(kind) if isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64 else x

    with torch.autocast(device, enabled=False):
        return handler(func, *(lower(x) for x in args), **{key: lower(x) for key, x in kwargs.items()})


def refusal(name: str, args: Iterable[Any], why: str = "") -> Unsupported:
    """That a call is not supported, in one line, with the shards it was called on and what may be done about it."""
    tensors = _flat(args)
    shown = [
        f"{tuple(x.shape)} cut along {x.axis}" if isinstance(x, ShardTensor) else f"{tuple(x.shape)}"
        for x in tensors
        if isinstance(x, Tensor)
    ]
    told = f"ShardTensor does not support {name.strip('_')} of {' and '.join(shown) or 'shards'}"
    cure = "redistributed(x, dim) to cut another dimension" if why == ALONG else "use another operation"
    return Unsupported(f"{told}{': ' + why if why else ''}; {cure}, or x.full_tensor() to gather it")


LOCAL = {"requires_grad", "is_leaf", "grad_fn", "retains_grad"}
GLOBAL = {"shape", "dtype", "device", "ndim", "layout", "itemsize", "nbytes", "names", "_backward_hooks", "output_nr"}


def _attribute(name: str, which: str, x: ShardTensor, *value: Any) -> Any:
    if which == "__set__":
        if name not in ("requires_grad", "grad"):
            raise refusal(f"setting {name}", [x])
        given = value[0].local if isinstance(value[0], ShardTensor) else value[0]
        setattr(x.local, name, given)
        if name == "requires_grad":
            asks(x)
        return None
    if name == "grad":
        return None if x.local.grad is None else like(x, x.local.grad)
    if name in LOCAL:
        return getattr(x.local, name)
    if name == "mT" or (name == "T" and x.ndim == 2):
        return x.transpose(-2, -1)
    if name == "data":
        return like(x, x.local.data)
    if name not in GLOBAL and not name.startswith("is_"):
        raise refusal(name, [x])
    with torch._C.DisableTorchFunctionSubclass():
        return getattr(x, name)


def asks(x: ShardTensor) -> None:
    """Let a shard ask for a gradient if its stretch does."""
    with torch._C.DisableTorchFunctionSubclass():
        x.requires_grad = x.local.requires_grad


def handles(*names: str, in_place: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Name the torch functions that a handler stands for; it is called with the function and its arguments.

    What changes its first argument in place comes to it only if it says that it can do that.
    """

    def named(handler: Callable[..., Any]) -> Callable[..., Any]:
        HANDLERS.update(dict.fromkeys(names, handler))
        if in_place:
            IN_PLACE.update(names)
        return handler

    return named


def like(x: ShardTensor, local: Tensor, axis: int | None = None, sizes: Sequence[int] | None = None) -> ShardTensor:
    """A result on the same ranks, cut as `x` is unless said otherwise."""
    return ShardTensor(local, x.domain, x.axis if axis is None else axis, x.sizes if sizes is None else sizes)


def shard(x: Tensor, dim: int, domain: Domain, sizes: Sequence[int] | None = None) -> ShardTensor:
    """This rank's stretch of a tensor that all ranks have; near-equal stretches unless sizes are given.

    Raises:
        BadInput: the sizes are not one for each rank, or do not add up.
    """
    length = x.shape[dim]
    sizes = near_equal(length, domain.size) if sizes is None else tuple(sizes)
    if len(sizes) != domain.size or sum(sizes) != length or min(sizes) < 0:
        raise BadInput(f"sizes {sizes} of dimension {dim}; {domain.size} that add up to {length} expected")
    return ShardTensor(mine(x, dim, domain, sizes).clone(), domain, dim % x.ndim, sizes)


def mine(x: Tensor, dim: int, domain: Domain, sizes: Sequence[int]) -> Tensor:
    """This rank's stretch of a plain tensor, as a view."""
    start, stop = ranges(sizes)[domain.rank]
    return x.narrow(dim, start, stop - start)


class _Replicated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, domain: Domain) -> Tensor:
        ctx.domain = domain
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.domain.all_reduce(gradient), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, domain: Domain) -> Tensor:
        return domain.all_reduce(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def replicated(x: Tensor, domain: Domain) -> Tensor:
    """A plain tensor about to be used with shards: its gradient is the sum of what the ranks find."""
    return _Replicated.apply(x, domain) if x.requires_grad and torch.is_grad_enabled() else x


def stretch(x: Tensor, dim: int, part: Range, domain: Domain) -> Tensor:
    """A stretch of a plain tensor about to be used with shards; the tensor's gradient is made of all ranks'."""
    return replicated(x, domain).narrow(dim, part[0], part[1] - part[0])


def own_part(x: Tensor, dim: int, domain: Domain, sizes: Sequence[int]) -> Tensor:
    """This rank's stretch of a plain tensor about to be used with shards."""
    return stretch(x, dim, ranges(sizes)[domain.rank], domain)


def summed(x: Tensor, domain: Domain) -> Tensor:
    """The sum over the ranks, a plain tensor; of truth values whether it is true anywhere."""
    if x.dtype is torch.bool:
        return domain.all_reduce(x.to(torch.int8)).bool()
    return _Summed.apply(x, domain)  # type: ignore[no-any-return]


def everywhere(x: ShardTensor, start: int, stop: int) -> Tensor:
    """A stretch of the whole on every rank: what is elsewhere is zero here, and all is summed."""
    first, last = ranges(x.sizes)[x.domain.rank]
    a, b = max(start, first), min(stop, last)
    part = x.local.narrow(x.axis, min(max(a - first, 0), last - first), max(b - a, 0))
    before = a - start if a < b else 0
    margins = [0, 0] * (x.ndim - 1 - x.axis) + [before, stop - start - before - part.shape[x.axis]]
    return summed(torch.nn.functional.pad(part, margins), x.domain)


def overlap(a: Range, b: Range) -> Range:
    """What two stretches share; empty where the end is not behind the start."""
    return max(a[0], b[0]), min(a[1], b[1])


def pull(local: Tensor, dim: int, have: Sequence[Range], want: Sequence[Range], domain: Domain) -> dict[int, Tensor]:
    """By their rank, the pieces of others that this rank wants; every rank sends only what is wanted of it."""
    here, works, kept, got = domain.rank, [], [], {}
    for other in range(domain.size):
        if other == here:
            continue
        a, b = overlap(have[here], want[other])
        if a < b:
            kept.append(local.narrow(dim, a - have[here][0], b - a).contiguous())
            works.append(domain.send(kept[-1], other))
        a, b = overlap(have[other], want[here])
        if a < b:
            shape = list(local.shape)
            shape[dim] = b - a
            got[other] = local.new_empty(shape)
            works.append(domain.receive(got[other], other))
    for work in works:
        work.wait()
    return got


def push(gradient: Tensor, dim: int, have: Sequence[Range], want: Sequence[Range], domain: Domain) -> Tensor:
    """The way back of `pull`: gradients of what a rank wanted are added where it lies; `gradient` may change."""
    here = domain.rank
    got = pull(gradient, dim, want, have, domain)
    shape = list(gradient.shape)
    shape[dim] = have[here][1] - have[here][0]
    a, b = overlap(have[here], want[here])
    if a < b and b - a == shape[dim]:  # all of it is at hand: add the others' where it lies
        found = gradient.narrow(dim, a - want[here][0], b - a)
    else:
        found = gradient.new_zeros(shape)
        if a < b:
            found.narrow(dim, a - have[here][0], b - a).add_(gradient.narrow(dim, a - want[here][0], b - a))
    for other, piece in got.items():
        a, b = overlap(have[here], want[other])
        found.narrow(dim, a - have[here][0], b - a).add_(piece)
    return found


def joined(
    local: Tensor, got: dict[int, Tensor], dim: int, have: Sequence[Range], want: Range, here: int,
    zeros: Range = (0, 0),
) -> Tensor:  # fmt: skip
    """Own and others' pieces in their order, between so many rows of zeros."""
    a, b = overlap(have[here], want)
    parts = dict(got)
    if a < b or not got:
        parts[here] = local.narrow(dim, min(max(a - have[here][0], 0), local.shape[dim]), max(b - a, 0))
    ordered = [parts[rank] for rank in sorted(parts, key=lambda rank: have[rank])]
    if any(zeros):
        shape = list(local.shape)
        before, behind = (local.new_zeros([*shape[:dim], n, *shape[dim + 1 :]]) for n in zeros)
        ordered = [before, *ordered, behind]
    return ordered[0] if len(ordered) == 1 else torch.cat(ordered, dim)


class _Fetched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, dim: int, have: Any, want: Any, domain: Domain) -> Tensor:
        ctx.plan = dim, have, want, domain
        got = pull(local, dim, have, want, domain)
        return joined(local, got, dim, have, want[domain.rank], domain.rank).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        dim, have, want, domain = ctx.plan
        return push(gradient.clone(), dim, have, want, domain), None, None, None, None


def fetched(x: ShardTensor, want: Sequence[Range]) -> Tensor:
    """The stretch of the whole that each rank wants, wherever its parts lie; `want` is known to all."""
    have = ranges(x.sizes)
    if list(want) == have:
        return x.local
    x.domain.moves += 1
    return _Fetched.apply(x.local, x.axis, have, list(want), x.domain)  # type: ignore[no-any-return]


def resized(x: ShardTensor, sizes: Sequence[int]) -> ShardTensor:
    """The same tensor in stretches of other sizes."""
    return x if tuple(sizes) == x.sizes else like(x, fetched(x, ranges(sizes)), sizes=sizes)


class _Turned(torch.autograd.Function):
    """From a cut along one dimension to a cut along another, by a ragged all-to-all."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, old: int, olds: Any, new: int, news: Any, domain: Domain) -> Tensor:
        ctx.plan = old, olds, new, news, domain
        return _turn(local, old, olds, new, news, domain)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        old, olds, new, news, domain = ctx.plan
        return _turn(gradient, new, news, old, olds, domain), None, None, None, None, None


def _turn(local: Tensor, old: int, olds: Any, new: int, news: Any, domain: Domain) -> Tensor:
    leaving = [part.contiguous() for part in local.split(list(news), new)]
    parts, works = {domain.rank: leaving[domain.rank]}, []
    for other in range(domain.size):
        if other == domain.rank:
            continue
        shape = list(local.shape)
        shape[old], shape[new] = olds[other], news[domain.rank]
        parts[other] = local.new_empty(shape)
        works += [domain.send(leaving[other], other)] if leaving[other].numel() else []
        works += [domain.receive(parts[other], other)] if parts[other].numel() else []
    for work in works:
        work.wait()
    return torch.cat([parts[rank] for rank in range(domain.size)], old)


def redistributed(x: ShardTensor, axis: int, sizes: Sequence[int] | None = None) -> ShardTensor:
    """Cut along another dimension; bytes move, no rank ever holds the whole.

    >>> x = shard(torch.arange(6.0).reshape(2, 3), 0, Domain())
    >>> redistributed(x, 1).axis
    1
    """
    axis %= x.ndim
    sizes = near_equal(x.shape[axis], x.domain.size) if sizes is None else tuple(sizes)
    if axis == x.axis:
        return resized(x, sizes)
    x.domain.moves += 1
    return like(x, _Turned.apply(x.local, x.axis, x.sizes, axis, sizes, x.domain), axis, sizes)
