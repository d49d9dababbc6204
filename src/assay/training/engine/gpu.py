"""One GPU as it was measured: what it attains, fitted to operations and a few steps, and steps that were held out.

`benchmarks/h200_steps.py` measures on the GPU: products in the three forms of a training step, attention both ways,
what only moves bytes, and whole steps (forward, backward, AdamW) of decoders. :func:`fit` turns the operations, and the
steps to calibrate with, into an `Efficiency`; :func:`judged` predicts the other steps with the engine's own `simulate`.
`python -m assay.training.engine.gpu` does both and writes `h200.toml`, which is what clusters of such devices use.

>>> found = known("h200")
>>> found is not None and found.worst < 0.2
True
>>> known("a100") is None
True
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from assay.sim.models import Model
from assay.training.engine.cluster import Cluster, Efficiency, read
from assay.training.engine.step import simulate
from assay.training.interface import Floats, Job, Layout, Plan

FOLDER = Path(__file__).parent
FORMS = ("forward", "inputs", "weights")
# Bytes of an element, forward and backward.
BYTES = {"add_norm": (8, 8), "gate": (6, 10), "rotate": (4, 4), "cross_entropy": (4, 4),
         "adamw": (34,)}  # fmt: skip
ROWS = 1024  # of products that count fully; skinnier ones are rare in a step


def measurements(name: str = "h200") -> dict[str, Any]:
    """What was measured, as the script wrote it; `about` says when, and of what."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def seconds(step: dict[str, Any]) -> float:
    """The median of a measured step, captured as a graph."""
    return float(np.median(step["graph"]))


def predicted(cluster: Cluster, step: dict[str, Any]) -> tuple[float, float]:
    """Seconds and bytes that the engine says of a measured step."""
    shape = Model(
        step["name"], step["hidden"], step["vocab"], False, step["layers"], 0, 0, step["layers"], 0, step["heads"],
        step["kv_heads"], step["head_dim"], step["ffn"],
    )  # fmt: skip
    job = Job(step["mbs"] * step["microbatches"], step["seq"])
    outcome = simulate(shape, cluster, Plan(Layout(), mbs=step["mbs"], zero=0), job)
    return outcome.step, float(outcome.memory.max())


def fit(found: dict[str, Any], name: str = "h200") -> Efficiency:
    """What the device attains: by its operations, then products by the steps that are there to calibrate with.

    Products alone, over and over, are a little faster than between other work; that one factor is fitted to the
    calibration's steps.
    """
    at = _attention(found["attention"], Efficiency(memory=_memory(found["streams"], name)), name)
    at = _products(found["products"], at, name)
    steps = [step for step in found["steps"] if step["kind"] == "calibration"]
    low, high = 0.5, 2.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        cluster = replace(read(f"1x{name}"), efficiency=replace(at, matrix=at.matrix * middle))
        off = np.mean([np.log(predicted(cluster, step)[0] / seconds(step)) for step in steps])
        low, high = (middle, high) if off > 0 else (low, middle)
    return replace(at, matrix=at.matrix * high)


def _memory(streams: Sequence[dict[str, Any]], name: str) -> float:
    """The share of the memory's bandwidth that operations attain in the mean, each of them alike."""
    rates = [each * one["rows"] * one["width"] / one[way] for one in streams
             for each, way in zip(BYTES.get(one["op"], ()), ("forward", "backward"), strict=False)]  # fmt: skip
    return float(np.exp(np.log(rates).mean())) / read(f"1x{name}").device.mem_bw


def _least(residuals: Any, start: Sequence[float]) -> Floats:
    from scipy.optimize import least_squares

    return np.asarray(least_squares(residuals, start).x)


def _attention(seen: Sequence[dict[str, Any]], at: Efficiency, name: str) -> Efficiency:
    on = read(f"1x{name}").device
    tokens, width = (np.array([one[key] for one in seen], float) for key in ("tokens", "head_dim"))
    count = np.array([one["sequences"] * one["heads"] for one in seen])
    forward, backward = (np.array([one[way] for one in seen]) for way in ("forward", "backward"))

    def residuals(x: Floats) -> Floats:
        took = 4 * count * tokens * (tokens / 2 + x[1]) * width / (on.flops("bf16") * x[0] * (width / 128) ** x[2])
        return np.asarray(
            np.log(np.concatenate([(took + on.launch) / forward, (2.5 / x[3] * took + on.launch) / backward]))
        )

    share, short, narrow, again = _least(residuals, (0.3, 200.0, 0.2, 1.0))
    return replace(at, attention=float(share), short=float(short), narrow=float(narrow), backward=float(again))


def _products(seen: Sequence[dict[str, Any]], at: Efficiency, name: str) -> Efficiency:
    on = read(f"1x{name}").device
    m, n, k = (np.array([one[key] for one in seen], float) for key in "mnk")
    took = {form: np.array([one[form] for one in seen]) for form in FORMS}
    weight = np.where(m >= ROWS, 1.0, 0.3)
    moving = 2 * (m * n + n * k + m * k) / (on.mem_bw * at.memory)
    sums = 8 * n * k / (on.mem_bw * at.memory)

    def residuals(x: Floats) -> Floats:
        sides = (m / (m + x[1])) * (n / (n + x[1])) * (k / (k + x[1]))
        one = np.maximum(2 * m * n * k / (on.flops("bf16") * x[0] * sides), moving) + on.launch
        return np.concatenate([weight * np.log((one + sums * (form == "weights")) / took[form]) for form in FORMS])

    share, half = _least(residuals, (0.75, 90.0))
    return replace(at, matrix=float(share), half=float(half))


@dataclass(frozen=True)
class Known:
    """What a measured device attains, and how far steps that it was not fitted to were off."""

    efficiency: Efficiency
    steps: dict[str, float]  # predicted over measured seconds, less one
    memory: dict[str, float]  # the same of the most bytes held
    about: str

    @property
    def worst(self) -> float:
        """The largest error of a step's seconds, as a share."""
        return max(map(abs, self.steps.values()))

    @property
    def mean(self) -> float:
        """The mean error."""
        return float(np.mean(np.abs(list(self.steps.values()))))

    @property
    def sentence(self) -> str:
        """For whoever reads an answer that rests on it."""
        return (
            f"What a device attains was measured on one ({self.about}): steps of {len(self.steps)} decoders that it "
            f"was not fitted to were off by {self.mean:.0%} in the mean and {self.worst:.0%} at most."
        ).replace("%", " %")


def judged(found: dict[str, Any], at: Efficiency, name: str = "h200") -> Known:
    """The steps that were held out, predicted."""
    cluster = replace(read(f"1x{name}"), efficiency=at)
    held = [step for step in found["steps"] if step["kind"] == "held out"]
    told = {step["name"]: predicted(cluster, step) for step in held}
    return Known(
        at, {step["name"]: told[step["name"]][0] / seconds(step) - 1 for step in held},
        {step["name"]: told[step["name"]][1] / step["memory"] - 1 for step in held}, found["about"],
    )  # fmt: skip


@cache
def known(name: str) -> Known | None:
    """Of a device that was measured."""
    path = FOLDER / f"{name}.toml"
    if not path.exists():
        return None
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return Known(Efficiency(**table["efficiency"]), table["steps"], table["memory"], table["about"])


def as_toml(found: Known) -> str:
    """The file's content."""
    lines = ["# Written by python -m assay.training.engine.gpu: fitted to the measurements beside it.", ""]
    lines.append(f"about = {json.dumps(found.about)}")
    tables = {"efficiency": asdict(found.efficiency), "steps": found.steps, "memory": found.memory}
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{json.dumps(key)} = {value:.4f}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fit anew, and say how far off the fit is."""
    found = measurements()
    told = judged(found, fit(found))
    (FOLDER / "h200.toml").write_text(as_toml(told), encoding="utf-8")
    print(as_toml(told))


if __name__ == "__main__":
    main()
