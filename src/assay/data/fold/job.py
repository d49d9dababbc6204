"""Deduplicate files into a folder, over as many runs as it takes.

Each batch's output is written before the batch is committed: `kept/` holds what stays, a line a document as it came,
and `duplicates/` what went, with what it is a duplicate of and how much alike. A run that dies leaves at most the files
of one batch that was never committed; the next run writes them anew, for the log says how far each input was read.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from assay.data.fold.corpus import Document, documents, files
from assay.data.fold.decide import Settings
from assay.data.fold.index import STATE_EVERY, Answer, Fold
from assay.data.fold.memory import identity
from assay.data.store.address import open_store
from assay.data.store.directory import DirStore
from assay.record.errors import BadInput

BATCH = 2000  # documents
USUAL = Settings(by="bands")  # two to five times as fast as the graph
Progress = Callable[[int, int], None]


class Read(msgspec.Struct, array_like=True):
    """How far a file was read: documents, a chain of their hashes, and what the file looked like."""

    docs: int = 0
    chain: bytes = b""
    size: int = 0
    modified: int = 0
    done: bool = False


@dataclass
class Summary:
    """What a run did."""

    documents: int = 0
    kept: int = 0
    skipped_files: int = 0
    seconds: float = 0.0
    families: Counter[str] = field(default_factory=Counter)  # duplicates by what they are duplicates of


async def deduplicate(
    inputs: Sequence[Path], out: Path, index: str, *, settings: Settings | None = None, text_field: str | None = None,
    lines: bool = False, batch: int = BATCH, progress: Progress = lambda done, total: None,
) -> Summary:  # fmt: skip
    """Read, decide, write; goes on where an earlier run with the same index stopped."""
    paths = files(inputs)
    fold = Fold(settings, fresh=USUAL)
    with _alone(out):
        target = DirStore(out)
        await fold.open(open_store(index))
        await _sweep(target, fold.version)
        run = _Run(fold, target, batch, progress, sum(path.stat().st_size for path in paths))
        try:
            for path in paths:
                await run.read(path, text_field, lines)
        except BadInput:
            await run.commit()  # what was read before the damage is not read again
            raise
        await run.commit()
        await fold.save_graph()
        await fold.tidy()
    run.summary.seconds = time.perf_counter() - run.began
    return run.summary


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """One run to a folder: two would write the same files."""
    out.mkdir(parents=True, exist_ok=True)
    held = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BadInput(f"another run is writing to {out}; wait for it, or use another folder") from None
    finally:
        os.close(held)


async def _sweep(target: DirStore, version: int) -> None:
    """Remove the files of a batch that was never committed."""
    stray = [meta.key async for meta in target.list() if _version(meta.key) > version]
    if stray:
        await target.delete(*stray)


def _version(key: str) -> int:
    name = key.rpartition("/")[2].partition(".")[0]
    return int(name) if key.startswith(("kept/", "duplicates/")) and name.isdigit() else -1


class _Run:
    """The batch that is being filled, and what became of those before."""

    def __init__(self, fold: Fold, target: DirStore, batch: int, progress: Progress, total: int) -> None:
        self.fold, self.target, self.batch, self.total = fold, target, batch, total
        self.summary, self.began, self.progress = Summary(), time.perf_counter(), progress
        self._docs: list[Document] = []
        self._cursor: dict[str, Any] = {}
        self._past = 0  # bytes of the files before this one

    async def read(self, path: Path, text_field: str | None, lines: bool) -> None:
        """One file, from where an earlier run stopped."""
        where, stat = str(path.resolve()), path.stat()
        before = msgspec.convert(self.fold.cursor.get(where, []) or Read(), Read)
        if before.done and (before.size, before.modified) == (stat.st_size, stat.st_mtime_ns):
            self.summary.skipped_files += 1
        else:
            now = Read(0, b"", stat.st_size, stat.st_mtime_ns)
            for doc in documents(path, text_field, lines=lines):
                now.docs += 1
                now.chain = _chained(now.chain, doc)
                if now.docs <= before.docs:
                    if now.docs == before.docs and now.chain != before.chain:
                        break
                    continue
                self._docs.append(doc)
                self._cursor[where] = msgspec.to_builtins(now, builtin_types=(bytes,))
                if len(self._docs) >= self.batch:
                    await self.commit()
                    self.progress(min(self._past + doc.at, self.total), self.total)
            if now.docs < before.docs or (now.docs == before.docs and now.chain != before.chain):
                raise BadInput(
                    f"{path} is not what it was: its first {before.docs:,} documents, which are in the index, have "
                    "changed; give the new file another name"
                )
            now.done = True
            self._cursor[where] = msgspec.to_builtins(now, builtin_types=(bytes,))
        self._past += stat.st_size
        self.progress(min(self._past, self.total), self.total)

    async def commit(self) -> None:
        """Decide what was read, write the output, make it true."""
        if not self._docs and not self._cursor:
            return
        docs, cursor = self._docs, self._cursor
        self._docs, self._cursor = [], {}

        async def write(version: int, answer: Answer) -> None:
            keep = answer.keep & ~answer.again
            stay = [doc.line for doc, kept in zip(docs, keep, strict=True) if kept]
            gone = [
                msgspec.json.encode({"id": doc.name, "of": of or doc.name, "similarity": round(float(alike), 4)})
                for doc, kept, of, alike in zip(docs, keep, answer.of, answer.alike, strict=True) if not kept
            ]  # fmt: skip
            for name, rows in (("kept", stay), ("duplicates", gone)):
                if rows:
                    await self.target.put(f"{name}/{version:08d}.jsonl", b"\n".join(rows) + b"\n")

        names, texts = [doc.name for doc in docs], [doc.text for doc in docs]
        answer = await self.fold.admit(names, texts, cursor=cursor, before=write)
        keep = answer.keep & ~answer.again
        self.summary.documents += len(docs)
        self.summary.kept += int(keep.sum())
        self.summary.families.update(of for of, kept in zip(answer.of, keep, strict=True) if of and not kept)
        if self.fold.version % STATE_EVERY == STATE_EVERY - 1:
            await self.fold.tidy()
        if self.fold.kept > 2 * self.fold.saved:
            await self.fold.save_graph()


def _chained(chain: bytes, doc: Document) -> bytes:
    return blake2b(chain + identity(doc.name, doc.text).to_bytes(8, "little"), digest_size=16).digest()
