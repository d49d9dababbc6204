"""What the studies measured at full size, once, on a machine that is named: a quick run says where it differs.

`full_size.toml` holds estimates, not verdicts, so that they are judged by today's rule. `benchmarks/full_size.py`
writes it from stored results.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from assay.record import catalogue, verdicts
from assay.record.types import Answer, Evidence, Result, Stated, Verdict

FILE = Path(__file__).with_name("full_size.toml")


@dataclass(frozen=True, slots=True)
class FullSize:
    """One paper's run at full size: when, where, how long, and its answers to the paper's claims."""

    started: str
    machine: str
    seconds: float
    seeds: int
    answers: tuple[Answer, ...]


@cache
def runs() -> dict[str, FullSize]:
    """Every paper's run at full size, by key."""
    if not FILE.exists():
        return {}
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {key: _read(entry, catalogue.paper(key).claims) for key, entry in entries.items()}


def _read(entry: Mapping[str, Any], sentences: Iterable[Stated]) -> FullSize:
    now = {sentence.id: sentence for sentence in sentences}
    answers = tuple(
        verdicts.answered(_answer(claim), now[name]) for name, claim in entry.get("claims", {}).items() if name in now
    )
    return FullSize(entry["started"], entry["machine"], entry["seconds"], entry["seeds"], answers)


def _answer(claim: Mapping[str, Any]) -> Answer:
    return Answer(
        "", None, claim.get("measured"), claim.get("low"), claim.get("high"), claim.get("n", 0), Verdict.NOT_MEASURED,
        Evidence(claim["evidence"]), cases=claim.get("cases", ""), construction=claim.get("construction", ""),
        note=claim.get("note", ""),
    )  # fmt: skip


def contradictions(result: Result) -> dict[str, Answer]:
    """The answers of the run at full size whose verdicts are others than this result's, by the claim's id."""
    kept = runs().get(result.key)
    if kept is None or result.size == "full":
        return {}
    here = {answer.id: answer.verdict for answer in result.stated}
    return {a.id: a for a in kept.answers if a.id in here and a.verdict is not here[a.id]}


def as_toml(results: Iterable[Result], kept: str = "") -> str:
    """Full-size results as `full_size.toml` keeps them, beside those of other papers in the text `kept`."""
    head = "# Written by benchmarks/full_size.py: what each study measured at full size, and on which machine.\n"
    entries = dict(re.findall(r"^(?=\[([^].]+)\]$)((?:.+\n?|\n(?!\[[^].]+\]$))+)", kept, re.MULTILINE))
    entries |= {result.key: _entry(result) for result in results}
    place = {key: position for position, key in enumerate(catalogue.papers())}
    ordered = sorted(entries, key=lambda key: place.get(key, len(place)))
    return "\n".join([head, *(entries[key].rstrip("\n") + "\n" for key in ordered)])


def _entry(result: Result) -> str:
    cpu, cores = result.machine.get("cpu", "unknown"), result.machine.get("cores", "?")
    seeds = result.seeds if isinstance(result.seeds, int) else len(result.seeds)
    head = f"[{result.key}]\nstarted = {_text(result.started)}\nmachine = {_text(f'{cpu}, {cores} cores')}"
    numbers = f"\nseconds = {result.seconds:.1f}\nseeds = {seeds}\n"
    return head + numbers + "".join(_claim(result.key, answer) for answer in result.stated)


def _claim(key: str, answer: Answer) -> str:
    numbers = {name: getattr(answer, name) for name in ("measured", "low", "high")}
    texts = {name: getattr(answer, name) for name in ("cases", "construction", "note")}
    lines = [f"{name} = {float(f'{value:.6g}')!r}" for name, value in numbers.items() if value is not None]
    lines += [f"{name} = {_text(value)}" for name, value in texts.items() if value]
    head = f"\n[{key}.claims.{answer.id}]\nevidence = {_text(answer.evidence.value)}\nn = {answer.n}\n"
    return head + "".join(f"{line}\n" for line in lines)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
