"""Prompts of several tenants, as text, with answers whose true lengths are known to the workload alone.

Four kinds of work, as a shared gateway sees them: short questions, summaries, technical explanations and reports.
Every prompt is written out from templates, so that whoever classifies or counts works on real text. An answer's length
is drawn around what its kind and its tenant usually take, and is cut at the limit that the client sends along. What the
answer says is taken from passages of its kind, so that its words and its tokens can both be counted: prose has few
tokens a word, code and identifiers many.

People who do not think in kinds of jobs seldom name one. `natural` draws prompts and lengths as they are in a published
set of people's instructions with a model's answers; `sample` draws from such a file itself.

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
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
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
# The same requests from people who name no kind.
PLAIN = (
    *TEMPLATES["short_qa"],
    "In a few lines, sum up how {topic} behaves {aspect}.",
    "What should a new colleague know about {topic}?",
    "How is {topic} implemented {aspect}?",
    "Why does {topic} break {aspect}, and how do I repair it?",
    "Write everything that a reviewer should know about {topic} {aspect}, section by section.",
    "Should we move to {topic}? Weigh it for and against {aspect}.",
)
# AlpacaEval's 805 instructions (from five collections of people's) with the answers of Qwen1.5-1.8B-Chat: how many name
# a kind, by DriftSched's keywords, or none (short_qa), and the quantiles of their answers in `tokens`.
LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
PEOPLE: dict[str, tuple[int, tuple[int, ...]]] = {
    "short_qa": (752, (1, 158, 387, 562, 724, 1001, 1399, 3806, 5118)),
    "summary": (14, (97, 127, 222, 516, 532, 681, 1900, 3666, 4108)),
    "technical": (31, (20, 154, 292, 600, 1004, 2517, 3030, 3983, 4354)),
    "report": (8, (163, 185, 394, 931, 1305, 1988, 2744, 3348, 3499)),
}
LONGEST = 4096  # tokens of an answer
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

Ints = NDArray[np.int64]
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
    text = " ".join([passage] * (LONGEST // tokens(passage) + 1))
    counts, seen = [0], 0
    for word in text.split(" "):
        seen += words(word)
        counts += [seen] * tokens(word + " ")
    return np.array(counts[: LONGEST + 1], dtype=np.int64)


@dataclass(frozen=True)
class Prompts:
    """Requests with their text. `requests.output` is the truth: tokens of the answer, known once it is complete."""

    requests: Requests
    texts: tuple[str, ...] = field(repr=False)
    answer_words: NDArray[np.int64] = field(repr=False)

    def parts(self, count: int) -> list[Prompts]:
        """Cut into so many of one length, each beginning at time zero.

        >>> [len(part.texts) for part in generate(10).parts(3)]
        [3, 3, 3]
        """
        size = len(self.texts) // count
        spans = [(size * part, size * (part + 1)) for part in range(count)]
        return [Prompts(self.requests.part(a, b), self.texts[a:b], self.answer_words[a:b]) for a, b in spans]


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
    ceiling = np.array([limits.get(c, LONGEST) for c in CATEGORIES])[kinds]
    output = np.clip(np.rint(usual * np.exp(spread * random.standard_normal(count))), 1, ceiling).astype(np.int64)
    return _prompts(texts, kinds, tenants, output, random.uniform(*gaps, count), "prompts from templates")


def natural(count: int, seed: int = 0, *, gaps: tuple[float, float] = (0.05, 0.15)) -> Prompts:
    """`count` prompts that name a kind as seldom as people's do, with answers as long. `category` is the kind named.

    >>> prompts = natural(2000)
    >>> 0.04 < (prompts.requests.category > 0).mean() < 0.09, 450 < np.median(prompts.requests.output) < 650
    (np.True_, np.True_)
    """
    random = stream(seed, "prompts", "natural", count)
    shares = np.array([PEOPLE[category][0] for category in CATEGORIES], dtype=np.float64)
    kinds = random.choice(len(CATEGORIES), count, p=shares / shares.sum())
    tenants = random.integers(0, len(TENANTS), count)
    texts = [_written(PLAIN if kind == 0 else TEMPLATES[CATEGORIES[kind]][:3], random) for kind in kinds]
    level, quantiles = random.random(count), [PEOPLE[category][1] for category in CATEGORIES]
    lengths = [np.interp(u, LEVELS, quantiles[kind]) for u, kind in zip(level, kinds, strict=True)]
    output = np.clip(np.rint(lengths), 1, LONGEST).astype(np.int64)
    return _prompts(texts, kinds, tenants, output, random.uniform(*gaps, count), "prompts as people's")


def _prompts(
    texts: list[str], kinds: Ints, tenants: Ints, output: Ints, gaps: NDArray[np.float64], source: str
) -> Prompts:
    answer_words = np.array([_words_after(CATEGORIES[kind])[n] for kind, n in zip(kinds, output, strict=True)])
    requests = Requests.of(
        arrival=np.cumsum(gaps), prompt=[tokens(text) + 12 for text in texts], output=output,
        tier=tenants.astype(np.int32), tiers=TIERS, tenant=tenants.astype(np.int32), tenants=TENANTS,
        category=kinds.astype(np.int32), categories=CATEGORIES, source=Source(source),
    )  # fmt: skip
    return Prompts(requests, tuple(texts), answer_words)


def _text(category: str, tenant: str, labelled: bool, random: np.random.Generator) -> str:
    label = f"Job type {category}. " if labelled else ""
    return f"Tenant {tenant}. {label}" + _written(TEMPLATES[category], random)


def _written(templates: tuple[str, ...], random: np.random.Generator) -> str:
    template = templates[random.integers(len(templates))]
    topic, aspect = TOPICS[random.integers(len(TOPICS))], ASPECTS[random.integers(len(ASPECTS))]
    return template.format(topic=topic, aspect=aspect)


class _Answered(msgspec.Struct):
    instruction: str
    output: str


def sample(path: Path, count: int, seed: int = 0, *, gaps: tuple[float, float] = (0.05, 0.15)) -> Prompts:
    """`count` prompts drawn from a file of prompts and a model's answers, as AlpacaEval publishes its `model_outputs`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "outputs.json"
    ...     _ = path.write_text('[{"instruction": "Why?", "output": "Because it is so."}]')
    ...     sample(path, 2).requests.output.tolist()
    [5, 5]

    Raises:
        BadInput: the file is no such list, or an empty one.
    """
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[_Answered])
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"{path}: {error}; it should be a list of {{instruction, output}}") from error
    if not rows:
        raise BadInput(f"{path}: no prompt is in it")
    random = stream(seed, "prompts", "sample", count)
    chosen = [rows[k] for k in random.integers(0, len(rows), count)]
    tenants = random.integers(0, len(TENANTS), count).astype(np.int32)
    requests = Requests.of(
        arrival=np.cumsum(random.uniform(*gaps, count)), prompt=[tokens(row.instruction) + 12 for row in chosen],
        output=[min(max(1, tokens(row.output)), LONGEST) for row in chosen], tier=tenants, tiers=TIERS, tenant=tenants,
        tenants=TENANTS, source=Source(f"prompts and answers of {path.name}"),
    )  # fmt: skip
    return Prompts(requests, tuple(row.instruction for row in chosen), np.array([words(row.output) for row in chosen]))
