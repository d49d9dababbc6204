"""What is remembered of every document in a few bytes: its fate by its hash, and the names of those that were kept."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

UNSEEN = np.int64(-(2**62))


def identity(name: str, text: str) -> int:
    """64 bits that say which document it is: the same name with another text is another document."""
    head = name.encode("utf-8", "replace")
    whole = len(head).to_bytes(8, "little") + head + text.encode("utf-8", "replace")
    return int.from_bytes(blake2b(whole, digest_size=8).digest(), "little") | 1  # 0 is an empty place


class Fates:
    """Document hash → number, in an open table of 16 bytes a place.

    >>> fates = Fates()
    >>> fates.put(np.array([7, 9], np.uint64), np.array([0, -1]))
    >>> fates.get(np.array([9, 8], np.uint64)).tolist() == [-1, int(UNSEEN)]
    True
    """

    def __init__(self) -> None:
        self._keys, self._values, self.size = np.zeros(1024, np.uint64), np.zeros(1024, np.int64), 0

    def get(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The values, UNSEEN where there is none."""
        found: NDArray[np.int64] = _get(self._keys, self._values, keys)
        return found

    def put(self, keys: NDArray[np.uint64], values: NDArray[np.int64]) -> None:
        """Add or replace."""
        need = self.size + len(keys)
        if 3 * need > 2 * len(self._keys):
            old, were = self._keys, self._values
            room = 1 << int(2 * need).bit_length()
            self._keys, self._values = np.zeros(room, np.uint64), np.zeros(room, np.int64)
            _put(self._keys, self._values, old[old != 0], were[old != 0])
        self.size += _put(self._keys, self._values, keys, values)

    @property
    def nbytes(self) -> int:
        """Of the table."""
        return self._keys.nbytes + self._values.nbytes


@njit(cache=True)
def _get(table: Any, values: Any, keys: Any) -> Any:
    mask = len(table) - 1
    found = np.full(len(keys), UNSEEN, np.int64)
    for i in range(len(keys)):
        at = int(keys[i] >> np.uint64(1)) & mask
        while table[at] != 0:
            if table[at] == keys[i]:
                found[i] = values[at]
                break
            at = (at + 1) & mask
    return found


@njit(cache=True)
def _put(table: Any, values: Any, keys: Any, given: Any) -> int:
    mask, new = len(table) - 1, 0
    for i in range(len(keys)):
        at = int(keys[i] >> np.uint64(1)) & mask
        while table[at] != 0 and table[at] != keys[i]:
            at = (at + 1) & mask
        new += table[at] == 0
        table[at], values[at] = keys[i], given[i]
    return new


class Names:
    """Strings by number, one behind the other.

    >>> names = Names()
    >>> names.extend(["a", "bc"])
    >>> names[1], len(names)
    ('bc', 2)
    """

    def __init__(self) -> None:
        self._letters, self._ends = bytearray(), array("q")

    def extend(self, names: Sequence[str]) -> None:
        """Append."""
        for name in names:
            self._letters += name.encode("utf-8", "replace")
            self._ends.append(len(self._letters))

    def __getitem__(self, number: int) -> str:
        begin = self._ends[number - 1] if number else 0
        return self._letters[begin : self._ends[number]].decode()

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def nbytes(self) -> int:
        """Of letters and ends."""
        return len(self._letters) + 8 * len(self._ends)
