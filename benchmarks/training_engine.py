"""The step engine's figures, and the planner beside llm-analysis, in one run.

    .venv/bin/python benchmarks/training_engine.py [--real] [--rollouts]

How long Llama-3.1-405B on 16,384 ranks takes to build and solve, folded and rank by rank; operations a second for one
draw and for 64; plans a second; and, where `llm-analysis` is installed (benchmarks/envs/llm-analysis.txt), the same
layouts asked of both, in turns. `--real` also trains three small decoders on two gloo processes of this machine, and
says how far their predictions are off. `--rollouts` asks the rollout engine only: a hundred RL steps of 10,000
trajectories on 32 instances, under each rule (a tenth of them where a tree is learnt anew every 50 trajectories).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.sim.models import Model, model
from assay.training.engine import cluster as clusters
from assay.training.engine import graph as graphs
from assay.training.engine import search
from assay.training.engine.rollout import RULES, Pool, Rule, steps
from assay.training.engine.step import simulate, simulate_many
from assay.training.interface import Job, Layout, Plan
from assay.workloads.trajectories import draw

GPT = Model("gpt", 4096, 51_200, True, 32, 0, 0, 32, 0, 32, 32, 128, 16_384, gated_mlp=False)
PEER = Path(__file__).parent / "peers" / "llm_analysis_run.py"


def seconds(run: Callable[[], Any], rounds: int = 5) -> tuple[float, Any]:
    """Processor seconds of the fastest of some rounds, and what it gives; one thread, so an idle core needs as long."""
    best, value = np.inf, None
    for _ in range(rounds):
        begin = time.process_time()
        value = run()
        best = min(best, time.process_time() - begin)
    return best, value


def scale() -> None:
    """405B on 16,384 ranks."""
    plan, job = Plan(Layout(tp=8, pp=16, dp=128), recompute="full"), Job(2048, 8192)
    shape, cluster = model("llama-3.1-405b"), clusters.read("16384xh100")
    simulate(shape, cluster, plan, job)  # compiled

    def anew(folded: bool) -> Any:
        graphs.step_graph.cache_clear()
        return simulate(shape, cluster, plan, job, folded=folded)

    took, outcome = seconds(lambda: anew(True))
    solve, _ = seconds(lambda: outcome.graph.dag.ends(outcome.seconds))
    print(f"16,384 ranks, folded: {1e3 * took:.1f} ms with the graph, {1e3 * solve:.2f} ms to solve")
    took, whole = seconds(lambda: anew(False), rounds=2)
    each = whole.seconds
    solve, _ = seconds(lambda: whole.graph.dag.ends(each))
    print(f"16,384 ranks, one by one: {took:.2f} s with the graph, {1e3 * solve:.1f} ms to solve")
    rate = len(each) / solve / 1e6
    apart = abs(whole.step / outcome.step - 1.0)
    print(f"  steps apart by {apart:.0e}; {len(each):,} operations, {rate:.0f} M/s for one draw")
    small = simulate(shape, clusters.read("1024xh100"), Plan(Layout(tp=8, pp=16, dp=8)), Job(128, 8192), folded=False)
    for name, one in (("folded graph", outcome), ("graph of 1,024 ranks", small)):
        draws = np.repeat(one.seconds[:, None], 64, axis=1)
        solve, _ = seconds(lambda one=one, draws=draws: one.graph.dag.ends_of_columns(draws))  # type: ignore[misc]
        print(f"  64 draws over the {name}: {draws.size / solve / 1e6:.0f} M operations/s")


def planner() -> None:
    """All plans of a mixture of experts on 64 GPUs."""
    shape, cluster, job = model("qwen3-30b-a3b"), clusters.read("64xh100:ib400"), Job(512, 4096)
    graphs.step_graph.cache_clear()
    begin = time.process_time()
    plans = search.plans(shape, cluster, job)
    outcomes = simulate_many(shape, cluster, plans, job)
    took = time.process_time() - begin
    fitting = sum(one.fits for one in outcomes)
    print(f"planner: {len(plans):,} plans ({fitting:,} fit) in {took:.2f} s, {1e3 * took / len(plans):.2f} ms each")


def peer() -> None:
    """The same layouts of a dense model asked of llm-analysis, process against process."""
    python = Path(__file__).parents[1] / ".cache" / "envs" / "llm-analysis" / "bin" / "python"
    if not python.exists():
        print(f"llm-analysis: not installed at {python}; see benchmarks/envs/llm-analysis.txt")
        return
    shape, cluster, job = GPT, clusters.read("64xa100"), Job(512, 4096)
    cuts = [
        plan
        for plan in search.plans(shape, cluster, job, zero=(1,))
        if plan.schedule == "1f1b" and plan.recompute == "full"
    ]
    ours, outcomes = seconds(lambda: simulate_many(shape, cluster, cuts, job), rounds=3)
    rows = "\n".join(f"{p.layout.tp} {p.layout.pp} {p.layout.dp} {p.mbs}" for p in cuts)
    ended = subprocess.run([python, PEER], input=rows, capture_output=True, text=True, check=True)
    theirs, *latencies = map(float, ended.stdout.split())
    per = theirs / len(cuts), ours / len(cuts)
    print(
        f"llm-analysis: {1e3 * per[0]:.2f} ms a plan, ours {1e3 * per[1]:.2f} ms: {per[0] / per[1]:.1f} times as fast"
    )
    mine = np.array([one.step for one in outcomes])
    order = np.corrcoef(np.argsort(np.argsort(mine)), np.argsort(np.argsort(latencies)))[0, 1]
    print(f"  ranks of {len(cuts)} plans by step time correlate by {order:.2f}")


def rollouts() -> None:
    """A million trajectories, in a hundred steps."""
    parts = [draw(10_000, seed=0, step=step) for step in range(100)]
    half = Pool.of("h200:llama-3-8b", 16)
    pool = half + replace(half, bucket=half.bucket + 1)
    for name in RULES:
        rule, some = Rule(name), parts[::10] if name == "learnt" else parts
        steps(parts[:1], pool, rule)  # compiled
        took, found = seconds(lambda rule=rule, some=some: steps(some, pool, rule), rounds=3)  # type: ignore[misc]
        done, turns = sum(one.finished for one in found), sum(len(part.prompt) for part in some)
        print(f"rollouts, {name}: {done:,} trajectories of {turns:,} turns in {took:.2f} s of processor time")


def real() -> None:
    """Three decoders that were not calibrated with."""
    from assay.training.engine import host

    here = host.calibrate(time.process_time)
    shapes = ((host.decoder(4, 256, 8, 768, 2000), Job(16, 128)), (host.decoder(3, 512, 8, 1024, 3000), Job(8, 128)),
              (host.decoder(6, 320, 5, 960, 1500), Job(4, 384)))  # fmt: skip
    for shape, job in shapes:
        took, said = host.step(shape, job, 9, time.process_time), host.predicted(here, shape, job)
        print(f"real step of {shape.name}: {1e3 * took:.0f} ms of processor time, predicted {said / took - 1:+.1%}")


if __name__ == "__main__":
    rollouts()
    if "--rollouts" in sys.argv:
        sys.exit()
    scale()
    planner()
    peer()
    if "--real" in sys.argv:
        real()
