"""What judges say of histories that everybody knows, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from assay.protocols.judges import causal, linearizable, list_append, sequential, sessions, specifications
from assay.protocols.judges.judgement import HOLDS, UNKNOWN, VIOLATED, Budget, draw, explain, name
from assay.protocols.judges.lattice import judge, strongest
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


def lost_writes(each: int) -> list[Operation]:
    """Writes of three values that never returned, and a read that none of them explains, as it came too late."""
    lost = [
        Operation(10 + at, "write", "x", at % 3, None, 0.1 * at, math.inf, "info") for at in range(3 * each)
    ]  # fmt: skip
    sure = [
        Operation(0, "write", "x", 7, None, 90.0, 91.0), Operation(1, "read", "x", None, 7, 92.0, 93.0),
        Operation(0, "cas", "x", (7, 8), True, 94.0, 95.0), Operation(1, "read", "x", None, 7, 96.0, 97.0),
    ]  # fmt: skip
    return [*lost, *sure]


def test_writes_that_ask_for_the_same_are_not_tried_in_every_order() -> None:
    """Each of them may have been done or not: once, so many writes meant twice as many ways for each."""
    found = linearizable.judge(lost_writes(each=6), budget=Budget(nodes=400))
    assert found.verdict == "violated"
    assert found.witness == (20, 21)  # the one write of 7 can come before the compare-and-set or after it


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
        "class Heap:\n    initial = []\n    def step(self, state, operation):\n        return True, state\n"
    )
    toggle = specifications.load(f"{path}:Toggle")
    flips = [Operation(0, "flip", None, None, i % 2 == 0, 2 * i, 2 * i + 1) for i in range(4)]
    assert linearizable.judge(flips, toggle).verdict == HOLDS
    judgement = linearizable.judge([*flips, Operation(1, "flip", None, None, False, 9, 10)], toggle)
    assert judgement.verdict == VIOLATED and judgement.prefix == 4
    for bad, what in (
        (f"{path}:Switch", "a class with 'initial' and 'step"),
        ("own.py:Toggle", "cannot read own.py"),
        ("switch", "no specification 'switch'; there are register"),
        (f"{path}:Heap", r"\[\] cannot be remembered; a tuple or a frozenset would be right"),
    ):
        with pytest.raises(BadInput, match=what):
            specifications.load(bad)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("raise KeyError(operation.f)", "'step' fails on flip 3: KeyError: 'flip'"),
        ("return True", "'step' fails on flip 3: TypeError: returned True; (whether it fits, the state after it)"),
        ("return True, [state]", "[0] cannot be remembered; a tuple or a frozenset would be right"),
    ],
)
def test_a_specification_of_ones_own_that_fails_is_told_in_one_line(tmp_path: Path, body: str, what: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(f"class Own:\n    initial = 0\n    def step(self, state, operation):\n        {body}\n")
    with pytest.raises(BadInput) as caught:
        linearizable.judge([Operation(0, "flip", None, 3, None, 0, 1)], specifications.load(f"{path}:Own"))
    assert what in str(caught.value) and "\n" not in str(caught.value)


def test_an_explanation_leaves_out_nothing_that_an_object_of_ones_own_may_need(tmp_path: Path) -> None:
    path = tmp_path / "sum.py"
    path.write_text(
        "class Sum:\n    initial = 0\n    def step(self, state, operation):\n"
        "        if operation.f == 'read':\n            return operation.result == state, state\n"
        "        return True, state + operation.value\n"
    )
    total = specifications.load(f"{path}:Sum")
    history = [write(0, 3, 0, 1), write(0, 4, 2, 3), read(1, 7, 4, 5), read(1, 3, 6, 7)]
    assert linearizable.judge(history, total).witness == (2, 3)  # the sum falls; that 7 was read is no wonder
    assert sequential.judge(history, total).witness == (2, 3)


def test_causal_models_are_unknown_for_what_is_no_register() -> None:
    history = [write(0, "a", 0, 1), read(1, "", 2, 3), read(0, "", 4, 5), read(0, "a", 6, 7), read(0, "", 8, 9)]
    ladder = strongest(history, specifications.SPECIFICATIONS["kv"])
    assert ladder["sequential"].verdict == VIOLATED
    for model in (*causal.MODELS, *sessions.MODELS):  # a key-value store begins with "", which nobody wrote
        assert ladder[model].verdict == UNKNOWN and "for registers only" in ladder[model].reason


def test_a_value_from_nowhere_is_called_so_whatever_it_breaks() -> None:
    for model in sessions.MODELS:
        assert sessions.judge([read(0, 7, 0, 1)], model).reason.startswith("returns a value that nobody wrote")


def test_a_model_that_does_not_exist_is_refused() -> None:
    history = [write(0, 1, 0, 1)]
    for call in (
        lambda: judge(history, "eventual"),
        lambda: causal.judge(history, "x"),
        lambda: sessions.judge(history, "y"),
    ):
        with pytest.raises(ValueError, match="there are"):
            call()


def test_transactions_and_sets_are_told_without_the_names_of_types() -> None:
    asked, answered = [["r", "x", None], ["append", "y", 3]], [["r", "x", [1, None]], ["append", "y", 3]]
    done = Operation(0, "txn", None, asked, answered, 0, 1)
    assert name([done], 0) == "#0 p0 txn r x [1, nil], append y 3"
    assert name([done._replace(result=None, status="info")], 0) == "#0 p0 txn r x ?, append y 3"
    assert name([read(2, frozenset({2, 1}), 0, 1)], 0) == "#0 p2 read x → {1, 2}"


def test_a_drawing_shows_what_overlaps() -> None:
    history = [write(0, 1, 0, 4), read(1, 1, 2, 6), Operation(0, "write", "x", 2, None, 5, math.inf, "info")]
    first, second = draw(history, [0, 1, 2]).splitlines()
    assert first.startswith("p0") and second.startswith("p1")
    assert "#0 write x 1" in first and "#2 write x 2" in first and first.endswith("┄")
    assert second.index("├") < first.index("┤") < second.index("┤")


@pytest.mark.parametrize(("width", "label"), [(90, "#3 write x 103"), (60, "#3 write"), (45, "#3"), (12, "…")])
def test_a_drawing_says_less_where_it_is_narrow_and_still_shows_all(width: int, label: str) -> None:
    history = [write(i % 2, 100 + i, 2 * i, 2 * i + 1) for i in range(4)]
    lines = draw(history, range(4), width).splitlines()
    assert len(lines) == 2 and all(len(line) <= width for line in lines) and label in lines[1]
    assert width == 12 or all(f"├#{i}" in lines[i % 2] for i in range(4))


def test_a_call_that_was_left_behind_comes_after_what_its_process_did_and_before_nothing() -> None:
    lost = Operation(0, "write", "y", 1, None, 2.0, math.inf, "info")
    late = [write(0, 1, 0, 1), lost, read(0, None, 3, 4, "y"), read(1, 1, 5, 6, "y"), read(1, 1, 7, 8)]
    assert strongest(late).maximal == ("linearizable",)
    hasty = [*late[:-1], read(1, None, 7, 8)]  # the lost write is seen, what its process wrote before is not
    ladder = strongest(hasty)
    assert [ladder[model].verdict for model in ("read-your-writes", "monotonic-reads", "writes-follow-reads")] == [
        HOLDS, HOLDS, HOLDS,
    ]  # fmt: skip
    broken = ("linearizable", "sequential", "causal-memory", "causal-convergent", "causal", "pram", "monotonic-writes")
    assert {ladder[model].verdict for model in broken} == {VIOLATED}
    assert ladder["causal"].witness == (0, 1, 3, 4)
    back = [write(0, 2, 0, 1, "y"), *late[1:-1], read(1, 2, 7, 8, "y")]  # what the lost write replaced is back
    assert sessions.judge(back, "monotonic-writes").witness == (0, 1, 3, 4)


def test_whose_a_call_is_that_never_returned_is_asked_of_the_whole_history() -> None:
    history = [
        Operation(2, "write", "x", 2, None, 0.0, math.inf, "info"),
        Operation(1, "cas", "x", (2, 0), True, 1.0, 2.0),
        Operation(2, "cas", "x", (2, 1), False, 3.0, 4.0),
        Operation(2, "read", "x", None, None, 5.0, 6.0),
    ]
    cas = specifications.SPECIFICATIONS["cas-register"]
    assert sequential.judge(history, cas).verdict == HOLDS and oracle.sequential(history, oracle.legal_register)


def test_nothing_and_false_are_values_that_an_explanation_may_rest_on() -> None:
    flags = [write(0, True, 0, 1), write(0, False, 2, 3), write(0, True, 4, 5), write(0, False, 6, 7)]
    assert linearizable.judge([*flags, read(1, True, 8, 9)]).witness == (0, 2, 3, 4)
    deleted = [write(0, 1, 0, 1), write(0, None, 2, 3), write(0, 1, 4, 5), read(1, None, 6, 7)]
    assert linearizable.judge(deleted).witness == (1, 2, 3)


def lost_cas(old: int, invoke: float) -> Operation:
    """A compare-and-set of process 0 that never returned; 9 was read, so it took place and found the old value."""
    return Operation(0, "cas", "x", (old, 9), None, invoke, math.inf, "info")


@pytest.mark.parametrize(
    ("model", "before"),
    [
        ("read-your-writes", [write(0, 1, 0, 1), write(0, 2, 2, 3)]),
        ("monotonic-reads", [write(1, 1, 0, 1), write(2, 2, 0, 1), read(0, 1, 2, 3), read(0, 2, 4, 5)]),
        ("monotonic-writes", [write(1, 1, 0, 1), write(1, 2, 2, 3), read(0, 2, 4, 5)]),
    ],
)
def test_a_session_is_judged_by_a_compare_and_set_that_it_left_behind(model: str, before: list[Operation]) -> None:
    after = [write(0, 7, 8, 9, key="y"), read(3, 9, 10, 11)]
    judgement = sessions.judge([*before, lost_cas(1, 6), *after], model)
    assert judgement.verdict == VIOLATED
    assert len(before) in judgement.witness
    assert sessions.verdict([*before, lost_cas(2, 6), *after], model) == HOLDS
    unread = [*before, lost_cas(1, 6), after[0]]
    assert sessions.verdict(unread, model) == HOLDS  # perhaps it never took place


def test_what_a_session_does_later_is_not_judged_by_what_it_left_behind() -> None:
    late = [write(1, 1, 0, 1), lost_cas(1, 2), write(0, 3, 3, 4), read(0, 3, 5, 6), read(2, 9, 8, 9)]
    assert all(sessions.verdict(late, model) == HOLDS for model in sessions.MODELS)


def test_long_lists_are_told_by_their_ends_where_they_differ() -> None:
    asked, answered = [["r", "x", None]], [["r", "x", list(range(200))]]
    assert name([Operation(0, "txn", None, asked, answered, 0, 1)], 0) == "#0 p0 txn r x [0, 1, … 198, 199]"


def test_a_witness_is_sought_among_what_may_explain_it() -> None:
    """Of thousands of transactions few are looked at again and again, however many there are."""

    def transaction(number: int, *steps: list[object]) -> Operation:
        asked = [[f, key, value if f == "append" else None] for f, key, value in steps]
        return Operation(number % 5, "txn", None, asked, list(steps), float(number), number + 0.5)

    many = [transaction(i, ["append", f"k{i}", i], ["r", f"k{i - 1}", [i - 1] if i else []]) for i in range(500)]
    wrong = [transaction(500, ["append", "x", 1]), transaction(501, ["append", "x", 2], ["r", "x", [2]])]
    looked: list[int] = []

    def check(trial: Sequence[Operation]) -> str:
        looked.append(len(trial))
        return list_append.verdict(trial, "strict-serializable")

    witness, done = explain([*many, *wrong], check, (499, 500, 501))
    assert (witness, done) == ((500, 501), True)
    assert max(looked) <= 5
