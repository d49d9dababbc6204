"""A job loses half of its replicas before your eyes: who computes what, and the loss beside that of a calm twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.sim.random import stream
from assay.training.recover import job
from assay.training.recover.job import Kill, Training

Told = Callable[[str, NDArray[Any]], None]


def demo(replicas: int = 4, steps: int = 30, seed: int = 0, text: str = "", told: Told | None = None) -> dict[str, Any]:
    """Train twice, once with half of the replicas killed at drawn points; losses side by side, and what it took.

    Args:
        replicas: processes of the job.
        steps: optimizer steps.
        seed: of the model, the data and the deaths.
        text: what is learnt, byte by byte; a small generated world where there is none.
        told: is shown each job's name and where its replicas are, several times a second.

    Raises:
        BadInput: too few replicas, steps or letters.
    """
    if replicas < 2 or steps < 2 * replicas:
        raise BadInput(f"{replicas} replicas and {steps} steps: at least 2, and twice as many steps, would be right")
    training = Training(replicas=replicas, batch=2 * replicas, steps=steps, rows=2, seq=32, seed=seed, text=text)
    if len(job.tokens(training)) < 4 * training.seq:
        raise BadInput(f"a text of {len(text)} letters; at least {4 * training.seq} are needed")
    kills = deaths(training)
    outcomes = {}
    for name, some in (("failure-free", []), ("recover", kills)):
        outcomes[name] = job.run(training, some, _for(name, told))
    calm, hit = outcomes["failure-free"], outcomes["recover"]
    return {
        "replicas": replicas, "survivors": hit.alive[-1], "batch": training.batch,
        "kills": [{"replica": kill.rank, "step": kill.step, "point": kill.point, "at": kill.at} for kill in kills],
        "steps": [
            {"step": at, "alive": alive, "microbatches": count, "loss": loss, "failure_free_loss": other}
            for at, (alive, count, loss, other) in enumerate(
                zip(hit.alive, hit.counted, hit.losses, calm.losses, strict=True)
            )
        ],
        "weights_apart": job.distance(hit.weights, calm.weights), "computed_in_place_of_the_dead": hit.again,
        "recoveries": [float(seconds) for seconds in hit.mending],
    }  # fmt: skip


def deaths(training: Training) -> list[Kill]:
    """Half of the replicas, at steps spread over the job: inside a sum, before a vote, in the middle of their share."""
    random = stream(training.seed, "recover", "demo")
    doomed = random.permutation(training.replicas)[: training.replicas // 2]
    steps = np.linspace(1, training.steps - 2, len(doomed) + 2)[1:-1]
    points = ("bucket", "microbatch", "agree")
    return [
        Kill(int(rank), int(step), points[at % 3], 2 if at % 3 == 0 else job.ANY)
        for at, (rank, step) in enumerate(zip(doomed, steps, strict=True))
    ]


def _for(name: str, told: Told | None) -> Callable[[NDArray[Any]], None] | None:
    return None if told is None else lambda slots: told(name, slots)


def curve(values: Sequence[float], others: Sequence[float], width: int) -> list[str]:
    """Two loss curves as rows of signs: `-` the failure-free one, `*` the job's, which hides it where they are one."""
    at = np.linspace(0, len(others) - 1, width).round().astype(int)
    low, high = min([*values, *others]), max([*values, *others])
    height = 8
    grid = [[" "] * width for _ in range(height)]
    for sign, some in (("-", others), ("*", values)):
        for x, index in enumerate(at):
            if index < len(some):
                level = (some[index] - low) / ((high - low) or 1.0)
                grid[height - 1 - round(level * (height - 1))][x] = sign
    return ["".join(row).rstrip() for row in grid]
