"""An edge list, line by line: the first two fields of what is no comment; words in the first line are a header."""

from __future__ import annotations

import re


def pairs(text: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    first = True
    for line in text.splitlines():
        fields = re.split(r"[\s,;]+", line.strip())
        if not line.strip() or line.strip()[0] in "#%":
            continue
        if fields[0].isdigit():
            found.append((int(fields[0]), int(fields[1])))
        else:
            assert first, line
        first = False
    return found
