"""The tests as other machines would run them: `python -m tests.strange [--touched] [--minutes N]`.

What a test finds because of the processor, the locale, the hour or the folder it happens to run in is a defect of the
test. Three environments pretend to be another machine, each in several ways at once: which way a red test minds, a run
with fewer of its settings tells. With `--touched` only the rooms that the last change touched are tried, the files that
it changed first; `--minutes` ends each environment after its part of them, and says how many tests were left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from assay.record import pool
from tests import suite

ROOT = Path(__file__).parents[1]
COPY = ROOT / ".cache" / "strange" / "Größe mit Leerzeichen" / "assay"
LOCALES = ROOT / ".cache" / "locales"
FARAWAY = "Pacific/Apia"  # thirteen hours ahead: another date for half of every day
DEADLINE = "ASSAY_TESTS_UNTIL"


def main(arguments: Sequence[str]) -> int:
    """Run every environment; 0 if no test failed in any."""
    minutes = float(arguments[arguments.index("--minutes") + 1]) if "--minutes" in arguments else None
    files = chosen("--touched" in arguments)
    if not files:
        print("no room was touched")
        return 0
    said = []
    for name, settings in environments().items():
        print(f"== {name}: {' '.join(f'{key}={value}' for key, value in settings.items())}", flush=True)
        passed = run(files, settings, minutes and minutes / len(environments()), moved="copy" in name)
        said.append(f"{name}: {'passed' if passed else 'failed'}")
    print("\n".join(said))
    return 0 if all(line.endswith("passed") for line in said) else 1


def environments() -> dict[str, dict[str, str]]:
    """What each pretends: a processor without wide vectors, one with others and many threads, and a copy elsewhere."""
    return {
        "an old processor": {
            "ATEN_CPU_CAPABILITY": "default",
            "OPENBLAS_CORETYPE": "Haswell" if "avx2" in flags() else "Prescott",
            "NPY_DISABLE_CPU_FEATURES": " ".join(dispatched()),
            "NUMBA_CPU_NAME": "x86-64-v2",
            **threads(1),
            "TZ": FARAWAY,
        },
        "another processor": {
            "ATEN_CPU_CAPABILITY": "avx2" if "avx2" in flags() else "default",
            "OPENBLAS_CORETYPE": "SkylakeX" if "avx512f" in flags() else "Nehalem",
            **threads(4),
            **german(),
        },
        "a copy elsewhere": {"TZ": FARAWAY, **threads(1), **german()},
    }


def chosen(touched_only: bool) -> list[str]:
    """The test files, in the order in which they are tried."""
    rooms = suite.touched() & suite.rooms() if touched_only else suite.rooms()
    files = [str(path.relative_to(ROOT)) for path in suite.mixed(rooms, "tests", "test_*.py")]
    changed = set(suite.changed())
    return sorted(files, key=lambda file: file not in changed)


def run(files: Iterable[str], settings: Mapping[str, str], minutes: float | None, moved: bool) -> bool:
    """Whether the tests of these files pass; `moved` runs them in a copy whose path has a space and an umlaut."""
    place, environment = ROOT, os.environ | {"PYTHONHASHSEED": "0"} | settings
    if moved:
        place = copied()
        environment["PYTHONPATH"] = str(place / "src")
        os.umask(0o077)
    if minutes:
        environment[DEADLINE] = str(time.monotonic() + 60 * minutes)
    calls = [
        ["-n", "auto", "--dist", "loadfile", "-m", f"{suite.QUICK} and not alone"],
        ["-m", f"{suite.QUICK} and alone"],
    ]
    codes = [
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "tests.strange", *call, *files],
            cwd=place, env=environment, check=False,
        ).returncode
        for call in calls
    ]  # fmt: skip
    return all(code in (0, 5) for code in codes)  # 5: none was chosen


def copied() -> Path:
    """The files that git knows, as they are now, in a folder of their own."""
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (COPY / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, COPY / name, follow_symlinks=False)
    return COPY


def flags() -> set[str]:
    """What this processor can do, as Linux names it; a name it cannot keep would end every process."""
    try:
        return set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split())  # type: ignore[index]
    except (OSError, TypeError):
        return set()


def dispatched() -> list[str]:
    """NumPy's code paths beyond its baseline that this processor takes: those that may be switched off."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]


def threads(count: int) -> dict[str, str]:
    """As many threads in every library."""
    return dict.fromkeys(pool.ONE_THREAD, str(count))


def german() -> dict[str, str]:
    """A locale with commas in its numbers; made here where the system has its sources and not the locale."""
    if not LOCALES.exists() and shutil.which("localedef"):
        LOCALES.mkdir(parents=True)
        made = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(LOCALES / "de_DE.UTF-8")]
        subprocess.run(made, capture_output=True, check=False)
    return {"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de", "LOCPATH": str(LOCALES)}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out when the time is over."""
    if time.monotonic() > float(os.environ.get(DEADLINE, "inf")):
        pytest.skip("left out: the time is over")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
