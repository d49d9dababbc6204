"""MARLaaS: many RL jobs on one base model, each with its own adapter, none waiting for another.

Agentic RL leaves GPUs idle while environments answer. With one base model and an adapter for each tenant, rollouts of
all tenants go through the same instances (continuous batching, turns dealt fairly by tokens), environments run beside
them without a GPU, and updates queue at one trainer. A tenant's next step is written while its last one is trained,
one step off, so every tenant moves at its own pace.

Two halves. Real: a small torch policy with LoRA adapters, threads for rollout, environments and training; a tenant that
trains beside seven others ends with the weights of training alone, bit for bit. Model: up to 32 tenants in the rollout
engine, beside one tenant after another (each as asynchronous as it can be alone), all in lockstep, and an engine of
its own for each. Only the paper's abstract was at hand: queues and fairness are a reconstruction.

Huawei Canada, arXiv:2605.08527.

>>> found = train(TASKS[:2], steps=2, seed=0)
>>> sorted(found), found["odd"].lag <= 1
(['odd', 'twice'], True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals
from assay.record.measures import best, change, mean, ratio, rows, share
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.step_times import trust_of
from assay.training.marlaas import fleet
from assay.training.marlaas.policy import TASKS as TASKS
from assay.training.marlaas.service import Trained as Trained
from assay.training.marlaas.service import train as train

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "Several RL jobs fine-tune one base model by adapters, and their environments take as long as generation."
avoid_when = "There is one job, or environments answer at once: then there is nothing to overlap."
trust = (
    f"Step times: {trust_of('a800:qwen3-8b')} What an adapter adds to an iteration is assumed (60 µs). The policy that "
    "is really trained is tiny, and its tasks are two digits long."
)
own_input = "assay compare marlaas --task examples/tenant.py:Task"
references = (
    "S-LoRA: Sheng et al., MLSys 2024. GRPO: Shao et al., 2024. Deficit round robin: Shreedhar, Varghese, 1995.",
)

SIZES = (1, 2, 4, 8, 16, 32)
WAITS = (12.0, 1.0, 0.1)  # median seconds of an environment's answer (assumed, and so swept)
LAST = 10  # steps over which the reward in the end is averaged


def shared(tasks: int, env: float, steps: int, batch: int, seed: int) -> dict[str, dict[str, Any]]:
    """So many tenants on one fleet, four ways."""
    work = fleet.tenants(tasks, steps, batch, env, seed)
    found = {
        "marlaas": fleet.asynchronous(work), "sequential": fleet.sequential(work), "lockstep": fleet.lockstep(work),
        "partition": fleet.partition(work),
    }  # fmt: skip
    return {
        name: {"seconds": one.seconds, "used": one.used, "lag": one.lag, "least": min(one.shares)}
        for name, one in found.items()
    }


def learnt(steps: int, tasks: int, seed: int) -> dict[str, dict[str, Any]]:
    """Real tenants together, each alone in the same way, and each alone without any staleness."""
    chosen = TASKS[:tasks]
    latency = {task.name: 0.002 * (at % 3) for at, task in enumerate(chosen)}
    together = train(chosen, steps, seed, latency=latency)
    found: dict[str, dict[str, Any]] = {}
    for task in chosen:
        alone = train([task], steps, seed)[task.name]
        strict = train([task], steps, seed, staleness=0)[task.name]
        mine = together[task.name]
        found[task.name] = {
            "together": float(np.mean(mine.rewards[-LAST:])), "alone": float(np.mean(strict.rewards[-LAST:])),
            "first": mine.rewards[0], "same": same(mine, alone), "lag": mine.lag,
        }  # fmt: skip
    return found


def same(one: Trained, other: Trained) -> bool:
    """Whether two tenants ended with the same weights and rewards, to the last bit."""
    return one.rewards == other.rewards and all(
        np.array_equal(weight, other.weights[name]) for name, weight in one.weights.items()
    )


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Fleets by the number of tenants and by what environments take; and real tenants."""
    cases = [{"tasks": tasks, "env": env} for tasks in SIZES for env in WAITS if tasks == 32 or env == WAITS[0]]
    size = {"steps": lab.pick(quick=4, full=10), "batch": lab.pick(quick=16, full=64)}
    real = [{"steps": lab.pick(quick=80, full=300), "tasks": lab.pick(quick=4, full=8)}]
    return {
        "fleet": lab.with_seeds(quick=3, full=5).run(shared, [case | size for case in cases], per="system"),
        "policy": lab.with_seeds(quick=3, full=10).run(learnt, real, per="task"),
    }


def _utilisation(tasks: int, than: str = "sequential") -> Any:
    return ratio("used", of={"system": "marlaas"}, to={"system": than}, experiment="fleet", tasks=tasks, env=WAITS[0])


def _quality(table: pl.DataFrame) -> Estimate:
    """The reward in the end, tenants together less each alone on its newest policy, a mean over tasks by seed."""
    found = rows(table, {"experiment": "policy"})
    by_seed = found.group_by("seed", maintain_order=True).agg((pl.col("together") - pl.col("alone")).mean().alias("d"))
    return intervals.bootstrap(by_seed["d"].to_list())


def _gain(table: pl.DataFrame) -> Estimate:
    """The reward in the end less that of the first step, a mean over tasks by seed."""
    by_seed = rows(table, {"experiment": "policy"}).partition_by("seed", maintain_order=True)
    return intervals.bootstrap([float(np.mean((one["together"] - one["first"]).to_numpy())) for one in by_seed])


claims = [
    Claim("time", best({
        f"answers in {env:g} s": change("seconds", new={"system": "marlaas"}, old={"system": "sequential"},
                                        experiment="fleet", tasks=32, env=env) for env in WAITS
    }, max, every=True)),
    Claim("utilisation", best({f"{n} tenants": _utilisation(n) for n in SIZES})),
    Claim("quality", _quality, evidence=Evidence.REAL),
    Claim(
        "bits", share("same", experiment="policy"), kind=Kind.EVERY, evidence=Evidence.REAL,
        asks="A tenant that trains beside others ends with the weights of training alone, bit for bit.",
    ),
    Claim(
        "learns", _gain, kind=Kind.DIFFERENCE, toward="up", unit="share", evidence=Evidence.REAL,
        asks="Tenants learn: their rewards in the end are above those of their first step.",
    ),
    Claim(
        "lockstep", ratio("seconds", of={"system": "lockstep"}, to={"system": "marlaas"}, experiment="fleet", tasks=32,
                          env=WAITS[0]), kind=Kind.RATIO, toward="up",
        asks="32 tenants in lockstep, with rollouts batched over all of them, take longer.",
    ),
    Claim(
        "partition", ratio("seconds", of={"system": "partition"}, to={"system": "marlaas"}, experiment="fleet",
                           tasks=32, env=WAITS[0]), kind=Kind.RATIO, toward="up",
        asks="32 tenants with an engine of their own each, on the same GPUs, take longer.",
    ),
    Claim(
        "starved", mean("least", experiment="fleet", system="marlaas", tasks=32, env=WAITS[0]), kind=Kind.AT_LEAST,
        value=0.5, unit="share",
        asks="When the first of 32 tenants is done, every other has got at least half of an equal share of tokens.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """How busy GPUs are by the number of tenants."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "fleet", pl.col("env") == WAITS[0])
    means = found.group_by("tasks", "system", maintain_order=True).agg(pl.col("used").mean())
    chart: alt.Chart = (
        alt.Chart(means)
        .mark_line(point=True)
        .encode(
            x=alt.X("tasks:Q", title="tenants", scale=alt.Scale(type="log", base=2)),
            y=alt.Y("used:Q", title="share of GPU time used"),
            color=alt.Color("system:N", title=None),
        )
        .properties(width=420, height=280, title=f"{fleet.ROLLOUT + fleet.TRAINING} {fleet.DEVICE}, {fleet.MODEL}")
    )
    return chart
