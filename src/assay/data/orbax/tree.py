"""A training state as arrays by path and a skeleton that says where they belong.

Dicts, lists, tuples and named tuples branch; numbers, text and None are kept in the skeleton; arrays of NumPy, torch
and JAX become :class:`Leaf`. What has a `state_dict` stands for it. Nothing is pickled, so nothing that is loaded can
run. What would not come back as it was (sparse and quantized tensors, masked arrays) is refused, before anything is
written.

>>> leaves, skeleton = flatten({"model": {"w": np.zeros((2, 3), np.float32)}, "lr": 0.1})
>>> [(leaf.path, leaf.dtype, leaf.shape) for leaf in leaves]
[('model/w', 'float32', (2, 3))]
>>> unflatten(skeleton, {"model/w": "the array"})
{'model': {'w': 'the array'}, 'lr': 0.1}
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np

from assay.record.errors import BadInput

Box = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins, how large it is


@dataclass(frozen=True)
class Sharded:
    """This process's part of an array: what it holds, how large the whole is, and where the part begins.

    >>> Sharded(np.zeros((2, 8)), shape=(4, 8), start=(2, 0)).box
    ((2, 0), (2, 8))
    """

    local: Any
    shape: tuple[int, ...]
    start: tuple[int, ...]

    @property
    def box(self) -> Box:
        """The part's place in the whole."""
        return self.start, tuple(self.local.shape)


@dataclass(frozen=True)
class Part:
    """A part of an array that is wanted: `like={"w": Part(start=(2, 0), shape=(2, 8))}`."""

    start: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Leaf:
    """An array of the tree. `views` are the parts that this process holds, as bytes.

    `whole`: every process holds all of it, the same on each, so they share the writing.
    """

    path: str
    kind: str  # whose array it is: numpy, torch, jax
    dtype: str
    shape: tuple[int, ...]
    views: tuple[tuple[Box, memoryview], ...]
    whole: bool


def torch() -> Any:
    """torch, if somebody has imported it: an array of its kind cannot exist otherwise."""
    return sys.modules.get("torch")


TOO_DEEP = "the state is nested too deep, or holds itself; a tree expected"
DEEPEST = 100  # dicts and lists within each other: what is deeper, no reader of msgpack takes


def flatten(tree: Any) -> tuple[list[Leaf], Any]:
    """The arrays of a tree, and its skeleton; BadInput where something in it could not come back as it is."""
    leaves: list[Leaf] = []
    try:
        skeleton = _walk(tree, (), leaves)
    except RecursionError:
        raise BadInput(TOO_DEEP) from None
    paths = set[str]()
    for leaf in leaves:
        if leaf.path in paths:
            raise BadInput(f"two arrays of the state are '{leaf.path}': 1 and \"1\" are one path; rename one of them")
        paths.add(leaf.path)
    return leaves, skeleton


def joined(keys: Sequence[Any]) -> str:
    """A path as text; a slash within a key is written ~1.

    >>> joined(["model", "a/b", 0])
    'model/a~1b/0'
    """
    return "/".join(str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def _walk(node: Any, keys: tuple[Any, ...], leaves: list[Leaf]) -> Any:
    if len(keys) > DEEPEST:
        raise BadInput(TOO_DEEP)
    if hasattr(node, "state_dict") and not isinstance(node, Mapping):
        node = node.state_dict()
    if isinstance(node, Mapping):
        for key in node:
            if not isinstance(key, str | int) or _value(key, (*keys, key))[0] != "v":
                raise BadInput(f"'{joined(keys)}' has a key of type {type(key).__name__}; text or integers expected")
        return ["d", [[key, _walk(child, (*keys, key), leaves)] for key, child in node.items()]]
    if isinstance(node, list | tuple) and not hasattr(node, "dtype"):
        children = [_walk(child, (*keys, number), leaves) for number, child in enumerate(node)]
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            kind = type(node)
            return ["n", [f"{kind.__module__}:{kind.__qualname__}", list(kind._fields), children]]
        return ["t" if isinstance(node, tuple) else "l", children]
    if node is None or (isinstance(node, bool | int | float | str | bytes) and type(node).__module__ == "builtins"):
        return _value(node, keys)
    leaf = _leaf(node, joined(keys))
    if leaf is None:
        raise BadInput(f"'{joined(keys)}' is a {type(node).__name__}; arrays, numbers, text, dicts and lists expected")
    leaves.append(leaf)
    return ["s" if isinstance(node, np.generic) else "a", leaf.path]


def _value(value: Any, keys: tuple[Any, ...]) -> list[Any]:
    """A number, text or None as the skeleton keeps it: integers of any length, such as generators have, as text."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return ["i", hex(value)]
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{joined(keys)!r} holds what is no text: {value[:40]!r} has half a letter") from None
    return ["v", value]


def _leaf(node: Any, path: str) -> Leaf | None:
    if isinstance(node, Sharded):
        inner = _leaf(node.local, path)
        if inner is None:
            return None
        if any(not 0 <= s <= s + n <= m for s, n, m in zip(*node.box, node.shape, strict=False)) or not (
            len(node.start) == len(node.shape) == len(inner.shape)
        ):
            raise BadInput(f"'{path}': a part {node.box} does not lie in an array of shape {tuple(node.shape)}")
        views = ((node.box, inner.views[0][1]),)
        return Leaf(path, inner.kind, inner.dtype, tuple(node.shape), views, whole=False)
    if torch() is not None and isinstance(node, torch().Tensor):
        return _of_torch(node, path)
    if hasattr(node, "addressable_shards"):
        return _of_jax(node, path)
    if isinstance(node, np.ndarray | np.generic) and node.dtype.kind in "biufcV":
        if node.dtype.hasobject or node.dtype.names or isinstance(node, np.ma.MaskedArray | np.matrix):
            return None  # a masked array is more than its numbers
        array = np.asarray(node)
        box = ((0,) * array.ndim, array.shape)
        return Leaf(path, "numpy", str(array.dtype), array.shape, ((box, as_bytes(array)),), whole=True)
    return None


def as_bytes(array: Any) -> memoryview:
    """An array's bytes in C order, without a copy where they lie so already."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _of_torch(tensor: Any, path: str) -> Leaf:
    dtype = _plain(tensor, path)
    shape = tuple(tensor.shape)
    start, whole, mine = (0,) * len(shape), True, True
    if hasattr(tensor, "device_mesh"):  # a DTensor: the first of equal replicas writes
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        mesh, placements = tensor.device_mesh, tensor.placements
        if any(how.is_partial() for how in placements):
            raise BadInput(f"'{path}' is a sum that the ranks have not made yet (Partial); redistribute it first")
        _, start = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
        where = mesh.get_coordinate() or ()
        mine = all(at == 0 for at, how in zip(where, placements, strict=True) if not isinstance(how, Shard))
        whole, tensor = False, tensor.to_local()
    box = (tuple(start), tuple(tensor.shape))
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch().uint8)
    views = ((box, memoryview(flat.numpy())),) if mine else ()
    return Leaf(path, "torch", dtype, shape, views, whole)


def _plain(tensor: Any, path: str) -> str:
    """The name of a tensor's type, if it is rows of numbers and nothing more."""
    if torch().nn.parameter.is_lazy(tensor):
        raise BadInput(f"'{path}' has no shape yet and no numbers; run the model once before it is saved")
    dtype = str(tensor.dtype).removeprefix("torch.")
    what = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    if what != "strided":
        raise BadInput(f"'{path}' is a {what} tensor; save it as a dense one (to_dense), or its parts")
    if tensor.is_quantized:
        raise BadInput(f"'{path}' is a quantized tensor ({dtype}); save its int_repr(), scale and zero point")
    if tensor.is_meta:
        raise BadInput(f"'{path}' is on the meta device and has no numbers; materialize it first")
    if hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "device_mesh"):
        raise BadInput(f"'{path}' is a {type(tensor).__name__}, which is more than its numbers; save its parts")
    try:
        same = itemsize(dtype) == tensor.element_size()
    except (TypeError, BadInput):
        same = False
    if not same:
        raise BadInput(f"'{path}' is of type {dtype}, which nothing here reads back; cast it")
    return dtype


def _of_jax(array: Any, path: str) -> Leaf:
    views, dtype = [], str(array.dtype)
    try:
        itemsize(dtype)
    except (TypeError, BadInput):
        raise BadInput(
            f"'{path}' is of type {dtype}, which nothing here reads back; save jax.random.key_data"
        ) from None
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            local = np.asarray(shard.data)
            start = tuple(axis.start or 0 for axis in shard.index)
            views.append(((start, local.shape), as_bytes(local)))
    # What lies within one process is a copy that each process has; what lies across several, each has its part of.
    return Leaf(path, "jax", dtype, tuple(array.shape), tuple(views), bool(array.is_fully_addressable))


def unflatten(skeleton: Any, arrays: Mapping[str, Any]) -> Any:
    """The tree again, with what was found for each path."""
    return _build(skeleton, arrays.get)  # None in the place of an element of a list that was not wanted


def _build(node: Any, of: Callable[[str], Any]) -> Any:
    tag, inside = node
    if tag == "d":
        return {key: _build(child, of) for key, child in inside}
    if tag in "lt":
        made = [_build(child, of) for child in inside]
        return tuple(made) if tag == "t" else made
    if tag == "n":
        name, fields, children = inside
        return _named_tuple(name, tuple(fields))._make(_build(child, of) for child in children)
    if tag == "s":
        found = of(inside)
        return found[()] if isinstance(found, np.ndarray) and not found.shape else found
    if tag == "i":
        return int(inside, 16)
    if tag != "v" and tag != "a":
        raise BadInput(f"this checkpoint has a branch of kind '{tag}'; a newer version of assay reads it")
    return of(inside) if tag == "a" else inside


@cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """The class that was saved, if it is here already and has these fields: nothing is imported. Else one alike."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, tuple) and getattr(found, "_fields", None) == fields:
        return found
    last = qualified.rpartition(".")[2]
    return namedtuple(last if last.isidentifier() else "Saved", fields)


_ENDS = "vias"  # numbers, text and arrays: what does not branch
OWN = "what is a rank's own needs a key of its own, such as {'rank0': …}"


def merged(one: Any, other: Any, at: str = "", who: str = "ranks") -> Any:
    """Two processes' skeletons as one: their dicts are united, None gives way, and else they are the same.

    >>> merged(["d", [["a", ["v", 1]]]], ["d", [["b", ["v", 2]]]])
    ['d', [['a', ['v', 1]], ['b', ['v', 2]]]]

    Raises:
        BadInput: one key has two values, of which only one could come back.
    """
    if other == ["v", None]:
        return one
    if one == ["v", None]:
        return other
    if one[0] in _ENDS and other[0] in _ENDS:
        if msgspec.msgpack.encode(one) != msgspec.msgpack.encode(other):  # 1, True and 1.0 are not the same, NaN is
            raise BadInput(f"{who} differ on '{at}': {OWN}")
        return one
    heads = [[len(_children(node)), *(node[1][:2] if node[0] == "n" else ())] for node in (one, other)]
    if one[0] != other[0] or (one[0] != "d" and heads[0] != heads[1]):
        raise BadInput(f"{who} differ on '{at}': dicts may have other keys on each rank, lists are alike on all")
    if one[0] in "ltn":
        made = [
            merged(mine, its, f"{at}/{number}", who)
            for number, (mine, its) in enumerate(zip(_children(one), _children(other), strict=True))
        ]
        return [one[0], [*one[1][:2], made] if one[0] == "n" else made]
    ours, theirs = dict(one[1]), dict(other[1])
    within = f"{at}/" if at else ""
    both = {
        key: merged(child, theirs[key], f"{within}{joined([key])}", who) if key in theirs else child
        for key, child in ours.items()
    }
    return ["d", [[key, child] for key, child in (both | {k: c for k, c in theirs.items() if k not in both}).items()]]


def pruned(skeleton: Any, kept: Callable[[str], bool]) -> Any:
    """A skeleton with only the arrays whose path is kept, and what lies beside them."""
    tag, inside = skeleton
    if tag != "d":
        return skeleton
    return ["d", [[key, pruned(child, kept)] for key, child in inside if _any(child, kept)]]


def _any(node: Any, kept: Callable[[str], bool]) -> bool:
    tag, inside = node
    if tag in "as":
        return kept(inside)
    if tag in "vi":
        return True
    children = _children(node)
    return not children or any(_any(child, kept) for child in children)


def _children(node: Any) -> list[Any]:
    tag, inside = node
    if tag == "d":
        return [child for _, child in inside]
    return list(inside[2]) if tag == "n" else list(inside) if tag in "lt" else []


def as_kind(array: np.ndarray[Any, Any], kind: str, dtype: str, shape: tuple[int, ...]) -> Any:
    """Bytes as an array of whose it was; NumPy's where that library is not here."""
    if kind == "torch":
        try:
            import torch as found
        except ModuleNotFoundError:
            return array.view(numpy_dtype(dtype)).reshape(shape)
        if not array.size:
            return found.empty(shape, dtype=getattr(found, dtype))
        return found.from_numpy(array).view(getattr(found, dtype)).reshape(shape)
    return array.view(numpy_dtype(dtype)).reshape(shape)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type of a name; those it lacks (bfloat16, float8) come from ml_dtypes.

    >>> numpy_dtype("float32").itemsize
    4
    """
    try:
        return np.dtype(name)
    except TypeError:
        try:
            import ml_dtypes
        except ModuleNotFoundError:
            raise BadInput(f"NumPy has no {name}; pip install ml_dtypes, or restore with torch") from None
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def itemsize(dtype: str) -> int:
    """Bytes of one element, whichever library's type it is.

    >>> itemsize("bfloat16"), itemsize("float64"), itemsize("bool"), itemsize("float8_e4m3fn")
    (2, 8, 1, 1)
    """
    special = {"bfloat16": 2, "bool": 1, "complex32": 4}
    return special.get(dtype) or (1 if dtype.startswith("float8") else numpy_dtype(dtype).itemsize)
