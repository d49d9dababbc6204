"""Data: moving, storing, indexing and checkpointing what is larger than memory, and losing none of it."""

from assay.record import surface

__all__, __dir__, __getattr__ = surface.of(__name__, __file__)
