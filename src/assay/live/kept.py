"""What engines keep under a name that they made up: answers that a later request goes on from, files, batches.

Only the engine that made it has it, so whoever asks for it goes there, whatever the policy would say. Which engine that
is was seen in its answer. What nobody here has seen, because it is older than this process, is looked for: one engine
after the other is asked, until one does not answer that there is no such thing.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from assay.live.engines import Engine

_PATH = re.compile(rb"/v1/(?:responses|batches|files)/([^/]+)(?:/\w+)?")
_MAKES = re.compile(rb"/v1/(?:responses|batches|files)(?:/.*)?")
_STREAMED = re.compile(rb'"response": ?\{[^{}\[\]]*?"id": ?"([!#-\[\]-~]{1,200})"')
_MOST = 100_000  # names that are remembered, the latest
_LONGEST = 200  # letters of one
_READ = 1 << 20  # bytes of an answer


class _Names(msgspec.Struct, gc=False):
    """What an answer may be called, and what it may name."""

    id: str = ""
    output_file_id: str | None = None
    error_file_id: str | None = None


class _Asked(msgspec.Struct, gc=False):
    previous_response_id: str | None = None
    input_file_id: str | None = None


_NAMES, _ASKED = msgspec.json.Decoder(_Names), msgspec.json.Decoder(_Asked)


@dataclass(frozen=True, slots=True)
class Place:
    """Who keeps a thing, and for whom."""

    engine: Engine
    tenant: str


class Kept:
    """The places of what engines keep."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def find(self, name: str) -> Place | None:
        """Where it is; None where that is not known, or its engine is gone."""
        place = self._places.get(name)
        return place if place is not None and place.engine.number >= 0 else None

    def remember(self, name: str, engine: Engine, tenant: str) -> None:
        """It is there."""
        if name and len(name) <= _LONGEST:
            self._places[name] = Place(engine, tenant)
            self._places.move_to_end(name)
            if len(self._places) > _MOST:
                self._places.popitem(last=False)

    def answered(self, body: bytes, engine: Engine, tenant: str) -> None:
        """An engine has answered about something that it keeps."""
        if len(body) > _READ:
            return
        try:
            names = _NAMES.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        for name in (names.id, names.output_file_id, names.error_file_id):
            self.remember(name or "", engine, tenant)

    def streams(self, data: bytes, engine: Engine, tenant: str) -> bool:
        """Whether the first events of a response say what it is called."""
        found = _STREAMED.search(data)
        if found is not None:
            self.remember(found[1].decode(), engine, tenant)
        return found is not None


def concerns(path: bytes) -> bool:
    """Whether what is asked there may be kept."""
    return _MAKES.fullmatch(path) is not None


def asked(path: bytes, body: bytes) -> str:
    """The name of what a request asks for, or goes on from; empty where there is none.

    >>> asked(b"/v1/responses/resp_1/cancel", b""), asked(b"/v1/responses", b'{"previous_response_id": "resp_0"}')
    ('resp_1', 'resp_0')
    >>> asked(b"/v1/chat/completions", b"{}")
    ''
    """
    if (found := _PATH.fullmatch(path)) is not None:
        return found[1].decode("latin-1")
    if b'_id"' not in body or not concerns(path):
        return ""
    try:
        said = _ASKED.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return said.previous_response_id or said.input_file_id or ""
