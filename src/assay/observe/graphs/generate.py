"""Execution traces that nobody recorded: of a training job written down as numbers.

:func:`generate` lays a transformer's training step out on TP × DP × PP ranks (experts over EP of the DP ranks): one
trace for each rank, with the collectives and sends that such a cut needs, 1F1B over the pipeline's stages, gradients
reduced layer by layer as the backward pass leaves them. Compute takes the longer of its FLOPs over the device's peak
and its bytes over the memory's bandwidth; communication says only what and how much, the network prices it.

>>> job = Job(layers=4, hidden=1024, heads=16, seq=512, batch=1, dp=2, tp=2, pp=2, microbatches=4)
>>> traces = generate(job, device("h100"))
>>> len(traces), traces[0].rank, traces[0].names[:3]
(8, 0, ['embed', 'attention', 'tp all-reduce'])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.sim.hardware import Device, device
from assay.workloads.chakra import COLL, COMP, RECV, SEND, Graph, Interned

__all__ = ["Job", "device", "generate"]

_ITEM = 2  # bytes of an activation, a weight, a gradient
_ALL_REDUCE, _ALL_TO_ALL = 0, 6
_EFFICIENCY = 0.5  # of the peak that large matrices reach


@dataclass(frozen=True, slots=True)
class Job:
    """A training step: the model, the batch of one pipeline pass (`batch` sequences), and how it is cut."""

    layers: int
    hidden: int
    heads: int
    seq: int
    batch: int
    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    microbatches: int = 1
    experts: int = 0  # a layer's; 0: dense
    top_k: int = 2
    vocab: int = 32_000

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "seq", "batch", "tp", "dp", "pp", "ep", "microbatches", "vocab"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}: should be at least 1")
        for whole, part in (("layers", "pp"), ("heads", "tp"), ("dp", "ep")):
            if getattr(self, whole) % getattr(self, part):
                raise BadInput(f"{part}={getattr(self, part)} does not divide {whole}={getattr(self, whole)}")
        if self.ep > 1 and (self.experts < self.ep or self.experts % self.ep):
            raise BadInput(f"ep={self.ep} does not divide experts={self.experts}")

    @property
    def ranks(self) -> int:
        """How many there are: tensor-parallel neighbours side by side, stages farthest apart."""
        return self.tp * self.dp * self.pp

    @property
    def tokens(self) -> int:
        """Of one micro-batch."""
        return self.batch * self.seq


@dataclass
class _Program:
    """What all ranks of one stage do: columns of a trace, groups and peers still by role."""

    rates: tuple[float, float]  # FLOP/s and bytes/s
    names: list[str] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    deps: list[list[int]] = field(default_factory=list)
    micros: list[int] = field(default_factory=list)
    operation: list[int | None] = field(default_factory=list)
    size: list[int | None] = field(default_factory=list)
    role: list[str | None] = field(default_factory=list)
    tag: list[int | None] = field(default_factory=list)

    def _add(self, name: str, kind: int, deps: list[int], micros: int = 0) -> int:
        self.names.append(name)
        self.kinds.append(kind)
        self.deps.append(deps)
        self.micros.append(micros)
        return len(self.names) - 1

    def _say(self, operation: int | None, size: int | None, role: str | None, tag: int | None) -> None:
        self.operation.append(operation)
        self.size.append(size)
        self.role.append(role)
        self.tag.append(tag)

    def compute(self, name: str, deps: list[int], flops: float, nbytes: float) -> int:
        """Work on the device: as long as the slower of arithmetic and memory takes."""
        seconds = max(flops / self.rates[0], nbytes / self.rates[1])
        self._say(None, None, None, None)
        return self._add(name, COMP, deps, max(1, round(seconds * 1e6)))

    def collective(self, role: str, name: str, deps: list[int], operation: int, nbytes: float) -> int:
        """Communication within the group of this role."""
        self._say(operation, round(nbytes), role, None)
        return self._add(f"{role} {name}", COLL, deps)

    def peer(self, kind: int, role: str, deps: list[int], nbytes: float, tag: int) -> int:
        """A send to, or a receive from, the next or the previous stage."""
        self._say(None, round(nbytes), role, tag)
        return self._add(f"{'send to' if kind == SEND else 'receive from'} {role}", kind, deps)


def generate(job: Job, on: Device) -> list[Graph]:
    """One trace for each rank. Ranks of one stage do the same; they differ in their groups and peers.

    Raises:
        BadInput: a cut that does not divide the model.
    """
    programs = [_program(job, on, stage) for stage in range(job.pp)]
    shared = [_Columns(program) for program in programs]
    return [shared[rank // (job.tp * job.dp)].graph(job, rank) for rank in range(job.ranks)]


def _program(job: Job, on: Device, stage: int) -> _Program:
    program = _Program((on.flops("bf16") * _EFFICIENCY, on.mem_bw))
    carried: dict[int, list[int]] = {}
    backward: list[int] = []
    before: list[int] = []
    for what, batch in _one_f_one_b(job, stage):
        last = batch == job.microbatches - 1
        if what == "forward":
            carried[batch] = before = _forward(program, job, stage, batch, before)
        else:
            before, reduced = _backward(program, job, stage, batch, [*before, *carried.pop(batch)], last)
            backward += reduced
    params = _params(job) * job.layers // job.pp
    program.compute("optimizer", [*before, *backward], 10.0 * params, 16.0 * params)
    return program


def _one_f_one_b(job: Job, stage: int) -> list[tuple[str, int]]:
    """The passes of a stage in order: some forward to fill the pipeline, then by turns, then backward to drain it."""
    ahead = min(job.pp - stage - 1, job.microbatches)
    out = [("forward", batch) for batch in range(ahead)]
    for batch in range(job.microbatches - ahead):
        out += [("forward", batch + ahead), ("backward", batch)]
    return out + [("backward", batch) for batch in range(job.microbatches - ahead, job.microbatches)]


def _params(job: Job) -> int:
    """Weights of a layer on one rank, all its experts' counted."""
    dense = 4 * job.hidden**2
    ffn = 8 * job.hidden**2
    return (dense + (ffn * job.experts // job.ep if job.experts else ffn)) // job.tp


def _layer(program: _Program, job: Job, before: list[int], times: float, suffix: str) -> list[int]:
    """One layer, forward (`times=1`) or backward (2)."""
    tokens, activation = job.tokens, job.tokens * job.hidden * _ITEM
    attention = (8 * job.hidden**2 + 4 * job.seq * job.hidden) * tokens / job.tp * times
    at = program.compute(f"attention{suffix}", before, attention, 8 * job.hidden**2 / job.tp + activation)
    at = _over_tp(program, job, at, activation, suffix)
    ffn = 16 * job.hidden**2 * tokens / job.tp * times
    if not job.experts:
        at = program.compute(f"mlp{suffix}", [at], ffn, 16 * job.hidden**2 / job.tp + activation)
        return [_over_tp(program, job, at, activation, suffix)]
    routed = activation * job.top_k
    at = program.compute(f"router{suffix}", [at], 2.0 * tokens * job.hidden * job.experts * times, activation)
    at = program.collective("ep", f"dispatch{suffix}", [at], _ALL_TO_ALL, routed) if job.ep > 1 else at
    weights = 16 * job.hidden**2 * job.experts / job.ep / job.tp
    at = program.compute(f"experts{suffix}", [at], ffn * job.top_k, weights + routed)
    at = program.collective("ep", f"combine{suffix}", [at], _ALL_TO_ALL, routed) if job.ep > 1 else at
    return [_over_tp(program, job, at, activation, suffix)]


def _over_tp(program: _Program, job: Job, at: int, nbytes: float, suffix: str) -> int:
    return program.collective("tp", f"all-reduce{suffix}", [at], _ALL_REDUCE, nbytes) if job.tp > 1 else at


def _forward(program: _Program, job: Job, stage: int, batch: int, before: list[int]) -> list[int]:
    activation = job.tokens * job.hidden * _ITEM
    if stage == 0:
        before = [program.compute("embed", before, 0.0, activation)]
    else:
        before = [*before, program.peer(RECV, "previous", [], activation, 2 * batch)]
    for _ in range(job.layers // job.pp):
        before = _layer(program, job, before, 1.0, "")
    if stage == job.pp - 1:
        flops = 2.0 * job.tokens * job.hidden * job.vocab / job.tp
        return [program.compute("head", before, flops, job.hidden * job.vocab * _ITEM / job.tp)]
    program.peer(SEND, "next", before, activation, 2 * batch)
    return before


def _backward(
    program: _Program, job: Job, stage: int, batch: int, before: list[int], reduces: bool
) -> tuple[list[int], list[int]]:
    activation = job.tokens * job.hidden * _ITEM
    if stage < job.pp - 1:
        before = [*before, program.peer(RECV, "next", [], activation, 2 * batch + 1)]
    reduced = []
    for _ in range(job.layers // job.pp):
        before = _layer(program, job, before, 2.0, " backward")
        if reduces and job.dp > 1:  # leaves while the layers below still compute
            reduced.append(program.collective("dp", "gradients", before, _ALL_REDUCE, _params(job) * _ITEM))
    if stage > 0:
        program.peer(SEND, "previous", before, activation, 2 * batch + 1)
    return before, reduced


class _Columns:
    """A stage's program as columns, so that each of its ranks costs little."""

    def __init__(self, program: _Program) -> None:
        self.program = program
        n = len(program.names)
        self.names = Interned.of(program.names)
        self.ids = np.arange(1, n + 1)
        self.deps = [[dep + 1 for dep in own] for own in program.deps]
        self.roles = Interned.of(program.role)
        kinds = np.array(program.kinds)
        self.sends, self.receives, self.meets = kinds == SEND, kinds == RECV, kinds == COLL
        self.said: dict[str, Any] = {
            "is_cpu_op": [False] * n, "comm_type": Interned.of(program.operation),
            "comm_size": Interned.of(program.size), "comm_tag": Interned.of(program.tag),
        }  # fmt: skip

    def graph(self, job: Job, rank: int) -> Graph:
        """The trace of one of its ranks."""
        codes, roles = self.roles.codes, self.roles.values
        groups = Interned(np.where(self.meets, codes, -1).astype(np.int32), [_group(job, rank, role) for role in roles])
        peers = [_peer(job, rank, role) for role in roles]
        said = self.said | {
            "pg_name": groups,
            "comm_dst": Interned(np.where(self.sends, codes, -1).astype(np.int32), peers),
            "comm_src": Interned(np.where(self.receives, codes, -1).astype(np.int32), peers),
        }
        return Graph.of(
            self.ids, self.names, self.program.kinds, data_deps=self.deps, duration_micros=self.program.micros,
            attributes=said, metadata={"schema": "1.0.1"}, rank=rank, source=f"generated.{rank}.et",
        )  # fmt: skip


def _group(job: Job, rank: int, role: str) -> str:
    tensor, replica, stage = rank % job.tp, rank // job.tp % job.dp, rank // (job.tp * job.dp)
    match role:
        case "tp":
            return f"tp {stage}.{replica}"
        case "dp":
            return f"dp {stage}.{tensor}"
        case "ep":
            return f"ep {stage}.{tensor}.{replica // job.ep}"
    return ""


def _peer(job: Job, rank: int, role: str) -> int:
    step = job.tp * job.dp
    return {"next": rank + step, "previous": rank - step}.get(role, rank)
