"""The operations of a training step as a graph in arrays, and what each of them is priced by.

Ranks that do the same are one. What is left are columns: pipelines of `pp` stages, each standing for many. In every
column each stage works through its schedule's slots; a slot whose ranks exchange something within the layers (tensor,
context and expert parallelism) ends when the slowest of its group has computed, plus the exchange. Activations and
gradients travel on wires of their own, one transfer at a time in each direction. Weights are gathered while the first
forward pass runs, gradients reduced while the last backward pass runs, each a layer ahead or behind: a pass is cut in
two there, at its first or last layer, which for equal layers gives the exact end. Then the norm of all gradients is
known, and everybody updates.

The graph depends on the schedule, on the number of stages, microbatches and columns, and on who is grouped with whom;
it is kept. A layout only fills in prices, so hundreds of layouts are swept over one graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from assay.record.errors import BadInput
from assay.sim.dag import Cyclic, Dag
from assay.training.engine.schedules import NAMES, B, F, W
from assay.training.interface import Floats, Ints, Schedule

COMP, SYNC, SEND, GATHER, REDUCE, NORM, UPDATE = range(7)
KINDS = ("compute", "wires", "send", "gather", "reduce", "norm", "update")
WHOLE, HEAD, REST = range(3)  # of a pass that is cut in two
SENDING = 20 / 132  # of a device's multiprocessors, while another microbatch computes (DeepSeek-V3, section 3.2.2)
PASSES = 9  # 3 passes x whole, head, rest


Joined = tuple[tuple[int, int], ...]  # what and which part, of passes that overlap


@dataclass(frozen=True)
class Prices:
    """Where in a layout's vector of prices each kind of operation finds its own; for `parts` parts of the model.

    `hops` are the pairs of stages between which something is sent, `joined` the passes that run overlapped.
    """

    parts: int
    hops: tuple[tuple[int, int], ...] = ()
    joined: tuple[Joined, ...] = ()

    def passes(self, what: Ints, part: Ints, cut: Ints) -> Ints:
        """Computing of a pass, all of it or a piece."""
        return part * PASSES + what * 3 + cut

    def wires(self, what: Ints, part: Ints, cut: Ints) -> Ints:
        """Its exchanges."""
        return self.parts * PASSES + self.passes(what, part, cut)

    def data(self, kind: int, part: Ints, cut: Ints) -> Ints:
        """Gathering and reducing; an update."""
        return 2 * self.parts * PASSES + (kind - GATHER) * 2 * self.parts + part * 2 + cut

    @cached_property
    def ways(self) -> Ints:
        """The hops as an array, [from and to, hop]."""
        return np.array(self.hops, np.int64).reshape(-1, 2).T

    @cached_property
    def passes_joined(self) -> tuple[Ints, Ints, Ints]:
        """What and which part of all passes that overlap, and where each group of them begins."""
        what, part = np.array([one for group in self.joined for one in group], np.int64).reshape(-1, 2).T
        return what, part, np.cumsum([0, *(len(group) for group in self.joined[:-1])])

    @property
    def send(self) -> int:
        """The first transfer; they are in the order of `hops`."""
        return 2 * self.parts * PASSES + (UPDATE - GATHER + 1) * 2 * self.parts

    @property
    def overlap(self) -> int:
        """What is left of the exchanges of the first passes that overlap; they are in the order of `joined`."""
        return self.send + len(self.hops)

    @property
    def total(self) -> int:
        """Length of the vector, whose last price is nothing."""
        return self.overlap + len(self.joined) + 1


@dataclass(frozen=True)
class StepGraph:
    """Every operation of a step: its kind, price, column, stage, slot, and what it waits for."""

    schedule: Schedule
    pp: int
    m: int
    columns: int
    prices: Prices
    dag: Dag
    kind: Ints
    price: Ints
    wires: Ints  # a second price of a computing operation: exchanges that no other column takes part in
    column: Ints
    stage: Ints
    what: Ints
    part: Ints
    mb: Ints
    slots: Ints  # [pp, slots, (what, chunk, mb, joined, part, cut)]
    exchanges: Ints  # by price: of how many slots it is the price of their exchanges


def slot_table(schedule: Schedule, pp: int, m: int) -> Ints:
    """Every stage's slots, with the part of the model each works on; first and last passes are cut in two.

    Raises:
        BadInput: a schedule that leaves something out, does it twice or backward before forward.
    """
    schedule.check(pp, m)
    stages = []
    for stage in range(pp):
        rows = np.asarray(schedule.slots(stage, pp, m), np.int64)
        part = np.array([schedule.virtual(c, stage, pp) for c in range(schedule.chunks)])[rows[:, 1]]
        _check_slots(schedule, rows, stage, m)
        last = W if schedule.split else B
        cut = np.zeros(len(rows), np.int64)
        for chunk in range(schedule.chunks):
            mine = rows[:, 1] == chunk
            cut[np.argmax(mine & (rows[:, 0] == F))] = HEAD
            cut[len(rows) - 1 - np.argmax((mine & (rows[:, 0] == last))[::-1])] = HEAD
        again = np.repeat(np.arange(len(rows)), 1 + (cut == HEAD))
        out = np.column_stack([rows, part, cut])[again]
        second = np.flatnonzero((out[:, 5] == HEAD) & np.r_[False, again[1:] == again[:-1]])
        out[second, 5] = REST
        stages.append(out)
    return np.stack(stages)


def _check_slots(schedule: Schedule, rows: Ints, stage: int, m: int) -> None:
    name = f"schedule {getattr(schedule, 'key', type(schedule).__name__)}: stage {stage}"
    what, chunk, mb = rows[:, :3].T
    passes = 3 if schedule.split else 2
    odd = (what < 0) | (what >= passes) | (chunk < 0) | (chunk >= schedule.chunks) | (mb < 0) | (mb >= m)
    if odd.any():
        raise BadInput(f"{name} has the slot {tuple(rows[odd][0].tolist())}, which makes no sense")
    at = np.full((passes, schedule.chunks, m), -1, np.int64)
    at[what, chunk, mb] = np.arange(len(rows))
    there = at >= 0
    if there.sum() < len(rows):
        raise BadInput(f"{name} does something twice")
    if (there != there[0]).any() or not there[0].any(axis=0).all():
        raise BadInput(f"{name} leaves out passes of some of its {m} microbatches")
    late = np.argwhere(there[1:] & (at[1:] < at[:-1]))
    if len(late):
        w, _, i = late[0]
        raise BadInput(f"{name} does {NAMES[w + 1]}{i} before {NAMES[w]}{i}")


@lru_cache(maxsize=256)
def step_graph(
    schedule: Schedule, pp: int, m: int, inner: tuple[int, ...] = (0,), data: tuple[int, ...] = (0,)
) -> StepGraph:
    """The graph of a step: `inner[c]` and `data[c]` say which columns exchange within layers, and reduce gradients.

    >>> from assay.training.engine.schedules import OneFOneB
    >>> graph = step_graph(OneFOneB(), pp=2, m=3)
    >>> int((graph.kind == SEND).sum())  # three forward, three backward
    6

    Raises:
        BadInput: a schedule whose stages wait for each other for ever.
    """
    slots = slot_table(schedule, pp, m)
    builder = _Builder(schedule, pp, m, slots, np.array(inner), np.array(data))
    return builder.build()


class _Builder:
    """Numbers the operations and lists who waits for whom; all of it in arrays over slots, columns and groups."""

    def __init__(self, schedule: Schedule, pp: int, m: int, slots: Ints, inner: Ints, data: Ints) -> None:
        self.schedule, self.pp, self.m, self.slots = schedule, pp, m, slots
        self.inner, self.data = inner, data
        self.columns, self.n = len(inner), slots.shape[1]
        self.parts = int(slots[:, :, 4].max()) + 1
        places = self._places()
        self.moves = {what: self._moves(what, *places) for what in (F, B)}
        ways = np.unique(np.concatenate([a // self.n * pp + b // self.n for a, b in self.moves.values()]))
        self.ways = ways[ways // pp != ways % pp]
        groups, *joined = self._joined()
        self.prices = Prices(self.parts, tuple(divmod(way, pp) for way in self.ways.tolist()), groups)
        self.exchanges = self._exchanges(*joined)
        self.edges: list[Ints] = []
        self.rows: list[Ints] = []  # kind, price, wires, column, stage, what, part, mb
        self.count = 0

    def nodes(self, kind: int, price: Ints, **more: Ints | int) -> Ints:
        """New operations; gives their numbers."""
        size = len(price)
        nothing = self.prices.total - 1
        table = np.empty((8, size), np.int64)
        table[0], table[1], table[2] = kind, price, more.get("wires", nothing)
        for row, name in enumerate(("column", "stage", "what", "part", "mb"), 3):
            table[row] = more.get(name, -1)
        self.rows.append(table)
        self.count += size
        return np.arange(self.count - size, self.count)

    def wait(self, before: Ints, after: Ints) -> None:
        """Each of `after` starts when its own of `before` has ended."""
        before, after = np.broadcast_arrays(before, after)
        self.edges.append(np.column_stack([before.ravel(), after.ravel()]))

    def build(self) -> StepGraph:
        first, done = self.passes()
        self.transfers(first, done)
        self.ends(first, done)
        pairs = np.concatenate(self.edges)
        try:
            dag = Dag.of(self.count, pairs)
        except Cyclic as error:
            name = getattr(self.schedule, "key", type(self.schedule).__name__)
            raise BadInput(f"schedule {name}: its stages wait for each other for ever ({error})") from error
        kind, price, wires, column, stage, what, part, mb = np.concatenate(self.rows, axis=1)
        return StepGraph(self.schedule, self.pp, self.m, self.columns, self.prices, dag, kind, price, wires, column,
                         stage, what, part, mb, self.slots,
                         np.bincount(self.exchanges.ravel(), minlength=self.prices.total))  # fmt: skip

    def passes(self) -> tuple[Ints, Ints]:
        """Computing in the schedule's order, and what groups wait for; [columns, pp, slots] of first and last node."""
        shape = (self.columns, self.pp, self.n)
        what, part, mb, cut = (np.broadcast_to(self.slots[:, :, i], shape).ravel() for i in (0, 4, 2, 5))
        column, stage, _ = (axis.ravel() for axis in np.indices(shape))
        wide = np.bincount(self.inner)[self.inner] > 1  # groups of several columns are operations of their own
        alone = np.broadcast_to(self.exchanges, shape).ravel()
        own = np.where(wide[column], self.prices.total - 1, alone)
        comp = self.nodes(COMP, self.prices.passes(what, part, cut), wires=own, column=column, stage=stage,
                          what=what, part=part, mb=mb).reshape(shape)  # fmt: skip
        done = comp.copy()
        for group in np.unique(self.inner[wide]):
            members = np.flatnonzero(self.inner == group)
            places = np.repeat(np.arange(self.pp), self.n)
            sync = self.nodes(SYNC, self.exchanges.ravel(), column=members[0], stage=places,
                              what=self.slots[:, :, 0].ravel(), part=self.slots[:, :, 4].ravel(),
                              mb=self.slots[:, :, 2].ravel()).reshape(self.pp, self.n)  # fmt: skip
            self.wait(comp[members], sync[None])
            done[members] = sync[None]
        self.wait(done[:, :, :-1], comp[:, :, 1:])
        return comp, done

    def transfers(self, comp: Ints, done: Ints) -> None:
        """What leaves a stage after a pass and is waited for by the next; a joined pass needs all its inputs first."""
        for what, (a, b) in self.moves.items():
            if not len(a):
                continue
            far = a // self.n != b // self.n
            ended, begun = done.reshape(self.columns, -1), comp.reshape(self.columns, -1)
            self.wait(ended[:, a[~far]], begun[:, b[~far]])
            a, b = a[far], b[far]
            column, stage = np.repeat(np.arange(self.columns), len(a)), np.tile(a // self.n, self.columns)
            hops = np.searchsorted(self.ways, a // self.n * self.pp + b // self.n)
            price = np.tile(self.prices.send + hops, self.columns)
            send = self.nodes(SEND, price, column=column, stage=stage, what=what).reshape(self.columns, -1)
            self.wait(ended[:, a], send)
            self.wait(send, begun[:, b])
            same = (a[1:] // self.n == a[:-1] // self.n) & (b[1:] // self.n == b[:-1] // self.n)
            self.wait(send[:, :-1][:, same], send[:, 1:][:, same])

    def _moves(self, what: int, place: Ints, lead: Ints, tail: Ints) -> tuple[Ints, Ints]:
        """Slots after which something moves on and slots that wait for it, by wire: from stage, to stage, in time."""
        here, there = (place[what, :-1], place[what, 1:]) if what == F else (place[what, 1:], place[what, :-1])
        both = (here >= 0) & (there >= 0)
        a, b = tail[here[both]], lead[there[both]]
        order = np.lexsort((a, b // self.n))
        return a[order], b[order]

    def _joined(self) -> tuple[tuple[Joined, ...], Ints, Ints, Ints]:
        """Groups of passes that run overlapped; where each begins in the rows of all slots, how long it is, and which
        group it is. A pass that is cut in two is in none."""
        rows = self.slots.reshape(-1, 6)
        none = np.zeros(0, np.int64)
        if not rows[:, 3].any():
            return (), none, none, none
        starts = np.flatnonzero((rows[:, 3] == 0) | (np.arange(len(rows)) % self.n == 0))
        size = np.diff(np.r_[starts, len(rows)])
        several = (size > 1) & (np.maximum.reduceat(rows[:, 5], starts) == WHOLE)
        starts, size = starts[several], size[several]
        place = starts[:, None] + np.arange(size.max(initial=1))
        there = np.arange(place.shape[1]) < size[:, None]
        codes = np.where(there, (rows[:, 4] * 3 + rows[:, 0])[np.minimum(place, len(rows) - 1)], -1)
        each, which = np.unique(codes, axis=0, return_inverse=True)
        groups = tuple(tuple((code % 3, code // 3) for code in one if code >= 0) for one in each.tolist())
        return groups, starts, size, which.ravel()

    def _exchanges(self, starts: Ints, size: Ints, which: Ints) -> Ints:
        """The price of every slot's exchanges; of overlapped passes the first has what is left of all of theirs."""
        found = self.prices.wires(*(self.slots[:, :, i].ravel() for i in (0, 4, 5)))
        for at in range(1, int(size.max(initial=0))):
            found[starts[size > at] + at] = self.prices.total - 1
        found[starts] = self.prices.overlap + which
        return found.reshape(self.pp, self.n)

    def _places(self) -> tuple[Ints, Ints, Ints]:
        """Where each pass begins ([what, part, microbatch], -1: nowhere), and the first and last slot of what each slot
        is joined with; slots of all stages are numbered through."""
        what, _, mb, joined, part, cut = self.slots.reshape(-1, 6).T
        place = np.full((3, self.parts, self.m), -1, np.int64)
        at = np.arange(self.pp * self.n)
        place[what[cut != REST], part[cut != REST], mb[cut != REST]] = at[cut != REST]
        begins = (joined == 0) | (at % self.n == 0)
        starts, group = np.flatnonzero(begins), np.cumsum(begins) - 1
        lead, tail = starts[group], np.r_[starts[1:], len(at)][group] - 1
        tail = np.where(
            cut == HEAD, tail[np.minimum(at + 1, len(at) - 1)], tail
        )  # a pass cut in two ends with the second
        return place, lead, tail

    def ends(self, comp: Ints, done: Ints) -> None:
        """Weights come in with the first forward pass; gradients leave with the last backward pass; then the update."""
        if not self.schedule.flush:
            return
        last = W if self.schedule.split else B
        (stage, first_in), (_, rest_in) = self._cut(F, HEAD), self._cut(F, REST)
        (_, head), (_, rest) = self._cut(last, HEAD), self._cut(last, REST)
        part, finished = self.slots[stage, head, 4], []
        one, more = np.zeros_like(part), np.ones_like(part)
        for group in np.unique(self.data):
            members = np.flatnonzero(self.data == group)[:, None]
            where = {"stage": stage, "part": part, "column": int(members[0, 0])}
            early = self.nodes(GATHER, self.prices.data(GATHER, part, one), **where)
            later = self.nodes(GATHER, self.prices.data(GATHER, part, more), **where)
            self.wait(early, later)
            self.wait(early, comp[members, stage, first_in])
            self.wait(later, comp[members, stage, rest_in])
            most = self.nodes(REDUCE, self.prices.data(REDUCE, part, more), **where)
            tail = self.nodes(REDUCE, self.prices.data(REDUCE, part, one), **where)
            self.wait(done[members, stage, head], most)
            self.wait(most, tail)
            self.wait(done[members, stage, rest], tail)
            for mine, other in np.argwhere((part[:, None] == part) & (stage[:, None] != stage)):  # copies of a part
                self.wait(done[members, stage[other], head[other]], most[mine])
                self.wait(done[members, stage[other], rest[other]], tail[mine])
            finished.append(tail)
        norm = self.nodes(NORM, np.array([self.prices.total - 1]))
        self.wait(np.concatenate(finished), norm)
        self.updates(norm)

    def updates(self, norm: Ints) -> None:
        """Every rank updates the parts that it holds, one after the other."""
        column, stage = np.repeat(np.arange(self.columns), self.pp), np.tile(np.arange(self.pp), self.columns)
        before = norm
        for chunk in range(self.schedule.chunks):
            part = np.array([self.schedule.virtual(chunk, s, self.pp) for s in range(self.pp)])[stage]
            price = self.prices.data(UPDATE, part, np.zeros_like(part))
            update = self.nodes(UPDATE, price, column=column, stage=stage, part=part)
            self.wait(before, update)
            before = update

    def _cut(self, what: int, cut: int) -> tuple[Ints, Ints]:
        """Stage and slot of every chunk's one piece of this kind, by stage and chunk."""
        stage, at = np.nonzero((self.slots[:, :, 0] == what) & (self.slots[:, :, 5] == cut))
        order = np.lexsort((self.slots[stage, at, 1], stage))
        return stage[order], at[order]


def price_vector(
    prices: Prices, *, forward: Floats, inputs: Floats, weights: Floats, wires_forward: Floats, wires_backward: Floats,
    gather: Floats, reduce: Floats, update: Floats, send: Any, layers: Floats, split: bool,
    dispatch_forward: Any = 0.0, dispatch_backward: Any = 0.0,
) -> Floats:  # fmt: skip
    """A layout's prices: seconds of every kind of operation, as `Prices` places them.

    `send` is [from stage, to stage], or one number for every transfer.
    """
    one = 1.0 / np.maximum(layers, 1)
    backward = inputs if split else inputs + weights
    # A forward pass ends with a layer whose weights came last; a backward pass first frees one layer's gradients.
    cuts = np.stack([np.ones((3, prices.parts)), np.stack([1 - one, one, one]), np.stack([one, 1 - one, 1 - one])])
    passes = np.stack([forward, backward, weights]) * cuts  # [whole, head, rest; pass; part]
    wires = np.stack([wires_forward, wires_backward, 0 * weights]) * cuts
    # Of a gather, the first layer's share comes first; of a reduction it is the last to go.
    shares = np.stack([one, 1 - one])
    data = np.zeros((UPDATE - GATHER + 1, prices.parts, 2))
    data[0], data[REDUCE - GATHER] = (gather * shares).T, (reduce * shares).T
    data[UPDATE - GATHER, :, 0] = update
    sends = send[prices.ways[0], prices.ways[1]] if isinstance(send, np.ndarray) else np.full(len(prices.hops), send)
    left = np.zeros(len(prices.joined))
    if prices.joined:
        exchanges = np.stack([wires_forward, wires_backward, 0 * weights])
        hidden = np.zeros_like(exchanges)
        hidden[F], hidden[B] = dispatch_forward, dispatch_backward
        alone = np.stack([forward, backward, weights])
        left = _exposed(prices, alone, exchanges, hidden)
    return np.concatenate(
        [passes.transpose(2, 1, 0).ravel(), wires.transpose(2, 1, 0).ravel(), data.ravel(), sends, left, [0.0]]
    )


def _exposed(prices: Prices, computing: Floats, exchanges: Floats, hidden: Floats) -> Floats:
    """Seconds by which passes that overlap take longer than they compute; arrays are [pass, part].

    Rows of one microbatch travel to experts and back while the other computes, at the price of the multiprocessors
    that send them; within one microbatch they wait for each other. Other exchanges hide nowhere.
    """
    what, part, begins = prices.passes_joined
    alone, away = computing[what, part], hidden[what, part]
    whole, travels = np.add.reduceat(alone, begins), np.add.reduceat(away, begins)
    longest = np.maximum(travels, whole + SENDING * travels)
    longest = np.maximum(longest, np.maximum.reduceat(alone + away, begins))
    return np.asarray(longest - whole + np.add.reduceat(exchanges[what, part], begins) - travels)
