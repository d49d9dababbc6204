"""What a fleet is made of, and how it is written down: `16xh200:qwen3-32b:tp2`, `4xfitted:mine.toml`, a TOML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay.record import reading
from assay.record.errors import BadInput
from assay.serving.engine.state import ADMISSIONS, PLANS, ROLES
from assay.sim import cost_file
from assay.sim.cost_file import FITTED
from assay.sim.llm_cost import StepCost
from assay.sim.step_times import COSTS, MEASURED, step_time

PREEMPTIONS = ("recompute", "swap")


@dataclass(frozen=True)
class Instance:
    """One replica: its cost, its memory, and how it batches."""

    cost: StepCost
    model: str = ""
    tp: int = 1
    gpus: int = 1
    plan: str = "vllm-v1"
    role: str = "both"
    max_seqs: int = 256
    max_tokens: int = 8192
    chunk_limit: int = 0  # tokens of one prompt an iteration; 0: what the budget leaves
    admission: str = "prompt"  # what must fit of a prompt in vLLM: all of it, or only the next "chunk", as once
    preemption: str = "recompute"
    kv_tokens: int = 0  # 0: the cost's own
    host_tokens: int = 0  # a tier in host memory behind the cache
    host_bandwidth: float = 25e9  # bytes/s, PCIe
    usd_per_hour: float = 0.0
    name: str = ""
    source: str = ""  # of its step times: measured, scaled, roofline, fitted; empty: whoever made the cost knows

    @property
    def room(self) -> int:
        """Tokens of KV it can hold."""
        return self.kv_tokens or self.cost.kv_tokens


@dataclass(frozen=True)
class FleetSpec:
    """Instances, which of them iterate in lock-step, and the network between them."""

    instances: tuple[Instance, ...]
    lockstep: tuple[int, ...] = ()  # sizes of the groups, in order; empty: every instance on its own
    block: int = 16
    bandwidth: float = 50e9  # bytes/s between instances, for KV handed over
    latency: float = 1e-4
    overlap: float = 0.0  # share of a hand-over hidden behind the prefill
    name: str = ""
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.instances)

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(instance.gpus for instance in self.instances)


def check(fleet: FleetSpec) -> None:
    """One line for whatever cannot be simulated."""
    if not fleet.instances:
        raise BadInput("the fleet has no instance")
    for number, instance in enumerate(fleet.instances):
        where = f"instance {number}{' (' + instance.name + ')' if instance.name else ''}"
        if instance.plan not in PLANS:
            raise BadInput(f"{where}: unknown plan '{instance.plan}'; there are {', '.join(PLANS)}")
        if instance.admission not in ADMISSIONS:
            raise BadInput(f"{where}: unknown admission '{instance.admission}'; there are {', '.join(ADMISSIONS)}")
        if instance.preemption not in PREEMPTIONS:
            raise BadInput(f"{where}: unknown preemption '{instance.preemption}'; there are {', '.join(PREEMPTIONS)}")
        if instance.role not in ROLES:
            raise BadInput(f"{where}: unknown role '{instance.role}'; there are {', '.join(ROLES)}")
        if instance.room < fleet.block:
            raise BadInput(f"{where}: no room for KV: give it kv_tokens, more GPUs (tp) or a smaller model")
        if not 1 <= instance.max_seqs <= instance.max_tokens < len(instance.cost.tokens):
            most = len(instance.cost.tokens) - 1
            raise BadInput(f"{where}: needs 1 <= max_seqs <= max_tokens <= {most}, the largest batch its cost covers")
    if fleet.lockstep and sum(fleet.lockstep) != len(fleet):
        raise BadInput(f"lockstep groups of {sum(fleet.lockstep)} instances in a fleet of {len(fleet)}")
    roles = {instance.role for instance in fleet.instances}
    if ("prefill" in roles) != ("decode" in roles) and "both" not in roles:
        raise BadInput("a fleet with only prefill or only decode instances serves nobody")


def uniform(count: int, cost: StepCost, **settings: Any) -> FleetSpec:
    """`count` equal instances.

    >>> import numpy as np
    >>> len(uniform(4, StepCost(np.full(9000, 0.01), kv_tokens=10_000)))
    4
    """
    return FleetSpec((Instance(cost, **settings),) * count)


def parse(text: str, *, block: int = 16, cost: str = MEASURED) -> FleetSpec:
    """A fleet from `16xh200:qwen3-32b[:tp2][:prefill|decode]`, several joined by `+`, or from a TOML file.

    Step times are measured ones where there are any (`assay.sim.step_times`); `16xh200:qwen3-32b:roofline`, or
    `cost="roofline"` for all, takes those of data sheets. `4xfitted:cost.toml` names engines by a step time that
    `assay calibrate` found.

    >>> parse("1xh200:qwen3-32b").instances[0].source, parse("1xh200:qwen3-32b:roofline").instances[0].source
    ('measured', 'roofline')
    """
    if text.endswith(".toml") and f"x{FITTED}:" not in text:
        return _from_toml(Path(text), block, cost)
    instances: list[Instance] = []
    for part in text.split("+"):
        count, _, rest = part.strip().partition("x")
        if not count.isdigit() or not rest or int(count) < 1:
            raise BadInput(f"fleet '{part}': write count x gpu:model, for example 16xh200:qwen3-32b:tp2")
        instances += [_instance(rest, cost)] * int(count)
    fleet = FleetSpec(tuple(instances), block=block, name=text)
    check(fleet)
    return fleet


def _instance(text: str, cost: str) -> Instance:
    """From `h200:qwen3-32b:tp2:prefill`: what follows the layout may name a role, a plan, or whose step times."""
    from assay.sim.layouts import read_layout

    parts = text.split(":")
    settings: dict[str, Any] = {}
    for part in parts[2:]:
        if part in ROLES:
            settings["role"] = part
        elif part in PLANS:
            settings["plan"] = part
        elif part in COSTS:
            cost = part
    name = ":".join([*parts[:2], *(part for part in parts[2:] if part not in (*settings.values(), *COSTS))])
    if parts[0] == FITTED:
        found = cost_file.read(Path(name.removeprefix(FITTED + ":")))
        return Instance(found, name=name, source=FITTED, **settings)
    shape, timed = read_layout(name), step_time(name, cost)
    return Instance(
        timed.cost, model=shape.model.name, tp=shape.tp, gpus=shape.ranks, name=name, source=timed.source,
        usd_per_hour=shape.usd_per_hour, **settings,
    )  # fmt: skip


def _from_toml(path: Path, block: int, cost: str) -> FleetSpec:
    """A list of `[[instance]]` tables: `layout = "h200:qwen3-32b:tp2"`, `count`, and any field of `Instance`."""
    content = reading.toml(path)
    instances: list[Instance] = []
    tables = content.pop("instance", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadInput(f"{path}: write one [[instance]] table for each kind of instance")
    for number, table in enumerate(tables, 1):
        fields = dict(table)
        layout, count = fields.pop("layout", None), fields.pop("count", 1)
        if not isinstance(layout, str) or not isinstance(count, int) or count < 1:
            raise BadInput(f'{path}: instance {number} needs layout = "h200:qwen3-32b:tp2" and a count of at least 1')
        try:
            instances += [replace(_instance(layout, cost), **fields)] * count
        except TypeError:
            known = ", ".join(name for name in Instance.__dataclass_fields__ if name != "cost")
            raise BadInput(
                f"{path}: instance {number} has an unknown field; there are layout, count, {known}"
            ) from None
    if "lockstep" in content:
        content["lockstep"] = tuple(content["lockstep"])
    try:
        fleet = FleetSpec(tuple(instances), **{"block": block, "name": str(path), **content})
    except TypeError:
        raise BadInput(f"{path}: unknown field; there are block, bandwidth, latency, overlap, lockstep") from None
    check(fleet)
    return fleet


def split(fleet: FleetSpec, roles: Sequence[str]) -> FleetSpec:
    """The same instances with these roles, for prefill/decode disaggregation."""
    return replace(fleet, instances=tuple(replace(i, role=r) for i, r in zip(fleet.instances, roles, strict=True)))
