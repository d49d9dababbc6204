"""Which source of a store each file is: the one of its name, or one that was renamed, packed otherwise, or mended.

What was sent of a source must not be sent again because its file is called otherwise, and a new file in an old one's
place is a new source. A source is known by how it began when it was first seen, and by a digest of the records that
were sent of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from assay.data.blobshuffle import files
from assay.data.interface import Store


class Source(msgspec.Struct, frozen=True):
    """A file as it was seen: its name in the store, where it was, and how large; how many lines of it were sent."""

    name: str
    path: str
    size: int
    head: str
    sent: int = 0
    chain: str = ""


def looks(path: Path) -> dict[str, Any]:
    """What is kept of a file in the store."""
    size, head = files.fingerprint(path)
    return {"size": size, "head": head, "path": str(path.resolve())}


async def seen(store: Store) -> list[Source]:
    """All sources of a store."""
    found = []
    async for meta in store.list("sources/"):
        name, sent, chain = meta.key.rpartition("/")[2], 0, ""
        for key in [one.key async for one in store.list(f"chains/{name}/")][-1:]:
            sent, chain = int(key.rpartition("/")[2]), msgspec.json.decode(await store.get(key))["chain"]
        one = msgspec.json.decode(await store.get(meta.key))
        found.append(Source(name, str(one["path"]), int(one["size"]), str(one["head"]), sent, chain))
    return found


def named(paths: Sequence[Path], sources: Sequence[Source]) -> dict[Path, str]:
    """What each file is called in the store, by its full path. One that is not what it was keeps its name.

    >>> named([Path("/x/a.jsonl")], [])[Path("/x/a.jsonl")]
    'cd2d3801b4708b5b'
    """
    files_left = list(dict.fromkeys(path.resolve() for path in paths))
    left, found = list(sources), dict[Path, str]()

    def take(path: Path, one: Source) -> None:
        found[path] = one.name
        files_left.remove(path)
        left.remove(one)

    for path in list(files_left):
        own = (one for one in left if one.path == str(path) and _still(path, one))
        if (first := next(own, None)) is not None:
            take(path, first)
    gone = [one for one in left if not (Path(one.path).exists() and _still(Path(one.path), one))]
    for path in list(files_left):
        begun = (one for one in gone if one in left and one.size and files.begins(path, one.size, one.head))
        if (first := next(begun, None) or _sent(path, [one for one in gone if one in left])) is not None:
            take(path, first)
    for path in list(files_left):
        if (first := next((one for one in left if one.path == str(path)), None)) is not None:
            take(path, first)
    taken = {one.name for one in sources}
    return found | {path: _free(path, taken) for path in files_left}


def _still(path: Path, one: Source) -> bool:
    """Whether a file is what it was; it may have been mended behind what was sent of it."""
    return files.begins(path, one.size, one.head) or not one.sent or _sent(path, [one]) is not None


def _sent(path: Path, sources: Sequence[Source]) -> Source | None:
    """The source of which a file has all records that were sent, the most of them where there are several."""
    some = sorted((one for one in sources if one.sent), key=lambda one: -one.sent)
    if not some or files.is_parquet(path):
        return None
    here = files.chains(path, {one.sent for one in some})
    return next((one for one in some if here.get(one.sent) == one.chain), None)


def _free(path: Path, taken: set[str]) -> str:
    """A name for a new source; another one has been in its place where that is taken."""
    name = blake2b(str(path).encode(), digest_size=8).hexdigest()
    while name in taken:
        name = blake2b(name.encode(), digest_size=8).hexdigest()
    return name
