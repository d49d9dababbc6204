"""TACO: prove a quorum protocol safe for every number of processes at once.

A threshold automaton is what is left of a fault-tolerant protocol when only counting matters: a few locations, shared
counters of messages sent, and rules that fire once a counter passes a threshold over n, t and f. Three algorithms
decide whether a bad configuration can be reached for any parameters that the resilience condition admits. `smt` writes
all runs as one formula, since guards change their truth at most once. `acs` goes backwards from the bad
configurations, with processes counted and counters cut into intervals. `zcs` asks only whether a location is empty,
in a decision diagram, and replays every abstract path exactly before it counts. Beside them stands what people do
without such a tool: explicit search at a fixed size, which proves nothing about the next size.

The published benchmarks (`benchmarks/TACO` of github.com/cispa/TACO) are files of another project and do not come with
assay. Those that lie in the folder `taco` of the traces are checked, all of them, and compared with the published
verdicts; the paper's seconds are judged on the very files they are about. Beside them stand our own encodings of the
same protocols. Large automata are made from small ones by putting what a process has noticed into its location, as
tools that read program code do. Liveness is left out of the comparison, as TACO leaves it out.

Eichler, Baumeister, Sakr, Kalateh Dowlati, Völp and Jacobs, arXiv:2605.06118.

>>> from assay.protocols.taco import load
>>> from assay.protocols.automata.parser import condition
>>> from assay.protocols.automata.automaton import weaken
>>> broadcast = load("broadcast")
>>> [(row.specification, row.verdict.value) for row in verify(broadcast)]
[('unforgeability', 'proved'), ('relay', 'proved')]
>>> [(row.verdict.value, row.note) for row in verify(weaken(broadcast, condition("n >= 3*t", broadcast)))]
[('proved', ''), ('violated', 'at n=3, t=1, f=1')]

The folder `library` holds well-known protocols, encoded from their descriptions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.protocols.automata.automaton import Automaton, weaken
from assay.protocols.automata.parser import condition, read
from assay.protocols.automata.specification import Asked, Counterexample, question
from assay.protocols.automata.verify import Verdict, verify
from assay.protocols.taco import node
from assay.protocols.taco.noticed import noticing
from assay.record import intervals, measures, traces
from assay.record.errors import BadInput
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.record.tables import Tables


evidence = Evidence.REAL  # the tool itself runs, on the published files that are at hand
use_when = (
    "A protocol decides by counting messages against thresholds (broadcast, agreement, commit, one round of "
    "consensus) and you want to know that it is safe for all n, or which resilience condition it really needs."
)
avoid_when = (
    "Messages carry values that matter beyond their count, identities or signatures decide, time or probability is "
    "part of the argument, or counters are reset: then the answer may be 'unknown'."
)
needs = ("protocols",)
own_input = "assay verify examples/broadcast.ta --algorithm all"
replays = ("taco", "taco-large")
references = (
    "Threshold automata: Konnov, Veith and Widder, CONCUR 2014; the short-run argument behind smt: CAV 2015.",
    "Intervals and resets (acs, zcs): Baumeister, Eichler, Jacobs, Sakr and Völp, FM 2024.",
)

ALGORITHMS = ("smt", "acs", "zcs")
LIMIT = {"quick": 10.0, "full": 60.0}  # seconds for one answer
LARGE = {"quick": 250, "full": 2000}  # rules; larger files are left for later
TIMED = ("strb", "frb", "aba", "nbacg", "bcast-byz", "bcast-folklore-crash", "toy")
"""Published files on which all three algorithms are timed, where they are at hand."""
CLAIMED = {
    "broadcast": ("all", ("strb",)),
    "aba": ("smt", ("asyn-byzagreement0", "aba-asyn-byzagreement0_case1", "aba_case1")),
    "case2": ("smt", ("aba-asyn-byzagreement0_case2", "aba_case2")),
    "nbac": (
        "zcs",
        ("nbac-asyn-ray97-nbac", "asyn-ray97-nbac", "nbacc-asyn-ray97-nbac-clean", "asyn-ray97-nbac-clean"),
    ),
}
"""The paper's sentences about a file: by which algorithm, and the names under which the file is published."""
SAFE, UNSAFE = (
    frozenset((name, int(rules)) for name, _, rules in (word.partition(":") for word in words.split()))
    for words in (
        "aba:10 aba-asyn-byzagreement0_case1:202 aba-asyn-byzagreement0_case2:425 aba_case1:202 aba_case2:425 "
        "asyn-byzagreement0:202 bcast-byz:21 bcast-folklore-crash:15 bcrb:13 ben-or:25 bosco:20 c1cs:30 cc:14 cf1s:26 "
        "cf1s_case1:280 cf1s_case2:280 cf1s_case3:696 consensus-folklore-onestep:280 frb:9 frb:14 "
        "frb-bcast-folklore-crash:13 n-ben-or:27 n-ben-or-byz:18 n-ben-or-nonclean:32 n-kset:58 n-rabc-cr:31 "
        "n-rabc-s:21 n-rs-bosco:48 nbacg:16 nbacr:16 p-ben-or:25 p-ben-or-byz:16 p-ben-or-nonclean:30 p-kset:52 "
        "p-rabc-cr:29 p-rabc-s:19 p-rs-bosco:42 strb:8 strb:21 strb-bcast-byz:21 toy:8",
        "asyn-guer01-nbac:64 bosco:152 bosco_case1:152 bosco_case1:394 bosco_case2:242 bosco_case2:752 bosco_case3:188 "
        "bosco_case3:442 c1cs:1285 c1cs_case1:1285 c1cs_case2:650 c1cs_case3:1333 cc_case2:470 n-rabc:28 nbacg:64 "
        "nbacg-asyn-guer01-nbac:64 p-rabc:28 tendermint-1round-safety:22",
    )
)
"""Published verdicts, by a file's name and its number of rules (two files may have one name)."""
WEAKENED = (  # a resilience condition one too weak, and the specification that needs it
    ("broadcast", "n >= 3*t", "relay"),
    ("broadcast", "f <= t + 1", "unforgeability"),
    ("agreement", "f <= t + 1", "unforgeability"),
    ("bracha", "f <= t + 1", "unforgeability"),
    ("one_step", "f <= t + 1", "carried_over"),
)


# ------------------------------------------------------------------------------------ automata that are at hand

_FOLDER = Path(__file__).parent / "library"


def names() -> list[str]:
    """The automata at hand.

    >>> names()
    ['agreement', 'bracha', 'broadcast', 'commit', 'folklore', 'one_step', 'rounds']
    """
    return sorted(path.stem for path in _FOLDER.iterdir() if path.suffix in (".ta", ".eta"))


def load(name: str) -> Automaton:
    """One of them.

    >>> load("broadcast").locations
    ('without', 'having', 'relayed', 'accepted')
    """
    for suffix in (".ta", ".eta"):
        if (path := _FOLDER / f"{name}{suffix}").is_file():
            return read(path)
    raise BadInput(f"no built-in automaton '{name}'; there are {', '.join(names())}")


# ------------------------------------------------------------------------------------------- the study


def proving(automaton: str, seconds: float, seed: int) -> dict[str, dict[str, Any]]:
    """All safety of an automaton by all algorithms, one after another; what an algorithm does not take, it loses."""
    _load_solvers()
    return {algorithm: _safety(_automaton(automaton), algorithm, seconds) for algorithm in ALGORITHMS}


def checking(automaton: str, algorithm: str, seconds: float, seed: int) -> dict[str, Any]:
    """All safety of an automaton by one algorithm."""
    _load_solvers()
    return _safety(_automaton(automaton), algorithm, seconds)


def _load_solvers() -> None:
    """Libraries are loaded before the clock runs: the paper times a programme that has its solver built in."""
    import z3
    from dd import autoref

    z3.Solver().check()
    autoref.BDD()


def _safety(automaton: Automaton, algorithm: str, seconds: float) -> dict[str, Any]:
    """The verdict on all safety specifications together, as TACO gives it for a file, and the seconds of all."""
    asked = {name: question(automaton, formula) for name, formula in automaton.specifications.items()}
    names = [name for name, one in asked.items() if isinstance(one, Asked) and one.kind == "safety"]
    rules = len({rule.name for rule in automaton.rules})
    if not names:
        return {"rules": rules, "verdict": "no safety", "seconds": None}
    try:
        whole = seconds * len(names)  # the limit is for one answer
        found = list(verify(automaton, specifications=names, algorithms=[algorithm], seconds=whole))
    except BadInput:  # no run exists at all, and everything would be proved
        return {"rules": rules, "verdict": "no run", "seconds": None}
    verdicts = {row.verdict for row in found}
    if Verdict.VIOLATED in verdicts:
        verdict = "unsafe"
    elif verdicts == {Verdict.PROVED}:
        verdict = "safe"
    else:
        verdict = "not taken" if Verdict.UNSUPPORTED in verdicts else "unknown"
    return {"rules": rules, "verdict": verdict, "seconds": sum(row.seconds for row in found)}


def weakening(automaton: str, weakened: str, specification: str, seed: int) -> dict[str, Any]:
    """Whether the weaker condition breaks what the stronger one gives, and whether processes on the kernel show it."""
    strong = _automaton(automaton)
    weak = weaken(strong, condition(weakened, strong))
    (before,) = verify(strong, specifications=[specification])
    (after,) = verify(weak, specifications=[specification])
    flips = before.verdict is Verdict.PROVED and after.verdict is Verdict.VIOLATED
    return {"flips": flips, "replays": flips and _replays(weak, after.counterexample), "seconds": after.seconds}


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
    return {"seconds": row.seconds, "verdict": row.verdict.value}


def _automaton(name: str) -> Automaton:
    """A built-in one, one with "noticing" behind its name, or a file under the folder `taco` of the traces."""
    if name.endswith((".ta", ".eta")):
        return read(traces.find(f"taco/{name}"))
    base, _, kind = name.partition(":")
    return noticing(load(base)) if kind == "noticing" else load(base)


def given() -> list[str]:
    """The files at hand, wherever they lie below the folder `taco` of the traces; none where there is no folder."""
    bases = [folder / "taco" for folder in traces.folders()]
    found = ((path, base) for base in bases for path in base.rglob("*") if path.suffix in (".ta", ".eta"))
    return sorted({str(path.relative_to(base)) for path, base in found})


def claimed() -> dict[str, str]:
    """The file that a sentence of the paper is about, where it is at hand."""
    by_name = {PurePath(name).stem: name for name in reversed(given())}
    found = {}
    for claim, (_, names) in CLAIMED.items():
        if there := [by_name[name] for name in names if name in by_name]:
            found[claim] = there[0]
    return found


def _rules(name: str) -> int:
    """How many rules a file has; 0 where it cannot be read."""
    try:
        return len({rule.name for rule in _automaton(name).rules})
    except BadInput:
        return 0


def study(lab: Lab) -> Tables:
    """Three algorithms on the same automata, every file at hand, weakened conditions, explicit search as it grows."""
    seconds, once = LIMIT[lab.size], lab.with_seeds(quick=1, full=1)
    rules = {name: _rules(name) for name in given()}
    small = [name for name, count in rules.items() if PurePath(name).stem in TIMED and 0 < count <= 64]
    own = ["broadcast", "agreement", "folklore", "rounds", "broadcast:noticing", "agreement:noticing"]
    own += lab.pick(quick=[], full=["commit", "one_step", "bracha", "bracha:noticing"])
    about = {claim: name for claim, name in claimed().items() if claim != "broadcast"}
    fits = {name: count <= LARGE[lab.size] for name, count in rules.items()}
    some = lab.with_seeds(quick=len(lab.seeds), full=3)  # the dearest proof of the full size takes most of a minute
    few = lab.with_seeds(quick=3, full=2)  # a file with over a thousand rules takes minutes
    return {
        "prove": some.run(proving, [{"automaton": name, "seconds": seconds} for name in small + own],
                          per="algorithm", alone=True),
        "given": once.run(checking, [{"automaton": name, "algorithm": "smt", "seconds": seconds}
                                     for name, count in rules.items() if 0 < count <= LARGE["quick"]]),
        "claimed": few.run(checking, [{"automaton": name, "algorithm": CLAIMED[claim][0], "seconds": seconds}
                                      for claim, name in about.items() if fits[name]], alone=True),
        "not read": _listed([name for name, count in rules.items() if not count]),
        "later": _listed([name for name, fit in fits.items() if not fit]),
        "weaken": once.run(weakening, [{"automaton": name, "weakened": text, "specification": spec}
                                       for name, text, spec in lab.pick(quick=WEAKENED[:3], full=WEAKENED)]),
        "search": lab.run(searching, [{"automaton": "commit", "specification": "agreement", "n": n}
                                      for n in lab.pick(quick=(3, 4, 5), full=(3, 4, 6, 8, 10))], alone=True),
    }  # fmt: skip


def _listed(names: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"automaton": names}, {"automaton": pl.String})


def plot(table: pl.DataFrame) -> alt.Chart:
    """Seconds of each algorithm on each question."""
    import altair as alt

    rows = table.filter((pl.col("experiment") == "prove") & pl.col("verdict").is_in(["safe", "unsafe"]))
    points = rows.group_by("automaton", "algorithm").agg(pl.col("seconds").median()).sort("automaton", "algorithm")
    chart: alt.Chart = (
        alt.Chart(points)
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X("seconds:Q", scale=alt.Scale(type="log"), title="seconds to an answer for all n"),
            y=alt.Y("automaton:N", title=None),
            color=alt.Color("algorithm:N"),
            shape=alt.Shape("algorithm:N"),
        )
        .properties(width=460, title=alt.Title("Time to a proof", subtitle="Median over repetitions; log scale"))
    )
    return chart


# ------------------------------------------------------------------------------------------ the claims


BRING = "not at hand: {}.ta; run: assay traces get taco taco-large"


def on_file(claim: str) -> measures.Measure:
    """The seconds of the claim's algorithm on the claim's file, the smallest of its name: the median of repetitions."""
    algorithm, names = CLAIMED[claim]

    def measure(table: pl.DataFrame) -> Estimate:
        stems = pl.col("automaton").map_elements(lambda name: PurePath(name).stem, pl.String)
        mine = table.filter(stems.is_in(names) & pl.col("automaton").str.contains(r"\.e?ta$")).sort("rules")
        timed = mine.filter(pl.col("experiment") == ("prove" if algorithm == "all" else "claimed"))
        if mine.is_empty():
            raise NotMeasured(BRING.format(names[0]))
        if timed.is_empty():
            raise NotMeasured(f"{mine['automaton'][0]} is at hand and large: run with --full")
        file = timed["automaton"][0]
        by = timed.filter(pl.col("automaton") == file).group_by("algorithm", maintain_order=True)
        return measures.best({
            f"{name} on {file}": partial(lambda seconds, _: intervals.bootstrap(seconds, np.median), part["seconds"])
            for (name,), part in by
        })(table)  # fmt: skip

    return measure


def each_loses(table: pl.DataFrame) -> Estimate:
    """The share of algorithms that do not win everywhere: one is clearly faster than it, or it takes no such file.

    Clearly: in all repetitions, and by a tenth in the median. Names the one that wins everywhere.
    """
    chosen = measures.rows(table, {"experiment": "prove"})
    lost: dict[str, str] = {}
    for (automaton,), part in chosen.sort("automaton", "algorithm").group_by("automaton", maintain_order=True):
        by = {str(name): rows for (name,), rows in part.group_by("algorithm", maintain_order=True)}
        answers = {name: rows["verdict"].is_in(["safe", "unsafe"]).all() for name, rows in by.items()}
        times = {name: by[name]["seconds"].to_numpy() for name, answered in answers.items() if answered}
        for name in by:
            if times and name not in times:
                lost.setdefault(name, f"{automaton}, {by[name]['verdict'][0]}")
                continue
            faster = [
                rival for rival, theirs in times.items()
                if theirs.max() < times[name].min() and 1.1 * np.median(theirs) < np.median(times[name])
            ]  # fmt: skip
            if faster:
                lost.setdefault(name, f"{automaton}, {faster[0]}")
    share = intervals.clopper_pearson(len(lost), len(ALGORITHMS))
    told = [f"{name}: {lost.get(name, 'wins everywhere')}" for name in ALGORITHMS]
    return replace(share, cases=f"{'; '.join(told)}; of {chosen['automaton'].n_unique()} automata")


def published(automaton: str, rules: int) -> str:
    """What the paper's table says of a file: "safe", "unsafe", or nothing.

    >>> published("isola18/promela/nbacg.ta", 64), published("nbacg.ta", 16), published("mine.ta", 16)
    ('unsafe', 'safe', '')
    """
    known = PurePath(automaton).stem, rules
    return "safe" if known in SAFE else "unsafe" if known in UNSAFE else ""


def as_published(table: pl.DataFrame) -> Estimate:
    """The share of the files answered here whose published verdict is ours; and the first that is not."""
    rows = table.filter((pl.col("experiment") == "given") & pl.col("verdict").is_in(["safe", "unsafe"]))
    told = [
        (automaton, published(automaton, rules), verdict)
        for automaton, rules, verdict in rows.select("automaton", "rules", "verdict").iter_rows()
        if published(automaton, rules)
    ]
    if not told:
        raise NotMeasured(BRING.format("strb"))
    wrong = [f"{name}: {theirs} as published, {ours} here" for name, theirs, ours in told if theirs != ours]
    found = intervals.clopper_pearson(len(told) - len(wrong), len(told))
    return replace(found, cases=wrong[0] if wrong else ", ".join(PurePath(name).stem for name, _, _ in told))


def agreeing(table: pl.DataFrame) -> Estimate:
    """The share of automata on which all algorithms that answer give the same answer; and the first that tears them."""
    chosen = measures.rows(table, {"experiment": "prove"}).filter(pl.col("verdict").is_in(["safe", "unsafe"]))
    answers = chosen.group_by("automaton").agg(pl.col("verdict").n_unique(), pl.col("algorithm").n_unique())
    several = answers.filter(pl.col("algorithm") > 1).sort("automaton")
    torn = several.filter(pl.col("verdict") > 1)["automaton"].to_list()
    found = intervals.clopper_pearson(len(several) - len(torn), len(several))
    return replace(found, cases=torn[0]) if torn else found


claims = [
    *(Claim(claim, on_file(claim)) for claim in CLAIMED),
    Claim("no-winner", each_loses),
    Claim(
        "published",
        as_published,
        asks="Every file at hand that is answered here gets the verdict that TACO's authors published for it.",
        kind=Kind.EVERY,
    ),
    Claim(
        "one-answer",
        agreeing,
        asks="The algorithms give one answer on every automaton that several of them decide.",
        kind=Kind.EVERY,
    ),
    Claim(
        "weakened",
        measures.share("replays", experiment="weaken"),
        asks="Every resilience condition, weakened by one, breaks a proved specification in a run that replays.",
        kind=Kind.EVERY,
    ),
    Claim(
        "search",
        measures.slope("n", "seconds", experiment="search"),
        asks="Explicit search of one size slows down more than linearly with the number of processes, and proves that "
        "size only.",
        kind=Kind.AT_LEAST,
        value=1.0,
        unit="exponent",
    ),
]
