"""What NCCLZ is compared with, on the same links: plain floats, earlier compressing collectives, halved floats.

Earlier libraries are their ideas, given this package's compiled coders: quantising without entropy coding (COCCL),
sums of packed differences without decoding floats (hZCCL), and a whole compressor at every hop: decompress, add,
compress (gZCCL), with NCCLZ's own choice of coders, with SZ3 or with ZFP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.ncclz import coders, floats
from assay.training.ncclz.collectives import (
    Choices,
    Coded,
    Report,
    all_gather,
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
    frames: floats.Frames
    lossless = False

    def encode(self, frame: Floats) -> Bytes:
        """Compress."""
        return floats.compress(frame, self.eps, self.frames)

    def decode(self, message: Bytes) -> Floats:
        """Decompress."""
        return floats.decompress(message)


@dataclass(frozen=True)
class Sz3:
    """SZ3 by `pysz`."""

    eps: float
    lossless = False

    def encode(self, frame: Floats) -> Bytes:
        """Compress, and say how many numbers there were."""
        from pysz import sz, szConfig, szErrorBoundMode

        how = szConfig()
        how.errorBoundMode, how.absErrorBound = szErrorBoundMode.ABS, self.eps
        found, _ = sz.compress(np.ascontiguousarray(frame), how)
        return np.concatenate([np.array([len(frame)], np.int64).view(np.uint8), found])

    def decode(self, message: Bytes) -> Floats:
        """Decompress."""
        from pysz import sz

        count = int(message[:8].view(np.int64)[0])
        found, _ = sz.decompress(message[8:].copy(), np.float32, (count,))
        return np.array(found, np.float32)


@dataclass(frozen=True)
class Zfp:
    """ZFP by `zfpy`."""

    eps: float
    lossless = False

    def encode(self, frame: Floats) -> Bytes:
        """Compress."""
        import zfpy

        return np.frombuffer(bytearray(zfpy.compress_numpy(np.ascontiguousarray(frame), tolerance=self.eps)), np.uint8)

    def decode(self, message: Bytes) -> Floats:
        """Decompress."""
        import zfpy

        return np.array(zfpy.decompress_numpy(message.tobytes()), np.float32)


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
    return out, Report(True, (coder.frames[0], coder.frames[1], coder.frames[2]), predict=True)


Method = Callable[[Port, Floats, float], tuple[Floats, Report]]
NCCLZ = "ncclz"
PLAIN = "plain"
EARLIER = ("quantise only", "packed sums", "recompress")  # with the same compiled coders; SZ3 and ZFP are beside them
METHODS: dict[str, Method] = {
    PLAIN: _plain,
    NCCLZ: all_reduce,
    "ncclz unpredicted": partial(all_reduce, choices=Choices(predict=False)),
    "ncclz always": partial(all_reduce, choices=Choices(always=True)),
    "quantise only": partial(all_reduce, choices=Choices(coders.FIXED, predict=False, always=True)),
    "packed sums": partial(all_reduce, choices=Choices(coders.FIXED, predict=True, always=True)),
    "recompress": _recompress,
    "recompress sz3": lambda port, x, eps: _hops(port, x, Sz3(eps)),
    "recompress zfp": lambda port, x, eps: _hops(port, x, Zfp(eps)),
    "fp16": lambda port, x, eps: _hops(port, x, Half()),
}
NEEDS = {"recompress sz3": "pysz", "recompress zfp": "zfpy"}


def here() -> list[str]:
    """The methods whose libraries are installed.

    >>> here()[:2]
    ['plain', 'ncclz']
    """
    return [name for name in METHODS if name != "ncclz always" and (name not in NEEDS or find_spec(NEEDS[name]))]


def gathered(port: Port, x: Floats, eps: float | None) -> tuple[Floats, Report]:
    """An all-gather as one array; plain where eps is None."""
    found, report = all_gather(port, x, eps)
    return np.concatenate(found), report
