"""All handlers in one place: importing this makes `ShardTensor` know every call it can know."""

from __future__ import annotations

from assay.training.shardtensor import contraction, pointwise, statistics, views, windows
from assay.training.shardtensor.shards import Domain, ShardTensor, Unsupported, redistributed, shard

__all__ = ["Domain", "ShardTensor", "Unsupported", "redistributed", "shard"]

MODULES = (contraction, pointwise, statistics, views, windows)
