"""What each test file costs: processor seconds, child processes included, and how many of its tests failed.

`pytest --ledger FILE` adds a line of JSON for every test file to FILE. With pytest-xdist the workers measure and the
process that started them writes. Compiling is counted apart: it falls to whichever file comes first, and is kept. After
each dear test a small piece of work tells how slow the machine is just then: what others do costs processor time, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Cost:
    """One file's part of a run."""

    file: str
    seconds: float = 0.0
    compiling: float = 0.0
    tests: int = 0
    failed: int = 0
    pace: float = 1.0  # how many times as long the machine took, at its slowest after a dear test


WORK = 0.02  # processor seconds of the piece of work in `pace` on the machine that limits were set on
DEAR = 2.0  # processor seconds of a test after which the pace is taken


def pace() -> float:
    """How many times as long this machine takes as the one that the limits were set on, now; at least 1."""
    began = time.process_time()
    sum(i * i for i in range(500_000))
    return max(1.0, (time.process_time() - began) / WORK)


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
        whole.compiling += part.compiling
        whole.tests += part.tests
        whole.failed += part.failed
        whole.pace = max(whole.pace, part.pace)
    return sorted(total.values(), key=lambda cost: -cost.seconds)


class Compiling:
    """A listener of Numba's: processor seconds between the start and the end of what is compiled."""

    def __init__(self) -> None:
        self.seconds, self.depth, self.began = 0.0, 0, 0.0

    def notify(self, event: Any) -> None:
        if event.is_start:
            self.depth, self.began = self.depth + 1, self.began if self.depth else processor_seconds()
        elif event.is_end:
            self.depth -= 1
            self.seconds += 0.0 if self.depth else processor_seconds() - self.began


class Meter:
    """Measures each phase of each test; where the reports come together, adds them up."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.costs, self.mark = path, defaultdict[str, Cost](lambda: Cost("")), processor_seconds()
        self.compiling: Compiling | None = None

    def pytest_collection_finish(self) -> None:
        self.mark = processor_seconds()

    def compiled(self) -> float:
        """Seconds of compiling since the last call, from when Numba is there."""
        if self.compiling is None and "numba" in sys.modules:
            from numba.core import event

            self.compiling = Compiling()
            event.Listener.register(Compiling)  # Numba is not imported for the sake of a base class
            event.register("numba:compile", self.compiling)
        spent = self.compiling.seconds if self.compiling else 0.0
        if self.compiling:
            self.compiling.seconds = 0.0
        return spent

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.compiled()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        seconds, compiling = processor_seconds() - self.mark, self.compiled()
        slow = pace() if seconds > DEAR else 1.0
        report.cost, self.mark = (seconds - compiling, compiling, slow), processor_seconds()  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = self.costs[report.nodeid.partition("::")[0]]
        seconds, compiling, slow = getattr(report, "cost", (0.0, 0.0, 1.0))
        cost.seconds += seconds
        cost.compiling += compiling
        cost.tests += report.when == "call"
        cost.failed += report.failed
        cost.pace = max(cost.pace, slow)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.costs[report.nodeid.partition("::")[0]].failed += 1

    def pytest_sessionfinish(self) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.writelines(_lines(self.costs))


def _lines(costs: dict[str, Cost]) -> Iterable[str]:
    for name, cost in costs.items():
        rounded = {"seconds": round(cost.seconds, 3), "compiling": round(cost.compiling, 3)}
        yield json.dumps({**vars(cost), "file": name, **rounded}) + "\n"


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
