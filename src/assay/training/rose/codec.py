"""Weights across clusters: send what changed, where little did, and the whole tensor where much did.

An RL step moves weights by so little that most of their bfloat16 copies stay as they were. A tensor of which few
numbers changed is sent as positions and new bits (COO); one of which more than a third did is smaller as it is, and is
sent so. The receiver has last step's weights and ends with this step's, bit for bit: what is sent are new values, not
differences, whose sums would round. Keys name a parameter's part (name, first row, last row), so that every shard
goes to who holds it and nobody gathers.

>>> import numpy as np
>>> old = {"w": np.arange(6, dtype=np.uint16)}
>>> new = {"w": np.array([0, 1, 9, 3, 4, 5], dtype=np.uint16)}
>>> packets = encode(old, new)
>>> packets[0].sparse, decode(old, packets)["w"].tolist(), packets[0].nbytes
(True, [0, 1, 9, 3, 4, 5], 6)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]  # uint16 of bfloat16 weights, uint32 of float32 ones
BUCKET = 64 << 20  # bytes that a sender pushes at once
BATCH = 1 << 30  # bytes that a receiver pulls at once


@dataclass(frozen=True)
class Packet:
    """The part of a parameter between two of its rows: new bits at some positions, or all of them."""

    key: tuple[str, int, int]
    at: NDArray[np.uint32]
    bits: Bits
    sparse: bool

    @property
    def nbytes(self) -> int:
        """On the wire, but for the key."""
        return int(self.at.nbytes + self.bits.nbytes)


def encode(old: Mapping[str, Bits], new: Mapping[str, Bits], shards: int = 1) -> list[Packet]:
    """What a receiver of `old` needs to have `new`; each parameter in so many parts of its rows.

    Raises:
        ValueError: another parameter, shape or dtype than before.
    """
    if {name: (x.shape, x.dtype) for name, x in old.items()} != {name: (x.shape, x.dtype) for name, x in new.items()}:
        raise ValueError("parameters, shapes and dtypes should be those of the step before; send all of them once")
    packets = []
    for name, now in new.items():
        for first, last in _parts(len(now) if now.ndim else 1, shards):
            before, after = (x.reshape(len(now) if now.ndim else 1, -1)[first:last].ravel() for x in (old[name], now))
            at = np.flatnonzero(before != after).astype(np.uint32)
            sparse = at.nbytes + at.size * after.itemsize < after.nbytes
            packets.append(
                Packet((name, first, last), at if sparse else at[:0], after[at] if sparse else after.copy(), sparse)
            )
    return packets


def decode(old: Mapping[str, Bits], packets: list[Packet]) -> dict[str, Bits]:
    """This step's weights from last step's; `old` is left as it is."""
    found = {name: x.copy() for name, x in old.items()}
    for packet in packets:
        name, first, last = packet.key
        rows = found[name].reshape(len(found[name]) if found[name].ndim else 1, -1)[first:last]
        flat = rows.reshape(-1)
        if packet.sparse:
            flat[packet.at] = packet.bits
        else:
            flat[:] = packet.bits
        rows[:] = flat.reshape(rows.shape)
    return found


def _parts(rows: int, shards: int) -> Iterator[tuple[int, int]]:
    edges = np.linspace(0, rows, min(shards, rows) + 1).astype(int)
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)


def transfer(nbytes: float, bandwidth: float, latency: float = 1e-3) -> float:
    """Seconds from the first push to the last pull: buckets go up while batches come down, so the link is used once.

    >>> round(transfer(64e9, 20e9 / 8), 1)  # 25.6 s of bytes, the last batch again, a start for each piece
    27.0
    """
    buckets, batches = -(-nbytes // BUCKET), -(-nbytes // BATCH)
    return nbytes / bandwidth + min(nbytes, BATCH) / bandwidth + latency * (buckets + batches)


def checkpoints(steps: int, rate: float, seed: int, bf16: bool = True) -> list[dict[str, Bits]]:
    """Weights after every step of policy-gradient training of a small transformer (Adam in float32), as bits.

    The policy is rewarded for the letter e. Its weights have the size of a trained model's, for it has learnt a text
    before; `rate` is Adam's.
    """
    import torch

    from assay.sim import tiny_lm

    torch.set_num_threads(1)
    shape = tiny_lm.Shape(vocab=128, layers=2, width=48, heads=2, head=16, attn="gqa", hidden=96)
    ids = torch.tensor(tiny_lm.encode(tiny_lm.text(seed, 400))) % 128
    batches = [ids[at : at + 33 * 8].reshape(8, 33) for at in range(0, 33 * 8 * 30, 33 * 8)]
    learnt, _ = tiny_lm.train(tiny_lm.init(shape, seed), batches, 30, seed)
    weights = {name: t.clone().requires_grad_() for name, t in learnt.tensors.items()}
    policy, optimiser = tiny_lm.Params(shape, weights), torch.optim.Adam(weights.values(), lr=rate)
    draws = torch.Generator().manual_seed(seed)
    found = [_bits(weights, bf16)]
    for step in range(steps):
        logits, _ = tiny_lm.forward(policy, batches[step % len(batches)])
        chosen = torch.distributions.Categorical(logits=logits)
        letters = torch.multinomial(chosen.probs.flatten(0, 1), 1, generator=draws).reshape(logits.shape[:2])
        reward = (letters == ord("e")).float()
        loss = -(chosen.log_prob(letters) * (reward - reward.mean())).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(_bits(weights, bf16))
    return found


def _bits(weights: Mapping[str, Any], bf16: bool) -> dict[str, Bits]:
    import torch

    found = {}
    for name, tensor in weights.items():
        values = tensor.detach()
        if bf16:
            found[name] = values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16).copy()
        else:
            found[name] = values.contiguous().view(torch.int32).numpy().view(np.uint32).copy()
    return found
