"""Apache Otava, asv's step detection and Otava's labelled patterns, asked line by line by change_points.py.

A line `{"patterns": {"length", "sigma", "seed"}}` gives the labelled patterns; `{"detect": NAME, "dial": X, "series":
[[…], …]}` gives the positions that a method finds in each series, and the seconds it took.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from typing import Any

from asv.step_detect import detect_steps  # type: ignore[import-not-found]
from otava.analysis import compute_change_points  # type: ignore[import-not-found]
from otava_test_data import generators  # type: ignore[import-not-found]
from otava_test_data.generators import advanced  # type: ignore[import-not-found]

LEVELS = ("step_function", "regression_fix", "multiple_changes")
SILENT = ("noise_normal", "noise_uniform", "outlier", "multiple_outliers", "banding")


def patterns(length: int, sigma: float, seed: int) -> list[dict[str, Any]]:
    """One series of each pattern whose labels are changes of level, and of each that has none."""
    made = []
    for name in (*LEVELS, *SILENT):
        make = getattr(generators, name, None) or getattr(advanced, name)
        options: dict[str, Any] = {} if name in ("noise_normal", "noise_uniform") else {"sigma": sigma}
        found = make(length, seed=seed, **options)
        truth = [int(point.index) for point in found.change_points] if name in LEVELS else []
        made.append({"name": name, "values": [float(value) for value in found.data], "truth": truth})
    return made


def otava(values: list[float], dial: float) -> list[int]:
    points, _ = compute_change_points(values, max_pvalue=dial, min_magnitude=0.03)
    return [int(point.index) for point in points]


def asv(values: list[float], dial: float) -> list[int]:
    steps = detect_steps(values)
    return [
        int(after[0]) for before, after in pairwise(steps)
        if abs(after[2] - before[2]) > max(dial * before[2], after[4], before[4])
    ]  # fmt: skip


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "patterns" in asked:
            answer: Any = patterns(**asked["patterns"])
        else:
            detect = {"otava": otava, "asv": asv}[asked["detect"]]
            begun = time.perf_counter()
            found = [detect(values, asked["dial"]) for values in asked["series"]]
            answer = {"found": found, "seconds": time.perf_counter() - begun}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
