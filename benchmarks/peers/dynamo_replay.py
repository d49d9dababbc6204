"""NVIDIA Dynamo's offline replay of a Mooncake trace, run by Dynamo's own interpreter: one JSON line.

python3 -m venv /tmp/peers/dynamo && /tmp/peers/dynamo/bin/pip install --no-deps -r benchmarks/envs/dynamo.txt
/tmp/peers/dynamo/bin/python benchmarks/peers/dynamo_replay.py TRACE.jsonl round_robin [--workers 16]

Seconds count the whole call (reading the file included), cpu is its processor time, startup is the import. With the
kv router Dynamo breaks ties at random and takes no seed, so its figures differ from run to run; round robin does not.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import time
from pathlib import Path
from typing import Any


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", help="Mooncake JSONL: timestamp (ms), input_length, output_length, hash_ids")
    parser.add_argument("mode", nargs="?", default="round_robin", choices=("round_robin", "kv_router"))
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--trace-block", type=int, default=512, help="tokens per hash id of the trace")
    parser.add_argument("--block", type=int, default=64, help="tokens per block of the engine's cache")
    parser.add_argument("--blocks", type=int, default=16384, help="blocks of cache per worker")
    parser.add_argument("--requests", default="", help="write what it says of each request to this JSONL file")
    return parser.parse_args()


def replay(asked: argparse.Namespace) -> tuple[Any, dict[str, float]]:
    """The report, and the seconds of the import and of the call."""
    os.environ.setdefault("DYN_LOG", "error")  # one line per routed request otherwise
    start = time.perf_counter()
    from dynamo.replay import run_trace_replay  # type: ignore[import-not-found,unused-ignore]

    imported, worked = time.perf_counter(), time.process_time()
    engine = {"engine": {"block_size": asked.block, "num_gpu_blocks": asked.blocks}}
    report = run_trace_replay(
        asked.trace,
        extra_engine_args=json.dumps(engine),
        num_workers=asked.workers,
        router_mode=asked.mode,
        trace_block_size=asked.trace_block,
        trace_format="mooncake",
        capture_per_request=bool(asked.requests),
    )
    done, cpu = time.perf_counter(), time.process_time() - worked
    return report, {"seconds": done - imported, "startup": imported - start, "cpu": cpu}


def main() -> None:
    asked = arguments()
    report, spent = replay(asked)
    if asked.requests:
        with Path(asked.requests).open("w") as out:
            out.writelines(json.dumps(row) + "\n" for row in report.per_request)
    said = report.summary
    line = {
        "peer": f"dynamo {importlib.metadata.version('ai-dynamo')}",
        "mode": asked.mode,
        "workers": asked.workers,
        **spent,
        "simulation": said["wall_time_ms"] / 1e3,
        "requests": said["completed_requests"],
        "reuse": said["prefix_cache_reused_ratio"],
        "reuse_first_admission": said["first_admission_prefix_cache_reused_ratio"],
        "ttft_mean": said["mean_ttft_ms"] / 1e3,
        "tpot_mean": said["mean_tpot_ms"] / 1e3,
        "e2e_mean": said["mean_e2e_latency_ms"] / 1e3,
        "duration": said["duration_ms"] / 1e3,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
