"""The plane for plain Python: a producer from a generator, and a torch dataset of one rank's slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from assay.data.interface import Buffer, Store
from assay.data.lakestream.consumer import AHEAD
from assay.data.lakestream.pace import Pace
from assay.data.lakestream.plane import Plane
from assay.data.lakestream.producer import Producer
from assay.data.store.address import open_store
from assay.data.store.blocking import background, wait
from assay.record.errors import BadInput
from assay.record.extras import missing_module

if TYPE_CHECKING:
    from assay.data.lakestream.torch_dataset import PlaneDataset

AT_ONCE = 4  # batches that are written while the next one is made
Batches = Callable[[Any], Iterator[tuple[Sequence[Buffer], Any]]]


def opened(store: str | Store, **options: Any) -> Plane:
    """The plane at an address."""
    plane = Plane(**options)
    wait(plane.open(open_store(store) if isinstance(store, str) else store))
    return plane


def produce(
    store: str | Store, name: str, batches: Batches, *, slices: int, producers: int = 1, pace: Pace | None = None,
    seen: Callable[[int], None] = lambda count: None,
) -> Producer:  # fmt: skip
    """Publish all batches of a source, each exactly once, however often this is killed and called again.

    `batches(cursor)` yields the slices of a batch and the cursor behind it, a value that JSON could hold; it is called
    with the cursor behind the last batch that became visible, None at first.

    >>> from assay.data.store.memory import MemStore
    >>> def numbers(cursor):
    ...     for i in range(cursor or 0, 3):
    ...         yield [b"%d for rank 0" % i, b"%d for rank 1" % i], i + 1
    >>> store = MemStore()
    >>> produce(store, "numbers", numbers, slices=2).commits > 0
    True
    >>> [bytes(part) for part, in slices(store, rank=1, world=2)]
    [b'0 for rank 1', b'1 for rank 1', b'2 for rank 1']
    """
    plane = opened(store, slices=slices, producers=producers)

    async def work() -> Producer:
        producer = plane.producer(name, pace)
        every = batches(await producer.start())
        count, writing = 0, list[asyncio.Task[None]]()
        try:
            while (made := await asyncio.to_thread(next, every, None)) is not None:
                writing.append(asyncio.ensure_future(producer.publish(*made)))
                if len(writing) > AT_ONCE:
                    await writing.pop(0)
                count += 1
                seen(count)
            await asyncio.gather(*writing)
            await producer.finish()
        except BadInput:  # of the source: what it gave before is as good as any
            await asyncio.gather(*writing)
            await producer.finish(done=False)
            raise
        finally:
            producer.stop()
            for one in writing:  # where one failed, the others' batches would be named by nobody
                one.cancel()
            await asyncio.gather(*writing, return_exceptions=True)
        return producer

    return wait(work())


def slices(
    store: str | Store, rank: int, world: int, *, start: int = 0, every: int = 1, turns: Sequence[str] = (),
    ahead: int = AHEAD,
) -> Iterator[list[Buffer]]:  # fmt: skip
    """This rank's slices of the steps from `start` on (every so-manieth); waits for producers, ends with them."""
    consumer = opened(store).consumer(rank, world, turns)
    loop = background()
    fetching: list[Future[list[Buffer] | None]] = []
    step = start
    try:
        while True:
            while len(fetching) <= ahead:
                fetching.append(asyncio.run_coroutine_threadsafe(consumer.read(step), loop))
                step += every
            found = fetching.pop(0).result()
            if found is None:
                return
            yield found
    finally:
        for future in fetching:
            future.cancel()


def dataset(
    store: str | Store, rank: int, world: int, *, start: int = 0, turns: Sequence[str] = (),
    decode: Callable[[list[Buffer]], Any] = list,
) -> PlaneDataset:  # fmt: skip
    """A torch dataset over the plane: item n is this rank's part of step `start + n`, on every run the same.

    Give it to `DataLoader(..., batch_size=None)`; several workers share the steps, and the loader keeps their order.

    >>> import numpy as np
    >>> from assay.data.store.memory import MemStore
    >>> store = MemStore()
    >>> rows = lambda cursor: (([np.full(2, i, np.float32).tobytes()], i + 1) for i in range(cursor or 0, 3))
    >>> _ = produce(store, "rows", rows, slices=1)
    >>> found = dataset(store, 0, 1, start=1, decode=lambda parts: np.frombuffer(parts[0], np.float32).tolist())
    >>> list(found)
    [[1.0, 1.0], [2.0, 2.0]]
    """
    try:
        from assay.data.lakestream.torch_dataset import PlaneDataset
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("a torch dataset over the plane", error)) from error
    return PlaneDataset(store, rank, world, start, turns, decode)
