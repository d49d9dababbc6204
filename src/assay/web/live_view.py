"""What runs now: gateways and watched jobs, on this machine, as they tell it themselves.

The page cannot ask them: they are other origins. The server asks for it, only ever on loopback, and only what announced
itself or what the owner named: an address that another page put into a link is shown, not asked.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Set
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.live.announce import announced
from assay.record.errors import AssayError, BadInput
from assay.web import asked, frame
from assay.web.security import is_loopback

PATIENCE = 3.0  # seconds for an answer
LARGEST = 8 << 20  # bytes of one
MOST = 8  # looked at together


async def live(request: Request) -> Response:
    """The page; what it shows comes by itself."""
    given = {name: request.query_params.get(name, "") for name in ("gateway", "watch")}
    return frame.page("live.html", "Live", ("live.js",), given=given)


async def now(request: Request) -> Response:
    """What every gateway and every watched job says at this moment; POST names one that is to be looked at."""
    if request.method == "POST":
        return await _name(request)
    query, key = request.query_params, request.headers.get("x-gateway-key", "")
    named: set[tuple[str, str]] = request.app.state.places

    def told() -> dict[str, Any]:
        return {
            "gateways": _all("gateway", query.get("gateway", ""), named, lambda url: gateway(url, key)),
            "watches": _all("watch", query.get("watch", ""), named, watch),
        }

    return JSONResponse(await run_in_threadpool(told))


async def _name(request: Request) -> Response:
    place = asked.read(await frame.json_body(request), asked.Place)
    _local(place.url)
    request.app.state.places.add((place.kind, place.url))
    return JSONResponse(msgspec.to_builtins(place), 201)


def _all(kind: str, given: str, named: Set[tuple[str, str]], ask: Callable[[str], Any]) -> list[dict[str, Any]]:
    """What the place in the address says, or where there is none, all that announced themselves."""
    known = announced(kind)[:MOST]
    for url in [given] if given else known:
        _local(url)
    if given and given not in known and (kind, given) not in named:
        return [{"url": given, "error": "not asked: it stands in a link, and nobody here named it", "unnamed": True}]
    return [_heard(url, ask) for url in ([given] if given else known)]


def _local(url: str) -> tuple[str, int]:
    """Host and port of an address on this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        host, port = "", 0
    if not is_loopback(host) or parts.scheme not in ("http", "https"):
        raise BadInput("only what listens on this machine is looked at: http://127.0.0.1:PORT")
    return host, port


def _heard(url: str, ask: Callable[[str], Any]) -> dict[str, Any]:
    try:
        return {"url": url, "said": ask(url)}
    except AssayError as error:
        return {"url": url, "error": " ".join(str(error).split())}


def gateway(url: str, key: str = "") -> Any:
    """What a gateway says of its engines, load, decisions and shadows."""
    _local(url)
    if not (key.isascii() and key.isprintable()):
        raise BadInput("the gateway's key has a sign in it that no header may have")
    heads = {"authorization": f"Bearer {key}"} if key else {}
    said = _read(url, "/engines", heads)
    if not isinstance(said, dict) or "engines" not in said:
        raise BadInput("what answers there is no assay gateway")
    return said


def watch(url: str) -> Any:
    """What a watched job's last window says."""
    said = _read(url, "/summary", {})
    if not isinstance(said, dict) or "ranks" not in said:
        raise BadInput("what answers there is no 'assay watch --metrics-port PORT'")
    return said


def _read(url: str, path: str, heads: dict[str, str]) -> Any:
    host, port = _local(url)
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=PATIENCE)) as connection:
            connection.request("GET", path, headers={"accept": "application/json", **heads})
            answer = connection.getresponse()
            body = answer.read(LARGEST)
    except (OSError, http.client.HTTPException) as error:
        raise AssayError(f"nothing answers at {host}:{port} ({type(error).__name__})") from error
    if answer.status == 401:
        raise AssayError("the gateway asks for an operator's key")
    if answer.status != 200:
        raise AssayError(f"{host}:{port} answered {answer.status}")
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{host}:{port} does not answer as assay does") from error
