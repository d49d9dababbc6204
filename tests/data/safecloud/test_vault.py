"""Files come back as they were put; whatever else is done to the store is noticed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data import MemStore, blocking
from assay.data.crash.lab import Case, examine, replay
from assay.data.interface import Meta, NotFound, Store, StoreError, Unknown
from assay.data.safecloud import Encrypted, Vault
from assay.data.safecloud.chunks import seal
from assay.data.safecloud.grants import allows, from_text, valid
from assay.data.safecloud.keys import Link
from assay.data.safecloud.scenarios import Owner
from assay.data.safecloud.vault import read, read_granted, read_manifest
from assay.data.store.blocking import wait
from assay.data.store.wrappers import Wrapper
from assay.record.errors import AssayError, BadInput

SECRET = b"a secret of thirty-two bytes, ok"
CANARY = b"canary-5f3a9c"


def vault_in(store: Store, **options: Any) -> Any:
    made = blocking(Vault(SECRET, **{"chunk": 16} | options))
    made.open(store)
    return made


@pytest.fixture(params=["position", "content"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["position", "content"]), st.integers(2, 4), st.data())
def test_what_was_put_is_got_whole_and_in_part(content: bytes, mode: str, arity: int, data: st.DataObject) -> None:
    vault = vault_in(MemStore(), mode=mode, arity=arity)
    vault.put("a file", content, {"captions": content[::-1]})
    start = data.draw(st.integers(0, len(content)))
    length = data.draw(st.integers(0, len(content) - start))
    assert vault.get("a file") == content
    assert vault.get("a file", (start, length)) == content[start : start + length]
    assert vault.get("a file", track="captions") == content[::-1]


def test_another_process_finds_it_and_another_secret_does_not(mode: str) -> None:
    store = MemStore()
    vault_in(store, mode=mode).put("x", b"1" * 100)
    assert vault_in(store, mode=mode).get("x") == b"1" * 100
    stranger = blocking(Vault(bytes(32)))
    with pytest.raises(BadInput, match="does not open the vault"):
        stranger.open(store)


@settings(deadline=None)
@given(
    st.sampled_from(["position", "content"]), st.sampled_from(["chunks/", "manifests/", "log/"]),
    st.sampled_from(["flip", "truncate", "swap", "empty", "gone"]), st.integers(0, 10**6), st.integers(0, 10**6),
)  # fmt: skip
def test_any_damage_to_any_object_is_noticed(mode: str, kind: str, harm: str, which: int, where: int) -> None:
    store = MemStore()
    content = bytes(range(100))
    vault = vault_in(store, mode=mode)
    vault.put("x", content)
    keys = sorted(key for key in store.objects if key.startswith(kind))
    key, other = keys[which % len(keys)], keys[where % len(keys)]
    whole = store.objects[key]
    at, bit = where % len(whole), 1 << where % 8
    if harm == "swap" and store.objects[other] != whole:
        store.objects[key], store.objects[other] = store.objects[other], whole
    elif harm == "gone" and kind != "log/":  # a log that never began is an empty vault
        blocking(store).delete(key)
    elif harm == "truncate":
        store.objects[key] = whole[:at]
    elif harm == "empty":
        store.objects[key] = b""
    else:
        store.objects[key] = whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :]
    with pytest.raises(AssayError):
        vault_in(store, mode=mode).get("x")


def test_a_grant_opens_its_range_and_nothing_else(mode: str) -> None:
    store = MemStore()
    vault = vault_in(store, mode=mode)
    content = bytes(range(160))
    entry = vault.put("film", content)
    capability = from_text(vault.grant("film", (40, 30)).as_text())  # chunks 2, 3, 4
    assert wait(read_granted(store, capability)) == content[40:70]
    manifest = wait(read_manifest(store, entry.attempt))
    reached = []
    for one in capability.grants:
        for chunk in range(10):
            try:
                got = wait(read(store, manifest, one.link, one.secret, (16 * chunk, 16)))
            except BadInput:
                continue
            assert got == content[16 * chunk : 16 * chunk + 16]
            reached.append(chunk)
            forged = Link("data", (*one.link.digits[:-1], 1 - one.link.digits[-1]))  # a sibling, with this secret
            with pytest.raises((StoreError, BadInput)):
                wait(read(store, manifest, forged, one.secret, (16 * (chunk ^ 1), 16)))
    assert sorted(reached) == [2, 3, 4]


def test_a_router_serves_what_was_granted_until_it_expires(mode: str) -> None:
    store = MemStore()
    vault = vault_in(store, mode=mode)
    entry, other = vault.put("film", bytes(160)), vault.put("other", bytes([1]) * 160)
    manifest = wait(read_manifest(store, entry.attempt))
    envelopes = [one.envelope for one in vault.grant("film", (32, 48), expires=100.0).grants]
    shape = manifest.shape("data")

    def served(now: float = 50.0, root: bytes = entry.root, track: str = "data", shown: Any = envelopes) -> list[int]:
        return [chunk for chunk in range(10) if allows(shown, root, manifest.access, shape, track, chunk, now)]

    assert served() == [2, 3, 4]
    assert served(now=101.0) == [] == served(root=other.root) == served(track="audio")
    longer = [msgspec.structs.replace(one, expires=1e9) for one in envelopes]
    wider = [msgspec.structs.replace(one, link="data") for one in envelopes]
    assert served(shown=longer) == [] == served(shown=wider)
    strange = vault.grant("other", (0, 160)).grants[0].envelope
    assert not valid(strange, entry.root, manifest.access, 0.0)
    assert not any(one.secret in msgspec.json.encode(one.envelope) for one in vault.grant("film").grants)


def test_equal_chunks_are_stored_once_in_content_mode_only() -> None:
    stored = {}
    for mode in ("position", "content"):
        store = MemStore()
        vault = vault_in(store, mode=mode)
        vault.put("one", b"0123456789abcdef" * 8)
        vault.put("two", b"0123456789abcdef" * 4)
        stored[mode] = sum(key.startswith("chunks/") for key in store.objects)
    assert stored == {"position": 12, "content": 1}


def xor(one: bytes, two: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, two, strict=True))


def test_two_contents_under_one_leaf_would_betray_both_and_never_share_one_here() -> None:
    one, two = b"attack at dawn!!", b"retreat at noon!"
    first, second = (seal(SECRET, 0, text)[:16] for text in (one, two))  # what the paper's positions do
    betrayed = xor(one, two)
    assert xor(first, second) == betrayed
    store = MemStore()
    vault = vault_in(store)
    chunks = []
    for text in (one, two, one):  # versions of one file
        before = set(store.objects)
        vault.put("orders", text)
        chunks += [store.objects[key][:16] for key in set(store.objects) - before if key.startswith("chunks/")]
    pairs = [(a, b) for i, a in enumerate(chunks) for b in chunks[i + 1 :]]
    assert len(pairs) == 3
    assert all(xor(a, b) != betrayed for a, b in pairs)
    assert len(set(chunks)) == 3


def test_no_plaintext_name_or_secret_reaches_the_store(mode: str) -> None:
    store = MemStore()
    vault = vault_in(store, mode=mode, chunk=64)
    vault.put(f"letters/{CANARY.decode()}.txt", CANARY * 20, {"captions": CANARY})
    vault.forget(f"letters/{CANARY.decode()}.txt")
    plain = blocking(Encrypted(store, SECRET))
    plain.put("other", CANARY * 1000)
    for key, stored in store.objects.items():
        assert CANARY not in stored
        assert CANARY.decode() not in key
        assert SECRET not in stored


def test_collecting_removes_what_nobody_needs(mode: str) -> None:
    store = MemStore()
    vault = vault_in(store, mode=mode)
    vault.put("a", b"old" * 30)
    vault.put("a", b"new" * 30)
    vault.put("b", b"new" * 30)
    before = set(store.objects)
    assert vault.collect(grace=3600.0) == 0
    assert vault.collect(grace=-1.0) > 0
    assert len(store.objects) < len(before)
    assert (vault.get("a"), vault.get("b")) == (b"new" * 30, b"new" * 30)
    vault.put("c", b"old" * 30)
    assert vault_in(store, mode=mode).get("c") == b"old" * 30
    with pytest.raises(NotFound, match="the vault has no 'd'"):
        vault.get("d")


def test_nothing_is_lost_wherever_it_crashes(mode: str) -> None:
    report = examine(lambda: Owner(mode), ops=16, mixes=3)
    assert report.findings == []
    assert report.changes >= 18
    assert report.exhaustive


class Mumbling(Wrapper):
    """A store that does not say whether the first put of a chunk happened, and still holds its bytes."""

    def __init__(self) -> None:
        super().__init__(MemStore())
        self.unanswered: dict[str, memoryview] = {}

    async def put(self, key: str, data: Any, *, if_absent: bool = False) -> Meta:
        if key.startswith("chunks/") and key not in self.unanswered:
            self.unanswered[key] = memoryview(data)
            raise Unknown(f"nobody said whether put {key} happened")
        return await super().put(key, data, if_absent=if_absent)


def test_the_bytes_of_a_put_that_nobody_answered_stay_as_they_were(mode: str) -> None:
    store = Mumbling()
    vault_in(store, mode=mode).put("x", bytes(range(250)))  # many chunks, whose memory is used again and again
    assert len(store.unanswered) == 16
    for key, late in store.unanswered.items():
        assert late == store.inner.objects[key]  # type: ignore[attr-defined]


class Careless(Owner):
    """Deletes what it believes nobody needs, without saying so first."""

    async def collect(self, grace: float = 0.0) -> int:
        needed: set[str] = set()
        for entry in self.state.files.values():
            needed |= {f"manifests/{entry.attempt}"} | (await self._manifest(entry.attempt)).places
        old = [meta.key async for meta in self.store.list() if meta.key not in needed and meta.key[:3] != "log"]
        await self.store.delete(*old)
        return len(old)


def test_the_crash_lab_finds_a_vault_that_collects_carelessly() -> None:
    assert any(replay(Careless, Case(24, seed, mixed=2)) for seed in range(40))


@pytest.mark.slow
def test_nothing_is_lost_over_three_hundred_changes(mode: str) -> None:
    report = examine(lambda: Owner(mode), ops=130, mixes=50)
    assert report.changes >= 300
    assert report.findings == []
