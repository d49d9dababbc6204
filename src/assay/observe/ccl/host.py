"""CCL-D's host half around a library one cannot change: torch.distributed's collectives, on Gloo or NCCL.

Wrapping a collective writes which call it is, with what, and when it began and ended, into the same record of 1,184
bytes that the ring's own probe fills; Send and Recv counts stay zero. From that a rank that did not call (H1),
ranks that called different things (H2) and a late rank (S1) can be told, a rank stuck inside cannot (H3), and a slow
wire shows as such but names nobody (S2).

Wrap what the program calls on every rank, in a block; collectives must be the blocking ones::

    import torch.distributed as dist
    from assay.observe.ccl.host import watched

    with watched(dist, Probe(record, dist.get_rank(), dist.get_world_size())):
        train()

>>> import types
>>> import numpy as np
>>> from assay.observe.ccl.probe import WORDS, Records
>>> library = types.SimpleNamespace(all_reduce=lambda tensor: tensor.sum())
>>> words = np.zeros(WORDS, np.int64)
>>> with watched(library, Probe(words.data, rank=0, size=1)):
...     float(library.all_reduce(np.ones(5)))
5.0
>>> Records.of(words).signatures(1)[0].tolist()
[[0, 54, 5]]
"""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from assay.observe.ccl.probe import KINDS, Probe

WRAPPED = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "all_gather_into_tensor": "all_gather",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "all_to_all", "all_to_all_single": "all_to_all",
}  # fmt: skip
_OUTPUT_FIRST = ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
                 "all_to_all_single")  # fmt: skip


@contextmanager
def watched(library: Any, probe: Probe, clock: Callable[[], int] = time.monotonic_ns) -> Iterator[None]:
    """While in the block, the library's collectives write to the probe; afterwards they are what they were."""
    before = {name: getattr(library, name) for name in WRAPPED if hasattr(library, name)}
    try:
        for name, collective in before.items():
            setattr(library, name, _wrapped(name, collective, probe, clock))
        yield
    finally:
        for name, collective in before.items():
            setattr(library, name, collective)


def _wrapped(name: str, collective: Callable[..., Any], probe: Probe, clock: Callable[[], int]) -> Callable[..., Any]:
    kind = WRAPPED[name]
    assert kind in KINDS

    @functools.wraps(collective)
    def call(*arguments: Any, **options: Any) -> Any:
        if options.get("async_op"):
            raise ValueError(f"{name}: a call that returns before it is over cannot be timed; use the blocking one")
        given = arguments[1] if name in _OUTPUT_FIRST and len(arguments) > 1 else arguments[0]
        probe.enter(kind, _dtype(given), _count(given), clock())
        result = collective(*arguments, **options)
        probe.leave(clock())
        return result

    return call


def _count(given: Any) -> int:
    """Elements of a tensor, or of all tensors of a list."""
    if isinstance(given, list | tuple):
        return sum(_count(item) for item in given)
    return int(given.numel()) if hasattr(given, "numel") else int(given.size)


def _dtype(given: Any) -> int:
    """A number for the element type that is the same in every process; a list counts as its first tensor."""
    first = given[0] if isinstance(given, list | tuple) and given else given
    name = str(getattr(first, "dtype", ""))
    return zlib.crc32(name.encode()) % 256
