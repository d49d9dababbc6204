"""`assay web`: the workbench in the browser."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from assay.record.errors import BadInput
from assay.record.extras import missing_module


@click.command(epilog="Example:  assay web --open")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: any free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens.")
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

    It listens on this machine only, unless --host says otherwise, and answers to whoever opens the address that it
    prints: the token in it is ASSAY_WEB_TOKEN, or one of its own, which a private file keeps for the next start.
    """
    try:
        from assay.web import files
        from assay.web.app import Settings
        from assay.web.security import Limits, is_loopback, kept_token, opener
        from assay.web.serve import listen, serve
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("the workbench", error)) from None
    loopback = is_loopback(host)
    if allow_code and not loopback:
        raise BadInput("--allow-code is for loopback only: whoever has the token could run anything here")
    token = os.environ.get("ASSAY_WEB_TOKEN", "") or kept_token(files.folder().parent)
    listening = listen(host, port)
    where = f"[{host}]" if ":" in host else host
    url = f"http://{where}:{listening.getsockname()[1]}"

    def ready() -> None:
        own = "" if os.environ.get("ASSAY_WEB_TOKEN") else token
        click.echo(f"assay web on {url}/?token={own or '$ASSAY_WEB_TOKEN'} (Ctrl-C ends it)", err=True)
        if page is not None:
            click.launch(str(page))

    page: Path | None = None
    if open_page:
        with contextlib.suppress(OSError):  # where no such page can be written, the printed address is all there is
            page = opener(files.folder().parent, f"{url}/?token={token}")
    serve(Settings(Limits(token, loopback, max_upload << 20), allow_code, page), listening, ready)
