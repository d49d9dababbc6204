"""Two real processes, one with an encoder and one with a language model, train by a deal that puts samples off.

Small networks of torch in double precision: an image is a few rows of numbers that the encoder turns into one token, a
text a few tokens that a layer of causal attention predicts one by one. What is compared with one process that trains on
the whole batch at once are the gradients of every weight, and the weights after two steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.entrain.deals import Deal, entrain
from assay.workloads.multimodal import Samples

WIDTH, VOCABULARY, STEPS, RATE, AHEAD = 16, 32, 2, 0.01, 1
ENCODER, LANGUAGE = range(2)


def same(seed: int, m: int = 4, mbs: int = 3) -> dict[str, Any]:
    """How far gradients and weights are apart from those of one process, and how many samples were put off."""
    batches = [_samples(m * mbs, seed, step) for step in range(STEPS)]
    deals = [
        entrain(batch.image.astype(float), batch.tokens.astype(float), np.ones(len(batch)), 1, m, buffer=4.0)
        for batch in batches
    ]
    with scratch() as folder:
        job = partial(_work, folder=str(folder), batches=batches, deals=deals, seed=seed)
        with Ranks(2, job, imports=("torch", __name__)) as running:
            answers = running.wait(timeout=240)
    found = {**answers[ENCODER]["values"], **answers[LANGUAGE]["values"]}
    expected = whole(batches, seed)
    return {
        "apart": max(float(np.abs(found[name] - expected[name]).max()) for name in expected),
        "moved": sum(deal.moved for deal in deals),
        "events": [answer["events"] for answer in answers],
        "deals": deals,
    }


def _samples(count: int, seed: int, step: int) -> Samples:
    """Images and texts of very different sizes."""
    random = stream(seed, "entrain", "live", step)
    return Samples(random.integers(1, 9, count), random.choice([2, 5, 12, 40], count))


def networks(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights of both."""
    import torch

    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Any:
        drawn = torch.randn(rows, columns, generator=random, dtype=torch.float64) / rows**0.5
        return drawn.requires_grad_()

    encoder = {"see": matrix(WIDTH, WIDTH), "join": matrix(WIDTH, WIDTH)}
    language = {name: matrix(WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
    return encoder, language | {"embed": matrix(VOCABULARY, WIDTH), "head": matrix(WIDTH, VOCABULARY)}


def pictures(batch: Samples, seed: int, step: int) -> tuple[list[Any], list[Any]]:
    """The images and texts of a batch."""
    import torch

    random = torch.Generator().manual_seed(1000 * seed + step)
    images = [torch.randn(int(n), WIDTH, generator=random, dtype=torch.float64) for n in batch.image]
    return images, [torch.randint(VOCABULARY, (int(n),), generator=random) for n in batch.text]


def encode(weights: dict[str, Any], image: Any) -> Any:
    """One token for an image."""
    import torch

    return torch.tanh(image @ weights["see"]).mean(dim=0) @ weights["join"]


def loss(weights: dict[str, Any], token: Any, text: Any) -> Any:
    """Of a text after an image's token, summed over what is predicted."""
    import torch

    x = torch.cat([token[None], weights["embed"][text[:-1]]])
    scores = (x @ weights["query"]) @ (x @ weights["key"]).T / WIDTH**0.5
    later = torch.triu(torch.ones(len(x), len(x), dtype=torch.bool), 1)
    mixed = torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1) @ (x @ weights["value"])
    logits = (x + mixed @ weights["out"]) @ weights["head"]
    return torch.nn.functional.cross_entropy(logits, text, reduction="sum")


def whole(batches: list[Samples], seed: int) -> dict[str, Any]:
    """The same training in one piece."""
    encoder, language = networks(seed)
    values: dict[str, Any] = {}
    for step, batch in enumerate(batches):
        images, texts = pictures(batch, seed, step)
        sum(loss(language, encode(encoder, i), t) for i, t in zip(images, texts, strict=True)).backward()
        values |= _updated(encoder | language, step)
    return values


def _updated(weights: dict[str, Any], step: int) -> dict[str, Any]:
    """Gradients of a step, which are then applied; and the weights after it."""
    import torch

    values = {f"{name}, gradient {step}": weight.grad.numpy().copy() for name, weight in weights.items()}
    with torch.no_grad():
        for name, weight in weights.items():
            weight -= RATE * weight.grad
            weight.grad = None
            values[f"{name}, after {step}"] = weight.detach().numpy().copy()
    return values


def _work(rank: Rank, folder: str, batches: list[Samples], deals: list[Deal], seed: int) -> dict[str, Any]:
    from assay.sim.gloo_ranks import joined

    with joined(rank, folder) as dist:
        mine = networks(seed)[rank.index]
        events: list[tuple[int, str, int]] = []
        values: dict[str, Any] = {}
        run = _encoding if rank.index == ENCODER else _speaking
        for step, (batch, deal) in enumerate(zip(batches, deals, strict=True)):
            images, texts = pictures(batch, seed, step)
            m = int(deal.language[:, 1].max()) + 1
            run(
                dist, mine, images if rank.index == ENCODER else texts, deal, m, lambda *what: events.append(what), step
            )
            values |= _updated(mine, step)
        return {"values": values, "events": events}


def _encoding(dist: Any, weights: Any, images: Any, deal: Deal, m: int, note: Any, step: int) -> None:
    """Forward passes a little ahead; backward for what comes back, which need not be a whole microbatch."""
    import torch

    tokens: dict[int, Any] = {}  # the buffer: encoded, not yet gone backward
    begun = 0
    for slot in range(m):
        while begun < min(m, slot + 1 + AHEAD):
            for sample in np.flatnonzero(deal.encoder[:, 1] == begun).tolist():
                tokens[sample] = encode(weights, images[sample])
                note(step, "encoded", sample)
            begun += 1
        mine = np.flatnonzero(deal.language[:, 1] == slot).tolist()
        if not mine:
            continue
        dist.send(torch.stack([tokens[sample].detach() for sample in mine]), LANGUAGE)
        back = torch.empty(len(mine), WIDTH, dtype=torch.float64)
        dist.recv(back, LANGUAGE)
        torch.autograd.backward([tokens.pop(sample) for sample in mine], list(back))
        for sample in mine:
            note(step, "gone backward", sample)


def _speaking(dist: Any, weights: Any, texts: Any, deal: Deal, m: int, note: Any, step: int) -> None:
    """Both passes of the samples that are due, put off or not."""
    import torch

    for slot in range(m):
        mine = np.flatnonzero(deal.language[:, 1] == slot).tolist()
        if not mine:
            continue
        tokens = torch.empty(len(mine), WIDTH, dtype=torch.float64)
        dist.recv(tokens, ENCODER)
        tokens.requires_grad_()
        sum(loss(weights, tokens[at], texts[sample]) for at, sample in enumerate(mine)).backward()
        dist.send(tokens.grad, ENCODER)
        for sample in mine:
            note(step, "trained", sample)
