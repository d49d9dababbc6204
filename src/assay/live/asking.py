"""What an engine is asked: what the client asked, but for keys, the model behind an alias, and the engine's part."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from assay.live import api, multipart
from assay.live.engines import Engine

if TYPE_CHECKING:
    from assay.live.relay import Relay

_WITH_BODY = (b"POST", b"PUT", b"PATCH")


def message(relay: Relay, engine: Engine) -> bytes:
    """The request as it goes to an engine."""
    head, body = relay.exchange.head, relay.exchange.body
    lines, more = head.kept, []
    if relay.gateway.keys or engine.key:  # the client's key is for the gateway, not for engines
        lines = [line for line in lines if not line[:14].lower().startswith((b"authorization:", b"x-api-key:"))]
        if engine.key:
            more.append(b"authorization: Bearer " + engine.key)
    given = head.fields.get(b"x-request-id")
    if given != relay.name:
        more.append(b"x-request-id: " + relay.name)
        if given is not None:
            lines = [line for line in lines if line[:13].lower() != b"x-request-id:"]
    first = b"%b %b%b%b" % (head.method, engine.address.prefix, head.target, engine.host)
    if not relay.names and not relay.stage:
        if body or head.method in _WITH_BODY:
            more.append(b"content-length: %d" % len(body))
        return b"\r\n".join([first, *lines, *more, b"", body])
    pieces = _edited(relay, body, engine)
    more.append(b"content-length: %d" % sum(map(len, pieces)))
    return b"".join([b"\r\n".join([first, *lines, *more, b"", b""]), *pieces])  # of megabytes one copy is enough


def _edited(relay: Relay, body: bytes, engine: Engine) -> list[bytes | memoryview]:
    """What an engine is asked where that is not what the client asked, in pieces; of what is large, little is read."""
    kind, short = relay.exchange.head.fields.get(b"content-type", b""), relay.short
    if kind[:9].lower() == b"multipart":
        return multipart.edited(body, kind, relay.request.model)
    if short is not None and short.many and not relay.stage:
        return api.renamed(body, relay.request.model)
    changes: dict[str, Any] = {"model": relay.request.model} if relay.names else {}
    if relay.stage == "prefill" and not engine.bootstrap:
        edit = partial(api.prefill, changes=changes)
    else:
        edit = partial(api.edited, changes=changes | (relay.transfer or {}))
    return [edit(body)] if short is None else short.edited(body, edit)
