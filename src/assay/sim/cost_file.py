"""A step time in a file: a few numbers in TOML, that `--fleet 4xfitted:cost.toml` names.

>>> import numpy as np
>>> cost = StepCost(tokens=0.01 + 1e-5 * np.arange(101), decode_kv=1e-8, kv_tokens=1000)
>>> print(text(cost).split("\\n", 1)[1].strip())
tokens = [[0, 0.01], [100, 0.011]]
decode_kv = 1e-08
kv_tokens = 1000
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim.llm_cost import COEFFICIENTS, StepCost

FITTED = "fitted"  # what a fleet calls such a file by
_NUMBERS = (*COEFFICIENTS, "kv_tokens", "kv_bytes")
_LARGEST = 1 << 20  # tokens of an iteration; no engine is near it


def text(cost: StepCost) -> str:
    """The cost as TOML."""
    lines = [f"# Seconds of an iteration of one engine; use it as --fleet 4x{FITTED}:THIS_FILE"]
    lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in table(cost).items()]
    return "\n".join(lines) + "\n"


def table(cost: StepCost) -> dict[str, Any]:
    """What is not zero of a cost, in plain values; `tokens` as the corners of a broken line."""
    values = {name: getattr(cost, name) for name in _NUMBERS}
    told = {name: value for name, value in values.items() if value and value != math.inf}
    return {"tokens": _corners(cost), **told} | ({"notes": list(cost.notes)} if cost.notes else {})


def _corners(cost: StepCost) -> list[list[float]]:
    """Where the line of `tokens` bends, to a millionth of a millionth of its height."""
    t = cost.tokens
    bends = np.flatnonzero(np.abs(np.diff(t, 2)) > 1e-12 * float(np.abs(t).max())) + 1
    return [[int(n), float(f"{t[n]:.12g}")] for n in [0, *bends.tolist(), *([len(t) - 1] if len(t) > 1 else [])]]


def read(path: Path) -> StepCost:
    """A cost that `text` wrote, or that a person did. Raises BadInput where it is none."""
    return from_table(path, reading.toml(path))


def from_table(path: Path, given: Mapping[str, Any]) -> StepCost:
    """The cost of a table as `table` gives it; `path` is where it was read, for whoever has to mend it."""
    content = dict(given)
    notes = content.pop("notes", [])
    tokens = _line(path, content.pop("tokens", None))
    for name, value in content.items():
        if name not in _NUMBERS:
            raise BadInput(f"{path}: unknown field '{name}'; there are tokens, {', '.join(_NUMBERS)}, notes")
        if not _number(value):
            raise BadInput(f"{path}: {name} is {value!r}; expected a number of at least 0")
    if isinstance(content.get("kv_tokens"), float):
        content["kv_tokens"] = int(content["kv_tokens"])
    return StepCost(tokens=tokens, notes=tuple(map(str, notes)) if isinstance(notes, list) else (), **content)


def _line(path: Path, corners: Any) -> NDArray[np.float64]:
    pairs = corners if isinstance(corners, list) else []
    right = [isinstance(p, list) and len(p) == 2 and isinstance(p[0], int) and _number(p[1]) for p in pairs]
    if not pairs or not all(right) or pairs[0][0] != 0 or not 0 < pairs[-1][0] <= _LARGEST:
        raise BadInput(f"{path}: tokens needs pairs of tokens and seconds from 0 on, as [[0, 0.01], [8192, 0.1]]")
    n, seconds = np.array(pairs, np.float64).T
    if (np.diff(n) <= 0).any() or not seconds.max() > 0:
        raise BadInput(f"{path}: tokens must rise from pair to pair, and take some time")
    return np.asarray(np.interp(np.arange(int(n[-1]) + 1), n, seconds))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
