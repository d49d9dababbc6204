"""RcLLM: turning is exact, repair recovers accuracy, items asked for together lie together, prefix caching loses."""

from __future__ import annotations

from functools import cache

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record import catalogue
from assay.record.lab import Lab
from assay.record.tables import joined
from assay.serving import rcllm
from assay.serving.rcllm import block_cluster, item_placement, ranking_lm
from assay.serving.rcllm.compare import compare
from assay.sim.random import stream
from assay.workloads import recommendations

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from assay.serving.rcllm import block_reuse  # noqa: E402
from assay.sim import tiny_lm  # noqa: E402
from tests.oracles import block_reuse as oracle  # noqa: E402

torch.set_num_threads(1)
SHAPE = tiny_lm.Shape(vocab=64, layers=3, width=32, heads=4, head=8, kv_heads=2, hidden=48, attn="gqa")
INSTRUCTION = [1, 2, 3]


def assembled(seed: int, blocks: int, tokens: int):
    """A random model, blocks computed alone, and a prompt that has them in another order."""
    random = stream(seed, "test-rcllm", blocks, tokens)
    params = tiny_lm.init(SHAPE, seed)
    texts = random.integers(4, 64, (blocks, tokens))
    order = random.permutation(blocks)
    first, rows = block_reuse.prepare(params, INSTRUCTION, texts)
    cached = block_reuse.assemble(first, [block_reuse.pick(rows, [i]) for i in order])
    prompt = np.concatenate([INSTRUCTION, texts[order].ravel(), [60, 61]])
    where = [slice(3 + i * tokens, 3 + (i + 1) * tokens) for i in range(blocks)]
    return params, prompt, cached, where


# ------------------------------------------------------------------------------- reuse and its repair


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 12))
def test_turned_first_layer_keys_are_the_recomputed_ones(seed: int, blocks: int, tokens: int) -> None:
    params, prompt, cached, _ = assembled(seed, blocks, tokens)
    with torch.no_grad():
        _, true = tiny_lm.forward(params, prompt[: len(cached)], layers=1)
    assert cached.positions.tolist() == list(range(len(cached)))
    torch.testing.assert_close(cached.layers[0].rotary, true.layers[0].rotary, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cached.layers[0].free, true.layers[0].free, atol=1e-5, rtol=1e-5)


def test_deeper_rows_are_not_exact_and_unturned_keys_not_even_in_the_first_layer() -> None:
    params, prompt, cached, _ = assembled(0, 4, 5)
    with torch.no_grad():
        _, true = tiny_lm.forward(params, prompt[: len(cached)])
    assert (cached.layers[1].free - true.layers[1].free).abs().max() > 1e-3
    first, rows = block_reuse.prepare(params, INSTRUCTION, prompt[3:-2].reshape(4, 5))
    wrong = block_reuse.assemble(first, [block_reuse.pick(rows, [i]) for i in range(4)], turn=False)
    assert (wrong.layers[0].rotary - true.layers[0].rotary).abs().max() > 1e-2


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6), st.floats(0, 1))
def test_repair_equals_computing_all_and_writing_over(seed: int, blocks: int, tokens: int, share: float) -> None:
    params, prompt, cached, where = assembled(seed, blocks, tokens)
    off = block_reuse.deviation(params, prompt[None], cached)
    chosen = block_reuse.choose(off, where, share)
    fast = block_reuse.answer(params, prompt[None], cached, chosen)[0]
    torch.testing.assert_close(fast, oracle.answer(params, prompt, cached, chosen[0]), atol=1e-4, rtol=1e-4)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6))
def test_repairing_everything_is_full_computation(seed: int, blocks: int, tokens: int) -> None:
    params, prompt, cached, where = assembled(seed, blocks, tokens)
    off = block_reuse.deviation(params, prompt[None], cached)
    all_of_it = block_reuse.answer(params, prompt[None], cached, block_reuse.choose(off, where, 1.0))
    with torch.no_grad():
        whole = tiny_lm.forward(params, prompt)[0][:, -1]
    torch.testing.assert_close(all_of_it, whole, atol=1e-4, rtol=1e-4)


def test_the_first_block_deviates_nowhere_and_later_ones_do() -> None:
    params, prompt, cached, where = assembled(3, 5, 6)
    off = block_reuse.deviation(params, prompt[None], cached)[0]
    assert off[where[0]].max() < 1e-4 < off[where[4]].min()


@given(st.integers(1, 8), st.integers(1, 8), st.floats(0, 1), st.sampled_from(block_reuse.CHOICES))
@settings(max_examples=50, deadline=None)
def test_choice_keeps_the_budget_and_stays_inside_blocks(blocks: int, tokens: int, share: float, how: str) -> None:
    off = torch.rand(2, 3 + blocks * tokens, generator=torch.Generator().manual_seed(blocks * tokens))
    where = [slice(3 + i * tokens, 3 + (i + 1) * tokens) for i in range(blocks)]
    chosen = block_reuse.choose(off, where, share, how)
    assert chosen.shape == (2, round(share * blocks * tokens))
    assert all(len(set(row.tolist())) == len(row) and (row >= 3).all() for row in chosen)
    if how.endswith("boundary") and chosen.shape[1] >= blocks:
        assert {block.stop - 1 for block in where} <= set(chosen[0].tolist())


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="no way to choose 'best'"):
        block_reuse.choose(torch.zeros(1, 4), [slice(0, 4)], 0.5, "best")


# ----------------------------------------------------------------------------------- the recommender


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=pytest.mark.slow)], ids=lambda n: f"{n} seeds")
def quality(request: pytest.FixtureRequest) -> dict[str, dict[str, float]]:
    """A seed: 160 prompts never trained on, 30 without parts of it."""
    seeds = [rcllm.accuracy(160, 30, 24, seed) for seed in range(request.param)]
    return {
        method: {column: float(np.mean([one[method][column] for one in seeds])) for column in ("hit10", "kl_mean")}
        for method in seeds[0]
    }


def test_accuracy_survives_repair_and_not_full_reuse(quality: dict[str, dict[str, float]]) -> None:
    full = quality["full"]["hit10"]
    assert full > 0.8  # against 10/24 by chance: there is something to lose
    assert full - quality["rcllm"]["hit10"] <= 0.01
    assert full - quality["full reuse"]["hit10"] > max(0.02, full - quality["rcllm"]["hit10"])


def test_more_repair_is_closer_to_full_computation(quality: dict[str, dict[str, float]]) -> None:
    gaps = [quality[name]["kl_mean"] for name in ("full reuse", "rcllm", "repair 0.30")]
    assert gaps == sorted(gaps, reverse=True)
    assert quality["rcllm"]["kl_mean"] < quality["at random"]["kl_mean"]


def test_stored_weights_are_small_and_say_where_they_come_from() -> None:
    assert ranking_lm.WEIGHTS.stat().st_size < 2_000_000
    models, provenance = tiny_lm.load(ranking_lm.WEIGHTS)
    assert models["recommender"].shape == ranking_lm.SHAPE
    assert {"by", "stages", "steps", "seed", "torch"} <= set(provenance)


def test_training_lowers_the_loss_on_prompts_it_has_not_seen() -> None:
    unseen, fresh = ranking_lm.prompts(40, 6, seed=-2), tiny_lm.init(ranking_lm.SHAPE, seed=0)
    trained = ranking_lm.train(fresh, "read", steps=30, tokens=256)
    before, after = (ranking_lm.loss(params, unseen, reading=True) for params in (fresh, trained))
    assert after < 0.9 * before


def test_worth_depends_on_the_history_and_its_order() -> None:
    asked = ranking_lm.prompts(50, 12, seed=0)
    assert asked.worth.std() > 0.1
    assert (asked.ids[:, : ranking_lm.INSTRUCTION] == asked.ids[0, : ranking_lm.INSTRUCTION]).all()
    item = asked.ids[0, asked.blocks[1]]
    assert (item == ranking_lm.shop().blocks[asked.items[0, 0]]).all()


# --------------------------------------------------------------------------------------- the placement


@cache
def visits(seed: int):
    shop = recommendations.catalogue(2000, clusters=40, seed=seed)
    return shop, recommendations.interactions(shop, users=600, each=30, seed=seed)


def traffic(seed: int, candidates: int = 30):
    shop, log = visits(seed)
    past, now = (recommendations.ranking_requests(log, 900, candidates, 1.0, seed + part) for part in (1000, 0))
    return shop.tokens.astype(float), past.items, now.items


@pytest.mark.parametrize("candidates", [10, 30, 80])
def test_placement_raises_the_local_share_over_hashing(candidates: int) -> None:
    size, past, now = traffic(0, candidates)
    capacity = 1.5 * size.sum() / 4
    near = item_placement.by_co_occurrence(past, size, 4, capacity)
    spread = item_placement.by_hash(past, size, 4, capacity, head=0.0)
    assert near.local_share(now) >= 1.5 * spread.local_share(now)
    assert near.local_share(now) > item_placement.by_hash(past, size, 4, capacity).local_share(now)  # the head as well


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.floats(0.1, 3.0), st.floats(0, 0.5))
def test_no_node_exceeds_its_capacity(seed: int, nodes: int, store: float, head: float) -> None:
    random = stream(seed, "test-placement")
    items = int(random.integers(5, 80))
    requests = np.array([random.choice(items, 4, replace=False) for _ in range(30)])
    size = random.uniform(0.5, 2.0, items)
    capacity = store * float(size.sum()) / nodes
    for place in (item_placement.by_co_occurrence, item_placement.by_hash):
        placement = place(requests, size, nodes, capacity, head=head)
        assert (placement.load <= capacity * (1 + 1e-9)).all()
        assert np.isin(placement.stored.sum(axis=0), (0, 1, nodes)).all()


def test_a_store_with_room_keeps_every_item_that_was_asked_for() -> None:
    size, past, _ = traffic(1)
    placement = item_placement.by_co_occurrence(past, size, 4, 1.3 * size.sum() / 4)
    assert placement.stored.any(axis=0)[np.unique(past)].all()


# ----------------------------------------------------------------------------------------- the cluster


def prompts(seed: int = 0, requests: int = 60, candidates: int = 8, users: int = 10, rate: float = 5.0):
    shop = recommendations.catalogue(300, clusters=10, seed=seed)
    log = recommendations.interactions(shop, users, each=20, seed=seed)
    asked = recommendations.ranking_requests(log, requests, candidates, rate, seed)
    return block_cluster.Prompts(asked, shop.tokens, np.full(users, 200, np.int32))


def fleet(nodes: int = 3, capacity: float = 1e12) -> block_cluster.Cluster:
    return block_cluster.Cluster.of("a100:llama-3.1-8b", nodes, capacity)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["asked", "sorted", "items-first"]))
def test_unbounded_prefix_cache_finds_the_longest_common_prefix(seed: int, order: str) -> None:
    asked = prompts(seed, requests=30, users=4)
    one = fleet(nodes=1)
    chains = block_cluster.prefix_chains(asked, order, np.zeros(300, np.int64))
    outcome = block_cluster.simulate(block_cluster.PrefixCache(one, asked, chains), one, asked)
    texts = []
    for r, (user, row) in enumerate(zip(asked.requests.user, asked.requests.items, strict=True)):
        items = [("item", int(i)) for i in (row if order == "asked" else sorted(row))]
        text = [*items, ("user", int(user))] if order == "items-first" else [("user", int(user)), *items]
        length = max((_common(text, other) for other in texts), default=0)
        tokens = [200 if kind == "user" else int(asked.item_tokens[i]) for kind, i in text[:length]]
        assert outcome.reused[r] == pytest.approx((64 + sum(tokens)) / asked.totals[r])
        texts.append(text)


def _common(a: list, b: list) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def test_a_full_prefix_cache_evicts_and_keeps_its_bound() -> None:
    asked, small = prompts(requests=100), fleet(capacity=1e9)
    cache = block_cluster.PrefixCache(
        small, asked, block_cluster.prefix_chains(asked, "asked", np.zeros(300, np.int64))
    )
    block_cluster.simulate(cache, small, asked)
    for held, used in zip(cache.held, cache.used, strict=True):
        assert sum(held.values()) == pytest.approx(used) and used <= 1e9
        assert len(held) > 0


def test_queues_are_served_in_order_one_at_a_time() -> None:
    asked, one = prompts(rate=50.0), fleet(nodes=1)
    outcome = block_cluster.simulate(block_cluster.NoCache(one, asked), one, asked)
    free = 0.0
    for now, compute, ttft in zip(asked.requests.arrival, outcome.compute, outcome.ttft, strict=True):
        free = max(free, now) + compute
        assert ttft == pytest.approx(free - now)


def test_a_slow_network_shows_in_the_first_token_and_local_items_do_not_travel() -> None:
    asked = prompts(rate=0.1)
    size = asked.item_tokens.astype(float)
    apart = item_placement.Placement(np.arange(300) % 3 == np.arange(3)[:, None], size)
    everywhere = item_placement.Placement(np.ones((3, 300), bool), size)
    fast = fleet()
    slow = block_cluster.Cluster.of("a100:llama-3.1-8b", 3, 1e12, network=1e8)

    def run(one: block_cluster.Cluster, placement: item_placement.Placement) -> block_cluster.Outcome:
        return block_cluster.simulate(block_cluster.BlockCache(one, asked, placement, 0.15), one, asked)

    assert run(fast, everywhere).fetched.sum() == 0 < run(fast, apart).fetched.sum()
    expected = run(slow, apart).fetched / 1e8
    assert (run(slow, apart).ttft >= expected).all()
    assert run(slow, apart).ttft_mean > 2 * run(fast, apart).ttft_mean


def test_a_history_is_computed_once_and_then_known_to_all_nodes() -> None:
    asked = prompts(rate=0.1, users=1)
    everywhere = item_placement.Placement(np.ones((3, 300), bool), asked.item_tokens.astype(float))
    cache = block_cluster.BlockCache(fleet(), asked, everywhere, 0.15)
    outcome = block_cluster.simulate(cache, fleet(), asked, routing="random")
    assert len(set(outcome.node.tolist())) == 3
    assert outcome.reused[0] < outcome.reused[1:].min()


def test_repair_costs_between_nothing_and_everything() -> None:
    one = fleet()
    full, free = one.prefill(4000), one.repair(16, 3984, 0.0, 4000)
    costs = [one.repair(16, 3984, share, 4000) for share in (0.05, 0.15, 0.5, 1.0)]
    assert free < costs[0] and costs == sorted(costs)
    assert costs[1] > 0.15 * full  # repair is paid for, and so is finding what to repair
    assert costs[3] >= full


# ------------------------------------------------------------------------------------------- the study


def gain(table: dict[str, dict[str, float]], load: float = 0.2, network: float = 12.5e9) -> float:
    """How many times as long the best prefix cache takes to the first token, in one corner of the grid."""
    rows = [row for row in table.values() if (row["load"], row["network"]) == (load, network)]
    times = {str(row["method"]): row["ttft_mean"] for row in rows}
    return min(times[name] for name in rcllm.PREFIX) / times["rcllm"]


@pytest.fixture(scope="module")
def gains() -> dict[str, float]:
    """By traffic."""
    usual = {"candidates": 30, "history": 300, "users": 600, "store": 1.5, "requests": 150, "ablations": False}

    def at(**other: float) -> float:
        return gain(rcllm.serving(**(usual | other), seed=0))

    return {"short": at(candidates=10), "middle": at(), "cold": at(store=0.3), "long": at(candidates=80)}


def test_gain_grows_with_prompt_length(gains: dict[str, float]) -> None:
    assert gains["short"] < gains["middle"] < gains["long"]


def test_gain_grows_with_reuse(gains: dict[str, float]) -> None:
    assert gains["cold"] < gains["middle"]


def test_the_range_of_cases_is_every_combination_of_the_grids_ends() -> None:
    """None was left out for its result: with those that suit a prefix cache, the weakest case is hardly a gain."""
    assert len(rcllm.CORNERS) == len({tuple(corner.values()) for corner in rcllm.CORNERS}) == 2 ** len(rcllm.GRID)
    assert all(corner[name] in ends for corner in rcllm.CORNERS for name, ends in rcllm.GRID.items())
    weak = rcllm.serving(10, 3000, 600, 0.1, 150, False, seed=7)
    assert gain(weak, load=0.8, network=1.25e9) < 1.31
    assert set(rcllm.GAINS) == {rcllm.named(corner) for corner in rcllm.CORNERS}


def corner_rows(corner: dict[str, float], times: tuple[float, ...]) -> list[dict[str, object]]:
    return [
        {"experiment": "cluster", **corner, "method": method, "seed": seed, "ttft_mean": time}
        for method, time in zip((*rcllm.PREFIX, "rcllm"), times, strict=True)
        for seed in (12345, 7)
    ]


def test_study_answers_every_claim_of_the_paper() -> None:
    paper = catalogue.paper("rcllm")
    assert [claim.id for claim in rcllm.claims if not claim.asks] == [claim.id for claim in paper.claims]
    first, last = rcllm.CORNERS[0], rcllm.CORNERS[-1]
    served = corner_rows(first, (9.0, 8.0, 7.0, 2.0)) + corner_rows(last, (3.0, 4.0, 5.0, 2.0))
    ranked = [
        {"experiment": "accuracy", "method": method, "seed": 7, "hit10": hit}
        for method, hit in (("full", 0.9), ("rcllm", 0.895), ("full reuse", 0.8))
    ]
    table = pl.from_dicts([*served, *ranked], infer_schema_length=None)
    found = [claim.measure(table) for claim in rcllm.claims]
    assert [round(one.value, 6) for one in found] == [3.5, 1.5, 0.005, 0.1]
    assert [one.cases for one in found[:2]] == [f"{rcllm.named(corner)}, of 2 cases" for corner in (first, last)]


@pytest.mark.slow
def test_quick_study_has_all_parts_and_a_chart() -> None:
    class Small(Lab):
        def pick(self, quick, full):
            return 20 if isinstance(quick, int) and quick > 20 else quick

    table = joined(rcllm.study(Small("rcllm", seeds=(7,))))
    assert table["experiment"].unique(maintain_order=True).to_list() == ["accuracy", "cluster"]
    assert table.filter(experiment="cluster").select(*rcllm.GRID).unique().height == len(rcllm.CORNERS)
    assert rcllm.plot(table).to_dict()["hconcat"]


# --------------------------------------------------------------------------------------------- one's own log


def test_on_ones_own_log_every_way_of_caching_is_compared_at_equal_memory() -> None:
    log = recommendations.interactions(recommendations.catalogue(150, clusters=6, seed=9), users=50, each=12, seed=9)
    answer, given = compare(log, nodes=3, candidates=15, requests=240, seed=2)
    times = {row["method"]: row["ttft_mean"] for row in answer["table"]}
    assert times["rcllm"] < min(times["prefix"], times["prefix-sorted"], times["no cache"])
    assert "95 % interval" in answer["why"]
    assert answer["placement"]["at_hand"] > answer["placement"]["at_hand_by_hash"]
    assert given.near.nodes == 3


def test_on_an_idle_cluster_with_room_for_everything_everywhere_placing_hardly_matters() -> None:
    log = recommendations.interactions(recommendations.catalogue(60, clusters=6, seed=1), users=40, each=12, seed=1)
    answer, _ = compare(log, nodes=2, candidates=10, requests=120, store=20.0, rate=0.01)
    row = next(row for row in answer["table"] if row["method"] == "rcllm")
    other = next(row for row in answer["table"] if row["method"] == "rcllm, random routing")
    assert row["ttft_mean"] == pytest.approx(other["ttft_mean"], rel=0.3)


def test_more_candidates_than_items_is_one_line() -> None:
    log = recommendations.interactions(recommendations.catalogue(20, clusters=2, seed=1), users=9, each=4, seed=1)
    with pytest.raises(ValueError, match="candidates asked for, but the log has"):
        compare(log, candidates=50)
