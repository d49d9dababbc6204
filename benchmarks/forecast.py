"""Forecasts from parts beside MSTL, Prophet and statsforecast, on months of real cloud benchmarks that were held out.

    python benchmarks/forecast.py [--folds 6] [--machines 0,1,2] [--step 2h] [--without prophet,auto-arima] [--json OUT]

Every method sees the same series up to the same origin and forecasts the 30 days behind it; origins are 30 days apart.
Nothing is tuned on what is forecast. Prophet runs in an environment of its own (`benchmarks/envs/prophet.txt`).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from assay.observe.series import backtest, baselines, guides
from assay.observe.series.trials import (
    BENCHMARKS,
    MONTH,
    automatic_forecast,
    guided_forecast,
    machine_series,
)
from assay.record import intervals
from assay.workloads.long_series import Grid
from routers import HERE, UnavailableError, environment

PATIENCE = 3600.0


def prophet(trains: list[Grid], horizon: int) -> list[list[float]]:
    """Prophet's forecasts, all in one process of its own."""
    python = environment("prophet") / "python"
    tasks = [
        {
            "times": grid.times.tolist(),
            "values": [None if math.isnan(v) else v for v in grid.values.tolist()],
            "ahead": (grid.start + grid.step * (len(grid.values) + np.arange(horizon))).tolist(),
        }
        for grid in trains
    ]
    ended = subprocess.run(
        [str(python), str(HERE / "peers" / "prophet_run.py")], input=json.dumps(tasks), capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    if ended.returncode:
        raise UnavailableError(f"prophet: {ended.stderr.strip().splitlines()[-1][:200]}")
    made: list[list[float]] = json.loads(ended.stdout)
    return made


def measure(machines: list[str], folds: int, step: float, without: list[str]) -> pl.DataFrame:
    """A row for each series, origin and method."""
    methods = {"automatic": automatic_forecast, "hybrid": guided_forecast, **baselines.available()}
    methods = {name: method for name, method in methods.items() if name not in (*without, "prophet")}
    rows: list[dict[str, Any]] = []
    scenes: list[tuple[dict[str, Any], Grid, Any]] = []
    horizon = round(MONTH / step)
    for benchmark in BENCHMARKS:
        for machine in machines:
            grid = machine_series(benchmark, machine, step)
            for origin in backtest.origins(grid, horizon, folds):
                train, truth = grid.until(origin), grid.values[origin : origin + horizon]
                case = {"benchmark": benchmark, "machine": machine, "origin": origin}
                if np.isnan(truth).mean() > 0.5:  # the machine was away that month
                    continue
                scenes.append((case, train, truth))
                for name, method in methods.items():
                    start = time.perf_counter()
                    errors = backtest.errors(train, truth, method(train, horizon))
                    rows.append({**case, "method": name, **errors, "seconds": time.perf_counter() - start})
            print(f"{benchmark} {machine}", flush=True)
    if "prophet" not in without:
        rows += _prophet_rows(scenes, horizon)
    return pl.DataFrame(rows)


def _prophet_rows(scenes: list[tuple[dict[str, Any], Grid, Any]], horizon: int) -> list[dict[str, Any]]:
    start = time.perf_counter()
    try:
        made = prophet([train for _, train, _ in scenes], horizon)
    except (UnavailableError, subprocess.TimeoutExpired) as error:
        print(f"without Prophet: {error}")
        return []
    each = (time.perf_counter() - start) / len(scenes)
    return [
        {**case, "method": "prophet", **backtest.errors(train, truth, np.array(ahead)), "seconds": each}
        for (case, train, truth), ahead in zip(scenes, made, strict=True)
    ]


def show(table: pl.DataFrame) -> None:
    """Each method's errors with intervals, and its error over the seasonal naive one's on the same months."""
    base = table.filter(pl.col("method") == "seasonal-naive")
    print(f"{'method':16}{'MAPE':>8}{'interval':>18}{'MASE':>8}{'interval':>18}{'/naive':>8}{'interval':>18}{'s':>7}")
    for name in table.group_by("method").agg(pl.col("mase").mean()).sort("mase")["method"]:
        rows = table.filter(pl.col("method") == name)
        both = rows.join(base, on=["benchmark", "machine", "origin"], suffix="_naive").drop_nans()
        mape, mase = (intervals.bootstrap(rows[column].drop_nans().to_list()) for column in ("mape", "mase"))
        ratio = intervals.ratio(both["mase"].to_list(), both["mase_naive"].to_list())
        cells = "".join(f"{e.value:8.4f}{f'{e.low:.4f} … {e.high:.4f}':>18}" for e in (mape, mase, ratio))
        print(f"{name:16}{cells}{float(np.mean(rows['seconds'].to_numpy())):7.2f}")
    print(f"{base.height} held-out months")


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=6)
    parser.add_argument("--machines", default="0,1,2")
    parser.add_argument("--step", default="2h")
    parser.add_argument("--without", default="")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    table = measure(chosen.machines.split(","), chosen.folds, guides.duration(chosen.step), chosen.without.split(","))
    show(table)
    if chosen.json:
        chosen.json.write_text(table.write_json())


if __name__ == "__main__":
    main()
