"""Files as people have them: packed in one of several ways, in capitals, in UTF-16; as bytes of UTF-8.

What is packed in a way that is not read here is refused by its name: read as text it would be a file without documents.

>>> import bz2, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder, "A.JSONL.BZ2")
...     _ = path.write_bytes(bz2.compress('{"a": 1}'.encode("utf-16")))
...     with opened(path) as (stream, _):
...         kind(path), stream.read()
('.jsonl', b'{"a": 1}')
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from assay.record.errors import BadInput, unreadable
from assay.record.extras import missing_module

PACKED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".lzma": "xz", ".zst": "zstd", ".zstd": "zstd"}
UNREAD = {
    ".lz4": "lz4", ".br": "brotli", ".sz": "snappy", ".snappy": "snappy", ".z": "compress", ".lzo": "lzo", ".7z": "7z",
    ".zip": "zip", ".tar": "tar", ".tgz": "tar", ".rar": "rar",
}  # fmt: skip
LINES = (".jsonl", ".ndjson", ".json")
TABLES = {".csv": ",", ".tsv": "\t"}
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\3\4": "zip"}
_HEAD = 32  # bytes by which an encoding is known
_LETTERS = frozenset(b"\t\r\n") | frozenset(range(32, 127))
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip


def kind(path: Path) -> str:
    """What is in a file by its name, without how it is packed: .jsonl, .csv, .parquet, …

    >>> kind(Path("a.JSONL.gz")), kind(Path("b.parquet")), kind(Path("c"))
    ('.jsonl', '.parquet', '')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return ".parquet" if suffixes[-1:] == [".pq"] else suffixes[-1] if suffixes else ""


def readable(path: Path) -> None:
    """BadInput for what is packed in a way that is not read here.

    >>> readable(Path("a.jsonl.lz4"))
    Traceback (most recent call last):
    assay.record.errors.BadInput: a.jsonl.lz4 is packed by lz4; unpack it, or pack it with gzip, bzip2, xz or zstd
    """
    if (packed := UNREAD.get(path.suffix.lower()) or UNREAD.get(kind(path))) is not None:  # x.tar.gz, too
        raise BadInput(f"{path} is packed by {packed}; unpack it, or pack it with gzip, bzip2, xz or zstd")


Bad = Callable[[str, str], None]  # where, and what is wrong there


def refused(where: str, why: str) -> None:
    """What is done with a bad row where nobody said that it may be left out.

    >>> refused("a.jsonl, line 3", " has no text")
    Traceback (most recent call last):
    assay.record.errors.BadInput: a.jsonl, line 3 has no text
    """
    raise BadInput(where + why)


@dataclass
class Unended:
    """Files whose last line has no end, and is held back: perhaps it is half of one.

    Many files simply have no last newline, so the line counts unless somebody writes on: as the system knows of this
    file, or as the user says of all (`growing`).
    """

    growing: bool = False
    files: set[Path] = field(default_factory=set)

    def waits(self, path: Path, size: int) -> bool:
        """Whether a file's last line is held back; `size` is what the file had before it was read."""
        if self.growing or open_to_write(path) or path.stat().st_size != size:
            self.files.add(path)
        return path in self.files

    def said(self) -> str:
        """What is said of them.

        >>> Unended(files={Path("a.txt")}).said()
        '1 unfinished line held back in a.txt: somebody writes on; run it again when the line has its end.'
        """
        some = ", ".join(map(str, sorted(self.files)[:3])) + (", …" if len(self.files) > 3 else "")
        count = len(self.files)
        what, it = ("1 unfinished line", "the line has its end") if count == 1 else (
            f"{count:,} unfinished lines", "the lines have their ends"
        )  # fmt: skip
        return f"{what} held back in {some}: somebody writes on; run it again when {it}."


def open_to_write(path: Path) -> bool:
    """Whether some process has a file open to write, as far as the system tells: Linux, of one's own files.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     open_to_write(Path(file.name))
    True
    """
    try:
        from fcntl import F_RDLCK, F_SETLEASE, F_SETSIG, F_UNLCK, fcntl
        from signal import SIGURG
    except ImportError:
        return False
    with path.open("rb") as file:
        try:
            fcntl(file, F_SETSIG, SIGURG)  # what comes if a writer does just now; by default it would end the process
            fcntl(file, F_SETLEASE, F_RDLCK)  # granted where nobody has it open to write
            fcntl(file, F_SETLEASE, F_UNLCK)
        except BlockingIOError:
            return True
        except OSError:  # somebody else's file, or a file system that does not know
            return False
    return False


@contextmanager
def opened(path: Path, right: str = "", cure: str = "fetch it again") -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A file's content, unpacked and as UTF-8, and the file itself, whose place says how far reading has come."""
    readable(path)
    packed = PACKED.get(path.suffix.lower())
    try:
        with ExitStack() as held:
            raw: IO[bytes] = held.enter_context(path.open("rb"))
            stream = held.enter_context(_unpacked(raw, packed, path))
            yield _as_utf8(stream, path), raw
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise BadInput(
            f"{path} is no whole {packed or 'gzip'} file, it ends early or is damaged: {error}; {cure}"
        ) from error
    except UnicodeError as error:
        said = "its first bytes name, or ends in the middle of a character"
        raise BadInput(f"{path} is no text in the encoding that {said}: {error}") from error
    except OSError as error:
        if packed and error.errno is None:  # of the unpacker
            raise BadInput(f"{path} is no whole {packed} file, it ends early or is damaged: {error}; {cure}") from error
        raise unreadable(path, error, right) from error


def _unpacked(raw: IO[bytes], packed: str | None, path: Path) -> Any:
    if packed == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if packed == "bzip2":
        return bz2.BZ2File(raw)
    if packed == "xz":
        return lzma.LZMAFile(raw)
    if packed == "zstd":
        try:
            import pyarrow
        except ModuleNotFoundError as error:
            raise BadInput(missing_module(f"reading {path}", error)) from error
        return io.BufferedReader(_Arrow(pyarrow.CompressedInputStream(raw, "zstd")))
    return io.BufferedReader(cast(io.RawIOBase, raw))


def _marked(head: bytes, path: Path) -> None:
    """Refuse what does not say that it is packed, or UTF-16: its lines would be read as text with zeros in it."""
    if kind(path) in (*LINES, *TABLES, ".txt"):
        for magic, packed in _MAGIC.items():
            if head.startswith(magic) and not set(head) <= _LETTERS:
                raise BadInput(f"{path} is packed by {packed}, and its name does not say so; rename or unpack it")
    even, odd = head[::2], head[1::2]
    for name, letters, zeros in (("little", even, odd), ("big", odd, even)):
        if len(head) >= 4 and not any(zeros) and all(letter in _LETTERS for letter in letters):
            raise BadInput(f"{path} is UTF-16 ({name}-endian) without the mark that says so; save it as UTF-8")


class _Arrow(io.RawIOBase):
    """pyarrow's stream as Python's."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        found = self._stream.read(len(into))
        into[: len(found)] = found
        return len(found)


class _Encoded(io.RawIOBase):
    """Text of any encoding as UTF-8."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text, self._left = text, b""

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        if not self._left:
            self._left = self._text.read(1 << 16).encode()
        found, self._left = self._left[: len(into)], self._left[len(into) :]
        into[: len(found)] = found
        return len(found)


def _as_utf8(stream: Any, path: Path) -> IO[bytes]:
    head = stream.peek(_HEAD)[:_HEAD]
    encoding = next((name for mark, name in _MARKS if head.startswith(mark)), None)
    if encoding is None:
        _marked(head, path)
        return cast(IO[bytes], stream)
    if encoding == "utf-8-sig":
        stream.read(len(codecs.BOM_UTF8))
        return cast(IO[bytes], stream)
    return cast(IO[bytes], io.BufferedReader(_Encoded(io.TextIOWrapper(stream, encoding, newline=""))))
