"""The gateway's own pages: health, metrics, its engines, its description."""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from assay.live.counters import exposition
from assay.live.description import openapi
from assay.live.engines import DRAINING, UP, Engine
from assay.live.server import JSON, Exchange
from assay.live.settings import EngineSettings
from assay.record.errors import BadInput

if TYPE_CHECKING:
    from assay.live.gateway import Gateway

_TEXT = b"content-type: text/plain; version=0.0.4; charset=utf-8"
_ENGINES = b"/engines"
_MODELS, _LOOK = 1.5, 0.05  # seconds that a list of models waits for an engine; between two looks
_ONLY_ITSELF = (
    b"content-security-policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    b"connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
_FROM_AFAR = frozenset((b"origin", b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"))


def answer(gateway: Gateway, exchange: Exchange) -> bool:
    """Answer what is the gateway's own to answer; False for everything else."""
    path, method = exchange.head.path, exchange.head.method
    if path == b"/v1/models":
        return _models(gateway, exchange)
    page = PAGES.get(path)
    if page is None:
        if not path.startswith(_ENGINES + b"/"):
            return False
        page = _one_engine
    if page in (_metrics, _engines, _one_engine) and not _operator(gateway, exchange):
        status = 401 if gateway.keys else 403
        exchange.refuse(status, "this is for the gateway's operator: show an admin key", "authentication_error",
                        (b"www-authenticate: Bearer",) if status == 401 else ())  # fmt: skip
        return True
    allowed = (b"DELETE",) if page is _one_engine else (b"GET", b"HEAD", *([b"POST"] if page is _engines else []))
    if method not in allowed:
        exchange.refuse(405, f"ask with {b' or '.join(allowed).decode()}", more=(b"allow: " + b", ".join(allowed),))
    else:
        page(gateway, exchange)
    return True


def _operator(gateway: Gateway, exchange: Exchange) -> bool:
    """Whoever shows an admin key; where there are no keys at all, whoever sits on this machine."""
    fields = exchange.head.fields
    if gateway.keys:
        key = gateway.keys.find(fields)
        return key is not None and key.admin
    if not _FROM_AFAR.isdisjoint(fields):  # a web page in a browser here, or a proxy here: somebody else asks
        return False
    try:
        return ipaddress.ip_address(exchange.peer).is_loopback
    except ValueError:
        return False


def _json(exchange: Exchange, value: Any, status: int = 200) -> None:
    exchange.reply(status, [JSON], msgspec.json.encode(value))


def _health(gateway: Gateway, exchange: Exchange) -> None:
    up = sum(engine.state == UP for engine in gateway.fleet.engines)
    status = "draining" if gateway.draining else "ok" if up else "no engine is up"
    _json(exchange, {"status": status, "engines": len(gateway.fleet.engines), "up": up}, 200 if status == "ok" else 503)


def _metrics(gateway: Gateway, exchange: Exchange) -> None:
    exchange.reply(200, [_TEXT], exposition(gateway))


@cache
def _html() -> bytes:
    return (Path(__file__).parent / "page.html").read_bytes()


def _page(gateway: Gateway, exchange: Exchange) -> None:
    """The live page: no figures in it; it asks for them at /engines, as whoever looks at it may."""
    exchange.reply(200, [b"content-type: text/html; charset=utf-8", _ONLY_ITSELF], _html())


@cache
def _description() -> bytes:
    return msgspec.json.encode(openapi())


def _openapi(gateway: Gateway, exchange: Exchange) -> None:
    exchange.reply(200, [JSON], _description())


def _wait_for_models(gateway: Gateway, exchange: Exchange, until: float) -> None:
    """An engine may be up in a moment; what there will be nobody knows before."""
    if exchange.done:
        return
    if any(engine.state == UP for engine in gateway.fleet.engines):
        gateway.answer(exchange)
    elif gateway.now() >= until or gateway.draining:
        exchange.refuse(503, "no engine is up", more=(b"retry-after: 1",))
    else:
        asyncio.get_running_loop().call_later(_LOOK, _wait_for_models, gateway, exchange, until)


def _models(gateway: Gateway, exchange: Exchange) -> bool:
    """All models of all engines; where every engine has the same, and one has a moment, an engine says it itself."""
    engines, method = gateway.fleet.engines, exchange.head.method
    lists = {engine.models for engine in engines if engine.state == UP and engine.models}
    passes = gateway.passes(method, exchange.head.path) and any(engine.open for engine in engines)
    if len(lists) < 2 and not gateway.aliases and passes:
        return False
    if gateway.keys and gateway.keys.find(exchange.head.fields) is None:
        exchange.refuse(401, "a valid API key is needed", "authentication_error", (b"www-authenticate: Bearer",))
    elif method not in (b"GET", b"HEAD"):
        exchange.refuse(405, "ask with GET", more=(b"allow: GET, HEAD",))
    elif not any(engine.state == UP for engine in engines):
        _wait_for_models(gateway, exchange, gateway.now() + _MODELS)
    else:
        names = dict.fromkeys([*(name for models in sorted(lists) for name in models), *gateway.aliases])
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "assay"} for name in names]
        _json(exchange, {"object": "list", "data": data})
    return True


# ------------------------------------------------------------------------------------------------ engines


def _engines(gateway: Gateway, exchange: Exchange) -> None:
    if exchange.head.method == b"POST":
        _add(gateway, exchange)
    else:
        _json(exchange, overview(gateway))


def _add(gateway: Gateway, exchange: Exchange) -> None:
    try:
        settings = msgspec.json.decode(exchange.body, type=EngineSettings)
        if settings.key.startswith("env:"):  # or whoever may add engines could send themselves the environment
            raise BadInput("a key from the environment is for the settings file")
        engine = gateway.roster.add(settings)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadInput) as error:
        exchange.refuse(400, f'an engine is {{"url": "http://host:port"}}: {error}')
        return
    if engine is None:
        exchange.refuse(409, "that engine is here already")
        return
    _json(exchange, {"name": engine.name, "url": engine.address.url, "state": engine.state}, 201)


def _one_engine(gateway: Gateway, exchange: Exchange) -> None:
    name = exchange.head.path[len(_ENGINES) + 1 :].decode("latin-1")
    engine = next((e for e in gateway.fleet.engines if e.name == name), None)
    if engine is None:
        exchange.refuse(404, "no engine of that name", "not_found_error")
        return
    gateway.roster.drain(engine)
    _json(exchange, {"name": engine.name, "state": DRAINING, "aboard": engine.aboard}, 202)


def overview(gateway: Gateway) -> dict[str, Any]:
    """The engines, the load and the last decisions, as the terminal view shows them."""
    fleet, counters = gateway.fleet, gateway.counters
    now = gateway.now()
    rows = [
        {
            "name": e.name, "url": e.address.url, "state": e.state, "role": e.role, "models": list(e.models),
            "family": e.family, "note": e.note, "aboard": e.aboard,
            "running": int(fleet.running[i]), "waiting": int(fleet.waiting[i]),
            "prefill_tokens": int(fleet.prefill_tokens[i]), "kv_tokens": int(fleet.kv_tokens[i]),
            "kv_free": float(fleet.kv_free[i]), "itl": float(fleet.itl[i]), "ttft": float(fleet.ttft[i]),
            "age": _finite(now - e.seen), "requests": e.requests, "errors": e.errors, "tokens": e.tokens,
            "hit_ratio": _hits(e), "blocks": gateway.index.blocks(i), "recent": gateway.recent.of(e),
        }
        for i, e in enumerate(fleet.engines)
    ]  # fmt: skip
    return {
        "policy": gateway.settings.policy, "order": gateway.settings.order or None,
        "queue": gateway.placing.waiting,
        "requests": sum(counters.requests.values()), "retries": counters.retries,
        "policy_errors": counters.policy_errors, "policy_error": gateway.placing.error,
        "log_lost": gateway.log.lost, "log_error": gateway.log.problem,
        **gateway.recent.report(fleet.engines, now), "scale": fleet.scale,
        "statuses": dict(gateway.recent.statuses()), "engines": rows,
        "decisions": [_decision(decision, now) for decision in list(gateway.placing.decisions)[-12:]],
        "shadow": gateway.shadow.report() if gateway.shadow else None,
        "sources": [source.report() for source in gateway.roster.sources],
        "canary": gateway.canary.report() if gateway.canary else None,
    }  # fmt: skip


def _hits(engine: Engine) -> float | None:
    """Of its prompt tokens, those found in its cache: as its answers say, else as the gateway thinks."""
    if engine.asked:
        return engine.hits / engine.asked
    return engine.matched / engine.prompt if engine.prompt else None


def _decision(decision: dict[str, Any], now: float) -> dict[str, Any]:
    """Scores by the engines that there were then: none of who could not be chosen; none at all if others decided."""
    scores, eligible = decision["scores"], decision["eligible"]
    values = None if scores is None else [_finite(float(score)) for score in np.atleast_1d(scores)]
    if values is not None and eligible is not None:
        values = [value if able else None for value, able in zip(values, eligible.tolist(), strict=False)]
    if values is not None and not _decided(values, decision["engines"].index(decision["engine"])):
        values = None  # the policy looked at them and chose by something else
    said = {name: value for name, value in decision.items() if name != "eligible"}
    return said | {"scores": values, "at": now - decision["at"]}


def _decided(scores: Sequence[float | None], chosen: int) -> bool:
    """Whether who was chosen has the smallest of these."""
    return chosen < len(scores) and scores[chosen] == min((s for s in scores if s is not None), default=None)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


PAGES: dict[bytes, Callable[[Gateway, Exchange], None]] = {
    b"/": _page,
    b"/health": _health,
    b"/metrics": _metrics,
    _ENGINES: _engines,
    b"/openapi.json": _openapi,
}
