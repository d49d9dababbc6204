"""How far the step-time formulas are off an H200: writes `src/assay/sim/trust.toml` from the stored measurements.

    python benchmarks/cost_error.py

The serving runs that `benchmarks/h200_engine.py` measured are simulated with each formula's step times. Their errors
stand beside every answer that such a formula gave.
"""

from __future__ import annotations

import polars as pl

from assay.record.store import write_whole
from assay.serving import dooly
from assay.sim import trust

FORMULAS = {"roofline": "roofline", "measured": "step grid"}


def errors() -> dict[str, trust.Trust]:
    """By formula: the means over the runs of each run's mean error a request."""
    stored = dooly.stored_runs()
    assert stored is not None, "no measurement of an H200 is stored"
    served = stored.filter(pl.col("experiment") == "serving")
    found = {}
    for name, method in FORMULAS.items():
        rows = served.filter(pl.col("method") == method)
        ttft, tpot, step = (float(rows[f"{column}_error"].mean()) for column in ("ttft", "tpot", "step"))  # type: ignore[arg-type]
        models = tuple(sorted(set(rows["model"])))
        found[name] = trust.Trust("h200", models, len(rows), int(rows["count"].sum()), ttft, tpot, step)
    return found


if __name__ == "__main__":
    write_whole(trust.FILE, trust.as_toml(errors()).encode())
    print(trust.FILE.read_text())
