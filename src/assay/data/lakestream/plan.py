"""What several producers agree on: whose each file is, and which records are which batch.

All of it is create-only: who comes second reads what the first wrote. A stage of the plan lists what the files had when
it was made, so a batch has the same records for all, also for a producer that starts when they have grown since.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path

import msgspec

from assay.data.engine.inputs import Bad, Unended, refused
from assay.data.engine.puts import put_surely
from assay.data.engine.sealing import sealed, unsealed
from assay.data.interface import NotFound, Store
from assay.data.lakestream.manifest import State
from assay.data.lakestream.places import Reading, Seen, begins, has, matched
from assay.data.store.blocking import wait
from assay.record.errors import BadInput


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """The records of a file from one on up to a place; which file, by the number of files the plan had before it."""

    first: int
    seen: Seen
    file: int


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """Extents that are cut, one behind the other, into batches of so many records; the last may be smaller."""

    size: int
    extents: list[Extent]


class Plan:
    """The plan in a plane's store, as a producer of this name sees it. Its calls block: use it from a thread."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name

    def claim(self, path: Path, first: bytes) -> None:
        """Take a file, known by its name and its first record; BadInput where another producer has it."""
        mark = blake2b(str(path).encode("utf-8", "replace") + b"\0" + first, digest_size=16).hexdigest()
        self._claim(f"claim/{mark}", str(path))

    def claim_share(self, share: str) -> None:
        """Take a share."""
        self._claim(f"claim/{share.replace('/', '-of-')}", f"share {share}")

    def _claim(self, key: str, what: str) -> None:
        owner = self._agreed(key, self.name.encode()).decode()
        if owner != self.name:
            raise BadInput(f"{what} is published by '{owner}' in this plane; go on with --name {owner}")

    def _agreed(self, key: str, mine: bytes) -> bytes:
        wait(put_surely(self.store, key, sealed(mine), if_absent=True))
        return unsealed(key, wait(self.store.get(key)))

    def not_others(self, files: Sequence[Path], state: State) -> None:
        """Refuse files that another producer has published, also under another name."""
        for other, row in state.table.items():
            cursor = row.cursor if isinstance(row.cursor, dict) else {}
            for one in cursor.get("seen", ()) if other != self.name else ():
                place = msgspec.convert(one, Seen)
                there = begins(Path(place.path), place)  # else it was renamed, and something else may have its name
                for path in files:
                    if (str(path) == place.path) if there else has(path, place):
                        raise BadInput(f"{path} was published by '{other}' in this plane; go on with --name {other}")

    def stages(
        self, files: Sequence[Path], size: int, bad: Bad = refused, unended: Unended | None = None
    ) -> list[tuple[Stage, list[Path | None]]]:
        """All stages with the files that their extents are in now; first a new one, where there are new records.

        Where `bad` raises nothing, a file that changed is left out, and of a damaged one what is behind the damage.
        """
        told: set[str] = set()

        def once(where: str, why: str) -> None:  # files are looked at again when a stage was added
            if where + why not in told:
                told.add(where + why)
                bad(where, why)

        while True:
            stages = self._read()
            latest: dict[int, Seen] = {}  # where each file's last extent ends
            for stage in stages:
                if stage.size != size:
                    raise BadInput(f"this plane's batches have {stage.size} records, not {size}; --batch {stage.size}")
                latest |= {extent.file: extent.seen for extent in stage.extents}
            places = matched(files, list(latest.values()), once)
            where = {number: path for path, place in places.items() for number in latest if latest[number] is place}
            numbers = {path: number for number, path in where.items()}
            changed = {place.path for number, place in latest.items() if number not in where}
            fresh = count(len(latest))
            new = []
            for path in files:
                place = places.get(path)
                if place is None and str(path) in changed:
                    continue
                reading, first = _read_on(path, place, once, unended), place.records if place else 0
                if place is not None and not reading.holds(place):
                    del where[numbers[path]]
                elif reading.count > first:
                    new.append(Extent(first, reading.seen(), numbers.get(path, -1)))
            new = [one if one.file >= 0 else msgspec.structs.replace(one, file=next(fresh)) for one in new]
            if not new:
                break
            self._agreed(f"plan/{len(stages):06d}", msgspec.msgpack.encode(Stage(size, new)))
        return [(stage, [where.get(extent.file) for extent in stage.extents]) for stage in stages]

    def _read(self) -> list[Stage]:
        found: list[Stage] = []
        while True:
            try:
                data = wait(self.store.get(key := f"plan/{len(found):06d}"))
            except NotFound:
                return found
            found.append(msgspec.msgpack.decode(unsealed(key, data), type=Stage))


def _read_on(path: Path, place: Seen | None, bad: Bad, unended: Unended | None) -> Reading:
    """A file, read to its end, or to where it is damaged, where it begins as it did at a place."""
    reading = Reading(path, unended)
    try:
        for _ in reading.behind(place):
            pass
    except BadInput as error:
        bad(str(error), "")
    return reading
