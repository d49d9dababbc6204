"""A threshold automaton as processes that send messages, on the protocols kernel.

Each process is a node in a location. Adding to a shared variable is a broadcast; a guard reads what the process has
received, not what was sent; faulty nodes forge messages. A counterexample's schedule drives the asynchronous
scheduler: it delivers and forges no more than each step needs. If the automaton is an honest abstraction, the
processes end where the counterexample says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.protocols.automata.automaton import Automaton, Configuration, Rule, Schedule
from assay.protocols.automata.linear import Linear
from assay.protocols.automata.specification import Counterexample
from assay.protocols.interface import Ctx, Fault, Message, Node, NodeId, Tag
from assay.protocols.kernel.asynchronous import Asynchronous, Event, Scheduler
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World


class Process(Node):
    """One process. It may take any rule of its location whose guard holds for what it has heard."""

    def __init__(self, automaton: Automaton, location: str, values: Mapping[str, int], forgers: str | None) -> None:
        self.automaton, self.location, self.forgers = automaton, location, forgers
        self.parameters = {name: values[name] for name in automaton.parameters}
        self.heard = {name: values[name] for name in automaton.shared}
        self.moves = 0

    def start(self, ctx: Ctx) -> None:
        """Offers every rule of the first location."""
        self._offer(ctx)

    def _offer(self, ctx: Ctx) -> None:
        mine = [rule for rule in self.automaton.rules if rule.source == self.location and not rule.idle]
        for name in dict.fromkeys(rule.name for rule in mine):
            ctx.timer(1.0, ("rule", name, self.moves))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """Somebody added to a shared variable, or says so."""
        if len(msg) == 3 and msg[0] == "add" and msg[1] in self.heard and isinstance(msg[2], int):
            self.heard[msg[1]] += msg[2]

    def timeout(self, ctx: Ctx, tag: Tag) -> None:
        """Takes the rule if it may, else offers it again."""
        _, name, moves = tag
        if moves != self.moves:
            return
        rule = next((rule for rule in self.automaton.rules_named(name) if not self.missing(rule)), None)
        if rule is None:
            ctx.timer(1.0, tag)
            return
        self.location, self.moves = rule.target, self.moves + 1
        ctx.decide(rule.target, slot=self.moves)
        for variable, by in rule.update:
            ctx.broadcast(("add", variable, by))
        self._offer(ctx)

    def missing(self, rule: Rule) -> list[Linear]:
        """The parts of a rule's guard that do not hold for what this process has heard."""
        return [form for form in rule.guard if self._seen(form) < 0]

    def _seen(self, form: Linear) -> int:
        """A guard on received messages: where forged ones stand in it as `+ f`, they are among those received."""
        known = {**self.parameters, **self.heard}
        if self.forgers is not None and counts_forged(form, self.automaton, self.forgers):
            known[self.forgers] = 0
        return form.value(known)


def counts_forged(form: Linear, automaton: Automaton, forgers: str) -> bool:
    """Whether the guard adds one possible forged message for every faulty process.

    >>> from assay.protocols.taco import load
    >>> broadcast = load("broadcast")
    >>> [counts_forged(form, broadcast, "f") for rule in broadcast.rules for form in rule.guard]
    [True, True]
    """
    factors = {form.factor(name) for name in automaton.shared} - {0}
    return factors == {form.factor(forgers)}


class Forge(Fault):
    """A faulty node: silent, but for one forged message of each kind to each process, when the scheduler likes."""

    def __init__(self, processes: int, kinds: Sequence[str]) -> None:
        self.processes, self.kinds = processes, tuple(kinds)

    def on_start(self, ctx: Ctx) -> None:
        """Prepares all that it may say."""
        for to in range(self.processes):
            for kind in self.kinds:
                ctx.timer(1.0, ("fault", (to, kind)))

    def on_timer(self, ctx: Ctx, tag: Tag) -> None:
        """Says it."""
        to, kind = tag
        ctx.send(to, ("add", kind, 1))


class Follow(Scheduler):
    """Makes processes take their rules in a given order, with as few messages delivered and forged as will do."""

    def __init__(self, plan: Sequence[tuple[NodeId, Rule]]) -> None:
        self.rest = list(plan)[::-1]

    def pick(self, pending: Sequence[Event], view: Asynchronous) -> int:
        """The next step of the plan if its guard holds there, else a message that brings it closer."""
        if not self.rest:
            return -1
        node, rule = self.rest[-1]
        process = view.nodes[node]
        assert isinstance(process, Process)
        wanted = process.missing(rule)
        if not wanted:
            self.rest.pop()
            return _place(pending, -1, node, (("rule", rule.name, process.moves),))
        lacking = {variable for form in wanted for variable in form.names if form.factor(variable) > 0}
        for place, event in enumerate(pending):
            if event.src >= 0 and event.dst == node and event.msg[1] in lacking:
                return place
        for place, event in enumerate(pending):
            tag = event.msg[0]
            if event.src < 0 and tag[0] == "fault" and tag[1][0] == node and tag[1][1] in lacking:
                return place
        return -1


def _place(pending: Sequence[Event], src: NodeId, dst: NodeId, msg: Message) -> int:
    return next((place for place, event in enumerate(pending) if event.identity == (src, dst, msg)), -1)


def population(automaton: Automaton, start: Configuration, seed: int = 0) -> World:
    """The processes of a configuration as nodes, and the faulty ones beside them, which the automaton only counts."""
    if not automaton.increments_only:
        raise ValueError("a message cannot be taken back: an automaton with resets or decrements has no such nodes")
    where = [name for name in automaton.locations for _ in range(start.values[name])]
    forgers = next((name for name in automaton.parameters if name.lower() == "f"), None)
    size = next((name for name in automaton.parameters if name.lower() == "n"), None)
    # Crash faults are locations of the automaton; Byzantine ones are the processes that its start leaves out.
    absent = start.values[size] - len(where) if size is not None else 0
    if forgers is None or absent != start.values[forgers]:
        forgers, absent = None, 0
    nodes: list[Node] = [Process(automaton, location, start.values, forgers) for location in where]
    faults = {len(where) + extra: Forge(len(where), automaton.shared) for extra in range(absent)}
    return World(n=len(where) + absent, f=absent, node=[*nodes, *(Node() for _ in faults)], faults=faults, seed=seed)


def plan(automaton: Automaton, start: Configuration, schedule: Schedule) -> list[tuple[NodeId, Rule]]:
    """Who takes which rule: the schedule names rules, any process in the source will do."""
    waiting: dict[str, list[NodeId]] = {}
    number = 0
    for name in automaton.locations:
        waiting[name] = list(range(number, number + start.values[name]))
        number += start.values[name]
    planned: list[tuple[NodeId, Rule]] = []
    now = start
    for name, times in schedule:
        for _ in range(times):
            rule = next(rule for rule in automaton.rules_named(name) if now.enabled(rule))
            process = waiting[rule.source].pop(0)
            waiting[rule.target].append(process)
            planned.append((process, rule))
            now = now.after(rule)
    return planned


def replay(automaton: Automaton, example: Counterexample) -> Outcome:
    """Run a counterexample on the kernel; ValueError if the processes do not end where it says."""
    world = population(automaton, example.start)
    outcome = world.run("async", scheduler=Follow(plan(automaton, example.start, example.schedule)))
    ended = occupied(automaton, outcome)
    expected = {name: example.trail[-1].values[name] for name in automaton.locations}
    if ended != expected:
        raise ValueError(f"the processes end in {ended}, not in {expected}")
    return outcome


def occupied(automaton: Automaton, outcome: Outcome) -> dict[str, int]:
    """How many processes of a run are in each location."""
    where = [node.location for node in outcome.nodes if isinstance(node, Process)]
    return {name: where.count(name) for name in automaton.locations}
