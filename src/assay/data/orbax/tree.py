"""A training state as arrays by path and a skeleton that says where they belong.

Dicts, lists and tuples branch; numbers, text and None are kept in the skeleton; arrays of NumPy, torch and JAX become
:class:`Leaf`. What has a `state_dict` stands for it. Nothing is pickled, so nothing that is loaded can run.

>>> leaves, skeleton = flatten({"model": {"w": np.zeros((2, 3), np.float32)}, "lr": 0.1})
>>> [(leaf.path, leaf.dtype, leaf.shape) for leaf in leaves]
[('model/w', 'float32', (2, 3))]
>>> unflatten(skeleton, {"model/w": "the array"})
{'model': {'w': 'the array'}, 'lr': 0.1}
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

    `whole`: every process holds all of it, so they share the writing.
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


def flatten(tree: Any) -> tuple[list[Leaf], Any]:
    """The arrays of a tree, and its skeleton."""
    leaves: list[Leaf] = []
    return leaves, _walk(tree, (), leaves)


def joined(keys: Sequence[Any]) -> str:
    """A path as text; a slash within a key is written ~1.

    >>> joined(["model", "a/b", 0])
    'model/a~1b/0'
    """
    return "/".join(str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def _walk(node: Any, keys: tuple[Any, ...], leaves: list[Leaf]) -> Any:
    if hasattr(node, "state_dict") and not isinstance(node, Mapping):
        node = node.state_dict()
    if isinstance(node, Mapping):
        for key in node:
            if not isinstance(key, str | int):
                raise BadInput(f"'{joined(keys)}' has a key of type {type(key).__name__}; text or integers expected")
        return ["d", [[key, _walk(child, (*keys, key), leaves)] for key, child in node.items()]]
    if isinstance(node, list | tuple) and not hasattr(node, "dtype"):
        children = [_walk(child, (*keys, number), leaves) for number, child in enumerate(node)]
        return ["t" if isinstance(node, tuple) else "l", children]
    if node is None or (isinstance(node, bool | int | float | str | bytes) and type(node).__module__ == "builtins"):
        return ["v", node]
    leaf = _leaf(node, joined(keys))
    if leaf is None:
        raise BadInput(f"'{joined(keys)}' is a {type(node).__name__}; arrays, numbers, text, dicts and lists expected")
    leaves.append(leaf)
    return ["a", leaf.path]


def _leaf(node: Any, path: str) -> Leaf | None:
    if isinstance(node, Sharded):
        inner = _leaf(node.local, path)
        if inner is None:
            return None
        views = ((node.box, inner.views[0][1]),)
        return Leaf(path, inner.kind, inner.dtype, tuple(node.shape), views, whole=False)
    if torch() is not None and isinstance(node, torch().Tensor):
        return _of_torch(node, path)
    if hasattr(node, "addressable_shards"):
        return _of_jax(node, path)
    if isinstance(node, np.ndarray | np.generic) and node.dtype.kind in "biufcV":
        if node.dtype.hasobject or node.dtype.names:
            return None
        array = np.asarray(node)
        box = ((0,) * array.ndim, array.shape)
        return Leaf(path, "numpy", str(array.dtype), array.shape, ((box, as_bytes(array)),), whole=True)
    return None


def as_bytes(array: Any) -> memoryview:
    """An array's bytes in C order, without a copy where they lie so already."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _of_torch(tensor: Any, path: str) -> Leaf:
    shape = tuple(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    start, whole, mine = (0,) * len(shape), True, True
    if hasattr(tensor, "device_mesh"):  # a DTensor: the first of equal replicas writes
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        mesh, placements = tensor.device_mesh, tensor.placements
        _, start = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
        where = mesh.get_coordinate() or ()
        mine = all(at == 0 for at, how in zip(where, placements, strict=True) if not isinstance(how, Shard))
        whole, tensor = False, tensor.to_local()
    box = (tuple(start), tuple(tensor.shape))
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch().uint8)
    views = ((box, memoryview(flat.numpy())),) if mine else ()
    return Leaf(path, "torch", dtype, shape, views, whole)


def _of_jax(array: Any, path: str) -> Leaf:
    views = []
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            local = np.asarray(shard.data)
            start = tuple(axis.start or 0 for axis in shard.index)
            views.append(((start, local.shape), as_bytes(local)))
    return Leaf(path, "jax", str(array.dtype), tuple(array.shape), tuple(views), array.is_fully_addressable is False)


def unflatten(skeleton: Any, arrays: Mapping[str, Any]) -> Any:
    """The tree again, with what was found for each path."""
    return _build(skeleton, lambda path: arrays[path])


def _build(node: Any, of: Callable[[str], Any]) -> Any:
    tag, inside = node
    if tag == "d":
        return {key: _build(child, of) for key, child in inside}
    if tag in "lt":
        made = [_build(child, of) for child in inside]
        return tuple(made) if tag == "t" else made
    return of(inside) if tag == "a" else inside


def merged(one: Any, other: Any) -> Any:
    """Two processes' skeletons as one: their dicts are united, and elsewhere the first one's word counts.

    >>> merged(["d", [["a", ["v", 1]]]], ["d", [["b", ["v", 2]]]])
    ['d', [['a', ['v', 1]], ['b', ['v', 2]]]]
    """
    if one[0] != "d" or other[0] != "d":
        return one
    mine, theirs = dict(one[1]), dict(other[1])
    both = {key: merged(child, theirs[key]) if key in theirs else child for key, child in mine.items()}
    return ["d", [[key, child] for key, child in (both | {k: c for k, c in theirs.items() if k not in both}).items()]]


def pruned(skeleton: Any, kept: Callable[[str], bool]) -> Any:
    """A skeleton with only the arrays whose path is kept, and what lies beside them."""
    tag, inside = skeleton
    if tag != "d":
        return skeleton
    return ["d", [[key, pruned(child, kept)] for key, child in inside if _any(child, kept)]]


def _any(node: Any, kept: Callable[[str], bool]) -> bool:
    tag, inside = node
    if tag == "a":
        return kept(inside)
    if tag == "v":
        return True
    children = [child for _, child in inside] if tag == "d" else inside
    return not children or any(_any(child, kept) for child in children)


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
    return special.get(dtype) or (1 if dtype.startswith("float8") else np.dtype(dtype).itemsize)
