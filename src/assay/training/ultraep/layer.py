"""A mixture of experts in torch over the ranks of a process group, whose microbatches any `ExpertBalancer` may balance.

Gate, counts to everybody, the same plan on every rank, weights to the copies, tokens to whoever computes them, results
back. Autograd goes the same way home: gradients of copied weights are sent to the main rank and added to its own, so
optimizers see one expert, and copies have no state. Needs the extra `torch`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.sim.row_exchange import Sizes, exchange
from assay.training.interface import ExpertBalancer, Hosts, Ints
from assay.training.ultraep.rivals import Nobody
from assay.training.ultraep.solver import destinations


class Experts(nn.Module):
    """`experts` two-layer networks, dealt to the ranks of the default process group; every token uses `top_k` of them.

    Args:
        hidden: width of a token.
        ffn: width inside an expert.
        experts: how many on all ranks together; the ranks divide them.
        top_k: experts of a token.
        balancer: who decides which rank computes what; None: where the expert lives.
        slots: copies that a rank has room for.
    """

    def __init__(
        self, hidden: int, ffn: int, experts: int, top_k: int, balancer: ExpertBalancer | None = None, slots: int = 2
    ) -> None:
        super().__init__()
        self.rank, self.top_k = dist.get_rank(), top_k
        self.balancer: ExpertBalancer = balancer or Nobody()
        self.hosts = Hosts.dealt(experts, dist.get_world_size(), slots)
        self.gate = nn.Linear(hidden, experts)
        own = experts // self.hosts.ranks
        self.up = nn.Parameter(torch.randn(own, hidden, ffn) / hidden**0.5)
        self.down = nn.Parameter(torch.randn(own, ffn, hidden) / ffn**0.5)
        self.computed = np.zeros(experts, np.int64)
        """Tokens of each expert that this rank computed in the last microbatch."""

    def forward(self, x: Tensor) -> Tensor:
        """Rows of tokens to rows of the same shape."""
        probability, chosen = self.gate(x).softmax(-1).topk(self.top_k)
        tokens = self.balancer.rebalance(self._counts(chosen), self.hosts).tokens
        to = destinations(chosen.flatten().numpy(), tokens[self.rank])
        order = torch.from_numpy(np.lexsort((chosen.flatten().numpy(), to)))
        token = order // self.top_k
        needed = tokens.sum(axis=0) > 0
        needed[np.arange(len(self.hosts.main)), self.hosts.main] = False
        out = tokens[self.rank].sum(axis=0).tolist(), tokens[:, :, self.rank].sum(axis=1).tolist()
        weights, ways = self._lent(needed)
        rows, *lent = exchange([out, ways, ways], x[token], *weights)
        done = self._computed(rows, lent, needed, tokens[:, :, self.rank])
        (back,) = exchange([out[::-1]], done)
        weight = probability.flatten()[order]
        return torch.zeros_like(x).index_add(0, token, back * weight[:, None])

    def _counts(self, chosen: Tensor) -> Ints:
        """Tokens [source, expert] of this microbatch, the same on all ranks."""
        mine = torch.bincount(chosen.flatten(), minlength=len(self.hosts.main))
        gathered = [torch.empty_like(mine) for _ in range(self.hosts.ranks)]
        dist.all_gather(gathered, mine)
        return torch.stack(gathered).numpy()

    def _lent(self, needed: Any) -> tuple[tuple[Tensor, Tensor], tuple[Sizes, Sizes]]:
        """The weights that this rank's experts send to copies, and how many go to and come from every rank."""
        mine = np.flatnonzero(self.hosts.main == self.rank)
        to, which = np.nonzero(needed[mine].T)
        out = np.bincount(to, minlength=self.hosts.ranks).tolist()
        into = np.bincount(self.hosts.main[needed[:, self.rank]], minlength=self.hosts.ranks).tolist()
        index = torch.from_numpy(which)
        return (self.up[index], self.down[index]), (out, into)

    def _computed(self, rows: Tensor, lent: list[Tensor], needed: Any, share: Ints) -> Tensor:
        """Every row through its expert, main or copy; rows lie by source, then by expert."""
        expert = np.repeat(np.tile(np.arange(share.shape[1]), len(share)), share.ravel())
        self.computed = share.sum(axis=0)
        mine, copies = np.flatnonzero(self.hosts.main == self.rank), np.flatnonzero(needed[:, self.rank])
        places: list[Tensor] = []
        parts: list[Tensor] = []
        kinds: list[tuple[Ints, Tensor, Tensor]] = [(mine, self.up, self.down), (copies, lent[0], lent[1])]
        for numbers, up, down in kinds:
            for place, e in enumerate(numbers):
                at = torch.from_numpy(np.flatnonzero(expert == e))
                places.append(at)
                parts.append(torch.nn.functional.gelu(rows[at] @ up[place]) @ down[place])
        return torch.cat(parts)[torch.argsort(torch.cat(places))]
