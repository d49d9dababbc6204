"""A user's CSV of iterations: the lengths of the sequences, what they took, and, if there are several, of which rank.

    step,rank,lengths,seconds
    0,0,512 380 77,0.412
    0,1,1024 96,0.431

Lengths of one iteration stand in one cell, divided by spaces, semicolons, bars or plus signs. Without `rank` there is
one; without `step` rows are in order. The file of lengths that `assay watch` takes has no seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from assay.record.errors import BadInput
from assay.training.interface import Floats
from assay.workloads import csv_table

STEPS, RANKS = ("step", "iteration", "iter"), ("rank", "replica", "worker")
LENGTHS, SECONDS = ("lengths", "seq_lens", "seqlens", "sequences"), ("seconds", "time", "duration", "step_time")
MOST_RANKS = 4096


@dataclass(frozen=True)
class Iterations:
    """Of every rank and step: tokens, squared lengths, and seconds (nothing where the file has none)."""

    steps: tuple[int, ...]
    tokens: Floats  # [ranks, steps]
    squares: Floats
    seconds: Floats


def read_iterations(path: Path, timed: bool = True) -> Iterations:
    """The file, ranks and steps in order.

    Raises:
        BadInput: the line and what is wrong with it, or that a rank lacks a step.
    """
    table = csv_table.read(path, {})
    step, rank = csv_table.named(table, STEPS), csv_table.named(table, RANKS)
    cells, took = csv_table.named(table, LENGTHS), csv_table.named(table, SECONDS)
    if cells is None or (timed and took is None) or (not timed and (step is None or rank is None)):
        wanted = "lengths and seconds" if timed else "step, rank and lengths"
        raise BadInput(f"{path}: line 1 must name {wanted}; it names {', '.join(table.columns[:-1])}")
    if not len(table):
        raise BadInput(f"{path}: no rows below the header")
    found: dict[tuple[int, int], tuple[float, float, float]] = {}
    counted: dict[int, int] = {}
    for row in table.iter_rows(named=True):
        where = f"{path}, line {row[csv_table.LINE]}"
        who = _whole(row[rank], where, "rank", MOST_RANKS) if rank else 0
        at = _whole(row[step], where, "step", 1 << 53) if step else counted.get(who, 0)
        counted[who] = counted.get(who, 0) + 1
        if (who, at) in found:
            raise BadInput(f"{where}: step {at} of rank {who} is there twice")
        lengths = _lengths(row[cells], where)
        found[who, at] = (sum(lengths), sum(one * one for one in lengths), _seconds(row, took, where) if timed else 0.0)
    return _laid_out(path, found, whole=timed)


def _laid_out(path: Path, found: dict[tuple[int, int], tuple[float, float, float]], whole: bool) -> Iterations:
    """A file that a job still writes (not `whole`) may lack steps of some ranks: those are left out."""
    ranks, steps = sorted({who for who, _ in found}), sorted({at for _, at in found})
    if not whole:
        steps = [at for at in steps if all((who, at) in found for who in ranks)]
    if ranks != list(range(len(ranks))):
        raise BadInput(f"{path}: ranks should be 0 to {len(ranks) - 1}; there are {', '.join(map(str, ranks[:5]))}")
    for who in ranks:
        for at in steps:
            if (who, at) not in found:
                raise BadInput(f"{path}: rank {who} has no row for step {at}; every rank needs every step")
    table = np.array([[found[who, at] for at in steps] for who in ranks]).reshape(len(ranks), len(steps), 3)
    return Iterations(tuple(steps), table[..., 0], table[..., 1], table[..., 2])


def _whole(text: str, where: str, name: str, most: int) -> int:
    if not re.fullmatch(r"\d{1,18}", text) or int(text) >= most:
        raise BadInput(f"{where}: {name} should be a whole number below {most:,}, not '{text[:40]}'")
    return int(text)


def _lengths(text: str, where: str) -> list[float]:
    words = re.split(r"[\s;|+]+", text.strip())
    if not text.strip() or not all(re.fullmatch(r"\d{1,9}(\.0*)?", word) for word in words):
        raise BadInput(f"{where}: lengths should be numbers of tokens such as '512 380 77', not '{text[:40]}'")
    found = [float(word) for word in words]
    if min(found) < 1:
        raise BadInput(f"{where}: a sequence of no tokens")
    return found


def _seconds(row: dict[str, str], took: str | None, where: str) -> float:
    value = pl.Series([row[str(took)]]).cast(pl.Float64, strict=False)[0]
    if value is None or not 0 < value < 1e9:
        raise BadInput(f"{where}: {took} should be a number above 0, not '{row[str(took)][:40]}'")
    return float(value)
