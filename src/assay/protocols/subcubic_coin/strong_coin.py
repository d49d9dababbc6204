"""A strong coin: all correct nodes get the same fair bit, always.

`StrongCoin` is the real thing, for small groups: every node deals a secret, the group agrees one by one whose dealing
counts (n - f at least), and only then are those secrets opened; their parity is the coin. Nobody can know it before the
set is fixed, since a correct node's secret is among them. No setup, no signatures, f < n/5 (Ben-Or's agreement). Its
cost is that of n dealings and n agreements, about n³ messages.

>>> from assay.protocols.kernel.world import World
>>> len(set(World(n=6, f=1, node=StrongCoin, seed=4).run("async").decided().values()))
1

Ben-Or, Canetti and Goldreich, STOC 1993, for agreement on a common subset.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from assay.protocols.interface import Ctx, Node, NodeId, Parent
from assay.protocols.subcubic_coin.avss import PRIME, Avss
from assay.protocols.subcubic_coin.ben_or import BenOr


class _Dealing(Avss):
    """Deals when it is told to; the input, if there is one, is the owner's."""

    def start(self, ctx: Ctx) -> None:
        pass


class _Choice(BenOr):
    """Begins when it is told to."""

    def start(self, ctx: Ctx) -> None:
        pass


class StrongCoin(Parent):
    """One toss; decides 0 or 1."""

    def __init__(self, name: object = 0) -> None:
        """`name` tells tosses apart for the owner; the coin does not need it."""
        super().__init__()
        self.name = name
        self.chosen: dict[NodeId, int] = {}
        self.secrets: dict[NodeId, int] = {}
        self.tossed = False

    def start(self, ctx: Ctx) -> None:
        """Deal a secret."""
        found = self.sub(ctx, ("deal", ctx.id))
        assert found is not None
        dealing, inner = found
        assert isinstance(dealing, Avss)
        dealing.deal(inner, int(ctx.rng.integers(PRIME)))

    def child(self, ctx: Ctx, name: Any) -> Node | None:
        """A dealing or an agreement for each node."""
        match name:
            case ("deal", int(dealer)) if 0 <= dealer < ctx.n:
                return _Dealing(dealer)
            case ("choose", int(dealer)) if 0 <= dealer < ctx.n:
                return _Choice()
        return None

    def decided(self, ctx: Ctx, name: Any, value: Any, slot: Hashable) -> None:
        """A secret is shared, its dealer chosen or not, the secret opened."""
        kind, dealer = name
        if kind == "choose":
            self.chosen[dealer] = value
        elif slot == "shared":
            self._choose(ctx, dealer, 1)
        else:
            self.secrets[dealer] = value
        if sum(self.chosen.values()) >= ctx.n - ctx.f:
            for other in range(ctx.n):
                self._choose(ctx, other, 0)
        self._finish(ctx)

    def _choose(self, ctx: Ctx, dealer: NodeId, bit: int) -> None:
        found = self.sub(ctx, ("choose", dealer))
        if found is not None and isinstance(found[0], BenOr):
            found[0].propose(found[1], bit)

    def _finish(self, ctx: Ctx) -> None:
        if len(self.chosen) < ctx.n or self.tossed:
            return
        counted = [dealer for dealer in range(ctx.n) if self.chosen[dealer]]
        for dealer in counted:
            found = self.sub(ctx, ("deal", dealer))
            if found is not None and isinstance(found[0], Avss):
                found[0].open(found[1])
        if all(dealer in self.secrets for dealer in counted) and not self.tossed:
            self.tossed = True
            ctx.decide(sum(self.secrets[dealer] for dealer in counted) % 2)
