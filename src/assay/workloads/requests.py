"""Requests to a language model, in columns: what a trace file becomes, what a generator makes, what an engine serves.

Who shares a prefix with whom is kept as a tree of segments. A segment is a stretch of prompt that the same requests
share; a request's prompt is a path from a root. So a prompt of hundreds of cache blocks is a handful of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Prefixes:
    """Which stretch of which prompt is the same text.

    Segment s covers the tokens `start[s]` to `stop[s]` of every prompt that runs through it, and continues segment
    `parent[s]` (-1: it begins the prompt). Request r runs through `segments[offsets[r]:offsets[r + 1]]`, a path in
    the tree; the last segment may reach beyond its prompt. `output[r]` is the segment that its answer fills, where
    some later prompt contains the answer (a conversation), else -1. Tokens of a prompt beyond its path are its own.
    """

    parent: Ints
    start: Ints
    stop: Ints
    offsets: NDArray[np.int64]
    segments: Ints
    output: Ints
    block: int = 1  # starts and stops are multiples of it


@dataclass(frozen=True)
class Blocks:
    """Every block of every prompt by its content alone, wherever it stands: for caches beyond the prefix.

    Request r has the blocks `ids[offsets[r]:offsets[r + 1]]` of `tokens` tokens each.
    """

    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    tokens: int


@dataclass(frozen=True)
class Source:
    """Where requests come from and what became of each row: nothing is dropped in silence."""

    name: str = "generated"
    format: str = ""
    mapping: dict[str, str] = field(default_factory=dict)  # our field -> theirs, with the conversion
    read: int = 0
    used: int = 0
    refused: int = 0
    notes: tuple[str, ...] = ()  # "dejittered within 3 s", "line 17: output_length is 0", …
    times: str = ""  # in which unit the arrivals were read, and how that was told
    units: tuple[str, ...] = ()  # other units in which they may be meant


@dataclass(frozen=True)
class Requests:
    """A trace: one row per request, sorted by arrival, seconds from zero.

    >>> trace = Requests.of(arrival=[0.0, 0.5], prompt=[100, 20], output=[5, 7])
    >>> len(trace), trace.rate, trace.tokens
    (2, 4.0, 132)
    """

    arrival: Floats
    prompt: Ints
    output: Ints
    prefixes: Prefixes | None = None
    session: Ints | None = None  # -1: none
    after: Ints | None = None  # the earlier request whose end each waits for, -1: none; see `closed_loop`
    think: Floats | None = None  # seconds from that end until it is sent
    tier: Ints | None = None  # index into `tiers`
    tiers: tuple[str, ...] = ()
    tenant: Ints | None = None
    tenants: tuple[str, ...] = ()
    model: Ints | None = None
    models: tuple[str, ...] = ()
    category: Ints | None = None  # kind of prompt: log type, task
    categories: tuple[str, ...] = ()
    blocks: Blocks | None = None  # where the trace names blocks by their content
    steady: tuple[float, float] | None = None  # between these seconds the load is what it should be; None: all of it
    origin: NDArray[np.int64] | None = None  # the row of the trace that each is a copy of; see `more_sessions`
    source: Source = field(default_factory=Source)

    @classmethod
    def of(cls, arrival: object, prompt: object, output: object, **columns: object) -> Requests:
        """From anything array-like. Raises ValueError where a row cannot be a request."""
        times = np.ascontiguousarray(arrival, dtype=np.float64)
        sizes = [np.ascontiguousarray(values, dtype=np.int32) for values in (prompt, output)]
        if not (times.ndim == 1 and times.shape == sizes[0].shape == sizes[1].shape):
            raise ValueError("arrival, prompt and output must be columns of one length")
        if len(times) and (not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) < 0).any()):
            raise ValueError("arrivals must be finite, at least 0 and sorted")
        if len(times) and min(sizes[0].min(), sizes[1].min()) < 1:
            raise ValueError("every request needs at least one prompt and one output token")
        return cls(times, sizes[0], sizes[1], **columns)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival[-1] - self.arrival[0]) if len(self) else 0.0

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self) / self.seconds if self.seconds else float("inf")

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all requests."""
        return int(self.prompt.sum(dtype=np.int64) + self.output.sum(dtype=np.int64))

    def faster(self, factor: float) -> Requests:
        """The same requests, `factor` times as fast: arrivals and think times divided by it.

        More load of people is more people: :func:`assay.workloads.more_sessions.sustained`.
        """
        think = None if self.think is None else self.think / factor
        steady = None if self.steady is None else (self.steady[0] / factor, self.steady[1] / factor)
        return replace(self, arrival=self.arrival / factor, think=think, steady=steady)

    def part(self, start: int, stop: int) -> Requests:
        """Requests `start` to `stop` - 1, the first of them at time zero; who waited for one before them does no more.

        >>> Requests.of(arrival=[0.0, 0.5, 0.7], prompt=[100, 20, 3], output=[5, 7, 9]).part(1, 3).prompt.tolist()
        [20, 3]
        """
        rows = slice(start, stop)
        names = ("prompt", "output", "session", "think", "tier", "tenant", "model", "category", "origin")
        columns = {name: None if (column := getattr(self, name)) is None else column[rows] for name in names}
        if self.after is not None:
            columns["after"] = np.maximum(self.after[rows] - np.int32(start), np.int32(-1))
        prefixes = self.prefixes
        if prefixes is not None:
            offsets = prefixes.offsets[start : stop + 1]
            segments = prefixes.segments[offsets[0] : offsets[-1]]
            prefixes = replace(prefixes, offsets=offsets - offsets[0], segments=segments, output=prefixes.output[rows])
        blocks = self.blocks
        if blocks is not None:
            at = blocks.offsets[start : stop + 1]
            blocks = replace(blocks, ids=blocks.ids[at[0] : at[-1]], offsets=at - at[0])
        arrival = self.arrival[rows] - self.arrival[start]
        steady = self.steady
        if steady is not None:
            steady = (max(steady[0] - self.arrival[start], 0.0), max(steady[1] - self.arrival[start], 0.0))
        return replace(self, arrival=arrival, prefixes=prefixes, blocks=blocks, steady=steady, **columns)  # type: ignore[arg-type]
