"""GPUs that serve and roll out at once, tick by tick.

A tick is one iteration of the serving model or one of the rollout model; both lie on the GPU, and only one computes at
a time. Serving goes first. With the guard, a rollout tick is taken only if every serving request could still be in time
after it: for those that wait, arrival + TTFT - now - prefill > tick; for those that decode, last token + TPOT - now -
iteration > tick; prompts of rollouts are read 512 tokens a tick. Keys and values share one pool. When both together
come into the reserved headroom, the rollouts' budget is halved, the newest are put out (to be routed anew), and it
does not grow until the next RL step. Without the guard ticks take turns, prompts are read in large pieces, and rollouts
take what memory there is.

Turns are routed one by one: to the GPU that has the keys and values, if it has a place; to a dedicated GPU; to a serving
GPU that is eligible; or into the queue.
"""

# Compiled functions take whatever types Numba infers.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

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

# columns: serving lanes, rollout places, GPUs, settings
ARRIVED, LASTED = range(2)
WHO, LEFT, SEEN, TO_READ = range(4)
SERVING, ROLLING, USED_S, USED_R, BUDGET, FROZEN, TURN_OF = range(7)
GUARD, AFFINE, PLACES, CHUNK_S, CHUNK_R, DEDICATED, ROOM, HEADROOM_ROOM, RULED = range(9)
CLOCK, TTFT, TPOT, UNTIL = range(4)
ABORTS, REREAD, TICKS, HALVED, BORROWED, DONE = range(6)


@njit(cache=True)
def _iteration(tokens, coef, b, seen, chunk, before):
    """Seconds of one iteration: b decodes that see so many tokens, and a piece of one prompt."""
    alpha = tokens[min(b + chunk, len(tokens) - 1)] + decode_line(coef, b, seen)[0]
    if chunk > 0:
        alpha += chunk_line(coef, chunk, before)[0]
        alpha = launch_line(coef, b, alpha, 0.0, 1 << 60)[0]
    return alpha


@njit(cache=True)
def _prefill(tokens, coef, prompt, piece):
    """Seconds that reading a prompt takes when nothing else runs."""
    total, read = 0.0, 0
    while read < prompt:
        chunk = min(piece, prompt - read)
        total += _iteration(tokens, coef, 0, 0, chunk, read)
        read += chunk
    return total


@njit(cache=True)
def _in_time(g, now, tick, n, lane, stamp, cost_s, coef_s, gpu, wait, rule, target):
    """Whether every serving request of a GPU could still be in time after a rollout tick."""
    queued = 0.0
    seen, decoding = 0, 0
    for j in range(n):
        if lane[g, j, TO_READ] > 0:
            queued += _prefill(cost_s, coef_s, lane[g, j, TO_READ], rule[CHUNK_S])
            if stamp[g, j, ARRIVED] + target[TTFT] - now - queued <= tick:
                return False
        else:
            decoding += 1
            seen += lane[g, j, SEEN]
    step = _iteration(cost_s, coef_s, decoding, seen, 0, 0)
    for j in range(n):
        if lane[g, j, TO_READ] == 0 and stamp[g, j, LASTED] + target[TPOT] - now - step - queued <= tick:
            return False
    return True


@njit(cache=True)
def _place(i, home, gpu, rule, loads, need):
    """Where the next turn of a trajectory goes, -1 where nobody has a place."""
    dedicated, count = rule[DEDICATED], len(loads)
    if rule[AFFINE] and home[i] >= 0 and loads[home[i]] < rule[PLACES]:
        h = home[i]
        if h < dedicated or gpu[h, USED_R] + need <= gpu[h, BUDGET]:
            return h
    best, least = -1, rule[PLACES]
    for g in range(dedicated):
        if loads[g] < least:
            best, least = g, loads[g]
    if best >= 0:
        return best
    for g in range(dedicated, count):
        fits = gpu[g, USED_R] + need <= gpu[g, BUDGET]
        if loads[g] < least and fits and (rule[GUARD] == 0 or gpu[g, SERVING] < LANES // 2):
            best, least = g, loads[g]
    return best


@njit(cache=True)
def _put_out(g, keep, gpu, spot, turn, first, prompt, output, context, home, queue, counts):
    """Put the newest rollouts of a GPU out until the rest fits into `keep`; they are read anew elsewhere."""
    while gpu[g, ROLLING] > 0 and gpu[g, USED_R] > keep:
        j = gpu[g, ROLLING] - 1
        i = spot[g, j, WHO]
        k = first[i] + turn[i]
        gpu[g, USED_R] -= context[i] + prompt[k] + output[k]
        gpu[g, ROLLING] -= 1
        home[i] = -1
        queue[counts[DONE + 1]] = i
        counts[DONE + 1] += 1
        counts[ABORTS] += 1


@njit(cache=True)
def play(
    first, prompt, output, env, arrival, ask, reply, at_gpu, cost_s, coef_s, cost_r, coef_r, rule, target, gpu, lane,
    stamp, spot, ttft, tpot, done, counts, progress,
):  # fmt: skip
    """One RL step's trajectories, and serving beside them, until the last trajectory is done (or `until`)."""
    trajectories, gpus = len(first) - 1, len(gpu)
    turn, context = np.zeros(trajectories, np.int64), np.zeros(trajectories, np.int64)
    home = np.full(trajectories, -1, np.int64)
    ready = np.zeros(trajectories)  # when the next turn may begin
    state = np.zeros(trajectories, np.int64)  # 0 away, 1 queued, 2 on a GPU, 3 done
    queue = np.zeros(trajectories + 1, np.int64)
    free, loads = np.full(gpus, target[CLOCK]), np.zeros(gpus, np.int64)
    upto = np.zeros(gpus, np.int64)  # requests of each GPU's list that have come
    waits = np.zeros((gpus, 4096), np.int64)
    waiting = np.zeros(gpus, np.int64)
    finished, now = 0, target[CLOCK]
    for i in range(trajectories):
        ready[i] = now
    next_ready = now
    heads, idle = np.zeros(gpus, np.int64), np.zeros(gpus, np.int64)
    while (finished < trajectories or target[UNTIL] < NEVER) and now < target[UNTIL]:
        g = int(np.argmin(free))
        now = free[g]
        if now == NEVER or now >= target[UNTIL]:
            break
        if next_ready <= now:  # turns whose tools are done look for a place
            next_ready = NEVER
            for i in range(trajectories):
                if state[i] == 0:
                    if ready[i] <= now:
                        state[i] = 1
                        queue[counts[DONE + 1]] = i
                        counts[DONE + 1] += 1
                    else:
                        next_ready = min(next_ready, ready[i])
        left = 0
        for q in range(counts[DONE + 1]):
            i = queue[q]
            k = first[i] + turn[i]
            need = context[i] + prompt[k] + output[k]
            w = _place(i, home, gpu, rule, loads, need)
            if w < 0:
                queue[left] = i
                left += 1
                continue
            j = gpu[w, ROLLING]
            fresh = w != home[i]
            spot[w, j, WHO], spot[w, j, LEFT], spot[w, j, SEEN] = i, output[k], 0 if fresh else context[i]
            spot[w, j, TO_READ] = prompt[k] + (context[i] if fresh else 0)
            counts[REREAD] += context[i] if fresh else 0
            counts[BORROWED] += w >= rule[DEDICATED]
            gpu[w, ROLLING] += 1
            gpu[w, USED_R] += need
            loads[w] += 1
            home[i], state[i] = w, 2
            if idle[w]:
                free[w], idle[w] = now, 0
        counts[DONE + 1] = left
        # serving requests that have come since
        while upto[g] < progress[g, 1] and arrival[at_gpu[g, upto[g]]] <= now:
            waits[g, (heads[g] + waiting[g]) % 4096] = at_gpu[g, upto[g]]
            waiting[g] += 1
            upto[g] += 1
        while waiting[g] > 0 and gpu[g, SERVING] < LANES:
            r = waits[g, heads[g]]
            need = ask[r] + reply[r]
            over = gpu[g, USED_S] + gpu[g, USED_R] + need - (rule[HEADROOM_ROOM] if rule[GUARD] else rule[ROOM])
            if over > 0 and rule[GUARD] and gpu[g, FROZEN] == 0 and gpu[g, USED_R] > 0:
                gpu[g, FROZEN], gpu[g, BUDGET] = 1, gpu[g, USED_R] // 2
                counts[HALVED] += 1
                before = gpu[g, ROLLING]
                _put_out(g, gpu[g, BUDGET], gpu, spot, turn, first, prompt, output, context, home, queue, counts)
                loads[g] -= before - gpu[g, ROLLING]
                for q in range(counts[DONE + 1]):
                    state[queue[q]] = 1
            if gpu[g, USED_S] + gpu[g, USED_R] + need > rule[ROOM]:
                if rule[GUARD] == 0 or gpu[g, USED_R] == 0:
                    break
                before = gpu[g, ROLLING]  # the headroom is gone, too: serving first
                keep = max(0, gpu[g, USED_R] - need)
                _put_out(g, keep, gpu, spot, turn, first, prompt, output, context, home, queue, counts)
                loads[g] -= before - gpu[g, ROLLING]
                for q in range(counts[DONE + 1]):
                    state[queue[q]] = 1
            j = gpu[g, SERVING]
            lane[g, j, WHO], lane[g, j, LEFT], lane[g, j, SEEN], lane[g, j, TO_READ] = r, reply[r], 0, ask[r]
            stamp[g, j, ARRIVED], stamp[g, j, LASTED] = arrival[r], arrival[r]
            gpu[g, SERVING] += 1
            gpu[g, USED_S] += need
            heads[g], waiting[g] = (heads[g] + 1) % 4096, waiting[g] - 1
        # one tick
        idle[g] = 0
        n, m = gpu[g, SERVING], gpu[g, ROLLING]
        seconds = 0.0
        if m > 0:
            b, seen, chunk, reading = 0, 0, 0, -1
            for j in range(m):
                if spot[g, j, TO_READ] == 0:
                    b, seen = b + 1, seen + spot[g, j, SEEN]
                elif reading < 0:
                    reading, chunk = j, min(rule[CHUNK_R], spot[g, j, TO_READ])
            tick = _iteration(cost_r, coef_r, b, seen, chunk, spot[g, reading, SEEN] if reading >= 0 else 0)
            if n == 0:
                seconds = tick
            elif rule[GUARD]:
                if _in_time(g, now, tick, n, lane, stamp, cost_s, coef_s, gpu, waiting, rule, target):
                    seconds = tick
            elif gpu[g, TURN_OF] == 0:
                seconds = tick
        if seconds > 0.0:
            end = now + seconds
            gpu[g, TURN_OF] = 1
            counts[TICKS] += 1
            for j in range(m - 1, -1, -1):
                if j == reading:
                    spot[g, j, TO_READ] -= chunk
                    spot[g, j, SEEN] += chunk
                    if spot[g, j, TO_READ] > 0:
                        continue
                elif spot[g, j, TO_READ] > 0:
                    continue
                spot[g, j, LEFT] -= 1
                spot[g, j, SEEN] += 1
                if spot[g, j, LEFT] > 0:
                    continue
                i = spot[g, j, WHO]
                k = first[i] + turn[i]
                context[i] += prompt[k] + output[k]
                gpu[g, USED_R] -= context[i]
                loads[g] -= 1
                last = gpu[g, ROLLING] - 1
                for c in range(4):
                    spot[g, j, c] = spot[g, last, c]
                gpu[g, ROLLING] = last
                turn[i] += 1
                if k + 1 == first[i + 1]:
                    state[i], done[i] = 3, end
                    finished += 1
                else:
                    state[i], ready[i] = 0, end + env[k]
                    next_ready = min(next_ready, ready[i])
            free[g] = end
        elif n > 0:
            b, seen, chunk, reading = 0, 0, 0, -1
            for j in range(n):
                if lane[g, j, TO_READ] == 0:
                    b, seen = b + 1, seen + lane[g, j, SEEN]
                elif reading < 0:
                    reading, chunk = j, min(rule[CHUNK_S], lane[g, j, TO_READ])
            if reading >= 0:  # prompts first, alone: the time to the first token is what is tight
                b, seen = 0, 0
            end = now + _iteration(cost_s, coef_s, b, seen, chunk, lane[g, reading, SEEN] if reading >= 0 else 0)
            gpu[g, TURN_OF] = 0
            for j in range(n - 1, -1, -1):
                r = lane[g, j, WHO]
                if reading >= 0:
                    if j != reading:
                        continue
                    lane[g, j, TO_READ] -= chunk
                    lane[g, j, SEEN] += chunk
                    if lane[g, j, TO_READ] > 0:
                        continue
                    ttft[r] = end - arrival[r]
                else:
                    tpot[r] = max(tpot[r], end - stamp[g, j, LASTED])
                stamp[g, j, LASTED] = end
                lane[g, j, LEFT] -= 1
                lane[g, j, SEEN] += 1
                if lane[g, j, LEFT] <= 0:
                    gpu[g, USED_S] -= ask[r] + reply[r]
                    last = gpu[g, SERVING] - 1
                    for c in range(4):
                        lane[g, j, c] = lane[g, last, c]
                    stamp[g, j, ARRIVED], stamp[g, j, LASTED] = stamp[g, last, ARRIVED], stamp[g, last, LASTED]
                    gpu[g, SERVING] = last
            free[g] = end
        else:  # idle until somebody comes
            idle[g] = 1
            free[g] = arrival[at_gpu[g, upto[g]]] if upto[g] < progress[g, 1] else NEVER
            # turns come back to whichever GPU: look again when the next tool is done
            if next_ready < free[g] and next_ready > now:
                free[g] = next_ready
            elif counts[DONE + 1] > 0 and free[g] == NEVER and finished < trajectories:
                free[g] = now + 0.01
    for g in range(gpus):
        progress[g, 0] = upto[g]
    counts[DONE] = finished
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

    guard: bool = True
    affine: bool = True
    places: int = 16  # trajectories a GPU
    headroom: float = 0.2
    ttft: float = 0.150
    tpot: float = 0.500


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
    gpus = cluster.dedicated + cluster.serving
    gpu = np.zeros((gpus, 7), dtype=np.int64)
    rollouts = cluster.room if not policy.guard else int((1 - policy.headroom) * cluster.room)
    gpu[:, BUDGET] = rollouts
    lists = [np.arange(len(requests))[at :: max(1, cluster.serving)] for at in range(cluster.serving)]
    most = max([len(one) for one in lists], default=0)
    at_gpu, progress = np.zeros((gpus, most + 1), dtype=np.int64), np.zeros((gpus, 2), dtype=np.int64)
    for at, one in enumerate(lists):
        at_gpu[cluster.dedicated + at, : len(one)] = one
        progress[cluster.dedicated + at, 1] = len(one)
    rule = np.array([policy.guard, policy.affine, policy.places, 8192, 512 if policy.guard else 8192, cluster.dedicated,
                     cluster.room, rollouts, 0], dtype=np.int64)  # fmt: skip
    target = np.array([0.0, policy.ttft, policy.tpot, seconds])
    ttft, tpot = np.full(len(requests), np.nan), np.zeros(len(requests))
    done, counts = np.full(len(work), np.inf), np.zeros(8, dtype=np.int64)
    end = play(
        work.first, work.prompt, work.output, work.env, requests.arrival, requests.prompt.astype(np.int64),
        requests.output.astype(np.int64), at_gpu, cluster.serve.tokens, cluster.serve.packed(), cluster.roll.tokens,
        cluster.roll.packed(), rule, target, gpu, np.zeros((gpus, LANES, 4), dtype=np.int64),
        np.zeros((gpus, LANES, 2)), np.zeros((gpus, policy.places + 1, 4), dtype=np.int64), ttft, tpot, done, counts,
        progress,
    )  # fmt: skip
    late = np.isnan(ttft) & (requests.arrival + policy.ttft < end)  # not answered at all, and too late already
    ttft[late] = end - requests.arrival[late]
    answered = ~np.isnan(ttft)
    last = float(done.max(initial=0.0)) if np.isfinite(done).all() else float(end)
    return Shared(last, done, ttft[answered], tpot[answered], int(counts[ABORTS]), int(counts[REREAD]),
                  int(counts[HALVED]), int(counts[BORROWED]))  # fmt: skip


def p99(values: Any) -> float:
    """The 99th percentile; 0 of nothing."""
    return float(np.percentile(values, 99)) if len(values) else 0.0
