"""What the ranks of a comparison do: the same sum by every method over the same shaped links, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.timing import Gauge
from assay.sim import gloo_ranks
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.ncclz import fields, rivals
from assay.training.ncclz.collectives import Choices, Report, all_reduce, all_reduce_levels, plain
from assay.training.ncclz.links import Link, Port

PATIENCE = 240.0
IMPORTS = ("torch", "numba")
Row = dict[str, Any]


def raced(
    data: NDArray[np.float32], methods: Sequence[str], eps: float, on: Link, rounds: int = 1, gather: bool = False
) -> dict[str, Row]:
    """Each row of `data` is a rank's; seconds, bytes and the worst error of every method.

    `seconds` are the ring's own (processor time and modelled wire), `wall` the clock's, both of the slowest rank and
    the median of the rounds.
    """
    with scratch() as where, Gauge() as gauge:
        job = str(where), list(methods), eps, on, rounds, gather
        with Ranks(len(data), _race, *job, arrays={"data": data}, imports=IMPORTS) as ranks:
            found = ranks.wait(PATIENCE)
    return {name: _row(data, [one[name] for one in found], eps, gauge.free, gather) for name in methods}


def _row(data: NDArray[np.float32], found: Sequence[Row], eps: float, free: float, gather: bool) -> Row:
    slowest = {key: float(np.median(np.max([one[key] for one in found], axis=0))) for key in ("seconds", "wall")}
    report: Report = found[0]["report"]
    moved = (len(data) - 1) * (data.nbytes if gather else 2 * data[0].nbytes)
    return slowest | {
        "computed": float(np.max([one["computed"] for one in found])), "ratio": moved / sum(one["sent"] for one in found),
        "error": max(one["error"] for one in found), "bound": eps if gather else len(data) * eps,
        "same": len({one["digest"] for one in found}) == 1, "coded": report.coded, "predict": report.predict,
        "raw": report.frames[0], "fixed": report.frames[1], "huffman": report.frames[2],
        "outliers": report.outliers, "free_cores": free,
    }  # fmt: skip


def _race(
    rank: Rank, where: str, methods: Sequence[str], eps: float, on: Link, rounds: int, gather: bool
) -> dict[str, Row]:  # fmt: skip
    import zlib

    data = rank.array("data")
    mine, known = data[rank.index].copy(), data.astype(np.float64)
    with np.errstate(invalid="ignore"):
        exact = known.reshape(-1) if gather else known.sum(axis=0)
    found: dict[str, Row] = {name: {"seconds": [], "wall": []} for name in methods}
    with gloo_ranks.joined(rank, where, patience=PATIENCE) as dist:
        port = Port(dist, on)
        for turn in range(-1, rounds):  # the first one loads what is compiled
            for name in methods:
                x = mine if turn >= 0 else mine[: 1 << 15]
                rank.meet(PATIENCE)
                port.start()
                out, report = _performed(name, port, x, eps, gather)
                seconds, wall = port.now(), port.wall()
                if turn < 0:
                    continue
                row = found[name]
                row["seconds"].append(seconds)
                row["wall"].append(wall)
                with np.errstate(invalid="ignore"):
                    wrong = np.abs(out - exact)
                row |= {
                    "sent": port.sent, "computed": port.spent, "report": report, "digest": zlib.crc32(out.tobytes()),
                    "error": float(np.max(wrong[np.isfinite(exact)], initial=0.0)),
                }  # fmt: skip
    return found


def _performed(name: str, port: Port, x: NDArray[np.float32], eps: float, gather: bool) -> tuple[Any, Report]:
    if gather:
        return rivals.gathered(port, x, eps if name == rivals.NCCLZ else None)
    return rivals.METHODS[name](port, x, eps)


# ------------------------------------------------------------------------------------------------------ gradients


def gradients(ranks: int, width: int, bits: int, on: Link, seed: int) -> dict[str, Row]:
    """Real gradients, summed plainly, by QSGD's levels through NCCLZ, and by the same levels only packed."""
    with scratch() as where, Ranks(ranks, _gradients, str(where), width, bits, on, seed, imports=IMPORTS) as running:
        found = running.wait(PATIENCE)
    return {
        name: {
            "seconds": max(one[name]["seconds"] for one in found), "wall": max(one[name]["wall"] for one in found),
            "bytes": found[0]["count"] * 4, "sent": found[0][name]["sent"], "error": found[0][name]["error"],
        }
        for name in found[0] if name != "count"
    }  # fmt: skip


def _gradients(rank: Rank, where: str, width: int, bits: int, on: Link, seed: int) -> Mapping[str, Any]:
    with gloo_ranks.joined(rank, where, patience=PATIENCE) as dist:
        port, x = Port(dist, on), fields.gradient(seed, rank.index, width)
        key = 2 * (rank.index + 64 * seed) + 1
        always = Choices(always=True)
        jobs = {
            "plain": lambda x: (plain(port, x), None),
            "qsgd": lambda x: all_reduce_levels(port, x, bits, key, always),
            "qsgd packed": lambda x: all_reduce_levels(port, x, bits, key, Choices(coder=1, always=True)),
        }
        found: dict[str, Any] = {"count": len(x)}
        for warm in (True, False):
            for name, job in jobs.items():
                rank.meet(PATIENCE)
                port.start()
                out, _ = job(x[: 1 << 12] if warm else x)
                found[name] = {"seconds": port.now(), "wall": port.wall(), "sent": port.sent, "out": out}
        exact = found["plain"].pop("out")
        found["plain"]["error"] = 0.0
        for name in ("qsgd", "qsgd packed"):
            out = found[name].pop("out")
            found[name]["error"] = float(np.linalg.norm(out - exact) / np.linalg.norm(exact))
        return found


# ------------------------------------------------------------------------------------------------------- loopback


def unshaped(data: NDArray[np.float32], eps: float, rounds: int) -> dict[str, Row]:
    """gloo as it is on this machine: its own all-reduce, NCCLZ left to choose, and NCCLZ made to code."""
    with scratch() as where, Gauge() as gauge:
        with Ranks(len(data), _unshaped, str(where), eps, rounds, arrays={"data": data}, imports=IMPORTS) as ranks:
            found = ranks.wait(PATIENCE)
    return {
        name: {
            "wall": float(np.median(np.max([one[name]["wall"] for one in found], axis=0))),
            "coded": any(one[name]["coded"] for one in found), "probed": found[0][name]["probed"],
            "free_cores": gauge.free,
        }
        for name in found[0]
    }  # fmt: skip


def _unshaped(rank: Rank, where: str, eps: float, rounds: int) -> dict[str, Row]:
    mine = rank.array("data")[rank.index].copy()
    with gloo_ranks.joined(rank, where, patience=PATIENCE) as dist:
        port = Port(dist, probed(dist))
        jobs = {
            "plain": lambda x: (plain(port, x), Report(False)),
            "ncclz": lambda x: all_reduce(port, x, eps),
            "always": lambda x: all_reduce(port, x, eps, Choices(always=True)),
        }
        found: dict[str, Row] = {
            name: {"wall": [], "coded": False, "probed": port.link.bandwidth} for name in jobs
        }  # fmt: skip
        names = list(jobs)
        for turn in range(-1, rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                rank.meet(PATIENCE)
                port.start()
                _, report = jobs[name](mine)
                if turn >= 0:
                    found[name]["wall"].append(port.wall())
                    found[name]["coded"] |= report.coded
    return found


def probed(dist: Any, group: Any = None, count: int = 1 << 18, rounds: int = 5) -> Link:
    """The link as plain all-reduces find it: bytes a second of the quickest of a few, the same on every rank."""
    import time

    import torch

    ranks, x, times = dist.get_world_size(group), torch.zeros(count), []
    for _ in range(rounds):
        dist.barrier(group=group)
        began = time.perf_counter()
        dist.all_reduce(x, group=group)
        times.append(time.perf_counter() - began)
    least = torch.tensor([min(times)], dtype=torch.float64)
    dist.all_reduce(least, dist.ReduceOp.MAX, group=group)
    return Link(2 * (ranks - 1) / ranks * 4 * count / max(float(least), 1e-9))
