"""What an LLM endpoint sees of agents: a series of long prompts that repeat themselves, but not from the start.

An agent asks the model again after every tool call, and each prompt is put together anew: a header with the time, the
instructions, the tools that fit, notes that were looked up, the latest turns of the history. Most of the text was
there the last time, at another place. :func:`sessions` writes such loops, with each of the four disturbances alone or
all together, and append-only chats as the opposite; :func:`read_chats` reads a user's own transcripts.

A *session* is a list of prompts in the order in which they were sent, a prompt an int64 array of token ids. Generated
ones are words of :data:`WORDS`, a small language with something to learn: prose with a grammar, tool results full of
facts, and turns that quote facts from results further up.

>>> loop = sessions("header", seed=0, count=1, turns=3)[0]
>>> [len(prompt) for prompt in loop]
[893, 1040, 1194]
>>> decode(loop[0][:9]), decode(loop[1][:9])
('<system> time 1 0 2 4 1 2 ;', '<system> time 1 0 2 4 7 4 ;')
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput, unreadable
from assay.sim.random import stream

Prompt = NDArray[np.int64]
Session = list[Prompt]

KINDS = ("header", "reorder", "insert", "truncate", "all", "chat")

_ROLES = "<system> <tools> <notes> <user> <assistant> <tool> <end>".split()
_SIGNS = ". ; : = , ( )".split()
_PLAIN = "time recall of call result note task".split()
_FIELDS = "status size owner port level count limit rate age depth score load".split()
_VALUES = [f"{value:02}" for value in range(100)]
_NAMES = ["".join(pair) for pair in product("ka vo ri lu mi ta so ne du pe zi gu".split(), repeat=2)]
_KNOWN = 100  # names that tool results are about; notes and tools have the others
_PROSE = [
    "".join(pair) for pair in product("ble cra dro fli gru pla sti tre".split(), "nd rk sh th ll mp ss ft".split())
]
WORDS = (*_ROLES, *_SIGNS, *_PLAIN, *"0123456789", *_FIELDS, *_VALUES, *_NAMES, *_PROSE)
VOCAB = 384  # room for WORDS, and a round size for a model
_ID = {word: place for place, word in enumerate(WORDS)}


@dataclass(frozen=True, slots=True)
class Style:
    """How long the parts of a generated prompt are."""

    system: int = 20  # sentences of instructions
    tools: int = 8
    tool: int = 5  # sentences about each tool
    result: int = 14  # lines of a tool result
    quotes: int = 4  # facts that a turn recalls
    notes: int = 2  # results looked up from elsewhere, where they are inserted
    window: int = 5  # turns of history kept, where it is truncated


def sessions(kind: str, seed: int, count: int = 4, turns: int = 8, style: Style | None = None) -> list[Session]:
    """Generated sessions of one product: they share instructions and tools, not tasks and results.

    ``header``: the time and a line about the state of things stand first and change with each prompt. ``reorder``: the
    tools come in another order each time. ``insert``: other notes are looked up before the history. ``truncate``: only
    the latest turns are kept. ``all``: these four together. ``chat``: nothing but appended turns.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is one of {', '.join(KINDS)}, not '{kind}'")
    style = style or Style()
    return [_Loop(kind, seed, number, style).prompts(turns) for number in range(count)]


def in_turn(many: Iterable[Session]) -> Iterator[Prompt]:
    """The prompts as an endpoint receives them: the first of each session, then the second of each.

    >>> [len(prompt) for prompt in in_turn([[np.zeros(1), np.zeros(2)], [np.zeros(3)]])]
    [1, 3, 2]
    """
    waiting = [iter(session) for session in many]
    while waiting:
        alive = []
        for session in waiting:
            prompt = next(session, None)
            if prompt is not None:
                yield prompt
                alive.append(session)
        waiting = alive


def decode(ids: Iterable[int]) -> str:
    """Generated ids as words.

    >>> decode([0, 7])
    '<system> .'
    """
    return " ".join(WORDS[int(i)] if 0 <= int(i) < len(WORDS) else "?" for i in ids)


# -------------------------------------------------------------------------------------------- the writer


@cache
def _grammar() -> NDArray[np.int64]:
    """Which words of the prose may follow which: five for each, the same in every text."""
    random = stream(0, "agents", "grammar")
    return np.stack([random.permutation(len(_PROSE))[:5] for _ in _PROSE])


def _sentence(random: np.random.Generator) -> list[str]:
    """Six words and, each with four chances in five, more."""
    followers = _grammar()
    length = 5 + int(random.geometric(0.2))
    word = int(random.integers(len(_PROSE)))
    words = [_PROSE[word]]
    for choice in random.integers(5, size=length - 1).tolist():
        word = int(followers[word, choice])
        words.append(_PROSE[word])
    return [*words, "."]


class _Loop:
    """One agent at work: what it is told, and what it has seen so far."""

    def __init__(self, kind: str, seed: int, number: int, style: Style) -> None:
        self.kind, self.style = kind, style
        common = stream(seed, "agents", "product")  # the same for all sessions of a seed
        self.system = [word for _ in range(style.system) for word in _sentence(common)]
        others = [str(name) for name in common.permutation(_NAMES[_KNOWN:])]
        self.tools = [self._tool(common, name) for name in others[: style.tools]]
        self.pool = [self._result(common, others)[0] for _ in range(4 * style.notes)]
        self.random = stream(seed, "agents", "session", number)
        self.unseen: list[str] = []
        self.seen: list[list[list[str]]] = []  # the facts of each result
        self.clock = 102_400 + 7_919 * number

    def _has(self, what: str) -> bool:
        return self.kind in (what, "all")

    def _tool(self, random: np.random.Generator, name: str) -> list[str]:
        about = [word for _ in range(self.style.tool) for word in _sentence(random)]
        return ["call", name, "(", *random.choice(_FIELDS, 2, replace=False).tolist(), ")", ":", *about, ";"]

    def _result(self, random: np.random.Generator, names: list[str]) -> tuple[list[str], list[list[str]]]:
        """Facts about some of the names, prose between them. Every second line is a fact."""
        chosen = [names[i] for i in random.permutation(len(names))[: (self.style.result + 1) // 2]]
        about, values = random.integers(len(_FIELDS), size=len(chosen)), random.integers(100, size=len(chosen))
        facts = [[_FIELDS[f], name, _VALUES[v]] for f, name, v in zip(about, chosen, values, strict=True)]
        lines = [word for fact in facts for word in [*fact, ";", *_sentence(random)]]
        return ["<tool>", "result", ":", *lines, "<end>"], facts

    def _turn(self) -> list[str]:
        """The assistant recalls what it read and calls a tool; the tool answers."""
        facts = [fact for result in self.seen[-self.style.window :] for fact in result]
        chosen = self.random.integers(len(facts), size=self.style.quotes) if facts else ()
        recalled = [word for i in chosen for word in ["recall", *facts[int(i)], ","]]
        if len(self.unseen) < self.style.result:
            self.unseen = [str(name) for name in self.random.permutation(_NAMES[:_KNOWN])]
        result, news = self._result(self.random, self.unseen)
        self.unseen = [name for name in self.unseen if name not in {fact[1] for fact in news}]
        self.seen.append(news)
        return ["<assistant>", *recalled, "call", news[0][1], "<end>", *result]

    def _user(self) -> list[str]:
        return ["<user>", "task", *_sentence(self.random), *_sentence(self.random), "<end>"]

    def prompts(self, turns: int) -> Session:
        """The prompt before each of the assistant's turns; the last one's answer is left to the model."""
        task = self._user()
        history: list[list[str]] = [self._turn()]
        sent = []
        for _ in range(turns):
            kept = history[-self.style.window :] if self._has("truncate") else history
            parts = [*self._head(), task, *kept, ["<assistant>"]]
            sent.append(np.array([_ID[word] for part in parts for word in part], np.int64))
            history.append(self._turn())
            if self.kind == "chat":
                history.append(self._user())
        return sent

    def _head(self) -> Iterator[list[str]]:
        self.clock += int(self.random.integers(5, 90))
        yield ["<system>", *(["time", *str(self.clock), ";", *_sentence(self.random)] if self._has("header") else [])]
        yield self.system
        order = self.random.permutation(len(self.tools)) if self._has("reorder") else range(len(self.tools))
        yield ["<tools>", *(word for i in order for word in self.tools[int(i)])]
        if self._has("insert"):
            chosen = self.random.choice(len(self.pool), self.style.notes, replace=False)
            yield ["<notes>", *(word for i in chosen for word in self.pool[int(i)])]


# ----------------------------------------------------------------------------------- a user's transcripts

_TOKEN = re.compile(r"\w+|[^\w\s]|\s+")


def tokens(words: str, unit: str = "words") -> Prompt:
    """A text as ids without a tokenizer: bytes, or words (names, signs and stretches of blanks) by their checksum.

    >>> tokens("no, no").tolist() == [tokens("no")[0], tokens(",")[0], tokens(" ")[0], tokens("no")[0]]
    True
    >>> tokens("hi", unit="bytes").tolist()
    [104, 105]
    """
    if unit == "bytes":
        return np.frombuffer(words.encode(), np.uint8).astype(np.int64)
    if unit != "words":
        raise ValueError(f"unit is 'words' or 'bytes', not '{unit}'")
    return np.array([zlib.crc32(word.encode()) for word in _TOKEN.findall(words)], np.int64)


def read_chats(path: str | PathLike[str], unit: str = "words") -> list[Session]:
    r"""Read OpenAI chat JSONL: one object with ``messages`` (and perhaps ``tools``) a line.

    A line that ends with an answer is a transcript: a session with one prompt before each of its answers, as in
    fine-tuning files. Other lines are requests as they were sent: all of them, in the file's order, are one session.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "chats.jsonl")
    ...     _ = file.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    ...     [[len(prompt) for prompt in session] for session in read_chats(file, unit="bytes")]
    [[12]]
    """
    file = Path(path)
    finished: list[Session] = []
    requests: Session = []
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise unreadable(file, error) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        head, messages = _messages(line, f"{file}:{number}")
        texts = [_message(message) for message in messages]
        answers = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        if answers and answers[-1] == len(messages) - 1:
            finished.append([tokens(head + "".join(texts[:i]), unit) for i in answers])
        else:
            requests.append(tokens(head + "".join(texts), unit))
    if not finished and not requests:
        raise BadInput(f'{file}: no chat in it; each line must be an object such as {{"messages": [...]}}')
    return finished + ([requests] if requests else [])


def _messages(line: bytes, where: str) -> tuple[str, list[dict[str, Any]]]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise BadInput(f"{where}: not JSON; each line must be one object with 'messages'") from None
    found = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(found, list) or not all(isinstance(message, dict) for message in found):
        raise BadInput(f"{where}: no list of 'messages'; expected OpenAI chat objects with role and content")
    tools = record.get("tools")
    return (f"<tools>\n{json.dumps(tools)}\n" if tools else ""), found


def _message(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):  # parts: text, images; a picture stands for itself by its address
        content = "\n".join(
            part.get("text") or json.dumps(part) if isinstance(part, dict) else str(part) for part in content
        )
    calls = message.get("tool_calls")
    return f"<|{message.get('role', '')}|>\n{content or ''}{json.dumps(calls) if calls else ''}\n"
