"""CUDA C++ sources, one for the GPU and for tests without one.

A source file lies beside the paper that uses it. On a GPU CuPy compiles it when it is first used (NVRTC: no `nvcc`
needed). Without one, g++ compiles the same file over `cuda_on_cpu.h`, where every CUDA thread is a fibre: slow, but the
same lines run, so a test needs no GPU. A device is spoken to through the few methods of `Device`.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from assay.record.errors import BadInput

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
KERNEL = re.compile(r'extern "C" __global__ void(?:\s+__launch_bounds__\([\w, ]+\))?\s+(\w+)\(([^)]*)\)')
INCLUDE = re.compile(r'^#include "(\w+\.h)"$', re.MULTILINE)


def text(source: Path) -> str:
    """A source with the headers that lie beside it in their places: compilers then need no path.

    >>> "from_below" in text(Path(__file__).parents[1] / "merbit/spmv.cu")
    True
    """
    return INCLUDE.sub(
        lambda match: source.with_name(match[1]).read_text(encoding="utf-8"), source.read_text(encoding="utf-8")
    )


@cache
def missing() -> str:
    """Why no CUDA kernel can run here: empty where a GPU and CuPy are at hand.

    >>> isinstance(missing(), str)
    True
    """
    if find_spec("cupy") is None:
        return "CuPy is not installed (extra gpu)"
    import cupy  # type: ignore[import-not-found]

    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:
        return f"no GPU answers ({str(error).splitlines()[0]})"
    return "" if count else "there is no GPU"


class Gpu:
    """Kernels of one source on the GPU, by CuPy. Arrays are CuPy's."""

    def __init__(self, source: Path, **defines: Any) -> None:
        if why := missing():
            raise BadInput(f"{source.stem} cannot run on a GPU here: {why}")
        import cupy

        options = ("--std=c++17", *(f"-D{name}={value}" for name, value in defines.items()))
        self.arrays: Any = cupy
        self.module = cupy.RawModule(code=text(source), options=options)
        self.functions: dict[str, Any] = {}
        self.most: dict[str, int] = {}  # bytes of shared memory that each may have

    def launch(self, kernel: str, grid: int, block: int, *arguments: Any, shared: int = 0) -> None:
        """Start a kernel; whole numbers are passed as they are (give NumPy scalars where the width matters)."""
        if kernel not in self.functions:
            self.functions[kernel], self.most[kernel] = self.module.get_function(kernel), 48 * 1024
        function = self.functions[kernel]
        if shared > self.most[kernel]:  # the most that any launch may have: never lowered
            self.most[kernel] = function.max_dynamic_shared_size_bytes = shared
        function((grid,), (block,), arguments, shared_mem=shared)


class OnCpu:
    """The same kernels by g++, one thread after the other. Arrays are NumPy's."""

    def __init__(self, source: Path, **defines: Any) -> None:
        self.arrays: Any = np
        self.library = _compiled(source, defines)

    def launch(self, kernel: str, grid: int, block: int, *arguments: Any, shared: int = 0) -> None:
        """Run a kernel to its end."""
        function = getattr(self.library, f"launch_{kernel}")
        function(ctypes.c_uint(grid), ctypes.c_uint(block), *(_c(value) for value in arguments))


def _c(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, ctypes.Structure):
        return value
    if isinstance(value, np.uint64):
        return ctypes.c_uint64(int(value))
    if isinstance(value, np.int64):
        return ctypes.c_int64(int(value))
    if isinstance(value, np.float64 | float):
        return ctypes.c_double(float(value))
    return ctypes.c_int(int(value))


def compiler() -> str:
    """The path of g++, or one line that says it is missing."""
    if found := shutil.which("g++"):
        return found
    raise BadInput("no g++ on the PATH: CUDA sources cannot be tried without a GPU here; install g++")


def _compiled(source: Path, defines: Mapping[str, Any]) -> ctypes.CDLL:
    """The source with a launcher for each kernel, compiled once for its content."""
    from assay.sim.compiled import root  # here: all else is read on machines without Numba

    code = text(source)
    launchers = []
    for name, signature in KERNEL.findall(code):
        arguments = ", ".join(re.findall(r"(\w+)\s*(?:,|$)", signature))
        launchers.append(
            f'extern "C" void launch_{name}(unsigned grid, unsigned block, {signature})\n'
            f"{{ cpu::launch(grid, block, [&] {{ {name}({arguments}); }}); }}\n"
        )
    header = HEADER.read_text(encoding="utf-8")
    flags = [f"-D{name}={value}" for name, value in defines.items()]
    digest = hashlib.sha256("\0".join([header, code, *launchers, *flags]).encode()).hexdigest()[:16]
    folder = root() / "cuda_on_cpu"
    library = folder / f"{source.stem}-{digest}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            whole = Path(work, "kernel.cpp")
            whole.write_text("\n".join([header, code, *launchers]), encoding="utf-8")
            made = Path(work, "kernel.so")
            command = [
                compiler(),
                "-std=c++17",
                "-O1",
                "-ffp-contract=off",
                "-w",
                "-shared",
                "-fPIC",
                *flags,
                str(whole),
                "-o",
                str(made),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BadInput(f"{source.name} does not compile: {done.stderr.strip().splitlines()[0]}")
            made.replace(library)
    return ctypes.CDLL(str(library))
