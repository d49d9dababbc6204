"""The layers that users touch, under random sequences of what people do: the model is a list of records.

Files are added, appended to, renamed, swapped, packed, rewritten and deleted between runs; outputs, stores and indexes
are used again with other options; runs end without a close, come again under the same or another name, and two at once.
After each command that ends well, every record that it was given is there, and whatever was acknowledged before still
is; nothing is there twice, whether it ended well or in one line.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from assay.data.blobshuffle.commands.shuffle import command as shuffle
from assay.data.fold.commands.dedup import command as dedup
from assay.data.lakestream.commands.plane import command as plane
from assay.data.lakestream.files import unpack
from assay.data.lakestream.jobs import opened
from assay.data.navis.commands.vec import command as vec
from assay.data.navis.vector_index import VectorIndex
from assay.data.orbax import Checkpointer
from assay.data.orbax.commands.ckpt import command as ckpt
from assay.data.safecloud.commands.vault import command as vault
from assay.data.store.blocking import wait
from assay.data.vectors import read_vectors, write_vectors
from assay.record.errors import AssayError

WIDTH = 8
names = st.sampled_from(["a", "b", "m", "z"])
two, any_ = st.integers(0, 1), st.integers(0, 3)


def answered(command: click.Command, *words: object) -> dict[str, Any] | None:
    """The answer of a command that ended well; else it had one line to say."""
    try:
        with command.make_context("x", list(map(str, words)), obj=lambda done, total: None) as context:
            answer: dict[str, Any] = command.invoke(context)
    except (AssayError, OSError) as error:
        assert isinstance(error, AssayError) and "\n" not in str(error), repr(error)
        return None
    return None if answer.get("fails") else answer


def called(command: click.Command, *words: object) -> bool:
    """Whether a command ended well."""
    return answered(command, *words) is not None


def line(number: int) -> str:
    """A record as JSON: words of its own, so that no two are near-duplicates."""
    random = np.random.default_rng(number)
    words = " ".join(f"w{word}" for word in random.integers(0, 5000, 12).tolist())
    return json.dumps({"id": f"r{number}", "user": f"u{number % 5}", "text": f"{number} {words}"})


def number(of: str | bytes) -> int:
    return int(json.loads(of)["id"][1:])


def vector(of: int) -> np.ndarray:
    return np.random.default_rng(of).standard_normal(WIDTH).astype(np.float32)


def once(found: Sequence[int]) -> set[int]:
    """What was found, each once."""
    twice = [one for one, count in Counter(found).items() if count > 1]
    assert not twice, f"{twice} are there twice"
    return set(found)


class Folder(RuleBasedStateMachine):
    """Records by file, and what is done to the files."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.texts, self.rows = self.home / "texts", self.home / "rows"
        for folder in (self.texts, self.rows):
            folder.mkdir()
        self.files: dict[str, list[int]] = {}
        self.packed: set[str] = set()
        self.named: set[str] = set()  # files under another name than their first
        self.edited: set[str] = set()  # files with old records in another order, or fewer
        self.halves: dict[str, tuple[int, int]] = {}  # by file: a record of which so many bytes are written
        self.owners: dict[int, int] = {}  # of planes: who published there last
        self.numbers = 0

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    def _fresh(self, count: int) -> list[int]:
        self.numbers += count
        return list(range(self.numbers - count, self.numbers))

    def _text(self, name: str) -> Path:
        return self.texts / f"{name}.jsonl{'.gz' if name in self.packed else ''}"

    def _write(self, name: str) -> None:
        content = "".join(line(one) + "\n" for one in self.files[name]).encode()
        if name in self.halves:
            half, length = self.halves[name]
            content += line(half).encode()[:length]
        self._text(name).write_bytes(gzip.compress(content, 1) if name in self.packed else content)
        write_vectors(self.rows / f"{name}.fvecs", np.stack([vector(one) for one in self.files[name]]))

    @initialize(counts=st.tuples(st.integers(1, 9), st.integers(1, 9)))
    def begin(self, counts: tuple[int, int]) -> None:
        """Two files to begin with."""
        for name, count in zip(("b", "m"), counts, strict=True):
            self.grow(name, count)

    def _one(self, which: int) -> str:
        """Any of the files."""
        return sorted(self.files)[which % len(self.files)]

    def _ended(self, which: int) -> str:
        """Any of the files, after its last line was ended."""
        if (name := self._one(which)) in self.halves:
            self.files[name].append(self.halves.pop(name)[0])
            self._write(name)
        return name

    @precondition(lambda self: self.files)
    @rule(which=any_, length=st.integers(1, 130))
    def begin_a_line(self, which: int, length: int) -> None:
        """Somebody is writing on: half of a record, or all of it but the end of its line."""
        name = self._ended(which)
        self.halves[name] = self._fresh(1)[0], length
        self._write(name)

    @rule(name=names, count=st.integers(1, 9))
    def grow(self, name: str, count: int) -> None:
        """A new file, or a longer one."""
        if name in self.halves:
            self.files[name].append(self.halves.pop(name)[0])
        self.files[name] = self.files.get(name, []) + self._fresh(count)
        self._write(name)

    @precondition(lambda self: self.files)
    @rule(which=any_, new=names)
    def rename(self, which: int, new: str) -> None:
        """A file under another name, if that is free."""
        old = self._ended(which)
        if new not in self.files and old not in self.edited:  # both at once make a new file of it
            self.named = self.named - {old} | {new}
            self.files[new], text = self.files.pop(old), self._text(old)
            if old in self.packed:
                self.packed = self.packed - {old} | {new}
            text.rename(self._text(new))
            (self.rows / f"{old}.fvecs").rename(self.rows / f"{new}.fvecs")

    @precondition(lambda self: len(self.files) > 1)
    @rule(which=st.tuples(any_, any_))
    def swap(self, which: tuple[int, int]) -> None:
        """Two files that take each other's names."""
        one, other = map(self._ended, which)
        if self.edited & {one, other}:
            return
        self.named |= {one, other}
        self.files[one], self.files[other] = self.files[other], self.files[one]
        for name in {one, other}:
            self._write(name)

    @precondition(lambda self: self.files)
    @rule(which=any_)
    def pack(self, which: int) -> None:
        """Pack a file's text, or unpack it."""
        name = self._ended(which)
        if name in self.edited:  # its name changes, too
            return
        self._text(name).unlink()
        self.named.add(name)
        self.packed ^= {name}
        self._write(name)

    @precondition(lambda self: self.files)
    @rule(which=any_, how=st.sampled_from(["gone", "gone", "other", "backwards", "shorter"]))
    def damage(self, which: int, how: str) -> None:
        """A file that goes, has other records, or its own in another order, or fewer."""
        name = self._ended(which)
        if how == "gone":
            del self.files[name]
            self._text(name).unlink()
            (self.rows / f"{name}.fvecs").unlink()
            for some in (self.packed, self.named, self.edited):
                some.discard(name)
            return
        old = self.files[name]
        changed = {"other": self._fresh(3), "backwards": old[::-1], "shorter": old[: max(1, len(old) // 2)]}
        how = "other" if name in self.named else how
        self.files[name] = changed[how]
        (self.edited.discard if how == "other" else self.edited.add)(name)
        self._write(name)

    def _named(self, store: int, name: int, publish: Callable[[str], bool]) -> bool:
        """Publish under a name: of files with old records in another order, another name would make new ones."""
        name = self.owners.get(store, name) if self.edited else name
        well = publish(f"p{name}")
        if well or store not in self.owners:
            self.owners[store] = name
        return well

    def _given(self) -> set[int]:
        return {one for records in self.files.values() for one in records}


class Layers(Folder):
    """What each layer has acknowledged of the records."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, set[int]] = {}  # by place: what was acknowledged
        self.steps: dict[int, int] = {}  # of checkpoints, in the order in which they were saved
        self.secrets: dict[str, bytes] = {}

    def _acknowledged(self, place: str, well: bool, found: Sequence[int]) -> None:
        """What is there now: each once, what was there before, and what was given if it ended well."""
        there = once(found)
        lost = self.known.get(place, set()) - there
        assert not lost, f"{place} lost {sorted(lost)}"
        if well:
            missing = self._given() - there
            assert not missing, f"{place} ended well without {sorted(missing)}"
        self.known[place] = there

    @precondition(lambda self: self.files)
    @rule(out=two, index=two)
    def dedup(self, out: int, index: int) -> None:
        """Deduplicate into any of two folders, by any of two indexes."""
        well = called(
            dedup, self.texts, "--out", self.home / f"clean{out}", "--index", self.home / f"index{index}", "--growing"
        )
        self._kept(index, well)

    @precondition(lambda self: self.files)
    @rule(index=two)
    def dedup_twice_at_once(self, index: int) -> None:
        """Two runs over one index, each into a folder of its own."""
        usual = (self.texts, "--index", self.home / f"index{index}", "--growing")
        words = [(*usual, "--out", self.home / f"side{index}{side}") for side in (0, 1)]
        well = at_once(*(lambda some=some: called(dedup, *some) for some in words))
        self._kept(index, any(well))

    def _kept(self, index: int, well: bool) -> None:
        found, mine = [], (self.home / f"index{index}" / "identity")
        for out in [*self.home.glob("clean*"), *self.home.glob("side*")]:
            owner = out / ".index"
            if mine.exists() and owner.exists() and owner.read_bytes() == mine.read_bytes():
                found += [number(row) for path in (out / "kept").glob("*") for row in path.read_bytes().splitlines()]
        self._acknowledged(f"index{index}", well, found)

    @precondition(lambda self: self.files)
    @rule(store=two, name=two, batch=st.sampled_from([2, 5]), share=st.sampled_from(["1/1", "1/2", "2/2"]))
    def produce(self, store: int, name: int, batch: int, share: str) -> None:
        """Publish under any of two names, in batches of any size, all of it or a share."""
        well = self._produced(store, name, batch, share)
        self._published(store, well and share == "1/1")

    @precondition(lambda self: self.files)
    @rule(store=two, batch=st.sampled_from([2, 5]))
    def produce_all_shares(self, store: int, batch: int) -> None:
        """Both shares, one after the other, and the first again: then all is there."""
        shares = ((0, "1/2"), (1, "2/2"), (0, "1/2"))
        well = [self._produced(store, name, batch, share) for name, share in shares]
        self._published(store, all(well))

    @precondition(lambda self: self.files)
    @rule(store=two, names_=st.tuples(two, two))
    def produce_twice_at_once(self, store: int, names_: tuple[int, int]) -> None:
        """Two producers over the same files, of one name or of two."""
        well = at_once(*(lambda name=name: self._produced(store, name, 3, "1/1") for name in names_))
        self._published(store, False)
        assert any(well) or self._produced(store, names_[0], 3, "1/1") in (True, False)

    def _produced(self, store: int, name: int, batch: int, share: str) -> bool:
        words = (self.home / f"plane{store}", self.texts, "--batch", batch, "--part", share, "--growing")
        if share != "1/1":
            return called(plane.commands["produce"], *words, "--name", f"p{name}")
        return self._named(store, name, lambda own: called(plane.commands["produce"], *words, "--name", own))

    def _published(self, store: int, well: bool) -> None:
        try:
            there = opened(str(self.home / f"plane{store}"))
        except AssayError:
            assert not well
            return
        consumer = there.consumer(0, 1)
        parts = [wait(consumer.read(step)) for step in range(there.manifest.state.next_step)]
        found = [number(record) for slices in parts for part in slices or () for record in unpack(part)]
        self._acknowledged(f"plane{store}", well, found)

    @precondition(lambda self: self.files)
    @rule(out=two, parts=st.sampled_from([2, 4]), store=st.sampled_from(["", "blobs0", "blobs1"]))
    def shuffle(self, out: int, parts: int, store: str) -> None:
        """Repartition everything into any of two folders, in any number of partitions, through any store."""
        words = ["--key", "user", "--parts", parts, "--out", self.home / f"parts{out}", "--no-costs"]
        sources = [word for name in sorted(self.files) for word in ("--from", self._text(name))]
        well = called(shuffle, *sources, *words, *(["--store", self.home / store] if store else []))
        paths = (self.home / f"parts{out}").glob("part-*")
        found = [number(row) for path in paths for row in path.read_bytes().splitlines()]
        self._acknowledged(f"parts{out}", well, found)

    @precondition(lambda self: self.files)
    @rule(which=any_)
    def vectors(self, which: int) -> None:
        """Build an index of a file, or insert the file."""
        name = self._one(which)
        path = self.rows / f"{name}.fvecs"
        index = self.home / "vectors"
        built = (index / "log-state").is_dir()
        if built:
            well = called(vec.commands["insert"], index, path)
        else:
            well = called(vec.commands["build"], index, path, "--degree", 4, "--breadth", 8)
        if not (index / "log-state").is_dir():
            assert len(self.files[name]) < 2
            return
        expected = set(self.known.get("vectors", set())) | (set(self.files[name]) if well else set())
        with VectorIndex(index) as opened_index:
            assert len(opened_index) == len(expected)
            every = sorted(expected)
            ids, far = opened_index.search(np.stack([vector(one) for one in every]), 1, 64)
        assert not far.any() and len(once(ids[:, 0].tolist())) == len(every)
        self.known["vectors"] = expected

    @precondition(lambda self: "vectors" in self.known)
    @rule(data=st.data())
    def delete_and_bring_back(self, data: st.DataObject) -> None:
        """Delete a vector and insert it again under its id, in a process that ends without a close."""
        one = data.draw(st.sampled_from(sorted(self.known["vectors"])))
        index = VectorIndex(self.home / "vectors", write=True)
        ids, _ = index.search(vector(one), 1, 64)
        assert index.delete(ids[0]) == 1
        index.insert(vector(one)[None], ids=ids[0])
        os.close(index._lock)  # all that an end of the process does
        with VectorIndex(self.home / "vectors") as again:
            found, far = again.search(vector(one), 1, 64)
            assert (found.tolist(), far[0, 0]) == (ids.tolist(), 0) and len(again) == len(self.known["vectors"])

    @precondition(lambda self: "vectors" in self.known)
    @rule(data=st.data(), compact=st.booleans())
    def delete_and_bring_back_by_commands(self, data: st.DataObject, compact: bool) -> None:
        """The same by one command each, perhaps with the index built anew in between."""
        one, index = data.draw(st.sampled_from(sorted(self.known["vectors"]))), self.home / "vectors"
        query, ids, out = self.home / "one.fvecs", self.home / "one.npy", self.home / "found.npy"
        write_vectors(query, vector(one)[None])
        assert called(vec.commands["search"], index, query, "-k", 1, "--breadth", 64, "--out", ids)
        mine = int(np.load(ids)[0, 0])
        assert called(vec.commands["delete"], index, mine)
        if compact:
            assert called(vec.commands["compact"], index)
        assert called(vec.commands["search"], index, query, "-k", 1, "--breadth", 64, "--out", out)
        assert np.load(out)[0, 0] != mine
        assert called(vec.commands["insert"], index, query, "--ids", ids)
        with VectorIndex(index) as again:
            found, far = again.search(vector(one), 1, 64)
            assert (int(found[0, 0]), far[0, 0], len(again)) == (mine, 0, len(self.known["vectors"]))

    @precondition(lambda self: self.files)
    @rule(which=any_, step=st.integers(0, 6), keep=st.sampled_from([None, 1, 2]))
    def checkpoint(self, which: int, step: int, keep: int | None) -> None:
        """Save a file of vectors as a step, perhaps after a rollback, perhaps one that is there."""
        name = self._one(which)
        state = self.home / "state.npz"
        np.savez(state, rows=np.asarray(read_vectors(self.rows / f"{name}.fvecs")), mark=np.array(self._fresh(1)))
        mark = self.numbers - 1
        words = [state, "--store", self.home / "ckpts", "--step", step, *(["--keep", keep] if keep else [])]
        well = called(ckpt.commands["save"], *words)
        assert well == (step not in self.steps)
        if well:
            self.steps[step] = mark
            self.steps = dict(list(self.steps.items())[-keep:]) if keep else self.steps
        self._restored()

    @precondition(lambda self: self.steps)
    @rule(step=st.integers(0, 6))
    def save_without_waiting(self, step: int) -> None:
        """Two saves in the background with one checkpointer; the second waits for the first."""
        ck = Checkpointer(self.home / "ckpts")
        for one in (step, step + 10):
            if one not in self.steps:
                ck.save_async(one, {"mark": np.array(self._fresh(1))})
                self.steps[one] = self.numbers - 1
        ck.wait()
        self._restored()

    def _restored(self) -> None:
        ck = Checkpointer(self.home / "ckpts")
        assert ck.steps() == sorted(self.steps)
        for step, mark in self.steps.items():
            assert ck.restore(step, only="mark")["mark"].tolist() == [mark]
        assert ck.restore(only="mark")["mark"].tolist() == [list(self.steps.values())[-1]]
        out = self.home / "restored.npz"
        assert called(ckpt.commands["restore"], self.home / "ckpts", "--only", "mark", "--out", out)
        again = self.home / "converted.npz"
        assert called(ckpt.commands["convert"], out, again) and called(ckpt.commands["diff"], out, again)
        assert called(ckpt.commands["inspect"], again) and called(ckpt.commands["verify"], self.home / "ckpts")

    @precondition(lambda self: self.files)
    @rule(which=any_, again=st.booleans())
    def keep_secret(self, which: int, again: bool) -> None:
        """Put a file into the vault, get all that are there, perhaps remove it."""
        name = self._one(which)
        key, store, path = self.home / "my.key", self.home / "vault", self._text(name)
        if not key.exists():
            assert called(vault.commands["key"], "--out", key)
        common = ("--store", store, "--key", key)
        assert called(vault.commands["put"], path, *common)
        self.secrets[path.as_posix()] = path.read_bytes()
        for one, content in self.secrets.items():
            assert called(vault.commands["get"], one, *common, "--out", self.home / "opened")
            assert (self.home / "opened").read_bytes() == content
        listed = answered(vault.commands["ls"], *common)
        assert listed and {row["path"] for row in listed["table"]} == set(self.secrets)
        granted = (path.as_posix(), "--span", "0:9", "--out", self.home / "grant.json")
        assert called(vault.commands["grant"], *granted, *common)
        words = (self.home / "grant.json", "--store", store, "--out", self.home / "opened")
        assert called(vault.commands["open"], *words) and called(vault.commands["audit"], "--store", store)
        assert (self.home / "opened").read_bytes() == path.read_bytes()[:9]
        if not again:
            assert called(vault.commands["rm"], path.as_posix(), *common)
            del self.secrets[path.as_posix()]


def at_once(*calls: Callable[[], bool]) -> list[bool]:
    """Several in threads of their own; a line of one is as good as an end."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda call: call(), calls))
