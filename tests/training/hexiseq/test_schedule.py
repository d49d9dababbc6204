"""Unequal shares: what they take, that they fit, and that nothing equal or small and exhaustive beats them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.models import model
from assay.sim.random import stream
from assay.training.hexiseq import MANY, plan_uneven
from assay.training.hexiseq.attention_job import drawn
from assay.training.hexiseq.machines import Machines, mixed
from assay.training.hexiseq.pace import Clockwork, Split, Work, work
from assay.training.hexiseq.rivals import by_peak, fastest, systems
from assay.training.hexiseq.scheduler import Found, cuts, filled, schedule, symmetric, whole_heads
from tests.oracles import uneven_splits

KINDS = ("h100", "a100", "a800", "l40s", "rtx4090", "h20")


def some_machines(random: np.random.Generator, ranks: int) -> Machines:
    """Ranks of drawn kinds in nodes of one or two."""
    size = 2 if ranks % 2 == 0 and random.random() < 0.6 else 1
    kinds = random.choice(KINDS, ranks // size)
    return mixed("+".join(f"{size}x{kind}" for kind in kinds), random, port=str(random.choice(["gpu", "node"])))


def small(seq: int, heads: int = 8, kv_heads: int = 4) -> Work:
    """A model small enough for any device, whose layers take as long to compute as to exchange."""
    return Work(seq, 4, heads, kv_heads, 64, 4e8, 1e8, 2e8, 1e9, 3e4, 1e5)


def scheduled(clock: Clockwork) -> Found | None:
    """The best split; None where the sequence is too long, which it must be for equal shares, too."""
    try:
        return schedule(clock)
    except BadInput:
        assert not any(clock.pace(symmetric(clock, cut)).fits for cut in cuts(clock))
        return None


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_a_step_takes_what_its_messages_and_products_take_one_by_one(seed: int, ranks: int) -> None:
    random = np.random.default_rng(seed)
    on, split = some_machines(random, ranks), drawn(ranks, random)
    split = Split(split.group, split.tokens * 500, split.heads)
    job = small(int(split.tokens.sum()))
    clock = Clockwork(on, job)
    found = clock.pace(split)
    assert found.seconds == pytest.approx(uneven_splits.seconds(split, on, job, clock.gather), rel=1e-9)
    assert found.memory.tolist() == pytest.approx(uneven_splits.memory(split, on, job), rel=1e-9)


@given(st.integers(0, 10_000), st.integers(2, 8), st.sampled_from([2048, 32_768, 300_000]))
def test_every_token_and_whole_heads_are_dealt_and_fit_into_memory(seed: int, ranks: int, seq: int) -> None:
    on, job = some_machines(np.random.default_rng(seed), ranks), small(seq)
    found = scheduled(Clockwork(on, job))
    if found is None:
        return
    found.split.check(job)
    assert found.pace.fits
    assert (found.pace.memory <= on.memory).all()
    equal = len(set(found.split.heads.tolist())) == 1  # those may cut a head of keys' group, and keep it twice
    assert equal or not (found.split.heads % job.shared).any()


@given(st.integers(0, 10_000), st.integers(2, 8), st.sampled_from([4096, 65_536, 500_000]))
def test_no_equal_shares_are_faster_on_any_cluster(seed: int, ranks: int, seq: int) -> None:
    on, job = some_machines(np.random.default_rng(seed), ranks), small(seq)
    clock = Clockwork(on, job)
    equal = fastest(clock, [symmetric(clock, cut) for cut in cuts(clock)])
    found = scheduled(clock)
    assert equal is None or (found is not None and found.pace.seconds <= equal[1].seconds * (1 + 1e-9))


@pytest.mark.parametrize("seq", [65_536, 262_144])
@pytest.mark.parametrize("name", ["llama-3-8b", "llama-2-7b"])
def test_where_all_devices_are_alike_equal_shares_are_as_good(seq: int, name: str) -> None:
    found = systems(mixed("16xa100"), work(model(name), seq))
    assert found["hexiseq"]["gain"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("seed", range(6))
def test_nobody_who_tries_everything_on_few_ranks_is_three_percent_faster(seed: int) -> None:
    random = np.random.default_rng(seed)
    on = some_machines(random, int(random.integers(2, 4)))
    job = small(12 * int(random.choice([200, 4000, 20_000])), heads=4, kv_heads=4)
    clock = Clockwork(on, job)
    best = min(clock.pace(split).seconds for split in uneven_splits.every(on.ranks, job, steps=12)
               if clock.pace(split).fits)  # fmt: skip
    assert schedule(clock).pace.seconds <= 1.03 * best


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_nobody_who_tries_everything_on_four_ranks_is_three_percent_faster(seed: int) -> None:
    random = np.random.default_rng(100 + seed)
    on = some_machines(random, 4)
    job = small(16 * int(random.choice([200, 4000, 20_000])), heads=4, kv_heads=4)
    clock = Clockwork(on, job)
    paces = (clock.pace(split) for split in uneven_splits.every(4, job, steps=16))
    assert schedule(clock).pace.seconds <= 1.03 * min(pace.seconds for pace in paces if pace.fits)


def test_on_four_kinds_of_gpus_the_gain_is_a_third_to_a_half_and_grows_with_the_context() -> None:
    gains = []
    for seq in (131_072, 262_144, 524_288):
        clock = Clockwork(mixed(MANY[64]), work(model("llama-3-70b"), seq))
        equal = fastest(clock, [symmetric(clock, cut) for cut in cuts(clock)])
        assert equal is not None
        gains.append(equal[1].seconds / schedule(clock).pace.seconds)
    assert gains == sorted(gains)
    assert 1.2 <= gains[-1] <= 1.6


@pytest.mark.timed
def test_128_gpus_are_planned_within_ten_seconds() -> None:
    plan_uneven(mixed("4xh100+4xa100"), model("llama-3-8b"), 65_536)  # compiled
    began = time.process_time()
    plan_uneven(mixed(MANY[128]), model("llama-3-70b"), 524_288)
    assert time.process_time() - began < 10


def test_a_slow_network_makes_groups_that_swap_heads_and_a_fast_one_does_not() -> None:
    slow, fast = (
        plan_uneven(mixed("8xh100+8xa100", port=port), model("llama-3-8b"), 262_144) for port in ("node", "gpu")
    )
    assert slow.split.groups < fast.split.groups
    assert len(set(fast.split.heads.tolist())) > 1


def test_shares_by_data_sheet_are_not_enough() -> None:
    """Kernels attain different parts of a peak: in proportion to it, devices are done at different times."""
    on = mixed("8xh100+8xa100")
    slow = replace(on, attention=on.attention * np.where(on.peak > 5e14, 0.6, 1.0))
    clock = Clockwork(slow, work(model("llama-3-8b"), 262_144))
    rival = fastest(clock, [by_peak(clock, cut) for cut in (1, 2, 4, 8)])
    assert rival is not None
    assert rival[1].seconds > 1.1 * schedule(clock).pace.seconds


def test_what_does_not_fit_is_said_and_small_memories_get_fewer_tokens() -> None:
    on = mixed("2xh100+2xrtx4090")
    found = plan_uneven(on, replace(model("qwen3-0.6b")), 400_000)
    assert found.pace.fits
    assert found.split.tokens[2:].max() < found.split.tokens[:2].min()
    with pytest.raises(BadInput, match="take a shorter sequence"):
        plan_uneven(mixed("2xrtx4090"), model("llama-3-8b"), 65_536)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(0, 1000), st.integers(0, 10_000))
def test_shares_are_whole_add_up_and_keep_their_bounds(weights: Any, total: int, seed: int) -> None:
    most = np.random.default_rng(seed).integers(0, 400, len(weights))
    found = filled(np.array(weights), total, most)
    if most.sum() < total:
        assert found is None
    else:
        assert found is not None
        assert found.sum() == total
        assert (found <= most).all()
        assert (found >= 0).all()


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=5), st.integers(1, 8))
def test_whole_heads_are_dealt_as_well_as_can_be(speeds: list[float], heads: int) -> None:
    speed = np.array(speeds)
    found = whole_heads(speed, heads)
    assert found.sum() == heads
    every = uneven_splits._shares(heads, len(speeds), 0)
    assert (found / speed).max() <= min((np.array(some) / speed).max() for some in every) * (1 + 1e-9)


def test_random_moves_with_as_many_looks_do_not_find_what_the_levels_find() -> None:
    found = systems(mixed("8xh100+8xa100", stream(0, "test")), work(model("llama-3-8b"), 131_072))
    assert found["hexiseq"]["over_luck"] > 1
    assert found["hexiseq"]["tokens_apart"] > 1.5
