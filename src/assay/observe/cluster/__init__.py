"""A cluster of 504 GPUs as a model, with planted failures, and the plainest detector on it."""
