"""Large requests are read as all others, but piece by piece."""

from __future__ import annotations

import asyncio
import json
import random
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvloop")

from assay.live import api, large
from assay.live.serve import Running
from assay.live.tokens import ByteTokens
from tests.live.fake_engines import Client, ask, balanced, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"
TEXTS = st.text(st.sampled_from('ab"\\/\n\té\u20ac\U0001f600\ud83d\ude00\x00{}[],:'), max_size=300)


def all_of(steps):
    """What a reading returns, and how often it gave way."""
    given_way = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, given_way
        given_way += 1


def rename(body: bytes) -> bytes:
    return api.edited(body, {"model": "another", "stream": False})


def same(body: bytes, endpoint: str) -> None:
    whole = api.read(body, endpoint)
    (found, short), _ = all_of(large.read(body, endpoint, ByteTokens(), 1 << 20))
    assert b"".join(short.edited(body, lambda small: small)) == body
    if b'"model"' in body and whole is not None:
        assert b"".join(short.edited(body, rename)) == rename(body)
    if whole is None:  # half a surrogate pair, say
        assert found == api.outline(body)
        return
    assert isinstance(found, large.Asked)
    row, count = api.tokens(whole, endpoint, ByteTokens())
    assert np.array_equal(found.row, row) and found.count == count
    ours = found.ask
    assert (ours.model, ours.stream, ours.limit, ours.user) == (whole.model, whole.stream, whole.limit, whole.user)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from(["chat", "completion", "responses", "parts"]),
       st.booleans(), st.integers(1, 40))  # fmt: skip
def test_a_large_request_is_read_as_a_small_one(texts, kind, plain, times):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("PIECE", 64), ("_LONG", 100), ("_KEPT", 40)):
            patch.setattr(large, name, value)
        said = [text * times for text in texts]
        asked: dict = {"model": "m", "max_tokens": 7, "stream": True, "user": "u"}
        if kind == "completion":
            asked["prompt"] = said[0]
        elif kind == "responses":
            asked |= {"input": [{"role": "user", "content": text} for text in said], "instructions": "be kind"}
        elif kind == "parts":
            asked["messages"] = [{"role": "user", "content": [{"type": "text", "text": text} for text in said]}]
        else:
            asked["messages"] = [{"role": "user", "content": text} for text in said]
        body = json.dumps(asked, ensure_ascii=plain).encode("utf-8", "replace")
        same(body, "chat" if kind == "parts" else kind)


@pytest.mark.parametrize("text", ["plain words and no end " * 1_400_000, 'é\n"\\ \U0001f600' * 1_500_000])
def test_a_prompt_of_30_mb_gives_way_after_every_64_kib(text):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    assert len(body) > 30e6
    (found, _), given_way = all_of(large.read(body, "chat", ByteTokens(), 1 << 18))
    assert given_way >= len(body) / large.PIECE
    size = len(text.encode())
    assert len(found.row) == 1 << 18 and abs(found.count - size / 4) < 10


def test_no_step_of_it_looks_at_much_more_than_a_piece(monkeypatch):
    """The work between two turns of others is bounded, whatever the request is made of."""
    draw = random.Random(1)
    texts = ["x" * draw.choice((10, 1000, 9000, 200_000)) + '\\"' * draw.choice((0, 5, 5000)) for _ in range(60)]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text} for text in texts]}).encode()
    seen, most = 0, 0

    class Watched:
        def match(self, data, start, stop):
            nonlocal seen
            found = large_inside.match(data, start, stop)
            seen += found.end() - start
            return found

    large_inside = large._INSIDE
    monkeypatch.setattr(large, "_INSIDE", Watched())
    for _ in large.read(body, "chat", ByteTokens(), 1 << 18):
        most, seen = max(most, seen), 0
    assert most <= 3 * large.PIECE


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "prompt": "' + b"x" * 300_000,
        b'{"model": "m", "prompt": "' + b"x" * 300_000 + b"\\",
        b'{"model": "m", "prompt": "' + b"\\u12" * 100_000 + b'"}',
        b'{"model": "m", "prompt": "' + b"\xff" * 300_000 + b'"}',
        b"[" * 300_000,
        b'"' * 300_001,
        b'{"model": "m", "prompt": ' + b"[1," * 200_000,
        b"\x00" * 300_000,
    ],
)
def test_what_is_no_request_is_none_however_large(body):
    (found, _), _ = all_of(large.read(body, "completion", ByteTokens(), 1 << 18))
    assert isinstance(found, api.Outline) or found.ask.model == "m"


def test_very_many_values_are_not_read_but_their_model_is():
    body = json.dumps({"model": "m", "stream": True, "prompt": list(range(2_000_000))}).encode()
    (found, short), given_way = all_of(large.read(body, "completion", ByteTokens(), 1 << 18))
    assert isinstance(found, api.Outline) and (found.model, found.stream) == ("m", True)
    assert given_way >= len(body) / large.PIECE and short.many
    assert json.loads(b"".join(api.renamed(body, "x"))) == json.loads(body) | {"model": "x"}


TEXT = b"x" * 6000
MANY_TEXTS = {
    "messages": b'{"model": "m", "messages": [%b]}' % b",".join([b'{"role": "user", "content": "%b"}' % TEXT] * 1000),
    "parts": b'{"model": "m", "messages": [{"role": "user", "content": [%b]}]}'
    % b",".join([b'{"type": "text", "text": "%b"}' % TEXT] * 1000),
    "texts": b'{"model": "m", "prompt": [%b]}' % b",".join([b'"%b"' % TEXT] * 1000),
    "long numbers": b'{"model": "m", "prompt": [%b]}' % b",".join([b"1" * 400] * 20_000),
    "spaces": b'{"model": "m"%b, "prompt": "x"}' % (b" " * (5 << 20)),
}


@pytest.mark.parametrize("kind", MANY_TEXTS)
def test_what_is_large_by_many_texts_or_by_none_is_not_read_at_once(monkeypatch, kind):
    """No text of it is long: what is left when long ones are abbreviated would be all of it."""
    body, endpoint, read = MANY_TEXTS[kind], "chat" if b"messages" in MANY_TEXTS[kind] else "completion", []
    for name in ("read", "outline"):
        known = getattr(api, name)
        monkeypatch.setattr(api, name, lambda piece, *more, known=known: read.append(len(piece)) or known(piece, *more))
    (found, short), _ = all_of(large.read(body, endpoint, ByteTokens(), 1 << 18))
    assert sum(read) < len(body) / 10
    assert found.model == "m" if isinstance(found, api.Outline) else found.ask.model == "m"
    if kind == "messages":
        assert len(found.row) == 1 << 18 and abs(found.count - 1000 * (1500 + 2)) < 10
        assert b"".join(short.edited(body, rename)) == rename(body)


@pytest.mark.parametrize(
    "endpoint, body",
    [
        ("chat", b'{"model": "m", "messages": [{"role": "user", "content": [%b1]}]}' % (b"1," * 60_000)),
        ("messages", b'{"model": "m", "messages": [], "system": [%b1]}' % (b"1," * 60_000)),
        ("responses", b'{"model": "m", "input": [%b{}]}' % (b"{}," * 20_000)),
        ("completion", b'{"model": "m", "prompt": [%b[1]]}' % (b"[1]," * 40_000)),
        ("completion", b'{"model": "m", "prompt": [%b"a"]}' % (b'"a",' * 40_000)),
    ],
)
def test_very_many_parts_are_not_looked_at_one_by_one(monkeypatch, endpoint, body):
    def never(*_):
        raise AssertionError("each of them")

    for name in ("chat", "prompt"):
        monkeypatch.setattr(ByteTokens, name, never)
    (found, _), _ = all_of(large.read(body, endpoint, ByteTokens(), 1 << 18))
    assert isinstance(found, api.Outline) and found.model == "m"
    if endpoint != "completion":
        assert api.read(body, endpoint) is None


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("prompt", ["so it goes, " * 200_000, list(range(400_000))], ids=["a text", "token ids"])
def test_what_an_alias_changes_in_a_large_request_is_changed_without_looking_at_all_of_it(monkeypatch, prompt, last):
    looked: list[int] = []
    edited = api.edited
    monkeypatch.setattr(api, "edited", lambda body, **more: looked.append(len(body)) or edited(body, **more))
    asked = {"prompt": prompt, "seed": 7, "model": "assistant"} if last else {"model": "assistant", "prompt": prompt}

    async def test():
        more = {"model": [{"name": "assistant", "to": ["m"]}]}
        async with engines("a") as (a,), Running(settings([a], **more)) as running:
            body = json.dumps(asked).encode()
            assert (await ask(running.port, "POST", "/v1/completions", body))[0] == 200
            assert json.loads(a.asked[0].body) == asked | {"model": "m"} and balanced(running)
        assert not looked or max(looked) <= large.LARGE

    run(test())


def test_a_tokenizer_works_on_a_large_prompt_while_others_are_answered(monkeypatch):
    """A megabyte takes it a second: it is called beside the loop."""
    main, may, began = threading.current_thread(), threading.Event(), threading.Event()

    class Tokenizer:
        def chat(self, messages, tools=None):
            if sum(len(message.text) for message in messages) > large.LARGE:
                began.set()
                assert threading.current_thread() is not main and may.wait(120.0)
            return ByteTokens().chat(messages, tools)

    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            running.gateway.tokenizer = Tokenizer()
            large_one = asyncio.create_task(ask(running.port, "POST", CHAT, chat("so it goes, " * 100_000)))
            await until(began.is_set)
            for n in range(3):
                assert (await ask(running.port, "POST", CHAT, chat(f"small {n}")))[0] == 200
            assert len(a.asked) == 3
            async with Client(running.port) as client:  # who leaves while its prompt waits for its turn is forgotten
                client.send("POST", CHAT, chat("so it goes on, " * 100_000))
                await until(lambda: len(running.gateway._reading) == 2)
            await until(lambda: running.gateway.counters.requests["chat", 499] == 1)
            may.set()
            assert (await large_one)[0] == 200
            await until(lambda: balanced(running))
            assert len(a.asked) == 4

    run(test())


@pytest.mark.parametrize("path", ["/v1/batches", "/tokenize"])
def test_large_json_on_other_paths_gives_way_too(path):
    body = json.dumps({"text": "so it goes, " * 200_000, "model": "m"}).encode()

    async def test():
        async with engines("a") as (a,), Running(settings([a])) as running:
            task = asyncio.create_task(ask(running.port, "POST", path, body))
            await until(lambda: running.gateway._reading)
            assert (await task)[0] == 200 and a.asked[0].body == body

    run(test())


def test_others_are_answered_while_a_large_prompt_is_read_and_who_sent_it_may_leave():
    body = chat("so it goes, " * 2_600_000)

    async def test():
        async with engines("a", "b") as (a, b), Running(settings([a, b])) as running:
            large_one = asyncio.create_task(ask(running.port, "POST", CHAT, body))
            await until(lambda: running.gateway._reading or large_one.done())
            answered = 0
            while running.gateway._reading:
                assert (await ask(running.port, "POST", CHAT, chat(f"small {answered}")))[0] == 200
                answered += 1
            assert answered > 10  # none of them had to wait for the end of it
            assert (await large_one)[0] == 200
            big = max((*a.asked, *b.asked), key=lambda exchange: len(exchange.body))
            assert big.body == body
            async with Client(running.port) as client:
                client.send("POST", CHAT, body)
                await until(lambda: running.gateway._reading)
            await until(lambda: balanced(running))
            assert running.gateway.counters.requests["chat", 499] == 1
            assert (await ask(running.port, "POST", CHAT, body))[1]["x-assay-engine"]  # and once more

    run(test())


def test_a_large_prompt_goes_where_its_beginning_is_cached():
    async def test():
        async with engines("a", "b") as made, Running(settings(made)) as running:
            long = "the same beginning, and on and on " * 20_000
            found = [
                (await ask(running.port, "POST", CHAT, chat(long + str(n))))[1]["x-assay-engine"] for n in range(5)
            ]
            assert len(set(found)) == 1

    run(test())
