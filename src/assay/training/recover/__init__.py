"""ReCoVer: when replicas die inside a step, the others mend the group, take over their microbatches, and go on.

Usually a dead replica ends the job: everybody restarts from the last checkpoint. Or it is dropped, and every step from
then on averages fewer samples. Here a step is a ledger of microbatches, and it is over when the gradient holds each of
them once, whoever computed it. Gradients are summed bucket by bucket, from copies. When somebody dies, the survivors
agree on who is left and which buckets all of them have; those are kept, the dead one's share in them. The microbatches
that are missing in the rest are dealt to whoever has the fewest and computed on the same data, and the rest is summed
again. The weights after the step are those of a job in which nobody died, up to the order of additions.

Read in the paper are the communicator repaired inside a step, the fixed number of microbatches, boundary and spare
roles; how buckets are kept or restored is inferred in parts. Two back ends: gloo, with a keeper process that numbers
epochs and sees a death by its closed connection (a time-out is the fallback), and MPI with ULFM, as in the paper but
without its `Shrink`, which in Open MPI 5.0.11 crashes when another rank dies inside it.

Beside it: drop and go, spares (both by torchft's rules, on our substrate), and restart from checkpoints. Real processes
are killed by SIGKILL at drawn points; 512 GPUs are a model, see `fleet`.

arXiv:2605.11215.

>>> deal(8, {0: [], 2: [], 3: []})  # replica 1 is gone: who computes which of eight microbatches
{0: [0, 3, 6], 2: [1, 4, 7], 3: [2, 5]}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.record.measures import Measure, change, counted, mean, ratio, rows, share
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.random import stream
from assay.sim.trust import sentence
from assay.training.recover import fleet, job
from assay.training.recover.demo import curve as curve
from assay.training.recover.demo import demo as demo
from assay.training.recover.job import Kill, Training
from assay.training.recover.keeper import TIMEOUT
from assay.training.recover.launch import join as join
from assay.training.recover.launch import launch as launch
from assay.training.recover.replicas import Replicas as Replicas
from assay.training.recover.replicas import Unequal as Unequal
from assay.training.recover.replicas import deal as deal

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = (
    "Data-parallel replicas (or groups of ranks that hold one model) die often enough that restarts hurt, and the "
    "batch must stay what it was chosen to be."
)
avoid_when = (
    "A failure is rarer than a checkpoint is cheap; the batch may shrink (drop and go computes nothing again); or a "
    "replica is so large a part of the job that the others cannot take its share."
)
trust = (
    "Kills, weights, ledgers and recovery times are real, of small jobs on one machine. Throughput at 512 GPUs is a "
    "model: a restart is taken to need a minute, and batches are set so that the run takes the GPU-hours that "
    "the paper names. " + sentence("roofline")
)
own_input = "assay recover run -n 3 examples/recover.py"
references = (
    "torchft: Meta, 2025 (dynamic world size, fixed with spares).",
    "ULFM: Bland et al., 2013 (revoke, shrink, agree).",
)

HOURS = {"3d": 234.0, "hsdp": 1338.0}  # GPU-hours
RESTARTS = (20.0, 60.0, 180.0)  # seconds to start all processes anew
ANEW = 60.0
CALM = "failure-free"
SYSTEMS = (CALM, "recover", "drop-and-go", "spares", "restart")


def at_scale(layout: str, anew: float, seed: int) -> dict[str, dict[str, Any]]:
    """512 GPUs lose half of their replicas, by each rule."""
    whole = fleet.Fleet(layout, fleet.calibrated(layout, HOURS[layout]), again=anew)
    deaths = fleet.failures(whole, seed)
    found = {}
    for system in fleet.SYSTEMS:
        ran = fleet.run(whole, system, deaths)
        limited = fleet.run(whole, system, deaths, HOURS[layout] * fleet.HOUR)
        found[system] = {
            "effective": ran.effective, "tokens": limited.tokens, "gpu_hours": ran.gpu_seconds / fleet.HOUR,
            "deaths": ran.deaths, "smallest_batch": ran.smallest / whole.batch, "checkpoint_every": ran.every,
            "step": whole.pace(whole.replicas, whole.share(whole.replicas)),
        }  # fmt: skip
    return found


def drawn(training: Training, seed: int, deaths: int) -> list[Kill]:
    """Replicas that die one after another while gradients are summed, each before some bucket."""
    random = stream(seed, "recover", "kills")
    ranks = random.permutation(training.replicas - training.spares)[:deaths]
    steps = sorted(int(step) for step in random.choice(training.steps - 1, deaths, replace=False))
    return [Kill(int(rank), step, "bucket", int(random.integers(4))) for rank, step in zip(ranks, steps, strict=True)]


def survive(replicas: int, steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """A real job that loses half of its replicas, by each rule, beside the one that loses none."""
    training = Training(replicas=replicas, batch=2 * replicas, steps=steps, seed=seed)
    kills = drawn(training, seed, replicas // 2)
    found, calm = {}, job.run(training)
    for system in SYSTEMS:
        spares = replicas // 2 if system == "spares" else 0
        this = replace(training, system=system, spares=spares, replicas=replicas + spares)
        outcome = calm if system == CALM else job.run(this, kills)
        found[system] = {
            "loss_last": outcome.losses[-1], "loss_off": _worst(outcome.losses, calm.losses),
            "apart": job.distance(outcome.weights, calm.weights),
            "whole": all(count == training.batch for count in outcome.counted), "smallest": min(outcome.counted),
            "computed_by_survivors": outcome.computed, "again": outcome.again, "mended": outcome.recovered,
            "recovery": max(outcome.mending, default=None), "left": outcome.alive[-1],
        }  # fmt: skip
    return found


def _worst(losses: Sequence[float], others: Sequence[float]) -> float:
    """The change of the loss in the step where it is largest, of those that both have; a restart has the last ones."""
    pairs = zip(losses, others[-len(losses) :], strict=True)
    return max((loss / other - 1 for loss, other in pairs), key=abs)


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Real processes that are killed, and 512 GPUs by the engine, beside dropping, spares and restarts."""
    cases = [{"layout": layout, "anew": anew} for layout in HOURS for anew in RESTARTS]
    live = [lab.pick(quick={"replicas": 4, "steps": 5}, full={"replicas": 8, "steps": 20})]
    return {
        "fleet": lab.with_seeds(quick=4, full=20).run(at_scale, cases, per="system"),
        "live": replace(lab.with_seeds(quick=2, full=5), workers=0).run(survive, live, per="system"),
    }


def _tokens(layout: str) -> Measure:
    """At the restart that the claim takes, and beside it what other restarts would give."""

    def at(anew: float) -> Measure:
        where = {"experiment": "fleet", "layout": layout, "anew": anew}
        return change("tokens", new={"system": "recover"}, old={"system": "restart"}, **where)

    return _swept(at)


def _swept(at: Callable[[float], Measure]) -> Measure:
    """The answer where a restart takes a minute, which is assumed; its cases say what it is where it takes another."""

    def measure(table: pl.DataFrame) -> Estimate:
        others = "; ".join(f"{at(anew)(table).value:.3g} at {anew:.0f} s" for anew in RESTARTS if anew != ANEW)
        return replace(at(ANEW)(table), cases=f"if a restart takes {ANEW:.0f} s, which is assumed; {others}")

    return measure


def _throughput(anew: float) -> Measure:
    where = {"experiment": "fleet", "layout": "3d", "anew": anew}
    return ratio("effective", of={"system": "recover"}, to={"system": "restart"}, **where)


def _largest(column: str) -> Measure:
    """Over all runs: none may be larger."""

    def measure(table: pl.DataFrame) -> Estimate:
        found = rows(table, {"experiment": "live", "system": "recover"})[column]
        return counted(float(found.to_numpy().max()), len(found))

    return measure


claims = [
    Claim("throughput", _swept(_throughput)),
    Claim("tokens", _tokens("3d")),
    Claim("hsdp", _tokens("hsdp")),
    Claim("loss", mean("loss_off", experiment="live", system="recover"), evidence=Evidence.REAL),
    Claim(
        "ledger", share("whole", experiment="live", system="recover"), kind=Kind.EVERY, evidence=Evidence.REAL,
        asks="Every step of a job that loses half of its replicas to SIGKILL counts each microbatch exactly once.",
    ),
    Claim(
        "weights", _largest("apart"), kind=Kind.AT_MOST, value=1e-5, unit="value", evidence=Evidence.REAL,
        asks="Its last weights are those of the job in which nobody died, to 0.01 thousandths of their norm.",
    ),
    Claim(
        "dropping", mean("apart", experiment="live", system="drop-and-go"), kind=Kind.AT_LEAST, value=1e-3,
        unit="value", evidence=Evidence.REAL,
        asks="With dead replicas dropped, weights end at least 1 thousandth of their norm away.",
    ),
    Claim(
        "recovery", _largest("recovery"), kind=Kind.AT_MOST, value=3 * TIMEOUT, unit="s", evidence=Evidence.REAL,
        asks="Survivors have agreed to go on within 15 s of a death, three times the time-out.",
    ),
    Claim(
        "quick-restart", _throughput(RESTARTS[0]), kind=Kind.RATIO, toward="up",
        asks="Effective throughput is above that of restarts that take only 20 s.",
    ),
    Claim(
        "spares", ratio("effective", of={"system": "recover"}, to={"system": "spares"}, experiment="fleet",
                        layout="3d", anew=ANEW), kind=Kind.RATIO, toward="up",
        asks="Effective throughput is above that of spares enough to replace every replica that dies.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Tokens for a second of a GPU that is alive, by rule and by how long a restart takes."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "fleet").group_by("layout", "anew", "system", maintain_order=True)
    means = found.agg(pl.col("effective").mean()).with_columns(
        case=pl.format("{}, restart {} s", "layout", pl.col("anew").cast(pl.Int64))
    )
    chart: alt.Chart = (
        alt.Chart(means)
        .mark_bar()
        .encode(
            x=alt.X("effective:Q", title="tokens a second of a GPU that is alive"),
            y=alt.Y("system:N", title=None, sort=list(fleet.SYSTEMS)),
            color=alt.Color("system:N", legend=None),
            row=alt.Row("case:N", title=None, sort=means["case"].unique(maintain_order=True).to_list(),
                        header=alt.Header(labelAngle=0, labelAlign="left")),
        )
        .properties(width=380, height=70, title="512 GPUs lose half of their replicas, one in five steps")
    )  # fmt: skip
    return chart
