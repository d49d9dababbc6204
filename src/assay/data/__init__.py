"""Data: shuffles, deduplication, vector indexes, checkpoints, graph storage."""
