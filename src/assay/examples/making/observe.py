"""Observe: a series, dumps and traces of jobs; and a listing of papers for the record."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from making.formats import FILES, Rows, makes, table


@makes("latency.csv")
def latency(random: Random) -> str:
    """Half a year of a service's latency: slowly up, a day's and a week's cycle, a jump, gaps."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    rows: Rows = [["time", "value"]]
    for hour in range(0, 24 * 180, 2):
        if 1500 < hour < 1560:
            continue
        day, week = math.sin(2 * math.pi * hour / 24), math.sin(2 * math.pi * hour / 168)
        value = 20 + 0.002 * hour + 3 * day + 2 * week + (4 if hour > 2400 else 0) + random.gauss(0, 0.6)
        rows.append([(begin + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%SZ"), round(value, 3)])
    return table(rows)


def flight_recorder(rank: int) -> str:
    """A dump of torch's Flight Recorder: rank 2 never calls the fourth all-reduce, for which the others wait."""
    calls = []
    for seq in range(1, 4 if rank == 2 else 5):
        done = seq < 4
        calls.append({
            "frames": [{"name": "all_reduce", "filename": "distributed.py", "line": 3},
                       {"name": "train", "filename": "train.py", "line": 41}],
            "process_group": ["0", "default_pg"], "pg_id": 0, "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
            "profiling_name": "nccl:all_reduce", "time_created_ns": 1_000_000_000 + 50_000_000 * seq,
            "input_sizes": [[1024, 1024]], "input_dtypes": ["Float"], "output_sizes": [[1024, 1024]],
            "output_dtypes": ["Float"], "state": "completed" if done else "started", "retired": done, "is_p2p": False,
            "time_discovered_completed_ns": 1_000_000_000 + 50_000_000 * seq + 900_000 if done else None,
        })  # fmt: skip
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}
    return json.dumps({"version": "2.10", "pg_config": {"0": group}, "entries": calls}, indent=1) + "\n"


for _rank in range(4):
    FILES[f"dumps/rank_{_rank}.json"] = lambda _, rank=_rank: flight_recorder(rank)  # type: ignore[misc]


@makes("run/card.yaml")
def card(_: Random) -> str:
    """What ran, for `assay trace --metrics`."""
    return """version: 1
description: Two ranks of a small model, generated
workload:
  model: {phase: training, model_family: tiny, precision: bf16, model_arch: {num_params: 2.0e7, num_layers: 4}}
  data: {batch_size: 8, seq_len: 512}
  hardware:
    xpu_spec: {type: GPU, model: nvidia_a100, total_count: 2, count_per_node: 2}
Model-executor:
  framework: {name: torch}
  model_plan_parallelization: {dp_replicate: 2, tp: 1, pp: 1}
  communication_library: {name: NCCL}
metric_source:
  traces: [json]
"""


def profiled(folder: Path) -> None:
    """The profiler's traces of two ranks, of which the second is slow."""
    from assay.workloads.kineto_generate import Job, write

    made = write(Job(ranks=2, steps=3, layers=4, slow_rank=1, slow_by=1.4), folder)
    for rank, path in enumerate(made):
        path.replace(folder / f"rank-{rank}.json")


def graphs(folder: Path) -> None:
    """Chakra execution traces of two data-parallel ranks."""
    from assay.observe.graphs.generate import Job, device, generate
    from assay.workloads.chakra import write

    job = Job(layers=2, hidden=512, heads=8, seq=256, batch=2, dp=2)
    for rank, graph in enumerate(generate(job, device("h100"))):
        write(graph, folder / f"job.{rank}.et")


@makes("listing.bib")
def listing(_: Random) -> str:
    """Three papers: two that the record holds, and one that nobody has written."""
    from assay.record.catalogue import papers

    known = [paper for paper in papers().values() if paper.key in ("lmetric", "taco") and paper.arxiv]
    rows = [(paper.key.replace("-", ""), paper.title, paper.arxiv) for paper in known]
    rows.append(("unwritten", "A paper that nobody has written yet", "2699.00001"))
    return "".join(
        f"@misc{{{key},\n  title = {{{title}}},\n  eprint = {{{number}}},\n  archivePrefix = {{arXiv}},\n"
        "  primaryClass = {cs.DC}\n}\n"
        for key, title, number in rows
    )
