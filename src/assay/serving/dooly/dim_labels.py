"""Where a tensor's sizes come from: the model's configuration, the number of tokens, or the number of requests.

Run a model once on `meta` tensors (a shape, no content, so that 70 billion parameters cost nothing) and watch every
operation. Integers carry a label, tensors one label for each dimension, and each operation passes them on by rule. An
operation's signature is then its name with the configuration's sizes as numbers and the request's sizes as symbols:
two models that multiply [tokens, 4096] by [4096, 6144] have one signature, and it needs timing once.

A product of sizes remembers its factors, so that reshaping [tokens, 32, 128] to [tokens * 32, 128] and back loses
nothing. Where a rule cannot tell, the dimension stays without a label, which only costs a measurement.

>>> tokens, heads = Labelled(7, NUM_TOK), Labelled(32, MODEL_CONFIG)
>>> (tokens * heads).label, (tokens * heads // heads).label
('MIX', 'NUM_TOK')
"""

# torch's own functions carry no types.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.serving.dooly.torch_model import Shape

NUM_TOK, NUM_REQ, MODEL_CONFIG, MIX = "NUM_TOK", "NUM_REQ", "MODEL_CONFIG", "MIX"
Label = str | None
Factors = dict[str, int]

# Large primes: no size of a model, and no product of its sizes, is one of them.
TRACE_TOKENS, TRACE_REQUESTS = 1511, 1013
SYMBOLS = {NUM_TOK: "T", NUM_REQ: "R"}


def merge(a: Label, b: Label) -> Label:
    """The label of a size that two sizes agree on, or were added to.

    >>> merge(NUM_TOK, None), merge(MODEL_CONFIG, MODEL_CONFIG), merge(NUM_TOK, MODEL_CONFIG), merge(NUM_REQ, NUM_TOK)
    ('NUM_TOK', 'MODEL_CONFIG', 'MIX', None)
    """
    if a == b or b is None:
        return a
    if a is None:
        return b
    if {a, b} == {NUM_TOK, NUM_REQ}:
        return None  # conservative: it may be either
    return MIX


class Labelled(int):
    """An integer that knows where it comes from, and of which factors it is the product."""

    label: Label
    factors: Factors

    def __new__(cls, value: int, label: Label = None, factors: Mapping[str, int] | None = None) -> Labelled:
        """Make one; without factors it is its own only factor."""
        made = super().__new__(cls, value)
        made.label = label
        made.factors = dict(factors) if factors is not None else ({label: int(value)} if label else {})
        return made

    def __mul__(self, other: Any) -> Any:
        return NotImplemented if not isinstance(other, int) else product([self, _labelled(other)])

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return NotImplemented if not isinstance(other, int) else quotient(self, _labelled(other))

    def _sum(self, value: int, other: int) -> Labelled:
        return Labelled(value, merge(self.label, _labelled(other).label))

    def __add__(self, other: Any) -> Any:
        return NotImplemented if not isinstance(other, int) else self._sum(int(self) + int(other), other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if not isinstance(other, int) else self._sum(int(self) - int(other), other)


def _labelled(value: int) -> Labelled:
    return value if isinstance(value, Labelled) else Labelled(value)


def product(sizes: Iterable[Labelled]) -> Labelled:
    """The product of sizes, with the factors of all.

    >>> product([Labelled(6, NUM_TOK), Labelled(8, MODEL_CONFIG), Labelled(5, MODEL_CONFIG)]).factors
    {'NUM_TOK': 6, 'MODEL_CONFIG': 40}
    """
    value, factors = 1, dict[str, int]()
    label: Label = None
    counted = []
    for size in sizes:
        value *= int(size)
        if int(size) != 1 or size.label:
            counted.append(size)
    for size in counted:
        label = merge(label, size.label)
        for name, factor in size.factors.items():
            factors[name] = factors.get(name, 1) * factor
    if any(size.label is None for size in counted):  # a factor of unknown origin: the history would be wrong
        return Labelled(value, None if label == MIX else label, {})
    return Labelled(value, label, factors)


def quotient(size: Labelled, divisor: Labelled) -> Labelled:
    """Undo a product where the factor history allows it."""
    value = int(size) // int(divisor)
    if int(size) % int(divisor):
        return Labelled(value, merge(size.label, divisor.label))
    labels = [divisor.label] if divisor.label in size.factors else list(size.factors)
    for label in labels:
        if size.factors[label] % int(divisor) == 0:
            factors = {**size.factors, label: size.factors[label] // int(divisor)}
            left = {name: factor for name, factor in factors.items() if factor > 1}
            if not left:
                return Labelled(value, label)
            return Labelled(value, next(iter(left)) if len(left) == 1 else MIX, left)
    return Labelled(value)


def reshape(sizes: Sequence[Labelled], target: Sequence[int]) -> list[Labelled]:
    """The labels of a view: dimensions are grouped where their products meet, and each group is joined or split.

    >>> [d.label for d in reshape([Labelled(7, NUM_TOK), Labelled(4096, MODEL_CONFIG)], [7, 32, 128])]
    ['NUM_TOK', 'MODEL_CONFIG', 'MODEL_CONFIG']
    """
    out: list[Labelled] = []
    i = j = 0
    while i < len(sizes) or j < len(target):
        first_i, first_j = i, j
        left, right = 1, 1
        if i < len(sizes):
            left, i = int(sizes[i]), i + 1
        if j < len(target):
            right, j = int(target[j]), j + 1
        while left != right:
            if left < right:
                left, i = left * int(sizes[i]), i + 1
            else:
                right, j = right * int(target[j]), j + 1
        out += _split(product(sizes[first_i:i]), target[first_j:j])
    return out


def _split(whole: Labelled, target: Sequence[int]) -> list[Labelled]:
    if len(target) == 1:
        return [Labelled(int(target[0]), whole.label, whole.factors)]
    parts: list[Labelled] = []
    rest = whole
    for size in target:
        if size == 1:
            parts.append(Labelled(1))
            continue
        exact: list[Label] = [name for name, factor in rest.factors.items() if factor == size]
        divisible: list[Label] = [name for name, factor in rest.factors.items() if factor % size == 0]
        mixed = rest.label == MIX and int(rest) == size
        label: Label = (exact or divisible or [None])[0]
        if len(divisible) > 1 and not exact:
            label = None  # both the request and the model could have given this factor
        part = Labelled(size, rest.label, rest.factors) if mixed else Labelled(size, label)
        parts.append(part)
        rest = quotient(rest, part)
    return parts


# --------------------------------------------------------------------------------------------- signatures


@dataclass(frozen=True)
class Signature:
    """One kind of operation: its name, its inputs' sizes (numbers, or symbols of the request), constants, layout.

    >>> str(Signature("mm", (("T", 4096), (4096, 6144)), (), "bfloat16"))
    'mm(T×4096, 4096×6144; bfloat16)'
    """

    op: str
    inputs: tuple[tuple[int | str, ...], ...]
    constants: tuple[Any, ...] = ()
    dtype: str = ""
    backend: str = ""
    orders: tuple[tuple[int, ...], ...] = ()  # dimensions from the outermost in memory; () where contiguous

    def __str__(self) -> str:
        sizes = ", ".join("×".join(map(str, dims)) for dims in self.inputs)
        rest = [str(c) for c in self.constants] + [part for part in (self.dtype, self.backend) if part]
        return f"{self.op}({sizes}; {', '.join(rest)})"


@dataclass
class Call:
    """An operation as it was seen: the signature and the labels of its inputs and outputs."""

    signature: Signature
    inputs: tuple[tuple[Label, ...], ...]
    outputs: tuple[tuple[Label, ...], ...]


@dataclass
class Trace:
    """What one pass did, in order."""

    calls: list[Call] = field(default_factory=list)
    unruled: set[str] = field(default_factory=set)  # operations without a rule: their outputs have no labels

    def counts(self) -> dict[Signature, int]:
        """How often each signature occurred."""
        counts: dict[Signature, int] = {}
        for call in self.calls:
            counts[call.signature] = counts.get(call.signature, 0) + 1
        return counts


def _symbol(size: Labelled) -> int | str:
    if size.label == MODEL_CONFIG or (size.label is None and int(size) == 1):
        return int(size)
    if size.label == MIX and size.factors:
        config = size.factors.get(MODEL_CONFIG, 1)
        return "".join(SYMBOLS[name] for name in size.factors if name in SYMBOLS) + f"*{config}"
    return SYMBOLS.get(size.label or "", f"?{int(size)}")


# ------------------------------------------------------------------------------------------------- rules

VIEWS = {"t", "transpose", "view", "_unsafe_view", "split", "split_with_sizes", "slice", "unsqueeze", "squeeze",
         "expand", "detach", "alias", "select", "permute", "reshape"}  # fmt: skip
POINTWISE = {"add", "sub", "mul", "div", "silu", "neg", "clone", "_to_copy", "copy", "rsqrt", "softmax", "_softmax",
             "contiguous", "zeros_like", "empty_like", "fill", "lt", "le", "gt", "ge", "bitwise_and"}  # fmt: skip


def _broadcast(inputs: Sequence[Sequence[Labelled]], rank: int) -> list[Labelled]:
    out = [Labelled(1) for _ in range(rank)]
    for dims in inputs:
        for offset, size in enumerate(reversed(dims)):
            at = rank - 1 - offset
            if int(size) == 1:
                continue
            if int(out[at]) == 1:
                out[at] = size
            else:
                label = merge(out[at].label, size.label)
                out[at] = Labelled(int(size), label, size.factors if size.label == label else out[at].factors)
    return out


def propagate(op: str, inputs: Sequence[Sequence[Labelled]], args: Sequence[Any], shape: Sequence[int],
              index: int = 0) -> list[Labelled] | None:  # fmt: skip
    """The labels of an output of `shape`; None where there is no rule."""
    x = list(inputs[0]) if inputs else []
    if op in POINTWISE:
        return _broadcast(inputs, len(shape))
    match op:
        case "mm":
            return [inputs[0][0], inputs[1][1]]
        case "bmm":
            return [_broadcast([[inputs[0][0]], [inputs[1][0]]], 1)[0], inputs[0][1], inputs[1][2]]
        case "t":
            return x[::-1]
        case "transpose":
            a, b = args[1] % len(x), args[2] % len(x)
            x[a], x[b] = x[b], x[a]
            return x
        case "permute":
            return [x[d] for d in args[1]]
        case "view" | "_unsafe_view" | "reshape":
            return reshape(x, shape)
        case "unsqueeze":
            at = args[1] % (len(x) + 1)
            return [*x[:at], Labelled(1), *x[at:]]
        case "detach" | "alias" | "expand" | "slice" | "split" | "split_with_sizes":
            return _resized(x, shape)
        case "select":
            return [d for i, d in enumerate(x) if i != args[1] % len(x)]
        case "index":  # one index tensor for the first dimension
            return [*inputs[1], *x[1:]]
        case "index_put" | "index_put_":
            return x
        case "cat":
            return _concatenated(inputs, args, shape)
        case "add_rms_norm" | "experts":
            return x
        case "silu_mul":
            return [x[0], Labelled(shape[1], x[1].label)]
        case "rope_write":
            return [x[0], Labelled(shape[1], MODEL_CONFIG), inputs[1][2]]
        case "paged_attention":
            return [x[0], x[1], inputs[2][2]]
    return None


def _resized(x: Sequence[Labelled], shape: Sequence[int]) -> list[Labelled]:
    """Unchanged sizes keep their label; a part of a configuration's size is the configuration's; else unknown."""
    return [
        size if int(size) == new else Labelled(new, MODEL_CONFIG if size.label == MODEL_CONFIG else None)
        for size, new in zip(x, shape, strict=True)
    ]


def _concatenated(inputs: Sequence[Sequence[Labelled]], args: Sequence[Any], shape: Sequence[int]) -> list[Labelled]:
    at = (args[1] if len(args) > 1 else 0) % len(shape)
    out = []
    for d in range(len(shape)):
        if d == at:
            label: Label = inputs[0][d].label
            for other in inputs[1:]:
                label = merge(label, other[d].label)
            out.append(Labelled(shape[d], label))
        else:
            out.append(_broadcast([[dims[d]] for dims in inputs], 1)[0])
    return out


# -------------------------------------------------------------------------------------------------- hook


def label(tensor: Any, labels: Sequence[Label]) -> Any:
    """Put labels on a tensor's dimensions."""
    tensor.size_labels = [Labelled(n, name) for n, name in zip(tensor.shape, labels, strict=True)]
    return tensor


def sizes_of(tensor: Any) -> list[Labelled]:
    """A tensor's sizes with their labels."""
    known = getattr(tensor, "size_labels", None)
    return list(known) if known is not None else [Labelled(int(n)) for n in tensor.shape]


def watch(trace: Trace, dtype: str, backend: str) -> Any:
    """A context in which every torch operation passes labels on and is written to `trace`."""
    from contextlib import ExitStack

    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sizes(TorchFunctionMode):
        """Hands out sizes with their labels, which plain integers of C++ would lose."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") == "__get__" and isinstance(result, torch.Size):
                return tuple(sizes_of(args[0]))
            if getattr(func, "__name__", "") == "size" and not isinstance(result, torch.Tensor):
                return sizes_of(args[0])[args[1]] if len(args) > 1 else tuple(sizes_of(args[0]))
            return result

    class Labels(TorchDispatchMode):
        """Passes labels from inputs to outputs."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            tensors = [t for t in _flat(args) if isinstance(t, torch.Tensor)]
            name = func.overloadpacket.__name__
            outputs = [t for t in (result if isinstance(result, (tuple, list)) else [result]) if t is not None]
            inputs = [sizes_of(t) for t in tensors]
            for index, out in enumerate(outputs):
                found = propagate(name, inputs, args, out.shape, index)
                if found is None:
                    trace.unruled.add(name)
                else:
                    out.size_labels = found
            if name not in VIEWS:
                trace.calls.append(_call(name, tensors, inputs, args, outputs, dtype, backend))
            return result

    stack = ExitStack()
    stack.enter_context(torch.no_grad())  # not inference mode: there `matmul` would not be taken apart into `mm`
    stack.enter_context(Sizes())
    stack.enter_context(Labels())
    return stack


def _flat(args: Any) -> Iterable[Any]:
    for arg in args:
        if isinstance(arg, (tuple, list)):
            yield from _flat(arg)
        else:
            yield arg


def _order(tensor: Any) -> tuple[int, ...]:
    order = tuple(sorted(range(tensor.ndim), key=lambda d: -tensor.stride(d)))
    return () if order == tuple(range(tensor.ndim)) else order


def _call(name: str, tensors: Sequence[Any], inputs: Sequence[Sequence[Labelled]], args: Any,
          outputs: Sequence[Any], dtype: str, backend: str) -> Call:  # fmt: skip
    caches = name in ("rope_write", "paged_attention")
    # How large the pool of pages is does not change what an operation on them costs.
    sized = tuple(tuple(_symbol(d) for d in (dims[1:] if caches and i > 0 else dims)) for i, dims in enumerate(inputs))
    constants = tuple(a for a in args if isinstance(a, (int, float, bool)) and not isinstance(a, Labelled))
    orders = tuple(_order(t) for t in tensors)
    attention = backend if name == "paged_attention" else ""
    signature = Signature(name, sized, constants, dtype, attention, orders if any(orders) else ())
    labels = tuple(tuple(d.label for d in dims) for dims in inputs)
    return Call(signature, labels, tuple(tuple(d.label for d in sizes_of(out)) for out in outputs))


def trace_model(shape: Shape, backend: str = "sdpa", dtype: str = "bfloat16") -> Trace:
    """Trace one iteration of a model, all its layers, on `meta` tensors."""
    import torch

    from assay.serving.dooly.torch_model import Transformer
    from assay.serving.dooly.torch_ops import Batch

    model = Transformer(shape, "meta", getattr(torch, dtype), backend, kv_tokens=TRACE_TOKENS, max_context=16)
    for weight in model.weights.values():
        label(weight, [MODEL_CONFIG] * weight.ndim)
    for cache in (cache for pair in model.caches for cache in pair):
        label(cache, [None, MODEL_CONFIG, MODEL_CONFIG])
    label(model.rope, [None, MODEL_CONFIG])

    def ids(n: int, kind: str) -> Any:
        return label(torch.empty(n, dtype=torch.int64, device="meta"), [kind])

    tokens = [ids(TRACE_TOKENS, NUM_TOK) for _ in range(3)]
    batch = Batch(tokens[0], tokens[1], tokens[2], ids(TRACE_REQUESTS, NUM_REQ))
    trace = Trace()
    with watch(trace, dtype, backend):
        model.forward(batch)
    return trace


def operations(shape: Shape, backend: str = "sdpa", dtype: str = "bfloat16") -> dict[Signature, int]:
    """Every operation of one iteration and how often it occurs, all layers counted."""
    import dataclasses

    base, more = (
        trace_model(dataclasses.replace(shape, layers=shape.dense_layers + extra), backend, dtype).counts()
        for extra in (1, 2)
    )
    left = shape.layers - shape.dense_layers - 1  # layers like the last one
    return {op: base.get(op, 0) + left * (count - base.get(op, 0)) for op, count in more.items()}


def elements(signature: Signature, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The inputs' sizes with numbers for the symbols.

    >>> elements(Signature("mm", (("T", 64), (64, 32))), {"T": 5})
    [(5, 64), (64, 32)]
    """

    def number(size: int | str) -> int:
        if isinstance(size, int):
            return size
        symbol, _, factor = size.partition("*")
        return math.prod(sizes[s] for s in symbol) * int(factor or 1)

    return [tuple(number(size) for size in dims) for dims in signature.inputs]
