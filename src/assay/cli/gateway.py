"""`assay gateway`: a policy in front of real engines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from assay.live.announce import announce
from assay.record.errors import AssayError, BadInput
from assay.record.extras import missing_module

# Named as in the file; only what was given on the command line overrides it.
_TOLD = (
    "policy", "order", "shadow", "canary", "host", "port", "inflight", "queue", "silence", "deadline", "log", "otel",
    "tokenizer", "tls_cert", "tls_key",
)  # fmt: skip


@click.command(epilog="Example:  assay gateway --engines http://127.0.0.1:8001,http://127.0.0.1:8002 --policy lmetric")
@click.option("--engines", help="URLs of OpenAI-compatible engines, separated by commas, without /v1.")
@click.option("--policy", help="Router: lmetric (default), any of 'assay compare serving', or file.py:Class.")
@click.option("--order", help="Who goes first when all engines are full: fcfs, sjf, fair, driftsched, …")
@click.option("--shadow", metavar="POLICY", help="Also score all traffic with another policy, without following it.")
@click.option("--canary", metavar="POLICY=10%", help="Let another policy decide about a share, and compare the two.")
@click.option("--port", type=click.IntRange(0, 65535), help="Where to listen (default 8000; 0: any free one).")
@click.option("--host", help="Address to listen on (default 127.0.0.1: this machine only).")
@click.option("--inflight", type=click.IntRange(1), help="Requests an engine is given at once (default 256).")
@click.option("--queue", type=click.IntRange(0), help="Requests that may wait in the gateway (default 4096).")
@click.option("--silence", type=float, help="Seconds without a byte that end a stream that has begun (default 60).")
@click.option("--deadline", type=float, help="Seconds a request may take in all (default 600).")
@click.option(
    "--log", help="Access log, one JSON line a request: a file, or - ; 'assay compare serving --trace' reads it."
)
@click.option("--tokenizer", type=click.Path(), help="tokenizer.json of the model; else four bytes count as a token.")
@click.option("--tls-cert", type=click.Path(), help="Certificate (PEM) to serve https with.")
@click.option("--tls-key", type=click.Path(), help="Its private key.")
@click.option("--otel", help="Send OpenTelemetry spans to this OTLP/HTTP collector.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="A TOML file with these and more settings; SIGHUP rereads it.",
)
@click.option("--view", is_flag=True, help="Show engines, load and decisions in the terminal (as 'assay top' does).")
def command(engines: str | None, config: Path | None, view: bool, **told: Any) -> None:
    """Route OpenAI-compatible traffic over your engines with a policy from the serving room."""
    try:
        import uvloop

        from assay.live import serve, settings
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("the gateway", error)) from None
    given = {name: value for name in _TOLD if (value := told[name]) is not None}

    def read() -> settings.Settings:
        table: dict[str, Any] = {}
        if config is not None:
            table = _table(settings.read_file(config))
        if engines:
            table["engine"] = [{"url": url.strip()} for url in engines.split(",") if url.strip()]
        chosen = settings.convert(table | given, "gateway")
        if not chosen.engine and not chosen.discover:
            where = "[[engine]] in --config" if config else "--config"
            raise BadInput(
                f"no engine given: --engines http://127.0.0.1:8001 (try 'assay engine --port 8001'), or {where}"
            )
        return chosen

    chosen = read()
    cut = uvloop.run(serve.run(chosen, lambda running: _ready(running, view), read if config else None))
    if cut:
        raise AssayError(f"stopped; {cut} clients were cut off when the grace was over")


def _table(settings: Any) -> dict[str, Any]:
    import msgspec

    table: dict[str, Any] = msgspec.to_builtins(settings)
    return table


def _ready(running: Any, view: bool) -> None:
    settings = running.settings
    scheme = "https" if settings.tls_cert else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"{scheme}://{host}:{running.port}"
    if scheme == "http":
        announce("gateway", f"http://127.0.0.1:{running.port}" if settings.host == "0.0.0.0" else url)
    if view and sys.stdout.isatty():
        from assay.live import top

        key_env = next((key.env for key in settings.key if key.admin and key.env), "")
        top.start(url, key_env, insecure=bool(settings.tls_cert))  # it knows whose certificate it is
        return
    names = ", ".join(engine.name for engine in running.gateway.fleet.engines)
    shadow = f", {settings.shadow} in its shadow" if settings.shadow else ""
    canary = f", {settings.canary} as its canary" if settings.canary else ""
    click.echo(f"assay gateway on {url}: {settings.policy}{shadow}{canary} over {names}", err=True)
    if settings.host not in ("127.0.0.1", "::1", "localhost") and not settings.key:
        click.echo(
            "warning: it listens beyond this machine and asks for no key; give its configuration [[key]] entries:"
            " a tenant, and the SHA-256 of its key",
            err=True,
        )
