"""ResiHP: a step is slow only if it took longer than its sequences should take; then repair groups, layers, batches.

Lengths vary, so iteration times do, and a detector that looks at times alone either cries wolf or misses a device that
lost a fifth of its speed. Here a microbatch is predicted as a constant, so much a token and so much for the square of
every sequence, fitted per stage on healthy ones; the schedule run with predictions says what an iteration should take.
An alarm is a smoothed ratio of observed to predicted that stays four deviations too high; only then a benchmark asks
who it is. Who stops altogether stops counting up.

The plan is then repaired level by level: a tensor-parallel group goes on without who is gone or too slow, in the
largest size that divides the heads and pays; layers move between stages, alike in all replicas; whole microbatches move
from slow replicas to fast ones. A level is taken only where the engine predicts a gain over the horizon.

Read in the paper are the time model, the residual and the three levels; how residuals are smoothed, the deviations and
the rule of acceptance are inferred. Every replica's pipeline is timed by itself here. Beside it: detectors on times
alone, each at its own best threshold, and Greyhound's, Adaptra's, ReCycle's and Oobleck's repairs with the same
estimates of speeds, none with the truth.

arXiv:2605.06374.

>>> detector = Detector(warm_up=20)
>>> for step in range(40):
...     length = 100.0 + 61 * step % 900
...     seconds = (1e-3 + 1e-8 * length**2) * (1.2 if step >= 30 else 1.0)
...     _ = detector.see(length, length**2, seconds)
>>> detector.alarms  # from 30 on a fifth slower
[32]
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from assay.record.measures import Measure, best, clocked, counted, mean, probability, ratio, rows
from assay.record.timing import too_busy
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.ranks import prepare
from assay.training.engine.planning import TRUST
from assay.training.resihp import trials
from assay.training.resihp.beats import IMPORTS
from assay.training.resihp.beats import Heartbeats as Heartbeats
from assay.training.resihp.detector import Detector as Detector
from assay.training.resihp.detector import Explained as Explained
from assay.training.resihp.detector import Judged as Judged
from assay.training.resihp.detector import Workload as Workload
from assay.training.resihp.detector import explain as explain
from assay.training.resihp.detector import fit as fit
from assay.training.resihp.detector import validate as validate
from assay.training.resihp.files import Iterations as Iterations
from assay.training.resihp.files import read_iterations as read_iterations
from assay.training.resihp.hybrid import Hybrid as Hybrid
from assay.training.resihp.iterations import Training as Training
from assay.training.resihp.mending import LEVELS
from assay.training.resihp.mending import Repaired as Repaired
from assay.training.resihp.mending import repair as repair
from assay.training.resihp.rivals import MEANT

if TYPE_CHECKING:
    from collections.abc import Mapping

    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "Sequence lengths vary from step to step, so that times alone say little, and groups can be formed anew."
avoid_when = (
    "Batches are alike: a threshold on times does as well. Or layers can be cut otherwise in each replica: pipelines "
    "with fewer stages (Oobleck's) then lose less than groups of half the size."
)
trust = (
    "Lengths (lognormal, a median of 2,048 tokens), jitters (1.5 % of a pass), how exact a benchmark is (2 %), the "
    "interruptions (30, 20 and 1 s) and half an hour between faults are assumed. " + TRUST
)
own_input = "assay compare resihp --times examples/iterations.csv"
references = (
    "Greyhound: Wu et al., USENIX ATC 2025 (fail-slow by change points of iteration times).",
    "Adaptra: Wu et al., 2025. ReCycle: Gandhi et al., SOSP 2024. Oobleck: Jang et al., SOSP 2023.",
)

KINDS = tuple(MEANT)
COUNTS = {"small": (1, 4), "large": (4,)}


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Detectors on healthy and slowed iterations, repairs beside other systems', and real processes."""
    detect = [
        {"setting": "long", "healthy": 1000, "faults": lab.pick(quick=100, full=300)},
        {"setting": "large", "healthy": lab.pick(quick=120, full=1000), "faults": lab.pick(quick=20, full=100)},
    ]
    mend = [
        {"setting": setting, "kind": kind, "faults": faults, "ablate": setting == "small" or lab.size == "full"}
        for setting, counts in COUNTS.items() for kind in KINDS for faults in counts
    ]  # fmt: skip
    live = [lab.pick(quick={"warm_up": 40, "healthy": 8, "episodes": 2},
                     full={"warm_up": 50, "healthy": 100, "episodes": 20})]  # fmt: skip
    prepare(IMPORTS)
    here = replace(lab, workers=0)
    some, few = lab.with_seeds(quick=3, full=10), lab.with_seeds(quick=2, full=10)  # few of the large job
    return {
        "detection": pl.concat(
            [one.run(trials.noticed, [case], per="detector") for one, case in zip((some, few), detect, strict=True)]
        ),
        "repair": some.run(trials.repaired, mend, per="system"),
        "stops": here.with_seeds(quick=2, full=10).run(
            trials.stops, [lab.pick(quick={"ranks": 38, "faults": 36}, full={"ranks": 26, "faults": 24})]
        ),
        "live": here.with_seeds(quick=1, full=5).run(trials.lived, live),
    }


def _against(kinds: tuple[str, ...], rivals: Mapping[str, tuple[str, ...]]) -> dict[str, Measure]:
    """How many times a rival's throughput ResiHP's is, case by case."""
    return {
        f"{kind}, {faults} faults, {setting}, {rival}": ratio(
            "kept", of={"system": "resihp"}, to={"system": rival}, experiment="repair", kind=kind, setting=setting,
            faults=faults,
        )
        for setting, counts in COUNTS.items() for faults in counts for kind in kinds for rival in rivals[kind]
    }  # fmt: skip


STRONG: dict[str, tuple[str, ...]] = dict.fromkeys(KINDS, ("recycle+", "oobleck+"))


def _off(column: str) -> Measure:
    cases = {s: mean(column, experiment="detection", setting=s, detector="resihp") for s in trials.SETTINGS}
    return best(cases, max, every=True)


def _alarms(detector: str) -> Measure:
    return mean("false_alarms", experiment="detection", setting="long", detector=detector)


def _found(column: str) -> Measure:
    return probability(column, "faults", experiment="detection", detector="resihp")


def _needed(table: pl.DataFrame) -> Estimate:
    """The share of the kinds of faults in which leaving groups alone costs most, then microbatches, then layers."""
    held = []
    for kind in KINDS:
        found = rows(table, {"experiment": "repair", "setting": "small", "kind": kind})
        left = [
            found.filter(pl.col("system") == f"without {level}")["kept"].to_numpy().mean()
            for level in ("groups", "microbatches", "layers")
        ]
        held.append(left[0] < left[1] < left[2])
    return counted(sum(held) / len(held), len(held))


def _lived(table: pl.DataFrame) -> Estimate:
    """Of slowdowns of a real process, the share that was noticed in time; not those that the machine's own hide."""
    found = rows(table, {"experiment": "live"})
    if not (faults := int(found["faults"].sum())):
        scatter = float(found["scatter"].to_numpy().mean())
        raise too_busy(f"healthy steps scattered by {100 * scatter:.0f} %, or got slow by themselves")
    return counted(float(found["found"].sum()) / faults, faults)


claims = [
    Claim("best", best(_against(KINDS, MEANT))),
    Claim("least", best(_against(KINDS, MEANT), min, every=True)),
    Claim("fail-slow", _found("found")),
    Claim("fail-stop", probability("found", "faults", experiment="stops"), evidence=Evidence.REAL),
    Claim(
        "prediction", _off("off_iteration"),
        construction="iterations scatter by a jitter that is assumed, and a fit to them is off by what that leaves",
    ),
    Claim(
        "quiet", _alarms("resihp"), kind=Kind.AT_MOST, value=0.0, unit="alarms",
        asks="No alarm in 1,000 healthy iterations with packed sequences of up to 65,536 tokens.",
    ),
    Claim(
        "naive", best({name: _alarms(name) for name in trials.DETECTORS if name != "resihp"}, min, every=True),
        kind=Kind.AT_LEAST, value=3.0, unit="alarms",
        asks="Every detector on times alone, at its own best threshold, raises 3 false alarms or more there.",
    ),
    Claim(
        "twenty", _found("found_twenty"), kind=Kind.AT_LEAST, value=0.95, unit="share",
        asks="Of slowdowns of one group by 20 %, at least 95 % are found within five iterations.",
    ),
    Claim(
        "live", clocked(_lived, experiment="live"), kind=Kind.EVERY,
        asks="Whenever a torch process, paced to a device of constant speed, is frozen for a sixth of the time, "
        "that is noticed within five steps.",
    ),
    Claim(
        "strengthened", best(_against(KINDS, STRONG), min, every=True), kind=Kind.RATIO, toward="up",
        asks="Throughput exceeds that of ReCycle and Oobleck taught about slow devices, whatever the faults.",
    ),
    Claim(
        "levels", _needed, kind=Kind.EVERY,
        asks="Leaving groups as they are costs the most, then microbatches, then layers, for every kind of faults.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """What is kept of the healthy job's throughput, by system and kind of faults."""
    import altair as alt

    names = ["resihp", *(f"without {level}" for level in LEVELS), *dict.fromkeys(sum(MEANT.values(), ()))]
    found = table.filter(pl.col("experiment") == "repair").group_by("kind", "system", maintain_order=True)
    chart: alt.Chart = (
        alt.Chart(found.agg(pl.col("kept").mean()).filter(pl.col("system").is_in(names)))
        .mark_bar()
        .encode(
            x=alt.X("kept:Q", title="throughput, of the healthy job's"),
            y=alt.Y("system:N", title=None, sort=names),
            color=alt.Color("system:N", legend=None),
            column=alt.Column("kind:N", title=None, sort=list(KINDS)),
        )
        .properties(width=180, height=220, title="64 and 256 GPUs, one to four of them gone or slow")
    )
    return chart
