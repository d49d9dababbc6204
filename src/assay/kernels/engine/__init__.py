"""The room's engine: the runner, the measured machine, the tuning cache, CUDA sources with and without a GPU."""
