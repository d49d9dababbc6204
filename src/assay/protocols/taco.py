"""TACO: prove a quorum protocol safe for every number of processes at once.

A threshold automaton is what is left of a fault-tolerant protocol when only counting matters: a few locations, shared
counters of messages sent, and rules that fire once a counter passes a threshold over n, t and f. Three algorithms
decide whether a bad configuration can be reached for any parameters that the resilience condition admits. `smt` writes
all runs as one formula, since guards change their truth at most once. `acs` goes backwards from the bad
configurations, with processes counted and counters cut into intervals. `zcs` asks only whether a location is empty,
in a decision diagram, and replays every abstract path exactly before it counts. Beside them stands what people do
without such a tool: explicit search at a fixed size, which proves nothing about the next size.

The published benchmarks are files of other projects and do not come with assay: the study runs on our own encodings
of the same protocols, and, at full size, on the published files where they are at hand. Large automata are made from
small ones by putting what a process has noticed into its location, as tools that read program code do.

Eichler, Baumeister, Sakr, Kalateh Dowlati, Völp and Jacobs, arXiv:2605.06118.

>>> from assay.protocols.automata.builtin import load
>>> from assay.protocols.automata.parser import condition
>>> from assay.protocols.automata.automaton import weaken
>>> broadcast = load("broadcast")
>>> [(row.specification, row.verdict.value) for row in verify(broadcast)]
[('unforgeability', 'proved'), ('relay', 'proved')]
>>> [(row.verdict.value, row.note) for row in verify(weaken(broadcast, condition("n >= 3*t", broadcast)))]
[('proved', ''), ('violated', 'at n=3, t=1, f=1')]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.protocols.automata import builtin, node
from assay.protocols.automata.automaton import Automaton, weaken
from assay.protocols.automata.counterexample import Counterexample
from assay.protocols.automata.noticed import noticing
from assay.protocols.automata.parser import condition, read
from assay.protocols.automata.verify import Finding, Verdict, verify
from assay.record import intervals, measures, traces
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL  # the tool itself runs; only the published benchmark files are partly not at hand
use_when = (
    "A protocol decides by counting messages against thresholds (broadcast, agreement, commit, one round of "
    "consensus) and you want to know that it is safe for all n, or which resilience condition it really needs."
)
avoid_when = (
    "Messages carry values that matter beyond their count, identities or signatures decide, time or probability is "
    "part of the argument, or counters are reset: then the answer may be 'unknown'."
)
own_input = "assay verify protocol.ta --algorithm all"
references = (
    "Threshold automata: Konnov, Veith and Widder, CONCUR 2014; the short-run argument behind smt: CAV 2015.",
    "Intervals and resets (acs, zcs): Baumeister, Eichler, Jacobs, Sakr and Völp, FM 2024.",
)

ALGORITHMS = ("smt", "acs", "zcs")
LARGE = ("agreement:noticing", "bracha:noticing")
LIMIT = 60.0  # seconds for one answer
PUBLISHED = ("strb", "frb", "aba", "nbacg", "bcast-byz", "bcast-folklore-crash", "bosco", "toy")
WEAKENED = (  # a resilience condition one too weak, and the specification that needs it
    ("broadcast", "n >= 3*t", "relay"),
    ("broadcast", "f <= t + 1", "unforgeability"),
    ("agreement", "f <= t + 1", "unforgeability"),
    ("bracha", "f <= t + 1", "unforgeability"),
    ("one_step", "f <= t + 1", "carried_over"),
)


# ------------------------------------------------------------------------------------------- the study


def proving(automaton: str, specification: str, seed: int) -> dict[str, dict[str, Any]]:
    """One specification by all algorithms that take it, one after another."""
    _load_solvers()
    found = _automaton(automaton)
    chosen = verify(found, specifications=[specification], algorithms=ALGORITHMS, seconds=LIMIT)
    rules = len({rule.name for rule in found.rules})
    taken = [row for row in chosen if row.verdict is not Verdict.UNSUPPORTED]
    return {row.algorithm: {"rules": rules, **_measured(row)} for row in taken}


def _load_solvers() -> None:
    """Libraries are loaded before the clock runs: the paper times a programme that has its solver built in."""
    import z3
    from dd import autoref

    z3.Solver().check()
    autoref.BDD()


def _measured(row: Finding) -> dict[str, Any]:
    return {"seconds": row.seconds, "verdict": row.verdict.value}


def weakening(automaton: str, weakened: str, specification: str, seed: int) -> dict[str, Any]:
    """Whether the weaker condition breaks what the stronger one gives, and whether processes on the kernel show it."""
    strong = _automaton(automaton)
    weak = weaken(strong, condition(weakened, strong))
    (before,) = verify(strong, specifications=[specification])
    (after,) = verify(weak, specifications=[specification])
    flips = before.verdict is Verdict.PROVED and after.verdict is Verdict.VIOLATED
    return {"flips": flips, "replays": flips and _replays(weak, after.counterexample), **_measured(after)}


def _replays(automaton: Automaton, run: Counterexample | None) -> bool:
    if run is None:
        return False
    try:
        node.replay(automaton, run)
    except ValueError:
        return False
    return True


def searching(automaton: str, specification: str, n: int, seed: int) -> dict[str, Any]:
    """The baseline: all runs at one size."""
    found = _automaton(automaton)
    (row,) = verify(found, specifications=[specification], algorithms=["explicit"], parameters={"n": n})
    return _measured(row)


def _automaton(name: str) -> Automaton:
    """A built-in one, one with "noticing" behind its name, or a published file."""
    base, _, kind = name.partition(":")
    if kind == "file":
        return read(traces.find(f"taco/{base}.ta"))
    return noticing(builtin.load(base)) if kind == "noticing" else builtin.load(base)


def study(lab: Lab) -> pl.DataFrame:
    """Three algorithms on the same questions, then weakened conditions, then explicit search as it grows."""
    quick = [
        ("broadcast", "unforgeability"), ("agreement", "unforgeability"), ("folklore", "unforgeability"),
        ("broadcast:noticing", "unforgeability"),
    ]  # fmt: skip
    full = [
        *((name, spec) for name in ("commit", "one_step", "rounds") for spec in builtin.load(name).specifications),
        ("bracha", "unforgeability"), ("agreement:noticing", "unforgeability"),
        ("bracha:noticing", "unforgeability"), *_published(),
    ]  # fmt: skip
    questions = dict.fromkeys([*quick, *lab.pick(quick=[], full=full)])
    tables = [
        lab.run(proving, [{"automaton": name, "specification": spec} for name, spec in questions],
                per="algorithm", alone=True).with_columns(experiment=pl.lit("prove")),
        lab.run(large, [{"automaton": name} for name in lab.pick(quick=LARGE[:1], full=LARGE)],
                alone=True).with_columns(experiment=pl.lit("large")),
        lab.run(weakening, [{"automaton": name, "weakened": text, "specification": spec}
                            for name, text, spec in lab.pick(quick=WEAKENED[:3], full=WEAKENED)],
                ).with_columns(experiment=pl.lit("weaken"), algorithm=pl.lit("smt")),
        lab.run(searching, [{"automaton": "commit", "specification": "agreement", "n": n}
                            for n in lab.pick(quick=(3, 4, 5), full=(3, 4, 6, 8, 10))],
                alone=True).with_columns(experiment=pl.lit("search"), algorithm=pl.lit("explicit")),
    ]  # fmt: skip
    return pl.concat(tables, how="diagonal_relaxed")


def large(automaton: str, seed: int) -> dict[str, Any]:
    """The safety of a protocol with hundreds of rules, by smt."""
    _load_solvers()
    found = _automaton(automaton)
    (row,) = verify(found, specifications=["unforgeability"], seconds=LIMIT)
    return {"algorithm": "smt", "rules": len({rule.name for rule in found.rules}), **_measured(row)}


def _published() -> list[tuple[str, str]]:
    """The specifications of the published files that are at hand."""
    found = []
    for name in PUBLISHED:
        try:
            found += [(f"{name}:file", spec) for spec in _automaton(f"{name}:file").specifications]
        except NotMeasured:
            return []
    return found


def plot(table: pl.DataFrame) -> alt.Chart:
    """Seconds of each algorithm on each question."""
    import altair as alt

    rows = table.filter(pl.col("experiment") == "prove").with_columns(
        question=pl.col("automaton") + " " + pl.col("specification")
    )
    points = rows.group_by("question", "algorithm").agg(pl.col("seconds").median()).sort("question", "algorithm")
    chart: alt.Chart = (
        alt.Chart(points)
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X("seconds:Q", scale=alt.Scale(type="log"), title="seconds to an answer for all n"),
            y=alt.Y("question:N", title=None),
            color=alt.Color("algorithm:N"),
            shape=alt.Shape("algorithm:N"),
        )
        .properties(width=460, title=alt.Title("Time to a proof", subtitle="Median over repetitions; log scale"))
    )
    return chart


# ------------------------------------------------------------------------------------------ the claims


def slowest(automaton: str) -> measures.Measure:
    """The seconds of the algorithm that takes longest on an automaton."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = measures.rows(table, {"experiment": "prove", "automaton": automaton})
        by = [part["seconds"].to_list() for _, part in chosen.group_by("algorithm", maintain_order=True)]
        return max((intervals.bootstrap(seconds, np.median) for seconds in by), key=lambda estimate: estimate.value)

    return measure


def median_seconds(**where: Any) -> measures.Measure:
    """The median over repetitions."""
    return lambda table: intervals.bootstrap(measures.rows(table, where)["seconds"].to_list(), np.median)


def most_wins(table: pl.DataFrame) -> Estimate:
    """The share of questions on which the most successful algorithm is the fastest, by its median."""
    settled = measures.rows(table, {"experiment": "prove"}).filter(pl.col("verdict").is_in(["proved", "violated"]))
    medians = settled.group_by("automaton", "specification", "algorithm").agg(pl.col("seconds").median())
    winners = []
    for _, part in medians.group_by("automaton", "specification"):
        if len(part) > 1:
            winners.append(part.sort("seconds")["algorithm"][0])
    value = max(winners.count(name) for name in ALGORITHMS) / len(winners)
    return Estimate(value, value, value, len(winners))


def agreeing(table: pl.DataFrame) -> Estimate:
    """The share of questions on which all algorithms that answer give the same answer."""
    chosen = measures.rows(table, {"experiment": "prove"})
    groups = [part for _, part in chosen.group_by("automaton", "specification", "seed")]
    same = [part.filter(pl.col("verdict") != "unknown")["verdict"].n_unique() <= 1 for part in groups]
    value = sum(same) / len(same)
    return Estimate(value, value, value, len(same))


claims = [
    Claim("broadcast", slowest("broadcast")),
    Claim(
        "aba",
        measures.not_here(
            "the file, derived from program code, is not at hand; our own automaton of the protocol, which z3 finds"
            " easier, is below"
        ),
    ),
    Claim(
        "case2",
        measures.not_here(
            "the file is not at hand; an automaton of ours of about its size, Bracha's with 414 rules, is below"
        ),
    ),
    Claim(
        "nbac",
        measures.not_here("the file, with 1431 to 1831 rules, is not at hand, and nothing of ours stands for it"),
    ),
    Claim("no-winner", most_wins),
    Claim(
        "question-1",
        median_seconds(experiment="large", automaton="agreement:noticing"),
        asks="seconds to check the echo-ready core of agreement by SMT where processes act on what they noticed (212 rules).",
        kind=Kind.AT_MOST,
        value=3.75,
        unit="?",
    ),
    Claim(
        "question-2",
        median_seconds(experiment="large", automaton="bracha:noticing"),
        asks="seconds to check Bracha's broadcast by SMT where processes act on what they noticed (414 rules).",
        kind=Kind.AT_MOST,
        value=62,
        unit="?",
    ),
    Claim("question-3", agreeing, asks="share of questions on which the algorithms give one answer.", kind=Kind.EVERY),
    Claim(
        "question-4",
        measures.share("replays", experiment="weaken"),
        asks="share of resilience conditions, weakened by one, that break a proved specification in a run that replays.",
        kind=Kind.EVERY,
    ),
    Claim(
        "question-5",
        measures.slope("n", "seconds", experiment="search"),
        asks="explicit search of one size slows down as n to this power, and proves that size only.",
        kind=Kind.AT_LEAST,
        value=2.0,
        unit="?",
    ),
]
