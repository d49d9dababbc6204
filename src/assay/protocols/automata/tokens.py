"""The words of a `.ta` file, each with its line and column."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from assay.record.errors import BadInput

LONGEST_NUMBER = 9  # digits

_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*)|(?P<open>/\*)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9]+)"
    r"|(?P<sign>:=|->|<>|\[\]|&&|\|\||==|!=|>=|<=|[-+*/()\[\]{}<>!,;:'])"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word, number or sign and where it stands; the end of the file is the empty word."""

    kind: str
    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class Source:
    """A text with a name, for errors that say where."""

    name: str
    text: str

    def error(self, offset: int, message: str) -> BadInput:
        """The error at an offset: name:line:column and what would be right."""
        before = self.text[:offset]
        line, column = before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
        return BadInput(f"{self.name}:{line}:{column}: {message}")

    def tokens(self) -> Iterator[Token]:
        """The words in their order, then the end."""
        position = 0
        while position < len(self.text):
            found = _TOKEN.match(self.text, position)
            if found is None:
                raise self.error(position, f"unexpected character {self.text[position]!r}")
            kind = str(found.lastgroup)
            if kind == "open":
                end = self.text.find("*/", found.end())
                if end < 0:
                    raise self.error(position, "this comment is never closed with */")
                position = end + 2
                continue
            if kind == "number" and len(found.group()) > LONGEST_NUMBER:
                raise self.error(position, f"a number of more than {LONGEST_NUMBER} digits")
            if kind != "space":
                yield Token(kind, found.group(), position)
            position = found.end()
        yield Token("end", "", len(self.text))
