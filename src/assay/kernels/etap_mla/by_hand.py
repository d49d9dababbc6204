"""The transposed form written for Hopper by hand (`turned.cu`): the same plans, partial results and sums as `gpu.py`.

Needs torch, Triton (for the pass that combines) and CuPy, whose NVRTC compiles; and no assay, as `gpu.py`.
"""

# mypy: ignore-errors

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.kernels.etap_mla import gpu

BLOCK, HEADS = 64, 16  # tokens of a tile, and the most heads
THREADS = 256
SHARED = 8 * 24576 + 9 * 2048 + 2048 + 256 + 128  # bytes: slots, queries, weights, what warps tell each other, barriers
FORM = "transposed by hand"
SETTINGS = [gpu.Setting(BLOCK, 8, "thirds", 8, whole=whole) for whole in (True, False)]


@functools.cache
def kernel() -> Any:
    """The kernel of `turned.cu`, compiled for sm_90a, which CuPy's own way to compile does not name."""
    import cupy
    from cupy.cuda import nvrtc

    source = Path(__file__).with_name("turned.cu").read_text(encoding="utf-8")
    program = nvrtc.createProgram(source, "turned.cu", (), ())
    try:
        nvrtc.compileProgram(program, ("-arch=sm_90a", "--std=c++17"))
    except Exception as error:
        raise RuntimeError(f"turned.cu does not compile: {nvrtc.getProgramLog(program)[:500]}") from error
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "turned.cubin")
        made.write_bytes(nvrtc.getCUBIN(program))
        found = cupy.RawModule(path=str(made)).get_function("turned")
        found.max_dynamic_shared_size_bytes = SHARED
    nvrtc.destroyProgram(program)
    return found


def missing() -> str:
    """Why it cannot run here, or nothing."""
    from importlib.util import find_spec

    if not find_spec("cupy"):
        return "CuPy is not installed (extra gpu)"
    major = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0
    return "" if major == 9 else "it is written for Hopper alone"


class Decoder(gpu.Decoder):
    """As `gpu.Decoder`, for at most 16 heads in bfloat16 and pages of whole tiles; `run` launches two kernels."""

    def __init__(
        self, query: Any, cache: Any, table: Any, lengths: Any, plan: Any, scale: float, dtype: Any = None
    ) -> None:
        assert query.dtype == cache.dtype == torch.bfloat16, "bfloat16 alone"
        assert query.shape[1] <= HEADS and cache.shape[1] % BLOCK == 0, "16 heads at most, pages of whole tiles"
        assert table.dtype == lengths.dtype == torch.int32
        super().__init__("transposed", gpu.Setting(BLOCK, 4, "async"), query, cache, table, lengths, plan, scale, dtype)
        workers, pieces = self.arguments[6:8]
        self.kept = query, cache, table, lengths, workers, pieces, self.partial, self.weight
        numbers = np.float32(scale * gpu.LOG2E), *map(np.int32, (table.shape[1], query.shape[1], cache.shape[1]))
        self.all = (*(one.data_ptr() for one in self.kept), *numbers)

    def main(self) -> None:
        """The kernel that reads the cache."""
        import cupy

        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel()((self.grid[0],), (THREADS,), self.all, shared_mem=SHARED)
