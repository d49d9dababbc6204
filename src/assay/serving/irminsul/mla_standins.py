"""Three small MLA mixture-of-experts models, trained on generated agent transcripts: stand-ins for models of billions.

They differ in depth, heads, latent and expert count. What they learn is what reuse can break: a grammar, and recalling
a fact that a tool reported hundreds of tokens ago. The second is an induction circuit, which random weights take far
longer to find than minutes on a CPU; so training starts near one (one head of the first layer looks at the previous
token, one of the second looks for what followed the present token before), and moves on from there.

`full` trains them anew; `quick` loads `weights/irminsul.safetensors`, where a full run left them with seed, steps and
loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim import tiny_lm
from assay.sim.random import key
from assay.sim.tiny_lm import Params, Shape
from assay.workloads.agents import VOCAB, Style, sessions

WEIGHTS = Path(__file__).with_name("weights.safetensors")

_COMMON: dict[str, Any] = {"vocab": VOCAB, "attn": "mla", "active": 2}
SHAPES = {
    "deep": Shape(layers=4, width=96, heads=4, head=24, latent=48, rotary=16, hidden=128, experts=4, **_COMMON),
    "many-heads": Shape(layers=3, width=96, heads=6, head=24, latent=48, rotary=16, hidden=160, experts=4, **_COMMON),
    "many-experts": Shape(layers=3, width=80, heads=4, head=24, latent=48, rotary=16, hidden=256, experts=8, **_COMMON),
}
STEPS = 150
STYLE = Style(system=2, tools=2, tool=1, result=10, quotes=8, notes=1, window=3)  # short, so that training is


def near_induction(params: Params, seed: int) -> Params:
    """The parameters with a previous-token head in layer 0 and a head in layer 1 that finds what followed a token."""
    import torch

    shape = params.shape
    quiet = (".out", ".down")  # what else the layers write is small at first
    w = {name: t * 0.1 if name.endswith(quiet) else t.clone() for name, t in params.tensors.items()}
    h, part = shape.head, min(shape.head, shape.latent // 2)
    generator = torch.Generator().manual_seed(key(seed, "near-induction") % 2**63)
    apart = torch.zeros(3 * part, shape.width)
    apart[:, 1:] = torch.linalg.qr(torch.randn(shape.width - 1, 3 * part, generator=generator))[0].T
    told, found, place = torch.split(
        apart, part
    )  # what a head reads of a token, where the previous one is put, what is said
    w["embed"] -= w["embed"] @ found.T @ found
    w["embed"][:, 0] = 3 * shape.width**-0.5  # every token has this in common: a direction to make constants from
    query = [w[f"{i}.query"].view(shape.width, shape.heads, h + shape.rotary) for i in (0, 1)]
    frequency = shape.theta ** (-torch.arange(0, shape.rotary, 2) / shape.rotary)
    for i in range(3):  # the three fastest frequencies are enough to tell one token back from others
        w["0.down_kv"][0, shape.latent + i] = 3.0
        query[0][0, 0, h + i] = 3.0 * frequency[i].cos()
        query[0][0, 0, h + shape.rotary // 2 + i] = -3.0 * frequency[i].sin()
    w["0.down_kv"][:, :part] = told.T
    w["0.up_value"][0] = torch.eye(shape.latent, h)
    w["0.out"][:part] = 0.2 * found
    w["1.down_kv"][:, :part], w["1.down_kv"][:, part : 2 * part] = found.T, place.T
    w["1.up_key"][0] = torch.eye(h, shape.latent)
    query[1][:, 0, :part] = 3.0 * told.T
    w["1.up_value"][0] = torch.eye(shape.latent, h).roll(part, 0)
    w["1.out"][:part] = 0.5 * place
    return Params(shape, w)


def batches(seed: int, rows: int = 8, length: int = 256) -> Iterator[NDArray[np.int64]]:
    """Ends of generated prompts of all kinds, from seeds that no study uses."""
    number = 0
    while True:
        batch: list[NDArray[np.int64]] = []
        while len(batch) < rows:
            number += 1
            session = sessions("all", 1_000_000 + 10_000 * seed + number, count=1, turns=4, style=STYLE)[0]
            batch += [prompt[-length - 1 :] for prompt in session[2:] if len(prompt) > length]
        yield np.stack(batch[:rows])


def train(name: str, steps: int = STEPS, seed: int = 0) -> tuple[Params, list[float]]:
    """One of the models after `steps`, and the loss of each step."""
    start = near_induction(tiny_lm.init(SHAPES[name], seed), seed)
    return tiny_lm.train(start, batches(seed), steps, seed, rate=3e-3, stretch=1024)


def train_all(steps: int = STEPS, seed: int = 0, path: Path = WEIGHTS) -> None:
    """Train the three and store them with where they come from. Takes minutes."""
    import torch

    torch.set_num_threads(1)
    trained = {name: train(name, steps, seed + i) for i, name in enumerate(SHAPES)}
    loss = {name: round(float(np.mean(losses[-20:])), 4) for name, (_, losses) in trained.items()}
    provenance = {"seed": seed, "steps": steps, "loss": loss, "corpus": "assay.workloads.agents 'all'"}
    tiny_lm.save(path, {name: params for name, (params, _) in trained.items()}, provenance, half=True)


def load(path: Path = WEIGHTS) -> tuple[dict[str, Params], dict[str, Any]]:
    """The stored models by name, and their provenance."""
    return tiny_lm.load(path)


@cache
def loaded(path: str) -> dict[str, Params]:
    """The stored models, read once by a process. They must not be changed."""
    return load(Path(path))[0]
