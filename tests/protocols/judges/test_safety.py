"""Safety is searched for, not assumed: f faults break nothing that we can find, one more does, and we can show how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.protocols.faults import Crash
from assay.protocols.faults.two_faced import twins
from assay.protocols.interface import Fault, Message
from assay.protocols.judges.safety import (
    SCENARIOS,
    agreement,
    agreement_world,
    all_of,
    asked,
    attack,
    integrity,
    linearizable,
    proposed,
    raft_world,
    sent_by,
    totality,
)
from assay.protocols.kernel.explore import Identity, arsenal, explore
from assay.protocols.kernel.meter import Meter
from assay.protocols.kernel.run import Decision, Outcome
from assay.protocols.kernel.signatures import Ideal
from assay.protocols.kernel.trace import load, replay, save, search
from assay.protocols.kernel.world import World
from assay.protocols.nodes import pbft_proofs as proofs
from assay.protocols.nodes.broadcast import Bracha
from assay.protocols.nodes.kv import finished
from assay.protocols.nodes.pbft import Pbft, PbftClient
from assay.protocols.nodes.raft import Raft, RaftClient
from assay.workloads.histories import Operation

QUICK = {"broadcast": 400, "aba": 80, "raft": 120, "pbft": 60}


# ------------------------------------------------------------------------------------------- adversarial schedules


@pytest.mark.parametrize("name", QUICK)
def test_f_faults_break_nothing_in_adversarial_schedules(name: str) -> None:
    found = attack(name, faulty=1, schedules=QUICK[name])
    assert found.trace is None and found.schedules == QUICK[name] and found.finished > QUICK[name] // 3


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_f_faults_break_nothing_in_a_hundred_thousand_schedules(name: str) -> None:
    found = attack(name, faulty=1, schedules=100_000)
    assert found.trace is None and found.schedules == 100_000


@pytest.mark.parametrize("name", ["broadcast", "aba", "pbft"])
def test_one_liar_too_many_is_found_shrunk_and_replayed_from_a_file(name: str, tmp_path: Path) -> None:
    found = attack(name, faulty=2, schedules=2_000)
    assert found.trace is not None and len(found.trace.events) < found.length
    scene = SCENARIOS[name]
    world = scene.corrupt(scene.world(found.seed), 2, found.seed)
    save(tmp_path / "trace.json", world, found.trace)
    again = load(tmp_path / "trace.json")
    assert scene.judge(world, replay(world, again.events)) == found.trace.why
    for place in range(len(again.events)):
        fewer = again.events[:place] + again.events[place + 1 :]
        assert scene.judge(world, replay(world, fewer)) is None


def test_two_liars_make_correct_nodes_decide_differently_in_binary_agreement() -> None:
    def make(seed: int) -> World:
        world = replace(agreement_world(seed), inputs=[0, 1, 0, 1])
        return twins(world, {0: (0, 1), 1: (0, 1)}, half={3})

    found = search(make, agreement, 50)
    assert found.trace is not None and "decided" in found.trace.why


# ---------------------------------------------------------------------------------------------- Raft and its disk


def test_any_number_of_reboots_breaks_nothing_as_long_as_the_disks_are_kept() -> None:
    found = attack("raft", faulty=3, schedules=60)
    assert found.trace is None


def test_a_server_that_comes_back_empty_breaks_raft() -> None:
    found = attack("raft-forgetful", faulty=1, schedules=3_000)
    assert found.trace is not None and any(event[2] == (("fault", "recover"),) for event in found.trace.events)


class ForgetsVote(Raft):
    """Keeps its term and its log, but not whom it voted for."""

    stable = ("term", "log", "boots")


def forgets_vote(seed: int) -> World:
    """Server 0 reboots whenever the adversary likes."""
    return replace(raft_world(seed), node=ForgetsVote, faults={0: Crash(at=math.inf, recover=1.0)})


REBOOT: Identity = (-1, 0, (("fault", "recover"),))


def votes(leader: int) -> list[Identity]:
    """A server times out, and server 0 votes for it."""
    return [(-1, leader, (("election", 1),)), (leader, 0, ("ask", 1, 0, 0)), (0, leader, ("vote", 1, True))]


def commits(leader: int, client: int, request: tuple[Any, ...]) -> list[Identity]:
    """A leader commits a client's request with server 0."""
    return [
        (client, leader, ("request", 1, *request)),
        (leader, 0, ("append", 1, 0, 0, ((1, None),), 0)),
        (leader, 0, ("append", 1, 1, 1, ((1, (client, 1, *request)),), 0)),
        (0, leader, ("appended", 1, True, 1)),
        (0, leader, ("appended", 1, True, 2)),
    ]


def test_a_server_that_forgets_only_its_vote_elects_two_leaders_who_commit_differently() -> None:
    retry = [(-1, client, (("retry", 1),)) for client in (3, 4, 4)]  # the clients turn to servers 1 and 2
    first, second = commits(1, 3, ("write", "x", 1)), commits(2, 4, ("write", "x", 2))
    events = [*retry, *votes(1), REBOOT, *votes(2), *first, *second]
    world = forgets_vote(0)
    outcome = replay(world, events)
    assert "nodes 1 and 2 decided" in (agreement(world, outcome) or "")
    kept = replace(world, node=Raft)
    again = replay(kept, events)
    assert again.log and agreement(kept, again) is None


@pytest.mark.slow
def test_a_server_that_forgets_only_its_vote_is_found_out() -> None:
    found = search(forgets_vote, agreement, 100_000, limit=100)
    assert found.trace is not None and REBOOT in found.trace.events


def test_f_plus_one_crashes_stall_raft_and_break_nothing() -> None:
    scene = SCENARIOS["raft"]
    world = replace(scene.world(1), faults={0: Crash(), 1: Crash()})
    outcome = world.run("timed", until=finished, limit=30)
    assert outcome.stopped == "limit" and outcome.log == [] and scene.judge(world, outcome) is None
    assert all(operation.status == "info" for operation in outcome.operations)


# ------------------------------------------------------------------------------------------ exhaustive exploration


def first_round(event: Identity) -> bool:
    """Whether a message of binary agreement belongs to the first round, or ends it all."""
    msg = event[2]
    number: int = 1 if msg[0] == "done" else msg[1][1] if msg[0] == "/" else msg[1]
    return number == 1


ALPHABETS: dict[str, list[Message]] = {
    "nothing": [],
    "aux": [("aux", 1, 0, 0), ("aux", 1, 0, 1)],
    "done": [("done", 0), ("done", 1)],
}


@pytest.mark.parametrize("alphabet", ["nothing", "done", pytest.param("aux", marks=pytest.mark.slow)])
def test_every_schedule_of_a_round_of_binary_agreement_is_safe(alphabet: str) -> None:
    for seed in (0, 1):  # coins that show either side
        faulty: Fault = Fault() if ALPHABETS[alphabet] else Crash()
        world = replace(agreement_world(seed), inputs=[0, 0, 1, 1], faults={3: faulty})
        judge = all_of(agreement, proposed)
        found = explore(world, judge, arsenal(world, ALPHABETS[alphabet]), only=first_round, seconds=300)
        assert found.complete and found.violation is None


def test_exploration_finds_what_two_liars_can_do_to_binary_agreement() -> None:
    world = replace(agreement_world(0), inputs=[1, 1, 0, 0], faults={2: Fault(), 3: Fault()})
    lies: list[Message] = [("bval", 1, 0, 0), ("aux", 1, 0, 0), ("conf", 1, 1), ("done", 0)]
    found = explore(world, all_of(agreement, proposed), arsenal(world, lies), only=first_round)
    assert found.violation is not None and proposed(world, replay(world, found.violation)) == found.why


@pytest.mark.slow
def test_every_schedule_of_raft_with_one_timeout_each_is_safe() -> None:
    world = World(n=3, f=1, node=Raft, clients=[RaftClient([("write", "x", 1)])], seed=1)
    found = explore(world, agreement, timers=1, seconds=600)
    assert found.complete and found.violation is None and found.states > 100_000


def test_raft_is_safe_in_the_first_states_of_two_elections() -> None:
    world = World(n=3, f=1, node=Raft, clients=[RaftClient([("write", "x", 1)])], seed=1)
    found = explore(world, agreement, timers=2, states=20_000)
    assert not found.complete and found.violation is None and found.states == 20_000


def two_proposals(places: Sequence[int], liars: Sequence[int]) -> tuple[World, list[Identity]]:
    """PBFT with a primary that proposes both clients' requests for one place, and what its accomplices can add."""
    clients = [PbftClient([("write", "x", 1)]), PbftClient([("write", "x", 2)])]
    world = World(n=4, f=1, node=Pbft, clients=clients, seed=1, faults={liar: Fault() for liar in liars})
    scheme = Ideal(world.seed)
    said: list[Identity] = []
    for command in ((4, 1, "write", "x", 1), (5, 1, "write", "x", 2)):
        request = (command, scheme.sign(command[0], proofs.signed("request", *command)))
        name = proofs.digest(request)
        for place in places:
            for liar in liars:
                kind = "prepare" if liar else "pre-prepare"
                mark = scheme.sign(liar, proofs.signed(kind, 0, place, name))
                lie = (kind, 0, place, name, mark) if liar else (kind, 0, place, request, mark)
                both: tuple[Message, ...] = (lie, ("commit", 0, place, name))
                said += [(liar, dst, one) for dst in range(4) if dst not in liars for one in both]
    return world, said


def test_every_schedule_of_pbft_with_a_lying_primary_is_safe() -> None:
    world, said = two_proposals([1], [0])
    found = explore(world, all_of(agreement, asked), said)
    assert found.complete and found.violation is None and found.states > 1_000


def test_exploration_finds_what_a_lying_primary_and_an_accomplice_can_do_to_pbft() -> None:
    world, said = two_proposals([1], [0, 1])
    found = explore(world, agreement, said)
    assert found.violation is not None and agreement(world, replay(world, found.violation)) == found.why


@pytest.mark.slow
def test_pbft_is_safe_in_many_states_with_changes_of_view() -> None:
    world, said = two_proposals([1], [0])
    found = explore(world, all_of(agreement, asked), said, timers=1, states=500_000, seconds=300)
    assert found.violation is None


# ------------------------------------------------------------------------------------------------------- the judges


def outcome_of(world: World, log: Sequence[tuple[int, Any, Any]], stopped: str = "quiet") -> Outcome:
    decisions: dict[int, dict[Any, Any]] = {node: {} for node in range(world.n)}
    for node, slot, value in log:
        decisions[node].setdefault(slot, value)
    correct = tuple(node for node in range(world.n) if node not in world.faults)
    entries = [Decision(0.0, *entry) for entry in log]
    return Outcome(world.n, correct, Meter(world.n), decisions, entries, stopped=stopped)


FOUR = World(n=4, f=1, node=Bracha, inputs=["a", "b", "a", "c"], faults={3: Fault()})


def test_agreement_looks_at_honest_nodes_slot_by_slot() -> None:
    assert agreement(FOUR, outcome_of(FOUR, [(0, 1, "a"), (1, 2, "b"), (3, 1, "c")])) is None
    assert agreement(FOUR, outcome_of(FOUR, [(0, 1, "a"), (1, 1, "b")])) is not None
    assert agreement(FOUR, outcome_of(FOUR, [(0, 1, "a"), (0, 1, "b")])) is not None
    rebooted = replace(FOUR, faults={3: Crash(1.0, 2.0)})
    assert agreement(rebooted, outcome_of(rebooted, [(0, 1, "a"), (3, 1, "c")])) is not None


def test_integrity_allows_one_decision_a_slot() -> None:
    assert integrity(FOUR, outcome_of(FOUR, [(0, 0, "a"), (0, 1, "a"), (3, 0, "a"), (3, 0, "a")])) is None
    assert integrity(FOUR, outcome_of(FOUR, [(0, 0, "a"), (0, 0, "a")])) is not None


def test_totality_is_all_or_none_when_all_is_quiet() -> None:
    assert totality(FOUR, outcome_of(FOUR, [])) is None
    assert totality(FOUR, outcome_of(FOUR, [(node, 0, "a") for node in range(3)])) is None
    assert totality(FOUR, outcome_of(FOUR, [(0, 0, "a")], "limit")) is None
    assert totality(FOUR, outcome_of(FOUR, [(0, 0, "a")])) is not None


def test_validity_of_broadcast_and_of_agreement() -> None:
    assert sent_by(0)(FOUR, outcome_of(FOUR, [(1, 0, "a")])) is None
    assert sent_by(0)(FOUR, outcome_of(FOUR, [(1, 0, "b")])) is not None
    assert sent_by(3)(FOUR, outcome_of(FOUR, [(1, 0, "b")])) is None  # a faulty sender may have sent anything
    assert proposed(FOUR, outcome_of(FOUR, [(1, 0, "b"), (3, 0, "z")])) is None
    assert proposed(FOUR, outcome_of(FOUR, [(1, 0, "c")])) is not None


def test_only_what_clients_asked_may_be_executed() -> None:
    world = World(n=3, f=1, node=Raft, clients=[RaftClient([("write", "x", 1)])])
    assert asked(world, outcome_of(world, [(0, 1, (1, None)), (0, 2, (1, (3, 1, "write", "x", 1)))])) is None
    assert asked(world, outcome_of(world, [(0, 1, (1, (3, 1, "write", "x", 2)))])) is not None
    assert asked(world, outcome_of(world, [(0, 1, (1, (3, 2, "write", "x", 1)))])) is not None


def test_a_stale_read_is_not_linearizable() -> None:
    outcome = outcome_of(FOUR, [])
    outcome.operations = [
        Operation(4, "write", "x", 1, None, 0.0, 1.0), Operation(5, "read", "x", None, None, 2.0, 3.0),
    ]  # fmt: skip
    assert "not linearizable" in (linearizable(FOUR, outcome) or "")
    outcome.operations[1] = outcome.operations[1]._replace(result=1)
    assert linearizable(FOUR, outcome) is None


def test_an_unknown_scenario_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="one of broadcast, aba"):
        attack("paxos", 1, 1)
