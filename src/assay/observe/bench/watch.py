"""Look at a history: its series, their steps, who is to blame; narrowed down by bisection where that is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from assay.observe.bench import checkouts, compare, history
from assay.observe.bench import config as bench_config
from assay.observe.bench import page as bench_page
from assay.observe.bench import store as bench_store
from assay.observe.bench.history import Change, Point, Series
from assay.observe.bench.runner import Progress
from assay.record.errors import BadInput
from assay.sim.telemetry import Frame
from assay.workloads import benchmark_series, benchmark_units


@dataclass
class Seen:
    """What a look at the history found."""

    title: str
    series: list[Series]
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was left out or repaired, or could not be done


def watch(
    files: Sequence[Path], path: Path, min_change: float, bisect: bool, progress: Progress, better: str = ""
) -> Seen:
    """The steps of the own history, or of other tools' results, of which less or more is `better`, if they do not tell.

    What is said in `better` goes before what the names of columns tell.
    """
    if not min_change > 0:
        raise BadInput(f"the smallest step must be more than 0, not {min_change:g}")
    if better and not files:
        raise BadInput("--better is for FILES: the own history holds seconds, of which less is better")
    if files:
        if bisect:
            raise BadInput("--bisect needs the repository: it works on the own history, not on FILES")
        frame = benchmark_series.read(files)
        notes = [f"{what}: {count}" for what, count in frame.repairs.items()]
        if none := int((frame.samples["value"] <= 0).sum()):
            notes.append(f"values of zero or less left out, from which no per cent can be told: {none}")
        seen = Seen(frame.source, from_frame(frame, better), notes=notes)
        if untold := [series.benchmark for series in seen.series if not series.better]:
            more = " …" if len(untold) > 3 else ""
            notes.append(
                f"--better less or more says which steps are regressions: of {', '.join(untold[:3])}{more}"
                " nothing tells"
            )
    else:
        seen = own(path)
    seen.notes += [
        f"only the latest {history.MOST:,} of {len(one.points):,} points of {_called(one)} are searched for steps"
        for one in seen.series
        if len(one.points) > history.MOST
    ]
    for done, series in enumerate(seen.series):
        seen.changes += history.changes(series, min_change=min_change)
        progress(done + 1, len(seen.series))
    if bisect:
        seen.changes = [narrowed(change, path, seen.notes, progress) for change in seen.changes]
    return seen


def _called(series: Series) -> str:
    return series.benchmark + (f" on {series.machine}" if series.machine else "")


def own(path: Path) -> Seen:
    """The series of the repository's own history."""
    config = bench_config.load(path)
    repository = checkouts.top(path.resolve().parent)
    store = bench_store.folder_of(path, config)
    found, skipped = history.runs(store)
    if not found:
        raise BadInput(f"no run in {store}: begin with 'assay bench run', or 'assay bench run --last 20'")
    series = history.collect(found, checkouts.first_parents(repository))
    return Seen(f"Benchmarks of {repository.name}", series, notes=[f"skipped {line}" for line in skipped])


def from_frame(frame: Frame, better: str = "") -> list[Series]:
    """The series of foreign results, in the order of time; a point without a commit is named by its place."""
    made = []
    machines = dict(frame.entities.filter(pl.col("kind") != "benchmark").select("id", "name").iter_rows())
    benchmarks = frame.entities.filter(pl.col("kind") == "benchmark")
    for entity, name, parent in benchmarks.select("id", "name", "parent").iter_rows():
        own_events = frame.events.filter(pl.col("entity") == entity)
        commits = dict(zip(own_events["t"].to_list(), own_events["text"].to_list(), strict=True))
        every = frame.samples.filter(pl.col("entity") == entity).sort("t")
        measure = benchmark_units.told(str(every["metric"][0]))
        samples = every.filter(pl.col("value") > 0)
        rows = samples.select("t", "value").iter_rows()
        points = [Point(commits.get(t) or f"#{at}", value, at) for at, (t, value) in enumerate(rows)]
        less_or_more = better or measure.better or benchmark_units.told(name).better
        made.append(Series(name, machines.get(parent, ""), tuple(points), unit=measure.unit, better=less_or_more))
    return made


def narrowed(change: Change, path: Path, notes: list[str], progress: Progress) -> Change:
    """The change with a smaller range of commits, by comparing those in between, interleaved."""
    if change.kind != "regression" or change.suspects < 2:
        return change
    commits = checkouts.first_parents(checkouts.top(path.resolve().parent))
    suspects = commits[commits.index(change.before) : commits.index(change.after) + 1]

    def slower(base: str, head: str) -> bool | None:
        # The size looked for is known: whoever shows less than half of it does not have it.
        half = change.change / 2
        session = compare.compare(path, base, head, [change.benchmark], progress, min_change=half)
        return compare.slower(session, change.benchmark)

    before, after = history.bisect(suspects, slower)
    left = suspects.index(after) - suspects.index(before)
    if left > 1:
        notes.append(f"{change.benchmark}: {left} commits left to blame; the comparison in between was undecided")
    return replace(change, before=before, after=after, suspects=left)


def page(path: Path, seen: Seen, min_change: float) -> None:
    """Write the page of history."""
    bench_page.write(path, seen.title, seen.series, seen.changes, min_change)


def as_json(seen: Seen) -> dict[str, Any]:
    """What was seen as plain data."""
    return {
        "title": seen.title,
        "series": [msgspec.to_builtins(series) for series in seen.series],
        "changes": [{**msgspec.to_builtins(change), "kind": change.kind} for change in seen.changes],
        "notes": seen.notes,
    }
