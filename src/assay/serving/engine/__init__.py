"""The simulator of LLM serving and what it consists of."""

from assay.record import surface

__all__, __dir__, __getattr__ = surface.of(__name__, __file__)
