"""Checkpoints over NFS as a closed queueing network: why a save uses a sliver of a fast link.

Every node keeps at most `slots` calls under way. A call crosses the node's own link, waits for the server that all
share, and spends a fixed latency on the way. That is a closed network, solved exactly by mean value analysis: the
number of calls is constant, so throughput times round trip equals it (Little's law). Slots are pooled among the nodes,
which are alike; a node that saves alone is a network of its own.

>>> few, many = saves(nodes=2), saves(nodes=63)
>>> few.utilisation > 4 * many.utilisation, round(many.utilisation, 3) < 0.11
(True, True)

- Reiser, Lavenberg, "Mean-value analysis of closed multichain queuing networks", JACM 1980.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.sim.compiled import njit


@dataclass(frozen=True, slots=True)
class Saves:
    """What each node gets while all save at once."""

    throughput: float
    """Bytes a second, of one node."""
    latency: float
    """Seconds from sending a call to its answer."""
    waiting: float
    """Calls of one node that wait or are served at the server."""
    utilisation: float
    """Of the node's link."""


@njit(cache=True, nogil=True)
def _mean_values(calls: int, nodes: int, link: float, server: float, delay: float) -> tuple[float, float, float]:
    """Throughput in calls a second, round trip in seconds, calls at the server; one call added at a time."""
    at_link = at_server = throughput = trip = 0.0
    for n in range(1, calls + 1):
        on_link = link * (1.0 + at_link)  # of one node's link: the others have theirs
        on_server = server * (1.0 + at_server)
        trip = on_link + on_server + delay
        throughput = n / trip
        at_link = throughput / nodes * on_link
        at_server = throughput * on_server
    return throughput, trip, at_server


def saves(
    nodes: int,
    *,
    slots: int = 128,
    call: float = 1 << 20,
    link: float = 25e9,
    server: float = 40e9,
    latency: float = 2e-3,
) -> Saves:
    """All `nodes` write at once: calls of `call` bytes, `link` and `server` in bytes a second, `latency` unloaded."""
    throughput, trip, at_server = _mean_values(nodes * slots, nodes, call / link, call / server, latency)
    each = throughput * call / nodes
    return Saves(each, trip, at_server / nodes, each / link)
