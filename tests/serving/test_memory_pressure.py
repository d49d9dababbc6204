"""What happens when KV memory is short: who is admitted, who gives way, and what is found again afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.record.errors import BadInput
from assay.serving.baselines.routers import RoundRobin
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import check, parse, uniform
from assay.sim.llm_cost import StepCost
from assay.workloads.requests import Prefixes, Requests

COST = StepCost(tokens=0.010 + 1e-5 * np.arange(9000), decode_kv=1e-8, kv_tokens=8000)


def served(requests: Requests, room: int, prefix_cache: bool = True, **settings: Any) -> Outcome:
    fleet = uniform(1, COST, kv_tokens=room, **settings)
    macro, step = (
        simulate(requests, fleet, RoundRobin(), mode=mode, prefix_cache=prefix_cache) for mode in ("macro", "step")
    )
    np.testing.assert_array_equal(macro.records["finish"], step.records["finish"])
    return macro


def equal(count: int, prompt: int, output: int, gap: float = 0.0) -> Requests:
    return Requests.of(np.arange(count) * gap, [prompt] * count, [output] * count)


def named(requests: Requests) -> Requests:
    """Every prompt is a segment of its own, as hash ids would say."""
    n = len(requests)
    numbers, nothing = np.arange(n, dtype=np.int32), np.full(n, -1, np.int32)
    tree = Prefixes(nothing, numbers * 0, requests.prompt.astype(np.int32), np.arange(n + 1), numbers, nothing)
    return replace(requests, prefixes=tree)


def prefilled(outcome: Outcome) -> int:
    return int(outcome.instances["prefilled"].sum())


def recomputed(outcome: Outcome) -> int:
    """Tokens prefilled that had KV before: a resumed sequence also computes the token it had sampled last."""
    return prefilled(outcome) - int(outcome.requests.prompt.sum()) - int(outcome.records["preemptions"].sum())


# ---------------------------------------------------------------------------------------------- admission


@pytest.mark.parametrize("budget", [512, 1024, 2048, 4096, 8192])
@pytest.mark.parametrize("output", [10, 100, 500])
def test_a_prompt_is_admitted_only_where_all_of_it_fits(budget: int, output: int) -> None:
    outcome = served(equal(4, 5000, output), 8000, max_tokens=budget)
    assert prefilled(outcome) == 20_000
    assert outcome.instances["preemptions"].sum() == 0


def test_asking_only_for_the_next_chunk_is_an_option_and_thrashes() -> None:
    outcome = served(equal(4, 5000, 20), 8000, max_tokens=2048, admission="chunk")
    assert outcome.instances["preemptions"].sum() > 0
    assert prefilled(outcome) > 20_000


def test_what_is_cached_and_held_by_others_counts_as_fitting() -> None:
    """Two prompts of 5,000 tokens that share 4,800 fit into 8,000; two that share nothing do not."""
    shared = Prefixes(
        np.array([-1], np.int32), np.zeros(1, np.int32), np.array([4800], np.int32),
        np.arange(3), np.zeros(2, np.int32), np.full(2, -1, np.int32),
    )  # fmt: skip
    requests = Requests.of([0.0, 0.1], [5000, 5000], [100, 100])
    alone, together = (served(r, 8000, max_tokens=5000) for r in (requests, replace(requests, prefixes=shared)))
    assert alone.records["admitted"][1] >= alone.records["finish"][0]
    assert together.records["admitted"][1] < together.records["finish"][0]


def test_admission_is_a_check_and_holds_nothing_back_as_in_vllm() -> None:
    """With a limit on the chunk of one prompt two are under way, and the second was let in before the first grew."""
    outcome = served(equal(2, 5000, 10), 8000, max_tokens=2048, chunk_limit=256)
    assert outcome.records["admitted"].tolist() == [0.0, 0.0]
    assert outcome.instances["preemptions"].sum() > 0


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"admission": "all"}, "unknown admission 'all'; there are prompt, chunk"),
        ({"preemption": "kill"}, "unknown preemption 'kill'; there are recompute, swap"),
    ],
)
def test_an_unknown_rule_is_refused(setting: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        check(uniform(1, COST, **setting))


def test_a_fleet_file_says_how_prompts_are_admitted(tmp_path: Any) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[[instance]]\nlayout = "h200:qwen3-32b"\nadmission = "chunk"\n')
    assert parse(str(path)).instances[0].admission == "chunk"
    assert parse("1xh200:qwen3-32b").instances[0].admission == "prompt"


# --------------------------------------------------------------------------------------------- preemption


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    """Both reach 1,024 tokens and fill the memory; until the other ends it takes 12 blocks, those at the end."""
    requests = equal(2, 512, 700)
    for trace in (requests, named(requests)):
        outcome = served(trace, 2048)
        assert outcome.records["preemptions"].tolist() == [0, 1]
        assert recomputed(outcome) == 192


def test_without_a_prefix_cache_all_is_recomputed() -> None:
    assert recomputed(served(equal(2, 512, 700), 2048, prefix_cache=False)) == 1024


@pytest.mark.parametrize(("prompt", "output", "room"), [(512, 640, 2048), (256, 900, 2048), (100, 300, 700)])
def test_recomputed_is_what_others_took_meanwhile(prompt: int, output: int, room: int) -> None:
    """The one that stays needs the blocks from where both filled the memory to its end."""
    outcome = served(equal(2, prompt, output), room)
    assert outcome.records["preemptions"].tolist() == [0, 1]
    blocks = room // 16
    # The last to get a block is the older one, so the younger has half of them, or one less.
    own = blocks // 2
    taken = -(-(prompt + output - 1) // 16) - (blocks - own)
    assert recomputed(outcome) == pytest.approx(taken * 16, abs=16)


def test_a_prompt_that_gave_way_keeps_its_chunks_and_does_not_try_again_in_vain() -> None:
    """Let in for its first chunk, it runs out of room. What it left counts as taken by it, so it waits for the rest."""
    requests = Requests.of([0.0, 0.0, 0.5], [512, 512, 1600], [600, 600, 10])
    settings: dict[str, Any] = {"max_tokens": 300, "admission": "chunk"}
    outcome = served(requests, 2400, **settings)
    assert outcome.records["preemptions"].tolist() == [0, 0, 1]
    assert recomputed(outcome) < 1600
    assert served(requests, 2400, **settings, prefix_cache=False).records["preemptions"][2] > 10


def test_swapped_sequences_bring_their_blocks_back_and_recompute_nothing() -> None:
    outcome = served(equal(2, 512, 700), 2048, preemption="swap")
    assert outcome.records["preemptions"].tolist() == [0, 1]
    assert prefilled(outcome) == 1024


# ------------------------------------------------------------------------------------------------- SGLang


def test_sglang_keeps_room_for_the_output_of_those_on_board() -> None:
    """Eight prompts of 200 tokens fit at once into 2,000; with 600 tokens of output each they are let in bit by bit."""
    greedy, careful = (served(equal(8, 200, 600), 2400, plan=plan) for plan in ("vllm-v1", "sglang"))
    assert (greedy.records["admitted"] == 0.0).sum() == 8
    assert (careful.records["admitted"] == 0.0).sum() == 2  # 200 + 600 + 16 each, and 2,400 in all
    assert careful.instances["preemptions"].sum() < greedy.instances["preemptions"].sum()


def test_sglang_lets_more_in_as_its_estimate_of_outputs_falls() -> None:
    """0.7 of what is left is kept at first, less with every decode: the third is let in before anybody ends."""
    outcome = served(equal(3, 200, 1500), 5000, plan="sglang")
    third = outcome.records["admitted"][2]
    assert 0.0 < third < outcome.records["finish"].min()


def test_sglang_finds_the_prompt_of_a_retracted_sequence_but_not_its_output() -> None:
    """It frees what was generated at once; prompts are in its tree."""
    outcome, swept = (served(equal(3, 512, 1200), 3400, prefix_cache=on, plan="sglang") for on in (True, False))
    for run in (outcome, swept):
        assert run.records["preemptions"].tolist() == [0, 1, 0]
    assert recomputed(swept) - recomputed(outcome) == 512
