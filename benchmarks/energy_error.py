"""How far the roofline's joules are off an H200: writes `src/assay/sim/energy_scale.toml` from stored measurements.

    python benchmarks/energy_error.py

`benchmarks/h200_power.py` timed passes through a few layers and read the power meanwhile. The roofline prices the FLOPs
and bytes of each pass; idling is paid for as long as the pass really took, so an error of the time is not one of the
power. The factor is found on all families of attention, its error on each by the factor that the others give.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record.store import write_whole
from assay.serving.powercap import power_profile
from assay.sim.energy_scale import FILE, EnergyScale, as_toml
from assay.sim.layouts import read_layout
from assay.sim.roofline import COMPUTE_EFFICIENCY, LINK_EFFICIENCY, MEMORY_EFFICIENCY, Rates

Floats = NDArray[np.float64]


def scale() -> EnergyScale:
    """The factor over all passes at full clock and without a cap, and its errors."""
    table = power_profile.read()
    assert table is not None, "no measurement of an H200 is stored"
    idle = float(table.filter(pl.col("family") == "idle")["watts"][0])
    rows = table.filter(pl.col("phase").is_in(["decode", "prefill"]) & (pl.col("lock") == 0) & (pl.col("cap") == 0))
    cut = read_layout("h200:qwen3-8b")  # only its device and its dtype matter
    rates = Rates.of(cut, COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY, LINK_EFFICIENCY, 1.0)
    step, watts, flops, nbytes = (rows[name].to_numpy() for name in ("step", "watts", "flops", "bytes"))
    above = rates.matrices(flops, nbytes, 0.0).joules / step
    families, off = rows["family"].to_numpy(), np.empty(len(rows))
    for family in np.unique(families):
        here = families == family
        factor = _factor(above[~here], watts[~here], idle)
        off[here] = np.minimum(idle + factor * above[here], cut.device.tdp_watts) / watts[here] - 1
    unscaled = np.abs((cut.device.idle_watts + above) / watts - 1).mean()
    errors = float(np.abs(off).mean()), float(np.abs(off).max()), float(unscaled)
    return EnergyScale("h200", len(rows), idle, _factor(above, watts, idle), *errors)


def _factor(above: Floats, watts: Floats, idle: float) -> float:
    """The factor on the watts above idling that leaves the least squares of relative errors."""
    return float((above / watts) @ ((watts - idle) / watts) / ((above / watts) @ (above / watts)))


if __name__ == "__main__":
    write_whole(FILE, as_toml(scale()).encode())
    print(FILE.read_text())
