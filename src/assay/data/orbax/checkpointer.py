"""Checkpoints for a training loop: plain calls around :class:`~assay.data.orbax.checkpoints.Checkpoints`."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from assay.data.interface import Store
from assay.data.orbax.checkpoints import Checkpoints, Retention
from assay.data.orbax.pieces import Array, Table
from assay.data.orbax.reading import Target, target
from assay.data.orbax.tree import Leaf, Part, Sharded, as_bytes, as_kind, flatten, joined, torch, unflatten
from assay.data.orbax.writing import Stage
from assay.data.store.address import open_store
from assay.data.store.blocking import background, before_exit, wait
from assay.record.errors import BadInput

_unseen: set[Handle] = set()  # saves of which nobody has heard yet that they are durable, or why not


class Handle:
    """A save under way. It was staged when you got this: the state may change; `wait()` until it is durable."""

    def __init__(self, step: int, future: Future[None]) -> None:
        self.step, self._future, self._process = step, future, os.getpid()
        _unseen.add(self)
        future.add_done_callback(lambda ended: None if ended.cancelled() or ended.exception() else self._seen())

    def _seen(self) -> None:
        _unseen.discard(self)

    @property
    def durable(self) -> bool:
        """Whether it is saved for good."""
        return self._future.done() and self._future.exception() is None

    def wait(self) -> None:
        """Until it is durable; raises what went wrong, if anything did. A forked process has nothing to wait for."""
        if self._process == os.getpid():
            try:
                self._future.result()
            finally:
                if self._future.done():
                    self._seen()


def _written() -> None:
    """What is under way when the main thread ends is written all the same."""
    for handle in list(_unseen):
        if handle._process == os.getpid():
            wait_for([handle._future])


def _told() -> None:
    """A save that failed and that nobody asked for again: say so, and let the process not end well."""
    lost = [handle for handle in _unseen if handle._process == os.getpid()]
    for handle in sorted(lost, key=lambda one: one.step):
        why = handle._future.exception() if handle._future.done() and not handle._future.cancelled() else "it was ended"
        print(f"step {handle.step} was not saved: {why}", file=sys.stderr)
    if lost:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


before_exit(_written)
atexit.register(_told)


class Checkpointer:
    """Save and restore training states: torch, NumPy or JAX, any sharding to any sharding, nothing half-written.

    `store` is a folder or the address of a store. `keep` lets older checkpoints go after each save. In a job of several
    processes each has its `rank`, and all have the same `world` and `run` (a name of this start, as torchrun's run id).
    What they hold under one key is the same on all, to the last bit, or a `Sharded` part of it; else the save is
    refused on all. A rank's own (generators, its place in the data) goes under a key of its own: `{f"rank{r}": …}`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ck = Checkpointer(folder, keep=2)
    ...     for step in (10, 20, 30):
    ...         ck.save(step, {"w": np.full(3, step), "step": step})
    ...     ck.steps(), ck.restore()["w"].tolist(), ck.restore(20)["step"]
    ([20, 30], [30, 30, 30], 20)
    """

    def __init__(
        self, store: str | Path | Store, *, keep: int | Retention | None = None, rank: int = 0, world: int = 1,
        run: str = "", incremental: bool = True, on_error: Callable[[BaseException], None] | None = None,
    ) -> None:  # fmt: skip
        retention = keep if isinstance(keep, Retention) else Retention(last=keep)
        self.inside = Checkpoints(rank, world, run, retention, incremental)
        self.on_error = on_error
        self._stage, self._handle, self._turn = Stage(), None, threading.RLock()
        wait(self.inside.open(open_store(str(store)) if isinstance(store, str | Path) else store))

    _handle: Handle | None

    def save(self, step: int, tree: Any, *, meta: Mapping[str, Any] | None = None, metric: float | None = None) -> None:
        """Save a tree; durable when it returns. An error of an earlier :meth:`save_async` is raised here.

        `meta` and `metric` are those that the first rank gives.
        """
        with self._turn:
            self.wait()
            leaves, skeleton = flatten(tree)
            wait(self._saved(step, leaves, skeleton, _packable(meta), _number(metric)))

    def save_async(
        self, step: int, tree: Any, *, meta: Mapping[str, Any] | None = None, metric: float | None = None
    ) -> Handle:
        """Copy the tree and return; it is written meanwhile. The next save waits for it, and raises its error."""
        with self._turn:  # threads share what is staged
            self.wait()
            writing = self._saved(step, *self._staged(tree), _packable(meta), _number(metric))
            future = asyncio.run_coroutine_threadsafe(writing, background())
            future.add_done_callback(self._ended)
            self._handle = handle = Handle(step, future)
            if not threading.main_thread().is_alive():  # a thread that goes on, or atexit: nobody waits later
                wait_for([future])
            return handle

    def _staged(self, tree: Any) -> tuple[list[Leaf], Any]:
        """A copy of the tree's arrays, and its skeleton.

        What looks at the arrays themselves ends here, before the writing begins: torch lets go of the interpreter's
        lock where a tensor ends, and would wait for the writing's Python to get it back, in many saves for 14 ms.
        """
        leaves, skeleton = flatten(tree)
        return self._stage.copy(leaves), skeleton

    async def _saved(self, step: int, leaves: Any, skeleton: Any, meta: Any, metric: float | None) -> None:
        await self.inside.save(step, leaves, skeleton, meta=meta, metric=metric)
        if self.inside.rank == 0 and self.inside.keep.last is not None:
            await self.inside.collect()

    def _ended(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None and self.on_error is not None:
            self.on_error(error)

    def wait(self) -> None:
        """Until what :meth:`save_async` began is durable; raises what went wrong, once."""
        handle, self._handle = self._handle, None
        if handle in _unseen:
            handle.wait()

    def steps(self) -> list[int]:
        """The checkpoints that are complete, oldest first."""
        return wait(self.inside.steps())

    def restore(
        self, step: int | None = None, *, like: Any = None, only: str | Sequence[str] = (), verify: bool = True
    ) -> Any:
        """A saved tree; the newest where no step is named.

        `like` is a tree of the same shape: its arrays, modules and optimizers are filled in place (where a piece proves
        damaged, what came before it is filled), and a :class:`Part` asks for a part. `only` names paths (`"model"`,
        `"opt/state"`), and nothing else is read. `verify=False` reads just the bytes that are wanted, and checks none.
        """
        table = wait(self.inside.table(step))
        wanted = _chosen(table, [only] if isinstance(only, str) else only)
        held = _places(like) if like is not None else {}
        owners = [] if like is None else [f"{path}/" if path else "" for path in _owners(like)]
        if like is not None:
            _fits(table, held, wanted)

        def asked(path: str) -> bool:
            return wanted(path) and (like is None or path in held or f"{path}/".startswith(tuple(owners)))

        def place(array: Array) -> Sequence[Target] | None:
            return held[array.path](array) if array.path in held else None

        skeleton, found, _ = wait(self.inside.read(table, asked, place, verify=verify))
        arrays = {path: _made(targets[0]) for path, targets in found.items()}
        tree = unflatten(skeleton, arrays)
        return tree if like is None else _loaded(like, tree)

    def inspect(self, step: int | None = None) -> Table:
        """What a checkpoint consists of: arrays, pieces, metadata."""
        return wait(self.inside.table(step))

    def drop(self, steps: Iterable[int]) -> None:
        """Let checkpoints go."""
        wait(self.inside.collect(steps))


def _packable(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """The caller's metadata, if they can be kept."""
    found = dict(meta or {})
    try:
        msgspec.msgpack.encode(found)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"meta cannot be kept: {error}; numbers, text, lists and dicts expected") from error
    return found


def _number(metric: Any) -> float | None:
    try:
        return None if metric is None else float(metric)
    except (TypeError, ValueError) as error:
        raise BadInput(f"the metric is {metric!r}; a number expected") from error


def _chosen(table: Table, only: Sequence[str]) -> Callable[[str], bool]:
    for prefix in only:
        if not any(array.path == prefix or array.path.startswith(f"{prefix}/") for array in table.arrays):
            raise BadInput(
                f"the checkpoint of step {table.step} has nothing at '{prefix}'; 'assay data ckpt inspect' lists it"
            )
    return lambda path: not only or any(path == prefix or path.startswith(f"{prefix}/") for prefix in only)


Place = Callable[[Array], Sequence[Target]]


def _places(tree: Any, keys: tuple[Any, ...] = ()) -> dict[str, Place]:
    """By path, where the arrays of a tree want to be filled."""
    if hasattr(tree, "state_dict") and not isinstance(tree, Mapping):
        tree = tree.state_dict()
    if isinstance(tree, Mapping):
        return {p: t for key, child in tree.items() for p, t in _places(child, (*keys, key)).items()}
    if isinstance(tree, list | tuple):
        return {p: t for key, child in enumerate(tree) for p, t in _places(child, (*keys, key)).items()}
    if isinstance(tree, Part):
        return {joined(keys): lambda array: [target(array, (tree.start, tree.shape))]}
    if isinstance(tree, Sharded):
        return {joined(keys): lambda array: [target(array, tree.box)]}
    if isinstance(tree, np.ndarray) or (torch() is not None and isinstance(tree, torch().Tensor)):
        return {joined(keys): lambda array: [_in_place(array, tree) or target(array, _local(tree))]}
    return {}


def _owners(tree: Any, keys: tuple[Any, ...] = ()) -> list[str]:
    """The paths of what takes whatever was saved: an optimizer that has not stepped yet has no arrays to fill."""
    if hasattr(tree, "load_state_dict"):
        return [joined(keys)]
    if tree is None or isinstance(tree, bool | int | float | str | bytes | np.generic):
        return [joined(keys)]
    children = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return [path for key, child in children for path in _owners(child, (*keys, key))]


def _in_place(array: Array, like: Any) -> Target | None:
    """The memory of an array that holds just what was saved; None where it is elsewhere, or laid out otherwise."""
    whole = ((0,) * len(array.shape), array.shape)
    if str(like.dtype).removeprefix("torch.") != array.dtype or tuple(like.shape) != array.shape:
        return None
    if isinstance(like, np.ndarray):
        fits = type(like) is not np.ma.MaskedArray and like.flags.c_contiguous and like.flags.writeable
        return Target(array, whole, as_bytes(like)) if fits else None
    if (
        hasattr(like, "device_mesh")
        or like.is_conj()
        or like.is_neg()
        or like.device.type != "cpu"
        or not like.is_contiguous()
    ):
        return None
    return Target(array, whole, like.detach().reshape(-1).view(torch().uint8).numpy().data)


def _local(array: Any) -> Any:
    """The box of a sharded tensor that lies here; None: all of it."""
    if not hasattr(array, "device_mesh"):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, start = compute_local_shape_and_global_offset(array.shape, array.device_mesh, array.placements)
    return tuple(start), tuple(shape)


def _fits(table: Table, held: Mapping[str, Place], wanted: Callable[[str], bool]) -> None:
    there = {array.path for array in table.arrays}
    if missing := [path for path in held if wanted(path) and path not in there]:
        raise BadInput(
            f"the checkpoint of step {table.step} has no '{missing[0]}', nor {len(missing) - 1} others wanted"
        )


def _made(one: Target) -> Any:
    data = np.frombuffer(one.into, np.uint8) if len(one.into) else np.empty(0, np.uint8)
    return as_kind(data, one.array.kind, one.array.dtype, one.box[1])


def _loaded(like: Any, tree: Any) -> Any:
    """Fill what `like` holds: modules and optimizers by their own method, arrays in place; parts come back."""
    if hasattr(like, "load_state_dict"):
        like.load_state_dict(tree)
        return like
    if isinstance(like, Mapping) and isinstance(tree, Mapping):
        filled = {key: _loaded(child, tree[key]) if key in tree else child for key, child in like.items()}
        return filled | {key: child for key, child in tree.items() if key not in like}
    if isinstance(like, list | tuple):
        if not isinstance(tree, list | tuple) or len(tree) != len(like):
            raise BadInput(f"a list of {len(like)} is wanted, and {type(tree).__name__} of another length was saved")
        made = [_loaded(child, found) for child, found in zip(like, tree, strict=True)]
        return like._make(made) if hasattr(like, "_make") else type(like)(made)
    if isinstance(like, np.ndarray):
        _same_shape(like, tree)
        if not np.shares_memory(like, np.asarray(tree)):
            like[...] = np.asarray(tree)
        return like
    if isinstance(like, Sharded):
        return Sharded(_loaded(like.local, tree), like.shape, like.start)
    if torch() is not None and isinstance(like, torch().Tensor):
        local = like.to_local() if hasattr(like, "device_mesh") else like
        found = tree if isinstance(tree, torch().Tensor) else torch().from_numpy(np.array(tree))
        _same_shape(local, found)
        if local.data_ptr() != found.data_ptr():
            with torch().no_grad():
                local.copy_(found)
        return like
    return tree


def _same_shape(like: Any, found: Any) -> None:
    if tuple(like.shape) != tuple(found.shape):
        raise BadInput(f"an array of shape {tuple(found.shape)} was saved, and {tuple(like.shape)} is wanted")
