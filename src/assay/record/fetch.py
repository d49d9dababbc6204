"""Fetch published files: resumed where a download broke off, checked, and written whole or not at all.

What has come so far lies in `$ASSAY_HOME/traces/.partial`, under the checksum of what it will be: a download that
breaks off goes on there, and two versions of a file never mix. A file takes its place only when every file of its
trace has come and has the right size and SHA-256.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedRandom
from pathlib import Path
from urllib.parse import quote, urlsplit

from assay.record.errors import AssayError, BadInput, StoreFailed
from assay.record.store import home
from assay.record.traces import File, Trace

Progress = Callable[[int, int], None]
_PIECE = 1 << 16
_ATTEMPTS = 3  # connections to one file before we give up for now


class _BrokenOff(Exception):  # noqa: N818
    """The connection ended before the file did."""


_NETWORK = (
    _BrokenOff, urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError,
)  # fmt: skip


class FetchFailed(AssayError):  # noqa: N818
    """A download that did not come to its end; what has come is kept unless it was wrong."""


def fetch(
    trace: Trace,
    *,
    mirror: str = "",
    proxy: str = "",
    timeout: float = 30.0,
    progress: Progress = lambda done, total: None,
) -> Path:
    """Bring a trace into `$ASSAY_HOME/traces` and return where it lies there.

    `mirror` is the address of a folder with the files named as here, such as another's `$ASSAY_HOME/traces` served by
    `python -m http.server`; it is checked like the original. `proxy` is used instead of the environment's.
    """
    if not trace.fetchable:
        raise BadInput(f"'{trace.name}' cannot be fetched: no checksum of it is known; {trace.cure}")
    if mirror and urlsplit(mirror).scheme not in ("http", "https"):
        raise BadInput(f"--mirror {mirror}: give an address such as https://mirror.example/traces")
    base = home() / "traces"
    opener = _opener(proxy)
    parts, before = [], 0
    for file in trace.files:
        place = base / file.path
        if not _right(place, file):
            url = f"{mirror.rstrip('/')}/{quote(file.path)}" if mirror else file.url
            part = base / ".partial" / file.sha256
            _whole(opener, url, file, part, timeout, partial(_told, progress, before, trace.size))
            parts.append((part, place))
        before += file.size
        progress(before, trace.size)
    with _writing(base):
        for part, place in parts:  # all have come: now, and at once
            place.parent.mkdir(parents=True, exist_ok=True)
            part.replace(place)
            _sync(place.parent)
    return base / trace.file


def _told(progress: Progress, before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _right(place: Path, file: File) -> bool:
    """Whether the file is there already, and is what it should be."""
    if not place.is_file() or place.stat().st_size != file.size:
        return False
    with place.open("rb") as there:
        return hashlib.file_digest(there, "sha256").hexdigest() == file.sha256


def _opener(proxy: str) -> urllib.request.OpenerDirector:
    handlers = [urllib.request.ProxyHandler({"http": proxy, "https": proxy})] if proxy else []
    opener = urllib.request.build_opener(*handlers)
    opener.addheaders = [("User-Agent", "assay"), ("Accept-Encoding", "identity")]
    return opener


def _whole(
    opener: urllib.request.OpenerDirector,
    url: str,
    file: File,
    part: Path,
    timeout: float,
    progress: Callable[[int], None],
) -> None:
    """Fill `part` until it is the file, going on where it stands."""
    why = ""
    with _writing(part.parent), _held(part) as kept:
        for _ in range(_ATTEMPTS):
            if kept.seek(0, os.SEEK_END) == file.size:
                break
            try:
                _go_on(opener, url, file, kept, timeout, progress)
            except urllib.error.HTTPError as error:
                if error.code == 416:  # the file there is shorter than what we have
                    kept.truncate(0)
                why = f"{error.code} {error.reason}"
                if 400 <= error.code < 500 and error.code not in (408, 416, 425, 429):
                    break  # asking again will not help
            except _NETWORK as error:
                why = str(getattr(error, "reason", error)) or type(error).__name__
        size = kept.seek(0, os.SEEK_END)
        if size != file.size:
            kept.truncate(min(size, file.size))
            again = f"; {size:,} of {file.size:,} bytes are kept, and the next try goes on there" if size else ""
            raise FetchFailed(f"{url}: {why or 'the file ends too early'}{again}; another source: --mirror URL")
        kept.seek(0)
        found = hashlib.file_digest(kept, "sha256").hexdigest()
        if found != file.sha256:
            kept.truncate(0)
            raise FetchFailed(
                f"{url}: not the file that was published: SHA-256 {found[:16]}…, expected {file.sha256[:16]}…; "
                "nothing was kept; another source: --mirror URL"
            )
        os.fsync(kept.fileno())


def _go_on(
    opener: urllib.request.OpenerDirector,
    url: str,
    file: File,
    kept: BufferedRandom,
    timeout: float,
    progress: Callable[[int], None],
) -> None:
    """Ask for what is missing, and add what comes."""
    have = kept.seek(0, os.SEEK_END)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with opener.open(request, timeout=timeout) as answer:
        begins = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", "")) if answer.status == 206 else None
        if begins is None or int(begins[1]) != have:  # the server does not resume: from the beginning
            kept.truncate(0)
            have = kept.seek(0)
        while piece := answer.read(_PIECE):
            have += kept.write(piece[: file.size - have + 1])  # one byte too many tells that it is another file
            progress(min(have, file.size))
            if have > file.size:
                kept.truncate(0)
                raise FetchFailed(f"{url}: longer than the {file.size:,} bytes that were published; nothing was kept")
    if have < file.size:
        raise _BrokenOff(f"the connection ended after {have:,} of {file.size:,} bytes")


@contextlib.contextmanager
def _held(part: Path) -> Iterator[BufferedRandom]:
    """The partial file, ours alone until closed."""
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("a+b") as kept:
        try:
            fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchFailed(f"another 'assay traces get' is fetching {part.name[:16]}…; wait for it") from None
        yield kept


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """What goes wrong with the disk, as one line."""
    try:
        yield
    except OSError as error:
        raise StoreFailed(
            f"cannot write {error.filename or folder}: {error.strerror}; free space or set ASSAY_HOME to another folder"
        ) from error


def _sync(folder: Path) -> None:
    """The rename must survive a power cut too; not every file system lets a directory be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
