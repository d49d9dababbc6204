"""Watch a gateway from a terminal: read its `GET /engines` once a second, draw what it says.

Nothing here runs inside the gateway. `start` begins a process of its own, so that drawing takes no time from requests.
"""

from __future__ import annotations

import atexit
import os
import ssl
import subprocess
import sys
from collections import deque
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from time import monotonic, sleep
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from assay.live.top_frame import HISTORY, Page, Reading, convert, frame
from assay.record.errors import AssayError, BadInput

if TYPE_CHECKING:
    from rich.console import Console

PATIENCE = 5.0  # seconds for one answer
_LARGEST = 16 << 20  # bytes of one
_FAILURES = 60  # readings in a row without an answer, and the view ends


class Source:
    """A gateway to read from."""

    def __init__(self, url: str, key: str = "", insecure: bool = False) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in ("http", "https"):
            raise BadInput(f"'{url}' is no address of a gateway; write http://127.0.0.1:8000")
        if not (key.isascii() and key.isprintable()):
            raise BadInput("the gateway's key has a sign in it that no header may have")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._host, self._port, self._tls = host, port, parts.scheme == "https"
        self._path = parts.path.rstrip("/") + "/engines"
        self._headers = {"accept": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._context = ssl.create_default_context() if self._tls else None
        if insecure and self._context is not None:
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE

    def read(self) -> bytes:
        """What the gateway says, as JSON; AssayError, with the cure, where it says nothing."""
        try:
            with closing(self._connection()) as connection:
                connection.request("GET", self._path, headers=self._headers)
                response = connection.getresponse()
                body = response.read(_LARGEST)
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message
            raise AssayError(
                f"the certificate of {self.url} is not trusted ({why}): --insecure, or SSL_CERT_FILE=ca.pem"
            ) from error
        except ssl.SSLError as error:
            raise AssayError(f"{self.url} does not speak TLS; try http://") from error
        except HTTPException as error:
            cure = "is its port right?" if self._tls else "is its port right, or does it want https://?"
            raise AssayError(f"what listens at {self.url} does not speak HTTP; {cure}") from error
        except TimeoutError as error:
            cure = "; if it serves no TLS, write http://" if self._tls else ""
            raise AssayError(f"{self.url} did not answer within {PATIENCE:g} s{cure}") from error
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise AssayError(
                f"no gateway at {self.url}: {why}; start one with 'assay gateway', or give its address: assay top URL"
            ) from error
        self._check(response)
        return body

    def page(self) -> Page:
        """The same, understood."""
        try:
            return convert(msgspec.json.decode(self.read()))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise AssayError(f"what answers at {self.url} is not an assay gateway") from error

    def _connection(self) -> HTTPConnection:
        if self._context is not None:
            return HTTPSConnection(self._host, self._port, timeout=PATIENCE, context=self._context)
        return HTTPConnection(self._host, self._port, timeout=PATIENCE)

    def _check(self, response: HTTPResponse) -> None:
        if response.status == 200:
            return
        if response.status == 401:
            shown = "authorization" in self._headers
            why = (
                "does not take this key: it must be one with admin = true"
                if shown
                else "wants an admin key: --key-env NAME"
            )
            raise BadInput(
                f"the gateway at {self.url} {why}" + ("" if shown else ", the environment variable that holds it")
            )
        if response.status == 403:
            raise BadInput(
                f"the gateway at {self.url} shows itself only on its own machine; give it a key with admin = true"
            )
        raise AssayError(f"what answers at {self.url} is not an assay gateway (status {response.status})")


def wait(source: Source, seconds: float) -> None:
    """Return when a gateway answers there and one of its engines is up; AssayError where that takes too long."""
    until = monotonic() + seconds
    while True:
        try:
            if any(engine.state == "up" for engine in source.page().engines):
                return
            why = f"no engine of the gateway at {source.url} is up"
        except BadInput:
            raise
        except AssayError as error:
            why = str(error)
        if monotonic() >= until:
            raise AssayError(f"not ready after {seconds:g} s: {why}")
        sleep(0.2)


def once(source: Source, console: Console) -> None:
    """One frame, of one reading: rates need two."""
    console.print(frame(Reading(monotonic(), source.page()), (), console.width, title=source.url))


def follow(source: Source, console: Console, every: float) -> None:
    """Draw until interrupted. A gateway that stops answering is waited for; one that never answered is an error."""
    from rich.live import Live

    seen = deque([Reading(monotonic(), source.page())], maxlen=HISTORY + 1)
    parent, failures, trouble = os.getppid(), 0, ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while failures < _FAILURES and os.getppid() == parent:  # whoever started it may have been killed
            began = monotonic()
            *before, now = seen
            width, height = console.size
            live.update(frame(now, before, width, height, source.url, trouble), refresh=True)
            sleep(max(every - (monotonic() - began), 0.05))
            try:
                seen.append(Reading(monotonic(), source.page()))
                failures, trouble = 0, ""
            except AssayError as error:
                failures, trouble = failures + 1, str(error)
    if failures:
        raise AssayError(trouble)


def start(url: str, key_env: str = "", insecure: bool = False) -> subprocess.Popen[bytes]:
    """Watch a gateway from a process of its own on the same terminal; it ends when this one does."""
    told = [*(("--key-env", key_env) if key_env else ()), *(("--insecure",) if insecure else ())]
    view = subprocess.Popen([sys.executable, "-m", "assay.cli.main", "top", url, *told])
    atexit.register(end, view)
    return view


def end(view: subprocess.Popen[bytes]) -> None:
    """End a view: it is given time to leave the terminal as it found it."""
    view.terminate()
    try:
        view.wait(2.0)
    except subprocess.TimeoutExpired:
        view.kill()
        view.wait()
