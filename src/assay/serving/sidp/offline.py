"""A batch of requests run to completion on one replica: continuous batching, bounded by the KV cache.

Everything has arrived, nobody waits for a first token: what counts is when the last request is done. The replica
admits requests in order while their final length fits into the KV cache (lengths are reserved, so nothing is ever
preempted), computes prompts in chunks beside the running decodes, and otherwise decodes. Between two finishes the
batch does not change, so the loop jumps there, at most `stride` iterations at a time; the time of a stretch is that of
its middle, which is exact wherever the step's time is linear in the context.

What an iteration costs is more than one `StepCost` can say when weights are streamed or activations travel, so the
replica is described by a `Pace`: the slowest of computing, fetching and memory, or another way of computing it where
that is faster.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PLAIN, STREAM, SEND = range(3)  # weights at hand; weights fetched; activations sent
LEFT, HELD, WHERE, AHEAD = range(4)  # of a running sequence: outputs to come, KV reserved, context, prompt ahead


@dataclass(frozen=True)
class Pace:
    """The time of an iteration with n tokens, of which b decode with contexts adding up to S, and chunks of prompts:

        stream   ends + max(layers[n] + attention, fetch, memory + kv_memory S)
        send     ends + union[n] + attention

    where attention = seq b + kv S + pair (query-key pairs of the chunks). Weights at hand are `fetch = memory = 0`.
    """

    layers: Floats
    kv: float
    pair: float
    kv_tokens: int
    ends: float = 0.0
    seq: float = 0.0
    fetch: float = 0.0
    memory: float = 0.0
    kv_memory: float = 0.0
    union: Floats | None = None  # None: activations stay where they are
    hysteresis: float = 0.05  # a mode is left when the other is faster by this share
    streams: bool = True  # False: always send (for comparisons)

    def __post_init__(self) -> None:
        if self.union is not None and len(self.union) != len(self.layers):
            raise ValueError("union and layers must cover the same numbers of tokens")
        if not self.streams and self.union is None:
            raise ValueError("a replica that does not stream needs `union`, the time of sending")


@dataclass(frozen=True)
class Done:
    """What a batch took."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    iterations: int
    batch_mean: float  # decodes, over time
    sent_share: float  # of the time, in the mode that sends activations
    switches: int
    full_share: float  # of the time, with requests waiting for KV: the replica was KV-bound

    @property
    def tokens_per_second(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.seconds


def run(
    pace: Pace, prompt: Ints, output: Ints, *, max_seqs: int = 1024, max_tokens: int = 8192, block: int = 16,
    stride: int = 64,
) -> Done:  # fmt: skip
    """Run all requests to completion.

    >>> flat = Pace(layers=np.full(9000, 0.01), kv=0.0, pair=0.0, kv_tokens=320)
    >>> done = run(flat, np.array([100, 100]), np.array([50, 50]))  # both fit: a prefill, 49 decode iterations
    >>> round(done.seconds, 6), done.iterations
    (0.5, 50)
    >>> tight = Pace(layers=np.full(9000, 0.01), kv=0.0, pair=0.0, kv_tokens=160)
    >>> round(run(tight, np.array([100, 100]), np.array([50, 50])).seconds, 6)  # one after the other
    1.0

    Raises:
        ValueError: a request that can never fit, or a batch larger than the pace covers.
    """
    prompt, output = np.asarray(prompt, np.int64), np.asarray(output, np.int64)
    need = -(-(prompt + output) // block) * block
    if len(need) and int(need.max()) > pace.kv_tokens:
        raise ValueError(f"a request needs {need.max()} tokens of KV, the replica has room for {pace.kv_tokens}")
    if max_tokens >= len(pace.layers):
        raise ValueError(f"max_tokens is {max_tokens}, the pace covers up to {len(pace.layers) - 1}")
    union = pace.layers if pace.union is None else pace.union
    modes = (1 if pace.streams else 0) + (2 if pace.union is not None else 0)
    numbers = np.array(
        [pace.ends, pace.seq, pace.kv, pace.pair, pace.fetch, pace.memory, pace.kv_memory, pace.hysteresis]
    )
    total = _run(pace.layers, union, numbers, modes, prompt, output, need, pace.kv_tokens, max_seqs, max_tokens, stride)
    seconds, iterations, sent, weighted, switches, full = total
    share = 1.0 / seconds if seconds else 0.0
    return Done(
        float(seconds), int(prompt.sum()), int(output.sum()), int(iterations), float(weighted * share),
        float(sent * share), int(switches), float(full * share),
    )  # fmt: skip


@njit(cache=True)
def _time(layers, union, numbers, modes, mode, n, b, context, pairs):
    """(seconds, mode) of one iteration; the mode changes only for a clear gain."""
    attention = numbers[1] * b + numbers[2] * context + numbers[3] * pairs
    stream = max(layers[n] + attention, numbers[4], numbers[5] + numbers[6] * context)
    send = union[n] + attention
    if modes == 1:
        return numbers[0] + stream, STREAM
    if modes == 2:
        return numbers[0] + send, SEND
    if mode == SEND:
        mode = STREAM if stream < send * (1.0 - numbers[7]) else SEND
    else:
        mode = SEND if send < stream * (1.0 - numbers[7]) else STREAM
    return numbers[0] + (send if mode == SEND else stream), mode


@njit(cache=True)
def _run(layers, union, numbers, modes, prompt, output, need, room, max_seqs, max_tokens, stride):
    running = np.empty((4, max_seqs), np.int64)
    count, following, used = 0, 0, 0
    seconds, iterations, sent, weighted, switches, full = 0.0, 0, 0.0, 0.0, 0, 0.0
    mode = STREAM
    while count or following < len(prompt):
        while following < len(prompt) and count < max_seqs and used + need[following] <= room:
            running[LEFT, count], running[HELD, count] = output[following], need[following]
            running[WHERE, count], running[AHEAD, count] = 0, prompt[following]
            used += need[following]
            count += 1
            following += 1
        b, context, soonest, chunks, pairs = _work(running, count, max_tokens)
        steps = 1 if chunks else min(soonest, stride)
        middle = context + b * (0.5 * (steps - 1))  # every step adds a token to each context
        took, new = _time(layers, union, numbers, modes, mode, b + chunks, b, middle, pairs)
        switches += new != mode
        mode = new
        took *= steps
        seconds += took
        iterations += steps
        weighted += b * took
        sent += took if mode == SEND else 0.0
        full += took if following < len(prompt) and count < max_seqs else 0.0
        count, freed = _advance(running, count, steps, max_tokens - b)
        used -= freed
    return seconds, iterations, sent, weighted, switches, full


@njit(cache=True)
def _work(running, count, max_tokens):
    """What the next iteration has to do: sequences that decode, their contexts, the steps until one of them ends; the
    prompt tokens that fit beside them, in order of admission, and the pairs of tokens that attend to each other."""
    b, context, soonest = 0, 0, 1 << 60
    for i in range(count):
        if running[AHEAD, i] == 0:
            b += 1
            context += running[WHERE, i]
            soonest = min(soonest, running[LEFT, i])
    budget, pairs = max_tokens - b, 0.0
    for i in range(count):
        chunk = min(running[AHEAD, i], max(budget, 0))
        pairs += chunk * (running[WHERE, i] + 0.5 * chunk)
        budget -= chunk
    return b, context, soonest, max_tokens - b - budget, pairs


@njit(cache=True)
def _advance(running, count, steps, budget):
    """Let everybody take so many steps, prompts within the budget; how many remain, and the KV tokens set free."""
    kept, freed = 0, 0
    for i in range(count):
        if running[AHEAD, i]:
            chunk = min(running[AHEAD, i], max(budget, 0))
            budget -= chunk
            running[AHEAD, i] -= chunk
            running[WHERE, i] += chunk
            if chunk and running[AHEAD, i] == 0:
                running[LEFT, i] -= 1  # the last chunk of a prompt yields the first token
                running[WHERE, i] += 1
        else:
            running[LEFT, i] -= steps
            running[WHERE, i] += steps
        if running[LEFT, i] > 0 or running[AHEAD, i] > 0:
            running[:, kept] = running[:, i]
            kept += 1
        else:
            freed += running[HELD, i]
    return kept, freed
