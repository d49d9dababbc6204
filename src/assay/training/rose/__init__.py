"""ROSE: roll out on serving GPUs while they have time and memory to spare, and yield before a request is late.

Serving clusters are sized for their peaks. ROSE keeps the rollout model on serving GPUs and takes a rollout tick only
where every request could still be in time after it (slack of first tokens and of next tokens); keys and values of
rollouts stay out of a reserved headroom, and are halved when serving comes near it. Turns are routed one by one, to
where their keys and values lie, to dedicated GPUs, then to serving ones. New weights cross between clusters as what
changed, where little did.

Here: serving and rollouts tick by tick on modelled GPUs, requests from Azure's trace (or generated in its format with
its burstiness); rivals are fixed GPUs, synchronous (ROLL) or asynchronous with the split tuned (AReaL). The codec runs
on successive checkpoints of a small policy that is really trained. Spot and serverless rivals are not here.

HKUST and Alibaba, arXiv:2605.06534.

>>> targets("qwen3-8b")  # seconds to the first token, and between tokens
(0.15, 0.5)
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals
from assay.record.measures import Measure, best, change, mean, not_here, ratio, rows, share
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.layouts import Memory, read_layout
from assay.sim.models import model
from assay.sim.random import stream
from assay.sim.step_times import step_time, trust_of
from assay.training.engine import post_training
from assay.training.rose import codec
from assay.training.rose.executor import LANES, Cluster, Policy, p99
from assay.training.rose.executor import share as run_beside
from assay.workloads.requests import Requests
from assay.workloads.trajectories import Trajectories, draw

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "Serving GPUs idle between bursts, rollouts are the longer side, and both clusters are joined by a network."
avoid_when = (
    "Serving is near its capacity: nothing is to spare, and who comes during a rollout tick is late where serving "
    "alone is just in time. Or weights are sent in float32: then all of them change."
)
trust = (
    f"Step times: {trust_of('h100:qwen3-8b')} Two models on one GPU are taken to compute one after the other without a "
    "price for switching, and to be activated before a step begins."
)
own_input = "assay compare rose --trace examples/azure.csv --trajectories examples/trajectories.jsonl"
references = ("ROLL: Wang et al., 2025. AReaL: Fu et al., 2025. Requests: AzurePublicDataset, 2023 (CC-BY).",)
TRACE = "AzureLLMInferenceTrace_conv.csv"

MODELS = {"qwen3-8b": 1, "qwen3-32b": 4}  # and GPUs of an instance
DEVICE = "h100"
TRAIN, DEDICATED, SERVING = 4, 2, 4  # instances; training in GPUs per GPU of an instance
GBIT = 20e9 / 8
NO_GPUS = "activating a co-resident model takes seconds on a GPU with both models in memory; no GPU fleet is here"


def targets(name: str) -> tuple[float, float]:
    """The paper's: 150 and 500 ms for small models, 450 and 1000 ms for large ones."""
    return (0.150, 0.500) if model(name).params < 16e9 else (0.450, 1.0)


def generated(seed: int, seconds: float, rate: float) -> Requests:
    """Requests like Azure's: lognormal lengths, and a rate that is several times its mean in some seconds."""
    random = stream(seed, "azure-like requests")
    slots = np.arange(0.0, seconds, 1.0)
    minute = np.exp(0.25 * random.standard_normal(int(seconds // 60) + 1))[(slots // 60).astype(int)]
    burst = random.gamma(1.6, 1 / 1.6, len(slots))
    counts = random.poisson(rate * minute / minute.mean() * burst)
    arrival = np.sort(np.repeat(slots, counts) + random.random(counts.sum()))
    prompt = np.clip(900 * np.exp(0.8 * random.standard_normal(len(arrival))), 16, 4000).astype(int)
    output = np.clip(150 * np.exp(0.8 * random.standard_normal(len(arrival))), 1, 1000).astype(int)
    return Requests.of(arrival, prompt, output)


@lru_cache(maxsize=8)
def _trace(path: str) -> Requests:
    from assay.workloads.request_files import read

    return read(path)


def requests(trace: str, seed: int, seconds: float, rate: float) -> Requests:
    """A stretch of the trace, or of what is generated where it is not at hand, at so many requests a second."""
    if not trace:
        return generated(seed, seconds, rate)
    whole = _trace(trace)
    faster = whole.faster(rate / whole.rate)
    latest = max(0.0, faster.arrival[-1] - seconds)
    begin = float(stream(seed, "stretch of the trace").random()) * latest
    start, stop = np.searchsorted(faster.arrival, [begin, begin + seconds])
    return faster.part(int(start), int(stop))


def cluster(name: str, dedicated: int = DEDICATED, serving: int = SERVING) -> Cluster:
    """Instances of one model that serve, and of one of its size that rolls out, both in the memory of each."""
    text = f"{DEVICE}:{name}" + (f":tp{MODELS[name]}" if MODELS.get(name, 1) > 1 else "")
    cost = step_time(text).cost
    weights = Memory(read_layout(text)).weights * read_layout(text).ranks
    room = int(cost.kv_tokens - weights / cost.kv_bytes)  # the second model's weights lie where keys and values would
    return Cluster(dedicated, serving, cost, cost, room)


_NO_INTS, _NO_FLOATS = np.zeros(0, dtype=np.int64), np.zeros(0)
NOBODY = Trajectories(np.zeros(1, dtype=np.int64), _NO_INTS, _NO_INTS, _NO_FLOATS, _NO_INTS, _NO_INTS)


def trained(name: str, rate: float, count: int, trace: str, seed: int) -> dict[str, dict[str, Any]]:
    """One RL step with fixed GPUs, synchronous and not, with ROSE, and with ROSE's parts left out."""
    work = draw(count, seed)
    ttft, tpot = targets(name)
    asked = requests(trace, seed, 1500.0, rate * SERVING)
    gpus = MODELS[name]
    train, _ = post_training.seconds(name, DEVICE, TRAIN * gpus, work)
    fixed = cluster(name, serving=0)
    none = Requests.of([], [], [])
    alone = run_beside(work, none, fixed, Policy(places=LANES))
    both = cluster(name)
    manners = {
        "rose": Policy(ttft=ttft, tpot=tpot),
        "turns": Policy(guard="turns", ttft=ttft, tpot=tpot),
        "no-guard": Policy(guard="none", ttft=ttft, tpot=tpot),
        "no-affinity": Policy(affine=False, ttft=ttft, tpot=tpot),
    }
    found = {"roll": _row(alone, alone.makespan + train, work)}
    found["areal"] = _row(alone, _areal(name, work), work)
    for system, policy in manners.items():
        one = run_beside(work, asked, both, policy)
        found[system] = _row(one, one.makespan + train, work)
    return found


def served(name: str, rate: float, count: int, trace: str, seed: int) -> dict[str, dict[str, Any]]:
    """The same requests answered beside guarded rollouts, beside unguarded ones, and alone for as long as the first."""
    work, both = draw(count, seed), cluster(name)
    ttft, tpot = targets(name)
    asked = requests(trace, seed, 1500.0, rate * SERVING)
    guarded = run_beside(work, asked, both, Policy(ttft=ttft, tpot=tpot))
    alone = run_beside(NOBODY, asked, both, Policy(), seconds=guarded.makespan)
    free = run_beside(work, asked, both, Policy(guard="none", ttft=ttft, tpot=tpot))
    met = p99(alone.ttft) <= ttft and p99(alone.tpot) <= tpot
    return {
        system: {
            "ttft_within": float(np.mean(one.ttft <= ttft)), "tpot_within": float(np.mean(one.tpot <= tpot)),
            "ttft_p99": p99(one.ttft), "tpot_p99": p99(one.tpot), "borrowed": one.borrowed,
            "kept": p99(one.ttft) <= ttft and p99(one.tpot) <= tpot, "alone_kept": met,
        }
        for system, one in {"alone": alone, "rose": guarded, "no-guard": free}.items()
    }  # fmt: skip


def _areal(name: str, work: Trajectories) -> float:
    """Seconds of a step where rollout and training overlap, with the best split of the same GPUs."""
    gpus = MODELS[name]
    steps: list[float] = []
    for dedicated in range(1, TRAIN + DEDICATED - 1):
        train, _ = post_training.seconds(name, DEVICE, (TRAIN + DEDICATED - dedicated) * gpus, work)
        rolled = run_beside(work, Requests.of([], [], []), cluster(name, dedicated, 0), Policy(places=LANES))
        steps.append(max(train, rolled.makespan))
    return min(steps)


def _row(one: Any, step: float, work: Trajectories) -> dict[str, Any]:
    return {
        "throughput": float(work.written.sum()) / step, "step": step, "rollout": one.makespan,
        "finished": int(np.isfinite(one.done).sum()), "aborts": one.aborts, "reread": one.reread,
        "halved": one.halved, "borrowed": one.borrowed,
    }  # fmt: skip


def synced(rate: float, bf16: bool, steps: int, seed: int) -> dict[str, Any]:
    """Successive checkpoints of a small policy through the codec, and what that means for a large one at 20 Gb/s."""
    kept = codec.checkpoints(steps, rate, seed, bf16)
    sent = whole = changed = total = 0
    same = True
    for old, new in pairwise(kept):
        packets = codec.encode(old, new, shards=4)
        again = codec.decode(old, packets)
        same &= all(np.array_equal(again[name], new[name]) for name in new)
        sent += sum(packet.nbytes for packet in packets)
        whole += sum(x.nbytes for x in new.values())
        changed += sum(int((old[name] != new[name]).sum()) for name in new)
        total += sum(x.size for x in new.values())
    large = model("qwen3-32b").params * (2 if bf16 else 4)
    return {
        "unchanged": 1 - changed / total, "bytes": sent / whole, "same": same,
        "sync": codec.transfer(large * sent / whole, GBIT), "dense": codec.transfer(large, GBIT),
    }  # fmt: skip


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Steps beside serving; requests in time at several loads; and weights through the codec."""
    found = lab.trace_or_none(TRACE)
    trace = str(found) if found else ""
    common = {"count": lab.pick(quick=768, full=1536), "trace": trace}
    loads = [("qwen3-8b", rate) for rate in lab.pick(quick=(0.5, 8.0), full=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0))]
    loads += [("qwen3-32b", rate) for rate in lab.pick(quick=(0.5,), full=(0.25, 0.5, 1.0))]
    rates = [("qwen3-8b", rate) for rate in lab.pick(quick=(1.0, 4.0, 8.0, 12.0), full=(0.5, 1, 2, 4, 6, 8, 10, 12))]
    rates += [("qwen3-32b", rate) for rate in lab.pick(quick=(1.0,), full=(0.5, 1.0, 2.0, 4.0, 8.0))]
    cases, asked = ([{"name": name, "rate": rate} | common for name, rate in each] for each in (loads, rates))
    sends = [{"rate": 1e-6, "bf16": True}, {"rate": 1e-3, "bf16": True}, {"rate": 1e-6, "bf16": False}]
    steps = {"steps": lab.pick(quick=4, full=20)}
    return {
        "steps": lab.with_seeds(quick=2, full=5).run(trained, cases, per="system"),
        "serving": lab.with_seeds(quick=2, full=5).run(served, asked, per="system"),
        "sync": lab.with_seeds(quick=3, full=5).run(synced, [one | steps for one in sends]),
    }


QUIET = {"qwen3-8b": 0.5, "qwen3-32b": 0.5}
SATURATED = 8.0


def _gain(name: str, than: str) -> Measure:
    return ratio("throughput", of={"system": "rose"}, to={"system": than}, experiment="steps", name=name,
                 rate=QUIET[name])  # fmt: skip


def _all() -> dict[str, Measure]:
    return {f"{name} against {than}": _gain(name, than) for name in MODELS for than in ("roll", "areal")}


def _kept(system: str) -> Measure:
    """Of the runs in which serving alone is in time, how many are with rollouts."""

    def measure(table: pl.DataFrame) -> Estimate:
        found = rows(table, {"experiment": "serving", "system": system}).filter(pl.col("alone_kept"))
        return intervals.clopper_pearson(int(found["kept"].sum()), len(found))

    return measure


claims = [
    Claim("best", best(_all())),
    Claim("least", best(_all(), min)),
    Claim("serving", _kept("rose")),
    Claim("sync", mean("sync", experiment="sync", rate=1e-6, bf16=True)),
    Claim("allocation", not_here(NO_GPUS)),
    Claim(
        "guard", _kept("no-guard"), kind=Kind.AT_MOST, value=0.5, unit="share",
        asks="Without the test for slack, at most half of the runs in which serving alone keeps its targets keep them.",
    ),
    Claim(
        "turns", ratio("throughput", of={"system": "rose"}, to={"system": "turns"}, experiment="steps", name="qwen3-8b",
                       rate=0.5), kind=Kind.RATIO, toward="up",
        asks="Throughput exceeds that of plain turns between serving and rollout ticks on the same GPUs.",
    ),
    Claim(
        "affinity", ratio("reread", of={"system": "no-affinity"}, to={"system": "rose"}, experiment="steps",
                          name="qwen3-8b", rate=0.5), kind=Kind.RATIO, toward="up",
        asks="Without affinity more tokens of contexts are read again.",
    ),
    Claim(
        "saturated", change("step", new={"system": "rose"}, old={"system": "roll"}, experiment="steps",
                            name="qwen3-8b", rate=SATURATED), kind=Kind.AT_MOST, value=0.02, unit="change",
        asks="Where serving has nothing to spare, a step takes at most 2 % longer than on the dedicated GPUs alone.",
    ),
    Claim(
        "bits", share("same", experiment="sync"), kind=Kind.EVERY, evidence=Evidence.REAL,
        asks="Weights come out of the codec as they went in, bit for bit, sparse or not.",
    ),
    Claim(
        "sparse", mean("unchanged", experiment="sync", rate=1e-6, bf16=True), kind=Kind.AT_LEAST, value=0.95,
        unit="share", evidence=Evidence.REAL,
        asks="At least 95 % of a small policy's bfloat16 weights stay as they are in an RL step at a rate of 1e-6.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """P99 of the time to the first token by load, with and without the guard."""
    import altair as alt

    told = {"alone": "alone", "rose": "with guarded rollouts", "no-guard": "with rollouts, no guard"}
    found = table.filter(pl.col("experiment") == "serving", pl.col("name") == "qwen3-8b")
    found = found.group_by("rate", "system", maintain_order=True).agg(pl.col("ttft_p99").mean().alias("ttft"))
    found = found.with_columns(pl.col("system").replace(told).alias("serving"))
    chart: alt.Chart = (
        alt.Chart(found)
        .mark_line(point=True)
        .encode(
            x=alt.X("rate:Q", title="requests a second and GPU"),
            y=alt.Y("ttft:Q", title="P99 time to first token, s", scale=alt.Scale(type="log")),
            color=alt.Color("serving:N", title=None),
        )
        .properties(width=420, height=280, title=f"Serving beside rollouts ({DEVICE}, qwen3-8b)")
    )
    return chart


def beside(asked: Requests, work: Trajectories, name: str, serving: int, dedicated: int) -> dict[str, Any]:
    """The user's requests and trajectories on shared GPUs: what `assay compare rose` prints."""
    ttft, tpot = targets(name)
    alone = run_beside(work, Requests.of([], [], []), cluster(name, dedicated, 0), Policy(places=LANES))
    table: list[dict[str, Any]] = [
        {"system": "dedicated GPUs only", "rollout": alone.makespan, "finished": int(np.isfinite(alone.done).sum())}
    ]
    quiet = run_beside(NOBODY, asked, cluster(name, dedicated, serving), Policy(), seconds=max(asked.seconds, 1.0))
    table.append({"system": "serving only", "ttft_p99": p99(quiet.ttft), "tpot_p99": p99(quiet.tpot)})
    for system, policy in {
        "rose": Policy(ttft=ttft, tpot=tpot),
        "turns": Policy(guard="turns"),
        "no guard": Policy(guard="none"),
    }.items():
        one = run_beside(work, asked, cluster(name, dedicated, serving), policy)
        table.append({
            "system": system, "rollout": one.makespan, "finished": int(np.isfinite(one.done).sum()),
            "ttft_p99": p99(one.ttft), "tpot_p99": p99(one.tpot), "borrowed": one.borrowed, "aborts": one.aborts,
        })  # fmt: skip
    gain = alone.makespan / table[2]["rollout"]
    kept = table[2]["ttft_p99"] <= ttft and table[2]["tpot_p99"] <= tpot
    met = table[1]["ttft_p99"] <= ttft and table[1]["tpot_p99"] <= tpot
    serving_told = (
        "keeps its targets"
        if kept
        else ("misses its targets" if met else "misses its targets, as it does alone: use more serving GPUs")
    )
    columns = ("system", "rollout", "finished", "ttft_p99", "tpot_p99", "borrowed", "aborts")
    table = [{column: row.get(column) for column in columns} for row in table]
    return {
        "job": {"model": name, "device": DEVICE, "serving": serving, "dedicated": dedicated, "requests": len(asked),
                "trajectories": len(work), "ttft_target": ttft, "tpot_target": tpot},
        "table": table, "units": dict.fromkeys(("rollout", "ttft_p99", "tpot_p99", "ttft_target", "tpot_target"), "s"),
        "why": f"With serving GPUs lent, rollouts end {gain:.2f} times as soon, and serving {serving_told}.",
        "trust": trust,
    }  # fmt: skip
