"""Kernels: numerical and symbolic kernels, exact and beside their peers."""

from assay.record import surface

__all__, __dir__, __getattr__ = surface.of(__name__, __file__)
