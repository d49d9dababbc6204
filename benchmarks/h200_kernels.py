"""The CUDA kernels of the room on one GPU, checked and beside the vendor's: `src/assay/kernels/h200.json` comes from it.

    python3 benchmarks/h200_kernels.py                  # NVIDIA GPU with NumPy and CuPy; no assay
    python3 benchmarks/h200_kernels.py merbit           # one part: machine, goldbach, radius_fps, merbit, pagerank

Sources and layouts are read from the package's files, so one source serves tests, users and this. Writes
h200_kernels.jsonl to $OUT, or here: a line a measurement, as it comes. Times are CUDA events, interleaved over rounds,
with the L2 cache overwritten before each; the wall time of launches stands beside.
"""

# mypy: ignore-errors
# ruff: noqa: B007, B023, D102, E501, E731, F821, RUF012

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import importlib.util
import json
import os
import platform
import re
import statistics
import sys
import time
import traceback
import types
from pathlib import Path

import cupy as cp
import numpy as np

KERNELS = Path(__file__).parents[1] / "src/assay/kernels"
OUT = Path(os.environ.get("OUT", "."), "h200_kernels.jsonl")
STARTED = time.monotonic()
ROUNDS = 11


def load(path):
    """A file of the package as a module, without assay."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


layout = load(KERNELS / "merbit/layout.py")
matrices = load(KERNELS / "merbit/matrices.py")
sieve = load(KERNELS / "goldbach/tables.py")
voxels = load(KERNELS / "radius_fps/voxels.py")


def stream(seed, *names):
    """Stands for assay's streams of randomness, which need assay."""
    return np.random.default_rng([seed, *"".join(map(str, names)).encode()])


sys.modules["assay.sim.random"] = types.SimpleNamespace(stream=stream)
clouds = load(KERNELS.parent / "workloads/clouds.py")


def tell(part, **row):
    """One line of the answer, at once."""
    row = {"part": part, **row}
    with OUT.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def module(name, **defines):
    options = ("--std=c++17", *(f"-D{key}={value}" for key, value in defines.items()))
    return cp.RawModule(code=(KERNELS / name).read_text(), options=options)


FLUSH = None


def timed(contenders, rounds=ROUNDS):
    """Seconds by CUDA events of each contender in each round, all once a round, the L2 cache overwritten before each."""
    global FLUSH
    if FLUSH is None:
        FLUSH = cp.empty(256 << 20, cp.uint8)
    names, marks = list(contenders), {name: [] for name in contenders}
    for name in names:
        contenders[name]()
    cp.cuda.Device().synchronize()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            FLUSH.fill(turn)
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record()
            contenders[name]()
            end.record()
            marks[name].append((begin, end))
    cp.cuda.Device().synchronize()
    return {name: [cp.cuda.get_elapsed_time(*pair) / 1e3 for pair in pairs] for name, pairs in marks.items()}


def medians(seconds):
    return {name: statistics.median(values) for name, values in seconds.items()}


# ---------------------------------------------------------------------------------------------- the machine


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


# ---------------------------------------------------------------------------------------------- goldbach


class Sieving:
    """The arguments of the kernels for numbers below a limit, on the device."""

    def __init__(self, limit, words, threads, blocks_per_sm):
        self.words, self.threads = words, threads
        self.blocks = 132 * blocks_per_sm
        t = sieve.tables(limit, words)
        self.small = t.small
        self.module = module("goldbach/goldbach.cu", WORDS=words, BACK=sieve.BACK)
        self.args = (
            cp.asarray(t.wheels),
            cp.asarray(t.lengths),
            np.int32(len(t.lengths)),
            cp.asarray(t.primes),
            cp.asarray(t.inverses),
            np.int32(t.by_warp),
            np.int32(len(t.primes)),
        )
        self.small_gpu = cp.asarray(t.small)
        self.answered = words - sieve.BACK // 64 - 1

    def function(self, name):
        found = self.module.get_function(name)
        if 4 * self.words > 40_000:
            found.max_dynamic_shared_size_bytes = 4 * self.words
        return found

    def verify(self, begin, end, first=None):
        histogram = cp.zeros(len(self.small), cp.uint64)
        first = cp.full(len(self.small), 2**64 - 1, cp.uint64) if first is None else first
        left = cp.zeros(1 + sieve.MOST_LEFT, cp.uint64)
        self.function("goldbach")(
            (self.blocks,),
            (self.threads,),
            (
                np.uint64(begin),
                np.uint64(end),
                *self.args,
                self.small_gpu,
                np.int32(len(self.small)),
                np.int32(sieve.CAREFUL),
                histogram,
                first,
                left,
                np.int32(sieve.MOST_LEFT),
            ),
            shared_mem=4 * self.words,
        )
        return histogram, first, left

    def per_number(self, begin, end, segment=None):
        words = (end - begin + sieve.BACK) // 64 + 2
        segment = cp.empty(words, cp.uint32) if segment is None else segment
        histogram, left = cp.zeros(len(self.small), cp.uint64), cp.zeros(1 + sieve.MOST_LEFT, cp.uint64)
        self.function("sieve_segment")(
            (-(-words // self.words),),
            (self.threads,),
            (np.uint64(begin - sieve.BACK + 1), np.uint64(words), *self.args, segment),
            shared_mem=4 * self.words,
        )
        numbers = (end - begin) // 2
        self.function("per_number")(
            (-(-numbers // 256),),
            (256,),
            (
                np.uint64(begin),
                np.uint64(numbers),
                segment,
                self.small_gpu,
                np.int32(len(self.small)),
                histogram,
                left,
                np.int32(sieve.MOST_LEFT),
            ),
        )
        return histogram, left


def head(limit):
    """Even numbers 4..limit by a plain table: the least prime of each."""
    prime = np.zeros(limit + 1, np.bool_)
    prime[sieve.primes_below(limit + 1)] = True
    n = np.arange(4, limit + 1, 2)
    least = np.zeros(len(n), np.int64)
    least[0] = 2
    for p in sieve.primes_below(limit)[1:]:
        rest = np.flatnonzero(least == 0)
        if not len(rest):
            break
        fits = n[rest] - p
        hit = (fits >= 2) & prime[np.maximum(fits, 0)]
        least[rest[hit]] = p
    return n, least


def goldbach():
    top, piece = 10**12, 64 * 10**7
    reach = top + 10**7
    found = {}
    for words, threads, per_sm in (
        (49152, 1024, 1),
        (24576, 1024, 2),
        (24576, 512, 2),
        (12288, 512, 4),
        (16384, 512, 3),
    ):
        try:
            kernel = Sieving(reach, words, threads, per_sm)
            begin = (top - 8 * piece) // 64 * 64
            kernel.verify(begin, begin + piece)
            cp.cuda.Device().synchronize()
            start = time.perf_counter()
            kernel.verify(begin, begin + 4 * piece)
            cp.cuda.Device().synchronize()
            found[words, threads, per_sm] = seconds = time.perf_counter() - start
            tell("goldbach-tune", words=words, threads=threads, per_sm=per_sm, numbers=4 * piece, seconds=seconds)
        except Exception as error:
            tell("goldbach-tune", words=words, threads=threads, per_sm=per_sm, error=str(error)[:300])
    words, threads, per_sm = min(found, key=found.get)
    kernel = Sieving(reach, words, threads, per_sm)
    # The same range by the paper's thread a number, and by another tile: every count equal.
    begin = (top - 8 * piece) // 64 * 64
    ours, _, left = kernel.verify(begin, begin + piece)
    other, other_left = kernel.per_number(begin, begin + piece)
    third, _, _ = Sieving(reach, 12288, 512, 2).verify(begin, begin + piece)
    tell(
        "goldbach-check",
        same=bool((ours == other).all()),
        same_tile=bool((ours == third).all()),
        counted=int(ours.sum()),
        numbers=piece // 2,
        left=int(left[0]),
        other_left=int(other_left[0]),
    )
    segment = cp.empty((piece + sieve.BACK) // 64 + 2, cp.uint32)
    seconds = timed(
        {
            "tiles": lambda: kernel.verify(begin, begin + piece),
            "thread a number": lambda: kernel.per_number(begin, begin + piece, segment),
        },
        7,
    )
    for name, values in seconds.items():
        tell("goldbach-rival", method=name, numbers=piece, seconds=values, at=begin)
    del segment
    for exponent in (9, 10, 11, 12):
        cp.get_default_memory_pool().free_all_blocks()
        begun = time.perf_counter()
        limit = 10**exponent
        start = 1 << 20
        n, least = head(start - 2)
        firsts, counts = {}, {}
        for p in np.unique(least):
            firsts[int(p)], counts[int(p)] = int(n[np.argmax(least == p)]), int((least == p).sum())
        kernel = Sieving(limit + 10**7, words, threads, per_sm)
        step = 64 * (10**10 // 64)
        segments, left_over, chain = [], 0, hashlib.sha256()
        least_n = cp.full(len(kernel.small), 2**64 - 1, cp.uint64)
        for a in range(start, limit + 2, step):
            b = min(a + step, limit + 2)
            histogram, _, left = kernel.verify(a, b, least_n)
            histogram = histogram.get()
            left_over += int(left[0])
            chain.update(histogram.astype("<u8").tobytes())
            segments.append(
                {
                    "begin": a,
                    "end": b,
                    "counted": int(histogram.sum()),
                    "sha256": hashlib.sha256(histogram.astype("<u8").tobytes()).hexdigest()[:16],
                }
            )
            for i in np.flatnonzero(histogram):
                p = int(kernel.small[i])
                counts[p] = counts.get(p, 0) + int(histogram[i])
        for p, at in zip(kernel.small.tolist(), least_n.get().tolist(), strict=True):
            if at != 2**64 - 1:
                firsts[p] = min(firsts.get(p, at), at)
        seconds = time.perf_counter() - begun
        records, most = [], 0
        for at, p in sorted((at, p) for p, at in firsts.items()):
            if p > most:
                records.append((at, p))
                most = p
        tell(
            "goldbach",
            limit=limit,
            seconds=seconds,
            left=left_over,
            checked=sum(s["counted"] for s in segments) + len(n),
            most=most,
            records=records,
            chain=chain.hexdigest(),
            memory=cp.get_default_memory_pool().total_bytes(),
            words=words,
            threads=threads,
            histogram=sorted(counts.items())[:40],
            segments=segments if exponent == 12 else len(segments),
        )


# ---------------------------------------------------------------------------------------------- merbit


class CuSparse:
    """cuSPARSE's SpMV by its C interface: every algorithm, analysed beforehand where the library can."""

    ALGORITHMS = {"coo1": 1, "csr1": 2, "csr2": 3, "coo2": 4}

    def __init__(self):
        import cupyx.scipy.sparse as sparse

        sparse.identity(8, dtype="f", format="csr") @ cp.ones(8, cp.float32)  # loads the library
        maps = Path("/proc/self/maps").read_text()
        path = re.search(r"\S*libcusparse\.so\S*", maps).group(0)
        self.lib, self.handle = ctypes.CDLL(path), ctypes.c_void_p()
        self.ok(self.lib.cusparseCreate(ctypes.byref(self.handle)))
        version = ctypes.c_int()
        self.lib.cusparseGetVersion(self.handle, ctypes.byref(version))
        self.version, self.keep = version.value, []

    def ok(self, status):
        if status:
            raise RuntimeError(f"cusparse status {status}")

    def product(self, name, start, row, col, val, x, y, shape):
        """A function that computes y = A x by one algorithm; how long its analysis took is its `prepare`."""
        lib, size, kind = self.lib, ctypes.c_size_t(), 0 if val.dtype == np.float32 else 1
        number = ctypes.c_float if kind == 0 else ctypes.c_double
        one, zero, matrix, vec_x, vec_y = number(1), number(0), *(ctypes.c_void_p() for _ in range(3))
        pointer = lambda array: ctypes.c_void_p(array.data.ptr)
        sizes = [ctypes.c_int64(v) for v in (*shape, len(col))]
        if name.startswith("csr"):
            self.ok(
                lib.cusparseCreateCsr(
                    ctypes.byref(matrix), *sizes, pointer(start), pointer(col), pointer(val), 2, 2, 0, kind
                )
            )
        else:
            self.ok(
                lib.cusparseCreateCoo(
                    ctypes.byref(matrix), *sizes, pointer(row), pointer(col), pointer(val), 2, 0, kind
                )
            )
        self.ok(lib.cusparseCreateDnVec(ctypes.byref(vec_x), ctypes.c_int64(len(x)), pointer(x), kind))
        self.ok(lib.cusparseCreateDnVec(ctypes.byref(vec_y), ctypes.c_int64(len(y)), pointer(y), kind))
        plain = (
            self.handle,
            0,
            ctypes.byref(one),
            matrix,
            vec_x,
            ctypes.byref(zero),
            vec_y,
            kind,
            self.ALGORITHMS[name],
        )
        self.ok(lib.cusparseSpMV_bufferSize(*plain, ctypes.byref(size)))
        buffer = cp.empty(max(1, size.value), cp.uint8)
        cp.cuda.Device().synchronize()
        begin = time.perf_counter()
        if hasattr(lib, "cusparseSpMV_preprocess"):
            self.ok(lib.cusparseSpMV_preprocess(*plain, pointer(buffer)))
        cp.cuda.Device().synchronize()
        prepare = time.perf_counter() - begin
        self.keep = [*self.keep[-40:], (one, zero, buffer)]
        run = lambda: lib.cusparseSpMV(*plain, pointer(buffer))
        run.prepare = prepare
        self.ok(run())
        return run


CONFIGURATIONS = ((5, 4), (7, 4), (9, 4), (15, 4), (7, 8))
BEST = (7, 4)
NAME = {np.float32: "float", np.float64: "double"}
MODULES = {}


def spmv_module(dtype, items, warps, source="merbit/spmv.cu", **more):
    key = (dtype, items, warps, source, *sorted(more.items()))
    if key not in MODULES:
        MODULES[key] = module(source, VALUE=NAME[dtype], ITEMS=items, WARPS=warps, **more)
    return MODULES[key]


def ours(a, val, x, y, dtype, items, warps, order="as it is", pattern=False):
    """MERBIT in one configuration: its preparation, timed, and the launches of a product."""
    rows, cols = a.shape
    cp.cuda.Device().synchronize()
    begin = time.perf_counter()
    t, col, values, popular = layout.tiles(cp, a.start, len(a.col), items), a.col, val, None
    if order != "as it is":
        popular, gained = layout.popular(cp, a.col, cols)
        if order == "automatic" and gained - cols / len(a.col) < layout.WORTH:
            popular = None
        else:
            col = layout.renumbered(cp, a.col, popular)
            if order == "sorted":
                by = cp.argsort(rows_of(a).astype(cp.int64) * cols + col)
                col, values = col[by], val[by]
    cp.cuda.Device().synchronize()
    prepare = time.perf_counter() - begin
    carry, near = cp.empty(t.tiles, dtype), cp.empty(cols, dtype)
    code = spmv_module(dtype, items, warps, **({"PATTERN": 1} if pattern else {}))
    main, fix, sort = (code.get_function(name) for name in ("merbit", "merbit_carries", "reorder"))
    arguments = (
        t.bits,
        t.row,
        col,
        values,
        x if popular is None else near,
        y,
        carry,
        np.int32(t.tiles),
        np.int32(rows),
        np.int64(t.items),
    )
    fixing = (t.row, carry, y, np.int32(t.tiles), np.int32(rows))

    def run():
        if popular is not None:
            sort((-(-cols // 256),), (256,), (popular, x, near, np.int32(cols)))
        main((-(-t.tiles // warps),), (32 * warps,), arguments)
        fix((-(-t.tiles // 256),), (256,), fixing)

    run.prepare, run.renumbered = prepare, popular is not None
    return run


SETTINGS = {  # of panels: tried on six of the matrices
    "a": {np.float32: layout.Setting(15, 8, 2, 2, 1, 110 << 10), np.float64: layout.Setting(7, 12, 2, 2, 1, 216 << 10)},
    "b": {
        np.float32: layout.Setting(15, 16, 1, 2, 2, 160 << 10),
        np.float64: layout.Setting(15, 16, 1, 2, 1, 200 << 10),
    },
}
SHARED, SMS = 233_472, 132  # bytes of a multiprocessor; multiprocessors


def panels(a, val, x, y, dtype, setting):
    """MERBIT with x in panels: its preparation, timed, and the launches of a product."""
    (rows, cols), size, warps = a.shape, np.dtype(dtype).itemsize, setting.warps
    width = setting.width(size)
    code = spmv_module(dtype, setting.items, warps, source="merbit/panels.cu", BLOCKS=setting.blocks,
                       DEPTH=setting.depth, LISTS=setting.lists, STRIP=width)  # fmt: skip
    main, give = code.get_function("merbit_panels"), code.get_function("hand_out")
    fix = spmv_module(dtype, *BEST).get_function("merbit_carries")
    cp.cuda.Device().synchronize()
    begin = time.perf_counter()
    t = layout.tiles(cp, a.start, len(a.col), setting.items)
    p = layout.panelled(cp, t, a.col, cols, size, setting, SMS, SHARED)
    count = len(p.begin) - 1
    row = t.row[cp.minimum(cp.arange(count + 1) * p.per, t.tiles)]
    cp.cuda.Device().synchronize()
    prepare = time.perf_counter() - begin
    handed, shared, strip = p.strips is not None, setting.shared(p.per, p.room, size), width * size
    wanted = cp.empty(p.strips.entries, dtype) if handed else x
    carry = cp.empty(count, dtype)
    if handed:
        giving = (x, p.strips.piece, p.strips.owner, p.strips.place, p.strips.to, wanted, np.int32(cols))
    numbers = (count, t.tiles, p.per, p.room, 1 - handed, len(a.col))
    arguments = (t.bits, t.row, p.near, val, x, wanted, x if handed else p.columns, p.begin, y, carry,
                 *map(np.int32, numbers), np.int64(t.items))  # fmt: skip
    fixing = (row, carry, y, np.int32(count), np.int32(rows))

    def run():
        if handed:
            give.max_dynamic_shared_size_bytes = strip
            give((SMS,), (1024,), giving, shared_mem=strip)
        main.max_dynamic_shared_size_bytes = shared
        main((min(count, SMS * setting.blocks),), (32 * warps,), arguments, shared_mem=shared)
        fix((-(-count // 64),), (64,), fixing)

    run.prepare, run.chosen = prepare, f"{'handed out' if handed else 'gathered'}, {p.per} tiles"
    return run


def tuned(a, val, x, y, dtype):
    """Whatever of MERBIT is fastest on this matrix, found by trying; what that takes is its preparation."""
    cp.cuda.Device().synchronize()
    begin = time.perf_counter()
    runs = {f"{i}x{w}": ours(a, val, x, y, dtype, i, w) for i, w in CONFIGURATIONS}
    if layout.popular(cp, a.col, a.shape[1])[1] - a.shape[1] / len(a.col) >= layout.WORTH:
        runs |= {order: ours(a, val, x, y, dtype, *BEST, order) for order in ("popular", "sorted")}
    runs |= {f"panels {name}": panels(a, val, x, y, dtype, s[dtype]) for name, s in SETTINGS.items()}
    taken = {}
    for name, run in runs.items():
        run()
        marks = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(5)]
        for one, other in marks:
            one.record()
            run()
            other.record()
        cp.cuda.Device().synchronize()
        taken[name] = statistics.median(cp.cuda.get_elapsed_time(*pair) for pair in marks)
    best = min(taken, key=taken.get)
    prepare = time.perf_counter() - begin
    run = lambda: runs[best]()
    run.prepare, run.chosen = prepare, f"{best} {getattr(runs[best], 'chosen', '')}".strip()
    return run


def rivals(a, val, x, y, dtype):
    """Published methods in CUDA of our own: CSR-vector at the group that fits the mean row, and plain merge path."""
    code, rows, nonzeros = spmv_module(dtype, 7, 4), a.shape[0], len(a.col)
    mean = nonzeros / max(1, rows)
    group = next((g for g in (2, 4, 8, 16) if mean <= 2 * g), 32)
    vector, merge, fix = (code.get_function(name) for name in ("csr_vector", "merge_path", "merbit_carries"))
    vector_args = (a.start, a.col, val, x, y, np.int32(rows), np.int32(group))
    warps = -(-(rows + nonzeros) // (32 * 7))
    carry, carry_row = cp.empty(warps, dtype), cp.empty(warps + 1, cp.int32)
    merge_args = (a.start, a.col, val, x, y, carry, carry_row, np.int32(warps), np.int32(rows), np.int64(nonzeros))

    def run_vector():
        vector((-(-rows * group // 256),), (256,), vector_args)

    def run_merge():
        merge((-(-warps // 4),), (128,), merge_args)
        fix((-(-warps // 256),), (256,), (carry_row, carry, y, np.int32(warps), np.int32(rows)))

    return {"csr-vector": run_vector, "merge-path": run_merge}


def rows_of(a):
    """The row of each nonzero."""
    return cp.searchsorted(a.start[1:], cp.arange(len(a.col), dtype=cp.int32), side="right").astype(cp.int32)


def one_matrix(library, name, a, dtype, rounds=ROUNDS):
    rows, cols = a.shape
    random = cp.random.RandomState(1)
    exact = random.random_sample(len(a.col)) - 0.5
    val, x = exact.astype(dtype), (random.random_sample(cols) - 0.5).astype(dtype)
    y = cp.empty(rows, dtype)
    counts = cp.diff(a.start)
    row = rows_of(a)
    # The reference in double precision, and the sum of magnitudes that bounds its error.
    wide_val, wide_x, reference, magnitude = (
        val.astype(cp.float64),
        x.astype(cp.float64),
        cp.empty(rows),
        cp.empty(rows),
    )
    library.product("csr1", a.start, row, a.col, wide_val, wide_x, reference, a.shape)()
    library.product("csr1", a.start, row, a.col, cp.abs(wide_val), cp.abs(wide_x), magnitude, a.shape)()
    bound = 4 * np.finfo(dtype).eps * cp.maximum(counts, 1) * magnitude + 1e-300
    del wide_val
    contenders = {f"merbit {items}x{warps}": ours(a, val, x, y, dtype, items, warps) for items, warps in CONFIGURATIONS}
    for label, setting in SETTINGS.items():
        contenders[f"merbit panels {label}"] = panels(a, val, x, y, dtype, setting[dtype])
    contenders["merbit tuned"] = tuned(a, val, x, y, dtype)
    for order in ("automatic", "popular", "sorted"):
        contenders[f"merbit {order}"] = ours(a, val, x, y, dtype, *BEST, order)
    for algorithm in CuSparse.ALGORITHMS:
        try:
            contenders[f"cusparse {algorithm}"] = library.product(algorithm, a.start, row, a.col, val, x, y, a.shape)
        except Exception as error:
            tell("merbit-error", matrix=name, algorithm=algorithm, error=str(error)[:200])
    contenders |= rivals(a, val, x, y, dtype)
    wrong = {}
    for label, run in contenders.items():
        y.fill(cp.nan)
        run()
        wrong[label] = int((~(cp.abs(y - reference) <= bound)).sum())
    seconds = timed(contenders, rounds)
    longest = int(counts.max())
    for label, values in seconds.items():
        tell(
            "merbit",
            matrix=name,
            dtype=np.dtype(dtype).name,
            rows=rows,
            cols=cols,
            nonzeros=len(a.col),
            longest=longest,
            method=label,
            seconds=values,
            wrong=wrong[label],
            prepare=getattr(contenders[label], "prepare", 0.0),
            renumbered=getattr(contenders[label], "renumbered", False),
            chosen=getattr(contenders[label], "chosen", ""),
        )


def merbit():
    library = CuSparse()
    tell("cusparse", version=library.version)
    for name, make in matrices.irregular(cp).items():
        try:
            a = make()
            for dtype in (np.float32, np.float64):
                one_matrix(library, name, a, dtype)
                cp.get_default_memory_pool().free_all_blocks()
        except Exception as error:
            tell("merbit-error", matrix=name, error=traceback.format_exc()[-400:] + str(error)[:100])


def pagerank():
    """Until the ranks move by less than 1e-6 in sum, layout included: cuSPARSE, MERBIT, and MERBIT without values."""
    library = CuSparse()
    update = cp.ElementwiseKernel(
        "float32 y, float32 lost, float32 n", "float32 r", "r = 0.85f * (y + lost / n) + 0.15f / n", "damp"
    )
    made = matrices.irregular(cp)
    for name in ("rmat-22-16-0.57", "rmat-20-64-0.57", "zipf-hubs", "web-near", "social"):
        a = made[name]()
        n = a.shape[0]
        out = cp.bincount(a.col, minlength=n).astype(cp.float32)  # A[i, j]: a link from j to i
        scale = cp.where(out > 0, 1 / cp.maximum(out, 1), 0).astype(cp.float32)
        val, dangling = scale[a.col], (out == 0).astype(cp.float32)
        row = rows_of(a)
        x, y = cp.empty(n, cp.float32), cp.empty(n, cp.float32)

        def prepared(method):
            if method == "merbit":
                return ours(a, val, x, y, np.float32, *BEST)
            if method == "merbit, no values":
                return ours(a, val, x, y, np.float32, *BEST, pattern=True)
            if method == "merbit popular, no values":
                return ours(a, val, x, y, np.float32, *BEST, "popular", pattern=True)
            return library.product(method.split()[1], a.start, row, a.col, val, x, y, a.shape)

        def ranks(method):
            run, r = prepared(method), cp.full(n, 1 / n, cp.float32)
            for iteration in range(1, 201):
                x[:] = r * scale if "no values" in method else r
                run()
                new = update(y, (r * dangling).sum(), np.float32(n))
                moved = float(cp.abs(new - r).sum())
                r = new
                if moved < 1e-6:
                    break
            return r, iteration

        methods = [
            "merbit",
            "merbit, no values",
            "merbit popular, no values",
            "cusparse csr1",
            "cusparse csr2",
            "cusparse coo1",
            "cusparse coo2",
        ]
        first = {method: ranks(method) for method in methods}
        seconds = {method: [] for method in methods}
        for turn in range(5):
            for method in methods[turn % 7 :] + methods[: turn % 7]:
                cp.cuda.Device().synchronize()
                begin = time.perf_counter()
                ranks(method)
                cp.cuda.Device().synchronize()
                seconds[method].append(time.perf_counter() - begin)
        reference = first["cusparse csr1"][0]
        for method in methods:
            tell(
                "pagerank",
                matrix=name,
                method=method,
                iterations=first[method][1],
                seconds=seconds[method],
                nonzeros=len(a.col),
                off=float(cp.abs(first[method][0] - reference).sum()),
            )
        cp.get_default_memory_pool().free_all_blocks()


# ---------------------------------------------------------------------------------------------- radius-fps


def plain_order(cloud, k):
    """The rule in NumPy: the farthest from all picks, ties to the smallest index."""
    picks, d = [0], np.full(len(cloud), np.inf, np.float32)
    for _ in range(k - 1):
        gap = cloud - cloud[picks[-1]]
        squares = gap * gap
        d = np.minimum(d, (squares[:, 0] + squares[:, 1]) + squares[:, 2])
        picks.append(int(d.argmax()))
    return np.array(picks)


class Sampling:
    """A batch of clouds on the GPU, and samplers over it."""

    def __init__(self, batch, k):
        self.batch, self.k, self.n = batch, k, len(batch[0])
        self.code = {"spheres": module("radius_fps/fps.cu"), "boxes": module("radius_fps/fps.cu", BOXES=1)}
        self.d, self.out = cp.empty(len(batch) * self.n, cp.float32), cp.empty((len(batch), k), cp.int32)

    def plain(self):
        x, y, z = (cp.asarray(np.concatenate([cloud[:, axis] for cloud in self.batch])) for axis in range(3))
        kernel = self.code["spheres"].get_function("plain")

        def run():
            self.d.fill(cp.inf)
            kernel(
                (len(self.batch),),
                (1024,),
                (x, y, z, self.d, np.int32(self.n), np.int32(self.k), np.int32(0), self.out),
            )

        run.prepare, run.bytes, run.voxels = 0.0, 16 * self.n, 0
        return run

    def pruned(self, kind, most):
        begin = time.perf_counter()
        made = [(voxels.octree if kind == "spheres" else voxels.kd_tree)(cloud, most) for cloud in self.batch]
        prepare = (time.perf_counter() - begin) / len(made)
        count = max(len(one.start) - 1 for one in made)
        if any(len(one.start) - 1 != count for one in made):  # a batch shares one number: empty voxels at the end
            made = [self.padded(one, count) for one in made]
        x, y, z = (cp.asarray(np.concatenate([one.points[axis] for one in made])) for axis in range(3))
        index, start, bounds = (
            cp.asarray(np.concatenate([getattr(one, name).ravel() for one in made]))
            for name in ("index", "start", "bounds")
        )
        first = [int(np.flatnonzero(one.index == 0)[0]) for one in made]
        key, place, listed = (
            cp.empty(count * len(made), cp.uint64),
            cp.zeros(count * len(made), cp.int32),
            cp.empty(count * len(made), cp.int32),
        )
        visited = cp.zeros(1, cp.uint64)
        kernel = self.code[kind].get_function("pruned")

        def run():
            self.d.fill(cp.inf)
            kernel(
                (len(made),),
                (1024,),
                (
                    x,
                    y,
                    z,
                    self.d,
                    index,
                    start,
                    bounds,
                    key,
                    place,
                    listed,
                    np.int32(self.n),
                    np.int32(count),
                    np.int32(self.k),
                    np.int32(first[0]),
                    self.out,
                    visited,
                ),
            )

        visited.fill(0)
        run()
        run.visited = int(visited[0]) / (len(made) * self.n * self.k)
        run.prepare, run.bytes, run.voxels = prepare, made[0].bytes, count
        return run

    @staticmethod
    def padded(one, count):
        more = count - (len(one.start) - 1)
        start = np.concatenate([one.start, np.full(more, one.start[-1], np.int32)])
        return dataclasses.replace(
            one, start=start, bounds=np.concatenate([one.bounds, np.full((len(one.bounds), more), 1e30, np.float32)], 1)
        )


def radius_fps():
    small = clouds.lidar(20_000, 5)
    sampling, truth = Sampling([small], 300), plain_order(small, 300)
    for name, run in {
        "plain": sampling.plain(),
        "spheres": sampling.pruned("spheres", 64),
        "boxes": sampling.pruned("boxes", 64),
    }.items():
        sampling.out.fill(-7)
        run()
        tell("radius-check", method=name, same=bool((sampling.out.get()[0] == truth).all()))
    for kind, n, k, size in (
        ("lidar", 50_000, 500, 1),
        ("lidar", 100_000, 1000, 1),
        ("lidar", 100_000, 25_000, 1),
        ("uniform", 100_000, 25_000, 1),
        ("indoor", 100_000, 4096, 1),
        ("lidar", 50_000, 4096, 1),
        ("lidar", 400_000, 4096, 1),
        ("uniform", 1_000_000, 10_000, 1),
        ("lidar", 50_000, 4096, 64),
    ):
        # A batch repeats one cloud: every block then starts at the same place.
        cloud = getattr(clouds, kind)(n, 3)
        sampling = Sampling([cloud] * size, k)
        contenders = {"plain": sampling.plain()}
        contenders |= {f"spheres {most}": sampling.pruned("spheres", most) for most in (32, 64, 128)}
        contenders |= {f"boxes {most}": sampling.pruned("boxes", most) for most in (64, 128)}
        contenders["plain"]()
        truth, same = sampling.out.copy(), {}
        for name, run in contenders.items():
            sampling.out.fill(-7)
            run()
            same[name] = bool((sampling.out == truth).all())
        for name, values in timed(contenders, 5).items():
            run = contenders[name]
            tell(
                "radius-fps",
                cloud=kind,
                n=n,
                k=k,
                batch=size,
                method=name,
                seconds=values,
                same=same[name],
                prepare=run.prepare,
                bytes=run.bytes,
                voxels=run.voxels,
                visited=getattr(run, "visited", 1.0),
            )


if __name__ == "__main__":
    OUT.unlink(missing_ok=True)
    for part in sys.argv[1:] or ("machine", "goldbach", "radius_fps", "merbit", "pagerank"):
        begun = time.monotonic()
        try:
            globals()[part]()
        except Exception:
            tell("failed", name=part, error=traceback.format_exc()[-1500:])
        tell("done", name=part, seconds=time.monotonic() - begun, all=time.monotonic() - STARTED)
