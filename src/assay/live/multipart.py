"""Forms, as clients send audio: which model they ask for, and the same with another one.

>>> form = b'--x\\r\\ncontent-disposition: form-data; name="model"\\r\\n\\r\\nwhisper\\r\\n--x--\\r\\n'
>>> model(form, b"multipart/form-data; boundary=x")
'whisper'
>>> b"whisper-large" in b"".join(edited(form, b"multipart/form-data; boundary=x", "whisper-large"))
True
"""

from __future__ import annotations

import re

_BOUNDARY = re.compile(rb'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(
    rb'content-disposition:\s*form-data\s*;(?:[^\r\n]*;)?\s*name="?model"?\s*(?:;|\r\n|\Z)', re.IGNORECASE
)
_PARTS = 100  # that are looked at
_HEAD = 4096  # bytes of a part's head


def model(body: bytes, kind: bytes) -> str:
    """The model that a form asks for; empty where it names none, or is no form."""
    place = _value(body, kind)
    return "" if place is None else body[place[0] : place[1]].decode(errors="replace")


def edited(body: bytes, kind: bytes, name: str) -> list[bytes | memoryview]:
    """The form with another model, in pieces; all else as it was sent."""
    place, whole = _value(body, kind), memoryview(body)
    return [whole] if place is None else [whole[: place[0]], name.encode(), whole[place[1] :]]


def _value(body: bytes, kind: bytes) -> tuple[int, int] | None:
    """Where the model's name begins and ends."""
    found = _BOUNDARY.match(kind)
    if found is None:
        return None
    mark = b"--" + (found[1] or found[2])
    at = 0 if body.startswith(mark) else body.find(b"\r\n" + mark) + 2
    for _ in range(_PARTS):
        start = at + len(mark) + 2
        head = body.find(b"\r\n\r\n", at, start + _HEAD)
        if at < 0 or head < 0 or body[start - 2 : start] != b"\r\n":
            return None
        end = body.find(b"\r\n" + mark, head + 2)
        if end < 0:
            return None
        if _NAME.search(body, start, head + 2):
            return head + 4, max(end, head + 4)
        at = end + 2
    return None
