"""Plans as lines: read as people write them, and printed as the frameworks' own argument parsers take them."""

from __future__ import annotations

import ast
import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from assay.cli.plan import command as plan
from assay.record.errors import BadInput
from assay.sim.models import Model, model
from assay.training.engine import planning, search
from assay.training.engine.cluster import FP8, read
from assay.training.engine.costs import check, parts, stage_costs
from assay.training.engine.launch import flags, read_plan
from assay.training.engine.step import simulate
from assay.training.interface import Job, Layout, Plan

NAMES: dict[str, Any] = json.loads(Path(__file__).with_name("launchers.json").read_text(encoding="utf-8"))
LLAMA, MOE, DEEP = model("llama-3-8b"), model("qwen3-30b-a3b"), model("deepseek-v3")

sizes = st.sampled_from([1, 2, 4])
schedules = st.sampled_from(["1f1b", "gpipe", "zb-h1", "dualpipe", "interleaved"])
plans = st.builds(
    lambda tp, cp, pp, dp, ep, vpp, order, mbs, again, zero: Plan(
        Layout(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, vpp=vpp if order == "interleaved" else 1), order, mbs, again, zero
    ),
    sizes, sizes, sizes, sizes, sizes, st.sampled_from([2, 4]), schedules, sizes,
    st.sampled_from(["none", "selective", "full"]), st.integers(0, 3),
)  # fmt: skip


@given(plans)
def test_a_plans_name_is_read_as_that_plan(one: Plan) -> None:
    assert read_plan(one.name, one.layout.ranks) == one
    shuffled = " ".join(sorted(one.layout.name.split()))
    assert read_plan(shuffled.upper() + f" MBS{one.mbs} {one.schedule}", one.layout.ranks).layout == one.layout


def words(line: str) -> dict[str, list[str]]:
    """What a shell makes of a line: every flag with its values, each flag once."""
    found: dict[str, list[str]] = {}
    for word in shlex.split(line.partition("  # ")[0]):
        name, sign, value = word.partition("=")
        if word.startswith("--") or sign:
            assert name not in found, name
            found[name] = [value] if sign else []
        else:
            found[list(found)[-1]].append(word)
    return found


@pytest.mark.parametrize("shape", [LLAMA, MOE, DEEP], ids=lambda shape: shape.name)
@given(one=plans, fp8=st.booleans())
def test_flags_are_those_that_the_frameworks_take(shape: Model, one: Plan, fp8: bool) -> None:
    lines = flags(one, shape, Job(64, 4096), fp8)
    megatron, nemo, titan = (words(lines[name]) for name in ("megatron-lm", "nemo", "torchtitan"))
    for name, given_words in (("megatron-lm", megatron), ("nemo", nemo), ("torchtitan", titan)):
        assert given_words
        assert set(given_words) <= set(NAMES[name]["names"]), name
    schedule = titan.get("--parallelism.pipeline_parallel_schedule", [])
    assert set(schedule) <= set(NAMES["torchtitan"]["schedules"])
    converters = ",".join(titan.get("--model.converters", [])).split(",")
    assert {*converters} - {""} <= set(NAMES["torchtitan"]["converters"])
    recomputed = megatron.get("--recompute-modules", [])
    assert set(recomputed) <= set(NAMES["megatron-lm"]["recompute_modules"])
    if "model.config.recompute_modules" in nemo:  # nemo-run reads lists as Python does
        assert ast.literal_eval(nemo["model.config.recompute_modules"][0]) == recomputed


@given(one=plans, fp8=st.booleans())
def test_what_megatron_refuses_of_its_own_flags_is_not_printed(one: Plan, fp8: bool) -> None:
    """Asserted by validate_args, TransformerConfig and MegatronFSDP of 0.14, and by MegatronStrategy of NeMo 2.5."""
    lines = flags(one, MOE, Job(64, 4096), fp8)
    megatron, nemo = words(lines["megatron-lm"]), words(lines["nemo"])
    if one.zero >= 2:
        assert megatron["--ckpt-format"] == nemo["trainer.strategy.save_ckpt_format"] == ["fsdp_dtensor"]
        assert "--use-distributed-optimizer" in megatron
    assert "--overlap-grad-reduce" in megatron  # sharded gradients and gathered weights stand on it
    assert nemo["trainer.strategy.ddp.overlap_grad_reduce"] == ["True"]
    assert ("--overlap-param-gather" in megatron) == ("--use-distributed-optimizer" in megatron)
    if fp8:  # the recipe by default refuses norms and activations that are computed again
        recipe = megatron["--fp8-recipe"]
        assert recipe == nemo["model.config.fp8_recipe"]
        assert set(recipe) <= set(NAMES["megatron-lm"]["fp8_recipes"]) - {"delayed"}


@given(plans)
def test_copies_that_torchtitan_refuses_are_said(one: Plan) -> None:
    """Its DDP knows one dimension, and sequences that are cut bring sharding with them."""
    cut, line = one.layout, flags(replace(one, zero=0), LLAMA, Job(64, 4096))["torchtitan"]
    assert ("refuses zero 0" in line) == (cut.dp > 1 and cut.tp * cut.pp > 1 and cut.cp == 1)
    assert ("no zero 0 with cut sequences" in line) == (cut.cp > 1)


def test_what_a_framework_cannot_be_told_is_said() -> None:
    found = flags(Plan(Layout(pp=2, dp=4), "dualpipe"), LLAMA, Job(64, 4096))
    assert all("no dualpipe" in line for line in found.values())
    plain = flags(Plan(Layout(tp=2, pp=2, dp=2), recompute="full"), LLAMA, Job(64, 4096))
    assert "#" not in plain["megatron-lm"]
    assert "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1" in plain["megatron-lm"]
    moe = flags(Plan(Layout(dp=8, ep=8), recompute="selective"), MOE, Job(64, 4096))["megatron-lm"]
    assert moe.endswith("--recompute-granularity selective --recompute-modules layernorm moe_act")


def unrolled(layout: str) -> list[str]:
    """Parts of a Megatron layout, by the rules of its help text: products unrolled, brackets first, cut at each |."""
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda found: found[1] * int(found[2]), layout)
    return layout.split("|")


def dealt_by_torchtitan(line: str, layers: int, pp: int) -> list[int]:
    """Layers of each part as torchtitan 0.2 counts them; AssertionError where it refuses."""
    told = dict(re.findall(r"--parallelism\.pipeline_parallel_(\w+) (\w+)", line))
    first, last = (int(told[f"{end}_stage_less_layers"]) for end in ("first", "last"))
    stages = pp
    if "layers_per_stage" in told:
        stages = math.ceil((layers + first + last) / int(told["layers_per_stage"]))
        assert stages % pp == 0
        assert stages // pp > 1
        assert told["schedule"] == "Interleaved1F1B"
    each, over = divmod(layers + first + last, stages)
    found = [each + (at < over) for at in range(stages)]
    return [found[0] - first, *found[1:-1], found[-1] - last]


@given(st.integers(8, 130), st.sampled_from([2, 3, 4, 8]), st.sampled_from([1, 2, 4]))
def test_layers_lie_where_the_priced_plan_has_them(layers: int, pp: int, vpp: int) -> None:
    assume(pp * vpp <= layers)
    shape = replace(LLAMA, full_layers=layers, dense_layers=layers)
    ours = parts(layers, pp * vpp)
    found = flags(Plan(Layout(pp=pp, vpp=vpp), "interleaved" if vpp > 1 else "1f1b"), shape, Job(64, 4096))
    if layers % (pp * vpp):
        stages = unrolled(re.findall(r"--pipeline-model-parallel-layout '(.*)'", found["megatron-lm"])[0])
        assert [stage.count("t") for stage in stages] == ours
        assert (stages[0][0], stages[-1][-1]) == ("E", "L")
        assert "num-virtual" not in found["megatron-lm"]  # either or
        assert words(found["nemo"])["trainer.strategy.pipeline_model_parallel_layout"] == [
            words(found["megatron-lm"])["--pipeline-model-parallel-layout"][0]
        ]
    elif vpp > 1:
        assert f"--num-virtual-stages-per-pipeline-rank {vpp}" in found["megatron-lm"]
    if "module_fqns_per_model_part" not in found["torchtitan"]:
        assert dealt_by_torchtitan(found["torchtitan"], layers, pp) == ours
    else:
        assert layers % (pp * vpp)


def test_layers_of_the_405b_model_need_no_words_of_their_own() -> None:
    found = flags(read_plan("tp8 pp16 vpp4 dp64", 8192), model("llama-3.1-405b"), Job(2048, 8192))
    assert "--pipeline-model-parallel-layout 'Et|(t*2|)*62tL'" in found["megatron-lm"]
    assert "#" not in found["megatron-lm"]
    assert "layers_per_stage 2" in found["torchtitan"]


def test_shards_of_weights_and_gradients_are_asked_for_and_not_only_named() -> None:
    found = flags(Plan(Layout(dp=8), zero=3), LLAMA, Job(64, 4096))
    assert "trainer.strategy.ddp.use_megatron_fsdp=True" in found["nemo"]
    assert "--use-megatron-fsdp" in found["megatron-lm"]


@given(plans)
def test_experts_that_torchtitan_refuses_are_said(one: Plan) -> None:
    """Its own conditions: experts borrow whole groups of sequences, and of tensor parallelism where they are whole."""
    cut, line = one.layout, flags(one, MOE, Job(64, 4096))["torchtitan"]
    assume(cut.ep > 1 and cut.etp in (1, cut.tp))
    shard = 1 if one.zero == 0 else cut.dp
    if cut.etp == cut.tp:
        can = cut.ep % cut.cp == 0 and (shard * cut.cp) % cut.ep == 0
    else:
        can = cut.ep % (cut.cp * cut.tp) == 0 and (shard * cut.cp * cut.tp) % cut.ep == 0
    assert can == ("refuses ep" not in line)


def test_fp8_is_told_by_the_names_that_converters_have() -> None:
    dense, mixed, deep = (
        flags(Plan(layout), shape, Job(64, 4096), fp8=True)["torchtitan"]
        for shape, layout in ((LLAMA, Layout(dp=8)), (MOE, Layout(dp=8)), (MOE, Layout(pp=2, dp=4)))
    )
    assert "--model.converters quantize.linear.float8" in dense
    assert "quantize.linear.float8,quantize.grouped_mm.float8 --quantize.grouped_mm.float8.fqns experts" in mixed
    assert "grouped_mm" not in deep
    assert "they stay bf16" in deep


def test_my_own_launch_line_is_priced() -> None:
    words = [
        "training",
        "--model",
        "llama-3.1-405b",
        "--cluster",
        "8192xh100",
        "--batch",
        "2048",
        "--seq",
        "8192",
        "--json",
    ]
    ended = CliRunner().invoke(plan, [*words, "--layout", "tp8 pp16 vpp4 dp64 zero1"])
    assert ended.exit_code == 0, ended.output
    answer = json.loads(ended.output)
    assert len(answer["table"]) == 1
    mine = Plan(Layout(tp=8, pp=16, vpp=4, dp=64), "interleaved")
    one = simulate("llama-3.1-405b", "8192xh100", mine, Job(2048, 8192))
    assert answer["table"][0]["step"] == one.step
    assert set(answer["launch"]) == {"megatron-lm", "nemo", "torchtitan"}
    assert ("does not fit" in answer["why"]) == (not one.fits)


def test_flags_are_printed_as_lines_to_be_copied() -> None:
    words = ["training", "--model", "llama-3.1-405b", "--cluster", "8192xh100", "--batch", "2048", "--seq", "8192"]
    printed = CliRunner().invoke(plan, [*words, "--layout", "tp8 pp16 vpp4 dp64"]).output.splitlines()
    mine = read_plan("tp8 pp16 vpp4 dp64", 8192)
    for name, line in flags(mine, model("llama-3.1-405b"), Job(2048, 8192)).items():
        assert printed[printed.index(f"{name}:") + 1] == line


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("tp8 pp16 zigzag", "'zigzag' is not understood"),
        ("tp8 tp4", "tp is given twice"),
        ("1f1b gpipe", "schedule is given twice"),
        ("vpp2 1f1b", "vpp2 is for the interleaved schedule"),
        ("interleaved", "needs vpp2"),
        ("vpp2 dp64", "vpp2 needs pp2 or more"),
        ("tp3", "does not divide the 64 ranks"),
        ("mbs0", "mbs is 0, should be at least 1"),
        ("vpp0", "vpp is 0, should be at least 1"),
        ("ep7", "ep7"),
        ("tp0", "does not divide the 64 ranks"),
        ("tp8 dp4", "is 32 ranks, the cluster has 64"),
        ("", "is empty"),
        ("tp16 dp4", "cuts across the 8 key-value heads"),
        ("recompute some", "'recompute some' is not understood"),
        ("zero9", "zero 0 to 3"),
        ("pp64 mbs1", "more stages than the 32 layers"),
    ],
)
def test_lines_that_cannot_be_are_one_line(refused: Callable[..., str], line: str, says: str) -> None:
    words = ("plan", "training", "--model", "llama-3-8b", "--cluster", "64xh100", "--layout", line)
    assert says in refused(*words)


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--cluster", "16xh100:ib0"), "a network of 0 Gb/s"),
        (("--cluster", "16xh100", "--batch", "100000000"), "at most 16,384"),
        (("--cluster", "16xh100", "--batch", "1e8"), "'1e8' is not a valid integer"),
        (("--cluster", "8xa100", "--precision", "fp8"), "a100 has no units for fp8"),
    ],
)
def test_what_would_hang_or_fall_is_refused(refused: Callable[..., str], words: tuple[str, ...], says: str) -> None:
    assert says in refused("plan", "training", "--model", "llama-3-8b", *words)


def test_passes_of_a_step_are_bounded() -> None:
    with pytest.raises(BadInput, match="at most 131,072 passes"):
        check(LLAMA, read("8xh100"), Plan(Layout(pp=8)), Job(10**6, 4096))


@pytest.mark.parametrize(
    ("shape", "layout", "says"),
    [
        (LLAMA, Layout(tp=16), "tp16 cuts across the 8 key-value heads"),
        (MOE, Layout(tp=8), "tp8 cuts across the 4 key-value heads"),
        (replace(LLAMA, ffn=14_337), Layout(tp=2), "does not divide the feed-forward width 14337"),
    ],
)
def test_cuts_that_frameworks_refuse(shape: Model, layout: Layout, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        check(shape, read(f"{layout.ranks}xh100"), Plan(layout), Job(64, 4096))


def test_latents_have_no_heads_to_cut_across() -> None:
    assert check(DEEP, read("16xh100"), Plan(Layout(tp=16)), Job(16, 4096)) == 16


# ----------------------------------------------------------------------------------- what is searched now


def test_long_sequences_are_cut_over_more_than_eight_ranks() -> None:
    found = {one.cp for one in search.layouts(LLAMA, read("64xh100"), Job(64, 131_072))}
    assert found == {1, 2, 4, 8, 16, 32}
    assert {one.cp for one in search.layouts(LLAMA, read("64xh100"), Job(64, 4096))} == {1}


def test_zero_2_reduces_every_microbatch_and_keeps_a_share_of_the_gradients() -> None:
    cluster, job = read("64xh100"), Job(1024, 4096)
    one, two, three = (simulate(LLAMA, cluster, Plan(Layout(dp=64), mbs=2, zero=zero), job) for zero in (1, 2, 3))
    assert one.held > two.held > three.held
    assert one.step < two.step <= three.step * (1 + 1e-9)
    costs = [stage_costs(LLAMA, cluster, Plan(Layout(dp=64), mbs=2, zero=zero), job) for zero in (1, 2)]
    saved = costs[0].state[0] - costs[1].state[0]
    assert saved == pytest.approx(costs[0].gradient_bytes[0] * (1 - 1 / 64 - 2 / LLAMA.layers))
    assert any(one.zero == 2 for one in search.plans(LLAMA, read("8xh100"), Job(64, 4096)))


def test_fp8_makes_products_faster_and_nothing_else() -> None:
    job, at = Job(128, 4096), Plan(Layout(tp=8, pp=2), recompute="none")
    wide = simulate(model("llama-3-70b"), read("16xh100"), at, job)
    narrow = simulate(model("llama-3-70b"), replace(read("16xh100"), precision=FP8), at, job)
    assert 1.15 < wide.step / narrow.step < 1.9  # attention, casts and exchanges stay
    assert narrow.held > wide.held  # weights lie in both dtypes
    assert planning.in_precision(read("8xh100"), "bf16") == read("8xh100")


@pytest.mark.parametrize("name", ["kimi-k2", "llama-4-scout", "llama-4-maverick", "glm-4.5", "phi-3-mini"])
def test_models_of_today_are_planned(name: str) -> None:
    shape = model(name)
    tp = 4 if shape.latent is None else 8
    one = simulate(shape, "256xgb200", Plan(Layout(tp=tp, dp=256 // tp, ep=8 if shape.experts else 1)), Job(256, 4096))
    assert 0 < one.mfu < 0.8
    assert np.isfinite(one.memory).all()


@pytest.mark.parametrize("name", ["h800", "gb200", "b200", "tpu-v5p"])
def test_devices_of_today_are_planned(name: str) -> None:
    found = planning.best(LLAMA, read(f"16x{name}"), Job(64, 4096))
    assert found.fastest.fits
