"""Safecloud: every chunk key from one secret along a tree, so sharing a range is handing over one node.

A file is cut into chunks, each encrypted with the key of its leaf in a tree of secrets; a child's secret follows from
its parent's and never the other way. Whoever is given a node computes the keys of its chunks and no others; a player
seeks by computing, not by asking. Chunks are named by the digest of their ciphertext, so a node without keys can check
what it holds, and a second tree of signing keys lets routers decide who may ask for what.

What to watch for: in the paper a chunk's key and nonce follow from its place alone. Two contents under one root (two
versions of a file, or a retry with other bytes) then share both, and AES-GCM betrays them; here every attempt to put a
file has a root of its own. For the same reason equal chunks at different places are stored twice; `content` mode stores
them once. The paper's audit hashes the first 32 bytes of a chunk: a node that keeps only those passes. The spot audit
asks for random blocks instead. Nothing hides how large files are and when they are read.

The study derives keys for random trees and ranges, damages stored chunks in every way it can think of, stores repeated
content, audits honest and cheating nodes, lets them earn and be found out, and times each design on the same bytes.

"Safecloud: A Distributed, Encrypted Storage Cloud for Streaming", arXiv:2606.09870.

>>> from assay.data import MemStore, blocking
>>> vault = blocking(Vault(b"32 bytes that only the owner has"))
>>> vault.open(MemStore())
>>> _ = vault.put("talk.txt", b"good morning, good evening")
>>> capability = vault.grant("talk.txt", span=(0, 12))
>>> len(capability.grants), capability.grants[0].envelope.link
(1, 'data')
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.data.engine.version_log import Damaged
from assay.data.safecloud.chunks import CHUNK, blocks, pieces, seal, unseal
from assay.data.safecloud.designs import DESIGNS, side_by_side
from assay.data.safecloud.drops import (
    Challenge,
    Drop,
    Keeps32,
    LosesBlocks,
    Published,
    contradicts,
    proved,
)
from assay.data.safecloud.economy import DAY, market
from assay.data.safecloud.encrypted import Encrypted
from assay.data.safecloud.keys import Link, Shape, Walk, delegate, encryption_root, node
from assay.data.safecloud.merkle import MerkleTree
from assay.data.safecloud.scenarios import Owner
from assay.data.safecloud.vault import Vault
from assay.data.store.memory import MemStore
from assay.record import charts, intervals, measures
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.sim.streams import stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

__all__ = ["Encrypted", "Vault", "claims", "evidence", "offers", "plot", "study"]

offers = {"crashable": Owner, "vault": Vault, "store": Encrypted}
evidence = Evidence.REAL
needs = ("data",)
use_when = (
    "Files go to disks of others, and some of them are shared in part: a range, a track, a folder's worth of one file, "
    "with people who must not get the rest."
)
avoid_when = (
    "A grant must be taken back: whoever had a node's secret has it for good, only a new root helps. Also where sizes "
    "and times of access must stay secret, or where many people share equal files that should be stored once."
)
trust = (
    "Everything here is measured but Filecoin's sealing, which is counted (the hashing its construction needs), and "
    "the market of nodes, which is simulated with the rates at which audits of real nodes failed; coins have no price."
)
own_input = "assay compare safecloud --input examples/chats.jsonl"
references = (
    "Key derivation: Krawczyk and Eronen, HKDF, RFC 5869.",
    "What nonce reuse does to GCM: Joux, Authentication failures in NIST version of GCM, 2006.",
    "Content-defined search trees: Auvolat and Taiani, Merkle search trees, SRDS 2019.",
    "What sealing hashes: Fisch, Tight proofs of space and replication, 2018; Filecoin's specification of stacked DRG.",
)

# Filecoin's sealing labels every 32-byte node in 11 layers, each time hashing its parents, taken 37 times 32 bytes.
SEALING = 11 * 37  # bytes hashed for a byte that is stored
HARMS = ("flip", "truncate", "extend", "swap", "other place", "sibling's key")
MARKET = (
    ("keeps 32 bytes", 1.0, "prefix"), ("keeps 32 bytes", 1.0, "spot"), ("loses blocks", 0.1, "spot"),
    ("honest", 0.0, "spot"),
)  # fmt: skip
REPEATS = ("again, same places", "again, one chunk on", "within the file")


# --------------------------------------------------------------------------------------------- the study


def trees(chunks: int, arity: int, ranges: int, seed: int) -> dict[str, Any]:
    """Random ranges of a tree: does a grantee's walk give the owner's keys, and can it reach any other?"""
    random = stream(seed, "safecloud", "trees", chunks, arity)
    root, shape = random.bytes(32), Shape(chunks, arity)
    owner = Walk(node(encryption_root(root), Link("data")), shape)
    leaves = [owner.leaf(chunk) for chunk in range(chunks)]
    agreed = contained = 0
    for _ in range(ranges):
        first, last = sorted(random.choice(chunks + 1, 2, replace=False).tolist())
        reached: set[bytes] = set()
        same = True
        for digits in shape.cover(first, last):
            secret = node(encryption_root(root), Link("data", digits))
            walk = Walk(secret, shape, digits)
            same &= all(walk.leaf(chunk) == leaves[chunk] for chunk in shape.span(digits))
            reached |= _reachable(secret, shape.depth - len(digits), arity)
        agreed += same
        contained += {chunk for chunk in range(chunks) if leaves[chunk] in reached} == set(range(first, last))
    return {"ranges": ranges, "agreed": agreed, "contained": contained}


def _reachable(secret: bytes, depth: int, arity: int) -> set[bytes]:
    """Every secret that can be derived below one, a step further than any chunk lies."""
    found, frontier = {secret}, [secret]
    for _ in range(depth + 1):
        frontier = [delegate(one, f"safecloud.node.{digit}") for one in frontier for digit in range(arity)]
        found.update(frontier)
    return found


def damage(harm: str, tries: int, seed: int) -> dict[str, Any]:
    """Harm a stored chunk: does its owner notice, and does a node that holds no key?"""
    random = stream(seed, "safecloud", "damage", HARMS.index(harm))
    owner = keyless = 0
    for _ in range(tries):
        walk, index = Walk(random.bytes(32), Shape(8)), int(random.integers(8))
        chunk, other = random.bytes(int(random.integers(1, 3000))), random.bytes(100)
        stored = seal(walk.leaf(index), index, chunk)
        name = sha256(stored).digest()
        harmed, at = bytearray(stored), int(random.integers(len(stored)))
        place, leaf = index, walk.leaf(index)
        if harm == "flip":
            harmed[at] ^= 1 << int(random.integers(8))
        elif harm == "truncate":
            del harmed[at:]
        elif harm == "extend":
            harmed += b"\0"
        elif harm == "swap":
            harmed = bytearray(seal(walk.leaf(index ^ 1), index ^ 1, other))
        elif harm == "other place":
            place ^= 1
        else:
            leaf = walk.leaf(index ^ 1)
        try:
            unseal(leaf, place, harmed)
        except Damaged:
            owner += 1
        keyless += sha256(harmed).digest() != name
    return {"tries": tries, "owner": owner, "keyless": None if harm in HARMS[4:] else keyless}


def dedup(chunks: int, seed: int) -> dict[str, dict[str, Any]]:
    """Equal content in three ways, under one root: how much of the second copy is stored?"""
    random = stream(seed, "safecloud", "dedup")
    size = 4096
    data, root = random.bytes(chunks * size), random.bytes(32)
    second = {"again, same places": data, "again, one chunk on": random.bytes(size) + data, "within the file": data}
    rows = {}
    for name, design in DESIGNS.items():
        for repeat, copy in second.items():
            if repeat == "within the file":
                made = [design(data + data, size, root)]
            else:
                made = [design(data, size, root), design(copy, size, root)]
            kept = {name: size for one in made for name, size in zip(one.names, one.sizes, strict=True)}
            sealed = sum(size for one in made for size in one.sizes)
            fresh = size + 16 if repeat == "again, one chunk on" else 0
            once = (sum(kept.values()) - fresh) / ((sealed - fresh) / 2)
            rows[f"{name} | {repeat}"] = {"design": name, "repeat": repeat, "stored": once}
    return rows


def audits(kind: str, share: float, challenges: int, seed: int) -> dict[str, dict[str, Any]]:
    """A node, honest or not, under both audits: how many challenges convict it, and what one costs."""
    random = stream(seed, "safecloud", "audits", kind, round(1000 * share))
    made: dict[str, Callable[[], Drop]] = {
        "honest": lambda: Drop(random.bytes(32)), "keeps 32 bytes": lambda: Keeps32(random.bytes(32)),
        "loses blocks": lambda: LosesBlocks(random.bytes(32), share=share),
    }  # fmt: skip
    chunks = [random.bytes(CHUNK) for _ in range(4)]
    known = [Published.of(chunk) for chunk in chunks]

    async def asked(audit: str) -> dict[str, Any]:
        drop = made[kind]()
        await drop.open(MemStore())
        await drop.hold(*chunks)
        convicted, first, spent = 0, None, 0.0
        for turn in range(challenges):
            about = known[turn % len(known)]
            challenge = Challenge(about.digest, random.bytes(32), audit)
            answer = await drop.answer(challenge)
            began = time.process_time()
            proved(challenge, about, answer.proof)
            spent += time.process_time() - began
            if contradicts(drop.public, drop.announced, challenge, about, answer):
                convicted, first = convicted + 1, turn + 1 if first is None else first
        return {"challenges": challenges, "convicted": convicted, "first": first, "check_seconds": spent / challenges}

    return {audit: asyncio.run(asked(audit)) for audit in ("prefix", "spot")}


def earnings(kind: str, share: float, audit: str, days: int, seed: int) -> dict[str, Any]:
    """A node among honest ones for some days: does it lose its stake, when, and what has it earned until then?

    Its chance to fail a challenge is what audits of a real node come to; four challenges an hour.
    """
    asked = audits(kind, share, 40, seed)[audit]
    caught = asked["convicted"] / asked["challenges"]
    names = {"node": caught} | {f"honest {i}": 0.0 for i in range(5)}
    books, members = market(names, days, audits_per_hour=4.0, fee=1.0, seed=seed)
    node, others = members[0], members[1:]
    honest = sum(books.of[one.name] for one in others) / len(others)
    return {
        "caught": caught, "lost": node.slashed is not None, "within_a_day": (node.slashed or 2 * DAY) <= DAY,
        "earned_over_honest": books.of[node.name] / honest, "sum": sum(books.of.values()),
        "honest_lost": sum(one.slashed is not None for one in others),
    }  # fmt: skip


def reuse(tries: int, seed: int) -> dict[str, Any]:
    """Two versions of a chunk at one place: how often do their ciphertexts betray how the plaintexts differ?"""
    random = stream(seed, "safecloud", "reuse")
    betrayed = {"paper": 0, "here": 0}
    for _ in range(tries):
        one, two = random.bytes(64), random.bytes(64)
        leaf = random.bytes(32)
        store = MemStore()
        asyncio.run(_versions(store, random.bytes(32), one, two))
        here = [whole[:64] for key, whole in store.objects.items() if key.startswith("chunks/")]
        for name, (first, second) in {
            "paper": (seal(leaf, 0, one), seal(leaf, 0, two)), "here": (here[0], here[1]),
        }.items():  # fmt: skip
            betrayed[name] += _xor(first, second) == _xor(one, two)
    return {"tries": tries, **betrayed}


async def _versions(store: MemStore, secret: bytes, *texts: bytes) -> None:
    vault = Vault(secret)
    await vault.open(store)
    for text in texts:
        await vault.put("file", text)


def _xor(one: bytes, two: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one[:64], two[:64], strict=True))


def speed(mebibytes: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every design on the same bytes; and what proving storage takes, here and by sealing."""
    data = stream(seed, "safecloud", "speed").bytes(mebibytes << 20)
    rows = side_by_side(data, bytes(32))
    began = time.process_time()
    for piece in pieces(data):
        tree = blocks(piece)
        MerkleTree([tree.root]).proof(0)
    provable = time.process_time() - began
    began = time.process_time()
    sha256(data).digest()
    sealing = SEALING * (time.process_time() - began)
    for row in rows.values():
        row |= {"prove_per_GiB": provable * 1024 / mebibytes, "sealing_per_GiB": sealing * 1024 / mebibytes}
    return rows


def study(lab: Lab) -> Tables:
    """Keys, damage, repeated content, audits, reuse of a root, and speed."""
    shapes = [
        {"chunks": chunks, "arity": arity, "ranges": lab.pick(quick=10, full=40)}
        for chunks, arity in ((1, 2), (7, 2), (64, 2), (81, 3), (100, 4))
    ]
    tries = {"tries": lab.pick(quick=60, full=1000)}
    asked = {"challenges": lab.pick(quick=40, full=200)}
    nodes = [
        {"kind": kind, "share": share} | asked
        for kind, share in (("honest", 0.0), ("keeps 32 bytes", 1.0), ("loses blocks", 0.3), ("loses blocks", 0.1))
    ]
    return {
        "trees": lab.run(trees, shapes),
        "damage": lab.run(damage, [{"harm": harm} | tries for harm in HARMS]),
        "dedup": lab.run(dedup, [{"chunks": 32}], per="case").drop("case"),
        "audits": lab.run(audits, nodes, per="audit"),
        "economy": lab.run(
            earnings,
            [
                {"kind": kind, "share": share, "audit": audit, "days": lab.pick(quick=5, full=60)}
                for kind, share, audit in MARKET
            ],
        ),
        "reuse": lab.run(reuse, [{"tries": lab.pick(quick=10, full=100)}]),
        "speed": lab.run(speed, [{"mebibytes": lab.pick(quick=16, full=128)}], per="design", alone=True),
    }


def plot(table: pl.DataFrame) -> alt.HConcatChart:
    """How soon audits convict, and how fast each design encrypts."""
    import altair as alt

    convicted = measures.rows(table, {"experiment": "audits"}).group_by("kind", "share", "audit").agg(
        value=100 * pl.col("convicted").sum() / pl.col("challenges").sum()
    ).with_columns(
        node=pl.when(pl.col("kind") == "loses blocks")
        .then(pl.format("loses {} % of blocks", (100 * pl.col("share")).cast(pl.Int64)))
        .otherwise(pl.col("kind"))
    )  # fmt: skip
    left = alt.Chart(convicted).mark_bar().encode(
        y=alt.Y("node:N", title=None), yOffset="audit:N", color=alt.Color("audit:N"),
        x=alt.X("value:Q", title="challenges that convict, %", scale=alt.Scale(domain=[0, 100])),
    ).properties(width=300, height=180, title="Audits")  # fmt: skip
    fast = (
        measures.rows(table, {"experiment": "speed"})
        .group_by("design", maintain_order=True)
        .agg(pl.col("MB_per_s").median())
    )
    right = alt.Chart(fast).mark_bar(color=charts.PALETTE[0]).encode(
        y=alt.Y("design:N", sort=list(DESIGNS), title=None), x=alt.X("MB_per_s:Q", title="MB/s a core"),
    ).properties(width=300, height=180, title="Encrypt and hash")  # fmt: skip
    chart: alt.HConcatChart = alt.hconcat(left, right)
    return chart


# -------------------------------------------------------------------------------------------- the claims


def held(experiment: str, column: str, of: str, **where: Any) -> measures.Measure:
    """The share of all tries in which it held."""
    return measures.probability(column, of, experiment=experiment, **where)


def keyless(table: pl.DataFrame) -> Estimate:
    """The share of damage to stored bytes that shows without a key; a chunk that is whole and misplaced does not."""
    rows = measures.rows(table, {"experiment": "damage"}).drop_nulls("keyless")
    return measures.probability("keyless", "tries")(rows)


def deduplicated(table: pl.DataFrame) -> Estimate:
    """In how many of the ways to repeat content it is stored once under the paper's keys, with those it is not."""
    rows = measures.rows(table, {"experiment": "dedup", "design": "safecloud"})
    once = rows.with_columns(once=pl.col("stored") < 1.01)
    twice = once.filter(~pl.col("once"))["repeat"].unique(maintain_order=True).to_list()
    return replace(measures.share("once")(once), cases=f"stored twice: {', '.join(twice)}" if twice else "")


def convicted(kind: str, audit: str, **where: Any) -> measures.Measure:
    """The share of challenges that convict."""
    return measures.probability("convicted", "challenges", experiment="audits", kind=kind, audit=audit, **where)


def cheaper(table: pl.DataFrame) -> Estimate:
    """Processor time to make a GiB provable, against the hashing of sealing it, seed by seed."""
    rows = measures.rows(table, {"experiment": "speed", "design": "safecloud"})
    return intervals.bootstrap((rows["prove_per_GiB"] / rows["sealing_per_GiB"] - 1).to_list())


claims = [
    Claim("subtree", held("trees", "contained", "ranges")),
    Claim("granted", held("trees", "agreed", "ranges")),
    Claim("dedup", deduplicated),
    Claim("verify", keyless),
    Claim(
        "audits",
        cheaper,
        evidence=Evidence.MODEL,
        construction="Filecoin's sealing is not run: its hashing is a constant, counted from its construction",
    ),
    Claim(
        "owner-notices",
        held("damage", "owner", "tries"),
        asks="An owner notices every bit flip, cut, exchange and move of a stored chunk.",
        kind=Kind.EVERY,
    ),
    Claim(
        "prefix-fooled",
        convicted("keeps 32 bytes", "prefix"),
        asks="The paper's audit convicts a node that keeps 32 bytes of each chunk.",
        kind=Kind.EVERY,
    ),
    Claim(
        "spot-catches",
        convicted("keeps 32 bytes", "spot"),
        asks="A spot audit convicts a node that keeps 32 bytes of each chunk.",
        kind=Kind.EVERY,
    ),
    Claim(
        "spot-share",
        convicted("loses blocks", "spot", share=0.3),
        asks="A spot audit of four blocks convicts a node that lost 30 % of them in 76 % of challenges.",
        kind=Kind.PROPORTION,
        value=0.76,  # 1 - 0.7 ** 4
    ),
    Claim(
        "honest",
        lambda table: replace(
            (found := convicted("honest", "spot")(table)), value=1 - found.value, low=1 - found.high, high=1 - found.low
        ),
        asks="No spot audit convicts an honest node.",
        kind=Kind.EVERY,
    ),
    Claim(
        "cheating-costs",
        measures.share("within_a_day", experiment="economy", kind="keeps 32 bytes", audit="spot"),
        asks="Under spot audits a node that keeps 32 bytes of each chunk loses its stake within a day.",
        kind=Kind.EVERY,
        evidence=Evidence.MODEL,
    ),
    Claim(
        "cheating-pays",
        measures.share("lost", experiment="economy", kind="keeps 32 bytes", audit="prefix"),
        asks="Under the paper's audit a node that keeps 32 bytes of each chunk loses its stake.",
        kind=Kind.EVERY,
        evidence=Evidence.MODEL,
    ),
    Claim(
        "reuse",
        held("reuse", "paper", "tries"),
        asks="Two contents at one place under one root betray how they differ.",
        kind=Kind.EVERY,
    ),
    Claim(
        "speed",
        measures.mean("MB_per_s", experiment="speed", design="safecloud, auditable"),
        asks="One core encrypts and hashes at least 300 MB/s, roots for audits included.",
        kind=Kind.AT_LEAST,
        value=300.0,
        unit="MB/s",
    ),
]
