"""What the ranks of a comparison do: the same sums by every method over the same shaped links, one after another."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim import gloo_ranks
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.ncclz import fields, rivals
from assay.training.ncclz.collectives import Choices, all_reduce_levels, plain
from assay.training.ncclz.links import Link, Port

PATIENCE = 240.0
# Once for all ranks: torch.optim imports the second, compiled code is loaded by the last.
IMPORTS = ("torch", "torch._dynamo", "assay.training.ncclz.ddp_job", "assay.training.ncclz.loaded")
WARM = 1 << 15  # numbers of the first sum, which loads what is compiled
Row = dict[str, Any]


@dataclass(frozen=True)
class Race:
    """One field on one kind of link: a generated one, or where `kind` is empty what the caller put there."""

    kind: str
    eps: float
    link: Link
    methods: tuple[str, ...]
    count: int
    seed: int = 0


def raced(races: Sequence[Race], ranks: int, data: NDArray[np.float32] | None = None) -> list[dict[str, Row]]:
    """Seconds, bytes and the worst error of every method in every race.

    `seconds` are the ring's own (processor time and modelled wire), `wall` the clock's, of the slowest rank.
    """
    room = np.zeros((ranks, max(race.count for race in races)), np.float32) if data is None else data
    found = on_ranks(ranks, _races, list(races), arrays={"data": room})
    return [
        {name: _row(race, [one[k][name] for one in found]) for name in race.methods} for k, race in enumerate(races)
    ]


def on_ranks(ranks: int, job: Callable[..., Any], *arguments: Any, arrays: Any = None) -> list[Any]:
    """What `job(rank, folder, *arguments)` answers on each of them."""
    with scratch() as where, Ranks(ranks, job, str(where), *arguments, arrays=arrays, imports=IMPORTS) as running:
        return running.wait(PATIENCE)


def _row(race: Race, found: Sequence[Row]) -> Row:
    report, n = found[0]["report"], len(found)
    moved = (n - 1) * 4 * race.count * 2
    return {key: max(one[key] for one in found) for key in ("seconds", "wall", "computed", "error")} | {
        "ratio": moved / max(1, sum(one["sent"] for one in found)), "bound": race.eps * n,
        "same": len({one["digest"] for one in found}) == 1, "coded": report.coded,
        "predict": report.predict, "raw": report.frames[0], "fixed": report.frames[1], "huffman": report.frames[2],
        "outliers": report.outliers,
    }  # fmt: skip


def _races(rank: Rank, where: str, races: Sequence[Race]) -> list[dict[str, Row]]:
    with gloo_ranks.joined(rank, where, patience=PATIENCE) as dist:
        return [_race(rank, dist, race) for race in races]


def _race(rank: Rank, dist: Any, race: Race) -> dict[str, Row]:
    data = rank.array("data")[:, : race.count]
    if race.kind:
        data[rank.index] = _field(race.kind, race.count, race.seed, rank.index)
    rank.meet(PATIENCE)
    mine, known = data[rank.index].copy(), data.astype(np.float64)
    with np.errstate(invalid="ignore"):
        exact = known.sum(axis=0)
    wild = np.flatnonzero(~np.isfinite(exact))
    found = {}
    for name in race.methods:
        port = Port(dist, race.link)
        for x in (mine[:WARM], mine):
            rank.meet(PATIENCE)
            port.start()
            out, report = rivals.METHODS[name](port, x, race.eps)
            seconds, wall = port.now(), port.wall()
        with np.errstate(invalid="ignore"):
            wrong = out - exact
            np.abs(wrong, out=wrong)
            wrong[wild] = 0.0
        found[name] = {
            "seconds": seconds, "wall": wall, "sent": port.sent, "computed": port.spent, "report": report,
            "digest": zlib.crc32(out.tobytes()), "error": float(wrong.max(initial=0.0)),
        }  # fmt: skip
    rank.meet(PATIENCE)  # before anyone writes the next field
    return found


@lru_cache(maxsize=1)
def _field(kind: str, count: int, seed: int, rank: int) -> NDArray[np.float32]:
    """Races with the same field follow one another."""
    return fields.field(kind, count, seed, rank)


# ------------------------------------------------------------------------------------------------------ gradients


def gradients(ranks: int, width: int, bits: int, on: Link, seeds: Sequence[int]) -> list[dict[str, Row]]:
    """Real gradients, summed plainly and by QSGD's levels through NCCLZ."""
    found = on_ranks(ranks, _gradients, width, bits, on, list(seeds))
    keys = "seconds", "wall", "sent", "error", "bytes"
    return [
        {name: {key: max(one[k][name][key] for one in found) for key in keys} for name in found[0][k]}
        for k in range(len(seeds))
    ]


def _gradients(rank: Rank, where: str, width: int, bits: int, on: Link, seeds: Sequence[int]) -> list[dict[str, Row]]:
    with gloo_ranks.joined(rank, where, patience=PATIENCE) as dist:
        return [_gradient(rank, Port(dist, on), width, bits, seed) for seed in seeds]


def _gradient(rank: Rank, port: Port, width: int, bits: int, seed: int) -> dict[str, Row]:
    whole, key = fields.gradient(seed, rank.index, width), 2 * (rank.index + 64 * seed) + 1
    jobs = {
        "plain": lambda x: plain(port, x),
        "qsgd": lambda x: all_reduce_levels(port, x, bits, key, Choices(always=True))[0],
    }
    found: dict[str, Row] = {}
    exact = whole
    for name, job in jobs.items():
        for x in (whole[:WARM], whole):
            rank.meet(PATIENCE)
            port.start()
            out = job(x)
            found[name] = {"seconds": port.now(), "wall": port.wall(), "sent": port.sent, "bytes": x.nbytes}
        exact = out if name == "plain" else exact
        found[name]["error"] = float(np.linalg.norm(out - exact) / np.linalg.norm(exact))
    return found
