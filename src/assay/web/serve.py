"""The workbench on a port, until it is told to end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from assay.record.errors import BadInput
from assay.web.app import Settings, make

CONNECTIONS = 400


def listen(host: str, port: int) -> socket.socket:
    """The socket, before anything heavier is done: a taken port is said at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise BadInput(f"cannot listen on {host}:{port}: {error.strerror}; --port 0 takes any free one") from error
    return found


def serve(settings: Settings, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answer until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        make(settings), log_level="error", access_log=False, server_header=False, limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=3, timeout_keep_alive=15, loop="asyncio", http="h11", ws="none", lifespan="on",
    )  # fmt: skip
    server = uvicorn.Server(config)

    async def run() -> None:
        answering = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not answering.done():
            await asyncio.sleep(0.005)
        if not answering.done():
            ready()
        await answering

    asyncio.run(run())
