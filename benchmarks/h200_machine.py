"""What a GPU can do, measured: copies, reads, gathers, launches and matrix products; the rows `machine` of h200.json.

python3 benchmarks/h200_machine.py                  # NVIDIA GPU with NumPy, CuPy and torch; no assay
"""

# mypy: ignore-errors
# ruff: noqa: B023, E501, F821

from __future__ import annotations

import platform
import time

import cupy as cp
import numpy as np

import h200_common as common
from h200_common import medians, timed

tell = None


def machine():
    props = cp.cuda.runtime.getDeviceProperties(0)
    facts = {
        "gpu": props["name"].decode(),
        "sms": props["multiProcessorCount"],
        "l2": props["l2CacheSize"],
        "shared_optin": props.get("sharedMemPerBlockOptin"),
        "memory": props["totalGlobalMem"],
    }
    import torch

    facts |= {
        "cupy": cp.__version__,
        "cuda": cp.cuda.runtime.runtimeGetVersion(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "driver": cp.cuda.runtime.driverGetVersion(),
    }
    tell("facts", **facts)
    n = 1 << 28
    a, b, c = (cp.ones(n, cp.float32) for _ in range(3))
    triad = cp.ElementwiseKernel("float32 b, float32 c", "float32 a", "a = b + 3.0f * c", "triad")
    total = cp.RawKernel(
        r"""extern "C" __global__ void total(const float4* a, float* out, long long n) {
        float s = 0; for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (long long)blockDim.x)
        { float4 v = a[i]; s += v.x + v.y + v.z + v.w; } if (s == 12345.678f) *out = s; }""",
        "total",
    )
    seconds = medians(
        timed(
            {
                "copy": lambda: cp.cuda.runtime.memcpyAsync(a.data.ptr, b.data.ptr, a.nbytes, 3, 0),
                "triad": lambda: triad(b, c, a),
                "read": lambda: total((132 * 16,), (256,), (a, b, n // 4)),
            }
        )
    )
    tell("machine", what="copy", value=2 * a.nbytes / seconds["copy"], unit="bytes/s")
    tell("machine", what="triad", value=3 * a.nbytes / seconds["triad"], unit="bytes/s")
    tell("machine", what="read", value=a.nbytes / seconds["read"], unit="bytes/s")
    gather = cp.RawKernel(
        r"""extern "C" __global__ void gather(const int* at, const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[at[i]]; }""",
        "gather",
    )
    at = cp.random.RandomState(0).randint(0, 1 << 26, 1 << 26).astype(cp.int32)
    for bits in (18, 22, 26, 28):
        index = at & ((1 << bits) - 1)
        s = medians(timed({"g": lambda: gather((1 << 18,), (256,), (index, b, c, 1 << 26))}, 5))["g"]
        tell("machine", what=f"gather of 4 bytes from {4 << bits} bytes", value=(1 << 26) / s, unit="1/s")
    del a, b, c, at, index
    empty = cp.RawKernel('extern "C" __global__ void empty() {}', "empty")
    empty((1,), (32,), ())
    cp.cuda.Device().synchronize()
    begin = time.perf_counter()
    for _ in range(2000):
        empty((1,), (32,), ())
    cp.cuda.Device().synchronize()
    tell("machine", what="launch", value=(time.perf_counter() - begin) / 2000, unit="s")
    begin = time.perf_counter()
    for _ in range(500):
        empty((1,), (32,), ())
        cp.cuda.Device().synchronize()
    tell("machine", what="launch and wait", value=(time.perf_counter() - begin) / 500, unit="s")
    for name, dtype, tf32 in (
        ("f64", torch.float64, False),
        ("f32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bf16", torch.bfloat16, False),
        ("f16", torch.float16, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        size = 8192
        p, q = (torch.randn(size, size, device="cuda", dtype=torch.float32).to(dtype) for _ in range(2))
        torch.matmul(p, q)
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(5):
            torch.matmul(p, q)
        end.record()
        torch.cuda.synchronize()
        tell("machine", what=f"gemm {name}", value=5 * 2 * size**3 / (begin.elapsed_time(end) / 1e3), unit="FLOP/s")
    host, pinned = np.ones(1 << 26, np.float32), cp.cuda.alloc_pinned_memory(1 << 28)
    device = cp.empty(1 << 26, cp.float32)
    for name, source in (("pageable", host.ctypes.data), ("pinned", pinned.ptr)):
        for way, copy in (
            ("to the GPU", lambda: cp.cuda.runtime.memcpy(device.data.ptr, source, 1 << 28, 1)),
            ("from the GPU", lambda: cp.cuda.runtime.memcpy(source, device.data.ptr, 1 << 28, 2)),
        ):
            copy()
            begin = time.perf_counter()
            copy()
            tell("machine", what=f"copy {way}, {name}", value=(1 << 28) / (time.perf_counter() - begin), unit="bytes/s")


PARTS = {"machine": machine}

if __name__ == "__main__":
    tell = common.Answers("h200_machine")
    tell.run(PARTS)
