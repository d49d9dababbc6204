"""The signals of a live fleet, beside those of the simulated engine that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.live.engines import Engine, LiveFleet
from assay.live.prefix_index import PrefixIndex
from assay.live.upstream import Address, Pool
from assay.serving.engine.online import OnlineInstance
from assay.serving.fleet import parse
from assay.serving.interface import Request

HUNDRED = Request("of a hundred tokens", 0.0, prompt=100)


def fleet_of(count: int) -> LiveFleet:
    """A live fleet of engines that nobody talks to."""
    fleet = LiveFleet(PrefixIndex())
    for number in range(count):
        address = Address.of(f"http://127.0.0.1:{9000 + number}")
        fleet.add(Engine(address, Pool(address)))
    return fleet


def send(fleet: LiveFleet, i: int, name: int = 0) -> Request:
    request = Request(name, 0.0, prompt=100)
    fleet.sent(i, request, 100)
    fleet.engines[i].aboard += 1
    return request


def test_an_idle_engine_takes_a_request_at_once_and_a_busy_one_after_its_next_token():
    fleet = fleet_of(1)
    send(fleet, 0)
    assert (fleet.running[0], fleet.waiting[0]) == (1, 0)
    send(fleet, 0, 1)
    assert (fleet.running[0], fleet.waiting[0]) == (1, 1)
    fleet.began(0, HUNDRED, 100, 0.1)
    assert (fleet.running[0], fleet.waiting[0]) == (2, 0)


def test_a_queue_that_an_engine_told_of_is_gone_when_its_requests_have_tokens():
    fleet = fleet_of(1)
    for name in range(4):
        send(fleet, 0, name)
    fleet.told(0, waiting=3, load=4, aboard=4)
    assert (fleet.running[0], fleet.waiting[0]) == (1, 3)
    for _ in range(4):
        fleet.began(0, HUNDRED, 100, 0.1)
    assert (fleet.running[0], fleet.waiting[0]) == (4, 0)


def test_who_comes_to_a_full_engine_waits_although_tokens_come():
    fleet = fleet_of(1)
    for name in range(4):
        send(fleet, 0, name)
    fleet.began(0, HUNDRED, 100, 0.1)
    fleet.told(0, waiting=2, load=4, aboard=4)
    send(fleet, 0, 4)
    fleet.streamed(0, 1, 0.02)
    assert (fleet.running[0], fleet.waiting[0]) == (2, 3)


def test_free_memory_follows_what_sequences_take_and_give_back():
    fleet = fleet_of(2)
    request = send(fleet, 0)
    send(fleet, 1, 1)
    fleet.told_free(0, 0.5, 1000)
    fleet.began(0, HUNDRED, 100, 0.1)
    fleet.streamed(0, 50, 0.02)
    assert fleet.kv_free.tolist() == pytest.approx([0.35, 1.0])
    fleet.told_free(0, 0.3, 1000)
    assert fleet.kv_free[0] == pytest.approx(0.3)
    fleet.ended(0, request, 150, 0)
    assert fleet.kv_free.tolist() == [1.0, 1.0]


@given(st.lists(st.tuples(st.sampled_from(["send", "first", "more", "end", "told"]), st.integers(0, 30)), max_size=60))
@settings(deadline=None)
def test_whatever_happens_every_request_either_runs_or_waits_and_at_the_end_none_does(events):
    fleet, silent, begun = fleet_of(1), [], []
    engine = fleet.engines[0]
    for number, (kind, pick) in enumerate(events):
        if kind == "send":
            silent.append(send(fleet, 0, number))
        elif kind == "first" and silent:
            begun.append(silent.pop(pick % len(silent)))
            fleet.began(0, HUNDRED, 100, None)
        elif kind == "more" and begun:
            fleet.streamed(0, 0, 0.01)
        elif kind == "end" and silent + begun:
            request = (silent + begun)[pick % len(silent + begun)]
            late = request in silent
            (silent if late else begun).remove(request)
            engine.aboard -= 1
            fleet.ended(0, request, 0 if late else 100, 100 if late else 0)
        elif kind == "told":
            fleet.told(0, pick, engine.aboard, engine.aboard)
        assert fleet.batch_size[0] == engine.aboard == len(silent) + len(begun)
        assert 0 <= fleet.waiting[0] <= len(silent)
        assert fleet.running[0] >= 0
    for request in silent:
        fleet.ended(0, request, 0, 100)
    for request in begun:
        fleet.ended(0, request, 100, 0)
    assert [int(a[0]) for a in (fleet.running, fleet.waiting, fleet.prefill_tokens, fleet.kv_tokens)] == [0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_the_queue_is_as_long_as_that_of_the_simulated_engine(seed):
    """The fleet hears of requests and tokens only; an iteration that ends without a token it cannot hear of."""
    draw = np.random.default_rng(seed)
    instance = OnlineInstance(parse("1xa100:qwen3-8b").instances[0])
    fleet, aboard, seen = fleet_of(1), {}, []

    def hear(slot: int) -> None:
        request, tokens = aboard[slot]
        if tokens:
            fleet.streamed(0, 1, 0.01)
        else:
            fleet.began(0, HUNDRED, 100, None)
        aboard[slot] = request, tokens + 1
        if tokens + 1 == 40:
            fleet.ended(0, aboard.pop(slot)[0], 139, 0)

    for number, now in enumerate(np.cumsum(draw.exponential(1 / 5.0, 300)).tolist()):
        while instance.next <= now:
            for emission in instance.advance(instance.next):
                for slot in emission.slots.tolist():
                    hear(slot)
        seen.append((instance.running, instance.waiting, int(fleet.running[0]), int(fleet.waiting[0])))
        prompt = draw.integers(0, 1 << 30, int(draw.integers(50, 3000))).astype(np.uint32)
        slot = instance.submit(prompt, draw.integers(0, 99, 40).astype(np.uint32), now)
        aboard[slot] = send(fleet, 0, number), 0
    table = np.array(seen)
    assert (table[:, 1] > 0).mean() > 0.1  # else there is nothing to see
    same = (table[:, :2] == table[:, 2:]).all(axis=1).mean()
    assert same > 0.95, same


def test_a_prompt_counts_as_cached_while_it_is_under_way_and_afterwards_only_where_it_was_accepted():
    fleet = fleet_of(2)
    path = fleet.index.hashes(np.arange(96, dtype=np.uint32))
    taken, refused, later = (Request(name, 0.0, prompt=96) for name in ("taken", "refused", "later"))
    for request in (taken, refused, later):
        fleet.paths[request.id] = path
    fleet.sent(0, taken, 96)
    fleet.sent(1, refused, 96)
    assert fleet.match(later).tolist() == [96, 96]
    fleet.began(0, taken, 96, None)
    fleet.refused(1, refused, known=0)
    fleet.ended(1, refused, 0, 96)
    assert fleet.match(later).tolist() == [96, 0]
