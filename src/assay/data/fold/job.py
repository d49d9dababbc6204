"""Deduplicate files into a folder, over as many runs as it takes.

Each batch's output is written before the batch is committed: `kept/` holds what stays, a line a document as it came,
and `duplicates/` what went, with what it is a duplicate of and how much alike. Files are called by the attempt at a
batch that wrote them, so those of one that a crash or a quicker run kept from being committed are known, and removed.
The log says how far each input was read. A folder belongs to one index: another one could not know its files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from assay.data.engine.alone import alone
from assay.data.engine.inputs import Unended
from assay.data.engine.sealing import sealed, unsealed
from assay.data.fold.corpus import Document, documents, files
from assay.data.fold.decide import Settings
from assay.data.fold.index import STATE_EVERY, Answer, Fold
from assay.data.fold.memory import identity
from assay.data.interface import NotFound
from assay.data.store.address import open_store
from assay.data.store.directory import DirStore
from assay.data.store.memory import MemStore
from assay.record.errors import BadInput

BATCH = 2000  # documents
OWNER = ".index"  # the object of the output folder that says whose it is
USUAL = Settings(by="bands")  # two to five times as fast as the graph
Progress = Callable[[int, int], None]


class Read(msgspec.Struct, array_like=True):
    """How far a file was read: documents, a chain of their hashes, and what the file looked like."""

    docs: int = 0
    chain: bytes = b""
    size: int = 0
    modified: int = 0
    done: bool = False
    changed: int = 0  # when the system last changed anything of it, which nobody can set


@dataclass
class Summary:
    """What a run did."""

    documents: int = 0
    kept: int = 0
    skipped_files: int = 0
    bad: int = 0
    without_text: int = 0  # files
    unended: Unended = field(default_factory=Unended)  # files that end in the middle of a line, which waits
    seconds: float = 0.0
    families: Counter[str] = field(default_factory=Counter)  # duplicates by what they are duplicates of


async def deduplicate(
    inputs: Sequence[Path], out: Path, index: str, *, settings: Settings | None = None, text_field: str | None = None,
    lines: bool = False, batch: int = BATCH, skip: bool = False, growing: bool = False,
    progress: Progress = lambda done, total: None,
) -> Summary:  # fmt: skip
    """Read, decide, write; goes on where an earlier run with the same index stopped.

    `skip`: bad rows and damaged files are listed in `bad/` and passed by. A file that changed is read anew then, and of
    its documents those that are in the index already are passed by, too. `growing`: files are written on,
    so a last line without an end waits, as it does where the system knows that somebody writes.
    """
    paths = [path for path in files(inputs) if not _within(path, out) and not _within(path, index)]
    if not paths:
        raise BadInput(f"all of these files are written by this command: they lie in {out} or {index}")
    fold = Fold(settings, fresh=USUAL)
    with alone(out):
        target = DirStore(out)
        await fold.open(open_store(index))
        await _own(target, out, fold)
        await _sweep(target, fold)
        await _warm(fold.settings)
        run = _Run(fold, target, batch, progress, sum(path.stat().st_size for path in paths), skip, growing)
        try:
            for path in paths:
                await run.read(path, text_field, lines)
        except BadInput:
            await run.commit()  # what was read before the damage is not read again
            await _sweep(target, fold)
            raise
        await run.commit()
        await _sweep(target, fold)
        await fold.save_graph()
        await fold.tidy()
    run.summary.seconds = time.perf_counter() - run.began
    return run.summary


def _within(path: Path, folder: str | Path) -> bool:
    return "://" not in str(folder) and path.resolve().is_relative_to(Path(folder).resolve())


async def _own(target: DirStore, out: Path, fold: Fold) -> None:
    """See that the folder is this index's, or nobody's yet."""
    mine = await fold.identity()
    try:
        owner = unsealed(OWNER, await target.get(OWNER)).decode()
    except NotFound:
        done = fold.attempts()
        there = [(version, attempt) async for version, attempt, _ in _written(target)]
        # Only an earlier version wrote files without saying whose folder it is, and it named no attempts.
        if any(version > fold.version or (attempt and attempt != done[version]) for version, attempt in there):
            raise BadInput(
                f"{out} holds files that this index did not write; name another folder, or the index it was made with"
            ) from None
        await target.put(OWNER, sealed(mine.encode()))
        return
    if owner != mine:
        raise BadInput(f"{out} belongs to another index; name another folder, or the index it was made with")
    if any([version > len(fold.attempts()) async for version, _, _ in _written(target)]):
        raise BadInput(
            f"{out} holds batches that the index has lost, perhaps it is an old copy; bring it back, or name other "
            "folders for both"
        )


async def _written(target: DirStore) -> AsyncIterator[tuple[int, str, str]]:
    """The files of batches: version, attempt (none in those of an earlier version) and key."""
    for kind in ("kept/", "duplicates/", "bad/"):
        async for meta in target.list(kind):
            version, _, attempt = meta.key.rpartition("/")[2].removesuffix(".jsonl").partition("-")
            if version.isdigit():
                yield int(version), attempt, meta.key


async def _sweep(target: DirStore, fold: Fold) -> None:
    """Remove the files of attempts that were never committed."""
    done = fold.attempts()
    stray = [
        key
        async for version, attempt, key in _written(target)
        if version >= len(done) or (attempt and attempt != done[version])
    ]
    if stray:
        await target.delete(*stray)


class _Run:
    """The batch that is being filled, and what became of those before."""

    def __init__(
        self, fold: Fold, target: DirStore, batch: int, progress: Progress, total: int, skip: bool, growing: bool
    ) -> None:  # fmt: skip
        self.fold, self.target, self.batch, self.total, self.skip = fold, target, batch, total, skip
        self._bad: list[dict[str, str]] = []
        self.summary, self.began, self.progress = Summary(unended=Unended(growing)), time.perf_counter(), progress
        self._docs: list[Document] = []
        self._anew: list[bool] = []  # by document: whether it is of a file that is read anew
        self._cursor: dict[str, Any] = {}
        self._past = 0  # bytes of the files before this one

    async def read(self, path: Path, text_field: str | None, lines: bool) -> None:
        """One file, from where an earlier run stopped."""
        where, stat = str(path.resolve()), path.stat()
        before = msgspec.convert(self.fold.cursor.get(where, []) or Read(), Read)
        signs = stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
        if before.done and (before.size, before.modified, before.changed) == signs:
            self.summary.skipped_files += 1
        else:
            told = len(self._bad)
            if not await self._from(path, before, signs, text_field, lines):
                said = f"its first {before.docs:,} documents, which are in the index, have changed"
                del self._bad[told:]  # told again when it is read anew
                self._refused(str(path), f" is not what it was: {said}; give the new file another name")
                await self._from(path, Read(), signs, text_field, lines, anew=True)
        self._past += stat.st_size
        self.progress(min(self._past, self.total), self.total)

    async def _from(
        self, path: Path, before: Read, signs: tuple[int, int, int], text_field: str | None, lines: bool, *,
        anew: bool = False,
    ) -> bool:  # fmt: skip
        """The documents behind those read before; whether those are what they were."""
        where, now = str(path.resolve()), Read(0, b"", *signs[:2], changed=signs[2])

        def unfinished() -> bool:  # what is in the index stays there, and what is completed later would be a copy of it
            return now.docs < before.docs or not self.summary.unended.waits(path, signs[0])

        try:
            for doc in documents(path, text_field, lines=lines, bad=self._refused, unfinished=unfinished):
                now.docs += 1
                now.chain = _chained(now.chain, doc)
                if now.docs <= before.docs:
                    if now.docs == before.docs and now.chain != before.chain:
                        return False
                    continue
                self._docs.append(doc)
                self._anew.append(anew)
                self._cursor[where] = msgspec.to_builtins(now, builtin_types=(bytes,))
                if len(self._docs) >= self.batch:
                    await self.commit()
                    self.progress(min(self._past + doc.at, self.total), self.total)
        except BadInput as error:
            if not self.skip:
                raise
            self._refused(str(error), "")
        else:
            now.done = path not in self.summary.unended.files
        if now.docs < before.docs:
            self._cursor[where] = msgspec.to_builtins(before, builtin_types=(bytes,))
            return not now.done
        self.summary.without_text += not now.docs and path not in self.summary.unended.files
        self._cursor[where] = msgspec.to_builtins(now, builtin_types=(bytes,))
        return True

    def _refused(self, where: str, why: str) -> None:
        if not self.skip:
            raise BadInput(where + why)
        self._bad.append({"bad": where + why})

    async def commit(self) -> None:
        """Decide what was read, write the output, make it true."""
        if not self._docs and not self._cursor:
            return
        docs, cursor, bad, anew = self._docs, self._cursor, self._bad, np.array(self._anew, np.bool_)
        self._docs, self._cursor, self._bad, self._anew = [], {}, [], []

        async def write(version: int, answer: Answer) -> None:
            keep, new = answer.keep & ~answer.again, ~(answer.again & anew)
            stay = [doc.line for doc, kept in zip(docs, keep, strict=True) if kept]
            gone = [
                msgspec.json.encode(
                    {"id": doc.name, "of": of or doc.name, "similarity": round(float(alike), 4) if of else 1.0}
                )  # nothing: of itself, which an earlier run kept
                for doc, kept, of, alike, told in zip(docs, keep, answer.of, answer.alike, new, strict=True)
                if told and not kept
            ]  # fmt: skip
            wrong = [msgspec.json.encode(one) for one in bad]
            for name, rows in (("kept", stay), ("duplicates", gone), ("bad", wrong)):
                if rows:
                    await self.target.put(f"{name}/{version:08d}-{self.fold.attempt}.jsonl", b"\n".join(rows) + b"\n")

        names, texts = [doc.name for doc in docs], [doc.text for doc in docs]
        answer = await self.fold.admit(names, texts, cursor=cursor, before=write)
        keep, new = answer.keep & ~answer.again, ~(answer.again & anew)
        self.summary.documents += int(new.sum())
        self.summary.bad += len(bad)
        self.summary.kept += int(keep.sum())
        gone = zip(answer.of, keep, new, strict=True)
        self.summary.families.update(of for of, kept, told in gone if of and told and not kept)
        if self.fold.version % STATE_EVERY == STATE_EVERY - 1:
            await self.fold.tidy()
        if self.fold.kept > 2 * self.fold.saved:
            await self.fold.save_graph()


async def _warm(settings: Settings) -> None:
    """Have everything compiled before the clock runs: a few documents in memory, by the same settings."""
    fold = Fold(settings)
    await fold.open(MemStore())
    words = " ".join(map(str, range(40)))
    await fold.admit(["a", "b", "c"], [words, f"{words} 41", "another text of more than five words in all"])


def _chained(chain: bytes, doc: Document) -> bytes:
    return blake2b(chain + identity(doc.name, doc.text).to_bytes(8, "little"), digest_size=16).digest()
