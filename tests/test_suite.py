"""How the quick tests are run: in which order, what a file may cost, and what the last line says."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import ledger, suite
from tests.ledger import Cost

BUSY = "import time\nwhile time.process_time() < {seconds}: pass\n"
PARENT = f"""
import subprocess, sys
def test_busy_child():
    subprocess.run([sys.executable, "-c", {BUSY.format(seconds=0.5)!r}], check=True)
def test_fails():
    assert False
"""


def test_the_ledger_counts_children_and_adds_up_over_workers_and_runs(tmp_path: Path) -> None:
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(PARENT)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    book = tmp_path / "ledger"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.ledger", "--ledger", str(book)]
    environment = os.environ | {
        "PYTHONPATH": f"{suite.ROOT}:{suite.ROOT / 'src'}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    for spread in (["-p", "xdist.plugin", "-n", "2", "--dist", "loadfile"], []):
        subprocess.run(
            [*command, *spread], cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=False
        )
    costs = ledger.read(book)
    assert [(cost.tests, cost.failed) for cost in costs] == [(4, 2), (4, 2)]
    assert {cost.file for cost in costs} == {"test_one.py", "test_two.py"}
    assert all(cost.seconds > 0.9 for cost in costs)  # two runs of half a second


def test_examples_come_first_and_what_wants_the_machine_alone_last() -> None:
    (examples,) = suite.examples(["live"])
    tests, alone = suite.stages(["live"])
    assert str(suite.ROOT / "src/assay/live/__init__.py") in examples and "auto" in examples
    assert str(suite.ROOT / "tests/live/test_parity.py") in tests and "auto" in tests
    assert "auto" not in alone and all("test_" in path for path in alone[2:])


def test_files_of_different_rooms_take_turns() -> None:
    files = suite.mixed(["data", "live", "serving"], "tests", "test_*.py")
    rooms = [suite.room_of(str(path.relative_to(suite.ROOT))) for path in files]
    assert all(len(set(rooms[i : i + 6])) == 3 for i in range(0, len(rooms) - 6, 6))


def test_every_test_file_is_in_some_room() -> None:
    calls = [*suite.examples(suite.rooms()), *suite.stages(suite.rooms())]
    called = [Path(part) for call in calls for part in call if part.startswith("/")]
    files = [*(suite.ROOT / "tests").rglob("test_*.py"), *(suite.ROOT / "src/assay").rglob("*.py")]
    files = [path for path in files if suite.ROOT / "src/assay/examples" not in path.parents]
    lost = set(files) - set(called)
    assert not lost


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("src/assay/serving/lmetric.py", "serving"), ("tests/sim/test_x.py", "sim"), ("tests/test_layout.py", "house"),
        ("src/assay/__init__.py", "house"), ("Makefile", "house"), ("docs/design.md", "house"),
    ],
)  # fmt: skip
def test_a_change_touches_the_room_it_lies_in(path: str, room: str) -> None:
    assert suite.room_of(path) == room


def test_a_papers_cost_is_that_of_its_tests_and_examples() -> None:
    costs = [
        Cost("tests/serving/test_coral.py", 3.0), Cost("src/assay/serving/coral/a.py", 1.0),
        Cost("tests/serving/coral/test_x.py", 1.0),
        Cost("tests/protocols/div/test_swarm.py", 1.0), Cost("tests/serving/test_engine.py", 9.0),
    ]  # fmt: skip
    assert suite.by_paper(costs) == {"coral": 5.0, "div": 1.0}


def test_the_last_line_names_what_failed() -> None:
    fine, dear = Cost("tests/sim/test_x.py", 1.0, tests=3), Cost("tests/live/test_y.py", 61.0, tests=2)
    assert suite.verdict([fine], True) == "3 tests passed"
    assert suite.verdict([fine, Cost("tests/live/test_z.py", 1.0, failed=2)], False) == "failed: live (2)"
    assert suite.verdict([fine, dear], True) == "5 tests passed"


def test_a_dear_file_is_named_and_fails_nothing() -> None:
    fine, dear = Cost("tests/sim/test_x.py", 1.0), Cost("tests/live/test_y.py", 61.0)
    assert {"files over 60 s: tests/live/test_y.py 61", "papers over 8 s: none"} <= set(suite.summary([dear, fine]))
    assert "files over 60 s: none" in suite.summary([replace(dear, pace=1.1), fine])  # a slow machine is no dear test
    assert "papers over 8 s: coral 9" in suite.summary([Cost("tests/serving/test_coral.py", 9.0)])


def test_a_file_far_beyond_what_a_slow_machine_takes_fails_the_run() -> None:
    lost = Cost("tests/live/test_y.py", 181.0, tests=1)
    assert suite.over([lost], suite.RUNAWAY * suite.MOST) == [lost]
    assert suite.verdict([lost], True) == "ran away, over 180 s of processor time: tests/live/test_y.py (181 s)"
    assert suite.verdict([replace(lost, seconds=179.0)], True) == "1 tests passed"
    assert suite.verdict([replace(lost, pace=1.1)], True) == "1 tests passed"


def test_after_a_dear_test_the_ledger_knows_the_machines_pace(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_dear():\n    sum(range(100))\n")
    (tmp_path / "conftest.py").write_text("from tests import ledger\nledger.DEAR, ledger.WORK = -1.0, 1e-9\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.ledger", "--ledger", str(tmp_path / "ledger")]
    environment = os.environ | {
        "PYTHONPATH": f"{suite.ROOT}:{suite.ROOT / 'src'}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=True)
    (cost,) = ledger.read(tmp_path / "ledger")
    assert cost.pace > 1000.0  # everything is dear, and any machine slow beside that one


def test_compiling_is_counted_apart(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import numba\n@numba.njit\ndef f(x):\n    return x + 1\ndef test_compiles():\n    assert f(1) == 2\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.ledger", "--ledger", str(tmp_path / "ledger")]
    environment = os.environ | {
        "PYTHONPATH": f"{suite.ROOT}:{suite.ROOT / 'src'}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=True)
    (cost,) = ledger.read(tmp_path / "ledger")
    assert cost.compiling > cost.seconds


def test_examples_and_tests_keep_compiled_code_in_one_place() -> None:
    """Set where both begin: examples compile first, and what they have compiled nobody compiles again."""
    assert Path(os.environ["NUMBA_CACHE_DIR"]).is_absolute()
    assert "NUMBA_CACHE_DIR" in (suite.ROOT / "conftest.py").read_text()


def test_a_mark_alone_that_no_call_would_find_is_refused(tmp_path: Path) -> None:
    (tmp_path / "marks.py").write_text("import pytest\nQUIET = [pytest.mark.alone]\n")
    (tmp_path / "test_it.py").write_text("from marks import QUIET\npytestmark = QUIET\n\ndef test_it(): pass\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--rootdir",
        str(suite.ROOT),
        "-c",
        str(suite.ROOT / "pyproject.toml"),
    ]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{suite.ROOT}:{suite.ROOT / 'src'}"}
    for text, code in (("", 4), ("# pytest.mark.alone\n", 0)):
        (tmp_path / "test_it.py").write_text((tmp_path / "test_it.py").read_text() + text)
        ended = subprocess.run(
            [*command, "-p", "conftest", str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
    assert any(path.endswith("tests/web/test_browser.py") for path in suite.stages(["web"])[-1])
