"""What the training room speaks: who balances experts, and who says what a collective takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# ------------------------------------------------------------------------------------------------- experts


@dataclass(frozen=True)
class Hosts:
    """Where experts live: `main[e]` is the rank of expert `e`'s weights and optimizer; each rank has `slots` spare.

    >>> Hosts.dealt(experts=8, ranks=4, slots=2).main.tolist()
    [0, 0, 1, 1, 2, 2, 3, 3]
    """

    main: Ints
    ranks: int
    slots: int

    @classmethod
    def dealt(cls, experts: int, ranks: int, slots: int) -> Hosts:
        """Equally many experts a rank, in order.

        Raises:
            ValueError: the ranks do not divide the experts.
        """
        if ranks < 1 or experts % ranks:
            raise ValueError(f"{experts} experts on {ranks} ranks; a multiple expected, equally many a rank")
        return cls(np.repeat(np.arange(ranks, dtype=np.int64), experts // ranks), ranks, slots)


@dataclass(frozen=True)
class Shares:
    """How one microbatch is computed: `tokens[r, e, g]` of source rank `r` for expert `e` are computed on rank `g`."""

    tokens: Ints

    def load(self) -> Ints:
        """Tokens that each rank computes.

        >>> Shares(np.array([[[3, 1]], [[0, 4]]])).load().tolist()
        [3, 5]
        """
        return self.tokens.sum(axis=(0, 1))  # type: ignore[no-any-return]


class ExpertBalancer(Protocol):
    """Decides for one microbatch which ranks compute which tokens of each expert."""

    def rebalance(self, load: Ints, hosts: Hosts) -> Shares:
        """`load[r, e]`: tokens of source rank `r` that the gate sent to expert `e` in this very microbatch."""
        ...


# --------------------------------------------------------------------------------------------- collectives


class CollectiveModel(Protocol):
    """Seconds that a collective takes where nothing else is on the wires."""

    def seconds(self, op: str, group: Ints, nbytes: Floats) -> Floats:
        """`op` as torch names it (all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send); `nbytes` is
        what one rank holds before it, as in :mod:`assay.sim.collectives`; `group` are the ranks, in order."""
        ...
