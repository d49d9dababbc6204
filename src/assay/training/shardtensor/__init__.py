"""ShardTensor."""
from assay.training.shardtensor import attention, contraction, pointwise, ring, shards, statistics, views, windows
