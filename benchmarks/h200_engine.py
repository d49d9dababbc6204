"""Measure the torch engine and its operations on a GPU: python benchmarks/h200_engine.py [--tiny] [--out DIR].

Needs torch and what assay's core needs, and this repository's `src` on PYTHONPATH. Writes meta.json, ops.csv,
profiling.csv, steps.csv, requests.csv and run_steps.csv to $OUT (or --out); `assay.serving.dooly.gpu_run` says what is
in them. `--tiny` does the same on a CPU with shrunk models in seconds, which is how this script is tested.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from assay.serving import dooly


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tiny", action="store_true", help="shrunk models on the CPU")
    options.add_argument("--out", default=os.environ.get("OUT", "h200_engine_out"))
    options.add_argument("--parts", default="check,ops,llama-3-8b,qwen3-32b,sdpa")
    options.add_argument("--ops-seconds", type=float, default=150.0, help="stop timing duplicates after this long")
    chosen = options.parse_args()
    meta = dooly.measure_gpu(Path(chosen.out), chosen.tiny, chosen.parts.split(","), chosen.ops_seconds)
    print(json.dumps(meta, indent=1))


if __name__ == "__main__":
    main()
