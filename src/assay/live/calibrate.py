"""What an iteration of the engines costs, from the log of a gateway before them.

The log says when each request was sent to which engine, when its first token came and when its last. So at any moment
it is known how many sequences an engine was decoding and how much KV they held, and the time of an iteration follows:

    mean gap between the tokens of an answer = iteration(mean batch, mean KV) + prompts computed meanwhile / its gaps
    time to first token of a prompt that came alone = iteration(batch, KV) + its prompt, and half an iteration more
        where others were decoding, which it had to wait for

Both are linear in what is sought, so one least-squares fit finds it all, with no coefficient below zero. A mean over
iterations is not one over time: long ones are few. So the fit is repeated with the iterations that it found. One
request in five is held back and only predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from assay.live.access_log import Line
from assay.record.errors import BadInput, unreadable
from assay.sim.llm_cost import StepCost
from assay.sim.profile_db import relative_nnls

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ROUNDS = 4
SHORTEST = 8  # tokens of an answer whose mean gap says something
HELD = 5  # one in so many is held back
KNOTS = np.array([128.0, 256.0, 512.0])  # tokens of an iteration from which each may cost more: computing, not reading
LARGEST = 8192  # tokens of an iteration
_MOMENT = 0.1  # of an iteration: what ends within it, ends together
WIDE = 30.0  # condition of the fit from which coefficients cannot be told apart


@dataclass(frozen=True)
class Calibration:
    """The cost, and what it rests on. Errors are medians of |predicted / seen - 1| over requests held back."""

    cost: StepCost
    requests: int
    engines: int
    gaps: int  # answers whose mean gap was used
    firsts: int  # prompts whose time to first token was
    itl_error: float
    ttft_error: float
    batch: tuple[float, float]  # sequences at once: what nine answers in ten met
    prompts: tuple[float, float]  # tokens computed for nine in ten of the first tokens
    notes: tuple[str, ...]

    @property
    def formula(self) -> str:
        """The iteration in a line, in milliseconds."""
        cost = self.cost
        token = float(cost.tokens[1] - cost.tokens[0])
        last = float(cost.tokens[-1] - cost.tokens[-2])
        return (
            f"{1e3 * cost.tokens[0]:.3g} ms + {1e3 * (token + cost.decode_seq):.3g} ms a sequence"
            f" + {1e6 * cost.decode_kv:.3g} ms per 1,000 tokens of KV; a prompt adds {1e3 * cost.prefill_fixed:.3g} ms"
            f" + {1e3 * (last + cost.prefill_token):.3g} ms a token"
        )


def read(path: Path) -> list[Line]:
    """The lines of a log; a last one that was cut off is left out."""
    try:
        rows = path.read_bytes().split(b"\n")
    except OSError as error:
        raise unreadable(path, error) from error
    decoder, lines = msgspec.json.Decoder(Line), list[Line]()
    for number, row in enumerate(rows, 1):
        if row.strip():
            try:
                lines.append(decoder.decode(row))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if number < len(rows):
                    raise BadInput(f"{path} line {number}: {error}; expected the log of 'assay gateway'") from error
    return lines


def fit(lines: Iterable[Line], *, kv_tokens: int = 0) -> Calibration:
    """A step time from the lines of a log; engines are taken to be alike.

    `kv_tokens` is the room that an engine has; 0: as much as was seen in use at once.
    """
    on = [line for line in lines if line.engine and line.tries and line.e2e > line.queue]
    engines = [_stays([line for line in on if line.engine == name]) for name in sorted({line.engine for line in on})]
    usable = sum(int(stays.told.sum()) for stays in engines)
    if usable < 4 * HELD:
        raise BadInput(
            f"{usable} streamed answers of at least {SHORTEST} tokens are too few to calibrate with; expected a log of "
            "'assay gateway' with hundreds"
        )
    found = None
    for _ in range(ROUNDS):
        gaps = _join([_gaps(stays, found) for stays in engines])
        firsts = _join([_firsts(stays) for stays in engines])
        found = _solve(gaps, firsts)
    assert found is not None
    room = kv_tokens or int(-(-max(map(_most_held, engines)) // 16) * 16)
    guess = f"room for {room:,} tokens of KV is what was in use at once; an engine says at its start what it has"
    notes = ([] if kv_tokens else [guess]) + _doubts(gaps, firsts, len(on) - usable)
    if all(line.cached_tokens is None for line in on):
        notes.append(
            "engines did not say what they found in their caches, so the gateway's guess stands for it: "
            "vLLM --enable-prompt-tokens-details, SGLang --enable-cache-report"
        )
    source = f"fitted to {len(on):,} requests on {len(engines)} engines, from a gateway's log"
    return Calibration(
        _cost(found, room, (source, *notes)), len(on), len(engines), int((~gaps.held).sum()), int((~firsts.held).sum()),
        _error(gaps, found), _error(firsts, found), _spread(gaps.rows[:, 1]), _spread(firsts.rows[:, 4]), tuple(notes),
    )  # fmt: skip


# ------------------------------------------------------------------------------- what the log says


class _Stays(NamedTuple):
    """Requests on one engine: from being sent there to the first token and to the last."""

    sent: Floats
    first: Floats
    end: Floats
    prompt: Floats
    new: Floats  # prompt tokens that were not in the cache
    output: Floats
    told: Bools  # whether the gaps between its tokens can be told
    held: Bools


def _stays(lines: Sequence[Line]) -> _Stays:
    lines = sorted(lines, key=lambda line: line.time + line.queue)
    whole = [line.status == 200 and line.stream and line.ttft is not None for line in lines]
    start = min(line.time for line in lines)  # small numbers keep their digits
    arrival = np.array([line.time - start for line in lines])
    sent = arrival + np.array([line.queue for line in lines])
    end = arrival + np.array([line.e2e for line in lines])
    # An answer that came in one piece, or not at all, was somewhere in between; it counts as decoding all the while.
    shown = [line.ttft if line.ttft is not None and ok else line.queue for line, ok in zip(lines, whole, strict=True)]
    first = np.clip(arrival + np.array(shown), sent, end)
    prompt = np.array([line.prompt_tokens for line in lines], float)
    cached = [line.matched_tokens if line.cached_tokens is None else line.cached_tokens for line in lines]
    output = np.array([line.completion_tokens for line in lines], float)
    told = np.array(whole) & (output >= SHORTEST) & (end > first) & np.array([line.tries == 1 for line in lines])
    held = np.arange(len(lines)) % HELD == HELD - 1
    return _Stays(sent, first, end, prompt, np.maximum(prompt - np.array(cached), 1.0), output, told, held)


class _Seen(NamedTuple):
    """One row an observation: what the time is a sum of, the time, and whether it is held back."""

    rows: Floats
    seconds: Floats
    held: Bools


def _join(parts: list[_Seen]) -> _Seen:
    return _Seen(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _decode(running: Floats, kv: Floats) -> Floats:
    """What an iteration of decodes is a sum of: itself, its sequences, their KV; its tokens beyond each knot."""
    none = np.zeros_like(running)
    beyond = np.maximum(running[:, None] - KNOTS, 0.0)
    return np.column_stack([np.ones_like(running), running, kv, none, none, beyond, none])


def _prefill(new: Floats, prompt: Floats, beside: Floats) -> Floats:
    """What a prompt adds to `beside` decodes: itself, its tokens, those beyond each knot, pairs that attend."""
    none = np.zeros_like(new)
    beyond = np.maximum((beside + new)[:, None] - KNOTS, 0.0) - np.maximum(beside[:, None] - KNOTS, 0.0)
    return np.column_stack([none, none, none, np.ones_like(new), new, beyond, new * (prompt - new / 2)])


def _gaps(stays: _Stays, found: Floats | None) -> _Seen:
    """The mean gap of each answer that tells."""
    told = stays.told
    gaps = stays.output[told] - 1
    mean = (stays.end - stays.first)[told] / gaps
    order = np.argsort(stays.first, kind="stable")
    # Prompts of the same iteration end a moment apart; half a gap tells them from those of the next.
    begin = np.searchsorted(stays.first[order], stays.first[told] + 0.5 * mean)
    end = np.maximum(np.searchsorted(stays.first[order], stays.end[told]), begin)
    sweep = _sweep(stays)
    prompts = _prefill(stays.new, stays.prompt, _beside(stays, sweep, order, found))
    work = np.concatenate([np.zeros_like(prompts[:1]), np.cumsum(prompts[order], axis=0)])
    running, kv = _averages(sweep, stays.first, prompts, found)
    return _Seen(_decode(running[told], kv[told]) + (work[end] - work[begin]) / gaps[:, None], mean, stays.held[told])


def _beside(stays: _Stays, sweep: _Sweep, order: NDArray[np.int64], found: Floats | None) -> Floats:
    """Tokens of the iteration that computed each prompt: of those who decoded, and of prompts before it in it."""
    moment = 1e-3 if found is None else _MOMENT * found[0]
    first, new = stays.first[order], stays.new[order]
    begins = np.flatnonzero(np.append(True, np.diff(first) > moment))  # prompts of one iteration end together
    which = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(first))))
    before = np.cumsum(new) - new
    beside = np.empty(len(first))
    beside[order] = before - before[begins][which] + (sweep.batch[sweep.place[order[begins]]] - 1)[which]
    return beside


def _firsts(stays: _Stays) -> _Seen:
    """The time to first token of prompts that were computed alone, beside not too many that decoded."""
    begun = np.searchsorted(np.sort(stays.sent), stays.first)
    done = np.searchsorted(np.sort(stays.first), stays.sent, side="right")
    alone = (begun - done <= 1) & stays.told
    sweep = _sweep(stays)
    at = np.searchsorted(sweep.times, stays.sent) - 1  # the last change before it was sent
    running, kv = (np.where(at >= 0, column[at], 0.0) for column in (sweep.batch, sweep.kv))
    if alone.any():
        alone &= running <= max(2.0, float(np.median(running[alone])))
    waits = 1.0 + 0.5 * (running > 0)
    rows = waits[:, None] * _decode(running, kv) + _prefill(stays.new, stays.prompt, running)
    return _Seen(rows[alone], (stays.first - stays.sent)[alone], stays.held[alone])


class _Sweep(NamedTuple):
    """From each change of the batch to the next: how many decode, the KV they hold, and how fast it grows."""

    times: Floats
    batch: Floats
    kv: Floats
    growth: Floats
    lasts: Floats
    place: NDArray[np.int64]  # of each request's first token, then of each one's last


def _sweep(stays: _Stays) -> _Sweep:
    seconds, count = stays.end - stays.first, len(stays.end)
    rate = np.divide(stays.output, seconds, out=np.zeros_like(seconds), where=seconds > 0)
    times = np.concatenate([stays.first, stays.end])
    order = np.argsort(times, kind="stable")
    place = np.empty(2 * count, np.int64)
    place[order] = np.arange(2 * count)
    sign = np.repeat([1.0, -1.0], count)[order]
    growth = np.cumsum(sign * np.tile(rate, 2)[order])
    leaps = np.cumsum(np.concatenate([stays.prompt, -(stays.prompt + rate * seconds)])[order])
    lasts = np.append(np.diff(times[order]), 0.0)
    kv = leaps + np.concatenate([[0.0], np.cumsum(growth * lasts)[:-1]])
    return _Sweep(times[order], np.cumsum(sign), np.maximum(kv, 0.0), growth, lasts, place)


def _averages(sweep: _Sweep, first: Floats, prompts: Floats, found: Floats | None) -> tuple[Floats, Floats]:
    """Sequences and KV tokens that each request decoded among, on average over iterations.

    Long iterations are few, so time is divided by what an iteration takes, less what prompts took of it until their
    `first` tokens. At first nothing is known of that, and the average is over time.
    """
    middle = sweep.kv + sweep.growth * sweep.lasts / 2
    weight = sweep.lasts
    if found is not None:
        step = np.maximum(_decode(sweep.batch, middle) @ found, 1e-9)
        taken = np.zeros_like(step)
        before = np.searchsorted(sweep.times, first - _MOMENT * found[0]) - 1
        np.add.at(taken, np.maximum(before, 0), prompts @ found)
        weight = np.maximum(sweep.lasts - taken, np.minimum(sweep.lasts, step)) / step
    columns = np.stack([weight, weight * sweep.batch, weight * middle], 1)
    sums = np.concatenate([np.zeros((1, 3)), np.cumsum(columns, axis=0)])
    opens, ends = np.split(sweep.place, 2)
    iterations, sequences, tokens = (sums[ends] - sums[opens]).T
    some = np.maximum(iterations, 1e-12)
    return sequences / some, tokens / some


def _most_held(stays: _Stays) -> float:
    """The most KV tokens in use at once, if answers took their room from the start."""
    order = np.argsort(np.concatenate([stays.sent, stays.end]), kind="stable")
    size = stays.prompt + stays.output
    return float(np.cumsum(np.concatenate([size, -size])[order]).max())


# ------------------------------------------------------------------------------- what follows from it


def _solve(gaps: _Seen, firsts: _Seen) -> Floats:
    """Least relative squares, each kind of time weighted by how well it can be predicted at all.

    A first token waits for anything up to a whole iteration, a mean gap for nothing: where there are enough gaps, first
    tokens decide only what gaps leave open. What is far off counts nothing: a stall of the network, a slow client.
    """
    kinds = [(seen.rows[~seen.held], seen.seconds[~seen.held]) for seen in (gaps, firsts)]
    rows, seconds = (np.concatenate(column) for column in zip(*kinds, strict=True))
    found = relative_nnls(list(rows.T), seconds)
    for _ in range(2):
        design, target = [], []
        for rows, seconds in kinds:
            expected = rows @ found
            off = np.abs(seconds / expected - 1)
            usual = max(float(np.median(off)), 0.002) if len(off) else 1.0
            near = off <= max(6 * usual, 0.05)
            design.append(rows[near] / (usual * expected[near, None]))
            target.append(seconds[near] / (usual * expected[near]))
        x = np.concatenate(design)
        scale = np.maximum(np.linalg.norm(x, axis=0), 1e-300)
        found = np.asarray(nnls(x / scale, np.concatenate(target))[0] / scale)
    return found


def _cost(found: Floats, room: int, notes: tuple[str, ...]) -> StepCost:
    """As a `StepCost`: decodes and prompts share the price of a token as far as it is the same."""
    base, sequence, kv, prompt, token, *rest = (float(x) for x in found)
    beyond, pair = np.array(rest[:-1]), rest[-1]
    common = min(sequence, token)
    n = np.arange(LARGEST + 1, dtype=float)
    return StepCost(
        tokens=base + common * n + np.maximum(n[:, None] - KNOTS, 0.0) @ beyond, decode_seq=sequence - common,
        decode_kv=kv, prefill_fixed=prompt, prefill_token=token - common, prefill_pair=pair, kv_tokens=room,
        notes=notes,
    )  # fmt: skip


def _error(seen: _Seen, found: Floats) -> float:
    rows, seconds = seen.rows[seen.held], seen.seconds[seen.held]
    return float(np.median(np.abs(rows @ found / seconds - 1))) if len(seconds) else float("nan")


def _spread(values: Floats) -> tuple[float, float]:
    if not len(values):
        return 0.0, 0.0
    low, high = np.quantile(values, [0.05, 0.95])
    return float(low), float(high)


def _doubts(gaps: _Seen, firsts: _Seen, unused: int) -> list[str]:
    """What the log cannot tell, and which traffic would."""
    notes = []
    if unused:
        notes.append(f"{unused:,} requests say nothing of gaps: short, not streamed, failed, or tried twice")
    low, high = _spread(gaps.rows[:, 1])
    if high < 3 * low:
        notes.append(
            f"batches were all of {low:.1f} to {high:.1f} sequences, others are guessed: send bursts and pauses"
        )
    columns = gaps.rows[:, :3] / gaps.seconds[:, None]
    if np.linalg.cond(columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)) > WIDE:
        notes.append(
            "what an iteration, a sequence and its KV cost is hard to tell apart here: send short and long prompts, "
            "few and many at once"
        )
    fewest, longest = _spread(firsts.rows[:, 4])
    if len(firsts.held) < 4 * HELD:
        notes.append(f"{len(firsts.held)} prompts came alone, and say what one costs: send some one at a time")
    elif longest < 4 * fewest:
        notes.append(
            f"prompts that came alone had {fewest:,.0f} to {longest:,.0f} tokens: send shorter and longer ones"
        )
    return notes
