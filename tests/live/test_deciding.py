"""Policies at work in the gateway: for one request, for a pool, failing, and only looking on."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

pytest.importorskip("uvloop")

from assay.live.serve import Running
from tests.live.fake_engines import EVENT_STREAM, Client, ask, balanced, chat, engines, run, settings, until

CHAT = "/v1/chat/completions"


def test_a_policy_that_fails_costs_no_request(tmp_path):
    (tmp_path / "broken.py").write_text(
        "class Broken:\n    def route(self, request, fleet):\n        raise ValueError('no idea')\n"
    )

    async def test():
        async with engines("a") as (a,), Running(settings([a], policy=f"{tmp_path}/broken.py:Broken")) as running:
            assert (await ask(running.port, "POST", CHAT, chat()))[0] == 200
            assert running.gateway.counters.policy_errors == 1 and "no idea" in running.gateway.placing.error

    run(test())


def test_a_router_that_chooses_from_a_pool_works_live():
    async def test():
        async with engines("a", "b") as made, Running(settings(made, policy="balanceroute")) as running:
            answers = await asyncio.gather(*(ask(running.port, "POST", CHAT, chat(str(n) * 40)) for n in range(20)))
            assert [status for status, *_ in answers] == [200] * 20
            assert {fields["x-assay-engine"] for _, fields, _ in answers} == {"a", "b"}
            assert balanced(running) and not running.gateway.counters.policy_errors

    run(test())


def test_a_router_that_chooses_from_a_pool_is_offered_only_engines_that_are_up_and_have_the_model():
    """Idle engines are alike to it, and it takes the first: so the first one is down, and lacks the model."""

    async def test():
        async with engines("a", "b") as (a, b):
            a.models = ("other",)
            async with Running(settings([a, b], policy="balanceroute")) as running:
                await until(lambda: all(e.models for e in running.gateway.fleet.engines))
                answers = [await ask(running.port, "POST", CHAT, chat()) for _ in range(5)]
                assert {fields["x-assay-engine"] for _, fields, _ in answers} == {"b"}
                a.healthy = False
                await until(lambda: running.gateway.fleet.engines[0].state == "down")
                answers = [await ask(running.port, "POST", CHAT, chat(model="new")) for _ in range(5)]
                assert {fields["x-assay-engine"] for _, fields, _ in answers} == {"b"}
                assert balanced(running) and not running.gateway.counters.policy_errors

    run(test())


def test_what_a_pool_holds_gets_503_where_no_engine_is_up_and_where_the_gateway_stops():
    async def test():
        async with engines("a") as (a,), Running(settings([a], policy="balanceroute", inflight=1)) as running:
            a.behave = lambda exchange: None
            async with Client(running.port) as first, Client(running.port) as second:
                first.send("POST", CHAT, chat())
                await until(lambda: a.asked)
                second.send("POST", CHAT, chat())
                await until(lambda: running.gateway.placing.held)
                stopping = asyncio.ensure_future(running.stop())
                assert (await second.answer())[0] == 503
                first.writer.close()
                await stopping
        async with engines("a") as (a,), Running(settings([a], policy="balanceroute")) as running:
            a.healthy = False
            await until(lambda: running.gateway.fleet.engines[0].state == "down")
            status, fields, _ = await ask(running.port, "POST", CHAT, chat())
            assert status == 503 and fields["retry-after"] == "1"

    run(test())


def test_a_pool_s_choice_of_an_engine_that_is_not_there_is_counted_and_costs_no_request(tmp_path):
    (tmp_path / "far.py").write_text(
        "class Far:\n    def assign(self, queue, fleet):\n        return [(request, 7) for request in queue]\n"
    )

    async def test():
        async with engines("a", "b") as made, Running(settings(made, policy=f"{tmp_path}/far.py:Far")) as running:
            assert [(await ask(running.port, "POST", CHAT, chat()))[0] for _ in range(4)] == [200] * 4
            assert running.gateway.counters.policy_errors == 4 and balanced(running)

    run(test())


def test_a_shadow_reports_and_touches_nothing():
    async def test():
        async with engines("a", "b") as made, Running(settings(made, shadow="round-robin")) as running:
            long = "a common beginning " * 40
            for n in range(10):
                await ask(running.port, "POST", CHAT, chat(long + str(n)))
            report = json.loads((await ask(running.port, "GET", "/engines"))[2])["shadow"]
            assert report["decisions"] == 10 and report["errors"] == 0
            assert report["agreement"] == pytest.approx(0.5, abs=0.11)
            assert report["match_ratio"] < report["match_ratio_real"]  # round robin finds the prefix later on b
            assert sum(report["aboard"].values()) == 0 and balanced(running)

    run(test())


def test_what_is_passed_through_is_no_decision_of_any_policy():
    """Neither the view nor the shadow may take a list of models for a prompt that was scored."""

    async def test():
        async with engines("a", "b") as made, Running(settings(made, shadow="round-robin")) as running:
            await ask(running.port, "POST", CHAT, chat())
            await ask(running.port, "GET", "/v1/models")
            prompt, passed = running.gateway.placing.decisions
            assert prompt["scores"] is not None and prompt["shadow"] == "a"
            assert passed["scores"] is None and passed["shadow"] is None
            assert running.gateway.shadow.decisions == 1

    run(test())


def test_a_shadow_s_books_hold_what_real_requests_hold_and_nothing_at_their_end():
    def begin(exchange):
        exchange.begin(b"200 OK", [EVENT_STREAM])
        exchange.write(b'data: {"n":0}\n\n')

    async def test():
        async with engines("a") as (a,), Running(settings([a], shadow="vllm-v1")) as running:
            a.behave = begin
            real, books = running.gateway.fleet, running.gateway.shadow.fleet
            async with Client(running.port) as first, Client(running.port) as second:
                for client in (first, second):
                    client.send("POST", CHAT, chat("hello " * 50, stream=True))
                await until(lambda: sum(relay.first is not None for relay in running.gateway.relays) == 2)
                for exchange in a.asked:
                    exchange.write(b'data: {"n":1}\n\n')
                await until(lambda: sum(relay.tokens for relay in running.gateway.relays) == 4)
                for name in ("running", "waiting", "prefill_tokens", "kv_tokens"):
                    assert getattr(books, name).tolist() == getattr(real, name).tolist(), name
                assert real.running.tolist() == [2]
            await until(lambda: balanced(running))
            assert not any(
                np.any(getattr(books, name)) for name in ("running", "waiting", "prefill_tokens", "kv_tokens")
            )

    run(test())


def test_what_engines_refuse_a_shadow_does_not_take_for_cached_either():
    async def test():
        async with engines("a") as (a,), Running(settings([a], shadow="lmetric")) as running:
            a.behave = lambda exchange: exchange.refuse(400, "too long")
            assert (await ask(running.port, "POST", CHAT, chat("the same beginning " * 60)))[0] == 400
            assert balanced(running)
            a.behave = a.answer
            await ask(running.port, "POST", CHAT, chat("the same beginning " * 60))
            assert running.gateway.shadow.report()["match_ratio"] == 0.0

    run(test())


@pytest.mark.timed
def test_on_a_quiet_machine_no_decision_is_late():
    """With the time that a policy has by default, which other tests do not keep to."""

    async def test():
        async with engines("a", "b") as made, Running(settings(made, policy_time=0.25)) as running:
            for n in range(300):
                assert (await ask(running.port, "POST", CHAT, chat(str(n) * 400)))[0] == 200
            assert running.gateway.counters.policy_errors == 0
            assert running.gateway.counters.policy.quantile(0.99) <= 0.01

    run(test())
