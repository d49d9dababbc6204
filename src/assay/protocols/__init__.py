"""The room of message-passing algorithms and of agents that interact."""

from assay.record import surface

__all__, __dir__, __getattr__ = surface.of(__name__, __file__)
