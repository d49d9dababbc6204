"""Benchmarks of a user's own repository: configuration, interleaved runs, the judge, the history."""
