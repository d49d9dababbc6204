"""The rollout engine: agents' trajectories on instances with continuous batching, from event to event.

A trajectory alternates between an instance, which reads what is new and writes a turn, and its tool, which holds no
GPU. Its keys and values stay on the instance meanwhile, as long as there is room (those away longest go first); one
that comes back to another instance, or too late, is read again from the start. Step times are those of
:mod:`assay.sim.llm_cost`, whatever they come from.

Who goes where is one of five rules, all compiled:

- ``sticky``: the instance with the fewest trajectories a GPU, and there it stays (verl's and AReaL's);
- ``spread``: the same, decided anew at every turn, wherever the keys and values lie;
- ``hinted``: into the bucket that somebody predicted, then sticky;
- ``aged``: into the first bucket; at a tool's return on to the next, once it has written more than the bucket's limit
  (a multi-level feedback queue);
- ``learnt``: at a tool's return into the bucket that a tree of past returns speaks for (Libra's C-MLFQ).

>>> from assay.workloads.trajectories import draw
>>> pool = Pool.of("h200:llama-3-8b", count=2)
>>> found = play(draw(100, seed=0), pool)
>>> found.finished, 0 < found.busy <= 1
(100, True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.record.errors import BadInput
from assay.sim.layouts import read_layout
from assay.sim.llm_cost import StepCost
from assay.sim.step_times import step_time
from assay.training.engine import rollout_events as events
from assay.workloads.trajectories import Trajectories, joined

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
RULES = ("sticky", "spread", "hinted", "aged", "learnt")
CHUNK = 1024  # tokens of a prompt that an iteration reads
MOST = 256  # trajectories that run on an instance at once
BUCKETS = (5_000, 50_000)  # tokens up to which a trajectory is short, and long
NODES = 8192  # of the tree of returns


@dataclass(frozen=True)
class Pool:
    """Instances: of each its kind (an index into `costs`), its bucket and its GPUs.

    >>> pool = Pool.of("h200:llama-3-8b", 4) + Pool.of("h200:llama-3-8b:tp4", 1, bucket=1)
    >>> len(pool), pool.total_gpus
    (5, 8)
    """

    costs: tuple[StepCost, ...]
    kind: Ints
    bucket: Ints
    gpus: Ints

    @classmethod
    def of(cls, layout: str, count: int = 1, bucket: int = 0) -> Pool:
        """So many alike, of a layout such as `h200:qwen3-8b:tp2`."""
        return cls.made(step_time(layout).cost, count, bucket, read_layout(layout).ranks)

    @classmethod
    def made(cls, cost: StepCost, count: int = 1, bucket: int = 0, gpus: int = 1) -> Pool:
        """So many with this step time."""
        full = np.ones(count, dtype=np.int64)
        return cls((cost,), 0 * full, bucket * full, gpus * full)

    def __add__(self, other: Pool) -> Pool:
        kind = np.concatenate([self.kind, other.kind + len(self.costs)])
        return Pool(
            self.costs + other.costs, kind, np.concatenate([self.bucket, other.bucket]),
            np.concatenate([self.gpus, other.gpus]),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def total_gpus(self) -> int:
        """Of all instances."""
        return int(self.gpus.sum())


@dataclass(frozen=True)
class Rule:
    """Who goes where, and how iterations are put together."""

    name: str = "sticky"
    limits: tuple[int, ...] = BUCKETS
    chunk: int = CHUNK
    most: int = MOST
    quantum: int = 2048  # tokens that a task may have admitted in its turn
    rebuild: int = 50  # trajectories done between two trees
    recent: int = 5000  # trajectories that a tree is built from
    visits: int = 8  # a node of the tree that fewer came by says nothing
    full: int = 64  # trajectories a GPU, from which on an instance is left out of its bucket
    per_task: float = 0.0  # seconds that an iteration takes for every distinct task in it

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise BadInput(f"rule {self.name!r}: there are {', '.join(RULES)}")


@dataclass(frozen=True)
class Outcome:
    """What became of some trajectories."""

    makespan: float
    done: Floats  # when each was
    tokens: int  # written
    busy: float  # share of the makespan, over GPUs
    migrations: int
    reread: int  # tokens of contexts that were read again
    evictions: int

    @property
    def finished(self) -> int:
        """How many are done."""
        return int(np.isfinite(self.done).sum())

    @property
    def throughput(self) -> float:
        """Tokens written a second."""
        return self.tokens / self.makespan


class Rollout:
    """Trajectories on a pool; some are submitted, and the clock goes on until a group of them is done.

    `task` says for each whose it is (queues take turns between tasks), `group` what ends together.

    >>> from assay.workloads.trajectories import draw
    >>> run = Rollout(draw(10, seed=0), Pool.of("h200:llama-3-8b"), group=[0] * 5 + [1] * 5)
    >>> run.submit(np.arange(5), at=0.0)
    >>> run.until(), run.until()
    ([0], [])
    """

    def __init__(
        self, work: Trajectories, pool: Pool, rule: Rule | None = None, *, task: ArrayLike | None = None,
        group: ArrayLike | None = None, hint: ArrayLike | None = None,
    ) -> None:  # fmt: skip
        self.work, self.pool, self.rule = work, pool, rule or Rule()
        fits(work, pool)
        zeros = np.zeros(len(work), dtype=np.int64)
        columns = [zeros if one is None else np.asarray(one, dtype=np.int64) for one in (task, group, hint)]
        if any(len(one) != len(work) for one in columns):
            raise ValueError("task, group and hint: one number for each trajectory")
        self.state = _state(work, pool, self.rule, *columns)

    @property
    def now(self) -> float:
        """The clock."""
        return float(self.state.scalar[events.CLOCK])

    @property
    def busy(self) -> Floats:
        """Seconds that each instance has computed."""
        return self.state.pace[:, events.BUSY].copy()  # type: ignore[no-any-return]

    def submit(self, which: ArrayLike, at: float) -> None:
        """Let trajectories begin at this time, which is not before now."""
        events.submit(self.state, np.ascontiguousarray(which, dtype=np.int64), max(at, self.now))

    def until(self, time: float = math.inf) -> list[int]:
        """Go on until a group is done, or until `time`: the groups that are done now."""
        events.advance(self.state, time)
        count = int(self.state.counter[events.ENDED])
        self.state.counter[events.ENDED] = 0
        return [int(group) for group in self.state.ended[:count]]

    def outcome(self) -> Outcome:
        """Of all that is done by now."""
        s, done = self.state, self.state.done
        last = float(done[np.isfinite(done)].max(initial=0.0))
        written = int(self.work.written[np.isfinite(done)].sum())
        used = float((self.busy * self.pool.gpus).sum() / (self.pool.total_gpus * last)) if last else 0.0
        counts = [int(s.counter[at]) for at in (events.MIGRATIONS, events.REREAD, events.EVICTIONS)]
        return Outcome(last, done.copy(), written, used, *counts)


def play(
    work: Trajectories, pool: Pool, rule: Rule | None = None, *, hint: ArrayLike | None = None,
    past: Trajectories | None = None,
) -> Outcome:  # fmt: skip
    """All of them from the beginning, until the last is done; a rule that learns has seen `past` before."""
    if past is None or rule is None or rule.name != "learnt":
        run = Rollout(work, pool, rule, hint=hint)
        run.submit(np.arange(len(work)), 0.0)
        run.until()
        return run.outcome()
    known = len(past)
    run = Rollout(joined([past, work]), pool, rule, group=np.repeat([1, 0], [known, len(work)]))
    latest = np.arange(max(0, known - rule.recent), known)
    run.state.recent[latest % rule.recent] = latest
    run.state.counter[events.SEEN] = known
    events.learn(run.state)
    run.submit(np.arange(known, known + len(work)), 0.0)
    run.until()
    found = run.outcome()
    return replace(found, done=found.done[known:])


def steps(
    parts: Sequence[Trajectories], pool: Pool, rule: Rule | None = None, *, hints: Sequence[ArrayLike] | None = None
) -> list[Outcome]:
    """One RL step after another on one pool, each when the one before is done; what a rule has learnt stays.

    >>> from assay.workloads.trajectories import draw
    >>> parts = [draw(50, seed=0, step=step) for step in range(3)]
    >>> [one.finished for one in steps(parts, Pool.of("h200:llama-3-8b", 2), Rule("learnt"))]
    [50, 50, 50]
    """
    work = joined(list(parts))
    group = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    hint = None if hints is None else np.concatenate([np.asarray(one) for one in hints])
    run = Rollout(work, pool, rule, group=group, hint=hint)
    found: list[Outcome] = []
    start, first = 0.0, 0
    busy, before = np.zeros(len(pool)), np.zeros(3, dtype=np.int64)
    for at, part in enumerate(parts):
        run.submit(np.arange(first, first + len(part)), start)
        assert run.until() == [at]
        counts = run.state.counter[[events.MIGRATIONS, events.REREAD, events.EVICTIONS]]
        done, end = run.state.done[first : first + len(part)] - start, run.now
        used = float(((run.busy - busy) * pool.gpus).sum() / (pool.total_gpus * (end - start)))
        found.append(Outcome(end - start, done, int(part.output.sum()), used, *map(int, counts - before)))
        before, start, busy, first = counts, end, run.busy, first + len(part)
    return found


def fits(work: Trajectories, pool: Pool) -> None:
    """Raise BadInput where the longest trajectory is larger than the KV cache of some instance."""
    if not len(pool):
        raise BadInput("no instances to roll out on")
    least = min(cost.kv_tokens for cost in pool.costs)
    longest = int(work.length.max(initial=0))
    if longest > least:
        raise BadInput(
            f"the longest trajectory has {longest} tokens and an instance room for {least}: take larger instances "
            "(more tp), or leave it out"
        )


def _state(work: Trajectories, pool: Pool, rule: Rule, task: Ints, group: Ints, hint: Ints) -> Any:
    count, turns, size = len(work), len(work.prompt), len(pool)
    tasks = int(task.max(initial=0)) + 1
    table = min(len(cost.tokens) for cost in pool.costs)
    most = min(rule.most, table - 1 - rule.chunk)
    if most < 1:
        raise BadInput(f"iterations of {rule.chunk} tokens beside decodes: step times are known up to {table - 1}")
    rows = np.zeros((turns, 4), dtype=np.int32)
    rows[:, events.PROMPT], rows[:, events.OUTPUT], rows[:, events.RETURNED] = work.prompt, work.output, work.state
    if turns and rule.name in ("aged", "learnt"):
        total = np.cumsum(work.output)
        rows[:, events.REST] = np.repeat(total[work.first[1:] - 1], work.turns) - total

    def ints(*shape: int, full: int = 0) -> Ints:
        return np.full(shape, full, dtype=np.int64)

    traj = np.full((count, 14), -1, dtype=np.int32)
    columns: dict[int, Any] = dict.fromkeys((events.TURN, events.CONTEXT, events.LEVEL, events.HELD), 0)
    columns |= {events.FIRST: work.first[:-1], events.LAST: work.first[1:]}
    columns |= {events.TASK: task, events.GROUP: group, events.HINT: hint}
    for column, values in columns.items():
        traj[:, column] = values
    inst = ints(size, 22)
    room = np.array([pool.costs[kind].kv_tokens for kind in pool.kind], dtype=np.int64)
    columns = {events.KIND: pool.kind, events.ROOM: room, events.MOST: most, events.BUCKET: pool.bucket,
               events.GPUS: pool.gpus, events.OPEN: 1, events.OLDEST: -1, events.NEWEST: -1,
               events.FILLING: -1}  # fmt: skip
    for column, values in columns.items():
        inst[:, column] = values
    queue = ints(size, tasks, 4)
    queue[:, :, :2] = -1
    nodes, states = (NODES, work.states) if rule.name == "learnt" else (1, 1)
    settings = [RULES.index(rule.name), rule.chunk, len(rule.limits), rule.quantum, rule.rebuild, rule.visits,
                rule.full]  # fmt: skip
    return events.State(
        turns=rows, env=work.env, traj=traj,
        done=np.full(count, math.inf), left=np.bincount(group, minlength=1).astype(np.int64),
        ended=ints(int(group.max(initial=0)) + 1), coef=np.array([cost.packed() for cost in pool.costs]),
        tokens=np.array([cost.tokens[:table] for cost in pool.costs]), inst=inst, pace=np.zeros((size, 4)),
        due=np.full(size, math.inf), queue=queue, heap=ints(size, most + 1, 2), back_at=np.zeros(count + 1),
        back=ints(count + 1), served=ints(tasks), rule=np.array([*settings, *rule.limits], dtype=np.int64),
        counter=ints(7), scalar=np.array([0.0, rule.per_task]), recent=ints(rule.recent),
        child=ints(nodes, states, full=-1), nodes=np.zeros((nodes, 3)), ring=np.zeros((nodes + 1, events.RING)),
    )  # fmt: skip
