"""A comparison of two commits, from the configuration to the exit code."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from assay.observe.bench import checkouts as bench_checkouts
from assay.observe.bench import config as bench_config
from assay.observe.bench import runner
from assay.observe.bench.checkouts import Checkout
from assay.observe.bench.config import Config
from assay.observe.bench.fingerprint import fingerprint
from assay.observe.bench.judge import ERROR, REGRESSION, UNDECIDED, Comparison, Judgement
from assay.observe.bench.processes import Bench
from assay.observe.bench.runner import Progress
from assay.record.errors import BadInput


@dataclass(frozen=True)
class Session:
    """A finished comparison."""

    config: Config
    base: Checkout
    head: Checkout
    comparisons: list[Comparison]
    fingerprint: dict[str, Any]
    seconds: float


def compare(
    path: Path, base: str, head: str, only: Sequence[str], progress: Progress, *, min_change: float | None = None,
    instructions: str | None = None,
) -> Session:  # fmt: skip
    """Compare two commits of the repository that holds the configuration."""
    config = chosen(bench_config.load(path), path, only)
    overrides = {"min_change": min_change, "instructions": instructions}
    config = msgspec.structs.replace(config, **{key: value for key, value in overrides.items() if value is not None})
    if not 0 < config.min_change < 10:
        raise BadInput(f"the smallest change must be between 0 and 10, not {config.min_change:g}")
    begun = time.monotonic()
    repository = bench_checkouts.top(path.resolve().parent)
    with (
        bench_checkouts.session() as folder,
        bench_checkouts.checkouts(repository, (base, head), folder) as (before, after),
    ):
        comparisons = side_by_side(config, before, after, folder, progress)
    return Session(config, before, after, comparisons, fingerprint(), time.monotonic() - begun)


def chosen(config: Config, path: Path, only: Sequence[str]) -> Config:
    """The configuration with just these benchmarks."""
    for name in only:
        if name not in config.benchmark:
            raise BadInput(f"{path}: no benchmark '{name}'; there are {', '.join(config.benchmark)}")
    kept = {name: benchmark for name, benchmark in config.benchmark.items() if not only or name in only}
    return msgspec.structs.replace(config, benchmark=kept)


def side_by_side(config: Config, base: Checkout, head: Checkout, folder: Path, progress: Progress) -> list[Comparison]:
    """All benchmarks on two checkouts that are there already."""
    names = list(config.benchmark)
    if failure := prepared(config, (base, head), folder):
        return [Comparison(name, None, None, None, error=failure) for name in names]
    most = runner.rule(config).looks[-1]
    comparisons = []
    for position, name in enumerate(names):

        def told(done: int, _: int, before: int = position * most) -> None:
            progress(before + done, most * len(names))

        comparisons.append(runner.compare(name, config, base, head, folder, told))
    return comparisons


def prepared(config: Config, checkouts: Sequence[Checkout], folder: Path) -> str:
    """Run `prepare` in each checkout; the line that says what went wrong, or nothing."""
    for checkout in checkouts:
        env = Bench("", bench_config.Benchmark(), config, checkout, folder).env(0)
        if failure := bench_checkouts.prepare(checkout, config.prepare, env, config.timeout * 10):
            return failure
    return ""


# --------------------------------------------------------------------------------------------- answers


def exit_code(session: Session) -> int:
    """1 with a regression, 2 where a benchmark did not run, 0 otherwise."""
    decisions = {one.decision for one in session.comparisons}
    return 1 if REGRESSION in decisions else 2 if ERROR in decisions else 0


def summary(session: Session) -> str:
    """What the table means, in a few sentences."""
    config = session.config
    decisions = [one.decision for one in session.comparisons]
    counts = [f"{decisions.count(kind)} {kind}" for kind in dict.fromkeys(decisions)]
    lines = [
        f"{', '.join(counts)}; {session.seconds:.1f} s. Equal code would be called changed with a probability below "
        f"{config.false_alarms:.2g}, all benchmarks together; changes below {100 * config.min_change:.2g} % never are."
    ]
    if UNDECIDED in decisions:
        lines.append("Undecided: a change as large as the interval's ends is possible; more pairs would narrow it.")
    if session.head.dirty or session.base.dirty:
        lines.append("A tree with uncommitted changes was measured: it belongs to no commit.")
    return "\n".join(lines)


def as_json(session: Session) -> dict[str, Any]:
    """The session as plain data."""
    return {
        "base": {"commit": session.base.commit, "dirty": session.base.dirty},
        "head": {"commit": session.head.commit, "dirty": session.head.dirty},
        "config": msgspec.to_builtins(session.config),
        "digest": session.config.digest,
        "fingerprint": session.fingerprint,
        "seconds": session.seconds,
        "exit_code": exit_code(session),
        "benchmarks": [
            {
                "name": one.name,
                "decision": one.decision,
                "by": one.by or None,
                "base": one.base,
                "head": one.head,
                "time": _plain(one.time),
                "instructions": _plain(one.instructions),
                "error": one.error or None,
                "note": one.note or None,
                "seconds": one.seconds,
            }
            for one in session.comparisons
        ],
    }


def _plain(judgement: Judgement | None) -> dict[str, Any] | None:
    if judgement is None:
        return None
    bounded = judgement.high < 1e6  # too few pairs: no bound on either side
    return {
        "decision": judgement.decision,
        "change": judgement.change,
        "low": judgement.low if bounded else None,
        "high": judgement.high if bounded else None,
        "pairs": judgement.pairs,
        "resolvable": judgement.resolvable,
    }


def slower(session: Session, name: str) -> bool | None:
    """Whether head is slower in this benchmark; None where it could not be decided."""
    (one,) = [one for one in session.comparisons if one.name == name]
    if one.decision in (ERROR, UNDECIDED):
        return None
    return one.decision == REGRESSION
