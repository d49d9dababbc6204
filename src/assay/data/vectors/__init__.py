"""Vectors and their neighbours: files in the published formats, a drifting stream, graph search, product codes."""

from assay.data.vectors.files import read_vectors, write_vectors
from assay.data.vectors.generate import Drift, drifting
from assay.data.vectors.graph import beam_search, brute_force, nn_descent, robust_prune
from assay.data.vectors.product import ProductCode

__all__ = [
    "Drift",
    "ProductCode",
    "beam_search",
    "brute_force",
    "drifting",
    "nn_descent",
    "read_vectors",
    "robust_prune",
    "write_vectors",
]
