"""A program of two ranks as stages over tiles, the directive that says how to run it, and what the two must satisfy.

A stage computes a stretch of tiles or moves it to the other rank. From what stages read and write follows what must
wait for what; a directive says by which means it does. Some directives leave a dependence to luck: nothing here keeps
them from being tried, since finding that out is what verification is for. :func:`hazards` tells what a reader would.

>>> class Doubled:
...     tiles = 4
...     stages = (Stage("double", reads=("x",), writes=("y",)),
...               Stage("move", reads=("y",), writes=("got",), wire=True), Stage("keep", reads=("got",)))
>>> [(one.first, one.then, one.kind) for one in dependences(Doubled.stages)]
[('double', 'move', 'flow'), ('move', 'keep', 'flow'), ('keep', 'move', 'reuse')]
>>> safe(Doubled)["scope"], hazards(Doubled, safe(Doubled))
('all', [])
>>> hazards(Doubled, safe(Doubled) | {"scope": "none"})
['keep reads got before it has arrived', 'move overwrites got before keep has read it']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Directive = Mapping[str, Any]
Shape = Any  # a program or its class: what has tiles and stages
RANKS = 2
KNOBS: dict[str, tuple[Any, ...]] = {
    "transport": ("message", "window"),  # gloo's two-sided messages, or stores into the other's memory and a flag
    "placement": ("after", "inside"),  # a stage at a time over all tiles, or transfers between the tiles
    "scope": ("all", "chunk", "arrival", "none"),  # what is waited for: delivery and room, arrival and room, arrival
    "grain": ("chunk", "tile"),  # what one message carries
    "chunk": (),  # tiles that are computed and handed over at once
    "depth": (),  # chunks a receiver has room for
    "issuer": ("main", "thread"),  # who hands messages over
    "wait": ("block", "poll"),
    "order": ("deep", "wide"),  # with several stages ready: the last of them first, or the first
}


class Uncompilable(ValueError):  # noqa: N818 - read as a sentence
    """A directive that no program can be built from."""


@dataclass(frozen=True)
class Stage:
    """A step over tiles; a function of the program of the same name does it, unless it is a wire.

    Args:
        name: of the stage and of the function `name(data, tiles, got)`.
        reads: buffers; what a wire brought is given to the function as `got`.
        writes: buffers, by tile.
        wire: it moves the tiles it reads to the other rank, where they are called what it writes.
        ranks: who does it; of a wire, who sends.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    wire: bool = False
    ranks: tuple[int, ...] = (0, 1)


class Program(Protocol):
    """What a target is: its stages, what it starts from, what comes out, and what should."""

    tiles: int
    stages: tuple[Stage, ...]

    def inputs(self, seed: int, rank: int) -> dict[str, Array]:
        """Buffers of a rank by name, those that stages write among them; tiles are the first dimension of a wire's."""
        ...

    def result(self, data: dict[str, Array], rank: int) -> Array:
        """What the rank has in the end."""
        ...

    def reference(self, inputs: list[dict[str, Array]], rank: int) -> Array:
        """What it should have, computed plainly from the inputs of all ranks."""
        ...


@dataclass(frozen=True)
class Dependence:
    """`then` may touch a chunk of `buffer` only after `first` has; `flow` of data, or `reuse` of the room it lay in."""

    first: str
    then: str
    buffer: str
    kind: str


def dependences(stages: tuple[Stage, ...]) -> list[Dependence]:
    """Who must wait for whom, chunk by chunk, from what stages read and write."""
    found: list[Dependence] = []
    writer: dict[str, Stage] = {}
    for stage in stages:
        for buffer in stage.reads:
            if buffer in writer:
                found.append(Dependence(writer[buffer].name, stage.name, buffer, "flow"))
                if writer[buffer].wire:
                    found.append(Dependence(stage.name, writer[buffer].name, buffer, "reuse"))
        writer |= dict.fromkeys(stage.writes, stage)
    return found


def knobs(program: Shape) -> dict[str, tuple[Any, ...]]:
    """The values of each knob for a program: chunks that divide its tiles.

    >>> class Four:
    ...     tiles = 4
    >>> knobs(Four)["chunk"], knobs(Four)["depth"]
    ((4, 2, 1), (1, 2, 4))
    """
    cuts = tuple(size for size in range(program.tiles, 0, -1) if program.tiles % size == 0)
    return KNOBS | {"chunk": cuts, "depth": tuple(sorted({1, min(2, program.tiles), program.tiles}))}


def hazards(program: Shape, directive: Directive) -> list[str]:
    """Dependences between ranks that nothing enforces: each may be kept by luck."""
    found, chunks = [], program.tiles // directive["chunk"]
    wires = {stage.name for stage in program.stages if stage.wire}
    for one in dependences(program.stages):
        if one.kind == "flow" and one.first in wires and directive["scope"] == "none":
            found.append(f"{one.then} reads {one.buffer} before it has arrived")
        unasked = directive["scope"] in ("arrival", "none") and chunks > directive["depth"]
        if one.kind == "reuse" and unasked:
            found.append(f"{one.then} overwrites {one.buffer} before {one.first} has read it")
    return found


def host(program: Shape) -> dict[str, Any]:
    """Host-driven communication: a stage at a time over everything, one message, and a wait for its delivery."""
    return {name: values[0] for name, values in knobs(program).items()}


def safe(program: Shape) -> dict[str, Any]:
    """The fast path: communication moved between the tiles, by the most conservative means that cover every dependence.

    Values of a knob stand in the order of caution, so it is the first in that order that hands over inside, in more
    than one piece, compiles, and leaves no hazard.
    """
    choices = knobs(program) | {"placement": ("inside",), "chunk": knobs(program)["chunk"][1:] or (1,)}
    for values in product(*choices.values()):
        directive = dict(zip(choices, values, strict=True))
        if not hazards(program, directive):
            lower(program, directive)
            return directive
    raise Uncompilable("no directive keeps every dependence of these stages")


@dataclass(frozen=True)
class Lowered:
    """A directive that fits its program, with what follows from both; directives that build one program give equals."""

    transport: str
    placement: str
    scope: str
    grain: str
    chunk: int
    depth: int
    issuer: str
    wait: str
    order: str
    chunks: int
    feeds: Mapping[str, tuple[str, ...]] = field(compare=False)  # by stage: the stages whose chunk it needs


def lower(program: Shape, directive: Directive) -> Lowered:
    """The compile step.

    >>> class Four:
    ...     tiles, stages = 4, ()
    >>> lower(Four, safe(Four) | {"chunk": 3})
    Traceback (most recent call last):
    assay.training.cuco.program.Uncompilable: chunk: 3 is none of 4, 2, 1
    >>> roomy = host(Four) | {"scope": "chunk", "depth": 4}  # with room for all of it nobody has to ask for room
    >>> lower(Four, roomy) == lower(Four, roomy | {"scope": "arrival", "depth": 1})
    True

    Raises:
        Uncompilable: values that no knob has, or that cannot go together.
    """
    choices = knobs(program)
    if set(directive) != set(choices):
        raise Uncompilable(f"a directive has {', '.join(choices)}, and nothing else")
    for name, values in choices.items():
        if not any(type(value) is type(directive[name]) and value == directive[name] for value in values):
            raise Uncompilable(f"{name}: {directive[name]!r} is none of {', '.join(map(str, values))}")
    chunks = program.tiles // directive["chunk"]
    if directive["placement"] == "after" and chunks > directive["depth"] and any(s.wire for s in program.stages):
        raise Uncompilable(f"after: nobody reads before all {chunks} chunks are there, and there is room for fewer")
    flow = [one for one in dependences(program.stages) if one.kind == "flow"]
    feeds = {stage.name: tuple(one.first for one in flow if one.then == stage.name) for stage in program.stages}
    return Lowered(**(dict(directive) | _unread(directive, chunks)), chunks=chunks, feeds=feeds)


def _unread(directive: Directive, chunks: int) -> dict[str, Any]:
    """The first value for what a run never looks at: which of its values it has makes no other program."""
    found: dict[str, Any] = {"depth": min(chunks, directive["depth"])}
    if directive["scope"] == "arrival" and chunks <= directive["depth"]:
        found["scope"] = "chunk"
    if directive["chunk"] == 1:
        found["grain"] = "chunk"
    if directive["placement"] == "after":
        found["order"] = "deep"
    return found
