"""What the study asks: small spaces judged as a whole, searches over them at no cost, and what they found raced."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from assay.record.timing import Gauge
from assay.sim.search import Candidate, Islands, Random, Search, Values
from assay.sim.streams import stream
from assay.training.cuco.bench import CLOSE, FINAL, Bench, Database, pursue
from assay.training.cuco.program import Lowered, Uncompilable, hazards, host, knobs, lower, safe
from assay.training.cuco.run import Shot

SPACE = ("transport", "placement", "scope", "chunk", "depth")  # knobs of the measured space; the issuer if it is wide
NEAR = 1.02  # a search has reached a time if it is within this factor of it: medians of a few runs are not closer
REPLAYS = 12  # of each search for each seed
CLOSER = 5  # runs in turns of those that scored best
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


def searched(
    target: str, sizes: Row, whole: bool, wide: bool, budget: int, rounds: int, seeds: list[int], seed: int
) -> dict[str, Row]:
    """A search over a program's small space on every seed, and what they found raced; `whole`: all of it is judged.

    Directives that build one program are judged together, once for all searches. Then host-driven, the best
    hand-written overlap and what each search found run in turns in one race, of whose rounds every seed draws its own
    sample: a bad moment of the machine is then nobody's alone. With one search for all, intervals would know the
    clock's noise and not the search's luck.
    """
    with Gauge() as gauge, Bench(target, sizes, seed=seed, rounds=1 + whole, known={}) as bench:
        base, choices = bench.settle(host(bench.program)).median, small(bench.program, wide)
        by_hand = list(streams(bench.program).values())
        for directive in (*by_hand, *(_drawn(choices, seed) if whole else ())):
            bench.evaluate(directive)
        first = tuple((safe(bench.program) | {"depth": choices["depth"][0]})[name] for name in choices)
        searches: dict[int, Search] = {
            one: Islands(choices, stream(one, "cuco", target), first, generations=(budget - 1) // 4) for one in seeds
        }
        entries = _entries(bench, searches, budget, base)
        right = audit(bench, _programs(bench, (*by_hand, *_drawn(choices, seed))))
        hand, best = _finals(bench, by_hand, searches)
        versions = {"host": host(bench.program), "stream": hand}
        race = bench.race(versions | {_name(one): one for one in best.values()}, rounds)
        space = _space(bench, choices, base) if whole else {}
    found = {f"space {name}": row | {"part": "space", "free_cores": gauge.free} for name, row in space.items()}
    kept = _kept(entries, [right[lower(bench.program, one["directive"])] for one in entries], searches)
    for one in seeds:
        drawn = stream(one, "cuco", "rounds", target).integers(0, rounds, rounds)
        for name, directive in (versions | {"found": best[one]}).items():
            seconds = np.array(race[name if name in versions else _name(directive)])[drawn]
            found[f"{name} {one}"] = kept | {
                "part": "targets", "version": name, "seed": one, "seconds": float(np.median(seconds)),
                "directive": _name(directive), "free_cores": gauge.free,
            }  # fmt: skip
    return found


def audit(bench: Bench, programs: Mapping[Lowered, Row]) -> dict[Lowered, bool]:
    """Which of the programs that passed are right on an input that no search has seen; that run is a timed one, too."""
    assert bench.known is not None, "a bench that remembers"
    right: dict[Lowered, bool] = {}
    for one, directive in programs.items():
        if not bench.known[one].stage:
            found = bench.shots(directive, (Shot(FRESH, check=True),))
            right[one] = not isinstance(found, str) and found[0][1] <= CLOSE
            bench.known[one] = bench.known[one].with_more([] if isinstance(found, str) else [found[0][0]])
    return right


def _finals(bench: Bench, by_hand: Sequence[Row], searches: Mapping[int, Search]) -> tuple[Row, dict[int, Row]]:
    """Of overlap by hand, and of every search's fastest candidates, the one that is fastest when all run in turns.

    Who is among the fastest is told by the shortest run: what disturbs a run makes it longer.
    """
    fronts: dict[int, list[Row]] = {}
    for one, search in searches.items():
        names = search.knobs  # type: ignore[attr-defined]
        tried = {_name(d): d for d in (dict(zip(names, t.values, strict=True)) for t in search.tried if not t.stage)}
        fronts[one] = sorted(tried.values(), key=lambda directive: min(bench.evaluate(directive).seconds))[:FINAL]
    right = [one for one in by_hand if not bench.evaluate(one).stage]
    every = {lower(bench.program, one): one for some in (right, *fronts.values()) for one in some}
    seconds = bench.race({_name(one): one for one in every.values()}, CLOSER)

    def fastest(some: Sequence[Row]) -> Row:
        return min(some, key=lambda one: float(np.median(seconds[_name(every[lower(bench.program, one)])])))

    return fastest(right), {one: fastest(some) for one, some in fronts.items()}


def _drawn(choices: Mapping[str, Sequence[Any]], seed: int) -> list[Row]:
    """Every directive of a space, in drawn order."""
    every = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    return [every[at] for at in stream(seed, "cuco", "space").permutation(len(every)).tolist()]


def _programs(bench: Bench, directives: Iterable[Row]) -> dict[Lowered, Row]:
    """The programs among those that were judged, each with a directive that builds it."""
    found: dict[Lowered, Row] = {}
    for directive in directives:
        with suppress(Uncompilable):
            found.setdefault(lower(bench.program, directive), directive)
    return {one: directive for one, directive in found.items() if bench.known and one in bench.known}


def _space(bench: Bench, choices: Mapping[str, Sequence[Any]], base: float) -> dict[str, Row]:
    """What is known of every directive."""
    found = {}
    for values in product(*choices.values()):
        directive = dict(zip(choices, values, strict=True))
        outcome = bench.evaluate(directive)
        built, passed = outcome.stage != "compile", not outcome.stage
        found[_name(directive)] = directive | {
            "stage": outcome.stage, "passed": passed, "checks": len(outcome.errors), "base": base,
            "hazard": built and bool(hazards(bench.program, directive)),
            "seconds": outcome.median if passed else None, "shots": list(outcome.seconds),
        }  # fmt: skip
    return found


def _entries(bench: Bench, searches: Mapping[int, Search], budget: int, base: float) -> list[Row]:
    """Let all search; what their databases hold."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for one, search in searches.items():
            database = Database(Path(folder) / f"{one}.jsonl")
            pursue(bench, search, budget, base, database)
            found += list(database)
    return found


def _kept(entries: Sequence[Row], sound: Sequence[bool], searches: Mapping[int, Search]) -> Row:
    return {
        "entries": len(entries), "verified_again": sum(sound),
        "least_checks": min(len(one["errors"]) for one in entries),
        "rejected": sum(tried.stage != "" for search in searches.values() for tried in search.tried),
    }  # fmt: skip


def _name(directive: Mapping[str, Any]) -> str:
    return " ".join(map(str, directive.values()))


def streams(program: Any) -> dict[str, Row]:
    """Stream-level overlap as one writes it by hand: chunks, a wait for each, host-issued; by the size of chunks."""
    base = host(program) | {"placement": "inside", "scope": "chunk", "depth": program.tiles}
    return {f"stream {chunk}": base | {"chunk": chunk} for chunk in knobs(program)["chunk"][1:]}


# ------------------------------------------------------------------------------------------------ searches compared


def replayed(measured: Sequence[Row], program: Any, wide: bool, budget: int, seed: int) -> list[Row]:
    """Searches over measured times, each a few times; `needed`: tries to reach random search's best, over its tries.

    Every replay draws anew which of a program's measured runs count, so that intervals know how sure its time is.
    """
    totals: dict[str, list[Row]] = {name: [] for name in SEARCHES}
    choices = small(program, wide)
    first = tuple((safe(program) | {"depth": choices["depth"][0]})[name] for name in choices)
    for replay in range(REPLAYS):
        random = stream(seed, "cuco", "shots", replay)
        known = {tuple(row[name] for name in choices): row | {"seconds": _resampled(row, random)} for row in measured}
        tried = {
            name: _replay(name, known, choices, first, budget, stream(seed, "cuco", "search", name, replay))
            for name in SEARCHES
        }
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
    name: str, known: Mapping[Values, Row], choices: Mapping[str, Any], first: Values, budget: int,
    random: np.random.Generator,
) -> list[Candidate]:  # fmt: skip
    """Twice the budget at most, so that a search that is late is seen to be."""
    generations = (budget - 1) // 4
    start = None if name == "no fast path" else first
    search: Search = Random(choices, random)
    if name != "random":
        phases = None if name == "single phase" else 0.4
        search = Islands(choices, random, start, generations, explore=phases)
    for _ in range(min(2 * budget, len(known))):
        row = known[search.ask().values]
        search.tell(row["base"] / row["seconds"] if row["passed"] else 0.0, row["stage"])
    return search.tried
