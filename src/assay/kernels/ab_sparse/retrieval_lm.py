"""A small language model that looks things up in a long context, trained here: what sparse attention is tried on.

A token is a fact, a subject with an attribute, or noise. A context holds three sorts of things to look up, as the tasks
of RULER do:

- *needles*: a subject of which one fact is told, once, somewhere in the noise;
- *votes*: a subject that comes again and again, far apart; asked for is its most frequent attribute;
- *topics*: a subject of one long stretch of text; asked for is the attribute that prevails there.

The question is one token behind the context, the answer the next one. One context has many questions, each asked alone.
Nothing tells the model which heads to use; `main` trains it in stages of growing length and stores the weights with
where they come from.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim import tiny_lm
from assay.sim.random import stream

Ints = NDArray[np.int64]

WEIGHTS = Path(__file__).with_name("weights.safetensors")
TASKS = ("needle", "vote", "topic")

# The vocabulary: stretches of ids. A fact is a subject times an attribute.
NEEDLES, VOTERS, TOPICS, VALUES, NOISE = 32, 16, 16, 8, 32
_VALUE = 0
_ASK = _VALUE + VALUES  # a question names a subject
_FACT = _ASK + NEEDLES + VOTERS + TOPICS
_NOISE = _FACT + (NEEDLES + VOTERS + TOPICS) * VALUES
VOCAB = _NOISE + NOISE

VOTES = 12  # how often a voter comes, at full length
SECTION = 96  # words about a topic, at most
FAVOUR = 0.4  # share of a section's words that have the favoured attribute for sure
LENGTH = 4096  # of a context at full length


@dataclass(frozen=True)
class Context:
    """A text, and what can be asked about it: one token each, its answer, and the task it belongs to."""

    ids: Ints
    questions: Ints
    answers: Ints
    tasks: Ints  # indices into TASKS


def context(length: int, random: np.random.Generator) -> Context:
    """A text of this length; the number of things in it grows with it.

    >>> made = context(512, stream(0, "doc"))
    >>> len(made.ids), sorted(set(made.tasks.tolist()))
    (512, [0, 1, 2])
    """
    share = length / LENGTH
    needles = random.permutation(NEEDLES)[: max(4, round(NEEDLES * share**0.5))]
    voters = NEEDLES + random.permutation(VOTERS)[: max(2, round(12 * share**0.5))]
    topics = NEEDLES + VOTERS + random.permutation(TOPICS)[: max(2, round(12 * share**0.5))]
    votes = max(3, min(VOTES, round(VOTES * (4 * share) ** 0.5)))
    section = max(8, min(SECTION, round(600 * share)))
    subjects = np.concatenate([needles, voters, topics])
    answers = random.integers(0, VALUES, len(subjects))
    loose, sections = [], []
    for subject, answer in zip(subjects, answers, strict=True):
        if subject < NEEDLES:
            loose.append(np.array([answer]) + _FACT + subject * VALUES)
        elif subject < NEEDLES + VOTERS:
            loose.append(_ballots(answer, votes, random) + _FACT + subject * VALUES)
        else:
            said = np.where(random.random(section) < FAVOUR, answer, random.integers(0, VALUES, section))
            sections.append(said + _FACT + subject * VALUES)
    noise = length - sum(map(len, loose)) - sum(map(len, sections))
    text = random.permutation(np.concatenate([*loose, _NOISE + random.integers(0, NOISE, noise)]))
    cuts = np.sort(random.integers(0, len(text) + 1, len(sections)))
    pieces = [piece for pair in zip(np.split(text, cuts), [*sections, text[:0]], strict=True) for piece in pair]
    tasks = np.digitize(subjects, (NEEDLES, NEEDLES + VOTERS))
    return Context(np.concatenate(pieces), _ASK + subjects, _VALUE + answers, tasks)


def _ballots(winner: int, votes: int, random: np.random.Generator) -> Ints:
    """Votes of which the winner has half, the others as they fall, none as many as the winner."""
    most = votes // 2 + 1 if votes < 6 else votes // 2
    others = np.delete(np.arange(VALUES), winner)
    rest = random.permutation(np.repeat(others, min(most - 1, 2)))[: votes - most]
    return np.concatenate([np.full(most, winner), rest])


def lesson(batch: int, length: int, asked: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Contexts [batch, length + 2·asked], each with so many questions and their answers behind it, tasks in turn.

    Also which positions are questions, from whose logits the answers are learnt.
    """
    rows = []
    for _ in range(batch):
        one = context(length, random)
        by_task = [random.permutation(np.flatnonzero(one.tasks == t)) for t in range(len(TASKS))]
        turn = [int(i) for i in itertools.chain.from_iterable(itertools.zip_longest(*by_task, fillvalue=-1)) if i >= 0]
        which = np.resize(turn[:asked], asked)
        rows.append(np.concatenate([one.ids, np.stack([one.questions[which], one.answers[which]], 1).ravel()]))
    return np.stack(rows), length + 2 * np.arange(asked)


def loss(params: tiny_lm.Params, ids: Ints, at: Ints) -> Any:
    """Cross-entropy of the answers behind the questions."""
    import torch
    from torch.nn import functional

    logits, _ = tiny_lm.forward(params, ids)
    return functional.cross_entropy(logits[:, at].flatten(0, 1), torch.as_tensor(ids[:, at + 1]).flatten())


@dataclass(frozen=True)
class Stage:
    """A stretch of training: contexts of one length, how many a step, how many questions each, steps, rate."""

    length: int
    batch: int
    asked: int
    steps: int
    rate: float


SHAPE = tiny_lm.Shape(vocab=VOCAB, layers=2, width=64, heads=8, head=16, kv_heads=8, hidden=64, attn="gqa", theta=1e6)
THETA = 1e9  # of rotary positions, once trained: slow turns reach farther than it was trained to
STAGES = (
    Stage(64, 32, 8, 500, 5e-3),
    Stage(256, 16, 14, 120, 3e-3),
    Stage(1024, 4, 28, 60, 2e-3),
    Stage(4096, 1, 56, 40, 1e-3),
)


def lessons(stage: Stage, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Batches without end."""
    random = stream(seed, "ab-sparse", "lessons", stage.length)
    while True:
        yield lesson(stage.batch, stage.length, stage.asked, random)


def train(start: tiny_lm.Params, stage: Stage, seed: int = 0, every: int = 25) -> tiny_lm.Params:
    """The model after one stage; prints the loss now and then."""
    import torch

    weights = {name: tensor.clone().requires_grad_() for name, tensor in start.tensors.items()}
    learner = tiny_lm.Params(start.shape, weights)
    optimiser = torch.optim.AdamW(weights.values(), lr=stage.rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, stage.rate, total_steps=stage.steps, pct_start=0.1)
    recent = []
    for step, (ids, at) in zip(range(stage.steps), lessons(stage, seed), strict=False):
        value = loss(learner, ids, at)
        optimiser.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimiser.step()
        schedule.step()
        recent.append(float(value.detach()))
        if (step + 1) % every == 0:
            print(stage.length, step + 1, round(float(np.mean(recent[-every:])), 3), flush=True)
    return tiny_lm.Params(start.shape, {name: tensor.detach() for name, tensor in weights.items()})


def main(seed: int = 0, to: Path = WEIGHTS) -> None:
    """Train all stages and store the weights with where they come from."""
    import torch

    torch.set_num_threads(1)
    params = tiny_lm.init(SHAPE, seed)
    for stage in STAGES:
        params = train(params, stage, seed)
    store(params, seed, to)


def store(params: tiny_lm.Params, seed: int, to: Path) -> None:
    """Write the weights in half precision, with how they were trained."""
    import torch

    reader = tiny_lm.Params(replace(params.shape, theta=THETA), params.tensors)
    provenance = {
        "by": "python -m assay.kernels.ab_sparse.retrieval_lm", "seed": seed, "torch": torch.__version__,
        "stages": [asdict(stage) for stage in STAGES], "trained_theta": SHAPE.theta,
    }  # fmt: skip
    tiny_lm.save(to, {"reader": reader}, provenance, half=True)


if __name__ == "__main__":
    main()
