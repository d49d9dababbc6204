"""A step-time model from two data sheets: the model's shape and the device's peaks.

    >>> cost = layout("h100:llama-3-8b")
    >>> 16.06e9 / 3.35e12 < cost.seconds(b=1, context=1000) < 0.010  # never faster than reading the weights once
    True

Each operation of a layer takes as long as the slower of its arithmetic and its memory traffic, plus a launch:

    t = max(flops / (F compute), bytes / (BW bandwidth)) + launch

(Williams, Waterman, Patterson, "Roofline", CACM 2009.) Summed over layers, what depends on the number of tokens alone
becomes `tokens[n]`; attention becomes the coefficients of `StepCost`. Few tokens are slow because their weights must
be read all the same, not through an efficiency that changes with n: tiles that are not full, and kernels chosen by
size, are left to a profile (`StepCost.scaled`, or a database of measurements).

- Experts: n tokens with k of E experts each are expected to touch E (1 - (1 - k/E)^n) of them.
- Tensor parallelism (tp) cuts heads and widths, and adds two all-reduces per layer.
- Expert parallelism (ep) spreads experts; the last all-reduce of the layer becomes two all-to-alls, whose busiest rank
  has `skew` times the mean. Where ep exceeds tp, attention is replicated ep/tp times, each with its share of the batch.
- Pipeline parallelism (pp) cuts the layers into p equal stages; an iteration sends m = p microbatches (fewer when there
  are fewer tokens) through them, which takes p + m - 1 stage times: the pipeline drains before the next iteration.
  Attention is priced as if every batch could be cut in p.
- A lower `clock` slows arithmetic only, t = max(t_mem, t_cmp / clock); compute power goes with clock^2.2.

Energy: a device draws its TDP when arithmetic and memory both run at their attainable rates. Of what that is above
idling, ACTIVE is drawn whenever it works, COMPUTE goes with FLOPs, MEMORY with bytes; so no work draws more than the
TDP, and no cap is needed. The three shares are assumed. So are the efficiencies: round numbers chosen within what
Vidur's public A100 and H100 tables show for the first MLP matrix of Llama-2-70B (bandwidth 0.79-0.90, compute
0.69-0.77), so agreement with those tables is not an independent check.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.sim import collectives
from assay.sim.collectives import Link
from assay.sim.hardware import Device, device
from assay.sim.layouts import ACTIVATION, Layout, Memory, layer_kv, read_layout
from assay.sim.llm_cost import Energy, StepCost
from assay.sim.models import Gemm, Model, item_bytes, model

Array = NDArray[np.float64]

COMPUTE_EFFICIENCY = 0.70  # of peak FLOP/s (assumed)
MEMORY_EFFICIENCY = 0.85  # of peak bytes/s (assumed)
LINK_EFFICIENCY = 0.75  # of a link's bytes/s (assumed)
OVERHEAD = 1e-3  # seconds of scheduling per iteration that the device waits for (assumed)
ACTIVE, COMPUTE, MEMORY = 0.2, 0.5, 0.3  # shares of TDP - idle (assumed); they add up to one
CLOCK_POWER = 2.2  # compute power goes with clock to this power (assumed)
LOGIT_PASSES = 3.0  # logits are written once, read by softmax and by sampling


@lru_cache(maxsize=64)
def layout(text: str, **options: Any) -> StepCost:
    """The cost of a layout by its name; `options` are those of `roofline`. Answers are kept: do not write into them.

    >>> layout("h200:qwen3-32b:tp2").seconds(b=1) < layout("h200:qwen3-32b").seconds(b=1)
    True
    """
    cut = read_layout(text)
    return roofline(cut.model, cut.device, cut.tp, cut.pp, cut.ep, cut.dtype, **options)


def roofline(
    shape: Model | str, on: Device | str, tp: int = 1, pp: int = 1, ep: int = 1, dtype: str = "bf16", *,
    max_tokens: int = 16384, block: int = 16, util: float = 0.9, skew: float = 1.0, overhead: float = OVERHEAD,
    clock: float = 1.0, kv_dtype: str = "", context: int = 4096, batch_tokens: int = 8192, max_seqs: int = 256,
    compute: float = COMPUTE_EFFICIENCY, bandwidth: float = MEMORY_EFFICIENCY, links: float = LINK_EFFICIENCY,
) -> StepCost:  # fmt: skip
    """The cost of one instance of a model.

    Args:
        shape: the model, or its name.
        on: the device, or its name.
        tp: tensor-parallel degree.
        pp: pipeline stages.
        ep: expert-parallel degree.
        dtype: of the weights, and of the arithmetic where the device has units for it.
        max_tokens: the largest iteration, in tokens: the length of `tokens`.
        block: tokens of a KV block.
        util: the part of memory that the engine may use.
        skew: load of the busiest expert rank over the mean (only with ep).
        overhead: seconds of CPU work per iteration that the device waits for.
        clock: of the compute units, relative to the one of the peak.
        kv_dtype: of the KV cache; bf16 unless the weights are fp32.
        context: tokens over which a sequence's constant state (windows, recurrences) is spread when memory is counted.
        batch_tokens: tokens of the largest iteration that activations are reserved for.
        max_seqs: sequences at most; so many rows of logits at most.
        compute: attainable part of the peak FLOP/s.
        bandwidth: attainable part of the memory's bytes/s.
        links: attainable part of a link's bytes/s.

    >>> cost = roofline("llama-3-70b", "h100", tp=4)
    >>> cost.kv_tokens % 16, cost.kv_bytes
    (0, 327680.0)

    Raises:
        BadInput: unknown names, or a model that does not fit; the message says which tp would do.
    """
    cut = Layout(model(shape) if isinstance(shape, str) else shape, device(on) if isinstance(on, str) else on,
                 tp, pp, ep, dtype)  # fmt: skip
    _check(
        {"max_tokens": max_tokens, "block": block, "context": context, "batch_tokens": batch_tokens,
         "max_seqs": max_seqs},
        {"util": util, "clock": clock, "compute": compute, "bandwidth": bandwidth, "links": links},
        skew, overhead,
    )  # fmt: skip
    kv_dtype = kv_dtype or ("fp32" if dtype == "fp32" else "bf16")
    memory = Memory(cut, kv_dtype, util, block, context, batch_tokens, max_seqs)
    rates = Rates.of(cut, compute, bandwidth, links, clock)
    engine = _Engine(cut, rates, kv_dtype, skew if ep > 1 else 1.0, max_seqs)
    step, joules = _pipeline(engine, max_tokens)
    coefficients, kv, pair = engine.attention()
    return StepCost(
        tokens=step + overhead,
        kv_tokens=memory.tokens_or_raise(),
        kv_bytes=cut.model.kv_bytes(kv_dtype) + cut.model.state_bytes(context, kv_dtype) / context,
        energy=Energy(joules, kv, pair, cut.ranks * cut.device.idle_watts),
        window=float(cut.model.window) if cut.model.window_layers else np.inf,
        name=cut.name,
        notes=_notes(cut, compute, bandwidth, links, overhead, context),
        **coefficients,
    )


def _check(counts: dict[str, int], fractions: dict[str, float], skew: float, overhead: float) -> None:
    for name, count in counts.items():
        if count < 1:
            raise BadInput(f"{name} is {count}, should be at least 1")
    for name, value in fractions.items():
        high = 2.0 if name == "clock" else 1.0
        if not 0.0 < value <= high:
            raise BadInput(f"{name} is {value:g}, should be above 0 and at most {high:g}")
    if not 1.0 <= skew < np.inf:
        raise BadInput(f"skew is {skew:g}, should be at least 1: the busiest rank over the mean")
    if not 0.0 <= overhead < np.inf:
        raise BadInput(f"overhead is {overhead:g}, should be seconds, at least 0")


def _notes(
    cut: Layout, compute: float, bandwidth: float, links: float, overhead: float, context: int
) -> tuple[str, ...]:
    notes = [
        f"roofline: {compute:g} of peak FLOP/s, {bandwidth:g} of memory and {links:g} of link bandwidth (assumed)",
        f"{overhead * 1e3:g} ms of CPU per iteration (assumed)",
        f"energy: {ACTIVE:g} of TDP - idle when working, {COMPUTE:g} for FLOPs, {MEMORY:g} for memory (assumed)",
    ]
    if cut.dtype not in ("bf16", "fp16") and cut.dtype not in cut.device.peak_flops:
        notes.append(f"{cut.device.name} has no {cut.dtype} units: weights are unpacked, arithmetic is bf16")
    if cut.model.state_bytes():
        notes.append(f"constant state of a sequence spread over {context} tokens of KV (assumed)")
        notes.append("energy leaves out windows and recurrent states")
    if cut.pp > 1:
        notes.append(f"the pipeline of {cut.pp} stages drains every iteration")
    return tuple(notes)


@dataclass(frozen=True)
class Work:
    """Seconds and joules of one rank, over the number of tokens or as plain numbers."""

    seconds: Any
    joules: Any

    def __add__(self, other: Work) -> Work:
        return Work(self.seconds + other.seconds, self.joules + other.joules)

    def __mul__(self, times: float) -> Work:
        return Work(self.seconds * times, self.joules * times)


@dataclass(frozen=True)
class Rates:
    """What a rank attains: FLOP/s of matrices and of attention, bytes/s, joules above idling."""

    matrix: float
    attention: float
    memory: float
    launch: float
    matrix_joules: float  # per FLOP
    attention_joules: float
    byte_joules: float
    watts: float  # drawn whenever it works, above idling
    inside: Link
    outside: Link

    @classmethod
    def of(cls, cut: Layout, compute: float, bandwidth: float, links: float, clock: float) -> Rates:
        """The rates of a device at these efficiencies and this clock."""
        on = cut.device
        dynamic = on.tdp_watts - on.idle_watts
        full = on.flops(cut.dtype) * compute
        attention = on.flops("fp32" if cut.dtype == "fp32" else "bf16") * compute
        joules = COMPUTE * dynamic * clock ** (CLOCK_POWER - 1)  # power clock^2.2 for time 1/clock
        return cls(
            matrix=full * clock,
            attention=attention * clock,
            memory=on.mem_bw * bandwidth,
            launch=on.launch,
            matrix_joules=joules / full,
            attention_joules=joules / attention,
            byte_joules=MEMORY * dynamic / (on.mem_bw * bandwidth),
            watts=ACTIVE * dynamic * clock**CLOCK_POWER,
            inside=on.nvlink.derated(links),
            outside=on.nic.derated(links),
        )

    def matrices(self, flops: Any, nbytes: Any, launches: float = 1.0) -> Work:
        """An operation of the model's dtype."""
        return self._work(flops / self.matrix, flops * self.matrix_joules, nbytes, launches)

    def attend(self, flops: Any, nbytes: Any) -> Work:
        """A part of attention, whose launch is counted with the layer."""
        return self._work(flops / self.attention, flops * self.attention_joules, nbytes, 0.0)

    def moves(self, nbytes: Any, launches: float = 1.0) -> Work:
        """An operation that only reads and writes: norms, activations, rotations."""
        return self._work(0.0, 0.0, nbytes, launches)

    def waits(self, seconds: Any) -> Work:
        """Communication."""
        return Work(seconds, seconds * self.watts)

    def _work(self, arithmetic: Any, joules: Any, nbytes: Any, launches: float) -> Work:
        busy = np.maximum(arithmetic, nbytes / self.memory)
        dynamic = joules + nbytes * self.byte_joules + busy * self.watts
        return Work(busy + launches * self.launch, dynamic)


@dataclass(frozen=True)
class _Engine:
    """The operations of a forward pass, as one rank of the layout sees them."""

    cut: Layout
    rates: Rates
    kv_dtype: str
    skew: float
    max_seqs: int

    def forward(self, n: Array) -> Work:
        """All layers, embedding and head for n tokens, without attention proper."""
        cut, shape = self.cut, self.cut.model
        own = np.ceil(n / cut.copies)  # tokens of one copy of attention
        total = self._ends(own)
        if shape.attention_layers:
            total = total + self._mixer(own, shape.attention_gemms()) * shape.attention_layers
        if shape.linear is not None:
            total = total + self._mixer(own, shape.linear_gemms()) * shape.linear_layers
        if shape.dense_layers:
            total = total + self._mlp(own) * shape.dense_layers
        if shape.moe_layers:
            total = total + self._moe(n, own) * shape.moe_layers
        return total

    def _gemm(self, n: Array, gemm: Gemm) -> Work:
        inputs = gemm.inputs / (self.cut.tp if gemm.cut == "inputs" else 1)
        outputs = gemm.outputs / (self.cut.tp if gemm.cut == "outputs" else 1)
        weights = inputs * outputs * item_bytes(self.cut.dtype)
        nbytes = weights + n * ((inputs + outputs) * ACTIVATION)
        return self.rates.matrices(n * (2.0 * inputs * outputs), nbytes)

    def _norm(self, n: Array) -> Work:
        """Add the residual, normalise: read both, write both."""
        return self.rates.moves(n * (4 * self.cut.model.hidden * ACTIVATION))

    def _all_reduce(self, n: Array) -> Work:
        cut = self.cut
        if cut.tp == 1:
            return Work(0.0, 0.0)
        nbytes = n * (cut.model.hidden * ACTIVATION)
        link, nic = self.rates.inside, self.rates.outside
        seconds = collectives.nested_all_reduce(cut.tp, cut.device.gpus_per_node, nbytes, link, nic)
        return self.rates.waits(seconds + self.rates.launch)

    def _ends(self, n: Array) -> Work:
        """Embedding lookup, last norm, logits of the sampled rows."""
        shape = self.cut.model
        rows = np.minimum(n, self.max_seqs)
        lookup = self.rates.moves(n * (2 * shape.hidden * ACTIVATION))
        work = lookup + self._norm(n) + self._gemm(rows, Gemm(shape.hidden, shape.vocab, "outputs"))
        if self.cut.tp > 1:
            part = rows * (shape.vocab / self.cut.tp * ACTIVATION)
            work = work + self.rates.waits(collectives.all_gather(self.cut.tp, part, self._tp_link()))
        return work

    def _tp_link(self) -> Link:
        return self.rates.inside if self.cut.tp <= self.cut.device.gpus_per_node else self.rates.outside

    def _mixer(self, n: Array, gemms: list[Gemm]) -> Work:
        """Norm, projections, rotation or convolution (and the write of KV), the launch of the mixer, all-reduce."""
        touched = gemms[0].outputs if self.cut.model.latent is None else gemms[-1].inputs
        work = self._norm(n) + self.rates.moves(n * (2 * touched / self.cut.tp * ACTIVATION))
        for gemm in gemms:
            work = work + self._gemm(n, gemm)
        return work + Work(self.rates.launch, 0.0) + self._all_reduce(n)

    def _mlp(self, n: Array) -> Work:
        gemms = self.cut.model.mlp_gemms(self.cut.model.ffn)
        return self._norm(n) + self._two(n, gemms) + self._all_reduce(n)

    def _two(self, n: Array, gemms: list[Gemm]) -> Work:
        """Two matrices and the activation between them."""
        first, second = gemms
        between = self.rates.moves(n * ((first.outputs + second.inputs) / self.cut.tp * ACTIVATION))
        return self._gemm(n, first) + between + self._gemm(n, second)

    def _moe(self, n: Array, own: Array) -> Work:
        """Norm, router, experts on the busiest rank, what all tokens share, and the way there and back."""
        cut, shape, experts = self.cut, self.cut.model, self.cut.model.experts
        assert experts is not None
        work = self._norm(own) + self._gemm(own, Gemm(shape.hidden, experts.count, "none"))
        work = work + self.rates.moves(own * (experts.count * 4.0))  # top k of the scores
        touched = experts.count * (1.0 - (1.0 - experts.top_k / experts.count) ** n) / cut.shards
        routed = n * (experts.top_k * self.skew / cut.shards)  # token-expert pairs of a rank, widths not cut
        for gemm in shape.mlp_gemms(experts.ffn):
            weights = touched * (gemm.params * item_bytes(cut.dtype))
            nbytes = weights + routed * ((gemm.inputs + gemm.outputs) * ACTIVATION)
            work = work + self.rates.matrices(routed * (2.0 * gemm.params), nbytes)
        ffn_bytes = (3 if shape.gated_mlp else 2) * experts.ffn * ACTIVATION
        permuted = 4 * shape.hidden * ACTIVATION  # gather the rows, scatter the results
        work = work + self.rates.moves(routed * (ffn_bytes + permuted), launches=3)
        if experts.shared_ffn:
            work = work + self._two(own, shape.mlp_gemms(experts.shared_ffn))
        return work + (self._exchange(n, own) if cut.ep > 1 else self._all_reduce(own))

    def _exchange(self, n: Array, own: Array) -> Work:
        """Dispatch and combine; ranks that share their tokens (tp) then gather them."""
        cut, experts = self.cut, self.cut.model.experts
        assert experts is not None
        row = cut.model.hidden * ACTIVATION
        sent = n * (experts.top_k * row / cut.ep)
        there = collectives.nested_all_to_all(
            cut.ep, cut.device.gpus_per_node, sent, self.rates.inside, self.rates.outside, self.skew
        )
        seconds = 2 * (there + self.rates.launch)
        if cut.tp > 1:
            seconds = seconds + collectives.all_gather(cut.tp, own * (row / cut.tp), self._tp_link())
        return self.rates.waits(seconds)

    def attention(self) -> tuple[dict[str, float], float, float]:
        """The coefficients of `StepCost`, and the joules of a KV token read and of a query-key pair."""
        cut, shape, rates = self.cut, self.cut.model, self.rates
        tp, item = cut.tp, item_bytes(self.kv_dtype)
        kept = layer_kv(shape, tp) * item
        read = rates.attend(shape.read_flops() / tp, kept)
        pair = rates.attend(shape.pair_flops() / tp, 0.0)
        again = rates.attend(0.0, kept)
        if shape.latent is not None:  # a chunk expands the latents of all that came before it
            expand = 2.0 * shape.latent.kv_rank * shape.heads * (shape.latent.nope + shape.latent.v) / tp
            again = again + rates.attend(expand, 0.0)
        logits = rates.moves(LOGIT_PASSES * shape.vocab * 4.0 / tp, launches=0)
        sequence, token, chunk = logits, Work(0.0, 0.0), Work(0.0, 0.0)
        if shape.linear is not None:
            state = 2 * shape.recurrent_bytes(self.kv_dtype) / tp  # read and written
            channels = 2 * shape.linear.channels * ACTIVATION / tp
            flops = shape.recurrent_flops() / tp
            sequence = sequence + rates.attend(flops * shape.linear_layers, state)
            token = rates.attend(flops, channels) * shape.linear_layers
            chunk = rates.moves(state, launches=0)
        # A stage has 1/p of the layers and works on 1/m of the batch, p + m - 1 times.
        share = (2 * cut.pp - 1) / cut.pp**2 / cut.copies
        times = {
            "decode_seq": sequence,
            "decode_kv": read * shape.full_layers,
            "decode_window": read * shape.window_layers,
            "prefill_fixed": chunk,
            "prefill_token": token,
            "prefill_pair": pair * shape.full_layers,
            "prefill_kv": again * shape.full_layers,
            "prefill_pair_window": pair * shape.window_layers,
        }
        coefficients = {name: float(work.seconds) * share for name, work in times.items()}
        ranks = tp * shape.full_layers
        return coefficients, float(read.joules) * ranks, float(pair.joules) * ranks


def _pipeline(engine: _Engine, max_tokens: int) -> tuple[Array, Array]:
    """Seconds of an iteration and joules of all ranks for n = 0 .. max_tokens tokens; none take no time."""
    cut, stages = engine.cut, engine.cut.pp
    n = np.arange(max_tokens + 1, dtype=np.float64)
    work = engine.forward(n)
    seconds, joules = np.asarray(work.seconds), np.asarray(work.joules)
    if stages > 1:
        batches = np.clip(n, 1, stages)
        each = np.ceil(n / batches).astype(np.int64)
        node = cut.device.gpus_per_node
        link = engine.rates.inside if cut.ranks <= node else engine.rates.outside
        hop = collectives.send(np.ceil(each / cut.copies) * (cut.model.hidden * ACTIVATION / cut.tp), link)
        seconds = (stages + batches - 1) * seconds[each] / stages + (stages + batches - 2) * hop
        joules = batches * joules[each]
    joules = joules * cut.shards  # each stage's ranks do 1/pp of the layers
    seconds[0] = joules[0] = 0.0
    return seconds, joules
