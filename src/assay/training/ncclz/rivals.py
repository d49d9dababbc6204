"""What NCCLZ is compared with, on the same links: plain floats and earlier compressing collectives.

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


def recompressed(port: Port, x: Floats, eps: float) -> tuple[Floats, Report]:
    """The sum, each hop of which loses a little: its last bits tell in which order ranks came."""
    out, coder = np.empty_like(x), Coded(arbiter_for(port, len(x)))
    reduce_ring(port, len(x), lambda a, b: x[a:b], partial(put, out), Recompressing(eps, coder))
    return out, coder.report(predict=True)


Method = Callable[[Port, Floats, float], tuple[Floats, Report]]
EARLIER = ("quantise only", "packed sums", "recompress")  # with the same compiled coders
METHODS: dict[str, Method] = {
    "plain": lambda port, x, eps: (plain(port, x), Report(coded=False)),
    "ncclz": all_reduce,
    "quantise only": partial(all_reduce, choices=Choices(coders.FIXED, predict=False, always=True)),
    "packed sums": partial(all_reduce, choices=Choices(coders.FIXED, predict=True, always=True)),
    "recompress": recompressed,
}
