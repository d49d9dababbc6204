"""Rows of a trace while it is read: columns that grow, and an account of every row that is no request."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput

LENGTH_MAX = 2**31 - 1
LENGTH = "a whole number >= 1"
TIME = "a time in numbers >= 0 or as 2024-05-10 12:00:00"


@dataclass
class Rows:
    """What was read so far. `wrong` ends the reading, or counts the row where bad ones are to be skipped."""

    name: str
    skip_bad: bool = False
    read: int = 0
    bad: int = 0
    complaints: list[str] = field(default_factory=list)
    parts: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    names: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unit: str = ""  # of arrivals that are in seconds already

    def wrong(self, place: str, what: str, right: str) -> None:
        """A row that cannot be read: where, what is wrong with it, what would be right."""
        line = f"{place}: {what}; expected {right}"
        if not self.skip_bad:
            raise BadInput(f"{self.name} {line}")
        self.bad += 1
        if len(self.complaints) < 3:
            self.complaints.append(line)

    def add(self, **columns: NDArray[Any]) -> None:
        """Append to the columns."""
        for name, values in columns.items():
            self.parts.setdefault(name, []).append(values)

    def column(self, name: str) -> NDArray[Any] | None:
        """The whole column; None where the trace has none."""
        parts = self.parts.pop(name, None)
        return None if parts is None else parts[0] if len(parts) == 1 else np.concatenate(parts)

    def codes(self, field: str, values: list[Any]) -> NDArray[np.int32]:
        """Labels as numbers, in the order they are met; -1 where there is none."""
        known = self.names.setdefault(field, {})
        return np.fromiter(
            (-1 if v is None or v == "" else known.setdefault(str(v), len(known)) for v in values),
            np.int32, count=len(values),
        )  # fmt: skip


def show(value: Any) -> str:
    """A value as an error line shows it.

    >>> show("x" * 50), show(None)
    ("is 'xxxxxxxxxxxxxxxxxxxxxxxx…'", 'is missing')
    """
    text = " ".join(repr(value).split())
    return "is missing" if value is None else f"is {text if len(text) <= 40 else text[:25] + '…' + text[-1]}"


def length(value: Any) -> int | None:
    """A number of tokens, 0 or more; None where the value is none.

    >>> length(12), length("12"), length(12.0), length(1.5), length(-1), length(True)
    (12, 12, 12, None, None, None)
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LENGTH_MAX:
        return None
    return int(value) if value == int(value) else None


def moment(value: Any) -> float | None:
    """A time as the number it is, or a date and time as seconds since 1970 (UTC where no zone is named).

    >>> moment(3), moment("1970-01-01 00:01:00.5000000"), moment("1970-01-01T01:00:00+01:00"), moment("soon")
    (3.0, 60.5, 0.0, None)
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            try:
                when = datetime.fromisoformat(value.strip())
            except ValueError:
                return None
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        time = float(value)
    except OverflowError:
        return None
    return time if math.isfinite(time) and time >= 0 else None
