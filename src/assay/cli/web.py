"""`assay web`: the workbench in the browser."""

from __future__ import annotations

import os
import secrets

import click

from assay.record.errors import BadInput
from assay.record.extras import missing_module


@click.command(epilog="Example:  assay web --open")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: any free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Beyond this machine, a token is asked for.")
@click.option("--open", "open_page", is_flag=True, help="Open it in the browser.")
@click.option(
    "--allow-code", is_flag=True,
    help="Let the page run a policy that is pasted into it, in a process with a time limit; on loopback only.",
)  # fmt: skip
@click.option(
    "--max-upload", type=click.IntRange(1, 64 << 10), default=256, show_default=True, help="MiB of a file it takes."
)
def command(port: int, host: str, open_page: bool, allow_code: bool, max_upload: int) -> None:
    """The workbench: a local page to look through the record, run papers, and compare on your own input.

    It listens on this machine only. With another --host it asks for a token: ASSAY_WEB_TOKEN, or one it makes up.
    """
    try:
        from assay.web.app import Settings
        from assay.web.security import Limits, is_loopback
        from assay.web.serve import listen, serve
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("the workbench", error)) from None
    loopback = is_loopback(host)
    if allow_code and not loopback:
        raise BadInput("--allow-code is for loopback only: whoever has the token could run anything here")
    token = os.environ.get("ASSAY_WEB_TOKEN", "") or ("" if loopback else secrets.token_urlsafe(24))
    listening = listen(host, port)
    where = f"[{host}]" if ":" in host else host
    url = f"http://{where}:{listening.getsockname()[1]}"

    def ready() -> None:
        asks = f" (with its token: {url}/?token={token})" if token and "ASSAY_WEB_TOKEN" not in os.environ else ""
        click.echo(f"assay web on {url}: Ctrl-C ends it{asks}", err=True)
        if open_page:
            click.launch(f"{url}/?token={token}" if token else url)

    serve(Settings(Limits(token, loopback, max_upload << 20), allow_code), listening, ready)
