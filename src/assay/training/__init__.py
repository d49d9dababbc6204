"""Training: planners, parallelism, collectives and fault tolerance."""

from assay.record import surface

__all__, __dir__, __getattr__ = surface.of(__name__, __file__)
