"""For examples and tests alike: one place for compiled code; examples whose extra is not installed are skipped."""

from __future__ import annotations

import doctest
import os
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

from assay.record import traces
from assay.record.errors import BadInput
from assay.record.extras import EXTRAS
from assay.record.types import NotMeasured

# All processes of a run and all copies of the package share what any of them compiles.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parent / ".cache" / "numba"))

# Public traces lie on some machines only. What a test finds because of its machine is a defect of the test, so no test
# sees them but those marked `traces` (and those that bring files of their own). Workers inherit both names.
os.environ.setdefault("ASSAY_PUBLIC_TRACES", str(traces.folder() or ""))
os.environ["ASSAY_TRACES"] = str(Path(__file__).parent / ".cache" / "no-traces")

pytest_plugins = ["tests.ledger"]

# Triton has no wheel for every machine, and its sources cannot be imported without it.
collect_ignore_glob = [] if find_spec("triton") else ["src/assay/kernels/*/gpu.py"]
collect_ignore_glob += ["src/assay/examples/*"]  # programs of their own; tests/test_commands.py runs them

ALONE = "mark.alone"  # how a file says that some of its tests want the machine alone: `tests.suite` looks for it

OPTIONAL = {module: extra.name for extra in EXTRAS for module in extra.modules}


def missing_extra(error: BaseException) -> str | None:
    """The optional module for want of which a docstring's first example failed."""
    failures = getattr(error, "failures", [error])  # pytest gathers them; what follows the first is its consequence
    first = failures[0] if failures else error
    if not isinstance(first, doctest.UnexpectedException) or not isinstance(first.exc_info[1], ModuleNotFoundError):
        return None
    name = (first.exc_info[1].name or "").partition(".")[0]
    return name if name in OPTIONAL else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a mark `alone` that its file does not show: no call of `tests.suite` would run the test."""
    for path in {item.path for item in items if item.get_closest_marker("alone")}:
        if ALONE not in path.read_text(encoding="utf-8"):
            raise pytest.UsageError(f"{path}: write pytest.{ALONE} in the file itself")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run one test. Tests proper say `pytest.importorskip` themselves."""
    try:
        return (yield)
    except (NotMeasured, BadInput) as error:
        if item.get_closest_marker("traces") and str(error).startswith("not at hand"):
            pytest.skip(str(error))
        raise
    except Exception as error:
        if isinstance(item, pytest.DoctestItem) and (name := missing_extra(error)):
            pytest.skip(f"needs '{name}': pip install 'assay[{OPTIONAL[name]}]'")
        raise
