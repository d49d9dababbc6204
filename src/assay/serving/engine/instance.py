"""One LLM instance: continuous batching over paged KV, advanced from decision to decision.

Between two changes of the batch an engine repeats the same plan, and the time of its iterations is a line in their
number (`assay.sim.llm_cost`). So the state of a batch is a handful of sums, nothing per sequence is touched while it
decodes, and the next moment at which anything is decided follows in closed form. Here is what happens at such a
moment: `settle` books what was computed, `plan` decides what the next iterations do, `horizon` says for how many of
them nothing can change.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.serving.engine import views as v
from assay.serving.engine.batch import (
    begin_decode,
    blocks_of,
    decode_need,
    finish_decode,
    finish_prefill,
    free_blocks,
    preempt,
)
from assay.serving.engine.output_reserve import (
    KEPT,
    asked,
    left_on_board,
    measure_share,
    promised_to_prompts,
    share_kept,
)
from assay.serving.engine.prefix_cache import JIT, clear, extend, hold, idle_blocks, match, reach, reclaim, take
from assay.serving.engine.queues import pop, start
from assay.serving.engine.state import (
    CHUNK,
    HANDED_COUNT,
    PREFILLING,
    SGLANG,
    STATIC,
    SWAP,
    VLLM_V1,
)
from assay.sim.compiled import njit
from assay.sim.llm_cost import chunk_line, decode_line, launch_line

# Why someone still waits: no blocks; no look, because another had to give way; no blocks, some being pinned by a hit.
REFUSED, SKIPPED, PINNED = 1, 2, 3


@njit(**JIT)
def _fetchable(w, i, r, hit, last):
    """Blocks beyond `hit` that the host tier has, where fetching them is cheaper than computing them."""
    instance, block = v.instances(w)[i], w.block
    found = match(w, r, instance.host, v.requests(w)[r].path_blocks)
    more = min(found, last) - hit
    if more <= 0:
        return 0
    tokens = v.tokens(w)[instance.kind]
    n = min(more * block, len(tokens) - 1)
    computed = (tokens[n] - tokens[0]) * (more * block / n)
    computed += chunk_line(v.coefficients(w)[instance.kind], more * block, hit * block)[0]
    return more if instance.fetch * more * block < computed else 0


@njit(**JIT)
def _fits(w, i, r, hit, found, have, chunk):
    """Whether request r may be admitted: `hit` blocks lie on its path, `found` with those it left itself.

    vLLM asks whether the prompt fits as a whole, though it is computed chunk by chunk; by its older rule only the
    next chunk has to. It is a question, and nothing is kept for the chunks to come. SGLang also wants room for the
    output, and keeps some for those of others.
    """
    instance, request, block = v.instances(w)[i], v.requests(w)[r], w.block
    target = request.prompt + request.emitted
    by_chunk = instance.plan == VLLM_V1 and instance.admission == CHUNK
    whole = have + chunk if by_chunk else max(target, have + chunk)
    pinned = idle_blocks(w, r, i, hit)
    room = free_blocks(w, i) - pinned - (found - hit)
    fits = blocks_of(whole, block) - found <= room - decode_need(w, i, instance.k, 1)
    if fits and instance.plan == SGLANG:
        kept = share_kept(instance, instance.k) * left_on_board(w, i) + promised_to_prompts(w, i)
        fits = asked(w, r, have) <= room * block - kept
    if not fits:
        # One that asks for a chunk asks for no more where it lost a block of its own, which then pins one less.
        instance.blocked = PINNED if pinned > 0 or (by_chunk and found > hit) else REFUSED
    return fits


@njit(**JIT)
def _admit(w, i, budget, now):
    """Admit the first waiting request if its next tokens fit; returns the tokens it computes, or -1."""
    instance, block = v.instances(w)[i], w.block
    r = instance.queue
    request = v.requests(w)[r]
    target = request.prompt + request.emitted
    hit = match(w, r, i, request.path_blocks)
    found, fetched = hit, 0
    if request.ready > 0:
        found = hit = min(hit, request.ready // block)
        have, chunk = request.ready, 0
    else:
        last = (target - 1) // block  # the last token is always computed: it gives the next one
        hit = min(hit, last)
        found = reach(w, r, i, hit)
        if instance.host >= 0:
            fetched = _fetchable(w, i, r, found, last)
        have = min(max((found + fetched) * block, hit * block + request.reuse), target - 1)
        chunk = min(target - have, budget, instance.chunk_limit)
    if not _fits(w, i, r, hit, found, have, chunk):
        return -1
    pop(w, i)
    start(w, i, r)
    hold(w, r, i, hit)
    reclaim(w, r, i, found - hit)
    request.private = blocks_of(have + chunk, block) - hit
    take(w, i, request.private - (found - hit))
    if request.preemptions == 0 and request.ready == 0:
        request.admitted, request.cached, request.fetched = now, have, fetched * block
    instance.extra += request.extra + instance.fetch * fetched * block
    request.extra = 0.0
    instance.uncomputed -= request.expected
    instance.changed = 1
    request.target, request.chunk = target, chunk
    if request.ready > 0:
        if request.preemptions > 0 and instance.preemption == SWAP:
            instance.extra += instance.swap * request.ready
        request.pre = request.ready
        extend(w, r, i, request.pre // block)
        request.ready = 0
        begin_decode(w, i, r)
        # its first decode may itself need a block, which the reserve did not count
        return 1
    request.pre = have
    request.state = PREFILLING
    v.chunks(w)[i, instance.prefills] = r
    instance.prefills += 1
    instance.uncomputed += target - have
    extend(w, r, i, (have + chunk) // block)
    return chunk


@njit(**JIT)
def _continue_prompts(w, i, budget, reserve):
    """Give the prompts under way their next chunk, oldest first; returns the budget left and whether one gave way."""
    instance, block = v.instances(w)[i], w.block
    slot, preempted = 0, False
    while slot < instance.prefills:
        r = v.chunks(w)[i, slot]
        request = v.requests(w)[r]
        chunk = min(request.target - request.pre, budget, instance.chunk_limit)
        need = blocks_of(request.pre + chunk, block) - blocks_of(request.pre, block)
        gone = False
        while need > free_blocks(w, i) - (decode_need(w, i, instance.k, 1) if reserve else 0):
            preempted = True
            if preempt(w, i) == r:
                gone = True
                break
        if gone:
            continue
        if chunk != request.chunk:
            instance.changed = 1
        request.chunk = chunk
        take(w, i, need)
        request.private += need
        extend(w, r, i, (request.pre + chunk) // block)
        budget -= chunk
        slot += 1
    return budget, preempted


@njit(**JIT)
def _admit_waiting(w, i, budget, now):
    """Admit in the queue's order while tokens, sequence slots and blocks last; returns the tokens they compute."""
    instance, used = v.instances(w)[i], 0
    while instance.waiting > 0 and budget > 0 and instance.decodes + instance.prefills < instance.max_seqs:
        if instance.accepts == 0:
            break
        n = _admit(w, i, budget, now)
        if n < 0:
            break
        budget -= n
        used += n
    return used


@njit(**JIT)
def _plan_once(w, i, now):
    """One look at the batch and the queue."""
    instance = v.instances(w)[i]
    instance.blocked = 0
    mixed = 1
    if instance.plan == SGLANG:
        left, preempted = _continue_prompts(w, i, instance.max_tokens, False)
        if preempted:
            instance.blocked = SKIPPED
        else:
            _admit_waiting(w, i, left, now)
        if instance.prefills > 0:
            mixed = 0
    if mixed:
        preempted = False
        while decode_need(w, i, instance.k, 1) > free_blocks(w, i):
            preempt(w, i)
            preempted = True
        if instance.plan != SGLANG:
            left, gave_way = _continue_prompts(w, i, instance.max_tokens - instance.decodes, True)
            empty = instance.decodes + instance.prefills == 0
            if preempted or gave_way:
                instance.blocked = SKIPPED
            elif instance.plan != STATIC or empty:
                _admit_waiting(w, i, left, now)
            while decode_need(w, i, instance.k, 1) > free_blocks(w, i):  # handed-over sequences count only now
                preempt(w, i)
                instance.blocked = SKIPPED
        elif preempted:
            instance.blocked = SKIPPED
            measure_share(w, i)
        take(w, i, decode_need(w, i, instance.k, 1))
    if mixed != instance.mixed:
        instance.mixed, instance.changed = mixed, 1


@njit(**JIT)
def plan(w, i, now):
    """Decide what the next iteration of instance i computes, and take the blocks it needs.

    A segment is pinned as a whole, so one that reaches beyond what a sequence has of it can take the room that the
    sequence needs to go on, even when it is alone: then it gave way to itself, and starts again without the cache.
    """
    instance = v.instances(w)[i]
    _plan_once(w, i, now)
    if instance.decodes + instance.prefills == 0 and instance.blocked:
        clear(w, i)
        _plan_once(w, i, now)
    if instance.decodes + instance.prefills == 0:
        instance.ratio, instance.ratio_k = KEPT, instance.k


@njit(**JIT)
def line(w, i):
    """Set the instance's own line for its present plan."""
    instance = v.instances(w)[i]
    coef = v.coefficients(w)[instance.kind]
    b = instance.decodes if instance.mixed else 0
    n = b
    alpha, gamma, valid = decode_line(coef, b, instance.context)
    for slot in range(instance.prefills):
        request = v.requests(w)[v.chunks(w)[i, slot]]
        if request.chunk > 0:
            n += request.chunk
            more, slope, until = chunk_line(coef, request.chunk, request.pre)
            alpha, gamma, valid = alpha + more, gamma + slope, min(valid, until)
    if n > 0:
        alpha += v.tokens(w)[instance.kind, n]
        if n > b:
            alpha, gamma, valid = launch_line(coef, b, alpha, gamma, valid)
        alpha += instance.extra
        if instance.extra > 0.0:
            valid = 1
    instance.extra = 0.0 if n > 0 else instance.extra
    instance.alpha, instance.gamma, instance.base = alpha, gamma, instance.turn
    instance.valid_to = instance.turn + valid
    return n


@njit(**JIT)
def batch_tokens(w, i):
    """Tokens that an iteration of the present plan computes."""
    instance = v.instances(w)[i]
    n = instance.decodes if instance.mixed else 0
    for slot in range(instance.prefills):
        n += v.requests(w)[v.chunks(w)[i, slot]].chunk
    return n


@njit(**JIT)
def _need(w, i, iterations):
    """Blocks that iterations 1 … iterations - 1 from now need (those of iteration 0 are taken)."""
    instance, block = v.instances(w)[i], w.block
    need = decode_need(w, i, instance.k + 1, iterations - 1) if instance.mixed else 0
    for slot in range(instance.prefills):
        request = v.requests(w)[v.chunks(w)[i, slot]]
        first = request.pre + request.chunk
        need += blocks_of(request.pre + iterations * request.chunk, block) - blocks_of(first, block)
    return need


@njit(**JIT)
def _next_take(w, i):
    """The first iteration from now, 0 being the present one, in which a decode takes a block."""
    instance, block = v.instances(w)[i], w.block
    for ahead in range(block):
        if v.phases(w)[i, (instance.k + ahead) % block] > 0:
            return ahead
    return block


@njit(**JIT)
def _until_less_is_kept(w, i, most):
    """The first iteration from now, at most `most`, before which SGLang may let the first in the queue in.

    What it keeps for outputs falls from decode to decode, and so does the room. The one that waits asks for the same
    all the time: a block of its own that is taken makes it ask for one more, and pins one less.
    """
    instance, block = v.instances(w)[i], w.block
    r = instance.queue
    request = v.requests(w)[r]
    if instance.host >= 0 or request.reuse > 0:
        return 1  # what else is found changes with the cache
    hit = match(w, r, i, request.path_blocks)
    if request.ready > 0:
        hit, have = min(hit, request.ready // block), np.int64(request.ready)
        found = hit
    else:
        hit = min(hit, (request.prompt + request.emitted - 1) // block)
        found = reach(w, r, i, hit)
        have = found * block
    room = free_blocks(w, i) - idle_blocks(w, r, i, hit) - (found - hit)
    wanted, left = asked(w, r, have), left_on_board(w, i)
    for ahead in range(1, most):
        kept = share_kept(instance, instance.k + ahead) * max(left - ahead * instance.decodes, 0)
        if wanted <= room * block - kept:
            return ahead
        room -= v.phases(w)[i, (instance.k + ahead) % block]
    return most


@njit(**JIT)
def horizon(w, i, most):
    """For how many iterations, at most `most`, the plan of instance i surely stays as it is."""
    instance = v.instances(w)[i]
    m = min(most, instance.valid_to - instance.turn)
    if instance.mixed and instance.decodes > 0:
        m = min(m, v.finishing(w)[i][0].end - instance.k)
    for slot in range(instance.prefills):
        request = v.requests(w)[v.chunks(w)[i, slot]]
        if request.chunk > 0:
            m = min(m, (request.target - request.pre) // request.chunk)
    if instance.blocked == SKIPPED or (instance.blocked != 0 and instance.prefills > 0):
        m = 1  # nobody was asked in, or what a prompt under way computes may be what the refused one waits for
    elif instance.blocked == PINNED:
        m = min(m, _next_take(w, i) + 1)  # the block taken may be one of the hit: less to pin, and it may fit
    if m > 1 and instance.plan == SGLANG and instance.blocked != 0:
        m = _until_less_is_kept(w, i, m)
    free = free_blocks(w, i)
    if m > 1 and _need(w, i, m) > free:
        low, high = 1, m
        while high - low > 1:
            middle = (low + high) // 2
            if _need(w, i, middle) > free:
                high = middle
            else:
                low = middle
        m = low
    return m


# --------------------------------------------------------------------------------------------- booking


@njit(**JIT)
def _account_prompts(w, i, since, upto):
    """Take the blocks that the prompts under way fill in iterations `since` … `upto` - 1, and let others find them."""
    instance, block = v.instances(w)[i], w.block
    for slot in range(instance.prefills):
        r = v.chunks(w)[i, slot]
        request = v.requests(w)[r]
        if request.chunk > 0:
            before = blocks_of(request.pre + since * request.chunk, block)
            need = blocks_of(request.pre + upto * request.chunk, block) - before
            if need > 0:
                take(w, i, need)
                request.private += need
            extend(w, r, i, (request.pre + upto * request.chunk) // block)


@njit(**JIT)
def account(w, i, since, upto):
    """Take the blocks of iterations `since` … `upto` - 1 after the last booking, as they begin.

    While a prompt fills a segment it matters whether an older copy of the next one is still there or already evicted,
    so then the iterations take their blocks one after the other, as they do when every one of them is planned.
    """
    instance = v.instances(w)[i]
    writing = False
    for slot in range(instance.prefills):
        writing |= v.requests(w)[v.chunks(w)[i, slot]].writing != 0
    at = since
    while at < upto:
        after = at + 1 if writing else upto
        _account_prompts(w, i, at, after)
        if instance.mixed and instance.decodes > 0:
            need = decode_need(w, i, instance.k + at, after - at)
            if need > 0:
                take(w, i, need)
        at = after


@njit(**JIT)
def settle(w, i, m, now):
    """Book m finished iterations at the end of the last one."""
    instance = v.instances(w)[i]
    instance.turn += m
    n = batch_tokens(w, i)
    if n == 0:
        return
    instance.iterations += m
    instance.spans += 1
    energy = v.energies(w)[instance.kind]
    instance.joules += m * v.joules(w)[instance.kind, n]
    if instance.mixed and instance.decodes > 0:
        b = instance.decodes
        read = float(m) * instance.context + 0.5 * b * m * (m - 1)
        instance.joules += energy[0] * read + energy[2] * b * m
        instance.decoded += b * m
        instance.k += m
        instance.context += b * m
        while instance.decodes > 0 and v.finishing(w)[i][0].end <= instance.k:
            finish_decode(w, i, now)
            instance.changed = 1
    kept = 0
    for slot in range(instance.prefills):
        r = v.chunks(w)[i, slot]
        request = v.requests(w)[r]
        computed = m * request.chunk
        instance.joules += energy[1] * computed * (request.pre + 0.5 * computed)
        instance.prefilled += computed
        instance.uncomputed -= computed
        request.pre += computed
        if request.pre < request.target:
            v.chunks(w)[i, kept] = r
            kept += 1
        else:
            instance.changed = 1
            if finish_prefill(w, i, r, now):
                v.handed(w)[v.counts(w)[HANDED_COUNT]] = r
                v.counts(w)[HANDED_COUNT] += 1
    instance.prefills = kept
