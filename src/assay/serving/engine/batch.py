"""Who is in the batch of one instance: how a request comes to it, starts to decode, ends, gives way, is taken off.

The batch is a handful of sums (`Instance` records), which these functions keep; nothing of a sequence is touched while
it decodes.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.serving.engine import views as v
from assay.serving.engine.own_books import answered, depart, enter
from assay.serving.engine.prefix_cache import JIT, match, reach, release, store
from assay.serving.engine.queues import add_end, drop_end, leave, push
from assay.serving.engine.state import (
    DECODING,
    FINDS_OWN,
    FINISHED,
    FINISHED_COUNT,
    HANDED,
    PREFILL,
    SGLANG,
    SWAP,
    WAITING,
)
from assay.sim.compiled import njit

SMOOTHING = 0.1  # weight of the newest value in the moving averages a router sees


@njit(**JIT)
def blocks_of(tokens, block):
    """Blocks that hold so many tokens."""
    return (tokens + block - 1) // block


@njit(**JIT)
def free_blocks(w, i):
    """What can still be given to sequences: blocks that nobody holds."""
    return v.caches(w)[i].capacity - v.caches(w)[i].active


@njit(**JIT)
def decode_need(w, i, k, iterations):
    """Blocks that the decodes need in iterations k, k + 1, …: each one new block every `block` tokens."""
    block = w.block
    need = (iterations // block) * v.instances(w)[i].decodes
    at = k % block
    for _ in range(iterations % block):
        need += v.phases(w)[i, at]
        at = at + 1 if at + 1 < block else 0
    return need


@njit(**JIT)
def begin_decode(w, i, r):
    """Request r, whose context has KV in full, decodes from the next iteration on."""
    instance, request = v.instances(w)[i], v.requests(w)[r]
    request.state, request.chunk = DECODING, 0
    request.begun, request.context0 = instance.k, request.pre
    request.end = instance.k + (request.output - request.emitted)
    v.phases(w)[i, (instance.k - request.pre) % w.block] += 1
    add_end(v.finishing(w)[i], instance.decodes, request.end, request.turn)
    instance.decodes += 1
    instance.context += request.pre


@njit(**JIT)
def _stop_decode(w, i, r):
    """Book what request r generated and take it out of the sums; returns its context."""
    instance, request = v.instances(w)[i], v.requests(w)[r]
    steps = instance.k - request.begun
    context = request.context0 + steps
    request.emitted += steps
    v.phases(w)[i, (request.begun - request.context0) % w.block] -= 1
    instance.decodes -= 1
    instance.context -= context
    return context


@njit(**JIT)
def _complete(w, i, r, now):
    request = v.requests(w)[r]
    request.state, request.finish = FINISHED, now
    depart(w, i, r)
    v.finished(w)[v.counts(w)[FINISHED_COUNT]] = r
    v.counts(w)[FINISHED_COUNT] += 1


@njit(**JIT)
def finish_decode(w, i, now):
    """The next sequence to finish has produced its last token."""
    instance, block = v.instances(w)[i], w.block
    r = v.finishing(w)[i][0].request % w.n_requests
    request = v.requests(w)[r]
    drop_end(v.finishing(w)[i], instance.decodes, 0)
    context = _stop_decode(w, i, r)
    leave(w, i, r)
    private = blocks_of(context, block) - request.shared
    release(w, r, i, private, context // block - request.shared, 0)
    _complete(w, i, r, now)


@njit(**JIT)
def finish_prefill(w, i, r, now):
    """The last chunk of a prompt gives the next token; returns whether the request moves to another instance."""
    instance, request, block = v.instances(w)[i], v.requests(w)[r], w.block
    request.emitted += 1
    if request.emitted == 1:
        request.first = now
        answered(w, i, r)
        instance.ttft += SMOOTHING * ((now - request.arrival) - instance.ttft)
    if instance.host >= 0:
        store(w, r, instance.host, request.pre // block)
    ends = request.emitted >= request.output
    if not ends and instance.role != PREFILL:
        begin_decode(w, i, r)
        return False
    leave(w, i, r)
    release(w, r, i, request.private, request.pre // block - request.shared if ends else 0, 0)
    if ends:
        _complete(w, i, r, now)
        return False
    request.state, request.ready, request.prefilled_by = HANDED, request.pre, i
    depart(w, i, r)
    return True


@njit(**JIT)
def _remove_chunk(w, i, r):
    """Take request r out of those in the middle of their prompt, keeping the order of the others."""
    instance, kept = v.instances(w)[i], 0
    for slot in range(instance.prefills):
        if v.chunks(w)[i, slot] != r:
            v.chunks(w)[i, kept] = v.chunks(w)[i, slot]
            kept += 1
    instance.prefills = kept


@njit(**JIT)
def withdraw(w, i, r, keep):
    """Take a running request off the instance; with `keep` the KV of a decode stays with it, else it is recomputed.

    What is recomputed is found again as long as nobody took its room, as in vLLM's prefix cache: full blocks of the
    prompt and of what was generated. SGLang frees what was generated at once.
    """
    instance, request, block = v.instances(w)[i], v.requests(w)[r], w.block
    computed = request.pre
    leave(w, i, r)
    if request.state == DECODING:
        for slot in range(instance.decodes):
            if v.finishing(w)[i][slot].request == request.turn:
                drop_end(v.finishing(w)[i], instance.decodes, slot)
                break
        context = _stop_decode(w, i, r)
        private = blocks_of(context, block) - request.shared
        request.ready = context if keep else 0
        computed = min(context, request.target) if instance.plan == SGLANG else context
    else:
        instance.uncomputed -= request.target - request.pre
        _remove_chunk(w, i, r)
        private = request.private
        request.ready = 0
    finds = v.counts(w)[FINDS_OWN] > 0 and request.ready == 0
    release(w, r, i, private, 0, computed // block - request.shared if finds else 0)
    request.pre, request.chunk = 0, 0
    instance.changed = 1


@njit(**JIT)
def _to_compute(w, i, r, hit):
    """Tokens that request r would have to prefill on instance i, where it finds `hit` blocks, were it admitted now."""
    request = v.requests(w)[r]
    target = request.prompt + request.emitted
    if request.ready > 0:
        return target - request.ready
    return max(target - reach(w, r, i, hit) * w.block - request.reuse, 1)


@njit(**JIT)
def preempt(w, i):
    """The most recently admitted sequence gives way and goes to the head of the queue; returns it."""
    instance = v.instances(w)[i]
    r = instance.newest
    swaps = instance.preemption == SWAP
    withdraw(w, i, r, swaps)
    request = v.requests(w)[r]
    if request.ready > 0:
        instance.extra += instance.swap * request.ready
    request.preemptions += 1
    instance.preemptions += 1
    request.state, request.key = WAITING, -np.inf
    request.expected = _to_compute(w, i, r, match(w, r, i, request.path_blocks))
    instance.uncomputed += request.expected
    push(w, i, r)
    return r


@njit(**JIT)
def accept(w, i, r, now):
    """Request r is sent to instance i, where it waits to be admitted."""
    instance, request = v.instances(w)[i], v.requests(w)[r]
    request.instance, request.state, request.routed = i, WAITING, now
    hit = match(w, r, i, request.path_blocks)
    request.expected = 0 if request.ready > 0 else _to_compute(w, i, r, hit)
    enter(w, i, r, hit)
    instance.uncomputed += request.expected
    push(w, i, r)
