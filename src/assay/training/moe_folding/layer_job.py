"""Blocks on two meshes, run by real processes and in one piece: are outputs, losses and all gradients the same?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from assay.record.types import NotMeasured
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.interface import Layout

HIDDEN, INNER, FFN, EXPERTS, TOP_K = 12, 16, 16, 8, 2
Found = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A layout, and whether tokens are dropped: capacity, and over slices or whole sequences."""

    layout: Layout
    capacity: float | None = None
    whole_sequence: bool = False


def steps(cases: Sequence[Case], tokens: int, seed: int) -> list[Found]:
    """For each case what every rank got from one step: outputs, losses, and gradients after their reduction."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise NotMeasured("the torch block needs the extra torch") from error
    with scratch() as folder:
        job = partial(_steps, folder=str(folder), cases=list(cases), tokens=tokens, seed=seed)
        imports = ("torch", "assay.training.moe_folding.layer")
        with Ranks(cases[0].layout.ranks, job, imports=imports) as running:
            found: list[Found] = running.wait(timeout=240)
    return [[rank[at] for rank in found] for at in range(len(cases))]


def weights_and_inputs(ranks: int, tokens: int, seed: int) -> tuple[dict[str, Any], Any, Any]:
    """The whole weights, the gate preferring few experts; every rank's tokens and targets, [rank, token, hidden]."""
    import torch

    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=random)

    weights = {
        "into": normal(HIDDEN, INNER) / HIDDEN**0.5, "out": normal(INNER, HIDDEN) / INNER**0.5,
        "gate": normal(HIDDEN, EXPERTS) * torch.linspace(1.5, 0.3, EXPERTS),
        "up": normal(EXPERTS, HIDDEN, 2, FFN) / HIDDEN**0.5, "down": normal(EXPERTS, FFN, HIDDEN) / FFN**0.5,
    }  # fmt: skip
    return weights, normal(ranks, tokens, HIDDEN), normal(ranks, tokens, HIDDEN)


def share(name: str, whole: Any, layout: Layout, rank: int) -> Any:
    """The part of a weight, or of its gradient, that a rank holds."""
    tp = layout.attention.coordinates(rank)["tp"]
    at = layout.experts.coordinates(rank)
    if name == "into":
        return whole.chunk(layout.tp, 1)[tp]
    if name == "out":
        return whole.chunk(layout.tp, 0)[tp]
    if name == "gate":
        return whole
    mine = whole.chunk(layout.ep, 0)[at["ep"]]
    return mine.chunk(layout.etp, 3 if name == "up" else 1)[at["etp"]]


def _steps(rank: Rank, folder: str, cases: Sequence[Case], tokens: int, seed: int) -> Found:
    import torch

    from assay.sim.gloo_ranks import joined

    with joined(rank, folder):
        from assay.training.moe_folding.layer import Block

        weights, inputs, targets = weights_and_inputs(rank.size, tokens, seed)
        found = []
        for case in cases:
            block = Block(case.layout, HIDDEN, INNER, FFN, EXPERTS, TOP_K, case.capacity, case.whole_sequence)
            own = {name: share(name, whole, case.layout, rank.index) for name, whole in weights.items()}
            block.load_state_dict(own)
            x = inputs[rank.index].clone().requires_grad_()
            out, uneven = block(x)
            loss = (out - targets[rank.index]).pow(2).mean() + uneven
            loss.backward()
            assert block.up.grad is not None
            unreduced = block.up.grad.clone()
            block.reduce_gradients()
            grads = {name: weight.grad.numpy().copy() for name, weight in [*block.named_parameters(), ("x", x)]}
            over_dense = block.copies.summed(unreduced).numpy()  # what forgetting the second mesh would give
            found.append({
                "out": out.detach().numpy().copy(), "loss": loss.item(), "gradients": grads,
                "computed": block.computed, "dropped": block.dropped, "up_over_dense_copies": over_dense,
            })  # fmt: skip
        torch.distributed.barrier()
        return found


def in_one_piece(case: Case, tokens: int, seed: int) -> tuple[Any, list[float], dict[str, Any]]:
    """Outputs and losses of all ranks, and whole gradients: every expert sees every token, and counts where chosen."""
    import torch
    from torch.nn.functional import one_hot, silu

    from assay.training.moe_folding.layer import AUXILIARY, within_capacity

    weights, inputs, targets = weights_and_inputs(case.layout.ranks, tokens, seed)
    whole = {name: weight.clone().requires_grad_() for name, weight in weights.items()} | {
        "x": inputs.clone().requires_grad_()
    }
    width = case.layout.tp * case.layout.cp  # neighbours that share a sequence
    x = whole["x"] + silu(whole["x"] @ whole["into"]) @ whole["out"]
    scores = (x @ whole["gate"]).softmax(-1)
    probability, chosen = scores.topk(TOP_K)
    kept = torch.ones_like(chosen, dtype=torch.bool)
    if case.capacity is not None:
        span = width if case.whole_sequence else 1
        pieces = [
            within_capacity(p.flatten(0, 1).detach(), c.flatten(0, 1), EXPERTS, case.capacity)
            for p, c in zip(probability.split(span), chosen.split(span), strict=True)
        ]
        kept = torch.cat(pieces).view_as(chosen)
    weight = (one_hot(chosen, EXPERTS) * (probability * kept)[..., None]).sum(-2)  # [rank, token, expert]
    gate, value = torch.einsum("rth,ehgf->gretf", x, whole["up"])
    experts = torch.einsum("retf,efh->reth", silu(gate) * value, whole["down"])
    out = x + torch.einsum("reth,rte->rth", experts, weight)
    counts = one_hot(chosen, EXPERTS).float().sum((1, 2)).view(-1, width, EXPERTS).sum(1)
    evenly = (counts / counts.sum(1, keepdim=True)).repeat_interleave(width, 0)
    uneven = AUXILIARY * EXPERTS * (evenly * scores.mean(1)).sum(1)
    losses = (out - targets).pow(2).mean((1, 2)) + uneven
    losses.sum().backward()
    gradients: dict[str, Any] = {name: weight.grad for name, weight in whole.items()}
    return out.detach(), losses.tolist(), gradients


def apart(case: Case, found: Found, tokens: int, seed: int) -> dict[str, float]:
    """How far outputs, losses and reduced gradients are from those in one piece, at most, and how much was dropped."""
    out, losses, gradients = in_one_piece(case, tokens, seed)
    far = {"out": 0.0, "loss": 0.0, "gradients": 0.0, "over_dense_copies": 0.0}

    def note(name: str, a: Any, b: Any) -> None:
        far[name] = max(far[name], float(np.abs(np.asarray(a) - np.asarray(b)).max()))

    for rank, mine in enumerate(found):
        note("out", mine["out"], out[rank])
        note("loss", mine["loss"], losses[rank])
        for name, gradient in mine["gradients"].items():
            note("gradients", gradient, gradients["x"][rank] if name == "x" else share(
                name, gradients[name], case.layout, rank))  # fmt: skip
        note("over_dense_copies", mine["up_over_dense_copies"], share("up", gradients["up"], case.layout, rank))
    pairs = len(found) * tokens * TOP_K
    return far | {
        "computed": sum(mine["computed"] for mine in found) / case.layout.etp / pairs,
        "dropped": sum(mine["dropped"] for mine in found) / pairs,
    }
