"""What a build keeps, so that a killed one goes on: one folder or store is one graph.

`recipe` says what is built, and of which bytes: it is created first, and never changes. Each part's own graph is kept
as soon as it is done, each part's final lists likewise, both create-only: a second attempt uses the first one's. The
arrays are assembled from the final lists alone, so that whoever does it writes the same bytes; `done`, created last,
makes them count. What only served the build is removed behind it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from assay.data.engine.puts import put_surely
from assay.data.engine.segments import SegmentBlob, checked, digest, open_blob
from assay.data.interface import NotFound, Store, StoreError, Unknown, Violation
from assay.data.solanet.windows import raw
from assay.record.errors import BadInput

Array = npt.NDArray[Any]
LOCAL, FINAL, DONE = "local", "final", "done"


class Recipe(msgspec.Struct, frozen=True):
    """What is built: points, columns, neighbours, parts, and the digest of the points."""

    n: int
    width: int
    k: int
    parts: int
    metric: str
    refine: str
    seed: int
    digest: str


class Done(msgspec.Struct, frozen=True):
    """The digests of the finished arrays, and what the build took."""

    ids: bytes
    dist: bytes
    facts: dict[str, Any]


class Build:
    """A graph in a store, being built or finished."""

    key = "solanet"

    def __init__(self, recipe: Recipe, prefix: str = "") -> None:
        self.recipe, self.prefix = recipe, prefix

    async def begin(self, store: Store) -> Done | None:
        """Create or recover; what is finished already. BadInput where the store holds another graph."""
        self.store = store
        await self._create("recipe", [msgspec.json.encode(self.recipe)])
        found = msgspec.json.decode(bytes(await store.get(f"{self.prefix}recipe")), type=Recipe)
        if found != self.recipe:
            raise BadInput(f"{_difference(found, self.recipe)}; give another --out, or what it was begun with")
        done = await self.done()
        if done is not None:
            await self._clear()
        return done

    async def done(self) -> Done | None:
        """The finished graph's record; None while it is built."""
        try:
            return msgspec.msgpack.decode(bytes(await self.store.get(f"{self.prefix}done")), type=Done)
        except NotFound:
            return None

    async def kept(self, stage: str, part: int) -> tuple[Array, Array, dict[str, Any]] | None:
        """A part's lists, its own or final, with what they took; None where they are still to be made."""
        try:
            blob = await open_blob(self.store, self._part(stage, part))
            ids, far, facts = [await blob.get(name) for name in ("ids", "far", "facts")]
        except NotFound:
            return None
        shape = blob.segments["ids"].rows, -1
        lists = np.frombuffer(ids, np.int32).reshape(shape), np.frombuffer(far, np.float32).reshape(shape)
        return *lists, msgspec.json.decode(bytes(facts))

    async def complete(self) -> bool:
        """Whether every part's final lists are there, and only the arrays are missing."""
        found = [await self.store.head(self._part(FINAL, part)) for part in range(self.recipe.parts)]
        return None not in found

    async def keep(self, stage: str, part: int, ids: Array, far: Array, facts: dict[str, Any]) -> None:
        """Keep a part's lists; where another attempt was first, its lists stay."""
        blob = SegmentBlob()
        blob.add("ids", raw(ids.astype(np.int32, copy=False)), rows=len(ids))
        blob.add("far", raw(far.astype(np.float32, copy=False)), rows=len(far))
        blob.add("facts", msgspec.json.encode(facts))
        await self._create(self._part(stage, part)[len(self.prefix) :], blob.parts())

    async def finish(self, order: Array) -> Done:
        """Assemble the arrays of all parts' final lists, whose rows are points `order`; then say that they count."""
        shape = self.recipe.n, self.recipe.k
        arrays: dict[str, Array] = {"ids": np.empty(shape, np.int32), "dist": np.empty(shape, np.float32)}
        facts, start = [], 0
        for part in range(self.recipe.parts):
            found = await self.kept(FINAL, part)
            if found is None:  # cleared by another process that was first
                done = await self.begin(self.store)
                if done is None:
                    raise NotFound(f"part {part} has no final lists yet")
                return done
            ids, far, told = found
            points = order[start : start + len(ids)]
            arrays["ids"][points], arrays["dist"][points] = ids, far
            facts.append(told)
            start += len(ids)
        for name, array in arrays.items():
            await self._put(f"{name}.npy", [_header(array), raw(array)])
        digests = {name: digest(raw(array)) for name, array in arrays.items()}
        record = Done(digests["ids"], digests["dist"], {"parts": facts})
        await self._create("done", [msgspec.msgpack.encode(record)])
        await self._clear()
        return record

    async def array(self, name: str, done: Done) -> Array:
        """A finished array, checked against its record."""
        content = await self.store.get(f"{self.prefix}{name}.npy")
        data = np.load(io.BytesIO(bytes(content)), allow_pickle=False)
        checked(raw(data), getattr(done, name), f"{self.prefix}{name}.npy")
        return data  # type: ignore[no-any-return]

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """A graph that counts is whole; what was promised is there, or the graph that it was for."""
        done, wrong = await self.done(), []
        if done is None:
            for stage, part in promised:
                if stage == DONE or await self.kept(stage, part) is None:
                    wrong.append(Violation("what was finished is there", f"{self.prefix}{stage} {part}"))
            return wrong
        for name in ("ids", "dist"):
            try:
                await self.array(name, done)
            except (StoreError, ValueError) as error:
                wrong.append(Violation("a graph that counts is whole", f"{type(error).__name__}: {error}"))
        return wrong

    def _part(self, stage: str, part: int) -> str:
        return f"{self.prefix}part-{part:04d}-{stage}"

    async def _create(self, name: str, data: Sequence[Any]) -> None:
        """Create an object unless it is there; whose it is, is read."""
        await put_surely(self.store, f"{self.prefix}{name}", data, if_absent=True)

    async def _put(self, name: str, data: Sequence[Any]) -> None:
        """Write an object whose bytes are always the same."""
        await put_surely(self.store, f"{self.prefix}{name}", data)

    async def _clear(self) -> None:
        """Remove the lists of the parts, of a graph that counts; what stays behind is removed by the next to look."""
        keys = [meta.key async for meta in self.store.list(f"{self.prefix}part-")]
        with suppress(Unknown):
            await self.store.delete(*keys)


def _header(array: Array) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, np.lib.format.header_data_from_array_1_0(array))
    return out.getvalue()


def _difference(there: Recipe, wanted: Recipe) -> str:
    """What the store's graph was begun with that is not wanted now."""
    if (there.n, there.width) != (wanted.n, wanted.width):
        return f"it holds a graph of {there.n:,} × {there.width} points, not {wanted.n:,} × {wanted.width}"
    if there.digest != wanted.digest:
        return "the points have changed since this graph was begun"
    names = [name for name in Recipe.__struct_fields__ if getattr(there, name) != getattr(wanted, name)]
    return "it holds a graph with " + ", ".join(f"{name} {getattr(there, name)}" for name in names)
