"""Web pages that may ask: browsers let a page of another origin read an answer only if its head says so (CORS).

>>> origins = Origins(("https://chat.example",))
>>> origins.lines(b"https://chat.example")[0]
b'access-control-allow-origin: https://chat.example'
>>> origins.lines(b"https://other.example")
()
"""

from __future__ import annotations

from assay.live.server import Exchange

_VARY = b"vary: origin"
_SHOWN = b"access-control-expose-headers: x-request-id, x-assay-engine, retry-after"
_METHODS = b"access-control-allow-methods: GET, HEAD, POST, PUT, PATCH, DELETE"
_ANY = b"access-control-allow-headers: authorization, content-type, x-api-key, x-request-id"
_KEPT = b"access-control-max-age: 600"  # seconds


class Origins:
    """The origins that the settings name; `*` stands for all of them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = {name.rstrip("/").encode() for name in names}

    def lines(self, origin: bytes) -> tuple[bytes, ...]:
        """What an answer to a page of this origin says; nothing where the page may not read it."""
        if origin not in self._names and b"*" not in self._names:
            return ()
        return (b"access-control-allow-origin: " + origin, _VARY, _SHOWN)

    def preflight(self, exchange: Exchange) -> bool:
        """Answer a browser that asks whether it may ask; False where it does not."""
        fields = exchange.head.fields
        if exchange.head.method != b"OPTIONS" or b"access-control-request-method" not in fields:
            return False
        wanted = fields.get(b"access-control-request-headers")
        headers = _ANY if wanted is None else b"access-control-allow-headers: " + wanted
        exchange.reply(204, [_METHODS, headers, _KEPT], b"")
        return True
