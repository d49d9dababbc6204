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

The study plants regressions in a real git history, makes comparisons of equal code among them, and asks what each kind
is measured to be and how often it is called. Steps in a history are planted into real noise: that of benchmarks on
public cloud machines over months, and at full size this machine's own; Apache Otava and asv look for them too where
they are installed (`pip install apache-otava asv`).

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
from assay.observe.bench.judge import IMPROVEMENT, NO_CHANGE, REGRESSION, UNDECIDED, judge_counts
from assay.observe.bench.processes import Bench
from assay.observe.ci_bench import lab as bench_lab
from assay.observe.ci_bench.step_cases import METHODS, PEERS, UNTUNED, contest, of_clouds, recorded
from assay.observe.series.trials import FOLDER
from assay.record import charts, intervals, measures, traces
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.random import stream
from assay.sim.scratch import scratch

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL  # real commits, real processes; steps in histories are a replay
use_when = (
    "A repository's speed matters and its machines are noisy: compare a branch with main before merging, keep a "
    "history, and know the probability of a false alarm beforehand."
)
avoid_when = (
    "One run takes minutes (ten pairs of processes are the least that can decide), the code waits for a network or a "
    "disk that nobody controls, or a change below one per cent must be seen in time and cannot be in instructions."
)
own_input = "assay bench compare HEAD . --config examples/bench.toml"
replays = ("azure-vm-noise",)
references = (
    "Predecessor: Albers et al., A modular workflow for performance benchmarking of neuronal networks, 2022.",
    "Steps in series: Fleming et al., Hunter: using change point detection to hunt for performance regressions, 2023.",
)

LAYERS = {
    "base.toml": 'min_change = 0.01\npath = ["lib"]\n[benchmark.simulate]\ncall = "spiking.network:simulate"\n',
    "model.toml": 'extends = "base.toml"\n[benchmark.simulate]\nargs = [400]\n',
    "machine.toml": 'extends = "model.toml"\nrounds = 5\npath = { replace = ["."] }\n[env]\nOMP_NUM_THREADS = "1"\n',
    "user.toml": 'extends = "machine.toml"\nsample = 0.0005\nstore = "history"\ninstructions = "always"\n',
}
PEOPLE = ("ada", "bartholomew", "chandra", "dmitri", "eun-ji", "fatoumata")
ZONES, TONGUES = ("UTC", "Asia/Kolkata", "America/St_Johns"), ("C", "C.UTF-8", "POSIX")


# --------------------------------------------------------------------------------------------- the study


def comparisons(change: float, replicas: int, pairs: int, rounds: int, seed: int) -> dict[str, Any]:
    """Compare a commit with one that does so much more work (0: with one that differs in words only)."""
    decisions: list[str] = []
    changes: list[float] = []
    resolved: list[float] = []
    random = stream(seed, "ci-bench", "comparisons", round(1000 * change))
    begun = time.monotonic()
    with scratch() as place:
        for replica in range(replicas):
            repository = place / f"r{replica}"
            commits = bench_lab.history(repository, [change], int(random.integers(1 << 62)))
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
        missing = {"comparisons": 1, "found": None, "alarms": None, "change_mean": None, "why": why}
        return {change: dict(missing) for change in ("0", "0.02")}
    hashes = stream(seed, "ci-bench", "hashes").integers(1 << 32, size=hash_seeds).tolist()
    begun = time.monotonic()
    with scratch() as place:
        repository = place / "repository"
        commits = bench_lab.history(repository, [0.0, 0.02], seed)
        config = bench_config.load(repository / "bench.toml")
        refs = [commit.name for commit in commits]
        with checkouts.session() as folder, checkouts.checkouts(repository, refs, folder) as sides:
            benches = [Bench("simulate", config.benchmark["simulate"], config, side, folder) for side in sides]
            counted = bench_instructions.counts(benches, 2, hashes)
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
    """Two people, two homes, two time zones: each runs the same layered configuration. Do they get the same?"""
    random = stream(seed, "ci-bench", "people")
    people, zones, tongues = (random.permutation(some)[:2].tolist() for some in (PEOPLE, ZONES, TONGUES))
    with scratch() as place:
        asked = [(place / who, zone, tongue) for who, zone, tongue in zip(people, zones, tongues, strict=True)]
        with ThreadPoolExecutor(max_workers=2) as pool:  # what is stored matters here, not how long it took
            stored = list(pool.map(lambda one: _as_user(one[0], one[1], one[2], seed), asked))
        counts = [float(one.pop("counted") or math.nan) for one in stored]
        unlike = [key for key in stored[0] if stored[0][key] != stored[1][key]]
        rebuilt = msgspec.convert(stored[0]["config"], bench_config.Config)
        homes = str(place) in json.dumps(stored)
    off = abs(math.log(counts[0] / counts[1]))
    same = not unlike and rebuilt.digest == stored[0]["digest"] and not homes and not off > rebuilt.min_change
    return {"same": same, "unlike": ", ".join(unlike), "counts_off": None if math.isnan(off) else off}


def _as_user(home: Path, zone: str, tongue: str, seed: int) -> dict[str, Any]:
    """What `assay bench run` stores for one person, but for the times and the load, and the instructions it counted."""
    person = home.name
    repository = home / "work" / f"{person}s-checkout"
    bench_lab.history(repository, [0.0], seed)
    for layer, text in LAYERS.items():
        (repository / layer).write_text(text)
    env = {name: value for name, value in os.environ.items() if name != "LC_ALL"}
    # Of another locale in all but its characters: without those Python cannot read where it was installed.
    env |= {"HOME": str(home), "USER": person, "LOGNAME": person, "TZ": zone, "LANG": tongue, "LC_CTYPE": "C.UTF-8"}
    command = [sys.executable, "-m", "assay.cli.main", "bench", "run", "--config", "user.toml", "--json"]
    ended = subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode:
        raise RuntimeError(f"assay bench run failed: {ended.stderr.strip() or ended.stdout[-300:]}")
    (run,) = [entry["run"] for entry in json.loads(ended.stdout)]
    run["fingerprint"].pop("load")
    ran = {name: bool(measured["seconds"]) for name, measured in run["results"].items()}
    kept = {key: run[key] for key in ("commit", "dirty", "config", "digest", "fingerprint", "machine")}
    return {**kept, "ran": ran, "counted": run["results"]["simulate"].get("instructions")}


def steps(noise: str, commits: int, histories: int, seed: int) -> dict[str, dict[str, Any]]:
    """Plant steps into real noise; every method is tuned to be silent on other noise of the same kind."""
    noises = of_clouds(2 * commits, seed) if noise == "clouds" else [recorded(2 * commits, seed)]
    return {method: {**asdict(score), "f1": score.f1} for method, score in contest(noises, histories, seed).items()}


def study(lab: Lab) -> Tables:
    """Comparisons with and without a planted change, by time and by count; two users; steps in histories."""
    size = {"pairs": lab.pick(quick=10, full=24), "rounds": lab.pick(quick=10, full=20)}
    changes = lab.pick(quick=(0.05,), full=(0.02, 0.05, 0.1))
    equal, planted = ([{"change": one, "replicas": 1} | size for one in some] for some in ((0.0,), changes))
    histories = {"commits": lab.pick(quick=60, full=120), "histories": lab.pick(quick=12, full=40)}
    # What is quick starts its own processes: a worker around them would only cost another start of Python.
    own = replace(lab, workers=lab.pick(quick=0, full=lab.workers))
    parts = {
        # Equal code more often: whether it takes the same time is a matter of a per cent or two.
        "compare": pl.concat(
            [
                own.with_seeds(quick=4, full=8).run(comparisons, equal, alone=True),
                own.with_seeds(quick=3, full=8).run(comparisons, planted, alone=True),
            ],
            how="diagonal_relaxed",
        ),
        "again": own.with_seeds(quick=1, full=5).run(again, [{}]),
    }
    if lab.size == "full":  # ten seconds of Valgrind for a seed
        counted = own.with_seeds(quick=1, full=5).run(counts, [{"hash_seeds": 2}], per="change")
        parts["count"] = counted.cast({"change": pl.Float64})
    noises = [*lab.pick(quick=(), full=("machine",)), *_clouds(lab)]
    if noises:
        parts["steps"] = lab.run(steps, [{"noise": noise, **histories} for noise in noises], per="method")
    return parts


def _clouds(lab: Lab) -> tuple[str, ...]:
    """The public record of cloud machines, if it is at hand."""
    return ("clouds",) if lab.trace_or_none(FOLDER) else ()


def plot(table: pl.DataFrame) -> alt.VConcatChart:
    """How often each method finds a planted step, and how often it cries wolf."""
    import altair as alt

    if "noise" not in table.columns:
        raise NotMeasured(NO_CLOUDS)
    rows = table.filter(pl.col("noise") == "clouds").group_by("method", maintain_order=True).agg(
        pl.col("found", "planted", "false", "unchanged").sum()
    )  # fmt: skip
    panels = []
    for asked, value, hue in (
        ("planted steps found, %", pl.col("found") / pl.col("planted"), charts.PALETTE[0]),
        ("unchanged commits taken for a step, %", pl.col("false") / pl.col("unchanged"), charts.PALETTE[1]),
    ):
        bars = alt.Chart(rows.select("method", value=100 * value)).encode(
            y=alt.Y("method:N", sort=[*METHODS, *PEERS, *UNTUNED], title=None),
            x=alt.X("value:Q", title=asked, scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(tickCount=5)),
        )  # fmt: skip
        numbers = bars.mark_text(align="left", dx=4).encode(text=alt.Text("value:Q", format=".3~g"))
        panels.append((bars.mark_bar(size=12, color=hue) + numbers).properties(width=520, height=120))
    title = alt.Title(
        "Steps planted in the noise of cloud machines",
        subtitle="Each method's dial set on noise without steps, but for the last: what many pipelines do",
    )
    chart: alt.VConcatChart = alt.vconcat(*panels, title=title)
    return chart


# -------------------------------------------------------------------------------------------- the claims


def measured_change(table: pl.DataFrame) -> Estimate:
    """What a commit with 5 % more work is measured to take more, less what equal code is, seed by seed."""
    more, equal = (_changes(table, change) for change in (0.05, 0.0))
    return intervals.bootstrap([more[seed] - equal[seed] for seed in more])


def _changes(table: pl.DataFrame, change: float) -> dict[int, float]:
    """By seed."""
    rows = measures.rows(table, {"experiment": "compare", "change": change})
    if rows["change_mean"].null_count():
        raise NotMeasured("a benchmark did not run: see the table")
    return dict(rows.select("seed", "change_mean").iter_rows())


def counted_change(table: pl.DataFrame) -> Estimate:
    """The same by instructions, of 2 % more work: counted, not sampled."""
    if "count" not in table["experiment"].to_list():
        raise NotMeasured("instructions are counted at full size: it takes seconds of Valgrind; --full does")
    more, equal = (measures.rows(table, {"experiment": "count", "change": change}) for change in (0.02, 0.0))
    if more["change_mean"].null_count():
        raise NotMeasured(f"instructions cannot be counted here: {more['why'][0]}")
    off = more["change_mean"] - equal["change_mean"]
    return Estimate(float(off.mean()), float(off.min()), float(off.max()), len(off))  # type: ignore[arg-type]


def again_alike(table: pl.DataFrame) -> Estimate:
    """The share of pairs of people who got the same, with what was unlike where they did not."""
    rows = measures.rows(table, {"experiment": "again"})
    unlike = rows.filter(~pl.col("same"))
    cases = "" if unlike.is_empty() else f"stored unlike: {unlike['unlike'][0] or 'the digest, a home or the count'}"
    return replace(measures.share("same")(rows), cases=cases)


NO_CLOUDS = traces.lacking([FOLDER])


def _steps(table: pl.DataFrame, method: str) -> pl.DataFrame:
    if "noise" not in table.columns:
        raise NotMeasured(NO_CLOUDS)
    return measures.rows(table, {"experiment": "steps", "noise": "clouds", "method": method})


def misplaced(table: pl.DataFrame) -> Estimate:
    """How many commits the steps that were found are off."""
    found = _steps(table, "e-divisive")["misplaced"].drop_nulls()
    if found.is_empty():
        raise NotMeasured("no step was found")
    return intervals.bootstrap(found.to_list())


def better_than(rival: str) -> measures.Measure:
    """The F1 of our steps less that of another method, over the same histories."""

    def measure(table: pl.DataFrame) -> Estimate:
        ours = _steps(table, "e-divisive")["f1"]
        if rival in PEERS and rival not in table["method"].to_list():
            package = {"otava": "apache-otava"}.get(rival, rival)
            raise NotMeasured(f"{rival} is not installed here: pip install {package}")
        return intervals.bootstrap((ours - _steps(table, rival)["f1"]).to_list())

    return measure


SILENT = "each tuned to take at most one unchanged commit in a thousand for a step"

claims = [
    Claim("reusable", again_alike),
    Claim("keeps-up", measures.not_here("needs several HPC systems over years; here is one machine and one afternoon")),
    Claim(
        "time",
        measured_change,
        asks="Taking turns, a commit that does 5 % more work is measured to take 5 % longer than equal code.",
        kind=Kind.DIFFERENCE,
        value=0.05,
        unit="change",
    ),
    Claim(
        "equal-code",
        lambda table: intervals.bootstrap(list(_changes(table, 0.0).values())),
        asks="Taking turns, two commits that differ in words only are measured to take the same time.",
        kind=Kind.UNCHANGED,
        unit="change",
    ),
    Claim(
        "instructions",
        counted_change,
        asks="A commit that does 2 % more work shows 2 % more instructions than equal code.",
        kind=Kind.DIFFERENCE,
        value=0.02,
        unit="change",
    ),
    Claim(
        "misplaced",
        misplaced,
        asks="A step that is found in a history lies at most one commit off, at the median.",
        kind=Kind.AT_MOST,
        value=1.0,
        unit="commits",
        evidence=Evidence.REPLAY,
    ),
    Claim(
        "neighbours",
        measures.best({name: better_than(name) for name in ("threshold", "welch")}, min),
        asks=f"Steps in histories are found with a higher F1 than by tests of neighbouring commits, {SILENT}.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="F1",
        evidence=Evidence.REPLAY,
    ),
    Claim(
        "otava",
        better_than("otava"),
        asks=f"Steps in histories are found with a higher F1 than by Apache Otava, {SILENT}.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="F1",
        evidence=Evidence.REPLAY,
    ),
    Claim(
        "asv",
        better_than("asv"),
        asks=f"Steps in histories are found with a higher F1 than by asv, {SILENT}.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="F1",
        evidence=Evidence.REPLAY,
    ),
    Claim(
        "usual-threshold",
        better_than(next(iter(UNTUNED))),
        asks="Steps in histories are found with a higher F1 than by calling every change of 10 % from the last commit.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="F1",
        evidence=Evidence.REPLAY,
    ),
]
