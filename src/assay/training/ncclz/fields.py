"""Data that ranks sum: fields with a spectrum, and the gradients of a small language model.

Scientific fields fall off with a power of their wave number; the slope says how smooth they are. Every rank has a field
of its own, as the members of an ensemble have, or the parts of a domain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.sim.random import stream

Floats = NDArray[np.float32]
SLOPES = {"smooth": 4.0, "rough": 2.5, "sparse": 4.0, "noise": 0.0}


def field(kind: str, count: int, seed: int, rank: int) -> Floats:
    """A flattened square field between -1 and 1 whose power falls with the wave number's `SLOPES[kind]`.

    Sparse fields are 0 over 70 % of their area, as precipitation and clouds are.

    >>> x = field("smooth", 10_000, seed=0, rank=0)
    >>> len(x), float(abs(x).max()), bool(abs(np.diff(x)).mean() < 0.1)
    (10000, 1.0, True)
    """
    random = stream(seed, "ncclz", kind, rank)
    side = int(np.ceil(np.sqrt(count)))
    grown = np.fft.rfft2(random.normal(size=(side, side)))
    waves = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :])
    waves[0, 0] = np.inf
    found = np.fft.irfft2(grown * waves ** (-SLOPES[kind] / 2), s=(side, side)).reshape(-1)[:count]
    if kind == "sparse":
        found = np.maximum(found - np.quantile(found, 0.7), 0)
    return np.asarray(found / np.abs(found).max(), np.float32)


def gradient(seed: int, rank: int, width: int, steps: int = 3) -> Floats:
    """The gradient of a small language model on this rank's text, after a few steps of training."""
    import torch

    from assay.sim import tiny_lm

    params = tiny_lm.init(tiny_lm.Shape(layers=2, width=width, hidden=2 * width, attn="gqa"), seed)
    tensors = list(params.tensors.values())
    for tensor in tensors:
        tensor.requires_grad_()
    for step in range(steps + 1):
        words = tiny_lm.encode(tiny_lm.text(seed + 1000 * (step * 64 + rank) + 1, sentences=40))
        ids = torch.tensor(words[: 4 * 65]).view(4, 65)
        logits, _ = tiny_lm.forward(params, ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
        found = torch.autograd.grad(loss, tensors)
        with torch.no_grad():
            for tensor, slope in zip(tensors, found, strict=True):
                tensor -= 0.3 * slope
    return np.concatenate([slope.numpy().reshape(-1) for slope in found])
