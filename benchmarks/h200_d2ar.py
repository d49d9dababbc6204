"""The generative codec at 1 to 10 M parameters, learnt on one GPU: the measures of `assay run d2ar`, by ratio.

    OUT=. python benchmarks/h200_d2ar.py            # on the GPU: about two minutes
    OUT=. python benchmarks/h200_d2ar.py --tiny     # on any machine: does it run?

The paper's own files are loaded from the package, without the rest of assay: torch and numpy are all it needs. Writes
JSON lines to $OUT/h200_d2ar.jsonl as they come: a row for each method and seed, then what was checked (a file decoded
on the GPU against the same file decoded by the same weights on the CPU). `python benchmarks/h200_d2ar.py --store DATE
FILE` puts rows into the package, where the study judges them; where the GPU's machine has no numba, wavelets are
made up for then, on the same scenes.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src" / "assay"
LIMIT = 170.0  # seconds
SIZE = {"size": 256, "dates": 4, "a_year": 16, "steps": 800}
STORED = SOURCE / "training" / "d2ar" / "h200.json"


def alone() -> Any:
    """The paper's modules as they lie in the package, while no `__init__` of it is run."""
    for name, folder in (("assay", "."), ("assay.training", "training"), ("assay.training.d2ar", "training/d2ar")):
        module = types.ModuleType(name)
        module.__path__ = [str(SOURCE / folder)]
        sys.modules[name] = module
    return importlib.import_module("assay.training.d2ar.trial")


def store(date: str, file: str) -> None:
    """Rows into the package."""
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    kept = [row for row in rows if row["part"] in ("method", "check")]
    told = {(row["method"], row["seed"]) for row in kept if row["part"] == "method"}
    trial = alone()
    for seed in sorted({seed for method, seed in told if ("wavelet at 1000", seed) not in told}):
        found = trial.rivals(SIZE["size"], SIZE["dates"], SIZE["a_year"], seed)
        kept += [{"part": "method", "method": name, "seed": seed, **row} for name, row in found.items()]
    source = f"one NVIDIA H200, {date}, benchmarks/h200_d2ar.py"
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in kept)
    STORED.write_text(f'{{"source": {json.dumps(source)}, "rows": [\n{lines}\n]}}\n')


def main() -> None:
    """Train and judge, seed by seed, as long as there is time."""
    if "--store" in sys.argv:
        store(*sys.argv[-2:])
        return
    began, tiny = time.time(), "--tiny" in sys.argv
    trial = alone()
    import numpy as np
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = Path(os.environ.get("OUT", ".")) / "h200_d2ar.jsonl"
    out.write_text("")

    def tell(row: dict[str, Any]) -> None:
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    model = importlib.import_module("assay.training.d2ar.model")
    options = model.Options() if tiny else model.Options(width=256, blocks=6)
    size = {"size": 128, "dates": 2, "a_year": 4, "steps": 2} if tiny else SIZE
    compiled = importlib.util.find_spec("numba") is not None and (SOURCE / "sim").exists()
    _, archive, _ = trial.archived(64, 5, 4)
    short = model.train(archive, options, 2, 5, device=device)
    data = model.encode(short, archive.images[0], int(archive.days[0]), 200)
    there = model.decode(short, data)
    weights = sum(w.numel() for w in short.network.parameters())
    on_cpu = replace(short, autoencoder=short.autoencoder.cpu(), network=short.network.cpu())
    off = float(np.abs(there - model.decode(on_cpu, data)).max())
    tell({"part": "check", "bytes": len(data), "most_off_the_cpu": off, "same": off < 5e-3, "device": device,
          "weights": weights})  # fmt: skip
    took = 0.0
    for seed in range(1 if tiny else 8):
        if time.time() - began + 1.15 * took > LIMIT:
            break
        start = time.time()
        rows = trial.held_out(
            **size, seed=seed, device=device, options=options, batch=16 if tiny else 128, wavelets=compiled
        )
        took = time.time() - start
        for method, row in rows.items():
            tell({"part": "method", "method": method, "seed": seed, **row})
        tell({"part": "took", "seed": seed, "seconds": took})


if __name__ == "__main__":
    main()
