"""The record and a paper as the workbench shows them: the report's own pages, with what can be done about them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from assay.record import catalogue, report, store
from assay.record.errors import BadInput
from assay.record.site import typeset
from assay.record.types import Answer, Result
from assay.record.wording import interval_text, seeds_text, with_unit

RUNS = 30  # stored runs that a page lists
_kept: dict[tuple[str, int], Result] = {}  # results that were read, by their file and when it was written


def newest(key: str) -> tuple[Path, Result] | None:
    """The newest readable result of a paper, read once."""
    return next(stored(key), None)


def stored(key: str) -> Iterator[tuple[Path, Result]]:
    """Every readable result of a paper, the newest first; a file is decoded and judged once."""
    folder = store.home() / "results" / key
    paths = sorted((path for path in folder.glob("*.json") if not path.name.startswith(".")), reverse=True)
    for path in paths:
        try:
            mark = str(path), path.stat().st_mtime_ns
            if mark not in _kept:
                if len(_kept) > 2000:
                    _kept.clear()
                _kept[mark] = store.read(key, path)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue  # `assay record` says which
        yield path, _kept[mark]


def entries() -> list[report.Entry]:
    """All papers with their newest results."""
    papers = list(catalogue.papers().values())
    return report.in_order(papers, {p.key: found for p in papers if catalogue.is_built(p) and (found := newest(p.key))})


def one(key: str, run: str = "") -> tuple[report.Entry, Any, Any]:
    """A paper with its newest result or the one that is asked for, and its neighbours in the record."""
    paper = catalogue.paper(key)
    found = run_named(key, run) if run else newest(key)
    for entry, before, after in report.with_neighbours(entries()):
        if entry.paper.key == key:
            path, result = found or (None, None)
            return report.Entry(paper, entry.built, result, path), before, after
    raise BadInput(f"no paper has the key '{key}'")


def run_named(key: str, run: str) -> tuple[Path, Result]:
    """A stored run by the name of its file."""
    if not re.fullmatch(r"[\w.-]{1,80}", run):
        raise BadInput("no stored run has that name")
    for path, result in stored(key):
        if path.stem == run:
            return path, result
    raise BadInput(f"{key} has no stored run '{run}'")


@dataclass(frozen=True, slots=True)
class Stored:
    """A line of the list of stored runs."""

    name: str
    when: str
    size: str
    seeds: str
    headline: str
    seconds: str
    machine: str
    commit: str
    shown: bool


def runs(key: str, shown: Path | None) -> list[Stored]:
    """The stored runs of a paper, the newest first."""
    found = []
    for path, result in stored(key):
        found.append(
            Stored(
                path.stem,
                result.started[:16].replace("T", " "),
                result.size,
                seeds_text(result.seeds),
                result.headline,
                typeset.seconds(result.seconds),
                typeset.machine(result.machine),
                (result.commit or "")[:10],
                path == shown,
            )
        )
        if len(found) == RUNS:
            break
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """A claim in two runs."""

    text: str
    before: str
    now: str
    verdict_before: str
    verdict: str

    @property
    def changed(self) -> bool:
        """Whether the verdict did."""
        return self.verdict_before != self.verdict


def differences(now: Result, before: Result) -> tuple[list[Difference], list[tuple[str, str, str]]]:
    """What two runs of a paper say otherwise: claim by claim, and in where they come from."""
    old = {answer.id: answer for answer in before.claims}
    claims = [
        Difference(
            answer.text,
            _measured(old.get(answer.id)),
            _measured(answer),
            old[answer.id].verdict.value if answer.id in old else "–",
            answer.verdict.value,
        )
        for answer in now.claims
    ]
    facts = zip(report.provenance(before), report.provenance(now), strict=False)
    return claims, [(name, then, new) for (name, then), (_, new) in facts if then != new]


def _measured(answer: Answer | None) -> str:
    if answer is None or answer.measured is None:
        return "–"
    return f"{with_unit(answer.measured, answer.unit)} ({interval_text(answer.low, answer.high, answer.unit)})"


def command(key: str, size: str, seeds: Sequence[int], on: str, fresh: bool) -> list[str]:
    """What to type for the same run."""
    words = ["assay", "run", key, *(["--full"] if size == "full" else []), *report.seeds_words(seeds)]
    return [*words, *(["--on", on] if on != "local" else []), *(["--fresh"] if fresh else [])]
