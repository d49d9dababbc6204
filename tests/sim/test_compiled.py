"""Compiled code is kept by what it was compiled from: shared by copies, and never old."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.record import sources
from assay.sim import compiled

SOURCE = Path(assay.__file__).parent
KERNELS = {
    "constants": "STEP = 10\n",
    "base": "from assay.sim.compiled import njit\nfrom assay.sim.constants import STEP\n\n"
    "@njit(cache=True)\ndef base(x):\n    return x + STEP\n",
    "top": "from assay.sim.base import base\nfrom assay.sim.compiled import njit\n\n"
    "@njit(cache=True)\ndef top(x):\n    return 2 * base(x)\n",
    "apart": "from assay.sim.compiled import njit\n\n@njit(cache=True)\ndef apart(x):\n    return -x\n",
}
ASK = """
import json
from assay.sim.top import top
from assay.sim.apart import apart
print(json.dumps([top(1), apart(1), [len(f.stats.cache_misses) for f in (top, apart)]]))
"""
ASK_IN_HASTE = (
    """
import assay.sim.base, pathlib
pathlib.Path(assay.sim.constants.__file__).write_text("STEP = 30")
"""
    + ASK
)


def small(root: Path) -> Path:
    """As much of the package as three kernels need."""
    for folder in ("", "record", "sim"):
        (root / "assay" / folder).mkdir(parents=True)
        (root / "assay" / folder / "__init__.py").touch()
    for place in ("record/sources.py", "sim/compiled.py", "sim/parallel.py"):
        shutil.copy2(SOURCE / place, root / "assay" / place)
    for name, text in KERNELS.items():
        (root / "assay" / "sim" / f"{name}.py").write_text(text)
    return root


def start(root: Path, cache: Path, question: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(root), "NUMBA_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen([sys.executable, "-c", question], env=environment, stdout=subprocess.PIPE, text=True)


def ask(root: Path, cache: Path, question: str = ASK, processes: int = 1) -> list[Any]:
    """Two kernels' answers, and how often each was compiled by all processes together."""
    running = [start(root, cache, question) for _ in range(processes)]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in running]
    assert all(answer[:2] == answers[0][:2] for answer in answers)
    return [*answers[0][:2], [sum(misses) for misses in zip(*(answer[2] for answer in answers), strict=True)]]


def test_a_changed_module_costs_only_those_that_lean_on_it_and_old_code_is_never_used(tmp_path: Path) -> None:
    cache, first, second = tmp_path / "cache", small(tmp_path / "one"), small(tmp_path / "two")
    assert ask(first, cache, processes=3) == [22, -1, [1, 1]]
    (second / "assay/sim/constants.py").write_text("STEP = 20\n")
    assert ask(second, cache) == [42, -1, [1, 0]]
    assert ask(first, cache) == [22, -1, [0, 0]]


def test_what_is_edited_while_a_process_runs_is_not_kept(tmp_path: Path) -> None:
    """That process has the old constant in memory, and its file says the new one."""
    root, cache = small(tmp_path / "one"), tmp_path / "cache"
    assert ask(root, cache, ASK_IN_HASTE) == [22, -1, [1, 1]]
    assert ask(root, cache) == [62, -1, [1, 0]]


def test_a_kernel_belongs_to_the_closures_that_contain_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small(tmp_path)
    monkeypatch.setattr(sources, "_PACKAGE", root / "assay")
    modules = [f"assay.sim.{name}" for name in ("constants", "base", "top", "apart")]

    def changed_by(place: str) -> set[str]:
        before = [sources.compiled_version(module)[0] for module in modules]
        path = root / "assay" / place
        path.write_text(path.read_text() + "# more\n")
        after = [sources.compiled_version(module)[0] for module in modules]
        return {module.rpartition(".")[2] for module, a, b in zip(modules, before, after, strict=True) if a != b}

    assert changed_by("sim/base.py") == {"base", "top"}
    assert changed_by("sim/apart.py") == {"apart"}
    assert changed_by("sim/constants.py") == {"constants", "base", "top"}
    assert changed_by("sim/compiled.py") == changed_by("sim/parallel.py") == changed_by("record/sources.py") == set()


def test_a_users_own_kernel_is_kept_as_numba_does_it() -> None:
    @compiled.njit(cache=True)
    def own(x):
        return x + 1

    assert own(1) == 2
    assert "assay.sim" not in own._cache.cache_path


SEVERAL_WAYS = """
import json
import numpy as np
from assay.sim.base import base
from assay.sim.compiled import njit

@njit()
def caller(x):
    return base(1) + base(2) + base(x)

answers = [base(np.int32(2_000_000_000)), base(1), caller(np.int32(3)), base(0.5)]
print(json.dumps([float(x) for x in answers] + [len(base.signatures)]))
"""


def test_a_function_is_compiled_once_for_all_whole_numbers(tmp_path: Path) -> None:
    asked = start(small(tmp_path / "one"), tmp_path / "cache", SEVERAL_WAYS)
    *answers, compiled_for = json.loads(asked.communicate(timeout=120)[0])
    assert answers == [2_000_000_010.0, 11.0, 36.0, 10.5]
    assert compiled_for == 2, "whole numbers, and others"
