"""A fixed pool of GPUs (or of small engines) cut into groups, and the switch from one cut to another while it serves.

Slot i of the pool is instance i of the fleet. A group of width w is w neighbouring slots that begin at a multiple of
w: its first slot is the instance that serves, with the cost and memory of the whole group, and the other slots take
nothing. So GPUs are conserved by construction, and the communicators that exist are linear in the pool: aligned powers
of two.

>>> pack(8, [(4, "both"), (2, "decode")], current=[Group(4, 4)])
[Group(first=0, width=2, role='decode'), Group(first=4, width=4, role='both')]
>>> len(communicators(8))
7
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from assay.serving.engine.control import Control, Withdrawn
from assay.serving.fleet import Instance


class Group(NamedTuple):
    """Neighbouring slots that work as one instance."""

    first: int
    width: int
    role: str = "both"

    @property
    def slots(self) -> range:
        """Its members."""
        return range(self.first, self.first + self.width)


def communicators(slots: int) -> list[Group]:
    """All groups of more than one slot that a pool may form: created once, at start.

    >>> communicators(4)
    [Group(first=0, width=2, role='both'), Group(first=2, width=2, role='both'), Group(first=0, width=4, role='both')]
    """
    found, width = [], 2
    while width <= slots:
        found += [Group(first, width) for first in range(0, slots - width + 1, width)]
        width *= 2
    return found


def pack(slots: int, wanted: Sequence[tuple[int, str]], current: Sequence[Group] = ()) -> list[Group]:
    """Place groups (width, role) on aligned slots, leaving those where they are that exist already.

    Widest first: what is left is then always a union of aligned blocks, so groups that fit by number fit in place.
    Among free places one that holds such a group already is taken first, then one whose slots are free of others
    that are still wanted.

    Raises:
        ValueError: more slots are wanted than there are, or a width is no power of two.
    """
    if sum(width for width, _ in wanted) > slots or any(width & (width - 1) or width < 1 for width, _ in wanted):
        raise ValueError(f"groups of widths {[width for width, _ in wanted]} do not fit into {slots} slots")
    free, placed, standing = [True] * slots, [], set(current)
    for width, role in sorted(wanted, key=lambda item: -item[0]):
        places = [first for first in range(0, slots - width + 1, width) if all(free[first : first + width])]
        narrower = [group for group in standing if group.width < width and (group.width, group.role) in wanted]

        def cost(
            first: int, width: int = width, role: str = role, narrower: list[Group] = narrower
        ) -> tuple[bool, int]:
            spoilt = sum(first <= group.first < first + width for group in narrower)
            return Group(first, width, role) not in standing, spoilt

        first = min(places, key=cost)
        free[first : first + width] = [False] * width
        placed.append(Group(first, width, role))
    return sorted(placed)


@dataclass
class Pool:
    """The present cut of a pool, and how to change it."""

    slots: int
    spec: Callable[[Group], Instance]  # the layout of a group
    groups: list[Group] = field(default_factory=list)
    busy: float = 0.0  # until then the last switch is not over; infinite while instances come to a halt
    switches: int = 0
    recomputed: int = 0  # tokens of KV that were thrown away
    carried: int = 0  # tokens of KV that were moved
    paused: float = 0.0  # slot-seconds that stood still for switches

    def begin(self, control: Control, groups: Sequence[Group]) -> None:
        """Lay the pool out before the first request; it costs nothing."""
        self._check(groups)
        control.halt(range(self.slots), lambda: None)
        self._apply(control, groups)
        control.resume(range(self.slots), control.now)

    def _check(self, groups: Sequence[Group]) -> None:
        covered = sorted(slot for group in groups for slot in group.slots)
        if len(set(covered)) != len(covered) or not set(covered) <= set(range(self.slots)):
            raise ValueError(f"groups {list(groups)} overlap, or reach beyond {self.slots} slots")

    def _apply(self, control: Control, groups: Sequence[Group]) -> None:
        self.groups = list(groups)
        leaders = {group.first: group for group in groups}
        for slot in range(self.slots):
            control.accepting(slot, slot in leaders)
        for slot, group in leaders.items():
            control.lay_out(slot, self.spec(group))

    def switch(
        self,
        control: Control,
        groups: Sequence[Group],
        keep: bool,
        pause: Callable[[list[Withdrawn]], float],
        place: Callable[[Withdrawn, list[Group]], int],
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Go from the present cut to another one: only groups that differ stop.

        `pause` says how long the slots concerned stand still given what was withdrawn, `place` where each request
        goes. Groups that stay go on serving. At the end of the iterations in flight the whole switch happens at once.
        """
        self._check(groups)
        old, new = set(self.groups), set(groups)
        leaving, coming = sorted(old - new), sorted(new - old)
        touched = sorted({slot for group in (*leaving, *coming) for slot in group.slots})
        if not touched:
            return
        self.busy = float("inf")

        def change() -> None:
            moved = [item for group in leaving for item in control.withdraw(group.first, keep)]
            self.groups = sorted(groups)
            for slot in touched:
                control.accepting(slot, False)
            for group in coming:
                control.lay_out(group.first, self.spec(group))
                control.accepting(group.first, True)
            seconds = pause(moved)
            for item in moved:
                control.send(item.request, place(item, self.groups), control.now + seconds)
            control.resume(touched, control.now + seconds)
            self.busy = control.now + seconds
            self.switches += 1
            self.paused += seconds * len(touched)
            self.carried += sum(item.context for item in moved if item.kept)
            self.recomputed += sum(item.context for item in moved if not item.kept)
            done()

        control.halt(touched, change)


def spread(
    control: Control, groups: Sequence[Group], rooms: Callable[[Group], float]
) -> Callable[[Withdrawn, list[Group]], int]:
    """A `place` that fills groups evenly: each request to the one with the least context given so far for its room."""
    given = dict.fromkeys(groups, 0.0)

    def place(item: Withdrawn, _: list[Group]) -> int:
        able = [group for group in given if control.takes(item.request, group.first)]
        best = min(able, key=lambda group: ((given[group] + item.context + 1) / rooms(group), group.first))
        given[best] += item.context + 1
        return best.first

    return place
