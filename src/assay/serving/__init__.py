"""Serving: routing, caching, batching and provisioning of LLM replicas."""

from assay.record import surface

__all__, __dir__, __getattr__ = surface.of(__name__, __file__)
