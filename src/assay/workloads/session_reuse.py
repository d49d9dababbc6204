"""What a session's turns share where a trace names sessions, but neither blocks nor text.

A later turn of a chat or an agent brings its history along: its prompt begins with the prompt before it and the answer
to that one. Lengths alone tell whether a trace can be read so:

- A prompt as long as the one before and its answer together, or longer, begins with both.
- One that is longer than the one before, but too short for its answer too, begins with the earlier prompt alone: what
  became of the answer is not known (engines drop a model's thinking, and what follows it then lies elsewhere).
- One that is no longer than the one before shares nothing that is known: its history was cut, or it has none.

Prompts that carry their history always grow; of lengths that have nothing to do with one another half do. So a trace
is read like this only where most later turns grow; else nothing is assumed, and a note says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.workloads.conversations import paths
from assay.workloads.prefixes import previous
from assay.workloads.requests import Ints, Prefixes, Requests

CARRIED = 0.75  # share of later turns that must grow: halfway between unrelated lengths and histories


def with_session_reuse(requests: Requests) -> Requests:
    """The requests with the prefixes that their sessions imply, or with a note that reuse is not modelled.

    A trace that says itself what prompts share, and one that is generated, is left as it is.

    >>> trace = Requests.of([0, 9, 20], [100, 300, 340], [50, 90, 20], session=np.array([0, 0, 0], np.int32))
    >>> tree = with_session_reuse(trace).prefixes
    >>> tree.start.tolist(), tree.stop.tolist()  # the first prompt, its answer, the second prompt but not its answer
    ([0, 100, 150], [100, 150, 300])
    >>> tree.segments[tree.offsets[2] :].tolist()
    [0, 1, 2]
    """
    if requests.prefixes is not None:
        return requests
    if requests.session is None:
        return _noted(requests, "the trace names neither shared blocks nor sessions: reuse of prefixes is not modelled")
    before = previous(requests.session) if requests.after is None else requests.after
    later = before >= 0
    if not later.any():
        return _noted(requests, "no session has a second turn: reuse of prefixes is not modelled")
    grows = later & (requests.prompt > requests.prompt[before])
    count, all_of = int(grows.sum()), int(later.sum())
    if count < CARRIED * all_of:
        why = f"only {count:,} of {all_of:,} later turns have longer prompts than the turn before"
        return _noted(requests, f"{why}, so they hardly carry their history: reuse of prefixes is not modelled")
    answered = grows & (requests.prompt.astype(np.int64) >= _ends(requests)[before])
    note = (
        f"reuse by session (assumed): {count:,} of {all_of:,} later turns begin with the prompt before them, "
        f"{int(answered.sum()):,} also with its answer; what sessions share with one another is not known"
    )
    tree = _tree(requests, np.where(grows, before, np.int32(-1)), answered)
    return replace(_noted(requests, note), prefixes=tree)


def _noted(requests: Requests, note: str) -> Requests:
    return replace(requests, source=replace(requests.source, notes=(*requests.source.notes, note)))


def _ends(requests: Requests) -> NDArray[np.int64]:
    """Where each request's answer ends."""
    return requests.prompt.astype(np.int64) + requests.output


def _tree(requests: Requests, before: Ints, answered: NDArray[np.bool_]) -> Prefixes:
    """One segment for what each continued prompt adds, one for each answer that a later prompt holds."""
    n, later = len(requests), before >= 0
    continued, held = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    continued[before[later]] = True
    held[before[answered]] = True
    # A request's own segment and its answer's are numbered one after the other, so parents come first.
    numbers = np.cumsum(np.stack([continued, held], axis=1).ravel()) - 1
    own, answer = (numbers.reshape(n, 2) * np.stack([continued, held], axis=1)).T
    ends = _ends(requests)
    above = np.where(later, np.where(answered, answer[before], own[before]), -1)
    shared = np.where(later, np.where(answered, ends[before], requests.prompt[before]), 0)
    size = int(continued.sum() + held.sum())
    parent, start, stop = (np.empty(size, np.int32) for _ in range(3))
    parent[own[continued]], start[own[continued]] = above[continued], shared[continued]
    stop[own[continued]] = requests.prompt[continued]
    parent[answer[held]], start[answer[held]] = own[held], requests.prompt[held]
    stop[answer[held]] = ends[held]
    tip = np.where(continued, own, above)
    offsets, segments = paths(parent, _depths(parent), tip)
    return Prefixes(parent, start, stop, offsets, segments, np.where(held, answer, -1).astype(np.int32))


def _depths(parent: Ints) -> NDArray[Any]:
    """Segments from the root to each, itself among them."""
    depths: list[int] = []
    for above in parent.tolist():
        depths.append(1 if above < 0 else depths[above] + 1)
    return np.array(depths, np.int64)
