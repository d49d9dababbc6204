"""What is right: plain attention in double precision, and how far something is off it."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.kernels.etap_mla.cpu import LATENT, Problem

CLOSE = 2e-5  # of the cosine distance to the exact result, head by head


def exact(problem: Problem) -> Any:
    """Softmax and sums one sequence after the other, in float64; zeros where there are no tokens."""
    out = np.zeros((*problem.query.shape[:2], LATENT))
    for i in range(len(out)):
        x = problem.latents(i).astype(np.float64)
        if len(x):
            score = problem.query[i].astype(np.float64) @ x.T * problem.scale
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            out[i] = weight / weight.sum(axis=1, keepdims=True) @ x[:, :LATENT]
    return out


def compared(out: Any, right: Any) -> dict[str, float]:
    """The worst cosine distance of any head, the largest and the root-mean-square error; infinite where not finite.

    >>> compared(np.array([[[1.0, 0.0]]]), np.array([[[1.0, 0.0]]]))
    {'cosine': 0.0, 'largest': 0.0, 'rmse': 0.0}
    """
    if not np.isfinite(out).all():
        return {"cosine": np.inf, "largest": np.inf, "rmse": np.inf}
    out = out.astype(np.float64)
    sizes = np.linalg.norm(out, axis=-1) * np.linalg.norm(right, axis=-1)
    nothing = (np.linalg.norm(out, axis=-1) == 0) & (np.linalg.norm(right, axis=-1) == 0)
    cosine = np.where(nothing, 1.0, (out * right).sum(-1) / np.where(sizes > 0, sizes, 1.0))
    off = np.abs(out - right)
    return {
        "cosine": float(max(0.0, (1 - cosine).max())), "largest": float(off.max()),
        "rmse": float(np.sqrt((off**2).mean())),
    }  # fmt: skip
