"""Read an arXiv API answer (Atom) and say what of it the record has, and how close the rest is to a room.

The answer comes from outside: any DOCTYPE (and so every entity trick) is refused, and depth, size and the length of a
text are bounded while parsing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO
from xml.parsers import expat

from assay.record.errors import BadInput
from assay.record.types import ROOMS, Paper

ATOM = "http://www.w3.org/2005/Atom"
MAX_BYTES = 64 << 20
MAX_TEXT = 100_000
MAX_DEPTH = 32
_FIELDS = ("id", "title", "summary", "published")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an arXiv feed."""

    arxiv: str
    title: str
    summary: str
    published: str


@dataclass(frozen=True, slots=True)
class Match:
    """An entry beside the record: the paper it is, or the room it is closest to (0..1)."""

    entry: Entry
    key: str | None
    room: str
    closeness: float


def read(stream: BinaryIO, name: str) -> list[Entry]:
    """The entries of an Atom answer.

    Raises BadInput, in one line, for XML that is hostile, huge, truncated, or not an arXiv answer.
    """
    reader = _Reader(name)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = reader.doctype
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    total = 0
    try:
        while chunk := stream.read(1 << 16):
            total += len(chunk)
            if total > MAX_BYTES:
                raise BadInput(f"{name}: larger than {MAX_BYTES >> 20} MiB; ask the API for fewer results")
            parser.Parse(chunk, False)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        what = "the file is empty" if total == 0 else f"not well-formed or cut short: {reason}"
        raise BadInput(f"{name}, line {error.lineno}: {what}; expected the arXiv API's Atom XML") from error
    except (LookupError, ValueError) as error:  # Python's own answer to an encoding it does not know
        raise BadInput(f"{name}: {error}; expected the arXiv API's Atom XML in UTF-8") from error
    return reader.entries


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: list[Entry] = []
        self._path: list[str] = []
        self._entry: dict[str, list[str]] | None = None
        self._length = 0

    def doctype(self, *_: object) -> None:
        raise BadInput(f"{self.name}: it declares a DOCTYPE, which an arXiv answer never does; refused")

    def start(self, tag: str, _: Mapping[str, str]) -> None:
        if not self._path and tag != f"{ATOM} feed":
            raise BadInput(f"{self.name}: not an Atom feed (it starts with <{tag.split()[-1][:40]}>)")
        if len(self._path) >= MAX_DEPTH:
            raise BadInput(f"{self.name}: elements nested deeper than {MAX_DEPTH}; refused")
        self._path.append(tag)
        if self._path == [f"{ATOM} feed", f"{ATOM} entry"]:
            self._entry = {field: [] for field in _FIELDS}
        self._length = 0

    def text(self, data: str) -> None:
        if self._entry is None or len(self._path) != 3:
            return
        namespace, _, field = self._path[-1].partition(" ")
        if namespace == ATOM and field in self._entry:
            self._length += len(data)
            if self._length > MAX_TEXT:
                raise BadInput(f"{self.name}: a <{field}> longer than {MAX_TEXT:,} characters; refused")
            self._entry[field].append(data)

    def end(self, tag: str) -> None:
        self._path.pop()
        if self._entry is None or len(self._path) != 1:
            return
        fields = {field: " ".join("".join(parts).split()) for field, parts in self._entry.items()}
        self._entry = None
        if "/api/errors" in fields["id"]:
            raise BadInput(f"{self.name}: arXiv answered with an error: {fields['summary'][:200]}")
        found = re.search(r"abs/([a-z-]+(?:\.[A-Z]{2})?/\d{7}|\d{4}\.\d{4,5})(?:v\d+)?$", fields["id"])
        if found is None or not fields["title"]:
            raise BadInput(f"{self.name}: entry {len(self.entries) + 1} has no arXiv id or no title")
        self.entries.append(Entry(found[1], fields["title"], fields["summary"], fields["published"]))


def match(entries: Iterable[Entry], papers: Iterable[Paper]) -> list[Match]:
    """Each entry beside the record; those it has first, then the rest by closeness to a room.

    Closeness is the cosine between the entry's words and a room's, rare words weighing more.
    """
    known = list(papers)
    by_id = {p.arxiv: p for p in known if p.arxiv}
    by_title = {_plain(p.title): p for p in known}
    rooms = _room_words(known)
    spread = Counter(word for words in rooms.values() for word in words)
    weight = {word: math.log(1 + len(rooms) / count) for word, count in spread.items()}
    matches = []
    for entry in entries:
        paper = by_id.get(entry.arxiv) or by_title.get(_plain(entry.title))
        words = Counter(_words(f"{entry.title} {entry.title} {entry.summary}"))
        closeness = {room: _cosine(words, rooms[room], weight) for room in rooms}
        room = paper.room if paper else max(closeness, key=lambda r: closeness[r])
        matches.append(Match(entry, paper.key if paper else None, room, round(closeness[room], 4)))
    return sorted(matches, key=lambda m: (m.key is None, -m.closeness))


def as_toml(found: Iterable[Match], taken: Iterable[str]) -> list[str]:
    """Entries of `papers.toml`, ready to paste; the `line` and the claims are for a person to write."""
    keys = set(taken)
    entries = []
    for each in found:
        key = new_key(each.entry.title, keys)
        keys.add(key)
        entries.append(
            "[[paper]]\n"
            f"key = {_quote(key)}\n"
            f"room = {_quote(each.room)}\n"
            f"title = {_quote(each.entry.title)}\n"
            f"arxiv = {_quote(each.entry.arxiv)}\n"
            'line = "To be written: what the mechanism does, in one sentence of your own."\n'
            "claims = []\n"
        )
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


def _plain(title: str) -> str:
    return "".join(c for c in title.lower() if c.isalnum())


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
