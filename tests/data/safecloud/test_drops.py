"""Nodes that keep what they announced pass audits and are never convicted; cheats are."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from assay.data import MemStore, blocking
from assay.data.crash.lab import examine
from assay.data.safecloud.drops import (
    Challenge,
    Drop,
    Keeps32,
    LosesBlocks,
    Published,
    contradicts,
    expected_challenges,
)
from assay.data.safecloud.scenarios import Node

CHUNKS = [Random(n).randbytes(40_000) for n in range(3)]


def asked(drop: Any, audit: str, times: int = 20) -> int:
    """How many of so many challenges a node fails, to the point of contradicting itself."""
    failed = 0
    for n in range(times):
        stored = CHUNKS[n % 3]
        challenge = Challenge(Published.of(stored).digest, n.to_bytes(32, "big"), audit)
        answer = drop.answer(challenge)
        failed += contradicts(drop.public, drop.announced, challenge, Published.of(stored), answer)
    return failed


def node(make: Callable[[bytes], Drop], store: MemStore | None = None) -> Any:
    drop = blocking(make(bytes(32)))
    drop.open(store or MemStore())
    drop.hold(*CHUNKS)
    return drop


@pytest.mark.parametrize("audit", ["prefix", "spot"])
def test_an_honest_node_is_never_convicted(audit: str) -> None:
    store = MemStore()
    drop = node(Drop, store)
    assert asked(drop, audit) == 0
    drop.evict(Published.of(CHUNKS[1]).digest)
    assert asked(drop, audit) == 0  # it says that it no longer holds it
    again = blocking(Drop(bytes(32)))
    again.open(store)
    assert asked(again, audit) == 0


def test_the_papers_audit_is_passed_by_a_node_that_keeps_32_bytes() -> None:
    cheat = node(Keeps32)
    assert asked(cheat, "prefix") == 0
    assert asked(cheat, "spot") == 20


def test_a_node_that_lost_blocks_is_found_about_as_soon_as_expected() -> None:
    cheat = node(lambda secret: LosesBlocks(secret, share=0.3))
    failed = asked(cheat, "spot", times=60)
    assert 60 * (1 - 0.7**4) * 0.6 < failed < 60  # some challenges meet only what is left
    assert expected_challenges(0.3) == 4


def test_a_node_that_lost_a_chunk_convicts_itself_and_a_forged_answer_convicts_nobody() -> None:
    store = MemStore()
    drop = node(Drop, store)
    for key in [key for key in store.objects if key.startswith("held/")]:
        del store.objects[key]
    assert asked(drop, "spot", times=3) == 3
    known = Published.of(CHUNKS[0])
    challenge = Challenge(known.digest, os.urandom(32))
    answer = drop.answer(challenge)
    other = Drop(b"1" * 32)
    assert not contradicts(other.public, drop.announced, challenge, known, answer)
    assert not contradicts(drop.public, drop.announced, Challenge(known.digest, bytes(32)), known, answer)
    assert not contradicts(drop.public, drop.announced[:1], challenge, known, answer)


def test_an_announced_chunk_is_there_wherever_the_node_crashes() -> None:
    report = examine(Node, ops=24, mixes=10)
    assert report.findings == []


class DeletesFirst(Node):
    async def evict(self, *digests: bytes) -> None:
        await self.store.delete(*(self._places[digest] for digest in digests))
        await self._announce(removed=digests)


def test_the_crash_lab_finds_a_node_that_deletes_before_it_says_so() -> None:
    assert examine(DeletesFirst, ops=16, mixes=0).findings
