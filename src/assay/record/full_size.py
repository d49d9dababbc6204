"""What the studies measured at full size, once, on a machine that is named: a quick run says where it differs.

`full_size.toml` holds estimates, not verdicts, so that they are judged by today's rule, and the digest of the code that
made them: a figure that another version of its study measured is stale, and says so wherever it is quoted.
`benchmarks/full_size.py` writes it from stored results.
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

from assay.record import catalogue, sources, verdicts
from assay.record.types import Answer, Evidence, Result, Stated, Verdict

FILE = Path(__file__).with_name("full_size.toml")
STALE = "stale: measured with an earlier version of the study"


@dataclass(frozen=True, slots=True)
class FullSize:
    """One paper's run at full size: when, where, how long, with which code, and its answers to the paper's claims."""

    key: str
    started: str
    machine: str
    seconds: float
    seeds: int
    answers: tuple[Answer, ...]
    source: str = ""  # digest of the study's code; older runs do not tell it

    @property
    def stale(self) -> bool:
        """Whether the study's code has changed since, or is not known."""
        return self.source != sources.digest(catalogue.paper(self.key).module)

    @property
    def where(self) -> str:
        """When and where it was, and whether that still says something of today's code.

        >>> FullSize("div", "2026-11-16T13:33:35.720Z", "a Xeon, 2 cores", 9.0, 5, ()).where
        '2026-11-16, a Xeon, 2 cores; stale: measured with an earlier version of the study'
        """
        return f"{self.started[:10]}, {self.machine}{f'; {STALE}' if self.stale else ''}"


@cache
def runs() -> dict[str, FullSize]:
    """Every paper's run at full size, by key."""
    if not FILE.exists():
        return {}
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {key: _read(key, entry, catalogue.paper(key).claims) for key, entry in entries.items()}


def _read(key: str, entry: Mapping[str, Any], sentences: Iterable[Stated]) -> FullSize:
    now = {sentence.id: sentence for sentence in sentences}
    answers = tuple(
        verdicts.answered(_answer(claim), now[name]) for name, claim in entry.get("claims", {}).items() if name in now
    )
    return FullSize(
        key, entry["started"], entry["machine"], entry["seconds"], entry["seeds"], answers, entry.get("source", "")
    )


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
    numbers = f"\nseconds = {result.seconds:.1f}\nseeds = {seeds}\nsource = {_text(result.source)}\n"
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
