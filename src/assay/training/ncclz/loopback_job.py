"""gloo on this machine as it is: its own all-reduce and NCCLZ left to choose, in turns of a millisecond."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from assay.record.timing import Gauge
from assay.sim import gloo_ranks
from assay.sim.ranks import Rank
from assay.training.ncclz import fields, paired
from assay.training.ncclz.collectives import Choices, all_reduce
from assay.training.ncclz.links import Port, probed
from assay.training.ncclz.race_job import PATIENCE, Row, on_ranks

CODED = 6  # turns of a sum that is coded all the same
AGAIN = "gloo again"  # beside itself: what the comparison finds where there is nothing to find


@dataclass
class Timed:
    """A size's turns: seconds of the slower rank, [fours, 4], and whether anything was coded."""

    seconds: NDArray[np.float64]
    coded: bool = False
    always: list[float] = field(default_factory=list)  # seconds of sums that were made to code


def beside_gloo(
    sizes: Sequence[tuple[int, int]], eps: float, seeds: Sequence[int], names: Sequence[str] = ("ncclz",)
) -> dict[str, Row]:
    """How much longer a sum of `count` numbers takes than gloo's own on the very same memory, for (count, fours).

    Ranks start anew for every seed; turns of all of them count alike.
    """
    found: dict[str, Row] = {}
    for name in names:
        with Gauge() as gauge:
            starts = [on_ranks(2, _turns, list(sizes), eps, name, seed) for seed in seeds]
        for at, (count, _) in enumerate(sizes):
            ran = [[rank[at] for rank, _ in ranks] for ranks in starts]
            seconds = np.concatenate([np.max([one.seconds for one in pair], axis=0) for pair in ran])
            told = {"bytes": 4 * count, "probed": starts[0][0][1], "free_cores": gauge.free}
            found |= _rows(name, seconds, [one for pair in ran for one in pair], told)
    return found


def _rows(name: str, seconds: NDArray[np.float64], each: Sequence[Timed], told: Row) -> dict[str, Row]:
    """A row for each way: gloo, who is compared with it, and what coding would take."""
    new, old = paired.paired(seconds)
    found, sizes = paired.longer(seconds), told["bytes"]
    ours = {
        "method": name, "wall": float(np.median(new)), "longer": found.value, "low": found.low, "high": found.high,
        "more": paired.more(seconds), "turns": seconds.size, "coded": any(one.coded for one in each),
    }  # fmt: skip
    rows = {f"{sizes} {name}": told | ours}
    if name != AGAIN:
        rows[f"{sizes} plain"] = told | {"method": "plain", "wall": float(np.median(old)), "coded": False}
        always = np.median([one.always for one in each])
        rows[f"{sizes} always"] = told | {"method": "always", "wall": float(always), "coded": True}
    return rows


def _turns(
    rank: Rank, where: str, sizes: Sequence[tuple[int, int]], eps: float, name: str, seed: int
) -> tuple[list[Timed], float]:
    able = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(able) >= rank.size:
        os.sched_setaffinity(0, {able[rank.index]})  # as launchers place ranks; who wanders waits for another's turn
    with gloo_ranks.joined(rank, where, patience=PATIENCE) as dist:
        port = Port(dist, probed(dist))
        return [_size(rank, port, count, fours, eps, name, seed) for count, fours in sizes], port.link.bandwidth


def _size(rank: Rank, port: Port, count: int, fours: int, eps: float, name: str, seed: int) -> Timed:
    """All turns of a size. Sums are in place, and made anew before every four of them."""
    import torch

    mine = fields.field("smooth", count, seed, rank.index)
    x = mine.copy()
    tensor, found = torch.from_numpy(x), Timed(np.empty((fours, paired.FOUR)))

    def gloo() -> bool:
        port.dist.all_reduce(tensor)
        return False

    def ncclz() -> bool:
        return all_reduce(port, x, eps, out=x)[1].coded

    ways: dict[bool, Callable[[], bool]] = {False: gloo, True: gloo if name == AGAIN else ncclz}
    for four in range(-2, fours):
        x[:] = mine
        rank.meet(PATIENCE)
        for at, ours in enumerate(paired.order(four)):
            began = time.perf_counter()
            coded = ways[ours]()
            if four >= 0:
                found.seconds[four, at] = time.perf_counter() - began
                found.coded |= coded
    if name != AGAIN:
        found.always = [_coding(rank, port, mine, eps) for _ in range(CODED)]
    return found


def _coding(rank: Rank, port: Port, mine: NDArray[np.float32], eps: float) -> float:
    """After all turns, for it would leave the caches to whoever follows."""
    rank.meet(PATIENCE)
    began = time.perf_counter()
    all_reduce(port, mine, eps, Choices(always=True))
    return time.perf_counter() - began
