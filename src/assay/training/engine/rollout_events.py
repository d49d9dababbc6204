"""The compiled half of the rollout engine: instances that jump from one change of their batch to the next.

An instance iterates: every running trajectory gets a token, and one that has just come (a task, or a tool's answer)
is read beside them, so many tokens an iteration. While nobody comes or leaves, iterations take alpha, alpha + gamma,
alpha + 2 gamma … seconds (:mod:`assay.sim.llm_cost`), so n of them are one sum. An instance is looked at only

- when a trajectory has written its turn, or has been read (`_boundary`),
- when one comes to an instance that reads nobody (`_cut`: the iteration under way is the last of its kind).

Who comes at the very end of an iteration joins the next.
"""

# Compiled functions take whatever types Numba infers.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.sim.llm_cost import FOREVER, chunk_line, decode_line, launch_line

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Narrow = NDArray[np.int32]  # of what there is a row for each trajectory or turn: half as much to fetch
NEVER = math.inf
SOON = 1e-9  # seconds by which who comes too late for an iteration still gets into it: sums differ in their last bits

STICKY, SPREAD, HINTED, AGED, LEARNT = range(5)  # rules: see assay.training.engine.rollout
RING = 200  # of a node's latest remainders, over which its p90 is taken

# Columns of the arrays. Few arrays with wide rows: compiled calls copy each array's description, and a row is near.
FIRST, LAST, TASK, GROUP, HINT, TURN, CONTEXT, HOME, LEVEL, HELD, FOLLOWING, BEFORE, BEHIND, NEED = range(14)
PROMPT, OUTPUT, RETURNED, REST = range(4)
(
    KIND,
    ROOM,
    MOST,
    BUCKET,
    GPUS,
    OPEN,
    LOAD,
    RUNNING,
    PASSED,
    SEEN_TOKENS,
    RESERVED,
    SPARE,
    WAITING,
    NEXT_TASK,
    OLDEST,
    NEWEST,
    FILLING,
    FILLED,
    NEEDED,
    WIDTH,
    SPAN,
    DISTINCT,
) = range(22)
SINCE, ALPHA, GAMMA, BUSY = range(4)
HEAD, TAIL, DEFICIT, RUNS = range(4)
VISITED, TOTAL, P90 = range(3)
SEEN, NODES, ENDED, MIGRATIONS, REREAD, EVICTIONS, AWAY = range(7)
CLOCK, PER_TASK = range(2)
RULE, CHUNK, LEVELS, QUANTUM, REBUILD, VISITS, FULL, LIMITS = range(8)


class State(NamedTuple):
    """Everything, as arrays: trajectories by i, turns by k, instances by w, tasks by q, nodes of the tree by v."""

    turns: Narrow  # prompt, output, what came back, tokens still to be written after it (read only of what is done)
    env: Floats
    traj: Narrow
    done: Floats
    left: Ints  # of each group, trajectories that are not done
    ended: Ints  # groups that are done and were not told yet
    coef: Floats
    tokens: Floats
    inst: Ints
    pace: Floats
    due: Floats
    queue: Ints  # by instance and task: who waits first and last, the deficit, how many run
    heap: Ints  # by instance: (iteration in which the turn is written, trajectory)
    back_at: Floats  # heap of those away
    back: Ints
    served: Ints  # tokens by task
    rule: Ints
    counter: Ints
    scalar: Floats
    recent: Ints  # done last
    child: Ints  # of a node by what came back
    nodes: Floats
    ring: Floats


# -------------------------------------------------------------------------------------------------------------- heaps


@njit(forceinline=True, counted=False)
def _push(heap, size, end, i):
    """Into a heap of one instance, by the iteration in which a turn is written."""
    at = size
    while at > 0:
        up = (at - 1) // 2
        if heap[up, 0] < end or (heap[up, 0] == end and heap[up, 1] < i):
            break
        heap[at, 0], heap[at, 1] = heap[up, 0], heap[up, 1]
        at = up
    heap[at, 0], heap[at, 1] = end, i


@njit(forceinline=True, counted=False)
def _pop(heap, size):
    """Out of it: the first, `size` being what was in it."""
    found, last, key = heap[0, 1], heap[size - 1, 1], heap[size - 1, 0]
    at, size = 0, size - 1
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and (
            heap[down + 1, 0] < heap[down, 0]
            or (heap[down + 1, 0] == heap[down, 0] and heap[down + 1, 1] < heap[down, 1])
        ):
            down += 1
        if key < heap[down, 0] or (key == heap[down, 0] and last < heap[down, 1]):
            break
        heap[at, 0], heap[at, 1] = heap[down, 0], heap[down, 1]
        at = down
    heap[at, 0], heap[at, 1] = key, last
    return found


# ---------------------------------------------------------------------------------------------------- where one goes


@njit(forceinline=True, counted=False)
def _least(s, level):
    """The instance of a bucket (-1: of any) with the fewest trajectories a GPU; of any where all of those are full."""
    found, anywhere, lowest, lowest_anywhere = -1, -1, NEVER, NEVER
    for w in range(len(s.due)):
        if s.inst[w, OPEN]:
            load = s.inst[w, LOAD] / s.inst[w, GPUS]
            if load < lowest_anywhere:
                anywhere, lowest_anywhere = w, load
            if s.inst[w, BUCKET] == level and load < min(lowest, s.rule[FULL]):
                found, lowest = w, load
    return found if found >= 0 else anywhere


@njit(forceinline=True, counted=False)
def _bucket_of(s, tokens):
    """The first bucket whose limit holds so many tokens."""
    for level in range(s.rule[LEVELS] - 1):
        if tokens <= s.rule[LIMITS + level]:
            return level
    return s.rule[LEVELS] - 1


@njit(cache=True, counted=False)
def _p90(s, v):
    """Linear between ranks, as NumPy's percentile; kept until the tree is built anew."""
    if s.nodes[v, P90] < 0.0:
        n, bench = int(min(s.nodes[v, VISITED], RING)), len(s.nodes)  # the row behind the nodes' is to sort in
        rank = 0.9 * (n - 1)
        low = int(rank)
        kept = n - low  # the largest, ascending: the first of them and the one above are all that is asked for
        for at in range(n):
            value, to = s.ring[v, at], at
            if at < kept:
                while to > 0 and s.ring[bench, to - 1] > value:
                    s.ring[bench, to] = s.ring[bench, to - 1]
                    to -= 1
                s.ring[bench, to] = value
            elif value > s.ring[bench, 0]:
                to = 0
                while to + 1 < kept and s.ring[bench, to + 1] < value:
                    s.ring[bench, to] = s.ring[bench, to + 1]
                    to += 1
                s.ring[bench, to] = value
        below, above = s.ring[bench, 0], s.ring[bench, min(1, kept - 1)]
        s.nodes[v, P90] = below + (rank - low) * (above - below)
    return s.nodes[v, P90]


@njit(cache=True, counted=False)
def learn(s):
    """Build the tree of returns anew from the latest trajectories that are done."""
    for v in range(s.counter[NODES]):
        s.child[v, :] = -1
        s.nodes[v, VISITED] = 0
        s.nodes[v, TOTAL] = 0.0
        s.nodes[v, P90] = -1.0
    s.counter[NODES] = 1
    count, most = s.counter[SEEN], len(s.recent)
    for at in range(max(0, count - most), count):
        i, v = s.recent[at % most], 0
        for k in range(s.traj[i, FIRST], s.traj[i, LAST] - 1):
            to = s.child[v, s.turns[k, RETURNED]]
            if to < 0:
                if s.counter[NODES] == len(s.nodes):
                    break
                to = s.counter[NODES]
                s.counter[NODES] += 1
                s.child[v, s.turns[k, RETURNED]] = to
            v = to
            s.ring[v, int(s.nodes[v, VISITED]) % RING] = s.turns[k, REST]
            s.nodes[v, VISITED] += 1
            s.nodes[v, TOTAL] += s.turns[k, REST]
            s.nodes[v, P90] = -1.0


@njit(cache=True, counted=False)
def _learnt(s, i):
    """The bucket that returns so far speak for, or the one it is in where mean and p90 disagree or nobody came by."""
    v = 0
    for k in range(s.traj[i, FIRST], s.traj[i, FIRST] + s.traj[i, TURN]):
        to = s.child[v, s.turns[k, RETURNED]]
        if to < 0 or s.nodes[to, VISITED] < s.rule[VISITS]:
            break
        v = to
    if v == 0:
        return s.traj[i, LEVEL]
    level = _bucket_of(s, s.nodes[v, TOTAL] / s.nodes[v, VISITED])
    return level if level == _bucket_of(s, _p90(s, v)) else s.traj[i, LEVEL]


@njit(forceinline=True, counted=False)
def _route(s, i):
    """Where the turn is to be run."""
    rule = s.rule[RULE]
    if rule == SPREAD:
        return _least(s, -1)
    if s.traj[i, HOME] < 0:
        if rule == STICKY:
            return _least(s, -1)
        s.traj[i, LEVEL] = s.traj[i, HINT] if rule == HINTED else 0
        return _least(s, s.traj[i, LEVEL])
    level = s.traj[i, LEVEL]
    if rule == AGED:
        begin = s.traj[i, FIRST]
        written = s.turns[begin, REST] + s.turns[begin, OUTPUT] - s.turns[begin + s.traj[i, TURN] - 1, REST]
        level = max(level, _bucket_of(s, written))
    elif rule == LEARNT:
        level = _learnt(s, i)
    if level == s.traj[i, LEVEL] and s.inst[s.traj[i, HOME], OPEN]:
        return s.traj[i, HOME]
    s.traj[i, LEVEL] = level
    return _least(s, level if rule != STICKY else -1)


# ------------------------------------------------------------------------------------------------------------- memory


@njit(forceinline=True, counted=False)
def _forget(s, i):
    """Take a trajectory's keys and values out of its home."""
    w = s.traj[i, HOME]
    if s.traj[i, BEFORE] >= 0:
        s.traj[s.traj[i, BEFORE], BEHIND] = s.traj[i, BEHIND]
    else:
        s.inst[w, OLDEST] = s.traj[i, BEHIND]
    if s.traj[i, BEHIND] >= 0:
        s.traj[s.traj[i, BEHIND], BEFORE] = s.traj[i, BEFORE]
    else:
        s.inst[w, NEWEST] = s.traj[i, BEFORE]
    s.inst[w, SPARE] -= s.traj[i, HELD]
    s.traj[i, HELD] = 0


@njit(forceinline=True, counted=False)
def _keep(s, i, w, tokens):
    """Leave them there while it is away."""
    s.traj[i, HELD] = tokens
    s.inst[w, SPARE] += tokens
    s.traj[i, BEFORE], s.traj[i, BEHIND] = s.inst[w, NEWEST], -1
    if s.inst[w, NEWEST] >= 0:
        s.traj[s.inst[w, NEWEST], BEHIND] = i
    else:
        s.inst[w, OLDEST] = i
    s.inst[w, NEWEST] = i


# ---------------------------------------------------------------------------------------------------------- instances


@njit(forceinline=True, counted=False)
def _chosen(s, w):
    """The task whose first waiting trajectory is next: deficit round robin on tokens."""
    tasks = s.queue.shape[1]
    if tasks == 1:
        return 0
    q = s.inst[w, NEXT_TASK]
    while True:
        i = s.queue[w, q, HEAD]
        if i >= 0:
            k = s.traj[i, FIRST] + s.traj[i, TURN]
            if s.turns[k, PROMPT] + s.turns[k, OUTPUT] <= s.queue[w, q, DEFICIT]:
                s.inst[w, NEXT_TASK] = q
                return q
            s.queue[w, q, DEFICIT] += s.rule[QUANTUM]
        else:
            s.queue[w, q, DEFICIT] = 0
        q = (q + 1) % tasks


@njit(forceinline=True, counted=False)
def _admit(s, w):
    """Begin to read the next one, if there is room for its turn."""
    if s.inst[w, RUNNING] >= s.inst[w, MOST]:
        return
    q = _chosen(s, w)
    i = s.queue[w, q, HEAD]
    k = s.traj[i, FIRST] + s.traj[i, TURN]
    need = s.traj[i, CONTEXT] + s.turns[k, PROMPT] + s.turns[k, OUTPUT]
    if s.inst[w, RESERVED] + need > s.inst[w, ROOM] and s.inst[w, RUNNING] > 0:
        return
    s.queue[w, q, HEAD] = s.traj[i, FOLLOWING]
    if s.queue[w, q, HEAD] < 0:
        s.queue[w, q, TAIL] = -1
    s.inst[w, WAITING] -= 1
    s.queue[w, q, DEFICIT] -= s.turns[k, PROMPT] + s.turns[k, OUTPUT]
    s.inst[w, FILLED] = 0
    if s.traj[i, HELD] > 0:
        s.inst[w, FILLED] = s.traj[i, HELD]
        _forget(s, i)
    elif s.traj[i, CONTEXT] > 0:
        s.counter[REREAD] += s.traj[i, CONTEXT]
    s.inst[w, RESERVED] += need
    s.traj[i, NEED] = need
    while s.inst[w, RESERVED] + s.inst[w, SPARE] > s.inst[w, ROOM] and s.inst[w, OLDEST] >= 0:
        _forget(s, s.inst[w, OLDEST])
        s.counter[EVICTIONS] += 1
    s.inst[w, FILLING] = i
    s.inst[w, NEEDED] = s.traj[i, CONTEXT] + s.turns[k, PROMPT]


@njit(forceinline=True, counted=False)
def _plan(s, w, t):
    """What the instance does from now on, and until when."""
    if s.inst[w, FILLING] < 0 and s.inst[w, WAITING] > 0:
        _admit(s, w)
    b, i, width = s.inst[w, RUNNING], s.inst[w, FILLING], 0
    s.pace[w, SINCE] = t
    if b == 0 and i < 0:
        s.due[w], s.inst[w, SPAN] = NEVER, 0
        return
    n = FOREVER
    if b > 0:
        n = s.heap[w, 0, 0] - s.inst[w, PASSED]
    coef = s.coef[s.inst[w, KIND]]
    alpha, gamma, valid = decode_line(coef, b, s.inst[w, SEEN_TOKENS])
    if i >= 0:
        left = s.inst[w, NEEDED] - s.inst[w, FILLED]
        width = min(s.rule[CHUNK], left)
        n = min(n, max(1, left // s.rule[CHUNK]))
        more, slope, until = chunk_line(coef, width, s.inst[w, FILLED])
        alpha, gamma, valid = alpha + more, gamma + slope, min(valid, until)
    alpha += s.tokens[s.inst[w, KIND], b + width] + s.scalar[PER_TASK] * s.inst[w, DISTINCT]
    if i >= 0:
        alpha, gamma, valid = launch_line(coef, b, alpha, gamma, valid)
    n = min(n, valid)
    s.inst[w, WIDTH], s.inst[w, SPAN], s.pace[w, ALPHA], s.pace[w, GAMMA] = width, n, alpha, gamma
    s.due[w] = t + alpha * n + gamma * (n * (n - 1.0) / 2.0)


@njit(forceinline=True, counted=False)
def _cut(s, w, t):
    """Somebody waits: end what is planned with the iteration under way."""
    alpha, gamma, gone = s.pace[w, ALPHA], s.pace[w, GAMMA], t - s.pace[w, SINCE] - SOON
    if gone <= 0.0:
        k = 0
    else:
        if gamma > 0.0:
            half = alpha - gamma / 2.0
            k = int(math.ceil((math.sqrt(half * half + 2.0 * gamma * gone) - half) / gamma))  # noqa: RUF046
        else:
            k = int(math.ceil(gone / alpha))  # noqa: RUF046
        while k > 0 and alpha * (k - 1) + gamma * ((k - 1) * (k - 2.0) / 2.0) >= gone:
            k -= 1
        while alpha * k + gamma * (k * (k - 1.0) / 2.0) < gone:
            k += 1
    if k < s.inst[w, SPAN]:
        s.inst[w, SPAN] = k
        s.due[w] = s.pace[w, SINCE] + alpha * k + gamma * (k * (k - 1.0) / 2.0)


@njit(forceinline=True, counted=False)
def _arrive(s, i, t):
    """A trajectory's next turn: it looks for an instance and queues."""
    w = _route(s, i)
    if w != s.traj[i, HOME]:
        if s.traj[i, HOME] >= 0:
            s.counter[MIGRATIONS] += 1
            if s.traj[i, HELD] > 0:
                _forget(s, i)
        s.traj[i, HOME] = w
    s.inst[w, LOAD] += 1
    q = s.traj[i, TASK]
    s.traj[i, FOLLOWING] = -1
    if s.queue[w, q, TAIL] >= 0:
        s.traj[s.queue[w, q, TAIL], FOLLOWING] = i
    else:
        s.queue[w, q, HEAD] = i
    s.queue[w, q, TAIL] = i
    s.inst[w, WAITING] += 1
    if s.inst[w, FILLING] < 0 and s.inst[w, WAITING] == 1:
        if s.inst[w, RUNNING] == 0 and s.due[w] == NEVER:
            _plan(s, w, t)
        else:
            _cut(s, w, t)


@njit(forceinline=True, counted=False)
def _written(s, i, w, t):
    """A turn is written: the trajectory goes to its tool, or is done."""
    k, tokens = s.traj[i, FIRST] + s.traj[i, TURN], s.traj[i, NEED]
    s.inst[w, RESERVED] -= tokens
    s.inst[w, LOAD] -= 1
    s.served[s.traj[i, TASK]] += tokens - s.traj[i, CONTEXT]
    s.traj[i, CONTEXT] = tokens
    s.traj[i, TURN] += 1
    if k + 1 == s.traj[i, LAST]:
        s.done[i] = t
        s.recent[s.counter[SEEN] % len(s.recent)] = i
        s.counter[SEEN] += 1
        if s.rule[RULE] == LEARNT and s.counter[SEEN] % s.rule[REBUILD] == 0:
            learn(s)
        g = s.traj[i, GROUP]
        s.left[g] -= 1
        if s.left[g] == 0:
            s.ended[s.counter[ENDED]] = g
            s.counter[ENDED] += 1
        return
    _keep(s, i, w, tokens)
    if s.inst[w, RESERVED] + s.inst[w, SPARE] > s.inst[w, ROOM]:
        _forget(s, i)
        s.counter[EVICTIONS] += 1
    come_back(s, i, t + s.env[k])


@njit(forceinline=True, counted=False)
def come_back(s, i, t):
    """Note that a trajectory's next turn comes at t."""
    at = s.counter[AWAY]
    s.counter[AWAY] += 1
    while at > 0:
        up = (at - 1) // 2
        if s.back_at[up] < t or (s.back_at[up] == t and s.back[up] < i):
            break
        s.back_at[at], s.back[at] = s.back_at[up], s.back[up]
        at = up
    s.back_at[at], s.back[at] = t, i


@njit(cache=True, counted=False)
def submit(s, which, t):
    """Let these begin at t."""
    for i in which:
        come_back(s, i, t)


@njit(forceinline=True, counted=False)
def _next_back(s):
    found = s.back[0]
    s.counter[AWAY] -= 1
    size = s.counter[AWAY]
    key, last = s.back_at[size], s.back[size]
    at = 0
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and (
            s.back_at[down + 1] < s.back_at[down]
            or (s.back_at[down + 1] == s.back_at[down] and s.back[down + 1] < s.back[down])
        ):
            down += 1
        if key < s.back_at[down] or (key == s.back_at[down] and last < s.back[down]):
            break
        s.back_at[at], s.back[at] = s.back_at[down], s.back[down]
        at = down
    s.back_at[at], s.back[at] = key, last
    return found


@njit(forceinline=True, counted=False)
def _boundary(s, w):
    """What was planned is done: count it, let go who has written its turn, and plan on."""
    t, n, b, i = s.due[w], s.inst[w, SPAN], s.inst[w, RUNNING], s.inst[w, FILLING]
    s.pace[w, BUSY] += t - s.pace[w, SINCE]
    s.inst[w, PASSED] += n
    s.inst[w, SEEN_TOKENS] += b * n
    if i >= 0:
        s.inst[w, FILLED] += s.inst[w, WIDTH] * n
        if s.inst[w, FILLED] == s.inst[w, NEEDED]:
            k = s.traj[i, FIRST] + s.traj[i, TURN]
            s.inst[w, FILLING] = -1
            # its first token comes with the last of its prompt
            _push(s.heap[w], b, s.inst[w, PASSED] + s.turns[k, OUTPUT] - 1, i)
            s.inst[w, RUNNING] += 1
            s.inst[w, SEEN_TOKENS] += s.inst[w, NEEDED] + 1
            q = s.traj[i, TASK]
            if s.queue[w, q, RUNS] == 0:
                s.inst[w, DISTINCT] += 1
            s.queue[w, q, RUNS] += 1
    while s.inst[w, RUNNING] > 0 and s.heap[w, 0, 0] == s.inst[w, PASSED]:
        j = _pop(s.heap[w], s.inst[w, RUNNING])
        s.inst[w, RUNNING] -= 1
        s.inst[w, SEEN_TOKENS] -= s.traj[j, NEED]
        q = s.traj[j, TASK]
        s.queue[w, q, RUNS] -= 1
        if s.queue[w, q, RUNS] == 0:
            s.inst[w, DISTINCT] -= 1
        _written(s, j, w, t)
    _plan(s, w, t)


@njit(cache=True, counted=False, nogil=True)
def advance(s, until):
    """Go on until a group is done or the clock shows `until`; whether a group is."""
    while s.counter[ENDED] == 0:
        w, first = 0, s.due[0]
        for at in range(1, len(s.due)):
            if s.due[at] < first:
                w, first = at, s.due[at]
        comes = s.back_at[0] if s.counter[AWAY] > 0 else NEVER
        if min(first, comes) > until or (first == NEVER and comes == NEVER):
            s.scalar[CLOCK] = max(s.scalar[CLOCK], until) if until < NEVER else s.scalar[CLOCK]
            return False
        if comes <= first + SOON:  # who comes at the end of an iteration joins the next
            s.scalar[CLOCK] = max(s.scalar[CLOCK], comes)
            _arrive(s, _next_back(s), comes)
        else:
            s.scalar[CLOCK] = first
            _boundary(s, w)
    return True
