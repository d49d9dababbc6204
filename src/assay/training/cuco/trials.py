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
from assay.training.cuco.bench import CLOSE, Bench, Database, Outcome, pursue, winner
from assay.training.cuco.program import Uncompilable, hazards, host, knobs, lower, safe
from assay.training.cuco.run import Shot

SPACE = ("transport", "placement", "scope", "chunk", "depth")  # knobs of the measured space; the issuer if it is wide
NEAR = 1.02  # a search has reached a time if it is within this factor of it: medians of a few runs are not closer
REPLAYS = 4  # of each search for each seed
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
        "seconds": outcome.median if passed else None,
    }  # fmt: skip


def replayed(measured: Sequence[Row], choices: Mapping[str, Any], first: Values, budget: int, seed: int) -> list[Row]:
    """Searches over measured times, each a few times; `needed`: tries to reach random search's best, over its tries."""
    known = {tuple(row[name] for name in choices): row for row in measured}
    totals: dict[str, list[Row]] = {name: [] for name in SEARCHES}
    for replay in range(REPLAYS):
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
    """A search for real on every seed; host-driven, the best hand-written overlap and what it found, raced on it.

    Each seed searches anew: with one search for all, intervals would know the clock's noise and not the search's luck.
    """
    found: dict[str, Row] = {}
    entries: list[Row] = []
    verified = rejected = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Gauge() as gauge,
        Bench(target, sizes, seed=seeds[0], rounds=3) as bench,
    ):
        base = bench.settle(host(bench.program)).median
        tuned = {name: bench.evaluate(one) for name, one in streams(bench.program).items()}
        by_hand = min((name for name in tuned if not tuned[name].stage), key=lambda name: tuned[name].median)
        versions = {"host": host(bench.program), "stream": streams(bench.program)[by_hand]}
        for one in seeds:
            bench.seed, database = one, Database(Path(folder) / f"{one}.jsonl")
            search = Islands(knobs(bench.program), stream(one, "cuco", target),
                             tuple(safe(bench.program).values()), generations=(budget - 1) // 4)  # fmt: skip
            pursue(bench, search, budget, base, database)
            best = winner(bench, search, rounds)
            assert best is not None  # the safe version is right
            kept = list(database)
            sound = [bench.shots(entry["directive"], (Shot(FRESH + one, check=True),)) for entry in kept]
            verified += sum(not isinstance(shot, str) and shot[0][1] <= CLOSE for shot in sound)
            rejected += sum(tried.stage != "" for tried in search.tried)
            entries += kept
            raced = versions | {"found": best}
            for name, seconds in bench.race(raced, rounds).items():
                found[f"{name} {one}"] = {
                    "version": name, "seed": one, "seconds": float(np.median(seconds)),
                    "directive": " ".join(map(str, raced[name].values())),
                }  # fmt: skip
    more = {
        "entries": len(entries), "verified_again": verified, "least_checks": min(len(one["errors"]) for one in entries),
        "rejected": rejected, "free_cores": gauge.free,
    }  # fmt: skip
    return {name: row | more for name, row in found.items()}
