"""Graph layers node by node, in double precision, as their definitions say: slow, and obviously right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def layer(kind: str, weights: dict[str, Any], edges: list[tuple[int, int]], x: Any, aggregate: str = "mean") -> Any:
    """The rows after one layer, before any rectifier. Weights by PyG's names, without their prefix."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    return {"gcn": _gcn, "sage": _sage, "gin": _gin, "gat": _gat}[kind](w, edges, np.asarray(x, np.float64), aggregate)


def _heard(edges: list[tuple[int, int]], v: int, loops: str) -> list[int]:
    """Whom v hears from: with `own`, self-loops of the graph are replaced by one."""
    found = [s for s, t in edges if t == v and (loops == "keep" or s != v)]
    return [*found, v] if loops == "own" else found


def _gcn(w: Any, edges: Any, x: Any, _: str) -> Any:
    n = len(x)
    degree = [len(_heard(edges, v, "own")) for v in range(n)]
    rows = [
        sum(x[u] / np.sqrt(degree[u] * degree[v]) for u in _heard(edges, v, "own")) @ w["lin.weight"].T
        for v in range(n)
    ]
    return np.array(rows) + w.get("bias", 0)


def _sage(w: Any, edges: Any, x: Any, aggregate: str) -> Any:
    rows = []
    for v in range(len(x)):
        near = [x[u] for u in _heard(edges, v, "keep")]
        joined = np.zeros(x.shape[1])
        if near:
            joined = np.mean(near, axis=0) if aggregate == "mean" else np.max(near, axis=0)
        rows.append(joined @ w["lin_l.weight"].T + w["lin_l.bias"] + x[v] @ w["lin_r.weight"].T)
    return np.array(rows)


def _gin(w: Any, edges: Any, x: Any, _: str) -> Any:
    rows = []
    for v in range(len(x)):
        total = (1 + float(w["eps"].reshape(-1)[0])) * x[v] + sum((x[u] for u in _heard(edges, v, "keep")), 0 * x[v])
        inner = np.maximum(total @ w["nn.0.weight"].T + w["nn.0.bias"], 0)
        rows.append(inner @ w["nn.2.weight"].T + w["nn.2.bias"])
    return np.array(rows)


def _gat(w: Any, edges: Any, x: Any, _: str) -> Any:
    _, heads, columns = w["att_src"].shape
    z = (x @ w["lin.weight"].T).reshape(len(x), heads, columns)
    rows = np.zeros_like(z)
    for v in range(len(x)):
        near = _heard(edges, v, "own")
        for h in range(heads):
            raw = np.array([z[u, h] @ w["att_src"][0, h] + z[v, h] @ w["att_dst"][0, h] for u in near])
            logits = np.where(raw > 0, raw, 0.2 * raw)
            share = np.exp(logits - logits.max())
            rows[v, h] = sum(s * z[u, h] for s, u in zip(share / share.sum(), near, strict=True))
    out = rows.reshape(len(x), -1) if len(w["bias"]) == heads * columns else rows.mean(axis=1)
    return out + w["bias"]


def spills(targets: list[int], n: int, slots: int) -> int:
    """Records spilled by a tier that evicts the least recently touched; a node that completes in one piece leaves."""
    left = [targets.count(v) for v in range(n)]
    hot: dict[int, int] = {}  # node -> when it was last touched
    spilled = 0
    broken: set[int] = set()
    for now, v in enumerate(targets):
        if v not in hot and len(hot) == slots:
            done = [u for u in hot if left[u] == 0]
            victim = done[0] if done else min(hot, key=lambda u: hot[u])
            del hot[victim]
            broken.add(victim)
            spilled += 1
        hot[v] = now
        left[v] -= 1
        if left[v] == 0 and v not in broken:
            del hot[v]
    return spilled + len(hot)


def attention(
    edges: Sequence[tuple[int, int]], logits: Sequence[float], facing: Sequence[float]
) -> tuple[list[float], list[float]]:
    """The weight of each edge in a softmax over its target's edges and own loop, and of that loop; others weigh 0."""

    def logit(u: int, v: int) -> float:
        both = logits[u] + facing[v]
        return both if both > 0 else 0.2 * both

    real = [(u, v) for u, v in edges if u != v] + [(v, v) for v in range(len(logits))]
    largest = {v: max(logit(u, w) for u, w in real if w == v) for v in range(len(logits))}
    total = {v: sum(math.exp(logit(u, w) - largest[v]) for u, w in real if w == v) for v in range(len(logits))}

    def weight(u: int, v: int) -> float:
        return math.exp(logit(u, v) - largest[v]) / total[v]

    return [weight(u, v) if u != v else 0.0 for u, v in edges], [weight(v, v) for v in range(len(logits))]
