"""The mechanism: microbatches dealt by a ledger, gradients summed bucket by bucket, and what to do when somebody dies.

A step is over when every bucket holds the gradient of every microbatch once. Replicas accumulate theirs where torch
does, in `grad`, and sum copies of it, so what was there before a sum is still there after one that failed. With each
bucket travels its own ledger: how often each microbatch is in it. A bucket that all survivors have is kept, with the
dead replica's part in it; the others are summed again, once the survivors have computed the microbatches that went
missing. So no bucket mixes averages over different microbatches, and nothing is computed again that somebody still has.

All of that holds for replicas that are alike. So the first one's weights and buffers go to all when the job begins, as
DDP's do, and with the first votes and then every so many steps travels a digest of weights and optimizer: replicas that
have come apart stop, all of them, instead of training on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.record.errors import AssayError, BadInput
from assay.training.recover.alike import digest, shape_of, spread
from assay.training.recover.backends import Backend
from assay.training.recover.seat import Broken

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BUCKET = 25 << 20  # bytes, as DDP's
EVERY = 100  # steps from one digest to the next
FIRST = 2  # steps that have one each: an optimizer that differs shows in the weights after the first


class LedgerBroken(AssayError):  # noqa: N818
    """A bucket without some microbatch, or with one twice. It would be our mistake; better no step than a wrong one."""

    exit_code = 1


class Unequal(AssayError):  # noqa: N818
    """Replicas with other weights or optimizers than the rest. What they sum is nobody's gradient."""

    exit_code = 1


def deal(batch: int, done: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """Who computes the microbatches that nobody alive has: always the one with the fewest, the first among equals.

    With nothing done yet everybody gets `batch // members`, and the first `batch % members` one more.

    >>> deal(8, {0: [], 2: [], 3: []})
    {0: [0, 3, 6], 2: [1, 4, 7], 3: [2, 5]}
    >>> deal(8, {0: [0, 3, 6], 2: [1, 4]})
    {0: [5], 2: [2, 7]}
    """
    held = {one for some in done.values() for one in some}
    shares: dict[int, list[int]] = {rank: [] for rank in done}
    least = [(len(some), rank) for rank, some in done.items()]
    heapq.heapify(least)
    for one in range(batch):
        if one not in held:
            count, rank = heapq.heappop(least)
            shares[rank].append(one)
            heapq.heappush(least, (count + 1, rank))
    return shares


@dataclass(frozen=True)
class Bucket:
    """Parameters whose gradients are summed in one go."""

    parameters: tuple[torch.nn.Parameter, ...]

    @classmethod
    def cut(cls, parameters: Sequence[torch.nn.Parameter], size: int) -> list[Bucket]:
        """In the order in which backward passes fill them: the last first."""
        found: list[list[Any]] = []
        room = 0
        for one in reversed(parameters):
            nbytes = one.numel() * one.element_size()
            if not found or nbytes > room or one.dtype != found[-1][0].dtype:
                found.append([])
                room = size
            found[-1].append(one)
            room -= nbytes
        return [cls(tuple(some)) for some in found]

    def filled(self, counts: Sequence[int], noted: float) -> Tensor:
        """A copy of what this replica has: gradients, whether there is one, the ledger, and what the user noted."""
        import torch

        kind = self.parameters[0].dtype
        gradients = [
            torch.zeros(p.numel(), dtype=kind) if p.grad is None else p.grad.flatten() for p in self.parameters
        ]
        there = [float(p.grad is not None) for p in self.parameters]
        return torch.cat([*gradients, torch.tensor([*there, *map(float, counts), noted], dtype=kind)])

    def ledger(self, total: Tensor, batch: int) -> list[int]:
        """How often each microbatch is in a sum."""
        return [round(x) for x in total[-1 - batch : -1].tolist()]

    def give(self, total: Tensor, batch: int, count: int) -> None:
        """Write a sum, divided by how many microbatches are in it, into the parameters."""
        at = 0
        present = total[-1 - batch - len(self.parameters) : -1 - batch].tolist()
        for parameter, there in zip(self.parameters, present, strict=True):
            part = total[at : at + parameter.numel()].view_as(parameter)
            parameter.grad = part.div(count) if there else None
            at += parameter.numel()


class Replicas:
    """This process's share of a job that survives the death of others.

    Args:
        model: a module, or its parameters; all replicas begin with the weights and buffers of the first.
        batch: microbatches of a step, all replicas together; it stays so whoever dies.
        backend: how replicas talk; `joined` makes one.
        bucket: bytes of gradients that are summed in one go.
        optimizer: whose settings and state must be alike, too.
        every: steps from one look at whether replicas are alike to the next; the first two have one each.
        watch: is told every point that is passed, for tests and for watching.

    Raises:
        Unequal: on all replicas, where their models or batches differ.
    """

    def __init__(
        self, model: torch.nn.Module | Sequence[torch.nn.Parameter], batch: int, backend: Backend, *,
        bucket: int = BUCKET, optimizer: torch.optim.Optimizer | None = None, every: int = EVERY,
        watch: Callable[[str, int], None] | None = None,
    ) -> None:  # fmt: skip
        from torch import nn

        parameters = list(model.parameters()) if isinstance(model, nn.Module) else list(model)
        self.buckets = Bucket.cut([p for p in parameters if p.requires_grad], bucket)
        if batch < 1 or not self.buckets:
            raise BadInput(f"{batch} microbatches of {len(parameters)} parameters: there is nothing to train")
        if every < 1:
            raise BadInput(f"every={every}; a look at weights and optimizer every 100 steps, or after each (1)")
        self.batch, self.backend = batch, backend
        self._parameters, self._optimizer, self._every = parameters, optimizer, every
        self.steps = 0
        self.loss = float("nan")  # of the last step, mean over its microbatches
        self.counted = 0  # microbatches in the last step
        self._watch = watch or (lambda point, at: None)
        self._noted = 0.0
        self.recovered = 0  # times that the group was mended
        self.again = 0  # microbatches computed in place of a dead replica
        self.members = self._begun([*parameters, *(model.buffers() if isinstance(model, nn.Module) else [])], bucket)

    def _begun(self, tensors: Sequence[Tensor], size: int) -> list[int]:
        """Who is here, once all of them have the weights of the first; if somebody dies meanwhile, once more."""
        mine = [shape_of(tensors), self.batch, size]
        while True:
            votes = self.backend.agree(mine)
            self._same(votes, "models, batches or buckets")
            try:
                spread(self.backend, tensors, min(votes) == self.backend.rank, size)
                whole = True
            except Broken:
                whole = False
            after = self.backend.agree(whole)
            if all(after.values()):
                return sorted(after)

    @staticmethod
    def _same(votes: Mapping[int, Any], what: str) -> None:
        """That all replicas brought the same; what most of them have counts as right."""
        several = [repr(vote) for vote in votes.values()]
        most = max(several, key=several.count)
        others = [rank for rank, vote in votes.items() if repr(vote) != most]
        if others:
            named = ", ".join(map(str, others))
            raise Unequal(
                f"replicas differ in their {what}: {named} from the other{'s' * (len(votes) > 2)}; "
                "build model and optimizer alike on all of them, and change them by this step's gradient only"
            )

    def _digest(self) -> str | None:
        """Of weights and optimizer, in the steps that have one."""
        if self.steps >= FIRST and self.steps % self._every:
            return None
        return digest(self._parameters, self._optimizer)

    def step(self) -> Iterator[int]:
        """The microbatches that this replica computes; when the loop ends, `grad` is the mean over the whole batch.

        While others die, the loop goes on with what they left.

        Raises:
            Unequal: on all replicas, where weights or optimizers have come apart.
        """
        import torch

        mine: list[int] = []
        todo = self._share({rank: [] for rank in self.members})
        totals: list[Tensor] = []
        self._noted, looks = 0.0, self._digest()
        while True:
            for one in todo:
                if self.backend.broken:  # better now than after work that may be dealt anew
                    break
                self._watch("microbatch", one)
                yield one
                mine.append(one)
            with torch.no_grad():
                self._sum(mine, totals)
            self._watch("agree", len(totals))
            votes = self.backend.agree([len(totals), mine, looks])
            self._watch("agreed", len(totals))
            self._same(
                {rank: vote[2] for rank, vote in votes.items()}, f"weights or optimizers before step {self.steps}"
            )
            self.recovered += len(votes) < len(self.members)
            self.members = sorted(votes)
            del totals[self._kept([vote[0] for vote in votes.values()]) :]
            if len(totals) == len(self.buckets):
                break
            todo = self._share({rank: vote[1] for rank, vote in votes.items()})
            self.again += len(todo)
        self._finish(totals)

    def _share(self, done: Mapping[int, Sequence[int]]) -> list[int]:
        """What this replica is to compute, by what each member has."""
        return deal(self.batch, done)[self.backend.rank]

    def _kept(self, summed: Sequence[int]) -> int:
        """How many buckets stay, by how many each survivor has: those that all have."""
        return min(summed)

    def note(self, loss: Any) -> None:
        """Add a microbatch's loss; `loss` is then the mean over the whole batch, on all replicas."""
        self._noted += float(loss.detach() if hasattr(loss, "detach") else loss)

    def leave(self) -> None:
        """The job is done."""
        self.backend.leave()

    def _sum(self, mine: list[int], totals: list[Tensor]) -> None:
        """Sum the buckets that are not yet, until somebody dies."""
        have = set(mine)
        counts = [int(one in have) for one in range(self.batch)]
        try:
            for at in range(len(totals), len(self.buckets)):
                buffer = self.buckets[at].filled(counts, self._noted)
                self._watch("bucket", at)
                self.backend.all_reduce(buffer)
                totals.append(buffer)
        except Broken:
            return

    def _finish(self, totals: list[Tensor]) -> None:
        ledgers = [bucket.ledger(total, self.batch) for bucket, total in zip(self.buckets, totals, strict=True)]
        self._check(ledgers)
        self.counted = sum(ledgers[-1])
        for bucket, total in zip(self.buckets, totals, strict=True):
            bucket.give(total, self.batch, self.counted)
        self.loss = float(totals[-1][-1]) / self.counted
        self.steps += 1
        self._watch("step", self.steps)

    def _check(self, ledgers: Sequence[Sequence[int]]) -> None:
        for at, counts in enumerate(ledgers):
            wrong = {one: count for one, count in enumerate(counts) if count != 1}
            if wrong:
                raise LedgerBroken(f"step {self.steps}, bucket {at}: microbatches counted otherwise than once: {wrong}")
