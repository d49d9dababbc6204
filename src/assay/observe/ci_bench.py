"""Continuous benchmarking: run like tests, from layered configuration, each result kept with its environment.

A benchmark that somebody ran once, by hand, on their own account, tells nothing a year later. The paper's framework
runs benchmarks as a pipeline instead: what to run is resolved from layers (base, model, machine, user; what comes
later wins), names no user and no home, and is stored with the result together with the environment it ran in. Anyone
can run it again.

The paper leaves open how to tell a slower commit from a noisy machine; here that is half the work. Two commits are
compared in turns, a pair of fresh processes at a time, and judged by an exact rank test with a stated error;
instructions are counted where time cannot decide; a history of commits is searched for steps.

What to watch for: "undecided" is an answer: the noise was too large for so few pairs, and the column `resolves` says
which change would have been seen. "error" means that a benchmark did not run, which is neither pass nor regression.
Points of a history were taken hours apart: before blaming a commit, compare it with the one before in turns.

The study plants regressions in a real git history, makes comparisons of equal code among them, and asks how often each
kind is called. Steps in a history are planted into this machine's own noise, recorded from fresh processes.

"Continuous benchmarking: Keeping pace with an evolving ecosystem of models and technologies", arXiv:2604.15919. Here:
`assay.observe.bench`, its `config`, `judge`, `instructions`, `history` and `store`.

>>> from assay.observe.bench.config import merge
>>> machine = {"threads": 2, "tags": ["cpu"]}
>>> merge(machine, {"threads": 96, "tags": ["genoa"]})
{'threads': 96, 'tags': ['cpu', 'genoa']}
>>> from assay.observe.bench.judge import Rule, judge
>>> judge([0.021, 0.018, 0.024, 0.019, 0.022, 0.020, 0.017, 0.023, 0.020, 0.021], Rule()).decision
'regression'
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from assay.observe.bench import checkouts, compare
from assay.observe.bench import config as bench_config
from assay.observe.bench import instructions as bench_instructions
from assay.observe.bench import lab as bench_lab
from assay.observe.bench.judge import IMPROVEMENT, NO_CHANGE, REGRESSION, UNDECIDED, judge_counts
from assay.observe.bench.processes import Bench
from assay.observe.bench.steps import METHODS, UNTUNED, contest, recorded
from assay.record import charts, intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL  # real commits, real processes, this machine's own noise
use_when = (
    "A repository's speed matters and its machines are noisy: compare a branch with main before merging, keep a "
    "history, and know the probability of a false alarm beforehand."
)
avoid_when = (
    "One run takes minutes (ten pairs of processes are the least that can decide), the code waits for a network or a "
    "disk that nobody controls, or a change below one per cent must be seen in time and cannot be in instructions."
)
own_input = "assay bench compare main .    assay bench run --last 20    assay bench watch --html bench.html"
references = (
    "Predecessor: Albers et al., A modular workflow for performance benchmarking of neuronal networks, 2022.",
    "Steps in series: Fleming et al., Hunter: using change point detection to hunt for performance regressions, 2023.",
)

LAYERS = {
    "base.toml": 'min_change = 0.01\npath = ["lib"]\n[benchmark.simulate]\ncall = "spiking.network:simulate"\n',
    "model.toml": 'extends = "base.toml"\n[benchmark.simulate]\nargs = [400]\n',
    "machine.toml": 'extends = "model.toml"\nrounds = 5\npath = { replace = ["."] }\n[env]\nOMP_NUM_THREADS = "1"\n',
    "user.toml": 'extends = "machine.toml"\nsample = 0.0005\nstore = "history"\n',
}


# --------------------------------------------------------------------------------------------- the study


def comparisons(change: float, replicas: int, pairs: int, rounds: int, seed: int) -> dict[str, Any]:
    """Compare a commit with one that does so much more work (0: with one that differs in words only)."""
    decisions: list[str] = []
    changes: list[float] = []
    resolved: list[float] = []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        for replica in range(replicas):
            repository = Path(name) / f"r{replica}"
            commits = bench_lab.history(repository, [change], seed * 1000 + replica)
            config = bench_config.load(repository / "bench.toml")
            config = msgspec.structs.replace(config, instructions="never", pairs=pairs, rounds=rounds)
            refs = [commit.name for commit in commits]
            with (
                checkouts.session() as folder,
                checkouts.checkouts(repository, refs, folder) as (base, head),
            ):
                (one,) = compare.side_by_side(config, base, head, folder, lambda done, total: None)
            decisions.append(one.decision)
            if one.time is not None:
                changes.append(one.time.change)
                resolved.append(one.time.resolvable or float("nan"))
    return {
        "comparisons": replicas,
        "found": decisions.count(REGRESSION),
        "alarms": decisions.count(REGRESSION) + decisions.count(IMPROVEMENT),
        "no_change": decisions.count(NO_CHANGE),
        "undecided": decisions.count(UNDECIDED),
        "change_mean": sum(changes) / len(changes) if changes else None,
        "resolvable_mean": sum(resolved) / len(resolved) if resolved else None,
        "took_mean": (time.monotonic() - begun) / replicas,
    }


def counts(hash_seeds: int, seed: int) -> dict[str, dict[str, Any]]:
    """The same by instructions alone: a commit that differs in words only, then one that does 2 % more work."""
    if why := bench_instructions.counter().why:
        return {change: {"comparisons": 1, "found": None, "alarms": None, "why": why} for change in ("0", "0.02")}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        repository = Path(name) / "repository"
        commits = bench_lab.history(repository, [0.0, 0.02], seed)
        config = bench_config.load(repository / "bench.toml")
        refs = [commit.name for commit in commits]
        with checkouts.session() as folder, checkouts.checkouts(repository, refs, folder) as sides:
            benches = [Bench("simulate", config.benchmark["simulate"], config, side, folder) for side in sides]
            counted = bench_instructions.counts(benches, 2, range(hash_seeds))
    rows = {}
    for position, commit in enumerate(commits[1:]):
        judgement = judge_counts(counted[position], counted[position + 1], config.min_change)
        rows[f"{commit.change:g}"] = {
            "comparisons": 1,
            "found": int(judgement.decision == REGRESSION),
            "alarms": int(judgement.decision in (REGRESSION, IMPROVEMENT)),
            "change_mean": judgement.change,
            "took_mean": (time.monotonic() - begun) / 2,
        }
    return rows


def again(seed: int) -> dict[str, Any]:
    """Two people, two homes, two folders: each runs the same layered configuration; do they store the same?"""
    with tempfile.TemporaryDirectory() as name:
        people = ("ada", "bartholomew")
        with ThreadPoolExecutor(max_workers=len(people)) as pool:  # what is stored matters here, not how long it took
            stored = list(pool.map(lambda person: _as_user(Path(name) / person, person, seed), people))
        unlike = [key for key in stored[0] if stored[0][key] != stored[1][key]]
        rebuilt = msgspec.convert(stored[0]["config"], bench_config.Config)
        homes = str(Path(name)) in json.dumps(stored)
    return {"same": not unlike and rebuilt.digest == stored[0]["digest"] and not homes, "unlike": ", ".join(unlike)}


def _as_user(home: Path, person: str, seed: int) -> dict[str, Any]:
    """What `assay bench run` stores for one person, but for the times and the load."""
    repository = home / "work" / f"{person}s-checkout"
    bench_lab.history(repository, [0.0], seed)
    for layer, text in LAYERS.items():
        (repository / layer).write_text(text)
    env = {**os.environ, "HOME": str(home), "USER": person, "LOGNAME": person}
    command = [sys.executable, "-m", "assay.cli.main", "bench", "run", "--config", "user.toml", "--json"]
    ended = subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode:
        raise RuntimeError(f"assay bench run failed: {ended.stderr.strip() or ended.stdout[-300:]}")
    (run,) = [entry["run"] for entry in json.loads(ended.stdout)]
    run["fingerprint"].pop("load")
    ran = {name: bool(measured["seconds"]) for name, measured in run["results"].items()}
    return {**{key: run[key] for key in ("commit", "dirty", "config", "digest", "fingerprint", "machine")}, "ran": ran}


def steps(commits: int, histories: int, seed: int) -> dict[str, dict[str, Any]]:
    """Plant steps into this machine's recorded noise; every method is tuned to be silent on other noise of the same."""
    noise = recorded(2 * commits, seed)
    return {method: {**asdict(score), "f1": score.f1} for method, score in contest(noise, histories, seed).items()}


def study(lab: Lab) -> pl.DataFrame:
    """Comparisons with and without a planted change, by time and by count; two users; steps in histories."""
    timed = [
        {"change": change, "replicas": lab.pick(quick=1, full=20 if change == 0 else 2)}
        for change in lab.pick(quick=(0.0, 0.05), full=(0.0, 0.02, 0.05, 0.1))
    ]
    size = {"pairs": lab.pick(quick=10, full=60), "rounds": lab.pick(quick=20, full=30)}
    histories = {"commits": lab.pick(quick=45, full=150), "histories": lab.pick(quick=20, full=100)}
    few = lab.with_seeds(quick=2, full=10)
    # What is quick starts its own processes: a worker around them would only cost another start of Python.
    one = replace(lab.with_seeds(quick=1, full=10), workers=lab.pick(quick=0, full=lab.workers))
    parts = {
        "compare": replace(few, workers=one.workers).run(comparisons, [case | size for case in timed], alone=True),
        "count": one.run(counts, [{"hash_seeds": lab.pick(quick=1, full=3)}], per="change").cast(
            {"change": pl.Float64}
        ),
        "again": one.run(again, [{}]),
        "steps": few.run(steps, [histories], per="method"),
    }
    tables = [table.select(pl.lit(name).alias("experiment"), pl.all()) for name, table in parts.items()]
    table = pl.concat(tables, how="diagonal_relaxed")
    case = ["experiment", "change", "method", *size, "replicas", "hash_seeds", *histories, "seed"]
    return table.select(*case, pl.exclude(case))


def plot(table: pl.DataFrame) -> alt.VConcatChart:
    """How often each method finds a planted step, and how often it cries wolf."""
    import altair as alt

    rows = table.filter(pl.col("experiment") == "steps").group_by("method", maintain_order=True).agg(
        pl.col("found", "planted", "false", "unchanged").sum()
    )  # fmt: skip
    panels = []
    for asked, value, hue in (
        ("planted steps found, %", pl.col("found") / pl.col("planted"), charts.PALETTE[0]),
        ("unchanged commits taken for a step, %", pl.col("false") / pl.col("unchanged"), charts.PALETTE[1]),
    ):
        bars = alt.Chart(rows.select("method", value=100 * value)).encode(
            y=alt.Y("method:N", sort=[*METHODS, *UNTUNED], title=None),
            x=alt.X("value:Q", title=asked, scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(tickCount=5)),
        )  # fmt: skip
        numbers = bars.mark_text(align="left", dx=4).encode(text=alt.Text("value:Q", format=".3~g"))
        panels.append((bars.mark_bar(size=12, color=hue) + numbers).properties(width=520, height=120))
    title = alt.Title(
        "Steps planted in this machine's noise",
        subtitle="Each method's dial set on noise without steps, but for the last: what many pipelines do",
    )
    chart: alt.VConcatChart = alt.vconcat(*panels, title=title)
    return chart


# -------------------------------------------------------------------------------------------- the claims


def counted(column: str, change: float) -> measures.Measure:
    """The share of comparisons by instructions; not measured where nothing can count them."""

    def measure(table: pl.DataFrame) -> Estimate:
        rows = measures.rows(table, {"experiment": "count", "change": change})
        if rows[column].null_count():
            raise NotMeasured(f"instructions cannot be counted here: {rows['why'][0]}")
        return measures.probability(column, "comparisons")(rows)

    return measure


def false_share(method: str) -> measures.Measure:
    """The share of unchanged commits at which a method saw a step.

    Histories are cut from the same recorded noise and share its processes: the interval is that of as many trials as
    processes were recorded, however many histories were cut from them.
    """

    def measure(table: pl.DataFrame) -> Estimate:
        rows = measures.rows(table, {"experiment": "steps", "method": method})
        share, fresh = int(rows["false"].sum()) / int(rows["unchanged"].sum()), int(rows["commits"].sum())
        low = intervals.clopper_pearson(math.floor(share * fresh), fresh).low
        return Estimate(share, low, intervals.clopper_pearson(math.ceil(share * fresh), fresh).high, fresh)

    return measure


def misplaced(table: pl.DataFrame) -> Estimate:
    """How many commits the steps that were found are off."""
    rows = measures.rows(table, {"experiment": "steps", "method": "e-divisive"})
    found = rows["misplaced"].drop_nulls()
    if found.is_empty():
        raise NotMeasured("no step was found: other work on this machine hides them; run it again when it is idle")
    return intervals.bootstrap(found.to_list())


def best_rival(table: pl.DataFrame) -> Estimate:
    """The F1 of our steps less that of the best other tuned method, over all histories."""
    rows = measures.rows(table, {"experiment": "steps"})
    means = {name: intervals.bootstrap(part["f1"].to_list()) for (name,), part in rows.group_by("method")}
    rivals = [name for name in means if name != "e-divisive" and name not in UNTUNED]
    best = max(rivals, key=lambda name: means[name].value)
    if means[best].value == means["e-divisive"].value == 0:
        raise NotMeasured("no method found a step: other work on this machine hides them; run it again when it is idle")
    pairs = [rows.filter(pl.col("method") == name).sort("seed")["f1"] for name in ("e-divisive", best)]
    return intervals.bootstrap((pairs[0] - pairs[1]).to_list())


claims = [
    Claim("reusable", measures.share("same", experiment="again")),
    Claim("keeps-up", measures.not_here("needs several HPC systems over years; here is one machine and one afternoon")),
    Claim(
        "question-1",
        measures.probability("found", "comparisons", experiment="compare", change=0.05),
        asks="a planted regression of 5 % is found by time, with probability.",
        kind=Kind.AT_LEAST,
        value=0.8,
        unit="?",
    ),
    Claim(
        "question-2",
        measures.probability("alarms", "comparisons", experiment="compare", change=0.0),
        asks="equal code is called changed by time, with probability.",
        kind=Kind.AT_MOST,
        value=0.02,
        unit="?",
    ),
    Claim(
        "question-3",
        counted("found", 0.02),
        asks="a planted regression of 2 % is found by instruction count, with probability.",
        kind=Kind.AT_LEAST,
        value=0.9,
        unit="?",
    ),
    Claim(
        "question-4",
        counted("alarms", 0.0),
        asks="equal code is called changed by instruction count, with probability.",
        kind=Kind.AT_MOST,
        value=0.02,
        unit="?",
    ),
    Claim(
        "question-5",
        false_share("e-divisive"),
        asks="an unchanged commit of a history is taken for a step, with probability.",
        kind=Kind.AT_MOST,
        value=0.001,
        unit="?",
    ),
    Claim(
        "question-6",
        misplaced,
        asks="a step that was found lies so many commits off, at the median.",
        kind=Kind.AT_MOST,
        value=1.0,
        unit="?",
    ),
    Claim(
        "question-7",
        best_rival,
        asks="F1 of steps found in histories beyond the best of the other methods, each tuned to be as silent.",
        kind=Kind.AT_LEAST,
        value=0.0,
        unit="?",
    ),
]
