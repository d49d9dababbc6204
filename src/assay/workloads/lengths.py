"""How long the sequences of a training batch are: drawn from a lognormal with a cut tail, or read from a file.

>>> batch = lognormal(tokens=100_000, seed=0)
>>> int(batch.sum()), bool(batch.max() <= LONGEST)
(100000, True)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput, unreadable
from assay.sim.random import stream

MEDIAN, SPREAD = 4096, 1.6  # of the lognormal (assumed): a mean of 15 thousand tokens
SHORTEST, LONGEST = 128, 512 * 1024
MOST = 10**9  # tokens of one sequence; more is a file read wrongly


def lognormal(
    tokens: int, seed: int, *, median: float = MEDIAN, spread: float = SPREAD, longest: int = LONGEST
) -> NDArray[np.int64]:
    """Sequences of so many tokens together; the last one is cut to fit."""
    random, found, left = stream(seed, "lengths", tokens), [], tokens
    while left > 0:
        drawn = int(np.clip(median * np.exp(spread * random.standard_normal()), SHORTEST, longest))
        found.append(min(drawn, left))
        left -= found[-1]
    return np.array(found, np.int64)


def read(path: Path) -> NDArray[np.int64]:
    """The lengths in a file: a number a line, or JSON lines with `tokens` or `length`.

    Raises:
        BadInput: the line and what is wrong with it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise unreadable(path, error, "a line with a length for each sequence") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not text; a line with a length for each sequence expected") from error
    found = [_length(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise BadInput(f"{path}: no lengths in it")
    return np.array(found, np.int64)


def _length(path: Path, number: int, line: str) -> int:
    try:
        value: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        raise BadInput(f"{path}, line {number}: {line[:40]!r}; a length, or JSON with 'tokens', expected") from None
    if isinstance(value, dict):
        value = value.get("tokens", value.get("length"))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MOST:
        raise BadInput(f"{path}, line {number}: tokens or length should be a number from 1")
    return int(value)
