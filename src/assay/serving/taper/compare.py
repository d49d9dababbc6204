"""`assay compare taper`: policies for branching answers on the user's own requests and targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.record.wording import listed
from assay.serving import taper
from assay.serving.engine.standings import Measure, add_leads, why
from assay.serving.taper.branch_engine import Served
from assay.sim.step_times import trust_of
from assay.workloads import branches
from assay.workloads.branches import Branching
from assay.workloads.time_option import TIME_UNIT, read_decided

DEFAULT = "taper,taper-blind,irp-off,irp-eager,cap-4,batch-8,batch-32"
IN_TIME = Measure("attainment", "of the requests within both targets", "stretches of requests", least=False)
SOONEST = Measure("e2e_mean", "s mean end-to-end latency", "stretches of requests")
UNITS = {
    "attainment": "share", "ttft_p99": "s", "tpot_p95": "s", "e2e_mean": "s",
    "branching_e2e_mean": "s", "extras_mean": "branches/step", "step_mean": "s",
}  # fmt: skip


@click.command(
    epilog="Example:  assay compare taper --trace examples/branches.jsonl --layout h200:qwen3-32b --tpot 0.04"
)
@click.option(
    "--trace", "path", required=True, type=click.Path(path_type=Path),
    help='JSON lines {"arrival": s, "prompt": tokens, "stages": [[60], [100, 90], [40]]}; or, with --share, any trace.',
)  # fmt: skip
@click.option(
    "--share", type=click.FloatRange(0, 1), help="Of a trace without stages: this share gets drawn ones, 2 to 16 wide."
)
@click.option("--rate", type=click.FloatRange(1e-6), help="Requests a second.  [the trace's]")
@click.option("--layout", "on", default=taper.LAYOUT, show_default=True, help="GPU:MODEL[:tpN] of the instance.")
@click.option("--ttft", type=click.FloatRange(1e-6), default=taper.TTFT, show_default=True, help="Target, seconds.")
@click.option("--tpot", type=click.FloatRange(1e-6), default=taper.TPOT, show_default=True, help="Target, seconds.")
@click.option("--policies", default=DEFAULT, show_default=True, help=f"Among {', '.join(taper.POLICIES)}.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the steps' jitter.")
@TIME_UNIT
def command(
    path: Path, share: float | None, rate: float | None, policies: str, seed: int, time_unit: str | None, **options: Any
) -> dict[str, Any]:
    """Policies for branching answers on your own requests: who keeps most of them within their targets."""
    if share is None:
        if time_unit is not None:
            raise BadInput(f"--time-unit {time_unit}: requests with stages have seconds; leave it out, or give --share")
        try:
            trace = branches.read(path)
        except BadInput as error:
            raise BadInput(f"{error}{'; any other trace goes with --share 0.5' * path.exists()}") from error
    else:
        trace = branches.branching(read_decided(path, None, time_unit), share, seed)
    if rate is not None:
        if not trace.arrival[-1] > 0:
            raise BadInput("--rate needs a trace that lasts some time")
        trace = trace.at(rate)
    return compare(trace, listed(policies), seed=seed, progress=click.get_current_context().obj, **options)


def compare(
    trace: Branching, policies: Sequence[str] = ("taper", "irp-off", "irp-eager"), *, on: str = taper.LAYOUT,
    ttft: float = taper.TTFT, tpot: float = taper.TPOT, seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """The policies on one trace and one instance: facts, a table and who wins.

    >>> trace = branches.generate(200, rate=2.2, share=0.5, seed=0)
    >>> in_time = {row["policy"]: row["attainment"] for row in compare(trace)["table"]}
    >>> in_time["taper"] > 0.95 > in_time["irp-eager"]
    True
    """
    for name in policies:
        if name not in taper.POLICIES:
            raise BadInput(f"no policy '{name}'; there are {', '.join(taper.POLICIES)}")
    if not policies:
        raise BadInput(f"no policy given; choose among {', '.join(taper.POLICIES)}")
    table, runs = [], {}
    for done, name in enumerate(policies):
        progress(done, len(policies))
        served = taper.run(trace, taper.POLICIES[name], seed, on, ttft=ttft, tpot=tpot)
        runs[name] = served
        table.append({"policy": name, "attainment": float(served.met.mean())} | _row(served))
    # Where all keep their targets alike, what is left to win is time.
    differ = len({row["attainment"] for row in table}) > 1
    measure = IN_TIME if differ else SOONEST
    add_leads(table, {name: run.met if differ else run.e2e for name, run in runs.items()}, measure)
    wide, parallel = trace.widths[trace.widths > 1], trace.branching
    return {
        "trace": {
            "requests": len(trace), "seconds": float(trace.arrival[-1] - trace.arrival[0]),
            "branching": f"{parallel.mean():.0%}", "branches_mean": float(wide.mean()) if len(wide) else 1.0,
            "tokens_mean": float(trace.tokens.mean()),
        },
        "instance": {"layout": on, "ttft": f"{ttft:g} s", "tpot": f"{tpot:g} s"},
        "table": table, "units": UNITS,
        "why": why(table, measure, "taper"), "trust": trust_of(on),
        "shown": ["policy", "attainment", "ttft_p99", "tpot_p95", "branching_e2e_mean", "extras_mean"],
    }  # fmt: skip


def _row(served: Served) -> dict[str, Any]:
    parallel = served.trace.branching
    return {
        "ttft_p99": float(np.quantile(served.ttft, 0.99)),
        "tpot_p95": float(np.quantile(served.tpot, 0.95)),
        "e2e_mean": float(served.e2e.mean()),
        "branching_e2e_mean": float(served.e2e[parallel].mean()) if parallel.any() else None,
        "extras_mean": served.count("extras") / served.steps,
        "step_mean": served.makespan / served.steps,
        "preemptions": served.count("preempted"),
    }
