"""A training step played through rank by rank, as plainly as it can be written: no graph, no folding, no arrays.

Every stage of every pipeline keeps a clock and works through its slots. It stops where something it needs is not there
yet, and the others get their turn; that goes on until all are through. Ranks that exchange within layers meet after
every pass, so a group of them has one clock.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

F, B, W = 0, 1, 2


class Play:
    """One step; `slow[stage, column]` and `work[copy, microbatch]` are factors on the seconds of computing."""

    def __init__(self, costs: Any, layout: Any, schedule: Any, m: int, slow: Any, work: Any) -> None:
        self.costs, self.schedule, self.pp, self.slow, self.work = costs, schedule, layout.pp, slow, work
        self.wide = layout.tp * layout.cp
        self.columns = range(self.wide * layout.dp)
        self.members: dict[int, list[int]] = defaultdict(list)
        for c, group in enumerate(_meeting(layout)):
            self.members[group].append(c)
        self.tp = layout.tp
        self.programs = [_joined(schedule.slots(s, self.pp, m).tolist()) for s in range(self.pp)]
        self.stage_of = {
            (what, self.part(chunk, s), mb): s
            for s, program in enumerate(self.programs)
            for together in program
            for what, chunk, mb, _ in together
        }
        self.clock = {(g, s): 0.0 for g in self.members for s in range(self.pp)}
        self.at = dict.fromkeys(self.clock, 0)
        self.arrived: dict[tuple[int, int, int, int], float] = {}
        self.wire: dict[tuple[int, int, int, int], float] = defaultdict(float)
        self.begun: set[tuple[int, int, int]] = set()
        self.last: dict[tuple[int, int, int], tuple[float, float]] = {}

    def part(self, chunk: int, stage: int) -> int:
        return int(self.schedule.virtual(chunk, stage, self.pp))

    def end(self) -> float:
        """When the last rank has updated its weights."""
        moved = True
        while moved:
            moved = False
            for group, stage in self.clock:
                while self.at[group, stage] < len(self.programs[stage]) and self.advance(group, stage):
                    moved = True
        assert all(self.at[g, s] == len(self.programs[s]) for g, s in self.at), "the schedule is stuck"
        return self.reduced()

    def advance(self, group: int, stage: int) -> bool:
        """Run what is next, if what it needs has arrived."""
        together = self.programs[stage][self.at[group, stage]]
        saved = self.saved(stage, together)
        needs = [
            (c, what, self.part(chunk, stage) + (-1 if what == F else 1), mb)
            for what, chunk, mb, _ in together
            for c in self.members[group]
            if (what, self.part(chunk, stage) + (-1 if what == F else 1), mb) in self.stage_of and what != W
        ]
        if any(key not in self.arrived for key in needs):
            return False
        time = {
            c: max([self.clock[group, stage]] + [self.arrived[key] for key in needs if key[0] == c])
            for c in self.members[group]
        }
        for what, chunk, mb, _ in together:
            time = dict.fromkeys(time, self.passed(time, group, stage, what, chunk, mb))
        time = {c: when - saved for c, when in time.items()}
        self.clock[group, stage] = end = max(time.values())
        for what, chunk, mb, _ in together:
            for c in self.members[group]:
                self.hand_on(c, stage, what, self.part(chunk, stage), mb, end)
        self.at[group, stage] += 1
        return True

    def saved(self, stage: int, together: list[list[int]]) -> float:
        """Seconds that passes which overlap are shorter than one after the other.

        What goes to experts and back hides behind the other microbatch, which has 20 of 132 multiprocessors less
        meanwhile; it cannot be shorter than what travels, nor than one microbatch alone.
        """
        if len(together) == 1:
            return 0.0
        costs, whole, away, alone = self.costs, 0.0, 0.0, []
        for what, chunk, _, _ in together:
            part = self.part(chunk, stage)
            computing = (costs.forward, costs.inputs, costs.weights)[what][part]
            if what == B and not self.schedule.split:
                computing = computing + costs.weights[part]
            hides = (costs.dispatch_forward[part], costs.dispatch_backward[part], 0.0)[what]
            whole, away = whole + computing, away + hides
            alone.append(computing + hides)
        return float(whole + away - max([away, whole + 20 / 132 * away, *alone]))

    def passed(self, time: dict[int, float], group: int, stage: int, what: int, chunk: int, mb: int) -> float:
        """When all of the group are through one pass."""
        part, costs = self.part(chunk, stage), self.costs
        backward = costs.inputs[part] + (0.0 if self.schedule.split else costs.weights[part])
        base = (costs.forward[part], backward, costs.weights[part])[what]
        wires = (costs.wires_forward[part], costs.wires_backward[part], 0.0)[what]
        took = {c: base * self.slow[stage, c] * self.work[c // self.wide, mb] for c in time}
        one = 1.0 / costs.layers[part]
        if what == F and (group, stage, chunk) not in self.begun:  # its weights are still coming in
            self.begun.add((group, stage, chunk))
            early, every = costs.gather[part] * one, costs.gather[part]
            met = max(max(time[c], early) + took[c] * (1 - one) for c in time) + wires * (1 - one)
            return float(max(max(met, every) + took[c] * one for c in time) + wires * one)
        if what == (W if self.schedule.split else B):  # the last one of a chunk frees its gradients
            met = max(time[c] + took[c] * one for c in time) + wires * one
            end = max(met + took[c] * (1 - one) for c in time) + wires * (1 - one)
            self.last[group, stage, chunk] = met, end
            return float(end)
        return float(max(time[c] + took[c] for c in time) + wires)

    def hand_on(self, c: int, stage: int, what: int, part: int, mb: int, end: float) -> None:
        """Send it to the stage that waits for it, after what is on that wire already."""
        target = self.stage_of.get((what, part + (1 if what == F else -1), mb))
        if what == W or target is None:
            return
        if target != stage:
            key = (c, stage, target, what)
            self.wire[key] = end = max(end, self.wire[key]) + self.costs.send[stage][target]
        self.arrived[c, what, part, mb] = end

    def reduced(self) -> float:
        """Gradients are reduced over all copies, then everybody updates at once."""
        ends = []
        group_of = {c: g for g, some in self.members.items() for c in some}
        for stage in range(self.pp):
            for chunk in range(self.schedule.chunks):
                part = self.part(chunk, stage)
                one = 1.0 / self.costs.layers[part]
                for slice_ in range(self.tp):
                    last = [
                        self.last[group_of[c], other, held]
                        for c in self.columns
                        if c % self.tp == slice_
                        for other in range(self.pp)
                        for held in range(self.schedule.chunks)
                        if self.part(held, other) == part  # every copy of a part, whichever stage it lies on
                    ]
                    most = max(head for head, _ in last) + self.costs.reduce[part] * (1 - one)
                    ends.append(max(most, max(end for _, end in last)) + self.costs.reduce[part] * one)
        held = ([self.part(c, s) for c in range(self.schedule.chunks)] for s in range(self.pp))
        return float(max(ends) + max(sum(self.costs.update[part] for part in parts) for parts in held))


def _meeting(layout: Any) -> list[int]:
    """Which ranks of a stage wait for each other in a layer, one after the other being told to join another's group."""
    group = list(range(layout.tp * layout.cp * layout.dp))
    for a in group[:]:
        for b in range(a):
            attention = a // (layout.tp * layout.cp) == b // (layout.tp * layout.cp)
            one_copy = [(c // layout.etp % layout.ecp, c // (layout.etp * layout.ecp * layout.ep)) for c in (a, b)]
            if attention or one_copy[0] == one_copy[1]:
                old, new = group[a], group[b]
                group = [new if g == old else g for g in group]
    return group


def _joined(rows: list[list[int]]) -> list[list[list[int]]]:
    """Slots that overlap, together."""
    out: list[list[list[int]]] = []
    for row in rows:
        if row[3]:
            out[-1].append(row)
        else:
            out.append([row])
    return out
