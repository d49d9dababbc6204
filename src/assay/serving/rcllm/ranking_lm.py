"""A generative recommender small enough to train here: it reads a history and a list of items and names the next one.

Prompt: [instruction][history][item 1]…[item k][question]. An item is described by its category, its brand, a few
words, its name and a full stop; a history is a sequence of categories and brands, the latest last. What a user takes
next depends on what came before: categories come again, the more often and the more recently they were taken, and a
known brand helps. None of this can be read off an item alone, so a model that sees items without the history must lose.

The weights that ship with assay were trained by `train` in three stages on one thread; their file says
how. Training teaches the answer, and at every item's full stop how likely that item is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.sim import tiny_lm
from assay.sim.random import stream

if TYPE_CHECKING:
    from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WEIGHTS = Path(__file__).with_name("weights.safetensors")

# The vocabulary: stretches of ids.
INSTRUCTION, QUESTION, STOP, LEVELS = 4, 2, 1, 4
CATEGORIES, BRANDS, WORDS, ITEMS = 16, 24, 64, 256
_INSTRUCTION = 0
_QUESTION = _INSTRUCTION + INSTRUCTION
_STOP = _QUESTION + QUESTION
_LEVEL = _STOP + STOP
_CATEGORY = _LEVEL + LEVELS
_BRAND = _CATEGORY + CATEGORIES
_WORD = _BRAND + BRANDS
_ITEM = _WORD + WORDS
_TAKEN_CATEGORY = _ITEM + ITEMS  # "took a lamp" is another token than "lamp"
_TAKEN_BRAND = _TAKEN_CATEGORY + CATEGORIES
VOCAB = _TAKEN_BRAND + BRANDS

DESCRIPTION = 8  # words in an item's description
BLOCK = 2 + DESCRIPTION + 2  # tokens of an item: category, brand, words, name, full stop
HISTORY = 10  # items in a history
FADE = 0.7  # what a history item counts, against the one after it
FAVOUR = 3.0  # how much rather an item of a category in the history becomes a candidate
NOISE = 0.25  # of the user's choice: a softmax over the items' worth at this temperature


@dataclass(frozen=True)
class Shop:
    """The 256 items of the task."""

    category: Ints
    brand: Ints
    blocks: Ints  # [item, BLOCK] tokens


@dataclass(frozen=True)
class Prompts:
    """Ranking prompts of one length: the tokens, the candidates in prompt order, how much each is worth, the choice."""

    ids: Ints
    items: Ints
    worth: Floats
    chosen: Ints  # index into the candidates
    history: int = HISTORY  # items in each history

    def __len__(self) -> int:
        return len(self.ids)

    def head(self, n: int) -> Prompts:
        """The first n prompts."""
        return Prompts(self.ids[:n], self.items[:n], self.worth[:n], self.chosen[:n], self.history)

    @property
    def blocks(self) -> list[slice]:
        """Where the history and the items lie: the stretches that are cached, each on its own."""
        start = INSTRUCTION + 2 * self.history
        k = self.items.shape[1]
        return [slice(INSTRUCTION, start), *(slice(start + i * BLOCK, start + (i + 1) * BLOCK) for i in range(k))]


@cache
def shop() -> Shop:
    """The items: the same for every seed, because the model knows them by heart.

    >>> shop().blocks.shape
    (256, 12)
    """
    random = stream(0, "ranking-lm", "shop")
    category = random.permutation(np.arange(ITEMS) % CATEGORIES)
    brand = random.integers(0, BRANDS, ITEMS)
    # Half of the words are typical of the category, so that a description is text and not noise.
    typical = category[:, None] * (WORDS // CATEGORIES) + random.integers(0, WORDS // CATEGORIES, (ITEMS, DESCRIPTION))
    words = np.where(
        random.random((ITEMS, DESCRIPTION)) < 0.5, typical, random.integers(0, WORDS, (ITEMS, DESCRIPTION))
    )
    names = [_CATEGORY + category[:, None], _BRAND + brand[:, None], _WORD + words, _ITEM + np.arange(ITEMS)[:, None]]
    blocks = np.concatenate([*names, np.full((ITEMS, 1), _STOP)], axis=1)
    return Shop(category, brand, blocks)


def prompts(count: int, candidates: int, seed: int, history: int = HISTORY) -> Prompts:
    """Ranking prompts in which about half of the candidates have some claim to be next.

    >>> asked = prompts(2, candidates=3, seed=0)
    >>> asked.ids.shape, len(asked.blocks)
    ((2, 62), 4)
    """
    goods, random = shop(), stream(seed, "ranking-lm", "prompts", count, candidates)
    taste = random.integers(0, CATEGORIES, (count, 4))
    liked = random.integers(0, BRANDS, (count, 4))
    past, brands = (np.take_along_axis(of, random.integers(0, 4, (count, history)), axis=1) for of in (taste, liked))
    drawn = random.gumbel(size=(count, ITEMS)) + math.log(FAVOUR) * _wanted(goods, past)
    items = random.permuted(np.argsort(-drawn, axis=1)[:, :candidates], axis=1)
    worth = _worth(goods, past, brands, items)
    chosen = (worth / NOISE + random.gumbel(size=worth.shape)).argmax(axis=1)
    taken = np.stack([_TAKEN_CATEGORY + past, _TAKEN_BRAND + brands], axis=2).reshape(count, 2 * history)
    first = np.broadcast_to(np.arange(INSTRUCTION), (count, INSTRUCTION))
    last = np.broadcast_to(_QUESTION + np.arange(QUESTION), (count, QUESTION))
    ids = np.concatenate([first, taken, goods.blocks[items].reshape(count, -1), last], axis=1)
    return Prompts(ids, items, worth, chosen, history)


def _wanted(goods: Shop, past: Ints) -> Floats:
    """1 for every item whose category is in the history, else 0."""
    marked = np.zeros((len(past), CATEGORIES))
    np.put_along_axis(marked, past, 1.0, axis=1)
    wanted: Floats = marked[:, goods.category]
    return wanted


def _worth(goods: Shop, past: Ints, brands: Ints, items: Ints) -> Floats:
    """What each item is worth to the user: faded matches of the category, and half a point for a known brand."""
    fade = FADE ** np.arange(past.shape[1] - 1, -1, -1)
    match = past[:, None, :] == goods.category[items][:, :, None]
    known = (brands[:, None, :] == goods.brand[items][:, :, None]).any(axis=2)
    worth: Floats = (match * fade).sum(axis=2) + 0.5 * known
    return worth


def hits(scores: Tensor, asked: Prompts, at: int = 10) -> NDArray[np.bool_]:
    """Whether the chosen item is among the `at` best by score [prompt, candidate]."""
    order = np.argsort(-scores.numpy(), axis=1, kind="stable")[:, :at]
    found: NDArray[np.bool_] = (order == asked.chosen[:, None]).any(axis=1)
    return found


def scores(logits: Tensor, asked: Prompts) -> Tensor:
    """The candidates' scores [prompt, candidate] from the logits [prompt, vocab] after the question."""
    import torch

    return logits.gather(1, torch.as_tensor(_ITEM + asked.items))


# ------------------------------------------------------------------------------------------ learning


STAGES = ("match", "any", "read")  # match histories and items, at all lengths, then also read like a language model
SHAPE = tiny_lm.Shape(vocab=VOCAB, layers=4, width=96, heads=4, head=24, kv_heads=4, hidden=256, attn="gqa")


def loss(params: tiny_lm.Params, asked: Prompts, *, reading: bool = False) -> Tensor:
    """Cross-entropy of the answer against the user's true odds, and that of every item's level at its full stop.

    With `reading` also that of the next token within items: what makes a language model's rows mostly a matter of the
    text around them.
    """
    import torch
    from torch.nn import functional

    logits, _ = tiny_lm.forward(params, asked.ids)
    odds = torch.as_tensor(asked.worth / NOISE).softmax(1).float()
    answer = functional.cross_entropy(scores(logits[:, -1], asked), odds)
    stops = [block.stop - 1 for block in asked.blocks[1:]]
    level = torch.as_tensor(np.digitize(asked.worth, (0.1, 0.6, 1.1)))
    graded = logits[:, stops, _LEVEL : _LEVEL + LEVELS]
    result: Tensor = answer + functional.cross_entropy(graded.flatten(0, 1), level.flatten())
    if reading:
        inside = np.concatenate([np.arange(block.start, block.stop - 1) for block in asked.blocks[1:]])
        following = torch.as_tensor(asked.ids[:, inside + 1])
        result = result + functional.cross_entropy(logits[:, inside].flatten(0, 1), following.flatten())
    return result


def lessons(seed: int, tokens: int, stage: str) -> Iterator[Prompts]:
    """Batches of about so many tokens: in the stage ``match`` with few candidates at first, else with all lengths.

    All lengths: some users have a short history or none, and some lists one item. An item alone behind the
    instruction, as its block is cached, is then nothing strange.
    """
    random = stream(seed, "ranking-lm", "lessons", stage)
    for step in itertools.count():
        if stage == "match":
            k = int(random.choice((3, 6, 12, 24), p=(0.4, 0.3, 0.2, 0.1) if step < 400 else (0.1, 0.2, 0.3, 0.4)))
            history = HISTORY
        else:
            k = int(random.choice((1, 3, 6, 12, 24), p=(0.1, 0.15, 0.15, 0.2, 0.4)))
            history = int(random.choice((0, 2, 5, HISTORY), p=(0.15, 0.1, 0.15, 0.6)))
        length = INSTRUCTION + 2 * history + k * BLOCK + QUESTION
        yield prompts(max(1, tokens // length), k, int(random.integers(1 << 60)), history)


Report = Callable[[int, float, tiny_lm.Params], None]


def train(
    start: tiny_lm.Params, stage: str, steps: int, seed: int = 0, *, tokens: int = 4096, rate: float = 3e-3,
    report: Report = lambda step, loss, params: None,
) -> tiny_lm.Params:  # fmt: skip
    """The recommender after one stage of training; `report` is told of every hundredth step."""
    import torch

    weights = {name: tensor.clone().requires_grad_() for name, tensor in start.tensors.items()}
    learner = tiny_lm.Params(SHAPE, weights)
    optimiser = torch.optim.AdamW(weights.values(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=max(2, steps), pct_start=0.2)
    for step, asked in zip(range(steps), lessons(seed, tokens, stage), strict=False):
        value = loss(learner, asked, reading=stage == "read")
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            report(step, float(value.detach()), learner)
    return tiny_lm.Params(SHAPE, {name: tensor.detach() for name, tensor in weights.items()})


def main(steps: int = 600, seed: int = 0, to: Path = WEIGHTS) -> None:
    """Train all stages, look at prompts never trained on, and store the weights with where they come from."""
    import time

    import torch

    torch.set_num_threads(1)
    unseen = prompts(256, candidates=24, seed=-1)

    def hit10(params: tiny_lm.Params) -> float:
        with torch.no_grad():
            logits, _ = tiny_lm.forward(params, unseen.ids)
        return float(hits(scores(logits[:, -1], unseen), unseen).mean())

    def report(step: int, loss: float, params: tiny_lm.Params) -> None:
        print(step, round(loss, 3), hit10(params), flush=True)

    begun = time.process_time()
    params = tiny_lm.init(SHAPE, seed)
    for stage in STAGES:
        params = train(params, stage, steps, seed, report=report)
    provenance = {
        "by": "python -m assay.serving.rcllm.ranking_lm", "stages": STAGES, "steps": steps, "seed": seed,
        "hit10": hit10(params), "cpu_seconds": round(time.process_time() - begun), "torch": torch.__version__,
    }  # fmt: skip
    tiny_lm.save(to, {"recommender": params}, provenance, half=True)
    print(provenance)


if __name__ == "__main__":
    main()
