"""The compiled loop behind :mod:`assay.workloads.chat`: who sends the next request, and what its prompt shares.

Arrivals are given. Each is the next turn of the conversation that has been due longest, or, where none is due, a new
conversation. So the arrival process is exactly the one asked for, think times are met up to the wait for the next
arrival, and conversations begin as often as they must.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

BLOCK = 16
Column = NDArray[Any]


class Draws(NamedTuple):
    """What is random, drawn beforehand: one value a request in every column."""

    arrival: Column
    opening: Column  # tokens of a first prompt
    opening_output: Column
    added: Column  # tokens that the user adds in a later turn; negative: as much of the answer is dropped
    later_output: Column
    think: Column  # seconds
    stay: Column  # uniform: is there a next turn?
    system: Column  # index of the shared system prompt, -1: none
    agent: Column  # is a conversation that begins here an agent's?
    tool: Column  # tokens of a tool's result
    pause: Column  # seconds a tool takes
    step: Column  # uniform: does the agent's loop go on?
    volatile: Column  # has the head of the prompt changed?


class Rules(NamedTuple):
    """What is not: sizes in tokens."""

    root: int  # tokens that all prompts begin with
    system: Column  # tokens of each shared system prompt, in whole blocks
    included: bool  # first prompts count their system prompt
    stay_edges: Column  # a conversation goes on with probability stay[k] while its prompt is below edge k
    stay: Column
    context: int  # no prompt is longer
    window: int  # history beyond this is cut to half of it; 0: the conversation ends at `context`
    agent_stay: float


@njit(cache=True, nogil=True)
def _push(due: Any, who: Any, size: int, time: float, item: int) -> None:
    """Into a binary heap of `size` items, least time first."""
    at = size
    while at > 0:
        up = (at - 1) // 2
        if due[up] <= time:
            break
        due[at], who[at] = due[up], who[up]
        at = up
    due[at], who[at] = time, item


@njit(cache=True, nogil=True)
def _pop(due: Any, who: Any, size: int) -> Any:
    """The item due first; `size` counts it."""
    item = who[0]
    time, last = due[size - 1], who[size - 1]
    at, size = 0, size - 1
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and due[down + 1] < due[down]:
            down += 1
        if time <= due[down]:
            break
        due[at], who[at] = due[down], who[down]
        at = down
    due[at], who[at] = time, last
    return item


@njit(cache=True, nogil=True)
def _grow(tree: Any, found: int, parent: int, stop: int) -> Any:
    """A segment after `parent` up to `stop`, and how many there are then; nothing new where nothing is to be added."""
    begin = tree[2, parent] if parent >= 0 else 0
    if stop <= begin:
        return parent, found
    tree[0, found], tree[1, found], tree[2, found] = parent, begin, stop
    tree[3, found] = tree[3, parent] + 1 if parent >= 0 else 1
    return found, found + 1


class State(NamedTuple):
    """What is known so far, by request and then by conversation."""

    prompt: Column
    output: Column
    session: Column
    system: Column
    tip: Column  # the segment in which the full blocks of the prompt end
    answer: Column  # the segment that the answer fills in the next prompt
    last: Column  # latest request of a conversation
    base: Column  # what it shares with others: the last segment of its system prompt
    agent: Column
    heads: Column  # by system prompt: its segment
    tree: Column  # parent, start, stop and depth of segments


@njit(cache=True, nogil=True)
def _state(n: int, systems: int) -> Any:
    return State(
        prompt=np.empty(n, np.int32),
        output=np.empty(n, np.int32),
        session=np.empty(n, np.int32),
        system=np.empty(n, np.int32),
        tip=np.empty(n, np.int32),
        answer=np.full(n, -1, np.int32),
        last=np.empty(n, np.int32),
        base=np.empty(n, np.int32),
        agent=np.empty(n, np.bool_),
        heads=np.full(systems, -1, np.int32),
        tree=np.empty((4, 2 * n + systems + 2), np.int32),
    )


@njit(cache=True, nogil=True)
def _later(draws: Draws, rules: Rules, now: State, s: int, r: int, found: int) -> Any:
    """Request r is the next turn of s: the segment it continues, its prompt, and how many segments there are."""
    b = now.last[s]
    extra = draws.tool[r] if now.agent[s] else draws.added[r]
    size = max(now.prompt[b] + now.output[b] + extra, now.prompt[b] + 1)
    here = now.tip[b]
    full = rules.window > 0 and size > rules.window
    size = min(size, rules.context)
    if full or (now.agent[s] and draws.volatile[r]):  # behind the system prompt nothing is as it was
        here = now.base[s]
        if full:
            head = now.tree[2, here] if here >= 0 else 0
            size = max(head + (rules.window - head) // 2, 1)
    else:
        held = (now.prompt[b] + now.output[b]) // BLOCK * BLOCK
        if extra >= 0 and held <= size:
            here, found = _grow(now.tree, found, here, held)
            now.answer[b] = here if here != now.tip[b] else -1
    now.output[r], now.system[r] = draws.later_output[r], now.system[b]
    return here, size, found


@njit(cache=True, nogil=True)
def _opening(draws: Draws, rules: Rules, now: State, s: int, r: int, root: int, found: int) -> Any:
    """Request r opens conversation s; answers as :func:`_later` does."""
    z = draws.system[r]
    size = draws.opening[r]
    if z >= 0 and rules.root + rules.system[z] + BLOCK > (size if rules.included else rules.context):
        z = -1  # it does not fit
    if z >= 0 and now.heads[z] < 0:
        now.heads[z], found = _grow(now.tree, found, root, rules.root + rules.system[z])
    here = now.heads[z] if z >= 0 else root
    if not rules.included and here >= 0:
        size += now.tree[2, here]
    now.base[s], now.agent[s] = here, draws.agent[r]
    now.output[r], now.system[r] = draws.opening_output[r], z
    return here, min(size, rules.context), found


@njit(cache=True, nogil=True)
def _next(draws: Draws, rules: Rules, now: State, s: int, r: int) -> Any:
    """Whether conversation s goes on after request r, and the seconds until then."""
    size = now.prompt[r]
    if not rules.window and size + now.output[r] >= rules.context:
        return False, 0.0
    if now.agent[s]:
        return draws.step[r] < rules.agent_stay, draws.pause[r]
    return draws.stay[r] < rules.stay[np.searchsorted(rules.stay_edges, size)], draws.think[r]


@njit(cache=True, nogil=True)
def converse(draws: Draws, rules: Rules) -> Any:
    """Play all conversations; the state at the end, and how many segments its tree has."""
    n = len(draws.arrival)
    now = _state(n, len(rules.system))
    due, who = np.empty(n, np.float64), np.empty(n, np.int32)
    waiting, sessions = 0, 0
    root, found = _grow(now.tree, 0, -1, rules.root)
    for r in range(n):
        if waiting and due[0] <= draws.arrival[r]:
            s = _pop(due, who, waiting)
            waiting -= 1
            here, size, found = _later(draws, rules, now, s, r, found)
        else:
            s = sessions
            sessions += 1
            here, size, found = _opening(draws, rules, now, s, r, root, found)
        now.tip[r], found = _grow(now.tree, found, here, size // BLOCK * BLOCK)
        now.prompt[r], now.session[r], now.last[s] = size, s, r
        on, pause = _next(draws, rules, now, s, r)
        if on:
            _push(due, who, waiting, draws.arrival[r] + pause, s)
            waiting += 1
    return now, found


@njit(cache=True, nogil=True)
def paths(parent: Any, depth: Any, tip: Any) -> Any:
    """The path from the root to each tip."""
    offsets = np.zeros(len(tip) + 1, np.int64)
    for r in range(len(tip)):
        offsets[r + 1] = offsets[r] + (depth[tip[r]] if tip[r] >= 0 else 0)
    segments = np.empty(offsets[-1], np.int32)
    for r in range(len(tip)):
        here = tip[r]
        for at in range(offsets[r + 1] - 1, offsets[r] - 1, -1):
            segments[at] = here
            here = parent[here]
    return offsets, segments
