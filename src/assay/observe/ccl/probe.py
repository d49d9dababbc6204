"""What a collective library writes down about itself: one record of 1,184 bytes a rank, whatever happens.

A rank's record is 148 words of 64 bits in memory that outlives the rank. The library writes it as it goes: which
operation of the communicator it is in, with what kind, type and count; for each channel how many Send and Recv
primitives are complete, and how long they took; and the last sixteen operations. Nobody waits for anybody, nothing
is sent: whoever wants to know reads the memory. Operations of different ranks are matched by (communicator, how many
operations came before), which every rank counts for itself; times are never compared between ranks.

>>> words = np.zeros(WORDS, np.int64)
>>> probe = Probe(memoryview(words), rank=2, size=4)
>>> probe.enter("all_reduce", dtype=0, count=1024, now=100)
>>> probe.sent(channel=0, nbytes=64, took=7, now=110)
>>> probe.leave(now=150)
>>> records = Records.of(words)
>>> records.entered.tolist(), records.finished.tolist(), records.sends.sum(1).tolist()
([1], [1], [1])
>>> records.past(1)["duration"].tolist()
[50]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
CHANNELS = 4
HISTORY = 16
_HEAD, _CHANNEL, _PAST = 16, 8, 6
_HISTORY_AT = _HEAD + CHANNELS * _CHANNEL
WORDS = 148
"""Words of a record: 16 of the operation under way, 8 a channel, 6 for each past operation, 4 to spare."""
RANK, SIZE, COMMUNICATOR, ENTERED, FINISHED, KIND, DTYPE, COUNT, ENTER, EXIT = range(10)
SENDS, RECVS, SENT_BYTES, SEND_TIME, RECV_TIME, LAST_SEND, LAST_RECV = range(7)
PAST = ("operation", "signature", "count", "duration", "send_time", "recv_time")
Words = NDArray[np.int64]


def channel_at(channel: int) -> int:
    """The first word of a channel.

    >>> channel_at(1) - channel_at(0)
    8
    """
    return _HEAD + channel * _CHANNEL


def past_at(operation: int) -> int:
    """The first word of a past operation; sixteen later ones use the same place again.

    >>> past_at(3) == past_at(19), past_at(3) == past_at(4)
    (True, False)
    """
    return _HISTORY_AT + operation % HISTORY * _PAST


class Probe:
    """The writing side, inside one rank. A word is written by one instruction, so a reader never sees half of one."""

    def __init__(self, words: memoryview, rank: int, size: int, communicator: int = 0) -> None:
        if len(words) != WORDS or words.format not in ("q", "l"):
            raise ValueError(f"a record has {WORDS} words of 64 bits")
        self.words = words
        for place in range(WORDS):
            words[place] = 0
        words[RANK], words[SIZE], words[COMMUNICATOR] = rank, size, communicator
        self._before = (0, 0)

    def enter(self, kind: str, dtype: int, count: int, now: int) -> None:
        """The rank calls a collective. The counter moves last: who sees it sees the rest as well."""
        words = self.words
        words[KIND], words[DTYPE], words[COUNT], words[ENTER] = KINDS.index(kind), dtype, count, now
        self._before = self._spent()
        words[ENTERED] += 1

    def leave(self, now: int) -> None:
        """The collective is over for this rank; it joins the last sixteen."""
        words = self.words
        words[EXIT] = now
        operation = words[ENTERED]
        at = past_at(operation)
        send, recv = self._spent()
        words[at + 1] = words[KIND] * 256 + words[DTYPE]
        words[at + 2] = words[COUNT]
        words[at + 3] = now - words[ENTER]
        words[at + 4], words[at + 5] = send - self._before[0], recv - self._before[1]
        words[at] = operation
        words[FINISHED] = operation

    def sent(self, channel: int, nbytes: int, took: int, now: int) -> None:
        """A Send primitive is complete, `took` nanoseconds after its data were there."""
        words, at = self.words, channel_at(channel)
        words[at + SENDS] += 1
        words[at + SENT_BYTES] += nbytes
        words[at + SEND_TIME] += took
        words[at + LAST_SEND] = now

    def received(self, channel: int, took: int, now: int) -> None:
        """A Recv primitive is complete, `took` nanoseconds after it was wanted."""
        words, at = self.words, channel_at(channel)
        words[at + RECVS] += 1
        words[at + RECV_TIME] += took
        words[at + LAST_RECV] = now

    def _spent(self) -> tuple[int, int]:
        words, channels = self.words, range(_HEAD, _HISTORY_AT, _CHANNEL)
        return sum(words[at + SEND_TIME] for at in channels), sum(words[at + RECV_TIME] for at in channels)


class NoProbe:
    """Writes nothing: the library without its probe, to weigh the probe by."""

    def enter(self, kind: str, dtype: int, count: int, now: int) -> None:
        """Nothing."""

    def leave(self, now: int) -> None:
        """Nothing."""

    def sent(self, channel: int, nbytes: int, took: int, now: int) -> None:
        """Nothing."""

    def received(self, channel: int, took: int, now: int) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Records:
    """The records of all ranks of one communicator, as they were at one pull."""

    words: Words  # ranks x WORDS

    @classmethod
    def of(cls, words: ArrayLike) -> Records:
        """A copy of what is there now.

        Raises:
            ValueError: it has another width than a record.
        """
        rows = np.array(words, np.int64, ndmin=2)
        if rows.ndim != 2 or rows.shape[1] != WORDS:
            raise ValueError(f"records are rows of {WORDS} words, got the shape {rows.shape}")
        return cls(rows)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def entered(self) -> Words:
        """How many operations each rank has called."""
        return self.words[:, ENTERED]

    @property
    def finished(self) -> Words:
        """How many of them are over."""
        return self.words[:, FINISHED]

    @property
    def sends(self) -> Words:
        """Completed Send primitives, ranks x channels."""
        return self._channel(SENDS)

    @property
    def recvs(self) -> Words:
        """Completed Recv primitives, ranks x channels."""
        return self._channel(RECVS)

    def _channel(self, word: int) -> Words:
        return self.words[:, _HEAD + word : _HISTORY_AT : _CHANNEL]

    def signatures(self, operation: int) -> tuple[Words, NDArray[np.bool_]]:
        """(kind, type, count) of an operation on every rank, and which ranks know: under way, or among the last."""
        past = self.past(operation)
        now = self.entered == operation
        kind = np.where(now, self.words[:, KIND] * 256 + self.words[:, DTYPE], past["signature"])
        count = np.where(now, self.words[:, COUNT], past["count"])
        return np.stack([kind // 256, kind % 256, count], 1), now | past["known"]

    def past(self, operation: int) -> dict[str, NDArray[np.int64]]:
        """What is remembered of a finished operation, a value a rank; `known` where it is remembered at all."""
        at = past_at(operation)
        row = dict(zip(PAST, self.words[:, at : at + _PAST].T, strict=True))
        return row | {"known": (row["operation"] == operation) & (operation > 0)}

    def common(self, last: int) -> list[int]:
        """The newest operations that every rank finished and still remembers, oldest first."""
        newest = int(self.finished.min()) if len(self) else 0
        oldest = max(1, int(self.finished.max(initial=0)) - HISTORY + 1)
        return list(range(max(oldest, newest - last + 1), newest + 1))


def gather(records: Iterable[Words]) -> Records:
    """One record a rank, pulled one by one, in the order of ranks.

    >>> rows = [np.zeros(WORDS, np.int64) for _ in range(2)]
    >>> rows[0][RANK] = 1
    >>> gather(rows).words[:, RANK].tolist()
    [0, 1]
    """
    rows = Records.of(np.stack(list(records)))
    return Records(rows.words[np.argsort(rows.words[:, RANK], kind="stable")])
