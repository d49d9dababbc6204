"""Watching a training job: what its ranks send, and what is made of it."""
