"""The small encoder and language model trained on real processes, on several pairs of grids, beside one process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from assay.record.types import NotMeasured
from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.hetpar.boundary import CUT, Batch, Side, side

IMPORTS = ("torch", "assay.training.hetpar.mimo")
RATE, MICROBATCHES = 0.3, 2
ONE = side("dp1"), side("dp1")


def drawn(seed: int, count: int = 4) -> Batch:
    """A microbatch: images of 2 to 9 tokens, samples that ask about one of them or none, a few about the same one."""
    random = stream(seed, "hetpar", "batch")
    images = tuple(int(n) for n in random.integers(2, 10, count))
    asks = [*range(count), int(random.integers(0, count)), -1]
    return Batch(images, tuple((image, int(random.integers(3, 9))) for image in asks))


def run(ranks: int, pairs: Sequence[tuple[Side, Side]], steps: int, seed: int) -> list[list[dict[str, Any]]]:
    """For each pair of grids what every rank has: the losses of all steps, its weights in the end, bytes it sent."""
    if find_spec("torch") is None:  # it is the ranks that import it
        raise NotMeasured("a real encoder and language model need the extra torch")
    with scratch() as folder:
        job = partial(_work, folder=str(folder), pairs=pairs, steps=steps, seed=seed)
        with Ranks(ranks, job, imports=IMPORTS) as running:
            found = running.wait(timeout=300)
    return [[rank[k] for rank in found] for k in range(len(pairs))]


def _work(rank: Rank, folder: str, pairs: Sequence[tuple[Side, Side]], steps: int, seed: int) -> list[dict[str, Any]]:
    from assay.sim.gloo_ranks import joined

    with joined(rank, folder):
        return [_trained(*pair, steps, seed) for pair in pairs]


def _trained(encoder: Side, llm: Side, steps: int, seed: int) -> dict[str, Any]:
    import torch

    from assay.training.hetpar.mimo import PATCH, VOCAB, Mimo

    both = Mimo(encoder, llm, seed)
    random = torch.Generator().manual_seed(seed)
    batches = []
    for k in range(MICROBATCHES):
        batch = drawn(MICROBATCHES * seed + k)
        patches = torch.randn(sum(batch.images), PATCH, generator=random)
        words = torch.randint(0, VOCAB, (sum(words for _, words in batch.samples),), generator=random)
        batches.append((batch, patches, words))
    losses = [both.step(batches, RATE) for _ in range(steps)]
    modules = {"encoder": both.encoder, "llm": both.llm}
    return {
        "losses": losses,
        "sent": both.cross.sent,
        "weights": {
            name: {key: value.detach().numpy() for key, value in module.weights.items()}
            for name, module in modules.items()
            if module is not None
        },
    }


def apart(found: Sequence[dict[str, Any]], pair: tuple[Side, Side], whole: dict[str, Any]) -> float:
    """The largest difference of any rank's weights from the same slices of those of one process."""
    worst = 0.0
    for rank, mine in enumerate(found):
        for name, on in zip(("encoder", "llm"), pair, strict=True):
            for key, value in mine["weights"].get(name, {}).items():
                expected = whole["weights"][name][key]
                if key in CUT:
                    expected = np.split(expected, on.layout.tp, CUT[key])[on.grid.coordinates(rank)["tp"]]
                worst = max(worst, float(np.abs(value - expected).max()))
    return worst
