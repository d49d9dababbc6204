"""The CUDA kernels of the room on one GPU, checked and beside the vendor's, for `src/assay/kernels/engine/h200.json`.

    python3 benchmarks/h200_kernels.py                  # NVIDIA GPU with NumPy and CuPy; no assay
    python3 benchmarks/h200_kernels.py merbit           # one part: machine, goldbach, radius_fps, merbit, pagerank

Runs the parts of `h200_machine.py`, `h200_goldbach.py`, `h200_radius_fps.py` and `h200_merbit.py`, which run alone
too; `h200_bigint_div.py`, `h200_falcongemm.py`, `h200_etap_mla.py` and `h200_ab_sparse.py` start by themselves. Sources
and layouts are read from the package's files, so one source serves tests, users and this. Writes h200_kernels.jsonl to
$OUT, or here: a line a measurement, as it comes. Times are CUDA events, interleaved over rounds, with the L2 cache
overwritten before each; the wall time of launches stands beside.
"""

# mypy: ignore-errors

from __future__ import annotations

import h200_common as common
import h200_goldbach
import h200_machine
import h200_merbit
import h200_radius_fps

SCRIPTS = (h200_machine, h200_goldbach, h200_radius_fps, h200_merbit)

if __name__ == "__main__":
    tell = common.Answers("h200_kernels")
    for script in SCRIPTS:
        script.tell = tell
    tell.run(common.asked({name: part for script in SCRIPTS for name, part in script.PARTS.items()}))
