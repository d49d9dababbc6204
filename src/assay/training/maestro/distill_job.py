"""A teacher and a student on two real processes: the loss is the same whether logits or hidden states travel."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

from assay.record.types import NotMeasured
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch

IMPORTS = ("torch", __name__)  # once for both ranks
VOCAB, TEACHER, STUDENT, TOKENS = 320, 16, 8, 48
RATE, BATCHES = 20.0, 2


def run(steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """With either cut: losses of all steps, the student's weights in the end, and bytes that travelled."""
    if find_spec("torch") is None:  # it is the ranks that import it
        raise NotMeasured("a real teacher and student need the extra torch")
    with scratch() as folder:
        job = partial(_work, folder=str(folder), steps=steps, seed=seed)
        with Ranks(2, job, imports=IMPORTS) as running:
            teacher, student = running.wait(timeout=240)
    return {cut: student[cut] | {"bytes": teacher[cut]} for cut in ("logits", "hidden")}


def _work(rank: Rank, folder: str, steps: int, seed: int) -> dict[str, Any]:
    from assay.sim.gloo_ranks import joined

    with joined(rank, folder):
        each = _teach if rank.index == 0 else _learn
        return {cut: each(cut, steps, seed) for cut in ("logits", "hidden")}


def _weights(seed: int) -> tuple[list[Any], list[Any], Any]:
    """Of the teacher and of the student (embedding, a layer, output layer), and the tokens of all steps."""
    import torch

    random = torch.Generator().manual_seed(seed)

    def model(width: int) -> list[Any]:
        return [torch.randn(rows, columns, generator=random) / rows**0.5
                for rows, columns in ((VOCAB, width), (width, width), (width, VOCAB))]  # fmt: skip

    teacher, student = model(TEACHER), model(STUDENT)
    teacher[0] *= VOCAB**0.5
    teacher[2] *= 3
    return teacher, student, torch.randint(0, VOCAB, (BATCHES, TOKENS), generator=random)


def _teach(cut: str, steps: int, seed: int) -> int:
    """Forward passes alone; sends logits, or hidden states where the output layer lies with the student."""
    import torch
    import torch.distributed as dist

    (table, layer, head), _, tokens = _weights(seed)
    sent = 0
    for step in range(steps):
        rows = torch.tanh(table[tokens[step % BATCHES]] @ layer)
        rows = (rows @ head if cut == "logits" else rows).contiguous()
        dist.send(rows, 1)
        sent += rows.numel() * rows.element_size()
    return sent


def _learn(cut: str, steps: int, seed: int) -> dict[str, Any]:
    """Forward and backward with the divergence from what the teacher says."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional

    (_, _, head), student, tokens = _weights(seed)
    weights = [weight.requires_grad_() for weight in student]
    losses = []
    for step in range(steps):
        got = torch.empty(TOKENS, VOCAB if cut == "logits" else TEACHER)
        dist.recv(got, 0)
        target = (got if cut == "logits" else got @ head).log_softmax(-1)
        said = (torch.tanh(weights[0][tokens[step % BATCHES]] @ weights[1]) @ weights[2]).log_softmax(-1)
        loss = functional.kl_div(said, target, log_target=True, reduction="batchmean")
        loss.backward()
        with torch.no_grad():
            for weight in weights:
                weight -= RATE * weight.grad
                weight.grad = None
        losses.append(loss.item())
    return {"losses": losses, "weights": [weight.detach().numpy() for weight in weights]}
