"""Time one operation at given sizes, from its signature alone.

An operation is rebuilt with random content and called the way the engine calls it: attention gets block tables and
metadata from the engine's own code. Weights and caches are rotated over copies larger than the cache of the device,
because in a model every layer has its own. On a GPU the calls are recorded in a CUDA graph, so that what is timed is
the device and not the launching; on a CPU it is the median of repeated calls, in the thread's own time, so that a
busy neighbour does not count.
"""

# torch's own functions carry no types.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from assay.serving.dooly.dim_labels import Signature, elements

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
ROWS = (1, 8, 16, 32, 64, 96, 128, 256)
DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (64, 256, 1024, 4096, 8192)
CHUNKS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
BEFORE = (0, 512, 2048, 6144)

Sizes = Mapping[str, int]


def grid(signature: Signature, most: int = 8192, deepest: int = 8192, tokens: int = 1 << 20) -> list[dict[str, int]]:
    """The request sizes at which an operation is timed: at most `most` tokens at once and `deepest` of context.

    >>> grid(Signature("mm", (("R", 64), (64, 32))), most=32)
    [{'R': 1}, {'R': 8}, {'R': 16}, {'R': 32}]
    """
    if signature.op == "paged_attention":
        decodes = [
            {"b": b, "S": b * c} for b in DECODES for c in CONTEXTS if b <= most and c <= deepest and b * c <= tokens
        ]
        chunks = [{"c": c, "pre": pre} for c in CHUNKS for pre in BEFORE if c <= most and c + pre <= deepest]
        return decodes + chunks
    symbols = {size.partition("*")[0] for dims in signature.inputs for size in dims if isinstance(size, str)}
    if any("R" in symbol for symbol in symbols):
        both = "T" in symbols
        return [{"R": r, **({"T": max(most, r)} if both else {})} for r in ROWS if r <= most]
    return [{"T": n} for n in TOKENS if n <= most]


def build(signature: Signature, sizes: Sizes, device: str, cold_bytes: int) -> list[Callable[[], Any]]:
    """Calls of the operation, each on its own copy of the inputs, together at least `cold_bytes` large."""
    import torch

    dtype = getattr(torch, signature.dtype)
    if signature.op == "paged_attention":
        return _attention(signature, sizes, device, dtype, cold_bytes)
    known = {"T": 1, "R": 1, **sizes}
    shapes = elements(_without_unknown(signature), known)
    inputs = sum(_volume(s) for s in shapes) * dtype.itemsize
    copies = max(1, min(64, -(-cold_bytes // max(1, inputs)))) if cold_bytes else 1
    return [_one(signature, shapes, device, dtype) for _ in range(copies)]


def _without_unknown(signature: Signature) -> Signature:
    """Sizes without a label (pools) are what they were when traced."""
    import dataclasses

    inputs = tuple(
        tuple(int(size[1:]) if isinstance(size, str) and size[0] == "?" else size for size in dims)
        for dims in signature.inputs
    )
    return dataclasses.replace(signature, inputs=inputs)


def _volume(shape: tuple[int, ...]) -> int:
    volume = 1
    for size in shape:
        volume *= size
    return volume


def _one(signature: Signature, shapes: list[tuple[int, ...]], device: str, dtype: Any) -> Callable[[], Any]:
    import torch

    from assay.serving.dooly import torch_ops

    # On a GPU the power drawn, and so the clock, depends on the values; on a CPU only routing to experts does.
    content = torch.randn if device.startswith("cuda") or signature.op == "experts" else torch.ones

    def tensor(position: int) -> Any:
        order = signature.orders[position] if signature.orders else ()
        size = shapes[position]
        if not order:
            return content(size, device=device, dtype=dtype)
        stored = content([size[d] for d in order], device=device, dtype=dtype)
        return stored.permute([order.index(d) for d in range(len(size))])

    def spread(count: int, below: int) -> Any:
        return torch.arange(count, device=device) * 7919 % below

    op = signature.op
    match op:
        case "index":
            x, where = tensor(0), spread(shapes[1][0], shapes[0][0])
            return lambda: x[where]
        case "index_put_":
            x, values = tensor(0), tensor(2)
            where = spread(shapes[1][0], shapes[0][0])
            return lambda: x.index_put_((where,), values)
        case "add_rms_norm":
            x, residual = tensor(0), tensor(1) if len(shapes) == 3 else None
            weight = tensor(len(shapes) - 1)
            return lambda: torch_ops.add_rms_norm(x, residual, weight)
        case "silu_mul":
            x = tensor(0)
            return lambda: torch_ops.silu_mul(x)
        case "rope_write":
            return _rope(signature, shapes, device, dtype)
        case "experts":
            x, router, gate_up, down = (tensor(i) for i in range(4))
            top_k = int(signature.constants[0])
            return lambda: torch_ops.experts(x, router, gate_up, down, top_k)
        case "cat":
            parts, at = [tensor(i) for i in range(len(shapes))], int(signature.constants[0])
            return lambda: torch.cat(parts, at)
        case "_to_copy":
            x = tensor(0).float()
            return lambda: x.to(torch.bfloat16)
        case "clone":
            x = tensor(0)
            return lambda: x.clone(memory_format=torch.contiguous_format)
    function, inputs = getattr(torch.ops.aten, op), [tensor(i) for i in range(len(shapes))]
    return lambda: function(*inputs)


def _rope(signature: Signature, shapes: list[tuple[int, ...]], device: str, dtype: Any) -> Callable[[], Any]:
    import torch

    from assay.serving.dooly import torch_ops

    (n, width), (kvh, d) = shapes[0], shapes[1]
    qkv = torch.randn(n, width, device=device, dtype=dtype)
    caches = [torch.zeros(max(n, 16), kvh, d, device=device, dtype=dtype) for _ in range(2)]
    at = torch.arange(n, device=device)
    batch = torch_ops.Batch(at, at, at, at)
    rope = torch_ops.rope_table(max(n, 16), d, 1e4, device)
    weight = torch.ones(d, device=device, dtype=dtype)
    norms = (weight, weight) if signature.constants[0] else None
    return lambda: torch_ops.rope_write(qkv, batch, rope, caches[0], caches[1], norms)


def _attention(signature: Signature, sizes: Sizes, device: str, dtype: Any, cold_bytes: int) -> list[Callable[[], Any]]:
    import torch

    from assay.serving.dooly import torch_ops
    from assay.serving.dooly.torch_engine import compose, lay_out

    (_, heads, d), (kvh, _), (_, dv) = signature.inputs
    chunks = [(sizes["c"], sizes["pre"])] if "c" in sizes else []
    b, context = sizes.get("b", 0), sizes.get("S", 0)
    pages = -(-context // torch_ops.PAGE) + b + sum(-(-(c + p) // torch_ops.PAGE) for c, p in chunks)
    work, known = compose(b, context, chunks, pages, vocab=100)
    batch = lay_out([seq for seq, _ in work[:b]], work[b:], known, device)
    q = torch.randn(len(batch.tokens), int(heads), int(d), device=device, dtype=dtype)
    rows = pages * torch_ops.PAGE
    size = rows * int(kvh) * (int(d) + int(dv)) * dtype.itemsize
    copies = max(1, min(16, -(-cold_bytes // size))) if cold_bytes else 1
    window, scale = int(signature.constants[0]), float(int(d)) ** -0.5

    def one() -> Callable[[], Any]:
        k, v = (torch.randn(rows, int(kvh), int(width), device=device, dtype=dtype) for width in (d, dv))
        return lambda: torch_ops.attend(q, k, v, batch, scale, window, signature.backend)

    return [one() for _ in range(copies)]


# ------------------------------------------------------------------------------------------------ timing


def seconds(signature: Signature, sizes: Sizes, device: str = "cpu", budget: float = 0.01, rounds: int = 5) -> float:
    """How long the operation takes at these sizes, after a warm-up; about `budget` seconds are spent in each round."""
    import torch

    with torch.inference_mode():
        if device.startswith("cuda"):
            # What copies indices from the host cannot be recorded: a replay would read memory that is long reused.
            hosted = signature.op == "experts" or signature.backend == "sdpa"
            return _gpu(build(signature, sizes, device, cold_bytes=256 << 20), not hosted, budget, rounds)
        return _cpu(build(signature, sizes, device, cold_bytes=0), budget, rounds)


def _cpu(calls: list[Callable[[], Any]], budget: float, rounds: int) -> float:
    call = calls[0]
    call()
    start = time.thread_time()
    call()
    once = time.thread_time() - start
    loops = max(1, min(50, int(budget / max(once, 1e-7))))
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        for _ in range(loops):
            call()
        times.append((time.thread_time() - start) / loops)
    return sorted(times)[len(times) // 2]


def _gpu(calls: list[Callable[[], Any]], record: bool, budget: float, rounds: int) -> float:
    import torch

    def clocked(action: Callable[[], Any]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        action()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # which is still filling the inputs
    with torch.cuda.stream(side):
        for call in calls[:3]:
            call()
        once = clocked(calls[0])
    torch.cuda.current_stream().wait_stream(side)
    loops = max(2 if once < budget else 1, min(64, int(budget / max(once, 1e-7))))

    def several() -> None:
        for i in range(loops):
            calls[i % len(calls)]()

    action = several
    if record:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                several()
            action = graph.replay
        except RuntimeError:  # it looks at its data on the host: launching is then part of it
            torch.cuda.synchronize()
    action()
    return sorted(clocked(action) / loops for _ in range(rounds))[rounds // 2]


def profile(
    signature: Signature, device: str = "cpu", points: list[dict[str, int]] | None = None, **options: Any
) -> list[tuple[dict[str, int], float]]:
    """(sizes, seconds) over the operation's grid."""
    return [(sizes, seconds(signature, sizes, device, **options)) for sizes in (points or grid(signature))]
