"""How far files were read, so that each is known again: after it grew, under another name, among others.

A place is where reading stopped, and what came before it: the number of records, a chain of their digests, and a look
at the bytes there were. The look finds a file's place without reading it; the chain is compared as the file is read,
before anything behind it is given out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import msgspec

from assay.data.engine.inputs import Bad, Unended, refused
from assay.data.lakestream.files import records
from assay.record.errors import BadInput, unreadable

_PROBE = 1 << 16  # bytes at either end of what was read by which a file is known again


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A place in a file: what the file was called and looked like, how many records were read, and their chain."""

    path: str
    size: int
    look: str
    records: int
    chain: str


class Reading:
    """The records of a file, counted and chained as they are read.

    `unended` says whether a last line without an end waits; without it that is a record.
    """

    def __init__(self, path: Path, unended: Unended | None = None) -> None:
        self.path, self.unended, self.count = path, unended, 0
        self._size, self._look = look(path)
        self._chain = blake2b(digest_size=12)

    def behind(self, place: Seen | None) -> Iterator[bytes]:
        """The records behind a place; BadInput where those before it are not what they were."""
        start = 0 if place is None else place.records
        for record in records(self.path, lambda: self._counts(start)):
            if self.count == start and place is not None:
                self._same(place)
            self.count += 1
            self._chain.update(len(record).to_bytes(8, "little") + record)
            if self.count > start:
                yield record
        if place is not None and self.count <= start:
            self._same(place)

    def _counts(self, start: int) -> bool:
        """Whether a last line without an end is a record: where nobody writes on, and where it was one before."""
        return self.unended is None or self.count < start or not self.unended.waits(self.path, self._size)

    def between(self, first: int, place: Seen) -> Iterator[bytes]:
        """The records from one on up to a place, checked when the last of them is given out."""
        for record in islice(self.behind(None), first, place.records):
            if self.count == place.records:
                self._same(place)
            yield record

    def seen(self) -> Seen:
        """The place where reading is now."""
        return Seen(str(self.path), self._size, self._look, self.count, self.digest())

    def digest(self) -> str:
        """Of the records so far."""
        return self._chain.copy().hexdigest()

    def holds(self, place: Seen) -> bool:
        """Whether what was read has the records before a place."""
        return self.count > place.records or (self.count, self.digest()) == (place.records, place.chain)

    def _same(self, place: Seen) -> None:
        if not self.holds(place):
            raise changed(self.path)


def changed(path: Path) -> BadInput:
    """What is said of a file whose records are not those that were published."""
    return BadInput(
        f"{path} changed since its records were published; bring them back, or publish it as another producer"
    )


def look(path: Path, size: int | None = None) -> tuple[int, str]:
    """A file's size and a digest of its two ends, or of those of its first `size` bytes."""
    try:
        size = path.stat().st_size if size is None else size
        with path.open("rb") as file:
            head = file.read(min(size, _PROBE))
            file.seek(max(0, size - _PROBE))
            tail = file.read(min(size, _PROBE))
    except OSError as error:
        raise unreadable(path, error) from error
    return size, blake2b(head + tail, digest_size=12).hexdigest()


def begins(path: Path, place: Seen) -> bool:
    """Whether a file begins with the bytes that a place was seen in."""
    with suppress(OSError):
        return path.stat().st_size >= place.size and look(path, place.size)[1] == place.look
    return False


def has(path: Path, place: Seen) -> bool:
    """Whether a file has the records before a place, however it looks."""
    return begins(path, place) or _behind(path, [place]) is not None


def _behind(path: Path, places: Sequence[Seen]) -> Seen | None:
    """The farthest of some places that a file has the records of; it may look otherwise: mended, or packed anew."""
    wanted = {(place.records, place.chain): place for place in places}
    counts, found, reading = {place.records for place in places}, None, Reading(path)
    with suppress(BadInput):  # what is damaged is told when it is published
        for _ in islice(reading.behind(None), max(counts)):
            if reading.count in counts:
                found = wanted.get((reading.count, reading.digest()), found)
    return found


def matched(files: Sequence[Path], seen: Sequence[Seen], bad: Bad = refused) -> dict[Path, Seen]:
    """Which file each place is in: the one of its name, or one that was renamed; the rest is new.

    A file that is there and whose records are not those that were read is `bad`; BadInput for one that was not named.
    """
    found: dict[Path, Seen] = {}
    left = sorted(seen, key=lambda place: -place.size)
    for own_name in (True, False):
        for path in files if left else ():
            fits = (place for place in left if (place.path == str(path)) >= own_name and begins(path, place))
            if path not in found and (place := next(fits, None)) is not None:
                found[path] = place
                left.remove(place)
    for own_name in (True, False):  # by their records, which have to be read for it
        for path in files if left else ():
            some = [place for place in left if (place.path == str(path)) >= own_name]
            if path not in found and some and (place := _behind(path, some)) is not None:
                found[path] = place
                left.remove(place)
    named = {str(path) for path in files if path not in found}
    for place in left:
        if place.path in named:
            bad(str(changed(Path(place.path))), "")
            continue
        if Path(place.path).exists() and Path(place.path) not in found:
            raise BadInput(f"{place.path} was read before and is not named now; name it, too, or another producer")
    return found
