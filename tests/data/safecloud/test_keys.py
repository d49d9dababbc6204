"""Keys agree between owner and grantee, and a node's secret reaches its range and nothing else."""

from __future__ import annotations

from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from assay.data.safecloud.keys import Link, Shape, Walk, delegate, derive, encryption_root, node

ROOT = bytes(range(32))


@given(st.binary(min_size=16, max_size=64), st.text(max_size=20), st.integers(1, 100), st.text(max_size=20))
def test_derivation_is_hkdf(seed: bytes, label: str, size: int, context: str) -> None:
    salt = sha256(context.encode()).digest()
    assert derive(seed, label, size, context) == HKDF(SHA256(), size, salt, label.encode()).derive(seed)


@given(st.integers(1, 60), st.integers(2, 4), st.data())
def test_owner_and_grantee_derive_the_same_keys(chunks: int, arity: int, data: st.DataObject) -> None:
    shape = Shape(chunks, arity)
    first = data.draw(st.integers(0, chunks - 1))
    last = data.draw(st.integers(first + 1, chunks))
    track = node(encryption_root(ROOT), Link("data"))
    owner, granted = Walk(track, shape), dict[int, bytes]()
    for digits in shape.cover(first, last):
        grantee = Walk(node(encryption_root(ROOT), Link("data", digits)), shape, digits)
        granted |= {chunk: grantee.leaf(chunk) for chunk in shape.span(digits)}
    assert sorted(granted) == list(range(first, last))
    assert all(granted[chunk] == owner.leaf(chunk) for chunk in granted)


@pytest.mark.parametrize(("chunks", "arity"), [(1, 2), (5, 2), (8, 2), (9, 3), (10, 3)])
def test_a_node_reaches_no_key_outside_its_range(chunks: int, arity: int) -> None:
    """Exhaustive on small trees: all secrets that any walk below a node can reach."""
    shape = Shape(chunks, arity)
    owner = Walk(ROOT, shape)
    leaves = {chunk: owner.leaf(chunk) for chunk in range(chunks)}
    nodes: list[tuple[int, ...]] = [()]
    for depth in range(shape.depth + 1):
        level = [way for way in nodes if len(way) == depth]
        nodes += [(*way, digit) for way in level if depth < shape.depth for digit in range(arity)]
        for way in level:
            reached, frontier = set(), [_at(ROOT, way)]
            for _ in range(shape.depth + 2):  # deeper than any honest walk, too
                reached |= set(frontier)
                frontier = [delegate(one, f"safecloud.node.{digit}") for one in frontier for digit in range(arity)]
            inside = set(shape.span(way))
            assert {chunk for chunk, secret in leaves.items() if secret in reached} == inside
            walk = Walk(_at(ROOT, way), shape, way)
            for chunk in set(range(chunks)) - inside:
                with pytest.raises(LookupError):
                    walk.leaf(chunk)


def _at(secret: bytes, way: tuple[int, ...]) -> bytes:
    for digit in way:
        secret = delegate(secret, f"safecloud.node.{digit}")
    return secret


def test_a_seek_derives_once_a_level_and_walking_on_costs_two_steps() -> None:
    shape = Shape(40_960)  # 10 GiB
    walk = Walk(ROOT, shape)
    walk.leaf(31_234)
    assert walk.steps == shape.depth == 16
    for chunk in range(31_235, 31_235 + 1000):
        walk.leaf(chunk)
    assert walk.steps - 16 <= 2 * 1000


@given(st.integers(1, 200), st.integers(2, 5), st.data())
def test_a_cover_is_small(chunks: int, arity: int, data: st.DataObject) -> None:
    shape = Shape(chunks, arity)
    first = data.draw(st.integers(0, chunks - 1))
    last = data.draw(st.integers(first + 1, chunks))
    assert len(shape.cover(first, last)) <= 2 * shape.depth * (arity - 1)
