"""What the study asks: a whole small space measured once, searches replayed over it, and targets raced."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from assay.record.timing import Gauge
from assay.sim.search import Candidate, Islands, Random, Search, Values
from assay.sim.streams import stream
from assay.training.cuco.bench import CLOSE, Bench, Database, Outcome, front, pursue
from assay.training.cuco.program import Uncompilable, hazards, host, knobs, lower, safe
from assay.training.cuco.run import Shot

SPACE = ("transport", "placement", "scope", "chunk", "depth")  # knobs of the measured space; the issuer if it is wide
NEAR = 1.02  # a search has reached a time if it is within this factor of it: medians of a few runs are not closer
REPLAYS = 12  # of each search for each seed
FRESH = 1 << 20  # seeds of inputs that no search has seen
SEARCHES = ("two-phase", "random", "no fast path", "single phase")
Row = dict[str, Any]


def small(program: Any, wide: bool = False) -> dict[str, tuple[Any, ...]]:
    """The knobs of the space that is measured as a whole: some are fixed at their first value, depth has two."""
    found = {
        name: values if name in SPACE or (wide and name == "issuer") else values[:1]
        for name, values in knobs(program).items()
    }
    return found | {"depth": found["depth"][1:]}


def space(target: str, sizes: Row, wide: bool, rounds: int, seed: int) -> dict[str, Row]:
    """Every directive of the small space through the cascade, in drawn order."""
    with Bench(target, sizes, seed=seed, rounds=rounds) as bench, Gauge() as gauge:
        base, choices = bench.settle(host(bench.program)).median, small(bench.program, wide)
        every = list(product(*choices.values()))
        found: dict[Values, Outcome] = {}
        for at in stream(seed, "cuco", "space").permutation(len(every)).tolist():
            found[every[at]] = bench.evaluate(dict(zip(choices, every[at], strict=True)))
        bench.stop()
    return {
        " ".join(map(str, values)): dict(zip(choices, values, strict=True)) | _judged(bench, choices, values, outcome)
        | {"target": target, "base": base, "free_cores": gauge.free}
        for values, outcome in ((values, found[values]) for values in every)
    }  # fmt: skip


def _judged(bench: Bench, choices: Mapping[str, Any], values: Values, outcome: Outcome) -> Row:
    directive = dict(zip(choices, values, strict=True))
    try:
        lower(bench.program, directive)
        unprotected = bool(hazards(bench.program, directive))
    except Uncompilable:
        unprotected = False
    passed = not outcome.stage
    return {
        "stage": outcome.stage, "passed": passed, "hazard": unprotected, "checks": len(outcome.errors),
        "seconds": outcome.median if passed else None, "shots": list(outcome.seconds),
    }  # fmt: skip


def replayed(measured: Sequence[Row], choices: Mapping[str, Any], first: Values, budget: int, seed: int) -> list[Row]:
    """Searches over measured times, each a few times; `needed`: tries to reach random search's best, over its tries.

    Every replay draws anew which of a directive's measured runs count, so that intervals know how sure its time is.
    """
    totals: dict[str, list[Row]] = {name: [] for name in SEARCHES}
    for replay in range(REPLAYS):
        random = stream(seed, "cuco", "shots", replay)
        known = {tuple(row[name] for name in choices): row | {"seconds": _resampled(row, random)} for row in measured}
        tried = {name: _replay(name, known, choices, first, budget, seed, replay) for name in SEARCHES}
        goal = max(one.score for one in tried["random"][:budget])
        for name, candidates in tried.items():
            scores = [one.score for one in candidates]
            reached = next((at + 1 for at, score in enumerate(scores) if score * NEAR >= goal), len(scores))
            right = next((one for one in candidates if one.score > 0), candidates[-1])
            totals[name].append({
                "needed": reached / budget, "best": max(scores[:budget]),
                "first_right": right.generation, "failed": sum(one.stage != "" for one in candidates[:budget]) / budget,
            })  # fmt: skip
    return [
        {"search": name, "seed": seed} | {key: float(np.mean([one[key] for one in each])) for key in each[0]}
        for name, each in totals.items()
    ]


def _resampled(row: Row, random: np.random.Generator) -> float | None:
    return float(np.median(random.choice(row["shots"], len(row["shots"])))) if row["passed"] else None


def _replay(
    name: str, known: Mapping[Values, Row], choices: Mapping[str, Any], first: Values, budget: int, seed: int,
    replay: int,
) -> list[Candidate]:  # fmt: skip
    """Twice the budget at most, so that a search that is late is seen to be."""
    random, generations = stream(seed, "cuco", "search", name, replay), (budget - 1) // 4
    start = None if name == "no fast path" else first
    search: Search = Random(choices, random)
    if name != "random":
        phases = None if name == "single phase" else 0.4
        search = Islands(choices, random, start, generations, explore=phases)
    for _ in range(min(2 * budget, len(known))):
        row = known[search.ask().values]
        search.tell(row["base"] / row["seconds"] if row["passed"] else 0.0, row["stage"])
    return search.tried


def streams(program: Any) -> dict[str, Row]:
    """Stream-level overlap as one writes it by hand: chunks, a wait for each, host-issued; by the size of chunks."""
    base = host(program) | {"placement": "inside", "scope": "chunk", "depth": program.tiles}
    return {f"stream {chunk}": base | {"chunk": chunk} for chunk in knobs(program)["chunk"][1:]}


def targeted(target: str, sizes: Row, budget: int, rounds: int, seeds: list[int], seed: int) -> dict[str, Row]:
    """A search on every seed; host-driven, the best hand-written overlap and what each found, raced together.

    Each seed searches anew: with one search for all, intervals would know the clock's noise and not the search's luck.
    A directive that several of them ask for is built, verified and timed once, and all that were found run in turns in
    one race, of whose rounds every seed draws its own sample: a bad moment of the machine is then nobody's alone.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        Gauge() as gauge,
        Bench(target, sizes, seed=seeds[0], rounds=3, known={}) as bench,
    ):
        base = bench.settle(host(bench.program)).median
        tuned = {name: bench.evaluate(one) for name, one in streams(bench.program).items()}
        by_hand = min((name for name in tuned if not tuned[name].stage), key=lambda name: tuned[name].median)
        searches: dict[int, Search] = {}
        entries: list[Row] = []
        for one in seeds:
            database = Database(Path(folder) / f"{one}.jsonl")
            searches[one] = Islands(knobs(bench.program), stream(one, "cuco", target),
                                    tuple(safe(bench.program).values()), generations=(budget - 1) // 4)  # fmt: skip
            pursue(bench, searches[one], budget, base, database)
            entries += list(database)
        unlike = {tuple(entry["directive"].values()): entry["directive"] for entry in entries}
        sound = [bench.shots(one, (Shot(FRESH, check=True),)) for one in unlike.values()]
        right = {values: not isinstance(shot, str) and shot[0][1] <= CLOSE
                 for values, shot in zip(unlike, sound, strict=True)}  # fmt: skip
        best = _finals(bench, searches, rounds)
        versions = {"host": host(bench.program), "stream": streams(bench.program)[by_hand]}
        race = bench.race(versions | {_name(one): one for one in best.values()}, 3 * rounds)
    more = {
        "entries": len(entries), "verified_again": sum(right[tuple(one["directive"].values())] for one in entries),
        "least_checks": min(len(one["errors"]) for one in entries), "free_cores": gauge.free,
        "rejected": sum(tried.stage != "" for search in searches.values() for tried in search.tried),
    }  # fmt: skip
    found: dict[str, Row] = {}
    for one in seeds:
        drawn = stream(one, "cuco", "rounds", target).integers(0, 3 * rounds, 3 * rounds)
        for name, directive in (versions | {"found": best[one]}).items():
            seconds = np.array(race[name if name in versions else _name(directive)])[drawn]
            found[f"{name} {one}"] = {"version": name, "seed": one, "seconds": float(np.median(seconds)),
                                      "directive": _name(directive)} | more  # fmt: skip
    return found


def _name(directive: Mapping[str, Any]) -> str:
    return " ".join(map(str, directive.values()))


def _finals(bench: Bench, searches: Mapping[int, Search], rounds: int) -> dict[int, dict[str, Any]]:
    """Of every search's best candidates the one that is fastest when all of them run in turns."""
    fronts = {one: front(search) for one, search in searches.items()}  # the safe version is right, so none is empty
    every = {_name(directive): directive for some in fronts.values() for directive in some}
    seconds = bench.race(every, rounds)
    return {
        one: min(some, key=lambda directive: float(np.median(seconds[_name(directive)])))
        for one, some in fronts.items()
    }
