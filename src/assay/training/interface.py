"""What the training room speaks: layouts and plans, who orders a pipeline, who balances experts, who says what a
collective takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.sim.grids import Grid

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# --------------------------------------------------------------------------------------------------- plans


@dataclass(frozen=True)
class Layout:
    """How a model is cut: tensor, context, pipeline, data and expert parallelism, and parts a stage (`vpp`).

    Attention and experts lie on two meshes over the same ranks of a stage, and share only the stages. Attention's is
    (tp, cp, dp), tp changing fastest; the experts' is (etp, ecp, ep, edp): `ep` ranks have different experts, each of
    them cut over `etp` ranks, and what is left of the stage, `ecp` of it between neighbours, holds copies. With etp 1
    and ecp 1 an expert is whole and its all-to-all as near as can be; with etp = tp and ecp = cp experts follow
    attention's mesh, and only data parallelism is dealt experts.

    >>> Layout(tp=8, pp=16, dp=128).ranks
    16384
    >>> Layout(tp=2, cp=2, dp=4, ep=8).experts.groups("ep").tolist()  # across tp and cp, eight neighbours
    [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]]
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    vpp: int = 1
    etp: int = 1
    ecp: int = 1

    @property
    def edp(self) -> int:
        """Copies of an expert among the ranks of a stage."""
        return self.tp * self.cp * self.dp // (self.etp * self.ep)

    @property
    def folded(self) -> bool:
        """Whether experts are cut over ranks that share a sequence or a layer of attention.

        >>> Layout(tp=2, dp=8, ep=8).folded, Layout(tp=2, dp=8, ep=8, etp=2).folded
        (True, False)
        """
        return (self.etp, self.ecp) != (self.tp, self.cp) or self.dp % self.ep != 0

    @property
    def attention(self) -> Grid:
        """The ranks as all layers but the experts see them."""
        return Grid.of(tp=self.tp, cp=self.cp, dp=self.dp, pp=self.pp)

    @property
    def experts(self) -> Grid:
        """The ranks as the experts see them; copies differ on `ecp` and `edp`."""
        return Grid.of(etp=self.etp, ecp=self.ecp, ep=self.ep, edp=self.edp // self.ecp, pp=self.pp)

    @property
    def ranks(self) -> int:
        """Devices."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def stages(self) -> int:
        """Parts that the layers are cut into."""
        return self.pp * self.vpp

    @property
    def name(self) -> str:
        """As one would write it.

        >>> Layout(tp=8, pp=4, dp=2, vpp=2).name
        'tp8 pp4 vpp2 dp2'
        """
        parts = [
            f"{key}{getattr(self, key)}"
            for key in ("tp", "cp", "pp", "vpp", "ep", "etp", "ecp")
            if getattr(self, key) > 1
        ]
        return " ".join([*parts, f"dp{self.dp}"])


@dataclass(frozen=True)
class Plan:
    """A layout, and how a step goes on it.

    `mbs` sequences make a microbatch. `recompute`: none, selective (norms and activations) or full (whole layers).
    `zero`: 0 keeps everything, 1 shards the optimizer over data parallelism, 2 gradients too, 3 also the weights.
    `overlap`: gradients leave and weights arrive while layers compute, not before and after.
    """

    layout: Layout
    schedule: str = "1f1b"
    mbs: int = 1
    recompute: str = "none"
    zero: int = 1
    overlap: bool = True

    @property
    def name(self) -> str:
        """As one would write it.

        >>> Plan(Layout(tp=2, dp=4), mbs=2).name
        'tp2 dp4 1f1b mbs2 recompute none zero1'
        """
        return f"{self.layout.name} {self.schedule} mbs{self.mbs} recompute {self.recompute} zero{self.zero}"


@dataclass(frozen=True)
class Job:
    """What a step trains on: `batch` sequences of `seq` tokens.

    `pairs` is the mean number of tokens that a token sees before itself; packed documents see less than `seq` / 2.
    """

    batch: int
    seq: int
    pairs: float = math.nan

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.seq

    @property
    def seen(self) -> float:
        """Tokens that a token attends to, on average.

        >>> Job(1, 4096).seen
        2048.0
        """
        return self.seq / 2 if math.isnan(self.pairs) else self.pairs


class Schedule(Hashable, Protocol):
    """The order in which every stage of a pipeline works; graphs are kept by it, so it can be hashed."""

    @property
    def chunks(self) -> int:
        """Parts of the model that a stage holds."""
        ...

    @property
    def split(self) -> bool:
        """Whether the weights' gradients (W) are slots of their own."""
        ...

    @property
    def flush(self) -> bool:
        """Whether a step drains before the weights change."""
        ...

    def virtual(self, chunk: int, stage: int, pp: int) -> int:
        """Which part of the model this chunk of this stage is, counted from the first layer."""
        ...

    def check(self, pp: int, m: int) -> None:
        """Raise `BadInput` where so many microbatches do not go through so many stages."""
        ...

    def slots(self, stage: int, pp: int, m: int) -> Ints:
        """Rows (what, chunk, microbatch, joined): what is 0 forward, 1 backward, 2 gradients of the weights; a joined
        slot runs overlapped with the one before it."""
        ...


class Assigner(Protocol):
    """Deals the samples of a step to copies of the model and to their microbatches."""

    def assign(self, work: Floats, copies: int, m: int) -> Ints:
        """For each sample, by what it costs, a row (copy, microbatch)."""
        ...


class Planner(Protocol):
    """Looks for the best plan by asking for the outcomes of some."""

    def search(self, plans: Sequence[Plan], ask: Callable[[Sequence[Plan]], Sequence[Any]]) -> None:
        """Call `ask` as often as it likes; the fastest plan that was asked for and fits is its answer."""
        ...


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
