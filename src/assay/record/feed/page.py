"""A saved page of arXiv's, or any page that links to papers, as the text a browser would copy. Nothing in it runs.

The page is cut at every `<`, each piece is looked at once: the library's parser takes quadratic time over tags that
are never closed.
"""

from __future__ import annotations

import html
import re

from assay.record.feed import listing
from assay.record.feed.entry import Entry, marked

_INLINE = frozenset(
    "a abbr b bdi bdo cite code em font i kbd mark q s small span strong sub sup td th u var wbr".split()
)
_SILENT = ("script", "style", "template", "noscript", "svg", "math")
_TAG = re.compile(r"(/?)([A-Za-z][A-Za-z0-9-]*)")
_HREF = re.compile(r"\bhref\s*=\s*(?:\"([^\"]*)|'([^']*)|([^\s\"'>]+))", re.IGNORECASE)


def read(text: str) -> tuple[str, list[Entry]]:
    """The kind of page and its papers: its text read as a listing, else the papers its links lead to.

    >>> read("<dl><dt><a href='/abs/2606.06381'>arXiv:2606.06381</a></dt><dd>Title: Voting</dd></dl>")[1][0].title
    'Voting'
    """
    reader = _Text()
    before, *pieces = text.split("<")
    reader.say(before)
    for piece in pieces:
        reader.take(piece)
    lines = (" ".join(line.split()) for line in "".join(reader.parts).split("\n"))
    name, entries = listing.read("\n".join(line for line in lines if line))
    if not entries:
        return "page with links", [Entry(number) for number in reader.linked]
    return name.replace("as text", "as a page").replace("text that", "page that"), entries


class _Text:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.linked: list[str] = []
        self._until = ""  # what ends a stretch that says nothing: a comment, a script
        self._link: tuple[str, int] | None = None  # where an open link leads, and how much text there was before it

    def take(self, piece: str) -> None:
        """What stands between two `<`: a tag and the text after it."""
        if not self._until and piece.startswith("!--"):
            self._until = "-->"
        if self._until:
            at = piece.lower().find(self._until)
            if at < 0 or (self._until != "-->" and at > 0):
                return
            piece = piece[at:] if self._until != "-->" else ">" + piece[at + 3 :]
            self._until = ""
        inside, _, after = piece.partition(">")
        if tag := _TAG.match(inside):
            name = tag[2].lower()
            self.parts.append(" " if name in _INLINE else "\n")
            if name == "a":
                self._ends() if tag[1] else self._begins(inside)
            elif name in _SILENT and not tag[1] and not inside.endswith("/"):
                self._until = f"/{name}"
                return
        self.say(after)

    def say(self, text: str) -> None:
        """Add text; a character's number of more digits than there are characters is none."""
        self.parts.append(html.unescape(re.sub(r"&#x?[0-9a-fA-F]{8,};?", " ", text)).replace("\n", " "))

    def _begins(self, tag: str) -> None:
        found = _HREF.search(tag)
        address = next(filter(None, found.groups()), "") if found else ""
        numbers = marked(f"arxiv.org{address}" if address.startswith("/abs/") else address)
        self.linked += numbers
        self._link = (numbers[0], len(self.parts)) if numbers else None

    def _ends(self) -> None:
        if self._link is None:
            return
        number, start = self._link
        said = " ".join("".join(self.parts[start:]).split())
        if len(said) > 15 and " " in said and not marked(said):  # the link's text is the title
            self.parts[start:] = [f"\narXiv:{number}\nTitle: {said}\n"]
        self._link = None
