"""`assay compare cuco`: search for the best way to interleave a program's computation and communication."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.record.timing import Gauge
from assay.sim import agent
from assay.sim.search import Candidate, Feedback, Islands, Mutator, Values, structured
from assay.sim.streams import stream
from assay.training.cuco.bench import Bench, Database, again, pursue, winner
from assay.training.cuco.program import host, knobs, safe
from assay.training.cuco.trials import streams
from assay.training.engine.shaped import link

TIE = 0.05
LAST = 12  # candidates that a model is told about


def endpoint(url: str, model: str, timeout: float = 60.0) -> Mutator:
    """A mutator that asks a language model for the next directive; what it may not know, it is not asked to write."""

    def mutate(parent: Candidate, feedback: Feedback) -> Values:
        names = list(feedback.knobs)
        told = [
            {"directive": dict(zip(names, one.values, strict=True)), "speedup": round(one.score, 3),
             "failed": one.stage, "why": one.note}
            for one in feedback.tried[-LAST:]
        ]  # fmt: skip
        asked = {
            "phase": feedback.phase, "knobs": {name: list(values) for name, values in feedback.knobs.items()},
            "change_this": dict(zip(names, parent.values, strict=True)), "tried": told,
            "summary": {name: [round(x, 3) for x in bias] for name, bias in feedback.bias.items()},
        }  # fmt: skip
        system = (
            "You tune how a program of two ranks overlaps computing and communicating. Answer with one JSON object: a "
            "value for every knob, nothing else. A directive that lacks a needed wait fails verification."
        )
        messages = [{"role": "system", "content": system}, {"role": "user", "content": json.dumps(asked)}]
        answer = agent.ask(url, messages, dict[str, int | str], timeout, model=model)
        if set(answer) != set(names):
            raise agent.Refused("the answer lacks a knob, or has one too many")
        return tuple(answer[name] for name in names)

    return mutate


@click.command(epilog="Example:  assay compare cuco --program examples/halo.py:Halo --budget 13")
@click.option("--program", "source", metavar="NAME or FILE.py:CLASS",
              help="gemm, attention, moe, kv, or a class: tiles, stages, inputs, result, reference.")  # fmt: skip
@click.option("--budget", type=click.IntRange(2, 10_000), default=41, show_default=True, help="Candidates to try.")
@click.option("--link", "speed", default="1gbit", show_default=True, help="Between the ranks.")
@click.option("--rounds", type=click.IntRange(1, 100), default=7, show_default=True, help="Of the race in the end.")
@click.option("--database", type=click.Path(path_type=Path, dir_okay=False), help="Keep what passed, a line each.")
@click.option("--again", "number", type=int, metavar="ID", help="Verify and time this candidate of the database anew.")
@click.option("--endpoint", "url", help="An OpenAI-compatible address (up to /v1) that proposes directives.")
@click.option("--model", default="default", show_default=True, help="As the endpoint calls it.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(
    source: str | None, budget: int, speed: str, rounds: int, database: Path | None, number: int | None,
    url: str | None, model: str, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Your own program of two ranks: the best directive that passes verification, raced against what one has."""
    if number is not None:
        return _again(database, number, rounds)
    if source is None:
        raise BadInput("--program NAME or FILE.py:CLASS expected, or --database FILE --again ID")
    mutate = endpoint(url, model) if url else structured
    with tempfile.TemporaryDirectory() as folder:
        return compare(source, budget, speed, rounds, database or Path(folder) / "found.jsonl", mutate, seed)


def compare(
    source: str, budget: int, speed: str, rounds: int, path: Path, mutate: Mutator = structured, seed: int = 0
) -> dict[str, Any]:
    """Host-driven, overlap by hand with its best chunk, and the best of a search."""
    with Gauge() as gauge, Bench(source, link=link(speed, shaped=True), seed=seed) as bench:
        base = bench.settle(host(bench.program)).median
        search = Islands(knobs(bench.program), stream(seed, "cuco", "compare"), tuple(safe(bench.program).values()),
                         max(1, (budget - 1) // 4), mutate=mutate)  # fmt: skip
        pursue(bench, search, budget, base, Database(path))
        tuned = {name: bench.evaluate(one) for name, one in streams(bench.program).items()}
        passed = {name: one.median for name, one in tuned.items() if not one.stage}
        versions = {"host-driven": host(bench.program)}
        if passed:
            versions["overlap by hand"] = streams(bench.program)[min(passed, key=passed.__getitem__)]
        if best := winner(bench, search, rounds):
            versions["found"] = best
        seconds = bench.race(versions, rounds)
        bench.stop()
    table = [{"version": name, "seconds": float(np.median(seconds[name])), **one} for name, one in versions.items()]
    return _told(source, search, table, gauge.free)


def _told(source: str, search: Islands, table: list[dict[str, Any]], free: float) -> dict[str, Any]:
    stages = [one.stage for one in search.tried]
    first, *others = sorted(table, key=lambda row: row["seconds"])
    lead = others[0]["seconds"] / first["seconds"] - 1 if others else 0.0
    said = f"{first['version']} is fastest, {others[0]['version'] if others else ''} takes {100 * lead:.0f} % longer"
    if lead < TIE and others:
        said = f"{first['version']} and {others[0]['version']} tie"
    return {
        "program": {
            "name": source, "tried": len(stages), "passed": stages.count(""), "uncompilable": stages.count("compile"),
            "wrong": stages.count("verify"), "refused_answers": search.refused,
            "free_cores": round(free, 2) if np.isfinite(free) else None,
        },
        "table": table, "units": {"seconds": "s"},
        "why": f"{said}; {stages.count('compile') + stages.count('verify')} of {len(stages)} candidates did not pass.",
        "trust": "Seconds are of this machine, now: free_cores says how many processors others left. Verified on three "
        "inputs, with either rank dawdling; a race that none of them shows would pass.",
        "shown": ["version", "seconds", "transport", "placement", "scope", "chunk", "depth", "issuer", "wait"],
    }  # fmt: skip


def _again(path: Path | None, number: int, rounds: int) -> dict[str, Any]:
    if path is None:
        raise BadInput("--again ID needs --database FILE")
    entry = next((one for one in Database(path) if one["id"] == number), None)
    if entry is None:
        raise BadInput(f"{path} has no candidate {number}")
    found = again(entry, rounds)
    row = {"version": f"candidate {number}", "seconds": None if found.stage else found.median, **entry["directive"]}
    then = float(np.median(entry["seconds"]))
    told = f"fails to {found.stage}: {found.note}" if found.stage else f"passes again; it took {then:.4g} s then"
    return {
        "program": {"name": entry["program"], "candidate": number}, "table": [row], "units": {"seconds": "s"},
        "why": f"Candidate {number} {told}.", "trust": "Seconds are of this machine, now.",
    }  # fmt: skip
