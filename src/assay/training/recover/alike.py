"""Whether replicas are alike, and how they become so: of what they are made, its digest, the first one's sent to all.

Bytes are sent, not numbers: who has them adds them to nothing, so that what arrives is what there was, also where it is
a negative zero or no number at all.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from assay.training.recover.backends import Backend

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def shape_of(tensors: Sequence[Tensor]) -> str:
    """How many there are, and a digest of their shapes and types.

    >>> import torch
    >>> shape_of([torch.zeros(2, 3)]) == shape_of([torch.ones(2, 3)]) != shape_of([torch.zeros(6)])
    True
    """
    listed = [[list(one.shape), str(one.dtype)] for one in tensors]
    return f"{len(listed)} tensors {zlib.crc32(json.dumps(listed).encode()):08x}"


def digest(parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer | None = None) -> str:
    """Of every bit of the weights, and of the optimizer's settings and state.

    >>> import torch
    >>> weights = [torch.nn.Parameter(torch.tensor([0.0, 1.0]))]
    >>> digest(weights) == digest([torch.tensor([0.0, 1.0])]) != digest([torch.tensor([-0.0, 1.0])])
    True
    >>> digest(weights, torch.optim.SGD(weights, lr=0.1)) == digest(weights, torch.optim.SGD(weights, lr=0.2))
    False
    """
    found = 0
    for one in parameters:
        found = _bits(one, found)
    said = f"{found:08x}"
    if optimizer is not None:
        said += f" {_all(optimizer.state_dict(), 0):08x}"
    return said


def _bits(x: Tensor, seed: int) -> int:
    import torch

    return zlib.crc32(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data, seed)


def _all(what: Any, seed: int) -> int:
    """Through dictionaries and lists, in their order, to tensors and plain values."""
    import torch

    if isinstance(what, torch.Tensor):
        return _bits(what, zlib.crc32(f"{what.dtype} {tuple(what.shape)}".encode(), seed))
    if isinstance(what, dict):
        for key, value in what.items():
            seed = _all(value, zlib.crc32(repr(key).encode(), seed))
        return seed
    if isinstance(what, list | tuple):
        for value in what:
            seed = _all(value, seed)
        return seed
    plain = what is None or isinstance(what, bool | int | float | complex | str)
    return zlib.crc32((repr(what) if plain else type(what).__qualname__).encode(), seed)


def spread(backend: Backend, tensors: Sequence[Tensor], mine: bool, size: int) -> None:
    """Give all replicas the tensors of one of them, so many bytes in one go.

    Raises:
        Broken: somebody died, and some of the others may have some of them.
    """
    import torch

    with torch.no_grad():
        for some in _parcels(tensors, size):
            flat = torch.cat([one.detach().contiguous().reshape(-1).view(torch.uint8) for one in some])
            buffer = flat if mine else torch.zeros_like(flat)
            backend.all_reduce(buffer)
            at = 0
            for one in some:
                part = buffer[at : at + one.nbytes]
                one.copy_(part.clone().view(one.dtype).view(one.shape))
                at += one.nbytes


def _parcels(tensors: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Those that go together: of one device, of about so many bytes."""
    some: list[Tensor] = []
    for one in tensors:
        if some and (one.device != some[0].device or sum(each.nbytes for each in some) + one.nbytes > size):
            yield some
            some = []
        if one.numel():
            some.append(one)
    if some:
        yield some
