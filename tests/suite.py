"""The quick tests, in the order that tells most soonest: `python -m tests.suite [--touched]`.

The examples in docstrings come first: what they compile, all later processes share. Then the tests, on all cores, the
tests of a file in one process. Then those marked `alone`, which measure time or fill the machine, one by one. With
`--touched` the rooms that the last change touched go first, and if they fail, nothing else is tried. The last line
names the rooms that failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from assay.record import catalogue, pool
from conftest import ALONE
from tests import ledger

ROOT = Path(__file__).parents[1]
QUICK = "not slow and not timed and not traces"
MOST = 60.0  # processor seconds a file, at a pace of 1: who takes more is named
RUNAWAY = 3.0  # times as much fails a run: no machine's day takes so long, but a loop that lost its end does
PAPER = 8.0  # processor seconds a paper


def main(arguments: Sequence[str]) -> int:
    """Run the tests; 0 if all passed and no file ran away."""
    began, everything = time.monotonic(), rooms()
    first = touched() & everything if "--touched" in arguments else set()
    book = ROOT / ".cache" / "ledger"
    book.parent.mkdir(exist_ok=True)
    book.unlink(missing_ok=True)
    passed = _all(book, examples(everything))
    for chosen in (first, everything - first):
        if chosen and passed:
            print(f"== {'touched: ' if chosen == first else ''}{', '.join(sorted(chosen))}", flush=True)
            passed = _all(book, stages(chosen))
    costs = ledger.read(book)
    print("\n".join(summary(costs)))
    print(f"{time.monotonic() - began:.0f} s, of the processor {ledger.processor_seconds():.0f} s")
    print(verdict(costs, passed))
    return 0 if passed and not over(costs, RUNAWAY * MOST) else 1


def rooms() -> set[str]:
    """The parts of the package that have examples or tests, and the single test files at the top."""
    folders = [path for base in ("src/assay", "tests") for path in (ROOT / base).iterdir() if path.is_dir()]
    return {path.name for path in folders if path.name not in ("__pycache__", "oracles", "examples")} | {"house"}


SPREAD = ["-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"]


def examples(chosen: Iterable[str]) -> list[list[str]]:
    """What pytest is called with for the examples in docstrings; before all else, since they compile for the rest."""
    found = mixed(chosen, "src/assay", "*.py")
    return [[*SPREAD, "-m", QUICK, *map(str, found)]] if found else []


def stages(chosen: Iterable[str]) -> list[list[str]]:
    """What pytest is called with for the tests, one list a call."""
    files = mixed(chosen, "tests", "test_*.py")
    alone = [path for path in files if ALONE in path.read_text(encoding="utf-8")]
    calls = [
        (files, [*SPREAD, "-m", f"{QUICK} and not alone"]),
        (alone, ["-m", f"{QUICK} and alone"]),
    ]
    return [[*options, *map(str, paths)] for paths, options in calls if paths]


def mixed(chosen: Iterable[str], base: str, pattern: str) -> list[Path]:
    """The files of some rooms, each room's spread evenly over the list.

    Two processes at files of one room would need the same engine at the same time, and one would wait while the other
    compiles it.
    """
    order: list[tuple[float, Path]] = []
    for room in sorted(chosen):
        found = [
            path for place in places(room, base) for path in sorted(place.rglob(pattern) if place.is_dir() else [place])
        ]
        order += [((i + 0.5) / len(found), path) for i, path in enumerate(found)]
    return [path for _, path in sorted(order)]


def places(room: str, base: str) -> list[Path]:
    """Where a room's examples or tests lie."""
    if room == "house":
        return sorted((ROOT / base).glob("*.py" if base == "src/assay" else "test_*.py"))
    return [path for path in [ROOT / base / room] if path.is_dir()]


def room_of(path: str) -> str:
    """The room that a file belongs to.

    >>> room_of("src/assay/serving/lmetric.py"), room_of("tests/sim/test_x.py"), room_of("tests/test_layout.py")
    ('serving', 'sim', 'house')
    """
    parts = Path(path).parts
    below = parts[2:] if parts[:2] == ("src", "assay") else parts[1:] if parts[:1] == ("tests",) else ()
    return below[0] if len(below) > 1 else "house"


def touched() -> set[str]:
    """The rooms of the files that were changed."""
    return {room_of(path) for path in changed()}


def changed() -> list[str]:
    """The files that differ from what this branch grew from, or else from the commit before."""
    for before in ("origin/main", "main", "HEAD~1"):
        base = _git("merge-base", "HEAD", before)
        if base and base != _git("rev-parse", "HEAD"):
            return _git("diff", "--name-only", base, "HEAD").splitlines()
    return []


def summary(costs: Sequence[ledger.Cost]) -> list[str]:
    """The ten dearest files, and the files and papers over their budgets, which are told and fail nothing."""
    lines = ["", "the dearest files, in seconds of processor time"]
    lines += [f"{cost.seconds:8.1f}  {cost.file}" for cost in costs[:10]]
    files = ", ".join(f"{cost.file} {cost.seconds:.0f}" for cost in over(costs, MOST))
    dear = sorted(((seconds, key) for key, seconds in by_paper(costs).items() if seconds > PAPER), reverse=True)
    papers = ", ".join(f"{key} {seconds:.0f}" for seconds, key in dear)
    return [
        *lines,
        f"files over {MOST:.0f} s: {files or 'none'}",
        f"papers over {PAPER:.0f} s: {papers or 'none'}",
        f"compiling, once for all: {sum(cost.compiling for cost in costs):.0f} s",
    ]


def by_paper(costs: Iterable[ledger.Cost]) -> dict[str, float]:
    """Seconds of each paper's own tests and examples."""
    papers = {(paper.room, paper.key.replace("-", "_")): paper.key for paper in catalogue.papers().values()}
    total: dict[str, float] = defaultdict(float)
    for cost in costs:
        names = {part.removesuffix(".py").removeprefix("test_") for part in Path(cost.file).parts}
        for name in names:
            if key := papers.get((room_of(cost.file), name)):
                total[key] += cost.seconds
    return dict(total)


def over(costs: Iterable[ledger.Cost], seconds: float) -> list[ledger.Cost]:
    """The files over a limit, which is longer by as much as the machine was slower: a busy one puts none over it."""
    return [cost for cost in costs if cost.seconds > seconds * cost.pace]


def verdict(costs: Sequence[ledger.Cost], passed: bool) -> str:
    """The last line: which rooms failed, or that none did."""
    failed: dict[str, int] = defaultdict(int)
    for cost in costs:
        failed[room_of(cost.file)] += cost.failed
    if rooms := [f"{room} ({count})" for room, count in sorted(failed.items()) if count]:
        return f"failed: {', '.join(rooms)}"
    if runaways := over(costs, RUNAWAY * MOST):
        names = ", ".join(f"{cost.file} ({cost.seconds:.0f} s)" for cost in runaways)
        return f"ran away, over {RUNAWAY * MOST:.0f} s of processor time: {names}"
    return f"{sum(cost.tests for cost in costs)} tests passed" if passed else "failed: pytest itself, see above"


def _all(book: Path, calls: Iterable[Sequence[str]]) -> bool:
    """Whether all calls passed; each is made, whatever those before it say."""
    return sum(not _pytest(book, *call) for call in calls) == 0


def _pytest(book: Path, *arguments: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "--ledger", str(book), *arguments]
    environment = os.environ | {"PYTHONHASHSEED": "0"}  # all workers see the same tests in the same order
    environment |= pool.ONE_THREAD if "auto" in arguments else {}  # a worker a core, a thread a worker
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode in (0, 5)  # 5: all deselected


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
