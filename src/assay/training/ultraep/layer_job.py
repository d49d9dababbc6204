"""A training step of the torch layer on real processes, balanced and not: are losses and gradients the same?"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.types import NotMeasured
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch

Found = list[dict[str, dict[str, Any]]]


def same(ranks: int, experts: int, tokens: int, seed: int, hidden: int = 16, ffn: int = 32) -> dict[str, float]:
    """How far loss and master gradients differ at most, and how evenly and where the tokens were computed."""
    found = steps(ranks, experts, tokens, seed, hidden, ffn)
    plain, balanced = ([rank[name] for rank in found] for name in ("none", "ultraep"))
    apart = [np.abs(a[name] - b[name]).max() for a, b in zip(plain, balanced, strict=True) for name in a["gradients"]]
    own = experts // ranks
    away = sum(r["computed"].sum() - r["computed"][g * own : (g + 1) * own].sum() for g, r in enumerate(balanced))
    loads = {name: [r["computed"].sum() for r in rows] for name, rows in (("none", plain), ("ultraep", balanced))}
    return {
        "loss_apart": max(abs(float(a["loss"] - b["loss"])) for a, b in zip(plain, balanced, strict=True)),
        "gradients_apart": float(max(apart)),
        "on_copies": float(away / sum(loads["ultraep"])),
        "before": float(max(loads["none"]) / np.mean(loads["none"])),
        "after": float(max(loads["ultraep"]) / np.mean(loads["ultraep"])),
    }


def steps(ranks: int, experts: int, tokens: int, seed: int, hidden: int = 16, ffn: int = 32) -> Found:
    """What every rank got from one step with either balancer."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise NotMeasured("the torch layer needs the extra torch") from error
    with scratch() as folder:
        job = partial(_step, folder=str(folder), experts=experts, tokens=tokens, seed=seed, hidden=hidden, ffn=ffn)
        with Ranks(ranks, job, imports=("torch", "assay.training.ultraep.layer")) as running:
            return running.wait(timeout=240)


def weights_and_inputs(
    ranks: int, experts: int, tokens: int, seed: int, hidden: int, ffn: int
) -> tuple[list[dict[str, Any]], list[tuple[Any, Any]]]:
    """Of every rank: its experts and the gate, the same for all, which prefers few; its tokens and their targets."""
    import torch

    random, own = torch.Generator().manual_seed(seed), experts // ranks

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=random)

    gate = {
        "gate.weight": 0.3 * normal(experts, hidden),
        "gate.bias": -1.5 * torch.log1p(torch.arange(experts, dtype=torch.float32)),
    }
    weights = [
        gate | {"up": normal(own, hidden, ffn) / hidden**0.5, "down": normal(own, ffn, hidden) / ffn**0.5}
        for _ in range(ranks)
    ]
    return weights, [(normal(tokens, hidden), normal(tokens, hidden)) for _ in range(ranks)]


def _step(rank: Rank, folder: str, **sizes: int) -> dict[str, dict[str, Any]]:
    """One step with either balancer from the same weights."""
    from assay.sim.gloo_ranks import joined

    with joined(rank, folder):
        from assay.training.ultraep import UltraEP
        from assay.training.ultraep.layer import Experts

        weights, inputs = weights_and_inputs(rank.size, **sizes)
        found = {}
        for name, balancer in (("none", None), ("ultraep", UltraEP())):
            layer = Experts(sizes["hidden"], sizes["ffn"], sizes["experts"], top_k=2, balancer=balancer)
            layer.load_state_dict(weights[rank.index])
            x, target = inputs[rank.index]
            x = x.clone().requires_grad_()
            loss = (layer(x) - target).pow(2).mean()
            loss.backward()
            found[name] = {"loss": loss.item(), "computed": layer.computed} | _gradients(layer, x)
        return found


def _gradients(layer: Any, x: Any) -> dict[str, Any]:
    found: dict[str, NDArray[np.float32]] = {
        name: weight.grad.numpy().copy() for name, weight in [*layer.named_parameters(), ("x", x)]
    }
    return found | {"gradients": list(found)}
