"""HolisticTraceAnalysis on the files of some ranks: overlap and temporal breakdown as JSON, in microseconds.

Run by benchmarks/traces.py in an environment of its own: python hta_run.py RANK=FILE ...
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

logging.disable(logging.CRITICAL)


def main() -> None:
    from hta.trace_analysis import TraceAnalysis

    files = {int(rank): path for rank, _, path in (word.partition("=") for word in sys.argv[1:])}
    analysis: Any = TraceAnalysis(trace_files=files, include_last_profiler_step=True)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    parts = analysis.get_temporal_breakdown(visualize=False)
    print(json.dumps({"overlap": overlap.to_dict("records"), "breakdown": parts.to_dict("records")}, default=float))


if __name__ == "__main__":
    main()
