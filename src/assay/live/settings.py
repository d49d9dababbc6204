"""What a gateway is told: from the command line, or from a TOML file with the same names.

>>> read(b'policy = "lmetric"\\n[[engine]]\\nurl = "http://127.0.0.1:8001"').engine[0].url
'http://127.0.0.1:8001'
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from assay.live.server import Limits
from assay.record.errors import BadInput, unreadable

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Limit = Annotated[int, msgspec.Meta(ge=0)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine."""

    url: str
    name: str = ""
    key: str = ""  # sent to it as a bearer token, or env:NAME; else what the client sent goes on
    tp: _Count = 1
    layout: str = ""  # h200:qwen3-32b, for policies that want to know costs
    events: str = ""  # tcp://host:5557: where it publishes KV events
    replay: str = ""  # tcp://host:5558: where missed ones can be asked for
    limit: _Count | None = None  # requests it is given at once
    role: Annotated[str, msgspec.Meta(pattern="^(prefill|decode)?$")] = ""  # of engines that hand prompts over
    bootstrap: _Port = 0  # of an SGLang engine that prefills: its --disaggregation-bootstrap-port


class DiscoverSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where engines come from by themselves, and what is true of all of them."""

    source: str  # file:PATH, srv:NAME, kubernetes:LABEL=VALUE
    every: _Positive = 2.0  # seconds between two looks at a file or a name
    scheme: Annotated[str, msgspec.Meta(pattern="^https?$")] = "http"
    port: str = ""  # kubernetes: the port's name or number, where there are several
    at: str = ""  # the name server or the API server, where it is not the system's own
    token: str = ""  # kubernetes: a file with the token, where it is not the pod's own
    key: str = ""  # the rest as of an engine
    tp: _Count = 1
    layout: str = ""
    events: str = ""  # tcp://{host}:5557
    replay: str = ""
    limit: _Count | None = None
    role: Annotated[str, msgspec.Meta(pattern="^(prefill|decode)?$")] = ""
    bootstrap: _Port = 0


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name that clients may ask for, and the models that stand behind it."""

    name: str
    to: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]  # the first one that some engine has and is up
    full: Annotated[str, msgspec.Meta(pattern="^(overflow|wait|refuse)$")] = "overflow"  # what then


class KeySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that clients of this gateway show. Only its SHA-256 needs to be written down."""

    tenant: str
    sha256: str = ""
    env: str = ""  # or the environment variable that holds the key itself
    tier: str = ""
    admin: bool = False  # may see /metrics and change /engines
    requests_per_minute: _Limit = 0  # 0: as many as it likes
    tokens_per_minute: _Limit = 0
    parallel: _Limit = 0  # requests at once
    tokens_per_day: _Limit = 0
    dollars_per_day: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class PriceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model costs, in dollars per million tokens."""

    model: str = "*"  # all that have no price of their own
    prompt: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    answer: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a gateway is told; times in seconds."""

    engine: tuple[EngineSettings, ...] = ()
    discover: tuple[DiscoverSettings, ...] = ()
    policy: str = "lmetric"
    order: str = ""
    shadow: str = ""
    canary: str = ""  # vllm-v1=10%: another policy decides about so much of the traffic
    host: str = "127.0.0.1"
    port: _Port = 8000
    inflight: _Count = 256  # requests an engine is given at once; more wait here, in the order's order
    queue: Annotated[int, msgspec.Meta(ge=0)] = 4096  # requests that may wait here
    deadline: _Positive = 600.0  # from arrival to the last byte
    first_byte: _Positive = 120.0  # of a stream, from asking an engine; then another one is asked
    silence: _Positive = 60.0  # between two pieces of an answer
    connect: _Positive = 2.0
    attempts: _Count = 3
    spare_last: bool = False  # what an engine died with never goes to the last one of a model that is up
    wait: _Positive = 5.0  # for some engine to come up, where none is
    start: _Positive = 120.0  # for an engine that has never answered: it may be compiling or loading weights
    probe: _Positive = 2.0  # between two health checks of an engine
    scrape: _Positive = 1.0  # between two readings of its metrics
    failures: _Count = 3  # in a row: then its circuit is broken
    pause: _Positive = 5.0  # until it is tried again
    policy_time: _Positive = 0.25  # for one decision; then the least loaded engine takes it
    grace: _Positive = 30.0  # for what runs when the gateway is told to stop
    passthrough: bool | tuple[str, ...] = True  # paths the gateway does not know go to an engine; with keys only these
    origins: tuple[str, ...] = ()  # web pages that may ask from a browser: https://chat.example, or *
    tls_cert: str = ""
    tls_key: str = ""
    engine_ca: str = ""  # certificates that https engines are checked with
    log: str = ""  # the access log: a file, or - for standard output
    otel: str = ""  # where spans go: http://collector:4318
    tokenizer: str = ""  # tokenizer.json of the model; without it four bytes are a token
    block: _Count = 16  # tokens of a block in the prefix index
    blocks: _Count = 65536  # of them an engine, where its metrics do not say
    ttl: _Positive = 3600.0  # a prompt unused for so long is forgotten
    connections: _Count = 4096
    max_body: _Count = 32 << 20
    head_time: _Positive = 10.0
    body_time: _Positive = 60.0
    idle_time: _Positive = 75.0
    stall_time: _Positive = 60.0
    key: tuple[KeySettings, ...] = ()
    key_file: str = ""  # more of them, in a file of their own
    budgets: str = ""  # where it is noted what keys have spent today
    price: tuple[PriceSettings, ...] = ()
    model: tuple[ModelSettings, ...] = ()

    @property
    def limits(self) -> Limits:
        """Those of clients."""
        return Limits(
            connections=self.connections, body=self.max_body, bodies=max(1 << 30, 2 * self.max_body),
            head_time=self.head_time, body_time=self.body_time, idle_time=self.idle_time, stall_time=self.stall_time,
        )  # fmt: skip


def read_file(path: Path) -> Settings:
    """The settings in a TOML file; BadInput with the field that is wrong."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    return read(content, str(path), path.parent)


def read(content: bytes, name: str = "gateway.toml", folder: Path | None = None) -> Settings:
    """The settings in TOML; a file of keys is looked for in `folder`."""
    table = _toml(content, name)
    settings = convert(table, name)
    if not settings.key_file:
        return settings
    path = (folder or Path()) / settings.key_file
    try:
        more = _toml(path.read_bytes(), str(path))
    except OSError as error:
        raise unreadable(path, error) from error
    if set(more) - {"key"}:
        raise BadInput(f"{path}: {min(set(more) - {'key'})}: a file of keys has [[key]] tables and nothing else")
    kept = msgspec.structs.replace(convert({"key": more.get("key", [])}, str(path)), price=settings.price)
    return msgspec.structs.replace(settings, key=(*settings.key, *kept.key), key_file="")


def _toml(content: bytes, name: str) -> dict[str, object]:
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{name}: {error}") from error


def convert(table: dict[str, object], name: str) -> Settings:
    """Settings from plain values, every one of them checked."""
    try:
        settings = msgspec.convert(table, Settings)
    except msgspec.ValidationError as error:
        place = re.search(r" - at `\$\.?(.*)`$", str(error))
        where = f" {place[1]}:" if place else ""
        what = re.sub(r" - at `.*`$", "", str(error)).replace("Object contains unknown field", "unknown setting")
        raise BadInput(f"{name}:{where} {what.replace('`', chr(39))}") from error
    for key in settings.key:
        if not re.fullmatch(r"[0-9a-f]{64}", key.sha256) and not key.env:
            raise BadInput(
                f"{name}: key of '{key.tenant}': give sha256 (64 hex digits: printf %s KEY | sha256sum) or env"
            )
    seen: dict[str, str] = {}
    for key in settings.key:
        if (tenant := seen.setdefault(key.sha256, key.tenant)) and key.sha256 and tenant != key.tenant:
            raise BadInput(f"{name}: key of '{key.tenant}': that of '{tenant}' has the same sha256")
    for path in settings.passthrough if isinstance(settings.passthrough, tuple) else ():
        if not re.fullmatch(r"/[!-)+-~]*\*?", path):
            raise BadInput(f"{name}: passthrough: '{path}' is no path, such as /tokenize or /v1/audio/*")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise BadInput(f"{name}: TLS needs both tls_cert and tls_key")
    for origin in settings.origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s*]+/?", origin):
            raise BadInput(f"{name}: origins: '{origin}' is none, such as https://chat.example (or '*' for all)")
    if settings.otel and not re.match(r"https?://[^/\s]+", settings.otel):
        raise BadInput(f"{name}: otel: '{settings.otel}' is no address of a collector, such as http://collector:4318")
    return settings


def from_environment(name: str, what: str) -> bytes:
    """A secret from the environment; BadInput where it is not set.

    Without the line break that a secret made from a file ends in: nobody could show it in a head.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        raise BadInput(f"{what}: the environment variable {name} is not set")
    return os.fsencode(value)
