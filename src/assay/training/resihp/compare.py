"""`assay compare resihp`: your own iterations, lengths and seconds, judged by every detector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.training.interface import Floats
from assay.training.resihp import detector as detectors
from assay.training.resihp.files import Iterations, read_iterations
from assay.training.resihp.trials import AFTER, BEFORE

UNITS = {"base": "s", "token": "s", "square": "s"}
PLANTED = 1.2  # times as long


@click.command(epilog="Example:  assay compare resihp --times examples/iterations.csv")
@click.option(
    "--times", "path", required=True, type=click.Path(path_type=Path),
    help="CSV with lengths ('512 380 77') and seconds a row; with rank and step where there are several ranks.",
)  # fmt: skip
@click.option(
    "--warm-up", type=click.IntRange(20, 100_000), default=60, show_default=True,
    help="First iterations, taken for healthy: what lengths take is learnt from them.",
)  # fmt: skip
def command(path: Path, warm_up: int) -> dict[str, Any]:
    """Your own iterations: which were slow, and which only had long sequences."""
    found = read_iterations(path)
    if len(found.steps) <= warm_up:
        raise BadInput(f"{path}: {len(found.steps)} iterations; more than --warm-up {warm_up} are needed to judge any")
    return compare(found, warm_up)


def compare(given: Iterations, warm_up: int) -> dict[str, Any]:
    """Every detector at its own best threshold, found by planting slowdowns of 20 % into the healthy iterations."""
    models = [
        detectors.fit(tokens[:warm_up], squares[:warm_up], seconds[:warm_up])
        for tokens, squares, seconds in zip(given.tokens, given.squares, given.seconds, strict=True)
    ]
    predicted = np.stack([m.seconds(n, s) for m, n, s in zip(models, given.tokens, given.squares, strict=True)])
    table: list[dict[str, Any]] = []
    for name in ("resihp", *detectors.RIVALS):
        score = detectors.scores(name, given.seconds, predicted, given.tokens, warm_up)
        own = _tuned(name, given, predicted, warm_up)
        seen = detectors.alarms(score, own.threshold, own.run, warm_up)
        table.append({
            "detector": name, "alarms": len(seen), "first": given.steps[seen[0]] if seen else None,
            "planted_found": own.recall, "threshold": own.threshold, "in_a_row": own.run,
        })  # fmt: skip
    off = np.abs(predicted[:, :warm_up] / given.seconds[:, :warm_up] - 1).mean()
    return {
        "iterations": {
            "steps": len(given.steps), "ranks": len(given.seconds), "warm_up": warm_up, "off": float(off),
            "base": models[0].base, "token": models[0].token, "square": models[0].square,
        },
        "table": table, "units": UNITS, "why": _why(given, predicted, warm_up),
        "trust": f"Thresholds were sought on the first {warm_up} iterations, with slowdowns of 20 % planted there.",
    }  # fmt: skip


def _tuned(name: str, given: Iterations, predicted: Floats, warm_up: int) -> detectors.Tuned:
    """By the study's rule, on the healthy iterations alone: the first half teaches, the second is tried on."""
    half, each = warm_up // 2, BEFORE + AFTER
    rows = (given.seconds[:, :warm_up], predicted[:, :warm_up], given.tokens[:, :warm_up])
    calm = detectors.scores(name, *rows, half)
    episodes = []
    for first in range(half, warm_up - each + 1):
        take = np.r_[0:half, first : first + each]
        seconds, should, tokens = (row[:, take].copy() for row in rows)
        seconds[0, half + BEFORE :] *= PLANTED
        episodes.append(detectors.scores(name, seconds, should, tokens, half))
    return detectors.tuned(name, calm, episodes, half + BEFORE, half)


def _why(given: Iterations, predicted: Floats, warm_up: int) -> str:
    """Which rank, since when, how slow: by the detector as it runs online, at its default of four deviations."""
    told = []
    for rank, (seconds, should) in enumerate(zip(given.seconds, predicted, strict=True)):
        score = detectors.residual(seconds, should, warm_up)
        if seen := detectors.alarms(score, detectors.K, detectors.RUN, warm_up):
            since = seen[0] - detectors.RUN + 1
            usual = float(np.median(seconds[:warm_up] / should[:warm_up]))
            times = float(np.median(seconds[since:] / should[since:])) / usual
            told.append(f"rank {rank} takes {times:.2f} times what its sequences should take, from step "
                        f"{given.steps[since]} on")  # fmt: skip
    if told:
        return "; ".join(told) + "."
    longest = float(given.seconds[:, warm_up:].max() / np.median(given.seconds[:, :warm_up]))
    return f"Nobody is slow: the longest iteration, {longest:.2f} times the usual one, is what its sequences take."
