"""What processes of one machine share: rings of rows with one writer and one reader, and sums over all ranks.

Nothing here locks. A ring's writer copies rows and then moves its count, its reader copies rows out and then moves its
own, which is safe where stores are seen in order (x86; elsewhere numpy's calls in between are barriers in practice).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

Ints = NDArray[np.int64]
WRITTEN, READ = 0, 8  # places of the counts, a cache line apart
COUNTS = 16


class Ring:
    """Rows of so many words in shared memory.

    >>> ring = Ring(np.zeros((4, 2), np.int64), np.zeros(COUNTS, np.int64))
    >>> ring.put(np.arange(10).reshape(5, 2)), ring.take_all()[0].tolist()  # one row found no room
    (4, [[0, 1], [2, 3], [4, 5], [6, 7]])
    """

    def __init__(self, rows: Ints, counts: Ints) -> None:
        self.rows, self.counts, self.room = rows, counts, len(rows)

    def put(self, rows: Ints) -> int:
        """As many of the rows as there is room for; how many that were."""
        first, count = self._space(len(rows))
        head = min(count, self.room - first)
        self.rows[first : first + head] = rows[:head]
        self.rows[: count - head] = rows[head:count]
        self.counts[WRITTEN] += count
        return count

    def post(self, dest: Ints, payload: Ints, tag: int) -> int:
        """The same of rows that are not made yet: each is written where it will be read, and nowhere else."""
        first, count = self._space(len(dest))
        if count:
            write(self.rows, first, dest[:count], payload[:count], tag)
            self.counts[WRITTEN] += count
        return count

    def _space(self, wanted: int) -> tuple[int, int]:
        """Where the next row goes, and how many there is room for."""
        written = int(self.counts[WRITTEN])
        return written % self.room, min(wanted, self.room - (written - int(self.counts[READ])))

    def views(self) -> list[Ints]:
        """All rows that are there, where they lie: to be copied, and then released."""
        read = int(self.counts[READ])
        count, first = int(self.counts[WRITTEN]) - read, read % self.room
        parts = [
            self.rows[first : first + min(count, self.room - first)],
            self.rows[: max(0, first + count - self.room)],
        ]
        return [part for part in parts if len(part)]

    def release(self, count: int) -> None:
        """The oldest of them are copied, and their places free."""
        self.counts[READ] += count

    def take_all(self) -> list[Ints]:
        """All rows that are there, as batches of the caller's own."""
        found = [part.copy() for part in self.views()]
        self.release(sum(map(len, found)))
        return found


@njit(cache=True)
def write(rows: Any, first: int, dest: Any, payload: Any, tag: int) -> None:
    """Rows of a ring: destination and tag in one word, then the payload."""
    room, at = len(rows), first
    for i in range(len(dest)):
        rows[at, 0] = dest[i] | (tag << 32)
        for w in range(payload.shape[1]):
            rows[at, w + 1] = payload[i, w]
        at += 1
        if at == room:
            at = 0


class Sums:
    """All-reduce by shared memory, round by round: a rank writes its values, and reads when everybody has.

    Two places alternate: who begins round k + 2 knows that all have read round k.
    """

    def __init__(self, values: Any, arrived: Ints, index: int) -> None:
        self.values, self.arrived, self.index = values, arrived, index
        self.round = 0

    def give(self, *values: int) -> None:
        """This rank's values of the next round."""
        self.round += 1
        self.values[self.round % 2, self.index, : len(values)] = values
        self.arrived[self.index] = self.round

    def ready(self) -> bool:
        """Whether everybody has given theirs."""
        return bool((self.arrived >= self.round).all())

    def total(self) -> tuple[int, ...]:
        """The sums, once it is ready."""
        return tuple(int(one) for one in self.values[self.round % 2].sum(axis=0))
