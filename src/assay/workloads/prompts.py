"""Prompts of several tenants, as text, with answers whose true lengths are known to the workload alone.

Four kinds of work, as a shared gateway sees them: short questions, summaries, technical explanations and reports.
Every prompt is written out from templates, so that whoever classifies or counts works on real text; some prompts of
each kind lack the obvious keyword, as people's do. An answer's length is drawn around what its kind and its tenant
usually take, and is cut at the limit that the client sends along. What the answer says is taken from passages of its
kind, so that its words and its tokens can both be counted: prose has few tokens a word, code and identifiers many.

>>> prompts = generate(1000, seed=0)
>>> prompts.texts[0]
'Tenant acme. What is vector search good for?'
>>> words_per_token = prompts.answer_words.sum() / prompts.requests.output.sum()
>>> bool(0.5 < words_per_token < 0.9)
True
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from assay.sim.random import stream
from assay.workloads.requests import Requests, Source

CATEGORIES = ("short_qa", "summary", "technical", "report")
LIMITS = {"short_qa": 64, "summary": 256, "technical": 384, "report": 512}  # tokens that clients allow
TIERS = ("premium", "standard", "batch")
TENANTS = ("acme", "borealis", "cascade")  # one of each tier
EVERYDAY = (0.40, 0.25, 0.25, 0.10)  # shares of the categories
HEAVY = (0.10, 0.20, 0.40, 0.30)
NATURAL = {"short_qa": 1.6, "summary": 1.3, "technical": 1.5, "report": 1.7}  # median length without a limit, limits
MANNER = {"acme": 1.2, "borealis": 1.0, "cascade": 0.8}  # some tenants ask for more

TOPICS = (
    "a write-ahead log", "consistent hashing", "the TCP slow start", "a B-tree index", "leader election",
    "garbage collection", "a bloom filter", "snapshot isolation", "rate limiting", "a service mesh", "column storage",
    "backpressure", "a content delivery network", "object storage", "certificate rotation", "speculative execution",
    "a job scheduler", "erasure coding", "vector search", "a feature store",
)  # fmt: skip
ASPECTS = (
    "under failures",
    "at large scale",
    "with schema changes",
    "on slow disks",
    "for small teams",
    "across regions",
)
TEMPLATES = {
    "short_qa": (
        "What is {topic} good for?", "When would you not use {topic}?", "Who invented {topic}, and when?",
        "Is {topic} worth it {aspect}?", "Name one drawback of {topic} {aspect}.",
    ),
    "summary": (
        "Summarize what matters about {topic} {aspect}.", "Give me a summary of {topic} for a new colleague.",
        "Summarize the trade-offs of {topic} in plain words.", "In a few lines, sum up how {topic} behaves {aspect}.",
    ),
    "technical": (
        "Explain how the architecture of {topic} copes {aspect}.", "Show the code of a minimal version of {topic}.",
        "A technical walk through {topic}, step by step, please.", "How is {topic} implemented {aspect}?",
    ),
    "report": (
        "Write a detailed report on {topic} {aspect}, with risks and costs.",
        "Prepare a comprehensive comparison of three ways to run {topic} {aspect}.",
        "A report for the board: should we move to {topic}?",
        "Write everything that a reviewer should know about {topic} {aspect}, section by section.",
    ),
}  # fmt: skip
PASSAGES = {
    "short_qa": (
        "It keeps the common case fast and pays for it when something fails. Most teams meet it first as a setting "
        "they never change. It was described in the seventies, long before it had its present name."
    ),
    "summary": (
        "The idea is simple: do the cheap thing first and remember what was done. It holds up well while the load is "
        "even, less so in bursts. Operators watch two numbers, the backlog and the age of the oldest entry; both "
        "should fall back to zero within minutes. What it costs is memory, and some patience during recovery."
    ),
    "technical": (
        "A record is written in two parts: a header that says how long it is, and the bytes themselves. The writer "
        "appends both, waits for the disk, and only then tells the client.\n\n"
        "def append(self, record):\n    self.file.write(pack('<I', len(record)) + record)\n    fsync(self.file)\n"
        "    self.tail += len(record) + 4\n    return self.tail\n\n"
        "After a crash, `recover()` starts at the last checkpoint and reads on until a checksum fails; what follows "
        "was never acknowledged, so cutting it off loses nothing. Several writers share one `fsync()` call: the first "
        "waits a millisecond for company, which trades a little latency for many times the throughput."
    ),
    "report": (
        "## 2. Operations\n\nAvailability over the last four quarters was 99.93 %, with 3 incidents of more than 30 "
        "minutes (Appendix B). In all of them the cause was known within minutes, but nobody was responsible for the "
        "repair; ownership of the replication layer had never been documented. We recommend to move in three phases: "
        "(a) instrumentation, (b) read-only replicas, (c) one region after the other. The expected expenditure is "
        "240,000 EUR in the first year, most of it for people and not for machines.\n\n"
    ),
}

_PIECE = re.compile(r"\n+|[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]")


def words(text: str) -> int:
    """What splitting at blanks counts.

    >>> words("os.fsync(file) is durable")
    3
    """
    return len(text.split())


def tokens(text: str) -> int:
    """About what a byte-pair tokenizer counts: signs and digits one by one, long words in pieces of six letters.

    >>> tokens("os.fsync(file) is durable")
    8
    """
    return sum(
        1 if len(piece) <= 7 or not piece[0].isalpha() else -(-len(piece) // 6) for piece in _PIECE.findall(text)
    )


@cache
def _words_after(category: str) -> NDArray[np.int64]:
    """How many words the first n tokens of an answer have, for n up to a limit no answer reaches."""
    passage = PASSAGES[category]
    text = " ".join([passage] * (4096 // tokens(passage) + 1))
    counts, seen = [0], 0
    for word in text.split(" "):
        seen += words(word)
        counts += [seen] * tokens(word + " ")
    return np.array(counts[:4097], dtype=np.int64)


@dataclass(frozen=True)
class Prompts:
    """Requests with their text. `requests.output` is the truth: tokens of the answer, known once it is complete."""

    requests: Requests
    texts: tuple[str, ...] = field(repr=False)
    answer_words: NDArray[np.int64] = field(repr=False)


def generate(
    count: int,
    seed: int = 0,
    *,
    mix: tuple[float, ...] = EVERYDAY,
    gaps: tuple[float, float] = (0.05, 0.15),
    ratio: float | None = None,
    limits: Mapping[str, int] | None = None,
    spread: float = 0.5,
    manner: Mapping[str, float] | None = None,
    labelled: bool = False,
) -> Prompts:
    """`count` prompts, the time between two drawn evenly from `gaps` in seconds.

    `ratio` replaces what answers take naturally: the median is then that share of the category's usual limit, for
    every category. `limits` cut answers off; an empty mapping cuts nowhere. `spread` is the logarithm's deviation.
    `labelled` writes the category into the prompt, as clients that know their job's type do.
    """
    random = stream(seed, "prompts", count)
    kinds = random.choice(len(CATEGORIES), count, p=mix)
    tenants = random.integers(0, len(TENANTS), count)
    limits, manner = LIMITS if limits is None else limits, MANNER if manner is None else manner
    texts = [_text(CATEGORIES[kind], TENANTS[k], labelled, random) for kind, k in zip(kinds, tenants, strict=True)]
    usual = np.array([LIMITS[c] * (NATURAL[c] if ratio is None else ratio) for c in CATEGORIES])[kinds]
    usual = usual * np.array([manner[name] for name in TENANTS])[tenants]
    ceiling = np.array([limits.get(c, 4096) for c in CATEGORIES])[kinds]
    output = np.clip(np.rint(usual * np.exp(spread * random.standard_normal(count))), 1, ceiling).astype(np.int64)
    answer_words = np.array([_words_after(CATEGORIES[kind])[n] for kind, n in zip(kinds, output, strict=True)])
    requests = Requests.of(
        arrival=np.cumsum(random.uniform(*gaps, count)), prompt=[tokens(text) + 12 for text in texts], output=output,
        tier=tenants.astype(np.int32), tiers=TIERS, tenant=tenants.astype(np.int32), tenants=TENANTS,
        category=kinds.astype(np.int32), categories=CATEGORIES, source=Source("prompts from templates"),
    )  # fmt: skip
    return Prompts(requests, tuple(texts), answer_words)


def _text(category: str, tenant: str, labelled: bool, random: np.random.Generator) -> str:
    template = TEMPLATES[category][random.integers(len(TEMPLATES[category]))]
    topic, aspect = TOPICS[random.integers(len(TOPICS))], ASPECTS[random.integers(len(ASPECTS))]
    label = f"Job type {category}. " if labelled else ""
    return f"Tenant {tenant}. {label}" + template.format(topic=topic, aspect=aspect)
