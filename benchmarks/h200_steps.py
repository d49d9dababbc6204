"""Measure training on one GPU: python benchmarks/h200_steps.py [--tiny] [--out DIR] [--seconds 300].

Torch only. Writes steps.json: products in the three forms of a training step, attention forward and backward, what only
moves bytes, launches; and whole steps (forward, backward, AdamW) of decoders to calibrate with and of others that are
held out. `assay.training.engine.gpu` fits the first and predicts the second. `--tiny` does the same with shrunk shapes
on a CPU, which is how this script is tested.

The program is what `Precision()` of assay's engine says: weights and activations in bf16, gradients of weights summed
in fp32 by the product itself, one kernel for AdamW over master copy and moments in fp32. Norms without weights,
rotary embeddings, gates and the loss are compiled, one kernel each way; attention is torch's flash kernel. Steps are
captured as CUDA graphs, so that the host is not in them (`eager` is without). A step of the kind `plain` has nothing
compiled, and gradients in bf16 that are added to fp32 ones after each product.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as fn

GPU = torch.cuda.is_available()
ON = "cuda" if GPU else "cpu"
BF16, FP32 = torch.bfloat16, torch.float32
BEGAN = time.perf_counter()
SHARED = True  # whether the kernel takes fewer heads of keys than of queries
CHUNK = 1 << 28  # parameters that one launch of the optimizer updates

# (outputs, inputs) of matrices, and rows: sizes around those of decoders, none of them a held-out one's product
MATRICES = (
    (1024, 1024), (3072, 1024), (8192, 1024), (1024, 4096), (2048, 2048), (6144, 2048), (11264, 2048), (2048, 5632),
    (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (32000, 2048), (50304, 1024), (640, 640), (1280, 640),
)  # fmt: skip
ROWS = (256, 1024, 2048, 4096, 8192, 16384)
SKINNY = tuple((m, n, k) for m in (16, 64) for n, k in ((1024, 1024), (6144, 2048), (2048, 5632), (28672, 4096)))
ATTENTION = (  # sequences, heads, heads of keys, tokens, width of a head
    (16, 16, 16, 1024, 64), (4, 16, 16, 4096, 64), (1, 8, 8, 16384, 64), (32, 16, 4, 512, 64), (16, 16, 16, 512, 128),
    (8, 16, 16, 1024, 128), (4, 16, 16, 2048, 128), (2, 32, 8, 4096, 128), (1, 32, 8, 8192, 128), (1, 8, 8, 16384, 128),
)  # fmt: skip
ROWS_WIDTHS = ((2048, 2048), (8192, 1024), (8192, 2048), (8192, 4096), (16384, 2048))


def decoder(
    name: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, seq: int, mbs: int, m: int = 1
) -> dict[str, Any]:  # fmt: skip
    return {"name": name, "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv,
            "head_dim": hidden // heads, "ffn": ffn, "vocab": vocab, "seq": seq, "mbs": mbs,
            "microbatches": m}  # fmt: skip


CALIBRATION = (
    decoder("c-2048", 8, 2048, 16, 16, 5632, 32000, 2048, 4),
    decoder("c-4096", 6, 4096, 32, 8, 14336, 32000, 4096, 2),
    decoder("c-1024", 12, 1024, 16, 16, 4096, 50304, 1024, 8, 2),
)
HELD_OUT = (
    decoder("0.5B", 24, 896, 14, 2, 4864, 151936, 2048, 4),
    decoder("1.3B", 24, 2048, 16, 16, 5504, 50304, 2048, 8),
    decoder("3B", 28, 3072, 24, 8, 8192, 128256, 4096, 2),
    decoder("1.1B-long", 22, 2048, 32, 4, 5632, 32000, 8192, 1, 2),
    decoder("half-7B-16k", 16, 4096, 32, 32, 11008, 32000, 16384, 1),
    decoder("1.3B-small", 24, 2048, 16, 16, 5504, 50304, 2048, 1, 4),
    decoder("2.5B-short", 28, 2560, 20, 20, 6912, 50304, 1024, 8),
)


def shrunk(shape: dict[str, Any]) -> dict[str, Any]:
    return shape | {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 96, "vocab": 128,
                    "seq": 32, "mbs": 2}  # fmt: skip


def add_norm(x: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """The residual, and the norm of the sum."""
    total = x + more
    wide = total.float()
    return total, (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(total.dtype)


def gate(both: Tensor) -> Tensor:
    first, second = both.chunk(2, -1)
    return fn.silu(first) * second


def rotate(heads: Tensor, cos: Tensor, sin: Tensor, turned: int) -> Tensor:
    """Queries and keys turned by their position; values as they are. [sequences, tokens, heads, width]"""
    asking, values = heads[:, :, :turned], heads[:, :, turned:]
    one, two = asking.float().chunk(2, -1)
    done = torch.cat([one * cos - two * sin, two * cos + one * sin], -1)
    return torch.cat([done.to(heads.dtype), values], 2)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return fn.cross_entropy(logits.float(), targets)


def adamw(weight: Tensor, master: Tensor, one: Tensor, two: Tensor, gradient: Tensor) -> None:
    """A step of AdamW that also clears the gradient; corrections of the bias are left out, they cost nothing."""
    first = 0.9 * one + 0.1 * gradient
    second = 0.95 * two + 0.05 * gradient * gradient
    new = master * (1 - 1e-6) - 1e-5 * first / (second.sqrt() + 1e-8)
    one.copy_(first)
    two.copy_(second)
    master.copy_(new)
    weight.copy_(new)
    gradient.zero_()


PIECES: dict[str, Callable[..., Any]] = {
    "add_norm": add_norm, "gate": gate, "rotate": rotate, "cross_entropy": cross_entropy, "adamw": adamw,
}  # fmt: skip


def compiled_pieces() -> dict[str, Callable[..., Any]]:
    torch._dynamo.config.recompile_limit = 128
    torch._dynamo.config.accumulated_recompile_limit = 1024
    torch._functorch.config.donated_buffer = False
    return {name: torch.compile(piece, dynamic=False) for name, piece in PIECES.items()}


def added_in_product(main: Tensor, left: Tensor, right: Tensor) -> None:
    """main += left @ right, in fp32, by the product itself."""
    torch.ops.aten.addmm.dtype_out(main, left, right, FP32, out=main)


def added_after(main: Tensor, left: Tensor, right: Tensor) -> None:
    main.add_(left @ right)


def how_added() -> Callable[[Tensor, Tensor, Tensor], None]:
    try:
        main, a = torch.ones(64, 64, device=ON), torch.randn(64, 64, device=ON, dtype=BF16)
        added_in_product(main, a.t(), a)
        wanted = 1 + a.float().t() @ a.float()
        if (main - wanted).abs().max() < 0.1:
            return added_in_product
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        print("no fp32 output of products:", error)
    return added_after


class Linear(torch.autograd.Function):
    """A product whose backward pass adds the gradient of its weights to `main`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, main: Tensor, add: Any) -> Tensor:
        """Rows times the transposed weights."""
        ctx.save_for_backward(x, weight)
        ctx.main, ctx.add = main, add
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        """The gradient of the rows; that of the weights goes to `main`."""
        x, weight = ctx.saved_tensors
        dx = dy @ weight
        ctx.add(ctx.main, dy.t(), x)
        return dx, None, None, None


class Lookup(torch.autograd.Function):
    """An embedding whose backward pass adds to `main`."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor, main: Tensor) -> Tensor:
        """The rows of these tokens."""
        ctx.save_for_backward(tokens)
        ctx.main = main
        return fn.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        """Rows are added where they belong, in fp32."""
        ctx.main.index_add_(0, ctx.saved_tensors[0], dy.float())
        return None, None, None


@contextmanager
def flash() -> Iterator[None]:
    if not GPU:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        yield


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal; heads of queries share those of keys in groups."""
    if not SHARED and q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def heads_share() -> bool:
    try:
        q, k = (torch.randn(1, n, 32, 64, device=ON, dtype=BF16, requires_grad=True) for n in (4, 2))
        with flash():
            torch.autograd.backward(attend(q, k, k).sum())
    except RuntimeError as error:
        print("heads of keys are repeated:", str(error)[:200])
        return False
    return True


class Training:
    """A decoder, its state in flat buffers, and a step of it."""

    def __init__(self, shape: dict[str, Any], pieces: dict[str, Callable[..., Any]], add: Any) -> None:
        self.shape, self.pieces, self.add = shape, pieces, add
        h, f, d = shape["hidden"], shape["ffn"], shape["head_dim"]
        width = (shape["heads"] + 2 * shape["kv_heads"]) * d
        sizes = [(shape["vocab"], h)]
        for _ in range(shape["layers"]):
            sizes += [(width, h), (h, shape["heads"] * d), (2 * f, h), (h, f)]
        sizes.append((shape["vocab"], h))
        count = sum(a * b for a, b in sizes)
        self.master = torch.empty(count, device=ON).normal_(0, 0.02)
        self.flat = self.master.to(BF16)
        self.one, self.two, self.gradient = (torch.zeros(count, device=ON) for _ in range(3))
        self.weights, self.mains, at = [], [], 0
        for a, b in sizes:
            self.weights.append(self.flat[at : at + a * b].view(a, b).requires_grad_())
            self.mains.append(self.gradient[at : at + a * b].view(a, b))
            at += a * b
        angles = torch.arange(shape["seq"], device=ON)[:, None] * 1e-4 ** (torch.arange(d // 2, device=ON) / (d // 2))
        self.cos, self.sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
        rows = shape["microbatches"], shape["mbs"] * shape["seq"]
        self.tokens, self.targets = (torch.randint(shape["vocab"], rows, device=ON) for _ in range(2))

    def linear(self, x: Tensor, at: int) -> Tensor:
        """One matrix."""
        found: Tensor = Linear.apply(x, self.weights[at], self.mains[at], self.add)  # type: ignore[no-untyped-call]
        return found

    def loss(self, microbatch: int) -> Tensor:
        """The forward pass of one microbatch."""
        shape, use = self.shape, self.pieces
        heads, kv, d = shape["heads"], shape["kv_heads"], shape["head_dim"]
        x = Lookup.apply(self.weights[0], self.tokens[microbatch], self.mains[0])  # type: ignore[no-untyped-call]
        normed = fn.rms_norm(x, (shape["hidden"],))
        for layer in range(shape["layers"]):
            at = 1 + 4 * layer
            all_heads = self.linear(normed, at).view(shape["mbs"], shape["seq"], heads + 2 * kv, d)
            turned = use["rotate"](all_heads, self.cos, self.sin, heads + kv).transpose(1, 2)
            with flash():
                mixed = attend(turned[:, :heads], turned[:, heads : heads + kv], turned[:, heads + kv :])
            x, normed = use["add_norm"](x, self.linear(mixed.transpose(1, 2).reshape(-1, heads * d), at + 1))
            inner = use["gate"](self.linear(normed, at + 2))
            x, normed = use["add_norm"](x, self.linear(inner, at + 3))
        found: Tensor = use["cross_entropy"](self.linear(normed, len(self.weights) - 1), self.targets[microbatch])
        return found

    def update(self) -> None:
        """The optimizer."""
        for at in range(0, len(self.flat), CHUNK):
            part = slice(at, at + CHUNK)
            with torch.no_grad():
                self.pieces["adamw"](self.flat[part].detach(), self.master[part], self.one[part], self.two[part],
                                     self.gradient[part])  # fmt: skip

    def step(self) -> None:
        """All of it."""
        for microbatch in range(self.shape["microbatches"]):
            torch.autograd.backward(self.loss(microbatch))
        self.update()


def sync() -> None:
    if GPU:
        torch.cuda.synchronize()


def clocked(run: Callable[[], Any], times: int) -> list[float]:
    """Seconds of each of some runs."""
    found = []
    for _ in range(times):
        sync()
        if not GPU:
            began = time.perf_counter()
            run()
            found.append(time.perf_counter() - began)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        sync()
        found.append(begin.elapsed_time(end) / 1e3)
    return found


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same as a CUDA graph."""
    if not GPU:
        return run
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def each(run: Callable[[int], Any], busy: float = 0.02) -> float:
    """Seconds of one call among many alike in a row, the device kept busy for a while before; `run` gets a number."""
    run(0)
    guess = max(min(clocked(lambda: run(0), 2)), 2e-6)
    many = int(min(64, max(4, 0.004 / guess))) if GPU else 2
    graph = captured(lambda: [run(i) for i in range(many)])
    rounds = int(min(200, max(3, busy / (guess * many)))) if GPU else 1
    clocked(lambda: [graph() for _ in range(rounds)], 1)
    return median(clocked(lambda: [graph() for _ in range(rounds)], 3)) / (rounds * many)


def products(tiny: bool, add: Any) -> Iterator[dict[str, Any]]:
    sizes = [(m, n, k) for n, k in MATRICES for m in ROWS] + [*SKINNY, (8192, 8192, 8192)]
    for m, n, k in [(32, 64, 64), (64, 96, 64)] if tiny else sizes:
        yield product(m, n, k, add)


def drawn(*size: int, dtype: torch.dtype = BF16, grad: bool = False) -> Tensor:
    return torch.randn(size, device=ON, dtype=dtype, requires_grad=grad)


def product(m: int, n: int, k: int, add: Any) -> dict[str, Any]:
    """All three forms, on several copies in turn, so that nothing is found in a cache that a step would not find."""
    copies = max(2, min(8, int(2e8 / (2 * (m * k + n * k + m * n)))))
    xs, ws, ys = ([drawn(*size) for _ in range(copies)] for size in ((m, k), (n, k), (m, n)))
    mains = [torch.zeros(n, k, device=ON) for _ in range(2)]
    return {
        "m": m, "n": n, "k": k, "forward": each(lambda i: xs[i % copies] @ ws[i % copies].t()),
        "inputs": each(lambda i: ys[i % copies] @ ws[i % copies]),
        "weights": each(lambda i: add(mains[i % 2], ys[i % copies].t(), xs[i % copies])),
    }  # fmt: skip


def attentions(tiny: bool) -> Iterator[dict[str, Any]]:
    for shape in [(2, 4, 2, 32, 16)] if tiny else ATTENTION:
        yield attention(*shape)


def attention(b: int, h: int, kv: int, t: int, d: int) -> dict[str, Any]:
    q, k, v = (drawn(b, t, n, d).transpose(1, 2).requires_grad_() for n in (h, kv, kv))
    with flash():
        dout = torch.randn_like(attend(q, k, v))
        forward = each(lambda i: attend(q, k, v))
        both = each(lambda i: torch.autograd.grad(attend(q, k, v), (q, k, v), dout))
    return {"sequences": b, "heads": h, "kv_heads": kv, "tokens": t, "head_dim": d, "forward": forward,
            "backward": both - forward}  # fmt: skip


def streams(tiny: bool, pieces: dict[str, Callable[..., Any]]) -> Iterator[dict[str, Any]]:
    """What only moves bytes: each piece forward and backward."""
    for rows, width in [(64, 64)] if tiny else ROWS_WIDTHS:
        yield from inside(rows, width, pieces, *((16, 32) if tiny else (64, 1024)))
    for rows, vocab in [(64, 128)] if tiny else [(8192, 32000), (4096, 128256)]:
        yield loss(rows, vocab, pieces)
    for count in [1 << 10] if tiny else [1 << 24, 1 << 28]:
        yield from updates(count, pieces)


def inside(rows: int, width: int, pieces: dict[str, Callable[..., Any]], d: int, seq: int) -> Iterator[dict[str, Any]]:
    """Of a layer: residual and norm, gate, rotary embedding."""
    x, y, both = (drawn(rows, size, grad=True) for size in (width, width, 2 * width))
    yield passes("add_norm", rows, width, lambda: pieces["add_norm"](x, y), (x, y))
    yield passes("gate", rows, width, lambda: pieces["gate"](both), (both,))
    heads, angle = drawn(rows // seq, seq, width // d, d, grad=True), drawn(1, seq, 1, d // 2, dtype=FP32)
    turned = width // d * 2 // 3
    yield passes("rotate", rows, width, lambda: pieces["rotate"](heads, angle, angle, turned), (heads,))


def loss(rows: int, vocab: int, pieces: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    logits, targets = drawn(rows, vocab, grad=True), torch.randint(vocab, (rows,), device=ON)
    return passes("cross_entropy", rows, vocab, lambda: pieces["cross_entropy"](logits, targets), (logits,))


def updates(count: int, pieces: dict[str, Callable[..., Any]]) -> Iterator[dict[str, Any]]:
    master, one, gradient = (drawn(count, dtype=FP32) for _ in range(3))
    two, weight = torch.rand(count, device=ON), master.to(BF16)
    update = each(lambda i: pieces["adamw"](weight, master, one, two, gradient))
    yield {"op": "adamw", "rows": count, "width": 1, "forward": update}
    to, source = (drawn(max(8, count // 2)) for _ in range(2))
    yield {"op": "copy", "rows": count // 2, "width": 1, "forward": each(lambda i: to.copy_(source))}


def passes(op: str, rows: int, width: int, run: Callable[[], Any], inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    """A backward pass runs on its forward pass's stream: both are captured, and one taken off."""

    def outputs() -> tuple[Tensor, ...]:
        found = run()
        return found if isinstance(found, tuple) else (found,)

    grads = tuple(torch.randn_like(out) for out in outputs())
    forward = each(lambda i: outputs())
    both = each(lambda i: torch.autograd.grad(outputs(), inputs, grads))
    return {"op": op, "rows": rows, "width": width, "forward": forward, "backward": both - forward}


def launches() -> dict[str, float]:
    x = torch.zeros(16, device=ON)
    replay = captured(lambda: [x.add_(1) for _ in range(500)])
    return {
        "graph": median(clocked(replay, 5)) / 500,
        "eager": median(clocked(lambda: [x.add_(1) for _ in range(500)], 5)) / 500,
    }


def measured_step(
    shape: dict[str, Any], pieces: dict[str, Callable[..., Any]], add: Any, rounds: int
) -> dict[str, Any]:
    """Seconds of a step: captured, eager, and of its parts; bytes at its peak."""
    training = Training(shape, pieces, add)
    for _ in range(2):
        training.step()
    sync()
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if GPU else 0
    eager = clocked(training.step, rounds)
    memory = torch.cuda.max_memory_allocated() if GPU else 0
    found = shape | {"parameters": len(training.flat), "eager": eager, "memory": memory, "state": before}
    found["update"] = median(clocked(training.update, rounds))
    with torch.no_grad():
        found["forward"] = median(clocked(lambda: training.loss(0), rounds))
    try:
        replay = captured(training.step)
        clocked(replay, 2)
        found["graph"] = clocked(replay, rounds)
    except RuntimeError as error:
        found["graph_error"] = str(error)[:300]
    return found


def clocks() -> str:
    try:
        asked = "--query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.draw,temperature.gpu"
        command = ["nvidia-smi", asked, "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except OSError:
        return ""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tiny", action="store_true", help="shrunk shapes, not compiled")
    options.add_argument("--out", default=os.environ.get("OUT", "h200_steps_out"))
    options.add_argument("--seconds", type=float, default=300.0, help="begin nothing more after this long")
    chosen = options.parse_args()
    Path(chosen.out).mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    global SHARED
    SHARED = heads_share()
    pieces, add = (PIECES, added_after) if chosen.tiny else (compiled_pieces(), how_added())
    found: dict[str, Any] = {
        "torch": torch.__version__, "device": torch.cuda.get_device_name() if GPU else "cpu", "clocks": clocks(),
        "fused_accumulation": add is added_in_product, "compiled": not chosen.tiny, "heads_shared": SHARED,
        "errors": [],
        "products": [], "attention": [], "streams": [], "steps": [],
    }  # fmt: skip
    if not chosen.tiny:
        pieces = checked(pieces, found["errors"])

    def keep(where: str, made: Iterator[dict[str, Any]]) -> None:
        began = time.perf_counter()
        try:
            for one in made:
                found[where].append(one)
                if where != "steps" and time.perf_counter() - began > chosen.seconds / 4:
                    found["errors"].append(f"{where}: stopped after {len(found[where])}")
                    break
        except Exception as error:  # a part that fails must not lose the others
            found["errors"].append(f"{where}: {type(error).__name__}: {str(error)[:300]}")
        (Path(chosen.out) / "steps.json").write_text(json.dumps(found))
        print(f"{where}: {len(found[where])} in {time.perf_counter() - began:.1f} s", clocks(), flush=True)

    found["launch"] = launches()
    keep("products", products(chosen.tiny, add))
    keep("attention", attentions(chosen.tiny))
    keep("streams", streams(chosen.tiny, pieces))
    plain = [dict(CALIBRATION[0], variant="plain")]
    for kind, shapes in (("calibration", CALIBRATION), ("held out", HELD_OUT), ("plain", plain)):
        use, how = (PIECES, added_after) if kind == "plain" else (pieces, add)
        for shape in shapes:
            if time.perf_counter() - BEGAN > chosen.seconds:
                found["errors"].append(f"{shape['name']} {kind}: no time left")
                continue
            size, before = (shrunk(shape) if chosen.tiny else shape), len(found["steps"])
            rounds = 2 if chosen.tiny else 6
            keep("steps", (measured_step(one, use, how, rounds) | {"kind": kind} for one in [size]))
            if GPU:
                torch.cuda.empty_cache()
            for last in found["steps"][before:]:
                shown = ("eager", "graph", "update", "forward", "memory", "graph_error")
                print(last["name"], kind, {key: last[key] for key in shown if key in last}, flush=True)
    print(json.dumps({key: found[key] for key in ("torch", "device", "fused_accumulation", "launch", "errors")}))


def checked(pieces: dict[str, Callable[..., Any]], errors: list[str]) -> dict[str, Callable[..., Any]]:
    """The compiled pieces, plain ones in place of those that cannot be compiled here."""
    x = torch.randn(64, 128, device=ON, dtype=BF16, requires_grad=True)
    heads = torch.randn(2, 32, 6, 16, device=ON, dtype=BF16, requires_grad=True)
    angle, wide = torch.randn(1, 32, 1, 8, device=ON), torch.rand(4096, device=ON)
    tries: dict[str, Callable[[Callable[..., Any]], Any]] = {
        "add_norm": lambda f: f(x, x)[1].sum().backward(), "gate": lambda f: f(x).sum().backward(),
        "rotate": lambda f: f(heads, angle, angle, 4).sum().backward(),
        "cross_entropy": lambda f: f(x, torch.zeros(64, dtype=torch.long, device=ON)).backward(),
        "adamw": lambda f: f(wide.to(BF16), wide.clone(), wide.clone(), wide.clone(), wide.clone()),
    }  # fmt: skip
    found = dict(pieces)
    for name, attempt in tries.items():
        try:
            attempt(pieces[name])
        except Exception as error:
            errors.append(f"{name} not compiled: {type(error).__name__}: {str(error)[:200]}")
            found[name] = PIECES[name]
    return found


if __name__ == "__main__":
    main()
