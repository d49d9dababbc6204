"""Limits and budgets of keys: what a minute and a day allow, what the headers say of it, what a restart keeps."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvloop")
pytest.importorskip("prometheus_client")

from assay.live import serve
from assay.live.keys import Key, Keys
from assay.live.quotas import Allowance, Bucket, Quotas
from assay.live.serve import Running
from assay.live.settings import read, read_file
from assay.record.errors import BadInput
from tests.live.fake_engines import EVENT_STREAM, Client, ask, balanced, chat, engines, run, settings, until
from tests.live.test_accounting import STOP, TOKEN, samples, streams, summed
from tests.live.test_reload import Config, reloaded

CHAT = "/v1/chat/completions"
HOUR = 3600.0


def key(shown: str = "k", tenant: str = "acme", **limits) -> dict:
    return {"tenant": tenant, "sha256": hashlib.sha256(shown.encode()).hexdigest(), **limits}


BOSS = key("boss", "operations", admin=True)


def still(running: Running, at: float = 1000.0) -> list[float]:
    """A clock that a test turns."""
    now = [at]
    running.gateway.now = lambda: now[0]
    for purse in running.gateway.quotas.purses:
        for bucket in (purse.requests, purse.tokens):
            bucket._at = at
    return now


async def asked(running: Running, shown: str = "k", text: str = "hello", **more):
    return await ask(running.port, "POST", CHAT, chat(text, **more), authorization=f"Bearer {shown}")


@given(
    st.floats(1, 1000),
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50), st.floats(0, 50)), max_size=30),
)
def test_a_bucket_never_gives_more_than_its_rate_allows_and_its_promise_holds(rate, steps):
    now, taken = 0.0, 0.0
    bucket = Bucket(rate, now)
    for pause, count, back in steps:
        now += pause
        if bucket.take(count, now):
            taken += count
            bucket.give(min(back, count), now)
            taken -= min(back, count)
        elif count <= rate:
            wait = bucket.wait(count, now)
            assert wait > 0
            now += wait + 1e-3
            assert bucket.take(count, now)
            taken += count
        assert taken <= rate * (1 + now / 60.0) + 1e-3


def test_requests_a_minute_are_counted_by_key_and_said_as_openai_says_them():
    async def test():
        keys = [key(requests_per_minute=3), key("other", "acme"), BOSS]
        async with engines("a") as (a,), Running(settings([a], key=keys)) as running:
            now = still(running)
            for left in (2, 1, 0):
                status, fields, _ = await asked(running)
                assert (status, fields["x-ratelimit-limit-requests"]) == (200, "3")
                assert fields["x-ratelimit-remaining-requests"] == str(left)
                assert "x-ratelimit-limit-tokens" not in fields
            assert fields["x-ratelimit-reset-requests"] == "1m0s"
            status, fields, body = await asked(running)
            assert (status, fields["retry-after"], fields["x-ratelimit-remaining-requests"]) == (429, "20", "0")
            assert json.loads(body)["error"]["type"] == "rate_limit_exceeded" and len(a.asked) == 3
            assert (await asked(running, "other"))[0] == 200  # the tenant's other key
            now[0] += 20.0
            assert [(await asked(running))[0] for _ in range(2)] == [200, 429]
            found = samples((await ask(running.port, "GET", "/metrics", authorization="Bearer boss"))[2])
            named = {"tenant": "acme", "of": "requests_per_minute"}
            assert summed(found, "assay_gateway_key_limit", **named) == 3
            assert summed(found, "assay_gateway_key_refused_total", **named) == 2
            assert summed(found, "assay_gateway_key_used", **named) == 3
            assert summed(found, "assay_gateway_requests_total", tenant="acme", status="429") == 2
            assert balanced(running)

    run(test())


def test_tokens_a_minute_are_the_prompt_s_at_once_and_the_answer_s_when_it_is_over():
    async def test():
        async with engines("a") as (a,), Running(settings([a], key=[key(tokens_per_minute=100)])) as running:
            now = still(running)
            a.behave = streams(
                TOKEN, STOP, b'data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":90}}\n\n'
            )
            status, fields, _ = await asked(running, stream=True)
            left = int(fields["x-ratelimit-remaining-tokens"])
            assert status == 200 and 80 < left < 100 and fields["x-ratelimit-limit-tokens"] == "100"
            status, fields, _ = await asked(running)  # the engine counted 140
            assert status == 429 and fields["x-ratelimit-remaining-tokens"] == "0"
            wait = int(fields["retry-after"])
            assert 24 < wait < 60 and len(a.asked) == 1
            now[0] += wait
            assert (await asked(running))[0] == 200
            status, _, body = await asked(running, text="word " * 1000)
            assert status == 429 and b"and its prompt has" in body

    run(test())


def test_so_many_at_once():
    async def test():
        async with engines("a") as (a,), Running(settings([a], key=[key(parallel=2)])) as running:
            held = []
            a.behave = held.append
            asking = [asyncio.create_task(asked(running)) for _ in range(2)]
            await until(lambda: len(held) == 2)
            status, fields, _ = await asked(running)
            assert (status, fields["retry-after"]) == (429, "1")
            async with Client(running.port) as client:
                asking[0].cancel()  # who leaves makes room
                await until(lambda: len(running.gateway.relays) == 1)
                client.send("POST", CHAT, chat(), authorization="Bearer k")
                await until(lambda: len(held) == 3)
                for exchange in held[1:]:
                    a.answer(exchange)
                assert (await client.answer())[0] == (await asking[1])[0] == 200
            (purse,) = running.gateway.quotas.purses
            assert purse.running == 0 and balanced(running)

    run(test())


def test_a_budget_a_day_outlives_the_process_and_ends_at_midnight(tmp_path):
    day = [20_000 * 24 * HOUR + 23 * HOUR]
    more = {"key": [key(tokens_per_day=300), BOSS], "budgets": str(tmp_path / "kept" / "budgets.json")}

    async def day_of(count: int, expect: list[int]) -> dict:
        async with engines("a") as (a,):
            a.behave = streams(TOKEN, STOP, b'data: {"usage":{"prompt_tokens":77,"completion_tokens":23}}\n\n')
            running = Running(settings([a], **more))
            running.gateway.quotas.clock = lambda: day[0]
            async with running:
                answers = [await asked(running, stream=True) for _ in range(count)]
                assert [status for status, *_ in answers] == expect
                page = (await ask(running.port, "GET", "/metrics", authorization="Bearer boss"))[2]
                assert summed(samples(page), "assay_gateway_key_limit", of="tokens_per_day") == 300
            return answers[-1]

    async def test():
        await day_of(2, [200, 200])
        _, fields, body = await day_of(2, [200, 429])
        assert fields["retry-after"] == str(int(HOUR)) and json.loads(body)["error"]["type"] == "insufficient_quota"
        await day_of(1, [429])
        day[0] += 2 * HOUR
        await day_of(4, [200, 200, 200, 429])

    run(test())
    text = (tmp_path / "kept" / "budgets.json").read_text()
    assert "acme" not in text and hashlib.sha256(b"k").hexdigest()[:12] not in text


def test_dollars_a_day_go_by_the_model_s_price(tmp_path):
    prices = [{"model": "m", "prompt": 1000.0, "answer": 10_000.0}, {"prompt": 5.0, "answer": 5.0}]

    async def test():
        more = {"key": [key(dollars_per_day=0.6), BOSS], "price": prices}
        async with engines("a") as (a,), Running(settings([a], **more)) as running:
            a.behave = streams(TOKEN, STOP, b'data: {"usage":{"prompt_tokens":77,"completion_tokens":23}}\n\n')
            assert [(await asked(running, stream=True))[0] for _ in range(3)] == [200, 200, 429]
            page = samples((await ask(running.port, "GET", "/metrics", authorization="Bearer boss"))[2])
            assert summed(page, "assay_gateway_key_used", of="dollars_per_day") == pytest.approx(2 * (0.077 + 0.23))

    run(test())
    with pytest.raises(BadInput, match="needs a \\[\\[price\\]\\]"):
        Running(settings([], key=[key(dollars_per_day=0.5)]))


def test_what_is_under_way_counts_before_it_is_spent():
    """Many requests at once are not each let in on the same last dollar."""

    async def test():
        more = {"key": [key(dollars_per_day=1.0)], "price": [{"prompt": 1000.0}]}
        async with engines("a") as (a,), Running(settings([a], **more)) as running:
            held = []
            a.behave = held.append
            long = "a word " * 700  # 1,225 tokens and a few
            assert (await asked(running, text=long))[0] == 429 and not held
            half = [asyncio.create_task(asked(running, text=f"{n} {long[:1600]}")) for n in range(5)]
            await until(lambda: sum(task.done() for task in half) == 3)
            await until(lambda: len(held) == 2)  # 0.4 dollars each
            (purse,) = running.gateway.quotas.purses
            assert purse.promised_dollars == pytest.approx(0.8, abs=0.1) and purse.refused["dollars_per_day"] == 4
            for exchange in held:
                exchange.refuse(400, "no")
            assert sorted([(await task)[0] for task in half]) == [400, 400, 429, 429, 429]
            assert purse.promised_dollars == purse.spent_dollars == 0.0

    run(test())


def test_what_is_broken_off_is_paid_for():
    async def test():
        async with engines("a") as (a,), Running(settings([a], key=[key(tokens_per_day=100_000)])) as running:

            def begin(exchange):
                exchange.begin(b"200 OK", [EVENT_STREAM])
                exchange.write(TOKEN * 5)

            a.behave = begin
            async with Client(running.port) as client:
                client.send("POST", CHAT, chat(stream=True), authorization="Bearer k")
                await client.head()
                await client.chunk()
            await until(lambda: balanced(running))
            (purse,) = running.gateway.quotas.purses
            assert purse.spent_tokens > 5 and purse.promised == 0
            spent = purse.spent_tokens
            a.behave = lambda exchange: exchange.refuse(400, "no")
            assert (await asked(running))[0] == 400
            assert purse.spent_tokens == spent and purse.promised == 0  # what is refused costs nothing

    run(test())


def test_limits_come_from_a_file_of_keys_and_change_with_sighup(tmp_path):
    def write(limit: int) -> None:
        table = "\n".join(f"{name} = {json.dumps(value)}" for name, value in key(requests_per_minute=limit).items())
        (tmp_path / "keys.toml").write_text(f"[[key]]\n{table}\n")

    async def test():
        async with engines("a") as made:
            config = Config(tmp_path / "gateway.toml", made)
            config.write('key_file = "keys.toml"')
            write(2)
            started: list = []
            task = asyncio.create_task(
                serve.run(read_file(config.path), started.append, lambda: read_file(config.path))
            )
            await until(lambda: started)
            running = started[0]
            still(running)
            assert [(await asked(running))[0] for _ in range(3)] == [200, 200, 429]
            write(5)
            await reloaded(started)
            assert [(await asked(running))[0] for _ in range(4)] == [200, 200, 200, 429]  # two were used
            write(0)
            await reloaded(started)
            status, fields, _ = await asked(running)
            assert status == 200 and "x-ratelimit-limit-requests" not in fields
            (tmp_path / "keys.toml").write_text('[[key]]\ntenant = "acme"\nrequests_per_minute = -1')
            await reloaded(started)
            assert (await asked(running))[0] == 200  # nothing has changed
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(task, 120)

    run(test())


@pytest.mark.parametrize(
    "text, says",
    [
        ('[[key]]\ntenant = "a"\nsha256 = "%s"\nparallel = -1' % ("0" * 64), "parallel"),
        ('[[key]]\ntenant = "a"\nsha256 = "%s"\nrequests_per_minute = 1.5' % ("0" * 64), "requests_per_minute"),
        ('passthrough = ["tokenize"]', "passthrough"),
        ('key_file = "absent.toml"', "absent.toml"),
        ('[[price]]\nmodel = "m"\nprompt = -1.0', "price"),
    ],
)
def test_a_wrong_limit_is_named_in_one_line(text, says, tmp_path):
    with pytest.raises(BadInput) as caught:
        read(text.encode(), "gateway.toml", tmp_path)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_two_gateways_do_not_note_in_one_file(tmp_path):
    more = {"key": [key(tokens_per_day=300)], "budgets": str(tmp_path / "kept" / "budgets.json")}

    async def test():
        async with engines("a") as (a,):
            a.behave = streams(TOKEN, STOP, b'data: {"usage":{"prompt_tokens":277,"completion_tokens":23}}\n\n')
            async with Running(settings([a], **more)) as first:
                with pytest.raises(BadInput, match=r"another gateway notes in .*budgets\.json.*name another"):
                    async with Running(settings([a], **more)):
                        pass
                assert (await asked(first, stream=True))[0] == 200
            async with Running(settings([a], **more)) as second:  # as soon as the first has ended
                assert (await asked(second, stream=True))[0] == 429

    run(test())


def test_the_last_note_is_not_written_over_by_the_one_before_it(tmp_path):
    quotas = Quotas(tmp_path / "budgets.json")
    quotas.renew(Keys([Key(b"k" * 32, "acme", allowance=Allowance(tokens_per_day=300))]), (), 0.0)
    (purse,) = quotas.purses
    waiting: list[Callable[[], None]] = []
    for spent in (1, 2):
        purse.spent_tokens, quotas._dirty = spent, True
        quotas.note(waiting.append if spent == 1 else None)
    for write in waiting:  # by a thread that was slow
        write()
    assert msgspec.json.decode((tmp_path / "budgets.json").read_bytes())["spent"] == {purse.name: [2, 0.0]}


def test_notes_that_are_none_are_refused_with_the_cure(tmp_path):
    async def test():
        (tmp_path / "budgets").write_text("{")
        async with engines("a") as (a,):
            with pytest.raises(BadInput, match="remove it"):
                async with Running(settings([a], key=[key(tokens_per_day=1)], budgets=str(tmp_path / "budgets"))):
                    pass

    run(test())


@pytest.mark.parametrize(
    "listed, open_to",
    [(None, set()), (False, set()), (["/tokenize"], {"/tokenize"}), (["/to*"], {"/tokenize"}),
     (True, set()), (["/*"], {"/tokenize", "/reset_prefix_cache"})],
)  # fmt: skip
def test_with_keys_engine_paths_are_closed_unless_listed(listed, open_to):
    async def test():
        more = {} if listed is None else {"passthrough": listed}
        async with engines("a") as (a,), Running(settings([a], key=[key()], **more)) as running:
            for path in ("/tokenize", "/reset_prefix_cache"):
                status, *_ = await ask(running.port, "POST", path, b"{}", authorization="Bearer k")
                assert (status == 200) == (path in open_to), path
            assert len(a.asked) == len(open_to)
            for path in ("/v1/files", "/v1/batches"):
                assert (await ask(running.port, "GET", path, authorization="Bearer k"))[0] == (
                    200 if listed == ["/*"] else 404
                )
            asked = len(a.asked)
            for method, path in (  # which some engines take for loading, unloading and forgetting what all of them use
                ("POST", "/v1/models"), ("DELETE", "/v1/models/m"), ("POST", "/v1/models/m/load"),
                ("DELETE", "/v1/audio/voices"), ("PUT", "/v1/files/f"),
            ):  # fmt: skip
                status, *_ = await ask(running.port, method, path, b"{}", authorization="Bearer k")
                closed = 405 if path == "/v1/models" else 404
                assert status == (200 if listed == ["/*"] else closed), (method, path)
            assert len(a.asked) - asked == (4 if listed == ["/*"] else 0)  # POST /v1/models it does not write down
            assert (await ask(running.port, "GET", "/v1/models/m", authorization="Bearer k"))[0] == (
                404 if listed is False else 200
            )
        async with engines("a") as (a,), Running(settings([a])) as running:  # without keys as ever
            assert (await ask(running.port, "POST", "/tokenize", b"{}"))[0] == 200

    run(test())
