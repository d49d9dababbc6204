"""What each test file costs: processor seconds, child processes included, and how many of its tests failed.

`pytest --ledger FILE` adds a line of JSON for every test file to FILE. With pytest-xdist the workers measure and the
process that started them writes.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Cost:
    """One file's part of a run."""

    file: str
    seconds: float = 0.0
    tests: int = 0
    failed: int = 0


def processor_seconds() -> float:
    """What this process and the children it has waited for have used."""
    return sum(os.times()[:4])


def read(path: Path) -> list[Cost]:
    """The costs by file, those of several runs added up, dearest first."""
    total: dict[str, Cost] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        part = Cost(**json.loads(line))
        whole = total.setdefault(part.file, Cost(part.file))
        whole.seconds += part.seconds
        whole.tests += part.tests
        whole.failed += part.failed
    return sorted(total.values(), key=lambda cost: -cost.seconds)


class Meter:
    """Measures each phase of each test; where the reports come together, adds them up."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.costs, self.mark = path, defaultdict[str, Cost](lambda: Cost("")), processor_seconds()

    def pytest_collection_finish(self) -> None:
        self.mark = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = processor_seconds()
        report.processor_seconds, self.mark = now - self.mark, now  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = self.costs[report.nodeid.partition("::")[0]]
        cost.seconds += getattr(report, "processor_seconds", 0.0)
        cost.tests += report.when == "call"
        cost.failed += report.failed

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.costs[report.nodeid.partition("::")[0]].failed += 1

    def pytest_sessionfinish(self) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.writelines(_lines(self.costs))


def _lines(costs: dict[str, Cost]) -> Iterable[str]:
    for name, cost in costs.items():
        yield json.dumps({**vars(cost), "file": name, "seconds": round(cost.seconds, 3)}) + "\n"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ledger", type=Path, help="add each test file's processor seconds to this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--ledger")
    if path is not None:
        worker = hasattr(config, "workerinput")  # of pytest-xdist: it measures, and its reports are added up elsewhere
        config.pluginmanager.register(Meter(None if worker else path.absolute()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """All cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
