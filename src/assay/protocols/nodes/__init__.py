"""A library of nodes to run, to build on and to break. They go by their names alone:

>>> from assay.protocols import nodes
>>> nodes.Bracha.__module__
'assay.protocols.nodes.broadcast'

so ``assay protocol run assay.protocols.nodes:Bracha`` runs one; its module is imported when it is asked for.
"""

from assay.record import surface

__all__, __dir__, __getattr__ = surface.of(__name__, __file__)
