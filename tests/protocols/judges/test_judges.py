"""What judges say of histories that everybody knows, and what they refuse."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from assay.protocols.judges import causal, drawing, linearizable, sequential, sessions, specifications
from assay.protocols.judges.judgement import HOLDS, UNKNOWN, VIOLATED, Budget
from assay.protocols.judges.strongest import judge, strongest
from assay.record.errors import BadInput
from assay.sim.random import stream
from assay.workloads.histories import Operation
from tests.oracles import histories as oracle


def write(process: int, value: object, begin: float, end: float, key: str = "x") -> Operation:
    return Operation(process, "write", key, value, None, begin, end)


def read(process: int, result: object, begin: float, end: float, key: str = "x") -> Operation:
    return Operation(process, "read", key, None, result, begin, end)


def test_a_write_that_never_returned_may_take_effect_late_or_never() -> None:
    lost = Operation(0, "write", "x", 1, None, 0.0, math.inf, "info")
    assert linearizable.judge([lost, read(1, None, 1, 2), read(1, 1, 3, 4)]).verdict == HOLDS
    assert linearizable.judge([lost, read(1, None, 1, 2)]).verdict == HOLDS
    assert linearizable.judge([lost, read(1, 1, 1, 2), read(1, None, 3, 4)]).verdict == VIOLATED


def test_a_write_that_failed_must_not_be_seen() -> None:
    failed = Operation(0, "write", "x", 1, None, 0.0, 1.0, "fail")
    judgement = linearizable.judge([failed, read(1, 1, 2, 3)])
    assert (judgement.verdict, judgement.witness) == (VIOLATED, (1,))
    assert judgement.reason == "returns a value that nobody wrote: #1 p1 read x → 1"


def test_a_search_that_runs_out_says_so_and_how_far_it_came() -> None:
    random = stream(0, "hard")
    hard = [Operation(i, "cas", "x", (i, i + 1), True, 0.0, 100.0) for i in range(40)]
    hard += [Operation(100 + i, "write", "x", int(random.integers(40)), None, 0.0, 100.0) for i in range(20)]
    hard.append(read(200, 99, 101.0, 102.0))
    judgement = linearizable.judge(hard, budget=Budget(nodes=500))
    assert judgement.verdict == UNKNOWN and "500 steps" in judgement.reason
    assert 0 <= judgement.prefix < len(hard)


def test_a_search_stays_within_its_memory() -> None:
    hard = [Operation(i, "cas", "x", (i, i + 1), True, 0.0, 100.0) for i in range(60)]
    assert linearizable.judge(hard[1:], budget=Budget(memory=2_000)).verdict in (UNKNOWN, VIOLATED)


def test_values_written_twice_make_causality_unknown_not_wrong() -> None:
    history = [write(0, 1, 0, 1), write(1, 1, 2, 3), read(0, 1, 4, 5)]
    for model in causal.MODELS:
        assert causal.judge(history, model).verdict == UNKNOWN
    assert "write the same value to one key" in causal.judge(history).reason
    assert strongest(history).maximal[0] == "linearizable"


def test_sequential_consistency_is_not_judged_key_by_key() -> None:
    history = [write(0, 1, 0, 1, "x"), read(0, None, 2, 3, "y"), write(1, 1, 0, 1, "y"), read(1, None, 2, 3, "x")]
    assert [sequential.judge([i for i in history if i.key == key]).verdict for key in "xy"] == [HOLDS, HOLDS]
    assert sequential.judge(history).verdict == VIOLATED


@pytest.mark.parametrize(
    ("operation", "spec", "what"),
    [
        (Operation(0, "pop", None, None, 1, 0, 1), "queue", "operation #0 is 'pop'; a queue knows dequeue, enqueue"),
        (Operation(0, "cas", None, 3, True, 0, 1), "cas-register", "a pair (old, new) would be right"),
        (Operation(0, "read", None, None, 3, 0, 1), "set", "the set would be right"),
        (Operation(0, "read", None, None, "many", 0, 1), "counter", "a number would be right"),
        (Operation(0, "transfer", None, 3, None, 0, 1), "bank", "from, to and amount would be right"),
        (Operation(0, "transfer", None, ("a", "b", 1), None, 0, 1), "bank", "nobody knows what account 'a' held"),
        (Operation(0, "txn", None, [["w", 1, 2]], None, 0, 1), "list-append", "a list of [append, key, value]"),
        (Operation(0, "append", None, 3, None, 0, 1), "kv", "a string would be right"),
    ],
)
def test_an_operation_that_does_not_fit_the_specification_is_named(operation: Operation, spec: str, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        linearizable.judge([operation], specifications.load(spec))
    assert what in str(caught.value)


def test_a_specification_of_ones_own_is_loaded_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "class Toggle:\n    initial = False\n    def step(self, state, operation):\n"
        "        return (operation.result == (not state)), not state\n"
    )
    toggle = specifications.load(f"{path}:Toggle")
    flips = [Operation(0, "flip", None, None, i % 2 == 0, 2 * i, 2 * i + 1) for i in range(4)]
    assert linearizable.judge(flips, toggle).verdict == HOLDS
    judgement = linearizable.judge([*flips, Operation(1, "flip", None, None, False, 9, 10)], toggle)
    assert judgement.verdict == VIOLATED and judgement.prefix == 4
    for bad, what in (
        (f"{path}:Switch", "a class with 'initial' and 'step"),
        ("own.py:Toggle", "no file own.py"),
        ("switch", "no specification 'switch'; there are register"),
    ):
        with pytest.raises(BadInput, match=what):
            specifications.load(bad)


def test_a_model_that_does_not_exist_is_refused() -> None:
    history = [write(0, 1, 0, 1)]
    for call in (
        lambda: judge(history, "eventual"),
        lambda: causal.judge(history, "x"),
        lambda: sessions.judge(history, "y"),
    ):
        with pytest.raises(ValueError, match="there are"):
            call()


def test_a_drawing_shows_what_overlaps() -> None:
    history = [write(0, 1, 0, 4), read(1, 1, 2, 6), Operation(0, "write", "x", 2, None, 5, math.inf, "info")]
    first, second = drawing.draw(history, [0, 1, 2]).splitlines()
    assert first.startswith("p0") and second.startswith("p1")
    assert "#0 write x 1" in first and "#2 write x 2" in first and first.endswith("┄")
    assert second.index("├") < first.index("┤") < second.index("┤")
    assert all(len(line) <= 30 for line in drawing.draw(history, [0, 1, 2], 30).splitlines())


def test_a_call_that_was_left_behind_is_nobodys_even_if_what_came_after_it_says_nothing() -> None:
    history = [
        Operation(2, "cas", "x", (2, 0), True, 0.0, 2.0),
        Operation(1, "write", "x", 0, None, 2.0, 4.0),
        Operation(2, "write", "x", 2, None, 3.0, math.inf, "info"),
        Operation(0, "read", "x", None, 0, 5.0, 6.0),
        Operation(2, "read", "x", None, None, 6.0, math.inf, "info"),
    ]
    assert sequential.judge(history, specifications.SPECIFICATIONS["cas-register"]).verdict == HOLDS
    assert oracle.sequential(history, oracle.legal_register)
    assert sequential.judge(history[:-1], specifications.SPECIFICATIONS["cas-register"]).verdict == VIOLATED
    assert not oracle.sequential(history[:-1], oracle.legal_register)
