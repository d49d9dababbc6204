"""Files that people drop: kept by their content, under a plain name, within bounds, and never executed.

    $ASSAY_HOME/web/files/<digest>/<name>

The digest is the file's address: a link to a comparison opens it again, and the command line can read it there.
Compressed files are unpacked to nowhere first, to see how large they would become.
"""

from __future__ import annotations

import asyncio
import bz2
import gzip
import hashlib
import io
import lzma
import re
import secrets
import shutil
import zipfile
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from assay.record.errors import BadInput, StoreFailed
from assay.record.store import home
from assay.web.security import private_folder

ALL = 4 << 30  # bytes that all kept files may take; the oldest go first
UNPACKED = 2 << 30  # bytes that a compressed file may become
TIMES = 300  # and how many times its size, beyond the first SLACK bytes
SLACK = 64 << 20
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, RuntimeError)
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def folder() -> Path:
    """Where dropped files are kept."""
    return home() / "web" / "files"


def plain_name(name: str) -> str:
    """A name that is only a name, with its suffixes.

    >>> plain_name("../../etc/passwd"), plain_name("C:\\\\my trace (1).jsonl.gz"), plain_name("..")
    ('passwd', 'my-trace-1-.jsonl.gz', 'file')
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    return _NAME.sub("-", last).strip(".-")[-80:] or "file"


_UNPACKING = asyncio.Semaphore(1)  # one at a time, so that pages that are drawn in threads find one


async def keep(name: str, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
    """Take a file in; its address `digest/name`, and its length."""
    name, digest, length = plain_name(name), hashlib.blake2b(digest_size=12), 0
    aside = folder() / f".{secrets.token_hex(8)}"
    try:
        private_folder(folder().parent)
        private_folder(folder())
        aside.touch(mode=0o600, exist_ok=False)
        with aside.open("wb") as file:
            async for chunk in chunks:
                digest.update(chunk)
                length += len(chunk)
                file.write(chunk)
        if not length:
            raise BadInput(f"{name} is empty")
        place = folder() / digest.hexdigest() / name
        async with _UNPACKING:  # seconds of the processor for some: not in the loop that answers every page
            await asyncio.to_thread(check_unpacked, aside, name, length)
            private_folder(place.parent)
            aside.replace(place)
            await asyncio.to_thread(_tidy)
    except OSError as error:
        raise StoreFailed(f"cannot keep {name}: {error.strerror}; free space, or set ASSAY_HOME") from error
    finally:
        aside.unlink(missing_ok=True)
    return f"{digest.hexdigest()}/{name}", length


def find(address: str) -> Path:
    """The file at an address."""
    if not re.fullmatch(r"[0-9a-f]{24}/[A-Za-z0-9._-]{1,80}", address) or plain_name(address) != address[25:]:
        raise BadInput("no file has that address")
    place = folder() / address
    if not place.is_file():
        raise BadInput(f"the file {address[25:]} is not here any more; drop it again")
    return place


def check_unpacked(path: Path, name: str, length: int) -> None:
    """Refuse what unpacks into far more than anybody means to send.

    Raises:
        BadInput: it does, or it is broken.
    """
    most = min(UNPACKED, max(SLACK, TIMES * length))
    total = 0
    try:
        for part in _parts(path):
            with part as stream:
                while chunk := stream.read(1 << 20):
                    total += len(chunk)
                    if total > most:
                        raise BadInput(f"{name} unpacks into more than {most >> 20:,} MiB, which is not taken")
    except _BROKEN as error:
        raise BadInput(f"{name} cannot be unpacked: {error}") from error


def _parts(path: Path) -> Any:
    """The compressed parts of a file, each to be read; nothing of a plain one."""
    head = path.open("rb").read(6)
    openers: dict[bytes, Any] = {
        b"\x1f\x8b": gzip.open,
        b"BZh": bz2.open,
        b"\xfd7zXZ": lzma.open,
        b"\x5d\0\0": lzma.open,  # as before there was xz
    }
    if head.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                yield archive.open(entry)
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        yield _unzstd(path)
    for mark, opener in openers.items():
        if head.startswith(mark):
            yield opener(path)


def _unzstd(path: Path) -> Any:
    """Zstandard; where nothing can unpack it by pieces, nothing, and a reader will take it by lines."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        return io.BytesIO()
    return pyarrow.CompressedInputStream(str(path), "zstd")


def _tidy() -> None:
    kept = sorted((path for path in folder().iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    sizes = [sum(file.stat().st_size for file in path.iterdir()) for path in kept]
    total = sum(sizes)
    for path, size in zip(kept, sizes, strict=True):
        if total <= ALL:
            return
        shutil.rmtree(path, ignore_errors=True)
        total -= size
