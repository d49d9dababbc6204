"""Just enough of S3 over a real socket to put, get, list and delete, and to answer 503 when it is told to."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape


class SmallS3(ThreadingHTTPServer):
    """One bucket in memory. `room`: so many changes are answered, all later ones get a 503."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.room = 10**9
        self.refused = 0

    def handle_error(self, request: object, client_address: object) -> None:
        """Who asked has gone: nothing to tell."""

    @property
    def environment(self) -> dict[str, str]:
        """What a client has to know."""
        keys = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_REGION": "us-east-1"}
        return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_address[1]}", **keys}


class _Request(BaseHTTPRequestHandler):
    server: SmallS3
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        """Small answers must not wait for one another."""
        super().setup()
        self.connection.setsockopt(6, 1, 1)  # TCP_NODELAY

    def log_message(self, *_: object) -> None:
        """Nothing."""

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"ETag": f'"{md5(body).hexdigest()}"', "Last-Modified": formatdate(usegmt=True)}.items():
            self.send_header(name, value)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuses(self) -> bool:
        """Whether this change finds the store too busy."""
        with self.server.lock:
            self.server.room -= 1
            if self.server.room >= 0:
                return False
            self.server.refused += 1
        self.answer(503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
        return True

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.refuses():
            return
        with self.server.lock:
            there = self.key in self.server.objects
            if there and self.headers.get("If-None-Match") == "*":
                code = 412
            else:
                self.server.objects[self.key], code = data, 200
        self.answer(code)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self.answer(200, self._listing(query))
            return
        data = self.server.objects.get(self.key)
        if data is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        if found := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(found[1]), min(int(found[2]), len(data) - 1)
            if first >= len(data):
                self.answer(416)
                return
            self.answer(206, data[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(data)}")
            return
        self.answer(200, data)

    def do_HEAD(self) -> None:
        data = self.server.objects.get(self.key)
        self.answer(404) if data is None else self.answer(200, data)

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        keys = sorted(key for key in list(self.server.objects) if key.startswith(prefix) and key > after)
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.objects[key])}</Size><ETag>0</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self.refuses():
            return
        keys = re.findall(r"<Key>(.*?)</Key>", body)
        with self.server.lock:
            for key in keys:
                self.server.objects.pop(unescape(key), None)
        gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self.answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())


@contextmanager
def small_s3() -> Iterator[SmallS3]:
    """The server, while it runs.

    >>> from urllib.request import urlopen
    >>> with small_s3() as s3:
    ...     s3.objects["a"] = b"bytes"
    ...     urlopen(s3.environment["AWS_ENDPOINT_URL"] + "/bucket/a", timeout=5).read()
    b'bytes'
    """
    with SmallS3() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()
