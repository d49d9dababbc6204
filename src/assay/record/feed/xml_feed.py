"""Atom and RSS, as arXiv's API and its feeds write them.

The answer comes from outside: any DOCTYPE (and so every entity trick) is refused, and depth and the length of a text
are bounded while parsing.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.parsers import expat

from assay.record.errors import BadInput
from assay.record.feed.entry import Entry, marked

MAX_TEXT = 100_000
MAX_DEPTH = 32
ROOTS = {"feed": "Atom", "rss": "RSS", "RDF": "RSS"}
# Whose words are whose: Atom's, RSS 2's, and RSS 1's.
_FIELDS = {
    "id": "id", "guid": "id", "link": "id", "title": "title", "summary": "summary", "description": "summary",
    "published": "published", "pubDate": "published", "date": "published",
}  # fmt: skip


def read(content: bytes, name: str) -> tuple[str, list[Entry]]:
    """The format and the entries of a feed.

    Raises BadInput, in one line, for XML that is hostile, cut short, or no feed.
    """
    reader = _Reader(name)
    try:
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = reader.doctype
        parser.StartElementHandler = reader.start
        parser.EndElementHandler = reader.end
        parser.CharacterDataHandler = reader.text
        parser.Parse(content, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise BadInput(f"{name}, line {error.lineno}: not well-formed or cut short: {reason}; save it again") from error
    except (LookupError, ValueError) as error:  # Python's own answer to an encoding it does not know
        raise BadInput(f"{name}: {error}; save it in UTF-8") from error
    return reader.format, reader.entries


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.format = ""
        self.entries: list[Entry] = []
        self._path: list[str] = []
        self._entry: dict[str, list[str]] | None = None
        self._depth = 0  # of the entry
        self._length = 0

    def doctype(self, *_: object) -> None:
        raise BadInput(f"{self.name}: it declares a DOCTYPE, which no feed of arXiv's does; refused")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        local = tag.rpartition(" ")[2]
        if not self._path and local not in ROOTS:
            raise BadInput(f"{self.name}: neither Atom nor RSS (it starts with <{local[:40]}>)")
        if len(self._path) >= MAX_DEPTH:
            raise BadInput(f"{self.name}: elements nested deeper than {MAX_DEPTH}; refused")
        self.format = self.format or ROOTS[local]
        self._path.append(local)
        if self._entry is None and local in ("entry", "item"):
            self._entry = {field: [] for field in _FIELDS.values()}
            self._depth = len(self._path)
        elif self._entry is not None and local == "link":  # Atom's links stand in an attribute
            self._entry["id"].append(f" {attributes.get('href', '')} ")
        self._length = 0

    def text(self, data: str) -> None:
        if self._entry is None or len(self._path) != self._depth + 1:
            return
        if field := _FIELDS.get(self._path[-1]):
            self._length += len(data)
            if self._length > MAX_TEXT:
                raise BadInput(f"{self.name}: a <{self._path[-1]}> longer than {MAX_TEXT:,} characters; refused")
            self._entry[field].append(data)

    def end(self, tag: str) -> None:
        local = self._path.pop()
        if self._entry is None:
            return
        if len(self._path) == self._depth and local in _FIELDS:
            self._entry[_FIELDS[local]].append(" ")
        if len(self._path) >= self._depth:
            return
        fields = {field: " ".join("".join(parts).split()) for field, parts in self._entry.items()}
        self._entry = None
        if "/api/errors" in fields["id"]:
            raise BadInput(f"{self.name}: arXiv answered with an error: {fields['summary'][:200]}")
        number = next(iter(marked(f"{fields['id']} {fields['title']}")), "")
        title = fields["title"].partition(" (arXiv:")[0]  # RSS 1 repeats the number behind the title
        if not number and not title:
            raise BadInput(f"{self.name}: entry {len(self.entries) + 1} has neither an arXiv number nor a title")
        self.entries.append(Entry(number, title, fields["summary"], fields["published"]))
