"""assay's replay of a Mooncake trace with the engine settings of Dynamo's: one JSON line, as the other peers print it.

Seconds count the whole call: reading the file, laying out the fleet, simulating. Startup is the import and the loading
of the compiled core, which is on disk after the first run of a version ("compiled" says whether it had to be built).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

FEW = 64  # tokens: fewer are taken for decodes


def mistaken(spans: Any) -> float:
    """The share of iterations whose tokens were taken for decodes and held a prompt, or the other way round."""
    prompts, few = spans["tokens"] > spans["decodes"], spans["tokens"] < FEW
    return float(spans["iterations"][prompts == few].sum() / spans["iterations"].sum())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("mode", choices=("round-robin", "lmetric", "dynamo"))
    parser.add_argument("--workers", type=int, default=16)
    asked = parser.parse_args()
    start = time.perf_counter()
    import numpy as np

    from assay.serving import read, router, simulate, uniform, warm
    from assay.sim.llm_cost import StepCost

    warm()
    read(asked.trace, limit=2)
    policy = router(asked.mode)
    # Dynamo's default timing: an iteration takes a polynomial in its prompt tokens, if it has any, and, if anything
    # decodes, 5.74 ms and a polynomial in the KV tokens of the decodes, whose square (a twentieth of its line at a
    # tenth of the memory) is left out. An engine here is told how many tokens there are, not whose: so few that they
    # can all be decodes are taken for that, and "mistaken" counts the iterations for which that was wrong.
    n = np.arange(8193)
    times = (16.50142 + 1.518344e-2 * n + 4.209989e-7 * n * n) * 1e-3
    times[:FEW] = 0.0
    cost = StepCost(times, decode_fixed=5.74e-3, decode_kv=54.01e-3 / 1_048_576, kv_tokens=16_384 * 64)
    ready, worked = time.perf_counter(), time.process_time()
    fleet = replace(uniform(asked.workers, cost, max_seqs=256, max_tokens=8192), block=64)
    outcome = simulate(read(asked.trace), fleet, policy)
    done, cpu = time.perf_counter(), time.process_time() - worked
    figures = outcome.summary()
    line = {"peer": "assay", "mode": asked.mode, "workers": asked.workers, "seconds": done - ready, "cpu": cpu}
    line |= {"startup": ready - start, "simulation": outcome.sim_seconds, "requests": figures["requests"]}
    line |= {"mistaken": mistaken(outcome.spans)}
    line |= {"reuse": outcome.cached_ratio, "ttft_mean": figures["ttft_mean"], "tpot_mean": figures["tpot_mean"]}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
