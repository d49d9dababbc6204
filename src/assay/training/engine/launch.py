"""A plan as one line that people write, read and written: `tp8 pp16 vpp4 cp2 dp128 mbs1 zero1 recompute full`.

>>> plan = read_plan("tp8 pp16 vpp4 dp64 zero1", ranks=8192)
>>> plan.schedule, plan.mbs, plan.name
('interleaved', 1, 'tp8 pp16 vpp4 dp64 interleaved mbs1 recompute none zero1')
>>> read_plan(plan.name, ranks=8192) == plan
True
"""

from __future__ import annotations

import math
import re
from itertools import groupby
from typing import Any

from assay.record.errors import BadInput
from assay.sim.models import Model
from assay.training.engine.costs import RECOMPUTE, parts
from assay.training.engine.schedules import SCHEDULES
from assay.training.interface import Job, Layout, Plan

CUTS = ("tp", "cp", "pp", "dp", "ep", "vpp", "etp", "ecp")
SIZES = (*CUTS, "mbs", "zero")
EXAMPLE = "tp8 pp16 vpp4 dp64 mbs1 zero1 recompute full"


def read_plan(text: str, ranks: int) -> Plan:
    """The plan of a line: sizes in any order, a schedule, `recompute` and what is recomputed.

    What the line does not say is one rank, one sequence a microbatch, 1F1B (interleaved with vpp), nothing recomputed,
    and ZeRO 1; copies (dp) are as many as the ranks leave.

    Raises:
        BadInput: a word that is not understood, or is there twice.
    """
    found: dict[str, int] = {}
    words: dict[str, str] = {}
    for word in re.sub(r"recompute[ =]+", "recompute-", text.lower()).replace(",", " ").split():
        size = re.fullmatch(r"([a-z]+)[=:]?(\d{1,7})", word)
        kind = "recompute" if word.startswith("recompute-") else "schedule"
        if size and size[1] in SIZES:
            kind, number = size[1], int(size[2])
            if kind in found:
                raise BadInput(f"layout {text!r}: {kind} is given twice")
            found[kind] = number
            continue
        value = word.removeprefix("recompute-")
        if value not in (RECOMPUTE if kind == "recompute" else SCHEDULES):
            raise BadInput(
                f"layout {text!r}: {word.replace('recompute-', 'recompute ')!r} is not understood; write sizes of "
                f"{', '.join(SIZES)}, a schedule ({', '.join(SCHEDULES)}) and recompute {'|'.join(RECOMPUTE)}, such as "
                f"{EXAMPLE!r}"
            )
        if kind in words:
            raise BadInput(f"layout {text!r}: {kind} is given twice")
        words[kind] = value
    if not found and not words:
        raise BadInput(f"layout {text!r} is empty; write one such as {EXAMPLE!r}")
    cut = {name: found[name] for name in CUTS if name in found}
    if "dp" not in cut:
        others = math.prod(cut.get(name, 1) for name in ("tp", "cp", "pp"))
        if others < 1 or ranks % others:
            raise BadInput(f"layout {text!r}: tp x cp x pp is {others}, which does not divide the {ranks} ranks")
        cut["dp"] = ranks // others
    vpp = cut.get("vpp", 1)
    schedule = words.get("schedule", "interleaved" if vpp > 1 else "1f1b")
    if vpp > 1 and schedule != "interleaved":
        raise BadInput(f"layout {text!r}: vpp{vpp} is for the interleaved schedule, not for {schedule}")
    if schedule == "interleaved" and vpp == 1:
        raise BadInput(f"layout {text!r}: interleaved needs vpp2 or more")
    return Plan(Layout(**cut), schedule, found.get("mbs", 1), words.get("recompute", "none"), found.get("zero", 1))


def flags(plan: Plan, shape: Model, job: Job, fp8: bool = False) -> dict[str, str]:
    """The same plan as Megatron-LM, NeMo and torchtitan are told; behind a # what they cannot be told.

    Names are those of megatron-core 0.14's arguments, of NeMo 2.5's MegatronStrategy and of torchtitan 0.2's JobConfig.

    >>> from assay.sim.models import model
    >>> line = flags(read_plan("tp2 pp2 dp2", ranks=8), model("llama-3-8b"), Job(64, 4096))["megatron-lm"]
    >>> line.split(" --sequence")[0]
    '--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2'
    """
    return {
        "megatron-lm": _megatron(plan, shape, job, fp8), "nemo": _nemo(plan, shape, job, fp8),
        "torchtitan": _torchtitan(plan, shape, job, fp8),
    }  # fmt: skip


def _joined(words: list[str], missing: list[str]) -> str:
    return " ".join(words) + (f"  # {'; '.join(missing)}" if missing else "")


def modules(shape: Model) -> list[str]:
    """What Megatron calls the parts that are computed again where recomputation is selective.

    >>> from assay.sim.models import model
    >>> modules(model("deepseek-v3"))
    ['layernorm', 'moe_act']
    """
    return ["layernorm", "moe_act"] if shape.experts else ["layernorm"]


def _not_in_megatron(plan: Plan, shape: Model) -> list[str]:
    """What these flags do not say."""
    missing = []
    if plan.schedule in ("zb-h1", "dualpipe", "gpipe", "pipedream"):
        missing.append(f"no {plan.schedule}: this runs 1F1B")
    if plan.recompute == "selective" and shape.dense_layers:
        missing.append("no module for dense activations: they stay in memory")
    if plan.layout.ecp > 1:
        missing.append("experts that follow context parallelism have no flag")
    return missing


def placed(shape: Model, stages: int) -> str:
    """Which layers each part has, as Megatron's --pipeline-model-parallel-layout writes it: E is the embedding, t a
    layer, L the loss, | ends a part.

    >>> from assay.sim.models import model
    >>> placed(model("llama-3.1-405b"), 64)
    'Et|(t*2|)*62tL'
    """
    first, *middle, last = (f"t*{count}" if count > 1 else "t" for count in parts(shape.layers, stages))
    runs = (f"({layers}|)*{len(list(run))}" for layers, run in groupby(middle))
    return f"E{first}|{''.join(runs)}{last}L"


SCALED = (
    "tensorwise"  # by the tensor at hand, as torchtitan does; scales of steps before refuse selective recomputation
)
SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
SAVED = "fsdp_dtensor"  # the only format of checkpoints that sharded gradients and weights are saved in


def _megatron(plan: Plan, shape: Model, job: Job, fp8: bool) -> str:
    cut = plan.layout
    sizes = {
        "tensor-model-parallel-size": cut.tp, "pipeline-model-parallel-size": cut.pp,
        "context-parallel-size": cut.cp, "expert-model-parallel-size": cut.ep,
    }  # fmt: skip
    words = [f"--{name} {size}" for name, size in sizes.items() if size > 1]
    if shape.layers % cut.stages:  # the parts say how many of them a rank has
        words.append(f"--pipeline-model-parallel-layout '{placed(shape, cut.stages)}'")
    elif cut.vpp > 1:
        words.append(f"--num-virtual-stages-per-pipeline-rank {cut.vpp}")
    if shape.experts:
        words.append(f"--expert-tensor-parallel-size {cut.etp}")
    words += ["--sequence-parallel"] * (cut.tp > 1)
    words += [f"--micro-batch-size {plan.mbs}", f"--global-batch-size {job.batch}", f"--seq-length {job.seq}", "--bf16"]
    words += [f"--fp8-format hybrid --fp8-recipe {SCALED}"] * fp8
    words.append("--overlap-grad-reduce")  # sharded gradients are refused without
    words += ["--use-distributed-optimizer", "--overlap-param-gather"] * (plan.zero > 0)
    if plan.zero >= 2:
        words += ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {SHARDED[plan.zero]}"]
        words.append(f"--ckpt-format {SAVED}")
    if plan.recompute == "full":
        words += ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    if plan.recompute == "selective":
        words += ["--recompute-granularity selective", f"--recompute-modules {' '.join(modules(shape))}"]
    return _joined(words, _not_in_megatron(plan, shape))


def _nemo(plan: Plan, shape: Model, job: Job, fp8: bool) -> str:
    """As overrides of a recipe of nemo-run; strategy and model take megatron-core's own names."""
    cut = plan.layout
    at: dict[str, Any] = {
        "tensor_model_parallel_size": cut.tp, "pipeline_model_parallel_size": cut.pp,
        "virtual_pipeline_model_parallel_size": cut.vpp if cut.vpp > 1 else None, "context_parallel_size": cut.cp,
        "expert_model_parallel_size": cut.ep, "sequence_parallel": cut.tp > 1,
    }  # fmt: skip
    if shape.experts:
        at["expert_tensor_parallel_size"] = cut.etp
    if shape.layers % cut.stages:
        at["pipeline_model_parallel_layout"] = f"'{placed(shape, cut.stages)}'"
    at |= {
        "ddp.use_distributed_optimizer": plan.zero > 0, "ddp.overlap_grad_reduce": True,
        "ddp.overlap_param_gather": plan.zero > 0,
    }  # fmt: skip
    if plan.zero >= 2:  # without the first the strategy is not looked at
        at |= {
            "ddp.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": SHARDED[plan.zero],
            "save_ckpt_format": SAVED,
        }  # fmt: skip
    words = [f"trainer.strategy.{name}={value}" for name, value in at.items()]
    words += [
        f"data.micro_batch_size={plan.mbs}", f"data.global_batch_size={job.batch}", f"data.seq_length={job.seq}",
    ]  # fmt: skip
    if plan.recompute == "full":
        config = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        words += [f"model.config.{name}={value}" for name, value in config.items()]
    if plan.recompute == "selective":
        config = {"recompute_granularity": "selective", "recompute_modules": f'"{modules(shape)}"'}
        words += [f"model.config.{name}={value}" for name, value in config.items()]
    words += [f"model.config.fp8=hybrid model.config.fp8_recipe={SCALED}"] * fp8
    return _joined(words, _not_in_megatron(plan, shape))


TITAN = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}


def _torchtitan(plan: Plan, shape: Model, job: Job, fp8: bool) -> str:
    cut, missing = plan.layout, []
    replicate, shard = (cut.dp, 1) if plan.zero == 0 else (1, cut.dp)
    sizes = {
        "data_parallel_replicate_degree": replicate, "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": cut.tp, "context_parallel_degree": cut.cp, "pipeline_parallel_degree": cut.pp,
        "expert_parallel_degree": cut.ep,
    }  # fmt: skip
    words = [
        f"--parallelism.{name} {size}" for name, size in sizes.items() if size > 1 or name.endswith("shard_degree")
    ]
    if shape.experts and cut.ep > 1:
        words.append(f"--parallelism.expert_tensor_parallel_degree {cut.etp}")
        missing += _refused_experts(cut, shard)
    if plan.zero:
        words.append(f"--parallelism.fsdp_reshard_after_forward {'always' if plan.zero == 3 else 'never'}")
    if plan.zero == 1 and cut.dp * cut.cp > 1:
        missing.append("no zero 1: gradients are sharded, too")
    if plan.zero == 0 and cut.cp > 1:
        missing.append("no zero 0 with cut sequences: weights are sharded over those who share one")
    elif plan.zero == 0 and cut.dp > 1 and cut.tp * cut.pp > 1:
        missing.append("refuses zero 0 with tensor parallelism or stages: shard, as zero 2 does")
    local = plan.mbs
    if cut.pp > 1:
        local = job.batch // cut.dp
        words.append(f"--parallelism.pipeline_parallel_schedule {TITAN.get(plan.schedule, '1F1B')}")
        words.append(f"--parallelism.pipeline_parallel_microbatch_size {plan.mbs}")
        if plan.schedule not in TITAN:
            missing.append(f"no {plan.schedule}: this runs 1F1B")
        placing, odd = _placed_there(cut, shape.layers)
        words, missing = words + placing, missing + odd
    words += [
        f"--training.local_batch_size {local}", f"--training.global_batch_size {job.batch}",
        f"--training.seq_len {job.seq}", f"--activation_checkpoint.mode {plan.recompute}",
        "--compile.enable",  # kernels are priced as compiled ones
    ]  # fmt: skip
    words += ["--activation_checkpoint.selective_ac_option op"] * (plan.recompute == "selective")
    if fp8:
        grouped = shape.experts is not None and cut.pp == cut.cp == 1
        words.append(f"--model.converters quantize.linear.float8{',quantize.grouped_mm.float8' * grouped}")
        words += ["--quantize.grouped_mm.float8.fqns experts"] * grouped
        if shape.experts and not grouped:
            missing.append("no float8 experts with stages or cut sequences: they stay bf16")
    if cut.ecp > 1:
        missing.append("experts that follow context parallelism have no flag")
    return _joined(words, missing)


def _refused_experts(cut: Layout, shard: int) -> list[str]:
    """Experts' ranks are borrowed from whole groups of sequences (and of tensor parallelism where they are not cut)."""
    if cut.etp not in (1, cut.tp):
        return [f"etp is 1 or tp, not {cut.etp}"]
    whole = cut.cp * (cut.tp if cut.etp == 1 else 1)
    if cut.ep % whole or (shard * whole) % cut.ep:
        return [f"refuses ep{cut.ep}: it should be a multiple of {whole} and divide {shard * whole}"]
    return []


def _placed_there(cut: Layout, layers: int) -> tuple[list[str], list[str]]:
    """Flags by which stages get the same layers as here, and what no flag says.

    It counts the embedding and the head as so many layers less of their stages, deals evenly, the first stages more,
    and finds the number of stages from the layers of one.
    """
    ours = parts(layers, cut.stages)
    for less in (0, 1):
        each, over = divmod(layers + 2 * less, cut.stages)
        dealt = [each + (stage < over) for stage in range(cut.stages)]
        dealt[0], dealt[-1] = dealt[0] - less, dealt[-1] - less
        most = each + (over > 0)
        if dealt == ours and (cut.vpp == 1 or -(-(layers + 2 * less) // most) == cut.stages):
            at = "--parallelism.pipeline_parallel_"
            words = [f"{at}first_stage_less_layers {less} {at}last_stage_less_layers {less}"]
            return words + [f"{at}layers_per_stage {most}"] * (cut.vpp > 1), []
    return [], [f"{layers} layers in {cut.stages} parts: say with module_fqns_per_model_part where fewer lie"]
