"""What a GPU was measured to draw in decode and prefill, stored with the package, and the model fitted to it.

The table comes from `benchmarks/h200_power.py`: a row per attention family, phase, batch and context, with the time of
a pass through a few layers, watts, clocks, and how often the firmware held the clock down. Samples it throttled for
heat or supply were left out of the means by the script; points that lost many are left out here.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import least_squares

from assay.sim.hardware import device
from assay.sim.mixer_shapes import FAMILIES, Shape
from assay.sim.power import Fit, GpuPower, Load, fit

PROFILE = Path(__file__).with_name("h200.csv")
SWEEP = Path(__file__).with_name("sweep.csv")
MOST_INVALID = 0.2  # share of throttled samples above which a point says nothing about the setting
Array = NDArray[np.float64]

# An H200 before anything was measured: idle and limit as in `hardware.toml`, the rest an engineer's guess.
ASSUMED = GpuPower(idle=75.0, hbm=150.0, waiting=120.0, sm=355.0, limit=700.0)


def read(path: Path = PROFILE) -> pl.DataFrame | None:
    """The stored rows with the throttled points taken out, or None where there is no profile.

    >>> read(Path("/nowhere.csv")) is None
    True
    """
    if not path.exists():
        return None
    table = pl.read_csv(path, infer_schema_length=None, null_values=["nan"])
    empty = [name for name, kind in table.schema.items() if kind == pl.String and name not in ("family", "phase")]
    table = table.with_columns(pl.col(empty).cast(pl.Float64))  # a column of nothing but nan is read as text
    return table.filter(pl.col("watts").is_not_null() & (pl.col("invalid_share").fill_null(0.0) <= MOST_INVALID))


def machine(path: Path = PROFILE) -> dict[str, Any]:
    """On what the rows were measured; empty where that is not stored."""
    notes = path.with_suffix(".json")
    return dict(json.loads(notes.read_text())) if notes.exists() else {}


@dataclass(frozen=True)
class Rates:
    """What matrices and token mixers attain: bytes/s and FLOP/s, and seconds of a layer that are neither."""

    weights: tuple[float, float]  # bytes/s and FLOP/s of the matrices
    mixer: dict[str, tuple[float, float]]  # of each family's attention or state
    fixed: float
    error_mean: float = math.nan  # of fitted times, as a share; nan: assumed
    error_max: float = math.nan

    def load(self, shape: Shape, family: str, phase: str, batch: int, context: int) -> Load:
        """One layer's step. Matrices and mixer follow one another, so what one hides the other does not."""
        (wb, wf), (mb, mf) = self.weights, self.mixer[family]
        weights, (flops, nbytes) = shape.weight_elements(family), shape.work(family, phase, batch, context)
        tokens = batch if phase == "decode" else batch * context
        own_flops, own_bytes = 2.0 * weights * tokens, 2.0 * weights
        mem, compute = own_bytes / wb + (nbytes - own_bytes) / mb, own_flops / wf + (flops - own_flops) / mf
        seconds = max(own_bytes / wb, own_flops / wf) + max((nbytes - own_bytes) / mb, (flops - own_flops) / mf)
        return Load(mem, compute, seconds - max(mem, compute) + self.fixed)


@lru_cache(maxsize=1)
def assumed_rates() -> Rates:
    """A roofline's guess for an H200."""
    h200 = device("h200")
    pair = 0.85 * h200.mem_bw, 0.70 * h200.flops("bf16")
    return Rates(pair, dict.fromkeys(FAMILIES, pair), 15e-6)


def fit_times(table: pl.DataFrame, shape: Shape) -> Rates:
    """Attained rates by least squares on the logarithm of the layer times, all families at once.

    Only rows at full clock count: the rates are those of the clock that the power model scales from.
    """
    rows = [row for row in table.to_dicts() if row["family"] in FAMILIES and not row["lock"] and not row["cap"]]
    families = [family for family in FAMILIES if any(row["family"] == family for row in rows)]
    seconds = np.array([row["step"] / row["layers"] for row in rows])
    guess = assumed_rates()
    start = np.log([*guess.weights, *(rate for family in families for rate in guess.mixer[family]), guess.fixed])

    def rates(values: Array) -> Rates:
        numbers = np.exp(values)
        mixer = {family: (numbers[2 + 2 * i], numbers[3 + 2 * i]) for i, family in enumerate(families)}
        return Rates((numbers[0], numbers[1]), guess.mixer | mixer, numbers[-1])

    def residual(values: Array) -> Array:
        now = rates(values)
        loads = (now.load(shape, row["family"], row["phase"], row["batch"], row["context"]) for row in rows)
        found = np.array([max(load.mem, load.compute) + load.fixed for load in loads])
        # A faint pull to the guess keeps a rate that no point depends on from wandering off.
        return np.concatenate([np.log(found / seconds), 0.02 * (values - start)])

    solved = least_squares(residual, start)
    error = np.abs(np.expm1(residual(solved.x)[: len(rows)]))
    best = rates(solved.x)
    return Rates(best.weights, best.mixer, best.fixed, float(error.mean()), float(error.max()))


def fit_power(table: pl.DataFrame, rates: Rates, shape: Shape, facts: dict[str, Any]) -> Fit:
    """The power model's watts from the same rows; idle power from the idle corner."""
    rows = [row for row in table.to_dicts() if row["family"] in FAMILIES]
    idle = [row["watts"] for row in table.to_dicts() if row["family"] == "idle"]
    loads = [rates.load(shape, row["family"], row["phase"], row["batch"], row["context"]) for row in rows]
    base = GpuPower(
        idle[0] if idle else ASSUMED.idle, 0.0, 0.0, 0.0, float(facts.get("limit", ASSUMED.limit)),
        f_max=float(facts.get("sm_clock_max", ASSUMED.f_max)),
    )  # fmt: skip
    stacked = Load(*(np.array([getattr(load, name) for load in loads]) for name in ("mem", "compute", "fixed")))
    seconds = np.array([row["step"] / row["layers"] for row in rows])
    return fit(
        base, stacked, np.array([row["sm_clock"] for row in rows]), seconds, np.array([r["watts"] for r in rows])
    )


@lru_cache(maxsize=1)
def h200() -> tuple[GpuPower, Rates, Fit | None]:
    """The H200's power model and rates: fitted where a profile is stored, else assumed."""
    table = read()
    if table is None:
        return ASSUMED, assumed_rates(), None
    shape = Shape()
    rates = fit_times(table, shape)
    found = fit_power(table, rates, shape, machine())
    return found.gpu, rates, found
