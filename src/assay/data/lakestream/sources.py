"""Batches of the records of files, so that a producer can go on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, repeat
from pathlib import Path
from typing import Any

import msgspec

from assay.data.engine.inputs import Bad, Unended, refused
from assay.data.lakestream.files import found as found
from assay.data.lakestream.files import pack as pack
from assay.data.lakestream.files import records as records
from assay.data.lakestream.files import unpack as unpack
from assay.data.lakestream.places import Reading, Seen, matched
from assay.data.lakestream.plan import Extent, Plan
from assay.record.errors import BadInput


@dataclass(frozen=True)
class Source:
    """Batch after batch of `size` records, every `of`-th of them beginning with `part`; cut into slices.

    Its cursor says of each file how many records were taken and what they were, so a file may grow, be renamed or come
    between others, and each record is taken once; one whose records changed is told before more of it is published.
    Several that share files agree on a `plan`: which records are which batch is written down before it is made.
    """

    files: Sequence[Path]
    size: int
    slices: int
    part: int = 0
    of: int = 1
    convert: Callable[[bytes], bytes] = bytes
    plan: Plan | None = None
    bad: Bad = refused  # a record or file that cannot be read; where it raises nothing, the rest is published
    unended: Unended | None = None  # says whether a last line without an end waits; None: it is a record

    def __call__(self, cursor: Any) -> Iterator[tuple[list[bytes], Any]]:
        """The slices of each further batch, and the cursor behind it."""
        if cursor and "batches" in cursor:
            raise BadInput("this producer was begun by an earlier version, which counted batches; found another plane")
        yield from self._alone(cursor or {}) if self.of == 1 else self._shared(cursor or {})

    def _alone(self, cursor: dict[str, Any]) -> Iterator[tuple[list[bytes], Any]]:
        if "taken" in cursor:
            raise BadInput(f"this producer had share {cursor['share']}; give it --part {cursor['share']} again")
        seen = [msgspec.convert(one, Seen) for one in cursor.get("seen", ())]
        places = matched(self.files, seen, self.bad)
        taken = {id(place) for place in places.values()}
        gone = [one for one in seen if id(one) not in taken]
        now = {path: msgspec.structs.replace(place, path=str(path)) for path, place in places.items()}
        batch: list[bytes] = []
        passed = {one.path for one in gone}  # what changed is not published again under its name
        for path in self.files:
            if path not in places and str(path) in passed:
                continue
            before, reading = places.get(path), Reading(path, self.unended)
            for record in self._left(reading, before):
                if before is None and reading.count == 1 and self.plan is not None:
                    self.plan.claim(path, record)
                if (made := self._prepared(record, path, reading.count)) is not None:
                    batch.append(made)
                if len(batch) == self.size:
                    yield self._cut(batch), {"seen": [*gone, *(now | {path: reading.seen()}).values()]}
                    batch = []
            if reading.count > (before.records if before else 0):
                now[path] = reading.seen()
        if batch:
            yield self._cut(batch), {"seen": [*gone, *now.values()]}

    def _shared(self, cursor: dict[str, Any]) -> Iterator[tuple[list[bytes], Any]]:
        if self.plan is None:
            raise BadInput("producers that share files need a plan in the store to agree on; pass plan=…")
        share = f"{self.part + 1}/{self.of}"
        if cursor and cursor.get("share") != share:
            had = cursor.get("share", "1/1")
            raise BadInput(f"this producer had share {had}, not {share}; give it --part {had}, or another --name")
        self.plan.claim_share(share)
        taken, number = cursor.get("taken", 0), 0
        for stage, places in self.plan.stages(self.files, self.size, self.bad, self.unended):
            every = (
                (path, index, record)
                for extent, path in zip(stage.extents, places, strict=True)
                for index, record in enumerate(_held(extent, path), extent.first + 1)
            )
            left = sum(extent.seen.records - extent.first for extent in stage.extents)
            while left > 0:
                size = min(stage.size, left)
                left -= size
                batch = list(islice(every, size))
                number += 1
                if number > taken and (number - 1) % self.of == self.part:
                    every_made = (self._prepared(record, path, index) for path, index, record in batch)
                    made = [one for one in every_made if one is not None]
                    yield self._cut(made), {"share": share, "taken": number}

    def _cut(self, batch: list[bytes]) -> list[bytes]:
        cut = [len(batch) * i // self.slices for i in range(self.slices + 1)]
        return [pack(batch[a:b]) for a, b in pairwise(cut)]

    def _left(self, reading: Reading, before: Seen | None) -> Iterator[bytes]:
        """The records behind a place; where bad files may be passed by, up to where a file is bad."""
        try:
            yield from reading.behind(before)
        except BadInput as error:
            self.bad(str(error), "")

    def _prepared(self, record: bytes | None, path: Path | None, number: int) -> bytes | None:
        if record is None or path is None:
            self.bad("a file is gone, or has changed, of which this share has records to publish; bring it back", "")
            return None
        where = f"record {number - 1} of {path}"
        try:
            made = self.convert(record)
        except Exception as error:  # the user's own code
            said = " ".join(str(error).split())
            self.bad(where, f" could not be prepared: {type(error).__name__}: {said}")
            return None
        if not isinstance(made, bytes):
            raise BadInput(f"{where} was prepared as {type(made).__name__}; bytes expected")
        return made


def _held(extent: Extent, path: Path | None) -> Iterator[bytes | None]:
    """The records of an extent; None for each where its file is gone."""
    if path is None:
        return repeat(None, extent.seen.records - extent.first)
    return Reading(path).between(extent.first, extent.seen)
