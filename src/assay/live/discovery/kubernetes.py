"""Engines from Kubernetes: the ready endpoints of the EndpointSlices that have a label.

The API server is asked for all of them once, then for every change from there on; where it has forgotten that place
(410), for all of them again. A pod that is not ready, or about to end, is no engine.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from assay.live.discovery import Found, engine
from assay.live.http1 import ResponseHead
from assay.live.settings import DiscoverSettings, EngineSettings
from assay.live.upstream import Address, Pool, Upstream

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_WATCH = 300  # seconds that a watch lasts; then it begins anew from where it was
_SILENT = _WATCH + 30.0
_PATIENCE = 10.0  # seconds for a list, and for the beginning of a watch
_LARGEST = 64 << 20  # bytes of a list, or of one change


class GoneError(OSError):
    """The API server no longer knows the place from which changes were asked for."""


async def slices(label: str, settings: DiscoverSettings) -> AsyncIterator[Found]:
    """The engines behind a label (`app=vllm`, or `namespace/app=vllm`), whenever they change."""
    space, _, selector = label.rpartition("/") if "/" in label.partition("=")[0] else ("", "", label)
    path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(space or _namespace())}/endpointslices"
    query = f"?labelSelector={quote(selector)}"
    while True:
        api = Api(settings)
        try:
            listed = msgspec.json.decode(b"".join([piece async for piece in api.get(path + query, _PATIENCE)]))
            known = {item["metadata"]["name"]: _engines(item, settings) for item in listed.get("items") or ()}
            place = listed["metadata"]["resourceVersion"]
            yield _all(known)
            while True:
                more = f"&watch=1&allowWatchBookmarks=true&timeoutSeconds={_WATCH}&resourceVersion={quote(place)}"
                async for line in api.lines(path + query + more):
                    place = change(msgspec.json.decode(line), known, settings) or place
                    yield _all(known)
        except GoneError:
            continue
        finally:
            api.close()


def change(event: dict[str, Any], known: dict[str, Found], settings: DiscoverSettings) -> str:
    """Do as a watch's event says; the place after it."""
    item = event["object"]
    if event["type"] == "ERROR":
        if item.get("code") == 410:
            raise GoneError(item.get("message", "gone"))
        raise OSError(f"the API server says: {item.get('message', item)}")
    if event["type"] == "DELETED":
        known.pop(item["metadata"]["name"], None)
    elif event["type"] in ("ADDED", "MODIFIED"):
        known[item["metadata"]["name"]] = _engines(item, settings)
    place: str = item["metadata"]["resourceVersion"]
    return place


def _engines(item: dict[str, Any], settings: DiscoverSettings) -> Found:
    """The ready endpoints of a slice, at the port that the settings name, or its first."""
    ports = [port for port in item.get("ports") or () if settings.port in ("", port.get("name"), str(port.get("port")))]
    if not ports or not ports[0].get("port"):
        return ()
    found = []
    for endpoint in item.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        if conditions.get("ready") is False or conditions.get("terminating"):
            continue
        name = (endpoint.get("targetRef") or {}).get("name", "")
        found += [engine(settings, host, ports[0]["port"], name) for host in endpoint["addresses"][:1]]
    return tuple(found)


def _all(known: dict[str, Found]) -> Found:
    """Each engine once: while slices are rearranged, an endpoint may be in two."""
    found: dict[str, EngineSettings] = {e.url: e for name in sorted(known) for e in known[name]}
    return tuple(found.values())


def _namespace() -> str:
    try:
        return (ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return "default"


class Api:
    """The API server, asked as this pod's service account; its token changes, so it is read for each request."""

    def __init__(self, settings: DiscoverSettings) -> None:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not settings.at and not host:
            raise OSError("this is no pod (KUBERNETES_SERVICE_HOST is not set); say where the API server is with 'at'")
        address = Address.of(settings.at or f"https://{f'[{host}]' if ':' in host else host}:{port}")
        trusted = ACCOUNT / "ca.crt"
        tls = ssl.create_default_context(cafile=str(trusted) if trusted.exists() else None) if address.tls else None
        self._pool = Pool(address, tls, _PATIENCE)
        self._token = Path(settings.token) if settings.token else ACCOUNT / "token"

    def close(self) -> None:
        """Ask no more."""
        self._pool.close()

    async def get(self, path: str, patience: float) -> AsyncIterator[bytes]:
        """The pieces of an answer; OSError where it is an error, or nothing comes for so long."""
        try:
            token = self._token.read_text().strip()
        except OSError:
            token = ""
        key = f"authorization: Bearer {token}\r\n" if token else ""
        address = self._pool.address
        head = f"GET {address.prefix.decode()}{path} HTTP/1.1\r\nhost: {address.authority.decode()}\r\n{key}"
        asker = _Asker()
        self._pool.ask(asker, f"{head}accept: application/json\r\n\r\n".encode(), fresh=True)
        first = True
        try:
            while True:
                async with asyncio.timeout(_PATIENCE if first else patience):
                    piece = await asker.pieces.get()
                first = False
                if isinstance(piece, Exception):
                    raise piece
                if piece is None:
                    return
                yield piece
        finally:
            asker.drop()

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """The lines of an answer that goes on and on."""
        rest = b""
        async for piece in self.get(path, _SILENT):
            rest += piece
            if len(rest) > _LARGEST:
                raise OSError("the API server's event is too long")
            *whole, rest = rest.split(b"\n")
            for line in whole:
                if line.strip():
                    yield line


class _Asker:
    """Puts what an answer brings where a coroutine waits for it."""

    method = b"GET"

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._upstream: Upstream | None = None
        self._status = 0

    def drop(self) -> None:
        """It is of no interest any more."""
        if self._upstream is not None and self._upstream.asker is self:
            self._upstream.drop()

    def connected(self, upstream: Upstream) -> bool:
        """The API server is there."""
        self._upstream = upstream
        return True

    def unreachable(self, pool: Pool, why: str) -> None:
        """It is not."""
        self.pieces.put_nowait(OSError(f"{why} ({pool.address.url})"))

    def answered(self, head: ResponseHead) -> None:
        """The head: errors end it here."""
        self._status = head.status
        if head.status == 410:
            self.pieces.put_nowait(GoneError("gone"))
        elif head.status != 200:
            cure = "; its account needs a Role to list and watch endpointslices" if head.status in (401, 403) else ""
            self.pieces.put_nowait(OSError(f"the API server answers {head.line.decode('latin-1')}{cure}"))
        else:
            self.pieces.put_nowait(b"")  # it has begun

    def payload(self, data: bytes) -> None:
        """A piece."""
        if self._status == 200:
            self.pieces.put_nowait(data)

    def complete(self) -> None:
        """All of it."""
        self.pieces.put_nowait(None)

    def broken(self, why: str, stale: bool) -> None:
        """The connection failed."""
        self.pieces.put_nowait(OSError(why))
