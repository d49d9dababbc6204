"""Who may ask the workbench for what: whoever has the token, and never another site's page.

One ASGI layer in front of everything. It checks the host that was asked for (a name that somebody points at 127.0.0.1
is not ours), the token (other users of this machine reach its ports, too), where a change comes from, and how long a
body is: by what it says, and by counting. What it refuses never reaches a route.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from html import escape
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UPLOAD = "/api/files"
COOKIE = "assay-token"  # and the port: browsers keep one jar for all ports of a name
SMALL = 1 << 20  # bytes of any body but a file's
# No script, style or picture but the workbench's own; nobody may frame it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the workbench was started with: its token, and the largest file it takes."""

    token: str
    loopback: bool = True
    upload: int = 256 << 20


NEEDS_TOKEN = (
    "a token is needed: open the address that 'assay web' printed"
    " (where a link of another page led here, Enter in the address bar is enough)"
)


class TooLarge(Exception):  # noqa: N818 - read as a sentence
    """More came than was announced, or than is taken."""


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def private_folder(folder: Path) -> Path:
    """A folder of the user's alone, made where there is none; PermissionError where it is another's."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"{folder} belongs to another user")
    folder.chmod(0o700)
    return folder


def kept_token(folder: Path) -> str:
    """The token in a private folder, the same after every start, so that open pages go on; a new one where none can be.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     kept_token(Path(home)) == kept_token(Path(home)), oct((Path(home) / "token").stat().st_mode & 0o777)
    (True, '0o600')
    """
    made, place = secrets.token_urlsafe(24), folder / "token"
    try:
        aside = private_folder(folder) / f".{secrets.token_hex(8)}"
        aside.touch(mode=0o600, exist_ok=False)
        aside.write_text(made, encoding="ascii")
        with contextlib.suppress(FileExistsError):
            os.link(aside, place)  # of two that start at once one wins, and both read a whole token
        aside.unlink()
        kept = place.stat()
        if kept.st_uid != os.getuid() or kept.st_mode & 0o077:  # others may have read it, or written it
            place.unlink()
            return kept_token(folder)
        return place.read_text(encoding="ascii").strip() or made
    except (OSError, UnicodeDecodeError):
        return made


def opener(folder: Path, address: str) -> Path:
    """A private page that leads to an address with a token: every user of a machine can read command lines."""
    page = private_folder(folder).absolute() / "open.html"
    page.unlink(missing_ok=True)
    page.touch(mode=0o600, exist_ok=False)
    page.write_bytes(_leads_to(address))
    return page


def _leads_to(address: str) -> bytes:
    return f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(address)}"><title>assay</title>'.encode()


def guarded(app: App, limits: Limits) -> App:
    """The app behind its checks."""

    async def ask(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        heads = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if moved := _told_in_address(scope, limits):
            if heads.get("sec-fetch-site", "none") in ("none", "same-origin"):
                await _answer(send, 303, b"", [(b"location", moved[0]), (b"set-cookie", moved[1])])
            else:  # to where another page leads a browser sends no such cookie: this one leads on from here
                await _answer(
                    send, 200, _leads_to(moved[0].decode("latin-1")), [(b"set-cookie", moved[1])], "text/html"
                )
            return
        refusal = _refused(scope, heads, limits)
        if refusal:
            await _answer(send, refusal[0], f'{{"error":"{refusal[1]}"}}'.encode())
            return
        await app(scope, _counted(receive, _most(scope["path"], limits)), _with_headers(send))

    return ask


def _refused(scope: Scope, heads: dict[str, str], limits: Limits) -> tuple[int, str] | None:
    host = heads.get("host", "")
    if limits.loopback and not is_loopback(_name(host)):
        return 421, "the workbench answers to 127.0.0.1 and localhost only"
    if not _known(heads, limits.token, _cookie(scope)):
        return 401, NEEDS_TOKEN
    if scope["method"] not in ("GET", "HEAD"):
        site = heads.get("sec-fetch-site", "same-origin")
        origin = heads.get("origin")
        if site not in ("same-origin", "none") or (origin is not None and urlsplit(origin).netloc != host):
            return 403, "another site may change nothing here"
    try:
        announced = int(heads.get("content-length", 0))
    except ValueError:
        return 400, "content-length is no number"
    if announced > _most(scope["path"], limits):
        return 413, _too_large(scope["path"], limits)
    return None


def _most(path: str, limits: Limits) -> int:
    return limits.upload if path == UPLOAD else SMALL


def _too_large(path: str, limits: Limits) -> str:
    return f"at most {_most(path, limits) >> 10:,} KiB are taken here"


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host


def _cookie(scope: Scope) -> str:
    return f"{COOKIE}-{(scope.get('server') or ('', 0))[1]}"


def _known(heads: dict[str, str], token: str, cookie: str) -> bool:
    try:
        kept = SimpleCookie(heads.get("cookie", "")).get(cookie)
    except CookieError:
        kept = None
    given = heads.get("authorization", "").removeprefix("Bearer ") or (kept.value if kept else "")
    return secrets.compare_digest(given.encode(), token.encode())


def _told_in_address(scope: Scope, limits: Limits) -> tuple[bytes, bytes] | None:
    """A right token in the address moves into a cookie, so that it stays in no history and in no copied link."""
    if scope["method"] != "GET":
        return None
    asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = dict(asked).get("token", "")
    if not secrets.compare_digest(given.encode(), limits.token.encode()):
        return None
    rest = urlencode([(name, value) for name, value in asked if name != "token"])
    path = "/" + scope["path"].lstrip("/")
    cookie = f"{_cookie(scope)}={limits.token}; Path=/; HttpOnly; SameSite=Strict"
    return (path + (f"?{rest}" if rest else "")).encode("latin-1", "ignore"), cookie.encode()


def _counted(receive: Receive, most: int) -> Receive:
    taken = 0

    async def take() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise TooLarge(f"at most {most >> 10:,} KiB are taken here")
        return message

    return take


def _with_headers(send: Send) -> Send:
    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in known)]
        await send(message)

    return tell


async def _answer(
    send: Send, status: int, body: bytes, heads: list[tuple[bytes, bytes]] | None = None, of: str = "application/json"
) -> None:
    kind = [(b"content-type", of.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *HEADERS, *(heads or [])]})
    await send({"type": "http.response.body", "body": body})
