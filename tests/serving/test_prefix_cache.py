"""The compiled cache, segment by segment, against one that names every block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from assay.serving import RoundRobin, parse, read, simulate
from assay.serving.engine.prefix_cache import (
    clear,
    extend,
    hold,
    idle_blocks,
    match,
    match_all,
    reach,
    reclaim,
    release,
    take,
)
from assay.serving.engine.state import OWN, World
from assay.serving.engine.world import build
from assay.sim.llm_cost import StepCost
from assay.sim.random import stream
from tests.oracles.kv_memory import Memory, Sequence, blocks_of
from tests.oracles.serving import Oracle
from tests.serving.conftest import FleetSpec, Instance, Watcher, make_trace


class Pair:
    """One cache of each kind, taken through the same steps."""

    def __init__(self, seed: int, block: int, capacity: int, one_block: bool) -> None:
        self.trace = make_trace(
            seed, 12, block, one_block=one_block, overshoot=not one_block, rate=1.0, longest=6 * block
        )
        fleet = FleetSpec((Instance(StepCost(np.ones(300)), kv_tokens=capacity * block, max_tokens=256),), block=block)
        self.world: World = build(self.trace, fleet)
        oracle = Oracle(self.trace, fleet, Watcher(), whole=not one_block)
        self.sequences, self.memory, self.block = oracle.sequences, oracle.engines[0].memory, block
        self.running: list[int] = []
        self.found_again = 0

    def admit(self, r: int, chunk: int) -> None:
        """As many tokens of request r as fit, up to `chunk` beyond the hit."""
        w, s = self.world.handle[0], self.sequences[r]
        hit = min(self.memory.match(s.path), (s.prompt - 1) // self.block)
        found = self.memory.reach(s, hit)
        tokens = found * self.block + chunk
        if found * self.block < s.prompt:
            tokens = min(s.prompt, tokens)
        need = blocks_of(tokens, self.block) - found
        assert idle_blocks(w, r, 0, hit) == self.memory.idle(s.path[:hit])
        assert reach(w, r, 0, hit) == found
        if need > self.memory.room - self.memory.idle(s.path[:hit]) - (found - hit):
            return
        self.found_again += found - hit
        hold(w, r, 0, hit)
        reclaim(w, r, 0, found - hit)
        take(w, 0, need)
        self.world.requests[r]["private"] = need + found - hit
        extend(w, r, 0, tokens // self.block)
        self.memory.hold(s, hit)
        self.memory.reclaim(s, hit)
        self.memory.allocate(s, need)
        self.memory.publish(s, tokens)
        s.have = tokens
        self.running.append(r)

    def go_on(self, r: int, chunk: int) -> None:
        w, s = self.world.handle[0], self.sequences[r]
        tokens = s.have + chunk  # beyond the prompt: its answer
        need = blocks_of(tokens, self.block) - blocks_of(s.have, self.block)
        if need > self.memory.room:
            return
        take(w, 0, need)
        self.world.requests[r]["private"] += need
        extend(w, r, 0, tokens // self.block)
        self.memory.allocate(s, need)
        self.memory.publish(s, tokens)
        s.have = tokens

    def end(self, r: int, finished: bool) -> None:
        s = self.sequences[r]
        request = self.world.requests[r]
        full = s.have // self.block - int(request["shared"])  # of an answer, or of what it finds again itself
        answer, own = (full, 0) if finished else (0, full)
        release(self.world.handle[0], r, 0, int(request["private"]), answer, own)
        self.memory.release(s, finished, computed=0 if finished else s.have)
        self.running.remove(r)

    def compare(self) -> None:
        w, cache = self.world, self.world.caches[0]
        hits = np.zeros(1, np.int64)
        for r, s in enumerate(self.sequences):
            assert match(w.handle[0], r, 0, int(w.requests[r]["path_blocks"])) == self.memory.match(s.path)
            match_all(w.handle[0], r, hits)
            assert hits[0] == self.memory.match(s.path) * self.block
        assert cold_first(w) == [self.name(key) for key in self.memory.free]
        assert cache["active"] == self.memory.held
        assert cache["resident"] == self.memory.held + len(self.memory.free) <= cache["capacity"]

    def name(self, key: Any) -> Any:
        """A block that nobody holds, as `cold_first` says it."""
        if key[0] == "left" and key in self.memory.left.get(key[1], ()):
            return key[:3]
        return "own" if key[0] in ("own", "left") else (key[0][-1], key[1])


def cold_first(w: World) -> list[Any]:
    """The blocks nobody holds, in the order in which they would be evicted."""
    blocks: list[Any] = []
    e = int(w.caches[0]["coldest"])
    while e >= 0:
        entry = w.entries[e]
        s, count = int(entry["segment"]), int(entry["blocks"])
        if s <= OWN:
            first = int(w.requests[OWN - s]["own_begin"])
            blocks += [("left", OWN - s, first + b) for b in range(count - 1, -1, -1)]
        else:
            first = int(w.begin[s])
            blocks += ["own"] * count if s < 0 else [(s, first + b) for b in range(count - 1, -1, -1)]
        e = int(entry["warmer"])
    return blocks


def prefix_closed(memory: Memory, sequences: list[Sequence]) -> bool:
    """Whether no findable block is left without all those before it."""
    return all(
        not any(memory.resident(key) for key in s.path[memory.match(s.path) :]) for s in sequences
    )  # fmt: skip


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11), st.integers(1, 40)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 4, 7]), st.integers(2, 40), st.booleans(), STEPS)
def test_hits_order_and_room_equal_those_of_single_blocks(
    seed: int, block: int, capacity: int, one_block: bool, steps: list[tuple[int, int, int]]
) -> None:
    follow(Pair(seed, block, capacity, one_block), steps)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(6, 30), st.booleans())
def test_what_was_left_is_found_again_until_it_is_taken(seed: int, capacity: int, one_block: bool) -> None:
    """Three who come, give way and come again."""
    rng = stream(seed, "give-way")
    steps = [(int(rng.choice([0, 0, 0, 3, 3, 2])), int(rng.integers(3)), int(rng.integers(1, 12))) for _ in range(60)]
    pair = Pair(seed, int(rng.choice([1, 2, 4])), capacity, one_block)
    follow(pair, steps)
    event("found again" if pair.found_again else "nothing found again")


def follow(pair: Pair, steps: list[tuple[int, int, int]]) -> None:
    for action, r, chunk in steps:
        if action <= 1 and r not in pair.running:
            pair.admit(r, chunk)
        elif action <= 1 and r in pair.running:
            pair.go_on(r, chunk)
        elif r in pair.running:
            pair.end(r, finished=action == 2)
        pair.compare()
        assert prefix_closed(pair.memory, pair.sequences)
    event("evicted" if pair.memory.evicted else "nothing evicted")
    event("hit" if pair.memory.hits else "no hit")
    for r in list(pair.running):
        pair.end(r, finished=True)
        pair.compare()
    assert pair.world.caches[0]["active"] == 0
    clear(pair.world.handle[0], 0)
    assert pair.world.caches[0]["resident"] == 0
    assert (pair.world.index == -1).all()


def test_the_coldest_prefix_goes_first_and_from_its_end() -> None:
    pair = Pair(0, 1, 40, True)
    paths = sorted(range(12), key=lambda r: -len(pair.sequences[r].path))
    pair.admit(paths[0], 100)
    pair.end(paths[0], finished=False)
    order = [block for block in cold_first(pair.world) if block != "own" and block[0] != "left"]
    depths = [number for _, number in order]
    assert len(order) >= 2
    assert depths == sorted(depths, reverse=True)


def test_two_who_compute_the_same_blocks_do_not_share_them() -> None:
    pair = Pair(0, 1, 200, True)
    r, s = sorted(range(12), key=lambda r: -len(pair.sequences[r].path))[:2]
    common = sum(a == b for a, b in zip(pair.sequences[r].path, pair.sequences[s].path, strict=False))
    pair.admit(r, 1)
    pair.admit(s, 1)
    for _ in range(common + 3):
        pair.go_on(r, 1)
        pair.go_on(s, 1)
        pair.compare()


def test_a_prompt_that_ends_inside_a_shared_block_keeps_nobody_from_writing_on(tmp_path: Path) -> None:
    """Published ids stand for 512 tokens; the first prompt ends in the second one's, and goes on to decode for long."""
    rows = [{"timestamp": 0, "input_length": 600, "output_length": 2000, "hash_ids": [1, 2]}]
    rows += [
        {"timestamp": 1000 * second, "input_length": 2040, "output_length": 4, "hash_ids": [1, 2, 3, 4]}
        for second in (1, 2, 3)
    ]
    trace = tmp_path / "mooncake.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = simulate(read(trace), parse("1xh200:qwen3-8b"), RoundRobin())
    assert outcome.table["cached"].to_list() == [0, 592, 2032, 2032]  # the third found 592, too
