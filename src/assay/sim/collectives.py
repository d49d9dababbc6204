"""How long a collective takes, in closed form: so many latencies, and so many bytes over a bandwidth.

`nbytes` is what one rank holds: the vector of an all-reduce, the part a rank contributes to an all-gather, all that a
rank sends in an all-to-all. It may be an array. A ring passes 2(p-1) times through the latency and moves 2(p-1)/p of
the vector; a tree (two of them, each of half the vector) passes 2 log2(p) times and moves twice the vector. Which is
faster depends on the size, so `all_reduce` takes the better of the two, as the libraries choose.

- Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005.
- Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", ParCo 2009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Bytes = TypeVar("Bytes", float, NDArray[np.float64])


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a device's connection: seconds until the first byte, bytes a second after it.

    >>> round(Link(latency=1e-6, bandwidth=100e9).seconds(1e6) * 1e6, 3)
    11.0
    """

    latency: float
    bandwidth: float

    def seconds(self, nbytes: Bytes) -> Bytes:
        """The time of one transfer."""
        return self.latency + nbytes / self.bandwidth

    def derated(self, efficiency: float) -> Link:
        """The same link at a fraction of its bandwidth."""
        return Link(self.latency, self.bandwidth * efficiency)


def send(nbytes: Bytes, link: Link) -> Bytes:
    """One rank to one other.

    >>> round(send(1e6, Link(1e-6, 100e9)) * 1e6, 3)  # 1 us + 1 MB / 100 GB/s
    11.0
    """
    return link.seconds(nbytes)


def ring_all_reduce(p: int, nbytes: Bytes, link: Link) -> Bytes:
    """Reduce-scatter, then all-gather, around a ring: best for large vectors.

    >>> round(ring_all_reduce(4, 1e6, Link(1e-6, 100e9)) * 1e6, 3)  # 6 us + 1.5 MB / 100 GB/s
    21.0
    """
    return 2 * (p - 1) * link.latency + 2 * (p - 1) / p * nbytes / link.bandwidth


def tree_all_reduce(p: int, nbytes: Bytes, link: Link) -> Bytes:
    """Up a binary tree and down again: best for small vectors on many ranks.

    >>> round(tree_all_reduce(4, 1e6, Link(1e-6, 100e9)) * 1e6, 3)  # 4 us + 2 MB / 100 GB/s
    24.0
    """
    if p == 1:
        return 0.0 * nbytes
    return 2 * math.ceil(math.log2(p)) * link.latency + 2 * nbytes / link.bandwidth


def all_reduce(p: int, nbytes: Bytes, link: Link) -> Bytes:
    """The better of ring and tree for each size.

    >>> all_reduce(8, 1e3, Link(1e-6, 100e9)) == tree_all_reduce(8, 1e3, Link(1e-6, 100e9))
    True
    """
    ring, tree = ring_all_reduce(p, nbytes, link), tree_all_reduce(p, nbytes, link)
    if isinstance(ring, np.ndarray):
        return np.minimum(ring, tree)
    return min(ring, tree)


def all_gather(p: int, nbytes: Bytes, link: Link) -> Bytes:
    """Every rank ends with the `nbytes` of each of the p; a reduce-scatter takes as long.

    >>> round(all_gather(4, 1e6, Link(1e-6, 100e9)) * 1e6, 3)  # 3 us + 3 MB / 100 GB/s
    33.0
    """
    return (p - 1) * (link.latency + nbytes / link.bandwidth)


def all_to_all(p: int, nbytes: Bytes, link: Link, skew: float = 1.0) -> Bytes:
    """Every rank sends a different part of its `nbytes` to every rank, the busiest `skew` times the mean.

    All parts leave at once, so there is one latency.

    >>> round(all_to_all(4, 1e6, Link(1e-6, 100e9), skew=2.0) * 1e6, 3)  # 1 us + 2 * 0.75 MB / 100 GB/s
    16.0
    """
    if p == 1:
        return 0.0 * nbytes
    return link.latency + skew * (p - 1) / p * nbytes / link.bandwidth


def nested_all_reduce(p: int, per_node: int, nbytes: Bytes, inside: Link, outside: Link) -> Bytes:
    """Over several nodes: reduce-scatter within each, all-reduce the parts between them, all-gather within each.

    >>> link = Link(1e-6, 100e9)
    >>> nested_all_reduce(8, 8, 1e6, link, Link(1e-5, 1e9)) == all_reduce(8, 1e6, link)  # one node
    True
    """
    if p <= per_node:
        return all_reduce(p, nbytes, inside)
    nodes = math.ceil(p / per_node)
    return 2 * all_gather(per_node, nbytes / per_node, inside) + all_reduce(nodes, nbytes / per_node, outside)


def nested_all_gather(p: int, per_node: int, nbytes: Bytes, inside: Link, outside: Link) -> Bytes:
    """Over several nodes: ranks of the same place in their nodes gather first, then each node gathers what they have.

    >>> link = Link(1e-6, 100e9)
    >>> nested_all_gather(8, 8, 1e6, link, Link(1e-5, 1e9)) == all_gather(8, 1e6, link)  # one node
    True
    """
    if p <= per_node:
        return all_gather(p, nbytes, inside)
    nodes = math.ceil(p / per_node)
    return all_gather(nodes, nbytes, outside) + all_gather(per_node, nodes * nbytes, inside)


def nested_all_to_all(p: int, per_node: int, nbytes: Bytes, inside: Link, outside: Link, skew: float = 1.0) -> Bytes:
    """Over several nodes: what stays within and what leaves go side by side, and the slower of them counts.

    >>> link = Link(1e-6, 100e9)
    >>> nested_all_to_all(8, 8, 1e6, link, Link(1e-5, 1e9)) == all_to_all(8, 1e6, link)  # one node
    True
    """
    if p <= per_node:
        return all_to_all(p, nbytes, inside, skew)
    within = inside.latency + skew * (per_node - 1) / p * nbytes / inside.bandwidth
    beyond = outside.latency + skew * (p - per_node) / p * nbytes / outside.bandwidth
    if isinstance(within, np.ndarray):
        return np.maximum(within, beyond)
    return max(within, beyond)
