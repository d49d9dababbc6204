"""What a step takes on real processes: bytes of memory, bytes on the wire, seconds, and losses of a small training.

The same step runs in three ways. `single` has the whole sample on one rank, as data parallelism has on every one;
`dtensor` is torch's own, which cuts evenly, and where it refuses a call, or gathers, the row says so; `shardtensor` is
ours.
"""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.record.timing import granted
from assay.sim.adam import Adam
from assay.sim.random import stream
from assay.training.shardtensor import models
from assay.training.shardtensor.dispatch import Domain, Unsupported, shard
from assay.training.shardtensor.job import compared, outputs, rounding, sizes_of

SYSTEMS = ("single", "dtensor", "shardtensor")
KINDS = ("vit", "unet")


def made(kind: str, seed: int, rows: int, columns: int = 16, width: int = 32) -> tuple[nn.Module, Tensor, int]:
    """A model, one sample for it, and the dimension along which the sample is cut."""
    torch.manual_seed(seed)
    if kind == "vit":
        model: nn.Module = models.ViT(width=width, grid=(rows // 2, columns // 2))
        return model, torch.randn(1, 2, rows, columns), 2
    return models.UNet(width=width // 4), torch.randn(1, 2, rows, columns), 2


def parity(seed: int, shares: list[list[float]]) -> dict[str, dict[str, Any]]:
    """On this rank: both models in unequal stretches beside themselves in one piece."""
    domain, found = Domain(), {}
    for at, (kind, rows) in enumerate(zip(KINDS, (40, 44), strict=True)):
        model, x, dim = made(kind, seed, rows)
        sizes = sizes_of(x.shape[dim], shares[at])
        out, gradients, inputs, sent = compared(model, [x], dim, sizes, domain)
        found[kind] = {
            "apart": max(out, gradients, inputs), "output": out, "gradients": gradients, "sent": sent,
            "least": min(sizes), "most": max(sizes), "whole": x.nbytes,
        }  # fmt: skip
    return found


def _squares(found: Any) -> Any:
    return sum(y.square().mean() for y in outputs(found))


def step_of(system: str, model: nn.Module, x: Tensor, dim: int, domain: Domain) -> tuple[Callable[[], Any], nn.Module]:
    """One forward and backward pass by a system, on this rank."""
    model, given = copy.deepcopy(model), x
    if system == "dtensor":  # its parameters are on every rank
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

        mesh = init_device_mesh("cpu", (domain.size,))
        model, given = distribute_module(model, mesh), distribute_tensor(x, mesh, [Shard(dim)])
    elif system == "shardtensor":
        given = shard(x, dim, domain)
    return lambda: _squares(model(given)).backward(), model


def peak_of(step: Callable[[], Any], model: nn.Module) -> int:
    """Bytes in use at most during a second step over those before it, as torch's allocator reports each of its acts."""
    step()
    for weight in model.parameters():
        weight.grad = None
    gc.collect()
    dist.barrier()
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True, acc_events=True) as profile:
        step()
    acts = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return int(np.cumsum([e.nbytes() for e in sorted(acts, key=lambda e: e.start_ns())]).max())


def memory(grids: dict[str, tuple[int, int, int]], seed: int) -> dict[str, dict[str, dict[str, Any]]]:
    """On this rank: the memory of a step of each model by each system; -1 where it refused."""
    return {kind: _memory(*made(kind, seed, *grid)) for kind, grid in grids.items()}


def _memory(model: nn.Module, x: Tensor, dim: int) -> dict[str, dict[str, Any]]:
    domain, found = Domain(), {}
    weights = sum(w.nbytes for w in model.parameters())
    for system in SYSTEMS:
        before = domain.sent
        try:
            step, used = step_of(system, model, x, dim, domain)
            peak, refused = peak_of(step, used), ""
            del step, used
        except Exception as error:  # of DTensor, whose errors are of many kinds
            if system != "dtensor":
                raise
            peak, refused = -1, f"{type(error).__name__}: {error}".strip().splitlines()[0][:160]
        found[system] = {"peak": peak, "weights": weights, "sent": (domain.sent - before) // 2, "refused": refused}
        dist.barrier()
    return found


def weather(steps: int, rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    """Smooth fields on a torus, and the same a while later: drifted by two cells, and a little smoother."""
    random = stream(seed, "shardtensor", "weather")
    waves = np.hypot(np.fft.fftfreq(rows)[:, None] * rows, np.fft.fftfreq(columns)[None] * columns)
    noise = np.fft.fft2(random.normal(size=(steps, 2, rows, columns)))
    now = noise * np.exp(-((waves / 6.0) ** 2))
    later = now * np.exp(-0.002 * waves**2)
    fields = [np.fft.ifft2(f).real for f in (now, later)]
    scale = fields[0].std()
    before, after = (torch.from_numpy((f / scale).astype(np.float32)) for f in fields)
    return before, after.roll(2, -1)


def training(rows: int, columns: int, steps: int, seed: int) -> dict[str, dict[str, float]]:
    """On this rank: a U-Net that learns tomorrow's weather, on rank 0 whole, in stretches on all."""
    found = {"single": _trained(rows, columns, steps, seed, None)} if dist.get_rank() == 0 else {}
    return found | {"shardtensor": _trained(rows, columns, steps, seed, Domain())}


def _trained(rows: int, columns: int, steps: int, seed: int, domain: Domain | None) -> dict[str, float]:
    """The loss on days that it never saw, and on the first one."""
    torch.manual_seed(seed)
    model = models.UNet(width=8)
    optimizer = Adam(model.parameters(), 3e-3)
    before, after = weather(steps + 4, rows, columns, seed)
    losses = []
    for day in range(steps + 4):
        x, y = before[day : day + 1], after[day : day + 1]
        given, wanted = (x, y) if domain is None else (shard(x, 2, domain), shard(y, 2, domain))
        loss = nn.functional.mse_loss(model(given), wanted)
        if day < steps:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    return {"loss": float(np.mean(losses[steps:])), "first": losses[0]}


def timed(rows: int, columns: int, width: int, rounds: int, seed: int) -> dict[str, Any]:
    """On this rank: seconds of inference on rank 0 alone and on all ranks, in turns; and what ranks were granted."""
    domain = Domain()
    model, x, dim = made("vit", seed, rows, columns, width)
    model.eval()
    part = shard(x, dim, domain)
    seconds: dict[str, list[float]] = {"single": [], "shardtensor": []}
    with torch.no_grad():
        for turn in range(rounds + 1):
            for name in seconds:
                dist.barrier()
                began = time.perf_counter()
                if name == "shardtensor":
                    model(part)
                elif domain.rank == 0:
                    model(x)
                dist.barrier()
                if turn:
                    seconds[name].append(time.perf_counter() - began)
    dist.barrier()
    share = granted(0.05)
    return {name: float(np.median(values)) for name, values in seconds.items()} | {"granted": share}


def own(build: Callable[[], Any], shares: list[float], dim: int) -> dict[str, Any]:
    """On this rank: the user's own model and sample, in one piece and in stretches: numbers, memory, bytes."""
    domain = Domain()
    model, x = build()
    sizes = sizes_of(x.shape[dim], shares)
    try:
        out, gradients, inputs, sent = compared(model, [x], dim, sizes, domain)
    except Unsupported as error:
        return {"refused": str(error)}
    part = shard(x, dim, domain, sizes)
    whole, cut = copy.deepcopy(model), copy.deepcopy(model)
    alone = peak_of(lambda: _squares(whole(x)).backward(), whole)
    peak = peak_of(lambda: _squares(cut(part)).backward(), cut)
    return {
        "output": out, "gradients": max(gradients, inputs), "sent": sent, "rows": sizes[domain.rank], "alone": alone,
        "peak": peak, "weights": sum(w.nbytes for w in model.parameters()),
        "allowed": rounding([x, *model.parameters()]),
    }  # fmt: skip
