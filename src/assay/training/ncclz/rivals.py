"""What NCCLZ is compared with, on the same links: plain floats, earlier compressing collectives, halved floats.

Earlier libraries are their ideas, given this package's compiled coders: quantising without entropy coding (COCCL),
sums of packed differences without decoding floats (hZCCL), and a whole compressor at every hop: decompress, add,
compress (gZCCL), with NCCLZ's own choice of coders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.ncclz import coders, floats
from assay.training.ncclz.collectives import (
    Choices,
    Coded,
    Report,
    all_reduce,
    arbiter_for,
    plain,
    put,
    reduce_ring,
)
from assay.training.ncclz.links import Port

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@dataclass
class Recompressing:
    """Floats through a compressor at every hop."""

    eps: float
    frames: Any  # what codes whole numbers
    lossless = False

    def encode(self, frame: Floats) -> Bytes:
        """Compress."""
        return floats.compress(frame, self.eps, self.frames)

    def decode(self, message: Bytes) -> Floats:
        """Decompress."""
        return floats.decompress(message)


class Half:
    """float16 on the wire."""

    lossless = False

    def encode(self, frame: Floats) -> Bytes:
        """Round."""
        with np.errstate(over="ignore"):
            return frame.astype(np.float16).view(np.uint8)

    def decode(self, message: Bytes) -> Floats:
        """Widen."""
        return message.view(np.float16).astype(np.float32)


def _hops(port: Port, x: Floats, coder: Any) -> tuple[Floats, Report]:
    out = np.empty_like(x)
    reduce_ring(port, len(x), lambda a, b: x[a:b], partial(put, out), coder)
    return out, Report(coded=True)


def _plain(port: Port, x: Floats, eps: float) -> tuple[Floats, Report]:
    return plain(port, x), Report(coded=False)


def _recompress(port: Port, x: Floats, eps: float) -> tuple[Floats, Report]:
    coder = Coded(arbiter_for(port, len(x)))
    out, _ = _hops(port, x, Recompressing(eps, coder))
    return out, coder.report(predict=True)


Method = Callable[[Port, Floats, float], tuple[Floats, Report]]
NCCLZ = "ncclz"
PLAIN = "plain"
EARLIER = ("quantise only", "packed sums", "recompress")  # with the same compiled coders
METHODS: dict[str, Method] = {
    PLAIN: _plain,
    NCCLZ: all_reduce,
    "quantise only": partial(all_reduce, choices=Choices(coders.FIXED, predict=False, always=True)),
    "packed sums": partial(all_reduce, choices=Choices(coders.FIXED, predict=True, always=True)),
    "recompress": _recompress,
    "fp16": lambda port, x, eps: _hops(port, x, Half()),
}
