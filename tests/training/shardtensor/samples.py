"""torch's own samples of its operators, on shards: each is what one process gives, or refused by name on every rank."""

from __future__ import annotations

import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

import torch

if "expecttest" not in sys.modules:  # torch's own tests need it, its samples only import it
    sys.modules["expecttest"] = ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from assay.training.shardtensor.dispatch import ShardTensor, Unsupported, shard
from assay.training.shardtensor.shards import Domain, mine
from tests.oracles.domain_of_threads import on_threads

RANKS = 3
# Of these only shapes are told, and that all ranks give or refuse them: what they give is drawn, or whatever was there.
# (Ranks are threads here, which share one stream: each would draw another part of it.)
DRAWN = set(
    """
cauchy exponential geometric log_normal normal uniform bernoulli multinomial nn.functional.rrelu empty_like randn
randn_like rand_like randint randint_like new_empty new_empty_strided empty_strided empty empty_permuted resize_
resize_as_ nn.functional.dropout native_dropout_backward nn.functional.dropout2d nn.functional.dropout3d
nn.functional.alpha_dropout nn.functional.feature_alpha_dropout pca_lowrank svd_lowrank
""".split()
)
CLOSE = {torch.float32: 1e-4, torch.float64: 1e-8}  # of the largest


@dataclass
class Case:
    """One call: how it is written, with which samples, and which of its tensors are cut where."""

    way: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dim: int
    sizes: tuple[int, ...]
    drawn: bool
    which: str  # of the tensors that could be cut: the first, the last, all like the first, or two in different ways

    def cut(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Which of all tensors are cut, counted through arguments and their names: along what, and into what."""
        flat = tree_flatten((self.args, self.kwargs))[0]
        tensors = [at for at, x in enumerate(flat) if isinstance(x, torch.Tensor) and x.layout == torch.strided]
        fits = [at for at in tensors if flat[at].ndim > self.dim and flat[at].shape[self.dim] == sum(self.sizes)]
        chosen = {"first": fits[:1], "last": fits[-1:], "two": fits[:1]}.get(self.which)
        if chosen is None:
            chosen = [at for at in fits if flat[at].shape == flat[fits[0]].shape]
        found = dict.fromkeys(chosen, (self.dim, self.sizes))
        for at in [at for at in tensors if at not in chosen and flat[at].ndim][: self.which == "two"]:
            dim = (self.dim + 1) % flat[at].ndim
            found[at] = dim, stretches(flat[at].shape[dim], self.sizes[0])
        return found


def stretches(length: int, turn: int) -> tuple[int, ...]:
    """Of unequal lengths; in every other turn one of them is empty."""
    first = (length + 1) // 2
    second = 0 if turn % 2 else (length - first) // 2
    return (first, second, length - first - second) if turn % 3 else (second, length - first - second, first)


def _ways(op: Any) -> dict[str, Callable[..., Any]]:
    """By all its names: as a function, a method, an operator, and in place."""
    ways = {"function": op.op, "method": op.method_variant, "operator": getattr(op, "operator_variant", None)}
    ways |= {"in place": op.inplace_variant, "operator in place": getattr(op, "inplace_operator_variant", None)}
    for alias in op.aliases:
        ways |= {alias.name: alias.op, f"{alias.name} in place": alias.inplace_variant}
    return {way: call for way, call in ways.items() if call is not None}


def _shapes(sample: Any) -> list[torch.Size]:
    flat = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return [x.shape for x in flat if isinstance(x, torch.Tensor) and x.ndim and x.layout == torch.strided]


def cases(op: Any, dtype: torch.dtype, most: int) -> Iterator[Case]:
    """Of each sample all ways to write it; cut along one dimension after another."""
    turn = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = op.sample_inputs("cpu", dtype, requires_grad=False)
        samples = list(islice((one for one in every if _shapes(one) and not one.kwargs.get("dropout_p")), most))
    for sample in samples:  # of those that can be cut, and are not drawn
        args = (sample.input, *sample.args)
        shapes = _shapes(sample)
        whole = max(shapes, key=lambda s: (len(s), s.numel()))
        for shape, dim in dict.fromkeys((one, dim) for one in (whole, shapes[0]) for dim in range(len(one))):
            for way, call in _ways(op).items():
                if "in place" in way and sample.broadcasts_input:
                    continue
                found = list[Any]()
                for which in ("first", "all", "last", "two"):
                    case = Case(
                        way, call, args, sample.kwargs, dim, stretches(shape[dim], turn), op.name in DRAWN, which
                    )
                    if (cut := case.cut()) not in found:
                        found.append(cut)
                        yield case
                turn += 1


def _called(case: Case, leaves: list[Any], spec: Any) -> tuple[Any, list[Any]]:
    """What the call gives; and its arguments, of which the first is changed where it is in place, so no leaf."""
    given = [x.clone() if "in place" in case.way and isinstance(x, torch.Tensor) else x for x in leaves]
    args, kwargs = tree_unflatten(given, spec)
    return case.call(*args, **kwargs), given


def _differentiated(outs: list[Any]) -> Any:
    total: Any = 0.0
    for at, y in enumerate(outs):
        if isinstance(y, torch.Tensor) and y.is_floating_point() and y.requires_grad and y.numel():
            probe = torch.randn(y.shape, generator=torch.Generator().manual_seed(at), dtype=torch.float64).to(y.dtype)
            total = total + (y * probe).sum()
    return total


def _apart(found: Any, truth: Any, domain: Domain, drawn: bool) -> str:
    """What differs, in a few words."""
    if isinstance(truth, torch.Tensor) != isinstance(found, torch.Tensor):
        return f"gives {type(found).__name__}"
    if not isinstance(truth, torch.Tensor):
        return "" if drawn or found == truth or (found != found and truth != truth) else f"{found} is not {truth}"
    if found.shape != truth.shape or found.dtype != truth.dtype:
        return f"{found.dtype} {tuple(found.shape)} is not {truth.dtype} {tuple(truth.shape)}"
    if drawn:
        return ""
    if isinstance(found, ShardTensor):
        found, truth = found.local, mine(truth, found.axis, domain, found.sizes)
    if not truth.numel():
        return ""
    found, truth = found.detach(), truth.detach()
    if not truth.is_floating_point() and not truth.is_complex():
        return "" if torch.equal(found, truth) else "other numbers"
    scale = max(1.0, float(truth[truth.isfinite()].abs().max())) if truth.isfinite().any() else 1.0
    near = CLOSE.get(truth.dtype, 1e-2) * scale
    return "" if torch.allclose(found, truth, rtol=0, atol=near, equal_nan=True) else "other numbers"


def _same(case: Case, truth: Any, changed: list[Any], wholes: list[Any], spec: Any, domain: Domain) -> str:
    """On one rank: `equal`, or what differs from what one process has."""
    cut = case.cut()
    leaves = list[Any]()
    for at, x in enumerate(wholes):
        if not isinstance(x, torch.Tensor):
            leaves.append(x)
            continue
        dim, sizes = cut.get(at, (0, None))
        part = shard(x.detach(), dim, domain, sizes) if sizes else x.detach().clone()
        leaves.append(part.requires_grad_() if x.requires_grad else part)
    found, given = _called(case, leaves, spec)
    flat, expected = tree_flatten(found)[0], tree_flatten(truth)[0]
    if len(flat) != len(expected):
        return f"{len(flat)} results for {len(expected)}"
    for a, b in zip(flat, expected, strict=True):
        if said := _apart(a, b, domain, case.drawn):
            return said
    for a, b in zip(given, changed, strict=True):
        if isinstance(b, torch.Tensor) and (said := _apart(a, b, domain, case.drawn)):
            return f"changes its argument to {said}"
    total = _differentiated(flat)
    if isinstance(total, torch.Tensor) and total.requires_grad:
        total.backward()
    for a, b in zip(leaves, wholes, strict=True):
        if not isinstance(b, torch.Tensor) or (a.grad is None and b.grad is None):
            continue
        if a.grad is None or b.grad is None:
            if bool((b if a.grad is None else a).grad.any()):
                return "no gradient" if a.grad is None else "a gradient where there should be none"
        elif said := _apart(a.grad, b.grad, domain, case.drawn):
            return f"gradient{'' if isinstance(a, ShardTensor) else ' of a plain tensor'}: {said}"
    return "equal"


def outcome(case: Case) -> str:
    """`equal`, `refused`, `torch refuses`, or what is wrong."""
    copied = tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, (case.args, case.kwargs))
    wholes, spec = tree_flatten(copied)
    for x in wholes:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            x.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            truth, changed = _called(case, wholes, spec)
            total = _differentiated(tree_flatten(truth)[0])
            if isinstance(total, torch.Tensor):
                total.backward()
        except Exception:
            return "torch refuses"
        found = on_threads(RANKS, lambda domain: _same(case, truth, changed, wholes, spec, domain))
    if all(isinstance(x, Unsupported) for x in found):
        return "refused"
    wrong = [x for x in found if x != "equal"]
    first = next((x for x in wrong if isinstance(x, Exception) and "Waited" not in type(x).__name__), None)
    if first is not None:
        return f"{type(first).__name__} on {sum(isinstance(x, Exception) for x in found)}: {str(first)[:150]}"
    return "equal" if not wrong else str(wrong[0])


def table(
    names: list[str] | None = None, most: int = 4, dtype: torch.dtype = torch.float64
) -> dict[str, dict[str, int]]:
    """By operator: how many of its calls are equal, refused, or what is wrong with them."""
    found: dict[str, dict[str, int]] = {}
    for op in op_db:
        kind = dtype if dtype in op.dtypes else next(iter(op.dtypes), None) if dtype is torch.float64 else None
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        if kind is None or (names is not None and op.name not in names):
            continue
        row = found.setdefault(name, {})
        try:
            some = list(cases(op, kind, most))
        except Exception as error:
            row[f"no samples: {type(error).__name__}"] = 1
            continue
        for case in some:
            said = outcome(case)
            if said not in ("equal", "refused", "torch refuses"):
                said = f"{case.way}, {case.which}: {said}"
            row[said] = row.get(said, 0) + 1
    return found
