"""Ask a language model for a structured answer: any OpenAI-compatible endpoint, or a reason why there is none.

A model may refuse, answer beside the question or not at all; none of that is an error of whoever asked. :func:`ask`
gives an answer of the wanted type, or raises :class:`Refused`, which says in a line what came instead.

>>> read('Of course:\\n```json\\n{"chunk": 4}\\n```', dict[str, int])
{'chunk': 4}
>>> read("I would rather not.", dict[str, int])
Traceback (most recent call last):
assay.sim.agent.Refused: no JSON in the answer: I would rather not.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
KEY = "OPENAI_API_KEY"  # where users of such endpoints keep theirs; sent if it is set, never shown
MOST = 1 << 20  # bytes of an answer


class Refused(ValueError):  # noqa: N818 - read as a sentence
    """The model gave no answer that could be used."""


def ask(
    url: str, messages: Sequence[Mapping[str, str]], schema: type[T], timeout: float = 60.0, *, model: str = "default"
) -> T:
    """The answer to a conversation, as `schema`.

    Args:
        url: the endpoint's address up to and with `/v1`.
        messages: of the conversation, each with a role and a content.
        schema: a type that msgspec reads.
        timeout: seconds without a word from the endpoint.
        model: as the endpoint calls it.

    Raises:
        Refused: no answer, a refusal, or something else than was asked for.
    """
    body = json.dumps({"model": model, "messages": list(messages)}).encode()
    headers = {"Content-Type": "application/json"}
    if os.environ.get(KEY):
        headers["Authorization"] = f"Bearer {os.environ[KEY]}"
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            raw = answer.read(MOST + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        code = f" {error.code}" if isinstance(error, urllib.error.HTTPError) else ""
        raise Refused(f"{url} does not answer: {type(error).__name__}{code}") from None
    if len(raw) > MOST:
        raise Refused(f"{url} answered with more than {MOST} bytes")
    return read(_content(raw), schema)


def _content(raw: bytes) -> str:
    """The text of the first choice."""
    try:
        choice = json.loads(raw)["choices"][0]
        message = choice["message"]
        if message.get("refusal") or choice.get("finish_reason") == "content_filter":
            raise Refused(f"refused: {_short(str(message.get('refusal') or 'content filter'))}")
        content: Any = message["content"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused("no chat completion came back") from None
    if not isinstance(content, str):
        raise Refused("the answer has no text")
    return content


def read(text: str, schema: type[T]) -> T:
    """The JSON in an answer, bare, fenced or between sentences."""
    fenced = re.search(r"```(?:json)?\s*(.*?)```", text, re.DOTALL)
    inner = fenced[1] if fenced else text[text.find("{") : text.rfind("}") + 1]
    if not inner.strip():
        raise Refused(f"no JSON in the answer: {_short(text)}")
    try:
        return msgspec.json.decode(inner.encode(), type=schema)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Refused(f"not what was asked for: {_short(str(error))}") from None


def _short(text: str) -> str:
    return " ".join(text.split())[:120]
