"""Observe: which rank, which cause, how much energy."""

from assay.record import surface

__all__, __dir__, __getattr__ = surface.of(__name__, __file__)
