"""The live pipeline: a process a stage, activations and gradients over gloo, every stage in the order of its slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.record.errors import BadInput
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.interface import Ints
from assay.training.rpd.slots import timeline
from assay.training.rpd.stages import Stage, simulated, split

if TYPE_CHECKING:
    from torch import Tensor, nn

PATIENCE = 240.0
IMPORTS = ("torch", "torch._dynamo", "assay.training.rpd.pipeline")


@dataclass(frozen=True)
class Trained:
    """Weights of every stage in its parameters' order, losses by microbatch, and how old a stage's weights got."""

    weights: list[list[Any]]
    losses: list[float]
    oldest: list[int]  # by stage, in its own versions


def train(
    model: nn.Sequential, batches: Sequence[tuple[Tensor, Tensor]], loss: Any, *, stages: int, rate: float,
    live: bool = True,
) -> Trained:  # fmt: skip
    """Train a Sequential as PipeDream would, a process a stage; the model's weights are the new ones afterwards.

    Args:
        model: cut into consecutive stages; a copy of each goes to its process.
        batches: inputs and targets, one pair a microbatch.
        loss: of outputs and targets, a function that can be sent to another process.
        stages: how many.
        rate: step size of plain SGD.
        live: real processes; without, the same slot by slot in this one, to the last bit.

    Raises:
        BadInput: more stages than there are modules with parameters, or no batches.
    """
    if not batches:
        raise BadInput("no microbatches to train on")
    parts = split(model, stages)
    slots = timeline(stages, len(batches))
    if live:
        found = _live(parts, slots, batches, rate, loss)
    else:
        done = simulated(parts, slots, batches, rate, loss)
        found = Trained([[w.detach().numpy() for w in one.weights] for one in done], done[-1].losses, _oldest(slots))
    _load(parts, found.weights)
    return found


def _load(parts: Sequence[nn.Module], weights: Sequence[Sequence[Any]]) -> None:
    import torch

    with torch.no_grad():
        for part, new in zip(parts, weights, strict=True):
            for parameter, values in zip(part.parameters(), new, strict=True):
                parameter.copy_(torch.from_numpy(values))


def _oldest(slots: Ints) -> list[int]:
    """How many backward passes of its own a stage had between a microbatch's two passes, at most."""
    found = []
    for column in slots.T:
        done, began, most = 0, {}, 0
        for op in column[column != 0].tolist():
            if op > 0:
                began[op] = done
            else:
                most, done = max(most, done - began[-op]), done + 1
        found.append(most)
    return found


def _live(parts: Sequence[nn.Module], slots: Ints, batches: Any, rate: float, loss: Any) -> Trained:
    with scratch() as folder:
        job = partial(_work, folder=str(folder), parts=parts, slots=slots, batches=batches, rate=rate, loss=loss)
        with Ranks(len(parts), job, imports=IMPORTS) as ranks:
            answers = ranks.wait(timeout=PATIENCE)
    return Trained([one["weights"] for one in answers], answers[-1]["losses"], [one["oldest"] for one in answers])


def _work(
    rank: Rank, folder: str, parts: Sequence[nn.Module], slots: Ints, batches: Any, rate: float, loss: Any
) -> dict[str, Any]:
    from assay.sim.gloo_ranks import joined

    last = rank.size - 1
    stage = Stage(parts[rank.index], rate, loss if rank.index == last else None)
    with joined(rank, folder) as dist:
        oldest, sent = 0, []
        for op in slots[:, rank.index].tolist():
            m = abs(op) - 1
            if op > 0:
                given = batches[m][0] if rank.index == 0 else _received(dist, rank.index - 1)
                out = stage.forward(m, given, batches[m][1] if rank.index == last else None)
                if rank.index < last:
                    sent += _sent(dist, out, rank.index + 1)
            elif op < 0:
                gradient, age = stage.backward(m, None if rank.index == last else _received(dist, rank.index + 1))
                oldest = max(oldest, age)
                if rank.index and gradient is not None:
                    sent += _sent(dist, gradient, rank.index - 1)
        for work, _ in sent:
            work.wait()
        rank.meet(PATIENCE)
    return {"weights": [w.detach().numpy() for w in stage.weights], "losses": stage.losses, "oldest": oldest}


def _sent(dist: Any, tensor: Tensor, to: int) -> list[tuple[Any, Tensor]]:
    """Shape, then values, without waiting: two stages may be about to send to each other."""
    import torch

    shape = torch.zeros(8, dtype=torch.int64)
    shape[0] = tensor.ndim
    shape[1 : 1 + tensor.ndim] = torch.tensor(tensor.shape)
    whole = tensor.contiguous()
    return [(dist.isend(part, to), part) for part in (shape, whole)]


def _received(dist: Any, source: int) -> Tensor:
    import torch

    shape = torch.empty(8, dtype=torch.int64)
    dist.recv(shape, source)
    values = torch.empty([int(n) for n in shape[1 : 1 + int(shape[0])]])
    dist.recv(values, source)
    return values
