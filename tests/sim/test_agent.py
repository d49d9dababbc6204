"""Asking a language model: a real server that answers as such endpoints do, refuses, talks, or breaks off."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from assay.sim.agent import MOST, Refused, ask


def chat(content: Any, **message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": "stop"}
    return json.dumps({"id": "1", "object": "chat.completion", "choices": [choice]}).encode()


@pytest.fixture
def server() -> Iterator[Any]:
    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.asked.append((self.path, body, self.headers.get("Authorization")))  # type: ignore[attr-defined]
            status, answer = self.server.answers.pop(0)  # type: ignore[attr-defined]
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    found: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    found.asked, found.answers = [], []
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


def of(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_port}/v1"


QUESTION = [{"role": "user", "content": "which?"}]


def test_an_answer_comes_as_the_type_that_was_asked_for(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server.answers = [(200, chat('{"chunk": 4}')), (200, chat('Sure!\n```json\n{"chunk": 2}\n```\nGood luck.'))]
    assert ask(of(server), QUESTION, dict[str, int], model="m") == {"chunk": 4}
    assert ask(of(server), QUESTION, dict[str, int]) == {"chunk": 2}
    path, body, key = server.asked[0]
    assert (path, body["model"], body["messages"], key) == ("/v1/chat/completions", "m", QUESTION, "Bearer secret")


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (200, chat(None, refusal="I cannot help with that"), "refused: I cannot"), (200, chat("No idea."), "no JSON"),
        (200, chat('{"chunk": "many"}'), "not what was asked"), (200, b"<html>", "no chat completion"),
        (200, b'{"choices": []}', "no chat completion"), (200, chat(None), "no text"), (500, b"oops", "HTTPError 500"),
        (200, b"x" * (MOST + 9), "more than"), (200, chat('{"chunk": 4'), "no JSON"), (200, b"[1]", "no chat"),
    ],
)  # fmt: skip
def test_whatever_else_comes_is_a_refusal(server: Any, status: int, answer: bytes, why: str) -> None:
    server.answers = [(status, answer)]
    with pytest.raises(Refused, match=why):
        ask(of(server), QUESTION, dict[str, int])


def test_nobody_there_is_a_refusal_and_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with pytest.raises(Refused, match="does not answer") as found:
        ask("http://127.0.0.1:9/v1", QUESTION, dict[str, int], timeout=2.0)
    assert "secret" not in str(found.value)
