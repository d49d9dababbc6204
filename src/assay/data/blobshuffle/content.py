"""What a folder of partitions holds, so that another shuffle is not written over it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from assay.data.blobshuffle.files import begins
from assay.record.errors import BadInput

CONTENT = ".partitions.json"


class Content(msgspec.Struct, frozen=True):
    """By which key in how many partitions, of which run of a store that was named, and of which files."""

    key: str
    parts: int
    parquet: bool
    run: str
    sources: dict[str, tuple[int, str]]


def fits(out: Path, content: Content, given: set[str]) -> None:
    """Refuse a folder that another shuffle has filled: its records would be lost, or be there twice.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fits(Path(folder), Content("user", 8, False, "", {}), set())
    ...     Path(folder, "part-00007.jsonl").touch()
    ...     fits(Path(folder), Content("user", 4, False, "", {}), set())
    Traceback (most recent call last):
    assay.record.errors.BadInput: ... holds part-00007.jsonl of another shuffle; name another folder
    """
    try:
        there = msgspec.json.decode((out / CONTENT).read_bytes(), type=Content)
    except FileNotFoundError:
        _unmarked(out, content)
        return
    except msgspec.MsgspecError as error:
        raise BadInput(f"{out / CONTENT} is damaged ({error}); name another folder") from error
    if (there.key, there.parts, there.parquet) != (content.key, content.parts, content.parquet):
        raise BadInput(f"{out} holds a shuffle by key {there.key} in {there.parts} partitions; name another folder")
    if there.run != content.run:
        raise BadInput(f"{out} holds a shuffle that went through another store; name that --store, or another folder")
    for path, (size, head) in there.sources.items() if not content.run else ():
        if path in content.sources:
            continue
        again = [one for one in given if one == path or not Path(path).exists()]
        if not any(Path(one).exists() and begins(Path(one), size, head) for one in again):
            raise BadInput(f"{out} holds the records of {path}, which is not named or has changed; name another folder")


def _unmarked(out: Path, content: Content) -> None:
    """What an earlier version has left may be written again, if it is the same number of the same files."""
    suffix = "parquet" if content.parquet else "jsonl"
    expected = {f"part-{number:05d}.{suffix}" for number in range(content.parts)}
    for path in sorted(out.glob("part-?????.*")) if out.is_dir() else ():
        if path.name not in expected:
            raise BadInput(f"{out} holds {path.name} of another shuffle; name another folder")
