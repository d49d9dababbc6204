"""What people have of papers (feeds, listings, bibliographies, numbers) beside the record: what it holds, what is new.

Whatever is read comes from outside: its size is bounded, its format is told by its content, and nothing in it runs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from assay.record.errors import BadInput
from assay.record.feed import bibtex, listing, page, xml_feed
from assay.record.feed.entry import Entry, distinct, folded
from assay.record.types import ROOMS, Paper

__all__ = ["MAX_BYTES", "Entry", "Listing", "Match", "as_toml", "distinct", "match", "new_key", "read"]

MAX_BYTES = 16 << 20
EXPECTED = "Atom, RSS, a saved listing as HTML or text, BibTeX, or arXiv numbers"
_PAGE = re.compile(r"<!doctype\s+html|<html[\s>]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Listing:
    """A file that names papers: what format it turned out to be, and each of its papers once."""

    name: str
    format: str
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Match:
    """An entry beside the record: the paper it is, or the room it is closest to (0..1)."""

    entry: Entry
    key: str | None
    room: str
    closeness: float


def read(stream: BinaryIO, name: str) -> Listing:
    """The papers of a feed, a listing, a bibliography or a list of numbers; its content tells which it is.

    Raises BadInput, in one line, for what is hostile, huge, cut short, or names no paper.
    """
    content = _bounded(stream, name)
    text = _decoded(content).lstrip("\ufeff")
    start = text.lstrip()[:2000]
    if not start:
        raise BadInput(f"{name}: the file is empty; expected {EXPECTED}")
    if start.startswith("<") and not _PAGE.search(start):
        kind, entries = xml_feed.read(content, name)
    elif start.startswith("<"):
        kind, entries = page.read(text)
    elif re.search(r"^\s*@\s*[A-Za-z]+\s*[{(]", text, re.MULTILINE):
        kind, entries = "BibTeX", bibtex.read(text, name)
    else:
        kind, entries = listing.read(text)
    if not entries:
        raise BadInput(f"{name}: no paper in it; expected {EXPECTED}")
    return Listing(name, kind, distinct(entries))


def _bounded(stream: BinaryIO, name: str) -> bytes:
    chunks, total = [], 0
    while chunk := stream.read(1 << 20):
        total += len(chunk)
        if total > MAX_BYTES:
            raise BadInput(f"{name}: larger than {MAX_BYTES >> 20} MiB; split it, or ask for fewer results")
        chunks.append(chunk)
    return b"".join(chunks)


def _decoded(content: bytes) -> str:
    """The text in the encoding it is in: UTF-16 says so at its start, and what is not UTF-8 is an old Windows file."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def match(entries: Iterable[Entry], papers: Iterable[Paper]) -> list[Match]:
    """Each entry beside the record; those it has first, then the rest by closeness to a room.

    A number decides before a title; where two papers of the record are versions of one number, the title does, and
    without one it means both. Closeness is the cosine between the entry's words and a room's, rare words weighing more.
    """
    known = list(papers)
    rooms = _room_words(known)
    spread = Counter(word for words in rooms.values() for word in words)
    weight = {word: math.log(1 + len(rooms) / count) for word, count in spread.items()}
    matches: dict[str, Match] = {}
    for entry in entries:
        words = Counter(_words(f"{entry.title} {entry.title} {entry.summary}"))
        closeness = {room: round(_cosine(words, rooms[room], weight), 4) for room in rooms}
        for paper in _held(entry, known):
            matches.setdefault(paper.key, Match(entry, paper.key, paper.room, closeness[paper.room]))
        if not _held(entry, known):
            room = max(closeness, key=lambda r: closeness[r])
            matches.setdefault(f"new {entry.arxiv or folded(entry.title)}", Match(entry, None, room, closeness[room]))
    return sorted(matches.values(), key=lambda m: (m.key is None, -m.closeness))


def _held(entry: Entry, papers: list[Paper]) -> list[Paper]:
    """The papers of the record that an entry is; most often one or none."""
    title = folded(entry.title)
    same = [paper for paper in papers if entry.arxiv and paper.arxiv == entry.arxiv]
    titled = [paper for paper in same or papers if title and folded(paper.title) == title]
    return titled or same


def as_toml(found: Iterable[Match], taken: Iterable[str]) -> list[str]:
    """Entries of `papers.toml`, ready to paste; the `line` and the claims are for a person to write.

    >>> print(as_toml([Match(Entry("2611.00001", "Yeast: a scheduler"), None, "serving", 0.2)], ["yeast"])[0])
    [[paper]]
    key = "yeast-2"
    room = "serving"
    title = "Yeast: a scheduler"
    arxiv = "2611.00001"
    line = "To be written: what the mechanism does, in one sentence of your own."
    claims = []
    <BLANKLINE>
    """
    keys = set(taken)
    entries = []
    for each in found:
        key = new_key(each.entry.title, keys)
        keys.add(key)
        lines = {
            "key": key,
            "room": each.room,
            "title": each.entry.title or "To be written: only the number is known.",
            "arxiv": each.entry.arxiv,
            "line": "To be written: what the mechanism does, in one sentence of your own.",
        }
        body = "".join(f"{name} = {_quote(value)}\n" for name, value in lines.items() if value)
        entries.append(f"[[paper]]\n{body}claims = []\n")
    return entries


def new_key(title: str, taken: set[str]) -> str:
    """A free key for a title: the system's name before the colon, or the first words.

    >>> new_key("RadiusFPS: Efficient Farthest Point Sampling", set())
    'radiusfps'
    >>> new_key("On the Similarity of Kernels", {"on-the-similarity"})
    'on-the-similarity-2'
    """
    head, colon, _ = title.partition(":")
    words = re.findall(r"[a-z0-9]+", _ascii(head).lower())
    short = words if colon and len(words) <= 3 else words[:3]
    base = "-".join(short) or "paper"
    return next(key for n in range(1, len(taken) + 2) if (key := base if n == 1 else f"{base}-{n}") not in taken)


def _ascii(text: str) -> str:
    import unicodedata

    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(c):04X}" if ord(c) < 32 or ord(c) == 127 else c for c in escaped) + '"'


def _words(text: str) -> list[str]:
    found = re.findall(r"[a-z][a-z0-9]{2,}", text.lower())
    return [word[:-1] if word.endswith("s") and len(word) > 4 else word for word in found if word not in _COMMON]


def _room_words(papers: Iterable[Paper]) -> dict[str, Counter[str]]:
    rooms: dict[str, Counter[str]] = {room: Counter() for room in ROOMS}
    for paper in papers:
        claims = " ".join(claim.text for claim in paper.claims)
        rooms[paper.room].update(_words(f"{paper.title} {paper.title} {paper.line} {claims}"))
    return rooms


def _cosine(a: Counter[str], b: Counter[str], weight: Mapping[str, float]) -> float:
    def norm(words: Counter[str]) -> float:
        return math.sqrt(sum((math.log1p(n) * weight.get(word, 0.0)) ** 2 for word, n in words.items()))

    shared = sum(math.log1p(n) * math.log1p(b[word]) * weight[word] ** 2 for word, n in a.items() if word in b)
    return shared / scale if (scale := norm(a) * norm(b)) else 0.0


_COMMON = frozenset(
    """the and for with that this from are can its our which into over both while than more under not but has have
    show shows paper present presents propose proposes approach method methods system systems using used use based
    new novel first two one across between these their such also via per each all any how when where what""".split()
)
