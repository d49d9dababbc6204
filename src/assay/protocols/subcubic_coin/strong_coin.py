"""A strong coin: all correct nodes get the same fair bit, always.

`StrongCoin` is for small groups: every node deals a secret, the group agrees one by one whose dealing
counts (n - f at least), and only then are those secrets opened; their parity is the coin. Nobody can know it before the
set is fixed, since a correct node's secret is among them. No setup, no signatures, f < n/5 (Ben-Or's agreement). Its
cost is that of n dealings and n agreements, about n³ messages.

>>> from assay.protocols.kernel.world import World
>>> len(set(World(n=6, f=1, node=StrongCoin, seed=4).run("async").decided().values()))
1

Ben-Or, Canetti and Goldreich, STOC 1993, for agreement on a common subset.

`Avss` is what it deals by, verifiable secret sharing by hashes, in asynchrony: no f nodes know the dealt secret, any f
+ 1 can open it.

The dealer takes two random polynomials of degree f, the first with the secret at zero, and deals their values, bound
together by a Merkle tree over all shares. A node echoes the root once it holds a share that hangs in it; from there on
it is Bracha's broadcast of the root, so all correct nodes accept the same one or none, and if they do, f + 1 correct
nodes hold shares. To open, nodes reveal theirs. f + 1 of them give both polynomials, hence all shares, hence the
root again; if it is another one, the dealer dealt rubbish, and everybody takes 0 for the secret, whichever shares it
saw. About 2n² messages to share and n² to open; f < n/3.

The polynomials are over the integers modulo 2⁶¹ - 1: enough for a study, not for keeping secrets.

>>> from functools import partial
>>> from assay.protocols.kernel.world import World
>>> world = World(n=4, f=1, node=partial(Avss, dealer=0, opening=True), inputs=[42])
>>> world.run("async").decided("secret")
{0: 42, 1: 42, 2: 42, 3: 42}

Shamir, How to Share a Secret, CACM 1979; Cachin, Kursawe, Lysyanskaya and Strobl, CCS 2002, for the composition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId, Parent
from assay.protocols.kernel.signatures import Proof, belongs, tree
from assay.protocols.subcubic_coin.ben_or import BenOr

PRIME = (1 << 61) - 1
Share = tuple[int, int]


def evaluate(coefficients: Sequence[int], x: int) -> int:
    """The polynomial's value, modulo the prime.

    >>> evaluate([5, 0, 2], 3)
    23
    """
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def interpolate(points: Mapping[int, int], x: int) -> int:
    """The value at x of the polynomial of least degree through the points.

    >>> interpolate({1: 3, 2: 5}, 0)
    1
    """
    weights = _weights(tuple(points), x)
    return sum(value * weight for value, weight in zip(points.values(), weights, strict=True)) % PRIME


@lru_cache(maxsize=1 << 14)
def _weights(places: tuple[int, ...], x: int) -> tuple[int, ...]:
    """How much the value at each place counts at x: the same for all secrets that the same members open."""
    found = []
    for here in places:
        above = below = 1
        for other in places:
            if other != here:
                above = above * (x - other) % PRIME
                below = below * (here - other) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)


def _leaf(share: Share) -> bytes:
    return share[0].to_bytes(8, "little") + share[1].to_bytes(8, "little")


class Avss(Node):
    """One secret. The dealer deals its input. Decides the root in slot "shared", the secret in slot "secret"."""

    def __init__(self, dealer: NodeId, opening: bool = False) -> None:
        """`opening`: reveal as soon as it is shared; otherwise when the owner calls `open`."""
        self.dealer, self.opening = dealer, opening
        self.share: tuple[bytes, Share, Proof] | None = None
        self.ready = self.shared = self.revealed = self.opened = False
        self.root = b""
        self.echoes: defaultdict[bytes, set[NodeId]] = defaultdict(set)
        self.readies: defaultdict[bytes, set[NodeId]] = defaultdict(set)
        self.shares: defaultdict[bytes, dict[NodeId, Share]] = defaultdict(dict)

    def start(self, ctx: Ctx) -> None:
        """The dealer deals its input."""
        if ctx.id == self.dealer and ctx.input is not None:
            self.deal(ctx, int(ctx.input))

    def deal(self, ctx: Ctx, secret: int) -> None:
        """Deal this secret, 0 to 2⁶¹ - 2."""
        drawn = ctx.rng.integers(PRIME, size=2 * ctx.f + 1).tolist()
        first, second = [secret, *drawn[: ctx.f]], drawn[ctx.f :]
        shares = [(evaluate(first, node + 1), evaluate(second, node + 1)) for node in range(ctx.n)]
        root, proofs = tree([_leaf(share) for share in shares])
        for node in range(ctx.n):
            ctx.send(node, ("deal", root, *shares[node], proofs[node]))

    def open(self, ctx: Ctx) -> None:
        """Reveal one's share, now or once the secret is shared."""
        self.opening = True
        if self.shared and not self.revealed and self.share is not None and self.share[0] == self.root:
            self.revealed = True
            _, share, proof = self.share
            ctx.broadcast(("reveal", self.root, *share, proof))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Echo a share that fits, accept what 2f + 1 are ready for, open with f + 1 shares."""
        match msg:
            case ("deal", bytes(root), int(a), int(b), tuple(proof)) if src == self.dealer and self.share is None:
                if _fits(ctx, root, ctx.id, (a, b), proof):
                    self.share = (root, (a, b), proof)
                    ctx.broadcast(("echo", root))
                    if self.opening:
                        self.open(ctx)
            case ("echo", bytes(root)):
                self.echoes[root].add(src)
                if len(self.echoes[root]) > (ctx.n + ctx.f) // 2:
                    self._get_ready(ctx, root)
            case ("ready", bytes(root)):
                self.readies[root].add(src)
                if len(self.readies[root]) > ctx.f:
                    self._get_ready(ctx, root)
                if len(self.readies[root]) > 2 * ctx.f and not self.shared:
                    self._accept(ctx, root)
            case ("reveal", bytes(root), int(a), int(b), tuple(proof)) if src not in self.shares[root]:
                if _fits(ctx, root, src, (a, b), proof):
                    self.shares[root][src] = (a, b)
                    self._try(ctx)

    def _get_ready(self, ctx: Ctx, root: bytes) -> None:
        if not self.ready:
            self.ready = True
            ctx.broadcast(("ready", root))

    def _accept(self, ctx: Ctx, root: bytes) -> None:
        self.shared, self.root = True, root
        ctx.decide(root, slot="shared")
        if self.opening:
            self.open(ctx)
        self._try(ctx)

    def _try(self, ctx: Ctx) -> None:
        shares = self.shares[self.root]
        if not self.shared or self.opened or len(shares) <= ctx.f:
            return
        self.opened = True
        chosen = sorted(shares)[: ctx.f + 1]
        first = {node + 1: shares[node][0] for node in chosen}
        second = {node + 1: shares[node][1] for node in chosen}
        whole = [(interpolate(first, node + 1), interpolate(second, node + 1)) for node in range(ctx.n)]
        sound = tree([_leaf(share) for share in whole])[0] == self.root
        ctx.decide(interpolate(first, 0) if sound else 0, slot="secret")


def _fits(ctx: Ctx, root: bytes, place: int, share: Share, proof: Proof) -> bool:
    small = all(0 <= value < PRIME for value in share)
    return small and all(isinstance(one, bytes) for one in proof) and belongs(
        root, place, _leaf(share), proof, ctx.n
    )  # fmt: skip


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
