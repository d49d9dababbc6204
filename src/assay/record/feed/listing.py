"""Listings as text: what a browser copies or a mail brings, and what is left of a feed whose tags were stripped."""

from __future__ import annotations

import re

from assay.record.feed.entry import NUMBER, Entry, distinct, marked, numbered

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
# id, title, updated, summary, published: in this order the API writes them. A link inside a summary is passed over with
# the summary; one in a comment finds no title, because a title holds no link.
_STRIPPED = re.compile(
    rf"arxiv\.org/abs/(?P<number>{NUMBER})(?:v\d{{2}}(?=\s)|v\d)?\s*(?P<title>(?:(?!arxiv\.org/)[^\0]){{1,600}}?)\s*"
    rf"{_TIME}\s*(?P<summary>[^\0]{{0,20000}}?)\s*(?P<published>{_TIME})"
)
_NUMBERED = re.compile(rf"^\W*(?:\[?\d+\]?\W*)?arxiv:\s?({NUMBER})(?:v\d+)?(?![\d.])", re.IGNORECASE)
_DATED = re.compile(r"^[a-z-]+(?:\.[A-Za-z-]{2,})? \d{4}-\d\d-\d\d\b")
_LABEL = re.compile(
    r"^(Authors?|Comments?|Subjects?|Categories|Journal[- ]ref|Report[- ]no|MSC[- ]class|ACM[- ]class|DOI|Date|License"
    r"|Related DOI|Submitted|Journal reference|Replaced|Cite as)\b.{0,12}?:",
    re.IGNORECASE,
)
_TITLE = re.compile(r"^(?P<indent>\s*)Title:\s*(?P<title>.*)$", re.IGNORECASE)
_ABSTRACT = re.compile(r"^(?:abstract\b.{0,20}|figure from the paper\b.{0,20})$", re.IGNORECASE)


def read(text: str) -> tuple[str, list[Entry]]:
    """The format of a text and the papers it names.

    >>> read("# to read\\n2606.06381v1, arXiv:2603.15202\\n")[0]
    'list of arXiv numbers'
    >>> read("arXiv:2606.06381 [pdf, html]\\nTitle: Discrete Incremental Voting\\nAuthors: A. Author\\n")[1][0].title
    'Discrete Incremental Voting'
    """
    for name, reader in _READERS.items():
        if found := distinct(reader(text)):
            return name, found
    return "text", []


def _numbers(text: str) -> list[Entry]:
    """Nothing but arXiv numbers or links, in any layout, with comments."""
    lines = [line.partition("#")[0].partition("%")[0] for line in text.splitlines()]
    found = [numbered(word) for line in lines for word in re.split(r"[\s,;]+", line) if word]
    return [Entry(number) for number in found] if all(found) else []


def _stripped(text: str) -> list[Entry]:
    """Atom of arXiv's API without its tags, with or without a space where they were."""
    return [
        Entry(m["number"], " ".join(m["title"].split()), " ".join(m["summary"].split()), m["published"])
        for m in _STRIPPED.finditer(text)
    ]


def _labelled(text: str) -> list[Entry]:
    """Lines that begin with arXiv:NUMBER, each followed by `Title: …`, or by a title above `Authors: …`."""
    entries, number, chunk = [], "", list[str]()
    for line in [*text.splitlines(), "arXiv:0000.00000"]:
        if begins := _NUMBERED.match(line):
            if number:
                entries.append(_described(number, chunk))
            number, chunk = begins[1], []
        else:
            chunk.append(line)
    return entries


def _described(number: str, lines: list[str]) -> Entry:
    title, rest = "", [line for line in lines if line.strip()]
    for at, line in enumerate(rest):
        if labelled := _TITLE.match(line):
            after = at + 1
            while after < len(rest) and len(rest[after]) - len(rest[after].lstrip()) > len(labelled["indent"]):
                after += 1  # a mail wraps a long title and indents what is left of it
            title = " ".join([labelled["title"], *rest[at + 1 : after]])
            rest = rest[after:]
            break
        if at and re.match(r"\s*Authors?:", line):
            title, rest = rest[at - 1], rest[at:]
            break
    told = " ".join(line.strip() for line in rest if not _LABEL.match(line.strip()))
    return Entry(number, " ".join(title.split())[:1000], " ".join(told.split())[:20_000] if title else "")


def _dated(text: str) -> list[Entry]:
    """Blocks that begin with a category and a date and carry no number: a headline, the title, a line, the abstract."""
    entries, published, chunk = [], "", list[str]()
    for line in [*text.splitlines(), "end 0000-00-00"]:
        if not _DATED.match(line.strip()):
            chunk.append(line.strip())
            continue
        if published:
            lines = [line for line in chunk if len(line) > 3]
            head = next((at for at, line in enumerate(lines) if _ABSTRACT.match(line)), len(lines))
            if head:
                summary = max(lines[head:], key=len, default="")
                entries.append(Entry("", lines[1 if head > 2 else 0], summary[:20_000], published))
        published, chunk = line.split()[1], []
    return entries


def _mentioned(text: str) -> list[Entry]:
    return [Entry(number) for number in marked(text)]


_READERS = {
    "list of arXiv numbers": _numbers,
    "Atom without its tags": _stripped,
    "arXiv listing as text": _labelled,
    "dated listing as text": _dated,
    "text that mentions papers": _mentioned,
}
