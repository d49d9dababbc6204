"""Vidur's simulation of a request trace, run by Vidur's own interpreter: one JSON line.

python3.11 -m venv /tmp/peers/vidur && /tmp/peers/vidur/bin/pip install --no-deps -r benchmarks/envs/vidur.txt
/tmp/peers/vidur/bin/python benchmarks/peers/vidur_run.py TRACE round_robin --mlp a100_Llama-2-7b-hf_mlp.csv

TRACE is Vidur's CSV (arrived_at, num_prefill_tokens, num_decode_tokens) or a Mooncake JSONL; Vidur has no prefix
cache that a trace can reach, so reuse is null. --mlp and --attention are profile tables of microsoft/vidur
(data/profiling/compute/<device>/<model>). Without --attention the attention times come from a roofline of the
A100 (bytes over bandwidth, operations over rate): the speed of the simulator is measured, not its accuracy.
Startup is the import, the reading of the trace and the fit of the operator models; seconds is the event loop, and
cpu its processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.metadata
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL = "meta-llama/Llama-2-7b-hf"
HEADS, WIDTH, BYTES = 32, 4096, 2
RATE, BANDWIDTH, LAUNCH = 0.5 * 312e12, 0.8 * 2.0e12, 5e-6  # A100, with the usual shares of the peaks
BLOCK = 16
GRANULARITY = 256


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("mode", nargs="?", default="round_robin", choices=("round_robin", "lor", "random"))
    parser.add_argument("--mlp", required=True, help="profile table of all operators but attention")
    parser.add_argument("--attention", default="", help="profile table of attention (a roofline without it)")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--requests", type=int, default=0, help="first so many requests only (0: all)")
    parser.add_argument("--chunk", type=int, default=512, help="tokens of a Sarathi batch")
    parser.add_argument("--native", action="store_true", help="predict batch times in Vidur's compiled module")
    parser.add_argument("--max-tokens", type=int, default=16384, help="longer prompts are cut to this")
    return parser.parse_args()


def requests_of(trace: Path, limit: int) -> list[tuple[float, int, int]]:
    """Arrival in seconds, prompt and output tokens of the first requests of the trace."""
    with trace.open() as lines:
        if trace.suffix == ".jsonl":
            read = (json.loads(line) for line in lines)
            rows = ((r["timestamp"] / 1e3, r["input_length"], r["output_length"]) for r in read)
            return list(itertools.islice(rows, limit or None))
        table = csv.DictReader(lines)
        keys = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
        cells = (tuple(row[key] for key in keys) for row in table)
        return [(float(at), int(prompt), int(output)) for at, prompt, output in itertools.islice(cells, limit or None)]


def write_trace(rows: list[tuple[float, int, int]], path: Path) -> None:
    """The trace in the columns that Vidur 0.0.26 reads."""
    with path.open("w") as out:
        table = csv.writer(out)
        table.writerow(["Date", "Time", "PromptTokenCount", "CompletionTokenCount"])
        table.writerows(["day", *row] for row in rows)


def attention_seconds(queries: int, context: int, batch: int) -> float:
    """Roofline of one layer's attention: `queries` tokens of each of `batch` requests over `context` cached ones."""
    operations = 4.0 * batch * queries * (context + queries / 2) * WIDTH
    moved = 2.0 * batch * (context + queries) * WIDTH * BYTES
    return LAUNCH + max(operations / RATE, moved / BANDWIDTH)


def write_attention(path: Path, longest: int) -> None:
    """A profile table of attention in Vidur's columns (milliseconds), from the roofline."""
    contexts = sorted({0, *(min(longest, 1 << power) for power in range(6, longest.bit_length() + 1))})
    cases = [(chunk, 1, context) for chunk in (32, 64, 128, 256, 512, 1024) for context in contexts]
    cases += [(0, batch, context) for batch in (1, 2, 4, 8, 16, 32, 64, 128) for context in contexts if context]
    with path.open("w") as out:
        table = csv.writer(out)
        shape = ["n_embd", "n_q_head", "n_kv_head", "block_size", "num_tensor_parallel_workers"]
        case = ["prefill_chunk_size", "batch_size", "kv_cache_size"]
        times = [f"time_stats.{name}.median" for name in ("attn_prefill", "attn_decode", "attn_kv_cache_save")]
        table.writerow([*shape, *case, *times])
        for chunk, batch, context in cases:
            one = 1e3 * attention_seconds(chunk or 1, context, batch)
            save = 1e3 * (LAUNCH + 4.0 * max(chunk, batch) * WIDTH * BYTES / BANDWIDTH)
            spent = [one if chunk else 0.0, 0.0 if chunk else one, save]
            table.writerow([WIDTH, HEADS, HEADS, BLOCK, 1, chunk, batch, context, *spent])


def configuration(asked: argparse.Namespace, folder: Path) -> Any:
    """Vidur's configuration: Llama-2-7b on one A100 per replica, Sarathi batches, no metrics written."""
    from vidur import config  # type: ignore[import-not-found,unused-ignore]

    routers = {
        "round_robin": config.RoundRobinGlobalSchedulerConfig,
        "lor": config.LORGlobalSchedulerConfig,
        "random": config.RandomGlobalSchedulerConfig,
    }
    return config.SimulationConfig(
        log_level="error",
        cluster_config=config.ClusterConfig(
            num_replicas=asked.workers,
            replica_config=config.ReplicaConfig(
                model_name=MODEL,
                num_pipeline_stages=1,
                tensor_parallel_size=1,
                device="a100",
                network_device="a100_dgx",
            ),
            cache_config=config.CacheConfig(block_size=BLOCK),
            global_scheduler_config=routers[asked.mode](),
            replica_scheduler_config=config.SarathiSchedulerConfig(chunk_size=asked.chunk),
        ),
        request_generator_config=config.TraceRequestGeneratorConfig(
            trace_file=str(folder / "trace.csv"),
            date="day",
            prefill_scale_factor=1.0,
            decode_scale_factor=1.0,
            time_scale_factor=1.0,
            max_tokens=asked.max_tokens,
        ),
        execution_time_predictor_config=config.RandomForrestExecutionTimePredictorConfig(
            num_estimators=[50],  # one point of Vidur's grid of 27, two folds of its ten: only startup gains
            max_depth=[16],
            min_samples_split=[2],
            kv_cache_prediction_granularity=GRANULARITY,
            prediction_max_prefill_chunk_size=asked.chunk,
            prediction_max_tokens_per_request=asked.max_tokens,
            use_native_execution_time_predictor=asked.native,
            num_training_job_threads=1,
            k_fold_cv_splits=2,
            cache_dir=str(folder / "cache"),
        ),
        metrics_config=config.MetricsConfig(
            write_metrics=False, enable_chrome_trace=False, store_plots=False, output_dir=str(folder / "out")
        ),
    )


def use_local_profiles(mlp: Path, attention: Path) -> None:
    """Vidur 0.0.26 downloads its profile tables; give it files instead."""
    from vidur.execution_time_predictor import (  # type: ignore[import-not-found,unused-ignore]
        sklearn_execution_time_predictor as predictor,
    )

    def no_download(*_: object, **__: object) -> str:
        raise FileNotFoundError("profile tables are given as files")

    def files(_: object) -> tuple[str, str, str, str]:
        return str(mlp), str(attention), "", ""

    predictor.snapshot_download = no_download
    predictor.SklearnExecutionTimePredictor._get_input_files = files


def simulate(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    start = time.perf_counter()
    from vidur.simulator import Simulator  # type: ignore[import-not-found,unused-ignore]
    from vidur.utils.random import set_seeds  # type: ignore[import-not-found,unused-ignore]

    attention = Path(asked.attention) if asked.attention else folder / "attention.csv"
    if not asked.attention:
        write_attention(attention, asked.max_tokens)
    rows = requests_of(Path(asked.trace), asked.requests)
    write_trace(rows, folder / "trace.csv")
    use_local_profiles(Path(asked.mlp), attention)
    configured = configuration(asked, folder)
    set_seeds(configured.seed)
    simulator = Simulator(configured)
    requests = [event._request for _, event in simulator._event_queue]
    ready, worked = time.perf_counter(), time.process_time()
    simulator.run()
    done, cpu = time.perf_counter(), time.process_time() - worked
    first = [request.prefill_completed_at - request.arrived_at for request in requests]
    longer = [request for request in requests if request.num_decode_tokens > 1]
    rest = [(r.completed_at - r.prefill_completed_at) / (r.num_decode_tokens - 1) for r in longer]
    return {
        "peer": f"vidur {importlib.metadata.version('vidur')}",
        "mode": asked.mode,
        "workers": asked.workers,
        "seconds": done - ready,
        "cpu": cpu,
        "startup": ready - start,
        "requests": sum(request.completed for request in requests),
        "reuse": None,
        "ttft_mean": sum(first) / len(first),
        "tpot_mean": sum(rest) / len(rest),
        "e2e_mean": sum(r.completed_at - r.arrived_at for r in requests) / len(requests),
        "duration": max(r.completed_at for r in requests),
        "attention": asked.attention or "roofline",
    }


def main() -> None:
    asked = arguments()
    os.environ.setdefault("WANDB_MODE", "disabled")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        line = simulate(asked, Path(folder))
    print(json.dumps(line))


if __name__ == "__main__":
    main()
