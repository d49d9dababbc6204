"""NCCLZ as a communication hook of torch's DistributedDataParallel.

torch tells a hook nothing of the group over which gradients are to be averaged. It is that of the model that has the
hook, and only ranks of that group must hear of it: inside a device mesh each row of ranks has a model of its own.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from assay.record.errors import BadInput
from assay.sim.random import key
from assay.training.ncclz.collectives import Choices, all_reduce, all_reduce_levels
from assay.training.ncclz.links import Link, Port, link, probed

PLACES = 1024  # of buckets that are remembered


@dataclass
class Compression:
    """How gradients travel: QSGD's levels of `bits` bits, or, where `eps` is given, sums within n eps.

    They are averaged over the process group of the model that the hook is registered with, be it the world, ranks of
    one's own or a dimension of a device mesh. `links` is the speed of the network, as in "1gbit"; measured before the
    first bucket where it is left out. On a link that carries floats sooner than they are coded nothing is coded, unless
    `always` says so. Every rank makes one, alike.

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
    _ports: WeakKeyDictionary[Any, Port] = field(default_factory=WeakKeyDictionary, repr=False, compare=False)
    _models: dict[int, ref[Any]] = field(default_factory=dict, repr=False, compare=False)  # by where buckets lie

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise ValueError(f"bits is {self.bits}, should be 2 to 16")
        if self.eps is not None and not 0 < self.eps < np.inf:
            raise ValueError(f"eps is {self.eps}, should be a positive number")

    def port(self, bucket: Any) -> Port:
        """This rank's place in the ring of the model whose gradients these are.

        The ring is made with a model's first bucket, by all ranks of its group; its messages meet no others.

        Raises:
            BadInput: gradients that are no DistributedDataParallel's, or of a module wrapped for two groups; on every
                rank, ranks whose Compressions differ.
        """
        import torch
        import torch.distributed as dist

        if not isinstance(bucket, dist.GradBucket):  # type: ignore[attr-defined]
            whose = "FullyShardedDataParallel's" if isinstance(bucket, torch.Tensor) else "these"
            raise BadInput(
                f"the hook sums DistributedDataParallel's buckets, and {whose} gradients do not come in any; "
                "wrap the model in DistributedDataParallel, or register no hook"
            )
        # A model's buckets keep their place: it is looked for again only when it has made others, or is another one.
        place = bucket.buffer().data_ptr()
        known = self._models.get(place)
        model = None if known is None else known()
        if model is None:
            model = self._model(bucket.parameters()[0])
            if len(self._models) >= PLACES:
                self._models.clear()
            self._models[place] = ref(model)
        if model not in self._ports:
            self._ports[model] = self._ring(dist, model.process_group)
        return self._ports[model]

    def _model(self, parameter: Any) -> Any:
        """The model that has this parameter, and this as its hook's state: torch does not say, so it is looked for."""
        from torch.nn.parallel import DistributedDataParallel

        found = [
            model
            for model in gc.get_objects()
            if issubclass(type(model), DistributedDataParallel)
            and any(state is self for _, state in model._comm_hooks)
            and any(one is parameter for one in model._module_parameters)  # beside tensor parallelism it has others
        ]
        if not found:
            raise BadInput(
                "the model that this hook averages for is not among those that Python's collector knows; call "
                "gc.unfreeze() before the first backward pass"
            )
        if any(model.process_group is not found[0].process_group for model in found):
            raise BadInput(
                "a module is wrapped in DistributedDataParallel twice, for different groups, with one Compression: "
                "nobody can tell whose a gradient is; make a Compression for each"
            )
        return found[0]

    def _ring(self, dist: Any, group: Any) -> Port:
        ranks = dist.get_process_group_ranks(group)
        own = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)  # others need not come
        each: list[Any] = [None] * len(ranks)
        dist.all_gather_object(
            each, f"bits={self.bits}, eps={self.eps}, links={self.links!r}, always={self.always}", own
        )
        if len(set(each)) > 1:  # they would wait for messages that others do not send
            raise BadInput(f"ranks differ in their Compression: {'; '.join(sorted(set(each)))}; make them alike")
        on = probed(dist, own) if self.links is None else self.links
        return Port(dist, link(on) if isinstance(on, str) else on, group=own)


def hook(state, bucket, *sharded):  # type: ignore[no-untyped-def]
    """Average a bucket of gradients over its model's group: `model.register_comm_hook(Compression(bits=8), hook)`.

    Raises:
        BadInput: registered with FullyShardedDataParallel, which wants its gradients scattered.
    """
    import torch

    port = state.port(bucket)
    tensor = bucket.buffer()
    choices = Choices(always=state.always)
    drawn = key(state.seed, "ncclz", port.index, state.buckets)
    state.buckets += 1
    x = _floats(tensor.detach())
    port.start()
    if state.eps is not None:
        total, report = all_reduce(port, x, state.eps, choices)
    else:
        total, report = all_reduce_levels(port, x, state.bits, drawn, choices)
    state.coded += report.coded
    state.sent += port.sent
    tensor.copy_(torch.from_numpy(total / port.size).view_as(tensor))
    found: Any = torch.futures.Future()
    found.set_result(tensor)
    return found


def _floats(gradients: Any) -> Any:
    """Gradients as a row of numbers: the same memory where they are float32 or float64 of the processor's own."""
    import torch

    if not gradients.is_floating_point():
        raise BadInput(
            f"gradients are {str(gradients.dtype).removeprefix('torch.')}, the hook sums floating numbers only"
        )
    kind = torch.float64 if gradients.dtype is torch.float64 else torch.float32
    return gradients.to("cpu", kind).reshape(-1).numpy()
