"""The compiled heart of the serving engine: groups of instances, advanced in the order of time.

A group is a set of instances that iterate in lock-step (data-parallel attention with a barrier); most have one
member. An iteration of a group takes as long as that of its slowest member: the upper envelope of lines, of which one
is followed until another crosses it.

Iteration j of a line that began at `start` ends at start + j alpha + gamma j (j - 1) / 2. Everything that asks for a
time uses this one expression, and a new line begins only where the plan changes. So stepping through every iteration
and jumping over them give the same floats, not only nearly the same.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import math

import numpy as np

from assay.serving.engine import instance as one
from assay.serving.engine import views as v
from assay.serving.engine.batch import SMOOTHING, accept
from assay.serving.engine.instance import account, batch_tokens, horizon, line, plan, settle
from assay.serving.engine.own_books import prompts_with
from assay.serving.engine.prefix_cache import JIT, match_all
from assay.serving.engine.state import (
    AT,
    EACH_FINISH,
    ENTRIES_LEFT,
    FINISH,
    FINISHED_COUNT,
    HALTED,
    HANDED_COUNT,
    HANDOFF,
    HOLD,
    IDLE,
    ITL,
    KV_FREE,
    KV_TOKENS,
    LONGEST,
    OPPORTUNITY,
    PLAN,
    PREFILL_TOKENS,
    QUEUED,
    REACHED,
    RECORD,
    ROOM,
    RUNNING,
    SETTLE,
    SPANS,
    STATIC,
    STEP,
    STOPPED,
    TTFT,
)
from assay.sim.compiled import njit
from assay.sim.llm_cost import FOREVER


@njit(**JIT)
def end_of(start, alpha, gamma, j):
    """When iteration j - 1 of a line ends: the one expression for time."""
    return start + (j * alpha + gamma * (0.5 * j * (j - 1)))


@njit(**JIT)
def ended_before(group, t):
    """How many iterations of the group's line end before t."""
    span, low = t - group.start, group.done
    if group.gamma > 0.0:
        half = group.alpha / group.gamma - 0.5
        guess = math.sqrt(half * half + 2.0 * span / group.gamma) - half
    else:
        guess = span / group.alpha
    j = min(max(np.int64(guess), low), group.target)
    while j < group.target and end_of(group.start, group.alpha, group.gamma, j + 1) < t:
        j += 1
    while j > low and end_of(group.start, group.alpha, group.gamma, j) >= t:
        j -= 1
    return j


@njit(**JIT)
def _smoothed(instance, group, m):
    """The moving average of the time between tokens after m more decode iterations of the line.

    Following x(k) = a + g k with weight s, an average that starts on a - g / s stays g / s behind; any other distance
    shrinks by 1 - s an iteration. So what a router sees does not depend on how many iterations are booked at once.
    """
    if m == 0 or not instance.mixed or instance.decodes == 0:
        return instance.itl
    behind = group.alpha + group.gamma * (group.done - 1.0 / SMOOTHING)
    return behind + group.gamma * m + (1.0 - SMOOTHING) ** m * (instance.itl - behind)


@njit(**JIT)
def _record(w, group, i, m, elapsed):
    """One row of the span table: m iterations of one instance with one plan."""
    instance, n = v.instances(w)[i], batch_tokens(w, i)
    if n == 0:  # nothing to compute: it waits for the others of its group, if there are any
        if group.last - group.first > 1:
            instance.busy += elapsed
            instance.gap += elapsed
        return
    steps = instance.mixed and instance.decodes > 0
    if v.counts(w)[RECORD]:
        row = v.spans(w)[v.counts(w)[SPANS]]
        row.instance, row.tokens, row.waiting = i, n, instance.waiting
        row.decodes = instance.decodes if steps else 0
        row.start = end_of(group.start, group.alpha, group.gamma, group.done)
        row.alpha, row.gamma, row.iterations = group.alpha + group.gamma * group.done, group.gamma, m
        row.stall = instance.stall if steps else 0.0
        row.kv_blocks = v.caches(w)[i].active
        v.counts(w)[SPANS] += 1
    if steps:
        instance.itl = _smoothed(instance, group, m)
        instance.stall = 0.0
    elif instance.decodes > 0:
        instance.stall += elapsed
    own = m * (instance.alpha + instance.gamma * (instance.turn - instance.base)) + instance.gamma * (0.5 * m * (m - 1))
    instance.busy += elapsed
    instance.gap += elapsed - own


@njit(**JIT)
def settle_group(w, g):
    """Book the iterations up to the group's target."""
    group = v.groups(w)[g]
    m, since = group.target - group.done, group.accounted - group.done
    elapsed = group.next - end_of(group.start, group.alpha, group.gamma, group.done)
    for i in range(group.first, group.last):
        if m > since:
            account(w, i, since, m)
        _record(w, group, i, m, elapsed)
        settle(w, i, m, group.next)
    group.done = group.target
    group.accounted = group.done


@njit(**JIT)
def _envelope(w, group, now):
    """Start a new line: that of the slowest member, until another becomes slower."""
    alpha, gamma = -1.0, 0.0
    for i in range(group.first, group.last):
        instance = v.instances(w)[i]
        value = instance.alpha + instance.gamma * (instance.turn - instance.base)
        if value > alpha or (value == alpha and instance.gamma > gamma):
            alpha, gamma = value, instance.gamma
    valid = FOREVER
    for i in range(group.first, group.last):
        instance = v.instances(w)[i]
        valid = min(valid, instance.valid_to - instance.turn)
        if instance.gamma > gamma:
            value = instance.alpha + instance.gamma * (instance.turn - instance.base)
            crossing = (alpha - value) / (instance.gamma - gamma)
            if crossing < FOREVER:
                valid = min(valid, np.int64(crossing) + 1)
    group.start, group.alpha, group.gamma, group.done, group.valid = now, alpha, gamma, 0, valid


@njit(**JIT)
def plan_group(w, g):
    """Let every member plan its next iteration, and find how long the plans hold together."""
    group = v.groups(w)[g]
    now, changed, work = group.next, group.done >= group.valid, False
    for i in range(group.first, group.last):
        instance = v.instances(w)[i]
        plan(w, i, now)
        if instance.changed or instance.turn >= instance.valid_to:
            line(w, i)
            instance.changed = 0
            changed = True
        work |= batch_tokens(w, i) > 0
    if not work:
        group.phase, group.next, group.done, group.valid = IDLE, np.inf, 0, 0
        return
    if changed:
        _envelope(w, group, now)
    m = group.valid - group.done
    for i in range(group.first, group.last):
        m = 1 if v.counts(w)[STEP] else horizon(w, i, m)
    group.target, group.accounted = group.done + m, group.done + 1
    group.next = end_of(group.start, group.alpha, group.gamma, group.target)
    group.phase = SETTLE


@njit(**JIT)
def look(w, t):
    """Bring what routers see up to time t: blocks of the iterations that began, and the gauges."""
    for g in range(w.n_groups):
        group = v.groups(w)[g]
        ahead = 0
        if group.phase == SETTLE:
            j = ended_before(group, t)
            ahead = j - group.done
            upto = min(j + 1, group.target)
            if upto > group.accounted:
                for i in range(group.first, group.last):
                    account(w, i, group.accounted - group.done, upto - group.done)
                group.accounted = upto
        for i in range(group.first, group.last):
            instance = v.instances(w)[i]
            tokens = instance.context + (ahead * instance.decodes if instance.mixed else 0)
            pending = instance.uncomputed
            for slot in range(instance.prefills):
                request = v.requests(w)[v.chunks(w)[i, slot]]
                tokens += request.pre + ahead * request.chunk
                pending -= ahead * request.chunk
            v.gauges(w)[RUNNING, i], v.gauges(w)[QUEUED, i] = instance.decodes + instance.prefills, instance.waiting
            v.gauges(w)[PREFILL_TOKENS, i], v.gauges(w)[KV_TOKENS, i] = pending, tokens
            v.signals(w)[KV_FREE, i] = 1.0 - v.caches(w)[i].active / v.caches(w)[i].capacity
            v.signals(w)[ITL, i], v.signals(w)[TTFT, i] = _smoothed(instance, group, ahead), instance.ttft


@njit(**JIT)
def _may_admit(w, i, r):
    """Whether a newcomer could change the next plan of instance i."""
    instance = v.instances(w)[i]
    if instance.decodes + instance.prefills >= instance.max_seqs or instance.plan == STATIC:
        return instance.decodes + instance.prefills == 0
    if (instance.blocked == one.REFUSED or instance.blocked == one.PINNED) and instance.queue != r:
        return False
    return batch_tokens(w, i) < instance.max_tokens or not instance.mixed


@njit(**JIT)
def enqueue(w, i, r, now):
    """Send request r to instance i at time `now`; the iteration in flight completes first."""
    group = v.groups(w)[v.instances(w)[i].group]
    accept(w, i, r, now)
    if group.phase == IDLE:
        group.phase, group.next = PLAN, now
    elif group.phase == SETTLE and group.target > group.done + 1 and _may_admit(w, i, r):
        j = ended_before(group, now)
        if j + 1 < group.target:
            group.target = j + 1
            group.next = end_of(group.start, group.alpha, group.gamma, group.target)


@njit(**JIT)
def _short_of_room(w, group):
    """Whether planning this group could run out of cache entries or span rows."""
    entries, members = 8, group.last - group.first
    longest = v.counts(w)[LONGEST]
    for i in range(group.first, group.last):
        instance = v.instances(w)[i]
        running = instance.decodes + instance.prefills
        entries += (running + min(instance.waiting, instance.max_seqs)) * (longest + 3)
    return v.counts(w)[ENTRIES_LEFT] < 2 * entries or w.n_spans - v.counts(w)[SPANS] < members + 1


@njit(**JIT)
def advance(w, until):
    """Process every boundary before `until`; returns why it stopped, with the group in counts[AT]."""
    while True:
        g, t = -1, until
        for other in range(w.n_groups):
            if v.groups(w)[other].next < t:
                g, t = other, v.groups(w)[other].next
        if g < 0:
            return REACHED
        group = v.groups(w)[g]
        v.counts(w)[AT] = g
        if group.phase == SETTLE:
            if _short_of_room(w, group):
                return ROOM
            before = v.counts(w)[FINISHED_COUNT]
            settle_group(w, g)
            group.phase = PLAN
            if group.stop:
                group.phase, group.stop = HALTED, 0  # whoever asked for it says when it goes on
                return STOPPED
            if v.counts(w)[HANDED_COUNT] > 0:
                return HANDOFF
            if v.counts(w)[EACH_FINISH] and v.counts(w)[FINISHED_COUNT] > before:
                return FINISH
            if v.counts(w)[HOLD]:
                return OPPORTUNITY
        if _short_of_room(w, group):
            return ROOM
        plan_group(w, g)


@njit(**JIT)
def deliver(handle, i, r, now, until, upcoming, hits, prompts):
    """Send r to i at `now`, advance to `until`, and match the upcoming request in all caches: one call an arrival.

    Where somebody asks for it, `prompts` gets what would be on board with the upcoming request.
    """
    w = handle[0]
    if r >= 0:
        enqueue(w, i, r, now)
    why = advance(w, until)
    if why == REACHED:
        look(w, until)
        if upcoming >= 0:
            match_all(w, upcoming, hits)
            if w.n_board > 0:
                prompts_with(w, upcoming, prompts)
    return why


@njit(**JIT)
def cut(w, g, now):
    """Let the group's line end with the iteration in flight."""
    group = v.groups(w)[g]
    j = ended_before(group, now)
    if j + 1 < group.target:
        group.target = j + 1
        group.next = end_of(group.start, group.alpha, group.gamma, group.target)
