"""Sparse products on a GPU: tiles, panels or sweeps, the fastest found by trying when the matrix is prepared.

A way is prepared once and then called with vectors of the GPU: `way(x, y)` writes the product into y. Kernels are
launched through a `Device`, so that tests run the same lines on a CPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from assay.kernels.merbit import layout, sweeps
from assay.record.errors import BadInput

HERE = Path(__file__).parent
NAMES = {4: "float", 8: "double"}
CONFIGURATIONS = ((5, 4), (7, 4), (9, 4), (15, 4), (7, 8))  # of tiles: items of a lane, warps of a block
BEST = (7, 4)
SETTINGS = {  # of panels, by the bytes of a value: tried on six of the study's matrices on an H200
    "a": {4: layout.Setting(15, 8, 2, 2, 1, 110 << 10), 8: layout.Setting(7, 12, 2, 2, 1, 216 << 10)},
    "b": {4: layout.Setting(15, 16, 1, 2, 2, 160 << 10), 8: layout.Setting(15, 16, 1, 2, 1, 200 << 10)},
}
EACH, WARPS = 4, 32  # of sweeps: steps that a warp has on their way (with 2 or 8 it took 6 to 20 % longer), warps


class Device(NamedTuple):
    """Where kernels run: compiled by `make(source, **defines)`, over arrays of `arrays`."""

    make: Callable[..., Any]
    arrays: Any  # CuPy, or NumPy in tests
    multiprocessors: int
    shared: int  # bytes of shared memory of a multiprocessor
    wait: Callable[[], None]
    seconds: Callable[[Callable[[], None]], float]  # that a run takes
    threads: int = 1024  # of the blocks that hand out x


class Matrix(NamedTuple):
    """A matrix in CSR form on the device."""

    start: Any  # int32
    col: Any  # int32
    val: Any
    shape: tuple[int, int]


class Way(NamedTuple):
    """A prepared product: `way(x, y)`."""

    name: str
    run: Callable[[Any, Any], None]
    prepare: float  # seconds
    detail: str = ""

    def __call__(self, x: Any, y: Any) -> None:
        """Write the product with x into y."""
        self.run(x, y)


@cache
def gpu() -> Device:
    """This machine's GPU, or one line that says why there is none."""
    from assay.kernels.engine.cuda import Gpu

    make = cache(lambda source, **defines: Gpu(HERE / source, **defines))
    make("spmv.cu", VALUE="float", ITEMS=BEST[0], WARPS=BEST[1])  # says what is missing, if anything is
    import cupy  # type: ignore[import-not-found]

    props = cupy.cuda.runtime.getDeviceProperties(0)

    def seconds(run: Callable[[], None]) -> float:
        run()
        marks = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(5)]
        for begin, end in marks:
            begin.record()
            run()
            end.record()
        cupy.cuda.Device().synchronize()
        return float(statistics.median(cupy.cuda.get_elapsed_time(*pair) for pair in marks)) / 1e3

    shared = int(props.get("sharedMemPerMultiprocessor", 233_472))
    return Device(make, cupy, int(props["multiProcessorCount"]), shared, cupy.cuda.Device().synchronize, seconds)


def _prepared(device: Device, begin: float) -> float:
    device.wait()
    return time.perf_counter() - begin


def tiled(device: Device, a: Matrix, items: int, warps: int, order: str = "as it is", pattern: bool = False) -> Way:
    """MERBIT's tiles; columns as they are, by popularity, or by popularity and each row's sorted anew.

    With `pattern` values are not read: what they would do is in x already.
    """
    xp, (rows, cols), dtype = device.arrays, a.shape, a.val.dtype
    more = {"PATTERN": 1} if pattern else {}
    code = device.make("spmv.cu", VALUE=NAMES[dtype.itemsize], ITEMS=items, WARPS=warps, **more)
    device.wait()
    begin = time.perf_counter()
    t, col, val, popular = layout.tiles(xp, a.start, len(a.col), items), a.col, a.val, None
    if order != "as it is":
        popular, _ = layout.popular(xp, a.col, cols)
        col = layout.renumbered(xp, a.col, popular)
        if order == "sorted":
            row = xp.searchsorted(a.start[1:], xp.arange(len(col), dtype=a.start.dtype), side="right")
            by = xp.argsort(row.astype(xp.int64) * cols + col)
            col, val = col[by], val[by]
    took = _prepared(device, begin)
    carry, near = xp.empty(t.tiles, dtype), xp.empty(cols if popular is not None else 0, dtype)
    numbers = (np.int32(t.tiles), np.int32(rows))

    def run(x: Any, y: Any) -> None:
        if popular is not None:
            code.launch("reorder", -(-cols // 256), 256, popular, x, near, np.int32(cols))
        code.launch("merbit", -(-t.tiles // warps), 32 * warps, t.bits, t.row, col, val,
                    x if popular is None else near, y, carry, *numbers, np.int64(t.items))  # fmt: skip
        code.launch("merbit_carries", -(-t.tiles // 256), 256, t.row, carry, y, *numbers)

    return Way(f"{items}x{warps}" if popular is None else order, run, took)


def in_panels(device: Device, a: Matrix, setting: layout.Setting, name: str = "panels", kind: str = "") -> Way:
    """Tiles with x in panels, `gathered` or `handed out`, or whichever takes less."""
    xp, (rows, cols), dtype = device.arrays, a.shape, a.val.dtype
    size, warps, width = dtype.itemsize, setting.warps, setting.width(dtype.itemsize)
    value = NAMES[size]
    code = device.make("panels.cu", VALUE=value, ITEMS=setting.items, WARPS=warps, BLOCKS=setting.blocks,
                       DEPTH=setting.depth, LISTS=setting.lists, STRIP=width)  # fmt: skip
    plain = device.make("spmv.cu", VALUE=value, ITEMS=BEST[0], WARPS=BEST[1])
    device.wait()
    begin = time.perf_counter()
    t = layout.tiles(xp, a.start, len(a.col), setting.items)
    if kind:
        made = layout.lists(xp, t, a.col, cols, setting.items, 2)
        p = layout.gathered(xp, made)
        if kind == "handed out":
            p = layout.handed_out(xp, made, cols, width, device.multiprocessors, size)
    else:
        p = layout.panelled(xp, t, a.col, cols, size, setting, device.multiprocessors, device.shared)
    count = len(p.begin) - 1
    row = xp.ascontiguousarray(t.row[xp.minimum(xp.arange(count + 1) * p.per, t.tiles)])
    took = _prepared(device, begin)
    given, carry = p.strips, xp.empty(count, dtype)
    own = xp.empty(given.entries, dtype) if given else None
    numbers = [np.int32(n) for n in (count, t.tiles, p.per, p.room, int(given is None), len(a.col))]
    shared, grid = setting.shared(p.per, p.room, size), min(count, device.multiprocessors * setting.blocks)

    def run(x: Any, y: Any) -> None:
        if given:
            code.launch("hand_out", device.multiprocessors, device.threads, x, given.piece, given.owner, given.place,
                        given.to, own, np.int32(cols), shared=width * size)  # fmt: skip
        code.launch("merbit_panels", grid, 32 * warps, t.bits, t.row, p.near, a.val, x, own if given else x,
                    x if given else p.columns, p.begin, y, carry, *numbers, np.int64(t.items),
                    shared=shared)  # fmt: skip
        plain.launch("merbit_carries", -(-count // 64), 64, row, carry, y, np.int32(count), np.int32(rows))

    return Way(name, run, took, f"{'handed out' if given else 'gathered'}, {p.per} tiles")


def swept(device: Device, a: Matrix, dealt: bool = False, each: int = EACH, warps: int = 0, cut: int = 0) -> Way:
    """Sums in shared memory, nonzeros by columns: all blocks sweep over x at once. Rows as they lie, or dealt out."""
    xp, dtype = device.arrays, a.val.dtype
    size, warps = dtype.itemsize, warps or WARPS
    code = device.make("sweep.cu", VALUE=NAMES[size], WARPS=warps, EACH=each)
    device.wait()
    begin = time.perf_counter()
    memory = device.shared - layout.RESERVED
    s = sweeps.swept(xp, a.start, a.col, a.val, a.shape, device.multiprocessors, memory, cut, dealt)
    took = _prepared(device, begin)
    grid, cleared = min(s.units, device.multiprocessors), 0 if s.clear is None else len(s.clear)

    def run(x: Any, y: Any) -> None:
        if s.clear is None:
            y.fill(0)
        elif cleared:
            code.launch("clear", -(-cleared // 256), 256, s.clear, y, np.int32(cleared))
        code.launch("sweep", grid, 32 * warps, s.word, s.val, s.strip, s.begin, s.first, s.target, x, y,
                    np.int32(s.units), np.int32(s.groups), shared=s.room * size)  # fmt: skip

    name = "sweep dealt" if dealt else "sweep"
    return Way(name, run, took, f"{s.groups} groups of rows, {s.units // s.groups} ranges")


def ways(device: Device, a: Matrix, every: bool = True) -> list[Way]:
    """All that is tried on a matrix; or two ways alone, which take a tenth of the time to prepare.

    What does not fit into the GPU's memory beside the matrix is left out, but for the first tiles.
    """
    size = a.val.dtype.itemsize
    more: list[Callable[[], Way]] = [partial(swept, device, a)]
    if every:
        popular = layout.popular(device.arrays, a.col, a.shape[1])[1] - a.shape[1] / max(1, len(a.col))
        orders = ("popular", "sorted") if popular >= layout.WORTH else ()
        more = [
            *(partial(tiled, device, a, *shape) for shape in CONFIGURATIONS if shape != BEST),
            *(partial(tiled, device, a, *BEST, order) for order in orders),
            *(partial(in_panels, device, a, each[size], f"panels {name}") for name, each in SETTINGS.items()),
            *more,
            partial(swept, device, a, True),
        ]
    made = [tiled(device, a, *BEST)]
    for make in more:
        with suppress(MemoryError):
            made.append(make())
    return made


def fastest(device: Device, a: Matrix, every: bool = True) -> Way:
    """The fastest of all ways on this matrix, found by trying; what that takes is its preparation.

    Of several ways within the noise the first is as good; what was tried is let go of.
    """
    device.wait()
    begin = time.perf_counter()
    x, y = (device.arrays.zeros(n, a.val.dtype) for n in (a.shape[1], a.shape[0]))
    made = ways(device, a, every)
    taken = [device.seconds(lambda way=way: way(x, y)) for way in made]  # type: ignore[misc]
    best = made[int(np.argmin(taken))]
    seconds = _prepared(device, begin)
    return Way(best.name, best.run, seconds, best.detail)


# ------------------------------------------------------------------------------------------- from the user's side

COPIED = 6.8e9  # bytes a second between a host's memory, pageable, and a GPU's, as beside the H200
MULTIPLIED = 1.2e12  # bytes of a matrix a second: the least of the study's matrices on the H200
A_CORE = 8e9  # bytes of a matrix that a core of a processor multiplies in a second
STARTING = 4e-5  # seconds: two copies and a product that are waited for, each some 12 µs there
TRYING = 0.3  # seconds of trying every way
SOME, PAYS = 300, 1600  # products from which on trying two ways pays on an H200, and trying every way


def estimate(nonzeros: int, shape: tuple[int, int], size: int, cores: int, products: int) -> tuple[float, float]:
    """Seconds of a product on so many cores and on a GPU to which vectors are copied, preparation shared out.

    >>> cpu, there = estimate(10_000, (1000, 1000), 8, 2, 1000)  # small: starting takes longer
    >>> cpu < there
    True
    >>> cpu, there = estimate(300_000_000, (1_000_000, 1_000_000), 8, 2, 10_000)
    >>> cpu > 10 * there
    True
    """
    matrix, vectors = nonzeros * (size + 4), sum(shape) * size
    once = matrix / COPIED + (TRYING if products >= PAYS else 0.0)
    return matrix / (A_CORE * cores), STARTING + vectors / COPIED + matrix / MULTIPLIED + once / max(1, products)


class Product:
    """A matrix on the GPU, prepared: `product @ x` for vectors of NumPy, which are copied, or of the GPU."""

    def __init__(self, device: Device, csr: Any, products: int) -> None:
        xp = device.arrays
        if csr.dtype not in (np.float32, np.float64):
            raise BadInput(f"values on a GPU must be float32 or float64, these are {csr.dtype}")
        self.arrays, self.shape, self.dtype = xp, csr.shape, np.dtype(csr.dtype)
        try:
            start, col = (xp.ascontiguousarray(xp.asarray(part), np.int32) for part in (csr.indptr, csr.indices))
            matrix = Matrix(start, col, xp.ascontiguousarray(xp.asarray(csr.data)), csr.shape)
            trying = products >= SOME and csr.nnz > 0
            self.way = fastest(device, matrix, products >= PAYS) if trying else tiled(device, matrix, *BEST)
        except MemoryError:
            needed = csr.nnz * (self.dtype.itemsize + 4) / 1e9
            raise BadInput(f"the matrix, {needed:.1f} GB, does not fit into the GPU's memory; cut it by rows") from None

    def __matmul__(self, x: Any) -> Any:
        stays = not isinstance(x, np.ndarray | list | tuple) and hasattr(x, "__cuda_array_interface__")
        vector = self.arrays.ascontiguousarray(self.arrays.asarray(x), self.dtype)
        y = self.arrays.empty(self.shape[0], self.dtype)
        self.way(vector, y)
        return y if stays or isinstance(y, np.ndarray) else y.get()
