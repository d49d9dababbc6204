"""BibTeX: what reference managers export. Fields are read, macros are looked up, nothing is run."""

from __future__ import annotations

import re
import unicodedata

from assay.record.errors import BadInput
from assay.record.feed.entry import Entry, marked, numbered

_START = re.compile(r"@\s*([A-Za-z]+)\s*([{(])")
_FIELD = re.compile(r"\s*([A-Za-z][\w:.+/-]*)\s*=\s*")
_SKIP = re.compile(r"[^,\s{}()@=]+|\s+|.", re.DOTALL)
_BARE = re.compile(r"[^\s,#{}\"()=]+")
_ACCENT = re.compile(r"\\([`'^\"~=.]|[cvHukr](?![A-Za-z]))\s*\{?\\?([A-Za-z])\}?")
_COMBINING = {
    "`": "\u0300", "'": "\u0301", "^": "\u0302", "~": "\u0303", '"': "\u0308", "=": "\u0304", ".": "\u0307",
    "c": "\u0327", "v": "\u030c", "H": "\u030b", "u": "\u0306", "k": "\u0328", "r": "\u030a",
}  # fmt: skip
_LETTERS = {"ss": "ß", "o": "ø", "O": "Ø", "ae": "æ", "AE": "Æ", "oe": "œ", "aa": "å", "AA": "Å", "l": "ł", "L": "Ł"}


def read(text: str, name: str) -> list[Entry]:
    r"""The entries of a bibliography that have a title or an arXiv number.

    >>> read(r'@misc{x, title = {The {RcLLM} of G{\"o}del}, eprint = {2605.07443}, archivePrefix = {arXiv}}', "my.bib")
    [Entry(arxiv='2605.07443', title='The RcLLM of Gödel', summary='', published='')]
    """
    entries: list[Entry] = []
    macros: dict[str, str] = {}
    at = 0
    while start := _START.search(text, at):
        kind = start[1].lower()
        if kind in ("comment", "preamble"):
            at = start.end()
            continue
        fields, at = _fields(text, start.end(), start[2], macros, name, kind)
        if kind == "string":
            macros |= fields
        elif entry := _entry(fields):
            entries.append(entry)
    return entries


def _fields(
    text: str, at: int, opening: str, macros: dict[str, str], name: str, kind: str
) -> tuple[dict[str, str], int]:
    """The fields of one entry, and where it ends."""
    began, closing = at, "}" if opening == "{" else ")"
    fields: dict[str, str] = {}
    while at < len(text):
        if text[at] == closing:
            return fields, at + 1
        if field := _FIELD.match(text, at):
            value, at = _value(text, field.end(), macros)
            fields[field[1].lower()] = value
        elif text[at] == "@" and _START.match(text, at):
            break
        else:
            at = _SKIP.match(text, at).end()  # type: ignore[union-attr]  # the key, commas, what nobody understands
    line = text.count("\n", 0, began) + 1
    raise BadInput(f"{name}, line {line}: @{kind} is not closed with '{closing}'")


def _value(text: str, at: int, macros: dict[str, str]) -> tuple[str, int]:
    """Pieces in braces, in quotes, or named, joined by #."""
    pieces = []
    while at < len(text):
        if text[at] in '{"':
            end = _closed(text, at)
            pieces.append(text[at + 1 : end])
            at = end + 1
        elif bare := _BARE.match(text, at):
            pieces.append(macros.get(bare[0].lower(), bare[0]))
            at = bare.end()
        joined = re.compile(r"\s*#\s*").match(text, at)
        if joined is None:
            break
        at = joined.end()
    return "".join(pieces), at


def _closed(text: str, at: int) -> int:
    """Where the piece that opens at `at` closes; the text's end if it never does."""
    quoted, depth = text[at] == '"', 0
    for here in re.compile(r'\\.|[{}"]', re.DOTALL).finditer(text, at + 1):
        if here[0] == "{":
            depth += 1
        elif here[0] == "}":
            if depth == 0 and not quoted:
                return here.start()
            depth -= 1
        elif here[0] == '"' and quoted and depth <= 0:
            return here.start()
    return len(text)


def _entry(fields: dict[str, str]) -> Entry | None:
    about = (fields.get(name, "") for name in ("eprint", "doi", "url", "journal", "note", "howpublished", "volume"))
    eprint = fields.get("eprint", "").strip()
    number = numbered(eprint) or next((found[0] for text in about if (found := marked(text))), "")
    title = plain(fields.get("title", ""))
    if not number and not title:
        return None
    return Entry(number, title[:1000], plain(fields.get("abstract", ""))[:20_000], plain(fields.get("year", ""))[:40])


def plain(text: str) -> str:
    r"""LaTeX's spelling of a text without its commands.

    >>> plain(r"On \emph{S{\'\i}} and {\ss} \& 5\% of~Erd\H{o}s")
    'On Sí and ß & 5% of Erdős'
    """
    text = _ACCENT.sub(lambda m: unicodedata.normalize("NFC", m[2] + _COMBINING[m[1]]), text)
    text = re.sub(r"\\([A-Za-z]+)\s*", lambda m: _LETTERS.get(m[1], ""), text)
    text = re.sub(r"\\([^A-Za-z])", r"\1", text)
    return " ".join(re.sub(r"[{}]", "", text.replace("~", " ")).split())
