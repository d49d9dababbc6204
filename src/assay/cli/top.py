"""`assay top`: what a gateway does, in the terminal."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click

from assay.cli.output import json_option, print_json
from assay.record.errors import BadInput


@click.command(epilog="Example:  assay top https://gateway:8000 --key-env GATEWAY_ADMIN_KEY")
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--key-env", metavar="NAME", help="Environment variable that holds an admin key of the gateway.")
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between readings.")
@click.option("--once", is_flag=True, help="Print one frame and end; so it does where no terminal is.")
@click.option(
    "--wait", "patience", type=click.FloatRange(0.0), metavar="SECONDS", help="First wait until an engine is up."
)
@click.option("--insecure", is_flag=True, help="Take any certificate, such as one the gateway signed itself.")
@json_option
def command(
    url: str, key_env: str | None, every: float, once: bool, patience: float | None, insecure: bool, as_json: bool
) -> None:  # fmt: skip
    """Engines, load, latencies, decisions and their scores of a running gateway (URL: http://127.0.0.1:8000)."""
    from assay.live import top

    key = os.environ.get(key_env, "").strip() if key_env else ""
    if key_env and not key:
        raise BadInput(f"the environment variable {key_env} is not set; it should hold an admin key of the gateway")
    source = top.Source(url, key, insecure)
    if patience is not None:
        top.wait(source, patience)
    if as_json:
        print_json(_json(source.read()))
        return
    from assay.cli.output import console

    if once or not sys.stdout.isatty():
        top.once(source, console())
        return
    signal.signal(signal.SIGTERM, _leave)
    try:
        top.follow(source, console(), every)
    except KeyboardInterrupt:
        return  # the way to end it


def _leave(*_: Any) -> None:
    """End as if interrupted, so that the terminal is left as it was found."""
    raise KeyboardInterrupt


def _json(body: bytes) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput("what answers there is not an assay gateway") from error
