"""A plain run: measure one commit, or several, and add the results to the history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from assay.observe.bench import checkouts, compare, history, runner
from assay.observe.bench import config as bench_config
from assay.observe.bench.checkouts import Checkout
from assay.observe.bench.config import Config
from assay.observe.bench.fingerprint import fingerprint, machine_id
from assay.observe.bench.history import Measured, Run
from assay.observe.bench.runner import Progress


def run(path: Path, ref: str, last: int | None, only: Sequence[str], progress: Progress) -> list[tuple[Path, Run]]:
    """Measure the tree, a commit, or the last so many commits that the history does not have; where each was stored."""
    config = compare.chosen(bench_config.load(path), path, only)
    repository = checkouts.top(path.resolve().parent)
    store = folder_of(path, config)
    refs = [ref] if last is None else missing(repository, store, config, ref, last)
    stored = []
    with checkouts.session() as session:
        for position, one in enumerate(refs):

            def told(done: int, total: int, before: int = position) -> None:
                progress(before * total + done, total * len(refs))

            with checkouts.checkouts(repository, (one,), session) as (checkout,):
                measured = measure(config, checkout, session, told)
            stored.append((history.save(store, measured), measured))
    return stored


def folder_of(path: Path, config: Config) -> Path:
    """Where the history lies: from where the configuration does."""
    return path.resolve().parent / config.store


def missing(repository: Path, store: Path, config: Config, ref: str, last: int) -> list[str]:
    """The last commits of the branch that no run on this kind of machine has measured, the oldest first."""
    tip = "HEAD" if ref == checkouts.WORKING_TREE else ref
    here = machine_id(fingerprint())
    found, _ = history.runs(store)
    known = {
        run.commit for run in found
        if not run.dirty and run.machine == here and set(config.benchmark) <= set(run.results)
    }  # fmt: skip
    return [commit for commit in checkouts.first_parents(repository, tip, last) if commit not in known]


def measure(config: Config, checkout: Checkout, folder: Path, progress: Progress) -> Run:
    """Measure all benchmarks of a checkout. One that does not run is an error of its own; the others go on."""
    found = fingerprint()  # before the work, which raises the load
    started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    names = list(config.benchmark)
    results: dict[str, Measured] = {}
    failure = compare.prepared(config, (checkout,), folder)
    for position, name in enumerate(names):

        def told(done: int, total: int, before: int = position) -> None:
            progress(before * total + done, total * len(names))

        measured = None if failure else runner.measure(name, config, checkout, folder, told)
        results[name] = measured or Measured(error=failure)
    return Run(
        checkout.commit, checkout.dirty, started, msgspec.to_builtins(config), config.digest, found, machine_id(found),
        results,
    )  # fmt: skip


def spread(measured: Measured) -> float | None:
    """How much the processes of a run differ: the distance of the quartiles over the median."""
    if len(measured.seconds) < 2:
        return None
    low, middle, high = np.percentile(measured.seconds, [25, 50, 75])
    return float((high - low) / middle)
