"""Run a study, judge its claims, and store the result with all it takes to know where it comes from."""

from __future__ import annotations

import math
import os
import time
import traceback
import warnings
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from assay.record import catalogue, machine, sources, store, tables, traces, verdicts
from assay.record.errors import AssayError, BadInput, Interrupted, StoreFailed, StudyFailed
from assay.record.extras import missing_module
from assay.record.journal import Journal
from assay.record.lab import Finished, Lab, Progress
from assay.record.pool import Crew
from assay.record.types import (
    SEEDS,
    Answer,
    Claim,
    Estimate,
    Evidence,
    NoRows,
    NotMeasured,
    Result,
    Stated,
    Study,
    Verdict,
)


def run(
    key: str,
    *,
    size: str = "quick",
    seeds: Sequence[int] | None = None,
    on: str = "local",
    fresh: bool = False,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
    finished: Finished = lambda case, seconds: None,
) -> Result:
    """Run a paper's study and return its result, which is also in the store.

    `seeds` are those to use, 0, 1, … by default. Cases that an interrupted run of the same code on the same machine
    finished are taken over unless `fresh`. `progress` hears how many cases are done, `finished` of each one measured.
    """
    study = catalogue.study(key)
    source = sources.digest(study.paper.module)
    started, clock = datetime.now(UTC), time.perf_counter()
    facts = machine.facts()
    many = facts["cores"] if workers is None else workers
    with (
        Journal(key, f"{source}-{size}-{_slug(facts['cpu'])}", fresh=fresh) as journal,
        Crew(many) as crew,
    ):
        artefacts = store.home() / "artefacts" / key
        chosen = tuple(seeds) if seeds else tuple(range(SEEDS[size]))
        lab = Lab(key, size, chosen, on, many, journal, artefacts, progress, crew, finished=finished)
        table = _measure(study, lab, journal)
        answers = judge(study, table, lab.lacking)
        result = Result(
            key=key,
            evidence=_headline_evidence(answers, study.evidence),
            size=size,
            seconds=round(time.perf_counter() - clock, 3),
            machine=facts,
            table=table.to_dicts(),
            claims=answers,
            seeds=tuple(sorted(lab.used)),
            started=started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            source=source,
            commit=machine.commit(),
            versions=machine.versions(),
            on=on,
            resumed=journal.inherited,
            trust=study.trust,
            cases=tuple(column for column in table.columns if column in lab.cases),
        )
        try:
            path = store.save(result)
        except StoreFailed as error:
            error.result = result  # what was measured is still worth showing
            raise
        _draw(study, table, path.with_suffix(".svg"), lab.lacking)
        journal.forget()
    return result


def _measure(study: Study, lab: Lab, journal: Journal) -> pl.DataFrame:
    key = study.paper.key
    try:
        table = tables.joined(study.run(lab))
    except ModuleNotFoundError as error:
        raise BadInput(missing_module(key, error)) from error
    except AssayError as error:
        raise type(error)(f"{error}{_kept(journal)}") from error
    except KeyboardInterrupt as error:
        raise Interrupted(f"{key}: interrupted{_kept(journal)}") from error
    except NotMeasured as reason:
        raise BadInput(f"{key}: {reason}") from reason
    except Exception as error:
        if os.environ.get("ASSAY_TRACEBACK"):
            traceback.print_exc()
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}:{at.lineno}; ASSAY_TRACEBACK=1 shows more"
        raise StudyFailed(f"{key} failed: {_one_line(error)} ({where}){_kept(journal)}") from error
    if "seed" not in table.columns or table.is_empty():
        raise StudyFailed(f"{key}: study(lab) must return tables with a 'seed' column and at least one row")
    return table


def _kept(journal: Journal) -> str:
    count = journal.finished
    return f"; {count} finished case{'s are' if count > 1 else ' is'} kept, and the next run resumes" if count else ""


def judge(study: Study, table: pl.DataFrame, lacking: Collection[str] = ()) -> tuple[Answer, ...]:
    """Every claim's answer, and only here the sentence's own number joins the measured one.

    `lacking` are traces that the study went without: what a claim does not find in the table, they would have brought.
    """
    stated = {claim.id: claim for claim in study.paper.claims}
    cure = traces.lacking(lacking) if lacking else ""
    return tuple(
        _answer(claim, table, claim.question or stated[claim.id], claim.evidence or study.evidence, cure)
        for claim in study.claims
    )


def _answer(claim: Claim, table: pl.DataFrame, sentence: Stated, evidence: Evidence, cure: str) -> Answer:
    found, note, broken = None, "", False
    try:
        found = claim.measure(table)
    except NotMeasured as reason:
        note = cure if cure and isinstance(reason, NoRows) else str(reason)
    except Exception as error:  # a broken claim must not cost the hours its table took
        without = bool(cure) and isinstance(error, KeyError | pl.exceptions.ColumnNotFoundError)
        note, broken = cure if without else f"its measure failed: {_one_line(error)}", not without
    if found and not math.isfinite(found.value):
        found, note = None, "the measured value is not finite"
    if found and sentence.over and not found.cases:
        note, broken = f"its measure does not say over which cases it is the {sentence.over}", True
    answer = Answer(
        text=sentence.text,
        paper=sentence.value,
        measured=found.value if found else None,
        low=_end(found, "low"),
        high=_end(found, "high"),
        n=found.n if found else 0,
        verdict=Verdict.NOT_MEASURED,
        evidence=evidence,
        stated=claim.question is None,
        cases=found.cases if found else "",
        construction=claim.construction,
        note=note,
        broken=broken,
    )
    return verdicts.answered(answer, sentence)


def _end(found: Estimate | None, name: str) -> float | None:
    """An end of the interval; None where it is not known, as of a single observation."""
    end = getattr(found, name, math.nan)
    return float(end) if math.isfinite(end) else None


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _headline_evidence(answers: Sequence[Answer], default: Evidence) -> Evidence:
    measured = [a.evidence for a in answers if a.verdict is not Verdict.NOT_MEASURED]
    return measured[0] if measured else default


def _draw(study: Study, table: pl.DataFrame, path: Path, lacking: Collection[str] = ()) -> None:
    """The plot beside the result. A result without its picture is still a result, so a failure is only said."""
    if study.plot is None:
        return
    from assay.record import charts

    try:
        store.write_whole(path, charts.svg(study.plot(table)).encode())
    except Exception as error:
        why = traces.lacking(lacking) if lacking else str(error) if isinstance(error, NotMeasured) else _one_line(error)
        warnings.warn(f"{study.paper.key}: no plot: {why}", store.StoreWarning, stacklevel=2)


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())[:40]
