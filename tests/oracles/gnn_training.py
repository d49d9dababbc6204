"""Gradients of graph networks by dense matrices in double precision, differentiated by torch: slow, obviously right."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def gradients(
    kind: str, state: dict[str, Any], edges: list[tuple[int, int]], x: Any, labels: Any, train: Any
) -> tuple[float, dict[str, Any]]:
    """The mean loss over training nodes, and each parameter's gradient, by PyG's names."""
    w = {name: value.detach().double().requires_grad_() for name, value in state.items()}
    rows = torch.as_tensor(x).double()
    count = torch.zeros(len(rows), len(rows), dtype=torch.float64)  # [target, source]
    for s, t in edges:
        if kind == "sage" or s != t:
            count[t, s] += 1
    if kind != "sage":
        count += torch.eye(len(rows), dtype=torch.float64)
    layers = 1 + max(int(name.split(".")[1]) for name in w)
    for i in range(layers):
        own = {name.split(".", 2)[2]: value for name, value in w.items() if name.startswith(f"convs.{i}.")}
        rows = {"gcn": _gcn, "sage": _sage, "gat": _gat}[kind](own, count, rows, i == layers - 1)
        rows = rows if i == layers - 1 else rows.relu()
    loss = functional.cross_entropy(rows[torch.as_tensor(train)], torch.as_tensor(labels)[torch.as_tensor(train)])
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), {name: value.grad.numpy() for name, value in w.items()}


def _gcn(w: Any, count: Any, x: Any, _: bool) -> Any:
    root = count.sum(1) ** -0.5
    return (root[:, None] * count * root[None]) @ x @ w["lin.weight"].T + w["bias"]


def _sage(w: Any, count: Any, x: Any, _: bool) -> Any:
    mean = count @ x / count.sum(1).clamp(min=1)[:, None]
    return mean @ w["lin_l.weight"].T + w["lin_l.bias"] + x @ w["lin_r.weight"].T


def _gat(w: Any, count: Any, x: Any, last: bool) -> Any:
    _, heads, columns = w["att_src"].shape
    z = (x @ w["lin.weight"].T).view(len(x), heads, columns)
    there, here = (z * w["att_src"]).sum(-1), (z * w["att_dst"]).sum(-1)
    logits = functional.leaky_relu(here[:, None] + there[None], 0.2)  # [target, source, head]
    share = count[..., None] * (logits - logits.amax(1, keepdim=True).detach()).exp()
    share = share / share.sum(1, keepdim=True)
    out = torch.einsum("tsh,shc->thc", share, z)
    return (out.mean(1) if last else out.reshape(len(x), -1)) + w["bias"]
