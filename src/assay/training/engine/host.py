"""This machine as a cluster of processes: what it attains, measured; and a real training step to hold predictions to.

Two processes with one computing thread each train a decoder data-parallel over gloo: forward, backward, an all-reduce
of all gradients, AdamW. `calibrate` times products, attention and all-reduces of a few sizes, and then whole steps of
its own small models for what is left over (norms, activations, loss, optimizer: one rate of moving bytes). `step`
measures the step of any other. On a machine that others use too, `clock=time.process_time` counts the seconds that the
processes themselves computed. Needs the extra `torch`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from assay.sim.collectives import Link
from assay.sim.gloo_ranks import joined
from assay.sim.hardware import Device
from assay.sim.models import Model
from assay.sim.ranks import Rank, Ranks
from assay.training.engine.cluster import FP32, Cluster, Efficiency
from assay.training.engine.step import simulate
from assay.training.interface import Floats, Job, Layout, Plan

Clock = Callable[[], float]
PRODUCTS = ((64, 256, 256), (256, 256, 256), (512, 512, 512), (512, 1536, 512), (512, 512, 1536), (1024, 768, 768),
            (768, 768, 1024), (256, 2048, 512))  # fmt: skip
ATTENTION = ((2, 4, 256, 64), (1, 8, 512, 64))  # sequences, heads, tokens, head width
REDUCED = (1 << 16, 1 << 20, 1 << 23, 1 << 25)  # bytes
ROUNDS = 5
PLAN = Plan(Layout(dp=2), zero=0, overlap=False)


def decoder(layers: int, hidden: int, heads: int, ffn: int, vocab: int) -> Model:
    """The shape of a small decoder with a gated feed-forward part and a head of its own.

    >>> decoder(2, 256, 4, 512, 1000).params
    1822720
    """
    return Model(f"decoder-{layers}x{hidden}", hidden, vocab, False, layers, 0, 0, layers, 0, heads, heads,
                 hidden // heads, ffn)  # fmt: skip


OWN = ((decoder(2, 256, 4, 512, 1000), Job(8, 128)), (decoder(2, 384, 6, 1536, 4000), Job(4, 256)))  # to calibrate with


def step(shape: Model, job: Job, rounds: int = ROUNDS, clock: Clock = time.perf_counter) -> float:
    """Seconds of a real step of two processes: the fastest of some, the slower process of the two."""
    times = _in_ranks(_train, shape, job.batch // 2, job.seq, rounds, clock)
    return float(np.max(times, axis=0).min())


def predicted(cluster: Cluster, shape: Model, job: Job) -> float:
    """Seconds that the engine says."""
    return simulate(shape, cluster, replace(PLAN, mbs=job.batch // 2), job).step


def calibrate(clock: Clock = time.perf_counter) -> Cluster:
    """This machine: two ranks, and what they attain of the fastest product seen."""
    products, attention, reduced = _in_ranks(_probe, clock)[0]
    m, n, k = np.array(PRODUCTS, float).T
    rates = 2 * m * n * k / products
    peak = float(rates.max())
    matrix, half = _fitted(m, n, k, rates / peak)
    pairs = np.array([4.0 * b * h * t * (t / 2) * d for b, h, t, d in ATTENTION])
    latency, per_byte = _line(np.array(REDUCED, float), reduced)
    link = Link(latency / 2, 1 / per_byte)  # two ranks pass twice through the latency
    on = Device("host", "this machine, one thread", {"fp32": peak, "bf16": peak}, 8e9, 1e10, 1e6, link, link, link, 0.0,
                10.0, 20.0, 0.1, 2, {})  # fmt: skip
    share = Efficiency(matrix, float((pairs / attention).mean() / peak), 1.0, 1.0, half)
    cluster = Cluster(on, 2, 2, link, link, share, "host", FP32)
    return _with_memory(cluster, [(shape, job, step(shape, job, clock=clock)) for shape, job in OWN])


def _with_memory(cluster: Cluster, seen: Sequence[tuple[Model, Job, float]]) -> Cluster:
    """The rate of moving bytes with which the steps seen are met best, by bisection on the mean error."""
    low, high = 1e8, 1e12
    for _ in range(50):
        middle = (low * high) ** 0.5
        at = replace(cluster, device=replace(cluster.device, mem_bw=middle))
        error = np.mean([np.log(predicted(at, shape, job) / seconds) for shape, job, seconds in seen])
        low, high = (middle, high) if error > 0 else (low, middle)
    return replace(cluster, device=replace(cluster.device, mem_bw=high))


def _fitted(m: Floats, n: Floats, k: Floats, shares: Floats) -> tuple[float, float]:
    """The share of peak of a large product, and the side at which half of it is lost: least squares of logarithms."""
    best = (np.inf, 1.0, 1.0)
    for half in np.geomspace(0.1, 200, 60).tolist():
        shape = np.log(m / (m + half)) + np.log(n / (n + half)) + np.log(k / (k + half))
        matrix = float(np.exp((np.log(shares) - shape).mean()))
        error = float(((np.log(shares) - shape - np.log(matrix)) ** 2).sum())
        best = min(best, (error, min(matrix, 1.0), half))
    return best[1], best[2]


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Intercept and slope in relative error, both above nothing."""
    weight = 1 / y
    slope, level = np.polyfit(x, y, 1, w=weight)
    return max(float(level), 1e-6), max(float(slope), 1e-13)


def _in_ranks(target: Callable[..., Any], *arguments: Any) -> list[Any]:
    with (
        tempfile.TemporaryDirectory(prefix="assay-step-") as folder,
        Ranks(2, target, folder, *arguments, imports=("torch",)) as ranks,
    ):
        return ranks.wait(timeout=240)


def _fastest(run: Callable[[], Any], rounds: int, clock: Clock) -> float:
    run()
    times = []
    for _ in range(rounds):
        begin = clock()
        run()
        times.append(clock() - begin)
    return min(times)


def _probe(rank: Rank, folder: str, clock: Clock) -> tuple[Floats, Floats, Floats]:
    """Seconds of products, of attention forward, and of all-reduces; both ranks work, as they do in a step."""
    with joined(rank, folder) as dist:
        import torch

        def product(m: int, n: int, k: int) -> float:
            a, b = torch.randn(m, k), torch.randn(k, n)
            return _fastest(lambda: a @ b, 15, clock)

        def attend(b: int, h: int, t: int, d: int) -> float:
            q = torch.randn(b, h, t, d)
            attention = torch.nn.functional.scaled_dot_product_attention
            return _fastest(lambda: attention(q, q, q, is_causal=True), 9, clock)

        def reduce(nbytes: int) -> float:
            x = torch.zeros(nbytes // 4)
            return _fastest(lambda: dist.all_reduce(x), 7, clock)

        return (
            np.array([product(*size) for size in PRODUCTS]), np.array([attend(*size) for size in ATTENTION]),
            np.array([reduce(size) for size in REDUCED]),
        )  # fmt: skip


def _train(rank: Rank, folder: str, shape: Model, sequences: int, seq: int, rounds: int, clock: Clock) -> Floats:
    """Seconds of each of some steps."""
    with joined(rank, folder) as dist:
        import torch

        torch.manual_seed(0)
        weights = _weights(shape)
        optimizer = torch.optim.AdamW(weights, lr=1e-4, foreach=True)
        tokens = torch.randint(shape.vocab, (sequences, seq + 1))
        times = []
        for _ in range(rounds + 2):
            rank.meet()
            begin = clock()
            _loss(shape, weights, tokens).backward()
            flat = torch.cat([weight.grad.reshape(-1) for weight in weights])
            dist.all_reduce(flat)
            at = 0
            for weight in weights:
                weight.grad = flat[at : at + weight.numel()].view_as(weight)
                at += weight.numel()
            optimizer.step()
            optimizer.zero_grad()
            times.append(clock() - begin)
        return np.array(times[2:])


def _weights(shape: Model) -> list[Any]:
    import torch

    def matrix(rows: int, columns: int) -> Any:
        return torch.nn.Parameter(0.02 * torch.randn(rows, columns))

    found = [matrix(shape.vocab, shape.hidden)]
    for _ in range(shape.layers):
        found += [matrix(3 * shape.hidden, shape.hidden), matrix(shape.hidden, shape.hidden),
                  matrix(2 * shape.ffn, shape.hidden), matrix(shape.hidden, shape.ffn)]  # fmt: skip
    return [*found, matrix(shape.vocab, shape.hidden)]


def _loss(shape: Model, weights: Sequence[Any], tokens: Any) -> Any:
    """A decoder's forward pass and its loss."""
    from torch.nn import functional as fn

    x = fn.embedding(tokens[:, :-1], weights[0])
    b, t, h = x.shape
    for layer in range(shape.layers):
        qkv, out, up, down = weights[1 + 4 * layer : 5 + 4 * layer]
        heads = fn.linear(fn.rms_norm(x, (h,)), qkv).view(b, t, 3, shape.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = heads
        mixed = fn.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, h)
        x = x + fn.linear(mixed, out)
        gate, value = fn.linear(fn.rms_norm(x, (h,)), up).chunk(2, -1)
        x = x + fn.linear(fn.silu(gate) * value, down)
    logits = fn.linear(fn.rms_norm(x, (h,)), weights[-1])
    return fn.cross_entropy(logits.view(-1, shape.vocab), tokens[:, 1:].reshape(-1))
