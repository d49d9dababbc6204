"""What processes of one machine share: rings of rows with one writer and one reader, and sums over all ranks.

Nothing here locks. A ring's writer copies rows and then moves its count, its reader copies rows out and then moves its
own, which is safe where stores are seen in order (x86; elsewhere numpy's calls in between are barriers in practice).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
WRITTEN, READ = 0, 8  # places of the counts, a cache line apart
COUNTS = 16


class Ring:
    """Rows of so many words in shared memory.

    >>> ring = Ring(np.zeros((4, 2), np.int64), np.zeros(COUNTS, np.int64))
    >>> ring.put(np.arange(10).reshape(5, 2)), ring.take().tolist()  # one row found no room
    (4, [[0, 1], [2, 3], [4, 5], [6, 7]])
    """

    def __init__(self, rows: Ints, counts: Ints) -> None:
        self.rows, self.counts, self.room = rows, counts, len(rows)

    def put(self, rows: Ints) -> int:
        """As many of the rows as there is room for; how many that were."""
        written = int(self.counts[WRITTEN])
        count = min(len(rows), self.room - (written - int(self.counts[READ])))
        if count <= 0:
            return 0
        first = written % self.room
        head = min(count, self.room - first)
        self.rows[first : first + head] = rows[:head]
        self.rows[: count - head] = rows[head:count]
        self.counts[WRITTEN] = written + count
        return count

    def take(self) -> Ints:
        """All rows that are there."""
        read, written = int(self.counts[READ]), int(self.counts[WRITTEN])
        count = written - read
        if count <= 0:
            return self.rows[:0]
        first = read % self.room
        head = min(count, self.room - first)
        found = np.concatenate([self.rows[first : first + head], self.rows[: count - head]])
        self.counts[READ] = written
        return found

    def take_all(self) -> list[Ints]:
        """The same as a list of batches, empty where nothing is there."""
        rows = self.take()
        return [rows] if len(rows) else []


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
