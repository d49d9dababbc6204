"""From a form to a command line: the words that a process gets are the words that the page shows.

A dropped file is named by its address and becomes its path. Other words may name neither files nor code: what is typed
into a page must not open what lies on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from assay.record.errors import BadInput
from assay.web import files
from assay.web.options import Option

FILE = "file:"
_PLAIN = re.compile(r"[^/\\~\x00-\x1f]*")


def words(fields: Sequence[Option], given: Mapping[str, Sequence[str]]) -> list[str]:
    """The options that were given, as on the command line; what is as by default is left out.

    >>> rate = Option("rate", "--rate", "text", default=["x1"])
    >>> words([rate], {"rate": ["x2"]}), words([rate], {"rate": ["x1"]})
    (['--rate', 'x2'], [])
    """
    known = {field.name: field for field in fields}
    if strange := set(given) - set(known):
        raise BadInput(f"there is no option '{min(strange)}' here; there are {', '.join(known)}")
    found: list[str] = []
    for field in fields:
        values = [value for value in given.get(field.name, ()) if value != ""]
        if field.kind == "flag":
            found += [field.word] if values and not field.default else []
        elif values and values != list(field.default):
            for value in values if field.multiple else values[:1]:
                found += [field.word, _value(field, value)] if field.word else [_value(field, value)]
        elif field.required and not values:
            raise BadInput(f"{field.word or 'a file'} is needed{': ' if field.help else ''}{field.help}")
    return found


def _value(field: Option, value: str) -> str:
    if value.startswith(FILE):
        return str(files.find(value.removeprefix(FILE)))
    if field.kind == "file":
        raise BadInput(f"{field.word or 'it'} takes a file: drop one")
    if not _PLAIN.fullmatch(value) or ".." in value or re.match(r"-+[A-Za-z]", value):
        raise BadInput(f"{field.word} '{value[:40]}': a word is expected, not the name of a file here")
    return value
