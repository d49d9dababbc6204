"""`assay compare kernels --numbers N`: a stretch of even numbers checked by tiles of bits and by a table of bytes."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from assay.kernels.engine import asking, machine, runner
from assay.kernels.goldbach import per_number, tables
from assay.kernels.goldbach.checking import check
from assay.kernels.interface import Cost, Implementation, Kernel, Match

KERNEL = Kernel(
    "goldbach", lambda p: per_number(*p), lambda p, out, right: Match(out == right),
    lambda p: Cost(bytes=(p[1] - p[0]) / 16),
)  # fmt: skip


@click.command(epilog="Example:  assay compare kernels --numbers 1000000000000 --width 10000000")
@click.option(
    "--numbers", "begin", required=True, type=click.IntRange(2 * tables.BACK, 10**15), help="Where it begins."
)
@click.option(
    "--width", type=click.IntRange(128, 10**10), default=10_000_000, show_default=True, help="How far it goes."
)
@asking.options
def command(begin: int, width: int, rounds: int, where: str, plot: Any) -> dict[str, Any]:
    """Every even number of a stretch as a sum of two primes: by tiles of bits, and by a table of bytes."""
    first = begin // 128 * 128
    problem = (first, first + width // 2 * 2)
    ways = [
        Implementation("goldbach", "numba", lambda p: p, lambda p: check(p[0], p[1], 1).counts),
        Implementation("byte table", "numpy", lambda p: p, lambda p: per_number(*p)),
    ]
    here = machine.here()
    outcome = runner.measure(KERNEL, problem, ways, here, rounds)
    counts = check(*problem).counts
    facts = {
        "from": first,
        "to": problem[1],
        "even_numbers": int(np.sum(list(counts.values()))),
        "largest_least_prime": max(counts),
    }
    return asking.answer(outcome, here, KERNEL.cost(problem), facts, "goldbach", where, plot)
