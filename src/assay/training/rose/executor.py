"""GPUs that serve and roll out at once, tick by tick.

A tick is one iteration of the serving model or one of the rollout model; both lie on the GPU, and only one computes at
a time. Serving goes first. With the guard, a rollout tick is taken only if every serving request could still be in time
after it: for those that wait, arrival + TTFT - now - prefill > tick; for those that decode, last token + TPOT - now -
iteration > tick; prompts of rollouts are read 512 tokens a tick. Keys and values share one pool. When both together
come into the reserved headroom, the rollouts' budget is halved, the newest are put out (to be routed anew), and it
does not grow until the next RL step.

Two other ways, for comparison: ticks that take turns, and a rollout tick whenever there is one (no guard). Prompts are
then read in large pieces, and rollouts take what memory there is.

Turns are routed one by one: to the GPU that has the keys and values, if it has a place; to a dedicated GPU; to a
serving GPU that is eligible; or into the queue.
"""

# Compiled functions take whatever types Numba infers.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.sim.llm_cost import StepCost, chunk_line, decode_line, launch_line
from assay.workloads.requests import Requests
from assay.workloads.trajectories import Trajectories

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NEVER = math.inf
LANES = 256  # requests that a GPU serves at once

# columns: lanes of requests and places of rollouts, GPUs, trajectories, settings, targets, counts
ARRIVED, LASTED = range(2)
WHO, LEFT, SEEN, TO_READ = range(4)
SERVING, ROLLING, USED_S, USED_R, BUDGET, FROZEN, TURN_OF, COME, LISTED, IDLE = range(10)
FIRST, TURN, CONTEXT, HOME, STATE = range(5)
AWAY, QUEUED, RUNNING, DONE = range(4)
GUARD, AFFINE, PLACES, CHUNK_S, CHUNK_R, DEDICATED, ROOM, HELD_BACK, PROMPTS_FIRST = range(9)
CLOCK, TTFT, TPOT, UNTIL, NEXT_READY = range(5)
NONE, SLACK, TURNS = range(3)  # kinds of guard
ABORTS, REREAD, TICKS, HALVED, BORROWED, FINISHED, QUEUE, MOVED = range(8)


class State(NamedTuple):
    """Everything: trajectories by i and their turns by k, requests by r, GPUs by g."""

    turns: Ints  # prompt, output
    env: Floats
    traj: Ints
    ready: Floats  # when the next turn may begin
    done: Floats
    queue: Ints  # turns that have no place
    arrival: Floats
    asked: Ints  # prompt, reply
    lists: Ints  # requests of each GPU
    ttft: Floats
    tpot: Floats
    serve: Floats  # seconds by tokens of an iteration
    serve_coef: Floats
    roll: Floats
    roll_coef: Floats
    gpu: Ints
    free: Floats  # when each GPU's tick ends
    lane: Ints  # requests on each GPU
    stamp: Floats
    spot: Ints  # rollouts on each GPU
    rule: Ints
    target: Floats
    counts: Ints


@njit(cache=True)
def _iteration(tokens, coef, b, seen, chunk, before):
    """Seconds of one iteration: b decodes that see so many tokens, and a piece of one prompt."""
    alpha = tokens[min(b + chunk, len(tokens) - 1)] + decode_line(coef, b, seen)[0]
    if chunk > 0:
        alpha += chunk_line(coef, chunk, before)[0]
        alpha = launch_line(coef, b, alpha, 0.0, 1 << 60)[0]
    return alpha


@njit(cache=True)
def _mix(table, count, piece):
    """What the next iteration of some lanes is: decodes, the tokens they see, who is read, and how much of it."""
    b, seen, reading, chunk, before = 0, 0, -1, 0, 0
    for j in range(count):
        if table[j, TO_READ] == 0:
            b, seen = b + 1, seen + table[j, SEEN]
        elif reading < 0:
            reading, chunk, before = j, min(piece, table[j, TO_READ]), table[j, SEEN]
    return b, seen, reading, chunk, before


@njit(cache=True)
def _in_time(s, g, now, tick):
    """Whether every serving request of a GPU could still be in time after a rollout tick."""
    if s.gpu[g, SERVING] >= LANES // 2:
        return False  # tokens that are late by what is allowed fill the lanes, and who comes next finds none
    at = s.gpu[g, COME]
    if at < s.gpu[g, LISTED] and s.arrival[s.lists[g, at]] <= now:
        return False  # one waits for memory or a lane: serving has to get on
    queued, seen, decoding = 0.0, 0, 0
    for j in range(s.gpu[g, SERVING]):
        if s.lane[g, j, TO_READ] == 0:
            decoding, seen = decoding + 1, seen + s.lane[g, j, SEEN]
            continue
        if s.rule[PROMPTS_FIRST]:
            return False
        read, left = s.lane[g, j, SEEN], s.lane[g, j, TO_READ]
        while left > 0:
            chunk = min(s.rule[CHUNK_S], left)
            queued += _iteration(s.serve, s.serve_coef, 0, 0, chunk, read)
            read, left = read + chunk, left - chunk
        if s.stamp[g, j, ARRIVED] + s.target[TTFT] - now - queued <= tick:
            return False
    step = _iteration(s.serve, s.serve_coef, decoding, seen, 0, 0) if decoding else 0.0
    for j in range(s.gpu[g, SERVING]):
        if s.lane[g, j, TO_READ] == 0 and s.stamp[g, j, LASTED] + s.target[TPOT] - now - queued - step <= tick:
            return False
    return True


# -------------------------------------------------------------------------------------------------- turns of rollouts


@njit(cache=True)
def _wake(s, now):
    """Turns whose tools are done queue for a place."""
    if s.target[NEXT_READY] > now:
        return
    s.target[NEXT_READY] = NEVER
    for i in range(len(s.ready)):
        if s.traj[i, STATE] == AWAY:
            if s.ready[i] <= now:
                s.traj[i, STATE] = QUEUED
                s.queue[s.counts[QUEUE]] = i
                s.counts[QUEUE] += 1
                s.counts[MOVED] = 1
            else:
                s.target[NEXT_READY] = min(s.target[NEXT_READY], s.ready[i])


@njit(cache=True)
def _where(s, i, need):
    """Where the next turn of a trajectory goes, -1 where nobody has a place."""
    h = s.traj[i, HOME]
    fits = h >= 0 and s.gpu[h, ROLLING] < s.rule[PLACES] and s.gpu[h, USED_R] + need <= s.gpu[h, BUDGET]
    if s.rule[AFFINE] and fits:
        return h
    best, least = -1, s.rule[PLACES]
    for g in range(len(s.gpu)):
        if g == s.rule[DEDICATED] and best >= 0:
            break  # dedicated ones first
        eligible = s.rule[GUARD] != SLACK or s.gpu[g, SERVING] < LANES // 2
        if eligible and s.gpu[g, ROLLING] < least and s.gpu[g, USED_R] + need <= s.gpu[g, BUDGET]:
            best, least = g, s.gpu[g, ROLLING]
    return best


@njit(cache=True)
def _seat(s, now):
    """Give queued turns their places, first come first served; who finds none stays queued until something moves."""
    if s.counts[MOVED] == 0:
        return
    s.counts[MOVED], left = 0, 0
    for q in range(s.counts[QUEUE]):
        i = s.queue[q]
        k = s.traj[i, FIRST] + s.traj[i, TURN]
        need = s.traj[i, CONTEXT] + s.turns[k, 0] + s.turns[k, 1]
        g = _where(s, i, need)
        if g < 0:
            s.queue[left] = i
            left += 1
            continue
        kept = s.traj[i, CONTEXT] if g == s.traj[i, HOME] else 0
        s.counts[REREAD] += s.traj[i, CONTEXT] - kept
        s.counts[BORROWED] += g >= s.rule[DEDICATED]
        j = s.gpu[g, ROLLING]
        s.spot[g, j, WHO], s.spot[g, j, LEFT], s.spot[g, j, SEEN] = i, s.turns[k, 1], kept
        s.spot[g, j, TO_READ] = s.traj[i, CONTEXT] + s.turns[k, 0] - kept
        s.gpu[g, ROLLING] += 1
        s.gpu[g, USED_R] += need
        s.traj[i, HOME], s.traj[i, STATE] = g, RUNNING
        if s.gpu[g, IDLE]:
            s.free[g], s.gpu[g, IDLE] = now, 0
    s.counts[QUEUE] = left


@njit(cache=True)
def _put_out(s, g, keep):
    """Put the newest rollouts of a GPU out until the rest fits into `keep`; they are read anew wherever they go."""
    while s.gpu[g, ROLLING] > 0 and s.gpu[g, USED_R] > keep:
        s.gpu[g, ROLLING] -= 1
        i = s.spot[g, s.gpu[g, ROLLING], WHO]
        k = s.traj[i, FIRST] + s.traj[i, TURN]
        s.gpu[g, USED_R] -= s.traj[i, CONTEXT] + s.turns[k, 0] + s.turns[k, 1]
        s.traj[i, HOME], s.traj[i, STATE] = -1, QUEUED
        s.queue[s.counts[QUEUE]] = i
        s.counts[QUEUE] += 1
        s.counts[ABORTS] += 1
        s.counts[MOVED] = 1


@njit(cache=True)
def _rollout_tick(s, g, now):
    """One iteration of rollouts, if it may be; whether it was."""
    m, n = s.gpu[g, ROLLING], s.gpu[g, SERVING]
    if m == 0 or (n > 0 and s.rule[GUARD] == TURNS and s.gpu[g, TURN_OF] == 1):
        return False
    b, seen, reading, chunk, before = _mix(s.spot[g], m, s.rule[CHUNK_R])
    tick = _iteration(s.roll, s.roll_coef, b, seen, chunk, before)
    if n > 0 and s.rule[GUARD] == SLACK and not _in_time(s, g, now, tick):
        return False
    s.free[g], s.gpu[g, TURN_OF] = now + tick, 1
    s.counts[TICKS] += 1
    for j in range(m - 1, -1, -1):
        if j == reading:
            s.spot[g, j, TO_READ] -= chunk
            s.spot[g, j, SEEN] += chunk
        if s.spot[g, j, TO_READ] > 0:
            continue
        s.spot[g, j, LEFT] -= 1
        s.spot[g, j, SEEN] += 1
        if s.spot[g, j, LEFT] == 0:
            i = s.spot[g, j, WHO]
            last = s.gpu[g, ROLLING] - 1
            s.spot[g, j] = s.spot[g, last]
            s.gpu[g, ROLLING] = last
            _turn_done(s, i, g, now + tick)
    return True


@njit(cache=True)
def _turn_done(s, i, g, end):
    k = s.traj[i, FIRST] + s.traj[i, TURN]
    s.traj[i, CONTEXT] += s.turns[k, 0] + s.turns[k, 1]
    s.gpu[g, USED_R] -= s.traj[i, CONTEXT]
    s.traj[i, TURN] += 1
    s.counts[MOVED] = 1
    if k + 1 == s.traj[i + 1, FIRST]:
        s.traj[i, STATE], s.done[i] = DONE, end
        s.counts[FINISHED] += 1
    else:
        s.traj[i, STATE], s.ready[i] = AWAY, end + s.env[k]
        s.target[NEXT_READY] = min(s.target[NEXT_READY], s.ready[i])


# ------------------------------------------------------------------------------------------------------------ serving


@njit(cache=True)
def _admit(s, g, now):
    """Take in requests that have come, if there is memory; rollouts give way."""
    while s.gpu[g, COME] < s.gpu[g, LISTED] and s.gpu[g, SERVING] < LANES:
        r = s.lists[g, s.gpu[g, COME]]
        if s.arrival[r] > now:
            break
        need = s.asked[r, 0] + s.asked[r, 1]
        if s.rule[GUARD] == SLACK and s.gpu[g, USED_R] > 0:
            if s.gpu[g, USED_S] + s.gpu[g, USED_R] + need > s.rule[HELD_BACK] and s.gpu[g, FROZEN] == 0:
                s.gpu[g, FROZEN], s.gpu[g, BUDGET] = 1, s.gpu[g, USED_R] // 2  # until the next RL step
                s.counts[HALVED] += 1
                _put_out(s, g, s.gpu[g, BUDGET])
            if s.gpu[g, USED_S] + s.gpu[g, USED_R] + need > s.rule[ROOM]:  # the headroom is gone, too
                _put_out(s, g, max(0, s.rule[ROOM] - s.gpu[g, USED_S] - need))
        if s.gpu[g, USED_S] + s.gpu[g, USED_R] + need > s.rule[ROOM] and s.gpu[g, USED_S] + s.gpu[g, USED_R] > 0:
            break
        j = s.gpu[g, SERVING]
        s.lane[g, j, WHO], s.lane[g, j, LEFT], s.lane[g, j, SEEN], s.lane[g, j, TO_READ] = (
            r,
            s.asked[r, 1],
            0,
            s.asked[r, 0],
        )
        s.stamp[g, j, ARRIVED], s.stamp[g, j, LASTED] = s.arrival[r], s.arrival[r]
        s.gpu[g, SERVING] += 1
        s.gpu[g, USED_S] += need
        s.gpu[g, COME] += 1


@njit(cache=True)
def _serving_tick(s, g, now):
    """One iteration of serving: a prompt alone, for the first token is what is tight, or all decodes."""
    n = s.gpu[g, SERVING]
    b, seen, reading, chunk, before = _mix(s.lane[g], n, s.rule[CHUNK_S])
    if reading >= 0:
        b, seen = 0, 0
    end = now + _iteration(s.serve, s.serve_coef, b, seen, chunk, before)
    s.free[g], s.gpu[g, TURN_OF] = end, 0
    for j in range(n - 1, -1, -1):
        r = s.lane[g, j, WHO]
        if reading >= 0:
            if j != reading:
                continue
            s.lane[g, j, TO_READ] -= chunk
            s.lane[g, j, SEEN] += chunk
            if s.lane[g, j, TO_READ] > 0:
                continue
            s.ttft[r] = end - s.arrival[r]
        else:
            s.tpot[r] += (end - s.stamp[g, j, LASTED]) / (s.asked[r, 1] - 1)  # in the end, the mean
        s.stamp[g, j, LASTED] = end
        s.lane[g, j, LEFT] -= 1
        s.lane[g, j, SEEN] += 1
        if s.lane[g, j, LEFT] <= 0:
            s.gpu[g, USED_S] -= s.asked[r, 0] + s.asked[r, 1]
            last = s.gpu[g, SERVING] - 1
            s.lane[g, j], s.stamp[g, j] = s.lane[g, last], s.stamp[g, last]
            s.gpu[g, SERVING] = last
            if last == LANES // 2 - 1:
                s.counts[MOVED] = 1  # it may be eligible now


@njit(cache=True)
def play(s):
    """Until the last trajectory is done, or until the time that was given; the clock then."""
    total = len(s.ready)
    now = s.target[CLOCK]
    while s.counts[FINISHED] < total or s.target[UNTIL] < NEVER:
        g = int(np.argmin(s.free))
        now = s.free[g]
        if now >= s.target[UNTIL]:
            return min(now, s.target[UNTIL])
        _wake(s, now)
        _seat(s, now)
        _admit(s, g, now)
        s.gpu[g, IDLE] = 0
        if _rollout_tick(s, g, now):
            continue
        if s.gpu[g, SERVING] > 0:
            _serving_tick(s, g, now)
            continue
        s.gpu[g, IDLE] = 1  # until a request comes, or a tool is done and somebody has to look for a place
        s.free[g] = s.target[NEXT_READY] if s.target[NEXT_READY] > now else NEVER
        if s.gpu[g, COME] < s.gpu[g, LISTED]:
            s.free[g] = min(s.free[g], max(now, s.arrival[s.lists[g, s.gpu[g, COME]]]))
    return now


@dataclass(frozen=True)
class Cluster:
    """Dedicated rollout GPUs, and serving ones with their own model; step times of both models, room for KV tokens."""

    dedicated: int
    serving: int
    serve: StepCost
    roll: StepCost
    room: int


@dataclass(frozen=True)
class Policy:
    """How far rollouts may go on serving GPUs."""

    guard: str = "slack"  # or "turns": ticks take turns; or "none": a rollout tick whenever there is one
    affine: bool = True
    places: int = 64  # trajectories a GPU; the paper has 16, with longer contexts
    headroom: float = 0.2
    ttft: float = 0.150
    tpot: float = 0.500
    prompts_first: bool = True  # no rollout tick while a request waits for its first token, whatever its slack: bursts
    margin: float = 0.1  # of both targets, which rollouts leave: for requests that come during a tick


@dataclass(frozen=True)
class Shared:
    """What came of it."""

    makespan: float
    done: Floats
    ttft: Floats  # of the requests that were answered
    tpot: Floats
    aborts: int
    reread: int
    halved: int
    borrowed: int  # turns that ran on serving GPUs


def share(
    work: Trajectories, requests: Requests, cluster: Cluster, policy: Policy, seconds: float = math.inf
) -> Shared:
    """Roll out beside serving; without trajectories serving goes on for `seconds`."""
    gpus, count = cluster.dedicated + cluster.serving, len(work)
    gpu, lists = np.zeros((gpus, 10), dtype=np.int64), np.zeros((gpus, len(requests) + 1), dtype=np.int64)
    held_back = int((1 - policy.headroom) * cluster.room)
    gpu[:, BUDGET] = cluster.room
    if policy.guard == "slack":
        gpu[cluster.dedicated :, BUDGET] = held_back
    for at in range(cluster.serving):
        mine = np.arange(len(requests))[at :: cluster.serving]
        lists[cluster.dedicated + at, : len(mine)] = mine
        gpu[cluster.dedicated + at, LISTED] = len(mine)
    traj = np.zeros((count + 1, 5), dtype=np.int64)
    traj[:, FIRST], traj[:, HOME] = work.first, -1
    chunk = 512 if policy.guard == "slack" else 8192
    guard = ("none", "slack", "turns").index(policy.guard)
    rule = [guard, policy.affine, policy.places, 8192, chunk, cluster.dedicated, cluster.room, held_back,
            policy.prompts_first]  # fmt: skip
    left = 1 - policy.margin
    ttft, tpot = np.full(len(requests), np.nan), np.zeros(len(requests))
    done, counts = np.full(count, np.inf), np.zeros(8, dtype=np.int64)
    end = play(State(
        turns=np.stack([work.prompt, work.output], axis=1), env=work.env, traj=traj, ready=np.zeros(count), done=done,
        queue=np.zeros(count + 1, dtype=np.int64), arrival=requests.arrival,
        asked=np.stack([requests.prompt, requests.output], axis=1).astype(np.int64), lists=lists, ttft=ttft, tpot=tpot,
        serve=cluster.serve.tokens, serve_coef=cluster.serve.packed(), roll=cluster.roll.tokens,
        roll_coef=cluster.roll.packed(), gpu=gpu, free=np.zeros(gpus),
        lane=np.zeros((gpus, LANES, 4), dtype=np.int64), stamp=np.zeros((gpus, LANES, 2)),
        spot=np.zeros((gpus, policy.places + 1, 4), dtype=np.int64), rule=np.array(rule, dtype=np.int64),
        target=np.array([0.0, left * policy.ttft, left * policy.tpot, seconds, 0.0]), counts=counts,
    ))  # fmt: skip
    late = np.isnan(ttft) & (requests.arrival + policy.ttft < end)  # not answered at all, and too late already
    ttft[late] = end - requests.arrival[late]
    answered = ~np.isnan(ttft)
    last = float(done.max(initial=0.0)) if np.isfinite(done).all() else float(end)
    return Shared(last, done, ttft[answered], tpot[answered], int(counts[ABORTS]), int(counts[REREAD]),
                  int(counts[HALVED]), int(counts[BORROWED]))  # fmt: skip


def p99(values: Any) -> float:
    """The 99th percentile; 0 of nothing."""
    return float(np.percentile(values, 99)) if len(values) else 0.0
