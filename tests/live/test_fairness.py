"""Tenants under overload: one that sends ten times as much slows nobody more than fair shares do in the simulator.

Not the clock is asked but how many first tokens of others come before one's own: that is the same on every machine.
"""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

pytest.importorskip("uvloop")

from assay.live.serve import Running
from assay.serving.baselines.routers import RoundRobin
from assay.serving.engine import components
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import uniform
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Requests
from tests.live.fake_engines import ask, balanced, chat, engines, run, settings, until

QUIET, EACH = ("q1", "q2", "q3"), 10


def arrivals(times: int) -> list[str]:
    """Who asks, one after the other: the loud one so many times as often as each of the others."""
    return [name for _ in range(EACH) for name in (*["loud"] * times, *QUIET)]


def simulated(tenants: list[str], order: str) -> list[str]:
    """Whose first tokens come one after the other, on one instance that serves one request at a time."""
    names = tuple(sorted(set(tenants)))
    of = np.array([names.index(name) for name in tenants])
    asked = Requests.of(np.arange(len(tenants)) * 1e-6, [16] * len(of), [1] * len(of), tenant=of, tenants=names)
    fleet = uniform(1, StepCost(np.full(20, 0.01), kv_tokens=256), max_tokens=16, max_seqs=1)
    found = simulate(asked, fleet, RoundRobin(), order=components.order(order))
    first = np.asarray(found.requests.arrival + found.ttft)
    return [tenants[i] for i in np.argsort(first, kind="stable")]


def served(tenants: list[str], order: str) -> list[str]:
    """The same with the gateway, before an engine that is given one request at a time."""

    async def test() -> list[str]:
        async with engines("a") as (a,), Running(settings([a], inflight=1, order=order)) as running:
            held, came = [], []
            a.behave = held.append
            asking = []
            for n, name in enumerate(tenants):
                body = chat(f"{n:04}", user=name)
                asking.append(
                    asyncio.create_task(ask(running.port, "POST", "/v1/chat/completions", body, x_tenant=name))
                )
                await until(lambda n=n: len(running.gateway.relays) == n + 1)  # type: ignore[misc]
            while len(came) < len(tenants):
                await until(lambda: held)
                exchange = held.pop()
                came.append(json.loads(exchange.body)["user"])
                a.answer(exchange)
            assert [answer[0] for answer in await asyncio.gather(*asking)] == [200] * len(tenants)
            assert balanced(running)
            return came

    return run(test())


def behind(came: list[str]) -> float:
    """How many first tokens come before those of the quiet ones, in the mean."""
    return float(np.mean([i for i, name in enumerate(came) if name != "loud"]))


def test_ten_times_the_requests_slow_others_no_more_than_fair_shares_do_in_the_simulator():
    alone, flood = arrivals(1), arrivals(10)
    slower = behind(served(flood, "fair")) - behind(served(alone, "fair"))
    model = behind(simulated(flood, "fair")) - behind(simulated(alone, "fair"))
    assert slower <= model + 1.0  # one: whoever came first is served before there is anybody to be fair to
    unfair = behind(simulated(flood, "fcfs")) - behind(simulated(alone, "fcfs"))
    assert unfair > 10 * max(slower, 1.0)  # what it is about: first come, first served costs them that much
