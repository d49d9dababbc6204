"""Is it safe? Judges of safety, and scenarios in which the classical protocols are attacked.

A judge looks at a run and says what went wrong, in a sentence, or nothing. A scenario is a protocol, a way to corrupt
some of its nodes, and a judge; :func:`attack` runs it under many adversarial schedules and returns the first
violation, cut down to what it takes.

>>> found = attack("broadcast", faulty=1, schedules=50)
>>> found.schedules, found.trace
(50, None)
>>> worse = attack("broadcast", faulty=2, schedules=200)
>>> print(worse.trace.why)  # doctest: +ELLIPSIS
nodes ... and ... decided ... and ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from assay.protocols.faults import Chaos, Crash, Equivocate, Halt, Lie, Omit, Replayed, Silence, compose, flip
from assay.protocols.faults.two_faced import FACE, twins
from assay.protocols.interface import Fault, Message, NodeId
from assay.protocols.kernel.asynchronous import Scheduler
from assay.protocols.kernel.explore import Explored, Judge, arsenal, explore
from assay.protocols.kernel.run import Outcome, blame, contradict
from assay.protocols.kernel.trace import Searched, Trace, replay, search, shrink
from assay.protocols.kernel.world import World
from assay.protocols.nodes.agreement import ABA, IdealCoin
from assay.protocols.nodes.broadcast import Bracha
from assay.protocols.nodes.kv import Client, finished
from assay.protocols.nodes.pbft import Pbft, PbftClient
from assay.protocols.nodes.raft import Raft, RaftClient
from assay.record.errors import BadInput
from assay.sim import own_code
from assay.sim.random import stream

# ------------------------------------------------------------------------------------------------------------ judges


def honest(world: World) -> list[NodeId]:
    """The nodes whose word counts: the correct ones, and those that crash but forget nothing."""
    return [node for node in range(world.n) if node not in world.faults or _remembers(world.faults[node])]


def _remembers(fault: Fault) -> bool:
    return isinstance(fault, Halt) or (isinstance(fault, Crash) and not fault.amnesia)


def agreement(world: World, outcome: Outcome) -> str | None:
    """No two honest nodes decide differently for one slot, and none changes its mind."""
    first: dict[Any, tuple[NodeId, Any]] = {}
    count = set(honest(world))
    for _, node, slot, value in outcome.log:
        if node in count:
            other, said = first.setdefault(slot, (node, value))
            if contradict(said, value):
                where = "" if slot == 0 else f" for slot {slot}"
                return f"nodes {other} and {node} decided {said!r} and {value!r}{where}"
    return None


def integrity(world: World, outcome: Outcome) -> str | None:
    """Nobody honest decides a slot twice."""
    count = set(honest(world))
    taken = [(node, slot) for _, node, slot, _ in outcome.log if node in count]
    twice = [entry for at, entry in enumerate(taken) if entry in taken[:at]]
    return f"node {twice[0][0]} decided slot {twice[0][1]} twice" if twice else None


def totality(world: World, outcome: Outcome) -> str | None:
    """When nothing is under way any more, all correct nodes have decided, or none has."""
    left = [node for node in outcome.correct if not outcome.decisions[node]]
    if outcome.stopped == "quiet" and 0 < len(left) < len(outcome.correct):
        return f"nodes {left} never decided, others did"
    return None


def sent_by(sender: NodeId) -> Judge:
    """Validity of broadcast: if the sender is correct, nobody honest delivers anything but what it sent."""

    def validity(world: World, outcome: Outcome) -> str | None:
        sent = world.inputs[sender] if world.inputs else None
        count = set(honest(world))
        wrong = [entry for entry in outcome.log if entry.node in count and entry.value != sent]
        return f"node {wrong[0].node} delivered {wrong[0].value!r}, not {sent!r}" if wrong and sender in count else None

    return validity


def proposed(world: World, outcome: Outcome) -> str | None:
    """Validity of agreement: what is decided was some honest node's input."""
    inputs = world.inputs or ()
    offered = [inputs[node] for node in honest(world)]
    count = set(honest(world))
    for entry in outcome.log:
        if entry.node in count and entry.value not in offered:
            return f"node {entry.node} decided {entry.value!r}, which nobody honest proposed"
    return None


def asked(world: World, outcome: Outcome) -> str | None:
    """Validity of a replicated store: every command in the log was asked by its client."""
    count = set(honest(world))
    for entry in outcome.log:
        if entry.node not in count:
            continue
        command = entry.value[1] if entry.value is not None and len(entry.value) == 2 else entry.value
        if command is not None:
            client = world.clients[command[0] - world.n]
            assert isinstance(client, Client)
            if not 0 < command[1] <= len(client.operations) or client.operations[command[1] - 1] != command[2:]:
                return f"node {entry.node} executed {command!r}, which nobody asked"
    return None


def linearizable(world: World, outcome: Outcome) -> str | None:
    """What the clients saw can be explained by one store that does one operation at a time."""
    from assay.protocols.judges import linearizable as judge

    if not outcome.operations:
        return None
    judgement = judge.judge(outcome.operations)
    return f"not linearizable: {judgement.reason}" if judgement.verdict == "violated" else None


def mutual_exclusion(world: World, outcome: Outcome) -> str | None:
    """No two honest nodes hold one lock at once: an acquire that returned holds it until its node begins a release."""
    count = {*honest(world), *range(world.n, world.n + len(world.clients))}
    held: dict[Any, list[tuple[float, float, NodeId]]] = {}
    since: dict[tuple[NodeId, Any], float] = {}
    for operation in sorted(outcome.operations, key=_when):
        owner = operation.process, repr(operation.key)
        if operation.f == "acquire" and operation.status == "ok" and operation.result is not False:
            since[owner] = operation.complete
        elif operation.f == "release" and owner in since:
            held.setdefault(owner[1], []).append((since.pop(owner), operation.invoke, owner[0]))
    for (node, key), begun in since.items():
        held.setdefault(key, []).append((begun, math.inf, node))
    for stays in held.values():
        mine = sorted(stay for stay in stays if stay[2] in count)
        for place, (begun, ended, node) in enumerate(mine):
            for later, gone, other in mine[place + 1 :]:
                if other != node and begun < gone and later < ended:
                    return f"nodes {node} and {other} were both inside at {max(begun, later):g}"
    return None


def _when(operation: Any) -> float:
    """When it begins to count: an acquire as it returns, a release as it is asked for."""
    return float(operation.complete if operation.f == "acquire" else operation.invoke)


def own_judge(name: str) -> Judge:
    """A judge of the user's own, ``FILE.py:function``: (world, outcome) to what is wrong, or None.

    `outcome` has `log` (decisions), `operations`, `trace` (deliveries), `nodes` (as they are at the end), `correct`.

    Raises:
        BadInput: it cannot be loaded; later, where it fails or answers something else.

    """
    function = own_code.load(name)
    if not callable(function):
        raise BadInput(f"'{name}' is no judge; a function of (world, outcome) expected")

    def judge(world: World, outcome: Outcome) -> str | None:
        try:
            said = function(world, outcome)
        except Exception as error:
            raise BadInput(f"the judge failed: {blame(error)}") from error
        if said is not None and not isinstance(said, bool | str):
            raise BadInput(f"the judge '{name}' answered {said!r:.60}; what is wrong, or None, expected")
        return f"{name.rpartition(':')[2]} objects" if said is True else said or None

    return judge


def all_of(*judges: Judge) -> Judge:
    """The first objection of several judges."""

    def judge(world: World, outcome: Outcome) -> str | None:
        return next((said for one in judges if (said := one(world, outcome)) is not None), None)

    return judge


# --------------------------------------------------------------------------------------------------------- scenarios


def corrupt(world: World, faulty: int, seed: int) -> World:
    """The world with so many Byzantine nodes, drawn by the seed: twins, or liars of several kinds."""
    rng = stream(seed, "corrupt")
    chosen = rng.permutation(world.n)[:faulty].tolist()
    if rng.random() < 0.5:
        total = world.n + len(world.clients)
        half = [node for node in range(total) if rng.random() < 0.5]
        inputs = [*(world.inputs or ()), *[None] * world.n]
        faces = {node: (inputs[node], _another(inputs[node])) for node in chosen}
        return twins(world, faces, half)
    kinds = (
        Equivocate(), Lie(), Chaos(0.3), Replayed(), compose(Omit(0.3), Equivocate()), compose(Silence(), Fault()),
        Equivocate(half=rng.permutation(world.n)[: world.n // 2].tolist()),
    )  # fmt: skip
    return replace(world, faults={node: kinds[int(rng.integers(len(kinds)))] for node in chosen})


def _another(value: Any) -> Any:
    return 1 - value if value in (0, 1) else None if value is None else f"not {value}"


def reboot(world: World, faulty: int, seed: int) -> World:
    """The world with so many nodes that crash and come back, with their disks, whenever the adversary likes."""
    chosen = stream(seed, "reboot").permutation(world.n)[:faulty].tolist()
    return replace(world, faults={node: Crash(at=math.inf, recover=1.0) for node in chosen})


def forget(world: World, faulty: int, seed: int) -> World:
    """The same, but their disks are empty when they come back."""
    chosen = stream(seed, "reboot").permutation(world.n)[:faulty].tolist()
    return replace(world, faults={node: Crash(at=math.inf, recover=1.0, amnesia=True) for node in chosen})


def halt(world: World, faulty: int, seed: int) -> World:
    """The world with so many nodes that stop for good, each after a number of messages drawn by the seed."""
    rng = stream(seed, "halt")
    chosen = rng.permutation(world.n)[:faulty].tolist()
    return replace(world, faults={node: Halt(int(rng.integers(0, 6 * world.n))) for node in chosen})


def broadcast_world(seed: int) -> World:
    """Bracha's broadcast among four."""
    return World(n=4, f=1, node=Bracha, inputs=["a", None, None, None], seed=seed)


def agreement_world(seed: int) -> World:
    """Binary agreement among four, with inputs and coins by the seed."""
    inputs = stream(seed, "inputs").integers(0, 2, 4).tolist()
    return World(n=4, f=1, node=partial(ABA, partial(IdealCoin, seed)), inputs=inputs, seed=seed)


_ASKS = (
    (("write", "x", 1), ("read", "x", None)),
    (("write", "x", 2), ("cas", "x", (1, 3)), ("read", "x", None)),
)


def raft_world(seed: int) -> World:
    """Three Raft servers and two clients."""
    return World(n=3, f=1, node=Raft, clients=[RaftClient(operations) for operations in _ASKS], seed=seed)


def pbft_world(seed: int) -> World:
    """Four PBFT replicas and two clients; a checkpoint every second place."""
    clients = [PbftClient(operations) for operations in _ASKS]
    return World(n=4, f=1, node=partial(Pbft, interval=2), clients=clients, seed=seed)


@dataclass(frozen=True)
class Scenario:
    """A protocol under attack."""

    world: Callable[[int], World]
    """By the seed, all nodes correct."""
    corrupt: Callable[[World, int, int], World]
    """The world, how many nodes, the seed."""
    judge: Judge
    until: Callable[[Outcome], bool] | None
    limit: int
    """Deliveries in a run."""
    total: bool = False
    """Whether, up to f faults, some correct nodes must not decide while others never do."""
    traced: bool = False
    """Whether the judge looks at deliveries."""


_STORE = all_of(agreement, asked, linearizable)
SCENARIOS = {
    "broadcast": Scenario(
        broadcast_world, corrupt, all_of(agreement, integrity, sent_by(0)), None, 2_000, total=True
    ),
    "aba": Scenario(agreement_world, corrupt, all_of(agreement, integrity, proposed), None, 2_000, total=True),
    "raft": Scenario(raft_world, reboot, _STORE, finished, 300),
    "raft-forgetful": Scenario(raft_world, forget, _STORE, finished, 300),
    "pbft": Scenario(pbft_world, corrupt, _STORE, finished, 300),
}  # fmt: skip


@dataclass(frozen=True)
class Hunt:
    """A scenario, so many nodes corrupted, so many adversarial schedules."""

    scene: Scenario
    faulty: int
    schedules: int
    seconds: float = 3600.0
    around: Callable[[Scheduler], Scheduler] = lambda inner: inner
    """What stands between the schedulers and the run: a partition."""

    @property
    def judge(self) -> Judge:
        """Where a protocol promises it, some correct nodes decided and others not is wrong too, up to f faults."""
        scene = self.scene
        total = scene.total and self.faulty <= scene.world(0).f
        return all_of(scene.judge, totality) if total else scene.judge

    def world(self, seed: int) -> World:
        """The corrupted world of this seed."""
        world = self.scene.world(seed)
        return self.scene.corrupt(world, self.faulty, seed) if self.faulty else world

    def run(self, first: int = 0) -> Searched:
        """Search, from this seed on."""
        scene, world = self.scene, self.world(first)
        if self.faulty > world.n or not honest(world):
            raise ValueError(f"{self.faulty} of {world.n} nodes faulty leaves nobody to be judged; fewer expected")
        return search(
            self.world, self.judge, self.schedules, first=first, limit=scene.limit, until=scene.until,
            seconds=self.seconds, traced=scene.traced, around=self.around,
        )  # fmt: skip

    def replay(self, trace: Trace, seed: int) -> str | None:
        """What is wrong with the run that a trace tells of, in the world of this seed."""
        world = self.world(seed)
        return self.judge(world, replay(world, trace.events))


def attack(name: str, faulty: int, schedules: int, *, first: int = 0, seconds: float = 3600.0) -> Searched:
    """Run a scenario with so many faulty nodes under so many adversarial schedules."""
    if name not in SCENARIOS:
        raise ValueError(f"no scenario '{name}'; one of {', '.join(SCENARIOS)} expected")
    return Hunt(SCENARIOS[name], faulty, schedules, seconds).run(first)


Corrupt = Callable[[World, int, int], World]
CORRUPTIONS: dict[str, Corrupt] = {"byzantine": corrupt, "crash": halt, "recover": reboot, "amnesia": forget}
"""What may befall nodes in a search: lies of every kind, stopping for good, a reboot with the disk or without."""


def own_scenario(
    world: Callable[[int], World], judge: Judge = agreement, limit: int = 2_000, *, faults: str = "byzantine",
    traced: bool = False,
) -> Scenario:  # fmt: skip
    """Anybody's protocol as a scenario: `world` makes it, by the seed, with all nodes correct.

    >>> from assay.protocols.nodes.broadcast import Bracha
    >>> scene = own_scenario(lambda seed: World(n=3, f=0, node=Bracha, inputs=["a"], seed=seed))
    >>> Hunt(scene, faulty=1, schedules=500).run().trace is not None  # with f = 0 one liar is one too many
    True
    """
    return Scenario(world, CORRUPTIONS[faults], judge, None, limit, traced=traced)


# ------------------------------------------------------------------------------------------------------ every schedule

JUDGES: dict[str, Judge] = {"agreement": agreement, "integrity": integrity, "proposed": proposed}
"""The judges that need no end of a run: what they object to in the middle stays wrong."""
SEARCHED: dict[str, Judge] = {
    **JUDGES, "totality": totality, "linearizable": linearizable, "mutual-exclusion": mutual_exclusion,
}  # fmt: skip
"""The judges of a search, which sees whole runs."""


def repertoire(world: World, liars: Iterable[NodeId]) -> list[Message]:
    """What these nodes might say: all that they send in runs in which they have two faces, all being on either side.

    Where no liar has an input both faces say the same, so they say it forged as well.

    >>> repertoire(World(n=4, f=1, node=Bracha, inputs=["a"]), [0])
    [('echo', 'a'), ('echo', 'not a'), ('ready', 'a'), ('ready', 'not a'), ('send', 'a'), ('send', 'not a')]
    >>> repertoire(World(n=4, f=1, node=Bracha, inputs=["a"]), [3])
    [('echo', "a'"), ('echo', 'a'), ('ready', "a'"), ('ready', 'a')]
    """
    inputs = [*(world.inputs or ()), *[None] * world.n]
    faces = {node: (inputs[node], _another(inputs[node])) for node in liars}
    said: set[Message] = set()
    for half in ((), range(world.n + len(world.clients))):
        outcome = twins(world, faces, half).run("async", metered=False, traced=True, limit=2_000)
        for _, src, _, msg in outcome.trace:
            if src in faces:
                said.add(msg[2] if msg[0] == FACE else msg)
    if all(first is None for first, _ in faces.values()):
        said |= {flip(msg) for msg in said}
    return sorted(said, key=repr)


def exhaust(
    world: World, judge: Judge, *, faulty: int = 0, lies: Sequence[Message] | None = None, timers: int = 0,
    depth: int | None = None, states: int = 1_000_000, seconds: float = 60.0,
) -> tuple[Explored, Trace | None]:  # fmt: skip
    """Every schedule of a small world whose first nodes lie; what was seen, and the shortest way found to a violation.

    A liar may send any of `lies` (its :func:`repertoire`, unless told otherwise) to anybody, at any time or never.

    >>> found, trace = exhaust(World(n=4, f=1, node=Bracha, inputs=["a"]), agreement, faulty=1)
    >>> found.complete, trace
    (True, None)
    """
    if faulty >= world.n:
        raise ValueError(f"{faulty} of {world.n} nodes faulty leaves nobody to be judged; fewer expected")
    corrupted = replace(world, faults={node: Fault() for node in range(faulty)})
    said = repertoire(world, range(faulty)) if lies is None else lies
    found = explore(
        corrupted, judge, arsenal(corrupted, said), timers=timers, depth=depth, states=states, seconds=seconds
    )
    if found.violation is None:
        return found, None
    try:
        return found, shrink(corrupted, judge, found.violation)
    except ValueError:  # what a node does with the time, which stands still in the search, is not repeated
        return found, Trace(found.violation, found.why, world.seed)
