"""Objects whose updates add up: banks and counters. Which updates came before a read matters, their order does not.

A general search tries the orders of all updates that overlap, and drowns. Here only reads are ordered. From a state
(updates applied, reads done) the next read is one that no other read must precede; the updates applied just before it
must explain exactly what it saw. Those that returned before it began are forced; the rest is a small sum to be solved
by branching on an account that is still wrong. The read that needs the fewest updates is tried first, one that needs
none is taken at once (it changes nothing). Applying updates that no read asks for can always wait. Of equal updates the
one that returns first is taken: the others can replace it later, it could not replace them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from assay.protocols.judges.judgement import Budget
from assay.protocols.judges.objects import Answer
from assay.protocols.judges.specifications import balances
from assay.workloads.histories import Operation

Sums = dict[Any, float]
ABREAST = 24  # states that are followed at once
HASTE = 3_000  # steps that one of them may take


def changes(operation: Operation) -> Sums:
    """What an update adds, by account; a counter is a bank with one account.

    >>> changes(Operation(0, "decrement", None, 2, None, 0.0, 1.0))
    {None: -2}
    """
    if operation.f == "transfer":
        return {account: amount for account, amount in balances(operation).items() if amount}
    step = 1 if operation.value is None else operation.value
    return {None: -step if operation.f == "decrement" else step} if step else {}


def observed(operation: Operation) -> Sums:
    """What a read saw, by account."""
    return dict(operation.result) if isinstance(operation.result, dict) else {None: operation.result}


def judge(operations: Sequence[Operation], initial: Sums, budget: Budget) -> Answer:
    """Judge a bank or a counter; what no single read refutes may have everything as its core."""
    if core := _impossible(operations, initial):
        return Answer(None, core, "do not add up")
    problem = _Problem(operations, initial, budget)
    order = problem.solve()
    if order is not None:
        return Answer(order, [])
    return Answer(None, [] if problem.exhausted else list(range(len(operations))), "do not add up", problem.exhausted)


def _impossible(operations: Sequence[Operation], initial: Sums) -> list[int]:
    """A read that no choice among the updates around it explains, looked at account by account; with those updates.

    Necessary, not sufficient, and fast: it refutes what a search could not, were it ever so long. The sum of all
    accounts counts as one more account, so that money that is made or lost is found at once.
    """
    updates = sorted(
        ((i, changes(item)) for i, item in enumerate(operations) if item.f != "read"),
        key=lambda update: operations[update[0]].invoke,
    )
    by_return = sorted(updates, key=lambda update: operations[update[0]].complete)
    calls = [operations[i].invoke for i, _ in updates]
    accounts = {account for _, amounts in updates for account in amounts}
    closed = not any(sum(amounts.values()) for _, amounts in updates)
    fixed = dict(initial)
    done = oldest = 0
    for at in sorted((i for i, item in enumerate(operations) if item.f == "read"), key=lambda i: operations[i].invoke):
        read, seen = operations[at], observed(operations[at])
        if closed and accounts <= seen.keys() and sum(seen.values()) != sum(initial.get(name, 0) for name in seen):
            return [at]
        while done < len(by_return) and operations[by_return[done][0]].complete < read.invoke:
            for account, amount in by_return[done][1].items():
                fixed[account] = fixed.get(account, 0) + amount
            done += 1
        while oldest < len(updates) and operations[updates[oldest][0]].complete < read.invoke:
            oldest += 1
        around: dict[Any, list[float]] = {}
        for i, amounts in updates[oldest : bisect_right(calls, read.complete)]:
            if operations[i].complete >= read.invoke:
                for account, amount in amounts.items():
                    around.setdefault(account, []).append(amount)
        for account, value in seen.items():
            if not _reaches(value - fixed.get(account, 0), around.get(account, [])):
                return [at, *(i for i, amounts in updates if account in amounts)]
    return []


def _reaches(missing: float, amounts: list[float]) -> bool:
    """Whether some of the amounts sum up to what is missing; yes where they are too many or no integers."""
    if not missing:
        return True
    if any(int(amount) != amount for amount in (missing, *amounts)) or sum(map(abs, amounts)) > 100_000:
        return True
    low = -sum(int(amount) for amount in amounts if amount < 0)
    sums = 1 << low  # bit k: k - low can be reached
    for amount in map(int, amounts):
        sums |= sums << amount if amount > 0 else sums >> -amount
    place = int(missing) + low
    return place >= 0 and bool(sums >> place & 1)


class _Problem:
    """The search's constants (intervals, effects) and its budget. Sets of operations are bits, by invocation."""

    def __init__(self, operations: Sequence[Operation], initial: Sums, budget: Budget) -> None:
        self.operations, self.initial = operations, initial
        by_invoke = sorted(range(len(operations)), key=lambda i: operations[i].invoke)
        self.reads = [i for i in by_invoke if operations[i].f == "read"]
        self.updates = [i for i in by_invoke if operations[i].f != "read"]
        self.bit = {i: 1 << at for row in (self.reads, self.updates) for at, i in enumerate(row)}
        self.sees = {i: observed(operations[i]) for i in self.reads}
        self.adds = {i: changes(operations[i]) for i in self.updates}
        self.effects = {
            i: (*sorted(amounts.items(), key=repr), operations[i].status == "ok") for i, amounts in self.adds.items()
        }
        self.left, self.memory = budget.nodes, budget.memory
        self.exhausted = False

    def solve(self) -> list[int] | None:
        """An order, or None: there is none or, if `exhausted`, none was found.

        First a few states abreast, each with its nearest options only: right where sums are telling, as they mostly
        are, and a wrong turn dies out. Then, since that proves nothing when it fails, every option in depth.
        """
        start = _State(self, {**self.initial}, [], (1 << len(self.reads)) - 1, (1 << len(self.updates)) - 1, None)
        budget = self.left
        self.left = budget // 2
        end = self._abreast(start)
        if end is None:
            self.left, self.exhausted = budget // 2, False
            end = self._in_depth(start)
        return None if end is None else self._order(end)

    def _abreast(self, start: _State) -> _State | None:
        layers = [[start]]
        furthest, slack, back = 0, 1, 16
        while layers[-1][0].reads and not self.exhausted:
            following: dict[tuple[int, int], _State] = {}
            for state in layers[-1]:
                for after in state.options(slack, HASTE):
                    following.setdefault((after.reads, after.updates), after)
            if following:
                lazy = sorted(following.values(), key=lambda state: -state.updates.bit_count())
                layers.append(lazy[:ABREAST])
                if len(layers) > furthest + 16:  # past the trouble
                    furthest, slack, back = len(layers), 1, 16
            elif slack > 6:
                return None
            else:  # all turns were wrong: go back, and look further afield
                furthest = max(furthest, len(layers))
                del layers[max(1, len(layers) - back) :]
                slack, back = slack + 1, 2 * back
        return None if layers[-1][0].reads else layers[-1][0]

    def _in_depth(self, start: _State) -> _State | None:
        seen: set[tuple[int, int]] = set()
        stack = [(start, start.options())]
        while stack:
            last, options = stack[-1]
            if not last.reads:
                return last
            state = next(options, None)
            if state is None or self.exhausted:
                stack.pop()
                continue
            place = (state.reads, state.updates)
            if place not in seen:
                self.memory -= (len(self.operations) >> 3) + 400
                self.exhausted |= self.memory < 0
                seen.add(place)
                stack.append((state, state.options()))
        return None

    def _order(self, end: _State) -> list[int]:
        sure = [i for i in self.updates if end.updates & self.bit[i] and self.operations[i].status == "ok"]
        taken: list[list[int]] = [sure]
        state: _State | None = end
        while state is not None:
            taken.append(state.taken)
            state = state.before
        return [i for row in reversed(taken) for i in row]

    def spend(self) -> bool:
        """Count a step; whether there is one left."""
        self.left -= 1
        self.exhausted |= self.left < 0
        return not self.exhausted

    def within(self, row: list[int], there: int, end: float) -> Iterator[int]:
        """Those of a row that are there and begin no later than this."""
        at = (there & -there).bit_length() - 1
        while 0 <= at < len(row) and self.operations[row[at]].invoke <= end:
            if there >> at & 1:
                yield row[at]
            at += 1


class _State:
    """Where the search stands: the sums now, and which reads and updates are still to be ordered."""

    def __init__(
        self, problem: _Problem, sums: Sums, taken: list[int], reads: int, updates: int, before: _State | None
    ) -> None:  # fmt: skip
        self.problem, self.sums, self.taken, self.reads, self.updates = problem, sums, taken, reads, updates
        self.before = before

    def options(self, slack: float = math.inf, haste: float = math.inf) -> Iterator[_State]:
        """The states after one more read, those that need the fewest updates first.

        What contains the updates of an earlier option is left out: that option can be taken on the way. `slack` is how
        many more updates than the first option an option may need, `haste` how many steps may be spent on looking.
        """
        stop = self.problem.left - haste
        sums = list(self._sums())
        found: list[frozenset[int]] = []
        for size in range(len(sums[0].pool) + 1 if sums else 0):
            if found and size > len(found[0]) + slack:
                return
            for sum_ in sums:
                if not self.problem.spend() or self.problem.left < stop:
                    return
                for chosen in sum_.solutions(size):
                    if any(less <= chosen for less in found):
                        continue
                    found.append(chosen)
                    yield self._after(sum_.read, chosen)
                    if not chosen:  # nothing had to change: no other choice can be better
                        return

    def _sums(self) -> Iterator[_Sum]:
        """The reads that may come next, each with the updates that may come before it."""
        problem, operations = self.problem, self.problem.operations
        first = math.inf  # the earliest return of a read that waits: what begins later must come after that read
        for i in problem.within(problem.reads, self.reads, math.inf):
            if operations[i].invoke > first:
                break
            first = min(first, operations[i].complete)
        pool = list(problem.within(problem.updates, self.updates, first))
        touching: dict[Any, list[int]] = {}
        for i in sorted(pool, key=lambda i: operations[i].complete):
            for account in problem.adds[i]:
                touching.setdefault(account, []).append(i)
        for i in problem.within(problem.reads, self.reads, first):
            yield _Sum(self, i, pool, touching)

    def _after(self, read: int, chosen: frozenset[int]) -> _State:
        sums, updates = dict(self.sums), self.updates
        for i in chosen:
            updates ^= self.problem.bit[i]
            for account, amount in self.problem.adds[i].items():
                sums[account] = sums.get(account, 0) + amount
        taken = sorted(chosen, key=lambda i: self.problem.operations[i].invoke)
        return _State(self.problem, sums, [*taken, read], self.reads ^ self.problem.bit[read], updates, self)


class _Sum:
    """Which updates turn the sums of a state into what a read saw."""

    def __init__(self, state: _State, read: int, pool: list[int], touching: dict[Any, list[int]]) -> None:
        self.problem, self.read, self.pool, self.touching = state.problem, read, pool, touching
        self.operations = state.problem.operations
        self.begin = self.operations[read].invoke
        missing = {account: value - state.sums.get(account, 0) for account, value in state.problem.sees[read].items()}
        self.forced = self._closed(frozenset(), self.begin)
        self.missing = self._without(missing, self.forced)

    def solutions(self, size: int) -> Iterator[frozenset[int]]:
        """The solutions of exactly this many updates."""
        if len(self.forced) <= size:
            yield from self._extend(self.forced, self.missing, frozenset(), size)

    def _closed(self, chosen: frozenset[int], begin: float) -> frozenset[int]:
        """With everything that returned before the last of them began."""
        while True:
            more = [i for i in self.pool if self.operations[i].complete < begin and i not in chosen]
            if not more:
                return chosen
            chosen = chosen.union(more)
            begin = max(begin, *(self.operations[i].invoke for i in more))

    def _without(self, missing: Sums, applied: frozenset[int]) -> Sums:
        """What is still missing once these are applied; only accounts that are wrong."""
        rest = dict(missing)
        for i in applied:
            for account, amount in self.problem.adds[i].items():
                if account in self.problem.sees[self.read]:
                    rest[account] = rest.get(account, 0) - amount
        return {account: amount for account, amount in rest.items() if amount}

    def _extend(
        self, chosen: frozenset[int], wrong: Sums, refused: frozenset[int], size: int
    ) -> Iterator[frozenset[int]]:  # fmt: skip
        if not self.problem.spend():
            return
        if not wrong:
            if len(chosen) == size:
                yield chosen
            return
        if size - len(chosen) < (len(wrong) + 1) // 2:  # an update mends two accounts at most
            return
        account = min(wrong, key=lambda account: len(self.touching.get(account, ())))
        tried: dict[Any, float] = {}  # effects, and the earliest call with it
        for i in self.touching.get(account, ()):
            if i in chosen or i in refused:
                continue
            effect, call = self.problem.effects[i], self.operations[i].invoke
            if tried.get(effect, math.inf) <= call:
                continue  # an equal one that begins and returns no later was tried
            tried[effect] = min(call, tried.get(effect, math.inf))
            more = self._closed(chosen | {i}, max(call, self.begin))
            if more.isdisjoint(refused) and len(more) <= size:
                yield from self._extend(more, self._without(wrong, more - chosen), refused, size)
            refused |= {i}
