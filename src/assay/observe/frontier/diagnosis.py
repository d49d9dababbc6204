"""Which rank and which stage made the group late: a window of stage durations goes in, a diagnosis comes out.

The frontier (:mod:`assay.observe.frontier.advances`) says by how much each stage advanced the group and under whose
lead. Beside a healthy window, the stage whose advance grew and the rank that led while it did are the suspects. Leading
is not causing: a second rank may be as late, a role may be slow by design, ranks may not wait for each other where we
think they do. The label says so, and `next` says what would settle it. The frontier routes a profiler, it names no
cause.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.observe.frontier.advances import (
    WAIT,
    Bools,
    Floats,
    Frontier,
    Rows,
    between_syncs,
    checked,
    frontier,
    synchronising_in,
)
from assay.observe.frontier.seldom import LEADS, Seldom, one_of_many, seldom
from assay.observe.interface import Diagnosis, Suspect
from assay.record.errors import BadInput

__all__ = ["Frontier", "between_syncs", "diagnose", "frontier", "resolution", "rise"]

# Where a label begins. The paper has such gates but prints no thresholds; these are ours.
CLOSE = 0.02  # of a step: two ranks this close are as good as together
REGAINED = 0.5  # of the excess: what must be won if this rank were as fast as the next one
QUIET = 0.002  # of a step: an excess below it is none
NOISE = 0.05  # of a step: without a reference, the slowest of equals is behind the median by some such part
SPIKE = 4.0  # times the excess: what a single step may weigh when leaders are counted
MISSING = 0.05  # of all (step, rank)
SURE = 0.99865  # one-sided: what three standard errors leave below them when there are many samples
ROLES = 0.25  # of a step between one group of ranks and the next


@dataclass(frozen=True)
class _Seen:
    """A window as the labels look at it."""

    rows: Rows
    front: Frontier
    own: Floats  # (ranks, stages): a rank's mean time beyond the expected, waiting included
    excess: Floats  # (stages,): mean advance beyond the expected, ns
    loud: Bools  # (stages,): it is more than noise
    led: Floats  # (ranks, stages): share of the excess under each rank's lead
    seldom: Seldom  # what is late in few rows only
    step: float  # mean length of a row, ns


def diagnose(
    durations: ArrayLike, stages: Sequence[str], reference: ArrayLike | None = None,
    synchronising: Sequence[str] | None = None, roles: Sequence[str] | None = None, *,
    valid: ArrayLike | None = None, reference_valid: ArrayLike | None = None, ranks: Sequence[int] | None = None,
    size: int = 0, deferred: Sequence[str] = (), unsure: bool = False,
) -> Diagnosis:  # fmt: skip
    """Which (rank, stage) to look at, what kind of case it is, and how the window's time splits among the stages.

    `durations` (steps, ranks, stages) are the window, `reference` a healthy one; without it, ranks are compared with
    one another, and a slow-down of all of them cannot be seen. `synchronising`: the stages in which ranks wait for
    each other (`sync`, else `backward`). `roles`: a name for each rank where ranks differ by design. `deferred`:
    stages that only launch work on a device. `valid`: which (step, rank) reported. `size`: how many ranks the job has,
    where some have no column at all. `unsure`: rank what noise may explain too, below all that it does not, as a
    dashboard would.

    The accounting is in whole nanoseconds, so that it adds up exactly; a suspect's score in seconds a step. The label
    is `confirmed` (one rank), `shared` (all of them), or a reason to doubt: `co-critical`, `seldom`,
    `device-deferred`, `role-heterogeneous`, `incomplete`, `unaligned`, `unsure`. It is empty where no stage takes
    longer than noise explains.

    >>> healthy = np.tile(np.array([10, 20, 40, 5]) * 10**6, (20, 4, 1))
    >>> stalled = healthy.copy()
    >>> stalled[:, 2, 0] += 30 * 10**6            # rank 2 waits for its data
    >>> stalled[:, [0, 1, 3], 2] += 30 * 10**6    # and all others for rank 2
    >>> found = diagnose(stalled, ["data", "forward", "backward", "optimizer"], healthy)
    >>> found.label, found.suspects[0].entity, found.suspects[0].indicator, found.suspects[0].score
    ('confirmed', '2', 'data', 0.03)
    >>> sum(found.accounting.values()) == found.total
    True
    """
    d, mask = checked(durations, valid)
    waits = synchronising_in(stages) if synchronising is None else synchronising
    _agree(d, stages, (*waits, *deferred))
    rows = between_syncs(d, mask, stages, waits)
    usual = None
    if reference is not None:
        healthy, healthy_mask = checked(reference, reference_valid)
        if healthy.shape[1:] != d.shape[1:]:
            raise BadInput(f"frontier: the reference has {healthy.shape[1:]} ranks and stages, not {d.shape[1:]}")
        usual = between_syncs(healthy, healthy_mask, stages, waits)
    missing = 1 - float(mask.sum()) / (len(d) * max(size, d.shape[1])) if mask.size else 1.0
    names = [str(rank) for rank in (range(d.shape[1]) if ranks is None else ranks)]
    if not rows.valid.any() or (usual is not None and not usual.valid.any()):
        return Diagnosis(label="incomplete", why="no step was reported by any rank, here or in the reference")
    seen = _look(rows, usual, roles)
    spent = dict(zip(rows.stages, seen.front.advances.sum(0).tolist(), strict=True))
    total = float(seen.front.advances.sum())
    split = {name: float(spent[name]) for name in stages}
    doubts = _doubts(seen, usual, roles, missing)
    suspects = _suspects(seen, names, doubts, deferred, usual is not None)
    if unsure:
        suspects += _below_noise(seen, names)
    if not suspects:
        why = _why_nobody(usual is not None, waits, len(names))
        return Diagnosis(accounting=split, total=total, label=doubts, why=why)
    return Diagnosis(suspects, split, total, suspects[0].label)


def _agree(durations: NDArray[np.int64], stages: Sequence[str], named: Sequence[str]) -> None:
    """As many durations a step as stages, and none is named that is not there."""
    if durations.shape[2] != len(stages):
        raise BadInput(f"frontier: {durations.shape[2]} durations a step, but {len(stages)} stages are named")
    if odd := [name for name in named if name not in stages]:
        raise BadInput(f"frontier: no stage '{odd[0]}'; there are {', '.join(stages)}")


def _why_nobody(compared: bool, waits: Sequence[str], ranks: int) -> str:
    if compared:
        return "no stage takes longer than in the reference beyond its noise"
    if ranks < 2:
        return "a single rank, and no reference: nothing was compared, not even noise"
    why = "no rank takes longer than the others beyond its noise"
    mixed = next((name for name in waits if name != WAIT), None)  # slow there and waiting there look alike
    return why if mixed is None else f"{why}; {mixed} holds the wait too, whose is slow cannot be told"


def _look(rows: Rows, usual: Rows | None, roles: Sequence[str] | None) -> _Seen:
    front = frontier(rows.durations, rows.valid)
    there = rows.valid.any(1)
    mean_d = _mean_where(rows.durations, rows.valid)
    if usual is None:
        typical = _typical(rows, front, roles)  # (rows, ranks, stages)
        beyond, healthy = (front.advances - typical.max(1))[there], None
        own = mean_d - _mean_where(typical, rows.valid)
        excess, loud = rise(beyond, np.zeros((1, beyond.shape[1])))
        loud &= _not_only_the_slowest(rows, front, beyond, excess)
    else:
        healthy = frontier(usual.durations, usual.valid).advances[usual.valid.any(1)].astype(float)
        own = mean_d - _mean_where(usual.durations, usual.valid)
        excess, loud = rise(front.advances[there].astype(float), healthy)
        beyond = front.advances[there] - healthy.mean(0)
    step = float(front.advances[there].sum(1).mean())
    few = seldom(
        beyond, front.leaders[there], rows.durations.shape[1], CLOSE * step,
        None if healthy is None else healthy - healthy.mean(0),
    )  # fmt: skip
    now_and_then = few.found & ~np.array(rows.synchronising)
    excess, loud = np.where(now_and_then, np.maximum(excess, beyond.mean(0)), excess), loud | now_and_then
    weight = np.clip(beyond, 0.0, SPIKE * np.maximum(excess, 1.0))  # one long hiccup must not outvote the window
    leads = front.leaders[there][:, None, :] == np.arange(rows.durations.shape[1])[None, :, None]
    led = (leads * weight[:, None, :]).sum(0) / np.maximum(weight.sum(0), 1e-300)
    return _Seen(rows, front, own, excess, loud & (excess > QUIET * step), led, few, step)


def _not_only_the_slowest(rows: Rows, front: Frontier, beyond: Floats, excess: Floats) -> Bools:
    """Whether a stage's excess is more than this: somebody is always the slowest, and nobody twice as a rule.

    Of ranks that are alike the slowest is behind the median in every row. So, without a reference, one of them must
    lead more often than chance has it, or much be lost. Where all wait, what is lost by nobody in particular was
    never compared with anything.
    """
    there = rows.valid.any(1)
    leaders = front.leaders[there]
    counts = np.stack([((leaders == r) & (beyond > 0)).sum(0) for r in range(rows.durations.shape[1])])
    noise = NOISE * (2 if len(counts) == 2 else 1)  # of two, the slower one is behind the other, not behind the middle
    much = (excess > noise * float(front.advances[there].sum(1).mean())) & ~np.array(rows.synchronising)
    found: Bools = much | one_of_many(counts.max(0), counts.sum(0), len(counts))
    return found


def rise(now: Floats, before: Floats) -> tuple[Floats, Bools]:
    """By how much each column rose, and whether that is more than three standard errors.

    The mean sees what happens now and then; where a few hiccups drown it, the median sees what happens always.
    """
    mean, median = now.mean(0) - before.mean(0), np.median(now, 0) - np.median(before, 0)
    by_mean, by_median = resolution(now, before)
    steady = (median > by_median) & (mean <= by_mean)
    return np.maximum(np.where(steady, median, mean), 0.0), (mean > by_mean) | steady


def resolution(now: Floats, before: Floats) -> tuple[Floats, Floats]:
    """What a difference between two windows must exceed to be no noise: three standard errors, of mean and median.

    Of short windows more than three: their own scatter is a guess, and Student's law says how much worse (Welch).
    """
    by_mean = _bound(now.std(0), before.std(0), len(now), len(before))
    by_median = 1.25 * _bound(_scatter(now), _scatter(before), len(now), len(before))
    return by_mean, by_median


def _bound(now: Floats, before: Floats, n: int, m: int) -> Floats:
    """Three standard errors of a difference of means, or as many as leave the same chance with so few samples."""
    from scipy.special import stdtrit

    one, other = now**2 / max(n - 1, 1), before**2 / max(m - 1, 1)
    freedom = (one + other) ** 2 / np.maximum(one**2 / max(n - 1, 1) + other**2 / max(m - 1, 1), 1e-300)
    return np.asarray(stdtrit(np.maximum(freedom, 1.0), SURE) * np.sqrt(one + other), float)


def _scatter(values: Floats) -> Floats:
    """The standard deviation, by the median distance from the median."""
    spread: Floats = 1.4826 * np.median(np.abs(values - np.median(values, 0)), 0)
    return spread


def _mean_where(values: NDArray[np.generic], valid: Bools) -> Floats:
    if valid.all():  # the same without a copy
        whole: Floats = values.mean(0, dtype=float)
        return whole
    counts = np.maximum(valid.sum(0), 1)[:, None]
    means: Floats = np.einsum("wrs,wr->rs", values.astype(float), valid.astype(float)) / counts
    return means


def _typical(rows: Rows, front: Frontier, roles: Sequence[str] | None) -> Floats:
    """What a rank of its role takes for a stage in each row: the median, of two the quicker one.

    Where ranks wait, only what was not waiting: a rank that enters a synchronising stage early by its slack has waited
    at most that long in it.
    """
    own = rows.durations.astype(float)
    for s in np.nonzero(np.array(rows.synchronising))[0].tolist():
        if s:
            own[:, :, s] = np.maximum(own[:, :, s] - front.slack[:, :, s - 1], 0)
    own[~rows.valid] = np.nan
    typical = np.zeros_like(own)
    groups = np.zeros(own.shape[1], int) if roles is None else np.unique(list(roles), return_inverse=True)[1]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a row that nobody of the group reported
        for group in np.unique(groups):
            some = own[:, groups == group]
            two = (~np.isnan(some)).sum(1) == 2  # the middle of two is half of what one of them loses
            middle = np.where(two, np.nanmin(some, axis=1), np.nanmedian(some, axis=1))
            typical[:, groups == group] = np.nan_to_num(middle)[:, None]
    return typical


def _doubts(seen: _Seen, usual: Rows | None, roles: Sequence[str] | None, missing: float) -> str:
    """What makes the whole window doubtful, if anything."""
    if missing > MISSING:
        return "incomplete"
    if roles is None and _differ_by_design(usual or seen.rows, seen.step, alone=usual is not None):
        return "role-heterogeneous"
    whole: Bools = np.asarray(seen.rows.valid.all(1))
    if whole.any():
        # Ranks that leave together have rows of one length. Single rows jitter, but what a row is too long the next
        # one is too short: over a window only ranks that do not wait for each other drift apart.
        length = (seen.rows.durations.sum(2) * whole[:, None]).sum(0) / whole.sum()
        if float(np.ptp(length)) > max(CLOSE * seen.step, 0.5 * float(seen.excess.max())):
            return "unaligned"
    return ""


def _differ_by_design(rows: Rows, step: float, alone: bool) -> bool:
    """Whether the ranks fall into groups with other stage profiles; `alone`: a single rank is a group."""
    means = np.sort(_mean_where(rows.durations, rows.valid)[:, ~np.array(rows.synchronising)], axis=0)
    gaps = np.diff(means, axis=0)
    edge = 0 if alone else 1  # without a reference, one odd rank is a suspect and not a role
    inner = gaps[edge : len(gaps) - edge]
    return bool(inner.size and float(inner.max()) > ROLES * step)


def _suspects(
    seen: _Seen, names: Sequence[str], doubts: str, deferred: Sequence[str], compared: bool
) -> tuple[Suspect, ...]:
    stages = seen.rows.stages
    found: dict[tuple[int, int], tuple[float, str]] = {}
    loud = np.nonzero(seen.loud)[0].tolist()
    for s in loud:
        for r in np.nonzero(seen.led[:, s] > 0)[0].tolist():
            found[r, s] = float(seen.excess[s] * seen.led[r, s]), ""
    for s in loud:
        k = int(seen.led[:, s].argmax())
        label, rival = _label(seen, k, s, compared)
        if label != "shared" and any(name in deferred for name in stages[: s + 1]):
            label = "device-deferred"
        alone = label in ("confirmed", "seldom")  # said of one rank, not of those who lead now and then
        for r in range(len(names)):
            if (r, s) in found:
                found[r, s] = found[r, s][0], doubts or ("co-critical" if alone and r != k else label)
        if rival is not None:
            score = min(float(seen.excess[s]), float(seen.own[rival]))
            found[rival] = max((score, doubts or label), found.get(rival, (0.0, "")))
    order = sorted(found, key=lambda key: -found[key][0])
    if order and found[order[0]][1] not in ("confirmed", "shared"):  # then nothing smaller is certain either
        doubt = found[order[0]][1]
        found = {key: (score, doubt if label == "confirmed" else label) for key, (score, label) in found.items()}
    return tuple(
        Suspect(names[r], stages[s], found[r, s][0] / 1e9, found[r, s][1], _advice(stages[s], names[r], found[r, s][1]))
        for r, s in order
    )


def _below_noise(seen: _Seen, names: Sequence[str]) -> tuple[Suspect, ...]:
    """Who led in the stages that rose no more than noise does, by what was lost."""
    lost = np.where(seen.loud, 0.0, seen.excess) * seen.led
    order = [divmod(int(cell), lost.shape[1]) for cell in np.argsort(-lost, axis=None, kind="stable")]
    stages = seen.rows.stages
    return tuple(
        Suspect(names[r], stages[s], float(lost[r, s]) / 1e9, "unsure", _advice(stages[s], names[r], "unsure"))
        for r, s in order
        if lost[r, s] > 0
    )


def _label(seen: _Seen, k: int, s: int, compared: bool) -> tuple[str, tuple[int, int] | None]:
    """The case of rank k leading stage s, and who else would hold the group up if it did not."""
    rows, front = seen.rows, seen.front
    if rows.synchronising[s]:
        return ("shared" if compared and rows.stages[s] == WAIT else "co-critical"), None
    if compared and float(np.quantile(seen.own[:, s], 0.25, method="lower")) >= 0.5 * seen.excess[s]:
        return "shared", None
    entry = next((i for i in range(s, len(rows.stages)) if rows.synchronising[i]), len(rows.stages)) - 1
    others = np.where(rows.valid, front.slack[:, :, entry], np.iinfo(np.int64).max)
    both = rows.valid[:, k] & (rows.valid.sum(1) > 1)
    if not both.any():
        return "incomplete", None
    mine = others[both, k].copy()
    others = others[both]
    others[:, k] = np.iinfo(np.int64).max
    margin = others.min(1) - mine  # how much later than the next one k arrives where all must meet
    apart, certain = rise(margin[:, None].astype(float), np.zeros((1, 1)))
    if certain[0] and apart[0] > max(CLOSE * seen.step, REGAINED * seen.excess[s]) and seen.led[k, s] >= LEADS:
        return "confirmed", None
    late = _late_rows(seen, s)[both]
    if late.any() and float(np.median(margin[late])) > REGAINED * float(np.median(front.advances[both][late, s])):
        return ("confirmed" if seen.seldom.sure[s] else "seldom"), None
    rival = int(np.bincount(others.argmin(1), minlength=others.shape[1]).argmax())
    stage = int(seen.own[rival, : entry + 1].argmax())
    held = seen.own[rival, stage] > CLOSE * seen.step
    return "co-critical", (rival, stage) if held else None


def _late_rows(seen: _Seen, s: int) -> Bools:
    """The few rows in which a stage is late, of all; none where it is late in most, or on any rank."""
    late = np.zeros(len(seen.rows.valid), bool)
    if seen.seldom.found[s]:
        late[seen.rows.valid.any(1)] = seen.seldom.late[:, s]
    return late


_TOOLS = {
    "data": "a sampling profiler (py-spy) on the loader and its workers",
    "forward": "the PyTorch profiler on the forward pass",
    "backward": "the PyTorch profiler on the backward pass",
    "optimizer": "a sampling profiler (py-spy) on the optimizer step",
    "checkpoint": "the file system's latency (fsync, iostat)",
    WAIT: "the collective library's flight recorder",
}


def _advice(stage: str, rank: str, label: str) -> str:
    tool = _TOOLS.get(stage, "a sampling profiler (py-spy)")
    match label:
        case "shared":
            return f"{tool}, on any rank: all of them are slower"
        case "device-deferred":
            return f"the PyTorch profiler with device activities on rank {rank}: host time may hide an earlier stage"
        case "role-heterogeneous":
            return f"give the ranks' roles and look again; else {tool}, on rank {rank} and a rank of its kind"
        case "incomplete":
            return f"find the ranks that do not report; else {tool}, on rank {rank}"
        case "unaligned":
            return f"name the synchronising stages; else {tool}, on rank {rank}"
        case "unsure":
            return f"more steps: noise explains as much; then {tool}, on rank {rank}"
        case "seldom":
            return f"what does rank {rank} do in {stage} now and then? {tool}"
        case "co-critical" if stage == "backward":
            return "record the wait for gradients as a stage of its own (sync), or the flight recorder on all ranks"
        case "co-critical":
            return f"{tool}, on rank {rank} and on the rank that comes next: neither alone holds the group up"
    return f"{tool}, on rank {rank}"
