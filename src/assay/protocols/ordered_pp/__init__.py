"""Population protocols over ordered agents: what a row of simple agents can find out about the word it spells.

Agents are anonymous and finite, and meet at random. If they meet blindly, they can only count letters. Let them see who
stands left of whom, and let only the observer change: then they decide exactly the languages of DA, the unambiguous
star-free ones. Let them see who stands *next* to whom: then they decide whatever nondeterministic linear space can.

Here a regular expression becomes an automaton, its syntactic monoid says whether it is in DA, and if so it is compiled
into a protocol (by rankers; the construction is ours, not the paper's proof). A theorem about all protocols is not
shown by some, so the sentences say what was tried, and that no protocol decides a language outside DA is left to the
paper's proof. The study explores *all* configurations of short words, for twelve languages and three machines, and
accepts a word as decided only if every bottom component agrees; and it runs the compiled protocols at n = 1,000 under
the random scheduler, beside protocols without order that count the letters of the same words.

Blondin, Cadilhac, Courchesne, Guillou, Mascle and Vialard, arXiv:2605.09937 (ICALP 2026).

>>> verdict = answer("a.*b", ["aab", "aba"])
>>> verdict["recognisable"], [(row["word"], row["decided"]) for row in verdict["table"]]
(True, [('aab', True), ('aba', False)])
>>> answer("(ab)*", ["abab"])["recognisable"]
False
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.protocols.ordered_pp import linear_bounded, population, rankers, swarm_counts
from assay.protocols.ordered_pp.languages import Language, language
from assay.protocols.ordered_pp.population import MOST, enrolled
from assay.protocols.ordered_pp.rankers import Protocol, compile_language
from assay.protocols.ordered_pp.swarm_ordered import Table, TooManyStatesError, check, run
from assay.record import intervals, measures
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.random import key, stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab
    from assay.record.tables import Tables

evidence = Evidence.REAL  # all configurations are explored, and the runs are the process itself
use_when = (
    "Tiny agents in a row or with unique ranks (sensors on a line, versions, time stamps) must agree on a pattern of "
    "letters with no leader, and the pattern is of the kind 'first a before last b': the compiler gives the protocol."
)
avoid_when = (
    "The pattern counts modulo something or needs adjacency ((ab)*, two equal neighbours): order alone cannot tell. "
    "Also if n² meetings are too many, or agents may lie."
)
own_input = 'assay compare protocols --language "a.*b" --words aab,aba'
references = (
    "Rankers and DA: Schwentick, Thérien and Vollmer, DLT 2001; Weis and Immerman, CSL 2007.",
    "Immediate observation: Angluin, Aspnes, Eisenstat and Ruppert, Distributed Computing 20, 2007.",
)

IN_DA = {
    ".*a.*": "ab", ".*a.*b.*": "ab", "a.*": "ab", ".*b": "ab", "a*b*": "ab", "b*ab*": "ab", "a.*b": "ab",
    "a*b*a*": "ab", ".*a.*b.*a.*": "ab", "b*a.*": "abc", ".*c(a|b)*a(a|b)*": "abc", "(a|b)*b(a|c)*": "abc",
}  # fmt: skip
OUTSIDE_DA = {"(ab)*": "ab", "(..)*": "ab", ".*aa.*": "ab", "(b*ab*a)*b*": "ab", "a(ba|ca)*": "abc"}
DEPTH = 3  # of the rankers that must not tell a witness apart
EXPLORED = 5  # the longest word that is explored exhaustively
LENGTHS = (1000, 500, 250, 125)  # of random words; the longest first, so that no core waits at the end

APPROXIMATE_MAJORITY = population.APPROXIMATE_MAJORITY
run_counts = swarm_counts.run
"""Any population protocol without order, by counts: 10⁹ agents are no trouble."""


# ------------------------------------------------------------------------------------ a user's language


def answer(
    expression: str, words: Sequence[str] = (), *, alphabet: str = "", replicas: int = 20, seed: int = 0
) -> dict[str, Any]:
    """Whether a language can be recognised by observers who see order; if so, the compiled protocol on these words.

    Words of at most five letters are decided by exploring everything; longer ones by runs to silence. Without words,
    the two shortest inside the language and the two shortest outside are taken.
    """
    alphabet = "".join(sorted({*alphabet, *"".join(words)}))
    wanted = language(expression, alphabet)
    facts = {
        "language": expression,
        "alphabet": wanted.alphabet,
        "automaton_states": len(wanted.automaton.step),
        "monoid_elements": len(wanted.monoid.elements),
        "recognisable": wanted.in_da,
    }
    if not wanted.in_da:
        assert wanted.witness is not None
        inside, outside = wanted.witness.inside(2), wanted.witness.outside(2)
        why = (
            f"The syntactic monoid is not in DA: {inside!r} and {outside!r} differ in membership, and so they do with "
            "their blocks repeated at will. Order alone cannot tell them apart; the successor relation can."
        )
        table = _undecided(wanted, dict.fromkeys([*words, inside, outside]), "no protocol decides it")
        return facts | {"table": table, "why": why}
    try:
        protocol = compile_language(wanted)
    except rankers.TooDeepError as error:
        why = f"The syntactic monoid is in DA, so there is a protocol, but it was not compiled: {error}."
        return facts | {"table": _undecided(wanted, words or _shortest(wanted), "not compiled"), "why": why}
    table = [_row(protocol, word, replicas, seed) for word in words or _shortest(wanted)]
    why = (
        f"The syntactic monoid is in DA. Membership follows from whether {len(protocol.decision.rankers)} rankers are "
        f"defined ({', '.join(''.join(r) for r in protocol.decision.rankers)}), {len(protocol.steps)} steps in all."
    )
    return facts | {"table": table, "why": why}


def _undecided(wanted: Language, words: Iterable[str], how: str) -> list[dict[str, Any]]:
    return [{"word": w, "member": w in wanted, "decided": None, "how": how, "time_mean": None} for w in words]


def _shortest(wanted: Language) -> list[str]:
    """The two shortest words inside and the two outside, as far as there are some that can be explored."""
    words = list(wanted.words(2, EXPLORED))
    return [word for side in (True, False) for word in [w for w in words if (w in wanted) == side][:2]]


def _row(protocol: Protocol, word: str, replicas: int, seed: int) -> dict[str, Any]:
    if not len(word) >= 2:
        raise ValueError(f"the word {word!r} has {len(word)} letters; a population needs at least 2")
    row = {"word": word, "member": word in protocol.language}
    if len(word) <= EXPLORED and max(map(len, protocol.decision.rankers)) < 4:
        return row | {"decided": protocol.decided(word), "how": "all configurations explored", "time_mean": None}
    try:
        ends = [run(protocol.rule, protocol.row(word), seed=seed, replica=replica) for replica in range(replicas)]
    except TooManyStatesError:
        return row | {"decided": None, "how": "not run: too many states", "time_mean": None}
    said = {protocol.output(state) for end in ends for state in end.final}
    sure = all(end.silent for end in ends) and len(said) == 1
    time = float(np.mean([end.time for end in ends]))
    return row | {"decided": said.pop() if sure else None, "how": f"{replicas} runs to silence", "time_mean": time}


@lru_cache(maxsize=64)
def _protocol(name: str) -> Protocol:
    return compile_language(language(name, IN_DA[name]))


# ------------------------------------------------------------------------------------------- the study


def explore(name: str, longest: int, shard: int, shards: int, seed: int) -> dict[str, Any]:
    """The compiled protocol of a language of DA on a share of all short words. Nothing here is random."""
    protocol = _protocol(name)
    words = list(protocol.language.words(2, longest))[shard::shards]
    wrong = [word for word in words if protocol.decided(word) != (word in protocol.language)]
    return _counted(words, wrong) | {"unordered_ratio": _blind(protocol.language, longest)}


def _counted(words: Sequence[str], wrong: Sequence[str]) -> dict[str, Any]:
    return {"words": len(words), "right": len(words) - len(wrong), "wrong": wrong[0] if wrong else ""}


def _blind(wanted: Language, longest: int) -> float:
    """The share of words that the best protocol without order gets right: it answers by the counts of letters."""
    words = list(wanted.words(2, longest))
    sides: dict[tuple[str, ...], Counter[bool]] = {}
    for word in words:
        sides.setdefault(tuple(sorted(word)), Counter())[word in wanted] += 1
    return sum(max(side.values()) for side in sides.values()) / len(words)


def refuse(name: str, seed: int) -> dict[str, Any]:
    """A language outside DA: does the classifier refuse it, and do its two words look alike to all rankers?"""
    wanted = language(name, OUTSIDE_DA[name])
    if wanted.witness is None:
        return _counted([name], [name])
    pairs = [(wanted.witness.inside(depth), wanted.witness.outside(depth)) for depth in range(DEPTH, DEPTH + 3)]
    seen_by = tuple(rankers.all_rankers(wanted.alphabet, DEPTH))
    told = [
        one
        for one, other in pairs
        if (one in wanted) == (other in wanted)
        or any(rankers.defined(ranker, one) != rankers.defined(ranker, other) for ranker in seen_by)
    ]
    return _counted([one for one, _ in pairs], told)


def simulate(name: str, longest: int, shard: int, shards: int, seed: int) -> dict[str, Any]:
    """A linear bounded automaton run by neighbours, on a share of all short words. Nothing here is random."""
    machine = linear_bounded.MACHINES[name]
    simulation = linear_bounded.Simulation(machine)
    table = Table(simulation.rule)
    every = ["".join(w) for length in range(2, longest + 1) for w in product(machine.alphabet, repeat=length)]
    words = every[shard::shards]
    said = [check(table, simulation.row(word), simulation.output).output for word in words]
    return _counted(words, [word for word, found in zip(words, said, strict=True) if found != machine.member(word)])


def converge(name: str, n: int, replicas: int, seed: int) -> dict[str, Any]:
    """Random words of length n under the random scheduler: are all agents right once nothing changes any more?"""
    protocol = _protocol(name)
    table = Table(protocol.rule)
    random = stream(seed, "ordered-pp", name, n)
    words, wrong, times = [], [], []
    for replica in range(replicas):
        word = _word(protocol.language, n, random)
        words.append(word)
        end = run(table, protocol.row(word), seed=seed, replica=replica, max_time=1e5)
        said = {protocol.output(state) for state in end.final}
        if not end.silent or said != {word in protocol.language}:
            wrong.append(word)
        times.append(end.time)
    return _counted(words, wrong) | {"time_mean": float(np.mean(times)), "time_max": max(times)}


def by_counts(name: str, n: int, replicas: int, seed: int) -> dict[str, Any]:
    """The same words for agents that meet blindly: they count letters, and answer what is likelier for such counts."""
    wanted = language(name, IN_DA[name])
    random = stream(seed, "ordered-pp", name, n)
    words, wrong, times = [], [], []
    for replica in range(replicas):
        word = _word(wanted, n, random)
        words.append(word)
        begun = Counter(enrolled(letter, wanted.alphabet) for letter in word)
        end = swarm_counts.run(_census(wanted.alphabet), begun, seed=key(seed, "ordered-pp", "blind", name, n, replica))
        said = {_guess(name).get(tuple(known for _, known in state), False) for state in end.final(0)}
        if said != {word in wanted}:
            wrong.append(word)
        times.append(float(end.time[0]))
    return _counted(words, wrong) | {"time_mean": float(np.mean(times)), "time_max": max(times)}


@lru_cache(maxsize=4)
def _census(alphabet: str) -> population.Table:
    return population.tabulate(population.census, [enrolled(letter, alphabet) for letter in alphabet])


@lru_cache(maxsize=64)
def _guess(name: str) -> dict[tuple[int, ...], bool]:
    """Whether most short words with these counts, each up to two, are in the language."""
    wanted = language(name, IN_DA[name])
    inside: Counter[tuple[int, ...]] = Counter()
    for word in wanted.words(2, max(EXPLORED, MOST * len(wanted.alphabet))):
        counts = tuple(min(MOST, word.count(letter)) for letter in wanted.alphabet)
        inside[counts] += 1 if word in wanted else -1
    return {counts: more > 0 for counts, more in inside.items()}


def _word(wanted: Language, n: int, random: np.random.Generator) -> str:
    """A random word, inside or outside with equal chance: a random walk on the automaton, kept to the wanted side.

    Uniform words would nearly all lie on one side of most languages.
    """
    automaton = wanted.automaton
    inside = bool(random.integers(2))
    ends = {state for state in range(len(automaton.step)) if (state in automaton.accepting) == inside}
    reach = [ends]  # reach[k]: states from which k letters can lead to the wanted side
    for _ in range(n):
        reach.append({s for s, row in enumerate(automaton.step) if any(f in reach[-1] for f in row)})
    state, word = 0, []
    for left in range(n - 1, -1, -1):
        options = [i for i, follower in enumerate(automaton.step[state]) if follower in reach[left]]
        choice = options[int(random.integers(len(options)))] if options else int(random.integers(len(wanted.alphabet)))
        word.append(wanted.alphabet[choice])
        state = automaton.step[state][choice]
    return "".join(word)


def study(lab: Lab) -> Tables:
    """Twelve languages inside DA, five outside, three machines; large rows at random, with order and without."""
    deep = {name for name in IN_DA if max(map(len, _protocol(name).decision.rankers)) > 2}
    heavy = deep | {name for name, alphabet in IN_DA.items() if len(alphabet) > 2}
    shards = lab.pick(quick=2, full=8)
    languages = [
        {"name": name, "longest": lab.pick(quick=4 if name in heavy else 5, full=5), "shard": shard, "shards": shards}
        for name in sorted(IN_DA, key=lambda name: name not in heavy)
        for shard in range(shards)
    ]
    machines = [
        {"name": name, "longest": 6 if machine.alphabet == "a" else lab.pick(quick=4, full=5), "shard": shard,
         "shards": shards}
        for name, machine in linear_bounded.MACHINES.items()
        for shard in range(shards)
    ]  # fmt: skip
    runs = [
        {"name": name, "n": n, "replicas": lab.pick(quick=2, full=4)}
        for n in LENGTHS
        for name in list(IN_DA)[:: lab.pick(quick=3, full=1)]
    ]
    once = lab.with_seeds(quick=1, full=1)  # what is explored to the end is the same for every seed
    return {
        "large": lab.run(converge, runs),
        "unordered": lab.run(by_counts, runs),
        "inside": once.run(explore, languages),
        "machine": once.run(simulate, machines),
        "alike": once.run(refuse, [{"name": name} for name in OUTSIDE_DA]),
    }


def plot(table: pl.DataFrame) -> alt.LayerChart:
    """Time until nothing changes any more, language by language, against the length of the row."""
    import altair as alt

    large = table.filter(pl.col("experiment") == "large")
    points = large.group_by("name", "n").agg(pl.col("time_mean").mean()).sort("name", "n")
    log = alt.Scale(type="log")
    lines = (
        alt.Chart(points)
        .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=1.5)
        .encode(
            x=alt.X("n:Q", scale=log, title="agents in the row"),
            y=alt.Y("time_mean:Q", scale=log, title="meetings per agent until silent", axis=alt.Axis(format="~s")),
            color=alt.Color("name:N", title="language"),
        )
    )
    sizes = points["n"].to_list()
    guide = pl.DataFrame({"n": [min(sizes), max(sizes)], "time": [float(min(sizes)), float(max(sizes))]})
    linear = alt.Chart(guide).mark_line(strokeDash=[4, 4], opacity=0.6, color="#7F7F7F").encode(x="n:Q", y="time:Q")
    title = alt.Title("Compiled protocols under the random scheduler", subtitle="Mean; the dashed line is n")
    chart: alt.LayerChart = (linear + lines).properties(width=560, height=340, title=title)
    return chart


# ------------------------------------------------------------------------------------------ the claims


def every(experiment: str) -> measures.Measure:
    """The share of what was tried that came out right; and the first that did not."""

    def measure(table: pl.DataFrame) -> Estimate:
        chosen = table.filter(pl.col("experiment") == experiment)
        found = measures.probability("right", "words")(chosen)
        wrong = chosen.filter(pl.col("right") < pl.col("words"))
        return found if wrong.is_empty() else replace(found, cases=f"{wrong['name'][0]}: {wrong['wrong'][0]}")

    return measure


def over_blind(table: pl.DataFrame) -> Estimate:
    """By how much more of the short words the compiled protocol gets right than the best one without order."""
    inside = measures.rows(table, {"experiment": "inside"}).group_by("name").agg(
        (pl.col("right").sum() / pl.col("words").sum() - pl.col("unordered_ratio").first()).alias("gain")
    )  # fmt: skip
    return intervals.bootstrap(inside.sort("name")["gain"].to_list())


def over_counting(table: pl.DataFrame) -> Estimate:
    """By how much more of the long words the compiled protocols get right than protocols that count, seed by seed."""
    shares = [
        measures.rows(table, {"experiment": experiment})
        .group_by("seed")
        .agg((pl.col("right").sum() / pl.col("words").sum()).alias("share"))
        .sort("seed")["share"]
        for experiment in ("large", "unordered")
    ]
    return intervals.bootstrap((shares[0] - shares[1]).to_list())


claims = [
    Claim("one-sided", every("inside")),
    Claim(
        "outside",
        measures.not_here(
            "no protocols that were tried show that there is none: all 1,024 with two states and two letters decide "
            "only three of the nine languages that the compiler decides; the paper's proof is the evidence"
        ),
    ),
    Claim("successor", every("machine")),
    Claim(
        "undecidable",
        measures.not_here("no run can show that a question is undecidable; the paper's reduction is the evidence"),
    ),
    Claim(
        "alike",
        every("alike"),
        asks="For five languages outside the class there are words inside and outside that look alike to every "
        "ranker of three steps, however often their blocks are repeated (tried: three, four and five times).",
        kind=Kind.EVERY,
    ),
    Claim(
        "large",
        every("large"),
        asks="Whenever a compiled protocol falls silent on a row of 125 to 1,000 agents, all of them are right.",
        kind=Kind.EVERY,
    ),
    Claim(
        "over-unordered",
        over_blind,
        asks="Compiled protocols get more of the short words right than the best protocols without order.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
    Claim(
        "over-counting",
        over_counting,
        asks="On rows of 125 to 1,000 agents, compiled protocols get more words right than protocols without order "
        "that count each letter up to two.",
        kind=Kind.DIFFERENCE,
        toward="up",
        unit="share",
    ),
]
