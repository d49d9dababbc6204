"""One LLM instance whose requests branch, step by step: who gets a token next is decided before every iteration.

A request is prefilled in chunks, then decodes stage after stage. In a serial stage it gets one token an iteration. In
a parallel stage it always gets one too (its base branch); every further branch is extra, and the policy says how many
extras run. Branches share the KV of their request's text so far: it is held once, and each branch holds its own tokens
beside it. Attention still reads it for every branch that decodes (`prefix_reads="each"`), unless the kernel reads a
shared prefix once for all of them (`"once"`).

KV is paged. A prompt's blocks are taken when the request is admitted, in order of arrival, as long as `watermark` of
all blocks stay free; a branch takes a block when it grows into one. Where the last blocks are wanted, extras wait
first; then the request admitted last gives up its blocks, and computes its KV again once there is room. At a join the
branches' tokens become part of the common text and half-filled blocks close up.

All policies are caps (per request, per batch) and, for a regulated one, a budget. The budget of an iteration is the
least slack in the batch: how long the iteration may still be extended until the first request in it falls behind its
target. What an extra branch would cost is predicted by a cost model whose terms are re-weighted by recursive least
squares after every iteration.

    >>> from assay.serving.taper.branch_state import EAGER, OFF
    >>> from assay.sim.roofline import layout
    >>> from assay.workloads.branches import Branching
    >>> trace = Branching.of([0.0], [1000], [[[10], [50, 50, 50], [10]]])
    >>> cost = layout("h200:qwen3-32b")
    >>> [serve(trace, cost, policy, ttft=2.0, tpot=0.05).steps for policy in (OFF, EAGER)]
    [173, 73]
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.serving.taper.branch_state import (
    AGAIN,
    ARRIVED,
    COUNTS,
    DECODE,
    DONE,
    EXTRAS,
    FINISHED,
    GIVEN,
    L_BASE,
    L_BUDGET,
    L_DECODES,
    L_EXTRAS,
    L_GUESS,
    L_NOW,
    L_PREDICTED,
    L_STEP,
    L_TOTAL,
    L_TRUE,
    L_USED,
    LEAST,
    LOG,
    ORDERS,
    PEAK,
    PREEMPTED,
    PREFILL,
    PRIOR,
    RUNNING,
    STEPS,
    TERMS,
    UNIT,
    USED,
    WAITING,
    Costs,
    Floats,
    Ints,
    Policy,
    Rules,
    State,
    Work,
)
from assay.sim.compiled import njit
from assay.sim.llm_cost import FOREVER, StepCost, chunk_line, decode_line, launch_line
from assay.sim.random import bits, key
from assay.workloads.branches import Branching


@njit(cache=True, inline="always")
def _blocks(tokens, block):
    return (tokens + block - 1) // block


@njit(cache=True)
def _need(w, s, r, block):
    """Blocks that a request's present text takes: one run of tokens, or a shared one and one for each branch."""
    start, stop = w.branches[s.stage[r]], w.branches[s.stage[r] + 1]
    if stop - start == 1:
        return _blocks(s.prefix[r] + s.made[start], block)
    total = _blocks(s.prefix[r], block)
    for branch in range(start, stop):
        total += _blocks(s.made[branch], block)
    return total


@njit(cache=True, inline="always")
def _grows(prefix, made, branches, block):
    """1 where the next token of a branch, of a stage of so many, needs a new block."""
    # A block is a power of two: a mask instead of a division.
    return 1 if ((made + prefix if branches == 1 else made) & (block - 1)) == 0 else 0


@njit(cache=True)
def _open_stage(w, s, r):
    """Line up the branches of the stage a request has come to."""
    start, stop = w.branches[s.stage[r]], w.branches[s.stage[r] + 1]
    s.alive[r] = stop - start
    for branch in range(start, stop):
        s.order[branch] = branch


@njit(cache=True)
def _sort(length, made, order, start, alive, how):
    """Put the alive branches in the policy's order. One step changes little, so insertion is fast."""
    for i in range(start + 1, start + alive):
        branch = order[i]
        j = i
        while j > start and _before(length, made, branch, order[j - 1], how):
            order[j] = order[j - 1]
            j -= 1
        order[j] = branch


@njit(cache=True, inline="always")
def _before(length, made, a, b, how):
    gap = made[a] - made[b] if how == LEAST else (length[b] - made[b]) - (length[a] - made[a])
    return gap < 0 or (gap == 0 and a < b)


@njit(cache=True)
def _admit(w, s, rules, now):
    """Move requests from the queue into the batch while there is room: first those that lost theirs."""
    c = s.tally
    while c[RUNNING] < rules.most:
        if c[AGAIN] > 0:
            r = s.again[c[AGAIN] - 1]
        elif c[ARRIVED] < len(w.arrival) and w.arrival[c[ARRIVED]] <= now:
            r = c[ARRIVED]
        else:
            return
        need = _need(w, s, r, rules.block)
        if c[RUNNING] > 0 and c[USED] + need + rules.spare > rules.blocks:
            return
        if c[AGAIN] > 0:
            c[AGAIN] -= 1
        else:
            c[ARRIVED] += 1
        s.running[c[RUNNING]] = r
        c[RUNNING] += 1
        c[USED] += need
        s.held[r] = need
        s.phase[r] = PREFILL
        s.have[r] = 0
        s.target[r] = s.prefix[r]
        for branch in range(w.branches[s.stage[r]], w.branches[s.stage[r] + 1]):
            s.target[r] += s.made[branch]


@njit(cache=True)
def _preempt(s):
    """The request admitted last gives up its blocks; it keeps its tokens, their KV is computed again later."""
    c = s.tally
    c[RUNNING] -= 1
    r = s.running[c[RUNNING]]
    c[USED] -= s.held[r]
    s.held[r] = 0
    s.phase[r] = WAITING
    s.again[c[AGAIN]] = r
    c[AGAIN] += 1
    c[PREEMPTED] += 1


@njit(cache=True)
def _base(w, s, rules):
    """The base batch: a token for every decoding request, chunks of prompts. Returns (blocks, decodes, KV, chunks)."""
    # Arrays are taken out of their tuples before a loop: each time costs two atomic operations.
    branches, length, made, order, running = w.branches, w.length, s.made, s.order, s.running
    stage, prefix, alive, width, chunk = s.stage, s.prefix, s.alive, s.width, s.chunk
    phase, target, have, tokens = s.phase, s.target, s.have, s.tokens
    need, decodes, context, left = 0, 0, 0, rules.chunk
    for i in range(s.tally[RUNNING]):
        r = running[i]
        width[r] = chunk[r] = 0
        start = branches[stage[r]]
        count = branches[stage[r] + 1] - start
        if phase[r] == PREFILL:
            chunk[r] = min(left, target[r] - have[r])
            left -= chunk[r]
            if have[r] + chunk[r] == target[r] and tokens[r] == 0:
                need += _grows(prefix[r], made[start], count, rules.block)
            continue
        if rules.order != GIVEN and alive[r] > 1:
            _sort(length, made, order, start, alive[r], rules.order)
        own = made[order[start]]
        need += _grows(prefix[r], own, count, rules.block)
        decodes += 1
        context += prefix[r] + own
        width[r] = 1
    return need, decodes, context, rules.chunk - left


@njit(cache=True)
def _chunks(s, coef):
    """Seconds of the prompts' attention in this step."""
    running, chunk, have, total = s.running, s.chunk, s.have, 0.0
    for i in range(s.tally[RUNNING]):
        r = running[i]
        if chunk[r] > 0:
            total += chunk_line(coef, chunk[r], have[r])[0]
    return total


@njit(cache=True, inline="always")
def _guess(theta, tokens, coef, decodes, context, prefill, chunks):
    """The predicted time of a step."""
    decoding = decode_line(coef, decodes, context)[0]
    return theta[0] * UNIT + theta[1] * tokens[decodes + prefill] + theta[2] * decoding + theta[3] * chunks


@njit(cache=True)
def _slack(w, s, now, base):
    """How much longer than `base` the step may take before the first request in the batch falls behind its target."""
    running, tokens, first, arrival, ttft, tpot = s.running, s.tokens, s.first, w.arrival, w.ttft, w.tpot
    least = math.inf
    for i in range(s.tally[RUNNING]):
        r = running[i]
        # With the first token out, `tokens` counts those after it and the one that this step makes.
        due = arrival[r] + ttft[r] if tokens[r] == 0 else first[r] + tpot[r] * tokens[r]
        least = min(least, max(0.0, due - now - base))
    return least


@njit(cache=True)
def _extras(w, s, rules, costs, plan, believed_chunks, budget, base):
    """Admit extra branches in rounds, one of each request a round. Returns (extras, KV they read)."""
    free, decodes, context, prefill = plan
    branches, stage, prefix, alive, width = w.branches, s.stage, s.prefix, s.alive, s.width
    made, order, theta, tokens, coef = s.made, s.order, s.theta, costs.believed_tokens, costs.believed_coef
    turns, extras, read, widest = s.turns, 0, 0, 1
    left = _candidates(s)
    while left > 0 and widest < rules.per_request:
        kept = 0
        for i in range(left):
            r = turns[i]
            if extras >= rules.per_batch:
                return extras, read
            own = made[order[branches[stage[r]] + widest]]
            blocks = _grows(0, own, widest + 1, rules.block)
            if blocks > free:
                continue
            more = own if rules.once else own + prefix[r]
            if rules.regulated:
                total = _guess(
                    theta, tokens, coef, decodes + extras + 1, context + read + more, prefill, believed_chunks
                )
                if total - base > budget:
                    return extras, read
            free -= blocks
            extras += 1
            read += more
            width[r] += 1
            if alive[r] > width[r]:
                turns[kept] = r
                kept += 1
        left = kept
        widest += 1
    return extras, read


@njit(cache=True)
def _candidates(s):
    """Line up in `turns` the requests with branches to add, beginning with another one each step; how many."""
    running, alive, width, turns, batch = s.running, s.alive, s.width, s.turns, s.tally[RUNNING]
    turn, found = s.tally[STEPS] % batch, 0
    for i in range(turn, turn + batch):
        r = running[i if i < batch else i - batch]
        if width[r] == 1 and alive[r] > 1:
            turns[found] = r
            found += 1
    return found


@njit(cache=True)
def _learn(s, costs, rules, decodes, context, prefill, chunks, step):
    """One update of recursive least squares, with what the step really took."""
    x = np.empty(TERMS)
    x[0] = UNIT
    x[1] = costs.believed_tokens[decodes + prefill]
    x[2] = decode_line(costs.believed_coef, decodes, context)[0]
    x[3] = chunks
    gain, spread, theta = s.gain, s.spread, s.theta
    scale, error, trace = rules.forget, step, 0.0
    for i in range(TERMS):
        gain[i] = 0.0
        for j in range(TERMS):
            gain[i] += spread[i, j] * x[j] / UNIT
        trace += spread[i, i]
    for i in range(TERMS):
        scale += gain[i] * x[i] / UNIT
        error -= theta[i] * x[i]
    # What no step excites must not be forgotten without end: the covariance would grow beyond all bounds.
    fade = rules.forget if trace < TERMS * PRIOR else 1.0
    for i in range(TERMS):
        theta[i] += gain[i] / scale * error / UNIT
    for i in range(TERMS):
        for j in range(TERMS):
            spread[i, j] = (spread[i, j] - gain[i] * gain[j] / scale) / fade


@njit(cache=True)
def _finish(w, s, r, branch, now, block):
    """A branch is complete; after a stage's last one the branches join, after the last stage the request leaves."""
    c, order = s.tally, s.order
    start, stop = w.branches[s.stage[r]], w.branches[s.stage[r] + 1]
    place = start
    while order[place] != branch:
        place += 1
    for i in range(place, start + s.alive[r] - 1):
        order[i] = order[i + 1]
    s.alive[r] -= 1
    if s.alive[r] > 0:
        return
    for i in range(start, stop):
        s.prefix[r] += s.made[i]
    if s.stage[r] + 1 == w.stages[r + 1]:
        s.phase[r] = DONE
        s.finish[r] = now
        c[FINISHED] += 1
        c[USED] -= s.held[r]
        s.held[r] = 0
        return
    s.stage[r] += 1
    _open_stage(w, s, r)
    joined = _blocks(s.prefix[r], block)
    c[USED] += joined - s.held[r]
    s.held[r] = joined


@njit(cache=True)
def _prefilled(s):
    """Note the step's chunks; the prompt's last one gives the first token."""
    for i in range(s.tally[RUNNING]):
        r = s.running[i]
        if s.chunk[r] == 0:
            continue
        s.have[r] += s.chunk[r]
        if s.have[r] == s.target[r]:
            s.phase[r] = DECODE
            s.width[r] = 1 if s.tokens[r] == 0 else 0


@njit(cache=True)
def _apply(w, s, rules, now):
    """Hand out the step's tokens, and drop from the batch who has finished."""
    _prefilled(s)
    branches, length, made, order, running = w.branches, w.length, s.made, s.order, s.running
    stage, prefix, width, tokens, held, c = s.stage, s.prefix, s.width, s.tokens, s.held, s.tally
    ended, kept = s.ended, 0
    for i in range(c[RUNNING]):
        r = running[i]
        start, finished = branches[stage[r]], 0
        count = branches[stage[r] + 1] - start
        if width[r] > 0 and tokens[r] == 0:
            s.first[r] = now
        for k in range(start, start + width[r]):
            branch = order[k]
            blocks = _grows(prefix[r], made[branch], count, rules.block)
            held[r] += blocks
            c[USED] += blocks
            made[branch] += 1
            if made[branch] == length[branch]:
                ended[finished] = branch
                finished += 1
        tokens[r] += width[r]
        c[PEAK] = max(c[PEAK], c[USED])
        for k in range(finished):  # only now: a finished branch leaves the order
            _finish(w, s, r, ended[k], now, rules.block)
        if finished == 0 or s.phase[r] != DONE:
            running[kept] = r
            kept += 1
    c[RUNNING] = kept


@njit(cache=True)
def noise(seed, step, sigma):
    """A lognormal factor of median 1 for a step, by Box and Muller from two words of the seed.

    >>> noise(np.uint64(7), 3, 0.0)
    1.0
    """
    if sigma == 0.0:
        return 1.0
    a = (float(bits(seed, 2 * step) >> np.uint64(11)) + 1.0) / 9007199254740992.0
    b = float(bits(seed, 2 * step + 1) >> np.uint64(11)) / 9007199254740992.0
    return math.exp(sigma * math.sqrt(-2.0 * math.log(a)) * math.cos(2.0 * math.pi * b))


@njit(cache=True)
def _true(costs, decodes, context, prefill, chunks):
    total = costs.tokens[decodes + prefill] + decode_line(costs.coef, decodes, context)[0] + chunks
    return launch_line(costs.coef, decodes, total, 0.0, FOREVER)[0] if prefill > 0 else total


@njit(cache=True)
def _step(w, s, rules, costs, now, log):
    """Plan one step, run it, learn from it. Returns the time at its end."""
    c = s.tally
    need, decodes, context, prefill = _base(w, s, rules)
    while need > rules.blocks - c[USED]:
        _preempt(s)
        need, decodes, context, prefill = _base(w, s, rules)
    believed_chunks, true_chunks = _chunks(s, costs.believed_coef), _chunks(s, costs.coef)
    theta, tokens, coef = s.theta, costs.believed_tokens, costs.believed_coef
    base = _guess(theta, tokens, coef, decodes, context, prefill, believed_chunks)
    budget = _slack(w, s, now, base) - rules.margin * base
    plan = (rules.blocks - c[USED] - need, decodes, context, prefill)
    extras, read = _extras(w, s, rules, costs, plan, believed_chunks, budget, base)
    total = _true(costs, decodes + extras, context + read, prefill, true_chunks)
    step = total * noise(costs.key, c[STEPS], costs.jitter)
    if c[STEPS] < len(log):
        row = log[c[STEPS]]
        alone = _true(costs, decodes, context, prefill, true_chunks)
        guess = _guess(theta, tokens, coef, decodes + extras, context + read, prefill, believed_chunks)
        row[L_NOW], row[L_BASE], row[L_TOTAL], row[L_BUDGET] = now, base, total, budget
        row[L_PREDICTED], row[L_TRUE], row[L_GUESS] = guess - base, total - alone, guess
        row[L_STEP], row[L_DECODES], row[L_EXTRAS], row[L_USED] = step, decodes, extras, c[USED]
    if rules.regulated:
        _learn(s, costs, rules, decodes + extras, context + read, prefill, believed_chunks, step)
    now += step
    _apply(w, s, rules, now)
    c[EXTRAS] += extras
    c[STEPS] += 1
    return now


@njit(cache=True, nogil=True)
def _run(w, s, rules, costs, log):
    n = len(w.arrival)
    for r in range(n):
        _open_stage(w, s, r)
    now = 0.0
    while s.tally[FINISHED] < n:
        if s.tally[RUNNING] == 0 and s.tally[AGAIN] == 0:
            now = max(now, w.arrival[s.tally[ARRIVED]])
        _admit(w, s, rules, now)
        now = _step(w, s, rules, costs, now, log)
    return now


# --------------------------------------------------------------------------------------- for Python


@dataclass(frozen=True, eq=False)
class Served:
    """What became of every request, and of the instance. Times are seconds since zero."""

    trace: Branching
    policy: Policy
    ttft_target: Floats
    tpot_target: Floats
    first: Floats
    finish: Floats
    made: Ints  # tokens produced of every branch
    tally: Ints
    theta: Floats  # the predictor's weights at the end
    makespan: float
    log: Floats

    @property
    def ttft(self) -> Floats:
        """From arrival to the first token."""
        return self.first - self.trace.arrival

    @property
    def tpot(self) -> Floats:
        """Seconds per output token after the first, all branches counted."""
        return (self.finish - self.first) / np.maximum(self.trace.tokens - 1, 1)

    @property
    def e2e(self) -> Floats:
        """From arrival to the last token."""
        return self.finish - self.trace.arrival

    @property
    def met(self) -> NDArray[np.bool_]:
        """Which requests met both targets."""
        return (self.ttft <= self.ttft_target) & (self.tpot <= self.tpot_target)

    @property
    def steps(self) -> int:
        """Iterations."""
        return int(self.tally[STEPS])

    def count(self, name: str) -> int:
        """One of `COUNTS`, at the end of the run."""
        return int(self.tally[COUNTS.index(name)])

    def column(self, name: str) -> Floats:
        """A column of the log, one of `LOG`, for the steps that were logged."""
        return self.log[: self.steps, LOG.index(name)]


def serve(
    trace: Branching, cost: StepCost, policy: Policy, *, ttft: ArrayLike, tpot: ArrayLike,
    believed: StepCost | None = None, jitter: float = 0.0, seed: int = 0, block: int = 16, kv_tokens: int = 0,
    chunk: int = 256, watermark: float = 0.05, most: int = 256, prefix_reads: str = "each", logged: int = 0,
) -> Served:  # fmt: skip
    """Serve a trace to its end on one instance.

    Args:
        trace: requests with branching answers.
        cost: what steps really cost.
        policy: which extra branches run.
        ttft: target of the time to first token, one for all or one for each request.
        tpot: target of the time per output token.
        believed: the cost that the predictor starts from; `cost` unless told.
        jitter: standard deviation of the logarithm of a step's time.
        seed: of the jitter.
        block: tokens of a KV block, a power of two.
        kv_tokens: room for KV; the cost's own unless told.
        chunk: prompt tokens of a step at most.
        watermark: share of the blocks that stays free when a request is admitted.
        most: requests in the batch at most.
        prefix_reads: "each" branch reads the shared prefix, or it is read "once" for all.
        logged: steps to log, from the first.

    Raises:
        ValueError: a request that can never fit, or an argument out of range.
    """
    blocks = (kv_tokens or cost.kv_tokens) // block
    largest = int((trace.prompt + trace.tokens).max()) // block + int(trace.widths.max()) + 2
    if largest > blocks:
        raise ValueError(f"a request takes up to {largest} blocks of KV, there are {blocks}")
    if block < 1 or block & (block - 1):
        raise ValueError(f"block is {block}, should be a power of two")
    if prefix_reads not in ("each", "once"):
        raise ValueError(f"prefix_reads is '{prefix_reads}', should be 'each' or 'once'")
    if chunk < 1 or most < 1 or not 0 <= watermark < 1 or jitter < 0:
        raise ValueError("chunk and most should be at least 1, watermark 0 to 1, jitter at least 0")
    rules = Rules(
        policy.per_request, policy.per_batch, policy.regulated, ORDERS.index(policy.order), policy.margin,
        policy.forget, block, blocks, int(watermark * blocks), chunk, most, prefix_reads == "once",
    )  # fmt: skip
    n, guess = len(trace), believed or cost
    first, later = (np.ascontiguousarray(np.broadcast_to(np.asarray(v, np.float64), n)) for v in (ttft, tpot))
    work = Work(trace.arrival, trace.prompt, trace.stages, trace.branches, trace.length, first, later)
    costs = Costs(
        cost.tokens, cost.packed(), guess.tokens, guess.packed(), float(jitter), np.uint64(key(seed, "branch-engine"))
    )
    state, log = _fresh(trace), np.zeros((logged, len(LOG)))
    makespan = _run(work, state, rules, costs, log)
    return Served(
        trace, policy, first, later, state.first, state.finish, state.made, state.tally, state.theta, makespan, log
    )


def _fresh(trace: Branching) -> State:
    n, branches = len(trace), len(trace.length)

    def zeros(size: int) -> Ints:
        return np.zeros(size, np.int64)

    return State(
        phase=np.zeros(n, np.int8), stage=trace.stages[:-1].copy(), prefix=trace.prompt.copy(), target=zeros(n),
        have=zeros(n), held=zeros(n), tokens=zeros(n), alive=zeros(n), width=zeros(n), chunk=zeros(n),
        first=np.full(n, np.nan), finish=np.full(n, np.nan), made=zeros(branches), order=zeros(branches),
        running=zeros(n), again=zeros(n), turns=zeros(n), ended=zeros(int(trace.widths.max())),
        tally=zeros(len(COUNTS)),
        theta=np.array([0.0, 1.0, 1.0, 1.0]), spread=PRIOR * np.eye(TERMS), gain=np.zeros(TERMS),
    )  # fmt: skip
