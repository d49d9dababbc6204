"""NCCLZ as a communication hook of torch's DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.sim.random import key
from assay.training.ncclz.collectives import Choices, all_reduce, all_reduce_levels, left_alone
from assay.training.ncclz.links import Link, Port, link, probed


@dataclass
class Compression:
    """How gradients travel: QSGD's levels of `bits` bits, or, where `eps` is given, sums within n eps.

    `links` is the speed of the network, as in "1gbit"; measured before the first bucket where it is left out. On a link
    that carries floats sooner than they are coded nothing is coded, unless `always` says so. Every rank makes one.

    >>> Compression(bits=8).eps is None
    True
    """

    bits: int = 8
    eps: float | None = None
    links: str | Link | None = None
    always: bool = False
    seed: int = 0
    buckets: int = 0  # so far
    coded: int = 0  # of them
    sent: int = 0  # bytes of this rank's coded messages
    port: Port | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise ValueError(f"bits is {self.bits}, should be 2 to 16")
        if self.eps is not None and not 0 < self.eps < np.inf:
            raise ValueError(f"eps is {self.eps}, should be a positive number")

    def opened(self) -> Port:
        """This rank's place in a ring of its own group, made when it is first asked for: by all ranks, then."""
        if self.port is None:
            import torch.distributed as dist

            group = dist.new_group(backend="gloo")  # its messages meet no others
            on = probed(dist, group) if self.links is None else self.links
            self.port = Port(dist, link(on) if isinstance(on, str) else on, group=group)
        return self.port


def hook(state, bucket):  # type: ignore[no-untyped-def]
    """Average a bucket of gradients over all ranks: `model.register_comm_hook(Compression(bits=8), hook)`.

    It has no annotations, as DistributedDataParallel takes none that are written as strings.
    """
    import torch

    tensor, port = bucket.buffer(), state.opened()
    choices = Choices(always=state.always)
    drawn = key(state.seed, "ncclz", port.index, state.buckets)
    state.buckets += 1
    usual = tensor.dtype is torch.float32 and tensor.device.type == "cpu"
    if usual and left_alone(port, tensor.numel(), choices):  # as torch itself does it, while the next ones are computed
        sent = port.dist.all_reduce(tensor.div_(port.size), group=port.group, async_op=True)
        return sent.get_future().then(lambda done: done.value()[0])
    port.start()
    x = tensor.detach().to("cpu", torch.float32).numpy()
    if state.eps is not None:
        total, report = all_reduce(port, x, state.eps, choices, out=x)
    else:
        total, report = all_reduce_levels(port, x, state.bits, drawn, choices)
    state.coded += report.coded
    state.sent += port.sent
    total /= port.size
    if total is not x or tensor.data_ptr() != x.ctypes.data:
        tensor.copy_(torch.from_numpy(total).view_as(tensor))
    found: Any = torch.futures.Future()
    found.set_result(tensor)
    return found
