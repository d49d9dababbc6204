"""Settings of implementations that were tried, a row each: adding one times only that one.

A row belongs to a kernel, an implementation, the digest of its source, a machine's fingerprint, a dtype, a size class
(powers of two) and one setting. A setting that failed, or gave a wrong result, is kept as such and not tried again. The
file is SQLite under ASSAY_HOME; `export` and `read` carry rows to another machine of the same kind.

>>> cache = Tuning(":memory:")
>>> key = Key("sort", "ours", "abc", "here", "u4", 20)
>>> cache.best(key, {8: lambda: sum(range(10**5)), 11: lambda: None}, rounds=2)
11
>>> cache.best(key, {8: lambda: 1 / 0, 11: lambda: 1 / 0})  # known: neither is run
11
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from assay.record.errors import BadInput
from assay.record.store import home

S = TypeVar("S")
SCHEMA = """CREATE TABLE IF NOT EXISTS tried (
  kernel TEXT, implementation TEXT, source TEXT, machine TEXT, dtype TEXT, size INTEGER, setting TEXT,
  seconds REAL, failed TEXT, PRIMARY KEY (kernel, implementation, source, machine, dtype, size, setting))"""


class Key(NamedTuple):
    """What a setting's time depends on beside the setting."""

    kernel: str
    implementation: str
    source: str
    machine: str
    dtype: str
    size: int  # class: the power of two


def size_class(n: int) -> int:
    """The power of two that a size is nearest to, from above.

    >>> size_class(1000)
    10
    """
    return math.ceil(math.log2(max(1, n)))


class Tuning:
    """The settings tried so far."""

    def __init__(self, path: str | Path | None = None) -> None:
        where = home() / "tuning.sqlite" if path is None else path
        if where != ":memory:":
            Path(where).parent.mkdir(parents=True, exist_ok=True)
        try:
            self.connection = sqlite3.connect(where)
            self.connection.execute(SCHEMA)
        except sqlite3.DatabaseError as error:
            raise BadInput(f"{where}: not a tuning cache ({error})") from None

    def known(self, key: Key) -> dict[str, tuple[float, str]]:
        """Seconds, or why it failed, of each setting tried."""
        where = " AND ".join(f"{name} = ?" for name in Key._fields)
        rows = self.connection.execute(f"SELECT setting, seconds, failed FROM tried WHERE {where}", key)
        return {setting: (seconds, failed) for setting, seconds, failed in rows}

    def put(self, key: Key, setting: Any, seconds: float, failed: str = "") -> None:
        """Keep what a setting took, or why it failed."""
        with self.connection:
            self.connection.execute(
                "INSERT OR REPLACE INTO tried VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*key, json.dumps(setting), seconds, failed),
            )

    def best(self, key: Key, settings: Mapping[S, Callable[[], Any]], rounds: int = 3, budget: float = 5.0) -> S:
        """The fastest setting; those not tried yet are: all once, then the better half again, and so on."""
        known = self.known(key)
        begun, left = time.perf_counter(), [setting for setting in settings if json.dumps(setting) not in known]
        taken: dict[S, list[float]] = {setting: [] for setting in left}
        for turn in range(rounds):
            for setting in list(left):
                if turn and time.perf_counter() - begun > budget:
                    break
                try:
                    begin = time.perf_counter()
                    settings[setting]()
                    taken[setting].append(time.perf_counter() - begin)
                except Exception as error:
                    self.put(key, setting, math.inf, str(error).splitlines()[0] if str(error) else type(error).__name__)
                    left.remove(setting)
                    taken.pop(setting)
            left = sorted(left, key=lambda one: min(taken[one]))[: max(1, (len(left) + 1) // 2)]
        for setting, seconds in taken.items():
            self.put(key, setting, min(seconds))
        known = self.known(key)
        able = {setting: known[json.dumps(setting)][0] for setting in settings}
        chosen = min(able, key=lambda setting: able[setting])
        if math.isinf(able[chosen]):
            raise BadInput(f"no setting of {key.implementation} works: {known[json.dumps(chosen)][1]}")
        return chosen

    def export(self) -> str:
        """All rows as JSON lines."""
        rows = self.connection.execute("SELECT * FROM tried ORDER BY 1, 2, 3, 4, 5, 6, 7")
        return "".join(json.dumps(row) + "\n" for row in rows)

    def read(self, text: str) -> int:
        """Add exported rows; returns how many.

        >>> one, other = Tuning(":memory:"), Tuning(":memory:")
        >>> one.put(Key("sort", "ours", "abc", "here", "u4", 20), 8, 0.5)
        >>> other.read(one.export()), other.export() == one.export()
        (1, True)
        """
        rows = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, list) or len(row) != 9:
                raise BadInput(f"line {number} is no row of a tuning cache; assay machine --export writes them")
            rows.append(row)
        with self.connection:
            self.connection.executemany("INSERT OR REPLACE INTO tried VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        return len(rows)
