"""An instance whose requests come one by one, against the simulator that knows them all beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.serving.baselines.orders import ShortestFirst as LearnedShortestFirst
from assay.serving.baselines.routers import RoundRobin
from assay.serving.engine import state
from assay.serving.engine.online import LONGEST_TURN, AllSlotsTaken, Cleared, Emission, OnlineInstance, Removed, Stored
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.simulator import Simulation
from assay.serving.fleet import FleetSpec, Instance
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream
from assay.workloads.requests import Prefixes, Requests
from tests.oracles.serving import Oracle
from tests.serving.conftest import ShortestFirst, make_cost

Ids = NDArray[np.uint32]


@dataclass(frozen=True)
class Talk:
    """Prompts and answers as tokens, and one instance to serve them."""

    prompts: list[Ids]
    answers: list[Ids]
    arrival: Any
    spec: Instance
    block: int
    order: Any = None

    def __repr__(self) -> str:
        rows = [*zip(self.arrival.round(4).tolist(), map(len, self.prompts), map(len, self.answers), strict=True)]
        s = self.spec
        parts = (s.plan, s.max_seqs, s.max_tokens, s.chunk_limit, s.preemption, s.room // self.block)
        return f"block {self.block} {parts} {self.order}\n{rows}"

    @property
    def fleet(self) -> FleetSpec:
        return FleetSpec((self.spec,), block=self.block)

    def online(self, **settings: Any) -> OnlineInstance:
        longest = max(len(p) + len(a) for p, a in zip(self.prompts, self.answers, strict=True))
        return OnlineInstance(self.spec, **{"block": self.block, "longest": longest, "order": self.order} | settings)

    def chains(self, r: int) -> list[bytes]:
        """Every block that request r can have KV for, by all that stands before its end."""
        whole, size = np.concatenate((self.prompts[r], self.answers[r][:-1])), self.block
        return [whole[: (b + 1) * size].tobytes() for b in range(len(whole) // size)]


def make_talk(seed: int, n: int, *, most_reused: bool, order: Any = None) -> Talk:
    """Conversations that begin alike and go on from earlier answers, in a memory that is always short.

    Without `most_reused` a later prompt has at most one block of an answer in it.
    """
    rng = stream(seed, "talk")
    block, fresh = int(rng.choice([1, 2, 4, 7, 16])), iter(range(1, 10**9))
    new = lambda count: np.array([next(fresh) for _ in range(count)], np.uint32)  # noqa: E731
    systems = [new(int(rng.integers(0, 5 * block))) for _ in range(3)]
    prompts: list[Ids] = []
    answers: list[Ids] = []
    lengths = rng.geometric(1 / rng.uniform(2, 30), n)
    for r in range(n):
        kind = rng.random()
        if prompts and kind < 0.5:
            past = int(rng.integers(max(0, r - 12), r))
            said, reply = prompts[past], answers[past]
            reused = len(reply) if most_reused else min(len(reply), 2 * block - len(said) % block - 1)
            prompt = np.concatenate((said, reply[: rng.integers(0, reused + 1)], new(int(rng.integers(1, 2 * block)))))
            if len(prompt) > 12 * block:
                prompt = prompt[: 12 * block]
        elif prompts and kind < 0.65:  # the same once more, or a part of it
            prompt = prompts[int(rng.integers(0, r))]
            prompt = prompt[: rng.integers(1, len(prompt) + 1)]
        else:
            prompt = np.concatenate((systems[int(rng.integers(0, 3))], new(int(rng.integers(1, 4 * block)))))
        prompts.append(prompt)
        answers.append(new(int(lengths[r])))
    need = max(-(-(len(p) + len(a)) // block) + 1 for p, a in zip(prompts, answers, strict=True))
    max_tokens = int(rng.integers(2, 80))
    spec = Instance(
        make_cost(seed, 200), plan=str(rng.choice(["vllm-v1", "vllm-v1", "sglang", "static"])),
        max_seqs=min(int(rng.integers(1, 12)), max_tokens), max_tokens=max_tokens,
        chunk_limit=int(rng.choice([0, 0, 5, 16])), admission=str(rng.choice(["prompt", "chunk"])),
        preemption=str(rng.choice(["recompute", "swap"])),
        kv_tokens=int(need * rng.choice([1.0, 1.0, 1.3, 2.0, 4.0])) * block, host_bandwidth=1e7,
    )  # fmt: skip
    gaps = rng.exponential(1 / rng.choice([1.0, 10.0, 100.0]), n) * (rng.random(n) < rng.choice([0.3, 1.0]))
    return Talk(prompts, answers, np.cumsum(gaps), spec, block, order)


def as_trace(talk: Talk) -> tuple[Requests, list[list[int]]]:
    """The same as a trace in which every block is a segment, and the segments along each prompt and its answer."""
    numbers: dict[bytes, int] = {}
    parent: list[int] = []
    depth: list[int] = []
    paths: list[list[int]] = []
    for r in range(len(talk.prompts)):
        path: list[int] = []
        for chain in talk.chains(r):
            if chain not in numbers:
                numbers[chain] = len(numbers)
                parent.append(path[-1] if path else -1)
                depth.append(len(path))
            path.append(numbers[chain])
        paths.append(path)
    full = [len(p) // talk.block for p in talk.prompts]
    first = [path[n] if n < len(path) else -1 for path, n in zip(paths, full, strict=True)]
    as_ints = lambda values: np.array(values, np.int32)  # noqa: E731
    tree = Prefixes(
        as_ints(parent), as_ints(depth) * talk.block, (as_ints(depth) + 1) * talk.block,
        np.concatenate([[0], np.cumsum(full)]).astype(np.int64),
        as_ints([s for path, n in zip(paths, full, strict=True) for s in path[:n]]), as_ints(first),
    )  # fmt: skip
    prompt, output = [len(p) for p in talk.prompts], [len(a) for a in talk.answers]
    return Requests.of(talk.arrival, prompt, output, prefixes=tree), paths


def simulated(talk: Talk, *, whole_answers: bool, **options: Any) -> Outcome:
    """The simulator's own answer; with `whole_answers` all blocks of an answer can be found, not only the first."""
    trace, paths = as_trace(talk)
    simulation = Simulation(trace, talk.fleet, RoundRobin(), mode="step", order=talk.order, patience=1.0, **options)
    if whole_answers:
        offsets = np.concatenate([[0], np.cumsum([len(path) + 1 for path in paths])])
        ends = len(simulation.world.begin)  # a segment that is nowhere, behind each path
        far = np.array([2**31 - 1], np.int32)
        w = simulation.world
        w = w._replace(
            path=np.array([s for path in paths for s in [*path, ends]], np.int32), offsets=offsets.astype(np.int64),
            begin=np.concatenate([w.begin, far]), end=np.concatenate([w.end, far]),
            index=np.concatenate([w.index, [[np.int32(state.NONE)]]]),
            answers=np.full(len(paths), state.ON_PATH, np.int32),
        )  # fmt: skip
        simulation.world = w._replace(handle=state.handle_of(w))
    return simulation.run()


def most_on_board(records: Any) -> int:
    """Slots without which a request would find none."""
    arrival, finish = records["arrival"], records["finish"]
    return max(int(((arrival <= t) & (finish >= t)).sum()) for t in arrival)


@dataclass
class Served:
    """What an instance reported, by request."""

    engine: OnlineInstance
    tokens: list[list[float]]
    progress: dict[int, Any]
    emissions: list[Emission]
    slot_of: dict[int, int]

    def note(self, emissions: list[Emission]) -> None:
        self.emissions += emissions
        for e in emissions:
            for slot in e.slots.tolist():
                self.tokens[self.slot_of[slot]].append(e.time)
            for slot in e.finished.tolist():
                self.progress[self.slot_of.pop(slot)] = self.engine.progress(slot)


def serve(talk: Talk, engine: OnlineInstance, *, first: int = 0, pieces: int = 0, check: Any = None) -> Served:
    """Submit every request at its arrival; look in before, and `pieces` times in between."""
    served = Served(engine, [[] for _ in talk.prompts], {}, [], {})
    before = 0.0
    for r, arrival in enumerate(talk.arrival.tolist()):
        for t in np.linspace(before, arrival, pieces + 2)[1:-1].tolist():
            served.note(engine.advance(min(t, math.nextafter(arrival, -math.inf))))
        served.note(engine.advance(math.nextafter(arrival, -math.inf)))
        served.slot_of[engine.submit(talk.prompts[r], talk.answers[r], arrival)] = r
        before = arrival
        if check is not None:
            check(engine)
    while engine.next < math.inf:
        served.note(engine.advance(engine.next))
        if check is not None:
            check(engine)
    return served


def compare(served: Served, records: Any) -> None:
    assert len(served.progress) == len(records)
    for r, record in enumerate(records):
        p, times = served.progress[r], served.tokens[r]
        assert (p.first, p.finish, p.admitted) == (record["first"], record["finish"], record["admitted"])
        assert (p.cached, p.preemptions) == (record["cached"], record["preemptions"])
        assert (times[0], times[-1], len(times)) == (record["first"], record["finish"], record["output"])
        assert all(a < b for a, b in pairwise(times))


ORDERS = st.sampled_from([None, ShortestFirst()])
SEEDS = st.integers(0, 2**32)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 60), ORDERS, st.booleans())
def test_times_are_those_of_the_simulator_to_the_last_bit(seed: int, n: int, order: Any, cache: bool) -> None:
    talk = make_talk(seed, n, most_reused=False, order=order)
    outcome = simulated(talk, whole_answers=False, prefix_cache=cache)
    engine = talk.online(slots=most_on_board(outcome.records), prefix_cache=cache)
    served = serve(talk, engine)
    compare(served, outcome.records)
    assert engine.totals.preemptions == outcome.instances[0]["preemptions"]
    assert engine.totals.generation_tokens == outcome.records["output"].sum()
    assert engine.totals.prefix_hits == outcome.records["cached"].sum()


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 60), ORDERS, st.integers(0, 2))
def test_answers_of_many_blocks_are_found_by_the_next_turn(seed: int, n: int, order: Any, turns: int) -> None:
    talk = make_talk(seed, n, most_reused=True, order=order)
    outcome = simulated(talk, whole_answers=True)
    engine = talk.online(slots=most_on_board(outcome.records))
    engine._turn = (LONGEST_TURN // engine.slots - turns) * engine.slots if turns else 0  # turns begin again midway
    compare(serve(talk, engine, pieces=turns), outcome.records)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 40))
def test_times_are_those_of_an_instance_that_names_every_block(seed: int, n: int) -> None:
    talk = make_talk(seed, n, most_reused=True)
    if len(set(talk.arrival)) < n:
        talk = replace(talk, arrival=talk.arrival + np.cumsum(stream(seed, "apart").random(n)) * 1e-3)
    trace, paths = as_trace(talk)
    oracle = Oracle(trace, talk.fleet, RoundRobin(), whole=False)
    for s, path in zip(oracle.sequences, paths, strict=True):
        keys = [(tuple(path[: b + 1]), b) for b in range(len(path))]
        s.path, s.answer = keys[: s.prompt // talk.block], keys[s.prompt // talk.block :]
    oracle.run()
    served = serve(talk, talk.online())
    for s in oracle.sequences:
        p = served.progress[s.number]
        assert (p.first, p.finish) == pytest.approx((s.first, s.finish), rel=1e-9)
        assert (p.cached, p.preemptions) == (s.cached, s.preemptions)


def test_the_traces_have_what_the_comparison_is_about() -> None:
    preemptions = hits = of_answers = chunked = reused = 0
    for seed in range(40):
        talk = make_talk(seed, 60, most_reused=True)
        whole, first = simulated(talk, whole_answers=True), simulated(talk, whole_answers=False)
        preemptions += int(whole.records["preemptions"].sum())
        hits += int(whole.records["cached"].sum())
        of_answers += int(whole.records["cached"].sum() - first.records["cached"].sum())
        chunked += int((whole.records["prompt"] - whole.records["cached"] > talk.spec.max_tokens).sum())
        reused += 60 - most_on_board(whole.records)
    assert min(preemptions, hits, of_answers, chunked, reused) > 200


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 40), st.integers(1, 5))
def test_small_pieces_of_time_add_up(seed: int, n: int, pieces: int) -> None:
    talk = make_talk(seed, n, most_reused=True)
    one, many = serve(talk, talk.online()), serve(talk, talk.online(), pieces=pieces)
    assert one.tokens == many.tokens and one.progress == many.progress


def resident_words(engine: OnlineInstance) -> set[int]:
    there = np.flatnonzero(engine.world.index[:, 0] >= 0)
    return set(engine._names.names["word"][there].tolist())


def replayed(known: dict[int, tuple[int | None, bytes]], engine: OnlineInstance) -> None:
    """Follow the changes, as somebody who only sees these."""
    for change in engine.changes():
        match change:
            case Cleared():
                known.clear()
            case Removed(words):
                for word in words:
                    del known[word]
            case Stored(words, before, tokens):
                assert before is None or before in known
                for word, ids in zip(words, np.split(tokens, len(words)), strict=True):
                    assert word not in known
                    known[word] = (before, ids.tobytes())
                    before = word


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 40))
def test_what_is_stored_and_not_removed_is_what_is_there(seed: int, n: int) -> None:
    talk = make_talk(seed, n, most_reused=True)
    known: dict[int, tuple[int | None, bytes]] = {}

    def check(engine: OnlineInstance) -> None:
        replayed(known, engine)
        assert set(known) == resident_words(engine)

    serve(talk, talk.online(events=True), check=check)
    chains = {chain for r in range(n) for chain in talk.chains(r)}
    for word in known:
        tokens, at = b"", word
        while at is not None:
            before, ids = known[at]
            tokens, at = ids + tokens, before  # type: ignore[assignment]
        assert tokens in chains


def plain(**settings: Any) -> Instance:
    cost = StepCost(0.01 + 1e-5 * np.arange(3000), kv_tokens=16 * 200)
    return Instance(cost, **{"max_tokens": 2048} | settings)


def ids(first: int, count: int) -> Ids:
    return np.arange(first, first + count, dtype=np.uint32)


def test_changes_that_nobody_asked_for_are_made_up_for() -> None:
    engine, known = OnlineInstance(plain(), events=True), dict[int, Any]()
    for r in range(60):
        engine.submit(ids(10_000 * r, 1000), ids(10_000 * r + 5000, 2), float(r))
        engine.advance(r + 0.5)
    assert isinstance(engine.changes()[0], Cleared)
    engine.submit(ids(7, 100), ids(3, 40), 100.0)
    engine.advance(101.0)
    engine.reset_cache()
    replayed(known, engine)
    assert known == {} and engine.changes() == [] and resident_words(engine) == set()


def test_blocks_that_follow_each_other_are_told_together() -> None:
    engine = OnlineInstance(plain(), events=True)
    engine.submit(ids(0, 40), ids(500, 30), 0.0)
    engine.advance(0.0)
    (prompt,) = engine.changes()
    engine.advance(10.0)
    (answer,) = engine.changes()
    assert isinstance(prompt, Stored) and isinstance(answer, Stored)
    assert prompt.before is None and prompt.tokens.tolist() == list(range(32))
    assert answer.before == prompt.words[-1]
    assert answer.tokens.tolist() == [*range(32, 40), *range(500, 524)]


def test_a_reset_spares_what_is_held() -> None:
    engine = OnlineInstance(plain(), events=True)
    engine.submit(ids(0, 64), ids(500, 2), 0.0)
    engine.advance(1.0)
    engine.submit(ids(1000, 32), ids(500, 90), 2.0)
    engine.advance(2.1)
    assert not engine.reset_cache()
    cleared, stored = engine.changes()
    assert cleared == Cleared() and isinstance(stored, Stored) and stored.tokens.tolist() == list(range(1000, 1032))
    engine.advance(10.0)
    assert engine.reset_cache() and engine.named_blocks == 0


# --------------------------------------------------------------------------------- those who leave


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 60), st.floats(0, 1))
def test_those_who_leave_leave_nothing_behind(seed: int, n: int, share: float) -> None:
    talk, rng = make_talk(seed, n, most_reused=True), stream(seed, "leaving")
    engine = talk.online(events=True)
    board: dict[int, int] = {}
    gone: set[int] = set()
    finished: set[int] = set()
    known: dict[int, Any] = {}

    def note(emissions: list[Emission]) -> None:
        for e in emissions:
            assert set(e.slots.tolist()) <= set(board), "a token for somebody who is not there"
            for slot in e.finished.tolist():
                finished.add(board.pop(slot))

    for r, arrival in enumerate(talk.arrival.tolist()):
        if rng.random() < 0.5:
            note(engine.advance(arrival))
        slot = engine.submit(talk.prompts[r], talk.answers[r], arrival)
        assert slot not in board
        board[slot] = r
        while board and rng.random() < share:
            slot = int(rng.choice(list(board)))
            gone.add(board.pop(slot))
            engine.cancel(slot, arrival + 1e-3 * rng.random())
        replayed(known, engine)
        assert set(known) == resident_words(engine)
    note(engine.advance(math.inf))
    assert gone | finished == set(range(n)) and not board and not gone & finished
    assert engine.next == math.inf and engine.running == engine.waiting == 0 and engine.kv_usage == 0.0
    assert engine.free_slots == engine.slots
    assert engine.world.instances[0]["uncomputed"] == engine.world.instances[0]["context"] == 0
    assert not engine.world.phases.any()
    assert engine.named_blocks == len(resident_words(engine)) <= talk.spec.room // talk.block
    assert engine.reset_cache() and engine.named_blocks == 0


def test_what_somebody_who_left_had_computed_stays_in_the_cache() -> None:
    engine = OnlineInstance(plain())
    left = engine.submit(ids(0, 40), ids(500, 200), 0.0)
    tokens = sum(len(e.slots) for e in engine.advance(1.0))
    assert 40 < tokens < 150
    engine.cancel(left, 1.0)
    assert engine.running == 1
    engine.advance(1.1)
    assert engine.running == 0 and engine.kv_usage == 0.0
    slot = engine.submit(np.concatenate((ids(0, 40), ids(500, 200))), ids(0, 1), 2.0)
    engine.advance(3.0)
    assert engine.progress(slot).cached == (40 + tokens) // 16 * 16


def test_who_leaves_the_queue_is_never_admitted() -> None:
    engine = OnlineInstance(plain(max_seqs=1))
    slots = [engine.submit(ids(1000 * r, 40), ids(0, 10), 0.0) for r in range(4)]
    engine.advance(0.0)
    engine.cancel(slots[1], 0.001)
    engine.cancel(slots[1], 0.002)
    assert engine.waiting == 3
    order = [slot for e in engine.advance(math.inf) for slot in e.finished.tolist()]
    assert order == [slots[0], slots[2], slots[3]]
    assert math.isnan(engine.progress(slots[1]).admitted)


def test_an_answer_that_was_complete_and_not_asked_for_can_still_be_cancelled() -> None:
    engine = OnlineInstance(plain())
    slot = engine.submit(ids(0, 40), ids(0, 3), 0.0)
    engine.cancel(slot, 5.0)
    assert engine.free_slots == engine.slots and engine.advance(6.0) == [] and engine.next == math.inf


# ------------------------------------------------------------------------------------------ bounds


def test_nothing_grows_with_the_number_of_requests() -> None:
    engine, rng = OnlineInstance(plain(max_seqs=16), slots=32, events=True), stream(1, "soak")
    starts = rng.integers(0, 300, 50_000) * 1000
    prompts, lengths = rng.integers(1, 300, 50_000).tolist(), rng.integers(1, 5, 50_000).tolist()
    whole, answer = ids(0, 400_000), ids(5, 5)
    sizes, now = set(), 0.0
    for r, (start, prompt, length) in enumerate(zip(starts.tolist(), prompts, lengths, strict=True)):
        while engine.free_slots < 8 or engine.next < now:
            now = max(now, engine.next)
            engine.advance(now)
        slot = engine.submit(whole[start : start + prompt], answer[:length], now)
        if r % 7 == 0:
            engine.cancel(slot, now)
        if r % 1000 == 999:
            engine.changes()
            assert engine.named_blocks <= 200 + 32 * 20
            sizes.add((len(engine.world.begin), len(engine.world.entries), len(engine._names.table)))
    engine.advance(math.inf)
    assert len(sizes) == 1 and engine.free_slots == 32 and engine.named_blocks <= 200
    assert engine.totals.prompt_tokens > 0 and engine.world.counts[state.ENTRIES_LEFT] >= 32


def test_a_long_queue_of_long_prompts_gets_the_numbers_it_needs() -> None:
    rng = stream(3, "long queue")
    spec = Instance(make_cost(3, 300), max_seqs=4, max_tokens=256, kv_tokens=1000)
    prompts = [ids(10_000 * (r % 50), int(rng.integers(100, 400))) for r in range(80)]
    talk = Talk(prompts, [ids(7 + r, 20) for r in range(80)], np.linspace(0, 1, 80), spec, 1)
    engine = talk.online()
    numbers = len(engine.world.begin)
    compare(serve(talk, engine), simulated(talk, whole_answers=True).records)
    assert len(engine.world.begin) > 2 * numbers


def test_what_cannot_fit_and_what_is_too_much_is_refused() -> None:
    engine = OnlineInstance(plain(), slots=2, longest=1000)
    for prompt, output in ((0, 1), (1, 0), (990, 11), (5000, 1)):
        with pytest.raises(BadInput):
            engine.submit(ids(0, prompt), ids(0, output), 0.0)
    assert [engine.submit(ids(0, 10), ids(0, 990), 0.0) for _ in range(2)] == [0, 1]
    with pytest.raises(AllSlotsTaken, match="all 2 slots are taken"):
        engine.submit(ids(0, 1), ids(0, 1), 0.0)
    with pytest.raises(BadInput):
        OnlineInstance(plain(role="prefill"))
    with pytest.raises(ValueError, match="without events"):
        engine.changes()


def test_an_order_that_learns_is_told_what_finished() -> None:
    order = LearnedShortestFirst()
    engine = OnlineInstance(plain(), order=order)
    for r in range(30):
        engine.submit(ids(0, 5), ids(0, 40), float(r))
    engine.advance(math.inf)
    assert order.lengths.estimate(("", "")) == 40


def test_a_key_decides_who_goes_first() -> None:
    engine = OnlineInstance(plain(max_seqs=1))
    slots = [engine.submit(ids(0, 5), ids(0, 3), 0.0, key=key) for key in (3.0, 1.0, 2.0)]
    ended = [slot for e in engine.advance(math.inf) for slot in e.finished.tolist()]
    assert ended == [slots[1], slots[2], slots[0]]
