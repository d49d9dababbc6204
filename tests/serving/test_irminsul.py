"""Irminsul: moved text is found and turned into place; what is approximate stays close; what is saved is net."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record import catalogue, runner
from assay.record.catalogue import papers
from assay.record.errors import BadInput
from assay.record.lab import Lab
from assay.record.types import Kind, Stated, Verdict
from assay.record.verdicts import judge
from assay.serving import irminsul
from assay.serving.interface import Request
from assay.serving.irminsul.compare import compare
from assay.serving.irminsul.segment_store import PrefixCache, Segment, SegmentStore, chain, plan, remember
from assay.sim.random import stream
from assay.workloads import agents

LOOP = agents.Style(system=60, tools=10, tool=16, result=40, window=3)


def shares(kind: str, method: str = "irminsul", seed: int = 0) -> tuple[float, float]:
    table = irminsul.recovery(agents.sessions(kind, seed, count=2, turns=6, style=LOOP), method)
    total = table["prompt_tokens"].sum()
    return table["prefix"].sum() / total, table["reused"].sum() / total


# ---------------------------------------------------------------------------------------- finding the text


@pytest.mark.parametrize("seed", range(3))
def test_half_of_an_agent_loop_with_a_volatile_header_is_recovered_above_the_prefix(seed: int) -> None:
    prefix, reused = shares("header", seed=seed)
    assert prefix < 0.01 and reused >= 0.5


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_to_recover_in_append_only_chats(seed: int) -> None:
    prefix, reused = shares("chat", seed=seed)
    assert prefix > 0.6 and reused < 0.01


@pytest.mark.parametrize("kind", ["reorder", "insert", "truncate", "all"])
def test_every_disturbance_leaves_something_to_recover_and_fixed_blocks_find_less(kind: str) -> None:
    _, reused = shares(kind)
    assert reused > 0.02
    assert reused > 1.5 * shares(kind, "fixed-blocks")[1]


def test_segment_first_needs_no_carve_out_where_nothing_moved() -> None:
    ids = stream(0, "still").integers(0, 1000, 900)
    store = SegmentStore()
    remember(plan(ids, None, store), None, store)
    longer = plan(np.concatenate([ids, ids[:5]]), None, store)
    last = store.cut(ids)[-1]  # the tail is cut elsewhere once something follows
    assert longer.reused >= last[0] and all(reuse.offset == 0 for reuse in longer.reuses)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), edits=st.integers(0, 4))
def test_a_plan_accounts_for_every_token_and_only_reuses_equal_text(seed: int, edits: int) -> None:
    random = stream(seed, "plan")
    ids = random.integers(0, 50, int(random.integers(1, 1500)))
    prefixes, store = PrefixCache(), SegmentStore()
    remember(plan(ids, prefixes, store), prefixes, store)
    text = {key: ids[start:stop] for start, stop, key in store.cut(ids)}
    changed = ids
    for _ in range(edits):
        changed = np.insert(changed, int(random.integers(len(changed) + 1)), random.integers(0, 50, 3))
    found = plan(changed, prefixes, store)
    assert found.prefix + found.reused + found.fresh == len(changed)
    assert found.fresh == found.computed.sum() >= 1 and found.computed[-1]
    for reuse in found.reuses:
        stretch = text[reuse.segment.key][reuse.offset : reuse.offset + reuse.stop - reuse.start]
        assert np.array_equal(stretch, changed[reuse.start : reuse.stop])
        assert reuse.segment.position + reuse.offset + reuse.by == reuse.start
        assert reuse.offset == 16 or (reuse.by == 0 and reuse.offset == 0)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12), st.integers(1, 20))
def test_the_prefix_cache_is_a_radix_tree_with_lru(prompts: list[list[int]], capacity: int) -> None:
    cache, age, clock = PrefixCache(capacity), {}, 0
    for ids in prompts:
        names = chain(np.array(ids))
        longest = max((k for k in range(len(ids) + 1) if k == 0 or tuple(ids[:k]) in age), default=0)
        assert cache.match(names) == longest
        cache.insert(names)
        for k in range(len(ids), 0, -1):
            clock += 1
            age[tuple(ids[:k])] = clock
        age = dict(sorted(age.items(), key=lambda pair: pair[1])[-capacity:])
    assert len(cache) == len(age)


@given(st.lists(st.tuples(st.sampled_from(["put", "hold", "free"]), st.integers(0, 6)), max_size=60))
def test_the_store_never_exceeds_its_room_nor_drops_what_is_held(steps: list[tuple[str, int]]) -> None:
    store, held = SegmentStore(capacity=100), []
    for what, number in steps:
        key = bytes([number])
        if what == "put":
            store.insert(Segment(key, 20 + 10 * number, 0, 0))
        elif what == "hold" and (found := store.hold(key)):
            held.append(found)
        elif what == "free" and held:
            store.release(held.pop())
        assert store.tokens <= 100
        assert all(store.lookup(segment.key) is segment for segment in held)
    for segment in held:
        store.release(segment)
    assert all(segment.users == 0 for segment in held)


def test_releasing_twice_is_an_error() -> None:
    store = SegmentStore()
    store.insert(Segment(b"a", 40, 0, 0))
    held = store.hold(b"a")
    store.release(held)
    with pytest.raises(ValueError, match="more often"):
        store.release(held)


def test_another_model_does_not_see_the_segments() -> None:
    ids = stream(0, "models").integers(0, 1000, 500)
    names = [{key for *_, key in SegmentStore(model=model).cut(ids)} for model in ("a", "b")]
    assert names[0] and not names[0] & names[1]


# ------------------------------------------------------------------------------------------- on the model


@pytest.fixture(scope="module")
def answers() -> pl.DataFrame:
    pytest.importorskip("torch")
    methods = ("irminsul", *irminsul.WRONG, "no-carve-out", "exact-prefix")
    said = {"style": "short", "calls": 3, "weights": str(irminsul.mla_standins.WEIGHTS), "methods": methods}
    cases = [
        {"experiment": "consistency", "model": model, "kind": "header"} | said for model in irminsul.mla_standins.SHAPES
    ]
    return Lab("irminsul", seeds=(7, 12345, 3)).run(irminsul.trial, cases, per="method")


def by_method(answers: pl.DataFrame, column: str) -> dict[str, float]:
    means = answers.group_by("method").agg(pl.col(column).cast(float).mean())
    return dict(means.iter_rows())


def test_the_stand_ins_have_something_to_lose(answers: pl.DataFrame) -> None:
    """Facts reported hundreds of tokens ago are recalled: one value in a hundred by chance."""
    assert answers["recalled_recompute"].mean() > 0.5


def test_an_exact_prefix_changes_nothing(answers: pl.DataFrame) -> None:
    exact = answers.filter(method="exact-prefix")
    assert exact["kl_mean"].max() < 1e-6 and (exact["differs"] == 0).all()


def test_consistency_worsens_without_carve_out_and_far_more_without_turning(answers: pl.DataFrame) -> None:
    kl = by_method(answers, "kl_mean")
    assert kl["irminsul"] <= kl["no-carve-out"] < kl["no-rotation"]
    assert kl["irminsul"] > 0  # close, never claimed to be equal


def verdict(answers: pl.DataFrame, column: str, model: str, method: str) -> Verdict:
    return judge(Stated("", "", Kind.UNCHANGED), irminsul.off(column, model, method, "short")(answers)).verdict


@pytest.mark.parametrize("wrong", irminsul.WRONG)
@pytest.mark.parametrize("column", irminsul.JUDGED)
def test_a_wrong_cache_fails_both_tests_of_consistency(answers: pl.DataFrame, column: str, wrong: str) -> None:
    for model in irminsul.mla_standins.SHAPES:
        assert verdict(answers, column, model, wrong) is not Verdict.REPRODUCED
        assert verdict(answers, column, model, "exact-prefix") is Verdict.REPRODUCED  # the test can be passed


def test_the_study_says_so_if_a_wrong_cache_passes(answers: pl.DataFrame) -> None:
    assert irminsul.caught(answers).value == 1.0
    right = answers.filter(method="exact-prefix").with_columns(method=pl.lit("no-rotation"))
    blind = irminsul.caught(pl.concat([answers.filter(pl.col("method") != "no-rotation"), right]))
    assert blind.value == 0.5 and "no-rotation on deep by 'kl_mean'" in blind.cases


def test_consistency_is_judged_where_much_is_reused(answers: pl.DataFrame) -> None:
    """The prompts are those of the reuse claim, the long ones: where little is reused, nothing can go wrong."""
    off = {"short": 0.0, "long": 0.2}
    rows = [answers.with_columns(style=pl.lit(style), differs=pl.lit(wrong)) for style, wrong in off.items()]
    said = {answer.id: answer for answer in runner.judge(catalogue.study("irminsul"), pl.concat(rows))}
    assert said["answers"].measured == pytest.approx(0.2)


def test_reuse_computes_fewer_tokens(answers: pl.DataFrame) -> None:
    computed = by_method(answers, "computed_share")
    assert computed["irminsul"] < 0.9 * computed["exact-prefix"]


def test_moved_rows_are_those_of_the_new_place() -> None:
    """With an unchanged left context (all of it moves) turned rows equal recomputed ones in every layer."""
    torch = pytest.importorskip("torch")
    from assay.serving.irminsul.segment_prefill import METHODS, Prefiller
    from assay.sim.tiny_lm import Shape, forward, init

    params = init(Shape(vocab=64, layers=2, width=32), seed=1)
    ids = stream(3, "rows").integers(0, 64, 400)
    _, old = forward(params, ids)
    _, new = forward(params, ids, np.arange(400) + 5000)
    moved = old.moved(5000)
    for layer, wanted in zip(moved.layers, new.layers, strict=True):
        assert torch.allclose(layer.rotary, wanted.rotary, atol=1e-4)
        assert torch.allclose(layer.free, wanted.free, atol=1e-4)
    server = Prefiller(params, METHODS["irminsul"])
    server(ids)
    _, rows = server(np.concatenate([[1, 2, 3], ids]))
    assert server.last.reused > 200 and rows.positions.tolist() == list(range(403))


@pytest.mark.timed
def test_saved_prefill_time_is_net_of_hashing_and_turning() -> None:
    pytest.importorskip("torch")
    timed = irminsul.seconds(str(irminsul.mla_standins.WEIGHTS), rounds=5, seed=0)
    assert timed["irminsul"]["seconds"] < min(timed["recompute"]["seconds"], timed["exact-prefix"]["seconds"])
    assert timed["plan only"]["seconds"] < 0.5 * timed["irminsul"]["seconds"]


def test_joules_count_what_reuse_costs() -> None:
    computed = np.ones(5000, bool)
    computed[1000:4000] = False
    saved = irminsul.prefill_joules(computed, 3000)
    assert irminsul.prefill_joules(computed, 0) < saved < irminsul.prefill_joules(np.ones(5000, bool), 0)


def test_gqa_turns_sixteen_times_the_bytes() -> None:
    pytest.importorskip("torch")
    turned = irminsul.turning(rounds=1, seed=0)
    assert turned["gqa"]["key_bytes"] == 16 * turned["mla"]["key_bytes"]
    assert turned["gqa"]["key_flops"] == 16 * turned["mla"]["key_flops"]


# ---------------------------------------------------------------------------------- own input, the adapter


def test_own_chats_are_read_as_transcripts_and_as_requests(tmp_path: Path) -> None:
    system = {"role": "system", "content": "word " * 400}
    turn = [{"role": "user", "content": [{"type": "text", "text": "go"}]}, {"role": "assistant", "content": None}]
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"messages": [system, *turn, *turn]}) + "\n\n" + json.dumps({"messages": [system]}))
    first, second = agents.read_chats(log)
    assert len(first) == 2 and len(second) == 1 and len(first[1]) > len(first[0])
    table = irminsul.recovery(log)
    assert table.height == 3 and table["prefix"].to_list()[1] > 700


@pytest.mark.parametrize(
    ("content", "says"),
    [("[1", "1: not JSON"), ('{"prompt": "x"}', "no list of 'messages'"), ("", "no chat"), ("[" * 10**5, "not JSON")],
)
def test_bad_chats_say_what_is_wrong(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(BadInput, match=says):
        agents.read_chats(file)
    with pytest.raises(BadInput, match="cannot read"):
        agents.read_chats(tmp_path / "none.jsonl")


def test_the_cache_layer_counts_only_what_the_prefix_lacks() -> None:
    text = " ".join(map(str, range(2000)))
    layer = irminsul.Irminsul()
    request = Request(0, 0.0, prompt=4000, text=text)
    assert layer.lookup(request, 0, 0).tokens == 0
    again = layer.lookup(request, 0, 0)
    assert 3000 < again.tokens < 4000 and again.seconds > 0
    assert layer.lookup(request, 0, 3000).tokens <= 1000
    assert layer.lookup(request, 1, 0).tokens == 0  # another instance has seen nothing
    assert layer.lookup(Request(1, 0.0, prompt=100), 0, 0).tokens == 0


def test_all_claims_of_the_record_are_answered() -> None:
    assert [c.id for c in irminsul.claims if not c.asks] == [stated.id for stated in papers()["irminsul"].claims]


def test_stored_weights_are_small_and_know_where_they_come_from() -> None:
    pytest.importorskip("torch")
    models, provenance = irminsul.mla_standins.load()
    assert irminsul.mla_standins.WEIGHTS.stat().st_size < 2 * 2**20
    assert {name: params.shape for name, params in models.items()} == irminsul.mla_standins.SHAPES
    assert provenance["steps"] > 0 and set(provenance["loss"]) == set(models)


# ----------------------------------------------------------------------------------------- one's own prompts


def test_on_ones_own_prompts_moved_text_is_found_by_content_alone(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    manual = " ".join(f"rule{k}" for k in range(700))
    rows = [{"messages": [{"role": "user", "content": f"{'now ' * (k % 7)}{k} {manual} ask"}]} for k in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = compare(agents.read_chats(file))
    computed = {row["cache"]: row["computed_share"] for row in answer["table"]}
    assert computed["irminsul"] < 0.4 < 0.9 < computed["exact-prefix"]
    assert "wins with" in answer["why"]
    assert "95 % interval" in answer["why"]


def test_prompts_that_only_grow_leave_nothing_to_find_and_that_is_no_win() -> None:
    answer = compare(agents.sessions("chat", seed=5, count=10, turns=4), ["irminsul", "exact-prefix"])
    ours, exact = answer["table"]
    assert ours["reused_share"] < 0.01
    assert ours["computed_mean"] == pytest.approx(exact["computed_mean"], rel=0.02)


def test_no_room_is_no_reuse_and_an_unknown_cache_is_one_line() -> None:
    answer = compare(agents.sessions("header", seed=1, count=2, turns=3), ["irminsul"], capacity=10.0)
    assert answer["table"][0]["reused_share"] == 0.0
    with pytest.raises(BadInput, match="no cache 'lru'; there are irminsul"):
        compare([], ["lru"])
