"""Randomness by name: the same seed and names give the same numbers, in any process and in any order.

:func:`stream` is a NumPy generator for code that draws arrays; :func:`key` is what the compiled words of
:mod:`assay.sim.random` start from. Nothing here needs a compiler, so a process that only draws starts in no time.

Names are hashed by BLAKE2b, never by ``hash()`` (which differs between processes), and nothing
depends on how often or in which order other code asked before.
"""

from __future__ import annotations

import operator
from hashlib import blake2b
from typing import SupportsIndex

import numpy as np

Name = str | bytes | SupportsIndex


def stream(seed: int, *names: Name) -> np.random.Generator:
    """Return the generator that belongs to this seed and these names (strings, bytes or integers).

    >>> stream(7, "arrivals", 3).integers(0, 100, 4).tolist()
    [75, 35, 96, 28]
    >>> bool(stream(7, "arrivals", 3).random() == stream(7, "arrivals", 3).random())
    True
    """
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(b"stream", seed, names)[:16], "little")))


def key(seed: int, *names: Name) -> int:
    """Return the 64-bit key of this seed and these names, for :func:`assay.sim.random.bits`.

    Wrap it in ``np.uint64`` before it enters a compiled function, lest small and large keys
    compile twice.

    >>> hex(key(7, "arrivals", 3))
    '0xf7e21bf1fcb16e88'
    """
    return int.from_bytes(_digest(b"key", seed, names)[:8], "little")


def _digest(purpose: bytes, seed: int, names: tuple[Name, ...]) -> bytes:
    """Hash the parts, each with its kind and its length in front, so that no two lists of names collide."""
    state = blake2b(digest_size=32, person=b"assay." + purpose)
    for part in (seed, *names):
        if isinstance(part, str):
            kind, text = b"s", part.encode()
        elif isinstance(part, bytes):
            kind, text = b"b", part
        else:
            kind, text = b"i", str(operator.index(part)).encode()
        state.update(kind + len(text).to_bytes(8, "little") + text)
    return state.digest()
