"""Approximate majority in ppsim, run by ppsim's own interpreter: a JSON line in, a JSON line out, until the input ends.

echo '{"a": 510000, "b": 490000, "time": null, "seed": 0}' | .cache/peers/ppsim/bin/python benchmarks/peers/ppsim_run.py

`time` is parallel time, null for "until silent". Seconds are those of the run alone: neither the import nor the making
of the Simulation is in them. A timed run is asked for its history only at both ends.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ppsim import Simulation  # type: ignore[import-not-found]


def measure(a: int, b: int, limit: float | None, seed: int) -> dict[str, Any]:
    # As a rule, not as reactions: ppsim runs reactions at half the rate (a meeting in either order counts once there).
    rule = {("A", "B"): ("U", "U"), ("A", "U"): ("A", "A"), ("B", "U"): ("B", "B")}
    simulation = Simulation({"A": a, "B": b}, rule, seed=seed)
    begun, cpu = time.perf_counter(), time.process_time()
    if limit is None:
        simulation.run(timer=False)
    else:
        simulation.run(limit, history_interval=limit, timer=False)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    final = {str(state): int(count) for state, count in simulation.config_dict.items()}
    return {"seconds": seconds, "cpu": cpu, "time": float(simulation.time), "final": final}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(measure(asked["a"], asked["b"], asked["time"], asked["seed"])), flush=True)


if __name__ == "__main__":
    main()
