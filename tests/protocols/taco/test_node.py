"""Automata as processes that send messages, and nodes that are to behave like their automaton."""

from __future__ import annotations

import pytest

from assay.protocols import taco
from assay.protocols.automata.automaton import configuration, steps
from assay.protocols.automata.specification import Counterexample
from assay.protocols.kernel.asynchronous import Random
from assay.protocols.taco import node


def example(
    name: str, parameters: dict[str, int], counts: dict[str, int], *schedule: tuple[str, int]
) -> Counterexample:
    """A run of a built-in automaton, as if it were a counterexample."""
    automaton = taco.load(name)
    start = configuration(automaton, parameters, counts)
    ends = [list(steps(automaton, start, schedule[:entries]))[-1] for entries in range(len(schedule) + 1)]
    return Counterexample(parameters, start, schedule, tuple(ends))


class TestProcesses:
    def test_a_schedule_is_repeated_by_processes_that_exchange_messages(self) -> None:
        run = example("broadcast", {"n": 4, "t": 1, "f": 0}, {"having": 3, "without": 1}, ("0", 3), ("2", 1))
        outcome = node.replay(taco.load("broadcast"), run)
        assert node.occupied(taco.load("broadcast"), outcome) == {
            "without": 1, "having": 0, "relayed": 2, "accepted": 1,
        }  # fmt: skip
        assert outcome.meter.messages > 0

    def test_faulty_processes_forge_only_what_a_step_needs(self) -> None:
        run = example("broadcast", {"n": 4, "t": 1, "f": 1}, {"having": 3}, ("0", 2), ("2", 1))
        outcome = node.replay(taco.load("broadcast"), run)
        forged = sum(process.heard["copies"] for process in outcome.nodes if isinstance(process, node.Process))
        assert outcome.nodes[0].heard["copies"] == 3  # type: ignore[attr-defined]
        assert forged == 4  # its own copy, one that came, one forged; and the other one's own

    def test_a_process_does_not_take_a_rule_on_messages_it_has_not_received(self) -> None:
        broadcast = taco.load("broadcast")
        world = node.population(broadcast, configuration(broadcast, {"n": 4, "t": 1, "f": 1}, {"without": 3}))
        outcome = world.run("async", scheduler=Random(1), limit=3_000)
        # One faulty process can forge one copy, and t + 1 = 2 are needed.
        assert node.occupied(broadcast, outcome)["without"] == 3

    def test_under_a_random_scheduler_everybody_accepts_at_last(self) -> None:
        broadcast = taco.load("broadcast")
        world = node.population(
            broadcast, configuration(broadcast, {"n": 4, "t": 1, "f": 1}, {"without": 1, "having": 2})
        )
        outcome = world.run("async", scheduler=Random(2, timers=1.0), limit=3_000)
        assert node.occupied(broadcast, outcome)["accepted"] == 3

    def test_a_wrong_end_is_noticed(self) -> None:
        right = example("broadcast", {"n": 4, "t": 1, "f": 0}, {"having": 4}, ("0", 3), ("2", 1))
        wrong = Counterexample(right.parameters, right.start, right.schedule, right.trail[:-1])
        with pytest.raises(ValueError, match="the processes end in"):
            node.replay(taco.load("broadcast"), wrong)

    def test_resets_have_no_messages(self) -> None:
        rounds = taco.load("rounds")
        with pytest.raises(ValueError, match="cannot be taken back"):
            node.population(rounds, configuration(rounds, {"n": 4, "t": 1, "f": 0}, {"having": 4}))
