"""A paper as a listing names it, and arXiv's numbers in the spellings people use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

NUMBER = r"(?:\d{4}\.\d{4,5}|[a-z-]+(?:\.[A-Z]{2})?/\d{7})"
# What says that the digits after it are arXiv's: a link, the prefix of a citation, a DOI, a feed's identifier.
MARK = r"(?:arxiv\.org/(?:abs|pdf|html)/|arxiv\.org:|10\.48550/arxiv\.|arxiv:\s{0,3})"
_MARKED = re.compile(f"(?i:{MARK})({NUMBER})(?!\\d)")
_ALONE = re.compile(f"({NUMBER})(?:v\\d{{1,3}})?")


@dataclass(frozen=True, slots=True)
class Entry:
    """A paper of a listing; whatever the listing does not tell is empty."""

    arxiv: str
    title: str = ""
    summary: str = ""
    published: str = ""


def marked(text: str) -> list[str]:
    """The arXiv numbers that are marked as such, in order, without their versions.

    >>> marked("see arXiv:2606.06381v2 and https://arxiv.org/pdf/cs.DC/0601001; 2606.06381 alone may be anything")
    ['2606.06381', 'cs.DC/0601001']
    """
    return _MARKED.findall(text)


def numbered(word: str) -> str:
    """The arXiv number that a word is, alone or marked; empty if it is none.

    >>> numbered("2606.06381v2"), numbered("https://arxiv.org/abs/2606.06381"), numbered("3.1415")
    ('2606.06381', '2606.06381', '')
    """
    if alone := _ALONE.fullmatch(word):
        return alone[1]
    return next(iter(marked(word)), "")


@lru_cache(maxsize=4096)
def folded(title: str) -> str:
    """A title by which listings agree: letters and digits only, without case, accents and hyphens.

    >>> folded("On-SSD Vector Search: a Révision") == folded("On SSD vector search – A revision")
    True
    """
    import unicodedata

    return "".join(c for c in unicodedata.normalize("NFKD", title).lower() if c.isalnum())


def distinct(entries: Iterable[Entry]) -> list[Entry]:
    """Each paper once, by title or, where a title is missing, by number; the entry that tells more stays.

    Two versions of one number under different titles stay two: the record may hold both.

    >>> distinct([Entry("2606.06381"), Entry("2606.06381", "DIV"), Entry("", "div")])
    [Entry(arxiv='2606.06381', title='DIV', summary='', published='')]
    """
    kept: list[Entry] = []
    by_title: dict[str, int] = {}
    by_number: dict[str, list[int]] = {}
    for entry in entries:
        title = folded(entry.title)
        same = by_number.setdefault(entry.arxiv, []) if entry.arxiv else []
        at = by_title.get(title) if title else next(iter(same), None)
        if at is not None and entry.arxiv and kept[at].arxiv not in ("", entry.arxiv):
            at = None  # another paper with the same title
        if at is None:
            at = next((other for other in same if not kept[other].title), None)
        if at is None:
            at = len(kept)
            kept.append(entry)
        elif (bool(entry.title), bool(entry.arxiv)) > (bool(kept[at].title), bool(kept[at].arxiv)):
            kept[at] = entry
        if title:
            by_title[title] = at
        if entry.arxiv and at not in same:
            same.append(at)
    return kept
