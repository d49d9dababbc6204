"""Stage durations on their way from the ranks to whoever diagnoses: packed, checked, gathered, as a frame.

A rank sends nothing but durations and step numbers. No clock of one rank is ever compared with another's: what ranks
have in common is the number of the step.

>>> sent = Vectors(1, 7, ("data", "work"), np.array([[3, 4], [5, 6]])).to_bytes()
>>> Vectors.from_bytes(sent).durations.tolist()
[[3, 4], [5, 6]]
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.sim.telemetry import Frame

Ints = NDArray[np.int64]
MAX_STAGES, MAX_NAME, MAX_STEPS, MAX_RANK = 32, 64, 100_000, 1 << 24
MAX_CELLS = 1 << 28
_MAGIC = b"assay-stages-1\n"
_HEAD = struct.Struct("<IIQIBB")  # rank, ranks, first step, steps, stages, bytes of a duration


@dataclass(frozen=True)
class Vectors:
    """Some steps of one rank: a row for each step, a column for each stage, nanoseconds."""

    rank: int
    first_step: int
    stages: tuple[str, ...]
    durations: Ints
    size: int = 0
    """How many ranks the job has; 0: not known."""

    def to_bytes(self) -> bytes:
        """Packed, with a checksum; durations below four seconds take four bytes each.

        >>> len(Vectors(0, 0, tuple("dfboc"), np.zeros((50, 5), np.int64)).to_bytes())
        1051
        """
        wide = 8 if self.durations.size and int(self.durations.max()) >= 1 << 32 else 4
        names = b"".join(bytes([len(name.encode())]) + name.encode() for name in self.stages)
        steps, stages = self.durations.shape
        head = _HEAD.pack(self.rank, self.size, self.first_step, steps, stages, wide)
        body = _MAGIC + head + names + self.durations.astype(f"<u{wide}").tobytes()
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Vectors:
        """Unpacked and checked; BadInput says what is wrong and at which byte."""
        if data[: len(_MAGIC)] != _MAGIC:
            raise BadInput("stage vectors: byte 0: these are no stage vectors of assay (version 1)")
        at = len(_MAGIC) + _HEAD.size
        if len(data) < at:
            raise BadInput(f"stage vectors: byte {len(data)}: the header is cut short, it has {at} bytes")
        rank, size, first, steps, stages, wide = _HEAD.unpack_from(data, len(_MAGIC))
        if wide not in (4, 8) or not 1 <= stages <= MAX_STAGES or steps > MAX_STEPS or first >= 1 << 62:
            raise BadInput(f"stage vectors: byte {len(_MAGIC)}: {steps} steps of {stages} stages cannot be")
        names, at = _names(data, at, stages)
        end = at + steps * stages * wide
        if len(data) != end + 4:
            raise BadInput(f"stage vectors: {len(data)} bytes; {steps} steps of {stages} stages take {end + 4}")
        if struct.unpack_from("<I", data, end)[0] != zlib.crc32(data[:end]):
            raise BadInput(f"stage vectors: byte {end}: the checksum does not fit, the data were changed on the way")
        if rank >= MAX_RANK or size > MAX_RANK or (size and rank >= size):
            raise BadInput(f"stage vectors: rank {rank} of {size}; a rank is 0 … size − 1")
        raw = np.frombuffer(data, f"<u{wide}", steps * stages, at)
        if wide == 8 and raw.size and int(raw.max()) >= 1 << 62:
            raise BadInput("stage vectors: a duration is more than a hundred years")
        return cls(rank, first, names, raw.astype(np.int64).reshape(steps, stages), size)


def _names(data: bytes, at: int, count: int) -> tuple[tuple[str, ...], int]:
    names: list[str] = []
    for _ in range(count):
        long = data[at] if at < len(data) else 0
        raw = data[at + 1 : at + 1 + long]
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            name = ""
        if not 1 <= long <= MAX_NAME or len(raw) != long or not name or name in names:
            raise BadInput(f"stage vectors: byte {at}: not the name of stage {len(names) + 1} of {count}")
        names.append(name)
        at += 1 + long
    return tuple(names), at


# ------------------------------------------------------------------------------------------ all ranks together


@dataclass(frozen=True)
class Window:
    """The same steps of all ranks: durations (steps, ranks, stages), and which (step, rank) reported."""

    steps: Ints
    ranks: tuple[int, ...]
    stages: tuple[str, ...]
    durations: Ints
    valid: NDArray[np.bool_]


def gather(vectors: Iterable[Vectors]) -> Window:
    """Vectors of several ranks and windows on common steps; what a rank did not report is marked, not made zero.

    A step that a rank reports twice (it restarted) keeps the last report. A rank below the job's size that never
    reported is a column without a valid row.

    >>> one = Vectors(0, 0, ("work",), np.array([[3], [4]]), size=2)
    >>> gather([one, Vectors(1, 1, ("work",), np.array([[5]]), size=2)]).valid.tolist()
    [[True, False], [True, True]]
    """
    given = list(vectors)
    if not given:
        raise BadInput("stage vectors: none were given")
    stages = given[0].stages
    if odd := [v for v in given if v.stages != stages]:
        raise BadInput(f"stage vectors: rank {odd[0].rank} has the stages {', '.join(odd[0].stages)}, "
                       f"rank {given[0].rank} has {', '.join(stages)}; they must be the same")  # fmt: skip
    ranks = sorted({v.rank for v in given} | set(range(max(v.size for v in given))))
    first = min(v.first_step for v in given)
    count = max(v.first_step + len(v.durations) for v in given) - first
    if count * len(ranks) * len(stages) > MAX_CELLS:  # what claims to be huge is refused before it is allocated
        raise BadInput(f"stage vectors: steps {first} … {first + count - 1} of {len(ranks)} ranks are no one window")
    steps = np.arange(first, first + count)
    durations = np.zeros((steps.size, len(ranks), len(stages)), np.int64)
    valid = np.zeros((steps.size, len(ranks)), bool)
    column = {rank: i for i, rank in enumerate(ranks)}
    for v in given:
        at = v.first_step - first
        durations[at : at + len(v.durations), column[v.rank]] = v.durations
        valid[at : at + len(v.durations), column[v.rank]] = True
    return Window(steps, tuple(ranks), stages, durations, valid)


def frame(vectors: Iterable[Vectors]) -> Frame:
    """As spans of the category `stage`, `seq` being the step; each rank counts from nought on its own clock.

    >>> spans = frame([Vectors(0, 7, ("a", "b"), np.array([[3, 4], [5, 6]]))]).spans
    >>> spans["start"].to_list(), spans["dur"].to_list(), spans["seq"].to_list()
    ([0, 3, 7, 12], [3, 4, 5, 6], [7, 7, 8, 8])
    """
    given = sorted(vectors, key=lambda v: (v.rank, v.first_step))
    tables, clock = [], dict.fromkeys((v.rank for v in given), 0)
    for v in given:
        steps, stages = v.durations.shape
        dur = v.durations.ravel()
        ends = clock[v.rank] + np.cumsum(dur)
        clock[v.rank] = int(ends[-1]) if dur.size else clock[v.rank]
        tables.append(pl.DataFrame({
            "entity": np.full(dur.size, v.rank, np.uint32), "name": list(v.stages) * steps, "start": ends - dur,
            "dur": dur, "seq": np.repeat(np.arange(v.first_step, v.first_step + steps), stages),
        }))  # fmt: skip
    ranks = [{"id": rank, "kind": "rank", "name": str(rank), "clock": f"rank {rank}"} for rank in clock]
    spans = pl.concat(tables).with_columns(cat=pl.lit("stage")) if tables else None
    return Frame.of(ranks, spans=spans, source="stage vectors")


def window_of(recording: Frame) -> Window:
    """The stages of a frame as one window: durations and step numbers only, no clock is compared with another."""
    spans = recording.spans.filter((pl.col("cat") == "stage") & pl.col("seq").is_not_null())
    if spans.is_empty():
        raise BadInput(f"{recording.source or 'telemetry'}: no spans of the category 'stage' with a step number")
    stages = tuple(spans["name"].cast(pl.String).unique(maintain_order=True).to_list())
    ranks = sorted(recording.entities.filter(pl.col("kind") == "rank")["id"].to_list())
    ranks = ranks or sorted(spans["entity"].unique().to_list())
    first, last = int(spans["seq"].min()), int(spans["seq"].max())  # type: ignore[arg-type]
    if (last - first + 1) * len(ranks) * len(stages) > MAX_CELLS:
        raise BadInput(f"telemetry: steps {first} … {last} of {len(ranks)} ranks are no one window")
    steps = np.arange(first, last + 1)
    durations = np.zeros((steps.size, len(ranks), len(stages)), np.int64)
    valid = np.zeros((steps.size, len(ranks)), bool)
    step = spans["seq"].to_numpy() - first
    rank = np.searchsorted(ranks, spans["entity"].to_numpy())
    slot = spans["name"].cast(pl.String).replace_strict({name: i for i, name in enumerate(stages)}).to_numpy()
    np.add.at(durations, (step, rank, slot), spans["dur"].to_numpy())
    valid[step, rank] = True
    return Window(steps, tuple(ranks), stages, durations, valid)
