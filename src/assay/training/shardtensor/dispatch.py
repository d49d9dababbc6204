"""All handlers in one place: importing this makes `ShardTensor` know every call it can know."""

from __future__ import annotations

from assay.training.shardtensor import contraction, pointwise, statistics, views, windows
from assay.training.shardtensor.shards import HANDLERS, Domain, ShardTensor, Unsupported, redistributed, shard

__all__ = ["Domain", "ShardTensor", "Unsupported", "redistributed", "shard", "supported"]

MODULES = (contraction, pointwise, statistics, views, windows)


def supported() -> list[str]:
    """Names of all torch calls that have a distributed version.

    >>> "conv2d" in supported(), "fft" in supported()
    (True, False)
    """
    return sorted(HANDLERS)
